package main

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// topologyFiles are the named topologies; README.md has their pictures.
//
//go:embed topologies/*.args
var topologyFiles embed.FS

// topology is what a topology file adds to the VM.
type topology struct {
	qemu    []string // further QEMU arguments
	cmdline []string // further kernel arguments
	modules []string // kernel modules to load, for the devices added
	memory  string   // memory that the file's NUMA nodes add up to
}

// loadTopology takes the name of an embedded topology or a file's path.
func loadTopology(name string) (topology, error) {
	text, err := topologyText(name)
	if err != nil {
		return topology{}, err
	}
	parsed, err := parseTopology(text)
	if err != nil {
		return topology{}, usagef("topology %s: %v", name, err)
	}
	return parsed, nil
}

func topologyText(name string) (string, error) {
	if slices.Contains(topologyNames(), name) {
		data, err := topologyFiles.ReadFile(path.Join("topologies", name+".args"))
		return string(data), err
	}
	data, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return "", usagef("unknown topology %q: neither a file nor one of %s", name, strings.Join(topologyNames(), ", "))
	}
	if err != nil {
		return "", usagef("topology: %v", err)
	}
	return string(data), nil
}

// topologyNames returns the names of the embedded topologies, sorted.
func topologyNames() []string {
	files, err := fs.Glob(topologyFiles, "topologies/*.args")
	if err != nil {
		return nil // only for a malformed pattern
	}
	var names []string
	for _, file := range files {
		names = append(names, strings.TrimSuffix(path.Base(file), ".args"))
	}
	return names
}

// parseTopology reads one QEMU option with its value per line. "cmdline:",
// "modules:" and "memory:" lines carry what is not for QEMU.
func parseTopology(text string) (topology, error) {
	var t topology
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := t.addLine(line); err != nil {
			return topology{}, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	return t, nil
}

func (t *topology) addLine(line string) error {
	key, value, _ := strings.Cut(line, " ")
	value = strings.TrimSpace(value)
	switch {
	case strings.HasPrefix(key, "-"):
		t.qemu = append(t.qemu, key)
		if value != "" {
			t.qemu = append(t.qemu, value)
		}
	case key == "cmdline:":
		t.cmdline = append(t.cmdline, strings.Fields(value)...)
	case key == "modules:":
		t.modules = append(t.modules, strings.Fields(value)...)
	case key == "memory:":
		t.memory = value
	default:
		return fmt.Errorf("%q is neither a QEMU option nor a cmdline:, modules: or memory: line", key)
	}
	return nil
}

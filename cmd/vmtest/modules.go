package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// bootModules are what the VM needs to find its root file system and to talk
// to vmtest.
var bootModules = []string{
	"virtio_pci", "9p", "9pnet_virtio", "overlay", "virtio_console", "virtio_net", "veth", "fuse",
}

// rdmaModules make up the RDMA stack. rdma_rxe asks the kernel's crypto layer
// for crc32 by name, which no dependency file shows: without crc32_generic
// adding a device fails with ENOENT.
var rdmaModules = []string{
	"crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm", "ib_umad",
}

// nodeModules are for several VMs: faults of the network between them (tc netem).
var nodeModules = []string{"sch_netem"}

// moduleIndex is what modules.dep and modules.builtin say.
type moduleIndex struct {
	files   map[string]string   // module name -> file, relative to the modules directory
	depends map[string][]string // module file -> files to load before it, in order
	builtin map[string]bool     // module names
}

// readModuleIndex reads the index that depmod made in a modules directory.
func readModuleIndex(dir string) (moduleIndex, error) {
	depends, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return moduleIndex{}, fmt.Errorf("module index: %w", err)
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return moduleIndex{}, fmt.Errorf("module index: %w", err)
	}
	return parseModuleIndex(string(depends), string(builtin)), nil
}

func parseModuleIndex(depends, builtin string) moduleIndex {
	index := moduleIndex{files: map[string]string{}, depends: map[string][]string{}, builtin: map[string]bool{}}
	for line := range strings.Lines(depends) {
		file, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		index.files[moduleName(file)] = file
		needed := strings.Fields(rest)
		// modules.dep names the last to load first.
		for i := len(needed) - 1; i >= 0; i-- {
			index.depends[file] = append(index.depends[file], needed[i])
		}
	}
	for line := range strings.Lines(builtin) {
		index.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	return index
}

// moduleName returns the kernel's name of a module file: without directory and
// suffixes, with '_' for '-'.
func moduleName(file string) string {
	name := filepath.Base(file)
	for _, suffix := range []string{".xz", ".zst", ".gz", ".ko"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return strings.ReplaceAll(name, "-", "_")
}

// loadOrder returns the module files to load for the named modules, each once
// and after what it depends on. Built-in modules need no file.
func (x moduleIndex) loadOrder(names []string) ([]string, error) {
	var (
		order []string
		seen  = map[string]bool{}
		errs  []error
	)
	add := func(file string) {
		if !seen[file] {
			seen[file] = true
			order = append(order, file)
		}
	}
	for _, name := range names {
		file, ok := x.files[moduleName(name)]
		if !ok {
			if !x.builtin[moduleName(name)] {
				errs = append(errs, fmt.Errorf("kernel has no module %s", name))
			}
			continue
		}
		for _, needed := range x.depends[file] {
			add(needed)
		}
		add(file)
	}
	return order, errors.Join(errs...)
}

// readModule returns a module's plain contents. busybox's insmod cannot be
// counted on to unpack, so vmtest does.
func readModule(ctx context.Context, file string) ([]byte, error) {
	switch filepath.Ext(file) {
	case ".ko":
		return os.ReadFile(file)
	case ".xz":
		text, err := runProgram(ctx, "", "xz", "-dc", file)
		return []byte(text), err
	default:
		return nil, fmt.Errorf("module %s: unknown compression", filepath.Base(file))
	}
}

// Package packages holds the description of the .deb and the .rpm, and what is tested of
// it on every run of the tests. deploy/packages/try installs the .deb for real.
package packages

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"
)

const repository = "../.."

// description is what the tests look at of nfpm.yaml; a key that is not known is a mistake.
type description struct {
	Name, Arch, Platform, Version string
	Rest                          map[string]any `yaml:",inline"`
	Contents                      []content      `yaml:"contents"`
	Overrides                     map[string]struct {
		Depends, Recommends, Suggests []string
		Scripts                       map[string]string
	} `yaml:"overrides"`
}

type content struct {
	Src, Dst, Type, Packager string
	Expand                   bool
	FileInfo                 struct{ Mode int } `yaml:"file_info"`
}

// known are the keys of nfpm.yaml.
var known = []string{
	"changelog", "deb", "description", "license", "maintainer", "priority", "release", "rpm", "section", "umask", "version_schema",
}

func read(t *testing.T) description {
	t.Helper()
	text, err := os.ReadFile("nfpm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d description
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// files are what a kind of package installs, by where.
func (d description) files(packager string) map[string]content {
	files := map[string]content{}
	for _, c := range d.Contents {
		if c.Packager == "" || c.Packager == packager {
			files[c.Dst] = c
		}
	}
	return files
}

// TestDescription: every key is one that nfpm knows, every file is there, and the
// configuration is kept.
func TestDescription(t *testing.T) {
	d := read(t)
	for _, key := range slices.Sorted(maps.Keys(d.Rest)) {
		if !slices.Contains(known, key) {
			t.Errorf("key %s", key)
		}
	}
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`).MatchString(d.Name) {
		t.Errorf("%q is no name of a Debian package", d.Name)
	}
	for _, c := range d.Contents {
		if strings.HasPrefix(c.Src, "${PACKAGE_STAGE}/") {
			if !c.Expand {
				t.Errorf("%s: the variable is not replaced without expand", c.Src)
			}
			continue
		}
		if matches, err := filepath.Glob(filepath.Join(repository, c.Src)); err != nil || len(matches) == 0 {
			t.Errorf("%s is not there", c.Src)
		}
	}
	for packager, config := range map[string]string{"deb": "/etc/default/gdr_exporter", "rpm": "/etc/sysconfig/gdr_exporter"} {
		files := d.files(packager)
		if got := files[config].Type; got != "config|noreplace" {
			t.Errorf("%s: %s is of type %q", packager, config, got)
		}
		for _, path := range []string{
			"/usr/bin/gdr_exporter", "/usr/lib/systemd/system/gdr_exporter.service", "/usr/lib/systemd/system/gdr_exporter.socket",
			"/usr/lib/sysusers.d/gdr_exporter.conf", "/usr/share/man/man8/gdr_exporter.8.gz", "/usr/share/bash-completion/completions/gdr_exporter",
		} {
			if _, has := files[path]; !has {
				t.Errorf("%s: no %s", packager, path)
			}
		}
		unit, err := os.ReadFile(filepath.Join(repository, "deploy/systemd/gdr_exporter.service"))
		if err != nil || !strings.Contains(string(unit), "EnvironmentFile=-"+config+"\n") {
			t.Errorf("the unit does not read %s: %v", config, err)
		}
	}
}

// TestDependencies: a node without RDMA libraries takes the package.
func TestDependencies(t *testing.T) {
	for packager, o := range read(t).Overrides {
		if strings.Contains(strings.Join(o.Depends, " "), "ibverbs") || !strings.Contains(strings.Join(o.Recommends, " "), "libibverbs") {
			t.Errorf("%s: depends on %q, recommends %q", packager, o.Depends, o.Recommends)
		}
		for _, script := range slices.Sorted(maps.Values(o.Scripts)) {
			path := filepath.Join(repository, script)
			if output, err := exec.CommandContext(t.Context(), "sh", "-n", path).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", script, err, output)
			}
			if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
				t.Errorf("%s cannot be executed: %v", script, err)
			}
		}
		if len(o.Scripts) != 3 {
			t.Errorf("%s: scripts %v", packager, o.Scripts)
		}
	}
}

// TestDefault: the file is one that a shell and systemd both understand, and asks for
// nothing.
func TestDefault(t *testing.T) {
	output, err := exec.CommandContext(t.Context(), "sh", "-c", `. ./default && printf "<%s>" "$ARGS"`).CombinedOutput()
	if err != nil || string(output) != "<>" {
		t.Errorf("%q, %v", output, err)
	}
}

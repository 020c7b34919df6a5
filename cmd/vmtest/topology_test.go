package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParseTopology(t *testing.T) {
	got, err := parseTopology(`
# comment
  -M q35,kernel-irqchip=split
-S
cmdline: intel_iommu=on  iommu=pt
cmdline: quiet
modules: e1000e aer_inject
memory: 3G
-device e1000e,id=a b
`)
	if err != nil {
		t.Fatal(err)
	}
	want := topology{
		qemu:    []string{"-M", "q35,kernel-irqchip=split", "-S", "-device", "e1000e,id=a b"},
		cmdline: []string{"intel_iommu=on", "iommu=pt", "quiet"},
		modules: []string{"e1000e", "aer_inject"},
		memory:  "3G",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestEmbeddedTopologies(t *testing.T) {
	names := topologyNames()
	if want := []string{"flat", "gdr", "iommu", "numa", "switch"}; !slices.Equal(names, want) {
		t.Errorf("names %v, want %v", names, want)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := loadTopology(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !strings.Contains(string(readme), "\n| "+name+" |") {
			t.Errorf("README.md has no row for topology %s", name)
		}
	}
}

func TestTopologyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.args")
	if err := os.WriteFile(file, []byte("-device nvme,serial=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := loadTopology(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"-device", "nvme,serial=1"}; !slices.Equal(got.qemu, want) {
		t.Errorf("got %v, want %v", got.qemu, want)
	}
}

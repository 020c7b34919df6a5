// Package release holds what is tested of the release's description on every run of the
// tests. deploy/release/snapshot makes a release for real.
package release

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"
)

const repository = "../.."

// TestDescription: both architectures, the linker's flags of the Makefile, and every file
// of the archives is there.
func TestDescription(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, ".goreleaser.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Builds []struct {
			Goarch, Ldflags, Env []string
		}
		Archives []struct {
			Files []struct{ Src string }
		}
		Sboms []struct{ Artifacts string }
	}
	if err := yaml.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Builds) != 1 || !slices.Equal(d.Builds[0].Goarch, []string{"amd64", "arm64"}) || len(d.Archives) != 1 || len(d.Sboms) != 1 {
		t.Fatalf("%+v", d)
	}
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	flags := strings.Join(d.Builds[0].Ldflags, " ")
	for _, flag := range []string{"-extldflags=-Wl,-z,lazy", ".Version=", ".Revision=", ".Branch="} {
		if !strings.Contains(flags, flag) || !strings.Contains(string(makefile), flag) {
			t.Errorf("%s is not in both the Makefile and the release", flag)
		}
	}
	if !slices.Contains(d.Builds[0].Env, "CGO_ENABLED=1") {
		t.Error("without cgo nothing can be measured")
	}
	for _, file := range d.Archives[0].Files {
		if _, err := os.Stat(filepath.Join(repository, file.Src)); err != nil {
			t.Error(err)
		}
	}
}

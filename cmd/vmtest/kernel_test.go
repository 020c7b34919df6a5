package main

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseDepends(t *testing.T) {
	record := `Package: linux-headers-6.1.0-57-amd64
Version: 6.1.192-3
Depends: linux-headers-6.1.0-57-common (= 6.1.192-3), linux-kbuild-6.1 (>= 6.1.192-3), gcc-12 | gcc, linux-compiler-gcc-12-x86
Recommends: nothing
`
	want := []string{"linux-headers-6.1.0-57-common", "linux-kbuild-6.1", "gcc-12", "linux-compiler-gcc-12-x86"}
	if got := parseDepends(record); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPrivateListsLeavesTheFirstAlone(t *testing.T) {
	base := machineApt()
	private := base.privateLists("/a")
	other := base.privateLists("/b")
	if !slices.Contains(private.options, "Dir::State::lists=/a/lists") || !slices.Contains(other.options, "Dir::State::lists=/b/lists") {
		t.Errorf("options share memory: %v, %v", private.options, other.options)
	}
	if len(base.options) != len(machineApt().options) {
		t.Errorf("base has changed: %v", base.options)
	}
}

func TestRelocateHeaders(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "Makefile")
	write(t, file, "include /usr/src/linux-headers-6.1.0-57-common/Makefile\n")
	if err := relocateHeaders(dir); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := "include $(dir $(lastword $(MAKEFILE_LIST)))../linux-headers-6.1.0-57-common/Makefile\n"
	if string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := relocateHeaders(dir); err == nil {
		t.Error("a Makefile of another form: no error")
	}
}

func TestKernelImage(t *testing.T) {
	k := kernel{dir: t.TempDir(), release: "6.1"}
	if err := os.Mkdir(filepath.Join(k.dir, "boot"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := k.image(); got != k.compressedImage() {
		t.Errorf("without vmlinux: %s", got)
	}
	write(t, k.plainImage(), "")
	if got := k.image(); got != k.plainImage() {
		t.Errorf("with vmlinux: %s", got)
	}
}

func TestKernelPayload(t *testing.T) {
	image := make([]byte, 3*sectorSize)
	image[setupSectorsOffset] = 1
	copy(image[headerMagicOffset:], "HdrS")
	binary.LittleEndian.PutUint32(image[payloadOffsetOffset:], 16)
	binary.LittleEndian.PutUint32(image[payloadLengthOffset:], 11)
	copy(image[2*sectorSize+16:], "payload1234")
	got, err := kernelPayload(image)
	if err != nil || string(got) != "payload" {
		t.Errorf("got %q, %v", got, err)
	}

	binary.LittleEndian.PutUint32(image[payloadLengthOffset:], 0xffffffff)
	if _, err := kernelPayload(image); err == nil || !strings.Contains(err.Error(), "outside") {
		t.Errorf("payload outside the file: got %v", err)
	}
	if _, err := kernelPayload(image[:100]); err == nil {
		t.Error("short file: no error")
	}
	if _, err := kernelPayload(make([]byte, 1000)); err == nil {
		t.Error("no magic: no error")
	}
}

func TestDecompressUnknown(t *testing.T) {
	if _, err := decompress(context.Background(), t.TempDir(), []byte("LZ4?")); err == nil {
		t.Error("no error")
	}
}

func TestModuleKey(t *testing.T) {
	k := kernel{dir: t.TempDir(), release: "6.1"}
	if err := os.MkdirAll(k.headersDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	symvers := filepath.Join(k.headersDir(), "Module.symvers")
	write(t, symvers, "symbols")
	sources := t.TempDir()
	write(t, filepath.Join(sources, "a.c"), "int a;")

	keys := map[string]string{}
	note := func(what string) {
		t.Helper()
		key, err := moduleKey(k, sources)
		if err != nil {
			t.Fatal(err)
		}
		if before, ok := keys[key]; ok {
			t.Errorf("%s: same key as %s", what, before)
		}
		keys[key] = what
	}
	note("first")
	write(t, filepath.Join(sources, "a.c"), "int b;")
	note("changed source")
	write(t, filepath.Join(sources, "Makefile"), "")
	note("further file")
	write(t, symvers, "others")
	note("other kernel")
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

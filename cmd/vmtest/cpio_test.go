package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// testArchive has names and contents of lengths that need each padding.
func testArchive(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	w := newCpioWriter(&out)
	w.character("dev/console", 0o600, 5, 1)
	w.file("init", 0o755, []byte("#!/bin/sh\n"))
	w.file("/a/b/c1", 0o644, []byte("1"))
	w.file("a/b/c22", 0o644, []byte("22"))
	w.file("a/b/c333", 0o644, []byte("333"))
	w.file("a/b/empty", 0o644, nil)
	w.directory("a/b")
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestCpioList(t *testing.T) {
	names := strings.Fields(cpio(t, "", "-t"))
	want := []string{"dev", "dev/console", "init", "a", "a/b", "a/b/c1", "a/b/c22", "a/b/c333", "a/b/empty"}
	if !slices.Equal(names, want) {
		t.Errorf("got  %v\nwant %v", names, want)
	}
}

func TestCpioContents(t *testing.T) {
	dir := t.TempDir()
	cpio(t, dir, "-i", "-d", "a/*", "init")
	for name, want := range map[string]string{"init": "#!/bin/sh\n", "a/b/c1": "1", "a/b/c22": "22", "a/b/c333": "333", "a/b/empty": ""} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, want)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "init")); err != nil || info.Mode() != 0o755 {
		t.Errorf("init: mode %v, %v", info.Mode(), err)
	}
}

// cpio lets the real program read the test archive.
func cpio(t *testing.T, dir string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("cpio"); err != nil {
		t.Skip("needs the Debian package cpio")
	}
	cmd := exec.Command("cpio", append([]string{"--quiet"}, args...)...)
	cmd.Dir = dir
	cmd.Stdin = bytes.NewReader(testArchive(t))
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("cpio: %v\n%s", err, output)
	}
	return string(output)
}

func TestCpioWriteError(t *testing.T) {
	full := errors.New("no space")
	w := newCpioWriter(writerFunc(func([]byte) (int, error) { return 0, full }))
	w.file("x", 0o644, []byte("data"))
	if err := w.close(); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(data []byte) (int, error) { return f(data) }

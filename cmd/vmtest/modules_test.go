package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	testModulesDep = `kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz
kernel/net/9p/9pnet.ko.xz:
kernel/fs/netfs/netfs.ko.xz:
kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/drivers/virtio/virtio.ko.xz
kernel/drivers/virtio/virtio.ko.xz:
kernel/sound/snd-pcm.ko:
`
	testModulesBuiltin = "kernel/fs/ext4/ext4.ko\nkernel/drivers/char/hw-random.ko\n"
)

func TestLoadOrder(t *testing.T) {
	index := parseModuleIndex(testModulesDep, testModulesBuiltin)
	got, err := index.loadOrder([]string{"9p", "ext4", "9pnet_virtio", "snd_pcm", "hw_random", "9p"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"kernel/fs/netfs/netfs.ko.xz", "kernel/net/9p/9pnet.ko.xz", "kernel/fs/9p/9p.ko.xz",
		"kernel/drivers/virtio/virtio.ko.xz", "kernel/net/9p/9pnet_virtio.ko.xz", "kernel/sound/snd-pcm.ko",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestLoadOrderUnknown(t *testing.T) {
	index := parseModuleIndex(testModulesDep, testModulesBuiltin)
	_, err := index.loadOrder([]string{"nope", "9p", "neither"})
	if err == nil || !strings.Contains(err.Error(), "nope") || !strings.Contains(err.Error(), "neither") {
		t.Errorf("got %v, want both names", err)
	}
}

func TestReadModule(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "a.ko")
	if err := os.WriteFile(plain, []byte("\x7fELF module"), 0o600); err != nil {
		t.Fatal(err)
	}
	packed := filepath.Join(dir, "b.ko")
	if err := os.WriteFile(packed, []byte("\x7fELF module"), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("xz", packed).CombinedOutput(); err != nil {
		t.Skipf("needs xz: %v: %s", err, output)
	}
	for _, file := range []string{plain, packed + ".xz"} {
		got, err := readModule(context.Background(), file)
		if err != nil || string(got) != "\x7fELF module" {
			t.Errorf("%s: got %q, %v", file, got, err)
		}
	}
	if _, err := readModule(context.Background(), "x.ko.lz4"); err == nil {
		t.Error("unknown compression: no error")
	}
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// newSharedDir makes an empty directory for the VMs of one run to share. Those of runs
// that were killed are removed: each is locked for as long as its run lives.
func newSharedDir(cache string) (dir string, remove func(), err error) {
	parent := filepath.Join(cache, "shared")
	if strings.Contains(parent, ",") {
		return "", nil, fmt.Errorf("cache directory %s: QEMU cannot share a path with a comma", cache)
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", nil, fmt.Errorf("shared directory: %w", err)
	}
	removeStale(parent)
	if dir, err = os.MkdirTemp(parent, "run"); err != nil {
		return "", nil, fmt.Errorf("shared directory: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", nil, fmt.Errorf("shared directory: %w", err)
	}
	return dir, func() {
		_ = os.RemoveAll(dir)
		_ = lock.Close()
	}, nil
}

// removeStale removes the directories that nobody has locked. One that was made a
// moment ago and is not locked yet is empty: it is left alone, as Remove fails for
// those that hold something, and RemoveAll would take it from under its maker.
func removeStale(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return // there is always a next time
	}
	for _, entry := range entries {
		dir := filepath.Join(parent, entry.Name())
		if inside, err := os.ReadDir(dir); err != nil || len(inside) == 0 {
			continue
		}
		if lock, err := lockDir(dir); err == nil {
			_ = os.RemoveAll(dir)
			_ = lock.Close()
		}
	}
}

// lockDir takes the lock of a directory, or fails at once.
func lockDir(dir string) (*os.File, error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return file, nil
}

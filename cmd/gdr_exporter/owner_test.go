package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestLeaveToOwner: what root has made in the directory of an unprivileged daemon is
// that daemon's after; files behind links are not.
func TestLeaveToOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	const daemon = 12345
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	for _, path := range []string{elsewhere, filepath.Join(dir, "state.json")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	link(os.Symlink(elsewhere, filepath.Join(dir, "symbolic")))
	link(os.Link(elsewhere, filepath.Join(dir, "hard")))

	leaveToOwner(dir) // root's own
	if got := ownerOf(t, filepath.Join(dir, "state.json")); got != 0 {
		t.Errorf("in a directory of root's: owner %d", got)
	}
	link(os.Chown(dir, daemon, daemon))
	leaveToOwner(dir)
	if got := ownerOf(t, filepath.Join(dir, "state.json")); got != daemon {
		t.Errorf("owner %d, want %d", got, daemon)
	}
	if got := ownerOf(t, elsewhere); got != 0 {
		t.Errorf("a file behind a link was given to %d", got)
	}
}

func ownerOf(t *testing.T, path string) uint32 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Uid
}

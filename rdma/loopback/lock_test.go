package loopback

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestLockOwner: a lock that root has made belongs to the daemon whose directory it
// is in.
func TestLockOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	const daemon = 12345
	dir := t.TempDir()
	if err := os.Chown(dir, daemon, daemon); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "probe.lock")
	lock, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != daemon {
		t.Errorf("owner %d, want %d", owner, daemon)
	}
}

// TestLockLinks: what is no lock is not written to, whoever put it there.
func TestLockLinks(t *testing.T) {
	const text = "precious"
	for name, link := range map[string]func(old, name string) error{"symbolic": os.Symlink, "hard": os.Link} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file, path := filepath.Join(dir, "file"), filepath.Join(dir, "probe.lock")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := link(file, path); err != nil {
				t.Fatal(err)
			}
			if lock, err := TryLock(path); err == nil {
				_ = lock.Unlock()
				t.Error("a link was taken for a lock")
			}
			if got, err := os.ReadFile(file); err != nil || string(got) != text {
				t.Errorf("the file has become %q, %v", got, err)
			}
		})
	}
}

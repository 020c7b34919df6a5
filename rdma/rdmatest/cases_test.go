package rdmatest

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCasesAreWellFormed(t *testing.T) {
	id := regexp.MustCompile(`^[a-z0-9^-]+$`)
	ids, titles := map[string]bool{}, map[string]bool{}
	for _, c := range Cases() {
		if !id.MatchString(c.ID) || ids[c.ID] || titles[c.Title] || c.Title == "" || c.Source == "" {
			t.Errorf("case %q (%q, %q) is incomplete or there twice", c.ID, c.Title, c.Source)
		}
		ids[c.ID], titles[c.Title] = true, true
		s := c.Scene()
		if s.Sick.Name == "" || s.Sick.Name == HealthyName || (s.Healthy.Name == HealthyName) == c.Alone {
			t.Errorf("%s: devices %q and %q", c.ID, s.Healthy.Name, s.Sick.Name)
		}
		if _, ok := s.Tree.Real("sys/class/infiniband/" + s.Sick.Name); !ok && !c.Alone {
			t.Errorf("%s: %s is not in the tree", c.ID, s.Sick.Name)
		}
	}
	if len(ids) < 38 {
		t.Errorf("%d cases", len(ids))
	}
}

// The two devices of a case share no file, so that whatever happens to one leaves the other alone.
func TestCasesKeepTheHealthyDevice(t *testing.T) {
	alone := New()
	device := alone.MLX5IB(Options{Name: HealthyName, PCIAddress: "0000:18:00.0"})
	for _, c := range Cases() {
		s := c.Scene()
		if c.Alone {
			continue
		}
		for _, path := range alone.Paths() {
			want, isFile := alone.Content(path)
			if got, ok := s.Tree.Content(path); strings.HasPrefix(path, device.Dir) && (ok != isFile || got != want) {
				t.Errorf("%s: %s is %q", c.ID, path, got)
			}
		}
	}
}

// Served with its faults, each case shows what it says: the unreadable files fail as told, all files of the healthy device are read.
func TestCasesServed(t *testing.T) {
	if err := Supported(); err != nil {
		t.Skip(err)
	}
	for _, c := range Cases() {
		t.Run(c.ID, func(t *testing.T) {
			s, dir, mountpoint := c.Scene(), tempDir(t), t.TempDir()
			must(t, s.Tree.WriteTo(dir))
			fs, err := Mount(dir, mountpoint)
			must(t, err)
			defer func() { must(t, fs.Close()) }()
			fs.Apply(s.Faults)
			for _, u := range s.Unreadable {
				checkUnreadable(t, mountpoint, s, u)
			}
			checkHealthy(t, mountpoint, s)
			if c.Change != nil {
				must(t, c.Change(dir, s))
				checkHealthy(t, mountpoint, s)
			}
		})
	}
}

func checkUnreadable(t *testing.T, mountpoint string, s Scene, u Unreadable) {
	t.Helper()
	path := filepath.Join(mountpoint, s.Sick.Dir, u.Source)
	if u.Port > 0 {
		path = filepath.Join(mountpoint, s.Sick.File(u.Port, u.Source))
	}
	err := readEntry(path)
	var errno syscall.Errno
	if errors.As(err, &errno) && errnoName(errno) == u.Errno {
		return
	}
	if err != nil || u.Errno != "invalid" && u.Errno != "no_pma" {
		t.Errorf("%v: %v", u, err)
	}
}

// errnoName names an errno as the kernel does: x/sys knows EOPNOTSUPP by its other name.
func errnoName(errno syscall.Errno) string {
	if errno == syscall.EOPNOTSUPP {
		return "EOPNOTSUPP"
	}
	return unix.ErrnoName(errno)
}

// readEntry reads a file by one pread or lists a directory.
func readEntry(path string) error {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	if _, err = pread(fd); errors.Is(err, syscall.EISDIR) {
		_, err = os.ReadDir(path)
	}
	return err
}

func checkHealthy(t *testing.T, mountpoint string, s Scene) {
	t.Helper()
	if s.Healthy.Dir == "" {
		return
	}
	expected := map[string]bool{}
	for _, fault := range s.Healthy.Faults {
		expected[fault.Path] = true
	}
	for _, path := range s.Tree.Paths() {
		want, ok := s.Tree.Content(path)
		if !ok || !strings.HasPrefix(path, s.Healthy.Dir+"/") || strings.HasSuffix(path, "/device") || expected[path] {
			continue
		}
		if got, err := os.ReadFile(filepath.Join(mountpoint, path)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
}

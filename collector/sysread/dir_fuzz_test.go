package sysread

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// FuzzRecords: directory records of any form end, and name nothing empty or with
// a NUL.
func FuzzRecords(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x18\x00\x04ab\x00\x00\x00"))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0})
	f.Fuzz(func(t *testing.T, records []byte) {
		found, n := new(Dir).compare(records, nil, 0)
		if n != 0 || len(found) > len(records)/19 {
			t.Errorf("%d entries of %x", len(found), records)
		}
		for _, entry := range found {
			if entry.Name == "" || entry.Name[0] == '.' || strings.Contains(entry.Name, "\x00") {
				t.Errorf("%q of %x", entry.Name, records)
			}
		}
	})
}

// FuzzResolve: links of any target end, and lead to a clean absolute path.
func FuzzResolve(f *testing.F) {
	f.Add("/sys/class/infiniband/mlx5_0/ports", "mlx5_0", "../../devices/pci0000:14/mlx5_0")
	f.Add("/a/b", "b", "/a/b")
	f.Add("/a/b", "b", "b/b")
	f.Add("..", "", "")
	f.Fuzz(func(t *testing.T, path, link, target string) {
		got, err := Resolve(path, true, func(at string) (string, error) {
			if filepath.Base(at) != link {
				return "", syscall.EINVAL
			}
			return target, nil
		})
		if err == nil && (got != filepath.Clean(got) || !filepath.IsAbs(got)) {
			t.Errorf("%q with %s -> %q: %q", path, link, target, got)
		}
	})
}

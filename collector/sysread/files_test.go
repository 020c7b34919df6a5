package sysread

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// tree has a file, a link to it, a directory and a link out of another.
func tree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"dir/sub", "empty"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(root, "dir/file"), " text \n")
	write(t, filepath.Join(root, "dir/long"), strings.Repeat("1", 2*AttrSize))
	for name, target := range map[string]string{"link": "dir/file", "dir/sub/up": "../../empty", "broken": "nowhere"} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestFilesAreReadAlike: what a reader gets of the running system and of other
// files is the same, and only of the system descriptors are kept.
func TestFilesAreReadAlike(t *testing.T) {
	root := tree(t)
	for _, path := range []string{"/dir/file", "/link", "/dir/long", "/dir", "/nothing", "/broken", "/dir/file/x", "/dir/sub/up"} {
		system, below := &IO{Descriptors: 10}, &IO{Descriptors: 10, Files: Below(root)}
		for what, read := range map[string]func(io *IO, path string) (any, error){
			"attr": func(io *IO, path string) (any, error) {
				a := NewAttr(path)
				defer a.Close(io)
				var text []byte
				var err error
				for range 2 {
					text, err = a.Read(io, make([]byte, AttrSize))
				}
				if io.Files != nil && io.Held() != 0 {
					t.Errorf("%d descriptors of %s", io.Held(), path)
				}
				return string(text), err
			},
			"once":  func(io *IO, path string) (any, error) { return ReadOnce(io, path) },
			"names": func(io *IO, path string) (any, error) { return namesOrNil(ReadNames(io, path)) },
			"entries": func(io *IO, path string) (any, error) {
				d := Dir{Path: path}
				changed, err := d.Scan(io)
				again, _ := d.Scan(io)
				if again {
					t.Errorf("%s changed", path)
				}
				if len(d.Entries()) == 0 {
					return changed, err
				}
				return d.Entries(), err
			},
			"link":   func(io *IO, path string) (any, error) { return io.Readlink(path) },
			"base":   func(io *IO, path string) (any, error) { return io.LinkBase(path), nil },
			"stat":   func(io *IO, path string) (any, error) { return io.Stat(path) },
			"lstat":  func(io *IO, path string) (any, error) { return io.Lstat(path) },
			"access": func(io *IO, path string) (any, error) { return nil, io.Access(path) },
			"resolve": func(io *IO, path string) (any, error) {
				resolved, err := io.EvalSymlinks(path)
				return strings.TrimPrefix(resolved, root), err
			},
			"lines": func(io *IO, path string) (any, error) {
				text, err := io.ReadLines(path, AttrSize, nil)
				return string(text), err
			},
			"handle": func(io *IO, path string) (any, error) {
				file, err := Open(io, path)
				if err != nil {
					return "", err
				}
				defer file.Close()
				var buf [3]byte
				n, err := file.ReadAt(buf[:], 2)
				return string(buf[:n]), err
			},
		} {
			want, wantErr := read(system, root+path)
			got, err := read(below, path)
			if !reflect.DeepEqual(got, want) || (err == nil) != (wantErr == nil) || err != nil && ErrnoName(err) != ErrnoName(wantErr) {
				t.Errorf("%s of %s: %v, %v; want %v, %v", what, path, got, err, want, wantErr)
			}
		}
	}
}

func namesOrNil(names []string, err error) (any, error) {
	if len(names) == 0 {
		return nil, err
	}
	return names, err
}

// TestDirChanges: a directory's entries that came, went or were replaced under
// their name are seen, and after a failure the last ones stand.
func TestDirChanges(t *testing.T) {
	root := tree(t)
	for name, io := range map[string]*IO{"system": {}, "other files": {Files: Below("/")}} {
		dir := filepath.Join(root, "watched")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		d := Dir{Path: dir}
		expect := func(after string, changed bool, names ...string) {
			t.Helper()
			got, err := d.Scan(io)
			var found []string
			for _, e := range d.Entries() {
				found = append(found, e.Name)
			}
			slices.Sort(found)
			if err != nil || got != changed || !slices.Equal(found, names) {
				t.Errorf("%s, %s: changed %v, %v, %v", name, after, got, found, err)
			}
		}
		expect("nothing", false)
		write(t, filepath.Join(dir, "a"), "")
		write(t, filepath.Join(dir, ".hidden"), "")
		write(t, filepath.Join(dir, "b"), "")
		expect("two came", true, "a", "b")
		expect("nothing", false, "a", "b")
		write(t, filepath.Join(dir, "new"), "")
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "a")); err != nil {
			t.Fatal(err)
		}
		expect("one was replaced", true, "a", "b")
		if err := os.Remove(filepath.Join(dir, "b")); err != nil {
			t.Fatal(err)
		}
		expect("one went", true, "a")
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if changed, err := d.Scan(io); changed || !Absent(err) || len(d.Entries()) != 1 {
			t.Errorf("%s, without the directory: %v, %v, %v", name, changed, err, d.Entries())
		}
		if !d.Clear() || d.Clear() {
			t.Errorf("%s: cleared twice", name)
		}
	}
}

func TestReadLinesBounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	write(t, path, strings.Repeat("0123456789\n", 20000))
	const size = 220000
	if text, err := System.ReadLines(path, size, nil); err != nil || len(text) != size {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if _, err := System.ReadLines(path, size-1, func([]byte) bool { return false }); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v beyond the limit", err)
	}
}

func TestKeepLines(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""}, {"a", "a"}, {"a\nb\n", "a\n"}, {"b\na\nb\na", "a\na"}, {"\n\na\n", "a\n"}, {"b\n", ""},
	} {
		keep := func(line []byte) bool { return bytes.HasPrefix(line, []byte("a")) }
		got := KeepLines([]byte(c.text), keep)
		if string(got) != c.want || string(KeepLines(got, keep)) != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

func TestResolve(t *testing.T) {
	long := "/" + strings.Repeat("d/", 1500) + "end"
	links := map[string]string{
		"/a": "b/c", "/b": "/real", "/up": "../../x", "/real/c/back": "../..", "/loop": "loop", "/two": "three", "/three": "two", "/grows": "grows/x", "/long": long[1:],
	}
	readlink := func(path string) (string, error) {
		switch target, is := links[path]; {
		case is:
			return target, nil
		case strings.HasPrefix(path, "/gone"):
			return "", syscall.ENOENT
		}
		return "", syscall.EINVAL
	}
	for _, c := range []struct {
		path string
		last bool
		want string
		err  error
	}{
		{"/", true, "/", nil},
		{"/x/y", true, "/x/y", nil},
		{"/x//y/./z/", true, "/x/y/z", nil},
		{"/a", true, "/real/c", nil},
		{"/a", false, "/a", nil},
		{"/a/d", false, "/real/c/d", nil},
		{"/a/..", true, "/real", nil}, // not of the link's name
		{"/a/back/x", true, "/x", nil},
		{"/up/y", true, "/x/y", nil},
		{"/../../x", true, "/x", nil},
		{"/gone/b/../c", true, "/gone/c", nil},
		{"/loop", true, "", syscall.ELOOP},
		{"/loop", false, "/loop", nil},
		{"/two/x", true, "", syscall.ELOOP},
		{"/grows", true, "", syscall.ELOOP},
		{"/long", true, long, nil},
		{"/long/" + long, true, "", syscall.ENAMETOOLONG},
	} {
		got, err := Resolve(c.path, c.last, readlink)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%.40s: %.40s, %v; want %.40s, %v", c.path, got, err, c.want, c.err)
		}
	}
}

// TestErrorOf: every errno comes back from its name.
func TestErrorOf(t *testing.T) {
	for errno := syscall.Errno(1); errno < 600; errno++ {
		back := ErrorOf(ErrnoName(errno))
		if !errors.Is(back, errno) {
			t.Errorf("%d is %s is %v", errno, ErrnoName(errno), back)
		}
	}
	for name, want := range map[string]error{
		"no_pma": ErrNoPMA, "invalid": ErrInvalid, "not_recorded": ErrInvalid, "": ErrInvalid, "errno_x": ErrInvalid, "errno_99999999": ErrInvalid,
	} {
		if err := ErrorOf(name); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

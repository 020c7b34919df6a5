package targets

import (
	"os"
	"path/filepath"
	"testing"
)

func count(f *files) int {
	n := 0
	for _, s := range f.sources() {
		n += s.Targets
	}
	return n
}

// TestBetweenTwoNames: a file that matches a pattern no more keeps its targets for
// one look, and loses them in the next.
func TestBetweenTwoNames(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yml")
	write(t, path, "- targets: [a]")
	f := &files{patterns: []string{filepath.Join(dir, "*.yml")}, known: map[string]*file{}}
	if changed := f.look(); !changed || count(f) != 1 {
		t.Fatalf("%d targets at first", count(f))
	}
	move := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	move(path, path+".old")
	if changed := f.look(); changed || count(f) != 1 {
		t.Errorf("%d targets in the first look without it", count(f))
	}
	move(path+".old", path)
	if f.look(); count(f) != 1 {
		t.Errorf("%d targets when it is back", count(f))
	}
	move(path, path+".old")
	f.look()
	if changed := f.look(); !changed || count(f) != 0 {
		t.Errorf("%d targets in the second look without it", count(f))
	}
}

// TestComesBack: a file that is as it was before it could not be reached, as after a
// mount, has no error any more.
func TestComesBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mounted")
	path := filepath.Join(dir, "a.yml")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, path, "- targets: [a]")
	f := &files{patterns: []string{path}, known: map[string]*file{}}
	f.look()
	if err := os.Rename(dir, dir+".away"); err != nil { // the file itself does not change
		t.Fatal(err)
	}
	if changed := f.look(); !changed || count(f) != 1 || f.known[path].err == nil {
		t.Errorf("%d targets, %v while it is away", count(f), f.known[path].err)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	f.look()
	if changed := f.look(); !changed || count(f) != 1 || f.known[path].err != nil {
		t.Errorf("%d targets, %v when it is back", count(f), f.known[path].err)
	}
}

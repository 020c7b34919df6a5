package targets

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// files are the sources that lie in files. They are looked at by one goroutine.
type files struct {
	patterns []string
	ports    Ports
	known    map[string]*file
	looked   bool
}

// file is one of them, as it was read last.
type file struct {
	read    signature // of what targets or err come from
	pending signature // of a change that is to be the same in the next look
	targets []Target
	good    time.Time // when it was read well last
	err     error
	missing int // looks in which it matched no pattern any more
}

// signature is what differs when a file was written or replaced, also by a link to
// another one as Kubernetes does.
type signature struct {
	device, inode, size  int64
	modified, attributes unix.Timespec
}

// checkPattern takes names and patterns of JSON and YAML files.
func checkPattern(pattern string) error {
	switch strings.ToLower(filepath.Ext(pattern)) {
	case ".json", ".yml", ".yaml":
	default:
		return fmt.Errorf("file of targets %q: its name must end in .json, .yml or .yaml", pattern)
	}
	if _, err := filepath.Match(pattern, ""); err != nil {
		return fmt.Errorf("file of targets %q: %w", pattern, err)
	}
	return nil
}

// look reads what changed. It reports whether any of it did.
func (f *files) look() (changed bool) {
	matched := map[string]bool{}
	for _, pattern := range f.patterns {
		for _, path := range expand(pattern) {
			matched[path] = true
		}
	}
	for _, path := range slices.Sorted(maps.Keys(matched)) {
		known := f.known[path]
		if known == nil {
			known = &file{}
			f.known[path] = known
		}
		known.missing = 0
		if known.look(path, f.ports, f.looked) {
			changed = true
		}
	}
	for path, known := range f.known {
		if matched[path] {
			continue
		}
		// It may be on its way from one name to another: only the second time counts.
		if known.missing++; known.missing > 1 {
			delete(f.known, path)
			changed = true
		}
	}
	f.looked = true
	return changed
}

// expand is what a pattern matches; a plain name matches itself, also when there is
// no such file.
func expand(pattern string) []string {
	if !strings.ContainsAny(pattern, `*?[\`) {
		return []string{pattern}
	}
	paths, _ := filepath.Glob(pattern) // the pattern was checked
	return slices.DeleteFunc(paths, func(path string) bool { return checkPattern(path) != nil })
}

// look reads a file that changed. What is read well takes the place of what was
// read before; what is not only adds an error.
func (f *file) look(path string, ports Ports, settle bool) (changed bool) {
	before := f.err
	now, err := sign(path)
	switch {
	case err != nil:
		f.err, f.read = err, signature{}
	case now == f.read:
		return false
	case settle && now != f.pending:
		// Whoever writes it may not be done. A file that was replaced as a whole waits
		// for a look too: it cannot be told from the other.
		f.pending = now
		return false
	default:
		changed = f.load(path, now, ports)
	}
	return changed || !sameText(before, f.err)
}

func (f *file) load(path string, now signature, ports Ports) (good bool) {
	text, err := read(path)
	if err != nil {
		f.err, f.read = err, signature{} // not the text's fault: the next look tries again
		return false
	}
	targets, err := Parse(path, text, ports)
	f.read, f.err = now, err
	if err != nil {
		return false
	}
	f.targets, f.good = targets, time.Now()
	return true
}

func sameText(a, b error) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Error() == b.Error()
}

func sign(path string) (signature, error) {
	info, err := os.Stat(path)
	if err != nil {
		return signature{}, bare(err)
	}
	if !info.Mode().IsRegular() {
		return signature{}, errors.New("it is no regular file")
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return signature{}, errors.New("it has no inode")
	}
	return signature{
		device: int64(stat.Dev), inode: int64(stat.Ino), size: stat.Size,
		modified: unix.Timespec(stat.Mtim), attributes: unix.Timespec(stat.Ctim),
	}, nil
}

func read(path string) ([]byte, error) {
	// A pipe that took the file's place must not hold whoever opens it.
	f, err := os.OpenFile(filepath.Clean(path), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, bare(err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, bare(err)
	case len(text) > maxFile:
		return nil, fmt.Errorf("it is longer than %d bytes", maxFile)
	}
	return text, nil
}

// bare takes the path off an error: whoever tells of it names the file.
func bare(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// sources say how each file and each pattern that matches nothing is doing.
func (f *files) sources() []sourced {
	var all []sourced
	for _, path := range slices.Sorted(maps.Keys(f.known)) {
		known := f.known[path]
		all = append(all, sourced{Source{Name: path, Targets: len(known.targets), Good: known.good, Err: known.err}, known.targets})
	}
	for _, pattern := range f.patterns {
		if len(expand(pattern)) == 0 {
			all = append(all, sourced{Source{Name: pattern, Err: errors.New("no file matches")}, nil})
		}
	}
	return all
}

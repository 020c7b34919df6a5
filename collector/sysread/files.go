package sysread

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"
)

// Files is where readers find the kernel's files. Unless they are given another
// one they read the running system, see [System]; a recording of one, or a tree
// below another root, takes its place.
//
// Errors wrap a syscall.Errno, as the kernel's do.
type Files interface {
	// ReadAt reads a file at an offset with one read call, and returns fewer bytes
	// than asked for at the file's end only.
	ReadAt(path string, to []byte, offset int64) (int, error)
	// ReadLines reads a whole file; one longer than limit is an ErrInvalid. Only
	// the lines that keep, which may be nil for all, accepts are given back: no
	// more of a file than its reader looks at goes into a recording.
	ReadLines(path string, limit int, keep func(line []byte) bool) ([]byte, error)
	// ReadDir lists a directory, less the names that begin with a dot, in an order
	// that does not change while the entries do not.
	ReadDir(path string) ([]Entry, error)
	// Readlink returns a symbolic link's target; EINVAL if path is none.
	Readlink(path string) (string, error)
	// Stat and Lstat say what is at a path, the latter of a link itself.
	Stat(path string) (Info, error)
	Lstat(path string) (Info, error)
	// Access is access(path, F_OK).
	Access(path string) error
	// EvalSymlinks returns the path with all links followed.
	EvalSymlinks(path string) (string, error)
}

// Entry is a name in a directory and the inode behind it, by which a device that
// was replaced under its name is told apart.
type Entry struct {
	Name  string
	Inode uint64
}

// Kind is what is at a path.
type Kind string

// Kinds.
const (
	KindFile  Kind = "file"
	KindDir   Kind = "dir"
	KindLink  Kind = "link"
	KindOther Kind = "other" // a socket, a device
)

// Info is what stat says of a path.
type Info struct {
	Kind          Kind
	Device, Inode uint64
	Size          int64
	Modified      time.Time
}

// files returns where to read.
func (io *IO) files() Files {
	if io.Files != nil {
		return io.Files
	}
	return System
}

// Readlink returns a symbolic link's target; EINVAL if path is none.
func (io *IO) Readlink(path string) (string, error) { return io.files().Readlink(path) }

// LinkBase returns the last element of a symbolic link's target, or "": a device
// without a driver has no driver link.
func (io *IO) LinkBase(path string) string {
	target, err := io.files().Readlink(path)
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// Stat says what is at a path, links followed.
func (io *IO) Stat(path string) (Info, error) { return io.files().Stat(path) }

// Lstat says what is at a path, of a link itself.
func (io *IO) Lstat(path string) (Info, error) { return io.files().Lstat(path) }

// Access reports why there is nothing at a path, or nil: access(path, F_OK).
func (io *IO) Access(path string) error { return io.files().Access(path) }

// EvalSymlinks returns the path with all links followed.
func (io *IO) EvalSymlinks(path string) (string, error) { return io.files().EvalSymlinks(path) }

// ReadLines reads a whole file of up to limit bytes, of which it returns the
// lines that keep, which may be nil for all, accepts.
func (io *IO) ReadLines(path string, limit int, keep func(line []byte) bool) ([]byte, error) {
	io.opens.Add(1)
	io.reads.Add(1)
	return io.files().ReadLines(path, limit, keep)
}

// namesOf lists a directory of other files than the system's, sorted.
func namesOf(files Files, dir string) ([]string, error) {
	entries, err := files.ReadDir(dir)
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name
	}
	sort.Strings(names)
	return names, err
}

// KeepLines returns the lines of text that keep accepts; nil accepts all.
func KeepLines(text []byte, keep func(line []byte) bool) []byte {
	if keep == nil {
		return text
	}
	kept := []byte{}
	for rest := text; len(rest) > 0; {
		line := rest
		if end := slices.Index(rest, '\n'); end >= 0 {
			line = rest[:end+1]
		}
		rest = rest[len(line):]
		if keep(line) {
			kept = append(kept, line...)
		}
	}
	return kept
}

// MaxLinks and MaxPath bound the symbolic links followed and the length of a
// path, as the kernel does.
const (
	MaxLinks = 40
	MaxPath  = 4096
)

// Resolve follows the symbolic links of an absolute path, with readlink as the
// only thing asked; last says whether its last element is followed too. What is
// behind an element of which nothing can be said stays as it is: whoever reads
// it meets the error.
func Resolve(path string, last bool, readlink func(path string) (string, error)) (string, error) {
	rest := strings.Split(strings.Trim(path, "/"), "/")
	at := "/"
	for links := 0; len(rest) > 0; {
		next := filepath.Join(at, rest[0]) // ".." too: at has no links any more
		if len(next) > MaxPath {
			return "", &fs.PathError{Op: "readlink", Path: path, Err: syscall.ENAMETOOLONG}
		}
		up := len(next) <= len(at)
		rest = rest[1:]
		if up || len(rest) == 0 && !last {
			at = next
			continue
		}
		target, err := readlink(next)
		if errors.Is(err, syscall.EINVAL) { // no link
			at = next
			continue
		}
		if err != nil {
			return filepath.Join(append([]string{next}, rest...)...), nil //nolint:nilerr // for whoever reads it to meet
		}
		if links++; links > MaxLinks {
			return "", &fs.PathError{Op: "readlink", Path: path, Err: syscall.ELOOP}
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(strings.Trim(target, "/"), "/"), rest...)
	}
	return at, nil
}

// Below returns the files below a root, as if it were the root of the system.
// Only links that lead upwards from where they are, as sysfs's do, stay below
// it: it is for trees that one has made oneself.
func Below(root string) Files { return below{filepath.Clean(root)} }

type below struct{ root string }

func (b below) ReadAt(path string, to []byte, offset int64) (int, error) {
	return System.ReadAt(b.root+path, to, offset)
}

func (b below) ReadLines(path string, limit int, keep func(line []byte) bool) ([]byte, error) {
	return System.ReadLines(b.root+path, limit, keep)
}

func (b below) ReadDir(path string) ([]Entry, error) { return System.ReadDir(b.root + path) }
func (b below) Readlink(path string) (string, error) { return System.Readlink(b.root + path) }
func (b below) Stat(path string) (Info, error)       { return System.Stat(b.root + path) }
func (b below) Lstat(path string) (Info, error)      { return System.Lstat(b.root + path) }
func (b below) Access(path string) error             { return System.Access(b.root + path) }

func (b below) EvalSymlinks(path string) (string, error) {
	resolved, err := Resolve(path, true, b.Readlink)
	if err != nil {
		return "", err
	}
	if _, err := b.Lstat(resolved); err != nil {
		return "", err
	}
	return resolved, nil
}

package cuda

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"
)

// soname is the library's name.
const soname = "libcuda.so.1"

// libraryDirs are where distributions, the driver container and the managed
// Kubernetes services put the library below a driver root; as package gpu has them.
var libraryDirs = []string{
	"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64", "lib",
}

// ErrNoLibrary says that there is no libcuda.so.1: no NVIDIA driver, or one whose
// files are not below the roots that were given.
var ErrNoLibrary = errors.New(soname + " was not found")

// LibraryError says why libcuda could not be loaded. It is [ErrNoLibrary] if there
// was none.
type LibraryError struct {
	// Roots are the driver roots that were searched.
	Roots []string
	// Failures are the loader's texts, one for each file tried.
	Failures []string
	absent   bool
}

// Error names what was tried.
func (e *LibraryError) Error() string {
	text := "load " + soname
	if e.absent {
		text = ErrNoLibrary.Error()
	}
	if len(e.Roots) > 0 {
		text += " below " + strings.Join(e.Roots, ", ")
	}
	if len(e.Failures) > 0 {
		text += ": " + strings.Join(e.Failures, "; ")
	}
	return text
}

// Is makes errors.Is work with ErrNoLibrary.
func (e *LibraryError) Is(target error) bool { return target == ErrNoLibrary && e.absent }

// SkipReason is the prober's word for it: one that cannot be loaded is none.
func (*LibraryError) SkipReason() string { return "no_library" }

// load loads the first library that can be: those below the roots in their order,
// then, if "/" is a root or there is none, what the loader finds by itself. It
// returns the path that it loaded.
func load(roots []string) (*C.struct_gdr_cuda, string, error) {
	failure := &LibraryError{Roots: roots, absent: true}
	for _, path := range candidates(roots) {
		c, text := loadFile(path)
		if c != nil {
			return c, path, nil
		}
		failure.Failures = append(failure.Failures, text)
		// Of a library that is there the text names the path, or what it lacks.
		if path != soname || !strings.HasPrefix(text, soname+": cannot open") {
			failure.absent = false
		}
	}
	return nil, "", failure
}

// loadFile loads one library, or says why not.
func loadFile(path string) (*C.struct_gdr_cuda, string) {
	var text [512]C.char
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	c := C.gdr_cuda_load(name, &text[0], C.size_t(len(text)))
	return c, C.GoString(&text[0])
}

// candidates are the paths to try. A file is tried once, however many of its names
// are found.
func candidates(roots []string) []string {
	type inode struct{ device, number uint64 }
	var paths []string
	known := map[inode]bool{}
	loader := len(roots) == 0
	for _, root := range roots {
		loader = loader || filepath.Clean(root) == "/"
		for _, dir := range libraryDirs {
			path, status, err := resolve(root, filepath.Join(root, dir, soname))
			if err == nil && !known[inode{status.Dev, status.Ino}] {
				known[inode{status.Dev, status.Ino}] = true
				paths = append(paths, path)
			}
		}
	}
	if loader {
		paths = append(paths, soname)
	}
	return paths
}

// maxLinks bounds the symbolic links followed, as the kernel does.
const maxLinks = 40

// resolve follows the links of a path's last element to a regular file. An
// absolute link in a driver root means a place below that root.
func resolve(root, path string) (string, *syscall.Stat_t, error) {
	for range maxLinks {
		target, err := os.Readlink(path)
		switch {
		case errors.Is(err, syscall.EINVAL): // no link
			var status syscall.Stat_t
			if err = syscall.Stat(path, &status); err == nil && status.Mode&syscall.S_IFMT != syscall.S_IFREG {
				err = fs.ErrInvalid
			}
			return path, &status, err
		case err != nil:
			return "", nil, err
		case filepath.IsAbs(target):
			path = filepath.Join(root, target)
		default:
			path = filepath.Join(filepath.Dir(path), target)
		}
	}
	return "", nil, fmt.Errorf("%s: %w", path, syscall.ELOOP)
}

package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
)

// soname is the library's name.
const soname = "libnvidia-ml.so.1"

// libraryDirs are where distributions, the driver container and the managed
// Kubernetes services put the library below a driver root.
var libraryDirs = []string{
	"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64", "lib",
}

// errNotFound says that the library is nowhere.
var errNotFound = errors.New(soname + " was not found")

// OpenLibrary opens the library at path, or for "" the one that the loader finds.
//
// It first looks whether that is NVML at all: go-nvml would end the process by
// calling a function that is not there. The loader keeps the file mapped from
// here on.
func OpenLibrary(path string) (Library, error) {
	if path == "" {
		path = soname
	}
	// Kept open: go-nvml closes its own at every shutdown, and the library would
	// stay mapped all the same once a function was called.
	handle := dl.New(path, dl.RTLD_LAZY)
	if err := handle.Open(); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	if handle.Lookup("nvmlInit_v2") != nil && handle.Lookup("nvmlInit") != nil {
		_ = handle.Close()
		return nil, fmt.Errorf("%s does not have nvmlInit", path)
	}
	return nvmlLibrary{nvml.New(nvml.WithLibraryPath(path)), handle}, nil
}

// file is a library on disk.
type file struct {
	path     string // links resolved
	dev, ino uint64
}

// search returns the libraries below the roots, in the order of preference.
// A last one without a path stands for what the loader finds by itself.
func search(io *sysread.IO, roots []string) []file {
	var found []file
	known := map[file]bool{}
	loader := len(roots) == 0
	for _, root := range roots {
		loader = loader || filepath.Clean(root) == "/"
		for _, dir := range libraryDirs {
			f, err := resolve(io, root, filepath.Join(root, dir, soname))
			if err == nil && !known[f] {
				known[f] = true
				found = append(found, f)
			}
		}
	}
	if loader {
		found = append(found, file{})
	}
	return found
}

// maxLinks bounds the symbolic links followed, as the kernel does.
const maxLinks = 40

// resolve follows the links of a path's last element. An absolute link in a
// driver root means a place below that root.
func resolve(io *sysread.IO, root, path string) (file, error) {
	for range maxLinks {
		target, err := io.Readlink(path)
		if errors.Is(err, syscall.EINVAL) { // no link
			return stat(io, path)
		}
		if err != nil {
			return file{}, err
		}
		if filepath.IsAbs(target) {
			path = filepath.Join(root, target)
		} else {
			path = filepath.Join(filepath.Dir(path), target)
		}
	}
	return file{}, syscall.ELOOP
}

func stat(io *sysread.IO, path string) (file, error) {
	info, err := io.Stat(path)
	if err != nil {
		return file{}, err
	}
	if info.Kind != sysread.KindFile {
		return file{}, fs.ErrInvalid
	}
	return file{path, info.Device, info.Inode}, nil
}

// maxMaps bounds /proc/self/maps, which has some 100 bytes a mapping.
const maxMaps = 1 << 24

// mapped returns the library that the process has mapped, for one that the
// loader found by itself.
func mapped(io *sysread.IO) (file, error) {
	text, err := io.ReadLines("/proc/self/maps", maxMaps, func(line []byte) bool { return mappedPath(string(line)) != "" })
	if err != nil {
		return file{}, err
	}
	path := mappedPath(string(text))
	if path == "" {
		return file{}, errNotFound
	}
	return stat(io, path)
}

// mappedPath finds the library in the text of /proc/PID/maps.
func mappedPath(maps string) string {
	for line := range strings.Lines(maps) {
		at := strings.IndexByte(line, '/')
		if at < 0 {
			continue
		}
		path := strings.TrimSuffix(line[at:], "\n")
		if strings.HasPrefix(filepath.Base(path), "libnvidia-ml.so") {
			return path
		}
	}
	return ""
}

// driverLoaded reports whether procfs shows the kernel module. Not being able
// to look is no proof of the contrary.
func driverLoaded(io *sysread.IO, procfs string) bool {
	if procfs == "" {
		return true
	}
	_, err := io.Stat(filepath.Join(procfs, "driver/nvidia/version"))
	return !errors.Is(err, fs.ErrNotExist)
}

// maxVersionFile bounds /proc/driver/nvidia/version, which has two lines.
const maxVersionFile = 1 << 16

// installation is which driver is loaded and which library is found: a change
// makes another attempt worth while.
type installation struct {
	module  string // content of /proc/driver/nvidia/version
	library file
}

// installed returns the installation as it is now, as far as it can be read.
func installed(io *sysread.IO, options *Options) installation {
	var now installation
	if options.Procfs != "" {
		text, err := io.ReadLines(filepath.Join(options.Procfs, "driver/nvidia/version"), maxVersionFile, nil)
		if err == nil {
			now.module = string(text)
		}
	}
	if found := search(io, options.Roots); len(found) > 0 {
		now.library = found[0]
	}
	return now
}

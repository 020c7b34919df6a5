package driver

import (
	"errors"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/sysread"
)

// Library is the driver's user-space part.
type Library struct {
	Path    string // as found, below one of Options.Roots
	Version string // the suffix of the file that its name is a link to
}

// libraryDirs are where distributions and container runtimes put the driver's
// libraries, below a root.
var libraryDirs = []string{
	"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64", "lib",
}

// libraryNames are links to files whose names end with the driver's version.
var libraryNames = []string{"libnvidia-ml.so.1", "libcuda.so.1"}

// library finds the library that a program would load: the first, root by root
// and directory by directory.
func (p *pass) library() sysread.Maybe[Library] {
	for _, root := range p.options.Roots {
		for _, dir := range libraryDirs {
			for _, name := range libraryNames {
				path := filepath.Join(root, dir, name)
				version := ""
				o := p.try(deviceName, filepath.Join(dir, name), path, func() (err error) {
					version, err = libraryVersion(&p.io, root, path, strings.TrimSuffix(name, "1"))
					return err
				})
				if o == found && version != "" {
					return sysread.Some(Library{path, version})
				}
			}
		}
	}
	return sysread.Maybe[Library]{}
}

// maxLinks bounds the links followed, as the kernel does.
const maxLinks = 40

// libraryVersion follows the link at path until a name is stem and a version,
// and returns the version; "" if there is none. An absolute target is below
// root, as it is for a program that runs there. A link that leads nowhere is
// no library.
func libraryVersion(io *sysread.IO, root, path, stem string) (string, error) {
	for range maxLinks {
		if suffix, is := strings.CutPrefix(filepath.Base(path), stem); is && driverVersion.MatchString(suffix) {
			return suffix, io.Access(path)
		}
		target, err := io.Readlink(path)
		switch {
		case errors.Is(err, unix.EINVAL): // no link
			return "", nil
		case err != nil:
			return "", err
		case filepath.IsAbs(target):
			path = filepath.Join(root, target)
		default:
			path = filepath.Join(filepath.Dir(path), target)
		}
	}
	return "", unix.ELOOP
}

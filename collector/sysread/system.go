package sysread

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// System are the files of the running system.
var System Files = system{}

type system struct{}

// again calls a system call again while it is interrupted, but not for ever.
func again(call func() error) (err error) {
	for range maxInterrupted + 1 {
		if err = call(); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	return err
}

func openSystem(path string, flags int) (fd int, err error) {
	err = again(func() error {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
		return err
	})
	return fd, err
}

func preadSystem(fd int, to []byte, offset int64) (n int, err error) {
	err = again(func() error {
		n, err = unix.Pread(fd, to, offset)
		return err
	})
	return max(n, 0), err
}

func (system) ReadAt(path string, to []byte, offset int64) (int, error) {
	fd, err := openSystem(path, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	return preadSystem(fd, to, offset)
}

// ReadLines reads on until there is no more: files of procfs made by seq_file,
// and plain ones, may need several reads.
func (system) ReadLines(path string, limit int, keep func(line []byte) bool) ([]byte, error) {
	fd, err := openSystem(path, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	var text []byte
	buf := make([]byte, 1<<16)
	for {
		n := 0
		err := again(func() (err error) {
			n, err = unix.Read(fd, buf)
			return err
		})
		switch {
		case err != nil:
			return nil, err
		case n <= 0:
			return KeepLines(text, keep), nil
		case len(text)+n > limit:
			return nil, fmt.Errorf("%w: longer than %d bytes", ErrInvalid, limit)
		}
		text = append(text, buf[:n]...)
	}
}

func (system) ReadDir(path string) ([]Entry, error) {
	d := Dir{Path: path}
	_, err := d.scanSystem()
	return d.entries, err
}

func (system) Readlink(path string) (string, error)     { return os.Readlink(path) }
func (system) EvalSymlinks(path string) (string, error) { return filepath.EvalSymlinks(path) }
func (system) Access(path string) error                 { return unix.Access(path, unix.F_OK) }

func (system) Stat(path string) (Info, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Info{}, err
	}
	return infoOf(&st), nil
}

func (system) Lstat(path string) (Info, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Info{}, err
	}
	return infoOf(&st), nil
}

var kinds = map[uint32]Kind{unix.S_IFREG: KindFile, unix.S_IFDIR: KindDir, unix.S_IFLNK: KindLink}

func infoOf(st *unix.Stat_t) Info {
	kind := kinds[st.Mode&unix.S_IFMT]
	if kind == "" {
		kind = KindOther
	}
	return Info{Kind: kind, Device: uint64(st.Dev), Inode: st.Ino, Size: st.Size, Modified: time.Unix(st.Mtim.Unix())} //nolint:unconvert // 32 bits on some architectures
}

// Handle is a file opened to be read at several offsets.
type Handle struct {
	io   *IO
	path string
	fd   int // -1: not the system's
}

// Open opens a file to be read at several offsets.
func Open(io *IO, path string) (*Handle, error) {
	h := &Handle{io, path, -1}
	io.opens.Add(1)
	if io.Files != nil {
		return h, nil // the first read says what opening would
	}
	var err error
	if h.fd, err = openSystem(path, 0); err != nil {
		return nil, err
	}
	return h, nil
}

// ReadAt reads what there is at offset, at most len(to).
func (h *Handle) ReadAt(to []byte, offset int64) (int, error) {
	h.io.reads.Add(1)
	if h.fd < 0 {
		return h.io.Files.ReadAt(h.path, to, offset)
	}
	return preadSystem(h.fd, to, offset)
}

// Close closes the file.
func (h *Handle) Close() {
	if h.fd >= 0 {
		_ = unix.Close(h.fd)
	}
}

package kmsg

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// DefaultPath is where the kernel's log is read.
const DefaultPath = "/dev/kmsg"

// Numbers of the device, Documentation/admin-guide/devices.txt: what containers
// have under its name may be another.
const (
	memoryMajor = 1
	kmsgMinor   = 11
)

// errNotKmsg is what is found where the log should be.
var errNotKmsg = errors.New("not the device of the kernel's log")

// device is an opened /dev/kmsg.
type device interface {
	// next reads one record. If there is none it waits for one, or returns EAGAIN.
	next(to []byte, wait bool) (int, error)
	// close makes next return, at once and from then on.
	close()
}

// kmsg is the kernel's.
type kmsg struct {
	file *os.File
	conn syscall.RawConn
}

// openKmsg opens the log at its oldest record. What it opens never blocks, so
// that the runtime waits for it in epoll and closing it ends the wait.
func openKmsg(path string) (device, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(memoryMajor, kmsgMinor) {
		_ = unix.Close(fd)
		return nil, errNotKmsg
	}
	return newKmsg(fd, path)
}

// newKmsg takes over a descriptor that does not block.
func newKmsg(fd int, path string) (device, error) {
	file := os.NewFile(uintptr(fd), path)
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &kmsg{file, conn}, nil
}

func (k *kmsg) next(to []byte, wait bool) (n int, err error) {
	waiting := k.conn.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), to) //nolint:gosec // a descriptor
		return !wait || !errors.Is(err, unix.EAGAIN)
	})
	if waiting != nil {
		return 0, waiting
	}
	return max(n, 0), err
}

func (k *kmsg) close() { _ = k.file.Close() }

package loopback

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LockPath is the host-wide lock of measurements: two at once would spoil each
// other, whoever runs them.
const LockPath = "/run/gdr_exporter/probe.lock"

// ErrLocked says that another run holds the lock. It comes with the reason
// [SkipLocked].
var ErrLocked = errors.New("another run holds the lock")

// Lock is a held host-wide lock. It ends with the process at the latest.
type Lock struct{ file *os.File }

// TryLock takes the lock, or fails with ErrLocked and the holder's process. The
// file stays: removing it would let two processes lock two files of one name.
func TryLock(path string) (*Lock, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	// The directory may be an unprivileged daemon's and this process root: what is
	// written here and given away must be no link to a file elsewhere.
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := own(file); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock: %s: %w", path, err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = skip(SkipLocked, fmt.Errorf("%w %s%s", ErrLocked, path, holder(file)))
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	// The number is only a hint for people; the lock holds without it.
	if err := file.Truncate(0); err == nil {
		_, _ = file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &Lock{file}, nil
}

// own makes sure that the file is a lock and nothing else, and leaves one that root
// has made to the owner of the directory: a daemon with an account of its own could
// otherwise never take the lock again after a run that root made by hand.
func own(file *os.File) error {
	var own, dir unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &own); err != nil {
		return err
	}
	if own.Mode&unix.S_IFMT != unix.S_IFREG || own.Nlink > 1 {
		return errors.New("is no plain file of one name")
	}
	if os.Geteuid() != 0 || own.Uid != 0 {
		return nil
	}
	if err := unix.Stat(filepath.Dir(file.Name()), &dir); err != nil {
		return err
	}
	if dir.Uid == 0 {
		return nil
	}
	return file.Chown(int(dir.Uid), int(dir.Gid))
}

// holder says which process wrote the file, as far as is known.
func holder(file *os.File) string {
	var text [16]byte
	n, _ := file.ReadAt(text[:], 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}

// Unlock gives the lock back.
func (l *Lock) Unlock() error { return l.file.Close() }

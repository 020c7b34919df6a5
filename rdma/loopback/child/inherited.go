package child

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CloseInherited closes what a parent has left open by mistake: descriptors above 2
// without FD_CLOEXEC. Go opens all of its own with it; some libraries of drivers do
// not, and a child must not keep their files open. It is for the beginning of a
// process, before anything is opened on purpose.
func CloseInherited() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("open descriptors: %w", err)
	}
	var failures []error
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || fd <= 2 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue // err: it was that of the directory itself
		}
		if err := unix.Close(fd); err != nil {
			failures = append(failures, fmt.Errorf("descriptor %d: %w", fd, err))
		}
	}
	return errors.Join(failures...)
}

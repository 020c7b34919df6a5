package sysread

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Errors of a file that could be read but says nothing usable.
var (
	// ErrNoPMA is the text "N/A (no PMA)" that old kernels put into every
	// counter file of a function without performance management
	// (prometheus/node_exporter#966).
	ErrNoPMA = errors.New("no performance management on this port")
	// ErrInvalid is text that is not of the attribute's form.
	ErrInvalid = errors.New("unexpected content")
)

// ReadError says that one item of a device could not be read.
type ReadError struct {
	Device string // device name, "" for the listing of devices itself
	Port   string // port number as the kernel writes it, "" at device level
	Source string // file below the device or port directory, such as "counters/VL15_dropped"
	Err    error  // syscall.Errno, ErrNoPMA, ErrInvalid or one that has an ErrnoName, wrapped
	// Quiet: counted, but not worth a message of its own, because another one
	// says it for many (a whole directory refuses to be read).
	Quiet bool
}

// Error names device, port and file before the cause.
func (e ReadError) Error() string {
	where := e.Source
	if e.Port != "" {
		where = "port " + e.Port + " " + where
	}
	if e.Device != "" {
		where = e.Device + " " + where
	}
	return fmt.Sprintf("%s: %v", where, e.Err)
}

// Unwrap returns the cause.
func (e ReadError) Unwrap() error { return e.Err }

// Errno returns the cause's symbolic name, such as "EINVAL": the kernel's errno
// name, that of a library which has its own (NVML), "no_pma" for ErrNoPMA, else
// "invalid". Its values are few enough for a metric label.
func (e ReadError) Errno() string { return ErrnoName(e.Err) }

// kernelNames are the names that the kernel's sources use where the C library
// has another or none.
var kernelNames = map[syscall.Errno]string{
	syscall.EOPNOTSUPP: "EOPNOTSUPP", // also called ENOTSUP
	524:                "ENOTSUPP",   // include/linux/errno.h, leaks from some drivers
}

// ErrnoName is ReadError.Errno for a bare error.
func ErrnoName(err error) string {
	var errno syscall.Errno
	var own interface {
		error
		ErrnoName() string
	}
	switch {
	case errors.As(err, &own):
		return own.ErrnoName()
	case errors.As(err, &errno):
		if name := kernelNames[errno]; name != "" {
			return name
		}
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
		return fmt.Sprintf("errno_%d", int(errno))
	case errors.Is(err, ErrNoPMA):
		return "no_pma"
	default:
		return "invalid"
	}
}

// errnoOf finds an errno by the name that ErrnoName gives it.
var errnoOf = sync.OnceValue(func() map[string]syscall.Errno {
	const most = 1024 // beyond the numbers of include/linux/errno.h
	byName := map[string]syscall.Errno{}
	for errno := syscall.Errno(1); errno < most; errno++ {
		byName[ErrnoName(errno)] = errno
	}
	return byName
})

// ErrorOf returns the error that ErrnoName gives that name: a syscall.Errno,
// ErrNoPMA, or for any other name an ErrInvalid.
func ErrorOf(name string) error {
	if errno, found := errnoOf()[name]; found {
		return errno
	}
	if text, unnamed := strings.CutPrefix(name, "errno_"); unnamed {
		if number, err := strconv.ParseUint(text, 10, 16); err == nil {
			return syscall.Errno(number)
		}
	}
	if name == ErrnoName(ErrNoPMA) {
		return ErrNoPMA
	}
	return fmt.Errorf("%w (%s)", ErrInvalid, name)
}

// Vanished reports whether err is what reading a device gives while it goes
// away: ENODEV through an open descriptor, ENOENT by path.
func Vanished(err error) bool {
	return errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENOENT)
}

// Refused reports whether err is a driver's lasting "no" rather than a passing
// failure: such files are asked again only rarely, because each refusal may
// cost a firmware command and a kernel log line (prometheus/node_exporter#3434).
func Refused(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EINVAL, syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.EACCES, syscall.EPERM,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return errors.Is(err, ErrNoPMA)
}

// Absent reports whether err says that there is no such file.
func Absent(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR)
}

// Invalid wraps ErrInvalid with what was seen, cut to a length fit for a log.
func Invalid(text string) error {
	const most = 40
	if len(text) > most {
		text = text[:most] + "..."
	}
	return fmt.Errorf("%w %q", ErrInvalid, text)
}

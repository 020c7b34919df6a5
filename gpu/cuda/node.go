package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DeviceNodeError says that CUDA does not work because a device file of the driver
// is missing or may not be opened: a container without its device files or device
// rules, a host whose nodes were not made.
type DeviceNodeError struct {
	Path string // such as /dev/nvidia-uvm
	// Errno is why it cannot be opened: ENOENT, EACCES, or EPERM for device rules.
	Errno unix.Errno
	// Err is the call of libcuda that failed.
	Err error
}

// Error names the call and the file.
func (e *DeviceNodeError) Error() string { return fmt.Sprintf("%v: %s: %v", e.Err, e.Path, e.Errno) }

// Unwrap returns the failed call and the errno.
func (e *DeviceNodeError) Unwrap() []error { return []error{e.Err, e.Errno} }

// SkipReason is the prober's word for it.
func (*DeviceNodeError) SkipReason() string { return "no_device_node" }

// explain finds out whether a device file is why a call failed. libcuda does not
// tell: cuInit answers CUDA_ERROR_NO_DEVICE, CUDA_ERROR_OPERATING_SYSTEM or
// CUDA_ERROR_UNKNOWN, and a GPU whose own file is missing is not among its devices.
func (g *GPU) explain(err error, options *Options) error {
	var names []string
	switch {
	case err == nil:
		return nil
	case errors.Is(err, NoDevice), errors.Is(err, OperatingSystem), errors.Is(err, Unknown):
		names = []string{"nvidiactl", "nvidia-uvm"}
	case !errors.Is(err, InvalidDevice):
		return err
	}
	procfs := filepath.Join(cmp.Or(options.Procfs, "/proc"), "driver/nvidia")
	if _, failed := os.Stat(procfs); failed != nil {
		return err // there is no driver: files would not help
	}
	if name := gpuNode(procfs, g.facts.Address); name != "" {
		names = append(names, name)
	}
	for _, name := range names {
		path := filepath.Join(cmp.Or(options.Dev, "/dev"), name)
		// Asks for permissions, device rules included, without opening: opening
		// nvidia0 may initialise the GPU.
		var errno unix.Errno
		if errors.As(unix.Access(path, unix.R_OK|unix.W_OK), &errno) {
			return &DeviceNodeError{path, errno, err}
		}
	}
	return err
}

// gpuNode is the name of a GPU's own device file, "" if the driver does not tell:
// gpus/ADDRESS/information has a line "Device Minor: 	 0".
func gpuNode(procfs, address string) string {
	text, err := os.ReadFile(filepath.Join(procfs, "gpus", address, "information"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if minor, found := strings.CutPrefix(line, "Device Minor:"); found {
			if minor = strings.TrimSpace(minor); minor != "" && strings.Trim(minor, "0123456789") == "" {
				return "nvidia" + minor
			}
		}
	}
	return ""
}

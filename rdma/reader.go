package rdma

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/sysread"
)

// MaxCounters is the largest number of files read from one counter directory.
// hfi1 has about 200 per port and more per device; files of known meaning come
// first, then the others in the order of their names.
const MaxCounters = 128

// Options say what a Reader reads.
type Options struct {
	// Sysfs is where sysfs is mounted, /sys on the host itself.
	Sysfs string
	// Include decides by name which devices are read; nil reads all. It is
	// asked before any file of a device is touched.
	Include func(device string) bool
	// SlowInterval is how often the slow group (rate, error counters,
	// identity) is read; 0 reads it every time.
	SlowInterval time.Duration
	// Descriptors is the number of files that may be kept open.
	Descriptors int64
}

// Reader lists the RDMA devices of a host. Devices may be called by one
// goroutine at a time; the DeviceReaders it returns are independent of it and
// of each other.
type Reader struct {
	options Options
	io      sysread.IO
	known   map[identityKey]*DeviceReader
	listed  bool // List has been called
}

// identityKey tells devices apart. Descriptors survive a rename and go on
// reading the old device without an error, and a device may be deleted and
// another added under its name between two scrapes: so the name alone does not
// do, and neither does the inode, for a renamed device needs new labels.
type identityKey struct {
	name  string
	inode uint64
}

// Listing is what /sys/class/infiniband holds.
type Listing struct {
	// Present: the class directory exists, that is ib_core is loaded.
	Present bool
	// Devices are the included devices in the order of their names. The same
	// device is the same pointer from one Listing to the next.
	Devices []*DeviceReader
	// Excluded is the number of devices that Include refused.
	Excluded int
}

// NewReader returns a Reader; nothing is opened yet.
func NewReader(options Options) *Reader {
	r := &Reader{options: options, known: map[identityKey]*DeviceReader{}}
	r.io.Descriptors = options.Descriptors
	return r
}

// IO returns the counts of what this Reader and its DeviceReaders asked of the kernel.
func (r *Reader) IO() *sysread.IO { return &r.io }

// List lists the devices. A missing class directory is a host without RDMA and
// no error. DeviceReaders that are no longer listed must be closed by the
// caller once they are not reading.
func (r *Reader) List() (Listing, error) {
	class := filepath.Join(r.options.Sysfs, "class/infiniband")
	defer func() { r.listed = true }()
	names, err := sysread.ReadNames(&r.io, class)
	if errors.Is(err, fs.ErrNotExist) {
		r.known = map[identityKey]*DeviceReader{}
		return Listing{}, nil
	}
	if err != nil {
		return Listing{}, sysread.ReadError{Source: "class/infiniband", Err: err}
	}
	listing := Listing{Present: true}
	known := make(map[identityKey]*DeviceReader, len(r.known))
	for _, name := range names {
		if r.options.Include != nil && !r.options.Include(name) {
			listing.Excluded++
			continue
		}
		key, isDevice := r.key(class, name)
		if !isDevice {
			continue
		}
		device := r.known[key]
		if device == nil {
			device = newDeviceReader(r, class, name)
			device.late = r.listed
		}
		known[key] = device
		listing.Devices = append(listing.Devices, device)
	}
	r.known = known
	return listing, nil
}

// key identifies a listed device. An entry that is no directory (the bonding
// masters file of other classes, say) or has just gone is no device.
func (r *Reader) key(class, name string) (identityKey, bool) {
	var stat unix.Stat_t
	err := unix.Stat(class+"/"+name, &stat)
	if errors.Is(err, fs.ErrNotExist) || err == nil && stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return identityKey{}, false
	}
	// Any other failure is left to the device's own reader to meet and report.
	return identityKey{name: name, inode: stat.Ino}, true
}

// rdmamapLock guards rdmamap's package variables; see charDevices.
var rdmamapLock sync.Mutex

// underSysfs resolves a path and returns it only if it lies below root, so that
// a link planted in a fixture or a foreign mount cannot lead elsewhere.
func underSysfs(root, path string) (string, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	base, err := filepath.EvalSymlinks(root)
	if err != nil {
		return "", err
	}
	if resolved != base && !strings.HasPrefix(resolved, base+"/") {
		return "", fs.ErrNotExist
	}
	return resolved, nil
}

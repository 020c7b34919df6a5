package rdma

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/netdev"
	"gdr_exporter/rdma/nldev"
)

// MaxCounters is the largest number of files read from one counter directory.
// hfi1 has about 200 per port and more per device; files of known meaning come
// first, then the others in the order of their names.
const MaxCounters = 128

// Options say what a Reader reads.
type Options struct {
	// Sysfs is where sysfs is mounted, /sys on the host itself.
	Sysfs string
	// Files is where its files are read; nil: the running system.
	Files sysread.Files
	// Include decides by name which devices are read; nil reads all. It is
	// asked before any file of a device is touched.
	Include func(device string) bool
	// SlowInterval is how often the slow group (rate, error counters,
	// identity) is read; 0 reads it every time.
	SlowInterval time.Duration
	// Descriptors is the number of files that may be kept open.
	Descriptors int64
	// Netlink opens sockets of the RDMA netlink family; nil reads sysfs alone.
	Netlink Dialer
	// NetlinkWait is how long listing the devices waits for netlink before it goes by
	// sysfs alone; 0: one second.
	NetlinkWait time.Duration
	// Ethtool asks the kernel about the netdevs of Ethernet ports: ethtool
	// statistics, PFC and trust (DCB). Without it only their sysfs is read.
	Ethtool bool
	// Kernel returns what answers those questions, for one port each; nil: the
	// running kernel, whatever Sysfs is.
	Kernel func() netdev.Kernel
	// EthtoolAll shows the ethtool statistics too that few need, see
	// netdev.Options.Extra.
	EthtoolAll bool
	// Monitor hears of devices that come and go; nil: nothing does.
	Monitor *Monitor
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Reader lists the RDMA devices of a host. Devices may be called by one
// goroutine at a time; the DeviceReaders it returns are independent of it and
// of each other.
type Reader struct {
	options Options
	io      sysread.IO
	known   map[identityKey]*DeviceReader
	netlink netlinkLister
	listed  bool // List has been called
	present bool // it found the class
}

// identityKey tells devices apart. Descriptors survive a rename and go on
// reading the old device without an error, and a device may be deleted and
// another added under its name between two scrapes: so the name alone does not
// do, and neither does the inode, for a renamed device needs new labels.
type identityKey struct {
	name  string
	inode uint64 // of the device's directory; 0 where sysfs does not show it
	index uint32 // netlink's, only where sysfs does not show the device
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
	// Netlink: the RDMA netlink family answers.
	Netlink bool
	// NetlinkErr says why it does not; nil if it does or was not asked.
	NetlinkErr error
	// Failed is the same as a read error, of this time and unless the kernel does not
	// have the family at all.
	Failed []sysread.ReadError
	// Events counts the kernel's events about devices by type; nil if it is not
	// listened to. Monitor: it is still being listened to.
	Events  map[string]uint64
	Monitor bool
}

// NewReader returns a Reader; nothing is opened yet.
func NewReader(options Options) *Reader {
	if options.Now == nil {
		options.Now = time.Now
	}
	r := &Reader{options: options, known: map[identityKey]*DeviceReader{}}
	r.io.Descriptors, r.io.Files = options.Descriptors, options.Files
	r.netlink = netlinkLister{dial: options.Netlink, io: &r.io, wait: cmp.Or(options.NetlinkWait, netlinkWait)}
	return r
}

// IO returns the counts of what this Reader and its DeviceReaders asked of the kernel.
func (r *Reader) IO() *sysread.IO { return &r.io }

// List lists the devices, from sysfs, and from netlink where sysfs does not show
// the class at all. A missing class is a host without RDMA and no error.
// DeviceReaders that are no longer listed must be closed by the caller once they
// are not reading.
func (r *Reader) List() (Listing, error) {
	class := filepath.Join(r.options.Sysfs, "class/infiniband")
	defer func() { r.listed = true }()
	names, err := sysread.ReadNames(&r.io, class)
	if err == nil && !r.present {
		r.netlink.Reset() // RDMA has just been loaded
	}
	r.present = err == nil
	asked := r.netlink.list(r.options.Now())
	listing := Listing{Present: err == nil, Netlink: asked != nil, NetlinkErr: r.netlink.err}
	if r.netlink.tried && r.netlink.err != nil && !nldev.Unsupported(r.netlink.err) {
		listing.Failed = []sysread.ReadError{{Source: "netlink GET", Err: r.netlink.err}}
	}
	listing.Events, listing.Monitor = r.options.Monitor.Events()
	known := make(map[identityKey]*DeviceReader, len(r.known))
	switch {
	case err == nil:
		for _, name := range names {
			if key, isDevice := r.key(class, name, &listing); isDevice {
				r.add(&listing, known, key, class+"/"+name, asked[name])
			}
		}
	case len(asked) > 0:
		for _, name := range slices.Sorted(maps.Keys(asked)) {
			if r.included(name, &listing) {
				r.add(&listing, known, identityKey{name: name, index: asked[name].Index}, "", asked[name])
			}
		}
		err = nil
	case errors.Is(err, fs.ErrNotExist) && r.netlink.stuck():
		// There may be devices that netlink alone shows.
		return Listing{}, sysread.ReadError{Source: "netlink GET", Err: ErrNetlinkStuck}
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	default:
		return Listing{}, sysread.ReadError{Source: "class/infiniband", Err: err}
	}
	r.known = known
	return listing, err
}

// add takes up a device under its key.
func (r *Reader) add(listing *Listing, known map[identityKey]*DeviceReader, key identityKey, dir string, asked *nldev.Device) {
	device := r.known[key]
	if device == nil {
		device = newDeviceReader(r, dir, key.name)
		device.late = r.listed
	}
	device.listed.Store(asked)
	known[key] = device
	listing.Devices = append(listing.Devices, device)
}

// included asks the filter, before anything of the device is touched.
func (r *Reader) included(name string, listing *Listing) bool {
	if r.options.Include == nil || r.options.Include(name) {
		return true
	}
	listing.Excluded++
	return false
}

// key identifies a listed device. An entry that is no directory (the bonding
// masters file of other classes, say) or has just gone is no device.
func (r *Reader) key(class, name string, listing *Listing) (identityKey, bool) {
	if !r.included(name, listing) {
		return identityKey{}, false
	}
	info, err := r.io.Stat(class + "/" + name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Kind != sysread.KindDir {
		return identityKey{}, false
	}
	// Any other failure is left to the device's own reader to meet and report.
	return identityKey{name: name, inode: info.Inode}, true
}

// underSysfs resolves a path and returns it only if it lies below root, so that
// a link planted in a fixture or a foreign mount cannot lead elsewhere.
func underSysfs(io *sysread.IO, root, path string) (string, error) {
	resolved, err := io.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	base, err := io.EvalSymlinks(root)
	if err != nil {
		return "", err
	}
	if resolved != base && !strings.HasPrefix(resolved, base+"/") {
		return "", fs.ErrNotExist
	}
	return resolved, nil
}

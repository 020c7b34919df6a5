package rdma

import (
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/netdev"
	"gdr_exporter/rdma/nldev"
)

// DeviceReader reads one device and keeps its files open between reads. It is
// for one goroutine at a time.
type DeviceReader struct {
	reader *Reader
	name   string
	dir    string // /sys/class/infiniband/<name>; "" if only netlink shows the device
	buf    [sysread.AttrSize]byte
	// listed is what netlink's list said of the device last, nil if nothing.
	listed atomic.Pointer[nldev.Device]

	id      Identity
	ports   []*portReader
	hw      *counterDir // device level
	netlink netlinkSide
	foreign bool // netlink shows another device of that name
	usage   Usage
	slowAt  time.Time

	firstAt   time.Time // of the first Read
	late      bool      // the device came while the Reader was at work
	pending   []sysread.ReadError
	pendingAt time.Time // when the oldest of pending was met
}

// settleTime is how long the kernel may take to finish a device that it lists
// already, and to take one down that it lists still: meanwhile directories are
// missing and files answer ENODEV.
const settleTime = 2 * time.Second

func newDeviceReader(r *Reader, dir, name string) *DeviceReader {
	return &DeviceReader{reader: r, name: name, dir: dir, netlink: netlinkSide{dial: r.options.Netlink}}
}

// Name returns the device's name as it was listed.
func (d *DeviceReader) Name() string { return d.name }

// Read reads the device. The fast group (states, traffic, hw_counters) is read
// every time; the slow group when it is due, or at once when a port changes
// state. It returns what was read and, beside it, what was not.
//
// ENODEV and ENOENT are what reading gives while a device goes away, so such
// failures are returned by a later Read: if the device is not listed any more
// by then, there is no such Read and they were no errors.
func (d *DeviceReader) Read(now time.Time) (Device, []sysread.ReadError) {
	r := &pass{io: &d.reader.io, now: now, buf: d.buf[:], device: d.name}
	if d.netlink.device = d.listed.Load(); d.foreign {
		d.netlink.device = nil
	}
	if d.firstAt.IsZero() {
		d.firstAt = now
	}
	slow := d.slowAt.IsZero() || now.Sub(d.slowAt) >= d.reader.options.SlowInterval || d.slowAt.Sub(d.firstAt) < settleTime
	if slow {
		d.rescan(r)
	}
	if !d.id.Plane() {
		for _, port := range d.ports {
			slow = port.readState(r, &d.netlink) || slow
		}
	}
	if slow {
		d.readSlow(r)
	}
	device := d.read(r, slow)
	return device, d.settle(now, r.errs)
}

// rescan brings the device's identity and the list of its files up to date.
func (d *DeviceReader) rescan(r *pass) {
	if d.dir == "" {
		d.rescanNetlink()
		return
	}
	d.id = readIdentity(r, d.reader.options.Sysfs, d.dir, d.name)
	d.matchNetlink()
	d.rescanPorts(r)
	r.port = ""
	var have []*counterDir
	if d.hw != nil {
		have = append(have, d.hw)
	}
	d.hw = rescanDir(r, have, SourceDeviceHW, d.dir)
}

// rescanNetlink is rescan where only netlink shows the device.
func (d *DeviceReader) rescanNetlink() {
	d.id = Identity{Name: d.name}
	if d.netlink.device == nil {
		return
	}
	d.id.fromNetlink(d.netlink.device)
	for number := len(d.ports) + 1; number <= int(d.netlink.device.Ports); number++ {
		d.ports = append(d.ports, netlinkPort(number, d.reader.options.Sysfs+"/class/net", d.newInterface()))
	}
}

// matchNetlink lets go of netlink if it speaks of another device of that name:
// the sysfs mount may belong to another machine's recording or to another
// network namespace. What it says of the same device completes the identity.
func (d *DeviceReader) matchNetlink() {
	device := d.listed.Load()
	d.foreign = device != nil && d.id.NodeGUID != "" && device.NodeGUID != "" && d.id.NodeGUID != device.NodeGUID
	if d.foreign {
		device = nil
	}
	d.netlink.device = device
	if device != nil {
		d.id.fromNetlink(device)
	}
}

func (d *DeviceReader) rescanPorts(r *pass) {
	labels, err := sysread.ReadNames(r.io, d.dir+"/ports")
	if err == nil && len(labels) == 0 {
		err = errNoPorts
	}
	if err != nil {
		r.fail("ports", err)
		return
	}
	var ports []*portReader
	for _, label := range labels {
		if port := d.port(label); port != nil {
			port.rescan(r)
			ports = append(ports, port)
		}
	}
	for _, old := range d.ports {
		if !slices.Contains(ports, old) {
			old.close(r.io)
		}
	}
	slices.SortFunc(ports, func(a, b *portReader) int { return a.number - b.number })
	d.ports = ports
}

// port returns the reader of the port directory of that name, or nil if it is none.
func (d *DeviceReader) port(label string) *portReader {
	for _, port := range d.ports {
		if port.label == label {
			return port
		}
	}
	port, isPort := newPortReader(d.dir+"/ports", label, d.reader.options.Sysfs+"/class/net", d.newInterface())
	if !isPort || label != strconv.Itoa(port.number) {
		return nil
	}
	return port
}

func (d *DeviceReader) newInterface() *netdev.Reader {
	options := &d.reader.options
	o := netdev.Options{Sysfs: options.Sysfs, IO: &d.reader.io, SysfsOnly: !options.Ethtool, Extra: options.EthtoolAll}
	if options.Ethtool && options.Kernel != nil {
		o.Kernel = options.Kernel()
	}
	return netdev.NewReader(o)
}

func (d *DeviceReader) readSlow(r *pass) {
	d.slowAt = r.now
	if d.id.Plane() {
		return
	}
	for _, port := range d.ports {
		port.readSlow(r, &d.id, &d.netlink)
	}
	r.port = ""
	d.usage = d.netlink.usage(r)
}

// read puts the device together. Of a plane nothing but its identity is read:
// its counters are its parent's.
func (d *DeviceReader) read(r *pass, slow bool) Device {
	device := Device{Identity: d.id, SlowRead: d.slowAt}
	if d.id.Plane() {
		return device
	}
	counted := false
	for _, port := range d.ports {
		device.Ports = append(device.Ports, port.read(r, slow, &d.netlink))
		device.Omitted += device.Ports[len(device.Ports)-1].Omitted
		counted = counted || len(port.counters) > 0
	}
	r.port = ""
	if d.hw != nil {
		device.HWCounters = d.hw.read(r, slow, nil)
		device.HWRestricted = sysread.Maybe[bool]{Value: d.hw.restricted, Known: d.hw.listed}
		device.Omitted += d.hw.omitted
		counted = true
	}
	device.Hidden = !counted && len(d.ports) > 0 && countingDrivers[d.id.Driver] && d.settled(r)
	device.Resources, device.Usage = d.netlink.resources(r), d.usage
	return device
}

// settled reports whether the device is neither coming nor going.
func (d *DeviceReader) settled(r *pass) bool {
	vanishing := slices.ContainsFunc(r.errs, func(err sysread.ReadError) bool { return passing(err.Err) })
	coming := d.late && r.now.Sub(d.firstAt) < settleTime
	return !vanishing && !coming
}

// passing reports whether err is what a device gives that is coming or going.
func passing(err error) bool { return sysread.Vanished(err) || errors.Is(err, errNoPorts) }

// settle returns the failures that count now and keeps back those that count
// only if the device is still there at a Read that is settleTime later.
func (d *DeviceReader) settle(now time.Time, errs []sysread.ReadError) []sysread.ReadError {
	var settled []sysread.ReadError
	if now.Sub(d.pendingAt) >= settleTime {
		settled, d.pending = d.pending, nil
	}
	for _, err := range errs {
		if !passing(err.Err) {
			settled = append(settled, err)
			continue
		}
		if len(d.pending) == 0 {
			d.pendingAt = now
		}
		d.pending = append(d.pending, err)
	}
	return settled
}

// Close closes the device's files.
func (d *DeviceReader) Close() {
	for _, port := range d.ports {
		port.close(&d.reader.io)
	}
	if d.hw != nil {
		d.hw.close(&d.reader.io)
	}
	d.netlink.close()
}

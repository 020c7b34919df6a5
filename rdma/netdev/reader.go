package netdev

import (
	"errors"
	"net"
	"syscall"
	"time"

	"gdr_exporter/collector/sysread"
)

// Options are a Reader's settings.
type Options struct {
	// Sysfs is where sysfs is mounted, usually /sys.
	Sysfs string
	// IO counts the reads of sysfs. nil: a counter of its own.
	IO *sysread.IO
	// Kernel answers what sysfs does not. nil: the running kernel, whatever
	// Sysfs is.
	Kernel Kernel
	// SysfsOnly: there is no Kernel to ask, as for a tree that is not this
	// machine's.
	SysfsOnly bool
	// Extra: show the statistics too that are marked so, about 20 of a port.
	Extra bool
	// ConfigInterval is the least time between two reads of what
	// administrators set (DCB, trust, ECN), which is expensive (mlx5: some
	// thirty firmware commands) and hardly ever changes. 0: 10 minutes.
	ConfigInterval time.Duration
}

// How long to leave alone what a driver refused.
const (
	refusedFirst = 10 * time.Minute
	refusedMost  = time.Hour
)

// Reader reads the network interface of one RDMA port. It is for one goroutine
// at a time: the device's worker, since every question may hang with the device.
type Reader struct {
	options Options
	kernel  Kernel

	name   string // interface that all below is about
	index  int
	stats  statistics
	config config
}

// NewReader returns a reader; nothing is opened yet.
func NewReader(options Options) *Reader {
	r := &Reader{options: options, kernel: options.Kernel}
	if r.kernel == nil && !options.SysfsOnly {
		r.kernel = NewKernel()
	}
	if r.options.IO == nil {
		r.options.IO = &sysread.IO{}
	}
	if r.options.ConfigInterval == 0 {
		r.options.ConfigInterval = 10 * time.Minute
	}
	return r
}

// Close closes the reader's sockets.
func (r *Reader) Close() {
	if r.kernel != nil {
		r.kernel.Close()
	}
}

// pass is one Read: what it found, and what failed.
type pass struct {
	*Reader
	now     time.Time
	dir     string // /sys/class/net/<name>
	reading Reading
	errs    []sysread.ReadError
}

// Read reads the interface called name. An empty name, and an interface that
// is gone, give an empty Reading and no error. What could not be read is
// unknown, and why is an error that names no device and no port: the caller
// knows them.
func (r *Reader) Read(now time.Time, name string) (Reading, []sysread.ReadError) {
	if name != r.name {
		r.forget(name)
	}
	p := &pass{Reader: r, now: now, dir: r.options.Sysfs + "/class/net/" + name}
	p.reading = Reading{Name: name, Read: now}
	if name == "" {
		return p.reading, nil
	}
	p.readSysfs()
	p.readKernel()
	return p.reading, p.errs
}

// forget starts afresh with another interface.
func (r *Reader) forget(name string) {
	r.name, r.index = name, 0
	r.stats, r.config = statistics{}, config{}
}

// ask counts a question to the kernel.
func (p *pass) ask() Kernel {
	p.reading.Requests++
	return p.kernel
}

func (p *pass) fail(source string, err error) {
	if !gone(err) {
		p.errs = append(p.errs, sysread.ReadError{Source: source, Err: err})
	}
}

// gone reports whether err says that there is no such interface (any more).
func gone(err error) bool {
	return sysread.Vanished(err) || errors.Is(err, syscall.ENXIO)
}

// unsupported reports whether err is a driver's or kernel's "I have no such thing".
func unsupported(err error) bool {
	const notSupported = syscall.Errno(524) // ENOTSUPP, which leaks from drivers
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, notSupported)
}

// readKernel asks the kernel by ioctl and netlink, if the interface it knows by
// that name is the one in sysfs.
func (p *pass) readKernel() {
	visible, known := p.visible()
	p.readConfig(visible)
	switch {
	case visible:
		p.readStats()
	case known:
		p.reading.EthtoolStatus, p.reading.DCBStatus = StatusHidden, StatusHidden
		p.stats = statistics{}
	}
}

// visible reports whether the process's network namespace has the interface;
// known is false if that could not be found out. Numbers are given by
// namespace and repeat, so the hardware address must agree as well.
func (p *pass) visible() (visible, known bool) {
	if p.kernel == nil {
		return false, false
	}
	index, err := p.ask().Index(p.name)
	if gone(err) {
		return false, true
	}
	if err != nil {
		p.fail("netdev/ifindex", err)
		return false, false
	}
	if index != p.index {
		p.index, p.stats, p.config = index, statistics{}, config{}
	}
	failed := len(p.errs)
	if want := p.number("ifindex"); !want.Known || want.Value != uint64(index) {
		return false, len(p.errs) == failed // a number that cannot be read is not another one
	}
	address, err := p.ask().Address(p.name)
	if err != nil {
		p.fail("netdev/address", err)
		return false, gone(err)
	}
	if address == "" {
		return true, true
	}
	return p.hasAddress(address)
}

// hasAddress reports whether the interface in sysfs has a hardware address;
// known is false if its own cannot be read.
func (p *pass) hasAddress(address string) (same, known bool) {
	failed := len(p.errs)
	text, ok := p.text("address")
	if !ok {
		return false, len(p.errs) == failed
	}
	if _, err := net.ParseMAC(text); err != nil {
		p.fail("netdev/address", sysread.Invalid(text))
		return false, false
	}
	return text == address, true
}

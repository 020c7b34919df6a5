package host

import (
	"time"

	"gdr_exporter/collector/sysread"
)

// unitName names the reader in errors and among what is read.
const unitName = "host"

// Options say how a Reader reads.
type Options struct {
	Sysfs, Procfs string        // where these are mounted
	Self          string        // the exporter's own directory in its own procfs; "": /proc/self
	Root          string        // below which /dev, /run and /.dockerenv are; "" but in tests
	Files         sysread.Files // nil: the running system
	Kernel        Kernel        // nil: the running one
	// Include decides of which RDMA devices nodes and interfaces are looked at; nil: of all.
	Include func(device string) bool
	// SlowInterval is how often the host is read: all of it changes seldom; 0: each time.
	SlowInterval time.Duration
}

// daemonInterval is the least time between two searches among all processes, which
// take some 20 ms with 2,000 processes.
const daemonInterval = 5 * time.Minute

// Reader reads how the host is wired. It keeps no file open, and is for one
// goroutine at a time.
type Reader struct {
	options Options
	io      sysread.IO

	slow   slow
	slowAt time.Time

	daemons   sysread.Maybe[[]Daemon]
	daemonsAt time.Time
}

// slow is what changes seldom.
type slow struct {
	context    Context
	platform   Platform
	interfaces sysread.Maybe[[]Interface]
	hostProcs  bool
	nodes      []Node
	nodesKnown bool
}

// NewReader returns a reader; nothing is opened yet.
func NewReader(options Options) *Reader {
	if options.Self == "" {
		options.Self = "/proc/self"
	}
	if options.Kernel == nil {
		options.Kernel = NewKernel(options.Procfs, options.Files)
	}
	if options.Include == nil {
		options.Include = func(string) bool { return true }
	}
	r := &Reader{options: options}
	r.io.Files = options.Files
	return r
}

// Name names the reader.
func (*Reader) Name() string { return unitName }

// Close does nothing: no file is kept open.
func (*Reader) Close() {}

// Read reads the host if that is due, what needs a search among all processes every
// five minutes at most.
// What could not be read is not known, and why is an error beside it; that a file
// is not there, or is not for everybody's eyes, is no error.
func (r *Reader) Read(now time.Time) (Reading, []sysread.ReadError) {
	p := &pass{Reader: r}
	if r.slowAt.IsZero() || now.Sub(r.slowAt) >= r.options.SlowInterval {
		r.slow, r.slowAt = p.readSlow(), now
	}
	if !r.slow.hostProcs {
		r.daemons, r.daemonsAt = sysread.Maybe[[]Daemon]{}, time.Time{}
	} else if r.daemonsAt.IsZero() || now.Sub(r.daemonsAt) >= max(r.options.SlowInterval, daemonInterval) {
		r.daemons, r.daemonsAt = p.findDaemons(), now
	}
	return Reading{
		Context: r.slow.context, Platform: r.slow.platform, Interfaces: r.slow.interfaces, Daemons: r.daemons,
		Nodes: r.slow.nodes, NodesKnown: r.slow.nodesKnown,
	}, p.errs
}

// pass is one Read: the reader, and what failed.
type pass struct {
	*Reader
	errs []sysread.ReadError
}

func (p *pass) readSlow() slow {
	s := slow{hostProcs: p.seesHost()}
	s.context = p.context(s.hostProcs)
	s.platform = Platform{Vendor: p.dmi("sys_vendor"), Product: p.dmi("product_name")}
	s.interfaces = p.interfaces()
	s.nodes, s.nodesKnown = p.nodes()
	return s
}

func (p *pass) findDaemons() sysread.Maybe[[]Daemon] {
	found, err := p.options.Kernel.Daemons()
	if err != nil {
		p.fail("daemons", err)
		return sysread.Maybe[[]Daemon]{}
	}
	return sysread.Some(found)
}

// dmi reads what the firmware says of the machine.
func (p *pass) dmi(name string) sysread.Maybe[string] {
	text, ok := p.text("dmi/id/"+name, p.options.Sysfs+"/class/dmi/id/"+name)
	if !ok || text == "" {
		return sysread.Maybe[string]{}
	}
	return sysread.Some(text)
}

// text reads a file of at most a page; false: there is none, or not for this
// process, or it could not be read.
func (p *pass) text(source, path string) (string, bool) {
	text, err := sysread.ReadOnce(&p.io, path)
	return text, p.ok(source, err)
}

// ok reports whether there is no error, and counts it if it is one that says that
// something is wrong.
func (p *pass) ok(source string, err error) bool {
	if err != nil && !missing(err) {
		p.fail(source, err)
	}
	return err == nil
}

func (p *pass) fail(source string, err error) {
	p.errs = append(p.errs, sysread.ReadError{Device: unitName, Source: source, Err: err})
}

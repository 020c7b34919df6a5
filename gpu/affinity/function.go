package affinity

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"gdr_exporter/collector/sysread"
)

// FunctionReader reads one function. It is for one goroutine at a time.
type FunctionReader struct {
	io       *sysread.IO
	address  string
	inode    uint64
	interval time.Duration
	dir      string // of the function
	linkDir  string // of the function whose link it is: the physical one's for a virtual one
	upDir    string // of the port above, "" without a real one or if this is the upper end
	lower    bool
	// node is set by the Reader while Read may be running.
	node atomic.Pointer[Node]

	power sysread.Attr
	buf   [sysread.AttrSize]byte
	errs  []sysread.ReadError

	slowAt time.Time
	awake  bool
	last   Function // the slow group as of slowAt
}

// newFunctionReader returns a reader of the function at a place.
func newFunctionReader(r *Reader, node *Node, p *endpoint, inode uint64) *FunctionReader {
	dir := r.options.Sysfs + "/" + p.dir
	f := &FunctionReader{
		io: &r.io, address: node.Address, inode: inode, interval: r.options.SlowInterval, dir: dir, linkDir: dir,
		power: sysread.NewAttr(dir + "/power_state"), lower: true,
	}
	if node.PhysicalFunction != "" {
		f.linkDir = dir + "/physfn"
	}
	// From a root port down, every second bridge is the upper end of a link: a
	// root or downstream port. The others are upstream ports.
	if node.Kind == KindBridge {
		f.lower = len(p.bridges)%2 == 1
	}
	if up := len(p.bridges); up > 0 && f.lower && !p.hidden {
		f.upDir = r.options.Sysfs + "/" + p.above(up-1).dir
	}
	return f
}

// Name returns the function's PCI address.
func (f *FunctionReader) Name() string { return f.address }

// Close closes the function's files.
func (f *FunctionReader) Close() { f.power.Close(f.io) }

// Read reads the function: its power state every time, link, error counters and
// configuration space when they are due. Link and configuration space are left
// alone unless the function is in D0: reading them would wake it.
func (f *FunctionReader) Read(now time.Time) (Function, []sysread.ReadError) {
	f.errs = nil
	power, awake := f.readPower()
	if f.slowAt.IsZero() || now.Sub(f.slowAt) >= f.interval || awake && !f.awake {
		f.readSlow(awake)
		f.slowAt = now
	}
	f.awake = awake
	read := f.last
	read.Node, read.Power, read.SlowRead = *f.node.Load(), power, f.slowAt
	if !awake {
		read.Link = Link{Lower: f.lower}
		read.Answers, read.ConfigReadable, read.Config = sysread.Maybe[bool]{}, sysread.Maybe[bool]{}, Config{}
	}
	return read, f.errs
}

func (f *FunctionReader) readSlow(awake bool) {
	f.last = Function{AER: f.readAER()}
	if awake {
		f.last.Link = f.readLink()
		f.readConfig()
	}
}

func (f *FunctionReader) fail(source string, err error) {
	f.errs = append(f.errs, sysread.ReadError{Device: f.address, Source: source, Err: err})
}

// text reads a file; ok is false if there is none or it could not be read. A
// function that is being taken away is no failure.
func (f *FunctionReader) text(dir, name string) (text string, ok bool) {
	text, err := readText(f.io, dir+"/"+name)
	if err != nil && !sysread.Absent(err) && !vanished(f.io, dir+"/"+name, err) {
		f.fail(name, err)
	}
	return text, err == nil
}

// vanished reports whether err comes of the function being removed: of a file
// that the kernel takes away meanwhile, reading says ENODEV, and the next look
// that there is none. The function's directory goes last.
func vanished(io *sysread.IO, path string, err error) bool {
	if !sysread.Vanished(err) {
		return false
	}
	_, err = io.Lstat(path)
	return err != nil
}

// powerStates are the texts of power_state, and whether the configuration space
// may be read. The kernel says unknown of a function without a driver.
var powerStates = map[string]bool{
	"D0": true, "D1": false, "D2": false, "D3hot": false, "D3cold": false, "unknown": true, "error": false,
}

// readPower reads power_state and decides whether the function is awake. Where
// the kernel has no such file (before 5.11), runtime power management tells.
func (f *FunctionReader) readPower() (state sysread.Maybe[string], awake bool) {
	text, err := f.power.Read(f.io, f.buf[:])
	switch {
	case err == nil:
		awake, known := powerStates[string(text)]
		if !known {
			f.fail("power_state", sysread.Invalid(string(text)))
			return state, false
		}
		return sysread.Some(string(text)), awake
	case sysread.Absent(err):
		status, _ := f.text(f.dir, "power/runtime_status")
		return state, status != "suspended"
	case !vanished(f.io, f.power.Path(), err):
		f.fail("power_state", err)
	}
	return state, false
}

func (f *FunctionReader) readLink() Link {
	link := Link{Lower: f.lower}
	link.Speed = readValue(f, f.linkDir, "current_link_speed", parseSpeed)
	link.Width = readValue(f, f.linkDir, "current_link_width", parseWidth)
	link.PossibleSpeed = readValue(f, f.linkDir, "max_link_speed", parseSpeed)
	link.PossibleWidth = readValue(f, f.linkDir, "max_link_width", parseWidth)
	if f.upDir != "" {
		link.PossibleSpeed = lesser(link.PossibleSpeed, readValue(f, f.upDir, "max_link_speed", parseSpeed))
		link.PossibleWidth = lesser(link.PossibleWidth, readValue(f, f.upDir, "max_link_width", parseWidth))
	}
	return link
}

// readValue reads and parses a file that not every function has.
func readValue[T any](f *FunctionReader, dir, name string, parse func(string) (sysread.Maybe[T], error)) sysread.Maybe[T] {
	text, ok := f.text(dir, name)
	if !ok {
		return sysread.Maybe[T]{}
	}
	value, err := parse(text)
	if err != nil {
		f.fail(name, err)
	}
	return value
}

// readAER reads the error counters, which the kernel keeps in memory.
func (f *FunctionReader) readAER() *AER {
	var aer AER
	found := false
	for _, file := range []struct {
		name   string
		counts *AERCounts
	}{
		{"aer_dev_correctable", &aer.Correctable}, {"aer_dev_nonfatal", &aer.NonFatal}, {"aer_dev_fatal", &aer.Fatal},
	} {
		text, ok := f.text(f.dir, file.name)
		if !ok {
			continue
		}
		found = true
		var err error
		if *file.counts, err = parseAER(text); err != nil {
			f.fail(file.name, err)
		}
	}
	if !found {
		return nil
	}
	return &aer
}

// errAllOnes is what a function gives that has fallen off the bus.
var errAllOnes = fmt.Errorf("the configuration space reads all ones: %w", syscall.ENODEV)

// readConfig reads the configuration space. A virtual function has the device
// control of its physical one.
func (f *FunctionReader) readConfig() {
	read, ok := f.readSpace(f.dir)
	f.last.Answers, f.last.ConfigReadable, f.last.Config = read.answers, read.readable, read.config
	if !ok || f.linkDir == f.dir {
		return
	}
	if physical, ok := f.readSpace(f.linkDir); ok {
		c := &f.last.Config
		c.MaxPayload, c.MaxReadRequest, c.RelaxedOrdering = physical.config.MaxPayload, physical.config.MaxReadRequest, physical.config.RelaxedOrdering
	}
}

func (f *FunctionReader) readSpace(dir string) (configReading, bool) {
	const name = "config"
	file, err := sysread.Open(f.io, dir+"/"+name)
	if err != nil {
		if !sysread.Absent(err) && !vanished(f.io, dir+"/"+name, err) {
			f.fail(name, err)
		}
		return configReading{}, false
	}
	defer file.Close()
	read, err := readConfig(func(to []byte, offset int) (int, error) { return file.ReadAt(to, int64(offset)) })
	switch {
	case err != nil && !vanished(f.io, dir+"/"+name, err):
		f.fail(name, err)
	case err == nil && !read.answers.Value:
		f.fail(name, errAllOnes)
	}
	// What was read before a failure stands.
	return read, err == nil && read.answers.Value
}

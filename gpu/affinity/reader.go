package affinity

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"gdr_exporter/collector/sysread"
)

// Options say what a Reader reads.
type Options struct {
	Sysfs string // where sysfs is mounted
	// Files is where its files are read; nil: the running system.
	Files sysread.Files
	// IncludeRDMA and IncludeGPU decide by device name and by PCI address; nil:
	// all. They are asked before anything of a device is opened, so of any PCI
	// function: one that is refused is not looked at whether it is a GPU.
	IncludeRDMA, IncludeGPU func(name string) bool
	// Role returns the role that the command line gives an RDMA device, "" for none; nil: none.
	Role func(device string) string
	// StandIns are PCI ids ("8086:10d3") taken for GPUs: only for tests on a
	// machine without any. Then the bridges of a virtual machine count as real.
	StandIns []string
	// SlowInterval is how often link, AER and configuration space are read.
	SlowInterval time.Duration
	// Descriptors is the largest number of files to keep open.
	Descriptors int64
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// maxFunctions bounds the functions read. A node with 16 GPUs and as many NICs
// has about 80; the endpoints come first.
const maxFunctions = 512

// Reader lists the PCIe tree. It is for one goroutine at a time; the
// FunctionReaders it returns are independent of it and of each other.
type Reader struct {
	options  Options
	io       sysread.IO
	standIns map[string]bool

	pci, class sysread.Dir
	functions  map[string]*function // all PCI functions, by address
	devices    []*device            // the included RDMA devices, by name
	gpus       []*function
	// bound holds what is known of the drivers of GPUs since the reader began, by
	// address.
	bound map[string]history

	readers map[string]*FunctionReader
	listing Listing
	units   []*FunctionReader
	builtAt time.Time
	stale   bool // something changed that the listing does not have yet
}

// history is what is known of a GPU's driver.
type history struct {
	had  bool      // it was bound to nvidia at some time
	at   time.Time // when it was seen bound last
	last bool      // it was when last seen
}

// unboundFor is how long a GPU must have been unbound for its vanishing to be
// somebody's wish. The kernel takes the driver off a function before it removes
// it, so that one that falls off the bus is unbound for a moment.
const unboundFor = 2 * time.Minute

// driverNVIDIA is the name of the GPU driver, open or proprietary.
const driverNVIDIA = "nvidia"

// NewReader returns a reader; nothing is opened yet.
func NewReader(options Options) *Reader {
	if options.Now == nil {
		options.Now = time.Now
	}
	r := &Reader{
		options: options, standIns: map[string]bool{}, functions: map[string]*function{}, bound: map[string]history{},
		readers: map[string]*FunctionReader{}, stale: true,
		pci: sysread.Dir{Path: options.Sysfs + "/bus/pci/devices"}, class: sysread.Dir{Path: options.Sysfs + "/class/infiniband"},
	}
	for _, id := range options.StandIns {
		r.standIns[id] = true
	}
	r.io.Descriptors, r.io.Files = options.Descriptors, options.Files
	return r
}

// IO returns the counts of what this Reader and its FunctionReaders asked of the kernel.
func (r *Reader) IO() *sysread.IO { return &r.io }

// List returns the tree and a reader for each function worth reading. The same
// function has the same reader from one List to the next; readers that are no
// longer listed must be closed by the caller once they are not reading.
//
// It lists two directories and looks at the GPUs' driver links. Only if anything
// changed there, or once per SlowInterval, the tree is made anew.
func (r *Reader) List() (Listing, []*FunctionReader, error) {
	if err := r.scan(); err != nil {
		return Listing{}, nil, err
	}
	now := r.options.Now()
	if r.stale || r.rebound() || now.Sub(r.builtAt) >= r.options.SlowInterval {
		r.build()
		r.builtAt = now
		listing := r.listing
		r.listing.Failed = nil // told of once
		return listing, r.units, nil
	}
	return r.listing, r.units, nil
}

// scan lists what there is and notes whether it changed. A host without PCI or
// without RDMA lacks a directory.
func (r *Reader) scan() error {
	for _, dir := range []struct {
		*sysread.Dir
		name string
	}{{&r.pci, "bus/pci/devices"}, {&r.class, "class/infiniband"}} {
		differs, err := dir.Scan(&r.io)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			differs = dir.Clear()
		case err != nil:
			return sysread.ReadError{Source: dir.name, Err: err}
		}
		r.stale = r.stale || differs // also if the other directory fails
	}
	return nil
}

// rebound reports whether a GPU's driver is another than when the listing was made.
func (r *Reader) rebound() bool {
	return slices.ContainsFunc(r.gpus, func(f *function) bool {
		r.io.Request()
		return r.io.LinkBase(r.path(f, "driver")) != f.driver
	})
}

// path returns the path of a file of a function.
func (r *Reader) path(f *function, name string) string {
	return r.pci.Path + "/" + f.address + "/" + name
}

// build makes the listing anew.
func (r *Reader) build() {
	b := &build{Reader: r}
	r.stale = false
	b.identify()
	b.findDevices()
	b.findGPUs()
	b.pair()
	b.choose()
	b.listing.IOMMU = b.iommuUnits()
	b.listing.Gone = r.gone()
	r.listing, r.units = b.listing, b.readersOf()
}

// gone returns the GPUs that were bound to nvidia when they were last seen.
func (r *Reader) gone() []string {
	var gone []string
	for _, address := range slices.Sorted(maps.Keys(r.bound)) {
		if r.bound[address].last && r.functions[address] == nil {
			gone = append(gone, address)
		}
	}
	return gone
}

package affinity

import (
	"time"

	"gdr_exporter/collector/sysread"
)

// Options say what a Reader reads.
type Options struct {
	Sysfs string // where sysfs is mounted
	// IncludeRDMA and IncludeGPU decide by device name and by PCI address; nil: all.
	IncludeRDMA, IncludeGPU func(name string) bool
	// Role returns the role that the command line gives an RDMA device, "" for none; nil: none.
	Role func(device string) string
	// StandIns are PCI ids ("8086:10d3") taken for GPUs: only for tests on a
	// machine without any.
	StandIns []string
	// SlowInterval is how often link, AER and configuration space are read.
	SlowInterval time.Duration
	// Descriptors is the largest number of files to keep open.
	Descriptors int64
}

// Reader lists the PCIe tree. It is for one goroutine at a time.
type Reader struct{ options Options }

// NewReader returns a reader; nothing is opened yet.
func NewReader(options Options) *Reader { return &Reader{options} }

// List returns the tree and a reader for each function worth reading.
func (r *Reader) List() (Listing, []*FunctionReader, error) { return Listing{}, nil, nil }

// FunctionReader reads one function.
type FunctionReader struct{ node Node }

// Name returns the function's PCI address.
func (f *FunctionReader) Name() string { return f.node.Address }

// Read reads the function.
func (f *FunctionReader) Read(time.Time) (Function, []sysread.ReadError) {
	return Function{Node: f.node}, nil
}

// Close releases what Read keeps open.
func (f *FunctionReader) Close() {}

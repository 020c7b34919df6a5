// Package driver reads the state of the NVIDIA driver and of its RDMA peer
// memory module from sysfs and procfs, without NVML: what is loaded, what fits
// together, and which of the files that communication libraries look for are
// there. Loaded, registered and working are separate facts; the last is
// nobody's but a measurement's.
package driver

import (
	"time"

	"gdr_exporter/collector/sysread"
)

// Options say where a Reader reads.
type Options struct {
	Sysfs, Procfs string
	// Roots are the directories in which the driver's libraries are looked for, see --path.driver-root.
	Roots []string
	// SlowInterval is how often files are read that change with an installation only.
	SlowInterval time.Duration
}

// Reading is what one read found.
type Reading struct{}

// Reader reads the driver's state. It is for one goroutine at a time.
type Reader struct{ options Options }

// NewReader returns a reader; nothing is opened yet.
func NewReader(options Options) *Reader { return &Reader{options} }

// Name names the reader among the devices of the collector driver.
func (*Reader) Name() string { return "driver" }

// Read reads the state.
func (r *Reader) Read(time.Time) (Reading, []sysread.ReadError) { return Reading{}, nil }

// Close releases what Read keeps open.
func (r *Reader) Close() {}

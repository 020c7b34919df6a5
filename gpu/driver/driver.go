// Package driver reads the state of the NVIDIA driver and of its RDMA peer
// memory module from sysfs and procfs, without NVML: what is loaded, what fits
// together, and which of the files that communication libraries look for are
// there. Loaded, registered and working are separate facts; the last is
// nobody's but a measurement's.
//
// A module may be loaded and yet no library use it (NVIDIA/nccl#1676, #1939):
// libraries do not ask the kernel, they look whether certain files exist, and
// which ones differs from library to library and from version to version. The
// kernel in turn has some of these files only with some RDMA stacks. So each of
// these is read by itself, and [Rules] says what follows from the files.
package driver

import (
	"fmt"
	"strings"
	"time"

	"gdr_exporter/collector/sysread"
)

// Options say where a Reader reads.
type Options struct {
	Sysfs, Procfs string
	// Files is where files are read; nil: the running system.
	Files sysread.Files
	// Roots are the directories in which the driver's libraries are looked for,
	// see --path.driver-root, and the list of modules of the running kernel.
	Roots []string
	// Mounts is the list of the process's mounts; "": /proc/self/mountinfo.
	Mounts string
	// SlowInterval is how often files are read that change with an installation only.
	SlowInterval time.Duration
}

// Flavor is which of NVIDIA's two drivers for a kernel is loaded.
type Flavor string

// Flavors of the driver. In practice only the open one exports dma-buf.
const (
	FlavorUnknown     Flavor = ""
	FlavorOpen        Flavor = "open"
	FlavorProprietary Flavor = "proprietary"
)

// Reading is what one read found.
type Reading struct {
	// Slow is when the files were read that change with an installation only.
	Slow time.Time

	// Kernel is the running kernel's release (/proc/sys/kernel/osrelease).
	Kernel sysread.Maybe[string]
	// Loaded reports whether the driver is there: module nvidia, or
	// /proc/driver/nvidia/version where sysfs shows no modules.
	Loaded sysread.Maybe[bool]
	// Version is that of the loaded driver (/sys/module/nvidia/version, else
	// /proc/driver/nvidia/version).
	Version sysread.Maybe[string]
	// Flavor is from /proc/driver/nvidia/version.
	Flavor Flavor
	// Library is the driver's user-space part, the first found below the roots.
	Library sysread.Maybe[Library]
	// Modules are those of the driver and its companions, all of [Modules].
	Modules []Module
	// TopologyOverride is the option GrdmaPciTopoCheckOverride of the driver
	// (/proc/driver/nvidia/params): 0 not set, 1 access allowed whatever the
	// PCIe topology.
	TopologyOverride sysread.Maybe[uint64]
	// ProcGPUs are the PCI addresses, as sysfs writes them, of the directories
	// in /proc/driver/nvidia/gpus; unknown without that directory. A container
	// runtime may show fewer than the host has.
	ProcGPUs sysread.Maybe[[]string]
	// ProcGPUsPartial: a container runtime has put a selection in the place of
	// the driver's directory, so that a GPU which is missing there is hidden.
	ProcGPUsPartial bool

	// Lockdown is the kernel's lockdown mode (/sys/kernel/security/lockdown):
	// none, integrity, confidentiality.
	Lockdown sysread.Maybe[string]
	// RDMACore says where ib_core comes from; unknown if it is not loaded.
	RDMACore sysread.Maybe[RDMACore]

	// Peermem are the peer memory modules, all of [PeerModules].
	Peermem []PeerModule
	// MemoryPeers are the clients registered with an RDMA stack that shows them.
	MemoryPeers MemoryPeers
	// DMABufs are the buffers that the driver has exported and that are not freed
	// (/sys/kernel/debug/dma_buf/bufinfo), as of DMABufsRead: it is read at most once a
	// minute. They are not known without root or debugfs, DMABufsErr says why then;
	// both are nil where no driver is loaded.
	DMABufs     sysread.Maybe[[]DMABuf]
	DMABufsRead time.Time
	DMABufsErr  error
	// Markers tells of each of [Markers] whether the file exists.
	Markers map[Marker]sysread.Maybe[bool]
}

// LibraryMismatch reports whether kernel module and user-space library are of
// different versions, which NVML refuses as "Driver/library version mismatch";
// unknown unless both versions are known.
func (r *Reading) LibraryMismatch() sysread.Maybe[bool] {
	if !r.Version.Known || !r.Library.Known {
		return sysread.Maybe[bool]{}
	}
	return sysread.Some(r.Version.Value != r.Library.Value.Version)
}

// Reader reads the driver's state. It keeps no file open, so that neither a
// module nor a mount is held by it, and is for one goroutine at a time.
type Reader struct {
	options Options
	io      sysread.IO

	// refused says until when a file that refused to be read is left alone.
	refused map[string]time.Time
	slow    slow
	// seen identifies the loaded modules that slow was read with.
	seen string
	deps map[string]depFile
	// buffers is what is known of dma-bufs.
	buffers bufferList
}

// NewReader returns a reader; nothing is opened yet.
func NewReader(options Options) *Reader {
	if options.Mounts == "" {
		options.Mounts = "/proc/self/mountinfo"
	}
	r := &Reader{options: options, refused: map[string]time.Time{}, deps: map[string]depFile{}}
	r.io.Files = options.Files
	return r
}

// Name names the reader among the devices of the collector driver.
func (*Reader) Name() string { return deviceName }

// Close does nothing: no file is kept open.
func (r *Reader) Close() {}

// slow is what changes with an installation, or with a module that is loaded
// or unloaded.
type slow struct {
	at          time.Time
	kernel      sysread.Maybe[string]
	procVersion sysread.Maybe[procVersion]
	override    sysread.Maybe[uint64]
	library     sysread.Maybe[Library]
	lockdown    sysread.Maybe[string]
	rdmaCore    sysread.Maybe[RDMACore]
	onDisk      map[string]sysread.Maybe[bool]
	hooked      map[string]sysread.Maybe[bool]
	partial     bool
}

// Read reads the state. Modules, reference counts, registered clients and the
// files that libraries look for are read each time; the rest when it is due or
// when a module came, went or was replaced. What could not be read is unknown,
// and why is an error beside it. An absent file is no error.
func (r *Reader) Read(now time.Time) (Reading, []sysread.ReadError) {
	p := &pass{Reader: r, now: now}
	reading := Reading{}
	for _, name := range Modules {
		reading.Modules = append(reading.Modules, p.module(name))
	}
	for _, name := range PeerModules {
		reading.Peermem = append(reading.Peermem, p.peerModule(name))
	}
	reading.MemoryPeers = p.memoryPeers()
	reading.Markers = p.markers()
	reading.ProcGPUs = p.procGPUs()

	seen := p.identify(&reading)
	if r.slow.at.IsZero() || seen != r.seen || now.Sub(r.slow.at) >= r.options.SlowInterval {
		r.seen = seen
		r.slow = p.readSlow(&reading)
	}
	r.slow.complete(&reading)
	p.dmaBufs(&reading)
	return reading, p.errs
}

// identify tells modules apart from others of the same name loaded before or
// later: the kernel numbers their directories anew.
func (p *pass) identify(reading *Reading) string {
	var b strings.Builder
	for _, m := range reading.Modules {
		fmt.Fprintln(&b, m.Name, m.inode, m.State, m.Version.Value)
	}
	for _, m := range reading.Peermem {
		fmt.Fprintln(&b, m.Name, m.inode, m.State, m.Version.Value)
	}
	for _, name := range []string{moduleCore, moduleUverbs, moduleCompat} {
		inode, _ := p.inode(name)
		fmt.Fprintln(&b, name, inode)
	}
	return b.String()
}

// readSlow reads the slow group.
func (p *pass) readSlow(reading *Reading) slow {
	s := slow{
		at:          p.now,
		kernel:      p.kernelRelease(),
		procVersion: p.procVersion(),
		override:    p.topologyOverride(),
		library:     p.library(),
		lockdown:    p.lockdown(),
		rdmaCore:    p.rdmaCore(),
		hooked:      p.hooked(),
		partial:     p.partial(),
	}
	loaded := reading.Modules[0].Loaded()
	s.onDisk = p.onDisk(s.kernel.Value, loaded.Value || !loaded.Known || s.procVersion.Known)
	return s
}

// complete puts the slow group into a reading.
func (s *slow) complete(reading *Reading) {
	reading.Slow, reading.Kernel, reading.Lockdown, reading.RDMACore = s.at, s.kernel, s.lockdown, s.rdmaCore
	reading.Library, reading.ProcGPUsPartial = s.library, s.partial
	for i := range reading.Peermem {
		m := &reading.Peermem[i]
		m.OnDisk = s.onDisk[m.Name]
		if m.Loaded().Value {
			m.Hooked = s.hooked[m.Name]
		}
	}
	nvidia := &reading.Modules[0]
	reading.Loaded, reading.Version = nvidia.Loaded(), nvidia.Version
	if s.procVersion.Known && (nvidia.State == StateAbsent || nvidia.State == StateUnknown) {
		reading.Loaded = sysread.Some(true)
	}
	if reading.Loaded.Known && !reading.Loaded.Value {
		reading.Version = sysread.Maybe[string]{}
		return
	}
	reading.TopologyOverride = s.override
	if s.procVersion.Known {
		reading.Flavor = s.procVersion.Value.flavor
		if !reading.Version.Known {
			reading.Version = s.procVersion.Value.version
		}
	}
}

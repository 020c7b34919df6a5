package affinity

import (
	"time"

	"gdr_exporter/collector/sysread"
)

// Distance is the class of the PCIe path between a GPU and a NIC, in
// nvidia-smi's terms and from near to far.
type Distance int

// Classes of distance. Their numbers are those of gdr_affinity_distance_id.
const (
	Unknown Distance = iota // the tree does not show the path, as in many virtual machines
	PIX                     // at most one PCIe bridge on either side below the common one
	PXB                     // several PCIe bridges, no host bridge
	P2C                     // over NVLink-C2C and the CPU's own PCIe (Grace)
	PHB                     // through one PCIe host bridge
	NODE                    // through several host bridges of one NUMA node
	SYS                     // across NUMA nodes
)

var distanceNames = [...]string{"unknown", "PIX", "PXB", "P2C", "PHB", "NODE", "SYS"}

// String returns the class as nvidia-smi topo -m prints it.
func (d Distance) String() string {
	if d < 0 || int(d) >= len(distanceNames) {
		return distanceNames[Unknown]
	}
	return distanceNames[d]
}

// Direct reports whether libraries use GPUDirect RDMA at this distance by
// default (NCCL: up to PXB, and P2C).
func (d Distance) Direct() bool { return d == PIX || d == PXB || d == P2C }

// Kind is what a PCI function is to the path.
type Kind string

// Kinds of function.
const (
	KindGPU    Kind = "gpu"
	KindNIC    Kind = "nic"
	KindBridge Kind = "bridge"
	// KindDataDirect is a second function of a ConnectX-8, next to the GPU.
	KindDataDirect Kind = "data_direct"
)

// Listing is the PCIe tree as far as GPUs and RDMA devices are concerned. It
// comes from links, directory names and what never changes while a function is
// there; making it touches no configuration space.
type Listing struct {
	// Functions are the GPUs, the NICs, the data-direct functions, and the bridges
	// between the GPUs and the compute NICs nearest to them, by address.
	Functions []Node
	// Pairs are all GPU x RDMA device pairs, by GPU address, then device name.
	Pairs []Pair
	// Roles are the roles of the RDMA devices by name: what the command line says,
	// else compute for those nearest to some GPU, else unknown.
	Roles map[string]string
	// Gone are the GPUs that were bound to nvidia when they were last seen and
	// are not on the PCI bus any more.
	Gone []string
	// IOMMU are the names in /sys/class/iommu: dmar0, ivhd0, smmu3.0x...; empty: no IOMMU.
	IOMMU sysread.Maybe[[]string]
	// DataDirect are the addresses of the data-direct functions (Mellanox, class
	// 0x080100) that carry the payload of ConnectX-8 NICs. Which belongs to which
	// NIC is not to be had from sysfs: the driver compares a text in the function's
	// VPD with one that the NIC's firmware tells it.
	DataDirect []string
	// Failed are the files that could not be read while listing, each told of
	// once per attempt.
	Failed []sysread.ReadError
}

// Node is a function's place in the tree.
type Node struct {
	Address string // as sysfs writes it, 0000:3b:00.0
	Kind    Kind
	Vendor  uint64 // vendor, such as 0x10de; 0 not known
	Device  uint64 // device
	Class   uint64 // class, such as 0x030200
	Driver  string // basename of the driver link; "" unbound
	// DriverUnknown: the link could not be read, so that no Driver is not unbound.
	DriverUnknown bool
	HadNVIDIA     bool               // it is or was bound to nvidia since the reader began
	NUMANode      sysread.Maybe[int] // numa_node; unknown for the kernel's -1
	LocalCPUs     string             // local_cpulist; "" where the NUMA node is not known
	// Upstream is the address of the bridge above, "" below a host bridge.
	Upstream string
	// HostBridge is the directory of the PCI root, such as pci0000:3a.
	HostBridge string
	// RDMA are the devices of a NIC, those of its sub-functions too, by name.
	RDMA []string
	// Role is that of a NIC's devices: compute if that of any is, else the first
	// that is known. See Listing.Roles.
	Role string
	// PhysicalFunction is the address of a virtual function's physical one.
	PhysicalFunction string
	// DataDirect: a NIC of the kind that can send its payload through a data-direct
	// function, on a host that has some (Listing.DataDirect). The distance of the
	// NIC's own function may then mislead.
	DataDirect bool
	// IOMMUGroup is the basename of iommu_group, "" without an IOMMU.
	IOMMUGroup string
	// IOMMUUnknown: the link could not be read, so that no IOMMUGroup is not no IOMMU.
	IOMMUUnknown bool
	// IOMMUType is /sys/kernel/iommu_groups/N/type: DMA, DMA-FQ, identity, ...; "" not known.
	IOMMUType string
}

// Pair is the path between a GPU and an RDMA device.
type Pair struct {
	GPU      string // PCI address
	Device   string // RDMA device
	NIC      string // PCI address of the function that owns the device; "" without one
	Distance Distance
	// Common is the address of the nearest common bridge, "" without one.
	Common string
	// GPUSide and NICSide are the bridges below the common one (or below the host
	// bridges), from the GPU up and from the NIC up. Requests and completions are
	// redirected in these ports, where they are.
	GPUSide, NICSide []string
	// Hidden: a virtual machine does not show what is really above either function.
	// A common bridge stands for one that is there, but its ports say nothing of
	// ACS.
	Hidden bool
	// Nearest: no other RDMA device is nearer to this GPU. A device to which the
	// command line gives another role than compute is not asked.
	Nearest bool
}

// Function is what one read of a function found. Values that cost an access to
// its configuration space are missing while it is not in D0.
type Function struct {
	Node
	Power sysread.Maybe[string] // power_state: D0, D1, D2, D3hot, D3cold, unknown, error
	// Answers is false if the configuration space reads all ones: the function has
	// fallen off the bus.
	Answers sysread.Maybe[bool]
	// Link is that of the physical function where this is a virtual one.
	Link Link
	// AER counts errors; nil where the kernel does not own AER.
	AER *AER
	// ConfigReadable: the whole configuration space could be read. Without
	// CAP_SYS_ADMIN the kernel gives 64 bytes, and what follows is unknown.
	ConfigReadable sysread.Maybe[bool]
	Config         Config
	// SlowRead is when all but the power state was read.
	SlowRead time.Time
}

// Link is the PCIe link between a function and the port above it; of a root or
// downstream port it is the link below. Width 0 (no link), 63 and 255 (not
// readable) and speed Unknown are no values.
type Link struct {
	Speed sysread.Maybe[float64] // current_link_speed, GT/s
	Width sysread.Maybe[int]     // current_link_width, lanes
	// Possible is the lesser of what both ends of the link can do (max_link_speed,
	// max_link_width), as NCCL takes it; of a root or downstream port, and below a
	// port that a hypervisor made up, this end alone.
	PossibleSpeed sysread.Maybe[float64]
	PossibleWidth sysread.Maybe[int]
	// Lower: this is the lower end of its link. Both ends show the same.
	Lower bool
}

// AER are a function's error counts by severity, aer_dev_{correctable,nonfatal,fatal}.
type AER struct {
	Correctable, NonFatal, Fatal AERCounts
}

// AERCounts are the counts of one severity.
type AERCounts struct {
	Total sysread.Maybe[uint64] // TOTAL_ERR_*: messages, not the sum of the types
	Types []AERCount            // in the file's order
}

// AERCount is the count of one type of error, such as BadTLP.
type AERCount struct {
	Type  string
	Count uint64
}

// Config is what the PCIe capabilities say.
type Config struct {
	PortType sysread.Maybe[int] // PCIe capabilities register bits 7:4: 0 endpoint, 4 root port, 5 upstream, 6 downstream port
	// MaxPayload and MaxReadRequest are bytes (Device Control bits 7:5 and 14:12).
	MaxPayload, MaxReadRequest sysread.Maybe[int]
	RelaxedOrdering            sysread.Maybe[bool] // Device Control bit 4
	// ATS is the enable bit (15) of the ATS capability's control register; unknown without the capability.
	ATS sysread.Maybe[bool]
	// ACS is the ACS control register (0x000d, +6); unknown without the
	// capability or without the privilege, which NoACS tells apart.
	ACS sysread.Maybe[uint16]
	// NoACS: the configuration space was read and has no ACS capability.
	NoACS bool
}

// Bits of the ACS control register.
const (
	ACSSourceValidation    = 1 << 0
	ACSTranslationBlocking = 1 << 1
	ACSRequestRedirect     = 1 << 2
	ACSCompletionRedirect  = 1 << 3
	ACSUpstreamForwarding  = 1 << 4
	ACSEgressControl       = 1 << 5
	ACSDirectTranslated    = 1 << 6
)

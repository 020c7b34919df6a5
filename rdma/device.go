package rdma

import (
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/netdev"
	"gdr_exporter/rdma/nldev"
)

// Function is the kind of PCI function behind an RDMA device.
type Function string

// Kinds of function. A device without PCI parent (soft-RoCE) has FunctionNone.
const (
	FunctionNone     Function = ""
	FunctionPhysical Function = "pf"
	FunctionVirtual  Function = "vf" // has a physfn link
	FunctionSub      Function = "sf" // auxiliary device with an sfnum
)

// Identity is what tells one device from another. Its strings are empty where
// the driver does not say: that is usual and no error.
type Identity struct {
	Name         string // directory name; udev may rename it, never infer a driver from it
	PCIAddress   string // first PCI function above the device, as sysfs writes it
	Driver       string // name of the driver bound to <dev>/device
	Firmware     string // fw_ver
	Board        string // board_id, the PSID of NVIDIA cards
	HCAType      string // hca_type
	NodeType     string // node_type without its number: CA, RNIC, unspecified, ...
	Protocol     string // ib, roce, iw, opa, usnic; from netlink only
	NodeGUID     string // node_guid; "" also for the all-zero one
	SysImageGUID string // sys_image_guid, shared by the functions of a card
	Function     Function
	SubFunction  string   // sfnum of a sub-function
	Parent       string   // RDMA device that a plane (SMI) sub-device belongs to
	CharDevices  []string // names of /dev/infiniband nodes: uverbs0, umad0, issm0
	Uverbs       string   // the uverbs node among them

	parentPath    string // resolved <dev>/device, "" without one
	virtualNetdev string // netdev of a soft-RoCE device
}

// Plane reports whether the device is a sub-device that only shows one plane
// of a multi-plane port (ConnectX-8 XDR). Its traffic is its parent's, so it
// must not be counted, probed or judged beside it.
func (i *Identity) Plane() bool { return i.Parent != "" }

// Device is what one read of a device found.
type Device struct {
	Identity
	Ports []Port
	// HWCounters are the device-level counters (<dev>/hw_counters).
	HWCounters []Counter
	// HWRestricted: every file of <dev>/hw_counters refuses to be read; unknown
	// without the directory, and where it cannot be listed.
	HWRestricted sysread.Maybe[bool]
	// Resources counts the objects of the device by type (pd, cq, qp, cm_id, mr,
	// ctx, srq); from netlink only, nil where not known.
	Resources map[string]uint64
	// Usage is what processes hold; from netlink only.
	Usage Usage
	// Hidden: the driver always has counters, yet no port shows a counter
	// directory. The sysfs that was read belongs to another network namespace.
	Hidden bool
	// Omitted is the number of counter files beyond MaxCounters.
	Omitted int
	// SlowRead is when the slow group was read last.
	SlowRead time.Time
}

// Usage is what processes that the exporter can see hold of a device.
type Usage struct {
	Contexts sysread.Maybe[uint64]       // times the device is open
	Memory   sysread.Maybe[nldev.Memory] // registered memory
	// Owners are the processes that hold these, in the order of their ids in the
	// exporter's PID namespace; those that it cannot see are not among them. At most
	// nldev.MaxOwners; Omitted sums up what further ones hold.
	Owners  sysread.Maybe[[]nldev.Owner]
	Omitted nldev.Owner
}

// Port is what one read of a port found.
type Port struct {
	Number int // from 1; a switch has port 0
	Label  string

	State         sysread.Maybe[int] // ports/N/state: 0 NOP, 1 DOWN, 2 INIT, 3 ARMED, 4 ACTIVE, 5 ACTIVE_DEFER
	PhysicalState sysread.Maybe[int] // ports/N/phys_state: 1 Sleep ... 5 LinkUp, 6 LinkErrorRecovery, 7 Phy Test

	LinkLayer string              // ports/N/link_layer: InfiniBand, Ethernet, Unknown
	Rate      sysread.Maybe[Rate] // ports/N/rate; a placeholder while the port is not ACTIVE
	LID       sysread.Maybe[uint64]
	SMLID     sysread.Maybe[uint64]
	GUID      string // port GUID (InfiniBand), from gids/0
	Netdev    string
	// GIDs counts the GID table's entries by type, as gid_attrs/types names
	// them; nil if it could not be read.
	GIDs map[string]int
	// Interface is what the kernel says of an Ethernet port's netdev: statistics,
	// PFC, trust, ECN. Nil where there is none or it was not asked.
	Interface *netdev.Reading
	// CarrierChanges is the netdev's count of carrier losses and gains.
	CarrierChanges sysread.Maybe[uint64]

	// StateFrom and CountersFrom say where the states and the hw_counters come
	// from; "" where there are none.
	StateFrom, CountersFrom From
	// Optional are the counters that an administrator can switch on; from
	// netlink only.
	Optional []nldev.Optional

	Counters []Counter
	Omitted  int // counters beyond MaxCounters
	// ReceiveBytes and TransmitBytes are the same quantity for every driver
	// that counts bytes anywhere; see byteSources.
	ReceiveBytes  sysread.Maybe[float64]
	TransmitBytes sysread.Maybe[float64]
	// Restricted says of each counter directory that could be listed whether
	// every file in it refuses to be read.
	Restricted []Restriction
}

// Restriction says whether all of a counter directory refuses to be read.
type Restriction struct {
	Source Source
	All    bool
}

// Rate is a port's data rate as the kernel prints it.
type Rate struct {
	BytesPerSecond uint64
	Lanes          int    // 0 if not printed
	Speed          string // SDR ... XDR; InfiniBand wording also for Ethernet
}

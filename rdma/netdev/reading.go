package netdev

import (
	"time"

	"gdr_exporter/collector/sysread"
)

// Status says whether the kernel answers one of the reader's questions.
type Status int

// Statuses of a source.
const (
	// StatusUnknown: not asked yet, or the last attempt failed.
	StatusUnknown Status = iota
	// StatusRead: asked and answered.
	StatusRead
	// StatusUnsupported: the driver has no answer. That is remembered and
	// asked again rarely.
	StatusUnsupported
	// StatusHidden: the interface is not in the network namespace of the
	// process, or another one has its name there.
	StatusHidden
)

// Priorities is the number of 802.1p priorities.
const Priorities = 8

// Trust is what a port takes a packet's priority from.
type Trust string

// Kinds of trust. "" is not known.
const (
	TrustUnknown Trust = ""
	TrustPCP     Trust = "pcp"  // the VLAN tag's priority
	TrustDSCP    Trust = "dscp" // the IP header's
)

// Reading is what one read of a port's network interface found.
type Reading struct {
	Name   string // interface name, "" if the port has none
	Driver string // driver of the function below it, "" for a virtual interface
	Read   time.Time
	// Requests is how many calls and netlink requests it took, beside sysfs.
	Requests int

	MTU          sysread.Maybe[uint64] // bytes (mtu)
	CarrierUps   sysread.Maybe[uint64] // carrier_up_count
	CarrierDowns sysread.Maybe[uint64] // carrier_down_count

	// EthtoolStatus says whether the driver has ethtool statistics.
	EthtoolStatus Status
	Stats         []Stat
	// StatCount is how many statistics the driver has, known to us or not.
	StatCount int

	// DCBStatus says whether the driver answers DCB netlink.
	DCBStatus Status
	// PFC are the priorities with flow control: from DCB, else, with mlx5,
	// from the names of its statistics.
	PFC   sysread.Maybe[PrioritySet]
	Trust Trust
	// ECNNotification and ECNReaction are the priorities for which the port
	// answers ECN marks with congestion notifications, and slows down on
	// receiving these (RoCE congestion control, DCQCN). Only NVIDIA's
	// out-of-tree driver shows them outside debugfs.
	ECNNotification sysread.Maybe[PrioritySet]
	ECNReaction     sysread.Maybe[PrioritySet]
}

// Stat is one statistic of the port.
type Stat struct {
	*Meaning
	// Label is the value of Meaning.Label: a priority or lane.
	Label string
	// Raw is in the driver's unit, Value in base units.
	Raw   uint64
	Value float64
}

// PrioritySet is a set of priorities, one per bit.
type PrioritySet uint8

// Has reports whether the priority, 0 to 7, is in the set.
func (s PrioritySet) Has(priority int) bool { return s>>priority&1 == 1 }

// Count returns the number of priorities in the set.
func (s PrioritySet) Count() int {
	count := 0
	for priority := range Priorities {
		if s.Has(priority) {
			count++
		}
	}
	return count
}

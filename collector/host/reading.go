// Package host reads how a host, or the container that the exporter is in, is
// wired for RDMA: device nodes, limits that jobs will run under, addresses of
// interfaces. It reads no process's environment or command line.
package host

import (
	"gdr_exporter/collector/sysread"
)

// Reading is what one read found.
type Reading struct {
	// Context is where the exporter runs, which decides what it can see.
	Context Context
	// Platform is what the firmware calls the machine.
	Platform Platform
	// Nodes are the character devices of RDMA that programs open (uverbs, umad,
	// rdma_cm): those below /dev/infiniband that are there, and those that sysfs
	// names and that are not. By name.
	Nodes []Node
	// NodesKnown: both lists could be read; else Nodes is what is known of them.
	NodesKnown bool
	// Daemons are processes that start jobs (container runtimes, kubelet, slurmd),
	// with the limit of locked memory that jobs inherit from them, in the order of
	// their ids, at most MaxDaemons. Not known where the host's processes are not
	// seen.
	Daemons sysread.Maybe[[]Daemon]
	// Interfaces are the network interfaces of InfiniBand (IPoIB) and RoCE ports
	// that this network namespace has, by name.
	Interfaces sysread.Maybe[[]Interface]
}

// Context is where the exporter runs.
type Context struct {
	Root         sysread.Maybe[bool]   // effective user id 0 (/proc/self/status, Uid)
	HostPID      sysread.Maybe[bool]   // its pid namespace is the host's (/proc/self/ns/pid)
	HostNetwork  sysread.Maybe[bool]   // its network namespace is that of the host's first process
	Container    sysread.Maybe[bool]   // its root file system is not the host's; only what is sure
	Capabilities sysread.Maybe[uint64] // effective ones, a bit each (/proc/self/status, CapEff)
	// Memlock is the exporter's own limit of locked memory in bytes, soft
	// (/proc/self/limits); MaxUint64: unlimited.
	Memlock sysread.Maybe[uint64]
	// SharedRDMA: RDMA devices are in all network namespaces, as is the kernel's
	// default; not: each is in one, and the host does not see those of its pods
	// (/sys/module/ib_core/parameters/netns_mode).
	SharedRDMA sysread.Maybe[bool]
}

// Platform is what the firmware calls the machine (/sys/class/dmi/id): in clouds
// often the kind of instance. Not known on machines without DMI.
type Platform struct {
	Vendor  sysread.Maybe[string] // sys_vendor
	Product sysread.Maybe[string] // product_name
}

// Node is a character device.
type Node struct {
	Name string // uverbs0, umad0, rdma_cm
	// Device is the RDMA device that sysfs says it is of, "" for rdma_cm and for a
	// node of which sysfs knows nothing.
	Device string
	// Present: it is in /dev/infiniband. Usable: this process may open it for
	// reading and writing, as access(2) says, which knows nothing of a container's
	// device rules; not known where it is not present.
	Present bool
	Usable  sysread.Maybe[bool]
}

// Daemon is a process that starts jobs.
type Daemon struct {
	Name string `json:"name"` // comm: containerd, dockerd, crio, kubelet, slurmd, ...
	PID  int    `json:"pid"`
	// Soft and Hard are its limits of locked memory in bytes (/proc/PID/limits);
	// MaxUint64: unlimited.
	Soft sysread.Maybe[uint64] `json:"soft"`
	Hard sysread.Maybe[uint64] `json:"hard"`
}

// MaxDaemons bounds the daemons of a Reading.
const MaxDaemons = 64

// Interface is a network interface of an RDMA port.
type Interface struct {
	Name string
	Type int // ARPHRD (/sys/class/net/NAME/type): 1 Ethernet, 32 InfiniBand
	Up   sysread.Maybe[bool]
	// IPv4 and IPv6 count its addresses that are not link-local.
	IPv4, IPv6 int
}

// TypeInfiniBand is ARPHRD_INFINIBAND, that of IPoIB interfaces.
const TypeInfiniBand = 32

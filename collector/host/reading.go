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
	// Nodes are the character devices of RDMA: those below /dev/infiniband that are
	// there, and those that sysfs names and that are not. By name (uverbs0, rdma_cm).
	Nodes []Node
	// Daemons are processes that start jobs (container runtimes, kubelet, slurmd),
	// with the limit of locked memory that jobs inherit from them.
	Daemons sysread.Maybe[[]Daemon]
	// Interfaces are the network interfaces of InfiniBand (IPoIB) and RoCE ports
	// that this network namespace has.
	Interfaces sysread.Maybe[[]Interface]
}

// Context is where the exporter runs.
type Context struct {
	Root         sysread.Maybe[bool] // effective user id 0
	HostPID      sysread.Maybe[bool] // it sees the host's processes, by their ids there
	HostNetwork  sysread.Maybe[bool] // it is in the host's network namespace
	Container    sysread.Maybe[bool] // its root file system is not the host's
	Capabilities sysread.Maybe[uint64]
	// Memlock is the exporter's own limit of locked memory in bytes, soft;
	// MaxUint64: unlimited.
	Memlock sysread.Maybe[uint64]
}

// Node is a character device.
type Node struct {
	Name string
	// Device is the RDMA device that sysfs says it is of, "" for rdma_cm.
	Device string
	// Present: it is in /dev/infiniband. Usable: this process may open it for
	// reading and writing, as access(2) says; not known where it is not present.
	Present bool
	Usable  sysread.Maybe[bool]
}

// Daemon is a process that starts jobs.
type Daemon struct {
	Name string // comm: containerd, dockerd, crio, kubelet, slurmd, ...
	PID  int
	// Soft and Hard are its limits of locked memory in bytes; MaxUint64: unlimited.
	Soft, Hard sysread.Maybe[uint64]
}

// Interface is a network interface of an RDMA port.
type Interface struct {
	Name string
	Type int // ARPHRD: 1 Ethernet, 32 InfiniBand
	Up   sysread.Maybe[bool]
	// IPv4 and IPv6 count its addresses that are not link-local.
	IPv4, IPv6 int
}

// Package process joins, when it is asked to, the processes that hold RDMA
// resources with those that use GPUs, and reads of those only an allow-list of
// environment variables, the limit of locked memory and the NCCL that they have
// loaded. It is off by default. Nothing else of a process is read, and no value
// that is not on the list leaves this package.
package process

import (
	"gdr_exporter/collector/sysread"
)

// Reading is what one read found.
type Reading struct {
	// Visible: the exporter sees processes by the ids that the kernel gives
	// (host's pid namespace). Without it nothing can be joined.
	Visible sysread.Maybe[bool]
	// Jobs are processes that have a GPU and an RDMA device open or memory
	// registered, in the order of their ids, at most MaxJobs.
	Jobs []Job
	// Omitted are those beyond.
	Omitted int
}

// MaxJobs bounds the processes of a Reading.
const MaxJobs = 256

// Job is a process that uses a GPU and an RDMA device.
type Job struct {
	PID     int
	GPUs    []string // PCI addresses as sysfs writes them
	Devices []string // RDMA devices
	// Variables are those of the allow-list that its initial environment has;
	// not known where it may not be read.
	Variables sysread.Maybe[map[string]string]
	Memlock   sysread.Maybe[uint64] // bytes, soft; MaxUint64: unlimited
	// NCCL is the version of the libnccl.so that it has mapped, by its file's name
	// ("2.23.4"); "" none or without a version in its name.
	NCCL sysread.Maybe[string]
}

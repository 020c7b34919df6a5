// Package process joins, when it is asked to, the processes that hold RDMA
// resources with those that use GPUs, and reads of those only an allow-list of
// environment variables, the limit of locked memory and which communication
// libraries they have loaded. It is off by default. Nothing else of a process is
// read, and no value that is not on the list leaves this package: what is read of
// an environment is filtered while it is read, below what a recording records.
//
// Processes are joined by their ids, so it needs the host's PID namespace. Reading
// another user's environment needs CAP_SYS_PTRACE; where it may not be read it is
// not known.
package process

import (
	"slices"

	"gdr_exporter/collector/sysread"
)

// Reading is what one read found.
type Reading struct {
	// Visible: the exporter sees processes by the ids that the kernel gives
	// (host's pid namespace). Without it nothing can be joined.
	Visible sysread.Maybe[bool]
	// Joined: it is known who holds RDMA devices and who uses GPUs. Without it there
	// are no Jobs, which then does not mean that none run.
	Joined bool
	// Jobs are processes that have a GPU and an RDMA device open or memory
	// registered, in the order of their ids, at most MaxJobs.
	Jobs []Job
	// Omitted are those beyond.
	Omitted int
}

// MaxJobs bounds the processes of a Reading.
const MaxJobs = 256

// User is a process that uses a GPU and an RDMA device.
type User struct {
	PID     int
	GPUs    []string // PCI addresses as sysfs writes them, in order
	Devices []string // RDMA devices, in order
}

// Job is a process that uses a GPU and an RDMA device. What may not be read of it is
// not known, and nothing is while reading it hangs.
type Job struct {
	PID     int
	GPUs    []string // as in User
	Devices []string // as in User
	// Variables are those of [Valued] that its initial environment has
	// (/proc/PID/environ); a value that is not of its variable's form is [Withheld].
	Variables sysread.Maybe[map[string]string]
	// Others are the names, in order, of further variables of NCCL, UCX and NVSHMEM
	// there, at most [MaxOthers]. Known as Variables are.
	Others  []string
	Memlock sysread.Maybe[uint64] // bytes, soft; MaxUint64: unlimited (/proc/PID/limits)
	// NCCL is the version of the libnccl.so that it has mapped, as far as its file's
	// name has it, and UCX whether it has mapped libucp; see [Libraries].
	NCCL sysread.Maybe[string]
	UCX  sysread.Maybe[bool]
	// Gone: it ended while it was read, or is the exporter's own. It is no job, and
	// not in a Reading.
	Gone bool
}

// JobOf is a job of which nothing has been read.
func JobOf(user *User) Job { return Job{PID: user.PID, GPUs: user.GPUs, Devices: user.Devices} }

// Holder is a device and the processes that use it.
type Holder struct {
	Name string
	PIDs []int
}

// Join returns the processes that use both a GPU and an RDMA device, in the order of
// their ids.
func Join(gpus, devices []Holder) []User {
	of := map[int]*User{}
	for _, gpu := range gpus {
		for _, pid := range gpu.PIDs {
			if of[pid] == nil {
				of[pid] = &User{PID: pid}
			}
			of[pid].GPUs = append(of[pid].GPUs, gpu.Name)
		}
	}
	for _, device := range devices {
		for _, pid := range device.PIDs {
			if user := of[pid]; user != nil {
				user.Devices = append(user.Devices, device.Name)
			}
		}
	}
	var users []User
	for _, user := range of {
		if len(user.Devices) == 0 || user.PID <= 0 {
			continue
		}
		slices.Sort(user.GPUs)
		slices.Sort(user.Devices)
		users = append(users, User{user.PID, slices.Compact(user.GPUs), slices.Compact(user.Devices)})
	}
	slices.SortFunc(users, func(a, b User) int { return a.PID - b.PID })
	return users
}

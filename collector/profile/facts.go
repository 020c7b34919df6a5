package profile

import (
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback/prober"
)

// Facts are what was seen of a node at one time, in the terms of an Expectation.
// What is not known says nothing.
type Facts struct {
	Time time.Time
	// Vendor and Product are what the firmware calls the machine.
	Vendor, Product sysread.Maybe[string]
	// Models are the names that NVML gives the GPUs, each once.
	Models sysread.Maybe[[]string]
	// Virtual: NVML says that the GPUs are in a virtual machine.
	Virtual sysread.Maybe[bool]
	// GPUs is how many GPUs there are that are not lost, whatever drivers they have:
	// one that is given to a virtual machine, or hidden from this container, is there.
	GPUs sysread.Maybe[int]
	// NVLinks is the number of active links of the GPU that has fewest. Not known
	// where no GPU has any, or one does not answer.
	NVLinks sysread.Maybe[int]
	// Devices is how many RDMA devices of role compute there are, without virtual
	// functions, sub-functions and planes. DirectPairs counts pairs of GPUs with them
	// at which libraries use GPUDirect RDMA by distance.
	Devices, DirectPairs sysread.Maybe[int]
	// Listed are the names of all RDMA devices; not known: they could not be listed,
	// or what decides on their roles does not answer.
	Listed sysread.Maybe[[]string]
	// Ports are those of the devices that answered.
	Ports []Port
	// Private: RDMA devices are each in one network namespace, so that one that is
	// gone may be in a pod. Foreign: those that are seen may be a pod's own.
	Private, Foreign bool
}

// Port is a port of an RDMA device.
type Port struct {
	prober.Port
	// NodeGUID is its device's, "" if it has none.
	NodeGUID string
	Active   sysread.Maybe[bool]   // ACTIVE
	Rate     sysread.Maybe[uint64] // bytes per second; means nothing unless it is ACTIVE
	// Compute: its device has this role, and is none that comes and goes.
	Compute bool
	// Never: nothing is to be learned of its device, by its kind or by a role that it
	// was given.
	Never bool
}

// of returns the ports of a device.
func (f *Facts) of(device string) []*Port {
	var ports []*Port
	for i := range f.Ports {
		if f.Ports[i].Device == device {
			ports = append(ports, &f.Ports[i])
		}
	}
	return ports
}

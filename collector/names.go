package collector

import "slices"

// Info tells of a collector.
type Info struct {
	Name string
	// What it reads, for --help.
	What string
	// Reads is false for a collector whose name is reserved but which this
	// version does not have yet.
	Reads bool
}

// Collectors are all collectors, by name. Their names are accepted from the
// first version on, so that a command line stays valid when they arrive.
var Collectors = []Info{
	{"affinity", "the PCIe path between every GPU and NIC", false},
	{"driver", "the NVIDIA driver", false},
	{"fabric", "the NVLink fabric", false},
	{"gpu", "GPUs, from NVML", false},
	{"kmsg", "interconnect events in the kernel log", false},
	{"nvlink", "NVLink", false},
	{"path", "verdicts on every GPU-NIC path", false},
	{"pcie", "PCIe links and errors", false},
	{"peermem", "nvidia-peermem and dma-buf", false},
	{"probe", "the GPUDirect RDMA measurement", false},
	{"process", "processes that use RDMA and GPUs", false},
	{"rdma", "RDMA devices, ports and counters", true},
}

// Names returns the names of all collectors, in order.
func Names() []string {
	names := make([]string, 0, len(Collectors))
	for _, c := range Collectors {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return names
}

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
	{"affinity", "the PCIe path between every GPU and NIC", true},
	{"driver", "the NVIDIA driver", true},
	{"fabric", "the NVLink fabric", true},
	{"gpu", "GPUs, from NVML and the PCI bus", true},
	{"kmsg", "interconnect events in the kernel log", false},
	{"nvlink", "NVLink", true},
	{"path", "verdicts on every GPU-NIC path", false},
	{"pcie", "PCIe links and errors", true},
	{"peermem", "the peer memory module, nvidia-peermem", true},
	{"probe", "the GPUDirect RDMA measurement", true},
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

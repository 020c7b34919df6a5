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

// OffByDefault reports whether a collector reads only where a site asks for it,
// because it looks into the processes of users, or names their jobs and pods.
func (i Info) OffByDefault() bool {
	return slices.Contains([]string{"process", "jobs", "pods"}, i.Name)
}

// Collectors are all collectors, by name. Their names are accepted from the
// first version on, so that a command line stays valid when they arrive.
var Collectors = []Info{
	{"affinity", "the PCIe path between every GPU and NIC", true},
	{"driver", "the NVIDIA driver", true},
	{"fabric", "the NVLink fabric", true},
	{"gpu", "GPUs, from NVML and the PCI bus", true},
	{"jobs", "which Slurm job, or Kubernetes pod, has processes on a GPU, by the host's process ids and their control groups", true},
	{"kmsg", "interconnect events in the kernel log", true},
	{"nvlink", "NVLink", true},
	{"path", "verdicts on every GPU-NIC path, and findings; reads what all collectors that are switched on read", true},
	{"pcie", "PCIe links and errors", true},
	{"peer", "the paths to other nodes, as sessions with them measure; nothing without --peer.enabled", true},
	{"peermem", "the peer memory module, nvidia-peermem", true},
	{"pods", "which pods were given which GPUs and RDMA devices, from the kubelet", true},
	{"probe", "the GPUDirect RDMA measurement", true},
	{"process", "processes that use RDMA and GPUs, by the host's process ids: the variables of NCCL, UCX and NVSHMEM that decide on GPUDirect RDMA, the limit of locked memory and mapped libraries", true},
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

package diagnosis

import (
	"fmt"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu"
)

// need says what evidence is missing and what it takes to have it, "" if it is there.
type need func(n *node) string

// absent says why a part of a Snapshot has nothing to say.
func absent(n *node, what, collector string, read bool) string {
	if read {
		return what + " does not return"
	}
	if n.s.Asked[collector] {
		return fmt.Sprintf("collector %s is not available here", collector)
	}
	return fmt.Sprintf("collector %s is switched off", collector)
}

func needTree(n *node) string {
	switch {
	case n.s.Affinity == nil:
		return absent(n, "reading the PCIe tree", snapshot.CollectorAffinity, false)
	case n.s.Affinity.Err != nil:
		return fmt.Sprintf("the PCIe tree cannot be listed: %v", n.s.Affinity.Err)
	}
	return ""
}

func needRDMA(n *node) string {
	switch {
	case n.s.RDMA == nil:
		return absent(n, "reading the RDMA devices", snapshot.CollectorRDMA, false)
	case n.s.RDMA.Err != nil:
		return fmt.Sprintf("the RDMA devices cannot be listed: %v", n.s.RDMA.Err)
	}
	return ""
}

func needDriver(n *node) string {
	if n.driver == nil {
		return absent(n, "reading the driver's files", snapshot.CollectorDriver, n.s.Driver != nil)
	}
	return ""
}

// needNVML is there where NVML works, and where there is nothing to ask it about.
func needNVML(n *node) string {
	reading := n.s.NVML()
	switch {
	case n.nvml != nil || !n.hasGPU():
		return ""
	case reading == nil:
		return absent(n, "NVML", snapshot.CollectorGPU, n.s.GPU != nil)
	case reading.State == gpu.StateQuiesced:
		return "NVML is quiesced"
	}
	return fmt.Sprintf("NVML does not work (%s)", reading.State)
}

func needProber(n *node) string {
	if n.s.Prober == nil && len(n.paths) > 0 {
		return absent(n, "the prober", snapshot.CollectorProbe, false)
	}
	return ""
}

func needKernelLog(n *node) string {
	switch {
	case n.log == nil:
		return absent(n, "the kernel's log", snapshot.CollectorKernelLog, n.s.KernelLog != nil)
	case n.log.Err != nil:
		return fmt.Sprintf("the kernel's log cannot be read (%v): it needs /dev/kmsg and CAP_SYSLOG", n.log.Err)
	}
	return ""
}

func needHost(n *node) string {
	switch {
	case n.host != nil:
		return ""
	case n.s.Host != nil:
		return "reading how the host is wired does not return"
	}
	return "how the host is wired was not read"
}

func needProcesses(n *node) string {
	switch {
	case n.s.Process == nil:
		return "processes are not read: --collector.process, which needs the host's PID namespace"
	case n.processes == nil:
		return fmt.Sprintf("processes cannot be listed: %v", n.s.Process.Err)
	case !n.processes.Visible.Value:
		return "processes are not seen: the exporter needs the host's PID namespace"
	case !n.processes.Joined:
		return "which processes use GPUs and RDMA devices is not known: it needs RDMA netlink and NVML"
	}
	return ""
}

package collector

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
)

// Notes tell how fresh a value of NVML is.
const (
	gpuNote  = " Read on a timer, see gdr_gpu_slow_read_timestamp_seconds."
	pairNote = " Read of one pair of GPUs with each scrape, in turn."
)

// Families of NVML itself.
var (
	nvmlUp = gauge("gdr_gpu_nvml_up",
		"1 if NVML works, 0 if not: gdr_gpu_nvml_state says why. Absent while a call hangs.")
	nvmlState = gauge("gdr_gpu_nvml_state",
		"1 for the state that NVML is in: up, quiesced (shut down until gdr_quiesced_until_timestamp_seconds, so that the driver can be unloaded), no_library (libnvidia-ml.so.1 is not there), no_driver (the kernel module is not loaded), "+
			"no_permission (the device files may not be opened), version_mismatch (library and kernel module are of different versions), failed. Absent while a call hangs.")
	nvmlStale = gauge("gdr_gpu_nvml_library_stale",
		"1 if the library on disk is another than the one that the process has loaded and can never let go of: the exporter starts itself afresh then.")
	nvmlInfo = gauge("gdr_gpu_nvml_info",
		"Facts about NVML, value 1: the library's path, NVML's version, the kernel module's version.")
	nvmlStuck = gauge("gdr_gpu_nvml_stuck_seconds",
		"How long a call of NVML has not returned, 0 if none hangs. No other call is made meanwhile, and everything that NVML knows is missing.")
	nvmlStuckCall = gauge("gdr_gpu_nvml_stuck_call_info",
		"The call of NVML that has not returned, value 1, and the GPU it concerns; absent if none hangs.")
	gpuCount = gauge("gdr_gpus",
		"Number of GPUs by source, less the excluded ones: pci (on the PCI bus), nvml (NVML lists them and they are not lost), proc (the driver lists them in /proc/driver/nvidia/gpus).")
)

// Families of GPUs.
var (
	gpuInfo = gauge("gdr_gpu_info",
		"Facts about a GPU, value 1: UUID, NVML's index and bus id (for joins with DCGM), name, vbios, architecture, compute_capability, driver of the PCI function, "+
			"numa_node and cpu_affinity (NVML's, else those of sysfs), virtualization (none, passthrough, vgpu, host_vgpu, host_vsga), and presence: "+
			"nvml, lost, passthrough (given to a virtual machine by vfio-pci), unbound (no driver), other_driver, hidden (by the container), unseen (NVML does not work).")
	gpuLost = gauge("gdr_gpu_lost",
		"1 if the GPU is lost: NVML says so, or the driver that it is bound to does not list it any more, or it had the driver and is not on the PCI bus any more. "+
			"Of GPUs with the NVIDIA driver only.")
	gpuResetRequired = gauge("gdr_gpu_reset_required",
		"1 if NVML refuses calls because the GPU must be reset (NVML_ERROR_RESET_REQUIRED); absent otherwise.")
	gpuSlowRead = gauge("gdr_gpu_slow_read_timestamp_seconds",
		"Unix time at which the GPU's slow group (PCIe link, BAR1, modes, NVLink counters) was read last.")
	gpuGeneration = gauge("gdr_gpu_pcie_generation",
		"Generation of the GPU's PCIe link now (nvmlDeviceGetCurrPcieLinkGeneration). Some GPUs lower it while idle."+gpuNote)
	gpuMaxGeneration = gauge("gdr_gpu_pcie_max_generation",
		"PCIe generation that the GPU can do (nvmlDeviceGetGpuMaxPcieLinkGeneration).")
	gpuHostMaxGeneration = gauge("gdr_gpu_pcie_host_max_generation",
		"PCIe generation that the GPU can do in this host (nvmlDeviceGetMaxPcieLinkGeneration).")
	gpuWidth = gauge("gdr_gpu_pcie_width_lanes",
		"Width of the GPU's PCIe link now (nvmlDeviceGetCurrPcieLinkWidth)."+gpuNote)
	gpuMaxWidth = gauge("gdr_gpu_pcie_max_width_lanes",
		"Width of the PCIe link that GPU and slot can do (nvmlDeviceGetMaxPcieLinkWidth).")
	gpuReplays = counter("gdr_gpu_pcie_replays_total",
		"Replays of PCIe packets (nvmlDeviceGetPcieReplayCounter). Some are normal under load."+gpuNote)
	gpuBAR1 = gauge("gdr_gpu_bar1_bytes",
		"Size of BAR1, through which NICs reach GPU memory (nvmlDeviceGetBAR1MemoryInfo)."+gpuNote)
	gpuBAR1Used = gauge("gdr_gpu_bar1_used_bytes",
		"Part of BAR1 that is mapped (nvmlDeviceGetBAR1MemoryInfo)."+gpuNote)
	gpuComputeMode = gauge("gdr_gpu_compute_mode_id",
		"Compute mode (nvmlDeviceGetComputeMode): 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process."+gpuNote)
	gpuMIG = gauge("gdr_gpu_mig_mode",
		"1 if the GPU is in MIG mode (nvmlDeviceGetMigMode)."+gpuNote)
	gpuPersistence = gauge("gdr_gpu_persistence_mode",
		"1 if the driver keeps the GPU initialised without users (nvmlDeviceGetPersistenceMode)."+gpuNote)
	gpuRecovery = gauge("gdr_gpu_recovery_action_id",
		"What the driver says is needed for the GPU to recover (NVML field 230): 0 nothing, 1 reset the GPU, 2 reboot, 3 drain peer-to-peer traffic, 4 drain and reset, 5 recover the IMEX domain, 6 reset the bus, 7 reboot the system.")
	gpuMemoryFree = gauge("gdr_gpu_memory_free_bytes",
		"Free memory of the GPU (nvmlDeviceGetMemoryInfo).")
	gpuProcesses = gauge("gdr_gpu_compute_processes",
		"Number of processes with a compute context on the GPU (nvmlDeviceGetComputeRunningProcesses).")
	gpuC2C = gauge("gdr_gpu_c2c_links",
		"Number of NVLink-C2C links between GPU and CPU (NVML field 170); no series where the GPU has none, that is anywhere but with Grace.")
	gpuXids = counter("gdr_gpu_xid_events_total",
		"Xid events of the GPU since the exporter began, by code (NVML event set); 0: codes beyond the limit. "+
			"74 NVLink error, 79 fallen off the bus, 154 recovery action changed, and on NVLink 5 144 to 150 exist from the first scrape. Faults of applications (13, 31, 43, 45) are not counted.")
	gpuXidLast = gauge("gdr_gpu_xid_last_timestamp_seconds",
		"Unix time of the scrape that noticed the last Xid event of that code; absent without one.")
	gpuAncestor = gauge("gdr_gpu_ancestor_level_id",
		"What is common to two GPUs on PCIe (nvmlDeviceGetTopologyCommonAncestor): 0 the board, 10 one switch, 20 several switches, 30 the host bridge, 40 the NUMA node, 50 the system. "+
			"Absent of GPUs that reach each other by NVLink, which do not use it."+pairNote)
	gpuP2P = gauge("gdr_gpu_p2p_status_id",
		"Why two GPUs may not reach each other's memory by capability read, nvlink, and write where it differs from read (nvmlDeviceGetP2PStatus): 1 chipset not supported, 2 GPU not supported, 3 topology not supported, "+
			"4 disabled by registry key, 5 not supported, 6 unknown. Where they may (0) there is no series: gdr_gpu_p2p_peers counts those."+pairNote)
	gpuP2PPeers = gauge("gdr_gpu_p2p_peers",
		"Number of the host's other GPUs whose memory the GPU may reach by capability read or nvlink (nvmlDeviceGetP2PStatus is OK). Absent while one of them has not been asked about."+pairNote)
)

// showGPU shows the GPUs, from NVML and from the PCI bus.
func showGPU(p *page, s *snapshot.Snapshot) {
	showNVML(p, s)
	m := s.GPUs()
	showGPUCounts(p, m)
	for _, g := range m.All {
		at := pairs("gpu_address", g.Address)
		showPresence(p, g, at)
		if g.NVML != nil {
			showGPUValues(p, g.NVML, at)
		}
	}
	if m.NVML != nil {
		showPairs(p, m.NVML)
	}
}

// showNVML shows the state of NVML itself.
func showNVML(p *page, s *snapshot.Snapshot) {
	if s.GPU == nil {
		return
	}
	stuck, call := s.NVMLStuck()
	p.add(nvmlStuck, stuck.Seconds(), nil)
	if call.Name != "" {
		p.add(nvmlStuckCall, 1, pairs("call", call.Name, "gpu_address", call.GPUAddress))
	}
	reading := s.NVML()
	if reading == nil {
		return
	}
	p.addBool(nvmlUp, reading.State == gpu.StateUp, nil)
	for _, state := range gpu.States {
		p.addBool(nvmlState, state == reading.State, pairs("state", string(state)))
	}
	p.addBool(nvmlStale, reading.Stale, nil)
	if reading.State == gpu.StateUp {
		p.add(nvmlInfo, 1, pairs("library", reading.Library, "version", reading.Version, "driver_version", reading.DriverVersion))
	}
}

func showGPUCounts(p *page, m *snapshot.GPUs) {
	for _, source := range []struct {
		name     string
		answered bool
		has      func(*snapshot.GPU) bool
	}{
		{"pci", m.PCI, func(g *snapshot.GPU) bool { return g.PCI != nil }},
		{"nvml", m.NVML != nil, func(g *snapshot.GPU) bool { return g.NVML != nil && !g.NVML.Lost }},
		{"proc", m.Proc, func(g *snapshot.GPU) bool { return g.Proc }},
	} {
		if source.answered {
			p.add(gpuCount, float64(m.Count(source.has)), pairs("source", source.name))
		}
	}
}

// showPresence shows who a GPU is and what has become of it.
func showPresence(p *page, g *snapshot.GPU, at labels) {
	var n gpu.GPU
	var node affinity.Node
	index := ""
	if g.NVML != nil {
		n, index = *g.NVML, strconv.Itoa(g.NVML.Index)
	}
	if g.PCI != nil {
		node = *g.PCI
	}
	numa := n.NUMANode
	if !numa.Known {
		numa = node.NUMANode
	}
	p.add(gpuInfo, 1, pairs(
		"gpu_address", g.Address, "uuid", n.UUID, "index", index, "bus_id", n.BusID, "name", n.Name, "vbios", n.VBIOS,
		"architecture", n.Architecture, "compute_capability", n.ComputeCapability, "driver", node.Driver, "presence", string(g.Presence),
		"numa_node", maybeText(numa), "cpu_affinity", cmp.Or(n.CPUAffinity, node.LocalCPUs), "virtualization", n.Virtualization))
	switch {
	case g.Presence == snapshot.PresenceLost:
		p.add(gpuLost, 1, at)
	case g.Presence == snapshot.PresenceNVML, g.Proc && g.Bound():
		p.add(gpuLost, 0, at)
	}
}

// maybeText returns a number as text, "" if it is not known.
func maybeText(value sysread.Maybe[int]) string {
	if !value.Known {
		return ""
	}
	return strconv.Itoa(value.Value)
}

// addKnown adds a number if it is known; addMaybe is the same for what is so or not.
func addKnown[T int | uint32 | uint64 | float64](p *page, f *family, value sysread.Maybe[T], labels labels) {
	if value.Known {
		p.add(f, float64(value.Value), labels)
	}
}

// showGPUValues shows what NVML says of a GPU.
func showGPUValues(p *page, g *gpu.GPU, at labels) {
	showXids(p, g.Xids, at)
	if g.Lost {
		return
	}
	if g.ResetRequired {
		p.add(gpuResetRequired, 1, at)
	}
	if !g.SlowRead.IsZero() {
		p.add(gpuSlowRead, float64(g.SlowRead.UnixMilli())/1000, at)
	}
	addKnown(p, gpuGeneration, g.PCIe.Generation, at)
	addKnown(p, gpuMaxGeneration, g.PCIe.MaxGeneration, at)
	addKnown(p, gpuHostMaxGeneration, g.PCIe.HostMaxGeneration, at)
	addKnown(p, gpuWidth, g.PCIe.Width, at)
	addKnown(p, gpuMaxWidth, g.PCIe.MaxWidth, at)
	addKnown(p, gpuReplays, g.PCIe.Replays, at)
	addKnown(p, gpuBAR1, g.BAR1.Total, at)
	addKnown(p, gpuBAR1Used, g.BAR1.Used, at)
	addKnown(p, gpuComputeMode, g.Modes.Compute, at)
	addMaybe(p, gpuMIG, g.Modes.MIG, at)
	addMaybe(p, gpuPersistence, g.Modes.Persistence, at)
	addKnown(p, gpuRecovery, g.RecoveryAction, at)
	addKnown(p, gpuMemoryFree, g.FB.Free, at)
	addKnown(p, gpuProcesses, g.Procs, at)
	addKnown(p, gpuC2C, g.C2CLinks, at)
}

func showXids(p *page, xids []gpu.Xid, at labels) {
	for _, xid := range xids {
		of := at.with("xid", strconv.FormatUint(xid.Code, 10))
		p.add(gpuXids, float64(xid.Count), of)
		if !xid.Last.IsZero() {
			p.add(gpuXidLast, float64(xid.Last.UnixMilli())/1000, of)
		}
	}
}

func showPairs(p *page, reading *gpu.Reading) {
	peers, lost := peerCounts{}, map[string]bool{}
	for i := range reading.GPUs {
		g := &reading.GPUs[i]
		if lost[g.Address] = g.Lost; !g.Lost && len(reading.Pairs) > 0 {
			peers.of(g.Address)
		}
	}
	for i := range reading.Pairs {
		pair := &reading.Pairs[i]
		at := pairs("gpu_address", pair.A, "peer_address", pair.B)
		if !lost[pair.A] && !lost[pair.B] { // a lost GPU is nobody's peer
			peers.add(pair)
		}
		if pair.P2P[gpu.P2PNVLink] != sysread.Some(0) {
			addKnown(p, gpuAncestor, pair.Ancestor, at)
		}
		for capability, status := range pair.P2P {
			if status.Value != 0 && (gpu.P2PCapability(capability) != gpu.P2PWrite || status != pair.P2P[gpu.P2PRead]) {
				addKnown(p, gpuP2P, status, at.with("capability", gpu.P2PCapability(capability).String()))
			}
		}
	}
	peers.show(p)
}

// peerCounts counts, by GPU and capability, the GPUs that it may reach; not known
// if one of them is not.
type peerCounts map[string]*[gpu.P2PCapabilities]sysread.Maybe[int]

// of returns a GPU's counts, 0 at first.
func (c peerCounts) of(address string) *[gpu.P2PCapabilities]sysread.Maybe[int] {
	if c[address] == nil {
		c[address] = &[gpu.P2PCapabilities]sysread.Maybe[int]{}
		for capability := range c[address] {
			c[address][capability].Known = true
		}
	}
	return c[address]
}

func (c peerCounts) add(pair *gpu.Pair) {
	for _, address := range []string{pair.A, pair.B} {
		counts := c.of(address)
		for capability, status := range pair.P2P {
			counts[capability].Known = counts[capability].Known && status.Known
			if status == sysread.Some(0) {
				counts[capability].Value++
			}
		}
	}
}

func (c peerCounts) show(p *page) {
	for _, address := range slices.Sorted(maps.Keys(c)) {
		for _, capability := range []gpu.P2PCapability{gpu.P2PRead, gpu.P2PNVLink} {
			addKnown(p, gpuP2PPeers, c[address][capability], pairs("gpu_address", address, "capability", capability.String()))
		}
	}
}

package collector

import (
	"strings"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu/driver"
)

// Families of peer memory. Loaded, registered, and detected by libraries are
// separate facts, and none of them proves that a registration works.
var (
	peermemLoaded = gauge("gdr_peermem_module_loaded",
		"1 if the peer memory module is at work (/sys/module/*/initstate is live). nv_peer_mem is the older module; the two exclude each other.")
	peermemAvailable = gauge("gdr_peermem_module_available",
		"1 if modprobe would find the module for the running kernel (modules.dep), 0 if not; no series where that cannot be told, as in a container that does not see the host's /lib/modules. 0 with the module loaded: it cannot be loaded again."+driverNote)
	peermemInfo = gauge("gdr_peermem_module_info",
		"Facts of a peer memory module that the kernel has, value 1: version, and state live, coming, going or builtin (empty: not known). One that stays coming or going is stuck.")
	peermemMismatch = gauge("gdr_peermem_version_mismatch",
		"1 if the peer memory module belongs to another version of the driver than the loaded one: a stale build. No series unless both versions are known.")
	peermemParameter = gauge("gdr_peermem_parameter",
		"Parameter of the module: peerdirect_support is 0 by default, 1 legacy (MLNX_OFED 4.9); persistent_api_support is 1 by default, 0 legacy. Either legacy value registers nv_mem_nc too.")
	peermemReferences = gauge("gdr_peermem_references",
		"Reference count of the module (refcnt): the memory regions registered through it now. That each holds one reference is inferred from its source.")
	peermemHooked = gauge("gdr_peermem_rdma_stack_holds",
		"1 if the loaded module is among the holders of the running ib_core or ib_uverbs, as one built against that RDMA stack is."+driverNote)
	peermemPeers = gauge("gdr_peermem_memory_peers_present",
		"1 if the RDMA stack has /sys/kernel/mm/memory_peers. MLNX_OFED and DOCA-OFED do; Ubuntu's and NVIDIA's kernels do not, and peer memory works there all the same.")
	peermemRegistered = gauge("gdr_peermem_client_registered",
		"1 if the peer memory client is registered with the RDMA stack (memory_peers/<client>). nv_mem is GPU memory, nv_mem_nc its legacy form, nvidia-fs GPUDirect Storage. No series where the stack has no such directory.")
	peermemOmitted = gauge("gdr_peermem_clients_omitted",
		"Clients beyond those shown.")
	peermemLive = gauge("gdr_peermem_client_live_mrs",
		"Memory regions of the client registered now (num_alloc_mrs less num_dealloc_mrs).")
	peermemMarker = gauge("gdr_peermem_marker_present",
		"1 if the file exists by which libraries tell that peer memory is available: /sys/kernel/mm/<marker>/version for memory_peers/..., /sys/<marker>/version for module/....")
	peermemDetects = gauge("gdr_peermem_library_detects",
		"1 if the library takes peer memory as available, by the files that its source looks for: nccl (2.23.4 and later), nccl_before_2.23.4, ucx, nvshmem, nvshmem_legacy (does not know /sys/module/nvidia_peermem). 0 does not rule out dma-buf, nor that registering works.")
)

// peermemCounters are the families of a client's counters by file.
var peermemCounters = map[string]*family{
	driver.FileAllocMRs: counter("gdr_peermem_client_alloc_mrs_total",
		"Memory regions of the client registered (num_alloc_mrs). Failures do not count. Starts again when the client's module is loaded."),
	driver.FileDeallocMRs: counter("gdr_peermem_client_dealloc_mrs_total",
		"Memory regions of the client unregistered, or invalidated by it (num_dealloc_mrs)."),
	driver.FileRegPages: counter("gdr_peermem_client_reg_pages_total",
		"Pages registered (num_reg_pages). GPU pages are of 64 KiB, not the host's 4 KiB."),
	driver.FileDeregPages: counter("gdr_peermem_client_dereg_pages_total",
		"Pages unregistered (num_dereg_pages), counted as gdr_peermem_client_reg_pages_total."),
	driver.FileRegBytes: counter("gdr_peermem_client_reg_bytes_total",
		"Bytes registered (num_reg_bytes)."),
	driver.FileDeregBytes: counter("gdr_peermem_client_dereg_bytes_total",
		"Bytes unregistered (num_dereg_bytes)."),
	driver.FileCallbacks: counter("gdr_peermem_client_free_callbacks_total",
		"Times GPU memory was freed under a registered memory region (num_free_callbacks). Stays 0 with persistent_api_support."),
}

// The module and the client that have series even where they are missing.
const (
	usualModule = "nvidia_peermem"
	usualClient = "nv_mem"
)

// showPeermem shows the state of nvidia-peermem.
func showPeermem(p *page, s *snapshot.Snapshot) {
	r := s.DriverState()
	if r == nil {
		return
	}
	for i := range r.Peermem {
		showPeerModule(p, r, &r.Peermem[i])
	}
	addMaybe(p, peermemPeers, r.MemoryPeers.Present, nil)
	showClients(p, &r.MemoryPeers)
	if !hasDriver(r) && !hasPeermem(r) {
		return
	}
	for _, marker := range driver.Markers {
		addMaybe(p, peermemMarker, r.Markers[marker], pairs("marker", strings.TrimPrefix(string(marker), "kernel/mm/")))
	}
	for i := range driver.Rules {
		rule := &driver.Rules[i]
		addMaybe(p, peermemDetects, rule.Detects(r.Markers), pairs("library", rule.Library))
	}
}

// hasPeermem reports whether there is anything of peer memory on the host.
func hasPeermem(r *driver.Reading) bool {
	for i := range r.Peermem {
		if r.Peermem[i].State != driver.StateAbsent || r.Peermem[i].OnDisk.Value {
			return true
		}
	}
	return r.MemoryPeers.Present.Value
}

func showPeerModule(p *page, r *driver.Reading, m *driver.PeerModule) {
	module := pairs("module", m.Name)
	addMaybe(p, peermemLoaded, m.Loaded(), module)
	if m.Name == usualModule || m.Present || m.OnDisk.Value {
		addMaybe(p, peermemAvailable, m.OnDisk, module)
	}
	if !m.Present {
		return
	}
	p.add(peermemInfo, 1, pairs("module", m.Name, "version", m.Version.Value, "state", string(m.State)))
	addMaybe(p, peermemMismatch, m.VersionMismatch(r.Version), module)
	for _, parameter := range m.Parameters {
		p.add(peermemParameter, float64(parameter.Value), module.with("parameter", parameter.Name))
	}
	if m.References.Known {
		p.add(peermemReferences, float64(m.References.Value), module)
	}
	addMaybe(p, peermemHooked, m.Hooked, module)
}

// showClients shows the clients of an RDMA stack that shows them.
func showClients(p *page, peers *driver.MemoryPeers) {
	if !peers.Present.Value {
		return
	}
	usual := false
	for i := range peers.Clients {
		c := &peers.Clients[i]
		usual = usual || c.Name == usualClient
		client := pairs("client", c.Name)
		p.add(peermemRegistered, 1, client)
		for file, value := range c.Counters {
			p.add(peermemCounters[file], float64(value), client)
		}
		if live := c.LiveMRs(); live.Known {
			p.add(peermemLive, float64(live.Value), client)
		}
	}
	if !usual && peers.Omitted == 0 {
		p.add(peermemRegistered, 0, pairs("client", usualClient))
	}
	if peers.Omitted > 0 {
		p.add(peermemOmitted, float64(peers.Omitted), nil)
	}
}

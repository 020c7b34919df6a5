package diagnosis

import (
	"time"

	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma/loopback"
)

// Rules about registering GPU memory.
const (
	idPeermemNotLoaded    = "peermem_not_loaded"
	idPeermemNotInstalled = "peermem_not_installed"
	idPeermemNoReload     = "peermem_not_reloadable"
	idPeermemBoth         = "peermem_both_modules"
	idPeermemStale        = "peermem_stale"
	idPeermemABI          = "peermem_abi_mismatch"
	idPeermemUnregistered = "peermem_unregistered"
	idPeermemStuck        = "peermem_stuck"
	idPeermemRefused      = "peermem_refused"
	idPeermemErrors       = "peermem_errors"
	idPeermemOnly         = "peermem_only"
	idDMABufOnly          = "dmabuf_only"
	idTopologyGate        = "driver_topology_gate"
	idRegisterMemory      = "registration_memory"
)

var peermemRules = []rule{
	{Rule: Rule{idPeermemABI, SeverityWarning, "nvidia-peermem was built for another RDMA stack",
		"Rebuild and reinstall the NVIDIA driver's kernel modules after the RDMA stack (MLNX_OFED, DOCA-OFED), then load nvidia-peermem; with the GPU operator restart the driver pod with a forced reinstall."},
		needs: []need{needKernelLog, needDriver}, judge: judgePeermemABI},
	{Rule: Rule{idPeermemStale, SeverityWarning, "nvidia-peermem is of another driver version than the loaded driver",
		"A stale build: unload nvidia_peermem and load the one of the running driver, or reboot after the upgrade."},
		needs: []need{needDriver}, judge: judgePeermemStale},
	{Rule: Rule{idPeermemBoth, SeverityWarning, "nvidia_peermem and nv_peer_mem are both loaded",
		"They exclude each other: remove the old nv_peer_mem package and unload nv_peer_mem."},
		needs: []need{needDriver}, judge: judgePeermemBoth},
	{Rule: Rule{idPeermemUnregistered, SeverityWarning, "nvidia-peermem is loaded and the RDMA stack does not know it",
		"It was built without, or for another, peer memory API: rebuild the driver's modules against the running RDMA stack and load it again."},
		needs: []need{needDriver}, judge: judgePeermemUnregistered},
	{Rule: Rule{idPeermemNotInstalled, SeverityWarning, "no peer memory module, and GPU memory cannot be registered",
		"nvidia-peermem is not on disk for the running kernel: reinstall or rebuild the driver's modules for this kernel; or use the open driver with a kernel and NIC that register dma-bufs."},
		needs: []need{needDriver}, judge: judgePeermemAbsent(true)},
	{Rule: Rule{idPeermemNotLoaded, SeverityWarning, "nvidia-peermem is not loaded, and GPU memory cannot be registered",
		"modprobe nvidia-peermem, and have it loaded at boot (/etc/modules-load.d); or use the open driver with a kernel and NIC that register dma-bufs."},
		needs: []need{needDriver}, judge: judgePeermemAbsent(false)},
	{Rule: Rule{idPeermemRefused, SeverityWarning, "a loaded nvidia-peermem does not take GPU memory",
		"EFAULT with the module loaded: it is of another ABI, or the GPU does not support it (attribute 116), or the memory is not of a kind that can be registered. See the kernel log."},
		needs: []need{needDriver}, judge: judgePeermemRefused},
	{Rule: Rule{idTopologyGate, SeverityWarning, "the NVIDIA driver refuses GPU and NIC each other by the PCIe topology",
		"It allows peer access below a common PCIe switch, and on platforms it knows. After a review of the platform the driver option GrdmaPciTopoCheckOverride=1 allows it; check IOMMU groups."},
		judge: judgeTopologyGate},
	{Rule: Rule{idRegisterMemory, SeverityWarning, "GPU memory of 2 MiB cannot be registered for lack of memory",
		"ENOMEM: the limit of locked memory, a used-up BAR1, or the NIC's translation tables. Check ulimit -l of jobs (unlimited, or CAP_IPC_LOCK), and BAR1 use in nvidia-smi -q."},
		judge: judgeRegisterMemory},
	{Rule: Rule{idPeermemErrors, SeverityWarning, "the kernel log has errors of nvidia-peermem",
		"Registration of GPU memory failed in the kernel within the last hour: the line says which call. Unaligned or freed GPU memory comes from the job, others from driver or ABI."},
		needs: []need{needKernelLog}, judge: judgePeermemErrors},
	{Rule: Rule{idPeermemStuck, SeverityWarning, "the peer memory module hangs while it is loaded or unloaded",
		"modprobe or rmmod does not end: see the kernel log; a reboot is usually needed."},
		needs: []need{needDriver}, after: time.Minute, judge: judgePeermemStuck},
	{Rule: Rule{idPeermemNoReload, SeverityInfo, "the loaded peer memory module could not be loaded again",
		"It works until it is unloaded: modules.dep of the running kernel does not list it, as after a driver or RDMA stack upgrade. Rebuild the modules before the next restart."},
		needs: []need{needDriver}, judge: judgePeermemNoReload},
	{Rule: Rule{idDMABufOnly, SeverityInfo, "GPU memory is registered as dma-buf only",
		"Fine for NCCL 2.13 and later and UCX. What uses plain ibv_reg_mr on GPU memory (perftest without --use_cuda_dmabuf, old NVSHMEM) fails."},
		judge: judgeOnly(loopback.MethodDMABuf, loopback.MethodPeermem)},
	{Rule: Rule{idPeermemOnly, SeverityInfo, "GPU memory is registered through peer memory only",
		"Fine. dma-buf needs the open driver (CUDA 11.7 or later), a kernel with the verb and a NIC driver that has it."},
		judge: judgeOnly(loopback.MethodPeermem, loopback.MethodDMABuf)},
}

// need of registration is told of pairs whose GPU memory no run could register and
// that are not direct by other evidence.
func (n *node) needsPeermem() *way {
	var staged *way
	n.expected(func(p *way) {
		if staged == nil && p.State == StateStaged && !worked(p.tried(), loopback.MethodDMABuf) && !worked(p.tried(), loopback.MethodPeermem) {
			staged = p
		}
	})
	return staged
}

// unsettled reports whether an expected pair is not known to work: what could
// explain that is then worth telling.
func (n *node) unsettled() bool {
	found := false
	n.expected(func(p *way) { found = found || !p.proven() })
	return found
}

// peerModules says whether any peer memory module is loaded, and whether one could
// be; unknown where that cannot be told.
func peerModules(d *driver.Reading) (loaded, onDisk sysread.Maybe[bool]) {
	loaded, onDisk = sysread.Some(false), sysread.Some(false)
	for i := range d.Peermem {
		m := &d.Peermem[i]
		loaded = either(loaded, m.Loaded())
		onDisk = either(onDisk, m.OnDisk)
	}
	return loaded, onDisk
}

// either is true if one of two is, and unknown if neither is and one is unknown.
func either(a, b sysread.Maybe[bool]) sysread.Maybe[bool] {
	if a.Value || b.Value {
		return sysread.Some(true)
	}
	return sysread.Maybe[bool]{Known: a.Known && b.Known}
}

// judgePeermemAbsent judges that no module is loaded where one is needed. Its
// absence alone is nothing: dma-buf needs none.
func judgePeermemAbsent(alsoFromDisk bool) func(*node, *judging) {
	return func(n *node, j *judging) {
		loaded, onDisk := peerModules(n.driver)
		fromDisk := onDisk.Known && !onDisk.Value
		if loaded.Value || fromDisk != alsoFromDisk {
			return
		}
		if !loaded.Known {
			j.lack("whether a peer memory module is loaded cannot be read")
			return
		}
		if p := n.needsPeermem(); p != nil {
			where := "on disk"
			switch {
			case fromDisk:
				where = "not on disk for kernel " + n.driver.Kernel.Value
			case !onDisk.Known:
				where = "whether it is on disk cannot be seen from here"
			}
			j.find(Subject{}, "neither nvidia_peermem nor nv_peer_mem is loaded (%s); pair %s %s: %s", where, p.GPU, p.Device, joined(p.Reasons))
			return
		}
		n.expected(func(p *way) {
			if p.State == StateUnknown {
				j.lack("no peer memory module is loaded, and whether dma-buf works is not known: no run stands")
			}
		})
	}
}

func judgePeermemABI(n *node, j *judging) {
	loaded, _ := peerModules(n.driver)
	event, there := n.log.Last[kmsg.PeermemSymbols]
	if there && loaded.Known && !loaded.Value {
		j.find(Subject{}, "kernel log of %s: %s", stamp(event.Time), event.Text)
	}
}

func judgePeermemStale(n *node, j *judging) {
	for i := range n.driver.Peermem {
		if m := &n.driver.Peermem[i]; m.Loaded().Value && m.VersionMismatch(n.driver.Version).Value {
			j.find(Subject{Other: m.Name}, "%s is of version %s, the driver of version %s", m.Name, m.Version.Value, n.driver.Version.Value)
		}
	}
}

func judgePeermemBoth(n *node, j *judging) {
	count := 0
	for i := range n.driver.Peermem {
		if n.driver.Peermem[i].Loaded().Value {
			count++
		}
	}
	if count > 1 {
		j.find(Subject{}, "%d peer memory modules are loaded", count)
	}
}

func judgePeermemUnregistered(n *node, j *judging) {
	for i := range n.driver.Peermem {
		m := &n.driver.Peermem[i]
		if why := n.unregistered(m); m.Loaded().Value && why != "" && n.unsettled() {
			j.find(Subject{Other: m.Name}, "%s", why)
		}
	}
}

func judgePeermemStuck(n *node, j *judging) {
	for i := range n.driver.Peermem {
		if m := &n.driver.Peermem[i]; m.State == driver.StateComing || m.State == driver.StateGoing {
			j.find(Subject{Other: m.Name}, "%s is %s", m.Name, m.State)
		}
	}
}

func judgePeermemNoReload(n *node, j *judging) {
	for i := range n.driver.Peermem {
		if m := &n.driver.Peermem[i]; m.State == driver.StateLive && m.OnDisk.Known && !m.OnDisk.Value {
			j.find(Subject{Other: m.Name}, "%s is loaded, and not on disk for kernel %s", m.Name, n.driver.Kernel.Value)
		}
	}
}

// judgePeermemRefused: no peer client took GPU memory although the module is there.
func judgePeermemRefused(n *node, j *judging) {
	loaded, _ := peerModules(n.driver)
	if !loaded.Value {
		return
	}
	n.expected(func(p *way) {
		if err := p.failedBy(loopback.MethodPeermem); p.State == StateStaged && sysread.ErrnoName(err) == "EFAULT" {
			j.find(p.subject(), "%v", err)
		}
	})
}

func judgeTopologyGate(n *node, j *judging) {
	n.expected(func(p *way) {
		if p.proven() {
			return
		}
		for _, method := range []loopback.Method{loopback.MethodPeermem, loopback.MethodDMABuf} {
			if err := p.failedBy(method); err != nil && sysread.ErrnoName(err) == "ENOTSUPP" {
				j.find(p.subject(), "%s: %v%s", method, err, n.groups(p))
				return
			}
		}
	})
	if len(j.found) > 0 || n.log == nil || !n.unsettled() {
		return
	}
	if event, there := n.log.Last[kmsg.DMABufTopology]; there {
		j.find(Subject{}, "kernel log of %s: %s", stamp(event.Time), event.Text)
	}
}

// groups says that GPU and NIC are in different IOMMU groups, "" if they are not.
func (n *node) groups(p *way) string {
	if p.tree == nil {
		return ""
	}
	gpu, nic := n.functions[p.GPU], n.functions[p.tree.NIC]
	if gpu == nil || nic == nil || gpu.IOMMUGroup == nic.IOMMUGroup {
		return ""
	}
	return "; IOMMU groups " + gpu.IOMMUGroup + " and " + nic.IOMMUGroup
}

func judgeRegisterMemory(n *node, j *judging) {
	n.expected(func(p *way) {
		peermem, dmabuf := p.failedBy(loopback.MethodPeermem), p.failedBy(loopback.MethodDMABuf)
		if p.State == StateStaged && (sysread.ErrnoName(peermem) == "ENOMEM" || sysread.ErrnoName(dmabuf) == "ENOMEM") {
			j.find(p.subject(), "%s", joined(p.Reasons))
		}
	})
}

func judgePeermemErrors(n *node, j *judging) {
	for _, pattern := range []kmsg.Pattern{kmsg.PeermemError, kmsg.P2PInvalid} {
		if event, there := n.log.Last[pattern]; there && n.recent(event.Time, time.Hour) {
			j.find(Subject{Other: string(pattern)}, "kernel log of %s: %s", stamp(event.Time), event.Text)
		}
	}
}

// judgeOnly says that one method works and the other does not, once for the node.
func judgeOnly(works, fails loopback.Method) func(*node, *judging) {
	return func(n *node, j *judging) {
		count, example := 0, (*way)(nil)
		n.expected(func(p *way) {
			if worked(p.tried(), works) && p.failedBy(fails) != nil {
				if count++; example == nil {
					example = p
				}
			}
		})
		if example != nil {
			j.find(Subject{}, "on %d expected pairs; by %s: %v", count, fails, example.failedBy(fails))
		}
	}
}

// recent reports whether a time lies within the last span; one that is unknown
// does not.
func (n *node) recent(at time.Time, span time.Duration) bool {
	return !at.IsZero() && n.now.Sub(at) < span
}

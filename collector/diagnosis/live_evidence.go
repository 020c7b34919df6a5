package diagnosis

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
)

// liveLook is what a Snapshot says of the whole host, found once for all devices.
type liveLook struct {
	s     *snapshot.Snapshot
	now   time.Time
	again bool // the Snapshot was looked at before
	// suspectAfter and flow are those of the history.
	suspectAfter time.Duration
	flow         float64
	// moved are the bytes that measurements moved, by device; ownKnown: that is known.
	moved    map[string]uint64
	ownKnown bool
	// near are the devices near enough to some GPU.
	near map[string]bool
	// pids are the processes that use GPUs; pidsMissing says which are not known,
	// "" if all are.
	pids        map[int]bool
	pidsMissing string
	// c2c: GPUs share the address space of the processor, so that programs register
	// their memory as if it were the host's.
	c2c bool
	// hostPID: ids of processes are the host's.
	hostPID sysread.Maybe[bool]
	// registering is the only device that has memory registered, "" if several or
	// none have.
	registering string
	evidence    liveEvidence
}

// liveEvidence is what is registered of GPU memory on the host.
type liveEvidence struct {
	regions   uint64 // through peer memory
	missing   []string
	elsewhere string // that something is, "" if nothing is known to be
	buffers   []driver.DMABuf
}

func newLiveLook(s *snapshot.Snapshot, last time.Time) *liveLook {
	l := &liveLook{s: s, now: s.Taken, again: !last.IsZero() && s.Taken.Equal(last), near: map[string]bool{}, pids: map[int]bool{}}
	if ledger := s.ProbeLedger(); ledger != nil {
		l.moved, l.ownKnown = ledger.Transferred, true
	} else {
		l.ownKnown = s.Probe == nil
	}
	for i := range s.Affinity.Listing.Pairs {
		if pair := &s.Affinity.Listing.Pairs[i]; pair.Distance.Direct() {
			l.near[pair.Device] = true
		}
	}
	l.findProcesses()
	l.findNamespace()
	l.registering = onlyRegistering(s)
	l.evidence = evidenceOfGPUMemory(s.DriverState())
	return l
}

func (l *liveLook) own(device string) uint64 { return l.moved[device] }

// findProcesses finds the processes that use GPUs. Those of a lost GPU are gone or
// soon will be.
func (l *liveLook) findProcesses() {
	nvml := l.s.NVML()
	if nvml == nil || nvml.State != gpu.StateUp {
		for i := range l.s.Affinity.Listing.Functions {
			if l.s.Affinity.Listing.Functions[i].Kind == affinity.KindGPU {
				l.pidsMissing = "which processes use GPUs is not known: NVML does not answer"
				return
			}
		}
		return
	}
	for i := range nvml.GPUs {
		g := &nvml.GPUs[i]
		l.c2c = l.c2c || g.C2CLinks.Value > 0
		if !g.PIDs.Known && !g.Lost {
			l.pidsMissing = "which processes use GPU " + g.Address + " is not known: NVML does not tell"
		}
		for _, pid := range g.PIDs.Value {
			l.pids[pid] = true
		}
	}
	if nvml.Hidden > 0 {
		l.pidsMissing = fmt.Sprintf("which processes use %d more GPUs is not known: this container may not see them", nvml.Hidden)
	}
}

// findNamespace finds out whose ids of processes are seen.
func (l *liveLook) findNamespace() {
	if host := l.s.HostState(); host != nil && host.Context.HostPID.Known {
		l.hostPID = host.Context.HostPID
		return
	}
	if processes := l.s.ProcessState(); processes != nil {
		l.hostPID = processes.Visible
	}
}

// onlyRegistering returns the only device, of whatever role, that has memory
// registered; "" also if that is not known of one.
func onlyRegistering(s *snapshot.Snapshot) string {
	only := ""
	for i := range s.RDMA.Units {
		device := s.RDMA.Units[i].Data
		switch {
		case device == nil || !device.Usage.Memory.Known:
			return ""
		case device.Usage.Memory.Value.Regions == 0:
		case only != "":
			return ""
		default:
			only = device.Name
		}
	}
	return only
}

// evidenceOfGPUMemory says what is registered on the host. What is of GPUDirect
// Storage (client nvidia-fs) does not count.
func evidenceOfGPUMemory(r *driver.Reading) liveEvidence {
	if r == nil {
		return liveEvidence{missing: []string{"what is registered of GPU memory is not known: the driver's files were not read"}}
	}
	var e liveEvidence
	regions, why := peermemRegions(r)
	e.regions = regions.Value
	switch {
	case !regions.Known:
		e.missing = append(e.missing, why)
	case regions.Value > 0:
		e.elsewhere = fmt.Sprintf("%d memory regions are registered through peer memory on this host", regions.Value)
	case why != "":
		e.elsewhere = why
	}
	switch {
	case r.DMABufs.Known:
		e.buffers = r.DMABufs.Value
		if n := len(e.buffers); n > 0 && e.elsewhere == "" {
			e.elsewhere = fmt.Sprintf("%d dma-bufs of GPU memory exist on this host", n)
		}
	case !r.Loaded.Known || r.Loaded.Value:
		e.missing = append(e.missing, "dma-bufs are not known: /sys/kernel/debug/dma_buf/bufinfo cannot be read, which needs root and debugfs")
	}
	return e
}

// peermemRegions returns how many memory regions are registered through peer
// memory: what the RDMA stack counts, else the module's references. why says what
// is missing, or that the two contradict each other.
func peermemRegions(r *driver.Reading) (regions sysread.Maybe[uint64], why string) {
	for i := range r.MemoryPeers.Clients {
		client := &r.MemoryPeers.Clients[i]
		if live := client.LiveMRs(); live.Known && (client.Name == "nv_mem" || client.Name == "nv_mem_nc") {
			regions = sysread.Some(regions.Value + live.Value)
		}
	}
	var references uint64
	for i := range r.Peermem {
		m := &r.Peermem[i]
		switch loaded := m.Loaded(); {
		case !loaded.Known:
			why = "whether " + m.Name + " is loaded is not known"
		case loaded.Value && !m.References.Known:
			why = "the reference count of " + m.Name + " cannot be read"
		case loaded.Value:
			references += m.References.Value
		}
	}
	switch {
	case regions.Known && regions.Value == 0 && references > 0:
		return regions, fmt.Sprintf("the peer memory module has %d references, though no memory region is counted", references)
	case regions.Known:
		return regions, ""
	case why != "" || len(r.Peermem) == 0:
		return regions, "what is registered through peer memory is not known: " + cmp.Or(why, "its modules were not read")
	}
	return sysread.Some(references), ""
}

// liveJob is what processes that use GPUs hold of a device.
type liveJob struct {
	empty bool // nobody holds anything
	none  bool // nobody who uses a GPU does
	known bool // somebody does: the rest tells what
	// missing says why none of this is known.
	missing string

	processes                int
	pid                      int // the one with the most memory
	contexts, regions, bytes uint64
}

// text is a job in words.
func (j *liveJob) text() string {
	who := fmt.Sprintf("process %d, which uses a GPU,", j.pid)
	if j.processes > 1 {
		who = fmt.Sprintf("%d processes that use GPUs, one of them %d,", j.processes, j.pid)
	}
	if j.regions == 0 {
		return who + " has the device open and no memory registered that the kernel shows"
	}
	return fmt.Sprintf("%s has %d memory regions of %s registered", who, j.regions, size(j.bytes))
}

// jobOf joins who holds a device with who uses GPUs.
func (l *liveLook) jobOf(device *rdma.Device) liveJob {
	usage := &device.Usage
	if usage.Contexts.Known && usage.Contexts.Value == 0 {
		// What is registered all the same is the kernel's own.
		return liveJob{none: true, empty: usage.Memory.Known && usage.Memory.Value.Regions == 0}
	}
	switch {
	case !usage.Owners.Known:
		return liveJob{missing: "who has the device open is not known: RDMA netlink does not tell"}
	case l.hostPID.Known && !l.hostPID.Value:
		return liveJob{missing: "who has the device open is not known: that needs the host's PID namespace (hostPID)"}
	}
	var job liveJob
	var most, seen uint64
	for i := range usage.Owners.Value {
		owner := &usage.Owners.Value[i]
		seen += owner.Contexts
		if !l.pids[owner.PID] {
			continue
		}
		job.known = true
		job.processes++
		job.contexts += owner.Contexts
		job.regions += owner.Regions
		job.bytes += owner.Bytes
		if job.pid == 0 || owner.Bytes > most {
			job.pid, most = owner.PID, owner.Bytes
		}
	}
	switch {
	case job.known:
	case l.pidsMissing != "":
		job.missing = l.pidsMissing
	case usage.Omitted.Contexts > 0:
		job.missing = "not all processes that have the device open are known: there are too many"
	case !l.hostPID.Value && (!usage.Contexts.Known || seen < usage.Contexts.Value):
		job.missing = "not all processes that have the device open are seen: that needs the host's PID namespace (hostPID)"
	default:
		job.none = true
	}
	return job
}

// registered says by what GPU memory is registered with a device, "" if nothing
// is known to be.
func (l *liveLook) registered(device *rdma.Device, job *liveJob) string {
	if attached, bytes := l.attached(device, job); attached > 0 {
		return fmt.Sprintf("%d dma-bufs of GPU memory, %s, are attached to it", attached, size(bytes))
	}
	switch {
	case l.evidence.regions == 0:
	case job.known && job.regions > 0:
		return fmt.Sprintf("%d memory regions are registered through peer memory on this host, and %s; which regions are of GPU memory the kernel does not show", l.evidence.regions, job.text())
	case !job.none && l.registering == device.Name:
		return fmt.Sprintf("%d memory regions are registered through peer memory on this host, and no other device has any", l.evidence.regions)
	}
	return ""
}

// attached counts the dma-bufs that are attached to a device, and their bytes. Of
// a data-direct function nobody can tell whose it is, nor of a sub-function by its
// name on the auxiliary bus: they count for a device on which a job has memory.
func (l *liveLook) attached(device *rdma.Device, job *liveJob) (count int, bytes uint64) {
	others := job.known && job.regions > 0
	for i := range l.evidence.buffers {
		buffer := &l.evidence.buffers[i]
		for _, name := range buffer.Attached {
			mine := device.PCIAddress != "" && name == device.PCIAddress && device.Function != rdma.FunctionSub
			if mine || others && (l.dataDirect(device, name) || device.Function == rdma.FunctionSub && strings.Contains(name, ".sf.")) {
				count++
				bytes += buffer.Bytes
				break
			}
		}
	}
	return count, bytes
}

// dataDirect reports whether an address is that of a data-direct function, and the
// device one that may have it.
func (l *liveLook) dataDirect(device *rdma.Device, address string) bool {
	listing := &l.s.Affinity.Listing
	for _, function := range listing.DataDirect {
		if function != address {
			continue
		}
		for i := range listing.Functions {
			if node := &listing.Functions[i]; node.Address == device.PCIAddress {
				return node.DataDirect
			}
		}
	}
	return false
}

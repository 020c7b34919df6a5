package gpu

import (
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
)

// device is one GPU between reads.
type device struct {
	handle         Device
	index          int
	address, busID string
	// fixed is what does not change; a value that could not be read is asked for
	// again with the next slow group.
	fixed struct {
		uuid, name, vbios                          sysread.Maybe[string]
		architecture                               sysread.Maybe[nvml.DeviceArchitecture]
		capability, virtualization, cpus           sysread.Maybe[string]
		numa                                       sysread.Maybe[int]
		memoryAffinity                             bool // it was asked for
		c2c                                        sysread.Maybe[uint64]
		maxGeneration, hostMaxGeneration, maxWidth sysread.Maybe[int]
	}
	// slow is what the slow group gave last.
	slow   GPU
	slowAt time.Time // when the slow group is due
	links  links
	fabric fabricVersion
	lost   sysread.Backoff
	// asked: its events were asked for; events: they will come.
	asked, events bool
	// wasLost: the last read found it lost.
	wasLost bool
}

// read reads the GPU. What was read of it before it was lost is not shown.
func (r *Reader) readGPU(now time.Time, d *device) (GPU, *visit) {
	v := &visit{calls: &r.calls, address: d.address}
	if d.wasLost && d.lost.Waiting(now) {
		v.lost = true
	}
	slow := !v.lost && !now.Before(d.slowAt)
	gpu := GPU{}
	// What a lost GPU is asked first costs little.
	r.readFast(v, d, &gpu)
	if slow && !v.lost && !v.down {
		r.readSlow(now, v, d)
	}
	if !v.lost {
		gpu.merge(&d.slow)
		if r.options.NVLink && !v.down {
			d.links.readCounters(now, r.options.SlowInterval, v, d.handle, &gpu.NVLink, d.fixed.architecture, r.options.PerLink)
		}
	}
	if v.lost {
		gpu = GPU{Lost: true}
		d.slowAt = time.Time{}
	}
	d.noteLost(now, v)
	gpu.Address, gpu.BusID, gpu.Index = d.address, d.busID, d.index
	gpu.Identity, gpu.ResetRequired = d.identity(), v.resetRequired
	return gpu, v
}

// noteLost spaces out attempts at a lost GPU.
func (d *device) noteLost(now time.Time, v *visit) {
	switch {
	case !v.lost && !v.down:
		d.lost.Reset()
		d.wasLost = false
	case v.lost && !d.lost.Waiting(now):
		d.lost.Refuse(now, 0, lostFirst, lostMost)
		d.wasLost = true
	}
}

// merge adds what the slow group gave.
func (g *GPU) merge(slow *GPU) {
	g.SlowRead, g.Modes, g.BAR1 = slow.SlowRead, slow.Modes, slow.BAR1
	g.PCIe = slow.PCIe
	g.Minor, g.Instances = slow.Minor, slow.Instances
	g.NVLink.merge(&slow.NVLink)
}

// readFast reads what every read shows: about ten calls, each well below a
// millisecond.
func (r *Reader) readFast(v *visit, d *device, g *GPU) {
	if memory := ask(v, "nvmlDeviceGetMemoryInfo", d.handle.GetMemoryInfo); memory.Known {
		g.FB = Memory{sysread.Some(memory.Value.Total), sysread.Some(memory.Value.Used), sysread.Some(memory.Value.Free)}
	}
	if processes := ask(v, "nvmlDeviceGetComputeRunningProcesses", d.handle.GetComputeRunningProcesses); processes.Known {
		g.Procs, g.PIDs = sysread.Some(len(processes.Value)), pidsOf(processes.Value)
	}
	wanted := []field{{id: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if r.options.NVLink {
		wanted = append(wanted, d.links.stateFields()...)
	}
	values := v.fields(d.handle, wanted)
	g.RecoveryAction = values[0]
	if r.options.NVLink {
		g.NVLink = d.links.readStates(v, d.handle, values[1:])
	}
	if r.options.Fabric {
		g.Fabric = d.readFabric(v)
	}
}

// pidsOf returns the ids of processes; not known if one has none, as in recordings
// of earlier versions.
func pidsOf(processes []nvml.ProcessInfo) sysread.Maybe[[]int] {
	pids := make([]int, 0, len(processes))
	for i := range processes {
		if processes[i].Pid == 0 {
			return sysread.Maybe[[]int]{}
		}
		pids = append(pids, int(processes[i].Pid))
	}
	slices.Sort(pids)
	return sysread.Some(slices.Compact(pids))
}

// readSlow reads what costs milliseconds or rarely changes.
func (r *Reader) readSlow(now time.Time, v *visit, d *device) {
	d.readFixed(v)
	slow := GPU{SlowRead: now}
	slow.PCIe = d.readPCIe(v)
	if bar1 := ask(v, "nvmlDeviceGetBAR1MemoryInfo", d.handle.GetBAR1MemoryInfo); bar1.Known {
		slow.BAR1 = Memory{sysread.Some(bar1.Value.Bar1Total), sysread.Some(bar1.Value.Bar1Used), sysread.Some(bar1.Value.Bar1Free)}
	}
	if mode := ask(v, "nvmlDeviceGetComputeMode", d.handle.GetComputeMode); mode.Known {
		slow.Modes.Compute = sysread.Some(int(mode.Value))
	}
	mig := ask(v, "nvmlDeviceGetMigMode", func() (int, nvml.Return) {
		current, _, ret := d.handle.GetMigMode()
		return current, ret
	})
	if mig.Known {
		slow.Modes.MIG = sysread.Some(mig.Value == nvml.DEVICE_MIG_ENABLE)
	}
	if mode := ask(v, "nvmlDeviceGetPersistenceMode", d.handle.GetPersistenceMode); mode.Known {
		slow.Modes.Persistence = sysread.Some(mode.Value == nvml.FEATURE_ENABLED)
	}
	if r.options.NVLink {
		slow.NVLink = d.links.readSlow(v, d.handle)
	}
	if r.options.Holders {
		d.readHolders(v, &slow)
	}
	d.slow = slow
	d.slowAt = r.slowDue(now, d)
}

// slowDue spreads the slow groups of the GPUs over the interval, so that no
// scrape pays for all of them but the first.
func (r *Reader) slowDue(now time.Time, d *device) time.Time {
	if !d.slowAt.IsZero() || len(r.devices) == 0 {
		return now.Add(r.options.SlowInterval)
	}
	for i, other := range r.devices {
		if other == d {
			return now.Add(r.options.SlowInterval * time.Duration(i+1) / time.Duration(len(r.devices)))
		}
	}
	return now.Add(r.options.SlowInterval)
}

// once asks for what does not change, unless it is known already.
func once[T any](v *visit, known *sysread.Maybe[T], call string, f func() (T, nvml.Return)) {
	if !known.Known {
		*known = ask(v, call, f)
	}
}

// Sizes of the bit sets that NVML fills: as many processors and NUMA nodes as a
// kernel may be built for.
const (
	maxCPUs  = 8192
	maxNodes = 1024
)

func (d *device) readFixed(v *visit) {
	f := &d.fixed
	once(v, &f.uuid, "nvmlDeviceGetUUID", d.handle.GetUUID)
	once(v, &f.name, "nvmlDeviceGetName", d.handle.GetName)
	once(v, &f.vbios, "nvmlDeviceGetVbiosVersion", d.handle.GetVbiosVersion)
	once(v, &f.architecture, "nvmlDeviceGetArchitecture", d.handle.GetArchitecture)
	once(v, &f.capability, "nvmlDeviceGetCudaComputeCapability", func() (string, nvml.Return) {
		major, minor, ret := d.handle.GetCudaComputeCapability()
		return fmt.Sprintf("%d.%d", major, minor), ret
	})
	once(v, &f.virtualization, "nvmlDeviceGetVirtualizationMode", func() (string, nvml.Return) {
		mode, ret := d.handle.GetVirtualizationMode()
		return virtualization(mode), ret
	})
	once(v, &f.cpus, "nvmlDeviceGetCpuAffinity", func() (string, nvml.Return) {
		words, ret := d.handle.GetCpuAffinity(maxCPUs / 8) // go-nvml takes a word for 8 processors
		return bitList(words), ret
	})
	if !f.memoryAffinity { // 12 ms or more: asked for once, whatever comes, as is C2C
		f.memoryAffinity = true
		nodes := ask(v, "nvmlDeviceGetMemoryAffinity", func() ([]uint, nvml.Return) {
			return d.handle.GetMemoryAffinity(maxNodes/8, nvml.AFFINITY_SCOPE_NODE)
		})
		f.numa = oneBit(nodes.Value)
		f.c2c = v.fields(d.handle, []field{{id: nvml.FI_DEV_C2C_LINK_COUNT}})[0]
	}
}

// oneBit returns the set bit of a set of one.
func oneBit(words []uint) sysread.Maybe[int] {
	var node int
	if n, err := fmt.Sscanf(bitList(words)+" ", "%d ", &node); n != 1 || err != nil {
		return sysread.Maybe[int]{}
	}
	if bitList(words) != fmt.Sprint(node) {
		return sysread.Maybe[int]{}
	}
	return sysread.Some(node)
}

func (d *device) identity() Identity {
	f := &d.fixed
	return Identity{
		UUID: f.uuid.Value, Name: f.name.Value, VBIOS: f.vbios.Value,
		Architecture: architecture(f.architecture), ComputeCapability: f.capability.Value,
		Virtualization: f.virtualization.Value, CPUAffinity: f.cpus.Value, NUMANode: f.numa, C2CLinks: f.c2c,
	}
}

// readPCIe reads the PCIe link. NVML throughput is never asked for: a sample
// takes 20 ms.
func (d *device) readPCIe(v *visit) PCIe {
	f := &d.fixed
	once(v, &f.maxGeneration, "nvmlDeviceGetGpuMaxPcieLinkGeneration", d.handle.GetGpuMaxPcieLinkGeneration)
	once(v, &f.hostMaxGeneration, "nvmlDeviceGetMaxPcieLinkGeneration", d.handle.GetMaxPcieLinkGeneration)
	once(v, &f.maxWidth, "nvmlDeviceGetMaxPcieLinkWidth", d.handle.GetMaxPcieLinkWidth)
	return PCIe{
		Generation:    positive(ask(v, "nvmlDeviceGetCurrPcieLinkGeneration", d.handle.GetCurrPcieLinkGeneration)),
		Width:         positive(ask(v, "nvmlDeviceGetCurrPcieLinkWidth", d.handle.GetCurrPcieLinkWidth)),
		MaxGeneration: positive(f.maxGeneration), HostMaxGeneration: positive(f.hostMaxGeneration), MaxWidth: positive(f.maxWidth),
		Replays: ask(v, "nvmlDeviceGetPcieReplayCounter", d.handle.GetPcieReplayCounter),
	}
}

// positive takes 0 for not known: there is no link of generation or width 0.
func positive(value sysread.Maybe[int]) sysread.Maybe[int] {
	if value.Value <= 0 {
		return sysread.Maybe[int]{}
	}
	return value
}

// architectures are NVML_DEVICE_ARCH_*.
var architectures = map[nvml.DeviceArchitecture]string{
	nvml.DEVICE_ARCH_KEPLER: "kepler", nvml.DEVICE_ARCH_MAXWELL: "maxwell", nvml.DEVICE_ARCH_PASCAL: "pascal",
	nvml.DEVICE_ARCH_VOLTA: "volta", nvml.DEVICE_ARCH_TURING: "turing", nvml.DEVICE_ARCH_AMPERE: "ampere",
	nvml.DEVICE_ARCH_ADA: "ada", nvml.DEVICE_ARCH_HOPPER: "hopper", nvml.DEVICE_ARCH_BLACKWELL: "blackwell",
	nvml.DEVICE_ARCH_DLA: "dla", nvml.DEVICE_ARCH_DLA2: "dla2", nvml.DEVICE_ARCH_RUBIN: "rubin", nvml.DEVICE_ARCH_NPU3: "npu3",
}

func architecture(arch sysread.Maybe[nvml.DeviceArchitecture]) string {
	if !arch.Known || arch.Value == nvml.DEVICE_ARCH_UNKNOWN {
		return ""
	}
	if name := architectures[arch.Value]; name != "" {
		return name
	}
	return fmt.Sprintf("unknown_%d", arch.Value)
}

func virtualization(mode nvml.GpuVirtualizationMode) string {
	switch mode {
	case nvml.GPU_VIRTUALIZATION_MODE_NONE:
		return "none"
	case nvml.GPU_VIRTUALIZATION_MODE_PASSTHROUGH:
		return "passthrough"
	case nvml.GPU_VIRTUALIZATION_MODE_VGPU:
		return "vgpu"
	case nvml.GPU_VIRTUALIZATION_MODE_HOST_VGPU:
		return "host_vgpu"
	case nvml.GPU_VIRTUALIZATION_MODE_HOST_VSGA:
		return "host_vsga"
	}
	return fmt.Sprintf("unknown_%d", int(mode))
}

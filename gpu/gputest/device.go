package gputest

import (
	"cmp"
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gdr_exporter/gpu"
)

// GPU is one GPU of a Machine: what NVML would say of it.
type GPU struct {
	BusID, UUID, Name, VBIOS string
	Architecture             nvml.DeviceArchitecture
	Capability               [2]int
	Virtualization           nvml.GpuVirtualizationMode
	CPUs, Nodes              []uint

	Generation, Width                          int
	MaxGeneration, HostMaxGeneration, MaxWidth int
	Replays                                    int
	BAR1                                       nvml.BAR1Memory
	Memory                                     nvml.Memory
	ComputeMode                                nvml.ComputeMode
	MIG                                        int
	Persistence                                nvml.EnableState
	Minor                                      int      // of /dev/nvidiaN
	Instances                                  []string // UUIDs of MIG instances by their place; "" for a free one
	Processes                                  int      // their number; ids are 0
	PIDs                                       []int    // their ids, in place of Processes
	Utilization                                nvml.Utilization
	Links                                      []Link
	Fabric                                     nvml.GpuFabricInfo_v3
	EventTypes                                 uint64
	// Fields are values of fields that are not of a link, by NVML_FI_DEV_*.
	Fields map[uint32]uint64
	// FieldReturns are what fields return instead, of every link.
	FieldReturns map[uint32]nvml.Return
	// Returns are what calls return instead, by C function without version.
	Returns map[string]nvml.Return
	// FabricVersion is the newest structure version that the driver knows; 0: 3.
	FabricVersion int
	// Lost: the GPU has fallen off the bus. Hidden: the container may not use it.
	Lost, Hidden bool
}

// Link is one NVLink of a GPU.
type Link struct {
	State       nvml.EnableState
	Version     uint32
	RemoteType  nvml.IntNvLinkDeviceType
	RemoteBusID string
	Fields      map[uint32]uint64                  // by NVML_FI_DEV_*
	Errors      map[nvml.NvLinkErrorCounter]uint64 // nvmlDeviceGetNvLinkErrorCounter
}

// device is a gpu.Device of one session of NVML.
type device struct {
	*mock.Device
	machine *Machine
	gpu     *GPU
	index   int
	session int
}

// answer makes the stub of a call.
func answer[T any](d *device, call string, value func(*GPU) T) func() (T, nvml.Return) {
	return func() (T, nvml.Return) {
		var none T
		if ret := d.fails(call); ret != nvml.SUCCESS {
			return none, ret
		}
		d.machine.mu.Lock()
		defer d.machine.mu.Unlock()
		return value(d.gpu), nvml.SUCCESS
	}
}

// fails returns what the call returns instead of a value.
func (d *device) fails(call string) nvml.Return {
	m := d.machine
	m.enter(call, d.gpu.BusID)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !m.up || d.session != m.session:
		return nvml.ERROR_UNINITIALIZED
	case m.All != nvml.SUCCESS:
		return m.All
	case d.gpu.Lost:
		return nvml.ERROR_GPU_IS_LOST
	}
	return d.gpu.Returns[call]
}

func newDevice(m *Machine, index int, g *GPU) *device {
	d := &device{&mock.Device{}, m, g, index, m.session}
	d.GetPciInfoFunc = answer(d, "nvmlDeviceGetPciInfo", func(g *GPU) nvml.PciInfo { return PCIInfo(g.BusID) })
	d.GetUUIDFunc = answer(d, "nvmlDeviceGetUUID", func(g *GPU) string { return g.UUID })
	d.GetNameFunc = answer(d, "nvmlDeviceGetName", func(g *GPU) string { return g.Name })
	d.GetVbiosVersionFunc = answer(d, "nvmlDeviceGetVbiosVersion", func(g *GPU) string { return g.VBIOS })
	d.GetArchitectureFunc = answer(d, "nvmlDeviceGetArchitecture", func(g *GPU) nvml.DeviceArchitecture { return g.Architecture })
	capability := answer(d, "nvmlDeviceGetCudaComputeCapability", func(g *GPU) [2]int { return g.Capability })
	d.GetCudaComputeCapabilityFunc = func() (int, int, nvml.Return) {
		value, ret := capability()
		return value[0], value[1], ret
	}
	d.GetVirtualizationModeFunc = answer(d, "nvmlDeviceGetVirtualizationMode", func(g *GPU) nvml.GpuVirtualizationMode { return g.Virtualization })
	cpus := answer(d, "nvmlDeviceGetCpuAffinity", func(g *GPU) []uint { return g.CPUs })
	d.GetCpuAffinityFunc = func(int) ([]uint, nvml.Return) { return cpus() }
	nodes := answer(d, "nvmlDeviceGetMemoryAffinity", func(g *GPU) []uint { return g.Nodes })
	d.GetMemoryAffinityFunc = func(int, nvml.AffinityScope) ([]uint, nvml.Return) { return nodes() }

	d.GetCurrPcieLinkGenerationFunc = answer(d, "nvmlDeviceGetCurrPcieLinkGeneration", func(g *GPU) int { return g.Generation })
	d.GetCurrPcieLinkWidthFunc = answer(d, "nvmlDeviceGetCurrPcieLinkWidth", func(g *GPU) int { return g.Width })
	d.GetMaxPcieLinkGenerationFunc = answer(d, "nvmlDeviceGetMaxPcieLinkGeneration", func(g *GPU) int { return g.HostMaxGeneration })
	d.GetGpuMaxPcieLinkGenerationFunc = answer(d, "nvmlDeviceGetGpuMaxPcieLinkGeneration", func(g *GPU) int { return g.MaxGeneration })
	d.GetMaxPcieLinkWidthFunc = answer(d, "nvmlDeviceGetMaxPcieLinkWidth", func(g *GPU) int { return g.MaxWidth })
	d.GetPcieReplayCounterFunc = answer(d, "nvmlDeviceGetPcieReplayCounter", func(g *GPU) int { return g.Replays })
	d.GetBAR1MemoryInfoFunc = answer(d, "nvmlDeviceGetBAR1MemoryInfo", func(g *GPU) nvml.BAR1Memory { return g.BAR1 })

	d.GetComputeModeFunc = answer(d, "nvmlDeviceGetComputeMode", func(g *GPU) nvml.ComputeMode { return g.ComputeMode })
	mig := answer(d, "nvmlDeviceGetMigMode", func(g *GPU) int { return g.MIG })
	d.GetMigModeFunc = func() (int, int, nvml.Return) {
		mode, ret := mig()
		return mode, mode, ret
	}
	d.GetPersistenceModeFunc = answer(d, "nvmlDeviceGetPersistenceMode", func(g *GPU) nvml.EnableState { return g.Persistence })
	d.GetMemoryInfoFunc = answer(d, "nvmlDeviceGetMemoryInfo", func(g *GPU) nvml.Memory { return g.Memory })
	d.GetComputeRunningProcessesFunc = answer(d, "nvmlDeviceGetComputeRunningProcesses", func(g *GPU) []nvml.ProcessInfo {
		list := make([]nvml.ProcessInfo, cmp.Or(len(g.PIDs), g.Processes))
		for i, pid := range g.PIDs {
			list[i].Pid = uint32(pid)
		}
		return list
	})
	d.GetUtilizationRatesFunc = answer(d, "nvmlDeviceGetUtilizationRates", func(g *GPU) nvml.Utilization { return g.Utilization })
	d.GetMinorNumberFunc = answer(d, "nvmlDeviceGetMinorNumber", func(g *GPU) int { return g.Minor })
	d.GetMaxMigDeviceCountFunc = answer(d, "nvmlDeviceGetMaxMigDeviceCount", func(g *GPU) int { return len(g.Instances) })
	d.GetSupportedEventTypesFunc = answer(d, "nvmlDeviceGetSupportedEventTypes", func(g *GPU) uint64 { return g.EventTypes })
	d.stubLinks()
	return d
}

// stubLinks stubs what concerns a link.
func (d *device) stubLinks() {
	d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		return perLink(d, "nvmlDeviceGetNvLinkState", link, func(l *Link) (nvml.EnableState, bool) { return l.State, true })
	}
	d.GetNvLinkVersionFunc = func(link int) (uint32, nvml.Return) {
		return perLink(d, "nvmlDeviceGetNvLinkVersion", link, func(l *Link) (uint32, bool) { return l.Version, l.Version > 0 })
	}
	d.GetNvLinkErrorCounterFunc = func(link int, counter nvml.NvLinkErrorCounter) (uint64, nvml.Return) {
		return perLink(d, "nvmlDeviceGetNvLinkErrorCounter", link, func(l *Link) (uint64, bool) {
			value, known := l.Errors[counter]
			return value, known
		})
	}
	d.GetNvLinkRemoteDeviceTypeFunc = func(link int) (nvml.IntNvLinkDeviceType, nvml.Return) {
		return perLink(d, "nvmlDeviceGetNvLinkRemoteDeviceType", link, func(l *Link) (nvml.IntNvLinkDeviceType, bool) {
			return l.RemoteType, l.RemoteBusID != ""
		})
	}
	d.GetNvLinkRemotePciInfoFunc = func(link int) (nvml.PciInfo, nvml.Return) {
		return perLink(d, "nvmlDeviceGetNvLinkRemotePciInfo", link, func(l *Link) (nvml.PciInfo, bool) {
			return PCIInfo(l.RemoteBusID), l.RemoteBusID != ""
		})
	}
	d.GetFieldValuesFunc = d.fieldValues
}

func perLink[T any](d *device, call string, link int, value func(*Link) (T, bool)) (T, nvml.Return) {
	var none T
	if ret := d.fails(call); ret != nvml.SUCCESS {
		return none, ret
	}
	d.machine.mu.Lock()
	defer d.machine.mu.Unlock()
	switch {
	case len(d.gpu.Links) == 0:
		return none, nvml.ERROR_NOT_SUPPORTED
	case link >= len(d.gpu.Links):
		return none, nvml.ERROR_INVALID_ARGUMENT
	}
	if value, known := value(&d.gpu.Links[link]); known {
		return value, nvml.SUCCESS
	}
	return none, nvml.ERROR_NOT_SUPPORTED
}

func (d *device) fieldValues(values []nvml.FieldValue) nvml.Return {
	if ret := d.fails("nvmlDeviceGetFieldValues"); ret != nvml.SUCCESS {
		return ret
	}
	d.machine.mu.Lock()
	defer d.machine.mu.Unlock()
	for i := range values {
		if ret, fails := d.gpu.FieldReturns[values[i].FieldId]; fails {
			values[i].NvmlReturn = uint32(ret)
			continue
		}
		fields := d.gpu.Fields
		value, known := fields[values[i].FieldId]
		if !known && int(values[i].ScopeId) < len(d.gpu.Links) {
			value, known = d.gpu.Links[values[i].ScopeId].Fields[values[i].FieldId]
		}
		if !known {
			values[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
			continue
		}
		values[i].NvmlReturn = uint32(nvml.SUCCESS)
		values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG)
		binary.NativeEndian.PutUint64(values[i].Value[:], value)
	}
	return nvml.SUCCESS
}

func (d *device) GetP2PStatus(peer gpu.Device, capability nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
	if ret := d.fails("nvmlDeviceGetP2PStatus"); ret != nvml.SUCCESS {
		return 0, ret
	}
	if peer.(*device).gpu.Lost {
		return 0, nvml.ERROR_GPU_IS_LOST
	}
	if d.machine.P2P == nil {
		return nvml.P2P_STATUS_OK, nvml.SUCCESS
	}
	return d.machine.P2P(d.index, peer.(*device).index, capability)
}

func (d *device) GetTopologyCommonAncestor(peer gpu.Device) (nvml.GpuTopologyLevel, nvml.Return) {
	if ret := d.fails("nvmlDeviceGetTopologyCommonAncestor"); ret != nvml.SUCCESS {
		return 0, ret
	}
	if peer.(*device).gpu.Lost {
		return 0, nvml.ERROR_GPU_IS_LOST
	}
	if d.machine.Ancestor == nil {
		return nvml.TOPOLOGY_SYSTEM, nvml.SUCCESS
	}
	return d.machine.Ancestor(d.index, peer.(*device).index), nvml.SUCCESS
}

// GetMigDeviceHandleByIndex returns a device that knows no more than its UUID.
func (d *device) GetMigDeviceHandleByIndex(index int) (gpu.Device, nvml.Return) {
	uuids, ret := answer(d, "nvmlDeviceGetMigDeviceHandleByIndex", func(g *GPU) []string { return g.Instances })()
	switch {
	case ret != nvml.SUCCESS:
		return nil, ret
	case index >= len(uuids):
		return nil, nvml.ERROR_INVALID_ARGUMENT
	case uuids[index] == "":
		return nil, nvml.ERROR_NOT_FOUND
	}
	instance := &device{&mock.Device{}, d.machine, d.gpu, d.index, d.session}
	instance.GetUUIDFunc = answer(d, "nvmlDeviceGetUUID", func(*GPU) string { return uuids[index] })
	return instance, nvml.SUCCESS
}

func (d *device) RegisterEvents(types uint64, _ gpu.EventSet) nvml.Return {
	if ret := d.fails("nvmlDeviceRegisterEvents"); ret != nvml.SUCCESS {
		return ret
	}
	if types&^d.gpu.EventTypes != 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.SUCCESS
}

func (d *device) GetGpuFabricInfoV3() (nvml.GpuFabricInfo_v3, nvml.Return) {
	return d.fabric("nvmlDeviceGetGpuFabricInfoV", 3)
}

func (d *device) GetGpuFabricInfoV2() (nvml.GpuFabricInfo_v2, nvml.Return) {
	info, ret := d.fabric("nvmlDeviceGetGpuFabricInfoV", 2)
	return nvml.GpuFabricInfo_v2{ClusterUuid: info.ClusterUuid, Status: info.Status, CliqueId: info.CliqueId, State: info.State, HealthMask: info.HealthMask}, ret
}

func (d *device) GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	info, ret := d.fabric("nvmlDeviceGetGpuFabricInfo", 1)
	return nvml.GpuFabricInfo{ClusterUuid: info.ClusterUuid, Status: info.Status, CliqueId: info.CliqueId, State: info.State}, ret
}

func (d *device) fabric(call string, version int) (nvml.GpuFabricInfo_v3, nvml.Return) {
	info, ret := answer(d, call, func(g *GPU) nvml.GpuFabricInfo_v3 { return g.Fabric })()
	if ret == nvml.SUCCESS && d.gpu.FabricVersion > 0 && version > d.gpu.FabricVersion {
		return nvml.GpuFabricInfo_v3{}, nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	return info, ret
}

// PCIInfo returns what nvmlDeviceGetPciInfo says of a bus id.
func PCIInfo(busID string) nvml.PciInfo {
	var info nvml.PciInfo
	fill(info.BusId[:], busID)
	return info
}

// fill writes a C string, whose characters are signed or not by architecture.
func fill[C ~int8 | ~uint8](into []C, text string) {
	for i := 0; i < len(text) && i < len(into)-1; i++ {
		into[i] = C(text[i])
	}
}

package gpu

import (
	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Library is what the Reader uses of NVML. Methods have go-nvml's names and
// signatures, but for the types that would tie them to the real library.
type Library interface {
	// LookupSymbol returns nil if the library exports a function of that name.
	LookupSymbol(name string) error
	Init() nvml.Return
	Shutdown() nvml.Return
	SystemGetDriverVersion() (string, nvml.Return)
	SystemGetNVMLVersion() (string, nvml.Return)
	SystemGetConfComputeSettings() (nvml.SystemConfComputeSettings, nvml.Return)
	SystemGetConfComputeState() (nvml.ConfComputeSystemState, nvml.Return)
	DeviceGetCount() (int, nvml.Return)
	DeviceGetHandleByIndex(index int) (Device, nvml.Return)
	EventSetCreate() (EventSet, nvml.Return)
}

// Device is what the Reader uses of an NVML device. Two values are equal if
// they mean the same device.
type Device interface {
	GetPciInfo() (nvml.PciInfo, nvml.Return)
	GetUUID() (string, nvml.Return)
	GetName() (string, nvml.Return)
	GetVbiosVersion() (string, nvml.Return)
	GetArchitecture() (nvml.DeviceArchitecture, nvml.Return)
	GetCudaComputeCapability() (int, int, nvml.Return)
	GetVirtualizationMode() (nvml.GpuVirtualizationMode, nvml.Return)
	GetCpuAffinity(cpus int) ([]uint, nvml.Return)
	GetMemoryAffinity(nodes int, scope nvml.AffinityScope) ([]uint, nvml.Return)

	GetCurrPcieLinkGeneration() (int, nvml.Return)
	GetCurrPcieLinkWidth() (int, nvml.Return)
	GetMaxPcieLinkGeneration() (int, nvml.Return)
	GetGpuMaxPcieLinkGeneration() (int, nvml.Return)
	GetMaxPcieLinkWidth() (int, nvml.Return)
	GetPcieReplayCounter() (int, nvml.Return)
	GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return)

	GetComputeMode() (nvml.ComputeMode, nvml.Return)
	GetMigMode() (int, int, nvml.Return)
	GetPersistenceMode() (nvml.EnableState, nvml.Return)
	GetMemoryInfo() (nvml.Memory, nvml.Return)
	GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return)
	GetUtilizationRates() (nvml.Utilization, nvml.Return)
	GetMinorNumber() (int, nvml.Return)
	GetMaxMigDeviceCount() (int, nvml.Return)
	GetMigDeviceHandleByIndex(index int) (Device, nvml.Return)
	GetFieldValues(values []nvml.FieldValue) nvml.Return

	GetNvLinkState(link int) (nvml.EnableState, nvml.Return)
	GetNvLinkVersion(link int) (uint32, nvml.Return)
	GetNvLinkErrorCounter(link int, counter nvml.NvLinkErrorCounter) (uint64, nvml.Return)
	GetNvLinkRemoteDeviceType(link int) (nvml.IntNvLinkDeviceType, nvml.Return)
	GetNvLinkRemotePciInfo(link int) (nvml.PciInfo, nvml.Return)

	GetP2PStatus(peer Device, capability nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return)
	GetTopologyCommonAncestor(peer Device) (nvml.GpuTopologyLevel, nvml.Return)

	GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return)
	GetGpuFabricInfoV2() (nvml.GpuFabricInfo_v2, nvml.Return)
	GetGpuFabricInfoV3() (nvml.GpuFabricInfo_v3, nvml.Return)

	GetSupportedEventTypes() (uint64, nvml.Return)
	RegisterEvents(types uint64, set EventSet) nvml.Return
}

// EventSet is a set of events that NVML collects.
type EventSet interface {
	// Wait returns the next event, or ERROR_TIMEOUT if none came within timeout
	// milliseconds.
	Wait(timeout uint32) (Event, nvml.Return)
	Free() nvml.Return
}

// Event is an event of an EventSet.
type Event struct {
	Device Device
	Type   uint64 // nvmlEventType*
	Data   uint64 // of an Xid event: its code
}

// nvmlLibrary is the real library.
type nvmlLibrary struct {
	nvml   nvml.Interface
	handle *dl.DynamicLibrary
}

// LookupSymbol asks the loader. go-nvml's own lookup knows nothing before the
// first Init.
func (l nvmlLibrary) LookupSymbol(name string) error { return l.handle.Lookup(name) }
func (l nvmlLibrary) Init() nvml.Return              { return l.nvml.Init() }
func (l nvmlLibrary) Shutdown() nvml.Return          { return l.nvml.Shutdown() }

func (l nvmlLibrary) SystemGetDriverVersion() (string, nvml.Return) {
	return l.nvml.SystemGetDriverVersion()
}

func (l nvmlLibrary) SystemGetNVMLVersion() (string, nvml.Return) {
	return l.nvml.SystemGetNVMLVersion()
}

func (l nvmlLibrary) SystemGetConfComputeSettings() (nvml.SystemConfComputeSettings, nvml.Return) {
	return l.nvml.SystemGetConfComputeSettings()
}

func (l nvmlLibrary) SystemGetConfComputeState() (nvml.ConfComputeSystemState, nvml.Return) {
	return l.nvml.SystemGetConfComputeState()
}

func (l nvmlLibrary) DeviceGetCount() (int, nvml.Return) { return l.nvml.DeviceGetCount() }

func (l nvmlLibrary) DeviceGetHandleByIndex(index int) (Device, nvml.Return) {
	device, ret := l.nvml.DeviceGetHandleByIndex(index)
	return nvmlDevice{device}, ret
}

func (l nvmlLibrary) EventSetCreate() (EventSet, nvml.Return) {
	set, ret := l.nvml.EventSetCreate()
	return nvmlEventSet{set}, ret
}

// nvmlDevice is a device of the real library.
type nvmlDevice struct{ nvml.Device }

func (d nvmlDevice) GetP2PStatus(peer Device, capability nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
	other, ok := peer.(nvmlDevice)
	if !ok {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	return d.Device.GetP2PStatus(other.Device, capability)
}

func (d nvmlDevice) GetTopologyCommonAncestor(peer Device) (nvml.GpuTopologyLevel, nvml.Return) {
	other, ok := peer.(nvmlDevice)
	if !ok {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	return d.Device.GetTopologyCommonAncestor(other.Device)
}

func (d nvmlDevice) GetMigDeviceHandleByIndex(index int) (Device, nvml.Return) {
	instance, ret := d.Device.GetMigDeviceHandleByIndex(index)
	return nvmlDevice{instance}, ret
}

func (d nvmlDevice) GetGpuFabricInfoV2() (nvml.GpuFabricInfo_v2, nvml.Return) {
	return d.GetGpuFabricInfoV().V2()
}

func (d nvmlDevice) GetGpuFabricInfoV3() (nvml.GpuFabricInfo_v3, nvml.Return) {
	return d.GetGpuFabricInfoV().V3()
}

func (d nvmlDevice) RegisterEvents(types uint64, set EventSet) nvml.Return {
	real, ok := set.(nvmlEventSet)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	return d.Device.RegisterEvents(types, real.set)
}

// nvmlEventSet is an event set of the real library.
type nvmlEventSet struct{ set nvml.EventSet }

func (s nvmlEventSet) Wait(timeout uint32) (Event, nvml.Return) {
	data, ret := s.set.Wait(timeout)
	if ret != nvml.SUCCESS {
		return Event{}, ret
	}
	return Event{nvmlDevice{data.Device}, data.EventType, data.EventData}, ret
}

func (s nvmlEventSet) Free() nvml.Return { return s.set.Free() }

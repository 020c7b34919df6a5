package tape

import (
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/gpu"
)

// Record returns a library that passes every call on to lib and keeps the
// answers on the tape.
func Record(lib gpu.Library) (gpu.Library, *Tape) {
	t := newTape()
	return &recorder{lib, t, map[gpu.Device]*recordedDevice{}}, t
}

type recorder struct {
	gpu.Library
	tape    *Tape
	devices map[gpu.Device]*recordedDevice
}

func (r *recorder) LookupSymbol(name string) error {
	err := r.Library.LookupSymbol(name)
	r.tape.mu.Lock()
	defer r.tape.mu.Unlock()
	r.tape.Symbols[name] = err == nil
	return err
}

func (r *recorder) Init() nvml.Return {
	defer r.tape.asking(library, "Init")()
	_, ret := keep(r.tape, r.tape.Library, "Init", struct{}{}, r.Library.Init())
	return ret
}

func (r *recorder) SystemGetDriverVersion() (string, nvml.Return) {
	defer r.tape.asking(library, "SystemGetDriverVersion")()
	value, ret := r.Library.SystemGetDriverVersion()
	return keep(r.tape, r.tape.Library, "SystemGetDriverVersion", value, ret)
}

func (r *recorder) SystemGetNVMLVersion() (string, nvml.Return) {
	defer r.tape.asking(library, "SystemGetNVMLVersion")()
	value, ret := r.Library.SystemGetNVMLVersion()
	return keep(r.tape, r.tape.Library, "SystemGetNVMLVersion", value, ret)
}

func (r *recorder) SystemGetConfComputeSettings() (nvml.SystemConfComputeSettings, nvml.Return) {
	defer r.tape.asking(library, "SystemGetConfComputeSettings")()
	value, ret := r.Library.SystemGetConfComputeSettings()
	return keep(r.tape, r.tape.Library, "SystemGetConfComputeSettings", value, ret)
}

func (r *recorder) SystemGetConfComputeState() (nvml.ConfComputeSystemState, nvml.Return) {
	defer r.tape.asking(library, "SystemGetConfComputeState")()
	value, ret := r.Library.SystemGetConfComputeState()
	return keep(r.tape, r.tape.Library, "SystemGetConfComputeState", value, ret)
}

func (r *recorder) DeviceGetCount() (int, nvml.Return) {
	defer r.tape.asking(library, "DeviceGetCount")()
	value, ret := r.Library.DeviceGetCount()
	return keep(r.tape, r.tape.Library, "DeviceGetCount", value, ret)
}

// DeviceGetHandleByIndex keeps which of the tape's devices it is.
func (r *recorder) DeviceGetHandleByIndex(index int) (gpu.Device, nvml.Return) {
	defer r.tape.asking(library, question("DeviceGetHandleByIndex", index))()
	device, ret := r.Library.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		note(r.tape, r.tape.Library, question("DeviceGetHandleByIndex", index), 0, ret)
		return nil, ret
	}
	recorded := r.device(device)
	note(r.tape, r.tape.Library, question("DeviceGetHandleByIndex", index), recorded.number, ret)
	return recorded, ret
}

// device returns the recorded form of a device.
func (r *recorder) device(d gpu.Device) *recordedDevice {
	recorded := r.devices[d]
	if recorded == nil {
		r.tape.mu.Lock()
		recorded = &recordedDevice{d, r.tape, len(r.tape.Devices), Answers{}}
		r.tape.Devices = append(r.tape.Devices, recorded.answers)
		r.tape.mu.Unlock()
		r.devices[d] = recorded
	}
	return recorded
}

func (r *recorder) EventSetCreate() (gpu.EventSet, nvml.Return) {
	defer r.tape.asking(library, "EventSetCreate")()
	set, ret := r.Library.EventSetCreate()
	note(r.tape, r.tape.Library, "EventSetCreate", struct{}{}, ret)
	return &recordedSet{set, r}, ret
}

// recordedSet makes events name the recorded device. Events are not kept: they
// happen once.
type recordedSet struct {
	gpu.EventSet
	recorder *recorder
}

func (s *recordedSet) Wait(timeout uint32) (gpu.Event, nvml.Return) {
	event, ret := s.EventSet.Wait(timeout)
	if ret == nvml.SUCCESS && event.Device != nil {
		event.Device = s.recorder.device(event.Device)
	}
	return event, ret
}

type recordedDevice struct {
	gpu.Device
	tape    *Tape
	number  int
	answers Answers
}

// kept keeps what a call without arguments answers.
func kept[T any](d *recordedDevice, method string, f func() (T, nvml.Return)) (T, nvml.Return) {
	defer d.tape.asking(d.number, method)()
	value, ret := f()
	return keep(d.tape, d.answers, method, value, ret)
}

func (d *recordedDevice) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	defer d.tape.asking(d.number, "GetPciInfo")()
	value, ret := d.Device.GetPciInfo()
	note(d.tape, d.answers, "GetPciInfo", fromPCIInfo(value), ret)
	return value, ret
}

func (d *recordedDevice) GetUUID() (string, nvml.Return) { return kept(d, "GetUUID", d.Device.GetUUID) }
func (d *recordedDevice) GetName() (string, nvml.Return) { return kept(d, "GetName", d.Device.GetName) }

func (d *recordedDevice) GetVbiosVersion() (string, nvml.Return) {
	return kept(d, "GetVbiosVersion", d.Device.GetVbiosVersion)
}

func (d *recordedDevice) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return kept(d, "GetArchitecture", d.Device.GetArchitecture)
}

func (d *recordedDevice) GetCudaComputeCapability() (int, int, nvml.Return) {
	defer d.tape.asking(d.number, "GetCudaComputeCapability")()
	major, minor, ret := d.Device.GetCudaComputeCapability()
	note(d.tape, d.answers, "GetCudaComputeCapability", two{major, minor}, ret)
	return major, minor, ret
}

func (d *recordedDevice) GetVirtualizationMode() (nvml.GpuVirtualizationMode, nvml.Return) {
	return kept(d, "GetVirtualizationMode", d.Device.GetVirtualizationMode)
}

func (d *recordedDevice) GetCpuAffinity(cpus int) ([]uint, nvml.Return) { //nolint:revive // go-nvml's name
	defer d.tape.asking(d.number, "GetCpuAffinity")()
	words, ret := d.Device.GetCpuAffinity(cpus)
	return keep(d.tape, d.answers, "GetCpuAffinity", trim(slices.Clone(words)), ret)
}

func (d *recordedDevice) GetMemoryAffinity(nodes int, scope nvml.AffinityScope) ([]uint, nvml.Return) {
	defer d.tape.asking(d.number, question("GetMemoryAffinity", int(scope)))()
	words, ret := d.Device.GetMemoryAffinity(nodes, scope)
	return keep(d.tape, d.answers, question("GetMemoryAffinity", int(scope)), trim(slices.Clone(words)), ret)
}

func (d *recordedDevice) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	return kept(d, "GetCurrPcieLinkGeneration", d.Device.GetCurrPcieLinkGeneration)
}

func (d *recordedDevice) GetCurrPcieLinkWidth() (int, nvml.Return) {
	return kept(d, "GetCurrPcieLinkWidth", d.Device.GetCurrPcieLinkWidth)
}

func (d *recordedDevice) GetMaxPcieLinkGeneration() (int, nvml.Return) {
	return kept(d, "GetMaxPcieLinkGeneration", d.Device.GetMaxPcieLinkGeneration)
}

func (d *recordedDevice) GetGpuMaxPcieLinkGeneration() (int, nvml.Return) {
	return kept(d, "GetGpuMaxPcieLinkGeneration", d.Device.GetGpuMaxPcieLinkGeneration)
}

func (d *recordedDevice) GetMaxPcieLinkWidth() (int, nvml.Return) {
	return kept(d, "GetMaxPcieLinkWidth", d.Device.GetMaxPcieLinkWidth)
}

func (d *recordedDevice) GetPcieReplayCounter() (int, nvml.Return) {
	return kept(d, "GetPcieReplayCounter", d.Device.GetPcieReplayCounter)
}

func (d *recordedDevice) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	return kept(d, "GetBAR1MemoryInfo", d.Device.GetBAR1MemoryInfo)
}

func (d *recordedDevice) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return kept(d, "GetComputeMode", d.Device.GetComputeMode)
}

func (d *recordedDevice) GetMigMode() (int, int, nvml.Return) {
	defer d.tape.asking(d.number, "GetMigMode")()
	current, pending, ret := d.Device.GetMigMode()
	note(d.tape, d.answers, "GetMigMode", two{current, pending}, ret)
	return current, pending, ret
}

func (d *recordedDevice) GetPersistenceMode() (nvml.EnableState, nvml.Return) {
	return kept(d, "GetPersistenceMode", d.Device.GetPersistenceMode)
}

func (d *recordedDevice) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return kept(d, "GetMemoryInfo", d.Device.GetMemoryInfo)
}

func (d *recordedDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return kept(d, "GetComputeRunningProcesses", d.Device.GetComputeRunningProcesses)
}

func (d *recordedDevice) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return kept(d, "GetUtilizationRates", d.Device.GetUtilizationRates)
}

// GetFieldValues keeps each value apart, so that they may be asked for together
// with others.
func (d *recordedDevice) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	defer d.tape.asking(d.number, "GetFieldValues")()
	ret := d.Device.GetFieldValues(values)
	note(d.tape, d.answers, "GetFieldValues", struct{}{}, ret)
	if ret != nvml.SUCCESS {
		return ret
	}
	for i := range values {
		v := &values[i]
		note(d.tape, d.answers, question("GetFieldValues", int(v.FieldId), int(v.ScopeId)),
			fieldValue{v.ValueType, binary.NativeEndian.Uint64(v.Value[:])}, nvml.Return(v.NvmlReturn))
	}
	return ret
}

func (d *recordedDevice) GetNvLinkState(link int) (nvml.EnableState, nvml.Return) {
	defer d.tape.asking(d.number, question("GetNvLinkState", link))()
	value, ret := d.Device.GetNvLinkState(link)
	return keep(d.tape, d.answers, question("GetNvLinkState", link), value, ret)
}

func (d *recordedDevice) GetNvLinkVersion(link int) (uint32, nvml.Return) {
	defer d.tape.asking(d.number, question("GetNvLinkVersion", link))()
	value, ret := d.Device.GetNvLinkVersion(link)
	return keep(d.tape, d.answers, question("GetNvLinkVersion", link), value, ret)
}

func (d *recordedDevice) GetNvLinkErrorCounter(link int, counter nvml.NvLinkErrorCounter) (uint64, nvml.Return) {
	defer d.tape.asking(d.number, question("GetNvLinkErrorCounter", link, int(counter)))()
	value, ret := d.Device.GetNvLinkErrorCounter(link, counter)
	return keep(d.tape, d.answers, question("GetNvLinkErrorCounter", link, int(counter)), value, ret)
}

func (d *recordedDevice) GetNvLinkRemoteDeviceType(link int) (nvml.IntNvLinkDeviceType, nvml.Return) {
	defer d.tape.asking(d.number, question("GetNvLinkRemoteDeviceType", link))()
	value, ret := d.Device.GetNvLinkRemoteDeviceType(link)
	return keep(d.tape, d.answers, question("GetNvLinkRemoteDeviceType", link), value, ret)
}

func (d *recordedDevice) GetNvLinkRemotePciInfo(link int) (nvml.PciInfo, nvml.Return) {
	defer d.tape.asking(d.number, question("GetNvLinkRemotePciInfo", link))()
	value, ret := d.Device.GetNvLinkRemotePciInfo(link)
	note(d.tape, d.answers, question("GetNvLinkRemotePciInfo", link), fromPCIInfo(value), ret)
	return value, ret
}

func (d *recordedDevice) GetP2PStatus(peer gpu.Device, capability nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
	other, ok := peer.(*recordedDevice)
	if !ok {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	defer d.tape.asking(d.number, question("GetP2PStatus", other.number, int(capability)))()
	value, ret := d.Device.GetP2PStatus(other.Device, capability)
	return keep(d.tape, d.answers, question("GetP2PStatus", other.number, int(capability)), value, ret)
}

func (d *recordedDevice) GetTopologyCommonAncestor(peer gpu.Device) (nvml.GpuTopologyLevel, nvml.Return) {
	other, ok := peer.(*recordedDevice)
	if !ok {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	defer d.tape.asking(d.number, question("GetTopologyCommonAncestor", other.number))()
	value, ret := d.Device.GetTopologyCommonAncestor(other.Device)
	return keep(d.tape, d.answers, question("GetTopologyCommonAncestor", other.number), value, ret)
}

func (d *recordedDevice) GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	defer d.tape.asking(d.number, "GetGpuFabricInfo")()
	i, ret := d.Device.GetGpuFabricInfo()
	note(d.tape, d.answers, "GetGpuFabricInfo", fabricInfo{hex.EncodeToString(i.ClusterUuid[:]), i.Status, i.CliqueId, i.State, 0, 0}, ret)
	return i, ret
}

func (d *recordedDevice) GetGpuFabricInfoV2() (nvml.GpuFabricInfo_v2, nvml.Return) {
	defer d.tape.asking(d.number, "GetGpuFabricInfoV2")()
	i, ret := d.Device.GetGpuFabricInfoV2()
	note(d.tape, d.answers, "GetGpuFabricInfoV2", fabricInfo{hex.EncodeToString(i.ClusterUuid[:]), i.Status, i.CliqueId, i.State, i.HealthMask, 0}, ret)
	return i, ret
}

func (d *recordedDevice) GetGpuFabricInfoV3() (nvml.GpuFabricInfo_v3, nvml.Return) {
	defer d.tape.asking(d.number, "GetGpuFabricInfoV3")()
	i, ret := d.Device.GetGpuFabricInfoV3()
	note(d.tape, d.answers, "GetGpuFabricInfoV3", fabricInfo{hex.EncodeToString(i.ClusterUuid[:]), i.Status, i.CliqueId, i.State, i.HealthMask, i.HealthSummary}, ret)
	return i, ret
}

func (d *recordedDevice) GetSupportedEventTypes() (uint64, nvml.Return) {
	return kept(d, "GetSupportedEventTypes", d.Device.GetSupportedEventTypes)
}

func (d *recordedDevice) RegisterEvents(types uint64, set gpu.EventSet) nvml.Return {
	recorded, ok := set.(*recordedSet)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	defer d.tape.asking(d.number, "RegisterEvents")()
	ret := d.Device.RegisterEvents(types, recorded.EventSet)
	note(d.tape, d.answers, "RegisterEvents", struct{}{}, ret)
	return ret
}

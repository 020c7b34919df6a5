package tape

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/gpu"
)

// Player is a gpu.Library that answers from a tape. It may be used by one reader.
type Player struct {
	tape    func() *Tape // as it is now
	devices []*playedDevice
	closed  chan struct{}
	close   sync.Once

	mu      sync.Mutex
	missing map[string]bool
}

// Play returns a library that answers from the tape. What is not on it is not
// supported; Unrecorded lists what was asked for in vain.
func Play(t *Tape) *Player { return PlayFrom(len(t.Devices), func() *Tape { return t }) }

// PlayFrom is Play of a tape that changes: each question is answered from the one
// that tape returns then, which always has so many devices and is not changed once
// it was returned.
func PlayFrom(devices int, tape func() *Tape) *Player {
	p := &Player{tape: tape, missing: map[string]bool{}, closed: make(chan struct{})}
	for i := range devices {
		p.devices = append(p.devices, &playedDevice{p, i})
	}
	return p
}

// Open is for gpu.Options.Open.
func (p *Player) Open(string) (gpu.Library, error) { return p, nil }

// Close lets go of the calls that hang: they time out, and so does every later one
// of them.
func (p *Player) Close() { p.close.Do(func() { close(p.closed) }) }

// Unrecorded returns the questions to which the tape has no answer.
func (p *Player) Unrecorded() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.missing))
}

// played returns the answer to a question. A call that hung does not return
// before the player is closed.
func played[T any](p *Player, answers Answers, question string) (T, nvml.Return) {
	var value T
	answer, found := answers[question]
	if !found {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.missing[question] = true
		return value, nvml.ERROR_NOT_SUPPORTED
	}
	if answer.Hang {
		<-p.closed
		return value, nvml.ERROR_TIMEOUT
	}
	if answer.Return == nvml.SUCCESS && len(answer.Value) > 0 && json.Unmarshal(answer.Value, &value) != nil {
		var none T
		return none, nvml.ERROR_UNKNOWN
	}
	return value, answer.Return
}

// LookupSymbol returns nil for a function that the recorded driver had.
func (p *Player) LookupSymbol(name string) error {
	exists, asked := p.tape().Symbols[name]
	if !asked {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.missing[name] = true
	}
	if !exists {
		return errors.New("undefined symbol: " + name)
	}
	return nil
}

// Init returns what it returned.
func (p *Player) Init() nvml.Return {
	_, ret := played[struct{}](p, p.tape().Library, "Init")
	return ret
}

// Shutdown does nothing.
func (p *Player) Shutdown() nvml.Return { return nvml.SUCCESS }

// SystemGetDriverVersion is recorded.
func (p *Player) SystemGetDriverVersion() (string, nvml.Return) {
	return played[string](p, p.tape().Library, "SystemGetDriverVersion")
}

// SystemGetNVMLVersion is recorded.
func (p *Player) SystemGetNVMLVersion() (string, nvml.Return) {
	return played[string](p, p.tape().Library, "SystemGetNVMLVersion")
}

// SystemGetConfComputeSettings is recorded.
func (p *Player) SystemGetConfComputeSettings() (nvml.SystemConfComputeSettings, nvml.Return) {
	return played[nvml.SystemConfComputeSettings](p, p.tape().Library, "SystemGetConfComputeSettings")
}

// SystemGetConfComputeState is recorded.
func (p *Player) SystemGetConfComputeState() (nvml.ConfComputeSystemState, nvml.Return) {
	return played[nvml.ConfComputeSystemState](p, p.tape().Library, "SystemGetConfComputeState")
}

// DeviceGetCount is recorded.
func (p *Player) DeviceGetCount() (int, nvml.Return) {
	return played[int](p, p.tape().Library, "DeviceGetCount")
}

// DeviceGetHandleByIndex is recorded.
func (p *Player) DeviceGetHandleByIndex(index int) (gpu.Device, nvml.Return) {
	number, ret := played[int](p, p.tape().Library, question("DeviceGetHandleByIndex", index))
	if ret == nvml.SUCCESS && (number < 0 || number >= len(p.devices)) {
		ret = nvml.ERROR_UNKNOWN
	}
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return p.devices[number], ret
}

// EventSetCreate is recorded. No event ever comes.
func (p *Player) EventSetCreate() (gpu.EventSet, nvml.Return) {
	_, ret := played[struct{}](p, p.tape().Library, "EventSetCreate")
	return playedSet{}, ret
}

type playedSet struct{}

func (playedSet) Wait(uint32) (gpu.Event, nvml.Return) { return gpu.Event{}, nvml.ERROR_TIMEOUT }
func (playedSet) Free() nvml.Return                    { return nvml.SUCCESS }

type playedDevice struct {
	player *Player
	number int
}

// asked returns the answer to a question about the device.
func asked[T any](d *playedDevice, method string, args ...int) (T, nvml.Return) {
	return played[T](d.player, d.player.tape().Devices[d.number], question(method, args...))
}

func (d *playedDevice) pciInfo(method string, args ...int) (nvml.PciInfo, nvml.Return) {
	value, ret := asked[pciInfo](d, method, args...)
	return value.info(), ret
}

func (d *playedDevice) GetPciInfo() (nvml.PciInfo, nvml.Return) { return d.pciInfo("GetPciInfo") }
func (d *playedDevice) GetUUID() (string, nvml.Return)          { return asked[string](d, "GetUUID") }
func (d *playedDevice) GetName() (string, nvml.Return)          { return asked[string](d, "GetName") }

// Who holds GPUs is no part of a recording: see gpu.Options.Holders.

func (*playedDevice) GetMinorNumber() (int, nvml.Return)       { return 0, nvml.ERROR_NOT_SUPPORTED }
func (*playedDevice) GetMaxMigDeviceCount() (int, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }

func (*playedDevice) GetMigDeviceHandleByIndex(int) (gpu.Device, nvml.Return) {
	return nil, nvml.ERROR_NOT_SUPPORTED
}

func (d *playedDevice) GetVbiosVersion() (string, nvml.Return) {
	return asked[string](d, "GetVbiosVersion")
}

func (d *playedDevice) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return asked[nvml.DeviceArchitecture](d, "GetArchitecture")
}

func (d *playedDevice) GetCudaComputeCapability() (int, int, nvml.Return) {
	value, ret := asked[two](d, "GetCudaComputeCapability")
	return value[0], value[1], ret
}

func (d *playedDevice) GetVirtualizationMode() (nvml.GpuVirtualizationMode, nvml.Return) {
	return asked[nvml.GpuVirtualizationMode](d, "GetVirtualizationMode")
}

func (d *playedDevice) GetCpuAffinity(int) ([]uint, nvml.Return) { //nolint:revive // go-nvml's name
	return asked[[]uint](d, "GetCpuAffinity")
}

func (d *playedDevice) GetMemoryAffinity(_ int, scope nvml.AffinityScope) ([]uint, nvml.Return) {
	return asked[[]uint](d, "GetMemoryAffinity", int(scope))
}

func (d *playedDevice) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	return asked[int](d, "GetCurrPcieLinkGeneration")
}

func (d *playedDevice) GetCurrPcieLinkWidth() (int, nvml.Return) {
	return asked[int](d, "GetCurrPcieLinkWidth")
}

func (d *playedDevice) GetMaxPcieLinkGeneration() (int, nvml.Return) {
	return asked[int](d, "GetMaxPcieLinkGeneration")
}

func (d *playedDevice) GetGpuMaxPcieLinkGeneration() (int, nvml.Return) {
	return asked[int](d, "GetGpuMaxPcieLinkGeneration")
}

func (d *playedDevice) GetMaxPcieLinkWidth() (int, nvml.Return) {
	return asked[int](d, "GetMaxPcieLinkWidth")
}

func (d *playedDevice) GetPcieReplayCounter() (int, nvml.Return) {
	return asked[int](d, "GetPcieReplayCounter")
}

func (d *playedDevice) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	return asked[nvml.BAR1Memory](d, "GetBAR1MemoryInfo")
}

func (d *playedDevice) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return asked[nvml.ComputeMode](d, "GetComputeMode")
}

func (d *playedDevice) GetMigMode() (int, int, nvml.Return) {
	value, ret := asked[two](d, "GetMigMode")
	return value[0], value[1], ret
}

func (d *playedDevice) GetPersistenceMode() (nvml.EnableState, nvml.Return) {
	return asked[nvml.EnableState](d, "GetPersistenceMode")
}

func (d *playedDevice) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return asked[nvml.Memory](d, "GetMemoryInfo")
}

func (d *playedDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return asked[[]nvml.ProcessInfo](d, "GetComputeRunningProcesses")
}

func (d *playedDevice) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return asked[nvml.Utilization](d, "GetUtilizationRates")
}

func (d *playedDevice) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	_, ret := asked[struct{}](d, "GetFieldValues")
	if ret != nvml.SUCCESS {
		return ret
	}
	for i := range values {
		v := &values[i]
		value, ret := asked[fieldValue](d, "GetFieldValues", int(v.FieldId), int(v.ScopeId))
		v.NvmlReturn, v.ValueType = uint32(ret), value.Type
		binary.NativeEndian.PutUint64(v.Value[:], value.Bits)
	}
	return ret
}

func (d *playedDevice) GetNvLinkState(link int) (nvml.EnableState, nvml.Return) {
	return asked[nvml.EnableState](d, "GetNvLinkState", link)
}

func (d *playedDevice) GetNvLinkVersion(link int) (uint32, nvml.Return) {
	return asked[uint32](d, "GetNvLinkVersion", link)
}

func (d *playedDevice) GetNvLinkErrorCounter(link int, counter nvml.NvLinkErrorCounter) (uint64, nvml.Return) {
	return asked[uint64](d, "GetNvLinkErrorCounter", link, int(counter))
}

func (d *playedDevice) GetNvLinkRemoteDeviceType(link int) (nvml.IntNvLinkDeviceType, nvml.Return) {
	return asked[nvml.IntNvLinkDeviceType](d, "GetNvLinkRemoteDeviceType", link)
}

func (d *playedDevice) GetNvLinkRemotePciInfo(link int) (nvml.PciInfo, nvml.Return) {
	return d.pciInfo("GetNvLinkRemotePciInfo", link)
}

func (d *playedDevice) GetP2PStatus(peer gpu.Device, capability nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
	other, ok := peer.(*playedDevice)
	if !ok {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	return asked[nvml.GpuP2PStatus](d, "GetP2PStatus", other.number, int(capability))
}

func (d *playedDevice) GetTopologyCommonAncestor(peer gpu.Device) (nvml.GpuTopologyLevel, nvml.Return) {
	other, ok := peer.(*playedDevice)
	if !ok {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	return asked[nvml.GpuTopologyLevel](d, "GetTopologyCommonAncestor", other.number)
}

func (d *playedDevice) GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	value, ret := asked[fabricInfo](d, "GetGpuFabricInfo")
	return value.v1(), ret
}

func (d *playedDevice) GetGpuFabricInfoV2() (nvml.GpuFabricInfo_v2, nvml.Return) {
	value, ret := asked[fabricInfo](d, "GetGpuFabricInfoV2")
	return value.v2(), ret
}

func (d *playedDevice) GetGpuFabricInfoV3() (nvml.GpuFabricInfo_v3, nvml.Return) {
	value, ret := asked[fabricInfo](d, "GetGpuFabricInfoV3")
	return value.v3(), ret
}

func (d *playedDevice) GetSupportedEventTypes() (uint64, nvml.Return) {
	return asked[uint64](d, "GetSupportedEventTypes")
}

func (d *playedDevice) RegisterEvents(uint64, gpu.EventSet) nvml.Return {
	_, ret := asked[struct{}](d, "RegisterEvents")
	return ret
}

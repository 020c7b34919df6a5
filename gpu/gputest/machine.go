package gputest

import (
	"errors"
	"slices"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gdr_exporter/gpu"
)

// Machine is a machine with GPUs. Its fields may be changed between reads, and
// during one within Change.
type Machine struct {
	Driver, NVML string
	GPUs         []*GPU
	// Missing are the functions that the driver lacks. Calling one panics, as it
	// would end the process of a real exporter.
	Missing []string
	// Init is what nvmlInit returns.
	Init nvml.Return
	// All is what every call returns that is about a GPU or counts them, unless
	// it is SUCCESS: the driver was unloaded, say.
	All nvml.Return
	// Confidential and MultiGPU are the feature and the multi-GPU mode of
	// confidential computing.
	Confidential, MultiGPU uint32
	// Returns are what calls return instead that concern no GPU, by C function.
	Returns map[string]nvml.Return
	// Ancestor and P2P are what pairs of GPUs have; nil: 50 (across), and ok.
	Ancestor func(a, b int) nvml.GpuTopologyLevel
	P2P      func(a, b int, capability nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return)
	// Renew makes every DeviceGetHandleByIndex return a new handle.
	Renew bool
	// Gate is called before every call but LookupSymbol, with the name of the C
	// function and the bus id; it may block.
	Gate func(call, busID string)

	mu      sync.Mutex
	session int // counts Init
	up      bool
	devices []*device
	events  []gpu.Event
	made    []string
}

// Change changes the machine while it is being read.
func (m *Machine) Change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// Calls returns the calls made since it was asked last, as "function busid".
func (m *Machine) Calls() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	made := m.made
	m.made = nil
	return made
}

// Up reports whether NVML is initialised.
func (m *Machine) Up() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.up
}

// Xid makes an Xid event of the index-th GPU.
func (m *Machine) Xid(index int, code uint64) {
	m.Change(func() {
		if index < len(m.devices) {
			m.events = append(m.events, gpu.Event{Device: m.devices[index], Type: nvml.EventTypeXidCriticalError, Data: code})
		}
	})
}

// Open is for gpu.Options.Open.
func (m *Machine) Open(string) (gpu.Library, error) { return m.Library(), nil }

// enter is where every call passes.
func (m *Machine) enter(call, busID string) {
	m.mu.Lock()
	m.made = append(m.made, call+" "+busID)
	gate := m.Gate
	missing := slices.Contains(m.Missing, call)
	m.mu.Unlock()
	if missing {
		panic("symbol lookup error: undefined symbol: " + call)
	}
	if gate != nil {
		gate(call, busID)
	}
}

// Library returns the machine's NVML.
func (m *Machine) Library() gpu.Library {
	l := &library{machine: m, Interface: &mock.Interface{}}
	l.InitFunc = m.init
	l.ShutdownFunc = m.shutdown
	l.SystemGetDriverVersionFunc = func() (string, nvml.Return) {
		m.enter("nvmlSystemGetDriverVersion", "")
		return m.Driver, nvml.SUCCESS
	}
	l.SystemGetNVMLVersionFunc = func() (string, nvml.Return) {
		m.enter("nvmlSystemGetNVMLVersion", "")
		return m.NVML, nvml.SUCCESS
	}
	l.SystemGetConfComputeSettingsFunc = func() (nvml.SystemConfComputeSettings, nvml.Return) {
		ret := m.system("nvmlSystemGetConfComputeSettings")
		return nvml.SystemConfComputeSettings{CcFeature: m.Confidential, MultiGpuMode: m.MultiGPU}, ret
	}
	l.SystemGetConfComputeStateFunc = func() (nvml.ConfComputeSystemState, nvml.Return) {
		ret := m.system("nvmlSystemGetConfComputeState")
		return nvml.ConfComputeSystemState{CcFeature: m.Confidential}, ret
	}
	l.DeviceGetCountFunc = func() (int, nvml.Return) {
		m.enter("nvmlDeviceGetCount_v2", "")
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.GPUs), m.All
	}
	return l
}

// system is what a call returns that concerns no GPU.
func (m *Machine) system(call string) nvml.Return {
	m.enter(call, "")
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Returns[call]
}

func (m *Machine) init() nvml.Return {
	m.enter("nvmlInit_v2", "")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Init != nvml.SUCCESS {
		return m.Init
	}
	m.session++
	m.up, m.devices = true, nil
	for i, g := range m.GPUs {
		m.devices = append(m.devices, newDevice(m, i, g))
	}
	return nvml.SUCCESS
}

func (m *Machine) shutdown() nvml.Return {
	m.enter("nvmlShutdown", "")
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.up {
		return nvml.ERROR_UNINITIALIZED
	}
	m.up = false
	return nvml.SUCCESS
}

// library is a Machine's gpu.Library.
type library struct {
	*mock.Interface
	machine *Machine
}

var errNoSymbol = errors.New("undefined symbol")

func (l *library) LookupSymbol(name string) error {
	if slices.Contains(l.machine.Missing, name) {
		return errNoSymbol
	}
	return nil
}

func (l *library) DeviceGetHandleByIndex(index int) (gpu.Device, nvml.Return) {
	m := l.machine
	m.enter("nvmlDeviceGetHandleByIndex_v2", "")
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !m.up:
		return nil, nvml.ERROR_UNINITIALIZED
	case m.All != nvml.SUCCESS:
		return nil, m.All
	case index >= len(m.devices):
		return nil, nvml.ERROR_INVALID_ARGUMENT
	case m.devices[index].gpu.Hidden:
		return nil, nvml.ERROR_NO_PERMISSION
	case m.devices[index].gpu.Lost:
		return nil, nvml.ERROR_GPU_IS_LOST
	}
	if m.Renew {
		m.devices[index] = newDevice(m, index, m.GPUs[index])
	}
	return m.devices[index], nvml.SUCCESS
}

func (l *library) EventSetCreate() (gpu.EventSet, nvml.Return) {
	l.machine.enter("nvmlEventSetCreate", "")
	return &eventSet{&mock.EventSet{}, l.machine}, nvml.SUCCESS
}

type eventSet struct {
	*mock.EventSet
	machine *Machine
}

func (s *eventSet) Wait(timeout uint32) (gpu.Event, nvml.Return) {
	m := s.machine
	m.enter("nvmlEventSetWait_v2", "")
	if timeout > 0 {
		panic("a poll must not wait")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.All != nvml.SUCCESS {
		return gpu.Event{}, m.All
	}
	if len(m.events) == 0 {
		return gpu.Event{}, nvml.ERROR_TIMEOUT
	}
	event := m.events[0]
	m.events = m.events[1:]
	return event, nvml.SUCCESS
}

func (s *eventSet) Free() nvml.Return {
	s.machine.enter("nvmlEventSetFree", "")
	return nvml.SUCCESS
}

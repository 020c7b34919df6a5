// Package gpu reads GPUs through NVML: PCIe, BAR1, modes, NVLink, the NVLink
// fabric, peer-to-peer status and Xid events.
//
// NVML is a C library of the driver. It may be absent, appear later, not fit
// the kernel module, lack a function, lose a GPU or never return, and all of
// that is normal life of a node: the Reader goes through [Library], a narrow
// interface, makes every call in one place that looks the function up first
// (calling one that the driver lacks ends the process) and publishes what is
// being called, and begins anew when the driver was reloaded.
//
// go-nvml binds symbols lazily and for ever. Once a library was loaded, this
// process can never use another version of it: see Reading.Stale.
package gpu

import (
	"time"

	"gdr_exporter/collector/sysread"
)

// Options say how a Reader reads.
type Options struct {
	// Roots are the directories in which libnvidia-ml.so.1 is looked for, see
	// --path.driver-root. Without any, Open is called with an empty path.
	Roots []string
	// Procfs is where procfs is mounted. If it shows that no driver is loaded,
	// NVML is left alone: initialising it would start nvidia-modprobe, which
	// loads the module. Empty: NVML is always asked.
	Procfs string
	// Files is where files are read; nil: the running system.
	Files sysread.Files
	// Include decides by PCI address (sysfs form) which GPUs are read; nil: all.
	Include func(address string) bool
	// SlowInterval is how often the slow group is read; 0: with every read.
	SlowInterval time.Duration
	// NVLink, PerLink and Fabric switch those parts on.
	NVLink, PerLink, Fabric bool
	// Holders has what schedulers call GPUs read too: see [GPU.Minor] and
	// [GPU.Instances]. It is no part of recordings.
	Holders bool
	// Open opens the library at path, "" for the one the loader finds; nil:
	// OpenLibrary. Another one serves tests and replay.
	Open func(path string) (Library, error)
	// Quiesced makes a Reader that is quiesced from the start: see [Reader.Quiesce].
	Quiesced bool
}

// State says what NVML is able to.
type State string

// States of NVML.
const (
	StateUp              State = "up"
	StateQuiesced        State = "quiesced"         // shut down on demand, see [Reader.Quiesce]
	StateNoLibrary       State = "no_library"       // libnvidia-ml.so.1 is nowhere
	StateNoDriver        State = "no_driver"        // the kernel module is not loaded
	StateNoPermission    State = "no_permission"    // the driver's device files may not be opened
	StateVersionMismatch State = "version_mismatch" // the library does not fit the loaded kernel module
	StateFailed          State = "failed"           // anything else, see Reading.Err
)

// States are all states, in the order of their severity.
var States = []State{StateUp, StateQuiesced, StateNoLibrary, StateNoDriver, StateNoPermission, StateVersionMismatch, StateFailed}

// Reading is what one read found.
type Reading struct {
	State State
	// Err is why NVML is not up: an [Error] or what the loader said. It is nil if
	// NVML is up or quiesced.
	Err error
	// Stale: the library on disk is another one than the one that this process
	// has loaded and can never let go of. Only a fresh process can use it.
	Stale bool
	// Library is the path of the library in use, links resolved; "" for none.
	Library string
	// Version is NVML's (nvmlSystemGetNVMLVersion), DriverVersion the kernel
	// module's (nvmlSystemGetDriverVersion).
	Version, DriverVersion string
	// Confidential: confidential computing is on, or protected PCIe, which encrypts
	// what passes between CPU and GPUs too (nvmlSystemGetConfComputeSettings,
	// nvmlSystemGetConfComputeState). Off where the GPUs do not support it, not
	// known where the driver does not have the functions.
	Confidential sysread.Maybe[bool]
	// GPUs are those that NVML names and Include allows, by address.
	GPUs []GPU
	// PerLink is that of the Options: counters of single links are known.
	PerLink bool
	// Hidden counts GPUs that this process may not use (NVML_ERROR_NO_PERMISSION):
	// a container's device rules hide them.
	Hidden int
	// LostUnnamed counts GPUs that were lost before NVML ever told their address.
	LostUnnamed int
	// Pairs are all pairs of GPUs, by the first's and the second's address.
	Pairs []Pair
	// Time is how long the NVML calls of this read took.
	Time time.Duration
}

// GPU is what NVML says of one GPU. What a lost GPU last said is not repeated,
// but for what names it.
type GPU struct {
	Address string // PCI address as sysfs writes it: 0000:3b:00.0
	BusID   string // nvmlDeviceGetPciInfo: 00000000:3B:00.0
	Index   int    // nvmlDeviceGetHandleByIndex's; changes when another GPU comes or goes
	Identity
	// Lost: a call said NVML_ERROR_GPU_IS_LOST, and no call has succeeded since.
	Lost bool
	// ResetRequired: a call said NVML_ERROR_RESET_REQUIRED.
	ResetRequired bool
	// SlowRead is when the slow group was read last.
	SlowRead time.Time

	PCIe  PCIe
	Modes Modes
	BAR1  Memory             // nvmlDeviceGetBAR1MemoryInfo, slow group
	FB    Memory             // nvmlDeviceGetMemoryInfo
	Procs sysread.Maybe[int] // number of compute processes, nvmlDeviceGetComputeRunningProcesses
	// PIDs are their ids as the driver numbers them for this process, in order; in a
	// container without the host's PID namespace they may be others or missing.
	PIDs sysread.Maybe[[]int]
	// RecoveryAction is field 230: 0 none, 1 reset the GPU, 2 reboot, 3 drain
	// peer-to-peer traffic, 4 drain and reset, and newer ones.
	RecoveryAction sysread.Maybe[uint64]

	NVLink NVLink
	Fabric Fabric
	// Xids count Xid events since the Reader began, by code.
	Xids []Xid

	// Minor and Instances are read with Options.Holders only, in the slow group: the
	// number of the GPU's device node /dev/nvidiaN, and the UUIDs of the MIG instances
	// that it is split into now.
	Minor     sysread.Maybe[int] // nvmlDeviceGetMinorNumber
	Instances []string           // nvmlDeviceGetMigDeviceHandleByIndex
}

// Identity is what does not change while a GPU is there.
type Identity struct {
	UUID              string // nvmlDeviceGetUUID
	Name              string // nvmlDeviceGetName
	VBIOS             string // nvmlDeviceGetVbiosVersion
	Architecture      string // nvmlDeviceGetArchitecture: ampere, hopper, blackwell, ...
	ComputeCapability string // nvmlDeviceGetCudaComputeCapability: 9.0
	// Virtualization is nvmlDeviceGetVirtualizationMode: none, passthrough,
	// vgpu, host_vgpu, host_vsga.
	Virtualization string
	CPUAffinity    string             // nvmlDeviceGetCpuAffinity as a list: 0-31,64-95
	NUMANode       sysread.Maybe[int] // nvmlDeviceGetMemoryAffinity, if it is one node
	// C2CLinks is the number of NVLink-C2C links to the CPU (field 170); not known
	// where the GPU has none, as in every machine but Grace's.
	C2CLinks sysread.Maybe[uint64]
}

// PCIe is the GPU's PCIe link.
type PCIe struct {
	Generation sysread.Maybe[int] // nvmlDeviceGetCurrPcieLinkGeneration, slow group
	Width      sysread.Maybe[int] // nvmlDeviceGetCurrPcieLinkWidth, slow group
	// MaxGeneration is the GPU's own (nvmlDeviceGetGpuMaxPcieLinkGeneration),
	// HostMaxGeneration what GPU and host can do together (nvmlDeviceGetMaxPcieLinkGeneration).
	MaxGeneration, HostMaxGeneration sysread.Maybe[int]
	MaxWidth                         sysread.Maybe[int] // nvmlDeviceGetMaxPcieLinkWidth
	Replays                          sysread.Maybe[int] // nvmlDeviceGetPcieReplayCounter, slow group
}

// Modes are settings that keep or change what works on the GPU. Slow group.
type Modes struct {
	Compute     sysread.Maybe[int]  // nvmlDeviceGetComputeMode: 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process
	MIG         sysread.Maybe[bool] // nvmlDeviceGetMigMode, the current one
	Persistence sysread.Maybe[bool] // nvmlDeviceGetPersistenceMode
}

// Memory is the size and use of a memory, in bytes.
type Memory struct {
	Total, Used, Free sysread.Maybe[uint64]
}

// Pair is what NVML says of two GPUs. All pairs are read at first, then one with
// each read.
type Pair struct {
	A, B string // addresses, A before B
	// Ancestor is nvmlDeviceGetTopologyCommonAncestor: 0 same board, 10 one
	// switch, 20 several switches, 30 host bridge, 40 NUMA node, 50 across.
	Ancestor sysread.Maybe[int]
	// P2P is nvmlDeviceGetP2PStatus by P2PCapability: 0 ok, 1 chipset, 2 GPU or
	// 3 topology not supported, 4 disabled by registry key, 5 not supported, 6 unknown.
	P2P [P2PCapabilities]sysread.Maybe[int]
}

// P2PCapability is what GPUs may do to each other.
type P2PCapability int

// Capabilities of a pair of GPUs.
const (
	P2PRead P2PCapability = iota
	P2PWrite
	P2PNVLink
	P2PCapabilities // their number
)

var p2pNames = [P2PCapabilities]string{"read", "write", "nvlink"}

// String returns the capability's name.
func (c P2PCapability) String() string { return p2pNames[c] }

// Xid is how often an Xid event came since the Reader began.
type Xid struct {
	Code  uint64 // 0: any of those above the limit of codes counted apart
	Count uint64
	Last  time.Time // when it was noticed last; zero: never
}

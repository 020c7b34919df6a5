package prober

import (
	"context"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
)

// Pair is a GPU and a port of an RDMA device.
type Pair struct {
	GPU    string `json:"gpu"` // PCI address as sysfs writes it
	Device string `json:"device"`
	Port   int    `json:"port"`
}

// Candidate is a pair that is to be measured.
type Candidate struct {
	Pair
	// Distance is the class of the PCIe path as nvidia-smi topo -m prints it, and
	// Direct whether libraries use GPUDirect RDMA at it by default.
	Distance string `json:"distance"`
	Direct   bool   `json:"direct"`
}

// Depth is how much of a pair is tried.
type Depth string

// The depths.
const (
	// DepthRegister makes a CUDA context, 2 MiB and both registrations, no traffic.
	DepthRegister Depth = "register"
	// DepthFull measures all paths.
	DepthFull Depth = "full"
)

// Depths are all depths.
var Depths = []Depth{DepthRegister, DepthFull}

// Busy says what is done with a pair under load.
type Busy string

// Values of Busy.
const (
	BusyOff      Busy = "off"      // nothing
	BusyRegister Busy = "register" // registration runs
	BusyFull     Busy = "full"     // those, and seldom a full run in slices, host and GPU memory in turn
)

// Reason is why a pair was not measured, as the label reason has it.
type Reason string

// The reasons. ReasonNone is that of a pair that is not kept from anything.
const (
	ReasonNone         Reason = ""
	ReasonPort         Reason = "port_not_active"
	ReasonNICBusy      Reason = "nic_busy"
	ReasonGPUBusy      Reason = "gpu_busy"
	ReasonLoadUnknown  Reason = "load_unknown" // counters or utilisation could not be read
	ReasonMemory       Reason = "gpu_memory_low"
	ReasonComputeMode  Reason = "compute_mode"
	ReasonMIG          Reason = "mig"
	ReasonMPS          Reason = "mps"
	ReasonPersistence  Reason = "persistence_off"
	ReasonConfidential Reason = "confidential_computing"
	ReasonGPU          Reason = "gpu_unavailable" // lost, to be reset, not of the NVIDIA driver, or NVML does not work
	ReasonLibrary      Reason = "no_library"
	ReasonDeviceNode   Reason = "no_device_node"
	ReasonMemlock      Reason = "memlock"
	ReasonQuiesced     Reason = "quiesced"
	ReasonLocked       Reason = "locked"      // another run holds the lock
	ReasonLock         Reason = "lock_failed" // the lock's file cannot be made or opened
	ReasonBudget       Reason = "budget"      // runs or bytes of this hour are used up
	ReasonHung         Reason = "hung"        // a run of this GPU or NIC hangs since
	ReasonNewProcess   Reason = "new_process" // a run ended for a process that came
	ReasonStopped      Reason = "stopped"     // a run ended for the exporter's own end or restart
)

// Reasons are all reasons but ReasonNone.
var Reasons = []Reason{
	ReasonPort, ReasonNICBusy, ReasonGPUBusy, ReasonLoadUnknown, ReasonMemory, ReasonComputeMode, ReasonMIG, ReasonMPS, ReasonPersistence,
	ReasonConfidential, ReasonGPU, ReasonLibrary, ReasonDeviceNode, ReasonMemlock, ReasonQuiesced, ReasonLocked, ReasonLock, ReasonBudget, ReasonHung,
	ReasonNewProcess, ReasonStopped,
}

// Sighting is what was seen of the host at one time. What is not known of a part
// leaves what was known of it before.
type Sighting struct {
	Time time.Time
	// Pairs are those to measure by the PCIe tree and --probe.pairs.
	Pairs sysread.Maybe[[]Candidate]
	// Ports are those of the RDMA devices that were read; Devices are the names of
	// all that are listed. One of a known Devices that is missing there is gone.
	Ports   map[Port]PortSighting
	Devices sysread.Maybe[[]string]
	// GPUs are those that NVML or the PCI bus names, by address; not known: neither answered.
	GPUs sysread.Maybe[map[string]GPUSighting]
	// Driver and Peermem are the versions of the kernel modules nvidia and
	// nvidia_peermem (or nv_peer_mem), "" if they are not loaded.
	Driver, Peermem sysread.Maybe[string]
	// Confidential: confidential computing is on.
	Confidential sysread.Maybe[bool]
}

// Port is a port of an RDMA device.
type Port struct {
	Device string
	Number int
}

// PortSighting is what was seen of a port.
type PortSighting struct {
	State    sysread.Maybe[int] // enum ib_port_state: 4 is ACTIVE
	NodeGUID string             // of the device; "" if not known
	Firmware string             // of the device; "" if not known
}

// portActive is IB_PORT_ACTIVE.
const portActive = 4

// GPUSighting is what was seen of a GPU.
type GPUSighting struct {
	UUID string // "" if not known
	// Usable: NVML answers for it, and it is neither lost nor waiting for a reset.
	// Not known where NVML does not answer in time.
	Usable      sysread.Maybe[bool]
	Processes   sysread.Maybe[int]    // compute processes
	Free        sysread.Maybe[uint64] // bytes of its memory
	ComputeMode sysread.Maybe[int]    // 0 default, 2 prohibited, 3 exclusive process
	MIG         sysread.Maybe[bool]
	Persistence sysread.Maybe[bool]
}

// Load are counters of a pair's use at one time.
type Load struct {
	Time time.Time
	// Sent and Received are bytes that went through the port so far; Rate is what
	// it can do in bytes per second each way.
	Sent, Received sysread.Maybe[uint64]
	Rate           sysread.Maybe[float64]
	// GPU is the GPU's utilisation of the last moment, from 0 to 1.
	GPU sysread.Maybe[float64]
}

// Host is where the prober runs. Its methods may be slow, but return soon after
// the context ends.
type Host interface {
	// Look takes a look, not older than a few seconds. What others see meanwhile is
	// told by Prober.Saw.
	Look(ctx context.Context) Sighting
	// Load reads how busy a pair is.
	Load(ctx context.Context, pair Pair) Load
	// Processes are the ids of the processes with a context on a GPU.
	Processes(ctx context.Context, gpu string) ([]int, error)
	// Blocked says what keeps this process from measuring a pair at all: a missing
	// library or device node, a memlock limit below the bytes that a run registers.
	Blocked(pair Pair, registers uint64) (Reason, error)
}

// Order is a run to be made.
type Order struct {
	Pair
	Spec loopback.Spec // without OpenGPU
	// Isolated: in a process of its own.
	Isolated bool
	// Started, if set, is told the id of the process that runs it, before the GPU
	// is opened.
	Started func(pid int)
}

// Ending is how a run ended.
type Ending struct {
	Result loopback.Result
	// Hung: it did not end in time, and goes on. Its Result holds what was told
	// before; Stage is what it was doing.
	Hung  bool
	Stage loopback.Stage
	// Gone is closed when a run that was given up as hung has ended after all: its
	// call returned, or its process was reaped. nil: nobody will tell.
	Gone <-chan struct{}
	// Crash is how the process died that ran it ("signal: segmentation fault"), ""
	// if it did not.
	Crash string
	// Sticky: CUDA does not work in the process that ran it any more.
	Sticky bool
}

// Runner makes runs.
type Runner interface {
	// Run returns when the run has ended, or when it hangs: a while after its
	// deadline or after ctx is done.
	Run(ctx context.Context, order Order) Ending
}

// Isolation is where runs are made.
type Isolation string

// Values of Isolation.
const (
	InProcess Isolation = "in_process"
	InChild   Isolation = "process"
)

// Status is what the prober shows. It is immutable.
type Status struct {
	// Interval is that between full runs of an idle pair; 0: no runs are scheduled.
	Interval time.Duration
	// Isolation is where runs are made now, IsolationReason why that is not what
	// was asked for, "" if it is.
	Isolation       Isolation
	IsolationReason string
	// QuiescedUntil is when the quiesce in force ends; zero: there is none.
	QuiescedUntil time.Time
	Pairs         []PairStatus // in the order of GPU, device, port
	// Runs counts the runs since start, Skips how often a due pair was not
	// measured: once for each time that a reason came up.
	Runs  map[RunKind]uint64
	Skips map[Reason]uint64
	// Running is the pair that is being measured, nil if none is.
	Running *Pair
}

// RunKind is a kind of run by how it ended.
type RunKind struct {
	Depth  Depth
	Result RunResult
}

// RunResult is how a run ended.
type RunResult string

// Results of a run: the outcomes of [loopback.Judgement], and those without one.
const (
	RunFine        RunResult = "fine"
	RunSlow        RunResult = "slow"
	RunFailed      RunResult = "failed" // GPU memory cannot be reached by the NIC
	RunCorrupt     RunResult = "corrupt"
	RunUnsupported RunResult = "unsupported"
	RunBroken      RunResult = "broken"      // it could not be carried through, which says nothing of GPU memory
	RunCrashed     RunResult = "crashed"     // its process died
	RunHung        RunResult = "hung"        // it did not end
	RunInterrupted RunResult = "interrupted" // it was ended early, or refused before it began
)

// RunResults are all results.
var RunResults = []RunResult{RunFine, RunSlow, RunFailed, RunCorrupt, RunUnsupported, RunBroken, RunCrashed, RunHung, RunInterrupted}

// PairStatus is what is known of a pair.
type PairStatus struct {
	Candidate
	// LastAttempt is when a run of any depth began last. LastSuccess is when a run
	// last proved something good, by depth.
	LastAttempt time.Time
	LastSuccess map[Depth]time.Time
	// Full is the full run that stands, Registration the newest standing run of
	// any depth that tried to register; nil: none does.
	Full, Registration *Completed
	// Withdrawn says why the rates are gone: one of the Withdrawn constants. Full is
	// nil then, but for WithdrawnFailed, where it may stand. "": they are not gone.
	Withdrawn string
	// Unconfirmed is a result that would worsen what is known and has not been
	// repeated yet; nil: there is none.
	Unconfirmed *Completed
	// Skip is why the pair is due and not measured.
	Skip Reason
	// Due is when it is to be measured next at depth full.
	Due time.Time
	// Hung is since when a run hangs; zero: none does.
	Hung time.Time
	// HungStage is what it was doing.
	HungStage loopback.Stage
	// Mismatches counts the words of 8 bytes that arrived wrong, since start.
	Mismatches uint64
	// Baseline is what the pair does when all is well; not known before five runs.
	Baseline sysread.Maybe[float64] // bytes per second of path gpu
}

// Standing is the result that says how the pair is, nil if none does: the full one,
// unless a registration failed after it.
func (s *PairStatus) Standing() *Completed { return standing(s.Full, s.Registration) }

func standing(full, registration *Completed) *Completed {
	if full == nil || registration != nil && registration.Judgement.Outcome.Worse(full.Judgement.Outcome) {
		return registration
	}
	return full
}

// Why rates are gone, as the label reason has it.
const (
	WithdrawnFailed   = "failed" // a later run failed
	WithdrawnAged     = "aged"
	WithdrawnDriver   = "driver_changed"
	WithdrawnPeermem  = "peermem_changed"
	WithdrawnFirmware = "firmware_changed"
	WithdrawnKernel   = "kernel_changed"
	WithdrawnReboot   = "reboot"
	WithdrawnGPU      = "gpu_changed"
	WithdrawnNIC      = "nic_changed"
	WithdrawnGPULost  = "gpu_lost" // or it waits for a reset
	WithdrawnGPUGone  = "gpu_gone"
	WithdrawnNICGone  = "nic_gone"
	WithdrawnPort     = "port_not_active"
)

// Completed is a run that was carried through.
type Completed struct {
	Depth     Depth              `json:"depth"`
	Time      time.Time          `json:"time"` // when it began
	Result    loopback.Result    `json:"result"`
	Judgement loopback.Judgement `json:"judgement"`
	// Idle: the pair was idle; else the run was made in slices, under load.
	Idle bool `json:"idle"`
	// Staged is when path staged was measured, which is done more seldom: a run
	// without it takes over the last one. Zero: it was not.
	Staged time.Time `json:"staged"`
	// Identity is of what was measured.
	Identity Identity `json:"identity"`
}

// Identity says which hardware and software a result is of.
type Identity struct {
	UUID     string `json:"uuid"`      // of the GPU
	NodeGUID string `json:"node_guid"` // of the RDMA device
	Firmware string `json:"firmware"`  // of the RDMA device
	Driver   string `json:"driver"`    // version of the kernel module nvidia
	Kernel   string `json:"kernel"`    // release
}

// Good reports whether the run found GPUDirect RDMA to work.
func (c *Completed) Good() bool { return c.Judgement.Outcome == loopback.Fine }

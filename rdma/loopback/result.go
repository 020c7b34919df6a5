package loopback

import (
	"errors"
	"fmt"
	"time"

	"gdr_exporter/collector/sysread"
)

// Stage is a part of a run.
type Stage string

// The stages in their order. Those from connect to verify come once for each path.
const (
	StageOpen     Stage = "open"     // library, lock, device file, device, GPU
	StageGate     Stage = "gate"     // port state, GID, P_Key, free GPU memory
	StageAlloc    Stage = "alloc"    // host and GPU memory
	StageRegister Stage = "register" // memory regions, both methods
	StageConnect  Stage = "connect"  // queue pairs to RTS
	StageWarmUp   Stage = "warm-up"
	StageMeasure  Stage = "measure" // rate, latency, CPU time
	StageVerify   Stage = "verify"  // the data that arrived
	StageTeardown Stage = "teardown"
)

// StageResult is how a stage went.
type StageResult struct {
	Stage    Stage
	Path     Path // "" for what is of no path
	Duration time.Duration
	Err      error // nil, or why the stage failed; *Error if a verbs call did
}

// Result is what a run found. Whatever failed, what was found before is there.
type Result struct {
	Device   string
	Port     int
	Started  time.Time
	Duration time.Duration
	Stages   []StageResult
	Paths    []PathResult

	Library  string                  // file of the libibverbs that was loaded
	GPU      sysread.Maybe[GPUFacts] // of the GPU, once it is open
	NUMANode int                     // of the NIC, where the host buffers are; -1: none

	Ethernet bool // RoCE; else InfiniBand
	GID      sysread.Maybe[GID]
	PKey     PKey
	MTU      int // bytes of the path MTU, 0 if the port names none that is known

	// RelaxedOrdering is whether host memory was registered with relaxed ordering:
	// unknown if none was registered. GPU memory: see its Registrations.
	RelaxedOrdering sysread.Maybe[bool]
	// NICDMABuf is whether NIC, driver, kernel and library can register a dma-buf
	// (a test with no dma-buf). NICDMABufErr is what the test was answered.
	NICDMABuf    sysread.Maybe[bool]
	NICDMABufErr error

	// DataDirect is whether the NIC has a data-direct function (ConnectX-8 with
	// GB200 and GB300), by which libraries reach GPU memory. What goes by the
	// other function says nothing of those: the direct paths are not measured then.
	DataDirect sysread.Maybe[bool]

	// Registrations of GPU memory, one for each method. Method is the one that the
	// rates were measured with, "" if neither worked. NCCLMethod is the one that
	// current NCCL would try: dma-buf where both sides claim it, else peermem.
	Registrations      []Registration
	Method, NCCLMethod Method

	// TransferredBytes went over the NIC, each byte counted once: it sends as many
	// and receives as many.
	TransferredBytes uint64
}

// Registration is an attempt to register GPU memory.
type Registration struct {
	Method          Method
	Duration        time.Duration
	Err             error // nil if it worked
	RelaxedOrdering bool
}

// PathResult is what was measured of a path. What was not reached is not known.
type PathResult struct {
	Path  Path
	Stage Stage // where Err came from
	Err   error // why the path ended early

	BytesPerSecond sysread.Maybe[float64]
	Bytes          uint64 // moved for that rate
	// LatencyMedian and LatencyP99 are from post to completion of 8-byte writes,
	// one at a time.
	LatencyMedian, LatencyP99 sysread.Maybe[time.Duration]
	// CPUSecondsPerGB is of this thread, per 10^9 bytes, sleeping for completions.
	CPUSecondsPerGB sysread.Maybe[float64]
	// Mismatches counts words of 8 bytes that arrived wrong, of Verified bytes.
	// What both a RDMA READ and a direct read found is counted twice.
	Mismatches sysread.Maybe[int]
	Verified   uint64
}

// Err returns the first failure of a stage, nil if all went well. Paths that GPU
// memory could not be registered for are no failure of a stage: see Paths.
func (r Result) Err() error {
	for _, stage := range r.Stages {
		if stage.Err != nil {
			return stage.error()
		}
	}
	return nil
}

func (s StageResult) error() error {
	if s.Path != "" {
		return fmt.Errorf("%s (path %s): %w", s.Stage, s.Path, s.Err)
	}
	return fmt.Errorf("%s: %w", s.Stage, s.Err)
}

// ErrCorrupt says that data arrived wrong.
var ErrCorrupt = errors.New("data arrived wrong")

// ErrDataDirect says that a path would not be measured by the function that jobs
// use: the result is unknown, not bad.
var ErrDataDirect = errors.New("the NIC reaches GPU memory by its data-direct function, which is not measured")

// ErrNotRegistered says that a path needs registered GPU memory and there is none.
var ErrNotRegistered = errors.New("GPU memory not registered")

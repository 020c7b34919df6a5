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
	StageMeasure  Stage = "measure" // rate, latency, CPU time; in slices the rate comes after verify
	StageVerify   Stage = "verify"  // the data that arrived
	StageTeardown Stage = "teardown"
)

// The stages of an endpoint between connect and teardown.
const (
	StageFill  Stage = "fill" // of the source with the pattern
	StagePing  Stage = "ping"
	StageWrite Stage = "write"
	StageServe Stage = "serve" // what staged memory needs on the side that is written to
)

// StageResult is how a stage went.
type StageResult struct {
	Stage    Stage         `json:"stage"`
	Path     Path          `json:"path,omitempty"` // "" for what is of no path
	Duration time.Duration `json:"ns"`
	Err      error         `json:"-"` // nil, or why the stage failed; *Error if a verbs call did
}

// Result is what a run found. Whatever failed, what was found before is there.
//
// As JSON it can be handed to another process or stored. Errors come back as what
// is asked of them here: see [*Result.UnmarshalJSON].
type Result struct {
	Device   string        `json:"device"`
	Port     int           `json:"port"`
	Started  time.Time     `json:"started"`
	Duration time.Duration `json:"ns"`
	Stages   []StageResult `json:"stages,omitempty"`
	Paths    []PathResult  `json:"paths,omitempty"`
	// RegisterOnly: only the registration was asked for.
	RegisterOnly bool `json:"register_only,omitempty"`

	Library  string                  `json:"library,omitempty"` // file of the libibverbs that was loaded
	GPU      sysread.Maybe[GPUFacts] `json:"gpu,omitzero"`      // of the GPU, once it is open
	NUMANode int                     `json:"numa_node"`         // of the NIC, where the host buffers are; -1: none

	Ethernet bool               `json:"ethernet,omitempty"` // RoCE; else InfiniBand
	GID      sysread.Maybe[GID] `json:"gid,omitzero"`
	PKey     PKey               `json:"pkey,omitzero"`
	MTU      int                `json:"mtu,omitempty"` // bytes of the path MTU, 0 if the port names none that is known

	MessageSize int `json:"message_size,omitempty"` // bytes of each RDMA write that a rate is of
	QueuePairs  int `json:"queue_pairs,omitempty"`  // pairs of queue pairs

	// RelaxedOrdering is whether host memory was registered with relaxed ordering:
	// unknown if none was registered. GPU memory: see its Registrations.
	RelaxedOrdering sysread.Maybe[bool] `json:"relaxed_ordering,omitzero"`
	// NICDMABuf is whether NIC, driver, kernel and library can register a dma-buf
	// (a test with no dma-buf). NICDMABufErr is what the test was answered.
	NICDMABuf    sysread.Maybe[bool] `json:"nic_dmabuf,omitzero"`
	NICDMABufErr error               `json:"-"`

	// DataDirect is whether the NIC has a data-direct function (ConnectX-8 with
	// GB200 and GB300), by which libraries reach GPU memory. What goes by the
	// other function says nothing of those: the direct paths are not measured then.
	DataDirect sysread.Maybe[bool] `json:"data_direct,omitzero"`

	// Registrations of GPU memory, one for each method. Method is the one that the
	// rates were measured with, "" if neither worked. NCCLMethod is the one that
	// current NCCL would try: dma-buf where both sides claim it, else peermem.
	Registrations []Registration `json:"registrations,omitempty"`
	Method        Method         `json:"method,omitempty"`
	NCCLMethod    Method         `json:"nccl_method,omitempty"`

	// TransferredBytes went over the NIC, each byte counted once: it sends as many
	// and receives as many.
	TransferredBytes uint64 `json:"transferred_bytes,omitempty"`
}

// Registration is an attempt to register GPU memory.
type Registration struct {
	Method          Method        `json:"method"`
	Duration        time.Duration `json:"ns"`
	Err             error         `json:"-"` // nil if it worked
	RelaxedOrdering bool          `json:"relaxed_ordering,omitempty"`
}

// PathResult is what was measured of a path. What was not reached is not known.
type PathResult struct {
	Path  Path  `json:"path"`
	Stage Stage `json:"stage,omitempty"` // where Err came from
	Err   error `json:"-"`               // why the path ended early

	BytesPerSecond sysread.Maybe[float64] `json:"bytes_per_second,omitzero"`
	Bytes          uint64                 `json:"bytes,omitempty"` // moved for that rate
	// Ratio is that of the rate to the host path's; in slices the median of those to
	// the host slice before it.
	Ratio sysread.Maybe[float64] `json:"ratio,omitzero"`
	// LatencyMedian and LatencyP99 are from post to completion of 8-byte writes,
	// one at a time.
	LatencyMedian sysread.Maybe[time.Duration] `json:"latency_median_ns,omitzero"`
	LatencyP99    sysread.Maybe[time.Duration] `json:"latency_p99_ns,omitzero"`
	// CPUSecondsPerGB is of this thread, per 10^9 bytes, sleeping for completions.
	CPUSecondsPerGB sysread.Maybe[float64] `json:"cpu_seconds_per_gb,omitzero"`
	// Mismatches counts words of 8 bytes that arrived wrong, of Verified bytes.
	// What both a RDMA READ and a direct read found is counted twice.
	Mismatches sysread.Maybe[int] `json:"mismatches,omitzero"`
	Verified   uint64             `json:"verified,omitempty"`
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

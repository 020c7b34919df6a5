package loopback

import (
	"fmt"
	"slices"
	"time"

	"gdr_exporter/collector/sysread"
)

// Path is a way of the data. All of them are RDMA writes between two queue pairs
// of the same port.
type Path string

// The five paths.
const (
	PathHost     Path = "host"      // host to host: the NIC and its stack, the control for every ratio
	PathGPURead  Path = "gpu_read"  // GPU to host: the NIC reads GPU memory
	PathGPUWrite Path = "gpu_write" // host to GPU: the NIC writes GPU memory
	PathGPU      Path = "gpu"       // GPU to GPU: GPUDirect RDMA as jobs use it
	PathStaged   Path = "staged"    // GPU to GPU through copies in host memory: what a job gets without it
)

// Paths are all paths in the order in which they are measured.
var Paths = []Path{PathHost, PathGPURead, PathGPUWrite, PathGPU, PathStaged}

func (p Path) fromGPU() bool { return p == PathGPURead || p == PathGPU || p == PathStaged }
func (p Path) toGPU() bool   { return p == PathGPUWrite || p == PathGPU || p == PathStaged }

// direct says whether the NIC itself reaches GPU memory.
func (p Path) direct() bool { return p != PathHost && p != PathStaged }

// Method is a way to register GPU memory with a NIC.
type Method string

// The two methods.
const (
	MethodPeermem Method = "peermem" // ibv_reg_mr of the device pointer, through nvidia-peermem
	MethodDMABuf  Method = "dmabuf"  // cuMemGetHandleForAddressRange and ibv_reg_dmabuf_mr
)

// methods are both, in the order in which they are tried.
var methods = []Method{MethodPeermem, MethodDMABuf}

// Spec says what to measure. Zero values stand for the defaults. But for the
// functions it can be handed to another process as JSON.
type Spec struct {
	Device string // RDMA device, such as mlx5_0
	Port   int    // default 1

	// OpenGPU opens the GPU, on the thread of the run. nil: no GPU, host path only.
	OpenGPU func() (GPU, error) `json:"-"`
	Paths   []Path              // default: all that there is a GPU for

	BufferSize  int    // bytes of each buffer; default 64 MiB
	MessageSize int    // bytes of each RDMA write; default 1 MiB
	ChunkSize   int    // bytes of each copy and write of the staged path; default 2 MiB
	QueuePairs  int    // pairs of queue pairs; default 4, at most 64
	Depth       int    // writes outstanding on each; default 8 MiB over all, from 2 to 128
	Bytes       uint64 // moved to measure a path's rate; default 128 MiB
	WarmUp      uint64 // moved before that; default 32 MiB
	EventBytes  uint64 // moved to measure CPU time, sleeping for completion events; default 64 MiB
	ReadBack    int    // bytes read back by RDMA READ to verify; default 16 MiB
	Latencies   int    // latency samples; default 1000

	// Deadline ends the run; default 10s. PhaseTime ends each phase of a path
	// (warm-up, rate, latency, CPU time) early: what is slow is measured over what
	// it moved by then; default 250ms.
	Deadline, PhaseTime time.Duration

	PKey  uint16             // P_Key value; default: the first of full membership
	GID   sysread.Maybe[int] // GID index; default: chosen anew in each run
	Force Method             // register GPU memory by this method; default: as current NCCL does

	// Slices measures the rates of the host path and of the direct paths in so many
	// parts of Bytes, one part of each path in turn: load that comes and goes while
	// the run lasts then hits all of them alike, and ratios hold. The staged path is
	// left out unless it is named. Default 1: each path at once, one after the other.
	Slices int
	// RegisterOnly tries whether GPU memory can be registered, with 2 MiB of it, and
	// nothing else: no traffic, no path, no host memory. The port may be down.
	RegisterOnly bool

	// FreeGPUMemory is how many bytes of GPU memory must be free before anything
	// is allocated there. There is no default: the caller knows its jobs.
	FreeGPUMemory uint64

	LockPath    string   // host-wide lock, such as LockPath; "" takes none: the caller holds it
	LedgerPath  string   // where runs are added up, such as LedgerPath, under the lock; "": nowhere
	LibraryDirs []string // where to look for libibverbs.so.1 first
	SysfsRoot   string   // default /sys
	DevRoot     string   // directory of the uverbs devices; default /dev/infiniband

	// OnStage, if set, is told when a stage begins, on the thread of the run.
	OnStage func(stage Stage, path Path) `json:"-"`
}

// mostMessage is the largest message of any reliable connection.
const mostMessage = 1 << 31

// maxQueuePairs is LB_MAX_QPS of loopback.h.
const maxQueuePairs = 64

// maxSlices keeps slices long enough to have a rate.
const maxSlices = 64

// DefaultDeadline is that of a Spec without one.
const DefaultDeadline = 10 * time.Second

// window is how much is under way by default: enough for the fastest ports, and
// no long queue in front of somebody else, nor in front of an early end.
const window = 8 << 20

func orDefault[T comparable](value *T, standard T) {
	var zero T
	if *value == zero {
		*value = standard
	}
}

// withDefaults fills in what was left out.
func (s Spec) withDefaults() Spec {
	orDefault(&s.Port, 1)
	orDefault(&s.BufferSize, 64<<20)
	orDefault(&s.MessageSize, 1<<20)
	orDefault(&s.ChunkSize, min(2<<20, s.BufferSize))
	orDefault(&s.QueuePairs, 4)
	orDefault(&s.Depth, min(max(window/max(s.MessageSize*s.QueuePairs, 1), 2), 128))
	orDefault(&s.Bytes, 128<<20)
	orDefault(&s.WarmUp, 32<<20)
	orDefault(&s.EventBytes, 64<<20)
	orDefault(&s.ReadBack, 16<<20)
	orDefault(&s.Latencies, 1000)
	orDefault(&s.Slices, 1)
	orDefault(&s.Deadline, DefaultDeadline)
	orDefault(&s.PhaseTime, 250*time.Millisecond)
	orDefault(&s.SysfsRoot, "/sys")
	orDefault(&s.DevRoot, "/dev/infiniband")
	if s.OnStage == nil {
		s.OnStage = func(Stage, Path) {}
	}
	switch {
	case s.RegisterOnly:
		s.Paths = nil
	case s.Paths == nil && s.OpenGPU == nil:
		s.Paths = []Path{PathHost}
	case s.Paths == nil && s.Slices > 1:
		s.Paths = slices.DeleteFunc(slices.Clone(Paths), func(p Path) bool { return p == PathStaged })
	case s.Paths == nil:
		s.Paths = Paths
	}
	return s
}

// check reports what cannot be measured, of a Spec with defaults.
func (s Spec) check() error {
	const word = 8
	switch {
	case s.Device == "":
		return fmt.Errorf("no RDMA device named")
	case s.QueuePairs < 1 || s.QueuePairs > maxQueuePairs:
		return fmt.Errorf("%d queue pairs: from 1 to %d", s.QueuePairs, maxQueuePairs)
	case s.Depth < 1 || s.Latencies < 0 || s.ReadBack < word:
		return fmt.Errorf("depth %d, %d latency samples, %d bytes to read back", s.Depth, s.Latencies, s.ReadBack)
	case s.MessageSize > mostMessage || s.ChunkSize > mostMessage:
		return fmt.Errorf("messages of %d bytes, chunks of %d: at most %d", s.MessageSize, s.ChunkSize, mostMessage)
	case s.MessageSize < word || s.MessageSize%word != 0 || s.ChunkSize < word || s.ChunkSize%word != 0:
		return fmt.Errorf("messages of %d bytes, chunks of %d: multiples of %d", s.MessageSize, s.ChunkSize, word)
	case s.slice() < s.MessageSize || s.BufferSize < s.ChunkSize:
		return fmt.Errorf("a buffer of %d bytes does not hold a message of %d for each of %d queue pairs and a chunk of %d",
			s.BufferSize, s.MessageSize, s.QueuePairs, s.ChunkSize)
	case s.Slices < 1 || s.Slices > maxSlices:
		return fmt.Errorf("%d slices: from 1 to %d", s.Slices, maxSlices)
	case s.part() < uint64(s.MessageSize*s.QueuePairs):
		return fmt.Errorf("%d bytes in %d slices are not a message for each queue pair", s.Bytes, s.Slices)
	case s.RegisterOnly && s.OpenGPU == nil:
		return fmt.Errorf("registration needs a GPU")
	case s.Force != "" && s.Force != MethodPeermem && s.Force != MethodDMABuf:
		return fmt.Errorf("unknown method of registration %q", s.Force)
	}
	for _, path := range s.Paths {
		if !slices.Contains(Paths, path) {
			return fmt.Errorf("unknown path %q", path)
		}
		if path != PathHost && s.OpenGPU == nil {
			return fmt.Errorf("path %s needs a GPU", path)
		}
	}
	return nil
}

// MostBytes is how many bytes a run moves over the NIC at most: over each path what
// warms up, is timed, measures CPU time, and is read back.
func (s Spec) MostBytes() uint64 {
	if s.RegisterOnly {
		return 0
	}
	s = s.withDefaults()
	return uint64(len(s.Paths)) * (s.Bytes + s.WarmUp + s.EventBytes + uint64(s.ReadBack))
}

// Registers is how many bytes of host memory a run registers, or has the kernel
// pin for its queues: they count against the memlock limit.
func (s Spec) Registers() uint64 {
	const queues = 4 << 20
	if s.RegisterOnly {
		return queues
	}
	s = s.withDefaults()
	return uint64(2*s.BufferSize+s.ReadBack) + queues
}

// slice is the part of a buffer that a queue pair works through.
func (s Spec) slice() int { return s.BufferSize / s.QueuePairs / s.MessageSize * s.MessageSize }

// part is what is moved for the rate of a path at once.
func (s Spec) part() uint64 { return s.Bytes / uint64(s.Slices) }

// wants reports whether any wanted path is of a kind.
func (s Spec) wants(kind func(Path) bool) bool { return slices.ContainsFunc(s.Paths, kind) }

// usesGPU reports whether any wanted path does, or the registration.
func (s Spec) usesGPU() bool {
	return s.RegisterOnly || s.wants(func(p Path) bool { return p != PathHost })
}

package loopback

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gdr_exporter/collector/sysread"
)

// Role is what an endpoint does with its peer's memory and lets be done with its own.
type Role string

// The roles.
const (
	RoleInitiator Role = "initiator" // writes; nothing of it can be written
	RoleResponder Role = "responder" // is written to
	RoleBoth      Role = "both"      // both directions, at the same time if both sides like
)

func (r Role) sends() bool    { return r == RoleInitiator || r == RoleBoth }
func (r Role) receives() bool { return r == RoleResponder || r == RoleBoth }

// Memory is where an endpoint's data is.
type Memory string

// The kinds of memory. Host and GPU memory go together; staged needs staged.
const (
	MemoryHost   Memory = "host"
	MemoryGPU    Memory = "gpu"    // registered with the NIC: GPUDirect RDMA
	MemoryStaged Memory = "staged" // of the GPU, through copies in host memory on both sides
)

// paths are the paths of a loopback run that need the same as an endpoint does.
var paths = map[Memory]Path{MemoryHost: PathHost, MemoryGPU: PathGPU, MemoryStaged: PathStaged}

// DefaultEndpointDeadline is that of an EndpointSpec without one.
const DefaultEndpointDeadline = 30 * time.Second

// EndpointSpec says what an endpoint is made of. Zero values stand for the defaults,
// which are those of [Spec].
type EndpointSpec struct {
	Device string // RDMA device, such as mlx5_0
	Port   int
	Role   Role
	Memory Memory // default: MemoryHost

	// OpenGPU opens the GPU, on the thread of the endpoint. Host memory needs none.
	OpenGPU func() (GPU, error) `json:"-"`

	// BufferSize is the size of each buffer: one to write from, one to be written to,
	// or both. With GPU memory it is rounded up to 2 MiB.
	BufferSize  int
	MessageSize int // bytes of each RDMA write
	ChunkSize   int // bytes of each copy and write of staged memory
	QueuePairs  int // must be the same on both sides
	Depth       int // writes outstanding on each queue pair

	// Deadline is when the endpoint closes itself, whatever is under way: a session
	// that hangs leaves no key behind. Default: DefaultEndpointDeadline.
	Deadline time.Duration

	// Peer is the other side's address, for whoever knows it before it opens: of
	// several GIDs one is taken that the peer's can reach.
	Peer *Address

	PKey  uint16             // P_Key value; default: the first of full membership
	GID   sysread.Maybe[int] // GID index; default: the best one, see Peer
	Force Method             // register GPU memory by this method; default: as current NCCL does

	// FreeGPUMemory is how many bytes of GPU memory must be free before anything is
	// allocated there.
	FreeGPUMemory uint64

	LockPath    string   // host-wide lock; "": the caller holds it
	LibraryDirs []string // where to look for libibverbs.so.1 first
	SysfsRoot   string
	DevRoot     string
}

// spec is the run that shares its parts with the endpoint.
func (s EndpointSpec) spec() Spec {
	size := s.BufferSize
	orDefault(&size, 64<<20)
	if s.Memory != MemoryHost {
		size = roundUp(size, hugePage)
	}
	return Spec{
		Device: s.Device, Port: s.Port, OpenGPU: s.OpenGPU, Paths: []Path{paths[s.Memory]},
		BufferSize: size, MessageSize: s.MessageSize, ChunkSize: s.ChunkSize, QueuePairs: s.QueuePairs, Depth: s.Depth,
		Bytes: 1 << 62, // each write says for itself how many
		PKey:  s.PKey, GID: s.GID, Force: s.Force, FreeGPUMemory: s.FreeGPUMemory, Deadline: s.Deadline,
		LockPath: s.LockPath, LibraryDirs: s.LibraryDirs, SysfsRoot: s.SysfsRoot, DevRoot: s.DevRoot,
	}.withDefaults()
}

// check reports what no run would: see [Spec.check].
func (s EndpointSpec) check() error {
	const mostBuffer = 1 << 34
	switch {
	case !s.Role.sends() && !s.Role.receives():
		return fmt.Errorf("unknown role %q: %w", s.Role, syscall.EINVAL)
	case paths[s.Memory] == "":
		return fmt.Errorf("unknown memory %q: %w", s.Memory, syscall.EINVAL)
	case s.BufferSize < 0 || s.BufferSize > mostBuffer:
		return fmt.Errorf("a buffer of %d bytes: %w", s.BufferSize, syscall.EINVAL)
	}
	return nil
}

// StageError is a failure and the stage that it came from. What it wraps is an
// *[Error] if a verbs call failed, with errno and completion status.
type StageError struct {
	Stage Stage
	Err   error
}

// Error names the stage.
func (e *StageError) Error() string { return string(e.Stage) + ": " + e.Err.Error() }

// Unwrap returns the failure.
func (e *StageError) Unwrap() error { return e.Err }

func atStage(stage Stage, err error) error {
	if err == nil {
		return nil
	}
	return &StageError{stage, err}
}

// Endpoint is one half of a connection between two hosts: a buffer or two, each a
// memory region of its own, in a protection domain of its own, and queue pairs to
// one peer. Whoever is written to allows nothing but writes into that one buffer,
// and reads its data itself to see what arrived.
//
// Its methods may be called from any goroutine. They take turns, as all is done on
// one thread, except that Close ends what is under way. Only a call that hangs in
// the kernel can hold one up longer than its context.
type Endpoint struct {
	calls   chan func()
	ended   chan struct{} // all is given back
	closing atomic.Bool
	expired atomic.Bool
	stop    atomic.Pointer[atomic.Int32] // of the call under way
	close   sync.Once
	err     error // of the teardown

	half    *half // for the thread only, but for what does not change after Open
	address Address
}

// OpenEndpoint makes an endpoint up to queue pairs that are not connected. It must be
// closed; at its deadline it closes itself.
func OpenEndpoint(ctx context.Context, spec EndpointSpec) (*Endpoint, error) {
	return openEndpoint(ctx, spec, loadLibrary)
}

func openEndpoint(ctx context.Context, spec EndpointSpec, load loader) (*Endpoint, error) {
	orDefault(&spec.Memory, MemoryHost)
	orDefault(&spec.Deadline, DefaultEndpointDeadline)
	if err := spec.check(); err != nil {
		return nil, atStage(StageOpen, err)
	}
	e := &Endpoint{calls: make(chan func()), ended: make(chan struct{})}
	opened := make(chan error, 1)
	go e.thread(ctx, spec, load, opened)
	if err := <-opened; err != nil {
		return nil, err
	}
	go e.expire(spec.Deadline - time.Since(e.half.facts.Started))
	return e, nil
}

// thread does all that the endpoint does, as CUDA contexts belong to threads. The
// goroutine ends without unlocking, and so the thread too.
func (e *Endpoint) thread(ctx context.Context, spec EndpointSpec, load loader, opened chan<- error) {
	defer close(e.ended)
	runtime.LockOSThread()
	h := newHalf(ctx, spec, load)
	if err := h.open(); err != nil {
		opened <- err
		return
	}
	e.half, e.address = h, h.address()
	opened <- nil
	for !h.gone {
		(<-e.calls)()
	}
}

// expire closes the endpoint at its deadline. Calls that end by it themselves are
// given the time to say so.
func (e *Endpoint) expire(left time.Duration) {
	const late = 200 * time.Millisecond
	timer := time.NewTimer(left + late)
	defer timer.Stop()
	select {
	case <-e.ended:
	case <-timer.C:
		e.expired.Store(true)
		_ = e.Close() // told to whoever closes it
	}
}

// Address is what the peer must know.
func (e *Endpoint) Address() Address { return e.address }

// Facts are what the opening found out: library, GID, P_Key, MTU, NUMA node, GPU,
// registrations and method. There are no stages and no paths.
func (e *Endpoint) Facts() Result { return e.half.facts }

// do has the thread do something, within the limits of the context and the endpoint.
func (e *Endpoint) do(ctx context.Context, stage Stage, f func(limits) error) error {
	answer := make(chan error, 1)
	if ctx.Err() != nil {
		return atStage(stage, &Error{Call: "stopped", Errno: syscall.ECANCELED})
	}
	select {
	case e.calls <- func() { answer <- e.within(ctx, f) }:
		return atStage(stage, <-answer)
	case <-e.ended:
		return atStage(stage, e.whyEnded())
	case <-ctx.Done():
		return atStage(stage, &Error{Call: "stopped", Errno: syscall.ECANCELED})
	}
}

func (e *Endpoint) whyEnded() error {
	if e.expired.Load() {
		return &Error{Call: "deadline", Errno: syscall.ETIMEDOUT}
	}
	return &Error{Call: "closed", Errno: syscall.ECANCELED}
}

// within is on the thread. Each call has a stop of its own: the end of a context
// whose call is over must not stop the next one.
func (e *Endpoint) within(ctx context.Context, f func(limits) error) error {
	stop := new(atomic.Int32)
	e.stop.Store(stop)
	if e.closing.Load() { // after Store: either this sees it, or Close sees stop
		stop.Store(1)
	}
	defer context.AfterFunc(ctx, func() { stop.Store(1) })()
	l := limits{deadline: e.half.limits.deadline, stop: stop}
	if deadline, ok := ctx.Deadline(); ok {
		l.deadline = min(l.deadline, monotonic()+time.Until(deadline))
	}
	l.enough = l.deadline
	if err := l.ended(); err != nil {
		return err
	}
	return f(l)
}

// Close gives everything back, in reverse order. When it returns, nobody can write
// to the buffer any more. It ends what is under way, and can be called again, from
// anywhere: it always returns what the first call found.
func (e *Endpoint) Close() error {
	e.close.Do(func() {
		e.closing.Store(true)
		if stop := e.stop.Load(); stop != nil {
			stop.Store(1)
		}
		e.calls <- func() { e.err = atStage(StageTeardown, e.half.close()) }
	})
	<-e.ended
	return e.err
}

// half is what an endpoint's thread works with: the parts of a run, of which it uses
// the source to write from and the destination to be written to.
type half struct {
	*run
	role   Role
	memory Memory
	peer   *Address // nil until it is connected
	facts  Result   // after opening
	gone   bool

	pairs   []queuePair
	psns    []uint32
	base    transfer // once it is connected
	channel handle
	filled  bool
	broken  error // of a write that failed: what is left of it would pass for the next one's
	ring    *ring // of staged memory
}

func newHalf(ctx context.Context, spec EndpointSpec, load loader) *half {
	h := &half{run: newRun(ctx, spec.spec(), load), role: spec.Role, memory: spec.Memory}
	h.pick = func(gids []GID) (GID, error) { return chooseGIDFor(gids, spec.Peer) }
	return h
}

// open does all that needs no peer. What it made before a failure is gone when it
// returns.
func (h *half) open() error {
	defer h.unregister()
	for _, step := range []struct {
		stage Stage
		do    func() error
	}{{StageOpen, h.run.open}, {StageGate, h.gate}, {StageAlloc, h.alloc}, {StageRegister, h.register}, {StageConnect, h.makeQueuePairs}} {
		err := h.ended()
		if err == nil {
			err = step.do()
		}
		if err != nil {
			return errors.Join(atStage(step.stage, err), atStage(StageTeardown, h.undo.unwind()))
		}
	}
	// The context was that of the opening alone.
	h.limits = limits{deadline: h.limits.deadline, stop: new(atomic.Int32)}
	if left := h.spec.Deadline - time.Since(h.result.Started); left > 0 {
		h.limits.deadline = monotonic() + left
	}
	h.result.Stages = nil
	h.facts = h.result
	return nil
}

// close is Close on the thread.
func (h *half) close() error {
	h.gone = true
	return h.undo.unwind()
}

// gate is that of a run, and asks for more: rates by a function that jobs do not use
// say nothing.
func (h *half) gate() error {
	if err := h.run.gate(); err != nil {
		return err
	}
	if h.memory == MemoryGPU && h.result.DataDirect.Value {
		return ErrDataDirect
	}
	return nil
}

// end is a buffer, with what the peer may do with it.
type end struct {
	*buffers
	allow access
}

// ends are the buffers that the role needs.
func (h *half) ends() []end {
	var ends []end
	if h.role.sends() {
		ends = append(ends, end{&h.source, accessNone})
	}
	if h.role.receives() {
		ends = append(ends, end{&h.destination, accessWrite})
	}
	return ends
}

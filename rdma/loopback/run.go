package loopback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/sysread"
)

// loader returns libibverbs and where it was found.
type loader func(dirs []string) (verbs, string, error)

// Run measures one NIC, with one GPU or none. It returns when all that it made is
// gone again, soon after the context or the deadline ends at the latest: only a
// call that hangs in the kernel can hold it up.
func Run(ctx context.Context, spec Spec) Result {
	return runOnThread(ctx, spec, loadLibrary)
}

// runOnThread gives the run a thread of its own, since CUDA contexts and CPU time
// belong to threads. The goroutine ends without unlocking, and so the thread too,
// with whatever libraries have left on it.
func runOnThread(ctx context.Context, spec Spec, load loader) Result {
	done := make(chan Result, 1)
	go func() {
		runtime.LockOSThread()
		r := newRun(ctx, spec.withDefaults(), load)
		r.all()
		done <- r.result
	}()
	return <-done
}

// run is a measurement under way.
type run struct {
	spec   Spec
	load   loader
	files  *portFiles
	pick   func([]GID) (GID, error) // the GID to use, of those that there are
	limits limits
	result Result
	undo   undo

	verbs   verbs
	context handle
	device  deviceLimits
	port    portState
	pd      handle
	gpu     GPU

	seed                uint64
	source, destination buffers
	scratch             *hostMemory // where RDMA READs go
	scratchRegion       region
	registered          bool // GPU memory is

	stopping   atomic.Int32
	unregister func() bool
}

// buffers are the memory at one end: host and GPU memory of the same size.
type buffers struct {
	host       *hostMemory
	hostRegion region
	gpu        GPUMemory
	gpuRegion  region
}

func newRun(ctx context.Context, spec Spec, load loader) *run {
	now := time.Now()
	r := &run{
		spec: spec, load: load, files: newPortFiles(spec.SysfsRoot, spec.Device, spec.Port), pick: chooseGID,
		result: Result{
			Device: spec.Device, Port: spec.Port, RegisterOnly: spec.RegisterOnly, Started: now, NUMANode: -1,
			MessageSize: spec.MessageSize, QueuePairs: spec.QueuePairs,
		},
		seed: rand.Uint64(),
	}
	left := spec.Deadline
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, deadline.Sub(now))
	}
	r.limits = limits{deadline: monotonic() + left, stop: &r.stopping}
	r.limits.enough = r.limits.deadline
	r.unregister = context.AfterFunc(ctx, func() { r.stopping.Store(1) })
	return r
}

// monotonic is CLOCK_MONOTONIC, which time.Time does not show.
func monotonic() time.Duration { return clock(unix.CLOCK_MONOTONIC) }

// cpuTime is what this thread has used.
func cpuTime() time.Duration { return clock(unix.CLOCK_THREAD_CPUTIME_ID) }

func clock(id int32) time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(id, &now) // both clocks exist on every Linux
	return time.Duration(now.Nano())
}

// all does the whole run, whose stages up to register are common to all paths.
func (r *run) all() {
	defer r.unregister()
	common := []struct {
		stage Stage
		do    func() error
	}{{StageOpen, r.open}, {StageGate, r.gate}, {StageAlloc, r.alloc}, {StageRegister, r.register}}
	ready := true
	for _, step := range common {
		if ready = r.stage(step.stage, "", step.do) == nil; !ready {
			break
		}
	}
	if ready {
		r.paths()
	}
	// Not a stage that a deadline can keep from being done. Its error is noted.
	_ = r.timed(StageTeardown, "", r.undo.unwind)
	r.result.Duration = time.Since(r.result.Started)
}

// paths measures the wanted paths, those of a kind that can be compared in turn if
// that is asked for.
func (r *run) paths() {
	var inTurn, alone []Path
	for _, path := range Paths {
		switch {
		case !slices.Contains(r.spec.Paths, path):
		case r.spec.Slices > 1 && path != PathStaged:
			inTurn = append(inTurn, path)
		default:
			alone = append(alone, path)
		}
	}
	r.pathsInTurn(inTurn)
	for _, path := range alone {
		r.path(path)
	}
	r.compare()
}

// stage does a stage, unless the run is to end.
func (r *run) stage(stage Stage, path Path, do func() error) error {
	return r.timed(stage, path, func() error {
		if err := r.ended(); err != nil {
			return err
		}
		return do()
	})
}

// timed does a stage and notes how it went.
func (r *run) timed(stage Stage, path Path, do func() error) error {
	r.spec.OnStage(stage, path)
	began := time.Now()
	err := do()
	r.result.Stages = append(r.result.Stages, StageResult{stage, path, time.Since(began), err})
	return err
}

// ended returns why the run is to end, nil if it is not.
func (r *run) ended() error { return r.limits.ended() }

// ended is the same of anything with limits.
func (l limits) ended() error {
	switch {
	case l.stop.Load() != 0:
		return &Error{Call: "stopped", Errno: syscall.ECANCELED}
	case monotonic() >= l.deadline:
		return &Error{Call: "deadline", Errno: syscall.ETIMEDOUT}
	}
	return nil
}

// phase are the limits of a phase that begins now.
func (r *run) phase() limits {
	l := r.limits
	l.enough = min(l.deadline, monotonic()+r.spec.PhaseTime)
	return l
}

// open opens library, lock, NIC and GPU.
func (r *run) open() error {
	if err := r.spec.check(); err != nil {
		return err
	}
	if r.spec.LockPath != "" {
		lock, err := TryLock(r.spec.LockPath)
		if err != nil {
			return err
		}
		r.undo.add("lock", lock.Unlock)
	}
	if r.spec.LedgerPath != "" {
		r.undo.add("ledger", r.record)
	}
	v, path, err := r.load(r.spec.LibraryDirs)
	if err != nil {
		return err
	}
	r.verbs, r.result.Library = v, path
	r.undo.add("library", func() error { v.unload(); return nil })
	if err := r.openNIC(); err != nil {
		return err
	}
	return r.openGPU()
}

func (r *run) openNIC() error {
	name, err := r.files.uverbs(r.spec.Device)
	if err != nil {
		return skipNode(err)
	}
	if err := openable(filepath.Join(r.spec.DevRoot, name)); err != nil {
		return skipNode(err)
	}
	if r.context, err = r.verbs.open(r.spec.Device); err != nil {
		return err
	}
	r.undo.add("device", func() error { return r.verbs.close(r.context) })
	if r.device, err = r.verbs.queryDevice(r.context); err != nil {
		return err
	}
	if r.pd, err = r.verbs.allocPD(r.context); err != nil {
		return err
	}
	r.undo.add("protection domain", func() error { return r.verbs.deallocPD(r.pd) })
	return nil
}

func (r *run) openGPU() error {
	if !r.spec.usesGPU() {
		return nil
	}
	gpu, err := r.spec.OpenGPU()
	if err != nil {
		return fmt.Errorf("GPU: %w", err)
	}
	r.gpu, r.result.GPU = gpu, sysread.Some(gpu.Facts())
	r.undo.addMemory("GPU", gpu.Close)
	return nil
}

// Numbers of enum ibv_port_state.
var portStates = map[int]string{0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}

const portActive = 4

// mtuBytes are the bytes of enum ibv_mtu.
var mtuBytes = map[int]int{1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}

// gate finds out whether a measurement can succeed and is welcome.
func (r *run) gate() error {
	var err error
	if r.port, err = r.verbs.queryPort(r.context, r.spec.Port); err != nil {
		return err
	}
	r.result.Ethernet = r.port.ethernet
	r.result.MTU = mtuBytes[r.port.mtu]
	r.result.NUMANode = r.files.numaNode()
	r.testDataDirect()
	if err := r.enoughMemory(); err != nil || r.spec.RegisterOnly {
		return err
	}
	if r.port.state != portActive {
		return skip(SkipPort, fmt.Errorf("port %d is in state %d %s, not ACTIVE: %w", r.spec.Port, r.port.state, portStates[r.port.state], syscall.ENETDOWN))
	}
	if most := r.port.messageSize; most > 0 && uint64(max(r.spec.MessageSize, r.spec.ChunkSize)) > most {
		return fmt.Errorf("messages of %d bytes, chunks of %d: the port takes %d: %w", r.spec.MessageSize, r.spec.ChunkSize, most, syscall.EMSGSIZE)
	}
	if r.result.PKey, err = r.files.pkey(r.spec.PKey); err != nil {
		return err
	}
	return r.findGID()
}

// enoughMemory refuses a GPU whose memory others need.
func (r *run) enoughMemory() error {
	if r.gpu == nil {
		return nil
	}
	if free := r.gpu.Facts().Free; free < r.spec.FreeGPUMemory {
		return skip(SkipMemory, fmt.Errorf("GPU memory: %d bytes free, %d wanted: %w", free, r.spec.FreeGPUMemory, syscall.ENOMEM))
	}
	return nil
}

// testDataDirect asks for a data-direct function. An old library cannot tell.
func (r *run) testDataDirect() {
	err := r.verbs.dataDirect(r.context)
	switch {
	case err == nil:
		r.result.DataDirect = sysread.Some(true)
	case errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EPROTONOSUPPORT):
		r.result.DataDirect = sysread.Some(false)
	}
}

// findGID looks for the GID anew in each run: they move when a link goes down
// and up (NVIDIA/nccl#2157). InfiniBand needs none as a rule.
func (r *run) findGID() error {
	if !r.port.ethernet && !r.port.grhRequired && r.port.lid != 0 && !r.spec.GID.Known {
		return nil
	}
	gids, err := r.files.gids()
	var gid GID
	switch {
	case err != nil && len(gids) == 0:
		return err
	case r.spec.GID.Known:
		gid, err = gidAt(gids, r.spec.GID.Value)
	case r.port.ethernet:
		gid, err = r.pick(gids)
	default:
		gid, err = gidAt(gids, 0)
	}
	if err != nil {
		return err
	}
	r.result.GID = sysread.Some(gid)
	return nil
}

// alloc allocates the buffers. It fills the sources with the pattern.
func (r *run) alloc() error {
	if r.spec.RegisterOnly {
		return r.allocGPU(&r.source, hugePage)
	}
	var err error
	for _, end := range []*buffers{&r.source, &r.destination} {
		if end.host, err = r.allocHost(r.spec.BufferSize); err != nil {
			return err
		}
		if r.gpu == nil {
			continue
		}
		if err := r.allocGPU(end, roundUp(r.spec.BufferSize, hugePage)); err != nil {
			return err
		}
	}
	if r.scratch, err = r.allocHost(min(r.spec.ReadBack, r.spec.BufferSize) / 8 * 8); err != nil {
		return err
	}
	fill(r.source.host.bytes, r.seed, 0)
	if r.gpu != nil {
		if err := r.source.gpu.Write(0, r.source.host.bytes); err != nil {
			return fmt.Errorf("GPU: %w", err)
		}
	}
	return nil
}

func (r *run) allocGPU(end *buffers, size int) error {
	memory, err := r.gpu.Alloc(size)
	if err != nil {
		return fmt.Errorf("GPU: %w", err)
	}
	end.gpu = memory
	r.undo.addMemory("GPU memory", memory.Free)
	return nil
}

func (r *run) allocHost(size int) (*hostMemory, error) {
	memory, err := allocHost(size, r.result.NUMANode)
	if err == nil {
		r.undo.addMemory("host memory", memory.free)
	}
	return memory, err
}

// cpuSecondsPerGB is what a piece of work cost this thread.
func cpuSecondsPerGB(cpu time.Duration, bytes uint64) sysread.Maybe[float64] {
	if bytes == 0 {
		return sysread.Maybe[float64]{}
	}
	return sysread.Some(cpu.Seconds() / (float64(bytes) / 1e9))
}

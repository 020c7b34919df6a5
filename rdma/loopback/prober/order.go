package prober

import (
	"errors"
	"slices"
	"time"

	"gdr_exporter/rdma/loopback"
)

// BusySlices is how many slices a path is measured in under load.
const BusySlices = 4

// begun is an Order whose run has begun.
type begun struct {
	Order
	depth Depth
	idle  bool
	began time.Time
}

// order is a run that begins now.
func (p *Prober) order(pair *pair, depth Depth, idle bool) begun {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	pair.attempted[depth] = now
	running := pair.Pair
	p.running, p.lastRun[pair.GPU] = &running, now
	// Until the process is replaced whose CUDA does not work any more.
	isolated := p.isolation() == InChild || p.cudaUnusable
	p.inProcess = !isolated
	p.cudaLoaded = p.cudaLoaded || !isolated
	p.unsaved = p.unsaved || !isolated
	return begun{Order{Pair: pair.Pair, Spec: p.spec(pair, depth, idle), Isolated: isolated}, depth, idle, now}
}

// spec is what is measured.
func (p *Prober) spec(pair *pair, depth Depth, idle bool) loopback.Spec {
	spec := p.options.Spec
	spec.Device, spec.Port, spec.LockPath = pair.Device, pair.Port, ""
	spec.FreeGPUMemory = p.options.MinFree
	if depth == DepthRegister {
		spec.RegisterOnly = true
		return spec
	}
	spec.Paths = []loopback.Path{loopback.PathHost, loopback.PathGPURead, loopback.PathGPUWrite, loopback.PathGPU}
	switch {
	case !idle:
		spec.Slices = BusySlices
	case pair.stagedDue(p.options.StagedInterval):
		spec.Paths = loopback.Paths
	}
	return spec
}

// stagedDue reports whether path staged is to be measured: seldom, but again at
// once where it went wrong.
func (p *pair) stagedDue(interval time.Duration) bool {
	if p.full == nil || time.Since(p.full.Staged) >= interval {
		return true
	}
	return slices.ContainsFunc(p.full.Result.Paths, func(path loopback.PathResult) bool {
		return path.Path == loopback.PathStaged && (path.Err != nil || path.Mismatches.Value > 0)
	})
}

// expected is how many bytes a run moves, at most.
func (p *Prober) expected(pair *pair, depth Depth) uint64 {
	return p.spec(pair, depth, true).MostBytes()
}

// interval is that of full runs, also where none are scheduled.
func (o *Options) interval() time.Duration {
	if o.Interval == 0 {
		return time.Hour
	}
	return o.Interval
}

// takeLock takes the host-wide lock. It is held for as long as a run hangs.
func (p *Prober) takeLock() (Reason, error) {
	if p.options.LockPath == "" || p.lock != nil {
		return ReasonNone, nil
	}
	lock, err := loopback.TryLock(p.options.LockPath)
	switch {
	case errors.Is(err, loopback.ErrLocked):
		return ReasonLocked, err
	case err != nil:
		return ReasonLock, err
	}
	p.lock = lock
	return ReasonNone, nil
}

func (p *Prober) dropLock() {
	if _, hangs := p.hangs(); p.lock == nil || hangs {
		return
	}
	_ = p.lock.Unlock()
	p.lock = nil
}

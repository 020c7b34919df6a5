package prober

import (
	"context"
	"time"

	"gdr_exporter/collector/sysread"
)

// Idle is a port used below a twentieth of its rate each way, and a GPU below a
// tenth, over ten seconds.
const (
	window      = 10 * time.Second
	windowLooks = 3
	idlePort    = 0.05
	idleGPU     = 0.10
)

// loads are looks at a pair's load, oldest first.
type loads []Load

// watched is what was seen of a pair before a run.
type watched struct {
	loads     loads
	processes []int // on its GPU when the first look was taken
	err       error // they could not be read
}

// watchLoad looks at the load of pairs over the window. It stops looking at one
// that is busy, and returns early if ctx is done.
func (p *Prober) watchLoad(ctx context.Context, pairs []*pair) map[*pair]*watched {
	seen := map[*pair]*watched{}
	for _, pair := range pairs {
		w := &watched{}
		w.processes, w.err = p.options.Host.Processes(ctx, pair.GPU)
		seen[pair] = w
	}
	for look := range windowLooks {
		if look > 0 && !sleep(ctx, window/(windowLooks-1)) {
			return seen
		}
		for _, pair := range pairs {
			if w := seen[pair]; len(w.loads) < 2 || !w.loads.busy().load() {
				w.loads = append(w.loads, p.options.Host.Load(ctx, pair.Pair))
			}
		}
	}
	return seen
}

// busyNow says what keeps a pair from traffic, of which the window was a moment
// ago: other pairs ran since.
func (p *Prober) busyNow(ctx context.Context, pair *pair, w *watched) Reason {
	const moment = time.Second
	if len(w.loads) < 2 {
		return ReasonStopped
	}
	if busy := w.loads.busy(); busy != ReasonNone {
		return busy
	}
	last := w.loads[len(w.loads)-1]
	if time.Since(last.Time) < moment {
		return ReasonNone
	}
	return loads{last, p.options.Host.Load(ctx, pair.Pair)}.busy()
}

// busy says what the load keeps from: a counter that went backwards or could not
// be read tells nothing.
func (l loads) busy() Reason {
	first, last := l[0], l[len(l)-1]
	seconds := last.Time.Sub(first.Time).Seconds()
	most := last.Rate.Value * seconds
	moved := func(of func(Load) sysread.Maybe[uint64]) (bytes float64, known bool) {
		before, after := of(first), of(last)
		return float64(after.Value - before.Value), before.Known && after.Known && after.Value >= before.Value
	}
	sent, sentKnown := moved(func(load Load) sysread.Maybe[uint64] { return load.Sent })
	received, receivedKnown := moved(func(load Load) sysread.Maybe[uint64] { return load.Received })
	gpu, gpuKnown := 0.0, true
	for _, load := range l {
		gpu += load.GPU.Value / float64(len(l))
		gpuKnown = gpuKnown && load.GPU.Known
	}
	switch {
	case most > 0 && (sentKnown && sent > idlePort*most || receivedKnown && received > idlePort*most):
		return ReasonNICBusy
	case gpuKnown && gpu > idleGPU:
		return ReasonGPUBusy
	case most <= 0 || !last.Rate.Known || !sentKnown || !receivedKnown || !gpuKnown:
		return ReasonLoadUnknown
	}
	return ReasonNone
}

// sleep waits, and reports whether ctx was not done before.
func sleep(ctx context.Context, duration time.Duration) bool {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// IdleGPU is the utilisation above which a GPU is not idle.
const IdleGPU = idleGPU

// BusyPort says whether a port of a pair without GPU is under load, over a shorter time
// than runs of the schedule look: for traffic that is over in a moment.
func BusyPort(ctx context.Context, host Host, at Pair, over time.Duration) Reason {
	first := host.Load(ctx, at)
	if !sleep(ctx, over) {
		return ReasonStopped
	}
	return loads{first, host.Load(ctx, at)}.busy()
}

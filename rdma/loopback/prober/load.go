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

// watchLoad looks at the load of pairs over the window, and returns what keeps
// each from traffic. It returns early, with nothing, if ctx is done.
func (p *Prober) watchLoad(ctx context.Context, pairs []*pair) map[*pair]Reason {
	seen := make([]loads, len(pairs))
	for look := range windowLooks {
		if look > 0 && !sleep(ctx, window/(windowLooks-1)) {
			return nil
		}
		for i, pair := range pairs {
			seen[i] = append(seen[i], p.options.Host.Load(ctx, pair.Pair))
		}
	}
	busy := map[*pair]Reason{}
	for i, pair := range pairs {
		busy[pair] = seen[i].busy()
	}
	return busy
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

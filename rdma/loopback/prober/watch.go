package prober

import (
	"context"
	"slices"
	"sync"
	"time"
)

// watchEvery is how often a GPU is looked at for new processes during a run.
const watchEvery = 100 * time.Millisecond

// watched makes a run and ends it at once if a process comes to its GPU. cause is
// why it was ended, nil if it was not.
func (p *Prober) watched(ctx context.Context, order Order, before []int) (ending Ending, cause error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watcher := &watcher{host: p.options.Host, gpu: order.GPU, before: before}
	order.Started = watcher.own
	watching, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		if watcher.newcomer(watching) {
			cancel(errNewProcess)
		}
	})
	ending = p.options.Runner.Run(ctx, order)
	if ctx.Err() != nil {
		cause = context.Cause(ctx)
	}
	stop()
	group.Wait()
	return ending, cause
}

// watcher looks for processes that come to a GPU.
type watcher struct {
	host   Host
	gpu    string
	before []int

	mu  sync.Mutex
	pid int // of the run
}

func (w *watcher) own(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pid = pid
}

// newcomer waits for a process that was not there before. One of them is the run
// itself: in a container it may have another id for the driver.
func (w *watcher) newcomer(ctx context.Context) bool {
	for first := true; first || sleep(ctx, watchEvery); first = false {
		now, err := w.host.Processes(ctx, w.gpu)
		if err != nil {
			continue
		}
		w.mu.Lock()
		own := w.pid
		w.mu.Unlock()
		strangers := slices.DeleteFunc(slices.Clone(now), func(pid int) bool { return slices.Contains(w.before, pid) })
		allowed := 1
		if slices.Contains(now, own) {
			strangers = slices.DeleteFunc(strangers, func(pid int) bool { return pid == own })
			allowed = 0
		}
		if len(strangers) > allowed {
			return true
		}
	}
	return false
}

package isolate

import (
	"context"
	"os"
	"sync"
	"time"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// DefaultGrace is that of a Runner without one.
const DefaultGrace = 2 * time.Second

// Runner makes runs, each where its order says. Zero values of the fields that have
// a default stand for it.
type Runner struct {
	// Open opens GPUs for runs in this process. A child has its own: see [ChildMain].
	Open func(GPUSettings) func() (loopback.GPU, error)
	// Settings say how to open a GPU.
	Settings func(gpu string, registerOnly bool) GPUSettings
	// Grace is how long a run may go on after its deadline, or after it was told to
	// end, to give back what it has. Default: DefaultGrace.
	Grace time.Duration

	// Path and Args are the program of a child, and its arguments. Default: this
	// binary, also if its file was replaced, with ChildCommand.
	Path string
	Args []string
	// Environ is the environment of a child, such as this process's without what
	// would make it a client of MPS. Default: os.Environ.
	Environ func() []string

	run runFunc // default loopback.Run
}

var _ prober.Runner = (*Runner)(nil)

type runFunc func(context.Context, loopback.Spec) loopback.Result

// Run implements prober.Runner.
func (r *Runner) Run(ctx context.Context, order prober.Order) prober.Ending {
	if order.Spec.Deadline <= 0 {
		order.Spec.Deadline = loopback.DefaultDeadline
	}
	watch := newWatch(order)
	if order.Isolated {
		return r.inChild(ctx, order, watch)
	}
	return r.inProcess(ctx, order, watch)
}

func (r *Runner) grace() time.Duration {
	if r.Grace > 0 {
		return r.Grace
	}
	return DefaultGrace
}

// settings are those of the order's GPU, nil if it has none.
func (r *Runner) settings(order *prober.Order) *GPUSettings {
	if order.GPU == "" {
		return nil
	}
	settings := r.Settings(order.GPU, order.Spec.RegisterOnly)
	return &settings
}

// inProcess makes a run in a goroutine, which is left behind if it hangs: nothing
// can end a call that is in the kernel.
func (r *Runner) inProcess(ctx context.Context, order prober.Order, watch *watch) prober.Ending {
	spec := order.Spec
	spec.OnStage = watch.onStage
	if settings := r.settings(&order); settings != nil {
		spec.OpenGPU = r.Open(*settings)
	}
	if order.Started != nil {
		order.Started(os.Getpid())
	}
	run := r.run
	if run == nil {
		run = loopback.Run
	}
	done, gone := make(chan loopback.Result, 1), make(chan struct{})
	go func() {
		defer close(gone)
		done <- run(ctx, spec)
	}()
	patience := time.NewTimer(spec.Deadline + r.grace())
	defer patience.Stop()
	ended := ctx.Done()
	for {
		select {
		case result := <-done:
			return prober.Ending{Result: result, Sticky: result.Sticky()}
		case <-ended:
			ended = nil
			patience.Reset(min(r.grace(), watch.left(r.grace())))
		case <-patience.C:
			return watch.hung(gone)
		}
	}
}

// watch is what is known of a run that has not ended.
type watch struct {
	order prober.Order
	began time.Time

	mu    sync.Mutex
	stage loopback.Stage
	over  bool // nobody is to be told any more
}

func newWatch(order prober.Order) *watch {
	return &watch{order: order, began: time.Now(), stage: loopback.StageOpen}
}

// onStage notes the stage that begins. A run that was left behind says so to nobody
// else any more.
func (w *watch) onStage(stage loopback.Stage, path loopback.Path) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	w.stage = stage
	if w.order.Spec.OnStage != nil {
		w.order.Spec.OnStage(stage, path)
	}
}

// left is how long the run may still take.
func (w *watch) left(grace time.Duration) time.Duration {
	return max(w.order.Spec.Deadline+grace-time.Since(w.began), 0)
}

// close ends the telling, and returns the stage that was told last.
func (w *watch) close() loopback.Stage {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	return w.stage
}

// known is the result as far as it was told.
func (w *watch) known() loopback.Result {
	return loopback.Result{
		Device: w.order.Device, Port: w.order.Port, Started: w.began, Duration: time.Since(w.began),
		RegisterOnly: w.order.Spec.RegisterOnly, NUMANode: -1,
	}
}

// hung is how a run ends that does not; gone is closed when it has after all.
func (w *watch) hung(gone <-chan struct{}) prober.Ending {
	return prober.Ending{Result: w.known(), Hung: true, Stage: w.close(), Gone: gone}
}

// failed is a run that ended in the stage open.
func (w *watch) failed(err error) prober.Ending {
	result := w.known()
	result.Stages = []loopback.StageResult{{Stage: loopback.StageOpen, Duration: result.Duration, Err: err}}
	w.close()
	return prober.Ending{Result: result}
}

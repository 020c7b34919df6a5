package isolate

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/child"
	"gdr_exporter/rdma/loopback/prober"
)

// sayTime is how long a child that is gone may take to be heard to the end: longer only
// if a process of its own, which it should not have, holds its pipes open.
const sayTime = time.Second

// process is a *child.Process.
type process interface {
	ID() int
	Write(text []byte) (int, error)
	Read(text []byte) (int, error)
	Gone() <-chan struct{}
	State() *os.ProcessState
	Terminate()
	Kill() (gone bool)
	LastWords() string
	Close()
}

// childRun is a run in a child.
type childRun struct {
	process
	watch *watch

	heard  chan struct{} // closed when it says no more
	result *loopback.Result
	flood  error
	answer chan struct{} // closed with the result
}

// inChild makes a run in a child, and returns when the child is gone, or when it
// cannot be killed: it is reaped whenever it goes, then.
func (r *Runner) inChild(ctx context.Context, order prober.Order, watch *watch) prober.Ending {
	if deadline, ok := ctx.Deadline(); ok {
		order.Spec.Deadline = max(min(order.Spec.Deadline, time.Until(deadline)), 1)
	}
	text, err := r.orderText(&order)
	if err != nil {
		return watch.failed(err)
	}
	c, err := r.start(watch)
	if err != nil {
		return watch.failed(err)
	}
	defer c.Close()
	if order.Started != nil {
		order.Started(c.ID())
	}
	// It fits into the pipe. If the child is gone by now its end says why.
	_, _ = c.Write(text)
	if hung := c.attend(ctx, r.grace()); hung {
		return c.hung()
	}
	return c.ending(ctx)
}

func (r *Runner) orderText(o *prober.Order) ([]byte, error) {
	text, err := json.Marshal(order{Spec: o.Spec, GPU: r.settings(o)})
	if err != nil {
		return nil, fmt.Errorf("order to the child: %w", err)
	}
	if len(text) >= mostOrder {
		return nil, fmt.Errorf("order to the child: %d bytes, at most %d", len(text), mostOrder)
	}
	return append(text, '\n'), nil
}

// start starts a child and listens to it.
func (r *Runner) start(watch *watch) (*childRun, error) {
	program := child.Program{Path: r.Path, Args: r.Args, Environ: r.Environ}
	if program.Args == nil {
		program.Args = []string{ChildCommand}
	}
	p, err := program.Start()
	if err != nil {
		return nil, err
	}
	c := newChildRun(p, watch)
	go c.listen()
	return c, nil
}

func newChildRun(p process, watch *watch) *childRun {
	return &childRun{process: p, watch: watch, heard: make(chan struct{}), answer: make(chan struct{})}
}

// listen notes what the child says.
func (c *childRun) listen() {
	defer close(c.heard)
	c.flood = readMessages(c, func(m message) {
		switch {
		case m.Result != nil && c.result == nil:
			c.result = m.Result
			close(c.answer)
		case m.Stage != "":
			c.watch.onStage(m.Stage, m.Path)
		}
	})
}

// attend waits for the end of the child, and brings it about if it does not come.
// It reports whether the child had to be killed for being late.
func (c *childRun) attend(ctx context.Context, grace time.Duration) (late bool) {
	patience := time.NewTimer(c.watch.left(grace))
	defer patience.Stop()
	ended, answer, heard := ctx.Done(), c.answer, c.heard
	for {
		select {
		case <-c.Gone():
			return false
		case <-ended:
			ended = nil
			c.Terminate()
			patience.Reset(min(grace, c.watch.left(grace)))
		case <-answer: // all that is left to it is to go
			answer = nil
			patience.Reset(grace)
		case <-heard:
			heard = nil
			if c.flood != nil {
				return !c.Kill()
			}
		case <-patience.C:
			if !c.Kill() {
				return true
			}
			c.await(c.heard) // it may just have answered
			return !c.answered()
		}
	}
}

// answered reports whether the result has come.
func (c *childRun) answered() bool {
	select {
	case <-c.answer:
		return true
	default:
		return false
	}
}

// hung is the ending of a child that was killed for being late, or could not even
// be killed. What it told of its result holds.
func (c *childRun) hung() prober.Ending {
	ending := c.watch.hung(c.Gone())
	if c.answered() {
		ending.Result = *c.result
	}
	return ending
}

// ending is that of a child that is gone.
func (c *childRun) ending(ctx context.Context) prober.Ending {
	// What it said is in the pipe.
	c.await(c.heard)
	if c.answered() {
		c.watch.close()
		result := *c.result
		return prober.Ending{Result: result}
	}
	if ctx.Err() != nil && c.endedBySignal() {
		// It was told to end before it listened.
		return c.watch.failed(&loopback.Error{Call: "stopped", Errno: syscall.ECANCELED})
	}
	ending := prober.Ending{Result: c.watch.known(), Crash: c.crash()}
	ending.Stage = c.watch.close()
	return ending
}

func (c *childRun) await(end <-chan struct{}) {
	select {
	case <-end:
	case <-time.After(sayTime):
	}
}

// endedBySignal reports whether the child died of the SIGTERM it was sent.
func (c *childRun) endedBySignal() bool {
	status, ok := c.State().Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGTERM
}

// crash says how the child died.
func (c *childRun) crash() string {
	how := c.State().String()
	switch {
	case c.flooded():
		how = child.ErrFlood.Error()
	case c.State().Success():
		how += " without a result"
	}
	if said := c.LastWords(); said != "" {
		how += ": " + said
	}
	return how
}

// flooded reports whether the child was killed for what it wrote.
func (c *childRun) flooded() bool {
	select {
	case <-c.heard:
		return c.flood != nil
	default:
		return false
	}
}

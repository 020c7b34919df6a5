package isolate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// reapTime is how long a killed child may take to be gone: longer only if it is in
// the kernel and cannot be interrupted.
const reapTime = time.Second

// child is a process that makes a run.
type child struct {
	watch   *watch
	process *os.Process
	stdin   *os.File
	outputs [2]*os.File

	gone  chan struct{} // closed when it is reaped
	state *os.ProcessState

	heard  chan struct{} // closed when it says no more
	result *loopback.Result
	flood  error
	answer chan struct{} // closed with the result

	stderr tail
	quiet  chan struct{} // closed when stderr has ended
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
	defer c.close()
	if order.Started != nil {
		order.Started(c.process.Pid)
	}
	// It fits into the pipe. If the child is gone by now its end says why.
	_, _ = c.stdin.Write(text)
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

// start starts a child and what listens to it.
func (r *Runner) start(watch *watch) (*child, error) {
	c := &child{
		watch: watch, gone: make(chan struct{}), heard: make(chan struct{}), answer: make(chan struct{}), quiet: make(chan struct{}),
	}
	ends, err := c.pipes()
	defer func() {
		for _, end := range ends {
			end.Close()
		}
	}()
	if err == nil {
		err = c.spawn(r, ends)
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("child process: %w", err)
	}
	go c.listen()
	go func() {
		defer close(c.quiet)
		_, _ = io.Copy(&c.stderr, c.outputs[1])
	}()
	return c, nil
}

// pipes makes the pipes, and returns the ends that are the child's.
func (c *child) pipes() (ends []*os.File, err error) {
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.stdin, ends = stdin, append(ends, in)
	for i := range c.outputs {
		output, end, err := os.Pipe()
		if err != nil {
			return ends, err
		}
		c.outputs[i], ends = output, append(ends, end)
	}
	return ends, nil
}

// spawn starts the process and reaps it, on a thread that does nothing else: the
// kernel kills the child when the thread that made it ends, not the process.
func (c *child) spawn(r *Runner, ends []*os.File) error {
	path, args, environ := r.Path, r.Args, r.Environ
	if path == "" {
		path = "/proc/self/exe"
	}
	if args == nil {
		args = []string{ChildCommand}
	}
	if environ == nil {
		environ = os.Environ
	}
	attributes := &os.ProcAttr{
		Dir: "/", Env: environ(), Files: ends,
		Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true},
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		process, err := os.StartProcess(path, append([]string{os.Args[0]}, args...), attributes)
		c.process = process
		started <- err
		if err != nil {
			return
		}
		// It fails only if somebody else has reaped the child.
		if c.state, err = process.Wait(); err != nil {
			c.state = &os.ProcessState{}
		}
		close(c.gone)
	}()
	return <-started
}

// listen notes what the child says.
func (c *child) listen() {
	defer close(c.heard)
	c.flood = readMessages(c.outputs[0], func(m message) {
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
func (c *child) attend(ctx context.Context, grace time.Duration) (late bool) {
	patience := time.NewTimer(c.watch.left(grace))
	defer patience.Stop()
	ended, answer, heard := ctx.Done(), c.answer, c.heard
	for {
		select {
		case <-c.gone:
			return false
		case <-ended:
			ended = nil
			_ = c.process.Signal(syscall.SIGTERM)
			patience.Reset(min(grace, c.watch.left(grace)))
		case <-answer: // all that is left to it is to go
			answer = nil
			patience.Reset(grace)
		case <-heard:
			heard = nil
			if c.flood != nil {
				return !c.kill()
			}
		case <-patience.C:
			if !c.kill() {
				return true
			}
			c.await(c.heard) // it may just have answered
			return !c.answered()
		}
	}
}

// answered reports whether the result has come.
func (c *child) answered() bool {
	select {
	case <-c.answer:
		return true
	default:
		return false
	}
}

// kill reports whether the child is gone after it.
func (c *child) kill() bool {
	_ = c.process.Kill()
	select {
	case <-c.gone:
		return true
	case <-time.After(reapTime):
		return false
	}
}

// hung is the ending of a child that was killed for being late, or could not even
// be killed. What it told of its result holds.
func (c *child) hung() prober.Ending {
	ending := c.watch.hung(c.gone)
	if c.answered() {
		ending.Result = *c.result
	}
	return ending
}

// ending is that of a child that is gone.
func (c *child) ending(ctx context.Context) prober.Ending {
	// What it said is in the pipes. A process of its own, which it should not have,
	// could hold them open.
	c.await(c.heard)
	c.await(c.quiet)
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

func (c *child) await(end <-chan struct{}) {
	select {
	case <-end:
	case <-time.After(reapTime):
	}
}

// endedBySignal reports whether the child died of the SIGTERM it was sent.
func (c *child) endedBySignal() bool {
	status, ok := c.state.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGTERM
}

// crash says how the child died.
func (c *child) crash() string {
	how := c.state.String()
	switch {
	case c.flooded():
		how = errFlood.Error()
	case c.state.Success():
		how += " without a result"
	}
	if said := c.stderr.cause(); said != "" {
		how += ": " + said
	}
	return how
}

// flooded reports whether the child was killed for what it wrote.
func (c *child) flooded() bool {
	select {
	case <-c.heard:
		return c.flood != nil
	default:
		return false
	}
}

// close gives the pipes back, which ends those who listen. A child that still lives
// is reaped when it goes.
func (c *child) close() {
	for _, file := range []*os.File{c.stdin, c.outputs[0], c.outputs[1]} {
		if file != nil {
			file.Close()
		}
	}
}

// mostStderr is what is kept of the beginning and of the end of what a child writes
// to its standard error.
const mostStderr = 4 << 10

// tail keeps the beginning and the end of what is written to it.
type tail struct {
	mu         sync.Mutex
	head, last []byte
}

// Write implements io.Writer.
func (t *tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	written := len(text)
	room := min(mostStderr-len(t.head), len(text))
	t.head = append(t.head, text[:room]...)
	t.last = append(t.last, text[room:]...)
	if over := len(t.last) - mostStderr; over > 0 {
		t.last = append(t.last[:0], t.last[over:]...)
	}
	return written, nil
}

// causes are how the line begins that says why a Go process died; what follows it
// are the stacks of its goroutines.
var causes = []string{"panic: ", "fatal error: ", "SIG"}

// mostCause is the longest line that is shown.
const mostCause = 200

// cause is the line that says most about a death: where Go says why, that one, else
// the last.
func (t *tail) cause() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	best := ""
	for line := range bytes.Lines(append(append([]byte{}, t.head...), t.last...)) {
		text := printable(string(line))
		if text == "" {
			continue
		}
		best = text
		for _, cause := range causes {
			if strings.HasPrefix(text, cause) {
				return text
			}
		}
	}
	return best
}

// printable makes a line fit for a log.
func printable(line string) string {
	line = strings.Map(func(c rune) rune {
		if c == unicode.ReplacementChar || !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, line)
	line = strings.TrimSpace(line)
	if runes := []rune(line); len(runes) > mostCause {
		line = string(runes[:mostCause]) + "..."
	}
	return line
}

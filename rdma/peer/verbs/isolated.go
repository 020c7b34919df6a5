package verbs

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"syscall"
	"time"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/child"
	"gdr_exporter/rdma/loopback/isolate"
	"gdr_exporter/rdma/peer/session"
)

// DefaultGrace is that of an Isolation without one: less than that of sessions, and
// enough to give back GPU memory on a busy node.
const DefaultGrace = 5 * time.Second

// Isolation opens endpoints in children of this program, one in each, so that libcuda
// is never loaded here: what hangs or crashes in a child ends one session, and its
// death gives back all that it had.
type Isolation struct {
	// Program is what the children are. Without Args they are ChildCommand of this
	// binary.
	Program child.Program
	// Settings say how to open GPUs; the address is a session's.
	Settings isolate.GPUSettings
	// Grace is how long a call may take to return when it was told to end, and the
	// child to be gone when it was told to close, before it is killed. Default:
	// DefaultGrace.
	Grace time.Duration

	mu       sync.Mutex
	quiet    bool
	children map[*remote]bool
}

// Quiesce ends the children, and starts no more until Resume. It fails if some are left
// when the context ends.
func (i *Isolation) Quiesce(ctx context.Context) error {
	i.mu.Lock()
	i.quiet = true
	all := make([]*remote, 0, len(i.children))
	for r := range i.children {
		all = append(all, r)
	}
	i.mu.Unlock()
	for _, r := range all {
		go r.end(errQuiet(""))
	}
	for _, r := range all {
		select {
		case <-r.process.Gone():
		case <-ctx.Done():
			return fmt.Errorf("process %d, which measures with another node, does not end: %w", r.process.ID(), syscall.ETIMEDOUT)
		}
	}
	return nil
}

// Resume ends a quiesce.
func (i *Isolation) Resume() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.quiet = false
}

// processes are the ids of the children that there are.
func (i *Isolation) processes() []int {
	i.mu.Lock()
	defer i.mu.Unlock()
	var all []int
	for r := range i.children {
		all = append(all, r.process.ID())
	}
	return all
}

func (i *Isolation) grace() time.Duration {
	if i.Grace > 0 {
		return i.Grace
	}
	return DefaultGrace
}

// start starts a child, unless the exporter is quiesced.
func (i *Isolation) start() (*remote, error) {
	program := i.Program
	if program.Args == nil {
		program.Args = []string{ChildCommand}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.quiet {
		return nil, errQuiet(string(loopback.StageGate))
	}
	p, err := program.Start()
	if err != nil {
		return nil, session.Fail(session.ReasonRDMA, string(loopback.StageOpen), err)
	}
	r := newRemote(p, i.grace())
	if i.children == nil {
		i.children = map[*remote]bool{}
	}
	i.children[r] = true
	go r.listen()
	go func() {
		<-p.Gone()
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.children, r)
	}()
	return r, nil
}

// open opens an endpoint in a child.
func (i *Isolation) open(ctx context.Context, o order) (session.Endpoint, error) {
	o.GPU = i.Settings
	text, err := json.Marshal(o)
	if err != nil {
		return nil, session.Fail(session.ReasonOther, string(loopback.StageOpen), fmt.Errorf("order to the child: %w", err))
	}
	r, err := i.start()
	if err != nil {
		return nil, err
	}
	a, err := r.ask(ctx, string(loopback.StageOpen), numberOpen, append(text, '\n'))
	if err == nil {
		err = r.opened(a)
	}
	if err != nil {
		r.bury()
		return nil, err
	}
	return r, nil
}

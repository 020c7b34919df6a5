package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// calls are those of an endpoint in a session, with the memory for which they count.
var calls = []string{"parse", "open", "connect", "fill", "write", "serve", "verify", "close"}

type trouble struct {
	call string
	peer bool // on the side that serves
}

func troubles(without ...string) []trouble {
	var all []trouble
	for _, call := range calls {
		if !slices.Contains(without, call) {
			all = append(all, trouble{call, false}, trouble{call, true})
		}
	}
	return all
}

// plan has the call made on both sides: whoever has served before the other side wrote
// need not serve.
func (x trouble) plan(b *bench, memory Memory) Plan {
	if x.call == "serve" {
		b.fabric.slow = 200 * time.Millisecond
		return bandwidth(memory, Write, Reverse)
	}
	return bandwidth(memory, Write, Both)
}

func (b *bench) side(peer bool) *node {
	if peer {
		return b.b
	}
	return b.a
}

// TestCallFails: a call that fails on either side ends the session on both, which know
// whose it was and where, and the next session of the connection goes well.
func TestCallFails(t *testing.T) {
	noLeaks(t)
	for _, x := range troubles() {
		b := newBench(t, patient).serve()
		c := b.dial()
		failure := &Failure{Reason: ReasonRDMA, Stage: "of " + x.call, Call: "ibv_" + x.call, Errno: "ENOMEM", Text: "no memory"}
		b.side(x.peer).setHook(func(_ context.Context, call string) error {
			if call == x.call {
				return failure
			}
			return nil
		})
		r := c.Measure(context.Background(), x.plan(b, Staged))
		f := r.Failure
		if f == nil || f.Peer != x.peer || f.Stage != failure.Stage || f.Call != failure.Call || f.Errno != "ENOMEM" || f.Reason != ReasonRDMA {
			t.Errorf("%+v: %+v", x, f)
			continue
		}
		if x.peer || x.call != "parse" && x.call != "open" && x.call != "close" {
			s := b.lastServed(1)
			if s.Failure == nil || s.Failure.Stage != failure.Stage || s.Failure.Peer == x.peer {
				t.Errorf("%+v: served with %+v", x, s.Failure)
			}
		}
		if err := b.balanced(); err != nil {
			t.Errorf("%+v: %v", x, err)
		}
		b.side(x.peer).setHook(nil)
		if r := c.Measure(context.Background(), bandwidth(Staged, Write, Both)); r.Failure != nil {
			t.Errorf("%+v: the next session: %v", x, r.Failure)
		}
	}
}

// callHangs: a call that does not return costs neither connection nor caller. What
// the session has taken is held until it does return.
func callHangs(t *testing.T) {
	limits := patient
	limits.Grace, limits.Step = time.Second, 4*time.Second
	together(troubles("parse"), func(x trouble) {
		b := newBench(t, limits).serve()
		c := b.dial()
		let := make(chan struct{})
		b.side(x.peer).setHook(func(_ context.Context, call string) error {
			if call == x.call {
				<-let
			}
			return nil
		})
		plan := x.plan(b, Staged)
		plan.Within = 10 * time.Millisecond
		began := time.Now()
		r := c.Measure(context.Background(), plan)
		if f := r.Failure; f == nil || f.Reason != ReasonHung || f.Peer != x.peer {
			t.Errorf("%+v: %+v", x, f)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("%+v: took %v", x, took)
		}
		admitted := b.admitA
		if x.peer {
			admitted = b.admitB
			if r := c.Measure(context.Background(), pings); r.Failure == nil || r.Failure.Reason != ReasonBusy || !r.Failure.Peer {
				t.Errorf("%+v: while it hangs: %+v", x, r.Failure)
			}
		}
		if admitted.given.Load() != 1+admitted.back.Load() {
			t.Errorf("%+v: given back while it hangs", x)
		}
		close(let)
		b.side(x.peer).setHook(nil)
		if err := b.serves(); err != nil {
			t.Errorf("%+v: %v", x, err)
		}
	})
}

// TestCancel: who measures may stop at any call of either side. All is given back, and
// the next session of the connection goes well.
func TestCancel(t *testing.T) {
	noLeaks(t)
	for _, x := range troubles("parse", "close") {
		b := newBench(t, patient).serve()
		c := b.dial()
		ctx, cancel := context.WithCancel(context.Background())
		b.side(x.peer).setHook(func(within context.Context, call string) error {
			if call == x.call {
				cancel()
				<-within.Done()
				return within.Err()
			}
			return nil
		})
		r := c.Measure(ctx, x.plan(b, Host))
		if r.Failure == nil || r.Failure.Reason != ReasonStopped || r.Failure.Peer {
			t.Errorf("%+v: %+v", x, r.Failure)
		}
		cancel()
		if err := b.balanced(); err != nil {
			t.Errorf("%+v: %v", x, err)
		}
		b.side(x.peer).setHook(nil)
		if r := c.Measure(context.Background(), bandwidth(Host, Both)); r.Failure != nil {
			t.Errorf("%+v: the next session: %v", x, r.Failure)
		}
	}
}

// waits is a hook that makes a call wait for its end, and says when it does.
func waits(at string) (hook func(context.Context, string) error, waiting chan struct{}) {
	waiting = make(chan struct{}, 8)
	return func(ctx context.Context, call string) error {
		if call == at {
			waiting <- struct{}{}
			<-ctx.Done()
			return fmt.Errorf("ended: %w", syscall.ECANCELED)
		}
		return nil
	}, waiting
}

// TestDeadline: a session that takes too long is ended by both sides.
func TestDeadline(t *testing.T) {
	noLeaks(t)
	for _, peer := range []bool{false, true} {
		b := newBench(t, patient).serve()
		c := b.dial()
		hook, _ := waits("write")
		b.side(peer).setHook(hook)
		plan := bandwidth(Host, Both)
		plan.Deadline = time.Second
		r := c.Measure(context.Background(), plan)
		if r.Failure == nil || r.Failure.Reason != ReasonTimeout || !strings.Contains(r.Failure.Text, "deadline") {
			t.Errorf("%+v", r.Failure)
		}
		if s := b.lastServed(1); s.Failure == nil || s.Failure.Reason != ReasonTimeout {
			t.Errorf("served with %+v", s.Failure)
		}
		if err := b.balanced(); err != nil {
			t.Error(err)
		}
	}
}

// TestServerDeadline: what the server allows counts, whatever the peer wants.
func TestServerDeadline(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient)
	b.server.Limits.Deadline = 300 * time.Millisecond
	b.serve()
	hook, _ := waits("write")
	b.a.setHook(hook)
	r := b.dial().Measure(context.Background(), bandwidth(Host, Both))
	if r.Failure == nil || r.Failure.Reason != ReasonTimeout || !r.Failure.Peer {
		t.Errorf("%+v", r.Failure)
	}
}

// TestShutdown: a server that is told to end ends its sessions first, tells its peers,
// and leaves nothing behind.
func TestShutdown(t *testing.T) {
	noLeaks(t)
	for _, call := range []string{"open", "connect", "fill", "write", "verify"} {
		b := newBench(t, patient).serve()
		c := b.dial()
		hook, waiting := waits(call)
		b.b.setHook(hook)
		results := make(chan *Result, 1)
		go func() { results <- c.Measure(context.Background(), bandwidth(Host, Both)) }()
		<-waiting
		b.stop()
		if err := <-b.ended; err != nil {
			t.Errorf("%s: %v", call, err)
		}
		b.ended <- nil
		if open, _ := b.fabric.count(); open > 1 {
			t.Errorf("%s: %d endpoints are open after the server's end", call, open)
		}
		if r := <-results; r.Failure == nil || r.Failure.Reason != ReasonStopped || !r.Failure.Peer {
			t.Errorf("%s: %+v", call, r.Failure)
		}
	}
}

// TestShutdownHangs: what hangs does not keep the server from ending.
func TestShutdownHangs(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient)
	b.server.Limits.Grace = 200 * time.Millisecond
	b.serve()
	c := b.dial()
	let, hangs := make(chan struct{}), make(chan struct{})
	b.b.setHook(func(_ context.Context, call string) error {
		if call == "write" {
			close(hangs)
			<-let
		}
		return nil
	})
	done := make(chan *Result, 1)
	go func() { done <- c.Measure(context.Background(), bandwidth(Host, Both)) }()
	<-hangs
	b.stop()
	var f *Failure
	if err := <-b.ended; !errors.As(err, &f) || f.Reason != ReasonHung {
		t.Errorf("ended with %v", err)
	}
	b.ended <- nil
	close(let)
	<-done
}

// TestClientCloses: the end of the connection ends what is measured, on both sides.
func TestClientCloses(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient).serve()
	c := b.dial()
	hook, waiting := waits("write")
	b.b.setHook(hook)
	results := make(chan *Result, 1)
	go func() { results <- c.Measure(context.Background(), bandwidth(Host, Both)) }()
	<-waiting
	_ = c.Close()
	if r := <-results; r.Failure == nil || r.Failure.Reason != ReasonStopped || r.Failure.Peer {
		t.Errorf("%+v", r.Failure)
	}
	if s := b.lastServed(1); s.Failure == nil || s.Failure.Reason != ReasonLeft {
		t.Errorf("served with %+v", s.Failure)
	}
	if r := c.Measure(context.Background(), pings); r.Failure == nil || r.Failure.Reason != ReasonStopped {
		t.Errorf("after the end: %+v", r.Failure)
	}
}

// TestMemoryGone: what a peer tore down for a reason of its own is not this side's RDMA
// failure.
func TestMemoryGone(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient).serve()
	gone := make(chan struct{})
	b.b.setHook(func(_ context.Context, call string) error {
		if call == "close" {
			defer close(gone)
		}
		if call == "write" {
			return &Failure{Reason: ReasonGate, Stage: "write", Text: "a job has begun"}
		}
		return nil
	})
	b.a.setHook(func(_ context.Context, call string) error {
		if call == "write" {
			<-gone
			return errRemote
		}
		return nil
	})
	r := b.dial().Measure(context.Background(), bandwidth(Host, Both))
	if f := r.Failure; f == nil || f.Reason != ReasonGate || !f.Peer {
		t.Errorf("%+v", f)
	}
}

// TestAdmission: gates and locks of either side refuse, by their own reason.
func TestAdmission(t *testing.T) {
	noLeaks(t)
	for _, peer := range []bool{false, true} {
		for _, x := range []struct {
			err    error
			reason Reason
		}{
			{Fail(ReasonLocked, "", errors.New("another one measures")), ReasonLocked},
			{errors.New("load"), ReasonGate},
			{context.Canceled, ReasonStopped},
		} {
			b := newBench(t, patient).serve()
			b.admitA.refuse = x.err
			if peer {
				b.admitA.refuse, b.admitB.refuse = nil, x.err
			}
			c := b.dial()
			r := c.Measure(context.Background(), pings)
			if f := r.Failure; f == nil || f.Reason != x.reason || f.Peer != peer || f.Stage != StageAdmit {
				t.Errorf("%v: %+v", x.err, f)
			}
			if b.budgetA.Spent() != 0 || b.budgetB.Spent() != 0 {
				t.Errorf("%v: spent %d, %d", x.err, b.budgetA.Spent(), b.budgetB.Spent())
			}
			b.admitA.refuse, b.admitB.refuse = nil, nil
			if r := c.Measure(context.Background(), pings); r.Failure != nil {
				t.Errorf("%v: the next session: %v", x.err, r.Failure)
			}
		}
	}
}

// TestAdmissionHangs: neither does that hang anybody, and what it gives in the end goes
// back.
func TestAdmissionHangs(t *testing.T) {
	noLeaks(t)
	limits := patient
	limits.Grace, limits.Step = 100*time.Millisecond, 100*time.Millisecond
	for _, peer := range []bool{false, true} {
		b := newBench(t, limits)
		let := make(chan struct{})
		var hangs atomic.Bool
		hangs.Store(true)
		hang := func(c *counted) func(context.Context, Request) (func(), error) {
			return func(ctx context.Context, r Request) (func(), error) {
				if hangs.Load() {
					<-let
				}
				return c.admit(ctx, r)
			}
		}
		if peer {
			b.server.Admit = hang(b.admitB)
		} else {
			b.client.Admit = hang(b.admitA)
		}
		b.serve()
		plan := pings
		plan.Deadline = time.Second
		r := b.dial().Measure(context.Background(), plan)
		if f := r.Failure; f == nil || f.Reason != ReasonHung && f.Reason != ReasonTimeout {
			t.Errorf("%+v", f)
		}
		hangs.Store(false)
		close(let)
		if err := b.serves(); err != nil {
			t.Error(err)
		}
		all := map[bool]int64{false: 3, true: 4}[peer]
		until(t, "what came late is given back", func() bool {
			return b.admitA.given.Load() == b.admitA.back.Load() && b.admitB.given.Load() == b.admitB.back.Load() && b.admitA.given.Load()+b.admitB.given.Load() == all
		})
	}
}

// TestBudgets: bytes are set aside before, settled after, and refused when used up.
func TestBudgets(t *testing.T) {
	noLeaks(t)
	for _, peer := range []bool{false, true} {
		b := newBench(t, patient)
		small := NewBudget(5 << 20)
		if peer {
			b.server.Budget = small
		} else {
			b.client.Budget = small
		}
		b.serve()
		c := b.dial()
		for range 2 {
			if r := c.Measure(context.Background(), bandwidth(Host, Both)); r.Failure != nil {
				t.Fatal(r.Failure)
			}
		}
		r := c.Measure(context.Background(), bandwidth(Host, Both))
		if f := r.Failure; f == nil || f.Reason != ReasonBudget || f.Peer != peer || f.Errno != "EDQUOT" {
			t.Errorf("%+v", f)
		}
		if r := c.Measure(context.Background(), bandwidth(Host, Write)); r.Failure != nil || small.Spent() != 5<<20 {
			t.Errorf("the rest: %v, spent %d", r.Failure, small.Spent())
		}
	}
}

// TestKeysDead: when the responder says that a session has ended, in whatever way, its
// memory is gone already, however long that takes.
func TestKeysDead(t *testing.T) {
	noLeaks(t)
	for says, call := range map[string]string{"closed": "", "failed": "fill", "refused": "connect"} {
		b := newBench(t, patient).serve()
		b.b.setHook(func(_ context.Context, at string) error {
			switch at {
			case "close":
				time.Sleep(100 * time.Millisecond)
			case call:
				return errRemote
			}
			return nil
		})
		r := b.raw()
		_, steps := initiatorScript()
		err := r.follow(steps, 3, func(r *raw, m message) (bool, error) { return false, r.say(message{Close: &ended{}}) })
		for err == nil && r.last.name() != says {
			err = r.hear()
		}
		// A script that was refused, or heard failed, goes no further.
		if r.last.name() != says {
			t.Errorf("%s: heard %v, %v", says, r.heard, err)
		}
		if open, opened := b.fabric.count(); open != 1 || opened != 2 {
			t.Errorf("%s: %d endpoints of %d are open, not that of the initiator alone", says, open, opened)
		}
		r.close()
	}
}

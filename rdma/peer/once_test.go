package peer

import (
	"context"
	"net"
	"testing"
	"time"

	"gdr_exporter/rdma/peer/rails"
	"gdr_exporter/rdma/peer/session"
)

// byHand is a runner that does not run, as a command makes it.
func byHand(t *testing.T, n *member) *Runner {
	t.Helper()
	o := n.options
	o.Listener = nil
	o.Schedule.Tries = 1 // a command need not know the daemon's schedule
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestOnce: a meeting by hand measures what is asked for, with a daemon that plays its
// schedule, and minds the host's lock.
func TestOnce(t *testing.T) {
	c := newCluster(t, 2, func(_ int, n *member) {
		n.options.pace, n.options.Now = 1, time.Now // nobody else comes in between
		n.options.Schedule.Ping, n.options.Schedule.Frame, n.options.Schedule.Round, n.options.Schedule.Guard = 10*time.Minute, time.Hour, 2*time.Hour, 5*time.Minute-time.Second
	})
	a, b := c.nodes[0], c.nodes[1]
	b.start()
	r := byHand(t, a)
	meeting, failure := r.Once(t.Context(), OnceOptions{Target: b.address})
	if failure != nil || meeting.Contact == nil || meeting.Peer.Name != b.name || len(meeting.Paths) != 2 {
		t.Fatalf("%+v, %v", meeting, failure)
	}
	for _, p := range meeting.Paths {
		if p.Ping == nil || p.Ping.Class != ClassFine || p.Ping.Result.ID == "" || p.measured(session.Host) == nil || p.measured(session.GPU) == nil || p.measured(session.Staged) != nil {
			t.Errorf("%+v", p)
		}
	}
	meeting, failure = r.Once(t.Context(), OnceOptions{Target: b.address, All: true, Kinds: []session.Kind{session.Bandwidth}, Memories: []session.Memory{session.Host, session.Staged}})
	if failure != nil || len(meeting.Paths) != 4 || meeting.Paths[1].Basis != rails.ByAll {
		t.Fatalf("%+v, %v", meeting, failure)
	}
	for _, p := range meeting.Paths {
		if p.Ping != nil || p.measured(session.Host) == nil || p.measured(session.Staged) == nil || p.measured(session.GPU) != nil {
			t.Errorf("%+v", p)
		}
	}
	b.change(func() { b.rails[0].GPUs = nil })
	meeting, _ = r.Once(t.Context(), OnceOptions{Target: b.address})
	if p := meeting.Paths[0]; p.Skipped != session.ReasonNoRail || p.SkippedText == "" || p.measured(session.Host) == nil {
		t.Errorf("%+v", p)
	}
	a.change(func() { a.locked = true })
	meeting, failure = r.Once(t.Context(), OnceOptions{Target: b.address})
	if failure != nil || meeting.Paths[0].Skipped != session.ReasonLocked || meeting.Paths[0].Ping != nil {
		t.Errorf("%+v, %v", meeting, failure)
	}
	if p := b.peer(a); p.Contact == nil || p.Listener != "" {
		t.Errorf("as the other side sees it: %+v", p)
	}
	c.alone()
}

// TestOnceFails: a call that comes to nothing says at what stage and why.
func TestOnceFails(t *testing.T) {
	c := newCluster(t, 2, nil)
	a, b := c.nodes[0], c.nodes[1]
	b.listener.Close()
	r := byHand(t, a)
	if meeting, f := r.Once(t.Context(), OnceOptions{Target: b.address}); f == nil || f.Reason != session.ReasonUnreachable || f.Errno != "ECONNREFUSED" || meeting.Contact != nil || len(meeting.Paths) != 0 {
		t.Errorf("%+v, %+v", meeting, f)
	}
	// One that takes the connection and says nothing.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var f *session.Failure
	for _, limit := range []time.Duration{300 * time.Millisecond, 3 * time.Second, 12 * time.Second} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, f = r.Once(ctx, OnceOptions{Target: l.Addr().String()})
		cancel()
		if f == nil || f.Stage == session.StageHello { // a busy machine may not come so far in time
			break
		}
	}
	if f == nil || f.Reason != session.ReasonTimeout || callClass(f) != ClassUnreachable || f.Stage != session.StageHello {
		t.Errorf("%+v", f)
	}
	gone, stop := context.WithCancel(t.Context())
	stop()
	if _, f := r.Once(gone, OnceOptions{Target: l.Addr().String()}); f == nil || f.Reason != session.ReasonStopped {
		t.Errorf("%+v", f)
	}
}

// slowGPU opens GPU memory as a node does on which CUDA starts slowly.
type slowGPU struct {
	session.Opener
	takes time.Duration
}

func (o slowGPU) Open(ctx context.Context, spec session.Spec) (session.Endpoint, error) {
	if spec.Memory != session.Host {
		select {
		case <-time.After(o.takes):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return o.Opener.Open(ctx, spec)
}

// TestOnceSlowCUDA: that CUDA takes long to start on both sides is no fault of the path.
func TestOnceSlowCUDA(t *testing.T) {
	c := newCluster(t, 2, func(_ int, n *member) {
		n.options.pace, n.options.Now = 1, time.Now
		n.options.Schedule.Ping, n.options.Schedule.Frame, n.options.Schedule.Round, n.options.Schedule.Guard = 10*time.Minute, time.Hour, 2*time.Hour, 5*time.Minute-time.Second
		n.options.Opener = slowGPU{n.options.Opener, bandwidthTakes * 6 / 10}
	})
	a, b := c.nodes[0], c.nodes[1]
	b.start()
	b.change(func() { b.rails[1].GPUs = nil })
	meeting, failure := byHand(t, a).Once(t.Context(), OnceOptions{Target: b.address, Kinds: []session.Kind{session.Bandwidth}, Memories: []session.Memory{session.GPU}})
	if failure != nil || len(meeting.Paths) != 2 {
		t.Fatalf("%+v, %v", meeting, failure)
	}
	if m := meeting.Paths[0].measured(session.GPU); m == nil || m.Class != ClassFine {
		t.Errorf("%+v", m)
	}
}

package peer

import (
	"net/netip"
	"testing"
	"time"

	"gdr_exporter/rdma/peer/schedule"
	"gdr_exporter/rdma/peer/session"
	"gdr_exporter/rdma/peer/targets"
)

// TestLooksAgain: what is bad is looked at again before its next turn, at longer and
// longer intervals, and only that.
func TestLooksAgain(t *testing.T) {
	c := newCluster(t, 2, func(_ int, n *member) {
		n.options.Schedule.Frame, n.options.Schedule.Round, n.options.Schedule.Degree = time.Minute, time.Hour, 1
	})
	a, b := c.nodes[0], c.nodes[1]
	b.start()
	now, o := origin, a.options
	o.Listener, o.pace, o.Staged, o.Now = nil, 1, -1, func() time.Time { return now }
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	a.runner = r
	s := r.follow(t.Context())
	meet := func(kind schedule.Kind, step int64) {
		r.take(t.Context(), s, schedule.Turn{Kind: kind, Step: step, Partner: 1 - s.self, Initiator: true, Begin: now, Deadline: now.Add(time.Minute)})
	}
	again := func() {
		r.lookAgain(t.Context(), s, schedule.Turn{Kind: schedule.Bandwidth, Partner: schedule.None, Start: now, End: now.Add(time.Minute)})
	}
	until(t, "the other one is there", func() bool { return len(b.runner.Status().Peers) == 1 })
	meet(schedule.Ping, 0)
	if p := a.path(b); p.Ping == nil || p.Ping.Class != ClassFine || len(r.book.due(now.Add(1000*time.Hour), 9)) != 0 {
		t.Fatalf("%+v", p)
	}
	c.set(func(w flow) effect { return effect{err: &session.Failure{Reason: session.ReasonRDMA, Text: "broken"}} })
	meet(schedule.Ping, 1)
	for _, pause := range []time.Duration{2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 32 * time.Minute, time.Hour, time.Hour} {
		if early, due := r.book.due(now.Add(pause-1), 9), r.book.due(now.Add(pause), 9); len(early) != 0 || len(due) != 1 || due[0] != b.address {
			t.Fatalf("after %v: %v are due, %v before", pause, due, early)
		}
		if set := r.book.due(now.Add(-time.Hour), 9); len(set) != 1 {
			t.Error("it waits for a clock that was set back")
		}
		now = now.Add(pause)
		again()
	}
	c.set(nil)
	now = now.Add(time.Hour)
	again()
	if p := a.path(b); p.Ping.Class != ClassFine || !p.Ping.Time.Equal(now) || p.measured(session.Host) != nil || len(r.book.due(now.Add(1000*time.Hour), 9)) != 0 {
		t.Fatalf("%+v", p)
	}
	// Slow GPU memory, which is compared with host memory measured beside it.
	c.set(func(w flow) effect {
		if w.memory == session.GPU && w.own == a.rails[0].Port {
			return effect{rate: 0.1 * portRate}
		}
		return effect{}
	})
	meet(schedule.Bandwidth, 7)
	before, other := a.path(b), a.peer(b).Paths[1]
	if before.measured(session.GPU).Class != ClassSlow || other.measured(session.GPU).Class != ClassFine {
		t.Fatalf("%+v, %+v", before.measured(session.GPU), other)
	}
	now = now.Add(2 * time.Hour) // what was measured of host memory is of no use any more
	again()
	if p := a.path(b); p.measured(session.GPU).Class != ClassSlow || !p.measured(session.Host).Time.Equal(now) || p.Ping.Time.Equal(now) {
		t.Fatalf("%+v", p)
	}
	c.set(nil)
	now = now.Add(2 * time.Hour)
	again()
	if p := a.path(b); p.measured(session.GPU).Class != ClassFine || p.Skipped != "" {
		t.Fatalf("%+v", p)
	}
	if p := a.peer(b).Paths[1]; p.measured(session.GPU) != other.measured(session.GPU) || p.Ping != other.Ping {
		t.Errorf("what was good was measured again: %+v", p)
	}
	b.end()
	meet(schedule.Ping, 2)
	if a.peer(b).Listener != ClassUnreachable {
		t.Fatalf("%+v", a.peer(b))
	}
	b.start()
	now = now.Add(2 * time.Minute)
	again()
	for _, p := range a.peer(b).Paths {
		if !p.Ping.Time.Equal(now) || p.Ping.Class != ClassFine {
			t.Errorf("%+v", p)
		}
	}
	if a.peer(b).Listener != ClassFine {
		t.Errorf("%+v", a.peer(b))
	}
}

// TestIdle: there is time for other than what is scheduled in slots in which this node
// meets nobody, once each, and only if something is bad.
func TestIdle(t *testing.T) {
	r := newTestRunner(t, 100)
	s := r.setting.Load()
	now := origin
	find := func(want bool) schedule.Turn {
		for {
			slot := s.plan.At(now)
			if slot.Kind == schedule.Bandwidth && (slot.Partner == schedule.None) == want {
				return slot
			}
			now = slot.End
		}
	}
	none, some := find(true), find(false)
	if _, idle := r.idle(none, now); idle {
		t.Error("there is nothing to do")
	}
	m := &meeting{target: s.addresses[5]}
	r.book.called(m, nil, session.Fail(session.ReasonUnreachable, session.StageDial, errStopped), origin)
	r.book.met(m.target, origin.Add(-time.Hour), &r.options.Schedule)
	now = now.Add(time.Hour)
	if _, idle := r.idle(some, now); idle {
		t.Error("this node meets somebody")
	}
	if _, idle := r.idle(s.plan.At(origin), now); idle {
		t.Error("it is time for pings")
	}
	begin, idle := r.idle(none, now)
	guard := r.options.Schedule.Guard
	if !idle || begin.Before(none.Start.Add(guard)) || !begin.Before(none.End.Add(-guard)) {
		t.Errorf("%v, %v, of %v to %v", begin, idle, none.Start, none.End)
	}
	if same, _ := r.idle(none, now); !same.Equal(begin) {
		t.Error("it is drawn again")
	}
	r.spare.used = true
	if _, idle := r.idle(none, now); idle {
		t.Error("once is enough")
	}
}

// TestLooksAgainBySchedule: a runner does so by itself.
func TestLooksAgainBySchedule(t *testing.T) {
	c := newCluster(t, 1, func(_ int, n *member) { n.options.Schedule.Round, n.options.Schedule.Tries = 40*time.Second, 1 })
	n := c.nodes[0]
	all := n.list.List().Targets()
	for port := range uint16(20) { // where nobody listens
		addr := netip.MustParseAddr("127.1.2.3")
		all = append(all, targets.Target{Host: addr.String(), Addr: addr, Port: 1 + port})
	}
	n.list.set(targets.NewList(all, targets.Self{Given: n.address}))
	began := n.options.Now()
	n.start()
	until(t, "peers are called more often than they have turns", func() bool {
		turns := int(n.options.Now().Sub(began)/fast.Frame) + 1 // in half of which this node begins
		return n.runner.Status().Sessions[SessionKind{Initiator, session.Ping, ClassUnreachable}] > turns+2
	})
}

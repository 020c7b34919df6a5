package peer

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/rdma/peer/rails"
	"gdr_exporter/rdma/peer/session"
)

// TestPaths: what a path does to data is what is said of it, with stage, errno and who
// found it, and of no other path.
func TestPaths(t *testing.T) {
	fault := &session.Failure{Reason: session.ReasonRDMA, Stage: "write", Call: "ibv_poll_cq", Errno: "EIO", Status: "RETRY_EXC_ERR", Text: "write 3: transport retry counter exceeded"}
	for _, test := range []struct {
		name   string
		effect func(w flow) effect
		ping   Class
		host   Class
		gpu    Class
		check  func(t *testing.T, p Path)
	}{
		{"good", func(flow) effect { return effect{} }, ClassFine, ClassFine, ClassFine, func(t *testing.T, p Path) {
			host, gpu := p.measured(session.Host), p.measured(session.GPU)
			if host.Limit != 0.7*portRate || host.LimitOf != limitOfPort || gpu.LimitOf != limitOfHost || gpu.Limit < 0.8*portRate || host.Text != "" {
				t.Errorf("%+v, %+v", host, gpu)
			}
			if l := LatencyOf(p.Ping.Result); l == nil || l.Count != 64 || l.Median < 2*time.Microsecond || p.Basis != rails.ByName {
				t.Errorf("latency %+v, basis %s", l, p.Basis)
			}
		}},
		{"broken", func(w flow) effect { return effect{err: fault} }, ClassFailed, ClassFailed, ClassFailed, func(t *testing.T, p Path) {
			f := p.Ping.Result.Failure
			if f == nil || f.Peer || f.Stage != "write" || f.Errno != "EIO" || f.Status != "RETRY_EXC_ERR" || !strings.Contains(p.Ping.Text, "retry") {
				t.Errorf("%+v, %q", f, p.Ping.Text)
			}
		}},
		{"broken the other way", func(w flow) effect {
			if w.kind == "write" && w.from == "node01" {
				return effect{err: fault}
			}
			return effect{}
		}, ClassFine, ClassFailed, ClassFailed, func(t *testing.T, p Path) {
			host := p.measured(session.Host)
			if f := host.Result.Failure; f == nil || !f.Peer || f.Errno != "EIO" || !strings.HasPrefix(host.Text, "peer: write: ") {
				t.Errorf("%+v, %q", f, host.Text)
			}
			if rate, known := RateOf(host.Result, session.Write); !known || rate < 0.9*portRate {
				t.Errorf("the way that works: %v, %v", rate, known)
			}
		}},
		{"slow", func(flow) effect { return effect{rate: 0.5 * portRate} }, ClassFine, ClassSlow, ClassFine, func(t *testing.T, p Path) {
			host := p.measured(session.Host)
			if host.Limit != 0.7*portRate || host.LimitOf != limitOfPort || !strings.Contains(host.Text, "write 25.00 GB/s, limit 35.00 GB/s by the port rate; reverse") {
				t.Errorf("%+v", host)
			}
		}},
		{"slow GPU", func(w flow) effect {
			if w.memory == session.GPU {
				return effect{rate: 0.6 * portRate}
			}
			return effect{}
		}, ClassFine, ClassFine, ClassSlow, func(t *testing.T, p Path) {
			if gpu := p.measured(session.GPU); gpu.LimitOf != limitOfHost || !strings.Contains(gpu.Text, "by the host memory") {
				t.Errorf("%+v", gpu)
			}
		}},
		{"asymmetric", func(w flow) effect {
			if w.from == "node01" {
				return effect{rate: 0.71 * portRate}
			}
			return effect{rate: 0.99 * portRate}
		}, ClassFine, ClassSlow, ClassSlow, func(t *testing.T, p Path) {
			host := p.measured(session.Host)
			if host.LimitOf != limitOfOther || !strings.Contains(host.Text, "asymmetric: write 49.50 GB/s, reverse 35.50 GB/s") {
				t.Errorf("%+v", host)
			}
		}},
		{"corrupt", func(w flow) effect { return effect{corrupt: w.kind == "write"} }, ClassFine, ClassCorrupt, ClassCorrupt, func(t *testing.T, p Path) {
			if host := p.measured(session.Host); !strings.Contains(host.Text, "arrived wrong") {
				t.Errorf("%+v", host)
			}
		}},
		{"lossy pings", func(w flow) effect {
			if w.kind == "ping" {
				return effect{lost: 1}
			}
			return effect{}
		}, ClassFailed, ClassFine, ClassFine, func(*testing.T, Path) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster(t, 2, nil)
			a, b := c.nodes[0], c.nodes[1]
			c.set(func(w flow) effect {
				if w.own != a.rails[0].Port {
					return effect{}
				}
				return test.effect(w)
			})
			c.start()
			until(t, "everything is measured", func() bool {
				p := a.path(b)
				return p.Ping != nil && p.measured(session.Host) != nil && p.measured(session.GPU) != nil && len(a.peer(b).Paths) == 2
			})
			p := a.path(b)
			if p.Ping.Class != test.ping || p.measured(session.Host).Class != test.host || p.measured(session.GPU).Class != test.gpu {
				t.Fatalf("ping %+v, host %+v, GPU %+v", p.Ping, p.measured(session.Host), p.measured(session.GPU))
			}
			test.check(t, p)
			for _, p := range a.peer(b).Paths[1:] {
				if p.Ping != nil && p.Ping.Class != ClassFine || slices.ContainsFunc(p.Bandwidth, func(m *Measurement) bool { return m.Class != ClassFine }) {
					t.Errorf("the other rail: %+v", p)
				}
			}
			rail := a.runner.Status().Rails[0]
			if bad := btoi(test.ping.Bad()); rail.Pings.Bad != bad || rail.Pings.Good != 1-bad || rail.Bandwidth[session.Host].Bad != btoi(test.host.Bad()) {
				t.Errorf("rail %+v", rail)
			}
			if wants := test.ping.Bad() || test.host.Bad() || test.gpu.Bad(); wants != (len(a.told(EventPath)) > 0) {
				t.Errorf("told %+v", a.told(EventPath))
			}
			c.alone()
		})
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestComesAndGoes: a node that is missing is unreachable for all others, which say at
// what stage and why; they go on among themselves; when it is there it is fine. All of
// it is told once.
func TestComesAndGoes(t *testing.T) {
	c := newCluster(t, 3, nil)
	a, b, late := c.nodes[0], c.nodes[1], c.nodes[2]
	late.listener.Close()
	late.listener = nil
	a.start()
	b.start()
	for _, n := range []*member{a, b} {
		until(t, "it is unreachable", func() bool { return n.peer(late).Listener == ClassUnreachable })
		p := n.peer(late)
		if f := p.Failure; f == nil || f.Peer || f.Stage != session.StageDial || f.Errno != "ECONNREFUSED" || f.Reason != session.ReasonUnreachable || p.Contact != nil {
			t.Errorf("%+v, %+v", p, f)
		}
	}
	until(t, "the others go on", func() bool { return a.path(b).Ping != nil && b.path(a).Ping != nil })
	late.start()
	for _, n := range []*member{a, b} {
		until(t, "it is fine", func() bool {
			p := n.path(late)
			return n.peer(late).Listener == ClassFine && p.Ping != nil && p.Ping.Class == ClassFine
		})
	}
	late.end()
	until(t, "it is missed", func() bool { return a.peer(late).Listener == ClassUnreachable })
	if a.peer(late).Contact == nil {
		t.Error("its last contact is forgotten")
	}
	var turns []string
	for _, e := range a.told(EventPeer) {
		if e.Target == late.address {
			turns = append(turns, fmt.Sprintf("%s>%s", e.Was, e.Is))
		}
	}
	if !slices.Equal(turns, []string{">unreachable", "unreachable>fine", "fine>unreachable"}) {
		t.Errorf("told %v", turns)
	}
	if a.runner.Status().Sessions[SessionKind{Initiator, session.Ping, ClassUnreachable}] == 0 {
		t.Error("no call was counted that came to nothing")
	}
	late.start()
	until(t, "it is back", func() bool { return a.peer(late).Listener == ClassFine })
	c.alone()
}

// TestListChanges: whoever joins is measured, whoever has left is forgotten and not let
// in any more.
func TestListChanges(t *testing.T) {
	c := newCluster(t, 3, nil)
	a, b, third := c.nodes[0], c.nodes[1], c.nodes[2]
	for _, n := range []*member{a, b} {
		n.list.set(c.listFor(n, c.nodes[:2]))
	}
	c.start()
	until(t, "two measure each other", func() bool { return covered(a, 1) && covered(b, 1) })
	until(t, "the third is not let in", func() bool { return third.peer(a).Listener == ClassDenied })
	if f := third.peer(a).Failure; !f.Peer || f.Reason != session.ReasonNotListed || f.Errno != "" && f.Errno != "EACCES" {
		t.Errorf("%+v", f)
	}
	until(t, "which is told", func() bool { return len(a.told(EventRejected)) > 0 })
	if told := a.told(EventRejected); len(told) != 1 || !strings.Contains(told[0].Text, third.address) {
		t.Errorf("told %+v", told)
	}
	for _, n := range []*member{a, b} {
		n.list.set(c.listFor(n, c.nodes))
	}
	until(t, "three measure each other", func() bool { return covered(a, 2) && covered(b, 2) && covered(third, 2) })
	for _, n := range []*member{a, b} {
		n.list.set(c.listFor(n, c.nodes[:2]))
	}
	until(t, "it is forgotten", func() bool { return len(a.runner.Status().Peers) == 1 && len(b.runner.Status().Peers) == 1 })
	if told := a.told(EventList); len(told) != 3 || !strings.Contains(told[0].Text, "2 targets") || !strings.Contains(told[1].Text, "3 targets") {
		t.Errorf("told %+v", told)
	}
	c.alone()
}

// TestOutOfList: a node that does not find itself in the list says so, measures nothing
// and goes on once it is in it.
func TestOutOfList(t *testing.T) {
	c := newCluster(t, 2, nil)
	a, b := c.nodes[0], c.nodes[1]
	a.list.set(c.listFor(a, c.nodes[1:]))
	c.start()
	until(t, "it is said", func() bool {
		st := a.runner.Status()
		return st.Targets == 1 && strings.Contains(st.SelfText, "not among the targets")
	})
	if st := a.runner.Status(); st.Self != "" || !st.Next.IsZero() || len(st.Peers) != 1 || st.CoverPing != 0 {
		t.Errorf("%+v", st)
	}
	a.list.set(c.listFor(a, c.nodes))
	until(t, "it measures", func() bool { return covered(a, 1) && covered(b, 1) })
}

// TestClocksDiffer: a node whose clock is wrong by many slots comes at other times than
// it is expected, and spoils nothing: nobody measures twice at once, the others are
// measured, and it is told by how much it is wrong.
func TestClocksDiffer(t *testing.T) {
	c := newCluster(t, 4, func(i int, n *member) {
		if i == 3 {
			right := n.options.Now
			n.options.Now = func() time.Time { return right().Add(-7 * time.Second) }
		}
	})
	c.start()
	for _, n := range c.nodes[:3] {
		for _, other := range c.nodes[:3] {
			if n != other {
				until(t, "the others measure each other", func() bool {
					p := n.path(other)
					return p.Ping != nil && p.Ping.Class == ClassFine && p.measured(session.Host) != nil
				})
			}
		}
	}
	c.alone()
}

// TestClockSet: a clock that is set forward by hours or back is followed.
func TestClockSet(t *testing.T) {
	var shift [2]time.Duration
	c := newCluster(t, 2, func(i int, n *member) {
		right := n.options.Now
		n.options.Now = func() time.Time {
			n.mu.Lock()
			defer n.mu.Unlock()
			return right().Add(shift[i])
		}
	})
	a, b := c.nodes[0], c.nodes[1]
	c.start()
	until(t, "they measure", func() bool { return a.path(b).Ping != nil })
	for _, by := range []time.Duration{3 * time.Hour, -time.Hour} {
		for i, n := range c.nodes {
			n.mu.Lock()
			shift[i] = by
			n.mu.Unlock()
		}
		set := a.options.Now()
		until(t, "they measure again", func() bool { tried := a.peer(b).Tried; return !tried.Before(set) && tried.Sub(set) < 30*time.Minute })
	}
	c.alone()
}

// TestLocked: another measurement of the host keeps both roles from any, which says
// nothing of the path.
func TestLocked(t *testing.T) {
	c := newCluster(t, 2, nil)
	a, b := c.nodes[0], c.nodes[1]
	a.locked = true
	c.start()
	until(t, "both are kept from it", func() bool {
		return a.path(b).Skipped == session.ReasonLocked && b.path(a).Skipped == session.ReasonLocked
	})
	p, q := a.path(b), b.path(a)
	if p.Ping != nil || q.Ping != nil || !strings.Contains(p.SkippedText, "4711") || !strings.HasPrefix(q.SkippedText, "peer: admit: ") || a.peer(b).Listener != ClassFine {
		t.Errorf("%+v, %+v", p, q)
	}
	a.change(func() { a.locked = false })
	until(t, "they measure", func() bool { return covered(a, 1) && covered(b, 1) })
	if p := a.path(b); p.Skipped != "" || p.SkippedText != "" {
		t.Errorf("%+v", p)
	}
	if len(a.told(EventPath)) != 0 || len(b.told(EventPath)) != 0 {
		t.Errorf("told %+v, %+v", a.told(EventPath), b.told(EventPath))
	}
}

// TestGate: load of one side keeps from bandwidth and not from pings; once it is over, a
// later try does what was not done.
func TestGate(t *testing.T) {
	c := newCluster(t, 2, nil)
	a, b := c.nodes[0], c.nodes[1]
	busy := func(kind session.Kind, rail session.Port, gpu string) error {
		if kind == session.Bandwidth && rail.Device == "mlx5_0" {
			return &session.Failure{Reason: session.ReasonGate, Stage: session.StageAdmit, Text: "nic_busy"}
		}
		return nil
	}
	b.busy = busy
	c.start()
	until(t, "one is gated", func() bool {
		p := a.path(b)
		return p.Skipped == session.ReasonGate && p.Ping != nil && len(a.peer(b).Paths) == 2 && a.peer(b).Paths[1].measured(session.GPU) != nil
	})
	if p := a.path(b); p.SkippedText != "peer: admit: nic_busy" || len(p.Bandwidth) != 0 {
		t.Errorf("%+v", p)
	}
	until(t, "the other one is gated by itself", func() bool { return b.path(a).SkippedText == "admit: nic_busy" })
	b.change(func() { b.busy = nil })
	until(t, "they measure", func() bool { return covered(a, 1) && covered(b, 1) })
	if n := a.runner.Status().Sessions[SessionKind{Initiator, session.Bandwidth, ClassRefused}]; n == 0 {
		t.Error("no refusal was counted")
	}
}

// TestBudget: bytes that are used up keep from bandwidth.
func TestBudget(t *testing.T) {
	c := newCluster(t, 2, func(_ int, n *member) {
		n.options.BytesPerHour = 5 << 30 // of host memory alone it is 4 GiB
		n.options.Staged = -1
	})
	a, b := c.nodes[0], c.nodes[1]
	c.start()
	until(t, "the budget is used up", func() bool {
		return a.path(b).Skipped == session.ReasonBudget || b.path(a).Skipped == session.ReasonBudget
	})
	for _, n := range c.nodes {
		if st := n.runner.Status(); st.Spent > 5<<30 || st.Budget != 5<<30 || st.Spent == 0 {
			t.Errorf("%d bytes of %d", st.Spent, st.Budget)
		}
	}
	until(t, "pings go on", func() bool { return a.path(b).Ping != nil && b.path(a).Ping != nil })
}

// TestNoGPU: where one side has no GPU next to a rail, host memory is measured alone.
func TestNoGPU(t *testing.T) {
	c := newCluster(t, 2, func(_ int, n *member) { n.options.Staged = 1 })
	a, b := c.nodes[0], c.nodes[1]
	b.rails[0].GPUs = nil
	c.start()
	until(t, "both rails are measured", func() bool {
		paths := a.peer(b).Paths
		return len(paths) == 2 && paths[0].measured(session.Host) != nil && paths[1].measured(session.Staged) != nil
	})
	if p := a.path(b); p.measured(session.GPU) != nil || p.measured(session.Staged) != nil || p.Skipped != "" {
		t.Errorf("%+v", p)
	}
	if staged := a.peer(b).Paths[1].measured(session.Staged); staged.Class != ClassFine || staged.Limit != 0 {
		t.Errorf("%+v", staged)
	}
}

// TestRailsDiffer: what has a counterpart is measured, what has none says so.
func TestRailsDiffer(t *testing.T) {
	c := newCluster(t, 2, nil)
	a, b := c.nodes[0], c.nodes[1]
	b.rails = b.rails[1:]
	c.start()
	until(t, "one is measured, one is not", func() bool {
		paths := a.peer(b).Paths
		return len(paths) == 2 && paths[0].Skipped == session.ReasonNoRail && paths[1].Ping != nil
	})
	if p := a.peer(b).Paths[0]; p.Ping != nil || p.Peer.Device != "" || p.SkippedText == "" {
		t.Errorf("%+v", p)
	}
	until(t, "as the other side sees it", func() bool { return len(b.peer(a).Paths) == 1 && b.peer(a).Paths[0].Ping != nil })
	b.change(func() { b.rails = nil })
	until(t, "there is none left", func() bool { return a.peer(b).Paths[1].Skipped == session.ReasonNoRail })
	if a.peer(b).Paths[1].Ping == nil {
		t.Error("what was measured is forgotten")
	}
}

// TestOptionsDiffer: nodes that play by different schedules do not measure each other.
func TestOptionsDiffer(t *testing.T) {
	c := newCluster(t, 2, func(i int, n *member) { n.options.Schedule.Tries = 1 + i })
	a, b := c.nodes[0], c.nodes[1]
	c.start()
	until(t, "it is denied", func() bool { return a.peer(b).Listener == ClassDenied && b.peer(a).Listener == ClassDenied })
	p := a.peer(b)
	if p.Failure.Reason != session.ReasonVersion || !strings.Contains(p.Failure.Text, "options") || p.Contact == nil || p.Contact.Options != b.options.Schedule.Version() || p.Paths != nil {
		t.Errorf("%+v, %+v", p, p.Failure)
	}
	if a.together() != 0 {
		t.Error("it was measured")
	}
}

// TestHangs: a call that hangs ends its session and not the runner; it keeps the lock
// until it returns, and all is well again then.
func TestHangs(t *testing.T) {
	hung := make(chan struct{})
	release := sync.OnceFunc(func() { close(hung) })
	c := newCluster(t, 2, func(_ int, n *member) {
		n.options.Limits.Grace, n.options.Limits.Step = 200*time.Millisecond, 300*time.Millisecond
		n.options.Schedule.Degree = 0
		n.rails = n.rails[:1]
	})
	t.Cleanup(release)
	a, b := c.nodes[0], c.nodes[1]
	c.set(func(w flow) effect {
		if w.from == a.name {
			return effect{hang: hung}
		}
		return effect{}
	})
	c.start()
	until(t, "it hangs", func() bool {
		p := a.path(b).Ping
		return p != nil && p.Class == ClassFailed && p.Result.Failure.Reason == session.ReasonHung
	})
	if _, locked := a.holds(); !locked {
		t.Error("the lock was given back under a call that hangs")
	}
	until(t, "others are told that it is busy", func() bool { return b.path(a).Skipped == session.ReasonBusy })
	c.set(nil)
	release()
	until(t, "it is well again", func() bool { p := a.path(b).Ping; return p != nil && p.Class == ClassFine })
}

// TestEnd: Run ends soon in the middle of a measurement, and says why to the peer.
func TestEnd(t *testing.T) {
	c := newCluster(t, 2, func(_ int, n *member) {
		n.options.pace, n.options.Now = 1, time.Now
		n.options.Schedule.Ping, n.options.Schedule.Frame, n.options.Schedule.Degree = 4*time.Second, 4*time.Second, 0
		n.rails = n.rails[:1]
	})
	writing := make(chan string, 100)
	c.set(func(w flow) effect {
		writing <- w.from
		return effect{wait: true}
	})
	c.start()
	var from string
	select {
	case from = <-writing:
	case <-time.After(time.Minute):
		t.Fatal("nothing was measured")
	}
	began := time.Now()
	for _, n := range c.nodes {
		if n.name == from {
			n.end()
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v to end", took)
			}
			if at, locked := n.holds(); at != 0 || locked {
				t.Errorf("%d endpoints are open, locked %v", at, locked)
			}
		}
	}
}

// TestAddresses: a port's address that answers, or refuses, is reached.
func TestAddresses(t *testing.T) {
	c := newCluster(t, 2, nil)
	a, b := c.nodes[0], c.nodes[1]
	for i, n := range c.nodes {
		n.ips = map[session.Port]netip.Addr{n.machine.rails[0].Port: netip.MustParseAddr(fmt.Sprintf("127.0.%d.1", i+1))}
	}
	c.start()
	until(t, "an address is tried", func() bool { return a.path(b).Reached != nil })
	if r := a.path(b).Reached; !r.OK || r.Address != "127.0.2.1" || r.RTT <= 0 || r.Text != "" {
		t.Errorf("%+v", r)
	}
	until(t, "the other rail is measured", func() bool { return len(a.peer(b).Paths) == 2 })
	if r := a.peer(b).Paths[1].Reached; r != nil {
		t.Errorf("a port without address: %+v", r)
	}
	// An own address that is not there (any more) reaches nothing.
	a.change(func() { a.ips = map[session.Port]netip.Addr{a.machine.rails[0].Port: netip.MustParseAddr("192.0.2.1")} })
	until(t, "it is not reached", func() bool { return !a.path(b).Reached.OK })
	if r := a.path(b).Reached; !strings.Contains(r.Text, "192.0.2.1") || !strings.Contains(r.Text, syscall.EADDRNOTAVAIL.Error()) {
		t.Errorf("%+v", r)
	}
}

// TestTries: what a try has settled, a later one of the same window does not repeat.
func TestTries(t *testing.T) {
	c := newCluster(t, 2, func(_ int, n *member) { n.options.Staged = -1 })
	a, b := c.nodes[0], c.nodes[1]
	began := a.options.Now()
	c.start()
	bandwidth := func(n *member) int {
		return n.runner.Status().Sessions[SessionKind{Initiator, session.Bandwidth, ClassFine}]
	}
	until(t, "both have measured", func() bool { return bandwidth(a) >= 8 && bandwidth(b) >= 8 })
	sessions := bandwidth(a) + bandwidth(b)
	windows := int(a.options.Now().Sub(began)/fast.Round) + 2 // those that have begun
	if most := windows * 2 * 2; sessions > most {             // rails, memories
		t.Errorf("%d sessions in %d windows", sessions, windows)
	}
}

// relay is what is between two nodes, and may fail.
type relay struct {
	net.Listener
	to    string
	mu    sync.Mutex
	conns []net.Conn
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, to: to}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, in, out)
			r.mu.Unlock()
			for _, pipe := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(pipe[0], pipe[1])
					pipe[0].Close()
				}()
			}
		}
	}()
	t.Cleanup(r.cut)
	return r
}

// cut ends all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

// TestLost: when a session's connection ends without a word, the next call tells a peer
// that is gone from one that is there. Neither is a bad path.
func TestLost(t *testing.T) {
	for _, gone := range []bool{true, false} {
		t.Run(fmt.Sprintf("gone %v", gone), func(t *testing.T) {
			var way *relay
			c := newCluster(t, 2, func(i int, n *member) {
				n.options.Schedule.Degree = 0
				if i == 1 { // the list has the relay's address
					way = newRelay(n.t, n.address)
					n.address = way.Addr().String()
				}
			})
			t.Cleanup(func() { way.Close() })
			a, b := c.nodes[0], c.nodes[1]
			for _, n := range c.nodes {
				n.list.set(c.listFor(n, c.nodes))
			}
			var once sync.Once
			c.set(func(w flow) effect {
				if w.from == b.name {
					return effect{}
				}
				once.Do(func() {
					if gone {
						way.Close()
					}
					way.cut()
				})
				if gone {
					return effect{wait: true}
				}
				return effect{}
			})
			c.start()
			if gone {
				until(t, "the peer is missed", func() bool { return a.peer(b).Listener == ClassUnreachable })
				if f := a.peer(b).Failure; f.Stage != session.StageDial || f.Errno != "ECONNREFUSED" {
					t.Errorf("%+v", f)
				}
			} else {
				until(t, "both rails are fine in the end", func() bool { return covered(a, 1) })
			}
			for _, p := range a.peer(b).Paths {
				if p.Ping != nil && p.Ping.Class != ClassFine {
					t.Errorf("%+v", p.Ping)
				}
			}
			if told := a.told(EventPath); len(told) > 0 {
				t.Errorf("told %+v", told)
			}
		})
	}
}

package peer

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"gdr_exporter/rdma/peer/rails"
	"gdr_exporter/rdma/peer/schedule"
	"gdr_exporter/rdma/peer/session"
	"gdr_exporter/rdma/peer/targets"
)

var origin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// listOf is a list of so many nodes, of which this one is the first.
func listOf(count int) *targets.List {
	all := make([]targets.Target, count)
	for i := range all {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		all[i] = targets.Target{Host: addr.String(), Addr: addr, Port: 10480, Labels: map[string]string{"node": fmt.Sprintf("node%05d", i)}}
	}
	return targets.NewList(all, targets.Self{Given: all[0].Host})
}

func port(i int) session.Port { return session.Port{Device: fmt.Sprintf("mlx5_%d", i), Port: 1} }

// pinged is what a session brings that has pinged well.
func pinged(median time.Duration) *Measurement {
	return &Measurement{Kind: session.Ping, Memory: session.Host, Time: origin, Class: ClassFine, Result: &session.Result{
		ID: fmt.Sprint(median), Facts: session.Facts{GID: "fe80::1"}, Rounds: []session.Round{{Direction: session.Write, Written: &session.Way{
			Bytes: 512, Verified: 8, Latency: &session.Latency{Count: 64, Median: median, P99: 2 * median},
		}}},
	}}
}

func rated(memory session.Memory, write, reverse float64) *Measurement {
	return &Measurement{Kind: session.Bandwidth, Memory: memory, Time: origin, Class: ClassFine, Result: &session.Result{Rounds: []session.Round{
		{Direction: session.Write, Written: &session.Way{BytesPerSecond: write}}, {Direction: session.Reverse, Back: &session.Way{BytesPerSecond: reverse}},
		{Direction: session.Both, Written: &session.Way{BytesPerSecond: write}, Back: &session.Way{BytesPerSecond: reverse}},
	}}}
}

func newTestRunner(t *testing.T, count int) *Runner {
	t.Helper()
	m := newMachine(newFabric(), "node00000", 8)
	now := origin
	r, err := New(Options{
		Watcher: &listDouble{list: listOf(count), changed: make(chan struct{})}, Host: m, Opener: m, Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.follow(t.Context())
	return r
}

// TestMemory: what is kept of ten thousand nodes that were all pinged well on eight
// rails, and some measured, is small, and its Status too; a Status is made again only if
// there is something new.
func TestMemory(t *testing.T) {
	const nodes, ports = 10_000, 8
	r := newTestRunner(t, nodes)
	s := r.setting.Load()
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	for i, address := range s.addresses[1:] {
		m := &meeting{target: address, name: "node"}
		// What comes over the network is a text of its own each time.
		r.book.called(m, &Contact{Time: origin, RTT: 1, Build: string([]byte("1.2.3")), List: string([]byte(s.version)), Options: string([]byte("0123456789abcdef"))}, nil, origin)
		for j := range ports {
			p := Path{Own: port(j), Peer: port(j), Basis: rails.ByName, Rail: fmt.Sprint("rail", j), Reached: &Reached{Time: origin, Address: fmt.Sprintf("10.1.%d.%d", i>>8&255, i&255), OK: true, RTT: 1}}
			p.Ping = pinged(2*time.Microsecond + time.Duration(i*7919+j*104729)%(3*time.Microsecond))
			if i < 336 { // with as many it begins in a week of rounds of four
				p.Bandwidth = []*Measurement{rated(session.Host, 1, 1), rated(session.GPU, 1, 1)}
			}
			r.book.path(m, p)
		}
	}
	st := r.Status()
	after := heap()
	t.Logf("%d MiB", (after-before)>>20)
	if used := after - before; used > 50_000_000 {
		t.Errorf("%d bytes are kept", used)
	}
	if st.Rails[3].Pings.Good != nodes-1 || st.Rails[3].Bandwidth[session.GPU].Good != 336 || len(st.Peers) != nodes-1 {
		t.Errorf("%+v", st.Rails[3])
	}
	if r.Status() != st {
		t.Error("a Status was made again without need")
	}
	r.book.count(Initiator, session.Ping, ClassFine, 1)
	began := time.Now()
	if r.Status() == st {
		t.Error("there is something new")
	}
	t.Logf("a Status of %d paths takes %v", nodes*ports, time.Since(began))
	runtime.KeepAlive(st)
}

// TestSmall: of a ping that came out well the latency is kept to three digits, of any
// other everything.
func TestSmall(t *testing.T) {
	b := newBook()
	one, other := b.small(pinged(2345*time.Nanosecond)), b.small(pinged(2349*time.Nanosecond))
	l := LatencyOf(one.Result)
	if l.Median != 2350*time.Nanosecond && l.Median != 2340*time.Nanosecond || l.P99 != 4690*time.Nanosecond || l.Count != 64 || one.Result.ID != "" || !one.Time.Equal(origin) {
		t.Errorf("%+v of %+v", l, one)
	}
	if again := b.small(one); again != one {
		t.Error("what is small is made smaller")
	}
	if LatencyOf(other.Result).Median != 2350*time.Nanosecond {
		t.Errorf("%+v", LatencyOf(other.Result))
	}
	bad := pinged(1)
	bad.Class = ClassFailed
	if b.small(bad) != bad || b.small(nil) != nil {
		t.Error("what is not well was changed")
	}
	for i := range 3 * mostQuiet {
		b.small(pinged(time.Duration(i) * time.Millisecond))
	}
	if len(b.quiet) > mostQuiet {
		t.Errorf("%d are shared", len(b.quiet))
	}
	for in, want := range map[time.Duration]time.Duration{0: 0, 999: 999, 1004: 1000, 123_456: 123_000, 99_960: 100_000} {
		if got := digits(in); got != want {
			t.Errorf("%d to %d, not %d", in, got, want)
		}
	}
}

// TestAge: what is too old is forgotten, each kind at its own age, and told if it was
// bad; a Status that was given out does not change.
func TestAge(t *testing.T) {
	r := newTestRunner(t, 3)
	s := r.setting.Load()
	m := &meeting{target: s.addresses[1], name: "b"}
	bad := rated(session.Host, 1, 1)
	bad.Class = ClassSlow
	r.book.called(m, nil, session.Fail(session.ReasonUnreachable, session.StageDial, errStopped), origin)
	r.book.path(m, Path{Own: port(0), Peer: port(0), Reached: &Reached{Time: origin, OK: true}, Ping: pinged(1), Bandwidth: []*Measurement{bad}})
	r.book.path(m, Path{Own: port(1), Peer: port(1), Ping: pinged(1)})
	st := r.Status()
	if e := r.book.frame(s, origin.Add(time.Hour), time.Hour, 2*time.Hour); e != nil {
		t.Errorf("told %+v", e)
	}
	events := r.book.frame(s, origin.Add(time.Hour+1), time.Hour, 2*time.Hour)
	if len(events) != 1 || events[0].Kind != EventPeer || events[0].Was != ClassUnreachable || events[0].Is != "" {
		t.Errorf("told %+v", events)
	}
	p := r.Status().Peers[0]
	if p.Listener != "" || p.Failure != nil || len(p.Paths) != 1 || p.Paths[0].Ping != nil || p.Paths[0].Reached != nil || p.Paths[0].measured(session.Host) != bad {
		t.Errorf("%+v", p)
	}
	if old := st.Peers[0]; len(old.Paths) != 2 || old.Paths[0].Ping == nil || old.Listener != ClassUnreachable {
		t.Errorf("what was given out has changed: %+v", old)
	}
	events = r.book.frame(s, origin.Add(3*time.Hour), time.Hour, 2*time.Hour)
	if len(events) != 1 || events[0].Kind != EventPath || events[0].Was != ClassSlow || len(r.Status().Peers[0].Paths) != 0 {
		t.Errorf("told %+v", events)
	}
}

// TestOwnPorts: one that is not named for a moment is still shown, with its results; one
// that is gone is not, nor are they.
func TestOwnPorts(t *testing.T) {
	r := newTestRunner(t, 3)
	s := r.setting.Load()
	m := &meeting{target: s.addresses[1]}
	r.book.path(m, Path{Own: port(7), Peer: port(7), Ping: pinged(1)})
	fewer := r.options.Host.Rails(t.Context())[:7]
	r.book.saw(fewer, origin.Add(gone-1))
	r.book.frame(s, origin.Add(gone-1), time.Hour, time.Hour)
	if st := r.Status(); len(st.Rails) != 8 || st.Rails[7].Pings.Good != 1 {
		t.Errorf("%+v", st.Rails)
	}
	r.book.saw(fewer, origin.Add(gone))
	r.book.frame(s, origin.Add(gone), time.Hour, time.Hour)
	if st := r.Status(); len(st.Rails) != 7 || len(st.Peers[0].Paths) != 0 {
		t.Errorf("%+v", st.Rails)
	}
}

// TestEvents: only what came out differently is told, and that something is fine at
// first is not.
func TestEvents(t *testing.T) {
	b := newBook()
	m := &meeting{target: "b:1", name: "b"}
	put := func(peer int, class Class) string {
		p := pinged(1)
		p.Class = class
		for _, e := range b.path(m, Path{Own: port(0), Peer: port(peer), Ping: p}) {
			return fmt.Sprintf("%s %s>%s", e.Own, e.Was, e.Is)
		}
		return ""
	}
	for i, step := range []struct {
		peer  int
		class Class
		want  string
	}{
		{0, ClassFine, ""}, {0, ClassFine, ""}, {0, ClassFailed, "mlx5_0/1 fine>failed"}, {0, ClassFailed, ""}, {0, ClassCorrupt, "mlx5_0/1 failed>corrupt"},
		{0, ClassFine, "mlx5_0/1 corrupt>fine"}, {0, ClassFailed, "mlx5_0/1 fine>failed"}, {1, ClassFine, ""}, {2, ClassFailed, "mlx5_0/1 >failed"},
	} {
		if got := put(step.peer, step.class); got != step.want {
			t.Errorf("step %d: %q, not %q", i, got, step.want)
		}
	}
	call := func(reason session.Reason) string {
		var f *session.Failure
		if reason != "" {
			f = &session.Failure{Reason: reason, Text: "text"}
		}
		for _, e := range b.called(m, nil, f, origin) {
			return fmt.Sprintf("%s>%s %s", e.Was, e.Is, e.Text)
		}
		return ""
	}
	for i, step := range []struct {
		reason session.Reason
		want   string
	}{
		{"", ""}, {session.ReasonBusy, ""}, {"", ""}, {session.ReasonUnreachable, "fine>unreachable text"}, {session.ReasonLeft, ""},
		{session.ReasonCertificate, "unreachable>denied text"}, {session.ReasonBusy, "denied>refused text"}, {"", ""}, {session.ReasonTLS, "fine>denied text"}, {"", "denied>fine "},
	} {
		if got := call(step.reason); got != step.want {
			t.Errorf("call %d: %q, not %q", i, got, step.want)
		}
	}
}

// TestRejected: a caller that is not let in is told once an hour for each reason, and
// what is remembered of callers is bounded.
func TestRejected(t *testing.T) {
	r := newTestRunner(t, 2)
	now, told := origin, 0
	r.clock.wall = func() time.Time { return now }
	r.options.Event = func(e Event) {
		if e.Kind == EventRejected {
			told++
		}
	}
	from := netip.MustParseAddrPort("192.0.2.7:4711")
	reject := func(reason session.Reason) int {
		told = 0
		r.rejected(from, &session.Failure{Reason: reason, Text: "no"})
		return told
	}
	if reject(session.ReasonTLS) != 1 || reject(session.ReasonTLS) != 0 || reject(session.ReasonNotListed) != 1 || reject(session.ReasonLeft) != 0 {
		t.Error("not told once for each reason")
	}
	if now = now.Add(time.Hour); reject(session.ReasonTLS) != 1 {
		t.Error("not told again")
	}
	for i := range 3 * mostRejected {
		from = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), 1)
		reject(session.ReasonTLS)
	}
	if len(r.book.rejected) > mostRejected {
		t.Errorf("%d are remembered", len(r.book.rejected))
	}
}

// TestSetting: without a part in the schedule it is said why; the options are checked.
func TestSetting(t *testing.T) {
	if s := newSetting(listOf(1), schedule.Defaults()); s.why != "" || s.own() == "" {
		t.Errorf("%+v", s)
	}
	if s := newSetting(targets.NewList(nil, targets.Self{}), schedule.Defaults()); s.why == "" || s.plan != nil || s.own() != "" {
		t.Errorf("%+v", s)
	}
	o := Options{}.withDefaults()
	for nodes, want := range map[int]time.Duration{2: 2 * time.Hour, 128: 4*64*time.Minute + 2*time.Minute, 10_000: oldest} {
		ping, bandwidth := newSetting(listOf(nodes), o.Schedule).ages(&o)
		if ping != want || bandwidth < ping {
			t.Errorf("%d nodes: results of pings count for %v, not %v; of bandwidth for %v", nodes, ping, want, bandwidth)
		}
	}
	m := newMachine(newFabric(), "a", 1)
	good := Options{Host: m, Opener: m}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for i, change := range []func(*Options){
		func(o *Options) { o.Host = nil }, func(o *Options) { o.Opener = nil }, func(o *Options) { o.Within = -1 }, func(o *Options) { o.Rates.GPU = 1.5 },
		func(o *Options) { o.Schedule = schedule.Options{Round: 1} }, func(o *Options) { o.MaxAge = -1 },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("options %d: no error", i)
		}
	}
	r, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); err == nil {
		t.Error("it runs without a list")
	}
	if st := r.Status(); st.Targets != 0 || st.SelfText == "" || st.Peers != nil {
		t.Errorf("%+v", st)
	}
}

// TestLabels: a rail's name is the host's, or else the list's.
func TestLabels(t *testing.T) {
	list := targets.NewList([]targets.Target{{Host: "a", Port: 1, Labels: map[string]string{"rail_red": "mlx5_0", "rail_blue": "mlx5_1/1"}}}, targets.Self{Given: "a"})
	s := newSetting(list, schedule.Defaults())
	all := []session.Rail{{Port: port(0)}, {Port: port(1)}, {Port: port(1), Label: "own"}, {Port: port(2)}}
	s.label("a:1", all)
	s.label("b:1", all)
	var got []string
	for _, rail := range all {
		got = append(got, rail.Label)
	}
	if !slices.Equal(got, []string{"red", "blue", "own", ""}) {
		t.Error(got)
	}
}

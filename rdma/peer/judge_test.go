package peer

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/rdma/peer/schedule"
	"gdr_exporter/rdma/peer/session"
)

// TestClasses: each reason has a class, for a call and for a session.
func TestClasses(t *testing.T) {
	want := map[session.Reason][2]Class{ // of a call, of a session
		session.ReasonUnreachable: {ClassUnreachable, ClassUnreachable},
		session.ReasonTLS:         {ClassDenied, ClassDenied},
		session.ReasonCertificate: {ClassDenied, ClassDenied},
		session.ReasonNotListed:   {ClassDenied, ClassDenied},
		session.ReasonForeign:     {ClassDenied, ClassDenied},
		session.ReasonVersion:     {ClassDenied, ClassDenied},
		session.ReasonProtocol:    {ClassDenied, ClassDenied},
		session.ReasonInvalid:     {ClassDenied, ClassDenied},
		session.ReasonNoRail:      {ClassRefused, ClassRefused},
		session.ReasonClaimed:     {ClassDenied, ClassDenied},
		session.ReasonBusy:        {ClassRefused, ClassRefused},
		session.ReasonLocked:      {ClassRefused, ClassRefused},
		session.ReasonGate:        {ClassRefused, ClassRefused},
		session.ReasonBudget:      {ClassRefused, ClassRefused},
		session.ReasonRDMA:        {ClassUnreachable, ClassFailed},
		session.ReasonLeft:        {ClassUnreachable, ClassRefused},
		session.ReasonTimeout:     {ClassUnreachable, ClassFailed},
		session.ReasonHung:        {ClassUnreachable, ClassFailed},
		session.ReasonStopped:     {ClassStopped, ClassStopped},
		session.ReasonOther:       {ClassRefused, ClassRefused},
	}
	for _, reason := range session.Reasons {
		f := &session.Failure{Reason: reason}
		if got := [2]Class{callClass(f), sessionClass(f)}; got != want[reason] {
			t.Errorf("%s: %v, not %v", reason, got, want[reason])
		}
	}
	if class := sessionClass(&session.Failure{Reason: session.ReasonStopped, Peer: true}); class != ClassRefused {
		t.Errorf("a peer that ends: %s", class)
	}
	if callClass(nil) != ClassFine {
		t.Error("no failure is no failure")
	}
	for _, class := range Classes {
		if class.Bad() && !class.Judged() || class == ClassFine && !class.Judged() || class == ClassRefused && class.Judged() {
			t.Errorf("%s", class)
		}
	}
}

// TestRates: limits come from what is known, and nothing is judged by what is not.
func TestRates(t *testing.T) {
	const g = 1e9
	for _, test := range []struct {
		name      string
		own, peer float64 // port rates
		memory    session.Memory
		host      *Measurement
		write     float64
		reverse   float64
		limits    RateLimits
		class     Class
		limit     float64
		of        string
		text      string
	}{
		{name: "good", own: 50 * g, peer: 50 * g, memory: session.Host, write: 48 * g, reverse: 47 * g, class: ClassFine, limit: 35 * g, of: limitOfPort},
		{name: "lesser port", own: 50 * g, peer: 25 * g, memory: session.Host, write: 24 * g, reverse: 24 * g, class: ClassFine, limit: 17.5 * g, of: limitOfPort},
		{name: "peer's rate alone", peer: 50 * g, memory: session.Host, write: 34 * g, reverse: 36 * g, class: ClassSlow, limit: 35 * g, of: limitOfPort, text: "write 34.00 GB/s, limit 35.00 GB/s by the port rate"},
		{name: "no rate known", memory: session.Host, write: 1, reverse: 1, class: ClassFine},
		{name: "limits off", own: 50 * g, memory: session.Host, write: 1, reverse: 9, limits: RateLimits{Port: -1, Asymmetry: -1}, class: ClassFine},
		{name: "asymmetric", memory: session.Host, write: 10 * g, reverse: 7 * g, class: ClassSlow, limit: 7.5 * g, of: limitOfOther, text: "asymmetric: write 10.00 GB/s, reverse 7.00 GB/s"},
		{name: "GPU without control", own: 50 * g, peer: 50 * g, memory: session.GPU, write: 5 * g, reverse: 5 * g, class: ClassFine},
		{name: "GPU, each direction by its own control", memory: session.GPU, host: rated(session.Host, 48*g, 40*g), write: 39 * g, reverse: 35 * g, class: ClassSlow, limit: 40.8 * g, of: limitOfHost,
			text: "write 39.00 GB/s, limit 40.80 GB/s by the host memory"},
		{name: "staged is a control", own: 50 * g, peer: 50 * g, memory: session.Staged, write: 1 * g, reverse: 9 * g, class: ClassFine},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(newFabric(), "a", 1)
			r, err := New(Options{Host: m, Opener: m, Rates: test.limits, Now: func() time.Time { return origin.Add(time.Minute) }})
			if err != nil {
				t.Fatal(err)
			}
			path := Path{}
			if test.host != nil {
				path.take(test.host)
			}
			p := pair{own: session.Rail{Rate: test.own}, peer: session.Rail{Rate: test.peer}}
			got := r.judge(p, bandwidthOf(test.memory), rated(test.memory, test.write, test.reverse).Result, &path)
			if got.Class != test.class || got.Limit != test.limit || got.LimitOf != test.of || got.Text != test.text {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestRateOf: what failed or was not measured has no rate.
func TestRateOf(t *testing.T) {
	r := rated(session.Host, 3, 4).Result
	if rate, known := RateOf(r, session.Both); !known || rate != 7 {
		t.Error(rate, known)
	}
	r.Rounds[2].Back = nil
	if _, known := RateOf(r, session.Both); known {
		t.Error("half of both is both")
	}
	r.Rounds[0].Failure = &session.Failure{}
	if _, known := RateOf(r, session.Write); known {
		t.Error("what failed has a rate")
	}
	if _, known := RateOf(nil, session.Write); known || LatencyOf(nil) != nil || LatencyOf(r) != nil {
		t.Error("nothing has a rate")
	}
	for rate, want := range map[float64]string{48.5e9: "48.50 GB/s", 12e6: "12.00 MB/s", 3e3: "3.00 kB/s"} {
		if got := rateText(rate); got != want {
			t.Error(got)
		}
	}
}

// TestDue: a turn is taken once, by the one that begins, and not when it is half over.
func TestDue(t *testing.T) {
	r := newTestRunner(t, 4)
	turn := schedule.Turn{Kind: schedule.Ping, Partner: 1, Initiator: true, Begin: origin, Deadline: origin.Add(10 * time.Second)}
	responder, alone := turn, turn
	responder.Initiator, alone.Partner = false, schedule.None
	for i, test := range []struct {
		turn  schedule.Turn
		after time.Duration
		want  bool
	}{{turn, 0, true}, {turn, 5 * time.Second, true}, {turn, 6 * time.Second, false}, {turn, -1, false}, {responder, 0, false}, {alone, 0, false}} {
		if got := r.due(test.turn, origin.Add(test.after)); got != test.want {
			t.Errorf("%d: %v", i, got)
		}
	}
	r.played = turn.Begin
	if r.due(turn, origin) {
		t.Error("it is taken twice")
	}
}

// TestItems: the control is measured every so often, by both of a pair.
func TestItems(t *testing.T) {
	for nodes := 2; nodes <= 9; nodes++ {
		r := newTestRunner(t, nodes)
		games, err := schedule.NewTournament(nodes)
		if err != nil {
			t.Fatal(err)
		}
		all, staged := map[bool]int{}, map[bool]int{} // by whether node 0 begins with node 1
		for step := range games.Steps() * 64 {
			if games.Partner(0, step) != 1 {
				continue
			}
			items := r.items(schedule.Turn{Kind: schedule.Bandwidth, Step: step, Pass: games.Pass(step)})
			first := games.Initiates(0, step)
			all[first]++
			if slices.ContainsFunc(items, func(it item) bool { return it.memory == session.Staged }) {
				staged[first]++
			}
			if items[0].memory != session.Host || items[1].memory != session.GPU || len(items[0].directions) != 3 {
				t.Fatalf("%+v", items)
			}
		}
		for _, first := range []bool{true, false} {
			if all[first] != 32 || staged[first] < 4 || staged[first] > 16 {
				t.Errorf("%d nodes, begun by the first %v: the control in %d of %d", nodes, first, staged[first], all[first])
			}
		}
	}
	r := newTestRunner(t, 2)
	r.options.Staged = -1
	if items := r.items(schedule.Turn{Kind: schedule.Bandwidth}); len(items) != 2 {
		t.Errorf("%+v", items)
	}
	r.options.Schedule.Pings = 0
	if items := r.items(schedule.Turn{Kind: schedule.Bandwidth}); len(items) != 3 || items[0].kind != session.Ping {
		t.Errorf("%+v", items)
	}
}

// TestRotation: each rail is the first at some time.
func TestRotation(t *testing.T) {
	r := newTestRunner(t, 2)
	own := r.options.Host.Rails(t.Context())
	firsts := map[string]bool{}
	for rotate := range int64(8) {
		m := &meeting{runner: r, setting: r.setting.Load(), rotate: rotate - 3}
		pairs, lonely := m.pairs(own, own[:6])
		if len(pairs) != 6 || len(lonely) != 2 {
			t.Fatalf("%d pairs, %d without", len(pairs), len(lonely))
		}
		firsts[pairs[0].own.Device] = true
		seen := map[string]bool{}
		for _, p := range pairs {
			seen[p.own.Device] = true
		}
		if len(seen) != 6 {
			t.Errorf("%v", seen)
		}
	}
	if len(firsts) != 6 {
		t.Errorf("%v are the first at some time", firsts)
	}
}

// TestWait: a wait ends at its time, with its context, when it is woken and when the
// clock is set back.
func TestWait(t *testing.T) {
	c := clock{time.Now, 1}
	began := time.Now()
	if c.wait(t.Context(), began.Add(50*time.Millisecond), nil); time.Since(began) < 50*time.Millisecond {
		t.Error("it ended too early")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.wait(ctx, began.Add(time.Hour), nil)
	woken := make(chan struct{})
	close(woken)
	c.wait(t.Context(), began.Add(time.Hour), woken)
	looks := 0
	back := clock{func() time.Time { looks++; return origin.Add(time.Duration(-looks) * time.Millisecond) }, 1000}
	back.wait(t.Context(), origin.Add(time.Second), nil)
	if looks != 2 {
		t.Errorf("%d looks at a clock that was set back", looks)
	}
}

// TestFit: what a node says of itself can be sent.
func TestFit(t *testing.T) {
	for in, want := range map[string]string{"node": "node", "a\nb\x00": "a?b?", strings.Repeat("é", 10): strings.Repeat("é", 4)} {
		if got := fit(in, 9); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

package session

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// TestMeasure: all kinds, memories and directions, on one connection.
func TestMeasure(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient).serve()
	c := b.dial()
	if p := c.Peer(); p.Name != "b" || p.Build != "1.2.4" || len(p.Rails) != 1 || p.Protocol != Protocol {
		t.Errorf("peer: %+v", p)
	}
	if c.RTT() <= 0 || c.RTT() > 10*time.Second || c.ClockDifference().Abs() > 10*time.Second {
		t.Errorf("RTT %v, clock %v", c.RTT(), c.ClockDifference())
	}
	n := 0
	for _, plan := range []Plan{
		bandwidth(Host, Write), bandwidth(Host, Reverse), bandwidth(Host, Both), bandwidth(Host, Write, Reverse, Both),
		bandwidth(GPU, Write, Reverse), bandwidth(Staged, Write, Reverse, Both), pings,
	} {
		n++
		r := c.Measure(context.Background(), plan)
		if r.Failure != nil || len(r.Rounds) != len(plan.Directions) || r.ID == "" || r.Elapsed <= 0 || r.Facts.GID != "fe80::a" || r.PeerFacts.GID != "fe80::b" {
			t.Fatalf("%s %s %v: %+v", plan.Kind, plan.Memory, plan.Directions, r)
		}
		for i, round := range r.Rounds {
			d := plan.Directions[i]
			if round.Direction != d || (round.Written != nil) != d.initiator() || (round.Back != nil) != d.responder() || round.Failure != nil {
				t.Errorf("%v: %+v", d, round)
			}
			for _, way := range []*Way{round.Written, round.Back} {
				if way != nil {
					checkWay(t, plan, *way)
				}
			}
		}
		s := b.lastServed(n)
		if s.Failure != nil || s.Rounds != len(plan.Directions) || s.ID != r.ID || s.Peer != addressA || s.Rail != portB || !s.Opened || s.Initiator || s.Hello.Name != "a" {
			t.Errorf("served: %+v", s)
		}
		if wantGPU := plan.Memory != Host; (s.GPU == gpuB) != wantGPU || (r.PeerFacts.GPU == gpuB) != wantGPU || (r.Facts.GPU == plan.OwnGPU) != true {
			t.Errorf("%s: GPU %q, %q", plan.Memory, s.GPU, r.Facts.GPU)
		}
		if b.budgetA.Spent() != b.budgetB.Spent() || b.budgetA.Spent() == 0 {
			t.Errorf("spent %d and %d", b.budgetA.Spent(), b.budgetB.Spent())
		}
	}
	ways := uint64(1 + 1 + 2 + 4 + 2 + 4)
	if want := ways<<20 + 2*64*8; b.budgetA.Spent() != want {
		t.Errorf("spent %d, not %d", b.budgetA.Spent(), want)
	}
	if asked := b.admitA.asked.Load(); !asked.Initiator || asked.Peer != b.address || asked.Rail != portA || asked.Bytes != 2*64*8 {
		t.Errorf("asked for %+v", asked)
	}
	if asked := b.admitB.asked.Load(); asked.Initiator || asked.Peer != addressA || asked.Rail != portB {
		t.Errorf("asked for %+v", asked)
	}
}

func checkWay(t *testing.T, p Plan, w Way) {
	t.Helper()
	switch p.Kind {
	case Ping:
		l := w.Latency
		if w.Bytes != 512 || w.Verified != 8 || w.BytesPerSecond != 0 || l == nil || l.Count != 64 || l.Lost != 0 || l.Median != 33*time.Microsecond || l.P99 != 64*time.Microsecond {
			t.Errorf("ping: %+v %+v", w, l)
		}
	default:
		if w.Bytes != p.Bytes || w.Verified != fakeBuffer || w.BytesPerSecond <= 0 || w.Latency != nil {
			t.Errorf("bandwidth: %+v", w)
		}
	}
	if w.Mismatches != 0 {
		t.Errorf("%d mismatches", w.Mismatches)
	}
}

// TestCorrupt: wrong data is no failure, and each side finds what was written to it.
func TestCorrupt(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient).serve()
	b.fabric.corrupt = true
	r := b.dial().Measure(context.Background(), bandwidth(Host, Both))
	if r.Failure != nil || r.Rounds[0].Written.Mismatches != 1 || r.Rounds[0].Back.Mismatches != 1 {
		t.Errorf("%+v", r)
	}
}

// TestBandwidthWithPings has latencies too.
func TestBandwidthWithPings(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient).serve()
	plan := bandwidth(Host, Both)
	plan.Pings, plan.Within = 7, time.Second
	r := b.dial().Measure(context.Background(), plan)
	if r.Failure != nil || r.Rounds[0].Written.Latency.Count != 7 || r.Rounds[0].Back.Latency.Count != 7 || r.Rounds[0].Back.Verified != fakeBuffer {
		t.Errorf("%+v", r)
	}
}

// TestResultJSON says who found a failure, and can be read again.
func TestResultJSON(t *testing.T) {
	for found, peer := range map[string]bool{"self": false, "peer": true} {
		f := Fail(ReasonRDMA, "write", errRemote)
		f.Peer = peer
		text, err := json.Marshal(&Result{Rounds: []Round{{Direction: Write, Failure: f}}, Failure: f})
		if err != nil || strings.Count(string(text), `"found_by":"`+found+`"`) != 2 {
			t.Errorf("%s: %v", text, err)
		}
		var back Result
		if err := json.Unmarshal(text, &back); err != nil || back.Failure.Peer != peer || back.Failure.Reason != ReasonRDMA || back.Failure.Text != f.Text {
			t.Errorf("%+v: %v", back.Failure, err)
		}
	}
}

// TestPlans that cannot be fail without touching anything.
func TestPlans(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient).serve()
	c := b.dial()
	for name, change := range map[string]func(*Plan){
		"kind":      func(p *Plan) { p.Kind = "x" },
		"memory":    func(p *Plan) { p.Memory = "x" },
		"direction": func(p *Plan) { p.Directions = []Direction{"x"} },
		"none":      func(p *Plan) { p.Directions = nil },
		"port":      func(p *Plan) { p.From.Device = "../x" },
		"rail":      func(p *Plan) { p.Rail.Port = 0 },
		"GPU":       func(p *Plan) { p.Memory, p.OwnGPU = GPU, "" },
		"buffer":    func(p *Plan) { p.Shape.Buffer = 1 << 30 },
		"bytes":     func(p *Plan) { p.Bytes = 1 << 50 },
		"few":       func(p *Plan) { p.Bytes = 7 },
		"deadline":  func(p *Plan) { p.Deadline = -1 },
		"within":    func(p *Plan) { p.Within = -1 },
		"pings":     func(p *Plan) { p.Pings = -1 },
	} {
		p := bandwidth(Host, Write)
		change(&p)
		if r := c.Measure(context.Background(), p); r.Failure == nil || r.Failure.Reason != ReasonInvalid || r.Failure.Peer {
			t.Errorf("%s: %+v", name, r.Failure)
		}
	}
	if b.admitA.given.Load() != 0 {
		t.Error("something was taken")
	}
	if r := c.Measure(context.Background(), bandwidth(Host, Write)); r.Failure != nil {
		t.Errorf("after all that: %v", r.Failure)
	}
}

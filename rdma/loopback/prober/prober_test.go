package prober

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
)

func measured(t *testing.T, l *lab) {
	t.Helper()
	l.eventually(t, 6*time.Minute, "a first full run", func() bool { return l.Status().Pairs != nil && l.Status().Pairs[0].Full != nil })
	l.kinds()
}

// TestFirstRun: the first run comes within five minutes, with all paths, and what
// it found stands.
func TestFirstRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		took := l.eventually(t, 6*time.Minute, "a first full run", func() bool { return l.runner.count(DepthFull) == 1 })
		if took > 5*time.Minute+window {
			t.Errorf("it came after %v", took)
		}
		time.Sleep(3 * time.Second)
		s := l.only(t)
		if s.Full == nil || s.Registration != s.Full || !s.Full.Good() || !s.Full.Idle || s.Skip != ReasonNone || s.Withdrawn != "" {
			t.Errorf("%+v", s)
		}
		if s.LastSuccess[DepthFull] != s.Full.Time || s.LastSuccess[DepthRegister] != s.Full.Time || s.LastAttempt != s.Full.Time {
			t.Errorf("success %v, attempt %v, run %v", s.LastSuccess, s.LastAttempt, s.Full.Time)
		}
		if want := (Identity{"GPU-" + gpu0, "guid-" + nic0, "28.43", "580.95", "6.1.0"}); s.Full.Identity != want {
			t.Errorf("identity %+v", s.Full.Identity)
		}
		if order := l.runner.all()[0]; len(order.Spec.Paths) != 5 || order.Spec.Slices > 1 || order.Isolated || order.Spec.LockPath != "" {
			t.Errorf("order %+v", order)
		}
		if n := l.Status().Runs[RunKind{DepthFull, RunFine}]; n != 1 {
			t.Errorf("%d fine runs", n)
		}
	})
}

// TestStagedOnceADay: later runs leave out the staged path, and what was measured
// of it stays beside its time.
func TestStagedOnceADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		measured(t, l)
		first := l.only(t).Full
		l.eventually(t, 2*time.Hour, "a second run", func() bool { f := l.Status().Pairs[0].Full; return f != first })
		second := l.only(t).Full
		if n := len(l.runner.all()[1].Spec.Paths); n != 4 {
			t.Errorf("%d paths", n)
		}
		if !second.Staged.Equal(first.Time) || len(second.Result.Paths) != 5 {
			t.Errorf("staged of %v, %d paths", second.Staged, len(second.Result.Paths))
		}
		time.Sleep(24 * time.Hour)
		full := l.only(t).Full
		if age := time.Since(full.Staged); age > 25*time.Hour {
			t.Errorf("staged path is %v old", age)
		}
	})
}

// rule is a row of the table of what stands: what a pair is known to be before,
// what happens, and what it is known to be after.
type rule struct {
	name   string
	before func(Order) Ending // of the runs before; nil: none was made
	happen func(t *testing.T, l *lab)
	// After: the outcome that stands ("" none), whether rates are shown, and why
	// the pair is kept back.
	outcome   loopback.Outcome
	rates     bool
	withdrawn string
	skip      Reason
}

// run lets a run at once find something.
func run(find func(Order) Ending) func(t *testing.T, l *lab) {
	return func(t *testing.T, l *lab) {
		t.Helper()
		l.runner.set(find)
		now(t, l)
	}
}

func now(t *testing.T, l *lab) {
	t.Helper()
	if _, err := l.ProbeNow(context.Background(), Request{}); err != nil {
		t.Error(err)
	}
}

func later(d time.Duration) func(*testing.T, *lab) {
	return func(*testing.T, *lab) { time.Sleep(d) }
}

func steps(all ...func(*testing.T, *lab)) func(*testing.T, *lab) {
	return func(t *testing.T, l *lab) {
		t.Helper()
		for _, step := range all {
			step(t, l)
		}
	}
}

func look(change func(h *fakeHost)) func(*testing.T, *lab) {
	return func(_ *testing.T, l *lab) {
		change(l.host)
		l.Saw(l.host.see())
		synctest.Wait()
	}
}

// noRuns keeps further runs away, without saying anything of the results.
func noRuns(_ *testing.T, l *lab) {
	l.host.mu.Lock()
	defer l.host.mu.Unlock()
	l.host.blocked = ReasonLibrary
}

var standingRules = []rule{
	{"good stands", finds(0.97), later(time.Minute), loopback.Fine, true, "", ""},
	{"bad stands", finds(0.5), later(time.Minute), loopback.Slow, true, "", ""},

	{"skipped withdraws nothing", finds(0.97), steps(noRuns, later(2*time.Hour)), loopback.Fine, true, "", ReasonLibrary},
	{"skipped withdraws nothing of what is bad", finds(0.5), steps(noRuns, later(2*time.Hour)), loopback.Slow, true, "", ReasonLibrary},
	{"a broken run withdraws the rates at once", finds(0.97), run(broken), loopback.Fine, false, WithdrawnFailed, ""},
	{"runs that stay broken withdraw what was good", finds(0.97), steps(run(broken), later(20*time.Minute)), "", false, WithdrawnFailed, ""},
	{"runs that stay broken do not lift what was bad", finds(0.5), steps(run(broken), later(20*time.Minute)), loopback.Slow, false, WithdrawnFailed, ""},
	{"one good run after a broken one", finds(0.97), steps(run(broken), run(finds(0.96))), loopback.Fine, true, "", ""},

	{"worse, not repeated yet", finds(0.97), run(finds(0.5)), loopback.Fine, true, "", ""},
	{"worse, and so are all repetitions", finds(0.97), steps(run(finds(0.5)), later(3*time.Minute)), loopback.Slow, true, "", ""},
	{"worse, the repetition is not", finds(0.97), steps(run(finds(0.5)), run(finds(0.96)), later(6*time.Minute)), loopback.Fine, true, "", ""},
	{"worse, and no repetition is possible", finds(0.97), steps(run(finds(0.5)), noRuns, later(10*time.Minute)), loopback.Fine, true, "", ""},
	{"worse, repeated once, then no more is possible", finds(0.97), steps(run(finds(0.5)), run(finds(0.5)), noRuns, later(10*time.Minute)), loopback.Slow, true, "", ""},
	{"repetitions that differ: what all agree with", finds(0.97), steps(run(unregistrable), run(finds(0.5)), later(3*time.Minute)), loopback.Slow, true, "", ""},
	{"unregistrable at first withdraws the rates, not the verdict", finds(0.97), run(unregistrable), loopback.Fine, false, WithdrawnFailed, ""},
	{"unregistrable, confirmed", finds(0.97), steps(run(unregistrable), later(3*time.Minute)), loopback.Failed, true, "", ""},
	{"corrupt, confirmed", finds(0.97), steps(run(corrupt), later(3*time.Minute)), loopback.Corrupt, true, "", ""},
	{"slow becomes corrupt", finds(0.5), steps(run(corrupt), later(3*time.Minute)), loopback.Corrupt, true, "", ""},
	{"better at once", finds(0.5), run(finds(0.97)), loopback.Fine, true, "", ""},
	{"less bad at once", corrupt, run(finds(0.5)), loopback.Slow, true, "", ""},

	{"invalidated by another driver", finds(0.97), steps(noRuns, look(func(h *fakeHost) { h.sighting.Driver = sysread.Some("590.1") })), "", false, WithdrawnDriver, ReasonLibrary},
	{"what is bad too", finds(0.5), steps(noRuns, look(func(h *fakeHost) { h.sighting.Driver = sysread.Some("") })), "", false, WithdrawnDriver, ReasonLibrary},
	{"invalidated by peermem", finds(0.97), steps(noRuns, look(func(h *fakeHost) { h.sighting.Peermem = sysread.Some("") })), "", false, WithdrawnPeermem, ReasonLibrary},
	{"invalidated by firmware", finds(0.97), steps(noRuns, look(func(h *fakeHost) { h.port(nic0, func(p *PortSighting) { p.Firmware = "28.44" }) })), "", false, WithdrawnFirmware, ReasonLibrary},
	{"invalidated by another NIC", finds(0.97), steps(noRuns, look(func(h *fakeHost) { h.port(nic0, func(p *PortSighting) { p.NodeGUID = "guid-x" }) })), "", false, WithdrawnNIC, ReasonLibrary},
	{"invalidated by another GPU", finds(0.97), steps(noRuns, look(func(h *fakeHost) { h.gpu(gpu0, func(g *GPUSighting) { g.UUID = "GPU-x" }) })), "", false, WithdrawnGPU, ReasonLibrary},
	{"invalidated by a port that goes", finds(0.97), look(func(h *fakeHost) { h.port(nic0, func(p *PortSighting) { p.State = sysread.Some(1) }) }), "", false, WithdrawnPort, ""},
	{"not by a port that could not be read", finds(0.97), look(func(h *fakeHost) { h.port(nic0, func(p *PortSighting) { *p = PortSighting{} }) }), loopback.Fine, true, "", ""},
	{"invalidated by a device that goes", finds(0.97), look(func(h *fakeHost) { h.sighting.Devices = sysread.Some([]string{"mlx5_9"}) }), "", false, WithdrawnNICGone, ""},
	{"not by a list that is not known", finds(0.97), look(func(h *fakeHost) { h.sighting.Devices = sysread.Maybe[[]string]{} }), loopback.Fine, true, "", ""},
	{"invalidated by a GPU that is lost", finds(0.97), look(func(h *fakeHost) { h.gpu(gpu0, func(g *GPUSighting) { g.Usable = sysread.Some(false) }) }), "", false, WithdrawnGPULost, ""},
	{"invalidated by a GPU that goes", finds(0.97), look(func(h *fakeHost) { h.sighting.GPUs.Value = map[string]GPUSighting{} }), "", false, WithdrawnGPUGone, ""},
	{"not by GPUs that could not be read", finds(0.97), look(func(h *fakeHost) { h.sighting.GPUs = sysread.Maybe[map[string]GPUSighting]{} }), loopback.Fine, true, "", ""},

	{"good ages out", finds(0.97), steps(noRuns, later(25*time.Hour)), "", false, WithdrawnAged, ReasonLibrary},
	{"bad does not", finds(0.5), steps(noRuns, later(250*time.Hour)), loopback.Slow, true, "", ReasonLibrary},

	{"nothing known, and bad", nil, steps(noRuns, later(10*time.Minute), unblock, run(finds(0.5)), noRuns), "", false, "", ""},
	{"nothing known, and bad four times", nil, steps(noRuns, later(10*time.Minute), unblock, run(finds(0.5)), later(4*time.Minute)), loopback.Slow, true, "", ""},
	{"nothing known, not capable", nil, steps(noRuns, later(10*time.Minute), unblock, run(incapable)), loopback.Unsupported, true, "", ""},
}

func unblock(_ *testing.T, l *lab) {
	l.host.mu.Lock()
	defer l.host.mu.Unlock()
	l.host.blocked = ReasonNone
}

// incapable is a run on a GPU that does not claim GPUDirect RDMA.
func incapable(order Order) Ending {
	e := unregistrable(order)
	e.Result.GPU.Value.GPUDirectRDMA = false
	return e
}

// TestStanding: the table of what stands.
func TestStanding(t *testing.T) {
	for _, rule := range standingRules {
		t.Run(rule.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, nil)
				if rule.before != nil {
					l.runner.set(rule.before)
					measured(t, l)
					l.eventually(t, 5*time.Minute, "the result before", func() bool { return l.Status().Pairs[0].Unconfirmed == nil })
				}
				rule.happen(t, l)
				s := l.only(t)
				var outcome loopback.Outcome
				if known := l.pairs[pair0].known(); known != nil {
					outcome = known.Judgement.Outcome
				}
				if outcome != rule.outcome || s.Withdrawn != rule.withdrawn || s.Skip != rule.skip {
					t.Errorf("outcome %q, withdrawn %q, skip %q, want %q, %q, %q", outcome, s.Withdrawn, s.Skip, rule.outcome, rule.withdrawn, rule.skip)
				}
				if rates := s.Full != nil && s.Withdrawn == ""; rates != rule.rates {
					t.Errorf("rates shown: %v", rates)
				}
			})
		})
	}
}

// TestConfirmation: a result that is worse is repeated three times at once, and
// the change is told once.
func TestConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		measured(t, l)
		before := l.runner.count(DepthFull)
		run(finds(0.4))(t, l)
		if s := l.only(t); s.Unconfirmed == nil || s.Unconfirmed.Judgement.Outcome != loopback.Slow {
			t.Errorf("unconfirmed %+v", s.Unconfirmed)
		}
		took := l.eventually(t, repeatWithin, "confirmation", func() bool { return l.Status().Pairs[0].Unconfirmed == nil })
		if n := l.runner.count(DepthFull) - before; n != 4 {
			t.Errorf("%d runs", n)
		}
		t.Logf("confirmed after %v", took)
		if kinds := l.kinds(); !slices.Equal(kinds, []EventKind{EventUnconfirmed, EventUnconfirmed, EventUnconfirmed, EventResult}) {
			t.Errorf("events %v", kinds)
		}
		later(3*time.Hour)(t, l)
		if kinds := l.kinds(); len(kinds) > 0 {
			t.Errorf("told again: %v", kinds)
		}
	})
}

// TestRegisterFailure: a registration run that fails is repeated as such, counts,
// and is lifted by a full run only.
func TestRegisterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		measured(t, l)
		l.host.setTraffic(20 * gigabyte)
		l.eventually(t, 3*time.Hour, "a registration run", func() bool { return l.runner.count(DepthRegister) > 0 })
		l.runner.set(unregistrable)
		full := l.runner.count(DepthFull)
		took := l.eventually(t, 2*time.Hour, "confirmed", func() bool {
			known := l.Status().Pairs[0].Registration
			return known != nil && known.Judgement.Outcome == loopback.Failed
		})
		t.Logf("after %v", took)
		if first := l.Status().Pairs[0].LastAttempt.Add(-20 * time.Second); l.runner.since(first) != 4 {
			t.Errorf("%d runs in the last 20 s, want the first and three repetitions at once", l.runner.since(first))
		}
		if n := l.runner.count(DepthFull); n != full {
			t.Errorf("%d full runs under load", n-full)
		}
		l.runner.set(finds(0.97))
		time.Sleep(5 * time.Hour)
		if known := l.only(t).Registration; known.Good() {
			t.Error("lifted by a registration run")
		}
		l.host.setTraffic(0)
		l.eventually(t, time.Minute, "lifted by a full run", func() bool { return l.Status().Pairs[0].Registration.Good() })
	})
}

// TestBusy: under load the result stands with its age, registration goes on, and
// a full run comes within a minute of the load's end.
func TestBusy(t *testing.T) {
	for busy, want := range map[Busy]struct{ register, full bool }{BusyOff: {}, BusyRegister: {register: true}, BusyFull: {true, true}} {
		t.Run(string(busy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, func(o *Options) { o.Busy = busy })
				measured(t, l)
				first := l.only(t).Full
				l.host.setTraffic(20 * gigabyte)
				time.Sleep(20 * time.Hour)
				s := l.only(t)
				if s.Skip != ReasonNICBusy {
					t.Errorf("skip %q", s.Skip)
				}
				register, full := l.runner.count(DepthRegister), l.runner.count(DepthFull)
				if want.register != (register >= 15 && register <= 20) {
					t.Errorf("%d registration runs", register)
				}
				if want.full != (full == 4) || !want.full && full != 1 {
					t.Errorf("%d full runs", full)
				}
				if !want.full && s.Full != first {
					t.Error("the result does not stand")
				}
				if want.full {
					if last := l.runner.all()[len(l.runner.all())-1]; s.Full.Idle || !last.Spec.RegisterOnly && last.Spec.Slices != BusySlices {
						t.Errorf("idle %v, order %+v", s.Full.Idle, last.Spec)
					}
				}
				if skips := l.Status().Skips[ReasonNICBusy]; skips > 5 {
					t.Errorf("%d skips counted", skips)
				}
				l.host.setTraffic(0)
				took := l.eventually(t, time.Minute, "a full run", func() bool { return l.runner.count(DepthFull) > full })
				t.Logf("full run %v after the traffic", took)
			})
		})
	}
}

// TestGates: each gate has its reason, and opens again.
func TestGates(t *testing.T) {
	gates := map[Reason]func(h *fakeHost, closed bool){
		ReasonPort: func(h *fakeHost, closed bool) {
			h.port(nic0, func(p *PortSighting) { p.State = sysread.Some(map[bool]int{true: 2, false: 4}[closed]) })
		},
		ReasonGPUBusy: func(h *fakeHost, closed bool) {
			h.mu.Lock()
			h.busyGPU = map[bool]float64{true: 0.6}[closed]
			h.mu.Unlock()
		},
		ReasonNICBusy:     func(h *fakeHost, closed bool) { h.setTraffic(map[bool]float64{true: 3 * gigabyte}[closed]) },
		ReasonLoadUnknown: func(h *fakeHost, closed bool) { h.mu.Lock(); h.unknown = closed; h.mu.Unlock() },
		ReasonMemory: func(h *fakeHost, closed bool) {
			h.gpu(gpu0, func(g *GPUSighting) { g.Free = sysread.Some(map[bool]uint64{true: 1 << 30, false: 8 << 30}[closed]) })
		},
		ReasonComputeMode: func(h *fakeHost, closed bool) {
			h.gpu(gpu0, func(g *GPUSighting) { g.ComputeMode = sysread.Some(map[bool]int{true: 3}[closed]) })
		},
		ReasonMIG: func(h *fakeHost, closed bool) { h.gpu(gpu0, func(g *GPUSighting) { g.MIG = sysread.Some(closed) }) },
		ReasonPersistence: func(h *fakeHost, closed bool) {
			h.gpu(gpu0, func(g *GPUSighting) { g.Persistence = sysread.Some(!closed) })
		},
		ReasonConfidential: func(h *fakeHost, closed bool) {
			h.change(func(s *Sighting) { s.Confidential = sysread.Some(closed) })
		},
		ReasonGPU: func(h *fakeHost, closed bool) {
			h.gpu(gpu0, func(g *GPUSighting) { g.Usable = sysread.Some(!closed) })
		},
		ReasonLibrary:    func(h *fakeHost, closed bool) { h.block(ReasonLibrary, closed) },
		ReasonDeviceNode: func(h *fakeHost, closed bool) { h.block(ReasonDeviceNode, closed) },
		ReasonMemlock:    func(h *fakeHost, closed bool) { h.block(ReasonMemlock, closed) },
	}
	for reason, set := range gates {
		t.Run(string(reason), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, nil)
				set(l.host, true)
				l.Saw(l.host.see())
				time.Sleep(10 * time.Minute)
				s := l.only(t)
				if s.Skip != reason || s.Full != nil || l.Status().Skips[reason] != 1 || l.runner.count(DepthFull) > 0 {
					t.Errorf("skip %q, %d times, %d runs", s.Skip, l.Status().Skips[reason], l.runner.count(DepthFull))
				}
				if registers := l.runner.count(DepthRegister) > 0; registers != (reason.load() || reason == ReasonPort) {
					t.Errorf("registration runs: %v", registers)
				}
				attempts, err := l.ProbeNow(t.Context(), Request{GPU: gpu0})
				if err != nil || len(attempts) != 1 || attempts[0].Skip != reason {
					t.Errorf("now: %+v, %v", attempts, err)
				}
				set(l.host, false)
				l.eventually(t, 2*time.Minute, "a run", func() bool { p := l.Status().Pairs[0]; return p.Full != nil && p.Skip == ReasonNone })
			})
		})
	}
}

func (h *fakeHost) block(reason Reason, closed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.blocked = ReasonNone
	if closed {
		h.blocked = reason
	}
}

// TestForce: a forced run ignores the load, and nothing else.
func TestForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.host.setTraffic(20 * gigabyte)
		time.Sleep(10 * time.Minute)
		attempts, err := l.ProbeNow(t.Context(), Request{Force: true})
		if err != nil || len(attempts) != 1 || attempts[0].Result != RunFine || attempts[0].Completed.Idle {
			t.Errorf("%+v, %v", attempts, err)
		}
		l.host.gpu(gpu0, func(g *GPUSighting) { g.MIG = sysread.Some(true) })
		if attempts, err = l.ProbeNow(t.Context(), Request{Force: true}); err != nil || attempts[0].Skip != ReasonMIG {
			t.Errorf("%+v, %v", attempts, err)
		}
		if _, err := l.ProbeNow(t.Context(), Request{Device: "mlx5_7"}); !errors.Is(err, ErrNoPair) {
			t.Error(err)
		}
	})
}

// TestEvents: what makes a pair due at once does.
func TestEvents(t *testing.T) {
	events := map[string]func(l *lab){
		"port up": func(l *lab) {
			l.host.port(nic0, func(p *PortSighting) { p.State = sysread.Some(1) })
			l.Saw(l.host.see())
			l.host.port(nic0, func(p *PortSighting) { p.State = sysread.Some(4) })
		},
		"driver":         func(l *lab) { l.host.change(func(s *Sighting) { s.Driver = sysread.Some("590.1") }) },
		"peermem loaded": func(l *lab) { l.host.change(func(s *Sighting) { s.Peermem = sysread.Some("590.1") }) },
		"last process gone": func(l *lab) {
			l.host.gpu(gpu0, func(g *GPUSighting) { g.Processes = sysread.Some(1) })
			l.Saw(l.host.see())
			l.host.gpu(gpu0, func(g *GPUSighting) { g.Processes = sysread.Some(0) })
		},
	}
	for name, event := range events {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, nil)
				measured(t, l)
				time.Sleep(leastGap)
				before := l.runner.count(DepthFull)
				event(l)
				l.Saw(l.host.see())
				took := l.eventually(t, 2*window, "a run", func() bool { return l.runner.count(DepthFull) > before })
				t.Logf("after %v", took)
			})
		})
	}
}

// TestNewProcess: a run ends at once when a process comes to its GPU; that says
// nothing of the pair. The run's own process, under its own number or another, is
// none that comes, and one that was there before neither.
func TestNewProcess(t *testing.T) {
	for name, test := range map[string]struct {
		during []int
		ends   bool
	}{
		"own": {[]int{7, 4711}, false}, "own in a container": {[]int{7, 99}, false}, "another": {[]int{7, 4711, 99}, true}, "another, in a container": {[]int{7, 98, 99}, true}, "gone": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, nil)
				measured(t, l)
				before := l.only(t).Full
				l.host.mu.Lock()
				l.host.processes[gpu0] = []int{7}
				l.host.mu.Unlock()
				l.runner.takes = 20 * time.Second
				go func() {
					time.Sleep(window + 5*time.Second)
					l.host.mu.Lock()
					l.host.processes[gpu0] = test.during
					l.host.mu.Unlock()
				}()
				attempts, err := l.ProbeNow(t.Context(), Request{})
				if err != nil {
					t.Fatal(err)
				}
				if ended := attempts[0].Skip == ReasonNewProcess; ended != test.ends {
					t.Errorf("%+v", attempts[0])
				}
				if s := l.only(t); test.ends && (s.Full != before || s.Withdrawn != "") {
					t.Error("the result does not stand")
				}
			})
		})
	}
}

// TestHung: a run that hangs is reported, touches neither its GPU nor its NIC
// again, and others go on in child processes.
func TestHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := Pair{gpu0, nic1, 1}
		lock := filepath.Join(t.TempDir(), "lock")
		l := newLab(t, func(o *Options) { o.LockPath = lock }, pair0, shared, Pair{gpu1, "mlx5_2", 1})
		l.runner.set(func(o Order) Ending {
			if o.Pair == pair0 {
				return Ending{Hung: true, Stage: loopback.StageRegister, Result: loopback.Result{Device: o.Device}}
			}
			return finds(0.97)(o)
		})
		time.Sleep(20 * time.Minute)
		l.runner.mu.Lock()
		l.runner.orders = nil
		l.runner.mu.Unlock()
		time.Sleep(10 * time.Hour)
		s := l.Status()
		if s.Pairs[0].Hung.IsZero() || s.Pairs[0].HungStage != loopback.StageRegister || !l.Hanging() || s.Isolation != InChild || s.IsolationReason == "" {
			t.Errorf("%+v", s)
		}
		if s.Pairs[1].Skip != ReasonHung {
			t.Errorf("a pair of the same GPU: skip %q", s.Pairs[1].Skip)
		}
		for _, o := range l.runner.all() {
			if o.GPU == gpu0 || !o.Isolated {
				t.Errorf("a run of %v, isolated %v", o.Pair, o.Isolated)
			}
		}
		if len(l.runner.all()) < 9 {
			t.Errorf("%d runs of the other pair", len(l.runner.all()))
		}
		if s.Runs[RunKind{DepthFull, RunHung}] != 1 {
			t.Errorf("runs %v", s.Runs)
		}
		if _, err := loopback.TryLock(lock); !errors.Is(err, loopback.ErrLocked) {
			t.Errorf("the lock is free: %v", err)
		}
		if err := l.Quiesce(t.Context(), time.Now().Add(time.Hour)); err == nil {
			t.Error("quiesced with a run that hangs")
		}
	})
}

// TestLocked: another run on the host is waited for.
func TestLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "lock")
		held, err := loopback.TryLock(path)
		if err != nil {
			t.Fatal(err)
		}
		l := newLab(t, func(o *Options) { o.LockPath = path })
		time.Sleep(10 * time.Minute)
		if s := l.only(t); s.Skip != ReasonLocked || len(l.runner.all()) > 0 {
			t.Errorf("skip %q, %d runs", s.Skip, len(l.runner.all()))
		}
		if err := held.Unlock(); err != nil {
			t.Fatal(err)
		}
		l.eventually(t, time.Minute, "a run", func() bool { return l.Status().Pairs[0].Full != nil })
		free, err := loopback.TryLock(path)
		if err != nil {
			t.Fatalf("the lock is kept: %v", err)
		}
		_ = free.Unlock()
	})
}

// TestQuiesce: the run in progress ends, no other begins until the time is over or
// it is resumed, and a restart does not forget it.
func TestQuiesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, func(o *Options) { o.StateDir = t.TempDir() })
		measured(t, l)
		l.runner.takes = 8 * time.Second
		go func() { _, _ = l.ProbeNow(context.Background(), Request{}) }()
		time.Sleep(window + time.Second)
		began := time.Now()
		until := began.Add(30 * time.Minute)
		if err := l.Quiesce(t.Context(), until); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		full := l.only(t)
		if full.Full == nil || full.Withdrawn != "" || !l.Status().QuiescedUntil.Equal(until) {
			t.Errorf("%+v", full)
		}
		runs := len(l.runner.all())
		if attempts, err := l.ProbeNow(t.Context(), Request{Force: true}); err != nil || attempts[0].Skip != ReasonQuiesced {
			t.Errorf("%+v, %v", attempts, err)
		}
		l.end()
		l.begin(t, func(o *Options) { o.StateDir = l.options.StateDir })
		time.Sleep(29*time.Minute - time.Since(began))
		if other := New(Options{Host: l.host, Runner: l.runner, StateDir: l.options.StateDir, BootID: "boot-2"}); !other.Status().QuiescedUntil.IsZero() {
			t.Error("quiesced after a reboot")
		}
		if len(l.runner.all()) != runs || l.Status().QuiescedUntil.IsZero() {
			t.Errorf("%d runs, quiesced until %v", len(l.runner.all())-runs, l.Status().QuiescedUntil)
		}
		time.Sleep(2 * time.Hour)
		if len(l.runner.all()) == runs || !l.Status().QuiescedUntil.IsZero() {
			t.Error("it did not end")
		}
		if err := l.Quiesce(t.Context(), time.Now().Add(12*time.Hour)); err != nil {
			t.Fatal(err)
		}
		l.Resume()
		if !l.Status().QuiescedUntil.IsZero() {
			t.Error("not resumed")
		}
	})
}

// TestRestartWishes: CUDA that does not work any more, and another driver under a
// loaded libcuda, ask for a fresh process; in child processes nothing does.
func TestRestartWishes(t *testing.T) {
	for _, isolation := range []Isolation{InProcess, InChild} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, func(o *Options) { o.Isolation = isolation })
			wishes := func() int {
				synctest.Wait()
				l.mu.Lock()
				defer l.mu.Unlock()
				return len(l.wishes)
			}
			want := map[bool]int{true: 1}[isolation == InProcess]
			l.host.change(func(s *Sighting) { s.Driver = sysread.Some("590.1") })
			l.Saw(l.host.see())
			if wishes() != 0 {
				t.Error("libcuda is not loaded yet")
			}
			measured(t, l)
			l.host.change(func(s *Sighting) { s.Driver = sysread.Some("600.1") })
			l.Saw(l.host.see())
			if n := wishes(); n != want {
				t.Errorf("%s: %d wishes", isolation, n)
			}
			l.runner.set(finds(0.97))
			now(t, l)
			if last := l.runner.all()[len(l.runner.all())-1]; !last.Isolated {
				t.Error("the next run is in the process that has the old libcuda")
			}
		})
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, func(o *Options) { o.Isolation = isolation }, pair0, pair1)
			l.runner.set(func(o Order) Ending {
				e := finds(0.97)(o)
				if o.Pair == pair0 && !o.Isolated {
					e = broken(o)
					e.Sticky = true
				}
				return e
			})
			time.Sleep(30 * time.Minute)
			synctest.Wait()
			if want := map[bool]int{true: 1}[isolation == InProcess]; len(l.wishes) != want {
				t.Errorf("%s: %d wishes after a sticky error", isolation, len(l.wishes))
			}
			if s := l.Status(); s.Pairs[0].Full == nil || s.Pairs[1].Full == nil {
				t.Error("no run in a child process before the restart")
			}
		})
	}
}

// TestState: what is known outlives the process, and not what changed meanwhile.
func TestState(t *testing.T) {
	restarts := map[string]struct {
		change func(o *Options, h *fakeHost)
		stands bool
		reason string
	}{
		"restart":         {func(*Options, *fakeHost) {}, true, ""},
		"reboot":          {func(o *Options, _ *fakeHost) { o.BootID = "boot-2" }, false, WithdrawnReboot},
		"another driver":  {func(_ *Options, h *fakeHost) { h.sighting.Driver = sysread.Some("590.1") }, false, WithdrawnDriver},
		"peermem missing": {func(_ *Options, h *fakeHost) { h.sighting.Peermem = sysread.Some("") }, false, WithdrawnPeermem},
		"other firmware":  {func(_ *Options, h *fakeHost) { h.port(nic0, func(p *PortSighting) { p.Firmware = "29" }) }, false, WithdrawnFirmware},
		"another GPU":     {func(_ *Options, h *fakeHost) { h.gpu(gpu0, func(g *GPUSighting) { g.UUID = "GPU-x" }) }, false, WithdrawnGPU},
	}
	for name, test := range restarts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				l := newLab(t, func(o *Options) { o.StateDir = dir })
				l.runner.set(finds(0.5))
				measured(t, l)
				before := l.only(t)
				l.end()
				l.host.block(ReasonLibrary, true)
				l.begin(t, func(o *Options) { o.StateDir = dir; test.change(o, l.host) })
				time.Sleep(time.Second)
				s := l.only(t)
				if stands := s.Full != nil; stands != test.stands || s.Withdrawn != test.reason {
					t.Errorf("stands %v, withdrawn %q", stands, s.Withdrawn)
				}
				if !s.LastAttempt.Equal(before.LastAttempt) {
					t.Errorf("last attempt %v, was %v", s.LastAttempt, before.LastAttempt)
				}
				if test.stands && (!s.Full.Time.Equal(before.Full.Time) || s.Full.Judgement.Outcome != loopback.Slow || !s.Registration.Time.Equal(s.Full.Time)) {
					t.Errorf("%+v", s.Full)
				}
				state, err := ReadState(dir)
				if err != nil || len(state.Ports) != 1 || state.Ports[0].Active.IsZero() || state.Ports[0].Device != nic0 {
					t.Errorf("%+v, %v", state.Ports, err)
				}
			})
		})
	}
}

// TestFresh: with a fresh result in the state file the first run is not hurried.
func TestFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := newLab(t, func(o *Options) { o.StateDir = dir })
		measured(t, l)
		l.end()
		for range 20 {
			runs := len(l.runner.all())
			l.begin(t, func(o *Options) { o.StateDir = dir })
			time.Sleep(30 * time.Second)
			l.end()
			if len(l.runner.all()) > runs+1 {
				t.Fatal("runs again and again")
			}
		}
		if n := len(l.runner.all()); n > 4 {
			t.Errorf("%d runs in ten minutes of restarts", n)
		}
	})
}

// TestBaseline: none before five runs, the 90th percentile after, of good and
// idle runs under the same driver alone.
func TestBaseline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		measured(t, l)
		for i := range 4 {
			if l.only(t).Baseline.Known {
				t.Fatalf("after %d runs", i+1)
			}
			run(finds(0.90+float64(i)/100))(t, l)
		}
		if s := l.only(t); !s.Baseline.Known || s.Baseline.Value != 0.97*40*gigabyte {
			t.Errorf("%+v", s.Baseline)
		}
		for range 60 {
			run(finds(0.90))(t, l)
		}
		if s := l.only(t); s.Baseline.Value != 0.9*40*gigabyte {
			t.Errorf("after 60 more: %+v", s.Baseline)
		}
		before := len(l.baselines[baselineKey{pair0, l.host0(t)}].Rates)
		run(finds(0.5))(t, l)
		l.host.setTraffic(20 * gigabyte)
		if _, err := l.ProbeNow(t.Context(), Request{Force: true}); err != nil {
			t.Fatal(err)
		}
		if n := len(l.baselines[baselineKey{pair0, l.host0(t)}].Rates); before != baselineRuns || n != before {
			t.Errorf("%d rates, then %d", before, n)
		}
		look(func(h *fakeHost) { h.sighting.Driver = sysread.Some("590.1") })(t, l)
		if l.only(t).Baseline.Known {
			t.Error("of another driver")
		}
		look(func(h *fakeHost) { h.sighting.Driver = sysread.Some("580.95") })(t, l)
		if !l.only(t).Baseline.Known {
			t.Error("the old driver's is gone")
		}
	})
}

func (l *lab) host0(t *testing.T) Identity {
	t.Helper()
	synctest.Wait()
	l.Prober.mu.Lock()
	defer l.Prober.mu.Unlock()
	return l.Prober.host.identity(pair0)
}

// TestForget: results, baselines and due times begin anew.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, func(o *Options) { o.StateDir = t.TempDir() }, pair0, pair1)
		l.runner.set(finds(0.5))
		l.eventually(t, 15*time.Minute, "both", func() bool {
			s := l.Status().Pairs
			return len(s) == 2 && s[0].Full != nil && s[1].Full != nil
		})
		if n := l.Forget(gpu0, "mlx5_9"); n != 0 {
			t.Errorf("%d forgotten", n)
		}
		if n := l.Forget(gpu0, ""); n != 1 {
			t.Errorf("%d forgotten", n)
		}
		if s := l.Status().Pairs; s[0].Full != nil || s[1].Full == nil {
			t.Errorf("%+v", s)
		}
		state, err := ReadState(l.options.StateDir)
		if err != nil || len(state.Pairs) != 2 || state.Pairs[0].Full != nil {
			t.Errorf("%+v, %v", state.Pairs, err)
		}
		l.eventually(t, 6*time.Minute, "a run", func() bool { return l.Status().Pairs[0].LastAttempt.After(time.Now().Add(-time.Minute)) })
	})
}

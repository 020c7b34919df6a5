package prober

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
)

// refused is a run that is refused when it begins, for a reason.
type refused string

func (r refused) Error() string      { return "refused: " + string(r) }
func (r refused) SkipReason() string { return string(r) }

func (r refused) find(order Order) Ending {
	return Ending{Result: loopback.Result{Device: order.Device, Stages: []loopback.StageResult{{Stage: loopback.StageOpen, Err: r}}}}
}

// TestRefused: what the run itself refuses is not tried over and over, and costs
// others nothing of the budget.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, func(o *Options) { o.RunsPerHour = 10 }, pair0, pair1)
		l.runner.set(func(o Order) Ending {
			if o.Pair == pair0 {
				return refused(ReasonMPS).find(o)
			}
			return finds(0.97)(o)
		})
		time.Sleep(10 * time.Hour)
		synctest.Wait()
		tries := 0
		for _, o := range l.runner.all() {
			if o.Pair == pair0 {
				tries++
			}
		}
		s := l.Status()
		if tries < 5 || tries > 20 || s.Pairs[0].Skip != ReasonMPS {
			t.Errorf("%d tries in 10 h, skip %q", tries, s.Pairs[0].Skip)
		}
		if s.Skips[ReasonBudget] > 0 || s.Pairs[1].LastSuccess[DepthFull].Before(time.Now().Add(-2*time.Hour)) {
			t.Errorf("skips %v, the other pair %v", s.Skips, s.Pairs[1].LastSuccess)
		}
		l.runner.set(finds(0.97))
		now(t, l)
		if l.Status().Pairs[0].Full == nil {
			t.Error("asked for, it waits")
		}
	})
}

// TestContextMemory: the memory that a context takes is not the job's to lose.
func TestContextMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.host.gpu(gpu0, func(g *GPUSighting) { g.Free = sysread.Some[uint64](4<<30 + 500<<20) })
		time.Sleep(5 * time.Hour)
		if s := l.only(t); s.Skip != ReasonMemory || len(l.runner.all()) > 0 {
			t.Errorf("skip %q, %d runs", s.Skip, len(l.runner.all()))
		}
	})
}

// TestJobStartsBetween: a job that starts while another pair is measured is seen.
func TestJobStartsBetween(t *testing.T) {
	for name, start := range map[string]func(h *fakeHost){
		"traffic":   func(h *fakeHost) { h.setTraffic(20 * gigabyte) },
		"GPU":       func(h *fakeHost) { h.mu.Lock(); h.busyGPU = 0.9; h.mu.Unlock() },
		"a process": func(h *fakeHost) { h.mu.Lock(); h.processes[gpu1] = []int{99, 98}; h.mu.Unlock() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, func(o *Options) { o.Interval = 0 }, pair0, pair1)
				time.Sleep(time.Minute)
				l.runner.set(func(o Order) Ending {
					if o.Pair == pair0 {
						start(l.host)
						l.host.mu.Lock()
						l.host.began = time.Now() // the counters begin to move now
						l.host.mu.Unlock()
						time.Sleep(2 * time.Second)
					}
					return finds(0.97)(o)
				})
				attempts, err := l.ProbeNow(t.Context(), Request{})
				if err != nil || len(attempts) != 2 {
					t.Fatal(attempts, err)
				}
				if attempts[1].Skip == ReasonNone {
					t.Errorf("measured beside a job: %+v", attempts[1])
				}
			})
		})
	}
}

// TestGone: a pair whose NIC or GPU goes is still shown, without a result, and the
// old result does not come back with the hardware.
func TestGone(t *testing.T) {
	for name, test := range map[string]struct {
		leave  func(*Sighting)
		reason string
		skip   Reason
	}{
		"NIC": {func(s *Sighting) { s.Devices.Value = nil; s.Ports = nil; s.Pairs.Value = nil }, WithdrawnNICGone, ReasonPort},
		"GPU": {func(s *Sighting) { s.GPUs.Value = map[string]GPUSighting{}; s.Pairs.Value = nil }, WithdrawnGPUGone, ReasonGPU},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, nil)
				measured(t, l)
				there := l.host.see()
				l.host.change(test.leave)
				l.Saw(l.host.see())
				time.Sleep(2 * time.Hour)
				if s := l.only(t); s.Full != nil || s.Withdrawn != test.reason || s.Skip != test.skip {
					t.Errorf("withdrawn %q, skip %q", s.Withdrawn, s.Skip)
				}
				l.host.change(func(s *Sighting) { *s = there })
				l.host.block(ReasonLibrary, true)
				l.Saw(l.host.see())
				if s := l.only(t); s.Full != nil {
					t.Error("the old result stands again")
				}
				l.host.change(test.leave)
				l.Saw(l.host.see())
				time.Sleep(25 * time.Hour)
				l.Saw(l.host.see())
				if n := len(l.Status().Pairs); n != 0 {
					t.Errorf("%d pairs after a day", n)
				}
			})
		})
	}
}

// TestPartialSightings: what changed while the exporter was down counts, whatever
// is seen first.
func TestPartialSightings(t *testing.T) {
	for name, change := range map[string]func(*Sighting){
		"peermem": func(s *Sighting) { s.Peermem = sysread.Some("") },
		"driver":  func(s *Sighting) { s.Driver = sysread.Some("") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				l := newLab(t, func(o *Options) { o.StateDir = dir })
				measured(t, l)
				l.end()
				l.host.block(ReasonLibrary, true)
				l.host.change(change)
				pairs := l.host.sighting.Pairs
				l.host.change(func(s *Sighting) { s.Pairs.Known = false })
				l.begin(t, func(o *Options) { o.StateDir = dir })
				time.Sleep(time.Second)
				l.host.change(func(s *Sighting) { s.Pairs = pairs })
				l.Saw(l.host.see())
				if s := l.only(t); s.Full != nil {
					t.Errorf("stands: %+v", s.Full.Identity)
				}
			})
		})
	}
}

// TestBusyFullConfirms: runs under load are repeated under load, and count.
func TestBusyFullConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, func(o *Options) { o.Busy = BusyFull })
		measured(t, l)
		l.host.setTraffic(20 * gigabyte)
		l.runner.set(corrupt)
		l.eventually(t, 8*time.Hour, "corrupt data is believed", func() bool {
			f := l.Status().Pairs[0].Full
			return f != nil && f.Judgement.Outcome == loopback.Corrupt
		})
	})
}

// TestStagedWrong: a staged path that went wrong is measured again by the next
// run, not taken over from the last.
func TestStagedWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.runner.set(func(o Order) Ending {
			e := finds(0.97)(o)
			for i := range e.Result.Paths {
				if e.Result.Paths[i].Path == loopback.PathStaged {
					e.Result.Paths[i].Mismatches = sysread.Some(5)
				}
			}
			return e
		})
		measured(t, l)
		time.Sleep(5 * time.Hour)
		if s := l.only(t); s.Full.Judgement.Outcome != loopback.Corrupt {
			t.Errorf("%+v", s.Full.Judgement)
		}
	})
}

// TestHungAndGone: a run that only was late holds nothing any more when it has
// ended, but its pair is left alone.
func TestHungAndGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := filepath.Join(t.TempDir(), "lock")
		l := newLab(t, func(o *Options) { o.LockPath = lock })
		gone := make(chan struct{})
		l.runner.set(func(Order) Ending { return Ending{Hung: true, Stage: loopback.StageMeasure, Gone: gone} })
		l.eventually(t, 6*time.Minute, "a hang", func() bool { p := l.Status().Pairs; return len(p) == 1 && !p[0].Hung.IsZero() })
		if !l.Hanging() || l.Quiesce(t.Context(), time.Now().Add(time.Minute)) == nil {
			t.Error("it hangs")
		}
		l.Resume()
		close(gone)
		l.eventually(t, time.Minute, "the lock", func() bool {
			held, err := loopback.TryLock(lock)
			if err == nil {
				_ = held.Unlock()
			}
			return err == nil
		})
		if l.Hanging() {
			t.Error("it does not hang any more")
		}
		if err := l.Quiesce(t.Context(), time.Now().Add(time.Minute)); err != nil {
			t.Error(err)
		}
		time.Sleep(5 * time.Hour)
		if s := l.only(t); s.Hung.IsZero() || len(l.runner.all()) != 1 {
			t.Errorf("%+v, %d runs", s, len(l.runner.all()))
		}
	})
}

// TestHungBefore: the process that takes this one's place leaves the pair alone.
func TestHungBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		since := time.Now()
		l := newLab(t, func(o *Options) { o.Hung = []HungRun{{pair0, loopback.StageRegister, since}} }, pair0, pair1)
		time.Sleep(5 * time.Hour)
		s := l.Status()
		if !s.Pairs[0].Hung.Equal(since) || s.Pairs[0].Full != nil || s.Pairs[1].Full == nil || l.Hanging() {
			t.Errorf("%+v", s.Pairs)
		}
		if runs := l.HungRuns(); len(runs) != 1 || runs[0] != (HungRun{pair0, loopback.StageRegister, since}) {
			t.Errorf("%+v", runs)
		}
		// Nor is one forgotten that this process did not see, nor what it shares.
		unseen := HungRun{Pair{gpu1, "mlx5_9", 1}, loopback.StageRegister, since}
		l.end()
		l.begin(t, func(o *Options) { o.Hung = []HungRun{unseen} })
		time.Sleep(time.Hour)
		if s := l.Status(); s.Pairs[1].Skip != ReasonHung || s.Pairs[0].Full == nil {
			t.Errorf("%+v", s.Pairs)
		}
		if runs := l.HungRuns(); len(runs) != 1 || runs[0] != unseen {
			t.Errorf("%+v", runs)
		}
	})
}

// TestIsolatedMeanwhile: a run that began in this process hangs in it, also if
// others are made elsewhere by then.
func TestIsolatedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.runner.set(func(Order) Ending {
			l.Isolate("by the test")
			return Ending{Hung: true, Stage: loopback.StageMeasure}
		})
		l.eventually(t, 6*time.Minute, "a hang", func() bool { return l.Hanging() })
	})
}

// TestEndedDuringRun: an exporter that ended during a run in its process makes
// none there until the next boot.
func TestEndedDuringRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := newLab(t, func(o *Options) { o.StateDir = dir })
		copied := filepath.Join(dir, "copy")
		l.runner.set(func(o Order) Ending {
			text, err := os.ReadFile(filepath.Join(dir, stateFile))
			if err == nil {
				err = os.WriteFile(copied, text, 0o600)
			}
			if err != nil {
				t.Error(err)
			}
			return finds(0.97)(o)
		})
		measured(t, l)
		l.end()
		for _, boot := range []string{"boot-1", "boot-1", "boot-2"} {
			l.begin(t, func(o *Options) { o.StateDir, o.BootID = dir, boot })
			if l.Status().Isolation != InProcess {
				t.Error("isolated after an end in between runs")
			}
			l.end()
		}
		if err := os.Rename(copied, filepath.Join(dir, stateFile)); err != nil {
			t.Fatal(err)
		}
		for i, test := range []struct {
			boot string
			want Isolation
		}{{"boot-1", InChild}, {"boot-1", InChild}, {"boot-2", InProcess}} {
			l.begin(t, func(o *Options) { o.StateDir, o.BootID = dir, test.boot })
			time.Sleep(2 * time.Hour)
			if s := l.Status(); s.Isolation != test.want || (s.IsolationReason == "") != (test.want == InProcess) {
				t.Errorf("start %d: %s, %q", i, s.Isolation, s.IsolationReason)
			}
			l.end()
		}
	})
}

// TestBrokenRepetition: a repetition that breaks is not made over and over.
func TestBrokenRepetition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		measured(t, l)
		run(finds(0.5))(t, l)
		before := len(l.runner.all())
		l.runner.set(broken)
		time.Sleep(repeatWithin)
		synctest.Wait()
		if n := len(l.runner.all()) - before; n > 5 {
			t.Errorf("%d runs", n)
		}
	})
}

// TestGlitch: a registration that fails once takes the rates until it is repeated.
func TestGlitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		measured(t, l)
		l.host.setTraffic(20 * gigabyte)
		glitch := true
		l.runner.set(func(o Order) Ending {
			if glitch && o.Spec.RegisterOnly {
				glitch = false
				return unregistrable(o)
			}
			return finds(0.97)(o)
		})
		l.eventually(t, 3*time.Hour, "a glitch", func() bool { return l.runner.count(DepthRegister) > 1 })
		time.Sleep(time.Minute)
		if s := l.only(t); s.Withdrawn != "" || s.Full == nil || s.Unconfirmed != nil {
			t.Errorf("%+v", s)
		}
	})
}

// TestOwnContext: the context of a run of ours is no process that leaves its GPU.
func TestOwnContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.runner.set(func(o Order) Ending {
			l.host.gpu(gpu0, func(g *GPUSighting) { g.Processes = sysread.Some(1) })
			l.Saw(l.host.see())
			time.Sleep(time.Second)
			l.host.gpu(gpu0, func(g *GPUSighting) { g.Processes = sysread.Some(0) })
			return finds(0.97)(o)
		})
		time.Sleep(6 * time.Hour)
		if n := len(l.runner.all()); n > 8 {
			t.Errorf("%d runs in 6 h", n)
		}
	})
}

// TestFlapping: a port that goes up and down gets a run at first, then ever fewer.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, func(o *Options) { o.RunsPerHour = 20 }, pair0, pair1)
		for began := time.Now(); time.Since(began) < 6*time.Hour; {
			for _, state := range []int{1, 4} {
				l.host.port(nic0, func(p *PortSighting) { p.State = sysread.Some(state) })
				l.Saw(l.host.see())
				time.Sleep(20 * time.Second)
			}
		}
		if n := len(l.runner.all()); n > 40 {
			t.Errorf("%d runs in 6 h", n)
		}
		if s := l.Status(); s.Skips[ReasonBudget] > 0 {
			t.Errorf("skips %v", s.Skips)
		}
	})
}

// TestDeaf: where nobody could tell that a job comes, nothing is measured.
func TestDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.host.mu.Lock()
		l.host.deaf = true
		l.host.mu.Unlock()
		time.Sleep(time.Hour)
		if s := l.only(t); s.Skip != ReasonLoadUnknown || len(l.runner.all()) != 0 {
			t.Errorf("skip %q, %d runs", s.Skip, len(l.runner.all()))
		}
	})
}

// TestFuture: times of a clock that was ahead are not believed.
func TestFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		time.Sleep(1000 * time.Hour)
		l := newLab(t, func(o *Options) { o.StateDir = dir })
		measured(t, l)
		l.end()
		state, err := ReadState(dir)
		if err != nil {
			t.Fatal(err)
		}
		ahead := time.Now().Add(500 * time.Hour)
		state.Pairs[0].Full.Time, state.Pairs[0].Full.Staged = ahead, ahead
		state.Pairs[0].Attempted[DepthFull], state.Pairs[0].Attempted[DepthRegister] = ahead, ahead
		if err := state.Write(dir); err != nil {
			t.Fatal(err)
		}
		l.host.setTraffic(20 * gigabyte)
		l.begin(t, func(o *Options) { o.StateDir = dir })
		time.Sleep(3 * time.Hour)
		if n := l.runner.count(DepthRegister); n < 2 {
			t.Errorf("%d registration runs", n)
		}
		time.Sleep(23 * time.Hour)
		if s := l.only(t); s.Full != nil {
			t.Error("a result of the future does not age")
		}
	})
}

// TestNoLock: a lock that cannot be made is not another run.
func TestNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		l := newLab(t, func(o *Options) { o.LockPath = filepath.Join(file, "lock") })
		time.Sleep(10 * time.Minute)
		if s := l.only(t); s.Skip != ReasonLock || len(l.runner.all()) != 0 {
			t.Errorf("skip %q, %d runs", s.Skip, len(l.runner.all()))
		}
		attempts, err := l.ProbeNow(t.Context(), Request{})
		if err != nil || attempts[0].Skip != ReasonLock || attempts[0].Text == "" || errors.Is(err, loopback.ErrLocked) {
			t.Errorf("%+v, %v", attempts, err)
		}
	})
}

// TestUnsure: while nobody knows of a GPU whether it can be used, nothing runs on
// it, and what is known of it stands.
func TestUnsure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		measured(t, l)
		l.host.setTraffic(20 * gigabyte)
		l.host.gpu(gpu0, func(g *GPUSighting) { *g = GPUSighting{} })
		l.Saw(l.host.see())
		runs := len(l.runner.all())
		time.Sleep(5 * time.Hour)
		if s := l.only(t); s.Full == nil || s.Skip != ReasonGPU || len(l.runner.all()) != runs {
			t.Errorf("skip %q, %d runs", s.Skip, len(l.runner.all())-runs)
		}
	})
}

// TestForcedFailure: that GPU memory cannot be registered, found under load, is
// confirmed without traffic.
func TestForcedFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		measured(t, l)
		l.host.setTraffic(20 * gigabyte)
		l.runner.set(unregistrable)
		if _, err := l.ProbeNow(t.Context(), Request{Force: true}); err != nil {
			t.Fatal(err)
		}
		l.eventually(t, 2*time.Minute, "confirmed", func() bool {
			known := l.Status().Pairs[0].Registration
			return known != nil && known.Judgement.Outcome == loopback.Failed
		})
		if n := l.runner.count(DepthFull); n != 2 {
			t.Errorf("%d full runs", n)
		}
	})
}

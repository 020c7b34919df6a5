package prober

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gdr_exporter/rdma/loopback"
)

// TestBadState: a state file that is damaged, foreign or not to be read costs one
// warning, and the next write puts a good one in place.
func TestBadState(t *testing.T) {
	bad := map[string]func(path string) error{
		"empty":        func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"cut off":      func(path string) error { return os.WriteFile(path, []byte(`{"version": 1, "pairs": [{"gpu"`), 0o600) },
		"another form": func(path string) error { return os.WriteFile(path, []byte(`{"version": 1, "pairs": {"a": 1}}`), 0o600) },
		"newer":        func(path string) error { return os.WriteFile(path, []byte(`{"version": 2}`), 0o600) },
		"foreign":      func(path string) error { return os.WriteFile(path, []byte(`{"name": "x"}`), 0o600) },
		"no JSON":      func(path string) error { return os.WriteFile(path, []byte("\x00\x01"), 0o600) },
		"a directory":  func(path string) error { return os.Mkdir(path, 0o700) },
		"too large": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, mostState+1))
		},
		"broken result": func(path string) error {
			return os.WriteFile(path, []byte(`{"version":1,"pairs":[{"gpu":"a","device":"b","full":{"result":7}}]}`), 0o600)
		},
	}
	for name, make := range bad {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, stateFile)
				if err := make(path); err != nil {
					t.Fatal(err)
				}
				l := newLab(t, func(o *Options) { o.StateDir = dir })
				l.eventually(t, 6*time.Minute, "a run", func() bool { return len(l.Status().Pairs) == 1 && l.Status().Pairs[0].Full != nil })
				l.end()
				warnings := 0
				for _, kind := range l.kinds() {
					if kind == EventState {
						warnings++
					}
				}
				want := 1
				if name == "a directory" {
					want = 2 // it cannot be written either
				}
				if warnings != want {
					t.Errorf("%d warnings", warnings)
				}
				if state, err := ReadState(dir); name != "a directory" && (err != nil || len(state.Pairs) != 1) {
					t.Errorf("%v, %v", state, err)
				}
			})
		})
	}
}

// TestUnwritableState: results that cannot be kept are told of once, and again
// when it worked meanwhile.
func TestUnwritableState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		l := newLab(t, func(o *Options) { o.StateDir = dir })
		time.Sleep(5 * time.Hour)
		synctest.Wait()
		told := func() int {
			return len(slices.DeleteFunc(l.kinds(), func(kind EventKind) bool { return kind != EventState }))
		}
		if n := told(); n != 2 { // reading, then writing
			t.Errorf("told %d times", n)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if state, err := ReadState(dir); err != nil || len(state.Pairs) != 1 || told() != 0 {
			t.Errorf("%+v, %v", state, err)
		}
	})
}

// TestStateLeftovers: a pair that is not there any more is kept, for when it comes
// back, and entries without a name are not.
func TestStateLeftovers(t *testing.T) {
	state, err := parseState([]byte(`{"version":1,"pairs":[{"gpu":"","device":"x"},{"gpu":"a","device":"b","port":1}],"baselines":[null]}`))
	if err != nil || len(state.Pairs) != 1 || len(state.Baselines) != 0 {
		t.Errorf("%+v, %v", state, err)
	}
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := newLab(t, func(o *Options) { o.StateDir = dir })
		measured(t, l)
		before := l.only(t).Full
		l.host.change(func(s *Sighting) { s.Pairs.Value = nil })
		l.Saw(l.host.see())
		if n := len(l.Status().Pairs); n != 0 {
			t.Errorf("%d pairs", n)
		}
		l.end()
		l.host = newFakeHost(pair0)
		l.begin(t, func(o *Options) { o.StateDir = dir })
		time.Sleep(time.Second)
		if full := l.only(t).Full; full == nil || !full.Time.Equal(before.Time) {
			t.Errorf("%+v", full)
		}
	})
}

// TestLockState: one exporter holds the state.
func TestLockState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	unlock, err := LockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockState(dir); !errors.Is(err, ErrStateInUse) || !strings.Contains(err.Error(), dir) {
		t.Error(err)
	}
	unlock()
	if unlock, err = LockState(dir); err != nil {
		t.Fatal(err)
	}
	unlock()
}

// TestStateForget: in the file, where no exporter runs.
func TestStateForget(t *testing.T) {
	s := State{Version: stateVersion, Pairs: []PairState{{Candidate: Candidate{Pair: pair0}}, {Candidate: Candidate{Pair: pair1}}}, Baselines: []*Baseline{{Pair: pair0}, {Pair: pair0}, {Pair: pair1}}}
	if n := s.Forget("", "mlx5_9"); n != 0 || len(s.Pairs) != 2 {
		t.Errorf("%d", n)
	}
	if n := s.Forget(gpu0, ""); n != 1 || len(s.Pairs) != 1 || len(s.Baselines) != 1 {
		t.Errorf("%d, %+v", n, s)
	}
	dir := t.TempDir()
	if err := s.Write(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, stateFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if read, err := ReadState(dir); err != nil || len(read.Pairs) != 1 || read.Pairs[0].Pair != pair1 {
		t.Errorf("%+v, %v", read, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestAskedOnly: without a schedule nothing runs but what is asked for, and what
// has to be repeated of it.
func TestAskedOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, func(o *Options) { o.Interval = 0 })
		time.Sleep(48 * time.Hour)
		if n := len(l.runner.all()); n != 0 {
			t.Errorf("%d runs", n)
		}
		run(finds(0.5))(t, l)
		time.Sleep(2 * time.Hour)
		if s := l.only(t); s.Full == nil || s.Full.Judgement.Outcome != loopback.Slow || len(l.runner.all()) != 4 {
			t.Errorf("%+v, %d runs", s, len(l.runner.all()))
		}
	})
}

// TestConcurrent: whoever asks, tells and controls at once, for the race detector.
func TestConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, func(o *Options) { o.StateDir = t.TempDir() }, eightPairs()...)
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				for j := range 50 {
					time.Sleep(time.Duration(i+1) * time.Second)
					switch (i + j) % 6 {
					case 0:
						l.Saw(l.host.see())
					case 1:
						_, _ = json.Marshal(l.Status().Pairs)
					case 2:
						_, _ = l.ProbeNow(t.Context(), Request{Device: "mlx5_3"})
					case 3:
						_ = l.Quiesce(t.Context(), time.Now().Add(5*time.Second))
					case 4:
						l.Resume()
					case 5:
						l.Forget("", "mlx5_2")
					}
				}
			})
		}
		group.Wait()
		if most := l.runner.most; most != 1 {
			t.Errorf("%d runs at once", most)
		}
	})
}

// FuzzState: whatever the file holds, it is a State or an error.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"version":1,"pairs":[{"gpu":"0000:1b:00.0","device":"mlx5_0","port":1,"full":{"depth":"full","result":{"Device":"mlx5_0"},"judgement":{"outcome":"fine"}}}],"ports":[{"device":"mlx5_0","port":1}],"baselines":[{"bytes_per_second":[1,2]}]}`))
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseState(text)
		if (s == nil) == (err == nil) {
			t.Fatalf("%v, %v", s, err)
		}
		if err != nil {
			return
		}
		for i := range s.Pairs {
			kept := s.Pairs[i].pair(0.5)
			kept.known()
			kept.age(time.Now(), time.Hour)
			kept.state()
		}
	})
}

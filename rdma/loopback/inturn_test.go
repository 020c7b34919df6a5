package loopback

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
)

// scripted is a NIC whose rate parts of a run take as long as the test says.
type scripted struct {
	*fakeVerbs
	part  uint64 // bytes of a part
	order []string
	// took says how long a part of a path takes, by how many parts it had before.
	took func(path string, n int) (time.Duration, error)
}

func (s *scripted) transfer(t transfer, l limits) (progress, error) {
	p, err := s.fakeVerbs.transfer(t, l)
	if err != nil || t.read || t.bytes != s.part || t.channel != 0 {
		return p, err
	}
	path := s.pathOf(t)
	before := slices.DeleteFunc(slices.Clone(s.order), func(other string) bool { return other != path })
	s.order = append(s.order, path)
	p.elapsed, err = s.took(path, len(before))
	return p, err
}

func (s *scripted) load(dirs []string) (verbs, string, error) {
	_, path, err := s.fakeVerbs.load(dirs)
	return s, path, err
}

// pathOf tells a path by whether its ends are GPU memory.
func (s *scripted) pathOf(t transfer) string {
	_, fromGPU := s.untouchable[t.local] // hostGPU notes all of its memory there
	_, toGPU := s.untouchable[t.remote]
	return map[[2]bool]string{{false, false}: "host", {true, false}: "gpu_read", {false, true}: "gpu_write", {true, true}: "gpu"}[[2]bool{fromGPU, toGPU}]
}

func slicedSpec(t *testing.T, gpu *hostGPU, parts int) Spec {
	spec := newFakeHost(t).spec(gpu)
	spec.Slices, spec.Bytes = parts, uint64(parts)*(24<<10)
	return spec
}

// TestSlices: the paths take turns, ratios are of neighbours, what is measured
// once is measured once, and staging is left out unless it is named.
func TestSlices(t *testing.T) {
	for _, parts := range []int{2, 4, 5} {
		l := newLedger(t)
		// The load of somebody else: each round is slower than the one before. GPU
		// memory costs a tenth more, but in one round ten times as much.
		nic := &scripted{fakeVerbs: newFakeVerbs(l), part: 24 << 10, took: func(path string, n int) (time.Duration, error) {
			took := time.Millisecond * time.Duration(n+1)
			switch {
			case path == "host":
				return took, nil
			case n == 1 && parts > 2:
				return took * 10, nil
			default:
				return took * 11 / 10, nil
			}
		}}
		r := runOnThread(t.Context(), slicedSpec(t, newHostGPU(l), parts), nic.load)
		l.wantEmpty()
		wantWhole(t, r, Paths[:4]...)
		if want := slices.Repeat([]string{"host", "gpu_read", "gpu_write", "gpu"}, parts); !slices.Equal(nic.order, want) {
			t.Errorf("%d slices: %q", parts, nic.order)
		}
		for _, p := range r.Paths {
			want := 10. / 11
			if p.Path == PathHost {
				want = 1
			}
			if !p.Ratio.Known || math.Abs(p.Ratio.Value-want) > 1e-9 || p.Bytes != uint64(parts)*(24<<10) || p.Verified == 0 {
				t.Errorf("%d slices: %+v", parts, p)
			}
		}
		total := time.Millisecond * time.Duration(parts*(parts+1)/2)
		if rate := float64(r.Paths[0].Bytes) / total.Seconds(); math.Abs(r.Paths[0].BytesPerSecond.Value/rate-1) > 1e-9 {
			t.Errorf("%d slices: %v bytes/s, want %v", parts, r.Paths[0].BytesPerSecond, rate)
		}
		if r.TransferredBytes != nic.moved {
			t.Errorf("%d slices: %d bytes transferred, the NIC moved %d", parts, r.TransferredBytes, nic.moved)
		}
		wantOnce(t, r)
	}
}

// wantOnce expects every stage of every path once.
func wantOnce(t *testing.T, r Result) {
	t.Helper()
	seen := map[string]int{}
	for _, s := range r.Stages {
		seen[fmt.Sprint(s.Stage, " ", s.Path)]++
	}
	for stage, times := range seen {
		if times != 1 {
			t.Errorf("stage %s came %d times", stage, times)
		}
	}
}

// TestSlicesStaged: named, the staged path is measured alone, after the others.
func TestSlicesStaged(t *testing.T) {
	l := newLedger(t)
	spec := slicedSpec(t, newHostGPU(l), 3)
	spec.Paths = Paths
	r := runOnThread(t.Context(), spec, newFakeVerbs(l).load)
	l.wantEmpty()
	wantWhole(t, r, Paths...)
	if staged := r.Paths[4]; !staged.Ratio.Known || staged.Ratio.Value != staged.BytesPerSecond.Value/r.Paths[0].BytesPerSecond.Value {
		t.Errorf("%+v", staged)
	}
}

// TestSlicesFail: a path that fails in some round has no rate and spoils no other;
// if it is the host path, the others have rates and no ratios.
func TestSlicesFail(t *testing.T) {
	for _, failing := range Paths[:4] {
		l := newLedger(t)
		nic := &scripted{fakeVerbs: newFakeVerbs(l), part: 24 << 10, took: func(path string, n int) (time.Duration, error) {
			if path == string(failing) && n == 2 {
				return 0, &Error{Call: "completion", Status: LocalProtection}
			}
			return time.Millisecond, nil
		}}
		r := runOnThread(t.Context(), slicedSpec(t, newHostGPU(l), 4), nic.load)
		l.wantEmpty()
		wantOnce(t, r)
		for _, p := range r.Paths {
			failed := p.Path == failing
			if failed != (p.Err != nil) || failed != (p.Stage == StageMeasure) || failed == p.BytesPerSecond.Known || p.Ratio.Known != (!failed && failing != PathHost) {
				t.Errorf("%s fails: %+v", failing, p)
			}
		}
		if want := "measure (path " + string(failing) + "): completion"; r.Err() == nil || !strings.HasPrefix(r.Err().Error(), want) {
			t.Errorf("%s fails: %v", failing, r.Err())
		}
	}
}

// Whatever call fails in a sliced run, the failure is told and nothing is left.
func TestEveryCallFailsInSlices(t *testing.T) {
	for failAt := 0; ; failAt++ {
		l := newLedger(t)
		l.failAt = failAt
		r := runOnThread(t.Context(), slicedSpec(t, newHostGPU(l), 2), newFakeVerbs(l).load)
		l.wantEmpty()
		if l.failed == "" {
			t.Logf("%d calls", failAt)
			return
		}
		told := errors.Is(r.Err(), errTest)
		for _, registration := range r.Registrations {
			told = told || errors.Is(registration.Err, errTest)
		}
		if !told || t.Failed() {
			t.Fatalf("call %d, %s:\n%s", failAt, l.failed, describe(r))
		}
	}
}

// TestSlicesStopped: a run that is stopped between rounds has no rates.
func TestSlicesStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := newLedger(t)
	nic := &scripted{fakeVerbs: newFakeVerbs(l), part: 24 << 10}
	var stop func() bool
	nic.took = func(path string, n int) (time.Duration, error) {
		if path == "gpu" && n == 1 {
			cancel()
			for !stop() { // context.AfterFunc is not at once
				time.Sleep(time.Millisecond)
			}
		}
		return time.Millisecond, nil
	}
	done := make(chan Result)
	go func() {
		r := newRun(ctx, slicedSpec(t, newHostGPU(l), 4).withDefaults(), nic.load)
		stop = func() bool { return r.stopping.Load() != 0 }
		r.all()
		done <- r.result
	}()
	r := <-done
	l.wantEmpty()
	for _, p := range r.Paths {
		if !errors.Is(p.Err, syscall.ECANCELED) || p.BytesPerSecond.Known || p.Ratio.Known {
			t.Errorf("%+v", p)
		}
	}
}

// TestRatio: without slices it is the plain one; without a host rate there is none.
func TestRatio(t *testing.T) {
	l := newLedger(t)
	r := runOnThread(t.Context(), newFakeHost(t).spec(newHostGPU(l)), newFakeVerbs(l).load)
	for _, p := range r.Paths {
		if !p.Ratio.Known || p.Ratio.Value != p.BytesPerSecond.Value/r.Paths[0].BytesPerSecond.Value {
			t.Errorf("%+v", p)
		}
	}
	spec := newFakeHost(t).spec(newHostGPU(l))
	spec.Paths = []Path{PathGPU, PathStaged}
	for _, p := range runOnThread(t.Context(), spec, newFakeVerbs(l).load).Paths {
		if p.Ratio.Known || !p.BytesPerSecond.Known {
			t.Errorf("without the host path: %+v", p)
		}
	}
	for _, host := range []sysread.Maybe[float64]{{}, sysread.Some(0.0), sysread.Some(-1.0)} {
		if r := ratio(sysread.Some(1.0), host); r.Known {
			t.Errorf("ratio to %v: %v", host, r)
		}
	}
}

// TestRegisterOnly: both methods are tried, with 2 MiB, and the port, its tables
// and host memory are left alone.
func TestRegisterOnly(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*fakeVerbs, *hostGPU)
		want   []error
		method Method
	}{
		"both":                 {func(*fakeVerbs, *hostGPU) {}, []error{nil, nil}, MethodDMABuf},
		"no peermem":           {func(_ *fakeVerbs, g *hostGPU) { g.noPeermem = true }, []error{syscall.EFAULT, nil}, MethodDMABuf},
		"no dma-buf":           {func(v *fakeVerbs, _ *hostGPU) { v.dmabuf = syscall.EOPNOTSUPP }, []error{nil, syscall.EOPNOTSUPP}, MethodPeermem},
		"neither":              {func(v *fakeVerbs, g *hostGPU) { g.noPeermem, v.dmabuf = true, syscall.EPROTONOSUPPORT }, []error{syscall.EFAULT, syscall.EPROTONOSUPPORT}, ""},
		"data-direct function": {func(v *fakeVerbs, _ *hostGPU) { v.direct = nil }, []error{nil, nil}, MethodDMABuf},
	} {
		l := newLedger(t)
		v, gpu, h := newFakeVerbs(l), newHostGPU(l), newFakeHost(t)
		v.port.state = 1
		h.pkeys("0x7fff")
		h.gids("0000:0000:0000:0000:0000:0000:0000:0000", "0000:0000:0000:0000:0000:0000:0000:0000")
		test.change(v, gpu)
		spec := h.spec(gpu)
		spec.RegisterOnly = true
		r := runOnThread(t.Context(), spec, v.load)
		l.wantEmpty()
		if r.Err() != nil || !r.RegisterOnly || r.Method != test.method || len(r.Registrations) != 2 || !r.NICDMABuf.Known || r.DataDirect != sysread.Some(v.direct == nil) {
			t.Errorf("%s: %s", name, describe(r))
			continue
		}
		for i, want := range test.want {
			if !errors.Is(r.Registrations[i].Err, want) {
				t.Errorf("%s: %v, want %v", name, r.Registrations[i], want)
			}
		}
		for _, call := range []string{"make QP", "make CQ", "make channel", "write", "GPU write", "make stream", "make pin"} {
			if slices.Contains(l.calls, call) {
				t.Errorf("%s: %s was called", name, call)
			}
		}
		if v.moved+r.TransferredBytes > 0 || len(r.Paths) > 0 || r.RelaxedOrdering.Known {
			t.Errorf("%s: %d bytes moved, paths %v, host memory registered %v", name, v.moved, r.Paths, r.RelaxedOrdering)
		}
		for _, region := range v.regions {
			if region.length != hugePage {
				t.Errorf("%s: %d bytes were registered", name, region.length)
			}
		}
	}
}

// TestRegisterOnlyFails: whatever call fails, nothing is left.
func TestRegisterOnlyFails(t *testing.T) {
	for failAt := 0; ; failAt++ {
		l := newLedger(t)
		l.failAt = failAt
		spec := newFakeHost(t).spec(newHostGPU(l))
		spec.RegisterOnly = true
		r := runOnThread(t.Context(), spec, newFakeVerbs(l).load)
		l.wantEmpty()
		if l.failed == "" {
			return
		}
		if r.Err() == nil && !errors.Is(errors.Join(r.Registrations[0].Err, r.Registrations[1].Err), errTest) {
			t.Errorf("call %d, %s:\n%s", failAt, l.failed, describe(r))
		}
	}
}

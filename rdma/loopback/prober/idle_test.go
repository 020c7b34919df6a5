package prober

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestIdleness: it is the schedule's own gate, pair by pair.
func TestIdleness(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*fakeHost)
		want   Reason
	}{
		"idle":              {func(*fakeHost) {}, ReasonNone},
		"traffic":           {func(h *fakeHost) { h.traffic = 10 * gigabyte }, ReasonNICBusy},
		"GPU":               {func(h *fakeHost) { h.busyGPU = 0.5 }, ReasonGPUBusy},
		"unknown":           {func(h *fakeHost) { h.unknown = true }, ReasonLoadUnknown},
		"processes unknown": {func(h *fakeHost) { h.deaf = true }, ReasonLoadUnknown},
		"a process waits":   {func(h *fakeHost) { h.processes[gpu0] = []int{7} }, ReasonNone},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newFakeHost(pair0, pair1)
				test.change(h)
				began := time.Now()
				i := WatchIdle(t.Context(), h, []Pair{pair0, pair1})
				if took := time.Since(began); took != window {
					t.Errorf("it looked for %v", took)
				}
				for _, at := range []Pair{pair0, pair1} {
					if got := i.Busy(t.Context(), at); got != test.want {
						t.Errorf("%+v: %q", at, got)
					}
				}
				if got := i.Busy(t.Context(), Pair{gpu0, nic1, 1}); got != ReasonStopped {
					t.Errorf("a pair that was not looked at: %q", got)
				}
			})
		})
	}
}

// TestIdlenessLater: load that comes while another pair runs is seen.
func TestIdlenessLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHost(pair0)
		i := WatchIdle(t.Context(), h, []Pair{pair0})
		time.Sleep(10 * time.Second)
		h.mu.Lock()
		h.busyGPU = 1
		h.mu.Unlock()
		if got := i.Busy(t.Context(), pair0); got != ReasonGPUBusy {
			t.Errorf("%q", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if got := i.Busy(ctx, pair0); got != ReasonStopped {
			t.Errorf("interrupted: %q", got)
		}
		if got := WatchIdle(ctx, h, []Pair{pair0}).Busy(t.Context(), pair0); got != ReasonStopped {
			t.Errorf("interrupted while it looked: %q", got)
		}
	})
}

// TestGuard: a process that comes ends a run, the run's own and those that were there
// do not.
func TestGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const own = 4711
		h := newFakeHost(pair0)
		h.processes[gpu0] = []int{7}
		i := WatchIdle(t.Context(), h, []Pair{pair0})
		set := func(pids ...int) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.processes[gpu0] = pids
		}
		ctx, came := i.Guard(t.Context(), pair0, own)
		set(7, own)
		time.Sleep(5 * time.Second)
		if ctx.Err() != nil || came() || ctx.Err() == nil {
			t.Error("it is ended by itself, or does not end")
		}
		ctx, came = i.Guard(t.Context(), pair0, own)
		set(7, own, 8)
		time.Sleep(time.Second)
		if ctx.Err() == nil || !came() {
			t.Error("a process came, and the run goes on")
		}
		if ctx, came := i.Guard(t.Context(), Pair{Device: nic0, Port: 1}, own); ctx.Err() != nil || came() {
			t.Error("a run without GPU waits for processes")
		}
	})
}

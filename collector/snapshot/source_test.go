package snapshot

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gdr_exporter/collector/sysread"
)

// fakeUnit is a device whose read can be made to hang.
type fakeUnit struct {
	name   string
	reads  atomic.Int32
	closed atomic.Bool

	mu   sync.Mutex
	gate chan struct{} // nil: answer at once
	errs []sysread.ReadError
}

func (u *fakeUnit) Name() string { return u.name }
func (u *fakeUnit) Close()       { u.closed.Store(true) }

func (u *fakeUnit) Read(time.Time) (int, []sysread.ReadError) {
	n := u.reads.Add(1)
	u.mu.Lock()
	gate, errs := u.gate, u.errs
	u.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return int(n), errs
}

// hang makes further reads hang until the returned function is called.
func (u *fakeUnit) hang() (release func()) {
	gate := make(chan struct{})
	u.mu.Lock()
	u.gate = gate
	u.mu.Unlock()
	return func() {
		u.mu.Lock()
		u.gate = nil
		u.mu.Unlock()
		close(gate)
	}
}

// fakeHost is a list of units that can be changed.
type fakeHost struct {
	mu    sync.Mutex
	units []*fakeUnit
	err   error
	lists atomic.Int32
	gate  chan struct{}
}

func (h *fakeHost) list() ([]*fakeUnit, struct{}, error) {
	h.lists.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate != nil {
		<-h.gate
	}
	return append([]*fakeUnit(nil), h.units...), struct{}{}, h.err
}

func (h *fakeHost) set(units ...*fakeUnit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.units = units
}

type fakeSource = source[*fakeUnit, int, struct{}]

func newFake(options Options, units ...*fakeUnit) (*fakeHost, *fakeSource) {
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Deadline == 0 {
		options.Deadline = 10 * time.Second
	}
	host := &fakeHost{units: units}
	return host, newSource("fake", &options, NewLedger(options.Now, options.Tell), host.list)
}

func takeWithin(t *testing.T, s *fakeSource, limit time.Duration) Part[int, struct{}] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return s.take(ctx)
}

func TestHungDeviceCostsItselfOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sick, well := &fakeUnit{name: "sick"}, &fakeUnit{name: "well"}
		release := sick.hang()
		_, s := newFake(Options{Deadline: 50 * time.Millisecond}, sick, well)

		part := takeWithin(t, s, 50*time.Millisecond)
		if part.Units[0].Data != nil || part.Units[0].StuckFor == 0 {
			t.Errorf("the hanging device is shown as %+v", part.Units[0])
		}
		if part.Units[1].Data == nil || part.Units[1].StuckFor != 0 {
			t.Errorf("the healthy device is shown as %+v", part.Units[1])
		}

		goroutines := runtime.NumGoroutine()
		for range 100 {
			started := time.Now()
			part = takeWithin(t, s, 5*time.Second)
			if waited := time.Since(started); waited > time.Second {
				t.Fatalf("a later scrape waited %v for a device known to hang", waited)
			}
			if part.Units[1].Data == nil {
				t.Fatal("the healthy device is missing")
			}
		}
		if n := sick.reads.Load(); n != 1 {
			t.Errorf("the hanging device was asked %d times", n)
		}
		if n := runtime.NumGoroutine(); n > goroutines+2 {
			t.Errorf("%d goroutines after 100 scrapes, %d before", n, goroutines)
		}

		release()
		eventually(t, func() bool { return takeWithin(t, s, time.Second).Units[0].Data != nil }, "the device did not come back")
	})
}

func TestConcurrentScrapesShareOneRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unit := &fakeUnit{name: "a"}
		release := unit.hang()
		_, s := newFake(Options{}, unit)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if part := takeWithin(t, s, 10*time.Second); part.Units[0].Data == nil {
					t.Error("no data")
				}
			})
		}
		eventually(t, func() bool { return unit.reads.Load() == 1 }, "no read began")
		synctest.Wait() // the others have arrived
		release()
		wg.Wait()
		if n := unit.reads.Load(); n != 1 {
			t.Errorf("20 concurrent scrapes made %d reads", n)
		}
	})
}

func TestMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newClock()
		unit := &fakeUnit{name: "a"}
		_, s := newFake(Options{MaxAge: 2 * time.Second, Now: clock.now}, unit)
		takeWithin(t, s, time.Second)
		clock.add(1900 * time.Millisecond)
		takeWithin(t, s, time.Second)
		if n := unit.reads.Load(); n != 1 {
			t.Fatalf("%d reads within the maximum age", n)
		}
		clock.add(200 * time.Millisecond)
		takeWithin(t, s, time.Second)
		if n := unit.reads.Load(); n != 2 {
			t.Fatalf("%d reads after the maximum age", n)
		}

		_, s = newFake(Options{Now: clock.now}, unit)
		takeWithin(t, s, time.Second)
		takeWithin(t, s, time.Second)
		if n := unit.reads.Load(); n != 4 {
			t.Errorf("%d reads with a maximum age of 0", n-2)
		}
	})
}

// A scrape with a short timeout must not make another's device look hung.
func TestShortScrapeDoesNotSpoilALongOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unit := &fakeUnit{name: "slow"}
		release := unit.hang()
		_, s := newFake(Options{Deadline: 5 * time.Second}, unit)
		if part := takeWithin(t, s, 20*time.Millisecond); part.Units[0].StuckFor == 0 {
			t.Error("the short scrape does not say that the device is late")
		}
		time.AfterFunc(50*time.Millisecond, release)
		if part := takeWithin(t, s, 5*time.Second); part.Units[0].Data == nil {
			t.Error("the long scrape did not wait for the read in progress")
		}
		if n := unit.reads.Load(); n != 1 {
			t.Errorf("%d reads of a device that was being read", n)
		}
	})
}

func TestRemovedDeviceIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept, gone, hung := &fakeUnit{name: "kept"}, &fakeUnit{name: "gone"}, &fakeUnit{name: "hung"}
		release := hung.hang()
		host, s := newFake(Options{Deadline: 30 * time.Millisecond}, kept, gone, hung)
		takeWithin(t, s, 30*time.Millisecond)
		host.set(kept)
		part := takeWithin(t, s, time.Second)
		if !gone.closed.Load() || kept.closed.Load() {
			t.Errorf("closed: gone %v, kept %v", gone.closed.Load(), kept.closed.Load())
		}
		if len(part.Units) != 2 || part.Units[1].Name != "hung" || part.Units[1].StuckFor == 0 {
			t.Errorf("a removed device that hangs is not reported any more: %+v", part.Units)
		}

		again := &fakeUnit{name: "hung"}
		host.set(kept, again)
		part = takeWithin(t, s, time.Second)
		if len(part.Units) != 2 || part.Units[1].Data == nil {
			t.Errorf("a new device of the hanging one's name is not read: %+v", part.Units)
		}
		if hung.closed.Load() {
			t.Error("closed while being read")
		}
		release()
		eventually(t, hung.closed.Load, "not closed after its read returned")
	})
}

func TestListingFailsAndHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unit := &fakeUnit{name: "a"}
		var told []sysread.ReadError
		host, s := newFake(Options{Deadline: 20 * time.Millisecond, Tell: func(_ string, err sysread.ReadError) { told = append(told, err) }}, unit)
		host.err = sysread.ReadError{Source: "class/x", Err: syscall.EIO}
		if part := takeWithin(t, s, time.Second); !errors.Is(part.Err, syscall.EIO) {
			t.Errorf("error %v", part.Err)
		}
		if len(told) != 1 || told[0].Errno() != "EIO" {
			t.Errorf("told %v", told)
		}
		host.err = nil
		host.gate = make(chan struct{})
		for range 3 {
			if part := takeWithin(t, s, 20*time.Millisecond); !errors.Is(part.Err, ErrListStuck) {
				t.Errorf("error %v while listing hangs", part.Err)
			}
		}
		if n := host.lists.Load(); n != 2 {
			t.Errorf("listed %d times", n)
		}
		close(host.gate)
		host.mu.Lock()
		host.gate = nil
		host.mu.Unlock()
		eventually(t, func() bool { p := takeWithin(t, s, time.Second); return p.Err == nil && len(p.Units) == 1 }, "listing did not recover")
	})
}

// A list that fails must not make a device be forgotten that is being read:
// it would be read by two goroutines once the list succeeds again.
func TestFailedListingForgetsNoDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unit := &fakeUnit{name: "a"}
		release := unit.hang()
		host, s := newFake(Options{Deadline: 20 * time.Millisecond}, unit)
		takeWithin(t, s, 20*time.Millisecond)
		host.units, host.err = nil, syscall.EIO
		if part := takeWithin(t, s, time.Second); part.Err == nil || len(part.Units) != 0 {
			t.Errorf("part %+v of a list that failed", part)
		}
		host.units, host.err = []*fakeUnit{unit}, nil
		if part := takeWithin(t, s, 50*time.Millisecond); part.Units[0].Data != nil || part.Units[0].StuckFor == 0 {
			t.Errorf("the hanging device is shown as %+v", part.Units[0])
		}
		if n := unit.reads.Load(); n != 1 || unit.closed.Load() {
			t.Errorf("%d reads of a device that hangs, closed %v", n, unit.closed.Load())
		}
		release()
		eventually(t, func() bool { return takeWithin(t, s, time.Second).Units[0].Data != nil }, "the device did not come back")
	})
}

func TestReadErrorsAreCountedEachTimeAndToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unit := &fakeUnit{name: "a", errs: []sysread.ReadError{{Device: "a", Port: "1", Source: "counters/x", Err: syscall.EIO}}}
		clock := newClock()
		told := 0
		_, s := newFake(Options{Now: clock.now, Tell: func(string, sysread.ReadError) { told++ }}, unit)
		for range 5 {
			takeWithin(t, s, time.Second)
		}
		counts := s.ledger.Counts()
		want := ErrorCount{ErrorKey{"fake", "a", "1", "counters/x", "EIO"}, 5}
		if len(counts) != 1 || counts[0] != want || told != 1 {
			t.Errorf("counts %v, told %d times", counts, told)
		}
		clock.add(2 * time.Hour)
		takeWithin(t, s, time.Second)
		if told != 2 {
			t.Errorf("told %d times after a long silence", told)
		}
	})
}

func TestLedgerIsBounded(t *testing.T) {
	l := NewLedger(time.Now, nil)
	for i := range maxErrorKinds + 500 {
		l.add("x", []sysread.ReadError{{Source: string(rune('a'+i%26)) + time.Duration(i).String(), Err: syscall.EIO}})
	}
	counts := l.Counts()
	if len(counts) != maxErrorKinds+1 {
		t.Errorf("%d kinds", len(counts))
	}
	var total uint64
	for _, c := range counts {
		total += c.Count
	}
	if total != maxErrorKinds+500 {
		t.Errorf("%d errors counted", total)
	}
}

type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Unix(1_800_000_000, 0)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func eventually(t *testing.T, condition func() bool, message string) {
	t.Helper()
	for range 500 {
		if condition() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal(message)
}

package kmsg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// fakeLog is a device whose records a test gives. Its clocks stand where they are
// put.
type fakeLog struct {
	mu      sync.Mutex
	steps   []step
	more    chan struct{}
	closed  chan struct{}
	reads   int
	openErr error

	wall time.Time
	up   time.Duration
}

// step is what one read gives.
type step struct {
	text string
	err  error
}

var bootTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newFakeLog(steps ...step) *fakeLog {
	up := 1000 * time.Second
	return &fakeLog{steps: steps, more: make(chan struct{}, 1), closed: make(chan struct{}), wall: bootTime.Add(up), up: up}
}

func (f *fakeLog) next(to []byte, wait bool) (int, error) {
	for {
		f.mu.Lock()
		if len(f.steps) > 0 {
			s := f.steps[0]
			f.steps = f.steps[1:]
			f.reads++
			f.mu.Unlock()
			return copy(to, s.text), s.err
		}
		f.mu.Unlock()
		if !wait {
			return 0, unix.EAGAIN
		}
		select {
		case <-f.closed:
			return 0, os.ErrClosed
		case <-f.more:
		}
	}
}

func (f *fakeLog) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.closed:
	default:
		close(f.closed)
	}
}

func (f *fakeLog) give(steps ...step) {
	f.mu.Lock()
	f.steps = append(f.steps, steps...)
	f.mu.Unlock()
	select {
	case f.more <- struct{}{}:
	default:
	}
}

func (f *fakeLog) set(wall time.Time, up time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall, f.up = wall, up
}

func (f *fakeLog) start(t *testing.T) *Reader {
	t.Helper()
	r := Start(Options{
		Now:    func() time.Time { f.mu.Lock(); defer f.mu.Unlock(); return f.wall },
		uptime: func() time.Duration { f.mu.Lock(); defer f.mu.Unlock(); return f.up },
		open: func(string) (device, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.closed = make(chan struct{})
			return f, f.openErr
		},
		retry: time.Millisecond,
	})
	t.Cleanup(r.Close)
	return r
}

// line is a record of the kernel's, a number of seconds after boot.
func line(sequence, seconds int, text string) step {
	return step{text: fmt.Sprintf("3,%d,%d,-;%s\n", sequence, seconds*1e6, escape(text))}
}

func xidLine(sequence, seconds, code int) step {
	return line(sequence, seconds, fmt.Sprintf("NVRM: Xid (PCI:0000:3b:00): %d, pid=1, name=x", code))
}

// patient is longer than a busy machine stalls.
const patient = time.Minute

// until waits for a reading.
func until(t *testing.T, r *Reader, what string, is func(*Reading) bool) Reading {
	t.Helper()
	for end := time.Now().Add(patient); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if reading, _ := r.Read(time.Time{}); is(&reading) {
			return reading
		}
	}
	reading, _ := r.Read(time.Time{})
	t.Fatalf("not within %v: %s: %+v", patient, what, reading)
	return reading
}

// What was there is seen and not counted; what comes is counted.
func TestHistory(t *testing.T) {
	f := newFakeLog(line(7, 0, "Linux version 6.12"), xidLine(8, 10, 79), xidLine(9, 20, 74), xidLine(10, 30, 79))
	r := f.start(t)
	reading, errs := r.Read(time.Time{}) // at once: a first scrape does not find it empty
	if reading.Err != nil || len(errs) > 0 || !reading.Since.Equal(f.wall) || !reading.Oldest.Equal(bootTime) {
		t.Errorf("%+v, %v", reading, errs)
	}
	if len(reading.Counts) != len(Patterns) || reading.Counts[Xid] != 0 || reading.Counts[XidNVLink] != 0 {
		t.Errorf("history counts: %v", reading.Counts)
	}
	if last := reading.Last[Xid]; last.Code != 79 || !last.Time.Equal(bootTime.Add(30*time.Second)) || last.Address != "0000:3b:00.0" {
		t.Errorf("%+v", last)
	}
	if len(reading.Last) != 2 || len(reading.Recent) != 3 || reading.Recent[1].Code != 74 || !reading.Lost.Known || reading.Lost.Value != 0 {
		t.Errorf("%+v", reading)
	}
	before := reading
	f.give(xidLine(11, 1000, 48), step{text: "12,12,1000000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n"}, line(13, 1000, "NVRM: Xid"), step{text: "nonsense"},
		step{text: "4,14,1000000000,-;foo 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3C:00.1\n"})
	reading = until(t, r, "the event counts", func(r *Reading) bool { return r.Counts[AERCorrectable] == 1 })
	if reading.Counts[Xid] != 1 || reading.Last[Xid].Code != 48 || reading.Last[AERCorrectable].Address != "0000:3c:00.1" || len(reading.Recent) != 5 {
		t.Errorf("%+v", reading)
	}
	if before.Counts[AERCorrectable] != 0 || len(before.Recent) != 3 || before.Last[Xid].Code != 79 {
		t.Errorf("an earlier reading has changed: %+v", before)
	}
}

// Records that were overwritten are counted, and reading goes on; so it does when
// one does not fit.
func TestLost(t *testing.T) {
	f := newFakeLog(line(1, 1, "a"))
	r := f.start(t)
	f.give(step{err: unix.EPIPE}, xidLine(12, 5, 79), step{err: unix.EINTR}, step{err: unix.EINVAL}, xidLine(14, 5, 79))
	reading := until(t, r, "both count", func(r *Reading) bool { return r.Counts[Xid] == 2 })
	if reading.Lost.Value != 11 || reading.Err != nil {
		t.Errorf("lost %+v, %v", reading.Lost, reading.Err)
	}
}

// Only the newest events are kept, in order.
func TestRecent(t *testing.T) {
	f := newFakeLog()
	r := f.start(t)
	for i := range MaxRecent + 10 {
		f.give(xidLine(i, i, 100+i))
	}
	reading := until(t, r, "all count", func(r *Reading) bool { return r.Counts[Xid]+r.Counts[XidNVLink] == MaxRecent+10 })
	if len(reading.Recent) != MaxRecent || reading.Recent[0].Code != 110 || reading.Recent[MaxRecent-1].Code != 100+MaxRecent+9 {
		t.Errorf("%d, %+v", len(reading.Recent), reading.Recent)
	}
}

// A log that cannot be read is tried again and again.
func TestUnreadable(t *testing.T) {
	f := newFakeLog(xidLine(1, 1, 79))
	f.openErr = unix.EPERM
	r := f.start(t)
	reading, errs := r.Read(time.Time{})
	if !errors.Is(reading.Err, syscall.EPERM) || len(errs) != 0 {
		t.Fatalf("%v, %v", reading.Err, errs)
	}
	if !reading.Since.IsZero() || reading.Lost.Known || len(reading.Last) > 0 {
		t.Errorf("%+v", reading)
	}
	f.mu.Lock()
	f.openErr = nil
	f.mu.Unlock()
	reading = until(t, r, "it can be read", func(r *Reading) bool { return r.Err == nil && len(r.Last) == 1 })
	if reading.Counts[Xid] != 0 || reading.Since.IsZero() {
		t.Errorf("history counts: %+v", reading)
	}
	// It fails and comes again: what was read is known, what was missed is new.
	f.give(step{err: unix.ENODEV}, xidLine(1, 1, 79), xidLine(2, 2, 48))
	reading = until(t, r, "the new one counts", func(r *Reading) bool { return r.Err == nil && r.Counts[Xid] > 0 })
	if reading.Counts[Xid] != 1 || reading.Lost.Value != 0 {
		t.Errorf("%+v", reading)
	}
}

// A failure is told once for each time that it was tried.
func TestTold(t *testing.T) {
	f := newFakeLog()
	f.openErr = unix.EIO
	r := Start(Options{open: func(string) (device, error) { return nil, f.openErr }, retry: time.Hour})
	t.Cleanup(r.Close)
	_, errs := r.Read(time.Time{})
	if len(errs) != 1 || errs[0].Errno() != "EIO" || errs[0].Source != DefaultPath {
		t.Errorf("%v", errs)
	}
	if _, errs := r.Read(time.Time{}); len(errs) != 0 {
		t.Errorf("told twice: %v", errs)
	}
}

// A log that ends, or takes nothing any more, does not keep a processor busy.
func TestEnds(t *testing.T) {
	for name, steps := range map[string][]step{"ends": {{}}, "nothing fits": func() (all []step) {
		for range refusedMost + 1 {
			all = append(all, step{err: unix.EINVAL})
		}
		return all
	}()} {
		f := newFakeLog()
		r := f.start(t)
		f.mu.Lock()
		f.openErr = unix.EACCES
		f.mu.Unlock()
		f.give(steps...)
		until(t, r, name, func(r *Reading) bool { return r.Err != nil })
	}
}

// Of a flood so much is taken in a time and no more.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeLog()
		r := f.start(t)
		f.give(xidLine(0, 1, 79))
		until(t, r, "history ends", func(r *Reading) bool { return r.Counts[Xid] == 1 })
		var flood []step
		for i := range 5 * paceRecords {
			flood = append(flood, line(1+i, 1, "noise"))
		}
		began := time.Now()
		f.give(append(flood, xidLine(5*paceRecords+1, 1, 79))...)
		until(t, r, "the flood is over", func(r *Reading) bool { return r.Counts[Xid] == 2 })
		if took := time.Since(began); took < 4*paceSpan {
			t.Errorf("%d records within %v", len(flood), took)
		}
		// Closing does not wait for the pace.
		f.give(append(flood, flood...)...)
		time.Sleep(paceSpan / 4)
		closing := time.Now()
		r.Close()
		if took := time.Since(closing); took > paceSpan/2 {
			t.Errorf("closing took %v", took)
		}
		r.Close() // twice is no mistake
	})
}

// Times follow the wall clock when it is set, keep still when it creeps, and are
// those of the wall clock though the log's own clock has gone astray.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeLog(xidLine(1, 10, 79))
		r := f.start(t)
		at := func() time.Time {
			reading, _ := r.Read(time.Time{})
			return reading.Last[Xid].Time
		}
		first := at()
		f.set(f.wall.Add(300*time.Millisecond), f.up)
		if !at().Equal(first) {
			t.Error("the time of a line creeps")
		}
		f.set(bootTime.Add(f.up+2*time.Hour), f.up)
		if got := at(); !got.Equal(first.Add(2 * time.Hour)) {
			t.Errorf("the clock was set by two hours: %v, was %v", got, first)
		}
		// The log's clock is 40 s behind: a line that is just written says so.
		f.give(xidLine(2, 20, 79)) // whether this one was waited for is chance
		until(t, r, "it counts", func(r *Reading) bool { return r.Counts[Xid] == 1 })
		synctest.Wait() // the next one is waited for
		f.give(xidLine(3, int(f.up/time.Second)-40, 79))
		reading := until(t, r, "it counts", func(r *Reading) bool { return r.Counts[Xid] == 2 })
		if got, want := reading.Last[Xid].Time, bootTime.Add(f.up+2*time.Hour); !got.Equal(want) {
			t.Errorf("a line of now is of %v, now is %v", got, want)
		}
		c := clock{now: time.Now, uptime: uptime}
		c.look()
		c.time(1<<64 - 1) // nonsense, and no panic
		if up := uptime(); up <= 0 {
			t.Errorf("uptime %v", up)
		}
	})
}

// What is under the name need not be the log.
func TestOpenOther(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "kmsg")
	if err := os.WriteFile(plain, []byte("6,1,1,-;text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{plain: errNotKmsg, "/dev/null": errNotKmsg, plain + ".not": unix.ENOENT} {
		r := Start(Options{Path: path})
		if reading, errs := r.Read(time.Time{}); !errors.Is(reading.Err, want) || len(errs) != 0 {
			t.Errorf("%s: %v, %v", path, reading.Err, errs)
		}
		r.Close()
	}
}

// The descriptor is waited for, and closing ends the wait. A socket that keeps
// messages apart plays the log.
func TestKmsgWaits(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	write := func(s step) {
		if _, err := unix.Write(fds[1], []byte(s.text)); err != nil {
			t.Error(err)
		}
	}
	write(xidLine(1, 1, 79))
	r := Start(Options{open: func(path string) (device, error) { return newKmsg(fds[0], path) }})
	if reading, _ := r.Read(time.Time{}); len(reading.Last) != 1 || reading.Counts[Xid] != 0 {
		t.Errorf("%+v", reading)
	}
	for i := range 3 {
		write(xidLine(2+i, 1, 79))
		until(t, r, "it counts", func(r *Reading) bool { return r.Counts[Xid] == uint64(i+1) })
		time.Sleep(5 * time.Millisecond)
	}
	done := make(chan struct{})
	go func() { r.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(patient):
		t.Fatal("Close waits for the log")
	}
}

// BenchmarkRead is what a scrape pays.
func BenchmarkRead(b *testing.B) {
	j := newJournal(time.Now, uptime)
	j.opened()
	for i := range 2 * MaxRecent {
		rec, _ := parse([]byte(xidLine(i, i, 79).text))
		j.add(&rec, false)
	}
	r := &Reader{journal: j}
	b.ReportAllocs()
	for b.Loop() {
		r.Read(time.Time{})
	}
}

// BenchmarkRecord is what a record of a flood costs beside reading it.
func BenchmarkRecord(b *testing.B) {
	j := newJournal(time.Now, uptime)
	raw := []byte("4,340,5690716,-;mlx5_core 0000:3b:00.0: mlx5_cmd_eq_recover:247:(pid 3122): Recovered 1 EQEs on cmd_eq\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n")
	b.ReportAllocs()
	for b.Loop() {
		rec, _ := parse(raw)
		j.next = 0
		j.add(&rec, false)
	}
}

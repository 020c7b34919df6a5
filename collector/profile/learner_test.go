package profile

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback/prober"
)

// start is when tests begin.
var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// seen is a node with two ACTIVE compute devices.
func seen() *Facts {
	f := &Facts{
		GPUs: sysread.Some(8), NVLinks: sysread.Some(18), Devices: sysread.Some(2), DirectPairs: sysread.Some(4),
		Listed: sysread.Some([]string{"mlx5_0", "mlx5_1"}),
	}
	for i, name := range f.Listed.Value {
		f.Ports = append(f.Ports, Port{
			Port: prober.Port{Device: name, Number: 1}, NodeGUID: "guid-" + string(rune('a'+i)), Compute: true,
			Active: sysread.Some(true), Rate: sysread.Some(uint64(50e9)),
		})
	}
	return f
}

// teach has a Book look at what changes with a span for some time.
func teach(b *Book, from time.Time, span, every time.Duration, at func(i int) *Facts) (e Expectation, until time.Time) {
	i := 0
	for until = from; until.Sub(from) <= span; until = until.Add(every) {
		f := at(i)
		f.Time = until
		e = b.Expect(f)
		i++
	}
	return e, until
}

func always(f *Facts) func(int) *Facts {
	return func(int) *Facts {
		again := *f
		return &again
	}
}

// ports are the expected ports, in order.
func ports(e Expectation) string {
	var names []string
	for port := range maps.Keys(e.Ports) {
		names = append(names, port.Device)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func book(t *testing.T, dir string) (*Book, *[]string) {
	t.Helper()
	var told []string
	return New(Options{Learn: true, StateDir: dir, Tell: func(text string, err error) {
		if err != nil {
			text += ": " + err.Error()
		}
		told = append(told, text)
	}}), &told
}

func TestLearn(t *testing.T) {
	b, _ := book(t, "")
	e, now := teach(b, start, 45*time.Second, 15*time.Second, always(seen()))
	if e.Source != SourceNone || e.Ports != nil {
		t.Errorf("after 45 s: %+v", e)
	}
	e, _ = teach(b, now, 0, time.Second, always(seen()))
	if e.Source != SourceLearned || ports(e) != "mlx5_0 mlx5_1" || e.GPUs != sysread.Some(8) || e.NVLinks != sysread.Some(18) ||
		e.Devices != sysread.Some(2) || e.DirectPairs != sysread.Some(4) || e.Ports[prober.Port{Device: "mlx5_0", Number: 1}] != sysread.Some(uint64(50e9)) {
		t.Errorf("after 60 s: %+v", e)
	}
	// Sightings that follow closely are one.
	b, _ = book(t, "")
	if e, _ = teach(b, start, 5*time.Second, 100*time.Millisecond, always(seen())); e.Source != SourceNone {
		t.Errorf("after 5 s: %+v", e)
	}
	f := seen()
	f.Time = start.Add(time.Hour)
	if e = b.Expect(f); e.Source != SourceNone {
		t.Errorf("at the second sighting: %+v", e)
	}
}

// TestNeverLearned: of what comes and goes by design nothing is learned.
func TestNeverLearned(t *testing.T) {
	for name, change := range map[string]func(*Facts){
		"virtual functions, planes, storage": func(f *Facts) { f.Ports[1].Compute, f.Ports[1].Never = false, true },
		"no role":                            func(f *Facts) { f.Ports[1].Compute = false },
		"a port that is down":                func(f *Facts) { f.Ports[1].Active = sysread.Some(false) },
		"a port that says nothing":           func(f *Facts) { f.Ports[1].Active = sysread.Maybe[bool]{} },
	} {
		b, _ := book(t, "")
		f := seen()
		change(f)
		if e, _ := teach(b, start, time.Hour, time.Minute, always(f)); ports(e) != "mlx5_0" {
			t.Errorf("%s: %q", name, ports(e))
		}
	}
	b, _ := book(t, "")
	f := seen()
	f.Foreign = true
	if e, _ := teach(b, start, time.Hour, time.Minute, always(f)); e.Ports != nil || e.Devices.Known || e.GPUs != sysread.Some(8) {
		t.Errorf("another namespace: %+v", e)
	}
}

// TestFlapping: a port that is up and down by turns is not expected; one that is
// known stays when it begins to.
func TestFlapping(t *testing.T) {
	flap := func(i int) *Facts {
		f := seen()
		f.Ports[1].Active = sysread.Some(i%3 != 0)
		return f
	}
	b, _ := book(t, "")
	if e, _ := teach(b, start, time.Hour, 20*time.Second, flap); ports(e) != "mlx5_0" {
		t.Errorf("%q", ports(e))
	}
	b, _ = book(t, "")
	_, now := teach(b, start, time.Minute, 20*time.Second, always(seen()))
	if e, _ := teach(b, now, time.Hour, 20*time.Second, flap); ports(e) != "mlx5_0 mlx5_1" {
		t.Errorf("known: %q", ports(e))
	}
}

// TestHung: a device that does not answer neither loses nor proves anything.
func TestHung(t *testing.T) {
	b, _ := book(t, "")
	e, _ := teach(b, start, 2*time.Minute, 20*time.Second, func(i int) *Facts {
		f := seen()
		if i == 1 || i == 4 {
			f.Ports = f.Ports[:1]
			f.Devices, f.DirectPairs = sysread.Maybe[int]{}, sysread.Maybe[int]{}
		}
		return f
	})
	if ports(e) != "mlx5_0 mlx5_1" || e.Devices != sysread.Some(2) {
		t.Errorf("%+v", e)
	}
}

// TestDegradedBoot: what a node lacks from the start is not expected of it, until
// it was there once.
func TestDegradedBoot(t *testing.T) {
	dir := t.TempDir()
	b, _ := book(t, dir)
	few := seen()
	few.GPUs, few.NVLinks = sysread.Some(7), sysread.Some(12)
	few.Ports[0].Rate = sysread.Some(uint64(25e9))
	e, now := teach(b, start, 2*time.Minute, 20*time.Second, always(few))
	port := prober.Port{Device: "mlx5_0", Number: 1}
	if e.GPUs != sysread.Some(7) || e.From[FieldGPUs] != SourceLearned || e.Ports[port] != sysread.Some(uint64(25e9)) {
		t.Fatalf("%+v", e)
	}
	e, now = teach(b, now, 2*time.Minute, 20*time.Second, always(seen()))
	if e.GPUs != sysread.Some(8) || e.NVLinks != sysread.Some(18) || e.Ports[port] != sysread.Some(uint64(50e9)) {
		t.Fatalf("when whole: %+v", e)
	}
	b.Wait()
	b, _ = book(t, dir) // after a restart
	if e, _ = teach(b, now, time.Hour, time.Minute, always(few)); e.GPUs != sysread.Some(8) || e.NVLinks != sysread.Some(18) || e.Ports[port] != sysread.Some(uint64(50e9)) {
		t.Errorf("degraded again: %+v", e)
	}
}

func TestReplaced(t *testing.T) {
	b, told := book(t, "")
	_, now := teach(b, start, time.Minute, 20*time.Second, always(seen()))
	f := seen()
	f.Ports[1].NodeGUID, f.Ports[1].Active = "guid-new", sysread.Some(false)
	e, now := teach(b, now, 0, time.Second, always(f))
	if ports(e) != "mlx5_0" || len(*told) != 1 || !strings.Contains((*told)[0], "replaced") {
		t.Errorf("replaced: %q, told %q", ports(e), *told)
	}
	f.Ports[1].Active = sysread.Some(true)
	if e, _ = teach(b, now, time.Minute, 20*time.Second, always(f)); ports(e) != "mlx5_0 mlx5_1" || b.Learned().Ports[1].NodeGUID != "guid-new" {
		t.Errorf("the new one: %q", ports(e))
	}
}

func TestRenamed(t *testing.T) {
	b, told := book(t, "")
	_, now := teach(b, start, time.Minute, 20*time.Second, always(seen()))
	f := seen() // the two have changed their names
	f.Ports[0].NodeGUID, f.Ports[1].NodeGUID = f.Ports[1].NodeGUID, f.Ports[0].NodeGUID
	e, now := teach(b, now, 0, time.Second, always(f))
	if ports(e) != "mlx5_0 mlx5_1" || b.Learned().Ports[0].NodeGUID != "guid-b" {
		t.Errorf("changed over: %q, %+v", ports(e), b.Learned().Ports)
	}
	f.Ports[1].Device, f.Listed = "rocep3s0", sysread.Some([]string{"mlx5_0", "rocep3s0"})
	if e, _ = teach(b, now, 0, time.Second, always(f)); ports(e) != "mlx5_0 rocep3s0" || len(*told) > 0 {
		t.Errorf("renamed: %q, told %q", ports(e), *told)
	}
}

// TestGone: a device that is gone is expected, unless it may be in a pod, or the
// command line leaves it out.
func TestGone(t *testing.T) {
	gone := func() *Facts {
		f := seen()
		f.Ports, f.Listed, f.Devices, f.DirectPairs = f.Ports[:1], sysread.Some([]string{"mlx5_0"}), sysread.Some(1), sysread.Some(2)
		return f
	}
	learned := func(selection Selection) (*Book, time.Time) {
		b := New(Options{Learn: true, Selection: selection})
		_, now := teach(b, start, time.Minute, 20*time.Second, always(seen()))
		return b, now
	}
	b, now := learned(Selection{})
	if e, _ := teach(b, now, time.Hour, time.Minute, always(gone())); ports(e) != "mlx5_0 mlx5_1" || e.Devices != sysread.Some(2) {
		t.Errorf("gone: %+v", e)
	}
	f := gone()
	f.Private = true
	if e, _ := teach(b, now.Add(2*time.Hour), 0, time.Minute, always(f)); ports(e) != "mlx5_0" || e.Devices.Known {
		t.Errorf("in a pod: %+v", e)
	}
	b, now = learned(Selection{SomeDevices: true, SomeGPUs: true, Device: func(name string) bool { return name != "mlx5_1" }})
	if e, _ := teach(b, now, time.Hour, time.Minute, always(gone())); ports(e) != "mlx5_0" || e.Devices.Known || e.GPUs.Known {
		t.Errorf("left out: %+v", e)
	}
	b, now = learned(Selection{})
	f = seen()
	f.Ports[1].Compute, f.Ports[1].Never = false, true
	if e, _ := teach(b, now, 0, time.Minute, always(f)); ports(e) != "mlx5_0" {
		t.Errorf("it is storage now: %+v", e)
	}
}

func TestAnotherMachine(t *testing.T) {
	b, told := book(t, "")
	f := seen()
	f.Product = sysread.Some("one")
	_, now := teach(b, start, time.Minute, 20*time.Second, always(f))
	f.Product = sysread.Some("other")
	if e, _ := teach(b, now, 0, time.Second, always(f)); e.Source != SourceNone || len(*told) != 1 {
		t.Errorf("%+v, told %q", e, *told)
	}
}

func TestForget(t *testing.T) {
	for _, c := range []struct {
		gpu, device string
		forgotten   int
		ports       string
		gpus        sysread.Maybe[int]
	}{
		{"0000:18:00.0", "mlx5_0", 0, "mlx5_0 mlx5_1", sysread.Some(8)},
		{"0000:18:00.0", "", 3, "mlx5_0 mlx5_1", sysread.Maybe[int]{}},
		{"", "mlx5_0", 3, "mlx5_1", sysread.Some(8)},
		{"", "", 6, "", sysread.Maybe[int]{}},
	} {
		dir := t.TempDir()
		b, _ := book(t, dir)
		teach(b, start, time.Minute, 20*time.Second, always(seen()))
		if n := b.Forget(c.gpu, c.device); n != c.forgotten {
			t.Errorf("%+v: %d", c, n)
		}
		learned, err := ReadLearned(dir)
		if err != nil {
			t.Fatal(err)
		}
		if e := Merge(nil, nil, learned); ports(e) != c.ports || e.GPUs != c.gpus {
			t.Errorf("%+v: %+v", c, e)
		}
	}
}

// TestDamaged: a file that this version did not write is set aside.
func TestDamaged(t *testing.T) {
	good := `{"version": 1, "gpus": 8}`
	for name, text := range map[string]string{
		"empty": "", "half": good[:12], "binary": "\x00\xff", "another version": `{"version": 2}`, "no version": `{}`, "null": "null",
		"a count": `{"version": 1, "gpus": -8}`, "a port": `{"version": 1, "ports": [{"device": "", "port": 1}]}`,
		"a port twice": `{"version": 1, "ports": [{"device": "a", "port": 1}, {"device": "a", "port": 1}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, learnedFile), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			b, told := book(t, dir)
			e, _ := teach(b, start, time.Minute, 20*time.Second, always(seen()))
			b.Wait()
			if len(*told) != 1 || strings.Contains((*told)[0], "\n") || e.GPUs != sysread.Some(8) {
				t.Errorf("told %q, %+v", *told, e)
			}
			if aside, err := os.ReadFile(filepath.Join(dir, learnedFile+".damaged")); err != nil || string(aside) != text {
				t.Errorf("aside: %q, %v", aside, err)
			}
			if again, err := ReadLearned(dir); err != nil || again.GPUs != 8 {
				t.Errorf("written anew: %+v, %v", again, err)
			}
		})
	}
}

// TestUnwritable: it is told once, and written when it can be.
func TestUnwritable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	b, told := book(t, dir)
	look := func(i int) *Facts { b.Wait(); return seen() }
	_, now := teach(b, start, 2*time.Minute, 20*time.Second, look)
	b.Wait()
	if len(*told) != 1 || !strings.Contains((*told)[0], "does not outlive") {
		t.Errorf("told %q", *told)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	teach(b, now, 0, time.Second, look)
	b.Wait()
	if l, err := ReadLearned(dir); err != nil || l.GPUs != 8 || len(*told) != 1 {
		t.Errorf("%+v, %v, told %q", l, err, *told)
	}
}

// TestClock: a clock that is set back begins anew rather than learn at once.
func TestClock(t *testing.T) {
	b, _ := book(t, "")
	teach(b, start.Add(time.Hour), 20*time.Second, 20*time.Second, always(seen()))
	if e, _ := teach(b, start, 45*time.Second, 15*time.Second, always(seen())); e.Source != SourceNone {
		t.Errorf("%+v", e)
	}
}

func FuzzLearned(f *testing.F) {
	f.Add([]byte(`{"version": 1, "product": "x", "gpus": 8, "ports": [{"device": "mlx5_0", "port": 1, "node_guid": "g", "rate": 50000000000}]}`))
	f.Add([]byte(`{"version": 1, "ports": null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseLearned(text)
		if err != nil {
			if !errors.Is(err, errDamaged) || l != nil {
				t.Errorf("%v", err)
			}
			return
		}
		if e := Merge(nil, nil, l); len(e.Ports) != len(l.Ports) {
			t.Errorf("%d ports of %d", len(e.Ports), len(l.Ports))
		}
	})
}

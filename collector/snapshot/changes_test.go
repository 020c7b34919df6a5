package snapshot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/rdmatest"
)

// rdmaUnit is a device that answered.
func rdmaUnit(name string, change ...func(*rdma.Device)) UnitPart[rdma.Device] {
	d := &rdma.Device{Identity: rdma.Identity{Name: name}, Ports: []rdma.Port{{Number: 1, Label: "1"}, {Number: 2, Label: "2"}}}
	for _, f := range change {
		f(d)
	}
	return UnitPart[rdma.Device]{Name: name, Data: d}
}

func stuckRDMA(name string) UnitPart[rdma.Device] {
	return UnitPart[rdma.Device]{Name: name, StuckFor: time.Second}
}

func hidden(d *rdma.Device) { d.Hidden = true }

func restrictedDevice(d *rdma.Device) { d.HWRestricted = sysread.Some(true) }

func restrictedPort(d *rdma.Device) {
	d.Ports[1].Restricted = []rdma.Restriction{{Source: rdma.SourceHW}, {Source: rdma.SourceCounters, All: true}}
}

// partOf is what listing found.
func partOf(units ...UnitPart[rdma.Device]) *RDMAPart { return &RDMAPart{Units: units} }

// unlistable is a part whose listing failed.
func unlistable() *RDMAPart { return &RDMAPart{Err: syscall.EIO} }

// looked returns what a watcher tells of each of parts, in words; a nil part is
// a Snapshot without the rdma collector.
func looked(parts ...*RDMAPart) [][]string {
	var told []string
	w := watcher{tell: func(c Change) { told = append(told, words(c)) }}
	var all [][]string
	for _, part := range parts {
		told = nil
		w.look(&Snapshot{RDMA: part})
		all = append(all, told)
	}
	return all
}

// words are a Change in the form "+stuck mlx5_0" or "-restricted mlx5_0/1".
func words(c Change) string {
	sign := "-"
	if c.Now {
		sign = "+"
	}
	where := c.Device
	if c.Port != "" {
		where += "/" + c.Port
	}
	if c.Collector != CollectorRDMA {
		where += " of " + c.Collector
	}
	return strings.TrimSpace(sign + string(c.Kind) + " " + where)
}

func TestChanges(t *testing.T) {
	a, b := rdmaUnit("a"), rdmaUnit("b")
	for name, test := range map[string]struct {
		parts []*RDMAPart
		want  [][]string
	}{
		"no devices": {[]*RDMAPart{partOf(), partOf()}, [][]string{nil, nil}},
		// The first Snapshot does not tell of every device.
		"class appears as one":      {[]*RDMAPart{partOf(a, b), partOf(a, b)}, [][]string{{"+class"}, nil}},
		"class comes later":         {[]*RDMAPart{partOf(), partOf(a, b)}, [][]string{nil, {"+class"}}},
		"class vanishes as one":     {[]*RDMAPart{partOf(a, b), partOf(), partOf(a)}, [][]string{{"+class"}, {"-class"}, {"+class"}}},
		"device appears":            {[]*RDMAPart{partOf(a), partOf(a, b), partOf(a, b)}, [][]string{{"+class"}, {"+listed b"}, nil}},
		"device vanishes":           {[]*RDMAPart{partOf(a, b), partOf(a), partOf(a, b)}, [][]string{{"+class"}, {"-listed b"}, {"+listed b"}}},
		"renamed":                   {[]*RDMAPart{partOf(a), partOf(b)}, [][]string{{"+class"}, {"-listed a", "+listed b"}}},
		"hides and shows":           {[]*RDMAPart{partOf(a, b), partOf(a, rdmaUnit("b", hidden)), partOf(a, b)}, [][]string{{"+class"}, {"+hidden b"}, {"-hidden b"}}},
		"device restricted":         {[]*RDMAPart{partOf(a), partOf(rdmaUnit("a", restrictedDevice)), partOf(a)}, [][]string{{"+class"}, {"+restricted a"}, {"-restricted a"}}},
		"port restricted":           {[]*RDMAPart{partOf(a), partOf(rdmaUnit("a", restrictedPort)), partOf(a)}, [][]string{{"+class"}, {"+restricted a/2"}, {"-restricted a/2"}}},
		"both restricted":           {[]*RDMAPart{partOf(a), partOf(rdmaUnit("a", restrictedDevice, restrictedPort))}, [][]string{{"+class"}, {"+restricted a", "+restricted a/2"}}},
		"restricted from the start": {[]*RDMAPart{partOf(rdmaUnit("a", restrictedPort))}, [][]string{{"+class", "+restricted a/2"}}},
		"stuck and back":            {[]*RDMAPart{partOf(a, b), partOf(a, stuckRDMA("b")), partOf(a, stuckRDMA("b")), partOf(a, b)}, [][]string{{"+class"}, {"+stuck b"}, nil, {"-stuck b"}}},
		"stuck from the start":      {[]*RDMAPart{partOf(stuckRDMA("a"), b)}, [][]string{{"+class", "+stuck a"}}},
		"stuck, then gone":          {[]*RDMAPart{partOf(a, b), partOf(a, stuckRDMA("b")), partOf(a)}, [][]string{{"+class"}, {"+stuck b"}, {"-listed b", "-stuck b"}}},
		"new and stuck":             {[]*RDMAPart{partOf(a), partOf(a, stuckRDMA("b"))}, [][]string{{"+class"}, {"+listed b", "+stuck b"}}},
		// What held of a device that does not answer is taken to hold still.
		"stuck keeps what held": {
			[]*RDMAPart{partOf(rdmaUnit("a", hidden, restrictedPort), b), partOf(stuckRDMA("a"), b), partOf(stuckRDMA("a"), b), partOf(rdmaUnit("a", hidden, restrictedPort), b)},
			[][]string{{"+class", "+hidden a", "+restricted a/2"}, {"+stuck a"}, nil, {"-stuck a"}},
		},
		"stuck, back without what held": {
			[]*RDMAPart{partOf(rdmaUnit("a", hidden)), partOf(stuckRDMA("a")), partOf(a)},
			[][]string{{"+class", "+hidden a"}, {"+stuck a"}, {"-hidden a", "-stuck a"}},
		},
		// A listing that fails says nothing of the devices.
		"unlistable and back": {
			[]*RDMAPart{partOf(a, b), unlistable(), unlistable(), partOf(a, b)},
			[][]string{{"+class"}, {"+unlistable"}, nil, {"-unlistable"}},
		},
		"unlistable keeps what held": {
			[]*RDMAPart{partOf(rdmaUnit("a", hidden), stuckRDMA("b")), unlistable(), partOf(rdmaUnit("a", hidden), b)},
			[][]string{{"+class", "+hidden a", "+stuck b"}, {"+unlistable"}, {"-stuck b", "-unlistable"}},
		},
		"unlistable from the start": {[]*RDMAPart{unlistable(), partOf(a)}, [][]string{{"+unlistable"}, {"+class", "-unlistable"}}},
		"gone while unlistable":     {[]*RDMAPart{partOf(a, b), unlistable(), partOf(a)}, [][]string{{"+class"}, {"+unlistable"}, {"-listed b", "-unlistable"}}},
		// A scrape that leaves the collector out says nothing of it.
		"not asked for": {[]*RDMAPart{partOf(a, b), nil, partOf(a, b)}, [][]string{{"+class"}, nil, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := looked(test.parts...); !slices.EqualFunc(got, test.want, slices.Equal) {
				t.Errorf("told %q, want %q", got, test.want)
			}
		})
	}
}

// TestSlowIsNotStuck: a scrape with a short timeout does not wait for a slow
// device, which is no news at each such scrape.
func TestSlowIsNotStuck(t *testing.T) {
	var told recorder
	w := watcher{tell: told.changed, hang: 5 * time.Second}
	late := func(since time.Duration) *Snapshot {
		return &Snapshot{RDMA: partOf(UnitPart[rdma.Device]{Name: "a", StuckFor: since})}
	}
	fine := &Snapshot{RDMA: partOf(rdmaUnit("a", hidden))}
	for i, step := range []struct {
		look *Snapshot
		want []string
	}{
		{fine, []string{"+class", "+hidden a"}}, {late(time.Second), nil}, {fine, nil}, {late(4 * time.Second), nil}, {late(6 * time.Second), []string{"+stuck a"}},
		{late(60 * time.Second), nil}, {late(time.Second), []string{"-stuck a"}}, {fine, nil},
	} {
		w.look(step.look)
		if got := told.take(); !slices.Equal(got, step.want) {
			t.Errorf("step %d: told %q, want %q", i, got, step.want)
		}
	}
}

// TestChangesOfOneCollectorOnly: a class that comes hides the single devices of
// its own collector, not those of another.
func TestChangesOfOneCollectorOnly(t *testing.T) {
	fact := func(collector, device string, kind FactKind) Fact {
		return Fact{Collector: collector, Device: device, Kind: kind}
	}
	after := map[Fact]bool{
		fact("rdma", "", FactClass): true, fact("rdma", "mlx5_0", FactListed): true,
		fact("gpu", "g0", FactListed): true, fact("rdma", "mlx5_0", FactStuck): true,
	}
	var got []string
	for _, change := range diff(nil, after) {
		got = append(got, words(change))
	}
	if want := []string{"+listed g0 of gpu", "+class", "+stuck mlx5_0"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestOrderOfChanges: by collector, kind, device and port, whatever the map says.
func TestOrderOfChanges(t *testing.T) {
	after := map[Fact]bool{}
	for _, device := range []string{"c", "a", "b"} {
		for _, port := range []string{"2", "1", ""} {
			after[Fact{Collector: "rdma", Device: device, Port: port, Kind: FactRestricted}] = true
		}
	}
	for range 20 {
		var got []string
		for _, change := range diff(nil, after) {
			got = append(got, words(change))
		}
		if !slices.IsSorted(got) || len(got) != 9 {
			t.Fatalf("order %q", got)
		}
	}
}

func TestNobodyIsTold(t *testing.T) {
	var w watcher
	w.look(&Snapshot{RDMA: partOf(rdmaUnit("a"))})
}

// recorder keeps what a Taker tells.
type recorder struct {
	mu   sync.Mutex
	told []string
}

func (r *recorder) changed(c Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, words(c))
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.told
	r.told = nil
	return told
}

// TestTakerTellsChanges runs the whole path once, over files.
func TestTakerTellsChanges(t *testing.T) {
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0", PCIAddress: "0000:18:00.0"})
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_1", PCIAddress: "0000:3b:00.0", Ordinal: 1})
	dir, err := rdmatest.MkdirTemp()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	var told recorder
	taker := New(Options{Deadline: 10 * time.Second, Changed: told.changed}).
		RDMA(rdma.NewReader(rdma.Options{Sysfs: filepath.Join(dir, "sys"), Descriptors: 256}), nil).Taker()
	t.Cleanup(taker.Close)
	class := filepath.Join(dir, "sys/class/infiniband")
	for i, step := range []struct {
		change func() error
		want   []string
	}{
		{func() error { return nil }, []string{"+class"}},
		{func() error { return nil }, nil},
		{func() error { return os.Rename(class+"/mlx5_1", dir+"/away") }, []string{"-listed mlx5_1"}},
		{func() error { return os.Rename(dir+"/away", class+"/mlx5_1") }, []string{"+listed mlx5_1"}},
		{func() error { return os.Rename(class, dir+"/class") }, []string{"-class"}},
		{func() error { return os.WriteFile(class, nil, 0o600) }, []string{"+unlistable"}},
		{func() error { return os.Remove(class) }, []string{"-unlistable"}},
		{func() error { return os.Rename(dir+"/class", class) }, []string{"+class"}},
	} {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		// Several scrapes at once still tell of a change once.
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { taker.Take(ctx, func(string) bool { return true }) })
		}
		wg.Wait()
		cancel()
		if got := told.take(); !slices.Equal(got, step.want) {
			t.Errorf("step %d: told %q, want %q", i, got, step.want)
		}
	}
}

// TestWatcherIsConcurrent: whatever the order of concurrent looks, the next one
// tells the truth.
func TestWatcherIsConcurrent(t *testing.T) {
	var told recorder
	w := watcher{tell: told.changed}
	w.look(&Snapshot{RDMA: partOf(rdmaUnit("a"))})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { w.look(&Snapshot{RDMA: partOf(rdmaUnit("a"), rdmaUnit(fmt.Sprint("b", i%2)))}) })
	}
	wg.Wait()
	told.take()
	w.look(&Snapshot{RDMA: partOf(rdmaUnit("a"))})
	if got := told.take(); len(got) != 1 || !strings.HasPrefix(got[0], "-listed b") {
		t.Errorf("told %q", got)
	}
}

package collector

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/rdmatest"
)

// bench is an exporter without its HTTP server, over a tree on disk.
type bench struct {
	taker   *snapshot.Taker
	handler *Handler

	scrapes atomic.Int64 // the clock moves with each, as it would between real ones
	late    atomic.Int64 // of them

	mu   sync.Mutex
	told []sysread.ReadError
}

func newBench(t *testing.T, root string, deadline time.Duration) *bench {
	t.Helper()
	b := &bench{}
	reader := rdma.NewReader(rdma.Options{Sysfs: filepath.Join(root, "sys"), Descriptors: 256})
	b.taker = snapshot.New(snapshot.Options{Deadline: deadline, Now: b.now, Tell: func(_ string, err sysread.ReadError) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.told = append(b.told, err)
	}}).RDMA(reader, nil).Taker()
	t.Cleanup(b.taker.Close)
	b.handler = newHandler(Config{Taker: b.taker, Enabled: []string{"rdma"}, Roles: noRoles{}, Deadline: deadline})
	return b
}

// now is a clock on which scrapes are three seconds apart.
func (b *bench) now() time.Time {
	return time.Now().Add(time.Duration(b.scrapes.Load()) * 3 * time.Second)
}

// samples are the samples of a page by their text form without the value.
type samples map[string]float64

// scrape takes a page. It fails the test if the page is not one that Prometheus
// accepts.
func (b *bench) scrape(t *testing.T, deadline time.Duration) samples {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	b.scrapes.Add(1)
	started := time.Now()
	families, done, err := b.handler.gather(ctx, []string{"rdma"})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	// Once a machine may have stalled.
	if took := time.Since(started); took > deadline+2*time.Second && b.late.Add(1) > 1 {
		t.Errorf("the page took %v with a deadline of %v, as one before it did", took, deadline)
	}
	return flatten(t, families)
}

// flatten checks what a registry would check, and returns the samples.
func flatten(t *testing.T, families []*dto.MetricFamily) samples {
	t.Helper()
	all := samples{}
	names := map[string]bool{}
	for _, mf := range families {
		if names[mf.GetName()] {
			t.Errorf("family %s twice", mf.GetName())
		}
		names[mf.GetName()] = true
		for _, m := range mf.Metric {
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			key := series(mf.GetName(), m.Label)
			if _, double := all[key]; double {
				t.Errorf("series %s twice", key)
			}
			all[key] = value
		}
	}
	return all
}

func series(name string, labels labels) string {
	var b strings.Builder
	b.WriteString(name)
	for i, l := range labels {
		if i > 0 && labels[i-1].GetName() >= l.GetName() {
			return "labels out of order: " + name
		}
		fmt.Fprintf(&b, ",%s=%q", l.GetName(), l.GetValue())
	}
	return b.String()
}

// of returns the samples of one device, less those that time makes.
func (s samples) of(device string) samples {
	label := fmt.Sprintf(",device=%q", device)
	return s.filter(func(key string) bool {
		return strings.Contains(key, label) && !strings.Contains(key, "duration_seconds") && !strings.Contains(key, "timestamp_seconds")
	})
}

func (s samples) filter(keep func(string) bool) samples {
	kept := samples{}
	for key, value := range s {
		if keep(key) {
			kept[key] = value
		}
	}
	return kept
}

func (s samples) sum() (total float64) {
	for _, value := range s {
		total += value
	}
	return total
}

// TestCases reads every abnormal input beside a healthy device. Whatever the
// input, the healthy device keeps every series with its value, the other one
// loses exactly what cannot be read, and each loss is counted under its device,
// port, source and errno, and told once.
func TestCases(t *testing.T) {
	for _, c := range rdmatest.Cases() {
		t.Run(c.ID, func(t *testing.T) {
			t.Parallel()
			checkCase(t, c)
		})
	}
}

func checkCase(t *testing.T, c rdmatest.Case) {
	scene := c.Scene()
	dir := tempTree(t)
	if err := scene.Tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	root, release := serveFaults(t, dir, scene.Faults)
	deadline := 10 * time.Second
	if c.Blocks {
		deadline = 2 * time.Second
	}
	b := newBench(t, root, deadline)
	b.scrape(t, deadline)
	page := b.scrape(t, deadline) // ENODEV and ENOENT count from the second on
	for again := 0; c.Blocks && again < 5 && len(page.of(rdmatest.HealthyName)) == 0; again++ {
		page = b.scrape(t, deadline) // a machine may stall for longer than the deadline
	}
	if !c.Alone {
		checkHealthy(t, page)
	}
	if c.Blocks {
		checkBlocked(t, b, page, scene, release)
		return
	}
	checkCounters(t, page, scene)
	checkAttributes(t, page, c, scene)
	checkErrors(t, b, page, scene)
	if c.Change != nil {
		if err := c.Change(dir, scene); err != nil {
			t.Fatal(err)
		}
		checkChanged(t, b, c, scene)
	}
}

// serveFaults mounts the tree so that reads fail as they do in the kernel.
func serveFaults(t *testing.T, dir string, faults []rdmatest.Fault) (root string, release func()) {
	t.Helper()
	if len(faults) == 0 {
		return dir, func() {}
	}
	if err := rdmatest.Supported(); err != nil {
		t.Skipf("real errnos need FUSE: %v", err)
	}
	root = tempTree(t)
	fs, err := rdmatest.Mount(dir, root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	fs.Apply(faults)
	return root, fs.ClearAll
}

// healthyAlone is the healthy device's page where it is the only one.
var healthyAlone struct {
	once sync.Once
	page samples
}

// checkHealthy compares the healthy device with the same device alone.
func checkHealthy(t *testing.T, page samples) {
	t.Helper()
	healthyAlone.once.Do(func() {
		tree := rdmatest.New()
		tree.MLX5IB(rdmatest.Options{Name: rdmatest.HealthyName, PCIAddress: "0000:18:00.0"})
		dir := tempTree(t)
		if err := tree.WriteTo(dir); err != nil {
			t.Fatal(err)
		}
		healthyAlone.page = newBench(t, dir, 10*time.Second).scrape(t, 10*time.Second).of(rdmatest.HealthyName)
	})
	want := healthyAlone.page
	got := page.of(rdmatest.HealthyName)
	if len(want) < 70 {
		t.Fatalf("the healthy device alone has %d series", len(want))
	}
	if maps.Equal(want, got) {
		return
	}
	if len(got) == 0 {
		t.Fatal("the healthy device is missing")
	}
	for key, value := range want {
		if now, found := got[key]; !found || now != value {
			t.Errorf("healthy device: %s is %v (present %v), want %v", key, now, found, value)
		}
	}
	for key := range got {
		if _, found := want[key]; !found {
			t.Errorf("healthy device has also %s", key)
		}
	}
}

// checkBlocked checks a device whose reads do not return, and that it is back
// once they do.
func checkBlocked(t *testing.T, b *bench, page samples, scene rdmatest.Scene, release func()) {
	t.Helper()
	sick := scene.Sick.Name
	stuck := fmt.Sprintf("gdr_device_read_stuck,collector=%q,device=%q", "rdma", sick)
	if page[stuck] != 1 {
		t.Errorf("%s is not reported as stuck", sick)
	}
	release()
	for range 200 {
		page = b.scrape(t, 10*time.Second)
		if page[stuck] == 0 && len(page.of(sick)) > 20 {
			checkCounters(t, page, scene)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("%s did not come back", sick)
}

// checkCounters compares every counter file of the sick device with the page:
// present with its value, or absent because it cannot be read.
func checkCounters(t *testing.T, page samples, scene rdmatest.Scene) {
	t.Helper()
	d := scene.Sick
	if page[deviceSeries("gdr_rdma_device_counters_omitted", d.Name)] > 0 {
		return // checked by TestOmittedCounters
	}
	plane := len(page.of(d.Name).filter(func(key string) bool { return strings.Contains(key, `parent="mlx5_1"`) })) > 0
	expected := 0
	for _, port := range scene.Tree.List(d.Dir + "/ports") {
		number, err := strconv.Atoi(port)
		if err != nil {
			continue
		}
		for _, source := range []rdma.Source{rdma.SourceCounters, rdma.SourceCountersExt, rdma.SourceHW} {
			expected += checkDir(t, page, scene, source, number, plane)
		}
	}
	expected += checkDir(t, page, scene, rdma.SourceDeviceHW, 0, plane)
	t.Logf("%d counter files compared", expected)
}

func checkDir(t *testing.T, page samples, scene rdmatest.Scene, source rdma.Source, port int, plane bool) int {
	t.Helper()
	base, labels, dir := scene.Sick.Dir, pairs("device", scene.Sick.Name), "hw_counters"
	if source != rdma.SourceDeviceHW {
		base, dir = scene.Sick.Port(port), string(source)
		labels = labels.with("port", strconv.Itoa(port))
	}
	names := scene.Tree.List(path.Join(base, dir))
	for _, name := range names {
		info := rdma.Info(source, name)
		named := nameOf(info)
		at := labels
		if named.label != "" {
			at = labels.with("counter", named.label)
		}
		key := series(named.name, at)
		text, _ := scene.Tree.Content(path.Join(base, dir, name))
		value, readable := page[key]
		lost := plane || unreadable(scene, port, dir) || unreadable(scene, port, dir+"/"+name)
		raw, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
		switch {
		case lost && readable:
			t.Errorf("%s is %v, cannot be read", key, value)
		case !lost && !readable:
			t.Errorf("%s is missing", key)
		case !lost && err == nil && value != (rdma.Counter{Info: info, Value: raw}).Scaled():
			t.Errorf("%s is %v, the file says %s", key, value, text)
		}
	}
	return len(names)
}

func unreadable(scene rdmatest.Scene, port int, source string) bool {
	return slices.ContainsFunc(scene.Unreadable, func(u rdmatest.Unreadable) bool { return u.Port == port && u.Source == source })
}

// checkAttributes checks state, physical state and rate of the first port.
func checkAttributes(t *testing.T, page samples, c rdmatest.Case, scene rdmatest.Scene) {
	t.Helper()
	at := func(family string) (float64, bool) {
		value, found := page[series(family, pairs("device", scene.Sick.Name, "port", "1"))]
		return value, found
	}
	if _, listed := scene.Tree.Content(scene.Sick.File(1, "state")); !listed {
		return
	}
	for _, a := range []struct {
		family, source string
		want           float64
	}{
		{"gdr_rdma_port_state_id", "state", float64(c.State)},
		{"gdr_rdma_port_physical_state_id", "phys_state", float64(c.PhysState)},
		{"gdr_rdma_port_rate_bytes_per_second", "rate", float64(c.Rate.BytesPerSecond)},
		{"gdr_rdma_port_width_lanes", "rate", float64(c.Rate.Lanes)},
	} {
		value, found := at(a.family)
		switch lost := unreadable(scene, 1, a.source); {
		case strings.HasPrefix(scene.Sick.Name, "smi"):
			if found {
				t.Errorf("%s of a plane", a.family)
			}
		case lost && found:
			t.Errorf("%s is %v, cannot be read", a.family, value)
		case !lost && !found:
			t.Errorf("%s is missing", a.family)
		case a.want != 0 && value != a.want:
			t.Errorf("%s is %v, want %v", a.family, value, a.want)
		}
	}
	if c.Rate.Speed != "" {
		if n := len(page.filter(func(key string) bool {
			return strings.HasPrefix(key, "gdr_rdma_port_info,device=\""+scene.Sick.Name+"\"") && strings.Contains(key, fmt.Sprintf("speed=%q", c.Rate.Speed))
		})); n == 0 {
			t.Errorf("no port of speed %s", c.Rate.Speed)
		}
	}
}

// checkErrors checks that exactly the unreadable values are counted and told.
func checkErrors(t *testing.T, b *bench, page samples, scene rdmatest.Scene) {
	t.Helper()
	want := map[string]bool{}
	for _, u := range scene.Unreadable {
		port := ""
		if u.Port > 0 {
			port = strconv.Itoa(u.Port)
		}
		want[series("gdr_read_errors_total", pairs("collector", "rdma", "device", scene.Sick.Name, "port", port, "source", u.Source, "errno", u.Errno))] = true
	}
	got := page.filter(func(key string) bool { return strings.HasPrefix(key, "gdr_read_errors_total") })
	for key := range want {
		if got[key] < 1 {
			t.Errorf("not counted: %s", key)
		}
	}
	for key, n := range got {
		if !want[key] {
			t.Errorf("counted %v times: %s", n, key)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	told := len(got)
	if restricted := page.filter(func(key string) bool { return strings.HasPrefix(key, "gdr_rdma_port_restricted") }); restricted.sum() > 0 {
		told = 0 // one message about the directory stands for all of its files
	}
	if len(b.told) != told {
		t.Errorf("%d kinds of error counted, %d told: %v", len(got), len(b.told), b.told)
	}
}

// checkChanged checks the page after the tree changed between two scrapes.
func checkChanged(t *testing.T, b *bench, c rdmatest.Case, scene rdmatest.Scene) {
	t.Helper()
	before := len(b.told)
	for range 2 {
		page := b.scrape(t, 10*time.Second)
		if !c.Alone {
			checkHealthy(t, page)
		}
		_, still := scene.Tree.Content(scene.Sick.File(1, "state"))
		if c.ID == "renamed" || c.ID == "removed" || c.ID == "vf-vanishes" || c.ID == "class-vanishes" {
			if n := len(page.of(scene.Sick.Name)); !still || n > 0 {
				t.Errorf("%d series of a device that is gone", n)
			}
			if page["gdr_scrape_collector_success,collector=\"rdma\""] != 1 {
				t.Error("a device that goes is no failure of the collector")
			}
		}
		if c.ID == "renamed" && len(page.of("ibp59s0")) < 70 {
			t.Error("the renamed device is missing")
		}
	}
	if len(b.told) != before {
		t.Errorf("told %v of a device that is gone", b.told[before:])
	}
}

func deviceSeries(family, device string) string { return series(family, pairs("device", device)) }

// tempTree is t.TempDir in memory where there is such a place: the trees have
// hundreds of files.
func tempTree(t testing.TB) string {
	t.Helper()
	dir, err := rdmatest.MkdirTemp()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

package collector

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/gpu/driver/drivertest"
	"gdr_exporter/rdma/rdmatest"
)

// driverSnapshot is a Snapshot of a scene of drivertest.
func driverSnapshot(t *testing.T, build func(drivertest.Host)) *snapshot.Snapshot {
	t.Helper()
	tree := drivertest.New()
	build(tree)
	dir := tempTree(t)
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	reading, _ := driver.NewReader(drivertest.Options(dir)).Read(goldenTime)
	return snapshotOf(&reading)
}

func snapshotOf(reading *driver.Reading) *snapshot.Snapshot {
	return &snapshot.Snapshot{Driver: &snapshot.DriverPart{
		Units: []snapshot.UnitPart[driver.Reading]{{Name: "driver", Data: reading}},
	}}
}

// TestDriverGolden compares the page of each scene with
// testdata/driver/<name>.metrics.
func TestDriverGolden(t *testing.T) {
	for _, scene := range drivertest.Scenes {
		t.Run(scene.Name, func(t *testing.T) {
			s := driverSnapshot(t, scene.Build)
			p := newPage()
			showDriver(p, s)
			showPeermem(p, s)
			comparePage(t, p, filepath.Join("testdata", "driver", scene.Name+".metrics"))
			t.Logf("%d series", p.used)
			if most := map[string]int{"none": 8, "rdma-only": 9, "ofed": 42, "ubuntu": 35}[scene.Name]; most > 0 && p.used > most {
				t.Errorf("%d series, want at most %d", p.used, most)
			}
			if p.used > 100 {
				t.Errorf("%d series", p.used)
			}
		})
	}
}

func TestNoStaleDriverGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/driver/*.metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".metrics")
		if !slices.ContainsFunc(drivertest.Scenes, func(s drivertest.Scene) bool { return s.Name == name }) {
			t.Errorf("%s belongs to no scene", file)
		}
	}
}

// sampleOf returns a gauge's value; false if it has no series with these labels.
func sampleOf(p *page, f *family, namesAndValues ...string) (float64, bool) {
	wanted := pairs(namesAndValues...)
	if p.families[f] == nil {
		return 0, false
	}
	for _, m := range p.families[f].Metric {
		if slices.EqualFunc(m.Label, wanted, func(a, b *dto.LabelPair) bool { return a.GetName() == b.GetName() && a.GetValue() == b.GetValue() }) {
			return m.GetGauge().GetValue(), true
		}
	}
	return 0, false
}

// TestDriverCases are the rows of facts/cases.md that these views serve.
func TestDriverCases(t *testing.T) {
	type want struct {
		f      *family
		labels []string
		value  float64 // -1: no series
	}
	module := []string{"module", "nvidia_peermem"}
	library := func(name string) []string { return []string{"library", name} }
	for _, c := range []struct {
		name, scene string
		wants       []want
	}{
		{"53: the module is there, old NCCL looks for another file", "ubuntu", []want{
			{peermemLoaded, module, 1},
			{peermemMarker, []string{"marker", "memory_peers/nv_mem"}, 0}, {peermemMarker, []string{"marker", "module/nvidia_peermem"}, 1},
			{peermemDetects, library("nccl_before_2.23.4"), 0}, {peermemDetects, library("nccl"), 1}, {peermemDetects, library("nvshmem_legacy"), 0},
		}},
		{"54: loaded and registered are separate, and no directory is no failure", "ubuntu", []want{
			{peermemLoaded, module, 1}, {peermemPeers, nil, 0}, {peermemRegistered, []string{"client", "nv_mem"}, -1},
		}},
		{"55: a stack with the directory, and nobody registered", "not-loaded", []want{
			{peermemPeers, nil, 1}, {peermemRegistered, []string{"client", "nv_mem"}, 0}, {peermemLoaded, module, 0}, {peermemDetects, library("nccl"), 0},
		}},
		{"56: works until it is unloaded", "not-on-disk", []want{{peermemLoaded, module, 1}, {peermemAvailable, module, 0}}},
		{"57: on disk, not loaded", "not-loaded", []want{{peermemLoaded, module, 0}, {peermemAvailable, module, 1}}},
		{"57: on disk or not, a container cannot tell", "garbage", []want{{peermemAvailable, module, -1}}},
		{"62: no peermem is not an error", "override", []want{{peermemLoaded, module, 0}, {peermemInfo, module, -1}, {driverOverride, nil, 1}}},
		{"91: driver upgraded on disk", "library-mismatch", []want{{driverMismatch, nil, 1}, {driverLoaded, nil, 1}}},
		{"91: nothing to compare", "unloaded", []want{{driverMismatch, nil, -1}, {driverLoaded, nil, 0}}},
		{"stale build", "stale", []want{{peermemMismatch, module, 1}}},
		{"usual node", "ofed", []want{{peermemMismatch, module, 0}, {driverMismatch, nil, 0}, {peermemReferences, module, 3}, {peermemLive, []string{"client", "nv_mem"}, 3}}},
		{"nothing of NVIDIA's", "none", []want{
			{driverLoaded, nil, 0}, {driverModuleLoaded, []string{"module", "nvidia"}, -1}, {peermemDetects, library("nccl"), -1}, {driverMismatch, nil, -1},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, scene := range drivertest.Scenes {
				if scene.Name != c.scene {
					continue
				}
				s := driverSnapshot(t, scene.Build)
				p := newPage()
				showDriver(p, s)
				showPeermem(p, s)
				for _, w := range c.wants {
					value, found := sampleOf(p, w.f, w.labels...)
					if found != (w.value >= 0) || found && value != w.value {
						t.Errorf("%s%v is %v (%v), want %v", w.f.name, w.labels, value, found, w.value)
					}
				}
				return
			}
			t.Fatalf("no scene %s", c.scene)
		})
	}
}

// What was not asked, hangs, or is not known has no series.
func TestDriverUnknown(t *testing.T) {
	for name, s := range map[string]*snapshot.Snapshot{
		"not asked": {}, "hangs": snapshotOf(nil), "no unit": {Driver: &snapshot.DriverPart{}},
	} {
		p := newPage()
		showDriver(p, s)
		showPeermem(p, s)
		if p.used != 0 {
			t.Errorf("%s: %d series", name, p.used)
		}
	}
	// Every state unknown: a reading in which nothing could be read.
	reading := driver.Reading{Slow: goldenTime, Modules: []driver.Module{{Name: "nvidia"}}, Peermem: []driver.PeerModule{{}}}
	p := newPage()
	showDriver(p, snapshotOf(&reading))
	showPeermem(p, snapshotOf(&reading))
	for f, mf := range p.families {
		if len(mf.Metric) > 0 && f != driverSlowRead && f != driverInfo {
			t.Errorf("%s of nothing: %v", f.name, mf.Metric)
		}
	}
	reading.Markers = map[driver.Marker]sysread.Maybe[bool]{driver.MarkerNvMem: sysread.Some(true)}
	p = newPage()
	showPeermem(p, snapshotOf(&reading))
	if value, found := sampleOf(p, peermemDetects, "library", "ucx"); !found || value != 1 {
		t.Error("one file that is there suffices, whatever is not known")
	}
}

// Every family of the two views is in a golden page.
func TestDriverFamiliesShown(t *testing.T) {
	shown := goldenFamilies(t)
	for name := range declared {
		if strings.HasPrefix(name, "gdr_driver_") || strings.HasPrefix(name, "gdr_peermem_") {
			if _, found := shown[name]; !found {
				t.Errorf("%s is in no golden page", name)
			}
		}
	}
	for _, file := range driver.ClientFiles {
		if peermemCounters[file] == nil {
			t.Errorf("no family for %s", file)
		}
	}
	if len(peermemCounters) != len(driver.ClientFiles) {
		t.Error("a family of no file")
	}
}

func BenchmarkDriverViews(b *testing.B) {
	tree := drivertest.New()
	for _, scene := range drivertest.Scenes {
		if scene.Name == "ofed" {
			scene.Build(tree)
		}
	}
	dir, err := rdmatest.MkdirTemp()
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := tree.WriteTo(dir); err != nil {
		b.Fatal(err)
	}
	reading, _ := driver.NewReader(drivertest.Options(dir)).Read(goldenTime)
	s := snapshotOf(&reading)
	p := newPage()
	for b.Loop() {
		p.reset()
		showDriver(p, s)
		showPeermem(p, s)
	}
}

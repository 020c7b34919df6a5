package main

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
)

func TestExporterMetrics(t *testing.T) {
	root := onDisk(t, noRDMA())
	for _, test := range []struct {
		args []string
		want bool
	}{{nil, true}, {[]string{"--web.exporter-metrics"}, true}, {[]string{"--no-web.exporter-metrics"}, false}} {
		page := serveTree(t, root, test.args...).get(t, "/metrics")
		for _, family := range []string{
			"go_goroutines", "go_info", "go_memstats_heap_alloc_bytes", "process_cpu_seconds_total", "process_resident_memory_bytes",
			"process_virtual_memory_bytes", "process_open_fds", "process_max_fds", "process_start_time_seconds",
		} {
			if got := strings.Contains(page.body, "\n# TYPE "+family+" "); got != test.want {
				t.Errorf("%v: %s is there: %v", test.args, family, got)
			}
		}
		if !regexp.MustCompile(`(?m)^gdr_exporter_build_info\{[^}]*goversion="go[^}]*version="[^"]+"[^}]*\} 1$`).MatchString(page.body) {
			t.Errorf("%v: no gdr_exporter_build_info", test.args)
		}
	}
}

// TestFamiliesAreApart: no two families are one in OpenMetrics, which knows a
// counter by its name without _total.
func TestFamiliesAreApart(t *testing.T) {
	page := serveTree(t, onDisk(t, noRDMA())).get(t, "/metrics")
	seen := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(page.body, -1) {
		name := strings.TrimSuffix(match[1], "_total")
		if seen[name] {
			t.Error(name)
		}
		seen[name] = true
	}
	if len(seen) < 20 {
		t.Error(len(seen))
	}
}

// TestProcessCollector compares with client_golang's own collector, which this
// one replaces because it is slow.
func TestProcessCollector(t *testing.T) {
	own, err := newProcessCollector()
	if err != nil {
		t.Fatal(err)
	}
	got, want := gathered(t, own), gathered(t, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if len(got) != 6 {
		t.Errorf("%d families: %v", len(got), slices.Sorted(maps.Keys(got)))
	}
	for name, family := range got {
		theirs := want[name]
		if theirs == nil {
			t.Errorf("%s is not a standard name", name)
			continue
		}
		if family.GetHelp() != theirs.GetHelp() || family.GetType() != theirs.GetType() {
			t.Errorf("%s is %v %q, the standard one %v %q", name, family.GetType(), family.GetHelp(), theirs.GetType(), theirs.GetHelp())
		}
		if a, b := only(family), only(theirs); a < 0.5*b || a > 2*b {
			t.Errorf("%s is %v, the standard one %v", name, a, b)
		}
	}
}

func gathered(t *testing.T, c prometheus.Collector) map[string]*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*dto.MetricFamily{}
	for _, family := range families {
		byName[family.GetName()] = family
	}
	return byName
}

// only is the value of a family's only sample.
func only(family *dto.MetricFamily) float64 {
	m := family.GetMetric()[0]
	return m.GetGauge().GetValue() + m.GetCounter().GetValue()
}

package deploy_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const pages = "../collector/testdata/embedded/"

// raised are the alerts of each golden page, if the node stays as the page shows it.
// Pages are recorded without a state directory: what a node has learned, and so the
// expectation of ports, is missing in them, and rates of counters are 0. Of a pair
// that moves an eighth two alerts tell, of which Alertmanager passes one on.
var raised = map[string][]string{
	"h100-8x8.metrics":             nil,
	"b200-8x8.metrics":             nil,
	"h200-1.metrics":               nil,
	"h200-2.metrics":               nil,
	"soft-roce.metrics":            nil,
	"busy-node.diff":               nil,
	"gdr-lost.diff":                {"GDRPathStaged"},
	"h100-8x8-demo.200s.diff":      {"GDRPathStaged"},
	"acs-on.diff":                  {"GDRPathDegraded", "PCIeACSRedirect"},
	"pcie-downtrained.diff":        {"GDRPathDegraded", "GDRPathRateLost", "PCIeWidthLost"},
	"nvlink-down.diff":             {"NVLinkDown"},
	"counters-saturated.diff":      {"RDMACounterSaturated"},
	"counters-saturated.300s.diff": {"RDMACounterSaturated"},
	"driver-mismatch.diff":         {"GDRDriverMismatch"},
}

// page returns the samples of a golden page: of a diff, those of the page that it
// changes.
func page(t *testing.T, name string) map[string]string {
	t.Helper()
	samples := map[string]string{}
	line := regexp.MustCompile(`^([-+] )?(gdr_[a-z0-9_]+(?:\{.*\})?) ([^ ]+)$`)
	read := func(name string) {
		for _, text := range strings.Split(text(t, pages+name), "\n") {
			m := line.FindStringSubmatch(text)
			switch {
			case m == nil:
			case m[1] == "- ":
				delete(samples, m[2])
			default:
				samples[m[2]] = m[3]
			}
		}
	}
	if strings.HasSuffix(name, ".diff") {
		read("h100-8x8.metrics")
	}
	read(name)
	if len(samples) < 20 {
		t.Fatalf("%s: %d samples", name, len(samples))
	}
	return samples
}

// TestGoldenPages has promtool watch each page for three hours: a healthy node raises
// nothing, and a fault its own alerts.
func TestGoldenPages(t *testing.T) {
	path := tool(t, "promtool", "prometheus")
	if testing.Short() {
		t.Skip("takes a minute")
	}
	rules, err := filepath.Abs("prometheus/rules")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(raised)) {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "test.yaml")
			if err := os.WriteFile(file, []byte(watch(page(t, name), rules, raised[name])), 0o600); err != nil {
				t.Fatal(err)
			}
			run(t, path, "test", "rules", file)
		})
	}
}

// watch is a test of promtool in which the samples do not change.
func watch(samples map[string]string, rules string, alerts []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "rule_files: ['%s/*.yaml']\nevaluation_interval: 5m\ntests:\n- interval: 5m\n  input_series:\n", rules)
	fmt.Fprintf(&b, "  - {series: 'up{cluster=\"c\", node=\"n\", job=\"gdr_exporter\"}', values: '1x40'}\n")
	for _, series := range slices.Sorted(maps.Keys(samples)) {
		named, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		labels = strings.TrimPrefix(labels+`,cluster="c",node="n"`, ",")
		fmt.Fprintf(&b, "  - series: '%s{%s}'\n    values: '%sx40'\n", named, labels, strings.Replace(samples[series], "e+", "e", 1))
	}
	b.WriteString("  promql_expr_test:\n  - expr: 'group by (alertname) (ALERTS{alertstate=\"firing\"})'\n    eval_time: 190m\n    exp_samples:\n")
	for _, alert := range alerts {
		fmt.Fprintf(&b, "    - {labels: '{alertname=\"%s\"}', value: 1}\n", alert)
	}
	return b.String()
}

package deploy_test

import (
	"cmp"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/deploy/runbooks"

	"go.yaml.in/yaml/v2"
)

var (
	metric   = regexp.MustCompile(`(?:[a-z]+:)?gdr_[a-z0-9_]+(?::[a-z0-9_]+)?`)
	selector = regexp.MustCompile(`\b(gdr_[a-z0-9_]+)\{([^}]*)\}`)
	counted  = regexp.MustCompile(`(rate|increase)\(\s*(gdr_[a-z0-9_]+)`)
)

// ofTarget are labels that the scrape configuration sets, and of single tests.
var ofTarget = []string{"cluster", "node", "job", "instance", "pod"}

// notMetrics are other words that look like one.
var notMetrics = []string{"gdr_exporter"}

// TestMetricNames: what rules, tests and runbooks name exists, with these labels.
func TestMetricNames(t *testing.T) {
	families := exposed(t)
	recorded := map[string]bool{}
	for _, r := range allRules(t) {
		recorded[r.Record] = true
	}
	files := slices.Concat(glob(t, "prometheus/rules/*.yaml"), glob(t, "prometheus/tests/*.yaml"), glob(t, "runbooks/*.md"))
	for _, file := range files {
		content := text(t, file)
		for _, name := range metric.FindAllString(content, -1) {
			known := families[name] != nil || recorded[name] || slices.Contains(notMetrics, name)
			if !known {
				t.Errorf("%s: %s is no metric of the exporter, and no recording rule", file, name)
			}
		}
		for _, m := range selector.FindAllStringSubmatch(content, -1) {
			for _, label := range labelNames(m[2]) {
				if families[m[1]] != nil && !families[m[1]][label] && !slices.Contains(ofTarget, label) {
					t.Errorf("%s: %s has no label %s", file, m[1], label)
				}
			}
		}
	}
}

// TestCounters: rates are of counters, and counters are not compared as they are, for
// a restart would change them.
func TestCounters(t *testing.T) {
	for _, r := range allRules(t) {
		inRate := map[string]int{}
		for _, m := range counted.FindAllStringSubmatch(r.Expr, -1) {
			if inRate[m[2]]++; !strings.HasSuffix(m[2], "_total") {
				t.Errorf("%s%s: %s of %s, which is no counter", r.Alert, r.Record, m[1], m[2])
			}
		}
		for _, name := range metric.FindAllString(r.Expr, -1) {
			if strings.HasSuffix(name, "_total") && strings.Count(r.Expr, name) > inRate[name] {
				t.Errorf("%s%s: %s without rate or increase", r.Alert, r.Record, name)
			}
		}
	}
}

const (
	quiesced    = "unless on (cluster, node) (gdr_quiesced_until_timestamp_seconds > time())"
	wasQuiesced = "unless on (cluster, node) (last_over_time(gdr_quiesced_until_timestamp_seconds[1h]) > time())"
	runbookBase = "http://gdr-exporter:10479/runbooks/"
)

// paging are the alerts that wake somebody.
var paging = []string{"GDRDataCorruption", "GDRPeerCorrupt", "GDRPathStaged", "GDRManyNodesStaged", "GDRManyNodesDegraded", "RDMAManyPortsDown"}

// notQuiesced are alerts that do not look at quiesced nodes themselves, with the reason.
var notQuiesced = map[string]string{
	"GDRQuiescedLong":            "is about them",
	"GDRNodeLabelMissing":        "without the label nobody knows which node is",
	"GDRExporterAbsent":          "there are none",
	"GDRManyNodesStaged":         "its recording rule leaves them out",
	"GDRManyNodesDegraded":       "its recording rule leaves them out",
	"RDMAManyPortsDown":          "its recording rule leaves them out",
	"GDRManyPathsUnverified":     "a quiesce ends after 12 hours, it looks at a day",
	"GDRPeerRailBad":             "a rail is of most nodes",
	"GDRPeerListsDiffer":         "lists and options are files, which are wrong all the same",
	"GDRManyPeerCertificatesEnd": "certificates end all the same",
}

// TestConventions: severity, scope and annotations of each alert.
func TestConventions(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range alerts(t) {
		if seen[r.Alert] {
			t.Errorf("%s: twice", r.Alert)
		}
		seen[r.Alert] = true
		if critical := r.Labels["severity"] == "critical"; critical != slices.Contains(paging, r.Alert) {
			t.Errorf("%s: severity %s", r.Alert, r.Labels["severity"])
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || !slices.Contains([]string{"cluster", "node", "port", "pair"}, r.Labels["scope"]) {
			t.Errorf("%s: labels %v", r.Alert, r.Labels)
		}
		if summary := r.Annotations["summary"]; summary == "" || strings.Contains(summary, "{{") || !strings.HasSuffix(summary, ".") {
			t.Errorf("%s: summary %q", r.Alert, summary)
		}
		if r.Annotations["description"] == "" || r.Annotations["runbook_url"] != runbookBase+r.Alert {
			t.Errorf("%s: annotations %v", r.Alert, r.Annotations)
		}
	}
	for name := range notQuiesced {
		if !seen[name] {
			t.Errorf("%s is no alert", name)
		}
	}
}

// TestExpressions: what an alert's expression may not do.
func TestExpressions(t *testing.T) {
	target := regexp.MustCompile(`\b(by|on|without|ignoring|group_left|group_right) *\([^)]*\b(instance|pod|namespace|container)\b`)
	for _, r := range alerts(t) {
		if r.Labels["scope"] != "cluster" && !strings.Contains(r.Expr, "cluster, node") {
			t.Errorf("%s: is not of a node", r.Alert)
		}
		if target.MatchString(r.Expr) {
			t.Errorf("%s: groups by a label of the target", r.Alert)
		}
		if strings.Contains(r.Expr, "gdr_finding") {
			t.Errorf("%s: reads findings; causes come from a query in the annotation", r.Alert)
		}
		if strings.Contains(r.Expr, "_info") && strings.Contains(r.Expr, "group_") {
			t.Errorf("%s: joins with facts, of which there may be two", r.Alert)
		}
		if _, exempt := notQuiesced[r.Alert]; exempt == (strings.Contains(r.Expr, quiesced) || strings.Contains(r.Expr, wasQuiesced)) {
			t.Errorf("%s: quiesced nodes: exempt %t", r.Alert, exempt)
		}
	}
	for _, r := range allRules(t) {
		if slices.ContainsFunc([]string{"staged", "degraded", "down"}, func(s string) bool {
			return strings.HasSuffix(r.Record, s+":count") && strings.HasPrefix(r.Record, "node:")
		}) && !strings.Contains(r.Expr, quiesced) {
			t.Errorf("%s: counts quiesced nodes", r.Record)
		}
	}
}

// TestAlertsAreTested: each alert has a test in which it does not fire at first, fires
// and resolves, and one of something that looks alike.
func TestAlertsAreTested(t *testing.T) {
	fires, resolves, alike := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, file := range glob(t, "prometheus/tests/*.yaml") {
		var f unitTest
		if err := yaml.Unmarshal([]byte(text(t, file)), &f); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, test := range f.Tests {
			fired := false
			for _, q := range test.Queries {
				if !strings.Contains(q.Expr, `"`+test.Name+`"`) {
					continue
				}
				if len(q.Samples) > 0 {
					fired = true
				} else if fired {
					resolves[test.Name] = true
				}
			}
			if fired {
				fires[test.Name] = true
			} else {
				alike[test.Name] = true
			}
			for _, s := range test.Series {
				if strings.Contains(s.Series, `"fine`) {
					alike[test.Name] = true
				}
			}
		}
	}
	for _, name := range names(alerts(t)) {
		if !fires[name] || !resolves[name] || !alike[name] {
			t.Errorf("%s: fires %t, resolves %t, something alike %t", name, fires[name], resolves[name], alike[name])
		}
	}
}

// TestRunbooks: each alert and each rule of the diagnosis has a section with all
// parts, and there are no others.
func TestRunbooks(t *testing.T) {
	wanted := names(alerts(t))
	for _, r := range diagnosis.Rules() {
		wanted = append(wanted, r.Anchor())
	}
	for _, name := range wanted {
		section, found := runbooks.Find(name)
		if !found {
			t.Errorf("%s has no runbook", name)
			continue
		}
		for i, title := range runbooks.Parts {
			if i >= len(section.Parts) || section.Parts[i].Title != title || len(section.Parts[i].Text) < 4 {
				t.Errorf("%s (%s): part %s is missing, or not in its place", name, section.File, title)
			}
		}
		if len(section.Parts) != len(runbooks.Parts) {
			t.Errorf("%s: %d parts", name, len(section.Parts))
		}
	}
	for _, name := range runbooks.Names() {
		if !slices.Contains(wanted, name) {
			t.Errorf("runbook %s is of nothing", name)
		}
	}
	headings := 0
	for _, file := range glob(t, "runbooks/*.md") {
		headings += strings.Count("\n"+text(t, file), "\n## ")
	}
	if headings != len(wanted) {
		t.Errorf("%d sections for %d alerts and rules", headings, len(wanted))
	}
}

// TestRunbookLinks: links within and between the runbooks lead somewhere.
func TestRunbookLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([a-z]*(?:\.md)?)#([a-z0-9_]+)\)`)
	where := map[string]string{}
	for _, name := range runbooks.Names() {
		section, _ := runbooks.Find(name)
		where[strings.ToLower(name)] = section.File
	}
	for _, file := range glob(t, "runbooks/*.md") {
		links := link.FindAllStringSubmatch(text(t, file), -1)
		if len(links) != strings.Count(text(t, file), "](") {
			t.Errorf("%s: links of another form", file)
		}
		for _, m := range links {
			if target := cmp.Or(m[1], filepath.Base(file)); where[m[2]] != target {
				t.Errorf("%s: no section %s in %s", file, m[2], target)
			}
		}
	}
}

// TestInhibition: Alertmanager's example names alerts that there are, and nothing
// keeps corrupt data from paging.
func TestInhibition(t *testing.T) {
	var f struct {
		Rules []struct {
			Source []string `yaml:"source_matchers"`
			Target []string `yaml:"target_matchers"`
			Equal  []string `yaml:"equal"`
		} `yaml:"inhibit_rules"`
	}
	if err := yaml.Unmarshal([]byte(text(t, "alertmanager/alertmanager.yaml")), &f); err != nil {
		t.Fatal(err)
	}
	known := names(alerts(t))
	named := func(matchers []string) []string {
		var all []string
		for _, m := range matchers {
			label, value, _ := strings.Cut(m, `"`)
			if !strings.HasPrefix(label, "alertname") {
				continue
			}
			all = append(all, strings.Split(strings.TrimSuffix(value, `"`), "|")...)
		}
		return all
	}
	for _, r := range f.Rules {
		sources, targets := named(r.Source), named(r.Target)
		for _, name := range append(slices.Clone(sources), targets...) {
			if !slices.Contains(known, name) {
				t.Errorf("%s is no alert", name)
			}
		}
		if slices.Contains(targets, "GDRDataCorruption") || slices.Contains(targets, "GDRPeerCorrupt") || slices.Contains(targets, "GDRPathStaged") && !slices.Equal(sources, []string{"GDRManyNodesStaged"}) {
			t.Errorf("%v holds back %v", sources, targets)
		}
		if len(r.Equal) == 0 || r.Equal[0] != "cluster" {
			t.Errorf("%v holds back %v of other clusters", sources, targets)
		}
	}
}

// tool returns the path of a program, or skips the test.
func tool(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (Debian package %s)", name, pkg)
	}
	return path
}

func run(t *testing.T, path string, args ...string) {
	t.Helper()
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Errorf("%s %v: %v\n%s", path, args, err, out)
	}
}

// TestPromtool has promtool check the rules and run their tests.
func TestPromtool(t *testing.T) {
	path := tool(t, "promtool", "prometheus")
	run(t, path, append([]string{"check", "rules", "--lint=all", "--lint-fatal"}, glob(t, "prometheus/rules/*.yaml")...)...)
	for _, file := range glob(t, "prometheus/tests/*.yaml") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			if testing.Short() {
				t.Skip("takes some seconds")
			}
			run(t, path, "test", "rules", file)
		})
	}
}

// TestAmtool has amtool check Alertmanager's example.
func TestAmtool(t *testing.T) {
	run(t, tool(t, "amtool", "prometheus-alertmanager"), "check-config", "alertmanager/alertmanager.yaml")
}

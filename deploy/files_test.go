// Package deploy_test checks the files for Prometheus and Alertmanager, and the runbooks.
package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"
)

// rule is a recording or alerting rule.
type rule struct {
	Record        string            `yaml:"record"`
	Alert         string            `yaml:"alert"`
	Expr          string            `yaml:"expr"`
	For           string            `yaml:"for"`
	KeepFiringFor string            `yaml:"keep_firing_for"`
	Labels        map[string]string `yaml:"labels"`
	Annotations   map[string]string `yaml:"annotations"`
}

type ruleFile struct {
	Groups []struct {
		Name     string `yaml:"name"`
		Interval string `yaml:"interval"`
		Rules    []rule `yaml:"rules"`
	} `yaml:"groups"`
}

// unitTest is what is looked at of a file of promtool's tests.
type unitTest struct {
	Tests []struct {
		Name   string `yaml:"name"`
		Series []struct {
			Series string `yaml:"series"`
		} `yaml:"input_series"`
		Queries []struct {
			Expr    string `yaml:"expr"`
			Time    string `yaml:"eval_time"`
			Samples []struct {
				Value float64 `yaml:"value"`
			} `yaml:"exp_samples"`
		} `yaml:"promql_expr_test"`
	} `yaml:"tests"`
}

// glob returns the files of a pattern, of which there must be some.
func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: no files (%v)", pattern, err)
	}
	return names
}

func text(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// allRules returns all rules, in the order of files and groups.
func allRules(t *testing.T) []rule {
	t.Helper()
	var all []rule
	for _, name := range glob(t, "prometheus/rules/*.yaml") {
		var f ruleFile
		if err := yaml.UnmarshalStrict([]byte(text(t, name)), &f); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, group := range f.Groups {
			all = append(all, group.Rules...)
		}
	}
	return all
}

// alerts returns the alerting rules.
func alerts(t *testing.T) []rule {
	t.Helper()
	return slices.DeleteFunc(allRules(t), func(r rule) bool { return r.Alert == "" })
}

// names returns the names of alerts.
func names(rules []rule) []string {
	var all []string
	for i := range rules {
		all = append(all, rules[i].Alert)
	}
	return all
}

// exposed are the labels of each family of the exporter, by its golden pages and the
// README's tables.
func exposed(t *testing.T) map[string]map[string]bool {
	t.Helper()
	families := map[string]map[string]bool{}
	add := func(family string, labels []string) {
		if families[family] == nil {
			families[family] = map[string]bool{}
		}
		for _, label := range labels {
			families[family][label] = true
		}
	}
	row := regexp.MustCompile("(?m)^\\| `(gdr_[a-z0-9_]+)` \\| (?:gauge|counter) \\|([^|]*)\\|")
	for _, m := range row.FindAllStringSubmatch(text(t, "../README.md"), -1) {
		add(m[1], strings.Fields(strings.ReplaceAll(m[2], "`", "")))
	}
	sample := regexp.MustCompile(`(?m)^[-+ ]*(gdr_[a-z0-9_]+)(?:\{(.*)\})? [^ ]+$`)
	for _, name := range append(glob(t, "../collector/testdata/embedded/*.metrics"), glob(t, "../collector/testdata/embedded/*.diff")...) {
		for _, m := range sample.FindAllStringSubmatch(text(t, name), -1) {
			add(m[1], labelNames(m[2]))
		}
	}
	return families
}

var labelName = regexp.MustCompile(`(?:^|,) *([a-z_]+)(?:=~|!~|!=|=)(?:"[^"]*"|%q)`)

// labelNames are the names in the braces of a series or a selector.
func labelNames(braces string) []string {
	var found []string
	for _, m := range labelName.FindAllStringSubmatch(braces, -1) {
		found = append(found, m[1])
	}
	return found
}

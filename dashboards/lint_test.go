// Package dashboards_test holds the dashboards to the rules of Grafana's dashboard-linter
// and of this project, and runs their queries.
package dashboards_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gdr_exporter/dashboards"

	"github.com/prometheus/prometheus/promql/parser"
)

// TestGenerated: the files are what the package builds.
func TestGenerated(t *testing.T) {
	all, err := dashboards.All()
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		built, err := all[i].JSON()
		if err != nil {
			t.Fatal(err)
		}
		if string(built) != text(t, all[i].File) {
			t.Errorf("%s is not what the sources say: go generate ./dashboards", all[i].File)
		}
	}
}

var sources = source{"prometheus", "${datasource}"}

// TestDashboards: what each dashboard as a whole has.
func TestDashboards(t *testing.T) {
	var uids []string
	all := models(t)
	for i := range all {
		m := &all[i]
		uids = append(uids, m.UID)
		if m.UID+".json" != m.file || m.SchemaVersion != 42 || m.Editable || m.Timezone != "browser" || m.Refresh == "" || m.GraphTooltip != 1 || !slices.Contains(m.Tags, "gdr") || m.Description == "" {
			t.Errorf("%s: %+v", m.file, *m)
		}
		if l := m.Links[0]; l.Type != "dashboards" || !slices.Equal(l.Tags, []string{"gdr"}) || !l.IncludeVars || !l.KeepTime {
			t.Errorf("%s: link %+v", m.file, l)
		}
		content := text(t, m.file)
		for _, bad := range []string{"__inputs", `"properties": null`, `"inControlsMenu"`} {
			if strings.Contains(content, bad) {
				t.Errorf("%s has %s", m.file, bad)
			}
		}
		if len(content) > 900_000 {
			t.Errorf("%s: %d bytes do not fit into a ConfigMap with another", m.file, len(content))
		}
		checkVariables(t, m)
	}
	for _, m := range regexp.MustCompile(`"/d/([a-z-]+)\?`).FindAllStringSubmatch(text(t, all[0].file)+text(t, all[1].file)+text(t, all[2].file), -1) {
		if !slices.Contains(uids, m[1]) {
			t.Errorf("a link leads to %s, which is no dashboard", m[1])
		}
	}
}

func checkVariables(t *testing.T, m *model) {
	t.Helper()
	list := m.Templating.List
	if v := list[0]; v.Name != "datasource" || v.Type != "datasource" || v.Label != "Data source" || v.Query != "prometheus" {
		t.Errorf("%s: first variable %+v", m.file, v)
	}
	if list[1].Name != "cluster" || (m.UID != "gdr-fleet" && list[2].Name != "node") {
		t.Errorf("%s: variables are out of order", m.file)
	}
	for _, v := range list {
		if v.Type == "query" && (v.Refresh != 2 || v.Datasource != sources || v.Label == "" || v.IncludeAll != (v.AllValue != "")) {
			t.Errorf("%s: variable %+v", m.file, v)
		}
	}
}

// TestPanels: what each panel has.
func TestPanels(t *testing.T) {
	all := models(t)
	for i := range all {
		m := &all[i]
		ids, titles, taken := map[int]bool{}, map[string]bool{}, map[position]string{}
		for j := range m.Panels {
			p := &m.Panels[j]
			where := m.file + ": " + p.Title
			if p.ID <= 0 || ids[p.ID] || titles[p.Title+p.Type] {
				t.Errorf("%s: id %d or title is there twice", where, p.ID)
			}
			ids[p.ID], titles[p.Title+p.Type] = true, true
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					at := position{X: p.GridPos.X + x, Y: p.GridPos.Y + y}
					if taken[at] != "" || at.X >= 24 {
						t.Fatalf("%s lies over %s, or outside", where, taken[at])
					}
					taken[at] = p.Title
				}
			}
			if p.Type != "row" {
				checkPanel(t, where, p)
			}
		}
	}
}

func checkPanel(t *testing.T, where string, p *panel) {
	t.Helper()
	d := &p.FieldConfig.Defaults
	if !strings.HasSuffix(p.Description, ".") || len(p.Targets) == 0 || p.Datasource != sources || len(d.Thresholds.Steps) == 0 {
		t.Errorf("%s: description %q, %d queries, data source %v, %d thresholds", where, p.Description, len(p.Targets), p.Datasource, len(d.Thresholds.Steps))
	}
	named := slices.Contains([]string{"table", "state-timeline"}, p.Type)
	if !named && d.Unit == "" && d.Mappings == nil && p.Title != "Driver" && p.Title != "NVML" && p.Title != "Isolation" {
		t.Errorf("%s: no unit", where)
	}
	var titles []string
	for _, tr := range p.Transformations {
		for _, title := range tr.Options.Rename {
			titles = append(titles, title)
		}
	}
	checkColumns(t, where, p)
	for _, q := range p.Targets {
		if q.Datasource != sources || q.Instant != slices.Contains([]string{"table", "stat", "bargauge"}, p.Type) || (q.Format == "table") != (p.Type == "table") {
			t.Errorf("%s: query %+v", where, q)
		}
	}
	for _, o := range p.FieldConfig.Overrides {
		for _, property := range o.Properties {
			links, _ := property.Value.([]any)
			for _, l := range links {
				l, _ := l.(map[string]any)
				url, _ := l["url"].(string)
				for _, field := range regexp.MustCompile(`__data\.fields\.(\w+)`).FindAllStringSubmatch(url, -1) {
					if !slices.Contains(titles, field[1]) {
						t.Errorf("%s: a link wants column %s", where, field[1])
					}
				}
			}
		}
	}
}

// checkColumns: a table has a column for each label of its queries, or they would come
// with the labels' names and in no order.
func checkColumns(t *testing.T, where string, p *panel) {
	t.Helper()
	columns := map[string]string{}
	for _, tr := range p.Transformations {
		maps.Copy(columns, tr.Options.Rename)
	}
	if p.Type != "table" || len(columns) == 0 {
		return
	}
	for _, q := range p.Targets {
		expr := parsed(t, where, q.Expr)
		if sorted, is := expr.(*parser.Call); is && strings.HasPrefix(sorted.Func.Name, "sort") {
			expr = sorted.Args[0]
		}
		by, is := expr.(*parser.AggregateExpr)
		if !is {
			continue
		}
		for _, label := range by.Grouping {
			if columns[label] == "" {
				t.Errorf("%s: query %s has label %s, which is no column", where, q.RefID, label)
			}
		}
	}
}

// TestQueriesLint: queries parse, and say which nodes, by the variables.
func TestQueriesLint(t *testing.T) {
	known := families(t)
	recorded := map[string]bool{"ALERTS": true}
	for _, r := range rules(t) {
		recorded[r.Record] = true
	}
	everyQuery(t, func(m *model, where, expr string) {
		parser.Inspect(parsed(t, where, expr), func(n parser.Node, path []parser.Node) error {
			switch n := n.(type) {
			case *parser.VectorSelector:
				checkSelector(t, m, where, n, known, recorded)
				checkCounter(t, where, n, path)
			case *parser.Call:
				if matrix, is := firstMatrix(n); is && n.Func.Name == "rate" && matrix != asRateInterval {
					t.Errorf("%s: rate over %s rather than $__rate_interval", where, matrix)
				}
			}
			return nil
		})
	})
}

func checkSelector(t *testing.T, m *model, where string, s *parser.VectorSelector, known map[string]map[string]bool, recorded map[string]bool) {
	t.Helper()
	matchers := map[string]string{}
	for _, l := range s.LabelMatchers {
		matchers[l.Name] = l.Value
	}
	if matchers["cluster"] != "$cluster" || (m.UID != "gdr-fleet" && matchers["node"] != "$node") {
		t.Errorf("%s: %s is not of the chosen nodes", where, s)
	}
	isRecorded := recorded[s.Name]
	if m.UID == "gdr-fleet" && !isRecorded {
		t.Errorf("%s: %s is no recording rule", where, s)
	}
	if s.Name == "" || isRecorded {
		return
	}
	if known[s.Name] == nil {
		t.Errorf("%s: %s is no metric of the exporter", where, s.Name)
		return
	}
	for name := range matchers {
		if !known[s.Name][name] && !slices.Contains([]string{"cluster", "node", "__name__"}, name) {
			t.Errorf("%s: %s has no label %s", where, s.Name, name)
		}
	}
}

// checkCounter: a counter starts again with the exporter, so that its value says nothing.
func checkCounter(t *testing.T, where string, s *parser.VectorSelector, path []parser.Node) {
	t.Helper()
	if !strings.HasSuffix(s.Name, "_total") {
		return
	}
	for _, n := range path {
		if call, is := n.(*parser.Call); is && (call.Func.Name == "rate" || call.Func.Name == "increase") {
			return
		}
	}
	t.Errorf("%s: %s without rate or increase", where, s.Name)
}

package dashboards_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v2"
)

// model is what the tests look at of a dashboard's file.
type model struct {
	file          string
	UID           string     `json:"uid"`
	Title         string     `json:"title"`
	Description   string     `json:"description"`
	Tags          []string   `json:"tags"`
	Editable      bool       `json:"editable"`
	SchemaVersion int        `json:"schemaVersion"`
	Timezone      string     `json:"timezone"`
	Refresh       string     `json:"refresh"`
	GraphTooltip  int        `json:"graphTooltip"`
	Links         []dashLink `json:"links"`
	Panels        []panel    `json:"panels"`
	Templating    struct {
		List []variable `json:"list"`
	} `json:"templating"`
	Annotations struct {
		List []annotation `json:"list"`
	} `json:"annotations"`
}

type dashLink struct {
	Type        string   `json:"type"`
	URL         string   `json:"url"`
	Tags        []string `json:"tags"`
	IncludeVars bool     `json:"includeVars"`
	KeepTime    bool     `json:"keepTime"`
}

type variable struct {
	Name       string `json:"name"`
	Label      string `json:"label"`
	Type       string `json:"type"`
	Query      any    `json:"query"`
	Definition string `json:"definition"`
	Refresh    int    `json:"refresh"`
	IncludeAll bool   `json:"includeAll"`
	AllValue   string `json:"allValue"`
	Datasource source `json:"datasource"`
}

type annotation struct {
	Name       string `json:"name"`
	Expr       string `json:"expr"`
	Datasource source `json:"datasource"`
}

type source struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type panel struct {
	ID          int      `json:"id"`
	Type        string   `json:"type"`
	Title       string   `json:"title"`
	Description string   `json:"description"`
	Datasource  source   `json:"datasource"`
	GridPos     position `json:"gridPos"`
	Targets     []target `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit       string `json:"unit"`
			Mappings   []any  `json:"mappings"`
			NoValue    string `json:"noValue"`
			Thresholds struct {
				Steps []any `json:"steps"`
			} `json:"thresholds"`
		} `json:"defaults"`
		Overrides []struct {
			Matcher struct {
				ID      string `json:"id"`
				Options any    `json:"options"`
			} `json:"matcher"`
			Properties []struct {
				ID    string `json:"id"`
				Value any    `json:"value"`
			} `json:"properties"`
		} `json:"overrides"`
	} `json:"fieldConfig"`
	Transformations []struct {
		ID      string `json:"id"`
		Options struct {
			Rename map[string]string `json:"renameByName"`
		} `json:"options"`
	} `json:"transformations"`
}

type position struct{ X, Y, W, H int }

type target struct {
	RefID      string `json:"refId"`
	Expr       string `json:"expr"`
	Format     string `json:"format"`
	Instant    bool   `json:"instant"`
	Datasource source `json:"datasource"`
}

// models reads the committed dashboards.
func models(t *testing.T) []model {
	t.Helper()
	files, err := filepath.Glob("*.json")
	if err != nil || len(files) != 3 {
		t.Fatalf("%d dashboards (%v)", len(files), err)
	}
	all := make([]model, len(files))
	for i, file := range files {
		all[i].file = file
		if err := json.Unmarshal([]byte(text(t, file)), &all[i]); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return all
}

func text(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// rule is a recording or alerting rule.
type rule struct {
	Record string `yaml:"record"`
	Alert  string `yaml:"alert"`
	Expr   string `yaml:"expr"`
}

func rules(t *testing.T) []rule {
	t.Helper()
	files, err := filepath.Glob("../deploy/prometheus/rules/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no rules (%v)", err)
	}
	var all []rule
	for _, file := range files {
		var f struct {
			Groups []struct {
				Rules []rule `yaml:"rules"`
			} `yaml:"groups"`
		}
		if err := yaml.Unmarshal([]byte(text(t, file)), &f); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, g := range f.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

// families are the labels of each family of the exporter, by all golden pages.
func families(t *testing.T) map[string]map[string]bool {
	t.Helper()
	found := map[string]map[string]bool{}
	sample := regexp.MustCompile(`(?m)^(?:\+ )?(gdr_[a-z0-9_]+)(?:\{(.*)\})? [^ ]+$`)
	label := regexp.MustCompile(`(?:^|,)([a-z_]+)="`)
	files, err := filepath.Glob("../collector/testdata/*/*")
	top, err2 := filepath.Glob("../collector/testdata/*.metrics")
	if err != nil || err2 != nil || len(files) == 0 || len(top) == 0 {
		t.Fatalf("no golden pages (%v, %v)", err, err2)
	}
	for _, file := range append(files, top...) {
		if ext := filepath.Ext(file); ext != ".metrics" && ext != ".diff" {
			continue
		}
		for _, m := range sample.FindAllStringSubmatch(text(t, file), -1) {
			if found[m[1]] == nil {
				found[m[1]] = map[string]bool{}
			}
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				found[m[1]][l[1]] = true
			}
		}
	}
	found["gdr_exporter_build_info"] = map[string]bool{"version": true, "goversion": true, "revision": true, "branch": true} // golden pages leave it out
	return found
}

// What stands for Grafana's intervals where a query is only parsed.
const (
	asRateInterval = 123 * time.Second
	asRange        = 456 * time.Second
)

// promql parses queries as Prometheus does.
var promql = parser.NewParser(parser.Options{})

// parsed parses a query with values in place of its variables.
func parsed(t *testing.T, where, expr string) parser.Expr {
	t.Helper()
	e, err := promql.ParseExpr(strings.NewReplacer("$__rate_interval", "123s", "$__range", "456s").Replace(expr))
	if err != nil {
		t.Errorf("%s: %v\n%s", where, err, expr)
	}
	return e
}

// everyQuery calls f with each query of each panel and annotation.
func everyQuery(t *testing.T, f func(m *model, where, expr string)) {
	t.Helper()
	all := models(t)
	for i := range all {
		m := &all[i]
		for _, p := range m.Panels {
			for _, q := range p.Targets {
				f(m, m.UID+"/"+p.Title+"/"+q.RefID, q.Expr)
			}
		}
		for _, a := range m.Annotations.List {
			f(m, m.UID+"/annotation "+a.Name, a.Expr)
		}
	}
}

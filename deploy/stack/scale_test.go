package stack

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v2"
)

// ranged is an expression with a range.
var ranged = regexp.MustCompile(`\[\d`)

// sixty is a clock that makes a minute of an hour.
func sixty() Clock { return Clock{time.Unix(1_800_000_000, 500e6), 60} }

func TestScaledExpr(t *testing.T) {
	const now = `(1800000000.5 + (time() - 1800000000.5) * 60)`
	for _, c := range []struct{ expr, want string }{
		{`up == 0`, `up == 0`},
		{`sum by (node) (increase(x_total[1h])) > 2`, `sum by (node) (increase(x_total[1m])) > 2`},
		{`rate(x_total[10m]) > 10`, `(rate(x_total[10s]) / 60) > 10`},
		{`sum(rate(x_total{a="rate(y[1h]) time()"}[5m])) / sum(irate(y[5m]))`, `sum((rate(x_total{a="rate(y[1h]) time()"}[5s]) / 60)) / sum((irate(y[5s]) / 60))`},
		{`x offset 1d`, `x offset 24m`},
		{`max_over_time(x[7d] offset -1h)`, `max_over_time(x[2h48m] offset -1m)`},
		{`max_over_time(rate(x[5m])[1h:1m])`, `max_over_time((rate(x[5s]) / 60)[1m:1s])`},
		{`time() - x_timestamp_seconds < 3600`, now + ` - x_timestamp_seconds < 3600`},
		{`clamp_min(4 * max(x_seconds), 86400)`, `clamp_min(4 * max(x_seconds), 86400)`},
		{`rate(x[90s])`, `(rate(x[1s500ms]) / 60)`},
	} {
		got, err := sixty().Expr(c.expr)
		if err != nil {
			t.Errorf("%s: %v", c.expr, err)
			continue
		}
		if normal(t, got) != normal(t, c.want) {
			t.Errorf("%s\nbecame %s\nwant   %s", c.expr, got, c.want)
		}
	}
	if got, err := sixty().Expr("sum(rate("); err == nil {
		t.Errorf("no expression became %q", got)
	}
}

// normal is an expression as its parser writes it.
func normal(t *testing.T, expr string) string {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	return parsed.String()
}

// TestScaledRules: of all rules the durations are scaled and nothing else but
// expressions, and what is no time stays.
func TestScaledRules(t *testing.T) {
	names, err := filepath.Glob("../prometheus/rules/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		scaled, err := sixty().Rules(text, 0)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		was, is := stringsOf(t, text), stringsOf(t, scaled)
		if len(was) != len(is) {
			t.Fatalf("%s: %d strings became %d", name, len(was), len(is))
		}
		for i := range was {
			key, before, after := was[i][0], was[i][1], is[i][1]
			switch key {
			case "for", "keep_firing_for", "interval":
				if 60*parsed(t, after) != parsed(t, before) {
					t.Errorf("%s: %s: %s became %s", name, key, before, after)
				}
			case "expr":
				if timed := ranged.MatchString(before); timed == (normal(t, before) == normal(t, after)) && !strings.Contains(before, "time()") && !strings.Contains(before, "offset") {
					t.Errorf("%s: %s became %s", name, before, after)
				}
			default:
				if before != after {
					t.Errorf("%s: %s: %q became %q", name, key, before, after)
				}
			}
		}
	}
}

func parsed(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := model.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(d)
}

// stringsOf are the strings of a YAML text with their keys, in order.
func stringsOf(t *testing.T, text []byte) (all [][2]string) {
	t.Helper()
	var root yaml.MapSlice
	if err := yaml.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	if err := editBelow(root, func(key, value string) (string, error) {
		all = append(all, [2]string{key, value})
		return value, nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestClock(t *testing.T) {
	c := sixty()
	if got := c.At(c.Began().Add(time.Minute)).Sub(c.Began()); got != time.Hour {
		t.Errorf("a minute of the wall clock is %v", got)
	}
	if got := c.Real(time.Hour); got != time.Minute {
		t.Errorf("an hour takes %v of the wall clock", got)
	}
}

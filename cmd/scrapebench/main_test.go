package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/rdma/rdmatest"
)

// fakeVariable makes the test binary play an exporter: one that serves each device whose state it can read, or, started as node_exporter
// is, nothing as soon as one cannot be read.
const fakeVariable = "SCRAPEBENCH_FAKE"

func TestMain(m *testing.M) {
	if os.Getenv(fakeVariable) != "" {
		fmt.Fprintln(os.Stderr, fakeExporter(os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func fakeExporter(args []string) error {
	var address, sysfs string
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--web.listen-address="); ok {
			address = value
		}
		if value, ok := strings.CutPrefix(arg, "--path.sysfs="); ok {
			sysfs = value
		}
	}
	allOrNothing := slices.Contains(args, "--collector.infiniband")
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# HELP go_goroutines Number.\ngo_goroutines 9\n"+fakePage(sysfs, allOrNothing))
	})
	return http.ListenAndServe(address, nil)
}

func fakePage(sysfs string, allOrNothing bool) string {
	var page strings.Builder
	devices, _ := filepath.Glob(filepath.Join(sysfs, "class/infiniband/*"))
	for _, device := range devices {
		text, err := os.ReadFile(filepath.Join(device, "ports/1/state"))
		if err != nil && allOrNothing {
			return ""
		}
		if err != nil {
			fmt.Fprintf(&page, "gdr_read_errors_total{collector=\"rdma\",device=%q,port=\"1\",source=\"state\",errno=\"EIO\"} 1\n", filepath.Base(device))
			continue
		}
		fmt.Fprintf(&page, "state{device=%q,port=\"1\"} %c\n", filepath.Base(device), text[0])
	}
	return page.String()
}

// fake runs scrapebench on fake exporters.
func fake(ctx context.Context, t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	t.Setenv(fakeVariable, "1")
	var out, problems bytes.Buffer
	code = run(ctx, append([]string{"--exporter", os.Args[0], "--node-exporter", os.Args[0]}, args...), &out, &problems)
	if children := childrenOf(t, os.Getpid()); len(children) > 0 {
		t.Errorf("still running: %v", children)
	}
	return code, out.String(), problems.String()
}

// childrenOf returns the command lines of a process's exporters.
func childrenOf(t *testing.T, pid int) []string {
	t.Helper()
	var lines []string
	stats, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, path := range stats {
		status, _ := os.ReadFile(path)
		if strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", pid)) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			lines = append(lines, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return lines
}

func TestBench(t *testing.T) {
	code, out, problems := fake(t.Context(), t, "--devices=2", "--scrapes=20", "--rounds=3", "--max-ratio=0", "--output=json")
	var report BenchReport
	if err := json.Unmarshal([]byte(out), &report); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, out, problems)
	}
	if len(report.Results) != 4 || report.Results[0].Ratio != nil || report.Results[1].Ratio == nil {
		t.Fatalf("results: %+v", report.Results)
	}
	for _, r := range report.Results {
		if r.Samples != 3 || r.CPU.Median <= 0 || r.Wall.Median <= 0 || r.RSS <= 0 || r.PeakRSS < r.RSS/2 || r.PlainBytes == 0 || len(r.CPURounds) != 3 {
			t.Errorf("%+v", r)
		}
	}
}

func TestBenchJudges(t *testing.T) {
	code, out, problems := fake(t.Context(), t, "--devices=2", "--scrapes=20", "--rounds=1", "--max-ratio=0.001", "--no-gzip")
	if code != 1 || !strings.Contains(out, "node_exporter") || !strings.Contains(problems, "CPU ratio") {
		t.Errorf("exit code %d\n%s%s", code, out, problems)
	}
}

func TestScaling(t *testing.T) {
	code, out, problems := fake(t.Context(), t, "--scaling", "--scrapes=3", "--rounds=1", "--max-scaling=0")
	if code != 0 || !strings.Contains(out, "32 times the devices cost") {
		t.Errorf("exit code %d\n%s%s", code, out, problems)
	}
}

func TestSoak(t *testing.T) {
	code, out, problems := fake(t.Context(), t, "--soak=50", "--devices=1", "--max-rss=1000")
	if lines := strings.Count(out, "\n"); code != 0 && !strings.Contains(problems, "grew") || lines != 11 {
		t.Errorf("exit code %d, %d lines\n%s%s", code, lines, out, problems)
	}
	code, _, problems = fake(t.Context(), t, "--soak=50", "--devices=1", "--max-rss=0.1")
	if code != 1 || !strings.Contains(problems, "above 0.1 MB") {
		t.Errorf("exit code %d, %s", code, problems)
	}
}

func TestSurvival(t *testing.T) {
	if err := rdmatest.Supported(); err != nil {
		t.Skip(err)
	}
	code, out, problems := fake(t.Context(), t, "--survival", "--case=state-eio", "--output=json")
	var rows []Row
	if err := json.Unmarshal([]byte(out), &rows); code != 0 || err != nil || len(rows) != 1 {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, out, problems)
	}
	if row := rows[0]; row.NodeExporter.kept() || !row.Exporter.kept() || row.Exporter.Named != 1 || row.Exporter.Wanted != 1 {
		t.Errorf("%+v", row)
	}
	if code, _, _ := fake(t.Context(), t, "--survival", "--case=none-such"); code != 1 {
		t.Errorf("exit code %d without a case", code)
	}
}

// An interrupted run ends soon, with everything that it started.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	start := time.Now()
	if code, out, _ := fake(ctx, t, "--soak=100000000", "--devices=1", "--max-rss=1000"); code != 1 || time.Since(start) > 10*time.Second {
		t.Errorf("exit code %d after %v\n%s", code, time.Since(start), out)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{}, {"--exporter=/nonesuch"}, {"--exporter", os.Args[0]}, {"--exporter", os.Args[0], "--soak=5"}, {"--exporter", os.Args[0], "--soak=50", "--scaling"},
		{"--exporter", os.Args[0], "--scaling", "--rounds=0"},
	} {
		var out, problems bytes.Buffer
		if code := run(t.Context(), args, &out, &problems); code != 2 || problems.Len() == 0 {
			t.Errorf("%v: exit code %d, %s", args, code, problems.String())
		}
	}
}

func TestStartFails(t *testing.T) {
	_, err := start(t.Context(), "false", "/bin/false", func(string) []string { return nil })
	if err == nil || !strings.Contains(err.Error(), "ended at once") {
		t.Error(err)
	}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Spread
	}{{nil, Spread{}}, {[]float64{3, 1, 2}, Spread{2, 1, 3}}, {[]float64{4, 1, 2, 3}, Spread{2.5, 1, 4}}} {
		if got := spread(c.values); got != c.want {
			t.Errorf("spread(%v) = %v", c.values, got)
		}
	}
}

func TestSeries(t *testing.T) {
	const page = "# HELP a b\na{device=\"mlx5_0\",text=\"} x\"} 1\na{device=\"mlx5_01\"} 2\nb 3\n\nc{port=\"1\",device=\"mlx5_0\"} NaN\n"
	got := seriesOf(page, "mlx5_0")
	if len(got) != 2 || !got[`a{device="mlx5_0",text="} x"}`] || !got[`c{port="1",device="mlx5_0"}`] {
		t.Errorf("series: %v", got)
	}
	if len(samples(page)) != 4 || value(page, "b") != 3 || value(page, "none") != -1 {
		t.Errorf("samples: %v", samples(page))
	}
}

func TestOutcome(t *testing.T) {
	for want, o := range map[string]Outcome{
		"kept":                             {Of: 5},
		"kept, took 5.0 s":                 {Of: 5, Seconds: 5},
		"**lost** (all 5 series)":          {Of: 5, Lost: 5},
		"**lost** 2 of 5 series":           {Of: 5, Lost: 2},
		"**page failed**: HTTP 500":        {Of: 5, Failed: "HTTP 500"},
		"**lost** 1 of 5 series, took 2 s": {Of: 5, Lost: 1, Seconds: 2},
	} {
		if got := o.String(); got != strings.Replace(want, "2 s", "2.0 s", 1) {
			t.Errorf("%+v is %q", o, got)
		}
	}
}

func TestJudgeSoak(t *testing.T) {
	at := func(first, last int64) []Tenth { return []Tenth{{RSS: first * 1e6}, {RSS: last * 1e6}} }
	for _, c := range []struct {
		tenths []Tenth
		bad    bool
	}{{at(20, 21), false}, {at(20, 23), true}, {at(41, 39), true}, {at(39, 30), false}} {
		if err := judgeSoak(c.tenths, 40); errors.Is(err, errJudged) != c.bad {
			t.Errorf("%v: %v", c.tenths, err)
		}
	}
}

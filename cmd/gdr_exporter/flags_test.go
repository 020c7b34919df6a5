package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"-h"}, {"help"}, {"serve", "--help"}, {"--help", "--log.level=nonsense"}} {
		r := runBriefly(t, args...)
		if r.code != exitOK || r.stderr != "" {
			t.Errorf("%v: code %d, stderr %q", args, r.code, r.stderr)
		}
		wantTidy(t, r.stdout)
		if n := strings.Count(r.stdout, "usage: "); n != 1 {
			t.Errorf("%v prints the usage %d times", args, n)
		}
		for _, name := range collector.Names() {
			flag := "--[no-]collector." + name
			if name == snapshot.CollectorPods { // it needs a socket
				flag = "--kubernetes.pod-resources="
			}
			if !strings.Contains(r.stdout, flag) {
				t.Errorf("%v does not show collector %s", args, name)
			}
		}
	}
	for _, args := range [][]string{
		{"ctl", "--help"}, {"ctl", "probe", "--help"}, {"ctl", "quiesce", "--help"}, {"ctl", "resume", "--help"}, {"ctl", "status", "--help"},
		{"state", "show", "--help"}, {"state", "forget", "--help"},
	} {
		r := runBriefly(t, args...)
		if r.code != exitOK || r.stderr != "" || !strings.Contains(r.stdout, "Example") {
			t.Errorf("%v: code %d, stderr %q, no example", args, r.code, r.stderr)
		}
		wantTidy(t, r.stdout)
		own, all := strings.Index(r.stdout, "\nFlags:"), strings.Index(r.stdout, "\nFlags of all commands:")
		if socket := strings.Index(r.stdout, " --socket="); args[0] == "ctl" && (own < 0 || socket < own || all < socket || strings.Count(r.stdout, " --web.config.file=") != 1) {
			t.Errorf("%v: a command's own flags are not shown first: %s", args, r.stdout)
		}
	}
	if r := runBriefly(t, "--help"); !strings.Contains(r.stdout, "the default command") {
		t.Error("--help does not tell of the commands")
	}
}

// wantTidy checks that the text fits a terminal.
func wantTidy(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		// The link to exporter-toolkit's documentation cannot be wrapped.
		if line = strings.TrimRight(line, "\n"); len(line) > 80 && !strings.Contains(line, "https://") {
			t.Errorf("long line: %q", line)
		}
	}
}

func TestVersion(t *testing.T) {
	r := runBriefly(t, "--version")
	if r.code != exitOK || r.stderr != "" || !strings.HasPrefix(r.stdout, "gdr_exporter, version ") {
		t.Errorf("%+v", r)
	}
	if strings.Contains(r.stdout, "version  ") {
		t.Errorf("no version in %q", r.stdout)
	}
}

// TestEveryCollectorFlag gives all collector flags at once, both ways.
func TestEveryCollectorFlag(t *testing.T) {
	root := onDisk(t, noRDMA())
	for _, prefix := range []string{"--collector.", "--no-collector."} {
		args := []string{"serve"}
		for _, name := range collector.Names() {
			if name != snapshot.CollectorPods { // whose flag is --kubernetes.pod-resources
				args = append(args, prefix+name)
			}
		}
		r := serveTree(t, root, args...)
		page := r.get(t, "/metrics")
		if page.code != http.StatusOK {
			t.Errorf("%s: code %d", prefix, page.code)
		}
		on := prefix == "--collector."
		if got := strings.Contains(page.body, `gdr_scrape_collector_success{collector="rdma"} 1`); got != on {
			t.Errorf("%s: rdma is collected: %v", prefix, got)
		}
	}
}

// parseOnly parses a command line without running it.
func parseOnly(args ...string) (*config, string, error) {
	app, c := newApp()
	app.UsageWriter(io.Discard).ErrorWriter(io.Discard).Terminate(terminate)
	command := ""
	err := untilTerminated(func() (err error) {
		command, err = parse(app, args)
		return err
	})
	return c, command, err
}

func TestServeIsTheDefault(t *testing.T) {
	for _, args := range [][]string{{}, {"serve"}, {"--log.level=debug", "serve"}, {"serve", "--log.level=debug"}, {"--log.level=debug"}} {
		c, command, err := parseOnly(args...)
		if err != nil || command != "serve" {
			t.Errorf("%v: command %q, error %v", args, command, err)
		}
		if want := len(args) > 0 && slices.Contains(args, "--log.level=debug"); (c.logLevel == "debug") != want {
			t.Errorf("%v: level %q", args, c.logLevel)
		}
	}
}

func TestDefaults(t *testing.T) {
	c, _, err := parseOnly()
	if err != nil {
		t.Fatal(err)
	}
	if got := *c.web.WebListenAddresses; len(got) != 1 || got[0] != ":10479" {
		t.Errorf("listens on %v", got)
	}
	if c.sysfs != "/sys" || c.procfs != "/proc" || c.telemetryPath != "/metrics" || c.logFormat != "logfmt" || c.logLevel != "info" {
		t.Errorf("defaults %+v", c)
	}
	if c.deadline != 5*time.Second || c.maxAge != 2*time.Second || c.slowInterval != time.Minute {
		t.Errorf("times %v %v %v", c.deadline, c.maxAge, c.slowInterval)
	}
	byDefault := slices.DeleteFunc(collector.Names(), func(name string) bool {
		return slices.Contains([]string{snapshot.CollectorProcess, snapshot.CollectorPods, snapshot.CollectorJobs}, name)
	})
	if !slices.Equal(c.enabled(), byDefault) || len(byDefault) != len(collector.Names())-3 {
		t.Errorf("enabled %v", c.enabled())
	}
}

// TestProcessFlag: processes are looked at only where a site says so, and with what
// says which there are.
func TestProcessFlag(t *testing.T) {
	for args, reason := range map[string]string{
		"": "", "--collector.process": "", "--collector.process --no-collector.gpu": "needs the collectors rdma and gpu", "--collector.process --no-collector.rdma": "needs the collectors rdma and gpu",
		"--no-collector.process --no-collector.gpu": "",
	} {
		c, _, err := parseOnly(strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.validate(); (err == nil) != (reason == "") || err != nil && !strings.Contains(err.Error(), reason) {
			t.Errorf("%q: %v", args, err)
		}
		if on := c.reads(snapshot.CollectorProcess); on != strings.HasPrefix(args, "--collector.process") {
			t.Errorf("%q: read %v", args, on)
		}
	}
}

func TestScheduleDefaults(t *testing.T) {
	c, _, err := parseOnly()
	if err != nil {
		t.Fatal(err)
	}
	want := scheduleConfig{
		interval: time.Hour, firstWithin: 5 * time.Minute, register: time.Hour, busyInterval: 6 * time.Hour, staged: 24 * time.Hour,
		maxAge: 24 * time.Hour, timeout: 10 * time.Second, busy: "register", isolation: "in-process", pairs: pairList{text: "nearest"},
		buffer: 64 << 20, bytes: 128 << 20, minFree: 4 << 30, bytesPerHour: 64 << 30, queuePairs: 4, runsPerHour: 120,
		limits: loopback.DefaultLimits, gid: -1, lock: loopback.LockPath,
	}
	if !reflect.DeepEqual(c.schedule, want) {
		t.Errorf("%+v, want %+v", c.schedule, want)
	}
	if c.socket != "/run/gdr_exporter/control.sock" || c.stateDir != "/var/lib/gdr_exporter" || c.lifecycle {
		t.Errorf("%q %q %v", c.socket, c.stateDir, c.lifecycle)
	}
	if err := c.schedule.validate(); err != nil {
		t.Error(err)
	}
}

// TestScheduleLeast: what just works together is taken.
func TestScheduleLeast(t *testing.T) {
	for _, args := range [][]string{
		{"--probe.bytes-per-hour=1200MiB"}, {"--probe.bytes-per-hour=0B", "--probe.bytes=1TiB"}, {"--probe.runs-per-hour=0"}, {"--probe.runs-per-hour=1"},
		{"--probe.max-age=1h", "--probe.interval=59m"}, {"--probe.max-age=1s", "--probe.interval=0"},
	} {
		c, _, err := parseOnly(args...)
		if err := errors.Join(err, c.schedule.validate()); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestPairs(t *testing.T) {
	for text, want := range map[string]snapshot.PairChoice{
		"nearest":             {},
		"all":                 {All: true},
		"0000:1B:00.0/mlx5_0": {Named: []prober.Pair{{GPU: "0000:1b:00.0", Device: "mlx5_0"}}},
		"10000:1b:1f.7/mlx5_bond_0:2,0000:2b:00.0/mlx5_0": {Named: []prober.Pair{
			{GPU: "10000:1b:1f.7", Device: "mlx5_bond_0", Port: 2}, {GPU: "0000:2b:00.0", Device: "mlx5_0"},
		}},
	} {
		c, _, err := parseOnly("--probe.pairs=" + text)
		if err != nil || !reflect.DeepEqual(c.schedule.pairs.choice(), want) {
			t.Errorf("%s: %+v %v", text, c.schedule.pairs, err)
		}
	}
}

// What the command line says reaches the runs.
func TestScheduledSpec(t *testing.T) {
	c, _, err := parseOnly("--probe.buffer=8MiB", "--probe.bytes=16MiB", "--probe.queue-pairs=2", "--probe.timeout=3s", "--probe.pkey=0x8001",
		"--probe.gid-index=3", "--probe.ledger=/l", "--path.sysfs=/s", "--probe.min-free=1GiB")
	if err != nil {
		t.Fatal(err)
	}
	want := loopback.Spec{
		BufferSize: 8 << 20, Bytes: 16 << 20, QueuePairs: 2, Deadline: 3 * time.Second, PKey: 0x8001, GID: sysread.Some(3), LedgerPath: "/l",
		SysfsRoot: "/s", FreeGPUMemory: 1 << 30, LibraryDirs: verbsDirs,
	}
	if got := c.scheduledSpec(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	settings := c.runner().Settings("0000:1b:00.0", false)
	if settings.Address != "0000:1b:00.0" || settings.MinFree != 1<<30 || !slices.Equal(settings.Roots, c.driverRoots) {
		t.Errorf("%+v", settings)
	}
}

func TestEnabled(t *testing.T) {
	c, _, err := parseOnly("--no-collector.gpu", "--no-collector.rdma")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, info := range collector.Collectors {
		if info.Name != "gpu" && info.Name != "rdma" && !info.OffByDefault() {
			want = append(want, info.Name)
		}
	}
	if got := c.enabled(); !slices.Equal(got, want) || slices.Contains(got, "process") {
		t.Errorf("enabled %v, want %v", got, want)
	}
}

// A filter is for the whole of a name, alternatives included.
func TestFilters(t *testing.T) {
	for _, test := range []struct {
		include, exclude string
		in, out          string // device names
	}{
		{"", "", "mlx5_0 rxe0", ""},
		{"mlx5_0", "", "mlx5_0", "mlx5_00 xmlx5_0 mlx5_1"},
		{"a|b", "", "a b", "ab xa bx"},
		{"", "a|b", "ab xa bx", "a b"},
		{"mlx5_.*", "mlx5_1.", "mlx5_1 mlx5_2", "mlx5_10 rxe0"},
		{"(?i)MLX5_0", "", "mlx5_0", "mlx5_1"},
	} {
		args := []string{}
		if test.include != "" {
			args = append(args, "--rdma.device-include="+test.include)
		}
		if test.exclude != "" {
			args = append(args, "--rdma.device-exclude="+test.exclude)
		}
		c, _, err := parseOnly(args...)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Fields(test.in) {
			if !c.includes(name) {
				t.Errorf("%v leaves out %s", args, name)
			}
		}
		for _, name := range strings.Fields(test.out) {
			if c.includes(name) {
				t.Errorf("%v reads %s", args, name)
			}
		}
	}
}

func TestRoles(t *testing.T) {
	c, _, err := parseOnly("--rdma.role=mlx5_8=storage", "--rdma.role=mlx5_.*=compute", "--rdma.role=a=b=unused")
	if err != nil {
		t.Fatal(err)
	}
	for device, want := range map[string]string{
		"mlx5_8": "storage", "mlx5_80": "compute", "mlx5_0": "compute", "rxe0": "", "xmlx5_8": "", "a=b": "unused",
	} {
		if got := c.roles.Role(device); got != want {
			t.Errorf("%s is %s, want %s", device, got, want)
		}
	}
}

func TestServablePaths(t *testing.T) {
	for _, good := range []string{"/metrics", "/m", "/a/b/c", "/a-b_c.d~", "/-", "/apiary", "/api"} {
		if err := servable(good); (err != nil) != (good == "/-" || good == "/api") {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "m", "/", "//", "//m", "/m/", "/.", "/..", "/a/../b", "/a/./b", "/{", "/{x}", "/{x...}", "/{$}", "/a b", "/ä", "/a?b", "/a#b", "/%20", "/a\x00", "/a\n", "/-/ready", "/runbooks/x"} {
		if servable(bad) == nil {
			t.Errorf("%q is taken for servable", bad)
		}
	}
}

// FuzzServable: what is servable does not make http.ServeMux panic, and is
// served at exactly that path.
func FuzzServable(f *testing.F) {
	for _, seed := range []string{"/metrics", "/{", "/a b", "/..", "/-", "/{$}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if servable(path) != nil {
			return
		}
		mux := http.NewServeMux()
		mux.HandleFunc("GET "+path, func(http.ResponseWriter, *http.Request) {})
		for _, other := range []string{"GET /-/healthy", "GET /-/ready", "GET /{$}"} {
			mux.HandleFunc(other, func(http.ResponseWriter, *http.Request) {})
		}
		request, err := http.NewRequest(http.MethodGet, "http://x"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, pattern := mux.Handler(request); pattern != "GET "+path {
			t.Errorf("%q is served by %q", path, pattern)
		}
	})
}

// FuzzCommandLine: whatever the command line, the outcome is help, a daemon or
// one line and exit code 2.
func FuzzCommandLine(f *testing.F) {
	for _, seed := range []string{"--nosuch", "help\x00x", "--log.level\x00\n", "-hx", "--", "--=", "@/dev/null", "serve\x00--help", "--rdma.role=\x00", "--collector.rdma=\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		// A path that does not exist keeps a right command line from serving.
		args := append(strings.Split(line, "\x00"), "--path.procfs=/no/such")
		if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "@") || strings.HasPrefix(arg, "--completion") }) {
			return
		}
		var stdout, stderr bytes.Buffer
		code := run(context.Background(), args, &stdout, &stderr)
		switch {
		case code == exitOK && stdout.Len() > 0 && stderr.Len() == 0:
		case code == exitUsage && stdout.Len() == 0 && bytes.Count(stderr.Bytes(), []byte("\n")) == 1:
		default:
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, stdout.String(), stderr.String())
		}
	})
}

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"plain": "plain", "a\n  b\r\nc\n": "a b c", "a\tb\x1b[31m\xff": "a?b?[31m\ufffd", "": "", "ü": "ü",
	} {
		if got := oneLine(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"gdr_exporter/collector/status"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// fakeProber notes what it is told.
type fakeProber struct {
	mu        sync.Mutex
	status    prober.Status
	attempts  []prober.Attempt
	fails     error // of ProbeNow
	stuck     error // of Quiesce
	hanging   bool
	hung      []prober.HungRun
	calls     []string
	runs      int           // of Run
	late      chan struct{} // if set, Run ends when it is closed
	measuring chan struct{} // if set, ProbeNow tells it and waits for ctx
}

func (f *fakeProber) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fakeProber) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (f *fakeProber) Status() *prober.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.status
	return &s
}

func (f *fakeProber) ProbeNow(ctx context.Context, r prober.Request) ([]prober.Attempt, error) {
	f.note("probe %q %q %v", r.GPU, r.Device, r.Force)
	if f.measuring != nil {
		close(f.measuring)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return f.attempts, f.fails
}

func (f *fakeProber) Quiesce(context.Context, time.Time) error {
	f.note("quiesce")
	return f.stuck
}
func (f *fakeProber) Resume() { f.note("resume") }
func (f *fakeProber) Forget(gpu, device string) int {
	f.note("forget %q %q", gpu, device)
	return 2
}

func (f *fakeProber) Run(ctx context.Context) {
	f.mu.Lock()
	f.runs++
	f.mu.Unlock()
	<-ctx.Done()
	if f.late != nil {
		<-f.late
	}
}
func (f *fakeProber) Saw(prober.Sighting) {}
func (f *fakeProber) Hanging() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hanging
}
func (f *fakeProber) HungRuns() []prober.HungRun { return f.hung }
func (f *fakeProber) Isolate(reason string)      { f.note("isolate %s", reason) }

// fakeUser is what keeps device files open beside.
type fakeUser struct {
	name  string
	note  func(format string, args ...any)
	stuck error
}

func (f *fakeUser) Quiesce(context.Context) error { f.note("%s quiesce", f.name); return f.stuck }
func (f *fakeUser) Resume()                       { f.note("%s resume", f.name) }

// scene is a control over fakes.
type scene struct {
	*fakeProber
	nvml    *fakeUser
	control *control
	open    []string
	openErr error
	log     *observer.ObservedLogs
	blocked string
	wanted  atomic.Bool // a fresh start is
}

func newScene() *scene {
	core, log := observer.New(zapcore.DebugLevel)
	s := &scene{fakeProber: &fakeProber{}, log: log}
	s.nvml = &fakeUser{name: "nvml", note: s.note}
	s.control = &control{
		prober: s.fakeProber, logger: zap.New(core), stopping: context.Background(),
		restart: func() (string, string) {
			if s.wanted.Load() {
				return "wanted", s.blocked
			}
			return "", ""
		},
		quiet: &quiet{
			prober: s.fakeProber, nvml: s.nvml, logger: zap.New(core),
			open:   func() ([]string, error) { return s.open, s.openErr },
			afresh: func() { s.wanted.Store(true) }, stay: func() { s.wanted.Store(false) },
		},
	}
	return s
}

// ask makes a request of the control and returns the code and the body.
func (s *scene) ask(method, target, kind, body string) (int, string) {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	w := httptest.NewRecorder()
	s.control.handler().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

const formType = "application/x-www-form-urlencoded"

// TestControlRequests: every mistake has its code and one line of JSON, and does
// nothing; what is right does what it should.
func TestControlRequests(t *testing.T) {
	for _, test := range []struct {
		method, target, kind, body string
		code                       int
		says                       string // in the body
		does                       string // calls
	}{
		{"GET", "/api/v1/control", "", "", 200, `"released":true`, ""},
		{"HEAD", "/api/v1/control", "", "", 200, "", ""},
		{"POST", "/api/v1/control", "", "", 405, "wants the method GET", ""},
		{"GET", "/api/v1/probe", "", "", 405, "wants the method POST", ""},
		{"GET", "/api/v1/quiesce?for=30m", "", "", 405, "wants the method POST", ""},
		{"DELETE", "/api/v1/forget?all=1", "", "", 405, "wants the method POST", ""},
		{"GET", "/api/v1/nosuch", "", "", 404, "no such path", ""},
		{"GET", "/", "", "", 404, "no such path", ""},
		{"GET", "/metrics", "", "", 404, "no such path", ""},

		{"POST", "/api/v1/probe", "", "", 200, `"attempts":[]`, `probe "" "" false`},
		{"POST", "/api/v1/probe?gpu=0000:1B:00.0&device=mlx5_0&force=1", "", "", 200, "attempts", `probe "0000:1b:00.0" "mlx5_0" true`},
		{"POST", "/api/v1/probe", formType, "gpu=0000:1b:00.0&force=0", 200, "attempts", `probe "0000:1b:00.0" "" false`},
		{"POST", "/api/v1/probe?force=yes", "", "", 400, "force=yes", ""},
		{"POST", "/api/v1/probe?gpus=0000:1b:00.0", "", "", 400, `unknown parameter \"gpus\"`, ""},
		{"POST", "/api/v1/probe?gpu=a&gpu=b", "", "", 400, "twice", ""},
		{"POST", "/api/v1/probe?gpu=%zz", "", "", 400, "cannot be read", ""},
		{"POST", "/api/v1/probe", "application/json", `{"force": true}`, 415, "form-urlencoded", ""},
		{"POST", "/api/v1/probe", formType, "gpu=" + strings.Repeat("x", 5000), 413, "larger than 4096", ""},

		{"POST", "/api/v1/quiesce", "", "", 200, `"quiesced_until":"2`, "nvml quiesce, quiesce"},
		{"POST", "/api/v1/quiesce", formType, "for=1m", 200, `"quiesced_until":"2`, "nvml quiesce, quiesce"},
		{"POST", "/api/v1/quiesce?for=12h", "", "", 200, `"quiesced_until":"2`, "nvml quiesce, quiesce"},
		{"POST", "/api/v1/quiesce?for=12h0m1s", "", "", 400, "at most 12h", ""},
		{"POST", "/api/v1/quiesce?for=0s", "", "", 400, "above 0", ""},
		{"POST", "/api/v1/quiesce?for=-5m", "", "", 400, "above 0", ""},
		{"POST", "/api/v1/quiesce?for=30", "", "", 400, "duration", ""},
		{"POST", "/api/v1/quiesce?for=9999999999h", "", "", 400, "duration", ""},
		{"POST", "/api/v1/resume", "", "", 200, `"quiesced_until":null`, "nvml resume, resume"},
		{"POST", "/api/v1/resume?for=1m", "", "", 400, "unknown parameter", ""},

		{"POST", "/api/v1/forget?gpu=0000:1B:00.0", "", "", 200, `{"pairs":2}`, `forget "0000:1b:00.0" ""`},
		{"POST", "/api/v1/forget?device=mlx5_0", "", "", 200, `{"pairs":2}`, `forget "" "mlx5_0"`},
		{"POST", "/api/v1/forget?all=1", "", "", 200, `{"pairs":2}`, `forget "" ""`},
		{"POST", "/api/v1/forget", "", "", 400, "all=1", ""},
		{"POST", "/api/v1/forget?all=1&gpu=x", "", "", 400, "all=1 alone", ""},
	} {
		s := newScene()
		code, body := s.ask(test.method, test.target, test.kind, test.body)
		if code != test.code || !strings.Contains(body, test.says) {
			t.Errorf("%s %s: %d %q, want %d and %q", test.method, test.target, code, body, test.code, test.says)
		}
		if does := strings.Join(slices.Sorted(slices.Values(s.took())), ", "); does != test.does {
			t.Errorf("%s %s does %q, want %q", test.method, test.target, does, test.does)
		}
		var failure map[string]string
		if err := json.Unmarshal([]byte(body), &failure); test.code != 200 && (err != nil || len(failure) != 1 || failure["error"] == "") {
			t.Errorf("%s %s: no error in JSON: %q", test.method, test.target, body)
		}
	}
}

func TestProbeNowErrors(t *testing.T) {
	s := newScene()
	s.fails = fmt.Errorf("%w: GPU x", prober.ErrNoPair)
	for target, want := range map[string]string{"/api/v1/probe?gpu=x": "GPU x", "/api/v1/probe": "on this host"} {
		if code, body := s.ask("POST", target, "", ""); code != 404 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q", target, code, body)
		}
	}
	s = newScene()
	s.control.off = "nothing is measured with --no-collector.probe"
	if code, body := s.ask("POST", "/api/v1/probe", "", ""); code != 409 || !strings.Contains(body, "--no-collector.probe") || len(s.took()) > 0 {
		t.Errorf("%d %q %v", code, body, s.took())
	}
	s = newScene()
	stopping, stop := context.WithCancel(context.Background())
	s.control.stopping, s.measuring = stopping, make(chan struct{})
	go func() { <-s.measuring; stop() }()
	if code, body := s.ask("POST", "/api/v1/probe", "", ""); code != 503 || !strings.Contains(body, "ending") {
		t.Errorf("at the exporter's end: %d %q", code, body)
	}
}

// TestQuiesceReleases: what is open, hangs or cannot be seen is not released.
func TestQuiesceReleases(t *testing.T) {
	for name, test := range map[string]struct {
		set  func(*scene)
		want status.Control
		log  string
	}{
		"all at once": {func(*scene) {}, status.Control{Released: true}, "all driver files are released"},
		"libcuda": {
			func(s *scene) { s.open = []string{"/dev/nvidiactl"} },
			status.Control{OpenFiles: []string{"/dev/nvidiactl"}, Restart: &status.ControlRestart{Reason: "wanted"}}, "letting go",
		},
		"a run hangs": {
			func(s *scene) { s.stuck = errors.New("a run hangs") }, status.Control{Problem: "measuring: a run hangs"}, "not all driver files",
		},
		"both hang": {
			func(s *scene) { s.stuck, s.nvml.stuck = errors.New("a run hangs"), errors.New("nvmlShutdown hangs") },
			status.Control{Problem: "measuring: a run hangs; NVML: nvmlShutdown hangs"}, "not all driver files",
		},
		"a session hangs": {
			func(s *scene) {
				s.control.quiet.sessions = &fakeUser{name: "sessions", note: s.note, stuck: errors.New("process 5 does not end")}
			}, status.Control{Problem: "sessions: process 5 does not end"}, "not all driver files",
		},
		"cannot be seen": {func(s *scene) { s.openErr = errors.New("no /proc") }, status.Control{Problem: "no /proc"}, "not all driver files"},
	} {
		s := newScene()
		test.set(s)
		var got status.Control
		code, body := s.ask("POST", "/api/v1/quiesce?for=1h", "", "")
		if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 {
			t.Fatalf("%s: %d %v", name, code, err)
		}
		if got.QuiescedUntil == nil || time.Until(*got.QuiescedUntil) > time.Hour || time.Until(*got.QuiescedUntil) < 59*time.Minute {
			t.Errorf("%s: until %v", name, got.QuiescedUntil)
		}
		if got.Released != test.want.Released || !slices.Equal(got.OpenFiles, test.want.OpenFiles) || got.Problem != test.want.Problem ||
			fmt.Sprint(got.Restart) != fmt.Sprint(test.want.Restart) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
		if last := s.log.All()[s.log.Len()-1].Message; !strings.Contains(last, test.log) {
			t.Errorf("%s: logged last %q", name, last)
		}
	}
}

// TestQuiesceReleasesLater: what hung and does not any more is released, and a
// status says so; one that is asked while another command acts does not wait.
func TestQuiesceReleasesLater(t *testing.T) {
	s := newScene()
	s.stuck, s.nvml.stuck = errors.New("a run hangs"), errors.New("nvmlShutdown hangs")
	s.control.quiet.begin(t.Context(), time.Hour)
	until := s.control.quiet.inForceUntil()
	s.nvml.stuck = nil
	if got := s.control.status(t.Context()); got.Released || got.Problem != "measuring: a run hangs" {
		t.Errorf("NVML is released: %+v", got)
	}
	s.stuck = nil
	s.control.quiet.acting.Lock()
	if got := s.control.status(t.Context()); got.Released || got.Problem != "measuring: a run hangs" {
		t.Errorf("while another command acts: %+v", got)
	}
	s.control.quiet.acting.Unlock()
	if got := s.control.status(t.Context()); !got.Released || got.Problem != "" || !got.QuiescedUntil.Equal(until) {
		t.Errorf("all are released: %+v", got)
	}
	before := len(s.took())
	if s.control.status(t.Context()); len(s.took()) != before {
		t.Errorf("what is released is released again: %q", s.took())
	}
}

// TestQuiesceEnds: by itself, on demand, and not when another took its place.
func TestQuiesceEnds(t *testing.T) {
	ended := func(s *scene) bool { return slices.Contains(s.took(), "nvml resume") }
	s := newScene()
	s.open = []string{"/dev/nvidiactl"}
	s.ask("POST", "/api/v1/quiesce?for=20ms", "", "")
	waitUntil(t, "the time limit ends it", func() bool { return ended(s) })
	waitUntil(t, "it says so", func() bool { return s.log.FilterMessage("quiesced no more").Len() == 1 })
	if got := s.control.status(t.Context()); got.QuiescedUntil != nil || got.Restart != nil || got.Problem != "" {
		t.Errorf("after the time limit: %+v", got)
	}

	s = newScene()
	s.control.quiet.sessions = &fakeUser{name: "sessions", note: s.note}
	first := time.Now()
	s.ask("POST", "/api/v1/quiesce?for=30ms", "", "")
	s.ask("POST", "/api/v1/quiesce?for=1h", "", "")
	s.control.quiet.expire(first) // its timer fires late
	for time.Since(first) < 60*time.Millisecond {
		time.Sleep(time.Millisecond)
	}
	if ended(s) || s.control.status(t.Context()).QuiescedUntil == nil {
		t.Error("the first time limit ended the second quiesce")
	}
	s.ask("POST", "/api/v1/resume", "", "")
	if !ended(s) || !slices.Contains(s.took(), "sessions resume") || s.control.status(t.Context()).QuiescedUntil != nil {
		t.Error("not resumed")
	}
}

// TestQuiesceIsCarriedOn into a fresh process, but not for ever.
func TestQuiesceIsCarriedOn(t *testing.T) {
	s := newScene()
	s.control.quiet.carryOn(t.Context(), time.Time{})
	s.control.quiet.carryOn(t.Context(), time.Now().Add(-time.Second))
	if len(s.took()) > 0 {
		t.Errorf("a quiesce that is over: %v", s.took())
	}
	s.open = []string{"/dev/nvidiactl"}
	s.control.quiet.carryOn(t.Context(), time.Now().Add(1000*time.Hour))
	if got := s.control.status(t.Context()); got.QuiescedUntil == nil || time.Until(*got.QuiescedUntil) > mostQuiesce {
		t.Errorf("the clock was set back: until %v", got.QuiescedUntil)
	}
	if s.wanted.Load() {
		t.Error("a fresh process starts afresh once more")
	}
	if !slices.Equal(slices.Sorted(slices.Values(s.took())), []string{"nvml quiesce", "quiesce"}) {
		t.Errorf("%v", s.took())
	}
}

// controlled is a full result and what else a pair can have.
func controlled(now time.Time) prober.Status {
	result := func(outcome loopback.Outcome, reasons ...string) *prober.Completed {
		return &prober.Completed{
			Depth: prober.DepthFull, Time: now.Add(-time.Hour), Judgement: loopback.Judgement{Outcome: outcome, Reasons: reasons},
			Result: loopback.Result{Paths: []loopback.PathResult{
				{Path: loopback.PathHost, BytesPerSecond: sysread.Some(50e9)},
				{Path: loopback.PathGPU, BytesPerSecond: sysread.Some(45e9), Ratio: sysread.Some(0.9)},
			}},
		}
	}
	registered := &prober.Completed{Depth: prober.DepthRegister, Time: now.Add(-time.Minute), Judgement: loopback.Judgement{Outcome: loopback.Fine}}
	candidate := func(gpu, device string) prober.Candidate {
		return prober.Candidate{Pair: prober.Pair{GPU: gpu, Device: device, Port: 1}, Distance: "PIX", Direct: true}
	}
	return prober.Status{Interval: time.Hour, Isolation: prober.InProcess, Running: &prober.Pair{GPU: "0000:2b:00.0", Device: "mlx5_1", Port: 1}, Pairs: []prober.PairStatus{
		{Candidate: candidate("0000:1b:00.0", "mlx5_0"), Full: result(loopback.Fine), Due: now.Add(30*time.Minute + time.Second)},
		{Candidate: candidate("0000:2b:00.0", "mlx5_1"), Registration: registered, Withdrawn: "port down", Skip: prober.ReasonNICBusy, Due: now.Add(-time.Minute)},
		{Candidate: candidate("0000:3b:00.0", "mlx5_2"), Full: result(loopback.Slow, "gpu: 0.50 of the host path"), Unconfirmed: result(loopback.Failed, "EFAULT")},
		{Candidate: candidate("0000:4b:00.0", "mlx5_3"), Hung: now.Add(-time.Minute), HungStage: loopback.StageRegister},
	}}
}

// onSocket serves the scene's control on a real socket.
func (s *scene) onSocket(t *testing.T) string {
	t.Helper()
	path := filepath.Join(shortDir(t), "control.sock")
	socket, err := listenControl(path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: s.control.handler()}
	go func() { _ = server.Serve(socket) }()
	t.Cleanup(func() { _ = server.Close() })
	return path
}

// shortDir is a directory with a name short enough for sockets in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gdr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// runHere runs the program's main in this process.
func runHere(args ...string) result {
	var stdout, stderr bytes.Buffer
	code := run(context.Background(), args, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

func TestCtlStatus(t *testing.T) {
	s := newScene()
	s.status = controlled(time.Now())
	s.open = []string{"/dev/nvidiactl", "/dev/nvidia0"}
	socket := s.onSocket(t)
	r := runHere("ctl", "status", "--socket="+socket)
	if r.code != exitOK || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{
		"every 1h0m when idle", "in the exporter's own process", "running: GPU 0000:2b:00.0 and mlx5_1 port 1", "open: /dev/nvidiactl /dev/nvidia0",
		"fine", "45.0 GB/s", "0.90", "1h0m ago", "in 30m0s",
		"fine (register)", "1m0s ago", "due", "not measured: nic_busy; withdrawn: port down",
		"slow", "to be confirmed: failed, EFAULT; gpu: 0.50 of the host path",
		"never", "a run hangs since 1m0s in register",
	} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q in\n%s", want, r.stdout)
		}
	}
	r = runHere("ctl", "status", "--output=json", "--control.socket="+socket)
	var answer status.Control
	if err := json.Unmarshal([]byte(r.stdout), &answer); err != nil || r.code != exitOK || len(answer.Pairs) != 4 || *answer.Pairs[0].Standing.Ratio != 0.9 {
		t.Errorf("%v: %+v", err, r)
	}
	if answer.Pairs[1].Standing.BytesPerSecond != nil || answer.Pairs[3].Standing != nil || answer.Pairs[2].Due != nil {
		t.Errorf("what is not known is not null: %+v", answer.Pairs)
	}
}

// TestCtlProbe has an exit code for each way in which runs can end.
func TestCtlProbe(t *testing.T) {
	full := controlled(time.Now()).Pairs[0].Full
	pair := prober.Pair{GPU: "0000:1b:00.0", Device: "mlx5_0", Port: 1}
	fine := prober.Attempt{Pair: pair, Depth: prober.DepthFull, Result: prober.RunFine, Completed: full}
	with := func(r prober.RunResult) prober.Attempt {
		return prober.Attempt{Pair: pair, Depth: prober.DepthFull, Result: r, Text: "because of " + string(r)}
	}
	skipped := prober.Attempt{Pair: pair, Depth: prober.DepthFull, Skip: prober.ReasonGPUBusy}
	for name, test := range map[string]struct {
		attempts []prober.Attempt
		code     int
		says     string
	}{
		"fine":        {[]prober.Attempt{fine, fine}, 0, "45.0 GB/s  0.90"},
		"slow":        {[]prober.Attempt{fine, with(prober.RunSlow)}, 3, "because of slow"},
		"failed":      {[]prober.Attempt{skipped, with(prober.RunFailed)}, 3, "failed"},
		"corrupt":     {[]prober.Attempt{with(prober.RunCorrupt), fine}, 3, "corrupt"},
		"hung":        {[]prober.Attempt{with(prober.RunHung)}, 3, "hung"},
		"crashed":     {[]prober.Attempt{with(prober.RunCrashed)}, 3, "crashed"},
		"skipped":     {[]prober.Attempt{fine, skipped}, 4, "not measured: gpu_busy"},
		"broken":      {[]prober.Attempt{with(prober.RunBroken)}, 4, "broken"},
		"interrupted": {[]prober.Attempt{with(prober.RunInterrupted)}, 4, "interrupted"},
		"unsupported": {[]prober.Attempt{with(prober.RunUnsupported)}, 4, "unsupported"},
		"none":        {nil, 4, "remarks"},
	} {
		s := newScene()
		s.attempts = test.attempts
		r := runHere("ctl", "probe", "--force", "--device=mlx5_0", "--socket="+s.onSocket(t))
		if r.code != test.code || r.stderr != "" || !strings.Contains(strings.Join(strings.Fields(r.stdout), " "), strings.Join(strings.Fields(test.says), " ")) {
			t.Errorf("%s: %+v, want %d and %q", name, r, test.code, test.says)
		}
		if calls := s.took(); !slices.Equal(calls, []string{`probe "" "mlx5_0" true`}) {
			t.Errorf("%s: %q", name, calls)
		}
	}
	s := newScene()
	s.fails = fmt.Errorf("%w: GPU x", prober.ErrNoPair)
	runHere("ctl", "probe", "--gpu=x", "--socket="+s.onSocket(t)).wantMistake(t, "no such GPU-NIC pair", "GPU x")
}

func TestCtlQuiesce(t *testing.T) {
	s := newScene()
	socket := "--socket=" + s.onSocket(t)
	if r := runHere("ctl", "quiesce", "--for=5m", socket); r.code != exitOK || r.stderr != "" || !strings.Contains(r.stdout, "all driver files are released") {
		t.Errorf("%+v", r)
	}
	if r := runHere("ctl", "resume", socket); r.code != exitOK || !strings.Contains(r.stdout, "driver files: none is open") {
		t.Errorf("%+v", r)
	}
	runHere("ctl", "quiesce", "--for=13h", socket).wantMistake(t, "--for=13h0m0s", "12h")
	s.open, s.blocked = []string{"/dev/nvidiactl"}, "reading mlx5_0"
	if r := runHere("ctl", "quiesce", socket); r.code != exitProbeNotJudged || !strings.Contains(r.stdout, "not all driver files") || !strings.Contains(r.stdout, "/dev/nvidiactl") || !strings.Contains(r.stdout, "reading mlx5_0") {
		t.Errorf("%+v", r)
	}
	s.blocked, s.stuck = "", errors.New("a run hangs")
	s.open = nil
	if r := runHere("ctl", "quiesce", "--output=json", socket); r.code != exitProbeNotJudged || !strings.Contains(r.stdout, `"problem": "measuring: a run hangs"`) {
		t.Errorf("%+v", r)
	}
}

// TestCtlWithoutDaemon says in one line why nobody answers.
func TestCtlWithoutDaemon(t *testing.T) {
	dir := shortDir(t)
	left := filepath.Join(dir, "left.sock")
	leaveSocket(t, left)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mute, err := net.Listen("unix", filepath.Join(dir, "mute.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	go func() {
		for {
			connection, err := mute.Accept()
			if err != nil {
				return
			}
			_, _ = connection.Read(make([]byte, 1000))
			_ = connection.Close()
		}
	}()
	for socket, want := range map[string]string{
		filepath.Join(dir, "nosuch.sock"): "no such file or directory", left: "connection refused", file: "connection refused",
		mute.Addr().String(): "without an answer", strings.Repeat("x", 200): "invalid argument",
	} {
		for _, command := range []string{"status", "probe", "quiesce", "resume"} {
			runHere("ctl", command, "--socket="+socket).wantMistake(t, "no daemon answers at "+socket, want)
		}
	}
	runHere("ctl", "status", "--control.socket=").wantMistake(t, "--control.socket is empty")
	runHere("ctl").wantMistake(t, "subcommand")
	runHere("ctl", "frobnicate").wantMistake(t, "frobnicate")
}

// leaveSocket leaves a socket behind as a killed process does.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = listener.Close()
}

func TestListenControl(t *testing.T) {
	dir := shortDir(t)
	umask := syscall.Umask(0)
	socket, err := listenControl(filepath.Join(dir, "run", "control.sock"))
	syscall.Umask(umask)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{socket.path: 0o600 | os.ModeSocket, filepath.Dir(socket.path): 0o755 | os.ModeDir} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
	if _, err := listenControl(socket.path); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("in use: %v", err)
	}
	// Nobody else can hold up the next start: others may read the directory alone.
	lock := socket.path + ".lock"
	if info, err := os.Stat(lock); err != nil || info.Mode() != 0o600 {
		t.Errorf("%s: %v", lock, err)
	}
	held, err := os.Open(filepath.Dir(socket.path))
	if err := errors.Join(err, syscall.Flock(int(held.Fd()), syscall.LOCK_EX)); err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	// Another's socket of the same name is not removed.
	other := filepath.Join(dir, "other.sock")
	leaveSocket(t, other)
	if err := os.Rename(other, socket.path); err != nil {
		t.Fatal(err)
	}
	if socket.remove(); !exists(socket.path) {
		t.Error("removed another's socket")
	}
	_ = socket.Close()
	again, err := listenControl(socket.path)
	if err != nil {
		t.Fatalf("a socket that was left: %v", err)
	}
	defer again.Close()
	if again.remove(); exists(again.path) {
		t.Error("did not remove its own socket")
	}
	linked := filepath.Join(dir, "linked.sock")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), linked+".lock"); err != nil {
		t.Fatal(err)
	}
	if _, err := listenControl(linked); err == nil || !strings.Contains(err.Error(), "locking "+linked+".lock: ") || exists(filepath.Join(dir, "elsewhere")) {
		t.Errorf("a lock that is a link: %v", err)
	}
	file := write(t, "file", "text")
	if _, err := listenControl(file); err == nil || !strings.Contains(err.Error(), "no socket") || !exists(file) {
		t.Errorf("a file: %v", err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, strings.Repeat("x", 150)): "longer than 107", filepath.Join(file, "a"): "not a directory", filepath.Join(file, "a", "b"): "not a directory",
	} {
		if _, err := listenControl(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestControlStarters: of many that start at once over a socket that was left,
// exactly one gets it.
func TestControlStarters(t *testing.T) {
	path := filepath.Join(shortDir(t), "control.sock")
	leaveSocket(t, path)
	var wg sync.WaitGroup
	won := make(chan *controlSocket, 20)
	for range cap(won) {
		wg.Go(func() {
			if socket, err := listenControl(path); err == nil {
				won <- socket
			}
		})
	}
	wg.Wait()
	close(won)
	if len(won) != 1 {
		t.Errorf("%d have it", len(won))
	}
	for socket := range won {
		connection, err := net.Dial("unix", path)
		if err != nil {
			t.Errorf("its socket is gone: %v", err)
		} else {
			_ = connection.Close()
		}
		_ = socket.Close()
	}
}

// TestControlSocketOfDaemon: SIGTERM takes the socket away, SIGKILL leaves one that
// does not matter, and one that is in use does not keep a second daemon from serving.
func TestControlSocketOfDaemon(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	socket := filepath.Join(dir, "run", "control.sock")
	args := []string{"--control.socket=" + socket, "--state.dir=" + filepath.Join(dir, "state"), "--path.sysfs=" + onDisk(t, noRDMA()) + "/sys", "--web.listen-address=127.0.0.1:0"}
	first := serveWith(t, args...)
	started := func(r *running) bool { return strings.Contains(r.stderr.String(), "msg=started") }
	waitUntil(t, "started", func() bool { return started(first) })
	if r := runHere("ctl", "status", "--socket="+socket); r.code != exitOK {
		t.Errorf("%+v", r)
	}
	second := serveWith(t, args...)
	for _, want := range []string{"no control socket", "another process listens there", "results do not outlive the exporter", "holds the state"} {
		waitUntil(t, "the second daemon says "+want, func() bool { return strings.Contains(second.stderr.String(), want) })
	}
	if code := second.get(t, "/metrics").code; code != http.StatusOK {
		t.Errorf("the second daemon: %d", code)
	}
	second.signal(t, syscall.SIGTERM)
	if r := runHere("ctl", "status", "--socket="+socket); r.code != exitOK {
		t.Errorf("the second took the first one's socket: %+v", r)
	}
	_ = first.command.Process.Kill()
	<-first.exited
	if !exists(socket) {
		t.Error("nothing was left to test")
	}
	third := serveWith(t, args...)
	waitUntil(t, "started", func() bool { return started(third) })
	if r := runHere("ctl", "status", "--socket="+socket); r.code != exitOK || strings.Contains(third.stderr.String(), "level=warn") {
		t.Errorf("after SIGKILL: %+v\n%s", r, third.stderr.String())
	}
	third.signal(t, syscall.SIGTERM)
	if exists(socket) {
		t.Error("SIGTERM left the socket")
	}
}

// TestControlSocketOfAnotherUser is left alone, and metrics are served.
func TestControlSocketOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	t.Parallel()
	dir := emptyDir(t)
	socket := filepath.Join(dir, "control.sock")
	copied := filepath.Join(dir, "gdr_exporter")
	owner, err := listenControl(socket)
	if err := errors.Join(err, os.Chmod(dir, 0o777), copyProgram(binary(t), copied)); err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	nobody := func(args ...string) *exec.Cmd {
		command := exec.Command(copied, append(args, "--control.socket="+socket)...)
		command.SysProcAttr, command.Dir = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, "/"
		return command
	}
	finish(t, nobody("ctl", "status")).wantMistake(t, "permission denied", "owner alone")
	r := startRunning(t, nobody("--web.listen-address=127.0.0.1:0", "--state.dir=/proc/nosuch"))
	for _, want := range []string{"locking " + socket + ".lock: permission denied", "results do not outlive the exporter"} {
		waitUntil(t, "it says "+want, func() bool { return strings.Contains(r.stderr.String(), want) })
	}
	if code := r.get(t, "/metrics").code; code != http.StatusOK {
		t.Errorf("code %d", code)
	}
	r.signal(t, syscall.SIGTERM)
	if !exists(socket) {
		t.Error("removed another's socket")
	}
}

// post asks a serving exporter by TCP; header holds names and values in turn.
func post(t *testing.T, client *http.Client, method, url string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	response, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// TestNoControlByTCP is the default, also with a password.
func TestNoControlByTCP(t *testing.T) {
	t.Parallel()
	root := onDisk(t, noRDMA())
	for _, r := range []*running{
		serveTree(t, root), serveTree(t, root, "--web.config.file="+write(t, "web.yml", "basic_auth_users: {me: "+bcryptOfSecret+"}\n")),
	} {
		for _, path := range controlPaths {
			for _, method := range []string{"GET", "POST"} {
				url := "http://me:secret@" + r.addresses[0] + path + "?all=1"
				if code, body := post(t, http.DefaultClient, method, url, controlHeader, "1"); code != 403 || !strings.Contains(body, "--web.enable-lifecycle") {
					t.Errorf("%s %s: %d %q", method, path, code, body)
				}
			}
		}
	}
}

// TestControlByTCPWithPassword: not without password, header, or from another's
// page; and not once the file asks for no password any more.
func TestControlByTCPWithPassword(t *testing.T) {
	t.Parallel()
	file := write(t, "web.yml", "basic_auth_users: {me: "+bcryptOfSecret+"}\n")
	r := serveTree(t, onDisk(t, noRDMA()), "--web.enable-lifecycle", "--web.config.file="+file)
	at := r.addresses[0]
	known, header := "http://me:secret@"+at, []string{controlHeader, "1"}
	for name, test := range map[string]struct {
		method, url string
		header      []string
		code        int
		says        string
	}{
		"no password":        {"POST", "http://" + at + pathResume, header, 401, "Unauthorized"},
		"wrong password":     {"POST", "http://me:wrong@" + at + pathResume, header, 401, "Unauthorized"},
		"unknown user":       {"POST", "http://you:secret@" + at + pathResume, header, 401, "Unauthorized"},
		"no header":          {"POST", known + pathResume, nil, 403, controlHeader},
		"foreign origin":     {"POST", known + pathResume, append([]string{"Origin", "http://evil.example"}, header...), 403, "Origin"},
		"origin null":        {"POST", known + pathResume, append([]string{"Origin", "null"}, header...), 403, "Origin"},
		"origin empty":       {"POST", known + pathResume, append([]string{"Origin", ""}, header...), 403, "Origin"},
		"another port":       {"POST", known + pathResume, append([]string{"Origin", "http://127.0.0.1:1"}, header...), 403, "Origin"},
		"two origins":        {"POST", known + pathResume, append([]string{"Origin", "http://" + at, "Origin", "http://evil.example"}, header...), 403, "Origin"},
		"own origin":         {"POST", known + pathResume, append([]string{"Origin", "http://" + at}, header...), 200, "released"},
		"no page":            {"POST", known + pathResume, header, 200, "released"},
		"header without":     {"POST", known + pathResume, []string{controlHeader, ""}, 200, "released"},
		"status":             {"GET", known + pathControl, header, 200, "released"},
		"status unguarded":   {"GET", known + pathControl, nil, 403, controlHeader},
		"wrong method":       {"GET", known + pathResume, header, 405, "POST"},
		"quiesce too long":   {"POST", known + pathQuiesce + "?for=24h", header, 400, "12h"},
		"nothing to measure": {"POST", known + pathProbe, header, 404, "no GPU-NIC pair"},
		"forget":             {"POST", known + pathForget + "?all=1", header, 200, "pairs"},
		"quiesce":            {"POST", known + pathQuiesce + "?for=1ms", header, 200, "quiesced_until"},
	} {
		if code, body := post(t, http.DefaultClient, test.method, test.url, test.header...); code != test.code || !strings.Contains(body, test.says) {
			t.Errorf("%s: %d %q, want %d and %q", name, code, body, test.code, test.says)
		}
	}
	for text, want := range map[string]int{"basic_auth_users: {}\n": 403, "basic_auth_users: {\n": 500, "basic_auth_users: {you: " + bcryptOfSecret + "}\n": 401} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, body := post(t, http.DefaultClient, "POST", known+pathResume, header...); code != want {
			t.Errorf("with the file %q: %d %q", text, code, body)
		}
	}
}

// TestControlByTCPWithCertificate: a client's certificate does instead of a
// password, as long as the file asks for one that is verified.
func TestControlByTCPWithCertificate(t *testing.T) {
	t.Parallel()
	cert, key, pool := certificate(t)
	demand := fmt.Sprintf("tls_server_config: {cert_file: %s, key_file: %s, client_ca_file: %s, client_auth_type: ", cert, key, cert)
	file := write(t, "web.yml", demand+"RequireAndVerifyClientCert}\n")
	r := serveTree(t, onDisk(t, noRDMA()), "--web.enable-lifecycle", "--web.config.file="+file)
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	client := func(certificates ...tls.Certificate) *http.Client {
		return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: certificates, MinVersion: tls.VersionTLS12}}}
	}
	url, header := "https://"+r.addresses[0]+pathResume, []string{controlHeader, "1"}
	if code, body := post(t, client(), "POST", url, header...); code != 0 || !strings.Contains(body, "certificate") {
		t.Errorf("without a certificate: %d %s", code, body)
	}
	if code, body := post(t, client(own), "POST", url, header...); code != 200 {
		t.Errorf("with one: %d %s", code, body)
	}
	if code, _ := post(t, client(own), "POST", url); code != 403 {
		t.Errorf("without the header: %d", code)
	}
	for _, kind := range []string{"VerifyClientCertIfGiven", "RequireAnyClientCert", "RequestClientCert"} {
		if err := os.WriteFile(file, []byte(demand+kind+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, body := post(t, client(own), "POST", url, header...); code != 403 || !strings.Contains(body, "RequireAndVerifyClientCert") {
			t.Errorf("with %s: %d %s", kind, code, body)
		}
	}
}

// lifecycleMistakes are starts with --web.enable-lifecycle and a file that asks
// nobody who he is.
func lifecycleMistakes(t *testing.T) []mistake {
	cert, key, _ := certificate(t)
	pair := fmt.Sprintf("cert_file: %s, key_file: %s", cert, key)
	mistakes := []mistake{{"lifecycle without file", []string{"--web.enable-lifecycle"}, []string{"--web.enable-lifecycle", "basic_auth_users", "client_auth_type"}}}
	for name, text := range map[string]string{
		"empty":            "",
		"nobody":           "basic_auth_users: {}",
		"TLS alone":        "tls_server_config: {" + pair + "}",
		"if given":         "tls_server_config: {" + pair + ", client_ca_file: " + cert + ", client_auth_type: VerifyClientCertIfGiven}",
		"any":              "tls_server_config: {" + pair + ", client_ca_file: " + cert + ", client_auth_type: RequireAnyClientCert}",
		"all that verify":  "tls_server_config: {" + pair + ", client_auth_type: RequireAndVerifyClientCert}",
		"not even for TLS": "rate_limit: {interval: 1s, burst: 1}",
	} {
		mistakes = append(mistakes, mistake{"lifecycle, " + name, []string{"--web.enable-lifecycle", "--web.config.file=" + write(t, "web.yml", text)}, []string{"--web.enable-lifecycle: needs"}})
	}
	return mistakes
}

// TestStateCommands: forget works on the file, or through the daemon that holds it.
func TestStateCommands(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	states, socket := "--state.dir="+filepath.Join(dir, "state"), "--control.socket="+filepath.Join(dir, "control.sock")
	pair := func(gpu, device string) prober.Pair { return prober.Pair{GPU: gpu, Device: device, Port: 1} }
	full := controlled(time.Now()).Pairs[0].Full
	kept := func() {
		t.Helper()
		state := &prober.State{Version: 1, Written: time.Now(), BootID: bootID()}
		for _, p := range []prober.Pair{pair("0000:1b:00.0", "mlx5_0"), pair("0000:2b:00.0", "mlx5_1"), pair("0000:3b:00.0", "mlx5_1")} {
			state.Pairs = append(state.Pairs, prober.PairState{Candidate: prober.Candidate{Pair: p, Distance: "PIX"}, Full: full})
			state.Baselines = append(state.Baselines, &prober.Baseline{Pair: p, Identity: prober.Identity{Driver: "580.1"}, Rates: []float64{44e9, 45e9}, Last: time.Now()})
		}
		state.Ports = []prober.PortRecord{{Device: "mlx5_0", Port: 1, Active: time.Now()}}
		if err := state.Write(strings.TrimPrefix(states, "--state.dir=")); err != nil {
			t.Fatal(err)
		}
	}
	shows := func(want bool, texts ...string) {
		t.Helper()
		r := runHere("state", "show", states)
		for _, text := range texts {
			if r.code != exitOK || strings.Contains(r.stdout, text) != want {
				t.Errorf("%q is shown: %v\n%+v", text, !want, r)
			}
		}
	}
	runHere("state", "show", states).wantMistake(t, "no such file or directory")
	runHere("state", "forget", "--all", states).wantMistake(t, "no such file or directory")
	runHere("state", "show", "--state.dir=").wantMistake(t, "nothing is kept")
	runHere("state", "forget", states).wantMistake(t, "--gpu", "--all")
	runHere("state", "forget", "--all", "--gpu=x", states).wantMistake(t, "--all alone")
	kept()
	shows(true, "0000:1b:00.0", "0000:2b:00.0", "45.0 GB/s", "44.0 GB/s to 45.0 GB/s", "580.1", "last seen ACTIVE")
	if r := runHere("state", "show", "--output=json", states); !json.Valid([]byte(r.stdout)) || r.code != exitOK {
		t.Errorf("%+v", r)
	}
	if r := runHere("state", "forget", "--gpu=0000:1B:00.0", states); r.code != exitOK || !strings.Contains(r.stdout, "1 pairs") {
		t.Errorf("%+v", r)
	}
	shows(false, "0000:1b:00.0")
	shows(true, "0000:2b:00.0", "0000:3b:00.0")

	r := serveTree(t, onDisk(t, noRDMA()), states, socket)
	waitUntil(t, "started", func() bool { return strings.Contains(r.stderr.String(), "msg=started") })
	if r := runHere("state", "forget", "--device=mlx5_1", states, socket); r.code != exitOK || !strings.Contains(r.stdout, "2 pairs") {
		t.Errorf("through the daemon: %+v", r)
	}
	shows(false, "0000:2b:00.0", "0000:3b:00.0")
	runHere("state", "forget", "--all", states, "--control.socket=").wantMistake(t, "holds the state", "--control.socket is empty")
	runHere("state", "forget", "--all", states, "--control.socket=/nosuch").wantMistake(t, "holds the state", "no daemon answers at /nosuch")
	r.signal(t, syscall.SIGTERM)
	if r := runHere("state", "forget", "--all", states); r.code != exitOK {
		t.Errorf("after the daemon: %+v", r)
	}
	path := filepath.Join(strings.TrimPrefix(states, "--state.dir="), "state.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"state", "show", states}, {"state", "forget", "--all", states}} {
		if r := runHere(args...); r.code != exitFailure || !strings.Contains(r.stderr, "state.json") {
			t.Errorf("a file that is no state: %+v", r)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/capture/embedded"
	"gdr_exporter/collector/status"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/rdmatest"
)

// checkArgs keep a check away from what runs on this host.
func checkArgs(more ...string) []string {
	return append([]string{"check", "--control.socket=", "--state.dir="}, more...)
}

// checked runs a check in this process and reads its JSON.
func checked(t *testing.T, args ...string) (*status.Check, result) {
	t.Helper()
	r := runHere(checkArgs(append(args, "--output=json")...)...)
	var c status.Check
	if err := json.Unmarshal([]byte(r.stdout), &c); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	if c.ExitCode != r.code {
		t.Errorf("exit code %d, the JSON has %d", r.code, c.ExitCode)
	}
	return &c, r
}

func lineOf(t *testing.T, c *status.Check, group, id string) status.CheckLine {
	t.Helper()
	for i := range c.Groups {
		for _, line := range c.Groups[i].Lines {
			if c.Groups[i].ID == group && line.ID == id {
				return line
			}
		}
	}
	t.Fatalf("no line %s in group %s", id, group)
	return status.CheckLine{}
}

// TestCheckExitCodes: each judgement has its code, and the answer is in the line after
// that which marks the replay.
func TestCheckExitCodes(t *testing.T) {
	t.Parallel()
	binary(t) // built before anything's time runs
	for _, test := range []struct {
		name, answer string
		code         int
		args         []string
	}{
		{"h100-8x8", "GPUDirect RDMA works on 8 of 8 expected pairs (8 measured).", status.CheckExitFine, nil},
		{"acs-on", "works badly on 8 of 8 expected pairs", status.CheckExitWarning, nil},
		{"acs-on", "works badly on 8 of 8 expected pairs", status.CheckExitFine, []string{"--fail-on=critical"}},
		{"gdr-lost", "does NOT work on 1 of 8 expected pairs", status.CheckExitCritical, nil},
		{"gdr-lost", "does NOT work on 1 of 8 expected pairs", status.CheckExitCritical, []string{"--fail-on=critical"}},
		{"soft-roce", "is not judged: this host has no NVIDIA GPU", status.CheckExitNotJudged, nil},
		{"h200-1", "is not judged: this host has no RDMA device", status.CheckExitNotJudged, []string{"--fail-on=critical"}},
	} {
		r := runBriefly(t, checkArgs(append(test.args, "--replay="+test.name)...)...)
		lines := strings.SplitN(r.stdout, "\n", 3)
		if r.code != test.code || len(lines) < 3 || !strings.HasPrefix(lines[0], "Replay of the capture "+test.name) || !strings.Contains(lines[1], test.answer) || r.stderr != "" {
			t.Errorf("%s %q: code %d, stderr %q: %.300s", test.name, test.args, r.code, r.stderr, r.stdout)
		}
		if strings.Contains(r.stdout, "\x1b") {
			t.Errorf("%s: colours without a terminal", test.name)
		}
	}
}

// TestCheckForms: each form is whole, and says the same.
func TestCheckForms(t *testing.T) {
	c, _ := checked(t, "--replay=gdr-lost")
	if c.Schema != "gdr_exporter/check/1" || c.Replay == "" || c.Counts.Critical != 1 || c.Pairs.Staged != 1 || c.Pairs.Direct != 7 || c.Results != "the capture" {
		t.Errorf("%+v", c)
	}
	if line := lineOf(t, c, "driver", "peermem"); line.Status != status.CheckWarning || line.Do == "" {
		t.Errorf("%+v", line)
	}
	r := runHere(checkArgs("--replay=gdr-lost", "--output=junit")...)
	var report struct {
		XMLName  xml.Name `xml:"testsuites"`
		Failures int      `xml:"failures,attr"`
	}
	if err := xml.Unmarshal([]byte(r.stdout), &report); err != nil || report.Failures != 3 || r.code != status.CheckExitCritical {
		t.Errorf("%v: %+v, code %d", err, report, r.code)
	}
	colored := runHere(checkArgs("--replay=gdr-lost", "--color=always")...)
	if !strings.Contains(colored.stdout, "\x1b[1;31mX critical") {
		t.Error("no colour although it is asked for")
	}
}

// TestCheckMistakes: what cannot be done costs one line and a code that is no
// judgement.
func TestCheckMistakes(t *testing.T) {
	t.Parallel()
	binary(t) // built before anything's time runs
	for _, args := range [][]string{
		{"check", "--output=xml"}, {"check", "--timeout=0"}, {"check", "--timeout=x"}, {"check", "--fail-on=info"}, {"check", "--no-such"}, {"--no-such", "check"},
		{"check", "extra"}, {"--log.level=debug", "check", "--replay=none-of-that-name"}, {"--log.level", "info", "check", "--color=red"},
		{"check", "--replay=h100-8x8", "--probe"}, {"check", "--no-collector.path"}, {"check", "--probe", "--no-collector.probe"}, {"check", "--path.sysfs=/none"},
		{"check", "--profile=/none"}, {"nccl-log", "--replay=h100-8x8", "x"},
	} {
		r := runBriefly(t, args...)
		if r.code != exitMistake || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "gdr_exporter: error: ") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	for _, args := range [][]string{{"topo", "--output=xml"}, {"topo", "check"}, {"probe", "--replay=h100-8x8"}} { // these judge nothing
		if r := runBriefly(t, args...); r.code != exitUsage {
			t.Errorf("%q: %+v", args, r)
		}
	}
}

// hangingCapture is a capture of a node on which NVML and a NIC do not answer.
func hangingCapture(t *testing.T) string {
	t.Helper()
	recording, err := embedded.Open("h100-8x8")
	if err != nil {
		t.Fatal(err)
	}
	hung := 0
	for i := range recording.Files {
		if f := &recording.Files[i]; f.Op == capture.OpRead && strings.HasSuffix(f.Path, "/infiniband/mlx5_5/ports/1/counters/port_rcv_data") {
			f.Last, f.First = capture.FileAnswer{Hang: true}, nil
			hung++
		}
	}
	if hung != 1 {
		t.Fatalf("%d of 1 are recorded", hung)
	}
	recording.Scenario = nil // which would have the counter count
	path := filepath.Join(emptyDir(t), "hangs.txt.gz")
	var b bytes.Buffer
	if err := errors.Join(recording.Write(&b), os.WriteFile(path, b.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

// checkedInTime checks what hangs, again if the rest was not read in time either: a
// machine may stall for as long as that.
func checkedInTime(t *testing.T, args ...string) (c *status.Check, r result) {
	t.Helper()
	for range 3 {
		began := time.Now()
		c, r = checked(t, args...)
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("%q took %v", args, took)
		}
		if c.Pairs.Direct == 8 {
			break
		}
	}
	return c, r
}

// TestCheckHang: a device that does not answer is named, and the time is kept; the
// rest is judged all the same.
func TestCheckHang(t *testing.T) {
	t.Parallel()
	path := hangingCapture(t)
	for _, args := range [][]string{{"--scrape.deadline=2s"}, {"--timeout=2s"}} {
		c, r := checkedInTime(t, append(args, "--replay="+path)...)
		if r.code != status.CheckExitNotJudged || !slices.ContainsFunc(c.Unjudged, func(why string) bool { return strings.Contains(why, "reading mlx5_5 (rdma) does not return") }) {
			t.Errorf("%q: code %d, %q", args, r.code, c.Unjudged)
		}
		if c.Pairs.Direct != 8 || lineOf(t, c, "ports", "port/mlx5_4/1").Status != status.CheckOK {
			t.Errorf("%q: %s", args, c.Headline)
		}
	}
}

// TestCheckInterrupted: a signal ends it at once, with a word and without an answer.
func TestCheckInterrupted(t *testing.T) {
	t.Parallel()
	binary(t) // built before anything's time runs
	path := hangingCapture(t)
	for _, end := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		for _, after := range []time.Duration{2 * time.Second, 8 * time.Second, 24 * time.Second} {
			// It hangs by then, or is about to begin. On a busy machine it may not even
			// listen for signals yet: then it just dies of this one.
			if interruptCheck(t, path, end, after) {
				break
			}
			if after == 24*time.Second {
				t.Errorf("%v: it dies of the signal, or takes long to end", end)
			}
		}
	}
}

// interruptCheck sends a signal to a check that hangs, so long after its start. It
// reports whether the check took the signal, and did not just die of it, and was quick.
func interruptCheck(t *testing.T, path string, end syscall.Signal, after time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), after+2*patient)
	defer cancel()
	command := exec.CommandContext(ctx, binary(t), checkArgs("--replay="+path, "--scrape.deadline=2m", "--timeout=4m")...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(after)
	if err := command.Process.Signal(end); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_ = command.Wait()
	if how := command.ProcessState.Sys().(syscall.WaitStatus); how.Signaled() && how.Signal() == end {
		return false
	}
	if code := command.ProcessState.ExitCode(); code != status.CheckExitNotJudged || stdout.Len() > 0 || stderr.String() != "gdr_exporter: interrupted\n" {
		t.Errorf("%v: code %d, %q, %q", end, code, stdout.String(), stderr.String())
	}
	took := time.Since(began)
	t.Logf("%v: it ended after %v", end, took)
	return took <= 5*time.Second
}

// checkedPairs is a running exporter's state: one pair that is well, one that is not.
func checkedPairs(now time.Time, outcome loopback.Outcome) prober.Status {
	s := controlled(now)
	s.Pairs = s.Pairs[:1]
	s.Pairs[0].Full.Judgement.Outcome = outcome
	s.Pairs[0].Full.Judgement.Reasons = []string{"as the test says"}
	s.Pairs[0].Direct = true
	return s
}

// TestCheckOfDaemon: results are the running exporter's, with their age; with --probe
// it measures.
func TestCheckOfDaemon(t *testing.T) {
	root, _ := captureHost(t)
	s := newScene()
	s.status = checkedPairs(time.Now(), loopback.Failed)
	pair := s.status.Pairs[0].Pair
	s.attempts = []prober.Attempt{{Pair: pair, Depth: prober.DepthFull, Result: prober.RunFailed, Text: "as the test says"}}
	socket := s.onSocket(t)
	run := func(args ...string) (*status.Check, result) {
		args = append([]string{"check", "--output=json", "--state.dir=", "--control.socket=" + socket, "--path.sysfs=" + root + "/sys", "--path.procfs=" + root + "/proc", "--path.driver-root=" + root}, args...)
		r := runHere(args...)
		var c status.Check
		if err := json.Unmarshal([]byte(r.stdout), &c); err != nil {
			t.Fatalf("%v: %+v", err, r)
		}
		return &c, r
	}
	c, _ := run()
	if c.Results != "the running exporter" || c.Pairs.Staged != 1 {
		t.Errorf("%+v %q %s", c.Pairs, c.Results, c.Headline)
	}
	if line := lineOf(t, c, "paths", "measurement"); !strings.Contains(line.Seen, "1h0m old; from the running exporter") {
		t.Errorf("%+v", line)
	}
	if took := s.took(); len(took) > 0 {
		t.Errorf("without --probe the exporter was told %q", took)
	}
	c, _ = run("--probe")
	if line := lineOf(t, c, "paths", "measurement"); !strings.Contains(line.Seen, "measured now: 1 failed") {
		t.Errorf("%+v", line)
	}
	if took := s.took(); !slices.Equal(took, []string{`probe "" "" false`}) {
		t.Errorf("with --probe the exporter was told %q", took)
	}
	s.fails = errors.New("quiesced")
	if c, r := run("--probe"); r.code == status.CheckExitFine || !slices.ContainsFunc(c.Unjudged, func(why string) bool { return strings.HasPrefix(why, "measuring: ") }) {
		t.Errorf("%d %q", r.code, c.Unjudged)
	}
}

// TestCheckMeasuresHere: without a daemon it measures by itself, and says why it did
// not where it cannot. What was known before stands then.
func TestCheckMeasuresHere(t *testing.T) {
	root := onDisk(t, rdmatest.HGX(rdmatest.HGXOptions{}).Dir("proc"))
	where := []string{"--path.sysfs=" + root + "/sys", "--path.procfs=" + root + "/proc", "--path.driver-root=" + root, "--no-rdma.netlink"}
	var topology status.Topology
	if r := runHere(append([]string{"topo", "--output=json"}, where...)...); json.Unmarshal([]byte(r.stdout), &topology) != nil || len(topology.Pairs) == 0 {
		t.Fatalf("%+v", r)
	}
	near := topology.Pairs[slices.IndexFunc(topology.Pairs, func(p status.TopologyPair) bool { return p.Nearest })]
	pair := prober.Candidate{Pair: prober.Pair{GPU: near.GPU, Device: near.Device, Port: 1}, Distance: near.Distance, Direct: true}
	full := controlled(time.Now()).Pairs[0].Full
	full.Identity.Kernel = kernelRelease()
	state := emptyDir(t)
	kept := prober.State{Version: 1, Written: time.Now(), BootID: bootID(), Pairs: []prober.PairState{{Candidate: pair, Full: full}}}
	if err := kept.Write(state); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(state, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	r := runHere(append([]string{"check", "--probe", "--output=json", "--state.dir=" + state, "--control.socket=" + state + "/none", "--probe.lock=" + state + "/lock"}, where...)...)
	var c status.Check
	if err := json.Unmarshal([]byte(r.stdout), &c); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	line := lineOf(t, &c, "paths", "measurement")
	if !strings.Contains(line.Seen, "results of 1 pair, 1h0m old; from this command, and where it measured nothing from its state file; measured now: 8 skipped (") {
		t.Errorf("%+v, %q", line, c.Unjudged)
	}
	if r.code != status.CheckExitNotJudged && r.code != status.CheckExitWarning || c.Pairs.Direct != 1 || c.Pairs.Unknown != 7 {
		t.Errorf("code %d: %s", r.code, c.Headline)
	}
	if after, err := os.ReadFile(filepath.Join(state, "state.json")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the state file was written (%v)", err)
	}
}

// TestKeptResults: what was measured now counts, and else what was known.
func TestKeptResults(t *testing.T) {
	now := time.Now()
	old, fresh := controlled(now), controlled(now)
	newer := *old.Pairs[0].Full
	fresh.Pairs[0].Full = &newer
	fresh.Pairs[2].Full, fresh.Pairs[2].Registration = nil, nil
	fresh.Pairs = append(fresh.Pairs, prober.PairStatus{Candidate: prober.Candidate{Pair: prober.Pair{GPU: "0000:5b:00.0", Device: "mlx5_4", Port: 1}}})
	merged := keptResults(&old, &fresh)
	if merged.Pairs[0].Full != &newer || merged.Pairs[2].Full != old.Pairs[2].Full || merged.Pairs[4].Full != nil || fresh.Pairs[2].Full != nil {
		t.Errorf("%+v", merged.Pairs)
	}
	if keptResults(nil, &fresh) != &fresh || keptResults(&old, nil) != nil {
		t.Error("nothing to merge")
	}
}

// TestCheckIsQuick: before each job there is no time for more.
func TestCheckIsQuick(t *testing.T) {
	t.Parallel()
	binary(t) // built before anything's time runs
	best := time.Hour
	for range 3 {
		began := time.Now()
		command := exec.CommandContext(t.Context(), binary(t), checkArgs("--replay=h100-8x8")...)
		if err := command.Run(); err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(began))
		t.Logf("%v, CPU %v", time.Since(began).Round(time.Millisecond), (command.ProcessState.UserTime() + command.ProcessState.SystemTime()).Round(time.Millisecond))
	}
	if best > 5*time.Second {
		t.Errorf("8 GPUs and 8 NICs take %v", best)
	}
}

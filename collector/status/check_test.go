package status

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/capture/embedded"
	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/snapshot/snapshottest"
	"gdr_exporter/rdma"
)

// checkedAt are the times, since the beginning of an embedded capture, at which it is
// looked at where one look after three seconds does not show what it is made for.
var checkedAt = map[string][]time.Duration{
	"driver-mismatch": {3 * time.Second, 6 * time.Second}, "nic-gone": {3 * time.Second, 90 * time.Second},
	"port-flapping": {3 * time.Second, 40 * time.Second}, "h100-8x8-demo": {3 * time.Second, 160 * time.Second},
}

// checkCapture checks an embedded capture with the real readers.
func checkCapture(t testing.TB, name string, change func(*CheckOptions)) *Check {
	t.Helper()
	recording, err := embedded.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	begun := recording.Header.Began
	now := begun
	clock := func() time.Time { return now }
	p := capture.Move(recording, clock)
	defer p.Close()
	taker := snapshottest.Builder(recording, p, clock).
		Expect(profile.Consult(profile.Options{Platforms: profile.Embedded(), Selection: profile.Selection{Device: func(string) bool { return true }}}, nil).Expect).Taker()
	defer taker.Close()
	engine := diagnosis.NewEngine(diagnosis.EngineOptions{Patience: 2 * time.Second})
	var s *snapshot.Snapshot
	var d *diagnosis.Diagnosis
	at := checkedAt[name]
	if at == nil {
		at = []time.Duration{3 * time.Second}
	}
	taker.Take(t.Context(), func(string) bool { return true })
	for _, after := range at {
		now = begun.Add(after)
		s = taker.Take(t.Context(), func(string) bool { return true })
		d = engine.Diagnose(s)
	}
	o := CheckOptions{Version: "0.0.0-test", Replay: "Replay of " + name + ".", Results: "the capture"}
	if s.Prober == nil {
		o.Results = ""
	}
	if change != nil {
		change(&o)
	}
	return NewCheck(s, d, o)
}

// checkCodes are the exit codes that the embedded captures are to give.
var checkCodes = map[string]int{
	"acs-on": CheckExitWarning, "b200-8x8": CheckExitFine, "busy-node": CheckExitFine, "counters-saturated": CheckExitFine,
	"driver-mismatch": CheckExitWarning, "gdr-lost": CheckExitCritical, "h100-8x8": CheckExitFine, "h100-8x8-demo": CheckExitCritical,
	"h200-1": CheckExitNotJudged, "h200-2": CheckExitNotJudged, "nic-gone": CheckExitWarning, "nvlink-down": CheckExitWarning,
	"pcie-downtrained": CheckExitWarning, "port-flapping": CheckExitWarning, "soft-roce": CheckExitNotJudged,
}

// TestCheckGolden: what the command says of every embedded capture, in every form,
// and with which exit code.
func TestCheckGolden(t *testing.T) {
	for _, name := range embedded.Names() {
		t.Run(name, func(t *testing.T) {
			c := checkCapture(t, name, nil)
			if want, known := checkCodes[name]; !known || c.ExitCode != want {
				t.Errorf("exit code %d, want %d (%v): %s", c.ExitCode, want, known, c.Headline)
			}
			wantWhole(t, c)
			var text, document, junit bytes.Buffer
			if err := errors.Join(c.WriteTable(&text, CheckStyle{Width: 110}), c.WriteJSON(&document), c.WriteJUnit(&junit, CheckWarning)); err != nil {
				t.Fatal(err)
			}
			wantWidth(t, text.String(), 110)
			wantJUnit(t, junit.Bytes(), c)
			for form, got := range map[string]*bytes.Buffer{"txt": &text, "json": &document, "xml": &junit} {
				golden(t, "check-"+name+"."+form, got.Bytes())
			}
		})
	}
	files, err := filepath.Glob("testdata/check-*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimPrefix(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), "check-")
		if !slices.Contains(embedded.Names(), name) {
			t.Errorf("%s is of no capture", file)
		}
	}
}

// wantWhole checks what holds of every check.
func wantWhole(t *testing.T, c *Check) {
	t.Helper()
	seen := map[string]bool{}
	clear := 0
	for _, group := range c.Groups {
		for _, line := range group.Lines {
			if seen[group.ID+"/"+line.ID] {
				t.Errorf("line %s is there twice in group %s", line.ID, group.ID)
			}
			seen[group.ID+"/"+line.ID] = true
			if line.Seen == "" || line.Title == "" || checkSigns[line.Status].sign == "" {
				t.Errorf("line %+v", line)
			}
			if worst := worstOf(c, line.Rules); worst != "" && line.Status != worst {
				t.Errorf("line %s is %s, its worst finding %s", line.ID, line.Status, worst)
			}
			for _, rule := range line.Rules {
				if rule.Result == string(diagnosis.ResultClear) {
					clear++
				}
			}
		}
	}
	if rules := c.Counts.Clear + c.Counts.Found + c.Counts.NotJudged; rules != len(diagnosis.Rules()) || clear != c.Counts.Clear {
		t.Errorf("%d rules are counted of %d, %d lines are clear of %d", rules, len(diagnosis.Rules()), clear, c.Counts.Clear)
	}
}

func worstOf(c *Check, rules []CheckRule) CheckStatus {
	worst := CheckStatus("")
	for _, f := range c.Findings {
		if f.Severity != CheckInfo && slices.ContainsFunc(rules, func(r CheckRule) bool { return r.Rule == f.Rule }) {
			worst = worst.worse(f.Severity)
		}
	}
	return worst
}

// TestCheckRules: every rule is in one line, and no line names another.
func TestCheckRules(t *testing.T) {
	lines := map[string]int{}
	for _, group := range checkLayout {
		for _, line := range group.lines {
			for _, rule := range line.rules {
				lines[rule]++
			}
		}
	}
	for _, rule := range diagnosis.Rules() {
		if lines[rule.ID] != 1 {
			t.Errorf("rule %s is in %d lines: it belongs into checkLayout", rule.ID, lines[rule.ID])
		}
		delete(lines, rule.ID)
	}
	if len(lines) > 0 {
		t.Errorf("no such rules: %v", lines)
	}
}

// wantWidth checks that nothing is wider than the terminal or ends with blanks.
func wantWidth(t *testing.T, text string, width int) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if n := len([]rune(line)); n > width && !strings.HasPrefix(line, "GPUDirect RDMA ") {
			t.Errorf("%d columns: %q", n, line)
		}
		if strings.TrimRight(line, " ") != line {
			t.Errorf("blanks at the end of %q", line)
		}
	}
}

// wantJUnit reads the report as another program would and compares its numbers.
func wantJUnit(t *testing.T, document []byte, c *Check) {
	t.Helper()
	decoder := xml.NewDecoder(bytes.NewReader(document))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
	}
	var report junit
	if err := xml.Unmarshal(document, &report); err != nil {
		t.Fatal(err)
	}
	tests, failures, errs, skipped, found := 0, 0, 0, 0, 0
	for _, suite := range report.Suites {
		names := map[string]bool{}
		for _, test := range suite.Cases {
			if names[test.Name] {
				t.Errorf("test case %s is there twice in %s", test.Name, suite.Name)
			}
			names[test.Name] = true
			if test.Failure != nil && !strings.HasPrefix(test.Name, "path/") {
				found++
			}
		}
		tests, failures, errs, skipped = tests+suite.Tests, failures+suite.Failures, errs+suite.Errors, skipped+suite.Skipped
	}
	if report.Tests != tests || report.Failures != failures || report.Errors != errs || report.Skipped != skipped {
		t.Errorf("sums %+v, suites have %d %d %d %d", report, tests, failures, errs, skipped)
	}
	if skipped != c.Counts.NotJudged {
		t.Errorf("%d skipped, %d rules not judged", skipped, c.Counts.NotJudged)
	}
	rules := map[string]bool{}
	for _, f := range c.Findings {
		if f.Severity != CheckInfo {
			rules[f.Rule] = true
		}
	}
	if found != len(rules) || (errs > 0) != (len(c.Unjudged) > 0) {
		t.Errorf("%d rules fail of %d, %d errors with %q", found, len(rules), errs, c.Unjudged)
	}
}

// TestCheckFailOn: from which severity on the exit code is not 0.
func TestCheckFailOn(t *testing.T) {
	critical := func(o *CheckOptions) { o.FailOn = CheckCritical }
	unfinished := func(o *CheckOptions) { o.FailOn, o.Unfinished = CheckCritical, []string{"no time"} }
	for _, test := range []struct {
		capture string
		change  func(*CheckOptions)
		code    int
		status  CheckStatus
	}{
		{"acs-on", critical, CheckExitFine, CheckWarning},
		{"acs-on", unfinished, CheckExitNotJudged, CheckWarning},
		{"gdr-lost", critical, CheckExitCritical, CheckCritical},
		{"gdr-lost", unfinished, CheckExitCritical, CheckCritical},
		{"h100-8x8", unfinished, CheckExitNotJudged, CheckNotJudged},
		{"soft-roce", critical, CheckExitNotJudged, CheckNotJudged},
	} {
		c := checkCapture(t, test.capture, test.change)
		if c.ExitCode != test.code || c.Status != test.status {
			t.Errorf("%s: %d %s, want %d %s", test.capture, c.ExitCode, c.Status, test.code, test.status)
		}
		var text bytes.Buffer
		if err := c.WriteJUnit(&text, CheckCritical); err != nil {
			t.Fatal(err)
		}
		if fails := strings.Contains(text.String(), "<failure "); fails != (test.status == CheckCritical) {
			t.Errorf("%s: JUnit fails: %v", test.capture, fails)
		}
	}
}

// TestCheckUnmeasured: of pairs that nobody measured nothing is said to be well, and
// what is said is what to do.
func TestCheckUnmeasured(t *testing.T) {
	c := checkCapture(t, "h100-8x8", nil)
	if c.ExitCode != CheckExitFine {
		t.Fatal(c.Headline)
	}
	s, d := checkScene(t)
	s.Prober = nil
	for i := range d.Paths {
		d.Paths[i].State, d.Paths[i].Evidence, d.Paths[i].Reasons = diagnosis.StateUnknown, diagnosis.EvidenceNone, []string{"never measured"}
	}
	c = NewCheck(s, d, CheckOptions{})
	if c.ExitCode != CheckExitNotJudged || len(c.Unjudged) != 1 || !strings.Contains(c.Unjudged[0], "check --probe") || !strings.Contains(c.Headline, "is not judged on 1 of 1 expected pair") {
		t.Errorf("%d %q %q", c.ExitCode, c.Headline, c.Unjudged)
	}
	// One pair that is expected and one that is not: the other decides nothing.
	d.Paths[0].State, d.Paths[0].Evidence = diagnosis.StateDirect, diagnosis.EvidenceMeasured
	d.Paths = append(d.Paths, diagnosis.Path{GPU: "0000:02:00.0", Device: "mlx5_9", Port: 1, State: diagnosis.StateUnknown, Evidence: diagnosis.EvidenceNone})
	if c = NewCheck(s, d, CheckOptions{}); c.ExitCode != CheckExitFine || c.Pairs.Total != 1 {
		t.Errorf("%d %q", c.ExitCode, c.Headline)
	}
}

// checkScene is a node with a GPU, a NIC and an expected pair.
func checkScene(t *testing.T) (*snapshot.Snapshot, *diagnosis.Diagnosis) {
	t.Helper()
	s := &snapshot.Snapshot{
		Taken: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		RDMA:  &snapshot.RDMAPart{Units: []snapshot.UnitPart[rdma.Device]{{Name: "mlx5_0", Data: &rdma.Device{Identity: rdma.Identity{Name: "mlx5_0"}}}}},
	}
	return s, &diagnosis.Diagnosis{Paths: []diagnosis.Path{{GPU: "0000:01:00.0", Device: "mlx5_0", Port: 1, Distance: "PIX", Expected: true}}}
}

// TestCheckHang: a device that does not answer is why there is no whole answer.
func TestCheckHang(t *testing.T) {
	s, d := checkScene(t)
	d.Paths[0].State, d.Paths[0].Evidence = diagnosis.StateDirect, diagnosis.EvidenceMeasured
	s.RDMA.Units = append(s.RDMA.Units, snapshot.UnitPart[rdma.Device]{Name: "mlx5_1", StuckFor: 5 * time.Second})
	c := NewCheck(s, d, CheckOptions{})
	if c.ExitCode != CheckExitNotJudged || len(c.Unjudged) != 1 || !strings.Contains(c.Unjudged[0], "reading mlx5_1 (rdma) does not return") {
		t.Errorf("%d %q", c.ExitCode, c.Unjudged)
	}
}

// hostileText is what a driver, a log or a process may have put into a text.
const hostileText = "\x1b[31mred\x1b]0;title\a\r\n]]>&<\x00\xff\u202e"

// TestCheckHostile: no text from a host reaches the terminal, XML or JSON as anything
// but text.
func TestCheckHostile(t *testing.T) {
	s, d := checkScene(t)
	device := s.RDMA.Units[0].Data
	s.RDMA.Units[0].Name, device.Name, device.Driver, device.Firmware = hostileText, hostileText, hostileText, hostileText
	device.Ports = []rdma.Port{{Number: 1, LinkLayer: hostileText, Netdev: hostileText}}
	d.Paths[0].Device, d.Paths[0].State, d.Paths[0].Reasons = hostileText, diagnosis.StateStaged, []string{hostileText}
	d.Findings = []diagnosis.Finding{{
		Rule: "path_staged", Severity: diagnosis.SeverityCritical, Seen: hostileText,
		Subject: diagnosis.Subject{GPU: hostileText, Device: hostileText, Address: hostileText, Other: hostileText, Port: 1},
	}}
	d.Rules = []diagnosis.RuleResult{{Rule: "path_staged", Result: diagnosis.ResultFound}, {Rule: "port_down", Result: diagnosis.ResultNotJudged, Missing: []string{hostileText}}}
	c := NewCheck(s, d, CheckOptions{Replay: hostileText, Results: hostileText, Unfinished: []string{hostileText}})
	if c.ExitCode != CheckExitCritical {
		t.Errorf("exit code %d", c.ExitCode)
	}
	var text, document, junit bytes.Buffer
	if err := errors.Join(c.WriteTable(&text, CheckStyle{}), c.WriteJSON(&document), c.WriteJUnit(&junit, CheckWarning)); err != nil {
		t.Fatal(err)
	}
	control := regexp.MustCompile("[\x00-\x09\x0b-\x1f\x7f\u202e]")
	for form, b := range map[string]*bytes.Buffer{"table": &text, "XML": &junit} {
		if found := control.FindString(b.String()); found != "" {
			t.Errorf("%s has %q: %q", form, found, b)
		}
	}
	var back Check
	if err := json.Unmarshal(document.Bytes(), &back); err != nil {
		t.Error(err)
	}
	var report struct {
		XMLName xml.Name
	}
	if err := xml.Unmarshal(junit.Bytes(), &report); err != nil {
		t.Error(err)
	}
}

// TestCheckStyle: colours are there only if they are asked for, and signs always; the
// width is kept.
func TestCheckStyle(t *testing.T) {
	c := checkCapture(t, "gdr-lost", nil)
	write := func(style CheckStyle) string {
		var b bytes.Buffer
		if err := c.WriteTable(&b, style); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	escape := regexp.MustCompile("\x1b\\[[0-9;]*m")
	plain, colored := write(CheckStyle{Width: 90}), write(CheckStyle{Width: 90, Color: true})
	if strings.Contains(plain, "\x1b") || !strings.Contains(colored, "\x1b[1;31m") {
		t.Error("colours are not as asked for")
	}
	if bare := escape.ReplaceAllString(colored, ""); bare != plain {
		t.Errorf("without its colours the table differs:\n%s\n%s", bare, plain)
	}
	for _, width := range []int{60, 80, 200} {
		wantWidth(t, write(CheckStyle{Width: width}), width)
	}
	wantWidth(t, write(CheckStyle{Width: 1}), checkLeastWidth)
	for _, sign := range []string{" X critical", " ! warning", " + ok", " ? not judged"} {
		if !strings.Contains(plain, sign) {
			t.Errorf("no %q", sign)
		}
	}
	if first, _, _ := strings.Cut(plain[strings.Index(plain, "\n")+1:], "\n"); !strings.Contains(first, "does NOT work on 1 of 8 expected pairs") {
		t.Errorf("the first line is %q", first)
	}
}

// TestCheckEmpty: a Snapshot of nothing is judged to be nothing.
func TestCheckEmpty(t *testing.T) {
	c := NewCheck(&snapshot.Snapshot{}, nil, CheckOptions{})
	if c.ExitCode != CheckExitNotJudged {
		t.Errorf("%d %s", c.ExitCode, c.Headline)
	}
	for _, write := range []func(io.Writer) error{
		func(w io.Writer) error { return c.WriteTable(w, CheckStyle{}) }, c.WriteJSON, func(w io.Writer) error { return c.WriteJUnit(w, CheckWarning) },
	} {
		if err := write(io.Discard); err != nil {
			t.Error(err)
		}
	}
}

// TestCheckSeeds: each command of an inspection by hand, as the project's first
// documents list them, has its line.
func TestCheckSeeds(t *testing.T) {
	lines := map[string]bool{}
	for _, group := range checkLayout {
		for _, line := range group.lines {
			lines[group.id+"/"+line.id] = true
		}
	}
	for command, line := range map[string]string{
		"lsmod | grep nvidia_peermem": "driver/peermem", "modinfo nv_peer_mem": "driver/peermem", "dmesg | grep -i peer": "driver/kernel_log",
		"ibv_devinfo": "ports/states", "ibstatus": "ports/states", "nvidia-smi topo -m": "topology/distance",
		"lspci | grep -i nvidia": "devices/gpus", "lspci | grep -i mellanox": "devices/nics", "lspci -v": "topology/links", "BAR window": "devices/bar1",
		"ip addr (IPoIB)": "host/ipoib", "docker --device /dev/infiniband": "host/device_files", "docker --ulimit memlock": "host/memlock",
		"docker --privileged": "host/context", "docker --network host": "host/context", "openibd": "driver/rdma_core", "uname -r": "driver/kernel",
		"ib_write_bw": "paths/measurement", "all_reduce_perf": "paths/verdicts", "NCCL_IB_CUDA_SUPPORT": "libraries/variables", "is it in use": "libraries/live",
	} {
		if !lines[line] {
			t.Errorf("%s: no line %s", command, line)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	for b.Loop() {
		checkCapture(b, "h100-8x8", nil)
	}
}

// Package slurm_test runs the scripts beside it, and the plugin for Kubernetes' node
// problem detector, with a stand-in for gdr_exporter and with gdr_exporter itself.
package slurm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patient bounds what a script may take on a slow machine.
const patient = 3 * time.Minute

// standIn records how it was called, and does what the files of its directory say:
// check.out and check.code are what its command check prints and ends with.
const standIn = `#!/bin/sh
dir=$(dirname "$(readlink -f "$0")")
echo "$(basename "$0") $*" >>"$dir/calls"
name=$1
[ "$(basename "$0")" = gdr_exporter ] || name=$(basename "$0")-$1-$2
[ ! -e "$dir/$name.hang" ] || { trap '' TERM; sleep 300; }
[ ! -e "$dir/$name.out" ] || cat "$dir/$name.out"
exit "$(cat "$dir/$name.code" 2>/dev/null || echo 0)"
`

// bench is a node with a stand-in for gdr_exporter, and the scripts.
type bench struct {
	t              *testing.T
	dir            string // of programs, first in PATH
	scripts        string // the scripts, as they are installed
	env            []string
	stdout, stderr string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir(), scripts: t.TempDir()}
	b.program("gdr_exporter", standIn)
	for _, name := range []string{"prolog", "epilog", "healthcheck", "gdr-lib.sh", "gdr.nhc", "../node-problem-detector/check-gdr"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(b.scripts, filepath.Base(name)), text, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	b.env = []string{"GDR_CONFIG=" + filepath.Join(b.dir, "config"), "GDR_CHECK_TIMEOUT=1", "SLURM_JOB_ID=4711", "SLURMD_NODENAME=node7"}
	return b
}

func (b *bench) write(name, text string, mode os.FileMode) {
	b.t.Helper()
	// A program that another test starts meanwhile would hold the file open for
	// writing for a moment, in which it could not be run ("text file busy").
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), mode); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) program(name, text string) { b.write(name, text, 0o700) }

// answers says what a command of the stand-in prints, and ends with.
func (b *bench) answers(name, out string, code int) {
	b.write(name+".out", out, 0o600)
	b.write(name+".code", fmt.Sprint(code), 0o600)
}

// run runs a program with the stand-ins first in PATH, and returns its exit code.
func (b *bench) run(program string, args ...string) int {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patient)
	defer cancel()
	command := exec.CommandContext(ctx, program, args...)
	command.Env = append(slices.Clone(b.env), "PATH="+b.dir+":/usr/bin:/bin", "TMPDIR="+b.t.TempDir())
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	b.stdout, b.stderr = stdout.String(), stderr.String()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b.t.Fatalf("%s: %v: %s", program, err, b.stderr)
	}
	return command.ProcessState.ExitCode()
}

func (b *bench) script(name string, args ...string) int {
	b.t.Helper()
	return b.run(filepath.Join(b.scripts, name), args...)
}

// calls are the calls of stand-ins since it was asked last.
func (b *bench) calls() []string {
	path := filepath.Join(b.dir, "calls")
	text, _ := os.ReadFile(path)
	_ = os.Remove(path)
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// report is what gdr_exporter check prints, as far as scripts look at it.
func report(code int, headline string) string {
	return fmt.Sprintf("{\n  \"schema\": \"gdr_exporter/check/1\",\n  \"status\": \"x\",\n  \"exit_code\": %d,\n  \"headline\": \"%s\",\n  \"groups\": []\n}\n", code, headline)
}

const headline = "GPUDirect RDMA does NOT work on 1 of 8 expected pairs."

// answer is what the stand-in's check does.
type answer struct {
	out  string
	code int
}

// harmless are answers that are no finding. Whatever asks must let the node be.
var harmless = map[string]answer{
	"fine":                  {report(0, "all is well"), 0},
	"not judged":            {report(3, "nothing is known"), 3},
	"usage":                 {"", 64},
	"an old version":        {"", 2},
	"a crash of Go":         {"", 2},
	"a crash in the report": {strings.TrimSuffix(report(2, headline), "}\n"), 2},
	"killed":                {report(2, headline), 137},
	"says another code":     {report(0, headline), 2},
	"a replay":              {strings.Replace(report(2, headline), "  \"status\"", "  \"replay\": \"Replay of the capture x.\",\n  \"status\"", 1), 2},
	"another form":          {strings.Replace(report(2, headline), "check/1", "check/2", 1), 2},
	"garbage":               {strings.Repeat("\x00\xff\n", 1000), 2},
	"not to be run":         {report(2, headline), 126},
}

func TestProlog(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.answers("check", report(2, headline), 2)
	if code := b.script("prolog"); code != 1 || !strings.Contains(b.stderr, "job 4711 kept off: "+headline) {
		t.Errorf("critical: code %d, %s", code, b.stderr)
	}
	want := []string{"gdr_exporter ctl quiesce --for 2m", "gdr_exporter check --fail-on=critical --timeout=1s --output=json"}
	if calls := b.calls(); !slices.Equal(calls, want) {
		t.Errorf("calls %q", calls)
	}
	for name, a := range harmless {
		b.answers("check", a.out, a.code)
		if code := b.script("prolog"); code != 0 {
			t.Errorf("%s: code %d, %s", name, code, b.stderr)
		}
	}
	// What becomes of the quiesce is of no importance.
	b.answers("check", report(0, "all is well"), 0)
	for _, code := range []int{1, 2, 4, 139} {
		b.answers("ctl", "", code)
		if code := b.script("prolog"); code != 0 {
			t.Errorf("quiesce: code %d, %s", code, b.stderr)
		}
	}
}

func TestPrologSettings(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	quiesce := "gdr_exporter ctl quiesce --for 2m"
	check := func(severity, timeout string) string {
		return "gdr_exporter check --fail-on=" + severity + " --timeout=" + timeout + " --output=json"
	}
	for config, want := range map[string]struct {
		answer
		exit  int
		calls []string
	}{
		"GDR_DRAIN_ON=warning":      {answer{report(1, "slow"), 1}, 1, []string{quiesce, check("warning", "1s")}},
		"GDR_DRAIN_ON=never":        {answer{report(2, headline), 2}, 0, []string{quiesce}},
		"GDR_DRAIN_ON=sometimes":    {answer{report(2, headline), 2}, 0, []string{quiesce}},
		"GDR_QUIESCE=":              {answer{report(2, headline), 2}, 1, []string{check("critical", "1s")}},
		"GDR_QUIESCE=30s":           {answer{report(2, headline), 2}, 1, []string{"gdr_exporter ctl quiesce --for 30s", check("critical", "1s")}},
		"GDR_CHECK_TIMEOUT=5":       {answer{report(2, headline), 2}, 1, []string{quiesce, check("critical", "5s")}},
		"GDR_CHECK_TIMEOUT=5s":      {answer{report(0, "well"), 0}, 0, []string{quiesce, check("critical", "10s")}},
		"GDR_CHECK_TIMEOUT=$((1/0)": {answer{report(2, headline), 2}, 1, []string{quiesce, check("critical", "1s")}}, // no shell script: not read
		"exit 1":                    {answer{report(2, headline), 2}, 0, []string{""}},
		"set -e; false":             {answer{report(2, headline), 2}, 0, []string{""}},
		": ${NOT_SET?}":             {answer{report(2, headline), 2}, 0, []string{""}},
	} {
		b.write("config", config+"\n", 0o600)
		b.answers("check", want.out, want.code)
		if code, calls := b.script("prolog"), b.calls(); code != want.exit || !slices.Equal(calls, want.calls) {
			t.Errorf("%s: code %d, calls %q: %s", config, code, calls, b.stderr)
		}
	}
}

// TestAbsent: without gdr_exporter, or without the common part, nobody is kept off and
// no node is drained.
func TestAbsent(t *testing.T) {
	t.Parallel()
	for _, missing := range []string{"gdr_exporter", "gdr-lib.sh", "timeout"} {
		b := newBench(t)
		b.answers("check", report(2, headline), 2)
		b.program("scontrol", standIn)
		switch missing {
		case "gdr_exporter":
			_ = os.Remove(filepath.Join(b.dir, missing))
		case "gdr-lib.sh":
			_ = os.Remove(filepath.Join(b.scripts, missing))
		default:
			b.program("timeout", "#!/bin/sh\nexit 127\n")
		}
		for script, want := range map[string]int{"prolog": 0, "epilog": 0, "healthcheck": 0, "check-gdr": 2} {
			if code := b.script(script); code != want {
				t.Errorf("no %s: %s ends with %d: %s", missing, script, code, b.stderr)
			}
		}
		if calls := strings.Join(b.calls(), " "); strings.Contains(calls, "scontrol") {
			t.Errorf("no %s: %s", missing, calls)
		}
	}
}

// TestHang: a check that does not end, and cannot be told to, holds nothing up.
func TestHang(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.env = append(b.env, "GDR_QUIESCE=")
	b.answers("check", report(2, headline), 2)
	b.write("check.hang", "", 0o600)
	began := time.Now()
	if code := b.script("prolog"); code != 0 || !strings.Contains(b.stderr, "not judged") {
		t.Errorf("code %d, %s", code, b.stderr)
	}
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("it takes %v", took)
	}
	// What hangs in a driver cannot be killed: here whoever should kill it is stuck too.
	stuck := filepath.Join(b.dir, "stuck")
	b.program("timeout", "#!/bin/sh\n[ \"$1\" = -k ] || exec /usr/bin/timeout \"$@\"\necho $$ >"+stuck+"\nexec sleep 300\n")
	t.Cleanup(func() {
		text, _ := os.ReadFile(stuck)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	began = time.Now()
	if code := b.script("prolog"); code != 0 || !strings.Contains(b.stderr, "not judged: gdr_exporter check gave no whole report, exit code 124") {
		t.Errorf("code %d, %s", code, b.stderr)
	}
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("it waits for what cannot be killed: %v", took)
	}
}

func TestEpilog(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	outcome := func(outcomes ...string) string {
		text := "[\n"
		for _, o := range outcomes {
			text += "  {\n    \"gpu\": \"x\",\n    \"outcome\": \"" + o + "\",\n    \"paths\": []\n  },\n"
		}
		return text + "]\n"
	}
	for name, test := range map[string]struct {
		answer
		told, drained bool
	}{
		"fine":           {answer{outcome("fine"), 0}, false, false},
		"bad":            {answer{outcome("fine", "slow", "failed"), 3}, true, true},
		"not judged":     {answer{outcome("not_judged"), 4}, false, false},
		"a crash":        {answer{"", 2}, false, false},
		"3 for nothing":  {answer{"", 3}, false, false},
		"3 of no report": {answer{outcome("fine"), 3}, false, false},
	} {
		b.answers("probe", test.out, test.code)
		for config, drains := range map[string]bool{"": false, "GDR_EPILOG_DRAIN=yes": true} {
			b.write("config", config+"\n", 0o600)
			want := 0
			if drains && test.drained {
				want = 1
			}
			if code := b.script("epilog"); code != want || strings.Contains(b.stderr, "after job 4711") != test.told {
				t.Errorf("%s, %q: code %d, %s", name, config, code, b.stderr)
			}
			want1 := []string{"gdr_exporter ctl resume", "gdr_exporter probe --if-idle --timeout 20s --output json"}
			if calls := b.calls(); !slices.Equal(calls, want1) {
				t.Errorf("calls %q", calls)
			}
		}
	}
	b.write("config", "GDR_EPILOG_PROBE=no\n", 0o600)
	if code, calls := b.script("epilog"), b.calls(); code != 0 || !slices.Equal(calls, []string{"gdr_exporter ctl resume"}) {
		t.Errorf("code %d, calls %q", code, calls)
	}
}

func TestHealthCheck(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.program("scontrol", standIn)
	update := "scontrol update NodeName=node7 State=DRAIN Reason=gdr_exporter: " + headline
	node := func(state string) string {
		return "NodeName=node7 Arch=x86_64 State=" + state + " ThreadsPerCore=2 Reason=why DRAIN\n"
	}
	for name, test := range map[string]struct {
		answer
		show answer
		want bool
	}{
		"idle":             {answer{report(2, headline), 2}, answer{node("IDLE"), 0}, true},
		"allocated":        {answer{report(2, headline), 2}, answer{node("ALLOCATED+CLOUD"), 0}, true},
		"drained already":  {answer{report(2, headline), 2}, answer{node("IDLE+DRAIN"), 0}, false},
		"down":             {answer{report(2, headline), 2}, answer{node("DOWN*"), 0}, false},
		"no controller":    {answer{report(2, headline), 2}, answer{"", 1}, false},
		"fine":             {answer{report(0, "well"), 0}, answer{node("IDLE"), 0}, false},
		"a warning, of no": {answer{report(0, "slow"), 0}, answer{node("IDLE"), 0}, false},
	} {
		b.answers("check", test.out, test.code)
		b.answers("scontrol---oneliner-show", test.show.out, test.show.code)
		if code := b.script("healthcheck"); code != 0 {
			t.Errorf("%s: code %d", name, code)
		}
		if calls := b.calls(); slices.Contains(calls, update) != test.want {
			t.Errorf("%s: calls %q", name, calls)
		}
	}
	b.answers("scontrol---oneliner-show", node("IDLE"), 0)
	for name, a := range harmless {
		b.answers("check", a.out, a.code)
		b.script("healthcheck")
		if calls := strings.Join(b.calls(), "\n"); strings.Contains(calls, "scontrol") {
			t.Errorf("%s: %s", name, calls)
		}
	}
}

// TestNHC runs the check as NHC does: sourced, beside functions of NHC's.
func TestNHC(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.env = append(b.env, "GDR_LIB="+filepath.Join(b.scripts, "gdr-lib.sh"))
	const nhc = `
die() { echo "die $*"; }
log() { echo "log $*"; }
dbg() { echo "dbg $*"; }
PATH_BEFORE=$PATH
. "$1" && shift
check_gdr "$@"
code=$?
[[ $PATH == "$PATH_BEFORE" ]] || echo "PATH is another"
exit $code`
	run := func(args ...string) int {
		return b.run("bash", append([]string{"-c", nhc, "nhc", filepath.Join(b.scripts, "gdr.nhc")}, args...)...)
	}
	b.answers("check", report(2, headline), 2)
	if code := run(); code != 1 || b.stdout != "die 1 check_gdr: "+headline+"\n" {
		t.Errorf("critical: code %d, %q %s", code, b.stdout, b.stderr)
	}
	b.calls()
	b.answers("check", report(1, "slow"), 1)
	if code, calls := run("warning"), b.calls(); code != 1 || !strings.Contains(calls[0], "--fail-on=warning") {
		t.Errorf("warning: code %d, calls %q", code, calls)
	}
	for name, a := range harmless {
		b.answers("check", a.out, a.code)
		if code := run(); code != 0 || strings.Contains(b.stdout, "die") || strings.Contains(b.stdout, "PATH") {
			t.Errorf("%s: code %d, %q %s", name, code, b.stdout, b.stderr)
		}
	}
	b.env = append(b.env, "GDR_LIB=/none")
	if code := run(); code != 0 || strings.Contains(b.stdout, "die") {
		t.Errorf("without the common part: code %d, %q", code, b.stdout)
	}
}

// TestNodeProblemDetector: its exit codes are 0 OK, 1 NonOK, 2 Unknown, and what it
// prints is the message of the condition.
func TestNodeProblemDetector(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.answers("check", report(2, headline), 2)
	if code := b.script("check-gdr", "critical"); code != 1 || b.stdout != headline+"\n" {
		t.Errorf("critical: code %d, %q", code, b.stdout)
	}
	b.calls()
	b.answers("check", report(1, "slow"), 1)
	if code, calls := b.script("check-gdr", "warning"), b.calls(); code != 1 || !strings.Contains(calls[0], "--fail-on=warning") {
		t.Errorf("warning: code %d, calls %q", code, calls)
	}
	for name, a := range harmless {
		b.answers("check", a.out, a.code)
		want := 2
		if name == "fine" {
			want = 0
		}
		if code := b.script("check-gdr"); code != want || strings.Count(b.stdout, "\n") != 1 {
			t.Errorf("%s: code %d, %q", name, code, b.stdout)
		}
	}
}

// TestShellcheck: the scripts are clean, as one who maintains them would check them.
func TestShellcheck(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("shellcheck"); err != nil {
		t.Skip("shellcheck is not installed")
	}
	out, err := exec.Command("shellcheck", "-x", "prolog", "epilog", "healthcheck", "gdr-lib.sh", "gdr.nhc", "../node-problem-detector/check-gdr").CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

var program struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if program.dir != "" {
		_ = os.RemoveAll(program.dir)
	}
	os.Exit(code)
}

// binary builds gdr_exporter.
func binary(t *testing.T) string {
	t.Helper()
	program.once.Do(func() {
		if program.dir, program.err = os.MkdirTemp("", "gdr_slurm"); program.err != nil {
			return
		}
		if out, err := exec.Command("go", "build", "-o", program.dir+"/gdr_exporter", "../../cmd/gdr_exporter").CombinedOutput(); err != nil {
			program.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return filepath.Join(program.dir, "gdr_exporter")
}

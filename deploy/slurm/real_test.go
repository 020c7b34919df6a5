package slurm_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// real is a bench with gdr_exporter itself, given further arguments for each command.
func real(t *testing.T, ofCheck string) *bench {
	t.Helper()
	b := newBench(t)
	apart := "--control.socket=" + filepath.Join(b.dir, "control.sock") + " --state.dir="
	b.program("gdr_exporter", `#!/bin/sh
dir=$(dirname "$(readlink -f "$0")")
echo "gdr_exporter $*" >>"$dir/calls"
name=$1
shift
case $name in
check) `+binary(t)+` check `+apart+` `+ofCheck+` "$@" >"$dir/report"; code=$?; sh "$dir/filter" <"$dir/report"; exit $code ;;
probe) exec `+binary(t)+` probe --lock="$dir/probe.lock" "$@" ;;
*) exec `+binary(t)+` "$name" `+apart+` "$@" ;;
esac
`)
	b.write("filter", "cat\n", 0o600)
	b.env = append(b.env, "GDR_CHECK_TIMEOUT=60")
	return b
}

// TestReal: the program's own reports and exit codes are those that the scripts know.
func TestReal(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		replay, severity string
		prolog, plugin   int
	}{
		{"gdr-lost", "critical", 1, 1}, {"acs-on", "critical", 0, 0}, {"acs-on", "warning", 1, 1},
		{"h100-8x8", "warning", 0, 0}, {"soft-roce", "critical", 0, 2},
	} {
		b := real(t, "--replay="+test.replay)
		b.write("config", "GDR_DRAIN_ON="+test.severity+"\n", 0o600)
		// What a replay says is of no node, so it is not acted on,
		if code := b.script("prolog"); code != 0 || !strings.Contains(b.stderr, "not judged") {
			t.Errorf("%s: the replay is taken for this node: code %d, %s", test.replay, code, b.stderr)
		}
		// unless it is made to look as if it were this node's.
		b.write("filter", `sed '/^  "replay": /d'`+"\n", 0o600)
		if code := b.script("prolog"); code != test.prolog {
			t.Errorf("%s, %s: the prolog ends with %d: %s", test.replay, test.severity, code, b.stderr)
		}
		if code := b.script("check-gdr", test.severity); code != test.plugin || !strings.HasPrefix(b.stdout, "GPUDirect RDMA ") {
			t.Errorf("%s, %s: the plugin ends with %d: %q", test.replay, test.severity, code, b.stdout)
		}
	}
}

// TestRealNode: on this machine, without a daemon and as a rule without GPUs, no script
// has anything to say.
func TestRealNode(t *testing.T) {
	t.Parallel()
	b := real(t, "--path.sysfs="+emptySysfs(t))
	for script, want := range map[string]int{"prolog": 0, "check-gdr": 2} {
		if code := b.script(script); code != want {
			t.Errorf("%s: code %d, %q %s", script, code, b.stdout, b.stderr)
		}
	}
	b.program("gdr_exporter", strings.ReplaceAll(readFile(t, filepath.Join(b.dir, "gdr_exporter")), "probe --lock", "probe --path.sysfs="+emptySysfs(t)+" --lock"))
	if code := b.script("epilog"); code != 0 || strings.Contains(b.stderr, "measured") {
		t.Errorf("epilog: code %d, %s", code, b.stderr)
	}
	if calls := strings.Join(b.calls(), "\n"); !strings.Contains(calls, "probe --if-idle --timeout 20s") {
		t.Errorf("calls %s", calls)
	}
	// It is a command line that the program takes.
	if code := b.run(filepath.Join(b.dir, "gdr_exporter"), "probe", "--if-idle", "--timeout", "20s", "--output", "json"); code != 4 || strings.TrimSpace(b.stdout) != "[]" {
		t.Errorf("probe: code %d, %q %s", code, b.stdout, b.stderr)
	}
}

func emptySysfs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "class"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestRealDaemon: the prolog quiesces a running exporter, and the epilog lifts that.
func TestRealDaemon(t *testing.T) {
	t.Parallel()
	sysfs := emptySysfs(t)
	b := real(t, "--path.sysfs="+sysfs)
	b.env = append(b.env, "GDR_EPILOG_PROBE=no")
	socket := filepath.Join(b.dir, "control.sock")
	daemon := exec.Command(binary(t), "serve", "--control.socket="+socket, "--state.dir=", "--probe.interval=0", "--web.listen-address=127.0.0.1:0", "--path.sysfs="+sysfs)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	for deadline := time.Now().Add(patient); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the daemon does not listen")
		}
	}
	quiesced := func() time.Duration {
		t.Helper()
		if code := b.run(filepath.Join(b.dir, "gdr_exporter"), "ctl", "status", "--output", "json"); code != 0 {
			t.Fatalf("code %d, %s", code, b.stderr)
		}
		var state struct {
			Until *time.Time `json:"quiesced_until"`
		}
		if err := json.Unmarshal([]byte(b.stdout), &state); err != nil {
			t.Fatal(err)
		}
		if state.Until == nil {
			return 0
		}
		return time.Until(*state.Until)
	}
	b.env = append(b.env, "GDR_QUIESCE=1h")
	if code := b.script("prolog"); code != 0 {
		t.Errorf("prolog: code %d, %s", code, b.stderr)
	}
	if left := quiesced(); left < time.Minute || left > time.Hour {
		t.Errorf("quiesced for %v", left)
	}
	if code := b.script("epilog"); code != 0 {
		t.Errorf("epilog: code %d, %s", code, b.stderr)
	}
	if left := quiesced(); left != 0 {
		t.Errorf("after the epilog quiesced for %v", left)
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gdr_exporter/collector/status"
)

// kernelCheck is a check by the real program of the real kernel.
type kernelCheck struct {
	environ []string
	user    uint32 // 0: root
	memlock string // limit of locked memory in bytes, "" as it is
}

func (k kernelCheck) run(t *testing.T, args ...string) *status.Check {
	t.Helper()
	command := append([]string{os.Getenv(binaryEnv), "check", "--output=json"}, args...)
	if k.memlock != "" {
		command = append([]string{"prlimit", "--memlock=" + k.memlock + ":" + k.memlock}, command...)
	}
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), k.environ...)
	if k.user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: k.user, Gid: k.user}}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var c status.Check
	if err := json.Unmarshal(stdout.Bytes(), &c); err != nil {
		t.Fatalf("%v: code %d, %s %s", err, cmd.ProcessState.ExitCode(), stdout.String(), stderr.String())
	}
	if code := cmd.ProcessState.ExitCode(); code != c.ExitCode || stderr.Len() > 0 {
		t.Errorf("exit code %d, the JSON has %d; %s", code, c.ExitCode, stderr.String())
	}
	t.Logf("%q: %d %s %q", args, c.ExitCode, c.Headline, c.Unjudged)
	return &c
}

// wantLine expects a line's status, and texts in what it has seen.
func wantLine(t *testing.T, c *status.Check, group, id string, is status.CheckStatus, seen ...string) {
	t.Helper()
	line := lineOf(t, c, group, id)
	if line.Status != is || slices.ContainsFunc(seen, func(part string) bool { return !strings.Contains(line.Seen, part) }) {
		t.Errorf("%s/%s is %s %q, want %s %q", group, id, line.Status, line.Seen, is, seen)
	}
}

// TestInKernelCheck: soft-RoCE devices have no PCI function, so no pair can be
// judged; what there is is seen, with a port that is down, little memory to lock, and
// without root.
func TestInKernelCheck(t *testing.T) {
	inKernel(t)
	alone := []string{"--state.dir=", "--control.socket="}
	c := kernelCheck{}.run(t, alone...)
	if c.ExitCode != status.CheckExitNotJudged || len(c.Unjudged) == 0 {
		t.Errorf("code %d, %q", c.ExitCode, c.Unjudged)
	}
	wantLine(t, c, "ports", "port/rxe5/1", status.CheckOK, "ACTIVE, Ethernet")
	wantLine(t, c, "devices", "nics", status.CheckOK, "6 devices: 6 rdma_rxe")
	wantLine(t, c, "driver", "driver", status.CheckOK, "not loaded")
	wantLine(t, c, "host", "context", status.CheckInfo, "root")
	wantLine(t, c, "driver", "kernel_log", status.CheckInfo)

	link := parentOf(t, "rxe5")
	sh(t, "ip", "link", "set", link, "down")
	within(t, patience, "the port is down", func() bool { return strings.HasPrefix(optionalText(classDir+"/rxe5/ports/1/state"), "1:") })
	c = kernelCheck{memlock: "65536"}.run(t, alone...)
	wantLine(t, c, "ports", "port/rxe5/1", status.CheckInfo, "DOWN")
	wantLine(t, c, "host", "memlock", status.CheckOK, "this process: 64 KiB")
	sh(t, "ip", "link", "set", link, "up")
	within(t, patience, "the port is up", func() bool { return strings.HasPrefix(optionalText(classDir+"/rxe5/ports/1/state"), "4:") })

	c = kernelCheck{user: 65534}.run(t, alone...)
	if c.ExitCode != status.CheckExitNotJudged {
		t.Errorf("without root: code %d", c.ExitCode)
	}
	wantLine(t, c, "host", "context", status.CheckInfo, "not root")
	wantLine(t, c, "driver", "kernel_log", status.CheckNotJudged, "CAP_SYSLOG")
	wantLine(t, c, "ports", "port/rxe5/1", status.CheckOK, "ACTIVE, Ethernet")
}

// parentOf is the network interface of a soft-RoCE device.
func parentOf(t *testing.T, device string) string {
	t.Helper()
	return strings.TrimSpace(readText(t, classDir+"/"+device+"/parent"))
}

// TestInKernelCheckProbe: a check measures by itself where no exporter runs, and has
// the running one measure where one does; without either it does not know.
func TestInKernelCheckProbe(t *testing.T) {
	m := newMeasuring(t, "rxe4")
	check := kernelCheck{environ: m.environ}
	if c := check.run(t, m.args...); c.ExitCode != status.CheckExitNotJudged || c.Pairs.Unknown != 1 {
		t.Errorf("before: code %d, %+v", c.ExitCode, c.Pairs)
	}
	wantMeasured := func(c *status.Check, from string) {
		t.Helper()
		if c.Pairs.Measured != 1 || c.Pairs.Total != 1 || c.Results != from || c.Counts.Critical > 0 {
			t.Errorf("%+v from %q: %+v", c.Pairs, c.Results, c.Findings)
		}
		wantLine(t, c, "paths", "measurement", status.CheckOK, "measured now: 1 fine")
		wantLine(t, c, "paths", "path/"+m.gpu+"/rxe4/1", status.CheckOK, "direct (measured)", "gpu_read", "staged")
	}
	wantMeasured(check.run(t, append(m.args, "--probe", "--timeout=2m")...), "this command")
	m.start()
	wantMeasured(check.run(t, append(m.args, "--probe", "--timeout=2m")...), "the running exporter")
	c := check.run(t, m.args...)
	if c.Results != "the running exporter" || c.Pairs.Measured != 1 {
		t.Errorf("%+v from %q", c.Pairs, c.Results)
	}
	m.end(t)
	if c := check.run(t, m.args...); c.Results != "its state file" || c.Pairs.Measured != 1 {
		t.Errorf("%+v from %q", c.Pairs, c.Results)
	}
}

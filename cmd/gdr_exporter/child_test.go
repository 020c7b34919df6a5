package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/isolate"
	"gdr_exporter/rdma/loopback/prober"
)

// TestProbeChild: the real binary makes a run for a parent, also where all that can
// be said is that there is no such device.
func TestProbeChild(t *testing.T) {
	r := isolate.Runner{
		Path: binary(t), Grace: patient,
		Settings: func(gpu string, _ bool) isolate.GPUSettings { return isolate.GPUSettings{Address: gpu} },
	}
	order := prober.Order{
		Pair: prober.Pair{GPU: "0000:1b:00.0", Device: "none", Port: 1}, Isolated: true,
		Spec: loopback.Spec{Device: "none", Port: 1, SysfsRoot: t.TempDir(), Deadline: patient},
	}
	pid := 0
	order.Started = func(p int) { pid = p }
	e := r.Run(t.Context(), order)
	if e.Hung || e.Crash != "" || pid <= 0 || pid == os.Getpid() {
		t.Fatalf("process %d: %+v", pid, e)
	}
	// A host without libibverbs is a refusal too.
	if reason := e.Result.SkipReason(); reason != loopback.SkipNode && reason != loopback.SkipLibrary {
		t.Errorf("%q, %v", reason, e.Result.Err())
	}
}

// TestProbeChildMisuse: people who find the command are told where to go.
func TestProbeChildMisuse(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminal: ", err)
	}
	defer terminal.Close()
	cmd := exec.Command(binary(t), isolate.ChildCommand)
	cmd.Stdin = terminal
	began := time.Now()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitUsage || !strings.Contains(string(out), "see probe --help") {
		t.Errorf("%v after %v: %s", err, time.Since(began), out)
	}
	cmd = exec.Command(binary(t), isolate.ChildCommand)
	cmd.Stdin = strings.NewReader("hello\n")
	if out, err := cmd.CombinedOutput(); !errors.As(err, &exit) || exit.ExitCode() != exitFailure || strings.Count(string(out), "\n") != 1 {
		t.Errorf("%v: %s", err, out)
	}
}

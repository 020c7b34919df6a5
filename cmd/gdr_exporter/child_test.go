package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/child"
	"gdr_exporter/rdma/loopback/isolate"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/peer/session"
	"gdr_exporter/rdma/peer/verbs"
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

// TestPeerChild: the real binary opens an endpoint for a parent, and outlives what tells
// all processes of a service to end.
func TestPeerChild(t *testing.T) {
	i := verbs.Isolation{Program: child.Program{Path: binary(t)}, Grace: patient}
	opener := verbs.Opener{
		Template: loopback.EndpointSpec{SysfsRoot: t.TempDir()}, Isolation: func() *verbs.Isolation { return &i },
		OpenGPU: func(string) (loopback.GPU, error) { panic("in this process") },
	}
	spec := session.Spec{Port: session.Port{Device: "none", Port: 1}, Memory: session.GPU, GPU: "0000:1b:00.0", Sends: true}
	e, err := opener.Open(t.Context(), spec)
	var f *session.Failure
	if !errors.As(err, &f) || e != nil || f.Reason != session.ReasonRDMA || f.Stage != string(loopback.StageOpen) {
		t.Errorf("%v, %+v", e, err)
	}
	cmd := exec.Command(binary(t), verbs.ChildCommand)
	var said bytes.Buffer
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	within(t, patient, "it ignores SIGTERM", func() bool { return ignoresTerminate(cmd.Process.Pid) })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	in.Close() // the parent is gone
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitFailure || !strings.Contains(said.String(), "order") {
		t.Errorf("%v: %s", err, said.String())
	}
}

// ignoresTerminate reads it from the process's status.
func ignoresTerminate(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, mask, _ := strings.Cut(string(text), "\nSigIgn:\t")
	mask, _, _ = strings.Cut(mask, "\n")
	ignored, err := strconv.ParseUint(mask, 16, 64)
	return err == nil && ignored&(1<<(syscall.SIGTERM-1)) != 0
}

// TestProbeChildMisuse: people who find the commands are told where to go.
func TestProbeChildMisuse(t *testing.T) {
	for command, instead := range map[string]string{isolate.ChildCommand: "see probe --help", verbs.ChildCommand: "see peer --help"} {
		t.Run(command, func(t *testing.T) { childMisused(t, command, instead) })
	}
}

func childMisused(t *testing.T, command, instead string) {
	t.Helper()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminal: ", err)
	}
	defer terminal.Close()
	cmd := exec.Command(binary(t), command)
	cmd.Stdin = terminal
	began := time.Now()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitUsage || !strings.Contains(string(out), instead) {
		t.Errorf("%v after %v: %s", err, time.Since(began), out)
	}
	cmd = exec.Command(binary(t), command)
	cmd.Stdin = strings.NewReader("hello\n")
	if out, err := cmd.CombinedOutput(); !errors.As(err, &exit) || exit.ExitCode() != exitFailure || strings.Count(string(out), "\n") != 1 {
		t.Errorf("%v: %s", err, out)
	}
}

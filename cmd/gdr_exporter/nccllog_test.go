package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/nccllog"
	"gdr_exporter/collector/status"
)

const ncclLogs = "../../collector/nccllog/testdata/"

// Each judgement has its exit code, and the answer is in the first line.
func TestNCCLLog(t *testing.T) {
	t.Parallel()
	binary(t) // built before anything's time runs
	for _, test := range []struct {
		log, first string
		code       int
	}{
		{"nccl-2.18", "GPUDirect RDMA is used: all 16 connections over IB are direct.", nccllog.ExitFine},
		{"one-bad-rail-2.23", "(one bad rail).", nccllog.ExitWarning},
		{"nccl-2.12", "GPUDirect RDMA is NOT used", nccllog.ExitCritical},
		{"truncated", "Not judged", nccllog.ExitNotJudged},
	} {
		r := runBriefly(t, "nccl-log", ncclLogs+test.log+".log")
		first, _, _ := strings.Cut(r.stdout, "\n")
		if r.code != test.code || !strings.Contains(first, test.first) || r.stderr != "" {
			t.Errorf("%s: %+v", test.log, r)
		}
	}
}

func TestNCCLLogJSON(t *testing.T) {
	t.Parallel()
	binary(t) // built before anything's time runs
	r := runBriefly(t, "nccl-log", "--output=json", ncclLogs+"nccl-2.8.log")
	var report nccllog.Report
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || report.Verdict != nccllog.VerdictStaged || r.code != nccllog.ExitCritical {
		t.Errorf("%v: %+v", err, r)
	}
}

// A lone dash is standard input, wherever it stands.
func TestNCCLLogStandardInput(t *testing.T) {
	t.Parallel()
	binary(t) // built before anything's time runs
	log, err := os.ReadFile(ncclLogs + "nccl-2.18.log")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"nccl-log", "-"}, {"nccl-log", "-", "--output", "json"}, {"--log.level=info", "nccl-log", "--output=json", "-"}, {"nccl-log", "--", "-"}} {
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		command := exec.CommandContext(ctx, binary(t), args...)
		command.Stdin = bytes.NewReader(log)
		if r := finish(t, command); r.code != nccllog.ExitFine || !strings.Contains(r.stdout, "GPUDirect RDMA is used") || strings.HasPrefix(r.stdout, "{") != (len(args) > 2 && args[1] != "--") {
			t.Errorf("%q: %+v", args, r)
		}
		cancel()
	}
}

// What cannot be used costs one line and its own code: 2 is a judgement here.
func TestNCCLLogMistakes(t *testing.T) {
	t.Parallel()
	binary(t) // built before anything's time runs
	broken := filepath.Join(t.TempDir(), "x.gz")
	if err := os.WriteFile(broken, []byte("\x1f\x8bnonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"nccl-log", "/none"}, {"nccl-log", t.TempDir()}, {"nccl-log", broken}, {"nccl-log"}, {"nccl-log", "a", "b"}, {"nccl-log", "--output=xml", "a"}, {"--log.level=debug", "nccl-log", "--no-such", "a"}} {
		r := runBriefly(t, args...)
		if r.code != nccllog.ExitUsage || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "gdr_exporter: error: ") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if r := runBriefly(t, "topo", "--output=xml"); r.code != exitUsage {
		t.Errorf("another command: %+v", r)
	}
	if r := runBriefly(t, "nccl-log", "--help"); r.code != exitOK || !strings.Contains(r.stdout, "Example:") {
		t.Errorf("help: %+v", r)
	}
}

// A signal ends the command while nothing comes from standard input.
func TestNCCLLogInterrupted(t *testing.T) {
	t.Parallel()
	binary(t) // built before anything's time runs
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	command := exec.CommandContext(ctx, binary(t), "nccl-log", "-")
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- command.Wait() }()
	for {
		// The signal's default action, before the command takes it over, is an end too.
		if err := command.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		select {
		case <-done:
			return
		case <-ctx.Done():
			t.Fatal("it does not end")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func TestLastDash(t *testing.T) {
	for _, test := range [][2][]string{
		{{"nccl-log", "-", "--output=json"}, {"nccl-log", "--output=json", "--", "-"}}, {{"nccl-log", "x"}, {"nccl-log", "x"}}, {{"nccl-log", "--", "-"}, {"nccl-log", "--", "-"}}, {nil, nil},
	} {
		if got := lastDash(test[0]); !slices.Equal(got, test[1]) {
			t.Errorf("%q: %q", test[0], got)
		}
	}
}

// TestNCCLLogNodeFindings: what the exporter on this node finds stands beside the
// log; without an exporter nothing does, and no word of it.
func TestNCCLLogNodeFindings(t *testing.T) {
	t.Parallel()
	gpu, device := "0000:18:00.0", "mlx5_0"
	socket := filepath.Join(emptyDir(t), "socket")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	fake := &control{stopping: t.Context(), document: func(context.Context) *status.Document {
		return &status.Document{Findings: []status.DocFinding{{
			Rule: "path_staged", Severity: "critical", Title: "it does not work", Seen: "EFAULT\x1b[2J", Subject: status.DocSubject{GPU: &gpu, Device: &device},
		}}}
	}}
	server := &http.Server{Handler: fake.handler(), ReadHeaderTimeout: patient}
	go func() { _ = server.Serve(listener) }()
	defer func() { _ = server.Close() }()
	const log = ncclLogs + "real-2x-h200.log"
	const want = "critical path_staged (GPU 0000:18:00.0, mlx5_0): it does not work: EFAULT"
	if r := runBriefly(t, "nccl-log", "--control.socket="+socket, log); r.code != nccllog.ExitNotJudged || !strings.Contains(r.stdout, want) || strings.Contains(r.stdout, "\x1b") {
		t.Errorf("%d %s\n%s", r.code, r.stderr, r.stdout)
	}
	if r := runBriefly(t, "nccl-log", "--control.socket="+socket+"-none", log); r.code != nccllog.ExitNotJudged || r.stderr != "" || strings.Contains(r.stdout, "path_staged") {
		t.Errorf("%d %s\n%s", r.code, r.stderr, r.stdout)
	}
}

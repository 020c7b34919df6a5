package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/rdmatest"
)

// captureArgs are the flags with which a capture is of a tree, and of no daemon
// unless more says so.
func captureArgs(root string, more ...string) []string {
	args := append([]string{
		"capture", "--path.sysfs=" + root + "/sys", "--path.procfs=" + root + "/proc", "--path.driver-root=" + root,
		"--no-rdma.netlink", "--probe.ledger=" + root + "/no-ledger",
	}, more...)
	for _, none := range []string{"--control.socket=", "--state.dir="} {
		if !strings.Contains(strings.Join(more, " "), none) {
			args = append(args, none)
		}
	}
	return args
}

// captureHost is a tree on disk in which the host's own name is an interface's.
func captureHost(t *testing.T) (root, host string) {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
	tree.MLX5RoCE(rdmatest.Options{Ordinal: 1})
	tree.File("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  (root@"+host+")\n")
	tree.File("proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nTemporaryFilePath: \"/home/hunter2\"\n")
	tree.File("proc/cmdline", "password=hunter2\n")
	return onDisk(t, tree), host
}

// unpacked is the text of a capture.
func unpacked(t *testing.T, archive []byte) string {
	t.Helper()
	compressed, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(compressed)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestCapture takes a capture with the real program: for its owner alone, without
// names, listed first; and replaces no file unasked.
func TestCapture(t *testing.T) {
	t.Parallel()
	root, host := captureHost(t)
	path := filepath.Join(emptyDir(t), "node.txt.gz")
	r := runBriefly(t, captureArgs(root, "-o", path)...)
	if r.code != exitOK || r.stdout != "" {
		t.Fatalf("%+v", r)
	}
	for _, says := range []string{"files", "Pseudonyms: GUID", "Written to " + path, "There are no results of measurements"} {
		if !strings.Contains(r.stderr, says) && !strings.Contains(r.stderr, strings.ReplaceAll(says, "GUID", "MAC address")) {
			t.Errorf("stderr does not say %q: %s", says, r.stderr)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Fatal(info, err)
	}
	archive, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := unpacked(t, archive)
	for _, secret := range []string{"9c63:c003:0000", "9c:63:c0", "hunter2", "@" + host, "cmdline"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s is in the capture", secret)
		}
	}
	if !strings.Contains(text, "580.95.05") || !strings.Contains(text, "node_guid") {
		t.Error("the capture is empty")
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("left beside it: %v, %v", files, err)
	}
	runBriefly(t, captureArgs(root, "-o", path)...).wantMistake(t, path, "--force")
	if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, archive) {
		t.Error("the file has changed")
	}
	if r := runBriefly(t, captureArgs(root, "-o", path, "--force")...); r.code != exitOK {
		t.Errorf("%+v", r)
	}
	if again, err := os.ReadFile(path); err != nil || bytes.Equal(again, archive) {
		t.Error("--force replaced nothing, or pseudonyms are the same each time")
	}
}

// TestCaptureElsewhere: to standard output, as it is, and not at all.
func TestCaptureElsewhere(t *testing.T) {
	t.Parallel()
	root, _ := captureHost(t)
	r := runBriefly(t, captureArgs(root, "-o", "-", "--raw")...)
	if r.code != exitOK {
		t.Fatalf("%+v", r)
	}
	if text := unpacked(t, []byte(r.stdout)); !strings.Contains(text, "9c63:c003:0000") || !strings.Contains(text, "hunter2") || strings.Contains(text, "cmdline") {
		t.Errorf("raw: %.200s", text)
	}
	if !strings.Contains(r.stderr, "identifies this host") {
		t.Error(r.stderr)
	}
	dir := emptyDir(t)
	r = runBriefly(t, captureArgs(root, "-o", filepath.Join(dir, "file"), "--dry-run")...)
	if files, err := os.ReadDir(dir); r.code != exitOK || err != nil || len(files) > 0 || r.stdout != "" || !strings.Contains(r.stderr, "files") {
		t.Errorf("dry run: %+v, %v, %v", r, files, err)
	}
	runBriefly(t, captureArgs(root, "-o", dir)...).wantMistake(t, "directory")
	runBriefly(t, captureArgs(root, "-o", filepath.Join(dir, "none", "file"))...).wantMistake(t, "no such file")
}

// TestCaptureResults: results are the daemon's if it answers, else those of its
// state file.
func TestCaptureResults(t *testing.T) {
	t.Parallel()
	root, _ := captureHost(t)
	pair := prober.Candidate{Pair: prober.Pair{GPU: "0000:1b:00.0", Device: "mlx5_0", Port: 1}, Distance: "PIX"}
	now := time.Now()
	run := &prober.Completed{
		Depth: prober.DepthFull, Time: now, Judgement: loopback.Judgement{Outcome: loopback.Fine},
		Identity: prober.Identity{UUID: "GPU-5c2f8b1e-1234-4abc-8def-0123456789ab", NodeGUID: "946d:ae03:0012:3456"},
	}
	state := emptyDir(t)
	kept := prober.State{Version: 1, Written: now, BootID: bootID(), Pairs: []prober.PairState{{Candidate: pair, Full: run}}}
	if err := kept.Write(state); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(emptyDir(t), "socket")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	fake := &control{prober: shownProber{status: &prober.Status{Interval: time.Hour, Pairs: []prober.PairStatus{{Candidate: pair, Full: run, Mismatches: 4711}}}}, stopping: t.Context()}
	server := &http.Server{Handler: fake.handler(), ReadHeaderTimeout: patient}
	go func() { _ = server.Serve(listener) }()
	defer func() { _ = server.Close() }()

	for _, c := range []struct{ socket, from, holds string }{
		{socket, "the running exporter", `"mismatches":4711`},
		{socket + "-none", "its state file", `"pairs":[`},
	} {
		r := runBriefly(t, captureArgs(root, "-o", "-", "--state.dir="+state, "--control.socket="+c.socket)...)
		if r.code != exitOK || !strings.Contains(r.stderr, "are from "+c.from) {
			t.Errorf("%s: %+v", c.from, r.stderr)
			continue
		}
		text := unpacked(t, []byte(r.stdout))
		if !strings.Contains(text, c.holds) || strings.Contains(text, "5c2f8b1e") || strings.Contains(text, "946d:ae03") {
			t.Errorf("%s: %s", c.from, text)
		}
	}
}

// shownProber shows a status.
type shownProber struct {
	measurer
	status *prober.Status
}

func (p shownProber) Status() *prober.Status { return p.status }

// TestControlResults: the form of the results is that of a capture.
func TestControlResults(t *testing.T) {
	t.Parallel()
	c := &control{prober: shownProber{status: &prober.Status{
		Interval: time.Minute, Runs: map[prober.RunKind]uint64{{Depth: prober.DepthFull, Result: prober.RunFine}: 2},
	}}}
	answer, err := c.results(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	var status capture.ProberStatus
	if err := json.Unmarshal(text, &status); err != nil || status.Interval != time.Minute || len(status.Runs) != 1 || status.Runs[0].Count != 2 {
		t.Errorf("%s, %v", text, err)
	}
}

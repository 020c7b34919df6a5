package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/status"
	"gdr_exporter/gpu/cuda/cudatest"
	"gdr_exporter/rdma/loopback"
)

// probed is how a run of gdr_exporter probe ended.
type probed struct {
	code    int
	reports []status.ProbeReport
	stderr  string
}

// runProbe runs gdr_exporter probe with these settings of the test double of
// libcuda in its environment.
func runProbe(t *testing.T, environment []string, args ...string) probed {
	t.Helper()
	cmd, stdout, stderr := startProbe(t, environment, args...)
	return finishProbe(t, cmd, stdout, stderr)
}

func startProbe(t *testing.T, environment []string, args ...string) (*exec.Cmd, *strings.Builder, *strings.Builder) {
	t.Helper()
	args = append([]string{"probe", standIn, "--output=json"}, args...)
	if !slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--lock=") }) {
		args = append(args, "--lock="+filepath.Join(t.TempDir(), "lock"))
	}
	cmd := exec.Command(os.Getenv(binaryEnv), args...)
	cmd.Env = append(os.Environ(), environment...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, &stdout, &stderr
}

func finishProbe(t *testing.T, cmd *exec.Cmd, stdout, stderr *strings.Builder) probed {
	t.Helper()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	p := probed{code: cmd.ProcessState.ExitCode(), stderr: stderr.String()}
	if err := json.Unmarshal([]byte(stdout.String()), &p.reports); err != nil && stdout.Len() > 0 {
		t.Errorf("%v: %s", err, stdout)
	}
	return p
}

// only is the one report there must be.
func (p probed) only(t *testing.T) *status.ProbeReport {
	t.Helper()
	if len(p.reports) != 1 {
		t.Fatalf("exit code %d, %d reports, %s", p.code, len(p.reports), p.stderr)
	}
	return &p.reports[0]
}

func probePathOf(t *testing.T, r *status.ProbeReport, name string) *status.ProbePath {
	t.Helper()
	i := slices.IndexFunc(r.Paths, func(p status.ProbePath) bool { return p.Path == name })
	if i < 0 {
		t.Fatalf("no path %s: %q", name, r.Reasons)
	}
	return &r.Paths[i]
}

// wantResources checks that a run left nothing in the kernel.
func wantResources(t *testing.T, before string) {
	t.Helper()
	if after := rdmaResources(t); after != before {
		t.Errorf("RDMA resources before %s\nafter %s", before, after)
	}
}

func rdmaResources(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("rdma", "-j", "resource").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestInKernelProbeHost: the host path of real soft-RoCE devices.
func TestInKernelProbeHost(t *testing.T) {
	inKernel(t)
	before := rdmaResources(t)
	dir := t.TempDir()
	p := runProbe(t, nil, "--gpu=none", "--lock="+dir+"/lock")
	if p.code != exitOK || len(p.reports) != 2 || p.stderr != "" {
		t.Fatalf("exit code %d, %d reports, %s", p.code, len(p.reports), p.stderr)
	}
	for i := range p.reports {
		r := &p.reports[i]
		host := probePathOf(t, r, "host")
		if r.Outcome != loopback.Fine || host.BytesPerSecond == nil || host.LatencyMedian == nil || host.CPU == nil || host.Mismatches == nil || *host.Mismatches != 0 || host.Verified == 0 {
			t.Errorf("%+v %+v", r, host)
		}
		t.Logf("%s: %.1f MB/s, latency %.0f us, %.2f CPU s/GB, MTU %d, %s", r.Device, *host.BytesPerSecond/1e6, *host.LatencyMedian*1e6, *host.CPU, r.MTU, r.GIDType)
		if r.GIDType != "RoCE v2" || r.NICDMABuf == nil || *r.NICDMABuf {
			t.Errorf("%s: GID type %q, dma-buf %v", r.Device, r.GIDType, r.NICDMABuf)
		}
	}
	wantResources(t, before)
	// What was moved is there for the daemon.
	ledger, err := loopback.ReadLedger(dir + "/probe.json")
	if err != nil || len(ledger.Transferred) != 2 || ledger.Transferred["rxe0"] != p.reports[0].Transferred || ledger.Transferred["rxe0"] < 1<<20 {
		t.Errorf("%+v, %v", ledger, err)
	}
	e := vmLaunch{args: []string{"--probe.ledger=" + dir + "/probe.json"}}.start(t)
	code, body, err := e.get("/metrics?collect[]=probe")
	line := fmt.Sprintf("gdr_probe_transferred_bytes_total{device=\"rxe0\"} %v\n", float64(ledger.Transferred["rxe0"]))
	if err != nil || code != http.StatusOK || !strings.Contains(string(body), line) {
		t.Errorf("%d, %v: no %q in %s", code, err, line, body)
	}
}

// gpuArgs are those of a run with a GPU of the test double.
func gpuArgs(t *testing.T) (environment, args []string) {
	t.Helper()
	return []string{"DOUBLE_GPUS=" + gdrGPUs[0]},
		[]string{"--gpu=" + gdrGPUs[0], "--device=rxe0", "--path.driver-root=" + cudatest.Build(t), "--timeout=1m"}
}

// TestInKernelProbeGPU: all five paths, with GPU memory that is host memory.
func TestInKernelProbeGPU(t *testing.T) {
	inKernel(t)
	before := rdmaResources(t)
	environment, args := gpuArgs(t)
	p := runProbe(t, environment, args...)
	r := p.only(t)
	if p.code != exitOK && r.Outcome != loopback.Slow || r.Method != "peermem" {
		t.Errorf("exit code %d, outcome %s, %q, method %s", p.code, r.Outcome, r.Reasons, r.Method)
	}
	for _, name := range []string{"host", "gpu_read", "gpu_write", "gpu", "staged"} {
		path := probePathOf(t, r, name)
		if path.BytesPerSecond == nil || path.Mismatches == nil || *path.Mismatches != 0 || path.CPU == nil {
			t.Errorf("%+v", path)
			continue
		}
		t.Logf("%-9s %.1f MB/s, %.2f of host, %.2f CPU s/GB", name, *path.BytesPerSecond/1e6, *path.Ratio, *path.CPU)
	}
	if fmt.Sprint(errnosOf(r)) != "map[dmabuf:EOPNOTSUPP peermem:]" {
		t.Errorf("registrations %v", errnosOf(r))
	}
	wantResources(t, before)
}

func errnosOf(r *status.ProbeReport) map[string]string {
	errnos := map[string]string{}
	for _, registration := range r.Registrations {
		errnos[registration.Method] = registration.Errno
	}
	return errnos
}

// TestInKernelProbeUnregistrable: the kernel's own errno, and staging goes on.
func TestInKernelProbeUnregistrable(t *testing.T) {
	inKernel(t)
	environment, args := gpuArgs(t)
	p := runProbe(t, append(environment, "DOUBLE_UNREGISTRABLE=1"), args...)
	r := p.only(t)
	if p.code != exitProbeBad || r.Outcome != loopback.Failed || errnosOf(r)["peermem"] != "EFAULT" {
		t.Errorf("exit code %d, outcome %s, registrations %v", p.code, r.Outcome, errnosOf(r))
	}
	if staged := probePathOf(t, r, "staged"); staged.BytesPerSecond == nil || staged.Mismatches == nil || *staged.Mismatches != 0 {
		t.Errorf("staged %+v", staged)
	}
	if gpu := probePathOf(t, r, "gpu"); gpu.BytesPerSecond != nil || gpu.Error == "" {
		t.Errorf("gpu %+v", gpu)
	}
}

// TestInKernelProbeCorrupt: a byte that arrives wrong is found and is the worst.
func TestInKernelProbeCorrupt(t *testing.T) {
	inKernel(t)
	environment, args := gpuArgs(t)
	p := runProbe(t, append(environment, "DOUBLE_FLIP=1"), append(args, "--paths=host,gpu")...)
	r := p.only(t)
	if path := probePathOf(t, r, "gpu"); p.code != exitProbeBad || r.Outcome != loopback.Corrupt || path.Mismatches == nil || *path.Mismatches == 0 {
		t.Errorf("exit code %d, outcome %s, %+v", p.code, r.Outcome, path)
	}
	if host := probePathOf(t, r, "host"); host.Mismatches == nil || *host.Mismatches != 0 {
		t.Errorf("host %+v", host)
	}
}

// TestInKernelProbeRefused: what keeps a run from beginning is named, the exit
// code says so, and the next run works.
func TestInKernelProbeRefused(t *testing.T) {
	inKernel(t)
	notJudged := func(what string, p probed, stage, reason string) {
		t.Helper()
		r := p.only(t)
		reasons := strings.Join(r.Reasons, "; ")
		if p.code != exitProbeNotJudged || r.Outcome != loopback.NotJudged || !strings.HasPrefix(reasons, stage+": ") || !strings.Contains(reasons, reason) {
			t.Errorf("%s: exit code %d, outcome %s, %s", what, p.code, r.Outcome, reasons)
		}
	}
	lock, err := os.Create(filepath.Join(t.TempDir(), "held"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	notJudged("locked", runProbe(t, nil, "--gpu=none", "--device=rxe0", "--lock="+lock.Name()), "open", "another run holds the lock")

	environment, args := gpuArgs(t)
	notJudged("no memory", runProbe(t, append(environment, "DOUBLE_FREE=1073741824"), args...), "open", "1024 MiB of its memory are free, 4096 MiB are wanted")
	notJudged("exclusive", runProbe(t, append(environment, "DOUBLE_COMPUTE_MODE=3"), args...), "open", "EXCLUSIVE_PROCESS")

	link := strings.TrimSpace(readText(t, "/sys/class/infiniband/rxe0/parent"))
	sh(t, "ip", "link", "set", link, "down")
	waitUntil(t, "the port is down", func() bool { return strings.Contains(readText(t, "/sys/class/infiniband/rxe0/ports/1/state"), "DOWN") })
	notJudged("port down", runProbe(t, nil, "--gpu=none", "--device=rxe0"), "gate", "DOWN, not ACTIVE")
	sh(t, "ip", "link", "set", link, "up")
	waitUntil(t, "the port is active", func() bool {
		return strings.Contains(readText(t, "/sys/class/infiniband/rxe0/ports/1/state"), "ACTIVE")
	})

	sh(t, "mount", "-t", "tmpfs", "none", "/dev/infiniband")
	notJudged("no device files", runProbe(t, nil, "--gpu=none", "--device=rxe0"), "open", "no such file or directory")
	sh(t, "umount", "/dev/infiniband")
	if p := runProbe(t, nil, "--gpu=none", "--device=rxe0"); p.code != exitOK {
		t.Errorf("afterwards: exit code %d, %+v %s", p.code, p.reports, p.stderr)
	}
}

// TestInKernelProbeInterrupted: Ctrl-C ends a run soon, and nothing is left.
func TestInKernelProbeInterrupted(t *testing.T) {
	inKernel(t)
	before := rdmaResources(t)
	for _, after := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, 900 * time.Millisecond} {
		cmd, stdout, stderr := startProbe(t, nil, "--gpu=none", "--device=rxe0", "--timeout=1m")
		time.Sleep(after)
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		sent := time.Now()
		p := finishProbe(t, cmd, stdout, stderr)
		if took := time.Since(sent); took > 2*time.Second {
			t.Errorf("it took %v to end", took)
		}
		// Before the program listens to signals it simply ends.
		if p.code != exitProbeNotJudged && p.code != exitOK && p.code != -1 {
			t.Errorf("after %v: exit code %d, %s", after, p.code, p.stderr)
		}
		wantResources(t, before)
	}
}

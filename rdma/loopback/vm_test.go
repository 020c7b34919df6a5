package loopback

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/rdma/rdmatest"
)

// The tests TestInKernel... run in the virtual machine that TestKernel of
// cmd/gdr_exporter boots, on soft-RoCE devices rxe0 and rxe1.
func inKernel(t *testing.T) {
	t.Helper()
	if os.Getenv("GDR_IN_KERNEL") == "" {
		t.Skip("runs in the virtual machine that TestKernel of cmd/gdr_exporter boots")
	}
}

// small is a run of all paths that takes about two seconds on soft-RoCE.
func small(device string) Spec {
	return Spec{
		Device: device, BufferSize: 4 << 20, MessageSize: 256 << 10, ChunkSize: 256 << 10, QueuePairs: 2, Depth: 16,
		Bytes: 8 << 20, WarmUp: 1 << 20, EventBytes: 8 << 20, ReadBack: 2 << 20, Latencies: 200,
	}
}

// long is a run of the host path alone that takes many seconds.
func long(device string) Spec {
	spec := small(device)
	spec.Bytes, spec.PhaseTime, spec.Deadline = 1<<40, time.Minute, time.Minute
	return spec
}

func sh(t *testing.T, name string, args ...string) string {
	t.Helper()
	output, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, output)
	}
	return string(output)
}

// within waits for a condition.
func within(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// wantWhole expects of a run that every path has been measured and verified.
func wantWhole(t *testing.T, r Result, paths ...Path) {
	t.Helper()
	if err := r.Err(); err != nil {
		t.Errorf("%v\n%s", err, describe(r))
	}
	var measured []Path
	for _, p := range r.Paths {
		measured = append(measured, p.Path)
		if p.Err != nil || p.Mismatches.Value != 0 || !p.Mismatches.Known || !p.BytesPerSecond.Known ||
			!p.LatencyMedian.Known || !p.LatencyP99.Known || !p.CPUSecondsPerGB.Known || p.Verified == 0 {
			t.Errorf("path %s is not whole:\n%s", p.Path, describe(r))
		}
	}
	if !slices.Equal(measured, paths) {
		t.Errorf("paths %v, want %v", measured, paths)
	}
}

// wantFailure expects the run to have failed in a stage, for a reason.
func wantFailure(t *testing.T, r Result, stage Stage, reason error) {
	t.Helper()
	err := r.Err()
	if err == nil || !strings.HasPrefix(err.Error(), string(stage)) || !errors.Is(err, reason) {
		t.Errorf("error %v, want %v in %s\n%s", err, reason, stage, describe(r))
		return
	}
	t.Logf("%v", err)
}

// wantNext expects that a run works now.
func wantNext(t *testing.T, device string) {
	t.Helper()
	wantWhole(t, Run(t.Context(), small(device)), PathHost)
}

// All five paths, verified; dma-buf is refused by errno; staging costs CPU.
func TestInKernelPaths(t *testing.T) {
	inKernel(t)
	l := newLedger(t)
	spec := small("rxe0")
	spec.OpenGPU = newHostGPU(l).open
	r := Run(t.Context(), spec)
	l.wantEmpty()
	wantWhole(t, r, Paths...)
	if r.Method != MethodPeermem || r.NCCLMethod != MethodPeermem || r.NICDMABuf.Value || !r.NICDMABuf.Known {
		t.Errorf("method %q, NCCL's %q, dma-buf %v", r.Method, r.NCCLMethod, r.NICDMABuf)
	}
	if reg := r.Registrations[1]; reg.Method != MethodDMABuf || !errors.Is(reg.Err, syscall.EOPNOTSUPP) {
		t.Errorf("dma-buf registration: %v", reg.Err)
	}
	if r.GID.Value.Type != typeRoCEv2 || !r.GID.Value.Address.Is4In6() {
		t.Errorf("GID %v", r.GID)
	}
	// The virtual machine's CPU time includes that of the machine's other work.
	for try := 1; r.Paths[4].CPUSecondsPerGB.Value <= r.Paths[3].CPUSecondsPerGB.Value; try++ {
		if try == 5 {
			t.Errorf("staged costs no more CPU time than gpu:\n%s", describe(r))
			break
		}
		r = Run(t.Context(), spec)
	}
	t.Logf("%d bytes transferred, GID %v, MTU %d\n%s", r.TransferredBytes, r.GID.Value, r.MTU, describe(r))
}

// The defaults suit a slow device too: what it cannot move in time is left out.
func TestInKernelDefaults(t *testing.T) {
	inKernel(t)
	r := Run(t.Context(), Spec{Device: "rxe0"})
	wantWhole(t, r, PathHost)
	if !filepath.IsAbs(r.Library) {
		t.Errorf("library %s", r.Library)
	}
	t.Logf("%s, %d bytes\n%s", r.Library, r.TransferredBytes, describe(r))
}

// GPU memory that the kernel cannot pin gives EFAULT, as without nvidia-peermem;
// the staged path is measured all the same.
func TestInKernelUnregistrable(t *testing.T) {
	inKernel(t)
	l := newLedger(t)
	gpu := newHostGPU(l)
	gpu.hidden = true
	spec := small("rxe0")
	spec.OpenGPU = gpu.open
	r := Run(t.Context(), spec)
	l.wantEmpty()
	if r.Err() != nil || r.Method != "" {
		t.Errorf("error %v, method %q", r.Err(), r.Method)
	}
	if !errors.Is(r.Registrations[0].Err, syscall.EFAULT) || !errors.Is(r.Registrations[1].Err, syscall.EOPNOTSUPP) {
		t.Errorf("registrations: %v", r.Registrations)
	}
	for _, p := range r.Paths {
		if p.Path.direct() {
			if !errors.Is(p.Err, ErrNotRegistered) || !errors.Is(p.Err, syscall.EFAULT) || p.BytesPerSecond.Known {
				t.Errorf("%s: %v", p.Path, p.Err)
			}
		} else if p.Err != nil || !p.BytesPerSecond.Known || p.Mismatches.Value != 0 || p.Verified == 0 {
			t.Errorf("%s: %v", p.Path, p.Err)
		}
	}
	t.Log(describe(r))
}

// One wrong byte in GPU memory is found and counted.
func TestInKernelCorrupt(t *testing.T) {
	inKernel(t)
	l := newLedger(t)
	gpu := newHostGPU(l)
	gpu.flip = 1<<20 + 5
	spec := small("rxe0")
	spec.OpenGPU = gpu.open
	r := Run(t.Context(), spec)
	l.wantEmpty()
	for _, p := range r.Paths {
		want := 0
		if p.Path.toGPU() {
			want = 1
		}
		if p.Mismatches.Value != want || !p.Mismatches.Known || errors.Is(p.Err, ErrCorrupt) != (want > 0) {
			t.Errorf("%s: %v, %v", p.Path, p.Mismatches, p.Err)
		}
	}
	wantFailure(t, r, StageVerify, ErrCorrupt)
}

// duringMeasure makes a run do something while it measures the host path.
func duringMeasure(spec Spec, do func()) Spec {
	spec.OnStage = func(stage Stage, path Path) {
		if stage == StageMeasure && path == PathHost {
			time.AfterFunc(200*time.Millisecond, do)
		}
	}
	return spec
}

// A netdev that goes down ends the run with a completion status.
func TestInKernelLinkDown(t *testing.T) {
	inKernel(t)
	began := time.Now()
	r := Run(t.Context(), duringMeasure(long("rxe1"), func() { _ = exec.Command("ip", "link", "set", "veth1", "down").Run() }))
	t.Logf("the run took %v", time.Since(began))
	var failure *Error
	if err := r.Err(); !errors.As(err, &failure) || failure.Status == 0 || r.Paths[0].Stage != StageMeasure {
		t.Errorf("error %v\n%s", err, describe(r))
	} else {
		t.Log(err)
	}
	// soft-RoCE hears of it a moment later: until then the port says ACTIVE.
	within(t, "rxe1 is down", func() bool {
		state, _ := os.ReadFile("/sys/class/infiniband/rxe1/ports/1/state")
		return strings.HasPrefix(string(state), "1:")
	})
	wantFailure(t, Run(t.Context(), small("rxe1")), StageGate, syscall.ENETDOWN)
	sh(t, "ip", "link", "set", "veth1", "up")
	within(t, "rxe1 is active", func() bool {
		state, _ := os.ReadFile("/sys/class/infiniband/rxe1/ports/1/state")
		return strings.HasPrefix(string(state), "4:")
	})
	wantNext(t, "rxe1")
}

// A device that is deleted under a run waits for it, and is gone for the next.
func TestInKernelDelete(t *testing.T) {
	inKernel(t)
	deleted := make(chan time.Time, 1)
	spec := long("rxe1")
	spec.PhaseTime = time.Second
	r := Run(t.Context(), duringMeasure(spec, func() {
		_ = exec.Command("rdma", "link", "delete", "rxe1").Run()
		deleted <- time.Now()
	}))
	ended := r.Started.Add(r.Duration)
	wantWhole(t, r, PathHost)
	t.Logf("the delete returned %v after the run", (<-deleted).Sub(ended))
	wantFailure(t, Run(t.Context(), small("rxe1")), StageOpen, syscall.ENOENT)
	sh(t, "rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "veth1")
	within(t, "rxe1 is active", func() bool {
		state, _ := os.ReadFile("/sys/class/infiniband/rxe1/ports/1/state")
		return strings.HasPrefix(string(state), "4:")
	})
	wantNext(t, "rxe1")
}

// A netdev that is deleted takes the device with it; the run ends with a
// completion status, and the deletion waits for it.
func TestInKernelNetdevDeleted(t *testing.T) {
	inKernel(t)
	deleted := make(chan time.Time, 1)
	r := Run(t.Context(), duringMeasure(long("rxe1"), func() {
		_ = exec.Command("ip", "link", "delete", "veth1").Run()
		deleted <- time.Now()
	}))
	ended := r.Started.Add(r.Duration)
	var failure *Error
	if err := r.Err(); !errors.As(err, &failure) || failure.Status == 0 {
		t.Errorf("error %v\n%s", err, describe(r))
	}
	t.Logf("%v; the deletion returned %v after the run", r.Err(), (<-deleted).Sub(ended))
	wantFailure(t, Run(t.Context(), small("rxe1")), StageOpen, syscall.ENOENT)
	sh(t, "ip", "link", "add", "veth1", "mtu", "9000", "type", "veth", "peer", "name", "veth1p", "mtu", "9000")
	sh(t, "ip", "addr", "add", "10.77.1.1/24", "dev", "veth1")
	sh(t, "ip", "link", "set", "veth1", "up")
	sh(t, "ip", "link", "set", "veth1p", "up")
	sh(t, "rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "veth1")
	within(t, "rxe1 is active", func() bool {
		state, _ := os.ReadFile("/sys/class/infiniband/rxe1/ports/1/state")
		return strings.HasPrefix(string(state), "4:")
	})
	wantNext(t, "rxe1")
}

// killer destroys the peer of the first queue pair before the rate is measured.
type killer struct {
	verbs
	qps    []queuePair
	killed handle
	writes int
}

func (k *killer) createQP(pd, cq handle, depth, receives int) (queuePair, error) {
	qp, err := k.verbs.createQP(pd, cq, depth, receives)
	k.qps = append(k.qps, qp)
	return qp, err
}

func (k *killer) transfer(t transfer, l limits) (progress, error) {
	if k.writes++; k.writes == 2 {
		k.killed = k.qps[1].qp
		_ = k.verbs.destroyQP(k.killed)
	}
	return k.verbs.transfer(t, l)
}

func (k *killer) destroyQP(qp handle) error {
	if qp == k.killed {
		return nil
	}
	return k.verbs.destroyQP(qp)
}

// A queue pair whose peer is gone ends the run by retries, within a second.
func TestInKernelPeerGone(t *testing.T) {
	inKernel(t)
	r := runOnThread(t.Context(), small("rxe0"), func(dirs []string) (verbs, string, error) {
		v, path, err := loadLibrary(dirs)
		return &killer{verbs: v}, path, err
	})
	var failure *Error
	if err := r.Err(); !errors.As(err, &failure) || failure.Status != 12 || r.Paths[0].Stage != StageMeasure {
		t.Errorf("error %v, want IBV_WC_RETRY_EXC_ERR\n%s", err, describe(r))
	}
	t.Logf("%v, after %v", r.Err(), r.Duration)
	wantNext(t, "rxe0")
}

// A stop and a deadline end a run at once, and leave nothing.
func TestInKernelStop(t *testing.T) {
	inKernel(t)
	ctx, cancel := context.WithCancel(t.Context())
	r := Run(ctx, duringMeasure(long("rxe0"), cancel))
	wantFailure(t, r, StageMeasure, syscall.ECANCELED)
	spec := long("rxe0")
	spec.Deadline = time.Second
	timedOut := Run(t.Context(), spec)
	wantFailure(t, timedOut, StageMeasure, syscall.ETIMEDOUT)
	if r.Duration > 2*time.Second || timedOut.Duration > 2*time.Second {
		t.Errorf("took %v and %v", r.Duration, timedOut.Duration)
	}
	l := newLedger(t)
	spec = small("rxe0")
	spec.OpenGPU, spec.Paths = newHostGPU(l).open, []Path{PathStaged}
	spec.Bytes, spec.PhaseTime, spec.Deadline = 1<<40, time.Minute, time.Second
	wantFailure(t, Run(t.Context(), spec), StageMeasure, syscall.ETIMEDOUT)
	l.wantEmpty()
	wantNext(t, "rxe0")
}

// What is slow is measured over what it moves in the time of a phase.
func TestInKernelPhaseTime(t *testing.T) {
	inKernel(t)
	spec := long("rxe0")
	spec.PhaseTime = 300 * time.Millisecond
	r := Run(t.Context(), spec)
	wantWhole(t, r, PathHost)
	t.Logf("%v for %d bytes", r.Duration, r.TransferredBytes)
}

func TestInKernelLock(t *testing.T) {
	inKernel(t)
	spec := small("rxe0")
	spec.LockPath = LockPath
	var second Result
	third := spec
	spec = duringMeasure(spec, nil)
	spec.OnStage = func(stage Stage, _ Path) {
		if stage == StageMeasure {
			second = Run(t.Context(), third)
		}
	}
	wantWhole(t, Run(t.Context(), spec), PathHost)
	wantFailure(t, second, StageOpen, ErrLocked)
	if text := second.Err().Error(); !strings.Contains(text, fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("%s: without the pid", text)
	}
	wantWhole(t, Run(t.Context(), third), PathHost)
}

// helperEnv has the Spec of a run in a process of its own.
const helperEnv = "LOOPBACK_HELPER"

// TestHelperRun is that process: not a test.
func TestHelperRun(t *testing.T) {
	text := os.Getenv(helperEnv)
	if text == "" {
		return
	}
	var spec Spec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		t.Fatal(err)
	}
	r := Run(t.Context(), spec)
	fmt.Printf("outcome: %v\n", r.Err())
}

// inHelper runs a Spec in a process that a shell command starts as "$@".
func inHelper(t *testing.T, spec Spec, command string) string {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", command, "sh", os.Args[0], "-test.run", "^TestHelperRun$")
	cmd.Env = append(os.Environ(), helperEnv+"="+string(text))
	output, _ := cmd.CombinedOutput()
	for line := range strings.Lines(string(output)) {
		if outcome, found := strings.CutPrefix(line, "outcome: "); found {
			t.Logf("%s: %s", command, outcome)
			return strings.TrimSpace(outcome)
		}
	}
	t.Fatalf("%s:\n%s", command, output)
	return ""
}

const asNobody = `setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all "$@"`

// What an ordinary user, or a container, lacks has a name.
func TestInKernelPrivileges(t *testing.T) {
	inKernel(t)
	tiny := small("rxe0")
	tiny.QueuePairs, tiny.BufferSize, tiny.MessageSize, tiny.ChunkSize, tiny.ReadBack = 1, 16<<10, 8<<10, 8<<10, 16<<10
	big := tiny
	big.BufferSize = 128 << 10
	want := func(outcome string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(outcome, part) {
				t.Errorf("%s: without %q", outcome, part)
			}
		}
	}
	want(inHelper(t, tiny, `ulimit -l 64; `+asNobody), "<nil>")
	want(inHelper(t, big, `ulimit -l 64; `+asNobody), "register: ", "ibv_reg_mr: ENOMEM")

	sh(t, "chmod", "600", "/dev/infiniband/uverbs0")
	want(inHelper(t, tiny, asNobody), "open: ", "/dev/infiniband/uverbs0", "permission denied")
	sh(t, "chmod", "666", "/dev/infiniband/uverbs0")

	sh(t, "mount", "-t", "tmpfs", "none", "/dev/infiniband")
	wantFailure(t, Run(t.Context(), tiny), StageOpen, syscall.ENOENT)
	sh(t, "umount", "/dev/infiniband")

	library, err := filepath.EvalSymlinks("/usr/lib/x86_64-linux-gnu/" + libraryName)
	if err != nil {
		t.Fatal(err)
	}
	sh(t, "mount", "--bind", "/dev/null", library)
	want(inHelper(t, tiny, `"$@"`), "open: ", "no usable libibverbs.so.1")
	sh(t, "umount", library)
	wantNext(t, "rxe0")
}

// held is what this process and the kernel hold.
type held struct {
	files, threads int
	resources      string
	rss            int
}

func holding(t *testing.T) held {
	t.Helper()
	debug.FreeOSMemory()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	rss, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return held{len(files), len(threads), sh(t, "rdma", "-j", "resource"), rss}
}

// leakRunsEnv is how often to run for the leak check; default 100.
const leakRunsEnv = "LOOPBACK_LEAK_RUNS"

// Many runs leave nothing behind, with GPU memory that can be registered and
// with some that cannot.
func TestInKernelLeaks(t *testing.T) {
	inKernel(t)
	runs := 100
	if text := os.Getenv(leakRunsEnv); text != "" {
		runs, _ = strconv.Atoi(text)
	}
	l := newLedger(t)
	gpu := newHostGPU(l)
	spec := Spec{
		Device: "rxe0", OpenGPU: gpu.open, BufferSize: 64 << 10, MessageSize: 16 << 10, ChunkSize: 16 << 10, QueuePairs: 2, Depth: 8,
		Bytes: 128 << 10, WarmUp: 32 << 10, EventBytes: 64 << 10, ReadBack: 64 << 10, Latencies: 10,
	}
	round := func(n int) {
		for i := range n {
			gpu.hidden, l.calls = i%2 == 1, nil
			if err := Run(t.Context(), spec).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	round(10)
	before := holding(t)
	began := time.Now()
	round(runs)
	after := holding(t)
	l.wantEmpty()
	t.Logf("%d runs in %v: files %d and %d, threads %d and %d, RSS %d and %d kB, %s", runs, time.Since(began).Round(time.Millisecond),
		before.files, after.files, before.threads, after.threads, before.rss, after.rss, strings.TrimSpace(after.resources))
	if after.files > before.files || after.threads > before.threads+3 || after.resources != before.resources || after.rss > before.rss+4<<10 {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// perftest runs a client and a server of one of its programs on two devices, and
// returns the client's line of results.
func perftest(t *testing.T, program string, devices [2]string, args ...string) []string {
	t.Helper()
	const attempts = 3 // it ends at any trouble, and soft-RoCE makes some on a busy machine
	for n := 1; ; n++ {
		fields, err := perftestOnce(t, program, devices, args...)
		switch {
		case err == nil:
			return fields
		case n == attempts:
			t.Fatal(err)
		}
		t.Log(err)
	}
}

func perftestOnce(t *testing.T, program string, devices [2]string, args ...string) ([]string, error) {
	t.Helper()
	const port = 18600
	args = append([]string{"-F", "-x", "1", "-p", strconv.Itoa(port)}, args...)
	server := exec.Command(program, append(args, "-d", devices[1])...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill() // it waits for a client for ever; nothing if it has ended
		_ = server.Wait()
	}()
	within(t, program+" listens", func() bool { return rdmatest.Listens(port) })
	output, err := exec.Command(program, append(args, "-d", devices[0], net.IPv4(127, 0, 0, 1).String())...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", program, err, output)
	}
	scanner, header := bufio.NewScanner(bytes.NewReader(output)), false
	for scanner.Scan() {
		if header {
			return strings.Fields(scanner.Text()), nil
		}
		header = strings.HasPrefix(strings.TrimSpace(scanner.Text()), "#bytes")
	}
	return nil, fmt.Errorf("%s:\n%s", program, output)
}

// roundsEnv makes the comparison with perftest have so many rounds.
const roundsEnv = "LOOPBACK_ROUNDS"

// The host path is about as fast as perftest's ib_write_bw, which alternates
// with it. A busy machine halves single rounds of either: so rounds go on until
// the best of each tell, and what is then judged leaves room for neighbours: an
// idle machine shows at least 1.0.
func TestInKernelPerftest(t *testing.T) {
	inKernel(t)
	fixed, _ := strconv.Atoi(os.Getenv(roundsEnv))
	itself := [2]string{"rxe0", "rxe0"}
	c := comparison{message: 64 << 10, pairs: 1, bytes: 64 << 20, devices: itself, measure: hostPathRate}
	c.run(t, fixed)
	c = comparison{message: 1 << 20, pairs: 4, bytes: 64 << 20, devices: itself, measure: hostPathRate}
	c.run(t, fixed)

	lat := perftest(t, "ib_write_lat", itself, "-s", "8", "-n", "1000")
	r := Run(t.Context(), small("rxe0"))
	t.Logf("8 bytes: ib_write_lat, half a round trip: typical %s, 99%% %s µs; loopback, post to completion: median %v, p99 %v",
		lat[4], lat[7], r.Paths[0].LatencyMedian.Value, r.Paths[0].LatencyP99.Value)
}

// comparison is of the host path, or of endpoints, with ib_write_bw, in MiB/s.
type comparison struct {
	message, pairs, bytes int
	devices               [2]string // of client and server
	measure               func(*testing.T, *comparison) float64
	ours, theirs          []float64
}

func (c *comparison) run(t *testing.T, fixed int) {
	const least, most, enough, tolerable = 2, 6, 0.95, 0.85
	for n := 1; n <= max(fixed, most); n++ {
		c.round(t)
		if n == fixed || fixed == 0 && len(c.ours) >= least && c.ratio(slices.Max) >= enough {
			break
		}
	}
	if len(c.ours) == 0 {
		t.Fatal("no round of ib_write_bw has shown a rate")
	}
	t.Logf("%d bytes, %d queue pairs, %d rounds: ib_write_bw %.1f, this %.1f MiB/s; medians %.1f and %.1f: ratio %.3f; best ratio %.3f",
		c.message, c.pairs, len(c.ours), c.theirs, c.ours, median(c.theirs), median(c.ours), c.ratio(median), c.ratio(slices.Max))
	if ratio := c.ratio(slices.Max); ratio < tolerable {
		t.Errorf("the best round is %.3f of ib_write_bw's best", ratio)
	}
}

func (c *comparison) ratio(of func([]float64) float64) float64 { return of(c.ours) / of(c.theirs) }

func (c *comparison) round(t *testing.T) {
	fields := perftest(t, "ib_write_bw", c.devices, "-s", strconv.Itoa(c.message), "-q", strconv.Itoa(c.pairs),
		"-t", "128", "-n", strconv.Itoa(c.bytes/c.message/c.pairs))
	their, err := strconv.ParseFloat(fields[3], 64)
	if err != nil {
		t.Fatal(fields)
	}
	if their == 0 { // perftest says so now and then, when it has moved everything
		t.Logf("ib_write_bw: %v", fields)
		return
	}
	c.ours = append(c.ours, c.measure(t, c))
	c.theirs = append(c.theirs, their)
}

// hostPathRate is what a run of the host path shows.
func hostPathRate(t *testing.T, c *comparison) float64 {
	t.Helper()
	// perftest writes the same message over and over, too.
	r := Run(t.Context(), Spec{
		Device: "rxe0", BufferSize: c.message * c.pairs, MessageSize: c.message, ChunkSize: c.message, QueuePairs: c.pairs, Depth: 128,
		Bytes: uint64(c.bytes), WarmUp: 4 << 20, EventBytes: 4 << 20, Latencies: 10, PhaseTime: 20 * time.Second, Deadline: time.Minute,
	})
	wantWhole(t, r, PathHost)
	return r.Paths[0].BytesPerSecond.Value / (1 << 20)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

//go:embed loopback.c loopback.h testdata/harness.c
var sources embed.FS

// The C under AddressSanitizer and UBSan, without Go: whole transfers and every
// early end.
func TestInKernelSanitizer(t *testing.T) {
	inKernel(t)
	dir := t.TempDir()
	for _, name := range []string{"loopback.c", "loopback.h", "testdata/harness.c"} {
		text, err := sources.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	harness := dir + "/harness"
	sh(t, "gcc", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
		"-o", harness, dir+"/harness.c", dir+"/loopback.c", "-ldl")
	gids, err := newPortFiles("/sys", "rxe0", 1).gids()
	if err != nil {
		t.Fatal(err)
	}
	gid, err := chooseGID(gids)
	if err != nil {
		t.Fatal(err)
	}
	raw := gid.Address.As16()
	t.Log(sh(t, harness, "rxe0", strconv.Itoa(gid.Index), hex.EncodeToString(raw[:]), "5"))
}

// Slices of all paths in turn, on the real stack; and the registration alone, with
// the port down.
func TestInKernelSlices(t *testing.T) {
	inKernel(t)
	l := newLedger(t)
	spec := small("rxe0")
	spec.OpenGPU, spec.Slices, spec.PhaseTime, spec.Deadline = newHostGPU(l).open, 4, time.Minute, time.Minute
	r := Run(t.Context(), spec)
	l.wantEmpty()
	wantWhole(t, r, Paths[:4]...)
	wantOnce(t, r)
	for _, p := range r.Paths {
		t.Logf("%-9s %.2f of host", p.Path, p.Ratio.Value)
		if !p.Ratio.Known || p.Bytes != spec.Bytes {
			t.Errorf("%+v", p)
		}
	}
}

func TestInKernelRegisterOnly(t *testing.T) {
	inKernel(t)
	state := func(prefix string) func() bool {
		return func() bool {
			text, _ := os.ReadFile("/sys/class/infiniband/rxe1/ports/1/state")
			return strings.HasPrefix(string(text), prefix)
		}
	}
	sh(t, "ip", "link", "set", "veth1", "down")
	within(t, "rxe1 is down", state("1:"))
	for _, hidden := range []bool{false, true} {
		l := newLedger(t)
		gpu := newHostGPU(l)
		gpu.hidden = hidden
		spec := small("rxe1")
		spec.OpenGPU, spec.RegisterOnly = gpu.open, true
		r := Run(t.Context(), spec)
		l.wantEmpty()
		j := Judge(&r, true, DefaultLimits)
		if want := map[bool]Outcome{false: Fine, true: Failed}[hidden]; r.Err() != nil || j.Outcome != want || r.TransferredBytes > 0 {
			t.Errorf("%+v\n%s", j, describe(r))
		}
		t.Logf("%v, %+v", r.Duration, j)
	}
	sh(t, "ip", "link", "set", "veth1", "up")
	within(t, "rxe1 is active", state("4:"))
}

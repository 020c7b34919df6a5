package isolate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// longest is more than any child of a test needs on a busy machine.
const longest = time.Minute

func orderOf(isolated bool) prober.Order {
	return prober.Order{
		Pair:     prober.Pair{GPU: "0000:1b:00.0", Device: "mlx5_0", Port: 1},
		Spec:     loopback.Spec{Device: "mlx5_0", Port: 1, Deadline: longest, GID: sysread.Some(3), LibraryDirs: []string{"/a", "/b"}},
		Isolated: isolated,
	}
}

// runnerOf runs children of a mode, and in this process the same run.
func runnerOf(mode string) *Runner {
	return &Runner{
		Open: openNothing, Args: []string{"child", mode}, Environ: os.Environ, Grace: 200 * time.Millisecond, run: runs[mode],
		Settings: func(gpu string, registerOnly bool) GPUSettings {
			return GPUSettings{Address: gpu, Roots: []string{"/r", fmt.Sprint(registerOnly)}, MinFree: 1 << 32}
		},
	}
}

// both runs a test in this process and in a child.
func both(t *testing.T, test func(t *testing.T, isolated bool)) {
	for _, isolated := range []bool{false, true} {
		t.Run(fmt.Sprintf("isolated=%v", isolated), func(t *testing.T) { test(t, isolated) })
	}
}

// TestRunner: order and result arrive, stages are told, and by which process.
func TestRunner(t *testing.T) {
	both(t, func(t *testing.T, isolated bool) {
		order := orderOf(isolated)
		var mu sync.Mutex
		var told []string
		order.Spec.OnStage = func(stage loopback.Stage, path loopback.Path) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprint(stage, " ", path))
		}
		pid := 0
		order.Started = func(p int) { pid = p }
		e := runnerOf("good").Run(t.Context(), order)
		spec := order.Spec
		spec.OnStage = func(loopback.Stage, loopback.Path) {}
		want := goodResult(spec)
		if err := e.Result.Registrations[0].Err; !errors.Is(err, syscall.EFAULT) || !errors.Is(e.Result.Paths[0].Err, loopback.ErrCorrupt) {
			t.Errorf("%v, %v", err, e.Result.Paths[0].Err)
		}
		e.Result.Registrations[0].Err, e.Result.Paths[0].Err = want.Registrations[0].Err, want.Paths[0].Err
		if !reflect.DeepEqual(e, prober.Ending{Result: want}) {
			t.Errorf("%+v, want %+v", e, want)
		}
		if !slices.Equal(told, []string{"open ", "measure gpu"}) || (pid == os.Getpid()) == isolated || pid <= 0 {
			t.Errorf("process %d told %q", pid, told)
		}
	})
}

// TestSettings: the GPU is opened as the settings say; host memory alone needs none.
func TestSettings(t *testing.T) {
	both(t, func(t *testing.T, isolated bool) {
		order := orderOf(isolated)
		order.Spec.RegisterOnly = true
		e := runnerOf("opens").Run(t.Context(), order)
		const want = "open: 0000:1b:00.0 [/r true] 4294967296: no usable libibverbs.so.1"
		if err := e.Result.Err(); err == nil || err.Error() != want || !errors.Is(err, loopback.ErrNoLibrary) {
			t.Errorf("%v, want %s", err, want)
		}
		order.GPU = ""
		r := runnerOf("good")
		r.Settings, r.Open = nil, nil
		if e := r.Run(t.Context(), order); e.Result.Device != "mlx5_0" {
			t.Errorf("%+v", e)
		}
	})
}

// TestStopped: a run that listens ends soon after its context, with its result.
func TestStopped(t *testing.T) {
	both(t, func(t *testing.T, isolated bool) {
		ctx, cancel := context.WithCancel(t.Context())
		order := orderOf(isolated)
		order.Spec.OnStage = func(loopback.Stage, loopback.Path) { cancel() }
		r := runnerOf("stoppable")
		r.Grace = longest
		if e := r.Run(ctx, order); e.Hung || e.Crash != "" || !errors.Is(e.Result.Err(), syscall.ECANCELED) || e.Result.Stages[0].Stage != loopback.StageMeasure {
			t.Errorf("%+v", e)
		}
	})
}

// TestStoppedEarly: a child that is told to end before it listens was stopped, too:
// it did not crash.
func TestStoppedEarly(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := runnerOf("good")
	// It resets SIGTERM to what kills, and waits.
	r.Path, r.Args, r.Grace = "/bin/sh", []string{"-c", "read line; exec sleep 1000"}, longest
	if e := r.Run(ctx, orderOf(true)); e.Hung || e.Crash != "" || !errors.Is(e.Result.Err(), syscall.ECANCELED) || e.Result.Device != "mlx5_0" {
		t.Errorf("%+v", e)
	}
}

// TestHung: a run that does not end is given up a while after its deadline, or after
// its context, and says what it was doing.
func TestHung(t *testing.T) {
	both(t, func(t *testing.T, isolated bool) {
		for _, by := range []string{"deadline", "context", "context's deadline"} {
			// A child needs some time to begin, on a busy machine more.
			for _, limit := range []time.Duration{time.Second, 5 * time.Second, 20 * time.Second} {
				if hung(t, isolated, by, limit) {
					break
				}
			}
		}
	})
}

// hung runs what hangs and is ended by something, deadlines by a limit. It reports
// whether that was not too early: only with the greatest limit it is a failure.
func hung(t *testing.T, isolated bool, by string, limit time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	order := orderOf(isolated)
	pid := 0
	order.Started = func(p int) { pid = p }
	var began time.Time
	order.Spec.OnStage = func(loopback.Stage, loopback.Path) { began = time.Now() }
	switch by {
	case "deadline":
		order.Spec.Deadline = limit
	case "context":
		order.Spec.OnStage = func(loopback.Stage, loopback.Path) { began = time.Now(); cancel() }
	default:
		ctx, cancel = context.WithTimeout(ctx, limit)
	}
	e := runnerOf("hangs").Run(ctx, order)
	cancel()
	if by != "context" && began.IsZero() && limit < 20*time.Second {
		return false
	}
	if e.Stage != loopback.StageAlloc || !e.Hung || e.Crash != "" || e.Result.Device != "mlx5_0" || e.Result.Port != 1 || e.Result.Started.IsZero() {
		t.Errorf("%s: %+v", by, e)
	}
	if took := time.Since(began); took > limit+20*time.Second {
		t.Errorf("%s: given up after %v", by, took)
	}
	if gone := isClosed(e.Gone); gone != isolated { // a child was killed and reaped
		t.Errorf("%s: gone %v", by, gone)
	}
	if isolated {
		wantGone(t, pid)
	}
	return true
}

// TestHungQuiet: a run that was left behind tells nobody any more, but that it has
// ended after all.
func TestHungQuiet(t *testing.T) {
	order := orderOf(false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var told atomic.Int32
	order.Spec.OnStage = func(loopback.Stage, loopback.Path) { told.Add(1); cancel() }
	r := runnerOf("")
	r.Grace = 50 * time.Millisecond
	goOn := make(chan struct{})
	r.run = func(_ context.Context, spec loopback.Spec) loopback.Result {
		spec.OnStage(loopback.StageOpen, "")
		<-goOn
		spec.OnStage(loopback.StageGate, "")
		return loopback.Result{}
	}
	e := r.Run(ctx, order)
	if !e.Hung || e.Stage != loopback.StageOpen || isClosed(e.Gone) {
		t.Errorf("%+v", e)
	}
	close(goOn)
	wantClosed(t, e.Gone)
	if told.Load() != 1 {
		t.Errorf("told %d times", told.Load())
	}
}

// TestStoppedBySignal: a stopped child hears nothing, and is killed all the same.
func TestStoppedBySignal(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	order := orderOf(true)
	pid := 0
	order.Started = func(p int) { pid = p }
	order.Spec.OnStage = func(loopback.Stage, loopback.Path) { cancel() }
	if e := runnerOf("sleeps").Run(ctx, order); !e.Hung || e.Stage != loopback.StageRegister {
		t.Errorf("%+v", e)
	}
	wantGone(t, pid)
}

// TestStays: a child that has answered and does not go is killed; its answer holds.
func TestStays(t *testing.T) {
	if e := runnerOf("stays").Run(t.Context(), orderOf(true)); e.Hung || e.Crash != "" || e.Result.NUMANode != 1 {
		t.Errorf("%+v", e)
	}
}

// undead is a process that is not gone after SIGKILL.
type undead struct {
	process
	gone chan struct{}
}

func (u undead) Kill() bool            { return false }
func (u undead) Gone() <-chan struct{} { return u.gone }

// TestUnkillable: a child that is not gone after SIGKILL is not waited for.
func TestUnkillable(t *testing.T) {
	order := orderOf(true)
	order.Spec.Deadline = time.Millisecond
	gone := make(chan struct{})
	c := newChildRun(undead{gone: gone}, newWatch(order))
	if !c.attend(t.Context(), time.Millisecond) {
		t.Error("it is gone")
	}
	if e := c.hung(); !e.Hung || e.Result.Device != "mlx5_0" {
		t.Errorf("%+v", e)
	}
	c.result = &loopback.Result{NUMANode: 5}
	close(c.answer)
	if !c.attend(t.Context(), time.Millisecond) {
		t.Error("it is gone")
	}
	e := c.hung()
	if !e.Hung || e.Result.NUMANode != 5 || isClosed(e.Gone) {
		t.Errorf("%+v", e)
	}
	close(gone)
	wantClosed(t, e.Gone)
}

// TestReapedLate: a child that was given up while it was there is reaped when it
// goes at last, and that is told.
func TestReapedLate(t *testing.T) {
	r := runnerOf("hangs")
	order := orderOf(true)
	c, err := r.start(newWatch(order))
	if err != nil {
		t.Fatal(err)
	}
	text, err := r.orderText(&order)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write(text)
	e := c.hung()
	c.Close()
	if isClosed(e.Gone) {
		t.Error("it is gone")
	}
	c.Kill()
	wantClosed(t, e.Gone)
	wantGone(t, c.ID())
}

func isClosed(gone <-chan struct{}) bool {
	select {
	case <-gone:
		return true
	default:
		return false // also of nil
	}
}

func wantClosed(t *testing.T, gone <-chan struct{}) {
	t.Helper()
	select {
	case <-gone:
	case <-time.After(longest):
		t.Error("nobody tells that it is gone")
	}
}

// TestCrash: however a child dies, the ending says how, in one line.
func TestCrash(t *testing.T) {
	for mode, want := range map[string]string{
		"segfaults":    "exit status 2: panic: runtime error: invalid memory address or nil pointer dereference",
		"panics":       "exit status 2: panic: as the test wants",
		"aborts":       "signal: aborted: panic: aborting",
		"killed":       "signal: killed",
		"exits":        "exit status 7: [1mbad  library",
		"exits well":   "exit status 0 without a result",
		"endless":      "it wrote too much",
		"endless line": "it wrote too much",
		"loud":         "exit status 9: the last words",
	} {
		e := runnerOf(mode).Run(t.Context(), orderOf(true))
		if e.Crash != want || e.Hung || e.Sticky || e.Result.Device != "mlx5_0" || len(e.Result.Stages) > 0 {
			t.Errorf("%s: %+v, want %s", mode, e, want)
		}
		if mode == "segfaults" && e.Stage != loopback.StageConnect {
			t.Errorf("it was in stage %s", e.Stage)
		}
	}
}

// TestGarbage: what is no message does not hide what is.
func TestGarbage(t *testing.T) {
	if e := runnerOf("garbage").Run(t.Context(), orderOf(true)); e.Crash != "" || e.Hung || e.Result.NUMANode != 1 {
		t.Errorf("%+v", e)
	}
}

// TestNoChild: where no process can be started the run failed; it did not crash.
func TestNoChild(t *testing.T) {
	r := runnerOf("good")
	r.Path = "/nowhere/gdr_exporter"
	order := orderOf(true)
	order.Started = func(int) { t.Error("it was started") }
	if e := r.Run(t.Context(), order); e.Crash != "" || e.Hung || !errors.Is(e.Result.Err(), syscall.ENOENT) || e.Result.SkipReason() != "" {
		t.Errorf("%+v", e)
	}
	order.Spec.LibraryDirs = []string{strings.Repeat("x", mostOrder)}
	if e := runnerOf("good").Run(t.Context(), order); e.Result.Err() == nil || !strings.Contains(e.Result.Err().Error(), "at most 65536") {
		t.Errorf("%+v", e)
	}
}

// TestStartedFirst: the run begins after its process was told.
func TestStartedFirst(t *testing.T) {
	both(t, func(t *testing.T, isolated bool) {
		mark := filepath.Join(t.TempDir(), "told")
		order := orderOf(isolated)
		order.Spec.LibraryDirs = []string{mark}
		order.Started = func(int) {
			time.Sleep(100 * time.Millisecond) // a run that did not wait would have begun
			if err := os.WriteFile(mark, nil, 0o600); err != nil {
				t.Error(err)
			}
		}
		if e := runnerOf("late").Run(t.Context(), order); e.Result.Err() != nil || len(e.Result.Stages) != 1 {
			t.Errorf("%+v", e)
		}
	})
}

// TestSurroundings: a child has three descriptors, its own process group, the
// environment it is given, and no directory that it would keep busy.
func TestSurroundings(t *testing.T) {
	leaked, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer leaked.Close()
	if _, err := unix.FcntlInt(leaked.Fd(), unix.F_SETFD, 0); err != nil { // as a careless library opens it
		t.Fatal(err)
	}
	r := runnerOf("looks")
	r.Environ = func() []string { return []string{"ONE=1", "TWO=2"} }
	e := r.Run(t.Context(), orderOf(true))
	var s surroundings
	if err := json.Unmarshal([]byte(e.Result.Library), &s); err != nil {
		t.Fatalf("%v: %+v", err, e)
	}
	for fd, file := range s.Files {
		if fd > 2 || !strings.HasPrefix(file, "pipe:") {
			t.Errorf("descriptor %d is %s", fd, file)
		}
	}
	if len(s.Files) != 3 || s.Dir != "/" || s.Group != s.Pid || !slices.Equal(s.Environment, []string{"ONE=1", "TWO=2"}) {
		t.Errorf("%+v", s)
	}
}

// TestParentKilled: the child of a parent that is killed dies too, also while it
// hangs.
func TestParentKilled(t *testing.T) {
	for _, mode := range []string{"hangs", "sleeps", "stoppable"} {
		parent := exec.Command(os.Args[0], "parent", mode)
		output, err := parent.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := parent.Start(); err != nil {
			t.Fatal(err)
		}
		line, _ := bufio.NewReader(output).ReadString('\n')
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		child, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := parent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = parent.Wait()
		fds := []unix.PollFd{{Fd: int32(child), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, int(longest/time.Millisecond)); n != 1 || err != nil {
			t.Errorf("%s: the child %d is alive: %v", mode, pid, err)
		}
		_ = unix.Close(child)
	}
}

// TestSticky: what breaks CUDA for this process is told of runs in it alone.
func TestSticky(t *testing.T) {
	for _, want := range []bool{false, true} {
		r := runnerOf("")
		r.run = func(context.Context, loopback.Spec) loopback.Result {
			return loopback.Result{Registrations: []loopback.Registration{{Err: errors.Join(errors.New("x"), fmt.Errorf("GPU: %w", sticky(false)), sticky(want))}}}
		}
		if e := r.Run(t.Context(), orderOf(false)); e.Sticky != want {
			t.Errorf("%+v", e)
		}
	}
}

type sticky bool

func (sticky) Error() string  { return "CUDA_ERROR_X" }
func (s sticky) Sticky() bool { return bool(s) }

// TestReasons: package loopback has the prober's words.
func TestReasons(t *testing.T) {
	for reason, want := range map[string]prober.Reason{
		loopback.SkipPort: prober.ReasonPort, loopback.SkipMemory: prober.ReasonMemory, loopback.SkipLibrary: prober.ReasonLibrary,
		loopback.SkipNode: prober.ReasonDeviceNode, loopback.SkipLocked: prober.ReasonLocked,
	} {
		if prober.Reason(reason) != want {
			t.Errorf("%q is %q to the prober", reason, want)
		}
	}
}

// TestLeaks: many runs leave no descriptor, goroutine, thread or zombie.
func TestLeaks(t *testing.T) {
	runs := 200
	if testing.Short() {
		runs = 20
	}
	modes := []string{"good", "exits", "opens", "good"}
	round := func(n int) {
		for i := range n {
			mode := modes[i%len(modes)]
			e := runnerOf(mode).Run(t.Context(), orderOf(true))
			if (e.Crash != "") != (mode == "exits") || e.Hung {
				t.Fatalf("%s: %+v", mode, e)
			}
			if e := runnerOf("good").Run(t.Context(), orderOf(false)); e.Result.NUMANode != 1 {
				t.Fatalf("%+v", e)
			}
		}
	}
	round(10)
	before := holding(t)
	round(runs)
	after := holding(t)
	// The last goroutine of a run may still be on its way out.
	for end := time.Now().Add(longest); after.goroutines > before.goroutines && time.Now().Before(end); after = holding(t) {
		runtime.Gosched()
	}
	t.Logf("%d runs: %+v and %+v", runs, before, after)
	// Threads come and go with the machine's load.
	if after.files > before.files || after.goroutines > before.goroutines || after.threads > before.threads+5 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	wantNoChildren(t)
}

type held struct{ files, goroutines, threads int }

func holding(t *testing.T) held {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return held{len(files), runtime.NumGoroutine(), len(threads)}
}

// wantGone expects that a process is no more, not even as a zombie.
func wantGone(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v", pid, err)
	}
}

func wantNoChildren(t *testing.T) {
	t.Helper()
	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		t.Errorf("child %d is left, %v", pid, err)
	}
}

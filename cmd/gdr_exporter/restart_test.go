package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/status"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/nvmltest"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/rdmatest"
)

// TestDriverUpgrade: the driver is absent, comes, is unloaded, and another
// version comes in its place. The C library never lets go of the first one, so
// the exporter starts itself afresh: same process, same listening socket, and
// no scrape is refused.
func TestDriverUpgrade(t *testing.T) {
	t.Parallel()
	root, procfs := t.TempDir(), t.TempDir()
	proc := filepath.Join(procfs, "driver/nvidia")
	kernel := filepath.Join(t.TempDir(), "version")
	load := func(version string) {
		nvmltest.Load(t, procfs, version)
		if err := os.WriteFile(kernel, []byte(version), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.Command(binary(t), "--web.listen-address=127.0.0.1:0", "--path.driver-root="+root, "--path.procfs="+procfs, "--scrape.max-age=0", "--no-collector.rdma")
	command.Env = append(os.Environ(), "NVMLTEST_KERNEL="+kernel, "NVMLTEST_GPUS=0000:1b:00.0")
	r := startRunning(t, command)
	url := "http://" + r.addresses[0] + "/metrics?collect[]=gpu"
	refused := 0
	shows := func(what string, lines ...string) {
		t.Helper()
		began := time.Now()
		deadline := began.Add(2 * time.Minute)
		var page string
		for ; time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			response, err := http.Get(url)
			if err != nil {
				refused++
				continue
			}
			page = body(t, response)
			if containsAll(page, lines) {
				t.Logf("%s: shown after %v", what, time.Since(began).Round(time.Millisecond))
				return
			}
		}
		t.Fatalf("%s: the page lacks one of %q:\n%s\n%s", what, lines, page, r.stderr.String())
	}
	shows("no driver", `gdr_gpu_nvml_up 0`, `gdr_gpu_nvml_state{state="no_driver"} 1`)
	load("1.0")
	shows("no library", `gdr_gpu_nvml_up 0`, `gdr_gpu_nvml_state{state="no_library"} 1`)
	nvmltest.Install(t, root, "1.0")
	shows("the driver comes", `gdr_gpu_nvml_up 1`, `driver_version="1.0"`, `gpu_address="0000:1b:00.0"`)
	if err := errors.Join(os.RemoveAll(proc), os.Remove(kernel)); err != nil {
		t.Fatal(err)
	}
	shows("the module is unloaded", `gdr_gpu_nvml_up 0`, `gdr_gpu_nvml_state{state="no_driver"} 1`)
	load("1.0")
	shows("the module is loaded again", `gdr_gpu_nvml_up 1`)
	nvmltest.Install(t, root, "2.0")
	shows("a new library beside the old module", `gdr_gpu_nvml_up 1`, `driver_version="1.0"`)
	load("2.0")
	shows("the new module", `gdr_gpu_nvml_up 1`, `driver_version="2.0"`)
	if refused > 0 {
		t.Errorf("%d scrapes were refused", refused)
	}
	if !strings.Contains(r.stderr.String(), "starting afresh") {
		t.Error("it did not say that it starts afresh")
	}
	r.signal(t, os.Interrupt)
}

// restarterAt is a restarter with a clock of its own.
func restarterAt(now *time.Time, from *heritage) (*restarter, *observer.ObservedLogs, *[]string) {
	core, log := observer.New(zapcore.DebugLevel)
	r := newRestarter(zap.New(core), from)
	isolated := []string{}
	r.began, r.now = *now, func() time.Time { return *now }
	r.isolate = func(reason string) { isolated = append(isolated, reason) }
	return r, log, &isolated
}

// after is the restarter of the process after r's.
func after(r *restarter, now *time.Time, c cause, reason string) (*restarter, *[]string) {
	var h heritage
	r.leave(&h, c, reason)
	next, _, isolated := restarterAt(now, &h)
	return next, isolated
}

// TestRestartHistory: two restarts for CUDA within an hour, then child processes.
func TestRestartHistory(t *testing.T) {
	now := time.Now()
	r, _, isolated := restarterAt(&now, &heritage{})
	for i := range mostRestarts {
		r.ask(causeCUDA, "context lost")
		if c, reason, wanted := r.next(); !wanted || c != causeCUDA || reason != "context lost" || len(*isolated) > 0 {
			t.Fatalf("restart %d: %v %q, isolated %q", i, wanted, reason, *isolated)
		}
		r, isolated = after(r, &now, causeCUDA, "context lost")
		now = now.Add(10 * time.Minute)
	}
	r.ask(causeCUDA, "context lost")
	if _, _, wanted := r.next(); wanted || len(*isolated) != 1 || !strings.Contains((*isolated)[0], "2 restarts within an hour, then: context lost") {
		t.Errorf("the third: %v, isolated %q", wanted, *isolated)
	}
	if _, _, wanted := r.next(); wanted {
		t.Error("it is still wanted")
	}
	// An operator who quiesces is not refused, and isolation goes on.
	r.ask(causeQuiesce, "quiesced")
	if c, _, wanted := r.next(); !wanted || c != causeQuiesce {
		t.Error("a quiesce is refused")
	}
	var h heritage
	if r.leave(&h, causeQuiesce, "quiesced"); len(h.Restarts) != 3 || !strings.Contains(h.Isolated, "context lost") {
		t.Errorf("%+v", h)
	}
	// What was long ago does not count.
	now = now.Add(time.Hour)
	r, _, isolated = restarterAt(&now, &heritage{Restarts: h.Restarts[:2]})
	r.ask(causeCUDA, "context lost")
	if _, _, wanted := r.next(); !wanted || len(*isolated) > 0 {
		t.Error("an hour later it is refused")
	}
}

// TestQuiesceIsNeverRefused, but libcuda is kept out after the third.
func TestQuiesceIsNeverRefused(t *testing.T) {
	now := time.Now()
	r, _, _ := restarterAt(&now, &heritage{})
	for i := range 5 {
		r.ask(causeQuiesce, "quiesced")
		if _, _, wanted := r.next(); !wanted {
			t.Errorf("quiesce %d is refused", i+1)
		}
		var h heritage
		if r.leave(&h, causeQuiesce, "quiesced"); (h.Isolated != "") != (i >= mostRestarts) {
			t.Errorf("after quiesce %d: %+v", i+1, h)
		}
		r, _, _ = restarterAt(&now, &h)
	}
}

// TestRestartWishes: a quiesce goes first, a wish can be taken back, one for a
// library waits and does not count.
func TestRestartWishes(t *testing.T) {
	now := time.Now()
	r, log, isolated := restarterAt(&now, &heritage{})
	stale := &snapshot.Snapshot{GPU: &snapshot.GPUPart{Units: []snapshot.UnitPart[gpu.Reading]{{Data: &gpu.Reading{Stale: true}}}}}
	fresh := &snapshot.Snapshot{GPU: &snapshot.GPUPart{Units: []snapshot.UnitPart[gpu.Reading]{{Data: &gpu.Reading{}}}}}
	if r.look(stale); len(r.wanted) > 0 {
		t.Error("a library is loaded anew at once")
	}
	now = now.Add(leastLife)
	r.look(&snapshot.Snapshot{})
	r.look(stale)
	if c, reason, wanted := r.next(); !wanted || c != causeLibrary || !strings.Contains(reason, "library") || len(r.wanted) != 1 {
		t.Errorf("%v %q", wanted, reason)
	}
	var h heritage
	if r.leave(&h, causeLibrary, ""); len(h.Restarts) > 0 || h.Isolated != "" {
		t.Errorf("a library counts: %+v", h)
	}
	r.ask(causeQuiesce, "quiesced")
	if c, _, _ := r.next(); c != causeQuiesce {
		t.Error("a quiesce waits")
	}
	for range 3 {
		r.block(causeQuiesce, "quiesced", "reading mlx5_0")
	}
	if reason, blocked := r.state(); reason != "quiesced" || blocked != "reading mlx5_0" || log.Len() != 1 {
		t.Errorf("%q %q, logged %d times", reason, blocked, log.Len())
	}
	r.withdraw(causeQuiesce)
	r.look(&snapshot.Snapshot{}) // says nothing of NVML
	if reason, blocked := r.state(); !strings.Contains(reason, "library") || blocked != "reading mlx5_0" {
		t.Errorf("%q %q", reason, blocked)
	}
	r.look(fresh)
	<-r.wanted
	now = now.Add(time.Minute)
	for i := range 3 { // as each Snapshot does, one that is taken for that too
		if r.look(stale); (len(r.wanted) > 0) != (i == 0) {
			t.Errorf("asked %d times: %d", i+1, len(r.wanted))
		}
		if i == 0 {
			<-r.wanted
		}
	}
	r.look(fresh)
	r.block(causeCUDA, "late", "reading mlx5_0")
	if reason, blocked := r.state(); reason != "" || blocked != "" {
		t.Errorf("nothing is wanted: %q %q", reason, blocked)
	}
	if _, _, wanted := r.next(); wanted || log.Len() != 1 || len(*isolated) > 0 {
		t.Errorf("nothing is wanted: %v, logged %d times, isolated %q", wanted, log.Len(), *isolated)
	}
}

// daemonHere is a daemon in this process that runs nothing in place of itself.
type daemonHere struct {
	*daemon
	fake *fakeProber
	log  *observer.ObservedLogs
	left chan *heritage
	ends chan error
	stop context.CancelFunc
}

func startDaemonHere(t *testing.T, root string, from *heritage) *daemonHere {
	t.Helper()
	c, _, err := parseOnly("--path.sysfs="+filepath.Join(root, "sys"), "--web.listen-address=127.0.0.1:0", "--state.dir=", "--scrape.max-age=0s", "--scrape.deadline=500ms",
		"--control.socket="+filepath.Join(shortDir(t), "control.sock"), "--probe.interval=0", "--no-rdma.netlink", "--no-rdma.ethtool")
	if err != nil {
		t.Fatal(err)
	}
	core, log := observer.New(zapcore.DebugLevel)
	d := &daemonHere{daemon: newDaemon(c, zap.New(core), from), fake: &fakeProber{}, log: log, left: make(chan *heritage, 1), ends: make(chan error, 1)}
	d.prober, d.restarter.isolate = d.fake, d.fake.Isolate
	d.control.prober, d.quiet.prober = d.fake, d.fake
	d.exec = func(h *heritage) error {
		for _, fd := range h.descriptors() {
			_ = syscall.Close(fd)
		}
		d.left <- h
		return nil
	}
	listeners, err := listen(c.web, nil)
	if err != nil {
		t.Fatal(err)
	}
	handler, err := d.routes()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	servers := serveOn(listeners, c, handler, d.logger)
	d.serveControl(nil)
	d.startProber()
	go func() { d.ends <- d.run(ctx, servers) }()
	t.Cleanup(func() {
		stop()
		select {
		case <-d.ends:
		case <-time.After(patient):
			t.Error("the daemon does not end")
		}
	})
	return d
}

// TestRestartLeaves: what the next process is to know.
func TestRestartLeaves(t *testing.T) {
	d := startDaemonHere(t, onDisk(t, noRDMA()), &heritage{Isolated: "as before"})
	d.fake.hung = hungRuns()
	d.quiet.open = func() ([]string, error) { return []string{"/dev/nvidiactl"}, nil }
	d.quiet.begin(t.Context(), time.Hour)
	h := d.heir(t)
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(heritageEnv, string(text))
	got, err := inherit()
	if err != nil || !reflect.DeepEqual(got.Listeners, h.Listeners) || *got.Control != *h.Control || got.Isolated != "as before" {
		t.Errorf("%s became %+v, %v", text, got, err)
	}
	if !reflect.DeepEqual(got.Hung, d.fake.hung) {
		t.Errorf("hung runs are forgotten: %s", text)
	}
	if len(got.Listeners) != 1 || got.Control == nil || len(got.Restarts) != 1 || time.Until(got.QuiescedUntil) < 59*time.Minute {
		t.Errorf("%s", text)
	}
	if _, found := os.LookupEnv(heritageEnv); found {
		t.Error("child processes would inherit it too")
	}
	if got, err := inherit(); err != nil || !reflect.DeepEqual(got, &heritage{}) {
		t.Errorf("without a process before: %+v %v", got, err)
	}
}

// heir is what the daemon leaves to the process after it.
func (d *daemonHere) heir(t *testing.T) *heritage {
	t.Helper()
	select {
	case h := <-d.left:
		return h
	case <-time.After(patient):
		t.Fatalf("no restart: %v", d.log.All())
		return nil
	}
}

func hungRuns() []prober.HungRun {
	return []prober.HungRun{{Pair: prober.Pair{GPU: "0000:1b:00.0", Device: "mlx5_0", Port: 1}, Stage: loopback.StageRegister, Since: time.Now().Add(-time.Hour).Round(0).UTC()}}
}

// TestHungRunsAreInherited: their pairs hang in the fresh process too.
func TestHungRunsAreInherited(t *testing.T) {
	c, _, err := parseOnly("--state.dir=", "--path.sysfs="+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	hung := hungRuns()
	d := newDaemon(c, zap.NewNop(), &heritage{Hung: hung})
	defer d.taker.Close()
	d.prober.Saw(prober.Sighting{Time: time.Now(), Pairs: sysread.Some([]prober.Candidate{{Pair: hung[0].Pair, Distance: "PIX"}})})
	if pairs := d.prober.Status().Pairs; len(pairs) != 1 || !pairs[0].Hung.Equal(hung[0].Since) || pairs[0].HungStage != loopback.StageRegister {
		t.Errorf("%+v", pairs)
	}
	if d.prober.Hanging() {
		t.Error("what is gone with the process before keeps this one from being replaced")
	}
}

// TestCommandsDuringRestart: one that is answered while the process ends holds in
// the one that takes its place.
func TestCommandsDuringRestart(t *testing.T) {
	for _, quiesced := range []bool{false, true} {
		d := startDaemonHere(t, onDisk(t, noRDMA()), &heritage{})
		command := func() { d.quiet.begin(t.Context(), time.Hour) }
		if !quiesced {
			command()
			command = func() { d.quiet.end("told to resume") }
		}
		// A request that is being answered keeps the process for a while.
		asked := make(chan struct{})
		var answering atomic.Bool
		d.quiet.open = func() ([]string, error) {
			if answering.CompareAndSwap(false, true) {
				close(asked)
				<-d.waiting.Done() // it is stopping
				command()
			}
			return nil, nil
		}
		go func() {
			_ = newClient(d.config.socket).call(context.Background(), http.MethodGet, pathControl, nil, nil)
		}()
		<-asked
		d.restarter.ask(causeCUDA, "context lost")
		if h := d.heir(t); h.QuiescedUntil.IsZero() == quiesced {
			t.Errorf("quiesced last: %v; handed down until %v", quiesced, h.QuiescedUntil)
		}
	}
}

// TestLookout: what hangs for days is looked at once a minute, and that it is over
// is seen within that; a first look is not put off.
func TestLookout(t *testing.T) {
	var l lookout
	now, looks, what := time.Now(), 0, ""
	look := func() string { return l.look(now, func() string { looks++; return what }) }
	for range 3 {
		if what = ""; look() != "" {
			t.Error("nothing hangs")
		}
	}
	if looks != 3 {
		t.Errorf("%d looks while nothing hangs", looks)
	}
	l, looks, what = lookout{}, 0, "reading mlx5_0"
	for end := now.Add(time.Hour); now.Before(end); now = now.Add(retryRestart) {
		if look() != what {
			t.Fatalf("after %d looks nothing hangs", looks)
		}
	}
	if looks < 55 || looks > 70 {
		t.Errorf("%d looks within an hour", looks)
	}
	what = ""
	over := now
	for look() != "" {
		now = now.Add(retryRestart)
	}
	if waited := now.Sub(over); waited > mostLookPause {
		t.Errorf("seen after %v", waited)
	}
}

// TestProberEndsLate: a prober that was told to end for a restart, and did too late
// for it, works on when none is wanted any more.
func TestProberEndsLate(t *testing.T) {
	d := startDaemonHere(t, onDisk(t, noRDMA()), &heritage{})
	runs := func() int { d.fake.mu.Lock(); defer d.fake.mu.Unlock(); return d.fake.runs }
	waitUntil(t, "the prober runs", func() bool { return runs() == 1 })
	d.fake.late, d.proberGrace = make(chan struct{}), 10*time.Millisecond
	d.restarter.ask(causeQuiesce, "quiesced")
	waitUntil(t, "it is kept back", func() bool { _, blocked := d.restarter.state(); return blocked == "a measurement" })
	d.restarter.withdraw(causeQuiesce)
	close(d.fake.late)
	waitUntil(t, "the prober runs again", func() bool { return runs() == 2 })
	if len(d.left) > 0 {
		t.Error("restarted")
	}
}

// TestNoRestartWhileSomethingHangs: it is said once, and the daemon goes on; when
// the hang is over it starts afresh.
func TestNoRestartWhileSomethingHangs(t *testing.T) {
	tree, sick, _ := twoDevices()
	for name, hang := range map[string]func(t *testing.T, d *daemonHere, fs *rdmatest.FaultFS) (over func(), says string){
		"a device": func(t *testing.T, _ *daemonHere, fs *rdmatest.FaultFS) (func(), string) {
			fs.Set(sick.File(1, "state"), rdmatest.Rule{Hang: true})
			return fs.ClearAll, "reading " + sick.Name
		},
		"a port's file": func(_ *testing.T, d *daemonHere, _ *rdmatest.FaultFS) (func(), string) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			answers := make(chan struct{})
			unlessHanging(ctx, d.proberHost, "mlx5_7", func() int { <-answers; return 0 })
			return sync.OnceFunc(func() { close(answers) }), "reading mlx5_7"
		},
		"a run": func(t *testing.T, d *daemonHere, _ *rdmatest.FaultFS) (func(), string) {
			set := func(hanging bool) {
				d.fake.mu.Lock()
				defer d.fake.mu.Unlock()
				d.fake.hanging = hanging
			}
			set(true)
			return func() { set(false) }, "a measurement"
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, fs := faulty(t, tree)
			d := startDaemonHere(t, root, &heritage{})
			over, says := hang(t, d, fs)
			defer over()
			defer fs.ClearAll()
			blocked := func() *observer.ObservedLogs { return d.log.FilterMessageSnippet("a fresh start is needed") }
			d.restarter.ask(causeCUDA, "context lost")
			waitUntil(t, "it says so", func() bool { return blocked().Len() == 1 })
			d.restarter.ask(causeCUDA, "context lost")
			waitUntil(t, "it was looked at again", func() bool { return len(d.restarter.wanted) == 0 })
			var answer status.Control
			if err := newClient(d.config.socket).call(t.Context(), http.MethodGet, pathControl, nil, &answer); err != nil || answer.Restart == nil || answer.Restart.Blocked != says {
				t.Errorf("%v %+v", err, answer.Restart)
			}
			if n := blocked().Len(); n != 1 || len(d.left) > 0 {
				t.Errorf("said %d times, restarted %d times", n, len(d.left))
			}
			if calls := d.fake.took(); !slices.Contains(calls, "isolate context lost; a fresh start would wait for what hangs: "+says) {
				t.Errorf("runs go on in a process whose CUDA does not work: %q", calls)
			}
			over()
			select {
			case h := <-d.left:
				if h.Isolated != "" {
					t.Errorf("the fresh process is isolated too: %+v", h)
				}
			case <-time.After(patient):
				t.Error("no restart when the hang was over")
			}
		})
	}
}

// TestRunIsGoneBeforeRestart: a run that turns out to hang when it is stopped keeps
// the process, and the prober works on.
func TestRunIsGoneBeforeRestart(t *testing.T) {
	d := startDaemonHere(t, onDisk(t, noRDMA()), &heritage{})
	waitUntil(t, "the prober runs", func() bool { d.fake.mu.Lock(); defer d.fake.mu.Unlock(); return d.fake.runs == 1 })
	d.hangsWhenStopped()
	d.restarter.ask(causeCUDA, "context lost")
	waitUntil(t, "the prober runs again", func() bool { d.fake.mu.Lock(); defer d.fake.mu.Unlock(); return d.fake.runs == 2 })
	if reason, blocked := d.restarter.state(); reason != "context lost" || blocked != "a measurement" || len(d.left) > 0 {
		t.Errorf("%q %q, restarted %d times", reason, blocked, len(d.left))
	}
}

// hangsWhenStopped lets a run hang from the moment that the prober is told to end.
func (d *daemonHere) hangsWhenStopped() {
	end := d.endProber
	d.endProber = func() {
		d.fake.mu.Lock()
		d.fake.hanging = true
		d.fake.mu.Unlock()
		end()
	}
}

// TestToldToEndDuringRestart: a signal is not lost to the fresh process.
func TestToldToEndDuringRestart(t *testing.T) {
	d := startDaemonHere(t, onDisk(t, noRDMA()), &heritage{})
	socket := d.config.socket
	end := d.endProber
	d.endProber = func() { d.stop(); end() }
	d.restarter.ask(causeCUDA, "context lost")
	err := <-d.ends
	d.ends <- err
	if err != nil || len(d.left) > 0 || exists(socket) {
		t.Errorf("%v, restarted %d times, socket left: %v", err, len(d.left), exists(socket))
	}
}

func TestBadHeritage(t *testing.T) {
	for value, want := range map[string]string{"x": "invalid character", `{"listeners":[0]}`: "no descriptor", `{"listeners":[99999]}`: "--web.listen-address"} {
		command := exec.Command(binary(t), "--web.listen-address=127.0.0.1:0", "--control.socket=", "--state.dir=")
		command.Env = append(os.Environ(), heritageEnv+"="+value)
		finish(t, command).wantMistake(t, want)
	}
}

func TestCloseOnExec(t *testing.T) {
	kept, lost := openWithout(t), openWithout(t)
	closeOnExec([]int{kept})
	for fd, want := range map[int]int{kept: 0, lost: unix.FD_CLOEXEC} {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags != want {
			t.Errorf("flags %d, want %d; %v", flags, want, err)
		}
	}
}

// openWithout opens a file without FD_CLOEXEC, as some versions of libcuda do.
func openWithout(t *testing.T) int {
	t.Helper()
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// TestHeldFiles: open, mapped, deleted, and those that are none of its business.
func TestHeldFiles(t *testing.T) {
	dir := emptyDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	open := func(name string) *os.File {
		t.Helper()
		file, err := os.Create(at(name))
		if err := errors.Join(err, file.Truncate(4096)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		return file
	}
	open("nvidiactl")
	open("other")
	open("nvidia gone")
	_ = os.Remove(at("nvidia gone"))
	mapped := open("nvidia mapped")
	memory, err := unix.Mmap(int(mapped.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	_ = mapped.Close()
	want := []string{at("nvidia gone") + " (deleted)", at("nvidia mapped"), at("nvidiactl")}
	if got, err := heldFiles("/proc/self", []string{at("nvidia")}); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q %v, want %q", got, err, want)
	}
	if err := unix.Munmap(memory); err != nil {
		t.Fatal(err)
	}
	if got, err := heldFiles("/proc/self", []string{at("nvidia")}); err != nil || slices.Contains(got, at("nvidia mapped")) {
		t.Errorf("%q %v", got, err)
	}
	if got, err := heldFiles("/proc/self", driverFiles); err != nil || len(got) > 0 {
		t.Errorf("this test has %q, %v", got, err)
	}
	if _, err := heldFiles(dir, driverFiles); err == nil || !strings.Contains(err.Error(), "open files") || !strings.Contains(err.Error(), "mapped files") {
		t.Errorf("no process: %v", err)
	}
}

// TestQuiesceClosesDriverFiles starts the program with an open file that looks like
// the driver's and that it cannot know of, without FD_CLOEXEC.
func TestQuiesceClosesDriverFiles(t *testing.T) {
	t.Parallel()
	const prepare = `mount -t tmpfs none /dev && : >/dev/nvidiactl && mknod -m 666 /dev/null c 1 3`
	if out, err := exec.Command("unshare", "-m", "sh", "-c", prepare).CombinedOutput(); err != nil {
		t.Skipf("needs a /dev of its own: %v %s", err, out)
	}
	dir := shortDir(t) // not below /dev
	if err := noRDMA().WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	socket := "--control.socket=" + filepath.Join(dir, "control.sock")
	for _, args := range [][]string{{"--probe.isolation=in-process"}, {"--probe.isolation=process"}} {
		command := exec.Command("unshare", append([]string{"-m", "sh", "-c", prepare + ` && exec 9</dev/nvidiactl "$0" "$@"`, binary(t),
			"--web.listen-address=127.0.0.1:0", "--path.sysfs=" + filepath.Join(dir, "sys"), "--state.dir=" + filepath.Join(dir, "state"), socket}, args...)...)
		r := startRunning(t, command)
		waitUntil(t, "started", func() bool { return strings.Contains(r.stderr.String(), "msg=started") })
		if s := runHere("ctl", "status", socket); !strings.Contains(s.stdout, "open: /dev/nvidiactl") {
			t.Fatalf("%+v", s)
		}
		scrapes := r.scrapeAllTheTime(t)
		if q := runHere("ctl", "quiesce", "--for=1h", socket); q.code != exitOK || !strings.Contains(q.stdout, "all driver files are released") {
			t.Errorf("%+v\n%s", q, r.stderr.String())
		}
		// net/http drops a request whose header it reads just when it is told to end.
		if failed := scrapes(); failed > 1 {
			t.Errorf("%d scrapes failed", failed)
		}
		held, err := heldFiles(fmt.Sprintf("/proc/%d", r.command.Process.Pid), driverFiles)
		if err != nil || len(held) > 0 {
			t.Errorf("held: %q %v", held, err)
		}
		if s := runHere("ctl", "status", socket); s.code != exitOK || !strings.Contains(s.stdout, "quiesced for another 59m") {
			t.Errorf("the fresh process: %+v", s)
		}
		if s := runHere("ctl", "resume", socket); s.code != exitOK || strings.Contains(s.stdout, "quiesced") {
			t.Errorf("resumed: %+v", s)
		}
		if n := strings.Count(r.stderr.String(), "starting afresh"); n != 1 {
			t.Errorf("%d restarts: %s", n, r.stderr.String())
		}
		r.signal(t, syscall.SIGTERM)
		if exists(strings.TrimPrefix(socket, "--control.socket=")) {
			t.Error("the fresh process left the socket that it inherited")
		}
	}
}

// TestQuiesceShows: a page right after a quiesce or its end is not of before, however
// long a reading serves.
func TestQuiesceShows(t *testing.T) {
	t.Parallel()
	root, procfs, dir := t.TempDir(), t.TempDir(), shortDir(t)
	nvmltest.Install(t, root, nvmltest.Version)
	nvmltest.Load(t, procfs, nvmltest.Version)
	socket := "--control.socket=" + filepath.Join(dir, "control.sock")
	command := exec.Command(binary(t), "--web.listen-address=127.0.0.1:0", "--path.driver-root="+root, "--path.procfs="+procfs, "--no-collector.rdma",
		"--scrape.max-age=1h", "--state.dir="+filepath.Join(dir, "state"), socket)
	r := startRunning(t, command)
	shows := func(state string) {
		t.Helper()
		if page := r.get(t, "/metrics").body; !strings.Contains(page, `gdr_gpu_nvml_state{state="`+state+`"} 1`) {
			t.Errorf("not %s: %s", state, page)
		}
	}
	shows("up")
	if q := runHere("ctl", "quiesce", socket); q.code != exitOK {
		t.Errorf("%+v", q)
	}
	shows("quiesced")
	if q := runHere("ctl", "resume", socket); q.code != exitOK {
		t.Errorf("%+v", q)
	}
	shows("up")
}

// scrapeAllTheTime scrapes until it is told to end, and returns how many failed.
func (r *running) scrapeAllTheTime(t *testing.T) (end func() (failed int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		failed := 0
		for ctx.Err() == nil {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			if got, err := fetch(context.WithoutCancel(ctx), client, r.url("/metrics")); err != nil || got.code != http.StatusOK {
				t.Logf("scrape: %d %v", got.code, err)
				failed++
			}
		}
		done <- failed
	}()
	return func() int { cancel(); return <-done }
}

func containsAll(page string, lines []string) bool {
	for _, line := range lines {
		if !strings.Contains(page, line) {
			return false
		}
	}
	return true
}

func body(t *testing.T, response *http.Response) string {
	t.Helper()
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/status"
	"gdr_exporter/gpu/cuda/cudatest"
	"gdr_exporter/gpu/nvmltest"
	"gdr_exporter/rdma/rdmatest"
)

// measuringExporter is an exporter that measures one pair of a real soft-RoCE device and a
// GPU that is made up: libcuda and NVML are stand-ins below one driver root.
type measuringExporter struct {
	*vmExporter
	gpu, device string
	// dir holds its sockets, locks and state; cuda and nvml are the stand-ins' settings.
	dir, cuda, nvml string
	environ, args   []string
	t               *testing.T
}

// startMeasuring starts an exporter whose runs are short, without a schedule
// unless args ask for one.
func startMeasuring(t *testing.T, device string, args ...string) *measuringExporter {
	t.Helper()
	m := newMeasuring(t, device, args...)
	m.start()
	return m
}

// newMeasuring is startMeasuring without the start.
func newMeasuring(t *testing.T, device string, args ...string) *measuringExporter {
	t.Helper()
	inKernel(t)
	prepareProber.Do(func() { prepare(t, gdrGPUs[0]) })
	root, procfs, dir := cudatest.Build(t), t.TempDir(), t.TempDir()
	nvmltest.Install(t, root, nvmltest.Version)
	nvmltest.Load(t, procfs, nvmltest.Version)
	m := &measuringExporter{gpu: gdrGPUs[0], device: device, dir: dir, cuda: dir + "/cuda", nvml: dir + "/nvml", t: t}
	m.environ = []string{
		"DOUBLE_GPUS=" + m.gpu, "DOUBLE_FILE=" + m.cuda, "NVMLTEST_GPUS=" + m.gpu, "NVMLTEST_FILE=" + m.nvml,
		// What both libraries keep open. The names are what tells a driver's file.
		"DOUBLE_DEVFILE=/dev/nvidia-uvm", "NVMLTEST_DEVFILE=/dev/nvidiactl",
	}
	defaults := []string{
		standIn, "--path.driver-root=" + root, "--path.procfs=" + procfs, "--scrape.max-age=0s", fmt.Sprint("--scrape.deadline=", scrapeDeadline),
		"--probe.pairs=" + m.gpu + "/" + device, "--probe.interval=0", "--probe.timeout=1m", "--probe.min-free=1GiB",
		"--probe.buffer=8MiB", "--probe.bytes=16MiB", "--probe.limit=0.01", "--probe.limit-far=0.01",
		"--probe.lock=" + dir + "/lock", "--probe.ledger=" + dir + "/probe.json", "--state.dir=" + dir + "/state", "--control.socket=" + dir + "/socket",
	}
	given := func(flag string) bool {
		name, _, _ := strings.Cut(flag, "=")
		return slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, name+"=") })
	}
	m.args = append(slices.DeleteFunc(defaults, given), args...)
	return m
}

var prepareProber sync.Once

// prepare gives the stand-in a driver of the name nvidia, as a GPU has it, and
// makes the files that the libraries keep open. QEMU before 8.1 may crash if
// another processor reads configuration space while a function is bound.
func prepare(t *testing.T, gpu string) {
	const online = "/sys/devices/system/cpu/cpu1/online"
	writeFile(t, online, "0")
	rebindGPU(t, gpu, "nvidia")
	writeFile(t, online, "1")
	for _, name := range []string{"/dev/nvidia-uvm", "/dev/nvidiactl"} {
		writeFile(t, name, "")
	}
}

// set gives a flag another value from the next start on.
func (m *measuringExporter) set(flag, value string) {
	m.args = slices.DeleteFunc(m.args, func(arg string) bool { return strings.HasPrefix(arg, flag+"=") })
	m.args = append(m.args, flag+"="+value)
}

// start starts the exporter, also after the end of another with the same files.
func (m *measuringExporter) start() {
	m.t.Helper()
	e := &vmExporter{address: freeAddress(m.t), log: &lockedBuffer{}, ended: make(chan struct{})}
	e.client = e.newClient("")
	cmd := exec.Command(os.Getenv(binaryEnv), append([]string{"--web.listen-address=" + e.address}, m.args...)...)
	cmd.Env, cmd.Stderr = append(os.Environ(), m.environ...), e.log
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	e.process, m.vmExporter = cmd.Process, e
	go func() {
		_ = cmd.Wait()
		e.state = cmd.ProcessState
		close(e.ended)
	}()
	m.t.Cleanup(func() {
		if !e.gone() {
			e.end(m.t)
		} else if m.t.Failed() {
			m.t.Logf("the log of an exporter that had ended:\n%s", e.log)
		}
	})
	within(m.t, patience, "the exporter sees its pair", func() bool {
		return e.gone() || m.ready()
	})
	if e.gone() {
		m.t.Fatal("the exporter has ended: ", e.state)
	}
}

// ready reports whether the pair can be measured as far as that is seen.
func (m *measuringExporter) ready() bool {
	code, body, err := m.get("/metrics")
	return err == nil && code == http.StatusOK && strings.Contains(string(body), "gdr_probe_hung{device="+strconv.Quote(m.device))
}

// page is what a scrape of the measurements alone serves.
func (m *measuringExporter) page() series {
	m.t.Helper()
	return m.scrapePath("/metrics?collect[]=probe")
}

func (m *measuringExporter) scrapePath(path string) series {
	m.t.Helper()
	code, body, err := m.get(path)
	if err != nil || code != http.StatusOK {
		m.t.Fatalf("status %d, %v: %s", code, err, body)
	}
	page, err := parsePage(body)
	if err != nil {
		m.t.Fatal(err)
	}
	return page
}

// of names a series of the pair.
func (m *measuringExporter) of(name string, more ...string) string {
	return named(name, append([]string{"gpu_address", m.gpu, "device", m.device}, more...)...)
}

func (m *measuringExporter) rate(path string) string {
	return m.of("gdr_probe_bytes_per_second", "path", path)
}

func runs(depth, result string) string {
	return named("gdr_probe_runs_total", "depth", depth, "result", result)
}

// until waits for a page that is as wanted.
func (m *measuringExporter) until(limit time.Duration, what string, wanted func(series) bool) series {
	m.t.Helper()
	began := time.Now()
	var page series
	for ; ; time.Sleep(100 * time.Millisecond) {
		if page = m.page(); wanted(page) {
			m.t.Logf("%s: after %v", what, time.Since(began).Round(100*time.Millisecond))
			return page
		}
		if time.Since(began) > limit {
			m.t.Fatalf("not within %v: %s\n%v", limit, what, page.about(m.device))
		}
	}
}

// look scrapes the whole page, which tells the prober of what changed on the host.
func (m *measuringExporter) look() { m.scrapePath("/metrics") }

// command runs gdr_exporter ctl and returns its exit code and what it prints.
func (m *measuringExporter) command(args ...string) (code int, stdout string) {
	m.t.Helper()
	cmd := exec.Command(os.Getenv(binaryEnv), append([]string{"ctl", "--socket=" + m.dir + "/socket", "--output=json"}, args...)...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		m.t.Fatal(err)
	}
	m.t.Logf("ctl %s: exit code %d %s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), stderr.String())
	return cmd.ProcessState.ExitCode(), out.String()
}

// measure measures the pair now and returns the exit code and what came of it.
func (m *measuringExporter) measure() (int, status.Attempt) {
	m.t.Helper()
	code, out := m.command("probe", "--force")
	var answer status.Attempts
	if err := json.Unmarshal([]byte(out), &answer); err != nil || len(answer.Attempts) != 1 {
		m.t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	return code, answer.Attempts[0]
}

// wantMeasured expects a run that finds nothing wrong.
func (m *measuringExporter) wantMeasured() {
	m.t.Helper()
	if code, attempt := m.measure(); code != exitOK || attempt.Result != "fine" {
		m.t.Errorf("exit code %d, %+v", code, attempt)
	}
	if page := m.page(); page[m.rate("gpu")] <= 0 || page[m.rate("host")] <= 0 {
		m.t.Errorf("no rates: %v", page.about(m.device))
	}
}

// driverFiles are the driver's files that the process has open or mapped, as seen
// from outside.
func (m *measuringExporter) driverFiles() []string {
	m.t.Helper()
	var files []string
	dir := fmt.Sprintf("/proc/%d", m.process.Pid)
	entries, err := os.ReadDir(dir + "/fd")
	if err != nil {
		m.t.Fatal(err)
	}
	for _, entry := range entries {
		if target, err := os.Readlink(filepath.Join(dir, "fd", entry.Name())); err == nil {
			files = append(files, target)
		}
	}
	for line := range strings.Lines(optionalText(dir + "/maps")) {
		if _, path, found := strings.Cut(strings.TrimSpace(line), " /"); found {
			files = append(files, "/"+path)
		}
	}
	files = slices.DeleteFunc(files, func(name string) bool {
		return !strings.HasPrefix(name, "/dev/nvidia") && !strings.HasPrefix(name, "/dev/infiniband") && !strings.Contains(name, "infinibandevent")
	})
	slices.Sort(files)
	return slices.Compact(files)
}

// processes are those that the exporter's environment shows to be its own.
func (m *measuringExporter) processes() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err == nil && strings.Contains(optionalText("/proc/"+entry.Name()+"/environ"), "DOUBLE_FILE="+m.cuda+"\x00") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// scrapeDeadline is how long a scrape waits for what hangs.
const scrapeDeadline = 20 * time.Second

// scraper scrapes all the time.
type scraper struct {
	lost, made atomic.Int64
	longest    atomic.Int64 // nanoseconds
	stop       func()
}

func (m *measuringExporter) keepScraping() *scraper {
	s, end, ended := &scraper{}, make(chan struct{}), make(chan struct{})
	e := m.vmExporter
	go func() {
		defer close(ended)
		for {
			began := time.Now()
			if code, _, err := e.get("/metrics"); err != nil || code != http.StatusOK {
				s.lost.Add(1)
			}
			s.made.Add(1)
			s.longest.Store(max(s.longest.Load(), int64(time.Since(began))))
			select {
			case <-end:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	s.stop = func() { close(end); <-ended }
	return s
}

// want expects at most so many scrapes lost, and none slow.
func (s *scraper) want(t *testing.T, lost int64) {
	t.Helper()
	s.stop()
	const most = scrapeDeadline / 2
	longest := time.Duration(s.longest.Load())
	t.Logf("%d scrapes, %d lost, the longest took %v", s.made.Load(), s.lost.Load(), longest.Round(time.Millisecond))
	// One that waits for what hangs takes as long as its deadline. A whole one takes
	// a tenth of a second here, if the machine has nothing else to do.
	if s.lost.Load() > lost || longest > most {
		t.Errorf("%d scrapes lost, the longest took %v", s.lost.Load(), longest)
	}
}

// keepWriting has perftest write over a device until the returned function is
// called: small messages, since what soft-RoCE counts is packets, and those cost
// little time.
func keepWriting(t *testing.T, device string) (stop func()) {
	t.Helper()
	_, stop = startWriting(t, device, 18700, "-s", "8", "-D", "1")
	return stop
}

// startWriting has perftest write over a device until stop is called, and returns
// the processes that do so.
func startWriting(t *testing.T, device string, port int, more ...string) (pids []int, stop func()) {
	t.Helper()
	args := append([]string{"-F", "-d", device, "-x", "1", "-p", strconv.Itoa(port), "--run_infinitely"}, more...)
	server, client := exec.Command("ib_write_bw", args...), exec.Command("ib_write_bw", append(args, "127.0.0.1")...)
	output := &lockedBuffer{}
	for _, cmd := range []*exec.Cmd{server, client} {
		cmd.Stdout, cmd.Stderr = output, output
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	within(t, patience, "ib_write_bw listens", func() bool { return rdmatest.Listens(port) })
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		for _, cmd := range []*exec.Cmd{client, server} {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if t.Failed() {
			t.Logf("ib_write_bw:\n%s", output)
		}
	})
	t.Cleanup(stop)
	return []int{server.Process.Pid, client.Process.Pid}, stop
}

// isolationFlags are the values of --probe.isolation.
var isolationFlags = []string{"in-process", "process"}

// TestInKernelProberTraffic: under another's traffic a result stays, with its age;
// registration is tried all the same, and what it finds is believed once repeated;
// when the traffic ends, a full run comes within a minute.
func TestInKernelProberTraffic(t *testing.T) {
	inKernel(t)
	t.Parallel()
	addNIC(t, gdrNIC0, "rxenic0")
	m := startMeasuring(t, "rxenic0", "--probe.pairs=nearest", "--probe.interval=20s", "--probe.first-within=1s", "--probe.register-interval=10s")
	fullTime := m.of("gdr_probe_result_timestamp_seconds", "depth", "full")
	first := m.until(patience, "the first full run", func(page series) bool { return page[m.rate("gpu")] > 0 && page[fullTime] > 0 })
	stop := keepWriting(t, m.device)
	busy := m.of("gdr_probe_skipped", "reason", "nic_busy")
	page := m.until(2*time.Minute, "the traffic is seen", func(page series) bool { return page[busy] == 1 })
	for _, key := range []string{m.rate("gpu"), m.rate("host"), fullTime, m.of("gdr_probe_registered", "method", "peermem")} {
		if page[key] <= 0 {
			t.Errorf("no %s while the NIC is busy", key)
		}
	}
	standing := page[fullTime]
	if standing < first[fullTime] {
		t.Errorf("the result went back in time: %v, then %v", first[fullTime], standing)
	}
	registered := page[runs("register", "fine")]
	page = m.until(patience, "a registration run under load", func(page series) bool { return page[runs("register", "fine")] > registered })
	page.want(t, fullTime, standing)
	page.want(t, busy, 1)

	cudatest.Set(t, m.cuda, "DOUBLE_UNREGISTRABLE=1")
	page = m.until(90*time.Second, "memory that cannot be registered is seen", func(page series) bool {
		return page[m.of("gdr_probe_registered", "method", "peermem")] == 0 && page[m.of("gdr_probe_unconfirmed")] == 0
	})
	page.want(t, m.of("gdr_probe_registration_error_info", "method", "peermem", "errno", "EFAULT"), 1)
	if failed := page[runs("register", "failed")]; failed < 2 {
		t.Errorf("%v failed registration runs: it was believed unrepeated", failed)
	}
	if m.logged("a measurement is worse than what is known") == 0 {
		t.Error("nobody was told that it is repeated")
	}

	cudatest.Set(t, m.cuda)
	stop()
	page = m.until(time.Minute, "a full run after the traffic", func(page series) bool { return page[fullTime] > standing && page[m.rate("gpu")] > 0 })
	page.want(t, m.of("gdr_probe_registered", "method", "peermem"), 1)
}

// addNIC makes a soft-RoCE device on the netdev of a PCI function, whose place in
// the tree it has.
func addNIC(t *testing.T, address, device string) {
	t.Helper()
	entries, err := os.ReadDir(pciFile(address, "net"))
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	link := entries[0].Name()
	sh(t, "ip", "addr", "replace", "10.78.0.1/24", "dev", link) // an earlier test's stays
	sh(t, "ip", "link", "set", link, "mtu", "9000", "up")
	sh(t, "rdma", "link", "add", device, "type", "rxe", "netdev", link)
	t.Cleanup(func() { sh(t, "rdma", "link", "delete", device) })
	within(t, patience, "the port is active", func() bool { return strings.HasPrefix(optionalText(classDir+"/"+device+"/ports/1/state"), "4:") })
}

// TestInKernelProberPort: a port that goes down takes the rates with it, one that
// comes up is measured at once, though the next run is an hour away. No run leaves
// anything in the kernel.
func TestInKernelProberPort(t *testing.T) {
	inKernel(t)
	t.Parallel()
	before := deviceResources(t, "rxe1")
	m := startMeasuring(t, "rxe1", "--probe.interval=1h", "--probe.first-within=1s")
	page := m.until(patience, "the first full run", func(page series) bool { return page[m.rate("gpu")] > 0 })
	first := page[m.of("gdr_probe_result_timestamp_seconds", "depth", "full")]
	if after := deviceResources(t, "rxe1"); after != before {
		t.Errorf("RDMA resources before %s\nafter %s", before, after)
	}
	link := strings.TrimSpace(readText(t, classDir+"/rxe1/parent"))
	t.Cleanup(func() { sh(t, "ip", "link", "set", link, "up") })
	sh(t, "ip", "link", "set", link, "down")
	within(t, patience, "the port is down", func() bool { return strings.HasPrefix(optionalText(classDir+"/rxe1/ports/1/state"), "1:") })
	m.look()
	if page := m.page(); len(page.family("gdr_probe_bytes_per_second")) > 0 {
		t.Errorf("rates of a port that is down: %v", page.family("gdr_probe_bytes_per_second"))
	}
	if code, attempt := m.measure(); code != exitProbeNotJudged || attempt.Skip != "port_not_active" {
		t.Errorf("exit code %d, %+v", code, attempt)
	}
	sh(t, "ip", "link", "set", link, "up")
	within(t, patience, "the port is up", func() bool { return strings.HasPrefix(optionalText(classDir+"/rxe1/ports/1/state"), "4:") })
	m.look()
	m.until(patience, "a full run since the port is up", func(page series) bool {
		return page[m.of("gdr_probe_result_timestamp_seconds", "depth", "full")] > first && page[m.rate("gpu")] > 0
	})
	if after := deviceResources(t, "rxe1"); after != before {
		t.Errorf("RDMA resources before %s\nafter %s", before, after)
	}
	m.wantQuietLog(t)
}

func deviceResources(t *testing.T, device string) string {
	t.Helper()
	inKernel(t)
	return sh(t, "rdma", "-j", "resource", "show", device)
}

// TestInKernelProberKilled: however the exporter ends during a run, no child,
// lock or socket of it blocks the next one.
func TestInKernelProberKilled(t *testing.T) {
	inKernel(t)
	t.Parallel()
	for _, isolation := range isolationFlags {
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			t.Run(fmt.Sprint(isolation, " ", signal), func(t *testing.T) {
				m := startMeasuring(t, "rxe3", "--probe.isolation="+isolation)
				cudatest.Set(t, m.cuda, "DOUBLE_HANG=cuMemAlloc_v2:20000")
				asked := exec.Command(os.Getenv(binaryEnv), "ctl", "--socket="+m.dir+"/socket", "probe", "--force")
				if err := asked.Start(); err != nil {
					t.Fatal(err)
				}
				within(t, patience, "the run is under way", func() bool { return strings.Contains(m.control(), m.gpu) })
				if isolation == "process" {
					within(t, patience, "the child is there", func() bool { return len(m.processes()) == 2 })
				}
				began := time.Now()
				_ = m.process.Signal(signal)
				within(t, patience, "the exporter is gone", m.gone)
				t.Logf("it ended after %v: %v", time.Since(began).Round(100*time.Millisecond), m.state)
				if signal == syscall.SIGTERM && m.state.ExitCode() != 0 {
					t.Errorf("it ended with %v", m.state)
				}
				within(t, patience, "its processes are gone", func() bool { return len(m.processes()) == 0 })
				_ = asked.Wait()
				cudatest.Set(t, m.cuda)
				m.start()
				m.wantMeasured()
				if isolation == "in-process" && signal == syscall.SIGKILL {
					// It cannot know that the run was not what ended it.
					m.wantLogged(t, 1, "level=warn", "the exporter ended during a run of")
					m.page().want(t, named("gdr_probe_isolation", "mode", "process"), 1)
				} else {
					m.wantQuietLog(t)
				}
			})
		}
	}
}

// control is the pair that is being measured, as ctl status says.
func (m *measuringExporter) control() string {
	out, _ := exec.Command(os.Getenv(binaryEnv), "ctl", "--socket="+m.dir+"/socket", "--output=json", "status").Output()
	var answer status.Control
	if err := json.Unmarshal(out, &answer); err != nil || answer.Running == nil {
		return ""
	}
	return answer.Running.GPU
}

// TestInKernelProberFaults: what goes wrong in a run, or is wanted of the daemon
// meanwhile, does not disturb scrapes. These tests run two at a time, on a device
// each, since most of what they do is wait; and before those that keep the machine busy.
func TestInKernelProberFaults(t *testing.T) {
	inKernel(t)
	for i, isolation := range isolationFlags {
		t.Run("Hang "+isolation, func(t *testing.T) {
			t.Parallel()
			testHang(t, fmt.Sprint("rxe", i), isolation)
		})
		t.Run("Quiesce "+isolation, func(t *testing.T) {
			t.Parallel()
			testQuiesce(t, fmt.Sprint("rxe", 2+i), isolation)
		})
	}
	t.Run("Crash", func(t *testing.T) {
		t.Parallel()
		testCrash(t, "rxe4")
	})
	t.Run("Sticky", func(t *testing.T) {
		t.Parallel()
		testSticky(t, "rxe5")
	})
}

// testHang: a call that never returns is reported soon after the deadline, scrapes
// do not notice, and nothing touches that GPU again. The exporter ends when told to,
// and the next one is not blocked by what it left.
func testHang(t *testing.T, device, isolation string) {
	const timeout, most = 10 * time.Second, 20 * time.Second
	m := startMeasuring(t, device, "--probe.isolation="+isolation, fmt.Sprint("--probe.timeout=", timeout))
	cudatest.Set(t, m.cuda, "DOUBLE_HANG=cuMemAlloc_v2")
	scrapes := m.keepScraping()
	began := time.Now()
	code, attempt := m.measure()
	if took := time.Since(began); code != exitProbeBad || attempt.Result != "hung" || took > most {
		t.Errorf("exit code %d after %v: %+v", code, took, attempt)
	}
	page := m.page()
	page.want(t, m.of("gdr_probe_hung"), 1)
	page.want(t, runs("full", "hung"), 1)
	cudatest.Set(t, m.cuda)
	if code, attempt := m.measure(); code != exitProbeNotJudged || attempt.Skip != "hung" {
		t.Errorf("again: exit code %d, %+v", code, attempt)
	}
	scrapes.want(t, 0)
	m.wantLogged(t, 1, "a measurement hangs", m.gpu, m.device)
	if pids := m.processes(); len(pids) != 1 {
		t.Errorf("processes %v are left of a run that hangs", pids)
	}
	began = time.Now()
	m.end(t)
	t.Logf("it ended after %v", time.Since(began).Round(100*time.Millisecond))
	m.set("--probe.timeout", "1m")
	m.start()
	m.page().want(t, m.of("gdr_probe_hung"), 0)
	m.wantMeasured()
}

// testCrash: in a process of its own, a run that dies takes nothing
// with it.
func testCrash(t *testing.T, device string) {
	before := deviceResources(t, device)
	m := startMeasuring(t, device, "--probe.isolation=process")
	m.wantMeasured()
	cudatest.Set(t, m.cuda, "DOUBLE_CRASH=cuMemAlloc_v2")
	scrapes := m.keepScraping()
	if code, attempt := m.measure(); code != exitProbeBad || attempt.Result != "crashed" || attempt.Text == "" {
		t.Errorf("exit code %d, %+v", code, attempt)
	}
	page := m.page()
	page.want(t, runs("full", "crashed"), 1)
	page.want(t, m.of("gdr_probe_hung"), 0)
	cudatest.Set(t, m.cuda)
	m.wantMeasured()
	scrapes.want(t, 0)
	m.wantLogged(t, 1, "level=info", "msg=started")
	if after := deviceResources(t, device); after != before {
		t.Errorf("RDMA resources before %s\nafter %s", before, after)
	}
}

// testQuiesce: once quiesced the exporter has no file of either
// driver open, serves on, and measures nothing; it takes both up again when told
// to or when the time is over. It stays one process all the time.
func testQuiesce(t *testing.T, device, isolation string) {
	m := startMeasuring(t, device, "--probe.isolation="+isolation)
	m.wantMeasured()
	kept := []string{"/dev/nvidiactl"} // NVML's
	if isolation == "in-process" {
		kept = []string{"/dev/nvidia-uvm", "/dev/nvidiactl"} // and libcuda's
	}
	if open := m.driverFiles(); !slices.Equal(open, kept) {
		t.Errorf("open after a run: %q", open)
	}
	scrapes := m.keepScraping()
	if code, out := m.command("quiesce", "--for=1h"); code != exitOK {
		t.Errorf("exit code %d: %s", code, out)
	}
	m.wantReleased()
	if code, attempt := m.measure(); code != exitProbeNotJudged || attempt.Skip != "quiesced" {
		t.Errorf("exit code %d, %+v", code, attempt)
	}
	m.wantReleased()
	if code, out := m.command("resume"); code != exitOK {
		t.Errorf("exit code %d: %s", code, out)
	}
	m.page().want(t, "gdr_quiesced_until_timestamp_seconds{}", 0)
	m.wantMeasured()

	if code, out := m.command("quiesce", "--for=3s"); code != exitOK {
		t.Errorf("exit code %d: %s", code, out)
	}
	m.until(patience, "the time is over", func(page series) bool { return page["gdr_quiesced_until_timestamp_seconds{}"] == 0 })
	m.wantMeasured()
	restarts := int64(m.logged("starting afresh"))
	if want := map[string]int64{"in-process": 2, "process": 0}[isolation]; restarts != want {
		t.Errorf("it started afresh %d times, want %d", restarts, want)
	}
	scrapes.want(t, restarts)
	if m.gone() {
		t.Errorf("the process has ended: %v", m.state)
	}
}

// wantReleased expects no driver file to be open, and the page to say so.
func (m *measuringExporter) wantReleased() {
	m.t.Helper()
	if open := m.driverFiles(); len(open) > 0 {
		m.t.Errorf("still open: %q", open)
	}
	page := m.scrapePath("/metrics")
	page.want(m.t, named("gdr_gpu_nvml_state", "state", "quiesced"), 1)
	if until := page["gdr_quiesced_until_timestamp_seconds{}"]; until <= float64(time.Now().Unix()) {
		m.t.Errorf("quiesced until %v", until)
	}
	if page[m.rate("gpu")] <= 0 {
		m.t.Error("what was measured before is gone from the page")
	}
	if open := m.driverFiles(); len(open) > 0 {
		m.t.Errorf("open after a scrape: %q", open)
	}
}

// testSticky: after a CUDA error that outlives its context the
// exporter starts itself afresh, as the same process, and the next run works.
func testSticky(t *testing.T, device string) {
	m := startMeasuring(t, device)
	m.wantMeasured()
	once := m.dir + "/once"
	writeFile(t, once, "")
	cudatest.Set(t, m.cuda, "DOUBLE_STICKY=cuMemAlloc_v2:719", "DOUBLE_ONCE="+once)
	scrapes := m.keepScraping()
	if code, attempt := m.measure(); code == exitOK || attempt.Result == "fine" {
		t.Errorf("exit code %d, %+v", code, attempt)
	}
	within(t, patience, "it has started afresh", func() bool { return m.logged("level=info", "msg=started") == 2 && m.ready() })
	m.wantMeasured()
	scrapes.want(t, 1)
	m.wantLogged(t, 1, "starting afresh", "CUDA does not work in this process any more")
	if m.gone() {
		t.Errorf("the process has ended: %v", m.state)
	}
}

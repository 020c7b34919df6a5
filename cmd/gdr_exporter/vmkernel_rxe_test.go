package main

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gdr_exporter/rdma/rdmatest"
)

// Tests on soft-RoCE devices rxe0 to rxe7. Each changes a device of its own and
// puts it back.

// Every sample equals what sysfs and rdma(8) say at that moment, and there is
// no other.
func TestInKernelValues(t *testing.T) {
	inKernel(t)
	e := startFresh(t)
	began := float64(time.Now().Unix())
	page := e.wantAsInSysfs(t, nil)
	wantAsRDMATool(t, page)
	slowReads := page.family("gdr_rdma_device_slow_read_timestamp_seconds")
	for key, at := range slowReads {
		if at < began || at > float64(time.Now().Unix()+1) {
			t.Errorf("%s is %f, after %f", key, at, began)
		}
	}
	if len(slowReads) != 8 {
		t.Errorf("%d devices, want 8", len(slowReads))
	}
	e.wantQuietLog(t)
	t.Logf("%d series of %d devices as in sysfs", len(page), len(slowReads))
}

// Traffic of perftest shows on its device and on no other, while it flows and
// after.
func TestInKernelTraffic(t *testing.T) {
	inKernel(t)
	e := startFresh(t)
	before := e.wantAsInSysfs(t, nil)
	ended := make(chan struct{})
	traffic := startTraffic(t, "rxe0")
	go func() {
		defer close(ended)
		traffic.wait(t)
	}()
	during := 0
	for running := true; running; during++ {
		select {
		case <-ended:
			running = false
		default:
		}
		e.wantAsInSysfs(t, nil)
	}
	after := e.wantAsInSysfs(t, nil)
	for _, file := range []string{"sent_pkts", "rcvd_pkts"} {
		key := named("gdr_rdma_port_hw_"+file+"_total", "device", "rxe0", "port", "1")
		after.want(t, key, number(t, classDir+"/rxe0/ports/1/hw_counters/"+file))
		if grown := after[key] - before[key]; grown < 1000 {
			t.Errorf("%s grew by %v only", key, grown)
		} else {
			t.Logf("%s grew by %v, with %d scrapes meanwhile", key, grown, during)
		}
	}
	for key, value := range before {
		if strings.HasPrefix(key, "gdr_rdma_port_hw_") && !isAbout(key, "rxe0") {
			after.want(t, key, value)
		}
	}
	e.wantQuietLog(t)
}

// perftest is a pair of ib_write_bw that talk to each other over one device.
type perftest struct {
	device         string
	server, client *exec.Cmd
	output         *lockedBuffer
}

// startTraffic writes 64 MB in messages of 64 KB. -F: perftest is not to fail
// because the processor's frequency, which it converts cycles by, wavers.
func startTraffic(t *testing.T, device string) perftest {
	t.Helper()
	args := []string{"-F", "-d", device, "-x", "1", "-n", "1000"}
	p := perftest{device, exec.Command("ib_write_bw", args...), exec.Command("ib_write_bw", append(args, "127.0.0.1")...), &lockedBuffer{}}
	for _, cmd := range []*exec.Cmd{p.server, p.client} {
		cmd.Stdout, cmd.Stderr = p.output, p.output
	}
	if err := p.server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("ib_write_bw:\n%s", p.output)
		}
	})
	within(t, patience, "ib_write_bw listens", func() bool { return rdmatest.Listens(perftestPort) })
	if err := p.client.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// perftestPort is where perftest's servers listen if they are told nothing else.
const perftestPort = 18515

// wait waits until all is written. perftest ends at any trouble, and soft-RoCE makes some
// on a busy machine: then it is all written again.
func (p perftest) wait(t *testing.T) {
	t.Helper()
	const attempts = 3
	for n := 1; ; n++ {
		err := p.client.Wait()
		if err != nil {
			_ = p.server.Process.Kill() // it may wait for ever
		}
		err = errors.Join(err, p.server.Wait())
		switch {
		case err == nil:
			return
		case n == attempts:
			t.Errorf("ib_write_bw: %v\n%s", err, p.output)
			return
		}
		t.Logf("ib_write_bw, attempt %d: %v\n%s", n, err, p.output)
		p = startTraffic(t, p.device)
	}
}

// notGIDs leaves out the one thing that is not read anew when a port changes:
// the count of GIDs, of which the addresses of a port that was down are a part.
func notGIDs(key string) bool { return !strings.HasPrefix(key, "gdr_rdma_port_gids{") }

// A link that goes down shows in the very next scrape, though the slow group is
// on its usual minute.
func TestInKernelLinkDown(t *testing.T) {
	inKernel(t)
	e := vmLaunch{args: []string{"--scrape.max-age=0s"}}.start(t)
	state := named("gdr_rdma_port_state_id", "device", "rxe2", "port", "1")
	carrier := named("gdr_rdma_port_carrier_changes_total", "device", "rxe2", "port", "1")
	up := e.wantAsInSysfs(t, notGIDs)
	up.want(t, state, 4)

	sh(t, "ip", "link", "set", "veth2", "down")
	down := e.wantAsInSysfs(t, notGIDs)
	down.want(t, state, 1)
	if down[carrier] <= up[carrier] {
		t.Errorf("%s was %v and is %v", carrier, up[carrier], down[carrier])
	}

	sh(t, "ip", "link", "set", "veth2", "up")
	within(t, patience, "rxe2 is active again", func() bool {
		return strings.HasPrefix(optionalText(classDir+"/rxe2/ports/1/state"), "4:")
	})
	again := e.wantAsInSysfs(t, notGIDs)
	again.want(t, state, 4)
	t.Logf("state 4, 1, 4 in consecutive scrapes; carrier changes %v, %v, %v", up[carrier], down[carrier], again[carrier])
	e.wantQuietLog(t)
}

// A renamed device has all its series under the new name in the next scrape,
// and none under the old one, although its open files go on reading.
func TestInKernelRename(t *testing.T) {
	inKernel(t)
	e := vmLaunch{args: []string{"--scrape.max-age=0s"}}.start(t)
	old := e.wantAsInSysfs(t, nil).about("rxe1")
	for range 5 {
		sh(t, "rdma", "dev", "set", "rxe1", "name", "foo7")
		page := e.wantAsInSysfs(t, nil)
		if renamed := page.about("foo7"); len(renamed) != len(old) {
			t.Errorf("%d series of foo7, rxe1 had %d", len(renamed), len(old))
		}
		if left := page.about("rxe1"); len(left) > 0 {
			t.Errorf("left of rxe1: %v", left)
		}
		page.wantNone(t, "gdr_read_errors_total")

		sh(t, "rdma", "dev", "set", "foo7", "name", "rxe1")
		page = e.wantAsInSysfs(t, nil)
		page.wantNone(t, "gdr_read_errors_total")
	}
	e.wantQuietLog(t)
	t.Logf("%d series moved to the new name and back, 5 times", len(old))
}

// A device that is deleted and added 200 times while two scrapers are at work
// harms no other, and nothing is left open.
func TestInKernelHotPlug(t *testing.T) {
	inKernel(t)
	e := vmLaunch{args: []string{"--scrape.max-age=0s"}}.start(t)
	e.scrape(t)
	plug(t, 10) // the scraping before it counts is the warm-up
	e.scrape(t)
	s := scrapers{exporter: e, healthy: e.wantAsInSysfs(t, nil), flapping: "rxe7"}
	files, goroutines := e.settled(t)

	began := time.Now()
	stop := s.start(2)
	plug(t, 200)
	took := time.Since(began)
	stop()

	for _, problem := range s.problems {
		t.Error(problem)
	}
	t.Logf("200 cycles in %v; %d scrapes, of which %d had all of rxe7, %d a part, %d nothing",
		took.Round(time.Millisecond), s.scrapes.Load(), s.whole.Load(), s.partial.Load(), s.absent.Load())
	if s.scrapes.Load() < 20 {
		t.Errorf("only %d scrapes", s.scrapes.Load())
	}
	e.wantFlat(t, files, goroutines)
	page := e.wantAsInSysfs(t, nil)
	page.wantNone(t, "gdr_read_errors_total")
	e.wantQuietLog(t)
}

// plug deletes and adds rxe7, over and over. Each cycle is a process of its own:
// rdma(8) looks devices up once, when it starts.
func plug(t *testing.T, cycles int) {
	t.Helper()
	for range cycles {
		cmd := exec.Command("rdma", "-b", "-")
		cmd.Stdin = strings.NewReader("link delete rxe7\nlink add rxe7 type rxe netdev veth7\n")
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("rdma: %v\n%s", err, output)
		}
	}
	within(t, patience, "rxe7 is active", func() bool {
		return strings.HasPrefix(optionalText(classDir+"/rxe7/ports/1/state"), "4:")
	})
}

// settled returns the numbers of open files and goroutines of an exporter that
// is at rest: the lowest of several, since connections that were just closed
// count for a moment.
func (e *vmExporter) settled(t *testing.T) (files int, goroutines float64) {
	t.Helper()
	for i := range 5 {
		page := e.scrape(t)
		open := e.openFiles(t)
		if i == 0 || open < files {
			files = open
		}
		if n := page["go_goroutines{}"]; i == 0 || n < goroutines {
			goroutines = n
		}
	}
	return files, goroutines
}

// wantFlat expects about the numbers that settled gave before. Connections that
// are being closed make a few more; a leak makes one for each scrape.
func (e *vmExporter) wantFlat(t *testing.T, files int, goroutines float64) {
	t.Helper()
	// Files may be up by those of one device that netlink did not answer for in
	// the moment of its making, so that sysfs serves for it.
	const few = 24
	filesNow, goroutinesNow := e.settled(t)
	t.Logf("open files %d, then %d; goroutines %v, then %v", files, filesNow, goroutines, goroutinesNow)
	if filesNow > files+few || goroutinesNow > goroutines+few {
		t.Error("files or goroutines have piled up")
	}
}

// scrapers scrape as fast as they can and watch the devices that nobody touches.
type scrapers struct {
	exporter *vmExporter
	healthy  series // a page with every device
	flapping string // the device that comes and goes

	scrapes, whole, partial, absent atomic.Int32

	mu       sync.Mutex
	problems []string
}

// start starts n scrapers and returns what ends them.
func (s *scrapers) start(n int) (stop func()) {
	quit := make(chan struct{})
	var group sync.WaitGroup
	for range n {
		group.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
					s.scrape()
				}
			}
		})
	}
	return func() {
		close(quit)
		group.Wait()
	}
}

func (s *scrapers) scrape() {
	s.scrapes.Add(1)
	page, err := s.exporter.tryScrape()
	if err != nil {
		s.complain("scrape: %v", err)
		return
	}
	for key := range s.healthy {
		if _, found := page[key]; !found && strings.Contains(key, "device=") && !isAbout(key, s.flapping) {
			s.complain("missing: %s", key)
		}
	}
	for key, count := range page.family("gdr_read_errors_total") {
		s.complain("%s %v", key, count)
	}
	switch flapping := len(page.about(s.flapping)); {
	case flapping == 0:
		s.absent.Add(1)
	case flapping < len(s.healthy.about(s.flapping)):
		s.partial.Add(1)
	default:
		s.whole.Add(1)
	}
}

// complain notes a problem, each once.
func (s *scrapers) complain(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.problems) < 50 && !slices.Contains(s.problems, text) {
		s.problems = append(s.problems, text)
	}
}

// Seen from another network namespace the kernel leaves the counters out of
// sysfs; the exporter says so instead of showing a device without counters.
func TestInKernelNetns(t *testing.T) {
	inKernel(t)
	sh(t, "ip", "netns", "add", "far")
	t.Cleanup(func() { sh(t, "ip", "netns", "delete", "far") })
	sh(t, "ip", "netns", "exec", "far", "ip", "link", "set", "lo", "up")
	e := vmLaunch{args: append([]string{"--no-rdma.netlink"}, fresh...), netns: "far"}.start(t)
	for range 5 {
		page := e.scrape(t)
		page.want(t, named("gdr_scrape_collector_success", "collector", "rdma"), 1)
		page.want(t, "gdr_rdma_devices{}", 8)
		for _, device := range deviceNames(t) {
			page.want(t, named("gdr_rdma_device_counters_hidden", "device", device), 1)
			page.want(t, named("gdr_rdma_port_state_id", "device", device, "port", "1"), 4)
		}
		page.wantNone(t, "gdr_rdma_port_hw_sent_pkts_total")
		page.wantNone(t, "gdr_read_errors_total")
	}
	for _, device := range deviceNames(t) {
		e.wantLogged(t, 1, "counters hidden", "device="+device)
	}
	e.wantLogged(t, 1, "a privilege is missing", "missing=\"the host's network namespace\"")
	if n := e.logged("level=warn"); n != 9 {
		t.Errorf("%d warnings, want one for each of 8 devices and one for the namespace", n)
	}
}

// nobody is the user with the fewest rights, without supplementary groups.
const nobody = 65534

// Without any privilege the page is the same.
func TestInKernelUnprivileged(t *testing.T) {
	inKernel(t)
	e := vmLaunch{args: fresh, user: nobody}.start(t)
	status := readText(t, fmt.Sprintf("/proc/%d/status", e.process.Pid))
	if !strings.Contains(status, "CapEff:\t0000000000000000") || !strings.Contains(status, "Uid:\t65534") {
		t.Errorf("not unprivileged:\n%s", status)
	}
	page := e.wantAsInSysfs(t, nil)
	wantAsRDMATool(t, page)
	page.wantNone(t, "gdr_read_errors_total")
	e.wantQuietLog(t)
}

package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Tests on the devices gdrtest0 and gdrtest1 of cmd/vmtest's test module, each
// with two InfiniBand ports, beside eight healthy soft-RoCE devices.

// sick and well are the port with the faults and its neighbour.
var (
	sick = []string{"device", "gdrtest0", "port", "1"}
	well = []string{"device", "gdrtest0", "port", "2"}
)

const parameters = "/sys/module/gdrtest_ib/parameters"

// setModule sets parameters of the module, names and values in turn, until the
// test ends. Unless told otherwise, faults are the first port's.
func setModule(t *testing.T, namesAndValues ...string) {
	t.Helper()
	all := append([]string{"fault_device", "0", "fault_port", "1"}, namesAndValues...)
	for i := 0; i+1 < len(all); i += 2 {
		file := filepath.Join(parameters, all[i])
		before := readText(t, file)
		writeParameter(t, file, all[i+1])
		t.Cleanup(func() { writeParameter(t, file, before) })
	}
}

func writeParameter(t *testing.T, file, value string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(value), 0); err != nil {
		t.Error(err)
	}
}

// except accepts the series of all devices but one.
func except(device string) func(string) bool {
	return func(key string) bool { return !isAbout(key, device) }
}

// exceptPort accepts all series but those of one port of gdrtest0.
func exceptPort(port string) func(string) bool {
	return func(key string) bool {
		return !isAbout(key, "gdrtest0") || !strings.Contains(key, fmt.Sprintf("port=%q", port))
	}
}

// healthyAsInSysfs scrapes, and expects all but one port of gdrtest0 as in
// sysfs. The expectation is read while the port is well, since reading it
// otherwise fails or hangs.
func healthyAsInSysfs(t *testing.T, e *vmExporter, healthy series) series {
	t.Helper()
	page := e.scrape(t)
	compare(t, healthy, page, healthy, exceptPort("1"))
	return page
}

// Every state of an InfiniBand port shows as the kernel numbers it: INIT is
// what a port without subnet manager has.
func TestInKernelPortStates(t *testing.T) {
	inKernel(t)
	e := startSysfs(t)
	e.wantAsInSysfs(t, nil)
	setModule(t)
	for _, states := range [][2]string{{"2", "5"}, {"3", "5"}, {"1", "2"}, {"1", "3"}, {"1", "4"}, {"4", "6"}, {"5", "5"}, {"0", "1"}, {"9", "7"}, {"4", "5"}} {
		writeParameter(t, parameters+"/port_state", states[0])
		writeParameter(t, parameters+"/phys_state", states[1])
		page := e.wantAsInSysfs(t, nil)
		page.want(t, named("gdr_rdma_port_state_id", sick...), parseNumber(t, "state", states[0], 10))
		page.want(t, named("gdr_rdma_port_physical_state_id", sick...), parseNumber(t, "state", states[1], 10))
		page.want(t, named("gdr_rdma_port_state_id", well...), 4)
		page.wantNone(t, "gdr_read_errors_total")
	}
	e.wantQuietLog(t)
}

// A port whose query fails has no state: neither DOWN nor any other. All else
// stays, and the failure is counted by its errno.
func TestInKernelQueryPortFails(t *testing.T) {
	inKernel(t)
	healthy := sysfsSeries(t)
	errnos := map[string]string{"4": "EINTR", "5": "EIO", "11": "EAGAIN", "19": "ENODEV", "22": "EINVAL", "110": "ETIMEDOUT", "524": "ENOTSUPP"}
	for errno, name := range errnos {
		t.Run(name, func(t *testing.T) {
			e := startSysfs(t)
			e.scrape(t)
			setModule(t, "query_port_errno", errno)
			// ENODEV counts only once the device has stayed nevertheless.
			within(t, patience, "the error is counted", func() bool {
				return e.scrape(t)[readErrorOf("gdrtest0", "1", "sm_lid", name)] > 0
			})
			page := healthyAsInSysfs(t, e, healthy)
			for _, family := range []string{"state_id", "physical_state_id", "rate_bytes_per_second", "width_lanes", "lid", "sm_lid"} {
				if value, found := page[named("gdr_rdma_port_"+family, sick...)]; found {
					t.Errorf("%s is %v", family, value)
				}
			}
			for _, file := range []string{"state", "phys_state", "rate", "lid", "sm_lid"} {
				if key := readErrorOf("gdrtest0", "1", file, name); page[key] < 1 {
					t.Errorf("not counted: %s", key)
				}
			}
			page.want(t, named("gdr_rdma_port_symbol_error_total", sick...), 0)
			page.want(t, named("gdr_rdma_port_hw_out_of_buffer_total", sick...), 0)
			if n := len(page.family("gdr_read_errors_total")); n != 5 {
				t.Errorf("%d kinds of error, want 5: %v", n, page.family("gdr_read_errors_total"))
			}
			e.wantLogged(t, 1, "cannot read", "device=gdrtest0", "port=1", "source=state", "errno="+name)
			writeParameter(t, parameters+"/query_port_errno", "0")
			e.wantAsInSysfs(t, func(key string) bool { return !strings.HasPrefix(key, "gdr_read_errors_total{") })
		})
	}
}

// A port whose counters all refuse is marked and left alone: no further query
// reaches the driver, and with it no further line the kernel's log.
func TestInKernelCountersRefuse(t *testing.T) {
	inKernel(t)
	healthy := sysfsSeries(t)
	setModule(t, "counters_errno", "1")
	e := startSysfs(t)
	page := healthyAsInSysfs(t, e, healthy)
	page.want(t, named("gdr_rdma_port_restricted", append(sick, "source", "counters")...), 1)
	page.want(t, named("gdr_rdma_port_restricted", append(sick, "source", "hw_counters")...), 0)
	page.want(t, named("gdr_rdma_port_restricted", append(well, "source", "counters")...), 0)
	page.want(t, named("gdr_rdma_port_state_id", sick...), 4)
	page.want(t, named("gdr_rdma_port_hw_out_of_buffer_total", sick...), 0)
	if value, found := page[named("gdr_rdma_port_symbol_error_total", sick...)]; found {
		t.Errorf("symbol_error is %v", value)
	}
	errorsBefore := page.family("gdr_read_errors_total")
	if key := readErrorOf("gdrtest0", "1", "counters/symbol_error", "EINVAL"); page[key] < 1 {
		t.Errorf("not counted: %s", key)
	}

	// From here on asking for the counters would hang.
	setModule(t, "counters_delay_ms", "100000000")
	began := time.Now()
	for range 50 {
		page = healthyAsInSysfs(t, e, healthy)
		page.want(t, named("gdr_rdma_port_hw_out_of_buffer_total", sick...), 0)
	}
	t.Logf("50 scrapes of %v each did not ask for the counters", (time.Since(began) / 50).Round(time.Millisecond))
	if n := e.threadsInModule(t); n != 0 {
		t.Errorf("%d threads ask for the counters", n)
	}
	for key, count := range page.family("gdr_read_errors_total") {
		if count != errorsBefore[key] {
			t.Errorf("%s was %v and is %v", key, errorsBefore[key], count)
		}
	}
	e.wantLogged(t, 1, "every counter file refuses", "device=gdrtest0", "port=1")
}

// Of a device that is left out the driver is asked for nothing: here whatever
// it were asked for would hang.
func TestInKernelExcluded(t *testing.T) {
	inKernel(t)
	healthy := sysfsSeries(t)
	setModule(t, "fault_port", "0", "query_port_delay_ms", "100000000", "counters_delay_ms", "100000000", "hw_stats_delay_ms", "100000000")
	e := startSysfs(t, "--rdma.device-exclude=gdrtest[02-9]")
	for range 5 {
		page := e.scrape(t)
		page.want(t, "gdr_rdma_devices{}", 9)
		page.want(t, "gdr_rdma_devices_excluded{}", 1)
		compare(t, healthy, page, healthy, func(key string) bool {
			return strings.Contains(key, "device=") && !isAbout(key, "gdrtest0")
		})
		if rest := page.about("gdrtest0"); len(rest) > 0 {
			t.Errorf("left of the excluded device: %v", rest)
		}
	}
	if n := e.threadsInModule(t); n != 0 {
		t.Errorf("%d threads ask the excluded device", n)
	}
	e.wantQuietLog(t)
}

// Counters of the InfiniBand specification stick at their largest value, which
// shows; the 64-bit ones do not stick, and their words come out as bytes.
func TestInKernelCountersSaturate(t *testing.T) {
	inKernel(t)
	setModule(t, "saturate", "1", "port_rcv_data", "1000000000001", "port_xmit_data", "2000000000003", "port_rcv_packets", "77")
	e := startSysfs(t)
	page := e.wantAsInSysfs(t, nil)
	for file, largest := range pmaLargest {
		page.want(t, named("gdr_rdma_port_counter_saturated", append(sick, "counter", file)...), 1)
		stem := strings.ToLower(strings.TrimPrefix(file, "port_"))
		page.want(t, named("gdr_rdma_port_"+stem+"_total", sick...), largest)
	}
	page.want(t, named("gdr_rdma_port_saturated_counters", sick...), float64(len(pmaLargest)))
	page.want(t, named("gdr_rdma_port_saturated_counters", well...), 0)
	if n := len(page.family("gdr_rdma_port_counter_saturated")); n != len(pmaLargest) {
		t.Errorf("%d series of gdr_rdma_port_counter_saturated, want %d", n, len(pmaLargest))
	}
	page.want(t, named("gdr_rdma_port_rcv_data_bytes_total", sick...), 4000000000004)
	page.want(t, named("gdr_rdma_port_receive_bytes_total", sick...), 4000000000004)
	page.want(t, named("gdr_rdma_port_xmit_data_bytes_total", sick...), 8000000000012)
	page.want(t, named("gdr_rdma_port_transmit_bytes_total", sick...), 8000000000012)
	page.want(t, named("gdr_rdma_port_rcv_packets_total", sick...), 77)
	e.wantQuietLog(t)
}

// threadsInModule counts the exporter's threads that are inside the test module:
// the most of several looks, since the module sleeps in short turns, and a
// thread that runs between two of them shows no stack.
func (e *vmExporter) threadsInModule(t *testing.T) int {
	t.Helper()
	most := 0
	for range 10 {
		stacks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stack", e.process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, stack := range stacks {
			if strings.Contains(optionalText(stack), "[gdrtest_ib]") {
				n++
			}
		}
		most = max(most, n)
		time.Sleep(15 * time.Millisecond)
	}
	return most
}

// A counter file whose read never returns costs its own device and one thread;
// the page comes in time with all others.
func TestInKernelHang(t *testing.T) {
	inKernel(t)
	e := vmLaunch{args: []string{"--scrape.max-age=0s", "--scrape.deadline=2s", "--no-rdma.netlink"}}.start(t)
	healthy := sysfsSeries(t)
	stuck := named("gdr_device_read_stuck", "collector", "rdma", "device", "gdrtest0")
	e.wantAsInSysfs(t, nil)
	setModule(t, "counters_delay_ms", "100000000")

	began := time.Now()
	page := e.scrape(t)
	waited := time.Since(began)
	if waited > 3*time.Second {
		t.Errorf("the page took %v, deadline 2s", waited)
	}
	compare(t, healthy, page, healthy, except("gdrtest0"))
	page.want(t, stuck, 1)
	if state, found := page[named("gdr_rdma_port_state_id", sick...)]; found {
		t.Errorf("the device that does not answer has state %v", state)
	}

	files, goroutines := e.settled(t)
	began = time.Now()
	for range 100 {
		page = e.scrape(t)
		page.want(t, stuck, 1)
		compare(t, healthy, page, healthy, except("gdrtest0"))
	}
	each := time.Since(began) / 100
	if n := e.threadsInModule(t); n != 1 {
		t.Errorf("%d threads hang after 100 scrapes", n)
	}
	e.wantFlat(t, files, goroutines)
	t.Logf("the first page took %v, the next hundred %v each", waited.Round(time.Millisecond), each.Round(time.Millisecond))

	writeParameter(t, parameters+"/counters_delay_ms", "0")
	within(t, patience, "gdrtest0 is back", func() bool { return e.scrape(t)[stuck] == 0 })
	e.wantAsInSysfs(t, nil)
	e.wantLogged(t, 1, "does not return", "device=gdrtest0")
	e.wantLogged(t, 1, "answers again", "device=gdrtest0")
}

// startHanging starts an exporter with a scrape that waits for a device.
func startHanging(t *testing.T) (e *vmExporter, scraped *atomic.Pointer[error]) {
	t.Helper()
	e = startSysfs(t, "--scrape.deadline=1m")
	e.scrape(t)
	setModule(t, "counters_delay_ms", "100000000")
	scraped = &atomic.Pointer[error]{}
	go func() {
		page, err := e.tryScrape()
		if err == nil && len(page.about("rxe0")) == 0 {
			err = fmt.Errorf("a page without rxe0")
		}
		scraped.Store(&err)
	}()
	within(t, patience, "a thread hangs", func() bool { return e.threadsInModule(t) == 1 })
	return e, scraped
}

// refuses waits until the listener is closed and returns how long that took.
func (e *vmExporter) refuses(t *testing.T, since time.Time) time.Duration {
	t.Helper()
	within(t, patience, "the listener is closed", func() bool {
		conn, err := net.Dial("tcp", e.address)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	return time.Since(since)
}

// SIGTERM ends the process at once where the kernel lets the hanging read be
// killed; the scrape that waits is served with what there is.
func TestInKernelStopWhileHanging(t *testing.T) {
	inKernel(t)
	e, scraped := startHanging(t)
	began := time.Now()
	if err := e.process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	closed := e.refuses(t, began)
	select {
	case <-e.ended:
	case <-time.After(patience):
		t.Fatal("the exporter does not end")
	}
	took := time.Since(began)
	if closed > time.Second || took > 2*time.Second {
		t.Errorf("closed after %v, ended after %v", closed, took)
	}
	within(t, patience, "the waiting scrape is answered", func() bool { return scraped.Load() != nil })
	if err := *scraped.Load(); err != nil {
		t.Errorf("the waiting scrape: %v", err)
	}
	if code := e.state.ExitCode(); code != 0 {
		t.Errorf("ended with %v", e.state)
	}
	t.Logf("the listener closed after %v, the process ended after %v", closed.Round(time.Millisecond), took.Round(time.Millisecond))
}

// Where not even SIGKILL ends the read, the process cannot go, but nobody is
// left waiting for it: the listener closes at once.
func TestInKernelStopWhileUninterruptible(t *testing.T) {
	inKernel(t)
	setModule(t, "delay_uninterruptible", "1")
	e, scraped := startHanging(t)
	began := time.Now()
	if err := e.process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	closed := e.refuses(t, began)
	if closed > time.Second {
		t.Errorf("the listener closed after %v", closed)
	}
	within(t, patience, "the waiting scrape is answered", func() bool { return scraped.Load() != nil })
	if err := *scraped.Load(); err != nil {
		t.Errorf("the waiting scrape: %v", err)
	}
	within(t, patience, "the process is a zombie", func() bool { return e.statusLetter() == "Z" })
	if n := e.threadsInModule(t); n != 1 || e.gone() {
		t.Errorf("%d threads hang; gone: %v", n, e.gone())
	}
	writeParameter(t, parameters+"/counters_delay_ms", "0")
	select {
	case <-e.ended:
	case <-time.After(patience):
		t.Fatal("the exporter does not end")
	}
	if code := e.state.ExitCode(); code != 0 {
		t.Errorf("ended with %v", e.state)
	}
	t.Logf("the listener closed after %v; the process was a zombie until the read returned", closed.Round(time.Millisecond))
}

// statusLetter returns the process's state as /proc has it: S, Z, ...
func (e *vmExporter) statusLetter() string {
	stat := optionalText("/proc/" + strconv.Itoa(e.process.Pid) + "/stat")
	_, rest, _ := strings.Cut(stat, ") ")
	letter, _, _ := strings.Cut(rest, " ")
	return letter
}

package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// Lines as the kernel writes them, for users to write who are not the kernel.
const (
	aerText = "pcieport 0000:44:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)"
	xidText = "NVRM: Xid (PCI:0000:43:00): 79, pid=1, name=x, GPU has fallen off the bus."
)

// scrapeLog returns the page of the kernel's log.
func (e *vmExporter) scrapeLog(t *testing.T) series {
	t.Helper()
	code, body, err := e.get("/metrics?collect[]=kmsg")
	if err != nil || code != http.StatusOK {
		t.Fatalf("status %d, %v: %s", code, err, body)
	}
	page, err := parsePage(body)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// ofPattern names a series of a pattern.
func ofPattern(name, pattern string) string { return named(name, "pattern", pattern) }

// writeLog writes lines into the kernel's log, as users may.
func writeLog(t *testing.T, lines ...string) {
	t.Helper()
	file, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for _, line := range lines {
		if _, err := file.WriteString(line); err != nil { // one write is one record
			t.Fatal(err)
		}
	}
}

// unlimited lets users write as many lines as they want.
func unlimited(t *testing.T) {
	t.Helper()
	const path = "/proc/sys/kernel/printk_devkmsg"
	before := strings.TrimSpace(readText(t, path))
	writeFile(t, path, "on\n")
	t.Cleanup(func() { writeFile(t, path, before+"\n") })
}

// TestInKernelKernelLog: a line of the kernel's counts, with the time at which it
// was written; the same text counts for nothing if a user wrote it. What the log
// had before the exporter began is seen and not counted.
func TestInKernelKernelLog(t *testing.T) {
	inKernel(t)
	unlimited(t)
	correctable := ofPattern("gdr_kernel_log_events_total", "aer_correctable")
	last := ofPattern("gdr_kernel_log_last_event_timestamp_seconds", "aer_correctable")
	e := startFresh(t, standIn)
	page := e.scrapeLog(t)
	page.want(t, "gdr_kernel_log_readable{}", 1)
	page.want(t, "gdr_kernel_log_lost_total{}", 0)
	page.want(t, correctable, 0)
	if n := len(page.family("gdr_kernel_log_events_total")); n != 20 {
		t.Errorf("%d patterns", n)
	}
	writeLog(t, aerText, "<3>"+aerText, "<0>"+xidText, xidText) // with a level of the kernel's too
	began := time.Now()
	injectBadTLP(t, gdrNIC0)
	within(t, patience, "the line counts", func() bool { return e.scrapeLog(t)[correctable] > 0 })
	page = e.scrapeLog(t)
	page.want(t, correctable, 1)
	page.want(t, ofPattern("gdr_kernel_log_events_total", "xid"), 0)
	if seen, found := page[ofPattern("gdr_kernel_log_last_event_timestamp_seconds", "xid")]; found {
		t.Errorf("an Xid was seen at %v", seen)
	}
	when := time.Unix(0, int64(page[last]*1e9))
	if when.Before(began.Add(-2*time.Second)) || when.After(time.Now().Add(2*time.Second)) {
		t.Errorf("the line is of %v, it was written after %v", when, began)
	}
	t.Logf("the line is of %v after the error was injected", when.Sub(began))
	e.wantQuietLog(t)

	again := startFresh(t, standIn)
	page = again.scrapeLog(t)
	page.want(t, correctable, 0)
	if shown := time.Unix(0, int64(page[last]*1e9)); shown.Sub(when).Abs() > 2*time.Second {
		t.Errorf("a line of the past is of %v, was of %v", shown, when)
	}
}

// TestInKernelKernelLogFlood: users write more than the log holds while the
// exporter rests. It says that records are lost, goes on, and stays cheap.
func TestInKernelKernelLogFlood(t *testing.T) {
	inKernel(t)
	unlimited(t)
	e := startFresh(t, standIn)
	e.scrapeLog(t)
	correctable := ofPattern("gdr_kernel_log_events_total", "aer_correctable")
	cpu := cpuTicks(t, e.process.Pid)
	noise := make([]string, 20000) // of the lowest level, which consoles do not show
	for i := range noise {
		noise[i] = fmt.Sprintf("<7>noise %d %s", i, strings.Repeat("x", 200))
	}
	writeLog(t, noise...)
	within(t, patience, "records are lost", func() bool { return e.scrapeLog(t)["gdr_kernel_log_lost_total{}"] > 0 })
	injectBadTLP(t, gdrNIC4)
	within(t, patience, "the exporter reads on", func() bool { return e.scrapeLog(t)[correctable] > 0 })
	page := e.scrapeLog(t)
	page.want(t, "gdr_kernel_log_readable{}", 1)
	t.Logf("of %d lines %v were lost, %d ticks of processor time", len(noise), page["gdr_kernel_log_lost_total{}"], cpuTicks(t, e.process.Pid)-cpu)
	e.wantQuietLog(t)
}

// cpuTicks is the processor time that a process has used (man 5 proc, fields 14
// and 15 of stat).
func cpuTicks(t *testing.T, pid int) int {
	t.Helper()
	_, rest, _ := strings.Cut(readText(t, fmt.Sprintf("/proc/%d/stat", pid)), ") ")
	fields := strings.Fields(rest)
	var user, system int
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return user + system
}

// TestInKernelKernelLogUnprivileged: where the log is for the privileged alone the
// exporter says so once, as no fault, and the rest goes on.
func TestInKernelKernelLogUnprivileged(t *testing.T) {
	inKernel(t)
	const restrict = "/proc/sys/kernel/dmesg_restrict"
	before := strings.TrimSpace(readText(t, restrict))
	t.Cleanup(func() { writeFile(t, restrict, before+"\n") })
	writeFile(t, restrict, "1\n")
	e := vmLaunch{args: append([]string{standIn}, fresh...), user: 65534}.start(t)
	page := e.scrapeLog(t)
	page.want(t, "gdr_kernel_log_readable{}", 0)
	for _, family := range []string{"gdr_kernel_log_events_total", "gdr_kernel_log_lost_total", "gdr_kernel_log_last_event_timestamp_seconds", "gdr_read_errors_total"} {
		page.wantNone(t, family)
	}
	if n := len(e.scrape(t).family("gdr_rdma_port_state_id")); n != 2 {
		t.Errorf("%d ports", n)
	}
	e.wantLogged(t, 1, "the kernel's log cannot be read", "device=EPERM")
	e.wantQuietLog(t)
}

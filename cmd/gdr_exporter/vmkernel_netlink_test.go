package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// shared returns the series that both netlink and sysfs can tell: counters of
// hw_counters, states and identity.
func shared(page series) series {
	some := series{}
	for key, value := range page {
		for _, family := range []string{"gdr_rdma_port_state_id{", "gdr_rdma_port_physical_state_id{", "gdr_rdma_port_lid{", "gdr_rdma_port_sm_lid{", "gdr_rdma_port_hw_"} {
			if strings.HasPrefix(key, family) && !strings.Contains(key, "lifespan") {
				some[key] = value
			}
		}
	}
	return some
}

// Netlink beside sysfs, netlink alone and sysfs alone tell the same, and what
// only netlink knows is what rdma(8) says.
func TestInKernelNetlink(t *testing.T) {
	inKernel(t)
	both, sysfs := startFresh(t), startSysfs(t)
	empty := t.TempDir()
	alone := startFresh(t, "--path.sysfs="+empty)
	traffic := startTraffic(t, "rxe0")
	traffic.wait(t)

	want := shared(sysfs.scrape(t))
	page := both.scrape(t)
	if len(want) < 8*16 || !maps.Equal(want, shared(page)) {
		t.Errorf("%d series from sysfs, %d with netlink, not equal", len(want), len(shared(page)))
	}
	if fromNetlink := shared(alone.scrape(t)); !maps.Equal(want, fromNetlink) {
		t.Errorf("%d series from sysfs, %d from netlink alone, not equal", len(want), len(fromNetlink))
	}
	page.want(t, "gdr_rdma_netlink_up{}", 1)
	page.wantNone(t, "gdr_rdma_port_source_info")
	wantAsRDMATool(t, page)
	page.wantNone(t, "gdr_read_errors_total")
	t.Logf("%d series equal three ways", len(want))
	both.wantQuietLog(t)
	alone.wantQuietLog(t)
}

// Resources are those of rdma resource, with an application at work.
func TestInKernelResources(t *testing.T) {
	inKernel(t)
	e := startFresh(t)
	_, stop := startWriting(t, "rxe2", 18702, "-D", "5") // it goes on until it was seen
	within(t, patience, "the application has registered memory", func() bool {
		return e.scrape(t)[named("gdr_rdma_device_contexts", "device", "rxe2")] > 0
	})
	// The application may come or go between the two looks: they must agree once.
	within(t, patience, "the page says what rdma(8) says", func() bool { return e.agreesOnResources(t) })
	stop()
	within(t, patience, "nothing is held any more", func() bool {
		page := e.scrape(t)
		return page[named("gdr_rdma_device_contexts", "device", "rxe2")] == 0 && page[named("gdr_rdma_device_memory_region_bytes", "device", "rxe2")] == 0
	})
}

// agreesOnResources compares a scrape with rdma resource before and after it.
func (e *vmExporter) agreesOnResources(t *testing.T) bool {
	t.Helper()
	before := toolResources(t)
	page := e.scrape(t)
	if fmt.Sprint(before) != fmt.Sprint(toolResources(t)) || len(before) == 0 {
		return false
	}
	for key, value := range before {
		if page[key] != value {
			t.Errorf("%s is %v, rdma(8) says %v", key, page[key], value)
		}
	}
	return before[named("gdr_rdma_device_memory_region_bytes", "device", "rxe2")] > 0
}

// toolResources are the series that rdma(8)'s answers mean.
func toolResources(t *testing.T) series {
	t.Helper()
	want := series{}
	var devices []map[string]any
	decode(t, sh(t, "rdma", "-j", "resource"), &devices)
	for _, device := range devices {
		for kind, n := range device {
			if count, isNumber := n.(float64); isNumber && kind != "ifindex" {
				want[named("gdr_rdma_device_resources", "device", fmt.Sprint(device["ifname"]), "type", kind)] = count
			}
		}
	}
	var regions []struct {
		Ifname string
		Mrlen  float64
	}
	decode(t, sh(t, "rdma", "-j", "resource", "show", "mr"), &regions)
	for _, region := range regions {
		want[named("gdr_rdma_device_memory_regions", "device", region.Ifname)]++
		want[named("gdr_rdma_device_memory_region_bytes", "device", region.Ifname)] += region.Mrlen
	}
	return want
}

// Seen from another network namespace sysfs hides the counters; netlink still
// tells hw_counters.
func TestInKernelNetnsNetlink(t *testing.T) {
	inKernel(t)
	sh(t, "ip", "netns", "add", "near")
	t.Cleanup(func() { sh(t, "ip", "netns", "delete", "near") })
	sh(t, "ip", "netns", "exec", "near", "ip", "link", "set", "lo", "up")
	page := vmLaunch{args: fresh, netns: "near"}.start(t).scrape(t)
	for _, device := range deviceNames(t) {
		page.want(t, named("gdr_rdma_device_counters_hidden", "device", device), 1)
		at := []string{"device", device, "port", "1"}
		page.want(t, named("gdr_rdma_port_hw_sent_pkts_total", at...), number(t, filepath.Join(classDir, device, "ports/1/hw_counters/sent_pkts")))
	}
	page.wantNone(t, "gdr_read_errors_total")
}

// A port that netlink cannot query is read from sysfs, and the failure counted;
// a driver that hangs in netlink hangs its own device only.
func TestInKernelNetlinkFails(t *testing.T) {
	inKernel(t)
	healthy := sysfsSeries(t)
	e := startFresh(t)
	e.scrape(t).wantNone(t, "gdr_rdma_port_source_info")
	setModule(t, "query_port_errno", "5")
	page := healthyAsInSysfs(t, e, healthy)
	if key := readErrorOf("gdrtest0", "1", "netlink PORT_GET", "EIO"); page[key] < 1 {
		t.Errorf("not counted: %s", key)
	}
	if value, found := page[named("gdr_rdma_port_state_id", sick...)]; found {
		t.Errorf("a port that cannot be queried has state %v", value)
	}
	writeParameter(t, parameters+"/query_port_errno", "0")
	within(t, patience, "the state is back", func() bool {
		_, found := e.scrape(t)[named("gdr_rdma_port_state_id", sick...)]
		return found
	})
}

// The kernel's events are counted, and end the age of what was read.
func TestInKernelMonitor(t *testing.T) {
	inKernel(t)
	e := vmLaunch{args: []string{"--scrape.max-age=1h"}}.start(t)
	event := func(kind string) string { return named("gdr_rdma_monitor_events_total", "event", kind) }
	// The first page may be older than the listening, and its age ends only
	// with an event: make one.
	within(t, patience, "events are heard", func() bool {
		sh(t, "rdma", "link", "add", "extra", "type", "rxe", "netdev", "veth0p")
		sh(t, "rdma", "link", "delete", "extra")
		return e.scrape(t)["gdr_rdma_monitor_up{}"] == 1
	})
	unregistered := e.scrape(t)[event("unregister")]
	sh(t, "rdma", "link", "delete", "rxe1")
	within(t, patience, "the device is gone at once, whatever the age", func() bool {
		return len(e.scrape(t).about("rxe1")) == 0
	})
	e.scrape(t).want(t, event("unregister"), unregistered+1)
	sh(t, "rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "veth1")
	within(t, patience, "the device is back at once", func() bool {
		_, found := e.scrape(t)[named("gdr_rdma_port_state_id", "device", "rxe1", "port", strconv.Itoa(1))]
		return found
	})
	if n := e.scrape(t)[event("register")]; n < 1 {
		t.Errorf("%v events of registering", n)
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		t.Logf("kernel %s", strings.TrimSpace(string(release)))
	}
}

// Before Linux 6.12 there is nothing to hear.
func TestInKernelNoMonitor(t *testing.T) {
	inKernel(t)
	page := startFresh(t).scrape(t)
	page.want(t, "gdr_rdma_monitor_up{}", 0)
	page.wantNone(t, "gdr_rdma_monitor_events_total")
}

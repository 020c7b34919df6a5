package main

import (
	"net/http"
	"strings"
	"testing"
)

// On a kernel without RDMA the page says so and nothing is an error; devices
// that come later are on the very next page.
func TestInKernelNoRDMA(t *testing.T) {
	inKernel(t)
	e := vmLaunch{args: []string{"--scrape.max-age=0s"}}.start(t)
	page := e.scrape(t)
	page.want(t, named("gdr_scrape_collector_success", "collector", "rdma"), 1)
	page.want(t, "gdr_rdma_class_present{}", 0)
	page.want(t, "gdr_rdma_devices{}", 0)
	page.wantNone(t, "gdr_read_errors_total")
	if len(page.with("device=")) > 0 {
		t.Errorf("devices: %v", page.with("device="))
	}
	wantLanding(t, e, "No RDMA device class on this host")

	sh(t, "modprobe", "-a", "crc32_generic", "rdma_rxe")
	page = e.scrape(t)
	page.want(t, "gdr_rdma_class_present{}", 1)
	page.want(t, "gdr_rdma_devices{}", 0)
	wantLanding(t, e, "No RDMA device on this host")

	sh(t, "ip", "link", "add", "veth0", "type", "veth", "peer", "name", "veth0p")
	sh(t, "ip", "link", "set", "veth0", "up")
	sh(t, "ip", "link", "set", "veth0p", "up")
	sh(t, "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "veth0")
	within(t, patience, "rxe0 is active", func() bool {
		return strings.HasPrefix(optionalText(classDir+"/rxe0/ports/1/state"), "4:")
	})
	page = e.wantAsInSysfs(t, nil)
	page.want(t, "gdr_rdma_devices{}", 1)
	page.want(t, named("gdr_rdma_port_state_id", "device", "rxe0", "port", "1"), 4)
	wantLanding(t, e, "1 RDMA device.")

	sh(t, "rdma", "link", "delete", "rxe0")
	sh(t, "modprobe", "-r", "rdma_rxe")
	page = e.scrape(t)
	page.want(t, "gdr_rdma_devices{}", 0)
	page.wantNone(t, "gdr_read_errors_total")
	e.wantQuietLog(t)
}

func wantLanding(t *testing.T, e *vmExporter, text string) {
	t.Helper()
	status, body, err := e.get("/")
	if err != nil || status != http.StatusOK || !strings.Contains(string(body), text) {
		t.Errorf("landing page %d, %v, without %q:\n%s", status, err, text, body)
	}
}

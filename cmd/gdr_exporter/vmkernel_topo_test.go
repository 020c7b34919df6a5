package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"gdr_exporter/collector/status"
)

// standIn says which PCI functions of topology gdr play the GPUs.
const standIn = "--gpu.stand-in=1af4:1050"

// Distances of topology gdr, whose file has a picture: a row per GPU, with the
// devices on nic0 to nic4. A star marks the nearest.
var (
	gdrGPUs      = []string{"0000:43:00.0", "0000:48:00.0", "0000:c2:00.0"}
	gdrDistances = [][]string{
		{"PIX*", "PXB", "PHB", "NODE", "SYS"},
		{"PXB*", "PXB*", "PHB", "NODE", "SYS"},
		{"SYS", "SYS", "SYS", "SYS", "PHB*"},
	}
)

// runTopo runs gdr_exporter topo and returns what it prints; nothing may be
// logged.
func runTopo(t *testing.T, user uint32, args ...string) string {
	t.Helper()
	cmd := exec.Command(os.Getenv(binaryEnv), append([]string{"topo"}, args...)...)
	if user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		t.Errorf("topo %q: %v, %s", args, err, &stderr)
	}
	return string(out)
}

func topoJSON(t *testing.T, user uint32, args ...string) status.Topology {
	t.Helper()
	var topology status.Topology
	if err := json.Unmarshal([]byte(runTopo(t, user, append(args, "--output", "json")...)), &topology); err != nil {
		t.Fatal(err)
	}
	return topology
}

// TestInKernelTopo: the command prints the matrix; this kernel passes DMA
// through its IOMMU (iommu=pt).
func TestInKernelTopo(t *testing.T) {
	inKernel(t)
	topology := topoJSON(t, 0, standIn)
	wantDistances(t, topology)
	if fmt.Sprint(topology.IOMMU) != "[dmar0]" || !topology.ConfigReadable || len(topology.NICs) != 5 {
		t.Errorf("%+v", topology)
	}
	for _, f := range append(topology.GPUs, topology.NICs...) {
		if f.Type != "identity" || f.Group == "" {
			t.Errorf("%s: IOMMU group %q, type %q", f.Address, f.Group, f.Type)
		}
	}
	for _, pair := range topology.Pairs {
		switch pair.GPU + " " + pair.Device {
		case gdrGPUs[0] + " gdrtest0":
			wantRedirected(t, pair, "false")
		case gdrGPUs[0] + " gdrtest1", gdrGPUs[1] + " gdrtest0", gdrGPUs[1] + " gdrtest1":
			wantRedirected(t, pair, "true")
		default:
			wantRedirected(t, pair, "unknown")
		}
	}
	wantTable(t, runTopo(t, 0, standIn))
	if table := runTopo(t, 0); !strings.Contains(table, "No NVIDIA GPU on the PCI bus of this host.") || !strings.Contains(table, "gdrtest4") {
		t.Errorf("without stand-ins:\n%s", table)
	}
}

func wantDistances(t *testing.T, topology status.Topology) {
	t.Helper()
	for _, pair := range topology.Pairs {
		text := pair.Distance
		if pair.Nearest {
			text += "*"
		}
		want := ""
		for g, gpu := range gdrGPUs {
			for n, distance := range gdrDistances[g] {
				if pair.GPU == gpu && pair.Device == fmt.Sprintf("gdrtest%d", n) {
					want = distance
				}
			}
		}
		if text != want {
			t.Errorf("%s %s: %s, want %s", pair.GPU, pair.Device, text, want)
		}
		// Of NICs that are nearest to no GPU nothing is read.
		near := pair.Nearest || pair.Common != ""
		if rate := pair.BytesPerSecond; near && (rate == nil || *rate != 250e6) {
			t.Errorf("%s %s: the narrowest link, 2.5 GT/s x1, carries %v bytes/s", pair.GPU, pair.Device, rate)
		}
	}
	if len(topology.Pairs) != 15 {
		t.Errorf("%d pairs", len(topology.Pairs))
	}
}

func wantRedirected(t *testing.T, pair status.TopologyPair, want string) {
	t.Helper()
	got := "unknown"
	if pair.Redirected != nil {
		got = fmt.Sprint(*pair.Redirected)
	}
	if got != want {
		t.Errorf("%s %s: redirected %s, want %s", pair.GPU, pair.Device, got, want)
	}
}

// wantTable expects a line for each GPU with its distances in order.
func wantTable(t *testing.T, table string) {
	t.Helper()
	t.Logf("the table:\n%s", table)
	var lines []string
	for line := range strings.Lines(table) {
		lines = append(lines, strings.Join(strings.Fields(strings.ReplaceAll(line, "│", " ")), " "))
	}
	for g, gpu := range gdrGPUs {
		want := gpu + " " + strings.Join(gdrDistances[g], " ")
		found := false
		for _, line := range lines {
			found = found || strings.HasPrefix(line, want+" ")
		}
		if !found {
			t.Errorf("no line %q", want)
		}
	}
}

// TestInKernelTopoUnprivileged: without privilege distances are the same, and
// of ACS the command says that it is not known, and why.
func TestInKernelTopoUnprivileged(t *testing.T) {
	inKernel(t)
	const nobody = 65534
	topology := topoJSON(t, nobody, standIn)
	wantDistances(t, topology)
	if topology.ConfigReadable {
		t.Error("configuration space is said to be readable")
	}
	for _, pair := range topology.Pairs {
		wantRedirected(t, pair, "unknown")
	}
	for _, f := range append(topology.GPUs, topology.Bridges...) {
		if f.ACS != "unknown" {
			t.Errorf("%s: ACS %s", f.Address, f.ACS)
		}
	}
	if table := runTopo(t, nobody, standIn); !strings.Contains(table, "ACS is not known: reading it needs CAP_SYS_ADMIN") {
		t.Errorf("the table:\n%s", table)
	}
}

// Functions of topology gdr.
const (
	gdrNIC0   = "0000:44:00.0"
	gdrNIC4   = "0000:c1:00.0"
	gdrSwitch = "0000:41:00.0" // the common bridge of the first two GPUs and NICs
	gdrACS0   = "0000:45:00.0" // ports with ACS below it
	gdrACS1   = "0000:47:00.0"
)

// distanceID are the numbers of gdr_affinity_distance_id.
var distanceID = map[string]float64{"PIX": 1, "PXB": 2, "PHB": 4, "NODE": 5, "SYS": 6}

// scrapePCIe returns the page of the collectors that show the PCIe path.
func (e *vmExporter) scrapePCIe(t *testing.T) series {
	t.Helper()
	code, body, err := e.get("/metrics?collect[]=affinity&collect[]=pcie")
	if err != nil || code != http.StatusOK {
		t.Fatalf("status %d, %v: %s", code, err, body)
	}
	page, err := parsePage(body)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// ofPair names a series of a GPU and a device.
func ofPair(name, gpu, device string) string {
	return named(name, "gpu_address", gpu, "device", device)
}

// ofFunction names a series of a PCI function.
func ofFunction(name, address string, more ...string) string {
	return named(name, append([]string{"address", address}, more...)...)
}

// pathInfo names the facts about a path.
func pathInfo(gpu, device, nic, distance, common, iommu string) string {
	return named("gdr_affinity_path_info", "gpu_address", gpu, "device", device, "nic_address", nic, "distance", distance, "common", common, "iommu", iommu)
}

// TestInKernelPCIePage: what the page says of the tree as it is at boot.
func TestInKernelPCIePage(t *testing.T) {
	inKernel(t)
	e := startFresh(t, standIn)
	page := e.scrapePCIe(t)
	for g, gpu := range gdrGPUs {
		for n, distance := range gdrDistances[g] {
			device := fmt.Sprintf("gdrtest%d", n)
			page.want(t, ofPair("gdr_affinity_distance_id", gpu, device), distanceID[strings.TrimSuffix(distance, "*")])
		}
	}
	page.want(t, "gdr_affinity_iommu_units{}", 1)
	for _, key := range []string{
		pathInfo(gdrGPUs[0], "gdrtest0", gdrNIC0, "PIX", gdrSwitch, "passthrough"),
		pathInfo(gdrGPUs[1], "gdrtest1", "0000:46:00.0", "PXB", gdrSwitch, "passthrough"),
		pathInfo(gdrGPUs[2], "gdrtest4", gdrNIC4, "PHB", "", "passthrough"),
	} {
		page.want(t, key, 1)
	}
	if n := len(page.family("gdr_affinity_path_info")); n != 3 {
		t.Errorf("%d paths, of one pair for each GPU and device", n)
	}
	for key, rate := range page.family("gdr_affinity_path_bytes_per_second") {
		if rate != 250e6 {
			t.Errorf("%s is %v: 2.5 GT/s x1 carries 250 MB/s", key, rate)
		}
	}
	// QEMU's switch ports do not say what they can do.
	page.want(t, ofPair("gdr_affinity_path_possible_bytes_per_second", gdrGPUs[2], "gdrtest4"), 250e6)
	if n := len(page.family("gdr_affinity_path_possible_bytes_per_second")); n != 1 {
		t.Errorf("%d possible rates", n)
	}
	for _, gpu := range gdrGPUs {
		page.want(t, ofFunction("gdr_pcie_power_state_id", gpu), 0)
		page.want(t, ofFunction("gdr_pcie_link_width_lanes", gpu), 1)
		page.want(t, ofFunction("gdr_pcie_link_speed_transfers_per_second", gpu), 2.5e9)
	}
	page.want(t, ofFunction("gdr_pcie_max_read_request_bytes", gdrNIC0), 128)
	page.want(t, ofFunction("gdr_pcie_relaxed_ordering_enabled", gdrNIC0), 0)
	page.want(t, "gdr_pcie_config_readable{}", 1)
	page.wantNone(t, "gdr_read_errors_total")
	e.wantQuietLog(t)
}

// wantRedirect expects what the page says of ports with ACS and of the pairs
// that they are between.
func (s series) wantRedirect(t *testing.T, acs0, acs1, gpu1ToNIC1 float64) {
	t.Helper()
	s.want(t, ofFunction("gdr_pcie_acs_redirect", gdrACS0), acs0)
	s.want(t, ofFunction("gdr_pcie_acs_redirect", gdrACS1), acs1)
	s.want(t, ofPair("gdr_affinity_path_redirected", gdrGPUs[0], "gdrtest0"), 0)
	s.want(t, ofPair("gdr_affinity_path_redirected", gdrGPUs[1], "gdrtest1"), gpu1ToNIC1)
	if n := len(s.family("gdr_affinity_path_redirected")); n != 2 {
		t.Errorf("%d pairs said to be redirected or not", n)
	}
}

// TestInKernelPCIeACS: the page follows the ACS bits.
func TestInKernelPCIeACS(t *testing.T) {
	inKernel(t)
	e := startFresh(t, standIn)
	e.scrapePCIe(t).wantRedirect(t, 1, 1, 1)
	sh(t, "setpci", "-s", gdrACS1, "ECAP_ACS+6.w=0")
	e.scrapePCIe(t).wantRedirect(t, 1, 0, 1)
	sh(t, "setpci", "-s", gdrACS0, "ECAP_ACS+6.w=0")
	e.scrapePCIe(t).wantRedirect(t, 0, 0, 0)
	for _, address := range []string{gdrACS0, gdrACS1} {
		sh(t, "setpci", "-s", address, "ECAP_ACS+6.w=1d")
	}
	e.scrapePCIe(t).wantRedirect(t, 1, 1, 1)
	e.wantQuietLog(t)
}

// TestInKernelPCIeErrors: an error that the kernel reports is on the page once,
// at the function that had it.
func TestInKernelPCIeErrors(t *testing.T) {
	inKernel(t)
	e := startFresh(t, standIn)
	before := e.scrapePCIe(t)
	if n := len(before.family("gdr_pcie_aer_errors_total")); n < 3*10 {
		t.Errorf("%d error counters", n)
	}
	injectBadTLP(t, gdrNIC0)
	total := ofFunction("gdr_pcie_aer_errors_total", gdrNIC0, "severity", "correctable")
	within(t, patience, "the error counts", func() bool { return e.scrapePCIe(t)[total] > 0 })
	page := e.scrapePCIe(t)
	page.want(t, ofFunction("gdr_pcie_aer_errors_by_type_total", gdrNIC0, "severity", "correctable", "type", "BadTLP"), 1)
	if n := len(page.family("gdr_pcie_aer_errors_by_type_total")); n != 1 {
		t.Errorf("%d types of errors", n)
	}
	for key, value := range page.family("gdr_pcie_aer_errors_total") {
		want := before[key]
		if key == total {
			want++
		}
		if value != want {
			t.Errorf("%s is %v, want %v", key, value, want)
		}
	}
	e.wantQuietLog(t)
}

// TestInKernelPCIeStates: the page says when a GPU sleeps, without waking it,
// when the IOMMU translates for it after all, and when it has fallen off the bus.
func TestInKernelPCIeStates(t *testing.T) {
	inKernel(t)
	// QEMU before 8.1 may crash when a function gets another driver while another
	// CPU reads configuration space.
	const online = "/sys/devices/system/cpu/cpu1/online"
	writeFile(t, online, "0")
	t.Cleanup(func() { writeFile(t, online, "1") })
	e := startFresh(t, standIn)
	gpu := gdrGPUs[2]
	rebindGPU(t, gpu, "nvidia")
	writeFile(t, pciFile(gpu, "power/control"), "auto")
	within(t, patience, "the GPU sleeps", func() bool { return optionalText(pciFile(gpu, "power/runtime_status")) == "suspended" })
	active := optionalText(pciFile(gpu, "power/runtime_active_time"))
	// A scrape may join the first look, which began before the GPU slept.
	page := e.scrapePCIe(t)
	within(t, patience, "the page shows it asleep", func() bool {
		page = e.scrapePCIe(t)
		return page[ofFunction("gdr_pcie_power_state_id", gpu)] == 3
	})
	if _, found := page[ofFunction("gdr_pcie_link_width_lanes", gpu)]; found {
		t.Error("a sleeping GPU has a link width")
	}
	if now := optionalText(pciFile(gpu, "power/runtime_active_time")); now != active {
		t.Errorf("the scrape woke the GPU: active for %s ms, before %s ms", now, active)
	}

	rebindGPU(t, gpu, "") // the kernel changes the domain of an unbound device only
	// As it was comes last: other tests follow.
	for _, domain := range []struct{ kind, treatment string }{{"DMA", "translated"}, {"identity", "passthrough"}} {
		writeFile(t, pciFile(gpu, "iommu_group/type"), domain.kind)
		e.scrapePCIe(t).want(t, pathInfo(gpu, "gdrtest4", gdrNIC4, "PHB", "", domain.treatment), 1)
	}
	e.scrapePCIe(t).wantNone(t, "gdr_read_errors_total")
	e.wantQuietLog(t)

	const config = "/sys/module/gdrtest_pci/parameters/config"
	t.Cleanup(func() { writeFile(t, config, "\n") })
	writeFile(t, config, gdrGPUs[0])
	page = e.scrapePCIe(t)
	page.want(t, ofFunction("gdr_pcie_power_state_id", gdrGPUs[0]), 6)
	page.want(t, ofPair("gdr_affinity_distance_id", gdrGPUs[0], "gdrtest0"), 1)
	if _, found := page[ofFunction("gdr_pcie_link_width_lanes", gdrGPUs[0])]; found {
		t.Error("a GPU that does not answer has a link width")
	}
}

// TestInKernelPCIeUnprivileged: without privilege what needs it is missing from
// the page, and one series says so.
func TestInKernelPCIeUnprivileged(t *testing.T) {
	inKernel(t)
	e := vmLaunch{args: append([]string{standIn}, fresh...), user: 65534}.start(t)
	page := e.scrapePCIe(t)
	page.want(t, "gdr_pcie_config_readable{}", 0)
	for _, family := range []string{
		"gdr_affinity_path_redirected", "gdr_pcie_acs_redirect", "gdr_pcie_max_payload_bytes", "gdr_pcie_max_read_request_bytes",
		"gdr_pcie_relaxed_ordering_enabled", "gdr_pcie_ats_enabled", "gdr_read_errors_total",
	} {
		page.wantNone(t, family)
	}
	page.want(t, ofPair("gdr_affinity_distance_id", gdrGPUs[0], "gdrtest0"), 1)
	page.want(t, ofFunction("gdr_pcie_aer_errors_total", gdrGPUs[0], "severity", "nonfatal"), 0)
	page.want(t, pathInfo(gdrGPUs[2], "gdrtest4", gdrNIC4, "PHB", "", "passthrough"), 1)
	e.wantQuietLog(t)
}

// injectBadTLP makes the kernel believe that a function got a bad packet: struct
// aer_error_inj of its drivers/pci/pcie/aer_inject.c.
func injectBadTLP(t *testing.T, address string) {
	t.Helper()
	sh(t, "modprobe", "aer_inject")
	var domain, bus, device, function byte
	if _, err := fmt.Sscanf(address, "%x:%x:%x.%x", &domain, &bus, &device, &function); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 32)
	message[0], message[1], message[2] = bus, device, function
	message[8] = 1 << 6 // of the correctable errors
	writeFile(t, "/dev/aer_inject", string(message))
}

func pciFile(address, name string) string { return "/sys/bus/pci/devices/" + address + "/" + name }

// rebindGPU binds a function to a driver, "" for none.
func rebindGPU(t *testing.T, address, driver string) {
	t.Helper()
	if _, err := os.Stat(pciFile(address, "driver")); err == nil {
		writeFile(t, pciFile(address, "driver/unbind"), address)
	}
	writeFile(t, pciFile(address, "driver_override"), driver+"\n")
	if driver != "" {
		writeFile(t, "/sys/bus/pci/drivers_probe", address)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestInKernelNoGPU: a machine with neither GPU nor IOMMU says so, and functions
// of conventional PCI, which have no link, are no error.
func TestInKernelNoGPU(t *testing.T) {
	inKernel(t)
	if table := runTopo(t, 0); !strings.Contains(table, "No NVIDIA GPU on the PCI bus and no RDMA device on this host.") {
		t.Errorf("topo:\n%s", table)
	}
	if topology := topoJSON(t, 0); len(topology.IOMMU)+len(topology.GPUs)+len(topology.NICs)+len(topology.Bridges)+len(topology.Pairs) > 0 {
		t.Errorf("topo: %+v", topology)
	}
	page := startFresh(t).scrapePCIe(t)
	page.want(t, "gdr_affinity_iommu_units{}", 0)
	for _, family := range []string{"gdr_affinity_distance_id", "gdr_pcie_function_info", "gdr_read_errors_total"} {
		page.wantNone(t, family)
	}

	e := startFresh(t, "--gpu.stand-in=1af4:1000") // virtio-net, which every VM has
	page = e.scrapePCIe(t)
	var info string
	for key := range page.family("gdr_pcie_function_info") {
		info = key
	}
	if len(page.family("gdr_pcie_function_info")) != 1 || !strings.Contains(info, `kind="gpu"`) || !strings.Contains(info, `iommu_group=""`) ||
		!strings.Contains(info, `numa_node=""`) || !strings.Contains(info, `port_type=""`) {
		t.Errorf("functions: %v", page.family("gdr_pcie_function_info"))
	}
	for _, family := range []string{"gdr_affinity_distance_id", "gdr_pcie_link_width_lanes", "gdr_pcie_aer_errors_total", "gdr_pcie_max_payload_bytes", "gdr_read_errors_total"} {
		page.wantNone(t, family)
	}
	if n := len(page.family("gdr_pcie_power_state_id")); n != 1 {
		t.Errorf("%d power states", n)
	}
	e.wantQuietLog(t)
}

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const classDir = "/sys/class/infiniband"

// The expectation: what the page must hold, read straight from sysfs and put
// together here without the exporter's own readers and tables.

// sysfsSeries returns every gdr_ series that a page must have now, for the
// devices that are listed and healthy. A value that cannot be known is NaN.
func sysfsSeries(t *testing.T) series {
	t.Helper()
	want := series{
		"gdr_rdma_class_present{}":                                           1,
		"gdr_rdma_devices_excluded{}":                                        0,
		named("gdr_scrape_collector_success", "collector", "rdma"):           1,
		named("gdr_scrape_collector_duration_seconds", "collector", "rdma"):  anyValue,
		named("gdr_scrape_collector_timestamp_seconds", "collector", "rdma"): anyValue,
	}
	devices := deviceNames(t)
	want["gdr_rdma_devices{}"] = float64(len(devices))
	for _, device := range devices {
		maps.Copy(want, deviceSeries(t, device))
	}
	return want
}

func deviceNames(t *testing.T) []string { return listDir(t, classDir) }

// deviceSeries is sysfsSeries for one device.
func deviceSeries(t *testing.T, device string) series {
	t.Helper()
	dir := filepath.Join(classDir, device)
	_, nodeType, _ := strings.Cut(readText(t, dir+"/node_type"), ": ")
	driver := ""
	if exists(dir + "/parent") {
		driver = "rdma_rxe"
	}
	of := []string{"collector", "rdma", "device", device}
	want := series{
		named("gdr_rdma_device_info", "device", device, "address", "", "driver", driver, "firmware", optionalText(dir+"/fw_ver"),
			"board", optionalText(dir+"/board_id"), "hca_type", optionalText(dir+"/hca_type"), "node_type", nodeType,
			"node_guid", readText(t, dir+"/node_guid"), "sys_image_guid", readText(t, dir+"/sys_image_guid"), "function", "", "subfunction", "",
			"protocol", anyProtocol, "role", "unknown", "uverbs", uverbsOf(t, device), "parent", ""): 1,
		named("gdr_rdma_device_counters_hidden", "device", device):             0,
		named("gdr_rdma_device_slow_read_timestamp_seconds", "device", device): anyValue,
		named("gdr_device_read_stuck", of...):                                  0,
		named("gdr_device_read_duration_seconds", of...):                       anyValue,
	}
	for _, port := range listDir(t, dir+"/ports") {
		maps.Copy(want, portSeries(t, device, port))
	}
	return want
}

func portSeries(t *testing.T, device, port string) series {
	t.Helper()
	dir := filepath.Join(classDir, device, "ports", port)
	rate, lanes, speed := splitRate(t, readText(t, dir+"/rate"))
	linkLayer := readText(t, dir+"/link_layer")
	netdev, guid := optionalText(dir+"/gid_attrs/ndevs/0"), ""
	at := []string{"device", device, "port", port}
	want := series{
		named("gdr_rdma_port_state_id", at...):              leadingNumber(t, dir+"/state"),
		named("gdr_rdma_port_physical_state_id", at...):     leadingNumber(t, dir+"/phys_state"),
		named("gdr_rdma_port_rate_bytes_per_second", at...): rate,
		named("gdr_rdma_port_width_lanes", at...):           lanes,
	}
	if linkLayer == "InfiniBand" {
		guid = readText(t, dir+"/gids/0")[20:]
		want[named("gdr_rdma_port_lid", at...)] = hexNumber(t, dir+"/lid")
		want[named("gdr_rdma_port_sm_lid", at...)] = hexNumber(t, dir+"/sm_lid")
	}
	want[named("gdr_rdma_port_info", append(at, "link_layer", linkLayer, "netdev", netdev, "speed", speed,
		"port_guid", guid, "state_meaning", "reported")...)] = 1
	if netdev != "" {
		want[named("gdr_rdma_port_carrier_changes_total", at...)] = number(t, "/sys/class/net/"+netdev+"/carrier_changes")
	}
	for kind, count := range gidTypes(dir) {
		want[named("gdr_rdma_port_gids", append(at, "type", kind)...)] = count
	}
	for _, source := range []string{"counters", "hw_counters"} {
		if exists(dir + "/" + source) {
			want[named("gdr_rdma_port_restricted", append(at, "source", source)...)] = 0
		}
	}
	if exists(dir + "/hw_counters") {
		hwSeries(t, want, dir+"/hw_counters", at)
	}
	if exists(dir + "/counters") {
		pmaSeries(t, want, dir+"/counters", at)
	}
	return want
}

// hwSeries adds the files of hw_counters, each a counter but the one setting.
func hwSeries(t *testing.T, want series, dir string, at []string) {
	t.Helper()
	for _, file := range listDir(t, dir) {
		value := number(t, dir+"/"+file)
		if file == "lifespan" {
			want[named("gdr_rdma_port_hw_lifespan_seconds", at...)] = value / 1000
		} else {
			want[named("gdr_rdma_port_hw_"+file+"_total", at...)] = value
		}
	}
}

// pmaLargest are the values at which the counters of the InfiniBand
// specification stick: those of the 16 bit ones and so on.
var pmaLargest = map[string]float64{
	"symbol_error": 65535, "link_error_recovery": 255, "link_downed": 255, "port_rcv_errors": 65535,
	"port_rcv_remote_physical_errors": 65535, "port_rcv_switch_relay_errors": 65535, "port_xmit_discards": 65535,
	"port_xmit_constraint_errors": 255, "port_rcv_constraint_errors": 255, "local_link_integrity_errors": 15,
	"excessive_buffer_overrun_errors": 15, "VL15_dropped": 65535, "port_xmit_wait": 4294967295,
}

// pmaSeries adds the files of counters: data in bytes rather than words, and
// for those that stick whether they have.
func pmaSeries(t *testing.T, want series, dir string, at []string) {
	t.Helper()
	for _, file := range listDir(t, dir) {
		value := number(t, dir+"/"+file)
		stem := strings.ToLower(strings.TrimPrefix(file, "port_"))
		if strings.HasSuffix(stem, "_data") {
			stem += "_bytes"
			value *= 4
			direction := map[string]string{"rcv_data_bytes": "receive", "xmit_data_bytes": "transmit"}[stem]
			want[named("gdr_rdma_port_"+direction+"_bytes_total", at...)] = value
		}
		want[named("gdr_rdma_port_"+stem+"_total", at...)] = value
		if largest, sticks := pmaLargest[file]; sticks {
			want[named("gdr_rdma_port_saturated_counters", at...)] += 0
			if value == largest {
				want[named("gdr_rdma_port_counter_saturated", append(at, "counter", file)...)] = 1
				want[named("gdr_rdma_port_saturated_counters", at...)]++
			}
		}
	}
}

// anyProtocol stands for the protocol, which only netlink knows.
const anyProtocol = "*"

var protocolLabel = regexp.MustCompile(`protocol="[^"]*"`)

// beyondSysfs are the families that sysfs says nothing of.
var beyondSysfs = regexp.MustCompile(`^gdr_rdma_(netlink_|monitor_|devlink_|device_(resources|contexts|memory|health)|` +
	`port_(source_info|optional|netdev|ethtool|dcb|trust|pfc|ecn|carrier_(ups|downs)|phy_|fec|global|module|pcie|priority|transmit_pause|vport))|` +
	`^gdr_device_read_[a-z_]+\{collector="rdma",device="devlink"|` +
	`^gdr_scrape_collector_[a-z_]+\{collector="affinity"`) // read beside rdma, for the devices' roles

// ofSysfs leaves out of a page what sysfs says nothing of.
func ofSysfs(page series) series {
	kept := series{}
	for key, value := range page {
		if !beyondSysfs.MatchString(key) {
			kept[protocolLabel.ReplaceAllString(key, `protocol="`+anyProtocol+`"`)] = value
		}
	}
	return kept
}

// compare expects of the page's gdr_ series exactly those that sysfs had before
// or after the scrape, with a value from then: counters may move in between.
// It looks at the series that about accepts; nil accepts all.
func compare(t *testing.T, before, page, after series, about func(key string) bool) {
	t.Helper()
	page = ofSysfs(page)
	var wrong []string
	for key, low := range before {
		high, still := after[key]
		if !still || about != nil && !about(key) {
			continue
		}
		switch got, found := page[key]; {
		case !found:
			wrong = append(wrong, fmt.Sprintf("missing on the page: %s %v", key, low))
		case got < min(low, high) || got > max(low, high):
			wrong = append(wrong, fmt.Sprintf("%s is %v on the page, and in sysfs %v before and %v after", key, got, low, high))
		}
	}
	for key, value := range page {
		_, had := before[key]
		_, has := after[key]
		ours := strings.HasPrefix(key, "gdr_") && !strings.HasPrefix(key, "gdr_exporter_build_info{")
		if ours && !had && !has && (about == nil || about(key)) {
			wrong = append(wrong, fmt.Sprintf("not in sysfs: %s %v", key, value))
		}
	}
	const shown = 10
	for _, problem := range wrong[:min(shown, len(wrong))] {
		t.Error(problem)
	}
	if len(wrong) > shown {
		t.Errorf("and %d more differences", len(wrong)-shown)
	}
}

// wantAsInSysfs scrapes and compares, and returns the page.
func (e *vmExporter) wantAsInSysfs(t *testing.T, about func(key string) bool) series {
	t.Helper()
	before := sysfsSeries(t)
	page := e.scrape(t)
	compare(t, before, page, sysfsSeries(t), about)
	return page
}

// linkStates are the names that rdma(8) gives to the kernel's numbers.
var (
	linkStates     = map[string]float64{"NOP": 0, "DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4, "ACTIVE_DEFER": 5}
	physicalStates = map[string]float64{"SLEEP": 1, "POLLING": 2, "DISABLED": 3, "PORT_CONFIGURATION_TRAINING": 4,
		"LINK_UP": 5, "LINK_ERROR_RECOVER": 6}
)

// wantAsRDMATool compares the page with what rdma(8) says over netlink, a way
// that has nothing in common with sysfs above the driver.
func wantAsRDMATool(t *testing.T, page series) {
	t.Helper()
	var links []struct {
		Ifname, State, Netdev string
		Port                  int
		PhysicalState         string `json:"physical_state"`
	}
	decode(t, sh(t, "rdma", "-j", "link"), &links)
	for _, link := range links {
		at := []string{"device", link.Ifname, "port", strconv.Itoa(link.Port)}
		page.want(t, named("gdr_rdma_port_state_id", at...), linkStates[link.State])
		page.want(t, named("gdr_rdma_port_physical_state_id", at...), physicalStates[link.PhysicalState])
		if netdev := fmt.Sprintf("netdev=%q", link.Netdev); len(page.family("gdr_rdma_port_info").about(link.Ifname).with(netdev)) == 0 {
			t.Errorf("%s: no gdr_rdma_port_info with %s", link.Ifname, netdev)
		}
	}
	if known := len(page.family("gdr_rdma_port_state_id")); known != len(links) {
		t.Errorf("%d ports on the page, %d of rdma link", known, len(links))
	}
	var statistics []map[string]any
	decode(t, sh(t, "rdma", "-j", "statistic"), &statistics)
	for _, port := range statistics {
		at := []string{"device", fmt.Sprint(port["ifname"]), "port", fmt.Sprint(port["port"])}
		for name, value := range port {
			if count, isNumber := value.(float64); isNumber && name != "port" {
				page.want(t, named("gdr_rdma_port_hw_"+name+"_total", at...), count)
			}
		}
	}
}

// with returns the series that have a label, as text.
func (s series) with(label string) series {
	some := series{}
	for key, value := range s {
		if strings.Contains(key, label) {
			some[key] = value
		}
	}
	return some
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

// splitRate takes "10 Gb/sec (1X FDR10)" apart.
func splitRate(t *testing.T, text string) (bytesPerSecond, lanes float64, speed string) {
	t.Helper()
	var gigabits float64
	if _, err := fmt.Sscanf(text, "%g Gb/sec (%gX %s", &gigabits, &lanes, &speed); err != nil {
		t.Fatalf("rate %q: %v", text, err)
	}
	return gigabits * 1e9 / 8, lanes, strings.TrimSuffix(speed, ")")
}

// gidTypes counts the first slots of a port's GID table. More than a handful
// of addresses no test here has, and rxe has 1024 slots.
func gidTypes(portDir string) map[string]float64 {
	types := map[string]float64{}
	for slot := range 32 {
		if text := optionalText(fmt.Sprintf("%s/gid_attrs/types/%d", portDir, slot)); text != "" {
			types[text]++
		}
	}
	return types
}

// uverbsOf returns the name of the device's node, "" if it has none.
func uverbsOf(t *testing.T, device string) string {
	t.Helper()
	if !exists("/sys/class/infiniband_verbs") {
		return ""
	}
	for _, name := range listDir(t, "/sys/class/infiniband_verbs") {
		if optionalText("/sys/class/infiniband_verbs/"+name+"/ibdev") == device {
			return name
		}
	}
	return ""
}

func listDir(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// optionalText is readText for a file that may be absent or empty.
func optionalText(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func number(t *testing.T, path string) float64 {
	t.Helper()
	return parseNumber(t, path, readText(t, path), 10)
}

func hexNumber(t *testing.T, path string) float64 {
	t.Helper()
	return parseNumber(t, path, strings.TrimPrefix(readText(t, path), "0x"), 16)
}

// leadingNumber reads the number of "4: ACTIVE".
func leadingNumber(t *testing.T, path string) float64 {
	t.Helper()
	text, _, _ := strings.Cut(readText(t, path), ":")
	return parseNumber(t, path, text, 10)
}

func parseNumber(t *testing.T, path, text string, base int) float64 {
	t.Helper()
	value, err := strconv.ParseUint(text, base, 64)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return float64(value)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

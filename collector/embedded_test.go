package collector

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/capture/embedded"
	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/devlink"
)

// wholeGoldens are the embedded captures whose pages are kept whole. Of the others
// it is kept in which lines their pages differ from the first one's.
var wholeGoldens = []string{"h100-8x8", "b200-8x8", "h200-1", "h200-2", "soft-roce"}

// laterPages are the seconds at which a capture's page is kept beside that of the
// beginning, as what differs from that.
var laterPages = map[string][]int{
	"h100-8x8": {60}, "h100-8x8-demo": {125, 200}, "port-flapping": {40, 50, 100}, "counters-saturated": {60, 300}, "nic-gone": {90},
}

// replayed is an embedded capture being replayed, with a clock that the test sets.
type replayed struct {
	player  *capture.Player
	taker   *snapshot.Taker
	handler *Handler
	now     time.Time
}

// unhurried runs what replays in a bubble. A recording answers at once, but readers
// wait for RDMA netlink and for the list of dma-bufs for a second only: a machine that
// stalls just then would have them say that these hang. In a bubble no time passes
// while anything can still run.
func unhurried(t *testing.T, replay func(*testing.T)) {
	t.Helper()
	synctest.Test(t, replay)
}

// replay replays a capture by all readers.
func replay(t *testing.T, name string) *replayed {
	t.Helper()
	recording, err := embedded.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	r := &replayed{now: goldenTime}
	clock := func() time.Time { return r.now }
	p := capture.Move(recording, clock)
	r.player = p
	readers := recording.Header.Readers
	options := rdma.Options{Sysfs: readers.Sysfs, Files: p.Files(), Descriptors: 1024, Netlink: p.Netlink(), Monitor: p.Monitor(), Now: clock}
	if p.Has(capture.PartNetdev) {
		options.Ethtool, options.Kernel = true, p.Kernel()
	}
	builder := snapshot.New(snapshot.Options{Deadline: time.Minute, Now: clock}).
		RDMA(rdma.NewReader(options), nil).
		GPU(gpu.NewReader(gpu.Options{Files: p.Files(), Procfs: readers.Procfs, Roots: readers.DriverRoots, NVLink: true, Fabric: true, Open: p.NVML()})).
		Driver(driver.NewReader(driver.Options{Sysfs: readers.Sysfs, Procfs: readers.Procfs, Roots: readers.DriverRoots, Files: p.Files()})).
		Affinity(affinity.NewReader(affinity.Options{Sysfs: readers.Sysfs, Files: p.Files(), Descriptors: 1024, Now: clock})).
		ProbeOf(p.Ledger).Prober(p.Prober)
	if p.Has(capture.PartDevlink) {
		builder.Devlink(devlink.NewReaderOf(p.Devlink()), 0)
	}
	r.taker = builder.Taker()
	r.handler = newHandler(Config{Taker: r.taker, Enabled: Names(), Roles: noRoles{}, Diagnose: diagnosis.NewEngine(diagnosis.EngineOptions{}).Diagnose})
	t.Cleanup(func() {
		p.Close()
		r.taker.Close()
	})
	return r
}

// page is the page after a time, of a second scrape: before it a new device may be
// incomplete. What the time of reading makes is set to 0.
func (r *replayed) page(t *testing.T, after time.Duration) string {
	t.Helper()
	var b bytes.Buffer
	for _, before := range []time.Duration{3 * time.Second, 0} {
		r.now = goldenTime.Add(after - before)
		b.Reset()
		families, done, err := r.handler.gather(t.Context(), Names())
		if err != nil {
			t.Fatal(err)
		}
		flatten(t, families)
		for _, mf := range families {
			if _, err := expfmt.MetricFamilyToText(&b, mf); err != nil {
				t.Fatal(err)
			}
		}
		done()
	}
	return durations.ReplaceAllString(b.String(), "$1 0")
}

// differences are the lines in which two pages differ: of the first one with "- ",
// of the second one with "+ ".
func differences(from, to string) string {
	lines := func(page string) map[string]bool {
		all := map[string]bool{}
		for line := range strings.Lines(page) {
			all[line] = true
		}
		return all
	}
	in, has := lines(from), lines(to)
	var b strings.Builder
	for line := range strings.Lines(from) {
		if !has[line] {
			b.WriteString("- " + line)
		}
	}
	for line := range strings.Lines(to) {
		if !in[line] {
			b.WriteString("+ " + line)
		}
	}
	return b.String()
}

// embeddedGoldens returns the golden texts of a capture by file, and the pages that
// they are of by seconds.
func embeddedGoldens(t *testing.T, name, healthy string) (golden map[string]string, pages map[int]string) {
	t.Helper()
	r := replay(t, name)
	first := r.page(t, 0)
	golden, pages = map[string]string{}, map[int]string{0: first}
	if slices.Contains(wholeGoldens, name) {
		golden[name+".metrics"] = first
	} else {
		golden[name+".diff"] = differences(healthy, first)
	}
	for _, second := range laterPages[name] {
		pages[second] = r.page(t, time.Duration(second)*time.Second)
		golden[fmt.Sprintf("%s.%ds.diff", name, second)] = differences(first, pages[second])
	}
	if missing := r.player.Unrecorded(); len(missing) > 0 {
		t.Errorf("%d questions were not recorded: %v", len(missing), missing[:min(len(missing), 10)])
	}
	return golden, pages
}

const embeddedDir = "testdata/embedded"

// TestEmbeddedGolden compares the pages of each embedded capture with those kept,
// and looks for what the capture is there to show.
func TestEmbeddedGolden(t *testing.T) {
	var healthy string
	unhurried(t, func(t *testing.T) { healthy = replay(t, wholeGoldens[0]).page(t, 0) })
	known := map[string]bool{}
	for _, name := range embedded.Names() {
		t.Run(name, func(t *testing.T) {
			var golden map[string]string
			var pages map[int]string
			unhurried(t, func(t *testing.T) { golden, pages = embeddedGoldens(t, name, healthy) })
			for file, got := range golden {
				known[file] = true
				path := filepath.Join(embeddedDir, file)
				if *update {
					if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatalf("%v; go test ./collector -run TestEmbeddedGolden -update writes it", err)
				}
				if diff := firstDifference(string(want), got); diff != "" {
					t.Errorf("%s: %s", path, diff)
				}
			}
			checkShown(t, name, healthy, pages)
		})
	}
	for name := range laterPages {
		if !slices.Contains(embedded.Names(), name) {
			t.Errorf("no capture %s", name)
		}
	}
	files, err := os.ReadDir(embeddedDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !known[file.Name()] {
			t.Errorf("%s belongs to no capture", file.Name())
		}
	}
}

// shown says what each page of a capture has that the healthy one's has not, by
// seconds.
var shown = map[string]map[int][]string{
	"h100-8x8": {}, "b200-8x8": {}, "h200-1": {}, "h200-2": {}, "soft-roce": {},
	"h100-8x8-demo": {125: {
		`gdr_probe_unconfirmed{device="mlx5_0",gpu_address="0000:18:00.0"} 1`,
		`gdr_probe_withdrawn_info{device="mlx5_0",gpu_address="0000:18:00.0",reason="failed"} 1`,
	}, 200: {
		`gdr_probe_registered{device="mlx5_0",gpu_address="0000:18:00.0",method="peermem"} 0`,
		`gdr_path_state{device="mlx5_0",gpu_address="0000:18:00.0",state="staged"} 1`,
		`gdr_probe_last_attempt_timestamp_seconds{device="mlx5_0",gpu_address="0000:18:00.0"} 1.800000148e+09`, // 52 s ago
	}},
	"gdr-lost": {0: {
		`gdr_path_state{device="mlx5_0",gpu_address="0000:18:00.0",state="staged"} 1`,
		`gdr_finding{address="",device="mlx5_0",gpu_address="0000:18:00.0",port="",rule="path_staged",severity="critical"} 1`,
		`gdr_probe_registration_error_info{device="mlx5_0",errno="EFAULT",gpu_address="0000:18:00.0",method="peermem"} 1`,
		`gdr_probe_last_attempt_timestamp_seconds{device="mlx5_0",gpu_address="0000:18:00.0"} 1.79999976e+09`, // four minutes ago
	}},
	"acs-on": {0: {
		`gdr_path_state{device="mlx5_7",gpu_address="0000:bb:00.0",state="degraded"} 1`,
		`gdr_finding{address="",device="mlx5_7",gpu_address="0000:bb:00.0",port="",rule="acs_redirect",severity="warning"} 1`,
		`gdr_affinity_path_redirected{device="mlx5_7",gpu_address="0000:bb:00.0"} 1`, `gdr_probe_ratio{device="mlx5_7",gpu_address="0000:bb:00.0",path="gpu"} 0.45`,
	}},
	"pcie-downtrained": {0: {`gdr_finding{address="0000:9a:00.0",device="",gpu_address="",port="",rule="pcie_link_width",severity="warning"} 1`, `gdr_gpu_pcie_width_lanes{gpu_address="0000:9a:00.0"} 8`, `gdr_pcie_link_speed_transfers_per_second{address="0000:9a:00.0"} 8e+09`}},
	"nvlink-down":      {0: {`gdr_finding{address="",device="",gpu_address="0000:9b:00.0",port="",rule="nvlink_missing",severity="warning"} 1`, `gdr_nvlink_active_links{gpu_address="0000:9b:00.0"} 16`, `gdr_nvlink_state_id{gpu_address="0000:9b:00.0",nvlink="12"} 0`}},
	"port-flapping": {
		40:  {`gdr_finding{address="",device="mlx5_2",gpu_address="",port="1",rule="port_down",severity="warning"} 1`, `gdr_rdma_port_state_id{device="mlx5_2",port="1"} 1`, `gdr_rdma_port_physical_state_id{device="mlx5_2",port="1"} 2`, `gdr_rdma_port_link_downed_total{device="mlx5_2",port="1"} 1`},
		50:  {`gdr_rdma_port_link_downed_total{device="mlx5_2",port="1"} 1`},
		100: {`gdr_rdma_port_state_id{device="mlx5_2",port="1"} 1`, `gdr_rdma_port_link_downed_total{device="mlx5_2",port="1"} 2`},
	},
	"counters-saturated": {
		0:   {`gdr_rdma_port_saturated_counters{device="mlx5_6",port="1"} 2`},
		60:  {`gdr_rdma_port_rcv_errors_total{device="mlx5_1",port="1"} 59000`},
		300: {`gdr_rdma_port_rcv_errors_total{device="mlx5_1",port="1"} 65535`, `gdr_rdma_port_saturated_counters{device="mlx5_1",port="1"} 1`},
	},
	"driver-mismatch": {0: {
		`gdr_finding{address="",device="",gpu_address="",port="",rule="driver_mismatch",severity="warning"} 1`,
		`gdr_read_errors_total{collector="gpu",device="",errno="NVML_ERROR_LIB_RM_VERSION_MISMATCH",port="",source="nvmlInit"} 1`,
		`gdr_probe_withdrawn_info{device="mlx5_0",gpu_address="0000:18:00.0",reason="driver_changed"} 1`,
	}},
	"busy-node": {0: {`gdr_gpu_compute_processes{gpu_address="0000:18:00.0"} 1`, `gdr_probe_skipped{device="mlx5_0",gpu_address="0000:18:00.0",reason="nic_busy"} 1`}},
	"nic-gone":  {90: {`gdr_finding{address="",device="mlx5_3",gpu_address="",port="",rule="nic_missing",severity="warning"} 1`, `gdr_rdma_devices 7`, `gdr_probe_withdrawn_info{device="mlx5_3",gpu_address="0000:3b:00.0",reason="nic_gone"} 1`}},
}

// faultless are the captures of hosts on which nothing is wrong.
var faultless = append([]string{"busy-node"}, wholeGoldens...)

// checkShown checks that a page shows what its capture is there for, and of a host
// on which nothing is wrong no fault.
func checkShown(t *testing.T, name, healthy string, pages map[int]string) {
	t.Helper()
	expected, found := shown[name]
	if !found {
		t.Errorf("nobody says what %s is to show", name)
	}
	for second, lines := range expected {
		for _, line := range lines {
			if !strings.Contains(pages[second], "\n"+line+"\n") || strings.Contains(healthy, "\n"+line+"\n") {
				t.Errorf("after %d s: not on the page, or on the healthy one too: %s", second, line)
			}
		}
	}
	if slices.Contains(faultless, name) {
		for _, page := range pages {
			checkFaultless(t, page)
			gpus, ports := strings.Count(page, "\ngdr_gpu_info{"), strings.Count(page, "\ngdr_rdma_port_state_id{")
			want, small := map[string][2]int{"h200-1": {1, 0}, "h200-2": {2, 0}, "soft-roce": {0, 2}}[name]
			if !small {
				want = [2]int{8, 8}
			}
			if want != [2]int{gpus, ports} || strings.Contains(page, "\ngdr_gpu_nvml_up 1\n") != (gpus > 0) {
				t.Errorf("%d GPUs, %d ports", gpus, ports)
			}
		}
	}
}

// checkFaultless checks that a page has no obvious fault.
func checkFaultless(t *testing.T, page string) {
	t.Helper()
	want := map[string]string{
		"gdr_rdma_port_state_id": "4", "gdr_rdma_port_physical_state_id": "5", "gdr_rdma_port_saturated_counters": "0", "gdr_device_read_stuck": "0",
		"gdr_scrape_collector_success": "1", "gdr_nvlink_state_id": "1", "gdr_probe_unconfirmed": "0", "gdr_probe_hung": "0", "gdr_probe_registered": "1",
		"gdr_gpu_recovery_action_id": "0", "gdr_gpu_xid_events_total": "0", "gdr_pcie_aer_errors_total": "0", "gdr_affinity_path_redirected": "0",
		"gdr_gpu_lost": "0", "gdr_gpu_nvml_library_stale": "0",
	}
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		family, _, _ := strings.Cut(strings.Replace(line, " ", "{", 1), "{")
		value := line[strings.LastIndex(line, " ")+1:]
		if expected, known := want[family]; known && value != expected {
			t.Errorf("a fault: %s", line)
		}
		if family == "gdr_finding" && !strings.Contains(line, `severity="info"`) || family == "gdr_path_state" && strings.Contains(line, `state="direct"`) != (value == "1") {
			t.Errorf("a fault: %s", line)
		}
		errors := strings.Contains(family, "_error") && strings.HasSuffix(family, "_total") && value != "0"
		if family == "gdr_read_errors_total" || family == "gdr_probe_withdrawn_info" || family == "gdr_probe_registration_error_info" || errors ||
			family == "gdr_probe_info" && !strings.Contains(line, `outcome="fine"`) {
			t.Errorf("a fault: %s", line)
		}
	}
}

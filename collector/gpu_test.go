package collector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/common/expfmt"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/gpu/gputest"
	nvmltape "gdr_exporter/gpu/tape"
)

// gpuOptions are those of the exporter.
func gpuOptions(m *gputest.Machine) gpu.Options {
	return gpu.Options{Open: m.Open, SlowInterval: time.Minute, NVLink: true, Fabric: true}
}

// gpuSnapshot puts together what the sources of GPUs say.
func gpuSnapshot(reading *gpu.Reading, nodes []affinity.Node, proc []string) *snapshot.Snapshot {
	s := &snapshot.Snapshot{Taken: goldenTime, Asked: map[string]bool{"gpu": true, "nvlink": true, "fabric": true}}
	if reading != nil {
		s.GPU = &snapshot.GPUPart{Units: []snapshot.UnitPart[gpu.Reading]{{Name: "nvml", Data: reading}}}
	}
	if nodes != nil {
		s.Affinity = &snapshot.AffinityPart{Listing: affinity.Listing{Functions: nodes}}
	}
	if proc != nil {
		s.Driver = &snapshot.DriverPart{Units: []snapshot.UnitPart[driver.Reading]{{Name: "driver", Data: &driver.Reading{ProcGPUs: sysread.Some(proc)}}}}
	}
	return s
}

// gpuPage is the page of NVML's collectors.
func gpuPage(s *snapshot.Snapshot) *page {
	p := newPage()
	showGPU(p, s)
	showNVLink(p, s)
	showFabric(p, s)
	return p
}

// readMachine reads a machine, and expects as many errors.
func readMachine(t *testing.T, m *gputest.Machine, options gpu.Options, errs int) *gpu.Reading {
	t.Helper()
	r := gpu.NewReader(options)
	defer r.Close()
	reading, failed := r.Read(goldenTime)
	if len(failed) != errs {
		t.Errorf("%d errors: %v", len(failed), failed)
	}
	return &reading
}

// nodesOf are the PCI functions of a machine's GPUs, bound to nvidia.
func nodesOf(m *gputest.Machine) (nodes []affinity.Node, proc []string) {
	for _, g := range m.GPUs {
		address, _ := gpu.Address(g.BusID)
		nodes = append(nodes, affinity.Node{Address: address, Kind: affinity.KindGPU, Vendor: 0x10de, Driver: "nvidia", HadNVIDIA: true})
		proc = append(proc, address)
	}
	return nodes, proc
}

// gpuScenes are the pages kept in testdata/gpu.
func gpuScenes(t *testing.T) map[string]*snapshot.Snapshot {
	t.Helper()
	scenes := map[string]*snapshot.Snapshot{}
	for name, build := range gputest.Scenarios() {
		m := build()
		nodes, proc := nodesOf(m)
		scenes[name] = gpuSnapshot(readMachine(t, m, gpuOptions(m), 0), nodes, proc)
	}
	b200 := gputest.HGXB200()
	b200.GPUs = b200.GPUs[:1]
	options := gpuOptions(b200)
	options.PerLink = true
	scenes["per-link"] = gpuSnapshot(readMachine(t, b200, options, 0), nil, nil)

	lost := gputest.HGXH100()
	lost.GPUs = lost.GPUs[:2]
	nodes, proc := nodesOf(lost)
	r := gpu.NewReader(gpuOptions(lost))
	defer r.Close()
	r.Read(goldenTime)
	lost.Xid(1, 79)
	lost.Change(func() { lost.GPUs[1].Lost = true })
	reading, errs := r.Read(goldenTime.Add(time.Second))
	if len(errs) != 1 {
		t.Errorf("%v", errs)
	}
	scenes["lost"] = gpuSnapshot(&reading, nodes, proc)

	reset := gputest.H100NVL()
	reset.GPUs[1].Returns = map[string]nvml.Return{"nvmlDeviceGetMemoryInfo": nvml.ERROR_RESET_REQUIRED}
	nodes, proc = nodesOf(reset)
	scenes["reset"] = gpuSnapshot(readMachine(t, reset, gpuOptions(reset), 1), nodes, proc)

	mismatch := gputest.H100NVL()
	mismatch.Init = nvml.ERROR_LIB_RM_VERSION_MISMATCH
	nodes, proc = nodesOf(mismatch)
	scenes["mismatch"] = gpuSnapshot(readMachine(t, mismatch, gpuOptions(mismatch), 1), nodes, proc)

	stuck := gpuSnapshot(&gpu.Reading{}, nodes, proc)
	stuck.GPU.Units[0] = snapshot.UnitPart[gpu.Reading]{Name: "nvml", StuckFor: 90 * time.Second}
	stuck.GPU.Listing.Call = gpu.Call{Name: "nvmlDeviceGetBAR1MemoryInfo", GPUAddress: "0000:18:00.0"}
	scenes["stuck"] = stuck

	none := gputest.H100NVL()
	options = gpuOptions(none)
	options.Roots = []string{t.TempDir()}
	scenes["none"] = gpuSnapshot(readMachine(t, none, options, 0), []affinity.Node{}, nil)
	return scenes
}

func TestGPUGolden(t *testing.T) {
	scenes := gpuScenes(t)
	for name, s := range scenes {
		t.Run(name, func(t *testing.T) {
			comparePage(t, gpuPage(s), filepath.Join("testdata", "gpu", name+".metrics"))
		})
	}
	files, err := filepath.Glob("testdata/gpu/*.metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".metrics")
		if _, found := scenes[name]; !found && !strings.HasSuffix(name, ".tape") {
			t.Errorf("%s belongs to no scene", file)
		}
	}
}

// TestGPURecorded compares the page of each real machine's tape with its golden page.
func TestGPURecorded(t *testing.T) {
	files, err := filepath.Glob("../gpu/testdata/*.tape.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("gpu/testdata has no tape")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tape, err := nvmltape.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			reading := readMachine(t, nil, gpu.Options{Open: nvmltape.Play(tape).Open, SlowInterval: time.Minute, NVLink: true, Fabric: true}, 0)
			comparePage(t, gpuPage(gpuSnapshot(reading, nil, nil)), filepath.Join("testdata", "gpu", strings.TrimSuffix(filepath.Base(file), ".json")+".metrics"))
		})
	}
}

// gpuSamples are the samples of a page.
func gpuSamples(t *testing.T, s *snapshot.Snapshot) samples {
	t.Helper()
	return flatten(t, gpuPage(s).gather())
}

// TestGPUNothingAlarming: on machines that are as they should be no series says
// otherwise, and what a machine does not have has no series.
func TestGPUNothingAlarming(t *testing.T) {
	for name, build := range gputest.Scenarios() {
		m := build()
		nodes, proc := nodesOf(m)
		all := gpuSamples(t, gpuSnapshot(readMachine(t, m, gpuOptions(m), 0), nodes, proc))
		for key, value := range all {
			for _, bad := range []string{
				"gdr_gpu_lost", "gdr_gpu_reset_required", "gdr_gpu_recovery_action_id", "gdr_gpu_nvml_stuck", "gdr_gpu_nvml_library_stale", "gdr_gpu_xid_",
				"gdr_fabric_status_id", "gdr_fabric_degraded", "gdr_fabric_route", "gdr_fabric_access", "gdr_nvlink_recover", "gdr_nvlink_failed", "gdr_nvlink_crc", "gdr_nvlink_effective_errors",
			} {
				if strings.HasPrefix(key, bad) && value != 0 {
					t.Errorf("%s: %s is %v", name, key, value)
				}
			}
			if strings.HasPrefix(key, "gdr_fabric_health_summary_id") && value != 1 || strings.HasPrefix(key, "gdr_fabric_incorrect") && value != 1 {
				t.Errorf("%s: %s is %v", name, key, value)
			}
			if strings.HasPrefix(key, "gdr_gpu_info") && !strings.Contains(key, `presence="nvml"`) {
				t.Errorf("%s: %s", name, key)
			}
		}
	}
	// False zeros: families that a machine must not have.
	for name, families := range map[string][]string{
		"vgpu":      {"gdr_gpu_pcie_", "gdr_gpu_bar1_", "gdr_nvlink_", "gdr_fabric_", "gdr_gpu_recovery_", "gdr_gpu_xid_"},
		"mig":       {"gdr_nvlink_", "gdr_gpu_compute_processes"},
		"hgx-h100":  {"gdr_nvlink_effective_", "gdr_nvlink_symbol_", "gdr_nvlink_recoveries", "gdr_nvlink_fec_", "gdr_fabric_health", "gdr_fabric_degraded"},
		"hgx-b200":  {"gdr_nvlink_replay_", "gdr_nvlink_recovery_", "gdr_nvlink_crc_"},
		"a100-pcie": {"gdr_gpu_recovery_", "gdr_fabric_status", "gdr_fabric_info", "gdr_nvlink_crc", "gdr_nvlink_transmit"},
		"h100-nvl":  {"gdr_fabric_status", "gdr_fabric_info"},
	} {
		m := gputest.Scenarios()[name]()
		for key := range gpuSamples(t, gpuSnapshot(readMachine(t, m, gpuOptions(m), 0), nil, nil)) {
			for _, family := range families {
				if strings.HasPrefix(key, family) {
					t.Errorf("%s has %s", name, key)
				}
			}
		}
	}
}

// TestGPUSeries keeps NVML's share of the series of an 8-GPU node.
func TestGPUSeries(t *testing.T) {
	for name, most := range map[string]int{"hgx-h100": 640, "hgx-h200": 640, "hgx-b200": 800} {
		m := gputest.Scenarios()[name]()
		nodes, proc := nodesOf(m)
		count := len(gpuSamples(t, gpuSnapshot(readMachine(t, m, gpuOptions(m), 0), nodes, proc)))
		t.Logf("%s: %d series", name, count)
		if count > most {
			t.Errorf("%s: %d series, more than %d", name, count, most)
		}
	}
}

// TestGPUPresence: what is lost and what only looks so.
func TestGPUPresence(t *testing.T) {
	const a, b = "0000:18:00.0", "0000:2a:00.0"
	node := func(address, driver string) affinity.Node {
		return affinity.Node{Address: address, Kind: affinity.KindGPU, Driver: driver}
	}
	up := func(lost, hidden int, gpus ...gpu.GPU) *gpu.Reading {
		return &gpu.Reading{State: gpu.StateUp, LostUnnamed: lost, Hidden: hidden, GPUs: gpus}
	}
	seen := gpu.GPU{Address: a}
	for name, c := range map[string]struct {
		reading  *gpu.Reading
		nodes    []affinity.Node
		gone     []string
		proc     []string
		presence string // of b
		lost     string // gdr_gpu_lost of b; "" none
	}{
		"listed":                            {up(0, 0, seen, gpu.GPU{Address: b}), []affinity.Node{node(a, "nvidia"), node(b, "nvidia")}, nil, []string{a, b}, "nvml", "0"},
		"listed, without other sources":     {up(0, 0, seen, gpu.GPU{Address: b}), nil, nil, nil, "nvml", "0"},
		"NVML calls it lost":                {up(0, 0, seen, gpu.GPU{Address: b, Lost: true}), []affinity.Node{node(a, "nvidia"), node(b, "nvidia")}, nil, []string{a, b}, "lost", "1"},
		"lost before NVML named it":         {up(1, 0, seen), []affinity.Node{node(a, "nvidia"), node(b, "nvidia")}, nil, []string{a, b}, "lost", "1"},
		"the driver has dropped it":         {up(0, 0, seen), []affinity.Node{node(a, "nvidia"), node(b, "nvidia")}, nil, []string{a}, "lost", "1"},
		"dropped, and NVML hangs":           {nil, []affinity.Node{node(a, "nvidia"), node(b, "nvidia")}, nil, []string{a}, "lost", "1"},
		"off the PCI bus":                   {up(0, 0, seen), []affinity.Node{node(a, "nvidia")}, []string{b}, []string{a}, "lost", "1"},
		"off the PCI bus, NVML knows it":    {up(0, 0, seen, gpu.GPU{Address: b, Lost: true}), []affinity.Node{node(a, "nvidia")}, []string{b}, []string{a}, "lost", "1"},
		"hidden from NVML":                  {up(0, 1, seen), []affinity.Node{node(a, "nvidia"), node(b, "nvidia")}, nil, []string{a, b}, "hidden", "0"},
		"hidden from NVML and procfs":       {up(0, 1, seen), []affinity.Node{node(a, "nvidia"), node(b, "nvidia")}, nil, []string{a}, "hidden", ""},
		"not listed, no reason":             {up(0, 0, seen), []affinity.Node{node(a, "nvidia"), node(b, "nvidia")}, nil, []string{a, b}, "hidden", "0"},
		"passed through":                    {up(0, 0, seen), []affinity.Node{node(a, "nvidia"), node(b, "vfio-pci")}, nil, []string{a}, "passthrough", ""},
		"passed through (Grace)":            {up(0, 0, seen), []affinity.Node{node(a, "nvidia"), node(b, "nvgrace_gpu_vfio_pci")}, nil, []string{a}, "passthrough", ""},
		"unbound":                           {up(0, 0, seen), []affinity.Node{node(a, "nvidia"), {Address: b, Kind: affinity.KindGPU, HadNVIDIA: true}}, nil, []string{a}, "unbound", ""},
		"another driver":                    {up(0, 0, seen), []affinity.Node{node(a, "nvidia"), node(b, "nouveau")}, nil, []string{a}, "other_driver", ""},
		"NVML does not work":                {&gpu.Reading{State: gpu.StateVersionMismatch}, []affinity.Node{node(a, "nvidia"), node(b, "nvidia")}, nil, []string{a, b}, "unseen", "0"},
		"NVML does not work, procfs absent": {&gpu.Reading{State: gpu.StateNoLibrary}, []affinity.Node{node(a, "nvidia"), node(b, "nvidia")}, nil, nil, "unseen", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := gpuSnapshot(c.reading, c.nodes, c.proc)
			if s.Affinity != nil {
				s.Affinity.Listing.Gone = c.gone
			}
			presence, lost := "", ""
			p := newPage()
			showGPU(p, s)
			for _, mf := range p.gather() {
				for _, m := range mf.Metric {
					labels := map[string]string{}
					for _, label := range m.Label {
						labels[label.GetName()] = label.GetValue()
					}
					if labels["gpu_address"] != b {
						continue
					}
					switch mf.GetName() {
					case "gdr_gpu_info":
						presence = labels["presence"]
					case "gdr_gpu_lost":
						lost = map[float64]string{0: "0", 1: "1"}[m.GetGauge().GetValue()]
					}
				}
			}
			if presence != c.presence || lost != c.lost {
				t.Errorf("presence %q, lost %q; want %q, %q", presence, lost, c.presence, c.lost)
			}
		})
	}
}

// TestGPUExcluded: a GPU that is left out is not counted because procfs lists it.
func TestGPUExcluded(t *testing.T) {
	m := gputest.H100NVL()
	nodes, proc := nodesOf(m)
	options := gpuOptions(m)
	options.Include = func(address string) bool { return address == nodes[0].Address }
	all := gpuSamples(t, gpuSnapshot(readMachine(t, m, options, 0), nodes[:1], proc))
	for key, value := range all {
		if strings.HasPrefix(key, "gdr_gpus") && value != 1 {
			t.Errorf("%s %v", key, value)
		}
		if strings.Contains(key, nodes[1].Address) && !strings.HasPrefix(key, "gdr_nvlink_info") {
			t.Errorf("%s of an excluded GPU", key)
		}
	}
}

// gpuServer serves the pages of a machine.
type gpuServer struct {
	handler http.Handler
	taker   *snapshot.Taker
}

const shortDeadline = 200 * time.Millisecond

func serveMachine(t *testing.T, m *gputest.Machine, now func() time.Time) *gpuServer {
	t.Helper()
	taker := snapshot.New(snapshot.Options{Deadline: shortDeadline, Now: now}).GPU(gpu.NewReader(gpuOptions(m))).Taker()
	h := newHandler(Config{Taker: taker, Enabled: []string{"gpu", "nvlink", "fabric"}, Roles: noRoles{}, Deadline: shortDeadline})
	return &gpuServer{h, taker}
}

// scrape returns the page and how long it took.
func (s *gpuServer) scrape(t *testing.T) (string, time.Duration) {
	t.Helper()
	w := httptest.NewRecorder()
	began := time.Now()
	s.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String(), time.Since(began)
}

// TestGPUHang: case 90, a call that never returns costs the deadline once, is
// named, is not repeated, and the page is served; once it returns all is well.
func TestGPUHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := gputest.H100NVL()
		release := make(chan struct{})
		var once sync.Once
		free := func() { once.Do(func() { close(release) }) }
		defer free()
		m.Gate = func(call, busID string) {
			if call == "nvmlDeviceGetComputeRunningProcesses" && busID == m.GPUs[1].BusID {
				<-release
			}
		}
		s := serveMachine(t, m, time.Now)
		defer s.taker.Close()
		page, took := s.scrape(t)
		if took < shortDeadline*9/10 || took > 5*shortDeadline {
			t.Errorf("the first scrape took %v of a deadline of %v", took, shortDeadline)
		}
		const call = `gdr_gpu_nvml_stuck_call_info{call="nvmlDeviceGetComputeRunningProcesses",gpu_address="0000:2a:00.0"} 1`
		if !strings.Contains(page, call) {
			t.Errorf("the call is not named:\n%s", page)
		}
		m.Calls()
		// The read began a moment after the scrape: it hangs for a deadline only now.
		time.Sleep(shortDeadline / 4)
		for range 5 {
			page, took = s.scrape(t)
			if took > shortDeadline/2 {
				t.Errorf("a later scrape took %v", took)
			}
			if !strings.Contains(page, call) || !strings.Contains(page, `gdr_device_read_stuck{collector="gpu",device="nvml"} 1`) || strings.Contains(page, "gdr_gpu_nvml_up") || strings.Contains(page, "gdr_gpu_memory") {
				t.Errorf("page while stuck:\n%s", page)
			}
		}
		if made := m.Calls(); len(made) > 0 {
			t.Errorf("calls while stuck: %v", made)
		}
		free()
		deadline := time.Now().Add(10 * time.Second)
		for {
			if page, _ = s.scrape(t); strings.Contains(page, "gdr_gpu_nvml_up 1") && strings.Contains(page, "gdr_gpu_nvml_stuck_seconds 0") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("it did not recover:\n%s", page)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if strings.Contains(page, "stuck_call_info{") || !strings.Contains(page, `gdr_gpu_memory_free_bytes{gpu_address="0000:2a:00.0"}`) {
			t.Errorf("page after recovery:\n%s", page)
		}
	})
}

// TestGPULostAndMismatch: cases 89 and 91 through scrapes, with the clock set on.
func TestGPULostAndMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := gputest.H100NVL()
		now := goldenTime
		s := serveMachine(t, m, func() time.Time { return now })
		defer s.taker.Close()
		expect := func(step time.Duration, want ...string) {
			t.Helper()
			now = now.Add(step)
			page, took := s.scrape(t)
			if took > shortDeadline {
				t.Errorf("took %v", took)
			}
			for _, line := range want {
				if !strings.Contains(page, line) {
					t.Errorf("no %s in:\n%s", line, page)
				}
			}
		}
		expect(0, "gdr_gpu_nvml_up 1", `gdr_gpu_lost{gpu_address="0000:2a:00.0"} 0`)
		m.Change(func() { m.GPUs[1].Lost = true })
		expect(15*time.Second, `gdr_gpu_lost{gpu_address="0000:18:00.0"} 0`, `gdr_gpu_lost{gpu_address="0000:2a:00.0"} 1`, `gdr_gpu_memory_free_bytes{gpu_address="0000:18:00.0"}`,
			`gdr_read_errors_total{collector="gpu",device="0000:2a:00.0",errno="NVML_ERROR_GPU_IS_LOST",port="",source="nvmlDeviceGetMemoryInfo"} 1`, `gdr_gpus{source="nvml"} 1`)
		m.Change(func() { m.GPUs[1].Lost = false })
		expect(time.Minute, `gdr_gpu_lost{gpu_address="0000:2a:00.0"} 0`, `gdr_gpus{source="nvml"} 2`)
		m.Change(func() { m.All, m.Init = nvml.ERROR_LIB_RM_VERSION_MISMATCH, nvml.ERROR_LIB_RM_VERSION_MISMATCH })
		expect(15*time.Second, "gdr_gpu_nvml_up 0", `gdr_gpu_nvml_state{state="version_mismatch"} 1`, "gdr_gpu_nvml_library_stale 0")
		m.Change(func() { m.All, m.Init = nvml.SUCCESS, nvml.SUCCESS })
		expect(2*time.Minute, "gdr_gpu_nvml_up 1", `gdr_gpu_nvml_state{state="version_mismatch"} 0`, `gdr_gpu_memory_free_bytes{gpu_address="0000:2a:00.0"}`)
	})
}

// TestGPUCases are the rows of cases.md that concern reading GPUs and their links.
func TestGPUCases(t *testing.T) {
	for name, c := range map[string]struct {
		build        func() *gputest.Machine
		change       func(*gputest.Machine)
		want, absent []string
		errs         int
	}{
		"65 a vGPU is said to be one": {gputest.VGPU, nil, []string{`virtualization="vgpu"`}, []string{"gdr_gpu_bar1_bytes{"}, 0},
		"69 all links inactive on one GPU": {gputest.HGXB200, func(m *gputest.Machine) {
			for i := range m.GPUs[0].Links {
				m.GPUs[0].Links[i] = gputest.Link{Fields: map[uint32]uint64{nvml.FI_DEV_NVLINK_GET_STATE: 0}}
			}
		}, []string{`gdr_nvlink_active_links{gpu_address="0000:18:00.0"} 0`, `gdr_nvlink_active_links{gpu_address="0000:2a:00.0"} 18`, `gdr_nvlink_state_id{gpu_address="0000:18:00.0",nvlink="0"} 0`}, []string{`gdr_nvlink_state_id{gpu_address="0000:2a:00.0"`}, 0},
		"71 recoveries of one link are real counters": {gputest.HGXB200, func(m *gputest.Machine) {
			m.GPUs[0].Links[4].Fields[nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS] = 505
		}, []string{`gdr_nvlink_recoveries_total{gpu_address="0000:18:00.0"} 505`}, nil, 0},
		"73 fabric stuck in progress": {gputest.HGXH200, func(m *gputest.Machine) { m.GPUs[7].Fabric.State = nvml.GPU_FABRIC_STATE_IN_PROGRESS },
			[]string{`gdr_fabric_state_id{gpu_address="0000:db:00.0"} 2`}, []string{`gdr_fabric_status_id{gpu_address="0000:db:00.0"}`, `gdr_fabric_info{clique_id="0",cluster_uuid="00000000-0000-0000-0000-000000000000",gpu_address="0000:db:00.0"}`}, 0},
		"74 completed with a bad status": {gputest.GB200, func(m *gputest.Machine) {
			m.GPUs[0].Fabric = nvml.GpuFabricInfo_v3{State: nvml.GPU_FABRIC_STATE_COMPLETED, Status: uint32(nvml.ERROR_INSUFFICIENT_RESOURCES)}
		}, []string{`gdr_fabric_status_id{gpu_address="0008:01:00.0"} 23`, `clique_id="0",cluster_uuid="00000000-0000-0000-0000-000000000000",gpu_address="0008:01:00.0"`}, nil, 0},
		"75 fabric manager down": {gputest.HGXH100, func(m *gputest.Machine) { m.GPUs[0].Fabric.State = nvml.GPU_FABRIC_STATE_NOT_STARTED },
			[]string{`gdr_fabric_state_id{gpu_address="0000:18:00.0"} 1`}, nil, 0},
		"77 no fabric is neutral":            {gputest.H100NVL, nil, []string{`gdr_fabric_state_id{gpu_address="0000:18:00.0"} 0`}, []string{"gdr_fabric_status_id{", "gdr_fabric_info{"}, 0},
		"78 P2P dead while the links are up": {gputest.HGXH100, deadP2P, []string{`gdr_gpu_p2p_status_id{capability="nvlink",gpu_address="0000:18:00.0",peer_address="0000:2a:00.0"} 4`, `gdr_nvlink_active_links{gpu_address="0000:18:00.0"} 18`}, nil, 0},
		"79 H100 NVL has 12 of 18":           {gputest.H100NVL, nil, []string{`gdr_nvlink_links{gpu_address="0000:18:00.0"} 18`, `gdr_nvlink_active_links{gpu_address="0000:18:00.0"} 12`}, nil, 0},
		"79 A100 PCIe without a bridge":      {gputest.A100PCIe, nil, []string{`gdr_nvlink_active_links{gpu_address="0000:18:00.0"} 0`}, []string{"gdr_nvlink_crc_errors_total{"}, 0},
		"80 the device tells its number of links": {gputest.HGXH100, func(m *gputest.Machine) {
			m.GPUs[0].Fields[nvml.FI_DEV_NVLINK_LINK_COUNT] = 8
			m.GPUs[0].Links = m.GPUs[0].Links[:8]
		}, []string{`gdr_nvlink_links{gpu_address="0000:18:00.0"} 8`, `gdr_nvlink_active_links{gpu_address="0000:18:00.0"} 8`}, []string{`gdr_nvlink_state_id{gpu_address="0000:18:00.0"`}, 0},
		"81 NVLink 5 through the old call":    {gputest.HGXB200, nil, nil, []string{"gdr_nvlink_replay_errors_total{", "gdr_nvlink_crc_errors_total{"}, 0},
		"82 Gen1 at idle":                     {gputest.A100PCIe, nil, []string{`gdr_gpu_pcie_generation{gpu_address="0000:18:00.0"} 1`, `gdr_gpu_pcie_host_max_generation{gpu_address="0000:18:00.0"} 4`}, nil, 0},
		"85 width lost":                       {gputest.HGXH100, func(m *gputest.Machine) { m.GPUs[0].Width = 8 }, []string{`gdr_gpu_pcie_width_lanes{gpu_address="0000:18:00.0"} 8`, `gdr_gpu_pcie_max_width_lanes{gpu_address="0000:18:00.0"} 16`}, nil, 0},
		"86 fallen off the bus":               {gputest.HGXH100, func(m *gputest.Machine) { m.GPUs[3].Lost = true }, []string{`gdr_gpus{source="pci"} 8`, `gdr_gpus{source="nvml"} 7`, `gdr_gpu_lost{gpu_address="0000:5d:00.0"} 1`, `gdr_gpu_lost{gpu_address="0000:3a:00.0"} 0`}, nil, 1},
		"88 Xids exist at 0":                  {gputest.HGXB200, nil, []string{`gdr_gpu_xid_events_total{gpu_address="0000:18:00.0",xid="74"} 0`, `gdr_gpu_xid_events_total{gpu_address="0000:18:00.0",xid="149"} 0`}, []string{"gdr_gpu_xid_last_timestamp_seconds{"}, 0},
		"91 version mismatch":                 {gputest.HGXH100, func(m *gputest.Machine) { m.Init = nvml.ERROR_LIB_RM_VERSION_MISMATCH }, []string{`gdr_gpu_nvml_state{state="version_mismatch"} 1`, `gdr_gpus{source="pci"} 8`}, []string{"gdr_nvlink_", "gdr_gpu_lost{gpu_address=\"0000:18:00.0\"} 1"}, 1},
		"93 a driver without newer functions": {gputest.OldDriver, nil, []string{`gdr_fabric_state_id{gpu_address="0000:18:00.0"} 3`, `gdr_nvlink_replay_errors_total{gpu_address="0000:18:00.0"} 54`}, []string{"gdr_gpu_recovery_action_id{", "gdr_fabric_degraded"}, 0},
		"a call that fails costs one sample": {gputest.HGXH100, func(m *gputest.Machine) {
			m.GPUs[0].Returns = map[string]nvml.Return{"nvmlDeviceGetBAR1MemoryInfo": nvml.ERROR_UNKNOWN}
		}, []string{`gdr_gpu_memory_free_bytes{gpu_address="0000:18:00.0"}`, `gdr_gpu_bar1_bytes{gpu_address="0000:2a:00.0"}`}, []string{`gdr_gpu_bar1_bytes{gpu_address="0000:18:00.0"}`}, 1},
		"an architecture that is not known is no error": {gputest.HGXH100, func(m *gputest.Machine) { m.GPUs[0].Architecture = 77 }, []string{`architecture="unknown_77"`}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := c.build()
			nodes, proc := nodesOf(m)
			if c.change != nil {
				c.change(m)
			}
			text := pageText(t, gpuPage(gpuSnapshot(readMachine(t, m, gpuOptions(m), c.errs), nodes, proc)))
			for _, line := range c.want {
				if !strings.Contains(text, line) {
					t.Errorf("no %s in:\n%s", line, text)
				}
			}
			for _, line := range c.absent {
				if strings.Contains(text, line) {
					t.Errorf("%s in:\n%s", line, text)
				}
			}
		})
	}
}

// pageText is the page in Prometheus's text format.
func pageText(t *testing.T, p *page) string {
	t.Helper()
	var b bytes.Buffer
	for _, mf := range p.gather() {
		if _, err := expfmt.MetricFamilyToText(&b, mf); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func deadP2P(m *gputest.Machine) {
	m.P2P = func(_, _ int, capability nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
		if capability == nvml.P2P_CAPS_INDEX_NVLINK {
			return nvml.P2P_STATUS_DISABLED_BY_REGKEY, nvml.SUCCESS
		}
		return nvml.P2P_STATUS_OK, nvml.SUCCESS
	}
}

// TestGPUNotAsked: without a source there is no series, and no panic.
func TestGPUNotAsked(t *testing.T) {
	for _, s := range []*snapshot.Snapshot{
		{}, gpuSnapshot(nil, nil, nil),
		{GPU: &snapshot.GPUPart{Err: errors.New("listing failed")}, Affinity: &snapshot.AffinityPart{Err: context.DeadlineExceeded}},
	} {
		for _, mf := range gpuPage(s).gather() {
			if mf.GetName() != "gdr_gpu_nvml_stuck_seconds" {
				t.Errorf("%s", mf.GetName())
			}
		}
	}
}

// BenchmarkGPUPage is NVML's share of rendering a scrape of an 8-GPU node.
func BenchmarkGPUPage(b *testing.B) {
	for name, build := range map[string]func() *gputest.Machine{"h100": gputest.HGXH100, "b200": gputest.HGXB200} {
		b.Run(name, func(b *testing.B) {
			m := build()
			nodes, proc := nodesOf(m)
			r := gpu.NewReader(gpuOptions(m))
			defer r.Close()
			reading, _ := r.Read(goldenTime)
			s := gpuSnapshot(&reading, nodes, proc)
			p := newPage()
			b.ReportAllocs()
			for b.Loop() {
				p.reset()
				showGPU(p, s)
				showNVLink(p, s)
				showFabric(p, s)
			}
		})
	}
}

// TestNVLinkStates: by default links that are active have no series, but for
// certain: where one did not answer, what the others said is shown.
func TestNVLinkStates(t *testing.T) {
	link := func(number, state int) gpu.Link { return gpu.Link{Number: number, State: sysread.Some(state)} }
	active, silent := sysread.Some(2), gpu.Link{Number: 2}
	for name, c := range map[string]struct {
		n    gpu.NVLink
		all  bool
		want string
	}{
		"all active":        {gpu.NVLink{Active: active, Links: []gpu.Link{link(0, 1), link(1, 2)}}, false, ""},
		"two are not":       {gpu.NVLink{Active: active, Links: []gpu.Link{link(0, 1), link(1, 0), link(2, 2), link(3, 3)}}, false, "1=0 3=3 "},
		"one is not known":  {gpu.NVLink{Links: []gpu.Link{link(0, 1), link(1, 2), silent}}, false, "0=1 1=2 "},
		"asked for by link": {gpu.NVLink{Active: active, Links: []gpu.Link{link(0, 1), link(1, 2)}}, true, "0=1 1=2 "},
	} {
		p := newPage()
		showLinkStates(p, &c.n, c.all, pairs("gpu_address", "0000:18:00.0"))
		got := ""
		for _, mf := range p.gather() {
			for _, m := range mf.Metric {
				got += fmt.Sprintf("%s=%v ", m.Label[1].GetValue(), m.Gauge.GetValue())
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

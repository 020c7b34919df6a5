package gpu_test

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	nvmltape "gdr_exporter/gpu/tape"
)

// TestOnGPU reads a real machine and compares every value with nvidia-smi's of
// the same moment. It prints what the calls cost and leaves a tape, without what
// identifies the machine, in the directory OUT. Build and carry over:
//
//	go test -c -ldflags "-extldflags=-Wl,-z,lazy" ./gpu
//	GDR_ON_GPU=1 OUT=/tmp ./gpu.test -test.v -test.run TestOnGPU
func TestOnGPU(t *testing.T) {
	if os.Getenv("GDR_ON_GPU") != "1" {
		t.Skip("GDR_ON_GPU=1 is not set: no NVIDIA GPU is promised here")
	}
	var tape *nvmltape.Tape
	options := gpu.Options{
		Roots: []string{"/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/usr/local/nvidia"}, Procfs: "/proc",
		SlowInterval: time.Minute, NVLink: true, PerLink: true, Fabric: true,
		Open: func(path string) (gpu.Library, error) {
			lib, err := gpu.OpenLibrary(path)
			if err != nil {
				return nil, err
			}
			lib, tape = nvmltape.Record(lib)
			return lib, nil
		},
	}
	r := gpu.NewReader(options)
	defer r.Close()
	now := time.Now()
	reading := read(t, r, now)
	if reading.State != gpu.StateUp || len(reading.GPUs) == 0 {
		t.Fatalf("NVML is not up: %s %v", reading.State, reading.Err)
	}
	t.Logf("library %s, NVML %s, driver %s, %d GPUs; first read %v", reading.Library, reading.Version, reading.DriverVersion, len(reading.GPUs), reading.Time)
	compareSMI(t, reading)
	compareTopology(t, reading)
	for _, g := range reading.GPUs {
		t.Logf("%+v", g)
	}
	saveTape(t, tape)
	measure(t)
}

// measure prints what reads and calls cost, with the options of the exporter.
func measure(t *testing.T) {
	r := gpu.NewReader(gpu.Options{Roots: []string{"/", "/usr/local/nvidia"}, SlowInterval: time.Minute, NVLink: true, Fabric: true})
	defer r.Close()
	now := time.Now()
	costs := map[string][]time.Duration{}
	r.Observe(func(call string, duration time.Duration) { costs[call] = append(costs[call], duration) })
	first, _ := r.Read(now)
	initial := costs
	costs = map[string][]time.Duration{}
	fast := times(20, func(int) time.Duration { return must(r.Read(now.Add(time.Millisecond))).Time })
	steady := costs
	costs = map[string][]time.Duration{}
	scrapes := times(20, func(i int) time.Duration { return must(r.Read(now.Add(time.Duration(i+1) * 15 * time.Second))).Time })
	slow := times(20, func(i int) time.Duration { return must(r.Read(now.Add(time.Hour + time.Duration(i)*time.Hour))).Time })
	n := time.Duration(len(first.GPUs))
	t.Logf("NVML time per read of %d GPUs: first %v; between slow groups %v; scrapes every 15 s %v (largest %v); all slow groups at once %v",
		n, first.Time, median(fast), median(scrapes), slices.Max(scrapes), median(slow))
	mean := time.Duration(0)
	for _, took := range scrapes {
		mean += took
	}
	mean /= time.Duration(len(scrapes))
	t.Logf("per GPU and scrape: between slow groups %v, on average %v", median(fast)/n, mean/n)
	if per := mean / n; per > 5*time.Millisecond {
		t.Errorf("%v of NVML time per GPU and scrape, more than 5 ms", per)
	}
	printCosts(t, "first read", initial)
	printCosts(t, "between slow groups", steady)
	printCosts(t, "slow groups and scrapes", costs)
}

func must(reading gpu.Reading, _ []sysread.ReadError) gpu.Reading { return reading }

func times(n int, f func(int) time.Duration) []time.Duration {
	var all []time.Duration
	for i := range n {
		all = append(all, f(i))
	}
	return all
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

func printCosts(t *testing.T, what string, costs map[string][]time.Duration) {
	var lines []string
	for call, all := range costs {
		lines = append(lines, fmt.Sprintf("%-40s %4d calls, median %v, largest %v", call, len(all), median(all), slices.Max(all)))
	}
	slices.Sort(lines)
	t.Logf("%s:\n%s", what, strings.Join(lines, "\n"))
}

func saveTape(t *testing.T, tape *nvmltape.Tape) {
	if err := tape.Anonymise(); err != nil {
		t.Fatal(err)
	}
	text, err := tape.JSON()
	if err != nil {
		t.Fatal(err)
	}
	dir := cmp.Or(os.Getenv("OUT"), t.TempDir())
	path := filepath.Join(dir, "h200.tape.json")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d bytes", path, len(text))
}

// smiGPU is what nvidia-smi -q -x says of a GPU.
type smiGPU struct {
	ID            string `xml:"id,attr"`
	Name          string `xml:"product_name"`
	Architecture  string `xml:"product_architecture"`
	UUID          string `xml:"uuid"`
	VBIOS         string `xml:"vbios_version"`
	Persistence   string `xml:"persistence_mode"`
	MIG           string `xml:"mig_mode>current_mig"`
	Virtual       string `xml:"gpu_virtualization_mode>virtualization_mode"`
	Recovery      string `xml:"gpu_recovery_action"`
	Generation    string `xml:"pci>pci_gpu_link_info>pcie_gen>current_link_gen"`
	MaxGeneration string `xml:"pci>pci_gpu_link_info>pcie_gen>max_device_link_gen"`
	HostMax       string `xml:"pci>pci_gpu_link_info>pcie_gen>max_link_gen"`
	Width         string `xml:"pci>pci_gpu_link_info>link_widths>current_link_width"`
	MaxWidth      string `xml:"pci>pci_gpu_link_info>link_widths>max_link_width"`
	Replays       string `xml:"pci>replay_counter"`
	FBTotal       string `xml:"fb_memory_usage>total"`
	FBFree        string `xml:"fb_memory_usage>free"`
	BAR1Total     string `xml:"bar1_memory_usage>total"`
	BAR1Used      string `xml:"bar1_memory_usage>used"`
	ComputeMode   string `xml:"compute_mode"`
	FabricState   string `xml:"fabric>state"`
	FabricStatus  string `xml:"fabric>status"`
	FabricClique  string `xml:"fabric>cliqueId"`
	FabricCluster string `xml:"fabric>clusterUuid"`
	Bandwidth     string `xml:"fabric>health>bandwidth"`
	Processes     []struct {
		Type string `xml:"type"`
	} `xml:"processes>process_info"`
}

func compareSMI(t *testing.T, reading gpu.Reading) {
	t.Helper()
	out, err := exec.Command("nvidia-smi", "-q", "-x").Output()
	if err != nil {
		t.Fatal(err)
	}
	var smi struct {
		Driver string   `xml:"driver_version"`
		GPUs   []smiGPU `xml:"gpu"`
	}
	if err := xml.Unmarshal(out, &smi); err != nil {
		t.Fatal(err)
	}
	if smi.Driver != reading.DriverVersion || len(smi.GPUs) != len(reading.GPUs) {
		t.Errorf("nvidia-smi: driver %s, %d GPUs; here %s, %d", smi.Driver, len(smi.GPUs), reading.DriverVersion, len(reading.GPUs))
	}
	for _, want := range smi.GPUs {
		i := slices.IndexFunc(reading.GPUs, func(g gpu.GPU) bool { return g.BusID == want.ID })
		if i < 0 {
			t.Errorf("%s is missing", want.ID)
			continue
		}
		compareGPU(t, &want, &reading.GPUs[i])
	}
}

func compareGPU(t *testing.T, want *smiGPU, g *gpu.GPU) {
	t.Helper()
	compared := 0
	same := func(what, smi, here string) {
		t.Helper()
		compared++
		if smi != here {
			t.Errorf("%s %s: nvidia-smi %q, here %q", g.Address, what, smi, here)
		}
	}
	address, _ := gpu.Address(want.ID)
	same("address", address, g.Address)
	same("uuid", want.UUID, g.UUID)
	same("name", want.Name, g.Name)
	same("architecture", strings.ToLower(want.Architecture), g.Architecture)
	same("vbios", want.VBIOS, g.VBIOS)
	same("persistence", want.Persistence, name(known(g.Modes.Persistence, btoi), "Disabled", "Enabled"))
	same("mig", want.MIG, name(known(g.Modes.MIG, btoi), "Disabled", "Enabled"))
	same("compute mode", want.ComputeMode, name(g.Modes.Compute, "Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"))
	same("virtualization", want.Virtual, map[string]string{"none": "None", "passthrough": "Pass-Through", "vgpu": "VGPU"}[g.Virtualization])
	same("recovery action", want.Recovery, name(known(g.RecoveryAction, func(n uint64) int { return int(n) }), "None", "Reset", "Reboot", "Drain P2P", "Drain and Reset"))
	same("generation", want.Generation, number(g.PCIe.Generation))
	same("max generation", want.MaxGeneration, number(g.PCIe.MaxGeneration))
	same("host max generation", want.HostMax, number(g.PCIe.HostMaxGeneration))
	same("width", strings.TrimSuffix(want.Width, "x"), number(g.PCIe.Width))
	same("max width", strings.TrimSuffix(want.MaxWidth, "x"), number(g.PCIe.MaxWidth))
	same("replays", want.Replays, number(g.PCIe.Replays))
	same("BAR1", want.BAR1Total, mib(g.BAR1.Total))
	same("BAR1 used", want.BAR1Used, mib(g.BAR1.Used))
	same("memory", want.FBTotal, mib(g.FB.Total))
	near(t, "free memory", want.FBFree, g.FB.Free)
	same("fabric state", want.FabricState, name(g.Fabric.State, "N/A", "Not Started", "In Progress", "Completed"))
	same("fabric status", want.FabricStatus, name(g.Fabric.Status, "Success"))
	same("fabric clique", want.FabricClique, number(g.Fabric.CliqueID))
	same("fabric cluster", want.FabricCluster, cmp.Or(g.Fabric.ClusterUUID, "N/A"))
	same("fabric bandwidth", want.Bandwidth, name(known(g.Fabric.Health.DegradedBandwidth, btoi), "Full", "Degraded"))
	compute := slices.DeleteFunc(slices.Clone(want.Processes), func(p struct {
		Type string `xml:"type"`
	}) bool {
		return !strings.Contains(p.Type, "C")
	})
	same("processes", strconv.Itoa(len(compute)), number(g.Procs))
	t.Logf("%s: %d values compared with nvidia-smi -q", g.Address, compared)
}

func btoi(on bool) int {
	if on {
		return 1
	}
	return 0
}

func known[T any](m sysread.Maybe[T], f func(T) int) sysread.Maybe[int] {
	return sysread.Maybe[int]{Value: f(m.Value), Known: m.Known}
}

func name(value sysread.Maybe[int], names ...string) string {
	if !value.Known {
		return "N/A"
	}
	if value.Value >= 0 && value.Value < len(names) {
		return names[value.Value]
	}
	return fmt.Sprint(value.Value)
}

func number[T any](value sysread.Maybe[T]) string {
	if !value.Known {
		return "N/A"
	}
	return fmt.Sprint(value.Value)
}

func mib(value sysread.Maybe[uint64]) string {
	if !value.Known {
		return "N/A"
	}
	return fmt.Sprintf("%d MiB", value.Value>>20)
}

// near allows memory to change between two reads.
func near(t *testing.T, what, smi string, value sysread.Maybe[uint64]) {
	t.Helper()
	want, err := strconv.ParseFloat(strings.TrimSuffix(smi, " MiB"), 64)
	if got := float64(value.Value) / (1 << 20); err != nil || !value.Known || got < want-1024 || got > want+1024 {
		t.Errorf("%s: nvidia-smi %s, here %s", what, smi, mib(value))
	}
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

// smiTable returns the rows of an nvidia-smi topo table, by the first column.
func smiTable(t *testing.T, args ...string) (header []string, rows map[string][]string) {
	t.Helper()
	out, err := exec.Command("nvidia-smi", append([]string{"topo"}, args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	rows = map[string][]string{}
	for line := range strings.Lines(escapes.ReplaceAllString(string(out), "")) {
		cells := strings.Split(strings.TrimRight(line, "\n"), "\t")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case header == nil:
			header = cells
		case strings.HasPrefix(cells[0], "GPU"):
			rows[cells[0]] = cells
		}
	}
	return header, rows
}

// compareTopology compares with nvidia-smi topo: -m shows the number of NVLinks
// of a pair, else the ancestor; -p2p shows what the pair may do.
func compareTopology(t *testing.T, reading gpu.Reading) {
	t.Helper()
	byAddress := map[string]*gpu.GPU{}
	for i := range reading.GPUs {
		byAddress[reading.GPUs[i].Address] = &reading.GPUs[i]
	}
	header, rows := smiTable(t, "-m")
	cell := func(header []string, rows map[string][]string, row, column string) string {
		i := slices.Index(header, column)
		if i < 0 || i >= len(rows[row]) {
			return ""
		}
		return rows[row][i]
	}
	gpuName := func(address string) string { return fmt.Sprintf("GPU%d", byAddress[address].Index) }
	for _, g := range reading.GPUs {
		if want := cell(header, rows, gpuName(g.Address), "CPU Affinity"); want != g.CPUAffinity {
			t.Errorf("%s: CPU affinity %q, here %q", g.Address, want, g.CPUAffinity)
		}
		if want := cell(header, rows, gpuName(g.Address), "NUMA Affinity"); want != number(g.NUMANode) {
			t.Errorf("%s: NUMA affinity %q, here %s", g.Address, want, number(g.NUMANode))
		}
	}
	ancestors := map[int]string{0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
	for _, p := range reading.Pairs {
		want := cell(header, rows, gpuName(p.A), gpuName(p.B))
		here := ancestors[p.Ancestor.Value]
		if strings.HasPrefix(want, "NV") {
			here = "NV" + number(byAddress[p.A].NVLink.Active)
		}
		if want != here {
			t.Errorf("%s-%s: nvidia-smi topo -m %q, here %q (ancestor %v)", p.A, p.B, want, here, p.Ancestor)
		}
		t.Logf("%s-%s: %s, ancestor %v, p2p %v", p.A, p.B, want, p.Ancestor, p.P2P)
	}
	for capability, letter := range []string{"r", "w", "n"} {
		header, rows := smiTable(t, "-p2p", letter)
		for _, p := range reading.Pairs {
			want := cell(header, rows, gpuName(p.A), gpuName(p.B))
			here := name(p.P2P[capability], "OK", "CNS", "GNS", "TNS", "DR", "NS", "U")
			if want != here {
				t.Errorf("%s-%s: nvidia-smi topo -p2p %s %q, here %q", p.A, p.B, letter, want, here)
			}
		}
	}
}

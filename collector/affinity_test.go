package collector

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma/rdmatest"
)

// affinityTaker returns a Taker of the PCIe tree below root.
func affinityTaker(t *testing.T, root string, options snapshot.Options, change ...func(*affinity.Options)) *snapshot.Taker {
	t.Helper()
	reader := affinity.Options{Sysfs: filepath.Join(root, "sys"), SlowInterval: time.Minute, Descriptors: 1024}
	for _, f := range change {
		f(&reader)
	}
	if options.Now == nil {
		options.Now = func() time.Time { return goldenTime }
	}
	if options.Deadline == 0 {
		options.Deadline = time.Minute
	}
	taker := snapshot.New(options).Affinity(affinity.NewReader(reader)).Taker()
	t.Cleanup(taker.Close)
	return taker
}

func allCollectors(string) bool { return true }

// affinityPage is the page of both views.
func affinityPage(s *snapshot.Snapshot) *page {
	p := newPage()
	showAffinity(p, s)
	showPCIe(p, s)
	return p
}

// affinityTrees are the trees whose pages are kept.
var affinityTrees = map[string]func() *rdmatest.Tree{
	"hgx":         func() *rdmatest.Tree { return rdmatest.HGX(rdmatest.HGXOptions{}) },
	"pcie-server": rdmatest.PCIeServer,
	"grace":       rdmatest.GraceNode,
	"data-direct": rdmatest.DataDirectNode,
	"flat-vm":     rdmatest.FlatVM,
	"port-vm":     rdmatest.PortVM,
	"gpu-only":    rdmatest.GPUOnly,
	"rdma-only":   func() *rdmatest.Tree { return rdmatest.NodeN(2) },
	"none":        func() *rdmatest.Tree { return rdmatest.New().Dir("sys/class") },
	"unprivileged": func() *rdmatest.Tree {
		return rdmatest.HGX(rdmatest.HGXOptions{ACS: 0x1d, IOMMU: "DMA-FQ"}).Unprivileged()
	},
	"sick":    sickTree,
	"h200-vm": recordedVM,
}

// recordedVM is what a virtual machine with two H200 and no RDMA device showed.
func recordedVM() *rdmatest.Tree {
	text, err := os.ReadFile("../gpu/affinity/testdata/h200-vm.txt")
	if err != nil {
		panic(err)
	}
	tree, err := rdmatest.Parse(string(text))
	if err != nil {
		panic(err)
	}
	return tree
}

// sickTree is a node on which most that can be wrong is: ACS redirects, the
// IOMMU translates, links are narrow and slow, errors count, functions sleep, one
// GPU has fallen off the bus, one is passed through and one has no driver.
func sickTree() *rdmatest.Tree {
	t := rdmatest.HGX(rdmatest.HGXOptions{ACS: 0x1d, IOMMU: "DMA"})
	at := func(address string) string {
		real, _ := t.Real("sys/bus/pci/devices/" + address)
		return real + "/"
	}
	t.File(at("0000:18:00.0")+"current_link_width", "8\n")
	t.File(at("0000:1a:00.0")+"current_link_speed", "5.0 GT/s PCIe\n")
	t.File(at("0000:1a:00.0")+"aer_dev_correctable", "Receiver Error 0\nBad TLP 12\nRelayNumRollover 3\naer_correctable_error_bit[30] 1\nTOTAL_ERR_COR 14\n")
	t.File(at("0000:17:02.0")+"aer_dev_nonfatal", "ACSViol 7\nTOTAL_ERR_NONFATAL 7\n")
	t.File(at("0000:19:00.0")+"config", strings.Repeat("\xff", 4096))
	t.File(at("0000:19:00.0")+"current_link_width", "63\n")
	t.File(at("0000:19:00.0")+"current_link_speed", "Unknown\n")
	t.File(at("0000:3a:00.0")+"power_state", "D3cold\n")
	t.Bind(strings.TrimSuffix(at("0000:3a:00.0"), "/"), "vfio-pci")
	t.Bind(strings.TrimSuffix(at("0000:3b:00.0"), "/"), "")
	t.File(at("0000:3b:00.0")+"power_state", "unknown\n")
	t.File(at("0000:3c:00.0")+"config", rdmatest.ConfigSpace{Vendor: 0x15b3, Device: 0x1021, Class: 0x020700, DevCtl: 0x2927, ATS: new(uint16)}.Bytes())
	return t
}

func TestAffinityGolden(t *testing.T) {
	for name, build := range affinityTrees {
		t.Run(name, func(t *testing.T) {
			root := tempTree(t)
			if err := build().WriteTo(root); err != nil {
				t.Fatal(err)
			}
			s := affinityTaker(t, root, snapshot.Options{}).Take(t.Context(), allCollectors)
			// The GPU off the bus is the only one to fail.
			for _, e := range s.Errors {
				if name != "sick" || e.Device != "0000:19:00.0" || e.Source != "config" || e.Errno != "ENODEV" {
					t.Errorf("%+v", e)
				}
			}
			comparePage(t, affinityPage(s), filepath.Join("testdata", "affinity", name+".metrics"))
		})
	}
}

func TestAffinityNoStaleGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/affinity/*.metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if affinityTrees[strings.TrimSuffix(filepath.Base(file), ".metrics")] == nil {
			t.Errorf("%s belongs to no tree", file)
		}
	}
}

// TestAffinityBudget: both views together stay within their share of the page
// on a node with 8 GPUs and 8 NICs.
func TestAffinityBudget(t *testing.T) {
	for name, options := range map[string]rdmatest.HGXOptions{
		"ib": {}, "roce": {RoCE: true}, "iommu": {IOMMU: "identity", ACS: 0x1d},
	} {
		root := tempTree(t)
		if err := rdmatest.HGX(options).WriteTo(root); err != nil {
			t.Fatal(err)
		}
		p := affinityPage(affinityTaker(t, root, snapshot.Options{}).Take(t.Context(), allCollectors))
		if p.used > 400 || p.used < 300 {
			t.Errorf("%s: %d series", name, p.used)
		}
		t.Logf("%s: %d series", name, p.used)
	}
}

// TestAffinityBounds: with hundreds of sub-functions only the nearest pairs are
// shown, and the page stays bounded.
func TestAffinityBounds(t *testing.T) {
	part := &snapshot.AffinityPart{}
	for g := range 16 {
		for d := range 1000 {
			part.Listing.Pairs = append(part.Listing.Pairs, affinity.Pair{GPU: fmt.Sprint(g), Device: fmt.Sprint(d), Distance: affinity.SYS, Nearest: d == g})
		}
	}
	p := affinityPage(&snapshot.Snapshot{Affinity: part})
	if p.used != 16*2 { // distance and info
		t.Errorf("%d series", p.used)
	}
}

// TestAffinityShowsNothing where nothing is known.
func TestAffinityShowsNothing(t *testing.T) {
	for _, s := range []*snapshot.Snapshot{{}, {Affinity: &snapshot.AffinityPart{Err: syscall.EIO}}, {Affinity: &snapshot.AffinityPart{}}} {
		if p := affinityPage(s); p.used != 0 {
			t.Errorf("%d series of %+v", p.used, s.Affinity)
		}
	}
}

// lines returns the page as text by series.
func lines(p *page) map[string]float64 {
	all := map[string]float64{}
	for _, mf := range p.gather() {
		for _, m := range mf.Metric {
			var b strings.Builder
			b.WriteString(mf.GetName())
			for _, l := range m.Label {
				fmt.Fprintf(&b, " %s=%s", l.GetName(), l.GetValue())
			}
			all[b.String()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// TestAffinityFaults: what one file of one function does costs that value, or at
// worst that function, and is counted.
func TestAffinityFaults(t *testing.T) {
	if err := rdmatest.Supported(); err != nil {
		t.Skip(err)
	}
	tree := rdmatest.HGX(rdmatest.HGXOptions{})
	dir, root := tempTree(t), t.TempDir()
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	faults, err := rdmatest.Mount(dir, root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := faults.Close(); err != nil {
			t.Error(err)
		}
	}()
	healthy := lines(affinityPage(affinityTaker(t, root, snapshot.Options{}).Take(t.Context(), allCollectors)))
	const gpu = "0000:18:00.0"
	file := func(name string) string { return "sys/bus/pci/devices/" + gpu + "/" + name }
	for _, test := range []struct {
		file  string
		rule  rdmatest.Rule
		errno string
		// lost are the families that lose their series of the GPU, and of its paths.
		lost string
	}{
		{"current_link_speed", rdmatest.Rule{Errno: syscall.EINVAL}, "EINVAL", "gdr_pcie_link_speed_transfers_per_second gdr_affinity_path_bytes_per_second"},
		{"current_link_speed", rdmatest.Text("Unknown speed\n"), "", "gdr_pcie_link_speed_transfers_per_second gdr_affinity_path_bytes_per_second"},
		{"current_link_width", rdmatest.Text("63\n"), "", "gdr_pcie_link_width_lanes gdr_affinity_path_bytes_per_second"},
		{"current_link_width", rdmatest.Text("sixteen\n"), "invalid", "gdr_pcie_link_width_lanes gdr_affinity_path_bytes_per_second"},
		{"max_link_width", rdmatest.Text("255\n"), "", "gdr_pcie_link_possible_width_lanes gdr_affinity_path_possible_bytes_per_second"},
		{"max_link_speed", rdmatest.Rule{OpenErrno: syscall.EACCES}, "EACCES", "gdr_pcie_link_possible_speed_transfers_per_second gdr_affinity_path_possible_bytes_per_second"},
		{"aer_dev_fatal", rdmatest.Rule{Errno: syscall.EIO}, "EIO", "gdr_pcie_aer_errors_total severity=fatal"},
		{"aer_dev_fatal", rdmatest.Text("garbage\n"), "invalid", "gdr_pcie_aer_errors_total severity=fatal"},
		{"config", rdmatest.Rule{Errno: syscall.EIO}, "EIO", "gdr_pcie_max_payload_bytes gdr_pcie_function_info"},
		{"config", rdmatest.Rule{OpenErrno: syscall.EPERM}, "EPERM", "gdr_pcie_max_payload_bytes gdr_pcie_function_info"},
		{"power_state", rdmatest.Text("D9\n"), "invalid", "gdr_pcie_power_state_id gdr_pcie_max_payload_bytes gdr_pcie_link_ gdr_pcie_function_info gdr_affinity_path_bytes_per_second gdr_affinity_path_possible_bytes_per_second"},
		{"power_state", rdmatest.Text("D3cold\n"), "", "gdr_pcie_power_state_id gdr_pcie_max_payload_bytes gdr_pcie_link_ gdr_pcie_function_info gdr_affinity_path_bytes_per_second gdr_affinity_path_possible_bytes_per_second"},
		{"numa_node", rdmatest.Text("-1\n"), "", "gdr_pcie_function_info gdr_affinity_distance_id"},
		{"numa_node", rdmatest.Rule{Errno: syscall.EIO}, "EIO", "gdr_pcie_function_info gdr_affinity_distance_id"},
		{"vendor", rdmatest.Rule{Errno: syscall.EIO}, "EIO", "gdr_pcie_function_info"},
		{"class", rdmatest.Rule{Errno: syscall.EIO}, "EIO", "none"},
	} {
		t.Run(test.file, func(t *testing.T) {
			faults.Set(file(test.file), test.rule)
			defer faults.ClearAll()
			s := affinityTaker(t, root, snapshot.Options{}).Take(t.Context(), allCollectors)
			if test.errno == "" != (len(s.Errors) == 0) {
				t.Errorf("errors %+v", s.Errors)
			}
			for _, e := range s.Errors {
				if e.Device != gpu || e.Source != test.file || e.Errno != test.errno || e.Count != 1 || e.Collector != "affinity" {
					t.Errorf("error %+v", e)
				}
			}
			got := lines(affinityPage(s))
			for series, value := range healthy {
				if now, found := got[series]; (!found || now != value) && (!strings.Contains(series, gpu) || !anyIn(series, test.lost)) {
					t.Errorf("%s is %v, %v", series, now, found)
				}
			}
			lost := 0
			for series := range healthy {
				if _, found := got[series]; !found || got[series] != healthy[series] {
					lost++
				}
			}
			if lost == 0 != (test.lost == "none") {
				t.Errorf("%d series are lost", lost)
			}
		})
	}
}

// anyIn reports whether a series is of one of the families, and has the label if
// the list ends with one.
func anyIn(series, list string) bool {
	for word := range strings.FieldsSeq(list) {
		if strings.HasPrefix(word, "gdr_") && strings.HasPrefix(series, word) {
			return !strings.Contains(list, "=") || strings.Contains(series, list[strings.LastIndex(list, " ")+1:])
		}
	}
	return false
}

// TestAffinityHang: a function whose file does not return costs its own values
// and is not read again meanwhile.
func TestAffinityHang(t *testing.T) {
	if err := rdmatest.Supported(); err != nil {
		t.Skip(err)
	}
	dir, root := tempTree(t), t.TempDir()
	if err := rdmatest.HGX(rdmatest.HGXOptions{}).WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	faults, err := rdmatest.Mount(dir, root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := faults.Close(); err != nil {
			t.Error(err)
		}
	}()
	const gpu = "0000:18:00.0"
	now := goldenTime
	// Long enough for a loaded machine: only the first round of a hang waits so long.
	const patience = 5 * time.Second
	taker := affinityTaker(t, root, snapshot.Options{Deadline: patience, Now: func() time.Time { return now }},
		func(o *affinity.Options) { o.Now = func() time.Time { return now } })
	take := func() map[string]float64 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		p := affinityPage(taker.Take(ctx, allCollectors))
		now = now.Add(2 * time.Minute)
		return lines(p)
	}
	healthy := take()
	if len(healthy) < 300 {
		t.Fatalf("%d series of a healthy node", len(healthy))
	}
	faults.Set("sys/bus/pci/devices/"+gpu+"/config", rdmatest.Rule{Hang: true})
	for round := range 3 {
		got := take()
		for series := range healthy {
			own := strings.Contains(series, "address="+gpu)
			if _, found := got[series]; !found && !own {
				t.Errorf("round %d: %s is missing", round, series)
			}
		}
		if _, found := got["gdr_pcie_link_width_lanes address="+gpu]; found {
			t.Errorf("round %d: the hanging GPU is shown", round)
		}
		if _, found := got["gdr_affinity_distance_id device=mlx5_0 gpu_address="+gpu]; !found {
			t.Errorf("round %d: its distance is missing", round)
		}
		if n := faults.Hanging(); n != 1 {
			t.Errorf("round %d: %d reads hang", round, n)
		}
	}
	faults.ClearAll()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		got := take()
		if len(got) == len(healthy) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d series, %d before", len(got), len(healthy))
		}
	}
}

// TestAffinityListingFails: a bus that cannot be listed is an error of the part,
// and the functions are not forgotten.
func TestAffinityListingFails(t *testing.T) {
	if err := rdmatest.Supported(); err != nil {
		t.Skip(err)
	}
	dir, root := tempTree(t), t.TempDir()
	if err := rdmatest.GPUOnly().WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	faults, err := rdmatest.Mount(dir, root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := faults.Close(); err != nil {
			t.Error(err)
		}
	}()
	taker := affinityTaker(t, root, snapshot.Options{})
	before := lines(affinityPage(taker.Take(t.Context(), allCollectors)))
	faults.Set("sys/bus/pci/devices", rdmatest.Rule{OpenErrno: syscall.EMFILE})
	s := taker.Take(t.Context(), allCollectors)
	if s.Affinity.Err == nil || len(s.Errors) != 1 || s.Errors[0].Source != "bus/pci/devices" || s.Errors[0].Errno != "EMFILE" || affinityPage(s).used != 0 {
		t.Errorf("error %v, counted %+v", s.Affinity.Err, s.Errors)
	}
	faults.ClearAll()
	s = taker.Take(t.Context(), allCollectors)
	if got := lines(affinityPage(s)); len(got) != len(before) || len(s.Affinity.Listing.Gone) != 0 {
		t.Errorf("%d series after, %d before; gone %v", len(got), len(before), s.Affinity.Listing.Gone)
	}
}

// BenchmarkAffinityPage is what both views cost of a scrape of an HGX node.
func BenchmarkAffinityPage(b *testing.B) {
	root, err := rdmatest.MkdirTemp()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(root) }()
	if err := rdmatest.HGX(rdmatest.HGXOptions{}).WriteTo(root); err != nil {
		b.Fatal(err)
	}
	taker := snapshot.New(snapshot.Options{Deadline: time.Minute}).
		Affinity(affinity.NewReader(affinity.Options{Sysfs: root + "/sys", SlowInterval: time.Hour, Descriptors: 1024})).Taker()
	defer taker.Close()
	s := taker.Take(b.Context(), allCollectors)
	p := newPage()
	b.ReportAllocs()
	for b.Loop() {
		showAffinity(p, s)
		showPCIe(p, s)
		p.reset()
	}
}

package affinity

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
)

// The tests in this file compare the reader with lspci on a real kernel, in a
// tree of emulated switches, root ports and NUMA nodes. They change it, so they
// run in a virtual machine only:
//
//	go test -c -o affinity.test ./gpu/affinity
//	vmtest --topology gdr --devices 0 --module gpu/affinity/testdata/module/gdrtest_pci \
//		--module cmd/vmtest/module/gdrtest_ib:count=5,parent=0000:44:00.0+0000:46:00.0+0000:49:00.0+0000:81:00.0+0000:c1:00.0 \
//		--env GDR_IN_KERNEL=1 -- ./affinity.test -test.run InKernel
func inKernel(t *testing.T) {
	t.Helper()
	if os.Getenv("GDR_IN_KERNEL") == "" {
		t.Skip("runs in the virtual machine that TestKernel of cmd/gdr_exporter boots")
	}
}

// The functions of topology gdr: cmd/vmtest/topologies/gdr.args has a picture.
const (
	standIn = "1af4:1050"

	rp0   = "0000:40:00.0" // root port
	sw0   = "0000:41:00.0" // upstream port of the switch
	sw0p0 = "0000:42:00.0" // its downstream ports, which have no ACS
	sw0p1 = "0000:42:01.0"
	sw0p2 = "0000:42:02.0"
	sw0p3 = "0000:42:03.0"
	acs0  = "0000:45:00.0" // ports with ACS below two of them
	acs1  = "0000:47:00.0"
	rp1   = "0000:40:01.0"
	rp2   = "0000:80:00.0"
	rp3   = "0000:c0:00.0"
	rp4   = "0000:c0:01.0"
	rp5   = "0000:00:04.0"

	gpu0 = "0000:43:00.0"
	gpu1 = "0000:48:00.0"
	gpu2 = "0000:c2:00.0"

	nic0 = "0000:44:00.0"
	nic1 = "0000:46:00.0"
	nic2 = "0000:49:00.0"
	nic3 = "0000:81:00.0"
	nic4 = "0000:c1:00.0"
	nic5 = "0000:01:00.0"
)

// patience bounds every wait for something that will come.
const patience = 60 * time.Second

// testReader is a Reader with its FunctionReaders.
type testReader struct {
	*Reader
	functions map[*FunctionReader]bool
}

// newTestReader returns a reader for which the test's functions are GPUs, and
// which reads everything anew each time.
func newTestReader(options Options) *testReader {
	options.Sysfs, options.StandIns, options.SlowInterval, options.Descriptors = "/sys", []string{standIn}, time.Nanosecond, 100
	return &testReader{NewReader(options), map[*FunctionReader]bool{}}
}

// newComputeReader returns a reader that reads all NICs, not only those nearest
// to a GPU.
func newComputeReader() *testReader {
	return newTestReader(Options{Role: func(string) string { return roleCompute }})
}

// list is List, and closes the readers of functions that are not listed any more.
func (r *testReader) list() (Listing, []*FunctionReader, error) {
	listing, readers, err := r.List()
	if err != nil {
		return listing, readers, err
	}
	for reader := range r.functions {
		if !slices.Contains(readers, reader) {
			reader.Close()
			delete(r.functions, reader)
		}
	}
	for _, reader := range readers {
		r.functions[reader] = true
	}
	return listing, readers, nil
}

// tree is one reading of everything.
type tree struct {
	Listing
	functions map[string]*Function
}

// pair returns a pair, which must be there.
func (read tree) pair(t *testing.T, gpu, device string) Pair {
	t.Helper()
	for _, pair := range read.Pairs {
		if pair.GPU == gpu && pair.Device == device {
			return pair
		}
	}
	t.Errorf("no pair of %s and %s", gpu, device)
	return Pair{}
}

// function returns a function; the zero Function, and an error, if it was not read.
func (read tree) function(t *testing.T, address string) Function {
	t.Helper()
	if f := read.functions[address]; f != nil {
		return *f
	}
	t.Errorf("%s was not read", address)
	return Function{}
}

// readTree reads everything; nothing may fail.
func readTree(t *testing.T, r *testReader) tree {
	t.Helper()
	read, errs := tryTree(t, r)
	for _, err := range errs {
		t.Error(err)
	}
	return read
}

func tryTree(t *testing.T, r *testReader) (tree, []sysread.ReadError) {
	t.Helper()
	listing, readers, err := r.list()
	if err != nil {
		t.Error("list: ", err)
	}
	read := tree{listing, map[string]*Function{}}
	var errs []sysread.ReadError
	for _, reader := range readers {
		function, failed := reader.Read(time.Now())
		read.functions[reader.Name()] = &function
		errs = append(errs, failed...)
	}
	return read, append(errs, listing.Failed...)
}

// expectedPath is a Pair less its ends.
type expectedPath struct {
	distance Distance
	common   string
	gpuSide  []string
	nicSide  []string
}

// expectedPaths are the paths from each GPU to each NIC, as they follow from
// the picture of the topology.
func expectedPaths() map[string]map[string]expectedPath {
	toRoot0 := []string{sw0p0, sw0, rp0}
	toRoot1 := []string{acs1, sw0p3, sw0, rp0}
	toRoot2 := []string{rp4}
	outside := func(gpuSide []string) map[string]expectedPath {
		return map[string]expectedPath{
			nic2: {PHB, "", gpuSide, []string{rp1}},
			nic3: {NODE, "", gpuSide, []string{rp2}},
			nic4: {SYS, "", gpuSide, []string{rp3}},
			nic5: {Unknown, "", gpuSide, []string{rp5}},
		}
	}
	paths := map[string]map[string]expectedPath{
		gpu0: outside(toRoot0),
		gpu1: outside(toRoot1),
		gpu2: {
			nic0: {SYS, "", toRoot2, []string{sw0p1, sw0, rp0}},
			nic1: {SYS, "", toRoot2, []string{acs0, sw0p2, sw0, rp0}},
			nic2: {SYS, "", toRoot2, []string{rp1}},
			nic3: {SYS, "", toRoot2, []string{rp2}},
			nic4: {PHB, "", toRoot2, []string{rp3}},
			nic5: {Unknown, "", toRoot2, []string{rp5}},
		},
	}
	paths[gpu0][nic0] = expectedPath{PIX, sw0, []string{sw0p0}, []string{sw0p1}}
	paths[gpu0][nic1] = expectedPath{PXB, sw0, []string{sw0p0}, []string{acs0, sw0p2}}
	paths[gpu1][nic0] = expectedPath{PXB, sw0, []string{acs1, sw0p3}, []string{sw0p1}}
	paths[gpu1][nic1] = expectedPath{PXB, sw0, []string{acs1, sw0p3}, []string{acs0, sw0p2}}
	return paths
}

// moduleDevices are the devices of gdrtest_ib, which sit on their PCI function.
var moduleDevices = map[string]string{"gdrtest0": nic0, "gdrtest1": nic1, "gdrtest2": nic2, "gdrtest3": nic3, "gdrtest4": nic4}

// softDevices are soft-RoCE devices: they have no device link, and inherit the
// place of their network interface, or of the one below that. The last is on an
// interface that has none.
var softDevices = map[string]string{"rxe_nic0": nic0, "rxe_nic5": nic5, "rxe_macvlan": nic5, "rxe_virtual": ""}

// nearest are the NICs nearest to each GPU.
var nearest = map[string][]string{gpu0: {nic0}, gpu1: {nic0, nic1}, gpu2: {nic4}}

// addSoftDevices adds softDevices until the test ends.
func addSoftDevices(t *testing.T) {
	t.Helper()
	for _, module := range []string{"crc32_generic", "rdma_rxe"} {
		output(t, "modprobe", module)
	}
	output(t, "ip", "link", "add", "virtual0", "type", "dummy")
	t.Cleanup(func() { output(t, "ip", "link", "del", "virtual0") })
	output(t, "ip", "link", "add", "link", interfaceOf(t, nic5), "name", "macvlan0", "type", "macvlan")
	t.Cleanup(func() { output(t, "ip", "link", "del", "macvlan0") })
	for device, nic := range softDevices {
		netdev := map[string]string{"rxe_macvlan": "macvlan0", "rxe_virtual": "virtual0"}[device]
		if netdev == "" {
			netdev = interfaceOf(t, nic)
		}
		output(t, "rdma", "link", "add", device, "type", "rxe", "netdev", netdev)
		t.Cleanup(func() { output(t, "rdma", "link", "del", device) })
	}
}

func interfaceOf(t *testing.T, address string) string {
	t.Helper()
	names, err := filepath.Glob(devicePath(address, "net/*"))
	if err != nil || len(names) != 1 {
		t.Fatalf("%s: network interfaces %v, %v", address, names, err)
	}
	return filepath.Base(names[0])
}

func devicePath(address, file string) string {
	return filepath.Join("/sys/bus/pci/devices", address, file)
}

// TestInKernelDistances: every class of distance, with the bridges on the way,
// for devices that sit on a PCI function and for those that inherit one.
func TestInKernelDistances(t *testing.T) {
	inKernel(t)
	addSoftDevices(t)
	read := readTree(t, newTestReader(Options{}))
	checkPairs(t, read)
	checkFunctions(t, read)
	if want := sysread.Some([]string{"dmar0"}); !reflect.DeepEqual(read.IOMMU, want) {
		t.Errorf("IOMMU units %v", read.IOMMU)
	}
	if len(read.Gone) > 0 {
		t.Errorf("gone: %v", read.Gone)
	}
}

// checkPairs compares all pairs with expectedPaths.
func checkPairs(t *testing.T, read tree) {
	t.Helper()
	nics := maps.Clone(moduleDevices)
	maps.Copy(nics, softDevices)
	var want []Pair
	for gpu, paths := range expectedPaths() {
		for device, nic := range nics {
			pair := Pair{GPU: gpu, Device: device, NIC: nic}
			if nic != "" {
				p := paths[nic]
				pair.Distance, pair.Common, pair.GPUSide, pair.NICSide = p.distance, p.common, p.gpuSide, p.nicSide
				pair.Nearest = slices.Contains(nearest[gpu], nic)
			}
			want = append(want, pair)
		}
	}
	slices.SortFunc(want, func(a, b Pair) int {
		return strings.Compare(a.GPU+" "+a.Device, b.GPU+" "+b.Device)
	})
	got := map[string]Pair{}
	for i, pair := range read.Pairs {
		got[pair.GPU+" "+pair.Device] = pair
		if i < len(want) && (pair.GPU != want[i].GPU || pair.Device != want[i].Device) {
			t.Errorf("pair %d is %s %s, want %s %s", i, pair.GPU, pair.Device, want[i].GPU, want[i].Device)
		}
	}
	for _, w := range want {
		pair, found := got[w.GPU+" "+w.Device]
		if w.NIC == "" {
			pair.GPUSide, w.GPUSide = nil, nil // says nothing without another end
		}
		if !found || fmt.Sprint(pair) != fmt.Sprint(w) {
			t.Errorf("pair\n%+v, want\n%+v", pair, w)
		}
	}
	if len(got) != len(want) || len(read.Pairs) != len(want) {
		t.Errorf("%d pairs, want %d", len(read.Pairs), len(want))
	}
}

// expectedRDMA are the RDMA devices of each NIC.
var expectedRDMA = map[string][]string{
	nic0: {"gdrtest0", "rxe_nic0"}, nic1: {"gdrtest1"}, nic2: {"gdrtest2"},
	nic3: {"gdrtest3"}, nic4: {"gdrtest4"}, nic5: {"rxe_macvlan", "rxe_nic5"},
}

// upstream are the bridges above each function.
var upstream = map[string]string{
	gpu0: sw0p0, gpu1: acs1, gpu2: rp4,
	nic0: sw0p1, nic1: acs0, nic2: rp1, nic3: rp2, nic4: rp3, nic5: rp5,
	acs0: sw0p2, acs1: sw0p3, sw0p0: sw0, sw0p1: sw0, sw0p2: sw0, sw0p3: sw0, sw0: rp0,
	rp0: "", rp1: "", rp2: "", rp3: "", rp4: "", rp5: "",
}

// upperEnds are the ports that lead down. Those with ACS are not among them:
// they stand for a further switch, whose upstream port is a lower end.
var upperEnds = []string{rp0, rp1, rp2, rp3, rp4, rp5, sw0p0, sw0p1, sw0p2, sw0p3}

// apart are the ports that are between no GPU and a NIC nearest to it.
var apart = []string{rp0, rp1, rp2, rp5}

// checkFunctions checks which functions are listed and their place.
func checkFunctions(t *testing.T, read tree) {
	t.Helper()
	var addresses []string
	for _, node := range read.Functions {
		addresses = append(addresses, node.Address)
		kind := KindBridge
		if slices.Contains([]string{gpu0, gpu1, gpu2}, node.Address) {
			kind = KindGPU
		} else if expectedRDMA[node.Address] != nil {
			kind = KindNIC
		}
		root := "pci0000:" + node.Address[5:6] + "0" // they begin at buses 00, 40, 80 and c0
		if node.Kind != kind || node.Upstream != upstream[node.Address] || node.HostBridge != root ||
			!slices.Equal(node.RDMA, expectedRDMA[node.Address]) {
			t.Errorf("%+v: want a %s below %q at %s", node, kind, upstream[node.Address], root)
		}
		checkLocality(t, node)
	}
	want := slices.Collect(maps.Keys(upstream))
	want = slices.DeleteFunc(want, func(address string) bool { return slices.Contains(apart, address) })
	slices.Sort(want)
	if !slices.Equal(addresses, want) {
		t.Errorf("functions\n%v, want\n%v", addresses, want)
	}
	for device, nic := range moduleDevices {
		role := roleUnknown
		if slices.Contains([]string{nic0, nic1, nic4}, nic) {
			role = roleCompute
		}
		if read.Roles[device] != role {
			t.Errorf("%s has role %q, want %s", device, read.Roles[device], role)
		}
	}
}

// checkLocality: a node's CPUs are known where it has a NUMA node. The kernel
// lists all CPUs where it has none.
func checkLocality(t *testing.T, node Node) {
	t.Helper()
	cpus, numa := "", sysread.Maybe[int]{}
	switch node.HostBridge {
	case "pci0000:40", "pci0000:80":
		cpus, numa = "0", sysread.Some(0)
	case "pci0000:c0":
		cpus, numa = "1", sysread.Some(1)
	}
	if node.LocalCPUs != cpus || node.NUMANode != numa {
		t.Errorf("%s: NUMA node %v, CPUs %q", node.Address, node.NUMANode, node.LocalCPUs)
	}
}

// TestInKernelLspci: of every function all that lspci -vvv says, with QEMU's
// links and with those of a real server.
func TestInKernelLspci(t *testing.T) {
	inKernel(t)
	r := newComputeReader()
	compareAll(t, r)
	t.Cleanup(func() { setConfig(t, "") })
	makeUpLinks(t)
	read := compareAll(t, r)
	checkLinks(t, read)
}

// checkLinks checks what makeUpLinks made up.
func checkLinks(t *testing.T, read tree) {
	t.Helper()
	for address, want := range map[string]Link{
		// Both ends of the link count: the GPU could do 32 GT/s.
		gpu0: link(16, 8, 16, 16),
		nic0: link(5, 4, 5, 8),
	} {
		if got := read.function(t, address).Link; got != want {
			t.Errorf("%s: %+v, want %+v", address, got, want)
		}
	}
	if config := read.function(t, gpu0).Config; config.MaxPayload.Value != 256 || config.MaxReadRequest.Value != 4096 || !config.RelaxedOrdering.Value || !config.ATS.Value {
		t.Errorf("%s: %+v", gpu0, config)
	}
	if config := read.function(t, nic0).Config; config.MaxPayload.Value != 512 || config.MaxReadRequest.Value != 512 || config.RelaxedOrdering.Value {
		t.Errorf("%s: %+v", nic0, config)
	}
	// 5 GT/s are 500 MB/s per lane: the NIC's four are the narrowest, where it has eight.
	pair := read.pair(t, gpu0, "gdrtest0")
	if p := PathOf(&pair, read.functions); p.BytesPerSecond != sysread.Some(2e9) || p.PossibleBytesPerSecond != sysread.Some(4e9) {
		t.Errorf("path of %s and gdrtest0: %+v", gpu0, p)
	}
}

func link(speed float64, width int, possibleSpeed float64, possibleWidth int) Link {
	return Link{sysread.Some(speed), sysread.Some(width), sysread.Some(possibleSpeed), sysread.Some(possibleWidth), true}
}

// makeUpLinks makes two links of the switch look like a server's.
// Kernels from 6.12 on remember what speeds a function can do from when they
// found it, so that of these this works with vmtest's kernel "stable" alone.
func makeUpLinks(t *testing.T) {
	t.Helper()
	said := lspci(t)
	const devctl, lnkcap, lnksta, lnkcap2 = 0x08, 0x0c, 0x12, 0x2c
	for _, set := range []struct {
		address string
		offset  int // in the PCIe capability
		value   string
	}{
		{gpu0, lnkcap, "0105"}, // 32 GT/s x16
		{gpu0, lnkcap2, "3e"},
		{gpu0, lnksta, "0084"},  // 16 GT/s x8
		{gpu0, devctl, "5030"},  // 4096 bytes, 256 bytes, relaxed ordering
		{sw0p0, lnkcap, "0104"}, // 16 GT/s x16
		{sw0p0, lnkcap2, "1e"},  //
		{sw0p0, lnksta, "0084"}, //
		{nic0, lnkcap, "0082"},  // 5 GT/s x8
		{nic0, lnksta, "0042"},  // 5 GT/s x4
		{nic0, devctl, "2040"},  // 512 bytes, 512 bytes
		{sw0p1, lnkcap, "0104"}, //
		{sw0p1, lnkcap2, "1e"},  //
		{sw0p1, lnksta, "0042"}, //
		{rp1, devctl, "2810"},   // with relaxed ordering
		{acs1, lnksta, "0000"},  // no link
	} {
		setConfig(t, fmt.Sprintf("%s %x %s", set.address, said[set.address].expressAt+set.offset, set.value))
	}
}

// setConfig changes what configuration space reads as, see testdata/module/gdrtest_pci.
func setConfig(t *testing.T, text string) {
	t.Helper()
	write(t, "/sys/module/gdrtest_pci/parameters/config", text+"\n")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// compareAll compares every function with lspci.
func compareAll(t *testing.T, r *testReader) tree {
	t.Helper()
	read := readTree(t, r)
	if len(read.functions) < 19 {
		t.Errorf("only %d functions", len(read.functions))
	}
	all := lspci(t)
	for address, function := range read.functions {
		said := all[address]
		if function.Power != sysread.Some("D0") || function.ConfigReadable != sysread.Some(true) {
			t.Errorf("%s: power state %v, configuration space readable %v", address, function.Power, function.ConfigReadable)
		}
		var above *lspciFunction
		if !slices.Contains(upperEnds, address) {
			port := all[upstream[address]]
			above = &port
		}
		if differ := said.differences(*function, above); len(differ) > 0 {
			t.Errorf("%s: %s\n%s", address, strings.Join(differ, "\n"), said.text)
		}
	}
	return read
}

// TestInKernelACS: the control bits are lspci's, as the kernel set them for
// the IOMMU and after changes, and tell whether the ports below the common
// switch redirect. Ports without the capability are no ports with all bits off.
func TestInKernelACS(t *testing.T) {
	inKernel(t)
	r := newComputeReader()
	const atBoot = ACSSourceValidation | ACSRequestRedirect | ACSCompletionRedirect | ACSUpstreamForwarding
	checkACS := func(what string, bits0, bits1 uint16, redirected map[string]bool) {
		t.Helper()
		read := readTree(t, r)
		all := lspci(t)
		for address, function := range read.functions {
			if said := all[address].acs; function.Config.ACS != said || function.Config.NoACS == said.Known {
				t.Errorf("%s: %s: ACS %v, none: %v; lspci says %v", what, address, function.Config.ACS, function.Config.NoACS, said)
			}
		}
		if got := read.function(t, acs0).Config.ACS; got != sysread.Some(bits0) {
			t.Errorf("%s: %s: ACS %#x, want %#x", what, acs0, got.Value, bits0)
		}
		if got := read.function(t, acs1).Config.ACS; got != sysread.Some(bits1) {
			t.Errorf("%s: %s: ACS %#x, want %#x", what, acs1, got.Value, bits1)
		}
		for _, pair := range read.Pairs {
			if want, asked := redirected[pair.GPU+" "+pair.Device]; asked {
				if got := PathOf(&pair, read.functions).Redirected; got != sysread.Some(want) {
					t.Errorf("%s: %s %s: redirected %v", what, pair.GPU, pair.Device, got)
				}
			}
		}
	}
	onlyPXB := map[string]bool{gpu0 + " gdrtest0": false, gpu0 + " gdrtest1": true, gpu1 + " gdrtest0": true, gpu1 + " gdrtest1": true}
	checkACS("at boot", atBoot, atBoot, onlyPXB)
	setACS := func(address string, bits uint16) {
		output(t, "setpci", "-s", address, fmt.Sprintf("ECAP_ACS+6.w=%04x", bits))
	}
	t.Cleanup(func() { setACS(acs0, atBoot); setACS(acs1, atBoot) })
	setACS(acs0, 0)
	checkACS("off at the NIC", 0, atBoot, map[string]bool{gpu0 + " gdrtest1": false, gpu1 + " gdrtest0": true, gpu1 + " gdrtest1": true})
	setACS(acs1, ACSSourceValidation|ACSUpstreamForwarding)
	checkACS("off at the GPU too", 0, ACSSourceValidation|ACSUpstreamForwarding,
		map[string]bool{gpu0 + " gdrtest1": false, gpu1 + " gdrtest0": false, gpu1 + " gdrtest1": false})
	setACS(acs0, ACSRequestRedirect)
	setACS(acs1, atBoot|ACSDirectTranslated)
	checkACS("in part", ACSRequestRedirect, atBoot|ACSDirectTranslated, onlyPXB)
}

// TestInKernelUnprivileged: nobody sees the tree, links and errors, but of
// configuration space only the first 64 bytes, in which nothing is to be found:
// that is not known, and neither off nor absent.
func TestInKernelUnprivileged(t *testing.T) {
	inKernel(t)
	if os.Geteuid() == 0 {
		addSoftDevices(t)
		rerunAsNobody(t)
		return
	}
	read := readTree(t, newTestReader(Options{}))
	checkPairs(t, read)
	checkFunctions(t, read)
	for address, function := range read.functions {
		if function.ConfigReadable != sysread.Some(false) || function.Config != (Config{}) {
			t.Errorf("%s: readable %v, %+v", address, function.ConfigReadable, function.Config)
		}
		if function.Power != sysread.Some("D0") || function.Link.Speed != sysread.Some(2.5) || function.Link.Width != sysread.Some(1) {
			t.Errorf("%s: power state %v, link %+v", address, function.Power, function.Link)
		}
		if function.AER == nil || !function.AER.Correctable.Total.Known || len(function.AER.NonFatal.Types) < 10 {
			t.Errorf("%s: AER %+v", address, function.AER)
		}
	}
}

// rerunAsNobody runs this test anew, without any privilege.
func rerunAsNobody(t *testing.T) {
	t.Helper()
	c := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// errorCounts are all AER counts by function, severity and type.
func (read tree) errorCounts() map[string]uint64 {
	counts := map[string]uint64{}
	for address, function := range read.functions {
		if function.AER == nil {
			continue
		}
		for severity, c := range map[string]AERCounts{
			"correctable": function.AER.Correctable, "nonfatal": function.AER.NonFatal, "fatal": function.AER.Fatal,
		} {
			if c.Total.Known {
				counts[address+" "+severity+" total"] = c.Total.Value
			}
			for _, one := range c.Types {
				counts[address+" "+severity+" "+one.Type] = one.Count
			}
		}
	}
	return counts
}

// TestInKernelAER: an error that the kernel reports counts once, at the
// function that had it, under its type.
func TestInKernelAER(t *testing.T) {
	inKernel(t)
	oneCPU(t)
	output(t, "modprobe", "aer_inject")
	r := newComputeReader()
	const badTLP, completionTimeout = 1 << 6, 1 << 14
	for _, injected := range []struct {
		address                    string
		correctable, uncorrectable uint32
		want                       string
	}{
		{nic0, badTLP, 0, "correctable BadTLP"},
		{gpu0, badTLP, 0, "correctable BadTLP"},
		{sw0p1, badTLP, 0, "correctable BadTLP"},
		{nic0, badTLP, 0, "correctable BadTLP"}, // adds up
		{nic3, 0, completionTimeout, "nonfatal CmpltTO"},
	} {
		before := readTree(t, r).errorCounts()
		if n := len(before); n < 19*40 {
			t.Errorf("only %d counts", n)
		}
		injectError(t, injected.address, injected.uncorrectable, injected.correctable)
		severity, _, _ := strings.Cut(injected.want, " ")
		want := maps.Clone(before)
		want[injected.address+" "+injected.want]++
		want[injected.address+" "+severity+" total"]++
		within(t, "the error counts", func() bool {
			return readTree(t, r).errorCounts()[injected.address+" "+injected.want] != before[injected.address+" "+injected.want]
		})
		time.Sleep(time.Second) // for what should not come
		got := readTree(t, r).errorCounts()
		for name, count := range got {
			if count != want[name] {
				t.Errorf("%s at %s: %s is %d, want %d", injected.want, injected.address, name, count, want[name])
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d counts, before %d", len(got), len(want))
		}
	}
}

// injectError makes the kernel believe that a function had an error, with
// struct aer_error_inj of its drivers/pci/pcie/aer_inject.c.
func injectError(t *testing.T, address string, uncorrectable, correctable uint32) {
	t.Helper()
	var domain, bus, device, function int
	if _, err := fmt.Sscanf(address, "%x:%x:%x.%x", &domain, &bus, &device, &function); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 32)
	message[0], message[1], message[2] = byte(bus), byte(device), byte(function)
	binary.LittleEndian.PutUint32(message[4:], uncorrectable)
	binary.LittleEndian.PutUint32(message[8:], correctable)
	write(t, "/dev/aer_inject", string(message))
}

// within polls until ok.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// oneCPU runs the rest of the test on one CPU: QEMU before 8.1 may crash when
// the addresses of a function change (it comes, goes, or gets another driver)
// while another of its CPUs reads a device, as reading configuration space does.
func oneCPU(t *testing.T) {
	t.Helper()
	const online = "/sys/devices/system/cpu/cpu1/online"
	write(t, online, "0")
	t.Cleanup(func() { write(t, online, "1") })
}

// bind binds a function to a driver, "" for none.
func bind(t *testing.T, address, driver string) {
	t.Helper()
	if link := devicePath(address, "driver"); exists(link) {
		write(t, filepath.Join(link, "unbind"), address)
	}
	write(t, devicePath(address, "driver_override"), driver+"\n")
	if driver == "" {
		return
	}
	write(t, "/sys/bus/pci/drivers_probe", address)
	if link, err := os.Readlink(devicePath(address, "driver")); err != nil || filepath.Base(link) != driver {
		t.Fatalf("%s: bound to %q, want %s: %v", address, link, driver, err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func text(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// TestInKernelIOMMUType: a function that bypasses the IOMMU (iommu=pt) is told
// from those whose DMA it translates.
func TestInKernelIOMMUType(t *testing.T) {
	inKernel(t)
	oneCPU(t)
	driver := filepath.Base(readlink(t, devicePath(gpu2, "driver")))
	bind(t, gpu2, "") // the kernel changes the type of unbound devices only
	t.Cleanup(func() { bind(t, gpu2, driver) })
	r := newComputeReader()
	file := filepath.Join("/sys/kernel/iommu_groups", filepath.Base(readlink(t, devicePath(gpu2, "iommu_group"))), "type")
	for _, kind := range []string{"DMA-FQ", "identity", "DMA", "DMA-FQ"} {
		write(t, file, kind+"\n")
		for _, node := range readTree(t, r).Functions {
			want := "DMA-FQ"
			if node.Address == gpu2 {
				want = kind
			}
			if node.IOMMUType != want {
				t.Errorf("%s: domain type %q, want %s", node.Address, node.IOMMUType, want)
			}
		}
	}
}

func readlink(t *testing.T, path string) string {
	t.Helper()
	target, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// sleep is how much a function and the bridge above it were awake.
func sleep(t *testing.T, addresses ...string) string {
	t.Helper()
	var state []string
	for _, address := range addresses {
		state = append(state, address, text(t, devicePath(address, "power_state")), text(t, devicePath(address, "power/runtime_status")),
			text(t, devicePath(address, "power/runtime_active_time")))
	}
	return strings.Join(state, " ")
}

// TestInKernelSuspended: a sleeping function is reported as such, nothing is
// made up of what does not answer, and neither it nor the bridge above wakes.
func TestInKernelSuspended(t *testing.T) {
	inKernel(t)
	oneCPU(t)
	output(t, "modprobe", "vfio-pci")
	r := newComputeReader()
	before := readTree(t, r).function(t, gpu2)
	driver := before.Driver
	t.Cleanup(func() { bind(t, gpu2, driver) })
	for _, sleeper := range []string{"vfio-pci", "nvidia"} {
		bind(t, gpu2, sleeper)
		write(t, devicePath(gpu2, "power/control"), "auto")
		within(t, sleeper+" sleeps", func() bool {
			return text(t, devicePath(gpu2, "power_state")) == "D3hot" && text(t, devicePath(rp4, "power/runtime_status")) == "suspended"
		})
		asleep := sleep(t, gpu2, rp4)
		for range 3 {
			read := readTree(t, r)
			function, bridge := read.function(t, gpu2), read.function(t, rp4)
			if function.Power != sysread.Some("D3hot") || function.Link.Speed.Known || function.Link.Width.Known ||
				function.ConfigReadable.Known || function.Config != (Config{}) || function.Driver != sleeper {
				t.Errorf("asleep: %+v", function)
			}
			if bridge.Power != sysread.Some("D0") || !bridge.Config.ACS.Known {
				t.Errorf("the bridge above: %+v", bridge)
			}
			if function.AER == nil || !function.AER.Correctable.Total.Known {
				t.Errorf("asleep: AER %+v", function.AER)
			}
		}
		if now := sleep(t, gpu2, rp4); now != asleep {
			t.Errorf("before reading %s, then %s", asleep, now)
		}
		write(t, devicePath(gpu2, "power/control"), "on")
		within(t, sleeper+" wakes", func() bool { return text(t, devicePath(gpu2, "power_state")) == "D0" })
		awake := readTree(t, r).function(t, gpu2)
		if awake.Link != before.Link || awake.Config != before.Config {
			t.Errorf("awake again: %+v, before %+v", awake, before)
		}
	}
}

// TestInKernelFallenOff: a function that has fallen off the bus answers with
// all ones. None of them is a value.
func TestInKernelFallenOff(t *testing.T) {
	inKernel(t)
	r := newComputeReader()
	before := readTree(t, r)
	t.Cleanup(func() { setConfig(t, "") })
	setConfig(t, gpu0)
	after, errs := tryTree(t, r)
	if len(errs) != 1 || errs[0].Device != gpu0 || errs[0].Source != "config" || errs[0].Errno() != "ENODEV" {
		t.Errorf("errors %v", errs)
	}
	if fallen := after.function(t, gpu0); fallen.Answers != sysread.Some(false) || fallen.Link.Speed.Known || fallen.Link.Width.Known || fallen.Config != (Config{}) {
		t.Errorf("%+v", fallen)
	}
	if !reflect.DeepEqual(after.Pairs, before.Pairs) {
		t.Errorf("pairs %+v, before %+v", after.Pairs, before.Pairs)
	}
	setConfig(t, "")
	again := readTree(t, r)
	for address := range before.functions {
		was, is := before.function(t, address), again.function(t, address)
		was.SlowRead = is.SlowRead
		if !reflect.DeepEqual(is, was) {
			t.Errorf("back again: %+v, before %+v", is, was)
		}
	}
}

// TestInKernelGone: a GPU that the nvidia driver had is missed when it leaves
// the bus; one without driver, or with another, is not.
func TestInKernelGone(t *testing.T) {
	inKernel(t)
	oneCPU(t)
	driver := filepath.Base(readlink(t, devicePath(gpu2, "driver")))
	later := time.Duration(0)
	r := newTestReader(Options{
		Role: func(string) string { return roleCompute }, Now: func() time.Time { return time.Now().Add(later) },
	})
	look := func(what string, present, had bool, gone ...string) {
		t.Helper()
		read := readTree(t, r)
		var function Function
		at, found := read.functions[gpu2]
		if found {
			function = *at
		}
		if found != present || function.HadNVIDIA != had || !slices.Equal(read.Gone, gone) {
			t.Errorf("%s: present %v, had nvidia %v, gone %v", what, found, function.HadNVIDIA, read.Gone)
		}
		if paired := slices.ContainsFunc(read.Pairs, func(p Pair) bool { return p.GPU == gpu2 }); paired != present {
			t.Errorf("%s: in pairs %v", what, paired)
		}
	}
	look("at first", true, false)
	removeFunction(t, gpu2)
	look("removed without nvidia", false, false)
	rescan(t, gpu2)
	bind(t, gpu2, "nvidia")
	look("bound", true, true)
	removeFunction(t, gpu2)
	look("removed", false, false, gpu2)
	rescan(t, gpu2)
	look("back, with "+driver, true, true)
	bind(t, gpu2, "nvidia")
	look("bound again", true, true)
	bind(t, gpu2, "")
	look("unbound", true, true)
	removeFunction(t, gpu2)
	// The kernel unbinds a function that falls off the bus before it removes it.
	look("removed right after unbinding", false, false, gpu2)
	rescan(t, gpu2)
	bind(t, gpu2, "")
	later = 3 * time.Minute
	look("unbound for long", true, true)
	removeFunction(t, gpu2)
	look("removed long after unbinding", false, false)
	rescan(t, gpu2)
	bind(t, gpu2, driver)
}

func removeFunction(t *testing.T, address string) {
	t.Helper()
	write(t, devicePath(address, "remove"), "1")
	within(t, address+" goes", func() bool { return !exists(devicePath(address, "")) })
}

func rescan(t *testing.T, address string) {
	t.Helper()
	write(t, "/sys/bus/pci/rescan", "1")
	within(t, address+" comes", func() bool { return exists(devicePath(address, "driver")) })
}

// TestInKernelHotPlug: functions that come and go while everything is read make
// neither errors nor wrong values, and leave no open files behind.
func TestInKernelHotPlug(t *testing.T) {
	inKernel(t)
	oneCPU(t)
	output(t, "modprobe", "-a", "crc32_generic", "rdma_rxe")
	r := newComputeReader()
	readTree(t, r)
	files := openFiles(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	rounds, failures := 0, 0
	go func() {
		defer close(stopped)
		for ; !closed(stop); rounds++ {
			read, errs := tryTree(t, r)
			failures += len(errs)
			for _, err := range errs {
				t.Logf("while functions come and go: %v", err)
			}
			for _, pair := range read.Pairs {
				if want := expectedPaths()[pair.GPU][pair.NIC]; pair.NIC != "" && pair.Distance != want.distance {
					t.Errorf("while functions come and go: %+v", pair)
				}
			}
		}
	}()
	for range 3 {
		output(t, "rdma", "link", "add", "rxe_gone", "type", "rxe", "netdev", interfaceOf(t, nic5))
		removeFunction(t, gpu2)
		removeFunction(t, nic5) // and its device with it
		removeFunction(t, gpu0)
		rescan(t, gpu0)
		rescan(t, gpu2)
		rescan(t, nic5)
	}
	close(stop)
	<-stopped
	t.Logf("%d rounds, %d errors", rounds, failures)
	if failures > 0 || rounds < 5 {
		t.Errorf("%d errors in %d rounds", failures, rounds)
	}
	if now := openFiles(t); now > files {
		t.Errorf("%d open files, before %d", now, files)
	}
	addSoftDevices(t)
	checkPairs(t, readTree(t, newTestReader(Options{})))
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

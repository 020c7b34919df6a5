package rdma_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/Mellanox/rdmamap"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/rdmatest"
)

// host is a tree on disk and its reader.
type host struct {
	t    *testing.T
	dir  string
	read *rdma.Reader
	now  time.Time
}

func newHost(t *testing.T, root string, options rdma.Options) *host {
	t.Helper()
	options.Sysfs = filepath.Join(root, "sys")
	if options.Descriptors == 0 {
		options.Descriptors = 4096
	}
	if options.NetlinkWait == 0 {
		options.NetlinkWait = time.Minute // a machine may stall
	}
	return &host{t: t, dir: root, read: rdma.NewReader(options), now: time.Unix(1_800_000_000, 0)}
}

func written(t testing.TB, tree *rdmatest.Tree) string {
	t.Helper()
	dir, err := rdmatest.MkdirTemp()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mounted(t *testing.T, tree *rdmatest.Tree) (string, *rdmatest.FaultFS) {
	t.Helper()
	if err := rdmatest.Supported(); err != nil {
		t.Skipf("real errnos need FUSE: %v", err)
	}
	dir, root := written(t, tree), t.TempDir()
	fs, err := rdmatest.Mount(dir, root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	return root, fs
}

// all lists and reads every device.
func (h *host) all() ([]rdma.Device, []sysread.ReadError) {
	h.t.Helper()
	listing, err := h.read.List()
	if err != nil {
		h.t.Fatal(err)
	}
	var devices []rdma.Device
	var errs []sysread.ReadError
	for _, reader := range listing.Devices {
		device, failed := reader.Read(h.now)
		devices = append(devices, device)
		errs = append(errs, failed...)
	}
	return devices, errs
}

// close closes all files, so that a FaultFS can be taken away.
func (h *host) close() {
	listing, _ := h.read.List()
	for _, reader := range listing.Devices {
		reader.Close()
	}
}

// An excluded device costs nothing: not one of its files is opened.
func TestExcludedDeviceIsNotTouched(t *testing.T) {
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0", PCIAddress: "0000:18:00.0"})
	sick := tree.MLX5IB(rdmatest.Options{Name: "mlx5_1", PCIAddress: "0000:3b:00.0", Ordinal: 1})
	root, fs := mounted(t, tree)
	h := newHost(t, root, rdma.Options{Include: func(name string) bool { return name == "mlx5_0" }})
	defer h.close()
	for range 3 {
		if devices, errs := h.all(); len(devices) != 1 || len(errs) != 0 {
			t.Fatalf("%d devices, errors %v", len(devices), errs)
		}
	}
	for path, count := range fs.Counts() {
		if strings.HasPrefix(path, sick.Function) && count.Opens+count.Reads+count.Lists > 0 {
			t.Errorf("%s of the excluded device: %+v", path, count)
		}
	}
	if fs.Opens("sys/class/infiniband/mlx5_0/ports/1/state") == 0 {
		t.Error("the count does not see the included device either")
	}
}

// TestSteadyState pins what one scrape of an 8-NIC node asks of the kernel.
func TestSteadyState(t *testing.T) {
	h := newHost(t, written(t, rdmatest.Node8()), rdma.Options{SlowInterval: time.Minute})
	h.all()
	h.now = h.now.Add(3 * time.Second) // past the time in which a new device may be incomplete
	h.all()
	for _, step := range []struct {
		name         string
		after        time.Duration
		opens, reads int64
	}{
		{"fast", time.Second, 1, 8*38 + 1},
		{"fast again", time.Second, 1, 8*38 + 1},
		{"with the slow group", time.Minute, 8*25 + 1, 8*78 + 1},
	} {
		opens, reads := h.read.IO().Opens(), h.read.IO().Reads()
		h.now = h.now.Add(step.after)
		h.all()
		opens, reads = h.read.IO().Opens()-opens, h.read.IO().Reads()-reads
		t.Logf("%s: %d files opened, %d reads for 8 devices", step.name, opens, reads)
		if opens > step.opens || reads > step.reads {
			t.Errorf("%s: %d files opened and %d reads, at most %d and %d wanted", step.name, opens, reads, step.opens, step.reads)
		}
	}
}

func TestSlowGroupIsReadWhenAPortChangesState(t *testing.T) {
	tree := rdmatest.New()
	d := tree.MLX5IB(rdmatest.Options{State: "1: DOWN", PhysState: "2: Polling", Rate: "10 Gb/sec (4X SDR)"})
	dir := written(t, tree)
	h := newHost(t, dir, rdma.Options{SlowInterval: time.Hour})
	h.all()
	for name, text := range map[string]string{"state": "4: ACTIVE\n", "phys_state": "5: LinkUp\n", "rate": "400 Gb/sec (4X NDR)\n"} {
		if err := os.WriteFile(filepath.Join(dir, d.File(1, name)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.now = h.now.Add(time.Second)
	devices, _ := h.all()
	if port := devices[0].Ports[0]; port.State.Value != 4 || port.Rate.Value.Speed != "NDR" {
		t.Errorf("state %+v, rate %+v", port.State, port.Rate)
	}
}

// A restricted function is found out once and then left alone but for a rare try.
func TestRestrictedDirectoryIsLeftAlone(t *testing.T) {
	tree := rdmatest.New()
	d := tree.MLX5Restricted(rdmatest.Options{})
	root, fs := mounted(t, tree)
	fs.Apply(d.Faults)
	h := newHost(t, root, rdma.Options{})
	defer h.close()
	devices, errs := h.all()
	if port := devices[0].Ports[0]; !port.Restricted[0].All || port.Restricted[1].All || len(errs) < 20 {
		t.Fatalf("restricted %+v, %d errors", port.Restricted, len(errs))
	}
	if port := devices[0].Ports[0]; len(port.Counters) < 30 || port.State.Value != 4 {
		t.Errorf("%d counters, state %v", len(port.Counters), port.State)
	}
	reads := fs.Reads(d.File(1, "counters/*"))
	for range 50 {
		h.now = h.now.Add(10 * time.Second)
		h.all()
	}
	if n := fs.Reads(d.File(1, "counters/*")); n != reads {
		t.Errorf("%d reads of a restricted directory in 500 s", n-reads)
	}
	h.now = h.now.Add(5 * time.Minute)
	h.all()
	if n := fs.Reads(d.File(1, "counters/*")); n != reads+1 {
		t.Errorf("%d reads at the first retry", n-reads)
	}
	fs.ClearAll()
	h.now = h.now.Add(time.Hour)
	devices, errs = h.all()
	if port := devices[0].Ports[0]; port.Restricted[0].All || len(errs) != 0 || len(port.Counters) < 50 {
		t.Errorf("not lifted: %+v, %v", port.Restricted, errs)
	}
}

func TestRefusingFileIsAskedLessAndLess(t *testing.T) {
	tree := rdmatest.New()
	d := tree.MLX5IB(rdmatest.Options{})
	root, fs := mounted(t, tree)
	file := d.File(1, "hw_counters/np_cnp_sent")
	fs.Set(file, rdmatest.Rule{Errno: syscall.EINVAL})
	h := newHost(t, root, rdma.Options{})
	defer h.close()
	for range 360 { // an hour
		h.all()
		h.now = h.now.Add(10 * time.Second)
	}
	if n := fs.Reads(file); n < 5 || n > 10 {
		t.Errorf("a refusing file was read %d times in an hour", n)
	}
	fs.ClearAll()
	h.now = h.now.Add(time.Hour)
	if devices, errs := h.all(); len(errs) != 0 || !has(devices[0], "np_cnp_sent") {
		t.Errorf("not back: %v", errs)
	}
}

func has(d rdma.Device, file string) bool {
	for _, c := range d.Ports[0].Counters {
		if c.Info.File == file {
			return true
		}
	}
	return false
}

// ENODEV of a device that is gone at the next listing is no error, and of one
// that is still there it is.
func TestVanishingIsNoError(t *testing.T) {
	tree := rdmatest.New()
	d := tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
	root, fs := mounted(t, tree)
	h := newHost(t, root, rdma.Options{})
	defer h.close()
	h.all()
	fs.Set(d.File(1, "hw_counters/out_of_buffer"), rdmatest.Rule{Errno: syscall.ENODEV, OpenErrno: syscall.ENOENT})
	if _, errs := h.all(); len(errs) != 0 {
		t.Errorf("counted at once: %v", errs)
	}
	h.now = h.now.Add(3 * time.Second)
	if _, errs := h.all(); len(errs) != 1 || errs[0].Errno() != "ENOENT" {
		t.Errorf("not counted though the device is still listed: %v", errs)
	}
}

// A device that is renamed, or replaced under its name, is another device.
func TestDevicesAreToldApartByInode(t *testing.T) {
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0", PCIAddress: "0000:18:00.0"})
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_1", PCIAddress: "0000:3b:00.0", Ordinal: 1})
	dir := written(t, tree)
	h := newHost(t, dir, rdma.Options{})
	devices, _ := h.all()
	first, second := devices[0].NodeGUID, devices[1].NodeGUID
	class := filepath.Join(dir, "sys/class/infiniband")
	for _, move := range [][2]string{{"mlx5_0", "tmp"}, {"mlx5_1", "mlx5_0"}, {"tmp", "mlx5_1"}} {
		if err := os.Rename(filepath.Join(class, move[0]), filepath.Join(class, move[1])); err != nil {
			t.Fatal(err)
		}
	}
	devices, errs := h.all()
	if devices[0].NodeGUID != second || devices[1].NodeGUID != first {
		t.Errorf("after swapping names: %s %s, errors %v", devices[0].NodeGUID, devices[1].NodeGUID, errs)
	}
}

func TestDescriptorBudget(t *testing.T) {
	h := newHost(t, written(t, rdmatest.Node8()), rdma.Options{Descriptors: 50})
	for range 3 {
		if devices, errs := h.all(); len(devices) != 8 || len(errs) != 0 {
			t.Fatalf("%d devices, %v", len(devices), errs)
		}
	}
	if held := h.read.IO().Held(); held != 50 {
		t.Errorf("%d files kept open of 50 allowed", held)
	}
	h.close()
	if held := h.read.IO().Held(); held != 0 {
		t.Errorf("%d files kept open after Close", held)
	}
}

func TestOmittedCounters(t *testing.T) {
	tree := rdmatest.New()
	tree.HFI1(rdmatest.Options{})
	h := newHost(t, written(t, tree), rdma.Options{})
	devices, _ := h.all()
	d := devices[0]
	if len(d.HWCounters) > rdma.MaxCounters || len(d.Ports[0].Counters) > 3*rdma.MaxCounters {
		t.Errorf("%d and %d counters", len(d.HWCounters), len(d.Ports[0].Counters))
	}
	if d.Omitted == 0 {
		t.Error("hfi1's counters fit the cap: the test needs more")
	}
	if !d.Ports[0].ReceiveBytes.Known {
		t.Error("a known counter is among the omitted")
	}
}

func TestPlane(t *testing.T) {
	tree := rdmatest.New()
	tree.MLX5XDR(rdmatest.Options{Name: "mlx5_0"})
	tree.SMI(rdmatest.Options{Name: "smi1"})
	h := newHost(t, written(t, tree), rdma.Options{})
	devices, errs := h.all()
	if len(devices) != 2 || len(errs) != 0 {
		t.Fatalf("%d devices, %v", len(devices), errs)
	}
	if devices[0].Plane() || !devices[1].Plane() || devices[1].Parent != "mlx5_0" || len(devices[1].Ports) != 0 {
		t.Errorf("planes: %q of %q with %d ports", devices[1].Name, devices[1].Parent, len(devices[1].Ports))
	}
}

func TestIdentity(t *testing.T) {
	tree := rdmatest.New()
	builders := []func(rdmatest.Options) rdmatest.Device{tree.MLX5RoCE, tree.MLX5VF, tree.MLX5SF, tree.EFA, tree.RXE, tree.BNXT}
	for i, build := range builders {
		build(rdmatest.Options{Ordinal: i})
	}
	h := newHost(t, written(t, tree), rdma.Options{})
	devices, errs := h.all()
	if len(errs) != 0 {
		t.Error(errs)
	}
	byDriver := map[string]rdma.Device{}
	for _, d := range devices {
		byDriver[d.Driver+"/"+string(d.Function)] = d
		if d.Function != rdma.FunctionNone && d.PCIAddress == "" {
			t.Errorf("%s: no PCI address", d.Name)
		}
		if strings.Contains(d.PCIAddress, "sf") || strings.Contains(d.PCIAddress, "mlx5") {
			t.Errorf("%s: an auxiliary device's name as PCI address: %s", d.Name, d.PCIAddress)
		}
	}
	for _, want := range []string{"mlx5_core/pf", "mlx5_core/vf", "efa/pf", "rdma_rxe/", "bnxt_en/pf"} {
		if _, found := byDriver[want]; !found {
			t.Errorf("no device of driver/function %s", want)
		}
	}
	for _, d := range devices {
		switch {
		case d.Driver == "efa" && d.NodeGUID != "":
			t.Errorf("EFA's zero GUID is taken for an identity: %q", d.NodeGUID)
		case d.Driver == "rdma_rxe" && (d.PCIAddress != "" || d.Ports[0].Netdev == ""):
			t.Errorf("soft-RoCE: address %q, netdev %q", d.PCIAddress, d.Ports[0].Netdev)
		case d.Function == rdma.FunctionSub && d.SubFunction == "":
			t.Errorf("%s: no sfnum", d.Name)
		}
	}
}

// Every driver that counts bytes anywhere has the normalised pair.
func TestBytesOfEveryDriver(t *testing.T) {
	for name, c := range map[string]struct {
		build func(*rdmatest.Tree, rdmatest.Options) rdmatest.Device
		bytes bool
	}{
		"mlx5": {(*rdmatest.Tree).MLX5IB, true}, "mlx4": {(*rdmatest.Tree).MLX4, true}, "counters_ext": {(*rdmatest.Tree).OldExt, true},
		"bnxt_re": {(*rdmatest.Tree).BNXT, true}, "irdma": {(*rdmatest.Tree).IRDMA, true}, "irdma gen3": {(*rdmatest.Tree).IRDMAGen3, true},
		"efa": {(*rdmatest.Tree).EFA, true}, "hfi1": {(*rdmatest.Tree).HFI1, true}, "mana": {(*rdmatest.Tree).MANA, true},
		"erdma": {(*rdmatest.Tree).ERDMA, true}, "rxe": {(*rdmatest.Tree).RXE, false}, "siw": {(*rdmatest.Tree).SIW, false},
	} {
		t.Run(name, func(t *testing.T) {
			tree := rdmatest.New()
			c.build(tree, rdmatest.Options{})
			devices, _ := newHost(t, written(t, tree), rdma.Options{}).all()
			port := devices[0].Ports[0]
			if port.ReceiveBytes.Known != c.bytes || port.TransmitBytes.Known != c.bytes {
				t.Errorf("bytes known: %v %v", port.ReceiveBytes.Known, port.TransmitBytes.Known)
			}
			if c.bytes && (port.ReceiveBytes.Value == 0 || port.ReceiveBytes.Value == port.TransmitBytes.Value) {
				t.Errorf("bytes %v and %v", port.ReceiveBytes.Value, port.TransmitBytes.Value)
			}
		})
	}
}

// A byte source that fails for a moment must not give way to another: the
// counter would jump.
func TestByteSourceIsKept(t *testing.T) {
	tree := rdmatest.New()
	d := tree.BNXT(rdmatest.Options{Counters: true})
	root, fs := mounted(t, tree)
	h := newHost(t, root, rdma.Options{})
	defer h.close()
	devices, _ := h.all()
	before := devices[0].Ports[0].ReceiveBytes
	fs.Set(d.File(1, "counters/port_rcv_data"), rdmatest.Rule{Errno: syscall.EIO})
	if devices, _ = h.all(); devices[0].Ports[0].ReceiveBytes.Known {
		t.Errorf("changed to another source: %v, was %v", devices[0].Ports[0].ReceiveBytes, before)
	}
	fs.ClearAll()
	if devices, _ = h.all(); devices[0].Ports[0].ReceiveBytes != before {
		t.Errorf("%v, was %v", devices[0].Ports[0].ReceiveBytes, before)
	}
}

func TestUnlistableClass(t *testing.T) {
	root, fs := mounted(t, rdmatest.Node8())
	fs.Set("sys/class/infiniband", rdmatest.Rule{OpenErrno: syscall.EACCES})
	h := newHost(t, root, rdma.Options{})
	_, err := h.read.List()
	if err == nil || sysread.ErrnoName(err) != "EACCES" || !strings.Contains(err.Error(), "class/infiniband") {
		t.Errorf("error %v", err)
	}
}

// rdmamapNodes is what rdmamap finds below a directory.
func rdmamapNodes(base, device string) []string {
	rdmamap.RdmaUverbsDir = base + "/infiniband_verbs"
	rdmamap.RdmaUmadDir = base + "/infiniband_mad"
	rdmamap.RdmaIbUcmDir = base + "/infiniband_cm"
	rdmamap.RdmaUcmDevice = ""
	var names []string
	for _, path := range rdmamap.GetRdmaCharDevices(device) {
		names = append(names, filepath.Base(path))
	}
	slices.Sort(names)
	return names
}

// TestCharDevices: what is found on the running system and in other files is what
// rdmamap finds.
func TestCharDevices(t *testing.T) {
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
	tree.MLX5XDR(rdmatest.Options{Name: "mlx5_9", Ordinal: 4})
	tree.SMI(rdmatest.Options{Name: "smi1", Ordinal: 4})
	tree.MultiPlane(rdmatest.Options{Name: "mlx5_5", PCIAddress: "0001:18:00.0", Ordinal: 6})
	tree.RXE(rdmatest.Options{Ordinal: 8})
	dir := written(t, tree)
	found := 0
	for _, files := range []sysread.Files{nil, sysread.Below("/")} {
		devices, _ := newHost(t, dir, rdma.Options{Files: files}).all()
		for _, device := range devices {
			base, err := filepath.EvalSymlinks(filepath.Join(dir, "sys/class/infiniband", device.Name, "device"))
			if err != nil {
				base = filepath.Join(dir, "sys/class")
			}
			want := rdmamapNodes(base, device.Name)
			if found += len(want); !slices.Equal(device.CharDevices, want) {
				t.Errorf("%s: %v, want %v", device.Name, device.CharDevices, want)
			}
		}
	}
	if found < 16 {
		t.Errorf("%d character devices", found)
	}
}

// TestBadUverbs: a uverbs node that cannot be read, or that hangs, costs its own
// device alone, which is no plane of another for it.
func TestBadUverbs(t *testing.T) {
	tree := rdmatest.New()
	for i := range 2 {
		tree.MLX5IB(rdmatest.Options{Name: fmt.Sprintf("mlx5_%d", i), PCIAddress: fmt.Sprintf("0000:%d8:00.0", i+1), Ordinal: i})
	}
	root, fs := mounted(t, tree)
	for _, errno := range []syscall.Errno{syscall.EAGAIN, syscall.EIO} {
		fs.Set("sys/devices/pci0000:14/0000:14:01.0/0000:18:00.0/infiniband_verbs/uverbs0/ibdev", rdmatest.Rule{Errno: errno})
		devices, errs := newHost(t, root, rdma.Options{}).all()
		if len(devices) != 2 || devices[0].Uverbs != "" || devices[0].Plane() || len(devices[0].Ports) != 1 || devices[1].Uverbs == "" {
			t.Errorf("%v: %d devices, the first: %+v", errno, len(devices), devices[0].Identity)
		}
		if len(errs) != 1 || errs[0].Device != "mlx5_0" || errs[0].Source != "infiniband_verbs/ibdev" || errs[0].Errno() != sysread.ErrnoName(errno) {
			t.Errorf("%v: %v", errno, errs)
		}
	}
}

func TestReplayMonitor(t *testing.T) {
	want := map[string]uint64{"register": 3, "unregister": 1, "netdev_attach": 0, "netdev_detach": 0, "rename": 2, "netdev_rename": 0, "other": 5}
	m := rdma.ReplayMonitor(want, true)
	if counts, up := m.Events(); !up || !maps.Equal(counts, want) {
		t.Errorf("%v, %v", counts, up)
	}
	if counts, up := rdma.ReplayMonitor(nil, false).Events(); up || counts != nil {
		t.Errorf("%v, %v", counts, up)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

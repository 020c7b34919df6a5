package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/gpu/gputest"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/rdmatest"
)

// hostTest is a host whose files are a tree below dir.
type hostTest struct {
	*proberHost
	dir     string
	machine *gputest.Machine
	t       *testing.T
}

// newHostTest returns a host with the GPUs of an HGX H100 in NVML, every library
// and device node, and no limit on locked memory.
func newHostTest(t *testing.T, tree *rdmatest.Tree, pairs snapshot.PairChoice) *hostTest {
	t.Helper()
	h := &hostTest{dir: onDisk(t, tree), machine: gputest.HGXH100(), t: t}
	c := &config{sysfs: h.dir + "/sys", procfs: h.dir + "/proc", driverRoots: []string{h.dir}, deadline: patience}
	reader := gpu.NewReader(gpu.Options{Open: h.machine.Open})
	taker := snapshot.New(snapshot.Options{Deadline: patience}).
		RDMA(rdma.NewReader(rdma.Options{Sysfs: c.sysfs}), nil).GPU(reader).
		Driver(driver.NewReader(driver.Options{Sysfs: c.sysfs, Procfs: c.procfs})).
		Affinity(affinity.NewReader(affinity.Options{Sysfs: c.sysfs})).Taker()
	t.Cleanup(taker.Close)
	h.proberHost = newProberHost(c, pairs, taker, reader)
	h.dev, h.proc, h.verbsDirs = h.dir+"/dev", h.dir+"/proc", []string{h.dir + "/verbs"}
	h.loaderFinds = func(string) bool { return false }
	for _, node := range []string{"nvidiactl", "nvidia-uvm", "nvidia3", "infiniband/uverbs0"} {
		h.write("dev/"+node, "")
	}
	h.write("usr/lib64/libcuda.so.1", "")
	h.write("verbs/libibverbs.so.1", "")
	h.write("proc/driver/nvidia/version", "NVRM version: ...\n")
	h.write("proc/driver/nvidia/gpus/0000:18:00.0/information", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 60\nDevice Minor: \t 3\nGPU Excluded:\t No\n")
	h.limit("unlimited", "0000000000000000")
	return h
}

func (h *hostTest) write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hostTest) remove(name string) {
	h.t.Helper()
	if err := os.RemoveAll(filepath.Join(h.dir, name)); err != nil {
		h.t.Fatal(err)
	}
}

// limit says what this process may lock, and its effective capabilities.
func (h *hostTest) limit(locked, capabilities string) {
	h.t.Helper()
	h.remove("proc/self")
	if err := os.MkdirAll(h.dir+"/proc/7", 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Symlink("7", h.dir+"/proc/self"); err != nil {
		h.t.Fatal(err)
	}
	h.write("proc/7/limits", "Limit                     Soft Limit           Hard Limit           Units     \n"+
		fmt.Sprintf("%-25s %-20s %-20s %-10s\n", "Max locked memory", locked, "unlimited", "bytes"))
	h.write("proc/7/status", "Name:\tgdr_exporter\nCapEff:\t"+capabilities+"\n")
}

const hostGPU = "0000:18:00.0"

// TestProberHostLook: what the readers see reaches the prober, and a port that was
// ACTIVE stays the one to measure.
func TestProberHostLook(t *testing.T) {
	t.Parallel()
	tree := rdmatest.New()
	nic := tree.MLX5IB(rdmatest.Options{Name: "mlx5_0", PCIAddress: "0000:19:00.0", Ports: 2})
	tree.Down(nic, 1)
	tree.GPUFunction("pci0000:15/0000:15:01.0/"+hostGPU, rdmatest.H100SXM, 0)
	h := newHostTest(t, tree, snapshot.PairChoice{Named: []prober.Pair{{GPU: hostGPU, Device: "mlx5_0"}}})
	measured := func() int {
		t.Helper()
		seen := h.Look(t.Context())
		if len(seen.Pairs.Value) != 1 || seen.Pairs.Value[0].GPU != hostGPU || !seen.GPUs.Value[hostGPU].Usable.Value || len(seen.Ports) != 2 {
			t.Fatalf("%+v", seen)
		}
		return seen.Pairs.Value[0].Port
	}
	if port := measured(); port != 2 {
		t.Errorf("port %d while the first is down and never was up", port)
	}
	state := func(port int, text string) { h.write(nic.File(port, "state"), text+"\n") }
	state(2, "1: DOWN")
	if port := measured(); port != 2 {
		t.Errorf("port %d after the second one's cable was pulled", port)
	}
	state(1, "4: ACTIVE")
	if port := measured(); port != 1 {
		t.Errorf("port %d after the first one came up", port)
	}
	h.remember(func(yield func(prober.Port) bool) { yield(prober.Port{Device: "mlx5_9", Number: 2}) })
	if state(1, "1: DOWN"); measured() != 1 || h.active[prober.Port{Device: "mlx5_9", Number: 2}] {
		t.Errorf("a port of a device that is gone is remembered: %v", h.active)
	}
}

// TestProberHostFallen: the pairs of a GPU that falls off the bus stay.
func TestProberHostFallen(t *testing.T) {
	t.Parallel()
	h := newHostTest(t, rdmatest.HGX(rdmatest.HGXOptions{}), snapshot.PairChoice{})
	h.machine.GPUs = h.machine.GPUs[:1]
	h.machine.GPUs[0].BusID = "00000000:18:00.0"
	ofGPU := func() (distances []string) {
		for _, pair := range h.Look(t.Context()).Pairs.Value {
			if pair.GPU == "0000:19:00.0" {
				distances = append(distances, pair.Device+" "+pair.Distance)
			}
		}
		return distances
	}
	before := fmt.Sprint(ofGPU())
	h.remove("sys/bus/pci/devices/0000:19:00.0")
	if after := fmt.Sprint(ofGPU()); after != before || before != "[mlx5_1 PIX]" {
		t.Errorf("before %s, after %s", before, after)
	}
}

// TestPortLoad: what each kind of driver counts.
func TestPortLoad(t *testing.T) {
	t.Parallel()
	set := func(tree *rdmatest.Tree, d rdmatest.Device, values ...string) {
		for i := 0; i < len(values); i += 2 {
			tree.File(d.File(1, values[i]), values[i+1]+"\n")
		}
	}
	for name, test := range map[string]struct {
		add            func(*rdmatest.Tree) rdmatest.Device
		sent, received any // nil: not known
		rate           any
	}{
		"mlx5": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.MLX5IB(rdmatest.Options{})
			set(tree, d, "counters/port_xmit_data", "8589934592", "counters/port_rcv_data", "3", "hw_counters/rx_bytes", "1", "hw_counters/tx_bytes", "1")
			return d
		}, 8589934592 * 4, 12, 50e9},
		"before Linux 4.5": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.OldExt(rdmatest.Options{})
			set(tree, d, "counters/port_xmit_data", "4294967295", "counters_ext/port_xmit_data_64", "10", "counters_ext/port_rcv_data_64", "20")
			return d
		}, 40, 80, 5e9},
		"saturated": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.MLX5IB(rdmatest.Options{})
			set(tree, d, "counters/port_xmit_data", "4294967295", "counters/port_rcv_data", "3")
			return d
		}, nil, 12, 50e9},
		"a counter that fails": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.BNXT(rdmatest.Options{Counters: true})
			set(tree, d, "counters/port_xmit_data", "junk", "counters/port_rcv_data", "3", "hw_counters/tx_bytes", "1", "hw_counters/rx_bytes", "1")
			return d
		}, nil, 12, 50e9},
		"no PMA": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.BNXT(rdmatest.Options{Counters: true})
			set(tree, d, "counters/port_xmit_data", "N/A (no PMA)", "hw_counters/tx_bytes", "1000", "hw_counters/rx_bytes", "2000")
			return d
		}, 1000, 2000, 50e9},
		"irdma": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.IRDMA(rdmatest.Options{})
			set(tree, d, "hw_counters/ip4OutOctets", "1", "hw_counters/ip6OutOctets", "2", "hw_counters/ip4InOctets", "30", "hw_counters/ip6InOctets", "40")
			return d
		}, 3, 70, 12.5e9},
		"efa": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.EFA(rdmatest.Options{})
			set(tree, d, "hw_counters/tx_bytes", "5", "hw_counters/rx_bytes", "6")
			return d
		}, 5, 6, 12.5e9},
		"hardware without counters": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.MLX5RoCE(rdmatest.Options{})
			tree.Remove(d.File(1, "counters"))
			tree.Remove(d.File(1, "hw_counters"))
			tree.File("sys/class/net/"+d.NetDevs[0]+"/statistics/tx_bytes", "1\n").File("sys/class/net/"+d.NetDevs[0]+"/statistics/rx_bytes", "1\n")
			return d
		}, nil, nil, 50e9},
		"soft-RoCE": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.RXE(rdmatest.Options{})
			tree.File("sys/class/net/"+d.NetDevs[0]+"/mtu", "1500\n")
			set(tree, d, "hw_counters/sent_pkts", "100", "hw_counters/rcvd_pkts", "7")
			return d
		}, 100 * 1024, 7 * 1024, 1.25e9},
		"soft-RoCE, jumbo frames": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.RXE(rdmatest.Options{})
			tree.File("sys/class/net/"+d.NetDevs[0]+"/mtu", "9000\n")
			set(tree, d, "hw_counters/sent_pkts", "100", "hw_counters/rcvd_pkts", "7")
			return d
		}, 100 * 4096, 7 * 4096, 1.25e9},
		"soft-RoCE, tiny frames": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.RXE(rdmatest.Options{})
			tree.File("sys/class/net/"+d.NetDevs[0]+"/mtu", "68\n")
			set(tree, d, "hw_counters/sent_pkts", "100", "hw_counters/rcvd_pkts", "7")
			return d
		}, 100 * 256, 7 * 256, 1.25e9},
		"soft-RoCE, whose headers do not fit": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.RXE(rdmatest.Options{})
			tree.File("sys/class/net/"+d.NetDevs[0]+"/mtu", "1100\n")
			set(tree, d, "hw_counters/sent_pkts", "100", "hw_counters/rcvd_pkts", "7")
			return d
		}, 100 * 512, 7 * 512, 1.25e9},
		"soft-RoCE of another namespace": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.RXE(rdmatest.Options{})
			tree.File(d.Dir+"/parent", "elsewhere\n")
			set(tree, d, "hw_counters/sent_pkts", "100", "hw_counters/rcvd_pkts", "7")
			return d
		}, 100 * 4096, 7 * 4096, 1.25e9},
		"soft-iWARP": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.SIW(rdmatest.Options{})
			tree.File(d.File(1, "gid_attrs/ndevs/0"), d.NetDevs[0]+"\n")
			tree.File("sys/class/net/"+d.NetDevs[0]+"/statistics/tx_bytes", "11\n").File("sys/class/net/"+d.NetDevs[0]+"/statistics/rx_bytes", "12\n")
			return d
		}, 11, 12, 1.25e9},
		"junk in rate": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.MLX5IB(rdmatest.Options{Rate: "-1 Gb/sec (4X NDR)"})
			set(tree, d, "counters/port_xmit_data", "1", "counters/port_rcv_data", "2")
			return d
		}, 4, 8, nil},
		"half a gigabit": {func(tree *rdmatest.Tree) rdmatest.Device {
			d := tree.MLX5IB(rdmatest.Options{Rate: "2.5 Gb/sec (1X SDR)"})
			set(tree, d, "counters/port_xmit_data", "1", "counters/port_rcv_data", "2")
			return d
		}, 4, 8, 312.5e6},
		"gone": {func(*rdmatest.Tree) rdmatest.Device { return rdmatest.Device{Name: "mlx5_0"} }, nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tree := rdmatest.New()
			device := test.add(tree)
			files := portLoad{sysfs: onDisk(t, tree) + "/sys", device: device.Name, port: 1}
			began := time.Now()
			load := files.read()
			if known(load.Sent) != fmt.Sprint(test.sent) || known(load.Received) != fmt.Sprint(test.received) || known(load.Rate) != fmt.Sprint(test.rate) {
				t.Errorf("sent %v, received %v, rate %v", load.Sent, load.Received, load.Rate)
			}
			if load.Time.Before(began) {
				t.Errorf("read at %v", load.Time)
			}
		})
	}
}

// known is a value as text, that of nil if it is not known.
func known[T any](value sysread.Maybe[T]) string {
	if !value.Known {
		return fmt.Sprint(nil)
	}
	return fmt.Sprint(value.Value)
}

// TestProberHostLoad: NVML's share, and that it may be missing.
func TestProberHostLoad(t *testing.T) {
	t.Parallel()
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{})
	h := newHostTest(t, tree, snapshot.PairChoice{})
	h.machine.GPUs = h.machine.GPUs[:1]
	h.machine.GPUs[0].Utilization, h.machine.GPUs[0].PIDs = nvml.Utilization{Gpu: 37}, []int{11, 12}
	pair := prober.Pair{GPU: hostGPU, Device: "mlx5_0", Port: 1}
	if load := h.Load(t.Context(), pair); load.GPU.Known || !load.Sent.Known {
		t.Errorf("before NVML was read: %+v", load)
	}
	h.Look(t.Context())
	if load := h.Load(t.Context(), pair); load.GPU != sysread.Some(0.37) || !load.Sent.Known || !load.Received.Known || !load.Rate.Known {
		t.Errorf("%+v", load)
	}
	if pids, err := h.Processes(t.Context(), hostGPU); err != nil || fmt.Sprint(pids) != "[11 12]" {
		t.Errorf("processes %v, %v", pids, err)
	}
	if _, err := h.Processes(t.Context(), "0000:ff:00.0"); err == nil {
		t.Error("a GPU that is not there has processes")
	}
	h.nvml = nil
	if load := h.Load(t.Context(), pair); load.GPU.Known || !load.Sent.Known {
		t.Errorf("without NVML: %+v", load)
	}
	if _, err := h.Processes(t.Context(), hostGPU); err == nil {
		t.Error("without NVML a GPU has processes")
	}
}

// TestProberHostLoadHangs: a port whose counter does not answer costs its reader's
// patience once, and one goroutine. Other devices answer, and so does it when it
// is back.
func TestProberHostLoadHangs(t *testing.T) {
	t.Parallel()
	tree := rdmatest.New()
	stuck := tree.MLX5IB(rdmatest.Options{Name: "mlx5_0", PCIAddress: "0000:19:00.0"})
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_1", PCIAddress: "0000:2a:00.0", Ordinal: 1})
	h := newHostTest(t, tree, snapshot.PairChoice{})
	// Opening a pipe waits for its other end.
	counter := filepath.Join(h.dir, stuck.File(1, "counters/port_xmit_data"))
	if err := os.Remove(counter); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(counter, 0o600); err != nil {
		t.Fatal(err)
	}
	pair := prober.Pair{GPU: hostGPU, Device: "mlx5_0", Port: 1}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if load := h.Load(ctx, pair); load.Sent.Known || load.Received.Known || load.Rate.Known || load.Time.IsZero() {
			t.Errorf("%+v", load)
		}
		cancel()
	}
	if load := h.Load(t.Context(), pair); load.Sent.Known { // it is not even waited for
		t.Errorf("%+v", load)
	}
	if load := h.Load(t.Context(), prober.Pair{Device: "mlx5_1", Port: 1}); !load.Sent.Known {
		t.Errorf("another device: %+v", load)
	}
	other, err := os.OpenFile(counter, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(counter); err != nil {
		t.Fatal(err)
	}
	h.write(stuck.File(1, "counters/port_xmit_data"), "1\n")
	_ = other.Close()
	within(t, patience, "the device answers again", func() bool { return h.Load(t.Context(), pair).Sent == sysread.Some(uint64(4)) })
}

// TestBlocked: what keeps this process from measuring, found without opening anything.
func TestBlocked(t *testing.T) {
	t.Parallel()
	none := prober.ReasonNone
	for name, test := range map[string]struct {
		change func(*hostTest)
		want   prober.Reason
		text   string
	}{
		"nothing":               {func(*hostTest) {}, none, ""},
		"no libibverbs":         {func(h *hostTest) { h.remove("verbs") }, prober.ReasonLibrary, "no libibverbs.so.1"},
		"libibverbs elsewhere":  {func(h *hostTest) { h.remove("verbs"); h.loaderFinds = func(string) bool { return true } }, none, ""},
		"no libcuda":            {func(h *hostTest) { h.remove("usr") }, prober.ReasonLibrary, "no libcuda.so.1 below "},
		"libcuda not of a root": {func(h *hostTest) { h.remove("usr"); h.loaderFinds = func(string) bool { return true } }, prober.ReasonLibrary, "no libcuda"},
		"libcuda of the loader": {func(h *hostTest) {
			h.remove("usr")
			h.config.driverRoots = nil
			h.loaderFinds = func(string) bool { return true }
		}, none, ""},
		"libcuda of the root /": {func(h *hostTest) {
			h.remove("usr")
			h.config.driverRoots = []string{"/"}
			h.loaderFinds = func(string) bool { return true }
		}, none, ""},
		"libcuda a container's": {func(h *hostTest) {
			h.remove("usr/lib64/libcuda.so.1")
			link(h, "usr/lib64/libcuda.so.1", "/usr/lib64/libcuda.so.580")
		}, none, ""},
		"ib_uverbs not loaded":   {func(h *hostTest) { h.remove("sys/class/infiniband_verbs") }, prober.ReasonDeviceNode, "is ib_uverbs loaded?"},
		"no verbs device":        {func(h *hostTest) { h.write("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_7\n") }, prober.ReasonDeviceNode, "mlx5_0 has no verbs device"},
		"no uverbs node":         {func(h *hostTest) { h.remove("dev/infiniband") }, prober.ReasonDeviceNode, "dev/infiniband/uverbs0: no such file"},
		"no nvidiactl":           {func(h *hostTest) { h.remove("dev/nvidiactl") }, prober.ReasonDeviceNode, "dev/nvidiactl: no such file"},
		"no nvidia-uvm":          {func(h *hostTest) { h.remove("dev/nvidia-uvm") }, prober.ReasonDeviceNode, "dev/nvidia-uvm: no such file"},
		"no node of the GPU":     {func(h *hostTest) { h.remove("dev/nvidia3") }, prober.ReasonDeviceNode, "dev/nvidia3: no such file"},
		"its minor is not known": {func(h *hostTest) { h.remove("dev/nvidia3"); h.remove("proc/driver/nvidia/gpus") }, none, ""},
		"its minor is junk": {func(h *hostTest) {
			h.remove("dev/nvidia3")
			h.write("proc/driver/nvidia/gpus/"+hostGPU+"/information", "Device Minor: ../3\n")
		}, none, ""},
		"no driver, no nodes":     {func(h *hostTest) { h.remove("dev/nvidiactl"); h.remove("proc/driver") }, none, ""},
		"stand-ins have no nodes": {func(h *hostTest) { h.remove("dev/nvidiactl"); h.config.gpuStandIns = []string{"1af4:1050"} }, none, ""},
		"memlock":                 {func(h *hostTest) { h.limit("8388608", "0000000000000000") }, prober.ReasonMemlock, "RLIMIT_MEMLOCK is 8388608 bytes, a run registers 150994944"},
		"memlock, just enough":    {func(h *hostTest) { h.limit("150994944", "0000000000000000") }, none, ""},
		"memlock, privileged":     {func(h *hostTest) { h.limit("8388608", "0000000000004000") }, none, ""},
		"memlock, otherwise so":   {func(h *hostTest) { h.limit("8388608", "000001ffffffbfff") }, prober.ReasonMemlock, ""},
		"limits not known":        {func(h *hostTest) { h.remove("proc/7") }, none, ""},
		"several":                 {func(h *hostTest) { h.remove("dev"); h.limit("0", "0") }, prober.ReasonDeviceNode, "nvidiactl: no such file or directory\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tree := rdmatest.New()
			tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
			h := newHostTest(t, tree, snapshot.PairChoice{})
			test.change(h)
			reason, err := h.Blocked(prober.Pair{GPU: hostGPU, Device: "mlx5_0", Port: 1}, 144<<20)
			if reason != test.want || (err == nil) != (test.want == none) || err != nil && !strings.Contains(err.Error(), test.text) {
				t.Errorf("%q, %v", reason, err)
			}
		})
	}
}

func link(h *hostTest, name, target string) {
	h.t.Helper()
	if err := os.Symlink(target, filepath.Join(h.dir, name)); err != nil {
		h.t.Fatal(err)
	}
}

// TestLoaderFinds: the C library is always there, and is found the way others are.
func TestLoaderFinds(t *testing.T) {
	t.Parallel()
	if !loaderFinds("libc.so.6") {
		t.Error("no C library")
	}
	if loaderFinds("libgdr-exporter-has-none.so.1") {
		t.Error("a library was found that there is not")
	}
}

var _ prober.Host = (*proberHost)(nil)

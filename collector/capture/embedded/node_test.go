package embedded

import (
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/gpu/driver/drivertest"
	"gdr_exporter/gpu/gputest"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/rdmatest"
)

// roots are where the readers look for the driver, as the daemon does unless it is
// told otherwise.
var roots = []string{"/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/usr/local/nvidia"}

// recordedAt is when the synthetic captures were recorded.
var recordedAt = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// node is a host to be recorded.
type node struct {
	about     string
	synthetic bool
	tree      *rdmatest.Tree
	netlink   bool
	open      func(string) (gpu.Library, error)
	prober    *prober.Status
	ledger    *loopback.Ledger
	scenario  *capture.Scenario
}

// GPUs and NICs of an HGX node, in the order of their names: GPUs 2i and 2i+1
// are below one switch with NICs 2i and 2i+1.
var (
	gpuAddresses = []string{"0000:18:00.0", "0000:19:00.0", "0000:3a:00.0", "0000:3b:00.0", "0000:9a:00.0", "0000:9b:00.0", "0000:ba:00.0", "0000:bb:00.0"}
	nics         = []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"}
)

// generation is what an HGX node is built of.
type generation struct {
	machine   func() *gputest.Machine
	device    string  // PCI device id of the GPUs
	rate      string  // of the NICs' ports
	bandwidth float64 // what the NICs reach, in bytes per second
}

var (
	h100 = generation{gputest.HGXH100, rdmatest.H100SXM, "200 Gb/sec (4X HDR)", 24.5e9}
	b200 = generation{gputest.HGXB200, "0x2901", "400 Gb/sec (4X NDR)", 49e9}
)

// hgx returns an HGX node on which nothing is wrong, and its NVML, that may be
// changed until it is recorded.
func hgx(of generation, options rdmatest.HGXOptions) (*node, *gputest.Machine) {
	tree := rdmatest.HGX(options)
	removeFunction(tree, "0000:e1:00.0") // the node has no NIC but those beside GPUs
	for _, address := range gpuAddresses {
		setGPU(tree, address, of.device)
	}
	for _, name := range nics {
		healthyPort(tree, name, of.rate)
	}
	host := drivertest.Host{Tree: tree}
	host.File("proc/sys/kernel/osrelease", drivertest.Release+"\n")
	host.File(drivertest.Lockdown, "[none] integrity confidentiality\n")
	host.OFED()
	host.Open(drivertest.Version)
	host.Peermem(drivertest.Version, 3)
	host.Client("nv_mem", drivertest.Version)
	for _, address := range gpuAddresses {
		host.File("proc/driver/nvidia/gpus/"+address+"/information", "Model: \t\t NVIDIA H100 80GB HBM3\n")
	}
	machine := of.machine()
	for i, address := range gpuAddresses {
		machine.GPUs[i].BusID = "0000" + strings.ToUpper(address)
	}
	n := &node{synthetic: true, tree: tree, netlink: true, open: machine.Open, scenario: traffic(of.bandwidth), ledger: ledgerOf()}
	n.prober = measured(of.bandwidth)
	return n, machine
}

// removeFunction takes a PCI function off the tree, with the links to it.
func removeFunction(tree *rdmatest.Tree, address string) {
	function, _ := tree.Real("sys/bus/pci/devices/" + address)
	for _, at := range tree.Paths() {
		if real, found := tree.Real(at); found && at != real && (real == function || strings.HasPrefix(real, function+"/")) {
			tree.Remove(at)
		}
	}
	tree.Remove(path.Dir(function))
	tree.Remove("sys/bus/pci/devices/" + path.Base(path.Dir(function)))
}

// setGPU makes a GPU one with another PCI device id.
func setGPU(tree *rdmatest.Tree, address, device string) {
	at, _ := tree.Real("sys/bus/pci/devices/" + address)
	id, err := hex.DecodeString(device[2:])
	config, found := tree.Content(at + "/config")
	if err != nil || !found {
		panic(address + " is no GPU")
	}
	tree.File(at+"/device", device+"\n")
	tree.File(at+"/config", config[:2]+string([]byte{id[1], id[0]})+config[4:])
}

// moving are the counters of a healthy port that are not 0.
var moving = map[string]bool{
	"port_xmit_data": true, "port_rcv_data": true, "port_xmit_packets": true, "port_rcv_packets": true, "unicast_xmit_packets": true, "unicast_rcv_packets": true,
	"port_xmit_wait": true, "rx_write_requests": true, "rx_read_requests": true, "lifespan": true,
}

// healthyPort sets the rate of a port and clears its errors.
func healthyPort(tree *rdmatest.Tree, name, rate string) {
	port, _ := tree.Real("sys/class/infiniband/" + name)
	port += "/ports/1"
	tree.File(port+"/rate", rate+"\n")
	for _, at := range tree.Paths() {
		if path.Base(at) == "carrier_changes" {
			tree.File(at, "2\n") // up once
		}
	}
	for _, dir := range []string{"counters", "hw_counters"} {
		for _, file := range tree.List(port + "/" + dir) {
			if !moving[file] {
				tree.File(path.Join(port, dir, file), "0\n")
			}
		}
	}
}

// recording records a node with all readers, as the daemon has them.
func (n *node) recording(t *testing.T) *capture.Recording {
	t.Helper()
	root, err := rdmatest.MkdirTemp()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	}()
	if err := n.tree.WriteTo(root); err != nil {
		t.Fatal(err)
	}
	now := recordedAt
	clock := func() time.Time { return now }
	r := capture.NewRecorder(sysread.Below(root), capture.Header{
		About: n.about, Synthetic: n.synthetic, Readers: capture.Readers{Sysfs: "/sys", Procfs: "/proc", DriverRoots: roots},
	}, clock)
	options := rdma.Options{Sysfs: "/sys", Files: r.Files(), Descriptors: 1024, Now: clock}
	if n.netlink {
		options.Netlink, options.NetlinkWait = r.Netlink(n.tree.Netlink().Dial), time.Minute // a machine may stall
	}
	builder := snapshot.New(snapshot.Options{Deadline: time.Minute, Now: clock}).
		RDMA(rdma.NewReader(options), nil).
		GPU(gpu.NewReader(gpu.Options{Files: r.Files(), Procfs: "/proc", Roots: roots, NVLink: true, PerLink: true, Fabric: true, Open: r.NVML(n.open)})).
		Driver(driver.NewReader(driver.Options{Sysfs: "/sys", Procfs: "/proc", Mounts: "/proc/self/mountinfo", Files: r.Files(), Roots: roots})).
		Affinity(affinity.NewReader(affinity.Options{Sysfs: "/sys", Files: r.Files(), Descriptors: 1024, Now: clock}))
	taker := builder.Taker()
	defer taker.Close()
	for range 2 {
		taker.Take(t.Context(), func(string) bool { return true })
		now = now.Add(time.Minute)
	}
	now = recordedAt
	r.Prober(n.prober)
	if n.ledger != nil {
		r.Ledger(n.ledger, nil)
	}
	recording := r.Recording()
	recording.Scenario = n.scenario
	for i := range recording.Files {
		recording.Files[i].First = nil // of a round before, in which caches were empty
	}
	return recording
}

// value is a change of an answer.
func value(span capture.Span, part, question, json string) capture.Change {
	return capture.Change{Span: span, Target: capture.Target{Part: part, Question: question}, Value: &capture.Value{JSON: []byte(json)}}
}

// portOf returns the directory of a NIC's port in a recording.
func portOf(tree *rdmatest.Tree, name string) string {
	dir, _ := tree.Real("sys/class/infiniband/" + name)
	return "/" + dir + "/ports/1"
}

// traffic has the ports and links of a node carry the traffic of a job: of
// bandwidth bytes per second a third on average, coming and going as the steps of
// a training do.
func traffic(bandwidth float64) *capture.Scenario {
	s := &capture.Scenario{About: "A training job: counters count."}
	tree := rdmatest.HGX(rdmatest.HGXOptions{})
	for i := range nics {
		s.Counts = append(s.Counts, portTraffic(tree, i, capture.Span{}, bandwidth*(0.33+0.005*float64(i)), float64(90+4*i))...)
	}
	for i := range gpuAddresses {
		for _, field := range []int{138, 139} { // NVLink data sent and received, in KiB
			s.Counts = append(s.Counts, capture.Count{
				Target: capture.Target{Part: capture.PartNVML, Question: fmt.Sprintf("device %d GetFieldValues(%d,*)", i, field)},
				Field:  "bits", Rate: 9e6 + 2e5*float64(i), Swing: 0.6, Period: float64(80 + 3*i),
			})
		}
	}
	return s
}

// portTraffic has the port of a NIC send and receive rate bytes per second.
func portTraffic(tree *rdmatest.Tree, nic int, span capture.Span, rate, period float64) []capture.Count {
	port := portOf(tree, nics[nic])
	var counts []capture.Count
	add := func(files string, perSecond float64) {
		for name := range strings.FieldsSeq(files) {
			counts = append(counts, capture.Count{
				Span: span, Target: capture.Target{Path: port + "/counters/" + name, Op: capture.OpRead}, Rate: perSecond, Swing: 0.6, Period: period,
			})
		}
	}
	add("port_xmit_data port_rcv_data", rate/4) // in words of 4 bytes
	add("port_xmit_packets port_rcv_packets unicast_xmit_packets unicast_rcv_packets", rate/4096)
	add("port_xmit_wait", rate/5e7)
	return append(counts, capture.Count{ // of 32 bits, from netlink
		Span: span, Target: capture.Target{Part: capture.PartNetlink, Question: statistics(nic)}, Field: "name=rx_write_requests.value",
		Rate: rate / (1 << 18), Swing: 0.6, Period: period, Max: 1<<32 - 1, Wrap: true,
	})
}

// statistics is netlink's question about the hw_counters of a NIC's port.
func statistics(nic int) string { return fmt.Sprintf("STAT_GET %d 1", nic) }

// withoutTraffic takes the traffic of a NIC's port out of a scenario.
func withoutTraffic(counts []capture.Count, tree *rdmatest.Tree, nic int) []capture.Count {
	port := portOf(tree, nics[nic])
	return slices.DeleteFunc(counts, func(c capture.Count) bool {
		return strings.HasPrefix(c.Path, port+"/") || c.Question == statistics(nic)
	})
}

// write is the text of a capture.
func write(t *testing.T, r *capture.Recording) string {
	t.Helper()
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// fileOf is where a capture's text is.
func fileOf(name string) string { return filepath.Join(directory, name+extension) }

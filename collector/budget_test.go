package collector

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/host"
	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/gpu/driver/drivertest"
	"gdr_exporter/gpu/gputest"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/devlink"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/netdev"
	"gdr_exporter/rdma/rdmatest"
)

// seriesBudget is the most that an 8-GPU 8-NIC node may serve by default
// (exporter's own go_ and process_ aside).
const seriesBudget = 2000

// findingRoom is the part of it that is left for what is shown only where it is not
// as usual: findings, links that are down, errors by type.
const findingRoom = 40

// wholeNode takes the Snapshot of an HGX H100 node: every reader on the files
// of one tree, NVML from go-nvml's mocks. On RoCE each port has in addition
// ConnectX-7's ethtool statistics with one PFC priority, and mlx5's five health
// reporters, which no file shows.
func wholeNode(t *testing.T, roce bool) *snapshot.Snapshot {
	t.Helper()
	tree := rdmatest.HGX(rdmatest.HGXOptions{RoCE: roce})
	host := drivertest.Host{Tree: tree}
	host.File("proc/sys/kernel/osrelease", drivertest.Release+"\n")
	host.OFED()
	host.Open(drivertest.Version)
	host.Peermem(drivertest.Version, 3)
	host.Client("nv_mem", drivertest.Version)
	dir := tempTree(t)
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	sysfs := filepath.Join(dir, "sys")
	eight := func(device string) bool { return device != "mlx5_8" } // the fixture has a storage NIC too
	pci := affinity.NewReader(affinity.Options{Sysfs: sysfs, IncludeRDMA: eight, SlowInterval: time.Minute})
	machine := gputest.HGXH100()
	for i, address := range gpusOf(t, pci) {
		machine.GPUs[i].BusID = "0000" + strings.ToUpper(address)
	}
	taker := snapshot.New(snapshot.Options{Deadline: time.Minute, Now: func() time.Time { return goldenTime }}).
		RDMA(rdma.NewReader(rdma.Options{Sysfs: sysfs, Include: eight, Netlink: tree.Netlink().Dial, NetlinkWait: time.Minute}), nil).
		Affinity(pci).GPU(gpu.NewReader(gpuOptions(machine))).Driver(driver.NewReader(drivertest.Options(dir))).Taker()
	t.Cleanup(taker.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := taker.Take(ctx, allCollectors)
	addMLX5(t, s, roce)
	addProbes(s)
	addEvidence(s)
	return s
}

func gpusOf(t *testing.T, pci *affinity.Reader) []string {
	t.Helper()
	listing, _, err := pci.List()
	if err != nil {
		t.Fatal(err)
	}
	var gpus []string
	for _, node := range listing.Functions {
		if node.Kind == affinity.KindGPU {
			gpus = append(gpus, node.Address)
		}
	}
	return gpus
}

// addMLX5 adds what the kernel tells of mlx5 by other ways than files.
func addMLX5(t *testing.T, s *snapshot.Snapshot, roce bool) {
	t.Helper()
	reading := devlink.Reading{Read: goldenTime}
	for i := range s.RDMA.Units {
		device := s.RDMA.Units[i].Data
		if roce {
			quiet(device.Ports[0].Counters)
		}
		device.Resources = map[string]uint64{"pd": 3, "cq": 9, "qp": 17, "cm_id": 0, "mr": 4, "ctx": 1, "srq": 0}
		for _, name := range []string{"fw", "fw_fatal", "tx", "rx", "vnic"} {
			if name == "tx" || name == "rx" { // of the Ethernet netdev
				if !roce {
					continue
				}
			}
			r := reporter(name, devlink.StateHealthy, 0, 0)
			r.Device = device.PCIAddress
			reading.Reporters = append(reading.Reporters, r)
		}
		if roce {
			statistics := readNetdev(t, "mlx5_core.txt", "mlx5_core", 1<<3, nil)
			statistics.Stats = slices.DeleteFunc(statistics.Stats, func(s netdev.Stat) bool { return s.Extra })
			device.Ports[0].Interface = &statistics
		}
	}
	s.Devlink = &snapshot.DevlinkPart{Units: []snapshot.UnitPart[devlink.Reading]{{Name: "devlink", Data: &reading}}}
}

// quiet sets the error counters of InfiniBand's PMA to 0, as they are on Ethernet,
// where nothing counts into them.
func quiet(counters []rdma.Counter) {
	for i := range counters {
		if counters[i].Info.Width > 0 && counters[i].Info.Source == rdma.SourceCounters {
			counters[i].Value = 0
		}
	}
}

// addProbes adds a prober that knows all that it can of eight pairs, each GPU
// with a NIC of its own, and keeps all of them back now.
func addProbes(s *snapshot.Snapshot) {
	ledger := loopback.Ledger{Version: 1, Transferred: map[string]uint64{}, GPUs: map[string]loopback.LedgerGPU{}}
	s.Prober = &prober.Status{Interval: time.Hour, Isolation: prober.InProcess}
	taken := map[string]bool{}
	for _, found := range s.Affinity.Listing.Pairs {
		if !found.Nearest || taken[found.GPU] || taken[found.Device] {
			continue
		}
		taken[found.GPU], taken[found.Device] = true, true
		pair := measured()
		pair.Pair = prober.Pair{GPU: found.GPU, Device: found.Device, Port: 1}
		pair.Skip = prober.ReasonNICBusy
		for i := range pair.Full.Result.Paths { // it is measured with HDR, these ports are NDR
			pair.Full.Result.Paths[i].BytesPerSecond.Value *= 2
		}
		pair.Baseline.Value *= 2
		s.Prober.Pairs = append(s.Prober.Pairs, pair)
		ledger.GPUs[found.GPU] = loopback.LedgerGPU{DriverVersion: drivertest.Version, GPUDirectRDMA: true, DMABuf: true}
	}
	s.Probe = &snapshot.ProbePart{Taken: goldenTime, Units: []snapshot.UnitPart[loopback.Ledger]{{Name: "ledger", Data: &ledger}}}
}

// addEvidence adds the kernel's log, the host and what the node should have.
func addEvidence(s *snapshot.Snapshot) {
	s.KernelLog = &snapshot.KernelLogPart{Taken: goldenTime, Units: []snapshot.UnitPart[kmsg.Reading]{{Name: "kmsg", Data: quietLog()}}}
	s.Host = &snapshot.HostPart{Taken: goldenTime, Units: []snapshot.UnitPart[host.Reading]{{Name: "host", Data: &host.Reading{
		Context: host.Context{Root: sysread.Some(true), HostPID: sysread.Some(true), HostNetwork: sysread.Some(true), Container: sysread.Some(false), Memlock: sysread.Some[uint64](math.MaxUint64)},
	}}}}
	s.Expected = &profile.Expectation{Name: "hgx-h100", Source: profile.SourceEmbedded, Ports: map[prober.Port]sysread.Maybe[uint64]{}}
	for _, unit := range s.RDMA.Units {
		s.Expected.Ports[prober.Port{Device: unit.Name, Number: 1}] = sysread.Some[uint64](50e9)
	}
}

// TestSeriesBudget: a whole page stays within DESIGN's budget, and says of what
// it consists.
func TestSeriesBudget(t *testing.T) {
	for name, roce := range map[string]bool{"InfiniBand": false, "RoCE": true} {
		t.Run(name, func(t *testing.T) {
			s := wholeNode(t, roce)
			if n := len(s.NVML().GPUs); n != 8 {
				t.Fatalf("%d GPUs", n)
			}
			for _, e := range s.Errors {
				t.Errorf("read error %+v", e)
			}
			engine := diagnosis.NewEngine(diagnosis.EngineOptions{})
			h := newHandler(Config{Roles: noRoles{}, Enabled: Names(), Diagnose: engine.Diagnose})
			p := newPage()
			by := map[string]int{}
			for _, family := range h.render(p, s) {
				words := strings.SplitN(family.GetName(), "_", 4)
				by[strings.Join(words[:min(3, len(words))], "_")] += len(family.Metric)
			}
			t.Logf("%d series: %v", p.used, by)
			if len(s.Prober.Pairs) != 8 {
				t.Errorf("%d measured pairs", len(s.Prober.Pairs))
			}
			for _, finding := range engine.Last().Findings {
				t.Errorf("%+v", finding)
			}
			if p.used > seriesBudget-findingRoom {
				t.Errorf("%d series, more than %d", p.used, seriesBudget-findingRoom)
			}
			if p.used < seriesBudget/2 {
				t.Errorf("only %d series: something is missing from this test", p.used)
			}
			compute := 0
			for _, role := range s.Affinity.Listing.Roles {
				if role == "compute" {
					compute++
				}
			}
			if compute != 8 {
				t.Errorf("%d compute devices", compute)
			}
		})
	}
}

package snapshot

import (
	"reflect"
	"testing"
	"time"

	"gdr_exporter/collector/host"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback/prober"
)

// expectedNode is a Snapshot of two GPUs and a device of every kind.
func expectedNode() *Snapshot {
	device := func(name string, function rdma.Function, parent string, state int) UnitPart[rdma.Device] {
		return UnitPart[rdma.Device]{Name: name, Data: &rdma.Device{
			Identity: rdma.Identity{Name: name, NodeGUID: "guid-" + name, Function: function, Parent: parent},
			Ports:    []rdma.Port{{Number: 1, State: sysread.Some(state), Rate: sysread.Some(rdma.Rate{BytesPerSecond: 50e9})}},
		}}
	}
	gpus := []gpu.GPU{
		{Address: "0000:18:00.0", Identity: gpu.Identity{Name: "NVIDIA H100 80GB HBM3", Virtualization: "none"}, NVLink: gpu.NVLink{Active: sysread.Some(18)}},
		{Address: "0000:2a:00.0", Identity: gpu.Identity{Name: "NVIDIA H100 80GB HBM3", Virtualization: "none"}, NVLink: gpu.NVLink{Active: sysread.Some(17)}},
	}
	node := func(address string) affinity.Node {
		return affinity.Node{Address: address, Kind: affinity.KindGPU, Driver: "nvidia"}
	}
	pair := func(gpu, device string, d affinity.Distance) affinity.Pair {
		return affinity.Pair{GPU: gpu, Device: device, Distance: d}
	}
	return &Snapshot{
		Taken: time.Unix(1_800_000_000, 0),
		Asked: map[string]bool{CollectorRDMA: true, CollectorGPU: true, CollectorDriver: true, CollectorAffinity: true, CollectorPath: true},
		RDMA: &RDMAPart{Units: []UnitPart[rdma.Device]{
			device("mlx5_0", rdma.FunctionPhysical, "", 4), device("mlx5_1", rdma.FunctionPhysical, "", 1), device("mlx5_2", rdma.FunctionVirtual, "", 4),
			device("mlx5_3", rdma.FunctionSub, "", 4), device("mlx5_4", rdma.FunctionPhysical, "", 4), device("smi1", rdma.FunctionPhysical, "mlx5_0", 4),
		}},
		GPU:    &GPUPart{Units: []UnitPart[gpu.Reading]{{Name: "nvml", Data: &gpu.Reading{State: gpu.StateUp, GPUs: gpus}}}},
		Driver: &DriverPart{Units: []UnitPart[driver.Reading]{{Name: "driver", Data: &driver.Reading{}}}},
		Affinity: &AffinityPart{Listing: affinity.Listing{
			Functions: []affinity.Node{node("0000:18:00.0"), node("0000:2a:00.0")},
			Roles:     map[string]string{"mlx5_0": "compute", "mlx5_1": "compute", "mlx5_2": "compute", "mlx5_3": "compute", "mlx5_4": "storage", "smi1": "compute"},
			Pairs: []affinity.Pair{
				pair("0000:18:00.0", "mlx5_0", affinity.PIX), pair("0000:18:00.0", "mlx5_1", affinity.SYS), pair("0000:18:00.0", "mlx5_2", affinity.PIX),
				pair("0000:2a:00.0", "mlx5_0", affinity.PXB), pair("0000:2a:00.0", "mlx5_4", affinity.PIX),
			},
		}},
		Host: &HostPart{Units: []UnitPart[host.Reading]{{Name: "host", Data: &host.Reading{Platform: host.Platform{Product: sysread.Some("DGXH100")}}}}},
	}
}

func TestProfileFacts(t *testing.T) {
	f := expectedNode().ProfileFacts()
	port := func(device string, active, compute, never bool) profile.Port {
		return profile.Port{
			Port: prober.Port{Device: device, Number: 1}, NodeGUID: "guid-" + device, Active: sysread.Some(active), Rate: sysread.Some(uint64(50e9)),
			Compute: compute, Never: never,
		}
	}
	want := profile.Facts{
		Time: time.Unix(1_800_000_000, 0), Product: sysread.Some("DGXH100"), Models: sysread.Some([]string{"NVIDIA H100 80GB HBM3"}), Virtual: sysread.Some(false),
		GPUs: sysread.Some(2), NVLinks: sysread.Some(17), Devices: sysread.Some(2), DirectPairs: sysread.Some(2),
		Listed: sysread.Some([]string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "smi1"}),
		Ports: []profile.Port{
			port("mlx5_0", true, true, false), port("mlx5_1", false, true, false), port("mlx5_2", true, false, true),
			port("mlx5_3", true, false, true), port("mlx5_4", true, false, true), port("smi1", true, false, true),
		},
	}
	if !reflect.DeepEqual(f, want) {
		t.Errorf("got  %+v\nwant %+v", f, want)
	}
}

// TestProfileFactsUnknown: what does not answer says nothing.
func TestProfileFactsUnknown(t *testing.T) {
	yes, no := sysread.Some(true), sysread.Some(false)
	context := func(s *Snapshot) *host.Context { return &s.Host.Units[0].Data.Context }
	for name, c := range map[string]struct {
		change func(*Snapshot)
		is     func(*profile.Facts) bool
	}{
		"NVML hangs": {
			func(s *Snapshot) { s.GPU.Units[0].Data = nil },
			func(f *profile.Facts) bool {
				return !f.GPUs.Known && !f.NVLinks.Known && !f.Listed.Known && !f.Models.Known
			},
		},
		"a device hangs": {
			func(s *Snapshot) { s.RDMA.Units[0].Data = nil },
			func(f *profile.Facts) bool {
				return f.Listed.Known && len(f.Ports) == 5 && !f.Devices.Known && !f.DirectPairs.Known
			},
		},
		"the tree hangs":      {func(s *Snapshot) { s.Affinity.Err = ErrListStuck }, func(f *profile.Facts) bool { return !f.GPUs.Known && !f.Listed.Known }},
		"the host hangs":      {func(s *Snapshot) { s.Host.Units[0].Data = nil }, func(f *profile.Facts) bool { return !f.Listed.Known && !f.Product.Known && f.GPUs.Known }},
		"a GPU without links": {func(s *Snapshot) { s.NVML().GPUs[0].NVLink.Active.Known = false }, func(f *profile.Facts) bool { return !f.NVLinks.Known }},
		"no link is active":   {func(s *Snapshot) { s.NVML().GPUs[0].NVLink.Active.Value = 0 }, func(f *profile.Facts) bool { return !f.NVLinks.Known }},
		"a GPU is lost":       {func(s *Snapshot) { s.NVML().GPUs[0].Lost = true }, func(f *profile.Facts) bool { return f.GPUs == sysread.Some(1) }},
		"one for a VM": {func(s *Snapshot) {
			s.NVML().GPUs = s.NVML().GPUs[1:]
			s.Affinity.Listing.Functions[0].Driver = "vfio-pci"
		}, func(f *profile.Facts) bool { return f.GPUs == sysread.Some(2) }},
		"hidden counters":      {func(s *Snapshot) { s.RDMA.Units[0].Data.Hidden = true }, func(f *profile.Facts) bool { return !f.Ports[0].Compute && !f.Ports[0].Never }},
		"a virtual machine":    {func(s *Snapshot) { s.NVML().GPUs[0].Virtualization = "passthrough" }, func(f *profile.Facts) bool { return f.Virtual == yes }},
		"exclusive, host":      {func(s *Snapshot) { context(s).SharedRDMA, context(s).HostNetwork = no, yes }, func(f *profile.Facts) bool { return f.Private && !f.Foreign }},
		"exclusive, a pod":     {func(s *Snapshot) { context(s).SharedRDMA, context(s).HostNetwork = no, no }, func(f *profile.Facts) bool { return f.Private && f.Foreign }},
		"exclusive, who knows": {func(s *Snapshot) { context(s).SharedRDMA = no }, func(f *profile.Facts) bool { return f.Private && f.Foreign }},
		"shared, a pod":        {func(s *Snapshot) { context(s).SharedRDMA, context(s).HostNetwork = yes, no }, func(f *profile.Facts) bool { return !f.Private && !f.Foreign }},
		"a pod, who knows":     {func(s *Snapshot) { context(s).HostNetwork = no }, func(f *profile.Facts) bool { return !f.Private && f.Foreign }},
	} {
		s := expectedNode()
		c.change(s)
		if f := s.ProfileFacts(); !c.is(&f) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

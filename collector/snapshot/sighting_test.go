package snapshot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/gpu/driver/drivertest"
	"gdr_exporter/gpu/gputest"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/rdmatest"
)

// scene is what a Snapshot of two GPUs (a, b) and two NICs is made from, all of
// which is fine unless the test changes it.
type scene struct {
	gpuHost
	pairs   []affinity.Pair
	roles   map[string]string
	devices []UnitPart[rdma.Device]
	driver  driver.Reading
	change  func(*Snapshot)
}

const gpuA, gpuB = "0000:1b:00.0", "0000:3b:00.0"

func port(number, state int) rdma.Port {
	return rdma.Port{Number: number, LinkLayer: "InfiniBand", State: sysread.Some(state)}
}

func nic(name string, ports ...rdma.Port) UnitPart[rdma.Device] {
	return UnitPart[rdma.Device]{Name: name, Data: &rdma.Device{
		Identity: rdma.Identity{Name: name, NodeGUID: "guid of " + name, Firmware: "28.1"}, Ports: ports,
	}}
}

func fineScene() *scene {
	return &scene{
		gpuHost: gpuHost{nodes: bus("nvidia", gpuA, gpuB), nvml: answers(gpuA, gpuB), proc: []string{gpuA, gpuB}},
		pairs: []affinity.Pair{
			{GPU: gpuA, Device: "mlx5_0", Distance: affinity.PIX, Nearest: true}, {GPU: gpuA, Device: "mlx5_1", Distance: affinity.SYS},
			{GPU: gpuA, Device: "mlx5_8", Distance: affinity.PIX},
			{GPU: gpuB, Device: "mlx5_0", Distance: affinity.SYS}, {GPU: gpuB, Device: "mlx5_1", Distance: affinity.PHB, Nearest: true},
			{GPU: gpuB, Device: "mlx5_8", Distance: affinity.SYS},
		},
		roles:   map[string]string{"mlx5_0": "compute", "mlx5_1": "compute", "mlx5_8": "storage"},
		devices: []UnitPart[rdma.Device]{nic("mlx5_0", port(1, 4)), nic("mlx5_1", port(1, 1), port(2, 4)), nic("mlx5_8", port(1, 4))},
		driver:  driver.Reading{Loaded: sysread.Some(true), Version: sysread.Some("580.1")},
	}
}

func (s *scene) snapshot() *Snapshot {
	snapshot := s.gpuHost.snapshot()
	snapshot.Taken = time.Unix(1e9, 0)
	snapshot.Asked = map[string]bool{CollectorRDMA: true, CollectorGPU: true, CollectorDriver: true, CollectorAffinity: true}
	snapshot.Affinity.Listing.Pairs, snapshot.Affinity.Listing.Roles = s.pairs, s.roles
	snapshot.RDMA = &RDMAPart{Units: s.devices}
	files := snapshot.Driver.Units[0].Data
	files.Loaded, files.Version, files.Peermem = s.driver.Loaded, s.driver.Version, s.driver.Peermem
	if s.change != nil {
		s.change(snapshot)
	}
	return snapshot
}

// listed are pairs in the form "1b mlx5_0/1 PIX direct".
func listed(pairs sysread.Maybe[[]prober.Candidate]) string {
	if !pairs.Known {
		return "not known"
	}
	var words []string
	for _, c := range pairs.Value {
		word := fmt.Sprintf("%s %s/%d %s", c.GPU[5:7], c.Device, c.Port, c.Distance)
		if c.Direct {
			word += " direct"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

func notAsked(part string) func(*Snapshot) {
	return func(s *Snapshot) {
		s.Asked[part] = false
		without(part)(s)
	}
}

// without takes a part away that was asked for: the exporter has no such reader.
func without(part string) func(*Snapshot) {
	return func(s *Snapshot) {
		switch part {
		case CollectorRDMA:
			s.RDMA = nil
		case CollectorGPU:
			s.GPU = nil
		case CollectorDriver:
			s.Asked[CollectorGPU] = s.Asked[CollectorGPU] && s.Asked[CollectorDriver]
			s.Driver = nil
		case CollectorAffinity:
			s.Affinity = nil
		}
	}
}

// TestSightingPairs: which pairs are measured, through which port.
func TestSightingPairs(t *testing.T) {
	const nearest = "1b mlx5_0/1 PIX direct, 3b mlx5_1/2 PHB"
	last := []prober.Candidate{{Pair: prober.Pair{GPU: gpuB, Device: "mlx5_1", Port: 2}, Distance: "PHB"}}
	named := func(device string, port int) PairChoice {
		return PairChoice{Named: []prober.Pair{{GPU: gpuB, Device: device, Port: port}}}
	}
	was := func(ports ...prober.Port) PairChoice {
		return PairChoice{Active: func(p prober.Port) bool { return slices.Contains(ports, p) }}
	}
	for name, test := range map[string]struct {
		choice PairChoice
		change func(*scene)
		want   string
	}{
		"nearest": {want: nearest},
		"all":     {choice: PairChoice{All: true}, want: "1b mlx5_0/1 PIX direct, 1b mlx5_1/2 SYS, 3b mlx5_0/1 SYS, 3b mlx5_1/2 PHB"},
		"no tree to be seen": {
			change: func(s *scene) {
				for i := range s.pairs {
					s.pairs[i].Nearest, s.pairs[i].Distance = false, affinity.Unknown
				}
			},
		},
		"none compute": {change: func(s *scene) { s.roles = map[string]string{} }},

		"named, of another role": {choice: named("mlx5_8", 0), want: "3b mlx5_8/1 SYS"},
		"named with its port":    {choice: named("mlx5_1", 1), want: "3b mlx5_1/1 PHB"},
		"named twice": {
			choice: PairChoice{Named: []prober.Pair{{GPU: gpuB, Device: "mlx5_1", Port: 2}, {GPU: gpuB, Device: "mlx5_1", Port: 1}}}, want: "3b mlx5_1/2 PHB",
		},
		"named, no such device":   {choice: named("mlx5_9", 0), want: "3b mlx5_9/1 unknown"},
		"named, no such GPU":      {choice: PairChoice{Named: []prober.Pair{{GPU: "0000:ff:00.0", Device: "mlx5_0"}}}, want: "ff mlx5_0/1 unknown"},
		"named, its GPU is taken": {choice: named("mlx5_1", 0), change: func(s *scene) { s.nodes[1].Driver, s.nvml = "vfio-pci", answers(gpuA) }},

		"passed through":        {change: func(s *scene) { s.nodes[1].Driver, s.nvml = "vfio-pci", answers(gpuA) }, want: "1b mlx5_0/1 PIX direct"},
		"unbound":               {change: func(s *scene) { s.nodes[1].Driver, s.nvml = "", answers(gpuA) }, want: "1b mlx5_0/1 PIX direct"},
		"nouveau":               {change: func(s *scene) { s.nodes[1].Driver, s.nvml = "nouveau", answers(gpuA) }, want: "1b mlx5_0/1 PIX direct"},
		"hidden by a container": {change: func(s *scene) { s.nvml, s.partial, s.proc = answers(gpuA), true, s.proc[:1] }, want: "1b mlx5_0/1 PIX direct"},
		"lost":                  {change: func(s *scene) { s.nvml = answers(gpuA, "!"+gpuB) }, want: nearest},
		"NVML does not work":    {change: func(s *scene) { s.nvml = &gpu.Reading{State: gpu.StateFailed} }, want: nearest},

		"fallen off the bus": {
			choice: PairChoice{Last: last},
			change: func(s *scene) {
				s.nodes, s.gone, s.nvml, s.pairs = s.nodes[:1], []string{gpuB}, answers(gpuA), s.pairs[:3]
			}, want: nearest,
		},
		"fallen off the bus, named": {
			choice: PairChoice{Named: []prober.Pair{{GPU: gpuB, Device: "mlx5_1"}}, Last: last},
			change: func(s *scene) {
				s.nodes, s.gone, s.nvml, s.pairs = s.nodes[:1], []string{gpuB}, answers(gpuA), s.pairs[:3]
			}, want: "3b mlx5_1/2 PHB",
		},
		"taken off the bus": {
			choice: PairChoice{Last: last},
			change: func(s *scene) { s.nodes, s.nvml, s.pairs = s.nodes[:1], answers(gpuA), s.pairs[:3] }, want: "1b mlx5_0/1 PIX direct",
		},
		"not near any more": {
			choice: PairChoice{Last: last}, change: func(s *scene) { s.pairs[4].Nearest = false }, want: "1b mlx5_0/1 PIX direct",
		},

		"port down, which was active":  {choice: was(prober.Port{Device: "mlx5_1", Number: 1}), want: "1b mlx5_0/1 PIX direct, 3b mlx5_1/1 PHB"},
		"both were active":             {choice: was(prober.Port{Device: "mlx5_1", Number: 1}, prober.Port{Device: "mlx5_1", Number: 2}), want: "1b mlx5_0/1 PIX direct, 3b mlx5_1/1 PHB"},
		"no port was active":           {change: func(s *scene) { s.devices[1] = nic("mlx5_1", port(1, 1), port(2, 1)) }, want: "1b mlx5_0/1 PIX direct, 3b mlx5_1/1 PHB"},
		"a switch's port":              {change: func(s *scene) { s.devices[1] = nic("mlx5_1", port(0, 4), port(1, 1)) }, want: "1b mlx5_0/1 PIX direct, 3b mlx5_1/1 PHB"},
		"neither IB nor Ethernet":      {change: func(s *scene) { s.devices[1].Data.Ports[1].LinkLayer = "Unknown" }, want: "1b mlx5_0/1 PIX direct, 3b mlx5_1/1 PHB"},
		"no port at all":               {change: func(s *scene) { s.devices[1] = nic("mlx5_1") }, want: "1b mlx5_0/1 PIX direct, 3b mlx5_1/1 PHB"},
		"device hangs":                 {change: func(s *scene) { s.devices[1] = stuckRDMA("mlx5_1") }, want: "1b mlx5_0/1 PIX direct, 3b mlx5_1/1 PHB"},
		"device hangs that used the 2": {choice: was(prober.Port{Device: "mlx5_1", Number: 2}), change: func(s *scene) { s.devices[1] = stuckRDMA("mlx5_1") }, want: nearest},

		"tree not asked for":           {change: func(s *scene) { s.change = notAsked(CollectorAffinity) }, want: "not known"},
		"tree cannot be listed":        {change: func(s *scene) { s.change = func(s *Snapshot) { s.Affinity.Err = ErrListStuck } }, want: "not known"},
		"NVML not asked for":           {change: func(s *scene) { s.change = notAsked(CollectorGPU) }, want: "not known"},
		"NVML not used":                {change: func(s *scene) { s.change = without(CollectorGPU) }, want: nearest},
		"NVML hangs":                   {change: func(s *scene) { s.nvml = nil }, want: "not known"},
		"driver not asked for":         {change: func(s *scene) { s.change = func(s *Snapshot) { notAsked(CollectorDriver)(s) } }, want: "not known"},
		"driver's files hang":          {change: func(s *scene) { s.change = func(s *Snapshot) { s.Driver.Units[0].Data = nil } }, want: "not known"},
		"RDMA not asked for":           {change: func(s *scene) { s.change = notAsked(CollectorRDMA) }, want: "not known"},
		"RDMA devices not listed":      {change: func(s *scene) { s.change = func(s *Snapshot) { s.RDMA.Err = ErrListStuck } }, want: "not known"},
		"RDMA devices are not read":    {change: func(s *scene) { s.change = without(CollectorRDMA) }, want: "1b mlx5_0/1 PIX direct, 3b mlx5_1/1 PHB"},
		"NVML quiesced":                {change: func(s *scene) { s.nvml = &gpu.Reading{State: gpu.StateQuiesced} }, want: nearest},
		"a container without NVML yet": {change: func(s *scene) { s.nvml, s.partial = &gpu.Reading{State: gpu.StateNoLibrary}, true }, want: nearest},
	} {
		t.Run(name, func(t *testing.T) {
			s := fineScene()
			if test.change != nil {
				test.change(s)
			}
			if got := listed(s.snapshot().Sighting(test.choice).Pairs); got != test.want {
				t.Errorf("%s\nwant %s", got, test.want)
			}
		})
	}
}

// TestSightingGPUs: what is known of b, and what only of a Snapshot that asked.
func TestSightingGPUs(t *testing.T) {
	reset := answers(gpuA, gpuB)
	reset.GPUs[1].ResetRequired = true
	for name, test := range map[string]struct {
		change func(*scene)
		want   string // usable or not, "not known" for b, "no b", or "nothing known"
	}{
		"fine":                  {func(*scene) {}, "usable"},
		"lost":                  {func(s *scene) { s.nvml = answers(gpuA, "!"+gpuB) }, "not usable"},
		"waits for a reset":     {func(s *scene) { s.nvml = reset }, "not usable"},
		"off the bus":           {func(s *scene) { s.nodes, s.gone, s.nvml = s.nodes[:1], []string{gpuB}, answers(gpuA) }, "not usable"},
		"off the bus, NVML too": {func(s *scene) { s.nodes, s.gone, s.nvml = s.nodes[:1], []string{gpuB}, nil }, "not usable"},
		"taken away":            {func(s *scene) { s.nodes, s.nvml = s.nodes[:1], answers(gpuA) }, "no b"},
		"passed through":        {func(s *scene) { s.nodes[1].Driver, s.nvml = "vfio-pci", answers(gpuA) }, "not usable"},
		"NVML does not work":    {func(s *scene) { s.nvml = &gpu.Reading{State: gpu.StateFailed} }, "not known"},
		"NVML hangs":            {func(s *scene) { s.nvml = nil }, "not known"},
		"NVML quiesced":         {func(s *scene) { s.nvml = &gpu.Reading{State: gpu.StateQuiesced} }, "not known"},
		"NVML not used":         {func(s *scene) { s.change = without(CollectorGPU) }, "not usable"},
		"NVML not asked for":    {func(s *scene) { s.change = notAsked(CollectorGPU) }, "nothing known"},
		"tree cannot be listed": {func(s *scene) { s.change = func(s *Snapshot) { s.Affinity.Err = ErrListStuck } }, "usable"},
		"nothing answers": {func(s *scene) {
			s.nvml, s.change = nil, func(s *Snapshot) { s.Affinity.Err = ErrListStuck }
		}, "nothing known"},
	} {
		t.Run(name, func(t *testing.T) {
			s := fineScene()
			test.change(s)
			gpus := s.snapshot().Sighting(PairChoice{}).GPUs
			b, there := gpus.Value[gpuB]
			got := "not known"
			switch {
			case !gpus.Known:
				got = "nothing known"
			case !there:
				got = "no b"
			case b.Usable.Known:
				got = map[bool]string{true: "usable", false: "not usable"}[b.Usable.Value]
			}
			if got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// TestSightingOfGPU: every value is NVML's, and none is made up.
func TestSightingOfGPU(t *testing.T) {
	s := fineScene()
	b := &s.nvml.GPUs[1]
	b.UUID, b.Procs, b.FB.Free = "GPU-1", sysread.Some(2), sysread.Some(uint64(5<<30))
	b.Modes = gpu.Modes{Compute: sysread.Some(3), MIG: sysread.Some(false), Persistence: sysread.Some(true)}
	s.nvml.Confidential = sysread.Some(true)
	sighting := s.snapshot().Sighting(PairChoice{})
	want := prober.GPUSighting{
		UUID: "GPU-1", Usable: sysread.Some(true), Processes: sysread.Some(2), Free: sysread.Some(uint64(5 << 30)),
		ComputeMode: sysread.Some(3), MIG: sysread.Some(false), Persistence: sysread.Some(true),
	}
	if got := sighting.GPUs.Value[gpuB]; got != want {
		t.Errorf("%+v", got)
	}
	if got := sighting.GPUs.Value[gpuA]; got != (prober.GPUSighting{Usable: sysread.Some(true)}) {
		t.Errorf("of a GPU that says nothing: %+v", got)
	}
	if sighting.Confidential != sysread.Some(true) || !sighting.Time.Equal(time.Unix(1e9, 0)) {
		t.Errorf("%+v", sighting)
	}
	s.nvml = nil
	if sighting := s.snapshot().Sighting(PairChoice{}); sighting.Confidential.Known {
		t.Errorf("NVML hangs: %+v", sighting.Confidential)
	}
}

// TestSightingPorts: devices that do not answer are there and have no ports.
func TestSightingPorts(t *testing.T) {
	s := fineScene()
	s.devices[0].Data.Ports[0].State = sysread.Maybe[int]{}
	s.devices[2] = stuckRDMA("mlx5_8")
	sighting := s.snapshot().Sighting(PairChoice{})
	want := map[prober.Port]prober.PortSighting{
		{Device: "mlx5_0", Number: 1}: {NodeGUID: "guid of mlx5_0", Firmware: "28.1"},
		{Device: "mlx5_1", Number: 1}: {State: sysread.Some(1), NodeGUID: "guid of mlx5_1", Firmware: "28.1"},
		{Device: "mlx5_1", Number: 2}: {State: sysread.Some(4), NodeGUID: "guid of mlx5_1", Firmware: "28.1"},
	}
	if fmt.Sprint(sighting.Ports) != fmt.Sprint(want) {
		t.Errorf("%+v", sighting.Ports)
	}
	if fmt.Sprint(sighting.Devices) != "{[mlx5_0 mlx5_1 mlx5_8] true}" {
		t.Errorf("devices %v", sighting.Devices)
	}
	s.devices = nil // the module was unloaded: all are gone
	if sighting := s.snapshot().Sighting(PairChoice{}); !sighting.Devices.Known || len(sighting.Devices.Value)+len(sighting.Ports) > 0 {
		t.Errorf("%+v", sighting)
	}
	for name, change := range map[string]func(*Snapshot){
		"not listed": func(s *Snapshot) { s.RDMA.Err = ErrListStuck }, "not asked for": notAsked(CollectorRDMA), "not read": without(CollectorRDMA),
	} {
		s := fineScene()
		s.change = change
		if sighting := s.snapshot().Sighting(PairChoice{}); sighting.Devices.Known {
			t.Errorf("%s: devices %v", name, sighting.Devices)
		}
	}
}

// TestSightingModules: unreadable is not unloaded.
func TestSightingModules(t *testing.T) {
	module := func(name, version string, state driver.State) driver.PeerModule {
		m := driver.PeerModule{Module: driver.Module{Name: name, State: state}}
		if version != "" {
			m.Version = sysread.Some(version)
		}
		return m
	}
	peers := func(first, second driver.PeerModule) []driver.PeerModule { return []driver.PeerModule{first, second} }
	absent := module("nv_peer_mem", "", driver.StateAbsent)
	loaded := sysread.Some(true)
	for name, test := range map[string]struct {
		reading         driver.Reading
		driver, peermem string // "?" not known
	}{
		"both": {driver.Reading{
			Loaded: loaded, Version: sysread.Some("580.1"), Peermem: peers(module("nvidia_peermem", "580.1", driver.StateLive), absent),
		}, "580.1", "580.1"},
		"the older one":          {driver.Reading{Peermem: peers(module("nvidia_peermem", "", driver.StateAbsent), module("nv_peer_mem", "1.3-0", driver.StateLive))}, "?", "1.3-0"},
		"neither":                {driver.Reading{Loaded: sysread.Some(false), Peermem: peers(module("nvidia_peermem", "", driver.StateAbsent), absent)}, "", ""},
		"on its way out":         {driver.Reading{Peermem: peers(module("nvidia_peermem", "580.1", driver.StateGoing), absent)}, "?", ""},
		"one unreadable":         {driver.Reading{Loaded: loaded, Peermem: peers(module("nvidia_peermem", "", driver.StateUnknown), absent)}, "?", "?"},
		"versions unreadable":    {driver.Reading{Loaded: loaded, Peermem: peers(module("nvidia_peermem", "", driver.StateLive), absent)}, "?", "?"},
		"a version, not loaded?": {driver.Reading{Version: sysread.Some("580.1")}, "?", "?"},
	} {
		t.Run(name, func(t *testing.T) {
			s := fineScene()
			s.driver = test.reading
			sighting := s.snapshot().Sighting(PairChoice{})
			text := func(version sysread.Maybe[string]) string {
				if !version.Known {
					return "?"
				}
				return version.Value
			}
			if driver, peermem := text(sighting.Driver), text(sighting.Peermem); driver != test.driver || peermem != test.peermem {
				t.Errorf("driver %q, peermem %q", driver, peermem)
			}
		})
	}
	for name, change := range map[string]func(*Snapshot){"not asked for": notAsked(CollectorDriver), "hangs": func(s *Snapshot) { s.Driver.Units[0].Data = nil }} {
		s := fineScene()
		s.change = change
		if sighting := s.snapshot().Sighting(PairChoice{}); sighting.Driver.Known || sighting.Peermem.Known {
			t.Errorf("%s: %+v, %+v", name, sighting.Driver, sighting.Peermem)
		}
	}
}

// TestCover: each GPU and each device is in a pair, and none in more than it takes.
func TestCover(t *testing.T) {
	every := func(gpus, devices string) []prober.Pair {
		var pairs []prober.Pair
		for _, gpu := range gpus {
			for _, device := range devices {
				pairs = append(pairs, prober.Pair{GPU: string(gpu), Device: string(device)})
			}
		}
		return pairs
	}
	for want, pairs := range map[string][]prober.Pair{
		"":            nil,
		"Aa":          every("A", "a"),
		"Aa Bb":       every("AB", "ab"),
		"Aa Ba Ca Da": every("ABCD", "a"),
		"Aa Ab Ac Ad": every("A", "abcd"),
		"Aa Bb Ca Db": every("ABCD", "ab"),
		"Aa Bb Ac Bd": every("AB", "abcd"),
		"Aa Bb Cc Dd": append(every("AB", "ab"), every("CD", "cd")...),
		"Aa Bb Bc":    append(every("A", "a"), every("B", "abc")...),
		"Aa Bb Ac":    append(every("A", "abc"), every("B", "ab")...),
	} {
		var got []string
		for _, pair := range cover(pairs) {
			got = append(got, pair.GPU+pair.Device)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
}

// TestSightingOfHGX: the whole way from the files of a node, whose GPUs have two
// NICs each below their switch.
func TestSightingOfHGX(t *testing.T) {
	tree := rdmatest.HGX(rdmatest.HGXOptions{})
	host := drivertest.Host{Tree: tree}
	host.File("proc/sys/kernel/osrelease", drivertest.Release+"\n")
	host.Open(drivertest.Version)
	host.Peermem(drivertest.Version, 3)
	dir, err := rdmatest.MkdirTemp()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	sysfs := filepath.Join(dir, "sys")
	pci := affinity.NewReader(affinity.Options{Sysfs: sysfs, SlowInterval: time.Minute})
	listing, _, err := pci.List()
	if err != nil {
		t.Fatal(err)
	}
	machine := gputest.HGXH100()
	for i, pair := range slices.CompactFunc(slices.Clone(listing.Pairs), func(a, b affinity.Pair) bool { return a.GPU == b.GPU }) {
		machine.GPUs[i].BusID = "0000" + strings.ToUpper(pair.GPU)
	}
	taker := New(Options{Deadline: time.Minute}).RDMA(rdma.NewReader(rdma.Options{Sysfs: sysfs, Netlink: tree.Netlink().Dial, NetlinkWait: time.Minute}), nil).
		Affinity(pci).GPU(gpu.NewReader(gpu.Options{Open: machine.Open})).Driver(driver.NewReader(drivertest.Options(dir))).Taker()
	t.Cleanup(taker.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := taker.Take(ctx, func(string) bool { return true })
	sighting := s.Sighting(PairChoice{})
	first := "18 mlx5_0/1 PIX direct, 19 mlx5_1/1 PIX direct, 3a mlx5_2/1 PIX direct, 3b mlx5_3/1 PIX direct"
	if got := listed(sighting.Pairs); len(sighting.Pairs.Value) != 8 || !strings.HasPrefix(got, first) {
		t.Errorf("pairs %s", got)
	}
	if all := s.Sighting(PairChoice{All: true}).Pairs; len(all.Value) != 8*8 {
		t.Errorf("%d pairs of all", len(all.Value))
	}
	if len(sighting.Devices.Value) != 9 || len(sighting.Ports) != 9 || len(sighting.GPUs.Value) != 8 {
		t.Errorf("%d devices, %d ports, %d GPUs", len(sighting.Devices.Value), len(sighting.Ports), len(sighting.GPUs.Value))
	}
	if port := sighting.Ports[prober.Port{Device: "mlx5_0", Number: 1}]; port.State != sysread.Some(4) || port.NodeGUID == "" || port.Firmware == "" {
		t.Errorf("port %+v", port)
	}
	if g := sighting.GPUs.Value["0000:18:00.0"]; !g.Usable.Value || g.UUID == "" || !g.Free.Known || g.Processes != sysread.Some(0) || g.MIG != sysread.Some(false) || g.Persistence != sysread.Some(true) {
		t.Errorf("GPU %+v", g)
	}
	if sighting.Driver != sysread.Some(drivertest.Version) || sighting.Peermem != sysread.Some(drivertest.Version) {
		t.Errorf("driver %v, peermem %v", sighting.Driver, sighting.Peermem)
	}
}

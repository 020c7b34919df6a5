package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/process"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/nldev"
)

// libraryTime is when the snapshots of these tests are taken.
var libraryTime = time.Unix(1_800_000_000, 0)

const (
	libraryDriver   = "580.95.05"
	libraryKernel   = "6.8.0-90-generic"
	libraryFirmware = "28.43.2026"
)

func libraryGPU(i int) string    { return fmt.Sprintf("0000:%02x:00.0", 0x10+i) }
func libraryNIC(i int) string    { return fmt.Sprintf("0000:%02x:00.0", 0x40+i) }
func libraryDevice(i int) string { return fmt.Sprintf("mlx5_%d", i) }

// libraryNode is a healthy node: as many H100 as NICs, each with one of its own
// below the same switch, an open driver, nvidia-peermem on a kernel without
// memory_peers, and all of it measured.
func libraryNode(n int) *snapshot.Snapshot {
	reading := &driver.Reading{
		Kernel: sysread.Some(libraryKernel), Loaded: sysread.Some(true), Version: sysread.Some(libraryDriver), Flavor: driver.FlavorOpen,
		Peermem: []driver.PeerModule{
			{Module: driver.Module{Name: "nvidia_peermem", State: driver.StateLive, Present: true}, References: sysread.Some(uint64(0))},
			{Module: driver.Module{Name: "nv_peer_mem", State: driver.StateAbsent}},
		},
		DMABufs: sysread.Some([]driver.DMABuf{}), Markers: map[driver.Marker]sysread.Maybe[bool]{},
	}
	for _, marker := range driver.Markers {
		reading.Markers[marker] = sysread.Some(marker == driver.MarkerNvidiaPeermem)
	}
	nvml := &gpu.Reading{State: gpu.StateUp}
	listing := affinity.Listing{Roles: map[string]string{}}
	ledger := &loopback.Ledger{Version: 1, Transferred: map[string]uint64{}, GPUs: map[string]loopback.LedgerGPU{}}
	s := &snapshot.Snapshot{Taken: libraryTime, RDMA: &snapshot.RDMAPart{}, Prober: &prober.Status{Interval: time.Hour}}
	for i := range n {
		nvml.GPUs = append(nvml.GPUs, gpu.GPU{
			Address: libraryGPU(i), Identity: gpu.Identity{ComputeCapability: "9.0"}, PIDs: sysread.Some([]int{}),
			NVLink: gpu.NVLink{Count: sysread.Some(18), Active: sysread.Some(18)},
		})
		ledger.GPUs[libraryGPU(i)] = loopback.LedgerGPU{DriverVersion: libraryDriver, GPUDirectRDMA: true, DMABuf: true}
		listing.Roles[libraryDevice(i)] = "compute"
		listing.Functions = append(listing.Functions, affinity.Node{Address: libraryGPU(i), Kind: affinity.KindGPU}, affinity.Node{Address: libraryNIC(i), Kind: affinity.KindNIC})
		for j := range n {
			pair := affinity.Pair{GPU: libraryGPU(i), Device: libraryDevice(j), NIC: libraryNIC(j), Distance: affinity.SYS}
			if i == j {
				pair.Distance, pair.Nearest = affinity.PIX, true
			}
			listing.Pairs = append(listing.Pairs, pair)
		}
		s.RDMA.Units = append(s.RDMA.Units, snapshot.UnitPart[rdma.Device]{Name: libraryDevice(i), Data: &rdma.Device{
			Identity: rdma.Identity{Name: libraryDevice(i), PCIAddress: libraryNIC(i), Driver: "mlx5_core", Firmware: libraryFirmware, Function: rdma.FunctionPhysical},
			Ports:    []rdma.Port{{Number: 1, ReceiveBytes: sysread.Some(1e12), TransmitBytes: sysread.Some(1e12)}},
			Usage:    rdma.Usage{Contexts: sysread.Some(uint64(0)), Memory: sysread.Some(nldev.Memory{}), Owners: sysread.Some([]nldev.Owner{})},
		}})
		run := &prober.Completed{
			Depth: prober.DepthRegister, Time: libraryTime.Add(-time.Hour), Result: loopback.Result{NICDMABuf: sysread.Some(true)},
			Identity: prober.Identity{Firmware: libraryFirmware, Driver: libraryDriver, Kernel: libraryKernel},
		}
		s.Prober.Pairs = append(s.Prober.Pairs, prober.PairStatus{
			Candidate:    prober.Candidate{Pair: prober.Pair{GPU: libraryGPU(i), Device: libraryDevice(i), Port: 1}, Distance: "PIX", Direct: true},
			Registration: run, LastAttempt: run.Time,
		})
	}
	s.GPU = &snapshot.GPUPart{Units: []snapshot.UnitPart[gpu.Reading]{{Name: "nvml", Data: nvml}}}
	s.Driver = &snapshot.DriverPart{Units: []snapshot.UnitPart[driver.Reading]{{Name: "driver", Data: reading}}}
	s.Affinity = &snapshot.AffinityPart{Listing: listing}
	s.Probe = &snapshot.ProbePart{Units: []snapshot.UnitPart[loopback.Ledger]{{Name: "ledger", Data: ledger}}}
	return s
}

// libraryChange changes what a node of two pairs says of its first pair.
type libraryChange func(*snapshot.Snapshot)

func libraryMarkers(there ...driver.Marker) libraryChange {
	return func(s *snapshot.Snapshot) {
		for _, marker := range driver.Markers {
			s.DriverState().Markers[marker] = sysread.Some(slices.Contains(there, marker))
		}
	}
}

func libraryNoDMABuf(s *snapshot.Snapshot) {
	s.Prober.Pairs[0].Registration.Result.NICDMABuf = sysread.Some(false)
}

func libraryNoExport(s *snapshot.Snapshot) {
	for i := range s.Prober.Pairs {
		s.ProbeLedger().GPUs[libraryGPU(i)] = loopback.LedgerGPU{DriverVersion: libraryDriver, GPUDirectRDMA: true}
	}
}

func libraryAt(distance affinity.Distance) libraryChange {
	return func(s *snapshot.Snapshot) { s.Affinity.Listing.Pairs[0].Distance = distance }
}

func libraryFirstGPU(change func(*gpu.GPU)) libraryChange {
	return func(s *snapshot.Snapshot) { change(&s.NVML().GPUs[0]) }
}

func libraryFirstRun(change func(*prober.Completed)) libraryChange {
	return func(s *snapshot.Snapshot) { change(s.Prober.Pairs[0].Registration) }
}

func libraryUnder(text string) libraryChange {
	return func(s *snapshot.Snapshot) { s.DriverState().Version = sysread.Some(text) }
}

func libraryEnv(namesAndValues ...string) map[string]string {
	variables := map[string]string{}
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		variables[namesAndValues[i]] = namesAndValues[i+1]
	}
	return variables
}

// libraryAnswers are those of the first pair in the order of Generations: y, n, or
// ? for one that cannot be told; with all their reasons.
func libraryAnswers(s *snapshot.Snapshot, env map[string]string) (answers, reasons string) {
	choices, open := ChoicesOf(s, expectedPairs(s), env)
	var b, r strings.Builder
	for _, g := range Generations {
		answer := "-"
		for _, c := range choices {
			if c.GPU == libraryGPU(0) && c.Library == g.Library && c.Rule == g.Rule {
				answer = map[bool]string{true: "y", false: "n"}[c.Uses]
				fmt.Fprintf(&r, "%s %s: %s\n", c.Library, c.Rule, c.Reason)
			}
		}
		for _, c := range open {
			if c.GPU == libraryGPU(0) && c.Library == g.Library && c.Rule == g.Rule {
				answer = "?"
				fmt.Fprintf(&r, "%s %s: %s\n", c.Library, c.Rule, c.Missing)
			}
		}
		b.WriteString(answer)
	}
	return b.String(), r.String()
}

// TestChoices: the rows are NCCL 2.4, 2.13, 2.23, 2.27 and UCX.
func TestChoices(t *testing.T) {
	for name, test := range map[string]struct {
		changes []libraryChange
		env     map[string]string
		want    string
		reason  string // of at least one of them
	}{
		// NVIDIA/nccl#1676 with and without dma-buf.
		"module without memory_peers":             {nil, nil, "nyyyy", "by dma-buf"},
		"module without memory_peers, no dma-buf": {[]libraryChange{libraryNoDMABuf}, nil, "nnyyy", "module/nvidia_peermem/version"},
		"memory_peers, no dma-buf":                {[]libraryChange{libraryNoDMABuf, libraryMarkers(driver.MarkerNvMem, driver.MarkerNvidiaPeermem)}, nil, "yyyyy", "kernel/mm/memory_peers/nv_mem/version"},
		"legacy client only, no dma-buf":          {[]libraryChange{libraryNoDMABuf, libraryMarkers(driver.MarkerNvMemNC)}, nil, "yyyyn", "nv_mem_nc"},
		"old module only, no dma-buf":             {[]libraryChange{libraryNoDMABuf, libraryMarkers(driver.MarkerNvPeerMem)}, nil, "nnnny", "module/nv_peer_mem"},
		"dma-buf only":                            {[]libraryChange{libraryMarkers()}, nil, "nyyyy", "this NCCL has no dma-buf"},
		"neither":                                 {[]libraryChange{libraryMarkers(), libraryNoDMABuf}, nil, "nnnnn", "the NIC takes no dma-buf"},
		"the GPU exports none":                    {[]libraryChange{libraryMarkers(), libraryNoExport}, nil, "nnnnn", "the GPU exports no dma-buf"},
		"unreadable markers, no dma-buf":          {[]libraryChange{libraryNoDMABuf, func(s *snapshot.Snapshot) { s.DriverState().Markers = nil }}, nil, "?????", "could not be looked for"},
		"the first GPU's word counts for UCX": {[]libraryChange{libraryMarkers(), func(s *snapshot.Snapshot) {
			libraryNoExport(s)
			s.ProbeLedger().GPUs[libraryGPU(0)] = s.ProbeLedger().GPUs[libraryGPU(1)]
		}}, nil, "nnnnn", ""},
		"GPU cannot": {[]libraryChange{func(s *snapshot.Snapshot) {
			s.ProbeLedger().GPUs[libraryGPU(0)] = loopback.LedgerGPU{DriverVersion: libraryDriver, DMABuf: true}
		}}, nil, "nnnny", "attribute 116 is 0"},
		"never measured":               {[]libraryChange{libraryUnmeasured}, nil, "n???y", "before a measurement"},
		"never measured, no markers":   {[]libraryChange{libraryUnmeasured, libraryMarkers()}, nil, "n????", "before a measurement"},
		"attributes of another driver": {[]libraryChange{libraryUnder("590.44.01")}, nil, "n???y", "under this driver"},
		"attributes from a run, after a reboot": {[]libraryChange{libraryUnledgered, libraryFirstRun(func(c *prober.Completed) {
			c.Result.GPU = sysread.Some(loopback.GPUFacts{GPUDirectRDMA: true, DMABuf: true})
		})}, nil, "nyyyy", "by dma-buf"},
		"attributes from a run of another driver": {[]libraryChange{libraryUnledgered, libraryFirstRun(func(c *prober.Completed) {
			c.Identity.Driver, c.Result.GPU = "570.1", sysread.Some(loopback.GPUFacts{GPUDirectRDMA: true})
		})}, nil, "n???y", "under this driver"},
		"driver before CUDA 11.7": {[]libraryChange{libraryMarkers(), libraryOldDriver("510.108.03")}, nil, "nnnnn", "exports no dma-buf"},
		"driver before CUDA 11.3": {[]libraryChange{libraryOldDriver("460.106.00")}, nil, "nn??y", "NCCL tries a registration"},
		"other kernel":            {[]libraryChange{libraryMarkers(), libraryFirstRun(func(c *prober.Completed) { c.Identity.Kernel = "5.15.0" })}, nil, "n????", "whether the NIC takes dma-bufs"},
		"other firmware":          {[]libraryChange{libraryMarkers(), libraryFirstRun(func(c *prober.Completed) { c.Identity.Firmware = "1.2.3" })}, nil, "n????", "whether the NIC takes dma-bufs"},
		"odd answer of the NIC": {[]libraryChange{libraryMarkers(), libraryFirstRun(func(c *prober.Completed) {
			c.Result.NICDMABuf, c.Result.NICDMABufErr = sysread.Maybe[bool]{}, syscall.EINVAL
		})}, nil, "nyyyn", "the NIC takes no dma-buf"},
		"PXB":                             {[]libraryChange{libraryAt(affinity.PXB)}, nil, "nyyyy", ""},
		"PHB":                             {[]libraryChange{libraryAt(affinity.PHB)}, nil, "nnnny", "distance PHB is farther than P2C"},
		"NODE":                            {[]libraryChange{libraryAt(affinity.NODE)}, nil, "nnnny", "distance PHB is farther than PXB"},
		"SYS":                             {[]libraryChange{libraryAt(affinity.SYS)}, nil, "nnnnn", "UCX stages across NUMA nodes"},
		"hidden tree":                     {[]libraryChange{libraryAt(affinity.Unknown)}, nil, "n????", "does not show the way"},
		"Grace":                           {[]libraryChange{libraryAt(affinity.P2C)}, nil, "nnnyy", "distance PHB is farther than PXB"},
		"Grace, switched off":             {[]libraryChange{libraryAt(affinity.P2C)}, libraryEnv("NCCL_NET_GDR_C2C", "0"), "nnnny", ""},
		"Grace, switched on with 2.26":    {[]libraryChange{libraryAt(affinity.P2C)}, libraryEnv("NCCL_NET_GDR_C2C", "1"), "nn?yy", "exists from 2.26 on"},
		"data-direct NIC through the CPU": {[]libraryChange{libraryAt(affinity.PHB), func(s *snapshot.Snapshot) { s.Affinity.Listing.Functions[1].DataDirect = true }}, nil, "n???y", "data-direct function counts"},
		"data-direct NIC by a run":        {[]libraryChange{libraryAt(affinity.PHB), libraryFirstRun(func(c *prober.Completed) { c.Result.DataDirect = sysread.Some(true) })}, nil, "n???y", "data-direct function counts"},
		"T4 without NVLink":               {[]libraryChange{libraryFirstGPU(func(g *gpu.GPU) { g.ComputeCapability, g.NVLink = "7.5", gpu.NVLink{} })}, nil, "nnnny", "sends are staged, receives not: compute capability 7.5"},
		"V100 with NVLink":                {[]libraryChange{libraryFirstGPU(func(g *gpu.GPU) { g.ComputeCapability = "7.0" })}, nil, "nyyyy", ""},
		"V100 with NVLinks down":          {[]libraryChange{libraryFirstGPU(func(g *gpu.GPU) { g.ComputeCapability, g.NVLink.Active = "7.0", sysread.Some(0) })}, nil, "nnnny", ""},
		"V100 with NVLinks unknown":       {[]libraryChange{libraryFirstGPU(func(g *gpu.GPU) { g.ComputeCapability, g.NVLink.Active = "7.0", sysread.Maybe[int]{} })}, nil, "n???y", "NVLinks is not known"},
		"T4 alone":                        {[]libraryChange{libraryFirstGPU(func(g *gpu.GPU) { g.ComputeCapability, g.NVLink = "7.5", gpu.NVLink{} }), func(s *snapshot.Snapshot) { s.NVML().GPUs = s.NVML().GPUs[:1] }}, nil, "nyyyy", ""},
		"T4 alone, others hidden":         {[]libraryChange{libraryFirstGPU(func(g *gpu.GPU) { g.ComputeCapability, g.NVLink = "7.5", gpu.NVLink{} }), func(s *snapshot.Snapshot) { s.NVML().GPUs = s.NVML().GPUs[:1]; s.NVML().Hidden = 1 }}, nil, "nnnny", ""},
		"a later run of the NIC with another GPU": {[]libraryChange{libraryMarkers(), func(s *snapshot.Snapshot) {
			s.Prober.Pairs[1].Device = libraryDevice(0)
			s.Prober.Pairs[1].Registration.Result.NICDMABuf = sysread.Some(false)
			s.Prober.Pairs[1].Registration.Time = libraryTime.Add(-time.Minute)
		}}, nil, "nnnnn", "the NIC takes no dma-buf"},
		"an earlier run of the NIC with another GPU": {[]libraryChange{libraryMarkers(), func(s *snapshot.Snapshot) {
			s.Prober.Pairs[1].Device = libraryDevice(0)
			s.Prober.Pairs[1].Registration.Result.NICDMABuf = sysread.Some(false)
			s.Prober.Pairs[1].Registration.Time = libraryTime.Add(-2 * time.Hour)
		}}, nil, "nyyyy", ""},
		"T4 told to":                        {[]libraryChange{libraryFirstGPU(func(g *gpu.GPU) { g.ComputeCapability, g.NVLink = "7.5", gpu.NVLink{} })}, libraryEnv("NCCL_NET_GDR_READ", "1"), "nyyyy", ""},
		"A100 without NVLink, memory_peers": {[]libraryChange{libraryMarkers(driver.MarkerNvMem), libraryFirstGPU(func(g *gpu.GPU) { g.ComputeCapability, g.NVLink = "8.0", gpu.NVLink{} })}, nil, "?yyyy", "only later ones"},
		"NVML down":                         {[]libraryChange{func(s *snapshot.Snapshot) { s.NVML().State = gpu.StateFailed }}, nil, "n???y", "compute capability is not known"},
		"EFA":                               {[]libraryChange{func(s *snapshot.Snapshot) { s.RDMA.Units[0].Data.Driver = "efa" }}, nil, "????y", "aws-ofi-nccl"},
		"device stuck":                      {[]libraryChange{func(s *snapshot.Snapshot) { s.RDMA.Units[0].Data = nil }}, nil, "nyyyy", ""},
		"level LOC":                         {nil, libraryEnv("NCCL_NET_GDR_LEVEL", "LOC"), "nnnny", "NCCL_NET_GDR_LEVEL=LOC is LOC"},
		"level 0":                           {nil, libraryEnv("NCCL_NET_GDR_LEVEL", "0"), "nnnny", "GPUDirect RDMA is off"},
		"level PIX at PXB":                  {[]libraryChange{libraryAt(affinity.PXB)}, libraryEnv("NCCL_NET_GDR_LEVEL", "PIX"), "nnnny", "distance PXB is farther than PIX, NCCL_NET_GDR_LEVEL=PIX"},
		"level 1 at PIX":                    {nil, libraryEnv("NCCL_NET_GDR_LEVEL", "1"), "nyyyy", ""},
		"level SYS at SYS":                  {[]libraryChange{libraryAt(affinity.SYS)}, libraryEnv("NCCL_NET_GDR_LEVEL", "SYS"), "nyyyn", ""},
		"level 9 at SYS":                    {[]libraryChange{libraryAt(affinity.SYS)}, libraryEnv("NCCL_NET_GDR_LEVEL", "9"), "nyyyn", ""},
		"level 3 at NODE":                   {[]libraryChange{libraryAt(affinity.NODE)}, libraryEnv("NCCL_NET_GDR_LEVEL", "3"), "nyyyy", ""},
		"level SYS forces nothing":          {[]libraryChange{libraryMarkers(), libraryNoDMABuf}, libraryEnv("NCCL_NET_GDR_LEVEL", "SYS"), "nnnnn", ""},
		"level in small letters":            {nil, libraryEnv("NCCL_NET_GDR_LEVEL", "loc"), "nyyyy", ""},
		"level PHB on Grace":                {[]libraryChange{libraryAt(affinity.P2C)}, libraryEnv("NCCL_NET_GDR_LEVEL", "PHB"), "nyyyy", ""},
		"old name of the level":             {nil, libraryEnv("NCCL_IB_GDR_LEVEL", "0"), "nyyyy", ""},
		"no reads":                          {nil, libraryEnv("NCCL_NET_GDR_READ", "0"), "nnnny", "NCCL_NET_GDR_READ is 0"},
		"reads by default":                  {nil, libraryEnv("NCCL_NET_GDR_READ", "-2"), "nyyyy", ""},
		"dma-buf off, module":               {nil, libraryEnv("NCCL_DMABUF_ENABLE", "0"), "nnyyy", "NCCL_DMABUF_ENABLE is 0"},
		"dma-buf off, no module":            {[]libraryChange{libraryMarkers()}, libraryEnv("NCCL_DMABUF_ENABLE", "0"), "nnnny", ""},
		"no number":                         {nil, libraryEnv("NCCL_NET_GDR_READ", "yes"), "n???y", "what NCCL_NET_GDR_READ does"},
		"a list that is withheld":           {nil, libraryEnv("NCCL_IB_HCA", process.Withheld, "UCX_TLS", process.Withheld), "n????", "the value of UCX_TLS is not known"},
		"no InfiniBand":                     {nil, libraryEnv("NCCL_IB_DISABLE", "1"), "nnnny", "switches InfiniBand and RoCE off"},
		"InfiniBand, explicitly":            {nil, libraryEnv("NCCL_IB_DISABLE", "0"), "nyyyy", ""},
		"sockets":                           {nil, libraryEnv("NCCL_NET", "socket"), "nnnny", "chooses sockets"},
		"plugin":                            {nil, libraryEnv("NCCL_NET", "IBext_v10"), "n???y", "names a plugin"},
		"IB":                                {nil, libraryEnv("NCCL_NET", "IB"), "nyyyy", ""},
		"other NIC":                         {nil, libraryEnv("NCCL_IB_HCA", "mlx5_1,mlx5_2"), "nnnny", "leaves this device out"},
		"this NIC":                          {nil, libraryEnv("NCCL_IB_HCA", "=mlx5_0:1"), "nyyyy", ""},
		"variables without effect":          {nil, libraryEnv("NCCL_GPUDIRECT", "0", "NCCL_IB_CUDA_SUPPORT", "0"), "nyyyy", ""},
		"UCX off":                           {nil, libraryEnv("UCX_IB_GPU_DIRECT_RDMA", "No"), "nyyyn", "UCX_IB_GPU_DIRECT_RDMA is no"},
		"UCX on":                            {nil, libraryEnv("UCX_IB_GPU_DIRECT_RDMA", "yes"), "nyyyy", ""},
		"UCX without cuda_copy":             {nil, libraryEnv("UCX_TLS", "rc,sm,self"), "nyyyn", "leaves out cuda_copy"},
		"UCX without cuda, negated":         {nil, libraryEnv("UCX_TLS", "^cuda"), "nyyyn", ""},
		"UCX with cuda":                     {nil, libraryEnv("UCX_TLS", "rc,cuda"), "nyyyy", ""},
		"UCX without dma-buf":               {[]libraryChange{libraryMarkers()}, libraryEnv("UCX_CUDA_COPY_DMABUF", "n"), "nyyyn", "UCX_CUDA_COPY_DMABUF is no"},
		"UCX with its own distances":        {nil, libraryEnv("UCX_DISTANCE_BW", "sys:16000MBs"), "nyyy?", "UCX_DISTANCE_BW"},
	} {
		t.Run(name, func(t *testing.T) {
			s := libraryNode(2)
			for _, change := range test.changes {
				change(s)
			}
			answers, reasons := libraryAnswers(s, test.env)
			if answers != test.want {
				t.Errorf("answers %s, want %s\n%s", answers, test.want, reasons)
			}
			if !strings.Contains(reasons, test.reason) {
				t.Errorf("no reason says %q:\n%s", test.reason, reasons)
			}
		})
	}
}

func libraryUnledgered(s *snapshot.Snapshot) { clear(s.ProbeLedger().GPUs) }

func libraryUnmeasured(s *snapshot.Snapshot) {
	libraryUnledgered(s)
	for i := range s.Prober.Pairs {
		s.Prober.Pairs[i].Registration = nil
	}
}

func libraryOldDriver(text string) libraryChange {
	return func(s *snapshot.Snapshot) {
		libraryUnder(text)(s)
		for i := range s.Prober.Pairs {
			s.ProbeLedger().GPUs[libraryGPU(i)] = loopback.LedgerGPU{DriverVersion: text, GPUDirectRDMA: true}
		}
	}
}

// TestChoicesOnNothing: what was not read gives no choice, and nothing breaks.
func TestChoicesOnNothing(t *testing.T) {
	if choices := Choices(&snapshot.Snapshot{}); len(choices) != 0 {
		t.Errorf("choices %v", choices)
	}
	pairs := []prober.Pair{{GPU: "0000:1b:00.0", Device: "mlx5_0"}}
	choices, open := ChoicesOf(&snapshot.Snapshot{}, pairs, nil)
	if len(choices) != 0 || len(open) != len(Generations) {
		t.Errorf("choices %v, open %v", choices, open)
	}
	for _, o := range open {
		if o.Missing == "" {
			t.Errorf("%+v names nothing", o)
		}
	}
}

// TestChoicesArePairsOfTheProber: of eight pairs, those at a distance at which
// nobody expects GPUDirect RDMA are left out.
func TestChoicesArePairsOfTheProber(t *testing.T) {
	s := libraryNode(8)
	s.Prober.Pairs[3].Direct = false
	choices := Choices(s)
	if len(choices) != 7*len(Generations) {
		t.Errorf("%d choices", len(choices))
	}
	for _, c := range choices {
		if c.GPU == libraryGPU(3) || c.Reason == "" {
			t.Errorf("choice %+v", c)
		}
	}
	// Without a prober they are those that it would have.
	s = libraryNode(8)
	s.Prober = nil
	if pairs := expectedPairs(s); len(pairs) != 8 {
		t.Errorf("pairs without a prober: %v", pairs)
	}
}

func TestRuleOf(t *testing.T) {
	for version, want := range map[string]string{
		"2.4.0": "2.4", "2.12.12": "2.4", "2.13.4": "2.13", "2.22.3": "2.13", "2.23.3": "2.13", "2.23.4": "2.23", "2.23": "2.23", "2.26.2-1": "2.23",
		"2.27.3+cuda12.9": "2.27", "2.30.7": "2.27", "3.0": "2.27", "2.3.7": "", "2": "", "": "", "x.y": "", "2.-1": "",
	} {
		if got, ok := RuleOf(LibraryNCCL, version); got != want || ok != (want != "") {
			t.Errorf("rule of %q is %q, %v; want %q", version, got, ok, want)
		}
	}
	for text, want := range map[string]string{"nccl:2.21.5": "nccl 2.13", "ucx": "ucx current", "ucx:1.17": "ucx current", "nccl": "", "nccl:2.1": "", "mpi:4": "", "": ""} {
		library, rule, err := ParseLibrary(text)
		if got := strings.TrimSpace(library + " " + rule); got != want || (err == nil) != (want != "") {
			t.Errorf("library %q is %q, %v; want %q", text, got, err, want)
		}
	}
}

// TestGenerationsFitTheDriversRules: each names a rule that there is.
func TestGenerationsFitTheDriversRules(t *testing.T) {
	for _, g := range Generations {
		if !slices.ContainsFunc(driver.Rules, func(r driver.Rule) bool { return r.Library == g.detects }) {
			t.Errorf("%s %s detects by %q, which is no rule", g.Library, g.Rule, g.detects)
		}
		if g.Library == LibraryNCCL {
			if rule, ok := RuleOf(g.Library, g.Rule); !ok || rule != g.Rule {
				t.Errorf("the version %s has the rule %q", g.Rule, rule)
			}
		}
	}
}

func TestLeadingNumber(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, " 2": 2, "-2": -2, "0x10": 16, "010": 8, "1x": 1, "7 ": 7, "0b1": 0, "1_0": 1, "+3": 3, "12abc": 12, "08": 0,
	} {
		if got, ok := leadingNumber(text); !ok || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "yes", "true", "x", "-", "_1", strings.Repeat("f", 100)} {
		if got, ok := leadingNumber(text); ok || got != 0 {
			t.Errorf("%q is %d, %v", text, got, ok)
		}
	}
}

func TestHCAMatches(t *testing.T) {
	for _, test := range []struct {
		list string
		want bool
	}{
		{"mlx5_0", true}, {"mlx5", true}, {"=mlx5", false}, {"=mlx5_0", true}, {"mlx5_1", false}, {"^mlx5_0", false}, {"^mlx5", false}, {"^=mlx5", true},
		{"^mlx5_1", true}, {"mlx5_1,mlx5_0:1", true}, {"^mlx5_0:2", true}, {"mlx5_0:2", true}, {",,", false}, {"^", true},
	} {
		if got := hcaMatches(test.list, "mlx5_0"); got != test.want {
			t.Errorf("%q: %v", test.list, got)
		}
	}
}

func BenchmarkChoices8x8(b *testing.B) {
	s := libraryNode(8)
	b.ReportAllocs()
	for b.Loop() {
		if len(Choices(s)) != 40 {
			b.Fatal("not all")
		}
	}
}

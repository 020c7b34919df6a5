package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/host"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/nldev"
)

// liveScene is a node as time passes: what moves, who holds what.
type liveScene struct {
	t       *testing.T
	now     time.Time
	history *LiveHistory
	devices int
	// bytesPerSecond flows through each device, ownPerSecond of it by measurements.
	bytesPerSecond, ownPerSecond float64
	moved, own                   float64
	// change is made to each Snapshot.
	change func(*snapshot.Snapshot)
}

const livePID = 4711

func newLiveScene(t *testing.T, change func(*snapshot.Snapshot)) *liveScene {
	return &liveScene{t: t, now: libraryTime, history: &LiveHistory{}, devices: 2, moved: 1e15, bytesPerSecond: 20e9, change: change}
}

// take is the next Snapshot, a time after the last one.
func (l *liveScene) take(step time.Duration) *snapshot.Snapshot {
	l.now = l.now.Add(step)
	l.moved += l.bytesPerSecond * step.Seconds()
	l.own += l.ownPerSecond * step.Seconds()
	s := libraryNode(l.devices)
	s.Taken = l.now
	for i := range s.RDMA.Units {
		device := s.RDMA.Units[i].Data
		device.Ports[0].ReceiveBytes, device.Ports[0].TransmitBytes = sysread.Some(l.moved/2), sysread.Some(l.moved/2)
		s.ProbeLedger().Transferred[device.Name] = uint64(l.own)
	}
	s.Host = &snapshot.HostPart{Units: []snapshot.UnitPart[host.Reading]{{Name: "host", Data: &host.Reading{Context: host.Context{HostPID: sysread.Some(true)}}}}}
	if l.change != nil {
		l.change(s)
	}
	return s
}

// after is what is said of the first device after a while of looks a step apart.
func (l *liveScene) after(total, step time.Duration) LiveUse {
	l.t.Helper()
	var use LiveUse
	for passed := time.Duration(0); passed < total; passed += step {
		uses := LiveUses(l.take(step), l.history)
		if len(uses) == 0 {
			l.t.Fatal("nothing is said")
		}
		use = uses[0]
		if use.Live == "" || len(use.Reasons) == 0 || use.Reasons[0] == "" {
			l.t.Fatalf("%+v has no state or no reason", use)
		}
	}
	return use
}

// job gives the first device a process that uses a GPU, with memory registered.
func liveHolds(regions, bytes uint64) func(*snapshot.Snapshot) {
	return func(s *snapshot.Snapshot) {
		s.NVML().GPUs[0].PIDs = sysread.Some([]int{livePID})
		liveOwned(s, 0, nldev.Owner{PID: livePID, Contexts: 1, Regions: regions, Bytes: bytes})
	}
}

// owned gives a device an owner.
func liveOwned(s *snapshot.Snapshot, device int, owner nldev.Owner) {
	usage := &s.RDMA.Units[device].Data.Usage
	usage.Contexts = sysread.Some(usage.Contexts.Value + owner.Contexts)
	usage.Memory = sysread.Some(nldev.Memory{Regions: usage.Memory.Value.Regions + owner.Regions, Bytes: usage.Memory.Value.Bytes + owner.Bytes})
	usage.Owners = sysread.Some(append(usage.Owners.Value, owner))
}

func liveBoth(changes ...func(*snapshot.Snapshot)) func(*snapshot.Snapshot) {
	return func(s *snapshot.Snapshot) {
		for _, change := range changes {
			change(s)
		}
	}
}

func liveReferences(n uint64) func(*snapshot.Snapshot) {
	return func(s *snapshot.Snapshot) { s.DriverState().Peermem[0].References = sysread.Some(n) }
}

func liveClient(name string, live uint64) func(*snapshot.Snapshot) {
	return func(s *snapshot.Snapshot) {
		peers := &s.DriverState().MemoryPeers
		peers.Present = sysread.Some(true)
		peers.Clients = append(peers.Clients, driver.Client{Name: name, Counters: map[string]uint64{driver.FileAllocMRs: 1000 + live, driver.FileDeallocMRs: 1000}})
	}
}

func liveAttached(to ...string) func(*snapshot.Snapshot) {
	return func(s *snapshot.Snapshot) {
		s.DriverState().DMABufs = sysread.Some([]driver.DMABuf{{Bytes: 64 << 20, Attached: to}})
	}
}

func liveHostPID(known sysread.Maybe[bool]) func(*snapshot.Snapshot) {
	return func(s *snapshot.Snapshot) { s.HostState().Context.HostPID = known }
}

const liveGigabyte = 1 << 30

// TestLive: twenty minutes of the same, looked at every 15 seconds.
func TestLive(t *testing.T) {
	staging := liveHolds(12, liveGigabyte)
	for name, test := range map[string]struct {
		change func(*snapshot.Snapshot)
		flow   float64 // bytes per second; 0: 20 GB/s, negative: none
		want   Live
		reason string
	}{
		"a job that stages":                    {staging, 0, LiveSuspect, "process 4711, which uses a GPU, has 12 memory regions of 1.0 GiB registered and 20.0 GB/s move"},
		"peer memory by references":            {liveBoth(staging, liveReferences(12)), 0, LiveInUse, "12 memory regions are registered through peer memory on this host, and process 4711"},
		"peer memory by the client":            {liveBoth(staging, liveClient("nv_mem", 3)), 0, LiveInUse, "3 memory regions"},
		"peer memory by the legacy client":     {liveBoth(staging, liveClient("nv_mem", 0), liveClient("nv_mem_nc", 2)), 0, LiveInUse, "2 memory regions"},
		"dma-buf":                              {liveBoth(staging, liveAttached(libraryNIC(0))), 0, LiveInUse, "1 dma-bufs of GPU memory, 64 MiB, are attached to it"},
		"dma-buf, and nobody knows who":        {liveAttached("snd_hda", libraryNIC(0)), 0, LiveInUse, "attached to it"},
		"dma-buf, idle":                        {liveBoth(staging, liveAttached(libraryNIC(0))), -1, LiveInUse, "attached to it"},
		"dma-buf of a data-direct function":    {liveBoth(staging, liveAttached("0000:0a:00.1"), liveDataDirect), 0, LiveInUse, "attached to it"},
		"dma-buf of a sub-function":            {liveBoth(staging, liveAttached("mlx5_core.sf.4"), liveSubFunction), 0, LiveInUse, "attached to it"},
		"dma-buf of the PF is not the SF's":    {liveBoth(staging, liveAttached(libraryNIC(0)), liveSubFunction), 0, LiveCannotTell, "1 dma-bufs of GPU memory exist"},
		"GPUDirect Storage is no evidence":     {liveBoth(staging, liveClient("nv_mem", 0), liveClient("nvidia-fs", 7)), 0, LiveSuspect, "no memory region is registered"},
		"no driver module for peer memory":     {liveBoth(staging, liveNoPeermem), 0, LiveSuspect, "on the whole host"},
		"the client says none, the count 5":    {liveBoth(staging, liveClient("nv_mem", 0), liveReferences(5)), 0, LiveCannotTell, "has 5 references, though no memory region is counted"},
		"another process uses GDR by dma-buf":  {liveBoth(staging, liveAttached(libraryNIC(1))), 0, LiveCannotTell, "1 dma-bufs of GPU memory exist on this host: process 4711"},
		"an exported buffer, attached to none": {liveBoth(staging, liveAttached()), 0, LiveCannotTell, "exist on this host"},
		// Look-alikes, all of them silent.
		"kernel storage over RDMA": {func(s *snapshot.Snapshot) {
			liveOwned(s, 0, nldev.Owner{Regions: 900, Bytes: liveGigabyte})
			s.RDMA.Units[0].Data.Usage.Owners = sysread.Some([]nldev.Owner{})
		}, 0, LiveIdle, "no process that uses a GPU"},
		"kernel storage beside a job elsewhere": {liveBoth(liveHolds(0, 0), func(s *snapshot.Snapshot) {
			u := &s.RDMA.Units[0].Data.Usage
			*u = rdma.Usage{Contexts: sysread.Some(uint64(0)), Owners: sysread.Some([]nldev.Owner{}), Memory: sysread.Some(nldev.Memory{Regions: 9, Bytes: liveGigabyte})}
		}), 0, LiveIdle, "no process that uses a GPU"},
		"a process without a GPU": {func(s *snapshot.Snapshot) {
			liveOwned(s, 0, nldev.Owner{PID: 99, Contexts: 1, Regions: 4, Bytes: liveGigabyte})
		}, 0, LiveIdle, "no process that uses a GPU"},
		"nobody":                                {nil, -1, LiveIdle, "no process has it open"},
		"single-node NCCL, devices merely open": {liveHolds(0, 0), -1, LiveIdle, "has the device open and no memory registered that the kernel shows, and nothing moves"},
		"a job that pauses":                     {staging, -1, LiveIdle, "has 12 memory regions of 1.0 GiB registered, and nothing moves"},
		"keepalive traffic":                     {staging, 40e3, LiveIdle, "nothing moves"},
		"DEVX":                                  {liveHolds(0, 0), 0, LiveCannotTell, "memory registered through DEVX is not shown"},
		"DEVX beside a small region":            {liveHolds(1, 1<<20), 0, LiveCannotTell, "memory registered through DEVX is not shown"},
		"unified memory of Grace":               {liveBoth(staging, func(s *snapshot.Snapshot) { s.NVML().GPUs[0].C2CLinks = sysread.Some(uint64(10)) }), 0, LiveCannotTell, "NVLink-C2C"},
		"peer memory on Grace":                  {liveBoth(staging, liveReferences(3), func(s *snapshot.Snapshot) { s.NVML().GPUs[0].C2CLinks = sysread.Some(uint64(10)) }), 0, LiveInUse, "3 memory regions"},
		"staging by design":                     {liveBoth(staging, func(s *snapshot.Snapshot) { libraryAt(affinity.PHB)(s) }), 0, LiveCannotTell, "is by design"},
		"GPU process of another, with GDR in use": {liveBoth(staging, func(s *snapshot.Snapshot) {
			liveOwned(s, 1, nldev.Owner{PID: 99, Contexts: 1, Regions: 4, Bytes: liveGigabyte})
		}, liveAttached(libraryNIC(1))), 0, LiveCannotTell, "which may be host memory"},
		// Missing evidence.
		"no netlink":                {liveBoth(staging, func(s *snapshot.Snapshot) { s.RDMA.Units[0].Data.Usage = rdma.Usage{} }), 0, LiveCannotTell, "RDMA netlink"},
		"no netlink, nothing moves": {liveBoth(staging, func(s *snapshot.Snapshot) { s.RDMA.Units[0].Data.Usage = rdma.Usage{} }), -1, LiveCannotTell, "RDMA netlink"},
		"measured in the future, by a clock that was set back": {liveBoth(staging, liveAttached(libraryNIC(0)), func(s *snapshot.Snapshot) { s.Prober.Pairs[0].LastAttempt = s.Taken.Add(time.Hour) }), 0, LiveInUse, "attached"},
		"memory of the others not known":                       {liveBoth(liveHostPID(sysread.Some(false)), liveReferences(4), liveHolds(4, liveGigabyte), func(s *snapshot.Snapshot) { s.RDMA.Units[1].Data.Usage.Memory = sysread.Maybe[nldev.Memory]{} }), 0, LiveCannotTell, "host's PID namespace"},
		"no host pid namespace":                                {liveBoth(staging, liveHostPID(sysread.Some(false))), 0, LiveCannotTell, "host's PID namespace (hostPID)"},
		"by the process reader": {liveBoth(staging, liveHostPID(sysread.Maybe[bool]{}), func(s *snapshot.Snapshot) {
			s.Process = &snapshot.ProcessPart{Listing: process.Listing{Visible: sysread.Some(false)}}
		}), 0, LiveCannotTell, "host's PID namespace (hostPID)"},
		"unknown namespace, join": {liveBoth(staging, liveHostPID(sysread.Maybe[bool]{})), 0, LiveSuspect, "process 4711"},
		"unknown namespace, some not seen": {liveBoth(liveHostPID(sysread.Maybe[bool]{}), func(s *snapshot.Snapshot) {
			liveOwned(s, 0, nldev.Owner{PID: 99, Contexts: 1})
			s.RDMA.Units[0].Data.Usage.Contexts = sysread.Some(uint64(3))
		}), 0, LiveCannotTell, "not all processes that have the device open are seen"},
		"unknown namespace, all seen": {liveBoth(liveHostPID(sysread.Maybe[bool]{}), func(s *snapshot.Snapshot) { liveOwned(s, 0, nldev.Owner{PID: 99, Contexts: 1}) }), 0, LiveIdle, "no process that uses a GPU"},
		"too many processes": {func(s *snapshot.Snapshot) {
			liveOwned(s, 0, nldev.Owner{PID: 99, Contexts: 1})
			s.RDMA.Units[0].Data.Usage.Omitted.Contexts = 1
		}, 0, LiveCannotTell, "there are too many"},
		"NVML down": {liveBoth(staging, func(s *snapshot.Snapshot) { s.NVML().State = gpu.StateFailed }), 0, LiveCannotTell, "NVML does not answer"},
		"processes of a GPU not known": {func(s *snapshot.Snapshot) {
			liveOwned(s, 0, nldev.Owner{PID: 99, Contexts: 1})
			s.NVML().GPUs[1].PIDs = sysread.Maybe[[]int]{}
		}, 0, LiveCannotTell, "GPU " + libraryGPU(1)},
		"a lost GPU has no processes": {func(s *snapshot.Snapshot) {
			liveOwned(s, 0, nldev.Owner{PID: 99, Contexts: 1})
			s.NVML().GPUs[1].PIDs, s.NVML().GPUs[1].Lost = sysread.Maybe[[]int]{}, true
		}, 0, LiveIdle, ""},
		"hidden GPUs":                 {func(s *snapshot.Snapshot) { liveOwned(s, 0, nldev.Owner{PID: 99, Contexts: 1}); s.NVML().Hidden = 2 }, 0, LiveCannotTell, "2 more GPUs"},
		"no debugfs":                  {liveBoth(staging, func(s *snapshot.Snapshot) { s.DriverState().DMABufs = sysread.Maybe[[]driver.DMABuf]{} }), 0, LiveCannotTell, "needs root and debugfs"},
		"no debugfs, peer memory":     {liveBoth(staging, liveReferences(4), func(s *snapshot.Snapshot) { s.DriverState().DMABufs = sysread.Maybe[[]driver.DMABuf]{} }), 0, LiveInUse, "4 memory regions"},
		"no reference count":          {liveBoth(staging, func(s *snapshot.Snapshot) { s.DriverState().Peermem[0].References = sysread.Maybe[uint64]{} }), 0, LiveCannotTell, "the reference count of nvidia_peermem cannot be read"},
		"module state unknown":        {liveBoth(staging, func(s *snapshot.Snapshot) { s.DriverState().Peermem[1].State = driver.StateUnknown }), 0, LiveCannotTell, "whether nv_peer_mem is loaded"},
		"driver's files unread":       {liveBoth(staging, func(s *snapshot.Snapshot) { s.Driver = nil }), 0, LiveCannotTell, "the driver's files were not read"},
		"no bytes counted":            {liveBoth(staging, func(s *snapshot.Snapshot) { s.RDMA.Units[0].Data.Ports[0].ReceiveBytes = sysread.Maybe[float64]{} }), 0, LiveCannotTell, "no port counts its bytes"},
		"ledger unreadable":           {liveBoth(staging, func(s *snapshot.Snapshot) { s.ProbeLedger().Version = 0 }), 0, LiveCannotTell, "probe.json"},
		"no prober at all":            {liveBoth(staging, func(s *snapshot.Snapshot) { s.Probe, s.Prober = nil, nil }), 0, LiveSuspect, ""},
		"device does not answer":      {func(s *snapshot.Snapshot) { s.RDMA.Units[0].Data = nil }, 0, LiveCannotTell, "does not answer"},
		"the only device with memory": {liveBoth(liveHostPID(sysread.Some(false)), liveReferences(4), liveHolds(4, liveGigabyte), func(s *snapshot.Snapshot) { s.RDMA.Units[1].Data.Usage.Memory = sysread.Some(nldev.Memory{}) }), 0, LiveInUse, "no other device has any"},
		"one of two with memory":      {liveBoth(liveHostPID(sysread.Some(false)), liveReferences(4), liveHolds(4, liveGigabyte), func(s *snapshot.Snapshot) { liveOwned(s, 1, nldev.Owner{PID: 1, Contexts: 1, Regions: 1}) }), 0, LiveCannotTell, "host's PID namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLiveScene(t, test.change)
			if test.flow != 0 {
				l.bytesPerSecond = max(test.flow, 0)
			}
			use := l.after(20*time.Minute, 15*time.Second)
			if use.Live != test.want {
				t.Errorf("%s %q, want %s", use.Live, use.Reasons, test.want)
			}
			if reasons := strings.Join(use.Reasons, "\n"); !strings.Contains(reasons, test.reason) {
				t.Errorf("no reason says %q:\n%s", test.reason, reasons)
			}
		})
	}
}

func liveDataDirect(s *snapshot.Snapshot) {
	s.Affinity.Listing.DataDirect = []string{"0000:0a:00.1"}
	s.Affinity.Listing.Functions[1].DataDirect = true
}

func liveSubFunction(s *snapshot.Snapshot) { s.RDMA.Units[0].Data.Function = rdma.FunctionSub }

func liveNoPeermem(s *snapshot.Snapshot) {
	s.DriverState().Peermem[0] = driver.PeerModule{Module: driver.Module{Name: "nvidia_peermem", State: driver.StateAbsent}}
}

// TestLiveSuspectTakesTenMinutes: not before, and whatever the time between looks
// is up to ten minutes.
func TestLiveSuspectTakesTenMinutes(t *testing.T) {
	for _, step := range []time.Duration{time.Second, 15 * time.Second, time.Minute, 4 * time.Minute, 9 * time.Minute} {
		l := newLiveScene(t, liveHolds(12, liveGigabyte))
		began := l.now
		var first time.Duration
		for l.now.Sub(began) < 40*time.Minute && first == 0 {
			use := l.after(step, step)
			if use.Live == LiveSuspect {
				first = l.now.Sub(began)
			} else if use.Live != LiveCannotTell {
				t.Fatalf("step %v: %+v", step, use)
			}
		}
		// The first look has nothing to compare with, and a window has to pass.
		least := suspectAfter + step
		if first < least || first > suspectAfter+liveWindow+3*step {
			t.Errorf("step %v: suspect after %v", step, first)
		}
	}
}

// livePackets makes the devices soft-RoCE, which counts packets only: each is taken
// for the smallest, so that these are as many as their bytes.
func livePackets(s *snapshot.Snapshot) {
	for i := range s.RDMA.Units {
		device := s.RDMA.Units[i].Data
		device.Driver = driverSoftRoCE
		port := &device.Ports[0]
		port.Counters = []rdma.Counter{{Info: packets[0], Value: uint64(port.TransmitBytes.Value / leastPacket)}, {Info: packets[1], Value: uint64(port.ReceiveBytes.Value / leastPacket)}}
		port.ReceiveBytes, port.TransmitBytes = sysread.Maybe[float64]{}, sysread.Maybe[float64]{}
	}
}

// TestLiveLimits: both limits can be set, and packets count where nothing else does,
// of soft-RoCE alone.
func TestLiveLimits(t *testing.T) {
	const half = 5 * time.Minute
	job := liveHolds(12, liveGigabyte)
	for name, test := range map[string]struct {
		history LiveHistory
		change  func(*snapshot.Snapshot)
		rate    float64
		want    Live
	}{
		"half the time":           {LiveHistory{}, job, 20e9, LiveCannotTell},
		"half the time is enough": {LiveHistory{SuspectAfter: half / 2}, job, 20e9, LiveSuspect},
		"too little flow":         {LiveHistory{SuspectAfter: half / 2}, job, 5e6, LiveIdle},
		"flow enough":             {LiveHistory{SuspectAfter: half / 2, Flow: 1e6}, job, 5e6, LiveSuspect},
		"packets":                 {LiveHistory{SuspectAfter: half / 2}, liveBoth(job, livePackets), 20e9, LiveSuspect},
		"few packets":             {LiveHistory{SuspectAfter: half / 2}, liveBoth(job, livePackets), 5e6, LiveIdle},
		"packets of hardware": {LiveHistory{SuspectAfter: half / 2}, liveBoth(job, livePackets, func(s *snapshot.Snapshot) {
			s.RDMA.Units[0].Data.Driver = "usnic_verbs"
		}), 20e9, LiveCannotTell},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLiveScene(t, test.change)
			l.history, l.bytesPerSecond = &test.history, test.rate
			if use := l.after(half, 10*time.Second); use.Live != test.want {
				t.Errorf("%+v, want %s", use, test.want)
			}
		})
	}
}

// TestLiveGaps: after ten minutes without a look nothing is known of what was
// between, and looks that far apart never add up.
func TestLiveGaps(t *testing.T) {
	l := newLiveScene(t, liveHolds(12, liveGigabyte))
	if use := l.after(9*time.Minute, 15*time.Second); use.Live != LiveCannotTell || !strings.Contains(use.Reasons[0], "looks like a job that stages") {
		t.Fatalf("%+v", use)
	}
	if use := l.after(liveGap, liveGap); use.Live != LiveCannotTell || !strings.Contains(use.Reasons[0], "whether bytes flow is not known") {
		t.Errorf("after a gap: %+v", use)
	}
	if use := l.after(9*time.Minute, 15*time.Second); use.Live != LiveCannotTell {
		t.Errorf("nine minutes after a gap: %+v", use)
	}
	if use := l.after(2*time.Minute, 15*time.Second); use.Live != LiveSuspect {
		t.Errorf("eleven minutes after a gap: %+v", use)
	}
	l = newLiveScene(t, liveHolds(12, liveGigabyte))
	if use := l.after(3*time.Hour, 11*time.Minute); use.Live != LiveCannotTell {
		t.Errorf("looks eleven minutes apart: %+v", use)
	}
}

// TestLiveInterrupted: whatever breaks the ten minutes starts them anew.
func TestLiveInterrupted(t *testing.T) {
	for name, interrupt := range map[string]func(*liveScene){
		"a pause": func(l *liveScene) {
			rate := l.bytesPerSecond
			l.bytesPerSecond = 0
			l.after(time.Minute, 15*time.Second)
			l.bytesPerSecond = rate
		},
		"counters set back":     func(l *liveScene) { l.moved = 0 },
		"the ledger set back":   func(l *liveScene) { l.own = 1e9; l.after(30*time.Second, 15*time.Second); l.own = 0 },
		"the clock set back":    func(l *liveScene) { l.now = l.now.Add(-time.Hour) },
		"the clock set forward": func(l *liveScene) { l.now = l.now.Add(time.Hour) },
		"GDR in use meanwhile": func(l *liveScene) {
			before := l.change
			l.change = liveBoth(before, liveReferences(1))
			l.after(15*time.Second, 15*time.Second)
			l.change = before
		},
		"the device gone": func(l *liveScene) {
			before := l.change
			l.change = func(s *snapshot.Snapshot) { s.RDMA.Units = s.RDMA.Units[1:] }
			LiveUses(l.take(15*time.Second), l.history)
			l.change = before
		},
		"the device does not answer": func(l *liveScene) {
			before := l.change
			l.change = func(s *snapshot.Snapshot) { s.RDMA.Units[0].Data = nil }
			l.after(15*time.Second, 15*time.Second)
			l.change = before
		},
		"another port counts as well": func(l *liveScene) {
			before := l.change
			l.change = liveBoth(before, func(s *snapshot.Snapshot) { p := &s.RDMA.Units[0].Data.Ports; *p = append(*p, (*p)[0]) })
		},
		"the job gone": func(l *liveScene) {
			before := l.change
			l.change = nil
			l.after(15*time.Second, 15*time.Second)
			l.change = before
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLiveScene(t, liveHolds(12, liveGigabyte))
			if use := l.after(9*time.Minute, 15*time.Second); use.Live != LiveCannotTell {
				t.Fatalf("%+v", use)
			}
			interrupt(l)
			if use := l.after(9*time.Minute, 15*time.Second); use.Live != LiveCannotTell {
				t.Errorf("nine minutes after: %+v", use)
			}
			if use := l.after(3*time.Minute, 15*time.Second); use.Live != LiveSuspect {
				t.Errorf("twelve minutes after: %+v", use)
			}
		})
	}
}

// TestLiveSetBackIsNotIdle: a counter that was set back says nothing, not that
// nothing moves.
func TestLiveSetBackIsNotIdle(t *testing.T) {
	for name, back := range map[string]func(*liveScene){
		"bytes":  func(l *liveScene) { l.moved = 0 },
		"ledger": func(l *liveScene) { l.own = 0 },
		"clock":  func(l *liveScene) { l.now = l.now.Add(-time.Hour) },
	} {
		l := newLiveScene(t, liveHolds(12, liveGigabyte))
		l.own = 1e15 // far more than moves in a window
		l.after(5*time.Minute, 15*time.Second)
		back(l)
		for range 8 {
			if use := l.after(15*time.Second, 15*time.Second); use.Live != LiveCannotTell {
				t.Errorf("%s: %+v", name, use)
			}
		}
		if use := l.after(15*time.Second, 15*time.Second); strings.Contains(use.Reasons[0], "is not known before") {
			t.Errorf("%s: two minutes later it still says %+v", name, use)
		}
	}
}

// TestLiveStepsOfTraining: traffic in bursts shorter than a window flows all the same.
func TestLiveStepsOfTraining(t *testing.T) {
	l := newLiveScene(t, liveHolds(12, liveGigabyte))
	var use LiveUse
	for i := range 15 * 60 / 2 {
		l.bytesPerSecond = 0
		if i%5 == 0 {
			l.bytesPerSecond = 20e9
		}
		use = l.after(2*time.Second, 2*time.Second)
	}
	if use.Live != LiveSuspect {
		t.Errorf("%+v", use)
	}
}

// TestLiveOwnMeasurement: what the exporter moves and registers itself is no job's.
func TestLiveOwnMeasurement(t *testing.T) {
	l := newLiveScene(t, liveHolds(12, liveGigabyte))
	l.bytesPerSecond, l.ownPerSecond = 20e9, 10e9 // each byte leaves the NIC and comes in
	if use := l.after(20*time.Minute, 15*time.Second); use.Live != LiveIdle {
		t.Errorf("only measurements move: %+v", use)
	}

	// While it measures it has memory registered itself.
	pair := prober.Pair{GPU: libraryGPU(0), Device: libraryDevice(0), Port: 1}
	running := func(s *snapshot.Snapshot) {
		s.Prober.Running, s.Prober.Pairs[0].LastAttempt = &pair, s.Taken
		liveHolds(4, liveGigabyte)(s)
		liveAttached(libraryNIC(0))(s)
		liveReferences(4)(s)
	}
	l = newLiveScene(t, running)
	if use := l.after(15*time.Second, 15*time.Second); use.Live != LiveCannotTell || !strings.Contains(use.Reasons[0], "the exporter is measuring") {
		t.Errorf("first of all: %+v", use)
	}
	l = newLiveScene(t, nil)
	l.bytesPerSecond = 0
	if use := l.after(2*time.Minute, 15*time.Second); use.Live != LiveIdle {
		t.Fatalf("before: %+v", use)
	}
	l.change = running
	if use := l.after(time.Minute, 15*time.Second); use.Live != LiveIdle {
		t.Errorf("while it measures: %+v", use)
	}
	measured := l.now
	l.change = func(s *snapshot.Snapshot) { s.Prober.Pairs[0].LastAttempt = measured; liveAttached(libraryNIC(0))(s) }
	if use := l.after(time.Minute, 15*time.Second); use.Live != LiveIdle {
		t.Errorf("a moment after: %+v", use)
	}
	if use := l.after(time.Minute, 15*time.Second); use.Live != LiveInUse {
		t.Errorf("two minutes after: %+v", use)
	}
	// A measurement that goes on and on keeps nobody from judging.
	l.change = running
	l.change = liveBoth(running, liveAttached(), liveReferences(0))
	if use := l.after(6*time.Minute, 15*time.Second); use.Live == LiveInUse {
		t.Errorf("held for ever: %+v", use)
	}
}

// TestLiveMeasurementDoesNotBreakTheTenMinutes: the hourly registration run of a
// busy pair.
func TestLiveMeasurementDoesNotBreakTheTenMinutes(t *testing.T) {
	staging := liveHolds(12, liveGigabyte)
	l := newLiveScene(t, staging)
	l.after(8*time.Minute, 15*time.Second)
	pair := prober.Pair{GPU: libraryGPU(0), Device: libraryDevice(0), Port: 1}
	at := l.now
	l.change = liveBoth(staging, liveAttached(libraryNIC(0)), func(s *snapshot.Snapshot) { s.Prober.Running, s.Prober.Pairs[0].LastAttempt = &pair, at })
	l.after(15*time.Second, 15*time.Second)
	l.change = liveBoth(staging, func(s *snapshot.Snapshot) { s.Prober.Pairs[0].LastAttempt = at })
	if use := l.after(4*time.Minute, 15*time.Second); use.Live != LiveSuspect {
		t.Errorf("%+v", use)
	}
}

// TestLiveSameSnapshot: the same Snapshot again says the same and moves nothing.
func TestLiveSameSnapshot(t *testing.T) {
	l := newLiveScene(t, liveHolds(12, liveGigabyte))
	l.after(5*time.Minute, 15*time.Second)
	s := l.take(15 * time.Second)
	first := LiveUses(s, l.history)
	for range 100 {
		if again := LiveUses(s, l.history); fmt.Sprint(again) != fmt.Sprint(first) {
			t.Fatalf("%+v, then %+v", first, again)
		}
	}
}

// TestLiveDevices: of each compute device, once, in order; not of planes, other
// roles, or where nothing was read. What is remembered is bounded.
func TestLiveDevices(t *testing.T) {
	if uses := LiveUses(&snapshot.Snapshot{}, nil); uses != nil {
		t.Errorf("%v", uses)
	}
	l := newLiveScene(t, func(s *snapshot.Snapshot) {
		s.Affinity.Listing.Roles[libraryDevice(1)] = "storage"
		s.RDMA.Units[2].Data.Parent = libraryDevice(0)
	})
	l.devices = 8
	var names []string
	for _, use := range LiveUses(l.take(time.Second), l.history) {
		names = append(names, use.Device)
	}
	if want := []string{"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"}; !slices.Equal(names, want) {
		t.Errorf("devices %v", names)
	}
	l.change, l.devices = func(s *snapshot.Snapshot) { s.Affinity.Listing.Roles[libraryDevice(1)] = "storage" }, 2
	LiveUses(l.take(time.Second), l.history)
	if n := len(l.history.devices); n != 1 {
		t.Errorf("%d devices are remembered", n)
	}
	l.change, l.devices = nil, 3*mostLiveDevices/2
	s := l.take(time.Second)
	s.Affinity.Listing.Pairs = nil
	if n := len(LiveUses(s, l.history)); n != l.devices || len(l.history.devices) != mostLiveDevices {
		t.Errorf("%d devices, %d remembered", n, len(l.history.devices))
	}
	if uses := LiveUses(libraryNode(1), nil); len(uses) != 1 || uses[0].Live != LiveIdle {
		t.Errorf("without a history: %+v", uses)
	}
}

func BenchmarkLiveUses8x8(b *testing.B) {
	history := &LiveHistory{}
	s := libraryNode(8)
	for i := range 8 {
		s.NVML().GPUs[i].PIDs = sysread.Some([]int{livePID + i})
		liveOwned(s, i, nldev.Owner{PID: livePID + i, Contexts: 1, Regions: 100, Bytes: 8 << 30})
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Taken = s.Taken.Add(15 * time.Second)
		for i := range s.RDMA.Units {
			port := &s.RDMA.Units[i].Data.Ports[0]
			port.ReceiveBytes.Value += 1e11
		}
		if len(LiveUses(s, history)) != 8 {
			b.Fatal("not all")
		}
	}
}

package diagnosis

import (
	"errors"
	"math"
	"time"

	"gdr_exporter/collector/host"
	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
)

// gpuRows are about GPUs, NVLink and the driver.
var gpuRows = []row{
	{name: "one GPU without NVLinks", of: "case 69, 70",
		steps: one(func(s *scene) { s.gpu().NVLink.Active = sysread.Some(0) }),
		finds: []string{idNVLinks}},
	{name: "all GPUs with fewer NVLinks by design", of: "case 79, 80",
		steps:  one(func(s *scene) { s.allGPUs(func(g *gpu.GPU) { g.NVLink.Active = sysread.Some(12) }) }),
		clears: []string{idNVLinks}},
	{name: "GPUs partly wired", of: "case 79",
		steps: one(func(s *scene) {
			for i := range s.NVML().GPUs {
				s.NVML().GPUs[i].NVLink.Active = sysread.Some(4 + i%2)
			}
		}),
		clears: []string{idNVLinks}},
	{name: "fewer NVLinks than the profile expects", of: "case 79",
		steps: one(func(s *scene) {
			s.allGPUs(func(g *gpu.GPU) { g.NVLink.Active = sysread.Some(12) })
			s.expect(profile.Expectation{NVLinks: sysread.Some(18)})
		}),
		finds: []string{idNVLinks}},
	{name: "fabric not started", of: "case 75",
		steps: one(func(s *scene) { s.fabric(1) }, func(s *scene) { s.later(11 * time.Minute) }),
		finds: []string{idFabricIdle}},
	{name: "fabric in progress", of: "case 73",
		steps: one(func(s *scene) { s.fabric(2) }, func(s *scene) { s.later(11 * time.Minute) }),
		finds: []string{idFabricPending}},
	{name: "fabric in progress after a start", of: "case 73",
		steps:  one(func(s *scene) { s.fabric(1) }, func(s *scene) { s.later(5 * time.Minute); s.fabric(2) }, func(s *scene) { s.later(6 * time.Minute) }),
		clears: []string{idFabricIdle, idFabricPending}},
	{name: "no fabric", of: "case 76, 77",
		steps:  one(func(s *scene) { s.fabric(0) }, func(s *scene) { s.later(time.Hour) }),
		clears: []string{idFabricIdle, idFabricPending, idFabricFailed, idFabricHealth, idP2PLost}},
	{name: "fabric completed with a bad status", of: "case 74",
		steps: one(func(s *scene) { s.gpu().Fabric = gpu.Fabric{State: sysread.Some(3), Status: sysread.Some(2)} }),
		finds: []string{idFabricFailed}},
	{name: "one GPU without a cluster", of: "case 74",
		steps: one(func(s *scene) {
			s.allGPUs(func(g *gpu.GPU) {
				g.Fabric = gpu.Fabric{State: sysread.Some(3), Status: sysread.Some(0), ClusterUUID: "8a3d2c4e-0b51-4c8e-9f4b-0f0f0f0f0f0f"}
			})
			s.gpu().Fabric.ClusterUUID = "00000000-0000-0000-0000-000000000000"
		}),
		finds: []string{idFabricFailed}},
	{name: "no GPU with a cluster", of: "case 74",
		steps: one(func(s *scene) {
			s.allGPUs(func(g *gpu.GPU) {
				g.Fabric = gpu.Fabric{State: sysread.Some(3), Status: sysread.Some(0), ClusterUUID: "00000000-0000-0000-0000-000000000000"}
			})
		}),
		clears: []string{idFabricFailed}},
	{name: "fabric with an unhealthy route", of: "case 74",
		steps: one(func(s *scene) { s.gpu().Fabric.Health.RouteUnhealthy = sysread.Some(true) }),
		finds: []string{idFabricHealth}},
	{name: "peer access lost", of: "case 78",
		steps: one(func(s *scene) {
			s.fabric(3)
			for i := range s.NVML().Pairs {
				s.NVML().Pairs[i].P2P[gpu.P2PRead] = sysread.Some(3)
			}
		}),
		finds: []string{idP2PLost}},
	{name: "GPUs without a common way", of: "case 79",
		steps: one(func(s *scene) {
			s.fabric(0)
			for i := range s.NVML().Pairs {
				s.NVML().Pairs[i].P2P[gpu.P2PRead] = sysread.Some(1)
			}
		}),
		clears: []string{idP2PLost}},
	{name: "GPU lost", of: "case 86, 89",
		steps: one(func(s *scene) { s.gpuAt(s.last()).Lost = true }),
		finds: []string{idGPULost}},
	{name: "GPU off the bus", of: "case 86, 87",
		steps: one(func(s *scene) { s.fall(s.last()) }),
		finds: []string{idGPULost}},
	{name: "GPU given to a virtual machine", of: "case 95",
		steps: one(func(s *scene) {
			address := s.last()
			s.fall(address)
			s.Affinity.Listing.Gone = nil
			s.Affinity.Listing.Functions = append(s.Affinity.Listing.Functions, affinity.Node{Address: address, Kind: affinity.KindGPU, Driver: "vfio-pci"})
		}),
		clears: []string{idGPULost}},
	{name: "GPU has to be reset", of: "case 86",
		steps: one(func(s *scene) { s.gpu().RecoveryAction = sysread.Some[uint64](1) }),
		finds: []string{idGPUReset}},
	{name: "GPU says that no action is needed", of: "case 86",
		steps:  one(func(s *scene) { s.gpu().RecoveryAction = sysread.Some[uint64](0) }),
		clears: []string{idGPUReset}},
	{name: "fewer GPUs than expected", of: "case 87",
		steps: one(func(s *scene) { s.expect(profile.Expectation{GPUs: sysread.Some(9)}) }),
		finds: []string{idGPUMissing}},
	{name: "as many GPUs as expected, or more", of: "case 87",
		steps:  one(func(s *scene) { s.expect(profile.Expectation{GPUs: sysread.Some(7)}) }),
		clears: []string{idGPUMissing}},
	{name: "Xid of NVLink", of: "case 88",
		steps: one(func(s *scene) { s.gpu().Xids = []gpu.Xid{{Code: 145, Count: 1, Last: s.Taken}} }),
		finds: []string{idXid}},
	{name: "Xid of a program", of: "case 88",
		steps: one(func(s *scene) {
			s.gpu().Xids = []gpu.Xid{{Code: 31, Count: 1, Last: s.Taken}, {Code: 43, Count: 4, Last: s.Taken}}
		}),
		clears: []string{idXid, idXidAll}},
	{name: "same Xid everywhere", of: "case 72",
		steps: one(func(s *scene) {
			s.allGPUs(func(g *gpu.GPU) { g.Xids = []gpu.Xid{{Code: 145, Count: 1, Last: s.Taken}} })
		}),
		finds: []string{idXid, idXidAll}},
	{name: "driver upgraded below its libraries", of: "case 91",
		steps: one(func(s *scene) { s.driver().Library.Value.Version = "590.44.01" }),
		finds: []string{idDriverMismatch}},
	{name: "library version not known", of: "case 91",
		steps:  one(func(s *scene) { s.driver().Library.Known = false }),
		clears: []string{idDriverMismatch}},
	{name: "NVML failed", of: "case 91",
		steps: one(func(s *scene) { s.nvml(gpu.StateFailed) }, func(s *scene) { s.later(2 * time.Minute) }),
		finds: []string{idNVMLFailed}, unjudged: []string{idNVLinks}},
	{name: "no NVIDIA driver", of: "case 95",
		steps: one(func(s *scene) {
			s.nvml(gpu.StateNoDriver)
			s.driver().Loaded = sysread.Some(false)
			s.Prober.Pairs = nil
			for i := range s.Affinity.Listing.Functions {
				if f := &s.Affinity.Listing.Functions[i]; f.Kind == affinity.KindGPU {
					f.Driver = ""
				}
			}
		}, func(s *scene) { s.later(2 * time.Minute) }),
		clears: []string{idNVMLFailed, idDriverUnloaded, idStaged, idUnverified}},
	{name: "driver not loaded, and never was", of: "DESIGN",
		steps: one(func(s *scene) { s.fresh(); s.nothing(""); s.driver().Loaded = sysread.Some(false) }),
		state: StateUnknown, evidence: EvidenceNone, finds: []string{idUnverified}, clears: []string{idDriverUnloaded}},
	{name: "NVML hangs", of: "case 90",
		steps: one(func(s *scene) { s.GPU.Units[0].Data, s.GPU.Units[0].StuckFor = nil, time.Minute }),
		finds: []string{idNVMLStuck}, unjudged: []string{idNVLinks}},
	{name: "NVML is slow", of: "case 90",
		steps:  one(func(s *scene) { s.GPU.Units[0].Data, s.GPU.Units[0].StuckFor = nil, time.Second }),
		clears: []string{idNVMLStuck}},
	{name: "near pairs are fewer than expected", of: "issue 8",
		steps: one(func(s *scene) { s.hostPart(); s.expect(profile.Expectation{DirectPairs: sysread.Some(40)}) }),
		finds: []string{idOffNear}},
	{name: "near pairs are as many as expected", of: "issue 8",
		steps:  one(func(s *scene) { s.hostPart(); s.expect(profile.Expectation{DirectPairs: sysread.Some(8)}) }),
		clears: []string{idOffNear}},
	{name: "quiesced", of: "issue 10",
		steps: one(func(s *scene) { s.Prober.QuiescedUntil = s.Taken.Add(time.Hour) }),
		finds: []string{idQuiesced}},
}

// allGPUs changes all GPUs.
func (s *scene) allGPUs(f func(g *gpu.GPU)) {
	gpus := s.NVML().GPUs
	for i := range gpus {
		f(&gpus[i])
	}
}

// fabric sets the fabric's state on all GPUs.
func (s *scene) fabric(state int) {
	s.allGPUs(func(g *gpu.GPU) { g.Fabric = gpu.Fabric{State: sysread.Some(state)} })
}

// nvml makes NVML one that does not work.
func (s *scene) nvml(state gpu.State) {
	s.GPU.Units[0].Data = &gpu.Reading{State: state, Err: errors.New("Unknown Error")}
}

// last is the address of the last GPU.
func (s *scene) last() string {
	gpus := s.NVML().GPUs
	return gpus[len(gpus)-1].Address
}

// fall takes a GPU off the PCI bus, and away from NVML and the driver.
func (s *scene) fall(address string) {
	listing := &s.Affinity.Listing
	listing.Gone = []string{address}
	for i := range listing.Functions {
		if listing.Functions[i].Address == address {
			listing.Functions = append(listing.Functions[:i:i], listing.Functions[i+1:]...)
			break
		}
	}
	nvml := s.NVML()
	nvml.GPUs = nvml.GPUs[:len(nvml.GPUs)-1]
	for i, unit := range s.Affinity.Units {
		if unit.Name == address {
			s.Affinity.Units = append(s.Affinity.Units[:i:i], s.Affinity.Units[i+1:]...)
			break
		}
	}
}

// hostPart gives the scene a host that is wired as it should be.
func (s *scene) hostPart() *host.Reading {
	reading := &host.Reading{
		NodesKnown: true,
		Nodes:      []host.Node{{Name: "rdma_cm", Present: true, Usable: sysread.Some(true)}, {Name: "uverbs0", Device: s.device().Name, Present: true, Usable: sysread.Some(true)}},
		Daemons:    sysread.Some([]host.Daemon{{Name: "containerd", PID: 812, Soft: sysread.Some[uint64](math.MaxUint64)}}),
		Interfaces: sysread.Some([]host.Interface{{Name: "ib0", Type: host.TypeInfiniBand, Up: sysread.Some(true), IPv4: 1}}),
		Context:    host.Context{Container: sysread.Some(false), SharedRDMA: sysread.Some(true), HostNetwork: sysread.Some(true)},
	}
	s.Host = &snapshot.HostPart{Units: []snapshot.UnitPart[host.Reading]{{Name: "host", Data: reading}}}
	return reading
}

// job gives the scene one job with variables.
func (s *scene) job(memlock uint64, variables map[string]string) *process.Job {
	job := &process.Job{
		PID: 4711, GPUs: []string{s.pair().GPU}, Devices: []string{s.pair().Device},
		Variables: sysread.Some(variables), Memlock: sysread.Some(memlock),
	}
	s.Process = &snapshot.ProcessPart{
		Listing: process.Listing{Visible: sysread.Some(true), Joined: true, Users: []process.User{{PID: job.PID, GPUs: job.GPUs, Devices: job.Devices}}},
		Units:   []snapshot.UnitPart[process.Job]{{Name: "4711", Data: job}},
	}
	return job
}

// logRow is a row of a line in the kernel's log.
func logRow(id string, pattern kmsg.Pattern, text string) row {
	return row{name: "log: " + string(pattern), of: "issue 8", steps: one(func(s *scene) { event(s, pattern, text) }), finds: []string{id}}
}

// hostRows are about the host, its log and its processes.
var hostRows = []row{
	{name: "host wired well", of: "seed",
		steps:  one(func(s *scene) { s.hostPart() }),
		clears: []string{idNodeMissing, idNodeHidden, idIPoIB, idDaemonMemlock}},
	{name: "uverbs node missing", of: "seed: container without IB devices",
		steps: one(func(s *scene) {
			h := s.hostPart()
			h.Nodes[1].Present, h.Nodes[1].Usable = false, sysread.Maybe[bool]{}
		}),
		finds: []string{idNodeMissing}},
	{name: "uverbs node may not be opened", of: "nccl#2428",
		steps: one(func(s *scene) { s.hostPart().Nodes[1].Usable = sysread.Some(false) }),
		finds: []string{idNodeMissing}},
	{name: "exporter's container has no nodes", of: "seed",
		steps: one(func(s *scene) {
			h := s.hostPart()
			h.Context.Container, h.Nodes[1].Present, h.Nodes[1].Usable = sysread.Some(true), false, sysread.Maybe[bool]{}
		}),
		finds: []string{idNodeHidden}, clears: []string{idNodeMissing}},
	{name: "IPoIB without address", of: "seed: Network is unreachable",
		steps: one(func(s *scene) { s.hostPart().Interfaces.Value[0].IPv4 = 0 }),
		finds: []string{idIPoIB}},
	{name: "IPoIB that is down", of: "seed",
		steps:  one(func(s *scene) { at := &s.hostPart().Interfaces.Value[0]; at.IPv4, at.Up = 0, sysread.Some(false) }),
		clears: []string{idIPoIB}},
	{name: "container runtime with 64 KiB of locked memory", of: "seed: --ulimit memlock=-1",
		steps: one(func(s *scene) { s.hostPart().Daemons.Value[0].Soft = sysread.Some[uint64](64 << 10) }),
		finds: []string{idDaemonMemlock}},
	{name: "kubelet's own limit", of: "seed",
		steps: one(func(s *scene) {
			d := &s.hostPart().Daemons.Value[0]
			d.Name, d.Soft = "kubelet", sysread.Some[uint64](8<<20)
		}),
		clears: []string{idDaemonMemlock}},
	{name: "host not read", of: "DESIGN", steps: one(func(*scene) {}), unjudged: []string{idNodeMissing, idIPoIB, idDaemonMemlock}},
	{name: "kernel's log may not be read", of: "DESIGN",
		steps:    one(func(s *scene) { s.log().Err = errors.New("EPERM") }),
		unjudged: []string{idPeermemABI, idNICHealth, idIOMMUFault}},
	logRow(idNICHealth, kmsg.MLX5Health, "mlx5_core 0000:1a:00.0: device's health compromised - reached miss count"),
	logRow(idIOMMUFault, kmsg.IOMMUFault, "DMAR: [DMA Read NO_PASID] Request device [1a:00.0] fault addr 0x1000"),
	logRow(idOffBus, kmsg.GPUOffBus, "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus"),
	logRow(idXidLog, kmsg.XidNVLink, "NVRM: Xid (PCI:0000:18:00): 145"),
	logRow(idSXid, kmsg.SXid, "nvidia-nvswitch0: SXid (PCI:0000:07:00.0): 20034, Fatal, Link 3"),
	logRow(idAERLog, kmsg.AERUncorrectable, "mlx5_core 0000:1a:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer"),
	logRow(idNICModule, kmsg.MLX5Module, "mlx5_core 0000:1a:00.0: Port module event[error]: module 0, Cable error, Bad or shorted cable/module"),
	logRow(idNICCommand, kmsg.MLX5Command, "mlx5_core 0000:1a:00.0: CREATE_MKEY(0x200) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x1)"),
	logRow(idSlotSlow, kmsg.PCIeBandwidth, "mlx5_core 0000:1a:00.0: 126.016 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x16 link at 0000:16:00.0"),
	{name: "log: all of it, yesterday, and what is usual", of: "case 16, 96",
		steps: one(func(s *scene) {
			for _, pattern := range kmsg.Patterns {
				at := s.Taken.Add(-24 * time.Hour)
				switch pattern {
				case kmsg.PCIeBandwidth, kmsg.PeermemSymbols, kmsg.DMABufTopology:
					continue // these say something for as long as the kernel runs
				case kmsg.MLX5AccessReg, kmsg.SlotPower, kmsg.MLX5Unplugged, kmsg.Lockdown, kmsg.AERCorrectable, kmsg.LinkDown, kmsg.Xid:
					at = s.Taken
				}
				s.log().Last[pattern] = kmsg.Event{Pattern: pattern, Time: at, Text: "text"}
			}
		}),
		clears: []string{idNICHealth, idIOMMUFault, idOffBus, idXidLog, idSXid, idAERLog, idNICModule, idNICCommand, idSlotSlow, idPeermemErrors}},
	{name: "job switches GPUDirect RDMA off", of: "seed, facts 16",
		steps: one(func(s *scene) { s.job(math.MaxUint64, map[string]string{"NCCL_NET_GDR_LEVEL": "LOC"}) }),
		finds: []string{idJobDisables}},
	{name: "job with a variable that never existed", of: "seed: NCCL_GPUDIRECT=1, NCCL_IB_CUDA_SUPPORT=1",
		steps: one(func(s *scene) { s.job(math.MaxUint64, map[string]string{"NCCL_GPUDIRECT": "1"}) }),
		finds: []string{idJobVariable}, clears: []string{idJobDisables}},
	{name: "job with variables that are well", of: "seed",
		steps: one(func(s *scene) {
			s.job(math.MaxUint64, map[string]string{"NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "SYS"})
		}),
		clears: []string{idJobDisables, idJobMemlock}},
	{name: "job without variables", of: "seed",
		steps:  one(func(s *scene) { s.job(math.MaxUint64, map[string]string{}) }),
		clears: []string{idJobDisables, idJobVariable, idJobMemlock}},
	{name: "job with 8 MiB of locked memory", of: "seed: --ulimit memlock=-1",
		steps: one(func(s *scene) { s.job(8<<20, map[string]string{}) }),
		finds: []string{idJobMemlock}},
	{name: "a job stages", of: "facts 16", live: LiveSuspect, steps: one(func(*scene) {}), finds: []string{idLiveSuspect}},
	{name: "a job registers GPU memory", of: "facts 16", live: LiveInUse, steps: one(func(*scene) {}), clears: []string{idLiveSuspect}},
	{name: "nobody can tell whether a job stages", of: "facts 16", live: LiveCannotTell, steps: one(func(*scene) {}), unjudged: []string{idLiveSuspect}},
	{name: "processes not read", of: "DESIGN", steps: one(func(*scene) {}), unjudged: []string{idJobDisables, idJobMemlock, idJobVariable}},
	{name: "running job with an old NCCL", of: "case 53",
		steps: one(func(s *scene) {
			noMemoryPeers(s)
			s.job(math.MaxUint64, map[string]string{}).NCCL = sysread.Some("2.21.5")
		}),
		finds: []string{idLibraryRefuses, idPeermemOnly}},
}

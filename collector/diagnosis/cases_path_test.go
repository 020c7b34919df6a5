package diagnosis

import (
	"time"

	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// acs sets the ACS control of all bridges below the common one of the first pair.
func (s *scene) acs(control uint16) {
	tree := s.tree()
	for _, side := range [][]string{tree.GPUSide, tree.NICSide} {
		for _, address := range side {
			s.function(address).Config.ACS, s.function(address).Config.NoACS = sysread.Some(control), false
		}
	}
}

// translate sets the type of the IOMMU groups of the first pair.
func (s *scene) translate(kind string) {
	for _, address := range []string{s.pair().GPU, s.tree().NIC} {
		s.function(address).IOMMUType, s.function(address).IOMMUGroup = kind, "7"
	}
}

// slowLink has the link of a function run below what it could do.
func (s *scene) slowLink(address string) {
	link := &s.function(address).Link
	link.Speed, link.PossibleSpeed = sysread.Some(5.0), sysread.Some(32.0)
}

// guest puts the first pair into a virtual machine, which shows made-up bridges.
func (s *scene) guest() {
	s.tree().Hidden = true
	s.gpu().Virtualization = "passthrough"
	s.acs(0x1d)
	s.function(s.tree().NIC).ConfigReadable = sysread.Some(true)
}

// unreadable takes CAP_SYS_ADMIN away: 64 bytes of each configuration space are left.
func (s *scene) unreadable() {
	for i := range s.Affinity.Units {
		f := s.Affinity.Units[i].Data
		f.ConfigReadable, f.Config = sysread.Some(false), affinity.Config{}
	}
}

// noLink sets the states of the first pair's port.
func (s *scene) noLink(state, physical int) {
	s.port().State, s.port().PhysicalState = sysread.Some(state), sysread.Some(physical)
}

// peermemRows are about registration.
var peermemRows = []row{
	{name: "peer memory not on disk", of: "case 57, seed: module not built for the kernel",
		steps: one(func(s *scene) {
			unload(s)
			s.driver().Peermem[0].OnDisk = sysread.Some(false)
			s.full(refused(efault, noDMABuf))
		}),
		state: StateStaged, evidence: EvidenceMeasured, cause: idPeermemNotInstalled, finds: []string{idStaged, idPeermemNotInstalled}, clears: []string{idPeermemNotLoaded}},
	{name: "no peer memory, dma-buf works", of: "case 49, 62",
		steps: one(func(s *scene) {
			unload(s)
			for i := range s.Prober.Pairs {
				p := &s.Prober.Pairs[i]
				for _, c := range []*prober.Completed{p.Full, p.Registration} {
					c.Result.Registrations[0].Err = efault
				}
			}
		}),
		state: StateDirect, evidence: EvidenceMeasured, finds: []string{idDMABufOnly}, clears: []string{idStaged, idPeermemNotLoaded, idPeermemNotInstalled}},
	{name: "module unloaded: staged at the next look", of: "issue 8",
		steps: one(
			func(s *scene) { s.full(func(r *loopback.Result) { r.Registrations[1].Err = noDMABuf }) },
			func(s *scene) { unload(s); s.nothing(prober.WithdrawnPeermem) },
		),
		state: StateStaged, evidence: EvidenceInferred, cause: idPeermemNotLoaded, finds: []string{idStaged, idPeermemNotLoaded}},
	{name: "module unloaded, dma-buf works", of: "issue 8",
		steps: one(func(*scene) {}, func(s *scene) { unload(s); s.nothing(prober.WithdrawnPeermem) }),
		state: StateUnknown, evidence: EvidenceNone, finds: []string{idUnverified}, unjudged: []string{idPeermemNotLoaded}},
	{name: "module unloaded, NIC cannot by its test", of: "issue 8",
		steps: one(
			func(s *scene) {
				s.full(func(r *loopback.Result) {
					r.Registrations[1].Err = verbs("ibv_reg_dmabuf_mr", 22)
					r.NICDMABuf, r.NICDMABufErr = sysread.Some(false), noDMABuf
				})
			},
			func(s *scene) { unload(s); s.nothing(prober.WithdrawnPeermem) },
		),
		state: StateStaged, evidence: EvidenceInferred, cause: idPeermemNotLoaded, finds: []string{idStaged, idPeermemNotLoaded}},
	{name: "module unloaded, NIC could not before another firmware", of: "issue 8",
		steps: one(
			func(s *scene) {
				s.full(func(r *loopback.Result) { r.Registrations[1].Err = noDMABuf })
				s.pair().Full.Identity.Firmware = "28.38.1000"
			},
			func(s *scene) { unload(s); s.nothing(prober.WithdrawnFirmware); s.device().Firmware = "28.43.1014" },
		),
		state: StateUnknown, evidence: EvidenceNone, finds: []string{idUnverified}, unjudged: []string{idPeermemNotLoaded}},
	{name: "GPU does not export dma-buf, module unloaded", of: "issue 8",
		steps: one(func(s *scene) {
			unload(s)
			s.nothing(prober.WithdrawnPeermem)
			s.attributes(true, false)
		}),
		state: StateStaged, evidence: EvidenceInferred, cause: idPeermemNotLoaded, finds: []string{idStaged, idPeermemNotLoaded}},
	{name: "client gone from the RDMA stack", of: "case 54",
		steps: one(func(s *scene) {
			s.driver().MemoryPeers = driver.MemoryPeers{Present: sysread.Some(true)}
			s.nothing(prober.WithdrawnPeermem)
			s.attributes(true, false)
		}),
		state: StateStaged, evidence: EvidenceInferred, cause: idPeermemUnregistered, finds: []string{idStaged, idPeermemUnregistered}, clears: []string{idPeermemNotLoaded}},
	{name: "module not built against the running stack", of: "case 55, 57",
		steps: one(func(s *scene) {
			s.driver().MemoryPeers = driver.MemoryPeers{Present: sysread.Some(false)}
			s.peermem().Hooked = sysread.Some(false)
			s.full(refused(efault, noDMABuf))
		}),
		state: StateStaged, evidence: EvidenceMeasured, cause: idPeermemUnregistered, finds: []string{idStaged, idPeermemUnregistered, idPeermemRefused}},
	{name: "loaded, use count 0, no memory_peers", of: "case 48",
		steps: one(func(s *scene) {
			s.driver().MemoryPeers = driver.MemoryPeers{Present: sysread.Some(false)}
			s.peermem().References = sysread.Some[uint64](0)
		}),
		state: StateDirect, evidence: EvidenceMeasured, clears: []string{idPeermemUnregistered, idPeermemNotLoaded, idPeermemRefused}},
	{name: "both modules", of: "seed: both peer modules",
		steps: one(func(s *scene) {
			d := s.driver()
			d.Peermem[1].Module = d.Peermem[0].Module
			d.Peermem[1].Name, d.Peermem[1].Version = "nv_peer_mem", sysread.Some("1.3-0")
			d.Peermem[1].OnDisk = sysread.Some(true)
		}),
		state: StateDirect, evidence: EvidenceMeasured, finds: []string{idPeermemBoth}},
	{name: "module cannot be loaded again", of: "case 56",
		steps: one(func(s *scene) { s.peermem().OnDisk = sysread.Some(false) }),
		state: StateDirect, evidence: EvidenceMeasured, finds: []string{idPeermemNoReload}},
	{name: "where modules are cannot be seen", of: "case 56",
		steps:  one(func(s *scene) { s.peermem().OnDisk = sysread.Maybe[bool]{} }),
		clears: []string{idPeermemNoReload}},
	{name: "module stays going", of: "case 56",
		steps: one(
			func(s *scene) { s.peermem().State = driver.StateGoing },
			func(s *scene) { s.later(2 * time.Minute) },
		),
		finds: []string{idPeermemStuck}},
	{name: "module is coming for a moment", of: "case 56",
		steps:  one(func(s *scene) { s.peermem().State = driver.StateComing }),
		clears: []string{idPeermemStuck}},
	{name: "peermem errors in the log", of: "seed: dmesg | grep peer",
		steps: one(func(s *scene) {
			event(s, kmsg.PeermemError, "nvidia-peermem nv_mem_get_pages:310 ERROR error -22 while calling nvidia_p2p_get_pages()")
		}),
		finds: []string{idPeermemErrors}},
	{name: "peermem errors of yesterday", of: "seed",
		steps: one(
			func(s *scene) { event(s, kmsg.PeermemError, "nvidia-peermem x:1 ERROR y") },
			func(s *scene) { s.later(2 * time.Hour) },
		),
		clears: []string{idPeermemErrors}},
	{name: "GeForce: the attribute is 0", of: "case 65",
		steps: one(func(s *scene) {
			s.fresh()
			s.full(func(r *loopback.Result) {
				refused(efault, noDMABuf)(r)
				r.GPU = sysread.Some(loopback.GPUFacts{})
			})
		}),
		state: StateUnsupported, evidence: EvidenceMeasured, cause: idUnsupported, finds: []string{idUnsupported}, clears: []string{idStaged, idPeermemRefused}},
	{name: "attribute 0 by an earlier run", of: "case 65",
		steps: one(func(s *scene) { s.fresh(); s.nothing(""); s.attributes(false, false) }),
		state: StateUnsupported, evidence: EvidenceInferred, cause: idUnsupported, finds: []string{idUnsupported}},
	{name: "vGPU", of: "case 65",
		steps: one(func(s *scene) { s.fresh(); s.full(refused(efault, noDMABuf)); s.gpu().Virtualization = "vgpu" }),
		state: StateUnsupported, evidence: EvidenceMeasured, cause: idUnsupported, finds: []string{idUnsupported}, clears: []string{idStaged}},
	{name: "a pair that was direct is never unsupported", of: "DESIGN",
		steps: one(func(*scene) {}, func(s *scene) { s.full(refused(efault, noDMABuf)); s.gpu().Virtualization = "vgpu" }),
		state: StateStaged, evidence: EvidenceMeasured, cause: idPeermemRefused, finds: []string{idStaged, idPeermemRefused}},
	{name: "EFA has no reliable connections", of: "case 39",
		steps: one(func(s *scene) { s.fresh(); s.nothing(""); s.device().Driver = driverEFA }),
		state: StateUnsupported, evidence: EvidenceInferred, cause: idUnsupported, finds: []string{idUnsupported}},
	{name: "driver unloaded", of: "issue 8",
		steps: one(
			func(*scene) {},
			func(s *scene) {
				s.driver().Loaded = sysread.Some(false)
				s.nothing(prober.WithdrawnDriver)
			},
			func(s *scene) { s.later(2 * time.Minute) },
		),
		state: StateStaged, evidence: EvidenceInferred, cause: idDriverUnloaded, finds: []string{idStaged, idDriverUnloaded}},
	{name: "busy node, jobs register GPU memory", of: "DESIGN",
		live:  LiveInUse,
		steps: one(func(s *scene) { s.nothing(prober.WithdrawnAged) }),
		state: StateDirect, evidence: EvidenceInferred, clears: []string{idUnverified, idStaged}},
}

// attributes are what libcuda said of the first pair's GPU.
func (s *scene) attributes(direct, dmabuf bool) {
	s.Probe.Units[0].Data.GPUs[s.pair().GPU] = loopback.LedgerGPU{DriverVersion: s.driver().Version.Value, GPUDirectRDMA: direct, DMABuf: dmabuf}
}

// pcieRows are about the PCIe path.
var pcieRows = []row{
	{name: "ACS set where it does not redirect", of: "case 60",
		steps:  one(func(s *scene) { s.full(slowly); s.acs(affinity.ACSSourceValidation | affinity.ACSUpstreamForwarding) }),
		finds:  []string{idDegraded},
		clears: []string{idACSRedirect}},
	{name: "ACS redirects, and a full run is within the limits", of: "never ACS alone",
		steps:  one(func(s *scene) { s.acs(0x1d) }),
		clears: []string{idACSRedirect}},
	{name: "ACS redirects, nothing measured", of: "issue 8",
		steps: one(func(s *scene) { s.acs(0x1d); s.nothing("") }),
		state: StateUnknown, evidence: EvidenceNone, cause: idACSRedirect, finds: []string{idACSRedirect, idUnverified}},
	{name: "ACS redirects on the way of another pair", of: "never ACS alone",
		steps: one(func(s *scene) {
			s.nothing("")
			s.nearOnly()
			s.function(s.tree().Common).Config.ACS = sysread.Some[uint16](0x1d)
		}),
		finds: []string{idUnverified}, clears: []string{idACSRedirect}},
	{name: "data direct: redirects on the NIC's own way", of: "case 68",
		steps: one(func(s *scene) { s.nothing(""); s.dataDirect(0x19, 0x15) }),
		finds: []string{idUnverified}, clears: []string{idACSRedirect, idACSDataDirect}},
	{name: "data direct: the kernel's default", of: "case 68",
		steps: one(func(s *scene) { s.nothing(""); s.dataDirect(0x1d, 0x1d) }),
		state: StateUnknown, evidence: EvidenceNone, cause: idACSDataDirect, finds: []string{idUnverified, idACSDataDirect}},
	{name: "IOMMU translates, and a full run is within the limits", of: "table",
		steps:  one(func(s *scene) { s.translate("DMA-FQ") }),
		clears: []string{idIOMMU}},
	{name: "IOMMU in pass-through", of: "table",
		steps: one(func(s *scene) { s.nothing(""); s.translate("identity") }),
		finds: []string{idUnverified}, clears: []string{idIOMMU}},
	{name: "IOMMU of a virtual machine", of: "table",
		steps: one(func(s *scene) { s.nothing(""); s.guest(); s.translate("DMA") }),
		finds: []string{idUnverified}, clears: []string{idIOMMU, idACSRedirect}},
	{name: "GPU link is slow at idle", of: "case 82",
		steps: one(
			func(s *scene) { s.slowLink(s.pair().GPU); s.gpu().Procs = sysread.Some(0) },
			func(s *scene) { s.later(10 * time.Minute) },
		),
		clears: []string{idLinkSpeed}},
	{name: "NIC link is slow", of: "case 85",
		steps: one(func(s *scene) { s.slowLink(s.tree().NIC) }, func(s *scene) { s.later(6 * time.Minute) }),
		finds: []string{idLinkSpeed}},
	{name: "NIC link is slow for a moment", of: "case 82",
		steps: one(
			func(s *scene) { s.slowLink(s.tree().NIC) },
			func(s *scene) { s.later(6 * time.Minute); s.function(s.tree().NIC).Link.Speed = sysread.Some(32.0) },
		),
		clears: []string{idLinkSpeed}},
	{name: "GPU link is slow while a job moves bytes", of: "case 83",
		steps: one(
			func(s *scene) { s.slowLink(s.pair().GPU); s.gpu().Procs = sysread.Some(8); s.moves(0) },
			func(s *scene) { s.later(time.Minute); s.moves(60 * 20e9) },
			func(s *scene) { s.later(7 * time.Minute); s.moves(8 * 60 * 20e9) },
		),
		finds: []string{idLinkSpeed}},
	{name: "a GPU lost lanes, at idle", of: "case 85",
		steps: one(func(s *scene) { s.function(s.pair().GPU).Link.Width = sysread.Some(8) }),
		finds: []string{idLinkWidth}},
	{name: "a slot has fewer lanes than the card", of: "case 85",
		steps: one(func(s *scene) {
			link := &s.function(s.tree().NIC).Link
			link.Width, link.PossibleWidth = sysread.Some(8), sysread.Some(8)
		}),
		clears: []string{idLinkWidth}},
	{name: "uncorrectable errors grow", of: "issue 10",
		steps: one(func(s *scene) { s.errors(2) }, func(s *scene) { s.errors(5) }),
		finds: []string{idAER}},
	{name: "uncorrectable errors of before", of: "issue 10",
		steps:  one(func(s *scene) { s.errors(5) }, func(*scene) {}),
		clears: []string{idAER}},
	{name: "uncorrectable errors that ended", of: "issue 10",
		steps:  one(func(s *scene) { s.errors(2) }, func(s *scene) { s.errors(5) }, func(s *scene) { s.later(2 * time.Hour) }),
		clears: []string{idAER}},
	{name: "a NIC's configuration space is all ones", of: "case 87",
		steps: one(func(s *scene) { s.function(s.tree().NIC).Answers = sysread.Some(false) }),
		finds: []string{idNoAnswer}},
	{name: "a NIC sleeps", of: "case 87",
		steps:  one(func(s *scene) { s.function(s.tree().NIC).Answers = sysread.Maybe[bool]{} }),
		clears: []string{idNoAnswer}},
}

// nearOnly leaves the first pair alone.
func (s *scene) nearOnly() { s.Prober.Pairs = s.Prober.Pairs[:1] }

// dataDirect makes the first pair's NIC one with a data-direct function, below a
// port of its own, with ACS on that and on the GPU's.
func (s *scene) dataDirect(nicSide, gpuSide uint16) {
	const function, port = "0009:01:00.0", "0009:00:00.0"
	listing := &s.Affinity.Listing
	listing.DataDirect = []string{function}
	s.nearOnly()
	nic := s.function(s.tree().NIC)
	nic.DataDirect = true
	s.function(s.function(s.pair().GPU).Upstream).Config.ACS = sysread.Some(gpuSide)
	s.Affinity.Units = append(s.Affinity.Units,
		snapshot.UnitPart[affinity.Function]{Name: function, Data: &affinity.Function{Node: affinity.Node{Address: function, Upstream: port}}},
		snapshot.UnitPart[affinity.Function]{Name: port, Data: &affinity.Function{Config: affinity.Config{ACS: sysread.Some(nicSide)}}})
}

// moves sets what the first pair's port moved so far, in bytes.
func (s *scene) moves(bytes float64) {
	s.port().TransmitBytes, s.port().ReceiveBytes = sysread.Some(bytes), sysread.Some(bytes)
}

// errors sets the uncorrectable errors of the first pair's NIC.
func (s *scene) errors(count uint64) {
	s.function(s.tree().NIC).AER = &affinity.AER{
		NonFatal: affinity.AERCounts{Total: sysread.Some(count)}, Fatal: affinity.AERCounts{Total: sysread.Some[uint64](0)},
	}
}

// expect says what the node should have.
func (s *scene) expect(e profile.Expectation) {
	e.Source = profile.SourceFile
	s.Expected = &e
}

// rdmaRows are about RDMA devices and ports.
var rdmaRows = []row{
	{name: "port down that was ACTIVE", of: "case 7",
		steps: one(func(*scene) {}, func(s *scene) { s.noLink(1, 2) }),
		finds: []string{idPortDown}},
	{name: "port in INIT that was ACTIVE", of: "issue 8",
		steps: one(func(*scene) {}, func(s *scene) { s.noLink(portInit, 5) }),
		finds: []string{idPortDown}},
	{name: "port down that never was ACTIVE", of: "case 8, 41",
		steps:  one(func(s *scene) { s.noLink(1, 3) }),
		clears: []string{idPortDown, idPortNoSM}},
	{name: "port down that the profile expects", of: "issue 10",
		steps: one(func(s *scene) {
			s.noLink(1, 2)
			s.expect(profile.Expectation{Ports: map[prober.Port]sysread.Maybe[uint64]{{Device: s.device().Name, Number: 1}: {}}})
		}),
		finds: []string{idPortDown}},
	{name: "port that cannot be read", of: "case 14",
		steps:    one(func(*scene) {}, func(s *scene) { s.port().State = sysread.Maybe[int]{} }),
		unjudged: []string{idPortDown}},
	{name: "port flaps: the finding stays for a while", of: "issue 8",
		steps: one(func(*scene) {}, func(s *scene) { s.noLink(1, 2) }, func(s *scene) { s.later(time.Minute); s.noLink(4, 5) }),
		finds: []string{idPortDown}},
	{name: "port is back", of: "issue 8",
		steps:  one(func(*scene) {}, func(s *scene) { s.noLink(1, 2) }, func(s *scene) { s.later(5 * time.Minute); s.noLink(4, 5) }),
		clears: []string{idPortDown}},
	{name: "port of a storage NIC down", of: "case 98",
		steps: one(func(*scene) {}, func(s *scene) {
			s.noLink(1, 2)
			s.Affinity.Listing.Roles[s.device().Name] = "storage"
		}),
		clears: []string{idPortDown}},
	{name: "virtual function's port: DOWN with LinkUp", of: "case 51",
		steps:  one(func(s *scene) { s.noLink(1, 5) }),
		clears: []string{idPortNoSM, idPortDown}},
	{name: "port in INIT for a moment", of: "case 51",
		steps:  one(func(s *scene) { s.noLink(portInit, 5) }),
		clears: []string{idPortNoSM}},
	{name: "port slower than expected", of: "issue 10",
		steps: one(func(s *scene) {
			s.expect(profile.Expectation{Ports: map[prober.Port]sysread.Maybe[uint64]{{Device: s.device().Name, Number: 1}: sysread.Some[uint64](100e9)}})
		}),
		finds: []string{idPortRate}},
	{name: "placeholder rate of a port that is down", of: "case 7, 8",
		steps: one(func(s *scene) {
			s.noLink(1, 2)
			s.port().Rate = sysread.Some(rdma.Rate{BytesPerSecond: 1.25e9})
			s.expect(profile.Expectation{PortRate: sysread.Some[uint64](25e9)})
		}),
		clears: []string{idPortRate}},
	{name: "NIC gone", of: "issue 10",
		steps: one(func(*scene) {}, func(s *scene) { s.drop(7) }),
		finds: []string{idNICMissing}},
	{name: "NIC renamed", of: "case 35",
		steps: one(func(*scene) {}, func(s *scene) {
			at := len(s.RDMA.Units) - 1
			s.RDMA.Units[at].Name, s.RDMA.Units[at].Data.Name = "ibp210s0f0", "ibp210s0f0"
		}),
		clears: []string{idNICMissing}},
	{name: "virtual function gone", of: "case 30",
		steps: one(
			func(s *scene) { s.RDMA.Units[len(s.RDMA.Units)-1].Data.Function = rdma.FunctionVirtual },
			func(s *scene) { s.drop(7) },
		),
		clears: []string{idNICMissing}},
	{name: "class empty", of: "case 37",
		steps: one(func(*scene) {}, func(s *scene) { s.RDMA.Units = nil }, func(s *scene) { s.later(2 * time.Minute) }),
		finds: []string{idClassGone}, clears: []string{idNICMissing}},
	{name: "class empty for a moment", of: "case 37",
		steps:  one(func(*scene) {}, func(s *scene) { s.RDMA.Units = nil }),
		clears: []string{idClassGone, idNICMissing}},
	{name: "no RDMA device ever", of: "case 95",
		steps:  one(func(s *scene) { s.RDMA.Units = nil; s.Prober.Pairs = nil; s.Affinity.Listing.Pairs = nil }),
		clears: []string{idClassGone, idNICMissing, idStaged}},
	{name: "a device's read hangs", of: "case 43",
		steps: one(func(s *scene) { s.RDMA.Units[7].Data, s.RDMA.Units[7].StuckFor = nil, time.Minute }),
		finds: []string{idNICStuck}},
	{name: "a device is slow", of: "case 43",
		steps:  one(func(s *scene) { s.RDMA.Units[7].Data, s.RDMA.Units[7].StuckFor = nil, time.Second }),
		clears: []string{idNICStuck}},
	{name: "RoCE without v2 GID", of: "issue 8",
		steps: one(func(s *scene) { s.roce(map[string]int{"IB/RoCE v1": 1}) }, func(s *scene) { s.later(2 * time.Minute) }),
		finds: []string{idRoCEGID}},
	{name: "RoCE with v2 GID", of: "issue 8",
		steps:  one(func(s *scene) { s.roce(map[string]int{"IB/RoCE v1": 1, "RoCE v2": 1}) }, func(s *scene) { s.later(2 * time.Minute) }),
		clears: []string{idRoCEGID}},
	{name: "saturated counters", of: "case 23",
		steps: one(func(s *scene) {
			for i := range s.port().Counters {
				if c := &s.port().Counters[i]; c.Info.File == "link_downed" {
					c.Value = 255
				}
			}
		}),
		finds: []string{idSaturated}},
	{name: "counter wraps that does not stick", of: "case 25",
		steps: one(func(s *scene) {
			for i := range s.port().Counters {
				if c := &s.port().Counters[i]; c.Info.Width == 0 {
					c.Value = 1<<32 - 1
				}
			}
		}),
		clears: []string{idSaturated}},
	{name: "counters of another network namespace", of: "case 29",
		steps: one(func(s *scene) { s.device().Hidden = true }),
		finds: []string{idCountersHide}},
	{name: "EFA: link layer unknown, port not ACTIVE", of: "case 39",
		steps: one(func(*scene) {}, func(s *scene) {
			s.port().LinkLayer = "Unknown"
			s.noLink(1, 2)
		}),
		clears: []string{idPortDown, idCountersHide}},
	{name: "plane of a multi-plane device", of: "case 32",
		steps: one(func(*scene) {}, func(s *scene) {
			d := s.RDMA.Units[7].Data
			d.Parent = "mlx5_6"
			d.Ports[0].State = sysread.Some(1)
		}),
		clears: []string{idPortDown}},
}

// drop takes an RDMA device away.
func (s *scene) drop(at int) {
	s.RDMA.Units = append(s.RDMA.Units[:at:at], s.RDMA.Units[at+1:]...)
}

// roce makes the first pair's port one of RoCE with GIDs.
func (s *scene) roce(gids map[string]int) { s.port().LinkLayer, s.port().GIDs = "Ethernet", gids }

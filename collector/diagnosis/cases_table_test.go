package diagnosis

import (
	"syscall"
	"time"

	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

func one(steps ...func(*scene)) []func(*scene) { return steps }

// verbs is a failure of a call of libibverbs.
func verbs(call string, errno syscall.Errno) error { return &loopback.Error{Call: call, Errno: errno} }

var (
	efault   = verbs("ibv_reg_mr", syscall.EFAULT)
	noDMABuf = verbs("ibv_reg_dmabuf_mr", syscall.EOPNOTSUPP)
	enomem   = verbs("ibv_reg_mr", syscall.ENOMEM)
	enotsupp = verbs("ibv_reg_dmabuf_mr", syscall.Errno(524))
)

// unload takes all peer memory modules away.
func unload(s *scene) {
	d := s.driver()
	for i := range d.Peermem {
		m := &d.Peermem[i]
		m.State, m.Present, m.References, m.Hooked, m.Version = driver.StateAbsent, false, sysread.Maybe[uint64]{}, sysread.Maybe[bool]{}, sysread.Maybe[string]{}
		m.OnDisk = sysread.Some(i == 0)
	}
	d.MemoryPeers = driver.MemoryPeers{Present: sysread.Some(true)}
	for marker := range d.Markers {
		d.Markers[marker] = sysread.Some(false)
	}
}

// event puts a line into the kernel's log, a minute ago.
func event(s *scene, pattern kmsg.Pattern, text string) {
	s.log().Last[pattern] = kmsg.Event{Pattern: pattern, Time: s.Taken.Add(-time.Minute), Text: text}
}

// wholeFailed makes a full run whose GPU paths fail with a completion status.
func statusFailure(status loopback.CompletionStatus) func(*loopback.Result) {
	return func(r *loopback.Result) {
		for i := range r.Paths {
			if p := &r.Paths[i]; p.Path == loopback.PathGPURead || p.Path == loopback.PathGPUWrite || p.Path == loopback.PathGPU {
				*p = loopback.PathResult{Path: p.Path, Stage: loopback.StageWarmUp, Err: &loopback.Error{Call: "completion", Status: status, Vendor: 0x51}}
			}
		}
	}
}

// tableRows are the rows of the decision table of facts/gdr.md, section 18.
var tableRows = []row{
	{name: "neither method, module absent", of: "table",
		steps: one(func(s *scene) { unload(s); s.full(refused(efault, noDMABuf)) }),
		state: StateStaged, evidence: EvidenceMeasured, cause: idPeermemNotLoaded,
		finds: []string{idStaged, idPeermemNotLoaded}, clears: []string{idPeermemRefused, idPeermemNotInstalled, idPeermemABI}},
	{name: "neither method, module loaded", of: "table",
		steps: one(func(s *scene) { s.full(refused(efault, noDMABuf)) }),
		state: StateStaged, evidence: EvidenceMeasured, cause: idPeermemRefused,
		finds: []string{idStaged, idPeermemRefused}, clears: []string{idPeermemNotLoaded}},
	{name: "dma-buf only", of: "table",
		steps: one(func(s *scene) {
			s.full(func(r *loopback.Result) {
				r.Registrations[0] = loopback.Registration{Method: loopback.MethodPeermem, Err: efault}
			})
		}),
		state: StateDirect, evidence: EvidenceMeasured, finds: []string{idDMABufOnly}, clears: []string{idStaged, idPeermemOnly, idPeermemRefused}},
	{name: "peer memory only", of: "table",
		steps: one(func(s *scene) {
			s.full(func(r *loopback.Result) {
				r.Registrations[1] = loopback.Registration{Method: loopback.MethodDMABuf, Err: noDMABuf}
			})
		}),
		state: StateDirect, evidence: EvidenceMeasured, finds: []string{idPeermemOnly}, clears: []string{idStaged, idDMABufOnly}},
	{name: "peer memory without memory_peers, old NCCL", of: "table, case 53, 54, 55",
		options: EngineOptions{Libraries: []string{"nccl:2.21.5"}},
		steps:   one(noMemoryPeers),
		state:   StateDirect, evidence: EvidenceMeasured, finds: []string{idLibraryRefuses, idPeermemOnly}},
	{name: "peer memory without memory_peers, new NCCL", of: "table, case 47",
		options: EngineOptions{Libraries: []string{"nccl:2.27.3"}},
		steps:   one(noMemoryPeers),
		state:   StateDirect, evidence: EvidenceMeasured, finds: []string{idPeermemOnly}, clears: []string{idLibraryRefuses}},
	{name: "peer memory without memory_peers, NCCL not known", of: "table",
		steps: one(noMemoryPeers),
		state: StateDirect, evidence: EvidenceMeasured, finds: []string{idPeermemOnly}, clears: []string{idLibraryRefuses}},
	{name: "modprobe log: disagrees about version", of: "table, case 56, 57",
		steps: one(func(s *scene) {
			unload(s)
			s.full(refused(efault, noDMABuf))
			event(s, kmsg.PeermemSymbols, "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client")
		}),
		state: StateStaged, evidence: EvidenceMeasured, cause: idPeermemABI, finds: []string{idStaged, idPeermemNotLoaded, idPeermemABI}},
	{name: "modprobe log of before it was loaded again", of: "case 56",
		steps: one(func(s *scene) {
			event(s, kmsg.PeermemSymbols, "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client")
		}),
		state: StateDirect, evidence: EvidenceMeasured, clears: []string{idPeermemABI}},
	{name: "stale module", of: "table, seed: module of another version",
		steps: one(func(s *scene) { s.peermem().Version = sysread.Some("570.86.15") }),
		state: StateDirect, evidence: EvidenceMeasured, finds: []string{idPeermemStale}},
	{name: "old nv_peer_mem has versions of its own", of: "table",
		steps: one(func(s *scene) {
			d := s.driver()
			d.Peermem[1].Module = d.Peermem[0].Module
			d.Peermem[1].Name, d.Peermem[1].Version = "nv_peer_mem", sysread.Some("1.3-0")
			d.Peermem[1].OnDisk = sysread.Some(true)
			d.Peermem[0].State, d.Peermem[0].Present = driver.StateAbsent, false
		}),
		state: StateDirect, evidence: EvidenceMeasured, clears: []string{idPeermemStale, idPeermemBoth}},
	{name: "both methods ENOMEM", of: "table, case 64",
		steps: one(func(s *scene) { s.full(refused(enomem, enomem)) }),
		state: StateStaged, evidence: EvidenceMeasured, cause: idRegisterMemory, finds: []string{idStaged, idRegisterMemory}, clears: []string{idPeermemRefused}},
	{name: "driver's topology gate", of: "table, case 61",
		steps: one(func(s *scene) { s.full(refused(efault, enotsupp)); unload(s) }),
		state: StateStaged, evidence: EvidenceMeasured, cause: idTopologyGate,
		finds: []string{idStaged, idTopologyGate, idPeermemNotLoaded}, clears: []string{idRegisterMemory}},
	{name: "driver's topology gate, in the log", of: "table",
		steps: one(func(s *scene) {
			s.nothing(prober.WithdrawnReboot)
			event(s, kmsg.DMABufTopology, "NVRM: dma-buf attach failed: PCI topology not supported for dma-buf")
		}),
		state: StateUnknown, evidence: EvidenceNone, cause: idTopologyGate, finds: []string{idTopologyGate, idUnverified}},
	{name: "driver's topology gate in the log, and all is well", of: "table",
		steps: one(func(s *scene) {
			event(s, kmsg.DMABufTopology, "NVRM: dma-buf attach failed: PCI topology not supported for dma-buf")
		}),
		state: StateDirect, evidence: EvidenceMeasured, clears: []string{idTopologyGate}},
	{name: "healthy", of: "table", steps: one(func(*scene) {}), state: StateDirect, evidence: EvidenceMeasured,
		clears: []string{idDegraded, idStaged, idCorrupt, idUnverified, idUnsupported, idControl, idProbeHung, idReadSlow, idNoBenefit, idDecline, idOrdering,
			idP2PBlocked, idACSRedirect, idIOMMU, idLinkWidth, idLinkSpeed, idATSOff, idQuiesced}},
	{name: "slow both ways, ACS redirect", of: "table, case 58, 59, 60",
		steps: one(func(s *scene) { s.full(slowly); s.acs(0x1d) }),
		state: StateDegraded, evidence: EvidenceMeasured, cause: idACSRedirect, finds: []string{idDegraded, idACSRedirect}, clears: []string{idNoBenefit, idReadSlow}},
	{name: "slow, IOMMU translates", of: "table",
		steps: one(func(s *scene) { s.full(slowly); s.translate("DMA-FQ") }),
		state: StateDegraded, evidence: EvidenceMeasured, cause: idIOMMU, finds: []string{idDegraded, idIOMMU}},
	{name: "slow, the link under load is slow", of: "table, case 83",
		steps: one(
			func(s *scene) { s.full(slowly); s.slowLink(s.pair().GPU); s.gpu().Procs = sysread.Some(1) },
			func(s *scene) { s.later(6 * time.Minute) },
		),
		state: StateDegraded, evidence: EvidenceMeasured, cause: idLinkSpeed, finds: []string{idDegraded, idLinkSpeed}},
	{name: "reads slow, through the CPU", of: "table",
		steps: one(func(s *scene) {
			p := s.pair()
			p.Distance, p.Direct = "PHB", false
			s.full(func(r *loopback.Result) { ratio(r, loopback.PathGPURead, 0.3); ratio(r, loopback.PathGPU, 0.3) })
		}),
		state: StateDegraded, evidence: EvidenceMeasured, clears: []string{idDegraded, idReadSlow}},
	{name: "reads slow, on a switch", of: "table",
		steps: one(func(s *scene) { s.full(func(r *loopback.Result) { ratio(r, loopback.PathGPURead, 0.5) }) }),
		state: StateDegraded, evidence: EvidenceMeasured, cause: idReadSlow, finds: []string{idDegraded, idReadSlow}},
	{name: "slow, relaxed ordering refused", of: "table",
		steps: one(func(s *scene) {
			s.full(func(r *loopback.Result) {
				slowly(r)
				r.RelaxedOrdering = sysread.Some(false)
				for i := range r.Registrations {
					r.Registrations[i].RelaxedOrdering = false
				}
			})
		}),
		state: StateDegraded, evidence: EvidenceMeasured, cause: idOrdering, finds: []string{idDegraded, idOrdering}},
	{name: "slow, relaxed ordering off in the NIC", of: "table",
		steps: one(func(s *scene) { s.full(slowly); s.function(s.tree().NIC).Config.RelaxedOrdering = sysread.Some(false) }),
		state: StateDegraded, evidence: EvidenceMeasured, cause: idOrdering, finds: []string{idDegraded, idOrdering}},
	{name: "host path slow too", of: "table, case 66",
		steps: one(func(s *scene) {
			s.full(func(r *loopback.Result) {
				for i := range r.Paths {
					r.Paths[i].BytesPerSecond.Value *= 0.2
				}
			})
		}),
		state: StateUnknown, evidence: EvidenceNone, cause: idControl, finds: []string{idControl, idUnverified}, clears: []string{idDegraded}},
	{name: "no faster than staged", of: "table",
		steps: one(func(s *scene) {
			s.full(func(r *loopback.Result) { slowly(r); ratio(r, loopback.PathStaged, 0.45) })
		}),
		state: StateDegraded, evidence: EvidenceMeasured, finds: []string{idDegraded, idNoBenefit}},
	{name: "no faster than staged, and within the limits that it is judged by", of: "table",
		steps: one(func(s *scene) {
			s.full(func(r *loopback.Result) { ratio(r, loopback.PathGPU, 0.8); ratio(r, loopback.PathStaged, 0.8) })
			c := s.pair().Full
			c.Judgement = loopback.Judge(&c.Result, true, loopback.Limits{Direct: 0.5, Far: 0.5})
		}),
		state: StateDirect, evidence: EvidenceMeasured, finds: []string{idDecline}, clears: []string{idDegraded, idNoBenefit}},
	{name: "completion status 4", of: "table, case 60",
		steps: one(func(s *scene) { s.full(statusFailure(loopback.LocalProtection)) }),
		state: StateStaged, evidence: EvidenceMeasured, cause: idP2PBlocked, finds: []string{idStaged, idP2PBlocked}},
	{name: "completion status 11", of: "table",
		steps: one(func(s *scene) { s.full(statusFailure(loopback.RemoteOperation)) }),
		state: StateStaged, evidence: EvidenceMeasured, cause: idP2PBlocked, finds: []string{idStaged, idP2PBlocked}},
	{name: "completion status 12: the run says nothing", of: "table",
		steps: one(func(s *scene) { s.nothing(prober.WithdrawnFailed) }),
		state: StateUnknown, evidence: EvidenceNone, finds: []string{idUnverified}, clears: []string{idP2PBlocked}},
	{name: "data arrives wrong", of: "table",
		steps: one(func(s *scene) {
			s.full(func(r *loopback.Result) { pathOf(r, loopback.PathGPU).Mismatches = sysread.Some(3) })
		}),
		state: StateDegraded, evidence: EvidenceMeasured, cause: idCorrupt, finds: []string{idCorrupt}, clears: []string{idDegraded, idStaged}},
	{name: "virtual machine, ATS off, slow", of: "table",
		steps: one(func(s *scene) { s.full(slowly); s.guest(); s.function(s.tree().NIC).Config.ATS = sysread.Some(false) }),
		state: StateDegraded, evidence: EvidenceMeasured, cause: idATSOff, finds: []string{idDegraded, idATSOff}},
	{name: "virtual machine, ATS on, slow", of: "table",
		steps: one(func(s *scene) { s.full(slowly); s.guest(); s.function(s.tree().NIC).Config.ATS = sysread.Some(true) }),
		state: StateDegraded, evidence: EvidenceMeasured, finds: []string{idDegraded}, clears: []string{idATSOff, idACSRedirect}},
	{name: "slow, configuration space of 64 bytes", of: "table, case 60",
		steps: one(func(s *scene) { s.full(slowly); s.unreadable() }),
		state: StateDegraded, evidence: EvidenceMeasured, finds: []string{idDegraded}, unjudged: []string{idACSRedirect, idOrdering}},
	{name: "port in INIT", of: "table",
		steps: one(
			func(s *scene) { s.nothing(prober.WithdrawnPort); s.noLink(portInit, 5) },
			func(s *scene) { s.later(2 * time.Minute) },
		),
		state: StateUnknown, evidence: EvidenceNone, cause: idPortNoSM, finds: []string{idPortNoSM, idUnverified}, clears: []string{idPortDown}},
	{name: "busy GPU, nothing measured yet", of: "table",
		steps: one(func(s *scene) { s.nothing(""); s.pair().Skip = prober.ReasonGPUBusy }),
		state: StateUnknown, evidence: EvidenceNone, finds: []string{idUnverified}, unjudged: []string{idStaged}},
	{name: "MIG", of: "table",
		steps: one(func(s *scene) {
			s.nothing("")
			s.pair().Skip = prober.ReasonMIG
			s.gpu().Modes.MIG = sysread.Some(true)
		}),
		state: StateUnknown, evidence: EvidenceNone, finds: []string{idUnverified}},
	{name: "exclusive compute mode", of: "table",
		steps: one(func(s *scene) { s.nothing(prober.WithdrawnAged); s.pair().Skip = prober.ReasonComputeMode }),
		state: StateUnknown, evidence: EvidenceNone, finds: []string{idUnverified}},
	{name: "a run hangs", of: "table, case 90",
		steps: one(func(s *scene) {
			s.nothing("")
			s.pair().Hung, s.pair().HungStage, s.pair().Skip = s.Taken, loopback.StageRegister, prober.ReasonHung
		}),
		state: StateUnknown, evidence: EvidenceNone, cause: idProbeHung, finds: []string{idProbeHung, idUnverified}},
	{name: "registered under load", of: "table",
		steps: one(func(s *scene) {
			r := deepCopy(s.pair().Registration)
			s.nothing(prober.WithdrawnAged)
			r.Depth, r.Judgement = prober.DepthRegister, loopback.Judgement{Outcome: loopback.Fine}
			s.pair().Registration = r
		}),
		state: StateDirect, evidence: EvidenceRegistered, clears: []string{idUnverified, idStaged}},
	{name: "slow decline", of: "issue 10",
		steps: one(func(s *scene) {
			s.pair().Baseline = sysread.Some(1.3 * pathOf(&s.pair().Full.Result, loopback.PathGPU).BytesPerSecond.Value)
		}),
		state: StateDirect, evidence: EvidenceMeasured, finds: []string{idDecline}},
	{name: "a bad result that is being repeated", of: "DESIGN",
		steps: one(func(s *scene) {
			bad := deepCopy(s.pair().Full)
			bad.Judgement = loopback.Judgement{Outcome: loopback.Failed, Reasons: []string{"gpu: GPU memory not registered"}}
			s.pair().Unconfirmed, s.pair().Withdrawn = bad, prober.WithdrawnFailed
		}),
		state: StateDirect, evidence: EvidenceMeasured, clears: []string{idStaged}},
}

// noMemoryPeers makes the first pairs those of a kernel whose RDMA stack has the
// peer memory API without the directory, and no dma-buf.
func noMemoryPeers(s *scene) {
	d := s.driver()
	d.MemoryPeers = driver.MemoryPeers{Present: sysread.Some(false)}
	for _, marker := range driver.Markers {
		d.Markers[marker] = sysread.Some(marker == driver.MarkerNvidiaPeermem)
	}
	for i := range s.Prober.Pairs {
		p := &s.Prober.Pairs[i]
		for _, c := range []*prober.Completed{p.Full, p.Registration} {
			c.Result.Registrations[1] = loopback.Registration{Method: loopback.MethodDMABuf, Err: noDMABuf}
			c.Result.Method, c.Result.NCCLMethod = loopback.MethodPeermem, loopback.MethodPeermem
			c.Result.NICDMABuf, c.Result.NICDMABufErr = sysread.Some(false), noDMABuf
		}
	}
}

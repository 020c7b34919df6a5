package diagnosis

import "gdr_exporter/rdma/loopback"

// silentRows are nodes on which a careless rule would alarm.
var silentRows = []row{
	{name: "soft-RoCE and nothing else", of: "case 11", capture: "soft-roce", steps: one(func(*scene) {}),
		clears: []string{idStaged, idPortDown, idNICMissing, idGPULost}},
	{name: "GPUs without RDMA devices", of: "case 95", capture: "h200-2", steps: one(func(*scene) {}),
		clears: []string{idStaged, idGPULost, idNVLinks, idFabricIdle}},
	{name: "saturated counters over time", of: "case 23", capture: "counters-saturated", steps: one(func(*scene) {}),
		finds: []string{idSaturated}},
	{name: "no prober", of: "DESIGN", steps: one(func(s *scene) { s.Prober = nil }),
		state: StateUnknown, evidence: EvidenceNone, finds: []string{idUnverified}, unjudged: []string{idCorrupt, idDegraded, idStaged}},
	{name: "no prober, and registration cannot work", of: "DESIGN", steps: one(func(s *scene) {
		unload(s)
		s.attributes(true, false)
		s.Prober = nil
	}),
		state: StateStaged, evidence: EvidenceInferred, cause: idPeermemNotLoaded, finds: []string{idStaged, idPeermemNotLoaded, idUnverified}},
	{name: "no scheduled measurements", of: "DESIGN", steps: one(func(s *scene) { s.nothing(""); s.Prober.Interval = 0 }),
		state: StateUnknown, evidence: EvidenceNone, finds: []string{idUnverified}},
	{name: "a pair that --probe.pairs names is expected at any distance", of: "DESIGN",
		options: EngineOptions{Named: func(_, device string) bool { return device == "mlx5_0" }},
		steps: one(func(s *scene) {
			s.pair().Distance, s.pair().Direct = "SYS", false
			s.full(func(r *loopback.Result) { ratio(r, loopback.PathGPU, 0.5) })
		}),
		state: StateDegraded, evidence: EvidenceMeasured, finds: []string{idDegraded}},
	{name: "a storage NIC's pair is not expected", of: "case 98",
		steps: one(func(s *scene) {
			s.Affinity.Listing.Roles[s.pair().Device] = "storage"
			s.full(refused(efault, noDMABuf))
		}),
		state: StateStaged, evidence: EvidenceMeasured, clears: []string{idStaged, idPeermemRefused}},
}

package collector

import (
	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
)

// diagnose says what a Snapshot means; nil if nothing is known yet.
type diagnose func(*snapshot.Snapshot) *diagnosis.Diagnosis

// Families of the verdicts.
var (
	pathState = gauge("gdr_path_state",
		"What is said of a pair of GPU and RDMA device, 1 for the state that it is in: direct (GPUDirect RDMA works), degraded (slow, or data arrives wrong), staged (it does not work: jobs copy through host memory), "+
			"unsupported (GPU or NIC cannot, and never did), unknown (nobody can say, see gdr_finding and the status page). Of expected and measured pairs.")
	pathEvidence = gauge("gdr_path_evidence",
		"What the state of a pair rests on, 1 for the kind: measured (a full measurement), registered (GPU memory was registered, no traffic), inferred (preconditions or a job's use only), none.")
	pathExpected = gauge("gdr_path_expected",
		"1 if libraries use GPUDirect RDMA on the pair by its distance (PIX, PXB, P2C) and the device's role (compute), or if --probe.pairs names it. Only these page.")
)

// pathView shows the verdicts.
func pathView(diagnose diagnose) view {
	return func(p *page, s *snapshot.Snapshot) {
		d := diagnose(s)
		if d == nil {
			return
		}
		for i := range d.Paths {
			showVerdict(p, &d.Paths[i])
		}
		showLibrary(p, d)
		showLive(p, d.Live)
		showRules(p, d.Rules)
		showFindings(p, d.Findings)
	}
}

// showVerdict shows one pair. Every state and kind of evidence has a series, so that
// none is left standing when another takes its place.
func showVerdict(p *page, path *diagnosis.Path) {
	pair := pairs("gpu_address", path.GPU, "device", path.Device)
	for _, state := range diagnosis.States {
		p.addBool(pathState, path.State == state, pair.with("state", string(state)))
	}
	for _, evidence := range diagnosis.Evidences {
		p.addBool(pathEvidence, path.Evidence == evidence, pair.with("evidence", string(evidence)))
	}
	p.addBool(pathExpected, path.Expected, pair)
}

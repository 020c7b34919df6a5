package collector

import (
	"maps"
	"slices"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/loopback/prober"
)

// Families of what all measurements on the host add up to, whoever made them.
var (
	probeTransferred = counter("gdr_probe_transferred_bytes_total",
		"Bytes that measurements (the daemon's and those of gdr_exporter probe) moved over the RDMA device since boot, each counted once: the device sent as many and received as many. Traffic graphs subtract them.")
	probeGPUDirect = gauge("gdr_probe_gpu_direct_rdma_supported",
		"1 if libcuda says that the GPU supports GPUDirect RDMA (attribute 116), as of the last measurement under the loaded driver. It says nothing of a registration working.")
	probeDMABuf = gauge("gdr_probe_gpu_dmabuf_supported",
		"1 if libcuda says that the GPU's memory can be exported as dma-buf (attribute 124), as of the last measurement under the loaded driver.")
)

// Families of the prober itself. Those of its pairs are in probepair.go.
var (
	probeInterval = gauge("gdr_probe_interval_seconds",
		"How often an idle pair is measured in full (--probe.interval); 0: no runs are scheduled.")
	probeIsolation = gauge("gdr_probe_isolation",
		"1 for where measurements are made: mode in_process, or process (each in a short-lived child). The mode is process without --probe.isolation=process after the exporter had to start itself afresh twice within an hour.")
	probeQuiesced = gauge("gdr_quiesced_until_timestamp_seconds",
		"Unix time at which the quiesce in force ends by itself, 0 if there is none. Meanwhile nothing is measured and NVML is not asked, so that the driver can be unloaded.")
	probeRuns = counter("gdr_probe_runs_total",
		"Measurements by the daemon since it started, by depth (register: registration only, full) and result: fine, slow, failed (the NIC cannot reach GPU memory), corrupt, unsupported, "+
			"broken (it could not be carried through, which says nothing of GPU memory), crashed (its process died), hung (it did not end), interrupted (ended early, or refused before it began).")
	probeSkips = counter("gdr_probe_skips_total",
		"Times since start that a due pair was kept from being measured, by reason; once each time that the reason came up.")
)

// isolations are all modes of gdr_probe_isolation.
var isolations = []prober.Isolation{prober.InProcess, prober.InChild}

// showProbe shows what measurements on this host found.
func showProbe(p *page, s *snapshot.Snapshot) {
	showLedger(p, s)
	if s.Prober != nil {
		showProber(p, s.Prober)
	}
}

// showLedger shows what measurements add up to. Every device has a counter from
// the start.
func showLedger(p *page, s *snapshot.Snapshot) {
	ledger := s.ProbeLedger()
	if ledger == nil {
		return
	}
	transferred := maps.Clone(ledger.Transferred)
	if s.RDMA != nil {
		for _, unit := range s.RDMA.Units {
			transferred[unit.Name] += 0
		}
	}
	for _, device := range slices.Sorted(maps.Keys(transferred)) {
		p.add(probeTransferred, float64(transferred[device]), pairs("device", device))
	}
	for _, address := range slices.Sorted(maps.Keys(ledger.GPUs)) {
		gpu := ledger.GPUs[address]
		if driver := s.DriverState(); driver != nil && driver.Version.Known && driver.Version.Value != gpu.DriverVersion {
			continue // another driver may say otherwise
		}
		at := pairs("gpu_address", address)
		p.addBool(probeGPUDirect, gpu.GPUDirectRDMA, at)
		p.addBool(probeDMABuf, gpu.DMABuf, at)
	}
}

// runLabels and skipLabels are the labels of the counters, the same for every page.
var (
	runLabels  = allRunLabels()
	skipLabels = allSkipLabels()
)

type runLabel struct {
	kind   prober.RunKind
	labels labels
}

func allRunLabels() []runLabel {
	var all []runLabel
	for _, depth := range prober.Depths {
		for _, result := range prober.RunResults {
			all = append(all, runLabel{prober.RunKind{Depth: depth, Result: result}, pairs("depth", string(depth), "result", string(result))})
		}
	}
	return all
}

func allSkipLabels() []labels {
	all := make([]labels, len(prober.Reasons))
	for i, reason := range prober.Reasons {
		all[i] = pairs("reason", string(reason))
	}
	return all
}

// showProber shows the prober and its pairs. Its counters have every member
// from the start.
func showProber(p *page, status *prober.Status) {
	p.add(probeInterval, status.Interval.Seconds(), nil)
	for _, mode := range isolations {
		p.addBool(probeIsolation, status.Isolation == mode, pairs("mode", string(mode)))
	}
	p.add(probeQuiesced, unixSeconds(status.QuiescedUntil), nil)
	for i := range runLabels {
		p.add(probeRuns, float64(status.Runs[runLabels[i].kind]), runLabels[i].labels)
	}
	for i, reason := range prober.Reasons {
		p.add(probeSkips, float64(status.Skips[reason]), skipLabels[i])
	}
	shown := map[[2]string]bool{}
	for i := range status.Pairs {
		pair := &status.Pairs[i]
		// Two ports of one device can only be asked for by name. Their series would
		// be the same, and a page with a series twice is refused as a whole.
		if key := [2]string{pair.GPU, pair.Device}; !shown[key] {
			shown[key] = true
			showProbedPair(p, pair)
		}
	}
}

// unixSeconds is a time as Prometheus has it, 0 for the zero time.
func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

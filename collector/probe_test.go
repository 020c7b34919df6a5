package collector

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// probeSnapshot is a host with a ledger and two RDMA devices, under a driver.
func probeSnapshot(ledger *loopback.Ledger, version string) *snapshot.Snapshot {
	device := func(name string) snapshot.UnitPart[rdma.Device] { return snapshot.UnitPart[rdma.Device]{Name: name} }
	return &snapshot.Snapshot{
		RDMA:   &snapshot.RDMAPart{Units: []snapshot.UnitPart[rdma.Device]{device("mlx5_0"), device("mlx5_1")}},
		Probe:  &snapshot.ProbePart{Units: []snapshot.UnitPart[loopback.Ledger]{{Name: "ledger", Data: ledger}}},
		Driver: &snapshot.DriverPart{Units: []snapshot.UnitPart[driver.Reading]{{Name: "driver", Data: &driver.Reading{Version: sysread.Some(version)}}}},
	}
}

var probeLedger = &loopback.Ledger{
	Version: 1, Transferred: map[string]uint64{"mlx5_0": 1_800_000_000, "mlx5_9": 5},
	GPUs: map[string]loopback.LedgerGPU{"0000:1b:00.0": {DriverVersion: "580.95.05", GPUDirectRDMA: true, DMABuf: true}, "0000:3b:00.0": {DriverVersion: "580.95.05"}},
}

// TestProbeForgets: attributes under another driver say nothing of this one, a
// ledger without runs has a counter for every device, and none says nothing.
func TestProbeForgets(t *testing.T) {
	for name, test := range map[string]struct {
		ledger *loopback.Ledger
		driver string
		want   int
	}{
		"another driver": {probeLedger, "590.1", 3},
		"no run":         {&loopback.Ledger{Version: 1, Transferred: map[string]uint64{}}, "580.95.05", 2},
		"unreadable":     {&loopback.Ledger{}, "580.95.05", 0},
		"stuck":          {nil, "580.95.05", 0},
	} {
		p := newPage()
		showProbe(p, probeSnapshot(test.ledger, test.driver))
		if p.used != test.want {
			t.Errorf("%s: %d series, want %d", name, p.used, test.want)
		}
	}
}

// ago is a time before that of golden pages.
func ago(d time.Duration) time.Time { return goldenTime.Add(-d) }

// pathResult is a path that was measured and whose data was right.
func pathResult(path loopback.Path, rate, ratio float64) loopback.PathResult {
	r := loopback.PathResult{
		Path: path, BytesPerSecond: sysread.Some(rate), Bytes: 128 << 20, Ratio: sysread.Some(ratio),
		LatencyMedian: sysread.Some(2900 * time.Nanosecond), LatencyP99: sysread.Some(4100 * time.Nanosecond),
		CPUSecondsPerGB: sysread.Some(0.002), Mismatches: sysread.Some(0), Verified: 64 << 20,
	}
	if path == loopback.PathStaged {
		r.LatencyMedian, r.LatencyP99 = sysread.Some(22*time.Microsecond), sysread.Some(31*time.Microsecond)
		r.CPUSecondsPerGB = sysread.Some(0.021)
	}
	return r
}

// fullRun is a full run an age ago that found all well.
func fullRun(age time.Duration) *prober.Completed {
	return &prober.Completed{
		Depth: prober.DepthFull, Time: ago(age), Idle: true, Judgement: loopback.Judgement{Outcome: loopback.Fine},
		Result: loopback.Result{
			Device: "mlx5_0", Port: 1, Ethernet: true, MTU: 4096, MessageSize: 1 << 20, QueuePairs: 4,
			GID: sysread.Some(loopback.GID{Index: 3, Type: "RoCE v2"}),
			Paths: []loopback.PathResult{
				pathResult(loopback.PathHost, 24.5e9, 1), pathResult(loopback.PathGPURead, 24.25e9, 0.9898),
				pathResult(loopback.PathGPUWrite, 24.4e9, 0.9959), pathResult(loopback.PathGPU, 24e9, 0.9796), pathResult(loopback.PathStaged, 9.8e9, 0.4),
			},
			Registrations: []loopback.Registration{{Method: loopback.MethodPeermem}, {Method: loopback.MethodDMABuf}},
			Method:        loopback.MethodDMABuf, NCCLMethod: loopback.MethodDMABuf,
		},
	}
}

// registerRun is a registration run an age ago in which the methods ended so.
func registerRun(age time.Duration, peermem, dmabuf error) *prober.Completed {
	outcome := loopback.Fine
	if peermem != nil && dmabuf != nil {
		outcome = loopback.Failed
	}
	return &prober.Completed{
		Depth: prober.DepthRegister, Time: ago(age), Judgement: loopback.Judgement{Outcome: outcome},
		Result: loopback.Result{Device: "mlx5_0", Port: 1, RegisterOnly: true, Registrations: []loopback.Registration{
			{Method: loopback.MethodPeermem, Err: peermem}, {Method: loopback.MethodDMABuf, Err: dmabuf},
		}},
	}
}

// measured is a pair that was measured well ten minutes ago.
func measured() prober.PairStatus {
	full := fullRun(10 * time.Minute)
	return prober.PairStatus{
		Candidate:   prober.Candidate{Pair: prober.Pair{GPU: "0000:1b:00.0", Device: "mlx5_0", Port: 1}, Distance: "PIX", Direct: true},
		LastAttempt: full.Time, LastSuccess: map[prober.Depth]time.Time{prober.DepthFull: full.Time, prober.DepthRegister: full.Time},
		Full: full, Registration: full, Due: full.Time.Add(time.Hour), Baseline: sysread.Some(24.4e9),
	}
}

// status is a prober that knows a pair.
func status(pair prober.PairStatus) *prober.Status {
	return &prober.Status{
		Interval: time.Hour, Isolation: prober.InProcess, Pairs: []prober.PairStatus{pair},
		Runs: map[prober.RunKind]uint64{{Depth: prober.DepthFull, Result: prober.RunFine}: 7}, Skips: map[prober.Reason]uint64{prober.ReasonNICBusy: 2},
	}
}

// proberScenes are the pages kept in testdata/probe, but for the ledger's.
var proberScenes = map[string]func() *prober.Status{
	"never-run": func() *prober.Status {
		pair := prober.PairStatus{Candidate: measured().Candidate}
		return &prober.Status{Interval: time.Hour, Isolation: prober.InProcess, Pairs: []prober.PairStatus{pair}}
	},
	"measured": func() *prober.Status { return status(measured()) },
	"staged": func() *prober.Status {
		pair := measured()
		pair.Full = &prober.Completed{Depth: prober.DepthFull, Time: ago(time.Minute), Idle: true, Judgement: loopback.Judgement{Outcome: loopback.Failed}}
		pair.Full.Result = fullRun(time.Minute).Result
		pair.Full.Result.Paths = pair.Full.Result.Paths[:1]
		for _, path := range []loopback.Path{loopback.PathGPURead, loopback.PathGPUWrite, loopback.PathGPU} {
			pair.Full.Result.Paths = append(pair.Full.Result.Paths, loopback.PathResult{Path: path, Stage: loopback.StageRegister, Err: loopback.ErrNotRegistered})
		}
		pair.Full.Result.Paths = append(pair.Full.Result.Paths, pathResult(loopback.PathStaged, 9.8e9, 0.4))
		pair.Full.Result.Registrations = registerRun(0, fmt.Errorf("ibv_reg_mr: %w", syscall.EFAULT), fmt.Errorf("dma-buf export: %w", syscall.EOPNOTSUPP)).Result.Registrations
		pair.Full.Result.Method = ""
		pair.Registration, pair.LastAttempt = pair.Full, pair.Full.Time
		return status(pair)
	},
	"slow": func() *prober.Status {
		pair := measured()
		pair.Full.Judgement = loopback.Judgement{Outcome: loopback.Slow, Reasons: []string{"gpu_read: 0.31 of the host path, below 0.85"}}
		pair.Full.Result.Paths[1] = pathResult(loopback.PathGPURead, 7.6e9, 0.3102)
		pair.Full.Result.Paths[3] = pathResult(loopback.PathGPU, 7.5e9, 0.3061)
		pair.LastSuccess[prober.DepthFull] = ago(3 * time.Hour)
		return status(pair)
	},
	"withdrawn": func() *prober.Status {
		pair := measured()
		pair.Unconfirmed = registerRun(time.Minute, syscall.EFAULT, syscall.EOPNOTSUPP)
		pair.Withdrawn, pair.LastAttempt = "failed", ago(time.Minute)
		return status(pair)
	},
	"invalidated": func() *prober.Status {
		pair := measured()
		pair.Full, pair.Registration, pair.Withdrawn = nil, nil, prober.WithdrawnPort
		pair.Skip = prober.ReasonPort
		return status(pair)
	},
	"aged": func() *prober.Status {
		pair := measured()
		pair.Full, pair.Registration, pair.Withdrawn = nil, nil, "aged"
		pair.LastAttempt = ago(25 * time.Hour)
		pair.LastSuccess = map[prober.Depth]time.Time{prober.DepthFull: ago(25 * time.Hour), prober.DepthRegister: ago(25 * time.Hour)}
		pair.Skip = prober.ReasonComputeMode
		return status(pair)
	},
	"busy": func() *prober.Status {
		pair := measured()
		pair.Full.Time = ago(5 * time.Hour)
		pair.Registration = registerRun(20*time.Minute, syscall.EFAULT, nil)
		pair.LastAttempt, pair.Skip = pair.Registration.Time, prober.ReasonNICBusy
		pair.LastSuccess = map[prober.Depth]time.Time{prober.DepthFull: pair.Full.Time, prober.DepthRegister: pair.Registration.Time}
		return status(pair)
	},
	"sliced": func() *prober.Status {
		pair := measured()
		pair.Full.Idle = false
		pair.Full.Result.Paths = pair.Full.Result.Paths[:4]
		pair.Full.Result.Paths[0] = pathResult(loopback.PathHost, 11e9, 1)
		pair.Full.Result.Paths[3] = pathResult(loopback.PathGPU, 9e9, 0.97) // not 9/11: each slice has its own host slice
		return status(pair)
	},
	"hung": func() *prober.Status {
		pair := measured()
		pair.Hung, pair.HungStage, pair.Skip, pair.LastAttempt = ago(time.Minute), loopback.StageRegister, prober.ReasonHung, ago(2*time.Minute)
		s := status(pair)
		s.Runs[prober.RunKind{Depth: prober.DepthFull, Result: prober.RunHung}] = 1
		return s
	},
	"quiesced": func() *prober.Status {
		pair := measured()
		pair.Skip = prober.ReasonQuiesced
		s := status(pair)
		s.QuiescedUntil = goldenTime.Add(30 * time.Minute)
		return s
	},
	"isolated": func() *prober.Status {
		s := status(measured())
		s.Isolation, s.IsolationReason = prober.InChild, "restarted twice within an hour"
		s.Runs[prober.RunKind{Depth: prober.DepthRegister, Result: prober.RunCrashed}] = 1
		return s
	},
	"corrupt": func() *prober.Status {
		pair := measured()
		pair.Full.Judgement = loopback.Judgement{Outcome: loopback.Corrupt, Reasons: []string{"gpu_write: 3 words of 8 bytes arrived wrong"}}
		pair.Full.Result.Paths[2].Mismatches, pair.Mismatches = sysread.Some(3), 12
		pair.LastSuccess[prober.DepthFull] = ago(3 * time.Hour)
		return status(pair)
	},
}

// TestProbeGolden compares the page of each state of a pair, and the ledger's,
// with testdata/probe/<name>.metrics.
func TestProbeGolden(t *testing.T) {
	p := newPage()
	showProbe(p, probeSnapshot(probeLedger, "580.95.05"))
	comparePage(t, p, filepath.Join("testdata", "probe", "ledger.metrics"))
	for name, scene := range proberScenes {
		t.Run(name, func(t *testing.T) {
			p := newPage()
			showProbe(p, &snapshot.Snapshot{Prober: scene()})
			comparePage(t, p, filepath.Join("testdata", "probe", name+".metrics"))
		})
	}
}

// has are the families of a prober's page.
func has(s *prober.Status) map[string]int {
	p := newPage()
	showProbe(p, &snapshot.Snapshot{Prober: s})
	families := map[string]int{}
	for _, mf := range p.gather() {
		families[mf.GetName()] = len(mf.Metric)
	}
	return families
}

// TestRatesGoAndStay: what was withdrawn, aged or never measured has no rates,
// what is merely kept back, hung or quiesced has those that stand. When a pair was
// tried and what is wrong with it is there in any case.
func TestRatesGoAndStay(t *testing.T) {
	rates := []string{"gdr_probe_bytes_per_second", "gdr_probe_ratio", "gdr_probe_latency_median_seconds", "gdr_probe_latency_p99_seconds", "gdr_probe_cpu_seconds_per_gigabyte"}
	gone := map[string]bool{"never-run": true, "withdrawn": true, "aged": true, "invalidated": true}
	for name, scene := range proberScenes {
		families := has(scene())
		for _, family := range rates {
			if (families[family] == 0) != gone[name] {
				t.Errorf("%s: %d series of %s", name, families[family], family)
			}
		}
		for _, family := range []string{"gdr_probe_hung", "gdr_probe_mismatches_total", "gdr_probe_unconfirmed", "gdr_probe_interval_seconds", "gdr_quiesced_until_timestamp_seconds"} {
			if families[family] != 1 {
				t.Errorf("%s: %d series of %s", name, families[family], family)
			}
		}
		if n := families["gdr_probe_runs_total"]; n != len(prober.Depths)*len(prober.RunResults) {
			t.Errorf("%s: %d kinds of runs", name, n)
		}
		if n := families["gdr_probe_skips_total"]; n != len(prober.Reasons) {
			t.Errorf("%s: %d reasons", name, n)
		}
	}
}

// TestBaselineRatio: a rate under load, of wrong data, or without a baseline is
// not compared.
func TestBaselineRatio(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*prober.PairStatus)
		want   int
	}{
		"idle":         {func(*prober.PairStatus) {}, 1},
		"under load":   {func(p *prober.PairStatus) { p.Full.Idle = false }, 0},
		"too few runs": {func(p *prober.PairStatus) { p.Baseline = sysread.Maybe[float64]{} }, 0},
		"a baseline 0": {func(p *prober.PairStatus) { p.Baseline = sysread.Some(0.0) }, 0},
		"wrong data":   {func(p *prober.PairStatus) { p.Full.Result.Paths[3].Mismatches = sysread.Some(1) }, 0},
		"not measured": {func(p *prober.PairStatus) { p.Full.Result.Paths[3].BytesPerSecond = sysread.Maybe[float64]{} }, 0},
		"none stands":  {func(p *prober.PairStatus) { p.Full = nil }, 0},
		"failed since": {func(p *prober.PairStatus) { p.Withdrawn = "failed" }, 0},
		"another path": {func(p *prober.PairStatus) { p.Full.Result.Paths[1].Mismatches = sysread.Some(1) }, 1},
	} {
		pair := measured()
		c.change(&pair)
		if n := has(status(pair))["gdr_probe_baseline_ratio"]; n != c.want {
			t.Errorf("%s: %d series", name, n)
		}
	}
}

// TestTwoPorts: two ports of one device, which only a list can name, do not make a
// series twice.
func TestTwoPorts(t *testing.T) {
	one, two := measured(), measured()
	two.Port = 2
	s := status(one)
	s.Pairs = append(s.Pairs, two)
	for family, n := range has(s) {
		if alone := has(status(one))[family]; n != alone {
			t.Errorf("%s: %d series, %d of one port", family, n, alone)
		}
	}
}

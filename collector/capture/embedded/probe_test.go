package embedded

import (
	"fmt"
	"syscall"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// ledgerOf is what the measurements of a node have added up to.
func ledgerOf() *loopback.Ledger {
	ledger := &loopback.Ledger{Version: 1, Transferred: map[string]uint64{}, GPUs: map[string]loopback.LedgerGPU{}}
	for _, name := range nics {
		ledger.Transferred[name] = 10 * transferred
	}
	for _, address := range gpuAddresses {
		ledger.GPUs[address] = loopback.LedgerGPU{DriverVersion: "580.95.05", GPUDirectRDMA: true, DMABuf: true}
	}
	return ledger
}

// transferred are the bytes that one full measurement moves.
const transferred = 1_879_048_192

// measured is a prober that measured within the last hour each pair that a daemon
// measures if nobody tells it otherwise, each GPU with the NIC of its own number,
// and found all well: rates that are not measured but made up, after published
// ones. Each pair was measured ten times.
func measured(bandwidth float64) *prober.Status {
	pairs := uint64(len(gpuAddresses))
	s := &prober.Status{
		Interval: time.Hour, Isolation: prober.InProcess,
		Runs:  map[prober.RunKind]uint64{{Depth: prober.DepthFull, Result: prober.RunFine}: 10 * pairs, {Depth: prober.DepthRegister, Result: prober.RunFine}: pairs},
		Skips: map[prober.Reason]uint64{prober.ReasonNICBusy: 2},
	}
	for i, address := range gpuAddresses {
		host := bandwidth * (1 - 0.001*float64(2*i))
		s.Pairs = append(s.Pairs, measuredPair(address, nics[i], time.Duration(5+6*i)*time.Minute, host))
	}
	return s
}

// measuredPair is a pair that was measured well a while before the recording.
func measuredPair(gpu, nic string, age time.Duration, host float64) prober.PairStatus {
	run := &prober.Completed{
		Depth: prober.DepthFull, Time: recordedAt.Add(-age), Staged: recordedAt.Add(-age), Idle: true, Judgement: loopback.Judgement{Outcome: loopback.Fine, Reasons: []string{}},
		Result: loopback.Result{
			Device: nic, Port: 1, MTU: 4096, MessageSize: 1 << 20, QueuePairs: 4, Started: recordedAt.Add(-age), Duration: 1900 * time.Millisecond,
			Paths: []loopback.PathResult{
				pathOf(loopback.PathHost, host, 1), pathOf(loopback.PathGPURead, host, 0.99), pathOf(loopback.PathGPUWrite, host, 0.995),
				pathOf(loopback.PathGPU, host, 0.98), pathOf(loopback.PathStaged, host, 0.4),
			},
			Registrations: []loopback.Registration{{Method: loopback.MethodPeermem}, {Method: loopback.MethodDMABuf}},
			Method:        loopback.MethodDMABuf, NCCLMethod: loopback.MethodDMABuf, TransferredBytes: transferred,
		},
		Identity: prober.Identity{Driver: "580.95.05", Kernel: "6.8.0-60-generic"},
	}
	return prober.PairStatus{
		Candidate:   prober.Candidate{Pair: prober.Pair{GPU: gpu, Device: nic, Port: 1}, Distance: "PIX", Direct: true},
		LastAttempt: run.Time, LastSuccess: map[prober.Depth]time.Time{prober.DepthFull: run.Time, prober.DepthRegister: run.Time},
		Full: run, Registration: run, Due: run.Time.Add(time.Hour), Baseline: sysread.Some(host * 0.98),
	}
}

// pathOf is a path that was measured and whose data was right.
func pathOf(path loopback.Path, host, ratio float64) loopback.PathResult {
	r := loopback.PathResult{
		Path: path, BytesPerSecond: sysread.Some(host * ratio), Bytes: 128 << 20, Ratio: sysread.Some(ratio),
		LatencyMedian: sysread.Some(2900 * time.Nanosecond), LatencyP99: sysread.Some(4100 * time.Nanosecond),
		CPUSecondsPerGB: sysread.Some(0.002), Mismatches: sysread.Some(0), Verified: 64 << 20,
	}
	if path == loopback.PathStaged {
		r.LatencyMedian, r.LatencyP99, r.CPUSecondsPerGB = sysread.Some(22*time.Microsecond), sysread.Some(31*time.Microsecond), sysread.Some(0.021)
	}
	return r
}

// pairIn finds a pair.
func pairIn(s *prober.Status, gpu, nic string) *prober.PairStatus {
	for i := range s.Pairs {
		if s.Pairs[i].GPU == gpu && s.Pairs[i].Device == nic {
			return &s.Pairs[i]
		}
	}
	panic("no pair " + gpu + " " + nic)
}

// slow makes a pair's last measurement one in which a path has a share of the
// host path's rate.
func slow(pair *prober.PairStatus, ratios map[loopback.Path]float64) {
	r := &pair.Full.Result
	pair.Full.Judgement = loopback.Judgement{Outcome: loopback.Slow}
	host := r.Paths[0].BytesPerSecond.Value
	for i := range r.Paths {
		path := r.Paths[i].Path
		if ratio, is := ratios[path]; is {
			r.Paths[i] = pathOf(path, host, ratio)
			pair.Full.Judgement.Reasons = append(pair.Full.Judgement.Reasons, fmt.Sprintf("%s: %.2f of the host path, below 0.85", path, ratio))
		}
	}
	pair.LastSuccess[prober.DepthFull] = pair.Full.Time.Add(-3 * time.Hour)
}

// lost is a pair whose GPU memory can no longer be registered with the NIC, since
// so long after the recording's end. Until a repetition confirmed it there are no
// rates; then there are those of the copies through host memory.
func lost(pair prober.PairStatus, since time.Duration, confirmed bool) prober.PairStatus {
	failed := *pair.Full
	failed.Time = recordedAt.Add(since)
	failed.Result.Started = failed.Time
	failed.Judgement = loopback.Judgement{Outcome: loopback.Failed, Reasons: []string{"GPU memory cannot be registered: peermem: ibv_reg_mr: EFAULT; dmabuf: EOPNOTSUPP"}}
	paths := pair.Full.Result.Paths
	failed.Result.Paths = []loopback.PathResult{paths[0]}
	for _, path := range []loopback.Path{loopback.PathGPURead, loopback.PathGPUWrite, loopback.PathGPU} {
		failed.Result.Paths = append(failed.Result.Paths, loopback.PathResult{Path: path, Stage: loopback.StageRegister, Err: loopback.ErrNotRegistered})
	}
	failed.Result.Paths = append(failed.Result.Paths, paths[4])
	failed.Result.Registrations = []loopback.Registration{
		{Method: loopback.MethodPeermem, Err: fmt.Errorf("ibv_reg_mr: %w", syscall.EFAULT)}, {Method: loopback.MethodDMABuf, Err: fmt.Errorf("dma-buf export: %w", syscall.EOPNOTSUPP)},
	}
	failed.Result.Method, failed.Result.NCCLMethod = "", loopback.MethodPeermem
	pair.LastAttempt = failed.Time
	if !confirmed {
		pair.Unconfirmed, pair.Withdrawn = &failed, prober.WithdrawnFailed
		return pair
	}
	pair.Full, pair.Registration = &failed, &failed
	pair.Due = failed.Time.Add(time.Hour)
	return pair
}

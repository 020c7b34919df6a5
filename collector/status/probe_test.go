package status

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma/loopback"
)

// healthyRun is a run as a good pair gives it, at 10 GB/s on host memory.
func healthyRun() *loopback.Result {
	r := &loopback.Result{
		Device: "mlx5_0", Port: 1, Started: time.Unix(1_800_000_000, 0).UTC(), Duration: 900 * time.Millisecond, MTU: 4096, Ethernet: true,
		GID:    sysread.Some(loopback.GID{Index: 3, Address: netip.MustParseAddr("::ffff:192.0.2.7"), Type: "RoCE v2"}),
		Method: loopback.MethodDMABuf, NCCLMethod: loopback.MethodDMABuf, NICDMABuf: sysread.Some(true), RelaxedOrdering: sysread.Some(true),
		Registrations: []loopback.Registration{
			{Method: loopback.MethodPeermem, Err: &loopback.Error{Call: "ibv_reg_mr", Errno: syscall.EFAULT}, Duration: time.Millisecond},
			{Method: loopback.MethodDMABuf, Duration: 2 * time.Millisecond, RelaxedOrdering: true},
		},
		TransferredBytes: 900_000_000,
	}
	for _, stage := range []loopback.Stage{loopback.StageOpen, loopback.StageGate, loopback.StageAlloc, loopback.StageRegister, loopback.StageTeardown} {
		r.Stages = append(r.Stages, loopback.StageResult{Stage: stage, Duration: time.Millisecond})
	}
	for i, path := range loopback.Paths {
		rate := []float64{10e9, 9.5e9, 9.8e9, 9.4e9, 4.1e9}[i]
		r.Paths = append(r.Paths, loopback.PathResult{
			Path: path, BytesPerSecond: sysread.Some(rate), Bytes: 128 << 20, Ratio: sysread.Some(rate / 10e9),
			LatencyMedian: sysread.Some(1900 * time.Nanosecond), LatencyP99: sysread.Some(2600 * time.Nanosecond),
			CPUSecondsPerGB: sysread.Some(0.004), Mismatches: sysread.Some(0), Verified: 64 << 20,
		})
	}
	return r
}

// TestProbeOutcome: the report has the judgement by the pair's distance.
func TestProbeOutcome(t *testing.T) {
	r := healthyRun()
	r.Paths[1].BytesPerSecond, r.Paths[1].Ratio = sysread.Some(7e9), sysread.Some(0.7)
	for distance, want := range map[affinity.Distance]loopback.Outcome{affinity.PXB: loopback.Slow, affinity.NODE: loopback.Fine} {
		report := NewProbeReport("0000:1b:00.0", distance, r)
		if report.Outcome != want || (want == loopback.Slow) != slices.Equal(report.Reasons, []string{"gpu_read: 0.70 of the host path, below 0.85"}) {
			t.Errorf("%s: %s, %q", distance, report.Outcome, report.Reasons)
		}
	}
}

// TestProbeOutput: the table and the JSON of a good run, of one that could not
// register, and of one that did not begin.
func TestProbeOutput(t *testing.T) {
	none := &loopback.Result{Device: "rxe0", Port: 1, Started: time.Unix(1_800_000_000, 0).UTC(), Stages: []loopback.StageResult{
		{Stage: loopback.StageOpen, Err: &loopback.Error{Call: "open /dev/infiniband/uverbs0", Errno: syscall.EACCES}},
	}}
	unregistered := healthyRun()
	unregistered.Method, unregistered.Registrations[1].Err = "", &loopback.Error{Call: "ibv_reg_dmabuf_mr", Errno: syscall.EOPNOTSUPP}
	for i, path := range loopback.Paths {
		if path != loopback.PathHost && path != loopback.PathStaged {
			unregistered.Paths[i] = loopback.PathResult{Path: path, Stage: loopback.StageRegister, Err: loopback.ErrNotRegistered}
		}
	}
	for name, report := range map[string]ProbeReport{
		"good": NewProbeReport("0000:1b:00.0", affinity.PIX, healthyRun()), "unregistered": NewProbeReport("0000:1b:00.0", affinity.PIX, unregistered),
		"no-permission": NewProbeReport("", affinity.Unknown, none),
	} {
		var table, asJSON bytes.Buffer
		if err := errors.Join(report.WriteTable(&table), WriteProbeJSON(&asJSON, []ProbeReport{report})); err != nil {
			t.Fatal(err)
		}
		golden(t, "probe-"+name+".txt", table.Bytes())
		golden(t, "probe-"+name+".json", asJSON.Bytes())
		var back []ProbeReport
		if err := json.Unmarshal(asJSON.Bytes(), &back); err != nil || len(back) != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

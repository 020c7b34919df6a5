package status

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
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
		r.Paths = append(r.Paths, loopback.PathResult{
			Path: path, BytesPerSecond: sysread.Some([]float64{10e9, 9.5e9, 9.8e9, 9.4e9, 4.1e9}[i]), Bytes: 128 << 20,
			LatencyMedian: sysread.Some(1900 * time.Nanosecond), LatencyP99: sysread.Some(2600 * time.Nanosecond),
			CPUSecondsPerGB: sysread.Some(0.004), Mismatches: sysread.Some(0), Verified: 64 << 20,
		})
	}
	return r
}

// on changes one path of a run.
func on(path loopback.Path, change func(*loopback.PathResult)) func(*loopback.Result) {
	return func(r *loopback.Result) { change(&r.Paths[slices.Index(loopback.Paths, path)]) }
}

// fails ends a path with an error, before anything was measured.
func fails(err error) func(*loopback.PathResult) {
	return func(p *loopback.PathResult) {
		*p = loopback.PathResult{Path: p.Path, Stage: loopback.StageMeasure, Err: err}
	}
}

func rate(value float64) func(*loopback.PathResult) {
	return func(p *loopback.PathResult) { p.BytesPerSecond.Value = value }
}

// TestProbeOutcome: what a run says, and why.
func TestProbeOutcome(t *testing.T) {
	protection := &loopback.Error{Call: "completion", Status: loopback.LocalProtection, Vendor: 0x51}
	for name, test := range map[string]struct {
		change   func(*loopback.Result)
		distance affinity.Distance
		want     ProbeOutcome
		reason   string
	}{
		"good":                   {func(*loopback.Result) {}, affinity.PIX, ProbeFine, ""},
		"slow behind a switch":   {on(loopback.PathGPURead, rate(8.4e9)), affinity.PXB, ProbeSlow, "gpu_read: 0.84 of the host path, below 0.85"},
		"as good as it gets far": {on(loopback.PathGPURead, rate(6.1e9)), affinity.NODE, ProbeFine, ""},
		"slow far":               {on(loopback.PathGPUWrite, rate(5.9e9)), affinity.SYS, ProbeSlow, "gpu_write: 0.59 of the host path, below 0.60"},
		"staging is slow":        {on(loopback.PathStaged, rate(1e9)), affinity.PIX, ProbeFine, ""},
		"not registered":         {on(loopback.PathGPU, fails(loopback.ErrNotRegistered)), affinity.PIX, ProbeFailed, "gpu: GPU memory not registered"},
		"not supported": {func(r *loopback.Result) {
			r.GPU = sysread.Some(loopback.GPUFacts{})
			on(loopback.PathGPU, fails(loopback.ErrNotRegistered))(r)
		}, affinity.PIX, ProbeUnsupported, "gpu: the GPU does not support GPUDirect RDMA"},
		"capable, not registered": {func(r *loopback.Result) {
			r.GPU = sysread.Some(loopback.GPUFacts{GPUDirectRDMA: true})
			on(loopback.PathGPU, fails(loopback.ErrNotRegistered))(r)
		}, affinity.PIX, ProbeFailed, "gpu: GPU memory not registered"},
		"NIC does not reach it": {on(loopback.PathGPURead, fails(protection)), affinity.PIX, ProbeFailed, "IBV_WC_LOC_PROT_ERR, vendor error 0x51 (81)"},
		"host path fails":       {on(loopback.PathHost, fails(protection)), affinity.PIX, ProbeNotJudged, "host, stage measure"},
		"port goes down":        {on(loopback.PathGPU, fails(&loopback.Error{Call: "completion", Status: 12})), affinity.PIX, ProbeNotJudged, "IBV_WC_RETRY_EXC_ERR"},
		"data corrupt":          {on(loopback.PathGPU, func(p *loopback.PathResult) { p.Mismatches.Value = 3 }), affinity.PIX, ProbeFailed, "gpu: 3 words of 8 bytes arrived wrong"},
		"host data corrupt":     {on(loopback.PathHost, func(p *loopback.PathResult) { p.Mismatches.Value = 1 }), affinity.PIX, ProbeFailed, "host: 1 words"},
		"port not active":       {func(r *loopback.Result) { r.Paths, r.Stages[1].Err = nil, errors.New("port 1 is DOWN, not ACTIVE") }, affinity.PIX, ProbeNotJudged, "gate: port 1 is DOWN, not ACTIVE"},
		"slow and stopped": {func(r *loopback.Result) {
			on(loopback.PathGPURead, rate(1e9))(r)
			on(loopback.PathStaged, fails(syscall.ECANCELED))(r)
		}, affinity.PIX, ProbeSlow, "staged, stage measure"},
		"teardown fails after good": {func(r *loopback.Result) { r.Stages[4].Err = errors.New("protection domain: EBUSY") }, affinity.PIX, ProbeNotJudged, "teardown: protection domain"},
	} {
		r := healthyRun()
		test.change(r)
		report := NewProbeReport("0000:1b:00.0", test.distance, r)
		reasons := strings.Join(report.Reasons, "; ")
		if report.Outcome != test.want || !strings.Contains(reasons, test.reason) || (test.reason == "") != (reasons == "") {
			t.Errorf("%s: %s, %q, want %s, %q", name, report.Outcome, reasons, test.want, test.reason)
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

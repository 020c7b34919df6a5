package loopback

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gdr_exporter/collector/sysread"
)

// goodRun is a run as a good pair gives it, at 10 GB/s on host memory.
func goodRun() *Result {
	r := &Result{Device: "mlx5_0", Port: 1, GPU: sysread.Some(GPUFacts{GPUDirectRDMA: true, DMABuf: true})}
	for _, stage := range []Stage{StageOpen, StageGate, StageAlloc, StageRegister, StageTeardown} {
		r.Stages = append(r.Stages, StageResult{Stage: stage})
	}
	for i, path := range Paths {
		rate := []float64{10e9, 9.5e9, 9.8e9, 9.4e9, 4.1e9}[i]
		r.Paths = append(r.Paths, PathResult{Path: path, BytesPerSecond: sysread.Some(rate), Ratio: sysread.Some(rate / 10e9), Mismatches: sysread.Some(0)})
	}
	return r
}

// registered is a run that only registered, with an error for each method.
func registered(peermem, dmabuf error) *Result {
	r := goodRun()
	r.RegisterOnly, r.Paths = true, nil
	r.Registrations = []Registration{{Method: MethodPeermem, Err: peermem}, {Method: MethodDMABuf, Err: dmabuf}}
	return r
}

// on changes one path of a run.
func on(path Path, change func(*PathResult)) func(*Result) {
	return func(r *Result) { change(&r.Paths[slices.Index(Paths, path)]) }
}

// failing ends a path with an error, before anything was measured.
func failing(err error) func(*PathResult) {
	return func(p *PathResult) { *p = PathResult{Path: p.Path, Stage: StageMeasure, Err: err} }
}

func atRatio(value float64) func(*PathResult) {
	return func(p *PathResult) { p.Ratio.Value = value }
}

func wrong(n int) func(*PathResult) {
	return func(p *PathResult) { p.Mismatches.Value, p.Err, p.Stage = n, ErrCorrupt, StageVerify }
}

var (
	efault     = &Error{Call: "ibv_reg_mr", Errno: syscall.EFAULT}
	eopnotsupp = &Error{Call: "ibv_reg_dmabuf_mr", Errno: syscall.EOPNOTSUPP}
)

// judgeCase is a change of a run that is good else.
type judgeCase struct {
	change func(*Result)
	direct bool
	want   Outcome
	reason string // is part of the reasons; "": there are none
}

func fullCases() map[string]judgeCase {
	protection := &Error{Call: "completion", Status: LocalProtection, Vendor: 0x51}
	remote := &Error{Call: "completion", Status: RemoteOperation, Vendor: 0x89}
	notRegistered := errors.Join(ErrNotRegistered, fmt.Errorf("peermem: %w", efault))
	incapable := func(r *Result) { r.GPU = sysread.Some(GPUFacts{}) }
	both := func(changes ...func(*Result)) func(*Result) {
		return func(r *Result) {
			for _, change := range changes {
				change(r)
			}
		}
	}
	return map[string]judgeCase{
		"no path":                      {change: func(r *Result) { r.Paths = nil }, want: NotJudged, reason: "nothing was measured"},
		"good":                         {both(), true, Fine, ""},
		"slow behind a switch":         {on(PathGPURead, atRatio(0.84)), true, Slow, "gpu_read: 0.84 of the host path, below 0.85"},
		"as good as it gets far":       {on(PathGPURead, atRatio(0.61)), false, Fine, ""},
		"slow far":                     {on(PathGPUWrite, atRatio(0.59)), false, Slow, "gpu_write: 0.59 of the host path, below 0.60"},
		"staging is slow":              {on(PathStaged, atRatio(0.1)), true, Fine, ""},
		"not registered":               {on(PathGPU, failing(notRegistered)), true, Failed, "gpu: GPU memory not registered; peermem: ibv_reg_mr: EFAULT"},
		"not supported":                {both(incapable, on(PathGPU, failing(notRegistered))), true, Unsupported, "does not claim GPUDirect RDMA"},
		"not registered, GPU unknown":  {both(func(r *Result) { r.GPU.Known = false }, on(PathGPU, failing(notRegistered))), true, Failed, "gpu: GPU memory"},
		"incapable, but reached":       {incapable, true, Fine, ""},
		"NIC does not reach it":        {on(PathGPURead, failing(protection)), true, Failed, "IBV_WC_LOC_PROT_ERR, vendor error 0x51 (81)"},
		"NIC does not reach it there":  {on(PathGPUWrite, failing(remote)), true, Failed, "IBV_WC_REM_OP_ERR, vendor error 0x89 (137)"},
		"nor does the host path":       {both(on(PathHost, failing(protection)), on(PathGPURead, failing(protection))), true, NotJudged, "host, stage measure"},
		"staging fails":                {on(PathStaged, failing(protection)), true, NotJudged, "staged, stage measure"},
		"host path fails":              {both(on(PathHost, failing(protection)), on(PathGPU, func(p *PathResult) { p.Ratio.Known = false })), true, NotJudged, "host, stage measure"},
		"host fails late":              {both(on(PathHost, func(p *PathResult) { p.Err, p.Stage = protection, StageVerify }), on(PathGPU, atRatio(0.1))), true, NotJudged, "host, stage verify"},
		"host fails, none registers":   {both(on(PathHost, failing(protection)), on(PathGPU, failing(notRegistered))), true, Failed, "GPU memory not registered"},
		"no host path":                 {func(r *Result) { r.Paths = []PathResult{{Path: PathGPU, BytesPerSecond: sysread.Some(1.0)}} }, true, NotJudged, "gpu: no host path to compare with"},
		"host path alone":              {func(r *Result) { r.Paths = r.Paths[:1] }, true, Fine, ""},
		"port goes down":               {on(PathGPU, failing(&Error{Call: "completion", Status: 12})), true, NotJudged, "IBV_WC_RETRY_EXC_ERR"},
		"data corrupt":                 {on(PathGPU, wrong(3)), true, Corrupt, "gpu: 3 words of 8 bytes arrived wrong"},
		"host data corrupt":            {on(PathHost, wrong(1)), true, Corrupt, "host: 1 words"},
		"corrupt is worse than failed": {both(on(PathStaged, wrong(1)), on(PathGPU, failing(protection))), true, Corrupt, "gpu: completion"},
		"data-direct":                  {on(PathGPU, failing(ErrDataDirect)), true, NotJudged, "data-direct"},
		"port not active":              {func(r *Result) { r.Paths, r.Stages[1].Err = nil, errors.New("port 1 is DOWN") }, true, NotJudged, "gate: port 1 is DOWN"},
		"slow and stopped":             {both(on(PathGPURead, atRatio(0.1)), on(PathStaged, failing(syscall.ECANCELED))), true, Slow, "staged, stage measure"},
		"teardown fails after good":    {func(r *Result) { r.Stages[4].Err = errors.New("protection domain: EBUSY") }, true, NotJudged, "teardown: protection domain"},
	}
}

func registerCases() map[string]judgeCase {
	as := func(other *Result, changes ...func(*Result)) func(*Result) {
		return func(r *Result) {
			*r = *other
			for _, change := range changes {
				change(r)
			}
		}
	}
	return map[string]judgeCase{
		"both register":           {as(registered(nil, nil)), true, Fine, ""},
		"peermem registers":       {as(registered(nil, eopnotsupp)), true, Fine, ""},
		"dma-buf registers":       {as(registered(efault, nil)), true, Fine, ""},
		"neither":                 {as(registered(efault, eopnotsupp)), true, Failed, "GPU memory not registered: peermem EFAULT, dmabuf EOPNOTSUPP"},
		"neither, incapable":      {as(registered(efault, eopnotsupp), func(r *Result) { r.GPU.Value.GPUDirectRDMA = false }), true, Unsupported, "peermem EFAULT, dmabuf EOPNOTSUPP: the GPU does not claim"},
		"neither, GPU not known":  {as(registered(efault, eopnotsupp), func(r *Result) { r.GPU.Known = false }), true, Failed, "peermem EFAULT"},
		"data-direct":             {as(registered(efault, eopnotsupp), func(r *Result) { r.DataDirect = sysread.Some(true) }), true, NotJudged, "data-direct"},
		"data-direct, registered": {as(registered(nil, nil), func(r *Result) { r.DataDirect = sysread.Some(true) }), true, NotJudged, "data-direct"},
		"not begun": {as(registered(nil, nil), func(r *Result) {
			r.Registrations, r.Stages = nil, []StageResult{{Stage: StageOpen, Err: ErrNoLibrary}}
		}), true, NotJudged, "open: no usable libibverbs"},
		"stopped between": {as(registered(efault, nil), func(r *Result) { r.Registrations = r.Registrations[:1] }), true, NotJudged, "not tried"},
		"not given back":  {as(registered(nil, nil), func(r *Result) { r.Stages[4].Err = errors.New("memory region: EBUSY") }), true, NotJudged, "teardown: memory region"},
	}
}

// TestJudge: what a run says, and why.
func TestJudge(t *testing.T) {
	for _, cases := range []map[string]judgeCase{fullCases(), registerCases()} {
		for name, test := range cases {
			r := goodRun()
			test.change(r)
			j := Judge(r, test.direct, DefaultLimits)
			reasons := strings.Join(j.Reasons, " | ")
			if j.Outcome != test.want || !strings.Contains(reasons, test.reason) || (test.reason == "") != (len(j.Reasons) == 0) || strings.Contains(reasons, "\n") {
				t.Errorf("%s: %s, %q, want %s, %q", name, j.Outcome, reasons, test.want, test.reason)
			}
			if j.Reasons == nil {
				t.Errorf("%s: the reasons are null in JSON", name)
			}
		}
	}
	r := goodRun()
	if j := Judge(r, true, Limits{Direct: 0.96, Far: 0.1}); j.Outcome != Slow {
		t.Errorf("with a limit of 0.96: %s", j.Outcome)
	}
}

func TestWorse(t *testing.T) {
	for i, worse := range outcomes {
		for k, than := range outcomes {
			if worse.Worse(than) != (i > k) {
				t.Errorf("%s worse than %s: %v", worse, than, i <= k)
			}
		}
	}
	if Outcome("").Worse(Fine) || !Fine.Worse("") {
		t.Error("no outcome is worse than fine")
	}
}

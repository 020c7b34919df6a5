package loopback

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gdr_exporter/collector/sysread"
)

// Outcome is what a run says of a pair.
type Outcome string

// Outcomes of a run, from good to bad; NotJudged is neither.
const (
	Fine      Outcome = "fine"       // what was tried works and is within the limits
	NotJudged Outcome = "not judged" // nothing could be measured: port down, busy, no library
	// Unsupported: GPU memory cannot be registered, and the GPU does not claim that
	// it can (GPUDirect RDMA attribute 0: GeForce, vGPU).
	Unsupported Outcome = "unsupported"
	Slow        Outcome = "slow"    // a path through the NIC's access to GPU memory is below its limit
	Failed      Outcome = "failed"  // the NIC does not reach GPU memory
	Corrupt     Outcome = "corrupt" // data arrived wrong
)

var outcomes = []Outcome{Fine, NotJudged, Unsupported, Slow, Failed, Corrupt}

// Worse reports whether an outcome comes after another in the order from good to
// bad. What is no outcome is not worse than any.
func (o Outcome) Worse(than Outcome) bool {
	return slices.Index(outcomes, o) > slices.Index(outcomes, than)
}

// Judgement is what a run says of a pair, and why it is not fine.
type Judgement struct {
	Outcome Outcome  `json:"outcome"`
	Reasons []string `json:"reasons"`
}

// Limits are the ratios to the host path below which a direct path is slow: at
// distances where libraries use GPUDirect RDMA by default, and at others.
type Limits struct{ Direct, Far float64 }

// DefaultLimits leave room for noise and for the loss that healthy machines show.
var DefaultLimits = Limits{Direct: 0.85, Far: 0.6}

// Judge says what a run means: this run alone. What it means for jobs, and whether
// it is news, is for the caller. direct says whether libraries use GPUDirect RDMA
// at the pair's distance by default.
//
// The host path is the control. If it fails, what the NIC did with GPU memory
// proves nothing, but that the memory could not be registered. That data arrived
// wrong is the worst on any path.
func Judge(r *Result, direct bool, limits Limits) Judgement {
	j := &Judgement{Outcome: Fine, Reasons: []string{}}
	for i := range r.Stages {
		if stage := &r.Stages[i]; stage.Err != nil && stage.Path == "" {
			j.add(NotJudged, "%s: %v", stage.Stage, stage.Err)
		}
	}
	if r.RegisterOnly {
		j.registrations(r)
		return *j
	}
	limit := limits.Far
	if direct {
		limit = limits.Direct
	}
	controlled := true
	for i := range r.Paths {
		if p := &r.Paths[i]; p.Path == PathHost {
			controlled = p.Err == nil
		}
	}
	for i := range r.Paths {
		j.path(r, &r.Paths[i], controlled, limit)
	}
	if len(r.Paths) == 0 && len(j.Reasons) == 0 {
		j.add(NotJudged, "nothing was measured")
	}
	return *j
}

// add notes a reason, on one line, and an outcome if it is worse.
func (j *Judgement) add(outcome Outcome, format string, args ...any) {
	if outcome.Worse(j.Outcome) {
		j.Outcome = outcome
	}
	j.Reasons = append(j.Reasons, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// path judges one path of a full run.
func (j *Judgement) path(r *Result, p *PathResult, controlled bool, limit float64) {
	switch {
	case p.Mismatches.Value > 0:
		j.add(Corrupt, "%s: %d words of 8 bytes arrived wrong", p.Path, p.Mismatches.Value)
	case errors.Is(p.Err, ErrNotRegistered):
		j.unregistered(r, "%s: %v", p.Path, p.Err)
	case p.Err != nil && p.Path.direct() && controlled && unreachable(p.Err):
		j.add(Failed, "%s: %v", p.Path, p.Err)
	case p.Err != nil:
		j.add(NotJudged, "%s, stage %s: %v", p.Path, p.Stage, p.Err)
	case !p.Path.direct() || !controlled:
	case !p.Ratio.Known:
		j.add(NotJudged, "%s: no host path to compare with", p.Path)
	case p.Ratio.Value < limit:
		j.add(Slow, "%s: %.2f of the host path, below %.2f", p.Path, p.Ratio.Value, limit)
	}
}

// registrations judges a run that only registered.
func (j *Judgement) registrations(r *Result) {
	if r.DataDirect.Value {
		j.add(NotJudged, "%v", ErrDataDirect)
		return
	}
	var failures []string
	for i := range r.Registrations {
		tried := &r.Registrations[i]
		if tried.Err == nil {
			return
		}
		failures = append(failures, fmt.Sprintf("%s %s", tried.Method, sysread.ErrnoName(tried.Err)))
	}
	switch {
	case len(failures) == len(methods):
		j.unregistered(r, "%v: %s", ErrNotRegistered, strings.Join(failures, ", "))
	case j.Outcome == Fine:
		j.add(NotJudged, "registration was not tried")
	}
}

// unregistered judges that no method registers GPU memory. Of a GPU that claims
// GPUDirect RDMA, no errno makes that less than a failure.
func (j *Judgement) unregistered(r *Result, format string, args ...any) {
	if r.GPU.Known && !r.GPU.Value.GPUDirectRDMA {
		j.add(Unsupported, format+": the GPU does not claim GPUDirect RDMA", args...)
		return
	}
	j.add(Failed, format, args...)
}

// unreachable reports whether an error says that the NIC does not reach GPU memory,
// rather than that somebody stopped the run or the port went down.
func unreachable(err error) bool {
	var verbs *Error
	return errors.As(err, &verbs) && (verbs.Status == LocalProtection || verbs.Status == RemoteOperation)
}

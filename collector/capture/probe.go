package capture

import (
	"maps"
	"slices"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// PartProbe are the results of measurements. They are not asked of the kernel:
// whoever records puts them in.
const PartProbe = "probe"

// Questions of PartProbe.
const (
	QuestionProber = "STATUS" // a ProberStatus
	QuestionLedger = "LEDGER" // a loopback.Ledger
)

// ProberStatus is prober.Status in a recording.
type ProberStatus struct {
	Interval        time.Duration            `json:"interval_ns"`
	Isolation       prober.Isolation         `json:"isolation"`
	IsolationReason string                   `json:"isolation_reason,omitempty"`
	QuiescedUntil   time.Time                `json:"quiesced_until,omitzero"`
	Pairs           []ProberPair             `json:"pairs"`
	Runs            []ProberRuns             `json:"runs,omitempty"`
	Skips           map[prober.Reason]uint64 `json:"skips,omitempty"`
	Running         *prober.Pair             `json:"running,omitempty"`
}

// ProberRuns is a number of runs since start.
type ProberRuns struct {
	Depth  prober.Depth     `json:"depth"`
	Result prober.RunResult `json:"result"`
	Count  uint64           `json:"count"`
}

// ProberPair is prober.PairStatus in a recording.
type ProberPair struct {
	prober.Candidate
	LastAttempt  time.Time                  `json:"last_attempt,omitzero"`
	LastSuccess  map[prober.Depth]time.Time `json:"last_success,omitempty"`
	Full         *prober.Completed          `json:"full,omitempty"`
	Registration *prober.Completed          `json:"registration,omitempty"`
	Withdrawn    string                     `json:"withdrawn,omitempty"`
	Unconfirmed  *prober.Completed          `json:"unconfirmed,omitempty"`
	Skip         prober.Reason              `json:"skip,omitempty"`
	Due          time.Time                  `json:"due,omitzero"`
	Hung         time.Time                  `json:"hung,omitzero"`
	HungStage    loopback.Stage             `json:"hung_stage,omitempty"`
	Mismatches   uint64                     `json:"mismatches,omitempty"`
	Baseline     *float64                   `json:"baseline_bytes_per_second,omitempty"`
}

// NewProberStatus takes what the prober shows.
func NewProberStatus(s *prober.Status) *ProberStatus {
	status := &ProberStatus{
		Interval: s.Interval, Isolation: s.Isolation, IsolationReason: s.IsolationReason, QuiescedUntil: s.QuiescedUntil,
		Pairs: make([]ProberPair, 0, len(s.Pairs)), Skips: s.Skips, Running: s.Running,
	}
	for i := range s.Pairs {
		p := &s.Pairs[i]
		status.Pairs = append(status.Pairs, ProberPair{
			p.Candidate, p.LastAttempt, p.LastSuccess, p.Full, p.Registration, p.Withdrawn, p.Unconfirmed,
			p.Skip, p.Due, p.Hung, p.HungStage, p.Mismatches, pointer(p.Baseline),
		})
	}
	for _, kind := range slices.SortedFunc(maps.Keys(s.Runs), compareRuns) {
		status.Runs = append(status.Runs, ProberRuns{kind.Depth, kind.Result, s.Runs[kind]})
	}
	return status
}

func compareRuns(a, b prober.RunKind) int {
	if a.Depth != b.Depth {
		return slices.Index(prober.Depths, a.Depth) - slices.Index(prober.Depths, b.Depth)
	}
	return slices.Index(prober.RunResults, a.Result) - slices.Index(prober.RunResults, b.Result)
}

// Status is what the prober showed.
func (s *ProberStatus) Status() *prober.Status {
	status := &prober.Status{
		Interval: s.Interval, Isolation: s.Isolation, IsolationReason: s.IsolationReason, QuiescedUntil: s.QuiescedUntil,
		Runs: map[prober.RunKind]uint64{}, Skips: s.Skips, Running: s.Running,
	}
	for i := range s.Pairs {
		p := &s.Pairs[i]
		status.Pairs = append(status.Pairs, prober.PairStatus{
			Candidate: p.Candidate, LastAttempt: p.LastAttempt, LastSuccess: p.LastSuccess, Full: p.Full, Registration: p.Registration,
			Withdrawn: p.Withdrawn, Unconfirmed: p.Unconfirmed, Skip: p.Skip, Due: p.Due, Hung: p.Hung, HungStage: p.HungStage,
			Mismatches: p.Mismatches, Baseline: maybe(p.Baseline),
		})
	}
	for _, runs := range s.Runs {
		status.Runs[prober.RunKind{Depth: runs.Depth, Result: runs.Result}] = runs.Count
	}
	return status
}

// Prober keeps what the prober showed. Nothing is kept of a nil status.
func (r *Recorder) Prober(status *prober.Status) {
	if status != nil {
		note(r.answers, answerKey{PartProbe, QuestionProber}, NewProberStatus(status), nil)
	}
}

// Ledger keeps what measurements on the host add up to, or why it could not be
// read.
func (r *Recorder) Ledger(ledger *loopback.Ledger, err error) {
	note(r.answers, answerKey{PartProbe, QuestionLedger}, ledger, err)
}

// Prober is what the prober showed; nil if that was not recorded.
func (p *Player) Prober() *prober.Status {
	if !p.answers.knows(PartProbe, QuestionProber) {
		return nil
	}
	status, err := answer[ProberStatus](p.answers, PartProbe, QuestionProber)
	if err != nil {
		return nil
	}
	return p.shown(status.Status())
}

// Ledger is what measurements on the host added up to. One that was not recorded
// cannot be told from one that was not there: both are without runs.
func (p *Player) Ledger() (loopback.Ledger, error) {
	none := loopback.Ledger{Version: 1, Transferred: map[string]uint64{}, GPUs: map[string]loopback.LedgerGPU{}}
	if !p.answers.knows(PartProbe, QuestionLedger) {
		return none, nil
	}
	ledger, err := answer[loopback.Ledger](p.answers, PartProbe, QuestionLedger)
	if err != nil {
		return none, err
	}
	if ledger.Version != 1 || ledger.Transferred == nil || ledger.GPUs == nil {
		return none, sysread.Invalid(QuestionLedger)
	}
	return ledger, nil
}

// knows reports whether a question was answered, or hung, without waiting.
func (p *answerPlayer) knows(part, question string) bool {
	_, found := p.answers[answerKey{part, question}]
	return found
}

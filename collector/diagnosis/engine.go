package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/loopback"
)

// EngineOptions say what an Engine judges by beside the Snapshots.
type EngineOptions struct {
	// Libraries and Named are those of Input.
	Libraries []string
	Named     func(gpu, device string) bool
	// Patience is the longest that what a rule finds must hold before it is a
	// finding, for rules that wait a minute or less: who looks once has no minute.
	// 0: as each rule says. Rules that wait longer do so for what is usual after a boot.
	Patience time.Duration
	// SuspectAfter and LiveFlow are those of LiveHistory.
	SuspectAfter time.Duration
	LiveFlow     float64
	// Changed is called once for each change, in order; nil: nobody is told. It must
	// not call the Engine.
	Changed func(Change)
}

// Change is a pair's state or a finding that came, went or became another.
type Change struct {
	Time time.Time
	// Path is set for a pair, with the state and evidence that it had before, ""
	// if it is new. Numbers are what was measured of it, "" if nothing was.
	Path    *Path
	Before  State
	Numbers string
	// Finding is set for a finding; Gone: it is not there any more.
	Finding *Finding
	Gone    bool
}

// Engine diagnoses one Snapshot after the other, with what the earlier ones said.
// Its methods may be called concurrently.
type Engine struct {
	options EngineOptions

	mu       sync.Mutex
	history  *history
	live     LiveHistory
	liveUses func(*snapshot.Snapshot, *LiveHistory) []LiveUse
	snapshot *snapshot.Snapshot // that last is of
	last     *Diagnosis
}

// NewEngine returns an Engine that knows of no Snapshot.
func NewEngine(options EngineOptions) *Engine {
	e := &Engine{options: options, history: newHistory(), liveUses: LiveUses}
	e.history.patience = options.Patience
	e.live.SuspectAfter, e.live.Flow = options.SuspectAfter, options.LiveFlow
	return e
}

// Diagnose says what a Snapshot means; the same one again costs nothing. Of one
// that was not asked for everything (collect[]=), or that is a little older than the last,
// nothing is concluded: the last Diagnosis stands, nil if there is none.
func (e *Engine) Diagnose(s *snapshot.Snapshot) *Diagnosis {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s == nil || s == e.snapshot || !s.Asked[snapshot.CollectorPath] || e.late(s) {
		return e.last
	}
	in := &Input{Snapshot: s, Libraries: e.options.Libraries, Named: e.options.Named}
	if s.Expected != nil {
		in.Expected = *s.Expected
	}
	n := newNode(in, e.history)
	n.live, n.choices = e.liveUses(s, &e.live), Choices(s)
	before := e.last
	e.snapshot, e.last = s, e.judge(n)
	if e.options.Changed != nil {
		e.tell(n, before)
	}
	return e.last
}

// atOnce is how far apart Snapshots may have been taken that are diagnosed in the
// wrong order. One that is older by more is of a clock that was set back.
const atOnce = time.Minute

// late reports whether a later Snapshot was diagnosed already.
func (e *Engine) late(s *snapshot.Snapshot) bool {
	if e.last == nil {
		return false
	}
	by := e.last.Time.Sub(s.Taken)
	return by > 0 && by < atOnce
}

// Last returns the last Diagnosis, nil if there is none yet.
func (e *Engine) Last() *Diagnosis {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

func (e *Engine) judge(n *node) *Diagnosis {
	n.findPaths()
	e.history.learn(n)
	d := &Diagnosis{Time: n.now, Live: n.live, Choices: n.choices, Expected: n.Expected, Paths: make([]Path, len(n.paths))}
	for i := range n.paths {
		n.decide(&n.paths[i])
		e.history.since(n.now, &n.paths[i])
	}
	d.Rules = make([]RuleResult, len(rules))
	e.history.round++
	var j judging
	for i := range rules {
		rules[i].run(n, &j)
		before := len(d.Findings)
		d.Findings = e.history.hold(n.now, &j, d.Findings)
		d.Rules[i] = j.result(len(d.Findings) > before)
	}
	slices.SortStableFunc(d.Findings, func(a, b Finding) int {
		return severityOrder[a.Severity] - severityOrder[b.Severity]
	})
	for i := range n.paths {
		n.explain(&n.paths[i], d.Findings)
		d.Paths[i] = n.paths[i].Path
	}
	return d
}

// since notes when a path got the state that it has.
func (h *history) since(now time.Time, p *way) {
	last, known := h.states[p.key()]
	if !known || last.state != p.State || last.evidence != p.Evidence {
		if !known || last.state != p.State {
			last.since = now
		}
		last.state, last.evidence = p.State, p.Evidence
		put(h.states, p.key(), last)
	}
	p.Since = last.since
}

type findingKey struct {
	rule    string
	subject Subject
}

func (f *Finding) key() findingKey { return findingKey{f.Rule, f.Subject} }

// held is a finding that is there, or that is not yet one.
type held struct {
	finding Finding
	shown   bool      // it is a finding
	last    time.Time // when it was found last
	round   uint64    // in which
}

// keepUnjudged is how long a finding stays while its rule cannot be judged.
const keepUnjudged = 10 * time.Minute

// hold adds a rule's findings to those of the Diagnosis: without those that have
// not held for long enough, with those that were there a moment ago.
func (h *history) hold(now time.Time, j *judging, findings []Finding) []Finding {
	of := h.held[j.rule.ID]
	if of == nil {
		if len(j.found) == 0 {
			return findings
		}
		of = map[Subject]*held{}
		h.held[j.rule.ID] = of
	}
	first := len(findings)
	for i := range j.found {
		f := &j.found[i]
		known := of[f.Subject]
		switch {
		case known == nil:
			f.Since = now
			known = &held{finding: *f}
			put(of, f.Subject, known)
		case known.round == h.round:
			continue // the rule found it twice
		}
		f.Since = known.finding.Since
		known.finding, known.last, known.round = *f, now, h.round
		known.shown = known.shown || now.Sub(f.Since) >= h.after(j.rule)
		if known.shown {
			findings = append(findings, *f)
		}
	}
	findings = h.keep(now, j, of, findings)
	slices.SortFunc(findings[first:], func(a, b Finding) int { return a.Subject.compare(&b.Subject) })
	return findings
}

// keep adds findings that the rule did not find any more, for a while, and forgets
// the others. Of a rule that cannot be judged nothing is forgotten soon.
func (h *history) keep(now time.Time, j *judging, of map[Subject]*held, findings []Finding) []Finding {
	for subject, known := range of {
		hold := j.rule.hold
		if len(j.missing) > 0 && !slices.Contains(j.cleared, subject) {
			hold = max(hold, keepUnjudged)
		}
		switch {
		case known.round == h.round:
		case !known.shown && len(j.missing) == 0, now.Sub(known.last) >= hold:
			delete(of, subject)
		case known.shown:
			findings = append(findings, known.finding)
		}
	}
	if len(of) == 0 {
		delete(h.held, j.rule.ID)
	}
	return findings
}

func (s *Subject) compare(other *Subject) int {
	return cmp.Or(strings.Compare(s.GPU, other.GPU), strings.Compare(s.Device, other.Device), s.Port-other.Port,
		strings.Compare(s.Address, other.Address), strings.Compare(s.Other, other.Other))
}

// tell tells of what differs from the Diagnosis before, which may be nil.
func (e *Engine) tell(n *node, before *Diagnosis) {
	if before == nil {
		before = &Diagnosis{}
	}
	states := make(map[pairKey]State, len(before.Paths))
	for i := range before.Paths {
		states[pairKey{before.Paths[i].GPU, before.Paths[i].Device}] = before.Paths[i].State
	}
	for i := range e.last.Paths {
		p := &e.last.Paths[i]
		if was := states[pairKey{p.GPU, p.Device}]; was != p.State {
			e.options.Changed(Change{Time: n.now, Path: p, Before: was, Numbers: n.paths[i].numbers()})
		}
	}
	e.tellFindings(n.now, e.last.Findings, before.Findings, false)
	e.tellFindings(n.now, before.Findings, e.last.Findings, true)
}

// tellFindings tells of those in one Diagnosis that are not in another.
func (e *Engine) tellFindings(now time.Time, in, notIn []Finding, gone bool) {
	if len(in) == 0 {
		return
	}
	there := make(map[findingKey]bool, len(notIn))
	for i := range notIn {
		there[notIn[i].key()] = true
	}
	for i := range in {
		if !there[in[i].key()] {
			e.options.Changed(Change{Time: now, Finding: &in[i], Gone: gone})
		}
	}
}

// numbers are the rates of the standing full run.
func (p *way) numbers() string {
	if p.status == nil || p.status.Full == nil {
		return ""
	}
	var text []string
	for _, at := range []loopback.Path{loopback.PathHost, loopback.PathGPURead, loopback.PathGPUWrite, loopback.PathGPU, loopback.PathStaged} {
		if value, known := pathRate(p.status.Full, at); known {
			text = append(text, fmt.Sprintf("%s %s", at, rate(value)))
		}
	}
	return strings.Join(text, ", ")
}

// causes are the rules that explain a state, the best explanation first.
var causes = []string{
	idCorrupt, idGPULost, idDriverUnloaded, idProbeHung, idDriverMismatch, idNVMLStuck, idPeermemABI, idPeermemStale, idPeermemBoth,
	idTopologyGate, idRegisterMemory, idPeermemUnregistered, idPeermemNotInstalled, idPeermemNotLoaded, idPeermemRefused,
	idNICMissing, idPortNoSM, idPortDown, idControl, idLinkWidth, idLinkSpeed, idACSRedirect, idACSDataDirect, idATSOff, idIOMMU, idP2PBlocked,
	idOrdering, idReadSlow, idUnsupported, idQuiesced,
}

// explain names the finding that explains a path's state best.
func (n *node) explain(p *way, findings []Finding) {
	if p.State == StateDirect || len(findings) == 0 {
		return
	}
	best := len(causes)
	for i := range findings {
		if at := slices.Index(causes, findings[i].Rule); at >= 0 && at < best && p.concerns(&findings[i].Subject) {
			best = at
		}
	}
	if best < len(causes) {
		p.Cause = causes[best]
	}
}

// concerns reports whether a finding about a subject can be about a path.
func (p *way) concerns(s *Subject) bool {
	if s.GPU != "" && s.GPU != p.GPU || s.Device != "" && s.Device != p.Device {
		return false
	}
	return s.Address == "" || s.GPU != "" || s.Device != "" || p.passes(s.Address)
}

// passes reports whether a PCI function is on a path.
func (p *way) passes(address string) bool {
	return address == p.GPU || p.tree != nil &&
		(address == p.tree.NIC || address == p.tree.Common || slices.Contains(p.tree.GPUSide, address) || slices.Contains(p.tree.NICSide, address))
}

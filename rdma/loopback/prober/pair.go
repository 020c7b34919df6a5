package prober

import (
	"fmt"
	"strings"
	"time"

	"gdr_exporter/rdma/loopback"
)

// A result that would worsen what is known is repeated this often, within this.
const (
	mostRepeats  = 3
	repeatWithin = 5 * time.Minute
)

// pair is what the prober knows of a pair.
type pair struct {
	Pair // is never written to again, and may be read without the lock
	// distance and direct are the Candidate's.
	distance string
	direct   bool
	// phase is where in the interval its runs lie, from 0 to 1.
	phase float64
	due   time.Time // of the next full run
	// attempted are when runs began last, by depth; succeeded those that proved
	// something good.
	attempted, succeeded map[Depth]time.Time
	// full and registration stand; see PairStatus.
	full, registration *Completed
	withdrawn          string
	repeat             *repeat
	broken             int         // runs that could not be carried through, in a row
	refused            int         // runs that were refused when they began, in a row
	notBefore          time.Time   // that a refused one is tried again
	ups                []time.Time // when the port came up, within the last hour
	seen               time.Time   // when it was last to be measured
	skip               Reason
	hung               time.Time
	hungOn             bool // its call or process is still there
	hungHere           bool // in this process
	hungStage          loopback.Stage
	mismatches         uint64
}

// repeat is a result that waits to be repeated.
type repeat struct {
	result   *Completed // the best of those that agree
	runs     int        // that agree
	until    time.Time
	withdrew bool // the rates
}

// byRegistration reports whether a registration run repeats the result: where that
// is all there was, or where registration is what failed, under load.
func (r *repeat) byRegistration() bool {
	c := r.result
	return c.Depth == DepthRegister || !c.Idle && c.Judgement.Outcome == loopback.Failed && c.Result.Method == ""
}

func newPair(c Candidate, phase float64) *pair {
	p := &pair{Pair: c.Pair, phase: phase}
	p.class(c)
	p.forget()
	return p
}

// class notes how far the pair is.
func (p *pair) class(c Candidate) { p.distance, p.direct = c.Distance, c.Direct }

func (p *pair) candidate() Candidate { return Candidate{p.Pair, p.distance, p.direct} }

// forget drops all results, but not that a run hangs.
func (p *pair) forget() {
	p.attempted, p.succeeded = map[Depth]time.Time{}, map[Depth]time.Time{}
	p.full, p.registration, p.withdrawn, p.repeat, p.mismatches = nil, nil, "", nil, 0
	p.broken, p.refused, p.notBefore = 0, 0, time.Time{}
}

// known is the newest standing result that says how the pair is, nil if none does.
func (p *pair) known() *Completed { return standing(p.full, p.registration) }

// worsens reports whether a result would make the pair look worse than it is
// known to be. Where nothing is known, anything bad does, but for a GPU that does
// not claim to be capable.
func (p *pair) worsens(c *Completed) bool {
	known := p.known()
	if known == nil {
		return !c.Good() && c.Judgement.Outcome != loopback.Unsupported
	}
	return c.Judgement.Outcome.Worse(known.Judgement.Outcome)
}

// complete takes a run that was carried through. It returns what there is to tell.
func (p *pair) complete(c *Completed, now time.Time) []Event {
	p.broken = 0
	if c.Good() {
		p.succeeded[c.Depth] = c.Time
		if c.Depth == DepthFull {
			p.succeeded[DepthRegister] = c.Time
		}
	}
	if !p.worsens(c) {
		p.dropRepeat()
		return p.accept(c)
	}
	if p.repeat == nil {
		p.repeat = &repeat{result: c, until: now.Add(repeatWithin)}
	} else if p.repeat.result.Judgement.Outcome.Worse(c.Judgement.Outcome) || p.repeat.result.Judgement.Outcome == c.Judgement.Outcome {
		p.repeat.result = c
	}
	// What failed has no rates, whether or not it is believed yet.
	if outcome := c.Judgement.Outcome; (outcome == loopback.Failed || outcome == loopback.Corrupt) && p.withdraw() {
		p.repeat.withdrew = true
	}
	p.repeat.runs++
	if p.repeat.runs <= mostRepeats {
		return []Event{{Kind: EventUnconfirmed, Pair: p.Pair, Text: describe(&c.Judgement)}}
	}
	return p.confirm()
}

// confirm believes a result that all repetitions agree with.
func (p *pair) confirm() []Event {
	c := p.repeat.result
	p.repeat = nil
	return p.accept(c)
}

// expireRepeat ends a repetition whose time is over: what was repeated at least
// once counts.
func (p *pair) expireRepeat(now time.Time) []Event {
	if p.repeat == nil || now.Before(p.repeat.until) {
		return nil
	}
	if p.repeat.runs > 1 {
		return p.confirm()
	}
	p.dropRepeat()
	return nil
}

// dropRepeat ends a repetition that nothing came of, or that disagreed.
func (p *pair) dropRepeat() {
	if p.repeat != nil && p.repeat.withdrew && p.withdrawn == WithdrawnFailed {
		p.withdrawn = ""
	}
	p.repeat = nil
}

// accept lets a result stand.
func (p *pair) accept(c *Completed) []Event {
	before := p.known()
	if c.Depth == DepthFull {
		p.full, p.registration, p.withdrawn = c, c, ""
	} else if p.registration == nil || p.registration.Good() || !c.Good() {
		// A bad result is lifted by a full run only.
		p.registration = c
	}
	if after := p.known(); before == nil || after.Judgement.Outcome != before.Judgement.Outcome {
		return []Event{{Kind: EventResult, Pair: p.Pair, Text: describe(&after.Judgement)}}
	}
	return nil
}

// withdraw takes the rates back, and reports whether there were any.
func (p *pair) withdraw() bool {
	if p.full == nil || p.withdrawn != "" {
		return false
	}
	p.withdrawn = WithdrawnFailed
	return true
}

// fail takes a run that could not be carried through, and after repetitions of it
// what was good before.
func (p *pair) fail() []Event {
	p.withdraw()
	p.broken++
	if p.broken <= mostRepeats || p.full == nil || !p.full.Good() {
		return nil
	}
	p.full = nil
	if p.registration != nil && p.registration.Depth == DepthFull {
		p.registration = nil
	}
	return []Event{{Kind: EventWithdrawn, Pair: p.Pair, Text: "no run since could be carried through"}}
}

// invalidate drops all results: after what happened they say nothing.
func (p *pair) invalidate(withdrawn, text string) []Event {
	had := p.known() != nil
	if p.full != nil {
		p.withdrawn = withdrawn
	}
	p.full, p.registration, p.repeat = nil, nil, nil
	p.broken, p.refused, p.notBefore = 0, 0, time.Time{}
	if !had {
		return nil
	}
	return []Event{{Kind: EventWithdrawn, Pair: p.Pair, Text: text}}
}

// age drops good results that are too old. Bad ones do not age out.
func (p *pair) age(now time.Time, most time.Duration) []Event {
	old := func(c *Completed) bool { return c != nil && c.Good() && now.Sub(c.Time) > most }
	var events []Event
	if old(p.full) {
		p.full, p.withdrawn = nil, WithdrawnAged
		events = []Event{{Kind: EventWithdrawn, Pair: p.Pair, Text: fmt.Sprintf("older than %v", most)}}
	}
	if old(p.registration) {
		p.registration = nil
	}
	return events
}

// setSkip notes why the pair is not measured, and reports whether that is news.
func (p *pair) setSkip(reason Reason) bool {
	news := p.skip != reason
	p.skip = reason
	return news
}

func describe(j *loopback.Judgement) string {
	return strings.Join(append([]string{string(j.Outcome)}, j.Reasons...), "; ")
}

package prober

import (
	"math"
	"slices"
	"time"
)

const (
	// lookEvery is how often the prober looks by itself when nobody else does.
	lookEvery = time.Minute
	// freshLook is how old a look may be when something is to be measured.
	freshLook = 5 * time.Second
	// retryBusy is how often the load of a due pair is looked at, retryBroken after
	// what a run is tried again that could not be carried through.
	retryBusy   = 30 * time.Second
	retryBroken = time.Minute
	// leastWait is the least time between two rounds of runs, whatever is due.
	leastWait = time.Second
	// leastGap is the least time between a full run and one that an event asks for:
	// jobs of a few seconds would bring one each time.
	leastGap = 5 * time.Minute
)

// nextDue is the first time after now that lies at the pair's phase of the
// interval, and at least half an interval after the last run: runs of one node
// and of many are spread, and never aligned with anything.
func (p *pair) nextDue(now time.Time, interval time.Duration) time.Time {
	earliest := now.Add(interval / 2)
	offset := time.Duration(p.phase * float64(interval))
	periods := math.Ceil(float64(earliest.Sub(epoch)-offset) / float64(interval))
	return epoch.Add(time.Duration(periods)*interval + offset)
}

// epoch is where phases count from. It is recent, so that a time.Duration and
// float64 reach from there to now without loss.
var epoch = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// first sets when a pair is measured first: soon, unless a fresh result is known.
func (p *pair) first(now time.Time, o *Options) {
	if p.full != nil && now.Sub(p.full.Time) < o.Interval && p.withdrawn == "" {
		p.due = p.nextDue(now.Add(-o.Interval/2), o.Interval)
		return
	}
	p.due = now.Add(time.Duration(o.Rand.Float64() * float64(o.FirstWithin)))
}

// hurry makes the pair due at once, if it was not measured a moment ago.
func (p *pair) hurry(now time.Time, gap time.Duration) {
	p.refused, p.notBefore = 0, time.Time{}
	soon := now
	if last := p.attempted[DepthFull]; !last.IsZero() && last.Add(gap).After(soon) {
		soon = last.Add(gap)
	}
	if soon.Before(p.due) {
		p.due = soon
	}
}

// portUp makes the pair due because its port came up: at once the first time, and
// ever later while it goes up and down.
func (p *pair) portUp(now time.Time, most time.Duration) {
	p.ups = slices.DeleteFunc(p.ups, func(at time.Time) bool { return now.Sub(at) >= time.Hour })
	gap := time.Duration(0)
	if n := len(p.ups); n > 0 {
		gap = min(leastGap<<min(n-1, 16), most)
	}
	p.ups = append(p.ups, now)
	p.hurry(now, gap)
}

// need is what a pair is to be run for.
type need int

const (
	needNothing need = iota
	needRegister
	needFull
)

// need says what is due. A full run that waits is due until it was made. Where
// none are scheduled, what was asked for is repeated all the same.
func (p *pair) need(now time.Time, scheduled bool) need {
	switch {
	case now.Before(p.notBefore):
		return needNothing
	case p.repeat != nil && p.repeat.byRegistration():
		return needRegister
	case p.repeat != nil && p.broken == 0, scheduled && !now.Before(p.due):
		return needFull
	}
	return needNothing
}

// refuse puts off the next try after a run that was refused when it began: what
// refuses it was not seen from outside, and trying costs a CUDA context or
// commands to the firmware.
func (p *pair) refuse(now time.Time, most time.Duration) {
	p.notBefore = now.Add(min(retryBroken<<min(p.refused, 16), most))
	p.refused++
}

// untilDue is how long nothing is to be done for the pair after now.
func (p *pair) untilDue(now time.Time, o *Options) time.Duration {
	wait := lookEvery
	switch scheduled := p.hung.IsZero() && o.Interval > 0; {
	case p.notBefore.After(now):
		wait = min(wait, p.notBefore.Sub(now))
	case scheduled && p.due.After(now):
		wait = min(wait, p.due.Sub(now))
	case scheduled && p.skip.passes():
		wait = min(wait, retryBusy)
	case scheduled && p.skip == ReasonNone:
		wait = 0
	}
	switch {
	case p.repeat == nil:
	case p.repeatable(now):
		wait = 0
	default:
		wait = min(wait, max(p.repeat.until.Sub(now), 0))
	}
	return wait
}

// repeatable reports whether a result waits to be repeated, and nothing keeps
// that back: load does not where no traffic is needed.
func (p *pair) repeatable(now time.Time) bool {
	return p.broken == 0 && !now.Before(p.notBefore) && (p.skip == ReasonNone || p.skip.load() && p.repeat.byRegistration())
}

// registerDue reports whether a registration run is due, for a pair whose full
// run has to wait.
func (p *pair) registerDue(now time.Time, interval time.Duration) bool {
	last := p.attempted[DepthRegister]
	if full := p.attempted[DepthFull]; full.After(last) {
		last = full
	}
	return last.IsZero() || now.Sub(last) >= interval
}

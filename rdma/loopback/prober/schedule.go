package prober

import (
	"math"
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
	soon := now
	if last := p.attempted[DepthFull]; !last.IsZero() && last.Add(gap).After(soon) {
		soon = last.Add(gap)
	}
	if soon.Before(p.due) {
		p.due = soon
	}
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
	case p.repeat != nil && p.repeat.result.Depth == DepthRegister:
		return needRegister
	case p.repeat != nil, scheduled && !now.Before(p.due):
		return needFull
	}
	return needNothing
}

// repeatable reports whether a result waits to be repeated, and nothing keeps
// that back: load does not where no traffic is needed.
func (p *pair) repeatable() bool {
	return p.repeat != nil && (p.skip == ReasonNone || p.skip.load() && p.repeat.result.Depth == DepthRegister)
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

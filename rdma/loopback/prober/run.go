package prober

import (
	"context"
	"time"
)

// makeRuns runs the due pairs that can be. It reports whether some wait for
// what changes without being seen: load, the lock, the budget.
func (p *Prober) makeRuns(ctx context.Context, due []*pair) (waiting bool) {
	ctx, done := p.begin(ctx)
	defer done()
	var traffic []*pair // whose load has to be known
	for _, pair := range due {
		depth := DepthFull
		if p.needOf(pair) == needRegister {
			depth = DepthRegister
		}
		switch reason, err := p.gate(pair, depth); {
		case reason != ReasonNone:
			p.skipped(pair, reason, err)
			waiting = waiting || reason.passes()
			if reason == ReasonPort && p.options.Busy != BusyOff {
				p.registerInstead(ctx, pair) // it does not need the port
			}
		case depth == DepthRegister:
			waiting = p.runOnce(ctx, pair, DepthRegister, true, nil).Skip.passes() || waiting
		default:
			traffic = append(traffic, pair)
		}
	}
	if len(traffic) == 0 {
		return waiting
	}
	seen := p.watchLoad(ctx, traffic)
	for _, pair := range traffic {
		if ctx.Err() == nil {
			waiting = p.runUnder(ctx, pair, seen[pair]).passes() || waiting
		}
	}
	return waiting
}

// passes reports whether a reason may pass without being seen by a look.
func (r Reason) passes() bool {
	switch r {
	case ReasonNICBusy, ReasonGPUBusy, ReasonLoadUnknown, ReasonLocked, ReasonBudget, ReasonNewProcess, ReasonMemory:
		return true
	}
	return false
}

// load reports whether a reason is the load of the pair.
func (r Reason) load() bool {
	return r == ReasonNICBusy || r == ReasonGPUBusy || r == ReasonLoadUnknown
}

// begin notes what is being done, so that Quiesce can end it.
func (p *Prober) begin(ctx context.Context) (context.Context, func()) {
	p.work <- struct{}{}
	ctx, cancel := context.WithCancelCause(ctx)
	p.mu.Lock()
	p.cancel = cancel
	p.mu.Unlock()
	return ctx, func() {
		p.mu.Lock()
		p.cancel = nil
		p.mu.Unlock()
		cancel(nil)
		<-p.work
	}
}

func (p *Prober) needOf(pair *pair) need {
	p.mu.Lock()
	defer p.mu.Unlock()
	return pair.need(time.Now(), p.options.Interval > 0)
}

// runUnder runs a pair as deep as its load allows, and returns why that was not
// the full depth.
func (p *Prober) runUnder(ctx context.Context, pair *pair, seen *watched) Reason {
	busy := p.busyNow(ctx, pair, seen)
	if busy == ReasonNone {
		return p.runOnce(ctx, pair, DepthFull, true, seen).Skip
	}
	if p.options.Busy == BusyFull && p.busyFullDue(pair) {
		return p.runOnce(ctx, pair, DepthFull, false, nil).Skip
	}
	p.skipped(pair, busy, nil)
	if p.options.Busy != BusyOff {
		p.registerInstead(ctx, pair)
	}
	return busy
}

// busyFullDue reports whether a full run under load is due: seldom, and to repeat
// one that was made under load.
func (p *Prober) busyFullDue(pair *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := pair.attempted[DepthFull]
	return pair.repeat != nil && !pair.repeat.result.Idle || last.IsZero() || time.Since(last) >= p.options.BusyInterval
}

// registerInstead makes a registration run, if one is due, for a pair whose full
// run has to wait.
func (p *Prober) registerInstead(ctx context.Context, pair *pair) {
	p.mu.Lock()
	due := pair.registerDue(time.Now(), p.options.RegisterInterval)
	p.mu.Unlock()
	if !due || ctx.Err() != nil {
		return
	}
	if reason, _ := p.gate(pair, DepthRegister); reason == ReasonNone {
		p.runOnce(ctx, pair, DepthRegister, false, nil)
	}
}

// runOnce makes a run. What was seen of the host is fresh when it begins; seen is
// what was seen of the pair before, nil for nothing.
func (p *Prober) runOnce(ctx context.Context, pair *pair, depth Depth, idle bool, seen *watched) Attempt {
	attempt := Attempt{Pair: pair.Pair, Depth: depth}
	skip := func(reason Reason, err error) Attempt {
		attempt.Skip, attempt.Text = reason, text(err)
		p.skipped(pair, reason, err)
		return attempt
	}
	if reason, err := p.mayBegin(ctx, pair, depth); reason != ReasonNone {
		return skip(reason, err)
	}
	if seen == nil {
		seen = &watched{}
		seen.processes, seen.err = p.options.Host.Processes(ctx, pair.GPU)
	}
	if seen.err != nil {
		return skip(ReasonLoadUnknown, seen.err) // nobody could tell that a job comes
	}
	if reason, err := p.takeLock(); reason != ReasonNone {
		return skip(reason, err)
	}
	order := p.order(pair, depth, idle)
	began := order.began
	p.save() // that a run is in progress, see load
	ending, cause := p.watched(ctx, order.Order, seen.processes)
	p.finish(pair, &order, &ending)
	p.dropLock()
	judged := p.judge(pair, &ending.Result)
	result, reason := classify(&ending, cause, judged)
	p.count(&order, &ending, result, cause == nil)
	if result == RunInterrupted {
		return skip(reason, ending.Result.Err())
	}
	attempt.Result = result
	attempt.Completed, attempt.Text = p.learn(pair, &ending, result, &Completed{Depth: depth, Time: began, Result: ending.Result, Judgement: judged, Idle: idle})
	p.save()
	return attempt
}

// mayBegin looks at what keeps a run from beginning, with a fresh look.
func (p *Prober) mayBegin(ctx context.Context, pair *pair, depth Depth) (Reason, error) {
	if p.stale(time.Now(), freshLook) {
		p.look(ctx)
	}
	if reason, err := p.gate(pair, depth); reason != ReasonNone {
		return reason, err
	}
	if cause := context.Cause(ctx); cause != nil {
		return interruption(cause), cause
	}
	return ReasonNone, nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

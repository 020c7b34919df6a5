package prober

import (
	"context"
	"errors"
	"fmt"
)

// Request asks for runs now.
type Request struct {
	GPU, Device string // "" for any
	// Force lifts the gates of load, and no other.
	Force bool
}

// Attempt is what came of a requested run.
type Attempt struct {
	Pair
	Depth     Depth
	Skip      Reason    // why there was none, "" if there was
	Result    RunResult // "" if there was none
	Text      string    // why it is not fine
	Completed *Completed
}

// ErrNoPair says that a request matches no pair.
var ErrNoPair = errors.New("no such GPU-NIC pair is to be measured")

// request is a Request on its way to the loop.
type request struct {
	Request
	ctx    context.Context
	answer chan []Attempt
}

// context ends when the asking or the loop does.
func (r *request) context(loop context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(loop)
	context.AfterFunc(r.ctx, func() { cancel(context.Cause(r.ctx)) })
	return ctx
}

// ProbeNow runs the matching pairs now, one after the other. It keeps every gate.
// Where ctx ends, so does the run in progress.
func (p *Prober) ProbeNow(ctx context.Context, wanted Request) ([]Attempt, error) {
	if len(p.matching(wanted)) == 0 {
		return nil, fmt.Errorf("%w: GPU %q, RDMA device %q", ErrNoPair, wanted.GPU, wanted.Device)
	}
	r := request{wanted, ctx, make(chan []Attempt, 1)}
	select {
	case p.asked <- r:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case attempts := <-r.answer:
		return attempts, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (p *Prober) matching(wanted Request) []Pair {
	var pairs []Pair
	for _, s := range p.Status().Pairs {
		if (wanted.GPU == "" || wanted.GPU == s.GPU) && (wanted.Device == "" || wanted.Device == s.Device) {
			pairs = append(pairs, s.Pair)
		}
	}
	return pairs
}

// serve makes the requested runs.
func (p *Prober) serve(ctx context.Context, wanted Request) []Attempt {
	p.look(ctx)
	ctx, done := p.begin(ctx)
	defer done()
	var attempts []Attempt
	var open []*pair
	for _, at := range p.matching(wanted) {
		p.mu.Lock()
		pair := p.pairs[at]
		p.mu.Unlock()
		if pair == nil {
			continue
		}
		if reason, err := p.gate(pair, DepthFull); reason != ReasonNone {
			attempts = append(attempts, skippedAttempt(at, reason, err))
			continue
		}
		open = append(open, pair)
	}
	seen := map[*pair]*watched{}
	if !wanted.Force && len(open) > 0 {
		seen = p.watchLoad(ctx, open)
	}
	for _, pair := range open {
		if w := seen[pair]; w != nil {
			if reason := p.busyNow(ctx, pair, w); reason != ReasonNone {
				attempts = append(attempts, skippedAttempt(pair.Pair, reason, nil))
				continue
			}
		}
		attempts = append(attempts, p.runOnce(ctx, pair, DepthFull, !wanted.Force, seen[pair]))
	}
	return attempts
}

func skippedAttempt(at Pair, reason Reason, err error) Attempt {
	a := Attempt{Pair: at, Depth: DepthFull, Skip: reason}
	if err != nil {
		a.Text = err.Error()
	}
	return a
}

package session

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// held is an endpoint whose calls may hang, and that makes one call at a time. What hangs is left alone: the caller goes
// on, and what the session holds is given back once the call has returned.
type held struct {
	endpoint Endpoint
	grace    time.Duration   // from the end of a call's context until it counts as hung
	hung     <-chan struct{} // of the call that hangs, until it returns; nil: none does
	release  func()          // of what the session holds, called once, after all is closed
}

func errHung(stage string) *Failure {
	return failf(ReasonHung, stage, "a call has not returned long after its time: %w", syscall.ETIMEDOUT)
}

// answer is what a call returned.
type answer[T any] struct {
	value T
	err   error
}

// attempt calls a function, and leaves it alone if it hangs: hung is closed then when
// it has returned, and late was told what.
func attempt[T any](ctx context.Context, grace time.Duration, f func() (T, error), late func(T, error)) (value T, hung <-chan struct{}, err error) {
	answers, given, gone := make(chan answer[T]), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		value, err := f()
		select {
		case answers <- answer[T]{value, err}:
		case <-given:
			late(value, err)
		}
	}()
	var timer <-chan time.Time
	over := ctx.Done()
	for {
		select {
		case a := <-answers:
			return a.value, nil, a.err
		case <-over:
			over, timer = nil, time.After(grace)
		case <-timer:
			close(given)
			var none T
			return none, gone, nil
		}
	}
}

// openHeld opens an endpoint. What the session holds is released when it fails.
func openHeld(ctx context.Context, opener Opener, spec Spec, limits Limits, release func()) (*held, error) {
	spec.Deadline = limits.Deadline
	if deadline, ok := ctx.Deadline(); ok {
		// The session ends first, which says more. This is in case that it cannot.
		spec.Deadline = time.Until(deadline) + limits.Grace
	}
	step, cancel := context.WithTimeoutCause(ctx, limits.Step, failf(ReasonTimeout, "", "it has taken longer than %v: %w", limits.Step, syscall.ETIMEDOUT))
	defer cancel()
	late := func(e Endpoint, err error) {
		if err == nil {
			_ = e.Close() // nobody is left to be told
		}
	}
	e, hung, err := attempt(step, limits.Grace, func() (Endpoint, error) { return opener.Open(step, spec) }, late)
	switch {
	case hung != nil:
		go func() { <-hung; release() }()
		return nil, errHung("open")
	case err != nil:
		release()
		return nil, at("open", orEnd(step, err))
	}
	return &held{endpoint: e, grace: limits.Grace, release: release}, nil
}

// orEnd is a failure of a call, or the end of its context if that is all that it says.
func orEnd(ctx context.Context, err error) error {
	f := asFailure(err)
	if f.Status != "" || !errors.Is(err, syscall.ECANCELED) && !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return f
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < almost {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return at(f.Stage, cause(ctx))
	}
	return f
}

// almost is how much earlier than a context an endpoint, which has a clock of its own,
// can say that its time is over.
const almost = 20 * time.Millisecond

// call calls a method of the endpoint, which may take so long; 0: as the context says.
func call[T any](ctx context.Context, h *held, stage string, most time.Duration, f func(context.Context, Endpoint) (T, error)) (T, error) {
	var none T
	switch {
	case h.hung != nil:
		return none, errHung(stage)
	case h.endpoint == nil:
		return none, failf(ReasonStopped, stage, "the endpoint is closed: %w", syscall.ECANCELED)
	}
	endpoint := h.endpoint
	if most > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, most, failf(ReasonTimeout, "", "it has taken longer than %v: %w", most, syscall.ETIMEDOUT))
		defer cancel()
	}
	value, hung, err := attempt(ctx, h.grace, func() (T, error) { return f(ctx, endpoint) }, func(T, error) {})
	if hung != nil {
		h.hung = hung
		return value, errHung(stage)
	}
	if err != nil {
		err = at(stage, orEnd(ctx, err))
	}
	return value, err
}

// do is call for methods that return nothing else.
func (h *held) do(ctx context.Context, stage string, most time.Duration, f func(context.Context, Endpoint) error) error {
	_, err := call(ctx, h, stage, most, func(ctx context.Context, e Endpoint) (struct{}, error) { return struct{}{}, f(ctx, e) })
	return err
}

// close closes the endpoint and releases what the session holds, at once or when what
// hangs has returned. It may be called again.
func (h *held) close() error {
	if h.endpoint == nil {
		return nil
	}
	endpoint := h.endpoint
	h.endpoint = nil
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if h.hung != nil {
		go func() {
			<-h.hung
			_ = endpoint.Close()
			h.release()
		}()
		return errHung("teardown")
	}
	_, hung, err := attempt(now, h.grace, func() (struct{}, error) { return struct{}{}, endpoint.Close() }, func(struct{}, error) {})
	if hung != nil {
		go func() { <-hung; h.release() }()
		return errHung("teardown")
	}
	h.release()
	if err != nil {
		return at("teardown", err)
	}
	return nil
}

package session

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// held is an endpoint whose calls may hang. What hangs is left alone: the caller goes
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
func attempt[T any](ctx context.Context, grace time.Duration, f func() (T, error), late func(T, error)) (value T, err error, hung <-chan struct{}) { //nolint:revive // the channel is no result
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
			return a.value, a.err, nil
		case <-over:
			over, timer = nil, time.After(grace)
		case <-timer:
			close(given)
			var none T
			return none, nil, gone
		}
	}
}

// openHeld opens an endpoint. What the session holds is released when it fails.
func openHeld(ctx context.Context, opener Opener, spec Spec, grace time.Duration, release func()) (*held, error) {
	late := func(e Endpoint, err error) {
		if err == nil {
			_ = e.Close() // nobody is left to be told
		}
	}
	e, err, hung := attempt(ctx, grace, func() (Endpoint, error) { return opener.Open(ctx, spec) }, late)
	switch {
	case hung != nil:
		go func() { <-hung; release() }()
		return nil, errHung("open")
	case err != nil:
		release()
		return nil, orEnd(ctx, err)
	}
	return &held{endpoint: e, grace: grace, release: release}, nil
}

// orEnd is a failure of a call, or the end of its context if that is all that it says.
func orEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, syscall.ECANCELED) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		f, why := asFailure(err), cause(ctx)
		return at(f.Stage, why)
	}
	return asFailure(err)
}

// call calls a method of the endpoint.
func call[T any](ctx context.Context, h *held, stage string, f func(Endpoint) (T, error)) (T, error) {
	if h.hung != nil {
		var none T
		return none, errHung(stage)
	}
	value, err, hung := attempt(ctx, h.grace, func() (T, error) { return f(h.endpoint) }, func(T, error) {})
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
func (h *held) do(ctx context.Context, stage string, f func(Endpoint) error) error {
	_, err := call(ctx, h, stage, func(e Endpoint) (struct{}, error) { return struct{}{}, f(e) })
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
	_, err, hung := attempt(now, h.grace, func() (struct{}, error) { return struct{}{}, endpoint.Close() }, func(struct{}, error) {})
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

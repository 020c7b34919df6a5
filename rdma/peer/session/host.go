package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
)

// host is what both roles need of this host.
type host struct {
	limits Limits
	opener Opener
	claims *Claims
	budget *Budget
	listed func(target string) bool
	admit  func(context.Context, Request) (func(), error)
}

// taken is what a session takes of the host: a seat, bytes of the budget, the lock. It
// is given back in reverse order, once.
type taken struct {
	once  sync.Once
	mu    sync.Mutex
	gives []func()
	moved atomic.Uint64 // bytes, both ways
}

func (t *taken) add(give func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gives = append(t.gives, give)
}

func (t *taken) back() {
	t.once.Do(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for i := len(t.gives) - 1; i >= 0; i-- {
			t.gives[i]()
		}
	})
}

// take asks for bytes and for admission. What was taken is given back if it fails.
func (h host) take(ctx context.Context, r Request, t *taken) error {
	settle, err := h.budget.take(r.Bytes)
	if err != nil {
		t.back()
		return err
	}
	t.add(func() { settle(t.moved.Load()) })
	if h.admit == nil {
		return nil
	}
	late := func(release func(), err error) {
		if err == nil && release != nil {
			release()
		}
	}
	release, hung, err := attempt(ctx, h.limits.Grace, func() (func(), error) { return h.admit(ctx, r) }, late)
	if hung != nil {
		go func() { <-hung; t.back() }()
		return errHung(StageAdmit)
	}
	if err != nil {
		t.back()
		return failureOr(ReasonGate, StageAdmit, err)
	}
	if release != nil {
		t.add(release)
	}
	return nil
}

// parse reads an address that came from a target, and claims it for that.
func (h host) parse(target string, own Port, text []byte, written bool) (Address, error) {
	a, err := h.opener.Parse(text)
	if err != nil {
		return a, failureOr(ReasonInvalid, StageOpen, err)
	}
	if written && a.Length < wordSize {
		return a, failf(ReasonInvalid, StageOpen, "the peer's address has no memory to write to: %w", syscall.EINVAL)
	}
	return a, h.claims.take(target, own, a.Where, h.listed)
}

// wordSize is what is written at least.
const wordSize = 8

// bytesOf is how many bytes rounds move, both ways, at most.
func bytesOf(directions []Direction, each uint64) uint64 {
	var sum uint64
	for _, d := range directions {
		if d.initiator() {
			sum += each
		}
		if d.responder() {
			sum += each
		}
	}
	return sum
}

// within checks sizes against what this host allows.
func (l Limits) within(s Shape, bytes uint64) error {
	switch {
	case s.Buffer > l.Buffer:
		return fmt.Errorf("a buffer of %d bytes, of %d that are allowed: %w", s.Buffer, l.Buffer, syscall.EMSGSIZE)
	case bytes > l.Bytes:
		return fmt.Errorf("writes of %d bytes, of %d that are allowed: %w", bytes, l.Bytes, syscall.EMSGSIZE)
	}
	return nil
}

// anyOf reports whether some direction has a side write.
func anyOf(directions []Direction, writes func(Direction) bool) bool {
	for _, d := range directions {
		if writes(d) {
			return true
		}
	}
	return false
}

// ownFault reports whether this side found that the other one breaks the protocol:
// then nothing that still comes can be understood.
func ownFault(err error) bool {
	var f *Failure
	return errors.As(err, &f) && f.Reason == ReasonProtocol && !f.Peer
}

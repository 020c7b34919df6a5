package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"gdr_exporter/rdma/peer/session"
)

// seat is this node's place at a measurement: there is one, whoever begins. It is taken
// before the host-wide lock, so that the two roles do not meet in that.
type seat struct {
	mu    sync.Mutex
	taken string // by whom; "": it is free
}

func (s *seat) take(whom string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken != "" {
		return session.Fail(session.ReasonBusy, session.StageAdmit, fmt.Errorf("this node measures with %s: %w", s.taken, syscall.EBUSY))
	}
	s.taken = whom
	return nil
}

func (s *seat) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = ""
}

// hold is the seat and the host-wide lock. They are given back when all that share it
// have let go: a session whose call hangs does not until that has returned.
type hold struct {
	mu     sync.Mutex
	shares int
	free   func()
}

// occupy takes the seat and the lock for a measurement with a peer.
func (r *Runner) occupy(ctx context.Context, peer string) (*hold, error) {
	if err := r.seat.take(peer); err != nil {
		return nil, err
	}
	unlock, err := r.options.Host.Lock(ctx)
	if err != nil {
		r.seat.leave()
		return nil, asFailure(err, session.ReasonLocked, session.StageAdmit)
	}
	return &hold{shares: 1, free: func() {
		unlock()
		r.seat.leave()
	}}, nil
}

// share is one more that must let go.
func (h *hold) share() (letGo func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shares++
	return sync.OnceFunc(h.letGo)
}

// shared reports whether a session has not let go, which one whose call hangs does not.
func (h *hold) shared() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shares > 1
}

func (h *hold) letGo() {
	h.mu.Lock()
	h.shares--
	last := h.shares == 0
	h.mu.Unlock()
	if last {
		h.free()
	}
}

// asFailure is the failure that an error is, or one for a reason.
func asFailure(err error, reason session.Reason, stage string) *session.Failure {
	var f *session.Failure
	if errors.As(err, &f) {
		return f
	}
	return session.Fail(reason, stage, err)
}

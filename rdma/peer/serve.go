package peer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"
	"unicode"

	"gdr_exporter/rdma/peer/session"
	"gdr_exporter/rdma/peer/targets"
)

// serve answers the peers that call.
func (r *Runner) serve(ctx context.Context) error {
	o := &r.options
	defer o.Listener.Close()
	err := session.Serve(ctx, o.Listener, session.ServerOptions{
		Identity: o.Identity, Limits: o.Limits, Opener: o.Opener, Claims: r.claims, Budget: r.budget,
		Hello:  func() session.Hello { return r.hello(ctx, r.setting.Load(), r.setting.Load().own()) },
		Member: r.member, Listed: r.listed, Admit: r.admitPeer,
		GPU:    func(rail session.Port) string { return r.gpu(ctx, rail) },
		Served: r.served, Rejected: r.rejected,
	})
	if err != nil {
		return fmt.Errorf("listener of peers %v: %w", o.Listener.Addr(), err)
	}
	return nil
}

// dial are the options of a call.
func (r *Runner) dial(ctx context.Context, m *meeting) session.DialOptions {
	o := &r.options
	return session.DialOptions{
		Target: m.target, Identity: o.Identity, Limits: o.Limits, Opener: o.Opener, Claims: r.claims, Budget: r.budget,
		Hello:  func() session.Hello { return r.hello(ctx, m.setting, m.self) },
		Listed: r.listed,
		Admit: func(ctx context.Context, q session.Request) (func(), error) {
			if err := o.Host.Busy(ctx, q.Kind, q.Rail, q.GPU); err != nil {
				return nil, asFailure(err, session.ReasonGate, session.StageAdmit)
			}
			return m.held.share(), nil
		},
	}
}

// hello is what this node says of itself.
func (r *Runner) hello(ctx context.Context, s *setting, self string) session.Hello {
	return session.Hello{
		Build: fit(r.options.Build, 128), Name: fit(r.name(s), 253), Address: self, List: s.version, Options: r.options.Schedule.Version(),
		Rails: r.look(ctx, s),
	}
}

// fit makes a text one that a hello can have.
func fit(text string, most int) string {
	text = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, text)
	for len(text) > most {
		text = text[:len(text)-1]
	}
	return strings.ToValidUTF8(text, "")
}

// current is the newest list: a node that has joined is served before the next frame.
func (r *Runner) current() *targets.List {
	if r.options.Watcher == nil {
		return r.setting.Load().list
	}
	return r.options.Watcher.List()
}

// listed reports whether a target is in the list.
func (r *Runner) listed(target string) bool { return r.current().Find(target) >= 0 }

// member fails unless a connection comes from the target that it says it is.
func (r *Runner) member(ctx context.Context, from netip.Addr, address string) error {
	list := r.current()
	i := list.Find(address)
	self, _ := list.Self()
	switch {
	case i < 0:
		return session.Fail(session.ReasonNotListed, session.StageHello, fmt.Errorf("the target list (version %s) has no %.200q: %w", list.Version(), address, syscall.EACCES))
	case i == self:
		return session.Fail(session.ReasonForeign, session.StageHello, fmt.Errorf("%s is this node itself: %w", address, syscall.EACCES))
	}
	err := r.options.Names.Belongs(ctx, from, list.At(i))
	switch {
	case errors.Is(err, targets.ErrForeign):
		return session.Fail(session.ReasonForeign, session.StageHello, fmt.Errorf("%w: %w", err, syscall.EACCES))
	case err != nil: // it cannot be told now
		return session.Fail(session.ReasonOther, session.StageHello, err)
	}
	return nil
}

// admitPeer asks whether a peer's session may be, and takes this node's place for it.
func (r *Runner) admitPeer(ctx context.Context, q session.Request) (release func(), err error) {
	if err := r.options.Host.Busy(ctx, q.Kind, q.Rail, q.GPU); err != nil {
		return nil, asFailure(err, session.ReasonGate, session.StageAdmit)
	}
	held, err := r.occupy(ctx, q.Peer)
	if err != nil {
		return nil, err
	}
	return held.letGo, nil
}

// gpu is the GPU next to a port, "" if there is none.
func (r *Runner) gpu(ctx context.Context, port session.Port) string {
	for _, rail := range r.look(ctx, r.setting.Load()) {
		if rail.Port == port && len(rail.GPUs) > 0 {
			return rail.GPUs[0]
		}
	}
	return ""
}

// served counts a peer's session.
func (r *Runner) served(s session.Served) {
	class := ClassFine
	if s.Failure != nil {
		class = sessionClass(s.Failure)
	}
	r.book.count(Responder, s.Kind, class, s.Moved)
	if i := r.setting.Load().list.Find(s.Peer); i >= 0 {
		r.book.heard(s.Peer, s.Hello, r.clock.now())
	}
}

const (
	rejectedAgain = time.Hour // after which a caller that is rejected is told of again
	mostRejected  = 1 << 10
)

// rejection is one that is told of once.
type rejection struct {
	from   netip.Addr
	reason session.Reason
}

// rejected tells of callers that were not let in. Whoever only looks whether somebody
// listens, as the peers do, is none of them.
func (r *Runner) rejected(from netip.AddrPort, why *session.Failure) {
	switch why.Reason {
	case session.ReasonLeft, session.ReasonTimeout, session.ReasonStopped:
		return
	}
	now, key := r.clock.now(), rejection{from.Addr(), why.Reason}
	r.book.mu.Lock()
	last, known := r.book.rejected[key]
	news := !known || now.Sub(last) >= rejectedAgain
	if news {
		if len(r.book.rejected) >= mostRejected {
			clear(r.book.rejected)
		}
		r.book.rejected[key] = now
	}
	r.book.mu.Unlock()
	if news {
		r.tell([]Event{{Kind: EventRejected, Text: fmt.Sprintf("%v: %v", from.Addr(), why), Failure: why}})
	}
}

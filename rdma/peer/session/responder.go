package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// responder is a session that a peer has asked for.
type responder struct {
	host
	half
	server *server
	ask    *open
	peer   string
	taken  taken
	served Served
}

// session carries a session through. It reports whether another one may follow on the
// connection.
func (s *server) session(c *conn, from netip.AddrPort, peer Hello, ask *open) bool {
	r := &responder{
		host:   host{s.Limits, s.Opener, s.Claims, s.Budget, s.Listed, s.Admit},
		half:   half{conn: c, memory: ask.Memory, kind: ask.Kind},
		server: s, ask: ask, peer: peer.Address,
	}
	r.served = Served{ID: ask.ID, From: from, Hello: peer, Started: time.Now(), Request: Request{
		Peer: peer.Address, Kind: ask.Kind, Memory: ask.Memory, Directions: ask.Directions, Rail: ask.Rail, Bytes: bytesOf(ask.Directions, ask.Bytes),
	}}
	ctx, cancel := context.WithTimeout(c.ctx, min(time.Duration(ask.Deadline)*time.Millisecond, s.Limits.Deadline))
	defer cancel()
	err := r.open(ctx)
	if r.served.Opened = err == nil; err == nil {
		err = r.rounds(ctx)
	}
	again := r.finish(err)
	r.served.Elapsed, r.served.Moved = time.Since(r.served.Started), r.taken.moved.Load()
	if s.Served != nil {
		s.Served(r.served)
	}
	return again
}

// open does all up to the message opened.
func (r *responder) open(ctx context.Context) error {
	select {
	case r.server.seats <- struct{}{}:
		r.taken.add(func() { <-r.server.seats })
	default:
		return failf(ReasonBusy, StageAdmit, "%d sessions are under way, and no more are allowed: %w", cap(r.server.seats), syscall.EBUSY)
	}
	address, err := r.wanted()
	if err != nil {
		r.taken.back()
		return err
	}
	if err := r.conn.during(ctx, func(ctx context.Context) error { return r.connect(ctx, address) }); err != nil {
		return err
	}
	own := r.held.endpoint.Address()
	r.length = own.Length
	return r.conn.send(message{Opened: &opened{Address: own.Text, Facts: r.held.endpoint.Facts()}})
}

// wanted checks what the peer wants, without touching anything.
func (r *responder) wanted() (Address, error) {
	if err := r.limits.within(r.ask.Shape, r.ask.Bytes); err != nil {
		return Address{}, Fail(ReasonInvalid, StageOpen, err)
	}
	if r.ask.Bytes < wordSize {
		return Address{}, failf(ReasonInvalid, StageOpen, "writes of %d bytes: %w", r.ask.Bytes, syscall.EINVAL)
	}
	if err := r.chooseGPU(r.server.Hello().Rails); err != nil {
		return Address{}, err
	}
	return r.parse(r.peer, r.ask.Rail, r.ask.Address, anyOf(r.ask.Directions, Direction.responder))
}

// chooseGPU takes one that this node has told of, or its own choice. Nothing else that
// a peer names is opened.
func (r *responder) chooseGPU(rails []Rail) error {
	if !slices.ContainsFunc(rails, func(rail Rail) bool { return rail.Port == r.ask.Rail }) {
		return failf(ReasonNoRail, StageOpen, "there is no port %s: %w", r.ask.Rail, syscall.ENODEV)
	}
	if r.ask.Memory == Host {
		return nil
	}
	gpu := r.ask.GPU
	switch {
	case gpu == "" && r.server.GPU != nil:
		gpu = r.server.GPU(r.ask.Rail)
	case gpu != "" && !slices.ContainsFunc(rails, func(rail Rail) bool { return slices.Contains(rail.GPUs, gpu) }):
		return failf(ReasonNoRail, StageOpen, "there is no GPU %s: %w", gpu, syscall.ENODEV)
	}
	if gpu == "" {
		return failf(ReasonNoRail, StageOpen, "there is no GPU next to %s: %w", r.ask.Rail, syscall.ENODEV)
	}
	r.served.GPU = gpu
	return nil
}

// connect takes what the session needs, and opens and connects the endpoint.
func (r *responder) connect(ctx context.Context, address Address) error {
	if err := r.take(ctx, r.served.Request, &r.taken); err != nil {
		return err
	}
	spec := Spec{
		Port: r.ask.Rail, Memory: r.ask.Memory, GPU: r.served.GPU, Shape: r.ask.Shape, Peer: &address,
		Sends: anyOf(r.ask.Directions, Direction.responder), Receives: anyOf(r.ask.Directions, Direction.initiator),
	}
	held, err := openHeld(ctx, r.opener, spec, r.limits, r.taken.back)
	if err != nil {
		return err
	}
	r.held = held
	return held.do(ctx, "connect", r.limits.Step, func(ctx context.Context, e Endpoint) error { return e.Connect(ctx, address) })
}

// rounds carries rounds through until the session ends, as it does one way or another.
func (r *responder) rounds(ctx context.Context) error {
	for {
		m, err := r.conn.receive(ctx, r.limits.patience(), "go")
		if err != nil {
			if errors.Is(err, errClosed) && r.served.Rounds == len(r.ask.Directions) {
				return nil
			}
			return at(StageRound, err)
		}
		if err := r.follows(m.Go); err != nil {
			return protocolError("go: %w: %w", err, syscall.EBADMSG)
		}
		if err := r.round(ctx, *m.Go); err != nil {
			return err
		}
		r.served.Rounds++
	}
}

// follows checks a round against what was asked for.
func (r *responder) follows(b *begin) error {
	n := r.served.Rounds
	switch {
	case n >= len(r.ask.Directions):
		return fmt.Errorf("round %d, of %d", n+1, len(r.ask.Directions))
	case b.Direction != r.ask.Directions[n]:
		return fmt.Errorf("direction %.32q, not %s", b.Direction, r.ask.Directions[n])
	case b.Bytes < wordSize || b.Bytes > r.ask.Bytes:
		return fmt.Errorf("%d bytes, of %d", b.Bytes, r.ask.Bytes)
	}
	return checkPings(r.ask.Kind, r.ask.Memory, b.Pings)
}

func (r *responder) round(ctx context.Context, b begin) error {
	if b.Direction.responder() {
		err := r.conn.during(ctx, func(ctx context.Context) error {
			return r.held.do(ctx, "fill", r.limits.Step, func(ctx context.Context, e Endpoint) error { return e.Fill(ctx, b.Back) })
		})
		if err != nil {
			return err
		}
	}
	began := time.Now()
	if err := r.conn.send(message{Ready: &empty{}}); err != nil {
		return at(StageRound, err)
	}
	one := newRound(r.half, b, false, began)
	err := one.run(ctx)
	r.taken.moved.Add(one.moved())
	return err
}

// finish ends the session: first the memory, then what is said about it. It reports
// whether the other side knows where it is.
func (r *responder) finish(err error) bool {
	var torn error
	if r.held != nil {
		torn = r.held.close()
	}
	if err == nil {
		r.served.Failure = at(StageClose, torn)
		return r.closed(torn)
	}
	stage := StageOpen
	if r.served.Opened {
		stage = StageRound
	}
	why := at(stage, err)
	r.served.Failure = why
	switch {
	case why.close:
		return r.closed(torn)
	case !r.served.Opened:
		return r.conn.send(message{Refused: why}) == nil && !ownFault(why)
	}
	if r.conn.send(message{Failed: why}) != nil || ownFault(why) {
		return false
	}
	return r.awaitClose(torn)
}

func (r *responder) closed(torn error) bool {
	return r.conn.send(message{Closed: &ended{Failure: at(StageClose, torn)}}) == nil
}

// awaitClose waits for the initiator to have heard that the session has failed. What it
// said before that is of no use any more.
func (r *responder) awaitClose(torn error) bool {
	ctx, cancel := context.WithTimeout(r.conn.ctx, r.limits.patience())
	defer cancel()
	for {
		m, err := r.conn.next(ctx, r.limits.patience())
		switch {
		case err != nil:
			return false
		case m.Close != nil:
			return r.closed(torn)
		case m.Done == nil && m.Verified == nil && m.Go == nil:
			return false
		}
	}
}

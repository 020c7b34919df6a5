package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	random "math/rand/v2"
	"slices"
	"syscall"
	"time"
)

// What plans do that say nothing else.
const (
	DefaultPings = 64
	defaultBytes = 256 << 20
	pingBuffer   = 4096
)

// Measure carries out a plan: one session. It returns what came of it, never nil. One
// is under way at a time; others wait for their turn.
func (c *Client) Measure(ctx context.Context, p Plan) *Result {
	r := &Result{ID: newID(), Started: time.Now(), Rounds: []Round{}}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
		r.Failure = c.measure(ctx, p, r)
	case <-ctx.Done():
		r.Failure = at(StageAdmit, cause(ctx))
	}
	r.Elapsed = time.Since(r.Started)
	return r
}

func newID() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	return hex.EncodeToString(id[:])
}

func (c *Client) measure(ctx context.Context, p Plan, r *Result) *Failure {
	p = p.withDefaults(c.limits)
	if err := p.check(c.limits); err != nil {
		return Fail(ReasonInvalid, StageOpen, err)
	}
	ctx, cancel := context.WithTimeout(ctx, p.Deadline)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(c.conn.ctx, func() { end(cause(c.conn.ctx)) })()
	if c.conn.ctx.Err() != nil {
		return at(StageOpen, cause(c.conn.ctx))
	}
	i := &initiator{host: c.host, target: c.target, half: half{conn: c.conn, memory: p.Memory, kind: p.Kind}, plan: p, result: r}
	return i.run(ctx)
}

func (p Plan) withDefaults(l Limits) Plan {
	orDefault(&p.Deadline, l.Deadline)
	p.Deadline = min(p.Deadline, mostDeadline)
	if p.Kind == Ping {
		orDefault(&p.Pings, DefaultPings)
		orDefault(&p.Shape, Shape{Buffer: pingBuffer, QueuePairs: 1})
		p.Bytes = wordSize * uint64(max(p.Pings, 0))
	}
	if p.Memory == Staged {
		p.Pings = 0 // it has none
	}
	orDefault(&p.Bytes, min(defaultBytes, l.Bytes))
	return p
}

func (p Plan) check(l Limits) error {
	if err := checkMeasurement(p.Kind, p.Memory, p.Directions, p.Shape); err != nil {
		return err
	}
	if err := checkPings(p.Kind, p.Memory, p.Pings); err != nil {
		return err
	}
	for _, port := range []Port{p.From, p.Rail} {
		if err := port.check(); err != nil {
			return err
		}
	}
	switch {
	case p.Memory != Host && p.OwnGPU == "":
		return fmt.Errorf("%s memory, of no GPU: %w", p.Memory, syscall.EINVAL)
	case p.Deadline < time.Millisecond || p.Within < 0 || p.Within > mostDeadline || p.Bytes < wordSize:
		return fmt.Errorf("%d bytes within %v, deadline %v: %w", p.Bytes, p.Within, p.Deadline, syscall.EINVAL)
	}
	return l.within(p.Shape, p.Bytes)
}

// initiator is a session that this side asks for.
type initiator struct {
	host
	half
	target string
	plan   Plan
	result *Result
	taken  taken
}

func (i *initiator) run(ctx context.Context) *Failure {
	err := i.conn.during(ctx, i.open)
	if err != nil {
		i.leave()
		if ownFault(err) {
			i.conn.closeHeard() // who speaks unasked is not understood later either
		}
		return at(StageOpen, err)
	}
	own := i.held.endpoint.Address()
	i.length = own.Length
	i.result.Facts = i.held.endpoint.Facts()
	if refused, err := i.ask(ctx, own); refused {
		i.leave()
		return at(StageOpen, err)
	} else if err != nil {
		return i.finish(at(StageOpen, err))
	}
	for _, direction := range i.plan.Directions {
		round, err := i.round(ctx, direction)
		i.result.Rounds = append(i.result.Rounds, round)
		if err != nil {
			return i.finish(asFailure(err))
		}
	}
	return i.finish(nil)
}

// leave gives up what the other side does not know of.
func (i *initiator) leave() {
	if i.held != nil {
		_ = i.held.close() // what failed before says more
	}
}

// open opens the endpoint of this side.
func (i *initiator) open(ctx context.Context) error {
	p, gpu := i.plan, ""
	if p.Memory != Host {
		gpu = p.OwnGPU
	}
	request := Request{
		Peer: i.target, Kind: p.Kind, Memory: p.Memory, Directions: slices.Clone(p.Directions), Rail: p.From, GPU: gpu,
		Bytes: bytesOf(p.Directions, p.Bytes), Initiator: true,
	}
	if err := i.take(ctx, request, &i.taken); err != nil {
		return err
	}
	held, err := openHeld(ctx, i.opener, Spec{
		Port: p.From, Memory: p.Memory, GPU: gpu, Shape: p.Shape,
		Sends: anyOf(p.Directions, Direction.initiator), Receives: anyOf(p.Directions, Direction.responder),
	}, i.limits, i.taken.back)
	i.held = held
	return err
}

// ask asks the peer for the session, and connects to what it has opened.
func (i *initiator) ask(ctx context.Context, own Address) (refused bool, err error) {
	p := i.plan
	left := p.Deadline
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	err = i.conn.send(message{Open: &open{
		ID: i.result.ID, Kind: p.Kind, Memory: p.Memory, Directions: p.Directions, From: p.From, Rail: p.Rail, GPU: p.GPU,
		Shape: p.Shape, Bytes: p.Bytes, Deadline: max(left.Milliseconds(), 1), Address: own.Text,
	}})
	if err != nil {
		return false, err
	}
	m, err := i.conn.receive(ctx, i.limits.patience(), "opened", "refused")
	switch {
	case err != nil:
		return false, err
	case m.Refused != nil:
		return true, m.Refused
	}
	i.result.PeerFacts = m.Opened.Facts
	peer, err := i.parse(i.target, p.From, m.Opened.Address, anyOf(p.Directions, Direction.initiator))
	if err != nil {
		return false, err
	}
	return false, i.conn.during(ctx, func(ctx context.Context) error {
		return i.held.do(ctx, "connect", i.limits.Step, func(ctx context.Context, e Endpoint) error { return e.Connect(ctx, peer) })
	})
}

// round carries a round through.
func (i *initiator) round(ctx context.Context, direction Direction) (Round, error) {
	b := begin{
		Direction: direction, Seed: random.Uint64(), Back: random.Uint64(), Bytes: i.plan.Bytes,
		Within: i.plan.Within.Milliseconds(), Pings: i.plan.Pings,
	}
	if i.plan.Within > 0 {
		b.Within = max(b.Within, 1)
	}
	out, began := Round{Direction: direction}, time.Now()
	if err := i.ready(ctx, b); err != nil {
		out.Failure = at(StageRound, err)
		return out, out.Failure
	}
	one := newRound(i.half, b, true, began)
	err := one.run(ctx)
	i.taken.moved.Add(one.moved())
	out.Written, out.Back = one.ways()
	if err != nil {
		out.Failure = at(StageRound, err)
		return out, out.Failure
	}
	return out, nil
}

// ready gets both sides ready.
func (i *initiator) ready(ctx context.Context, b begin) error {
	if b.Direction.initiator() {
		err := i.conn.during(ctx, func(ctx context.Context) error {
			return i.held.do(ctx, "fill", i.limits.Step, func(ctx context.Context, e Endpoint) error { return e.Fill(ctx, b.Seed) })
		})
		if err != nil {
			return err
		}
	}
	if err := i.conn.send(message{Go: &b}); err != nil {
		return err
	}
	_, err := i.conn.receive(ctx, i.limits.patience(), "ready")
	return err
}

// finish ends the session on both sides. The failure that it returns is the one that
// says most.
func (i *initiator) finish(why *Failure) *Failure {
	said := &ended{}
	if why != nil && !why.Peer {
		said.Failure = why
	}
	sent := i.conn.send(message{Close: said})
	torn := i.held.close()
	if sent != nil || why != nil && ownFault(why) {
		i.conn.closeHeard()
		if left(sent) && aftermath(why) {
			return at(StageRound, sent)
		}
		return firstOf(why, at(StageClose, torn), at(StageClose, sent))
	}
	most := i.limits.patience()
	if why != nil && !why.Peer && (why.Reason == ReasonTimeout || why.Reason == ReasonStopped) {
		most = i.limits.Message // it was waited for already, or somebody waits for this side
	}
	failed, err := i.closed(most)
	if err != nil {
		i.conn.closeHeard()
	}
	switch {
	case failed != nil && aftermath(why) && !aftermath(failed):
		return failed // what was written to is gone for that reason
	case left(err) && aftermath(why):
		return at(StageRound, err) // it is gone with the peer
	}
	return firstOf(why, failed, at(StageClose, torn), at(StageClose, err))
}

// closed waits until the peer's memory is gone. What the peer said before it heard of
// the end is of no use, but for its own failure.
func (i *initiator) closed(most time.Duration) (failed *Failure, err error) {
	ctx, cancel := context.WithTimeoutCause(i.conn.ctx, most, failf(ReasonTimeout, "", "the peer has not closed within %v: %w", most, syscall.ETIMEDOUT))
	defer cancel()
	for {
		m, err := i.conn.next(ctx, most)
		switch {
		case err != nil:
			return failed, err
		case m.Closed != nil && m.Closed.Failure != nil:
			return firstOf(failed, m.Closed.Failure), nil
		case m.Closed != nil:
			return failed, nil
		case m.Failed != nil:
			failed = m.Failed
		case m.Hello != nil, m.Open != nil, m.Go != nil, m.Close != nil:
			return failed, i.conn.expected(m)
		}
	}
}

// aftermath reports whether a failure may be of what the other side did: a write whose
// target is gone.
func aftermath(f *Failure) bool { return f != nil && f.Reason == ReasonRDMA && f.Status != "" }

func left(err error) bool {
	return err != nil && asFailure(err).Reason == ReasonLeft
}

// firstOf is the first failure that is one.
func firstOf(failures ...*Failure) *Failure {
	for _, f := range failures {
		if f != nil {
			return f
		}
	}
	return nil
}

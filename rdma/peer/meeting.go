package peer

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"gdr_exporter/rdma/peer/session"
)

// meeting is what this node does with a peer that it calls: it greets it, looks
// whether the ports' addresses answer, and measures rail by rail.
type meeting struct {
	runner  *Runner
	setting *setting
	target  string // of the peer
	name    string
	self    string       // what this node says its own target is
	kind    session.Kind // that a call counts as which comes to nothing
	items   []item       // sessions on each rail
	span    time.Duration
	rotate  int64   // which rail is the first
	window  *window // what was settled before; nil: nothing
	byHand  bool
	again   bool // only what is bad
	lost    bool // the peer's listener was bad before
	all     bool // rails: each with every other one
	journal journal

	client   *session.Client
	cut      *time.Timer   // closes the connection when the slot is over, whatever is under way
	greeting session.Hello // of the peer
	held     *hold
}

// journal keeps what meetings find out. What it returns is news.
type journal interface {
	called(m *meeting, c *Contact, failure *session.Failure, at time.Time) []Event
	last(target string, own, peer session.Port) (Path, bool)
	path(m *meeting, p Path) []Event
	count(role Role, kind session.Kind, class Class, bytes uint64)
}

var (
	errStopped = errors.New("this side is ending")
	errSlot    = fmt.Errorf("the slot has ended: %w", syscall.ETIME)
)

// hold holds the meeting. The failure is that of a call, nil if there was a meeting.
func (m *meeting) hold(ctx context.Context) *session.Failure {
	own := m.runner.look(ctx, m.setting)
	if failure := m.call(ctx); failure != nil {
		return failure
	}
	defer func() { m.hangUp() }()
	pairs, lonely := m.pairs(own, m.client.Peer().Rails)
	for _, rail := range lonely {
		m.lonely(rail)
	}
	if len(pairs) == 0 {
		return nil
	}
	reached := m.runner.reach(ctx, pairs, m.target)
	held, err := m.runner.occupy(ctx, m.target)
	if err != nil {
		m.skip(pairs, reached, asFailure(err, session.ReasonLocked, session.StageAdmit))
		return nil
	}
	m.held = held
	defer held.letGo()
	for i, p := range pairs {
		if end := m.measureRail(ctx, p, reached[i]); end != nil {
			m.skip(pairs[i+1:], reached[i+1:], end)
			break
		}
	}
	return nil
}

// call calls the peer and notes what came of it.
func (m *meeting) call(ctx context.Context) *session.Failure {
	at := m.runner.clock.now()
	left, bounded := remaining(ctx)
	client, err := session.Dial(ctx, m.runner.dial(ctx, m))
	var contact *Contact
	var failure *session.Failure
	if err != nil {
		failure = asFailure(err, session.ReasonUnreachable, session.StageDial)
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			failure = session.Fail(session.ReasonStopped, failure.Stage, errStopped)
		case ctx.Err() != nil && m.span > 0 && left < m.enough(callTakes):
			failure = session.Fail(session.ReasonStopped, failure.Stage, errSlot) // it had no time to answer
		}
	} else {
		m.client = client
		if bounded {
			// A peer that does not answer may take longer than the slot; in the guard it
			// is nobody else's turn yet.
			m.cut = time.AfterFunc(time.Until(deadlineOf(ctx))+m.runner.clock.real(m.runner.options.Schedule.Guard/2), func() { _ = client.Close() })
		}
		m.greeting = client.Peer()
		hello := m.greeting
		contact = &Contact{Time: at, RTT: client.RTT(), Clock: client.ClockDifference(), Name: hello.Name, Build: hello.Build, List: hello.List, Options: hello.Options}
		failure = m.agree(hello)
	}
	if failure != nil {
		m.hangUp()
		m.journal.count(Initiator, m.kind, callClass(failure), 0)
	}
	if callClass(failure) != ClassStopped {
		m.runner.tell(m.journal.called(m, contact, failure, at))
	}
	return failure
}

// agree fails if the peer plays by another schedule: in its own it may be another
// one's turn now.
func (m *meeting) agree(hello session.Hello) *session.Failure {
	own := m.runner.options.Schedule.Version()
	if m.byHand || hello.Options == own {
		return nil
	}
	return session.Fail(session.ReasonVersion, session.StageHello,
		fmt.Errorf("its options of the schedule have version %.64q, this node's %q: they must be the same on all nodes", hello.Options, own))
}

func (m *meeting) hangUp() {
	if m.client != nil {
		_ = m.client.Close() // all that mattered was said
		m.client = nil
	}
	if m.cut != nil {
		m.cut.Stop()
		m.cut = nil
	}
}

// skip notes that pairs were not measured.
func (m *meeting) skip(pairs []pair, reached []*Reached, why *session.Failure) {
	for i, p := range pairs {
		path := m.last(p)
		path.Skipped, path.SkippedText = why.Reason, why.Error()
		if reached[i] != nil {
			path.Reached = reached[i]
		}
		m.runner.tell(m.journal.path(m, path))
	}
}

// lonely notes that a port has no counterpart.
func (m *meeting) lonely(rail session.Rail) {
	path, known := m.journal.last(m.target, rail.Port, session.Port{})
	if !known {
		path = Path{Own: rail.Port, Rail: rail.Label}
	}
	path.Skipped, path.SkippedText = session.ReasonNoRail, "the peer has no port that goes with this one now"
	m.runner.tell(m.journal.path(m, path))
}

// last is what is known of a path.
func (m *meeting) last(p pair) Path {
	path, known := m.journal.last(m.target, p.own.Port, p.peer.Port)
	if !known || path.Peer != p.peer.Port {
		path = Path{Own: p.own.Port, Peer: p.peer.Port}
	}
	path.Rail, path.Basis = p.own.Label, p.basis
	return path
}

// measureRail holds the sessions of a rail. The failure is why no other rail can be
// measured in this meeting.
func (m *meeting) measureRail(ctx context.Context, p pair, reached *Reached) (end *session.Failure) {
	path := m.last(p)
	if reached != nil {
		path.Reached = reached
	}
	asked := false
	for _, it := range m.items {
		if !m.wanted(p, it, &path) {
			continue
		}
		if !asked {
			asked, path.Skipped, path.SkippedText = true, "", ""
		}
		if end = m.measure(ctx, p, it, &path); end != nil {
			break
		}
	}
	m.runner.tell(m.journal.path(m, path))
	return end
}

// wanted reports whether a session can be and was not yet.
func (m *meeting) wanted(p pair, it item, path *Path) bool {
	if it.memory != session.Host && (len(p.own.GPUs) == 0 || len(p.peer.GPUs) == 0) {
		if m.byHand { // somebody has asked for it
			path.Skipped, path.SkippedText = session.ReasonNoRail, "there is no GPU next to the port on both sides"
		}
		return false
	}
	if m.again {
		return m.bad(it, path)
	}
	return m.window == nil || it.kind != session.Bandwidth || !m.window.settled[settled{p.own.Port, it.memory}]
}

// measure holds a session and notes in the path what came of it.
func (m *meeting) measure(ctx context.Context, p pair, it item, path *Path) (end *session.Failure) {
	allowed := m.allowance(it.takes())
	left, _ := remaining(ctx)
	if ctx.Err() != nil || left < allowed/4 {
		return m.over(ctx, path)
	}
	at := m.runner.clock.now()
	result := m.client.Measure(ctx, m.plan(p, it, min(allowed, left)))
	hangs := m.held.shared()
	if f := result.Failure; hangs && f != nil {
		result.Failure = session.Fail(session.ReasonHung, f.Stage, fmt.Errorf("a call of this node does not return (%w): %w", f, syscall.ETIMEDOUT))
	}
	measured := m.runner.judge(p, it, result, path)
	measured.Time = at
	if f := result.Failure; f != nil && f.Reason == session.ReasonTimeout && left < m.enough(it.takes()) && measured.Class == ClassFailed {
		measured.Class = ClassStopped // a whole session might have ended well
	}
	m.journal.count(Initiator, it.kind, measured.Class, moved(result))
	if !measured.Class.Judged() {
		path.Skipped, path.SkippedText = result.Failure.Reason, result.Failure.Error()
		return m.after(ctx, result.Failure)
	}
	path.take(measured)
	if m.window != nil && it.kind == session.Bandwidth {
		m.window.settled[settled{p.own.Port, it.memory}] = true
	}
	return m.after(ctx, result.Failure)
}

// over is that the time of the slot is.
func (m *meeting) over(ctx context.Context, path *Path) *session.Failure {
	f := session.Fail(session.ReasonTimeout, session.StageAdmit, errSlot)
	if errors.Is(ctx.Err(), context.Canceled) {
		f = session.Fail(session.ReasonStopped, session.StageAdmit, errStopped)
	}
	path.Skipped, path.SkippedText = f.Reason, f.Error()
	return f
}

// after decides how it goes on after a session. A connection that was lost is made
// again, which tells a peer that is gone from a path that is bad.
func (m *meeting) after(ctx context.Context, f *session.Failure) (end *session.Failure) {
	if f == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return session.Fail(session.ReasonStopped, session.StageAdmit, errStopped)
	}
	switch f.Reason {
	case session.ReasonBusy, session.ReasonLocked, session.ReasonStopped:
		return f // it would be the same on the next rail
	case session.ReasonHung:
		if !f.Peer {
			return f // nothing more is touched while a call hangs
		}
	case session.ReasonLeft, session.ReasonTimeout, session.ReasonProtocol, session.ReasonTLS, session.ReasonUnreachable:
	default:
		return nil
	}
	m.hangUp()
	return m.call(ctx)
}

func (m *meeting) plan(p pair, it item, deadline time.Duration) session.Plan {
	o := &m.runner.options
	plan := session.Plan{
		Kind: it.kind, Memory: it.memory, Directions: it.directions, From: p.own.Port, Rail: p.peer.Port,
		Shape: o.Shape, Bytes: o.Bytes, Within: o.Within, Deadline: deadline,
	}
	if it.kind == session.Ping {
		plan.Shape, plan.Bytes, plan.Within, plan.Pings = pingShape, pings*8, 0, pings
	}
	if it.memory != session.Host {
		plan.OwnGPU, plan.GPU = p.own.GPUs[0], p.peer.GPUs[0]
	}
	return plan
}

// pingShape is small: a ping must not cost what registering a large buffer does.
var pingShape = session.Shape{Buffer: 64 << 10, Message: 4 << 10, QueuePairs: 1, Depth: 16}

// What a call and a session may take, if the slot has as much. A path that loses
// everything is given up by the NIC after two seconds or so.
const (
	callTakes      = 2 * time.Second
	pingTakes      = 3 * time.Second
	bandwidthTakes = 10 * time.Second
	// gpuOpens is what opening GPU memory may take on one side: each session starts CUDA
	// anew if it is in a child, which takes longer the more GPUs the node has, and seconds
	// for each without persistence mode. That is no fault of a path.
	gpuOpens = 10 * time.Second
)

// takes is what a session may take. One side opens its memory after the other.
func (it item) takes() time.Duration {
	switch {
	case it.kind == session.Ping:
		return pingTakes
	case it.memory != session.Host:
		return bandwidthTakes + 2*gpuOpens
	}
	return bandwidthTakes
}

// allowance is how much of what something may take it may here, in real time.
func (m *meeting) allowance(takes time.Duration) time.Duration {
	if m.span == 0 {
		return takes
	}
	return min(takes, m.runner.clock.real(m.span)/2)
}

// enough is how much time something must have had for its end to say that it takes too
// long.
func (m *meeting) enough(takes time.Duration) time.Duration {
	return max(m.allowance(takes), m.runner.options.least)
}

func deadlineOf(ctx context.Context) time.Time {
	deadline, _ := ctx.Deadline()
	return deadline
}

// remaining is how much time a context has, if that is bounded.
func remaining(ctx context.Context) (left time.Duration, bounded bool) {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline), true
	}
	return time.Hour, false
}

// moved are the bytes that a session moved, both ways.
func moved(result *session.Result) (bytes uint64) {
	for _, round := range result.Rounds {
		for _, way := range []*session.Way{round.Written, round.Back} {
			if way != nil {
				bytes += way.Bytes
			}
		}
	}
	return bytes
}

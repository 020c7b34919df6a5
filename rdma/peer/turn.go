package peer

import (
	"context"
	"time"

	"gdr_exporter/rdma/peer/schedule"
	"gdr_exporter/rdma/peer/session"
)

// due reports whether a turn is one to be taken now: this node begins, it has not done
// so, and enough of the slot is left. Which it is not for a node that was started, or
// woke up, in the middle of one.
func (r *Runner) due(t schedule.Turn, now time.Time) bool {
	if t.Partner == schedule.None || !t.Initiator || t.Begin.Equal(r.played) || now.Before(t.Begin) {
		return false
	}
	return now.Sub(t.Begin) <= t.Deadline.Sub(t.Begin)/2
}

// window is what was settled in a step of the tournament of bandwidth: a later try of
// it is for the rest.
type window struct {
	step    int64
	began   bool
	settled map[settled]bool
	over    bool // the call itself came to something: there is nothing to try again
}

type settled struct {
	own    session.Port
	memory session.Memory
}

// take holds the meeting of a turn.
func (r *Runner) take(ctx context.Context, s *setting, t schedule.Turn) {
	m := &meeting{
		runner: r, target: s.addresses[t.Partner], name: s.list.At(t.Partner).Name(), self: s.own(), setting: s,
		kind: session.Kind(t.Kind), span: t.Deadline.Sub(t.Begin), rotate: t.Pass/2 + int64(t.Partner), journal: r.book,
	}
	if m.kind == session.Bandwidth {
		if !r.window.began || r.window.step != t.Step {
			r.window = window{step: t.Step, began: true, settled: map[settled]bool{}}
		}
		if r.window.over {
			return
		}
		m.window = &r.window
	}
	m.items = r.items(t)
	ctx, cancel := context.WithTimeout(ctx, r.clock.real(t.Deadline.Sub(r.clock.now())))
	defer cancel()
	failure := m.hold(ctx)
	r.book.met(m.target, r.clock.now(), &r.options.Schedule)
	if class := callClass(failure); class.Judged() && class != ClassFine {
		r.window.over = m.kind == session.Bandwidth || r.window.over
	}
}

// items are the sessions of a turn on each rail.
func (r *Runner) items(t schedule.Turn) []item {
	if t.Kind == schedule.Ping {
		return []item{pinging}
	}
	var items []item
	if r.options.Schedule.Pings == 0 {
		items = append(items, pinging)
	}
	items = append(items, bandwidthOf(session.Host), bandwidthOf(session.GPU))
	// A pair's steps are an odd number apart and its roles change with each pass: the
	// second term sees to it that both sides have their turns with the control.
	if n := int64(r.options.Staged); n > 0 && (t.Step+t.Pass/n)%n == 0 {
		items = append(items, bandwidthOf(session.Staged))
	}
	return items
}

// item is a session on a rail.
type item struct {
	kind       session.Kind
	memory     session.Memory
	directions []session.Direction
}

var pinging = item{session.Ping, session.Host, []session.Direction{session.Write}}

// bandwidthOf is a measurement of bandwidth. Both directions at once are measured
// between host memories: what limits GPU memory is found each way.
func bandwidthOf(memory session.Memory) item {
	directions := []session.Direction{session.Write, session.Reverse}
	if memory == session.Host {
		directions = append(directions, session.Both)
	}
	return item{session.Bandwidth, memory, directions}
}

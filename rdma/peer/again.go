package peer

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"gdr_exporter/rdma/peer/schedule"
	"gdr_exporter/rdma/peer/session"
)

// What is bad is looked at again before the pair's next turn, which may be days away: a
// peer that was started anew must not look bad for so long. That is done in slots for
// bandwidth in which this node meets nobody, as most are. The peer has mostly nothing to
// do then either; if it has, it refuses, and what it was to do can be tried again.

// looksAgain bounds how many peers are looked at again in a slot.
const looksAgain = 2

// spare is a slot in which this node meets nobody.
type spare struct {
	start, begin time.Time
	used         bool
}

// idle says when in a slot there is time for other than what is scheduled, false if the
// slot is not such a one.
func (r *Runner) idle(slot schedule.Turn, now time.Time) (begin time.Time, idle bool) {
	if slot.Kind != schedule.Bandwidth || slot.Partner != schedule.None || len(r.book.due(now, 1)) == 0 {
		return time.Time{}, false
	}
	if !r.spare.start.Equal(slot.Start) {
		// Not all nodes at once: they may all look at the same one.
		within := r.lastOf(slot).Sub(slot.Start.Add(r.options.Schedule.Guard)) / 2
		r.spare = spare{start: slot.Start, begin: slot.Start.Add(r.options.Schedule.Guard).Add(rand.N(max(within, 1)))}
	}
	return r.spare.begin, !r.spare.used
}

// lastOf is when all that is done in a slot has ended.
func (r *Runner) lastOf(slot schedule.Turn) time.Time { return slot.End.Add(-r.options.Schedule.Guard) }

// lookAgain measures anew what is bad.
func (r *Runner) lookAgain(ctx context.Context, s *setting, slot schedule.Turn) {
	end := r.lastOf(slot)
	for _, target := range r.book.due(r.clock.now(), looksAgain) {
		now := r.clock.now()
		i := s.list.Find(target)
		if i < 0 || i == s.self || !now.Before(end) {
			return
		}
		m := &meeting{
			runner: r, target: target, name: s.list.At(i).Name(), self: s.own(), setting: s, kind: session.Ping, span: end.Sub(now), journal: r.book,
			items: []item{pinging, bandwidthOf(session.Host), bandwidthOf(session.GPU), bandwidthOf(session.Staged)},
			again: true, lost: r.book.lost(target), rotate: rand.Int64(),
		}
		meeting, cancel := context.WithTimeout(ctx, r.clock.real(end.Sub(now)))
		_ = m.hold(meeting) // the book has it
		cancel()
		r.book.met(target, r.clock.now(), &r.options.Schedule)
	}
}

// bad reports whether a session may lift what is bad. Host memory is measured too where
// other memory is bad: its rate is what that is compared with.
func (m *meeting) bad(it item, path *Path) bool {
	if it.kind == session.Ping {
		return m.lost || path.Ping != nil && path.Ping.Class.Bad()
	}
	return slices.ContainsFunc(path.Bandwidth, func(old *Measurement) bool {
		return old.Class.Bad() && (old.Memory == it.memory || it.memory == session.Host)
	})
}

// bad reports whether anything of a peer is.
func (k *known) bad() bool {
	return k.listener.Bad() || slices.ContainsFunc(k.paths, func(p Path) bool {
		return p.Ping != nil && p.Ping.Class.Bad() || slices.ContainsFunc(p.Bandwidth, func(m *Measurement) bool { return m.Class.Bad() })
	})
}

// met notes that there was a meeting, after which what is bad is looked at again: at
// first after two frames, then after twice as long each time, up to a round.
func (b *book) met(target string, now time.Time, o *schedule.Options) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.peers[target]
	switch {
	case k == nil:
	case !k.bad():
		k.again, k.pause = time.Time{}, 0
	default:
		k.pause = min(max(2*k.pause, 2*o.Frame), o.Round)
		k.again = now.Add(k.pause)
	}
}

// due are peers that are to be looked at again, those that have waited longest first.
func (b *book) due(now time.Time, most int) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var due []string
	for target, k := range b.peers {
		// A clock that was set back would have it wait for as long as that.
		if !k.again.IsZero() && (!now.Before(k.again) || k.again.Sub(now) > k.pause) {
			due = append(due, target)
		}
	}
	slices.SortFunc(due, func(x, y string) int { return cmp.Or(b.peers[x].again.Compare(b.peers[y].again), cmp.Compare(x, y)) })
	return due[:min(len(due), most)]
}

// lost reports whether a peer's listener is bad.
func (b *book) lost(target string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.peers[target]
	return k != nil && k.listener.Bad()
}

package kmsg

import (
	"maps"
	"time"

	"gdr_exporter/collector/sysread"
)

// journal is what a Reader knows.
type journal struct {
	err   error
	clock clock

	since  time.Time // zero: never opened
	live   bool      // history has been read
	begun  bool      // there was a record
	oldest uint64    // its time, in microseconds
	next   uint64    // the number that the next record should have
	taken  int
	lost   uint64

	counts map[Pattern]uint64
	last   map[Pattern]noted
	recent []noted
}

// noted is an event whose time is still the log's.
type noted struct {
	event  Event
	micros uint64
}

func newJournal(now func() time.Time, uptime func() time.Duration) journal {
	j := journal{clock: clock{now: now, uptime: uptime}, counts: make(map[Pattern]uint64, len(Patterns)), last: map[Pattern]noted{}}
	for _, pattern := range Patterns {
		j.counts[pattern] = 0
	}
	return j
}

// opened begins to read, or to read again: what was read before is known by its
// numbers, and what was not is new.
func (j *journal) opened() {
	j.err = nil
	if j.since.IsZero() {
		j.since = j.clock.now().Round(0)
	}
}

// caughtUp ends history: there is no record that was not read.
func (j *journal) caughtUp() { j.live = true }

// add takes in a record; fresh says that it was just written.
func (j *journal) add(r *record, fresh bool) {
	switch {
	case !j.begun:
		j.begun, j.oldest = true, r.micros
	case r.sequence < j.next:
		return
	default:
		j.lost += r.sequence - j.next
	}
	j.next = r.sequence + 1
	if j.taken++; j.taken >= historyMost {
		j.live = true
	}
	if fresh {
		j.clock.fresh(r.micros)
	}
	if r.facility != 0 {
		return // somebody wrote into the log who is not the kernel
	}
	event, matches := match(r.text)
	if !matches {
		return
	}
	if device := address(string(r.device)); device != "" {
		event.Address = device
	}
	j.note(noted{event, r.micros})
}

func (j *journal) note(n noted) {
	if j.live {
		j.counts[n.event.Pattern]++
	}
	j.last[n.event.Pattern] = n
	if len(j.recent) == MaxRecent {
		j.recent = append(j.recent[:0], j.recent[1:]...)
	}
	j.recent = append(j.recent, n)
}

// reading is what is known, apart from what becomes of the journal.
func (j *journal) reading() Reading {
	r := Reading{Err: j.err, Since: j.since, Counts: maps.Clone(j.counts), Last: make(map[Pattern]Event, len(j.last))}
	if j.since.IsZero() {
		return r
	}
	j.clock.look()
	if j.begun {
		r.Oldest = j.clock.time(j.oldest)
	}
	for pattern, n := range j.last {
		r.Last[pattern] = j.timed(&n)
	}
	r.Recent = make([]Event, len(j.recent))
	for i := range j.recent {
		r.Recent[i] = j.timed(&j.recent[i])
	}
	r.Lost = sysread.Some(j.lost)
	return r
}

func (j *journal) timed(n *noted) Event {
	event := n.event
	event.Time = j.clock.time(n.micros)
	return event
}

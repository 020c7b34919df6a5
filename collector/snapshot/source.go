package snapshot

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrListStuck is a Part's error while listing the devices hangs.
var ErrListStuck = errors.New("listing the devices does not return")

// source reads one subsystem: it lists units and reads each on its own worker.
// L is what listing gives beside the units.
type source[U Unit[T], T, L any] struct {
	name   string
	list   func() (units []U, listing L, err error)
	ledger *Ledger
	maxAge time.Duration // age up to which a finished round serves another scrape
	stuck  time.Duration // a read that takes longer hangs
	now    func() time.Time

	mu      sync.Mutex
	current *round[U, T, L]
	workers map[U]*worker[U, T]
	orphans []*worker[U, T] // retired while their read hung
	listing bool            // list is being called
}

func newSource[U Unit[T], T, L any](name string, o *Options, ledger *Ledger, list func() ([]U, L, error)) *source[U, T, L] {
	return &source[U, T, L]{
		name: name, list: list, ledger: ledger, maxAge: o.MaxAge, stuck: o.Deadline, now: o.Now,
		workers: map[U]*worker[U, T]{},
	}
}

// round is one read of all units, shared by the scrapes that wait for it.
type round[U Unit[T], T, L any] struct {
	started time.Time
	done    chan struct{}

	mu       sync.Mutex
	listed   bool
	listing  L
	err      error
	slots    []slot[U, T]
	orphans  []stuckUnit
	expired  bool // a scrape gave up waiting: do not join it any more
	finished time.Time
}

// slot is one unit's place in a round. A nil reading means that the unit hangs
// since an earlier round.
type slot[U Unit[T], T any] struct {
	unit    U
	since   time.Time
	reading *reading[T]
}

// stuckUnit is a unit whose read hangs.
type stuckUnit struct {
	name  string
	since time.Time
}

// Part is one subsystem's share of a Snapshot.
type Part[T, L any] struct {
	Taken    time.Time     // when reading began
	Duration time.Duration // until the last device answered, or until the deadline
	Err      error         // the devices could not be listed
	Listing  L
	Units    []UnitPart[T] // in the order of their names
}

// UnitPart is one device's share of a Part.
type UnitPart[T any] struct {
	Name string
	// Data is nil if the device did not answer in time.
	Data     *T
	Duration time.Duration
	// StuckFor is how long the device has been hanging, 0 if it answered.
	StuckFor time.Duration
}

// take returns the subsystem as it is now, or as it was at most maxAge ago.
// It returns by ctx's deadline with what has been read by then.
func (s *source[U, T, L]) take(ctx context.Context) Part[T, L] {
	r := s.round()
	select {
	case <-r.done:
	case <-ctx.Done():
		r.expire()
	}
	return r.part(s.now())
}

// part is take for a field of Snapshot.
func (s *source[U, T, L]) part(ctx context.Context) *Part[T, L] {
	part := s.take(ctx)
	return &part
}

// round returns the round to wait for: the one in progress, a finished one that
// is young enough, or a new one.
func (s *source[U, T, L]) round() *round[U, T, L] {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.current; r != nil && r.serves(now, s.maxAge, s.stuck) {
		return r
	}
	r := &round[U, T, L]{started: now, done: make(chan struct{})}
	s.current = r
	if s.listing {
		r.err = ErrListStuck
		r.finish(now)
		return r
	}
	s.listing = true
	go s.run(r)
	return r
}

func (r *round[U, T, L]) serves(now time.Time, maxAge, stuck time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.expired {
		return false
	}
	if r.finished.IsZero() {
		return now.Sub(r.started) < stuck
	}
	return maxAge > 0 && now.Sub(r.started) < maxAge
}

// run lists the units, starts their workers and waits for them.
func (s *source[U, T, L]) run(r *round[U, T, L]) {
	units, listing, err := s.list()
	if err != nil {
		s.ledger.add(s.name, asReadErrors(err))
	}
	s.mu.Lock()
	s.listing = false
	var slots []slot[U, T]
	if err == nil {
		// A list that failed says nothing of what is gone: the workers stay, so
		// that none is replaced by another while it reads.
		slots = s.start(units, r.started)
	}
	orphans := s.hangingOrphans(units)
	s.mu.Unlock()

	r.mu.Lock()
	r.listed, r.listing, r.err, r.slots, r.orphans = true, listing, err, slots, orphans
	r.mu.Unlock()
	for _, slot := range slots {
		if slot.reading != nil {
			<-slot.reading.done
		}
	}
	r.finish(s.now())
}

// start gives every unit a worker, starts those that are idle, and retires the
// workers of units that are gone.
func (s *source[U, T, L]) start(units []U, now time.Time) []slot[U, T] {
	workers := make(map[U]*worker[U, T], len(units))
	slots := make([]slot[U, T], 0, len(units))
	for _, unit := range units {
		w := s.workers[unit]
		if w == nil {
			w = &worker[U, T]{unit: unit}
		}
		workers[unit] = w
		slots = append(slots, s.slot(w, now))
	}
	for unit, w := range s.workers {
		if workers[unit] != nil {
			continue
		}
		w.retire()
		if _, busy := w.busySince(); busy {
			s.orphans = append(s.orphans, w)
		}
	}
	s.workers = workers
	return slots
}

// slot starts the worker, or joins its read if that is not hanging yet.
func (s *source[U, T, L]) slot(w *worker[U, T], now time.Time) slot[U, T] {
	since, busy := w.busySince()
	if busy && now.Sub(since) >= s.stuck {
		return slot[U, T]{unit: w.unit, since: since}
	}
	reading := w.begin(now, func(res result[T]) { s.ledger.add(s.name, res.errs) })
	return slot[U, T]{unit: w.unit, since: reading.started, reading: reading}
}

// hangingOrphans returns the retired units that still hang. One whose name is
// listed again is left out: the name now means the new device.
func (s *source[U, T, L]) hangingOrphans(units []U) []stuckUnit {
	names := make(map[string]bool, len(units))
	for _, unit := range units {
		names[unit.Name()] = true
	}
	var stuck []stuckUnit
	var still []*worker[U, T]
	for _, w := range s.orphans {
		since, busy := w.busySince()
		if !busy {
			continue
		}
		still = append(still, w)
		if name := w.unit.Name(); !names[name] {
			names[name] = true
			stuck = append(stuck, stuckUnit{name, since})
		}
	}
	s.orphans = still
	return stuck
}

// invalidate makes the next scrape read anew, whatever its age.
func (s *source[U, T, L]) invalidate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		s.current.expire()
	}
}

// close releases what the units keep open; those that hang are closed when they
// return.
func (s *source[U, T, L]) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.workers {
		w.retire()
	}
	s.workers = map[U]*worker[U, T]{}
}

func (r *round[U, T, L]) finish(now time.Time) {
	r.mu.Lock()
	r.finished = now
	r.mu.Unlock()
	close(r.done)
}

func (r *round[U, T, L]) expire() {
	r.mu.Lock()
	r.expired = true
	r.mu.Unlock()
}

// part puts together what the round has so far.
func (r *round[U, T, L]) part(now time.Time) Part[T, L] {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := r.finished
	if end.IsZero() {
		end = now
	}
	part := Part[T, L]{Taken: r.started, Duration: end.Sub(r.started), Err: r.err, Listing: r.listing}
	if !r.listed && r.err == nil {
		part.Err = ErrListStuck
	}
	part.Units = make([]UnitPart[T], 0, len(r.slots)+len(r.orphans))
	for _, slot := range r.slots {
		part.Units = append(part.Units, slot.part(now))
	}
	for _, orphan := range r.orphans {
		part.Units = append(part.Units, UnitPart[T]{Name: orphan.name, StuckFor: now.Sub(orphan.since)})
	}
	return part
}

func (s slot[U, T]) part(now time.Time) UnitPart[T] {
	if s.reading != nil {
		select {
		case <-s.reading.done:
			return UnitPart[T]{Name: s.unit.Name(), Data: &s.reading.result.data, Duration: s.reading.result.duration}
		default:
		}
	}
	return UnitPart[T]{Name: s.unit.Name(), StuckFor: max(now.Sub(s.since), 1)}
}

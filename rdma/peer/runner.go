package peer

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"gdr_exporter/rdma/peer/session"
	"gdr_exporter/rdma/peer/targets"
)

// Runner measures the paths to the peers. Run does it by the schedule; the other
// methods may be called at any time.
type Runner struct {
	options Options
	clock   clock
	seat    seat
	claims  *session.Claims
	budget  *session.Budget
	book    *book
	setting atomic.Pointer[setting]

	// Of the goroutine that plays the schedule.
	played time.Time // Begin of the last turn that was taken
	spare  spare
	window window

	building sync.Mutex // of a Status
	shown    *Status
	version  uint64   // of the book that it shows
	follows  *setting // that it shows
}

// New is a Runner, once it was told to run.
func New(options Options) (*Runner, error) {
	o := options.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	most := o.BytesPerHour
	if most == 0 {
		most = math.MaxUint64 // what is spent is shown all the same
	}
	r := &Runner{options: o, clock: clock{o.Now, o.pace}, claims: session.NewClaims(), budget: session.NewBudget(most), book: newBook()}
	r.setting.Store(newSetting(targets.NewList(nil, targets.Self{}), o.Schedule))
	return r, nil
}

// Run plays this node's part in the schedule and serves the peers until the context
// ends, or the listener does. It is run once, and leaves nothing behind but calls that
// hang.
func (r *Runner) Run(ctx context.Context) error {
	if r.options.Watcher == nil {
		return errors.New("peers: there is no list of targets")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.follow(ctx)
	var serving error
	var all sync.WaitGroup
	if r.options.Listener != nil {
		all.Go(func() {
			serving = r.serve(ctx)
			cancel()
		})
	}
	for ctx.Err() == nil {
		r.step(ctx)
	}
	all.Wait()
	return serving
}

// step waits for what is next and does it.
func (r *Runner) step(ctx context.Context) {
	// Asked for before the list is looked at: what changes in between wakes.
	changed := r.options.Watcher.Changed()
	s := r.follow(ctx)
	now := r.clock.now()
	if s.plan == nil {
		r.clock.wait(ctx, now.Add(r.options.Schedule.Frame), changed)
		return
	}
	slot := s.plan.At(now)
	until := earlier(s.end, slot.End)
	if turn, found := s.plan.Next(now); found {
		until = earlier(until, turn.Begin)
	}
	if begin, idle := r.idle(slot, now); idle {
		until = earlier(until, begin)
	}
	r.clock.wait(ctx, until, nil)
	now = r.clock.now()
	if ctx.Err() != nil || !s.holds(now) {
		return
	}
	slot = s.plan.At(now)
	if r.due(slot, now) {
		r.played = slot.Begin
		r.take(ctx, s, slot)
	} else if begin, idle := r.idle(slot, now); idle && !now.Before(begin) {
		r.spare.used = true
		r.lookAgain(ctx, s, slot)
	}
}

// follow takes the newest list when a frame has ended, so that nothing changes within
// one. While this node has no part in the schedule it takes each.
func (r *Runner) follow(ctx context.Context) *setting {
	now := r.clock.now()
	before := r.setting.Load()
	if before.holds(now) {
		return before
	}
	next := before
	if list := r.options.Watcher.List(); list != before.list {
		next = newSetting(list, r.options.Schedule)
	}
	next = next.at(now, r.options.Schedule)
	r.setting.Store(next)
	r.look(ctx, next)
	ping, bandwidth := next.ages(&r.options)
	r.tell(r.book.frame(next, now, ping, bandwidth))
	if next.String() != before.String() {
		r.tell([]Event{{Kind: EventList, Text: next.String()}})
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (r *Runner) tell(events []Event) {
	for _, e := range events {
		r.options.Event(e)
	}
}

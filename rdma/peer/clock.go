package peer

import (
	"context"
	"time"
)

// glance is how long nobody looks at the clock at most: a timer does not notice that
// the clock was set.
const glance = 5 * time.Second

// clock is the wall clock that the schedule is played by.
type clock struct {
	wall func() time.Time
	pace float64 // its seconds in a real one
}

// now has no monotonic reading: nodes meet by what their clocks show.
func (c clock) now() time.Time { return c.wall().Round(0) }

// real is how long a time of this clock takes.
func (c clock) real(d time.Duration) time.Duration { return time.Duration(float64(d) / c.pace) }

// wait waits until a time. It returns earlier when the context ends, when it is woken
// or when the clock was set back: whoever waits looks again at what is next.
func (c clock) wait(ctx context.Context, until time.Time, woken <-chan struct{}) {
	for before := c.now(); before.Before(until); {
		timer := time.NewTimer(min(c.real(until.Sub(before)), glance))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-woken:
			timer.Stop()
			return
		case <-timer.C:
		}
		now := c.now()
		if now.Before(before) {
			return
		}
		before = now
	}
}

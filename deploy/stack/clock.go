package stack

import (
	"strconv"
	"time"
)

// Clock is a clock that runs faster than the wall clock since it began. What nodes show
// is by this clock; Prometheus and Alertmanager know the wall clock only, so that their
// rules and configurations have to be scaled: see [Clock.Rules].
type Clock struct {
	began time.Time
	speed float64
}

// NewClock returns a clock that runs speed times as fast as the wall clock from now on.
func NewClock(speed float64) Clock { return Clock{time.Now(), speed} }

// Now is the time by the clock.
func (c Clock) Now() time.Time { return c.At(time.Now()) }

// At is what the clock shows at a time of the wall clock.
func (c Clock) At(wall time.Time) time.Time {
	return c.began.Add(time.Duration(float64(wall.Sub(c.began)) * c.speed))
}

// Real is for how long the wall clock runs while this one runs for a time.
func (c Clock) Real(d time.Duration) time.Duration {
	return time.Duration(float64(d) / c.speed)
}

// Began is when the clock began to run.
func (c Clock) Began() time.Time { return c.began }

// Since is for how long the clock has run.
func (c Clock) Since() time.Duration { return c.Now().Sub(c.began) }

// promQL is the time by the clock in place of time(), which is the wall clock's.
func (c Clock) promQL() string {
	began := strconv.FormatFloat(float64(c.began.UnixMilli())/1000, 'f', -1, 64)
	return "(" + began + " + (time() - " + began + ") * " + c.factor() + ")"
}

func (c Clock) factor() string { return strconv.FormatFloat(c.speed, 'f', -1, 64) }

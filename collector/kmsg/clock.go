package kmsg

import (
	"time"

	"golang.org/x/sys/unix"
)

// clock turns the times of records into those of the wall clock.
//
// The log counts microseconds since boot by the processors' clock, which nobody
// corrects: within weeks it departs from the monotonic clock by seconds. And the
// wall clock is set, sometimes by hours, after the first lines were written. So
// both differences are kept apart, and each is taken anew only once it has moved
// by more than a second: a time that was shown stays what it was.
type clock struct {
	now    func() time.Time
	uptime func() time.Duration

	boot time.Time     // on the wall clock
	skew time.Duration // what the monotonic clock is ahead of the log's
}

const clockStep = time.Second

// look notices that the wall clock was set.
func (c *clock) look() {
	boot := c.now().Add(-c.uptime()).Round(0)
	if diff := boot.Sub(c.boot); c.boot.IsZero() || diff.Abs() > clockStep {
		c.boot = boot
	}
}

// fresh tells of a record that was just written.
func (c *clock) fresh(micros uint64) {
	skew := c.uptime() - sinceBoot(micros)
	if diff := skew - c.skew; diff.Abs() > clockStep {
		c.skew = skew
	}
}

// time is when a record was written.
func (c *clock) time(micros uint64) time.Time { return c.boot.Add(sinceBoot(micros) + c.skew) }

// sinceBoot is a record's time, of nonsense as much as fits: centuries.
func sinceBoot(micros uint64) time.Duration {
	const most = uint64(1<<62) / uint64(time.Microsecond)
	return time.Duration(min(micros, most)) * time.Microsecond //nolint:gosec // fits
}

// uptime is the monotonic clock of the kernel.
func uptime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

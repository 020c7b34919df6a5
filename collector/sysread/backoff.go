package sysread

import "time"

// Backoff spaces out attempts at something that keeps refusing. The zero value
// does not wait.
type Backoff struct {
	refusals int
	retryAt  time.Time
}

// Waiting reports whether it is too early for another attempt.
func (b *Backoff) Waiting(now time.Time) bool { return now.Before(b.retryAt) }

// Refuse notes one more refusal. After the first free ones, which are retried
// as usual, the wait begins at first and doubles up to most.
func (b *Backoff) Refuse(now time.Time, free int, first, most time.Duration) {
	b.refusals++
	if b.refusals <= free {
		return
	}
	wait := most
	if doublings := b.refusals - free - 1; doublings < 20 {
		wait = min(first<<doublings, most)
	}
	b.retryAt = now.Add(wait)
}

// Reset forgets all refusals.
func (b *Backoff) Reset() { *b = Backoff{} }

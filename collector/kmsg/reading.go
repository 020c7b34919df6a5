// Package kmsg reads the kernel's log for what interconnects and the drivers of
// GPUs and NICs say in it: lines by a table of patterns, and nothing else. What
// users wrote into the log does not count.
package kmsg

import (
	"time"

	"gdr_exporter/collector/sysread"
)

// Event is one line of the kernel's log that a pattern matched.
type Event struct {
	Pattern Pattern
	// Time is when the kernel wrote it, from its microseconds since boot.
	Time time.Time
	// Address is the PCI function that the record names (DEVICE=+pci:, else the
	// text), as sysfs writes it; "" if it names none.
	Address string
	// Code is the number of an Xid or SXid; 0 of others.
	Code int
	// Text is the line, printable and of bounded length.
	Text string
}

// Reading is what the log said until now. It is immutable.
type Reading struct {
	// Err is why the log cannot be read (no device node, no CAP_SYSLOG, a cgroup
	// that forbids it), nil if it can.
	Err error
	// Since is when the reader began, zero if it never could; Oldest is the time of
	// the oldest record it found, zero if the log was empty: what the counts and last
	// times cover.
	Since, Oldest time.Time
	// Counts has the events since the reader began, by pattern: every pattern is in it.
	Counts map[Pattern]uint64
	// Last has the newest event of each pattern since boot, as far as the kernel
	// still had it. A pattern without one is not in it.
	Last map[Pattern]Event
	// Recent are the newest events, at most MaxRecent, in the order of the log.
	Recent []Event
	// Lost counts records that were overwritten before they were read: the kernel
	// numbers them. Not known if the log never could be read.
	Lost sysread.Maybe[uint64]
}

// MaxRecent bounds the events that a Reading keeps.
const MaxRecent = 64

package gpu

import "time"

// Symbols is symbols.
func Symbols(call string) []string { return symbols(call) }

// Observe makes the Reader tell how long each call takes.
func (r *Reader) Observe(f func(call string, duration time.Duration)) { r.calls.observe = f }

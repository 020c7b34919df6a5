package diagnosis

import "time"

// mostPatience is how long rules wait whose waiting EngineOptions.Patience cuts short.
const mostPatience = time.Minute

// after is how long what a rule finds must hold before it is a finding.
func (h *history) after(r *rule) time.Duration {
	if h.patience > 0 && r.after <= mostPatience {
		return min(r.after, h.patience)
	}
	return r.after
}

// Pending is when, at the earliest, what the last Snapshot showed is a finding and
// was not one yet, if it is still there then; ok is false if there is nothing such
// that Patience lets be soon.
func (e *Engine) Pending() (at time.Time, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range rules {
		r := &rules[i]
		if e.history.patience == 0 || r.after > mostPatience {
			continue
		}
		for _, known := range e.history.held[r.ID] {
			if known.shown {
				continue
			}
			if due := known.finding.Since.Add(e.history.after(r)); !ok || due.Before(at) {
				at, ok = due, true
			}
		}
	}
	return at, ok
}

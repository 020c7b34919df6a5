package peer

import (
	"fmt"
	"slices"
	"strings"

	"gdr_exporter/rdma/peer/session"
)

// callClass is what a call of a peer's listener came to, by why it failed.
func callClass(f *session.Failure) Class {
	if f == nil {
		return ClassFine
	}
	switch f.Reason {
	case session.ReasonUnreachable, session.ReasonLeft, session.ReasonTimeout, session.ReasonHung, session.ReasonRDMA:
		return ClassUnreachable // whatever kept the listener from answering
	}
	return sessionClass(f)
}

// sessionClass is what a session came to, by why it failed.
func sessionClass(f *session.Failure) Class {
	switch f.Reason {
	case session.ReasonRDMA, session.ReasonHung, session.ReasonTimeout:
		return ClassFailed
	case session.ReasonTLS, session.ReasonCertificate, session.ReasonNotListed, session.ReasonForeign, session.ReasonVersion,
		session.ReasonProtocol, session.ReasonInvalid, session.ReasonClaimed:
		return ClassDenied
	case session.ReasonUnreachable:
		return ClassUnreachable
	case session.ReasonStopped:
		if !f.Peer {
			return ClassStopped
		}
	}
	// Busy, locked, gated, no budget; a port that has gone since the hello; a peer that
	// has ended, which the next call finds out; what a newer version may say.
	return ClassRefused
}

// judge is what a session says of a path, of which it knows what was measured before.
func (r *Runner) judge(p pair, it item, result *session.Result, path *Path) *Measurement {
	m := &Measurement{Kind: it.kind, Memory: it.memory, Class: ClassFine, Result: result}
	if wrong := mismatches(result); wrong > 0 {
		m.Class, m.Text = ClassCorrupt, fmt.Sprintf("%d words of 8 bytes arrived wrong", wrong)
		return m
	}
	if f := result.Failure; f != nil {
		m.Class, m.Text = sessionClass(f), f.Error()
		return m
	}
	if it.kind == session.Ping {
		if lost := lostPings(result); lost > 0 {
			m.Class, m.Text = ClassFailed, fmt.Sprintf("%d writes were not answered", lost)
		}
		return m
	}
	r.judgeRates(m, p, path)
	return m
}

// mismatches are the words that arrived wrong.
func mismatches(result *session.Result) (words int) {
	for _, round := range result.Rounds {
		for _, way := range []*session.Way{round.Written, round.Back} {
			if way != nil {
				words += way.Mismatches
			}
		}
	}
	return words
}

func lostPings(result *session.Result) (lost int) {
	for _, round := range result.Rounds {
		for _, way := range []*session.Way{round.Written, round.Back} {
			if way != nil && way.Latency != nil {
				lost += way.Latency.Lost
			}
		}
	}
	return lost
}

// judgeRates compares what went one way at a time. Both ways at once are shown and not
// judged: what limits their sum (the PCIe link, the memory) is not known here. Staged
// writes are a control, and as slow as copies are.
func (r *Runner) judgeRates(m *Measurement, p pair, path *Path) {
	limits := r.options.Rates
	var texts []string
	for _, d := range []session.Direction{session.Write, session.Reverse} {
		rate, known := RateOf(m.Result, d)
		if !known {
			continue
		}
		limit, of := r.limit(m.Memory, d, p, path)
		if limit > 0 && (m.Limit == 0 || rate < limit || limit < m.Limit && m.Class == ClassFine) {
			m.Limit, m.LimitOf = limit, of
		}
		if rate < limit {
			m.Class = ClassSlow
			texts = append(texts, fmt.Sprintf("%s %s, limit %s by the %s", d, rateText(rate), rateText(limit), of))
		}
	}
	if text := asymmetric(m, limits.Asymmetry); text != "" {
		m.Class = ClassSlow
		texts = append(texts, text)
	}
	m.Text = strings.Join(texts, "; ")
}

// The values of LimitOf.
const (
	limitOfPort  = "port rate"
	limitOfHost  = "host memory"
	limitOfOther = "other direction"
)

// limit is what a rate must reach, 0 if nothing says so.
func (r *Runner) limit(memory session.Memory, d session.Direction, p pair, path *Path) (limit float64, of string) {
	switch memory {
	case session.Host:
		port := lesser(p.own.Rate, p.peer.Rate)
		return max(0, r.options.Rates.Port*port), limitOfPort
	case session.GPU:
		host := path.measured(session.Host)
		if host == nil || r.clock.now().Sub(host.Time) > r.options.Schedule.Round {
			return 0, "" // not of the same set of sessions
		}
		rate, _ := RateOf(host.Result, d)
		return max(0, r.options.Rates.GPU*rate), limitOfHost
	}
	return 0, ""
}

// lesser is the lesser of two rates, or the one that is known.
func lesser(a, b float64) float64 {
	switch {
	case a <= 0:
		return max(b, 0)
	case b <= 0:
		return a
	}
	return min(a, b)
}

// asymmetric says that one direction is much slower than the other, "" if not so.
func asymmetric(m *Measurement, share float64) string {
	write, one := RateOf(m.Result, session.Write)
	reverse, other := RateOf(m.Result, session.Reverse)
	limit := share * max(write, reverse)
	if !one || !other || m.Memory == session.Staged || min(write, reverse) >= limit {
		return ""
	}
	if m.Class == ClassFine {
		m.Limit, m.LimitOf = limit, limitOfOther
	}
	return fmt.Sprintf("asymmetric: write %s, reverse %s", rateText(write), rateText(reverse))
}

// RateOf is what a session moved in a direction, in bytes per second; of both
// directions at once it is their sum. False: that was not measured.
func RateOf(result *session.Result, d session.Direction) (rate float64, known bool) {
	if result == nil {
		return 0, false
	}
	for _, round := range result.Rounds {
		if round.Direction != d || round.Failure != nil {
			continue
		}
		sum, ways := 0.0, 0
		for _, way := range []*session.Way{round.Written, round.Back} {
			if way != nil && way.BytesPerSecond > 0 {
				sum, ways = sum+way.BytesPerSecond, ways+1
			}
		}
		if ways == 0 || d == session.Both && ways == 1 {
			continue
		}
		return sum, true
	}
	return 0, false
}

// LatencyOf is how a ping was answered, nil if it was not.
func LatencyOf(result *session.Result) *session.Latency {
	if result == nil {
		return nil
	}
	for _, round := range result.Rounds {
		for _, way := range []*session.Way{round.Written, round.Back} {
			if way != nil && way.Latency != nil && way.Latency.Count > 0 {
				return way.Latency
			}
		}
	}
	return nil
}

// rateText is a rate as people read it.
func rateText(rate float64) string {
	switch {
	case rate >= 1e9:
		return fmt.Sprintf("%.2f GB/s", rate/1e9)
	case rate >= 1e6:
		return fmt.Sprintf("%.2f MB/s", rate/1e6)
	}
	return fmt.Sprintf("%.2f kB/s", rate/1e3)
}

// measured is the measurement of bandwidth of a memory, nil if there is none.
func (p *Path) measured(memory session.Memory) *Measurement {
	for _, m := range p.Bandwidth {
		if m.Memory == memory {
			return m
		}
	}
	return nil
}

// take puts a measurement in the place of the one before. What others have of the path
// does not change.
func (p *Path) take(m *Measurement) {
	if m.Kind == session.Ping {
		p.Ping = m
		return
	}
	others := slices.DeleteFunc(slices.Clone(p.Bandwidth), func(old *Measurement) bool { return old.Memory == m.Memory })
	p.Bandwidth = slices.Clip(append(others, m))
}

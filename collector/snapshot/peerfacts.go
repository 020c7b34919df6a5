package snapshot

import (
	"math"
	"time"

	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
)

// PeerState is what is said of another node, by the last that is known of it.
type PeerState string

// The states.
const (
	PeerGood    PeerState = "good"    // its listener answers, and no path to it is bad
	PeerBad     PeerState = "bad"     // its listener does not answer or lets nobody in, or a path to it is bad
	PeerUnknown PeerState = "unknown" // nothing is known that would say
)

// PeerStates are all states.
var PeerStates = []PeerState{PeerGood, PeerBad, PeerUnknown}

// PeerStateOf says how a peer is.
func PeerStateOf(p *peer.Peer) PeerState {
	if p.Listener.Bad() {
		return PeerBad
	}
	judged := false
	for i := range p.Paths {
		path := &p.Paths[i]
		if m := path.Ping; m != nil {
			if m.Class.Bad() {
				return PeerBad
			}
			judged = judged || m.Class.Judged()
		}
		for _, m := range path.Bandwidth {
			if m == nil {
				continue
			}
			if m.Class.Bad() {
				return PeerBad
			}
			judged = judged || m.Class.Judged()
		}
	}
	switch {
	case p.Listener == peer.ClassFine, p.Listener == peer.ClassRefused:
		return PeerGood
	case judged: // it has let a session in
		return PeerGood
	}
	return PeerUnknown
}

// PeerAnswers is whether a peer's listener answered the last call, whatever it said.
func PeerAnswers(p *peer.Peer) (answers, known bool) {
	if p.Listener == "" || p.Listener == peer.ClassStopped {
		return false, false
	}
	return p.Listener != peer.ClassUnreachable, true
}

// PeerKinds are the kinds of measurement between nodes, PeerMemories where the data is.
var (
	PeerKinds    = []session.Kind{session.Ping, session.Bandwidth}
	PeerMemories = []session.Memory{session.Host, session.GPU, session.Staged}
)

// PeerPathGood is whether the measurements of a kind on a path are well.
func PeerPathGood(p *peer.Path, kind session.Kind) (good, known bool) {
	for _, m := range PeerMeasurements(p) {
		switch {
		case m.Kind != kind || !m.Class.Judged():
		case m.Class.Bad():
			return false, true
		default:
			good, known = true, true
		}
	}
	return good, known
}

// PeerMeasurements are the measurements of a path that there are, the ping first.
func PeerMeasurements(p *peer.Path) []*peer.Measurement {
	all := make([]*peer.Measurement, 0, 1+len(p.Bandwidth))
	if p.Ping != nil {
		all = append(all, p.Ping)
	}
	for _, m := range p.Bandwidth {
		if m != nil {
			all = append(all, m)
		}
	}
	return all
}

// PeerRate is the rate of a direction in bytes per second: of both at once their sum.
// What arrived wrong has none.
func PeerRate(m *peer.Measurement, direction session.Direction) (rate float64, known bool) {
	if m.Result == nil || PeerMismatches(m) > 0 {
		return 0, false
	}
	rate, known = peer.RateOf(m.Result, direction)
	return rate, known && rate > 0 && !math.IsInf(rate, 0)
}

// PeerMismatches are the words of 8 bytes of a measurement that arrived wrong.
func PeerMismatches(m *peer.Measurement) int {
	wrong := 0
	if m.Result != nil {
		for i := range m.Result.Rounds {
			for _, way := range []*session.Way{m.Result.Rounds[i].Written, m.Result.Rounds[i].Back} {
				if way != nil {
					wrong += max(way.Mismatches, 0)
				}
			}
		}
	}
	return wrong
}

// PeerFailure is why a measurement was not carried through, nil if it was.
func PeerFailure(m *peer.Measurement) *session.Failure {
	if m.Result == nil {
		return nil
	}
	if m.Result.Failure != nil {
		return m.Result.Failure
	}
	for i := range m.Result.Rounds {
		if failure := m.Result.Rounds[i].Failure; failure != nil {
			return failure
		}
	}
	return nil
}

const (
	// PeerRecent is how long what was heard of a peer, or tried with it, is of now: what
	// it said before may be of a list that neither has any more.
	PeerRecent = 10 * time.Minute
	// PeerClock is how far apart the clocks of two nodes may be.
	PeerClock = time.Second
)

// PeerRecently reports whether a time is of now.
func (s *Snapshot) PeerRecently(at time.Time) bool {
	return !at.IsZero() && s.Taken.Sub(at).Abs() <= PeerRecent
}

// PeerDisagreement counts the peers that were heard of lately, and those among them
// that said otherwise than this node.
type PeerDisagreement struct {
	Heard                int
	List, Options, Clock int
}

// PeerDisagreements says who disagrees; there must be a Status.
func (s *Snapshot) PeerDisagreements() PeerDisagreement {
	var d PeerDisagreement
	differ := func(theirs, mine string) int {
		if theirs != "" && mine != "" && theirs != mine {
			return 1
		}
		return 0
	}
	for i := range s.Peer.Peers {
		contact := s.Peer.Peers[i].Contact
		if contact == nil || !s.PeerRecently(contact.Time) {
			continue
		}
		d.Heard++
		d.List += differ(contact.List, s.Peer.List)
		d.Options += differ(contact.Options, s.Peer.Options)
		if contact.Clock.Abs() > PeerClock {
			d.Clock++
		}
	}
	return d
}

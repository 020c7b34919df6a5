package diagnosis

import (
	"cmp"
	"fmt"
	"strings"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
)

// peerReach is how the peers that were tried can be reached at all. Those that are
// merely slow can.
type peerReach struct {
	tried                       int
	unreachable, denied, failed int
	example                     *peer.Peer // one that cannot
}

func (r *peerReach) cut() int { return r.unreachable + r.denied + r.failed }

// cutOff reports whether most cannot be reached. Of a single one nobody can say which
// side it is.
func (r *peerReach) cutOff() bool { return r.tried > 1 && 2*r.cut() > r.tried }

func (n *node) reachOfPeers() peerReach {
	var r peerReach
	for i := range n.s.Peer.Peers {
		p := &n.s.Peer.Peers[i]
		if snapshot.PeerStateOf(p) == snapshot.PeerUnknown {
			continue
		}
		r.tried++
		switch {
		case p.Listener == peer.ClassDenied:
			r.denied++
		case p.Listener.Bad():
			r.unreachable++
		case allPathsFail(p):
			r.failed++
		default:
			continue
		}
		if r.example == nil {
			r.example = p
		}
	}
	return r
}

// allPathsFail reports whether there are paths, and no data came through on any.
func allPathsFail(p *peer.Peer) bool {
	judged := false
	for i := range p.Paths {
		for _, m := range snapshot.PeerMeasurements(&p.Paths[i]) {
			if m.Class.Judged() && m.Class != peer.ClassFailed {
				return false
			}
			judged = judged || m.Class == peer.ClassFailed
		}
	}
	return judged
}

// peerTrouble says what is wrong with a peer.
func peerTrouble(p *peer.Peer) string {
	if p.Listener.Bad() {
		text := map[peer.Class]string{peer.ClassUnreachable: "its listener does not answer", peer.ClassDenied: "its listener lets nobody in"}[p.Listener]
		return cmp.Or(text, "calling it failed") + failureText(p.Failure)
	}
	for i := range p.Paths {
		for _, m := range snapshot.PeerMeasurements(&p.Paths[i]) {
			if m.Class.Bad() {
				return measurementTrouble(&p.Paths[i], m)
			}
		}
	}
	return "nothing is known"
}

// measurementTrouble says what is wrong with a measurement.
func measurementTrouble(path *peer.Path, m *peer.Measurement) string {
	text := fmt.Sprintf("%s to %s, %s", path.Own.String(), path.Peer.String(), m.Kind)
	if m.Kind == session.Bandwidth {
		text += fmt.Sprintf(" of %s memory", m.Memory)
	}
	text += " " + string(m.Class)
	if m.Class == peer.ClassSlow && m.Text != "" {
		return text + ": " + m.Text
	}
	if failure := snapshot.PeerFailure(m); failure != nil {
		return text + failureText(failure)
	}
	if m.Text != "" {
		text += ": " + m.Text
	}
	return text
}

// failureText is stage, errno and text of a failure, and who found it.
func failureText(f *session.Failure) string {
	if f == nil {
		return ""
	}
	var parts []string
	if f.Peer {
		parts = append(parts, "found by the peer")
	}
	for _, part := range []struct{ what, text string }{{"stage ", f.Stage}, {"", f.Errno}, {"", f.Status}} {
		if part.text != "" {
			parts = append(parts, part.what+part.text)
		}
	}
	text := ": " + cmp.Or(f.Text, string(f.Reason))
	if len(parts) > 0 {
		text = " (" + strings.Join(parts, ", ") + ")" + text
	}
	return text
}

// some lists at most so many texts.
func some(texts []string, most int) string {
	if len(texts) <= most {
		return strings.Join(texts, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(texts[:most], "; "), len(texts)-most)
}

// railTallies are what is judged of a rail as such: pings, and host memory. Slow GPU
// memory is no matter of the rail.
func railTallies(r *peer.OwnRail) map[string]*peer.Tally {
	return map[string]*peer.Tally{"pings": &r.Pings, "bandwidth of host memory": r.Bandwidth[session.Host]}
}

var railTallyNames = []string{"pings", "bandwidth of host memory"}

// mostBad reports whether a tally is bad to most. Of a single peer nobody can say
// whether it is the rail.
func mostBad(t *peer.Tally) bool { return t != nil && t.Good+t.Bad > 1 && 2*t.Bad > t.Good+t.Bad }

// mostGood reports whether a tally is good to most.
func mostGood(t *peer.Tally) bool { return t != nil && t.Good > 0 && t.Good > t.Bad }

// badRails says why rails are bad to most peers, where another rail is good to most.
func (n *node) badRails() map[session.Port]string {
	bad := map[session.Port]string{}
	rails := n.s.Peer.Rails
	for i := range rails {
		mine := railTallies(&rails[i])
		for _, name := range railTallyNames {
			if !mostBad(mine[name]) || bad[rails[i].Port] != "" {
				continue
			}
			for k := range rails {
				if other := railTallies(&rails[k])[name]; k != i && mostGood(other) {
					bad[rails[i].Port] = fmt.Sprintf("%s%s: bad to %d of %d peers, while those of %s are good to %d of %d",
						name, railName(&rails[i]), mine[name].Bad, mine[name].Good+mine[name].Bad, rails[k].String(), other.Good, other.Good+other.Bad)
					break
				}
			}
		}
	}
	return bad
}

func railName(r *peer.OwnRail) string {
	if r.Rail == "" {
		return ""
	}
	return " on rail " + line(r.Rail)
}

// slowGPUs says of which ports GPU memory is bad to most peers while host memory is
// good to most.
func (n *node) slowGPUs() map[session.Port]string {
	slow := map[session.Port]string{}
	for i := range n.s.Peer.Rails {
		r := &n.s.Peer.Rails[i]
		gpu, host := r.Bandwidth[session.GPU], r.Bandwidth[session.Host]
		if gpu == nil || gpu.Bad == 0 || 2*gpu.Bad <= gpu.Good+gpu.Bad || !mostGood(host) {
			continue
		}
		text := fmt.Sprintf("GPU memory is bad to %d of %d peers, host memory good to %d of %d", gpu.Bad, gpu.Good+gpu.Bad, host.Good, host.Good+host.Bad)
		if g, h := gpu.Rates[session.Write], host.Rates[session.Write]; g.Count > 0 && h.Count > 0 {
			text += fmt.Sprintf("; median of writes %s, of host memory %s", rate(g.Median), rate(h.Median))
		}
		slow[r.Port] = text
	}
	return slow
}

// leastSymmetry is the share of the faster direction that the slower one must have.
const leastSymmetry = 0.75

// asymmetric is the slower direction's share of the faster one if that is too little,
// else 0. Of what is within the limits nobody minds it, nor of copies.
func asymmetric(m *peer.Measurement) float64 {
	if m.Class != peer.ClassSlow || m.Memory == session.Staged {
		return 0
	}
	write, known := snapshot.PeerRate(m, session.Write)
	reverse, known2 := snapshot.PeerRate(m, session.Reverse)
	if !known || !known2 {
		return 0
	}
	if share := min(write, reverse) / max(write, reverse); share < leastSymmetry {
		return share
	}
	return 0
}

// worstAsymmetry is the measurement of a path that is least alike in both directions,
// nil if all are alike.
func worstAsymmetry(path *peer.Path) (share float64, worst *peer.Measurement) {
	for _, m := range snapshot.PeerMeasurements(path) {
		if s := asymmetric(m); s > 0 && (worst == nil || s < share) {
			share, worst = s, m
		}
	}
	return share, worst
}

func asymmetryText(p *peer.Peer, path *peer.Path, m *peer.Measurement) string {
	write, _ := snapshot.PeerRate(m, session.Write)
	reverse, _ := snapshot.PeerRate(m, session.Reverse)
	return fmt.Sprintf("%s memory, %s at %s: %s to it, %s from it", m.Memory, peerName(p), path.Peer.String(), rate(write), rate(reverse))
}

package status

import (
	"fmt"
	"strings"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/peer"
)

// mostCheckPeers bounds the lines about single peers.
const mostCheckPeers = 16

// seePeers tells what the running exporter knows of the paths to other nodes.
func (n *checkNode) seePeers() (string, bool) {
	status := n.s.Peer
	if status == nil {
		if n.options.Replay != "" {
			return "not in this capture", false
		}
		return "nothing is known: the exporter as a service measures them, with --peer.enabled", false
	}
	states := map[snapshot.PeerState]int{}
	for i := range status.Peers {
		states[snapshot.PeerStateOf(&status.Peers[i])]++
	}
	return fmt.Sprintf("%s: %d good, %d bad, %d not known", checkPlural(len(status.Peers), "peer"), states[snapshot.PeerGood], states[snapshot.PeerBad], states[snapshot.PeerUnknown]),
		states[snapshot.PeerGood]+states[snapshot.PeerBad] > 0
}

// peerLines are about the target list, the certificate, this node's rails and the peers that are bad.
func (n *checkNode) peerLines() []CheckLine {
	met := n.metLines()
	if n.s.Peer == nil {
		return met
	}
	lines := []CheckLine{{ID: "list", Title: "target list", Status: CheckInfo, Seen: n.seePeerList(), Rules: []CheckRule{}}}
	seen := map[string]bool{}
	add := func(line CheckLine) {
		for number := 2; seen[line.ID]; number++ { // names may come twice
			line.ID = fmt.Sprintf("%s#%d", line.ID, number)
		}
		seen[line.ID] = true
		lines = append(lines, line)
	}
	if c := docPeerCertificate(n.s.Peer.Certificate, n.s.Taken); c != nil {
		line := CheckLine{ID: "certificate", Title: "certificate", Status: CheckOK, Seen: certificateWords(c, n.s.Taken), Rules: []CheckRule{}}
		n.mark(&line, func(f *diagnosis.Finding) bool { return f.Rule == "peer_certificate" })
		add(line)
	}
	for i := range n.s.Peer.Rails {
		add(n.peerRailLine(&n.s.Peer.Rails[i]))
	}
	bad := 0
	for i := range n.s.Peer.Peers {
		p := &n.s.Peer.Peers[i]
		if snapshot.PeerStateOf(p) != snapshot.PeerBad {
			continue
		}
		if bad++; bad <= mostCheckPeers {
			add(peerLine(p))
		}
	}
	if bad > mostCheckPeers {
		add(CheckLine{ID: "more", Title: "more peers", Status: CheckWarning, Seen: fmt.Sprintf("%d more are bad: /api/v1/peers has all", bad-mostCheckPeers), Rules: []CheckRule{}})
	}
	return append(lines, met...)
}

func (n *checkNode) seePeerList() string {
	s := n.s.Peer
	if s.List == "" {
		return "none was read yet"
	}
	text := fmt.Sprintf("%s, version %s", checkPlural(s.Targets, "node"), s.List)
	if s.Self == "" {
		text += "; this node is not in it: " + s.SelfText
	}
	if s.ListText != "" {
		text += "; " + s.ListText
	}
	for i := range s.Sources {
		if source := &s.Sources[i]; source.Text != "" {
			text += fmt.Sprintf("; %s: %s", source.Name, source.Text)
		}
	}
	if d := n.s.PeerDisagreements(); d.List+d.Options+d.Clock > 0 {
		text += fmt.Sprintf("; of %s heard of lately %d have another list, %d other options, %d another clock", checkPlural(d.Heard, "peer"), d.List, d.Options, d.Clock)
	}
	return text
}

// peerRailLine is how a port of this node does with all peers. What is wrong with it
// the findings say.
func (n *checkNode) peerRailLine(r *peer.OwnRail) CheckLine {
	doc := docPeerRail(r)
	line := CheckLine{ID: fmt.Sprintf("rail/%s/%d", printable(r.Device), r.Port.Port), Title: printable(railTitle(&doc)), Status: CheckInfo, Rules: []CheckRule{}}
	var parts []string
	for i := range doc.Tallies {
		t := &doc.Tallies[i]
		if t.Good+t.Bad == 0 {
			continue
		}
		text := fmt.Sprintf("%s of %s memory good to %d of %d", t.Kind, t.Memory, t.Good, t.Good+t.Bad)
		if t.LatencyMedian != nil {
			text += ", median " + microseconds(*t.LatencyMedian)
		}
		for k := range t.Rates {
			if rate := &t.Rates[k]; rate.Least != nil && rate.Median != nil {
				text += fmt.Sprintf(", %s %s (least %s)", rate.Direction, gigabytes(rate.Median), gigabytes(rate.Least))
			}
		}
		parts = append(parts, text)
		line.Status = CheckOK
	}
	line.Seen = strings.Join(parts, "; ")
	if len(parts) == 0 {
		line.Seen, line.Status = "not measured yet", CheckNotJudged
	}
	for i := range n.d.Findings {
		if f := &n.d.Findings[i]; strings.HasPrefix(f.Rule, "peer_") && f.Subject.Device == r.Device && f.Subject.Port == r.Port.Port {
			line.Status, line.Do = line.Status.worse(CheckStatus(f.Severity)), f.Hint
		}
	}
	return line
}

// peerLine is a peer that is bad.
func peerLine(p *peer.Peer) CheckLine {
	name := p.Name
	if name == "" {
		name = p.Target
	}
	line := CheckLine{ID: "peer/" + printable(p.Target), Title: printable(name), Status: CheckWarning, Rules: []CheckRule{}}
	var parts []string
	if p.Listener.Bad() {
		text := string(p.Listener)
		if f := docPeerFailure(p.Failure); f != nil {
			text += ": " + failureWords(f)
		}
		parts = append(parts, text)
	}
	for i := range p.Paths {
		for _, m := range snapshot.PeerMeasurements(&p.Paths[i]) {
			if m.Class.Bad() {
				result := docPeerResult(m)
				parts = append(parts, p.Paths[i].Own.String()+" "+resultTrouble(&result))
			}
		}
	}
	line.Seen = checkSome(parts, 4)
	return line
}

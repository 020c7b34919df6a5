package diagnosis

import (
	"fmt"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
)

// Rules about the paths to other nodes, as far as this one sees them.
const (
	idPeerCutOff      = "peer_cut_off"
	idPeerPath        = "peer_path_bad"
	idPeerRail        = "peer_rail_bad"
	idPeerAsymmetric  = "peer_asymmetric"
	idPeerCorrupt     = "peer_corrupt"
	idPeerCertificate = "peer_certificate"
	idPeerList        = "peer_list"
	idPeerGPU         = "peer_gpu_slow"
)

// certificatePatience is how long the files of a renewal may disagree, which are written
// one after the other.
const certificatePatience = time.Minute

// listPatience is how long nodes may go by different lists: a new one does not reach
// all at once, and what peers said before is of the old one for PeerRecent.
const listPatience = snapshot.PeerRecent + 5*time.Minute

var peerRules = []rule{
	{Rule: Rule{idPeerCorrupt, SeverityCritical, "data arrives wrong between this node and another",
		"Take the jobs off this pair at once. The side whose memory was written to found it: measure both nodes against a third one (gdr_exporter peer HOST) and take the one out that has it again."},
		needs: []need{needPeers}, judge: judgePeerCorrupt},
	{Rule: Rule{idPeerCutOff, SeverityWarning, "this node reaches most other nodes not",
		"It is this node: its ports and their subnet manager, the host's firewall (port 10480), its certificate and clock, its place in the target list. gdr_exporter peer HOST tells the stage that fails."},
		needs: []need{needPeers}, judge: judgeCutOff},
	{Rule: Rule{idPeerRail, SeverityWarning, "a rail of this node is bad to most other nodes, and another is good",
		"It is this port, its cable, or the switch that it hangs at: mlxlink -d DEVICE for errors and the module, then the switch's port. If other nodes say the same of this rail, it is the switch."},
		needs: []need{needPeers}, judge: judgePeerRail},
	{Rule: Rule{idPeerGPU, SeverityWarning, "GPU memory is slow, or fails, to most other nodes while host memory is fine",
		"The fabric is well, GPUDirect RDMA is not: this node's own findings about the GPU and NIC (ACS, IOMMU, PCIe links, relaxed ordering) come first, then those of the other nodes."},
		needs: []need{needPeers}, judge: judgePeerGPU},
	{Rule: Rule{idPeerPath, SeverityWarning, "the path to another node is bad while most are good",
		"It is the other node, or what lies between: look whether other nodes find the same peer bad, then at its ports, then at the switches on the way (ibtracert, ibdiagnet). gdr_exporter peer HOST measures it now."},
		needs: []need{needPeers}, judge: judgePeerPath},
	{Rule: Rule{idPeerAsymmetric, SeverityWarning, "one direction of a path is much slower than the other",
		"Congestion or errors on one way only: look at the port that receives (symbol errors, discards), at PFC pauses and at what else sends to it, and at the PCIe link of the slower receiver."},
		needs: []need{needPeers}, judge: judgeAsymmetric},
	{Rule: Rule{idPeerCertificate, SeverityWarning, "this node's certificate for sessions ends soon, has ended, or its files are not taken",
		"Renew it: put new files in the place of cert_file and key_file of --peer.tls-config (cert-manager: why is the Certificate not ready?), readable by the exporter and of one key; if an authority's in ca_file is what ends, that first. They count at once, without a restart."},
		needs: []need{needPeers}, after: certificatePatience, judge: judgePeerCertificate},
	{Rule: Rule{idPeerList, SeverityWarning, "this node's target list, schedule or clock is not that of the others",
		"Give all nodes the same target list and the same --peer.* options, and their clocks NTP or PTP: nodes that disagree do not meet, and nothing is measured between them."},
		needs: []need{needPeers}, after: listPatience, judge: judgePeerList},
}

func needPeers(n *node) string {
	switch {
	case n.s.Peer != nil:
		return ""
	case !n.s.Asked[snapshot.CollectorPeer]:
		return "collector peer is switched off"
	}
	return "nothing is measured between nodes: --peer.enabled, with a target list"
}

// mostPeerFindings bounds the findings of one rule about single peers; a last one
// counts the others.
const mostPeerFindings = 32

// findPeers finds as many of some findings as can be told.
func findPeers(j *judging, all []peerFinding) {
	for i := range all {
		if i == mostPeerFindings {
			j.find(Subject{Other: "other peers"}, "%d more like these", len(all)-i)
			return
		}
		j.find(all[i].subject, "%s", all[i].seen)
	}
}

type peerFinding struct {
	subject Subject
	seen    string
}

// peerSubject is a path to a peer.
func peerSubject(p *peer.Peer, path *peer.Path) Subject {
	return Subject{Device: path.Own.Device, Port: path.Own.Port, Other: peerName(p)}
}

// peerName is what a peer is called in findings.
func peerName(p *peer.Peer) string {
	if p.Name == "" {
		return "peer " + line(p.Target)
	}
	return "peer " + line(p.Name)
}

// judgePeerCorrupt tells each path once, whatever the memory.
func judgePeerCorrupt(n *node, j *judging) {
	var all []peerFinding
	for i := range n.s.Peer.Peers {
		p := &n.s.Peer.Peers[i]
		for k := range p.Paths {
			path := &p.Paths[k]
			for _, m := range snapshot.PeerMeasurements(path) {
				if m.Class != peer.ClassCorrupt {
					continue
				}
				all = append(all, peerFinding{peerSubject(p, path), fmt.Sprintf("%s of %s memory: %d words of 8 bytes arrived wrong, %s ago, against %s",
					m.Kind, m.Memory, snapshot.PeerMismatches(m), n.since(m.Time), path.Peer.String())})
				break
			}
		}
	}
	findPeers(j, all)
}

// since is how long ago something was.
func (n *node) since(at time.Time) time.Duration { return max(n.now.Sub(at), 0).Round(time.Second) }

func judgeCutOff(n *node, j *judging) {
	if r := n.reachOfPeers(); r.cutOff() {
		j.find(Subject{}, "%d of %d peers that were tried cannot be reached (%d do not answer, %d let nobody in, of %d all paths fail), such as %s: %s",
			r.cut(), r.tried, r.unreachable, r.denied, r.failed, peerName(r.example), peerTrouble(r.example))
	}
}

// judgePeerPath minds what no other rule explains: this node that is cut off, a rail
// that is bad to most, GPU memory that is slow everywhere, data that arrives wrong, or
// one direction.
func judgePeerPath(n *node, j *judging) {
	if r := n.reachOfPeers(); r.cutOff() {
		return
	}
	railBad, gpuSlow := n.badRails(), n.slowGPUs()
	var all []peerFinding
	for i := range n.s.Peer.Peers {
		p := &n.s.Peer.Peers[i]
		if p.Listener.Bad() {
			all = append(all, peerFinding{Subject{Other: peerName(p)}, peerTrouble(p)})
			continue
		}
		var bad []string
		for k := range p.Paths {
			path := &p.Paths[k]
			for _, m := range snapshot.PeerMeasurements(path) {
				explained := railBad[path.Own] != "" || gpuSlow[path.Own] != "" && m.Memory != session.Host ||
					m.Class == peer.ClassCorrupt || asymmetric(m) > 0
				if m.Class.Bad() && !explained {
					bad = append(bad, measurementTrouble(path, m))
				}
			}
		}
		if len(bad) > 0 {
			all = append(all, peerFinding{Subject{Other: peerName(p)}, some(bad, 3)})
		}
	}
	findPeers(j, all)
}

func judgePeerRail(n *node, j *judging) {
	for port, seen := range n.badRails() {
		j.find(Subject{Device: port.Device, Port: port.Port}, "%s", seen)
	}
}

func judgePeerGPU(n *node, j *judging) {
	for port, seen := range n.slowGPUs() {
		j.find(Subject{Device: port.Device, Port: port.Port}, "%s", seen)
	}
}

// judgeAsymmetric tells each own port once, by its worst path.
func judgeAsymmetric(n *node, j *judging) {
	type worst struct {
		count int
		share float64
		seen  string
	}
	of := map[session.Port]*worst{}
	var order []session.Port
	for i := range n.s.Peer.Peers {
		p := &n.s.Peer.Peers[i]
		for k := range p.Paths {
			path := &p.Paths[k]
			share, m := worstAsymmetry(path)
			if m == nil {
				continue
			}
			w := of[path.Own]
			if w == nil {
				w = &worst{share: 1}
				of[path.Own] = w
				order = append(order, path.Own)
			}
			w.count++
			if share < w.share {
				w.share, w.seen = share, asymmetryText(p, path, m)
			}
		}
	}
	for _, port := range order {
		w := of[port]
		text := w.seen
		if w.count > 1 {
			text += fmt.Sprintf("; so are %d other paths of this port", w.count-1)
		}
		j.find(Subject{Device: port.Device, Port: port.Port}, "%s", text)
	}
}

// judgePeerCertificate says nothing of sessions without TLS.
func judgePeerCertificate(n *node, j *judging) {
	c := n.s.Peer.Certificate
	if c == nil {
		return
	}
	life := Subject{Other: "certificate"}
	switch c.State(n.now) {
	case peer.CertificateEnded:
		j.find(life, "it ended at %s, %s ago: no session is possible", stamp(c.Ends), days(n.now.Sub(c.Ends)))
	case peer.CertificateEarly:
		j.find(life, "it holds from %s on, and not yet: no session is possible; is this node's clock right?", stamp(c.Begins))
	case peer.CertificateLate:
		j.find(life, "it ends at %s, in %s, and was not renewed: then no session is possible", stamp(c.Ends), days(c.Ends.Sub(n.now)))
	case peer.CertificateGood, peer.CertificateUnknown:
	}
	if c.Text != "" {
		j.find(Subject{Other: "certificate files"}, "they are not taken as they are now, the last good ones count: %s", c.Text)
	}
}

// judgePeerList minds what most say: one that disagrees is itself wrong.
func judgePeerList(n *node, j *judging) {
	s := n.s.Peer
	if s.List != "" && s.Self == "" {
		text := "this node is not in its own target list"
		if s.SelfText != "" {
			text += ": " + s.SelfText
		}
		j.find(Subject{Other: "this node"}, "%s", text)
	}
	if s.ListText != "" {
		j.find(Subject{Other: "list"}, "the list that was read before stands: %s", s.ListText)
	}
	for i := range s.Sources {
		source := &s.Sources[i]
		switch {
		case source.Good.IsZero():
			j.find(Subject{Other: "source " + line(source.Name)}, "it was never read: %s", source.Text)
		case source.Text != "":
			j.find(Subject{Other: "source " + line(source.Name)}, "what was read %s ago stands: %s", n.since(source.Good), source.Text)
		}
	}
	d := n.s.PeerDisagreements()
	for _, part := range []struct {
		what  string
		count int
		mine  string
	}{
		{"target list", d.List, "another version of the target list than this node's " + s.List},
		{"options", d.Options, "another version of the schedule's options than this node's " + s.Options},
		{"clock", d.Clock, fmt.Sprintf("a clock more than %s from this node's", snapshot.PeerClock)},
	} {
		if 2*part.count > d.Heard {
			j.find(Subject{Other: part.what}, "%d of %d peers that were heard of within %s have %s", part.count, d.Heard, snapshot.PeerRecent, part.mine)
		}
	}
}

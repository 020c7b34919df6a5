package status

import (
	"fmt"
	"strings"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
)

// What the matrix of peers shows at most.
const (
	mostShownPeers = 200
	mostShownRails = 32
)

// peerSection shows the other nodes by this node's rails, nothing without a runner.
func peerSection(s *snapshot.Snapshot) pageSection {
	section := pageSection{ID: "peers", Title: "Peers"}
	if s.Peer == nil {
		return section
	}
	doc := peersDocument(s, mostShownPeers, mostShownPeers*mostShownRails)
	section.Intro = peerIntro(doc)
	section.put(peerRailGrid(doc))
	section.put(peerGrid(doc))
	if len(doc.Peers) > 0 {
		section.Outro = []string{"Each cell is this node's port to the peer's: the rate of this node's writes from GPU memory where that was measured, else from host memory, and the median time of an 8-byte write. " +
			"The bad ones come first. All measurements, with stage and errno of failures, are in /api/v1/peers."}
	}
	return section
}

// peerIntro says what this node goes by, and how the peers are.
func peerIntro(doc *DocPeers) []string {
	list := doc.List
	text := "No target list was read yet."
	if list.Version != nil {
		text = fmt.Sprintf("%s in the target list, this one included. Of the others %d are good, %d bad, %d not known.", plural(list.Targets, "node"), doc.Good, doc.Bad, doc.Unknown)
		if list.Self == nil {
			text += " This node is not among them."
			if list.SelfText != nil {
				text = strings.TrimSuffix(text, ".") + ": " + *list.SelfText + "."
			}
		}
	}
	all := []string{text}
	if list.Text != nil {
		all = append(all, "The list that was read before stands: "+*list.Text+".")
	}
	for i := range list.Sources {
		if source := &list.Sources[i]; source.Text != nil {
			all = append(all, fmt.Sprintf("Source %s: %s.", source.Name, *source.Text))
		}
	}
	if c := doc.Certificate; c != nil {
		all = append(all, "The certificate of sessions "+strings.TrimSuffix(certificateWords(c, doc.Taken), ".")+".")
	}
	if list.OtherLists+list.OtherOptions+list.OtherClocks > 0 {
		all = append(all, fmt.Sprintf("Of %s heard of within 10 minutes, %d go by another list, %d by other options, %d by another clock.", plural(list.Heard, "peer"), list.OtherLists, list.OtherOptions, list.OtherClocks))
	}
	for _, cover := range []struct {
		what string
		time *float64
	}{{"pinged", doc.CoverPing}, {"measured with bandwidth", doc.CoverBandwidth}} {
		if cover.time != nil {
			all = append(all, fmt.Sprintf("Each pair of nodes is %s within %s.", cover.what, age(seconds(*cover.time))))
		}
	}
	return all
}

// certificateWords say how long a certificate holds, and whether its files are in use.
func certificateWords(c *DocPeerCertificate, now time.Time) string {
	text := "has no end that is known"
	switch {
	case c.Ends == nil:
	case c.State == string(peer.CertificateEnded):
		text = fmt.Sprintf("ended %s ago, at %s: no session is possible", age(now.Sub(*c.Ends)), when(*c.Ends))
	case c.State == string(peer.CertificateEarly) && c.Begins != nil:
		text = fmt.Sprintf("holds from %s on, and not yet: no session is possible", when(*c.Begins))
	case c.State == string(peer.CertificateLate):
		text = fmt.Sprintf("ends in %s, at %s, and was not renewed", age(c.Ends.Sub(now)), when(*c.Ends))
	default:
		text = fmt.Sprintf("holds for %s, until %s", age(c.Ends.Sub(now)), when(*c.Ends))
	}
	if c.Text != nil {
		text += "; its files as they are now are not taken, the last good ones count: " + *c.Text
	}
	return text
}

// railTitle is a port of this node as a column.
func railTitle(r *DocPeerRail) string {
	title := fmt.Sprintf("%s/%d", r.Port.Device, r.Port.Port)
	if r.Rail != nil {
		title += " (" + *r.Rail + ")"
	}
	return title
}

// peerRailGrid sums up this node's ports.
func peerRailGrid(doc *DocPeers) *grid {
	g := &grid{ID: "peer-rails", Caption: "This node's ports, and what the last measurements with all peers add up to", Columns: []string{"Port", "Kind", "Memory", "Peers", "Latency", "Least", "Median"}}
	for i := range doc.Rails {
		r := &doc.Rails[i]
		for k := range r.Tallies {
			t := &r.Tallies[k]
			if t.Good+t.Bad == 0 {
				continue
			}
			peers := lookCell(lookGood, fmt.Sprintf("%d good", t.Good))
			if t.Bad > 0 {
				peers = lookCell(lookBad, fmt.Sprintf("%d bad, %d good", t.Bad, t.Good))
			}
			g.add(textCell(railTitle(r)), textCell(t.Kind), textCell(t.Memory), peers, peerLatencyCell(t), ratesCell(t, func(r *DocPeerRates) *float64 { return r.Least }), ratesCell(t, func(r *DocPeerRates) *float64 { return r.Median }))
		}
	}
	return g
}

func peerLatencyCell(t *DocPeerTally) cell {
	if t.LatencyMedian == nil || t.LatencyWorst == nil {
		return cell{}
	}
	return textCell(fmt.Sprintf("median %s, worst %s", microseconds(*t.LatencyMedian), microseconds(*t.LatencyWorst)))
}

func ratesCell(t *DocPeerTally, of func(*DocPeerRates) *float64) cell {
	var parts []string
	for i := range t.Rates {
		if rate := of(&t.Rates[i]); rate != nil {
			parts = append(parts, fmt.Sprintf("%s %s", t.Rates[i].Direction, gigabytes(rate)))
		}
	}
	return longCell(strings.Join(parts, ", "))
}

// peerGrid is the matrix of peers and this node's ports.
func peerGrid(doc *DocPeers) *grid {
	rails := doc.Rails[:min(len(doc.Rails), mostShownRails)]
	g := &grid{ID: "peer-matrix", Caption: "Each peer with each port of this node", Columns: []string{"Peer", "State", "Tried", "Listener"}, More: doc.PeersOmitted}
	for i := range rails {
		g.Columns = append(g.Columns, railTitle(&rails[i]))
	}
	for i := range doc.Peers {
		p := &doc.Peers[i]
		row := []cell{textCell(p.Name), peerStateCell(p), {}, peerListenerCell(p)}
		if p.Name == "" {
			row[0].Text = p.Target
		}
		if p.Tried != nil {
			row[2].Text = age(doc.Taken.Sub(*p.Tried)) + " ago"
		}
		for k := range rails {
			row = append(row, peerCell(p, rails[k].Port))
		}
		g.add(row...)
	}
	return g
}

func peerStateCell(p *DocPeer) cell {
	looks := map[string]look{string(snapshot.PeerGood): lookGood, string(snapshot.PeerBad): lookBad, string(snapshot.PeerUnknown): lookOpen}
	c := lookCell(looks[p.State], p.State)
	if p.Neighbour {
		c.Text += ", neighbour"
	}
	return c
}

func peerListenerCell(p *DocPeer) cell {
	switch {
	case p.Listener == nil:
		return lookCell(lookOpen, "not called yet")
	case *p.Listener == string(peer.ClassFine) && p.Contact != nil && p.Contact.RTTSeconds != nil:
		return textCell("answers, " + (seconds(*p.Contact.RTTSeconds).Round(10 * time.Microsecond)).String())
	case p.Failure != nil:
		c := longCell(*p.Listener + ": " + failureWords(p.Failure))
		if p.State == string(snapshot.PeerBad) {
			c.Look = lookBad
		}
		return c
	}
	return textCell(*p.Listener)
}

// failureWords are stage, errno and text of a failure.
func failureWords(f *DocPeerFailure) string {
	var parts []string
	for _, part := range []*string{f.Stage, f.Errno, f.Status} {
		if part != nil {
			parts = append(parts, *part)
		}
	}
	text := f.Text
	if text == "" {
		text = f.Reason
	}
	if f.FoundBy == "peer" {
		text = "found by the peer: " + text
	}
	if len(parts) == 0 {
		return text
	}
	return strings.Join(parts, " ") + ": " + text
}

// peerCell is how one port of this node does with a peer: the worst of its paths.
func peerCell(p *DocPeer, port DocPeerPort) cell {
	var texts []string
	judged, bad, silent := false, false, false
	for i := range p.Paths {
		path := &p.Paths[i]
		if path.Own != port {
			continue
		}
		for k := range path.Results {
			class := peer.Class(path.Results[k].Class)
			judged = judged || class.Judged()
			if class.Bad() {
				bad = true
				texts = append(texts, resultTrouble(&path.Results[k]))
			}
		}
		texts = append(texts, pathFigures(path)...)
		if path.Address != nil && !path.Address.Answers {
			silent = true
			texts = append(texts, path.Address.Address+" does not answer")
		}
	}
	c := longCell(strings.Join(texts, "; "))
	switch {
	case bad:
		c.Look = lookBad
	case silent:
		c.Look = lookWarn
	case judged:
		c.Look = lookGood
		if c.Text == "" {
			c.Text = "good"
		}
	default:
		c = lookCell(lookOpen, "unknown")
	}
	return c
}

// resultTrouble says what is wrong with a measurement, in a few words.
func resultTrouble(r *DocPeerResult) string {
	text := r.Kind + " " + r.Class
	if r.Kind == string(session.Bandwidth) {
		text = r.Memory + " " + r.Class
	}
	switch {
	case r.Failure != nil && r.Failure.Stage != nil:
		text += " (" + *r.Failure.Stage + ")"
	case r.Mismatches != nil && *r.Mismatches > 0:
		text += fmt.Sprintf(" (%d words)", *r.Mismatches)
	}
	return text
}

// pathFigures are a path's rate and latency.
func pathFigures(path *DocPeerPath) []string {
	var figures []string
	for _, memory := range []session.Memory{session.GPU, session.Host} {
		for i := range path.Results {
			if r := &path.Results[i]; r.Memory == string(memory) && r.Write != nil && len(figures) == 0 {
				figures = append(figures, fmt.Sprintf("%s %s", memory, gigabytes(r.Write)))
			}
		}
	}
	for i := range path.Results {
		if r := &path.Results[i]; r.LatencyMedian != nil {
			return append(figures, microseconds(*r.LatencyMedian))
		}
	}
	return figures
}

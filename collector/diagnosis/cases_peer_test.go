package diagnosis

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/peertest"
	"gdr_exporter/rdma/peer/session"
)

// peers gives the node so many peers with two rails, with which all is well, changes
// that, and sums up.
func peers(nodes int, change ...func(*peer.Status)) []func(*scene) {
	return one(func(s *scene) { s.Peer = peersAt(s.Taken, nodes, change...) })
}

func peersAt(at time.Time, nodes int, change ...func(*peer.Status)) *peer.Status {
	status := peertest.Status(nodes, 2, at)
	for _, f := range change {
		f(status)
	}
	peertest.Sum(status)
	return status
}

// some of the peers are changed, the last ones, which are neighbours.
func last(most int, f func(*peer.Peer)) func(*peer.Status) {
	return func(s *peer.Status) {
		for i := max(len(s.Peers)-most, 0); i < len(s.Peers); i++ {
			f(&s.Peers[i])
		}
	}
}

// onRail changes the paths of a peer on a rail.
func onRail(rail int, f func(*peer.Path)) func(*peer.Peer) {
	return func(p *peer.Peer) { f(&p.Paths[rail]) }
}

func gpuSlow(path *peer.Path) {
	peertest.Bandwidth(path, peertest.Slow(peertest.Rates(path.Ping.Time, session.GPU, 12e9, 12.1e9, 0), "host memory"))
}

func oneWaySlow(path *peer.Path) {
	peertest.Bandwidth(path, peertest.Slow(peertest.Rates(path.Ping.Time, session.Host, 48e9, 20e9, 0), "port rate"))
}

func corruptHost(path *peer.Path) {
	peertest.Bandwidth(path, peertest.Corrupt(peertest.Rates(path.Ping.Time, session.Host, 48e9, 48e9, 0), 7))
}

func allCut(p *peer.Peer) {
	for i := range p.Paths {
		peertest.Cut(&p.Paths[i])
		p.Paths[i].Bandwidth = nil
	}
}

// staleContacts makes contacts older than they are looked at.
func staleContacts(s *peer.Status) {
	for i := range s.Peers {
		s.Peers[i].Contact.Time = s.Taken.Add(-11 * time.Minute)
	}
}

func otherLists(s *peer.Status) {
	for i := range s.Peers {
		s.Peers[i].Contact.List = "another"
	}
}

// certificate is one that holds from so many days on until so many days after now.
func certificate(from, until float64, text string) func(*peer.Status) {
	return func(s *peer.Status) {
		after := func(days float64) time.Time { return s.Taken.Add(time.Duration(days * float64(peertest.Day))) }
		s.Certificate = &peer.Certificate{Begins: after(from), Ends: after(until), Text: text}
	}
}

// lasting repeats a state over a time, looked at each minute.
func lasting(minutes, nodes int, change ...func(*peer.Status)) []func(*scene) {
	var steps []func(*scene)
	for range minutes {
		steps = append(steps, func(s *scene) { s.later(time.Minute); s.Peer = peersAt(s.Taken, nodes, change...) })
	}
	return steps
}

var allPeerRules = []string{idPeerCutOff, idPeerPath, idPeerRail, idPeerAsymmetric, idPeerCorrupt, idPeerCertificate, idPeerList, idPeerGPU}

// peerRows are about other nodes.
var peerRows = []row{
	{name: "nothing is measured between nodes", of: "issue 12", steps: one(func(*scene) {}), unjudged: allPeerRules},
	{name: "all peers are well", of: "issue 12", steps: peers(9), clears: allPeerRules},
	{name: "no peer was tried yet", of: "issue 12", steps: peers(9, func(s *peer.Status) {
		for i := range s.Peers {
			s.Peers[i] = peer.Peer{Target: s.Peers[i].Target, Name: s.Peers[i].Name}
		}
	}), clears: allPeerRules},
	{name: "busy and gated peers say nothing", of: "issue 12", steps: peers(9, last(8, func(p *peer.Peer) {
		p.Listener, p.Paths = peer.ClassRefused, nil
	})), clears: allPeerRules},
	{name: "one peer does not answer", of: "issue 12", steps: peers(9, last(1, peertest.Away)), finds: []string{idPeerPath}, clears: []string{idPeerCutOff, idPeerRail}},
	{name: "one of two peers does not answer", of: "issue 12", steps: peers(3, last(1, peertest.Away)), finds: []string{idPeerPath}, clears: []string{idPeerCutOff}},
	{name: "the only peer does not answer", of: "issue 12", steps: peers(2, last(1, peertest.Away)), finds: []string{idPeerPath}, clears: []string{idPeerCutOff}},
	{name: "both of two peers do not answer", of: "issue 12", steps: peers(3, last(2, peertest.Away)), finds: []string{idPeerCutOff}, clears: []string{idPeerPath}},
	{name: "most peers do not answer", of: "issue 12", steps: peers(9, last(5, peertest.Away)), finds: []string{idPeerCutOff}, clears: []string{idPeerPath}},
	{name: "half of the peers do not answer", of: "issue 12", steps: peers(9, last(4, peertest.Away)), finds: []string{idPeerPath}, clears: []string{idPeerCutOff}},
	{name: "the certificate of this node is bad", of: "issue 12", steps: peers(9, last(8, peertest.Denied)), finds: []string{idPeerCutOff}, clears: []string{idPeerPath}},
	{name: "no data comes through to most", of: "issue 12", steps: peers(9, last(7, allCut)), finds: []string{idPeerCutOff}, clears: []string{idPeerRail, idPeerPath}},
	{name: "no data comes through to one", of: "issue 12", steps: peers(9, last(1, allCut)), finds: []string{idPeerPath}, clears: []string{idPeerCutOff, idPeerRail}},
	{name: "a rail is bad to most", of: "issue 12", steps: peers(9, last(7, onRail(1, peertest.Cut))), finds: []string{idPeerRail}, clears: []string{idPeerPath, idPeerCutOff}},
	{name: "a rail is bad to most, and one more peer on the other", of: "issue 12",
		steps: peers(9, last(7, onRail(1, peertest.Cut)), last(1, onRail(0, peertest.Cut))), finds: []string{idPeerRail, idPeerPath}, clears: []string{idPeerCutOff}},
	{name: "a rail is bad to the only peer", of: "issue 12", steps: peers(2, last(1, onRail(1, peertest.Cut))), finds: []string{idPeerPath}, clears: []string{idPeerRail}},
	{name: "both rails are slow to most", of: "issue 12", steps: peers(5, last(4, func(p *peer.Peer) {
		for i := range p.Paths {
			peertest.Bandwidth(&p.Paths[i], peertest.Slow(peertest.Rates(p.Tried, session.Host, 20e9, 20e9, 0), "port rate"))
		}
	})), finds: []string{idPeerPath}, clears: []string{idPeerRail, idPeerCutOff, idPeerAsymmetric}},
	{name: "GPU memory is slow to all", of: "issue 12", steps: peers(9, last(8, onRail(0, gpuSlow))), finds: []string{idPeerGPU}, clears: []string{idPeerPath, idPeerRail}},
	{name: "GPU memory is slow to the only peer", of: "issue 12", steps: peers(2, last(1, onRail(0, gpuSlow))), finds: []string{idPeerGPU}, clears: []string{idPeerPath}},
	{name: "GPU memory is slow to one of four", of: "issue 12", steps: peers(5, last(1, onRail(0, gpuSlow))), finds: []string{idPeerPath}, clears: []string{idPeerGPU}},
	{name: "GPU and host memory are slow", of: "issue 12", steps: peers(5, last(4, onRail(0, func(path *peer.Path) {
		gpuSlow(path)
		peertest.Bandwidth(path, peertest.Slow(peertest.Rates(path.Ping.Time, session.Host, 13e9, 13e9, 0), "port rate"))
	}))), finds: []string{idPeerRail}, clears: []string{idPeerGPU, idPeerPath}},
	{name: "one direction is slow", of: "issue 12", steps: peers(9, last(2, onRail(1, oneWaySlow))), finds: []string{idPeerAsymmetric}, clears: []string{idPeerPath}},
	{name: "directions that differ by a fifth", of: "issue 12", steps: peers(9, last(1, onRail(1, func(path *peer.Path) {
		peertest.Bandwidth(path, peertest.Rates(path.Ping.Time, session.Host, 48e9, 39e9, 0))
	}))), clears: []string{idPeerAsymmetric}},
	{name: "data from a peer arrives wrong", of: "issue 12", steps: peers(9, last(1, onRail(1, corruptHost))), finds: []string{idPeerCorrupt}, clears: []string{idPeerPath, idPeerAsymmetric}},
	{name: "not in its own list", of: "issue 12", steps: lasting(17, 9, func(s *peer.Status) { s.Self, s.SelfText = "", "no target is an address of this host" }), finds: []string{idPeerList}},
	{name: "not in its own list for a moment", of: "issue 12", steps: lasting(10, 9, func(s *peer.Status) { s.Self = "" }), clears: []string{idPeerList}},
	{name: "a source of the list fails", of: "issue 12", steps: lasting(17, 9, func(s *peer.Status) { s.Sources[0].Text = "lookup: no such host" }), finds: []string{idPeerList}},
	{name: "most have another list", of: "issue 12", steps: lasting(17, 9, otherLists), finds: []string{idPeerList}},
	{name: "most had another list when they were heard of", of: "issue 12", steps: lasting(17, 9, otherLists, staleContacts), clears: []string{idPeerList}},
	{name: "two of eight have another list", of: "issue 12", steps: lasting(17, 9, last(2, func(p *peer.Peer) { p.Contact.List = "another" })), clears: []string{idPeerList}},
	{name: "the clock is not that of the others", of: "issue 12", steps: lasting(17, 9, last(8, func(p *peer.Peer) { p.Contact.Clock = -3 * time.Second })), finds: []string{idPeerList}},
	{name: "the certificate was renewed in time", of: "issue 12", steps: lasting(3, 9, certificate(-60, 15, "")), clears: []string{idPeerCertificate}},
	{name: "the certificate ends within two weeks", of: "issue 12", steps: lasting(3, 9, certificate(-351, 13.9, "")), finds: []string{idPeerCertificate}},
	{name: "the certificate ends within a sixth of its month", of: "issue 12", steps: lasting(3, 9, certificate(-26, 4, "")), finds: []string{idPeerCertificate}},
	{name: "the certificate of a month is renewed a week before its end", of: "issue 12", steps: lasting(3, 9, certificate(-23, 7, "")), clears: []string{idPeerCertificate}},
	{name: "the certificate has ended", of: "issue 12", steps: lasting(3, 9, certificate(-365, -0.5, "")), finds: []string{idPeerCertificate}},
	{name: "the certificate holds only tomorrow", of: "issue 12", steps: lasting(3, 9, certificate(1, 90, "")), finds: []string{idPeerCertificate}},
	{name: "the certificate's files are not taken", of: "issue 12", steps: lasting(3, 9, certificate(-30, 60, "node.crt, node.key: private key does not match public key")), finds: []string{idPeerCertificate}},
	{name: "the certificate's files are not taken for a moment", of: "issue 12", steps: lasting(1, 9, certificate(-30, 60, "node.key: does not match")), clears: []string{idPeerCertificate}},
	{name: "the certificate's files are taken again", of: "issue 12", steps: slices.Concat(lasting(5, 9, certificate(-30, 60, "node.key: does not match")), lasting(1, 9)), clears: []string{idPeerCertificate}},
	{name: "the certificate was renewed late", of: "issue 12", steps: slices.Concat(lasting(9, 9, certificate(-355, 10, "")), lasting(1, 9, certificate(-0.01, 365, ""))), clears: []string{idPeerCertificate}},
	{name: "sessions without TLS", of: "issue 12", steps: lasting(3, 9, func(s *peer.Status) { s.Certificate = nil }), clears: []string{idPeerCertificate}},
	{name: "a certificate of which nothing is known", of: "issue 12", steps: lasting(3, 9, func(s *peer.Status) { s.Certificate = &peer.Certificate{} }), clears: []string{idPeerCertificate}},
	{name: "the clock of one peer is another", of: "issue 12", steps: lasting(17, 9, last(1, func(p *peer.Peer) { p.Contact.Clock = time.Hour })), clears: []string{idPeerList}},
}

// TestPeerFindings: what findings name, how many there are in a large cluster, and
// that a peer's texts stay on a line.
func TestPeerFindings(t *testing.T) {
	texts := func(nodes int, change ...func(*peer.Status)) []Finding {
		r := row{steps: peers(nodes, change...)}
		return r.diagnose(t).Findings
	}
	one := texts(9, last(1, peertest.Away))
	if len(one) != 1 || one[0].Subject.Other != "peer node00008" || !strings.Contains(one[0].Seen, "does not answer (stage dial, ECONNREFUSED): connect: connection refused") {
		t.Errorf("%+v", one)
	}
	rail := texts(9, last(7, onRail(1, peertest.Cut)))
	if len(rail) != 1 || rail[0].Subject != (Subject{Device: "mlx5_1", Port: 1}) || !strings.Contains(rail[0].Seen, "on rail rail1: bad to 7 of 8 peers, while those of mlx5_0/1 are good to 8 of 8") {
		t.Errorf("%+v", rail)
	}
	corrupt := texts(9, last(1, onRail(1, corruptHost)))
	if len(corrupt) != 1 || corrupt[0].Subject != (Subject{Device: "mlx5_1", Port: 1, Other: "peer node00008"}) || !strings.Contains(corrupt[0].Seen, "7 words") || corrupt[0].Severity != SeverityCritical {
		t.Errorf("%+v", corrupt)
	}
	oneWay := texts(9, last(2, onRail(1, oneWaySlow)))
	if len(oneWay) != 1 || !strings.Contains(oneWay[0].Seen, "48.0 GB/s to it, 20.0 GB/s from it; so are 1 other paths") {
		t.Errorf("%+v", oneWay)
	}
	many := texts(1000, last(400, peertest.Away))
	if len(many) != mostPeerFindings+1 {
		t.Errorf("%d findings", len(many))
	}
	hostile := texts(9, last(1, func(p *peer.Peer) {
		peertest.Away(p)
		p.Name = "a\nb\x1b[31m"
		p.Failure.Text = strings.Repeat("x\n", 9000)
	}))
	if len(hostile) != 1 || strings.ContainsAny(hostile[0].Subject.Other+hostile[0].Seen, "\n\x1b") || len(hostile[0].Seen) > maxSeen+10 {
		t.Errorf("%+v", hostile)
	}
}

// TestPeerNothing: what is missing everywhere makes no rule fall over.
func TestPeerNothing(t *testing.T) {
	for name, status := range map[string]*peer.Status{
		"empty": {}, "holes": {Peers: []peer.Peer{{}, {Listener: peer.ClassUnreachable}, {Paths: []peer.Path{{}, {Ping: &peer.Measurement{Class: peer.ClassFailed}, Bandwidth: []*peer.Measurement{nil, {Class: peer.ClassCorrupt}, {Class: peer.ClassSlow}}}}}},
			Rails: []peer.OwnRail{{}, {Bandwidth: map[session.Memory]*peer.Tally{session.GPU: {Bad: 3}, session.Host: nil}}}, Sources: []peer.Source{{}}},
	} {
		r := row{steps: one(func(s *scene) { s.Peer = status })}
		if d := r.diagnose(t); resultOf(d, idPeerPath).Result == ResultNotJudged {
			t.Errorf("%s: not judged", name)
		}
	}
}

// TestPeerCertificateTexts: what is said of a certificate, and of its files as well.
func TestPeerCertificateTexts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*peer.Status)
		want   map[string]string
	}{
		"late":  {certificate(-300, 9.5, ""), map[string]string{"certificate": ", in 9 days, and was not renewed"}},
		"hours": {certificate(-300, 0.5, ""), map[string]string{"certificate": ", in 12 hours, and"}},
		"ended": {certificate(-300, -0.02, ""), map[string]string{"certificate": ", 28 minutes ago: no session is possible"}},
		"early": {certificate(1, 2, ""), map[string]string{"certificate": "it holds from "}},
		"both":  {certificate(-300, 9.5, "node.crt:\nno certificate"), map[string]string{"certificate": "in 9 days", "certificate files": "the last good ones count: node.crt: no certificate"}},
	} {
		t.Run(name, func(t *testing.T) {
			found := map[string]string{}
			r := row{steps: lasting(3, 9, c.change)}
			for _, f := range r.diagnose(t).Findings {
				if f.Rule != idPeerCertificate || f.Severity != SeverityWarning || f.Hint == "" {
					t.Errorf("%+v", f)
				}
				found[f.Subject.Other] = f.Seen
			}
			for subject, want := range c.want {
				if !strings.Contains(found[subject], want) {
					t.Errorf("%s: %q", subject, found[subject])
				}
			}
			if len(found) != len(c.want) {
				t.Errorf("%q", found)
			}
		})
	}
}

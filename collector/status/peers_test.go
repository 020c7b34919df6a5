package status

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/peertest"
	"gdr_exporter/rdma/peer/session"
)

// withPeers is a Snapshot of a node with two rails that knows so many peers, changed.
func withPeers(nodes int, change func(*peer.Status)) *snapshot.Snapshot {
	s := asked(of(answered(device("mlx5_0", 4)), answered(device("mlx5_1", 4))))
	s.Asked[snapshot.CollectorPeer] = true
	s.Peer = peertest.Status(nodes, 2, s.Taken)
	if change != nil {
		change(s.Peer)
		peertest.Sum(s.Peer)
	}
	return s
}

// troubled has of all that can be wrong something.
func troubled(s *peer.Status) {
	peertest.Away(&s.Peers[0])
	peertest.Denied(&s.Peers[1])
	peertest.Cut(&s.Peers[2].Paths[1])
	near := s.Peers[len(s.Peers)-3:]
	at := near[0].Tried
	peertest.Bandwidth(&near[0].Paths[0], peertest.Slow(peertest.Rates(at, session.GPU, 12e9, 12e9, 0), "host memory"))
	peertest.Bandwidth(&near[1].Paths[1], peertest.Corrupt(peertest.Rates(at, session.Host, 48e9, 48e9, 0), 3))
	near[2].Paths[0].Reached.OK, near[2].Paths[0].Reached.Text = false, "i/o timeout"
	near[2].Paths[0].Skipped, near[2].Paths[0].SkippedText = session.ReasonGate, "the port is busy"
	s.Peers[3] = peer.Peer{Target: s.Peers[3].Target, Name: s.Peers[3].Name}
	s.Peers[4].Contact.List = "another"
	s.Peers[4].Contact.Time = s.Taken
	s.Sources[0].Text = "lookup nodes: no such host"
	s.Budget = 1 << 40
}

// peersJSON is the document as its readers get it.
func peersJSON(t *testing.T, s *snapshot.Snapshot) (text string, document any) {
	t.Helper()
	var b bytes.Buffer
	if err := PeersDocument(s).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	return b.String(), document
}

// TestPeersDocumentsMatchSchema: what is served is of the schema, whatever is known.
func TestPeersDocumentsMatchSchema(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(PeersSchema(), &schema); err != nil {
		t.Fatal(err)
	}
	hostile := withPeers(6, nil)
	hostile.Peer = peertest.Hostile(evil, hostile.Taken)
	holes := withPeers(3, nil)
	holes.Peer = &peer.Status{
		Peers: []peer.Peer{{Paths: []peer.Path{{Bandwidth: []*peer.Measurement{nil, {}}, Ping: &peer.Measurement{Result: &session.Result{Rounds: []session.Round{{}}}}}}}},
		Rails: []peer.OwnRail{{Bandwidth: map[session.Memory]*peer.Tally{session.Host: nil}}}, Sources: []peer.Source{{}},
	}
	for name, s := range map[string]*snapshot.Snapshot{
		"no runner": of(), "alone": withPeers(1, nil), "nothing read": func() *snapshot.Snapshot { s := of(); s.Peer = &peer.Status{}; return s }(),
		"well": withPeers(40, nil), "troubled": withPeers(40, troubled), "hostile": hostile, "holes": holes,
	} {
		_, document := peersJSON(t, s)
		for _, problem := range mismatches(schema, schema["$defs"].(map[string]any), document, "$") {
			t.Errorf("%s: %s", name, problem)
		}
		delete(document.(map[string]any), "taken")
		if got := mismatches(schema, schema["$defs"].(map[string]any), document, "$"); len(got) != 1 {
			t.Errorf("%s: a document with 1 mistake has %q", name, got)
		}
	}
}

// TestPeersDocument: what a peer's numbers become, who comes first, and what null is.
func TestPeersDocument(t *testing.T) {
	s := withPeers(40, troubled)
	doc := PeersDocument(s)
	var states []string
	for i := range doc.Peers {
		states = append(states, doc.Peers[i].State)
	}
	if doc.Bad != 5 || doc.Unknown != 1 || doc.Good != 33 || len(states) != 39 || slices.Index(states, "good") != 5 || !doc.Peers[5].Neighbour || doc.Peers[9].Neighbour {
		t.Errorf("%d bad, %d unknown, %d good: %v", doc.Bad, doc.Unknown, doc.Good, states)
	}
	away := doc.Peers[0]
	if away.Name != "node00001" || *away.Listener != "unreachable" || *away.Failure.Errno != "ECONNREFUSED" || *away.Failure.Stage != "dial" || away.Failure.FoundBy != "self" || len(away.Paths) != 2 {
		t.Errorf("%+v", away)
	}
	near := doc.Peers[len(doc.Peers)-1] // the one that nothing is known of is not last
	if near.State != "good" && near.State != "unknown" {
		t.Errorf("%+v", near)
	}
	neighbour := doc.Peers[5]
	host, gpu := neighbour.Paths[0].Results[1], neighbour.Paths[0].Results[2]
	if *host.Write != 48.5e9 || *host.Reverse != 48.5e9 || *host.Both < 93.5e9 || *host.Both > 93.7e9 || *gpu.Write != 47.5e9 || gpu.Both != nil || gpu.Failure != nil || gpu.Text != nil || host.Memory != "host" {
		t.Errorf("%+v %+v", host, gpu)
	}
	if ping := neighbour.Paths[0].Results[0]; *ping.LatencyMedian != peertest.Latency.Seconds() || *ping.Lost != 0 || ping.Write != nil || ping.Kind != "ping" {
		t.Errorf("%+v", ping)
	}
	if l := doc.List; l.OtherLists != 1 || l.Heard != 25 || l.Sources[0].Text == nil || *l.Self != "node00000:10480" {
		t.Errorf("%+v", l)
	}
	for i := range doc.Peers {
		if p := &doc.Peers[i]; p.Name == "node00004" && (p.Contact != nil || p.Tried != nil || p.Listener != nil || p.State != "unknown") {
			t.Errorf("%+v", p)
		}
	}
	if none := PeersDocument(of()); none.Measuring || none.List != nil || none.SpentBytes != nil || len(none.Peers) != 0 {
		t.Errorf("%+v", none)
	}
	if s.Peer.Peers[0].Failure.Text != "connect: connection refused" {
		t.Error("the Status was changed")
	}
}

// TestPeersDocumentBounded: of a large cluster the bad peers are whole, and the rest
// is cut to what can be served.
func TestPeersDocumentBounded(t *testing.T) {
	s := withPeers(10_000, func(s *peer.Status) { peertest.Away(&s.Peers[9000]); peertest.Cut(&s.Peers[5000].Paths[1]) })
	text, _ := peersJSON(t, s)
	doc := PeersDocument(s)
	paths := 0
	for i := range doc.Peers {
		paths += len(doc.Peers[i].Paths)
	}
	if len(doc.Peers) != 9999 || doc.PeersOmitted != 0 || paths != mostPeerPaths || paths+doc.PathsOmitted != 2*9999 || len(text) > 16<<20 {
		t.Errorf("%d peers, %d omitted, %d paths, %d omitted, %d bytes", len(doc.Peers), doc.PeersOmitted, paths, doc.PathsOmitted, len(text))
	}
	if doc.Peers[0].Name != "node05001" || doc.Peers[1].Name != "node09001" || len(doc.Peers[1].Paths) != 2 {
		t.Errorf("%s, %s", doc.Peers[0].Name, doc.Peers[1].Name)
	}
	s = withPeers(mostPeers+5, nil)
	if doc := PeersDocument(s); len(doc.Peers) != mostPeers || doc.PeersOmitted != 4 || doc.Good != mostPeers+4 {
		t.Errorf("%d peers, %d omitted, %d good", len(doc.Peers), doc.PeersOmitted, doc.Good)
	}
}

// TestPeersHostile: whatever other nodes call themselves, JSON, page and check stay
// what they are.
func TestPeersHostile(t *testing.T) {
	s := withPeers(6, nil)
	s.Peer = peertest.Hostile(strings.Repeat(evil, 20), s.Taken)
	document, _ := peersJSON(t, s)
	html := page(t, s)
	checkTable(t, html)
	d := diagnosis.NewEngine(diagnosis.EngineOptions{}).Diagnose(s)
	var check, junit bytes.Buffer
	c := NewCheck(s, d, CheckOptions{})
	wantWhole(t, c)
	if err := c.WriteTable(&check, CheckStyle{Width: 110}); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteJUnit(&junit, CheckWarning); err != nil {
		t.Fatal(err)
	}
	for _, got := range []string{document, html, check.String()} {
		if bad := strings.IndexFunc(got, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); bad >= 0 {
			t.Errorf("%q is in %q", got[bad:bad+3], got[max(bad-40, 0):bad+10])
		}
		if numbers := regexp.MustCompile(`NaN|Inf\b`).FindString(got); numbers != "" {
			t.Errorf("%s is a number", numbers)
		}
	}
	if strings.Contains(document+html, "<script") || len(document) > 400_000 || len(html) > 300_000 {
		t.Errorf("markup from outside, or %d and %d bytes", len(document), len(html))
	}
}

// TestPeersPage: the matrix says who is bad and how fast the rest is, the bad ones
// first, and no more than so many rows; without a runner there is none.
func TestPeersPage(t *testing.T) {
	got := page(t, withPeers(40, troubled))
	checkTable(t, got)
	want(t, got, "40 nodes in the target list, this one included. Of the others 33 are good, 5 bad, 1 not known.", "lookup nodes: no such host", "Of 25 peers heard of within 10 minutes, 1 go by another list",
		"unreachable: dial ECONNREFUSED: connect: connection refused", "denied: tls: x509: certificate has expired", "ping failed (ping)", "gpu slow", "host corrupt (3 words)", "gpu 47.5 GB/s; 3.2 µs",
		"not called yet", "10.0.0.39 does not answer", "mlx5_1/1 (rail1)", "1 bad, 37 good", "median 3.2 µs, worst 3.2 µs")
	if first, second, good := strings.Index(got, "node00001"), strings.Index(got, "node00038"), strings.Index(got, "node00036"); first < 0 || second < first || good < second {
		t.Errorf("bad ones at %d and %d, a good one at %d", first, second, good)
	}
	many := page(t, withPeers(1000, nil))
	if rows := strings.Count(many, `<th scope="row">node`); rows != mostShownPeers {
		t.Errorf("%d rows", rows)
	}
	want(t, many, "And 799 more in the JSON")
	none := page(t, of())
	wantNot(t, none, "Peers")
	empty := withPeers(1, func(s *peer.Status) { *s = peer.Status{} })
	want(t, page(t, empty), "No target list was read yet.")
	unlisted := withPeers(3, func(s *peer.Status) { s.Self, s.SelfText = "", "no target is an address of this host" })
	want(t, page(t, unlisted), "This node is not among them: no target is an address of this host.")
}

// TestPeersCheck: the group of the command check.
func TestPeersCheck(t *testing.T) {
	lines := func(s *snapshot.Snapshot) map[string]CheckLine {
		d := diagnosis.NewEngine(diagnosis.EngineOptions{Patience: time.Second}).Diagnose(s)
		c := NewCheck(s, d, CheckOptions{})
		wantWhole(t, c)
		all := map[string]CheckLine{}
		for _, group := range c.Groups {
			for _, line := range group.Lines {
				if group.ID == "peers" {
					all[line.ID] = line
				}
			}
		}
		return all
	}
	well := lines(withPeers(40, nil))
	if l := well["paths"]; l.Status != CheckOK || l.Seen != "39 peers: 39 good, 0 bad, 0 not known" || len(l.Rules) != 8 {
		t.Errorf("%+v", l)
	}
	if l := well["rail/mlx5_0/1"]; len(well) != 5 || l.Status != CheckOK || !strings.HasPrefix(l.Seen, "ping of host memory good to 39 of 39, median 3.2 µs; bandwidth of host memory good to 4 of 4, write 48.5 GB/s (least 48.5 GB/s)") {
		t.Errorf("%d lines, %+v", len(well), l)
	}
	bad := lines(withPeers(40, troubled))
	if l := bad["paths"]; l.Status != CheckCritical || l.Do == "" {
		t.Errorf("%+v", l)
	}
	if l := bad["peer/node00001:10480"]; l.Status != CheckWarning || l.Seen != "unreachable: dial ECONNREFUSED: connect: connection refused" {
		t.Errorf("%+v", l)
	}
	if l := bad["rail/mlx5_1/1"]; l.Status != CheckCritical {
		t.Errorf("%+v", l)
	}
	many := lines(withPeers(200, func(s *peer.Status) {
		for i := range 50 {
			peertest.Away(&s.Peers[i])
		}
	}))
	if len(many) != 5+mostCheckPeers+1 || !strings.HasPrefix(many["more"].Seen, "34 more") {
		t.Errorf("%d lines, %+v", len(many), many["more"])
	}
	if none := lines(asked(of())); len(none) != 1 || none["paths"].Status != CheckNotJudged || none["paths"].Seen == "" {
		t.Errorf("%+v", none)
	}
}

// TestPeersCertificate: until when the certificate holds, on the page, in the document
// and in check; nothing of it without TLS.
func TestPeersCertificate(t *testing.T) {
	for name, c := range map[string]struct {
		begins, ends time.Duration
		text         string
		state        string
		page         string
		check        CheckStatus
	}{
		"good":      {-30 * peertest.Day, 60 * peertest.Day, "", "good", "The certificate of sessions holds for 60 days, until ", CheckOK},
		"late":      {-355 * peertest.Day, 10 * peertest.Day, "", "late", "The certificate of sessions ends in 10 days, at ", CheckWarning},
		"ended":     {-355 * peertest.Day, -3 * time.Hour, "", "ended", "The certificate of sessions ended 3 h ago, at ", CheckWarning},
		"early":     {time.Hour, peertest.Day, "", "early", "and not yet: no session is possible.", CheckWarning},
		"not taken": {-30 * peertest.Day, 60 * peertest.Day, "node.crt: no certificate.", "good", "the last good ones count: node.crt: no certificate. Each", CheckWarning},
	} {
		t.Run(name, func(t *testing.T) {
			s := withPeers(3, func(s *peer.Status) {
				s.Certificate = &peer.Certificate{Begins: s.Taken.Add(c.begins), Ends: s.Taken.Add(c.ends), Text: c.text}
			})
			if doc := PeersDocument(s).Certificate; doc == nil || doc.State != c.state || !doc.Ends.Equal(s.Taken.Add(c.ends)) || !doc.Begins.Equal(s.Taken.Add(c.begins)) || (doc.Text != nil) != (c.text != "") {
				t.Errorf("%+v", doc)
			}
			want(t, page(t, s), c.page)
			if line := lineAboutPeers(t, s, "certificate"); line == nil || line.Status != c.check || (line.Do != "") != (c.check == CheckWarning) {
				t.Errorf("%+v", line)
			}
		})
	}
	s := withPeers(3, func(s *peer.Status) { s.Certificate = nil })
	if doc := PeersDocument(s); doc.Certificate != nil {
		t.Errorf("%+v", doc.Certificate)
	}
	wantNot(t, page(t, s), "certificate of sessions")
	if line := lineAboutPeers(t, s, "certificate"); line != nil {
		t.Errorf("%+v", line)
	}
	unknown := withPeers(3, func(s *peer.Status) { s.Certificate = &peer.Certificate{} })
	want(t, page(t, unknown), "The certificate of sessions has no end that is known.")
}

// lineAboutPeers is a line of check's group about other nodes, nil if there is none; what is
// found has been so for long.
func lineAboutPeers(t *testing.T, s *snapshot.Snapshot, id string) *CheckLine {
	t.Helper()
	engine := diagnosis.NewEngine(diagnosis.EngineOptions{Patience: time.Nanosecond})
	engine.Diagnose(s)
	later := *s
	later.Taken = s.Taken.Add(time.Second)
	for _, group := range NewCheck(&later, engine.Diagnose(&later), CheckOptions{}).Groups {
		for i := range group.Lines {
			if group.ID == "peers" && group.Lines[i].ID == id {
				return &group.Lines[i]
			}
		}
	}
	return nil
}

package collector

import (
	"bytes"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/peertest"
	"gdr_exporter/rdma/peer/session"
)

// peerScenes are the pages kept in testdata/peer.
var peerScenes = map[string]func() *peer.Status{
	"well":    func() *peer.Status { return peerStatus(3, 1, nil) },
	"trouble": func() *peer.Status { return peerStatus(6, 2, troubledPeers) },
	// Before a list was read, and before anybody was met.
	"begun": func() *peer.Status {
		return &peer.Status{Taken: goldenTime, Sources: []peer.Source{{Name: "nodes.example", Text: "lookup nodes.example: no such host"}}}
	},
	"waiting": func() *peer.Status {
		return peerStatus(3, 1, func(s *peer.Status) {
			for i := range s.Peers {
				s.Peers[i] = peer.Peer{Target: s.Peers[i].Target, Name: s.Peers[i].Name, Neighbour: true}
			}
			s.Sessions, s.Bytes, s.Self, s.Certificate = nil, nil, "", nil
		})
	},
}

// peerStatus is a Status at the time of golden pages, changed.
func peerStatus(nodes, rails int, change func(*peer.Status)) *peer.Status {
	s := peertest.Status(nodes, rails, goldenTime)
	if change != nil {
		change(s)
		peertest.Sum(s)
	}
	return s
}

// troubledPeers has of all that can be wrong something.
func troubledPeers(s *peer.Status) {
	peertest.Away(&s.Peers[0])
	peertest.Denied(&s.Peers[1])
	peertest.Cut(&s.Peers[2].Paths[1])
	at := s.Peers[2].Tried
	peertest.Bandwidth(&s.Peers[2].Paths[0], peertest.Slow(peertest.Rates(at, session.GPU, 12e9, 12e9, 0), "host memory"))
	peertest.Bandwidth(&s.Peers[3].Paths[1], peertest.Corrupt(peertest.Rates(at, session.Host, 48e9, 48e9, 0), 3))
	peertest.Bandwidth(&s.Peers[4].Paths[0], peertest.Rates(at, session.Staged, 9e9, 9e9, 0))
	s.Peers[4].Paths[0].Reached.OK = false
	s.Peers[4].Contact.List, s.Peers[4].Contact.Clock = "another", -3*time.Second
	s.Rails[1].Rail = ""
	s.Budget = 1 << 40
	s.Certificate.Ends, s.Certificate.Text = s.Taken.Add(-peertest.Day), "node.crt: no certificate"
}

// peerPage is the page of a Status.
func peerPage(status *peer.Status) *page {
	p := newPage()
	showPeer(p, &snapshot.Snapshot{Taken: goldenTime, Peer: status})
	return p
}

// TestPeerGolden compares the page of each scene with testdata/peer/<name>.metrics.
func TestPeerGolden(t *testing.T) {
	for name, scene := range peerScenes {
		t.Run(name, func(t *testing.T) {
			comparePage(t, peerPage(scene()), filepath.Join("testdata", "peer", name+".metrics"))
		})
	}
}

// perPeer counts the series of single peers by family.
func perPeer(t *testing.T, p *page) (by map[string]int, sum int, all samples) {
	t.Helper()
	by = map[string]int{}
	for _, mf := range p.gather() {
		for _, metric := range mf.Metric {
			if slices.ContainsFunc(metric.Label, func(l *dto.LabelPair) bool { return l.GetName() == "peer" }) {
				by[mf.GetName()]++
				sum++
			}
		}
	}
	return by, sum, flatten(t, p.gather())
}

// TestPeerNothing: a process that measures no peers shows none, and nor does a scrape
// that does not ask for them.
func TestPeerNothing(t *testing.T) {
	if p := peerPage(nil); p.used != 0 {
		t.Errorf("%d series", p.used)
	}
	h := newHandler(Config{Roles: noRoles{}})
	p := newPage()
	h.render(p, &snapshot.Snapshot{Taken: goldenTime, Peer: peerStatus(3, 1, nil), Asked: map[string]bool{"rdma": true}})
	for _, mf := range p.gather() {
		if strings.HasPrefix(mf.GetName(), "gdr_peer_") {
			t.Errorf("%s is shown unasked", mf.GetName())
		}
	}
}

// TestPeerTaken: a Snapshot that asks for it, or for verdicts, has the Status.
func TestPeerTaken(t *testing.T) {
	status := peerStatus(3, 1, nil)
	taker := snapshot.New(snapshot.Options{Deadline: time.Minute}).Peer(func() *peer.Status { return status }).Taker()
	defer taker.Close()
	for collector, want := range map[string]*peer.Status{"peer": status, "path": status, "rdma": nil} {
		s := taker.Take(t.Context(), func(name string) bool { return name == collector })
		if s.Peer != want || s.Asked["peer"] != (collector == "peer") {
			t.Errorf("%s: %v, asked %v", collector, s.Peer != nil, s.Asked)
		}
	}
}

// keyed is a series as a page writes it, in the form that flatten has.
func keyed(series string) string {
	return strings.TrimSuffix(strings.Replace(series, "{", ",", 1), "}")
}

// TestPeerFew: a small cluster is shown whole, with what every family says.
func TestPeerFew(t *testing.T) {
	_, sum, all := perPeer(t, peerPage(peerScenes["trouble"]()))
	for series, want := range map[string]float64{
		`gdr_peer_good{from="node00000",peer="node00001"}`:        0,
		`gdr_peer_good{from="node00000",peer="node00003"}`:        0,
		`gdr_peer_good{from="node00000",peer="node00005"}`:        1,
		`gdr_peer_reachable{from="node00000",peer="node00001"}`:   0,
		`gdr_peer_reachable{from="node00000",peer="node00002"}`:   1,
		`gdr_peer_rtt_seconds{from="node00000",peer="node00005"}`: 0.00018,
		`gdr_peer_failure_info{device="",errno="ECONNREFUSED",from="node00000",kind="",peer="node00001",port="",reason="unreachable",stage="dial"}`:      1,
		`gdr_peer_failure_info{device="mlx5_1",errno="",from="node00000",kind="ping",peer="node00003",port="1",reason="rdma",stage="ping"}`:              1,
		`gdr_peer_failure_info{device="mlx5_0",errno="",from="node00000",kind="bandwidth",peer="node00003",port="1",reason="slow",stage=""}`:             1,
		`gdr_peer_failure_info{device="mlx5_1",errno="",from="node00000",kind="bandwidth",peer="node00004",port="1",reason="corrupt",stage=""}`:          1,
		`gdr_peer_path_good{device="mlx5_1",from="node00000",kind="ping",peer="node00003",peer_device="mlx5_1",port="1",rail="rail1"}`:                   0,
		`gdr_peer_path_good{device="mlx5_0",from="node00000",kind="ping",peer="node00003",peer_device="mlx5_0",port="1",rail="rail0"}`:                   1,
		`gdr_peer_address_reachable{device="mlx5_0",from="node00000",peer="node00005",port="1"}`:                                                         0,
		`gdr_peer_bytes_per_second{device="mlx5_0",direction="write",from="node00000",memory="gpu",peer="node00003",peer_device="mlx5_0",port="1"}`:      12e9,
		`gdr_peer_bytes_per_second{device="mlx5_0",direction="reverse",from="node00000",memory="staged",peer="node00005",peer_device="mlx5_0",port="1"}`: 9e9,
		`gdr_peer_rail_peers{device="mlx5_1",kind="ping",memory="host",port="1",rail="",state="bad"}`:                                                    1,
		`gdr_peer_rail_peers{device="mlx5_0",kind="bandwidth",memory="gpu",port="1",rail="rail0",state="good"}`:                                          3,
		`gdr_peer_rail_least_bytes_per_second{device="mlx5_0",direction="write",memory="gpu",port="1"}`:                                                  12e9,
		`gdr_peer_disagreeing_peers{what="clock"}`:                                                   1,
		`gdr_peer_disagreeing_peers{what="options"}`:                                                 0,
		`gdr_peer_sessions_total{class="refused",kind="bandwidth",role="initiator"}`:                 3,
		`gdr_peer_hour_limit_bytes`:                                                                  1 << 40,
		`gdr_peer_left_out_series`:                                                                   0,
		`gdr_peer_list_info{from="node00000",options="a1b2c3d4e5f60718",version="5f2b7c1d9e3a4f60"}`: 1,
	} {
		if got, there := all[keyed(series)]; !there || got != want {
			t.Errorf("%s is %v (%v), want %v", series, got, there, want)
		}
	}
	if wrong := `gdr_peer_bytes_per_second{device="mlx5_1",direction="write",from="node00000",memory="host",peer="node00004",peer_device="mlx5_1",port="1"}`; all[keyed(wrong)] != 0 {
		t.Error("what arrived wrong has a rate")
	}
	if sum > maxPeerSeries {
		t.Errorf("%d series of peers", sum)
	}
}

// TestPeerBounded: however large the cluster and however much of it is bad, a node
// shows so many series of peers, what matters most first, and counts the rest.
func TestPeerBounded(t *testing.T) {
	away := func(n int) func(*peer.Status) {
		return func(s *peer.Status) {
			for i := range n {
				peertest.Away(&s.Peers[i])
				for k := range s.Peers[i].Paths {
					peertest.Cut(&s.Peers[i].Paths[k])
				}
			}
		}
	}
	for name, test := range map[string]struct {
		nodes  int
		change func(*peer.Status)
		want   map[string]int
		least  float64 // series that are left out
	}{
		"well":    {10_000, nil, map[string]int{"gdr_peer_good": 24, "gdr_peer_reachable": 4, "gdr_peer_rtt_seconds": 4, "gdr_peer_bytes_per_second": 160, "gdr_peer_path_good": 8}, 100},
		"all bad": {10_000, away(9999), map[string]int{"gdr_peer_good": 200}, 250_000},
		// All of them, why, that the others are good, and what there is room for of the first ones.
		"50 bad": {1000, away(50), map[string]int{"gdr_peer_good": 74, "gdr_peer_failure_info": 74, "gdr_peer_reachable": 4, "gdr_peer_path_good": 24}, 500},
		"two":    {2, nil, map[string]int{"gdr_peer_good": 1, "gdr_peer_reachable": 1, "gdr_peer_rtt_seconds": 1, "gdr_peer_bytes_per_second": 40, "gdr_peer_path_good": 16, "gdr_peer_address_reachable": 8}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := peerPage(peerStatus(test.nodes, 8, test.change))
			by, sum, all := perPeer(t, p)
			left := all["gdr_peer_left_out_series"]
			t.Logf("%d series, of them of peers %v, %v left out", p.used, by, left)
			if sum > maxPeerSeries || p.used-sum > 300 || (left > 0) != (sum == maxPeerSeries) || left < test.least {
				t.Errorf("%d series of peers, %d others, %v left out", sum, p.used-sum, left)
			}
			for family, want := range test.want {
				if by[family] != want {
					t.Errorf("%d series of %s, want %d: %v", by[family], family, want, by)
				}
			}
		})
	}
}

// TestPeerOthersElsewhere: nodes that cannot show all bad peers show other ones.
func TestPeerOthersElsewhere(t *testing.T) {
	shown := func(self int) map[string]bool {
		status := peerStatus(1000, 1, func(s *peer.Status) {
			for i := range s.Peers {
				peertest.Away(&s.Peers[i])
			}
		})
		status.Self = peertest.Target(self)
		_, _, all := perPeer(t, peerPage(status))
		peers := map[string]bool{}
		for series := range all {
			if strings.HasPrefix(series, "gdr_peer_good,") {
				peers[series] = true
			}
		}
		return peers
	}
	first, second := shown(0), shown(500)
	for series := range first {
		if second[series] {
			t.Fatalf("both show %s", series)
		}
	}
	if len(first) != maxPeerSeries || len(second) != maxPeerSeries {
		t.Errorf("%d and %d", len(first), len(second))
	}
}

// TestPeerHostile: whatever others say, a page has each series once, and is text of
// either format.
func TestPeerHostile(t *testing.T) {
	evil := "a\x00b\n\"}\\ \xff\u202e{}"
	twice := peerStatus(8, 2, func(s *peer.Status) {
		s.Peers[1].Name, s.Peers[2].Name = s.Peers[0].Name, s.Peers[0].Name
		s.Peers[2].Target = s.Peers[1].Target
		s.Peers[3].Name = s.Peers[0].Target
		s.Peers[4].Name = ""
		s.Peers[5].Paths = append(s.Peers[5].Paths, s.Peers[5].Paths...)
		peertest.Cut(&s.Peers[5].Paths[3])
		peertest.Away(&s.Peers[0])
		s.Peers[6].Name, s.Name = evil, evil
		s.Rails = append(s.Rails, s.Rails...)
	})
	infinite := peerStatus(3, 1, nil)
	infinite.Rails[0].Bandwidth[session.Host].Rates[session.Write] = peer.Rates{Count: 1, Least: math.Inf(-1), Median: math.NaN()}
	infinite.Peers[0].Paths[0].Bandwidth[0].Result.Rounds[0].Written.BytesPerSecond = math.Inf(1)
	long := peertest.Hostile(strings.Repeat(evil, 1000), goldenTime)
	for name, status := range map[string]*peer.Status{
		"twice": twice, "infinite": infinite, "evil": peertest.Hostile(evil, goldenTime), "long": long, "empty": {},
		"holes": {Peers: []peer.Peer{{}, {Listener: "?", Paths: []peer.Path{{Ping: &peer.Measurement{Class: peer.ClassFailed}, Bandwidth: []*peer.Measurement{nil, {}}}}}}, Rails: []peer.OwnRail{{}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := peerPage(status)
			all := flatten(t, p.gather())
			for series, value := range all {
				if math.IsNaN(value) || math.IsInf(value, 0) || strings.ContainsAny(series, "\n\x00") {
					t.Errorf("%q is %v", series, value)
				}
			}
			for _, mf := range p.gather() {
				var open bytes.Buffer
				if _, err := expfmt.MetricFamilyToOpenMetrics(&open, mf); err != nil {
					t.Fatal(err)
				}
				if err := checkOpenMetrics(open.String(), len(mf.Metric)); err != nil {
					t.Errorf("%s: %v", mf.GetName(), err)
				}
				if err := checkLint(mf); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all := flatten(t, peerPage(twice).gather())
	for series, want := range map[string]float64{
		// Of the same name: each by its address. One that is called what another's address is has lost its name.
		`gdr_peer_good,from=%q,peer="node00001:10480"`: 0,
		`gdr_peer_good,from=%q,peer="node00002:10480"`: 1,
		`gdr_peer_good,from=%q,peer="node00005:10480"`: 1,
		`gdr_peer_good,from=%q,peer=%[1]q`:             1,
		// Of the same labels the bad one stands.
		`gdr_peer_path_good,device="mlx5_1",from=%q,kind="ping",peer="node00006",peer_device="mlx5_1",port="1",rail="rail1"`: 0,
	} {
		series = fmt.Sprintf(series, printable(evil))
		if got, there := all[series]; !there || got != want {
			t.Errorf("%s is %v (%v), want %v", series, got, there, want)
		}
	}
}

// TestPeerMembers: sets have all members from the start.
func TestPeerMembers(t *testing.T) {
	for _, status := range []*peer.Status{{}, peerStatus(3, 2, nil)} {
		count := map[string]int{}
		for _, mf := range peerPage(status).gather() {
			count[mf.GetName()] = len(mf.Metric)
		}
		want := map[string]int{
			"gdr_peer_sources": 2, "gdr_peer_peers": 3, "gdr_peer_disagreeing_peers": 3, "gdr_peer_sessions_total": 2 * 2 * len(peer.Classes), "gdr_peer_bytes_total": 2, "gdr_peer_left_out_series": 1, "gdr_peer_hour_bytes": 1,
		}
		if status.List != "" {
			want["gdr_peer_targets"], want["gdr_peer_self_listed"], want["gdr_peer_rail_peers"] = 1, 1, 2*2*3
		} else if count["gdr_peer_targets"]+count["gdr_peer_self_listed"]+count["gdr_peer_list_info"] > 0 {
			t.Error("a list is shown before one was read")
		}
		for family, n := range want {
			if count[family] != n {
				t.Errorf("%d series of %s, want %d", count[family], family, n)
			}
		}
	}
}

// TestPeerCertificate: how long sessions are possible, and nothing of it where they have
// no TLS, or nothing is known.
func TestPeerCertificate(t *testing.T) {
	const start, expiry, files = "gdr_peer_certificate_start_timestamp_seconds", "gdr_peer_certificate_expiry_timestamp_seconds", "gdr_peer_certificate_files_good"
	begins, ends := goldenTime.Add(-peertest.Day), goldenTime.Add(peertest.Day)
	for name, c := range map[string]struct {
		certificate *peer.Certificate
		want        map[string]float64
	}{
		"no TLS":    {nil, nil},
		"fine":      {&peer.Certificate{Begins: begins, Ends: ends}, map[string]float64{start: float64(begins.Unix()), expiry: float64(ends.Unix()), files: 1}},
		"not taken": {&peer.Certificate{Begins: begins, Ends: ends, Text: "no"}, map[string]float64{start: float64(begins.Unix()), expiry: float64(ends.Unix()), files: 0}},
		"unknown":   {&peer.Certificate{}, map[string]float64{files: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			all := flatten(t, peerPage(peerStatus(3, 1, func(s *peer.Status) { s.Certificate = c.certificate })).gather())
			for _, series := range []string{start, expiry, files} {
				want, wanted := c.want[series]
				if got, there := all[series]; there != wanted || got != want {
					t.Errorf("%s is %v (%v), want %v (%v)", series, got, there, want, wanted)
				}
			}
		})
	}
}

// TestPeerRecent: a peer that is well is shown for 10 minutes after it was tried.
func TestPeerRecent(t *testing.T) {
	for age, want := range map[time.Duration]int{time.Minute: 1, 10 * time.Minute: 1, 11 * time.Minute: 0, -time.Minute: 1, -time.Hour: 0} {
		status := peerStatus(2, 1, nil)
		status.Peers[0].Neighbour, status.Peers[0].Tried = false, goldenTime.Add(-age)
		by, sum, _ := perPeer(t, peerPage(status))
		if by["gdr_peer_good"] != want || by["gdr_peer_bytes_per_second"]+by["gdr_peer_rtt_seconds"] > 0 || want == 0 && sum > 0 {
			t.Errorf("tried %v ago: %v", age, by)
		}
	}
}

// BenchmarkPeerPage renders the peers of nodes in clusters of some sizes.
func BenchmarkPeerPage(b *testing.B) {
	for _, nodes := range []int{0, 8, 1000, 10_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			s := &snapshot.Snapshot{Taken: goldenTime}
			if nodes > 0 {
				s.Peer = peerStatus(nodes, 8, nil)
			}
			p := newPage()
			b.ReportAllocs()
			for b.Loop() {
				showPeer(p, s)
				p.reset()
			}
		})
	}
}

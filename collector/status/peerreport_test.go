package status

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
)

// measuredPath is a path that was measured with both memories.
func measuredPath(device string) peer.Path {
	at := session.Port{Device: device, Port: 1}
	way := func(rate float64) *session.Way {
		return &session.Way{Bytes: 1 << 27, BytesPerSecond: rate, Verified: 1 << 20}
	}
	bandwidth := func(memory session.Memory, rate float64) *peer.Measurement {
		return &peer.Measurement{Kind: session.Bandwidth, Memory: memory, Class: peer.ClassFine, Result: &session.Result{Rounds: []session.Round{
			{Direction: session.Write, Written: way(rate)}, {Direction: session.Reverse, Back: way(rate)}, {Direction: session.Both, Written: way(rate * 0.9), Back: way(rate * 0.8)},
		}}}
	}
	return peer.Path{
		Own: at, Peer: at, Rail: "a", Reached: &peer.Reached{OK: true, Address: "192.0.2.1"},
		Ping: &peer.Measurement{Kind: session.Ping, Memory: session.Host, Class: peer.ClassFine, Result: &session.Result{Rounds: []session.Round{
			{Direction: session.Write, Written: &session.Way{Latency: &session.Latency{Count: 64, Median: 2100 * time.Nanosecond, P99: 3 * time.Microsecond}}},
		}}},
		Bandwidth: []*peer.Measurement{bandwidth(session.Host, 50e9), bandwidth(session.GPU, 48e9)},
	}
}

func TestPeerReport(t *testing.T) {
	contact := &peer.Contact{RTT: 300 * time.Microsecond, Build: "1.2.3"}
	fine := func(change func(r *PeerReport)) PeerReport {
		r := PeerReport{Target: "node2:10480", Contact: contact, Paths: []peer.Path{measuredPath("mlx5_0"), measuredPath("mlx5_1")}}
		if change != nil {
			change(&r)
		}
		r.Conclude()
		return r
	}
	failed := session.Fail(session.ReasonBusy, session.StageOpen, errForTest("a session is under way"))
	for _, c := range []struct {
		name    string
		report  PeerReport
		outcome string
		check   CheckStatus
		shows   []string
	}{
		{"fine", fine(nil), PeerFine, CheckOK, []string{"50.00 GB/s", "85.00 GB/s", "2.1 us", "mlx5_0/1 (a)", "gpu memory, all rails: 76.80 GB/s each way", "bus bandwidth of 76.8 GB/s at most"}},
		{"slow", fine(func(r *PeerReport) {
			r.Paths[1].Bandwidth[1].Class, r.Paths[1].Bandwidth[1].Text = peer.ClassSlow, "below 0.85 of host memory"
		}), PeerBad, CheckWarning, []string{"slow", "mlx5_1/1 to mlx5_1/1, bandwidth, gpu memory: below 0.85 of host memory"}},
		{"corrupt", fine(func(r *PeerReport) { r.Paths[0].Bandwidth[0].Class = peer.ClassCorrupt }), PeerBad, CheckCritical, []string{"corrupt"}},
		{"an address that does not answer", fine(func(r *PeerReport) { r.Paths[0].Reached = &peer.Reached{Address: "192.0.2.7", Text: "no route"} }), PeerBad, CheckWarning, []string{"NO ANSWER", "192.0.2.7 does not answer: no route"}},
		{"under load", fine(func(r *PeerReport) {
			r.Paths[0].Bandwidth, r.Paths[0].Skipped, r.Paths[0].SkippedText = nil, session.ReasonGate, "the port is not idle"
		}), PeerNotMeasured, CheckNotJudged, []string{"not measured: the port is not idle"}},
		{"unreachable", fine(func(r *PeerReport) {
			*r = PeerReport{Target: "node2:10480", Failure: session.Fail(session.ReasonUnreachable, session.StageDial, errForTest("connection refused"))}
		}), PeerBad, CheckWarning, []string{"node2:10480: no session", "connection refused"}},
		{"busy", fine(func(r *PeerReport) { *r = PeerReport{Target: "node2:10480", Failure: failed} }), PeerNotMeasured, CheckNotJudged, []string{"a session is under way"}},
		{"nothing", fine(func(r *PeerReport) { r.Paths = nil }), PeerNotMeasured, CheckNotJudged, []string{"listener answers in 300µs"}},
		{"hostile", fine(func(r *PeerReport) {
			r.Target, r.Paths[0].Rail = "node2\x1b[2J:1", "\x1b]0;x\a"
		}), PeerFine, CheckOK, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.report.Outcome != c.outcome {
				t.Errorf("outcome %s, want %s", c.report.Outcome, c.outcome)
			}
			var b bytes.Buffer
			if err := c.report.WriteTable(&b); err != nil {
				t.Fatal(err)
			}
			for _, text := range c.shows {
				if !strings.Contains(b.String(), text) {
					t.Errorf("no %q in\n%s", text, b.String())
				}
			}
			if strings.ContainsAny(b.String(), "\x1b\a") {
				t.Errorf("control characters: %q", b.String())
			}
			check := NewCheck(&snapshot.Snapshot{Taken: time.Now()}, nil, CheckOptions{Met: []PeerReport{c.report}})
			line := peerLineOf(t, check)
			if line.Status != c.check || line.Seen == "" {
				t.Errorf("check: %+v, want %s", line, c.check)
			}
			if exit := map[CheckStatus]int{CheckWarning: CheckExitWarning, CheckCritical: CheckExitCritical}[c.check]; exit != 0 && check.ExitCode != exit {
				t.Errorf("exit code %d, want %d", check.ExitCode, exit)
			}
			b.Reset()
			var back []PeerReport
			if err := WritePeerJSON(&b, []PeerReport{c.report}); err != nil || json.Unmarshal(b.Bytes(), &back) != nil {
				t.Errorf("%v: %s", err, b.String())
			}
		})
	}
}

type errForTest string

func (e errForTest) Error() string { return string(e) }

func peerLineOf(t *testing.T, check *Check) CheckLine {
	t.Helper()
	for _, group := range check.Groups {
		for _, line := range group.Lines {
			if strings.HasPrefix(line.ID, "met/") {
				return line
			}
		}
	}
	t.Fatal("no line")
	return CheckLine{}
}

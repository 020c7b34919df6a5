// Package peertest makes what a Runner shows up, for tests of what is made of it.
package peertest

import (
	"fmt"
	"slices"
	"time"

	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/rails"
	"gdr_exporter/rdma/peer/session"
)

// Of a port with 400 Gb/s.
const (
	portRate = 50e9
	hostRate = 48.5e9
	gpuRate  = 47.5e9
	Latency  = 3200 * time.Nanosecond // median of a good ping
	Day      = 24 * time.Hour
)

// Name is what a node is called.
func Name(n int) string { return fmt.Sprintf("node%05d", n) }

// Target is where a node's listener is.
func Target(n int) string { return Name(n) + ":10480" }

// Status is what the first of some nodes with so many rails knows when all have been
// measured and all is well. It meets the last four this round, and met the 20 before
// these lately.
func Status(nodes, ports int, at time.Time) *peer.Status {
	s := &peer.Status{
		Taken: at, Self: Target(0), Name: Name(0), Targets: nodes, List: "5f2b7c1d9e3a4f60", Options: "a1b2c3d4e5f60718",
		Sources: []peer.Source{{Name: "/etc/gdr_exporter/peers.yaml", Targets: nodes, Good: at.Add(-time.Minute)}},
		Round:   at.Add(-20 * time.Minute), Next: at.Add(25 * time.Second),
		CoverPing: time.Duration(nodes) * 30 * time.Second, CoverBandwidth: time.Duration(nodes) * 15 * time.Minute,
		Certificate: &peer.Certificate{Begins: at.Add(-30 * Day), Ends: at.Add(60 * Day)},
		Spent:       120 << 30, Bytes: map[peer.Role]uint64{peer.Initiator: 7 << 40, peer.Responder: 6 << 40},
		Sessions: map[peer.SessionKind]int{
			{Role: peer.Initiator, Kind: session.Ping, Class: peer.ClassFine}:         1200,
			{Role: peer.Responder, Kind: session.Ping, Class: peer.ClassFine}:         1190,
			{Role: peer.Initiator, Kind: session.Bandwidth, Class: peer.ClassFine}:    96,
			{Role: peer.Initiator, Kind: session.Bandwidth, Class: peer.ClassRefused}: 3,
		},
	}
	for i := range ports {
		s.Rails = append(s.Rails, peer.OwnRail{Port: Port(i), Rail: fmt.Sprintf("rail%d", i), Rate: portRate})
	}
	for n := 1; n < nodes; n++ {
		s.Peers = append(s.Peers, node(n, nodes, ports, at))
	}
	Sum(s)
	return s
}

// Port is a node's port on a rail.
func Port(rail int) session.Port { return session.Port{Device: fmt.Sprintf("mlx5_%d", rail), Port: 1} }

func node(n, nodes, ports int, at time.Time) peer.Peer {
	p := peer.Peer{Target: Target(n), Name: Name(n), Listener: peer.ClassFine, Neighbour: n >= nodes-4}
	switch {
	case p.Neighbour:
		p.Tried = at.Add(-time.Minute)
	case n >= nodes-24:
		p.Tried = at.Add(-5 * time.Minute)
	default:
		p.Tried = at.Add(-time.Hour)
	}
	p.Contact = &peer.Contact{Time: p.Tried, RTT: 180 * time.Microsecond, Build: "1.2.3", List: "5f2b7c1d9e3a4f60", Options: "a1b2c3d4e5f60718", Clock: 3 * time.Millisecond}
	for i := range ports {
		path := peer.Path{
			Own: Port(i), Peer: Port(i), Rail: fmt.Sprintf("rail%d", i), Basis: rails.ByLabel,
			Reached: &peer.Reached{Time: p.Tried, Address: fmt.Sprintf("10.%d.%d.%d", i, n>>8&255, n&255), OK: true, RTT: 90 * time.Microsecond},
			Ping:    Ping(p.Tried, Latency),
		}
		if p.Neighbour {
			path.Bandwidth = []*peer.Measurement{
				Rates(p.Tried, session.Host, hostRate, hostRate, hostRate*0.96), Rates(p.Tried, session.GPU, gpuRate, gpuRate, 0),
			}
		}
		p.Paths = append(p.Paths, path)
	}
	return p
}

// Ping is a good ping of a median.
func Ping(at time.Time, median time.Duration) *peer.Measurement {
	return &peer.Measurement{Kind: session.Ping, Memory: session.Host, Time: at, Class: peer.ClassFine, Result: &session.Result{
		ID: "f00d", Started: at, Elapsed: 40 * time.Millisecond,
		Rounds: []session.Round{{Direction: session.Write, Written: &session.Way{Bytes: 512, Elapsed: time.Millisecond, Verified: 8, Latency: &session.Latency{Count: 64, Median: median, P99: 2 * median}}}},
	}}
}

// Rates is a good measurement of bandwidth; a rate of 0 was not measured.
func Rates(at time.Time, memory session.Memory, write, reverse, both float64) *peer.Measurement {
	m := &peer.Measurement{Kind: session.Bandwidth, Memory: memory, Time: at, Class: peer.ClassFine, Limit: 0.7 * portRate, LimitOf: "port rate", Result: &session.Result{ID: "beef", Started: at, Elapsed: 900 * time.Millisecond}}
	way := func(rate float64) *session.Way {
		return &session.Way{Bytes: 1 << 30, Elapsed: time.Duration(float64(1<<30) / rate * 1e9), BytesPerSecond: rate, Verified: 1 << 26}
	}
	if write > 0 {
		m.Result.Rounds = append(m.Result.Rounds, session.Round{Direction: session.Write, Written: way(write)})
	}
	if reverse > 0 {
		m.Result.Rounds = append(m.Result.Rounds, session.Round{Direction: session.Reverse, Back: way(reverse)})
	}
	if both > 0 {
		m.Result.Rounds = append(m.Result.Rounds, session.Round{Direction: session.Both, Written: way(both), Back: way(both * 1.01)})
	}
	return m
}

// Away makes a peer one whose listener does not answer. What is known of its paths
// stands.
func Away(p *peer.Peer) {
	p.Listener = peer.ClassUnreachable
	p.Failure = &session.Failure{Reason: session.ReasonUnreachable, Stage: session.StageDial, Call: "connect", Errno: "ECONNREFUSED", Text: "connect: connection refused"}
}

// Denied makes a peer one that lets nobody in.
func Denied(p *peer.Peer) {
	p.Listener = peer.ClassDenied
	p.Failure = &session.Failure{Reason: session.ReasonTLS, Stage: session.StageTLS, Text: "x509: certificate has expired"}
}

// Cut makes the pings on a path fail.
func Cut(path *peer.Path) {
	m := *path.Ping
	m.Class, m.Text = peer.ClassFailed, "retries exceeded"
	m.Result = &session.Result{ID: "dead", Started: m.Time, Elapsed: 4 * time.Second, Failure: &session.Failure{
		Reason: session.ReasonRDMA, Stage: "ping", Call: "completion", Errno: "", Status: "IBV_WC_RETRY_EXC_ERR", Text: "retry counter exceeded",
	}}
	path.Ping = &m
}

// Bandwidth takes the place of the measurement of that memory.
func Bandwidth(path *peer.Path, m *peer.Measurement) {
	i := slices.IndexFunc(path.Bandwidth, func(old *peer.Measurement) bool { return old.Memory == m.Memory })
	if i < 0 {
		path.Bandwidth = append(path.Bandwidth, m)
		return
	}
	path.Bandwidth[i] = m
}

// Slow makes a measurement one below its limit.
func Slow(m *peer.Measurement, limitOf string) *peer.Measurement {
	m.Class, m.LimitOf, m.Text = peer.ClassSlow, limitOf, "below the limit of "+limitOf
	return m
}

// Corrupt makes data of a measurement arrive wrong.
func Corrupt(m *peer.Measurement, words int) *peer.Measurement {
	m.Class, m.Text = peer.ClassCorrupt, fmt.Sprintf("%d words arrived wrong", words)
	round := &m.Result.Rounds[0]
	for _, way := range []*session.Way{round.Written, round.Back} {
		if way != nil {
			way.Mismatches = words
		}
	}
	return m
}

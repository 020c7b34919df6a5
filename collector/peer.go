package collector

import (
	"math"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
)

// Families of the measurements between nodes as a whole. Those of this node's rails
// are in peerrail.go, those of single peers in peerseries.go.
var (
	peerTargets = gauge("gdr_peer_targets",
		"Nodes in the target list, this one included. Absent until a list was read.")
	peerList = gauge("gdr_peer_list_info",
		"What this node goes by, value 1: from (its name in the target list), version of the target list and of the schedule's options. Nodes with other versions meet at other times, or not at all. Absent until a list was read.")
	peerListed = gauge("gdr_peer_self_listed",
		"1 if this node finds itself in the target list, 0 if not: then it takes no part. Absent until a list was read.")
	peerSources = gauge("gdr_peer_sources",
		"Files and names that the target list comes from, by state: good, failing (what was read before stands).")
	peerCertificateStart = gauge("gdr_peer_certificate_start_timestamp_seconds",
		"From when on the certificate that this node shows to others holds, with those of its authority, as Unix time. Absent without TLS.")
	peerCertificateExpiry = gauge("gdr_peer_certificate_expiry_timestamp_seconds",
		"When the certificate that this node shows to others ends, or one of its authority's that it depends on if that is first, as Unix time: then no session is possible any more. Absent without TLS.")
	peerCertificateFiles = gauge("gdr_peer_certificate_files_good",
		"1 if certificate, key and authority are in use as their files are now, 0 if these cannot be taken and the last good ones are in use. Looked at once a minute. Absent without TLS.")
	peerPeers = gauge("gdr_peer_peers",
		"Other nodes of the list by what this one knows of them last: good (the session listener answers and no path to it is bad), bad, unknown (not tried yet, or nothing came of it).")
	peerDisagreeing = gauge("gdr_peer_disagreeing_peers",
		"Other nodes that were heard of within 10 minutes and said otherwise, by what: list (another version of the target list), options (of the schedule), clock (more than 1 second from this node's).")
	peerSessions = counter("gdr_peer_sessions_total",
		"Sessions since start, by this node's role, kind, and class: fine, slow (below a limit), corrupt (data arrived wrong), failed (RDMA), unreachable (the listener does not answer), denied (certificate, list, version), "+
			"refused (busy, locked, gated, no budget: says nothing of the path), stopped (this side ended it).")
	peerBytes = counter("gdr_peer_bytes_total",
		"Bytes that sessions moved since start, by this node's role. Traffic graphs subtract them.")
	peerHour = gauge("gdr_peer_hour_bytes",
		"Bytes of the last hour that sessions of both roles moved, or that are set aside for them.")
	peerHourLimit = gauge("gdr_peer_hour_limit_bytes",
		"The most that gdr_peer_hour_bytes may be. Absent if there is no bound.")
	peerCoverage = gauge("gdr_peer_coverage_seconds",
		"How long it takes until each pair of nodes in the list has had its turn, by kind. Absent for a kind that is not measured.")
)

// showPeer shows the measurements between nodes, nothing where there are none.
func showPeer(p *page, s *snapshot.Snapshot) {
	if s.Peer == nil {
		return
	}
	showPeerList(p, s.Peer)
	showPeerCertificate(p, s.Peer.Certificate)
	showPeerCounts(p, s.Peer)
	states := make([]snapshot.PeerState, len(s.Peer.Peers))
	for i := range s.Peer.Peers {
		states[i] = snapshot.PeerStateOf(&s.Peer.Peers[i])
	}
	showPeersByState(p, s, states)
	showPeerRails(p, s.Peer)
	showPeers(p, s, states)
}

// showPeerList shows what the node goes by. Before a list was read there is no such
// thing, which is not an empty one.
func showPeerList(p *page, status *peer.Status) {
	if status.List != "" {
		p.add(peerTargets, float64(status.Targets), nil)
		p.add(peerList, 1, pairs("from", status.Name, "version", status.List, "options", status.Options))
		p.addBool(peerListed, status.Self != "", nil)
	}
	good, failing := 0, 0
	for i := range status.Sources {
		if source := &status.Sources[i]; source.Text == "" && !source.Good.IsZero() {
			good++
		} else {
			failing++
		}
	}
	p.add(peerSources, float64(good), pairs("state", "good"))
	p.add(peerSources, float64(failing), pairs("state", "failing"))
	if status.CoverPing > 0 {
		p.add(peerCoverage, status.CoverPing.Seconds(), pairs("kind", string(session.Ping)))
	}
	if status.CoverBandwidth > 0 {
		p.add(peerCoverage, status.CoverBandwidth.Seconds(), pairs("kind", string(session.Bandwidth)))
	}
}

// showPeerCertificate shows how long sessions are possible, nothing where they have no TLS.
func showPeerCertificate(p *page, c *peer.Certificate) {
	if c == nil {
		return
	}
	if !c.Begins.IsZero() {
		p.add(peerCertificateStart, float64(c.Begins.Unix()), nil)
	}
	if !c.Ends.IsZero() {
		p.add(peerCertificateExpiry, float64(c.Ends.Unix()), nil)
	}
	p.addBool(peerCertificateFiles, c.Text == "", nil)
}

// peerRoles are all roles.
var peerRoles = []peer.Role{peer.Initiator, peer.Responder}

// showPeerCounts shows the counters. They have every member from the start.
func showPeerCounts(p *page, status *peer.Status) {
	for _, role := range peerRoles {
		p.add(peerBytes, float64(status.Bytes[role]), pairs("role", string(role)))
		for _, kind := range snapshot.PeerKinds {
			for _, class := range peer.Classes {
				n := status.Sessions[peer.SessionKind{Role: role, Kind: kind, Class: class}]
				p.add(peerSessions, float64(max(n, 0)), pairs("role", string(role), "kind", string(kind), "class", string(class)))
			}
		}
	}
	p.add(peerHour, float64(status.Spent), nil)
	if status.Budget > 0 {
		p.add(peerHourLimit, float64(status.Budget), nil)
	}
}

// showPeersByState counts the peers.
func showPeersByState(p *page, s *snapshot.Snapshot, states []snapshot.PeerState) {
	count := map[snapshot.PeerState]int{}
	for _, state := range states {
		count[state]++
	}
	for _, state := range snapshot.PeerStates {
		p.add(peerPeers, float64(count[state]), pairs("state", string(state)))
	}
	d := s.PeerDisagreements()
	p.add(peerDisagreeing, float64(d.List), pairs("what", "list"))
	p.add(peerDisagreeing, float64(d.Options), pairs("what", "options"))
	p.add(peerDisagreeing, float64(d.Clock), pairs("what", "clock"))
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

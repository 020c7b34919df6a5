package collector

import (
	"strconv"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
)

// Families of this node's rails: what its last measurements with all peers add up to.
var (
	peerRailPeers = gauge("gdr_peer_rail_peers",
		"Peers by what the last measurement with them said of this node's port, by kind, memory (host, gpu: GPUDirect RDMA, staged: through copies in host memory) and state: good, bad. "+
			"rail is the port's name in the fabric, empty if it has none. No series of a memory that was never measured.")
	peerRailLeast = gauge("gdr_peer_rail_least_bytes_per_second",
		"The lowest rate of RDMA writes between this node's port and a peer, by memory and direction: write (this node writes), reverse (the peer writes), both (at once, their sum). Absent where none was measured.")
	peerRailMedian = gauge("gdr_peer_rail_median_bytes_per_second",
		"The median of the rates of which gdr_peer_rail_least_bytes_per_second is the lowest.")
	peerRailPingMedian = gauge("gdr_peer_rail_ping_median_seconds",
		"The median over all peers of the median time of an 8-byte RDMA write from this node's port, post to completion. Absent without pings.")
	peerRailPingWorst = gauge("gdr_peer_rail_ping_worst_seconds",
		"The highest of the times of which gdr_peer_rail_ping_median_seconds is the median.")
)

// peerDirections are all directions.
var peerDirections = []session.Direction{session.Write, session.Reverse, session.Both}

// showPeerRails shows this node's rails, of each port one.
func showPeerRails(p *page, status *peer.Status) {
	shown := map[session.Port]bool{}
	for i := range status.Rails {
		if rail := &status.Rails[i]; !shown[rail.Port] {
			shown[rail.Port] = true
			showPeerRail(p, rail)
		}
	}
}

func showPeerRail(p *page, rail *peer.OwnRail) {
	at := pairs("device", rail.Device, "port", strconv.Itoa(rail.Port.Port))
	showPeerTally(p, rail, session.Ping, session.Host, &rail.Pings)
	if rail.Pings.Median > 0 {
		p.add(peerRailPingMedian, rail.Pings.Median.Seconds(), at)
	}
	if rail.Pings.Worst > 0 {
		p.add(peerRailPingWorst, rail.Pings.Worst.Seconds(), at)
	}
	for _, memory := range snapshot.PeerMemories {
		tally := rail.Bandwidth[memory]
		if tally == nil {
			continue
		}
		showPeerTally(p, rail, session.Bandwidth, memory, tally)
		for _, direction := range peerDirections {
			rates, known := tally.Rates[direction]
			if !known || rates.Count < 1 || !finite(rates.Least) || !finite(rates.Median) {
				continue
			}
			by := at.with("memory", string(memory)).with("direction", string(direction))
			p.add(peerRailLeast, rates.Least, by)
			p.add(peerRailMedian, rates.Median, by)
		}
	}
}

// showPeerTally counts the peers of a rail.
func showPeerTally(p *page, rail *peer.OwnRail, kind session.Kind, memory session.Memory, tally *peer.Tally) {
	at := pairs("device", rail.Device, "port", strconv.Itoa(rail.Port.Port), "rail", rail.Rail, "kind", string(kind), "memory", string(memory))
	p.add(peerRailPeers, float64(tally.Good), at.with("state", "good"))
	p.add(peerRailPeers, float64(tally.Bad), at.with("state", "bad"))
}

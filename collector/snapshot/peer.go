package snapshot

import "gdr_exporter/rdma/peer"

// CollectorPeer is the collector of the measurements between nodes.
const CollectorPeer = "peer"

// Peer adds what is known of the paths to other nodes. status must return at once, and
// may return nil: this process measures none.
func (b *Builder) Peer(status func() *peer.Status) *Builder {
	b.taker.peer = status
	return b
}

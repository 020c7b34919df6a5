package collector

import (
	"cmp"
	"strconv"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
)

// Notes on the families of single peers.
const (
	peerShown = " Of peers that are bad, those that are measured in the current round, and those that were tried within 10 minutes; see gdr_peer_left_out_series."
	peerNear  = " Of peers that are bad and those that are measured in the current round; see gdr_peer_left_out_series."
)

// Families of single peers.
var (
	peerLeftOut = gauge("gdr_peer_left_out_series",
		"Series of single peers beyond the 200 that are shown. What is bad comes first; /api/v1/peers has all.")
	peerGood = gauge("gdr_peer_good",
		"1 if the peer's session listener answers and no path to it is bad, 0 if not; from is the node that says so. Absent if nothing is known."+peerShown)
	peerReachable = gauge("gdr_peer_reachable",
		"1 if the peer's session listener answered when it was called last, whatever it said, 0 if not."+peerShown)
	peerRTT = gauge("gdr_peer_rtt_seconds",
		"How long the peer's session listener took to answer, over TCP, less its own time. Of peers that are measured in the current round.")
	peerPathGood = gauge("gdr_peer_path_good",
		"1 if the last measurement of a kind between this node's port and the peer's was well, 0 if not: it failed, was slow, or data arrived wrong."+peerShown)
	peerAddress = gauge("gdr_peer_address_reachable",
		"1 if the IP address of the peer's port (IPoIB, or its RoCE interface) answers from that of this node's port, 0 if not. Of addresses that do not answer, peers that are bad and those that are measured in the current round; see gdr_peer_left_out_series.")
	peerRate = gauge("gdr_peer_bytes_per_second",
		"Rate of RDMA writes between this node's port and the peer's, by memory (host, gpu: GPUDirect RDMA, staged: through copies in host memory) and direction: write (this node writes), reverse (the peer writes), "+
			"both (at once, their sum). No series of what arrived wrong."+peerNear)
	peerFailure = gauge("gdr_peer_failure_info",
		"Why a peer is bad, value 1: stage in which it failed, reason, errno (of the system or libibverbs). Reason is slow or corrupt where nothing failed; device and port are empty if it was the call of its session listener. Of bad peers.")
)

// peerFamilyLabels are the labels of each family, beside from and peer.
var peerFamilyLabels = map[*family][]string{
	peerGood: {}, peerReachable: {}, peerRTT: {},
	peerPathGood: {"device", "port", "peer_device", "rail", "kind"},
	peerAddress:  {"device", "port"},
	peerRate:     {"device", "port", "peer_device", "memory", "direction"},
	peerFailure:  {"device", "port", "kind", "stage", "reason", "errno"},
}

// maxPeerSeries bounds the series of single peers: what a node shows must not grow
// with the number of nodes.
const maxPeerSeries = 200

// peerSeries is a series of a peer, by what is in its labels: two that are equal are
// the same series.
type peerSeries struct {
	family                                                                              *family
	peer, device, port, peerDevice, rail, kind, memory, direction, stage, reason, errno string
}

// value is the value of a label.
func (s *peerSeries) value(label string) string {
	switch label {
	case "device":
		return s.device
	case "port":
		return s.port
	case "peer_device":
		return s.peerDevice
	case "rail":
		return s.rail
	case "kind":
		return s.kind
	case "memory":
		return s.memory
	case "direction":
		return s.direction
	case "stage":
		return s.stage
	case "reason":
		return s.reason
	default:
		return s.errno
	}
}

// peerWriter puts series of peers on a page while there is room.
type peerWriter struct {
	page       *page
	from       string
	room, left int
	shown      map[string]bool // series on the page, by their labels
}

// add adds a series, unless it is there: what came first stands.
func (w *peerWriter) add(value float64, s peerSeries) {
	switch {
	case !finite(value):
		return
	case w.room == 0: // whether it is there already nobody asks: this is for every peer of a large cluster
		w.left++
		return
	}
	texts := append(make([]string, 0, 2*(2+6)), "from", w.from, "peer", s.peer)
	key := s.family.name + "\x00" + printable(s.peer)
	for _, label := range peerFamilyLabels[s.family] {
		text := s.value(label)
		texts = append(texts, label, text)
		key += "\x00" + printable(text)
	}
	if w.shown[key] {
		return
	}
	w.shown[key] = true
	w.room--
	w.page.add(s.family, value, pairs(texts...))
}

func (w *peerWriter) addBool(value bool, s peerSeries) {
	if value {
		w.add(1, s)
	} else {
		w.add(0, s)
	}
}

// shownPeer is a peer of which series are shown.
type shownPeer struct {
	*peer.Peer
	name  string // as the label has it, unlike any other's
	state snapshot.PeerState
}

// showPeers shows series of single peers, those first that somebody would miss most:
// that peers are bad and why, that the others are good, what else is known of the bad
// ones, rates, and all else.
func showPeers(p *page, s *snapshot.Snapshot, states []snapshot.PeerState) {
	w := &peerWriter{page: p, from: s.Peer.Name, room: maxPeerSeries, shown: map[string]bool{}}
	bad, others := peersToShow(s, states)
	for i := range bad {
		w.add(0, peerSeries{family: peerGood, peer: bad[i].name})
	}
	for i := range bad {
		w.failures(&bad[i], 0, 1)
	}
	for i := range others {
		if others[i].state == snapshot.PeerGood {
			w.add(1, peerSeries{family: peerGood, peer: others[i].name})
		}
	}
	for i := range bad {
		w.reached(&bad[i])
		w.failures(&bad[i], 1, -1)
		w.paths(&bad[i])
		w.rates(&bad[i])
		w.addresses(&bad[i], true)
	}
	for _, show := range []func(*shownPeer){w.reached, w.rates, func(peer *shownPeer) { w.paths(peer); w.addresses(peer, true) }} {
		for i := range others {
			if others[i].Neighbour {
				show(&others[i])
			}
		}
	}
	for i := range others {
		if !others[i].Neighbour {
			w.reached(&others[i])
			w.paths(&others[i])
			w.addresses(&others[i], false)
		}
	}
	p.add(peerLeftOut, float64(w.left), nil)
}

// peersToShow are the peers of which something is shown. They begin behind this node's
// own place in the list: nodes that cannot show all show others than their neighbours
// do, and together they show all.
func peersToShow(s *snapshot.Snapshot, states []snapshot.PeerState) (bad, others []shownPeer) {
	peers := s.Peer.Peers
	names := peerNames(peers)
	first := 0
	for first < len(peers) && peers[first].Target <= s.Peer.Self {
		first++
	}
	for n := range peers {
		i := (first + n) % len(peers)
		shown := shownPeer{&peers[i], names[i], states[i]}
		switch {
		case shown.name == "":
		case shown.state == snapshot.PeerBad:
			bad = append(bad, shown)
		case shown.Neighbour || s.PeerRecently(shown.Tried):
			others = append(others, shown)
		}
	}
	return bad, others
}

// peerNames are what peers are called in labels: by their names, or by their addresses
// in the list where several are called the same; "" for one that is listed twice.
func peerNames(peers []peer.Peer) []string {
	count := make(map[string]int, len(peers))
	for i := range peers {
		count[printable(peers[i].Name)]++
	}
	names, taken := make([]string, len(peers)), make(map[string]bool, len(peers))
	for i := range peers {
		name := peers[i].Name
		if shown := printable(name); shown == "" || count[shown] > 1 {
			name = peers[i].Target
		}
		if shown := printable(name); !taken[shown] {
			taken[shown], names[i] = true, name
		}
	}
	return names
}

// reached shows how the peer's session listener answers.
func (w *peerWriter) reached(p *shownPeer) {
	if answers, known := snapshot.PeerAnswers(p.Peer); known {
		w.addBool(answers, peerSeries{family: peerReachable, peer: p.name})
	}
	if p.Neighbour && p.Contact != nil && p.Contact.RTT > 0 {
		w.add(p.Contact.RTT.Seconds(), peerSeries{family: peerRTT, peer: p.name})
	}
}

// at is a series of a path.
func (p *shownPeer) at(f *family, path *peer.Path) peerSeries {
	return peerSeries{family: f, peer: p.name, device: path.Own.Device, port: strconv.Itoa(path.Own.Port)}
}

// paths shows how the paths are, the bad ones first: they stand where labels are the
// same.
func (w *peerWriter) paths(p *shownPeer) {
	for _, wanted := range []bool{false, true} {
		for i := range p.Paths {
			path := &p.Paths[i]
			for _, kind := range snapshot.PeerKinds {
				good, known := snapshot.PeerPathGood(path, kind)
				if !known || good != wanted {
					continue
				}
				s := p.at(peerPathGood, path)
				s.peerDevice, s.rail, s.kind = path.Peer.Device, path.Rail, string(kind)
				w.addBool(good, s)
			}
		}
	}
}

// addresses shows whether addresses answer, such that do not first; all: the others too.
func (w *peerWriter) addresses(p *shownPeer, all bool) {
	for _, answering := range []bool{false, true} {
		for i := range p.Paths {
			if path := &p.Paths[i]; path.Reached != nil && path.Reached.OK == answering && (all || !answering) {
				w.addBool(answering, p.at(peerAddress, path))
			}
		}
	}
}

// rates shows how fast the paths are.
func (w *peerWriter) rates(p *shownPeer) {
	for i := range p.Paths {
		path := &p.Paths[i]
		for _, m := range snapshot.PeerMeasurements(path) {
			if m.Kind != session.Bandwidth {
				continue
			}
			for _, direction := range peerDirections {
				rate, known := snapshot.PeerRate(m, direction)
				if !known {
					continue
				}
				s := p.at(peerRate, path)
				s.peerDevice, s.memory, s.direction = path.Peer.Device, string(m.Memory), string(direction)
				w.add(rate, s)
			}
		}
	}
}

// failures shows why a peer is bad: of the reasons those from one on, most of them at
// most, all if that is below 0. The listener comes first.
func (w *peerWriter) failures(p *shownPeer, from, most int) {
	n := 0
	show := func(s peerSeries, failure *session.Failure, class peer.Class) {
		if n++; n <= from || most >= 0 && n > from+most {
			return
		}
		s.reason = string(class)
		if failure != nil {
			s.stage, s.reason, s.errno = failure.Stage, cmp.Or(string(failure.Reason), s.reason), failure.Errno
		}
		w.add(1, s)
	}
	if p.Listener.Bad() {
		show(peerSeries{family: peerFailure, peer: p.name}, p.Failure, p.Listener)
	}
	for i := range p.Paths {
		path := &p.Paths[i]
		for _, m := range snapshot.PeerMeasurements(path) {
			if m.Class.Bad() {
				s := p.at(peerFailure, path)
				s.kind = string(m.Kind)
				show(s, snapshot.PeerFailure(m), m.Class)
			}
		}
	}
}

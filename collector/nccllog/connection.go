package nccllog

import "strings"

// Rail is the connections of a GPU through a NIC in a direction.
type Rail struct {
	Host string `json:"host"`
	GPU  string `json:"gpu"` // as NCCL numbers it: its bus id up to about 2.16, its NVML index since
	// Network is the name of NCCL's transport or plugin: IB, Socket, IBext_v8.
	Network string `json:"network"`
	Device  string `json:"device"` // the NIC's name, or its number where the log has no name
	// Direction is send (the NIC reads the GPU), receive (it writes it), or "".
	Direction string `json:"direction"`
	Direct    uint64 `json:"direct"`
	Staged    uint64 `json:"staged"`
	PCI       uint64 `json:"direct_pci"` // of the direct ones: /GDRDMA(PCI), on Grace
	Socket    uint64 `json:"socket"`     // TCP: there is no GPUDirect RDMA to speak of
	PXN       uint64 `json:"pxn"`
}

type railKey struct{ host, gpu, network, device, direction string }

// pairKey is a rank's connections to another.
type pairKey struct {
	host string
	peer rankKey
	send bool
}

type pairCounts struct{ direct, staged uint64 }

// Pair is the connections from a node to another. A connection has two ends, each
// with a line of its own: the sender's and the receiver's.
type Pair struct {
	From          string `json:"from"` // "?" where the log does not say
	To            string `json:"to"`
	SendDirect    uint64 `json:"send_direct"`
	SendStaged    uint64 `json:"send_staged"`
	ReceiveDirect uint64 `json:"receive_direct"`
	ReceiveStaged uint64 `json:"receive_staged"`
}

// connection reads a line about a connection, which has had these forms:
//
//	Ring 00 : 3 -> 10 [send] via NET/IB/0/GDRDMA
//	Channel 00 : 1[101d0] -> 8[101c0] [send] via NET/AWS Libfabric/0/GDRDMA
//	Channel 02/0 : 3[3] -> 11[3] [send] via NET/IB/3(2)/GDRDMA(PCI)/Shared
//	Channel 00/0 : 9[1] -> 0[0] [receive] via NET/IB/0/GDRDMA/flush=None
//	CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA
//	Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
func (p *parser) connection(e *entry) bool {
	left, right, found := strings.Cut(e.text, " via ")
	if !found || !strings.Contains(left, " : ") && !strings.Contains(left, "->") {
		return false
	}
	kind, rest, _ := strings.Cut(right, "/")
	kind = strings.TrimSpace(kind)
	if kind != "NET" && kind != "COLLNET" {
		p.localConnection(kind)
		return true
	}
	way := parseWay(rest, e.cut)
	if !way.clear {
		p.unclear++
		return true
	}
	from, to := ends(left)
	own := from
	direction := ""
	switch {
	case strings.Contains(left, "[send]"):
		direction = "send"
	case strings.Contains(left, "[receive]"):
		direction, own = "receive", to
	}
	network := way.network
	if kind == "COLLNET" {
		network, own = "CollNet "+network, from
	}
	rail := railKey{e.host, clean(own.gpu), clean(network), p.deviceName(e, way.device), direction}
	row := p.rails.at(rail)
	row.Host, row.GPU, row.Network, row.Device, row.Direction = rail.host, rail.gpu, rail.network, rail.device, rail.direction
	row.count(&way)
	if kind == "NET" && !isSocket(network) && direction != "" && from.known && to.known {
		p.pair(e, from.rank, to.rank, direction == "send", way.direct)
	}
	return true
}

func (r *Rail) count(w *way) {
	switch {
	case w.direct:
		r.Direct++
	case isSocket(w.network):
		r.Socket++
	default:
		r.Staged++
	}
	if w.pci {
		r.PCI++
	}
	if w.pxn {
		r.PXN++
	}
}

// isSocket says whether a transport is TCP.
func isSocket(network string) bool { return strings.Contains(network, "Socket") }

// localConnection counts a connection within a node by its kind.
func (p *parser) localConnection(kind string) {
	switch {
	case strings.HasPrefix(kind, "direct shared memory"):
		kind = "SHM"
	case kind == "" || len(kind) > 12 || strings.ContainsRune(kind, ' '):
		kind = "other"
	}
	p.local.add(kind, "")
}

// way is what follows "NET/".
type way struct {
	network          string
	device           int
	direct, pci, pxn bool
	clear            bool // the line says which it is
}

// parseWay reads "IB/3(2)/GDRDMA(PCI)/Shared". It is not clear where the text could
// be the beginning of something longer that reads differently.
func parseWay(text string, cut bool) way {
	var w way
	name, rest, found := strings.Cut(text, "/")
	device, ok := number(rest)
	if !found || !ok || name == "" {
		return w
	}
	w.network, w.device = name, device
	rest = rest[digits(rest):]
	if proxy, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ")"); strings.HasPrefix(rest, "(") && closed && digits(proxy) == len(proxy) && proxy != "" {
		w.pxn, rest = true, after
	}
	const mark = "/GDRDMA"
	if strings.HasPrefix(rest, mark) {
		w.direct, w.clear = true, true
		w.pci = strings.HasPrefix(rest, "/GDRDMA(PCI)")
		return w
	}
	// Whole, or followed by something else than an end of the word that is missing.
	cutOff := len(rest) < len(mark) && rest == mark[:len(rest)] && (cut || rest != "")
	w.clear = !cutOff && (rest == "" || rest[0] == '/' || rest[0] == ' ')
	return w
}

// end is one end of a connection.
type end struct {
	rank  int
	gpu   string
	known bool
}

// ends reads "Channel 00/0 : 3[3] -> 11[3] [send]".
func ends(text string) (from, to end) {
	if _, after, found := strings.Cut(text, " : "); found {
		text = after
	}
	left, right, arrow := strings.Cut(text, "->")
	from = parseEnd(left)
	if arrow {
		to = parseEnd(right)
	}
	return from, to
}

func parseEnd(text string) end {
	text = strings.TrimSpace(text)
	rank, ok := number(text)
	if !ok {
		return end{}
	}
	e := end{rank: rank, known: true}
	if rest := text[digits(text):]; strings.HasPrefix(rest, "[") {
		if gpu, _, closed := strings.Cut(rest[1:], "]"); closed && len(gpu) < 20 {
			e.gpu = gpu
		}
	}
	return e
}

// pair notes who is connected with whom, and where the rank of this line runs.
func (p *parser) pair(e *entry, from, to int, send, direct bool) {
	id := p.commOf(e).id
	own, peer := rankKey{id, to}, rankKey{id, from}
	if send {
		own, peer = peer, own
	}
	p.place(own, e.host)
	row := p.pairs.at(pairKey{e.host, peer, send})
	if direct {
		row.direct++
	} else {
		row.staged++
	}
}

func (p *parser) place(key rankKey, host string) {
	if host == "" {
		return
	}
	place := p.ranks.at(key)
	if place.host == "" {
		place.host = host
	}
	place.several = place.several || place.host != host
}

// nodePairs are the connections by node, once all ranks' places are known.
func (p *parser) nodePairs() *bounded[[2]string, Pair] {
	pairs := newBounded[[2]string, Pair](mostPairs)
	for key, counts := range p.pairs.rows {
		own, peer := key.host, "?"
		if place := p.ranks.known(key.peer); place != nil && !place.several {
			peer = place.host
		}
		if own == "" {
			own = "?"
		}
		if key.send {
			row := pairs.at([2]string{own, peer})
			row.From, row.To = own, peer
			row.SendDirect += counts.direct
			row.SendStaged += counts.staged
			continue
		}
		row := pairs.at([2]string{peer, own})
		row.From, row.To = peer, own
		row.ReceiveDirect += counts.direct
		row.ReceiveStaged += counts.staged
	}
	return pairs
}

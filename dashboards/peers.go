package dashboards

// notPeers is shown where nothing is measured between nodes.
const notPeers = "--peer.enabled is off"

var (
	peerStates = mapped(state{"1", "good", "green"}, state{"0", "bad", "red"})
	reached    = mapped(state{"1", "yes", "green"}, state{"0", "no", "red"})
	fromColumn = column{label: "from", title: "From"}
	peerColumn = column{label: "peer", title: "To"}
	// As --peer.limit: of the lesser port's rate.
	peerLimits = from("red", level(0.7, "green"))
)

// ofPeer gives a peer's value the label node of its target, or its name in the list where
// that is not known.
func ofPeer(expr string) string {
	return `max by (cluster, node, peer) ((` + expr + `) * on (cluster, peer) group_left (node) peer:gdr_peer_node:max{@c}
		or on (cluster, peer) label_replace(` + expr + `, "node", "$1", "peer", "(.*)"))`
}

// fleetPeers is what the nodes say of each other.
func fleetPeers() []panel {
	count := func(title, description, expr string, w uint32) panel {
		return &number{spec: spec{title: title, description: description, w: w, h: 4, unit: "short", decimals: whole, thresholds: zeroWarn, noValue: notPeers, queries: []query{{expr: expr}}}}
	}
	return append([]panel{
		count("Nodes bad from all sides", "GDRPeerNodeBad: at least two nodes, and four fifths of those that know something of it, find it bad; or it fails to reach four fifths of its peers, though others find them well.", `sum(peer:gdr_peer_isolated:max{@c})`, 4),
		count("Bad pairs", "Pairs of nodes as one of them sees it: its peer's listener does not answer, or a path failed, is slow or corrupts. GDRPeerPathBad tells of those whose ends are well with others.", `count(pair:gdr_peer_bad:max{@c}) or sum(0 * peer:gdr_peer_views:count{@c})`, 4),
		count("Rails bad on most nodes", "Rails of which more than half of the paths are bad on more than half of the nodes: a switch, or its configuration (GDRPeerRailBad).", `count(cluster:gdr_peer_rail_bad:ratio{@c} > 0.5) or sum(0 * cluster:gdr_peer_rail_bad:ratio{@c})`, 4),
		&number{spec: spec{title: "Peers that nothing is known of", w: 4, h: 4, unit: "percentunit", decimals: digits(1), thresholds: from("text"), noValue: notPeers,
			description: "Share of all pairs, each seen from both ends, of which nothing is known: not met yet, or nothing came of it. A large cluster takes hours to meet.",
			queries:     []query{{expr: `sum(cluster:gdr_peer_peers:sum{@c,state="unknown"}) / sum(cluster:gdr_peer_peers:sum{@c})`}}}, plain: true},
		&grid{spec: spec{title: "Lists and options in use", w: 8, h: 4, noValue: notPeers,
			description: "Versions of the target list and of the schedule's options, the rarest first. Nodes that meet must have the same: GDRPeerListsDiffer tells after an hour.",
			queries:     []query{{expr: `cluster:gdr_peer_list_info:count{@c}`}}},
			sort: "Nodes", columns: []column{{label: "version", title: "List"}, {label: "options", title: "Options"}, {query: 0, title: "Nodes", decimals: whole, width: 70}, clusterColumn}},
	}, fleetPeersWorst()...)
}

func fleetPeersWorst() []panel {
	worst := `topk(30, peer:gdr_peer_bad_views:count{@c} > 0)`
	return []panel{
		&grid{spec: spec{title: "Nodes that others find bad", w: 8, h: 9, noValue: "None",
			description: "How many nodes find the node bad, of those that know something of it; the 30 with the most.",
			queries:     []query{{expr: ofPeer(worst)}, {expr: ofPeer(`peer:gdr_peer_views:count{@c} and on (cluster, peer) ` + worst)}}},
			sort: "Bad for", down: true, columns: []column{
				nodeColumn, {label: "peer", title: "In the list"}, {query: 0, title: "Bad for", decimals: whole, width: 75, coloured: zeroWarn}, {query: 1, title: "Of", decimals: whole, width: 55}, clusterColumn,
			}},
		&grid{spec: spec{title: "Bad pairs", w: 8, h: 9, noValue: "None",
			description: "As the node at the left sees it, with the number of bad paths; 0: the peer's listener does not answer, or lets nobody in. The 100 with the most.",
			queries:     []query{{expr: `cluster:gdr_peer_bad_paths:topk100{@c}`}}},
			sort: "Bad paths", down: true, columns: []column{nodeColumn, fromColumn, peerColumn, {query: 0, title: "Bad paths", decimals: whole, width: 90}, clusterColumn}},
		&grid{spec: spec{title: "Rails", w: 8, h: 9, noValue: notPeers,
			description: "Share of the nodes on which more than half of the rail's paths are bad. A rail is its name in the fabric, else the device.",
			queries:     []query{{expr: `cluster:gdr_peer_rail_bad:ratio{@c}`}}},
			sort: "Nodes", down: true, columns: []column{{label: "rail", title: "Rail"}, {query: 0, title: "Nodes", unit: "percentunit", decimals: whole, width: 80, coloured: from("green", level(0.2, "orange"), level(0.5, "red"))}, clusterColumn}},
		&grid{spec: spec{title: "Slowest rails", w: 8, h: 8, noValue: "Nothing measured",
			description: "The lowest rate of a port with any peer, one direction at a time, of host and of GPU memory; 20 of each. Compare rates of ports of one kind.",
			queries:     []query{{expr: `8 * cluster:gdr_peer_rail_least_bytes_per_second:bottomk20{@c}`}}},
			sort: "Rate", columns: []column{nodeColumn, deviceColumn, {label: "port", title: "Port", width: 55}, {label: "memory", title: "Memory", width: 80}, {query: 0, title: "Rate", unit: "bps", decimals: whole, width: 85}, clusterColumn}},
		&graph{few: true, spec: spec{title: "Pairs by state", w: 8, h: 8, unit: "short", noValue: notPeers,
			description: "Peers of all nodes, so that each pair counts from both ends.",
			queries: []query{
				{expr: `sum(cluster:gdr_peer_peers:sum{@c,state="bad"})`, legend: "bad", colour: "red"}, {expr: `sum(cluster:gdr_peer_peers:sum{@c,state="good"})`, legend: "good", colour: "green"},
				{expr: `sum(cluster:gdr_peer_peers:sum{@c,state="unknown"})`, legend: "not known", colour: "blue"},
			}}, stacked: true},
		sessionsGraph(`60 * sum by (class) (cluster:gdr_peer_sessions:rate10m{@c})`),
	}
}

func sessionsGraph(expr string) panel {
	return &graph{few: true, spec: spec{title: "Sessions by class", w: 8, h: 8, unit: "opm", noValue: notPeers,
		description: "By minute. Refused: busy, locked, kept back by load, or no bytes left in this hour; says nothing of the path. Denied: certificate, list or options. Unreachable: the session listener does not answer.",
		queries:     []query{{expr: expr, legend: "{{class}}"}}}}
}

// nodePeers is what the node says of its peers.
func nodePeers() []panel {
	count := func(title, description, state string, bad bool) panel {
		steps := plain
		if bad {
			steps = zeroWarn
		}
		return &number{plain: !bad, spec: spec{title: title, description: description, w: 3, h: 4, unit: "short", decimals: whole, thresholds: steps, noValue: notPeers,
			queries: []query{{expr: `max(gdr_peer_peers{@node,state="` + state + `"})`}}}}
	}
	figure := func(title, description, unit, expr string) panel {
		decimals := digits(1)
		if unit == "short" {
			decimals = whole
		}
		return &number{plain: true, spec: spec{title: title, description: description, w: 3, h: 4, unit: unit, decimals: decimals, thresholds: plain, noValue: "none", queries: []query{{expr: expr}}}}
	}
	return append(append([]panel{
		count("Peers bad", "Peers whose session listener does not answer or lets nobody in, or with a path that failed, is slow or corrupts, as this node saw it last.", "bad", true),
		count("Peers good", "Peers whose listener answers, and of whose paths none is bad.", "good", false),
		count("Peers not known", "Peers that were not tried yet, or with which nothing came of it.", "unknown", false),
		figure("Nodes in the list", "This one included.", "short", `max(gdr_peer_targets{@node})`),
		figure("All pinged within", "How long it takes until each pair of nodes has had its turn for a ping.", "s", `max(gdr_peer_coverage_seconds{@node,kind="ping"})`),
		figure("All measured within", "How long it takes until each pair of nodes has had its turn for a measurement of bandwidth.", "s", `max(gdr_peer_coverage_seconds{@node,kind="bandwidth"})`),
		figure("Bytes of the last hour", "What sessions of both roles moved, or what is set aside for them.", "decbytes", `max(gdr_peer_hour_bytes{@node})`),
		&number{spec: spec{title: "Of the hour's limit", w: 3, h: 4, unit: "percentunit", decimals: whole, thresholds: from("green", level(0.9, "orange")), noValue: "no limit",
			description: "Near 100 % measurements are refused (--peer.bytes-per-hour).", queries: []query{{expr: `max(gdr_peer_hour_bytes{@node}) / max(gdr_peer_hour_limit_bytes{@node})`}}}},
	}, nodePeerTables()...), nodePeerRails()...)
}

func nodePeerTables() []panel {
	rates := &grid{spec: spec{title: "Rates to peers", w: 24, h: 8, noValue: "None",
		description: "Of peers that are measured in this round, and bad ones. Write: this node writes; reverse: the peer does; both: at once, their sum. gpu: GPU to GPU, with GPUDirect RDMA. staged: through copies in host memory, the control. No bus bandwidth: that of a collective over two nodes is by formula.",
		queries:     []query{{expr: `min by (peer, device, port, peer_device) (gdr_peer_path_good{@device,kind="bandwidth"})`}}},
		sort: "State", columns: []column{{label: "peer", title: "Peer"}, deviceColumn, {label: "port", title: "Port", width: 55}, {label: "peer_device", title: "Its NIC", width: 75}, {query: 0, title: "State", width: 75, mappings: peerStates}}}
	for _, of := range []struct{ memory, direction string }{{"host", "write"}, {"host", "reverse"}, {"host", "both"}, {"gpu", "write"}, {"gpu", "reverse"}, {"staged", "write"}, {"staged", "reverse"}} {
		rates.columns = append(rates.columns, column{query: len(rates.queries), title: of.memory + " " + of.direction, unit: "bps", decimals: whole})
		rates.queries = append(rates.queries, query{expr: `8 * max by (peer, device, port, peer_device) (gdr_peer_bytes_per_second{@device,memory="` + of.memory + `",direction="` + of.direction + `"})`})
	}
	return []panel{
		&grid{spec: spec{title: "Peers, as this node sees them", w: 8, h: 10, noValue: "None",
			description: "Bad peers, those that are measured in this round and those tried within ten minutes; 200 series at most, /api/v1/peers has all. Round trip: of the session listener, over TCP. Addresses: IP addresses of ports (IPoIB, RoCE) that do not answer.",
			queries: []query{
				{expr: `min by (peer) (gdr_peer_good{@node})`}, {expr: `min by (peer) (gdr_peer_reachable{@node})`}, {expr: `max by (peer) (gdr_peer_rtt_seconds{@node})`},
				{expr: `count by (peer) (gdr_peer_path_good{@node} == 0) or 0 * count by (peer) (gdr_peer_path_good{@node})`},
				{expr: `count by (peer) (gdr_peer_address_reachable{@node} == 0) or 0 * count by (peer) (gdr_peer_address_reachable{@node})`},
			}},
			sort: "State", columns: []column{
				{label: "peer", title: "Peer"}, {query: 0, title: "State", width: 70, mappings: peerStates}, {query: 1, title: "Answers", width: 75, mappings: reached},
				{query: 2, title: "Round trip", unit: "s", decimals: digits(1), width: 90}, {query: 3, title: "Bad paths", decimals: whole, width: 85}, {query: 4, title: "Addresses", decimals: whole, width: 85},
			}},
		&matrix{spec: spec{title: "Peer x NIC", w: 8, h: 10, mappings: peerStates, thresholds: from("text"), noValue: notPeers,
			description: "The paths from this node's NICs to each peer, 40 peers at most, the bad ones rather than others. A bad column is this node's port or the rail, a bad row the peer.",
			queries: []query{{expr: `min by (peer, device) (gdr_peer_path_good{@device})
				and on (peer) bottomk(40, min by (peer) (gdr_peer_path_good{@node}))`}}},
			rows: "peer", columns: "device", head: "Peer", first: 120},
		&grid{spec: spec{title: "Why peers are bad", w: 8, h: 10, noValue: "None",
			description: "Where it failed, as this side or the other found it. Without NIC: the call of the session listener. slow and corrupt: carried through, and below a limit or with wrong data.",
			queries:     []query{{expr: `max by (peer, device, port, kind, stage, reason, errno) (gdr_peer_failure_info{@node})`}}},
			sort: "Peer", columns: []column{
				{label: "peer", title: "Peer"}, {label: "device", title: "NIC", width: 70}, {label: "port", title: "Port", width: 50}, {label: "kind", title: "Kind", width: 85},
				{label: "stage", title: "Stage", width: 75}, {label: "reason", title: "Reason", width: 95}, {label: "errno", title: "Error", width: 105},
			}},
		rates,
	}
}

func nodePeerRails() []panel {
	peers := func(kind, memory, state string) query {
		return query{expr: `max by (device, port, rail) (gdr_peer_rail_peers{@device,kind="` + kind + `",memory="` + memory + `",state="` + state + `"})`}
	}
	number := func(n int, title string, bad bool) column {
		c := column{query: n, title: title, decimals: whole, width: 80}
		if bad {
			c.coloured = zeroWarn
		}
		return c
	}
	return []panel{
		&grid{spec: spec{title: "Rails", w: 12, h: 8, noValue: notPeers,
			description: "Own ports, with how many peers their last measurement was good or bad, and the time of an 8-byte write over all peers.",
			queries: []query{
				peers("ping", "host", "good"), peers("ping", "host", "bad"), peers("bandwidth", "host", "good"), peers("bandwidth", "host", "bad"), peers("bandwidth", "gpu", "good"), peers("bandwidth", "gpu", "bad"),
				{expr: `max by (device, port) (gdr_peer_rail_ping_median_seconds{@device})`},
			}},
			sort: "NIC", columns: []column{
				deviceColumn, {label: "port", title: "Port", width: 55}, {label: "rail", title: "Rail"},
				number(0, "Ping", false), number(1, "Ping bad", true), number(2, "Host", false), number(3, "Host bad", true), number(4, "GPU", false), number(5, "GPU bad", true),
				{query: 6, title: "Median", unit: "s", decimals: digits(1), width: 80},
			}},
		&graph{spec: spec{title: "Rates of rails, the lowest and the median", w: 12, h: 8, unit: "bps", noValue: "Nothing measured",
			description: "Of host memory (dashed: median) and GPU memory, one direction at a time, the slower one, over all peers of the port. The lowest far below the median: one peer or path; both low: this port.",
			queries: []query{
				{expr: `8 * min by (device, memory) (gdr_peer_rail_least_bytes_per_second{@device,memory=~"host|gpu",direction!="both"})`, legend: "{{device}} {{memory}} lowest"},
				{expr: `8 * min by (device, memory) (gdr_peer_rail_median_bytes_per_second{@device,memory=~"host|gpu",direction!="both"})`, legend: "{{device}} {{memory}} median", dashed: true},
			}}, minimum: digits(0)},
		&graph{few: true, spec: spec{title: "Pings", w: 8, h: 8, unit: "s", noValue: "No pings",
			description: "Time of an 8-byte RDMA write, post to completion: the median of each peer, of these the median and the worst.",
			queries: []query{
				{expr: `max by (device) (gdr_peer_rail_ping_worst_seconds{@device})`, legend: "{{device}} worst"}, {expr: `max by (device) (gdr_peer_rail_ping_median_seconds{@device})`, legend: "{{device}} median", dashed: true},
			}}},
		sessionsGraph(`60 * sum by (class) (rate(gdr_peer_sessions_total{@node}[$__rate_interval]))`),
		&grid{spec: spec{title: "List and schedule", w: 8, h: 8, noValue: notPeers,
			description: "What the node goes by. Peers with another list, other options or another clock: of those heard of within ten minutes.",
			queries: []query{{expr: `
				label_join(label_replace(max by (from, version, options) (gdr_peer_list_info{@node}), "what", "name, list, options", "", ""), "detail", " ", "from", "version", "options")
				or label_replace(label_replace(max(gdr_peer_self_listed{@node}), "what", "is in its list", "", ""), "detail", "1: yes", "", "")
				or label_replace(label_join(max by (state) (gdr_peer_sources{@node}), "detail", "", "state"), "what", "sources", "", "")
				or label_replace(label_join(max by (what) (gdr_peer_disagreeing_peers{@node}), "detail", "", "what"), "what", "peers with another", "", "")
				or label_replace(label_replace(max(gdr_peer_left_out_series{@node}), "what", "series left out", "", ""), "detail", "beyond 200", "", "")`}}},
			sort: "What", columns: []column{{label: "what", title: "What", width: 150}, {label: "detail", title: "Detail"}, {query: 0, title: "Value", width: 70, decimals: whole}}},
		&graph{few: true, spec: spec{title: "What sessions move", w: 24, h: 6, unit: "bps", noValue: notPeers,
			description: "Bytes of sessions that this node began, and that others began with it. Graphs of traffic contain them.",
			queries:     []query{{expr: `8 * sum by (role) (rate(gdr_peer_bytes_total{@node}[$__rate_interval]))`, legend: "{{role}}"}}}},
	}
}

// fabricPeers is what the chosen nodes say of others.
func fabricPeers() []panel {
	const path = `node, from, peer, device, port, peer_device, memory`
	rate := func(direction string) query {
		return query{expr: `8 * max by (` + path + `) (gdr_peer_bytes_per_second{@device,direction="` + direction + `"})
			and on (` + path + `) bottomk(50, min by (` + path + `) (gdr_peer_bytes_per_second{@device,memory!="staged",direction!="both"}))`}
	}
	return []panel{
		&matrix{spec: spec{title: "Who finds whom bad", w: 12, h: 12, mappings: mapped(state{"1", "good", "green"}, state{"0", "bad", "red"}, state{"2", "self", dark}), thresholds: from("text"), noValue: notPeers,
			description: "Rows: who says it, columns: of whom; the 24 worst of each. A bad column is a node that is bad for all (GDRPeerNodeBad), a bad row a node that reaches nobody, a single cell a path (GDRPeerPathBad). Empty: not known, or good and not tried lately.",
			queries: []query{{expr: `(min by (from, peer) (gdr_peer_good{@node}) or label_replace(0 * min by (from) (gdr_peer_good{@node}) + 2, "peer", "$1", "from", "(.*)"))
				and on (peer) bottomk(24, avg by (peer) (gdr_peer_good{@node}))
				and on (from) bottomk(24, avg by (from) (gdr_peer_good{@node}))`}}},
			rows: "from", columns: "peer", head: "From", first: 120},
		&grid{spec: spec{title: "Bad pairs and why", w: 12, h: 12, noValue: "None",
			description: "The 100 pairs with the most bad paths, as the node at the left sees it. Without NIC: the call of the session listener.",
			queries: []query{{expr: `count by (node, from, peer, device, kind, stage, reason, errno) (gdr_peer_failure_info{@node})
				and on (node, from, peer) topk(100, count by (node, from, peer) (gdr_peer_failure_info{@node}))`}}},
			sort: "To", columns: []column{
				fabricNode, fromColumn, peerColumn, {label: "device", title: "NIC", width: 70}, {label: "kind", title: "Kind", width: 85}, {label: "stage", title: "Stage", width: 75},
				{label: "reason", title: "Reason", width: 95}, {label: "errno", title: "Error", width: 105},
			}},
		&grid{spec: spec{title: "Slowest paths", w: 24, h: 9, noValue: "None",
			description: "The 50 slowest paths, one direction at a time. Directions that differ by more than a quarter: GDRPeerAsymmetric.",
			queries:     []query{rate("write"), rate("reverse"), rate("both")}},
			sort: "Write", columns: []column{
				fabricNode, fromColumn, peerColumn, {label: "device", title: "NIC", width: 75}, {label: "port", title: "Port", width: 55}, {label: "peer_device", title: "Its NIC", width: 75}, {label: "memory", title: "Memory", width: 80},
				{query: 0, title: "Write", unit: "bps", decimals: whole, width: 90}, {query: 1, title: "Reverse", unit: "bps", decimals: whole, width: 90}, {query: 2, title: "Both", unit: "bps", decimals: whole, width: 90},
			}},
		&graph{limits: true, spec: spec{title: "Lowest rate of rails, share of the port's rate", w: 12, h: 8, unit: "percentunit", thresholds: peerLimits, noValue: "Nothing measured",
			description: "Host memory, one direction at a time, with any peer; the 20 lowest. Below 70 % of the lesser port's rate a path is slow (--peer.limit).",
			queries: []query{{expr: `bottomk(20, min by (node, device, port) (gdr_peer_rail_least_bytes_per_second{@device,memory="host",direction!="both"})
				/ max by (node, device, port) (gdr_rdma_port_rate_bytes_per_second{@device} > 0))`, legend: portLegend}}}, minimum: digits(0)},
		&graph{spec: spec{title: "Bad peers of rails", w: 12, h: 8, unit: "short", noValue: "None",
			description: "Peers with which the last measurement over the port was bad, whichever kind has more; the 20 ports with the most. Many nodes on one rail: its switch (GDRPeerRailBad).",
			queries:     []query{{expr: `topk(20, max by (node, device, port) (gdr_peer_rail_peers{@device,state="bad"})) > 0`, legend: portLegend}}}},
		&graph{spec: spec{title: "Slowest pings of rails", w: 12, h: 8, unit: "s", noValue: "No pings",
			description: "The worst peer's median time of an 8-byte RDMA write, post to completion; the 20 highest. Far above the others': congestion, a detour, or the peer.",
			queries:     []query{{expr: `topk(20, max by (node, device, port) (gdr_peer_rail_ping_worst_seconds{@device}))`, legend: portLegend}}}},
		&graph{spec: spec{title: "Round trip to session listeners", w: 12, h: 8, unit: "s", noValue: notPeers,
			description: "Over TCP and the management network; the 20 slowest.",
			queries:     []query{{expr: `topk(20, max by (node, from, peer) (gdr_peer_rtt_seconds{@node}))`, legend: "{{from}} to {{peer}}"}}}},
	}
}

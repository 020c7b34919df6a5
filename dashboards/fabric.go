package dashboards

// fabric shows the ports of some nodes: what they carry, and what the network does to them.
func fabric() board {
	of := `cluster=~"$cluster",node=~"$node"`
	return board{
		uid: uidFabric, title: "GDR / RDMA fabric", from: "now-3h",
		description: "RDMA ports: traffic without the probe's own, congestion, errors, flaps, saturated counters and states.",
		variables: []variable{
			dataSourceVariable(),
			many("cluster", "Cluster", "label_values(gdr_exporter_build_info, cluster)", ".*", "The label cluster of the targets; without it all nodes are one cluster."),
			many("node", "Node", `label_values(gdr_exporter_build_info{cluster=~"$cluster"}, node)`, ".*", "The label node of the targets. All nodes of a large cluster are too many for one graph: tops are shown then."),
			many("device", "NIC", `label_values(gdr_rdma_device_info{`+of+`}, device)`, ".*", "RDMA device, as in /sys/class/infiniband."),
			runbooksVariable(),
		},
		selectors: map[string]string{"device": of + `,device=~"$device"`, "node": of},
		annotations: []annotation{
			{name: "Link flaps", colour: "orange", title: "Link went down", text: "{{node}} {{device}} port {{port}}", expr: `sum by (node, device, port) (increase(gdr_rdma_port_link_downed_total{@device}[5m])) > 0`},
			{name: "Driver changes", colour: "blue", title: "Another driver", text: "{{node}}: {{version}}, kernel {{kernel}}", off: true, expr: `
				node:gdr_driver_info:max{@node} unless node:gdr_driver_info:max{@node} offset 10m
				and on (cluster, node) node:gdr_driver_info:max{@node} offset 10m`},
			{name: "Quiesced", colour: "purple", title: "Quiesced", text: "{{node}}", off: true, expr: `node:gdr_quiesced:max{@node} == 1`},
		},
		rows: []row{
			{"Ports now", fabricNow()},
			{"Peers", fabricPeers()},
			{"Traffic, without the probe's own", fabricTraffic()},
			{"Congestion", fabricCongestion()},
			{"Retransmissions", fabricRetransmissions()},
			{"Errors and flaps", fabricErrors()},
			{"Every other counter that moves", fabricRest()},
			{"Settings", fabricSettings()},
		},
	}
}

// portRate is the rate of a counter by port, of those with most of it.
func portRate(counter string) string {
	return `topk(20, sum by (node, device, port) (rate(gdr_rdma_port_` + counter + `{@device}[$__rate_interval])))`
}

// fabricNode leads to the node in the chosen clusters: its tables have no column for them.
var fabricNode = column{label: "node", title: "Node", link: &link{"Open the node", "/d/" + uidNode + "?${datasource:queryparam}&${cluster:queryparam}&var-node=${__data.fields.Node}&${runbooks:queryparam}&${__url_time_range}"}}

const portLegend = "{{node}} {{device}}/{{port}}"

// counterGraph is a graph of one counter of ports.
func counterGraph(title, description, counter string, limits ...float64) panel {
	g := &graph{spec: spec{title: title, description: description, w: 12, h: 7, unit: "short", queries: []query{{expr: portRate(counter), legend: portLegend}}}}
	if len(limits) > 0 {
		g.thresholds, g.limits = from("green", level(limits[0], "orange")), true
	}
	return g
}

func fabricNow() []panel {
	stat := func(title, description, expr string, good bool) panel {
		steps := zeroWarn
		if !good {
			steps = plain
		}
		return &number{plain: !good, spec: spec{title: title, description: description, w: 4, h: 4, unit: "short", decimals: whole, thresholds: steps, queries: []query{{expr: expr}}}}
	}
	return []panel{
		stat("Ports ACTIVE", "Ports in state ACTIVE.", `count(gdr_rdma_port_state_id{@device} == 4) or vector(0)`, false),
		stat("Expected, not ACTIVE", "RDMAPortDown. A down port that never was ACTIVE, and that no profile names, is no fault.", `count((max by (cluster, node, device, port) (gdr_rdma_port_state_id{@device}) != 4) and on (cluster, node, device, port) (gdr_rdma_port_expected{@device} == 1)) or vector(0)`, true),
		stat("Flaps within an hour", "Times that links went down. RDMAPortFlapping warns from three on one port.", `round(sum(node:gdr_rdma_link_downs:increase1h{@node}))`, true),
		stat("Saturated counters", "InfiniBand error counters that have reached their largest value: their rate is 0 from then on, whatever happens. Clear them with perfquery -R.", `sum(gdr_rdma_port_saturated_counters{@device})`, true),
		stat("Ports below their rate", "ACTIVE ports with a lower rate than within a day.", `count(port:gdr_rdma_port_rate_bytes_per_second:active{@device} < on (cluster, node, device, port) max_over_time(port:gdr_rdma_port_rate_bytes_per_second:active{@device}[1d])) or vector(0)`, true),
		stat("Unhealthy NICs", "devlink health reporters in error.", `count(gdr_rdma_device_health_reporter_state_id{@device} == 1) or vector(0)`, true),
		&timeline{spec{title: "Port states", w: 24, h: 12, mappings: portStates,
			description: "Gaps: the state could not be read, which is not down. 24 ports at most, those that were down first.",
			queries: []query{{expr: `max by (node, device, port) (gdr_rdma_port_state_id{@device})
				and on (node, device, port) bottomk(24, max by (node, device, port) (min_over_time(gdr_rdma_port_state_id{@device}[$__range] @ end())))`, legend: portLegend}}}},
	}
}

func fabricTraffic() []panel {
	used := func(direction string) query {
		return query{expr: `topk(20, sum by (node, device, port) (rate(gdr_rdma_port_` + direction + `_bytes_total{@device}[$__rate_interval]))
			/ max by (node, device, port) (gdr_rdma_port_rate_bytes_per_second{@device} > 0))`, legend: portLegend}
	}
	return []panel{
		&graph{spec: spec{title: "Traffic of NICs", w: 24, h: 9, unit: "bps",
			description: "Both directions, mean of five minutes, less what the probe moved; the 20 with most. RDMA only: not what the network interface carries.",
			queries:     []query{{expr: `8 * topk(20, device:gdr_rdma_bytes:rate5m{@device})`, legend: "{{node}} {{device}}"}}}},
		&graph{spec: spec{title: "Received, share of the port's rate", w: 12, h: 8, unit: "percentunit", queries: []query{used("receive")},
			description: "With the probe's own bytes. One rail far below the others of a job is the one to look at."}},
		&graph{spec: spec{title: "Sent, share of the port's rate", w: 12, h: 8, unit: "percentunit", queries: []query{used("transmit")},
			description: "With the probe's own bytes. The bus bandwidth that a benchmark prints over two nodes is not twice the link: it is the traffic of each NIC, times (n-1)/n and more, by formula."}},
		&graph{spec: spec{title: "Packets by second", w: 12, h: 7, unit: "pps",
			description: "Received and sent, of drivers with packet counters of RDMA.",
			queries: []query{
				{expr: portRate("rcv_packets_total"), legend: portLegend + " received"}, {expr: portRate("xmit_packets_total"), legend: portLegend + " sent"},
				{expr: portRate("hw_rcvd_pkts_total"), legend: portLegend + " received (hw)"}, {expr: portRate("hw_sent_pkts_total"), legend: portLegend + " sent (hw)"},
			}}},
		&graph{spec: spec{title: "What the probe moves", w: 12, h: 7, unit: "bps",
			description: "Bytes of measurements, each counted once.",
			queries:     []query{{expr: `8 * topk(20, sum by (node, device) (rate(gdr_probe_transferred_bytes_total{@device}[$__rate_interval])))`, legend: "{{node}} {{device}}"}}}},
	}
}

func fabricCongestion() []panel {
	share := func(title, description, counter string, limit float64) panel {
		return &graph{spec: spec{title: title, description: description, w: 12, h: 7, unit: "percentunit", thresholds: from("green", level(limit, "orange")),
			queries: []query{{expr: portRate(counter), legend: portLegend}}, noValue: "No such counter: InfiniBand, or PFC is off"}, limits: true}
	}
	return []panel{
		&graph{limits: true, spec: spec{title: "Share of received packets with ECN mark", w: 12, h: 7, unit: "percentunit", thresholds: from("green", level(0.05, "orange")),
			description: "Marked by switches because of congestion, or by the NIC for its host. Some is how RoCE works: RDMACongestion tells above 5 % for half an hour, from 10,000 packets a second.",
			queries: []query{{expr: `topk(20, sum by (node, device, port) (rate(gdr_rdma_port_hw_np_ecn_marked_roce_packets_total{@device}[$__rate_interval]))
				/ sum by (node, device, port) (rate(gdr_rdma_port_unicast_rcv_packets_total{@device}[$__rate_interval]) > 0))`, legend: portLegend}}}},
		counterGraph("CNPs handled", "Congestion notifications that made this port send slower. RDMACongestion tells above 10,000 a second.", "hw_rp_cnp_handled_total", 10000),
		counterGraph("CNPs sent", "Congestion notifications that this port sent to those that send to it: many to one.", "hw_np_cnp_sent_total"),
		share("PFC: share of time paused by the fabric", "Time in which the port was told not to send, by priority. RDMACongestion tells above 10 %.", "pfc_receive_pause_duration_seconds_total", 0.1),
		share("PFC: share of time the port pauses the fabric", "Time in which the host could not take what came: look at the PCIe link, the NUMA node and the IOMMU. A slow receiver of this kind stops others too. RDMACongestion tells above 1 %.", "pfc_transmit_pause_duration_seconds_total", 0.01),
		&graph{spec: spec{title: "Pause frames by second", w: 12, h: 7, unit: "short", noValue: "No such counter", description: "PFC and global pause frames, received and sent.",
			queries: []query{
				{expr: portRate("pfc_receive_pause_frames_total"), legend: portLegend + " PFC received"}, {expr: portRate("pfc_transmit_pause_frames_total"), legend: portLegend + " PFC sent"},
				{expr: portRate("global_receive_pause_frames_total"), legend: portLegend + " received"}, {expr: portRate("global_transmit_pause_frames_total"), legend: portLegend + " sent"},
				{expr: portRate("transmit_pause_storm_errors_total"), legend: portLegend + " storms"}, {expr: portRate("transmit_pause_storm_warnings_total"), legend: portLegend + " storm warnings"},
			}}},
		counterGraph("InfiniBand: waiting to send", "xmit_wait: ticks in which data waited for credits. The tick's length is the device's own, so compare ports of one kind, not with a limit.", "xmit_wait_total"),
		&graph{spec: spec{title: "Share of time the PCIe link stalls the NIC", w: 12, h: 7, unit: "percentunit", noValue: "No such counter",
			description: "The NIC waits for the host's PCIe link: reads (it sends) and writes (it receives). Congestion that looks like the network's may begin here.",
			queries: []query{
				{expr: portRate("pcie_outbound_stalled_read_seconds_total"), legend: portLegend + " reads"}, {expr: portRate("pcie_outbound_stalled_write_seconds_total"), legend: portLegend + " writes"},
			}}},
	}
}

func fabricRetransmissions() []panel {
	return []panel{
		counterGraph("Packet sequence errors", "NAKs received because a packet of ours was lost. RDMARetransmissions warns above 10 a second.", "hw_packet_seq_err_total", 10),
		counterGraph("Out of sequence", "Packets that came out of order: lost before them, or another way with adaptive routing. RDMARetransmissions warns above 1,000 a second.", "hw_out_of_sequence_total", 1000),
		counterGraph("Timeouts", "Acknowledgements that did not come in time. RDMARetransmissions warns above one a second. Each may cost a job seconds.", "hw_local_ack_timeout_err_total", 1),
		counterGraph("RNR: receiver not ready", "NAKs because the other side had posted no buffer: an application too slow to receive. RDMARetransmissions warns above 10 a second.", "hw_rnr_nak_retry_err_total", 10),
		counterGraph("No buffer", "Packets dropped for want of a receive buffer.", "hw_out_of_buffer_total"),
		counterGraph("RoCE slow restarts", "Connections that began slowly again after congestion.", "hw_roce_slow_restart_total"),
		&graph{spec: spec{title: "Connections given up", w: 24, h: 7, unit: "short",
			description: "Requests that ended with an error after all retries, by second: these end a job. Flushed ones follow from others.",
			queries: []query{
				{expr: portRate("hw_req_transport_retries_exceeded_total"), legend: portLegend + " transport retries"}, {expr: portRate("hw_req_rnr_retries_exceeded_total"), legend: portLegend + " RNR retries"},
				{expr: portRate("hw_req_remote_access_errors_total"), legend: portLegend + " remote access"}, {expr: portRate("hw_req_cqe_error_total"), legend: portLegend + " other errors"},
			}}},
	}
}

func fabricErrors() []panel {
	hour := func(counter string) string {
		return `topk(20, sum by (node, device, port) (increase(gdr_rdma_port_` + counter + `{@device}[1h])))`
	}
	var errs []query
	for _, name := range []string{"symbol_error", "rcv_errors", "rcv_remote_physical_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors", "link_error_recovery",
		"phy_receive_crc_errors", "phy_receive_pcs_symbol_errors", "fec_uncorrectable_blocks"} {
		errs = append(errs, query{expr: hour(name+"_total") + " > 0", legend: portLegend + " " + name})
	}
	return []panel{
		&graph{spec: spec{title: "Errors within an hour", w: 12, h: 9, unit: "short", noValue: "None", queries: errs,
			description: "Counters that RDMAPortErrors reads; ports without errors have no line. rcv_remote_physical_errors: a switch on the way marked the packet, so the fault is elsewhere."}},
		&graph{limits: true, spec: spec{title: "Link flaps within an hour", w: 12, h: 9, unit: "short", thresholds: from("green", level(3, "orange")),
			description: "Times that the link went down. RDMAPortFlapping warns from three. A carrier that went and came has changed twice.",
			queries: []query{
				{expr: hour("link_downed_total"), legend: portLegend}, {expr: hour("phy_link_downs_total"), legend: portLegend + " (ethtool)"},
				{expr: hour("carrier_changes_total") + ` / 2`, legend: portLegend + " (carrier)"},
			}}},
		&graph{spec: spec{title: "Discards by second", w: 24, h: 8, unit: "short", description: "Packets thrown away: on sending because the port was down or congested, on receipt for want of buffers.",
			queries: []query{
				{expr: portRate("xmit_discards_total"), legend: portLegend + " sending"}, {expr: portRate("phy_receive_discards_total"), legend: portLegend + " receiving"},
				{expr: portRate("phy_transmit_discards_total"), legend: portLegend + " sending (phy)"}, {expr: portRate("priority_receive_discards_total"), legend: portLegend + " by priority"},
				{expr: portRate("vl15_dropped_total"), legend: portLegend + " management"},
			}}},
		&grid{spec: spec{title: "Saturated counters", w: 12, h: 8, noValue: "None",
			description: "Counters at their largest value, where they stay until they are cleared: their rate is 0 whatever happens.",
			queries:     []query{{expr: `max by (node, device, port, counter) (gdr_rdma_port_counter_saturated{@device} == 1)`}}},
			sort: "Node", columns: []column{fabricNode, {label: "device", title: "NIC", width: 80}, {label: "port", title: "Port", width: 50}, {label: "counter", title: "Counter"}}},
		&grid{spec: spec{title: "Health reporters", w: 12, h: 8, noValue: "None",
			description: "Errors that devlink's health reporters counted within a day, how many they recovered from, and how old the last dump is. An error that is not recovered is RDMANICUnhealthy.",
			queries: []query{
				{expr: `max by (node, device, reporter) (increase(gdr_rdma_device_health_reporter_errors_total{@device}[1d]))`},
				{expr: `max by (node, device, reporter) (increase(gdr_rdma_device_health_reporter_recoveries_total{@device}[1d]))`},
				{expr: `max by (node, device, reporter) (gdr_rdma_device_health_reporter_state_id{@device})`},
				{expr: `time() - max by (node, device, reporter) (gdr_rdma_device_health_reporter_last_dump_timestamp_seconds{@device})`},
			}},
			sort: "Node", columns: []column{fabricNode, {label: "device", title: "NIC", width: 80}, {label: "reporter", title: "Reporter", width: 80}, {query: 0, title: "Errors", decimals: whole, width: 65}, {query: 1, title: "Recovered", decimals: whole, width: 95}, {query: 2, title: "State", width: 80, mappings: mapped(state{"1", "error", "red"})}, {query: 3, title: "Dump", unit: "s", decimals: digits(1), width: 90}}},
	}
}

func fabricRest() []panel {
	moving := func(title, description, names, short string) panel {
		return &graph{spec: spec{title: title, w: 12, h: 10, unit: "short", noValue: "None moves", description: description,
			queries: []query{{legend: "{{node}} {{device}} {{counter}}", expr: `topk(20, sum by (node, device, counter) (rate(label_replace({__name__=~"` + names + `",@device}, "counter", "$1", "__name__", "` + short + `")[$__rate_interval:15s])) > 0)`}}}}
	}
	return []panel{
		moving("Vendor counters that move (hw_counters)", "The 20 with the highest rate, by the vendor's names: every counter that the driver has, those of the panels above too.", "gdr_rdma_(port|device)_hw_.+_total", "gdr_rdma_(?:port|device)_hw_(.+)_total"),
		moving("Port counters that move (counters, ethtool, fec)", "The 20 with the highest rate. Bytes and packets are in bytes and packets by second.", "gdr_rdma_port_(phy|fec|ext|pcie|priority|global|module|netdev|vport|pfc|multicast|unicast|rcv|xmit|local|excessive|link|symbol|vl15|carrier|transmit_pause).+_total", "gdr_rdma_port_(.+)_total"),
	}
}

func fabricSettings() []panel {
	return []panel{
		&grid{spec: spec{title: "RoCE settings", w: 12, h: 8, noValue: "No RoCE ports",
			description: "What the port takes priorities from, and on how many PFC and ECN are on. Two ports of one fabric that differ are a fault; PFC on no priority with RoCE is a choice. No RoCE by name: InfiniBand has none of this.",
			queries: []query{
				{expr: `max by (node, device, port, trust) (gdr_rdma_port_trust_info{@device})`}, {expr: `max by (node, device, port) (gdr_rdma_port_pfc_enabled_priorities{@device})`},
				{expr: `max by (node, device, port) (gdr_rdma_port_ecn_notification_priorities{@device})`}, {expr: `max by (node, device, port) (gdr_rdma_port_ecn_reaction_priorities{@device})`},
				{expr: `max by (node, device, port) (gdr_rdma_port_netdev_mtu_bytes{@device})`},
			}},
			sort: "Node", columns: []column{
				fabricNode, {label: "device", title: "NIC", width: 80}, {label: "port", title: "Port", width: 55}, {label: "trust", title: "Trust", width: 70}, {query: 1, title: "PFC on", width: 75},
				{query: 2, title: "ECN notify", width: 95}, {query: 3, title: "ECN react", width: 95}, {query: 4, title: "MTU", width: 70},
			}},
		&grid{spec: spec{title: "Addresses and objects", w: 12, h: 8,
			description: "GIDs by type, and what applications hold: queue pairs, memory regions, open contexts. LID and subnet manager of InfiniBand.",
			queries: []query{
				{expr: `sum by (node, device) (gdr_rdma_port_gids{@device})`}, {expr: `max by (node, device) (gdr_rdma_device_resources{@device,type="qp"})`},
				{expr: `max by (node, device) (gdr_rdma_device_memory_regions{@device})`}, {expr: `max by (node, device) (gdr_rdma_device_contexts{@device})`},
				{expr: `max by (node, device) (gdr_rdma_port_lid{@device})`}, {expr: `max by (node, device, firmware, role) (gdr_rdma_device_info{@device})`},
			}},
			sort: "Node", columns: []column{
				fabricNode, {label: "device", title: "NIC", width: 80}, {label: "role", title: "Role", width: 80}, {label: "firmware", title: "Firmware", width: 110}, {query: 0, title: "GIDs", width: 60}, {query: 1, title: "QPs", width: 60},
				{query: 2, title: "MRs", width: 60}, {query: 3, title: "Contexts", width: 85}, {query: 4, title: "LID", width: 65},
			}},
	}
}

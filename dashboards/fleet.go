package dashboards

// toNode leads from a row of a table to the node's dashboard.
var toNode = &link{"Open the node", "/d/" + uidNode + "?${datasource:queryparam}&var-cluster=${__data.fields.Cluster}&var-node=${__data.fields.Node}&${runbooks:queryparam}&${__url_time_range}"}

// toRunbook leads from a rule's or alert's name to what to do about it.
var toRunbook = &link{"What to do", "${runbooks}/${__value.raw}"}

// Columns that many tables have.
var (
	clusterColumn = column{label: "cluster", title: "Cluster", width: 90}
	nodeColumn    = column{label: "node", title: "Node", link: toNode}
	gpuColumn     = column{label: "gpu_address", title: "GPU", width: 115}
	deviceColumn  = column{label: "device", title: "NIC", width: 75}
)

// fleet reads recording rules only: at 10,000 nodes nothing else answers in time.
func fleet() board {
	return board{
		uid: uidFleet, title: "GDR / Fleet", from: "now-6h",
		description: "Does GPUDirect RDMA work on every pair of GPU and NIC, in all clusters? Reads the recording rules of deploy/prometheus only.",
		variables: []variable{
			dataSourceVariable(),
			many("cluster", "Cluster", "label_values(cluster:gdr_nodes:count, cluster)", ".*", "The label cluster of the targets; without it all nodes are one cluster."),
			runbooksVariable(),
		},
		selectors: map[string]string{"c": `cluster=~"$cluster"`},
		annotations: []annotation{
			{name: "Pages", colour: "red", title: "{{alertname}}", text: "{{cluster}} {{node}}", expr: `count by (cluster, node, alertname) (ALERTS{@c,alertstate="firing",severity="critical",scope=~"cluster|node|port|pair"})`},
			{name: "Driver changes", colour: "blue", title: "Another driver", text: "{{node}}: {{version}}, kernel {{kernel}}", off: true, expr: `
				node:gdr_driver_info:max{@c} unless node:gdr_driver_info:max{@c} offset 10m
				and on (cluster, node) node:gdr_driver_info:max{@c} offset 10m`},
			{name: "Quiesced", colour: "purple", title: "Quiesced nodes", text: "{{cluster}}", off: true, expr: `cluster:gdr_nodes_quiesced:count{@c} > 0`},
		},
		rows: []row{
			{"Are all paths direct?", fleetNow()},
			{"Worst nodes and pairs", fleetWorst()},
			{"Peers", fleetPeers()},
			{"Trend", fleetTrend()},
			{"Why", fleetWhy()},
			{"Versions, outliers first", fleetVersions()},
			{"Traffic", fleetTraffic()},
		},
	}
}

func fleetNow() []panel {
	counted := func(title, description, metric string, w uint32, good string) panel {
		steps := zeroGood
		if good == "warn" {
			steps = zeroWarn
		}
		return &number{spec: spec{title: title, description: description, w: w, h: 4, unit: "short", decimals: whole, thresholds: steps, noValue: "not known",
			queries: []query{{expr: "sum(" + metric + "{@c})"}}}}
	}
	return []panel{
		&number{spec: spec{title: "Expected pairs direct", w: 4, h: 4, unit: "percentunit", decimals: digits(1), thresholds: fullShare,
			description: "Share of the expected pairs (near enough by PCIe distance for libraries to use, with a compute NIC) on which GPUDirect RDMA works. What is not direct is degraded, staged, unsupported or unknown.",
			queries:     []query{{expr: `sum(cluster:gdr_path_state:sum{@c,state="direct"}) / sum(cluster:gdr_path_expected:sum{@c})`}}}},
		counted("Nodes with staged pairs", "Nodes on which jobs copy through host memory, at half to one eighteenth of the rate. GDRPathStaged pages for each, GDRManyNodesStaged once for many. Quiesced nodes are left out.", "cluster:gdr_nodes_staged:count", 4, ""),
		counted("Nodes with degraded pairs", "Nodes on which GPUDirect RDMA works badly: below the limits, or with wrong data. Quiesced nodes are left out.", "cluster:gdr_nodes_degraded:count", 4, "warn"),
		counted("Nodes with ports down", "Nodes with an expected port that is not ACTIVE. Ports that nobody expects do not count. Quiesced nodes are left out.", "cluster:gdr_nodes_port_down:count", 4, "warn"),
		&number{spec: spec{title: "Pairs verified", w: 4, h: 4, unit: "percentunit", decimals: digits(1), thresholds: from("orange", level(0.9, "green")),
			description: "Coverage of the probe: share of the expected pairs on which a measurement of any depth found GPUDirect RDMA to work within 24 h, or within four intervals where those are longer. Below 90 % GDRManyPathsUnverified warns. A busy node is measured less, and that is no fault.",
			queries:     []query{{expr: `sum(node:gdr_path_verified:sum{@c}) / sum(cluster:gdr_path_expected:sum{@c})`}}}},
		&number{plain: true, spec: spec{title: "Nodes", w: 2, h: 4, unit: "short", decimals: whole, thresholds: plain,
			description: "Nodes that report.", queries: []query{{expr: `sum(cluster:gdr_nodes:count{@c})`}}}},
		counted("Silent", "Exporters that do not answer: of their nodes nothing is known.", "cluster:gdr_exporters_down:count", 2, "warn"),
	}
}

func fleetWorst() []panel {
	// Aggregated, because tables are merged where all labels agree, and the metric's name is one.
	worst := `bottomk(30, max by (cluster, node) (node:gdr_path_direct_per_expected:ratio{@c}))`
	of := func(expr string) query {
		return query{expr: `max by (cluster, node) (` + expr + `) and on (cluster, node) ` + worst}
	}
	return []panel{
		&grid{spec: spec{title: "Worst nodes", w: 24, h: 9,
			description: "The 30 nodes with the smallest share of direct pairs. Worst ratio: path gpu as a share of the host path of the same measurement, of the node's worst expected pair. Against its past: the same pair against its own baseline. A click on a node opens it.",
			queries: []query{
				{expr: worst}, of(`node:gdr_path_staged:count{@c}`), of(`node:gdr_path_degraded:count{@c}`),
				of(`node:gdr_probe_ratio:min{@c}`), of(`node:gdr_probe_baseline_ratio:min{@c}`), of(`node:gdr_path_verified_per_expected:ratio{@c}`),
				of(`node:gdr_rdma_port_down:count{@c}`), of(`sum by (cluster, node) (node:gdr_finding:count{@c,severity=~"critical|warning"})`),
			}},
			sort: "Direct", columns: []column{
				nodeColumn, clusterColumn,
				{query: 0, title: "Direct", unit: "percentunit", decimals: whole, coloured: fullShare, width: 100},
				{query: 1, title: "Staged pairs", decimals: whole, coloured: zeroGood, width: 120},
				{query: 2, title: "Degraded pairs", decimals: whole, coloured: zeroWarn, width: 145},
				{query: 3, title: "Worst ratio", unit: "percentunit", decimals: whole, coloured: ratioLimits, width: 115},
				{query: 4, title: "Against its past", unit: "percentunit", decimals: whole, coloured: baselineLimits, width: 140},
				{query: 5, title: "Verified", unit: "percentunit", decimals: whole, coloured: from("orange", level(0.9, "green")), width: 100},
				{query: 6, title: "Ports down", decimals: whole, coloured: zeroWarn, width: 115},
				{query: 7, title: "Findings", decimals: whole, coloured: zeroWarn, width: 100},
			}},
		&grid{spec: spec{title: "Staged and degraded pairs", w: 8, h: 9, noValue: "None",
			description: "Expected pairs on which GPUDirect RDMA does not work, or works badly; 100 at most.",
			queries:     []query{{expr: `topk(100, pair:gdr_path_state:max{@c,state=~"staged|degraded"} == 1)`}}},
			sort: "State", down: true, columns: []column{
				nodeColumn, gpuColumn, deviceColumn,
				{label: "state", title: "State", width: 95, mappings: mapped(state{"staged", "staged", "red"}, state{"degraded", "degraded", "orange"})},
				clusterColumn,
			}},
		fleetWorstPairs("Worst pairs against their own past", "Rate of path gpu against the pair's own baseline: the 90th percentile of its last measurements while idle, under the same GPU, NIC, firmware, driver and kernel. GDRPathDecline warns below 90 %.", `cluster:gdr_probe_baseline_ratio:bottomk20`),
		fleetWorstPairs("Worst pairs against others of their kind", "Rate of path gpu against the cluster's median of the same GPU model, port rate and PCIe distance. Kinds of which there are fewer than five have no median. GDRPathRateLost warns where this and the own past are both below 80 %.", `cluster:gdr_probe_gpu_per_cluster_median:bottomk20`),
	}
}

func fleetWorstPairs(title, description, metric string) panel {
	return &grid{spec: spec{title: title, description: description, w: 8, h: 9, queries: []query{{expr: metric + `{@c}`}}},
		sort: "Ratio", columns: []column{
			nodeColumn, gpuColumn, deviceColumn,
			{query: 0, title: "Ratio", unit: "percentunit", decimals: whole, width: 80, coloured: baselineLimits}, clusterColumn,
		}}
}

func fleetTrend() []panel {
	colours := map[string]string{"direct": "green", "degraded": "orange", "staged": "red", "unsupported": "purple", "unknown": "blue"}
	var byState []query
	for _, s := range []string{"direct", "degraded", "staged", "unsupported", "unknown"} {
		byState = append(byState, query{expr: `sum(cluster:gdr_path_state:sum{@c,state="` + s + `"})`, legend: s, colour: colours[s]})
	}
	return []panel{
		&graph{spec: spec{title: "Expected pairs by state", w: 12, h: 8, unit: "short", queries: byState,
			description: "Unknown: nothing is measured, or the NIC is slow with host memory too, so that nothing can be said of GPUs."}, stacked: true},
		&graph{spec: spec{title: "Direct and verified", w: 12, h: 8, unit: "percentunit",
			description: "Direct: the verdict. Verified: a measurement within a day found it so. Where verified is much lower, nodes are too busy to be measured or the probe is off; see what keeps pairs from being measured.",
			queries: []query{
				{expr: `sum by (cluster) (cluster:gdr_path_state:sum{@c,state="direct"}) / sum by (cluster) (cluster:gdr_path_expected:sum{@c})`, legend: "{{cluster}} direct"},
				{expr: `cluster:gdr_path_verified_per_expected:ratio{@c}`, legend: "{{cluster}} verified", dashed: true},
			}}, minimum: digits(0), maximum: digits(1)},
		&graph{spec: spec{title: "Nodes with trouble", w: 12, h: 8, unit: "short",
			description: "Nodes with at least one such pair, port or finding. Three nodes at least, and more than 2 % of a cluster, are a page for the cluster.",
			queries: []query{
				{expr: `sum(cluster:gdr_nodes_staged:count{@c})`, legend: "staged pairs", colour: "red"},
				{expr: `sum(cluster:gdr_nodes_degraded:count{@c})`, legend: "degraded pairs", colour: "orange"},
				{expr: `sum(cluster:gdr_nodes_port_down:count{@c})`, legend: "ports down", colour: "yellow"},
				{expr: `sum(cluster:gdr_nodes_quiesced:count{@c})`, legend: "quiesced", colour: "purple"},
				{expr: `sum(cluster:gdr_exporters_down:count{@c})`, legend: "silent", colour: "text"},
			}}},
		&graph{spec: spec{title: "Worst pair of each node", w: 12, h: 8, unit: "percentunit", thresholds: ratioLimits,
			description: "Path gpu as a share of the host path, of each node's worst expected pair: how it is spread over the nodes. Limits: 85 % for near pairs, 60 % for far ones. This is measured on one NIC, looped back: neither the fabric nor the bus bandwidth of a collective, which over two nodes is not twice the link.",
			queries: []query{
				{expr: `quantile(0.5, node:gdr_probe_ratio:min{@c})`, legend: "median node", colour: "green"},
				{expr: `quantile(0.05, node:gdr_probe_ratio:min{@c})`, legend: "worst 5 %", colour: "orange"},
				{expr: `min(node:gdr_probe_ratio:min{@c})`, legend: "worst node", colour: "red"},
			}}, minimum: digits(0), limits: true},
	}
}

func fleetWhy() []panel {
	return []panel{
		&grid{spec: spec{title: "Findings", w: 24, h: 10, noValue: "None",
			description: "What the exporters found, with the number of nodes. Info is good to know, and no fault. A click on a rule opens its runbook.",
			queries:     []query{{expr: withTexts(`sum by (rule, severity) (cluster:gdr_finding:count{@c})`)}}},
			sort: "Nodes", down: true, tall: true, columns: []column{
				{label: "rule", title: "Rule", width: 190, link: toRunbook}, {label: "severity", title: "Severity", width: 90, mappings: severities},
				{query: 0, title: "Nodes", decimals: whole, width: 75}, {label: "what", title: "What is wrong", width: 240, mappings: meanings, text: true, wrap: true},
				{label: "remedy", title: "What to do", mappings: remedies, text: true, wrap: true},
			}},
		&grid{spec: spec{title: "Alerts that fire", w: 12, h: 7, noValue: "None",
			description: "Alerts of deploy/prometheus/rules, with the number of nodes or pairs. Alertmanager may hold some back, such as those of a node while one of the cluster fires.",
			queries:     []query{{expr: `count by (alertname, severity) (ALERTS{@c,alertstate="firing",scope=~"cluster|node|port|pair"})`}}},
			sort: "Firing", down: true, columns: []column{
				{label: "alertname", title: "Alert", link: toRunbook}, {label: "severity", title: "Severity", width: 100, mappings: severities},
				{query: 0, title: "Firing", decimals: whole, width: 90},
			}},
		&grid{spec: spec{title: "Pairs kept from being measured", w: 12, h: 7, noValue: "None",
			description: "Pairs that are due and not measured, by reason. Busy is usual, and never pages: preconditions and registration are still looked at. What was measured stands until it is a day old.",
			queries:     []query{{expr: `sum by (reason) (cluster:gdr_probe_skipped:count{@c})`}}},
			sort: "Pairs", down: true, columns: []column{{label: "reason", title: "Reason"}, {query: 0, title: "Pairs", decimals: whole, width: 90}}},
	}
}

func fleetVersions() []panel {
	nodes := column{query: 0, title: "Nodes", decimals: whole, width: 80}
	devices := column{query: 0, title: "NICs", decimals: whole, width: 80}
	return []panel{
		&grid{spec: spec{title: "Drivers and kernels", w: 7, h: 7,
			description: "NVIDIA driver, its flavour and the kernel, by number of nodes. The rarest first: a node that is alone with its version is the first to look at.",
			queries:     []query{{expr: `sum by (version, flavor, kernel) (cluster:gdr_driver_info:count{@c})`}}},
			sort: "Nodes", columns: []column{{label: "version", title: "Driver"}, {label: "flavor", title: "Flavour", width: 95}, {label: "kernel", title: "Kernel"}, nodes}},
		&grid{spec: spec{title: "NIC firmware", w: 6, h: 7,
			description: "Firmware of compute NICs by board. Two versions on one board are an upgrade that did not reach all.",
			queries:     []query{{expr: `sum by (board, firmware) (cluster:gdr_rdma_firmware:count{@c})`}}},
			sort: "NICs", columns: []column{{label: "board", title: "Board"}, {label: "firmware", title: "Firmware"}, devices}},
		&grid{spec: spec{title: "GPU models and VBIOS", w: 7, h: 7,
			description: "GPUs by model and VBIOS.",
			queries:     []query{{expr: `sum by (name, vbios) (cluster:gdr_gpu_info:count{@c})`}}},
			sort: "GPUs", columns: []column{{label: "name", title: "Model"}, {label: "vbios", title: "VBIOS", width: 140}, {query: 0, title: "GPUs", decimals: whole, width: 80}}},
		&grid{spec: spec{title: "Exporters", w: 4, h: 7,
			description: "Versions of this exporter. During a roll-out there are two.",
			queries:     []query{{expr: `sum by (version) (cluster:gdr_exporter_version:count{@c})`}}},
			sort: "Nodes", columns: []column{{label: "version", title: "Version"}, nodes}},
		&grid{spec: spec{title: "Nodes with a rare driver", w: 12, h: 7,
			description: "The 20 nodes whose driver and kernel the fewest others have.",
			queries: []query{{expr: `bottomk(20, node:gdr_driver_info:max{@c} * on (cluster, version, flavor, kernel)
				group_left () cluster:gdr_driver_info:count{@c})`}}},
			sort: "Nodes alike", columns: []column{nodeColumn, {label: "version", title: "Driver", width: 110}, {label: "kernel", title: "Kernel"}, {query: 0, title: "Nodes alike", decimals: whole, width: 110}, clusterColumn}},
		&grid{spec: spec{title: "Nodes with rare NIC firmware", w: 12, h: 7,
			description: "The 20 nodes with compute NICs whose firmware the fewest others of that board have.",
			queries: []query{{expr: `bottomk(20, (node:gdr_rdma_firmware:count{@c} > bool 0) * on (cluster, board, firmware)
				group_left () cluster:gdr_rdma_firmware:count{@c})`}}},
			sort: "NICs alike", columns: []column{nodeColumn, {label: "board", title: "Board"}, {label: "firmware", title: "Firmware", width: 110}, {query: 0, title: "NICs alike", decimals: whole, width: 100}, clusterColumn}},
	}
}

func fleetTraffic() []panel {
	return []panel{
		&graph{spec: spec{title: "RDMA traffic", w: 12, h: 8, unit: "bps",
			description: "Of all nodes, both directions, less what the probe moved. RDMA only: not what a NIC's network interface carries.",
			queries:     []query{{expr: `8 * cluster:gdr_rdma_bytes:rate5m{@c}`, legend: "{{cluster}}"}}}},
		&graph{spec: spec{title: "Nodes with the most link flaps", w: 12, h: 8, unit: "short", noValue: "None",
			description: "Times that links of the node went down within an hour; the ten with the most. RDMAPortFlapping warns from three on one port.",
			queries:     []query{{expr: `topk(10, node:gdr_rdma_link_downs:increase1h{@c}) > 0`, legend: "{{node}}"}}}},
	}
}

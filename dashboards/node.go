package dashboards

// What selects the series of the node, of its devices and of its GPUs.
const (
	ofNode   = `cluster=~"$cluster",node="$node"`
	ofDevice = ofNode + `,device=~"$device"`
	ofGPU    = ofNode + `,gpu_address=~"$gpu"`
	ofPair   = ofGPU + `,device=~"$device"`
)

// node shows one node: which pairs work, what was measured, and everything that explains it.
func node() board {
	return board{
		uid: uidNode, title: "GDR / Node", from: "now-3h",
		description: "One node: its pairs of GPU and NIC, what was measured, findings, ports, NVLink, PCIe, peer memory, kernel log, probe and exporter.",
		variables: []variable{
			dataSourceVariable(),
			many("cluster", "Cluster", "label_values(gdr_exporter_build_info, cluster)", ".*", "The label cluster of the targets; without it all nodes are one cluster."),
			one("node", "Node", `label_values(gdr_exporter_build_info{cluster=~"$cluster"}, node)`, "The label node of the targets, which the scrape configuration sets."),
			many("gpu", "GPU", `label_values(gdr_gpu_info{`+ofNode+`}, gpu_address)`, ".*", "PCI address of the GPU; the table of GPUs has index and UUID."),
			many("device", "NIC", `label_values(gdr_rdma_device_info{`+ofNode+`}, device)`, ".*", "RDMA device, as in /sys/class/infiniband."),
			runbooksVariable(),
		},
		selectors: map[string]string{"node": ofNode, "device": ofDevice, "gpu": ofGPU, "pair": ofPair},
		annotations: []annotation{
			{name: "Link flaps", colour: "orange", title: "Link went down", text: "{{device}} port {{port}}", expr: `sum by (device, port) (increase(gdr_rdma_port_link_downed_total{@device}[5m])) > 0`},
			{name: "Driver changes", colour: "blue", title: "Another driver", text: "{{version}}, kernel {{kernel}}", expr: `
				max by (cluster, node, version, kernel) (gdr_driver_info{@node}) unless max by (cluster, node, version, kernel) (gdr_driver_info{@node} offset 10m)
				and on (cluster, node) max by (cluster, node) (gdr_driver_info{@node} offset 10m)`},
			{name: "Quiesced", colour: "purple", title: "Quiesced", text: "Nothing is measured, and no alert of the node fires", expr: `max by (node) (gdr_quiesced_until_timestamp_seconds{@node}) > time()`},
			{name: "Alerts", colour: "red", title: "{{alertname}}", text: "{{severity}} {{gpu_address}} {{device}}", off: true, expr: `ALERTS{@node,alertstate="firing",scope=~"node|port|pair"}`},
		},
		rows: []row{
			{"Does GPUDirect RDMA work here?", nodeNow()},
			{"GPU x NIC", nodeMatrices()},
			{"Findings", nodeFindings()},
			{"Measured paths", nodeMeasured()},
			{"Would libraries use it?", nodeLibraries()},
			{"Peer memory, dma-buf and driver", nodePeermem()},
			{"Ports", nodePorts()},
			{"Peers", nodePeers()},
			{"NVLink", nodeNVLink()},
			{"PCIe", nodePCIe()},
			{"GPUs", nodeGPUs()},
			{"Kernel log and Xids", nodeKernel()},
			{"Jobs and pods", nodeHolders()},
			{"Probe", nodeProbe()},
			{"Exporter", nodeExporter()},
		},
	}
}

// expected leaves pairs that libraries use by their distance.
const expected = `and on (cluster, node, gpu_address, device) (gdr_path_expected{@pair} == 1)`

func nodeNow() []panel {
	return []panel{
		&number{spec: spec{title: "Expected pairs direct", w: 4, h: 4, unit: "percentunit", decimals: digits(1), thresholds: fullShare,
			description: "Share of the expected pairs on which GPUDirect RDMA works. GDRPathStaged pages, GDRPathDegraded warns.",
			queries:     []query{{expr: `sum(gdr_path_state{@pair,state="direct"} ` + expected + `) / sum(gdr_path_expected{@pair})`}}}},
		&number{spec: spec{title: "Findings", w: 3, h: 4, unit: "short", decimals: whole, thresholds: zeroWarn,
			description: "Findings that are critical or warnings; the table below says which.",
			queries:     []query{{expr: `count(gdr_finding{@node,severity=~"critical|warning"}) or vector(0)`}}}},
		&number{spec: spec{title: "Ports down", w: 3, h: 4, unit: "short", decimals: whole, thresholds: zeroWarn,
			description: "Expected ports that are not ACTIVE. A port that never was, and that no profile names, is not expected.",
			queries:     []query{{expr: `count((gdr_rdma_port_state_id{@device} != 4) and on (cluster, node, device, port) (gdr_rdma_port_expected{@device} == 1)) or vector(0)`}}}},
		&number{spec: spec{title: "Verified ago", w: 4, h: 4, unit: "s", thresholds: from("green", level(86400, "orange")), noValue: "never",
			description: "Age of the oldest last success of an expected pair: a measurement, of any depth, that found GPUDirect RDMA to work. Over a day GDRPathUnverified tells. On a busy node this is usual.",
			queries:     []query{{expr: `time() - min(max by (cluster, node, gpu_address, device) (gdr_probe_last_success_timestamp_seconds{@pair}) ` + expected + `)`}}}},
		&number{names: true, spec: spec{title: "Driver", w: 4, h: 4, description: "Version of the loaded NVIDIA driver.", noValue: "none",
			queries: []query{{expr: `max by (version) (gdr_driver_info{@node})`, legend: "{{version}}"}}}},
		&number{names: true, spec: spec{title: "NVML", w: 3, h: 4, description: "State of NVML. Without it GPUs are known by their PCI addresses only.", noValue: "hangs",
			queries: []query{{expr: `max by (state) (gdr_gpu_nvml_state{@node} == 1)`, legend: "{{state}}"}}}},
		&number{spec: spec{title: "Quiesced", w: 3, h: 4, mappings: mapped(state{"0", "no", "green"}, state{"1", "yes", "purple"}), thresholds: from("green", level(1, "purple")),
			description: "Yes: an operator has told the exporter to let go of all drivers. Nothing is measured then, and no alert of the node fires but GDRQuiescedLong.",
			queries:     []query{{expr: `max(gdr_quiesced_until_timestamp_seconds{@node}) > bool time()`}}}},
	}
}

func nodeMatrices() []panel {
	verdict := `max by (gpu_address, device) (gdr_path_state{@pair,state="direct"} == 1) + 100
		or max by (gpu_address, device) (gdr_path_state{@pair,state="degraded"} == 1) + 101
		or max by (gpu_address, device) (gdr_path_state{@pair,state="staged"} == 1) + 102
		or max by (gpu_address, device) (gdr_path_state{@pair,state="unsupported"} == 1) + 103
		or max by (gpu_address, device) (gdr_path_state{@pair,state="unknown"} == 1) + 104
		or max by (gpu_address, device) (gdr_affinity_distance_id{@pair})`
	return []panel{
		&matrix{spec: spec{title: "State, else PCIe distance", w: 12, h: 10, mappings: pairStates, thresholds: from(dark), queries: []query{{expr: verdict}},
			description: "State of expected and measured pairs; of the others how far they are apart, as nvidia-smi topo -m names it. Libraries use GPUDirect RDMA up to P2C by default, so a far pair without a state is no fault. There is no variable NCCL_GPUDIRECT: NCCL_NET_GDR_LEVEL is the one that moves the limit."},
			rows: "gpu_address", columns: "device", head: "GPU", first: 115},
		&matrix{spec: spec{title: "Path gpu as a share of the host path", w: 12, h: 10, unit: "percentunit", decimals: whole, thresholds: ratioLimits,
			description: "GPU to GPU against host to host over the same port, in one measurement. Limits of the verdict: 85 % of near pairs, 60 % of far ones, each a flag. None: an expected pair that is not measured, or whose rates have been withdrawn. Empty: nobody expects the pair.",
			mappings:    mapped(state{"-1", "none", dark}),
			queries:     []query{{expr: `max by (gpu_address, device) (gdr_probe_ratio{@pair,path="gpu"}) or max by (gpu_address, device) (gdr_path_expected{@pair} == 1) - 2`}}},
			rows: "gpu_address", columns: "device", head: "GPU", first: 115},
	}
}

func nodeFindings() []panel {
	return []panel{
		&grid{spec: spec{title: "Findings", w: 24, h: 8, noValue: "None",
			description: "What the exporter found, the worst first, with what to do. A click on a rule opens its runbook, which says how to confirm it and when to ignore it. The node's status page has what was seen.",
			queries:     []query{{expr: withTexts(`count by (rule, severity, gpu_address, device, port, address) (gdr_finding{@node})`)}}},
			sort: "Severity", tall: true, columns: []column{
				{label: "severity", title: "Severity", width: 90, mappings: severities}, {label: "rule", title: "Rule", width: 150, link: toRunbook},
				{label: "gpu_address", title: "GPU", width: 115}, {label: "device", title: "NIC", width: 80}, {label: "port", title: "Port", width: 60}, {label: "address", title: "PCI", width: 115},
				{label: "what", title: "What is wrong", width: 280, mappings: meanings, text: true, wrap: true}, {label: "remedy", title: "What to do", mappings: remedies, text: true, wrap: true},
			}},
		&grid{spec: spec{title: "Alerts", w: 8, h: 6, noValue: "None",
			description: "Alerts of the node, pending and firing, as Prometheus has them.",
			queries:     []query{{expr: `count by (alertname, severity, alertstate) (ALERTS{@node,scope=~"node|port|pair"})`}}},
			sort: "State", columns: []column{
				{label: "alertname", title: "Alert", link: toRunbook}, {label: "severity", title: "Severity", width: 90, mappings: severities},
				{label: "alertstate", title: "State", width: 80}, {query: 0, title: "Pairs", decimals: whole, width: 65},
			}},
		&bars{spec: spec{title: "Rules of the diagnosis", w: 8, h: 6, unit: "short", decimals: whole, thresholds: from("blue"),
			description: "Not judged: evidence is missing, such as a privilege or a collector that is off. That is not the same as clear; the status page names what is missing.",
			queries:     []query{{expr: `max by (result) (gdr_diagnosis_rules{@node})`, legend: "{{result}}"}}}},
		&grid{spec: spec{title: "What the node is", w: 8, h: 6,
			description: "By what the exporter knows what the node should have (a profile, or what it has learned), and whether the page is a replay of another host.",
			queries: []query{{expr: `label_replace(max by (source, name) (gdr_profile_info{@node}), "fact", "profile", "", "")
				or label_join(label_replace(max by (name, recorded, synthetic) (gdr_replay_info{@node}), "fact", "replay", "", ""), "source", ", ", "recorded", "synthetic")`}}},
			columns: []column{{label: "fact", title: "Fact", width: 100}, {label: "name", title: "Name"}, {label: "source", title: "Source"}}},
	}
}

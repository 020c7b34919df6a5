package dashboards

func nodeMeasured() []panel {
	rate := func(path string) query {
		return query{expr: `8 * max by (gpu_address, device) (gdr_probe_bytes_per_second{@pair,path="` + path + `"})`}
	}
	table := &grid{spec: spec{title: "Measured pairs", w: 24, h: 10,
		description: "The measurements that stand, one direction, over one NIC looped back: host to host is the control. gpu read: the NIC reads GPU memory, which fails first through a root complex. gpu: GPU to GPU, as jobs use it. staged: what a job gets when GPUDirect RDMA is lost. It says nothing of cable and switch, and is no bus bandwidth: that of a collective over two nodes is not twice the link.",
		queries: []query{
			rate("host"), rate("gpu_read"), rate("gpu_write"), rate("gpu"), rate("staged"),
			{expr: `max by (gpu_address, device) (gdr_probe_ratio{@pair,path="gpu"})`},
			{expr: `max by (gpu_address, device) (gdr_probe_baseline_ratio{@pair})`},
			{expr: `max by (gpu_address, device) (gdr_probe_latency_median_seconds{@pair,path="gpu"})`},
			{expr: `time() - max by (gpu_address, device) (gdr_probe_result_timestamp_seconds{@pair,depth="full"})`},
			{expr: `max by (gpu_address, device, outcome, method, load) (gdr_probe_info{@pair})`},
		}},
		sort: "GPU", columns: []column{gpuColumn, {label: "device", title: "NIC", width: 90}, {label: "outcome", title: "Outcome", width: 95, mappings: outcomes}}}
	for i, title := range []string{"Host", "gpu read", "gpu write", "gpu", "staged"} {
		table.columns = append(table.columns, column{query: i, title: title, unit: "bps", decimals: whole})
	}
	table.columns = append(table.columns,
		column{query: 5, title: "gpu / host", unit: "percentunit", decimals: whole, coloured: ratioLimits},
		column{query: 6, title: "of its past", unit: "percentunit", decimals: whole, coloured: baselineLimits},
		column{query: 7, title: "Latency", unit: "s", decimals: digits(1)},
		column{query: 8, title: "Age", unit: "s", decimals: digits(1)},
		column{label: "method", title: "Method", width: 90}, column{label: "load", title: "Load", width: 70})
	return append([]panel{table}, nodeMeasuredGraphs()...)
}

var outcomes = mapped(
	state{"fine", "fine", "green"}, state{"slow", "slow", "orange"}, state{"failed", "failed", "red"},
	state{"corrupt", "corrupt", "red"}, state{"unsupported", "unsupported", "purple"},
)

func nodeMeasuredGraphs() []panel {
	return []panel{
		&graph{spec: spec{title: "Rate of path gpu", w: 12, h: 8, unit: "bps",
			description: "GPU to GPU over the pair's NIC, as jobs use it, and dashed the slowest port's rate, which it cannot pass. A measurement stands until the next one, so that steps are an hour apart by default.",
			queries: []query{
				{expr: `8 * max by (gpu_address, device) (gdr_probe_bytes_per_second{@pair,path="gpu"})`, legend: "{{gpu_address}} {{device}}"},
				{expr: `8 * min(port:gdr_rdma_port_rate_bytes_per_second:active{@device})`, legend: "port", colour: "text", dashed: true},
			}}, minimum: digits(0)},
		&graph{spec: spec{title: "Rate against the pair's own past", w: 12, h: 8, unit: "percentunit", thresholds: baselineLimits,
			description: "Path gpu against the 90th percentile of the pair's last measurements while idle. Below 90 % GDRPathDecline warns, below 80 % GDRPathRateLost may.",
			queries:     []query{{expr: `max by (gpu_address, device) (gdr_probe_baseline_ratio{@pair})`, legend: "{{gpu_address}} {{device}}"}}}, limits: true},
		&graph{spec: spec{title: "Latency of 8-byte writes", w: 12, h: 7, unit: "s",
			description: "From post to completion, one at a time; the slowest pair, each pair is in the table. The 99th percentile far above the median is jitter of the host: power saving, IOMMU, a busy root complex.",
			queries: []query{
				{expr: `max by (path) (gdr_probe_latency_median_seconds{@pair})`, legend: "{{path}} median"},
				{expr: `max by (path) (gdr_probe_latency_p99_seconds{@pair})`, legend: "{{path}} 99 %", dashed: true},
			}}},
		&bars{spec: spec{title: "Processor time for 10^9 bytes", w: 12, h: 7, unit: "s", thresholds: from("blue"),
			description: "Of the measuring thread, worst pair. Staging costs copies; GPUDirect RDMA next to nothing.",
			queries:     []query{{expr: `max by (path) (gdr_probe_cpu_seconds_per_gigabyte{@pair})`, legend: "{{path}}"}}}},
		&timeline{spec{title: "State of expected pairs", w: 24, h: 9, mappings: mapped(
			state{"1", "direct", "green"}, state{"2", "degraded", "orange"}, state{"3", "staged", "red"}, state{"4", "unsupported", "purple"}, state{"5", "unknown", "blue"}),
			description: "The verdict over time. A bad result has been confirmed before it shows; a skipped measurement changes nothing.",
			queries: []query{{legend: "{{gpu_address}} {{device}}", expr: `
				max by (gpu_address, device) (gdr_path_state{@pair,state="direct"} == 1)
				or max by (gpu_address, device) (gdr_path_state{@pair,state="degraded"} == 1) + 1
				or max by (gpu_address, device) (gdr_path_state{@pair,state="staged"} == 1) + 2
				or max by (gpu_address, device) (gdr_path_state{@pair,state="unsupported"} == 1) + 3
				or max by (gpu_address, device) (gdr_path_state{@pair,state="unknown"} == 1) + 4`}}}},
	}
}

func nodeLibraries() []panel {
	pair := func(expr string) string { return `label_join(` + expr + `, "pair", " ", "gpu_address", "device")` }
	return []panel{
		&matrix{spec: spec{title: "Libraries would use it", w: 9, h: 9, mappings: mapped(state{"1", "uses GDR", "green"}, state{"0", "stages", "orange"}), thresholds: from("text"),
			description: "What each library would decide by its own rules, with no variable set. A column with a number is that NCCL version's rules. Stages although the pair is direct: GDRLibraryRefuses. NCCL_GPUDIRECT does not exist, and setting it does nothing; NCCL_NET_GDR_LEVEL and NCCL_NET_GDR_C2C do.",
			queries: []query{{expr: pair(`label_replace(max by (gpu_address, device, rule) (gdr_nccl_would_use_gdr{@pair}), "rule", "NCCL $1", "rule", "(.*)")
				or label_replace(max by (gpu_address, device) (gdr_ucx_would_use_gdr{@pair}), "rule", "UCX", "", "")`)}}},
			rows: "pair", columns: "rule", head: "Pair", first: 165},
		&matrix{spec: spec{title: "Registration of GPU memory", w: 8, h: 9, mappings: mapped(state{"1", "works", "green"}, state{"0", "fails", "red"}), thresholds: from("text"),
			description: "Whether GPU memory could be registered with the NIC, by nvidia-peermem and by dma-buf. One is enough: no peermem where dma-buf works is no fault.",
			queries:     []query{{expr: pair(`max by (gpu_address, device, method) (gdr_probe_registered{@pair})`)}}},
			rows: "pair", columns: "method", head: "Pair", first: 165},
		&grid{spec: spec{title: "What speaks against it", w: 7, h: 9, noValue: "Nothing",
			description: "Why registration fails, why results were withdrawn, and what the GPU cannot do.",
			queries: []query{{expr: `
				label_join(label_replace(max by (gpu_address, device, method, errno) (gdr_probe_registration_error_info{@pair}), "why", "registration", "", ""), "detail", " ", "method", "errno")
				or label_join(label_replace(max by (gpu_address, device, reason) (gdr_probe_withdrawn_info{@pair}), "why", "withdrawn", "", ""), "detail", "", "reason")
				or label_replace(max by (gpu_address, device, reason) (gdr_probe_skipped{@pair} == 1), "why", "not measured", "", "")
				or label_replace(max by (gpu_address) (gdr_probe_gpu_direct_rdma_supported{@gpu} == 0), "why", "no GPUDirect RDMA", "", "")
				or label_replace(max by (gpu_address) (gdr_probe_gpu_dmabuf_supported{@gpu} == 0), "why", "no dma-buf", "", "")
				or label_replace(max by (gpu_address, device) (gdr_affinity_path_redirected{@pair} == 1), "why", "ACS redirects", "", "")`}}},
			sort: "GPU", columns: []column{{label: "gpu_address", title: "GPU", width: 115}, {label: "device", title: "NIC", width: 80}, {label: "why", title: "Why", width: 115}, {label: "detail", title: "Detail"}, {label: "reason", title: "Reason"}}},
		&timeline{spec{title: "In use by jobs, by what is registered", w: 12, h: 8, mappings: mapped(
			state{"1", "in use", "green"}, state{"2", "suspect: staging", "red"}, state{"3", "idle", grey}, state{"4", "cannot tell", "#6e6e6e"}),
			description: "Whether GPUDirect RDMA is being used through the NIC now. Suspect: bytes flow and a GPU's process has memory registered, but nothing of GPU memory is registered on the whole host (GDRLiveStaging).",
			queries: []query{{legend: "{{device}}", expr: `
				max by (device) (gdr_rdma_device_live_gdr{@device,state="in_use"} == 1)
				or max by (device) (gdr_rdma_device_live_gdr{@device,state="suspect"} == 1) + 1
				or max by (device) (gdr_rdma_device_live_gdr{@device,state="idle"} == 1) + 2
				or max by (device) (gdr_rdma_device_live_gdr{@device,state="cannot_tell"} == 1) + 3`}}}},
		&graph{spec: spec{title: "Memory registered with NICs", w: 12, h: 8, unit: "bytes",
			description: "All memory regions of the device, host and GPU memory alike.",
			queries:     []query{{expr: `max by (device) (gdr_rdma_device_memory_region_bytes{@device})`, legend: "{{device}}"}}}},
	}
}

func nodePeermem() []panel {
	return []panel{
		&grid{spec: spec{title: "Kernel modules", w: 8, h: 9,
			description: "Modules of the driver and of peer memory. No nvidia_peermem is no fault where dma-buf works.",
			queries: []query{{expr: `max by (module) (gdr_driver_module_loaded{@node}) or max by (module) (gdr_peermem_module_loaded{@node})`},
				{expr: `max by (module) (gdr_peermem_module_available{@node})`},
				{expr: `max by (module) (gdr_peermem_version_mismatch{@node})`}, {expr: `max by (module) (gdr_peermem_rdma_stack_holds{@node})`}}},
			sort: "Module", columns: []column{
				{label: "module", title: "Module"}, {query: 0, title: "Loaded", width: 80, mappings: mapped(state{"1", "yes", "green"}, state{"0", "no", grey})},
				{query: 1, title: "On disk", width: 80, mappings: yesPlain, text: true}, {query: 2, title: "Stale build", width: 95, mappings: yesWarn},
				{query: 3, title: "Held by RDMA", width: 115, mappings: mapped(state{"1", "yes", "green"}, state{"0", "no", "orange"})},
			}},
		&grid{spec: spec{title: "Which libraries see peer memory", w: 8, h: 9,
			description: "By the files that each library looks for. No does not rule out dma-buf, and yes does not say that registering works.",
			queries:     []query{{expr: `max by (library) (gdr_peermem_library_detects{@node})`}}},
			sort: "Library", columns: []column{{label: "library", title: "Library"}, {query: 0, title: "Sees it", width: 90, mappings: mapped(state{"1", "yes", "green"}, state{"0", "no", "orange"})}}},
		&grid{spec: spec{title: "Driver and RDMA stack", w: 8, h: 9,
			description: "Facts of driver, RDMA stack and kernel. Only stacks with the peer memory API take nvidia-peermem.",
			queries: []query{{expr: `
				label_join(label_replace(max by (version, flavor) (gdr_driver_info{@node}), "fact", "driver", "", ""), "detail", " ", "version", "flavor")
				or label_join(label_replace(max by (library_version) (gdr_driver_info{@node}), "fact", "user-space library", "", ""), "detail", "", "library_version")
				or label_join(label_replace(max by (kernel) (gdr_driver_info{@node}), "fact", "kernel", "", ""), "detail", "", "kernel")
				or label_join(label_replace(max by (origin) (gdr_driver_rdma_core_info{@node}), "fact", "RDMA stack", "", ""), "detail", "", "origin")
				or label_join(label_replace(max by (mode) (gdr_driver_lockdown_info{@node}), "fact", "kernel lockdown", "", ""), "detail", "", "mode")
				or label_join(label_replace(max by (module, version, state) (gdr_peermem_module_info{@node}), "fact", "peer memory module", "", ""), "detail", " ", "module", "version", "state")
				or label_join(label_replace(max by (library, version) (gdr_gpu_nvml_info{@node}), "fact", "NVML", "", ""), "detail", " ", "version", "library")
				or label_replace(max(gdr_driver_version_mismatch{@node}) == 1, "fact", "driver and library differ", "", "")
				or label_replace(max(gdr_driver_topology_check_override{@node}) > 0, "fact", "GrdmaPciTopoCheckOverride is set", "", "")
				or label_replace(max(gdr_peermem_memory_peers_present{@node}) == 1, "fact", "memory_peers of the RDMA stack", "", "")`}}},
			columns: []column{{label: "fact", title: "Fact", width: 190}, {label: "detail", title: "Detail"}}},
		&graph{few: true, spec: spec{title: "Peer memory regions", w: 8, h: 7, unit: "short",
			description: "Regions of GPU memory registered through nvidia-peermem now, and references to the module. Both are 0 with dma-buf, which has no such count.",
			queries: []query{
				{expr: `max by (client) (gdr_peermem_client_live_mrs{@node})`, legend: "{{client}} regions"},
				{expr: `max by (module) (gdr_peermem_references{@node})`, legend: "{{module}} references", dashed: true},
			}}},
		&graph{few: true, spec: spec{title: "Peer memory registered", w: 8, h: 7, unit: "Bps",
			description: "GPU memory that jobs register and unregister through nvidia-peermem. Steady churn of much memory is a job without a registration cache.",
			queries: []query{
				{expr: `sum by (client) (rate(gdr_peermem_client_reg_bytes_total{@node}[$__rate_interval]))`, legend: "{{client}} registered"},
				{expr: `sum by (client) (rate(gdr_peermem_client_dereg_bytes_total{@node}[$__rate_interval]))`, legend: "{{client}} unregistered", dashed: true},
			}}},
		&graph{few: true, spec: spec{title: "Peer memory events", w: 8, h: 7, unit: "short",
			description: "Regions registered and unregistered by second, and GPU memory that was freed while registered.",
			queries: []query{
				{expr: `sum by (client) (rate(gdr_peermem_client_alloc_mrs_total{@node}[$__rate_interval]))`, legend: "{{client}} registered"},
				{expr: `sum by (client) (rate(gdr_peermem_client_dealloc_mrs_total{@node}[$__rate_interval]))`, legend: "{{client}} unregistered"},
				{expr: `sum by (client) (rate(gdr_peermem_client_free_callbacks_total{@node}[$__rate_interval]))`, legend: "{{client}} freed under it", colour: "orange"},
			}}},
	}
}

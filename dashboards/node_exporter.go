package dashboards

func nodeProbe() []panel {
	return []panel{
		&graph{spec: spec{title: "Measurements within an hour", w: 12, h: 8, unit: "short",
			description: "By depth and result. Interrupted: a process came to the GPU, which is usual. Broken, crashed and hung say nothing of GPU memory.",
			queries:     []query{{expr: `sum by (depth, result) (increase(gdr_probe_runs_total{@node}[1h]))`, legend: "{{depth}} {{result}}"}}}},
		&graph{spec: spec{title: "Kept from measuring within an hour", w: 12, h: 8, unit: "short",
			description: "Times that a due pair was kept back, by reason. Busy is usual.",
			queries:     []query{{expr: `sum by (reason) (increase(gdr_probe_skips_total{@node}[1h]))`, legend: "{{reason}}"}}}},
		&graph{spec: spec{title: "What the probe moves", w: 12, h: 9, unit: "bps",
			description: "Bytes of measurements, each counted once: the NIC sends and receives as many. The traffic panels leave them out.",
			queries:     []query{{expr: `8 * sum by (device) (rate(gdr_probe_transferred_bytes_total{@device}[$__rate_interval]))`, legend: "{{device}}"}}}},
		&grid{spec: spec{title: "Pairs of the probe", w: 12, h: 9,
			description: "When each pair was last tried and last found to work, by depth; whether a measurement hangs (nothing then touches GPU and NIC until the exporter is restarted) or a worse result waits to be confirmed; wrong: 8-byte words that arrived wrong within a day.",
			queries: []query{
				{expr: `time() - max by (gpu_address, device) (gdr_probe_last_attempt_timestamp_seconds{@pair})`},
				{expr: `time() - max by (gpu_address, device) (gdr_probe_last_success_timestamp_seconds{@pair,depth="register"})`},
				{expr: `time() - max by (gpu_address, device) (gdr_probe_last_success_timestamp_seconds{@pair,depth="full"})`},
				{expr: `max by (gpu_address, device) (gdr_probe_hung{@pair})`}, {expr: `max by (gpu_address, device) (gdr_probe_unconfirmed{@pair})`},
				{expr: `sum by (gpu_address, device) (increase(gdr_probe_mismatches_total{@pair}[1d]))`},
				{expr: `max by (gpu_address, device, evidence) (gdr_path_evidence{@pair} == 1)`},
			}},
			sort: "GPU", columns: []column{
				{label: "gpu_address", title: "GPU", width: 115}, {label: "device", title: "NIC", width: 80}, {query: 0, title: "Tried", unit: "s", decimals: digits(1)}, {query: 1, title: "Registered", unit: "s", decimals: digits(1)}, {query: 2, title: "Well", unit: "s", decimals: digits(1)},
				{label: "evidence", title: "Evidence", width: 95}, {query: 3, title: "Hangs", width: 60, mappings: yesBad}, {query: 4, title: "Waits", width: 60, mappings: yesWarn}, {query: 5, title: "Wrong", width: 65, coloured: zeroGood, decimals: whole},
			}},
		&number{names: true, spec: spec{title: "Isolation", w: 6, h: 4, description: "Where measurements are made: in the exporter's process, or each in a short-lived child.", noValue: "no probe",
			queries: []query{{expr: `max by (mode) (gdr_probe_isolation{@node} == 1)`, legend: "{{mode}}"}}}},
		&number{plain: true, spec: spec{title: "Interval", w: 6, h: 4, unit: "s", thresholds: plain, description: "How often an idle pair is measured in full; 0: no runs are scheduled.", noValue: "no probe",
			queries: []query{{expr: `max(gdr_probe_interval_seconds{@node})`}}}},
		&bars{spec: spec{title: "Processes that use a GPU and an RDMA device", w: 12, h: 4, unit: "short", decimals: whole, thresholds: from("blue"), noValue: "Not known: not in the host's PID namespace",
			description: "Without the exporter itself. No series unless it is known who uses both.",
			queries:     []query{{expr: `max(gdr_process_jobs{@node})`, legend: "processes"}}}},
	}
}

func nodeExporter() []panel {
	return []panel{
		&graph{spec: spec{title: "How long collectors take", w: 8, h: 8, unit: "s",
			description: "A collector that reaches the deadline (5 s, or half a second less than Prometheus's timeout) has a device that hangs.",
			queries:     []query{{expr: `max by (collector) (gdr_scrape_collector_duration_seconds{@node})`, legend: "{{collector}}"}}}},
		&graph{spec: spec{title: "Slowest devices", w: 8, h: 8, unit: "s",
			description: "The ten slowest reads. Each device has its own worker: one that hangs costs its own samples only.",
			queries:     []query{{expr: `topk(10, max by (collector, device) (gdr_device_read_duration_seconds{@node}))`, legend: "{{collector}} {{device}}"}}}},
		&graph{spec: spec{title: "Values that could not be read", w: 8, h: 8, unit: "short", noValue: "None",
			description: "Read errors by second. A value that cannot be read has no sample: it is not 0.",
			queries:     []query{{expr: `topk(10, sum by (device, source, errno) (rate(gdr_read_errors_total{@node}[$__rate_interval])))`, legend: "{{device}} {{source}} {{errno}}"}}}},
		&timeline{spec{title: "Collectors", w: 8, h: 10, mappings: mapped(state{"1", "works", "green"}, state{"0", "fails", "red"}),
			description: "Fails: it could not list what it reads (GDRCollectorFailing after 15 minutes).",
			queries:     []query{{expr: `max by (collector) (gdr_scrape_collector_success{@node})`, legend: "{{collector}}"}}}},
		&grid{spec: spec{title: "What hangs", w: 8, h: 10, noValue: "Nothing",
			description: "Devices whose read has not returned, and the NVML call that has not, with seconds.",
			queries: []query{{expr: `
				label_replace(max by (collector, device) (gdr_device_read_stuck{@node} == 1), "what", "read of a device", "", "")
				or label_replace(max(gdr_gpu_nvml_stuck_seconds{@node} > 0), "what", "a call of NVML", "", "")
				or label_replace(max by (call, gpu_address) (gdr_gpu_nvml_stuck_call_info{@node}), "what", "the call", "", "")
				or label_replace(max(gdr_gpu_nvml_library_stale{@node} == 1), "what", "NVML on disk is newer", "", "")`}}},
			columns: []column{{label: "what", title: "What"}, {label: "collector", title: "Collector", width: 90}, {label: "device", title: "Device", width: 80}, {label: "call", title: "Call"}, {query: 0, title: "Value", width: 70}}},
		&grid{spec: spec{title: "Sources", w: 8, h: 10,
			description: "What the exporter can see. What is not there is missing on the page, never 0.",
			queries: []query{{expr: `
				label_replace(max(gdr_rdma_class_present{@node}), "source", "/sys/class/infiniband", "", "")
				or label_replace(max(gdr_rdma_netlink_up{@node}), "source", "RDMA netlink", "", "")
				or label_replace(max(gdr_rdma_monitor_up{@node}), "source", "RDMA events", "", "")
				or label_replace(max(gdr_rdma_devlink_present{@node}), "source", "devlink", "", "")
				or label_replace(max(gdr_driver_loaded{@node}), "source", "NVIDIA driver", "", "")
				or label_replace(max(gdr_gpu_nvml_up{@node}), "source", "NVML", "", "")
				or label_replace(max(gdr_pcie_config_readable{@node}), "source", "PCI configuration space", "", "")
				or label_replace(max(gdr_kernel_log_readable{@node}), "source", "kernel log", "", "")
				or label_replace(max(gdr_process_visible{@node}), "source", "processes of the host", "", "")`}}},
			sort: "Source", columns: []column{{label: "source", title: "Source"}, {query: 0, title: "There", width: 80, mappings: mapped(state{"1", "yes", "green"}, state{"0", "no", "orange"})}}},
		&graph{spec: spec{title: "Age of what is read on a timer", w: 12, h: 7, unit: "s",
			description: "Rates, error counters, PCIe and NVLink are read at most once a minute by default. Age beyond a few minutes: a device hangs, or scrapes are rare.",
			queries: []query{
				{expr: `time() - min(gdr_rdma_device_slow_read_timestamp_seconds{@node})`, legend: "RDMA devices"},
				{expr: `time() - min(gdr_gpu_slow_read_timestamp_seconds{@node})`, legend: "GPUs"},
				{expr: `time() - min(gdr_driver_slow_read_timestamp_seconds{@node})`, legend: "driver files"},
				{expr: `time() - min(gdr_rdma_devlink_read_timestamp_seconds{@node})`, legend: "devlink"},
				{expr: `time() - min(gdr_scrape_collector_timestamp_seconds{@node})`, legend: "collectors"},
			}}},
		&grid{spec: spec{title: "Version and size", w: 12, h: 7,
			description: "Version of the exporter, and how much it reads.",
			queries: []query{{expr: `
				label_join(label_replace(max by (version, goversion) (gdr_exporter_build_info{@node}), "fact", "exporter", "", ""), "detail", " ", "version", "goversion")
				or label_replace(max(gdr_rdma_devices{@node}), "fact", "RDMA devices", "", "")
				or label_replace(max(gdr_rdma_devices_excluded{@node}) > 0, "fact", "RDMA devices left out", "", "")
				or label_join(label_replace(max by (source) (gdr_gpus{@node}), "fact", "GPUs", "", ""), "detail", "", "source")
				or label_replace(max(gdr_findings_omitted{@node}), "fact", "findings not shown", "", "")
				or label_replace(sum(gdr_rdma_device_counters_omitted{@node}) > 0, "fact", "counters left out", "", "")
				or label_replace(sum(gdr_rdma_device_counters_hidden{@node}) > 0, "fact", "counters hidden", "", "")
				or label_replace(sum(gdr_rdma_port_restricted{@node}) > 0, "fact", "directories that refuse", "", "")`}}},
			columns: []column{{label: "fact", title: "Fact", width: 190}, {label: "detail", title: "Detail"}, {query: 0, title: "Value", width: 80}}},
	}
}

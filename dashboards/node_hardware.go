package dashboards

func nodePorts() []panel {
	return []panel{
		&grid{spec: spec{title: "Ports", w: 24, h: 9,
			description: "All ports of RDMA devices. The rate of a port that is not ACTIVE is a placeholder. Expected: a profile names the port, or it was ACTIVE here. INIT with LinkUp: no subnet manager has configured it.",
			queries: []query{
				{expr: `max by (device, port) (gdr_rdma_port_state_id{@device})`}, {expr: `max by (device, port) (gdr_rdma_port_physical_state_id{@device})`},
				{expr: `8 * max by (device, port) (gdr_rdma_port_rate_bytes_per_second{@device})`}, {expr: `max by (device, port) (gdr_rdma_port_width_lanes{@device})`},
				{expr: `max by (device, port) (gdr_rdma_port_expected{@device})`}, {expr: `max by (device, port) (gdr_rdma_port_saturated_counters{@device})`},
				{expr: `max by (device, port, link_layer, netdev, speed) (gdr_rdma_port_info{@device})`},
				{expr: `max by (device, driver, firmware, board, role, address) (gdr_rdma_device_info{@device})`},
				{expr: `max by (device, port) (gdr_rdma_port_sm_lid{@device})`},
			}},
			sort: "NIC", columns: []column{
				{label: "device", title: "NIC", width: 80}, {label: "port", title: "Port", width: 60}, {query: 0, title: "State", width: 90, mappings: portStates}, {query: 1, title: "Physical", width: 95, mappings: physicalStates},
				{query: 2, title: "Rate", unit: "bps", decimals: whole, width: 90}, {query: 3, title: "Lanes", width: 65}, {label: "speed", title: "Speed", width: 75}, {query: 4, title: "Expected", width: 85, mappings: yesPlain, text: true},
				{label: "link_layer", title: "Layer", width: 100}, {label: "netdev", title: "Interface", width: 100}, {label: "role", title: "Role", width: 90}, {label: "address", title: "PCI", width: 115}, {label: "board", title: "Board", width: 135},
				{label: "firmware", title: "Firmware", width: 115}, {label: "driver", title: "Driver", width: 100}, {query: 8, title: "SM LID", width: 75}, {query: 5, title: "Saturated", coloured: zeroWarn},
			}},
		&timeline{spec{title: "Port states", w: 12, h: 8, mappings: portStates,
			description: "Gaps: the state could not be read, which is not down.",
			queries:     []query{{expr: `max by (device, port) (gdr_rdma_port_state_id{@device})`, legend: "{{device}}/{{port}}"}}}},
		&graph{spec: spec{title: "RDMA traffic", w: 12, h: 8, unit: "bps",
			description: "Both directions, less what the probe moved. More is on the dashboard GDR / RDMA fabric.",
			queries:     []query{{expr: `8 * device:gdr_rdma_bytes:rate5m{@device}`, legend: "{{device}}"}}}},
	}
}

func nodeNVLink() []panel {
	count := func(name string) string {
		return `sum by (gpu_address) (rate(gdr_nvlink_` + name + `{@gpu}[$__rate_interval]))`
	}
	var errs []query
	for _, name := range []string{"crc_errors", "replay_errors", "recovery_errors", "recoveries", "failed_recoveries", "effective_errors", "symbol_errors", "receive_errors", "transmit_discards"} {
		errs = append(errs, query{expr: count(name + "_total"), legend: "{{gpu_address}} " + name})
	}
	return []panel{
		&grid{spec: spec{title: "Links and fabric", w: 12, h: 9,
			description: "Active or sleeping NVLinks of all that the GPU has: fewer than its siblings have is NVLinkDown, fewer than it could have may be by design. Fabric not supported is neutral, as without NVSwitch.",
			queries: []query{
				{expr: `max by (gpu_address) (gdr_nvlink_active_links{@gpu})`}, {expr: `max by (gpu_address) (gdr_nvlink_links{@gpu})`},
				{expr: `sum by (gpu_address) (gdr_nvlink_speed_bytes_per_second{@gpu})`}, {expr: `max by (gpu_address, remote, version) (gdr_nvlink_info{@gpu})`},
				{expr: `max by (gpu_address) (gdr_fabric_state_id{@gpu})`}, {expr: `max by (gpu_address) (gdr_fabric_health_summary_id{@gpu})`},
				{expr: `max by (gpu_address) (gdr_gpu_p2p_peers{@gpu,capability="read"})`},
			}},
			sort: "GPU", columns: []column{
				{label: "gpu_address", title: "GPU", width: 115}, {query: 0, title: "Active", width: 70}, {query: 1, title: "Of", width: 55}, {query: 2, title: "Speed", unit: "Bps", decimals: whole, width: 90},
				{label: "remote", title: "To", width: 70}, {label: "version", title: "Version", width: 75}, {query: 4, title: "Fabric", mappings: fabricStates, width: 115},
				{query: 5, title: "Health", mappings: fabricHealth}, {query: 6, title: "P2P peers", width: 95},
			}},
		&grid{spec: spec{title: "What is wrong with NVLink and fabric", w: 12, h: 9, noValue: "Nothing",
			description: "Links that are inactive (without --collector.nvlink.per-link others have no series), and faults of the fabric.",
			queries: []query{{expr: `
				label_replace(max by (gpu_address, nvlink) (gdr_nvlink_state_id{@gpu} == 0), "what", "link is inactive", "", "")
				or label_replace(max by (gpu_address) (gdr_fabric_status_id{@gpu} != 0), "what", "fabric registration failed", "", "")
				or label_replace(max by (gpu_address) (gdr_fabric_degraded_bandwidth{@gpu} == 1), "what", "fabric bandwidth is degraded", "", "")
				or label_replace(max by (gpu_address) (gdr_fabric_route_unhealthy{@gpu} == 1), "what", "a route is unhealthy", "", "")
				or label_replace(max by (gpu_address) (gdr_fabric_route_recovery{@gpu} == 1), "what", "a route is being recovered", "", "")
				or label_replace(max by (gpu_address) (gdr_fabric_access_timeout_recovery{@gpu} == 1), "what", "recovery from a timeout", "", "")
				or label_replace(max by (gpu_address) (gdr_fabric_incorrect_configuration_id{@gpu} > 1), "what", "configuration of the fabric is wrong", "", "")`}}},
			sort: "GPU", columns: []column{{label: "gpu_address", title: "GPU", width: 130}, {label: "nvlink", title: "Link", width: 70}, {label: "what", title: "What"}, {query: 0, title: "Value", width: 80}}},
		&graph{spec: spec{title: "NVLink traffic", w: 12, h: 8, unit: "Bps",
			description: "Both directions of all links of the GPU. Read of two links with each scrape, in turn: short bursts are smoothed.",
			queries:     []query{{expr: count("receive_bytes_total") + ` + ` + count("transmit_bytes_total"), legend: "{{gpu_address}}"}}}},
		&graph{spec: spec{title: "NVLink errors by second", w: 12, h: 8, unit: "short",
			description: "CRC errors and replays are repaired, and some are normal; recoveries and effective errors are not. NVLinkErrors has the limits. Symbols that forward error correction repaired are normal on NVLink 5 and not shown here.",
			queries:     errs}},
		&graph{spec: spec{title: "Bit error ratio, NVLink 5", w: 12, h: 7, unit: "sci", noValue: "No NVLink 5",
			description: "The largest of the GPU's links: of symbols, and dashed what is left after correction.",
			queries: []query{
				{expr: `max by (gpu_address) (gdr_nvlink_symbol_bit_error_ratio{@gpu})`, legend: "{{gpu_address}} symbols"},
				{expr: `max by (gpu_address) (gdr_nvlink_effective_bit_error_ratio{@gpu})`, legend: "{{gpu_address}} left", dashed: true},
			}}},
		&graph{spec: spec{title: "Symbols corrected by second, NVLink 5", w: 12, h: 7, unit: "short", noValue: "No NVLink 5",
			description: "Symbols that forward error correction repaired: many are normal. One GPU far above the others is worth a look.",
			queries:     []query{{expr: count("fec_corrected_symbols_total"), legend: "{{gpu_address}}"}}}},
	}
}

func nodePCIe() []panel {
	return []panel{
		&grid{spec: spec{title: "PCIe links", w: 14, h: 10,
			description: "Functions at the lower end of a link, on the way between GPUs and the NICs nearest to them. A GPU's link may slow down while idle, and Gen1 at idle is no fault; a NIC's does not, and lanes never go.",
			queries: []query{
				{expr: `max by (address, kind, numa_node) (gdr_pcie_function_info{@node})
					and on (address) gdr_pcie_link_width_lanes{@node}`},
				{expr: `max by (address) (gdr_pcie_link_width_lanes{@node})`}, {expr: `max by (address) (gdr_pcie_link_possible_width_lanes{@node})`},
				{expr: `max by (address) (gdr_pcie_link_speed_transfers_per_second{@node}) / 1e9`}, {expr: `max by (address) (gdr_pcie_link_possible_speed_transfers_per_second{@node}) / 1e9`},
				{expr: `max by (address) (gdr_pcie_link_width_lanes{@node}) / max by (address) (gdr_pcie_link_possible_width_lanes{@node})`},
				{expr: `max by (address) (gdr_pcie_max_payload_bytes{@node})`}, {expr: `max by (address) (gdr_pcie_max_read_request_bytes{@node})`},
				{expr: `max by (address) (gdr_pcie_relaxed_ordering_enabled{@node})`}, {expr: `max by (address) (gdr_pcie_power_state_id{@node})`},
			}},
			sort: "Address", columns: []column{
				{label: "address", title: "Address", width: 110}, {label: "kind", title: "Kind", width: 65}, {label: "numa_node", title: "NUMA", width: 65},
				{query: 1, title: "Lanes", width: 65}, {query: 2, title: "of", width: 50}, {query: 5, title: "Width", unit: "percentunit", decimals: whole, width: 75, coloured: fullShare},
				{query: 3, title: "GT/s", width: 65}, {query: 4, title: "of ", width: 50}, {query: 6, title: "Payload", unit: "bytes", width: 80}, {query: 7, title: "Read req.", unit: "bytes", width: 85},
				{query: 8, title: "Relaxed", width: 80, mappings: yesPlain, text: true}, {query: 9, title: "Power", mappings: powerStates, text: true},
			}},
		&grid{spec: spec{title: "Way between GPU and NIC", w: 10, h: 10,
			description: "What the narrowest link on the way carries in one direction, now and at full speed, before packet headers. ACS redirect: packets go through the root complex. IOMMU translated below a switch: each access takes the same way.",
			queries: []query{
				{expr: `max by (gpu_address, device, distance, iommu) (gdr_affinity_path_info{@pair})`},
				{expr: `max by (gpu_address, device) (gdr_affinity_path_bytes_per_second{@pair})`}, {expr: `max by (gpu_address, device) (gdr_affinity_path_possible_bytes_per_second{@pair})`},
				{expr: `max by (gpu_address, device) (gdr_affinity_path_redirected{@pair})`},
			}},
			sort: "GPU", columns: []column{
				{label: "gpu_address", title: "GPU", width: 110}, {label: "device", title: "NIC", width: 75}, {label: "distance", title: "Distance", width: 85}, {query: 1, title: "Now", unit: "Bps", decimals: digits(1), width: 90},
				{query: 2, title: "Possible", unit: "Bps", decimals: digits(1), width: 90}, {query: 3, title: "ACS", width: 60, mappings: yesWarn}, {label: "iommu", title: "IOMMU"},
			}},
		&graph{spec: spec{title: "PCIe errors (AER)", w: 8, h: 8, unit: "short",
			description: "By second, since boot. Correctable ones are repaired: ten a second for half an hour are a bad contact (PCIeAERCorrectable). Absent where the firmware handles errors.",
			queries: []query{
				{expr: `sum by (severity) (rate(gdr_pcie_aer_errors_total{@node}[$__rate_interval]))`, legend: "{{severity}}"},
				{expr: `sum by (address, type) (rate(gdr_pcie_aer_errors_by_type_total{@node}[$__rate_interval])) > 0`, legend: "{{address}} {{type}}"},
			}}},
		&graph{spec: spec{title: "PCIe replays of GPUs", w: 8, h: 8, unit: "short",
			description: "Packets sent again by second. Some are normal under load; PCIeReplays warns above one for 10 GB that the link can carry.",
			queries:     []query{{expr: `sum by (gpu_address) (rate(gdr_gpu_pcie_replays_total{@gpu}[$__rate_interval]))`, legend: "{{gpu_address}}"}}}},
		&graph{spec: spec{title: "PCIe generation of GPUs", w: 8, h: 8, unit: "short",
			description: "Now, and dashed what GPU and host can do. Lower while idle is usual; PCIeGPUGenerationLost looks under load only.",
			queries: []query{
				{expr: `max by (gpu_address) (gdr_gpu_pcie_generation{@gpu})`, legend: "{{gpu_address}}"},
				{expr: `min(gdr_gpu_pcie_host_max_generation{@gpu})`, legend: "possible", colour: "text", dashed: true},
			}}},
		&grid{spec: spec{title: "Bridges with ACS redirect", w: 12, h: 5, noValue: "None",
			description: "Bridges in which ACS sends requests or completions up to the root complex. That is a fault only below the common bridge of an expected pair (PCIeACSRedirect). Needs CAP_SYS_ADMIN to be read.",
			queries:     []query{{expr: `max by (address) (gdr_pcie_acs_redirect{@node} == 1)`}}},
			sort: "Bridge", columns: []column{{label: "address", title: "Bridge"}}},
		&number{plain: true, spec: spec{title: "IOMMUs in use", w: 6, h: 5, unit: "short", thresholds: plain, description: "Number of IOMMUs that the kernel uses; 0: none, or switched off.",
			queries: []query{{expr: `max(gdr_affinity_iommu_units{@node})`}}}},
		&number{spec: spec{title: "Configuration space", w: 6, h: 5, mappings: mapped(state{"1", "readable", "green"}, state{"0", "64 bytes only", "orange"}), thresholds: from("green"),
			description: "Without CAP_SYS_ADMIN the kernel shows 64 bytes only: ACS, payload, read request and relaxed ordering are then not known.",
			queries:     []query{{expr: `min(gdr_pcie_config_readable{@node})`}}}},
	}
}

func nodeGPUs() []panel {
	return []panel{
		&grid{spec: spec{title: "GPUs", w: 13, h: 9,
			description: "Join with DCGM's metrics on the UUID. Presence: by what the GPU is known; without NVML by its PCI address only. No temperature, power or utilisation: that is DCGM's.",
			queries:     []query{{expr: `max by (gpu_address, index, uuid, name, vbios, numa_node, presence) (gdr_gpu_info{@gpu})`}}},
			sort: "Index", columns: []column{
				{label: "index", title: "Index", width: 60}, {label: "gpu_address", title: "GPU", width: 110}, {label: "name", title: "Model"}, {label: "uuid", title: "UUID", width: 355},
				{label: "numa_node", title: "NUMA", width: 60}, {label: "presence", title: "Presence", width: 80},
			}},
		&grid{spec: spec{title: "State of GPUs", w: 11, h: 9,
			description: "MIG and exclusive compute modes keep the probe away, which is no fault. BAR1: NICs reach GPU memory through it; full, and no more can be registered through nvidia-peermem.",
			queries: []query{
				{expr: `max by (gpu_address) (gdr_gpu_lost{@gpu})`}, {expr: `max by (gpu_address) (gdr_gpu_recovery_action_id{@gpu})`},
				{expr: `max by (gpu_address) (gdr_gpu_compute_processes{@gpu})`}, {expr: `max by (gpu_address) (gdr_gpu_memory_free_bytes{@gpu})`},
				{expr: `max by (gpu_address) (gdr_gpu_bar1_used_bytes{@gpu}) / max by (gpu_address) (gdr_gpu_bar1_bytes{@gpu})`},
				{expr: `max by (gpu_address) (gdr_gpu_mig_mode{@gpu})`}, {expr: `max by (gpu_address) (gdr_gpu_compute_mode_id{@gpu})`},
				{expr: `max by (gpu_address) (gdr_gpu_persistence_mode{@gpu})`}, {expr: `max by (gpu_address) (gdr_gpu_pcie_width_lanes{@gpu})`},
				{expr: `max by (gpu_address) (gdr_gpu_pcie_max_width_lanes{@gpu})`}, {expr: `max by (gpu_address) (gdr_gpu_pcie_max_generation{@gpu})`},
			}},
			sort: "GPU", columns: []column{
				{label: "gpu_address", title: "GPU", width: 105}, {query: 0, title: "Lost", width: 50, mappings: yesBad}, {query: 1, title: "Recovery", width: 75, mappings: recoveryActions},
				{query: 2, title: "Proc.", width: 55}, {query: 3, title: "Free", unit: "bytes", width: 72, decimals: digits(1)}, {query: 4, title: "BAR1", unit: "percentunit", decimals: whole, width: 60, coloured: from("green", level(0.9, "orange"))},
				{query: 5, title: "MIG", width: 50, mappings: yesPlain, text: true}, {query: 6, title: "Compute", width: 70, mappings: computeModes, text: true}, {query: 7, title: "Persist.", width: 62, mappings: yesPlain, text: true},
				{query: 8, title: "Lanes", width: 50}, {query: 9, title: "of", width: 35}, {query: 10, title: "Gen."},
			}},
	}
}

func nodeKernel() []panel {
	return []panel{
		&graph{bars: true, spec: spec{title: "Kernel log: lines about interconnects", w: 12, h: 8, unit: "short", noValue: "Not read, or not readable",
			description: "Lines within five minutes, by pattern. One event may write several. What users write into the log does not count.",
			queries:     []query{{expr: `sum by (pattern) (increase(gdr_kernel_log_events_total{@node}[5m]))`, legend: "{{pattern}}"}}}},
		&grid{spec: spec{title: "Last events", w: 6, h: 8, noValue: "None since boot",
			description: "Newest line of each pattern since boot, as far as the log still has it. KernelInterconnectErrors fires for an hour after those that are never usual.",
			queries:     []query{{expr: `time() - max by (pattern) (gdr_kernel_log_last_event_timestamp_seconds{@node})`}}},
			sort: "Ago", columns: []column{{label: "pattern", title: "Pattern"}, {query: 0, title: "Ago", unit: "s", decimals: digits(1), width: 110}}},
		&grid{spec: spec{title: "Last Xids", w: 6, h: 8, noValue: "None",
			description: "Xids of interconnects since the exporter began: 74 NVLink, 79 fallen off the bus, 119 and 120 GSP, 144 to 150 NVLink 5, 154 recovery action changed. Faults of applications (13, 31, 43, 45) are not counted.",
			queries:     []query{{expr: `time() - max by (gpu_address, xid) (gdr_gpu_xid_last_timestamp_seconds{@gpu})`}}},
			sort: "Ago", columns: []column{{label: "gpu_address", title: "GPU", width: 115}, {label: "xid", title: "Xid", width: 55}, {query: 0, title: "Ago", unit: "s", decimals: digits(1)}}},
		&graph{bars: true, spec: spec{title: "Xids", w: 12, h: 7, unit: "short",
			description: "Within five minutes, by code.",
			queries:     []query{{expr: `sum by (xid) (increase(gdr_gpu_xid_events_total{@gpu}[5m]))`, legend: "Xid {{xid}}"}}}},
		&number{spec: spec{title: "Kernel log", w: 6, h: 7, mappings: mapped(state{"1", "readable", "green"}, state{"0", "not readable", "orange"}), thresholds: from("green"), noValue: "not read",
			description: "Not readable: nothing is known of what it says. /dev/kmsg needs CAP_SYSLOG where kernel.dmesg_restrict is 1.",
			queries:     []query{{expr: `max(gdr_kernel_log_readable{@node})`}}}},
		&number{spec: spec{title: "Records lost", w: 6, h: 7, unit: "short", decimals: whole, thresholds: zeroWarn, noValue: "not read",
			description: "Records that were overwritten before they were read, as in a flood: events may be missing.",
			queries:     []query{{expr: `max(increase(gdr_kernel_log_lost_total{@node}[1h]))`}}}},
	}
}

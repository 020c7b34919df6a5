package status

import (
	"slices"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/host"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu/driver"
)

// checkNode is what is inspected.
type checkNode struct {
	s       *snapshot.Snapshot
	d       *diagnosis.Diagnosis
	options *CheckOptions
	gpus    *snapshot.GPUs
	driver  *driver.Reading // nil: not read
	host    *host.Reading   // nil: not read
	rules   map[string]*diagnosis.RuleResult
	titles  map[string]string
}

func newCheckNode(s *snapshot.Snapshot, d *diagnosis.Diagnosis, o *CheckOptions) *checkNode {
	n := &checkNode{
		s: s, d: d, options: o, gpus: s.GPUs(), driver: s.DriverState(), host: s.HostState(),
		rules: map[string]*diagnosis.RuleResult{}, titles: map[string]string{},
	}
	for i := range d.Rules {
		n.rules[d.Rules[i].Rule] = &d.Rules[i]
	}
	for _, rule := range diagnosis.Rules() {
		n.titles[rule.ID] = rule.Title
	}
	return n
}

// checkSpec is a line that every check has. see says what was seen; not known: it
// says why that could not be.
type checkSpec struct {
	id, title string
	rules     []string
	see       func(n *checkNode) (seen string, known bool)
}

// checkGroupSpec is a group. each gives further lines, one for each of something.
type checkGroupSpec struct {
	id, title string
	lines     []checkSpec
	each      func(n *checkNode) []CheckLine
}

// checkLayout is the inspection: every rule is in one line.
var checkLayout = []checkGroupSpec{
	{id: "devices", title: "Devices", lines: []checkSpec{
		{"gpus", "GPUs", []string{"gpu_lost", "gpu_missing", "gpu_needs_reset", "gpu_off_bus_log", "gpu_xid", "gpu_xid_everywhere"}, (*checkNode).seeGPUs},
		{"gpu_modes", "GPU modes", nil, (*checkNode).seeModes},
		{"bar1", "BAR1", nil, (*checkNode).seeBAR1},
		{"nics", "RDMA devices", []string{"nic_missing", "rdma_devices_vanished", "rdma_device_stuck", "nic_health", "nic_command_failed", "nic_module"}, (*checkNode).seeNICs},
		{"profile", "should have", nil, (*checkNode).seeProfile},
	}},
	{id: "driver", title: "Driver and modules", lines: []checkSpec{
		{"driver", "NVIDIA driver", []string{"driver_unloaded", "driver_mismatch", "nvml_failed", "nvml_stuck"}, (*checkNode).seeDriver},
		{"peermem", "peer memory", []string{
			"peermem_abi_mismatch", "peermem_stale", "peermem_both_modules", "peermem_unregistered", "peermem_not_installed", "peermem_not_loaded",
			"peermem_refused", "peermem_errors", "peermem_stuck", "peermem_not_reloadable", "peermem_only",
		}, (*checkNode).seePeermem},
		{"dmabuf", "dma-buf", []string{"dmabuf_only", "driver_topology_gate"}, (*checkNode).seeDMABuf},
		{"rdma_core", "RDMA stack", nil, (*checkNode).seeCore},
		{"kernel", "kernel", nil, (*checkNode).seeKernel},
		{"kernel_log", "kernel log", nil, (*checkNode).seeKernelLog},
	}},
	{id: "ports", title: "Ports", lines: []checkSpec{
		{"states", "states", []string{"port_no_subnet_manager", "port_down", "port_rate", "roce_no_gid", "counters_saturated", "counters_hidden"}, (*checkNode).seePorts},
	}, each: (*checkNode).portLines},
	{id: "topology", title: "Topology", lines: []checkSpec{
		{"distance", "GPU to NIC", []string{"path_topology_far"}, (*checkNode).seeDistances},
		{"acs", "ACS", []string{"acs_redirect", "acs_data_direct"}, (*checkNode).seeACS},
		{"iommu", "IOMMU", []string{"iommu_translating", "iommu_fault", "ats_off"}, (*checkNode).seeIOMMU},
		{"links", "PCIe links", []string{"pcie_link_width", "pcie_link_speed", "nic_slot_slow"}, (*checkNode).seeLinks},
		{"pcie_errors", "PCIe errors", []string{"pcie_errors", "pcie_no_answer", "pcie_errors_log"}, (*checkNode).seePCIeErrors},
	}},
	{id: "nvlink", title: "NVLink and fabric", lines: []checkSpec{
		{"nvlinks", "NVLinks", []string{"nvlink_missing", "nvlink_xid_log"}, (*checkNode).seeNVLinks},
		{"fabric", "fabric", []string{"fabric_not_started", "fabric_in_progress", "fabric_failed", "fabric_unhealthy", "gpu_p2p_lost", "nvswitch_sxid"}, (*checkNode).seeFabric},
	}},
	{id: "host", title: "Host", lines: []checkSpec{
		{"context", "seen from", nil, (*checkNode).seeContext},
		{"device_files", "/dev/infiniband", []string{"device_node_missing", "device_node_hidden"}, (*checkNode).seeNodes},
		{"memlock", "locked memory", []string{"memlock_daemon", "registration_memory"}, (*checkNode).seeMemlock},
		{"ipoib", "RDMA addresses", []string{"ipoib_no_address"}, (*checkNode).seeInterfaces},
	}},
	{id: "libraries", title: "Libraries and jobs", lines: []checkSpec{
		{"refusal", "refusals", []string{"library_refuses"}, (*checkNode).seeRefusals},
		{"variables", "jobs", []string{"job_disables_gdr", "job_variable_without_effect", "job_memlock"}, (*checkNode).seeJobs},
		{"live", "in use now", []string{"jobs_stage"}, (*checkNode).seeLive},
	}, each: (*checkNode).libraryLines},
	{id: "paths", title: "Measured paths", lines: []checkSpec{
		{"measurement", "measurement", []string{"quiesced", "probe_hung", "path_unverified", "host_path_slow"}, (*checkNode).seeMeasurement},
		{"verdicts", "verdicts", []string{
			"data_corruption", "path_staged", "path_degraded", "path_read_slow", "path_ordering", "path_no_benefit", "path_decline", "path_p2p_blocked", "path_unsupported",
		}, (*checkNode).seeVerdicts},
	}, each: (*checkNode).pathLines},
	{id: "peers", title: "Other nodes", lines: []checkSpec{
		{"paths", "paths to them", []string{
			"peer_corrupt", "peer_cut_off", "peer_rail_bad", "peer_gpu_slow", "peer_path_bad", "peer_asymmetric", "peer_certificate", "peer_list",
		}, (*checkNode).seePeers},
	}, each: (*checkNode).peerLines},
}

func (n *checkNode) groups() []CheckGroup {
	groups := make([]CheckGroup, 0, len(checkLayout))
	for i := range checkLayout {
		spec := &checkLayout[i]
		group := CheckGroup{ID: spec.id, Title: spec.title, Lines: []CheckLine{}}
		for j := range spec.lines {
			group.Lines = append(group.Lines, n.line(&spec.lines[j]))
		}
		if spec.each != nil {
			group.Lines = append(group.Lines, spec.each(n)...)
		}
		for j := range group.Lines {
			group.Lines[j].Seen = cleaned(group.Lines[j].Seen)
		}
		groups = append(groups, group)
	}
	return groups
}

// line makes a line of the layout.
func (n *checkNode) line(spec *checkSpec) CheckLine {
	line := CheckLine{ID: spec.id, Title: spec.title, Rules: []CheckRule{}}
	seen, known := spec.see(n)
	line.Seen = seen
	judged := false
	for _, id := range spec.rules {
		result := n.rules[id]
		if result == nil { // nothing was diagnosed
			continue
		}
		judged = judged || result.Result != diagnosis.ResultNotJudged
		line.Rules = append(line.Rules, CheckRule{Rule: id, Title: n.titles[id], Result: string(result.Result), Missing: result.Missing})
	}
	switch {
	case !known: // and what was seen says why
		line.Status = CheckNotJudged
	case len(spec.rules) > 0 && !judged:
		line.Status, line.Do = CheckNotJudged, n.toJudge(spec.rules)
	case len(spec.rules) == 0:
		line.Status = CheckInfo
	default:
		line.Status = CheckOK
	}
	n.mark(&line, func(f *diagnosis.Finding) bool { return slices.Contains(spec.rules, f.Rule) })
	return line
}

// notRead says why there is nothing of a part of the Snapshot.
func (n *checkNode) notRead(collector string, there bool) string {
	switch {
	case there:
		return "not known: reading it does not return"
	case n.options.Replay != "":
		return "not in this capture"
	default:
		return "not read: collector " + collector + " is switched off or not available"
	}
}

// toJudge says what is missing for rules, "" if nothing is.
func (n *checkNode) toJudge(rules []string) string {
	for _, id := range rules {
		if result := n.rules[id]; result != nil && len(result.Missing) > 0 {
			return cleaned(result.Missing[0])
		}
	}
	return ""
}

// mark gives a line the status of the worst finding that is about it, and its hint.
func (n *checkNode) mark(line *CheckLine, about func(*diagnosis.Finding) bool) {
	for i := range n.d.Findings {
		f := &n.d.Findings[i]
		if !about(f) {
			continue
		}
		status := CheckStatus(f.Severity)
		if line.Status == CheckOK || line.Status.worse(status) != line.Status {
			line.Status, line.Do = status, f.Hint
		}
	}
}

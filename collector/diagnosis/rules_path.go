package diagnosis

import (
	"errors"
	"slices"
	"strings"

	"gdr_exporter/collector/profile"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// Rules about the pairs themselves.
const (
	idStaged      = "path_staged"
	idCorrupt     = "data_corruption"
	idDegraded    = "path_degraded"
	idReadSlow    = "path_read_slow"
	idOrdering    = "path_ordering"
	idNoBenefit   = "path_no_benefit"
	idDecline     = "path_decline"
	idP2PBlocked  = "path_p2p_blocked"
	idControl     = "host_path_slow"
	idProbeHung   = "probe_hung"
	idUnsupported = "path_unsupported"
	idUnverified  = "path_unverified"
	idOffNear     = "path_topology_far"
)

var pathRules = []rule{
	{Rule: Rule{idCorrupt, SeverityCritical, "data arrives wrong in GPU memory",
		"Take the node out of service: every job that uses GPUDirect RDMA on this pair may compute with wrong data. Check ACS, IOMMU and firmware of GPU and NIC, and measure again with gdr_exporter probe."},
		needs: []need{needProber}, judge: judgeCorrupt},
	{Rule: Rule{idStaged, SeverityCritical, "GPUDirect RDMA does not work on an expected pair",
		"Jobs copy through host memory here, at half to a tenth of the rate. The cause is named with the pair; usually nvidia-peermem is not loaded, or was built for another RDMA stack."},
		judge: judgeStaged},
	{Rule: Rule{idDegraded, SeverityWarning, "GPUDirect RDMA is slow on an expected pair",
		"See the findings about the PCIe path: ACS redirect, IOMMU translation, link width or speed, relaxed ordering, maximum read request."},
		needs: []need{needProber}, judge: judgeDegraded},
	{Rule: Rule{idReadSlow, SeverityWarning, "the NIC reads GPU memory slowly, and writes it well",
		"Reads are the first to suffer on a bad path: set the NIC's maximum read request to 4096 bytes and relaxed ordering on, check ACS completion redirect on the GPU's side of the switch, and the firmware's MAX_ACC_OUT_READ."},
		needs: []need{needProber}, judge: judgeReadSlow},
	{Rule: Rule{idOrdering, SeverityWarning, "a slow pair has no relaxed ordering",
		"Registration with relaxed ordering was refused, or the NIC has it switched off (RlxdOrd-): enable it (PCI_WR_ORDERING=force_relax or per_mkey, lspci -vv), and use a libibverbs that knows it."},
		needs: []need{needProber}, judge: judgeOrdering},
	{Rule: Rule{idNoBenefit, SeverityWarning, "GPUDirect RDMA is no faster than copying through host memory",
		"Libraries still use it on this pair, and jobs suffer. Find the cause as for a slow pair; until then NCCL_NET_GDR_LEVEL=LOC makes jobs stage."},
		needs: []need{needProber}, judge: judgeNoBenefit},
	{Rule: Rule{idDecline, SeverityWarning, "a pair does less than it used to",
		"Compare with the pair's baseline: a link that trained lower, another firmware, ACS or IOMMU settings after a boot, or thermal throttling of the NIC."},
		needs: []need{needProber}, judge: judgeDecline},
	{Rule: Rule{idP2PBlocked, SeverityWarning, "the NIC's access to GPU memory fails on the PCIe path",
		"Registration works and the transfer does not: ACS redirect or IOMMU between GPU and NIC, or in a virtual machine no ATS on the NIC. lspci -vvv on the bridges between, kernel log for DMAR or AMD-Vi faults."},
		needs: []need{needProber}, judge: judgeP2PBlocked},
	{Rule: Rule{idControl, SeverityWarning, "the NIC is slow with host memory too",
		"Not a matter of GPUs: check the NIC's PCIe link, the port's rate, NUMA placement and the host's load. Until it is well nothing can be said of GPUDirect RDMA on this pair."},
		needs: []need{needProber}, judge: judgeControl},
	{Rule: Rule{idProbeHung, SeverityWarning, "a measurement hangs",
		"A call into the driver does not return. Look for Xids and NIC firmware errors in the kernel log; a GPU reset or a reboot may be needed. GPU and NIC are left alone until the exporter is started again."},
		needs: []need{needProber}, judge: judgeHung},
	{Rule: Rule{idOffNear, SeverityWarning, "fewer near pairs than the node should have",
		"GPU and NIC are farther apart in the PCIe tree than on other nodes of this kind: a card in the wrong slot, a switch that is missing, another BIOS setting, or a virtual machine without the host's topology."},
		needs: []need{needTree}, judge: judgeNear},
	{Rule: Rule{idUnverified, SeverityInfo, "nothing is known of an expected pair",
		"No measurement stands. See why it is not measured; on a busy node this is usual."},
		judge: judgeUnverified},
	{Rule: Rule{idUnsupported, SeverityInfo, "a pair cannot do GPUDirect RDMA",
		"GeForce cards, virtual GPUs and some NICs cannot. Nothing to do."},
		judge: judgeUnsupported},
}

func judgeCorrupt(n *node, j *judging) {
	for i := range n.paths {
		if p := &n.paths[i]; p.standing != nil && p.standing.Judgement.Outcome == loopback.Corrupt {
			j.find(p.subject(), "%s", joined(p.Reasons))
		}
	}
}

func judgeStaged(n *node, j *judging) {
	n.expected(func(p *way) {
		switch p.State {
		case StateStaged:
			j.find(p.subject(), "%s", joined(p.Reasons))
		case StateUnknown:
			j.lack("whether registration works is not known of every expected pair: no run stands")
		default:
			j.clear(p.subject())
		}
	})
}

// slow reports whether a pair is degraded for its rate.
func (p *way) slow() bool {
	return p.State == StateDegraded && p.standing != nil && p.standing.Judgement.Outcome == loopback.Slow
}

func judgeDegraded(n *node, j *judging) {
	n.expected(func(p *way) {
		if p.slow() {
			j.find(p.subject(), "%s", joined(p.Reasons))
		}
	})
}

// blames reports whether a judgement gives a path as a reason.
func blames(j *loopback.Judgement, at loopback.Path) bool {
	return slices.ContainsFunc(j.Reasons, func(reason string) bool { return strings.HasPrefix(reason, string(at)+":") })
}

func judgeReadSlow(n *node, j *judging) {
	n.expected(func(p *way) {
		if p.slow() && blames(&p.standing.Judgement, loopback.PathGPURead) && !blames(&p.standing.Judgement, loopback.PathGPUWrite) {
			j.find(p.subject(), "%s", joined(p.Reasons))
		}
	})
}

func judgeOrdering(n *node, j *judging) {
	n.expected(func(p *way) {
		if !p.slow() {
			return
		}
		if used := registration(p.standing, p.standing.Result.Method); used != nil && used.Err == nil && !used.RelaxedOrdering && p.standing.Result.RelaxedOrdering.Known {
			j.find(p.subject(), "GPU memory could be registered by %s without relaxed ordering only", used.Method)
			return
		}
		if p.tree == nil {
			return
		}
		f := n.functions[p.tree.NIC]
		switch {
		case f == nil || !f.Config.RelaxedOrdering.Known:
			j.lack("relaxed ordering of a NIC: it needs CAP_SYS_ADMIN to read the configuration space")
		case !f.Config.RelaxedOrdering.Value:
			j.find(p.subject(), "relaxed ordering is off in the NIC's device control (%s)", p.tree.NIC)
		}
	})
}

// benefit is how much faster than path staged path gpu must be at least.
const benefit = 1.05

func judgeNoBenefit(n *node, j *judging) {
	n.expected(func(p *way) {
		// On a slow port staging keeps up with the port: that is no fault of the path.
		// So only a pair that is slow by the limits that its runs are judged by.
		if !p.slow() || p.status == nil || p.status.Full == nil {
			return
		}
		gpu, measured := pathRate(p.status.Full, loopback.PathGPU)
		staged, compared := pathRate(p.status.Full, loopback.PathStaged)
		if measured && compared && gpu < benefit*staged {
			j.find(p.subject(), "path gpu moves %s, path staged %s", rate(gpu), rate(staged))
		}
	})
}

// declined is the share of its baseline below which a pair declines.
const declined = 0.9

func judgeDecline(n *node, j *judging) {
	n.expected(func(p *way) {
		if p.status == nil || p.status.Full == nil || !p.status.Full.Idle || !p.status.Baseline.Known || p.State != StateDirect {
			return
		}
		if gpu, measured := pathRate(p.status.Full, loopback.PathGPU); measured && gpu < declined*p.status.Baseline.Value {
			j.find(p.subject(), "path gpu moves %s, its baseline is %s", rate(gpu), rate(p.status.Baseline.Value))
		}
	})
}

func judgeP2PBlocked(n *node, j *judging) {
	for i := range n.paths {
		p := &n.paths[i]
		if p.standing == nil || p.standing.Judgement.Outcome != loopback.Failed {
			continue
		}
		for k := range p.standing.Result.Paths {
			var failed *loopback.Error
			if at := &p.standing.Result.Paths[k]; errors.As(at.Err, &failed) && (failed.Status == loopback.LocalProtection || failed.Status == loopback.RemoteOperation) {
				j.find(p.subject(), "%s: %v", at.Path, failed)
				break
			}
		}
	}
}

func judgeControl(n *node, j *judging) {
	for i := range n.paths {
		if why := n.controlBad(&n.paths[i]); why != "" {
			j.find(n.paths[i].subject(), "%s", why)
		}
	}
}

func judgeHung(n *node, j *judging) {
	for i := range n.paths {
		if status := n.paths[i].status; status != nil && !status.Hung.IsZero() {
			j.find(n.paths[i].subject(), "since %s, stage %s", stamp(status.Hung), status.HungStage)
		}
	}
}

// judgeNear compares how many GPUs and compute NICs are near with what there
// should be; more is not wrong. GPUs that are lost are told of by another rule.
func judgeNear(n *node, j *judging) {
	want, have := n.Expected.DirectPairs, n.facts.DirectPairs
	if !want.Known || n.fewerDevices() {
		return
	}
	if !have.Known {
		j.lack(notCounted)
		return
	}
	if have.Value < want.Value {
		j.find(Subject{}, "%d pairs of GPU and compute NIC are as near as PIX, PXB or P2C; %d are expected (%s)", have.Value, want.Value, n.source(profile.FieldDirectPairs))
	}
}

func judgeUnverified(n *node, j *judging) {
	n.expected(func(p *way) {
		if p.State == StateUnknown {
			j.find(p.subject(), "%s", joined(p.Reasons))
		}
	})
}

func judgeUnsupported(n *node, j *judging) {
	n.expected(func(p *way) {
		if p.State == StateUnsupported {
			j.find(p.subject(), "%s", joined(p.Reasons))
		}
	})
}

// failedBy returns the registrations of a pair that failed, by method.
func (p *way) failedBy(method loopback.Method) error {
	c := p.standing
	if p.status != nil && p.status.Registration != nil {
		c = p.status.Registration
	}
	if tried := registration(c, method); tried != nil {
		return tried.Err
	}
	return nil
}

// tried is the result that says how registration went, nil if none does.
func (p *way) tried() *prober.Completed {
	if p.status != nil && p.status.Registration != nil {
		return p.status.Registration
	}
	return p.standing
}

package diagnosis

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gdr_exporter/gpu/affinity"
)

// Rules about the PCIe path.
const (
	idACSRedirect   = "acs_redirect"
	idACSDataDirect = "acs_data_direct"
	idATSOff        = "ats_off"
	idIOMMU         = "iommu_translating"
	idLinkWidth     = "pcie_link_width"
	idLinkSpeed     = "pcie_link_speed"
	idAER           = "pcie_errors"
	idNoAnswer      = "pcie_no_answer"
)

var pcieRules = []rule{
	{Rule: Rule{idACSRedirect, SeverityWarning, "ACS sends peer-to-peer traffic through the root complex",
		"Clear request and completion redirect on the switch ports between GPU and NIC: BIOS (ACS off), kernel option pci=config_acs= or pci=disable_acs_redir=, or setpci until the next boot. Bare metal only: a hypervisor needs ACS."},
		needs: []need{needTree}, judge: judgeACS},
	{Rule: Rule{idACSDataDirect, SeverityWarning, "ACS keeps the data-direct function and the GPU apart",
		"With ConnectX-8 data direct the port of the data-direct function wants request redirect off (0x19) and the GPU's port completion redirect off (0x15): rdma_topo of rdma-core writes the kernel option."},
		needs: []need{needTree}, judge: judgeACSDataDirect},
	{Rule: Rule{idATSOff, SeverityWarning, "in this virtual machine the NIC has no ATS, and the pair does not do well",
		"Full speed in a virtual machine needs ATS on the NIC (mlxconfig ATS_ENABLED=true, then a host reboot) and ACS direct translated on the NIC's port (0x5D)."},
		needs: []need{needTree}, judge: judgeATS},
	{Rule: Rule{idIOMMU, SeverityWarning, "the IOMMU translates the accesses of GPU or NIC",
		"Boot with iommu=pt, or switch the IOMMU off: peer-to-peer traffic otherwise goes through root complex and IOMMU, slowly or not at all."},
		needs: []need{needTree}, judge: judgeIOMMU},
	{Rule: Rule{idLinkWidth, SeverityWarning, "a PCIe link has lost lanes",
		"Reseat the card or its riser, check cables and the slot; then firmware and BIOS. Width is not saved at idle: this is no power saving."},
		needs: []need{needTree}, hold: flapping, judge: judgeWidth},
	{Rule: Rule{idLinkSpeed, SeverityWarning, "a PCIe link runs below the speed that both ends can do",
		"A NIC's link does not slow down at idle, and this GPU's did not speed up under load: reseat, firmware, BIOS; check for AER errors."},
		needs: []need{needTree}, after: 5 * time.Minute, hold: flapping, judge: judgeSpeed},
	{Rule: Rule{idAER, SeverityWarning, "a PCIe function has uncorrectable errors",
		"Look at the kernel log for the AER report, reseat the card, update firmware. With GPU or NIC: check for Xids and health events."},
		needs: []need{needTree}, judge: judgeAER},
	{Rule: Rule{idNoAnswer, SeverityWarning, "a PCIe function has fallen off the bus",
		"Its configuration space reads all ones. A reset or a reboot is needed; if it comes back, reseat or replace the card."},
		needs: []need{needTree}, hold: flapping, judge: judgeAnswers},
}

// unread says that the configuration space of a function is not to be had.
const unread = "ACS of the bridges between: reading it needs CAP_SYS_ADMIN in the initial user namespace"

// below calls f for the bridges below the common one of an expected pair by a
// switch, those whose redirects lead its traffic astray.
func (n *node) below(p *way, f func(address string, at *affinity.Function)) {
	if p.tree == nil || p.tree.Distance != affinity.PIX && p.tree.Distance != affinity.PXB {
		return
	}
	for _, side := range [][]string{p.tree.GPUSide, p.tree.NICSide} {
		for _, address := range side {
			f(address, n.functions[address])
		}
	}
}

// judgeACS never minds ACS as such: only redirects between an expected pair, and
// not where a full run shows that they do no harm.
func judgeACS(n *node, j *judging) {
	n.expected(func(p *way) {
		if p.tree == nil || p.tree.Hidden || p.measuredDirect() || n.dataDirect(p) {
			return
		}
		var ports []string
		n.below(p, func(address string, f *affinity.Function) {
			switch {
			case f == nil || !f.Config.ACS.Known && !f.Config.NoACS:
				j.lack(unread)
			case f.Config.ACS.Value&(affinity.ACSRequestRedirect|affinity.ACSCompletionRedirect) != 0:
				ports = append(ports, fmt.Sprintf("%s 0x%02x", address, f.Config.ACS.Value))
			}
		})
		if len(ports) > 0 {
			j.find(p.subject(), "redirects below the common switch %s: %s", p.tree.Common, strings.Join(ports, ", "))
		}
	})
}

// dataDirect reports whether the pair's NIC sends its payload through another
// function: what is on the way of its own says nothing.
func (n *node) dataDirect(p *way) bool {
	f := n.functions[p.tree.NIC]
	return f != nil && f.DataDirect
}

// judgeACSDataDirect asks the port above each data-direct function, and that above
// each GPU of an expected pair by one.
func judgeACSDataDirect(n *node, j *judging) {
	if n.listing == nil || len(n.listing.DataDirect) == 0 {
		return
	}
	ask := func(address, what string, bit uint16) {
		f := n.functions[address]
		if f == nil || f.Upstream == "" {
			return
		}
		switch port := n.functions[f.Upstream]; {
		case port == nil || !port.Config.ACS.Known && !port.Config.NoACS:
			j.lack(unread)
		case port.Config.ACS.Value&bit != 0:
			j.find(Subject{Address: f.Upstream}, "ACS 0x%02x on the port above %s (%s)", port.Config.ACS.Value, address, what)
		}
	}
	for _, address := range n.listing.DataDirect {
		ask(address, "data-direct function: request redirect must be off", affinity.ACSRequestRedirect)
	}
	n.expected(func(p *way) {
		if p.tree != nil && n.dataDirect(p) && !p.measuredDirect() {
			ask(p.GPU, "GPU: completion redirect must be off", affinity.ACSCompletionRedirect)
		}
	})
}

// virtual reports whether a pair is seen from inside a virtual machine.
func (n *node) virtual(p *way) bool {
	g := n.gpu(p.GPU)
	return p.tree != nil && p.tree.Hidden || g != nil && g.Virtualization == "passthrough"
}

func judgeATS(n *node, j *judging) {
	n.expected(func(p *way) {
		if p.tree == nil || !n.virtual(p) || p.State != StateDegraded && p.State != StateStaged || p.standing == nil {
			return
		}
		switch f := n.functions[p.tree.NIC]; {
		case f == nil || !f.ConfigReadable.Value:
			j.lack("ATS of a NIC: reading it needs CAP_SYS_ADMIN")
		case !f.Config.ATS.Value:
			j.find(p.subject(), "ATS is off on %s", p.tree.NIC)
		}
	})
}

// judgeIOMMU minds translation between pairs on a switch, outside of virtual
// machines, and not where a full run shows that it does no harm. With NVLink-C2C
// the SMMU translates as it should.
func judgeIOMMU(n *node, j *judging) {
	n.expected(func(p *way) {
		if p.tree == nil || p.tree.Hidden || p.measuredDirect() || p.tree.Distance != affinity.PIX && p.tree.Distance != affinity.PXB {
			return
		}
		for _, address := range []string{p.GPU, p.tree.NIC} {
			f := n.functions[address]
			if f == nil {
				j.lack("PCI functions that do not answer")
				continue
			}
			if strings.HasPrefix(f.IOMMUType, "DMA") {
				j.find(p.subject(), "IOMMU group %s of %s has type %s, not identity", f.IOMMUGroup, address, f.IOMMUType)
				return
			}
		}
	})
}

// onPaths are the functions that expected pairs pass, by address.
func (n *node) onPaths() []string {
	if n.passed == nil {
		n.passed = n.passedFunctions()
	}
	return n.passed
}

func (n *node) passedFunctions() []string {
	set := map[string]bool{}
	n.expected(func(p *way) {
		set[p.GPU] = true
		if p.tree == nil {
			return
		}
		set[p.tree.NIC] = true
		for _, side := range [][]string{p.tree.GPUSide, p.tree.NICSide} {
			for _, address := range side {
				set[address] = true
			}
		}
	})
	delete(set, "")
	return slices.Sorted(maps.Keys(set))
}

func judgeWidth(n *node, j *judging) {
	for _, address := range n.onPaths() {
		f := n.functions[address]
		switch {
		case f == nil:
			j.lack("PCI functions that do not answer")
		case f.Link.Lower && f.Link.Width.Known && f.Link.PossibleWidth.Known && f.Link.Width.Value < f.Link.PossibleWidth.Value:
			j.find(Subject{Address: address}, "x%d of x%d", f.Link.Width.Value, f.Link.PossibleWidth.Value)
		}
	}
}

// judgeSpeed minds NICs, whose links keep their speed, and GPUs only where they
// work: at idle a GPU's link slows down.
func judgeSpeed(n *node, j *judging) {
	n.expected(func(p *way) {
		if p.tree == nil {
			return
		}
		if f := n.functions[p.tree.NIC]; f != nil && !f.DataDirect && below(&f.Link) {
			j.find(Subject{Address: p.tree.NIC}, "%s: %g GT/s of %g GT/s", p.Device, f.Link.Speed.Value, f.Link.PossibleSpeed.Value)
		}
		f, g := n.functions[p.GPU], n.gpu(p.GPU)
		if f != nil && below(&f.Link) && (p.slow() && g != nil && g.Procs.Value > 0 || n.history.busy(g, p)) {
			j.find(Subject{Address: p.GPU}, "GPU under load: %g GT/s of %g GT/s", f.Link.Speed.Value, f.Link.PossibleSpeed.Value)
		}
	})
}

func below(l *affinity.Link) bool {
	return l.Speed.Known && l.PossibleSpeed.Known && l.Speed.Value < l.PossibleSpeed.Value
}

func judgeAER(n *node, j *judging) {
	for _, address := range n.onPaths() {
		if seen := n.history.errors[address]; seen != nil && seen.by > 0 && n.recent(seen.grown, growthFor) {
			j.find(Subject{Address: address}, "%d uncorrectable errors within the last hour, the last by %s", seen.by, stamp(seen.grown))
		}
	}
}

func judgeAnswers(n *node, j *judging) {
	for _, address := range n.onPaths() {
		if f := n.functions[address]; f != nil && f.Answers.Known && !f.Answers.Value {
			j.find(Subject{Address: address}, "the configuration space of %s reads all ones", address)
		}
	}
}

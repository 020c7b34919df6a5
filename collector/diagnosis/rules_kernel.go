package diagnosis

import (
	"time"

	"gdr_exporter/collector/kmsg"
)

// Rules about what the kernel's log says.
const (
	idNICHealth  = "nic_health"
	idNICCommand = "nic_command_failed"
	idNICModule  = "nic_module"
	idIOMMUFault = "iommu_fault"
	idSXid       = "nvswitch_sxid"
	idOffBus     = "gpu_off_bus_log"
	idXidLog     = "nvlink_xid_log"
	idAERLog     = "pcie_errors_log"
	idSlotSlow   = "nic_slot_slow"
)

// logFor is how long it is told of a line.
const logFor = time.Hour

var kernelRules = []rule{
	logged(Rule{idNICHealth, SeverityWarning, "the firmware of a NIC fails",
		"devlink health show, then a firmware reset (mlxfwreset -d DEVICE reset) or a cold boot; update the firmware."}, kmsg.MLX5Health),
	logged(Rule{idIOMMUFault, SeverityWarning, "the IOMMU refused a device's access",
		"With GPUDirect RDMA: the IOMMU translates or blocks peer-to-peer accesses. Boot with iommu=pt; check ACS."}, kmsg.IOMMUFault),
	logged(Rule{idOffBus, SeverityWarning, "the kernel log says that a GPU has fallen off the bus",
		"Power, cooling, riser or the GPU itself: a reboot brings it back, or it is to be replaced."}, kmsg.GPUOffBus),
	logged(Rule{idXidLog, SeverityWarning, "the kernel log has an Xid of NVLink",
		"Xid 74 and 144 to 150: see NVIDIA's Xid catalog for the action; reset the GPUs together."}, kmsg.XidNVLink),
	logged(Rule{idSXid, SeverityWarning, "an NVSwitch reports an error",
		"See fabric manager's log and NVIDIA's SXid list; a fatal one needs a reset of all GPUs and switches of the node."}, kmsg.SXid),
	logged(Rule{idAERLog, SeverityWarning, "the kernel log has an uncorrectable PCIe error",
		"Reseat the card that the line names, update firmware, and check GPU or NIC behind it."}, kmsg.AERUncorrectable),
	logged(Rule{idNICModule, SeverityWarning, "a NIC's cable or module is bad or too hot",
		"Clean, reseat or replace it; check the air flow."}, kmsg.MLX5Module),
	logged(Rule{idNICCommand, SeverityInfo, "a firmware command of a NIC failed",
		"One that failed for a program's wrong argument is harmless; timeouts are not: devlink health show."}, kmsg.MLX5Command),
	sinceBoot(Rule{idSlotSlow, SeverityInfo, "a NIC's slot is slower than the NIC",
		"By design on some boards; otherwise move the card, or check bifurcation and risers. NCCL sees the slot's speed, and not a link that trained lower."}, kmsg.PCIeBandwidth),
}

// logged is a rule that finds the last line of a pattern, for a while.
func logged(r Rule, pattern kmsg.Pattern) rule {
	return rule{Rule: r, needs: []need{needKernelLog}, judge: func(n *node, j *judging) {
		if event, there := n.log.Last[pattern]; there && n.recent(event.Time, logFor) {
			j.find(Subject{Address: event.Address}, "kernel log of %s: %s", stamp(event.Time), event.Text)
		}
	}}
}

// sinceBoot is a rule that finds the last line of a pattern, whenever it came.
func sinceBoot(r Rule, pattern kmsg.Pattern) rule {
	return rule{Rule: r, needs: []need{needKernelLog}, judge: func(n *node, j *judging) {
		if event, there := n.log.Last[pattern]; there {
			j.find(Subject{Address: event.Address}, "kernel log of %s: %s", stamp(event.Time), event.Text)
		}
	}}
}

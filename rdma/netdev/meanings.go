package netdev

import (
	"math"
	"strings"
	"sync"
)

// Unit is the unit in which a driver counts.
type Unit int

// Units of ethtool statistics.
const (
	UnitNone         Unit = iota
	UnitBytes             // bytes
	UnitMicroseconds      // microseconds, shown as seconds
	UnitSeconds           // seconds
	UnitPercent           // 0 to 100, shown as 0 to 1
)

// Meaning is a quantity that drivers count under names of their own.
type Meaning struct {
	// Name is the quantity's own, in snake case and without unit suffix.
	Name string
	Help string
	Unit Unit
	// Gauge: the value goes down too.
	Gauge bool
	// Label is what tells several values of one port apart: priority, lane
	// or nothing.
	Label string
	// Rare: shown only once it has been other than 0, also at a priority with PFC.
	Rare bool
	// Extra: shown only if Options.Extra asks for it.
	Extra bool
	// PFC: the quantity exists for priorities with flow control only.
	PFC bool
	// Names are the drivers' names. A % stands for the label's number. A
	// name that other drivers use for something else follows its driver and
	// a colon.
	Names []string
}

// Labels of meanings.
const (
	LabelPriority = "priority"
	LabelLane     = "lane"
)

// Vendors returns the drivers' names without the drivers, for people to search by.
func (m *Meaning) Vendors() []string {
	names := make([]string, len(m.Names))
	for i, name := range m.Names {
		if _, bare, found := strings.Cut(name, ":"); found {
			name = bare
		}
		names[i] = name
	}
	return names
}

// Scale returns a driver's value in base units, and false if it is none that
// the quantity can have.
func (m *Meaning) Scale(value uint64) (float64, bool) {
	switch m.Unit {
	case UnitMicroseconds:
		return float64(value) / 1e6, true
	case UnitPercent:
		return float64(value) / 100, value <= 100
	default:
		// All ones is what reads of a device that is gone give.
		return float64(value), value != math.MaxUint64
	}
}

// Meanings returns the table's rows.
func Meanings() []*Meaning { return meanings }

// index finds a meaning by a driver's name for it.
var index = sync.OnceValue(func() map[string]*Meaning {
	byName := map[string]*Meaning{}
	for _, m := range meanings {
		for _, name := range m.Names {
			byName[name] = m
		}
	}
	return byName
})

// lookup returns what a driver's name means and the label's value in it; nil
// for a name that is not in the table. Some kernels have names with trailing
// white space ("tx_pause_storm_warning_events ").
func lookup(driver, name string) (*Meaning, string) {
	name = strings.TrimSpace(name)
	if m := byDriver(driver, name); m != nil && m.Label == "" {
		return m, ""
	}
	before, number, after := cutNumber(name)
	if number == "" || len(number) > 2 {
		return nil, ""
	}
	m := byDriver(driver, before+"%"+after)
	if m == nil || (m.Label == LabelPriority && (len(number) > 1 || number > "7")) {
		return nil, ""
	}
	return m, number
}

func byDriver(driver, name string) *Meaning {
	if m := index()[name]; m != nil {
		return m
	}
	return index()[driver+":"+name]
}

// cutNumber splits a name at its first number.
func cutNumber(name string) (before, number, after string) {
	start := strings.IndexAny(name, "0123456789")
	if start < 0 {
		return name, "", ""
	}
	end := start
	for end < len(name) && name[end] >= '0' && name[end] <= '9' {
		end++
	}
	return name[:start], name[start:end], name[end:]
}

// meanings follow the kernel's
// Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst
// and the drivers' sources: mlx5/core/en_stats.c, bnxt/bnxt_ethtool.c,
// ice/ice_ethtool.c (whose device irdma serves), bnge/bnge_ethtool.c (rxp_, txp_).
//
// mlx5 lists rx_prioN_pause only for PFC-enabled priorities, and
// rx_global_pause only with global pause instead of PFC; bnxt_en and ice always
// list all eight priorities. ena (EFA's sibling) and mana count none of these.
var meanings = []*Meaning{
	// Priority flow control.
	{Name: "pfc_receive_pause_frames", Label: LabelPriority, PFC: true,
		Help:  "PFC pause frames received: the fabric is congested and told this port to stop sending at that priority",
		Names: []string{"rx_prio%_pause", "rx_pfc_ena_frames_pri%", "rxp_pfc_ena_frames_pri%", "rx_priority_%_xoff.nic"}},
	{Name: "pfc_transmit_pause_frames", Label: LabelPriority, PFC: true,
		Help:  "PFC pause frames sent: this port could not take what the fabric sent at that priority",
		Names: []string{"tx_prio%_pause", "tx_pfc_ena_frames_pri%", "txp_pfc_ena_frames_pri%", "tx_priority_%_xoff.nic"}},
	{Name: "pfc_receive_pause_duration", Unit: UnitMicroseconds, Label: LabelPriority, PFC: true,
		Help:  "time in which the port did not send at that priority because of received PFC pause frames",
		Names: []string{"rx_prio%_pause_duration", "pfc_pri%_rx_duration_us"}},
	{Name: "pfc_transmit_pause_duration", Unit: UnitMicroseconds, Label: LabelPriority, PFC: true,
		Help:  "time in which the port kept its peer from sending at that priority by PFC pause frames",
		Names: []string{"tx_prio%_pause_duration", "pfc_pri%_tx_duration_us"}},
	{Name: "pfc_receive_pause_transitions", Extra: true, Label: LabelPriority, PFC: true,
		Help:  "changes between paused and not paused by received PFC frames",
		Names: []string{"rx_prio%_pause_transition", "pfc_pri%_rx_transitions"}},
	{Name: "pfc_transmit_pause_transitions", Extra: true, Label: LabelPriority, PFC: true,
		Help:  "changes between pausing the peer and not, by sent PFC frames",
		Names: []string{"pfc_pri%_tx_transitions"}},
	{Name: "transmit_pause_storm_warnings", Rare: true,
		Help:  "times the device sent pause frames for a long time",
		Names: []string{"tx_pause_storm_warning_events"}},
	{Name: "transmit_pause_storm_errors",
		Help:  "times the device sent pause frames for so long that it stopped sending them, after which it drops packets",
		Names: []string{"tx_pause_storm_error_events"}},
	// What a priority's buffer drops and marks. Not only priorities with PFC
	// have these: lossless traffic on the wrong priority shows here. Which of the
	// buffers was too small is told once something was dropped or marked.
	{Name: "priority_receive_buffer_discards", Label: LabelPriority, Rare: true,
		Help:  "packets dropped for want of receive buffer of the host",
		Names: []string{"rx_prio%_buf_discard"}},
	{Name: "priority_receive_congestion_discards", Label: LabelPriority, Rare: true,
		Help:  "packets dropped because of congestion of the host",
		Names: []string{"rx_prio%_cong_discard"}},
	{Name: "priority_receive_discards", Label: LabelPriority,
		Help:  "packets dropped for want of receive buffer",
		Names: []string{"rx_prio%_discards"}},
	{Name: "priority_receive_ecn_marked_packets", Label: LabelPriority, Rare: true,
		Help:  "packets that the device itself marked (ECN) because of congestion of the host",
		Names: []string{"rx_prio%_marked"}},
	// Global pause (802.3x), instead of PFC.
	{Name: "global_receive_pause_frames",
		Help:  "pause frames (802.3x, all priorities) received",
		Names: []string{"rx_global_pause", "bnxt_en:rx_pause_frames", "rxp_pause_frames", "link_xoff_rx.nic"}},
	{Name: "global_transmit_pause_frames",
		Help:  "pause frames (802.3x, all priorities) sent",
		Names: []string{"tx_global_pause", "bnxt_en:tx_pause_frames", "txp_pause_frames", "link_xoff_tx.nic"}},
	{Name: "global_receive_pause_duration", Unit: UnitMicroseconds,
		Help:  "time in which the port did not send because of received pause frames (802.3x)",
		Names: []string{"rx_global_pause_duration"}},
	{Name: "global_transmit_pause_duration", Unit: UnitMicroseconds,
		Help:  "time in which the port kept its peer from sending by pause frames (802.3x)",
		Names: []string{"tx_global_pause_duration"}},
	{Name: "global_receive_pause_transitions", Extra: true,
		Help:  "changes between paused and not paused by received pause frames (802.3x)",
		Names: []string{"rx_global_pause_transition"}},
	// Discards.
	{Name: "phy_receive_discards",
		Help:  "packets dropped at the physical port for want of buffer",
		Names: []string{"rx_discards_phy", "bnxt_en:rx_stat_discard", "rxp_stat_discard", "rx_dropped.nic"}},
	{Name: "phy_transmit_discards",
		Help:  "packets dropped at the physical port on sending, such as while the link was down",
		Names: []string{"tx_discards_phy", "bnxt_en:tx_stat_discard", "txp_stat_discard", "tx_dropped_link_down.nic"}},
	{Name: "netdev_receive_out_of_buffer", Extra: true,
		Help:  "packets dropped because a receive queue of the network interface had no buffer; RDMA's own is hw_counters/out_of_buffer",
		Names: []string{"rx_out_of_buffer"}},
	{Name: "netdev_device_out_of_buffer", Extra: true,
		Help:  "times a queue owned by the device had too few buffers",
		Names: []string{"dev_out_of_buffer"}},
	{Name: "netdev_receive_steering_missed_packets", Extra: true,
		Help:  "packets dropped because they matched no flow of the device's flow table",
		Names: []string{"rx_steer_missed_packets"}},
	// Physical layer.
	{Name: "phy_receive_bytes", Extra: true, Unit: UnitBytes,
		Help:  "bytes received at the physical port, of RDMA and all else",
		Names: []string{"rx_bytes_phy", "bnxt_en:rx_bytes", "rxp_bytes", "rx_bytes.nic"}},
	{Name: "phy_transmit_bytes", Extra: true, Unit: UnitBytes,
		Help:  "bytes sent at the physical port, of RDMA and all else",
		Names: []string{"tx_bytes_phy", "bnxt_en:tx_bytes", "txp_bytes", "tx_bytes.nic"}},
	{Name: "phy_receive_symbol_errors",
		Help:  "packets dropped because of coding errors on the link",
		Names: []string{"rx_symbol_err_phy"}},
	{Name: "phy_receive_pcs_symbol_errors",
		Help:  "symbol errors that FEC did not correct, or all without FEC: packets are lost",
		Names: []string{"rx_pcs_symbol_err_phy", "rx_pcs_symbol_err"}},
	{Name: "phy_receive_lane_errors", Extra: true, Label: LabelLane, Rare: true,
		Help:  "raw errors on one lane, before correction",
		Names: []string{"rx_err_lane_%_phy"}},
	{Name: "phy_receive_crc_errors",
		Help:  "packets dropped because of a wrong checksum (FCS)",
		Names: []string{"rx_crc_errors_phy", "bnxt_en:rx_fcs_err_frames", "rxp_fcs_err_frames", "rx_crc_errors.nic"}},
	{Name: "phy_link_downs",
		Help:  "times the link went down",
		Names: []string{"link_down_events_phy", "bnxt_en:link_down_events"}},
	{Name: "phy_local_faults",
		Help:  "faults of the link found by this port",
		Names: []string{"mac_local_faults.nic"}},
	{Name: "phy_remote_faults",
		Help:  "faults of the link found by the other end",
		Names: []string{"mac_remote_faults.nic"}},
	{Name: "fec_corrections",
		Help:  "errors (single binary digits) that FEC corrected; normal in moderation at 50 Gb/s a lane and more",
		Names: []string{"rx_corrected_bits_phy", "rx_corrected_bits"}},
	{Name: "fec_corrected_blocks",
		Help:  "blocks that FEC corrected",
		Names: []string{"rx_fec_corrected_blocks"}},
	{Name: "fec_uncorrectable_blocks",
		Help:  "blocks that FEC could not correct: packets are lost",
		Names: []string{"rx_fec_uncorrectable_blocks"}},
	// Cable or transceiver. Counts of events, no readings; most ports have none.
	{Name: "module_bus_stuck_events", Rare: true,
		Help:  "times the cable's or transceiver's I2C bus hung",
		Names: []string{"module_bus_stuck"}},
	{Name: "module_high_temperature_events", Rare: true,
		Help:  "times the cable or transceiver was too hot",
		Names: []string{"module_high_temp"}},
	{Name: "module_shorted_events", Rare: true,
		Help:  "times the cable was found shorted",
		Names: []string{"module_bad_shorted"}},
	{Name: "module_unplug_events", Rare: true,
		Help:  "times the cable or transceiver was pulled out",
		Names: []string{"module_unplug"}},
	// PCIe. Of the last second once a minute few make use; the counters miss none.
	{Name: "pcie_outbound_stalled_read", Extra: true, Unit: UnitPercent, Gauge: true,
		Help:  "share of the last second in which the NIC wanted to read host memory but had no PCIe credits",
		Names: []string{"outbound_pci_stalled_rd"}},
	{Name: "pcie_outbound_stalled_write", Extra: true, Unit: UnitPercent, Gauge: true,
		Help:  "share of the last second in which the NIC wanted to write host or GPU memory but had no PCIe credits",
		Names: []string{"outbound_pci_stalled_wr"}},
	{Name: "pcie_outbound_stalled_read", Unit: UnitSeconds,
		Help:  "seconds of which the NIC spent more than 30 % waiting for PCIe credits to read",
		Names: []string{"outbound_pci_stalled_rd_events"}},
	{Name: "pcie_outbound_stalled_write", Unit: UnitSeconds,
		Help:  "seconds of which the NIC spent more than 30 % waiting for PCIe credits to write",
		Names: []string{"outbound_pci_stalled_wr_events"}},
	{Name: "pcie_outbound_buffer_overflows",
		Help:  "packets dropped because PCIe did not take them in time",
		Names: []string{"outbound_pci_buffer_overflow"}},
	{Name: "pcie_receive_signal_integrity_errors", Extra: true,
		Help:  "times the PCIe link went to recovery because the NIC saw framing or checksum errors",
		Names: []string{"rx_pci_signal_integrity"}},
	{Name: "pcie_transmit_signal_integrity_errors", Extra: true,
		Help:  "times the PCIe link went to recovery because the other side asked for it",
		Names: []string{"tx_pci_signal_integrity"}},
	// RDMA traffic of the function, also where counters/ is missing or hidden.
	{Name: "vport_rdma_unicast_receive_bytes", Extra: true, Unit: UnitBytes,
		Help:  "bytes of unicast RDMA traffic received by the function",
		Names: []string{"rx_vport_rdma_unicast_bytes"}},
	{Name: "vport_rdma_unicast_transmit_bytes", Extra: true, Unit: UnitBytes,
		Help:  "bytes of unicast RDMA traffic sent by the function",
		Names: []string{"tx_vport_rdma_unicast_bytes"}},
	{Name: "vport_rdma_unicast_receive_packets", Extra: true,
		Help:  "packets of unicast RDMA traffic received by the function",
		Names: []string{"rx_vport_rdma_unicast_packets"}},
	{Name: "vport_rdma_unicast_transmit_packets", Extra: true,
		Help:  "packets of unicast RDMA traffic sent by the function",
		Names: []string{"tx_vport_rdma_unicast_packets"}},
	{Name: "vport_rdma_multicast_receive_bytes", Extra: true, Unit: UnitBytes, Rare: true,
		Help:  "bytes of multicast RDMA traffic received by the function",
		Names: []string{"rx_vport_rdma_multicast_bytes"}},
	{Name: "vport_rdma_multicast_transmit_bytes", Extra: true, Unit: UnitBytes, Rare: true,
		Help:  "bytes of multicast RDMA traffic sent by the function",
		Names: []string{"tx_vport_rdma_multicast_bytes"}},
	{Name: "vport_rdma_multicast_receive_packets", Extra: true, Rare: true,
		Help:  "packets of multicast RDMA traffic received by the function",
		Names: []string{"rx_vport_rdma_multicast_packets"}},
	{Name: "vport_rdma_multicast_transmit_packets", Extra: true, Rare: true,
		Help:  "packets of multicast RDMA traffic sent by the function",
		Names: []string{"tx_vport_rdma_multicast_packets"}},
	{Name: "vport_loopback_bytes", Extra: true, Unit: UnitBytes,
		Help:  "bytes that the function sent to itself (NIC loopback)",
		Names: []string{"vport_loopback_bytes"}},
	{Name: "vport_loopback_packets", Extra: true,
		Help:  "packets that the function sent to itself (NIC loopback)",
		Names: []string{"vport_loopback_packets"}},
}

package collector

import (
	"maps"
	"slices"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/devlink"
)

// Families of the rdma collector with fixed names. Those that come from counter
// files are named in naming.go.
var (
	rdmaClassPresent = gauge("gdr_rdma_class_present",
		"1 if the kernel has an RDMA device class (/sys/class/infiniband), that is if ib_core is loaded.")
	rdmaDevices = gauge("gdr_rdma_devices",
		"Number of RDMA devices listed in /sys/class/infiniband, less the excluded ones.")
	rdmaNetlink = gauge("gdr_rdma_netlink_up",
		"1 if the kernel's RDMA netlink family answers; 0: everything is read from sysfs, and what only netlink knows is missing.")
	rdmaMonitor = gauge("gdr_rdma_monitor_up",
		"1 if the kernel's events about RDMA devices are listened to (netlink MONITOR, Linux 6.12).")
	rdmaEvents = counter("gdr_rdma_monitor_events_total",
		"Events about RDMA devices since start by event: register, unregister, rename, netdev_attach, netdev_detach, netdev_rename, other. Absent where the kernel tells of none.")
	rdmaDevicesExcluded = gauge("gdr_rdma_devices_excluded",
		"Number of RDMA devices left out by --rdma.device-include and --rdma.device-exclude.")

	rdmaDeviceInfo = gauge("gdr_rdma_device_info",
		"Facts about an RDMA device, value 1: PCI address, driver, firmware (fw_ver), board (board_id), hca_type, node_type, protocol (ib, roce, iw, opa, usnic; from netlink), node_guid, sys_image_guid, "+
			"function (pf, vf, sf), subfunction number, role, uverbs node, and the parent device if it is a plane (SMI) sub-device."+slowNote)
	rdmaDeviceCountersHidden = gauge("gdr_rdma_device_counters_hidden",
		"1 if the driver has counters but sysfs shows none: the sysfs mount belongs to another network namespace.")
	rdmaDeviceCountersOmitted = gauge("gdr_rdma_device_counters_omitted",
		"Number of counter files of the device that are not exported because a directory has too many; absent if none.")
	rdmaDeviceRestricted = gauge("gdr_rdma_device_restricted",
		"1 if every file of the device's hw_counters directory refuses to be read.")
	rdmaDeviceResources = gauge("gdr_rdma_device_resources",
		"Number of RDMA objects of the device by type: pd, cq, qp, cm_id, mr, ctx, srq (netlink RES_GET). Queue pairs made through DEVX are not among them.")
	rdmaDeviceContexts = gauge("gdr_rdma_device_contexts",
		"Times the device is open by processes in the exporter's pid namespace (netlink RES_CTX_GET)."+slowNote)
	rdmaDeviceMRs = gauge("gdr_rdma_device_memory_regions",
		"Memory regions of processes in the exporter's pid namespace and of the kernel (netlink RES_MR_GET)."+slowNote)
	rdmaDeviceMRBytes = gauge("gdr_rdma_device_memory_region_bytes",
		"Memory registered by processes in the exporter's pid namespace and by the kernel (netlink RES_MR_GET)."+slowNote)
	rdmaDeviceSlowRead = gauge("gdr_rdma_device_slow_read_timestamp_seconds",
		"Unix time at which the device's slow group (rate, link layer, LIDs, error counters, identity) was read last.")

	rdmaPortInfo = gauge("gdr_rdma_port_info",
		"Facts about an RDMA port, value 1: link_layer, netdev, speed (the kernel's InfiniBand name for the lane speed, also on Ethernet), port_guid, "+
			"and state_meaning, constant where the driver reports ACTIVE whatever happens (EFA), else reported."+slowNote)
	rdmaPortState = gauge("gdr_rdma_port_state_id",
		"Logical port state (ports/*/state): 0 NOP, 1 DOWN, 2 INIT, 3 ARMED, 4 ACTIVE, 5 ACTIVE_DEFER.")
	rdmaPortPhysicalState = gauge("gdr_rdma_port_physical_state_id",
		"Physical port state (ports/*/phys_state): 1 Sleep, 2 Polling, 3 Disabled, 4 PortConfigurationTraining, 5 LinkUp, 6 LinkErrorRecovery, 7 Phy Test.")
	rdmaPortSource = gauge("gdr_rdma_port_source_info",
		"A fact about the port (state, hw_counters) that comes from sysfs, value 1: source sysfs. Absent where it comes from netlink, as it should while gdr_rdma_netlink_up is 1.")
	rdmaPortOptional = gauge("gdr_rdma_port_optional_counter_enabled",
		"1 for an optional counter that is switched on (netlink STAT_GET_STATUS); those that could be have no series. The exporter never switches any."+slowNote)
	rdmaPortRate = gauge("gdr_rdma_port_rate_bytes_per_second",
		"Data rate of the port (ports/*/rate). A placeholder while the port is not ACTIVE; a speed that the kernel does not know reads as SDR."+slowNote)
	rdmaPortLanes = gauge("gdr_rdma_port_width_lanes",
		"Link width of the port in lanes (ports/*/rate)."+slowNote)
	rdmaPortLID = gauge("gdr_rdma_port_lid",
		"Local identifier of an InfiniBand port (ports/*/lid)."+slowNote)
	rdmaPortSMLID = gauge("gdr_rdma_port_sm_lid",
		"Local identifier of the subnet manager that an InfiniBand port obeys (ports/*/sm_lid)."+slowNote)
	rdmaPortGIDs = gauge("gdr_rdma_port_gids",
		"Number of entries of the port's GID table by type (ports/*/gid_attrs/types). Counted every 10 minutes, up to the first 64 empty slots in a row.")
	rdmaPortCarrierChanges = counter("gdr_rdma_port_carrier_changes_total",
		"Carrier losses and gains of the port's netdev (carrier_changes): two for each time that the link was down and came back.")
	rdmaPortReceiveBytes = counter("gdr_rdma_port_receive_bytes_total",
		"Bytes received by RDMA traffic, for every driver that counts bytes anywhere: from counters/port_rcv_data, hw_counters/rx_bytes or the like.")
	rdmaPortTransmitBytes = counter("gdr_rdma_port_transmit_bytes_total",
		"Bytes sent by RDMA traffic, for every driver that counts bytes anywhere: from counters/port_xmit_data, hw_counters/tx_bytes or the like.")
	rdmaPortRestricted = gauge("gdr_rdma_port_restricted",
		"1 if every file of the port's counter directory (source) refuses to be read, as on restricted functions and drivers without PMA. "+
			"It is then asked again only every 10 to 60 minutes.")
	rdmaPortSaturated = gauge("gdr_rdma_port_counter_saturated",
		"1 for an InfiniBand port counter that has reached its largest value (4, 8, 16 or 32 bits), at which it stays until it is cleared: its rate is then 0 whatever happens. "+
			"The others have no series, see gdr_rdma_port_saturated_counters.")
	rdmaPortSaturatedCount = gauge("gdr_rdma_port_saturated_counters",
		"Number of the port's InfiniBand counters that have reached their largest value and stick there.")
)

// constantState are the drivers whose port state says nothing.
var constantState = map[string]bool{"efa": true}

// Roles gives RDMA devices their role by name.
type Roles interface {
	// Role returns compute, storage, management or unused, "" where the command
	// line does not say.
	Role(device string) string
}

// rdmaView shows the RDMA devices.
type rdmaView struct {
	names  *namer
	roles  Roles
	labels labelCache
}

func newRDMAView(roles Roles) *rdmaView { return &rdmaView{names: newNamer(), roles: roles} }

func (v *rdmaView) show(p *page, s *snapshot.Snapshot) {
	part := s.RDMA
	if part == nil || part.Err != nil {
		return
	}
	p.addBool(rdmaClassPresent, part.Listing.Present, nil)
	p.add(rdmaDevices, float64(part.Listing.Devices), nil)
	p.addBool(rdmaNetlink, part.Listing.Netlink, nil)
	p.addBool(rdmaMonitor, part.Listing.Monitor, nil)
	for _, event := range slices.Sorted(maps.Keys(part.Listing.Events)) {
		p.add(rdmaEvents, float64(part.Listing.Events[event]), pairs("event", event))
	}
	p.add(rdmaDevicesExcluded, float64(part.Listing.Excluded), nil)
	reporters := v.devlink(p, s)
	for _, unit := range part.Units {
		if unit.Data != nil {
			v.device(p, s, unit.Data)
			showReporters(p, &v.labels, v.labels.of(unit.Name, ""), reporters[unit.Data.PCIAddress])
		}
	}
}

// devlink shows devlink itself and returns the health reporters by PCI address.
func (v *rdmaView) devlink(p *page, s *snapshot.Snapshot) map[string][]devlink.Reporter {
	if s.Devlink == nil || len(s.Devlink.Units) == 0 || s.Devlink.Units[0].Data == nil {
		return nil
	}
	reading := s.Devlink.Units[0].Data
	showDevlink(p, reading)
	return devlink.ByAddress(reading.Reporters)
}

func (v *rdmaView) device(p *page, s *snapshot.Snapshot, d *rdma.Device) {
	v.info(p, d, v.role(s, d.Name))
	device := v.labels.of(d.Name, "")
	if !d.SlowRead.IsZero() {
		p.add(rdmaDeviceSlowRead, float64(d.SlowRead.UnixMilli())/1000, device)
	}
	if d.Plane() {
		return
	}
	p.addBool(rdmaDeviceCountersHidden, d.Hidden, device)
	if d.Omitted > 0 {
		p.add(rdmaDeviceCountersOmitted, float64(d.Omitted), device)
	}
	if d.HWRestricted.Known {
		p.addBool(rdmaDeviceRestricted, d.HWRestricted.Value, device)
	}
	v.usage(p, d, device)
	v.counters(p, d.HWCounters, device)
	for i := range d.Ports {
		v.port(p, d, &d.Ports[i])
	}
}

// usage shows what is made of the device.
func (v *rdmaView) usage(p *page, d *rdma.Device, device labels) {
	for _, kind := range slices.Sorted(maps.Keys(d.Resources)) {
		p.add(rdmaDeviceResources, float64(d.Resources[kind]), v.labels.with(device, "type", kind))
	}
	if d.Usage.Contexts.Known {
		p.add(rdmaDeviceContexts, float64(d.Usage.Contexts.Value), device)
	}
	if d.Usage.Memory.Known {
		p.add(rdmaDeviceMRs, float64(d.Usage.Memory.Value.Regions), device)
		p.add(rdmaDeviceMRBytes, float64(d.Usage.Memory.Value.Bytes), device)
	}
}

// role returns the device's role: what the command line says, else compute if
// the device is the nearest to some GPU, else unknown.
func (v *rdmaView) role(s *snapshot.Snapshot, device string) string {
	if role := v.roles.Role(device); role != "" {
		return role
	}
	if s.Affinity != nil && s.Affinity.Listing.Roles[device] != "" {
		return s.Affinity.Listing.Roles[device]
	}
	return "unknown"
}

func (v *rdmaView) info(p *page, d *rdma.Device, role string) {
	p.add(rdmaDeviceInfo, 1, pairs(
		"device", d.Name, "address", d.PCIAddress, "driver", d.Driver, "firmware", d.Firmware,
		"board", d.Board, "hca_type", d.HCAType, "node_type", d.NodeType, "protocol", d.Protocol,
		"node_guid", d.NodeGUID, "sys_image_guid", d.SysImageGUID,
		"function", string(d.Function), "subfunction", d.SubFunction,
		"role", role, "uverbs", d.Uverbs, "parent", d.Parent,
	))
}

func (v *rdmaView) port(p *page, d *rdma.Device, port *rdma.Port) {
	labels := v.labels.of(d.Name, port.Label)
	v.portFacts(p, d, port, labels)
	v.portLink(p, port, labels)
	if port.Interface != nil {
		showNetdev(p, &v.labels, labels, port.Interface)
	}
	for _, restriction := range port.Restricted {
		p.addBool(rdmaPortRestricted, restriction.All, v.labels.with(labels, "source", string(restriction.Source)))
	}
	if port.ReceiveBytes.Known {
		p.add(rdmaPortReceiveBytes, port.ReceiveBytes.Value, labels)
	}
	if port.TransmitBytes.Known {
		p.add(rdmaPortTransmitBytes, port.TransmitBytes.Value, labels)
	}
	v.portCounters(p, port, labels)
}

func (v *rdmaView) portFacts(p *page, d *rdma.Device, port *rdma.Port, labels labels) {
	meaning := "reported"
	if constantState[d.Driver] {
		meaning = "constant"
	}
	p.add(rdmaPortInfo, 1, pairs("device", d.Name, "port", port.Label, "link_layer", port.LinkLayer,
		"netdev", port.Netdev, "speed", port.Rate.Value.Speed, "port_guid", port.GUID, "state_meaning", meaning))
	if port.StateFrom == rdma.FromSysfs {
		p.add(rdmaPortSource, 1, v.labels.with2(labels, "fact", "state", "source", string(port.StateFrom)))
	}
	if port.CountersFrom == rdma.FromSysfs {
		p.add(rdmaPortSource, 1, v.labels.with2(labels, "fact", "hw_counters", "source", string(port.CountersFrom)))
	}
	for _, optional := range port.Optional {
		if optional.Enabled {
			p.add(rdmaPortOptional, 1, v.labels.with(labels, "counter", optional.Name))
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(port.GIDs)) {
		p.add(rdmaPortGIDs, float64(port.GIDs[kind]), v.labels.with(labels, "type", kind))
	}
}

func (v *rdmaView) portLink(p *page, port *rdma.Port, labels labels) {
	if port.State.Known {
		p.add(rdmaPortState, float64(port.State.Value), labels)
	}
	if port.PhysicalState.Known {
		p.add(rdmaPortPhysicalState, float64(port.PhysicalState.Value), labels)
	}
	if port.Rate.Known {
		p.add(rdmaPortRate, float64(port.Rate.Value.BytesPerSecond), labels)
		if port.Rate.Value.Lanes > 0 {
			p.add(rdmaPortLanes, float64(port.Rate.Value.Lanes), labels)
		}
	}
	if port.LID.Known {
		p.add(rdmaPortLID, float64(port.LID.Value), labels)
	}
	if port.SMLID.Known {
		p.add(rdmaPortSMLID, float64(port.SMLID.Value), labels)
	}
	if port.CarrierChanges.Known {
		p.add(rdmaPortCarrierChanges, float64(port.CarrierChanges.Value), labels)
	}
}

// counters shows counter files; labels are those of their port or device.
func (v *rdmaView) counters(p *page, counters []rdma.Counter, labels labels) {
	for _, c := range counters {
		named := v.names.family(c.Info)
		at := labels
		if named.label != "" {
			at = v.labels.with(labels, "counter", named.label)
		}
		p.add(named.family, c.Scaled(), at)
	}
}

// portCounters shows a port's counters, and which of them stick.
func (v *rdmaView) portCounters(p *page, port *rdma.Port, labels labels) {
	shown := port.Counters
	if port.LinkLayer == linkEthernet {
		shown = slices.DeleteFunc(slices.Clone(shown), idleOnEthernet)
	}
	v.counters(p, shown, labels)
	saturable, saturated := 0, 0
	for _, c := range port.Counters {
		if !v.names.family(c.Info).saturates {
			continue
		}
		if saturable++; c.Saturated() {
			saturated++
			p.add(rdmaPortSaturated, 1, v.labels.with(labels, "counter", c.Info.File))
		}
	}
	if saturable > 0 {
		p.add(rdmaPortSaturatedCount, float64(saturated), labels)
	}
}

// linkEthernet is the link layer of RoCE and iWARP ports (ports/N/link_layer).
const linkEthernet = "Ethernet"

// idleOnEthernet reports whether a counter is one of the InfiniBand
// specification's error counters and 0. On an Ethernet port they have nothing
// to count: drivers only offer the files. A driver that uses one all the same is
// shown.
func idleOnEthernet(c rdma.Counter) bool {
	return c.Info.Source == rdma.SourceCounters && c.Info.Width > 0 && c.Value == 0
}

package diagnosis

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"gdr_exporter/collector/host"
	"gdr_exporter/collector/profile"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback/prober"
)

// Rules about RDMA devices, their ports and their nodes.
const (
	idPortNoSM     = "port_no_subnet_manager"
	idPortDown     = "port_down"
	idPortRate     = "port_rate"
	idNICMissing   = "nic_missing"
	idClassGone    = "rdma_devices_vanished"
	idNICStuck     = "rdma_device_stuck"
	idRoCEGID      = "roce_no_gid"
	idNodeMissing  = "device_node_missing"
	idNodeHidden   = "device_node_hidden"
	idIPoIB        = "ipoib_no_address"
	idSaturated    = "counters_saturated"
	idCountersHide = "counters_hidden"
)

// stuckFor is how long a read must not have returned: a scrape with a short
// timeout sees devices that are merely slow.
const stuckFor = 10 * time.Second

var rdmaRules = []rule{
	{Rule: Rule{idPortNoSM, SeverityWarning, "an InfiniBand port has a link and no subnet manager",
		"The port is in INIT: start opensm, or the subnet manager on a switch or UFM, and check that it sees this port (sminfo, ibstat)."},
		needs: []need{needRDMA, needTree}, after: time.Minute, hold: flapping, judge: judgeNoSM},
	{Rule: Rule{idPortDown, SeverityWarning, "a port is down that should be up",
		"Check cable, module and the switch's port; mlxlink -d DEVICE -m tells why. It was ACTIVE before, or the profile expects it."},
		needs: []need{needRDMA, needTree}, hold: flapping, judge: judgePortDown},
	{Rule: Rule{idPortRate, SeverityWarning, "a port runs below its expected rate",
		"The link trained to a lower speed or to fewer lanes: clean or replace cable and module, check the switch's port and its configuration."},
		needs: []need{needRDMA}, hold: flapping, judge: judgePortRate},
	{Rule: Rule{idNICMissing, SeverityWarning, "an RDMA device is missing",
		"It was there, or the profile expects it: lspci for the card, the kernel log for mlx5 health and PCIe errors, then a cold boot or reseat."},
		needs: []need{needRDMA, needTree}, hold: flapping, judge: judgeNICMissing},
	{Rule: Rule{idClassGone, SeverityWarning, "all RDMA devices have vanished",
		"The RDMA driver was unloaded or is being restarted (openibd), or the devices were moved to another network namespace."},
		needs: []need{needRDMA}, after: time.Minute, judge: judgeClassGone},
	{Rule: Rule{idNICStuck, SeverityWarning, "reading an RDMA device does not return",
		"The driver waits for firmware that does not answer: kernel log (mlx5 health, command timeouts), devlink health; a firmware reset (mlxfwreset) or a reboot ends it."},
		hold: flapping, judge: judgeNICStuck},
	{Rule: Rule{idRoCEGID, SeverityWarning, "a RoCE port has no RoCE v2 GID",
		"Its network interface has no address: bring it up and give it one, otherwise jobs find no usable GID."},
		needs: []need{needRDMA, needTree}, after: time.Minute, judge: judgeGID},
	{Rule: Rule{idNodeMissing, SeverityWarning, "an RDMA device file is missing or may not be opened",
		"Load ib_uverbs and rdma_ucm and check udev's rules and the permissions of /dev/infiniband (0666)."},
		needs: []need{needHost, needTree}, judge: judgeNodes(false)},
	{Rule: Rule{idNodeHidden, SeverityInfo, "this container has no RDMA device files",
		"The exporter cannot measure without /dev/infiniband: mount it, or let it run privileged. Of jobs' containers this says nothing."},
		needs: []need{needHost, needTree}, judge: judgeNodes(true)},
	{Rule: Rule{idIPoIB, SeverityInfo, "an IPoIB interface has no address",
		"RDMA works without. NCCL's and MPI's first contact over this interface does not: give it an address, or name another interface (NCCL_SOCKET_IFNAME)."},
		needs: []need{needHost}, judge: judgeIPoIB},
	{Rule: Rule{idSaturated, SeverityInfo, "error counters of a port are saturated",
		"They stick at their largest value and tell of nothing new: clear them (perfquery -R) at the next occasion."},
		needs: []need{needRDMA}, judge: judgeSaturated},
	{Rule: Rule{idCountersHide, SeverityInfo, "the counters of an RDMA device are hidden",
		"The sysfs that is read belongs to another network namespace: run the exporter in the host's network namespace, or mount the host's /sys."},
		needs: []need{needRDMA}, judge: judgeHidden},
}

// ports calls f for the ports of compute devices that mean something: none of a
// switch, and none whose link layer is neither InfiniBand nor Ethernet (EFA).
func (n *node) ports(f func(d *rdma.Device, port *rdma.Port)) {
	n.computeDevices(func(d *rdma.Device) {
		for i := range d.Ports {
			if port := &d.Ports[i]; port.Number > 0 && (port.LinkLayer == "InfiniBand" || port.LinkLayer == "Ethernet") {
				f(d, port)
			}
		}
	})
}

// linkUp is IB_PORT_PHYS_STATE_LINK_UP.
const linkUp = 5

// noManager reports whether an InfiniBand port has a link, and nobody configures it.
func noManager(port *rdma.Port) bool {
	return port.LinkLayer == "InfiniBand" && port.State.Known && port.State.Value == portInit && port.PhysicalState.Value == linkUp
}

func judgeNoSM(n *node, j *judging) {
	n.ports(func(d *rdma.Device, port *rdma.Port) {
		if noManager(port) {
			j.find(Subject{Device: d.Name, Port: port.Number}, "state INIT, physical state LinkUp")
		}
	})
}

// judgePortDown minds ports that were ACTIVE or should be: one that never was may
// be unused by design. A port in INIT that never was ACTIVE waits for its subnet
// manager, of which another rule tells after a while; one that was has gone down
// at once, whatever the cause turns out to be.
func judgePortDown(n *node, j *judging) {
	n.ports(func(d *rdma.Device, port *rdma.Port) {
		key := prober.Port{Device: d.Name, Number: port.Number}
		_, expected := n.Expected.Ports[key]
		was := n.history.active[key]
		switch {
		case !expected && !was, noManager(port) && !was:
		case !port.State.Known:
			j.lack("states of ports that cannot be read")
		case port.State.Value != portActive && port.State.Value != portDefer:
			why := "was ACTIVE before"
			if !was {
				why = "should be ACTIVE (" + string(n.source(profile.FieldPorts)) + ")"
			}
			j.find(Subject{Device: d.Name, Port: port.Number}, "state %s, physical state %s; it %s",
				stateName(portStates, port.State.Value), stateName(physicalStates, port.PhysicalState.Value), why)
		}
	})
}

var (
	portStates     = []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}
	physicalStates = []string{"unknown", "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "Phy Test"}
)

func stateName(names []string, id int) string {
	if id >= 0 && id < len(names) {
		return names[id]
	}
	return "unknown"
}

// judgePortRate: the rate of a port that is not ACTIVE is a placeholder.
func judgePortRate(n *node, j *judging) {
	n.ports(func(d *rdma.Device, port *rdma.Port) {
		want, _ := n.Expected.Ports[prober.Port{Device: d.Name, Number: port.Number}]
		if !want.Known {
			want = n.Expected.PortRate
		}
		if !want.Known || !port.State.Known || port.State.Value != portActive {
			return
		}
		if !port.Rate.Known {
			j.lack("rates of ports that cannot be read")
			return
		}
		if have := port.Rate.Value.BytesPerSecond; have < want.Value {
			j.find(Subject{Device: d.Name, Port: port.Number}, "%.0f Gb/s of %.0f Gb/s (%s)", float64(have)*8e-9, float64(want.Value)*8e-9, n.source(profile.FieldPortRate))
		}
	})
}

// judgeNICMissing names the devices that were there, and counts. Virtual functions
// and devices that another name has now are not missed, nor is one that all the
// others went with, nor any that a network namespace may have taken.
func judgeNICMissing(n *node, j *judging) {
	if n.classGone() || n.private() {
		return
	}
	addresses, listed := map[string]bool{}, map[string]bool{}
	for _, unit := range n.s.RDMA.Units {
		listed[unit.Name] = true
		if unit.Data != nil {
			addresses[unit.Data.PCIAddress] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(n.history.devices)) {
		seen := n.history.devices[name]
		if !listed[name] && (seen.address == "" || !addresses[seen.address]) {
			j.find(Subject{Device: name}, "%s (%s) was there and is not listed any more", name, cmp.Or(seen.address, "no PCI function"))
		}
	}
	want, have := n.Expected.Devices, n.facts.Devices
	switch {
	case !want.Known:
	case !have.Known:
		j.lack(notCounted)
	case have.Value+len(j.found) < want.Value:
		j.find(Subject{}, "%d compute devices, %d are expected (%s)", have.Value, want.Value, n.source(profile.FieldDevices))
	}
}

// private reports whether RDMA devices come and go with network namespaces.
func (n *node) private() bool {
	return n.host != nil && n.host.Context.SharedRDMA.Known && !n.host.Context.SharedRDMA.Value
}

// classGone reports whether devices were there and none is.
func (n *node) classGone() bool { return len(n.s.RDMA.Units) == 0 && len(n.history.devices) > 1 }

func judgeClassGone(n *node, j *judging) {
	if n.classGone() && !n.private() {
		j.find(Subject{}, "%d compute devices were there: %s", len(n.history.devices), strings.Join(slices.Sorted(maps.Keys(n.history.devices)), ", "))
	}
}

func judgeNICStuck(n *node, j *judging) {
	if n.s.RDMA == nil {
		return
	}
	for _, unit := range n.s.RDMA.Units {
		if unit.StuckFor >= stuckFor {
			j.find(Subject{Device: unit.Name}, "a read hangs")
		}
	}
}

// judgeGID: a port that is ACTIVE has one for its link-local address at least.
func judgeGID(n *node, j *judging) {
	n.ports(func(d *rdma.Device, port *rdma.Port) {
		if port.LinkLayer != "Ethernet" || !port.State.Known || port.State.Value != portActive || port.GIDs == nil {
			return
		}
		if port.GIDs["RoCE v2"] == 0 {
			j.find(Subject{Device: d.Name, Port: port.Number}, "the GID table has no entry of type RoCE v2")
		}
	})
}

// judgeNodes judges device files of compute devices, in a container or not: there
// it is usual that there are none.
func judgeNodes(container bool) func(*node, *judging) {
	return func(n *node, j *judging) {
		if n.host.Context.Container.Value != container {
			return
		}
		for i := range n.host.Nodes {
			file := &n.host.Nodes[i]
			if !strings.HasPrefix(file.Name, "uverbs") || !n.compute(file.Device) {
				continue
			}
			switch {
			case !file.Present:
				j.find(Subject{Device: file.Device}, "/dev/infiniband/%s is not there", file.Name)
			case file.Usable.Known && !file.Usable.Value:
				j.find(Subject{Device: file.Device}, "/dev/infiniband/%s may not be opened by this process", file.Name)
			}
		}
	}
}

func judgeIPoIB(n *node, j *judging) {
	if !n.host.Interfaces.Known {
		j.lack("network interfaces: it needs the host's network namespace")
		return
	}
	for _, at := range n.host.Interfaces.Value {
		if at.Type == host.TypeInfiniBand && at.Up.Value && at.IPv4+at.IPv6 == 0 {
			j.find(Subject{Other: at.Name}, "%s is up and has no address that is not link-local", at.Name)
		}
	}
}

func judgeSaturated(n *node, j *judging) {
	n.ports(func(d *rdma.Device, port *rdma.Port) {
		var names []string
		for i := range port.Counters {
			if port.Counters[i].Saturated() {
				names = append(names, port.Counters[i].Info.File)
			}
		}
		if len(names) > 0 {
			j.find(Subject{Device: d.Name, Port: port.Number}, "%s", strings.Join(names, ", "))
		}
	})
}

func judgeHidden(n *node, j *judging) {
	for _, unit := range n.s.RDMA.Units {
		if unit.Data != nil && unit.Data.Hidden {
			j.find(Subject{Device: unit.Name}, "no port shows a counter directory")
		}
	}
}

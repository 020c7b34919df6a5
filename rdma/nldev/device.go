package nldev

import (
	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/nlattr"
)

// Device is what GET says of a device.
type Device struct {
	Index        uint32 // does not change while the device lives
	Name         string
	Ports        uint32 // number of ports
	Firmware     string
	NodeGUID     string // as sysfs writes it, "" for none
	SysImageGUID string
	NodeType     sysread.Maybe[int]
	Protocol     string // ib, roce, iw, opa, usnic
	// Parent is the device that a plane (SMI sub-device) belongs to.
	Parent string
}

// deviceTypeSMI is RDMA_DEVICE_TYPE_SMI.
const deviceTypeSMI = 1

// decodeDevice reads a message of GET or MONITOR. ok is false if it names no
// device.
func decodeDevice(data []byte) (device Device, ok bool, err error) {
	var smi, indexed bool
	var parent string
	err = attributes(data, func(kind uint16, value []byte) {
		n, isNumber := nlattr.Number(value)
		switch kind {
		case attrDevIndex:
			device.Index, indexed = uint32(n), isNumber
		case attrDevName:
			device.Name = nlattr.Text(value)
		case attrPortIndex:
			device.Ports = uint32(n)
		case attrFWVersion:
			device.Firmware = nlattr.Text(value)
		case attrNodeGUID:
			device.NodeGUID = guid(value)
		case attrSysImageGUID:
			device.SysImageGUID = guid(value)
		case attrNodeType:
			device.NodeType = sysread.Maybe[int]{Value: int(n), Known: isNumber}
		case attrProtocol:
			device.Protocol = nlattr.Text(value)
		case attrDevType:
			smi = n == deviceTypeSMI
		case attrParentName:
			parent = nlattr.Text(value)
		}
	})
	if smi {
		device.Parent = parent
	}
	return device, indexed && device.Name != "", err
}

// Port is what PORT_GET says of a port.
type Port struct {
	State         sysread.Maybe[int] // as ports/N/state
	PhysicalState sysread.Maybe[int] // as ports/N/phys_state
	LID, SMLID    sysread.Maybe[uint64]
	// Netdev is the name of a RoCE or iWARP port's netdev, if it is in the
	// caller's network namespace.
	Netdev string
}

func decodePort(data []byte) (Port, error) {
	var port Port
	err := attributes(data, func(kind uint16, value []byte) {
		n, isNumber := nlattr.Number(value)
		switch kind {
		case attrPortState:
			port.State = sysread.Maybe[int]{Value: int(n), Known: isNumber}
		case attrPortPhysState:
			port.PhysicalState = sysread.Maybe[int]{Value: int(n), Known: isNumber}
		case attrLID:
			port.LID = sysread.Maybe[uint64]{Value: n, Known: isNumber}
		case attrSMLID:
			port.SMLID = sysread.Maybe[uint64]{Value: n, Known: isNumber}
		case attrNetdevName:
			port.Netdev = nlattr.Text(value)
		}
	})
	return port, err
}

// Counter is one of a port's hw_counters.
type Counter struct {
	Name  string
	Value uint64
}

func decodeCounters(data []byte) ([]Counter, error) {
	var counters []Counter
	err := table(data, attrHWCounters, attrHWCounterEntry, func(entry []byte) error {
		var counter Counter
		var valued bool
		err := attributes(entry, func(kind uint16, value []byte) {
			switch kind {
			case attrHWCounterName:
				counter.Name = nlattr.Text(value)
			case attrHWCounterValue:
				counter.Value, valued = nlattr.Number(value)
			}
		})
		if valued && counter.Name != "" {
			counters = append(counters, counter)
		}
		return err
	})
	return counters, err
}

// Optional is a counter that an administrator can switch on
// (rdma statistic set link ... optional-counters).
type Optional struct {
	Name    string
	Enabled bool
}

func decodeOptional(data []byte) ([]Optional, error) {
	var all []Optional
	err := table(data, attrHWCounters, attrHWCounterEntry, func(entry []byte) error {
		var optional Optional
		var dynamic bool
		err := attributes(entry, func(kind uint16, value []byte) {
			switch kind {
			case attrHWCounterName:
				optional.Name = nlattr.Text(value)
			case attrHWCounterDynamic:
				n, ok := nlattr.Number(value)
				optional.Enabled, dynamic = n == 1, ok
			}
		})
		if dynamic && optional.Name != "" {
			all = append(all, optional)
		}
		return err
	})
	return all, err
}

// decodeSummary reads RES_GET: the number of objects by type (pd, cq, qp, cm_id,
// mr, ctx, srq).
func decodeSummary(data []byte) (map[string]uint64, error) {
	counts := map[string]uint64{}
	err := table(data, attrResSummary, attrResSummaryEntry, func(entry []byte) error {
		var name string
		var current uint64
		var counted bool
		err := attributes(entry, func(kind uint16, value []byte) {
			switch kind {
			case attrResSummaryName:
				name = nlattr.Text(value)
			case attrResSummaryCurr:
				current, counted = nlattr.Number(value)
			}
		})
		if counted && name != "" {
			counts[name] = current
		}
		return err
	})
	return counts, err
}

// table calls f with the content of each entry of the table of that kind.
func table(data []byte, kind, entry uint16, f func(content []byte) error) error {
	return nested(data, kind, func(content []byte) error { return nested(content, entry, f) })
}

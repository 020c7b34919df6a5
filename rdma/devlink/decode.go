package devlink

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/nlattr"
)

// Numbers of linux/devlink.h.
const (
	familyName        = "devlink"
	familyVersion     = 1
	cmdReporterGet    = 52
	attrBus           = 1
	attrDevice        = 2
	attrPort          = 3
	attrReporter      = 114
	attrName          = 115
	attrState         = 116
	attrErrors        = 117
	attrRecoveries    = 118
	attrDumpTimestamp = 137 // DEVLINK_ATTR_HEALTH_REPORTER_DUMP_TS_NS: Unix time
)

// States of a reporter (enum devlink_health_reporter_state).
const (
	StateHealthy = 0
	StateError   = 1
)

// Reporter is one health reporter of a device.
type Reporter struct {
	// Bus and Device are the device's handle, such as pci and 0000:08:00.0.
	Bus, Device string
	// Port is the devlink port's number; not known for a reporter of the
	// device itself.
	Port sysread.Maybe[uint64]
	Name string // fw, fw_fatal, tx, rx, vnic, ...

	State      sysread.Maybe[int]    // 0 healthy, 1 error
	Errors     sysread.Maybe[uint64] // errors reported since the driver was loaded
	Recoveries sysread.Maybe[uint64] // successful recoveries
	// LastDump is when the reporter kept a dump for an error last; not known
	// if it has none.
	LastDump sysread.Maybe[time.Time]
}

// Decode takes one message of the dump apart, without its generic netlink
// header; false if it names no reporter. Attributes of later kernels are
// passed over, and those that are missing unknown.
func Decode(body []byte) (Reporter, bool) {
	var r Reporter
	for kind, value := range nlattr.All(body) {
		switch kind {
		case attrBus:
			r.Bus = nlattr.Text(value)
		case attrDevice:
			r.Device = nlattr.Text(value)
		case attrPort:
			r.Port = number(value)
		case attrReporter:
			for kind, value := range nlattr.All(value) {
				r.attribute(kind, value)
			}
		}
	}
	return r, r.Bus != "" && r.Device != "" && r.Name != ""
}

// Encode makes the message that Decode takes apart: the kernel's, less the
// attributes that are not looked at.
func Encode(r *Reporter) []byte {
	body := nlattr.Append(nil, attrBus, cString(r.Bus))
	body = nlattr.Append(body, attrDevice, cString(r.Device))
	body = appendKnown(body, attrPort, r.Port)
	in := nlattr.Append(nil, attrName, cString(r.Name))
	if r.State.Known {
		in = nlattr.Append(in, attrState, []byte{byte(r.State.Value)})
	}
	in = appendKnown(in, attrErrors, r.Errors)
	in = appendKnown(in, attrRecoveries, r.Recoveries)
	if r.LastDump.Known {
		in = nlattr.Append(in, attrDumpTimestamp, binary.NativeEndian.AppendUint64(nil, uint64(r.LastDump.Value.UnixNano())))
	}
	return nlattr.Append(body, attrReporter, in)
}

func cString(text string) []byte { return append([]byte(text), 0) }

func appendKnown(body []byte, kind uint16, value sysread.Maybe[uint64]) []byte {
	if !value.Known {
		return body
	}
	return nlattr.Append(body, kind, binary.NativeEndian.AppendUint64(nil, value.Value))
}

func (r *Reporter) attribute(kind uint16, value []byte) {
	switch kind {
	case attrName:
		r.Name = nlattr.Text(value)
	case attrState:
		if state := number(value); state.Known {
			r.State = sysread.Some(int(state.Value))
		}
	case attrErrors:
		r.Errors = number(value)
	case attrRecoveries:
		r.Recoveries = number(value)
	case attrDumpTimestamp:
		if ns := number(value); ns.Known && ns.Value > 0 && ns.Value < 1<<63 {
			r.LastDump = sysread.Some(time.Unix(0, int64(ns.Value)))
		}
	}
}

func number(value []byte) sysread.Maybe[uint64] {
	n, known := nlattr.Number(value)
	return sysread.Maybe[uint64]{Value: n, Known: known}
}

// ByAddress returns the reporters of PCI functions by address, each function's
// sorted by name. Reporters of the same name, which a function has if it has
// several devlink ports, become one: in error if any is, with the sums of what
// they count.
func ByAddress(reporters []Reporter) map[string][]Reporter {
	functions := map[string][]Reporter{}
	for _, r := range reporters {
		if r.Bus != "pci" {
			continue // sub-functions and others
		}
		of := functions[r.Device]
		i := slices.IndexFunc(of, func(other Reporter) bool { return other.Name == r.Name })
		if i < 0 {
			functions[r.Device] = append(of, r)
			continue
		}
		of[i] = merge(of[i], r)
	}
	for _, of := range functions {
		slices.SortFunc(of, func(a, b Reporter) int { return cmp.Compare(a.Name, b.Name) })
	}
	return functions
}

// merge makes one reporter of two; what either does not know is not known of both.
func merge(a, b Reporter) Reporter {
	a.Port = sysread.Maybe[uint64]{}
	a.State = sysread.Maybe[int]{Value: max(a.State.Value, b.State.Value), Known: a.State.Known && b.State.Known}
	a.Errors = sum(a.Errors, b.Errors)
	a.Recoveries = sum(a.Recoveries, b.Recoveries)
	if !a.LastDump.Known || (b.LastDump.Known && b.LastDump.Value.After(a.LastDump.Value)) {
		a.LastDump = b.LastDump
	}
	return a
}

func sum(a, b sysread.Maybe[uint64]) sysread.Maybe[uint64] {
	return sysread.Maybe[uint64]{Value: a.Value + b.Value, Known: a.Known && b.Known}
}

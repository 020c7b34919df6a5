package gpu

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	// maxEvents bounds the events taken in one read: a GPU in trouble may make
	// them faster than they are read.
	maxEvents = 256
	// maxXids bounds the codes counted apart on one GPU.
	maxXids = 32
)

// Xid codes that exist at 0 for every GPU, since alerts read them: NVLink
// error, GPU fallen off the bus, recovery action changed.
var alertXids = []uint64{74, 79, 154}

// nvlink5Xids are the NVLink errors from NVLink 5 on.
var nvlink5Xids = []uint64{144, 145, 146, 147, 148, 149, 150}

// applicationXids are what a program's own fault gives (graphics exception,
// memory fault, stopped and reset channels): not of the interconnect, and daily
// life on a machine in use.
var applicationXids = []uint64{13, 31, 43, 45}

// xids are the Xid events of one GPU.
type xids map[uint64]*Xid

// events is NVML's event set.
type events struct {
	set EventSet // nil: none
	// byAddress outlives device handles and NVML's restarts.
	byAddress map[string]xids
}

// register makes the set, if there is none, and adds the GPUs that are new.
func (r *Reader) register(v *visit) {
	if r.events.set == nil {
		set := ask(v, "nvmlEventSetCreate", r.calls.lib.EventSetCreate)
		if !set.Known {
			return
		}
		r.events.set = set.Value
		for _, d := range r.devices {
			d.asked, d.events = false, false
		}
	}
	for _, d := range r.devices {
		if d.asked || d.wasLost {
			continue
		}
		about := &visit{calls: v.calls, address: d.address}
		d.events = r.registerDevice(about, d)
		d.asked = !about.lost
		v.absorb(about)
	}
}

// registerDevice adds a GPU to the set and reports whether its Xid events will come.
func (r *Reader) registerDevice(v *visit, d *device) bool {
	types := ask(v, "nvmlDeviceGetSupportedEventTypes", d.handle.GetSupportedEventTypes)
	if types.Value&nvml.EventTypeXidCriticalError == 0 {
		return false
	}
	return ask(v, "nvmlDeviceRegisterEvents", status(func() nvml.Return {
		return d.handle.RegisterEvents(nvml.EventTypeXidCriticalError, r.events.set)
	})).Known
}

// poll takes the events that came since the last read. It does not wait.
func (r *Reader) poll(now time.Time, v *visit) {
	if r.events.set == nil {
		return
	}
	for range maxEvents {
		event := ask(v, "nvmlEventSetWait", func() (Event, nvml.Return) { return r.events.set.Wait(0) },
			nvml.ERROR_TIMEOUT, nvml.ERROR_GPU_IS_LOST) // which one is lost, its own calls tell
		if !event.Known {
			return
		}
		if event.Value.Type == nvml.EventTypeXidCriticalError {
			r.note(now, v, event.Value)
		}
	}
}

// note counts an Xid event.
func (r *Reader) note(now time.Time, v *visit, event Event) {
	address := r.eventAddress(v, event.Device)
	if address == "" || slices.Contains(applicationXids, event.Data) {
		return
	}
	counts := r.events.of(address)
	xid := counts[event.Data]
	if xid == nil {
		code := event.Data
		if len(counts) >= maxXids {
			code = 0
		}
		if xid = counts[code]; xid == nil {
			xid = &Xid{Code: code}
			counts[code] = xid
		}
	}
	xid.Count++
	xid.Last = now
}

// eventAddress finds whose event it is. With MIG it may be of an instance, whose
// handle is another than its GPU's.
func (r *Reader) eventAddress(v *visit, handle Device) string {
	if handle == nil {
		return ""
	}
	for _, d := range r.devices {
		if d.handle == handle {
			return d.address
		}
	}
	info := ask(v, callPCIInfo, handle.GetPciInfo, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_INVALID_ARGUMENT)
	if _, address, ok := pciAddress(&info.Value); info.Known && ok && r.includes(address) {
		return address
	}
	return ""
}

func (e *events) of(address string) xids {
	counts := e.byAddress[address]
	if counts == nil {
		counts = xids{}
		e.byAddress[address] = counts
	}
	return counts
}

// shown returns the counts of a GPU that NVML tells events of.
func (e *events) shown(d *device) []Xid {
	counts := e.byAddress[d.address]
	if e.set != nil && d.events {
		counts = e.of(d.address)
		counts.expect(alertXids)
		if d.links.era == eraFive {
			counts.expect(nvlink5Xids)
		}
	}
	var list []Xid
	for _, xid := range slices.SortedFunc(maps.Values(counts), func(a, b *Xid) int { return cmp.Compare(a.Code, b.Code) }) {
		list = append(list, *xid)
	}
	return list
}

// expect makes the codes exist.
func (x xids) expect(codes []uint64) {
	for _, code := range codes {
		if x[code] == nil {
			x[code] = &Xid{Code: code}
		}
	}
}

// free gives the set back.
func (e *events) free(v *visit) {
	if e.set != nil {
		ask(v, "nvmlEventSetFree", status(e.set.Free))
		e.set = nil
	}
}

package gpu

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
)

// mostGPUs is more than the driver has minor numbers for (/dev/nvidia0 to 254). Each GPU
// is asked for: a capture of a stranger may claim any number.
const mostGPUs = 256

// list lists the GPUs: at the start, when their number changed, and after
// errors, but with the slow interval at most. Getting a handle takes 7 ms.
func (r *Reader) list(now time.Time, v *visit) {
	retry := slices.ContainsFunc(r.devices, func(d *device) bool { return d.wasLost && !d.lost.Waiting(now) })
	if !r.listed.IsZero() && now.Sub(r.listed) < r.options.SlowInterval && !retry {
		return
	}
	count := ask(v, "nvmlDeviceGetCount", r.calls.lib.DeviceGetCount)
	if !count.Known {
		return
	}
	if count.Value < 0 || count.Value > mostGPUs {
		v.fail("nvmlDeviceGetCount", sysread.Invalid(strconv.Itoa(count.Value)))
		return
	}
	r.listed = now
	r.readConfidential(v)
	if !r.relist && !retry && count.Value == r.count {
		return
	}
	r.relist, r.count, r.unnamed, r.hidden = false, count.Value, 0, 0
	var devices []*device
	for index := range count.Value {
		if d := r.find(v, index); d != nil && !slices.ContainsFunc(devices, func(o *device) bool { return o.address == d.address }) {
			devices = append(devices, d)
		}
	}
	slices.SortFunc(devices, func(a, b *device) int { return cmp.Compare(a.address, b.address) })
	r.devices = devices
}

// find returns the GPU of an index: the known one, if its handle is the same.
// Nothing but its address is asked of a GPU that Include leaves out.
func (r *Reader) find(session *visit, index int) *device {
	v := &visit{calls: session.calls}
	defer func() { session.absorb(v) }()
	handle := ask(v, "nvmlDeviceGetHandleByIndex", func() (Device, nvml.Return) {
		return r.calls.lib.DeviceGetHandleByIndex(index)
	}, nvml.ERROR_NO_PERMISSION) // hidden by a container's device rules
	info := sysread.Maybe[nvml.PciInfo]{}
	if handle.Known {
		info = ask(v, callPCIInfo, handle.Value.GetPciInfo)
	}
	if v.lost {
		return r.lostAt(index)
	}
	if v.last == nvml.ERROR_NO_PERMISSION {
		r.hidden++
	}
	if !info.Known {
		return nil
	}
	busID, address, ok := pciAddress(&info.Value)
	if !ok {
		v.fail(callPCIInfo, sysread.Invalid(busID))
		return nil
	}
	if !r.includes(address) {
		return nil
	}
	if d := r.device(address); d != nil && d.handle == handle.Value {
		d.index, d.busID = index, busID
		return d
	}
	return &device{handle: handle.Value, index: index, address: address, busID: busID, lost: r.lostSince(address)}
}

// lostAt returns the lost GPU of an index, if it was known before.
func (r *Reader) lostAt(index int) *device {
	for _, d := range r.devices {
		if d.index == index {
			d.wasLost = true
			return d
		}
	}
	r.unnamed++
	return nil
}

// lostSince keeps the waiting time of a lost GPU that has a new handle now.
func (r *Reader) lostSince(address string) sysread.Backoff {
	if d := r.device(address); d != nil {
		return d.lost
	}
	return sysread.Backoff{}
}

// device returns the GPU of an address, nil if there is none.
func (r *Reader) device(address string) *device {
	for _, d := range r.devices {
		if d.address == address {
			return d
		}
	}
	return nil
}

func (r *Reader) includes(address string) bool {
	return r.options.Include == nil || r.options.Include(address)
}

package gpu

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
)

// NVLink is what a GPU says of its NVLinks. Nothing is known of it on a GPU
// without NVLink.
type NVLink struct {
	Count  sysread.Maybe[int] // links of the GPU, field 91 or as many as answer
	Active sysread.Maybe[int] // of them active or asleep; known if all states are
	Links  []Link             // by number
	// Counters are sums over the links, in the order of LinkCounters; a link
	// that does not answer any more counts with what it said last, since a sum
	// that shrinks would look like a reset.
	Counters []sysread.Maybe[uint64]
	// EffectiveBER and SymbolBER are the largest of any link.
	EffectiveBER, SymbolBER sysread.Maybe[float64]
}

// Link is one NVLink.
type Link struct {
	Number int
	// State is field 165 or nvmlDeviceGetNvLinkState: 0 inactive, 1 active,
	// 2 sleep, 3 active but not for traffic.
	State sysread.Maybe[int]

	Version       sysread.Maybe[uint64]   // field 166: 1 1.0, 2 2.0, 3 2.2, 4 3.0, 5 3.1, 6 4.0, 7 5.0, 8 6.0
	Speed         sysread.Maybe[uint64]   // field 164, made bytes/s
	RemoteType    sysread.Maybe[string]   // nvmlDeviceGetNvLinkRemoteDeviceType: gpu, ibmnpu, switch
	RemoteAddress sysread.Maybe[string]   // nvmlDeviceGetNvLinkRemotePciInfo, as sysfs writes it
	Counters      []sysread.Maybe[uint64] // in the order of LinkCounters
	// EffectiveBER and SymbolBER are fields 220 and 222.
	EffectiveBER, SymbolBER sysread.Maybe[float64]
}

// Link states.
const (
	linkActive = 1
	linkSleep  = 2
)

// links is what is known of a GPU's links between reads.
type links struct {
	counted bool
	count   sysread.Maybe[int]
	last    map[[2]int]uint64 // what a link's counter said last, by link and counter
	era     era
	states  []linkState // by number
}

// countFirst finds the number of links: the field says it, else the links are
// asked in turn until one does not exist.
func (l *links) countLinks(v *visit, d Device) {
	if l.counted {
		return
	}
	count := v.fields(d, []field{{id: nvml.FI_DEV_NVLINK_LINK_COUNT}})[0]
	if count.Known {
		l.count = sysread.Some(int(min(count.Value, nvml.NVLINK_MAX_LINKS)))
	} else {
		l.count = probeLinks(v, d)
	}
	l.counted = !v.lost && !v.down
}

func probeLinks(v *visit, d Device) sysread.Maybe[int] {
	for link := range nvml.NVLINK_MAX_LINKS {
		state := ask(v, callLinkState, func() (nvml.EnableState, nvml.Return) { return d.GetNvLinkState(link) }, noLink...)
		if state.Known {
			continue
		}
		if link == 0 {
			return sysread.Maybe[int]{} // no NVLink at all
		}
		return sysread.Some(link)
	}
	return sysread.Some(nvml.NVLINK_MAX_LINKS)
}

const callLinkState = "nvmlDeviceGetNvLinkState"

// noLink are returns for a link that does not exist.
var noLink = []nvml.Return{nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_FOUND}

// stateFields are the fields that hold the links' states.
func (l *links) stateFields() []field {
	fields := make([]field, l.count.Value)
	for link := range fields {
		fields[link] = field{nvml.FI_DEV_NVLINK_GET_STATE, uint32(link)}
	}
	return fields
}

// readStates makes the links' states of their fields. A link whose field does
// not answer is asked by the older call, which does not know sleep.
func (l *links) readStates(v *visit, d Device, values []sysread.Maybe[uint64]) NVLink {
	if !l.counted {
		l.countLinks(v, d)
		values = v.fields(d, l.stateFields())
	}
	nvlink := NVLink{Count: l.count}
	known, active := 0, 0
	for number, value := range values {
		link := Link{Number: number}
		if value.Known {
			link.State = sysread.Some(int(value.Value))
		} else if state := ask(v, callLinkState, func() (nvml.EnableState, nvml.Return) { return d.GetNvLinkState(number) }, noLink...); state.Known {
			link.State = sysread.Some(int(state.Value))
		}
		if link.State.Known {
			known++
		}
		if link.State.Value == linkActive || link.State.Value == linkSleep {
			active++
		}
		nvlink.Links = append(nvlink.Links, link)
	}
	if nvlink.Count.Known && known == nvlink.Count.Value {
		nvlink.Active = sysread.Some(active)
	}
	return nvlink
}

// merge adds what the slow group gave to the states.
func (n *NVLink) merge(slow *NVLink) {
	for i := range n.Links {
		if i < len(slow.Links) {
			state := n.Links[i].State
			n.Links[i] = slow.Links[i]
			n.Links[i].State = state
		}
	}
}

// readSlow reads all but states and counters.
func (l *links) readSlow(v *visit, d Device) NVLink {
	nvlink := NVLink{Count: l.count}
	var wanted []field
	for number := range l.count.Value {
		wanted = append(wanted, field{nvml.FI_DEV_NVLINK_GET_VERSION, uint32(number)}, field{nvml.FI_DEV_NVLINK_GET_SPEED, uint32(number)})
	}
	values := v.fields(d, wanted)
	for number := range l.count.Value {
		link := Link{Number: number, Version: values[2*number]}
		if speed := values[2*number+1]; speed.Known {
			link.Speed = sysread.Some(speed.Value * 1_000_000) // MBps
		}
		describe(v, d, &link)
		nvlink.Links = append(nvlink.Links, link)
	}
	return nvlink
}

// describe reads where a link leads, and its version if no field has it.
func describe(v *visit, d Device, link *Link) {
	number := link.Number
	if !link.Version.Known {
		version := ask(v, "nvmlDeviceGetNvLinkVersion", func() (uint32, nvml.Return) { return d.GetNvLinkVersion(number) }, noLink...)
		link.Version = sysread.Maybe[uint64]{Value: uint64(version.Value), Known: version.Known}
	}
	remote := ask(v, "nvmlDeviceGetNvLinkRemoteDeviceType", func() (nvml.IntNvLinkDeviceType, nvml.Return) {
		return d.GetNvLinkRemoteDeviceType(number)
	}, noLink...)
	if name := remoteTypes[remote.Value]; remote.Known && name != "" {
		link.RemoteType = sysread.Some(name)
	}
	pci := ask(v, "nvmlDeviceGetNvLinkRemotePciInfo", func() (nvml.PciInfo, nvml.Return) {
		return d.GetNvLinkRemotePciInfo(number)
	}, noLink...)
	// A link to a switch has FFFFFFFF:FF:FF.0 where its switches are not visible.
	if _, address, ok := pciAddress(&pci.Value); pci.Known && ok {
		link.RemoteAddress = sysread.Some(address)
	}
}

// remoteTypes are NVML_NVLINK_DEVICE_TYPE_*.
var remoteTypes = map[nvml.IntNvLinkDeviceType]string{
	nvml.NVLINK_DEVICE_TYPE_GPU: "gpu", nvml.NVLINK_DEVICE_TYPE_IBMNPU: "ibmnpu", nvml.NVLINK_DEVICE_TYPE_SWITCH: "switch",
}

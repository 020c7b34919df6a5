package gpu

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
)

// LinkCounter is a counter of NVLinks.
type LinkCounter struct {
	// Name is the counter's, without prefix and unit; Help says what it counts
	// and where NVML has it.
	Name, Help string
	Bytes      bool
	// Detail: read only if single links are wanted.
	Detail bool

	fields []uint32 // the first that answers is taken
	scale  uint64   // what a unit of the first field is; 0: 1
	bins   bool     // fields are a histogram of 0, 1, 2, ... errors each
	era    era      // the NVLinks that have it; 0: all
	legacy sysread.Maybe[nvml.NvLinkErrorCounter]
}

// era is how NVLinks count errors.
type era int

const (
	eraUnknown era = iota
	eraFour        // up to NVLink 4 (Hopper)
	eraFive        // from NVLink 5 (Blackwell) on
)

// linkCounters are all counters. Of the older ones CRC_DATA and ECC_DATA are
// left out: only a call of 1 ms per link has them, and on a healthy H200 they
// are not 0 while nvidia-smi shows no errors.
var linkCounters = []LinkCounter{
	{Name: "transmit", Bytes: true, Help: "Data sent over NVLink (NVML field 138, KiB made bytes, else 202 of NVLink 5, with protocol overhead)",
		fields: []uint32{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES}, scale: 1024},
	{Name: "receive", Bytes: true, Help: "Data received over NVLink (NVML field 139, KiB made bytes, else 204 of NVLink 5, with protocol overhead)",
		fields: []uint32{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES}, scale: 1024},

	four("replay_errors", "Replays of the link layer (NVML field 161)", nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY, nvml.NVLINK_ERROR_DL_REPLAY),
	four("recovery_errors", "Recoveries of the link layer (NVML field 162)", nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY, nvml.NVLINK_ERROR_DL_RECOVERY),
	four("crc_errors", "CRC errors of flow control digits (NVML field 163)", nvml.FI_DEV_NVLINK_ERROR_DL_CRC, nvml.NVLINK_ERROR_DL_CRC_FLIT),

	five("receive_errors", "Packets received with errors (NVML field 208)", false, nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS),
	five("transmit_discards", "Erroneous packets discarded instead of sent (NVML field 212)", false, nvml.FI_DEV_NVLINK_COUNT_XMIT_DISCARDS),
	five("recoveries", "Times a link went from up to recovery, whatever came of it (NVML field 215)", false, nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS),
	five("failed_recoveries", "Times a link went from up to recovery and was declared down (NVML field 214)", false, nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS),
	five("effective_errors", "Errors in packets, left after error correction (NVML field 219)", false, nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS),
	five("symbol_errors", "Errors in received symbols (NVML field 221)", false, nvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS),
	{Name: "fec_corrected_symbols", Help: "Symbols corrected by forward error correction (NVML fields 235 to 250, blocks with 0 to 15 corrected symbols, each times that number), NVLink 5 and later",
		fields: fecFields(), bins: true, era: eraFive},

	five("malformed_packet_errors", "Malformed packets received (NVML field 206)", true, nvml.FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS),
	five("buffer_overrun_errors", "Packets discarded on receipt because of a buffer overrun (NVML field 207)", true, nvml.FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS),
	five("receive_remote_errors", "Packets received that were marked bad on the way, stomp or EBP (NVML field 209)", true, nvml.FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS),
	five("receive_general_errors", "Packets received whose header does not match (NVML field 210)", true, nvml.FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS),
	five("local_link_integrity_errors", "Times the count of local errors exceeded a threshold (NVML field 211)", true, nvml.FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS),
}

func four(name, help string, field uint32, legacy nvml.NvLinkErrorCounter) LinkCounter {
	return LinkCounter{Name: name, Help: help + ", up to NVLink 4", fields: []uint32{field}, era: eraFour, legacy: sysread.Some(legacy)}
}

func five(name, help string, detail bool, field uint32) LinkCounter {
	return LinkCounter{Name: name, Help: help + ", NVLink 5 and later", Detail: detail, fields: []uint32{field}, era: eraFive}
}

// LinkCounters returns all counters, in the order of Link.Counters.
func LinkCounters() []LinkCounter { return linkCounters }

func fecFields() []uint32 {
	var fields []uint32
	for id := uint32(nvml.FI_DEV_NVLINK_COUNT_FEC_HISTORY_0); id <= nvml.FI_DEV_NVLINK_COUNT_FEC_HISTORY_15; id++ {
		fields = append(fields, id)
	}
	return fields
}

// nvlinkVersion5 is NVML's number of NVLink 5.0.
const nvlinkVersion5 = 7

// linksPerRead are the links whose counters one read brings up to date. A link
// takes 0.9 ms, however many counters are asked for in the call (H200), so that
// all 18 at once would be 16 ms.
const linksPerRead = 2

// linkState is a link's counters between reads.
type linkState struct {
	Link
	read time.Time // zero: never
}

// readCounters reads the counters of links and adds those of all to n: the first
// time of all, later of the few that were read longest ago, and of none twice
// within interval.
func (l *links) readCounters(now time.Time, interval time.Duration, v *visit, d Device, n *NVLink, arch sysread.Maybe[nvml.DeviceArchitecture], detail bool) {
	if l.last == nil {
		l.last = map[[2]int]uint64{}
	}
	if l.era == eraUnknown && versionFive(n, arch) {
		l.era = eraFive
	}
	if len(l.states) != len(n.Links) {
		l.states = make([]linkState, len(n.Links))
		for i := range l.states {
			l.states[i].Number = n.Links[i].Number
		}
	}
	due := l.due(now, interval)
	l.readFields(v, d, due, detail)
	for _, state := range due {
		l.settle(v, d, &state.Link)
		state.read = now
	}
	for i := range n.Links {
		state := &l.states[i]
		n.Links[i].Counters, n.Links[i].EffectiveBER, n.Links[i].SymbolBER = state.Counters, state.EffectiveBER, state.SymbolBER
	}
	l.sum(n)
}

// due returns the links to read now, the one that was read longest ago first.
func (l *links) due(now time.Time, interval time.Duration) []*linkState {
	var never, due []*linkState
	for i := range l.states {
		switch state := &l.states[i]; {
		case state.read.IsZero():
			never = append(never, state)
		case now.Sub(state.read) >= interval:
			due = append(due, state)
		}
	}
	slices.SortStableFunc(due, func(a, b *linkState) int { return a.read.Compare(b.read) })
	return append(never, due[:min(len(due), linksPerRead)]...)
}

// counts reports whether a counter is asked for.
func (l *links) counts(c *LinkCounter, detail bool) bool {
	return (detail || !c.Detail) && (l.era == eraUnknown || c.era == eraUnknown || c.era == l.era)
}

// readFields reads the counters and error ratios of links: a field alone takes
// 1 ms, many in one call 30 us each.
func (l *links) readFields(v *visit, d Device, due []*linkState, detail bool) {
	var wanted []field
	for _, state := range due {
		link := uint32(state.Number)
		if l.era != eraFour {
			wanted = append(wanted, field{nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, link}, field{nvml.FI_DEV_NVLINK_COUNT_SYMBOL_BER, link})
		}
		for c := range linkCounters {
			if l.counts(&linkCounters[c], detail) {
				for _, id := range linkCounters[c].fields {
					wanted = append(wanted, field{id, link})
				}
			}
		}
	}
	values := v.fields(d, wanted)
	next := func(count int) []sysread.Maybe[uint64] {
		taken := values[:count]
		values = values[count:]
		return taken
	}
	for _, state := range due {
		link := &state.Link
		link.Counters = make([]sysread.Maybe[uint64], len(linkCounters))
		if l.era != eraFour {
			link.EffectiveBER, link.SymbolBER = bitErrorRatio(next(1)[0]), bitErrorRatio(next(1)[0])
		}
		for c := range linkCounters {
			if l.counts(&linkCounters[c], detail) {
				link.Counters[c] = linkCounters[c].value(next(len(linkCounters[c].fields)))
			}
		}
	}
	l.learn(due)
}

// learn finds out from what answered how the links count errors.
func (l *links) learn(read []*linkState) {
	for _, link := range read {
		if link.EffectiveBER.Known || link.SymbolBER.Known {
			l.era = eraFive
		}
		for c, value := range link.Counters {
			if linkCounters[c].era == eraFive && value.Known {
				l.era = eraFive
			}
			if linkCounters[c].era == eraFour && value.Known && l.era == eraUnknown {
				l.era = eraFour
			}
		}
	}
}

// settle takes the older counters from the calls if no field has them, and
// drops them from NVLink 5 on: they are 0 there for ever
// (NVIDIA/nvidia-resiliency-ext#302).
func (l *links) settle(v *visit, d Device, link *Link) {
	for i := range linkCounters {
		c := &linkCounters[i]
		switch {
		case c.era != eraFour:
		case l.era == eraFive:
			link.Counters[i] = sysread.Maybe[uint64]{}
		case !link.Counters[i].Known:
			link.Counters[i] = ask(v, "nvmlDeviceGetNvLinkErrorCounter", func() (uint64, nvml.Return) {
				return d.GetNvLinkErrorCounter(link.Number, c.legacy.Value)
			}, noLink...)
		}
	}
}

// versionFive reports whether the links are of NVLink 5 or later by their
// version: while they are inactive the fields need not answer. Without a version
// the architecture decides.
func versionFive(n *NVLink, arch sysread.Maybe[nvml.DeviceArchitecture]) bool {
	known := false
	for i := range n.Links {
		version := n.Links[i].Version.Value
		known = known || version > 0
		if version >= nvlinkVersion5 {
			return true
		}
	}
	return !known && arch.Known && arch.Value != nvml.DEVICE_ARCH_UNKNOWN && arch.Value >= nvml.DEVICE_ARCH_BLACKWELL
}

// value makes the counter of its fields.
func (c *LinkCounter) value(values []sysread.Maybe[uint64]) sysread.Maybe[uint64] {
	if c.bins {
		var total uint64
		for weight, bin := range values {
			if !bin.Known {
				return sysread.Maybe[uint64]{}
			}
			total += uint64(weight) * bin.Value
		}
		return sysread.Some(total)
	}
	for i, value := range values {
		if value.Known && i == 0 {
			return sysread.Some(value.Value * max(c.scale, 1))
		}
		if value.Known {
			return value
		}
	}
	return sysread.Maybe[uint64]{}
}

// sum adds up the links' counters.
func (l *links) sum(n *NVLink) {
	n.Counters = make([]sysread.Maybe[uint64], len(linkCounters))
	for i := range n.Links {
		link := &n.Links[i]
		for c, value := range link.Counters {
			at := [2]int{link.Number, c}
			if value.Known {
				l.last[at] = value.Value
			}
			if last, known := l.last[at]; known {
				n.Counters[c] = sysread.Some(n.Counters[c].Value + last)
			}
		}
		n.EffectiveBER = larger(n.EffectiveBER, link.EffectiveBER)
		n.SymbolBER = larger(n.SymbolBER, link.SymbolBER)
	}
}

func larger(a, b sysread.Maybe[float64]) sysread.Maybe[float64] {
	if !a.Known || b.Known && b.Value > a.Value {
		return b
	}
	return a
}

// bitErrorRatio decodes NVML_NVLINK_ERROR_COUNTER_BER_GET: mantissa in bits 8
// to 11, negative decimal exponent in bits 0 to 7.
func bitErrorRatio(value sysread.Maybe[uint64]) sysread.Maybe[float64] {
	if !value.Known {
		return sysread.Maybe[float64]{}
	}
	mantissa := value.Value >> nvml.NVLINK_BER_MANTISSA_SHIFT & nvml.NVLINK_BER_MANTISSA_WIDTH
	exponent := value.Value >> nvml.NVLINK_BER_EXP_SHIFT & nvml.NVLINK_BER_EXP_WIDTH
	ratio, err := strconv.ParseFloat(fmt.Sprintf("%de-%d", mantissa, exponent), 64) // exact, unlike a product
	return sysread.Maybe[float64]{Value: ratio, Known: err == nil}
}

package collector

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
)

// turnNote tells how fresh a counter is.
const turnNote = " Read of two links with each scrape, in turn, of none more than once per --scrape.slow-interval."

// sumNote tells what a counter of NVLinks is a sum of.
const sumNote = " Sum over the GPU's links, or by link with --collector.nvlink.per-link."

// Families of NVLinks. Those of counters come from gpu.LinkCounters.
var (
	nvlinkLinks = gauge("gdr_nvlink_links",
		"Number of NVLinks that the GPU has (NVML field 91, or as many as answer). Fewer may be in use by design.")
	nvlinkActive = gauge("gdr_nvlink_active_links",
		"Number of the GPU's NVLinks that are active or asleep.")
	nvlinkState = gauge("gdr_nvlink_state_id",
		"State of an NVLink (NVML field 165, else nvmlDeviceGetNvLinkState): 0 inactive, 1 active, 2 sleep, 3 active but not for traffic. "+
			"Without --collector.nvlink.per-link links that are active or asleep have no series where all states are known, that is where gdr_nvlink_active_links is there.")
	nvlinkInfo = gauge("gdr_nvlink_info",
		"Facts about the GPU's NVLinks, value 1: version, what is at the other end (remote: gpu, switch, ibmnpu) and its PCI address where the host shows it; several where links differ. "+
			"Of each link with --collector.nvlink.per-link, else nvlink is empty."+gpuNote)
	nvlinkSpeed = gauge("gdr_nvlink_speed_bytes_per_second",
		"Speed of the NVLinks in one direction (NVML field 164)."+sumNote+gpuNote)
	nvlinkEffectiveBER = gauge("gdr_nvlink_effective_bit_error_ratio",
		"Bit error ratio after error correction, NVLink 5 and later (NVML field 220). The largest of the GPU's links, or by link with --collector.nvlink.per-link."+turnNote)
	nvlinkSymbolBER = gauge("gdr_nvlink_symbol_bit_error_ratio",
		"Ratio of symbol errors, NVLink 5 and later (NVML field 222). The largest of the GPU's links, or by link with --collector.nvlink.per-link."+turnNote)
)

// nvlinkCounters are the families of counters, in the order of gpu.LinkCounters.
var nvlinkCounters = func() []*family {
	var families []*family
	for _, c := range gpu.LinkCounters() {
		name, note := "gdr_nvlink_"+c.Name, sumNote
		if c.Bytes {
			name += "_bytes"
		}
		if c.Detail {
			note = " By link, with --collector.nvlink.per-link only."
		}
		families = append(families, counter(name+"_total", c.Help+"."+note+turnNote))
	}
	return families
}()

// nvlinkVersions are NVML's numbers of NVLink versions.
var nvlinkVersions = map[uint64]string{1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}

// countsActive are the states of links that gdr_nvlink_active_links counts.
var countsActive = map[int]bool{1: true, 2: true}

// showNVLink shows the NVLinks.
func showNVLink(p *page, s *snapshot.Snapshot) {
	reading := s.NVML()
	if reading == nil {
		return
	}
	for i := range reading.GPUs {
		g := &reading.GPUs[i]
		at := pairs("gpu_address", g.Address)
		n := &g.NVLink
		addKnown(p, nvlinkLinks, n.Count, at)
		addKnown(p, nvlinkActive, n.Active, at)
		showLinkStates(p, n, reading.PerLink, at)
		if reading.PerLink {
			showEachLink(p, g.Address, n, at)
		} else {
			showLinkSums(p, g.Address, n, at)
		}
	}
}

// showLinkStates shows the states of links. A node with eight GPUs has 144 links,
// all of them active as a rule: unless asked for, only the others are shown. Where
// not all states are known, those that are known are all shown, so that a link
// without a series is active for certain.
func showLinkStates(p *page, n *gpu.NVLink, all bool, at labels) {
	for i := range n.Links {
		link := &n.Links[i]
		if all || !n.Active.Known || !countsActive[link.State.Value] {
			addKnown(p, nvlinkState, link.State, at.with("nvlink", strconv.Itoa(link.Number)))
		}
	}
}

// showEachLink shows links one by one.
func showEachLink(p *page, address string, n *gpu.NVLink, at labels) {
	for i := range n.Links {
		link := &n.Links[i]
		of := at.with("nvlink", strconv.Itoa(link.Number))
		showLinkInfo(p, address, strconv.Itoa(link.Number), n.Links[i:i+1])
		addKnown(p, nvlinkSpeed, link.Speed, of)
		showLinkCounters(p, link.Counters, link.EffectiveBER, link.SymbolBER, of)
	}
}

// showLinkSums shows the links of a GPU as one.
func showLinkSums(p *page, address string, n *gpu.NVLink, at labels) {
	showLinkInfo(p, address, "", n.Links)
	var speed sysread.Maybe[uint64]
	for i := range n.Links {
		if link := &n.Links[i]; link.Speed.Known {
			speed = sysread.Some(speed.Value + link.Speed.Value)
		}
	}
	addKnown(p, nvlinkSpeed, speed, at)
	showLinkCounters(p, n.Counters, n.EffectiveBER, n.SymbolBER, at)
}

func showLinkCounters(p *page, counters []sysread.Maybe[uint64], effective, symbol sysread.Maybe[float64], at labels) {
	for i, value := range counters {
		addKnown(p, nvlinkCounters[i], value, at)
	}
	addKnown(p, nvlinkEffectiveBER, effective, at)
	addKnown(p, nvlinkSymbolBER, symbol, at)
}

// showLinkInfo shows what links are, if anything is known of them.
func showLinkInfo(p *page, address, number string, links []gpu.Link) {
	var versions, remotes, addresses []string
	for i := range links {
		if version := links[i].Version; version.Value > 0 {
			name := nvlinkVersions[version.Value]
			if name == "" {
				name = fmt.Sprintf("unknown_%d", version.Value)
			}
			versions = append(versions, name)
		}
		if links[i].RemoteType.Known {
			remotes = append(remotes, links[i].RemoteType.Value)
		}
		if links[i].RemoteAddress.Known {
			addresses = append(addresses, links[i].RemoteAddress.Value)
		}
	}
	if len(versions)+len(remotes)+len(addresses) > 0 {
		p.add(nvlinkInfo, 1, pairs("gpu_address", address, "nvlink", number, "version", distinct(versions),
			"remote", distinct(remotes), "remote_address", distinct(addresses)))
	}
}

// distinct returns the distinct texts in order, separated by commas.
func distinct(texts []string) string {
	slices.Sort(texts)
	return strings.Join(slices.Compact(texts), ",")
}

package collector

import (
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu/affinity"
)

// chosenNote tells of which pairs more is shown than their distance.
const chosenNote = " Of each GPU and each compute device in one pair of those nearest, and of the pairs that are measured."

// pcieNote tells that a value is read on a timer.
const pcieNote = " Read on a timer (--scrape.slow-interval)."

// Families of the path between GPUs and RDMA devices.
var (
	affinityDistance = gauge("gdr_affinity_distance_id",
		"Class of the PCIe path between a GPU and an RDMA device, as nvidia-smi topo -m names it: 0 unknown (as where a virtual machine hides the tree), "+
			"1 PIX, 2 PXB, 3 P2C, 4 PHB, 5 NODE, 6 SYS. Libraries use GPUDirect RDMA up to 3 by default.")
	affinityPathInfo = gauge("gdr_affinity_path_info",
		"Facts about the path between a GPU and a compute RDMA device nearest to it, value 1: distance, address of the NIC (nic_address), nearest common bridge (common), "+
			"and iommu: none, passthrough, translated or unknown."+chosenNote+pcieNote)
	affinityPathRate = gauge("gdr_affinity_path_bytes_per_second",
		"What the narrowest PCIe link between a GPU and a compute RDMA device nearest to it carries now in one direction, before packet headers: "+
			"speed x width x encoding. Absent if any link on the way is not known."+chosenNote+pcieNote)
	affinityPathPossible = gauge("gdr_affinity_path_possible_bytes_per_second",
		"What the narrowest PCIe link between a GPU and a compute RDMA device nearest to it carries at the full speed and width of both its ends."+chosenNote+pcieNote)
	affinityPathRedirected = gauge("gdr_affinity_path_redirected",
		"1 if ACS in a port below the common bridge of a GPU and a compute RDMA device nearest to it redirects requests or completions to the root complex, 0 if in none. "+
			"Absent if not known (needs CAP_SYS_ADMIN), and without a common bridge."+chosenNote+pcieNote)
	affinityIOMMUs = gauge("gdr_affinity_iommu_units",
		"Number of IOMMUs that the kernel uses (/sys/class/iommu); 0: none, or switched off."+pcieNote)
)

// maxPairs bounds the pairs shown. A node with 16 GPUs and 32 NICs has 512;
// hundreds of virtual or sub-functions would each be paired with every GPU.
const maxPairs = 2048

// showAffinity shows the path between each GPU and each RDMA device.
func showAffinity(p *page, s *snapshot.Snapshot) {
	part := s.Affinity
	if part == nil || part.Err != nil {
		return
	}
	if part.Listing.IOMMU.Known {
		p.add(affinityIOMMUs, float64(len(part.Listing.IOMMU.Value)), nil)
	}
	functions, chosen := snapshot.Functions(part), s.ChosenPairs()
	for _, pair := range shownPairs(part.Listing.Pairs) {
		at := pairs("gpu_address", pair.GPU, "device", pair.Device)
		p.add(affinityDistance, float64(pair.Distance), at)
		if chosen[[2]string{pair.GPU, pair.Device}] {
			showPath(p, pair, affinity.PathOf(pair, functions), at)
		}
	}
}

// shownPairs returns all pairs, of too many only the nearest.
func shownPairs(all []affinity.Pair) []*affinity.Pair {
	shown := make([]*affinity.Pair, 0, min(len(all), maxPairs))
	for i := range all {
		if (len(all) <= maxPairs || all[i].Nearest) && len(shown) < maxPairs {
			shown = append(shown, &all[i])
		}
	}
	return shown
}

// showPath shows the path of a pair that is chosen: of a GPU and a compute device
// nearest to it, where several are equally near one for each, and those measured.
func showPath(p *page, pair *affinity.Pair, path affinity.Path, at labels) {
	p.add(affinityPathInfo, 1, pairs("gpu_address", pair.GPU, "device", pair.Device, "nic_address", pair.NIC,
		"distance", pair.Distance.String(), "common", pair.Common, "iommu", string(path.IOMMU)))
	if path.BytesPerSecond.Known {
		p.add(affinityPathRate, path.BytesPerSecond.Value, at)
	}
	if path.PossibleBytesPerSecond.Known {
		p.add(affinityPathPossible, path.PossibleBytesPerSecond.Value, at)
	}
	if path.Redirected.Known {
		p.addBool(affinityPathRedirected, path.Redirected.Value, at)
	}
}

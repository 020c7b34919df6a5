package driver

import "gdr_exporter/collector/sysread"

// Marker is a file by whose existence libraries tell that peer memory is
// available; none of them looks into it, or tries a registration.
type Marker string

// Markers, below /sys and without the trailing /version that all have.
const (
	MarkerNvMem         Marker = "kernel/mm/memory_peers/nv_mem"
	MarkerNvMemNC       Marker = "kernel/mm/memory_peers/nv_mem_nc"
	MarkerClientPeermem Marker = "kernel/mm/memory_peers/nvidia-peermem" // no known kernel makes it
	MarkerNvidiaPeermem Marker = "module/nvidia_peermem"
	MarkerNvPeerMem     Marker = "module/nv_peer_mem"
)

// Markers are all files that a library of [Rules] looks for.
var Markers = []Marker{MarkerNvMem, MarkerNvMemNC, MarkerClientPeermem, MarkerNvidiaPeermem, MarkerNvPeerMem}

// Rule is how one generation of a library decides that peer memory is
// available: by any of the files.
type Rule struct {
	Library string
	AnyOf   []Marker
}

// Rules are those of the libraries' sources. Peer memory that a library does
// not detect is not used by it, whatever the kernel could do; it may still use
// dma-buf.
var Rules = []Rule{
	// transport/net_ib.cc up to 2.22.3: NVIDIA/nccl#1676.
	{"nccl_before_2.23.4", []Marker{MarkerNvMem, MarkerNvMemNC}},
	{"nccl", []Marker{MarkerNvMem, MarkerNvMemNC, MarkerNvidiaPeermem}},
	// uct/ib/base/ib_md.c.
	{"ucx", []Marker{MarkerNvMem, MarkerNvidiaPeermem, MarkerNvPeerMem}},
	// Without the third file: deepseek-ai/DeepEP#151.
	{"nvshmem_legacy", []Marker{MarkerNvMem, MarkerClientPeermem}},
	{"nvshmem", []Marker{MarkerNvMem, MarkerClientPeermem, MarkerNvidiaPeermem}},
}

// Detects reports whether the library would take peer memory as available. One
// file that is there suffices; without one, it is unknown unless all are known
// not to be there.
func (rule *Rule) Detects(markers map[Marker]sysread.Maybe[bool]) sysread.Maybe[bool] {
	known := true
	for _, marker := range rule.AnyOf {
		exists := markers[marker]
		if exists.Value {
			return sysread.Some(true)
		}
		known = known && exists.Known
	}
	return sysread.Maybe[bool]{Known: known}
}

func (p *pass) markers() map[Marker]sysread.Maybe[bool] {
	all := make(map[Marker]sysread.Maybe[bool], len(Markers))
	for _, marker := range Markers {
		source := string(marker) + "/version"
		all[marker] = p.exists(deviceName, source, p.options.Sysfs+"/"+source)
	}
	return all
}

package collector

import "gdr_exporter/collector/diagnosis"

// liveUse is the family of what is seen of the use of NICs.
var liveUse = gauge("gdr_rdma_device_live_gdr",
	"Whether GPUDirect RDMA is being used through a compute device now, by what is registered, 1 for the state: in_use (GPU memory is registered with it: peer memory regions beside a process that uses a GPU, or a dma-buf of the NVIDIA driver attached to it), "+
		"suspect (for 10 minutes bytes flow, a process that uses a GPU has over 1 MiB registered there, and nothing of GPU memory is registered on the whole host), idle (no process uses it together with a GPU, or nothing moves), "+
		"cannot_tell (something cannot be seen, or what is seen could be normal).")

// showLive shows how compute devices are used. Every state has a series, so that
// none is left standing when another takes its place.
func showLive(p *page, uses []diagnosis.LiveUse) {
	for i := range uses {
		device := pairs("device", uses[i].Device)
		for _, live := range diagnosis.Lives {
			p.addBool(liveUse, uses[i].Live == live, device.with("state", string(live)))
		}
	}
}

package collector

import (
	"maps"
	"slices"

	"gdr_exporter/collector/snapshot"
)

// Families of the GPUDirect RDMA measurement.
var (
	probeTransferred = counter("gdr_probe_transferred_bytes_total",
		"Bytes that measurements (gdr_exporter probe) moved over the RDMA device since boot, each counted once: the device sent as many and received as many. Traffic graphs subtract them.")
	probeGPUDirect = gauge("gdr_probe_gpu_direct_rdma_supported",
		"1 if libcuda says that the GPU supports GPUDirect RDMA (attribute 116), as of the last measurement under the loaded driver. It says nothing of a registration working.")
	probeDMABuf = gauge("gdr_probe_gpu_dmabuf_supported",
		"1 if libcuda says that the GPU's memory can be exported as dma-buf (attribute 124), as of the last measurement under the loaded driver.")
)

// showProbe shows what measurements on this host add up to. Every device has a
// counter from the start.
func showProbe(p *page, s *snapshot.Snapshot) {
	ledger := s.ProbeLedger()
	if ledger == nil {
		return
	}
	transferred := maps.Clone(ledger.Transferred)
	if s.RDMA != nil {
		for _, unit := range s.RDMA.Units {
			transferred[unit.Name] += 0
		}
	}
	for _, device := range slices.Sorted(maps.Keys(transferred)) {
		p.add(probeTransferred, float64(transferred[device]), pairs("device", device))
	}
	for _, address := range slices.Sorted(maps.Keys(ledger.GPUs)) {
		gpu := ledger.GPUs[address]
		if driver := s.DriverState(); driver != nil && driver.Version.Known && driver.Version.Value != gpu.DriverVersion {
			continue // another driver may say otherwise
		}
		at := pairs("gpu_address", address)
		p.addBool(probeGPUDirect, gpu.GPUDirectRDMA, at)
		p.addBool(probeDMABuf, gpu.DMABuf, at)
	}
}

package scenes

import (
	"encoding/json"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/kmsg"
)

// PCI addresses of the healthy capture's first GPU and NIC.
const (
	gpuAddress = "0000:18:00.0"
	nicAddress = "0000:1a:00.0"
)

// pcieScenes are faults of PCIe, and lines of the kernel's log.
func pcieScenes() ([]Scene, error) {
	return scenesOf([]made{
		{"pcie-width-lost", []string{"PCIeWidthLost"}, func(m *maker) { m.file(fault, "/"+nicAddress+"/current_link_width", "8\n") }},
		{"pcie-nic-speed-lost", []string{"PCIeNICSpeedLost"}, func(m *maker) {
			m.file(fault, "/"+nicAddress+"/current_link_speed", "16.0 GT/s PCIe\n")
		}},
		{"pcie-generation-lost", []string{"PCIeGPUGenerationLost"}, func(m *maker) {
			m.answer(capture.Span{}, capture.PartNVML, "device 0 GetCurrPcieLinkGeneration", value("3"))
			m.answer(capture.Span{}, capture.PartNVML, "device 0 GetComputeRunningProcesses", value(`[{"Pid":4711,"UsedGpuMemory":1073741824,"GpuInstanceId":4294967295,"ComputeInstanceId":4294967295}]`))
		}},
		{"pcie-aer-fatal", []string{"PCIeAERUncorrectable"}, func(m *maker) {
			m.count(capture.Span{From: fault.From, Until: fault.From + 1}, "/"+gpuAddress+"/aer_dev_nonfatal", "CmpltTO", 1)
			m.count(capture.Span{From: fault.From, Until: fault.From + 1}, "/"+gpuAddress+"/aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", 1)
		}},
		{"pcie-aer-correctable", []string{"PCIeAERCorrectable"}, func(m *maker) {
			m.count(fault, "/"+nicAddress+"/aer_dev_correctable", "BadTLP", 30)
			m.count(fault, "/"+nicAddress+"/aer_dev_correctable", "TOTAL_ERR_COR", 30)
		}},
		{"pcie-replays", []string{"PCIeReplays"}, func(m *maker) {
			m.countAnswer(fault, capture.PartNVML, "device 0 GetPcieReplayCounter", "", 20)
		}},
		{"kernel-iommu-faults", []string{"KernelInterconnectErrors"}, func(m *maker) { kernelSays(m, "iommu_fault") }},
	})
}

// kernelSays has the kernel log a line, once.
func kernelSays(m *maker, pattern kmsg.Pattern) {
	counts := map[kmsg.Pattern]uint64{}
	for _, p := range kmsg.Patterns {
		counts[p] = 0
	}
	log := map[string]any{"since": m.at(-3600), "oldest": m.at(-7200), "counts": counts, "lost": 0}
	m.add(capture.PartKernelLog, "EVENTS", log)
	counts[pattern] = 1
	log["last"] = []any{map[string]any{"pattern": pattern, "time": m.at(fault.From), "address": nicAddress}}
	text, err := json.Marshal(log)
	if err != nil {
		m.fail("log of the kernel: %w", err)
		return
	}
	m.answer(fault, capture.PartKernelLog, "EVENTS", capture.Value{JSON: text})
}

package scenes

import (
	"gdr_exporter/collector/capture"
	"gdr_exporter/rdma/loopback/prober"
)

// alikeScenes look like faults and are none. Each is on a subject of its own, so that one
// node has them all.
func alikeScenes() ([]Scene, error) {
	return scenesOf([]made{{"look-alikes", nil, func(m *maker) {
		shortly := capture.Span{From: fault.From, Until: fault.From + 60}
		m.answer(shortly, capture.PartNetlink, "PORT_GET 1 1", portDown) // a port that is reset
		m.count(fault, port(3)+"counters/symbol_error", "", 0.001)       // errors as a link trains
		m.count(fault, "/"+nicAddress+"/aer_dev_correctable", "BadTLP", 1)
		m.count(fault, "/"+nicAddress+"/aer_dev_correctable", "TOTAL_ERR_COR", 1)
		m.file(fault, "/"+gpuAddress+"/current_link_speed", "2.5 GT/s PCIe\n") // a GPU at idle
		m.answer(fault, capture.PartNVML, "device 0 GetCurrPcieLinkGeneration", value("1"))
		// A failed run that its repetition does not confirm.
		m.prober(capture.Span{From: fault.From, Until: fault.From + 120}, func(s *prober.Status) {
			p := pair(s, 2)
			failed := *p
			lost(&failed, m.at(fault.From))
			p.Unconfirmed, p.Withdrawn = failed.Full, prober.WithdrawnFailed
		})
	}}})
}

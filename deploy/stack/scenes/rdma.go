package scenes

import (
	"errors"
	"fmt"

	"gdr_exporter/collector/capture"
	"gdr_exporter/deploy/stack"
)

// port is where the files of a NIC's port are.
func port(nic int) string { return fmt.Sprintf("/infiniband/mlx5_%d/ports/1/", nic) }

// rdmaScenes are faults of ports and NICs.
func rdmaScenes() ([]Scene, error) {
	scenes, err := scenesOf([]made{
		{"port-down", []string{"RDMAPortDown"}, func(m *maker) { m.answer(fault, capture.PartNetlink, "PORT_GET 1 1", portDown) }},
		{"port-no-subnet-manager", []string{"RDMAPortNoSubnetManager"}, func(m *maker) {
			// From the beginning, so that the port is not expected.
			m.answer(capture.Span{}, capture.PartNetlink, "PORT_GET 1 1", value(`{"state":2,"physical_state":5,"lid":25,"sm_lid":0}`))
		}},
		{"port-rate-low", []string{"RDMAPortRateLow"}, func(m *maker) { m.file(fault, port(2)+"rate", "100 Gb/sec (4X EDR)\n") }},
		{"port-errors", []string{"RDMAPortErrors"}, func(m *maker) { m.count(fault, port(3)+"counters/symbol_error", "", 1) }},
		{"port-congested", []string{"RDMACongestion"}, func(m *maker) {
			m.countAnswer(fault, capture.PartNetlink, "STAT_GET 4 1", "name=rp_cnp_handled.value", 20000)
		}},
		{"port-retransmits", []string{"RDMARetransmissions"}, func(m *maker) {
			m.countAnswer(fault, capture.PartNetlink, "STAT_GET 5 1", "name=local_ack_timeout_err.value", 5)
		}},
		{"nic-unhealthy", []string{"RDMANICUnhealthy"}, func(m *maker) {
			const well, broken = `[{"bus":"pci","device":"0000:1a:00.0","name":"fw","state":0,"errors":0,"recoveries":0}]`, `[{"bus":"pci","device":"0000:1a:00.0","name":"fw","state":1,"errors":1,"recoveries":0}]`
			m.add(capture.PartDevlink, "dial", true)
			m.add(capture.PartDevlink, "HEALTH_REPORTER_GET", value(well).JSON)
			m.answer(fault, capture.PartDevlink, "HEALTH_REPORTER_GET", value(broken))
		}},
	})
	outage, outageErr := switchOutage()
	return append(scenes, outage), errors.Join(err, outageErr)
}

// switchOutage: a port of each of four nodes is down, one page.
func switchOutage() (Scene, error) {
	m := from(healthy)
	m.answer(fault, capture.PartNetlink, "PORT_GET 1 1", portDown)
	node, err := m.node("switch-outage")
	node.Copies = 3
	return Scene{Name: "switch-outage", Nodes: []stack.Node{node}, Told: []string{"RDMAManyPortsDown"}}, err
}

package scenes

import (
	"gdr_exporter/collector/capture"
	"gdr_exporter/deploy/stack"
)

// exporterScenes are exporters that do not answer.
func exporterScenes() ([]Scene, error) {
	scenes, err := scenesOf([]made{
		{"exporter-down", []string{"GDRExporterDown"}, func(*maker) {}},
		{"exporter-restarts", nil, func(*maker) {}},
		{"never-reported", []string{"GDRExporterDown", "GDRNodeNeverReported"}, func(*maker) {}},
		{"device-stuck", []string{"GDRDeviceReadStuck"}, func(m *maker) {
			m.hang(fault, port(6)+"counters/port_rcv_errors")
		}},
		{"tree-unreadable", []string{"GDRCollectorFailing"}, func(m *maker) {
			m.change(capture.Change{Span: fault, Target: capture.Target{Path: "/sys/bus/pci/devices", Op: capture.OpList}, File: &capture.FileAnswer{Errno: "EIO"}})
		}},
	})
	if err != nil {
		return nil, err
	}
	scenes[0].Nodes[0].Silent = &capture.Span{From: fault.From}
	scenes[1].Nodes[0].Silent = &capture.Span{From: fault.From, Until: fault.From + 180}
	scenes[2].Nodes[0].Silent = &capture.Span{}
	scenes[3].Nodes[0].Deadline = hangDeadline
	away, err := manyAway()
	return append(scenes, away), err
}

// hang has reads of a file not return.
func (m *maker) hang(span capture.Span, end string) {
	m.change(capture.Change{Span: span, Target: capture.Target{Path: m.path(end, capture.OpRead), Op: capture.OpRead}, File: &capture.FileAnswer{Hang: true}})
}

// manyAway: four nodes do not answer any more.
func manyAway() (Scene, error) {
	m := from(healthy)
	node, err := m.node("many-away")
	node.Copies, node.Silent = 3, &capture.Span{From: fault.From}
	return Scene{Name: "many-away", Nodes: []stack.Node{node}, Told: []string{"GDRManyExportersDown"}}, err
}

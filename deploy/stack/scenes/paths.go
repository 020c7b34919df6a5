package scenes

import (
	"fmt"
	"strings"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/deploy/stack"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// pathScenes are faults of pairs.
func pathScenes() ([]Scene, error) {
	scenes, err := scenesOf([]made{
		{"peermem-lost", []string{"GDRPathStaged"}, func(m *maker) { peermemLost(m, fault) }},
		{"path-staged-all", []string{"GDRPathStaged"}, func(m *maker) {
			m.prober(fault, func(s *prober.Status) {
				for i := range s.Pairs {
					lost(pair(s, i), m.at(fault.From))
				}
			})
		}},
		{"path-corrupt", []string{"GDRDataCorruption"}, func(m *maker) {
			m.prober(fault, func(s *prober.Status) {
				p := pair(s, 1)
				rated(p, m.at(fault.From), 0.98, loopback.Corrupt)
				p.Mismatches = 3
			})
		}},
		{"path-degraded", []string{"GDRPathDegraded"}, func(m *maker) {
			m.prober(fault, func(s *prober.Status) {
				p := pair(s, 2)
				rated(p, m.at(fault.From), 0.81, loopback.Slow) // within a fifth of its like: no rate is lost
			})
		}},
		{"path-rate-lost", []string{"GDRPathRateLost"}, func(m *maker) {
			m.prober(fault, func(s *prober.Status) { rated(pair(s, 3), m.at(fault.From), 0.5, loopback.Slow) })
		}},
		{"path-decline", []string{"GDRPathDecline"}, func(m *maker) {
			// From the beginning, for it is told after three hours: the baseline is the prober's.
			m.prober(capture.Span{}, func(s *prober.Status) { rated(pair(s, 4), m.at(0), 0.87, loopback.Fine) })
		}},
		{"probe-hung", []string{"GDRProbeHung"}, func(m *maker) {
			m.prober(fault, func(s *prober.Status) {
				p := pair(s, 5)
				p.Hung, p.HungStage = m.at(fault.From), loopback.StageRegister
			})
		}},
		{"path-unverified", []string{"GDRManyPathsUnverified", "GDRPathUnverified"}, func(m *maker) {
			m.prober(capture.Span{}, func(s *prober.Status) {
				for i := range s.Pairs {
					p := pair(s, i)
					p.Full, p.Registration, p.Withdrawn, p.Skip = nil, nil, prober.WithdrawnAged, prober.ReasonNICBusy
					old := m.at(-(30 * time.Hour).Seconds())
					p.LastSuccess, p.LastAttempt = map[prober.Depth]time.Time{prober.DepthFull: old, prober.DepthRegister: old}, old
				}
			})
		}},
		{"quiesced", []string{"GDRQuiescedLong"}, func(m *maker) {
			// And a fault, of which nobody is told meanwhile.
			m.prober(fault, func(s *prober.Status) {
				s.QuiescedUntil = m.at(fault.From + (12 * time.Hour).Seconds())
				lost(pair(s, 0), m.at(fault.From))
			})
			m.answer(fault, capture.PartNetlink, "PORT_GET 1 1", portDown)
		}},
		{"quiesced-shortly", nil, func(m *maker) {
			m.prober(capture.Span{From: fault.From, Until: fault.From + 1200}, func(s *prober.Status) { s.QuiescedUntil = m.at(fault.From + 1200) })
		}},
	})
	if err != nil {
		return nil, err
	}
	many, err := manyDegraded()
	return append(scenes, many), err
}

// peermemLost: the module is unloaded, and dma-buf does not register either.
func peermemLost(m *maker, span capture.Span) {
	m.gone(span, "/sys/module/nvidia_peermem")
	m.gone(span, "/sys/kernel/mm/memory_peers/nv_mem")
	m.prober(span, func(s *prober.Status) {
		for i := range s.Pairs {
			lost(pair(s, i), m.at(span.From))
		}
	})
}

// Fleet is a cluster of nodes, of which all have lost peer memory, and dma-buf does not
// register either. One page tells of it.
func Fleet(nodes int) (Scene, error) {
	m := from(healthy)
	peermemLost(m, capture.Span{})
	node, err := m.node("fleet")
	node.Copies = nodes - 1
	return Scene{Name: "fleet", Nodes: []stack.Node{node}, Told: []string{"GDRManyNodesStaged"}}, err
}

// manyDegraded: all pairs of four nodes have become slow.
func manyDegraded() (Scene, error) {
	m := from(healthy)
	m.prober(fault, func(s *prober.Status) {
		for i := range s.Pairs {
			rated(pair(s, i), m.at(fault.From), 0.5, loopback.Slow)
		}
	})
	node, err := m.node("many-degraded")
	node.Copies = 3
	return Scene{Name: "many-degraded", Nodes: []stack.Node{node}, Told: []string{"GDRManyNodesDegraded"}}, err
}

// portDown is RDMA netlink's answer for a port without a link.
var portDown = value(`{"state":1,"physical_state":2,"lid":25,"sm_lid":1}`)

// History is OpenMetrics text of what Prometheus knew a day before the show: that the
// pairs of path-unverified were expected already.
func History(clock stack.Clock) string {
	const day, step = 24 * time.Hour, 4 * time.Minute
	var b strings.Builder
	b.WriteString("# TYPE gdr_path_expected gauge\n")
	samples := func(series string, value int) {
		for ago := day; ago > 0; ago -= step {
			fmt.Fprintf(&b, "%s %d %.3f\n", series, value, float64(time.Now().Add(-clock.Real(ago)).UnixMilli())/1000)
		}
	}
	labels := `job="gdr_exporter",cluster="path-unverified",node="path-unverified"`
	status := from(healthy).status()
	for i := range status.Pairs {
		samples(fmt.Sprintf("gdr_path_expected{%s,gpu_address=%q,device=%q}", labels, status.Pairs[i].GPU, status.Pairs[i].Device), 1)
	}
	b.WriteString("# TYPE cluster:gdr_path_expected:sum gauge\n")
	samples(`cluster:gdr_path_expected:sum{cluster="path-unverified"}`, len(status.Pairs))
	b.WriteString("# EOF\n")
	return b.String()
}

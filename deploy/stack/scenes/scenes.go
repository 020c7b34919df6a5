// Package scenes has nodes with faults, and what Alertmanager has to tell of each: the
// embedded captures, and others that are made of the healthy one. All of them are
// synthetic but for three that were recorded (h200-1, h200-2, soft-roce), and those are
// healthy. The show's test and the dashboards' use them.
package scenes

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/capture/embedded"
	"gdr_exporter/deploy/stack"
)

// Scene is a cluster of its own, named after the scene: mostly of one node.
type Scene struct {
	Name  string
	Nodes []stack.Node
	// Told are the alerts that Alertmanager tells, by their names: those that come, come,
	// and no other does. What the wider alert holds back is not told.
	Told []string
}

// FaultAt is when the faults begin that scenes made of a healthy node have. Before it the
// node is seen to be well, which rules that compare with the past need.
const FaultAt = 15 * time.Minute

// fault is from FaultAt on.
var fault = capture.Span{From: FaultAt.Seconds()}

// Errors of registrations, which captures keep by their names.
var (
	errFault        = fmt.Errorf("ibv_reg_mr: %w", syscall.EFAULT)
	errNotSupported = fmt.Errorf("dma-buf export: %w", syscall.EOPNOTSUPP)
)

// healthy is the capture that faults are put into.
const healthy = "h100-8x8"

// recorded are the embedded captures.
var recorded = map[string][]string{
	healthy: {}, "b200-8x8": {}, "h200-1": {}, "h200-2": {}, "soft-roce": {}, "busy-node": {},
	"gdr-lost":           {"GDRPathStaged"},
	"h100-8x8-demo":      {"GDRPathStaged"},
	"acs-on":             {"GDRPathDegraded"},
	"pcie-downtrained":   {"GDRPathRateLost", "PCIeWidthLost"},
	"nvlink-down":        {"NVLinkDown"},
	"port-flapping":      {"RDMACounterSaturated", "RDMAPortErrors", "RDMAPortFlapping"}, // link_downed ends at 255
	"counters-saturated": {"RDMACounterSaturated", "RDMAPortErrors"},
	"driver-mismatch":    {"GDRDriverMismatch"},
	"nic-gone":           {"RDMANICMissing"},
}

// All are all scenes.
func All() ([]Scene, error) {
	var all []Scene
	var errs []error
	for _, name := range embedded.Names() {
		told, known := recorded[name]
		if !known {
			errs = append(errs, fmt.Errorf("scenes: nobody says what %s raises", name))
		}
		m := from(name)
		if name == "counters-saturated" {
			m.countsLater("port_rcv_errors")
		}
		scene, err := m.scene(name, told...)
		all, errs = append(all, scene), append(errs, err)
	}
	for _, make := range []func() ([]Scene, error){pathScenes, rdmaScenes, gpuScenes, pcieScenes, exporterScenes, alikeScenes} {
		made, err := make()
		all, errs = append(all, made...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// scene is the scene of one node, that of the capture as it was changed.
func (m *maker) scene(name string, told ...string) (Scene, error) {
	node, err := m.node(name)
	return Scene{Name: name, Nodes: []stack.Node{node}, Told: told}, err
}

// node is the node of the capture as it was changed.
func (m *maker) node(name string) (stack.Node, error) {
	if m.err != nil {
		return stack.Node{}, fmt.Errorf("scene %s: %w", name, m.err)
	}
	site, err := stack.ProfileOf(m.recording)
	if err != nil {
		return stack.Node{}, fmt.Errorf("scene %s: %w", name, err)
	}
	return stack.Node{Name: name, Cluster: name, Recording: m.recording, Profile: site}, nil
}

// made is a scene made of the healthy capture.
type made struct {
	name string
	told []string
	make func(*maker)
}

func scenesOf(all []made) ([]Scene, error) {
	scenes := make([]Scene, 0, len(all))
	var errs []error
	for _, s := range all {
		m := from(healthy)
		s.make(m)
		scene, err := m.scene(s.name, s.told...)
		scenes, errs = append(scenes, scene), append(errs, err)
	}
	return scenes, errors.Join(errs...)
}

package snapshot

import (
	"maps"
	"slices"
	"strings"

	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
)

// Presence says what has become of a GPU.
type Presence string

// Values of Presence. Only PresenceLost is a fault.
const (
	PresenceNVML        Presence = "nvml"         // NVML answers for it
	PresenceLost        Presence = "lost"         // it fell off the bus, or the driver lost it
	PresencePassthrough Presence = "passthrough"  // given to a virtual machine (vfio)
	PresenceUnbound     Presence = "unbound"      // no driver
	PresenceOther       Presence = "other_driver" // nouveau and the like
	PresenceHidden      Presence = "hidden"       // by the container
	PresenceUnseen      Presence = "unseen"       // NVML does not work, nobody can tell
)

// GPU is what NVML, the PCI bus and the driver say of one GPU.
type GPU struct {
	Address  string
	Presence Presence
	NVML     *gpu.GPU       // nil if NVML does not name it
	PCI      *affinity.Node // nil if it is not on the PCI bus
	Proc     bool           // the driver lists it in /proc/driver/nvidia/gpus
	gone     bool           // it had the NVIDIA driver and is not on the PCI bus any more
}

// Bound reports whether the GPU has the NVIDIA driver.
func (g *GPU) Bound() bool { return g.PCI != nil && g.PCI.Driver == "nvidia" }

// GPUs are the GPUs of a host, merged by PCI address, which are in All in the
// order of their addresses.
type GPUs struct {
	All  []*GPU
	NVML *gpu.Reading // nil unless NVML is up
	// PCI and Proc report whether the PCI bus and the driver's list answered.
	PCI, Proc bool

	of          map[string]*GPU
	procPartial bool
}

// GPUs merges what is known of the host's GPUs.
func (s *Snapshot) GPUs() *GPUs {
	m := &GPUs{of: map[string]*GPU{}}
	m.addPCI(s.Affinity)
	if reading := s.NVML(); reading != nil && reading.State == gpu.StateUp {
		m.NVML = reading
		for i := range reading.GPUs {
			m.at(reading.GPUs[i].Address).NVML = &reading.GPUs[i]
		}
	}
	if driver := s.DriverState(); driver != nil && driver.ProcGPUs.Known {
		m.Proc, m.procPartial = true, driver.ProcGPUsPartial
		for _, address := range driver.ProcGPUs.Value {
			// One that no other source knows is left out by the command line.
			if g := m.of[address]; g != nil {
				g.Proc = true
			} else if !m.PCI {
				m.at(address).Proc = true
			}
		}
	}
	for _, address := range slices.Sorted(maps.Keys(m.of)) {
		m.All = append(m.All, m.of[address])
	}
	for _, g := range m.All {
		g.Presence = m.presence(g)
	}
	return m
}

func (m *GPUs) addPCI(part *AffinityPart) {
	if part == nil || part.Err != nil {
		return
	}
	m.PCI = true
	for i := range part.Listing.Functions {
		if node := &part.Listing.Functions[i]; node.Kind == affinity.KindGPU {
			m.at(node.Address).PCI = node
		}
	}
	for _, address := range part.Listing.Gone {
		m.at(address).gone = true
	}
}

func (m *GPUs) at(address string) *GPU {
	g := m.of[address]
	if g == nil {
		g = &GPU{Address: address}
		m.of[address] = g
	}
	return g
}

// Count counts the GPUs of which f is true.
func (m *GPUs) Count(f func(*GPU) bool) int {
	n := 0
	for _, g := range m.All {
		if f(g) {
			n++
		}
	}
	return n
}

func (m *GPUs) presence(g *GPU) Presence {
	switch {
	case g.NVML != nil && g.NVML.Lost:
		return PresenceLost
	case g.NVML != nil:
		return PresenceNVML // it answers, whatever others say
	case g.gone && g.PCI == nil:
		return PresenceLost
	case g.PCI == nil, g.PCI.DriverUnknown && !g.Bound():
		return PresenceUnseen
	case strings.Contains(g.PCI.Driver, "vfio"): // vfio-pci, nvgrace_gpu_vfio_pci, nvidia_vgpu_vfio
		return PresencePassthrough
	case g.PCI.Driver == "":
		return PresenceUnbound
	case !g.Bound():
		return PresenceOther
	}
	return m.unnamed(g)
}

// unnamed is presence for a GPU that has the driver and that NVML does not name.
func (m *GPUs) unnamed(g *GPU) Presence {
	missing := m.Count(func(g *GPU) bool { return g.NVML == nil && g.Bound() })
	switch {
	case m.NVML != nil && m.NVML.LostUnnamed == 0 && (missing <= m.NVML.Hidden || m.procPartial):
		// A container runtime hides them from /proc/driver/nvidia/gpus too.
		return PresenceHidden
	case m.Proc && !m.procPartial && !g.Proc:
		return PresenceLost
	case m.NVML == nil:
		return PresenceUnseen
	case missing <= m.NVML.LostUnnamed:
		return PresenceLost
	}
	return PresenceHidden
}

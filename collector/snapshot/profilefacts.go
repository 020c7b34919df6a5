package snapshot

import (
	"slices"

	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback/prober"
)

// roleCompute is the role of devices that GPUs send and receive through.
const roleCompute = "compute"

// otherRoles are those that only the command line or a profile gives.
var otherRoles = []string{"storage", "management", "unused"}

// ProfileFacts returns what was seen of the node in the terms of what it should
// have. Of what was not asked for, or does not answer, nothing is known.
func (s *Snapshot) ProfileFacts() profile.Facts {
	f := profile.Facts{Time: s.Taken}
	s.gpuProfile(&f)
	host := s.HostState()
	if host == nil {
		return f // whose devices these are is not known
	}
	f.Vendor, f.Product = host.Platform.Vendor, host.Platform.Product
	shared, network := host.Context.SharedRDMA, host.Context.HostNetwork
	f.Private = shared.Known && !shared.Value
	f.Foreign = !shared.Value && network.Known && !network.Value || f.Private && !network.Known
	if s.treeSettled() && s.RDMA != nil {
		s.rdmaProfile(&f)
	}
	return f
}

// gpuProfile says which GPUs there are.
func (s *Snapshot) gpuProfile(f *profile.Facts) {
	gpus := s.GPUs()
	// While NVML or the PCI bus does not answer, a GPU that is lost looks like one
	// that is not.
	reading := s.NVML()
	if gpus.PCI && (reading != nil || s.noNVML()) {
		f.GPUs = sysread.Some(gpus.Count(func(g *GPU) bool { return g.Presence != PresenceLost }))
	}
	if reading == nil || reading.State != gpu.StateUp || len(reading.GPUs) == 0 {
		return
	}
	var models []string
	virtual := sysread.Maybe[bool]{}
	for i := range reading.GPUs {
		g := &reading.GPUs[i]
		if g.Name != "" {
			models = append(models, g.Name)
		}
		switch g.Virtualization {
		case "":
		case "passthrough", "vgpu":
			virtual = sysread.Some(true)
		default:
			virtual.Known = true
		}
	}
	slices.Sort(models)
	if models = slices.Compact(models); len(models) > 0 {
		f.Models = sysread.Some(models)
	}
	f.Virtual, f.NVLinks = virtual, fewestLinks(reading)
}

// fewestLinks is the number of active links of the GPU that has fewest.
func fewestLinks(reading *gpu.Reading) sysread.Maybe[int] {
	fewest := sysread.Maybe[int]{}
	for i := range reading.GPUs {
		active := reading.GPUs[i].NVLink.Active
		if !active.Known {
			return sysread.Maybe[int]{}
		}
		if !fewest.Known || active.Value < fewest.Value {
			fewest = active
		}
	}
	fewest.Known = fewest.Known && fewest.Value > 0
	return fewest
}

// rdmaProfile says which compute devices there are, and their ports.
func (s *Snapshot) rdmaProfile(f *profile.Facts) {
	compute := map[string]bool{}
	listed := make([]string, 0, len(s.RDMA.Units))
	answered := true
	for _, unit := range s.RDMA.Units {
		listed = append(listed, unit.Name)
		d := unit.Data
		if d == nil {
			answered = false
			continue
		}
		role := s.Affinity.Listing.Roles[unit.Name]
		never := d.Plane() || d.Function == rdma.FunctionVirtual || d.Function == rdma.FunctionSub || slices.Contains(otherRoles, role)
		compute[unit.Name] = role == roleCompute && !never && !d.Hidden
		for i := range d.Ports {
			if d.Ports[i].Number > 0 {
				f.Ports = append(f.Ports, portProfile(d, &d.Ports[i], compute[unit.Name], never))
			}
		}
	}
	f.Listed = sysread.Some(listed)
	if !answered {
		return // nobody knows of what kind a device is that hangs
	}
	devices, direct := 0, 0
	for _, is := range compute {
		if is {
			devices++
		}
	}
	for i := range s.Affinity.Listing.Pairs {
		pair := &s.Affinity.Listing.Pairs[i]
		if compute[pair.Device] && pair.Distance.Direct() {
			direct++
		}
	}
	f.Devices, f.DirectPairs = sysread.Some(devices), sysread.Some(direct)
}

func portProfile(d *rdma.Device, port *rdma.Port, compute, never bool) profile.Port {
	p := profile.Port{
		Port: prober.Port{Device: d.Name, Number: port.Number}, NodeGUID: d.NodeGUID, Compute: compute, Never: never,
		Active: sysread.Maybe[bool]{Value: port.State.Value == portActive, Known: port.State.Known},
	}
	if port.Rate.Known {
		p.Rate = sysread.Some(port.Rate.Value.BytesPerSecond)
	}
	return p
}

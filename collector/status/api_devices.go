package status

import (
	"cmp"
	"slices"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback/prober"
)

// devices are the RDMA devices with their ports.
func (b *builder) devices() []DocDevice {
	devices := []DocDevice{}
	if b.s.RDMA == nil {
		return devices
	}
	live := map[string]*diagnosis.LiveUse{}
	for i := range b.d.Live {
		live[b.d.Live[i].Device] = &b.d.Live[i]
	}
	for i := range b.s.RDMA.Units {
		unit := &b.s.RDMA.Units[i]
		device := b.device(unit)
		if use := live[unit.Name]; use != nil {
			device.Live, device.LiveReasons = some(use.Live), list(use.Reasons)
		}
		devices = append(devices, device)
	}
	slices.SortStableFunc(devices, func(a, b DocDevice) int { return natural(a.Name, b.Name) })
	return devices
}

func (b *builder) device(unit *snapshot.UnitPart[rdma.Device]) DocDevice {
	device := DocDevice{Name: unit.Name, Answers: unit.Data != nil, LiveReasons: []string{}, Ports: []DocPort{}}
	if b.s.Affinity != nil {
		if role := b.s.Affinity.Listing.Roles[unit.Name]; role != "unknown" {
			device.Role = some(role)
		}
	}
	if unit.Data == nil {
		device.StuckSeconds = pointer(true, unit.StuckFor.Seconds())
		return device
	}
	d := unit.Data
	device.Driver, device.Address, device.Firmware, device.Board = some(d.Driver), some(d.PCIAddress), some(d.Firmware), some(d.Board)
	device.Parent, device.Hidden = some(d.Parent), d.Hidden
	if d.Plane() {
		return device // its ports are those of its parent once more
	}
	for i := range d.Ports {
		device.Ports = append(device.Ports, b.port(d.Name, &d.Ports[i]))
	}
	return device
}

func (b *builder) port(device string, p *rdma.Port) DocPort {
	port := DocPort{
		Port: p.Label, LinkLayer: some(p.LinkLayer), Netdev: some(p.Netdev), Restricted: []string{},
		State: stateName(p.State.Known, p.State.Value, stateNames), PhysicalState: stateName(p.PhysicalState.Known, p.PhysicalState.Value, physicalNames),
	}
	if p.State.Known && p.State.Value == stateActive && p.Rate.Known { // else it is a placeholder
		port.BytesPerSecond = pointer(true, float64(p.Rate.Value.BytesPerSecond))
	}
	if ports := b.d.Expected.Ports; len(ports) > 0 {
		_, expected := ports[prober.Port{Device: device, Number: p.Number}]
		port.Expected = &expected
	}
	for _, restriction := range p.Restricted {
		if restriction.All {
			port.Restricted = append(port.Restricted, string(restriction.Source))
		}
	}
	return port
}

// stateName is the name of a port's state, nil if it could not be read.
func stateName(known bool, id int, names []string) *string {
	if !known {
		return nil
	}
	return pointer(true, name(known, id, names))
}

// gpus are the GPUs, however much is known of them.
func (b *builder) gpus() []DocGPU {
	gpus := []DocGPU{}
	for _, g := range b.s.GPUs().All {
		doc := DocGPU{Address: g.Address, Presence: g.Presence, NVLinksDown: []int{}}
		if g.PCI != nil {
			doc.NUMANode = known(g.PCI.NUMANode)
		}
		if g.NVML != nil {
			doc.add(g.NVML)
		}
		gpus = append(gpus, doc)
	}
	return gpus
}

// add adds what NVML says.
func (g *DocGPU) add(n *gpu.GPU) {
	g.Index, g.UUID, g.Name, g.ResetRequired = pointer(true, n.Index), some(n.UUID), some(n.Name), n.ResetRequired
	g.NUMANode = cmp.Or(g.NUMANode, known(n.NUMANode))
	g.MIG, g.Processes = known(n.Modes.MIG), known(n.Procs)
	g.NVLinks, g.NVLinksActive, g.FabricState = known(n.NVLink.Count), known(n.NVLink.Active), known(n.Fabric.State)
	for i := range n.NVLink.Links {
		if link := &n.NVLink.Links[i]; link.State.Known && link.State.Value == 0 {
			g.NVLinksDown = append(g.NVLinksDown, link.Number)
		}
	}
	g.PCIeGeneration, g.PCIeGenerationMax = known(n.PCIe.Generation), known(n.PCIe.HostMaxGeneration)
	g.PCIeWidth, g.PCIeWidthMax = known(n.PCIe.Width), known(n.PCIe.MaxWidth)
}

// prober is what measures, nil if nothing does.
func (b *builder) prober() *DocProber {
	p := b.s.Prober
	if p == nil {
		return nil
	}
	return &DocProber{IntervalSeconds: p.Interval.Seconds(), Isolation: string(p.Isolation), IsolationReason: some(p.IsolationReason), QuiescedUntil: moment(p.QuiescedUntil)}
}

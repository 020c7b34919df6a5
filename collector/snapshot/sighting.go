package snapshot

import (
	"cmp"
	"slices"
	"strings"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback/prober"
)

// PairChoice says which pairs of a GPU and an RDMA device are measured, and
// through which port. Its zero value is each GPU with a compute device nearest to
// it, and each of those devices: where several are equally near, as two GPUs and
// two NICs below one switch, not every combination.
type PairChoice struct {
	// All: each GPU with every compute device.
	All bool
	// Named are exactly the pairs to measure, whatever the devices' roles; nil: by
	// All. Port 0 leaves the choice of the port open.
	Named []prober.Pair
	// Active reports whether a port has been ACTIVE at any time; nil: nobody
	// remembers. Without it a dual-port device whose cable is pulled would be
	// measured through its other port, and nobody would be told.
	Active func(prober.Port) bool
	// Last are the pairs of the sighting before. Those of a GPU that has fallen off
	// the bus since are not in the tree any more, and stay.
	Last []prober.Candidate
}

// portActive is IB_PORT_ACTIVE of enum ib_port_state.
const portActive = 4

// Sighting returns what the prober wants to know of the host. Of what was not
// asked for, or does not answer, nothing is known.
func (s *Snapshot) Sighting(pairs PairChoice) prober.Sighting {
	gpus := s.GPUs()
	sighting := prober.Sighting{Time: s.Taken, Ports: s.portSightings(), GPUs: s.gpuSightings(gpus)}
	if s.RDMA != nil && s.RDMA.Err == nil {
		names := make([]string, len(s.RDMA.Units))
		for i, unit := range s.RDMA.Units {
			names[i] = unit.Name
		}
		sighting.Devices = sysread.Some(names)
	}
	if s.treeSettled() {
		sighting.Pairs = sysread.Some(s.candidates(&pairs, gpus))
	}
	if reading := s.DriverState(); reading != nil {
		sighting.Driver, sighting.Peermem = driverVersion(reading), peermemVersion(reading)
	}
	if reading := s.NVML(); reading != nil {
		sighting.Confidential = reading.Confidential
	}
	return sighting
}

func (s *Snapshot) asked(collectors ...string) bool {
	return slices.ContainsFunc(collectors, func(name string) bool { return s.Asked[name] })
}

// noNVML reports whether NVML was asked for and this exporter does not use it.
func (s *Snapshot) noNVML() bool {
	return s.GPU == nil && s.asked(CollectorGPU, CollectorNVLink, CollectorFabric)
}

// treeSettled reports whether everything answered that the choice of pairs hangs
// on: which GPUs are hidden from this container is known from NVML and the
// driver, which ports there are from the RDMA devices. Else pairs would come and
// go with a driver that hangs.
func (s *Snapshot) treeSettled() bool {
	nvml := s.NVML() != nil || s.noNVML()
	files := s.DriverState() != nil || s.Driver == nil && s.asked(CollectorDriver, CollectorPeermem, CollectorGPU)
	devices := s.RDMA != nil && s.RDMA.Err == nil || s.RDMA == nil && s.asked(CollectorRDMA)
	return s.Affinity != nil && s.Affinity.Err == nil && nvml && files && devices
}

// measurable reports whether a GPU is one to measure, or would be if it were not
// lost. One that nobody knows (nil) is: a pair that was named shows that way that
// its GPU is missing.
func measurable(g *GPU) bool {
	if g == nil {
		return true
	}
	switch g.Presence {
	case PresenceNVML, PresenceLost, PresenceUnseen:
		return true
	default:
		return false
	}
}

// chooser picks the pairs to measure.
type chooser struct {
	*PairChoice
	gpus    *GPUs
	devices map[string]*rdma.Device
	// distances are those of the tree, and of the sighting before what is not there.
	distances map[[2]string]affinity.Distance
	found     []prober.Candidate
	has       map[[2]string]bool
}

func (s *Snapshot) candidates(choice *PairChoice, gpus *GPUs) []prober.Candidate {
	c := &chooser{
		PairChoice: choice, gpus: gpus, devices: map[string]*rdma.Device{},
		distances: map[[2]string]affinity.Distance{}, has: map[[2]string]bool{},
	}
	if s.RDMA != nil {
		for _, unit := range s.RDMA.Units {
			c.devices[unit.Name] = unit.Data
		}
	}
	listing := &s.Affinity.Listing
	var wanted []prober.Pair
	for i := range listing.Pairs {
		pair := &listing.Pairs[i]
		c.distances[[2]string{pair.GPU, pair.Device}] = pair.Distance
		if listing.Roles[pair.Device] == "compute" && (pair.Nearest || c.All) && measurable(gpus.of[pair.GPU]) {
			wanted = append(wanted, prober.Pair{GPU: pair.GPU, Device: pair.Device})
		}
	}
	switch {
	case c.Named != nil:
		wanted = c.Named
	case !c.All:
		wanted = cover(wanted)
	}
	for _, pair := range wanted {
		c.add(pair)
	}
	c.keepFallen()
	slices.SortFunc(c.found, func(a, b prober.Candidate) int {
		return cmp.Or(strings.Compare(a.GPU, b.GPU), strings.Compare(a.Device, b.Device), a.Port-b.Port)
	})
	return c.found
}

// ChosenPairs are the pairs, by GPU and device, of which more is shown than their
// distance: each GPU with a compute device nearest to it and each of those devices,
// as by the zero PairChoice, and what the prober measures.
func (s *Snapshot) ChosenPairs() map[[2]string]bool {
	chosen := map[[2]string]bool{}
	if s.Affinity != nil && s.Affinity.Err == nil {
		var nearest []prober.Pair
		for i := range s.Affinity.Listing.Pairs {
			if pair := &s.Affinity.Listing.Pairs[i]; pair.Nearest {
				nearest = append(nearest, prober.Pair{GPU: pair.GPU, Device: pair.Device})
			}
		}
		for _, pair := range cover(nearest) {
			chosen[[2]string{pair.GPU, pair.Device}] = true
		}
	}
	if s.Prober != nil {
		for i := range s.Prober.Pairs {
			chosen[[2]string{s.Prober.Pairs[i].GPU, s.Prober.Pairs[i].Device}] = true
		}
	}
	return chosen
}

// cover picks of pairs, which are in order, as few as it takes for each GPU and
// each device to be in one: a GPU's first device that is in fewest so far, then
// for each device that is left the GPU that is.
func cover(pairs []prober.Pair) []prober.Pair {
	gpus, devices := map[string]int{}, map[string]int{}
	var picked []prober.Pair
	pick := func(least *prober.Pair) {
		gpus[least.GPU]++
		devices[least.Device]++
		picked = append(picked, *least)
	}
	for i := range pairs {
		if gpus[pairs[i].GPU] > 0 {
			continue
		}
		least := &pairs[i]
		for j := i; j < len(pairs) && pairs[j].GPU == least.GPU; j++ {
			if devices[pairs[j].Device] < devices[least.Device] {
				least = &pairs[j]
			}
		}
		pick(least)
	}
	for i := range pairs {
		if devices[pairs[i].Device] > 0 {
			continue
		}
		least := &pairs[i]
		for j := range pairs {
			if pairs[j].Device == least.Device && gpus[pairs[j].GPU] < gpus[least.GPU] {
				least = &pairs[j]
			}
		}
		pick(least)
	}
	return picked
}

func (c *chooser) add(pair prober.Pair) {
	if !measurable(c.gpus.of[pair.GPU]) {
		return
	}
	if pair.Port == 0 {
		pair.Port = c.port(pair.Device)
	}
	key := [2]string{pair.GPU, pair.Device}
	if c.has[key] {
		return // named with two ports, but what is told of a pair does not name the port
	}
	distance := c.distances[key]
	c.has[key] = true
	c.found = append(c.found, prober.Candidate{Pair: pair, Distance: distance.String(), Direct: distance.Direct()})
}

// keepFallen keeps the pairs of GPUs that fell off the bus, with the distance that
// they had.
func (c *chooser) keepFallen() {
	for _, last := range c.Last {
		g := c.gpus.of[last.GPU]
		if g == nil || g.PCI != nil || g.Presence != PresenceLost {
			continue
		}
		if key := [2]string{last.GPU, last.Device}; !c.has[key] {
			c.found = append(c.found, last)
			continue
		}
		for i := range c.found {
			if c.found[i].Pair == last.Pair {
				c.found[i] = last
			}
		}
	}
}

// port chooses a device's port: the first that is or was ACTIVE, else the first.
func (c *chooser) port(device string) int {
	was := func(port int) bool {
		return c.Active != nil && c.Active(prober.Port{Device: device, Number: port})
	}
	d := c.devices[device]
	if d == nil { // it does not answer: no reason to change over
		for port := 1; port <= 2; port++ {
			if was(port) {
				return port
			}
		}
		return 1
	}
	first := 0
	for i := range d.Ports {
		port := &d.Ports[i]
		if port.Number == 0 || port.LinkLayer == "Unknown" {
			continue // of a switch; neither InfiniBand nor Ethernet
		}
		if port.State == sysread.Some(portActive) || was(port.Number) {
			return port.Number
		}
		if first == 0 {
			first = port.Number
		}
	}
	return max(first, 1)
}

// portSightings are the ports of the devices that answered.
func (s *Snapshot) portSightings() map[prober.Port]prober.PortSighting {
	ports := map[prober.Port]prober.PortSighting{}
	if s.RDMA == nil {
		return ports
	}
	for _, unit := range s.RDMA.Units {
		if unit.Data == nil {
			continue
		}
		for i := range unit.Data.Ports {
			port := &unit.Data.Ports[i]
			ports[prober.Port{Device: unit.Name, Number: port.Number}] = prober.PortSighting{
				State: port.State, NodeGUID: unit.Data.NodeGUID, Firmware: unit.Data.Firmware,
			}
		}
	}
	return ports
}

// gpuSightings are the GPUs. A Snapshot that NVML was not asked for tells nothing:
// that there is no reading of a GPU would count for more than it is.
func (s *Snapshot) gpuSightings(gpus *GPUs) sysread.Maybe[map[string]prober.GPUSighting] {
	asked := s.GPU != nil || s.noNVML()
	if !asked || !gpus.PCI && gpus.NVML == nil {
		return sysread.Maybe[map[string]prober.GPUSighting]{}
	}
	sightings := make(map[string]prober.GPUSighting, len(gpus.All))
	for _, g := range gpus.All {
		sighting := prober.GPUSighting{Usable: s.usable(g)}
		if n := g.NVML; n != nil {
			sighting.UUID, sighting.Processes, sighting.Free = n.UUID, n.Procs, n.FB.Free
			sighting.ComputeMode, sighting.MIG, sighting.Persistence = n.Modes.Compute, n.Modes.MIG, n.Modes.Persistence
		}
		sightings[g.Address] = sighting
	}
	return sysread.Some(sightings)
}

// usable reports whether NVML answers for a GPU that can be used. While NVML
// hangs, does not work or is told to be quiet, nobody knows.
func (s *Snapshot) usable(g *GPU) sysread.Maybe[bool] {
	reading := s.NVML()
	switch {
	case g.NVML != nil:
		return sysread.Some(!g.NVML.Lost && !g.NVML.ResetRequired)
	case g.Presence == PresenceLost, s.noNVML():
		return sysread.Some(false)
	case reading == nil || reading.State != gpu.StateUp:
		return sysread.Maybe[bool]{}
	}
	return sysread.Some(false)
}

// driverVersion is the loaded driver's version, "" if none is loaded.
func driverVersion(reading *driver.Reading) sysread.Maybe[string] {
	if reading.Loaded.Known && !reading.Loaded.Value {
		return sysread.Some("")
	}
	if !reading.Loaded.Known {
		return sysread.Maybe[string]{}
	}
	return reading.Version
}

// peermemVersion is the version of the peer memory module that is loaded, "" if
// none is. They exclude each other.
func peermemVersion(reading *driver.Reading) sysread.Maybe[string] {
	absent := len(reading.Peermem) > 0
	for i := range reading.Peermem {
		m := &reading.Peermem[i]
		loaded := m.Loaded()
		if loaded.Value {
			return m.Version
		}
		absent = absent && loaded.Known
	}
	return sysread.Maybe[string]{Known: absent}
}

package diagnosis

import (
	"cmp"
	"time"

	"gdr_exporter/collector/host"
	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// roleCompute is the role of the devices that jobs use together with GPUs.
const roleCompute = "compute"

// node is what a Snapshot says of a node, found once for all rules.
type node struct {
	*Input
	s       *snapshot.Snapshot
	now     time.Time
	history *history // up to and including this Snapshot

	nvml      *gpu.Reading // nil unless it is up
	driver    *driver.Reading
	log       *kmsg.Reading
	host      *host.Reading
	processes *process.Reading
	gpus      *snapshot.GPUs
	ledger    *loopback.Ledger
	listing   *affinity.Listing // nil if it is not known
	devices   map[string]*rdma.Device
	functions map[string]*affinity.Function
	paths     []way
	facts     profile.Facts // what there is of what is expected
	passed    []string      // see onPaths
	live      []LiveUse
	choices   []LibraryChoice
}

// way is a pair with what is known of it.
type way struct {
	Path
	status *prober.PairStatus // nil: the prober does not know it
	tree   *affinity.Pair     // nil: the tree does not show it
	// standing is the result that says how it is, nil if none does.
	standing *prober.Completed
}

// measuredDirect reports whether a full run within the limits stands: what is
// read of the path besides then does no harm.
func (p *way) measuredDirect() bool { return p.State == StateDirect && p.Evidence == EvidenceMeasured }

// proven reports whether a run found GPU memory to be reachable.
func (p *way) proven() bool {
	return p.State == StateDirect && (p.Evidence == EvidenceMeasured || p.Evidence == EvidenceRegistered)
}

func (p *way) subject() Subject { return Subject{GPU: p.GPU, Device: p.Device} }

func newNode(in *Input, h *history) *node {
	s := in.Snapshot
	n := &node{
		Input: in, s: s, now: s.Taken, history: h, driver: s.DriverState(), log: s.KernelLogState(), host: s.HostState(),
		processes: s.ProcessState(), gpus: s.GPUs(), ledger: s.ProbeLedger(),
	}
	n.nvml = n.gpus.NVML
	if in.Expected.GPUs.Known || in.Expected.Devices.Known || in.Expected.DirectPairs.Known {
		n.facts = s.ProfileFacts()
	}
	if s.Affinity != nil && s.Affinity.Err == nil {
		n.listing = &s.Affinity.Listing
		n.functions = snapshot.Functions(s.Affinity)
	}
	if s.RDMA != nil && s.RDMA.Err == nil {
		n.devices = make(map[string]*rdma.Device, len(s.RDMA.Units))
		for _, unit := range s.RDMA.Units {
			if unit.Data != nil {
				n.devices[unit.Name] = unit.Data
			}
		}
	}
	return n
}

// hasGPU reports whether there is a GPU that NVML or the driver should tell of.
func (n *node) hasGPU() bool {
	for _, g := range n.gpus.All {
		switch g.Presence {
		case snapshot.PresencePassthrough, snapshot.PresenceUnbound, snapshot.PresenceOther, snapshot.PresenceHidden:
		default:
			return true
		}
	}
	return false
}

// compute reports whether a device is one that jobs use with GPUs.
func (n *node) compute(device string) bool {
	return n.listing != nil && n.listing.Roles[device] == roleCompute
}

// computeDevices calls f for the compute devices that answered, by name; planes
// of another device are none.
func (n *node) computeDevices(f func(d *rdma.Device)) {
	if n.s.RDMA == nil {
		return
	}
	for _, unit := range n.s.RDMA.Units {
		if unit.Data != nil && n.compute(unit.Name) && !unit.Data.Plane() {
			f(unit.Data)
		}
	}
}

// findPaths finds the pairs that are expected or measured.
func (n *node) findPaths() {
	if n.s.Prober != nil && len(n.s.Prober.Pairs) > 0 {
		n.paths = make([]way, 0, len(n.s.Prober.Pairs))
		for i := range n.s.Prober.Pairs {
			status := &n.s.Prober.Pairs[i]
			n.addPath(&status.Candidate, status)
		}
	} else if len(n.gpus.All) > 0 {
		candidates := n.s.Sighting(snapshot.PairChoice{}).Pairs.Value
		for i := range candidates {
			n.addPath(&candidates[i], nil)
		}
	}
	if n.listing == nil || len(n.paths) == 0 {
		return
	}
	at := make(map[[2]string]int, len(n.paths))
	for i := range n.paths {
		at[[2]string{n.paths[i].GPU, n.paths[i].Device}] = i
	}
	for i := range n.listing.Pairs {
		pair := &n.listing.Pairs[i]
		if at, found := at[[2]string{pair.GPU, pair.Device}]; found {
			n.paths[at].tree = pair
		}
	}
}

func (n *node) addPath(c *prober.Candidate, status *prober.PairStatus) {
	p := way{
		Path: Path{
			GPU: c.GPU, Device: c.Device, Port: c.Port, Distance: c.Distance,
			Expected: c.Direct && n.compute(c.Device) || n.Named != nil && n.Named(c.GPU, c.Device),
		},
		status: status,
	}
	if status != nil {
		p.standing = status.Standing()
	}
	n.paths = append(n.paths, p)
}

// expected calls f for the expected pairs.
func (n *node) expected(f func(p *way)) {
	for i := range n.paths {
		if n.paths[i].Expected {
			f(&n.paths[i])
		}
	}
}

// liveOf is what is seen of a device's use, "" if nothing is.
func (n *node) liveOf(device string) Live {
	for i := range n.live {
		if n.live[i].Device == device {
			return n.live[i].Live
		}
	}
	return ""
}

// pathRate is the rate of a path in bytes per second, of a result that may be nil.
func pathRate(c *prober.Completed, at loopback.Path) (float64, bool) {
	if p := pathResult(c, at); p != nil && p.BytesPerSecond.Known {
		return p.BytesPerSecond.Value, true
	}
	return 0, false
}

func pathResult(c *prober.Completed, at loopback.Path) *loopback.PathResult {
	if c == nil {
		return nil
	}
	for i := range c.Result.Paths {
		if c.Result.Paths[i].Path == at {
			return &c.Result.Paths[i]
		}
	}
	return nil
}

// registration is how a method of registering GPU memory went in a result, nil
// if it was not tried.
func registration(c *prober.Completed, method loopback.Method) *loopback.Registration {
	if c == nil {
		return nil
	}
	for i := range c.Result.Registrations {
		if c.Result.Registrations[i].Method == method {
			return &c.Result.Registrations[i]
		}
	}
	return nil
}

// gpu is what NVML says of a GPU, nil if it does not name it or is not up.
func (n *node) gpu(address string) *gpu.GPU {
	if n.nvml == nil {
		return nil
	}
	for i := range n.nvml.GPUs {
		if n.nvml.GPUs[i].Address == address {
			return &n.nvml.GPUs[i]
		}
	}
	return nil
}

// notCounted says that what there is cannot be compared with what there should be.
const notCounted = "how many GPUs and NICs there are is not known while some do not answer"

// source names where the expectation of a field comes from.
func (n *node) source(field profile.Field) profile.Source {
	return cmp.Or(n.Expected.From[field], n.Expected.Source)
}

// fewerDevices reports whether GPUs or compute devices are missing, which other
// rules tell of.
func (n *node) fewerDevices() bool {
	less := func(have, want sysread.Maybe[int]) bool { return have.Known && want.Known && have.Value < want.Value }
	return less(n.facts.GPUs, n.Expected.GPUs) || less(n.facts.Devices, n.Expected.Devices)
}

package snapshot

import (
	"maps"
	"sort"
	"sync"
	"time"
)

// Change is something that became true or ceased to be since the last Snapshot
// and that an operator wants in the log once.
type Change struct {
	Fact
	Now bool // false: it was true before
}

// Fact is a condition of a device or port, or of a whole collector. Device may
// be a GPU's address, a module's name or a PCI address too.
type Fact struct {
	Collector, Device, Port string
	Kind                    FactKind
}

// FactKind is what a Fact says.
type FactKind string

// Kinds of Fact.
const (
	FactClass      FactKind = "class"       // devices are listed at all
	FactListed     FactKind = "listed"      // the device is listed
	FactStuck      FactKind = "stuck"       // reading the device does not return
	FactHidden     FactKind = "hidden"      // counters hidden by a foreign network namespace
	FactRestricted FactKind = "restricted"  // a whole counter directory refuses to be read
	FactUnlistable FactKind = "unlistable"  // the devices cannot be listed
	FactNoNetlink  FactKind = "no_netlink"  // RDMA netlink does not answer
	FactNVML       FactKind = "nvml"        // NVML works
	FactNVMLFailed FactKind = "nvml_failed" // NVML does not work although there is a driver; Device is its state
	FactLost       FactKind = "lost"        // the GPU is lost
	FactLoaded     FactKind = "loaded"      // the driver or peer memory module is loaded
	FactMismatch   FactKind = "mismatch"    // kernel module and library are of different versions
	FactNoLog      FactKind = "no_log"      // the kernel's log cannot be read; Device is the errno
)

// watcher tells Snapshots apart by their Facts.
type watcher struct {
	tell func(Change)
	// hang is how long a device must not have answered to be told of as stuck.
	// A scrape with a short timeout sees devices that are merely slow.
	hang time.Duration

	mu    sync.Mutex
	facts map[Fact]bool
}

// look tells of every Fact that came or went. Of a collector that was not asked
// for, what held before is taken to hold still.
func (w *watcher) look(s *Snapshot) {
	if w.tell == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	facts := map[Fact]bool{}
	w.collect(facts, CollectorRDMA, s.RDMA != nil, func(before map[Fact]bool) map[Fact]bool { return rdmaFacts(s.RDMA, before, w.hang) })
	w.collect(facts, CollectorGPU, s.GPU != nil, func(before map[Fact]bool) map[Fact]bool { return gpuFacts(s, before, w.hang) })
	w.collect(facts, CollectorDriver, s.Driver != nil, func(before map[Fact]bool) map[Fact]bool { return driverFacts(s.Driver, before, w.hang) })
	w.collect(facts, CollectorAffinity, s.Affinity != nil, func(before map[Fact]bool) map[Fact]bool {
		if s.Affinity.Err != nil {
			return map[Fact]bool{{Collector: CollectorAffinity, Kind: FactUnlistable}: true}
		}
		return stuckFacts(CollectorAffinity, s.Affinity, w.hang)
	})
	w.collect(facts, CollectorKernelLog, s.KernelLog != nil, func(map[Fact]bool) map[Fact]bool { return kernelLogFacts(s) })
	changes := diff(w.facts, facts)
	w.facts = facts
	for _, change := range changes {
		w.tell(change)
	}
}

// collect adds the Facts of one collector: those that read finds, which is given
// those that held before, or if it was not read those that held before.
func (w *watcher) collect(facts map[Fact]bool, collector string, asked bool, read func(before map[Fact]bool) map[Fact]bool) {
	held := map[Fact]bool{}
	for fact := range w.facts {
		if fact.Collector == collector {
			held[fact] = true
		}
	}
	if asked {
		held = read(held)
	}
	maps.Copy(facts, held)
}

// stuckFacts are the units of a collector that do not answer.
func stuckFacts[T, L any](collector string, part *Part[T, L], hang time.Duration) map[Fact]bool {
	facts := map[Fact]bool{}
	for _, unit := range part.Units {
		if unit.Data == nil && unit.StuckFor >= hang {
			facts[Fact{Collector: collector, Device: unit.Name, Kind: FactStuck}] = true
		}
	}
	return facts
}

// diff returns what differs, in a stable order. Where a whole class of devices
// came or went, its single devices are not told of.
func diff(before, after map[Fact]bool) []Change {
	var changes []Change
	whole := map[string]bool{}
	note := func(facts, other map[Fact]bool, now bool) {
		for fact := range facts {
			if !other[fact] {
				changes = append(changes, Change{fact, now})
				whole[fact.Collector] = whole[fact.Collector] || fact.Kind == FactClass
			}
		}
	}
	note(after, before, true)
	note(before, after, false)
	kept := changes[:0]
	for _, change := range changes {
		if change.Kind != FactListed || !whole[change.Collector] {
			kept = append(kept, change)
		}
	}
	sort.Slice(kept, func(i, j int) bool { return kept[i].less(kept[j]) })
	return kept
}

func (c Change) less(other Change) bool {
	a := [...]string{c.Collector, string(c.Kind), c.Device, c.Port}
	b := [...]string{other.Collector, string(other.Kind), other.Device, other.Port}
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return c.Now && !other.Now
}

// rdmaFacts returns what holds now. Of a device that did not answer, what held
// before is taken to hold still.
func rdmaFacts(part *RDMAPart, before map[Fact]bool, hang time.Duration) map[Fact]bool {
	facts := map[Fact]bool{}
	if part.Err != nil {
		for fact := range before {
			facts[fact] = true
		}
		facts[Fact{Collector: CollectorRDMA, Kind: FactUnlistable}] = true
		return facts
	}
	if len(part.Units) > 0 {
		facts[Fact{Collector: CollectorRDMA, Kind: FactClass}] = true
		if part.Listing.NetlinkFailed {
			facts[Fact{Collector: CollectorRDMA, Kind: FactNoNetlink}] = true
		}
	}
	for _, unit := range part.Units {
		fact := Fact{Collector: CollectorRDMA, Device: unit.Name, Kind: FactListed}
		facts[fact] = true
		if unit.Data == nil {
			keep(facts, before, unit.Name)
			if fact.Kind = FactStuck; unit.StuckFor >= hang {
				facts[fact] = true
			}
			continue
		}
		if unit.Data.Hidden {
			fact.Kind = FactHidden
			facts[fact] = true
		}
		fact.Kind = FactRestricted
		if unit.Data.HWRestricted.Value {
			facts[fact] = true
		}
		for i := range unit.Data.Ports {
			fact.Port = unit.Data.Ports[i].Label
			for _, restriction := range unit.Data.Ports[i].Restricted {
				if restriction.All {
					facts[fact] = true
				}
			}
		}
	}
	return facts
}

func keep(facts, before map[Fact]bool, device string) {
	for fact := range before {
		if fact.Device == device && fact.Kind != FactStuck {
			facts[fact] = true
		}
	}
}

package rdmatest

import (
	"path"
	"strings"
)

// Case is one abnormal, rare or surprising input: what a sick or unusual device shows beside a healthy one. Whatever the case, a reader
// must go on giving everything of the healthy device, and of the other one all but the values that are named unreadable.
type Case struct {
	ID     string // short and stable, fit for the name of a subtest
	Title  string // the input, in words
	Source string // where it was seen: a public issue, or the kernel's own text

	// What a reader has to make of the sick device's first port, where the case is about that; zero values say nothing.
	State, PhysState int
	Rate             RateWant
	// Alone: there is no healthy device.
	Alone bool
	// Blocks: a read takes longer than any scrape may.
	Blocks bool
	// Change is what happens to the tree on disk between two scrapes; nil if nothing does.
	Change func(dir string, s Scene) error

	build      func(*Tree, Options) Device
	options    Options
	edit       func(*Tree, Device)
	faults     []Fault // relative to the device's directory
	unreadable []Unreadable
}

// RateWant is what the text of a rate file means.
type RateWant struct {
	BytesPerSecond uint64
	Lanes          int
	Speed          string
}

// Unreadable is a value that a reader cannot have, and why.
type Unreadable struct {
	Port   int    // 0: of the device
	Source string // file below the port's directory, or the device's: "counters/VL15_dropped"
	Errno  string // the kernel's name of the errno, "invalid" for senseless text, "no_pma" for "N/A (no PMA)"
}

// Scene is a case made ready to be read.
type Scene struct {
	Tree          *Tree
	Healthy, Sick Device
	Faults        []Fault // for FaultFS.Apply; without them the tree shows only part of the case
	Unreadable    []Unreadable
}

// HealthyName is the device that every case must leave alone.
const HealthyName = "mlx5_0"

// Scene builds the case.
func (c Case) Scene() Scene {
	s := Scene{Tree: New()}
	if !c.Alone {
		s.Healthy = s.Tree.MLX5IB(Options{Name: HealthyName, PCIAddress: "0000:18:00.0"})
		s.Faults = append(s.Faults, s.Healthy.Faults...)
	}
	build, options := c.build, c.options
	if build == nil {
		build = (*Tree).MLX5IB
	}
	if options.Ordinal == 0 {
		options.Ordinal = 1
	}
	s.Sick = build(s.Tree, options.with(c.build == nil))
	if c.edit != nil {
		c.edit(s.Tree, s.Sick)
	}
	s.Faults = append(s.Faults, s.Sick.Faults...)
	for _, fault := range c.faults {
		s.Faults = append(s.Faults, Fault{path.Join(s.Sick.Dir, fault.Path), fault.Rule})
	}
	s.Unreadable = c.expand(s)
	return s
}

// with gives the usual sick device a name and a place.
func (o Options) with(usual bool) Options {
	if usual && o.Name == "" {
		o.Name, o.PCIAddress = "mlx5_1", "0000:3b:00.0"
	}
	return o
}

// expand replaces "counters/*" by the names of the tree.
func (c Case) expand(s Scene) []Unreadable {
	var all []Unreadable
	for _, u := range c.unreadable {
		dir, ok := strings.CutSuffix(u.Source, "/*")
		if !ok {
			all = append(all, u)
			continue
		}
		at := s.Sick.Dir
		if u.Port > 0 {
			at = s.Sick.Port(u.Port)
		}
		for _, name := range s.Tree.List(path.Join(at, dir)) {
			all = append(all, Unreadable{u.Port, dir + "/" + name, u.Errno})
		}
	}
	return all
}

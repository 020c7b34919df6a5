// Package rails says which NIC port of one node is measured against which one of
// another.
//
// In a rail-optimised fabric the first NICs of all nodes hang at one switch, the
// second ones at the next, and so on: collective libraries send along a rail, and a
// measurement across rails would say how good the spine is. So port i is measured
// against port i. What i is says, in this order, the label that somebody gave the
// rail, the device's name, or the order of the switches that the NICs hang at
// inside the node. [All] pairs every port with every other one, on demand.
package rails

import (
	"cmp"
	"slices"
)

// Rail is a NIC port of a node that takes part in measurements.
type Rail struct {
	Device string
	Port   int
	// Label is the rail's name in the fabric, "" if it has none. Ports with
	// different labels are never taken for the same rail.
	Label string
	// LinkLayer is that of the port (InfiniBand, Ethernet). Ports of different ones
	// cannot reach each other; "" goes with every one.
	LinkLayer string
	// Order is the port's place in its node: by PCIe switch, then by address.
	Order int
}

// Basis is what two ports were paired by.
type Basis string

// Each Basis, the surest first.
const (
	ByLabel Basis = "label"
	ByName  Basis = "name"  // device and port are called the same
	ByOrder Basis = "order" // the same place among the ports that are left
	ByAll   Basis = "all"   // every port with every other one
)

// Pair are two ports, by their index in the lists.
type Pair struct {
	Mine, Theirs int
	Basis        Basis
}

// Match pairs each port with its counterpart, in the order of mine. A port that has
// none is left out: one node has more, or their labels or link layers differ. Both
// sides find the same pairs.
func Match(mine, theirs []Rail) []Pair {
	m := matching{sides: [2]side{newSide(mine), newSide(theirs)}}
	m.by(ByLabel, func(a, b Rail) bool { return a.Label != "" && a.Label == b.Label })
	m.by(ByName, func(a, b Rail) bool { return a.Device == b.Device && a.Port == b.Port })
	m.by(ByOrder, func(Rail, Rail) bool { return true })
	slices.SortFunc(m.pairs, func(a, b Pair) int { return cmp.Compare(a.Mine, b.Mine) })
	return m.pairs
}

// All pairs every port with each of the other side that it can reach.
func All(mine, theirs []Rail) []Pair {
	var pairs []Pair
	for i, a := range mine {
		for j, b := range theirs {
			if reach(a, b) {
				pairs = append(pairs, Pair{i, j, ByAll})
			}
		}
	}
	return pairs
}

func reach(a, b Rail) bool {
	return a.LinkLayer == b.LinkLayer || a.LinkLayer == "" || b.LinkLayer == ""
}

// contradict reports whether labels say that two ports are of different rails.
func contradict(a, b Rail) bool { return a.Label != "" && b.Label != "" && a.Label != b.Label }

// side are the ports of one node that have no counterpart yet, in their order.
type side struct {
	rails []Rail
	left  []int
}

func newSide(rails []Rail) side {
	s := side{rails: rails}
	for i := range rails {
		s.left = append(s.left, i)
	}
	slices.SortStableFunc(s.left, func(i, j int) int {
		a, b := rails[i], rails[j]
		return cmp.Or(cmp.Compare(a.Order, b.Order), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Port, b.Port))
	})
	return s
}

type matching struct {
	sides [2]side
	pairs []Pair
}

// by pairs what is left and the same, the first with the first. Going through both
// sides in their own order makes it the same seen from either.
func (m *matching) by(basis Basis, same func(a, b Rail) bool) {
	mine, theirs := &m.sides[0], &m.sides[1]
	mine.left = slices.DeleteFunc(mine.left, func(i int) bool {
		at := slices.IndexFunc(theirs.left, func(j int) bool {
			a, b := mine.rails[i], theirs.rails[j]
			return same(a, b) && reach(a, b) && !contradict(a, b)
		})
		if at < 0 {
			return false
		}
		m.pairs = append(m.pairs, Pair{i, theirs.left[at], basis})
		theirs.left = slices.Delete(theirs.left, at, at+1)
		return true
	})
}

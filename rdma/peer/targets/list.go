package targets

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
)

// List are the targets in the order that all nodes have them in. It does not change.
type List struct {
	targets   []Target
	version   string
	self      int
	selfError error
	index     map[string]int // by Address
	addrs     map[netip.Addr][]int
}

// NewList sorts targets, leaves out repetitions (the first of them counts), and
// looks which one is this node.
func NewList(targets []Target, self Self) *List {
	l := &List{index: map[string]int{}, addrs: map[netip.Addr][]int{}}
	l.targets = slices.Clone(targets)
	slices.SortStableFunc(l.targets, compare)
	l.targets = slices.CompactFunc(l.targets, func(a, b Target) bool { return compare(a, b) == 0 })
	hash := sha256.New()
	for i, t := range l.targets {
		address := t.Address()
		l.index[address] = i
		hash.Write([]byte(address + "\n"))
		if t.Addr.IsValid() {
			l.addrs[t.Addr] = append(l.addrs[t.Addr], i)
		}
	}
	l.version = hex.EncodeToString(hash.Sum(nil)[:8])
	l.self, l.selfError = self.find(l.targets)
	return l
}

// withSelf is the same list, in which this node is recognised differently.
func (l *List) withSelf(self Self) *List {
	other := *l
	other.self, other.selfError = self.find(l.targets)
	return &other
}

func compare(a, b Target) int {
	return cmp.Or(strings.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port))
}

// Len is how many targets there are.
func (l *List) Len() int { return len(l.targets) }

// At is target i, from 0.
func (l *List) At(i int) Target { return l.targets[i] }

// Targets are all of them, in order.
func (l *List) Targets() []Target { return slices.Clone(l.targets) }

// Version is the same for lists of the same addresses, on all nodes. Labels and
// sources are not in it: the schedule does not depend on them.
func (l *List) Version() string { return l.version }

// Self is the number of this node, -1 if it is not known; the error says why.
func (l *List) Self() (int, error) { return l.self, l.selfError }

// Find is the number of the target with an address as [Target.Address] writes it,
// -1 if there is none.
func (l *List) Find(address string) int {
	if i, ok := l.index[address]; ok {
		return i
	}
	return -1
}

// WithAddr are the targets that are listed by an address. Those that are listed by
// name are not among them: see [Names].
func (l *List) WithAddr(addr netip.Addr) []Target {
	var all []Target
	for _, i := range l.addrs[addr.Unmap().WithZone("")] {
		all = append(all, l.targets[i])
	}
	return all
}

package nldev

import (
	"maps"
	"slices"

	"gdr_exporter/rdma/nlattr"
)

// Owner is a process that holds objects of a device.
type Owner struct {
	PID      int    // RDMA_NLDEV_ATTR_RES_PID, in the caller's pid namespace
	Contexts uint64 // times it has the device open (RES_CTX_GET)
	Regions  uint64 // memory regions (RES_MR_GET)
	Bytes    uint64 // their sum (RDMA_NLDEV_ATTR_RES_MRLEN)
}

// MaxOwners bounds the processes told apart on a device.
const MaxOwners = 4096

// Owners are the processes that hold objects of a device. The zero Owners has none.
//
// The kernel names the process that made an object, and only one that the caller's
// pid namespace has. It names none for objects of its own (kernel storage over
// RDMA), for those of other pid namespaces and of processes that have ended.
type Owners struct {
	// Processes are in the order of their ids, none twice, at most MaxOwners.
	Processes []Owner
	// Omitted sums up what further processes hold; its PID is 0.
	Omitted Owner
}

// add puts what one process holds beside what is known of it.
func (o *Owners) add(more Owner) {
	at, known := slices.BinarySearchFunc(o.Processes, more.PID, func(owner Owner, pid int) int { return owner.PID - pid })
	owner := &o.Omitted
	switch {
	case known:
		owner = &o.Processes[at]
	case len(o.Processes) < MaxOwners:
		o.Processes = slices.Insert(o.Processes, at, Owner{PID: more.PID})
		owner = &o.Processes[at]
	}
	owner.Contexts += more.Contexts
	owner.Regions += more.Regions
	owner.Bytes += more.Bytes
}

// With adds what a process holds, and returns them.
func (o *Owners) With(owner Owner) *Owners {
	o.add(owner)
	return o
}

// Join returns what two answers about a device say together.
func (o *Owners) Join(other *Owners) Owners {
	joined := Owners{Processes: slices.Clone(o.Processes), Omitted: o.Omitted}
	for _, owner := range other.Processes {
		joined.add(owner)
	}
	joined.Omitted.Contexts += other.Omitted.Contexts
	joined.Omitted.Regions += other.Omitted.Regions
	joined.Omitted.Bytes += other.Omitted.Bytes
	return joined
}

// tally adds up what single objects say. Thousands of them may have one owner.
type tally map[int]Owner

func (t tally) add(more Owner) {
	owner := t[more.PID]
	t[more.PID] = Owner{more.PID, owner.Contexts + more.Contexts, owner.Regions + more.Regions, owner.Bytes + more.Bytes}
}

// joined adds the processes to those that are known, which may be nil. Id 0 is none.
func (t tally) joined(owners *Owners) *Owners {
	if owners == nil {
		owners = &Owners{}
	}
	for _, pid := range slices.Sorted(maps.Keys(t)) {
		if pid > 0 {
			owners.add(t[pid])
		}
	}
	return owners
}

// Memory is the memory that is registered with a device.
type Memory struct {
	Regions uint64
	Bytes   uint64
	// Owners are the processes that registered it; nil where that is not known, as
	// in recordings of earlier versions.
	Owners *Owners
}

// add takes a message of RES_MR_GET.
func (m *Memory) add(data []byte) error {
	owners := tally{}
	err := table(data, attrResMR, attrResMREntry, func(entry []byte) error {
		var bytes uint64
		var pid int
		err := attributes(entry, func(kind uint16, value []byte) {
			n, ok := nlattr.Number(value)
			switch {
			case ok && kind == attrResMRLen:
				bytes = n
			case ok && kind == attrResPID:
				pid = int(uint32(n))
			}
		})
		m.Regions++
		m.Bytes += bytes
		owners.add(Owner{PID: pid, Regions: 1, Bytes: bytes})
		return err
	})
	m.Owners = owners.joined(m.Owners)
	return err
}

// Contexts is how often a device is open.
type Contexts struct {
	Total  uint64
	Owners *Owners // the processes that opened it; nil where that is not known
}

// add takes a message of RES_CTX_GET.
func (c *Contexts) add(data []byte) error {
	owners := tally{}
	err := table(data, attrResCtx, attrResCtxEntry, func(entry []byte) error {
		var pid int
		err := attributes(entry, func(kind uint16, value []byte) {
			if n, ok := nlattr.Number(value); ok && kind == attrResPID {
				pid = int(uint32(n))
			}
		})
		c.Total++
		owners.add(Owner{PID: pid, Contexts: 1})
		return err
	})
	c.Owners = owners.joined(c.Owners)
	return err
}

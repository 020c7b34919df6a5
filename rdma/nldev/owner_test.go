package nldev

import (
	"reflect"
	"testing"

	"github.com/mdlayher/netlink"
)

// TestDecodeOwners: objects are the kernel's, of a process, or of one that is not
// to be seen; only processes are owners, and the sums have all.
func TestDecodeOwners(t *testing.T) {
	region := func(length uint64, more ...netlink.Attribute) netlink.Attribute {
		return nest(t, 41, append(more, num64(45, length))...)
	}
	var memory Memory
	for _, message := range [][]byte{
		list(t, nest(t, 40, region(4096, num32(28, 7)), region(10, str(29, "nvme_rdma")), region(100, num32(28, 3)))),
		list(t, nest(t, 40, region(1<<20, num32(28, 7), num32(42, 0x1234)), region(5), region(6, num32(28, 0)))),
		list(t, nest(t, 40, region(9, netlink.Attribute{Type: 28, Data: []byte{1, 2, 3}}))),
	} {
		if err := memory.add(message); err != nil {
			t.Fatal(err)
		}
	}
	if memory.Regions != 7 || memory.Bytes != 4096+10+100+1<<20+5+6+9 {
		t.Errorf("%+v", memory)
	}
	if want := []Owner{{PID: 3, Regions: 1, Bytes: 100}, {PID: 7, Regions: 2, Bytes: 4096 + 1<<20}}; !reflect.DeepEqual(memory.Owners.Processes, want) {
		t.Errorf("owners %+v, want %+v", memory.Owners.Processes, want)
	}
	var contexts Contexts
	if err := contexts.add(list(t, nest(t, 86, nest(t, 87, num32(28, 7)), nest(t, 87, num32(28, 7)), nest(t, 87, str(29, "smc")), nest(t, 87, num32(28, 9))))); err != nil {
		t.Fatal(err)
	}
	joined := contexts.Owners.Join(memory.Owners)
	want := []Owner{{3, 0, 1, 100}, {7, 2, 2, 4096 + 1<<20}, {9, 1, 0, 0}}
	if contexts.Total != 4 || !reflect.DeepEqual(joined.Processes, want) || joined.Omitted != (Owner{}) {
		t.Errorf("%d contexts, owners %+v, want %+v", contexts.Total, joined, want)
	}
	if len(contexts.Owners.Processes) != 2 {
		t.Error("joining has changed what it joined")
	}
}

// TestOwnersAreBounded: what processes beyond the bound hold is summed up, and
// nothing of it is lost.
func TestOwnersAreBounded(t *testing.T) {
	memory, contexts := &Owners{}, &Owners{}
	for pid := 1; pid <= MaxOwners+10; pid++ {
		memory.With(Owner{PID: 2 * pid, Regions: 1, Bytes: 4})
		contexts.With(Owner{PID: 2*pid + 1, Contexts: 1})
	}
	if len(memory.Processes) != MaxOwners || memory.Omitted != (Owner{Regions: 10, Bytes: 40}) {
		t.Errorf("%d owners, omitted %+v", len(memory.Processes), memory.Omitted)
	}
	joined := memory.Join(contexts)
	if len(joined.Processes) != MaxOwners || joined.Omitted != (Owner{Contexts: MaxOwners + 10, Regions: 10, Bytes: 40}) {
		t.Errorf("%d owners, omitted %+v", len(joined.Processes), joined.Omitted)
	}
}

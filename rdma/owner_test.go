package rdma_test

import (
	"reflect"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/rdma"
	"gdr_exporter/rdma/nldev"
	"gdr_exporter/rdma/rdmatest"
)

// TestOwners: the processes of a device are those of both answers together, and not
// known if one of them is missing.
func TestOwners(t *testing.T) {
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
	netlink := tree.Netlink()
	netlink.Own("mlx5_0", nldev.Owner{PID: 4711, Contexts: 1, Regions: 3, Bytes: 1 << 30}, nldev.Owner{PID: 12, Contexts: 2},
		nldev.Owner{Contexts: 1, Regions: 5, Bytes: 4096})
	h := newHost(t, written(t, tree), rdma.Options{Netlink: netlink.Dial, SlowInterval: time.Minute})
	defer h.close()
	devices, errs := h.all()
	if len(devices) != 1 || len(errs) > 0 {
		t.Fatal(devices, errs)
	}
	usage := devices[0].Usage
	want := []nldev.Owner{{PID: 12, Contexts: 2}, {PID: 4711, Contexts: 1, Regions: 3, Bytes: 1 << 30}}
	if !usage.Owners.Known || !reflect.DeepEqual(usage.Owners.Value, want) || usage.Omitted != (nldev.Owner{}) {
		t.Errorf("owners %+v, want %+v", usage, want)
	}
	if usage.Contexts.Value != 4 || usage.Memory.Value.Regions != 8 || usage.Memory.Value.Bytes != 1<<30+4096 {
		t.Errorf("the kernel's own are not counted: %+v", usage)
	}
	requests := netlink.Requests()
	if requests["RES_CTX_GET"] != 1 || requests["RES_MR_GET"] != 1 {
		t.Errorf("requests %v", requests)
	}
	// Nobody holds anything: that is known too.
	netlink.Own("mlx5_0")
	h.now = h.now.Add(time.Minute)
	if devices, _ = h.all(); !devices[0].Usage.Owners.Known || len(devices[0].Usage.Owners.Value) > 0 {
		t.Errorf("%+v", devices[0].Usage)
	}
	netlink.Fail("RES_MR_GET", syscall.EIO)
	h.now = h.now.Add(time.Minute)
	if devices, _ = h.all(); devices[0].Usage.Owners.Known || !devices[0].Usage.Contexts.Known {
		t.Errorf("owners are known by half: %+v", devices[0].Usage)
	}
}

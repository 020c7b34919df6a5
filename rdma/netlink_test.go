package rdma_test

import (
	"errors"
	"maps"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/rdmatest"
)

// drivers are a device of each kind that both sysfs and netlink show.
func drivers(tree *rdmatest.Tree) {
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
	tree.MLX5RoCE(rdmatest.Options{Ordinal: 1})
	tree.BNXT(rdmatest.Options{Ordinal: 2})
	tree.IRDMA(rdmatest.Options{Ordinal: 3})
	tree.RXE(rdmatest.Options{Ordinal: 4})
	tree.MLX4(rdmatest.Options{Ordinal: 5})
}

// Sysfs and netlink, alone and together, say the same where both can say.
func TestNetlinkAndSysfsAgree(t *testing.T) {
	tree := rdmatest.New()
	drivers(tree)
	dir := written(t, tree)
	netlink := tree.Netlink()
	both, errs := newHost(t, dir, rdma.Options{Netlink: netlink.Dial}).all()
	if len(errs) > 0 {
		t.Error(errs)
	}
	sysfs, _ := newHost(t, dir, rdma.Options{}).all()
	alone, errs := newHost(t, t.TempDir(), rdma.Options{Netlink: netlink.Dial}).all()
	if len(errs) > 0 {
		t.Error(errs)
	}
	if len(both) != 6 || len(alone) != 6 {
		t.Fatalf("%d devices from both, %d from netlink alone", len(both), len(alone))
	}
	for i := range sysfs {
		compareDevices(t, "both", sysfs[i], both[i], true)
		compareDevices(t, "netlink alone", sysfs[i], alone[i], false)
		if both[i].Protocol == "" || both[i].Resources["qp"] != 7 || both[i].Usage.Memory.Value.Bytes != 4096+1<<20+10 || both[i].Usage.Contexts.Value != 2 {
			t.Errorf("%s: protocol %q, resources %v, usage %+v", both[i].Name, both[i].Protocol, both[i].Resources, both[i].Usage)
		}
	}
}

// compareDevices compares what both can say: all of it (whole), or what netlink
// knows.
func compareDevices(t *testing.T, what string, want, got rdma.Device, whole bool) {
	t.Helper()
	if got.Name != want.Name || got.NodeGUID != want.NodeGUID || got.SysImageGUID != want.SysImageGUID || got.Firmware != want.Firmware || got.NodeType != want.NodeType {
		t.Errorf("%s: identity %+v, want %+v", what, got.Identity, want.Identity)
	}
	if len(got.Ports) != len(want.Ports) {
		t.Fatalf("%s: %s has %d ports, want %d", what, got.Name, len(got.Ports), len(want.Ports))
	}
	for i := range want.Ports {
		a, b := want.Ports[i], got.Ports[i]
		if a.State != b.State || a.PhysicalState != b.PhysicalState || a.LID != b.LID || a.SMLID != b.SMLID || a.LinkLayer != b.LinkLayer {
			t.Errorf("%s: %s port %s: %+v, want %+v", what, got.Name, a.Label, b, a)
		}
		values := counterValues(a.Counters)
		for file, value := range counterValues(b.Counters) {
			if values[file] != value {
				t.Errorf("%s: %s %s is %d, want %d", what, got.Name, file, value, values[file])
			}
		}
		if whole && !maps.Equal(values, counterValues(b.Counters)) {
			t.Errorf("%s: %s has other counters: %d, want %d", what, got.Name, len(b.Counters), len(a.Counters))
		}
		if !whole && b.StateFrom != rdma.FromNetlink {
			t.Errorf("%s: %s: state from %q", what, got.Name, b.StateFrom)
		}
	}
}

func counterValues(counters []rdma.Counter) map[string]uint64 {
	values := map[string]uint64{}
	for _, c := range counters {
		values[string(c.Info.Source)+"/"+c.Info.File] = c.Value
	}
	return values
}

// Whatever netlink answers, sysfs fills in, and nothing wrong is taken over.
func TestNetlinkFallsBackToSysfs(t *testing.T) {
	truncate := func(n int) func(string, []byte) []byte {
		return func(_ string, data []byte) []byte { return data[:min(n, len(data))] }
	}
	for name, c := range map[string]struct {
		spoil  func(*rdmatest.Netlink)
		states rdma.From
		hw     rdma.From
		errno  string // counted, "" for none
	}{
		"healthy":          {func(*rdmatest.Netlink) {}, rdma.FromNetlink, rdma.FromNetlink, ""},
		"STAT_GET too big": {func(n *rdmatest.Netlink) { n.Fail("STAT_GET", syscall.EMSGSIZE) }, rdma.FromNetlink, rdma.FromSysfs, ""},
		"STAT_GET EINVAL":  {func(n *rdmatest.Netlink) { n.Fail("STAT_GET", syscall.EINVAL) }, rdma.FromNetlink, rdma.FromSysfs, ""},
		"STAT_GET EPERM":   {func(n *rdmatest.Netlink) { n.Fail("STAT_GET", syscall.EPERM) }, rdma.FromNetlink, rdma.FromSysfs, "EPERM"},
		"PORT_GET EIO":     {func(n *rdmatest.Netlink) { n.Fail("PORT_GET", syscall.EIO) }, rdma.FromSysfs, rdma.FromNetlink, "EIO"},
		"GET EPERM":        {func(n *rdmatest.Netlink) { n.Fail("GET", syscall.EPERM) }, rdma.FromSysfs, rdma.FromSysfs, ""},
		"no family":        {func(n *rdmatest.Netlink) { n.Down(syscall.EPROTONOSUPPORT) }, rdma.FromSysfs, rdma.FromSysfs, ""},
		"empty answers":    {func(n *rdmatest.Netlink) { n.Mangle(truncate(0)) }, rdma.FromSysfs, rdma.FromSysfs, ""},
		"cut to 3 bytes":   {func(n *rdmatest.Netlink) { n.Mangle(truncate(3)) }, rdma.FromSysfs, rdma.FromSysfs, ""},
		"unknown attributes": {func(n *rdmatest.Netlink) {
			n.Mangle(func(_ string, data []byte) []byte {
				return append([]byte{8, 0, 0xff, 0x3f, 1, 2, 3, 4, 5, 0, 200, 0, 9, 0, 0, 0}, data...)
			})
		}, rdma.FromNetlink, rdma.FromNetlink, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tree := rdmatest.New()
			tree.MLX5IB(rdmatest.Options{})
			dir := written(t, tree)
			netlink := tree.Netlink()
			c.spoil(netlink)
			want, _ := newHost(t, dir, rdma.Options{}).all()
			h := newHost(t, dir, rdma.Options{Netlink: netlink.Dial})
			got, errs := h.all()
			compareDevices(t, name, want[0], got[0], true)
			if port := got[0].Ports[0]; port.StateFrom != c.states || port.CountersFrom != c.hw {
				t.Errorf("states from %s, counters from %s", port.StateFrom, port.CountersFrom)
			}
			if c.errno == "" && len(errs) > 0 || c.errno != "" && (len(errs) == 0 || errs[0].Errno() != c.errno) {
				t.Errorf("errors %v, want %q", errs, c.errno)
			}
		})
	}
}

// What a driver does not offer is not asked for again at each scrape.
func TestUnsupportedNetlinkIsRemembered(t *testing.T) {
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{})
	netlink := tree.Netlink()
	netlink.Fail("STAT_GET", syscall.EMSGSIZE)
	h := newHost(t, written(t, tree), rdma.Options{Netlink: netlink.Dial, SlowInterval: time.Minute})
	for range 50 {
		h.all()
		h.now = h.now.Add(10 * time.Second)
	}
	if n := netlink.Requests()["STAT_GET"]; n != 1 {
		t.Errorf("STAT_GET was asked for %d times in 500 s", n)
	}
	netlink.Fail("STAT_GET", 0)
	h.now = h.now.Add(time.Hour)
	if devices, _ := h.all(); devices[0].Ports[0].CountersFrom != rdma.FromNetlink {
		t.Error("netlink is not tried again")
	}
}

// A device of the same name on another host, or in another namespace, is not
// this one.
func TestForeignNetlinkIsIgnored(t *testing.T) {
	tree, other := rdmatest.New(), rdmatest.New()
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
	other.MLX5RoCE(rdmatest.Options{Name: "mlx5_0", Ordinal: 7, State: "1: DOWN", PhysState: "3: Disabled"})
	h := newHost(t, written(t, tree), rdma.Options{Netlink: other.Netlink().Dial})
	for range 2 {
		devices, errs := h.all()
		if port := devices[0].Ports[0]; port.State.Value != 4 || port.StateFrom != rdma.FromSysfs || devices[0].Protocol != "" || devices[0].Resources != nil {
			t.Errorf("another host's device is mixed in: %+v", port)
		}
		if len(errs) > 0 {
			t.Error(errs)
		}
	}
}

// A driver that hangs in netlink hangs that device's reader only, and a
// time-out leaves no stale answer behind.
func TestNetlinkHangs(t *testing.T) {
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{})
	netlink := tree.Netlink()
	h := newHost(t, written(t, tree), rdma.Options{Netlink: netlink.Dial})
	listing, err := h.read.List()
	if err != nil {
		t.Fatal(err)
	}
	release := netlink.Hang()
	done := make(chan []sysread.ReadError)
	go func() {
		_, errs := listing.Devices[0].Read(h.now)
		done <- errs
	}()
	select {
	case <-done:
		t.Error("did not wait")
	case <-time.After(50 * time.Millisecond):
	}
	release()
	if errs := <-done; len(errs) > 0 {
		t.Error(errs)
	}
}

// TestNetlinkListHangs: a list that netlink never gives costs what netlink alone
// knows, one wait and one goroutine; when it comes after all, netlink is used again.
func TestNetlinkListHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := rdmatest.New()
		tree.MLX5IB(rdmatest.Options{})
		netlink := tree.Netlink()
		now := time.Unix(1_800_000_000, 0)
		reader := rdma.NewReader(rdma.Options{Sysfs: written(t, tree) + "/sys", Netlink: netlink.Dial, NetlinkWait: 20 * time.Millisecond, Now: func() time.Time { return now }})
		release := netlink.Hang()
		for range 3 {
			listing, err := reader.List()
			if err != nil || listing.Netlink || len(listing.Devices) != 1 || !errors.Is(listing.NetlinkErr, rdma.ErrNetlinkStuck) {
				t.Fatalf("%+v, %v", listing, err)
			}
			if len(listing.Failed) != 1 || listing.Failed[0].Errno() != "ETIMEDOUT" {
				t.Errorf("%v", listing.Failed)
			}
			now = now.Add(time.Hour)
		}
		if n := netlink.Requests()["GET"]; n != 1 {
			t.Errorf("%d requests", n)
		}
		release()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			now = now.Add(time.Hour)
			listing, err := reader.List()
			if err == nil && listing.Netlink && listing.NetlinkErr == nil && len(listing.Failed) == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%+v, %v", listing, err)
			}
		}
	})
}

// TestNetlinkListHangsWithoutSysfs: nobody knows then what devices there are.
func TestNetlinkListHangsWithoutSysfs(t *testing.T) {
	netlink := rdmatest.New().Netlink()
	defer netlink.Hang()()
	reader := rdma.NewReader(rdma.Options{Sysfs: t.TempDir(), Netlink: netlink.Dial, NetlinkWait: time.Millisecond})
	if listing, err := reader.List(); !errors.Is(err, rdma.ErrNetlinkStuck) {
		t.Errorf("%+v, %v", listing, err)
	}
}

func TestNetlinkListFailureIsTold(t *testing.T) {
	netlink := rdmatest.New().Netlink()
	netlink.Down(syscall.EPROTONOSUPPORT)
	reader := rdma.NewReader(rdma.Options{Sysfs: t.TempDir(), Netlink: netlink.Dial})
	listing, err := reader.List()
	if err != nil || listing.Netlink || !errors.Is(listing.NetlinkErr, syscall.EPROTONOSUPPORT) {
		t.Errorf("listing %+v, error %v", listing, err)
	}
}

// firmwareCommands is what reading costs on mlx5: firmware commands by file or
// request, on InfiniBand and on RoCE. Files that are not named cost nothing.
// Source: facts about the mlx5 driver (drivers/infiniband/hw/mlx5 main.c,
// mad.c, counters.c): every attribute of a port queries the whole port.
var firmwareCommands = map[string][2]int{
	"state": {5, 2}, "phys_state": {5, 2}, "rate": {5, 2}, "lid": {5, 2}, "sm_lid": {5, 2}, "lid_mask_count": {5, 2}, "sm_sl": {5, 2}, "cap_mask": {5, 2},
	"counters/*": {1, 1}, "hw_counters/*": {3, 3}, "pkeys/*": {1, 0},
	"PORT_GET": {5, 2}, "STAT_GET": {3, 3},
}

// TestFirmwareCommands bounds the firmware commands per port and scrape: 12 in
// the fast group, 34 with the slow group. A later change must not raise them
// unseen.
func TestFirmwareCommands(t *testing.T) {
	for kind, build := range []func(*rdmatest.Tree, rdmatest.Options) rdmatest.Device{(*rdmatest.Tree).MLX5IB, (*rdmatest.Tree).MLX5RoCE} {
		name := []string{"InfiniBand", "RoCE"}[kind]
		t.Run(name, func(t *testing.T) {
			tree := rdmatest.New()
			d := build(tree, rdmatest.Options{})
			root, fs := mounted(t, tree)
			fs.Apply(d.Faults)
			netlink := tree.Netlink()
			h := newHost(t, root, rdma.Options{Netlink: netlink.Dial, SlowInterval: time.Minute})
			defer h.close()
			h.all()
			h.now = h.now.Add(3 * time.Second) // past the time in which a new device may be incomplete
			h.all()
			for _, step := range []struct {
				group    string
				after    time.Duration
				most     int
				requests int // of netlink, one of them for the whole host
			}{{"fast", time.Second, 12, 4}, {"all", time.Minute, 34, 7}} {
				fs.ResetCounts()
				netlink.Requests()
				h.now = h.now.Add(step.after)
				if _, errs := h.all(); len(errs) > 0 {
					t.Fatal(errs)
				}
				total, requests := countCommands(t, fs, netlink, d, kind)
				if requests != step.requests {
					t.Errorf("%s, %s: %d netlink requests, want %d", name, step.group, requests, step.requests)
				}
				t.Logf("%s, %s: %d firmware commands", name, step.group, total)
				if total > step.most || total == 0 {
					t.Errorf("%s, %s: %d firmware commands, at most %d wanted", name, step.group, total, step.most)
				}
			}
		})
	}
}

func countCommands(t *testing.T, fs *rdmatest.FaultFS, netlink *rdmatest.Netlink, d rdmatest.Device, kind int) (total, asked int) {
	t.Helper()
	reads := 0
	for file, cost := range firmwareCommands {
		n := fs.Reads(d.File(1, file))
		reads += n
		if file == "hw_counters/*" {
			n -= fs.Reads(d.File(1, "hw_counters/lifespan")) // kept by the kernel
		}
		total += n * cost[kind]
	}
	requests := netlink.Requests()
	for command, n := range requests {
		total += n * firmwareCommands[command][kind]
		asked += n
	}
	t.Logf("%d reads of costly files, requests %v", reads, requests)
	return total, asked
}

func TestNetlinkOnlyDeviceGoes(t *testing.T) {
	tree := rdmatest.New()
	tree.RXE(rdmatest.Options{})
	netlink := tree.Netlink()
	h := newHost(t, t.TempDir(), rdma.Options{Netlink: netlink.Dial})
	if devices, _ := h.all(); len(devices) != 1 {
		t.Fatalf("%d devices", len(devices))
	}
	for _, path := range slices.Backward(tree.Paths()) {
		tree.Remove(path)
	}
	if devices, errs := h.all(); len(devices) != 0 || len(errs) != 0 {
		t.Errorf("%d devices, %v", len(devices), errs)
	}
	if _, err := os.Stat(h.dir); err != nil {
		t.Error(err)
	}
}

package affinity_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma/rdmatest"
)

// host is a tree on disk and its reader.
type host struct {
	t    testing.TB
	dir  string
	read *affinity.Reader
	now  time.Time
	last map[string]*affinity.FunctionReader
}

func newHost(t testing.TB, root string, options affinity.Options) *host {
	t.Helper()
	h := &host{t: t, dir: root, now: time.Unix(1_800_000_000, 0)}
	options.Sysfs = filepath.Join(root, "sys")
	options.Now = func() time.Time { return h.now }
	if options.Descriptors == 0 {
		options.Descriptors = 1024
	}
	if options.SlowInterval == 0 {
		options.SlowInterval = time.Minute
	}
	h.read = affinity.NewReader(options)
	return h
}

func written(t testing.TB, tree *rdmatest.Tree) string {
	t.Helper()
	dir, err := rdmatest.MkdirTemp()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mounted(t *testing.T, tree *rdmatest.Tree) (string, *rdmatest.FaultFS) {
	t.Helper()
	if err := rdmatest.Supported(); err != nil {
		t.Skipf("real errnos need FUSE: %v", err)
	}
	dir, root := written(t, tree), t.TempDir()
	fs, err := rdmatest.Mount(dir, root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	return root, fs
}

func (h *host) list() affinity.Listing {
	h.t.Helper()
	listing, readers, err := h.read.List()
	if err != nil {
		h.t.Fatal(err)
	}
	h.last = map[string]*affinity.FunctionReader{}
	for _, r := range readers {
		h.last[r.Name()] = r
	}
	return listing
}

// all lists and reads everything.
func (h *host) all() (affinity.Listing, map[string]*affinity.Function, []sysread.ReadError) {
	h.t.Helper()
	listing := h.list()
	functions := map[string]*affinity.Function{}
	errs := slices.Clone(listing.Failed)
	for _, address := range slices.Sorted(maps.Keys(h.last)) {
		f, failed := h.last[address].Read(h.now)
		functions[address] = &f
		errs = append(errs, failed...)
	}
	return listing, functions, errs
}

// quiet is all where nothing may fail.
func (h *host) quiet() (affinity.Listing, map[string]*affinity.Function) {
	h.t.Helper()
	listing, functions, errs := h.all()
	for _, err := range errs {
		h.t.Error(err)
	}
	return listing, functions
}

// distances returns the listing's distances as words, marking the nearest.
func distances(l *affinity.Listing) map[string]string {
	words := map[string]string{}
	for _, p := range l.Pairs {
		word := p.Distance.String()
		if p.Nearest {
			word += "*"
		}
		words[p.GPU+" "+p.Device] = word
	}
	return words
}

func check[K comparable, V comparable](t testing.TB, what string, got, want map[K]V) {
	t.Helper()
	for key, value := range want {
		if g, found := got[key]; !found || g != value {
			t.Errorf("%s: %v is %v, want %v", what, key, g, value)
		}
	}
	for key, value := range got {
		if _, found := want[key]; !found {
			t.Errorf("%s: unexpected %v: %v", what, key, value)
		}
	}
}

func kinds(l *affinity.Listing) map[affinity.Kind]int {
	n := map[affinity.Kind]int{}
	for _, f := range l.Functions {
		n[f.Kind]++
	}
	return n
}

func TestHGX(t *testing.T) {
	h := newHost(t, written(t, rdmatest.HGX(rdmatest.HGXOptions{IOMMU: "identity"})), affinity.Options{})
	l, functions := h.quiet()
	want := map[string]string{}
	for s, root := range []int{0x15, 0x37, 0x97, 0xb7} {
		for g := range 2 {
			gpu := fmt.Sprintf("0000:%02x:00.0", root+3+g)
			for n := range 8 {
				distance := "SYS"
				switch {
				case n/2 == s:
					distance = "PIX*"
				case n/4 == s/2:
					distance = "NODE"
				}
				want[fmt.Sprintf("%s mlx5_%d", gpu, n)] = distance
			}
			want[gpu+" mlx5_8"] = map[bool]string{false: "SYS", true: "NODE"}[s >= 2]
		}
	}
	check(t, "distances", distances(&l), want)
	check(t, "kinds", kinds(&l), map[affinity.Kind]int{affinity.KindGPU: 8, affinity.KindNIC: 9, affinity.KindBridge: 20})
	roles := map[string]string{"mlx5_8": "unknown"}
	for n := range 8 {
		roles[fmt.Sprintf("mlx5_%d", n)] = "compute"
	}
	check(t, "roles", l.Roles, roles)
	if len(functions) != 36 || functions["0000:e1:00.0"] != nil {
		t.Errorf("%d functions are read", len(functions))
	}
	pair := l.Pairs[0]
	if pair.Common != "0000:16:00.0" || !slices.Equal(pair.GPUSide, []string{"0000:17:00.0"}) || !slices.Equal(pair.NICSide, []string{"0000:17:02.0"}) {
		t.Errorf("path %+v", pair)
	}
	path := affinity.PathOf(&pair, functions)
	if rate := path.BytesPerSecond; !rate.Known || int(rate.Value/1e6) != 63015 || path.PossibleBytesPerSecond != rate {
		t.Errorf("rate %v of %v", rate, path.PossibleBytesPerSecond)
	}
	if path.Redirected != sysread.Some(false) || path.IOMMU != affinity.IOMMUPassthrough {
		t.Errorf("path %+v", path)
	}
	nic := functions["0000:1a:00.0"]
	if nic.Driver != "mlx5_core" || nic.NUMANode != sysread.Some(0) || nic.LocalCPUs != "0-55" || nic.IOMMUGroup != "20" || nic.IOMMUType != "identity" ||
		nic.Upstream != "0000:17:02.0" || nic.HostBridge != "pci0000:15" || nic.Vendor != 0x15b3 || nic.Class != 0x020700 || nic.Role != "compute" {
		t.Errorf("node %+v", nic.Node)
	}
	if c := nic.Config; c.MaxReadRequest != sysread.Some(4096) || c.MaxPayload != sysread.Some(256) || c.RelaxedOrdering != sysread.Some(true) ||
		c.PortType != sysread.Some(0) || !c.NoACS || c.ATS.Known || nic.ConfigReadable != sysread.Some(true) || nic.Answers != sysread.Some(true) {
		t.Errorf("config %+v", nic)
	}
	if port := functions["0000:17:00.0"].Config; port.ACS != sysread.Some[uint16](0) || port.PortType != sysread.Some(6) || port.ACSText() != "none" {
		t.Errorf("port %+v", port)
	}
}

func TestTopologies(t *testing.T) {
	for name, test := range map[string]struct {
		tree  *rdmatest.Tree
		want  map[string]string
		read  []string
		roles map[string]string
	}{
		"PCIe server": {rdmatest.PCIeServer(), map[string]string{
			"0000:21:00.0 mlx5_0": "PHB*", "0000:21:00.0 mlx5_1": "SYS", "0000:41:00.0 mlx5_0": "NODE*", "0000:41:00.0 mlx5_1": "SYS",
			"0000:a1:00.0 mlx5_0": "SYS", "0000:a1:00.0 mlx5_1": "PHB*",
		}, []string{"0000:20:01.0", "0000:20:02.0", "0000:21:00.0", "0000:22:00.0", "0000:40:01.0", "0000:41:00.0", "0000:a0:01.0", "0000:a0:02.0", "0000:a1:00.0", "0000:a2:00.0"},
			map[string]string{"mlx5_0": "compute", "mlx5_1": "compute"}},
		"Grace": {rdmatest.GraceNode(), map[string]string{
			"0008:01:00.0 mlx5_0": "NODE*", "0008:01:00.0 mlx5_1": "NODE*", "0008:01:00.0 mlx5_2": "SYS", "0008:01:00.0 mlx5_3": "SYS",
			"0009:01:00.0 mlx5_0": "NODE*", "0009:01:00.0 mlx5_1": "NODE*", "0009:01:00.0 mlx5_2": "SYS", "0009:01:00.0 mlx5_3": "SYS",
			"0018:01:00.0 mlx5_0": "SYS", "0018:01:00.0 mlx5_1": "SYS", "0018:01:00.0 mlx5_2": "NODE*", "0018:01:00.0 mlx5_3": "NODE*",
			"0019:01:00.0 mlx5_0": "SYS", "0019:01:00.0 mlx5_1": "SYS", "0019:01:00.0 mlx5_2": "NODE*", "0019:01:00.0 mlx5_3": "NODE*",
		}, nil, map[string]string{"mlx5_0": "compute", "mlx5_1": "compute", "mlx5_2": "compute", "mlx5_3": "compute"}},
		"flat VM": {rdmatest.FlatVM(), map[string]string{
			"0000:00:04.0 mlx5_0": "unknown", "0000:00:04.0 mlx5_1": "unknown", "0000:00:05.0 mlx5_0": "unknown", "0000:00:05.0 mlx5_1": "unknown",
		}, []string{"0000:00:04.0", "0000:00:05.0", "0000:00:08.0", "0000:00:09.0"}, map[string]string{"mlx5_0": "unknown", "mlx5_1": "unknown"}},
		"VM with a port for each": {rdmatest.PortVM(), map[string]string{"0000:01:00.0 mlx5_0": "unknown"},
			[]string{"0000:00:02.0", "0000:00:02.1", "0000:01:00.0", "0000:02:00.0"}, map[string]string{"mlx5_0": "unknown"}},
		"GPU only":  {rdmatest.GPUOnly(), map[string]string{}, []string{"0000:17:00.0", "0000:17:01.0", "0000:18:00.0", "0000:19:00.0"}, map[string]string{}},
		"RDMA only": {rdmatest.NodeN(1), map[string]string{}, []string{"0000:14:01.0", "0000:18:00.0"}, map[string]string{"mlx5_0": "unknown"}},
		"neither":   {rdmatest.New().Dir("sys/bus/pci/devices").Dir("sys/class/infiniband"), map[string]string{}, []string{}, map[string]string{}},
		"no sysfs":  {rdmatest.New().Dir("sys"), map[string]string{}, []string{}, map[string]string{}},
		"data direct": {rdmatest.DataDirectNode(), map[string]string{"0009:06:00.0 mlx5_0": "NODE*"},
			[]string{"0000:00:00.0", "0000:03:00.0", "0009:00:00.0", "0009:01:00.0", "0009:02:00.0", "0009:02:01.0", "0009:03:00.0", "0009:06:00.0"},
			map[string]string{"mlx5_0": "compute"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, written(t, test.tree), affinity.Options{})
			l, functions := h.quiet()
			check(t, "distances", distances(&l), test.want)
			check(t, "roles", l.Roles, test.roles)
			if got := slices.Sorted(maps.Keys(functions)); test.read != nil && !slices.Equal(got, test.read) {
				t.Errorf("read %v\nwant %v", got, test.read)
			}
		})
	}
}

// server is a root port with a switch of four ports below it: the bridges of
// most tests. ports are paths from sys/devices.
func server() (tree *rdmatest.Tree, ports []string) {
	tree = rdmatest.New()
	acs := uint16(0x1d)
	tree.Bridge("pci0000:15/0000:15:01.0", 4, 0, &acs)
	return tree, tree.Switch("pci0000:15/0000:15:01.0", 0x16, 4, 0, 0)
}

func nic(tree *rdmatest.Tree, name, upstream, address string) rdmatest.Device {
	d := tree.MLX5RoCE(rdmatest.Options{Name: name, PCIAddress: address, Upstream: upstream, NetDev: "eth_" + name})
	tree.NIC(d, 0)
	return d
}

// TestDistances: each class, and what it needs.
func TestDistances(t *testing.T) {
	const gpu = "0000:18:00.0"
	for name, test := range map[string]struct {
		build    func(tree *rdmatest.Tree, ports []string)
		standIns []string
		want     string
		gpuSide  string
		nicSide  string
		common   string
	}{
		"same switch": {build: func(tree *rdmatest.Tree, ports []string) { nic(tree, "n", ports[1], "0000:19:00.0") },
			want: "PIX*", common: "0000:16:00.0", gpuSide: "0000:17:00.0", nicSide: "0000:17:01.0"},
		"same port": {build: func(tree *rdmatest.Tree, ports []string) { nic(tree, "n", ports[0], "0000:18:00.1") },
			want: "PIX*", common: "0000:17:00.0"},
		"on the upstream port's bus": {build: func(tree *rdmatest.Tree, ports []string) {
			nic(tree, "n", strings.TrimSuffix(ports[0], "/0000:17:00.0"), "0000:17:04.0")
		}, want: "PIX*", common: "0000:16:00.0", gpuSide: "0000:17:00.0"},
		"switch below the switch": {build: func(tree *rdmatest.Tree, ports []string) {
			nic(tree, "n", tree.Switch(ports[1], 0x30, 1, 0, 0)[0], "0000:32:00.0")
		}, want: "PXB*", common: "0000:16:00.0", gpuSide: "0000:17:00.0", nicSide: "0000:31:00.0 0000:30:00.0 0000:17:01.0"},
		"another root port": {build: func(tree *rdmatest.Tree, _ []string) { nic(tree, "n", "pci0000:15/0000:15:02.0", "0000:30:00.0") },
			want: "PHB*", gpuSide: "0000:17:00.0 0000:16:00.0 0000:15:01.0", nicSide: "0000:15:02.0"},
		"another host bridge": {build: func(tree *rdmatest.Tree, _ []string) { nic(tree, "n", "pci0000:30/0000:30:01.0", "0000:31:00.0") },
			want: "NODE*", gpuSide: "0000:17:00.0 0000:16:00.0 0000:15:01.0", nicSide: "0000:30:01.0"},
		"another node": {build: func(tree *rdmatest.Tree, _ []string) {
			tree.NUMA(nic(tree, "n", "pci0000:80/0000:80:01.0", "0000:81:00.0").Function, 1)
		}, want: "SYS*", gpuSide: "0000:17:00.0 0000:16:00.0 0000:15:01.0", nicSide: "0000:80:01.0"},
		"another host bridge, no node": {build: func(tree *rdmatest.Tree, _ []string) {
			tree.NUMA(nic(tree, "n", "pci0000:30/0000:30:01.0", "0000:31:00.0").Function, -1)
		}, want: "unknown", gpuSide: "0000:17:00.0 0000:16:00.0 0000:15:01.0", nicSide: "0000:30:01.0"},
		"integrated below the host bridge": {build: func(tree *rdmatest.Tree, _ []string) { nic(tree, "n", "pci0000:15", "0000:15:08.0") },
			want: "unknown", gpuSide: "0000:17:00.0 0000:16:00.0 0000:15:01.0"},
		"VMD, a domain of five digits below a function": {build: func(tree *rdmatest.Tree, _ []string) {
			nic(tree, "n", "pci0000:15/0000:15:00.5/pci10000:00/10000:00:02.0", "10000:01:00.0")
		}, want: "NODE*", gpuSide: "0000:17:00.0 0000:16:00.0 0000:15:01.0", nicSide: "10000:00:02.0"},
		"bus of the same number in another domain": {build: func(tree *rdmatest.Tree, _ []string) {
			nic(tree, "n", "pci0001:15/0001:15:01.0", "0001:16:00.0")
		}, want: "NODE*", gpuSide: "0000:17:00.0 0000:16:00.0 0000:15:01.0", nicSide: "0001:15:01.0"},
		"emulated root port": {build: func(tree *rdmatest.Tree, _ []string) { emulated(tree) },
			want: "unknown", gpuSide: "0000:17:00.0 0000:16:00.0 0000:15:01.0", nicSide: "0000:15:02.0"},
		"emulated root port of a test": {build: func(tree *rdmatest.Tree, _ []string) { emulated(tree) }, standIns: []string{"dead:beef"},
			want: "PHB*", gpuSide: "0000:17:00.0 0000:16:00.0 0000:15:01.0", nicSide: "0000:15:02.0"},
		"emulated common bridge": {build: func(tree *rdmatest.Tree, ports []string) {
			tree.File("sys/devices/pci0000:15/0000:15:01.0/vendor", "0x1b36\n")
			nic(tree, "n", ports[1], "0000:19:00.0")
		}, want: "PIX*", common: "0000:16:00.0", gpuSide: "0000:17:00.0", nicSide: "0000:17:01.0"},
	} {
		t.Run(name, func(t *testing.T) {
			tree, ports := server()
			tree.GPUFunction(ports[0]+"/"+gpu, rdmatest.H100SXM, 0)
			test.build(tree, ports)
			h := newHost(t, written(t, tree), affinity.Options{StandIns: test.standIns})
			l, functions := h.quiet()
			check(t, "distances", distances(&l), map[string]string{gpu + " n": test.want})
			pair := l.Pairs[0]
			if strings.Join(pair.GPUSide, " ") != test.gpuSide || strings.Join(pair.NICSide, " ") != test.nicSide || pair.Common != test.common {
				t.Errorf("path %+v", pair)
			}
			if hidden := strings.Contains(name, "integrated") || strings.Contains(name, "emulated") && test.standIns == nil; hidden != pair.Hidden {
				t.Errorf("hidden: %v", pair.Hidden)
			}
			if !pair.Nearest {
				return
			}
			for _, address := range slices.Concat(pair.GPUSide, pair.NICSide, []string{pair.GPU, pair.NIC}) {
				if functions[address] == nil {
					t.Errorf("%s on the way is not read", address)
				}
			}
			if path := affinity.PathOf(&pair, functions); !path.PossibleBytesPerSecond.Known || path.Redirected.Known != (test.common != "" && test.gpuSide != "" && !pair.Hidden) {
				t.Errorf("path %+v", path)
			}
		})
	}
}

func emulated(tree *rdmatest.Tree) {
	nic(tree, "n", "pci0000:15/0000:15:02.0", "0000:30:00.0")
	tree.File("sys/devices/pci0000:15/0000:15:02.0/vendor", "0x1b36\n")
}

// TestDevices: what owns an RDMA device, in all the ways that sysfs shows it
// (cases 11, 31-33, 50).
func TestDevices(t *testing.T) {
	tree, ports := server()
	tree.GPUFunction(ports[0]+"/0000:18:00.0", rdmatest.H100SXM, 0)
	// A physical function with a virtual one, a sub-function of either, and an independent second port.
	const pf = "0000:19:00.0"
	nic(tree, "pf", ports[1], pf)
	tree.MLX5VF(rdmatest.Options{Name: "vf", PCIAddress: "0000:19:00.2", Upstream: ports[1], PhysFn: pf, Ordinal: 2, NetDev: "eth_vf"})
	tree.MLX5SF(rdmatest.Options{Name: "sf", Upstream: ports[1], PhysFn: pf, Ordinal: 3, NetDev: "eth_sf"})
	nic(tree, "port2", ports[1], "0000:19:00.1")
	// A ConnectX-8 with its plane, and one with twelve ports.
	tree.MLX5XDR(rdmatest.Options{Name: "xdr", PCIAddress: "0000:1a:00.0", Upstream: ports[2], Ordinal: 4, NetDev: "ib_xdr"})
	tree.SMI(rdmatest.Options{Name: "smi1", PCIAddress: "0000:1a:00.0", Upstream: ports[2], Ordinal: 4})
	tree.MultiPlane(rdmatest.Options{Name: "planes", PCIAddress: "0000:1b:00.0", Upstream: ports[3], Ordinal: 5})
	// Soft-RoCE on a NIC, on a VLAN of it, on a bond, on a VLAN of the bond, on nothing, and on a name that leads out.
	soft := func(name, netdev string) {
		d := tree.RXE(rdmatest.Options{Name: name, NetDev: "veth_" + name, Ordinal: 40 + len(name)})
		tree.File(d.Dir+"/parent", netdev+"\n")
	}
	virtual := func(name string, lower ...string) {
		tree.File("sys/devices/virtual/net/"+name+"/operstate", "up\n")
		tree.Symlink("sys/class/net/"+name, "../../devices/virtual/net/"+name)
		for _, l := range lower {
			tree.Symlink("sys/devices/virtual/net/"+name+"/lower_"+l, "../"+l)
		}
	}
	virtual("vlan5", "eth_port2")
	virtual("bond7", "eth_pf", "eth_port2")
	virtual("bond1", "eth_pf")
	tree.Dir("sys/devices/virtual/net/bond1/bonding")
	virtual("vlan6", "bond7")
	soft("rxe", "eth_pf")
	soft("rxe_vlan", "vlan5")
	soft("rxe_bond", "bond7")
	soft("rxe_bond1", "bond1")
	soft("rxe_bondvlan", "vlan6")
	soft("rxe_alien", "eth_in_another_netns")
	soft("rxe_evil", "../net/eth_pf")
	soft("rxe_empty", "")
	tree.SIW(rdmatest.Options{Name: "siw", NetDev: "veth_siw", Ordinal: 70})

	h := newHost(t, written(t, tree), affinity.Options{})
	l, functions := h.quiet()
	got := map[string]string{}
	for _, p := range l.Pairs {
		got[p.Device] = p.NIC + " " + p.Distance.String()
	}
	check(t, "devices", got, map[string]string{
		"pf": pf + " PIX", "vf": "0000:19:00.2 PIX", "sf": pf + " PIX", "port2": "0000:19:00.1 PIX", "xdr": "0000:1a:00.0 PIX", "planes": "0000:1b:00.0 PIX",
		"rxe": pf + " PIX", "rxe_vlan": "0000:19:00.1 PIX", "rxe_bond": " unknown", "rxe_bond1": " unknown", "rxe_bondvlan": " unknown", "rxe_alien": " unknown",
		"rxe_evil": " unknown", "rxe_empty": " unknown", "siw": " unknown",
	})
	for _, n := range l.Functions {
		want := map[string]string{pf: "pf rxe sf", "0000:19:00.1": "port2 rxe_vlan", "0000:19:00.2": "vf", "0000:1a:00.0": "xdr", "0000:1b:00.0": "planes"}[n.Address]
		if strings.Join(n.RDMA, " ") != want || (n.Kind == affinity.KindNIC) != (want != "") {
			t.Errorf("%s: %s %v", n.Address, n.Kind, n.RDMA)
		}
	}
	if functions["0000:19:00.2"] != nil || functions[pf] == nil {
		t.Error("a virtual function is read beside its physical one")
	}
}

// TestVirtualFunction: one whose physical function has no RDMA device is read,
// with the link and the device control of the physical one.
func TestVirtualFunction(t *testing.T) {
	tree, ports := server()
	tree.GPUFunction(ports[0]+"/0000:18:00.0", rdmatest.H100SXM, 0)
	ats := uint16(0x8000)
	tree.PCI(rdmatest.PCIFunction{Path: ports[1] + "/0000:19:00.0", Vendor: "0x15b3", Device: "0x1021", Class: "0x020000", Driver: "mlx5_core",
		Speed: "16.0 GT/s PCIe", Width: "8", Config: &rdmatest.ConfigSpace{Vendor: 0x15b3, DevCtl: 0x5937}})
	vf := tree.MLX5VF(rdmatest.Options{Name: "vf", PCIAddress: "0000:19:00.2", Upstream: ports[1], PhysFn: "0000:19:00.0", Ordinal: 2})
	tree.File(vf.Function+"/config", rdmatest.ConfigSpace{Vendor: 0x15b3, ATS: &ats}.Bytes())
	_, functions := newHost(t, written(t, tree), affinity.Options{}).quiet()
	f := functions["0000:19:00.2"]
	if f == nil || f.PhysicalFunction != "0000:19:00.0" || f.Link.Speed != sysread.Some(16.) || f.Link.PossibleWidth != sysread.Some(8) ||
		f.Config.MaxReadRequest != sysread.Some(4096) || f.Config.RelaxedOrdering != sysread.Some(true) || f.Config.ATS != sysread.Some(true) {
		t.Errorf("%+v", f)
	}
}

// TestRoles: the command line's word goes before nearness.
func TestRoles(t *testing.T) {
	build := func() *rdmatest.Tree {
		tree, ports := server()
		tree.GPUFunction(ports[0]+"/0000:18:00.0", rdmatest.H100SXM, 0)
		nic(tree, "near", ports[1], "0000:19:00.0")
		nic(tree, "next", "pci0000:15/0000:15:02.0", "0000:30:00.0")
		nic(tree, "far", "pci0000:40/0000:40:01.0", "0000:41:00.0")
		tree.RXE(rdmatest.Options{Name: "soft"})
		return tree
	}
	for name, test := range map[string]struct {
		given, want, distances map[string]string
		read                   []string // of NICs
	}{
		"none given": {nil, map[string]string{"near": "compute", "next": "unknown", "far": "unknown", "soft": "unknown"},
			map[string]string{"near": "PIX*", "next": "PHB", "far": "NODE", "soft": "unknown"}, []string{"0000:19:00.0"}},
		"storage is near": {map[string]string{"near": "storage"}, map[string]string{"near": "storage", "next": "compute", "far": "unknown", "soft": "unknown"},
			map[string]string{"near": "PIX", "next": "PHB*", "far": "NODE", "soft": "unknown"}, []string{"0000:30:00.0"}},
		"compute is far": {map[string]string{"far": "compute"}, map[string]string{"near": "compute", "next": "unknown", "far": "compute", "soft": "unknown"},
			map[string]string{"near": "PIX*", "next": "PHB", "far": "NODE", "soft": "unknown"}, []string{"0000:19:00.0", "0000:41:00.0"}},
		"none is compute": {map[string]string{"near": "unused", "next": "management", "far": "storage"},
			map[string]string{"near": "unused", "next": "management", "far": "storage", "soft": "unknown"},
			map[string]string{"near": "PIX", "next": "PHB", "far": "NODE", "soft": "unknown"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, written(t, build()), affinity.Options{Role: func(device string) string { return test.given[device] }})
			l, functions := h.quiet()
			check(t, "roles", l.Roles, test.want)
			got, read := map[string]string{}, []string{}
			for pair, distance := range distances(&l) {
				got[strings.Fields(pair)[1]] = distance
			}
			check(t, "distances", got, test.distances)
			for _, n := range l.Functions {
				if n.Kind == affinity.KindNIC {
					if want := test.want[n.RDMA[0]]; n.Role != want {
						t.Errorf("%s has role %s, want %s", n.Address, n.Role, want)
					}
					if functions[n.Address] != nil {
						read = append(read, n.Address)
					}
				}
			}
			if strings.Join(read, " ") != strings.Join(test.read, " ") {
				t.Errorf("NICs %v are read, want %v", read, test.read)
			}
		})
	}
	// Without a GPU all are read that are not put aside.
	tree := rdmatest.NodeN(3)
	h := newHost(t, written(t, tree), affinity.Options{Role: func(device string) string {
		return map[string]string{"mlx5_0": "unused", "mlx5_1": "storage"}[device]
	}})
	if _, functions := h.quiet(); functions["0000:18:00.0"] != nil || functions["0000:3b:00.0"] == nil || functions["0000:4c:00.0"] == nil {
		t.Errorf("read %v", slices.Sorted(maps.Keys(functions)))
	}
}

// TestWhatIsAGPU: by vendor and class, whatever driver it has or has not.
func TestWhatIsAGPU(t *testing.T) {
	for name, test := range map[string]struct {
		vendor, device, class, driver string
		standIns                      []string
		gpu                           bool
	}{
		"3D controller":          {"0x10de", "0x2330", "0x030200", "nvidia", nil, true},
		"VGA controller":         {"0x10de", "0x2684", "0x030000", "nvidia", nil, true},
		"passed through":         {"0x10de", "0x2330", "0x030200", "vfio-pci", nil, true},
		"without a driver":       {"0x10de", "0x2330", "0x030200", "", nil, true},
		"sound of a card":        {"0x10de", "0x22ba", "0x040300", "snd_hda_intel", nil, false},
		"NVSwitch":               {"0x10de", "0x22a3", "0x068000", "nvidia-nvswitch", nil, false},
		"Grace root port":        {"0x10de", "0x22b1", "0x060400", "pcieport", nil, false},
		"BMC":                    {"0x1a03", "0x2000", "0x030000", "ast", nil, false},
		"AMD Instinct":           {"0x1002", "0x74a1", "0x120000", "amdgpu", nil, false},
		"stand-in":               {"0x8086", "0x10d3", "0x020000", "e1000e", []string{"1af4:1050", "8086:10d3"}, true},
		"not a stand-in":         {"0x8086", "0x10d4", "0x020000", "e1000e", []string{"8086:10d3"}, false},
		"class is not of a form": {"0x10de", "0x2330", "three", "", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			tree, ports := server()
			tree.PCI(rdmatest.PCIFunction{Path: ports[0] + "/0000:18:00.0", Vendor: test.vendor, Device: test.device, Class: test.class, Driver: test.driver})
			l := newHost(t, written(t, tree), affinity.Options{StandIns: test.standIns}).list()
			if got := kinds(&l)[affinity.KindGPU] == 1; got != test.gpu {
				t.Errorf("is a GPU: %v", got)
			}
			if bad := test.class == "three"; bad != (len(l.Failed) == 1) {
				t.Errorf("failed %v", l.Failed)
			}
		})
	}
	// A virtual function of a GPU is made for a virtual machine.
	tree, ports := server()
	tree.GPUFunction(ports[0]+"/0000:18:00.0", rdmatest.H100SXM, 0)
	vf := tree.GPUFunction(ports[0]+"/0000:18:00.4", rdmatest.H100SXM, 0)
	tree.Symlink(vf+"/physfn", "../0000:18:00.0")
	if l := newHost(t, written(t, tree), affinity.Options{}).list(); kinds(&l)[affinity.KindGPU] != 1 {
		t.Errorf("functions %+v", l.Functions)
	}
}

// rewrite changes a tree on disk: the old function goes, a new one comes.
func rewrite(t *testing.T, dir string, remove []string, tree *rdmatest.Tree) {
	t.Helper()
	for _, path := range remove {
		if err := os.RemoveAll(filepath.Join(dir, path)); err != nil {
			t.Fatal(err)
		}
	}
	if tree == nil {
		return
	}
	for _, path := range tree.Paths() {
		if info, err := os.Lstat(filepath.Join(dir, path)); err == nil && !info.IsDir() {
			tree.Remove(path)
		}
	}
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
}

// TestComingAndGoing: a GPU that goes is told of if it was the driver's, a
// function has the same reader while it stays and another once it was replaced.
func TestComingAndGoing(t *testing.T) {
	build := func() (*rdmatest.Tree, string) {
		tree, ports := server()
		nic(tree, "n", ports[1], "0000:19:00.0")
		return tree, tree.GPUFunction(ports[0]+"/0000:18:00.0", rdmatest.H100SXM, 0)
	}
	tree, gpu := build()
	dir := written(t, tree)
	h := newHost(t, dir, affinity.Options{})
	l := h.list()
	if len(l.Functions) != 5 || len(l.Gone) != 0 {
		t.Fatalf("%+v", l)
	}
	first := maps.Clone(h.last)
	for range 3 {
		h.now = h.now.Add(time.Minute)
		h.list()
		if !maps.Equal(first, h.last) {
			t.Fatal("readers change while nothing does")
		}
	}
	node := func(l affinity.Listing, address string) affinity.Node {
		for _, n := range l.Functions {
			if n.Address == address {
				return n
			}
		}
		return affinity.Node{}
	}
	if n := node(l, "0000:18:00.0"); n.Driver != "nvidia" || !n.HadNVIDIA {
		t.Errorf("%+v", n)
	}
	// The driver goes: seen at once, with the same reader.
	driver := filepath.Join(dir, gpu, "driver")
	if err := os.Remove(driver); err != nil {
		t.Fatal(err)
	}
	l = h.list()
	if n := node(l, "0000:18:00.0"); n.Driver != "" || !n.HadNVIDIA || !maps.Equal(first, h.last) {
		t.Errorf("unbound: %+v", n)
	}
	if f, _ := h.last["0000:18:00.0"].Read(h.now); f.Driver != "" {
		t.Errorf("the reader says %q", f.Driver)
	}
	// What goes without the driver is no loss, if that was taken off a while before.
	for range 3 {
		h.now = h.now.Add(time.Minute)
		h.list()
	}
	rewrite(t, dir, []string{gpu, "sys/bus/pci/devices/0000:18:00.0"}, nil)
	l = h.list()
	if len(l.Gone) != 0 || node(l, "0000:18:00.0").Address != "" || len(l.Pairs) != 0 || h.last["0000:18:00.0"] != nil || h.last["0000:19:00.0"] != first["0000:19:00.0"] {
		t.Errorf("gone %v", l.Gone)
	}
	// It comes back, another function for us, and with its driver.
	again, _ := build()
	rewrite(t, dir, nil, again)
	l = h.list()
	if n := node(l, "0000:18:00.0"); n.Driver != "nvidia" || !n.HadNVIDIA || h.last["0000:18:00.0"] == nil || h.last["0000:18:00.0"] == first["0000:18:00.0"] {
		t.Errorf("back: %+v", n)
	}
	// Now it falls off the bus: the kernel takes the driver off first.
	if err := os.Remove(driver); err != nil {
		t.Fatal(err)
	}
	if l = h.list(); len(l.Gone) != 0 || node(l, "0000:18:00.0").Driver != "" {
		t.Errorf("unbound: gone %v", l.Gone)
	}
	rewrite(t, dir, []string{gpu, "sys/bus/pci/devices/0000:18:00.0"}, nil)
	for range 2 {
		if l = h.list(); !slices.Equal(l.Gone, []string{"0000:18:00.0"}) {
			t.Errorf("gone %v", l.Gone)
		}
	}
	again, _ = build()
	rewrite(t, dir, nil, again)
	if l = h.list(); len(l.Gone) != 0 || len(l.Pairs) != 1 {
		t.Errorf("gone %v, %d pairs", l.Gone, len(l.Pairs))
	}
	// The RDMA device goes (driver reload), and its function stays.
	rewrite(t, dir, []string{"sys/class/infiniband/n"}, nil)
	if l = h.list(); len(l.Pairs) != 0 || len(l.Roles) != 0 || h.last["0000:19:00.0"] != nil {
		t.Errorf("%+v", l.Pairs)
	}
	// All goes, directories too.
	rewrite(t, dir, []string{"sys/class", "sys/bus"}, nil)
	if l = h.list(); len(l.Functions) != 0 || len(l.Gone) != 1 || len(h.last) != 0 {
		t.Errorf("%+v", l)
	}
}

// TestGoingWhileRead: a function that goes between listing and reading is no error.
func TestGoingWhileRead(t *testing.T) {
	tree, ports := server()
	gpu := tree.GPUFunction(ports[0]+"/0000:18:00.0", rdmatest.H100SXM, 0)
	dir := written(t, tree)
	h := newHost(t, dir, affinity.Options{})
	h.quiet()
	rewrite(t, dir, []string{gpu, "sys/bus/pci/devices/0000:18:00.0"}, nil)
	h.now = h.now.Add(time.Hour)
	f, errs := h.last["0000:18:00.0"].Read(h.now)
	if len(errs) > 0 || f.Link.Speed.Known || f.AER != nil || f.Answers.Known || f.Config != (affinity.Config{}) {
		t.Errorf("%+v, %v", f, errs)
	}
}

// TestPower: nothing is touched of a function that sleeps, and all is read as
// soon as it wakes.
func TestPower(t *testing.T) {
	for state, awake := range map[string]bool{
		"D0": true, "D1": false, "D2": false, "D3hot": false, "D3cold": false, "unknown": true, "error": false, "D7": false,
		"no file": true, "no file, suspended": false, "no file, no status": true,
	} {
		t.Run(state, func(t *testing.T) {
			tree, ports := server()
			gpu := tree.GPUFunction(ports[0]+"/0000:18:00.0", rdmatest.H100SXM, 0)
			tree.File(gpu+"/power_state", state+"\n")
			if strings.HasPrefix(state, "no file") {
				tree.Remove(gpu + "/power_state")
			}
			switch state {
			case "no file, suspended":
				tree.File(gpu+"/power/runtime_status", "suspended\n")
			case "no file, no status":
				tree.Remove(gpu + "/power")
			}
			root, fs := mounted(t, tree)
			h := newHost(t, root, affinity.Options{})
			h.list()
			f, errs := h.last["0000:18:00.0"].Read(h.now)
			if bad := state == "D7"; bad != (len(errs) == 1) {
				t.Errorf("errors %v", errs)
			}
			touched := 0
			for _, name := range []string{"config", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width"} {
				touched += fs.Opens(gpu + "/" + name)
			}
			if awake != (touched > 0) || awake != f.Link.Speed.Known || awake != f.Config.MaxPayload.Known || awake != f.Answers.Known || f.AER == nil || !f.Link.Lower {
				t.Errorf("%d files opened, %+v", touched, f)
			}
			if awake {
				return
			}
			if strings.HasPrefix(state, "no file") {
				fs.Set(gpu+"/power/runtime_status", rdmatest.Text("active\n"))
			} else {
				fs.Set(gpu+"/power_state", rdmatest.Text("D0\n"))
			}
			if f, _ = h.last["0000:18:00.0"].Read(h.now); !f.Link.Speed.Known || !f.Config.MaxPayload.Known {
				t.Errorf("awake: %+v", f)
			}
		})
	}
}

// TestFilters: nothing of an excluded device is opened.
func TestFilters(t *testing.T) {
	tree := rdmatest.HGX(rdmatest.HGXOptions{})
	rxe := tree.RXE(rdmatest.Options{})
	root, fs := mounted(t, tree)
	h := newHost(t, root, affinity.Options{
		IncludeRDMA: func(name string) bool { return name == "mlx5_0" },
		IncludeGPU:  func(address string) bool { return address != "0000:18:00.0" },
	})
	l, functions := h.quiet()
	if len(l.Pairs) != 7 || len(l.Roles) != 1 || functions["0000:18:00.0"] != nil {
		t.Errorf("%d pairs, roles %v", len(l.Pairs), l.Roles)
	}
	for _, address := range []string{"0000:18:00.0", "0000:1b:00.0", "0000:e1:00.0"} {
		opens := 0
		real, _ := tree.Real("sys/bus/pci/devices/" + address)
		for path, count := range fs.Counts() {
			// The class, by which every function is sorted, is not asked of GPUs alone.
			if strings.HasPrefix(path, real+"/") && (address == "0000:18:00.0" || !strings.HasSuffix(path, "/class")) {
				opens += count.Opens + count.Lists
			}
		}
		if opens > 0 {
			t.Errorf("%s was opened %d times", address, opens)
		}
	}
	if n := fs.Opens(rxe.Dir + "/parent"); n > 0 {
		t.Errorf("the excluded soft-RoCE device was opened %d times", n)
	}
}

// TestSteadyState: a listing while nothing changes opens two directories, a read
// only the power states, through kept descriptors.
func TestSteadyState(t *testing.T) {
	root, fs := mounted(t, rdmatest.HGX(rdmatest.HGXOptions{}))
	h := newHost(t, root, affinity.Options{})
	h.quiet()
	fs.ResetCounts()
	h.now = h.now.Add(59 * time.Second)
	h.quiet()
	opens, reads := 0, 0
	for path, count := range fs.Counts() {
		opens += count.Opens + count.Lists
		reads += count.Reads
		if count.Opens > 0 || count.Reads > 0 && !strings.HasSuffix(path, "/power_state") {
			t.Errorf("%s: %+v", path, count)
		}
	}
	if opens != 2 || reads != 36 {
		t.Errorf("%d opened, %d read", opens, reads)
	}
	h.now = h.now.Add(time.Second)
	fs.ResetCounts()
	_, functions := h.quiet()
	if fs.Opens("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0/config") != 1 || functions["0000:18:00.0"].SlowRead != h.now {
		t.Error("the slow group was not read when it was due")
	}
	if held := h.read.IO().Held(); held != 36 {
		t.Errorf("%d files are kept open", held)
	}
	for _, reader := range h.last {
		reader.Close()
	}
	if held := h.read.IO().Held(); held != 0 {
		t.Errorf("%d files are open after Close", held)
	}
}

func TestDescriptorBudget(t *testing.T) {
	h := newHost(t, written(t, rdmatest.HGX(rdmatest.HGXOptions{})), affinity.Options{Descriptors: 5})
	for range 3 {
		h.quiet()
	}
	if held := h.read.IO().Held(); held != 5 {
		t.Errorf("%d files are kept open", held)
	}
}

// TestSlowInterval: what root may overwrite shows after the interval.
func TestSlowInterval(t *testing.T) {
	tree, ports := server()
	gpu := tree.GPUFunction(ports[0]+"/0000:18:00.0", rdmatest.H100SXM, 0)
	dir := written(t, tree)
	h := newHost(t, dir, affinity.Options{})
	h.list()
	if err := os.WriteFile(filepath.Join(dir, gpu, "numa_node"), []byte("1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	numa := func() sysread.Maybe[int] { _, functions := h.quiet(); return functions["0000:18:00.0"].NUMANode }
	if got := numa(); got != sysread.Some(0) {
		t.Errorf("at once: %v", got)
	}
	h.now = h.now.Add(time.Minute)
	if got := numa(); got != sysread.Some(1) {
		t.Errorf("after the interval: %v", got)
	}
}

// TestFailedOnce: a failure while listing is told of once per attempt, and the
// attempt is repeated.
func TestFailedOnce(t *testing.T) {
	tree, ports := server()
	gpu := tree.PCI(rdmatest.PCIFunction{Path: ports[0] + "/0000:18:00.0", Vendor: "0x10de", Device: "0x2330", Class: "0x030200"})
	root, fs := mounted(t, tree)
	fs.Set(gpu+"/class", rdmatest.Rule{Errno: syscall.EIO})
	h := newHost(t, root, affinity.Options{})
	for range 2 {
		if l := h.list(); len(l.Failed) != 1 || l.Failed[0].Errno() != "EIO" || l.Failed[0].Source != "class" || len(l.Functions) != 0 {
			t.Errorf("%+v", l.Failed)
		}
		if l := h.list(); len(l.Failed) != 0 {
			t.Errorf("again: %v", l.Failed)
		}
		h.now = h.now.Add(time.Minute)
	}
	fs.ClearAll()
	if l := h.list(); len(l.Failed) != 0 || kinds(&l)[affinity.KindGPU] != 1 {
		t.Errorf("%v, %v", l.Failed, kinds(&l))
	}
}

// TestRecordedVM reads what a virtual machine with two H200 showed: GPUs right
// below the host bridge, capabilities hidden from the guest (id 0), no AER.
func TestRecordedVM(t *testing.T) {
	text, err := os.ReadFile("testdata/h200-vm.txt")
	if err != nil {
		t.Fatal(err)
	}
	tree, err := rdmatest.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	nic(tree, "n", "pci0000:00", "0000:00:09.0")
	l, functions := newHost(t, written(t, tree), affinity.Options{}).quiet()
	check(t, "distances", distances(&l), map[string]string{"0000:00:06.0 n": "unknown", "0000:00:07.0 n": "unknown"})
	f := functions["0000:00:06.0"]
	if f == nil {
		t.Fatalf("read %v", functions)
	}
	if f.Driver != "nvidia" || f.NUMANode.Known || f.LocalCPUs != "" || f.AER != nil || f.Power != sysread.Some("D0") || f.HostBridge != "pci0000:00" || f.Upstream != "" ||
		f.Link != (affinity.Link{Speed: sysread.Some(32.), Width: sysread.Some(16), PossibleSpeed: sysread.Some(32.), PossibleWidth: sysread.Some(16), Lower: true}) {
		t.Errorf("%+v", f)
	}
	// lspci -vvv of the same files says the same.
	if c := f.Config; c.PortType != sysread.Some(0) || c.MaxPayload != sysread.Some(256) || c.MaxReadRequest != sysread.Some(4096) || c.RelaxedOrdering != sysread.Some(true) ||
		!c.NoACS || c.ATS.Known || f.ConfigReadable != sysread.Some(true) || f.Answers != sysread.Some(true) {
		t.Errorf("%+v", f)
	}
}

// TestOddFiles: what a file that says nothing usable costs, and that it is counted.
func TestOddFiles(t *testing.T) {
	const gpu, card = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0/", "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/"
	for name, test := range map[string]struct {
		change func(tree *rdmatest.Tree)
		errs   string // device and source of each
		want   string // distance
		check  func(l *affinity.Listing, f map[string]*affinity.Function) bool
	}{
		"numa_node is a word": {func(tree *rdmatest.Tree) { tree.File(gpu+"numa_node", "none\n") }, "0000:18:00.0 numa_node", "PIX*",
			func(_ *affinity.Listing, f map[string]*affinity.Function) bool {
				return !f["0000:18:00.0"].NUMANode.Known && f["0000:18:00.0"].LocalCPUs == ""
			}},
		"no numa_node": {func(tree *rdmatest.Tree) { tree.Remove(gpu + "numa_node") }, "", "PIX*",
			func(_ *affinity.Listing, f map[string]*affinity.Function) bool {
				return !f["0000:18:00.0"].NUMANode.Known
			}},
		"vendor without 0x": {func(tree *rdmatest.Tree) { tree.File(card+"vendor", "15b3\n") }, "0000:19:00.0 vendor", "PIX*",
			func(_ *affinity.Listing, f map[string]*affinity.Function) bool { return f["0000:19:00.0"].Vendor == 0 }},
		"no vendor": {func(tree *rdmatest.Tree) { tree.Remove(card + "vendor") }, "", "PIX*", nil},
		"device too long": {func(tree *rdmatest.Tree) { tree.File(card+"device", "0x123456789\n") }, "0000:19:00.0 device", "PIX*",
			func(_ *affinity.Listing, f map[string]*affinity.Function) bool { return f["0000:19:00.0"].Device == 0 }},
		"config is short":   {func(tree *rdmatest.Tree) { tree.File(gpu+"config", "\xde\x10") }, "0000:18:00.0 config", "PIX*", nil},
		"no config":         {func(tree *rdmatest.Tree) { tree.Remove(gpu + "config") }, "", "PIX*", nil},
		"AER is empty":      {func(tree *rdmatest.Tree) { tree.File(gpu+"aer_dev_fatal", "") }, "0000:18:00.0 aer_dev_fatal", "PIX*", nil},
		"power_state empty": {func(tree *rdmatest.Tree) { tree.File(gpu+"power_state", "\n") }, "0000:18:00.0 power_state", "PIX*", nil},
		"link is a word":    {func(tree *rdmatest.Tree) { tree.File(gpu+"max_link_speed", "fast\n") }, "0000:18:00.0 max_link_speed", "PIX*", nil},
		"group without a type, as before Linux 5.11": {func(tree *rdmatest.Tree) { tree.Group(strings.TrimSuffix(gpu, "/"), "7", "") }, "", "PIX*",
			func(_ *affinity.Listing, f map[string]*affinity.Function) bool {
				return f["0000:18:00.0"].IOMMUGroup == "7" && f["0000:18:00.0"].IOMMUType == ""
			}},
		"IOMMU units": {func(tree *rdmatest.Tree) { tree.Dir("sys/class/iommu/dmar1").Dir("sys/class/iommu/dmar0") }, "", "PIX*",
			func(l *affinity.Listing, _ map[string]*affinity.Function) bool {
				return l.IOMMU.Known && slices.Equal(l.IOMMU.Value, []string{"dmar0", "dmar1"})
			}},
		"names that are no functions": {func(tree *rdmatest.Tree) {
			tree.Dir("sys/bus/pci/devices/slots").File("sys/bus/pci/devices/0000:18:00.8", "").Dir("sys/bus/pci/devices/0000:55:00.0")
		}, "", "PIX*", nil},
		"a file in the class": {func(tree *rdmatest.Tree) { tree.File("sys/class/infiniband/abi_version", "1\n") }, "", "PIX*", nil},
		"a link that leads out": {func(tree *rdmatest.Tree) {
			tree.Symlink("sys/class/infiniband/evil", "../../../elsewhere/0000:19:00.0/infiniband/evil")
		}, "", "PIX*", nil},
		"a device that is a copy": {func(tree *rdmatest.Tree) {
			tree.Remove("sys/class/infiniband/n").Symlink("sys/class/infiniband/n/device", "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0")
		}, "", "PIX*", nil},
		"a function that the bus does not list": {func(tree *rdmatest.Tree) { tree.Remove("sys/bus/pci/devices/0000:19:00.0") }, "", "unknown",
			func(l *affinity.Listing, _ map[string]*affinity.Function) bool { return l.Pairs[0].NIC == "" }},
		"a path without a host bridge": {func(tree *rdmatest.Tree) {
			tree.Remove("sys/bus/pci/devices/0000:18:00.0")
			tree.PCI(rdmatest.PCIFunction{Path: "platform/0000:10:01.0/0000:18:00.0", Vendor: "0x10de", Device: "0x2330", Class: "0x030200"})
		}, "", "unknown", nil},
		"a function that is a directory of the bus": {func(tree *rdmatest.Tree) {
			tree.Remove("sys/bus/pci/devices/0000:18:00.0")
			tree.File("sys/bus/pci/devices/0000:18:00.0/class", "0x030200\n").File("sys/bus/pci/devices/0000:18:00.0/vendor", "0x10de\n")
		}, "0000:18:00.0 bus/pci/devices", "unknown", nil},
	} {
		t.Run(name, func(t *testing.T) {
			tree, ports := server()
			tree.GPUFunction(ports[0]+"/0000:18:00.0", rdmatest.H100SXM, 0)
			nic(tree, "n", ports[1], "0000:19:00.0")
			test.change(tree)
			l, functions, errs := newHost(t, written(t, tree), affinity.Options{}).all()
			var got []string
			for _, err := range errs {
				got = append(got, err.Device+" "+err.Source)
			}
			if strings.Join(got, ", ") != test.errs {
				t.Errorf("errors %v", errs)
			}
			distances := distances(&l)
			if distances["0000:18:00.0 n"] != test.want {
				t.Errorf("distances %v", distances)
			}
			if test.check != nil && !test.check(&l, functions) {
				t.Errorf("%+v", l)
			}
		})
	}
}

// TestErrnos: a file's errno is counted, ENODEV too if the function is still there.
func TestErrnos(t *testing.T) {
	tree, ports := server()
	gpu := tree.GPUFunction(ports[0]+"/0000:18:00.0", rdmatest.H100SXM, 0)
	root, fs := mounted(t, tree)
	for _, file := range []string{"power_state", "current_link_speed", "max_link_width", "aer_dev_correctable", "config"} {
		for errno, rule := range map[string]rdmatest.Rule{
			"EIO": {Errno: syscall.EIO}, "ENODEV": {Errno: syscall.ENODEV}, "EACCES": {OpenErrno: syscall.EACCES}, "EINTR": {Errno: syscall.EINTR},
			"ETIMEDOUT": {Errno: syscall.ETIMEDOUT}, "EAGAIN": {Errno: syscall.EAGAIN},
		} {
			fs.Set(gpu+"/"+file, rule)
			_, functions, errs := newHost(t, root, affinity.Options{}).all()
			if len(errs) != 1 || errs[0].Device != "0000:18:00.0" || errs[0].Source != file || errs[0].Errno() != errno {
				t.Errorf("%s %s: %v", file, errno, errs)
			}
			if len(functions) != 2 {
				t.Errorf("%s %s: %d functions", file, errno, len(functions))
			}
			fs.ClearAll()
		}
	}
	// A device that was replaced under its name between look-up and reading.
	rxe := tree.RXE(rdmatest.Options{Name: "rxe7", NetDev: "veth7"})
	root, fs = mounted(t, tree)
	for name, file := range map[string]string{"0000:18:00.0": gpu + "/max_link_width", "rxe7": rxe.Dir + "/parent"} {
		for once, want := range map[bool]int{true: 0, false: 1} {
			fs.Set(file, rdmatest.Rule{Errno: syscall.ENODEV, Once: once})
			if _, _, errs := newHost(t, root, affinity.Options{}).all(); len(errs) != want || want > 0 && errs[0].Device != name {
				t.Errorf("%s, ENODEV once: %v: %v", file, once, errs)
			}
			fs.ClearAll()
		}
	}
	for _, dir := range []string{"sys/class/infiniband", "sys/bus/pci/devices"} {
		fs.Set(dir, rdmatest.Rule{OpenErrno: syscall.EACCES})
		if _, _, err := newHost(t, root, affinity.Options{}).read.List(); dir == "sys/bus/pci/devices" && sysread.ErrnoName(err) != "EACCES" {
			t.Errorf("%s: %v", dir, err)
		}
		fs.ClearAll()
	}
	// Listing the IOMMUs fails: not known, which is not none.
	tree.Dir("sys/class/iommu")
	root, fs = mounted(t, tree)
	fs.Set("sys/class/iommu", rdmatest.Rule{OpenErrno: syscall.EIO})
	if l, _, errs := newHost(t, root, affinity.Options{}).all(); l.IOMMU.Known || len(errs) != 1 {
		t.Errorf("%+v, %v", l.IOMMU, errs)
	}
}

// TestManyFunctions: a host with more functions than are read keeps the endpoints.
func TestManyFunctions(t *testing.T) {
	tree := rdmatest.New()
	acs := uint16(0)
	for i := range 300 {
		root := fmt.Sprintf("pci%04x:00", i)
		tree.Bridge(fmt.Sprintf("%s/%04x:00:01.0", root, i), 4, 0, &acs)
		tree.GPUFunction(fmt.Sprintf("%s/%04x:00:01.0/%04x:01:00.0", root, i, i), rdmatest.H100SXM, 0)
	}
	l, functions := newHost(t, written(t, tree), affinity.Options{Descriptors: 100}).quiet()
	gpus := 0
	for _, f := range functions {
		if f.Kind == affinity.KindGPU {
			gpus++
		}
	}
	if len(functions) != 512 || gpus != 300 || len(l.Functions) != 600 {
		t.Errorf("%d functions read, %d GPUs, %d listed", len(functions), gpus, len(l.Functions))
	}
}

// TestFunctionsOfOneDevice: a device with a GPU and a NIC is PIX wherever it is.
func TestFunctionsOfOneDevice(t *testing.T) {
	tree := rdmatest.New()
	tree.GPUFunction("pci0000:15/0000:15:08.0", rdmatest.H100SXM, 0)
	nic(tree, "same", "pci0000:15", "0000:15:08.1")
	nic(tree, "other", "pci0000:15", "0000:15:09.0")
	l := newHost(t, written(t, tree), affinity.Options{}).list()
	check(t, "distances", distances(&l), map[string]string{"0000:15:08.0 same": "PIX*", "0000:15:08.0 other": "unknown"})
}

// TestReplacedBetweenScrapes: a function under an old address is a new one.
func TestReplacedBetweenScrapes(t *testing.T) {
	build := func(class string) *rdmatest.Tree {
		tree, ports := server()
		tree.PCI(rdmatest.PCIFunction{Path: ports[0] + "/0000:18:00.0", Vendor: "0x10de", Device: "0x2330", Class: class, Driver: "nvidia"})
		tree.GPUFunction(ports[1]+"/0000:19:00.0", rdmatest.H100SXM, 0)
		return tree
	}
	dir := written(t, build("0x030200"))
	h := newHost(t, dir, affinity.Options{})
	h.list()
	before := h.last
	gpu := []string{"sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", "sys/bus/pci/devices/0000:18:00.0"}
	rewrite(t, dir, gpu, build("0x030000"))
	l := h.list()
	if h.last["0000:18:00.0"] == nil || h.last["0000:18:00.0"] == before["0000:18:00.0"] || h.last["0000:19:00.0"] != before["0000:19:00.0"] {
		t.Error("the replaced function has the old reader, or the other a new one")
	}
	if f := l.Functions[len(l.Functions)-2]; f.Address != "0000:18:00.0" || f.Class != 0x030000 {
		t.Errorf("%+v", f)
	}
	// A GPU in whose place something else is put.
	rewrite(t, dir, gpu, build("0x058000"))
	if l = h.list(); kinds(&l)[affinity.KindGPU] != 1 {
		t.Errorf("%v", kinds(&l))
	}
}

// TestChangeIsNotLost that was seen by a listing that failed.
func TestChangeIsNotLost(t *testing.T) {
	tree, ports := server()
	gpu := tree.GPUFunction(ports[0]+"/0000:18:00.0", rdmatest.H100SXM, 0)
	tree.Bind(gpu, "") // its driver's going would be seen otherwise
	dir, root := written(t, tree.Dir("sys/class/infiniband")), t.TempDir()
	if err := rdmatest.Supported(); err != nil {
		t.Skip(err)
	}
	fs, err := rdmatest.Mount(dir, root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fs.Close() }()
	h := newHost(t, root, affinity.Options{})
	h.list()
	fs.Set("sys/class/infiniband", rdmatest.Rule{OpenErrno: syscall.EIO})
	rewrite(t, dir, []string{gpu, "sys/bus/pci/devices/0000:18:00.0"}, nil)
	if _, _, err := h.read.List(); err == nil {
		t.Error("no error")
	}
	fs.ClearAll()
	if l := h.list(); len(l.Functions) != 0 {
		t.Errorf("%+v", l)
	}
}

// TestEnds: which functions are at the lower end of a link, and that both ends
// of a link say what is possible.
func TestEnds(t *testing.T) {
	tree, ports := server()
	tree.GPUFunction(ports[0]+"/0000:18:00.0", rdmatest.H100SXM, 0)
	nic(tree, "far", "pci0000:15/0000:15:02.0", "0000:30:00.0")
	at := func(address, name, text string) {
		real, _ := tree.Real("sys/bus/pci/devices/" + address)
		tree.File(real+"/"+name, text+"\n")
	}
	at("0000:15:01.0", "max_link_width", "4")
	at("0000:16:00.0", "max_link_width", "8")
	at("0000:16:00.0", "max_link_speed", "16.0 GT/s PCIe")
	at("0000:18:00.0", "max_link_width", "12")
	at("0000:15:02.0", "max_link_speed", "Unknown")
	_, functions := newHost(t, written(t, tree), affinity.Options{}).quiet()
	for address, want := range map[string]affinity.Link{
		"0000:15:01.0": {PossibleSpeed: sysread.Some(32.), PossibleWidth: sysread.Some(4)},
		"0000:16:00.0": {PossibleSpeed: sysread.Some(16.), PossibleWidth: sysread.Some(4), Lower: true},
		"0000:17:00.0": {PossibleSpeed: sysread.Some(32.), PossibleWidth: sysread.Some(16)},
		"0000:18:00.0": {PossibleSpeed: sysread.Some(32.), PossibleWidth: sysread.Some(12), Lower: true},
		"0000:15:02.0": {PossibleWidth: sysread.Some(16)},
		"0000:30:00.0": {PossibleWidth: sysread.Some(16), Lower: true},
	} {
		want.Speed, want.Width = sysread.Some(32.), sysread.Some(16)
		if f := functions[address]; f == nil || f.Link != want {
			t.Errorf("%s: %+v, want %+v", address, f, want)
		}
	}
}

// TestBridgesToDataDirect are read even if the NIC itself is put aside.
func TestBridgesToDataDirect(t *testing.T) {
	h := newHost(t, written(t, rdmatest.DataDirectNode()), affinity.Options{Role: func(string) string { return "storage" }})
	l, functions := h.quiet()
	want := []string{"0009:01:00.0", "0009:02:00.0", "0009:02:01.0", "0009:03:00.0", "0009:06:00.0"}
	if got := slices.Sorted(maps.Keys(functions)); !slices.Equal(got, want) {
		t.Errorf("read %v", got)
	}
	if !slices.Equal(l.DataDirect, []string{"0009:03:00.0"}) {
		t.Errorf("data direct %v", l.DataDirect)
	}
	for _, n := range l.Functions {
		if n.DataDirect != (n.Address == "0000:03:00.0") {
			t.Errorf("%+v", n)
		}
	}
}

package rdmatest

import (
	"fmt"
	"maps"
	"path"
	"strconv"
)

// mlx5 is a ConnectX-7 (MT4129) on InfiniBand.
func mlx5() model {
	return model{
		driver: "mlx5_core", vendor: "0x15b3", device: "0x1021", class: "0x020700", node: "1: CA", link: "InfiniBand",
		rate: "400 Gb/sec (4X NDR)", fw: "28.41.1000", mad: true, netdev: "ib%d", gids: 8, pkeys: 4,
		files:    map[string]string{"hca_type": "MT4129", "board_id": "MT_0000000838", "hw_rev": "0", "fw_pages": "38919", "reg_pages": "0"},
		counters: pmaFull, port: mlx5All, linkSpeed: "32.0 GT/s PCIe", linkWidth: "16",
	}
}

func mlx5RoCE() model {
	m := mlx5()
	m.link, m.class, m.netdev, m.pkeys = "Ethernet", "0x020000", "eth%d", 1
	return m
}

// MLX5IB adds a ConnectX-7 with an InfiniBand port: the file set of a compute NIC of an H100 node.
func (t *Tree) MLX5IB(o Options) Device {
	m := mlx5()
	return t.hardware(m, m.with(o, "mlx5_0", "0000:19:00.0", 1))
}

// MLX5RoCE adds a ConnectX-7 with an Ethernet port.
func (t *Tree) MLX5RoCE(o Options) Device {
	m := mlx5RoCE()
	return t.hardware(m, m.with(o, "mlx5_1", "0000:3b:00.0", 1))
}

// MLX5VF adds a virtual function of a RoCE port; Options.PhysFn names its physical function, which may be added before or not at all.
func (t *Tree) MLX5VF(o Options) Device {
	m := mlx5RoCE()
	m.vf, m.device, m.files = true, "0x101e", merge(m.files, map[string]string{"hca_type": "MT4126"})
	if o.PhysFn == "" {
		o.PhysFn = "0000:3b:00.0"
	}
	return t.hardware(m, m.with(o, "mlx5_2", "0000:3b:00.2", 1))
}

// MLX5SF adds a sub-function: its parent is a device of the auxiliary bus below the PCI function Options.PhysFn, and its name is the one
// that udev gives (linux-rdma/rdma-core#1741). Options.PCIAddress is not used.
func (t *Tree) MLX5SF(o Options) Device {
	m := mlx5RoCE()
	if o.PhysFn == "" {
		o.PhysFn = "0000:3b:00.0"
	}
	o.PCIAddress = o.PhysFn
	o = m.with(o, "rocep59s0f0S88", "", 1)
	d := Device{Name: o.Name, PCIAddress: o.PhysFn, Ports: o.Ports, Function: path.Join("sys/devices", o.Upstream, o.PhysFn)}
	if _, ok := t.Real(path.Join(d.Function, "vendor")); !ok {
		t.function(m, o, d.Function)
	}
	aux := path.Join(d.Function, fmt.Sprintf("mlx5_core.sf.%d", o.Ordinal+4))
	t.File(path.Join(aux, "sfnum"), strconv.Itoa(o.Ordinal+88)+"\n")
	t.bind(aux, "auxiliary", "mlx5_core.sf")
	t.link(path.Join("sys/bus/auxiliary/devices", path.Base(aux)), aux)
	t.link(path.Join(aux, "subsystem"), "sys/bus/auxiliary")
	return t.device(m, o, d, aux)
}

// MLX5Switchdev adds an e-switch in switchdev mode: the counters of the function are at device level, port 1 is the uplink and has none of
// its own, the further ports are representors with a short set.
func (t *Tree) MLX5Switchdev(o Options) Device {
	m := mlx5RoCE()
	m.dev, m.port = m.port, nil
	d := t.hardware(m, m.with(o, "mlx5_3", "0000:5d:00.0", 2))
	for port := 2; port <= d.Ports; port++ {
		t.hwCounters(d.File(port, "hw_counters"), m, mlx5Vport, o.Ordinal, port)
	}
	return d
}

// MLX5Restricted adds a limited physical function of a DGX or HGX machine: the files are all there and every counter is refused with
// EINVAL, at the price of a kernel log line each (prometheus/node_exporter#3265, #3434, #3823).
func (t *Tree) MLX5Restricted(o Options) Device {
	m := mlx5()
	d := t.hardware(m, m.with(o, "mlx5_12", "0000:05:00.0", 1))
	for port := 1; port <= d.Ports; port++ {
		d.Faults = append(d.Faults, Fault{d.File(port, "counters/*"), Rule{Errno: einval}})
	}
	return d
}

// MLX4 adds a ConnectX-3 with two InfiniBand ports.
func (t *Tree) MLX4(o Options) Device {
	m := mlx5()
	m.driver, m.device, m.rate, m.fw, m.linkSpeed, m.linkWidth = "mlx4_core", "0x1003", "56 Gb/sec (4X FDR)", "2.42.5000", "8.0 GT/s PCIe", "8"
	m.files = map[string]string{"hca_type": "MT4099", "board_id": "MT_1090120019", "hw_rev": "1"}
	m.port, m.dev = mlx4Port, mlx4Device
	return t.hardware(m, m.with(o, "mlx4_0", "0000:02:00.0", 2))
}

// OldExt adds a device as kernels before 4.5 showed it: 32-bit traffic in counters/, 64-bit in counters_ext/, no hw_counters.
func (t *Tree) OldExt(o Options) Device {
	m := mlx5()
	m.driver, m.device, m.rate, m.fw = "mlx4_core", "0x1003", "40 Gb/sec (4X QDR)", "2.31.5050"
	m.files = map[string]string{"hca_type": "MT4099", "board_id": "MT_1090120019", "hw_rev": "1"}
	m.counters, m.ext, m.port, m.dev = pmaBasic, pma64, nil, nil
	return t.hardware(m, m.with(o, "mlx4_0", "0000:02:00.0", 1))
}

// BNXT adds a Broadcom NIC. Options.Counters adds the counters/ directory that out-of-tree and newer drivers have.
func (t *Tree) BNXT(o Options) Device {
	m := model{
		driver: "bnxt_en", vendor: "0x14e4", device: "0x1760", class: "0x020000", node: "1: CA", link: "Ethernet",
		rate: "400 Gb/sec (4X NDR)", fw: "230.2.49.0", mad: true, netdev: "bnxt%d", gids: 8, pkeys: 1,
		files: map[string]string{"hca_type": "BCM57608", "hw_rev": "0x11"}, port: bnxtPort, linkSpeed: "32.0 GT/s PCIe", linkWidth: "16",
	}
	if o.Counters {
		m.counters = pmaFull
	}
	return t.hardware(m, m.with(o, "bnxt_re0", "0000:41:00.0", 1))
}

// IRDMA adds an Intel E810.
func (t *Tree) IRDMA(o Options) Device {
	m := irdma(irdmaPort)
	return t.hardware(m, m.with(o, "irdma0", "0000:8a:00.0", 1))
}

// IRDMAGen3 adds an Intel device of the third generation, whose counter names hold spaces.
func (t *Tree) IRDMAGen3(o Options) Device {
	m := irdma(irdmaGen3Port)
	m.driver, m.device = "idpf", "0x1452"
	return t.hardware(m, m.with(o, "irdma0", "0000:8a:00.0", 1))
}

func irdma(counters []counter) model {
	return model{
		driver: "ice", vendor: "0x8086", device: "0x1592", class: "0x020000", node: "1: CA", link: "Ethernet", rate: "100 Gb/sec (4X EDR)",
		fw: "1.71", mad: true, netdev: "ice%d", gids: 8, pkeys: 1, port: counters, linkSpeed: "16.0 GT/s PCIe", linkWidth: "16",
	}
}

// EFA adds an Amazon EFA: zero GUID, no firmware version, link layer and node type unknown, a state that never changes, counters at both
// levels, no network device (linux-rdma/rdma-core#884, NVIDIA/NVSentinel#1750).
func (t *Tree) EFA(o Options) Device {
	m := model{
		driver: "efa", vendor: "0x1d0f", device: "0xefa2", class: "0x020000", node: "7: unspecified", link: "Unknown",
		rate: "100 Gb/sec (4X EDR)", fw: "0.0.0.0", gids: 1, pkeys: 1, noGUID: true, port: efaPort, dev: efaDevice, lifespan: "12",
		linkSpeed: "16.0 GT/s PCIe", linkWidth: "8",
	}
	return t.hardware(m, m.with(o, "rdmap79s0", "0000:4f:00.0", 1))
}

// HFI1 adds an Omni-Path adapter: hundreds of counters with spaces and ",32" in their names.
func (t *Tree) HFI1(o Options) Device {
	m := model{
		driver: "hfi1", vendor: "0x8086", device: "0x24f0", class: "0x020800", node: "1: CA", link: "InfiniBand", rate: "100 Gb/sec (4X EDR)",
		fw: "1.27.0", mad: true, netdev: "ib%d", gids: 5, pkeys: 4, counters: pmaFull, port: hfi1Port, dev: hfi1Device,
		files:     map[string]string{"board_id": "Intel Omni-Path HFI Adapter 100 Series", "hw_rev": "11", "nctxts": "160", "serial": "0x00a1b2c3"},
		linkSpeed: "8.0 GT/s PCIe", linkWidth: "16",
	}
	return t.hardware(m, m.with(o, "hfi1_0", "0000:18:00.0", 1))
}

// MANA adds a Microsoft Azure adapter, on the PCI domain that Hyper-V makes for it.
func (t *Tree) MANA(o Options) Device {
	m := model{
		driver: "mana", vendor: "0x1414", device: "0x00ba", class: "0x020000", node: "1: CA", link: "Ethernet", rate: "100 Gb/sec (4X EDR)",
		netdev: "enP%ds1", gids: 4, pkeys: 1, port: manaPort, dev: manaDevice, linkSpeed: "Unknown", linkWidth: "0",
	}
	o = m.with(o, "mana_0", "7870:00:00.0", 1)
	if o.PCIAddress == "7870:00:00.0" {
		o.Upstream = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/00000001-7870-47b5-b203-907d12ca697e/pci7870:00"
	}
	return t.hardware(m, o)
}

// ERDMA adds an Alibaba elastic RDMA adapter.
func (t *Tree) ERDMA(o Options) Device {
	m := model{
		driver: "erdma", vendor: "0x1ded", device: "0x107f", class: "0x020000", node: "4: RNIC", link: "Ethernet", rate: "100 Gb/sec (4X EDR)",
		fw: "0.2.0", netdev: "eth%d", gids: 1, port: erdmaPort, linkSpeed: "16.0 GT/s PCIe", linkWidth: "16",
	}
	return t.hardware(m, m.with(o, "erdma_0", "0000:07:00.0", 1))
}

// QEDR adds a Marvell adapter: it has counters/ and refuses to read any of it.
func (t *Tree) QEDR(o Options) Device {
	m := model{
		driver: "qede", vendor: "0x1077", device: "0x1656", class: "0x020000", node: "1: CA", link: "Ethernet", rate: "25 Gb/sec (1X EDR)",
		fw: "8.59.1.0", mad: true, netdev: "eth%d", gids: 8, pkeys: 1, counters: pmaFull, linkSpeed: "8.0 GT/s PCIe", linkWidth: "8",
		files: map[string]string{"hca_type": "QL45000", "hw_rev": "0x2"},
	}
	d := t.hardware(m, m.with(o, "qedr0", "0000:06:00.0", 1))
	for port := 1; port <= d.Ports; port++ {
		d.Faults = append(d.Faults, Fault{d.File(port, "counters/*"), Rule{Errno: einval}})
	}
	return d
}

// LegacyI40IW adds an X722 with the retired i40iw driver, whose counters/ all read "N/A (no PMA)" (prometheus/node_exporter#966).
func (t *Tree) LegacyI40IW(o Options) Device {
	m := model{
		driver: "i40e", vendor: "0x8086", device: "0x37d2", class: "0x020000", node: "4: RNIC", link: "Ethernet", rate: "10 Gb/sec (4X)",
		fw: "0.2", netdev: "eth%d", gids: 1, pkeys: 1, counters: pmaFull, linkSpeed: "8 GT/s", linkWidth: "8",
		files: map[string]string{"hca_type": "I40IW", "board_id": "I40IW Board ID", "hw_rev": "0"},
	}
	d := t.hardware(m, m.with(o, "i40iw0", "0000:3d:00.0", 1))
	for port := 1; port <= d.Ports; port++ {
		for _, name := range t.List(d.File(port, "counters")) {
			t.File(d.File(port, "counters/"+name), "N/A (no PMA)\n")
		}
	}
	return d
}

// RXE adds a soft-RoCE device: no device link, no driver, a file that names the network device it sits on.
func (t *Tree) RXE(o Options) Device {
	d := t.software(o, "rxe0", "veth%d", rxePort)
	t.File(path.Join(d.Dir, "parent"), d.NetDevs[0]+"\n")
	return d
}

// SIW adds a soft-iWARP device: no counters at all.
func (t *Tree) SIW(o Options) Device {
	d := t.software(o, "siw0", "veth%d", nil)
	t.File(path.Join(d.Dir, "node_type"), "4: RNIC\n")
	return d
}

func (t *Tree) software(o Options, name, netdev string, counters []counter) Device {
	m := model{node: "1: CA", link: "Ethernet", rate: "10 Gb/sec (1X QDR)", netdev: netdev, gids: 4, pkeys: 1, port: counters, mad: counters != nil}
	o = m.with(o, name, "", 1)
	d := t.device(m, o, Device{Name: o.Name, Ports: o.Ports}, "sys/devices/virtual")
	return t.unparent(d)
}

// unparent removes the device link, which software devices do not have.
func (t *Tree) unparent(d Device) Device {
	t.Remove(path.Join(d.Dir, "device"))
	return d
}

// Bond adds the RDMA device of a bond of two ports of a BlueField-3: it reports the rate of one rail (leptonai/gpud fixture). Its network
// device is bond0, on which the two functions' own devices depend.
func (t *Tree) Bond(o Options) Device {
	m := mlx5RoCE()
	m.device, m.rate, m.fw, m.netdev = "0xa2dc", "200 Gb/sec (2X NDR)", "32.38.3056", ""
	m.files = merge(m.files, map[string]string{"hca_type": "MT41692", "board_id": "MT_0000000884"})
	o = m.with(o, "mlx5_bond_0", "0000:a1:00.0", 1)
	d := t.hardware(m, o)
	bond := o.NetDev
	if bond == "" {
		bond = "bond0"
	}
	t.ether("sys/devices/virtual/net/"+bond, o.Ordinal, 1, true)
	for i, function := range []string{o.PCIAddress, otherFunction(o.PCIAddress)} {
		t.slave(m, o, bond, function, i)
	}
	d.NetDevs = []string{bond}
	for slot := range 4 {
		t.File(d.File(1, "gid_attrs/ndevs/"+strconv.Itoa(slot)), bond+"\n")
	}
	return d
}

func (t *Tree) slave(m model, o Options, bond, function string, index int) {
	name := fmt.Sprintf("ens%df%dnp%d", o.Ordinal+1, index, index)
	dir := path.Join("sys/devices", o.Upstream, function)
	if _, ok := t.Real(path.Join(dir, "vendor")); !ok {
		t.function(m, o, dir)
	}
	at := path.Join(dir, "net", name)
	t.ether(at, o.Ordinal+20+index, 1, true)
	t.Symlink(path.Join(at, "device"), "../../../"+function)
	t.link(path.Join(at, "master"), "sys/devices/virtual/net/"+bond)
	t.link(path.Join("sys/devices/virtual/net", bond, "lower_"+name), at)
	t.File(path.Join(at, "bonding_slave/state"), "active\n")
}

// otherFunction turns 0000:a1:00.0 into 0000:a1:00.1.
func otherFunction(address string) string { return address[:len(address)-1] + "1" }

// MultiPlane adds a ConnectX-8 RoCE device with 12 ports of which 3, 6, 9 and 12 carry data and the others are down (scitix/sichek#98).
func (t *Tree) MultiPlane(o Options) Device {
	m := mlx5RoCE()
	m.device, m.rate, m.fw, m.netdev = "0x1023", "200 Gb/sec (2X NDR)", "40.45.1200", ""
	m.files = merge(m.files, map[string]string{"hca_type": "MT4131", "board_id": "MT_0000001222"})
	m.linkSpeed = "64.0 GT/s PCIe"
	d := t.hardware(m, m.with(o, "mlx5_0", "0000:0b:00.0", 12))
	for port := 1; port <= d.Ports; port++ {
		if port%3 != 0 {
			t.Down(d, port)
		}
	}
	return d
}

// Down makes a port of a device look as the kernel shows a RoCE port without carrier. Its network device is not changed.
func (t *Tree) Down(d Device, port int) {
	t.File(d.File(port, "state"), "1: DOWN\n")
	t.File(d.File(port, "phys_state"), "3: Disabled\n")
	t.File(d.File(port, "rate"), "40 Gb/sec (4X QDR)\n")
}

// SMI adds the sub-device through which the planes of a ConnectX-8 XDR port are managed. It shares the PCI function of mlx5_0, has four
// ports and no verbs device (Mellanox/rdmamap#17, openucx/ucx#10507). Which of mlx5's own identity files it has is not known for sure.
func (t *Tree) SMI(o Options) Device {
	m := mlx5()
	m.device, m.rate, m.fw, m.netdev, m.noVerbs, m.port = "0x1023", "200 Gb/sec (1X XDR)", "40.45.1200", "", true, nil
	m.files = map[string]string{"hca_type": "MT4131"}
	o = m.with(o, "smi1", "0000:0b:00.0", 4)
	if dir := path.Join("sys/devices", o.Upstream, o.PCIAddress); t.has(path.Join(dir, "vendor")) {
		return t.device(m, o, Device{Name: o.Name, PCIAddress: o.PCIAddress, Ports: o.Ports, Function: dir}, dir)
	}
	return t.hardware(m, o)
}

// MLX5XDR adds a ConnectX-8 with an InfiniBand XDR port, the companion of [Tree.SMI].
func (t *Tree) MLX5XDR(o Options) Device {
	m := mlx5()
	m.device, m.rate, m.fw, m.linkSpeed = "0x1023", "800 Gb/sec (4X XDR)", "40.45.1200", "64.0 GT/s PCIe"
	m.files = merge(m.files, map[string]string{"hca_type": "MT4131", "board_id": "MT_0000001222"})
	return t.hardware(m, m.with(o, "mlx5_0", "0000:0b:00.0", 1))
}

// Compat adds an InfiniBand device as another network namespace than its own sees it: all but counters/ and hw_counters/
// (k8snetworkplumbingwg/sriov-network-device-plugin#345, nebius/soperator#403).
func (t *Tree) Compat(o Options) Device {
	m := mlx5()
	m.counters, m.port, m.netdev = nil, nil, ""
	return t.hardware(m, m.with(o, "mlx5_0", "0000:19:00.0", 1))
}

func (t *Tree) has(name string) bool {
	_, ok := t.Real(name)
	return ok
}

func merge(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// node8 are the buses of the eight compute NICs of an HGX machine.
var node8 = []int{0x18, 0x3b, 0x4c, 0x5e, 0x9a, 0xbb, 0xca, 0xdb}

// Node8 returns a node with eight InfiniBand HCAs, mlx5_0 to mlx5_7, as an HGX H100 has.
func Node8() *Tree { return NodeN(8) }

// NodeN returns a node with n InfiniBand HCAs, eight to a PCI domain. Their counters are the full set of mlx5.
func NodeN(n int) *Tree {
	t := New()
	for i := range n {
		t.MLX5IB(Options{Name: fmt.Sprintf("mlx5_%d", i), PCIAddress: fmt.Sprintf("%04x:%02x:00.0", i/8, node8[i%8]), Ordinal: i})
	}
	return t
}

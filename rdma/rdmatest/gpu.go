package rdmatest

import (
	"encoding/binary"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// ConfigSpace is what the capabilities of a PCIe function's configuration space say.
type ConfigSpace struct {
	Vendor, Device uint16
	Class          uint32
	PortType       int     // 0 endpoint, 4 root port, 5 upstream port, 6 downstream port
	DevCtl         uint16  // PCIe Device Control: 0x5937 is relaxed ordering on, payload 256, read request 4096
	ACS, ATS       *uint16 // control registers; nil: no such capability
	Size           int     // 4096; 256 without extended configuration space, 64 without CAP_SYS_ADMIN
}

// Bytes returns the file config.
func (c ConfigSpace) Bytes() string {
	b := make([]byte, 4096)
	put16 := func(at int, v uint16) { binary.LittleEndian.PutUint16(b[at:], v) }
	put32 := func(at int, v uint32) { binary.LittleEndian.PutUint32(b[at:], v) }
	put16(0x00, c.Vendor)
	put16(0x02, c.Device)
	put16(0x06, 1<<4) // there is a list of capabilities
	put32(0x08, c.Class<<8)
	b[0x34] = 0x60
	b[0x60], b[0x61] = 0x01, 0x70 // power management, then
	b[0x70], b[0x71] = 0x10, 0x00 // PCI Express
	put16(0x72, uint16(2|c.PortType<<4))
	put16(0x78, c.DevCtl)
	put32(0x100, 0x0001|2<<16|0x148<<20) // AER, then
	last := 0x148
	for _, extended := range []struct {
		id      uint32
		control *uint16
	}{{0x000d, c.ACS}, {0x000f, c.ATS}} {
		if extended.control == nil {
			continue
		}
		put32(last, extended.id|1<<16|uint32(last+0x10)<<20)
		put16(last+6, *extended.control)
		last += 0x10
	}
	put32(last, 0x000b|1<<16) // vendor specific, the last one
	if c.Size == 0 {
		c.Size = len(b)
	}
	return string(b[:c.Size])
}

// PCIFunction describes a PCI function of its own, without an RDMA device.
type PCIFunction struct {
	Path                  string // from sys/devices: "pci0000:15/0000:15:01.0/0000:17:00.0"
	Vendor, Device, Class string // "0x10de"
	Driver                string // "" unbound
	NUMA                  int
	Speed, Width          string // of the link, now and at most: "32.0 GT/s PCIe", "16"; "" means none
	Config                *ConfigSpace
	Group, GroupType      string // iommu_group and its type
	NoAER                 bool
}

// PCI adds a function and returns its directory. Bridges above it that are not there yet become root ports of Intel.
func (t *Tree) PCI(f PCIFunction) string {
	dir := path.Join("sys/devices", f.Path)
	if above := path.Dir(dir); strings.Contains(path.Base(above), ".") {
		t.bridge(above)
	}
	files := map[string]string{
		"vendor": f.Vendor, "device": f.Device, "class": f.Class, "revision": "0xa1", "subsystem_vendor": f.Vendor, "subsystem_device": "0x0001", "irq": "60",
	}
	if f.Speed != "" {
		files["current_link_speed"], files["max_link_speed"], files["current_link_width"], files["max_link_width"] = f.Speed, f.Speed, f.Width, f.Width
	}
	t.pciFiles(dir, files)
	t.NUMA(dir, f.NUMA)
	if !f.NoAER {
		t.QuietAER(dir)
	}
	if f.Driver != "" {
		t.bind(dir, "pci", f.Driver)
	}
	if f.Config != nil {
		t.File(path.Join(dir, "config"), f.Config.Bytes())
	}
	t.Group(dir, f.Group, f.GroupType)
	return dir
}

// NUMA sets the NUMA node of a function, -1 for one that is not known; all processors are local to it then.
func (t *Tree) NUMA(dir string, node int) {
	cpus := map[int]string{-1: "0-111", 0: "0-55", 1: "56-111"}[node]
	t.File(path.Join(dir, "numa_node"), strconv.Itoa(node)+"\n")
	t.File(path.Join(dir, "local_cpulist"), cpus+"\n")
}

// QuietAER gives a function error counters that are all zero.
func (t *Tree) QuietAER(dir string) {
	t.File(path.Join(dir, "aer_dev_correctable"), "RxErr 0\nBadTLP 0\nBadDLLP 0\nRollover 0\nTimeout 0\nNonFatalErr 0\nCorrIntErr 0\nHeaderOF 0\nTOTAL_ERR_COR 0\n")
	t.File(path.Join(dir, "aer_dev_nonfatal"), uncorrectable+"TOTAL_ERR_NONFATAL 0\n")
	t.File(path.Join(dir, "aer_dev_fatal"), uncorrectable+"TOTAL_ERR_FATAL 0\n")
}

// Group puts a function into an IOMMU group of a type (identity, DMA, DMA-FQ); "" is no group.
func (t *Tree) Group(dir, group, kind string) {
	if group == "" {
		return
	}
	at := path.Join("sys/kernel/iommu_groups", group)
	t.link(path.Join(dir, "iommu_group"), at)
	t.link(path.Join(at, "devices", path.Base(dir)), dir)
	if kind != "" {
		t.File(path.Join(at, "type"), kind+"\n")
	}
}

// Bind gives a function another driver; "" unbinds it.
func (t *Tree) Bind(dir, driver string) {
	t.Remove(path.Join(dir, "driver"))
	if driver != "" {
		t.bind(dir, "pci", driver)
	}
}

// Unprivileged cuts all configuration spaces to the 64 bytes that the kernel shows without CAP_SYS_ADMIN.
func (t *Tree) Unprivileged() *Tree {
	for name, n := range t.nodes {
		if path.Base(name) == "config" && n.kind == fileNode {
			n.data = n.data[:min(len(n.data), 64)]
			t.nodes[name] = n
		}
	}
	return t
}

// GPU models: the device ids of their functions.
const (
	H100SXM  = "0x2330"
	A100PCIe = "0x20f1"
	GB200    = "0x2941"
)

// GPUFunction adds a GPU at a path from sys/devices, bound to nvidia, and returns its directory.
func (t *Tree) GPUFunction(at, device string, numa int) string {
	id, _ := strconv.ParseUint(device[2:], 16, 16)
	return t.PCI(PCIFunction{
		Path: at, Vendor: "0x10de", Device: device, Class: "0x030200", Driver: "nvidia", NUMA: numa, Speed: "32.0 GT/s PCIe", Width: "16",
		Config: &ConfigSpace{Vendor: 0x10de, Device: uint16(id), Class: 0x030200, DevCtl: 0x2937},
	})
}

// Bridge adds a PCIe port of a type (see [ConfigSpace.PortType]) at a path from sys/devices and returns its directory. acs is its ACS
// control register; nil gives it no ACS, as an upstream port has none.
func (t *Tree) Bridge(at string, portType, numa int, acs *uint16) string {
	f := PCIFunction{
		Path: at, Vendor: "0x1000", Device: "0xc030", Class: "0x060400", Driver: "pcieport", NUMA: numa, Speed: "32.0 GT/s PCIe", Width: "16",
		Config: &ConfigSpace{Vendor: 0x1000, Device: 0xc030, Class: 0x060400, PortType: portType, DevCtl: 0x0027, ACS: acs},
	}
	if portType == 4 {
		f.Vendor, f.Device, f.Config.Vendor, f.Config.Device = "0x8086", "0x352a", 0x8086, 0x352a
	}
	return t.PCI(f)
}

// Switch adds a switch below a bridge: its upstream port on bus, its n downstream ports on the next. It returns the paths of the
// downstream ports.
func (t *Tree) Switch(above string, bus, n, numa int, acs uint16) []string {
	domain, _, _ := strings.Cut(path.Base(above), ":")
	up := fmt.Sprintf("%s/%s:%02x:00.0", above, domain, bus)
	t.Bridge(up, 5, numa, nil)
	var ports []string
	for i := range n {
		port := fmt.Sprintf("%s/%s:%02x:%02x.0", up, domain, bus+1, i)
		t.Bridge(port, 6, numa, &acs)
		ports = append(ports, port)
	}
	return ports
}

// NIC gives the PCI function of an RDMA device what a function beside GPUs has: configuration space, quiet error counters, a NUMA node.
func (t *Tree) NIC(d Device, numa int) {
	t.NUMA(d.Function, numa)
	t.QuietAER(d.Function)
	vendor, _ := t.Content(path.Join(d.Function, "vendor"))
	device, _ := t.Content(path.Join(d.Function, "device"))
	class, _ := t.Content(path.Join(d.Function, "class"))
	number := func(text string) uint64 {
		n, _ := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(text), "0x"), 16, 32)
		return n
	}
	c := ConfigSpace{Vendor: uint16(number(vendor)), Device: uint16(number(device)), Class: uint32(number(class)), DevCtl: 0x5937}
	t.File(path.Join(d.Function, "config"), c.Bytes())
}

// HGXOptions say how an HGX node is set up. The zero value is one as it should be, on InfiniBand.
type HGXOptions struct {
	RoCE  bool
	ACS   uint16 // control register of the switches' downstream ports; 0x1d is what the kernel sets with an IOMMU
	IOMMU string // type of the IOMMU groups, one per switch: identity, DMA, DMA-FQ; "" is no IOMMU
}

// HGX returns an HGX H100 node: two sockets with two PCIe switches each, below each switch two GPUs and two ConnectX-7 (mlx5_0 to mlx5_7),
// so that each GPU is PIX to two NICs, and a RoCE NIC for storage (mlx5_8) on a root port of socket 1. All functions have full
// configuration spaces and error counters that are zero.
func HGX(o HGXOptions) *Tree {
	t := New()
	if o.IOMMU != "" {
		t.Dir("sys/class/iommu/dmar0")
	}
	for i, root := range []int{0x15, 0x37, 0x97, 0xb7} {
		group := ""
		if o.IOMMU != "" {
			group = strconv.Itoa(20 + i)
		}
		t.hgxSwitch(o, i, root, group)
	}
	storage := t.MLX5RoCE(Options{Name: "mlx5_8", PCIAddress: "0000:e1:00.0", Upstream: "pci0000:e0/0000:e0:01.0", Ordinal: 8})
	t.NIC(storage, 1)
	return t
}

// hgxSwitch adds one switch of an HGX node with its GPUs and NICs.
func (t *Tree) hgxSwitch(o HGXOptions, i, root int, group string) {
	numa := i / 2
	port := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0", root, root)
	t.Bridge(port, 4, numa, &[]uint16{0x1d}[0])
	for j, at := range t.Switch(port, root+1, 4, numa, o.ACS) {
		address := fmt.Sprintf("0000:%02x:00.0", root+3+j)
		if j < 2 {
			t.Group(t.GPUFunction(at+"/"+address, H100SXM, numa), group, o.IOMMU)
			continue
		}
		nic := Options{Name: fmt.Sprintf("mlx5_%d", 2*i+j-2), PCIAddress: address, Upstream: at, Ordinal: 2*i + j - 2}
		add := t.MLX5IB
		if o.RoCE {
			add = t.MLX5RoCE
		}
		d := add(nic)
		t.NIC(d, numa)
		t.Group(d.Function, group, o.IOMMU)
	}
}

// PCIeServer returns a server without PCIe switches: on each of two sockets an A100 PCIe and a ConnectX-7 on root ports of one host bridge
// (PHB), and on socket 0 a second A100 on a host bridge of its own (NODE).
func PCIeServer() *Tree {
	t := New()
	for numa, bus := range []int{0x20, 0xa0} {
		root := fmt.Sprintf("pci0000:%02x", bus)
		for i, acs := range []uint16{0x1d, 0x1d} {
			t.Bridge(fmt.Sprintf("%s/0000:%02x:%02x.0", root, bus, i+1), 4, numa, &acs)
		}
		t.a100(fmt.Sprintf("%s/0000:%02x:01.0/0000:%02x:00.0", root, bus, bus+1), numa)
		t.NIC(t.MLX5IB(Options{
			Name: fmt.Sprintf("mlx5_%d", numa), PCIAddress: fmt.Sprintf("0000:%02x:00.0", bus+2), Upstream: fmt.Sprintf("%s/0000:%02x:02.0", root, bus), Ordinal: numa,
		}), numa)
	}
	t.Bridge("pci0000:40/0000:40:01.0", 4, 0, nil)
	t.a100("pci0000:40/0000:40:01.0/0000:41:00.0", 0)
	return t
}

func (t *Tree) a100(at string, numa int) {
	dir := t.GPUFunction(at, A100PCIe, numa)
	t.File(path.Join(dir, "current_link_speed"), "16.0 GT/s PCIe\n")
	t.File(path.Join(dir, "max_link_speed"), "16.0 GT/s PCIe\n")
}

// GraceNode returns a compute tray of two Grace processors with two GB200 and two ConnectX-7 each, every function below a root port of a
// PCI domain of its own.
func GraceNode() *Tree {
	t := New()
	for i, domains := range [][2]string{{"0008", "0000"}, {"0009", "0002"}, {"0018", "0010"}, {"0019", "0012"}} {
		numa := i / 2
		for _, domain := range domains {
			t.Bridge(fmt.Sprintf("pci%s:00/%s:00:00.0", domain, domain), 4, numa, &[]uint16{0x1d}[0])
		}
		gpu, nic := domains[0], domains[1]
		t.GPUFunction(fmt.Sprintf("pci%s:00/%s:00:00.0/%s:01:00.0", gpu, gpu, gpu), GB200, numa)
		t.NIC(t.MLX5IB(Options{
			Name: fmt.Sprintf("mlx5_%d", i), PCIAddress: nic + ":03:00.0", Upstream: fmt.Sprintf("pci%s:00/%s:00:00.0", nic, nic), Ordinal: i,
		}), numa)
	}
	return t
}

// DataDirectNode returns a node with one GPU, a ConnectX-8 on a root port of another domain, and the ConnectX-8's data-direct function beside
// the GPU below one switch. Its addresses are made up.
func DataDirectNode() *Tree {
	t := New()
	t.Bridge("pci0009:00/0009:00:00.0", 4, 0, &[]uint16{0x1c}[0])
	ports := t.Switch("pci0009:00/0009:00:00.0", 1, 2, 0, 0x15)
	t.GPUFunction(ports[0]+"/0009:06:00.0", "0x31c2", 0)
	t.PCI(PCIFunction{Path: ports[1] + "/0009:03:00.0", Vendor: "0x15b3", Device: "0x2100", Class: "0x080100", Driver: "mlx5_ib",
		Speed: "64.0 GT/s PCIe", Width: "16", Config: &ConfigSpace{Vendor: 0x15b3, Device: 0x2100, Class: 0x080100, DevCtl: 0x5937}})
	t.NIC(t.MLX5XDR(Options{Name: "mlx5_0", PCIAddress: "0000:03:00.0", Upstream: "pci0000:00/0000:00:00.0"}), 0)
	t.SMI(Options{Name: "smi1", PCIAddress: "0000:03:00.0", Upstream: "pci0000:00/0000:00:00.0"})
	return t
}

// FlatVM returns a virtual machine that shows two GPUs and two NICs right below its only host bridge, without a NUMA node.
func FlatVM() *Tree {
	t := New()
	for i := range 2 {
		t.GPUFunction(fmt.Sprintf("pci0000:00/0000:00:%02x.0", 4+i), H100SXM, -1)
		d := t.MLX5VF(Options{Name: fmt.Sprintf("mlx5_%d", i), PCIAddress: fmt.Sprintf("0000:00:%02x.0", 8+i), Upstream: "pci0000:00", Ordinal: i})
		t.guest(d)
	}
	return t
}

// PortVM returns a virtual machine of QEMU with a GPU and a NIC, each below an emulated root port of its own.
func PortVM() *Tree {
	t := New()
	for i := range 2 {
		port := t.Bridge(fmt.Sprintf("pci0000:00/0000:00:02.%d", i), 4, -1, nil)
		t.File(path.Join(port, "vendor"), "0x1b36\n")
		t.File(path.Join(port, "device"), "0x000c\n")
	}
	t.GPUFunction("pci0000:00/0000:00:02.0/0000:01:00.0", H100SXM, -1)
	t.guest(t.MLX5VF(Options{Name: "mlx5_0", PCIAddress: "0000:02:00.0", Upstream: "pci0000:00/0000:00:02.1"}))
	return t
}

// guest makes a virtual function look as its virtual machine sees it.
func (t *Tree) guest(d Device) {
	t.Remove(path.Join(d.Function, "physfn"))
	t.NIC(d, -1)
	for _, name := range t.List(d.Function) {
		if strings.HasPrefix(name, "aer_") {
			t.Remove(path.Join(d.Function, name))
		}
	}
}

// GPUOnly returns a host with two GPUs behind a switch and no RDMA device.
func GPUOnly() *Tree {
	t := New()
	t.Bridge("pci0000:15/0000:15:01.0", 4, 0, &[]uint16{0x1d}[0])
	for i, port := range t.Switch("pci0000:15/0000:15:01.0", 0x16, 2, 0, 0) {
		t.GPUFunction(fmt.Sprintf("%s/0000:%02x:00.0", port, 0x18+i), H100SXM, 0)
	}
	return t
}

package rdmatest

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Options say which device a builder adds. The zero value of a field is the default of that builder.
type Options struct {
	Name       string // of the RDMA device, as udev or the kernel gave it
	PCIAddress string // of the function: "0000:19:00.0"
	Upstream   string // path from the root complex to the function's parent: "pci0000:15/0000:15:01.0"; default from PCIAddress
	Ports      int    // number of ports
	Ordinal    int    // makes values, GUIDs and LIDs of several devices differ
	State      string // "4: ACTIVE"
	PhysState  string // "5: LinkUp"
	Rate       string // "400 Gb/sec (4X NDR)"
	NetDev     string // network device of the first port; "-" means none
	GIDs       int    // slots of the GID table (a RoCE port of mlx5 has 255)
	PKeys      int    // entries of the partition table (an InfiniBand port usually has 128)
	PhysFn     string // PCI address of the physical function, for a VF or a sub-function
	Counters   bool   // bnxt_re: with the counters/ directory of newer drivers
}

// Device says where a builder put things. Paths are relative to the tree's root and run through no link.
type Device struct {
	Name       string
	PCIAddress string   // "" for a software device
	Dir        string   // sys/devices/.../infiniband/mlx5_0
	Function   string   // directory of the PCI function, "" for a software device
	NetDevs    []string // network devices, one per port that has one
	Ports      int
	// Faults are reads that the kernel refuses on this device in good health too, such as gid_attrs of empty slots. A tree on disk
	// cannot show them (the files read as empty there); FaultFS can.
	Faults []Fault
}

// Port returns the directory of a port.
func (d Device) Port(port int) string { return path.Join(d.Dir, "ports", strconv.Itoa(port)) }

// File returns the path of a file of a port, such as counters/link_downed.
func (d Device) File(port int, name string) string { return path.Join(d.Port(port), name) }

// model is what the driver decides: the parts of a device that the builders share are made from it.
type model struct {
	driver                string
	vendor, device, class string
	node                  string // node_type
	link                  string // link_layer
	rate                  string
	fw                    string
	files                 map[string]string // further files of the device: hca_type, board_id, hw_rev, ...
	counters              []counter         // ports/N/counters
	ext                   []counter         // ports/N/counters_ext
	port, dev             []counter         // hw_counters of port and device
	lifespan              string
	noGUID, noVerbs       bool
	mad                   bool   // has umad devices
	netdev                string // format of network device names, "" = none
	gids, pkeys           int
	linkSpeed, linkWidth  string
	vf                    bool
}

// with fills what the caller left open.
func (m model) with(o Options, name, address string, ports int) Options {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&o.Name, name)
	def(&o.PCIAddress, address)
	def(&o.State, "4: ACTIVE")
	def(&o.PhysState, "5: LinkUp")
	def(&o.Rate, m.rate)
	def(&o.Upstream, upstream(o.PCIAddress))
	if o.Ports == 0 {
		o.Ports = ports
	}
	if o.GIDs == 0 {
		o.GIDs = m.gids
	}
	if o.PKeys == 0 {
		o.PKeys = m.pkeys
	}
	return o
}

// upstream invents a root port for a function: bus 19 sits behind 15:01.0.
func upstream(address string) string {
	part := strings.Split(address, ":")
	if len(part) != 3 {
		return ""
	}
	bus, err := strconv.ParseUint(part[1], 16, 8)
	if err != nil {
		return ""
	}
	if bus < 4 {
		return fmt.Sprintf("pci%s:00/%s:00:%02x.0", part[0], part[0], bus+1)
	}
	return fmt.Sprintf("pci%s:%02x/%s:%02x:01.0", part[0], bus-4, part[0], bus-4)
}

// hardware adds a device that sits on a PCI function.
func (t *Tree) hardware(m model, o Options) Device {
	d := Device{Name: o.Name, PCIAddress: o.PCIAddress, Ports: o.Ports}
	d.Function = path.Join("sys/devices", o.Upstream, o.PCIAddress)
	t.function(m, o, d.Function)
	return t.device(m, o, d, d.Function)
}

// device adds the RDMA device itself below its parent, a PCI function or auxiliary device, with its character and network devices.
func (t *Tree) device(m model, o Options, d Device, owner string) Device {
	d.Dir = path.Join(owner, "infiniband", o.Name)
	t.link(path.Join("sys/class/infiniband", o.Name), d.Dir)
	t.link(path.Join(d.Dir, "subsystem"), "sys/class/infiniband")
	t.Symlink(path.Join(d.Dir, "device"), "../../../"+path.Base(owner))
	t.identity(m, o, d.Dir)
	t.hwCounters(path.Join(d.Dir, "hw_counters"), m, m.dev, o.Ordinal, 0)
	if !m.noVerbs {
		t.verbsDevice(owner, o.Name)
	}
	for port := 1; port <= o.Ports; port++ {
		d.Faults = append(d.Faults, t.port(m, o, d, port)...)
		if m.mad {
			t.madDevice(owner, o.Name, port)
		}
		if name := netdevName(m, o, port); name != "" {
			t.netdev(m, o, name, owner, port)
			d.NetDevs = append(d.NetDevs, name)
		}
	}
	return d
}

// identity adds the files of the device level (drivers/infiniband/core/sysfs.c and the driver's own).
func (t *Tree) identity(m model, o Options, dir string) {
	guid := guid(o.Ordinal, 0)
	if m.noGUID {
		guid = "0000:0000:0000:0000"
	}
	t.File(path.Join(dir, "node_type"), m.node+"\n")
	t.File(path.Join(dir, "node_guid"), guid+"\n")
	t.File(path.Join(dir, "sys_image_guid"), guid+"\n")
	t.File(path.Join(dir, "node_desc"), "node01 "+o.Name+"\n")
	t.File(path.Join(dir, "fw_ver"), m.fw+"\n")
	t.File(path.Join(dir, "uevent"), "NAME="+o.Name+"\n")
	for name, content := range m.files {
		t.File(path.Join(dir, name), content+"\n")
	}
}

// guid returns the node GUID (port 0) or the GUID of a port, in the kernel's form.
func guid(ordinal, port int) string {
	return fmt.Sprintf("9c63:c003:00%02x:%04x", ordinal>>8, ordinal&0xff<<8|port)
}

func netdevName(m model, o Options, port int) string {
	if m.netdev == "" || o.NetDev == "-" {
		return ""
	}
	if o.NetDev == "" {
		return fmt.Sprintf(m.netdev, o.Ordinal*o.Ports+port-1)
	}
	if port == 1 {
		return o.NetDev
	}
	return fmt.Sprintf("%s-%d", o.NetDev, port)
}

// port adds one port and returns the reads the kernel refuses there.
func (t *Tree) port(m model, o Options, d Device, port int) []Fault {
	dir := d.Port(port)
	lid := o.Ordinal*8 + port + 16
	smLID := 1
	if m.link != "InfiniBand" {
		lid, smLID = 0, 0
	}
	for name, content := range map[string]string{
		"state": o.State, "phys_state": o.PhysState, "rate": o.Rate, "link_layer": m.link,
		"lid": fmt.Sprintf("0x%x", lid), "sm_lid": fmt.Sprintf("0x%x", smLID), "lid_mask_count": "0", "sm_sl": "0", "cap_mask": "0xa751e848",
	} {
		t.File(path.Join(dir, name), content+"\n")
	}
	t.counters(path.Join(dir, "counters"), m.counters, o.Ordinal, port)
	t.counters(path.Join(dir, "counters_ext"), m.ext, o.Ordinal, port)
	t.hwCounters(path.Join(dir, "hw_counters"), m, m.port, o.Ordinal, port)
	for i := range o.PKeys {
		key := "0x0000"
		if i == 0 {
			key = "0xffff"
		}
		t.File(path.Join(dir, "pkeys", strconv.Itoa(i)), key+"\n")
	}
	return t.gids(m, o, dir, port)
}

func (t *Tree) counters(dir string, set []counter, ordinal, port int) {
	for i, c := range set {
		t.File(path.Join(dir, c.name), strconv.FormatUint(c.value(ordinal, port, i), 10)+"\n")
	}
}

// hwCounters adds a hw_counters directory with its setting lifespan, the milliseconds for which values may come from a cache.
func (t *Tree) hwCounters(dir string, m model, set []counter, ordinal, port int) {
	if len(set) == 0 {
		return
	}
	for i, c := range set {
		t.File(path.Join(dir, c.name), strconv.FormatUint(c.value(ordinal, port, i+40), 10)+"\n")
	}
	lifespan := m.lifespan
	if lifespan == "" {
		lifespan = "10"
	}
	t.File(path.Join(dir, "lifespan"), lifespan+"\n")
}

// zeroGID is what an empty slot reads as.
const zeroGID = "0000:0000:0000:0000:0000:0000:0000:0000"

// gids adds the GID table. Types and network devices of empty slots are refused with EINVAL by the kernel, as are all network devices
// on a port that is not RoCE.
func (t *Tree) gids(m model, o Options, dir string, port int) []Fault {
	var faults []Fault
	for i := range o.GIDs {
		gid, kind, ndev := gidSlot(m, o, port, i)
		t.File(path.Join(dir, "gids", strconv.Itoa(i)), gid+"\n")
		for name, content := range map[string]string{"types": kind, "ndevs": ndev} {
			file := path.Join(dir, "gid_attrs", name, strconv.Itoa(i))
			if content == "" {
				t.File(file, "")
				faults = append(faults, Fault{file, Rule{Errno: einval}})
				continue
			}
			t.File(file, content+"\n")
		}
	}
	return faults
}

// gidSlot returns what a slot holds: on RoCE each address twice, for version 1 and 2; else the port's GID in slot 0.
func gidSlot(m model, o Options, port, slot int) (gid, kind, ndev string) {
	roce := m.link == "Ethernet"
	if slot > 0 && !roce || slot > 3 {
		return zeroGID, "", ""
	}
	gid = "fe80:0000:0000:0000:" + guid(o.Ordinal, port)
	if !roce {
		return gid, "IB/RoCE v1", ""
	}
	if slot >= 2 {
		gid = fmt.Sprintf("0000:0000:0000:0000:0000:ffff:0a%02x:%02x0b", o.Ordinal&0xff, port)
	}
	return gid, []string{"IB/RoCE v1", "RoCE v2"}[slot%2], netdevName(m, o, port)
}

// verbsDevice adds the entry through which a character device /dev/infiniband/uverbsN finds its RDMA device.
func (t *Tree) verbsDevice(owner, name string) {
	t.charDevice("infiniband_verbs", fmt.Sprintf("uverbs%d", t.verbs), owner, map[string]string{
		"ibdev": name, "dev": fmt.Sprintf("231:%d", 192+t.verbs), "abi_version": "1",
	})
	t.File("sys/class/infiniband_verbs/abi_version", "6\n")
	t.verbs++
}

func (t *Tree) madDevice(owner, name string, port int) {
	t.charDevice("infiniband_mad", fmt.Sprintf("umad%d", t.mads), owner, map[string]string{
		"ibdev": name, "port": strconv.Itoa(port), "dev": fmt.Sprintf("231:%d", t.mads),
	})
	t.File("sys/class/infiniband_mad/abi_version", "5\n")
	t.mads++
}

func (t *Tree) charDevice(class, name, owner string, files map[string]string) {
	dir := path.Join(owner, class, name)
	for file, content := range files {
		t.File(path.Join(dir, file), content+"\n")
	}
	t.link(path.Join(dir, "subsystem"), path.Join("sys/class", class))
	if strings.HasPrefix(owner, "sys/devices/virtual") {
		t.link(path.Join("sys/class", class, name), dir)
		return
	}
	t.Symlink(path.Join(dir, "device"), "../../../"+path.Base(owner))
	t.link(path.Join("sys/class", class, name), dir)
}

// netdev adds the network device of a port (net/core/net-sysfs.c): IPoIB or Ethernet.
func (t *Tree) netdev(m model, o Options, name, owner string, port int) {
	dir := path.Join(owner, "net", name)
	t.ether(dir, o.Ordinal, port, strings.HasPrefix(o.State, "4"))
	if m.link != "Ethernet" {
		t.File(path.Join(dir, "type"), "32\n")
		t.File(path.Join(dir, "address"), ipoibAddress(o.Ordinal, port)+"\n")
		t.File(path.Join(dir, "mtu"), "2044\n")
	}
	if !strings.HasPrefix(owner, "sys/devices/virtual") {
		t.Symlink(path.Join(dir, "device"), "../../../"+path.Base(owner))
	}
}

// ether adds an Ethernet device and its entry in the class.
func (t *Tree) ether(dir string, ordinal, port int, up bool) {
	ups := 3 + ordinal*2 + port
	state, carrier, downs := "up", "1", ups-1
	if !up {
		state, carrier, downs = "down", "0", ups
	}
	for name, content := range map[string]string{
		"carrier_changes": strconv.Itoa(ups + downs), "carrier_up_count": strconv.Itoa(ups), "carrier_down_count": strconv.Itoa(downs),
		"carrier": carrier, "operstate": state, "dev_port": strconv.Itoa(port - 1), "dev_id": "0x0", "type": "1", "mtu": "9000",
		"address": fmt.Sprintf("9c:63:c0:%02x:%02x:%02x", ordinal>>8, ordinal&0xff, port), "ifindex": strconv.Itoa(10 + ordinal*12 + port),
		"flags": "0x1003", "uevent": "INTERFACE=" + path.Base(dir),
		"statistics/rx_bytes": strconv.Itoa(5_000_000 + ordinal*1000 + port), "statistics/tx_bytes": strconv.Itoa(6_000_000 + ordinal*1000 + port),
	} {
		t.File(path.Join(dir, name), content+"\n")
	}
	t.link(path.Join("sys/class/net", path.Base(dir)), dir)
	t.link(path.Join(dir, "subsystem"), "sys/class/net")
}

// ipoibAddress is the 20-byte hardware address of an IPoIB device: queue pair number, then the port's GID.
func ipoibAddress(ordinal, port int) string {
	hex := "00001029" + "fe80000000000000" + strings.ReplaceAll(guid(ordinal, port), ":", "")
	var b strings.Builder
	for i := 0; i < len(hex); i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		b.WriteString(hex[i : i+2])
	}
	return b.String()
}

package affinity

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// Vendors, classes and devices that matter here.
const (
	vendorNVIDIA    = 0x10de
	vendorMellanox  = 0x15b3
	classVGA        = 0x0300 // the upper two bytes of class
	class3D         = 0x0302
	classDataDirect = 0x080100
	deviceConnectX8 = 0x1023
)

// Roles of RDMA devices that are made here.
const (
	roleCompute = "compute"
	roleUnused  = "unused"
	roleUnknown = "unknown"
)

// function is a PCI function as far as it never changes.
type function struct {
	address    string
	inode      uint64
	identified bool // what follows is so; false: look again
	class      uint64
	vendor     sysread.Maybe[uint64]
	device     sysread.Maybe[uint64]
	gpu        bool
	dataDirect bool
	driver     string // of a GPU, when the listing was made
}

// build is one making of the listing.
type build struct {
	*Reader
	listing   Listing
	endpoints map[string]*endpoint
	types     map[string]string // of IOMMU groups
	nics      map[string][]*device
	wanted    map[string]Kind // functions to list, by address
	read      []string        // functions to read, the important ones first
}

// fail notes a failure once. What is not there is none.
func (b *build) fail(device, source string, err error) {
	told := slices.ContainsFunc(b.listing.Failed, func(e sysread.ReadError) bool { return e.Device == device && e.Source == source })
	if !told && !errors.Is(err, fs.ErrNotExist) {
		b.listing.Failed = append(b.listing.Failed, sysread.ReadError{Device: device, Source: source, Err: err})
	}
}

// failFile is fail for a function's file. A function that is going away is none.
func (b *build) failFile(f *function, name string, err error) {
	if !vanished(&b.io, b.path(f, name), err) {
		b.fail(f.address, name, err)
	}
}

// link returns the last element of the target of a function's link, "" without
// the link; known is false if that could not be found out.
func (b *build) link(f *function, name string) (base string, known bool) {
	target, err := b.io.Readlink(b.path(f, name))
	switch {
	case err == nil:
		return filepath.Base(target), true
	case sysread.Absent(err):
		return "", true
	}
	b.failFile(f, name, err)
	return "", false
}

// text reads a file of a function, "" if there is none.
func (b *build) text(f *function, name string) string {
	text, err := readText(&b.io, b.path(f, name))
	if err != nil {
		b.failFile(f, name, err)
		return ""
	}
	return text
}

// number reads a file of a function such as vendor.
func (b *build) number(f *function, name string) sysread.Maybe[uint64] {
	value, err := hexFile(&b.io, b.path(f, name))
	if err != nil {
		b.failFile(f, name, err)
		return sysread.Maybe[uint64]{}
	}
	return sysread.Some(value)
}

// ids reads what a function is, once.
func (b *build) ids(f *function) {
	if !f.vendor.Known {
		f.vendor = b.number(f, "vendor")
	}
	if !f.device.Known {
		f.device = b.number(f, "device")
	}
}

// identify finds the functions that matter among all.
func (b *build) identify() {
	functions := make(map[string]*function, len(b.pci.Entries()))
	for _, e := range b.pci.Entries() {
		if !addressPattern.MatchString(e.Name) {
			continue
		}
		f := b.functions[e.Name]
		if f == nil || f.inode != e.Inode {
			f = &function{address: e.Name, inode: e.Inode}
		}
		functions[e.Name] = f
		if !f.identified {
			b.classify(f)
		}
	}
	b.functions = functions
}

// classify decides whether a function is a GPU. One whose class or vendor cannot
// be read is if the driver says so.
func (b *build) classify(f *function) {
	if b.options.IncludeGPU != nil && !b.options.IncludeGPU(f.address) {
		f.identified = true
		return
	}
	class, err := hexFile(&b.io, b.path(f, "class"))
	switch {
	case sysread.Absent(err):
		f.identified = true
		return
	case err != nil:
		b.failFile(f, "class", err)
		driver, _ := b.link(f, "driver")
		f.gpu = driver == driverNVIDIA
		return
	}
	f.class, f.identified, f.gpu = class, true, false
	display := class>>8 == classVGA || class>>8 == class3D
	if !display && class != classDataDirect && len(b.standIns) == 0 {
		return
	}
	b.ids(f)
	f.identified = f.vendor.Known
	f.dataDirect = class == classDataDirect && f.vendor.Value == vendorMellanox
	nvidia := f.vendor.Value == vendorNVIDIA
	if !f.vendor.Known {
		driver, _ := b.link(f, "driver")
		nvidia = driver == driverNVIDIA
	}
	f.gpu = display && nvidia || b.standIns[fmt.Sprintf("%04x:%04x", f.vendor.Value, f.device.Value)]
	if f.gpu {
		physical, _ := b.link(f, "physfn")
		f.gpu = physical == "" // else a slice of a GPU for a virtual machine (vGPU)
	}
}

// endpoint returns where a function is; nil if it has gone.
func (b *build) endpoint(address string) *endpoint {
	if e, found := b.endpoints[address]; found {
		return e
	}
	if b.endpoints == nil {
		b.endpoints = map[string]*endpoint{}
	}
	e := b.locate(address)
	b.endpoints[address] = e
	return e
}

func (b *build) locate(address string) *endpoint {
	f := b.functions[address]
	if f == nil {
		return nil
	}
	b.io.Request()
	path, err := followLink(&b.io, b.options.Sysfs, "bus/pci/devices/"+address)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			b.leave(f)
		}
		b.fail(address, "bus/pci/devices", err)
		return nil
	}
	p, ok := parsePlace(path)
	if !ok || p.address != address {
		return nil
	}
	e := &endpoint{place: p, hidden: len(p.bridges) == 0}
	for _, bridge := range p.bridges {
		if above := b.functions[bridge]; above != nil && len(b.standIns) == 0 {
			b.ids(above)
			e.hidden = e.hidden || emulatedVendors[above.vendor.Value]
		}
	}
	text, err := readText(&b.io, b.path(f, "numa_node"))
	if err != nil {
		if b.leaves(f, err) {
			return nil
		}
		b.failFile(f, "numa_node", err)
		return e
	}
	node, err := strconv.Atoi(text)
	switch {
	case err != nil:
		b.fail(address, "numa_node", sysread.Invalid(text))
	case node >= 0:
		e.numa = sysread.Some(node)
	}
	return e
}

// leave forgets a function that has gone since the scan.
func (b *build) leave(f *function) {
	b.stale = true
	delete(b.functions, f.address)
}

// leaves forgets a function if err, of its file numa_node, comes of its being
// removed. The kernel takes the files away one by one, class before this one,
// and the name in bus/pci/devices last. Kernels without NUMA have no such file.
func (b *build) leaves(f *function, err error) bool {
	switch {
	case sysread.Absent(err) && vanished(&b.io, b.path(f, "class"), err),
		errors.Is(err, syscall.ENODEV) && vanished(&b.io, b.path(f, "numa_node"), err):
		b.leave(f)
		return true
	}
	return false
}

// missing reports whether a function is not there, or has gone since the scan.
func (b *build) missing(address string) bool {
	b.endpoint(address)
	return b.functions[address] == nil
}

// findGPUs lists the GPUs and notes their drivers, and the data-direct functions.
func (b *build) findGPUs() {
	b.wanted = map[string]Kind{}
	b.gpus = nil
	for _, address := range slices.Sorted(maps.Keys(b.functions)) {
		f := b.functions[address]
		if !f.dataDirect && !f.gpu {
			continue
		}
		// The driver first: of a function that is still there after it, an absent
		// link means unbound and not removed.
		driver, known := b.link(f, "driver")
		if b.missing(address) {
			continue
		}
		switch {
		case f.dataDirect:
			b.listing.DataDirect = append(b.listing.DataDirect, address)
			b.wanted[address] = KindDataDirect
		case f.gpu:
			f.driver = driver
			b.gpus = append(b.gpus, f)
			b.wanted[address] = KindGPU
			bound := b.bound[address]
			if f.driver == driverNVIDIA {
				bound = history{had: true, last: true, at: b.options.Now()}
			} else if known && b.options.Now().Sub(bound.at) >= unboundFor {
				bound.last = false
			}
			b.bound[address] = bound
		}
	}
	b.nics = map[string][]*device{}
	for _, d := range b.devices {
		if b.missing(d.function) {
			d.function = ""
		} else {
			b.nics[d.function] = append(b.nics[d.function], d)
			if b.wanted[d.function] == "" {
				b.wanted[d.function] = KindNIC
			}
		}
	}
}

// pair makes all pairs, and from them the roles of the devices.
func (b *build) pair() {
	b.listing.Roles = map[string]string{}
	for _, d := range b.devices {
		b.listing.Roles[d.name] = cmp.Or(d.role, roleUnknown)
	}
	for _, gpu := range b.gpus {
		from := len(b.listing.Pairs)
		for _, d := range b.devices {
			b.listing.Pairs = append(b.listing.Pairs, b.pairOf(gpu.address, d))
		}
		b.nearest(b.listing.Pairs[from:])
	}
}

func (b *build) pairOf(gpu string, d *device) Pair {
	pair := Pair{GPU: gpu, Device: d.name, NIC: d.function}
	from, to := b.endpoint(gpu), b.endpoint(d.function)
	if from == nil || to == nil {
		return pair
	}
	way := between(from, to)
	pair.Hidden = from.hidden || to.hidden
	pair.Distance, pair.Common, pair.GPUSide, pair.NICSide = way.distance, way.common, way.gpuSide, way.nicSide
	return pair
}

// nearest marks the nearest of one GPU's pairs. A device that has another role
// by the command line is not compared.
func (b *build) nearest(pairs []Pair) {
	least := Unknown
	eligible := func(p *Pair) bool {
		role := b.listing.Roles[p.Device]
		return p.Distance != Unknown && (role == roleUnknown || role == roleCompute)
	}
	for i := range pairs {
		if p := &pairs[i]; eligible(p) && (least == Unknown || p.Distance < least) {
			least = p.Distance
		}
	}
	for i := range pairs {
		if p := &pairs[i]; eligible(p) && p.Distance == least {
			p.Nearest = true
			b.listing.Roles[p.Device] = roleCompute
		}
	}
}

// choose decides which functions are read: GPUs, the NICs that matter to them,
// data-direct functions, and the bridges between and right above them.
func (b *build) choose() {
	for _, gpu := range b.gpus {
		b.read = append(b.read, gpu.address)
	}
	for _, address := range slices.Sorted(maps.Keys(b.nics)) {
		if b.reads(address) {
			b.read = append(b.read, address)
		}
	}
	b.read = append(b.read, b.listing.DataDirect...)
	ends := len(b.read)
	for _, address := range b.read[:ends] {
		if e := b.endpoint(address); e != nil {
			b.bridge(e.upstream())
		}
	}
	for i := range b.listing.Pairs {
		if pair := &b.listing.Pairs[i]; pair.Nearest {
			b.bridge(pair.Common)
			b.bridge(pair.GPUSide...)
			b.bridge(pair.NICSide...)
		}
	}
	b.bridgesToDataDirect()
	for _, address := range slices.Sorted(maps.Keys(b.wanted)) {
		b.listing.Functions = append(b.listing.Functions, b.node(address))
	}
}

// reads reports whether a NIC is read: the compute NICs of a host whose tree
// shows which they are, else all that are not put aside. A virtual function
// whose physical one is a NIC here shares that one's link and errors.
func (b *build) reads(address string) bool {
	if physical, _ := b.link(b.functions[address], "physfn"); b.nics[physical] != nil {
		return false
	}
	role := b.roleOf(address)
	if slices.ContainsFunc(b.listing.Pairs, func(p Pair) bool { return p.Nearest }) || len(b.gpus) > 0 && role != roleUnknown {
		return role == roleCompute
	}
	return role != roleUnused
}

// roleOf returns the role of a NIC.
func (b *build) roleOf(address string) string {
	role := roleUnknown
	for _, d := range b.nics[address] {
		switch of := b.listing.Roles[d.name]; {
		case of == roleCompute:
			return of
		case role == roleUnknown:
			role = of
		}
	}
	return role
}

func (b *build) bridge(addresses ...string) {
	for _, address := range addresses {
		if b.functions[address] != nil && b.wanted[address] == "" {
			b.wanted[address] = KindBridge
			b.read = append(b.read, address)
		}
	}
}

// bridgesToDataDirect adds the bridges between a GPU and a data-direct function
// below the same root port.
func (b *build) bridgesToDataDirect() {
	for _, address := range b.listing.DataDirect {
		for _, gpu := range b.gpus {
			from, to := b.endpoint(gpu.address), b.endpoint(address)
			if from == nil || to == nil {
				continue
			}
			if way := between(from, to); way.common != "" {
				b.bridge(way.common)
				b.bridge(way.gpuSide...)
				b.bridge(way.nicSide...)
			}
		}
	}
}

// node describes a function.
func (b *build) node(address string) Node {
	f := b.functions[address]
	b.ids(f)
	n := Node{Address: address, Kind: b.wanted[address], Vendor: f.vendor.Value, Device: f.device.Value, Class: f.class}
	driver, known := b.link(f, "driver")
	n.Driver, n.DriverUnknown = driver, !known
	n.HadNVIDIA = b.bound[address].had
	if f.identified && f.class == 0 { // IncludeGPU kept us from looking
		n.Class = b.number(f, "class").Value
	}
	if e := b.endpoint(address); e != nil {
		n.NUMANode, n.Upstream, n.HostBridge = e.numa, e.upstream(), e.hostBridge
	}
	if n.NUMANode.Known {
		n.LocalCPUs = b.cpus(f)
	}
	n.PhysicalFunction, _ = b.link(f, "physfn")
	n.IOMMUGroup, known = b.link(f, "iommu_group")
	n.IOMMUUnknown = !known
	if n.IOMMUGroup != "" {
		n.IOMMUType = b.groupType(n.IOMMUGroup)
	}
	if n.Kind == KindNIC {
		for _, d := range b.nics[address] {
			n.RDMA = append(n.RDMA, d.name)
		}
		n.Role = b.roleOf(address)
		n.DataDirect = len(b.listing.DataDirect) > 0 && n.Vendor == vendorMellanox && n.Device == deviceConnectX8
	}
	return n
}

// cpuListPattern matches a list of CPUs such as 0-55,112-167. A node without CPUs
// has an empty one.
var cpuListPattern = regexp.MustCompile(`^([0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*)?$`)

// cpus reads the CPUs near a function.
func (b *build) cpus(f *function) string {
	const name = "local_cpulist"
	text := b.text(f, name)
	if !cpuListPattern.MatchString(text) {
		b.fail(f.address, name, sysread.Invalid(text))
		return ""
	}
	return text
}

// groupTypePattern matches the words for an IOMMU domain: identity, DMA-FQ.
var groupTypePattern = regexp.MustCompile(`^[A-Za-z][A-Za-z-]{0,31}$`)

// groupType reads an IOMMU group's type, which kernels have since 5.11.
func (b *build) groupType(group string) string {
	if kind, found := b.types[group]; found {
		return kind
	}
	if b.types == nil {
		b.types = map[string]string{}
	}
	kind, err := readText(&b.io, b.options.Sysfs+"/kernel/iommu_groups/"+group+"/type")
	if err == nil && !groupTypePattern.MatchString(kind) {
		err = sysread.Invalid(kind)
	}
	if err != nil {
		b.fail("", "iommu_groups/type", err)
		kind = ""
	}
	b.types[group] = kind
	return kind
}

// iommuUnits lists the IOMMUs. Without the class there is none.
func (b *build) iommuUnits() sysread.Maybe[[]string] {
	names, err := sysread.ReadNames(&b.io, b.options.Sysfs+"/class/iommu")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.fail("", "class/iommu", err)
		return sysread.Maybe[[]string]{}
	}
	return sysread.Some(names)
}

// readersOf returns the readers of the chosen functions, by address.
func (b *build) readersOf() []*FunctionReader {
	readers := make(map[string]*FunctionReader, len(b.read))
	units := make([]*FunctionReader, 0, len(b.read))
	b.read = b.read[:min(len(b.read), maxFunctions)]
	slices.Sort(b.read)
	for i := range b.listing.Functions {
		node := &b.listing.Functions[i]
		e := b.endpoint(node.Address)
		if _, read := slices.BinarySearch(b.read, node.Address); !read || e == nil {
			continue
		}
		inode := b.functions[node.Address].inode
		reader := b.readers[node.Address]
		if reader == nil || reader.inode != inode {
			reader = newFunctionReader(b.Reader, node, e, inode)
		}
		reader.node.Store(node)
		readers[node.Address] = reader
		units = append(units, reader)
	}
	b.readers = readers
	return units
}

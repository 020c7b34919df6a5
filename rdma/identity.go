package rdma

import (
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/Mellanox/rdmamap"

	"gdr_exporter/collector/sysread"
)

// pciName matches a PCI function's directory: domain (4 digits or more, Intel
// VMD has 5), bus, device, function.
var pciName = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// softRoCE is the driver name given to devices that have no parent device but
// the attribute "parent", which only rdma_rxe has: it names the netdev.
const softRoCE = "rdma_rxe"

// countingDrivers always offer a counter directory on a device seen in its own
// network namespace.
var countingDrivers = map[string]bool{
	"mlx5_core": true, "mlx5_core.sf": true, "mlx4_core": true, "bnxt_en": true, "irdma": true, "ice": true,
	"efa": true, "hfi1": true, "qib": true, "mana": true, "erdma": true, softRoCE: true,
}

// readIdentity reads what a device says of itself. None of these files costs a
// firmware command.
func readIdentity(r *pass, sysfs, dir, name string) Identity {
	r.port = ""
	id := Identity{
		Name:     name,
		Firmware: r.text(dir, "fw_ver"),
		Board:    r.text(dir, "board_id"),
		HCAType:  r.text(dir, "hca_type"),
		NodeGUID: readGUID(r, dir, "node_guid"), SysImageGUID: readGUID(r, dir, "sys_image_guid"),
	}
	if _, text, found := strings.Cut(r.text(dir, "node_type"), ":"); found {
		id.NodeType = strings.TrimSpace(text)
	}
	if parent, err := underSysfs(r.io, sysfs, dir+"/device"); err == nil {
		id.fromParent(r, parent)
	} else if id.virtualNetdev = r.text(dir, "parent"); id.virtualNetdev != "" {
		id.Driver = softRoCE
	}
	id.CharDevices = charDevices(r.io, sysfs, id.parentPath, name)
	id.Uverbs = uverbs(id.CharDevices)
	id.Parent = planeParent(r, sysfs, &id)
	return id
}

func readGUID(r *pass, dir, name string) string {
	text := r.text(dir, name)
	if text == "" {
		return ""
	}
	guid, err := parseGUID(text)
	if err != nil {
		r.fail(name, err)
	}
	return guid
}

// fromParent takes what the device's parent in the device tree says: the PCI
// function itself, or an auxiliary device (sub-function) below one.
func (id *Identity) fromParent(r *pass, parent string) {
	id.parentPath = parent
	id.Driver = r.io.LinkBase(parent + "/driver")
	pci := pciAncestor(parent)
	id.PCIAddress = filepath.Base(pci)
	if pci == "" {
		id.PCIAddress = ""
		return
	}
	id.Function = FunctionPhysical
	switch {
	case exists(r.io, pci+"/physfn"):
		id.Function = FunctionVirtual
	case pci != parent && exists(r.io, parent+"/sfnum"):
		id.Function = FunctionSub
		id.SubFunction = r.text(parent, "sfnum")
	}
}

// pciAncestor returns the path of the nearest PCI function at or above path, or "".
func pciAncestor(path string) string {
	for ; len(path) > 1; path = filepath.Dir(path) {
		if pciName.MatchString(filepath.Base(path)) {
			return path
		}
	}
	return ""
}

func exists(io *sysread.IO, path string) bool {
	_, err := io.Lstat(path)
	return err == nil
}

// charDevices returns the names of the device's nodes in /dev/infiniband, from
// rdmamap. rdmamap looks for them in package variables that hold directories;
// they are pointed at the device's own parent where it has one, so that no
// other device's files are opened, and at the class otherwise. rdmamap knows the
// running system alone; of other files they are read here.
func charDevices(io *sysread.IO, sysfs, parent, name string) []string {
	base := sysfs + "/class"
	if parent != "" {
		base = parent
	}
	if io.Files != nil {
		return charDevicesOf(io, base, name)
	}
	rdmamapLock.Lock()
	defer rdmamapLock.Unlock()
	rdmamap.RdmaUverbsDir = base + "/infiniband_verbs"
	rdmamap.RdmaUmadDir = base + "/infiniband_mad"
	rdmamap.RdmaIbUcmDir = base + "/infiniband_cm"
	rdmamap.RdmaUcmDevice = "" // /dev/infiniband/rdma_cm is the host's, not a device's
	var names []string
	for _, path := range rdmamap.GetRdmaCharDevices(name) {
		names = append(names, filepath.Base(path))
	}
	slices.Sort(names)
	return names
}

// charDeviceClasses are the classes of character devices, and what begins the
// names of their nodes.
var charDeviceClasses = []struct {
	class    string
	prefixes []string
}{
	{"infiniband_cm", []string{rdmamap.RdmaUcmFilePrefix}},
	{"infiniband_mad", []string{rdmamap.RdmaIssmFilePrefix, rdmamap.RdmaUmadFilxPrefix}},
	{"infiniband_verbs", []string{rdmamap.RdmaUverbsFilxPrefix}},
}

// charDevicesOf finds what rdmamap.GetRdmaCharDevices does.
func charDevicesOf(io *sysread.IO, base, name string) []string {
	var found []string
	for _, c := range charDeviceClasses {
		nodes, err := sysread.ReadNames(io, base+"/"+c.class)
		if err != nil {
			continue
		}
		for _, node := range nodes {
			if !slices.ContainsFunc(c.prefixes, func(prefix string) bool { return strings.Contains(node, prefix) }) {
				continue
			}
			if owner, err := sysread.ReadOnce(io, base+"/"+c.class+"/"+node+"/ibdev"); err == nil && owner == name {
				found = append(found, node)
			}
		}
	}
	slices.Sort(found)
	return found
}

func uverbs(charDevices []string) string {
	for _, name := range charDevices {
		if strings.HasPrefix(name, rdmamap.RdmaUverbsFilxPrefix) {
			return name
		}
	}
	return ""
}

// planeParent returns the device that this one is a plane of, or "". The kernel
// registers the planes of a multi-plane port as devices of their own ("smi1")
// below the same PCI function and gives them no uverbs node, while their parent
// has one (ib_uverbs refuses RDMA_DEVICE_TYPE_SMI).
func planeParent(r *pass, sysfs string, id *Identity) string {
	if id.parentPath == "" || id.Uverbs != "" {
		return ""
	}
	siblings, err := sysread.ReadNames(r.io, id.parentPath+"/infiniband")
	if err != nil {
		if !sysread.Absent(err) {
			r.fail("device/infiniband", err)
		}
		return ""
	}
	for _, sibling := range siblings {
		if sibling != id.Name && uverbs(charDevices(r.io, sysfs, id.parentPath, sibling)) != "" {
			return sibling
		}
	}
	return ""
}

// errNoPorts says that a device lists no port at all.
var errNoPorts = errors.New("no ports")

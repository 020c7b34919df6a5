package rdma

import (
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

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
	id.NodeType, _ = formed(r, dir, "node_type", parseNodeType)
	if parent, err := parentPath(r.io, sysfs, dir+"/device"); err == nil {
		id.fromParent(r, parent)
	} else if !sysread.Absent(err) {
		r.fail("device", err)
	} else if id.virtualNetdev = r.text(dir, "parent"); id.virtualNetdev != "" {
		id.Driver = softRoCE
	}
	nodes := charNodes(r, sysfs, id.parentPath)
	id.CharDevices = nodes.of(name)
	id.Uverbs = uverbs(id.CharDevices)
	id.Parent = planeParent(r, &id, &nodes)
	return id
}

// parentPath returns where the link from a device to its parent leads. What
// cannot be read of the link is an error, not a path that the link is part of;
// in a copy of the tree it may be a directory.
func parentPath(io *sysread.IO, sysfs, link string) (string, error) {
	if _, err := io.Readlink(link); err != nil {
		info, statErr := io.Lstat(link)
		if !errors.Is(err, syscall.EINVAL) || statErr == nil && info.Kind == sysread.KindLink {
			return "", err
		}
		if statErr == nil && info.Kind != sysread.KindDir {
			return "", sysread.Invalid("neither a link nor a directory")
		}
	}
	return underSysfs(io, sysfs, link)
}

func readGUID(r *pass, dir, name string) string {
	guid, _ := formed(r, dir, name, parseGUID)
	return guid
}

// fromParent takes what the device's parent in the device tree says: the PCI
// function itself, or an auxiliary device (sub-function) below one.
func (id *Identity) fromParent(r *pass, parent string) {
	id.parentPath = parent
	id.Driver = r.linkBase(parent+"/driver", "device/driver")
	pci := pciAncestor(parent)
	id.PCIAddress = filepath.Base(pci)
	if pci == "" {
		id.PCIAddress = ""
		return
	}
	id.Function = FunctionPhysical
	switch {
	case r.exists(pci+"/physfn", "device/physfn"):
		id.Function = FunctionVirtual
	case pci != parent && r.exists(parent+"/sfnum", "device/sfnum"):
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

// charDeviceClasses are the classes of character devices, and what is in the
// names of their nodes.
var charDeviceClasses = []struct {
	class    string
	prefixes []string
}{
	{"infiniband_cm", []string{rdmamap.RdmaUcmFilePrefix}},
	{"infiniband_mad", []string{rdmamap.RdmaIssmFilePrefix, rdmamap.RdmaUmadFilxPrefix}},
	{classVerbs, []string{rdmamap.RdmaUverbsFilxPrefix}},
}

const classVerbs = "infiniband_verbs"

// charNodeSet are nodes in /dev/infiniband and the devices that they are of.
type charNodeSet struct {
	owners map[string]string // device name by node
	// unsure: some uverbs node may be anybody's, for it could not be read.
	unsure bool
}

// of returns the nodes of a device in the order of their names, nil for none.
func (s *charNodeSet) of(device string) []string {
	var nodes []string
	for node, owner := range s.owners {
		if owner == device {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// charNodes finds the nodes below a device's own parent, so that no other
// device's files are opened; without a parent, those in the class that have none
// either.
//
// rdmamap.GetRdmaCharDevices finds the same, but with os.File, which waits for
// ever on a driver that answers EAGAIN, and below directories in package
// variables, so that one device which hangs would hold all others.
func charNodes(r *pass, sysfs, parent string) charNodeSet {
	set := charNodeSet{owners: map[string]string{}}
	base := sysfs + "/class"
	if parent != "" {
		base = parent
	}
	for _, c := range charDeviceClasses {
		dir := base + "/" + c.class
		nodes, err := sysread.ReadNames(r.io, dir)
		if err != nil {
			set.missed(r, c.class, c.class, err)
			continue
		}
		for _, node := range nodes {
			isNode := slices.ContainsFunc(c.prefixes, func(prefix string) bool { return strings.Contains(node, prefix) })
			if !isNode || parent == "" && hasFunction(r.io, dir+"/"+node) {
				continue
			}
			owner, err := sysread.ReadOnce(r.io, dir+"/"+node+"/ibdev")
			if err == nil && owner == "" {
				err = sysread.Invalid(owner)
			}
			if err != nil {
				set.missed(r, c.class, c.class+"/ibdev", err)
				continue
			}
			set.owners[node] = owner
		}
	}
	return set
}

// missed notes that nodes could not be read. Without the class there are none.
func (s *charNodeSet) missed(r *pass, class, source string, err error) {
	if sysread.Absent(err) {
		return
	}
	r.fail(source, err)
	s.unsure = s.unsure || class == classVerbs
}

// hasFunction reports whether a node's link leads below a PCI function, whose
// device then is none without a parent.
func hasFunction(io *sysread.IO, link string) bool {
	target, err := io.Readlink(link)
	return err == nil && pciAncestor(filepath.Dir(filepath.Join("/", target))) != ""
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
//
// One of which that cannot be read is no plane: it would lose all it counts.
func planeParent(r *pass, id *Identity, nodes *charNodeSet) string {
	if id.parentPath == "" || id.Uverbs != "" || nodes.unsure {
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
		if sibling != id.Name && uverbs(nodes.of(sibling)) != "" {
			return sibling
		}
	}
	return ""
}

// errNoPorts says that a device lists no port at all.
var errNoPorts = errors.New("no ports")

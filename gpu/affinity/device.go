package affinity

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// device is an RDMA device.
type device struct {
	name     string
	parent   string // directory of what owns it, relative to sysfs; "" for a software device
	function string // address of the PCI function that owns it, "" without one
	role     string // by the command line
}

// findDevices lists the included RDMA devices by name, without the planes.
func (b *build) findDevices() {
	b.devices = nil
	for _, e := range b.class.Entries() {
		if b.options.IncludeRDMA != nil && !b.options.IncludeRDMA(e.Name) {
			continue
		}
		if d := b.device(e.Name); d != nil && !b.plane(d) {
			b.devices = append(b.devices, d)
		}
	}
	slices.SortFunc(b.devices, func(x, y *device) int { return strings.Compare(x.name, y.name) })
}

// device finds what owns an RDMA device; nil if it has gone. Where the class
// holds links, the link's target says it, and nothing of the device is opened.
func (b *build) device(name string) *device {
	d := &device{name: name}
	if b.options.Role != nil {
		d.role = b.options.Role(name)
	}
	link := "class/infiniband/" + name
	b.io.Request()
	path, err := followLink(&b.io, b.options.Sysfs, link)
	switch {
	case err == nil:
		d.parent = filepath.Dir(filepath.Dir(path))
	case errors.Is(err, syscall.EINVAL) && !b.isLink(link):
		if info, err := b.io.Stat(b.options.Sysfs + "/" + link); err != nil || info.Kind != sysread.KindDir {
			return nil
		}
		// A directory, as in a copy of the tree.
		if d.parent, err = b.resolve(link + "/device"); err != nil {
			b.fail(name, "device", err)
		}
	default:
		b.fail(name, "class/infiniband", err)
		return nil
	}
	if p, ok := parsePlace(d.parent); ok {
		d.function = p.address
		return d
	}
	d.parent = ""
	d.function = b.ofNetdev(b.parentNetdev(name))
	return d
}

// isLink reports whether a path below sysfs is a link, be it one that cannot be
// read.
func (b *build) isLink(path string) bool {
	info, err := b.io.Lstat(b.options.Sysfs + "/" + path)
	return err == nil && info.Kind == sysread.KindLink
}

// resolve follows all links of a path below sysfs.
func (b *build) resolve(path string) (string, error) {
	root, err := b.io.EvalSymlinks(b.options.Sysfs)
	if err != nil {
		return "", err
	}
	if path, err = b.io.EvalSymlinks(filepath.Join(b.options.Sysfs, path)); err != nil {
		return "", err
	}
	if path, err = filepath.Rel(root, path); err != nil || !filepath.IsLocal(path) {
		return "", syscall.ENOENT
	}
	return path, nil
}

// parentNetdev returns the netdev that a software device sits on, "" if it has
// none. Only rdma_rxe tells, in the file parent.
func (b *build) parentNetdev(name string) string {
	netdev, err := readText(&b.io, b.options.Sysfs+"/class/infiniband/"+name+"/parent")
	if err != nil {
		b.fail(name, "parent", err)
		return ""
	}
	if netdev != filepath.Base(netdev) || !filepath.IsLocal(netdev) {
		return ""
	}
	return netdev
}

// ofNetdev returns the address of the PCI function of a netdev, "" without one.
// A VLAN or macvlan has that of the netdev below it; a bond has several and is
// not guessed at.
func (b *build) ofNetdev(netdev string) string {
	if address := b.netdevFunction(netdev); address != "" || netdev == "" {
		return address
	}
	names, err := sysread.ReadNames(&b.io, b.options.Sysfs+"/class/net/"+netdev)
	if err != nil {
		b.fail("", "class/net", err) // unless of another network namespace, or gone
		return ""
	}
	var lower []string
	for _, name := range names {
		if below, found := strings.CutPrefix(name, "lower_"); found {
			lower = append(lower, below)
		}
	}
	if len(lower) != 1 || slices.Contains(names, "bonding") || slices.Contains(names, "bridge") {
		return ""
	}
	return b.netdevFunction(lower[0])
}

func (b *build) netdevFunction(netdev string) string {
	if netdev == "" {
		return ""
	}
	b.io.Request()
	path, err := followLink(&b.io, b.options.Sysfs, "class/net/"+netdev)
	if err != nil {
		b.fail("", "class/net", err)
		return ""
	}
	p, _ := parsePlace(path)
	return p.address
}

// plane reports whether a device is a plane of another. The kernel registers the
// planes of a multi-plane port as devices of their own ("smi1") below the same
// parent, and gives a uverbs node to the other alone.
func (b *build) plane(d *device) bool {
	if d.parent == "" {
		return false
	}
	dir := b.options.Sysfs + "/" + d.parent + "/infiniband_verbs"
	nodes, err := sysread.ReadNames(&b.io, dir)
	if err != nil || len(nodes) == 0 {
		return false // ib_uverbs is not loaded, or not done with the device; package rdma counts errors
	}
	for _, node := range nodes {
		owner, err := readText(&b.io, dir+"/"+node+"/ibdev")
		if err != nil || owner == d.name {
			return false
		}
	}
	return true
}

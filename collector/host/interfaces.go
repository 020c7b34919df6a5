package host

import (
	"maps"
	"slices"
	"strconv"

	"gdr_exporter/collector/sysread"
)

// maxInterfaces bounds the interfaces of a Reading.
const maxInterfaces = 512

// interfaces are the network interfaces of RDMA ports: those of the same PCI
// function, which IPoIB's are too, the one that a port's first GID is of, as with
// bonds, and the one that a soft-RoCE device was made on.
func (p *pass) interfaces() sysread.Maybe[[]Interface] {
	unknown := sysread.Maybe[[]Interface]{}
	class := p.options.Sysfs + "/class/infiniband"
	devices, err := sysread.ReadNames(&p.io, class)
	switch {
	case sysread.Absent(err):
		return sysread.Some([]Interface(nil))
	case err != nil:
		p.fail("class/infiniband", err)
		return unknown
	}
	names := map[string]bool{}
	for _, device := range devices {
		if p.options.Include(device) {
			p.netdevs(names, class+"/"+device)
		}
	}
	links, err := p.options.Kernel.Links(func(name string) bool { return names[name] })
	if err != nil {
		p.fail("addresses", err)
		return unknown
	}
	found := []Interface{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		link, here := links[name]
		if !here || len(found) == maxInterfaces {
			continue // of another network namespace, or gone meanwhile
		}
		kind, ok := p.linkType(name)
		if ok {
			found = append(found, Interface{name, kind, sysread.Some(link.Up), link.IPv4, link.IPv6})
		}
	}
	return sysread.Some(found)
}

// netdevs adds the names of the interfaces of an RDMA device.
func (p *pass) netdevs(names map[string]bool, dir string) {
	add := func(found []string) {
		for _, name := range found {
			names[name] = true
		}
	}
	found, err := sysread.ReadNames(&p.io, dir+"/device/net")
	p.ok("device/net", err)
	add(found)
	// Soft-RoCE's text is a name; others have no such file.
	if parent, err := sysread.ReadOnce(&p.io, dir+"/parent"); err == nil && parent != "" {
		add([]string{parent})
	}
	ports, err := sysread.ReadNames(&p.io, dir+"/ports")
	p.ok("ports", err)
	for _, port := range ports {
		// An empty slot, as on InfiniBand, refuses to be read.
		if name, err := sysread.ReadOnce(&p.io, dir+"/ports/"+port+"/gid_attrs/ndevs/0"); err == nil && name != "" {
			add([]string{name})
		}
	}
}

// linkType reads an interface's ARPHRD.
func (p *pass) linkType(name string) (int, bool) {
	text, ok := p.text("net/type", p.options.Sysfs+"/class/net/"+name+"/type")
	if !ok {
		return 0, false
	}
	kind, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		p.fail("net/type", sysread.Invalid(text))
		return 0, false
	}
	return int(kind), true
}

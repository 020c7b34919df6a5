package host

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// communicationManager is the node of the connection manager, one for all devices.
const communicationManager = "rdma_cm"

// nodeName matches the nodes that programs open. The issm nodes are for subnet
// managers alone.
var nodeName = regexp.MustCompile(`^((uverbs|umad)[0-9]{1,5}|` + communicationManager + `)$`)

// nodeClasses are the directories in sysfs that name nodes with their devices.
var nodeClasses = []string{"infiniband_verbs", "infiniband_mad"}

// nodes compares the nodes that there are with those that sysfs says there should
// be. What sysfs says of an excluded device is left out, and so is its node.
func (p *pass) nodes() (nodes []Node, known bool) {
	named, excluded, known := p.namedNodes()
	entries, err := sysread.ReadNames(&p.io, p.options.Root+"/dev/infiniband")
	if err != nil && !sysread.Absent(err) {
		p.fail("dev/infiniband", err)
		known = false
	}
	for _, name := range entries {
		if !nodeName.MatchString(name) || excluded[name] {
			continue
		}
		node := named[name]
		node.Name, node.Present = name, true
		node.Usable = p.usable(name)
		named[name] = node
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if !named[name].Present && err != nil && !sysread.Absent(err) {
			continue // nobody knows
		}
		nodes = append(nodes, named[name])
	}
	return nodes, known
}

// namedNodes are the nodes that sysfs names.
func (p *pass) namedNodes() (named map[string]Node, excluded map[string]bool, known bool) {
	named, excluded, known = map[string]Node{}, map[string]bool{}, true
	for _, class := range nodeClasses {
		dir := p.options.Sysfs + "/class/" + class
		names, err := sysread.ReadNames(&p.io, dir)
		if err != nil && !sysread.Absent(err) {
			p.fail("class/"+class, err)
			known = false
		}
		for _, name := range names {
			if !nodeName.MatchString(name) {
				continue // abi_version
			}
			device, err := sysread.ReadOnce(&p.io, dir+"/"+name+"/ibdev")
			switch {
			case err != nil:
				p.ok("class/"+class+"/ibdev", err)
			case p.options.Include(device):
				named[name] = Node{Name: name, Device: device}
			default:
				excluded[name] = true
			}
		}
	}
	switch _, err := p.io.Lstat(p.options.Sysfs + "/class/misc/" + communicationManager); {
	case err == nil:
		named[communicationManager] = Node{Name: communicationManager}
	case !sysread.Absent(err):
		p.fail("class/misc/"+communicationManager, err)
		known = false
	}
	return named, excluded, known
}

// usable asks whether this process may open a node.
func (p *pass) usable(name string) sysread.Maybe[bool] {
	err := p.options.Kernel.Usable(p.options.Root + "/dev/infiniband/" + name)
	switch {
	case err == nil:
		return sysread.Some(true)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EROFS):
		return sysread.Some(false)
	}
	p.ok("dev/infiniband", err)
	return sysread.Maybe[bool]{}
}

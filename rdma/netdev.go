package rdma

import (
	"errors"
	"strconv"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// arphrdInfiniband is the value of <netdev>/type for IPoIB interfaces
// (ARPHRD_INFINIBAND, linux/if_arp.h).
const arphrdInfiniband = 32

// numberOf reads a number of an interface. One that has gone is no failure.
func numberOf(r *pass, dir, netdev, file string) (uint64, bool) {
	path := dir + "/" + netdev + "/" + file
	text, err := sysread.ReadOnce(r.io, path)
	var value uint64
	if err == nil {
		value, err = sysread.ParseCounter([]byte(text))
	}
	if err != nil && !vanished(r.io, path, err) {
		r.fail("device/net/"+file, err)
	}
	return value, err == nil
}

// portNetdev returns the name of the netdev that belongs to the port, or "".
//
// rdmamap answers this question from the other side, by opening every GID of
// every device until one names the netdev, excluded devices too, and over
// netlink of the caller's own namespace; so it is read here.
func portNetdev(r *pass, p *portReader, device *Identity) string {
	if name := gidNetdev(r, p.dir); name != "" {
		return name
	}
	if device.virtualNetdev != "" {
		return device.virtualNetdev
	}
	if device.parentPath == "" {
		return ""
	}
	return functionNetdev(r, device.parentPath+"/net", p)
}

// gidNetdev asks the first GIDs: a RoCE or iWARP port's default GIDs stand
// there. The answer EINVAL is an empty slot or an InfiniBand port.
func gidNetdev(r *pass, portDir string) string {
	const first = 4
	for slot := range first {
		name := "gid_attrs/ndevs/" + strconv.Itoa(slot)
		text, err := sysread.ReadOnce(r.io, portDir+"/"+name)
		switch {
		case err == nil:
			return text
		case sysread.Absent(err):
			return ""
		case !errors.Is(err, syscall.EINVAL):
			r.fail(name, err)
			return ""
		}
	}
	return ""
}

// functionNetdev finds the port's interface among those of the PCI function:
// the one whose dev_port (from 0) is the port's number less one. Of several,
// such as an IPoIB interface and its partition children (ib0.8001), the one
// with the shortest name is the parent.
func functionNetdev(r *pass, dir string, p *portReader) string {
	names, err := sysread.ReadNames(r.io, dir)
	if err != nil {
		if !errors.Is(err, syscall.ENOENT) {
			r.fail("device/net", err)
		}
		return ""
	}
	best := ""
	for _, name := range names {
		if best != "" && len(best) <= len(name) {
			continue
		}
		port, ok := numberOf(r, dir, name, "dev_port")
		if !ok || port != uint64(p.number-1) {
			continue
		}
		if p.last.LinkLayer == "InfiniBand" {
			if kind, ok := numberOf(r, dir, name, "type"); !ok || kind != arphrdInfiniband {
				continue
			}
		}
		best = name
	}
	return best
}

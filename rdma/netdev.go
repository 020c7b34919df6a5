package rdma

import (
	"errors"
	"strconv"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// arphrdInfiniband is the value of <netdev>/type for IPoIB interfaces
// (ARPHRD_INFINIBAND, linux/if_arp.h).
const arphrdInfiniband = "32"

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
		if !sysread.Absent(err) {
			r.fail("device/net", err)
		}
		return ""
	}
	best := ""
	for _, name := range names {
		if best != "" && len(best) <= len(name) {
			continue
		}
		if r.text(dir, name+"/dev_port") != strconv.Itoa(p.number-1) {
			continue
		}
		if p.last.LinkLayer == "InfiniBand" && r.text(dir, name+"/type") != arphrdInfiniband {
			continue
		}
		best = name
	}
	return best
}

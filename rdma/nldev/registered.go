package nldev

import (
	"bytes"
	"strconv"

	"gdr_exporter/collector/sysread"
)

// sockets lists the netlink sockets of the process's network namespace, the
// kernel's own among them: a family that is registered has one.
const sockets = "/proc/self/net/netlink"

// maxSockets bounds the table, which has some 100 bytes a socket.
const maxSockets = 1 << 24

// registered reports whether the kernel has the RDMA netlink family.
func registered() bool {
	table, err := sysread.System.ReadLines(sockets, maxSockets, func(line []byte) bool { return listed(line, family) })
	return err == nil && listed(table, family)
}

// listed looks for a protocol in the table, whose second column it is.
func listed(table []byte, protocol int) bool {
	for line := range bytes.Lines(table) {
		fields := bytes.Fields(line)
		if len(fields) > 2 && string(fields[1]) == strconv.Itoa(protocol) {
			return true
		}
	}
	return false
}

package rdmatest

import "github.com/prometheus/procfs"

// tcpListen is TCP_LISTEN of Linux' include/net/tcp_states.h.
const tcpListen = 10

// Listens reports whether somebody listens on a TCP port here, in the network namespace
// of this process. Unlike a connection it is not noticed there: perftest's servers, which
// tests wait for, take the first one for their client's. What an earlier connection left in
// TIME_WAIT does not count.
func Listens(port int) bool {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return false
	}
	for _, read := range []func() (procfs.NetTCP, error){proc.NetTCP, proc.NetTCP6} {
		sockets, _ := read() // there may be no IPv6
		for _, s := range sockets {
			if s.St == tcpListen && s.LocalPort == uint64(port) {
				return true
			}
		}
	}
	return false
}

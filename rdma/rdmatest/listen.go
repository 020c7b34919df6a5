package rdmatest

import (
	"fmt"
	"os"
	"strings"
)

// Listens reports whether somebody listens on a TCP port here, in the network namespace
// of this process, by /proc/net/tcp and tcp6. Unlike a connection it is not noticed there:
// perftest's servers, which tests wait for, take the first one for their client's. What an
// earlier connection left in TIME_WAIT does not count.
func Listens(port int) bool {
	const tcpListen = "0A" // TCP_LISTEN of Linux' include/net/tcp_states.h
	suffix := fmt.Sprintf(":%04X", port)
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(file) // there may be no IPv6
		for line := range strings.Lines(string(text)) {
			// sl local_address rem_address st ...
			if fields := strings.Fields(line); len(fields) > 3 && strings.HasSuffix(fields[1], suffix) && fields[3] == tcpListen {
				return true
			}
		}
	}
	return false
}

package rdma

import (
	"errors"
	"strconv"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// gidGap is how many empty slots in a row end the count of a GID table. The
// kernel fills the lowest free slot, so a longer gap needs as many addresses
// that were removed.
const gidGap = 64

// countGIDs counts a port's GIDs by type, from gid_attrs/types/0 upwards
// ("IB/RoCE v1", "RoCE v2"). An empty slot answers EINVAL, on purpose; the
// table ends with ENOENT. It returns nil if the first slots cannot be read for
// another reason.
func countGIDs(r *pass, portDir string) map[string]int {
	counts := map[string]int{}
	for slot, empty := 0, 0; empty < gidGap; slot++ {
		text, err := sysread.ReadOnce(r.io, portDir+"/gid_attrs/types/"+strconv.Itoa(slot))
		switch {
		case err == nil && text != "":
			counts[text]++
			empty = 0
		case err == nil || errors.Is(err, syscall.EINVAL):
			empty++
		case sysread.Absent(err):
			return counts
		default:
			r.fail("gid_attrs/types/"+strconv.Itoa(slot), err)
			return nil
		}
	}
	return counts
}

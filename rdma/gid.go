package rdma

import (
	"errors"
	"slices"
	"strconv"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// gidGap is how many empty slots in a row end the count of a GID table. The
// kernel fills the lowest free slot, so a longer gap needs as many addresses
// that were removed.
const gidGap = 64

// gidTypes are the texts of gid_attrs/types (drivers/infiniband/core/cache.c, and
// sysfs.c for a type without a name).
var gidTypes = []string{"IB/RoCE v1", "RoCE v2", "Invalid GID type"}

// countGIDs counts a port's GIDs by type, from gid_attrs/types/0 upwards. An
// empty slot answers EINVAL, on purpose, and is an empty file in a copy of the
// tree; the table ends with ENOENT. It returns
// nil if a slot cannot be read for another reason, or holds another text: a
// count without it would be too small.
func countGIDs(r *pass, portDir string) map[string]int {
	counts := map[string]int{}
	for slot, empty := 0, 0; empty < gidGap; slot++ {
		name := "gid_attrs/types/" + strconv.Itoa(slot)
		text, err := sysread.ReadOnce(r.io, portDir+"/"+name)
		if err == nil && text != "" && !slices.Contains(gidTypes, text) {
			err = sysread.Invalid(text)
		}
		switch {
		case err == nil && text != "":
			counts[text]++
			empty = 0
		case err == nil || errors.Is(err, syscall.EINVAL):
			empty++
		case sysread.Absent(err):
			return counts
		default:
			r.fail(name, err)
			return nil
		}
	}
	return counts
}

package nldev

import (
	"bytes"
	"strconv"
	"testing"
)

// FuzzListed: a protocol that is found in the kernel's table stands in it.
func FuzzListed(f *testing.F) {
	f.Add([]byte("sk Eth Pid Groups\n0000000000000000 20  0 00000000 0 0 0 2 0 18\n"), 20)
	f.Add([]byte("x\n20\n"), 20)
	f.Fuzz(func(t *testing.T, table []byte, protocol int) {
		if listed(table, protocol) && !bytes.Contains(table, []byte(strconv.Itoa(protocol))) {
			t.Errorf("%d is found in %q", protocol, table)
		}
	})
}

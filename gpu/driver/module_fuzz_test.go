package driver

import (
	"bytes"
	"slices"
	"testing"

	"gdr_exporter/collector/sysread"
)

// FuzzModules: a module is listed only by a line that begins with its name, and
// picking the lines that matter changes nothing of that.
func FuzzModules(f *testing.F) {
	f.Add([]byte("nvidia_peermem 12288 0 - Live 0x0000000000000000\nnvidia 104087552 3 nvidia_uvm, Live 0x0\n"))
	f.Add([]byte("nvidia\n nvidia_peermem"))
	f.Fuzz(func(t *testing.T, text []byte) {
		picked := sysread.KeepLines(text, ours)
		for _, name := range slices.Concat(Modules, PeerModules) {
			found := lists(text, name)
			if found != lists(picked, name) {
				t.Errorf("%s of %q is listed: %v", name, text, found)
			}
			if found && !bytes.Contains(append([]byte("\n"), text...), []byte("\n"+name)) {
				t.Errorf("%s is found in %q", name, text)
			}
		}
	})
}

// FuzzDepLines: of a modules.dep, the lines that are read say what all of them
// say.
func FuzzDepLines(f *testing.F) {
	f.Add([]byte("kernel/a.ko:\nkernel/nvidia-peermem.ko.zst: kernel/b.ko\nextra/nv_peer_mem.ko:\nupdates/nvidia-uvm.ko: x\n"))
	f.Add([]byte(":\nx\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, errAll := parseDep(text)
		some, errSome := parseDep(sysread.KeepLines(text, depLines()))
		if (errAll == nil) != (errSome == nil) || all.driver != some.driver || len(all.peers) != len(some.peers) {
			t.Errorf("%q: %+v, %v; of the lines %+v, %v", text, all, errAll, some, errSome)
		}
	})
}

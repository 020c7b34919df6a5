package collector

import (
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gdr_exporter/collector/capture"
	"gdr_exporter/rdma/rdmatest"
)

// kernelRules are the mutations that a FUSE file system can serve as well.
var kernelRules = map[string]rdmatest.Rule{
	"EINVAL": {Errno: syscall.EINVAL}, "EIO": {Errno: syscall.EIO}, "ENODEV": {Errno: syscall.ENODEV}, "EACCES": {Errno: syscall.EACCES},
	"EOPNOTSUPP": {Errno: syscall.EOPNOTSUPP}, "ETIMEDOUT": {Errno: syscall.ETIMEDOUT}, "EAGAIN": {Errno: syscall.EAGAIN},
	"empty": rdmatest.Text(contents["empty"]), "whitespace": rdmatest.Text(contents["whitespace"]), "binary": rdmatest.Text(contents["binary"]),
	"negative": rdmatest.Text(contents["negative"]), "huge": rdmatest.Text(contents["huge"]), "very long": rdmatest.Text(contents["very long"]),
}

// TestSurvivalKernel: a mutation that the kernel serves gives the page that it
// gives from memory, for a sample of them.
func TestSurvivalKernel(t *testing.T) {
	if err := rdmatest.Supported(); err != nil {
		t.Skipf("real errnos need FUSE: %v", err)
	}
	h := hostOf(t, ibPair())
	recorded, recorder := h.recorded()
	recorded.page(t)
	r := recorder.Recording()
	served := *h
	mountpoint := tempTree(t)
	fs, err := rdmatest.Mount(h.root, mountpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	served.root = mountpoint
	one := uint32(150)
	if survivalAll() {
		one = 6
	}
	tried := 0
	for _, m := range mutationsOf(r) {
		rule, can := kernelRules[m.kind]
		if !can || !isRead(r, m.at) || !picked(&m, one) {
			continue
		}
		tried++
		fs.Apply([]rdmatest.Fault{{Path: strings.TrimPrefix(m.at, "/"), Rule: rule}})
		want := served.page(t)
		fs.ClearAll()
		played, player := h.played(m.apply(r))
		got := played.page(t)
		player.Close()
		if diff := firstDifference(want, got); diff != "" {
			t.Errorf("%v: the kernel and memory differ: %s", &m, diff)
		}
	}
	if tried < 5 {
		t.Errorf("%d mutations were tried", tried)
	}
	t.Logf("%d mutations through the kernel, of %d kinds", tried, len(slices.Collect(maps.Keys(kernelRules))))
}

// isRead reports whether a path is a file that was read whole. The library that
// reads ibdev waits on EAGAIN, and what it does on the running system alone is
// not to be compared.
func isRead(r *capture.Recording, at string) bool {
	return !strings.HasSuffix(at, "/ibdev") && slices.ContainsFunc(r.Files, func(f capture.File) bool {
		return f.Path == at && f.Op == capture.OpRead && f.Last.Errno == ""
	})
}

func picked(m *mutation, one uint32) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(survivalSeed() + m.String()))
	return h.Sum32()%one == 0
}

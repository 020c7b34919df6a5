package affinity_test

import (
	"fmt"
	"testing"
	"time"

	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma/rdmatest"
)

// node300 is an HGX node with as many further PCI functions as make 300.
func node300() *rdmatest.Tree {
	tree := rdmatest.HGX(rdmatest.HGXOptions{IOMMU: "identity"})
	for i := len(tree.List("sys/bus/pci/devices")); i < 300; i++ {
		tree.PCI(rdmatest.PCIFunction{Path: fmt.Sprintf("pci0000:f0/0000:f0:%02x.%d", i/8&31, i%8) + fmt.Sprintf("/0000:%02x:00.%d", 0x40+i/8, i%8),
			Vendor: "0x8086", Device: "0x3457", Class: "0x088000", NoAER: true})
	}
	return tree
}

// BenchmarkList is a listing while nothing changes, and one that makes all anew.
func BenchmarkList(b *testing.B) {
	dir := written(b, node300())
	b.Run("steady", func(b *testing.B) {
		h := newHost(b, dir, affinity.Options{SlowInterval: time.Hour})
		h.list()
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := h.read.List(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("slow", func(b *testing.B) {
		h := newHost(b, dir, affinity.Options{})
		h.list()
		for b.Loop() {
			h.now = h.now.Add(2 * time.Minute)
			h.list()
		}
	})
}

// BenchmarkRead is one read of all functions, of the power states alone and of
// everything.
func BenchmarkRead(b *testing.B) {
	for name, step := range map[string]time.Duration{"fast": 0, "slow": 2 * time.Minute} {
		b.Run(name, func(b *testing.B) {
			h := newHost(b, written(b, node300()), affinity.Options{})
			h.quiet()
			b.ReportAllocs()
			for b.Loop() {
				h.now = h.now.Add(step)
				for _, f := range h.last {
					f.Read(h.now)
				}
			}
		})
	}
}

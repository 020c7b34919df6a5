package collector

import (
	"bytes"
	"testing"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/rdmatest"
)

// BenchmarkFiles is one pass of all RDMA devices and PCI functions of an HGX
// node: with kept descriptors, recorded, and from memory.
func BenchmarkFiles(b *testing.B) {
	dir := tempTree(b)
	if err := rdmatest.HGX(rdmatest.HGXOptions{}).WriteTo(dir); err != nil {
		b.Fatal(err)
	}
	recorder := capture.NewRecorder(sysread.Below(dir), capture.Header{}, nil)
	readFiles(b, "/sys", recorder.Files())()
	recording := recorder.Recording()
	b.Run("system", func(b *testing.B) { benchmarkFiles(b, dir+"/sys", nil) })
	b.Run("below", func(b *testing.B) { benchmarkFiles(b, "/sys", sysread.Below(dir)) })
	b.Run("recorded", func(b *testing.B) { benchmarkFiles(b, "/sys", recorder.Files()) })
	b.Run("played", func(b *testing.B) { benchmarkFiles(b, "/sys", capture.Play(recording).Files()) })
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			if err := recording.Write(&bytes.Buffer{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		var text bytes.Buffer
		if err := recording.Write(&text); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := capture.Read(bytes.NewReader(text.Bytes())); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchmarkFiles(b *testing.B, root string, files sysread.Files) {
	read := readFiles(b, root, files)
	read()
	for b.Loop() {
		read()
	}
}

func readFiles(b *testing.B, root string, files sysread.Files) (read func()) {
	devices := rdma.NewReader(rdma.Options{Sysfs: root, Files: files, Descriptors: 4096})
	functions := affinity.NewReader(affinity.Options{Sysfs: root, Files: files, Descriptors: 4096})
	now := goldenTime
	return func() {
		now = now.Add(3 * time.Second)
		listing, err := devices.List()
		if err != nil || len(listing.Devices) == 0 {
			b.Fatal(err)
		}
		for _, device := range listing.Devices {
			device.Read(now)
		}
		_, units, err := functions.List()
		if err != nil || len(units) == 0 {
			b.Fatal(err)
		}
		for _, unit := range units {
			unit.Read(now)
		}
	}
}

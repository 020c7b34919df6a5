package rdma_test

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/rdma"
	"gdr_exporter/rdma/rdmatest"
)

// BenchmarkRead is one read of all devices. Compare bare, the lower bound: the
// same files through kept descriptors with nothing around them.
func BenchmarkRead(b *testing.B) {
	for _, n := range []int{8, 256} {
		dir := written(b, rdmatest.NodeN(n))
		b.Run(fmt.Sprintf("devices=%d", n), func(b *testing.B) { benchmarkRead(b, dir) })
		b.Run(fmt.Sprintf("bare=%d", n), func(b *testing.B) { benchmarkBare(b, dir) })
	}
}

func benchmarkRead(b *testing.B, dir string) {
	reader := rdma.NewReader(rdma.Options{Sysfs: filepath.Join(dir, "sys"), SlowInterval: time.Hour, Descriptors: 18000})
	listing, err := reader.List()
	if err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	read := func() {
		for _, device := range listing.Devices {
			if _, errs := device.Read(now); len(errs) > 0 {
				b.Fatal(errs)
			}
		}
	}
	read()
	now = now.Add(3 * time.Second) // past the time in which a new device may be incomplete
	read()
	reads := reader.IO().Reads()
	read()
	reads = reader.IO().Reads() - reads
	b.ReportAllocs()
	for b.Loop() {
		read()
	}
	b.ReportMetric(float64(reads), "reads/op")
	for _, device := range listing.Devices {
		device.Close()
	}
}

// benchmarkBare reads the files of the fast group and nothing else.
func benchmarkBare(b *testing.B, dir string) {
	var fds []int
	for _, pattern := range []string{"state", "phys_state", "counters/port_*_data", "counters/port_*_packets", "hw_counters/*"} {
		paths, err := filepath.Glob(filepath.Join(dir, "sys/class/infiniband/*/ports/1", pattern))
		if err != nil {
			b.Fatal(err)
		}
		for _, path := range paths {
			if filepath.Base(path) != "lifespan" {
				fds = append(fds, openRaw(b, path))
			}
		}
	}
	carriers, _ := filepath.Glob(filepath.Join(dir, "sys/class/net/*/carrier_changes"))
	for _, path := range carriers {
		fds = append(fds, openRaw(b, path))
	}
	var buf [4096]byte
	for b.Loop() {
		for _, fd := range fds {
			if n, err := syscall.Pread(fd, buf[:], 0); err != nil || n == 0 {
				b.Fatal(n, err)
			}
		}
	}
	b.ReportMetric(float64(len(fds)), "reads/op")
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}

func openRaw(b *testing.B, path string) int {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		b.Fatal(&fs.PathError{Op: "open", Path: path, Err: err})
	}
	return fd
}

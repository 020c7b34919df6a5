package loopgpu_test

import (
	"bytes"
	"errors"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"gdr_exporter/gpu/cuda"
	"gdr_exporter/gpu/cuda/cudatest"
	"gdr_exporter/gpu/cuda/loopgpu"
	"gdr_exporter/rdma/loopback"
)

type foreign struct{ loopback.GPUMemory }

// TestInterface does through the interface what a measurement does.
func TestInterface(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	options := cuda.Options{Roots: []string{cudatest.Build(t)}}
	if g, err := loopgpu.Open("0000:99:00.0", options); g != nil || !errors.Is(err, cuda.InvalidDevice) {
		t.Errorf("no such GPU: %v %v", g, err)
	}
	g, err := loopgpu.Open(cudatest.Address, options)
	if err != nil {
		t.Fatal(err)
	}
	if f := g.Facts(); f.Address != cudatest.Address || !f.DMABuf || f.Ordering != 100 || f.Total != 16<<30 {
		t.Errorf("%+v", f)
	}
	if m, err := g.Alloc(1); m != nil || !errors.Is(err, cuda.ErrRange) {
		t.Errorf("%v %v", m, err)
	}
	m, err := g.Alloc(cuda.Granularity)
	if err != nil {
		t.Fatal(err)
	}
	host, err := syscall.Mmap(-1, 0, 2*cuda.Granularity, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(host)
	unpin, err := g.Pin(unsafe.Pointer(&host[0]), len(host))
	if err != nil {
		t.Fatal(err)
	}
	s, err := g.Stream()
	if err != nil {
		t.Fatal(err)
	}
	source, target := host[:cuda.Granularity], host[cuda.Granularity:]
	for i := range source {
		source[i] = byte(i * 7)
	}
	for _, err := range []error{
		s.FromHost(m, 0, unsafe.Pointer(&source[0]), len(source)),
		s.ToHost(unsafe.Pointer(&target[0]), m, 0, len(target)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	mark, err := s.Mark()
	if err != nil {
		t.Fatal(err)
	}
	if reached, err := mark.Reached(); reached || err != nil {
		t.Errorf("%v %v", reached, err)
	}
	if err := mark.Wait(); err != nil || !bytes.Equal(source, target) {
		t.Errorf("%v", err)
	}
	if err := s.ToHost(unsafe.Pointer(&target[0]), foreign{}, 0, 1); err == nil {
		t.Error("copied from a stranger's memory")
	}
	if err := s.FromHost(foreign{}, 0, unsafe.Pointer(&target[0]), 1); err == nil {
		t.Error("copied to a stranger's memory")
	}
	for _, err := range []error{mark.Free(), s.Close(), unpin(), m.Free(), g.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
	if s, err := g.Stream(); s != nil || !errors.Is(err, cuda.ErrClosed) {
		t.Errorf("%v %v", s, err)
	}
}

// Package loopgpu is package cuda's GPU as package loopback wants it. It is apart
// so that neither has to know the other: only methods that take or return each
// other's types need it.
package loopgpu

import (
	"fmt"
	"unsafe"

	"gdr_exporter/gpu/cuda"
	"gdr_exporter/rdma/loopback"
)

// Open opens the GPU at a PCI address on the calling thread: see [cuda.Open].
func Open(address string, options cuda.Options) (loopback.GPU, error) {
	g, err := cuda.Open(address, options)
	if err != nil {
		return nil, err
	}
	return device{g}, nil
}

type device struct{ *cuda.GPU }

func (d device) Facts() loopback.GPUFacts { return loopback.GPUFacts(d.GPU.Facts()) }

func (d device) Alloc(size int) (loopback.GPUMemory, error) {
	m, err := d.GPU.Alloc(size)
	if err != nil {
		return nil, err // not a nil *cuda.Memory in an interface
	}
	return m, nil
}

func (d device) Stream() (loopback.Stream, error) {
	s, err := d.GPU.Stream()
	if err != nil {
		return nil, err
	}
	return stream{s}, nil
}

type stream struct{ *cuda.Stream }

func (s stream) ToHost(to unsafe.Pointer, from loopback.GPUMemory, offset, n int) error {
	m, err := memory(from)
	if err != nil {
		return err
	}
	return s.Stream.ToHost(to, m, offset, n)
}

func (s stream) FromHost(to loopback.GPUMemory, offset int, from unsafe.Pointer, n int) error {
	m, err := memory(to)
	if err != nil {
		return err
	}
	return s.Stream.FromHost(m, offset, from, n)
}

func (s stream) Mark() (loopback.Mark, error) {
	m, err := s.Stream.Mark()
	if err != nil {
		return nil, err
	}
	return m, nil
}

func memory(m loopback.GPUMemory) (*cuda.Memory, error) {
	if m, ok := m.(*cuda.Memory); ok {
		return m, nil
	}
	return nil, fmt.Errorf("%T is no memory of a CUDA GPU", m)
}

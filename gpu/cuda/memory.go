package cuda

// #cgo noescape gdr_cuMemcpyHtoD_v2
// #cgo nocallback gdr_cuMemcpyHtoD_v2
// #cgo noescape gdr_cuMemcpyDtoH_v2
// #cgo nocallback gdr_cuMemcpyDtoH_v2
// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"
)

// Granularity is what sizes of GPU memory are multiples of: the driver's own page.
// nvidia-peermem pins in units of 64 KiB and refuses others.
const Granularity = 2 << 20

// pinGranularity is the alignment that nvidia-peermem and dma-buf both take.
const pinGranularity = 64 << 10

const (
	pointerSyncMemops = 6 // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
	handleDMABufFD    = 1 // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
)

// Memory is memory of a GPU.
type Memory struct {
	gpu     *GPU
	pointer C.CUdeviceptr
	size    int
}

// Alloc allocates GPU memory of size bytes, a multiple of [Granularity]
// (cuMemAlloc_v2), with CU_POINTER_ATTRIBUTE_SYNC_MEMOPS set: without it a
// synchronous copy may return before the NIC can see its data.
func (g *GPU) Alloc(size int) (*Memory, error) {
	if g.c == nil {
		return nil, ErrClosed
	}
	if size <= 0 || size%Granularity != 0 {
		return nil, fmt.Errorf("allocate %d bytes: %w: not a multiple of %d", size, ErrRange, Granularity)
	}
	m := &Memory{gpu: g, size: size}
	if err := g.check("cuMemAlloc_v2", C.gdr_cuMemAlloc_v2(g.c, &m.pointer, C.size_t(size))); err != nil {
		return nil, fmt.Errorf("%d MiB: %w", size>>20, err)
	}
	g.keep(m)
	on := C.uint(1)
	err := g.check("cuPointerSetAttribute", C.gdr_cuPointerSetAttribute(g.c, unsafe.Pointer(&on), pointerSyncMemops, m.pointer))
	if err == nil && m.pointer%pinGranularity != 0 {
		err = fmt.Errorf("GPU memory at %#x is not aligned to 64 KiB: a NIC could not register it", uint64(m.pointer))
	}
	if err != nil {
		return nil, errors.Join(err, m.Free())
	}
	return m, nil
}

// Pointer is the device pointer, as ibv_reg_mr takes it; 0 after Free.
func (m *Memory) Pointer() uintptr { return uintptr(m.pointer) }

// Size is the number of bytes.
func (m *Memory) Size() int { return m.size }

// DMABuf exports the whole memory as a dma-buf (cuMemGetHandleForAddressRange,
// CUDA 11.7 and in practice the open kernel modules). The caller closes the
// descriptor, at once after registration if it likes. An [Error] of
// [NotSupported] is the driver's or, where Facts has no DMABuf, the GPU's word.
func (m *Memory) DMABuf() (fd int, err error) {
	if m.pointer == 0 {
		return -1, ErrClosed
	}
	handle := C.int(-1)
	err = m.gpu.check("cuMemGetHandleForAddressRange",
		C.gdr_cuMemGetHandleForAddressRange(m.gpu.c, unsafe.Pointer(&handle), m.pointer, C.size_t(m.size), handleDMABufFD, 0))
	if errors.Is(err, missing) {
		return -1, fmt.Errorf("this libcuda is older than CUDA 11.7: %w", &Error{"cuMemGetHandleForAddressRange", NotSupported, NotSupported.Error()})
	}
	if err != nil {
		return -1, err
	}
	syscall.CloseOnExec(int(handle))
	return int(handle), nil
}

// Write copies from host to GPU memory and returns when it is done.
func (m *Memory) Write(offset int, from []byte) error {
	if err := m.within(offset, len(from)); err != nil || len(from) == 0 {
		return err
	}
	return m.gpu.check("cuMemcpyHtoD_v2",
		C.gdr_cuMemcpyHtoD_v2(m.gpu.c, m.pointer+C.CUdeviceptr(offset), unsafe.Pointer(&from[0]), C.size_t(len(from))))
}

// Read copies from GPU to host memory and returns when it is done.
func (m *Memory) Read(offset int, into []byte) error {
	if err := m.within(offset, len(into)); err != nil || len(into) == 0 {
		return err
	}
	return m.gpu.check("cuMemcpyDtoH_v2",
		C.gdr_cuMemcpyDtoH_v2(m.gpu.c, unsafe.Pointer(&into[0]), m.pointer+C.CUdeviceptr(offset), C.size_t(len(into))))
}

// Free frees the memory. No NIC may have it registered. A second call does nothing.
func (m *Memory) Free() error {
	if m.pointer == 0 {
		return nil
	}
	m.gpu.drop(m)
	pointer := m.pointer
	m.pointer = 0
	return m.gpu.check("cuMemFree_v2", C.gdr_cuMemFree_v2(m.gpu.c, pointer))
}

// Close is Free.
func (m *Memory) Close() error { return m.Free() }

func (*Memory) kind() string { return "memory" }

// within says whether n bytes at offset are of the memory.
func (m *Memory) within(offset, n int) error {
	if m.pointer == 0 {
		return ErrClosed
	}
	if offset < 0 || n < 0 || n > m.size-offset {
		return fmt.Errorf("%w: %d bytes at %d of %d", ErrRange, n, offset, m.size)
	}
	return nil
}

// syncMemops reads CU_POINTER_ATTRIBUTE_SYNC_MEMOPS back.
func (m *Memory) syncMemops() (bool, error) {
	var value C.ulonglong // the driver writes a bool or an int of it
	err := m.gpu.check("cuPointerGetAttribute", C.gdr_cuPointerGetAttribute(m.gpu.c, unsafe.Pointer(&value), pointerSyncMemops, m.pointer))
	return value != 0, err
}

// pin is host memory that the GPU reaches by itself.
type pin struct {
	gpu  *GPU
	host unsafe.Pointer
}

// Pin makes host memory fit for asynchronous copies (cuMemHostRegister_v2) until
// unpin is called; a second call of it does nothing. The memory is not Go's: it
// is mapped, or C's.
func (g *GPU) Pin(host unsafe.Pointer, size int) (unpin func() error, err error) {
	if g.c == nil {
		return nil, ErrClosed
	}
	if host == nil || size <= 0 {
		return nil, fmt.Errorf("pin %d bytes: %w", size, ErrRange)
	}
	if err := g.check("cuMemHostRegister_v2", C.gdr_cuMemHostRegister_v2(g.c, host, C.size_t(size), 0)); err != nil {
		return nil, err
	}
	p := &pin{g, host}
	g.keep(p)
	return p.Close, nil
}

// Close unpins.
func (p *pin) Close() error {
	if p.host == nil {
		return nil
	}
	p.gpu.drop(p)
	host := p.host
	p.host = nil
	return p.gpu.check("cuMemHostUnregister", C.gdr_cuMemHostUnregister(p.gpu.c, host))
}

func (*pin) kind() string { return "pinned memory" }

package loopback

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is what large buffers are aligned to, so that the kernel can give them huge
// pages, and what GPU memory comes in.
const hugePage = 2 << 20

// hostMemory is memory outside the Go heap, for a NIC to read and write.
type hostMemory struct {
	mapping []byte // what was mapped
	bytes   []byte // the aligned part
}

func (m *hostMemory) pointer() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(m.bytes)) }
func (m *hostMemory) address() uintptr        { return uintptr(m.pointer()) }

// allocHost maps memory of size bytes, preferably of a NUMA node (-1: any) and
// in huge pages. What is only preferable does not fail it: on a full node the
// memory comes from another.
func allocHost(size, node int) (*hostMemory, error) {
	align := hugePage
	if size < hugePage {
		align = os.Getpagesize()
	}
	mapping, err := unix.Mmap(-1, 0, roundUp(size, align)+align, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", size, err)
	}
	start := int(-uintptr(unsafe.Pointer(unsafe.SliceData(mapping))) % uintptr(align))
	aligned := mapping[start : start+roundUp(size, align)]
	_ = unix.Madvise(aligned, unix.MADV_HUGEPAGE)
	if node >= 0 {
		prefer(aligned, node)
	}
	clear(aligned) // the pages come here, not in the middle of the measurement
	return &hostMemory{mapping, aligned[:size]}, nil
}

// prefer asks for pages of a NUMA node (mbind with MPOL_PREFERRED).
func prefer(memory []byte, node int) {
	const preferred = 1
	var mask [16]uint64 // 1024 nodes, the kernel's most
	if node >= len(mask)*64 {
		return
	}
	mask[node/64] |= 1 << (node % 64)
	_, _, _ = unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(memory))), uintptr(len(memory)),
		preferred, uintptr(unsafe.Pointer(&mask)), uintptr(len(mask)*64), 0)
}

func (m *hostMemory) free() error {
	if err := unix.Munmap(m.mapping); err != nil {
		return fmt.Errorf("munmap: %w", err)
	}
	return nil
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

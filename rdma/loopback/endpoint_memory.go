package loopback

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"gdr_exporter/collector/sysread"
)

// scratchSize is how much GPU memory is filled or read at once.
const scratchSize = 1 << 20

// alloc allocates what the role and the kind of memory need.
func (h *half) alloc() error {
	var err error
	host := h.spec.BufferSize
	if h.memory == MemoryStaged {
		slots, err := h.ringSlots()
		if err != nil {
			return err
		}
		h.ring = &ring{half: h, slots: slots, chunk: h.spec.ChunkSize}
		host = slots * h.spec.ChunkSize
	}
	for _, end := range h.ends() {
		if h.memory != MemoryGPU {
			if end.host, err = h.allocHost(host); err != nil {
				return err
			}
		}
		if h.memory == MemoryHost {
			continue
		}
		if err := h.allocGPU(end.buffers, h.spec.BufferSize); err != nil {
			return err
		}
	}
	if h.memory == MemoryHost {
		return nil
	}
	if h.scratch, err = h.allocHost(scratchSize); err != nil || !h.role.receives() {
		return err
	}
	return h.clearGPU()
}

// clearGPU keeps data of an earlier session from passing for what has been written.
func (h *half) clearGPU() error {
	return inParts(h.destination.gpu.Size(), h.limits, func(offset, n int) error {
		return h.writeGPU(&h.destination, offset, h.scratch.bytes[:n])
	})
}

func (h *half) writeGPU(end *buffers, offset int, data []byte) error {
	if err := end.gpu.Write(offset, data); err != nil {
		return fmt.Errorf("GPU: %w", err)
	}
	return nil
}

// inParts does something to all parts of a buffer, unless it is to end.
func inParts(length int, l limits, do func(offset, n int) error) error {
	for offset := 0; offset < length; offset += scratchSize {
		if err := l.ended(); err != nil {
			return err
		}
		if err := do(offset, min(scratchSize, length-offset)); err != nil {
			return err
		}
	}
	return nil
}

// register registers exactly the buffers: one to write from, which nobody else
// reaches, and one that may be written to.
func (h *half) register() error {
	if h.memory == MemoryGPU {
		return h.registerGPUs()
	}
	for _, end := range h.ends() {
		made, relaxed, err := relaxable(func(relaxed bool) (region, error) {
			return h.verbs.regMR(h.pd, end.host.address(), len(end.host.bytes), end.allow, relaxed)
		})
		if err != nil {
			return fmt.Errorf("host memory of %d bytes: %w", len(end.host.bytes), err)
		}
		h.keep(made, &end.hostRegion)
		h.result.RelaxedOrdering = sysread.Some(relaxed)
	}
	return nil
}

// registerGPUs registers GPU memory by the first method that works for all of it.
func (h *half) registerGPUs() error {
	h.testDMABuf()
	h.result.NCCLMethod = MethodPeermem
	if h.gpu.Facts().DMABuf && h.result.NICDMABuf.Value {
		h.result.NCCLMethod = MethodDMABuf
	}
	try := []Method{h.result.NCCLMethod, MethodPeermem}
	switch {
	case h.spec.Force != "":
		try = []Method{h.spec.Force}
	case h.result.NCCLMethod == MethodPeermem:
		try[1] = MethodDMABuf
	}
	for _, method := range try {
		tried, err := h.registerGPUsBy(method)
		h.result.Registrations = append(h.result.Registrations, tried)
		if err != nil {
			return err
		}
		if tried.Err == nil {
			h.result.Method = method
			return nil
		}
	}
	return h.notRegistered()
}

// registerGPUsBy keeps all regions or none. The error is that of a region which
// cannot be given back.
func (h *half) registerGPUsBy(method Method) (Registration, error) {
	tried := Registration{Method: method}
	began := time.Now()
	var made []region
	ends := h.ends()
	for _, end := range ends {
		var one region
		if one, tried.RelaxedOrdering, tried.Err = h.registerBy(method, end.gpu, end.allow); tried.Err != nil {
			break
		}
		made = append(made, one)
	}
	tried.Duration = time.Since(began)
	for i, one := range made {
		if tried.Err == nil {
			h.keep(one, &ends[i].gpuRegion)
			continue
		}
		if err := h.verbs.deregMR(one.mr); err != nil {
			h.keep(one, new(region)) // tried again in the teardown
			return tried, err
		}
	}
	return tried, nil
}

// exposed is the memory of an end that the NIC reaches, and its region.
func (h *half) exposed(end *buffers) (address uintptr, length int, r region) {
	if h.memory == MemoryGPU {
		return end.gpu.Pointer(), end.gpu.Size(), end.gpuRegion
	}
	return end.host.address(), len(end.host.bytes), end.hostRegion
}

// data is how many bytes of data an end holds.
func (h *half) data(end *buffers) int {
	if end.gpu != nil {
		return end.gpu.Size()
	}
	return len(end.host.bytes)
}

// Fill fills the buffer to write from with the pattern of a seed. Verify on the other
// side looks for the same. A new seed for each write tells its data from those of the
// one before.
func (e *Endpoint) Fill(ctx context.Context, seed uint64) error {
	return e.do(ctx, StageFill, func(l limits) error { return e.half.fill(seed, l) })
}

func (h *half) fill(seed uint64, l limits) error {
	if !h.role.sends() {
		return &Error{Call: "fill", Errno: syscall.EBADF}
	}
	err := inParts(h.data(&h.source), l, func(offset, n int) error {
		if h.memory == MemoryHost {
			fill(h.source.host.bytes[offset:offset+n], seed, offset)
			return nil
		}
		fill(h.scratch.bytes[:n], seed, offset)
		return h.writeGPU(&h.source, offset, h.scratch.bytes[:n])
	})
	h.filled = h.filled || err == nil
	return err
}

// Verification is what was found in the buffer that is written to.
type Verification struct {
	Bytes      uint64 `json:"bytes"`
	Mismatches int    `json:"mismatches"` // words of 8 bytes that are wrong
}

// Verify compares what has been written here with the pattern of a seed, in the parts
// that the peer says it has written. It fails with [ErrCorrupt] if any word is wrong.
//
// A write is acknowledged by the NIC, and may be on its way through PCIe then: what is
// wrong is looked at once more a moment later.
func (e *Endpoint) Verify(ctx context.Context, seed uint64, extents []Extent) (Verification, error) {
	var v Verification
	err := e.do(ctx, StageVerify, func(l limits) error {
		err := e.half.verify(seed, extents, l, &v)
		if !errors.Is(err, ErrCorrupt) {
			return err
		}
		time.Sleep(arrival)
		return e.half.verify(seed, extents, l, &v)
	})
	return v, err
}

// arrival is more than any write needs to arrive after it was acknowledged.
const arrival = 10 * time.Millisecond

func (h *half) verify(seed uint64, extents []Extent, l limits, v *Verification) error {
	if err := h.checkExtents(extents); err != nil {
		return err
	}
	*v = Verification{}
	for _, e := range extents {
		err := inParts(e.Length, l, func(offset, n int) error {
			part, err := h.received(e.Offset+offset, n)
			if err == nil {
				v.Mismatches += mismatches(part, seed, e.Offset+offset)
				v.Bytes += uint64(n)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if v.Mismatches > 0 {
		return fmt.Errorf("%w: %d words of 8 bytes in %d bytes", ErrCorrupt, v.Mismatches, v.Bytes)
	}
	return nil
}

// received returns bytes of the buffer that is written to.
func (h *half) received(offset, n int) ([]byte, error) {
	if h.memory == MemoryHost {
		return h.destination.host.bytes[offset : offset+n], nil
	}
	part := h.scratch.bytes[:n]
	if err := h.destination.gpu.Read(offset, part); err != nil {
		return nil, fmt.Errorf("GPU: %w", err)
	}
	return part, nil
}

// checkExtents checks what the peer says, which must not make this host look at other
// memory, or work for nothing.
func (h *half) checkExtents(extents []Extent) error {
	if !h.role.receives() {
		return &Error{Call: "verify", Errno: syscall.EBADF}
	}
	length, total := h.data(&h.destination), 0
	for _, e := range extents {
		if e.Offset < 0 || e.Offset%8 != 0 || e.Length < 8 || e.Length%8 != 0 || e.Offset > length || e.Length > length-e.Offset {
			return fmt.Errorf("%d bytes at %d, of %d: %w", e.Length, e.Offset, length, syscall.EINVAL)
		}
		if total += e.Length; total > length {
			return fmt.Errorf("more than all %d bytes: %w", length, syscall.EINVAL)
		}
	}
	if total == 0 {
		return fmt.Errorf("nothing to verify: %w", syscall.EINVAL)
	}
	return nil
}

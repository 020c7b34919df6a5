package cuda

// #cgo noescape gdr_cuMemcpyHtoDAsync_v2
// #cgo nocallback gdr_cuMemcpyHtoDAsync_v2
// #cgo noescape gdr_cuMemcpyDtoHAsync_v2
// #cgo nocallback gdr_cuMemcpyDtoHAsync_v2
// #cgo noescape gdr_cuEventRecord
// #cgo nocallback gdr_cuEventRecord
// #cgo noescape gdr_cuEventQuery
// #cgo nocallback gdr_cuEventQuery
// #include "driver.h"
import "C"

import (
	"errors"
	"unsafe"
)

const (
	streamNonBlocking = 1 // CU_STREAM_NON_BLOCKING: not in step with the default stream
	// CU_EVENT_BLOCKING_SYNC: whoever waits sleeps, as CPU time is a result of the
	// measurement. CU_EVENT_DISABLE_TIMING: cheaper, and nobody asks for times.
	eventFlags = 1 | 2
)

// Stream is a queue of asynchronous copies, done in order.
type Stream struct {
	gpu    *GPU
	stream C.CUstream
	// idle are events for the next marks: making one costs more than recording it.
	idle []C.CUevent
	// marks are those that are not freed, each at its index.
	marks []*Mark
}

// Stream makes a stream of copies (cuStreamCreate).
func (g *GPU) Stream() (*Stream, error) {
	if g.c == nil {
		return nil, ErrClosed
	}
	s := &Stream{gpu: g}
	if err := g.check("cuStreamCreate", C.gdr_cuStreamCreate(g.c, &s.stream, streamNonBlocking)); err != nil {
		return nil, err
	}
	g.keep(s)
	return s, nil
}

// ToHost enqueues a copy of n bytes from GPU memory to pinned host memory.
func (s *Stream) ToHost(to unsafe.Pointer, from *Memory, offset, n int) error {
	if err := s.usable(from, offset, n); err != nil || n == 0 {
		return err
	}
	return s.gpu.check("cuMemcpyDtoHAsync_v2",
		C.gdr_cuMemcpyDtoHAsync_v2(s.gpu.c, to, from.pointer+C.CUdeviceptr(offset), C.size_t(n), s.stream))
}

// FromHost enqueues a copy of n bytes from pinned host memory to GPU memory.
func (s *Stream) FromHost(to *Memory, offset int, from unsafe.Pointer, n int) error {
	if err := s.usable(to, offset, n); err != nil || n == 0 {
		return err
	}
	return s.gpu.check("cuMemcpyHtoDAsync_v2",
		C.gdr_cuMemcpyHtoDAsync_v2(s.gpu.c, to.pointer+C.CUdeviceptr(offset), from, C.size_t(n), s.stream))
}

// Wait returns when all copies are done. It spins; a [Mark] sleeps.
func (s *Stream) Wait() error {
	if s.stream == nil {
		return ErrClosed
	}
	return s.gpu.check("cuStreamSynchronize", C.gdr_cuStreamSynchronize(s.gpu.c, s.stream))
}

// Close waits for the copies, frees the marks and destroys the stream. All of it
// is tried whatever fails; a second call does nothing.
func (s *Stream) Close() error {
	if s.stream == nil {
		return nil
	}
	errs := []error{s.Wait()}
	s.gpu.drop(s)
	for len(s.marks) > 0 {
		errs = append(errs, s.marks[len(s.marks)-1].Free())
	}
	for _, event := range s.idle {
		errs = append(errs, s.gpu.check("cuEventDestroy_v2", C.gdr_cuEventDestroy_v2(s.gpu.c, event)))
	}
	s.idle = nil
	stream := s.stream
	s.stream = nil
	errs = append(errs, s.gpu.check("cuStreamDestroy_v2", C.gdr_cuStreamDestroy_v2(s.gpu.c, stream)))
	return errors.Join(errs...)
}

func (*Stream) kind() string { return "stream" }

func (s *Stream) usable(m *Memory, offset, n int) error {
	if s.stream == nil {
		return ErrClosed
	}
	return m.within(offset, n)
}

// Mark is a place in a stream (a CUDA event).
type Mark struct {
	stream *Stream
	event  C.CUevent
	index  int
}

// Mark notes the current end of the queue (cuEventRecord).
func (s *Stream) Mark() (*Mark, error) {
	if s.stream == nil {
		return nil, ErrClosed
	}
	event, err := s.event()
	if err != nil {
		return nil, err
	}
	m := &Mark{s, event, len(s.marks)}
	s.marks = append(s.marks, m)
	if err := s.gpu.check("cuEventRecord", C.gdr_cuEventRecord(s.gpu.c, event, s.stream)); err != nil {
		return nil, errors.Join(err, m.Free())
	}
	return m, nil
}

// event takes an idle event or makes one.
func (s *Stream) event() (C.CUevent, error) {
	last := len(s.idle) - 1
	if last < 0 {
		return s.newEvent()
	}
	event := s.idle[last]
	s.idle = s.idle[:last]
	return event, nil
}

func (s *Stream) newEvent() (event C.CUevent, err error) {
	err = s.gpu.check("cuEventCreate", C.gdr_cuEventCreate(s.gpu.c, &event, eventFlags))
	return event, err
}

// Reached reports whether the copies up to the mark are done (cuEventQuery).
func (m *Mark) Reached() (bool, error) {
	if m.event == nil {
		return false, ErrClosed
	}
	code := C.gdr_cuEventQuery(m.stream.gpu.c, m.event)
	if Code(code) == NotReady {
		return false, nil
	}
	return code == 0, m.stream.gpu.check("cuEventQuery", code)
}

// Wait sleeps until the copies up to the mark are done (cuEventSynchronize).
func (m *Mark) Wait() error {
	if m.event == nil {
		return ErrClosed
	}
	return m.stream.gpu.check("cuEventSynchronize", C.gdr_cuEventSynchronize(m.stream.gpu.c, m.event))
}

// Free gives the mark back, reached or not; its event serves the stream's next
// marks and is destroyed with it. A second call does nothing.
func (m *Mark) Free() error {
	if m.event == nil {
		return nil
	}
	s := m.stream
	last := s.marks[len(s.marks)-1]
	last.index = m.index
	s.marks[m.index] = last
	s.marks = s.marks[:len(s.marks)-1]
	s.idle = append(s.idle, m.event)
	m.event = nil
	return nil
}

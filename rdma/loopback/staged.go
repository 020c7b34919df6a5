package loopback

import (
	"fmt"
	"time"
	"unsafe"
)

// mostSlots is how many chunks the staged path has under way, as NCCL has steps.
const mostSlots = 8

// staging is the way of a job that has lost GPUDirect RDMA: chunks are copied
// from GPU memory into a slot of the source's host memory, written from there to
// the same slot of the destination's, and copied on into GPU memory. Copies in
// both directions and writes go on at the same time.
type staging struct {
	p                *pathRun
	toHost, fromHost Stream
}

// newStaging pins the host memory and makes the streams.
func (p *pathRun) newStaging() (*staging, error) {
	s := &staging{p: p}
	for _, memory := range []*hostMemory{p.source.host, p.destination.host} {
		unpin, err := p.gpu.Pin(memory.pointer(), len(memory.bytes))
		if err != nil {
			return nil, fmt.Errorf("GPU: %w", err)
		}
		p.undo.add("pinned memory", unpin)
	}
	for _, stream := range []*Stream{&s.toHost, &s.fromHost} {
		made, err := p.gpu.Stream()
		if err != nil {
			return nil, fmt.Errorf("GPU: %w", err)
		}
		*stream = made
		p.undo.add("stream", made.Close)
	}
	return s, nil
}

func (s *staging) move(bytes uint64, l limits, sleep bool) (moved, error) {
	chunk := s.p.spec.ChunkSize
	// A queue pair has room for all of them, should the others be faster.
	slots := min(mostSlots, s.p.spec.BufferSize/chunk, s.p.base.depth)
	return s.newPipeline(chunk, slots, max(int(bytes/uint64(chunk)), 1)).run(l, sleep)
}

// latency moves single messages all the way.
func (s *staging) latency(l limits, samples []time.Duration) (int, error) {
	for i := range samples {
		if monotonic() >= l.enough {
			return i, nil
		}
		m, err := s.newPipeline(latencySize, 1, 1).run(l, false)
		if err != nil {
			return i, err
		}
		samples[i] = m.elapsed
	}
	return len(samples), nil
}

// pipeline moves a number of chunks. Each is in one slot, which is at any time
// idle, reading (from the GPU), writing (over the NIC) or returning (to the GPU).
type pipeline struct {
	*staging
	chunk, total int
	started      int // chunks whose copy from the GPU has been queued
	finished     int

	idle, reading, returning []int // slots, those under way in the order of their stream
	writing                  int   // how many
	chunkIn                  []int // by slot
	marks                    []Mark
}

func (s *staging) newPipeline(chunk, slots, total int) *pipeline {
	p := &pipeline{staging: s, chunk: chunk, total: total, chunkIn: make([]int, slots), marks: make([]Mark, slots)}
	for slot := range slots {
		p.idle = append(p.idle, slot)
	}
	return p
}

// run moves all chunks. After enough time it starts no more.
func (p *pipeline) run(l limits, sleep bool) (moved, error) {
	began := monotonic()
	err := p.loop(l, sleep)
	m := moved{bytes: uint64(p.finished * p.chunk), elapsed: monotonic() - began}
	if err != nil {
		p.abandon()
		return m, err
	}
	m.written = []Extent{{0, min(p.finished, p.chunksInBuffer()) * p.chunk}}
	return m, nil
}

func (p *pipeline) chunksInBuffer() int { return p.p.spec.BufferSize / p.chunk }

// offset is where a slot's chunk is in GPU memory.
func (p *pipeline) offset(slot int) int {
	return p.chunkIn[slot] % p.chunksInBuffer() * p.chunk
}

func (p *pipeline) loop(l limits, sleep bool) error {
	const roundsPerClock = 16
	for rounds := 0; p.finished < p.total; rounds++ {
		if rounds%roundsPerClock == 0 || sleep {
			if err := p.p.ended(); err != nil {
				return err
			}
			if monotonic() >= l.enough {
				p.total = p.started
			}
		}
		progressed, err := p.advance(l)
		if err == nil && !progressed && sleep {
			err = p.sleep(l)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// advance does what can be done without waiting, each kind of step once.
func (p *pipeline) advance(l limits) (progressed bool, err error) {
	steps := []func() (bool, error){p.finish, func() (bool, error) { return p.arrive(0, l) }, p.write, p.read}
	for _, step := range steps {
		did, err := step()
		if err != nil {
			return false, err
		}
		progressed = progressed || did
	}
	return progressed, nil
}

// sleep waits for the first thing that lets the pipeline go on.
func (p *pipeline) sleep(l limits) error {
	switch {
	case p.writing > 0:
		_, err := p.arrive(p.p.channel, l)
		return err
	case len(p.reading) > 0:
		return p.marks[p.reading[0]].Wait()
	case len(p.returning) > 0:
		return p.marks[p.returning[0]].Wait()
	}
	return nil
}

// read queues the copy of the next chunk into an idle slot.
func (p *pipeline) read() (bool, error) {
	if len(p.idle) == 0 || p.started == p.total {
		return false, nil
	}
	slot := p.idle[0]
	p.chunkIn[slot] = p.started
	if err := p.toHost.ToHost(p.at(p.p.source.host, slot), p.p.source.gpu, p.offset(slot), p.chunk); err != nil {
		return false, fmt.Errorf("copy from the GPU: %w", err)
	}
	if err := p.mark(slot, p.toHost); err != nil {
		return false, err
	}
	p.started++
	p.idle, p.reading = p.idle[1:], append(p.reading, slot)
	return true, nil
}

func (p *pipeline) at(memory *hostMemory, slot int) unsafe.Pointer {
	return unsafe.Add(memory.pointer(), slot*p.chunk)
}

func (p *pipeline) mark(slot int, stream Stream) error {
	mark, err := stream.Mark()
	if err != nil {
		return fmt.Errorf("GPU: %w", err)
	}
	p.marks[slot] = mark
	return nil
}

// reached reports whether the first of some slots' copies is done, and frees its
// mark if so.
func (p *pipeline) reached(slots []int) (bool, error) {
	if len(slots) == 0 {
		return false, nil
	}
	mark := p.marks[slots[0]]
	done, err := mark.Reached()
	if err != nil {
		return false, fmt.Errorf("copy: %w", err)
	}
	if !done {
		return false, nil
	}
	p.marks[slots[0]] = nil
	return true, mark.Free()
}

// write writes the first chunk whose copy from the GPU is done.
func (p *pipeline) write() (bool, error) {
	done, err := p.reached(p.reading)
	if !done || err != nil {
		return false, err
	}
	slot := p.reading[0]
	p.reading = p.reading[1:]
	t := p.p.base
	t.size = p.chunk
	pair := p.chunkIn[slot] % len(t.qps)
	t.qps = t.qps[pair : pair+1]
	if err := p.p.verbs.post(t, slot*p.chunk, slot*p.chunk, uint64(slot)); err != nil {
		return false, err
	}
	p.writing++
	return true, nil
}

// arrive takes the completion of a write and queues the copy of its chunk into
// the GPU's memory. With a channel it sleeps for the completion.
func (p *pipeline) arrive(channel handle, l limits) (bool, error) {
	if p.writing == 0 {
		return false, nil
	}
	c, found, err := p.p.verbs.next(p.p.base.cq, channel, l)
	if !found || err != nil {
		return false, err
	}
	slot := int(c.id)
	p.writing--
	if err := p.fromHost.FromHost(p.p.destination.gpu, p.offset(slot), p.at(p.p.destination.host, slot), p.chunk); err != nil {
		return false, fmt.Errorf("copy to the GPU: %w", err)
	}
	if err := p.mark(slot, p.fromHost); err != nil {
		return false, err
	}
	p.returning = append(p.returning, slot)
	return true, nil
}

// finish notes the first chunk whose copy into the GPU's memory is done.
func (p *pipeline) finish() (bool, error) {
	done, err := p.reached(p.returning)
	if !done || err != nil {
		return false, err
	}
	p.idle, p.returning = append(p.idle, p.returning[0]), p.returning[1:]
	p.finished++
	return true, nil
}

// abandon waits for the copies and frees the marks: the host memory is to be
// unpinned next. That this fails too adds nothing to the failure before it.
func (p *pipeline) abandon() {
	_ = p.toHost.Wait()
	_ = p.fromHost.Wait()
	for _, mark := range p.marks {
		if mark != nil {
			_ = mark.Free()
		}
	}
}

package loopback

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
	"unsafe"
)

// ring is the way of staged memory between two hosts. Whoever writes copies a chunk
// from GPU memory into a slot of its host memory and writes it to the same slot of the
// peer's, with its number as announcement. The peer copies it on into GPU memory and
// answers with a credit, an announcement without data: the slot is free on both sides.
// So no slot is written while it is read, and a credit says that a chunk is where it
// was to go. Both directions go on at once. Chunk n is in slot n modulo slots, on
// queue pair n modulo their number.
type ring struct {
	*half
	slots, chunk     int // the smaller ones of both sides, once connected
	chunks           int // that GPU memory holds
	toHost, fromHost Stream

	out       [mostSlots]outSlot
	started   uint32 // the number of the next chunk to write
	finished  uint32 // how many were credited
	reading   []int  // slots that are copied from the GPU, in their order
	in        [mostSlots]inSlot
	returning []int    // slots that are copied to the GPU, in their order
	owed      []uint32 // chunks whose credit is still to be sent
	credits   int      // that are under way
	served    uint32   // chunks that came and were copied
}

// outSlot is a slot to write from. It is free when the chunk is credited, and when the
// write is complete: the one can come before the other.
type outSlot struct {
	busy, posted, sent, credited bool
	chunk                        uint32
	mark                         Mark
}

// inSlot is a slot that is written to.
type inSlot struct {
	want uint32 // the only chunk that may come next
	busy bool
	mark Mark
}

// What an announcement says: a chunk's number, of a write or of a credit. What is
// posted has an id of the same kind.
const (
	creditBit  = 1 << 31
	mostChunks = creditBit - 1
	// idReceive marks what the peer announces; the rest is the queue pair.
	idReceive = 1 << 40
)

// ringSlots is how many chunks can be under way: each direction needs room in the queues
// for as many writes and credits, sent and received.
func (h *half) ringSlots() (int, error) {
	slots := min(mostSlots, h.spec.BufferSize/h.spec.ChunkSize)
	if h.device.depth > 0 {
		slots = min(slots, h.device.depth/2)
	}
	if h.device.completions > 0 {
		slots = min(slots, h.device.completions/(4*h.spec.QueuePairs))
	}
	if slots < 1 {
		return 0, fmt.Errorf("queues of %d entries, %d completions: %w", h.device.depth, h.device.completions, syscall.ENOSPC)
	}
	return slots, nil
}

// queues are the lengths of a queue pair's queues.
func (r *ring) queues() (depth, receives int) { return 2 * r.slots, 2 * r.slots }

// prepare pins the host memory and makes the streams.
func (r *ring) prepare() error {
	for _, end := range r.ends() {
		unpin, err := r.gpu.Pin(end.host.pointer(), len(end.host.bytes))
		if err != nil {
			return fmt.Errorf("GPU: %w", err)
		}
		r.undo.add("pinned memory", unpin)
	}
	for _, stream := range []*Stream{&r.toHost, &r.fromHost} {
		made, err := r.gpu.Stream()
		if err != nil {
			return fmt.Errorf("GPU: %w", err)
		}
		*stream = made
		r.undo.add("stream", made.Close)
	}
	return nil
}

// connect agrees with the peer, as the peer does with this side, and lets all its
// announcements in: none ever finds no place.
func (r *ring) connect(peer Address) error {
	r.slots, r.chunk = min(r.slots, peer.Staged.Slots), min(r.chunk, peer.Staged.Chunk)
	r.chunks = int(min(uint64(r.spec.BufferSize), peer.Staged.Memory)) / r.chunk
	for slot := range r.slots {
		r.in[slot].want = uint32(slot)
	}
	for pair := range r.pairs {
		for range 2 * r.slots {
			if err := r.verbs.postReceive(r.pairs[pair].qp, idReceive|uint64(pair)); err != nil {
				return err
			}
		}
	}
	return nil
}

// offset is where a chunk is in GPU memory, the same on both sides.
func (r *ring) offset(chunk uint32) int { return int(chunk) % r.chunks * r.chunk }

func (r *ring) slot(chunk uint32) int { return int(chunk) % r.slots }

func (r *ring) at(memory *hostMemory, slot int) unsafe.Pointer {
	return unsafe.Add(memory.pointer(), slot*r.chunk)
}

// send writes chunks until the peer has credited all that were begun.
func (r *ring) send(spec WriteSpec, l limits) (moved, error) {
	total := max(spec.Bytes/uint64(r.chunk), 1)
	if total > mostChunks-uint64(r.started) {
		total = mostChunks - uint64(r.started)
	}
	if total == 0 {
		return moved{}, &Error{Call: "write", Errno: syscall.EOVERFLOW}
	}
	first, last := r.finished, r.started+uint32(total)
	began := monotonic()
	err := r.loop(l, spec.Events, func() (uint32, bool) {
		if monotonic() >= l.enough {
			last = r.started
		}
		return last, r.finished == last
	})
	done := int(r.finished - first)
	m := moved{bytes: uint64(done) * uint64(r.chunk), elapsed: monotonic() - began}
	if err == nil {
		m.written = []Extent{{0, min(int(r.finished), r.chunks) * r.chunk}}
	}
	return m, err
}

// Served is what came while Serve ran, into GPU memory.
type Served struct {
	Bytes   uint64        `json:"bytes"`
	Elapsed time.Duration `json:"ns"`
	CPU     time.Duration `json:"cpu_ns"`
}

// Serve does what staged memory needs on the side that is written to, until the context
// ends, which is no failure: when the peer's Write has returned, there is nothing left
// to do. Other memory needs nobody: there it returns at once.
func (e *Endpoint) Serve(ctx context.Context) (Served, error) {
	var s Served
	err := e.do(ctx, StageServe, func(l limits) error {
		h := e.half
		if err := h.usable(); err != nil || h.ring == nil {
			return err
		}
		before, began, cpu := h.ring.served, monotonic(), cpuTime()
		err := h.ring.loop(l, false, func() (uint32, bool) { return h.ring.started, false })
		s = Served{uint64(h.ring.served-before) * uint64(h.ring.chunk), monotonic() - began, cpuTime() - cpu}
		if !endedBy(ctx, err) {
			h.broken = err
		}
		return err
	})
	if endedBy(ctx, err) {
		err = nil
	}
	return s, err
}

// endedBy reports whether an error is no more than the end of a context.
func endedBy(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, syscall.ECANCELED) || errors.Is(err, syscall.ETIMEDOUT))
}

// pollTime is how long the loop polls after something has happened. Then it sleeps for
// the next completion: the peer may well have nothing to do for long.
const pollTime = 200 * time.Microsecond

// loop works until more says that all is done. It also says the chunk before which to
// stop writing.
func (r *ring) loop(l limits, events bool, more func() (last uint32, done bool)) error {
	active := monotonic()
	for {
		last, done := more()
		if done {
			return nil
		}
		if err := l.ended(); err != nil {
			return err
		}
		progressed, err := r.advance(l, last)
		switch now := monotonic(); {
		case err != nil:
			return err
		case progressed:
			active = now
		case events || now-active > pollTime:
			err = r.sleep(l)
		}
		if err != nil {
			return err
		}
	}
}

// advance does what can be done without waiting, each kind of step once.
func (r *ring) advance(l limits, last uint32) (progressed bool, err error) {
	steps := []func() (bool, error){
		func() (bool, error) { return r.complete(0, l) }, r.finish, r.credit, r.post, func() (bool, error) { return r.read(last) },
	}
	for _, step := range steps {
		did, err := step()
		if err != nil {
			return false, err
		}
		progressed = progressed || did
	}
	return progressed, nil
}

// sleep waits for the first thing that lets the ring go on.
func (r *ring) sleep(l limits) error {
	var mark Mark
	switch {
	case len(r.reading) > 0:
		mark = r.out[r.reading[0]].mark
	case len(r.returning) > 0:
		mark = r.in[r.returning[0]].mark
	default:
		_, err := r.complete(r.channel, l)
		return err
	}
	if err := mark.Wait(); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return nil
}

// complete takes one completion, if there is one.
func (r *ring) complete(channel handle, l limits) (bool, error) {
	c, found, err := r.verbs.next(r.base.cq, channel, l)
	if !found || err != nil {
		return false, err
	}
	if !c.received {
		return true, r.sent(c.id)
	}
	pair := int(c.id &^ idReceive)
	if err := r.verbs.postReceive(r.pairs[pair].qp, c.id); err != nil {
		return false, err
	}
	if c.imm&creditBit != 0 {
		return true, r.credited(c.imm &^ creditBit)
	}
	return true, r.arrived(c.imm)
}

// sent notes that a write or a credit of this side is complete.
func (r *ring) sent(id uint64) error {
	if id&creditBit != 0 {
		r.credits--
		return nil
	}
	slot := &r.out[r.slot(uint32(id))]
	slot.sent = true
	r.release(slot)
	return nil
}

// credited notes a credit of the peer, which it can give only for what it was sent.
func (r *ring) credited(chunk uint32) error {
	slot := &r.out[r.slot(chunk)]
	if !slot.posted || slot.credited || slot.chunk != chunk {
		return &Error{Call: "credit of the peer", Errno: syscall.EPROTO}
	}
	slot.credited = true
	r.release(slot)
	return nil
}

func (r *ring) release(slot *outSlot) {
	if slot.sent && slot.credited {
		*slot = outSlot{}
		r.finished++
	}
}

// arrived queues the copy of a chunk into GPU memory.
func (r *ring) arrived(chunk uint32) error {
	index := r.slot(chunk)
	slot := &r.in[index]
	if !r.role.receives() || slot.busy || slot.want != chunk {
		return &Error{Call: "chunk of the peer", Errno: syscall.EPROTO}
	}
	if err := r.fromHost.FromHost(r.destination.gpu, r.offset(chunk), r.at(r.destination.host, index), r.chunk); err != nil {
		return fmt.Errorf("copy to the GPU: %w", err)
	}
	mark, err := r.fromHost.Mark()
	if err != nil {
		return fmt.Errorf("GPU: %w", err)
	}
	slot.busy, slot.mark = true, mark
	r.returning = append(r.returning, index)
	return nil
}

// reached reports whether a copy is done, and frees its mark if so.
func reached(mark *Mark) (bool, error) {
	done, err := (*mark).Reached()
	if err != nil {
		return false, fmt.Errorf("copy: %w", err)
	}
	if !done {
		return false, nil
	}
	one := *mark
	*mark = nil
	return true, one.Free()
}

// finish notes the first chunk whose copy into GPU memory is done.
func (r *ring) finish() (bool, error) {
	if len(r.returning) == 0 {
		return false, nil
	}
	slot := &r.in[r.returning[0]]
	if done, err := reached(&slot.mark); !done || err != nil {
		return false, err
	}
	r.returning = r.returning[1:]
	r.owed = append(r.owed, slot.want)
	slot.busy, slot.want = false, slot.want+uint32(r.slots)
	r.served++
	return true, nil
}

// credit sends the first credit that is owed, if there is room for it.
func (r *ring) credit() (bool, error) {
	if len(r.owed) == 0 || r.credits == r.slots {
		return false, nil
	}
	chunk := r.owed[0]
	r.owed = r.owed[1:]
	r.credits++
	return true, r.verbs.post(r.announcement(chunk, 0, creditBit|chunk), 0, 0, creditBit|uint64(chunk))
}

// announcement is a message on the chunk's queue pair.
func (r *ring) announcement(chunk uint32, size int, imm uint32) transfer {
	t := r.base
	pair := int(chunk) % len(t.qps)
	t.qps = t.qps[pair : pair+1]
	t.size, t.announce, t.imm = size, true, imm
	return t
}

// post writes the first chunk whose copy from the GPU is done.
func (r *ring) post() (bool, error) {
	if len(r.reading) == 0 {
		return false, nil
	}
	index := r.reading[0]
	slot := &r.out[index]
	if done, err := reached(&slot.mark); !done || err != nil {
		return false, err
	}
	r.reading = r.reading[1:]
	slot.posted = true
	at := index * r.chunk
	return true, r.verbs.post(r.announcement(slot.chunk, r.chunk, slot.chunk), at, at, uint64(slot.chunk))
}

// read queues the copy of the next chunk from GPU memory, if its slot is free.
func (r *ring) read(last uint32) (bool, error) {
	index := r.slot(r.started)
	slot := &r.out[index]
	if r.started >= last || slot.busy {
		return false, nil
	}
	if err := r.toHost.ToHost(r.at(r.source.host, index), r.source.gpu, r.offset(r.started), r.chunk); err != nil {
		return false, fmt.Errorf("copy from the GPU: %w", err)
	}
	mark, err := r.toHost.Mark()
	if err != nil {
		return false, fmt.Errorf("GPU: %w", err)
	}
	*slot = outSlot{busy: true, chunk: r.started, mark: mark}
	r.started++
	r.reading = append(r.reading, index)
	return true, nil
}

// abandon waits for the copies and frees the marks: the host memory is to be unpinned
// next. That this fails too adds nothing to the failure before it.
func (r *ring) abandon() error {
	_ = r.toHost.Wait()
	_ = r.fromHost.Wait()
	for i := range r.out {
		for _, mark := range []Mark{r.out[i].mark, r.in[i].mark} {
			if mark != nil {
				_ = mark.Free()
			}
		}
	}
	return nil
}

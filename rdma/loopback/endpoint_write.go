package loopback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"gdr_exporter/collector/sysread"
)

// WriteSpec says how much to write.
type WriteSpec struct {
	Bytes  uint64        // at most, but one message for each queue pair at least
	Within time.Duration // begin no more messages after it; 0: only the deadline counts
	Events bool          // sleep for completions instead of polling: for CPU time
}

// Written is what has been written, and acknowledged by the peer.
type Written struct {
	Bytes   uint64        `json:"bytes"`
	Elapsed time.Duration `json:"ns"`
	CPU     time.Duration `json:"cpu_ns"`            // of the endpoint's thread
	Extents []Extent      `json:"extents,omitempty"` // of the peer's buffer: what it can verify
}

// Rate is in bytes per second. It is not known of what took no time.
func (w Written) Rate() sysread.Maybe[float64] {
	return moved{bytes: w.Bytes, elapsed: w.Elapsed}.rate()
}

// Write writes the buffer to the peer's, over and over, until so many bytes have been
// written or so much time has passed. With staged memory it returns when the peer has
// all of it in its GPU's memory, and serves what the peer writes meanwhile. What was
// written before a failure is told too.
func (e *Endpoint) Write(ctx context.Context, spec WriteSpec) (Written, error) {
	var w Written
	err := e.do(ctx, StageWrite, func(l limits) error {
		if spec.Within > 0 {
			l.enough = min(l.enough, monotonic()+spec.Within)
		}
		began := cpuTime()
		m, err := e.half.write(spec, l)
		w = Written{m.bytes, m.elapsed, cpuTime() - began, m.written}
		return err
	})
	return w, err
}

func (h *half) write(spec WriteSpec, l limits) (moved, error) {
	if err := h.mayWrite(); err != nil {
		return moved{}, err
	}
	if !h.filled { // whatever is in GPU memory is nobody's business
		return moved{}, fmt.Errorf("the buffer has not been filled: %w", syscall.ENODATA)
	}
	if h.ring != nil {
		m, err := h.ring.send(spec, l)
		h.broken = err
		return m, err
	}
	t := h.base
	t.size, t.bytes = h.spec.MessageSize, max(spec.Bytes, uint64(h.spec.MessageSize*len(t.qps)))
	t.slice = h.sliceTo(*h.peer)
	if t.slice < t.size {
		return moved{}, fmt.Errorf("the peer's %d bytes do not hold a message of %d for each queue pair: %w", h.peer.Length, t.size, syscall.EMSGSIZE)
	}
	t.signalEvery, t.batch = signalEvery(t.size, t.depth), batch(t.size)
	if spec.Events {
		t.channel = h.channel
	}
	progress, err := h.verbs.transfer(t, l)
	h.broken = err
	return t.moved(progress), err
}

// batch is how many writes of a size are posted with one call. Large ones gain nothing
// by being posted together, and soft-RoCE, which sends within the call, leaves what is
// too much to a kernel thread: that competes with the one that polls, and costs a
// quarter of the rate.
func batch(size int) int {
	const most, bytes = 16, 64 << 10
	return min(max(bytes/size, 1), most)
}

// sliceTo is the part of both buffers that a queue pair works through.
func (h *half) sliceTo(peer Address) int {
	size := int(min(uint64(h.data(&h.source)), peer.Length))
	return size / len(h.pairs) / h.spec.MessageSize * h.spec.MessageSize
}

func (h *half) mayWrite() error {
	if !h.role.sends() {
		return &Error{Call: "write", Errno: syscall.EBADF}
	}
	return h.usable()
}

// Ping is how writes of 8 bytes, one at a time, were answered.
type Ping struct {
	Latencies []time.Duration `json:"latencies_ns"` // from post to completion of each, in their order
	// Lost is 1 if one was not answered: it breaks the connection, so that it is the last.
	Lost int `json:"lost"`
}

// Median is that of the latencies, if there are any.
func (p Ping) Median() sysread.Maybe[time.Duration] {
	if len(p.Latencies) == 0 {
		return sysread.Maybe[time.Duration]{}
	}
	return sysread.Some(slices.Sorted(slices.Values(p.Latencies))[len(p.Latencies)/2])
}

// mostPings bounds what is allocated for them.
const mostPings = 100_000

// Ping writes 8 bytes so many times, one at a time. An answer that is late costs no
// CPU time. Staged memory has none.
func (e *Endpoint) Ping(ctx context.Context, count int) (Ping, error) {
	var p Ping
	err := e.do(ctx, StagePing, func(l limits) error {
		var err error
		p, err = e.half.ping(count, l)
		return err
	})
	return p, err
}

func (h *half) ping(count int, l limits) (Ping, error) {
	if err := h.mayWrite(); err != nil {
		return Ping{}, err
	}
	if h.ring != nil || count < 1 || count > mostPings || h.peer.Length < latencySize {
		return Ping{}, fmt.Errorf("%d pings, %s memory of %d bytes: %w", count, h.memory, h.peer.Length, syscall.EINVAL)
	}
	t := h.base
	t.size, t.slice, t.signalEvery, t.channel = latencySize, latencySize, 1, h.channel
	samples := make([]time.Duration, count)
	n, err := h.verbs.latency(t, l, samples)
	h.broken = err
	p := Ping{Latencies: samples[:n]}
	var failure *Error
	if errors.As(err, &failure) && failure.Status != 0 {
		p.Lost = 1
	}
	return p, err
}

package session

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"syscall"
	"time"
)

// half is what both sides of a session have.
type half struct {
	conn   *conn
	held   *held
	memory Memory
	kind   Kind
	length uint64 // of the own memory that is written to
}

// round is a round as one side sees it, from when both are ready. A worker writes,
// serves and verifies, one after the other as endpoints do; the round itself hears
// what the other side says meanwhile, so that the end of it ends the worker.
type round struct {
	half
	begin
	writes, receives bool
	mine, theirs     uint64 // seeds of what is written here and there

	started time.Time

	mu       sync.Mutex
	own      done          // what this side wrote, also if it failed
	told     bool          // own was sent
	came     done          // what the other side wrote
	arrived  chan struct{} // closed when it is known
	heard    bool          // came is known
	found    Verification  // here
	looked   bool          // found is known
	answer   Verification  // of the other side
	answered bool          // answer is known
}

// newRound is a round that the other side could begin at a time.
func newRound(h half, b begin, initiator bool, started time.Time) *round {
	r := &round{half: h, begin: b, started: started, arrived: make(chan struct{})}
	if initiator {
		r.writes, r.receives, r.mine, r.theirs = b.Direction.initiator(), b.Direction.responder(), b.Seed, b.Back
	} else {
		r.writes, r.receives, r.mine, r.theirs = b.Direction.responder(), b.Direction.initiator(), b.Back, b.Seed
	}
	return r
}

// run carries the round through. When it returns, the worker is gone, or hangs.
func (r *round) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	worked := make(chan error, 1)
	serving, stop := context.WithCancel(ctx)
	defer stop()
	go func() { worked <- r.work(ctx, serving) }()
	working, err := r.listen(ctx, stop, worked)
	if err != nil && working {
		cancel(err)
		<-worked //nolint:errcheck // it says that it was ended
	}
	if err != nil {
		return at(StageRound, err)
	}
	return nil
}

// listen hears the other side until all is done. Each thing that happens is waited for
// as long as the longest of them may take.
func (r *round) listen(ctx context.Context, stop func(), worked <-chan error) (working bool, err error) {
	most := r.conn.limits.patience() + r.within()
	if r.Within == 0 {
		most = mostDeadline // the session's deadline comes first
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	working = true
	in := r.conn.in
	for working || !r.complete() {
		select {
		case err := <-worked:
			if err != nil {
				return false, err
			}
			working, worked = false, nil
		case m := <-in:
			if r.over() {
				// The other side has seen the end of the round before this one.
				r.conn.again, in = &m, nil
				continue
			}
			if err := r.hear(m, stop); err != nil {
				return working, err
			}
		case <-ctx.Done():
			return working, cause(ctx)
		case <-r.conn.limits.late:
			return working, silent(most)
		case <-timer.C:
			return working, silent(most)
		}
		timer.Reset(most)
	}
	return false, nil
}

func silent(most time.Duration) *Failure {
	return failf(ReasonTimeout, "", "nothing has been heard for %v: %w", most, syscall.ETIMEDOUT)
}

func (b begin) within() time.Duration { return time.Duration(b.Within) * time.Millisecond }

// most is how long writing may take in all.
func (r *round) most() time.Duration {
	if r.Within == 0 {
		return 0
	}
	return r.within() + r.conn.limits.Step
}

// complete reports whether the other side has said all that it has to.
func (r *round) complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return (!r.writes || r.answered) && (!r.receives || r.heard)
}

// over reports whether both sides have said all that they have to.
func (r *round) over() bool {
	r.mu.Lock()
	looked := r.looked
	r.mu.Unlock()
	return r.complete() && (!r.receives || looked)
}

// hear takes a message of the round.
func (r *round) hear(m message, stop func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case m.Done != nil && r.receives && !r.heard:
		if err := r.believable(*m.Done); err != nil {
			return protocolError("done: %w: %w", err, syscall.EBADMSG)
		}
		r.came, r.heard = *m.Done, true
		stop()
		close(r.arrived)
		return nil
	case m.Verified != nil && r.told && !r.answered:
		if v := *m.Verified; v.Bytes > total(r.own.Extents) || uint64(v.Mismatches) > v.Bytes/8+1 {
			return protocolError("verified: %d mismatches in %d bytes, of %d that were written: %w", v.Mismatches, v.Bytes, total(r.own.Extents), syscall.EBADMSG)
		}
		r.answer, r.answered = *m.Verified, true
		return nil
	}
	return r.conn.expected(m)
}

// believable checks what the other side says that it has written.
func (r *round) believable(d done) error {
	l := d.Latency
	switch {
	case l == nil && r.Pings > 0, l != nil && (r.Pings == 0 || l.Count+l.Lost > r.Pings):
		return fmt.Errorf("%d pings, of %d", countOf(l), r.Pings)
	case len(d.Extents) == 0 && d.Bytes > 0:
		return fmt.Errorf("%d bytes, nowhere", d.Bytes)
	case d.Bytes > r.Bytes && d.Bytes-r.Bytes > max(r.length, uint64(r.conn.limits.Buffer)):
		// One message for each queue pair may be more than what was asked for.
		return fmt.Errorf("%d bytes, of %d", d.Bytes, r.Bytes)
	case d.Elapsed > time.Since(r.started)+time.Second:
		return fmt.Errorf("%v, of %v that have passed", d.Elapsed, time.Since(r.started))
	case r.memory != Staged && total(d.Extents) > r.length:
		// Of staged memory the endpoint alone knows the length.
		return fmt.Errorf("%d bytes to verify, of %d", total(d.Extents), r.length)
	}
	return nil
}

func countOf(l *Latency) int {
	if l == nil {
		return 0
	}
	return l.Count + l.Lost
}

// total is their length. What the other side says of them can be as long as it likes.
func total(extents []Extent) uint64 {
	var sum uint64
	for _, e := range extents {
		if sum += uint64(e.Length); sum > math.MaxInt64 {
			return math.MaxInt64
		}
	}
	return sum
}

// work is what this side does.
func (r *round) work(ctx, serving context.Context) error {
	if r.writes {
		if err := r.write(ctx); err != nil {
			return err
		}
	}
	if !r.receives {
		return nil
	}
	if err := r.serve(ctx, serving); err != nil {
		return err
	}
	select {
	case <-r.arrived:
	case <-ctx.Done():
		return cause(ctx)
	}
	var v Verification
	if len(r.came.Extents) > 0 {
		var err error
		v, err = call(ctx, r.held, "verify", r.conn.limits.Step, func(ctx context.Context, e Endpoint) (Verification, error) {
			return e.Verify(ctx, r.theirs, r.came.Extents)
		})
		if err != nil {
			return err
		}
	}
	r.mu.Lock()
	r.found, r.looked = v, true
	r.mu.Unlock()
	return r.conn.send(message{Verified: &v})
}

// write writes, and tells.
func (r *round) write(ctx context.Context) error {
	var d done
	var err error
	if r.Pings > 0 {
		var p Pings
		p, err = call(ctx, r.held, "ping", r.conn.limits.Step, func(ctx context.Context, e Endpoint) (Pings, error) { return e.Ping(ctx, r.Pings) })
		d.Latency = latency(p)
		d.Bytes = 8 * uint64(len(p.Latencies))
		if err == nil {
			d.Extents = []Extent{{Offset: 0, Length: 8}}
		}
	}
	if err == nil && r.kind == Bandwidth {
		d.Written, err = call(ctx, r.held, "write", r.most(), func(ctx context.Context, e Endpoint) (Written, error) {
			return e.Write(ctx, r.Bytes, r.within())
		})
	}
	r.mu.Lock()
	r.own, r.told = d, err == nil
	r.mu.Unlock()
	if err != nil {
		return err
	}
	return r.conn.send(message{Done: &d})
}

// serve does what the writing of the other side needs, until that says it is done.
func (r *round) serve(ctx, serving context.Context) error {
	select {
	case <-r.arrived:
		return nil
	default:
	}
	err := r.held.do(serving, "serve", 0, func(ctx context.Context, e Endpoint) error { return e.Serve(ctx) })
	if ctx.Err() == nil && errors.Is(err, context.Canceled) {
		err = nil // it was told to end, and says so
	}
	return err
}

// moved is how many bytes the round moved, both ways. What is not known is taken for
// all that was asked for.
func (r *round) moved() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := r.own.Bytes
	switch {
	case r.heard:
		sum += r.came.Bytes
	case r.receives:
		sum += r.Bytes
	}
	return sum
}

// latency sums up pings. Of none that was answered there is nothing to sum up but that.
func latency(p Pings) *Latency {
	l := &Latency{Count: len(p.Latencies), Lost: p.Lost}
	if l.Count > 0 {
		sorted := slices.Sorted(slices.Values(p.Latencies))
		l.Median, l.P99 = sorted[l.Count/2], sorted[(l.Count*99-1)/100]
	}
	return l
}

// ways are what the initiator and the responder wrote, as the initiator sees it; nil:
// nothing is known of it.
func (r *round) ways() (written, back *Way) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.own.Bytes > 0 || r.own.Latency != nil {
		written = wayOf(r.own, r.kind, r.told)
		written.Verified, written.Mismatches = r.answer.Bytes, r.answer.Mismatches
	}
	if r.heard {
		back = wayOf(r.came, r.kind, true)
		back.Verified, back.Mismatches = r.found.Bytes, r.found.Mismatches
	}
	return written, back
}

// wayOf has a rate only if all was written: what waited for an answer that never came
// has none.
func wayOf(d done, kind Kind, well bool) *Way {
	w := &Way{Bytes: d.Bytes, Elapsed: d.Elapsed, CPU: d.CPU, Latency: d.Latency}
	if well && kind == Bandwidth && d.Elapsed > 0 {
		w.BytesPerSecond = float64(d.Bytes) / d.Elapsed.Seconds()
	}
	return w
}

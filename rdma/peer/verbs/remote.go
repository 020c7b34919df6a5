package verbs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/child"
	"gdr_exporter/rdma/peer/session"
)

// remote is an endpoint in a child. A call that does not return when it should is given
// up, and the child killed, so that no call hangs but Close: that waits for a process
// that cannot be killed, as the memory is there as long as that.
type remote struct {
	process *child.Process
	grace   time.Duration
	answers chan answer
	silent  chan struct{} // closed when the child says no more
	flood   error         // why it is not heard any more; once silent is closed

	address session.Address
	facts   session.Facts

	turn   sync.Mutex // of the call under way
	number int        // of the last one

	mu     sync.Mutex
	ending *session.Failure // why it was told to end; nil: it was not
	dead   *session.Failure // how it died; nil: nobody was told
	closed bool
}

var _ session.Endpoint = (*remote)(nil)

func newRemote(p *child.Process, grace time.Duration) *remote {
	return &remote{process: p, grace: grace, answers: make(chan answer, mostWaiting), silent: make(chan struct{})}
}

// listen hears the child. Lines that are no answers are left out: a library may have
// written them.
func (r *remote) listen() {
	defer close(r.silent)
	r.flood = child.ReadLines(r.process, mostLine, mostOutput, func(line []byte) (more bool) {
		var a answer
		if len(line) == 0 || line[0] != '{' || json.Unmarshal(line, &a) != nil {
			return true
		}
		select {
		case r.answers <- a:
		default: // nobody asked for so many
		}
		return true
	})
}

// opened takes what the opening found out.
func (r *remote) opened(a answer) error {
	if a.Facts == nil {
		return session.Fail(session.ReasonRDMA, string(loopback.StageOpen), errors.New("the process for the memory has opened nothing"))
	}
	address, err := Opener{}.Parse(a.Address)
	if err != nil {
		return err
	}
	r.address, r.facts = address, *a.Facts
	return nil
}

// call has the child make a call and waits for the answer.
func (r *remote) call(ctx context.Context, q request) (answer, error) {
	r.turn.Lock()
	defer r.turn.Unlock()
	r.number++
	q.Number = r.number
	return r.ask(ctx, q.Call, q.Number, line(q))
}

func line(q request) []byte {
	text, _ := json.Marshal(q) // of such types it never fails
	return append(text, '\n')
}

// ask says something to the child and waits for the answer. A child that does not answer
// soon after the context has ended is killed.
func (r *remote) ask(ctx context.Context, stage string, number int, text []byte) (answer, error) {
	_, _ = r.process.Write(text) // if it is gone by now its end says why
	var patience <-chan time.Time
	over := ctx.Done()
	for {
		select {
		case a := <-r.answers:
			if a.Number == number {
				return a, r.orEnding(stage, a.Failure.failure())
			}
		case <-r.silent:
			// What it said last is still there.
			if a, has := r.last(number); has {
				return a, r.orEnding(stage, a.Failure.failure())
			}
			return answer{}, r.died(stage)
		case <-over:
			over, patience = nil, time.After(r.grace)
			_, _ = r.process.Write(line(request{Number: number, Call: callEnd}))
		case <-patience:
			return answer{}, r.hung(stage)
		}
	}
}

// last is the answer with a number of those that were not taken.
func (r *remote) last(number int) (answer, bool) {
	for {
		select {
		case a := <-r.answers:
			if a.Number == number {
				return a, true
			}
		default:
			return answer{}, false
		}
	}
}

// orEnding is the failure of a call, or why the child was told to end if it was.
func (r *remote) orEnding(stage string, f *session.Failure) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case f == nil:
		return nil
	case r.ending != nil:
		return at(stage, r.ending)
	}
	return f
}

func at(stage string, f *session.Failure) *session.Failure {
	other := *f
	other.Stage = stage
	return &other
}

// died is what calls of a child come to that says no more.
func (r *remote) died(stage string) error {
	select {
	case <-r.process.Gone():
	case <-time.After(r.grace):
		r.process.Kill()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending != nil {
		return at(stage, r.ending)
	}
	if r.dead == nil {
		r.dead = session.Fail(session.ReasonRDMA, stage, errors.New("the process for the memory died: "+r.death()))
	}
	return at(stage, r.dead)
}

// death says how the child died, in one line.
func (r *remote) death() string {
	how := "it cannot be killed"
	select {
	case <-r.process.Gone():
		how = r.process.State().String()
		if r.process.State().Success() {
			how += " without an answer"
		}
	default:
	}
	if r.flood != nil {
		how = r.flood.Error()
	}
	if said := r.process.LastWords(); said != "" {
		how += ": " + said
	}
	return how
}

// hung ends a child that does not answer.
func (r *remote) hung(stage string) error {
	gone := "and was killed"
	if !r.process.Kill() {
		gone = "and cannot be killed"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The errno is only told: in the error it would say that the context has ended the call.
	r.dead = session.Fail(session.ReasonHung, stage, fmt.Errorf("the process for the memory did not answer for %v, %s", r.grace, gone))
	r.dead.Errno = "ETIMEDOUT"
	return r.dead
}

// end has the child close the endpoint, for a reason, and kills it if it does not.
func (r *remote) end(why *session.Failure) {
	r.mu.Lock()
	if r.ending == nil {
		r.ending = why
	}
	r.mu.Unlock()
	_, _ = r.process.Write(line(request{Number: numberClose, Call: callClose}))
	select {
	case <-r.process.Gone():
	case <-time.After(r.grace):
		r.process.Kill()
	}
}

// bury waits until the child is gone, and kills it if it does not go.
func (r *remote) bury() {
	select {
	case <-r.process.Gone():
	case <-time.After(r.grace):
		r.process.Kill()
	}
	<-r.process.Gone()
	r.process.Close()
}

// Address is what the peer must know.
func (r *remote) Address() session.Address { return r.address }

// Facts are what the opening found out.
func (r *remote) Facts() session.Facts { return r.facts }

// Connect connects to the peer.
func (r *remote) Connect(ctx context.Context, peer session.Address) error {
	_, err := r.call(ctx, request{Call: callConnect, Peer: &peer})
	return err
}

// Fill fills the memory to write from.
func (r *remote) Fill(ctx context.Context, seed uint64) error {
	_, err := r.call(ctx, request{Call: callFill, Seed: seed})
	return err
}

// Write writes. What was written before a failure is told too.
func (r *remote) Write(ctx context.Context, bytes uint64, within time.Duration) (session.Written, error) {
	a, err := r.call(ctx, request{Call: callWrite, Bytes: bytes, Within: int64(within)})
	return orZero(a.Written), err
}

// Ping writes 8 bytes so many times.
func (r *remote) Ping(ctx context.Context, count int) (session.Pings, error) {
	a, err := r.call(ctx, request{Call: callPing, Count: count})
	return orZero(a.Pings), err
}

// Serve does what the side that is written to has to do.
func (r *remote) Serve(ctx context.Context) error {
	_, err := r.call(ctx, request{Call: callServe})
	return err
}

// Verify looks for the pattern.
func (r *remote) Verify(ctx context.Context, seed uint64, extents []session.Extent) (session.Verification, error) {
	a, err := r.call(ctx, request{Call: callVerify, Seed: seed, Extents: extents})
	return orZero(a.Verification), err
}

func orZero[T any](v *T) T {
	if v == nil {
		var none T
		return none
	}
	return *v
}

// Close ends what is under way and the child. When it has returned the process is gone,
// and all that it had.
func (r *remote) Close() error {
	r.mu.Lock()
	again, dead := r.closed, r.dead != nil || r.ending != nil
	r.closed = true
	r.mu.Unlock()
	if again {
		<-r.process.Gone()
		return nil
	}
	defer r.bury()
	if dead { // somebody was told
		return nil
	}
	_, _ = r.process.Write(line(request{Number: numberClose, Call: callClose})) // ends the call under way
	r.turn.Lock()
	defer r.turn.Unlock()
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := r.ask(now, callClose, numberClose, nil)
	return err
}

// errQuiet is why no child is started and those that there were have ended.
func errQuiet(stage string) *session.Failure {
	return session.Fail(session.ReasonGate, stage, fmt.Errorf("the exporter was quiesced: %w", syscall.EBUSY))
}

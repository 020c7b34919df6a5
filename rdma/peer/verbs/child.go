package verbs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sync"
	"syscall"
	"time"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/child"
	"gdr_exporter/rdma/loopback/isolate"
	"gdr_exporter/rdma/peer/session"
)

// ChildCommand is the argument with which this binary is a child.
const ChildCommand = "peer-child"

// ChildMain opens the endpoint that it reads from in, and does with it what it is told
// there, until it is told to close it, in ends or ctx does. That something fails is no
// error: the parent is told of it.
func ChildMain(ctx context.Context, in io.Reader, out io.Writer, open isolate.Opener) error {
	return childMain(ctx, in, out, func(o order) session.Opener {
		opener := Opener{Template: o.Template, MostBuffer: o.MostBuffer}
		opener.OpenGPU = func(address string) (loopback.GPU, error) {
			settings := o.GPU
			settings.Address = address
			return open(settings)()
		}
		return opener
	})
}

func childMain(ctx context.Context, in io.Reader, out io.Writer, opener func(order) session.Opener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := &holder{
		told: child.NewTeller(out, cancel), gone: cancel, ended: numberOpen - 1,
		orders: make(chan order, 1), requests: make(chan request, mostWaiting), heard: make(chan struct{}),
	}
	go h.listen(in)
	o, err := h.awaitOrder()
	if err != nil {
		return err
	}
	h.hold(ctx, opener(o), o.Spec)
	return h.told.Err()
}

// mostWaiting is how many requests a child takes that it has not come to. A parent waits
// for each answer, so that there is but one, and the one to close.
const mostWaiting = 4

// holder is what holds an endpoint for a parent.
type holder struct {
	orders   chan order
	requests chan request
	heard    chan struct{} // closed when the parent says no more
	gone     func()        // ends all
	told     *child.Teller
	bad      error // what the parent said that is no order; once heard is closed

	mu     sync.Mutex
	number int    // of the call under way
	end    func() // of it
	ended  int    // the last call that was told to end
}

// hold opens an endpoint and makes calls of it until it is told to close it.
func (h *holder) hold(ctx context.Context, opener session.Opener, spec session.Spec) {
	e := h.open(ctx, opener, spec)
	if e == nil {
		return
	}
	for {
		select {
		case q := <-h.requests:
			h.told.Tell(h.answer(ctx, e, q))
			if q.Call == callClose {
				return
			}
		case <-ctx.Done():
			_ = e.Close() // nobody is left to be told
			return
		}
	}
}

// open opens the endpoint, nil if that fails.
func (h *holder) open(ctx context.Context, opener session.Opener, spec session.Spec) session.Endpoint {
	opening, done := h.begin(ctx, numberOpen)
	defer done()
	e, err := opener.Open(opening, spec)
	if err != nil {
		h.told.Tell(answer{Failure: carry(string(loopback.StageOpen), err)})
		return nil
	}
	facts := e.Facts()
	h.told.Tell(answer{Address: e.Address().Text, Facts: &facts})
	return e
}

// listen hears the parent. What ends a call must not wait for that call.
func (h *holder) listen(in io.Reader) {
	defer close(h.heard)
	defer h.gone()
	hear := h.order
	err := child.ReadLines(in, mostLine, math.MaxInt64, func(line []byte) (more bool) {
		more, hear = hear(line), h.request
		return more
	})
	if h.bad == nil {
		h.bad = err
	}
}

func (h *holder) order(line []byte) (more bool) {
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		h.bad = fmt.Errorf("order: %w", err)
		return false
	}
	h.orders <- o
	return true
}

func (h *holder) request(line []byte) (more bool) {
	var q request
	if err := json.Unmarshal(line, &q); err != nil {
		return false // a parent of the same program says nothing else
	}
	switch q.Call {
	case callEnd:
		h.endCall(q.Number)
		return true
	case callClose:
		h.endCall(math.MaxInt)
	}
	select {
	case h.requests <- q:
		return true
	default:
		return false // it does not wait for answers
	}
}

// awaitOrder waits for the order, or for the end of what the parent says.
func (h *holder) awaitOrder() (order, error) {
	select {
	case o := <-h.orders:
		return o, nil
	case <-h.heard:
	}
	select {
	case o := <-h.orders: // it came before that
		return o, nil
	default:
	}
	if h.bad != nil {
		return order{}, h.bad
	}
	return order{}, fmt.Errorf("order: %w", io.ErrUnexpectedEOF)
}

// endCall ends calls up to a number: the one under way, and those that are to come.
func (h *holder) endCall(number int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = max(h.ended, number)
	if h.end != nil && h.number <= h.ended {
		h.end()
	}
}

// begin is the context of a call, which endCall ends.
func (h *holder) begin(ctx context.Context, number int) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.number, h.end = number, cancel; number <= h.ended {
		cancel()
	}
	return ctx, func() {
		cancel()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.end = nil
	}
}

// answer makes the call of a request.
func (h *holder) answer(ctx context.Context, e session.Endpoint, q request) answer {
	ctx, done := h.begin(ctx, q.Number)
	defer done()
	a := answer{Number: q.Number}
	a.Failure = carry(q.Call, a.make(ctx, e, q))
	return a
}

// make makes the call, and notes what it returns but its error.
func (a *answer) make(ctx context.Context, e session.Endpoint, q request) (err error) {
	switch q.Call {
	case callConnect:
		if q.Peer == nil {
			return fmt.Errorf("to nobody: %w", syscall.EINVAL)
		}
		return e.Connect(ctx, *q.Peer)
	case callFill:
		return e.Fill(ctx, q.Seed)
	case callWrite:
		a.Written = new(session.Written)
		*a.Written, err = e.Write(ctx, q.Bytes, time.Duration(q.Within))
		return err
	case callPing:
		a.Pings = new(session.Pings)
		*a.Pings, err = e.Ping(ctx, q.Count)
		return err
	case callServe:
		return e.Serve(ctx)
	case callVerify:
		a.Verification = new(session.Verification)
		*a.Verification, err = e.Verify(ctx, q.Seed, q.Extents)
		return err
	case callClose:
		return e.Close()
	}
	return fmt.Errorf("unknown call %.32q: %w", q.Call, syscall.ENOSYS)
}

package podresources

import (
	"context"
	"sync"
	"time"

	"gdr_exporter/collector/sysread"
)

// DefaultSocket is where a kubelet with its files in the usual place has its socket.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// deviceName is the device of errors.
const deviceName = "kubelet"

// Times of calls.
const (
	interval = 30 * time.Second // between the beginnings of two
	timeout  = 10 * time.Second // the longest that one may take
	// patience is how long a scrape waits for the call that it has begun, so that it
	// shows what is so now and not what was so at the scrape before.
	patience = 250 * time.Millisecond
)

// Options say how a Reader reads.
type Options struct {
	Socket string
	// Interval, Timeout and Patience are for tests; 0: 30 s, 10 s and 250 ms.
	Interval, Timeout, Patience time.Duration
}

// Reader asks the kubelet. Its methods may be called concurrently.
type Reader struct {
	options Options
	kubelet kubelet
	ending  context.Context
	end     context.CancelFunc

	mu      sync.Mutex
	began   time.Time     // the last call; zero: none yet
	calling chan struct{} // closed when the call in progress has ended; nil: none is
	reading Reading
	errs    []sysread.ReadError // of calls that ended since the last Read
}

// NewReader returns a reader; nobody is asked yet.
func NewReader(options Options) *Reader {
	for _, of := range []struct {
		value    *time.Duration
		standard time.Duration
	}{{&options.Interval, interval}, {&options.Timeout, timeout}, {&options.Patience, patience}} {
		if *of.value == 0 {
			*of.value = of.standard
		}
	}
	r := &Reader{options: options, kubelet: kubelet{options.Socket}}
	r.ending, r.end = context.WithCancel(context.Background())
	return r
}

// Read returns what the kubelet said last, and begins a call if the last one is long
// enough ago. It waits a moment for that one, unless the last call failed: a kubelet
// that hangs costs one scrape that moment.
func (r *Reader) Read(ctx context.Context, now time.Time) (Reading, []sysread.ReadError) {
	if begun := r.begin(now); begun != nil {
		timer := time.NewTimer(r.options.Patience)
		defer timer.Stop()
		select {
		case <-begun:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := r.errs
	r.errs = nil
	return r.reading, errs
}

// begin begins a call if one is due, and returns what is closed when it has ended if
// that is worth waiting for.
func (r *Reader) begin(now time.Time) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calling != nil || !r.began.IsZero() && now.Sub(r.began) < r.options.Interval || r.ending.Err() != nil {
		return nil
	}
	r.began, r.calling = now, make(chan struct{})
	go r.call(r.calling)
	if up := r.reading.Up; up.Known && !up.Value {
		return nil
	}
	return r.calling
}

// call asks once.
func (r *Reader) call(ended chan struct{}) {
	defer close(ended)
	ctx, cancel := context.WithTimeout(r.ending, r.options.Timeout)
	defer cancel()
	began := time.Now()
	found, err := r.kubelet.list(ctx)
	took := time.Since(began)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calling = nil
	switch {
	case r.ending.Err() != nil: // nobody is interested any more
	case err != nil:
		r.reading = Reading{Up: sysread.Some(false)}
		r.errs = []sysread.ReadError{readError(err)}
	default:
		r.reading = Reading{Up: sysread.Some(true), Answered: r.began.Add(took), Devices: found.devices(), Omitted: found.omitted}
	}
}

// Close ends the call in progress. It does not wait for it.
func (r *Reader) Close() { r.end() }

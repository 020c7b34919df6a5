package snapshot

import (
	"sync"
	"time"

	"gdr_exporter/collector/sysread"
)

// Unit is one device of a subsystem: what a worker reads. Its methods are
// called by one goroutine at a time.
type Unit[T any] interface {
	comparable
	// Name names the device in metrics and errors.
	Name() string
	// Read reads the device. It may hang.
	Read(now time.Time) (T, []sysread.ReadError)
	// Close releases what Read keeps open.
	Close()
}

// result is what one read of a unit gave.
type result[T any] struct {
	data     T
	errs     []sysread.ReadError
	duration time.Duration
}

// reading is one read of a unit in progress; result is valid once done is closed.
type reading[T any] struct {
	started time.Time
	done    chan struct{}
	result  result[T]
}

// worker reads one unit, at most once at a time: while a read hangs, no other
// is started.
type worker[U Unit[T], T any] struct {
	unit U

	mu      sync.Mutex
	current *reading[T] // nil: idle
	retired bool        // the unit is not listed any more: close it when idle
}

// begin starts a read and returns it, or returns the one that is in progress.
func (w *worker[U, T]) begin(now time.Time, finished func(result[T])) *reading[T] {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == nil {
		w.current = &reading[T]{started: now, done: make(chan struct{})}
		go w.read(w.current, finished)
	}
	return w.current
}

func (w *worker[U, T]) read(r *reading[T], finished func(result[T])) {
	r.result.data, r.result.errs = w.unit.Read(r.started)
	r.result.duration = time.Since(r.started)
	finished(r.result)
	w.mu.Lock()
	w.current = nil
	if w.retired {
		w.unit.Close()
	}
	w.mu.Unlock()
	close(r.done)
}

// retire closes the unit, at once or when the read in progress returns.
func (w *worker[U, T]) retire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retired = true
	if w.current == nil {
		w.unit.Close()
	}
}

// busySince returns when the read in progress began.
func (w *worker[U, T]) busySince() (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == nil {
		return time.Time{}, false
	}
	return w.current.started, true
}

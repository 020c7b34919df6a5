package kmsg

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"gdr_exporter/collector/sysread"
)

// Options say how a Reader reads.
type Options struct {
	// Path is where the log is; "": DefaultPath.
	Path string
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	uptime func() time.Duration
	open   func(path string) (device, error)
	retry  time.Duration
}

// Limits of reading.
const (
	// recordSize is more than the kernel makes a record (8 KiB): into less it does
	// not put one at all.
	recordSize = 16 << 10
	// Of a flood at most paceRecords are taken in paceSpan, 2,000 in a second, which
	// costs half a percent of a processor. What the kernel overwrites meanwhile is
	// counted as lost.
	paceRecords = 200
	paceSpan    = 100 * time.Millisecond
	// historyMost bounds the records taken for history, in case that new ones come
	// faster than they are read.
	historyMost = 1 << 18
	// startMost is the longest that Start reads history; the rest is read after it.
	startMost = 250 * time.Millisecond
	// retryEvery is how often a log is tried again that could not be read: what is
	// missing is a privilege or a device, which seldom come by themselves.
	retryEvery = 5 * time.Minute
	// refusedMost bounds the records in a row that do not fit.
	refusedMost = 16
)

// errEnded is a log that ends, as the kernel's never does.
var errEnded = errors.New("the log ended")

// Reader reads the kernel's log as it is written, in a goroutine of its own:
// asking it costs a copy of what is known, and never waits for the log. Its
// methods may be called concurrently.
type Reader struct {
	options Options
	closed  chan struct{}
	ended   sync.WaitGroup

	mu       sync.Mutex
	device   device // nil: not open
	journal  journal
	attempts int // failed ones
	told     int // those that Read told of
	shut     bool
}

// Start begins to read. What the kernel has of the time before is history: it
// says when something was seen last, and is not counted, so that the exporter's
// start does not look like a fault.
func Start(o Options) *Reader {
	if o.Path == "" {
		o.Path = DefaultPath
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.uptime == nil {
		o.uptime = uptime
	}
	if o.open == nil {
		o.open = openKmsg
	}
	if o.retry == 0 {
		o.retry = retryEvery
	}
	r := &Reader{options: o, closed: make(chan struct{}), journal: newJournal(o.Now, o.uptime)}
	buf := make([]byte, recordSize)
	opened := r.open()
	if opened != nil {
		r.begin(opened, buf)
	}
	r.ended.Go(func() { r.run(opened, buf) })
	return r
}

// Close ends reading.
func (r *Reader) Close() {
	r.mu.Lock()
	if !r.shut {
		r.shut = true
		close(r.closed)
		if r.device != nil {
			r.device.close()
		}
	}
	r.mu.Unlock()
	r.ended.Wait()
}

// Read returns what the log said until now. A failure to read it is among the
// errors too, once for each time that it was tried; a missing device or privilege
// is none: that is how many hosts are set up.
func (r *Reader) Read(time.Time) (Reading, []sysread.ReadError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reading := r.journal.reading()
	if reading.Err == nil || r.told == r.attempts || withheld(reading.Err) {
		return reading, nil
	}
	r.told = r.attempts
	return reading, []sysread.ReadError{{Source: r.options.Path, Err: reading.Err}}
}

// withheld reports whether the log is there but not for us, or not there.
func withheld(err error) bool {
	for _, reason := range []error{syscall.EPERM, syscall.EACCES, syscall.ENOENT, errNotKmsg} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

// open opens the log; nil if it cannot, or shall not any more.
func (r *Reader) open() device {
	opened, err := r.options.open(r.options.Path)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.attempts++
		r.journal.err = fmt.Errorf("open the kernel's log: %w", err)
		return nil
	}
	if r.shut {
		opened.close()
		return nil
	}
	r.device = opened
	r.journal.opened()
	return opened
}

// begin reads what there is already, as far as there is time for it.
func (r *Reader) begin(from device, buf []byte) {
	until := time.Now().Add(startMost)
	for time.Now().Before(until) {
		n, err := from.next(buf, false)
		if errors.Is(err, syscall.EAGAIN) {
			r.note((*journal).caughtUp)
			return
		}
		if err != nil && !passing(err) {
			return // run meets it again
		}
		r.take(buf[:n], err, false)
	}
}

// run reads on until the Reader is closed.
func (r *Reader) run(from device, buf []byte) {
	for {
		if from != nil {
			r.fail(r.follow(from, buf))
			from.close()
		}
		if !r.sleep(r.options.retry) {
			return
		}
		from = r.open()
	}
}

// follow reads a log until it fails.
func (r *Reader) follow(from device, buf []byte) error {
	pace, refused := pace{began: time.Now()}, 0
	for {
		n, err := from.next(buf, false)
		waited := errors.Is(err, syscall.EAGAIN)
		if waited {
			r.note((*journal).caughtUp)
			n, err = from.next(buf, true)
		}
		switch {
		case errors.Is(err, syscall.EINVAL):
			if refused++; refused > refusedMost {
				return err
			}
		case err != nil && !passing(err):
			return err
		case err == nil && n == 0:
			return errEnded
		default:
			refused = 0
		}
		if live := r.take(buf[:n], err, waited); !live {
			continue
		}
		if rest := pace.rest(); rest > 0 && !r.sleep(rest) {
			return os.ErrClosed
		}
	}
}

// passing reports whether reading goes on after an error: records are lost, which
// the next one's number tells, or there is nothing yet.
func passing(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EINTR) || errors.Is(err, syscall.EAGAIN)
}

// take takes in what was read; fresh says that it was waited for. It reports
// whether history has been read.
func (r *Reader) take(raw []byte, err error, fresh bool) (live bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec, is := parse(raw); err == nil && is {
		r.journal.add(&rec, fresh)
	}
	return r.journal.live
}

func (r *Reader) note(what func(*journal)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	what(&r.journal)
}

func (r *Reader) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.device = nil
	if !r.shut {
		r.attempts++
		r.journal.err = fmt.Errorf("read the kernel's log: %w", err)
	}
}

// sleep reports whether the whole span has passed: the Reader was not closed.
func (r *Reader) sleep(span time.Duration) bool {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-r.closed:
		return false
	case <-timer.C:
		return true
	}
}

// pace spreads the records of a flood.
type pace struct {
	began time.Time
	taken int
}

// rest is for how long to rest after a record.
func (p *pace) rest() time.Duration {
	if p.taken++; p.taken < paceRecords {
		return 0
	}
	rest := paceSpan - time.Since(p.began)
	p.began, p.taken = time.Now().Add(max(rest, 0)), 0
	return max(rest, 0)
}

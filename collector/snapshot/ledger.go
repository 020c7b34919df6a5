package snapshot

import (
	"errors"
	"sort"
	"sync"
	"time"

	"gdr_exporter/collector/sysread"
)

// maxErrorKinds bounds the kinds of read error counted apart; further ones are
// counted under their errno alone.
const maxErrorKinds = 1000

// forgetAfter is how long a kind of read error must have been silent for its
// return to be news.
const forgetAfter = time.Hour

// ErrorKey is a kind of read error.
type ErrorKey struct {
	Collector, Device, Port, Source, Errno string
}

// ErrorCount is how often a kind of read error occurred since start.
type ErrorCount struct {
	ErrorKey
	Count uint64
}

// Ledger counts read errors by kind and tells of each kind once.
type Ledger struct {
	now func() time.Time
	// tell is called for an error of a kind that is new or was silent for long.
	tell func(collector string, err sysread.ReadError)

	mu     sync.Mutex
	counts map[ErrorKey]*ledgerRow
}

type ledgerRow struct {
	count uint64
	last  time.Time
}

// NewLedger returns an empty Ledger. tell may be nil.
func NewLedger(now func() time.Time, tell func(collector string, err sysread.ReadError)) *Ledger {
	return &Ledger{now: now, tell: tell, counts: map[ErrorKey]*ledgerRow{}}
}

func (l *Ledger) add(collector string, errs []sysread.ReadError) {
	for _, err := range errs {
		if l.count(collector, err) && !err.Quiet && l.tell != nil {
			l.tell(collector, err)
		}
	}
}

// count counts an error and reports whether it is news.
func (l *Ledger) count(collector string, err sysread.ReadError) bool {
	key := ErrorKey{collector, err.Device, err.Port, err.Source, err.Errno()}
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	row := l.counts[key]
	if row == nil {
		if len(l.counts) >= maxErrorKinds {
			key = ErrorKey{Collector: collector, Source: "other", Errno: key.Errno}
		}
		if row = l.counts[key]; row == nil {
			row = &ledgerRow{}
			l.counts[key] = row
		}
	}
	news := row.count == 0 || now.Sub(row.last) > forgetAfter
	row.count++
	row.last = now
	return news
}

// Counts returns all counts in a stable order.
func (l *Ledger) Counts() []ErrorCount {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := make([]ErrorCount, 0, len(l.counts))
	for key, row := range l.counts {
		counts = append(counts, ErrorCount{key, row.count})
	}
	sort.Slice(counts, func(i, j int) bool { return counts[i].less(counts[j].ErrorKey) })
	return counts
}

func (k ErrorKey) less(other ErrorKey) bool {
	a := [...]string{k.Collector, k.Device, k.Port, k.Source, k.Errno}
	b := [...]string{other.Collector, other.Device, other.Port, other.Source, other.Errno}
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

// asReadErrors makes a listing's failure countable.
func asReadErrors(err error) []sysread.ReadError {
	var read sysread.ReadError
	if errors.As(err, &read) {
		return []sysread.ReadError{read}
	}
	return []sysread.ReadError{{Source: "list", Err: err}}
}

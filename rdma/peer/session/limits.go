package session

import (
	"sync"
	"syscall"
	"time"
)

// Limits bound what others can make this host do. Zero values stand for the defaults.
type Limits struct {
	Sessions    int           // at once; more are refused as busy. Default 1
	Connections int           // at once; more are closed unheard. Default 256
	PerAddress  int           // connections of one address. Default 128
	Handshake   time.Duration // for TLS. Default 5s
	Message     time.Duration // for a message that needs no work. Default 5s
	Step        time.Duration // for one that does: opening, filling, verifying, closing. Default 15s
	Idle        time.Duration // between two sessions of a connection, and for opening. Default 30s
	Deadline    time.Duration // of a session. Default 30s, at most 10m
	Grace       time.Duration // after which a call that does not end counts as hung. Default 10s
	Buffer      int           // bytes of the largest buffer. Default 64 MiB
	Bytes       uint64        // of each write of a round. Default 4 GiB

	late chan struct{} // for tests: who waits for the other side and hears of it has waited long enough
}

func (l Limits) withDefaults() Limits {
	orDefault(&l.Sessions, 1)
	orDefault(&l.Connections, 256)
	orDefault(&l.PerAddress, 128)
	orDefault(&l.Handshake, 5*time.Second)
	orDefault(&l.Message, 5*time.Second)
	orDefault(&l.Step, 15*time.Second)
	orDefault(&l.Idle, 30*time.Second)
	orDefault(&l.Deadline, 30*time.Second)
	l.Deadline = min(l.Deadline, mostDeadline)
	orDefault(&l.Grace, 10*time.Second)
	orDefault(&l.Buffer, 64<<20)
	orDefault(&l.Bytes, 4<<30)
	return l
}

// linger is for how long what the other side still says is taken in at the end.
func (l Limits) linger() time.Duration { return min(l.Message, time.Second) }

// patience is for how long a step of the other side may take until it has told: the
// step itself, the time after which it gives up a call that hangs, and the message.
func (l Limits) patience() time.Duration { return l.Step + l.Grace + l.Message }

func orDefault[T comparable](value *T, standard T) {
	var zero T
	if *value == zero {
		*value = standard
	}
}

// Budget bounds the bytes of the last hour, of all sessions that share it, whoever
// begins them. nil bounds nothing.
type Budget struct {
	most  uint64
	mu    sync.Mutex
	spent []*spending // in their order
}

type spending struct {
	at    time.Time
	bytes uint64
}

// NewBudget is a budget of so many bytes an hour.
func NewBudget(bytes uint64) *Budget { return &Budget{most: bytes} }

// Spent is how many bytes of the last hour are spent, or set aside for sessions.
func (b *Budget) Spent() uint64 {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used(time.Now())
}

func (b *Budget) used(now time.Time) uint64 {
	old, sum := 0, uint64(0)
	for old < len(b.spent) && now.Sub(b.spent[old].at) >= time.Hour {
		old++
	}
	b.spent = b.spent[old:]
	for _, s := range b.spent {
		sum += s.bytes
	}
	return sum
}

// take sets bytes aside. Who took them says in the end how many it was.
func (b *Budget) take(bytes uint64) (settle func(uint64), err error) {
	if b == nil {
		return func(uint64) {}, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if used := b.used(now); bytes > b.most || used > b.most-bytes {
		return nil, failf(ReasonBudget, StageAdmit, "%d bytes are wanted, and %d of this hour's %d are spent: %w", bytes, used, b.most, syscall.EDQUOT)
	}
	s := &spending{now, bytes}
	b.spent = append(b.spent, s)
	return func(really uint64) {
		b.mu.Lock()
		defer b.mu.Unlock()
		s.bytes = min(really, bytes)
	}, nil
}

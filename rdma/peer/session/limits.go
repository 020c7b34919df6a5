package session

import (
	"fmt"
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
	Idle        time.Duration // between two sessions of a connection. Default 10s
	Deadline    time.Duration // of a session. Default 30s, at most 10m
	Grace       time.Duration // after which a call that does not end counts as hung. Default 10s
	Buffer      int           // bytes of the largest buffer. Default 64 MiB
	Bytes       uint64        // of each write of a round. Default 4 GiB
}

func (l Limits) withDefaults() Limits {
	orDefault(&l.Sessions, 1)
	orDefault(&l.Connections, 256)
	orDefault(&l.PerAddress, 128)
	orDefault(&l.Handshake, 5*time.Second)
	orDefault(&l.Message, 5*time.Second)
	orDefault(&l.Step, 15*time.Second)
	orDefault(&l.Idle, 10*time.Second)
	orDefault(&l.Deadline, 30*time.Second)
	l.Deadline = min(l.Deadline, mostDeadline)
	orDefault(&l.Grace, 10*time.Second)
	orDefault(&l.Buffer, 64<<20)
	orDefault(&l.Bytes, 4<<30)
	return l
}

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
	spent []spending
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
	b.spent = append(b.spent, spending{now, bytes})
	return func(really uint64) {
		b.mu.Lock()
		defer b.mu.Unlock()
		for i := range b.spent {
			if b.spent[i].at.Equal(now) && b.spent[i].bytes == bytes {
				b.spent[i].bytes = min(really, bytes)
				return
			}
		}
	}, nil
}

// ClaimAge is for how long an RDMA address is the target's that named it last. An
// address that has moved to another node is refused for that long, unless the
// target that had it has left the list.
const ClaimAge = time.Hour

// mostClaims bounds what is remembered; then the oldest are forgotten.
const mostClaims = 1 << 16

// Claims remember which target named which RDMA address: one node must not have this
// host write to another. Both sides of a host share them.
type Claims struct {
	mu     sync.Mutex
	claims map[claim]claimed
}

// claim is an address as it is seen from a port of this host: LIDs and link-local
// GIDs are the same on different fabrics.
type claim struct {
	own   Port
	where string
}

type claimed struct {
	target string
	at     time.Time
}

// NewClaims knows none.
func NewClaims() *Claims { return &Claims{claims: map[claim]claimed{}} }

// take notes that a target names an address. listed says whether another target is
// still in the list.
func (c *Claims) take(target string, own Port, where string, listed func(target string) bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, now := claim{own, where}, time.Now()
	if last, known := c.claims[key]; known && last.target != target && now.Sub(last.at) < ClaimAge && listed(last.target) {
		return failf(ReasonClaimed, StageOpen, "the RDMA address %s is %s's, as that said %v ago: %w", where, last.target, now.Sub(last.at).Round(time.Second), syscall.EADDRINUSE)
	}
	if len(c.claims) >= mostClaims {
		for old, last := range c.claims {
			if now.Sub(last.at) >= ClaimAge || len(c.claims) >= mostClaims {
				delete(c.claims, old)
			}
		}
	}
	c.claims[key] = claimed{target, now}
	return nil
}

// String says how many claims there are.
func (c *Claims) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%d RDMA addresses", len(c.claims))
}

package session

import (
	"fmt"
	"sync"
	"syscall"
	"time"
)

// ClaimAge is for how long an RDMA address is the target's that named it last. An
// address that has moved to another node is refused for that long, unless the
// target that had it has left the list.
const ClaimAge = time.Hour

// What is remembered is bounded. A target that names more than its share loses its own
// oldest claim, never another's.
const (
	claimsOfOne = 256
	claimsOfAll = 1 << 18
)

// Claims remember which target named which RDMA address: one node must not have this
// host write to another. Both sides of a host share them. nil remembers nothing.
type Claims struct {
	mu     sync.Mutex
	claims map[claim]claimed
	counts map[string]int // by target
	most   int
	now    func() time.Time
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
func NewClaims() *Claims {
	return &Claims{claims: map[claim]claimed{}, counts: map[string]int{}, most: claimsOfAll, now: time.Now}
}

// take notes that a target names an address. listed says whether another target is
// still in the list.
func (c *Claims) take(target string, own Port, where string, listed func(target string) bool) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key, now := claim{own, where}, c.now()
	last, known := c.claims[key]
	if known && last.target != target && now.Sub(last.at) < ClaimAge && (listed == nil || listed(last.target)) {
		return failf(ReasonClaimed, StageOpen, "the RDMA address %s is %s's, as that said %v ago: %w", where, last.target, now.Sub(last.at).Round(time.Second), syscall.EADDRINUSE)
	}
	if known {
		c.drop(key)
	}
	if err := c.makeRoom(target, now); err != nil {
		return err
	}
	c.claims[key] = claimed{target, now}
	c.counts[target]++
	return nil
}

func (c *Claims) drop(key claim) {
	target := c.claims[key].target
	delete(c.claims, key)
	if c.counts[target]--; c.counts[target] == 0 {
		delete(c.counts, target)
	}
}

// makeRoom looks through all only when a bound is reached.
func (c *Claims) makeRoom(target string, now time.Time) error {
	if c.counts[target] >= claimsOfOne {
		c.drop(c.oldest(target))
	}
	if len(c.claims) < c.most {
		return nil
	}
	for key, last := range c.claims {
		if now.Sub(last.at) >= ClaimAge {
			c.drop(key)
		}
	}
	if len(c.claims) >= c.most {
		return failf(ReasonClaimed, StageOpen, "%d RDMA addresses were named within %v, which is all that are remembered: %w", len(c.claims), ClaimAge, syscall.ENOSPC)
	}
	return nil
}

func (c *Claims) oldest(target string) claim {
	var oldest claim
	var at time.Time
	for key, last := range c.claims {
		if last.target == target && (at.IsZero() || last.at.Before(at)) {
			oldest, at = key, last.at
		}
	}
	return oldest
}

// String says how many claims there are.
func (c *Claims) String() string {
	if c == nil {
		return "none remembered"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%d RDMA addresses", len(c.claims))
}

package targets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// ErrForeign says that an address is none of a target's.
var ErrForeign = errors.New("the address is not the target's")

const (
	// namesFresh is how long the addresses of a name hold, namesStale for how long
	// they do when the name server does not answer.
	namesFresh = time.Minute
	namesStale = time.Hour
	// maxNames bounds what is remembered.
	maxNames = 1 << 14
)

// Names remembers the addresses of targets that are listed by name.
type Names struct {
	resolver Resolver
	mu       sync.Mutex
	known    map[string]resolved
}

type resolved struct {
	addrs []netip.Addr
	at    time.Time
}

// NewNames asks a resolver, or that of the system.
func NewNames(resolver Resolver) *Names {
	if resolver == nil {
		resolver = systemResolver
	}
	return &Names{resolver: resolver, known: map[string]resolved{}}
}

// Addrs are a target's addresses.
func (n *Names) Addrs(ctx context.Context, t Target) ([]netip.Addr, error) {
	if t.Addr.IsValid() {
		return []netip.Addr{t.Addr}, nil
	}
	n.mu.Lock()
	last, known := n.known[t.Host]
	n.mu.Unlock()
	if known && time.Since(last.at) < namesFresh {
		return slices.Clone(last.addrs), nil
	}
	addrs, err := n.resolver.LookupNetIP(ctx, "ip", t.Host)
	if err == nil && len(addrs) == 0 {
		err = errors.New("the answer has no addresses")
	}
	switch {
	case err != nil && known && time.Since(last.at) < namesStale:
		return slices.Clone(last.addrs), nil
	case err != nil:
		return nil, fmt.Errorf("addresses of %s: %w", t.Host, told(err))
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	n.remember(t.Host, addrs)
	return slices.Clone(addrs), nil
}

func (n *Names) remember(host string, addrs []netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.known) >= maxNames {
		clear(n.known) // dearer than choosing, and as rare as a list that changes wholly
	}
	n.known[host] = resolved{addrs, time.Now()}
}

// Belongs fails, with [ErrForeign] in its chain, unless an address that a connection
// comes from is one of the target's.
func (n *Names) Belongs(ctx context.Context, from netip.Addr, t Target) error {
	addrs, err := n.Addrs(ctx, t)
	if err != nil {
		return err
	}
	if from = from.Unmap().WithZone(""); !slices.Contains(addrs, from) {
		return fmt.Errorf("%v for %s: %w", from, t.Address(), ErrForeign)
	}
	return nil
}

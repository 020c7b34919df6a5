package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// reaching is how long an address has for its answer. It is one of the fabric's: what
// takes a second there does not work.
const reaching = time.Second

// reach looks whether the addresses of the peer's ports answer from those of this
// node's, all at once. nil: there is nothing to try, or nothing came of it.
func (r *Runner) reach(ctx context.Context, pairs []pair, target string) []*Reached {
	reached := make([]*Reached, len(pairs))
	_, port, err := net.SplitHostPort(target)
	if err != nil {
		return reached
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return reached
	}
	var all sync.WaitGroup
	for i, p := range pairs {
		own, ownErr := netip.ParseAddr(p.own.IP)
		peer, peerErr := netip.ParseAddr(p.peer.IP)
		if ownErr != nil || peerErr != nil || !sameKind(own, peer) {
			continue
		}
		all.Go(func() { reached[i] = r.tryAddress(ctx, own, netip.AddrPortFrom(peer, uint16(number))) })
	}
	all.Wait()
	return reached
}

// sameKind reports whether one address can be tried from another. Link-local ones of
// IPv6 mean something in their link alone, and their zones are not known.
func sameKind(own, peer netip.Addr) bool {
	return own.Is4() == peer.Is4() && !own.IsLinkLocalUnicast() && !peer.IsLinkLocalUnicast()
}

// tryAddress begins a TCP connection. That it is refused is an answer too: where the
// listener has one address only.
func (r *Runner) tryAddress(ctx context.Context, own netip.Addr, peer netip.AddrPort) *Reached {
	reached := &Reached{Time: r.clock.now(), Address: peer.Addr().String()}
	dialer := net.Dialer{Timeout: reaching, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(own, 0))}
	began := time.Now()
	conn, err := dialer.DialContext(ctx, "tcp", peer.String())
	took := time.Since(began)
	if err == nil {
		_ = conn.Close() // it was opened for this
	}
	switch {
	case err == nil, errors.Is(err, syscall.ECONNREFUSED):
		reached.OK, reached.RTT = true, took
	case ctx.Err() != nil:
		return nil // it had less than its time
	default:
		reached.Text = fmt.Sprintf("from %v: %v", own, err)
	}
	return reached
}

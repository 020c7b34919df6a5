package session

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// Request is what a session is to be, as this host is asked for it, or asks itself
// before it asks a peer.
type Request struct {
	Peer       string // address of the target list
	Kind       Kind
	Memory     Memory
	Directions []Direction
	Rail       Port   // of this host
	GPU        string // of this host: PCI address; "": host memory
	Bytes      uint64 // of all rounds, both ways
	Initiator  bool   // this host asks
}

// ServerOptions say whom [Serve] serves, and with what. Hello, Opener and Member are
// needed; what else is nil asks and bounds nothing.
type ServerOptions struct {
	// Identity is this host's certificate and whom it lets in; nil: plain TCP, and
	// whoever comes from the address of a target is that target.
	Identity *Identity
	Limits   Limits
	Opener   Opener
	Claims   *Claims
	Budget   *Budget

	// Hello is what this node says of itself now. Protocol and times are filled in.
	Hello func() Hello
	// Member fails unless an address that a connection comes from is that of a target.
	Member func(ctx context.Context, from netip.Addr, address string) error
	// Listed says whether a target is in the list.
	Listed func(target string) bool
	// Admit asks whether a session may be now, and takes what it needs of the host (its
	// lock). What it took is given back by release, once, when the memory is gone.
	Admit func(ctx context.Context, r Request) (release func(), err error)
	// GPU is the GPU next to a rail, for peers that name none; "": there is none.
	GPU func(rail Port) string
	// Served is told of each session that was asked for, when it has ended, and Rejected
	// of each connection that did not come so far. They are called by the goroutine of
	// the connection.
	Served   func(Served)
	Rejected func(from netip.AddrPort, why *Failure)
}

// Served is a session that was asked for and has ended.
type Served struct {
	Request
	ID      string // that the peer gave it
	From    netip.AddrPort
	Hello   Hello // of the peer
	Started time.Time
	Elapsed time.Duration
	Opened  bool   // it was not refused
	Rounds  int    // that were carried through
	Moved   uint64 // bytes, both ways
	Failure *Failure
}

// DialOptions say whom [Dial] calls, and with what. Target, Hello and Opener are
// needed; what else is nil asks and bounds nothing.
type DialOptions struct {
	Target string                                                               // host:port of the list
	Dial   func(ctx context.Context, network, address string) (net.Conn, error) // nil: that of a net.Dialer

	// As of ServerOptions.
	Identity *Identity
	Limits   Limits
	Opener   Opener
	Claims   *Claims
	Budget   *Budget
	Hello    func() Hello
	Listed   func(target string) bool
	Admit    func(ctx context.Context, r Request) (release func(), err error)
}

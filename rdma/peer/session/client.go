package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Client is a connection to a peer, for sessions one after the other. Its methods may
// be called from any goroutine.
type Client struct {
	host
	target string
	conn   *conn
	peer   Hello
	rtt    time.Duration
	clock  time.Duration
	turn   chan struct{} // whoever is in it measures
}

// Dial calls a target and says hello. The error is a *[Failure].
func Dial(ctx context.Context, o DialOptions) (*Client, error) {
	limits := o.Limits.withDefaults()
	n, err := dial(ctx, o, limits)
	if err != nil {
		return nil, err
	}
	// The context is that of the call: sessions have their own.
	c := &Client{
		host:   host{limits, o.Opener, o.Claims, o.Budget, o.Listed, o.Admit},
		target: o.Target, conn: newConn(context.Background(), n, limits, true), turn: make(chan struct{}, 1),
	}
	if why := c.greet(ctx, o); why != nil {
		if !why.Peer {
			// It is told who let it down, if it listens.
			_ = c.conn.send(message{Close: &ended{Failure: why}})
		}
		c.conn.closeHeard()
		return nil, why
	}
	return c, nil
}

// dial makes the connection, and does its handshake.
func dial(ctx context.Context, o DialOptions, limits Limits) (net.Conn, error) {
	call := o.Dial
	if call == nil {
		call = new(net.Dialer).DialContext
	}
	within, cancel := context.WithTimeout(ctx, limits.Handshake)
	defer cancel()
	n, err := call(within, "tcp", o.Target)
	if err != nil {
		if ctx.Err() != nil {
			return nil, at(StageDial, cause(ctx))
		}
		return nil, Fail(ReasonUnreachable, StageDial, err)
	}
	if o.Identity == nil {
		return n, nil
	}
	within, cancel = context.WithTimeout(ctx, limits.Handshake)
	defer cancel()
	t := tls.Client(n, o.Identity.client())
	if err := t.HandshakeContext(within); err != nil {
		why := handshakeFailure(err)
		if ctx.Err() != nil {
			why = at(StageTLS, cause(ctx))
		}
		hearOut(n, limits.linger()) // the alert is to arrive
		return nil, why
	}
	return t, nil
}

// handshakeFailure says what an end in the middle of it most likely means.
func handshakeFailure(err error) *Failure {
	why := at(StageTLS, asFailure(err))
	if errors.Is(err, io.EOF) || why.Reason == ReasonLeft {
		return failf(ReasonTLS, StageTLS, "the other side ended the handshake, as one without TLS does: %w", err)
	}
	return why
}

// greet looks at the peer's certificate, says who this is and hears who that is.
func (c *Client) greet(ctx context.Context, o DialOptions) *Failure {
	if t, ok := c.conn.net.(*tls.Conn); ok {
		if why := o.Identity.admits(t.ConnectionState().PeerCertificates[0]); why != nil {
			return why
		}
	}
	own := ofNow(o.Hello(), time.Time{})
	sent := time.Now()
	own.Sent = sent.UnixNano()
	if err := c.conn.send(message{Hello: own}); err != nil {
		return greeting(err)
	}
	m, err := c.conn.receive(ctx, 2*c.limits.Message, "hello") // the peer may have to ask a name server
	if err != nil {
		return greeting(err)
	}
	if why := speak(*m.Hello, *own); why != nil {
		return why
	}
	c.peer = *m.Hello
	c.rtt, c.clock = times(sent, m.at, m.Hello.Received, m.Hello.Sent)
	return nil
}

// greeting is a failure with the stage that it belongs to: a certificate is refused
// after the handshake, as far as this side sees it.
func greeting(err error) *Failure {
	if why := asFailure(err); why.Reason == ReasonTLS {
		return at(StageTLS, why)
	}
	return at(StageHello, err)
}

// times are the round-trip time without what the peer needed itself, and the peer's
// clock less this one's. What the peer says cannot make the first one longer.
func times(sent, came time.Time, received, answered int64) (rtt, clock time.Duration) {
	all := came.Sub(sent)
	if received <= 0 || answered <= 0 {
		return all, 0
	}
	there := time.Unix(0, received)
	if took := time.Duration(answered - received); took > 0 && took <= all {
		return all - took, there.Add(took / 2).Sub(sent.Add(all / 2).Round(0))
	}
	return all, there.Sub(sent.Add(all / 2).Round(0))
}

// Peer is what the peer said of itself.
func (c *Client) Peer() Hello { return c.peer }

// RTT is the time from this side's hello to the peer's, without what the peer needed in
// between. The peer looks at this side's certificate in that time.
func (c *Client) RTT() time.Duration { return c.rtt }

// ClockDifference is the peer's clock less this one's, at most half of RTT wrong.
func (c *Client) ClockDifference() time.Duration { return c.clock }

// Close ends the connection, and with it what is being measured.
func (c *Client) Close() error {
	c.conn.close()
	return nil
}

// String names the peer.
func (c *Client) String() string { return fmt.Sprintf("connection to %s", c.target) }

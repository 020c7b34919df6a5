package session

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"
)

// conn is a connection on which messages go. It has a goroutine that reads, so that
// an end of the connection ends what is under way.
type conn struct {
	net    net.Conn
	limits Limits
	calls  bool // this side is the initiator of what goes on here
	in     chan message
	read   chan struct{} // closed when the reader is gone
	again  *message      // that came too early for who took it

	// ctx ends with the connection, for a cause.
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func newConn(ctx context.Context, n net.Conn, limits Limits, calls bool) *conn {
	c := &conn{net: n, limits: limits, calls: calls, in: make(chan message), read: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	go c.reader()
	return c
}

// close ends the connection and its goroutine, at once.
func (c *conn) close() {
	c.cancel(failf(ReasonStopped, "", "the connection was closed"))
	_ = c.net.Close() // nothing is lost: what was sent was sent whole or the session failed
	<-c.read
}

// closeHeard is close for whoever has said why: what is on its way from the other side
// is taken in first, for a while. Else the system would answer it with a reset, which
// can take what was said last from the other side.
func (c *conn) closeHeard() {
	c.cancel(failf(ReasonStopped, "", "the connection was closed"))
	_ = c.net.SetReadDeadline(time.Now()) // the reader is done
	<-c.read
	if t, ok := c.net.(*tls.Conn); ok {
		_ = t.SetWriteDeadline(time.Now().Add(c.limits.linger()))
		_ = t.CloseWrite()
	}
	hearOut(c.net, c.limits.linger())
}

// hearOut closes a connection after what the other side still says.
func hearOut(n net.Conn, most time.Duration) {
	if t, ok := n.(*tls.Conn); ok {
		n = t.NetConn()
	}
	if half, ok := n.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil && n.SetReadDeadline(time.Now().Add(most)) == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(n, 4*MaxMessage))
	}
	_ = n.Close()
}

func (c *conn) reader() {
	defer close(c.read)
	for {
		text, err := readFrame(c.net)
		if err == nil {
			var m message
			if m, err = decode(text); err == nil {
				m.at = time.Now()
				select {
				case c.in <- m:
					continue
				case <-c.ctx.Done():
					return
				}
			}
		}
		c.readFailed(err)
		return
	}
}

// readFailed ends what is under way. If the other side is gone, nothing more can be said,
// and it need not wait for this side. What it said in a wrong form can be answered.
func (c *conn) readFailed(err error) {
	var form *Failure
	gone := c.ctx.Err() == nil && !errors.As(err, &form)
	c.cancel(whyEnded(err))
	if gone {
		_ = c.net.Close()
	}
}

// whyEnded is what the end of a connection says.
func whyEnded(err error) error {
	if errors.Is(err, io.EOF) {
		return Fail(ReasonLeft, "", errLeft)
	}
	return asFailure(err)
}

var errLeft = errors.New("the other side has closed the connection")

// cause is why the connection or something on it has ended.
func cause(ctx context.Context) *Failure {
	why := context.Cause(ctx)
	var f *Failure
	if !errors.As(why, &f) && errors.Is(why, context.DeadlineExceeded) {
		return failf(ReasonTimeout, "", "the session's deadline has passed: %w", syscall.ETIMEDOUT)
	}
	return asFailure(why)
}

// send sends a message, whatever has ended but the connection.
func (c *conn) send(m message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return Fail(ReasonInvalid, "", err)
	}
	if len(text) > MaxMessage {
		return failf(ReasonInvalid, "", "%s of %d bytes: %w", m.name(), len(text), syscall.EMSGSIZE)
	}
	err = c.net.SetWriteDeadline(time.Now().Add(c.limits.Message))
	if err == nil {
		err = writeFrame(c.net, text)
	}
	if err != nil {
		// Why it ended says more than that it cannot be written to.
		timer := time.NewTimer(c.limits.linger())
		defer timer.Stop()
		select {
		case <-c.read:
		case <-timer.C:
		}
		if cause := context.Cause(c.ctx); cause != nil {
			err = cause
		}
		return asFailure(err)
	}
	return nil
}

// receive waits for one of some messages, which must be there in a time.
func (c *conn) receive(ctx context.Context, within time.Duration, wanted ...string) (message, error) {
	m, err := c.next(ctx, within)
	if err != nil {
		return m, err
	}
	return m, c.expected(m, wanted...)
}

// next waits for any message.
func (c *conn) next(ctx context.Context, within time.Duration) (message, error) {
	if m := c.again; m != nil {
		c.again = nil
		return *m, nil
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case m := <-c.in:
		return m, nil
	case <-ctx.Done():
		return message{}, cause(ctx)
	case <-c.ctx.Done():
		return message{}, cause(c.ctx)
	case <-c.limits.late:
	case <-timer.C:
	}
	return message{}, failf(ReasonTimeout, "", "no answer within %v: %w", within, syscall.ETIMEDOUT)
}

// expected fails unless a message is one of those wanted. What the other side says of
// a failure is that failure, in the way that its role has.
func (c *conn) expected(m message, wanted ...string) error {
	switch {
	case slices.Contains(wanted, m.name()):
		return nil
	case m.Failed != nil && c.calls:
		return m.Failed
	case m.Refused != nil && c.calls:
		return m.Refused
	case m.Close != nil && c.calls: // out of turn
	case m.Close != nil && m.Close.Failure != nil:
		f := *m.Close.Failure
		f.close = true
		return &f
	case m.Close != nil:
		return errClosed
	}
	if len(wanted) == 0 {
		return protocolError("%s came out of turn: %w", m.name(), syscall.EPROTO)
	}
	return protocolError("%s came, where %s was expected: %w", m.name(), strings.Join(wanted, " or "), syscall.EPROTO)
}

// during does something that takes time. What the other side says meanwhile, be it that
// it wants no more, ends it, and so does the end of the connection.
func (c *conn) during(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	select {
	case err := <-done:
		return err
	case m := <-c.in:
		err := c.expected(m)
		cancel(err)
		<-done //nolint:errcheck // it says that it was ended
		return err
	}
}

// errClosed says that the initiator ended the session, which it may at any time.
var errClosed = &Failure{Peer: true, Reason: ReasonStopped, Text: "the other side has ended the session", close: true}

package session

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"
	"time"
)

// conn is a connection on which messages go. It has a goroutine that reads, so that
// an end of the connection ends what is under way.
type conn struct {
	net    net.Conn
	limits Limits
	in     chan message
	read   chan struct{} // closed when the reader is gone

	// ctx ends with the connection, for a cause.
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func newConn(ctx context.Context, n net.Conn, limits Limits) *conn {
	c := &conn{net: n, limits: limits, in: make(chan message), read: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	go c.reader()
	return c
}

// close ends the connection and its goroutine.
func (c *conn) close() {
	c.cancel(failf(ReasonStopped, "", "the connection was closed"))
	_ = c.net.Close() // nothing is lost: what was sent was sent whole or the session failed
	<-c.read
}

func (c *conn) reader() {
	defer close(c.read)
	for {
		text, err := readFrame(c.net)
		if err == nil {
			var m message
			if m, err = decode(text); err == nil {
				select {
				case c.in <- m:
					continue
				case <-c.ctx.Done():
					return
				}
			}
		}
		c.cancel(whyEnded(err))
		return
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
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return failf(ReasonTimeout, "", "the session's deadline has passed: %w", syscall.ETIMEDOUT)
	}
	return asFailure(context.Cause(ctx))
}

// send sends a message, whatever has ended but the connection.
func (c *conn) send(m message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return Fail(ReasonInvalid, "", err)
	}
	if err := c.net.SetWriteDeadline(time.Now().Add(c.limits.Message)); err != nil {
		return asFailure(err)
	}
	if err := writeFrame(c.net, text); err != nil {
		// Why it ended says more than that it cannot be written to.
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
	return m, expected(m, wanted...)
}

// next waits for any message.
func (c *conn) next(ctx context.Context, within time.Duration) (message, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case m := <-c.in:
		return m, nil
	case <-ctx.Done():
		return message{}, cause(ctx)
	case <-c.ctx.Done():
		return message{}, cause(c.ctx)
	case <-timer.C:
		return message{}, failf(ReasonTimeout, "", "no answer within %v: %w", within, syscall.ETIMEDOUT)
	}
}

// expected fails unless a message is one of those wanted. What the other side says of
// a failure is that failure.
func expected(m message, wanted ...string) error {
	switch {
	case slices.Contains(wanted, m.name()):
		return nil
	case m.Failed != nil:
		return m.Failed
	case m.Refused != nil:
		return m.Refused
	case m.Close != nil && m.Close.Failure != nil:
		return m.Close.Failure
	case m.Close != nil:
		return errClosed
	}
	return protocolError("the other side said %s when %v was expected: %w", m.name(), wanted, syscall.EPROTO)
}

// errClosed says that the initiator ended the session, which it may at any time.
var errClosed = &Failure{Peer: true, Reason: ReasonStopped, Text: "the other side has ended the session"}

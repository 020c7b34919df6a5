package session

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// server is what all connections share.
type server struct {
	ServerOptions
	seats chan struct{}

	mu   sync.Mutex
	all  int // connections
	from map[netip.Addr]int
}

// Serve serves the peers that come to a listener, until the context ends, which is no
// failure. It closes the listener, tells whoever is in a session, and returns when all
// is given back, but no later than after Limits.Grace: then the error says that
// something hangs.
func Serve(ctx context.Context, l net.Listener, o ServerOptions) error {
	o.Limits = o.Limits.withDefaults()
	s := &server{ServerOptions: o, seats: make(chan struct{}, o.Limits.Sessions), from: map[netip.Addr]int{}}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var connections sync.WaitGroup
	err := s.accept(ctx, l, &connections)
	cancel()
	_ = l.Close()
	gone := make(chan struct{})
	go func() { connections.Wait(); close(gone) }()
	timer := time.NewTimer(o.Limits.Grace)
	defer timer.Stop()
	select {
	case <-gone:
		if len(s.seats) > 0 {
			err = errors.Join(err, errHung(StageClose))
		}
	case <-timer.C:
		err = errors.Join(err, errHung(StageClose))
	}
	return err
}

// accept takes connections until the listener is closed.
func (s *server) accept(ctx context.Context, l net.Listener, connections *sync.WaitGroup) error {
	pause := time.Duration(0)
	for {
		n, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = n.Close()
			}
			return nil
		case err != nil && !passing(err):
			return err
		case err != nil:
			// Of files or memory there may be some again.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		pause = 0
		from := addrOf(n.RemoteAddr())
		if !s.enter(from.Addr()) {
			_ = n.Close()
			continue
		}
		connections.Go(func() {
			defer s.leave(from.Addr())
			if why := s.connection(ctx, n, from); why != nil && s.Rejected != nil {
				s.Rejected(from, why)
			}
		})
	}
}

// passing reports whether a failure to accept says nothing of the listener.
func passing(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EINTR, syscall.EPROTO, syscall.EPERM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func addrOf(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	of := tcp.AddrPort()
	return netip.AddrPortFrom(of.Addr().Unmap(), of.Port())
}

func (s *server) enter(from netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= s.Limits.Connections || s.from[from] >= s.Limits.PerAddress {
		return false
	}
	s.all++
	s.from[from]++
	return true
}

func (s *server) leave(from netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.from[from]--; s.from[from] == 0 {
		delete(s.from, from)
	}
}

// connection serves one connection. The failure is why it came to no session.
func (s *server) connection(ctx context.Context, n net.Conn, from netip.AddrPort) *Failure {
	secured, state, why := s.secure(ctx, n)
	if why != nil {
		hearOut(n, s.Limits.linger())
		return why
	}
	c := newConn(ctx, secured, s.Limits, false)
	defer c.closeHeard()
	hello, why := s.greet(c, from, state)
	if why != nil {
		if !why.Peer {
			_ = c.send(message{Refused: why}) // it is told if it still listens
		}
		return why
	}
	for {
		m, err := c.receive(c.ctx, s.Limits.Idle, "open", "close")
		if err != nil {
			if ownFault(err) {
				_ = c.send(message{Failed: asFailure(err)})
			}
			return nil // whoever has said hello may go
		}
		if m.Close != nil {
			// Its initiator gave up when it had not heard yet that it was refused.
			if c.send(message{Closed: &ended{}}) != nil {
				return nil
			}
			continue
		}
		if !s.session(c, from, *hello, m.Open) {
			return nil
		}
	}
}

// secure does the handshake.
func (s *server) secure(ctx context.Context, n net.Conn) (net.Conn, *tls.ConnectionState, *Failure) {
	if s.Identity == nil {
		return n, nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Limits.Handshake)
	defer cancel()
	t := tls.Server(n, s.Identity.server())
	if err := t.HandshakeContext(ctx); err != nil {
		why := at(StageTLS, asFailure(err))
		var plain tls.RecordHeaderError
		if errors.As(err, &plain) && plain.Conn != nil {
			s.tellPlain(n)
		}
		return nil, nil, why
	}
	state := t.ConnectionState()
	return t, &state, nil
}

// tellPlain tells a peer without TLS that there is TLS here.
func (s *server) tellPlain(n net.Conn) {
	text, err := json.Marshal(message{Refused: failf(ReasonTLS, StageTLS, "this listener speaks TLS alone")})
	if err == nil && n.SetWriteDeadline(time.Now().Add(s.Limits.linger())) == nil {
		_ = writeFrame(n, text)
	}
}

// greet hears who it is, and answers.
func (s *server) greet(c *conn, from netip.AddrPort, state *tls.ConnectionState) (*Hello, *Failure) {
	if state != nil {
		if why := s.Identity.admits(state.PeerCertificates[0]); why != nil {
			return nil, why
		}
	}
	m, err := c.receive(c.ctx, s.Limits.Message, "hello")
	if err != nil {
		return nil, at(StageHello, err)
	}
	own := ofNow(s.Hello(), m.at)
	if why := speak(*own, *m.Hello); why != nil {
		return nil, why
	}
	if m.Hello.Address == "" {
		return nil, failf(ReasonNotListed, StageHello, "the peer does not find itself in its list")
	}
	ctx, cancel := context.WithTimeout(c.ctx, s.Limits.Message)
	defer cancel()
	if err := s.Member(ctx, from.Addr(), m.Hello.Address); err != nil {
		return nil, failureOr(ReasonNotListed, StageHello, err)
	}
	own.Sent = time.Now().UnixNano()
	if err := c.send(message{Hello: own}); err != nil {
		return nil, at(StageHello, err)
	}
	return m.Hello, nil
}

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestHundredAtOnce: one has the seat, all others are refused as busy, and their
// connections are as good as before.
func TestHundredAtOnce(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient).serve()
	hold, waiting := make(chan struct{}), make(chan struct{}, 1)
	b.b.setHook(func(_ context.Context, call string) error {
		if call == "write" {
			waiting <- struct{}{}
			<-hold
		}
		return nil
	})
	first := make(chan *Result, 1)
	c := b.dial()
	go func() { first <- c.Measure(context.Background(), bandwidth(Host, Both)) }()
	<-waiting
	clients := make([]*Client, 99)
	for i := range clients {
		clients[i] = b.dial()
	}
	together(clients, func(c *Client) {
		if r := c.Measure(context.Background(), bandwidth(Host, Both)); r.Failure == nil || r.Failure.Reason != ReasonBusy || !r.Failure.Peer || r.Failure.Errno != "EBUSY" {
			t.Errorf("%+v", r.Failure)
		}
	})
	if n := b.admitB.given.Load(); n != 1 {
		t.Errorf("%d were admitted", n)
	}
	b.b.setHook(nil)
	close(hold)
	if r := <-first; r.Failure != nil {
		t.Errorf("the first one: %v", r.Failure)
	}
	b.lastServed(100)
	for _, c := range clients[:10] {
		if r := c.Measure(context.Background(), pings); r.Failure != nil {
			t.Errorf("afterwards: %v", r.Failure)
		}
	}
}

// TestTwoSeats: as many as are allowed measure at once.
func TestTwoSeats(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient)
	b.server.Limits.Sessions = 2
	b.serve()
	var both sync.WaitGroup
	both.Add(2)
	b.b.setHook(func(_ context.Context, call string) error {
		if call == "write" {
			both.Done()
			both.Wait()
		}
		return nil
	})
	together([]*Client{b.dial(), b.dial()}, func(c *Client) {
		if r := c.Measure(context.Background(), bandwidth(Host, Both)); r.Failure != nil {
			t.Error(r.Failure)
		}
	})
}

// TestTurns: one client's measurements go one after the other; who waits can give up.
func TestTurns(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient).serve()
	c := b.dial()
	together(make([]struct{}, 10), func(struct{}) {
		if r := c.Measure(context.Background(), bandwidth(Host, Both)); r.Failure != nil {
			t.Error(r.Failure)
		}
	})
	hold, waiting := make(chan struct{}), make(chan struct{}, 1)
	b.a.setHook(func(_ context.Context, call string) error {
		if call == "open" {
			waiting <- struct{}{}
			<-hold
		}
		return nil
	})
	first := make(chan *Result, 1)
	go func() { first <- c.Measure(context.Background(), pings) }()
	<-waiting
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if r := c.Measure(ctx, pings); r.Failure == nil || r.Failure.Reason != ReasonStopped {
		t.Errorf("%+v", r.Failure)
	}
	close(hold)
	if r := <-first; r.Failure != nil {
		t.Error(r.Failure)
	}
}

// isEnded fails unless the other side ends a connection.
func isEnded(n net.Conn) error {
	_ = n.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, n); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return nil
}

// slow: connections that say nothing, or too little in a time, are cut off in each
// phase, TLS or not, and others are served meanwhile.
func slow(t *testing.T) {
	identity := newAuthority(t, "ours").identity("b", nil, "b.gpu.example")
	for name, of := range map[string]*Identity{"plain": nil, "TLS": identity} {
		limits := patient
		limits.Handshake, limits.Message = 3*time.Second, 3*time.Second
		b := newBench(t, limits)
		b.server.Identity, b.client.Identity = of, of
		b.serve()
		drips := make([]net.Conn, 30)
		for i := range drips {
			n, err := net.Dial("tcp", b.address)
			if err != nil {
				t.Fatal(err)
			}
			drips[i] = n
		}
		var cut atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			together(drips, func(n net.Conn) {
				defer n.Close()
				for range 200 {
					if _, err := n.Write([]byte{0}); err != nil {
						break
					}
					if cut.Load() > 0 {
						break
					}
					time.Sleep(50 * time.Millisecond)
				}
				if err := isEnded(n); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				cut.Add(1)
			})
		}()
		if err := b.serves(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		<-done
		if f := b.lastRejected(); f == nil || f.Reason != ReasonTimeout && f.Reason != ReasonProtocol && f.Reason != ReasonTLS {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestIdle: a connection that asks for nothing more is closed.
func TestIdle(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient)
	b.server.Limits.Idle = 200 * time.Millisecond
	b.serve()
	c := b.dial()
	until(t, "the end of the connection", func() bool { return c.conn.ctx.Err() != nil })
	if r := c.Measure(context.Background(), pings); r.Failure == nil || r.Failure.Reason != ReasonLeft || r.Failure.Stage == "" {
		t.Errorf("%+v", r.Failure)
	}
}

// TestConnections: more of them than are allowed, in all or of one address, are closed
// unheard, and their places can be taken again.
func TestConnections(t *testing.T) {
	noLeaks(t)
	for name, change := range map[string]func(*Limits){
		"in all":         func(l *Limits) { l.Connections = 3 },
		"of one address": func(l *Limits) { l.PerAddress = 3 },
	} {
		b := newBench(t, patient)
		change(&b.server.Limits)
		b.serve()
		var clients []*Client
		for range 3 {
			clients = append(clients, b.dial())
		}
		for range 3 {
			if _, err := Dial(context.Background(), b.client); err == nil || asFailure(err).Reason != ReasonLeft {
				t.Errorf("%s: %v", name, err)
			}
		}
		_ = clients[0].Close()
		var c *Client
		until(t, "a place", func() bool {
			var err error
			c, err = Dial(context.Background(), b.client)
			return err == nil
		})
		if r := c.Measure(context.Background(), pings); r.Failure != nil {
			t.Errorf("%s: %v", name, r.Failure)
		}
		_ = c.Close()
	}
}

// broken is a listener that fails, for a while or for good.
type broken struct {
	net.Listener
	passing atomic.Int64
	forGood error
}

func (b *broken) Accept() (net.Conn, error) {
	if b.passing.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	if b.forGood != nil {
		return nil, b.forGood
	}
	return b.Listener.Accept()
}

// TestListener: what passes is waited for, what does not is an error.
func TestListener(t *testing.T) {
	noLeaks(t)
	for _, forGood := range []error{nil, errors.New("gone")} {
		b := newBench(t, patient)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listener := &broken{Listener: l, forGood: forGood}
		listener.passing.Store(3)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- Serve(ctx, listener, b.server) }()
		if forGood == nil {
			b.client.Target = l.Addr().String()
			c := b.dial()
			_ = c.Close()
			cancel()
		}
		if err := <-ended; !errors.Is(err, forGood) {
			t.Errorf("%v, not %v", err, forGood)
		}
		cancel()
	}
}

func TestBudget(t *testing.T) {
	var none *Budget
	settle, err := none.take(1 << 60)
	if settle(1); err != nil || none.Spent() != 0 {
		t.Errorf("none: %v", err)
	}
	b := NewBudget(100)
	first, err := b.take(60)
	if err != nil || b.Spent() != 60 {
		t.Fatalf("%v, %d", err, b.Spent())
	}
	for _, much := range []uint64{41, 101, 1 << 63} {
		if _, err := b.take(much); asFailure(err).Reason != ReasonBudget {
			t.Errorf("%d more: %v", much, err)
		}
	}
	second, err := b.take(40)
	if err != nil {
		t.Fatal(err)
	}
	second(40)
	first(10)
	if b.Spent() != 50 {
		t.Errorf("%d are spent, not 50", b.Spent())
	}
	second(1000) // whatever is said, no more than was set aside
	if b.Spent() != 50 {
		t.Errorf("%d are spent, not 50", b.Spent())
	}
	b.spent[0].at = b.spent[0].at.Add(-time.Hour)
	if b.Spent() != 40 {
		t.Errorf("%d are spent after an hour, not 40", b.Spent())
	}
}

func TestClaims(t *testing.T) {
	c := NewClaims()
	now := time.Now()
	c.now = func() time.Time { return now }
	listed := map[string]bool{"a": true, "b": true}
	is := func(target string) bool { return listed[target] }
	take := func(target string, port Port, where string) Reason {
		if err := c.take(target, port, where, is); err != nil {
			return asFailure(err).Reason
		}
		return ""
	}
	if take("a", portA, "x") != "" || take("b", portA, "x") != ReasonClaimed {
		t.Error("an address is not its target's")
	}
	if take("a", portA, "x") != "" {
		t.Error("a target cannot name its address again")
	}
	if take("b", portB, "x") != "" {
		t.Error("an address is the same on another port")
	}
	if take("b", portA, "y") != "" {
		t.Error("another address is claimed")
	}
	listed["a"] = false
	if take("b", portA, "x") != "" {
		t.Error("an address is that of a target that has left")
	}
	listed["a"] = true
	if take("a", portA, "x") != ReasonClaimed {
		t.Error("it was not taken over")
	}
	now = now.Add(ClaimAge)
	if take("a", portA, "x") != "" {
		t.Error("an old claim holds")
	}
	if c.String() != "3 RDMA addresses" || c.counts["a"] != 1 || c.counts["b"] != 2 {
		t.Errorf("%v, %v", c, c.counts)
	}
	for i := range 2 * claimsOfOne {
		now = now.Add(time.Millisecond)
		if r := take("b", portA, strconv.Itoa(i)); r != "" {
			t.Fatalf("claim %d: %s", i, r)
		}
	}
	if c.counts["b"] != claimsOfOne || take("b", portA, "x") != ReasonClaimed {
		t.Errorf("one target made another one's claim be forgotten, and has %d", c.counts["b"])
	}
	var none *Claims
	if none.take("a", portA, "x", nil) != nil || none.take("b", portA, "x", nil) != nil || none.String() == "" {
		t.Error("nil remembers something")
	}
}

// TestClaimsOfAll: when all places are taken, old ones are given up, and no others.
func TestClaimsOfAll(t *testing.T) {
	c := NewClaims()
	now := time.Now()
	c.now = func() time.Time { return now }
	c.most = 4 * claimsOfOne
	for i := range c.most {
		key, target := claim{portA, strconv.Itoa(i)}, fmt.Sprint(i/claimsOfOne)
		c.claims[key] = claimed{target, now}
		c.counts[target]++
	}
	if err := c.take("new", portA, "new", nil); asFailure(err).Reason != ReasonClaimed {
		t.Errorf("%v", err)
	}
	now = now.Add(ClaimAge)
	if err := c.take("new", portA, "new", nil); err != nil || len(c.claims) != 1 || len(c.counts) != 1 {
		t.Errorf("%v, %d claims of %d", err, len(c.claims), len(c.counts))
	}
}

func TestTimes(t *testing.T) {
	sent := time.Now()
	came := sent.Add(10 * time.Millisecond)
	at := func(d time.Duration) int64 { return sent.Add(d).UnixNano() }
	for _, x := range []struct {
		received, answered int64
		rtt, clock         time.Duration
	}{
		{at(4 * time.Millisecond), at(6 * time.Millisecond), 8 * time.Millisecond, 0},
		{at(time.Hour), at(time.Hour + 2*time.Millisecond), 8 * time.Millisecond, time.Hour - 4*time.Millisecond},
		{at(-time.Hour), at(-time.Hour + 2*time.Millisecond), 8 * time.Millisecond, -time.Hour - 4*time.Millisecond},
		{0, 0, 10 * time.Millisecond, 0},
		{at(5 * time.Millisecond), at(time.Hour), 10 * time.Millisecond, 0},
		{at(5 * time.Millisecond), at(-time.Hour), 10 * time.Millisecond, 0},
	} {
		if rtt, clock := times(sent, came, x.received, x.answered); rtt != x.rtt || clock != x.clock {
			t.Errorf("%+v: %v, %v", x, rtt, clock)
		}
	}
}

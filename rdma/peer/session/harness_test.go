package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// patient is for tests in which nothing is waited for in vain, or that say when it is
// late, and hasty for those in which all that happens is that time passes.
var (
	patient = Limits{Handshake: 30 * time.Second, Message: 30 * time.Second, Step: 30 * time.Second, Idle: time.Minute, Deadline: time.Minute, Grace: 30 * time.Second}
	hasty   = Limits{Handshake: 800 * time.Millisecond, Message: 800 * time.Millisecond, Step: 400 * time.Millisecond, Idle: 800 * time.Millisecond, Deadline: 20 * time.Second, Grace: 400 * time.Millisecond}
)

const (
	addressA = "a.example:10480" // the initiator
	addressB = "b.example:10480"
)

var (
	portA = Port{"mlx5_0", 1}
	portB = Port{"mlx5_7", 1}
	gpuB  = "0000:3b:00.0"
)

// until waits for a condition, for much longer than it takes.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("not within 20s: %s", what)
			return
		}
	}
}

// noLeaks checks at the end of a test that its goroutines are gone.
func noLeaks(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for end := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				stacks := make([]byte, 1<<20)
				t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
				return
			}
		}
	})
}

// counted is Admit, with a count of what it gave and got back.
type counted struct {
	given, back, twice atomic.Int64
	refuse             error
	asked              atomic.Pointer[Request]
}

func (c *counted) admit(_ context.Context, r Request) (func(), error) {
	c.asked.Store(&r)
	if c.refuse != nil {
		return nil, c.refuse
	}
	c.given.Add(1)
	var once atomic.Bool
	return func() {
		if once.Swap(true) {
			c.twice.Add(1)
		}
		c.back.Add(1)
	}, nil
}

// bench are two hosts, of which B serves.
type bench struct {
	t        *testing.T
	fabric   *fabric
	a, b     *node
	admitA   *counted
	admitB   *counted
	budgetA  *Budget
	budgetB  *Budget
	server   ServerOptions
	client   DialOptions
	listener net.Listener
	address  string
	stop     context.CancelFunc
	ended    chan error
	once     bool // against a script: one session only
	late     chan struct{}

	mu       sync.Mutex
	served   []Served
	rejected []*Failure
}

func helloA() Hello {
	return Hello{Build: "1.2.3", Name: "a", Address: addressA, List: "l", Options: "o"}
}

func helloB() Hello {
	return Hello{Build: "1.2.4", Name: "b", Address: addressB, Rails: []Rail{{Port: portB, GPUs: []string{gpuB}}}}
}

func newBench(t *testing.T, limits Limits) *bench {
	t.Helper()
	f := newFabric()
	limits.late = make(chan struct{})
	b := &bench{
		late: limits.late,
		t:    t, fabric: f, a: &node{fabric: f, where: "fe80::a"}, b: &node{fabric: f, where: "fe80::b"},
		admitA: &counted{}, admitB: &counted{}, budgetA: NewBudget(1 << 40), budgetB: NewBudget(1 << 40), ended: make(chan error, 1),
	}
	b.server = ServerOptions{
		Limits: limits, Opener: b.b, Claims: NewClaims(), Budget: b.budgetB, Hello: helloB, Admit: b.admitB.admit,
		Member: func(_ context.Context, from netip.Addr, address string) error {
			switch {
			case address != addressA:
				return failf(ReasonNotListed, "", "%s is not in the list", address)
			case !from.IsLoopback():
				return failf(ReasonForeign, "", "%v is not of %s", from, address)
			}
			return nil
		},
		GPU: func(Port) string { return gpuB },
		Served: func(s Served) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.served = append(b.served, s)
		},
		Rejected: func(_ netip.AddrPort, why *Failure) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.rejected = append(b.rejected, why)
		},
	}
	b.client = DialOptions{Limits: limits, Opener: b.a, Claims: NewClaims(), Budget: b.budgetA, Hello: helloA, Admit: b.admitA.admit}
	return b
}

// serve starts B.
func (b *bench) serve() *bench {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Error(err)
		return b
	}
	b.listener, b.address = l, l.Addr().String()
	b.client.Target = b.address
	ctx, cancel := context.WithCancel(context.Background())
	b.stop = cancel
	go func() { b.ended <- Serve(ctx, l, b.server) }()
	b.t.Cleanup(func() {
		cancel()
		if err := <-b.ended; err != nil {
			b.t.Errorf("serving ended with %v", err)
		}
		if err := b.balanced(); err != nil {
			b.t.Error(err)
		}
	})
	return b
}

// hurry makes all that wait for the other side have waited long enough, until told to
// stop. So no test depends on how fast a machine is.
func (b *bench) hurry() (stop func()) {
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case b.late <- struct{}{}:
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-gone }
}

// dial calls B as A.
func (b *bench) dial() *Client {
	b.t.Helper()
	c, err := Dial(context.Background(), b.client)
	if err != nil {
		b.t.Fatalf("dial: %v", err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

// balanced fails unless all that was taken has been given back.
func (b *bench) balanced() error {
	var err error
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		open, _ := b.fabric.count()
		switch {
		case open != 0:
			err = fmt.Errorf("%d endpoints are open", open)
		case b.admitA.given.Load() != b.admitA.back.Load(), b.admitB.given.Load() != b.admitB.back.Load():
			err = fmt.Errorf("admitted %d, %d, given back %d, %d", b.admitA.given.Load(), b.admitB.given.Load(), b.admitA.back.Load(), b.admitB.back.Load())
		default:
			if n := b.admitA.twice.Load() + b.admitB.twice.Load(); n != 0 {
				return errors.New("given back twice")
			}
			return nil
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// lastServed waits for so many sessions to have ended at B.
func (b *bench) lastServed(n int) Served {
	b.t.Helper()
	var last Served
	until(b.t, fmt.Sprintf("%d sessions served", n), func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.served) >= n {
			last = b.served[n-1]
		}
		return len(b.served) >= n
	})
	return last
}

func (b *bench) lastRejected() *Failure {
	b.t.Helper()
	var last *Failure
	until(b.t, "a connection rejected", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		if n := len(b.rejected); n > 0 {
			last = b.rejected[n-1]
		}
		return last != nil
	})
	return last
}

func bandwidth(memory Memory, directions ...Direction) Plan {
	p := Plan{Kind: Bandwidth, Memory: memory, Directions: directions, From: portA, Rail: portB, Bytes: 1 << 20}
	if memory != Host {
		p.OwnGPU = "0000:1a:00.0"
	}
	return p
}

var pings = Plan{Kind: Ping, Memory: Host, Directions: []Direction{Write, Reverse}, From: portA, Rail: portB}

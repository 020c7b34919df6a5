package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"gdr_exporter/rdma/peer/session"
)

// fabric is what the endpoints of a test write through. It moves no data: it knows who
// wrote which pattern, and says at what rate as it is told.
type fabric struct {
	mu     sync.Mutex
	last   int
	open   map[int]*double
	effect func(flow) effect
}

// flow is a write from one endpoint to another.
type flow struct {
	kind     string // write or ping
	from, to string // names of nodes
	own      session.Port
	memory   session.Memory
}

// effect is what comes of it.
type effect struct {
	rate    float64 // bytes per second; 0: a good one
	corrupt bool
	lost    int
	err     error
	hang    <-chan struct{} // closed when it returns, whatever ends before
	wait    bool            // until the context ends
}

const portRate = 50e9 // 400 Gb/s

func newFabric() *fabric { return &fabric{open: map[int]*double{}} }

func (f *fabric) set(effect func(flow) effect) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.effect = effect
}

func (f *fabric) of(w flow) effect {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.effect == nil {
		return effect{}
	}
	return f.effect(w)
}

// machine is a node of a test: Host and Opener.
type machine struct {
	*fabric
	name string

	mu       sync.Mutex
	rails    []session.Rail
	ips      map[session.Port]netip.Addr
	busy     func(kind session.Kind, rail session.Port, gpu string) error
	locked   bool
	locks    int
	at, most int // endpoints open now, and at once at most
}

func newMachine(f *fabric, name string, rails int) *machine {
	m := &machine{fabric: f, name: name}
	for i := range rails {
		m.rails = append(m.rails, session.Rail{
			Port: session.Port{Device: fmt.Sprintf("mlx5_%d", i), Port: 1}, LinkLayer: "InfiniBand", Order: i, State: 4, Rate: portRate,
			GPUs: []string{fmt.Sprintf("0000:%02x:00.0", i)},
		})
	}
	return m
}

func (m *machine) change(do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do()
}

func (m *machine) Rails(context.Context) []session.Rail {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.rails)
}

func (m *machine) Addresses(context.Context) map[session.Port]netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ips
}

func (m *machine) Busy(_ context.Context, kind session.Kind, rail session.Port, gpu string) error {
	m.mu.Lock()
	busy := m.busy
	m.mu.Unlock()
	if busy == nil {
		return nil
	}
	return busy(kind, rail, gpu)
}

func (m *machine) Lock(context.Context) (func(), error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locked {
		return nil, session.Fail(session.ReasonLocked, session.StageAdmit, fmt.Errorf("process 4711 holds the lock: %w", syscall.EWOULDBLOCK))
	}
	m.locked = true
	m.locks++
	return sync.OnceFunc(func() { m.change(func() { m.locked = false }) }), nil
}

// together is how many endpoints were open at once.
func (m *machine) together() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.most
}

func (m *machine) holds() (endpoints int, locked bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at, m.locked
}

type doubleAddress struct {
	ID     int    `json:"id"`
	Where  string `json:"where"`
	Length uint64 `json:"length"`
}

// double is an endpoint of a test.
type double struct {
	*machine
	id     int
	spec   session.Spec
	seed   uint64
	peer   int
	mu     sync.Mutex
	landed uint64 // pattern that was written here
	wrong  bool
}

const doubleBuffer = 1 << 16

func (m *machine) Open(ctx context.Context, spec session.Spec) (session.Endpoint, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	e := &double{machine: m, spec: spec}
	m.fabric.mu.Lock()
	m.last++
	e.id = m.last
	m.open[e.id] = e
	m.fabric.mu.Unlock()
	m.change(func() {
		m.at++
		m.most = max(m.most, m.at)
	})
	return e, nil
}

func (m *machine) Parse(text json.RawMessage) (session.Address, error) {
	var a doubleAddress
	if err := json.Unmarshal(text, &a); err != nil {
		return session.Address{}, err
	}
	return session.Address{Text: text, Where: a.Where, Length: a.Length}, nil
}

func (e *double) Address() session.Address {
	where := fmt.Sprintf("%s %s", e.name, e.spec.Port)
	text, _ := json.Marshal(doubleAddress{e.id, where, doubleBuffer})
	return session.Address{Text: text, Where: where, Length: doubleBuffer}
}

func (e *double) Facts() session.Facts {
	return session.Facts{GID: "fe80::1", MTU: 4096, QueuePairs: 1, GPU: e.spec.GPU}
}

func (e *double) Connect(_ context.Context, peer session.Address) error {
	var a doubleAddress
	err := json.Unmarshal(peer.Text, &a)
	e.peer = a.ID
	return err
}

func (e *double) Fill(_ context.Context, seed uint64) error {
	e.seed = seed
	return nil
}

// land writes, as the fabric lets it.
func (e *double) land(ctx context.Context, kind string) (effect, error) {
	e.fabric.mu.Lock()
	peer := e.open[e.peer]
	e.fabric.mu.Unlock()
	if peer == nil {
		return effect{}, &session.Failure{Reason: session.ReasonRDMA, Stage: "write", Call: "ibv_poll_cq", Status: "REM_ACCESS_ERR", Text: "no such memory"}
	}
	x := e.of(flow{kind, e.name, peer.name, e.spec.Port, e.spec.Memory})
	if x.hang != nil {
		<-x.hang
	}
	if x.wait {
		<-ctx.Done()
		return x, ctx.Err()
	}
	peer.mu.Lock()
	defer peer.mu.Unlock()
	peer.landed, peer.wrong = e.seed, x.corrupt
	return x, x.err
}

func (e *double) Write(ctx context.Context, bytes uint64, _ time.Duration) (session.Written, error) {
	x, err := e.land(ctx, "write")
	if err != nil {
		return session.Written{}, err
	}
	rate := x.rate
	if rate == 0 {
		rate = 0.95 * portRate
	}
	return session.Written{Bytes: bytes, Elapsed: time.Duration(float64(bytes) / rate * 1e9), Extents: []session.Extent{{Offset: 0, Length: doubleBuffer}}}, nil
}

func (e *double) Ping(ctx context.Context, count int) (session.Pings, error) {
	x, err := e.land(ctx, "ping")
	if err != nil {
		return session.Pings{Lost: 1}, err
	}
	p := session.Pings{Lost: x.lost}
	for i := range count - x.lost {
		p.Latencies = append(p.Latencies, 2*time.Microsecond+time.Duration(i)*time.Nanosecond)
	}
	return p, nil
}

func (e *double) Serve(ctx context.Context) error {
	if e.spec.Memory == session.Staged {
		<-ctx.Done()
	}
	return nil
}

func (e *double) Verify(_ context.Context, seed uint64, extents []session.Extent) (session.Verification, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var v session.Verification
	for _, x := range extents {
		v.Bytes += uint64(x.Length)
	}
	if e.landed != seed {
		v.Mismatches = int(v.Bytes / 8)
	} else if e.wrong {
		v.Mismatches = 1
	}
	return v, nil
}

func (e *double) Close() error {
	e.fabric.mu.Lock()
	delete(e.open, e.id)
	e.fabric.mu.Unlock()
	e.change(func() { e.at-- })
	return nil
}

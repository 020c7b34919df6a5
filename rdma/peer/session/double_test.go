package session

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// fabric is what the endpoints of a test write through: memory of this process.
type fabric struct {
	mu      sync.Mutex
	last    int
	open    map[int]*fake
	opened  int // in all
	corrupt bool
	slow    time.Duration // how long each write takes
}

func newFabric() *fabric { return &fabric{open: map[int]*fake{}} }

func (f *fabric) count() (open, opened int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.open), f.opened
}

// node is the fabric as one host has it. hook is asked at each call of an endpoint.
type node struct {
	*fabric
	where string
	mu    sync.Mutex
	hook  func(ctx context.Context, call string) error
}

func (n *node) at(ctx context.Context, call string) error {
	n.mu.Lock()
	hook := n.hook
	n.mu.Unlock()
	if hook == nil {
		return ctx.Err()
	}
	if err := hook(ctx, call); err != nil {
		return err
	}
	return ctx.Err()
}

func (n *node) setHook(hook func(ctx context.Context, call string) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hook = hook
}

type fakeAddress struct {
	ID     int    `json:"id"`
	Where  string `json:"where"`
	Length uint64 `json:"length,omitempty"`
}

type fake struct {
	*node
	id      int
	spec    Spec
	source  []byte
	memory  []byte
	written sync.Mutex // of memory
	peer    int
}

const fakeBuffer = 4096

func (n *node) Open(ctx context.Context, spec Spec) (Endpoint, error) {
	if err := n.at(ctx, "open"); err != nil {
		return nil, err
	}
	size := spec.Shape.Buffer
	if size == 0 {
		size = fakeBuffer
	}
	e := &fake{node: n, spec: spec, source: make([]byte, size)}
	if spec.Receives {
		e.memory = make([]byte, size)
	}
	n.fabric.mu.Lock()
	defer n.fabric.mu.Unlock()
	n.last++
	n.opened++
	e.id = n.last
	n.open[e.id] = e
	return e, nil
}

func (n *node) Parse(text json.RawMessage) (Address, error) {
	if err := n.at(context.Background(), "parse"); err != nil {
		return Address{}, err
	}
	var a fakeAddress
	if err := json.Unmarshal(text, &a); err != nil {
		return Address{}, err
	}
	if a.ID < 1 || a.Where == "" {
		return Address{}, fmt.Errorf("no address: %w", syscall.EINVAL)
	}
	return Address{Text: text, Where: a.Where, Length: a.Length}, nil
}

func (e *fake) Address() Address {
	text, _ := json.Marshal(fakeAddress{e.id, e.where, uint64(len(e.memory))})
	return Address{Text: text, Where: e.where, Length: uint64(len(e.memory))}
}

func (e *fake) Facts() Facts { return Facts{GID: e.where, MTU: 4096, QueuePairs: 1, GPU: e.spec.GPU} }

func (e *fake) Connect(ctx context.Context, peer Address) error {
	if err := e.at(ctx, "connect"); err != nil {
		return err
	}
	var a fakeAddress
	if err := json.Unmarshal(peer.Text, &a); err != nil {
		return err
	}
	e.peer = a.ID
	return nil
}

func (e *fake) Fill(ctx context.Context, seed uint64) error {
	if err := e.at(ctx, "fill"); err != nil {
		return err
	}
	fillWith(e.source, seed)
	return nil
}

func fillWith(memory []byte, seed uint64) {
	for i := 0; i+8 <= len(memory); i += 8 {
		binary.LittleEndian.PutUint64(memory[i:], seed^uint64(i))
	}
}

var errRemote = &Failure{Reason: ReasonRDMA, Stage: "write", Call: "ibv_post_send", Status: "IBV_WC_REM_ACCESS_ERR", Text: "remote access error"}

// put writes to the peer's memory, if that is still there.
func (e *fake) put(ctx context.Context, n int) error {
	select {
	case <-time.After(e.slow):
	case <-ctx.Done():
		return ctx.Err()
	}
	e.fabric.mu.Lock()
	peer := e.open[e.peer]
	e.fabric.mu.Unlock()
	if peer == nil || len(peer.memory) < n {
		return errRemote
	}
	peer.written.Lock()
	defer peer.written.Unlock()
	copy(peer.memory[:n], e.source)
	if e.corrupt {
		peer.memory[0] ^= 1
	}
	return nil
}

func (e *fake) Write(ctx context.Context, bytes uint64, within time.Duration) (Written, error) {
	if err := e.at(ctx, "write"); err != nil {
		return Written{}, err
	}
	began := time.Now()
	if err := e.put(ctx, len(e.source)); err != nil {
		return Written{Bytes: 8}, err
	}
	return Written{Bytes: max(bytes, 8), Elapsed: max(time.Since(began), 1), Extents: []Extent{{0, len(e.source)}}}, nil
}

func (e *fake) Ping(ctx context.Context, count int) (Pings, error) {
	if err := e.at(ctx, "ping"); err != nil {
		return Pings{}, err
	}
	if err := e.put(ctx, 8); err != nil {
		return Pings{Lost: 1}, err
	}
	p := Pings{}
	for i := range count {
		p.Latencies = append(p.Latencies, time.Duration(i+1)*time.Microsecond)
	}
	return p, nil
}

// Serve waits with staged memory, as that needs it.
func (e *fake) Serve(ctx context.Context) error {
	if err := e.at(ctx, "serve"); err != nil {
		return err
	}
	if e.spec.Memory == Staged {
		<-ctx.Done()
	}
	return nil
}

func (e *fake) Verify(ctx context.Context, seed uint64, extents []Extent) (Verification, error) {
	if err := e.at(ctx, "verify"); err != nil {
		return Verification{}, err
	}
	var v Verification
	want := make([]byte, len(e.memory))
	fillWith(want, seed)
	e.written.Lock()
	defer e.written.Unlock()
	for _, x := range extents {
		if x.Offset+x.Length > len(e.memory) {
			return v, syscall.EINVAL
		}
		for i := x.Offset; i+8 <= x.Offset+x.Length; i += 8 {
			v.Bytes += 8
			if string(want[i:i+8]) != string(e.memory[i:i+8]) {
				v.Mismatches++
			}
		}
	}
	return v, nil
}

func (e *fake) Close() error {
	err := e.at(context.Background(), "close")
	e.fabric.mu.Lock()
	defer e.fabric.mu.Unlock()
	if e.open[e.id] == nil {
		return fmt.Errorf("closed twice")
	}
	delete(e.open, e.id)
	return err
}

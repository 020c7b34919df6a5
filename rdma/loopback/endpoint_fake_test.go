package loopback

import (
	"sync"
	"syscall"
	"testing"
	"time"
)

// fabric joins the NICs of two fake hosts. It checks every write as a NIC does: the
// key, its protection domain, the bounds, what the region and the queue pair allow.
type fabric struct {
	mu   sync.Mutex
	keys map[uint32]fabricRegion
	qps  map[uint32]*fabricQP
}

type fabricRegion struct {
	pd      handle
	address uintptr
	length  int
	allow   access
}

type fabricQP struct {
	nic      *fabricNIC
	pd       handle
	to       connection
	receives []uint64 // ids
}

// fabricNIC is the NIC of one of the hosts.
type fabricNIC struct {
	*fakeVerbs
	fabric *fabric
	queue  []completion // under the fabric's lock
	cut    bool         // nothing that it sends arrives
}

func newFabric() *fabric {
	return &fabric{keys: map[uint32]fabricRegion{}, qps: map[uint32]*fabricQP{}}
}

// nic adds a NIC. Its objects, protection domains too, have numbers that none of the
// others' has.
func (f *fabric) nic(l *ledger, number int) *fabricNIC {
	l.last = handle(100 * number)
	return &fabricNIC{fakeVerbs: newFakeVerbs(l), fabric: f}
}

func (n *fabricNIC) load([]string) (verbs, string, error) {
	_, path, err := n.fakeVerbs.load(nil)
	return n, path, err
}

func (n *fabricNIC) note(pd handle, address uintptr, length int, allow access, made region) {
	n.fabric.mu.Lock()
	defer n.fabric.mu.Unlock()
	n.fabric.keys[made.rkey] = fabricRegion{pd: pd, address: address, length: length, allow: allow}
}

func (n *fabricNIC) regMR(pd handle, address uintptr, length int, allow access, relaxed bool) (region, error) {
	made, err := n.fakeVerbs.regMR(pd, address, length, allow, relaxed)
	if err == nil {
		n.note(pd, address, length, allow, made)
	}
	return made, err
}

func (n *fabricNIC) regDMABuf(pd handle, address uintptr, length, fd int, allow access, relaxed bool) (region, error) {
	made, err := n.fakeVerbs.regDMABuf(pd, address, length, fd, allow, relaxed)
	if err == nil {
		n.note(pd, address, length, allow, made)
	}
	return made, err
}

func (n *fabricNIC) deregMR(mr handle) error {
	n.fabric.mu.Lock()
	delete(n.fabric.keys, uint32(mr))
	n.fabric.mu.Unlock()
	return n.fakeVerbs.deregMR(mr)
}

func (n *fabricNIC) createQP(pd, cq handle, depth, receives int) (queuePair, error) {
	qp, err := n.fakeVerbs.createQP(pd, cq, depth, receives)
	if err == nil {
		n.fabric.mu.Lock()
		defer n.fabric.mu.Unlock()
		n.fabric.qps[qp.number] = &fabricQP{nic: n, pd: pd}
	}
	return qp, err
}

func (n *fabricNIC) destroyQP(h handle) error {
	n.fabric.mu.Lock()
	delete(n.fabric.qps, uint32(h))
	n.fabric.mu.Unlock()
	return n.fakeVerbs.destroyQP(h)
}

func (n *fabricNIC) connectQP(h handle, c connection) error {
	n.must("QP", h)
	n.fabric.mu.Lock()
	n.fabric.qps[uint32(h)].to = c
	n.fabric.mu.Unlock()
	return n.call("connect")
}

func status(s CompletionStatus) error { return &Error{Call: "completion", Status: s} }

// other is the queue pair at the other end, under the lock; nil if nobody answers.
func (n *fabricNIC) other(qp handle) *fabricQP {
	own := n.fabric.qps[uint32(qp)]
	other := n.fabric.qps[own.to.peer]
	if n.cut || other == nil || other.to.peer != uint32(qp) || other.to.peerPSN != own.to.psn || other.to.mtu != own.to.mtu {
		return nil
	}
	return other
}

// write writes to the other side.
func (n *fabricNIC) write(t transfer, qp handle, localOffset, remoteOffset int) error {
	n.must("QP", qp)
	local := n.memory(t.lkey, t.local+uintptr(localOffset), t.size)
	n.fabric.mu.Lock()
	defer n.fabric.mu.Unlock()
	other := n.other(qp)
	if other == nil {
		return status(12)
	}
	r, known := n.fabric.keys[t.rkey]
	at := t.remote + uintptr(remoteOffset)
	if !known || r.pd != other.pd || r.allow == accessNone || other.to.allow == accessNone ||
		at < r.address || at+uintptr(t.size) > r.address+uintptr(r.length) {
		return status(10)
	}
	copy(bytesAt(at, t.size), local)
	return nil
}

func (n *fabricNIC) transfer(t transfer, l limits) (progress, error) {
	if err := n.call("write"); err != nil {
		return progress{}, err
	}
	var p progress
	each := t.bytes / uint64(t.size) / uint64(len(t.qps))
	for ; p.least < each; p.least++ {
		if err := l.ended(); err != nil {
			return p, err
		}
		for i, qp := range t.qps {
			offset := i*t.slice + int(p.least)*t.size%t.slice
			if err := n.write(t, qp, offset, offset); err != nil {
				return p, err
			}
			p.posted++
			p.completed++
		}
	}
	p.elapsed = time.Millisecond
	return p, nil
}

func (n *fabricNIC) latency(t transfer, _ limits, samples []time.Duration) (int, error) {
	if t.channel == 0 {
		n.t.Error("pings without sleep")
	}
	for i := range samples {
		if err := n.write(t, t.qps[0], 0, 0); err != nil {
			return i, err
		}
		samples[i] = time.Duration(i+1) * time.Microsecond
	}
	return len(samples), n.call("latency")
}

func (n *fabricNIC) post(t transfer, localOffset, remoteOffset int, id uint64) error {
	if err := n.call("post"); err != nil {
		return err
	}
	if t.size > 0 {
		if err := n.write(t, t.qps[0], localOffset, remoteOffset); err != nil {
			return err
		}
	}
	n.fabric.mu.Lock()
	defer n.fabric.mu.Unlock()
	n.queue = append(n.queue, completion{id: id})
	other := n.other(t.qps[0])
	if other == nil {
		return nil
	}
	if len(other.receives) == 0 {
		n.t.Error("an announcement that the peer has no place for")
		return syscall.EPROTO
	}
	other.nic.queue = append(other.nic.queue, completion{id: other.receives[0], received: true, imm: t.imm})
	other.receives = other.receives[1:]
	return nil
}

func (n *fabricNIC) postReceive(h handle, id uint64) error {
	n.must("QP", h)
	n.fabric.mu.Lock()
	n.fabric.qps[uint32(h)].receives = append(n.fabric.qps[uint32(h)].receives, id)
	n.fabric.mu.Unlock()
	return n.call("post receive")
}

func (n *fabricNIC) next(cq, channel handle, _ limits) (completion, bool, error) {
	n.must("CQ", cq)
	if err := n.call("next"); err != nil {
		return completion{}, false, err
	}
	n.fabric.mu.Lock()
	defer n.fabric.mu.Unlock()
	if len(n.queue) == 0 {
		if channel != 0 {
			n.fabric.mu.Unlock()
			time.Sleep(time.Millisecond)
			n.fabric.mu.Lock()
		}
		return completion{}, false, nil
	}
	c := n.queue[0]
	n.queue = n.queue[1:]
	return c, true, nil
}

// fakePeers are two hosts with a NIC and a GPU each.
type fakePeers struct {
	t       *testing.T
	ledgers [2]*ledger
	nics    [2]*fabricNIC
	gpus    [2]*hostGPU
	hosts   [2]fakeHost
}

func newFakePeers(t *testing.T) *fakePeers {
	p := &fakePeers{t: t}
	f := newFabric()
	for i, address := range []string{"0a4d:0001", "0a4d:0002"} {
		p.ledgers[i] = newLedger(t)
		p.nics[i] = f.nic(p.ledgers[i], 1+i)
		p.gpus[i] = newHostGPU(p.ledgers[i])
		p.hosts[i] = newFakeHost(t)
		p.hosts[i].gids("fe80:0000:0000:0000:0000:00ff:fe00:0001 RoCE v2", "0000:0000:0000:0000:0000:ffff:"+address+" RoCE v2")
	}
	return p
}

// spec is that of an endpoint on one of the hosts.
func (p *fakePeers) spec(i int, role Role, memory Memory) EndpointSpec {
	return EndpointSpec{
		Device: "fake0", SysfsRoot: p.hosts[i].sys, DevRoot: p.hosts[i].dev, Role: role, Memory: memory, OpenGPU: p.gpus[i].open,
		BufferSize: 64 << 10, MessageSize: 4 << 10, ChunkSize: 4 << 10, QueuePairs: 2, Depth: 8,
	}
}

func (p *fakePeers) open(i int, spec EndpointSpec) *Endpoint {
	p.t.Helper()
	e, err := openEndpoint(p.t.Context(), spec, p.nics[i].load)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = e.Close() })
	return e
}

// pair opens and connects two endpoints.
func (p *fakePeers) pair(roles [2]Role, memories [2]Memory) (a, b *Endpoint) {
	p.t.Helper()
	a = p.open(0, p.spec(0, roles[0], memories[0]))
	spec, address := p.spec(1, roles[1], memories[1]), a.Address()
	spec.Peer = &address
	b = p.open(1, spec)
	connectBoth(p.t, a, b)
	return a, b
}

func connectBoth(t *testing.T, a, b *Endpoint) {
	t.Helper()
	for _, err := range []error{b.Connect(t.Context(), a.Address()), a.Connect(t.Context(), b.Address())} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// wantEmpty closes endpoints and expects that nothing is left of them.
func (p *fakePeers) wantEmpty(endpoints ...*Endpoint) {
	p.t.Helper()
	for _, e := range endpoints {
		if err := e.Close(); err != nil {
			p.t.Error(err)
		}
	}
	for _, l := range p.ledgers {
		l.wantEmpty()
	}
}

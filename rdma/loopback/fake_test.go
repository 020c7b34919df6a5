package loopback

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ledger counts what is alive, and makes one chosen call fail.
type ledger struct {
	t  *testing.T
	mu sync.Mutex

	alive  map[string]map[handle]bool // by kind
	last   handle
	calls  []string // names, in order
	failAt int      // index of the call that fails; -1: none
	failed string   // its name
	fail   string   // name of the calls of which one fails; "": failAt counts all
	err    error    // what it fails with

	untouchable map[uintptr]bool // GPU memory that cannot be registered
}

func newLedger(t *testing.T) *ledger {
	return &ledger{t: t, alive: map[string]map[handle]bool{}, failAt: -1, err: errTest, untouchable: map[uintptr]bool{}}
}

// call notes a call, and fails the one that is to fail.
func (l *ledger) call(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail == "" || name == l.fail {
		l.calls = append(l.calls, name)
	}
	if len(l.calls)-1 == l.failAt && l.failed == "" {
		l.failed = name
		return l.err
	}
	return nil
}

func (l *ledger) make(kind string) (handle, error) {
	if err := l.call("make " + kind); err != nil {
		return 0, err
	}
	l.last += 1000
	if l.alive[kind] == nil {
		l.alive[kind] = map[handle]bool{}
	}
	l.alive[kind][l.last] = true
	return l.last, nil
}

// unmake ends an object's life, which those kinds must not have that rest on it.
func (l *ledger) unmake(kind string, h handle, resting ...string) error {
	if !l.alive[kind][h] {
		l.t.Errorf("%s %d is not alive", kind, h)
	}
	for _, above := range resting {
		if len(l.alive[above]) > 0 && l.failed != "unmake "+above {
			l.t.Errorf("%s goes while %d of %s are alive", kind, len(l.alive[above]), above)
		}
	}
	if err := l.call("unmake " + kind); err != nil {
		return err
	}
	delete(l.alive[kind], h)
	return nil
}

func (l *ledger) must(kind string, h handle) {
	if !l.alive[kind][h] {
		l.t.Errorf("use of %s %d, which is not alive", kind, h)
	}
}

// wantEmpty fails the test if anything is alive. Where something could not be
// unmade, that is left, and the memory that a NIC might write to.
func (l *ledger) wantEmpty() {
	l.t.Helper()
	for kind, objects := range l.alive {
		if len(objects) > 0 && !l.mayStay(kind) {
			l.t.Errorf("%d of %s left (call that failed: %q)", len(objects), kind, l.failed)
		}
	}
}

func (l *ledger) mayStay(kind string) bool {
	unmade, stuck := strings.CutPrefix(l.failed, "unmake ")
	return stuck && (kind == unmade || kind == "GPU memory" || kind == "GPU")
}

type fakeRegion struct {
	address uintptr
	length  int
	allow   access
}

// fakeVerbs moves memory by itself. It has no more devices than the one asked for.
type fakeVerbs struct {
	*ledger
	regions   map[uint32]fakeRegion
	connected map[handle]connection
	posted    []uint64 // ids to complete
	dmabuf    error    // of every dma-buf registration
	noRelaxed bool
	direct    error // of dataDirect
	port      portState
	status    CompletionStatus // of every transfer from then on, if not 0
	moved     uint64
}

func newFakeVerbs(l *ledger) *fakeVerbs {
	return &fakeVerbs{
		ledger: l, dmabuf: syscall.EBADF, connected: map[handle]connection{},
		regions: map[uint32]fakeRegion{},
		direct:  syscall.ENODEV,
		port:    portState{state: 4, mtu: 5, ethernet: true, messageSize: 1 << 30},
	}
}

func (f *fakeVerbs) load([]string) (verbs, string, error) {
	if err := f.call("load"); err != nil {
		return nil, "", err
	}
	f.last += 1000
	f.alive["library"] = map[handle]bool{f.last: true}
	return f, "/fake/" + libraryName, nil
}

func (f *fakeVerbs) unload() {
	if len(f.alive["context"]) > 0 && f.failed != "unmake context" {
		f.t.Error("library unloaded before the device was closed")
	}
	f.alive["library"] = nil
}

func (f *fakeVerbs) open(string) (handle, error) { return f.make("context") }
func (f *fakeVerbs) close(h handle) error {
	return f.unmake("context", h)
}

func (f *fakeVerbs) queryDevice(h handle) (deviceLimits, error) {
	f.must("context", h)
	return deviceLimits{queuePairs: 1000, depth: 1000, completions: 1000, rdAtomic: 16}, f.call("query device")
}

func (f *fakeVerbs) queryPort(h handle, _ int) (portState, error) {
	f.must("context", h)
	return f.port, f.call("query port")
}

func (f *fakeVerbs) dataDirect(h handle) error {
	f.must("context", h)
	return f.direct
}

func (f *fakeVerbs) allocPD(h handle) (handle, error) {
	f.must("context", h)
	return f.make("PD")
}
func (f *fakeVerbs) deallocPD(h handle) error { return f.unmake("PD", h) }

func (f *fakeVerbs) register(pd handle, address uintptr, length int, allow access) (region, error) {
	f.must("PD", pd)
	mr, err := f.make("MR")
	if err != nil {
		return region{}, err
	}
	f.regions[uint32(mr)] = fakeRegion{address, length, allow}
	return region{mr, uint32(mr), uint32(mr)}, nil
}

func (f *fakeVerbs) regMR(pd handle, address uintptr, length int, allow access, relaxed bool) (region, error) {
	if relaxed && f.noRelaxed {
		return region{}, &Error{Call: "ibv_reg_mr", Errno: syscall.EINVAL}
	}
	if f.untouchable[address] {
		return region{}, &Error{Call: "ibv_reg_mr", Errno: syscall.EFAULT}
	}
	return f.register(pd, address, length, allow)
}

func (f *fakeVerbs) regDMABuf(pd handle, address uintptr, length, fd int, allow access, _ bool) (region, error) {
	if fd < 0 || f.dmabuf != syscall.EBADF {
		return region{}, &Error{Call: "ibv_reg_dmabuf_mr", Errno: f.dmabuf.(syscall.Errno)}
	}
	return f.register(pd, address, length, allow)
}

func (f *fakeVerbs) deregMR(h handle) error { return f.unmake("MR", h) }

func (f *fakeVerbs) createChannel(h handle) (handle, error) {
	f.must("context", h)
	return f.make("channel")
}
func (f *fakeVerbs) destroyChannel(h handle) error { return f.unmake("channel", h) }

func (f *fakeVerbs) createCQ(context, channel handle, _ int) (handle, error) {
	f.must("context", context)
	f.must("channel", channel)
	return f.make("CQ")
}
func (f *fakeVerbs) destroyCQ(h handle) error {
	f.posted = nil
	return f.unmake("CQ", h)
}

func (f *fakeVerbs) createQP(pd, cq handle, _, _ int) (queuePair, error) {
	f.must("PD", pd)
	f.must("CQ", cq)
	qp, err := f.make("QP")
	return queuePair{qp, uint32(qp)}, err
}
func (f *fakeVerbs) destroyQP(h handle) error { return f.unmake("QP", h) }

func (f *fakeVerbs) connectQP(h handle, c connection) error {
	f.must("QP", h)
	if !f.alive["QP"][handle(c.peer)] || handle(c.peer) == h {
		f.t.Errorf("QP %d has the peer %d", h, c.peer)
	}
	f.connected[h] = c
	return f.call("connect")
}

// memory is a registered range, which the test fails without.
func (f *fakeVerbs) memory(key uint32, address uintptr, length int) []byte {
	region := f.regions[key]
	if !f.alive["MR"][handle(key)] || address < region.address || address+uintptr(length) > region.address+uintptr(region.length) {
		f.t.Errorf("%d bytes at %x are not in region %d", length, address, key)
		return make([]byte, length)
	}
	return bytesAt(address, length)
}

// bytesAt is memory that is not Go's.
func bytesAt(address uintptr, length int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), length)
}

func (f *fakeVerbs) copy(t transfer, localOffset, remoteOffset, length int) {
	local := f.memory(t.lkey, t.local+uintptr(localOffset), length)
	remote := f.memory(t.rkey, t.remote+uintptr(remoteOffset), length)
	if t.read {
		copy(local, remote)
	} else {
		copy(remote, local)
	}
	f.moved += uint64(length)
}

func (f *fakeVerbs) transfer(t transfer, l limits) (progress, error) {
	name := "write"
	if t.read {
		name = "read"
	}
	if err := f.call(name); err != nil {
		return progress{}, err
	}
	if f.status != 0 {
		return progress{}, &Error{Call: "completion", Status: f.status, Vendor: 81}
	}
	if l.stop.Load() != 0 {
		return progress{}, &Error{Call: "stopped", Errno: syscall.ECANCELED}
	}
	each := t.bytes / uint64(t.size) / uint64(len(t.qps))
	for i, qp := range t.qps {
		f.must("QP", qp)
		for n := range int(each) {
			offset := i*t.slice + n*t.size%t.slice
			f.copy(t, offset, offset, t.size)
		}
	}
	total := each * uint64(len(t.qps))
	return progress{posted: total, completed: total, least: each, elapsed: time.Millisecond}, nil
}

func (f *fakeVerbs) latency(t transfer, _ limits, samples []time.Duration) (int, error) {
	for i := range samples {
		f.copy(t, 0, 0, t.size)
		samples[i] = time.Duration(i+1) * time.Microsecond
	}
	return len(samples), f.call("latency")
}

func (f *fakeVerbs) post(t transfer, localOffset, remoteOffset int, id uint64) error {
	f.must("QP", t.qps[0])
	f.copy(t, localOffset, remoteOffset, t.size)
	f.posted = append(f.posted, id)
	return f.call("post")
}

func (f *fakeVerbs) postReceive(handle, uint64) error { return f.call("post receive") }

// next completes writes latest first: queue pairs are not ordered with each other.
func (f *fakeVerbs) next(cq, _ handle, _ limits) (completion, bool, error) {
	f.must("CQ", cq)
	if err := f.call("next"); err != nil || len(f.posted) == 0 {
		return completion{}, false, err
	}
	id := f.posted[len(f.posted)-1]
	f.posted = f.posted[:len(f.posted)-1]
	return completion{id: id}, true, nil
}

// hostGPU is a GPU whose memory is the host's.
type hostGPU struct {
	*ledger
	facts  GPUFacts
	hidden bool // its memory is such that the kernel cannot register it
	// noPeermem makes fakeVerbs refuse to register it by its address.
	noPeermem bool
	flip      int // a byte of what Read gives that is wrong; -1: none
	dmabuf    error
	id        handle
}

func newHostGPU(l *ledger) *hostGPU {
	return &hostGPU{ledger: l, flip: -1, facts: GPUFacts{Address: "0000:1a:00.0", DMABuf: true, GPUDirectRDMA: true, Free: 1 << 30, Total: 2 << 30}}
}

func (g *hostGPU) open() (GPU, error) {
	id, err := g.make("GPU")
	g.id = id
	return g, err
}

func (g *hostGPU) Facts() GPUFacts { return g.facts }
func (g *hostGPU) Close() error {
	return g.unmake("GPU", g.id, "GPU memory", "stream", "mark", "pin")
}

type hostGPUMemory struct {
	gpu    *hostGPU
	id     handle
	data   []byte
	shown  []byte // what Pointer says: data, or memory that nobody may touch
	mapped [][]byte
}

func (g *hostGPU) Alloc(size int) (GPUMemory, error) {
	if size%hugePage != 0 {
		g.t.Errorf("GPU memory of %d bytes", size)
	}
	id, err := g.make("GPU memory")
	if err != nil {
		return nil, err
	}
	m := &hostGPUMemory{gpu: g, id: id}
	m.data = m.mmap(size, unix.PROT_READ|unix.PROT_WRITE)
	m.shown = m.data
	if g.hidden {
		m.shown = m.mmap(size, unix.PROT_NONE)
	}
	g.untouchable[m.Pointer()] = g.noPeermem
	return m, nil
}

func (m *hostGPUMemory) mmap(size, prot int) []byte {
	memory, err := unix.Mmap(-1, 0, size, prot, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		m.gpu.t.Fatal(err)
	}
	m.mapped = append(m.mapped, memory)
	return memory
}

func (m *hostGPUMemory) Pointer() uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(m.shown)))
}
func (m *hostGPUMemory) Size() int { return len(m.data) }

// DMABuf gives a descriptor, though not of a dma-buf: no device with dma-buf
// support ever sees it.
func (m *hostGPUMemory) DMABuf() (int, error) {
	if m.gpu.dmabuf != nil {
		return -1, m.gpu.dmabuf
	}
	if err := m.gpu.call("export"); err != nil {
		return -1, err
	}
	return unix.MemfdCreate("dmabuf", unix.MFD_CLOEXEC)
}

func (m *hostGPUMemory) Write(offset int, from []byte) error {
	copy(m.data[offset:offset+len(from)], from)
	return m.gpu.call("GPU write")
}

func (m *hostGPUMemory) Read(offset int, into []byte) error {
	copy(into, m.data[offset:offset+len(into)])
	if flip := m.gpu.flip - offset; flip >= 0 && flip < len(into) {
		into[flip] ^= 1
	}
	return m.gpu.call("GPU read")
}

func (m *hostGPUMemory) Free() error {
	if len(m.gpu.alive["MR"])+len(m.gpu.alive["QP"]) > 0 {
		m.gpu.t.Error("GPU memory freed while memory regions or queue pairs are alive")
	}
	err := m.gpu.unmake("GPU memory", m.id)
	if err == nil {
		for _, memory := range m.mapped {
			_ = unix.Munmap(memory)
		}
	}
	return err
}

func (g *hostGPU) Pin(_ unsafe.Pointer, size int) (func() error, error) {
	id, err := g.make("pin")
	if err != nil {
		return nil, err
	}
	return func() error { return g.unmake("pin", id, "stream") }, nil
}

// hostStream copies when it is asked whether it has, and not at once, so that
// everybody must ask, or wait.
type hostStream struct {
	gpu    *hostGPU
	id     handle
	queue  []func()
	queued int // copies ever queued
	done   int
	asked  int
}

func (g *hostGPU) Stream() (Stream, error) {
	id, err := g.make("stream")
	return &hostStream{gpu: g, id: id}, err
}

func (s *hostStream) enqueue(copying func()) error {
	s.queue = append(s.queue, copying)
	s.queued++
	return s.gpu.call("copy")
}

func (s *hostStream) ToHost(to unsafe.Pointer, from GPUMemory, offset, n int) error {
	return s.enqueue(func() { copy(unsafe.Slice((*byte)(to), n), from.(*hostGPUMemory).data[offset:offset+n]) })
}

func (s *hostStream) FromHost(to GPUMemory, offset int, from unsafe.Pointer, n int) error {
	return s.enqueue(func() { copy(to.(*hostGPUMemory).data[offset:offset+n], unsafe.Slice((*byte)(from), n)) })
}

// step does the next copy, if there is one.
func (s *hostStream) step() {
	if len(s.queue) > 0 {
		s.queue[0]()
		s.queue = s.queue[1:]
		s.done++
	}
}

func (s *hostStream) Wait() error {
	for len(s.queue) > 0 {
		s.step()
	}
	return s.gpu.call("wait")
}

func (s *hostStream) Close() error {
	if len(s.queue) > 0 {
		s.gpu.t.Error("stream closed with copies under way")
	}
	return s.gpu.unmake("stream", s.id, "mark")
}

type hostMark struct {
	stream *hostStream
	id     handle
	at     int
}

func (s *hostStream) Mark() (Mark, error) {
	id, err := s.gpu.make("mark")
	return &hostMark{s, id, s.queued}, err
}

func (m *hostMark) Reached() (bool, error) {
	done := m.stream.done >= m.at
	if m.stream.asked++; m.stream.asked%3 == 0 {
		m.stream.step()
	}
	return done, m.stream.gpu.call("reached")
}

func (m *hostMark) Wait() error {
	for m.stream.done < m.at {
		m.stream.step()
	}
	return m.stream.gpu.call("wait mark")
}

func (m *hostMark) Free() error { return m.stream.gpu.unmake("mark", m.id) }

var errTest = errors.New("as the test wants")

func describe(r Result) string {
	text := fmt.Sprintf("error: %v\n", r.Err())
	for _, s := range r.Stages {
		text += fmt.Sprintf("%-9s %-9s %10v %v\n", s.Stage, s.Path, s.Duration.Round(time.Microsecond), s.Err)
	}
	for _, reg := range r.Registrations {
		text += fmt.Sprintf("%-7s %v relaxed %v: %v\n", reg.Method, reg.Duration.Round(time.Microsecond), reg.RelaxedOrdering, reg.Err)
	}
	for _, p := range r.Paths {
		text += fmt.Sprintf("%-9s %8.2f MB/s, %d bytes, latency %v and %v, %.3f CPU s/GB, mismatches %v of %d %v\n", p.Path,
			p.BytesPerSecond.Value/1e6, p.Bytes, p.LatencyMedian.Value, p.LatencyP99.Value, p.CPUSecondsPerGB.Value, p.Mismatches, p.Verified, p.Err)
	}
	return text
}

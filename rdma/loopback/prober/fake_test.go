package prober

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
)

const gigabyte = 1e9

// fakeHost is a host whose state tests change.
type fakeHost struct {
	mu        sync.Mutex
	sighting  Sighting
	traffic   float64 // bytes per second through every port, but for runs
	busyGPU   float64
	unknown   bool // load cannot be read
	processes map[string][]int
	blocked   Reason
	deaf      bool // processes cannot be read
	began     time.Time
	looks     int
	loads     int
}

const (
	gpu0, gpu1 = "0000:1b:00.0", "0000:3b:00.0"
	nic0, nic1 = "mlx5_0", "mlx5_1"
)

var (
	pair0 = Pair{gpu0, nic0, 1}
	pair1 = Pair{gpu1, nic1, 1}
)

func newFakeHost(pairs ...Pair) *fakeHost {
	h := &fakeHost{began: time.Now(), processes: map[string][]int{}}
	h.sighting = Sighting{
		Ports: map[Port]PortSighting{}, GPUs: sysread.Some(map[string]GPUSighting{}),
		Driver: sysread.Some("580.95"), Peermem: sysread.Some("580.95"), Confidential: sysread.Some(false),
	}
	var candidates []Candidate
	var devices []string
	for _, at := range pairs {
		candidates = append(candidates, Candidate{at, "PIX", true})
		devices = append(devices, at.Device)
		h.sighting.Ports[Port{at.Device, at.Port}] = PortSighting{sysread.Some(portActive), "guid-" + at.Device, "28.43"}
		h.sighting.GPUs.Value[at.GPU] = GPUSighting{
			UUID: "GPU-" + at.GPU, Usable: sysread.Some(true), Processes: sysread.Some(0), Free: sysread.Some[uint64](80 << 30),
			ComputeMode: sysread.Some(0), MIG: sysread.Some(false), Persistence: sysread.Some(true),
		}
	}
	h.sighting.Pairs, h.sighting.Devices = sysread.Some(candidates), sysread.Some(devices)
	return h
}

// see returns a copy of what there is to see.
func (h *fakeHost) see() Sighting {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sighting
	s.Time = time.Now()
	s.Ports = map[Port]PortSighting{}
	for port, seen := range h.sighting.Ports {
		s.Ports[port] = seen
	}
	if s.GPUs.Known {
		s.GPUs.Value = map[string]GPUSighting{}
		for address, seen := range h.sighting.GPUs.Value {
			s.GPUs.Value[address] = seen
		}
	}
	return s
}

func (h *fakeHost) change(f func(*Sighting)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&h.sighting)
}

func (h *fakeHost) gpu(address string, f func(*GPUSighting)) {
	h.change(func(s *Sighting) {
		g := s.GPUs.Value[address]
		f(&g)
		s.GPUs.Value[address] = g
	})
}

func (h *fakeHost) port(device string, f func(*PortSighting)) {
	h.change(func(s *Sighting) {
		p := s.Ports[Port{device, 1}]
		f(&p)
		s.Ports[Port{device, 1}] = p
	})
}

func (h *fakeHost) Look(context.Context) Sighting {
	h.mu.Lock()
	h.looks++
	h.mu.Unlock()
	return h.see()
}

func (h *fakeHost) Load(context.Context, Pair) Load {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loads++
	if h.unknown {
		return Load{Time: time.Now()}
	}
	moved := uint64(time.Since(h.began).Seconds() * h.traffic)
	return Load{time.Now(), sysread.Some(moved), sysread.Some(moved), sysread.Some(50 * gigabyte), sysread.Some(h.busyGPU)}
}

func (h *fakeHost) setTraffic(bytesPerSecond float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.traffic = bytesPerSecond
}

func (h *fakeHost) Processes(_ context.Context, gpu string) ([]int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.deaf {
		return nil, errors.New("NVML does not answer")
	}
	return slices.Clone(h.processes[gpu]), nil
}

func (h *fakeHost) Blocked(Pair, uint64) (Reason, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.blocked != ReasonNone {
		return h.blocked, errors.New("by the test")
	}
	return ReasonNone, nil
}

// fakeRunner makes runs that take two seconds and find what the test says.
type fakeRunner struct {
	mu     sync.Mutex
	takes  time.Duration
	find   func(Order) Ending
	orders []Order
	times  []time.Time
	now    int // runs in progress
	most   int
}

func (r *fakeRunner) Run(ctx context.Context, order Order) Ending {
	r.mu.Lock()
	r.orders, r.times = append(r.orders, order), append(r.times, time.Now())
	r.now++
	r.most = max(r.most, r.now)
	find := r.find
	r.mu.Unlock()
	order.Started(4711)
	if !sleep(ctx, r.takes) {
		r.mu.Lock()
		r.now--
		r.mu.Unlock()
		stopped := &loopback.Error{Call: "stopped", Errno: syscall.ECANCELED}
		ended := result(order)
		ended.TransferredBytes = runBytes(order)
		ended.Paths = []loopback.PathResult{{Path: loopback.PathHost, Stage: loopback.StageMeasure, Err: stopped}}
		ended.Stages = append(ended.Stages, loopback.StageResult{Stage: loopback.StageMeasure, Path: loopback.PathHost, Err: stopped})
		return Ending{Result: ended}
	}
	r.mu.Lock()
	r.now--
	r.mu.Unlock()
	return find(order)
}

func (r *fakeRunner) set(find func(Order) Ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.find = find
}

// all returns the runs so far.
func (r *fakeRunner) all() []Order {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.orders)
}

// since returns how many runs have begun since a time.
func (r *fakeRunner) since(when time.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, at := range r.times {
		if !at.Before(when) {
			n++
		}
	}
	return n
}

// count returns how many runs of a depth began.
func (r *fakeRunner) count(depth Depth) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, order := range r.orders {
		if order.Spec.RegisterOnly == (depth == DepthRegister) {
			n++
		}
	}
	return n
}

// finds is a run with rates of the direct paths as shares of the host path's.
func finds(ratio float64) func(Order) Ending {
	return func(order Order) Ending {
		r := result(order)
		if order.Spec.RegisterOnly {
			return Ending{Result: r}
		}
		for _, path := range order.Spec.Paths {
			rate := 40.0 * gigabyte
			if path != loopback.PathHost && path != loopback.PathStaged {
				rate *= ratio
			}
			r.Paths = append(r.Paths, loopback.PathResult{
				Path: path, BytesPerSecond: sysread.Some(rate), Ratio: sysread.Some(rate / (40 * gigabyte)), Mismatches: sysread.Some(0), Verified: 1 << 20,
			})
		}
		r.TransferredBytes = runBytes(order)
		return Ending{Result: r}
	}
}

// runBytes is what a whole run moves.
func runBytes(order Order) uint64 { return uint64(len(order.Spec.Paths)) * (240 << 20) }

func result(order Order) loopback.Result {
	r := loopback.Result{RegisterOnly: order.Spec.RegisterOnly, Device: order.Device, Port: order.Port, Started: time.Now(), Method: loopback.MethodPeermem, NCCLMethod: loopback.MethodPeermem}
	r.GPU = sysread.Some(loopback.GPUFacts{Address: order.GPU, GPUDirectRDMA: true, DMABuf: true})
	r.Registrations = []loopback.Registration{{Method: loopback.MethodPeermem}, {Method: loopback.MethodDMABuf, Err: &loopback.Error{Call: "ibv_reg_dmabuf_mr", Errno: syscall.EOPNOTSUPP}}}
	for _, stage := range []loopback.Stage{loopback.StageOpen, loopback.StageGate, loopback.StageAlloc, loopback.StageRegister} {
		r.Stages = append(r.Stages, loopback.StageResult{Stage: stage})
	}
	return r
}

// unregistrable is a run whose GPU memory cannot be registered.
func unregistrable(order Order) Ending {
	r := result(order)
	r.Method = ""
	r.Registrations[0].Err = &loopback.Error{Call: "ibv_reg_mr", Errno: syscall.EFAULT}
	for _, path := range order.Spec.Paths {
		found := loopback.PathResult{Path: path, BytesPerSecond: sysread.Some(40.0 * gigabyte), Ratio: sysread.Some(1.0)}
		if path != loopback.PathHost && path != loopback.PathStaged {
			found = loopback.PathResult{Path: path, Stage: loopback.StageRegister, Err: loopback.ErrNotRegistered}
		}
		r.Paths = append(r.Paths, found)
	}
	return Ending{Result: r}
}

// corrupt is a run in which data arrived wrong.
func corrupt(order Order) Ending {
	e := finds(1)(order)
	for i := range e.Result.Paths {
		e.Result.Paths[i].Mismatches = sysread.Some(3)
	}
	return e
}

// broken is a run whose host path fails.
func broken(order Order) Ending {
	r := result(order)
	err := &loopback.Error{Call: "completion", Status: 12, Vendor: 129}
	r.Stages = append(r.Stages, loopback.StageResult{Stage: loopback.StageWarmUp, Path: loopback.PathHost, Err: err})
	r.Paths = []loopback.PathResult{{Path: loopback.PathHost, Stage: loopback.StageWarmUp, Err: err}}
	r.TransferredBytes = runBytes(order)
	return Ending{Result: r}
}

// lab is a prober in a bubble of fake time.
type lab struct {
	*Prober
	host   *fakeHost
	runner *fakeRunner

	mu     sync.Mutex
	events []Event
	wishes []string
	stop   context.CancelFunc
	ended  chan struct{}
}

func newLab(t *testing.T, change func(*Options), pairs ...Pair) *lab {
	t.Helper()
	if len(pairs) == 0 {
		pairs = []Pair{pair0}
	}
	l := &lab{host: newFakeHost(pairs...), runner: &fakeRunner{takes: 2 * time.Second, find: finds(0.97)}}
	l.begin(t, change)
	return l
}

// begin starts a prober on the lab's host.
func (l *lab) begin(t *testing.T, change func(*Options)) {
	t.Helper()
	o := Options{
		Host: l.host, Runner: l.runner, Interval: time.Hour, MinFree: 4 << 30, Kernel: "6.1.0", BootID: "boot-1",
		Event:   func(e Event) { l.mu.Lock(); l.events = append(l.events, e); l.mu.Unlock() },
		Restart: func(reason string) { l.mu.Lock(); l.wishes = append(l.wishes, reason); l.mu.Unlock() },
		Rand:    rand.New(rand.NewPCG(1, 2)),
	}
	if change != nil {
		change(&o)
	}
	l.Prober = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	l.stop, l.ended = cancel, ended
	go func() {
		defer close(ended)
		l.Run(ctx)
	}()
	t.Cleanup(l.end)
}

// end ends the prober.
func (l *lab) end() {
	l.stop()
	<-l.ended
}

func (l *lab) only(t *testing.T) PairStatus {
	t.Helper()
	synctest.Wait()
	s := l.Status()
	if len(s.Pairs) != 1 {
		t.Fatalf("%d pairs", len(s.Pairs))
	}
	return s.Pairs[0]
}

// kinds returns the kinds of the events so far, and forgets them.
func (l *lab) kinds() []EventKind {
	l.mu.Lock()
	defer l.mu.Unlock()
	var kinds []EventKind
	for _, e := range l.events {
		kinds = append(kinds, e.Kind)
	}
	l.events = nil
	return kinds
}

// eventually waits in fake time.
func (l *lab) eventually(t *testing.T, within time.Duration, what string, is func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for time.Since(began) <= within {
		synctest.Wait()
		if is() {
			return time.Since(began)
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("not within %v: %s; %+v", within, what, l.Status().Pairs)
	return 0
}

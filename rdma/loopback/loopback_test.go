package loopback

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
)

// fakeHost is the sysfs and /dev of a host with one RoCE device, fake0.
type fakeHost struct {
	t         *testing.T
	sys, dev  string
	portFiles string
}

func newFakeHost(t *testing.T) fakeHost {
	dir := t.TempDir()
	h := fakeHost{t, dir + "/sys", dir + "/dev", "sys/class/infiniband/fake0/ports/1"}
	h.portFiles = dir + "/" + h.portFiles
	h.write(h.sys+"/class/infiniband_verbs/uverbs0/ibdev", "fake0")
	h.write(h.sys+"/class/infiniband_verbs/abi_version", "6")
	h.write(h.dev+"/uverbs0", "")
	h.pkeys("0xffff")
	h.gids("fe80:0000:0000:0000:0000:00ff:fe00:0001 IB/RoCE v1", "0000:0000:0000:0000:0000:ffff:0a4d:0001 RoCE v2")
	return h
}

func (h fakeHost) write(path, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

func (h fakeHost) pkeys(values ...string) {
	for i, value := range values {
		h.write(h.portFiles+"/pkeys/"+strconv.Itoa(i), value)
	}
}

// gids writes a table of "GID type" entries.
func (h fakeHost) gids(entries ...string) {
	for i, entry := range entries {
		gid, kind, _ := strings.Cut(entry, " ")
		h.write(h.portFiles+"/gids/"+strconv.Itoa(i), gid)
		if kind != "" {
			h.write(h.portFiles+"/gid_attrs/types/"+strconv.Itoa(i), kind)
		}
	}
}

func (h fakeHost) spec(gpu *hostGPU) Spec {
	spec := Spec{
		Device: "fake0", SysfsRoot: h.sys, DevRoot: h.dev,
		BufferSize: 64 << 10, MessageSize: 4 << 10, ChunkSize: 4 << 10, QueuePairs: 2, Depth: 8,
		Bytes: 128 << 10, WarmUp: 16 << 10, EventBytes: 32 << 10, ReadBack: 16 << 10, Latencies: 10, PhaseTime: time.Minute,
	}
	if gpu != nil {
		spec.OpenGPU = gpu.open
	}
	return spec
}

// A run with everything as it should be: each path measured, verified, gone.
func TestRun(t *testing.T) {
	l := newLedger(t)
	v, gpu := newFakeVerbs(l), newHostGPU(l)
	r := runOnThread(t.Context(), newFakeHost(t).spec(gpu), v.load)
	l.wantEmpty()
	wantWhole(t, r, Paths...)
	if r.Method != MethodDMABuf || r.NCCLMethod != MethodDMABuf || !r.NICDMABuf.Value || !errors.Is(r.NICDMABufErr, syscall.EBADF) {
		t.Errorf("method %q, NCCL's %q, dma-buf %v", r.Method, r.NCCLMethod, r.NICDMABuf)
	}
	if !r.RelaxedOrdering.Value || r.GID.Value.Index != 1 || r.PKey != (PKey{0, 0xffff}) || r.MTU != 4096 || !r.Ethernet {
		t.Errorf("%+v", r)
	}
	// The staged path's latency goes through post, whose 8 bytes are counted by both.
	if r.TransferredBytes != v.moved {
		t.Errorf("%d bytes transferred, the NIC moved %d", r.TransferredBytes, v.moved)
	}
	for _, p := range r.Paths[:4] {
		if p.LatencyMedian.Value != 6*time.Microsecond || p.LatencyP99.Value != 10*time.Microsecond {
			t.Errorf("%s: latency %v and %v", p.Path, p.LatencyMedian, p.LatencyP99)
		}
		if p.Bytes != 128<<10 || p.BytesPerSecond.Value != (128<<10)*1000 || p.Verified != 64<<10 {
			t.Errorf("%s: %+v", p.Path, p)
		}
	}
	for _, c := range v.connected {
		if !c.global || c.gidIndex != 1 || c.mtu != 5 || c.rdAtomic != 16 || netip.AddrFrom16(c.gid) != r.GID.Value.Address {
			t.Errorf("connection %+v", c)
		}
	}
}

// Whatever call fails, the failure is told and nothing is left.
func TestEveryCallFails(t *testing.T) {
	h := newFakeHost(t)
	for failAt := 0; ; failAt++ {
		l := newLedger(t)
		l.failAt = failAt
		v, gpu := newFakeVerbs(l), newHostGPU(l)
		r := runOnThread(t.Context(), h.spec(gpu), v.load)
		l.wantEmpty()
		if l.failed == "" {
			t.Logf("%d calls", failAt)
			break
		}
		told := errors.Is(r.Err(), errTest)
		for _, registration := range r.Registrations {
			told = told || errors.Is(registration.Err, errTest)
		}
		if !told || t.Failed() {
			t.Fatalf("call %d, %s:\n%s", failAt, l.failed, describe(r))
		}
	}
}

// A failure has the name of its stage.
func TestStageNamed(t *testing.T) {
	h := newFakeHost(t)
	l := newLedger(t)
	runOnThread(t.Context(), h.spec(newHostGPU(l)), newFakeVerbs(l).load)
	stages := map[string]Stage{
		"load": StageOpen, "make context": StageOpen, "query device": StageOpen, "make PD": StageOpen, "make GPU": StageOpen,
		"query port":      StageGate,
		"make GPU memory": StageAlloc, "GPU write": StageAlloc,
		"make MR": StageRegister, "unmake MR": StageRegister,
		"make channel": StageConnect, "make CQ": StageConnect, "make QP": StageConnect, "connect": StageConnect,
		"make pin": StageConnect, "make stream": StageConnect,
		"write": StageWarmUp, "copy": StageWarmUp, "make mark": StageWarmUp, "reached": StageWarmUp, "post": StageWarmUp, "next": StageWarmUp,
		"latency": StageMeasure, "wait mark": StageMeasure,
		"read": StageVerify, "GPU read": StageVerify,
		"unmake QP": StageTeardown, "unmake CQ": StageTeardown, "unmake channel": StageTeardown, "unmake stream": StageTeardown,
		"unmake pin": StageTeardown, "unmake GPU memory": StageTeardown, "unmake GPU": StageTeardown, "unmake PD": StageTeardown, "unmake context": StageTeardown,
	}
	for call, stage := range stages {
		failing := newLedger(t)
		failing.failAt = slices.Index(l.calls, call)
		if failing.failAt < 0 {
			t.Errorf("no call %q", call)
			continue
		}
		r := runOnThread(t.Context(), h.spec(newHostGPU(failing)), newFakeVerbs(failing).load)
		if err := r.Err(); err == nil || !strings.HasPrefix(err.Error(), string(stage)) {
			t.Errorf("%s fails: %v, want it in %s", call, err, stage)
		}
	}
}

// A path that fails spoils none that comes after it.
func TestPathFails(t *testing.T) {
	l := newLedger(t)
	v, gpu := newFakeVerbs(l), newHostGPU(l)
	spec := newFakeHost(t).spec(gpu)
	spec.OnStage = func(stage Stage, path Path) {
		v.status = 0
		if stage == StageMeasure && path == PathGPURead {
			v.status = LocalProtection
		}
	}
	r := runOnThread(t.Context(), spec, v.load)
	l.wantEmpty()
	for _, p := range r.Paths {
		if (p.Err != nil) != (p.Path == PathGPURead) {
			t.Errorf("%s: %v", p.Path, p.Err)
		}
	}
	const want = "measure (path gpu_read): completion with IBV_WC_LOC_PROT_ERR, vendor error 0x51 (81)"
	if err := r.Err(); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	var failure *Error
	if !errors.As(r.Err(), &failure) || failure.ErrnoName() != "IBV_WC_LOC_PROT_ERR" || errors.Unwrap(failure) != nil {
		t.Errorf("%v", failure)
	}
}

// One flipped byte is seen; what both ways of reading see counts for each.
func TestVerify(t *testing.T) {
	l := newLedger(t)
	gpu := newHostGPU(l)
	gpu.flip = 33<<10 + 1
	r := runOnThread(t.Context(), newFakeHost(t).spec(gpu), newFakeVerbs(l).load)
	for _, p := range r.Paths {
		if corrupt := errors.Is(p.Err, ErrCorrupt); corrupt != p.Path.toGPU() || corrupt && p.Mismatches.Value != 1 {
			t.Errorf("%s: %v, %v", p.Path, p.Mismatches, p.Err)
		}
	}
	memory := make([]byte, 64)
	fill(memory, 7, 128)
	if n := mismatches(memory, 7, 128); n != 0 {
		t.Errorf("%d mismatches in the pattern itself", n)
	}
	for name, other := range map[string]int{"another seed": mismatches(memory, 8, 128) - 7, "another place": mismatches(memory, 7, 64)} {
		if other < 1 {
			t.Errorf("the pattern is the same with %s", name)
		}
	}
	if n := mismatches(make([]byte, 64), 7, 0); n != 8 {
		t.Errorf("%d mismatches in empty memory", n)
	}
}

// GPU memory is registered as NCCL would, unless that does not work.
func TestMethods(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Spec, *fakeVerbs, *hostGPU)
		want   Method
		nccl   Method
	}{
		"both":                   {func(*Spec, *fakeVerbs, *hostGPU) {}, MethodDMABuf, MethodDMABuf},
		"NIC without dma-buf":    {func(_ *Spec, v *fakeVerbs, _ *hostGPU) { v.dmabuf = syscall.EOPNOTSUPP }, MethodPeermem, MethodPeermem},
		"kernel without dma-buf": {func(_ *Spec, v *fakeVerbs, _ *hostGPU) { v.dmabuf = syscall.EPROTONOSUPPORT }, MethodPeermem, MethodPeermem},
		"GPU without dma-buf":    {func(_ *Spec, _ *fakeVerbs, g *hostGPU) { g.facts.DMABuf, g.dmabuf = false, errTest }, MethodPeermem, MethodPeermem},
		"export fails":           {func(_ *Spec, _ *fakeVerbs, g *hostGPU) { g.dmabuf = errTest }, MethodPeermem, MethodDMABuf},
		"no peermem":             {func(_ *Spec, _ *fakeVerbs, g *hostGPU) { g.noPeermem = true }, MethodDMABuf, MethodDMABuf},
		"neither":                {func(_ *Spec, v *fakeVerbs, g *hostGPU) { g.noPeermem, v.dmabuf = true, syscall.EOPNOTSUPP }, "", MethodPeermem},
		"forced":                 {func(s *Spec, _ *fakeVerbs, _ *hostGPU) { s.Force = MethodPeermem }, MethodPeermem, MethodDMABuf},
		"forced in vain":         {func(s *Spec, _ *fakeVerbs, g *hostGPU) { s.Force, g.noPeermem = MethodPeermem, true }, "", MethodDMABuf},
		"no relaxed ordering":    {func(_ *Spec, v *fakeVerbs, _ *hostGPU) { v.noRelaxed = true }, MethodDMABuf, MethodDMABuf},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			v, gpu := newFakeVerbs(l), newHostGPU(l)
			spec := newFakeHost(t).spec(gpu)
			test.change(&spec, v, gpu)
			r := runOnThread(t.Context(), spec, v.load)
			l.wantEmpty()
			if r.Err() != nil || r.Method != test.want || r.NCCLMethod != test.nccl || r.RelaxedOrdering.Value == v.noRelaxed {
				t.Errorf("method %q, NCCL's %q, relaxed %v\n%s", r.Method, r.NCCLMethod, r.RelaxedOrdering, describe(r))
			}
			for _, p := range r.Paths {
				if unreachable := p.Path.direct() && test.want == ""; unreachable != errors.Is(p.Err, ErrNotRegistered) || !unreachable && p.Err != nil {
					t.Errorf("%s: %v", p.Path, p.Err)
				}
			}
		})
	}
}

// A NIC with a data-direct function is not judged by its other one.
func TestDataDirect(t *testing.T) {
	for _, test := range []struct {
		answer error
		want   sysread.Maybe[bool]
	}{{nil, sysread.Some(true)}, {syscall.ENODEV, sysread.Some(false)}, {syscall.EOPNOTSUPP, sysread.Some(false)}, {syscall.ENOSYS, sysread.Maybe[bool]{}}} {
		l := newLedger(t)
		v, gpu := newFakeVerbs(l), newHostGPU(l)
		v.direct = test.answer
		r := runOnThread(t.Context(), newFakeHost(t).spec(gpu), v.load)
		if r.Err() != nil || r.DataDirect != test.want {
			t.Errorf("%v: %v, %v", test.answer, r.DataDirect, r.Err())
		}
		for _, p := range r.Paths {
			if unknown := test.answer == nil && p.Path.direct(); errors.Is(p.Err, ErrDataDirect) != unknown || p.BytesPerSecond.Known == unknown {
				t.Errorf("%v: %s: %v", test.answer, p.Path, p.Err)
			}
		}
	}
}

// InfiniBand goes by LID, with a GRH where the port demands one or has no LID.
func TestInfiniBand(t *testing.T) {
	for name, test := range map[string]struct {
		port   portState
		global bool
	}{
		"LID":          {portState{state: 4, mtu: 5, lid: 17}, false},
		"GRH required": {portState{state: 4, mtu: 5, lid: 17, grhRequired: true}, true},
		"no LID":       {portState{state: 4, mtu: 5}, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			v := newFakeVerbs(l)
			v.port = test.port
			h := newFakeHost(t)
			h.pkeys("0x7fff", "0x0000", "0x8001", "0xffff")
			r := runOnThread(t.Context(), h.spec(nil), v.load)
			wantWhole(t, r, PathHost)
			for _, c := range v.connected {
				if c.lid != test.port.lid || c.global != test.global || c.gidIndex != 0 || c.pkeyIndex != 2 {
					t.Errorf("%+v", c)
				}
			}
			if r.Ethernet || r.GID.Known != test.global {
				t.Errorf("%+v", r)
			}
		})
	}
}

// What must not be measured is refused at the gate, or before.
func TestRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Spec, *fakeVerbs, fakeHost)
		stage  Stage
		want   error
		text   string
	}{
		"port without subnet manager": {func(_ *Spec, v *fakeVerbs, _ fakeHost) { v.port.state = 2 }, StageGate, syscall.ENETDOWN, "INIT"},
		"GPU memory":                  {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.FreeGPUMemory = 4 << 30 }, StageGate, syscall.ENOMEM, "4294967296 wanted"},
		"message too long":            {func(_ *Spec, v *fakeVerbs, _ fakeHost) { v.port.messageSize = 1024 }, StageGate, syscall.EMSGSIZE, "takes 1024"},
		"P_Key":                       {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.PKey = 0x8005 }, StageGate, syscall.EADDRNOTAVAIL, "P_Key"},
		"limited P_Key":               {func(_ *Spec, _ *fakeVerbs, h fakeHost) { h.pkeys("0x7fff") }, StageGate, syscall.EADDRNOTAVAIL, "P_Key"},
		"GID":                         {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.GID = sysread.Some(7) }, StageGate, syscall.EADDRNOTAVAIL, "GID 7"},
		"no GID": {func(_ *Spec, _ *fakeVerbs, h fakeHost) {
			h.gids("0000:0000:0000:0000:0000:0000:0000:0000", "0000:0000:0000:0000:0000:0000:0000:0000")
		}, StageGate, errNoGID, "among 0"},
		"GID table":          {func(_ *Spec, _ *fakeVerbs, h fakeHost) { h.gids("nonsense") }, StageGate, sysread.ErrInvalid, "gids/0"},
		"no such device":     {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.Device = "fake1" }, StageOpen, syscall.ENOENT, "no RDMA device fake1"},
		"no verbs device":    {func(_ *Spec, _ *fakeVerbs, h fakeHost) { os.RemoveAll(h.sys + "/class/infiniband_verbs/uverbs0") }, StageOpen, syscall.ENODEV, "no verbs device"},
		"no verbs class":     {func(_ *Spec, _ *fakeVerbs, h fakeHost) { os.RemoveAll(h.sys + "/class/infiniband_verbs") }, StageOpen, syscall.ENOENT, "ib_uverbs"},
		"no device file":     {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.DevRoot += "x" }, StageOpen, syscall.ENOENT, "uverbs0"},
		"buffer too small":   {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.BufferSize = 4 << 10 }, StageOpen, nil, "does not hold"},
		"too few bytes":      {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.Bytes = 8 }, StageOpen, nil, "8 bytes"},
		"negative depth":     {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.Depth = -1 }, StageOpen, nil, "depth -1"},
		"negative samples":   {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.Latencies = -1 }, StageOpen, nil, "-1 latency samples"},
		"no read-back":       {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.ReadBack = 4 }, StageOpen, nil, "4 bytes to read back"},
		"negative buffer":    {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.BufferSize = -1 }, StageOpen, nil, "does not hold"},
		"huge message":       {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.MessageSize = 1 << 32 }, StageOpen, nil, "at most 2147483648"},
		"unknown state":      {func(_ *Spec, v *fakeVerbs, _ fakeHost) { v.port.state = -7 }, StageGate, syscall.ENETDOWN, "state -7"},
		"odd message":        {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.MessageSize = 12 }, StageOpen, nil, "multiples of 8"},
		"queue pairs":        {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.QueuePairs = 65 }, StageOpen, nil, "from 1 to 64"},
		"path":               {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.Paths = []Path{"x"} }, StageOpen, nil, "unknown path"},
		"no GPU":             {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.OpenGPU = nil; s.Paths = Paths }, StageOpen, nil, "needs a GPU"},
		"slices":             {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.Slices = 65 }, StageOpen, nil, "from 1 to 64"},
		"thin slices":        {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.Slices = 64 }, StageOpen, nil, "131072 bytes in 64 slices"},
		"no GPU to register": {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.OpenGPU, s.RegisterOnly = nil, true }, StageOpen, nil, "needs a GPU"},
		"method":             {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.Force = "x" }, StageOpen, nil, "unknown method"},
		"no device":          {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.Device = "" }, StageOpen, nil, "no RDMA device named"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			v, h := newFakeVerbs(l), newFakeHost(t)
			spec := h.spec(newHostGPU(l))
			test.change(&spec, v, h)
			r := runOnThread(t.Context(), spec, v.load)
			l.wantEmpty()
			err := r.Err()
			if err == nil || !strings.HasPrefix(err.Error(), string(test.stage)) || !strings.Contains(err.Error(), test.text) || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v and %q in %s", err, test.want, test.text, test.stage)
			}
			if v.moved > 0 || len(r.Paths) > 0 {
				t.Errorf("%d bytes were moved all the same", v.moved)
			}
		})
	}
}

// Odd shapes work: one queue pair, a window of one, small messages, buffers that
// do not divide, nonsense for an MTU.
func TestShapes(t *testing.T) {
	for _, shape := range []Spec{
		{QueuePairs: 1, Depth: 1, MessageSize: 8, ChunkSize: 8, BufferSize: 64, Bytes: 800, WarmUp: 1, EventBytes: 1, ReadBack: 8},
		{QueuePairs: 3, Depth: 2, MessageSize: 1000, ChunkSize: 3000, BufferSize: 10001, Bytes: 50000, WarmUp: 100, EventBytes: 9999, ReadBack: 5001},
		{QueuePairs: 64, Depth: 5000, MessageSize: 4096, ChunkSize: 1 << 20, BufferSize: 3 << 20, Bytes: 1 << 20, WarmUp: 1 << 20, EventBytes: 1 << 20, ReadBack: 1 << 24},
	} {
		l := newLedger(t)
		v, gpu := newFakeVerbs(l), newHostGPU(l)
		v.port.mtu = -3
		spec := newFakeHost(t).spec(gpu)
		shape.Device, shape.SysfsRoot, shape.DevRoot, shape.OpenGPU, shape.PhaseTime = spec.Device, spec.SysfsRoot, spec.DevRoot, spec.OpenGPU, spec.PhaseTime
		r := runOnThread(t.Context(), shape, v.load)
		l.wantEmpty()
		if r.Err() != nil || r.TransferredBytes != v.moved {
			t.Errorf("%d bytes of %d\n%s", r.TransferredBytes, v.moved, describe(r))
		}
		for _, p := range r.Paths {
			if p.Err != nil || !p.BytesPerSecond.Known || p.Verified == 0 {
				t.Errorf("%s: %+v", p.Path, p)
			}
		}
	}
}

// A context that ends ends the run, but not its teardown.
func TestCancelled(t *testing.T) {
	for _, at := range []Stage{StageOpen, StageAlloc, StageWarmUp, StageMeasure, StageVerify} {
		ctx, cancel := context.WithCancel(t.Context())
		l := newLedger(t)
		spec := newFakeHost(t).spec(newHostGPU(l))
		var under *run
		spec.OnStage = func(stage Stage, _ Path) {
			if stage != at {
				return
			}
			cancel()
			for end := time.Now().Add(20 * time.Second); under.stopping.Load() == 0 && time.Now().Before(end); {
				time.Sleep(time.Millisecond) // context.AfterFunc is not at once
			}
		}
		under = newRun(ctx, spec.withDefaults(), newFakeVerbs(l).load)
		under.all()
		l.wantEmpty()
		if err := under.result.Err(); !errors.Is(err, syscall.ECANCELED) {
			t.Errorf("cancelled in %s: %v", at, err)
		}
	}
	l := newLedger(t)
	spec := newFakeHost(t).spec(nil)
	spec.Deadline = time.Nanosecond
	r := runOnThread(t.Context(), spec, newFakeVerbs(l).load)
	if !errors.Is(r.Err(), syscall.ETIMEDOUT) {
		t.Errorf("past the deadline: %v", r.Err())
	}
}

// The defaults keep 8 MiB under way, whatever the messages.
func TestDefaultDepth(t *testing.T) {
	for depth, spec := range map[int]Spec{
		2:   {Device: "x"},
		8:   {Device: "x", QueuePairs: 1},
		128: {Device: "x", MessageSize: 4096},
		3:   {Device: "x", Depth: 3},
	} {
		if d := spec.withDefaults(); d.Depth != depth || d.check() != nil {
			t.Errorf("%+v: depth %d, want %d, %v", spec, d.Depth, depth, d.check())
		}
	}
}

func TestChooseGID(t *testing.T) {
	v4, v6 := netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("fe80::1")
	for name, test := range map[string]struct {
		gids []GID
		want int
	}{
		"IPv4 of version 2":    {[]GID{{0, v6, typeRoCEv1}, {1, v6, typeRoCEv2}, {2, v4, typeRoCEv1}, {3, v4, typeRoCEv2}}, 3},
		"version 2":            {[]GID{{0, v6, typeRoCEv1}, {1, v4, typeRoCEv1}, {5, v6, typeRoCEv2}}, 5},
		"version 1":            {[]GID{{4, v6, typeRoCEv1}, {5, v4, typeRoCEv1}}, 4},
		"of another namespace": {[]GID{{0, v4, ""}, {1, v6, typeRoCEv1}}, 1},
		"first of equals":      {[]GID{{3, v4, typeRoCEv2}, {9, v4, typeRoCEv2}}, 3},
		"none":                 {nil, -1},
	} {
		gid, err := chooseGID(test.gids)
		if err != nil {
			gid.Index = -1
		}
		if gid.Index != test.want {
			t.Errorf("%s: %v, %v, want %d", name, gid, err, test.want)
		}
	}
}

// The table ends after many empty slots, not after a few.
func TestGIDTable(t *testing.T) {
	h := newFakeHost(t)
	table := slices.Repeat([]string{"0000:0000:0000:0000:0000:0000:0000:0000"}, 130)
	table[40] = "0000:0000:0000:0000:0000:ffff:0a00:0001 RoCE v2"
	table[129] = "0000:0000:0000:0000:0000:ffff:0a00:0002 RoCE v2"
	h.gids(table...)
	os.RemoveAll(h.portFiles + "/gid_attrs/types/0")
	gids, err := newPortFiles(h.sys, "fake0", 1).gids()
	if err != nil || len(gids) != 1 || gids[0] != (GID{40, netip.MustParseAddr("::ffff:10.0.0.1"), typeRoCEv2}) {
		t.Errorf("%v, %v", gids, err)
	}
}

func TestPKey(t *testing.T) {
	h := newFakeHost(t)
	h.pkeys("0x7fff", "0x0000", "0x8002", "0x0003", "0xffff")
	p := newPortFiles(h.sys, "fake0", 1)
	for want, index := range map[uint16]int{0: 2, 0xffff: 4, 3: 3, 0x7fff: 0} {
		if key, err := p.pkey(want); err != nil || key.Index != index {
			t.Errorf("P_Key %#x: %v, %v", want, key, err)
		}
	}
	if err := os.RemoveAll(h.portFiles + "/pkeys"); err != nil {
		t.Fatal(err)
	}
	if key, err := p.pkey(0); err != nil || key != (PKey{0, 0xffff}) {
		t.Errorf("without a table: %v, %v", key, err)
	}
}

func FuzzParseGID(f *testing.F) {
	f.Add("fe80:0000:0000:0000:0000:00ff:fe00:0001")
	f.Add("fe80::1")
	f.Add("0000:0000:0000:0000:0000:ffff:0a4d:00:1")
	f.Fuzz(func(t *testing.T, text string) {
		address, err := parseGID(text)
		if err != nil {
			return
		}
		if again := address.Unmap().Is4(); again != address.Is4In6() {
			t.Errorf("%q: %v", text, address)
		}
		if !strings.EqualFold(unmapped(address), text) {
			t.Errorf("%q becomes %s", text, unmapped(address))
		}
	})
}

// unmapped writes a GID as sysfs does.
func unmapped(address netip.Addr) string {
	const digits = "0123456789abcdef"
	raw := address.As16()
	var text []byte
	for i, b := range raw {
		if i > 0 && i%2 == 0 {
			text = append(text, ':')
		}
		text = append(text, digits[b>>4], digits[b&15])
	}
	return string(text)
}

func FuzzParsePKey(f *testing.F) {
	for _, seed := range []string{"0xffff", "0x7fff", "0x0000", "ffff", "0x10000", "0x", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		value, err := parsePKey(text)
		if err != nil {
			return
		}
		if again, err := strconv.ParseUint(text, 0, 64); err != nil || again != uint64(value) {
			t.Errorf("%q is %d, or %d (%v)", text, value, again, err)
		}
	})
}

func TestLock(t *testing.T) {
	path := t.TempDir() + "/run/probe.lock"
	lock, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = TryLock(path)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())) {
		t.Errorf("second lock: %v", err)
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	if lock, err = TryLock(path); err != nil {
		t.Fatal(err)
	}
	_ = lock.Unlock()
	if _, err := TryLock("/proc/nothing/probe.lock"); err == nil {
		t.Error("a lock in /proc")
	}
}

func TestStatusNames(t *testing.T) {
	for status, want := range map[CompletionStatus]string{0: "IBV_WC_SUCCESS", 4: "IBV_WC_LOC_PROT_ERR", 12: "IBV_WC_RETRY_EXC_ERR", 23: "IBV_WC_TM_RNDV_INCOMPLETE", 24: "IBV_WC_24", -1: "IBV_WC_-1"} {
		if status.String() != want {
			t.Errorf("%d is %s, want %s", int(status), status, want)
		}
	}
}

// The real library loads here, and where it does not the error says so.
func TestLoadLibrary(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/"+libraryName, []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, path, err := loadLibrary([]string{"/nowhere", dir}); !errors.Is(err, ErrNoLibrary) || path != dir+"/"+libraryName {
		t.Errorf("%s: %v", path, err)
	}
	v, path, err := loadLibrary(nil)
	if errors.Is(err, ErrNoLibrary) {
		t.Skip(err)
	}
	if err != nil || !filepath.IsAbs(path) || filepath.Base(path) != libraryName {
		t.Fatalf("%s: %v", path, err)
	}
	defer v.unload()
	if _, err := v.open("no_such_device"); err == nil {
		t.Error("opened no_such_device")
	} else {
		t.Log(err)
	}
}

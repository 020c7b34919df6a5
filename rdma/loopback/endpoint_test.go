package loopback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// duplex moves data from a to b, and back at the same time if both write.
func duplex(t *testing.T, a, b *Endpoint, bytes uint64) (there, back Written) {
	t.Helper()
	there, back, err := moveBoth(t.Context(), a, b, bytes)
	if err != nil {
		t.Fatal(err)
	}
	return there, back
}

// moveBoth fills, writes and verifies, as two sessions do it: whoever is only written
// to, or has written all, serves until the other has written all too.
func moveBoth(ctx context.Context, a, b *Endpoint, bytes uint64) (there, back Written, err error) {
	const seed = 77
	ends := [2]*Endpoint{a, b}
	var written [2]Written
	var failures [2]error
	// A session tells the other side of a failure, which else would wait for it.
	writing, fail := context.WithCancel(ctx)
	defer fail()
	serving, end := context.WithCancel(writing)
	defer end()
	var writers, all sync.WaitGroup
	for i, e := range ends {
		serve := func() error { _, err := e.Serve(serving); return err }
		all.Add(1)
		if !e.half.role.sends() {
			go func() {
				defer all.Done()
				if failures[i] = serve(); failures[i] != nil {
					fail()
				}
			}()
			continue
		}
		writers.Add(1)
		go func() {
			defer all.Done()
			err := e.Fill(ctx, seed+uint64(i))
			if err == nil {
				written[i], err = e.Write(writing, WriteSpec{Bytes: bytes})
			}
			if err != nil {
				fail()
			}
			writers.Done()
			if err == nil && e.half.role.receives() {
				if err = serve(); err != nil {
					fail()
				}
			}
			failures[i] = err
		}()
	}
	writers.Wait()
	end()
	all.Wait()
	err = errors.Join(failures[0], failures[1])
	for i, w := range written {
		if err == nil && ends[i].half.role.sends() {
			_, err = ends[1-i].Verify(ctx, seed+uint64(i), w.Extents)
		}
	}
	return written[0], written[1], err
}

var (
	oneWay = [2]Role{RoleInitiator, RoleResponder}
	twoWay = [2]Role{RoleBoth, RoleBoth}
)

func TestEndpoints(t *testing.T) {
	for _, memories := range [][2]Memory{
		{MemoryHost, MemoryHost}, {MemoryGPU, MemoryGPU}, {MemoryHost, MemoryGPU}, {MemoryGPU, MemoryHost}, {MemoryStaged, MemoryStaged},
	} {
		for _, roles := range [][2]Role{oneWay, twoWay} {
			t.Run(fmt.Sprint(memories, roles), func(t *testing.T) {
				p := newFakePeers(t)
				a, b := p.pair(roles, memories)
				there, back := duplex(t, a, b, 256<<10)
				duplex(t, a, b, 100<<10)
				if there.Bytes != 256<<10 || !there.Rate().Known || size(there.Extents) == 0 {
					t.Errorf("%+v", there)
				}
				if both := roles == twoWay; both != (back.Bytes == 256<<10) {
					t.Errorf("back %+v", back)
				}
				if exposes := a.Address().Length > 0; exposes != (roles == twoWay) || b.Address().Length == 0 {
					t.Errorf("addresses %+v and %+v", a.Address(), b.Address())
				}
				p.wantEmpty(a, b)
			})
		}
	}
}

// What the peer may do is to write into the buffer that is for it, no more.
func TestEndpointAccess(t *testing.T) {
	p := newFakePeers(t)
	a, b := p.pair(oneWay, [2]Memory{MemoryHost, MemoryHost})
	f := p.nics[0].fabric
	for key, r := range f.keys {
		want, length := accessNone, 64<<10
		if p.ledgers[1].alive["PD"][r.pd] {
			want = accessWrite
		}
		if r.allow != want || r.length != length {
			t.Errorf("region %d: %+v", key, r)
		}
	}
	for number, qp := range f.qps {
		if want := map[bool]access{true: accessWrite, false: accessNone}[qp.nic == p.nics[1]]; qp.to.allow != want || qp.to.mtu != 5 {
			t.Errorf("queue pair %d: %+v", number, qp.to)
		}
	}
	address := b.Address()
	if r := f.keys[address.RKey]; uint64(r.address) != address.VirtualAddress || address.Length != 64<<10 || address.GID != netip.MustParseAddr("::ffff:10.77.0.2") {
		t.Errorf("address %+v, region %+v", address, r)
	}
	p.wantEmpty(a, b)
}

// A key that is dead, of another endpoint, or made up, and what is not the buffer: the
// initiator is told, and the memory is as it was.
func TestEndpointKeys(t *testing.T) {
	for name, change := range map[string]func(a *Address, other Address){
		"made up":                   func(a *Address, _ Address) { a.RKey ^= 0xff },
		"of another endpoint":       func(a *Address, other Address) { a.RKey, a.VirtualAddress = other.RKey, other.VirtualAddress },
		"before the buffer":         func(a *Address, _ Address) { a.VirtualAddress -= 8 },
		"beyond the buffer":         func(a *Address, _ Address) { a.VirtualAddress += 8 },
		"memory of the source side": func(a *Address, _ Address) { a.VirtualAddress = 4096 },
	} {
		t.Run(name, func(t *testing.T) {
			p := newFakePeers(t)
			a := p.open(0, p.spec(0, RoleInitiator, MemoryHost))
			b := p.open(1, p.spec(1, RoleResponder, MemoryHost))
			otherNIC := p.nics[0].fabric.nic(newLedger(t), 3) // the same host in another process
			other, err := openEndpoint(t.Context(), p.spec(1, RoleResponder, MemoryHost), otherNIC.load)
			if err != nil {
				t.Fatal(err)
			}
			address := b.Address()
			change(&address, other.Address())
			if err := errors.Join(b.Connect(t.Context(), a.Address()), a.Connect(t.Context(), address), a.Fill(t.Context(), 1)); err != nil {
				t.Fatal(err)
			}
			w, err := a.Write(t.Context(), WriteSpec{Bytes: 1 << 20})
			wantStatus(t, err, StageWrite, 10)
			_, again := a.Write(t.Context(), WriteSpec{Bytes: 8})
			wantStatus(t, again, StageWrite, 10)
			_, ping := a.Ping(t.Context(), 1)
			wantStatus(t, ping, StagePing, 10)
			if len(w.Extents) == 0 && w.Bytes > 0 {
				t.Errorf("%+v", w)
			}
			for _, byte := range other.half.destination.host.bytes {
				if byte != 0 {
					t.Fatal("the other endpoint's memory was written")
				}
			}
			p.wantEmpty(a, b, other)
		})
	}
}

// wantStatus expects a failure of a stage with a completion status.
func wantStatus(t *testing.T, err error, stage Stage, status CompletionStatus) {
	t.Helper()
	var at *StageError
	var failure *Error
	if !errors.As(err, &at) || at.Stage != stage || !errors.As(err, &failure) || failure.Status != status {
		t.Errorf("error %v, want %v in %s", err, status, stage)
	}
}

// wantErrno expects a failure of a stage with an errno.
func wantErrno(t *testing.T, err error, stage Stage, errno syscall.Errno) {
	t.Helper()
	var at *StageError
	if !errors.As(err, &at) || at.Stage != stage || !errors.Is(err, errno) {
		t.Errorf("error %v, want %v in %s", err, errno, stage)
	}
}

func TestEndpointPing(t *testing.T) {
	p := newFakePeers(t)
	a, b := p.pair(oneWay, [2]Memory{MemoryHost, MemoryHost})
	ping, err := a.Ping(t.Context(), 64)
	if err != nil || len(ping.Latencies) != 64 || ping.Lost != 0 || ping.Median().Value != 33*time.Microsecond {
		t.Errorf("%+v, %v", ping, err)
	}
	for _, count := range []int{0, -1, mostPings + 1} {
		_, err := a.Ping(t.Context(), count)
		wantErrno(t, err, StagePing, syscall.EINVAL)
	}
	_, err = b.Ping(t.Context(), 1)
	wantErrno(t, err, StagePing, syscall.EBADF)
	p.nics[0].cut = true
	ping, err = a.Ping(t.Context(), 64)
	wantStatus(t, err, StagePing, 12)
	if len(ping.Latencies) != 0 || ping.Lost != 1 || ping.Median().Known {
		t.Errorf("%+v", ping)
	}
	p.wantEmpty(a, b)
}

// What is asked too early, of the wrong side, or of a peer that does not fit.
func TestEndpointRefuses(t *testing.T) {
	p := newFakePeers(t)
	ctx := t.Context()
	a := p.open(0, p.spec(0, RoleInitiator, MemoryHost))
	b := p.open(1, p.spec(1, RoleResponder, MemoryHost))
	_, err := a.Write(ctx, WriteSpec{})
	wantErrno(t, err, StageWrite, syscall.ENOTCONN)
	_, err = b.Serve(ctx)
	wantErrno(t, err, StageServe, syscall.ENOTCONN)
	wantErrno(t, b.Fill(ctx, 1), StageFill, syscall.EBADF)
	wantErrno(t, a.Connect(ctx, Address{}), StageConnect, syscall.EINVAL)
	wantErrno(t, a.Connect(ctx, a.Address()), StageConnect, syscall.EADDRINUSE)
	none := b.Address()
	none.RKey, none.VirtualAddress, none.Length = 0, 0, 0
	wantErrno(t, a.Connect(ctx, none), StageConnect, syscall.EPROTONOSUPPORT)
	connectBoth(t, a, b)
	wantErrno(t, a.Connect(ctx, b.Address()), StageConnect, syscall.EISCONN)
	_, err = a.Write(ctx, WriteSpec{})
	wantErrno(t, err, StageWrite, syscall.ENODATA)
	_, err = b.Write(ctx, WriteSpec{})
	wantErrno(t, err, StageWrite, syscall.EBADF)
	_, err = a.Verify(ctx, 1, []Extent{{0, 8}})
	wantErrno(t, err, StageVerify, syscall.EBADF)
	for _, extents := range [][]Extent{
		nil, {{0, 0}}, {{-8, 8}}, {{0, -8}}, {{4, 8}}, {{0, 12}}, {{64 << 10, 8}}, {{8, 64 << 10}}, {{math.MaxInt - 7, 16}}, {{8, math.MaxInt - 7}},
		{{0, 64 << 10}, {0, 8}},
	} {
		_, err = b.Verify(ctx, 1, extents)
		wantErrno(t, err, StageVerify, syscall.EINVAL)
	}
	v, err := b.Verify(ctx, 1, []Extent{{0, 64 << 10}})
	if !errors.Is(err, ErrCorrupt) || v.Mismatches != 8<<10 || v.Bytes != 64<<10 {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := b.Serve(ctx); err != nil {
		t.Error(err)
	}
	p.wantEmpty(a, b)
}

// One flipped byte is seen, wherever the memory is.
func TestEndpointCorrupt(t *testing.T) {
	for _, memory := range []Memory{MemoryHost, MemoryGPU, MemoryStaged} {
		p := newFakePeers(t)
		a, b := p.pair(oneWay, [2]Memory{memory, memory})
		duplex(t, a, b, 4<<20)
		extents := []Extent{{0, 32 << 10}, {48 << 10, 8 << 10}}
		v, err := b.Verify(t.Context(), 77, extents)
		if err != nil || v.Mismatches != 0 || v.Bytes != 40<<10 {
			t.Errorf("%s: %+v, %v", memory, v, err)
		}
		if memory == MemoryHost {
			b.half.destination.host.bytes[50<<10] ^= 1
		}
		p.gpus[1].flip = 50 << 10
		v, err = b.Verify(t.Context(), 77, extents)
		if !errors.Is(err, ErrCorrupt) || v.Mismatches != 1 {
			t.Errorf("%s: %+v, %v", memory, v, err)
		}
		p.wantEmpty(a, b)
	}
}

func TestEndpointSpecs(t *testing.T) {
	p := newFakePeers(t)
	for name, test := range map[string]struct {
		change func(*EndpointSpec)
		stage  Stage
		reason string
	}{
		"role":        {func(s *EndpointSpec) { s.Role = "" }, StageOpen, "role"},
		"memory":      {func(s *EndpointSpec) { s.Memory = "disk" }, StageOpen, "memory"},
		"buffer":      {func(s *EndpointSpec) { s.BufferSize = 1 << 40 }, StageOpen, "buffer"},
		"queue pairs": {func(s *EndpointSpec) { s.QueuePairs = 65 }, StageOpen, "queue pairs"},
		"no GPU":      {func(s *EndpointSpec) { s.Memory, s.OpenGPU = MemoryStaged, nil }, StageOpen, "needs a GPU"},
		"device":      {func(s *EndpointSpec) { s.Device = "nowhere" }, StageOpen, "nowhere"},
		"GPU memory":  {func(s *EndpointSpec) { s.Memory, s.FreeGPUMemory = MemoryGPU, 1<<60 }, StageGate, "bytes free"},
		"messages":    {func(s *EndpointSpec) { s.BufferSize, s.MessageSize, s.QueuePairs = 1<<31, 1<<31, 1 }, StageGate, "the port takes"},
	} {
		spec := p.spec(0, RoleBoth, MemoryHost)
		test.change(&spec)
		e, err := openEndpoint(t.Context(), spec, p.nics[0].load)
		if err == nil {
			_ = e.Close()
		}
		var at *StageError
		if !errors.As(err, &at) || at.Stage != test.stage || !strings.Contains(err.Error(), test.reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.nics[0].direct = nil
	_, err := openEndpoint(t.Context(), p.spec(0, RoleBoth, MemoryGPU), p.nics[0].load)
	var at *StageError
	if !errors.As(err, &at) || at.Stage != StageGate || !errors.Is(err, ErrDataDirect) {
		t.Error(err)
	}
	p.nics[0].port.state = 1
	_, err = openEndpoint(t.Context(), p.spec(0, RoleBoth, MemoryHost), p.nics[0].load)
	if SkipReason(err) != SkipPort {
		t.Error(err)
	}
	p.wantEmpty()
}

// GPU memory is registered by NCCL's method, else by the other one, else it is said why not.
func TestEndpointMethods(t *testing.T) {
	for name, test := range map[string]struct {
		dmabuf    error
		noPeermem bool
		force     Method
		want      Method
		tried     int
	}{
		"both":           {syscall.EBADF, false, "", MethodDMABuf, 1},
		"forced":         {syscall.EBADF, false, MethodPeermem, MethodPeermem, 1},
		"no dma-buf":     {syscall.EOPNOTSUPP, false, "", MethodPeermem, 1},
		"neither":        {syscall.EOPNOTSUPP, true, "", "", 2},
		"forced in vain": {syscall.EBADF, true, MethodPeermem, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFakePeers(t)
			p.nics[0].dmabuf, p.gpus[0].noPeermem = test.dmabuf, test.noPeermem
			spec := p.spec(0, RoleBoth, MemoryGPU)
			spec.Force = test.force
			e, err := openEndpoint(t.Context(), spec, p.nics[0].load)
			if (err == nil) != (test.want != "") {
				t.Fatal(err)
			}
			if err != nil {
				wantErrno(t, err, StageRegister, syscall.EFAULT)
				if !errors.Is(err, ErrNotRegistered) {
					t.Error(err)
				}
				p.wantEmpty()
				return
			}
			if facts := e.Facts(); facts.Method != test.want || len(facts.Registrations) != test.tried || facts.MTU != 4096 || !facts.GPU.Known {
				t.Errorf("%+v", facts)
			}
			p.wantEmpty(e)
		})
	}
}

// Whatever call fails, on the side that writes or on the other: it is told, and
// nothing is left.
func TestEndpointEveryCallFails(t *testing.T) {
	for _, memory := range []Memory{MemoryHost, MemoryGPU, MemoryStaged} {
		for side := range 2 {
			t.Run(fmt.Sprint(memory, side), func(t *testing.T) {
				var names []string
				for _, name := range endpointCallFails(t, memory, side, "", -1) {
					if !slices.Contains(names, name) {
						names = append(names, name)
					}
				}
				failures := 0
				for _, name := range names { // how often some are called depends on the time
					for failAt := 0; failAt < 4 && endpointCallFails(t, memory, side, name, failAt) != nil && !t.Failed(); failAt++ {
						failures++
					}
				}
				t.Logf("%d failures of %d calls: %v", failures, len(names), names)
			})
		}
	}
}

// endpointCallFails makes a call fail. It returns all calls, nil if there was no such.
func endpointCallFails(t *testing.T, memory Memory, side int, name string, failAt int) []string {
	p := newFakePeers(t)
	l := p.ledgers[side]
	l.fail, l.failAt = name, failAt
	var open []*Endpoint
	err := func() error {
		for i := range 2 {
			e, err := openEndpoint(t.Context(), p.spec(i, twoWay[i], memory), p.nics[i].load)
			if err != nil {
				return err
			}
			open = append(open, e)
		}
		if err := errors.Join(open[1].Connect(t.Context(), open[0].Address()), open[0].Connect(t.Context(), open[1].Address())); err != nil {
			return err
		}
		_, _, err := moveBoth(t.Context(), open[0], open[1], 64<<10)
		return err
	}()
	for _, e := range open {
		err = errors.Join(err, e.Close())
		var methods error
		for _, registration := range e.Facts().Registrations {
			methods = errors.Join(methods, registration.Err)
		}
		err = errors.Join(err, methods)
	}
	for _, l := range p.ledgers {
		l.wantEmpty()
	}
	if l.failed == "" && failAt >= 0 {
		return nil
	}
	ignored := l.failed == "wait" || l.failed == "unmake mark" // of a teardown, and see TestStageNamed
	if l.failed != "" && !errors.Is(err, errTest) && !ignored {
		t.Errorf("call %d, %s: %v", failAt, l.failed, err)
	}
	if l.failed == "" && err != nil {
		t.Error(err)
	}
	return l.calls
}

// The end of a context ends a call, and no later one; the endpoint's deadline ends it.
func TestEndpointEnds(t *testing.T) {
	p := newFakePeers(t)
	spec := p.spec(0, RoleInitiator, MemoryHost)
	a, b := p.open(0, spec), p.open(1, p.spec(1, RoleResponder, MemoryHost))
	connectBoth(t, a, b)
	if err := a.Fill(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := a.Write(ctx, WriteSpec{Bytes: 1 << 50})
	if wantErr := errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.ECANCELED); !wantErr || time.Since(began) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	// Which of the two is found first is chance.
	if err := a.Fill(ctx, 1); !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, syscall.ECANCELED) {
		t.Errorf("after the end of its context: %v", err)
	}
	if err := a.Fill(t.Context(), 1); err != nil {
		t.Error(err)
	}
	p.wantEmpty(a, b)
	wantErrno(t, a.Fill(t.Context(), 1), StageFill, syscall.ECANCELED)

	spec.Deadline = time.Second
	c, err := openEndpoint(t.Context(), spec, p.nics[0].load)
	for again := 0; again < 5 && errors.Is(err, syscall.ETIMEDOUT); again++ { // a machine may stall for so long
		c, err = openEndpoint(t.Context(), spec, p.nics[0].load)
	}
	if err != nil {
		t.Fatal(err)
	}
	<-c.ended
	wantErrno(t, c.Fill(t.Context(), 1), StageFill, syscall.ETIMEDOUT)
	p.wantEmpty(c)
}

// Close ends what is under way, from any goroutine, any number of times.
func TestEndpointCloseWhileBusy(t *testing.T) {
	p := newFakePeers(t)
	a, b := p.pair(oneWay, [2]Memory{MemoryStaged, MemoryStaged})
	done := make(chan error, 1)
	b.stop.Store(nil)
	go func() { _, err := b.Serve(t.Context()); done <- err }()
	for b.stop.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	var closing sync.WaitGroup
	for range 3 {
		closing.Go(func() { _ = b.Close() })
	}
	closing.Wait()
	if err := <-done; !errors.Is(err, syscall.ECANCELED) && !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("serve: %v", err)
	}
	p.wantEmpty(a, b)
}

// A peer that breaks the rules of staged memory ends the session, and no more.
func TestRingHostile(t *testing.T) {
	for name, imm := range map[string]uint32{
		"credit of nothing":    creditBit,
		"credit of the future": creditBit | 5,
		"a chunk too late":     7 + mostSlots,
		"a wild chunk":         mostChunks,
	} {
		t.Run(name, func(t *testing.T) {
			p := newFakePeers(t)
			a, b := p.pair(twoWay, [2]Memory{MemoryStaged, MemoryStaged})
			err := b.do(t.Context(), StageWrite, func(limits) error {
				b.half.base.qps = b.half.base.qps[:1]
				return b.half.verbs.post(b.half.ring.announcement(0, 0, imm), 0, 0, creditBit)
			})
			if err != nil {
				t.Fatal(err)
			}
			_, err = a.Serve(t.Context())
			wantErrno(t, err, StageServe, syscall.EPROTO)
			p.wantEmpty(a, b)
		})
	}
}

// Two sides with rings of different sizes agree on the smaller.
func TestRingSizes(t *testing.T) {
	p := newFakePeers(t)
	small, large := p.spec(0, RoleBoth, MemoryStaged), p.spec(1, RoleBoth, MemoryStaged)
	small.ChunkSize, small.BufferSize = 8<<10, 2<<20
	large.ChunkSize, large.BufferSize = 64<<10, 4<<20
	p.nics[0].port.mtu = 3
	a, b := p.open(0, small), p.open(1, large)
	connectBoth(t, a, b)
	there, back := duplex(t, a, b, 5<<20)
	if there.Bytes != 5<<20 || back.Bytes != 5<<20 || size(back.Extents) != 2<<20 {
		t.Errorf("%+v, %+v", there, back)
	}
	p.wantEmpty(a, b)
}

func validAddress() Address {
	return Address{
		Ethernet: true, GID: netip.MustParseAddr("::ffff:192.0.2.7"), GIDType: typeRoCEv2, PKey: 0xffff, MTU: 4096,
		QueuePairs: []QueuePairAddress{{17, 0}, {18, 0xffffff}}, RKey: 1 << 31, VirtualAddress: 1 << 63, Length: 64 << 20,
		Staged: &StagedAddress{8, 2 << 20, 64 << 20},
	}
}

func TestAddress(t *testing.T) {
	text, err := json.Marshal(validAddress())
	if err != nil {
		t.Fatal(err)
	}
	if back, err := ParseAddress(text); err != nil || !reflect.DeepEqual(back, validAddress()) {
		t.Errorf("%+v, %v", back, err)
	}
	for name, change := range map[string]func(*Address){
		"MTU":                 func(a *Address) { a.MTU = 9000 },
		"no GID":              func(a *Address) { a.GID = netip.Addr{} },
		"GID type":            func(a *Address) { a.GIDType = "RoCE v3" },
		"unspecified":         func(a *Address) { a.GID = netip.MustParseAddr("::") },
		"multicast":           func(a *Address) { a.GID = netip.MustParseAddr("ff02::1") },
		"IPv4 multicast":      func(a *Address) { a.GID = netip.MustParseAddr("::ffff:224.0.0.1") },
		"broadcast":           func(a *Address) { a.GID = netip.MustParseAddr("::ffff:255.255.255.255") },
		"this host":           func(a *Address) { a.GID = netip.MustParseAddr("::ffff:127.0.0.1") },
		"zone":                func(a *Address) { a.GID = netip.MustParseAddr("fe80::1%eth0") },
		"P_Key":               func(a *Address) { a.PKey = 0x8000 },
		"no queue pair":       func(a *Address) { a.QueuePairs = nil },
		"many queue pairs":    func(a *Address) { a.QueuePairs = make([]QueuePairAddress, 65) },
		"management":          func(a *Address) { a.QueuePairs[0].Number = 1 },
		"number":              func(a *Address) { a.QueuePairs[0].Number = 1 << 24 },
		"PSN":                 func(a *Address) { a.QueuePairs[0].PSN = 1 << 24 },
		"twice":               func(a *Address) { a.QueuePairs[0].Number = a.QueuePairs[1].Number },
		"key of nothing":      func(a *Address) { a.Length = 0 },
		"length":              func(a *Address) { a.Length = 1 << 41 },
		"end of all":          func(a *Address) { a.VirtualAddress = math.MaxUint64 - 8 },
		"slots":               func(a *Address) { a.Staged.Slots = 9 },
		"no slots":            func(a *Address) { a.Staged.Slots = 0 },
		"chunk":               func(a *Address) { a.Staged.Chunk = 12 },
		"chunks":              func(a *Address) { a.Staged.Chunk = 1 << 30; a.Staged.Memory = 1 << 40 },
		"GPU memory":          func(a *Address) { a.Staged.Memory = 4096 },
		"LID 0":               func(a *Address) { a.Ethernet, a.GID = false, netip.Addr{} },
		"multicast LID":       func(a *Address) { a.Ethernet, a.LID = false, 0xc000 },
		"LID below 0":         func(a *Address) { a.Ethernet, a.LID = false, -1 },
		"one byte of memory ": func(a *Address) { a.Staged.Chunk = 0 },
	} {
		a := validAddress()
		change(&a)
		if err := a.Validate(); !errors.Is(err, errAddress) || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"", "null", "[]", "{}", `{"gid":"x"}`, `{"qps":[{"number":-1}]}`, strings.Repeat(" ", mostAddressText) + string(text)} {
		if _, err := ParseAddress([]byte(text)); err == nil {
			t.Errorf("%.20q passes", text)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	text, _ := json.Marshal(validAddress())
	f.Add(text)
	f.Add([]byte(`{"lid":7,"pkey":32767,"mtu":2048,"qps":[{"number":2,"psn":1}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := ParseAddress(text)
		if err != nil {
			return
		}
		_ = validAddress().canReach(a)
		again, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseAddress(again); err != nil || !reflect.DeepEqual(back, a) {
			t.Errorf("%s becomes %+v, %v", again, back, err)
		}
	})
}

func TestCanReach(t *testing.T) {
	own := validAddress()
	own.GID = netip.MustParseAddr("::ffff:192.0.2.8")
	if err := own.canReach(validAddress()); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*Address)
		want   syscall.Errno
	}{
		"own address":  {func(a *Address) { a.GID = own.GID }, syscall.EADDRINUSE},
		"InfiniBand":   {func(a *Address) { a.Ethernet, a.LID = false, 1 }, syscall.EPROTONOSUPPORT},
		"RoCE v1":      {func(a *Address) { a.GIDType = typeRoCEv1 }, syscall.EPROTONOSUPPORT},
		"IPv6":         {func(a *Address) { a.GID = netip.MustParseAddr("2001:db8::1") }, syscall.EPROTONOSUPPORT},
		"partition":    {func(a *Address) { a.PKey = 0x8001 }, syscall.EPROTONOSUPPORT},
		"queue pairs":  {func(a *Address) { a.QueuePairs = a.QueuePairs[:1] }, syscall.EPROTONOSUPPORT},
		"staged":       {func(a *Address) { a.Staged = nil }, syscall.EPROTONOSUPPORT},
		"half members": {func(a *Address) { own.PKey, a.PKey = 0x7fff, 0x7fff }, syscall.EPROTONOSUPPORT},
	} {
		own.PKey = 0xffff
		peer := validAddress()
		test.change(&peer)
		if err := own.canReach(peer); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ib := Address{LID: 5, PKey: 0xffff, QueuePairs: make([]QueuePairAddress, 2)}
	near, itself, routed := ib, ib, ib
	near.LID, routed.LID, routed.GID = 6, 0, netip.MustParseAddr("fec0::1")
	if err := ib.canReach(near); err != nil {
		t.Error(err)
	}
	if err := ib.canReach(itself); !errors.Is(err, syscall.EADDRINUSE) {
		t.Error(err)
	}
	if err := ib.canReach(routed); !errors.Is(err, syscall.EPROTONOSUPPORT) {
		t.Error(err)
	}
}

func TestChooseGIDFor(t *testing.T) {
	gid := func(index int, address, kind string) GID { return GID{index, netip.MustParseAddr(address), kind} }
	table := []GID{
		gid(0, "fe80::1", typeRoCEv1), gid(1, "fe80::1", typeRoCEv2), gid(2, "::ffff:169.254.1.1", typeRoCEv2),
		gid(3, "2001:db8::1", typeRoCEv1), gid(4, "2001:db8::1", typeRoCEv2), gid(5, "::ffff:192.0.2.1", typeRoCEv2),
	}
	peer := func(address, kind string) *Address { return &Address{GID: netip.MustParseAddr(address), GIDType: kind} }
	for name, test := range map[string]struct {
		gids []GID
		peer *Address
		want int
	}{
		"IPv4":                      {table, nil, 5},
		"routed before link-local":  {table[:5], nil, 4},
		"link-local if need be":     {table[:3], nil, 2},
		"an IPv6 peer":              {table, peer("2001:db8::2", typeRoCEv2), 4},
		"a link-local peer":         {table[:2], peer("fe80::2", typeRoCEv2), 1},
		"a peer with v1":            {table, peer("2001:db8::2", typeRoCEv1), 3},
		"InfiniBand does not count": {table, &Address{LID: 3}, 5},
	} {
		if got, err := chooseGIDFor(test.gids, test.peer); err != nil || got.Index != test.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := chooseGIDFor(table[:1], peer("::ffff:192.0.2.2", typeRoCEv2)); !errors.Is(err, errNoGID) {
		t.Error(err)
	}
}

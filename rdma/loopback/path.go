package loopback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"gdr_exporter/collector/sysread"
)

// mover moves data along a path.
type mover interface {
	// move moves bytes, or what it can until enough time has passed. With sleep it
	// waits for events instead of polling.
	move(bytes uint64, l limits, sleep bool) (moved, error)
	// latency fills samples with how long 8 bytes take, and returns how many it took.
	latency(l limits, samples []time.Duration) (int, error)
}

// moved is what a mover has moved. On an error only bytes counts.
type moved struct {
	bytes   uint64
	elapsed time.Duration
	written []Extent // of the destination
}

// rate is in bytes per second. It is not known of what took no time.
func (m moved) rate() sysread.Maybe[float64] {
	if m.elapsed <= 0 || m.bytes == 0 {
		return sysread.Maybe[float64]{}
	}
	return sysread.Some(float64(m.bytes) / m.elapsed.Seconds())
}

// Extent is a part of a buffer, in bytes.
type Extent struct {
	Offset int `json:"offset"`
	Length int `json:"length"`
}

// latencySize is the size of the messages that latency is measured with.
const latencySize = 8

// pathRun is the measurement of one path. Each has queue pairs of its own, so
// that one that breaks them spoils no other.
type pathRun struct {
	*run
	undo    undo
	result  PathResult
	begun   bool     // some stage of it
	base    transfer // queue pairs, keys and addresses
	channel handle
	mover   mover
	written []Extent
}

// path measures a path; how it went is in the result.
func (r *run) path(path Path) {
	p := r.newPath(path)
	p.step(StageConnect, p.connect)
	p.step(StageWarmUp, p.warmUp)
	p.step(StageMeasure, p.measure)
	p.step(StageVerify, p.verify)
	p.end()
	r.result.Paths = append(r.result.Paths, p.result)
}

// newPath is a path of which nothing has been done. One that cannot be measured
// has failed already.
func (r *run) newPath(path Path) *pathRun {
	p := &pathRun{run: r, result: PathResult{Path: path}}
	switch {
	case !path.direct():
	case r.result.DataDirect.Value:
		p.result.Stage, p.result.Err = StageGate, ErrDataDirect
	case !r.registered:
		p.result.Stage, p.result.Err = StageRegister, p.notRegistered()
	}
	return p
}

// step does a stage of the path, unless one before it failed.
func (p *pathRun) step(stage Stage, do func() error) {
	if p.result.Err != nil {
		return
	}
	p.begun = true
	if err := p.stage(stage, p.result.Path, do); err != nil {
		p.result.Stage, p.result.Err = stage, err
	}
}

// end gives everything of the path back.
func (p *pathRun) end() {
	if !p.begun {
		return
	}
	if err := p.timed(StageTeardown, p.result.Path, p.undo.unwind); err != nil {
		// The run's memory must outlive whatever is left here.
		p.run.undo.add("path "+string(p.result.Path), func() error { return err })
	}
}

// notRegistered says why no method works.
func (r *run) notRegistered() error {
	failures := []error{ErrNotRegistered}
	for _, registration := range r.result.Registrations {
		if registration.Err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", registration.Method, registration.Err))
		}
	}
	return errors.Join(failures...)
}

// connect makes the queue pairs, each with a peer on the same port.
func (p *pathRun) connect() error {
	if err := p.setMover(); err != nil {
		return err
	}
	var err error
	if p.channel, err = p.verbs.createChannel(p.context); err != nil {
		return err
	}
	p.undo.add("completion channel", func() error { return p.verbs.destroyChannel(p.channel) })
	p.base.depth = p.depth()
	if p.base.cq, err = p.verbs.createCQ(p.context, p.channel, p.base.depth*p.spec.QueuePairs); err != nil {
		return err
	}
	p.undo.add("completion queue", func() error { return p.verbs.destroyCQ(p.base.cq) })
	for range p.spec.QueuePairs {
		sender, err := p.connectPair()
		if err != nil {
			return err
		}
		p.base.qps = append(p.base.qps, sender)
	}
	return nil
}

// depth is how many writes can be outstanding on each queue pair: all of them
// may complete at once, with an error, though only some are to say so.
func (r *run) depth() int {
	depth := r.spec.Depth
	if r.device.depth > 0 {
		depth = min(depth, r.device.depth)
	}
	if r.device.completions > 0 {
		depth = min(depth, r.device.completions/r.spec.QueuePairs)
	}
	return max(depth, 1)
}

// connectPair makes two queue pairs that are each other's peer, and returns the
// one to send on.
func (p *pathRun) connectPair() (handle, error) {
	var pair [2]queuePair
	for i := range pair {
		var err error
		if pair[i], err = p.verbs.createQP(p.pd, p.base.cq, p.base.depth, 1); err != nil {
			return 0, err
		}
		p.undo.add("queue pair", func() error { return p.verbs.destroyQP(pair[i].qp) })
	}
	psn := rand.Uint32() & 0xffffff
	for i := range pair {
		if err := p.verbs.connectQP(pair[i].qp, p.connection(pair[1-i].number, psn)); err != nil {
			return 0, err
		}
	}
	return pair[0].qp, nil
}

func (p *pathRun) connection(peer, psn uint32) connection {
	const mostReads = 16
	gid := p.run.result.GID
	return connection{
		port: p.spec.Port, pkeyIndex: p.run.result.PKey.Index, mtu: p.port.mtu,
		lid: p.port.lid, global: gid.Known, gidIndex: gid.Value.Index, gid: gid.Value.Address.As16(),
		peer: peer, psn: psn, peerPSN: psn, rdAtomic: min(max(p.device.rdAtomic, 1), mostReads), allow: accessFull,
	}
}

// setMover decides what moves the data, and from where to where.
func (p *pathRun) setMover() error {
	path := p.result.Path
	p.base.local, p.base.lkey = p.source.host.address(), p.source.hostRegion.lkey
	p.base.remote, p.base.rkey = p.destination.host.address(), p.destination.hostRegion.rkey
	if path == PathStaged {
		staging, err := p.newStaging()
		p.mover = staging
		return err
	}
	if path.fromGPU() {
		p.base.local, p.base.lkey = p.source.gpu.Pointer(), p.source.gpuRegion.lkey
	}
	if path.toGPU() {
		p.base.remote, p.base.rkey = p.destination.gpu.Pointer(), p.destination.gpuRegion.rkey
	}
	p.mover = writer{p}
	return nil
}

// warmUp clears the destination and moves data that does not count: links that
// idle at a low speed and cold translation caches are not what is measured.
func (p *pathRun) warmUp() error {
	clear(p.destination.host.bytes)
	if p.result.Path.toGPU() {
		if err := p.destination.gpu.Write(0, p.destination.host.bytes); err != nil {
			return fmt.Errorf("GPU: %w", err)
		}
	}
	if p.result.Path == PathStaged { // from here on only copies of the GPU's data
		clear(p.source.host.bytes)
	}
	_, err := p.move(p.spec.WarmUp, p.phase(), false)
	return err
}

// move moves bytes and accounts for them.
func (p *pathRun) move(bytes uint64, l limits, sleep bool) (moved, error) {
	m, err := p.mover.move(bytes, l, sleep)
	p.run.result.TransferredBytes += m.bytes
	if err == nil && size(m.written) > size(p.written) {
		p.written = m.written
	}
	return m, err
}

func size(extents []Extent) int {
	n := 0
	for _, e := range extents {
		n += e.Length
	}
	return n
}

// measure measures rate, latency and CPU time.
func (p *pathRun) measure() error {
	m, err := p.move(p.spec.Bytes, p.phase(), false)
	if err != nil {
		return err
	}
	p.result.Bytes, p.result.BytesPerSecond = m.bytes, m.rate()
	return p.measureOthers()
}

// measureOthers measures latency and CPU time.
func (p *pathRun) measureOthers() error {
	if err := p.measureLatency(); err != nil {
		return err
	}
	began := cpuTime()
	m, err := p.move(p.spec.EventBytes, p.phase(), true)
	if err != nil {
		return err
	}
	p.result.CPUSecondsPerGB = cpuSecondsPerGB(cpuTime()-began, m.bytes)
	return nil
}

func (p *pathRun) measureLatency() error {
	samples := make([]time.Duration, p.spec.Latencies)
	n, err := p.mover.latency(p.phase(), samples)
	p.run.result.TransferredBytes += uint64(n) * latencySize
	if err != nil || n == 0 {
		return err
	}
	samples = samples[:n]
	slices.Sort(samples)
	p.result.LatencyMedian = sysread.Some(samples[n/2])
	p.result.LatencyP99 = sysread.Some(samples[min(n*99/100, n-1)])
	return nil
}

// writer lets the NIC do everything.
type writer struct{ p *pathRun }

// mostUnsignalled is how many writes have one completion, if they are small:
// as perftest does it.
const (
	mostUnsignalled = 100
	smallMessage    = 8192
)

// signalEvery is how many writes of a size have one completion.
func signalEvery(size, depth int) int {
	if size > smallMessage {
		return 1
	}
	return min(mostUnsignalled, max(depth/2, 1))
}

func (w writer) transfer(size int, bytes uint64, sleep bool) transfer {
	t := w.p.base
	t.size, t.slice, t.bytes = size, w.p.spec.slice(), bytes
	t.signalEvery = signalEvery(size, t.depth)
	if sleep {
		t.channel = w.p.channel
	}
	return t
}

func (w writer) move(bytes uint64, l limits, sleep bool) (moved, error) {
	t := w.transfer(w.p.spec.MessageSize, bytes, sleep)
	progress, err := w.p.verbs.transfer(t, l)
	return t.moved(progress), err
}

// moved is what a transfer that got so far has moved.
func (t transfer) moved(progress progress) moved {
	m := moved{bytes: progress.completed * uint64(t.size), elapsed: progress.elapsed}
	if least := int(min(progress.least*uint64(t.size), uint64(t.slice))); least > 0 {
		for i := range t.qps {
			m.written = append(m.written, Extent{i * t.slice, least})
		}
	}
	return m
}

func (w writer) latency(l limits, samples []time.Duration) (int, error) {
	return w.p.verbs.latency(w.transfer(latencySize, 0, false), l, samples)
}

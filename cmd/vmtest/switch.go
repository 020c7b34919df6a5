package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// frameHeader is the length that QEMU puts before each frame of a stream, big endian.
	frameHeader = 4
	// leastFrame is an Ethernet header: two addresses and a type.
	leastFrame = 14
	// mostFrame is more than any frame of the largest MTU. A stream that announces
	// more cannot be followed any further.
	mostFrame = 64 << 10
	// queueLength is how many frames wait for a VM that does not read. What comes then
	// is lost, as in a real switch: one VM must not hold up another.
	queueLength = 1024
	// mostAddresses bounds what is learned.
	mostAddresses = 4096
	// writeBatch is how many frames are passed on with one system call.
	writeBatch = 64
)

// hardwareAddress is an Ethernet address.
type hardwareAddress [6]byte

// group reports whether it is one of several stations: multicast or broadcast.
func (a hardwareAddress) group() bool { return a[0]&1 != 0 }

// lan is a learning Ethernet switch between VMs, in this process: QEMU's own socket
// networks join only two.
type lan struct {
	mu     sync.Mutex
	ports  []*lanPort // that are plugged in
	every  []*lanPort // and those that were
	table  map[hardwareAddress]*lanPort
	closed bool
	work   sync.WaitGroup
}

// lanPort is where one VM is plugged in.
type lanPort struct {
	lan   *lan
	name  string
	conn  net.Conn
	queue chan []byte   // frames with their header
	gone  chan struct{} // closed when it is unplugged
	once  sync.Once
	err   error // why, valid after gone; nil: the VM has ended

	received, receivedBytes, sent, sentBytes atomic.Uint64
	flooded, dropped, runts                  atomic.Uint64
}

// lanCounters are of one port. Received came from the VM, sent went to it.
type lanCounters struct {
	received, receivedBytes, sent, sentBytes uint64
	flooded                                  uint64 // received, and sent to all others
	dropped                                  uint64 // for the VM, which did not read fast enough
	runts                                    uint64 // received, and too short to be Ethernet
}

func newLAN() *lan { return &lan{table: map[hardwareAddress]*lanPort{}} }

// plug connects a VM by QEMU's end of a stream of frames. The port is unplugged when
// the stream ends.
func (l *lan) plug(name string, conn net.Conn) *lanPort {
	p := &lanPort{lan: l, name: name, conn: conn, queue: make(chan []byte, queueLength), gone: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		p.unplugged(nil)
		return p
	}
	l.ports, l.every = append(l.ports, p), append(l.every, p)
	l.work.Go(p.read)
	l.work.Go(p.write)
	return p
}

// close unplugs everything and returns when nothing is under way.
func (l *lan) close() {
	l.mu.Lock()
	l.closed = true
	ports := slices.Clone(l.ports)
	l.mu.Unlock()
	for _, p := range ports {
		p.unplug(nil)
	}
	l.work.Wait()
}

// forward passes a frame on: to the port behind which its destination was seen, or to
// all others.
func (l *lan) forward(from *lanPort, frame []byte) {
	destination := hardwareAddress(frame[frameHeader:])
	source := hardwareAddress(frame[frameHeader+len(destination):])
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.table[source]; !source.group() && (known || len(l.table) < mostAddresses) {
		l.table[source] = from
	}
	if to, known := l.table[destination]; known && !destination.group() {
		if to != from {
			to.enqueue(frame)
		}
		return
	}
	from.flooded.Add(1)
	for _, to := range l.ports {
		if to != from {
			to.enqueue(frame)
		}
	}
}

// enqueue never waits. All ports share the frame, which nobody changes.
func (p *lanPort) enqueue(frame []byte) {
	select {
	case p.queue <- frame:
	default:
		p.dropped.Add(1)
	}
}

// unplug ends the port, once, for the first reason.
func (p *lanPort) unplug(err error) {
	p.once.Do(func() {
		l := p.lan
		l.mu.Lock()
		l.ports = slices.DeleteFunc(l.ports, func(other *lanPort) bool { return other == p })
		for address, to := range l.table {
			if to == p {
				delete(l.table, address)
			}
		}
		l.mu.Unlock()
		p.unplugged(err)
	})
}

func (p *lanPort) unplugged(err error) {
	_ = p.conn.Close() // nobody is left to be told
	p.err = err
	close(p.gone)
}

// read takes frames from the VM until its stream ends.
func (p *lanPort) read() {
	reader := bufio.NewReaderSize(p.conn, 256<<10)
	for {
		frame, err := readFrame(reader)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || isReset(err) {
				err = nil
			}
			p.unplug(err)
			return
		}
		if len(frame) < frameHeader+leastFrame {
			p.runts.Add(1)
			continue
		}
		p.received.Add(1)
		p.receivedBytes.Add(uint64(len(frame) - frameHeader))
		p.lan.forward(p, frame)
	}
}

// readFrame returns a frame with its header. io.EOF is the end between two frames.
func readFrame(reader io.Reader) ([]byte, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(reader, header[:]); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(header[:])
	if length > mostFrame {
		return nil, fmt.Errorf("a frame of %d bytes: at most %d", length, mostFrame)
	}
	frame := make([]byte, frameHeader+int(length))
	copy(frame, header[:])
	if _, err := io.ReadFull(reader, frame[frameHeader:]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("in a frame of %d bytes: %w", length, err)
	}
	return frame, nil
}

// write passes frames to the VM until it is unplugged.
func (p *lanPort) write() {
	for {
		select {
		case <-p.gone:
			return
		case frame := <-p.queue:
			if err := p.pass(p.batch(frame)); err != nil {
				p.unplug(nil) // the reader, if anybody, knows why
				return
			}
		}
	}
}

// batch is a frame and those that wait behind it.
func (p *lanPort) batch(first []byte) net.Buffers {
	frames := net.Buffers{first}
	for len(frames) < writeBatch {
		select {
		case frame := <-p.queue:
			frames = append(frames, frame)
		default:
			return frames
		}
	}
	return frames
}

func (p *lanPort) pass(frames net.Buffers) error {
	count := uint64(len(frames))
	written, err := frames.WriteTo(p.conn)
	if err != nil {
		return err
	}
	p.sent.Add(count)
	p.sentBytes.Add(uint64(written) - count*frameHeader)
	return nil
}

func (p *lanPort) counters() lanCounters {
	return lanCounters{
		received: p.received.Load(), receivedBytes: p.receivedBytes.Load(), sent: p.sent.Load(), sentBytes: p.sentBytes.Load(),
		flooded: p.flooded.Load(), dropped: p.dropped.Load(), runts: p.runts.Load(),
	}
}

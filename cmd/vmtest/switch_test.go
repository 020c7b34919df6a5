package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var broadcast = hardwareAddress{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// station is a VM's end of a stream of frames.
type station struct {
	t       *testing.T
	conn    net.Conn
	port    *lanPort
	address hardwareAddress
}

// plugIn plugs stations into a LAN, with the kind of socket that QEMU has.
func plugIn(t *testing.T, l *lan, number int) *station {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range pair {
		file := os.NewFile(uintptr(fd), "pair")
		if conns[i], err = net.FileConn(file); err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
	}
	t.Cleanup(func() { _ = conns[0].Close() })
	return &station{t: t, conn: conns[0], port: l.plug(fmt.Sprintf("node%d", number), conns[1]), address: hardwareAddress{0x52, 0x54, 0, 0, 0, byte(number)}}
}

func newTestLAN(t *testing.T, stations int) (*lan, []*station) {
	t.Helper()
	l := newLAN()
	t.Cleanup(l.close)
	var all []*station
	for i := range stations {
		all = append(all, plugIn(t, l, i+1))
	}
	return l, all
}

func ethernet(from, to hardwareAddress, text string) []byte {
	frame := slices.Concat(to[:], from[:], []byte{0x88, 0xb5}, []byte(text))
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)
}

func (s *station) write(data []byte) {
	s.t.Helper()
	if err := s.conn.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.conn.Write(data); err != nil {
		s.t.Fatal(err)
	}
}

func (s *station) send(to hardwareAddress, text string) {
	s.t.Helper()
	s.write(ethernet(s.address, to, text))
}

// receive returns what the next frame says.
func (s *station) receive() string {
	s.t.Helper()
	if err := s.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		s.t.Fatal(err)
	}
	frame, err := readFrame(s.conn)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(frame[frameHeader+leastFrame:])
}

// want expects the next frame to say something: what was not meant for the station
// would come first.
func (s *station) want(text string) {
	s.t.Helper()
	if got := s.receive(); got != text {
		s.t.Errorf("%s got %q, want %q", s.port.name, got, text)
	}
}

// hasGot waits until the port has counted what the station has read.
func (s *station) hasGot(frames uint64) {
	s.t.Helper()
	eventually(s.t, time.Minute, fmt.Sprintf("count of %d frames", frames), func() bool { return s.port.counters().sent == frames })
}

func TestLAN(t *testing.T) {
	_, all := newTestLAN(t, 3)
	a, b, c := all[0], all[1], all[2]
	a.send(broadcast, "who is there")
	b.want("who is there")
	c.want("who is there")
	b.send(a.address, "me") // a is known: c gets nothing of it
	a.want("me")
	a.send(b.address, "hello") // and b by now
	b.want("hello")
	a.send(c.address, "anybody") // c has said nothing: all others get it
	b.want("anybody")
	c.want("anybody")
	b.send(b.address, "myself") // nobody's business
	b.send(hardwareAddress{1, 0, 0x5e, 0, 0, 1}, "group")
	a.want("group")
	c.want("group")
	a.hasGot(2)
	if got := a.port.counters(); got.received != 3 || got.flooded != 2 || got.sent != 2 || got.dropped != 0 || got.runts != 0 {
		t.Errorf("counters %+v", got)
	}
	if got, want := a.port.counters().receivedBytes, uint64(3*leastFrame+len("who is there")+len("hello")+len("anybody")); got != want {
		t.Errorf("%d bytes received, want %d", got, want)
	}
	if got, want := a.port.counters().sentBytes, uint64(2*leastFrame+len("me")+len("group")); got != want {
		t.Errorf("%d bytes sent, want %d", got, want)
	}
}

// An address is where it was seen last.
func TestLANAddressMoves(t *testing.T) {
	_, all := newTestLAN(t, 3)
	a, b, c := all[0], all[1], all[2]
	b.send(broadcast, "here")
	a.want("here")
	c.want("here")
	c.write(ethernet(b.address, broadcast, "moved"))
	a.want("moved")
	b.want("moved")
	a.send(b.address, "for the new place")
	c.want("for the new place")
	a.send(broadcast, "for all")
	b.want("for all")
}

// A group's address as a sender's would draw all of the group's frames.
func TestLANLearnsNoGroups(t *testing.T) {
	l, all := newTestLAN(t, 3)
	all[0].write(ethernet(broadcast, all[1].address, "forged"))
	all[1].want("forged")
	all[2].want("forged")
	all[1].send(broadcast, "for all")
	all[0].want("for all")
	all[2].want("for all")
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.table) != 1 || l.table[all[1].address] == nil {
		t.Errorf("learned %v", l.table)
	}
}

func TestLANPieces(t *testing.T) {
	_, all := newTestLAN(t, 2)
	a, b := all[0], all[1]
	for _, one := range ethernet(a.address, broadcast, "in pieces") { // byte by byte
		a.write([]byte{one})
	}
	b.want("in pieces")
	a.write(slices.Concat(ethernet(a.address, broadcast, "two"), ethernet(a.address, broadcast, "at once"), []byte{0, 0}))
	b.want("two")
	b.want("at once")
	rest := ethernet(a.address, broadcast, "and more")
	a.write(rest[2:])
	b.want("and more")
	large := strings.Repeat("x", mostFrame-leastFrame)
	a.send(broadcast, large)
	b.want(large)
}

func TestLANRunts(t *testing.T) {
	_, all := newTestLAN(t, 2)
	a, b := all[0], all[1]
	a.write([]byte{0, 0, 0, 0})
	a.write(append([]byte{0, 0, 0, leastFrame - 1}, make([]byte, leastFrame-1)...))
	a.send(broadcast, "")
	b.want("")
	if got := a.port.counters(); got.runts != 2 || got.received != 1 {
		t.Errorf("counters %+v", got)
	}
}

func TestLANOversize(t *testing.T) {
	l, all := newTestLAN(t, 3)
	a, b, c := all[0], all[1], all[2]
	a.send(broadcast, "before")
	b.want("before")
	c.want("before")
	a.write(binary.BigEndian.AppendUint32(nil, mostFrame+1))
	<-a.port.gone
	if err := a.port.err; err == nil || !strings.Contains(err.Error(), "a frame of 65537 bytes") {
		t.Errorf("unplugged for %v", err)
	}
	b.send(a.address, "gone") // nobody knows where that is
	c.want("gone")
	again := plugIn(t, l, 1)
	again.send(b.address, "back")
	b.want("back")
	b.send(a.address, "welcome")
	again.want("welcome")
}

func TestLANDisconnects(t *testing.T) {
	_, all := newTestLAN(t, 3)
	a, b, c := all[0], all[1], all[2]
	half := ethernet(a.address, broadcast, "half")
	a.write(half[:9])
	_ = a.conn.Close()
	<-a.port.gone
	if !errors.Is(a.port.err, io.ErrUnexpectedEOF) {
		t.Errorf("unplugged for %v", a.port.err)
	}
	b.send(broadcast, "whole")
	c.want("whole")
	_ = b.conn.Close()
	<-b.port.gone
	if b.port.err != nil {
		t.Errorf("a VM that ends is no failure: %v", b.port.err)
	}
	c.send(b.address, "nobody") // and nothing happens
	eventually(t, time.Minute, "end of a frame for nobody", func() bool { return c.port.counters().flooded == 1 })
	d := plugIn(t, c.port.lan, 4)
	c.send(broadcast, "you")
	d.want("you")
}

// TestLANSlowReader: a VM that does not read loses frames, and nobody else does.
func TestLANSlowReader(t *testing.T) {
	_, all := newTestLAN(t, 3)
	a, b, slow := all[0], all[1], all[2]
	const frames = 3 * queueLength
	filler := strings.Repeat(".", 1000)
	for i := range frames {
		text := fmt.Sprintf("%05d%s", i, filler)
		a.send(broadcast, text)
		b.want(text)
	}
	lost := slow.port.counters().dropped
	if lost == 0 || lost > frames-queueLength {
		t.Errorf("lost %d of %d frames with a queue of %d", lost, frames, queueLength)
	}
	if got := b.port.counters(); got.dropped != 0 {
		t.Errorf("the other VM: %+v", got)
	}
	for i := range frames - int(lost) { // what was kept came first, in order
		if got, want := slow.receive()[:5], fmt.Sprintf("%05d", i); got != want {
			t.Fatalf("frame %s, want %s", got, want)
		}
	}
	a.send(broadcast, "fast again")
	slow.want("fast again")
	slow.hasGot(frames + 1 - lost)
	var said bytes.Buffer
	a.port.lan.close()
	tellLosses(&said, 1, a.port.lan)
	if want := fmt.Sprintf("vmtest: rail 1: %d of %d frames for node3 were lost, as it did not read\n", lost, frames+1); said.String() != want {
		t.Errorf("said %q, want %q", said.String(), want)
	}
}

// TestLANCloses: with frames under way in all directions nothing is left behind.
func TestLANCloses(t *testing.T) {
	before := runtime.NumGoroutine()
	l := newLAN()
	a, slow := plugIn(t, l, 1), plugIn(t, l, 2)
	for range 2 * queueLength {
		a.send(broadcast, strings.Repeat("x", 1000))
	}
	l.close()
	for _, s := range []*station{a, slow} {
		<-s.port.gone
		if s.port.err != nil {
			t.Errorf("%s: %v", s.port.name, s.port.err)
		}
	}
	late := plugIn(t, l, 3)
	<-late.port.gone
	eventually(t, time.Minute, "end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

func TestLANTableIsBounded(t *testing.T) {
	l, all := newTestLAN(t, 2)
	for i := range mostAddresses + 100 {
		from := hardwareAddress{2, 0, 0, 0, byte(i >> 8), byte(i)}
		all[0].write(ethernet(from, all[0].address, ""))
		if all[1].receive() != "" { // flooded, as nobody has that address yet
			t.Fatal("not what was sent")
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.table) != mostAddresses {
		t.Errorf("%d addresses, want %d", len(l.table), mostAddresses)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(ethernet(hardwareAddress{2}, broadcast, "text"))
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{0, 0, 0, 20, 1, 2})
	f.Fuzz(func(t *testing.T, data []byte) {
		for reader := bytes.NewReader(data); ; {
			left := reader.Len()
			frame, err := readFrame(reader)
			if err != nil {
				if errors.Is(err, io.EOF) && left != 0 && left >= frameHeader {
					t.Errorf("the end, with %d bytes left", left)
				}
				return
			}
			if len(frame) != left-reader.Len() || !bytes.Equal(frame, data[len(data)-left:][:len(frame)]) {
				t.Errorf("a frame that is not what was sent")
			}
		}
	})
}

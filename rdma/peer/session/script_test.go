package session

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// raw is a peer that follows a script, and departs from it.
type raw struct {
	net.Conn
	endpoint Endpoint
	opener   *node
	heard    []string
	last     message
}

func (r *raw) say(m message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return writeFrame(r, text)
}

// hear reads one message.
func (r *raw) hear() error {
	_ = r.SetReadDeadline(time.Now().Add(20 * time.Second))
	text, err := readFrame(r)
	if err != nil {
		return err
	}
	r.last, err = decode(text)
	r.heard = append(r.heard, r.last.name())
	return err
}

// rest reads until the other side has ended the connection.
func (r *raw) rest() error {
	for {
		if err := r.hear(); err == io.EOF || err != nil && strings.Contains(err.Error(), "reset") {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (r *raw) open(port Port, sends, receives bool) (Address, error) {
	e, err := r.opener.Open(context.Background(), Spec{Port: port, Memory: Host, Sends: sends, Receives: receives})
	if err != nil {
		return Address{}, err
	}
	r.endpoint = e
	return e.Address(), nil
}

func (r *raw) close() {
	if r.endpoint != nil {
		_ = r.endpoint.Close()
		r.endpoint = nil
	}
	_ = r.Close()
}

// step is something that a script says (nil: nothing), after it has heard so many
// messages.
type step struct {
	hears int
	say   func(r *raw) (message, error)
}

const seedOut, seedBack = 11, 22

func connect(r *raw, text json.RawMessage) error {
	a, err := r.opener.Parse(text)
	if err != nil {
		return err
	}
	return r.endpoint.Connect(context.Background(), a)
}

func written(r *raw, seed uint64) (message, error) {
	ctx := context.Background()
	if err := r.endpoint.Fill(ctx, seed); err != nil {
		return message{}, err
	}
	w, err := r.endpoint.Write(ctx, 1<<20, 0)
	return message{Done: &done{Written: w}}, err
}

func verified(r *raw, seed uint64) (message, error) {
	v, err := r.endpoint.Verify(context.Background(), seed, []Extent{{0, fakeBuffer}})
	return message{Verified: &v}, err
}

// initiatorScript is a session of one round, both ways. The steps are named by what
// they say.
func initiatorScript() ([]string, []step) {
	return []string{"hello", "open", "go", "done", "verified", "close"}, []step{
		{0, func(*raw) (message, error) { return message{Hello: ofNow(helloA(), time.Time{})}, nil }},
		{1, func(r *raw) (message, error) {
			a, err := r.open(portA, true, true)
			return message{Open: askFor(a)}, err
		}},
		{1, func(r *raw) (message, error) {
			if r.last.Opened == nil {
				return message{}, fmt.Errorf("no opened: %v", r.heard)
			}
			return message{Go: &begin{Direction: Both, Seed: seedOut, Back: seedBack, Bytes: 1 << 20, Within: 100}}, connect(r, r.last.Opened.Address)
		}},
		{1, func(r *raw) (message, error) { return written(r, seedOut) }},
		{2, func(r *raw) (message, error) { return verified(r, seedBack) }}, // done and verified, in any order
		{0, func(*raw) (message, error) { return message{Close: &ended{}}, nil }},
		{1, nil},
	}
}

func askFor(a Address) *open {
	return &open{ID: "x", Kind: Bandwidth, Memory: Host, Directions: []Direction{Both}, From: portA, Rail: portB, Bytes: 1 << 20, Deadline: 20_000, Address: a.Text}
}

// responderScript is the other side of it.
func responderScript() ([]string, []step) {
	var seeds *begin
	return []string{"hello", "opened", "ready", "done", "verified", "closed"}, []step{
		{1, func(r *raw) (message, error) { return message{Hello: ofNow(helloB(), time.Now())}, nil }},
		{1, func(r *raw) (message, error) {
			if r.last.Open == nil {
				return message{}, fmt.Errorf("no open: %v", r.heard)
			}
			a, err := r.open(portB, true, true)
			if err == nil {
				err = connect(r, r.last.Open.Address)
			}
			return message{Opened: &opened{Address: a.Text}}, err
		}},
		{1, func(r *raw) (message, error) {
			if seeds = r.last.Go; seeds == nil {
				return message{}, fmt.Errorf("no go: %v", r.heard)
			}
			return message{Ready: &empty{}}, nil
		}},
		{0, func(r *raw) (message, error) { return written(r, seeds.Back) }},
		{2, func(r *raw) (message, error) { return verified(r, seeds.Seed) }},
		{1, func(r *raw) (message, error) {
			_ = r.endpoint.Close()
			r.endpoint = nil
			return message{Closed: &ended{}}, nil
		}},
	}
}

// follow follows a script. At one step a fault takes the place of what is to be said;
// it reports whether the script goes on.
func (r *raw) follow(steps []step, at int, fault func(r *raw, m message) (goOn bool, err error)) error {
	for i, s := range steps {
		for range s.hears {
			if err := r.hear(); err != nil {
				return fmt.Errorf("step %d, after %v: %w", i, r.heard, err)
			}
		}
		if s.say == nil {
			continue
		}
		m, err := s.say(r)
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		goOn := true
		if i == at {
			goOn, err = fault(r, m)
		} else {
			err = r.say(m)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		if !goOn {
			return nil
		}
	}
	return nil
}

// fault is how a peer departs from the script, and what the other side makes of it.
type fault struct {
	name   string
	do     func(r *raw, m message) error
	reason Reason
	ends   bool // the peer ends the connection itself
	closes bool // it is the end of a session as any, and the connection stays
}

func frames(texts ...string) func(r *raw, _ message) error {
	return func(r *raw, _ message) error {
		for _, text := range texts {
			if err := writeFrame(r, []byte(text)); err != nil {
				return err
			}
		}
		return nil
	}
}

func bytesOnly(text string) func(r *raw, _ message) error {
	return func(r *raw, _ message) error {
		_, err := r.Write([]byte(text))
		return err
	}
}

func (r *raw) writes(b byte) bool {
	_, err := r.Write([]byte{b})
	return err == nil
}

// drip sends a message more slowly than it may come.
func drip(r *raw, m message) error {
	text, _ := json.Marshal(m)
	for _, b := range append([]byte{0, 0, byte(len(text) >> 8), byte(len(text))}, text...) {
		if !r.writes(b) {
			break // cut off, as it has to be
		}
		time.Sleep(30 * time.Millisecond)
	}
	return nil
}

func faults() []fault {
	return []fault{
		{"lost", func(*raw, message) error { return nil }, ReasonTimeout, false, false},
		{"half", bytesOnly("\x00\x00\x00\x20{\"he"), ReasonTimeout, false, false},
		{"half a length", bytesOnly("\x00"), ReasonTimeout, false, false},
		{"drip", drip, ReasonTimeout, false, false},
		{"end", func(r *raw, _ message) error { return r.Close() }, ReasonLeft, true, false},
		{"end in the middle", func(r *raw, _ message) error {
			_ = bytesOnly("\x00\x00\x00\x20{\"he")(r, message{})
			return r.Close()
		}, ReasonLeft, true, false},
		{"reset", func(r *raw, _ message) error {
			_ = r.Conn.(*net.TCPConn).SetLinger(0)
			return r.Close()
		}, ReasonLeft, true, false},
		{"garbage", bytesOnly(strings.Repeat("GET / HTTP/1.1\r\n", 8)), ReasonProtocol, false, false},
		{"no JSON", frames("{"), ReasonProtocol, false, false},
		{"wrong types", frames(`{"hello":3}`), ReasonProtocol, false, false},
		{"an array", frames(`[]`), ReasonProtocol, false, false},
		{"null", frames(`null`), ReasonProtocol, false, false},
		{"too large", bytesOnly("\x00\x01\x00\x01"), ReasonProtocol, false, false},
		{"huge", bytesOnly("\xff\xff\xff\xff"), ReasonProtocol, false, false},
		{"nothing", bytesOnly("\x00\x00\x00\x00"), ReasonProtocol, false, false},
		{"unknown", frames(`{"what":{}}`), ReasonProtocol, false, false},
		{"two at once", frames(`{"ready":{},"closed":{}}`), ReasonProtocol, false, false},
		{"TLS", bytesOnly("\x16\x03\x01\x02\x00\x01"), ReasonTLS, false, false},
		{"deep", frames(strings.Repeat(`{"hello":`, 5000)), ReasonProtocol, false, false},
	}
}

// together runs functions at once, or some of them. They only report errors.
func together[T any](all []T, do func(T)) {
	const most = 64
	var wg sync.WaitGroup
	places := make(chan struct{}, most)
	for _, one := range all {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			do(one)
		})
	}
	wg.Wait()
}

// at is a fault at a step.
type faultAt struct {
	fault
	step int
	what string // it would say
}

func everywhere(names []string, faults []fault) []faultAt {
	var all []faultAt
	for i, name := range names {
		for _, f := range faults {
			all = append(all, faultAt{f, i, name})
		}
	}
	return all
}

// TestScripts: the scripts themselves are good.
func TestScripts(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient).serve()
	_, steps := initiatorScript()
	r := b.raw()
	if err := r.follow(steps, -1, nil); err != nil || r.last.Closed == nil {
		t.Fatalf("%v after %v", err, r.heard)
	}
	if s := b.lastServed(1); s.Failure != nil || s.Rounds != 1 || s.Moved != 1<<21 {
		t.Errorf("served %+v", s)
	}
	r.close()
	result, err := againstScript(b, -1, nil)
	if err != nil || result.Failure != nil || result.Rounds[0].Written.Mismatches != 0 || result.Rounds[0].Back.Verified != fakeBuffer {
		t.Errorf("%+v, %v", result, err)
	}
}

// raw is a scripted initiator.
func (b *bench) raw() *raw {
	n, err := net.Dial("tcp", b.address)
	if err != nil {
		b.t.Error(err)
	}
	return &raw{Conn: n, opener: &node{fabric: b.fabric, where: "fe80::a"}}
}

// againstScript measures against a scripted responder.
func againstScript(b *bench, at int, fault func(r *raw, m message) (bool, error)) (*Result, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	followed := make(chan error, 1)
	go func() {
		n, err := l.Accept()
		if err != nil {
			followed <- err
			return
		}
		r := &raw{Conn: n, opener: &node{fabric: b.fabric, where: "fe80::b"}}
		_, steps := responderScript()
		err = r.follow(steps, at, fault)
		if err == nil {
			err = r.rest()
		}
		r.close()
		followed <- err
	}()
	o := b.client
	o.Target = l.Addr().String()
	c, err := Dial(context.Background(), o)
	if err != nil {
		return &Result{Failure: asFailure(err)}, <-followed
	}
	plan := bandwidth(Host, Both)
	plan.Within = 100 * time.Millisecond
	result := c.Measure(context.Background(), plan)
	if at >= 0 && !b.once {
		if again := c.Measure(context.Background(), plan); again.Failure == nil {
			err = fmt.Errorf("a second session went well")
		}
	}
	_ = c.Close()
	if failed := <-followed; failed != nil {
		err = failed
	}
	return result, err
}

// initiatorFaults: whatever an initiator does instead of saying what is its turn,
// the server ends it for the right reason, gives all back, and serves the next one.
func initiatorFaults(t *testing.T) {
	names, _ := initiatorScript()
	together(everywhere(names, faults()), func(f faultAt) {
		name := f.name + " instead of " + f.what
		b := newBench(t, patient).serve()
		r := b.raw()
		_, steps := initiatorScript()
		stop := func() {}
		err := r.follow(steps, f.step, func(r *raw, m message) (bool, error) {
			if f.reason == ReasonTimeout {
				stop = b.hurry()
			}
			return false, f.do(r, m)
		})
		if err == nil && !f.ends {
			err = r.rest()
		}
		stop()
		if err != nil && !strings.Contains(err.Error(), "use of closed") {
			t.Errorf("%s: %v, heard %v", name, err, r.heard)
		}
		switch f.step {
		case 0:
			if why := b.lastRejected(); why == nil || why.Reason != f.reason || why.Peer {
				t.Errorf("%s: rejected for %+v", name, why)
			}
		case 1: // whoever has said hello may go
		default:
			if s := b.lastServed(1); s.Failure == nil || s.Failure.Reason != f.reason || s.Failure.Stage == "" {
				t.Errorf("%s: served with %+v", name, s.Failure)
			}
		}
		r.close()
		if err := b.serves(); err != nil {
			t.Errorf("%s: the next session: %v", name, err)
		}
	})
}

// serves measures once more, on a connection of its own.
func (b *bench) serves() error {
	if err := b.balanced(); err != nil {
		return err
	}
	o := b.client
	o.Limits = patient
	c, err := Dial(context.Background(), o)
	if err != nil {
		return err
	}
	defer c.Close()
	if r := c.Measure(context.Background(), pings); r.Failure != nil {
		return r.Failure
	}
	return nil
}

// responderFaults: the same of a responder.
func responderFaults(t *testing.T) {
	names, _ := responderScript()
	together(everywhere(names, faults()), func(f faultAt) {
		name := f.name + " instead of " + f.what
		b := newBench(t, patient)
		began := time.Now()
		stop := func() {}
		result, err := againstScript(b, f.step, func(r *raw, m message) (bool, error) {
			if f.reason == ReasonTimeout {
				stop = b.hurry()
			}
			return false, f.do(r, m)
		})
		stop()
		if err != nil && (!f.ends || !strings.Contains(err.Error(), "use of closed")) {
			t.Errorf("%s: %v", name, err)
		}
		if result == nil || result.Failure == nil || result.Failure.Reason != f.reason || result.Failure.Peer || result.Failure.Stage == "" {
			t.Errorf("%s: %+v", name, result.Failure)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
		if err := b.balanced(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
}

// TestTogether is what waits most of its time, at once.
func TestTogether(t *testing.T) {
	noLeaks(t)
	all := map[string]func(*testing.T){
		"initiator's faults": initiatorFaults, "responder's faults": responderFaults,
		"initiator's order": initiatorOrder, "responder's order": responderOrder,
		"initiator's lies": initiatorLies, "responder's lies": responderLies,
		"calls that hang": callHangs, "slow peers": slow, "no answer": unreachable,
	}
	together(slices.Collect(maps.Keys(all)), func(name string) { t.Run(name, all[name]) })
}

package session

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

// samples are messages of a right form. Each is out of turn somewhere.
func samples() map[string]message {
	where := json.RawMessage(`{"id":99,"where":"fe80::c","length":4096}`)
	return map[string]message{
		"hello":    {Hello: ofNow(helloA(), time.Time{})},
		"open":     {Open: &open{ID: "x", Kind: Ping, Memory: Host, Directions: []Direction{Write}, From: portA, Rail: portB, Bytes: 8, Deadline: 20_000, Address: where}},
		"opened":   {Opened: &opened{Address: where}},
		"refused":  {Refused: Fail(ReasonGate, StageAdmit, errLeft)},
		"go":       {Go: &begin{Direction: Both, Bytes: 8, Within: 100}},
		"ready":    {Ready: &empty{}},
		"done":     {Done: &done{Written: Written{Bytes: 8, Elapsed: 1, Extents: []Extent{{0, 8}}}}},
		"verified": {Verified: &Verification{Bytes: 8}},
		"failed":   {Failed: Fail(ReasonHung, "write", errLeft)},
		"closed":   {Closed: &ended{}},
		"close":    {Close: &ended{Failure: Fail(ReasonStopped, "", errLeft)}},
	}
}

type swapped struct {
	step       int
	what, with string
	twice      bool // both
}

func swaps(names []string, without ...string) []swapped {
	var all []swapped
	for i, what := range names {
		for with := range samples() {
			if with == what || strings.Contains(strings.Join(without, " "), with) {
				continue
			}
			all = append(all, swapped{i, what, with, false}, swapped{i, what, with, true})
		}
		all = append(all, swapped{i, what, what, true})
	}
	return all
}

// say says the message of the swap, and the one that it takes the place of after it.
func (s swapped) say(r *raw, m message) error {
	with := samples()[s.with]
	if s.with == s.what {
		with = m
	}
	if err := r.say(with); err != nil || !s.twice {
		return err
	}
	_ = r.say(m) // it may be cut off already
	return nil
}

// initiatorOrder: messages of a right form out of turn, and twice, end the session,
// give all back, and leave a server that serves.
func initiatorOrder(t *testing.T) {
	names, _ := initiatorScript()
	together(swaps(names, "close"), func(s swapped) {
		b := newBench(t, patient).serve()
		stop := func() {}
		r := b.raw()
		_, steps := initiatorScript()
		err := r.follow(steps, s.step, func(r *raw, m message) (bool, error) {
			err := s.say(r, m)
			if s.what == "done" && s.with == "verified" || s.what == "close" && s.with == "close" {
				stop = b.hurry() // done, or another session, is waited for
			}
			return false, err
		})
		if err == nil {
			err = r.rest()
		}
		stop()
		if err != nil {
			t.Errorf("%+v: %v, heard %v", s, err, r.heard)
		}
		r.close()
		if s.step > 1 && s.what != "close" {
			served := b.lastServed(1)
			// What was written here is verified as well before the other side has written.
			fine := s.what == "done" && s.with == "verified" && served.Failure != nil && served.Failure.Reason == ReasonTimeout
			if !fine && (served.Failure == nil || served.Failure.Reason != ReasonProtocol && !served.Failure.Peer) {
				t.Errorf("%+v: served with %+v", s, served.Failure)
			}
		}
		if err := b.serves(); err != nil {
			t.Errorf("%+v: the next session: %v", s, err)
		}
	})
}

// responderOrder: the same of a responder.
func responderOrder(t *testing.T) {
	names, _ := responderScript()
	together(swaps(names, "close"), func(s swapped) {
		if s.what == "opened" && s.with == "refused" && !s.twice || s.what == "closed" && s.twice {
			return // fine, or found by the next session only
		}
		b := newBench(t, patient)
		stop := func() {}
		result, err := againstScript(b, s.step, func(r *raw, m message) (bool, error) {
			err := s.say(r, m)
			if s.what == "closed" || s.what == "verified" || s.with == "failed" || s.with == "refused" {
				stop = b.hurry() // closed is waited for
			}
			return false, err
		})
		stop()
		if err != nil && !strings.Contains(err.Error(), "second session") {
			t.Errorf("%+v: %v", s, err)
		}
		// What comes too early may be what is waited for next, before the end that counts.
		if result.Failure == nil && s.what != "closed" || result.Failure != nil && result.Failure.Stage == "" {
			t.Errorf("%+v: %+v", s, result.Failure)
		}
		if err := b.balanced(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	})
}

// TestCloseAnytime: the initiator may end a session at any step. It hears closed, the
// memory is gone then, and the next session may follow on the same connection.
func TestCloseAnytime(t *testing.T) {
	noLeaks(t)
	names, _ := initiatorScript()
	for step := 1; step < len(names); step++ {
		for _, also := range []bool{false, true} { // close instead of the message, or right after it
			b := newBench(t, patient).serve()
			r := b.raw()
			_, steps := initiatorScript()
			err := r.follow(steps, step, func(r *raw, m message) (bool, error) {
				if also {
					if err := r.say(m); err != nil {
						return false, err
					}
				}
				if m.Close != nil && also {
					return false, nil
				}
				return false, r.say(samples()["close"])
			})
			for err == nil && r.last.Closed == nil {
				err = r.hear()
			}
			if err != nil {
				t.Fatalf("%s, also %v: %v, heard %v", names[step], also, err, r.heard)
			}
			if open, _ := b.fabric.count(); r.endpoint != nil && open != 1 {
				t.Errorf("%s, also %v: %d endpoints are open after closed", names[step], also, open)
			}
			r.again(t, names[step])
			b.stop()
			r.close()
		}
	}
}

// again carries a session through on the same connection.
func (r *raw) again(t *testing.T, name string) {
	t.Helper()
	if r.endpoint != nil {
		_ = r.endpoint.Close()
		r.endpoint = nil
	}
	_, steps := initiatorScript()
	r.heard = nil
	steps = steps[1:]
	steps[0].hears = 0
	if err := r.follow(steps, -1, nil); err != nil || r.last.Closed == nil {
		t.Errorf("%s: the next session: %v, heard %v", name, err, r.heard)
	}
}

// lie is a message of a right form that says what cannot be.
type lie struct {
	name   string
	step   string
	change func(m *message)
	reason Reason
	stays  bool // it is refused, and the connection stays
}

// initiatorLies: every number of an initiator is checked.
func initiatorLies(t *testing.T) {
	names, _ := initiatorScript()
	address := func(text string) func(*message) {
		return func(m *message) { m.Open.Address = json.RawMessage(text) }
	}
	together([]lie{
		{"version", "hello", func(m *message) { m.Hello.Protocol, m.Hello.Oldest = 7, 6 }, ReasonVersion, false},
		{"no version", "hello", func(m *message) { m.Hello.Protocol = 0 }, ReasonProtocol, false},
		{"name", "hello", func(m *message) { m.Hello.Name = "a\x1b[31m" }, ReasonProtocol, false},
		{"not listed", "hello", func(m *message) { m.Hello.Address = "c.example:1" }, ReasonNotListed, false},
		{"no address", "hello", func(m *message) { m.Hello.Address = "" }, ReasonNotListed, false},
		{"rails", "hello", func(m *message) { m.Hello.Rails = []Rail{{Port: portA}, {Port: portA}} }, ReasonProtocol, false},
		{"no rail", "open", func(m *message) { m.Open.Rail.Device = "mlx5_9" }, ReasonNoRail, true},
		{"path", "open", func(m *message) { m.Open.Rail.Device = "../../etc" }, ReasonProtocol, false},
		{"GPU", "open", func(m *message) { m.Open.Memory, m.Open.GPU = GPU, "0000:ff:00.0" }, ReasonNoRail, true},
		{"kind", "open", func(m *message) { m.Open.Kind = "flood" }, ReasonProtocol, false},
		{"rounds", "open", func(m *message) { m.Open.Directions = make([]Direction, 17) }, ReasonProtocol, false},
		{"buffer", "open", func(m *message) { m.Open.Shape.Buffer = 1 << 33 }, ReasonInvalid, true},
		{"queue pairs", "open", func(m *message) { m.Open.Shape.QueuePairs = 1 << 20 }, ReasonProtocol, false},
		{"bytes", "open", func(m *message) { m.Open.Bytes = 1 << 62 }, ReasonInvalid, true},
		{"no bytes", "open", func(m *message) { m.Open.Bytes = 0 }, ReasonInvalid, true},
		{"deadline", "open", func(m *message) { m.Open.Deadline = 0 }, ReasonProtocol, false},
		{"address", "open", address(`{"id":-1}`), ReasonInvalid, true},
		{"address of another type", "open", address(`[1]`), ReasonInvalid, true},
		{"no memory", "open", address(`{"id":1,"where":"fe80::a"}`), ReasonInvalid, true},
		{"claimed", "open", address(`{"id":1,"where":"fe80::taken","length":4096}`), ReasonClaimed, true},
		{"direction", "go", func(m *message) { m.Go.Direction = Write }, ReasonProtocol, false},
		{"more bytes", "go", func(m *message) { m.Go.Bytes *= 2 }, ReasonProtocol, false},
		{"pings", "go", func(m *message) { m.Go.Pings = 1 << 20 }, ReasonProtocol, false},
		{"within", "go", func(m *message) { m.Go.Within = -1 }, ReasonProtocol, false},
		{"many bytes", "done", func(m *message) { m.Done.Bytes = 1 << 60 }, ReasonProtocol, false},
		{"nowhere", "done", func(m *message) { m.Done.Extents = nil }, ReasonProtocol, false},
		{"elsewhere", "done", func(m *message) { m.Done.Extents = []Extent{{-8, 8}} }, ReasonProtocol, false},
		{"beyond", "done", func(m *message) { m.Done.Extents = []Extent{{1 << 40, 8}} }, ReasonRDMA, false},
		{"over and over", "done", func(m *message) { m.Done.Extents = []Extent{{0, 4096}, {0, 4096}} }, ReasonProtocol, false},
		{"so much that it looks like little", "done", func(m *message) {
			m.Done.Extents = []Extent{{0, math.MaxInt64 - 7}, {0, math.MaxInt64 - 7}, {0, 16}}
		}, ReasonProtocol, false},
		{"no time", "done", func(m *message) { m.Done.Elapsed = -1 }, ReasonProtocol, false},
		{"all time", "done", func(m *message) { m.Done.Elapsed = 5 * time.Minute }, ReasonProtocol, false},
		{"latency", "done", func(m *message) { m.Done.Latency = &Latency{Count: 5} }, ReasonProtocol, false},
		{"more verified", "verified", func(m *message) { m.Verified.Bytes++ }, ReasonProtocol, false},
		{"mismatches", "verified", func(m *message) { m.Verified.Mismatches = 1 << 40 }, ReasonProtocol, false},
		{"fewer than none", "verified", func(m *message) { m.Verified.Mismatches = -1 }, ReasonProtocol, false},
	}, func(l lie) {
		b := newBench(t, patient).serve()
		_ = b.server.Claims.take("c.example:1", portB, "fe80::taken", nil)
		r := b.raw()
		_, steps := initiatorScript()
		step := 0
		for names[step] != l.step {
			step++
		}
		stop := func() {}
		err := r.follow(steps, step, func(r *raw, m message) (bool, error) {
			l.change(&m)
			err := r.say(m)
			if l.waited() {
				// It is told first, and then waited for.
				for err == nil && r.last.Failed == nil && r.last.Close == nil {
					err = r.hear()
				}
				stop = b.hurry()
			}
			return false, err
		})
		if l.stays && err == nil {
			if err = r.hear(); err == nil && (r.last.Refused == nil || r.last.Refused.Reason != l.reason) {
				t.Errorf("%s: %v, %+v", l.name, r.heard, r.last.Refused)
			}
			r.again(t, l.name)
		} else if err == nil {
			err = r.rest()
		}
		if err != nil {
			t.Errorf("%s: %v, heard %v", l.name, err, r.heard)
		}
		stop()
		r.close()
		if l.step == "hello" {
			if why := b.lastRejected(); why == nil || why.Reason != l.reason {
				t.Errorf("%s: rejected for %+v", l.name, why)
			}
		} else if l.reason != ReasonProtocol || l.step != "open" {
			if s := b.lastServed(1); s.Failure == nil || s.Failure.Reason != l.reason {
				t.Errorf("%s: served with %+v", l.name, s.Failure)
			}
		}
		if err := b.serves(); err != nil {
			t.Errorf("%s: the next session: %v", l.name, err)
		}
	})
}

// waited reports whether the liar is waited for, as it still understands.
func (l lie) waited() bool {
	return l.step != "hello" && l.reason != ReasonProtocol && l.reason != ReasonVersion && !l.stays
}

// responderLies: and every number of a responder.
func responderLies(t *testing.T) {
	names, _ := responderScript()
	address := func(text string) func(*message) {
		return func(m *message) { m.Opened.Address = json.RawMessage(text) }
	}
	together([]lie{
		{"version", "hello", func(m *message) { m.Hello.Protocol, m.Hello.Oldest = 2, 2 }, ReasonVersion, false},
		{"build", "hello", func(m *message) { m.Hello.Build = strings.Repeat("x", 200) }, ReasonProtocol, false},
		{"address", "opened", address(`{"id":-1}`), ReasonInvalid, false},
		{"nothing", "opened", address(`""`), ReasonInvalid, false},
		{"no memory", "opened", address(`{"id":1,"where":"fe80::b"}`), ReasonInvalid, false},
		{"claimed", "opened", address(`{"id":1,"where":"fe80::taken","length":4096}`), ReasonClaimed, false},
		{"facts", "opened", func(m *message) { m.Opened.Facts.MTU = -1 }, ReasonProtocol, false},
		{"many bytes", "done", func(m *message) { m.Done.Bytes = 1 << 60 }, ReasonProtocol, false},
		{"over and over", "done", func(m *message) { m.Done.Extents = []Extent{{0, 4096}, {0, 4096}} }, ReasonProtocol, false},
		{"all time", "done", func(m *message) { m.Done.Elapsed = 5 * time.Minute }, ReasonProtocol, false},
		{"more verified", "verified", func(m *message) { m.Verified.Bytes++ }, ReasonProtocol, false},
		{"mismatches", "verified", func(m *message) { m.Verified.Mismatches = 1 << 40 }, ReasonProtocol, false},
	}, func(l lie) {
		b := newBench(t, patient)
		_ = b.client.Claims.take("c.example:1", portA, "fe80::taken", nil)
		step := 0
		for names[step] != l.step {
			step++
		}
		stop := func() {}
		result, err := againstScript(b, step, func(r *raw, m message) (bool, error) {
			l.change(&m)
			err := r.say(m)
			if l.waited() {
				// It is told first, and then waited for.
				for err == nil && r.last.Failed == nil && r.last.Close == nil {
					err = r.hear()
				}
				stop = b.hurry()
			}
			return false, err
		})
		stop()
		if err != nil {
			t.Errorf("%s: %v", l.name, err)
		}
		if result.Failure == nil || result.Failure.Reason != l.reason || result.Failure.Peer {
			t.Errorf("%s: %+v", l.name, result.Failure)
		}
		if err := b.balanced(); err != nil {
			t.Errorf("%s: %v", l.name, err)
		}
	})
}

// TestUnknownFields: a newer version that says more is understood, in both roles.
func TestUnknownFields(t *testing.T) {
	noLeaks(t)
	more := func(r *raw, m message) (bool, error) {
		text, err := json.Marshal(m)
		if err != nil {
			return false, err
		}
		var fields map[string]map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			return false, err
		}
		for _, of := range fields {
			of["more"] = []any{1, "x", map[string]any{"y": nil}}
		}
		if m.Hello != nil {
			fields["hello"]["protocol"] = Protocol + 1
			fields["hello"]["oldest"] = Protocol
		}
		if text, err = json.Marshal(fields); err != nil {
			return false, err
		}
		return true, writeFrame(r, text)
	}
	initiator, _ := initiatorScript()
	for step := range initiator {
		b := newBench(t, patient).serve()
		r := b.raw()
		_, steps := initiatorScript()
		if err := r.follow(steps, step, more); err != nil || r.last.Closed == nil {
			t.Errorf("%s: %v, heard %v", initiator[step], err, r.heard)
		}
		r.close()
		responder, _ := responderScript()
		b.once = true
		result, _ := againstScript(b, step, more)
		if result.Failure != nil {
			t.Errorf("%s: %v", responder[step], result.Failure)
		}
	}
}

// TestNewerVersion: one that cannot be spoken to is told so, and both sides can show
// the same, even if its hello has another form otherwise.
func TestNewerVersion(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient).serve()
	r := b.raw()
	if err := writeFrame(r, []byte(`{"hello":{"protocol":3,"oldest":2,"rails":"many"},"proof":1}`)); err != nil {
		t.Fatal(err)
	}
	if err := r.hear(); err != nil || r.last.Refused == nil || r.last.Refused.Reason != ReasonVersion {
		t.Fatalf("%v, %+v", err, r.last.Refused)
	}
	r.close()
	here := b.lastRejected()
	const want = "no version of the protocol in common: b (build 1.2.4) speaks version 1, a node speaks versions 2 to 3"
	if !strings.HasPrefix(here.Text, want) || here.Text != r.last.Refused.Text || here.Errno != "EPROTONOSUPPORT" {
		t.Errorf("here %q, there %q", here.Text, r.last.Refused.Text)
	}
}

// TestRefusedByPeer: a failure of the peer says that it is the peer's, whenever it comes.
func TestRefusedByPeer(t *testing.T) {
	noLeaks(t)
	names, _ := responderScript()
	for step := range names {
		said := message{Failed: Fail(ReasonRDMA, "register", errRemote)}
		if step < 2 {
			said = message{Refused: Fail(ReasonRDMA, "register", errRemote)}
		}
		b := newBench(t, patient)
		b.once = true
		result, err := againstScript(b, step, func(r *raw, m message) (bool, error) {
			if err := r.say(said); err != nil || step < 2 {
				return false, err
			}
			for r.last.Close == nil {
				if err := r.hear(); err != nil {
					return false, err
				}
			}
			return false, r.say(message{Closed: &ended{}})
		})
		f := result.Failure
		if err != nil || f == nil || !f.Peer || f.Reason != ReasonRDMA || f.Stage != "register" {
			t.Errorf("%s: %v, %+v", names[step], err, f)
		}
		if err := b.balanced(); err != nil {
			t.Error(err)
		}
	}
}

package session

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// FuzzMessage: whatever comes from another host is read without harm, what is taken
// keeps within its bounds, and says the same when it is said again.
func FuzzMessage(f *testing.F) {
	for _, m := range samples() {
		text, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		var frame bytes.Buffer
		if err := writeFrame(&frame, text); err != nil {
			f.Fatal(err)
		}
		f.Add(frame.Bytes())
	}
	f.Add([]byte("\x16\x03\x01\x00\x05"))
	f.Add([]byte("\x00\x00\x00\x26{\"hello\":{\"protocol\":9,\"oldest\":9,\"x\":1}"))
	f.Add([]byte("\x00\x00\x00\x1d{\"failed\":{\"text\":\"\\u001b[31m\"}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		text, err := readFrame(bytes.NewReader(data))
		if err != nil {
			return
		}
		if len(text) > MaxMessage || len(text) > len(data)-headerSize {
			t.Fatalf("%d bytes of %d", len(text), len(data))
		}
		m, err := decode(text)
		if err != nil {
			if f := asFailure(err); f.Reason != ReasonProtocol && f.Reason != ReasonVersion {
				t.Errorf("%+v", f)
			}
			return
		}
		checkTaken(t, m)
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > 2*MaxMessage { // escapes may make it longer
			return
		}
		if _, err := decode(again); err != nil {
			t.Errorf("%s is %s, which is %v", text, again, err)
		}
	})
}

func checkTaken(t *testing.T, m message) {
	t.Helper()
	for _, c := range []*conn{{calls: true}, {}} {
		if err := c.expected(m, "nothing"); err == nil {
			t.Error("it is nothing")
		}
	}
	for _, failure := range []*Failure{m.Refused, m.Failed} {
		if failure != nil && (!failure.Peer || strings.ContainsAny(failure.Error(), "\x1b\n\r") || len(failure.Text) > 4*512) {
			t.Errorf("%+v", failure)
		}
	}
	if o := m.Open; o != nil && (len(o.Directions) > mostRounds || o.Deadline < 1 || bytesOf(o.Directions, 1<<32) > 2*mostRounds<<32) {
		t.Errorf("%+v", o)
	}
	if d := m.Done; d != nil && (d.Elapsed < 0 || d.Elapsed > mostDeadline) {
		t.Errorf("%+v", d)
	}
	if h := m.Hello; h != nil {
		_ = speak(*ofNow(helloA(), time.Time{}), *h)
		_, _ = times(time.Now(), time.Now(), h.Received, h.Sent)
	}
}

// FuzzIdentity: a file that is taken has all that is needed.
func FuzzIdentity(f *testing.F) {
	f.Add([]byte("cert_file: a.pem\nkey_file: a.key\nca_file: ca.pem\nallowed_names: [a.gpu.example, '*.b', 'spiffe://x/*/y']\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("---\n---\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		i, err := parseIdentity(text, "/etc")
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q", err)
			}
			return
		}
		if len(i.names) == 0 || i.files.Certificate == "" || i.files.Key == "" || i.files.Authority == "" {
			t.Errorf("%q: %+v", text, i.files)
		}
	})
}

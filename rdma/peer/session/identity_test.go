package session

import (
	"context"
	"crypto/x509"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func expired(c *x509.Certificate)    { c.NotAfter = time.Now().Add(-time.Minute) }
func future(c *x509.Certificate)     { c.NotBefore = time.Now().Add(time.Hour / 2) }
func serverOnly(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }
func clientOnly(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }

// TestTLS: sessions over real TLS, and what each side sees of certificates that are
// not as they must be.
func TestTLS(t *testing.T) {
	noLeaks(t)
	ours, other := newAuthority(t, "ours"), newAuthority(t, "other")
	stranger := &authority{t, ours.dir, other.key, other.cert} // signs, and trusts ours
	good := func() *Identity { return ours.identity("good", nil, "a.gpu.example") }
	for _, x := range []struct {
		name         string
		a, b         *Identity // who calls, and who serves
		here, there  Reason    // what the caller and the server see; "": all is well
		peer         bool      // the caller knows it from the server
		text, served string
	}{
		{"good", good(), ours.identity("b", nil, "b.gpu.example"), "", "", false, "", ""},
		{"by URI", ours.identity("uri", nil, "spiffe://gpu.example/node/7"), ours.identity("b", nil, "b.gpu.example"), "", "", false, "", ""},
		{"one of two names", ours.identity("two", nil, "x.example", "two.gpu.example"), ours.identity("b", nil, "b.gpu.example"), "", "", false, "", ""},
		{"plain", nil, nil, "", "", false, "", ""},
		{"caller of another authority", stranger.identity("stranger", nil, "a.gpu.example"), good(), ReasonTLS, ReasonTLS, false, "unknown certificate authority", "unknown authority"},
		{"caller's name", ours.identity("n", nil, "a.cpu.example"), good(), ReasonCertificate, ReasonCertificate, true, "a.cpu.example", "a.cpu.example"},
		{"caller without a name", ours.identity("none", nil), good(), ReasonCertificate, ReasonCertificate, true, "none", "none"},
		{"caller's time", ours.identity("old", expired, "a.gpu.example"), good(), ReasonTLS, ReasonTLS, false, "expired", "expired"},
		{"caller's use", ours.identity("s", serverOnly, "a.gpu.example"), good(), ReasonTLS, ReasonTLS, false, "bad certificate", "usage"},
		{"server's name", good(), ours.identity("m", nil, "b.cpu.example"), ReasonCertificate, ReasonCertificate, false, "b.cpu.example", "b.cpu.example"},
		{"server's time", good(), ours.identity("past", expired, "b.gpu.example"), ReasonTLS, ReasonTLS, false, "expired", "bad certificate"},
		{"server's time to come", good(), ours.identity("next", future, "b.gpu.example"), ReasonTLS, ReasonTLS, false, "not yet valid", "bad certificate"},
		{"server's use", good(), ours.identity("c", clientOnly, "b.gpu.example"), ReasonTLS, ReasonTLS, false, "usage", "bad certificate"},
		{"plain caller", nil, good(), ReasonTLS, ReasonTLS, true, "speaks TLS", "handshake"},
		{"plain server", good(), nil, ReasonTLS, ReasonTLS, false, "does not look like a TLS handshake", "speaks TLS"},
	} {
		b := newBench(t, patient)
		b.client.Identity, b.server.Identity = x.a, x.b
		b.serve()
		c, err := Dial(context.Background(), b.client)
		if x.here == "" {
			if err != nil {
				t.Errorf("%s: %v", x.name, err)
				continue
			}
			if r := c.Measure(context.Background(), bandwidth(Host, Write, Both)); r.Failure != nil {
				t.Errorf("%s: %v", x.name, r.Failure)
			}
			_ = c.Close()
			continue
		}
		f := asFailure(err)
		if err == nil || f.Reason != x.here || f.Peer != x.peer || f.Stage != StageTLS || !strings.Contains(f.Text, x.text) {
			t.Errorf("%s: here %+v", x.name, f)
		}
		if f := b.lastRejected(); f == nil || f.Reason != x.there || !strings.Contains(f.Text, x.served) {
			t.Errorf("%s: there %+v", x.name, f)
		}
		if opened, _ := b.fabric.count(); opened != 0 || b.admitB.given.Load() != 0 {
			t.Errorf("%s: a session was opened", x.name)
		}
	}
}

// TestServerOfAnotherAuthority is not told who calls.
func TestServerOfAnotherAuthority(t *testing.T) {
	noLeaks(t)
	b := newBench(t, patient)
	b.client.Identity = newAuthority(t, "ours").identity("a", nil, "a.gpu.example")
	b.server.Identity = newAuthority(t, "other").identity("b", nil, "b.gpu.example")
	b.serve()
	_, err := Dial(context.Background(), b.client)
	if f := asFailure(err); err == nil || f.Reason != ReasonTLS || f.Stage != StageTLS || !strings.Contains(f.Text, "unknown authority") {
		t.Errorf("%+v", f)
	}
	if f := b.lastRejected(); f == nil || f.Reason != ReasonTLS || f.Stage != StageTLS {
		t.Errorf("there %+v", f)
	}
}

// TestNoCertificate: a caller without one comes no further than the handshake.
func TestNoCertificate(t *testing.T) {
	noLeaks(t)
	ours := newAuthority(t, "ours")
	b := newBench(t, patient)
	b.server.Identity = ours.identity("b", nil, "b.gpu.example")
	b.serve()
	b.client.Identity = ours.identity("a", nil, "a.gpu.example")
	b.client.Identity.now.certificate.Certificate = nil
	b.client.Identity.now.certificate.PrivateKey = nil
	_, err := Dial(context.Background(), b.client)
	if f := asFailure(err); err == nil || f.Reason != ReasonTLS || f.Stage != StageTLS {
		t.Errorf("%+v", f)
	}
	if f := b.lastRejected(); f == nil || f.Reason != ReasonTLS || !strings.Contains(f.Text, "certificate") {
		t.Errorf("there %+v", f)
	}
}

// TestRotation: certificates that change on disk count from the next connection on, on
// both sides, and halves of them do not.
func TestRotation(t *testing.T) {
	noLeaks(t)
	old, next := newAuthority(t, "old"), newAuthority(t, "next")
	b := newBench(t, patient)
	b.client.Identity = old.identity("a", nil, "a.gpu.example")
	b.server.Identity = old.identity("b", nil, "b.gpu.example")
	b.serve()
	first := b.dial()
	measure := func(name string, c *Client) {
		t.Helper()
		if r := c.Measure(context.Background(), pings); r.Failure != nil {
			t.Errorf("%s: %v", name, r.Failure)
		}
	}
	measure("at first", first)
	move := func(from, to string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(next.dir, from))
		if err == nil {
			err = os.WriteFile(filepath.Join(old.dir, to), text, 0o600)
		}
		// A file system whose clock is coarse must not hide the change.
		if when := time.Now().Add(time.Duration(len(text)) * time.Second); err == nil {
			err = os.Chtimes(filepath.Join(old.dir, to), when, when)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	next.sign("a", nil, "a.gpu.example")
	next.sign("b", nil, "b.gpu.example")
	move("b.pem", "b.pem")
	if b.server.Identity.Err() == nil {
		t.Error("a certificate without its key is good")
	}
	measure("half of one side", b.dial())
	move("b.key", "b.key")
	move("a.pem", "a.pem")
	move("a.key", "a.key")
	if err := b.server.Identity.Err(); err != nil {
		t.Error(err)
	}
	if _, err := Dial(context.Background(), b.client); asFailure(err).Reason != ReasonTLS {
		t.Errorf("new certificates with the old authority: %v", err)
	}
	move("ca.pem", "ca.pem")
	measure("all new", b.dial())
	measure("the old connection", first)
	if err := os.Remove(filepath.Join(old.dir, "b.key")); err != nil {
		t.Fatal(err)
	}
	measure("a key that is gone", b.dial())
	if b.server.Identity.Err() == nil || b.server.Identity.Expires().Before(time.Now()) {
		t.Errorf("%v, expires %v", b.server.Identity.Err(), b.server.Identity.Expires())
	}
}

// TestMembers: who is served is of the list, by its address.
func TestMembers(t *testing.T) {
	noLeaks(t)
	for _, x := range []struct {
		address string
		member  error
		reason  Reason
	}{
		{"", nil, ReasonNotListed},
		{"z.example:1", nil, ReasonNotListed},
		{addressA, Fail(ReasonForeign, "", net.ErrClosed), ReasonForeign},
		{addressA, net.ErrClosed, ReasonNotListed},
	} {
		b := newBench(t, patient)
		b.client.Hello = func() Hello { h := helloA(); h.Address = x.address; return h }
		if x.member != nil {
			b.server.Member = func(context.Context, netip.Addr, string) error { return x.member }
		}
		b.serve()
		_, err := Dial(context.Background(), b.client)
		if f := asFailure(err); err == nil || f.Reason != x.reason || !f.Peer || f.Stage != StageHello {
			t.Errorf("%q: %+v", x.address, f)
		}
		if f := b.lastRejected(); f == nil || f.Reason != x.reason || f.Peer {
			t.Errorf("%q: there %+v", x.address, f)
		}
	}
}

// unreachable: no listener, one that never answers, and one that is no exporter.
func unreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ours := newAuthority(t, "ours").identity("a", nil, "a.gpu.example")
	o := newBench(t, hasty).client
	o.Target = l.Addr().String()
	for name, x := range map[string]struct {
		identity *Identity
		reason   Reason
		stage    string
	}{"plain": {nil, ReasonTimeout, StageHello}, "TLS": {ours, ReasonTimeout, StageTLS}} {
		o.Identity = x.identity
		_, err := Dial(context.Background(), o) // nobody accepts
		if f := asFailure(err); err == nil || f.Reason != x.reason || f.Stage != x.stage || f.Errno != "ETIMEDOUT" {
			t.Errorf("%s, never answers: %+v", name, f)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Dial(ctx, o); asFailure(err).Reason != ReasonStopped {
		t.Errorf("cancelled: %v", err)
	}
	_ = l.Close()
	if _, err := Dial(context.Background(), o); asFailure(err).Reason != ReasonUnreachable || asFailure(err).Errno != "ECONNREFUSED" || asFailure(err).Stage != StageDial {
		t.Errorf("nobody there: %v", err)
	}
}

func TestNames(t *testing.T) {
	for _, x := range []struct {
		pattern, name string
		matches       bool
	}{
		{"a.gpu.example", "a.gpu.example", true},
		{"A.gpu.example", "a.GPU.example", true},
		{"a.gpu.example", "b.gpu.example", false},
		{"*.gpu.example", "a.gpu.example", true},
		{"*.gpu.example", "a.b.gpu.example", false},
		{"*.gpu.example", "gpu.example", false},
		{"*.gpu.example", ".gpu.example", false},
		{"*.gpu.example", "a.gpu.example.evil", false},
		{"*.gpu.example", "a.gpuXexample", false},
		{"*.*.example", "a.b.example", true},
		{"*", "a", true},
		{"*", "a.b", false},
		{"*", "", false},
		{"spiffe://x.example/node/*", "spiffe://x.example/node/a", true},
		{"spiffe://x.example/node/*", "spiffe://X.example/node/a", true},
		{"spiffe://x.example/node/*", "spiffe://x.example/node/a/b", false},
		{"spiffe://x.example/node/*", "spiffe://x.example/node/", false},
		{"spiffe://x.example/node/*", "spiffe://y.example/node/a", false},
		{"spiffe://x.example/node/*", "https://x.example/node/a", false},
		{"spiffe://x.example/node/*", "spiffe://x.example/node/a?b", false},
		{"spiffe://x.example/Node", "spiffe://x.example/node", false},
		{"spiffe://x.example", "spiffe://x.example", true},
		{"a.gpu.example", "spiffe://a.gpu.example", false},
	} {
		p, err := parsePattern(x.pattern)
		if err != nil {
			t.Errorf("%s: %v", x.pattern, err)
			continue
		}
		matches := p.matchesDNS(x.name)
		if strings.Contains(x.name, "://") {
			uri, err := url.Parse(x.name)
			if err != nil {
				t.Fatal(err)
			}
			matches = p.matchesURI(uri)
		}
		if matches != x.matches {
			t.Errorf("%s, %s: %v", x.pattern, x.name, matches)
		}
	}
	for _, bad := range []string{"", ".", "a..b", "a*.b", "*a", "a b", "ä.example", "spiffe://*.x/a", "spiffe:///a", "spiffe://x/a*", "spiffe://u@x/a", "spiffe://x/a?b", "://x", strings.Repeat("a.", 200) + "a"} {
		if p, err := parsePattern(bad); err == nil {
			t.Errorf("%q is %+v", bad, p)
		}
	}
}

// TestLoadIdentity: each mistake has one clear line.
func TestLoadIdentity(t *testing.T) {
	a := newAuthority(t, "ours")
	a.sign("a", nil, "a.gpu.example")
	a.sign("b", nil, "b.gpu.example")
	const good = "cert_file: a.pem\nkey_file: a.key\nca_file: ca.pem\nallowed_names: [a.gpu.example]\n"
	path := filepath.Join(a.dir, "x.yml")
	for name, x := range map[string]struct{ text, want string }{
		"good":           {good, ""},
		"absolute":       {strings.ReplaceAll(good, ": a.", ": "+a.dir+"/a."), ""},
		"empty":          {"", "cert_file is missing"},
		"no key":         {strings.Replace(good, "key_file", "#", 1), "key_file is missing"},
		"no authority":   {strings.Replace(good, "ca_file", "#", 1), "ca_file is missing"},
		"no names":       {strings.Replace(good, "[a.gpu.example]", "[]", 1), "allowed_names is missing"},
		"bad name":       {strings.Replace(good, "[a.gpu.example]", "['*x.example']", 1), "whole labels"},
		"unknown key":    {good + "insecure: true\n", "field insecure not found"},
		"a list":         {"- a", "cannot unmarshal"},
		"no YAML":        {"a: [", "did not find"},
		"two documents":  {good + "---\n" + good, "more than one YAML document"},
		"other key":      {strings.Replace(good, "a.key", "b.key", 1), "private key does not match"},
		"key is missing": {strings.Replace(good, "a.key", "c.key", 1), "no such file"},
		"no certificate": {strings.Replace(good, "ca.pem", "a.key", 1), "no certificate in it"},
		"large":          {good + "#" + strings.Repeat("x", mostIdentity), "longer than"},
	} {
		if err := os.WriteFile(path, []byte(x.text), 0o600); err != nil {
			t.Fatal(err)
		}
		i, err := LoadIdentity(path)
		switch {
		case x.want == "":
			if err != nil || i == nil || i.Err() != nil || i.Expires().IsZero() {
				t.Errorf("%s: %v", name, err)
			}
		case err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), a.dir):
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := LoadIdentity(filepath.Join(a.dir, "none.yml")); err == nil {
		t.Error("no file is fine")
	}
}

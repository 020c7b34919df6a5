package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"gdr_exporter/collector/status"
	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
)

// Mistakes end with one line that names the flag, and exit code 2.
func TestPeerMistakes(t *testing.T) {
	dir := t.TempDir()
	list, broken := filepath.Join(dir, "nodes.json"), filepath.Join(dir, "peer.yml")
	for file, text := range map[string]string{list: `[{"targets":["node1","node2"]}]`, broken: "cert: x\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	enabled := []string{"serve", "--web.listen-address=127.0.0.1:0", "--state.dir=", "--control.socket=", "--peer.enabled", "--peer.targets=" + list}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"serve", "--peer.enabled"}, "--peer.targets"},
		{[]string{"serve", "--peer.dns=gdr.example"}, "--peer.enabled"},
		{enabled, "--peer.tls-config"},
		{append(enabled, "--peer.insecure", "--peer.tls-config="+broken), "exclude each other"},
		{append(enabled, "--peer.tls-config="+broken), "--peer.tls-config="},
		{append(enabled, "--peer.tls-config="+filepath.Join(dir, "none.yml")), "no such file"},
		{append(enabled, "--peer.insecure", "--peer.dns=mx+gdr.example"), "--peer.dns="},
		{append(enabled, "--peer.insecure", "--peer.listen-address="+taken.Addr().String()), "--peer.listen-address="},
		{append(enabled, "--peer.insecure", "--peer.listen-address=10480"), "--peer.listen-address="},
		{append(enabled, "--peer.insecure", "--peer.degree=-1"), "--peer.degree=-1"},
		{append(enabled, "--peer.insecure", "--peer.interval=7s"), "--peer.interval=7s"},
		{append(enabled, "--peer.insecure", "--peer.limit=0"), "--peer.limit=0"},
		{append(enabled, "--peer.insecure", "--peer.gpu-limit=NaN"), "--peer.gpu-limit=NaN"},
		{append(enabled, "--peer.insecure", "--peer.targets-port=70000"), "--peer.targets-port=70000"},
		{append(enabled, "--peer.insecure", "--peer.self=:::"), "--peer.self=:::"},
		{append(enabled, "--peer.insecure", "--peer.bytes=1KiB"), "--peer.bytes=1KiB"},
		{append(enabled, "--peer.insecure", "--peer.bytes-per-hour=1MiB"), "--peer.bytes-per-hour=1MiB"},
		{append(enabled, "--peer.insecure", "--no-collector.rdma"), "--no-collector.rdma"},
		{append(enabled, "--peer.insecure", "--replay=h100-8x8"), "replay"},
		{append(enabled, "--peer.insecure", "--peer.device=("), "--peer.device="},
		{[]string{"peer"}, "host"},
		{[]string{"peer", "node2"}, "--peer.tls-config"},
		{[]string{"peer", "--peer.insecure", "a:b:c"}, "a:b:c"},
		{[]string{"peer", "--peer.insecure", "--memories=disk", "node2"}, "--memories=disk"},
		{[]string{"peer", "--peer.insecure", "--rails=some", "node2"}, "--rails=some"},
		{[]string{"peer", "--peer.insecure", "--timeout=0s", "node2"}, "--timeout=0s"},
	} {
		r := runBriefly(t, c.args...)
		if r.code != exitUsage || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, c.says) {
			t.Errorf("%v: code %d, %q, want %q", c.args, r.code, r.stderr, c.says)
		}
	}
}

// A node where nobody listens is bad, and the answer says so in a table, in JSON and in
// a check.
func TestPeerUnreachable(t *testing.T) {
	nobody := freeAddress(t)
	r := runBriefly(t, "peer", "--peer.insecure", nobody)
	if r.code != exitProbeBad || !strings.Contains(r.stdout, "connection refused") || !strings.Contains(r.stdout, "2(n-1)/n") || r.stderr != "" {
		t.Errorf("code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	r = runBriefly(t, "peer", "--peer.insecure", "--output=json", nobody)
	var reports []status.PeerReport
	if err := json.Unmarshal([]byte(r.stdout), &reports); err != nil || len(reports) != 1 {
		t.Fatalf("%v: %s", err, r.stdout)
	}
	if f := reports[0].Failure; f == nil || f.Reason != session.ReasonUnreachable || f.Errno != "ECONNREFUSED" || f.Stage != session.StageDial {
		t.Errorf("%+v", f)
	}
	r = runBriefly(t, "check", "--peer.insecure", "--state.dir=", "--control.socket=", "--peer="+nobody, "--output=json")
	var check status.Check
	if err := json.Unmarshal([]byte(r.stdout), &check); err != nil {
		t.Fatalf("%v: %s%s", err, r.stdout, r.stderr)
	}
	line := lineOf(t, &check, "peers", "met/"+nobody)
	if line.Status != status.CheckWarning || !strings.Contains(line.Seen, "connection refused") || check.Counts.Warning == 0 {
		t.Errorf("%+v", line)
	}
}

// certificateNow is a certificate whose files are bad, and that ends.
type certificateNow struct {
	bad   atomic.Bool
	looks atomic.Int32
	ends  time.Time
}

func (c *certificateNow) Err() error {
	c.looks.Add(1)
	if c.bad.Load() {
		return errors.New("node.crt: no certificate")
	}
	return nil
}

func (c *certificateNow) Begins() time.Time  { return time.Time{} }
func (c *certificateNow) Expires() time.Time { return c.ends }

// What is wrong with a certificate is told once, and again when it has been well.
func TestPeerCertificate(t *testing.T) {
	for _, c := range []struct {
		name       string
		left       time.Duration
		bad        bool
		ends, lost int
	}{
		{"fine", 15 * 24 * time.Hour, false, 0, 0}, {"soon", time.Hour, false, 1, 0}, {"over", -time.Hour, false, 1, 0}, {"bad files", 15 * 24 * time.Hour, true, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := &lockedBuffer{}
			of := &certificateNow{ends: time.Now().Add(c.left)}
			of.bad.Store(c.bad)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				(&peers{logger: newLogger(zapcore.InfoLevel.String(), "logfmt", log)}).watchCertificate(ctx, of, time.Millisecond)
			}()
			looked := of.looks.Load()
			within(t, patience, "some looks", func() bool { return of.looks.Load() > looked+5 })
			cancel()
			<-ended
			if ends, lost := strings.Count(log.String(), "ends soon"), strings.Count(log.String(), "are not taken"); ends != c.ends || lost != c.lost {
				t.Errorf("told %d and %d times, want %d and %d:\n%s", ends, lost, c.ends, c.lost, log)
			}
		})
	}
}

// identityFiles are the files of a certificate that signs itself, in a directory with
// peer.yml.
type identityFiles struct {
	t     *testing.T
	dir   string
	wrote time.Time
}

func newIdentityFiles(t *testing.T) *identityFiles {
	t.Helper()
	f := &identityFiles{t: t, dir: t.TempDir(), wrote: time.Now()}
	f.write("peer.yml", []byte("cert_file: node.crt\nkey_file: node.key\nca_file: node.crt\nallowed_names: ['*.gpu.example']\n"))
	return f
}

func (f *identityFiles) config() string { return filepath.Join(f.dir, "peer.yml") }

// write puts a file in its place. A file system whose clock is coarse must not hide it.
func (f *identityFiles) write(name string, text []byte) {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	err := os.WriteFile(path, text, 0o600)
	if f.wrote = f.wrote.Add(time.Second); err == nil {
		err = os.Chtimes(path, f.wrote, f.wrote)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// make returns a certificate that began an hour ago, and its key.
func (f *identityFiles) make(ends time.Time) (certificate, key []byte) {
	f.t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{"node.gpu.example"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: ends, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &own.PublicKey, own)
	if err != nil {
		f.t.Fatal(err)
	}
	text, err := x509.MarshalECPrivateKey(own)
	if err != nil {
		f.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text})
}

// renew replaces both.
func (f *identityFiles) renew(ends time.Time) {
	f.t.Helper()
	certificate, key := f.make(ends)
	f.write("node.crt", certificate)
	f.write("node.key", key)
}

// What is seen of a certificate follows its files: one that ends, files that cannot be
// taken, of which the last good ones count, and a renewal.
func TestPeerCertificateFiles(t *testing.T) {
	files := newIdentityFiles(t)
	first, second := time.Now().Add(90*24*time.Hour).Truncate(time.Second), time.Now().Add(180*24*time.Hour).Truncate(time.Second)
	files.renew(first)
	identity, err := session.LoadIdentity(files.config())
	if err != nil {
		t.Fatal(err)
	}
	log := &lockedBuffer{}
	p := &peers{logger: newLogger(zapcore.InfoLevel.String(), "logfmt", log)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.watchCertificate(ctx, identity, 6*time.Millisecond)
	}()
	defer func() { cancel(); <-ended }()
	wait := func(what string, ends time.Time, state peer.CertificateState, taken bool) {
		t.Helper()
		within(t, patience, what, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			c := p.certificate
			return c != nil && c.Ends.Equal(ends) && time.Since(c.Begins).Round(time.Hour) == time.Hour && c.State(time.Now()) == state && (c.Text == "") == taken
		})
	}
	wait("the first one", first, peer.CertificateGood, true)
	certificate, key := files.make(second)
	files.write("node.crt", certificate)
	wait("a certificate without its key", first, peer.CertificateGood, false)
	files.write("node.key", key)
	wait("the renewed one", second, peer.CertificateGood, true)
	if err := os.Remove(filepath.Join(files.dir, "node.key")); err != nil {
		t.Fatal(err)
	}
	wait("a key that is gone", second, peer.CertificateGood, false)
	over := time.Now().Add(-time.Minute).Truncate(time.Second)
	files.renew(over)
	wait("one that has ended", over, peer.CertificateEnded, true)
	soon := time.Now().Add(8 * time.Minute).Truncate(time.Second)
	files.renew(soon)
	wait("one that ends soon", soon, peer.CertificateLate, true)
	if got := strings.Count(log.String(), "are not taken"); got < 2 {
		t.Errorf("told %d times:\n%s", got, log)
	}
}

// Metrics, document and page of the program say until when its certificate holds, and
// nothing of it without TLS.
func TestPeerCertificateShown(t *testing.T) {
	files := newIdentityFiles(t)
	ends := time.Now().Add(90 * 24 * time.Hour).Truncate(time.Second)
	files.renew(ends)
	list := write(t, "nodes.json", `[{"targets":["node1","node2"]}]`)
	for tls, args := range map[bool][]string{true: {"--peer.tls-config=" + files.config()}, false: {"--peer.insecure"}} {
		r := serveTree(t, onDisk(t, noRDMA()), append(args, "--peer.enabled", "--peer.listen-address=127.0.0.1:0", "--peer.targets="+list, "--state.dir=", "--control.socket=")...)
		waitUntil(t, "the list is read", func() bool { return r.get(t, "/metrics").has("gdr_peer_targets 2") })
		if tls {
			waitUntil(t, "the certificate is shown", func() bool { return r.get(t, "/metrics").has("gdr_peer_certificate_files_good 1") })
		}
		page := r.get(t, "/metrics")
		if has := page.has(fmt.Sprintf("gdr_peer_certificate_expiry_timestamp_seconds %v", float64(ends.Unix()))); has != tls || strings.Contains(page.body, "gdr_peer_certificate") != tls {
			t.Errorf("TLS %v: shown %v", tls, has)
		}
		var doc status.DocPeers
		if err := json.Unmarshal([]byte(r.get(t, pathPeers).body), &doc); err != nil || (doc.Certificate != nil) != tls || tls && (!doc.Certificate.Ends.Equal(ends) || doc.Certificate.State != "good") {
			t.Errorf("TLS %v: %v, %+v", tls, err, doc.Certificate)
		}
		if got := strings.Contains(r.get(t, "/").body, "The certificate of sessions holds for 89 days"); got != tls {
			t.Errorf("TLS %v: on the page %v", tls, got)
		}
		r.signal(t, os.Interrupt)
	}
}

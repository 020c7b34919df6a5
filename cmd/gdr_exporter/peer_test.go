package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"gdr_exporter/collector/status"
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
				watchCertificate(ctx, of, time.Millisecond, newLogger(zapcore.InfoLevel.String(), "logfmt", log))
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

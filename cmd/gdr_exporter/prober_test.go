package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"gdr_exporter/rdma/loopback/prober"
)

// TestEventLog: every kind of event has words of its own, and says where and why.
func TestEventLog(t *testing.T) {
	core, log := observer.New(zapcore.DebugLevel)
	tell := logEvent(zap.New(core))
	pair := prober.Pair{GPU: "0000:1b:00.0", Device: "mlx5_0", Port: 2}
	kinds := []prober.EventKind{
		prober.EventResult, prober.EventUnconfirmed, prober.EventWithdrawn, prober.EventSkip, prober.EventBroken, prober.EventHung, prober.EventState, prober.EventIsolation,
	}
	said := map[string]bool{}
	for _, kind := range kinds {
		tell(prober.Event{Kind: kind, Pair: pair, Text: "because", Err: fs.ErrPermission})
		entry := log.All()[log.Len()-1]
		if said[entry.Message] || entry.Message == string(kind) {
			t.Errorf("%s: %q", kind, entry.Message)
		}
		said[entry.Message] = true
		fields := entry.ContextMap()
		if fields["gpu"] != pair.GPU || fields["device"] != pair.Device || fields["port"] != int64(2) || fields["why"] != "because" || fields["error"] != fs.ErrPermission.Error() {
			t.Errorf("%s: %v", kind, fields)
		}
	}
	tell(prober.Event{Kind: prober.EventSkip, Pair: pair})
	tell(prober.Event{Kind: "new", Err: errors.New("x")})
	last := log.All()[log.Len()-2:]
	if said[last[0].Message] || len(last[0].Context) != 3 || last[1].Message != "new" || len(last[1].Context) != 1 {
		t.Errorf("%v", last)
	}
}

// TestMeasuringOff: without the collectors that it needs nothing is measured.
func TestMeasuringOff(t *testing.T) {
	for _, test := range []struct{ flag, want string }{
		{"--collector.gpu", ""}, {"--no-collector.gpu", ""}, {"--no-collector.probe", "--no-collector.probe"}, {"--no-collector.rdma", "--no-collector.rdma"},
	} {
		c, _, err := parseOnly(test.flag, "--state.dir=")
		if err != nil {
			t.Fatal(err)
		}
		d := newDaemon(c, zap.NewNop(), &heritage{})
		defer d.taker.Close()
		if off := d.measuringOff(); !strings.HasSuffix(off, test.want) || (off == "") != (test.want == "") || d.control.off != off {
			t.Errorf("%s: %q, the control says %q", test.flag, off, d.control.off)
		}
		if interval := d.prober.Status().Interval; (interval == 0) != (test.want != "") {
			t.Errorf("%s: every %v", test.flag, interval)
		}
	}
}

// TestOwnStateDir: the ports in the state file are remembered, one directory is for
// one daemon, and what cannot be kept is said once.
func TestOwnStateDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	core, log := observer.New(zapcore.DebugLevel)
	daemonOf := func(dir string) *daemon {
		return &daemon{config: &config{stateDir: dir}, logger: zap.New(core), unlockState: func() {}}
	}
	first := daemonOf(dir)
	if got := first.ownStateDir(); got != dir || log.Len() > 0 {
		t.Errorf("%q %v", got, log.All())
	}
	if got := daemonOf(dir).ownStateDir(); got != "" || log.Len() != 1 {
		t.Errorf("a second daemon: %q %v", got, log.All())
	}
	first.unlockState()
	if got := daemonOf(dir).ownStateDir(); got != dir || log.Len() != 1 {
		t.Errorf("after the first: %q %v", got, log.All())
	}
	if got := daemonOf("").ownStateDir(); got != "" || log.Len() != 1 {
		t.Errorf("none: %q %v", got, log.All())
	}
	if got := daemonOf(write(t, "file", "")).ownStateDir(); got != "" || log.Len() != 2 {
		t.Errorf("a file: %q %v", got, log.All())
	}

	state := &prober.State{Version: 1, Written: time.Now(), Ports: []prober.PortRecord{{Device: "mlx5_0", Port: 1}, {Device: "mlx5_1", Port: 2}}}
	if err := state.Write(dir); err != nil {
		t.Fatal(err)
	}
	want := []prober.Port{{Device: "mlx5_0", Number: 1}, {Device: "mlx5_1", Number: 2}}
	if got := slices.Collect(activePorts(dir)); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	for range activePorts(dir) { // must end when told to
		break
	}
	if err := os.WriteFile(filepath.Join(dir, "state.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := slices.Collect(activePorts(dir)); len(got) > 0 || len(slices.Collect(activePorts(""))) > 0 {
		t.Errorf("%v", got)
	}
}

func TestBoot(t *testing.T) {
	if len(bootID()) != 36 || !strings.Contains(kernelRelease(), ".") {
		t.Errorf("boot %q, kernel %q", bootID(), kernelRelease())
	}
}

package snapshot

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gdr_exporter/rdma/loopback/prober"
)

// TestProbeLedger: no file means no run yet; one that cannot be read means that
// nothing is known, and is counted.
func TestProbeLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "probe.json")
	taker := New(Options{Deadline: 10 * time.Second}).Probe(path).Taker()
	t.Cleanup(taker.Close)
	take := func() *Snapshot {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return taker.Take(ctx, func(string) bool { return true })
	}
	if s := take(); s.ProbeLedger() == nil || len(s.Errors) != 0 {
		t.Errorf("no file: %+v, %v", s.ProbeLedger(), s.Errors)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := take(); s.ProbeLedger() != nil || len(s.Errors) != 1 || s.Errors[0].Source != "probe.json" {
		t.Errorf("garbage: %+v, %v", s.ProbeLedger(), s.Errors)
	}
	if err := os.WriteFile(path, []byte(`{"version":1,"transferred_bytes":{"mlx5_0":5},"gpus":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if l := take().ProbeLedger(); l == nil || l.Transferred["mlx5_0"] != 5 {
		t.Errorf("%+v", l)
	}
}

// TestProber: what the prober shows is in a Snapshot that the collector probe was
// asked for, and in no other; a process without one has nothing.
func TestProber(t *testing.T) {
	shown := &prober.Status{Interval: time.Hour}
	taker := New(Options{Deadline: 10 * time.Second}).Prober(func() *prober.Status { return shown }).Taker()
	t.Cleanup(taker.Close)
	without := New(Options{Deadline: 10 * time.Second}).Taker()
	t.Cleanup(without.Close)
	for name, c := range map[string]struct {
		taker *Taker
		ask   string
		want  *prober.Status
	}{
		"asked": {taker, CollectorProbe, shown}, "not asked": {taker, CollectorRDMA, nil}, "none": {without, CollectorProbe, nil},
	} {
		if s := c.taker.Take(t.Context(), func(collector string) bool { return collector == c.ask }); s.Prober != c.want {
			t.Errorf("%s: %+v", name, s.Prober)
		}
	}
}

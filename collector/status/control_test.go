package status

import (
	"strings"
	"testing"
	"time"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 59*time.Second + 999*time.Millisecond: "59s", time.Minute: "1m0s", 90 * time.Minute: "1h30m", 25 * time.Hour: "1d1h",
	} {
		if got := span(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}

// TestControlLines: each condition of the daemon has its line.
func TestControlLines(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	until := now.Add(10 * time.Minute)
	for name, test := range map[string]struct {
		status prober.Status
		set    func(*Control)
		want   []string
	}{
		"at rest": {
			prober.Status{Interval: time.Hour, Isolation: prober.InProcess}, func(c *Control) { c.Released = true },
			[]string{"every 1h0m when idle", "own process", "none is open", "no pair is to be measured"},
		},
		"on demand": {prober.Status{}, func(*Control) {}, []string{"on demand only"}},
		"off":       {prober.Status{}, func(c *Control) { c.Off = "--no-collector.probe" }, []string{"off; --no-collector.probe"}},
		"isolated": {
			prober.Status{Isolation: prober.InChild, IsolationReason: "2 restarts within an hour"}, func(*Control) {}, []string{"in child processes: 2 restarts"},
		},
		"quiesced": {
			prober.Status{}, func(c *Control) { c.QuiescedUntil = &until }, []string{"quiesced for another 10m0s, until 2026-01-02 03:14:05 UTC"},
		},
		"held": {
			prober.Status{}, func(c *Control) {
				c.OpenFiles, c.Problem, c.Restart = []string{"/dev/nvidiactl"}, "NVML: hangs", &ControlRestart{"quiesced", "reading mlx5_0"}
			},
			[]string{"open: /dev/nvidiactl; NVML: hangs; a fresh start would close them, but would wait for what hangs: reading mlx5_0", "a fresh start is wanted: quiesced"},
		},
	} {
		c := NewControl(&test.status)
		test.set(c)
		var b strings.Builder
		if err := c.WriteTable(&b, now); err != nil {
			t.Fatal(err)
		}
		for _, want := range test.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: no %q in\n%s", name, want, b.String())
			}
		}
	}
}

// TestControlPrintable: no name or text of a driver reaches the terminal as it is.
func TestControlPrintable(t *testing.T) {
	evil := "\x1b[31m\n"
	completed := &prober.Completed{Depth: prober.DepthFull, Judgement: loopback.Judgement{Outcome: loopback.Failed, Reasons: []string{evil}}}
	pair := prober.Pair{GPU: "0000:1b:00.0", Device: evil, Port: 1}
	status := prober.Status{IsolationReason: evil, Pairs: []prober.PairStatus{{Candidate: prober.Candidate{Pair: pair}, Full: completed, Withdrawn: evil}}}
	c := NewControl(&status)
	c.OpenFiles, c.Problem = []string{evil}, evil
	state := &prober.State{
		Written: time.Now(), BootID: evil, Pairs: []prober.PairState{{Candidate: prober.Candidate{Pair: pair}, Full: completed}},
		Baselines: []*prober.Baseline{nil, {Pair: pair, Identity: prober.Identity{Driver: evil, Firmware: evil, Kernel: evil}}},
		Ports:     []prober.PortRecord{{Device: evil}},
	}
	var b strings.Builder
	now := time.Now()
	for _, err := range []error{
		c.WriteTable(&b, now), NewAttempts([]prober.Attempt{{Pair: pair, Text: evil}}).WriteTable(&b), WriteState(&b, state, now), WriteState(&b, &prober.State{}, now),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if strings.Contains(b.String(), "\x1b") || !strings.Contains(b.String(), "Nothing is kept") {
		t.Errorf("%q", b.String())
	}
}

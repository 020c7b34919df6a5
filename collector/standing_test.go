package collector

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// benchHost is a host with one pair, idle.
type benchHost struct {
	mu      sync.Mutex
	driver  string
	blocked prober.Reason
}

var benchPair = prober.Pair{GPU: "0000:1b:00.0", Device: "mlx5_0", Port: 1}

func (h *benchHost) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

func (h *benchHost) Look(context.Context) prober.Sighting {
	h.mu.Lock()
	defer h.mu.Unlock()
	return prober.Sighting{
		Time:    time.Now(),
		Pairs:   sysread.Some([]prober.Candidate{{Pair: benchPair, Distance: "PIX", Direct: true}}),
		Ports:   map[prober.Port]prober.PortSighting{{Device: benchPair.Device, Number: 1}: {State: sysread.Some(4)}},
		Devices: sysread.Some([]string{benchPair.Device}),
		GPUs:    sysread.Some(map[string]prober.GPUSighting{benchPair.GPU: {Usable: sysread.Some(true)}}),
		Driver:  sysread.Some(h.driver), Peermem: sysread.Some("580.95"),
	}
}

func (h *benchHost) Load(context.Context, prober.Pair) prober.Load {
	none := sysread.Some[uint64](0)
	return prober.Load{Time: time.Now(), Sent: none, Received: none, Rate: sysread.Some(50e9), GPU: sysread.Some(0.0)}
}

func (h *benchHost) Processes(context.Context, string) ([]int, error) { return nil, nil }

func (h *benchHost) Blocked(prober.Pair, uint64) (prober.Reason, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.blocked, nil
}

// benchRunner makes runs that find a ratio: below 0 they break, 0 is memory that
// cannot be registered.
type benchRunner struct {
	mu    sync.Mutex
	ratio float64
}

func (r *benchRunner) Run(_ context.Context, order prober.Order) prober.Ending {
	r.mu.Lock()
	ratio := r.ratio
	r.mu.Unlock()
	result := loopback.Result{
		Device: order.Device, Port: 1, Method: loopback.MethodPeermem, NCCLMethod: loopback.MethodPeermem,
		GPU:           sysread.Some(loopback.GPUFacts{GPUDirectRDMA: true}),
		Registrations: []loopback.Registration{{Method: loopback.MethodPeermem}, {Method: loopback.MethodDMABuf, Err: &loopback.Error{Call: "ibv_reg_dmabuf_mr", Errno: syscall.EOPNOTSUPP}}},
	}
	host := loopback.PathResult{Path: loopback.PathHost, BytesPerSecond: sysread.Some(40e9)}
	gpu := loopback.PathResult{Path: loopback.PathGPU, BytesPerSecond: sysread.Some(ratio * 40e9), Ratio: sysread.Some(ratio)}
	switch {
	case ratio < 0:
		host = loopback.PathResult{Path: loopback.PathHost, Stage: loopback.StageWarmUp, Err: &loopback.Error{Call: "completion", Status: 12}}
		gpu = loopback.PathResult{Path: loopback.PathGPU, Stage: loopback.StageWarmUp, Err: &loopback.Error{Call: "completion", Status: 12}}
	case ratio == 0:
		result.Method, result.Registrations[0].Err = "", &loopback.Error{Call: "ibv_reg_mr", Errno: syscall.EFAULT}
		gpu = loopback.PathResult{Path: loopback.PathGPU, Stage: loopback.StageRegister, Err: loopback.ErrNotRegistered}
	}
	result.Paths = []loopback.PathResult{host, gpu}
	return prober.Ending{Result: result}
}

// standingBench is a prober whose page is looked at.
type standingBench struct {
	*prober.Prober
	host   *benchHost
	runner *benchRunner
}

// find makes a run that finds a ratio.
func (b *standingBench) find(t *testing.T, ratio float64) {
	t.Helper()
	b.runner.mu.Lock()
	b.runner.ratio = ratio
	b.runner.mu.Unlock()
	if _, err := b.ProbeNow(t.Context(), prober.Request{}); err != nil {
		t.Error(err)
	}
}

// page is what the page says of the pair: family, other labels, value; of times
// how long ago.
func (b *standingBench) page(t *testing.T) string {
	t.Helper()
	synctest.Wait()
	p := newPage()
	showProbe(p, &snapshot.Snapshot{Prober: b.Status()})
	var lines []string
	for _, family := range p.gather() {
		name := strings.TrimPrefix(family.GetName(), "gdr_probe_")
		for _, m := range family.Metric {
			var labels []string
			ours := false
			for _, label := range m.Label {
				switch label.GetName() {
				case "gpu_address", "device":
					ours = true
				case "path", "depth", "reason", "method", "errno", "outcome":
					labels = append(labels, label.GetValue())
				}
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if shown, is := strings.CutSuffix(name, "_timestamp_seconds"); is {
				age := time.Since(time.UnixMilli(int64(value * 1000))).Round(time.Minute)
				lines = append(lines, strings.Join(slices.Concat([]string{shown}, labels, []string{age.String(), "ago"}), " "))
			} else if ours && value != 0 {
				lines = append(lines, strings.Join(slices.Concat([]string{name}, labels, []string{fmt.Sprint(value)}), " "))
			}
		}
	}
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, "quiesced") })
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// with is a page of a pair with a rate: the run's outcome and ratio, its age, and
// what else the page has.
func with(outcome string, ratio float64, age string, more ...string) string {
	lines := append([]string{
		"bytes_per_second host 4e+10", fmt.Sprintf("bytes_per_second gpu %g", ratio*40e9), fmt.Sprintf("ratio gpu %g", ratio),
		"info peermem " + outcome + " 1", "result full " + age, "result register " + age, "registered peermem 1", "registration_error_info EOPNOTSUPP dmabuf 1",
	}, more...)
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestStandingPages: DESIGN's rules of what stands, as the page has them before
// and after.
func TestStandingPages(t *testing.T) {
	const h0 = "0s ago"
	good := with("fine", 0.96875, "1m0s ago", "last_attempt 1m0s ago", "last_success full 1m0s ago", "last_success register 1m0s ago")
	slow := with("slow", 0.5, "1m0s ago", "last_attempt 1m0s ago")
	block := func(_ *testing.T, b *standingBench) { b.host.set(func() { b.host.blocked = prober.ReasonLibrary }) }
	rules := []struct {
		name   string
		ratio  float64 // that stands before
		before string
		happen func(t *testing.T, b *standingBench)
		after  string
		wait   time.Duration
	}{
		{name: "skipped: all stays, with its age and why", ratio: 0.96875, before: good, happen: block, wait: 2 * time.Hour,
			after: with("fine", 0.96875, "2h1m0s ago", "last_attempt 2h1m0s ago", "last_success full 2h1m0s ago", "last_success register 2h1m0s ago", "skipped no_library 1")},
		{name: "failed: the rates go at once, the result stands", ratio: 0.96875, before: good, happen: func(t *testing.T, b *standingBench) { b.find(t, -1) },
			after: strings.Join([]string{"info peermem fine 1", "last_attempt 0s ago", "last_success full 1m0s ago", "last_success register 1m0s ago", "registered peermem 1",
				"registration_error_info EOPNOTSUPP dmabuf 1", "result full 1m0s ago", "result register 1m0s ago", "withdrawn_info failed 1"}, "\n")},
		{name: "worse once: all stays, and is to be confirmed", ratio: 0.96875, before: good, happen: func(t *testing.T, b *standingBench) { b.find(t, 0.5); block(t, b) },
			after: with("fine", 0.96875, "1m0s ago", "last_attempt 0s ago", "last_success full 1m0s ago", "last_success register 1m0s ago", "unconfirmed 1")},
		{name: "worse, confirmed by three repetitions", ratio: 0.96875, before: good, happen: func(t *testing.T, b *standingBench) { b.find(t, 0.5) }, wait: 3 * time.Minute,
			after: with("slow", 0.5, "2m0s ago", "last_attempt 2m0s ago", "last_success full 4m0s ago", "last_success register 4m0s ago")},
		{name: "better: at once", ratio: 0.5, before: slow, happen: func(t *testing.T, b *standingBench) { b.find(t, 0.96875) },
			after: with("fine", 0.96875, h0, "last_attempt 0s ago", "last_success full 0s ago", "last_success register 0s ago")},
		{name: "invalidated by another driver", ratio: 0.96875, before: good, happen: func(t *testing.T, b *standingBench) {
			block(t, b)
			b.host.set(func() { b.host.driver = "590.1" })
			b.Saw(b.host.Look(t.Context()))
		}, wait: time.Minute,
			after: "last_attempt 2m0s ago\nlast_success full 2m0s ago\nlast_success register 2m0s ago\nskipped no_library 1\nwithdrawn_info driver_changed 1"},
		{name: "aged: a good one goes", ratio: 0.96875, before: good, happen: block, wait: 25 * time.Hour,
			after: "last_attempt 25h1m0s ago\nlast_success full 25h1m0s ago\nlast_success register 25h1m0s ago\nskipped no_library 1\nwithdrawn_info aged 1"},
		{name: "aged: a bad one stays", ratio: 0.5, before: slow, happen: block, wait: 250 * time.Hour,
			after: with("slow", 0.5, "250h1m0s ago", "last_attempt 250h1m0s ago", "skipped no_library 1")},
		{name: "GPU memory not registrable, confirmed", ratio: 0.96875, before: good, happen: func(t *testing.T, b *standingBench) { b.find(t, 0) }, wait: 3 * time.Minute,
			after: "bytes_per_second host 4e+10\ninfo  failed 1\nlast_attempt 2m0s ago\nlast_success full 4m0s ago\nlast_success register 4m0s ago\n" +
				"registration_error_info EFAULT peermem 1\nregistration_error_info EOPNOTSUPP dmabuf 1\nresult full 2m0s ago\nresult register 2m0s ago"},
	}
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &standingBench{host: &benchHost{driver: "580.95"}, runner: &benchRunner{}}
				b.Prober = prober.New(prober.Options{Host: b.host, Runner: b.runner, Interval: time.Hour, FirstWithin: 100 * time.Hour})
				ctx, cancel := context.WithCancel(t.Context())
				var ended sync.WaitGroup
				ended.Go(func() { b.Run(ctx) })
				defer ended.Wait()
				defer cancel()
				synctest.Wait()
				b.find(t, rule.ratio)
				for b.Status().Pairs[0].Unconfirmed != nil {
					time.Sleep(time.Second)
				}
				time.Sleep(time.Until(b.Status().Pairs[0].LastAttempt.Add(time.Minute)))
				if got := b.page(t); got != rule.before {
					t.Errorf("before:\n%s\nwant\n%s", got, rule.before)
				}
				rule.happen(t, b)
				time.Sleep(rule.wait)
				if got := b.page(t); got != rule.after {
					t.Errorf("after:\n%s\nwant\n%s", got, rule.after)
				}
			})
		})
	}
}

package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/status"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/rdmatest"
)

// loadedHost is a host with so much utilisation of its GPUs, and traffic on one device.
type loadedHost struct {
	gpu     float64
	traffic string // device whose port is full
	began   time.Time
}

func (h *loadedHost) Look(context.Context) prober.Sighting { return prober.Sighting{} }

func (h *loadedHost) Processes(context.Context, string) ([]int, error) { return nil, nil }

func (h *loadedHost) Blocked(prober.Pair, uint64) (prober.Reason, error) {
	return prober.ReasonNone, nil
}

func (h *loadedHost) Load(_ context.Context, pair prober.Pair) prober.Load {
	const rate = 50e9
	load := prober.Load{Time: time.Now(), Rate: sysread.Some[float64](rate), GPU: sysread.Some(h.gpu), Sent: sysread.Some[uint64](0), Received: sysread.Some[uint64](0)}
	if pair.Device == h.traffic {
		load.Sent = sysread.Some(uint64(rate * time.Since(h.began).Seconds()))
	}
	return load
}

// TestIdleGate: a busy pair is not judged, and no run of it is begun; the others are
// measured.
func TestIdleGate(t *testing.T) {
	t.Parallel()
	c, _, err := parseOnly("probe", "--if-idle", "--lock="+t.TempDir()+"/lock", "--path.sysfs="+onDisk(t, noRDMA())+"/sys")
	if err != nil || !c.probe.ifIdle {
		t.Fatal(err)
	}
	pairs := []probePair{{hostGPU, "mlx5_0", affinity.PIX}, {hostGPU, "mlx5_1", affinity.PIX}, {"", "mlx5_2", affinity.Unknown}}
	gate := c.gateOf(t.Context(), &loadedHost{traffic: "mlx5_0", began: time.Now()}, pairs)
	var stages []loopback.Stage
	reports := make([]status.ProbeReport, 0, len(pairs))
	for _, pair := range pairs {
		begun := 0
		spec := c.probeSpec(pair, nil, func(loopback.Stage, loopback.Path) { begun++ })
		result := gate(t.Context(), pair, spec)
		reports = append(reports, status.NewProbeReport(pair.gpu, pair.distance, &result))
		stages = append(stages, result.Stages[len(result.Stages)-1].Stage)
		if (begun > 0) != (pair.device != "mlx5_0") {
			t.Errorf("%s: a run was begun: %d stages", pair.device, begun)
		}
	}
	if stages[0] != loopback.StageGate || reports[0].Outcome != loopback.NotJudged || !strings.Contains(strings.Join(reports[0].Reasons, " "), "nic_busy") {
		t.Errorf("busy: %+v", reports[0])
	}
	if slices.ContainsFunc(reports[1:], func(r status.ProbeReport) bool { return strings.Contains(strings.Join(r.Reasons, " "), "idle") }) {
		t.Errorf("idle: %+v", reports[1:])
	}
	if err := probeExit(t.Context(), reports[:1]); err != exitError(exitProbeNotJudged) { //nolint:errorlint // it is the value
		t.Errorf("%v", err)
	}
}

// TestIdleLoadOfHostMemory: a pair without GPU has no utilisation that could be unknown.
func TestIdleLoadOfHostMemory(t *testing.T) {
	t.Parallel()
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
	c := &config{sysfs: onDisk(t, tree) + "/sys", deadline: patience}
	load := newProberHost(c, c.schedule.pairs.choice(), nil, nil).Load(t.Context(), prober.Pair{Device: "mlx5_0", Port: 1})
	if load.GPU != sysread.Some(0.0) || !load.Sent.Known || !load.Rate.Known {
		t.Errorf("%+v", load)
	}
}

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// measure makes a run of a pair, or says why there is none.
type measure func(ctx context.Context, pair probePair, spec loopback.Spec) loopback.Result

// noGate measures whatever the load.
func (*config) noGate(ctx context.Context, _ probePair, spec loopback.Spec) loopback.Result {
	return loopback.Run(ctx, spec)
}

// idleGate looks whether pairs are idle, with the daemon's eyes, and returns what
// measures those that are. done lets go of what was looked with.
func (c *config) idleGate(ctx context.Context, pairs []probePair) (gate measure, done func()) {
	builder := snapshot.New(snapshot.Options{Deadline: c.deadline})
	nvml := c.addGPU(builder, c.origin())
	taker := builder.Taker()
	look, cancel := context.WithTimeout(ctx, c.deadline)
	defer cancel()
	taker.Take(look, func(name string) bool { return name == snapshot.CollectorGPU }) // NVML is asked for utilisation once it is up
	host := newProberHost(c, snapshot.PairChoice{}, taker, nvml)
	return c.gateOf(ctx, host, pairs), taker.Close
}

// gateOf is idleGate on a host.
func (c *config) gateOf(ctx context.Context, host prober.Host, pairs []probePair) measure {
	at := func(pair probePair) prober.Pair {
		return prober.Pair{GPU: pair.gpu, Device: pair.device, Port: c.probe.port}
	}
	watch := make([]prober.Pair, len(pairs))
	for i, pair := range pairs {
		watch[i] = at(pair)
	}
	idle := prober.WatchIdle(ctx, host, watch)
	return func(ctx context.Context, pair probePair, spec loopback.Spec) loopback.Result {
		if busy := idle.Busy(ctx, at(pair)); busy != prober.ReasonNone {
			return notMeasured(spec, busy)
		}
		guarded, came := idle.Guard(ctx, at(pair), os.Getpid())
		result := loopback.Run(guarded, spec)
		if came() {
			return notMeasured(spec, prober.ReasonNewProcess)
		}
		return result
	}
}

// notMeasured is the result of a run that was not made, or that says nothing since it
// was ended.
func notMeasured(spec loopback.Spec, reason prober.Reason) loopback.Result {
	err := fmt.Errorf("not idle: %s", reason)
	return loopback.Result{
		Device: spec.Device, Port: spec.Port, Started: time.Now(), NUMANode: -1,
		Stages: []loopback.StageResult{{Stage: loopback.StageGate, Err: err}},
	}
}

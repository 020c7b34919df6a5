package main

import (
	"context"
	"net/http"
	"time"

	"gdr_exporter/collector/status"
	"gdr_exporter/rdma/loopback/prober"
)

// measure measures the pairs now: by the running exporter, which knows what else it
// does to them, or else as it would.
func (x *inspection) measure(ctx context.Context) {
	x.progress.show("measuring")
	if asked, err := x.askDaemon(ctx); asked {
		x.noteUnmeasured(err)
		return
	}
	x.noteUnmeasured(x.measureHere(ctx))
}

// askDaemon has the running exporter measure. asked is false if none answers.
func (x *inspection) askDaemon(ctx context.Context) (asked bool, err error) {
	if x.config.socket == "" {
		return false, nil
	}
	client := newClient(x.config.socket)
	var answer status.Attempts
	if err := client.call(ctx, http.MethodPost, pathProbe, nil, &answer); err != nil {
		return !isAbsent(err), err
	}
	x.tried = &answer
	if results, from := x.config.results(ctx, x.snapshot); results != nil {
		x.results, x.from = results, from
	}
	return true, nil
}

// measureHere measures with the daemon's own prober, through its gates and under its
// lock, each run in a process of its own. It keeps nothing.
func (x *inspection) measureHere(ctx context.Context) error {
	c, s := x.config, &x.config.schedule
	host := newProberHost(c, s.pairs.choice(), x.taker, x.nvml)
	host.remember(activePorts(c.stateDir))
	p := prober.New(prober.Options{
		Host: host, Runner: c.runner(), MaxAge: s.maxAge, Isolation: prober.InChild, Limits: s.limits, Spec: c.scheduledSpec(),
		LockPath: s.lock, MinFree: uint64(s.minFree), Kernel: kernelRelease(), BootID: bootID(),
	})
	p.Saw(host.sighting(x.snapshot))
	running, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(running)
	}()
	attempts, err := p.ProbeNow(ctx, prober.Request{})
	for range checkRepeats {
		again := unconfirmed(p.Status())
		if err != nil || len(again) == 0 {
			break
		}
		for _, pair := range again {
			if _, err = p.ProbeNow(ctx, prober.Request{GPU: pair.GPU, Device: pair.Device}); err != nil {
				break
			}
		}
	}
	stop()
	select {
	case <-ended:
	case <-time.After(proberGrace):
	}
	x.tried = status.NewAttempts(attempts)
	x.results, x.from = keptResults(x.results, p.Status()), fromHere(x.from)
	x.look(context.WithoutCancel(ctx)) // a run may have taken long
	return err
}

// fromHere says where results are from after measuring here.
func fromHere(before string) string {
	if before == "" {
		return "this command"
	}
	return "this command, and where it measured nothing from " + before
}

// unconfirmed are the pairs whose last result would worsen what is known, and is to
// be repeated before it counts.
func unconfirmed(s *prober.Status) []prober.Pair {
	var pairs []prober.Pair
	for i := range s.Pairs {
		if s.Pairs[i].Unconfirmed != nil {
			pairs = append(pairs, s.Pairs[i].Pair)
		}
	}
	return pairs
}

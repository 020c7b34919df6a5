package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"gdr_exporter/rdma/peer/schedule"
)

// TestCost: what a node does and sends is the same in a cluster of any size, and
// coverage takes what the number of nodes makes it take.
func TestCost(t *testing.T) {
	options, load := schedule.Defaults(), defaultLoad()
	for _, nodes := range []int{8, 128, 1000, 10000} {
		if nodes <= 1000 { // 50 million pairs take long on a slow machine; the command plays them
			if err := everyPair(nodes); err != nil {
				t.Error(err)
			}
		}
		r, err := play(nodes, options, load)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", r)
		if r.Pings != 120 || r.Measurements != 4 {
			t.Errorf("%d nodes: %v pings and %v measurements an hour", nodes, r.Pings, r.Measurements)
		}
		if pings := time.Duration(nodes/2) * time.Minute; r.PingCoverage > pings || r.PingCoverage < pings-2*time.Minute {
			t.Errorf("%d nodes: pings of all pairs take %v, not %v", nodes, r.PingCoverage, pings)
		}
		if rounds := time.Duration((nodes-1+3)/4) * time.Hour; r.BandwidthCoverage > rounds || r.BandwidthCoverage < rounds-time.Hour {
			t.Errorf("%d nodes: bandwidth of all pairs takes %v, not %v", nodes, r.BandwidthCoverage, rounds)
		}
		if want := float64(nodes*2) / 60; math.Abs(r.MeanAtOnce-want) > 1e-9 || nodes >= 1000 && float64(r.MostAtOnce) > want*2.5 {
			t.Errorf("%d nodes: %v pairs at once, on average %v", nodes, r.MostAtOnce, r.MeanAtOnce)
		}
		// 4 times 8 rails of 6 times 128 MiB an hour, and 120 pings.
		want := (4*8*6*float64(128<<20) + 120*8*float64(load.Ping)) / 3600
		if math.Abs(r.NodeBytes-want) > 1 || math.Abs(r.ClusterBytes-want*float64(nodes)) > float64(nodes) {
			t.Errorf("%d nodes: a node sends %v a second, all send %v", nodes, r.NodeBytes, r.ClusterBytes)
		}
		if r.Busy <= 0 || r.Busy > 0.0001 {
			t.Errorf("%d nodes: ports are busy for %v of the time", nodes, r.Busy)
		}
	}
}

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(&out, "1, 3", schedule.Defaults(), defaultLoad()); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 4 || !strings.Contains(out.String(), "| 1 | 0 an hour | never |") {
		t.Error(out.String())
	}
	for _, sizes := range []string{"", "x", "0", "-1", "1000000"} {
		if err := run(&out, sizes, schedule.Defaults(), defaultLoad()); err == nil {
			t.Errorf("%q nodes: no error", sizes)
		}
	}
	if err := run(&out, "8", schedule.Options{}, defaultLoad()); err == nil {
		t.Error("no options: no error")
	}
	if err := run(&out, "8", schedule.Defaults(), Load{}); err == nil {
		t.Error("no load: no error")
	}
}

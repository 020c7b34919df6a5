// Command simulate plays the schedule of peers for clusters of some sizes and prints
// what that costs and how long it takes: the table of README.md.
//
//	go run ./rdma/peer/simulate
//
// Times, partners and how many pairs are at it together come out of the schedule as
// it is in the exporter. What one measurement moves is reckoned, not measured: see
// the flags. Nothing here touches a network.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"gdr_exporter/rdma/peer/schedule"
)

func main() {
	options, load := schedule.Defaults(), defaultLoad()
	sizes := flag.String("nodes", "8,128,1000,10000", "sizes of clusters")
	flag.DurationVar(&options.Round, "round", options.Round, "length of a round")
	flag.IntVar(&options.Degree, "degree", options.Degree, "neighbours of a node a round")
	flag.DurationVar(&options.Frame, "frame", options.Frame, "length of a frame")
	flag.IntVar(&options.Pings, "pings", options.Pings, "pings a frame")
	flag.IntVar(&load.Rails, "rails", load.Rails, "NIC ports of a node that are measured")
	flag.Float64Var(&load.Gbps, "gbps", load.Gbps, "rate of a port, 10^9 bits per second")
	flag.Int64Var(&load.Bytes, "bytes", load.Bytes, "bytes moved per rail, memory and direction")
	flag.Float64Var(&load.Staged, "staged", load.Staged, "rate of staged writes, as a share of the port's")
	flag.Parse()
	if err := run(os.Stdout, *sizes, options, load); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, sizes string, options schedule.Options, load Load) error {
	if err := load.check(); err != nil {
		return err
	}
	fmt.Fprintln(out, "| nodes | pings of a node | all pairs pinged after | bandwidth of a node | all pairs measured after | pairs measured at once, mean and most | sent by a node, mean | sent by all nodes, mean | a port carries test traffic |")
	fmt.Fprintln(out, "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	for text := range strings.SplitSeq(sizes, ",") {
		nodes, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("size of a cluster %q: %w", text, err)
		}
		if err := everyPair(nodes); err != nil {
			return err
		}
		r, err := play(nodes, options, load)
		if err != nil {
			return fmt.Errorf("%d nodes: %w", nodes, err)
		}
		fmt.Fprintf(out, "| %d | %.0f an hour | %s | %.1f an hour | %s | %.1f, %d | %s/s | %s/s | %.4f %% of the time |\n",
			r.Nodes, r.Pings, span(r.PingCoverage), r.Measurements, span(r.BandwidthCoverage), r.MeanAtOnce, r.MostAtOnce,
			bytes(r.NodeBytes), bytes(r.ClusterBytes), 100*r.Busy)
	}
	return nil
}

// span writes a time as one reads it, to two or three digits.
func span(d time.Duration) string {
	switch {
	case d == 0:
		return "never"
	case d < 2*time.Hour:
		return fmt.Sprintf("%.3g min", d.Minutes())
	case d < 72*time.Hour:
		return fmt.Sprintf("%.3g h", d.Hours())
	}
	return fmt.Sprintf("%.3g days", d.Hours()/24)
}

func bytes(n float64) string {
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		if n < 1000 {
			return fmt.Sprintf("%.3g %s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.3g TB", n)
}

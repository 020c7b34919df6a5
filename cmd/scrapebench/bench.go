package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"gdr_exporter/rdma/rdmatest"
)

// Spread is the median of several rounds, with the lowest and the highest.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(values))
	median := s[len(s)/2]
	if len(s)%2 == 0 {
		median = (s[len(s)/2-1] + s[len(s)/2]) / 2
	}
	return Spread{median, s[0], s[len(s)-1]}
}

// Result is what was measured of one exporter. Times are per scrape.
type Result struct {
	Name       string    `json:"name"`
	CPU        Spread    `json:"cpu_seconds"`
	Wall       Spread    `json:"wall_seconds"`
	Ratio      *Spread   `json:"cpu_ratio,omitempty"` // to node_exporter, round by round
	RSS        int64     `json:"rss_bytes"`
	PeakRSS    int64     `json:"peak_rss_bytes"`
	Samples    int       `json:"samples"`
	PlainBytes int64     `json:"plain_bytes"`
	GzipBytes  int64     `json:"gzip_bytes"`
	CPURounds  []float64 `json:"cpu_rounds_seconds"`
	WallRounds []float64 `json:"wall_rounds_seconds"`
}

// BenchReport is the outcome of a comparison.
type BenchReport struct {
	Devices  int      `json:"devices"`
	Scrapes  int      `json:"scrapes_per_round"`
	Rounds   int      `json:"rounds"`
	Gzip     bool     `json:"gzip"`
	MaxRatio float64  `json:"max_ratio"`
	Results  []Result `json:"results"`
}

// bench compares gdr_exporter with node_exporter.
func bench(ctx context.Context, o options, out io.Writer) error {
	tree, remove, err := writeNode(o.devices)
	if err != nil {
		return err
	}
	defer remove()
	processes, stop, err := o.startAll(ctx, tree)
	defer stop()
	if err != nil {
		return err
	}
	results, err := measure(ctx, processes, o.rounds, o.scrapes, o.gzip)
	if err != nil {
		return err
	}
	compare(results)
	report := BenchReport{o.devices, o.scrapes, o.rounds, o.gzip, o.maxRatio, results}
	if err := printBench(out, o.json, report); err != nil {
		return err
	}
	if ratio := results[1].Ratio.Median; o.maxRatio > 0 && ratio > o.maxRatio {
		return fmt.Errorf("%w: CPU ratio %.3f is above %g", errJudged, ratio, o.maxRatio)
	}
	return nil
}

// writeNode writes a node with n devices to a temporary directory.
func writeNode(n int) (dir string, remove func(), err error) {
	if dir, err = rdmatest.MkdirTemp(); err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	if err = rdmatest.NodeN(n).WriteTo(dir); err != nil {
		remove()
	}
	return dir, remove, err
}

// startAll starts node_exporter and three ways of running gdr_exporter, of which the first one is judged.
func (o options) startAll(ctx context.Context, tree string) (all []*process, stop func(), err error) {
	stop = func() {
		for _, p := range all {
			p.stop()
		}
	}
	add := func(p *process, err error) error {
		if err == nil {
			all = append(all, p)
		}
		return err
	}
	if err = add(o.startNodeExporter(ctx, tree)); err != nil {
		return all, stop, err
	}
	for _, way := range []struct {
		name string
		args []string
	}{
		{"gdr_exporter", []string{"--scrape.max-age=0s"}},
		{"gdr_exporter, slow group every time", []string{"--scrape.max-age=0s", "--scrape.slow-interval=0s"}},
		{"gdr_exporter, reuse on", nil},
	} {
		p, err := o.startExporter(ctx, way.name, tree, way.args...)
		if err := add(p, err); err != nil {
			return all, stop, err
		}
	}
	return all, stop, nil
}

// measure makes rounds of scrapes of each process in alternation, so that whatever else the machine does meets all of them.
func measure(ctx context.Context, processes []*process, rounds, scrapes int, compressed bool) ([]Result, error) {
	results := make([]Result, len(processes))
	for i, p := range processes {
		results[i].Name = p.name
		if _, _, err := p.round(ctx, max(scrapes/10, 3), compressed); err != nil { // warm up
			return nil, err
		}
	}
	for range rounds {
		for i, p := range processes {
			cpu, wall, err := p.round(ctx, scrapes, compressed)
			if err != nil {
				return nil, err
			}
			results[i].CPURounds = append(results[i].CPURounds, cpu.Seconds())
			results[i].WallRounds = append(results[i].WallRounds, wall.Seconds())
		}
	}
	for i, p := range processes {
		if err := p.describe(ctx, &results[i]); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// round makes n scrapes and returns CPU and wall time of one.
func (p *process) round(ctx context.Context, n int, compressed bool) (cpu, wall time.Duration, err error) {
	before, err := p.cpu()
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	for range n {
		if _, err := p.client.scrape(ctx, compressed); err != nil {
			return 0, 0, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	wall = time.Since(start)
	after, err := p.cpu()
	return (after - before) / time.Duration(n), wall / time.Duration(n), err
}

// describe adds what needs no rounds.
func (p *process) describe(ctx context.Context, r *Result) error {
	r.CPU, r.Wall = spread(r.CPURounds), spread(r.WallRounds)
	page, err := p.client.page(ctx, accept, false)
	compressed, err2 := p.client.scrape(ctx, true)
	rss, peak, err3 := p.memory()
	r.Samples, r.PlainBytes, r.GzipBytes = len(samples(page)), int64(len(page)), compressed
	r.RSS, r.PeakRSS = rss, peak
	return errors.Join(err, err2, err3)
}

// compare adds each result's ratio to the first.
func compare(results []Result) {
	for i := 1; i < len(results); i++ {
		var ratios []float64
		for round, cpu := range results[i].CPURounds {
			ratios = append(ratios, cpu/results[0].CPURounds[round])
		}
		ratio := spread(ratios)
		results[i].Ratio = &ratio
	}
}

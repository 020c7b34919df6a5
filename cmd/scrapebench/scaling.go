package main

import (
	"context"
	"fmt"
	"io"
)

// The numbers of devices whose cost is compared: a usual node, and 32 times as many.
const (
	fewDevices  = 8
	manyDevices = 256
)

// ScalingReport is the outcome of a comparison of two numbers of devices.
type ScalingReport struct {
	Scrapes int     `json:"scrapes_per_round"`
	Rounds  int     `json:"rounds"`
	Few     Result  `json:"few"`
	Many    Result  `json:"many"`
	Factor  Spread  `json:"factor"`
	Limit   float64 `json:"limit"`
}

// scaling compares gdr_exporter with itself at more devices: the cost of a scrape may grow as their number does and no faster.
func scaling(ctx context.Context, o options, out io.Writer) error {
	var processes []*process
	defer func() {
		for _, p := range processes {
			p.stop()
		}
	}()
	for _, n := range []int{fewDevices, manyDevices} {
		tree, remove, err := writeNode(n)
		if err != nil {
			return err
		}
		defer remove()
		p, err := o.startExporter(ctx, fmt.Sprintf("gdr_exporter, %d devices", n), tree, "--scrape.max-age=0s")
		if err != nil {
			return err
		}
		processes = append(processes, p)
	}
	results, err := measure(ctx, processes, o.rounds, o.scrapes, o.gzip)
	if err != nil {
		return err
	}
	compare(results)
	report := ScalingReport{o.scrapes, o.rounds, results[0], results[1], *results[1].Ratio, o.maxScaling}
	if err := printScaling(out, o.json, report); err != nil {
		return err
	}
	if o.maxScaling > 0 && report.Factor.Median > o.maxScaling {
		return fmt.Errorf("%w: %d devices cost %.1f times the CPU of %d, more than %g", errJudged, manyDevices, report.Factor.Median, fewDevices, o.maxScaling)
	}
	return nil
}

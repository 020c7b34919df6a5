package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Tenth is the state after each tenth of a soak.
type Tenth struct {
	Scrapes     int     `json:"scrapes"`
	RSS         int64   `json:"rss_bytes"`
	PeakRSS     int64   `json:"peak_rss_bytes"`
	Descriptors int     `json:"descriptors"`
	Goroutines  float64 `json:"goroutines"`
	CPU         float64 `json:"cpu_seconds_per_scrape"`
}

// maxGrowth is how much the memory may grow from the first tenth to the end.
const maxGrowth = 1.10

// soak makes many scrapes of one instance and watches what it holds.
func soak(ctx context.Context, o options, out io.Writer) error {
	tree, remove, err := writeNode(o.devices)
	if err != nil {
		return err
	}
	defer remove()
	p, err := o.startExporter(ctx, "gdr_exporter", tree, "--scrape.max-age=0s")
	if err != nil {
		return err
	}
	defer p.stop()
	var tenths []Tenth
	for i := range 10 {
		tenth, err := p.tenth(ctx, o, o.soak*(i+1)/10-o.soak*i/10)
		if err != nil {
			return err
		}
		tenth.Scrapes = o.soak * (i + 1) / 10
		tenths = append(tenths, tenth)
		printTenth(out, o.json, tenth, i == 0)
	}
	if o.json {
		if err := printJSON(out, tenths); err != nil {
			return err
		}
	}
	return judgeSoak(tenths, o.maxRSS)
}

func (p *process) tenth(ctx context.Context, o options, scrapes int) (t Tenth, err error) {
	var cpu time.Duration
	if cpu, _, err = p.round(ctx, scrapes, o.gzip); err != nil {
		return t, err
	}
	t.CPU = cpu.Seconds()
	if t.RSS, t.PeakRSS, err = p.memory(); err != nil {
		return t, err
	}
	if t.Descriptors, err = p.descriptors(); err != nil {
		return t, err
	}
	page, err := p.client.page(ctx, acceptText, false)
	t.Goroutines = value(page, "go_goroutines")
	return t, err
}

// value returns the value of a series without labels, -1 if there is none.
func value(page, name string) float64 {
	for _, line := range samples(page) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			if v, err := strconv.ParseFloat(strings.TrimSpace(text), 64); err == nil {
				return v
			}
		}
	}
	return -1
}

func judgeSoak(tenths []Tenth, maxRSS float64) error {
	first, last := tenths[0], tenths[len(tenths)-1]
	for _, t := range tenths {
		if megabytes(t.RSS) > maxRSS {
			return fmt.Errorf("%w: resident memory %.1f MB is above %g MB", errJudged, megabytes(t.RSS), maxRSS)
		}
	}
	if growth := float64(last.RSS) / float64(first.RSS); growth > maxGrowth {
		return fmt.Errorf("%w: resident memory grew from %.1f to %.1f MB", errJudged, megabytes(first.RSS), megabytes(last.RSS))
	}
	return nil
}

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }

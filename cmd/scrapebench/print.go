package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

func printJSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

func printBench(out io.Writer, asJSON bool, r BenchReport) error {
	if asJSON {
		return printJSON(out, r)
	}
	encoding := "identity"
	if r.Gzip {
		encoding = "gzip"
	}
	fmt.Fprintf(out, "%d devices, %d rounds of %d scrapes in alternation, %s, one kept connection.\n", r.Devices, r.Rounds, r.Scrapes, encoding)
	printResults(out, r.Results)
	if r.MaxRatio > 0 {
		fmt.Fprintf(out, "Judged: CPU of %s, at most %g of %s.\n", r.Results[1].Name, r.MaxRatio, r.Results[0].Name)
	}
	return nil
}

func printScaling(out io.Writer, asJSON bool, r ScalingReport) error {
	if asJSON {
		return printJSON(out, r)
	}
	fmt.Fprintf(out, "%d rounds of %d scrapes in alternation.\n", r.Rounds, r.Scrapes)
	printResults(out, []Result{r.Few, r.Many})
	fmt.Fprintf(out, "%d times the devices cost %.1f times the CPU (%.1f-%.1f); limit %g.\n", manyDevices/fewDevices, r.Factor.Median, r.Factor.Min,
		r.Factor.Max, r.Limit)
	return nil
}

// printResults prints times as median (lowest-highest) over the rounds.
func printResults(out io.Writer, results []Result) {
	fmt.Fprintln(out, "CPU is user and system time of the whole process (its CPU clock), per scrape; median (lowest-highest) of the rounds.")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "exporter\tCPU ms\t\twall ms\t\tratio\t\tRSS MB\tpeak\tsamples\tbytes\tgzip")
	for _, r := range results {
		ratio, span := "", ""
		if r.Ratio != nil {
			ratio, span = fmt.Sprintf("%.3f", r.Ratio.Median), fmt.Sprintf("(%.3f-%.3f)", r.Ratio.Min, r.Ratio.Max)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.1f\t%.1f\t%d\t%d\t%d\n", r.Name, milliseconds(r.CPU), milliseconds(r.Wall), ratio, span,
			megabytes(r.RSS), megabytes(r.PeakRSS), r.Samples, r.PlainBytes, r.GzipBytes)
	}
	_ = w.Flush()
}

// milliseconds fills two columns of the table.
func milliseconds(s Spread) string {
	return fmt.Sprintf("%.3f\t(%.3f-%.3f)", s.Median*1e3, s.Min*1e3, s.Max*1e3)
}

func printTenth(out io.Writer, asJSON bool, t Tenth, first bool) {
	if asJSON {
		return
	}
	if first {
		fmt.Fprintf(out, "%10s %8s %8s %6s %10s %8s\n", "scrapes", "RSS MB", "peak MB", "files", "goroutines", "CPU ms")
	}
	fmt.Fprintf(out, "%10d %8.1f %8.1f %6d %10.0f %8.3f\n", t.Scrapes, megabytes(t.RSS), megabytes(t.PeakRSS), t.Descriptors, t.Goroutines, t.CPU*1e3)
}

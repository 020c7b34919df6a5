// Command cost measures what a fleet costs Prometheus: it scrapes one replayed page under
// many names, with counters that count, evaluates the project's rules, and prints memory,
// processor time and how long the rules take. The nodes are simulated, the numbers of
// Prometheus are measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"gdr_exporter/collector/capture/embedded"
	"gdr_exporter/deploy/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "cost:", err)
		os.Exit(1)
	}
}

// run measures for a time.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("cost", flag.ContinueOnError)
	nodes := flags.Int("nodes", 1000, "simulated nodes")
	capture := flags.String("capture", "h100-8x8", "embedded capture that all of them show")
	interval := flags.Duration("interval", time.Minute, "interval of scrapes; the rules are evaluated each 30 s")
	lasts := flags.Duration("for", 15*time.Minute, "how long to measure")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *nodes < 1 || *interval < time.Second || *lasts < 2**interval || flags.NArg() > 0 {
		return errors.New("nodes are 1 or more, the interval a second or more, and two of them have to be measured")
	}
	recording, err := embedded.Open(*capture)
	if err != nil {
		return err
	}
	node := stack.Node{Name: "simulated", Recording: recording, Copies: *nodes - 1}
	if node.Profile, err = stack.ProfileOf(recording); err != nil {
		return err
	}
	s, err := stack.Start(ctx, stack.Options{Nodes: []stack.Node{node}, Scrape: *interval, WithoutAlertmanager: true})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d nodes, each as %s, scraped each %v for %v; Prometheus: %s\n", *nodes, *capture, *interval, *lasts, s.Prometheus)
	err = wait(ctx, s, *lasts)
	if err == nil {
		err = report(ctx, out, s, *nodes)
	}
	return errors.Join(err, s.Close())
}

// wait waits until the time of measuring is over, or Prometheus ends.
func wait(ctx context.Context, s *stack.Stack, lasts time.Duration) error {
	timed, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	if err := s.Wait(timed); err != nil {
		return err
	}
	return ctx.Err()
}

// report prints what Prometheus says of itself.
func report(ctx context.Context, out io.Writer, s *stack.Stack, nodes int) error {
	self, err := s.Self(ctx)
	if err != nil {
		return err
	}
	resident, series := self.Sum("process_resident_memory_bytes"), self.Sum("prometheus_tsdb_head_series")
	fmt.Fprintf(out, "series            %12.0f  (%.0f a node)\n", series, series/float64(nodes))
	fmt.Fprintf(out, "samples           %12.0f  a second\n", self.Sum("prometheus_tsdb_head_samples_appended_total")/s.Clock.Since().Seconds())
	fmt.Fprintf(out, "memory            %12.2f  GB resident (%.0f bytes a series)\n", resident/1e9, resident/series)
	fmt.Fprintf(out, "processors        %12.2f\n", self.Sum("process_cpu_seconds_total")/s.Clock.Since().Seconds())
	fmt.Fprintf(out, "rules, all groups %12.2f  s an evaluation\n", self.Sum("prometheus_rule_group_last_duration_seconds"))
	for _, group := range self.Of("prometheus_rule_group_last_duration_seconds") {
		fmt.Fprintf(out, "  %-40s %8.3f s\n", group.Labels["rule_group"], group.Value)
	}
	fmt.Fprintf(out, "rules failed      %12.0f  times, evaluations missed %.0f times\n", self.Sum("prometheus_rule_evaluation_failures_total"), self.Sum("prometheus_rule_group_iterations_missed_total"))
	up, err := s.Query(ctx, "count(up == 1)")
	if err == nil && len(up) == 1 {
		fmt.Fprintf(out, "nodes up          %12.0f\n", up[0].Value)
	}
	return err
}

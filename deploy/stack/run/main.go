// Command run starts a real Prometheus with the project's rules and a real Alertmanager
// with its example over replays of the exporter, and prints what Alertmanager tells.
//
// It is for looking and for tests: nothing is measured, and nothing of this host is read.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"gdr_exporter/collector/capture/embedded"
	"gdr_exporter/deploy/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "stack:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage")

// run shows the stack until ctx is done.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("stack", flag.ContinueOnError)
	flags.SetOutput(stderr)
	speed := flags.Float64("speed", 1, "how much faster than the wall clock time runs; 60 makes a minute of an hour")
	captures := flags.String("captures", strings.Join(embedded.Names(), ","), "embedded captures that are replayed, a node each")
	exporter := flags.String("exporter", "", "address of an exporter that is scraped too, such as localhost:10479")
	prometheus := flags.String("prometheus", "127.0.0.1:9090", "address of Prometheus")
	alertmanager := flags.String("alertmanager", "127.0.0.1:9093", "address of Alertmanager")
	receiver := flags.String("receiver", "127.0.0.1:9094", "address that Alertmanager tells its alerts")
	dir := flags.String("dir", "", "directory for data and logs; a temporary one if empty")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage // flag has said why
	}
	if flags.NArg() > 0 || *speed < 1 {
		fmt.Fprintln(stderr, "stack: no arguments are taken, and -speed is 1 or more")
		return errUsage
	}
	nodes, err := nodes(*captures, *exporter)
	if err != nil {
		return err
	}
	s, err := stack.Start(ctx, stack.Options{
		Nodes: nodes, Speed: *speed, Prometheus: *prometheus, Alertmanager: *alertmanager, Receiver: *receiver, Dir: *dir,
		Told: func(n stack.Notification) { _, _ = io.WriteString(stdout, n.String()) },
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Prometheus:   %s/alerts\nAlertmanager: %s/\nStop: Ctrl-C. What Alertmanager tells follows; all of it is of replays.\n", s.Prometheus, s.Alertmanager)
	return errors.Join(s.Wait(ctx), s.Close())
}

// nodes are those to scrape: a capture each, which knows the ports that it has, and
// an exporter elsewhere.
func nodes(captures, exporter string) ([]stack.Node, error) {
	var all []stack.Node
	for name := range strings.SplitSeq(captures, ",") {
		if name == "" {
			continue
		}
		recording, err := embedded.Open(name)
		if err != nil {
			return nil, fmt.Errorf("%w; there are %s", err, strings.Join(embedded.Names(), ", "))
		}
		node := stack.Node{Name: name, Recording: recording}
		if node.Profile, err = stack.ProfileOf(recording); err != nil {
			return nil, err
		}
		all = append(all, node)
	}
	if exporter != "" {
		all = append(all, stack.Node{Name: "exporter", Address: exporter})
	}
	if len(all) == 0 {
		return nil, errors.New("nothing to scrape: neither captures nor an exporter")
	}
	return all, nil
}

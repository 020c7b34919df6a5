// Command show draws each dashboard over replays of the exporter: real pages, a real
// Prometheus with the recording rules, Grafana's own components in a headless browser.
// The pictures are for looking at; that each query has data is tested elsewhere.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gdr_exporter/dashboards/internal/scene"
	"gdr_exporter/deploy/stack"
)

// scrape is the interval of scrapes: short, for a few minutes are to fill the graphs.
const scrape = 5 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "show: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	sources := flag.String("dashboards", "dashboards", "directory with the dashboards and preview/render")
	out := flag.String("out", "dist/dashboards", "directory for the pictures")
	wait := flag.Duration("wait", 6*time.Minute, "for how long Prometheus scrapes before the pictures are drawn")
	nodes := flag.String("nodes", "h100-8x8,h100-8x8-demo,acs-on,b200-8x8,page-roce", "nodes to draw the node's dashboard of; a capture each, or a page")
	keep := flag.Bool("keep", false, "leave Prometheus running, for preview/render by hand, until Ctrl-C")
	flag.Parse()
	if err := os.MkdirAll(*out, 0o750); err != nil {
		return err
	}
	all, end, err := scene.Nodes()
	if err != nil {
		return err
	}
	s, err := stack.Start(ctx, stack.Options{Nodes: all, Scrape: scrape, WithoutAlertmanager: true})
	if err != nil {
		return errors.Join(err, end())
	}
	fmt.Printf("Prometheus: %s\nPictures in %s from now, all of replays\n", s.Prometheus, *wait)
	select {
	case <-ctx.Done():
	case <-time.After(*wait):
		err = draw(ctx, *sources, *out, s.Prometheus, *wait, strings.Split(*nodes, ","))
	}
	if *keep && err == nil {
		err = s.Wait(ctx)
	}
	return errors.Join(err, s.Close(), end())
}

// draw draws the dashboards; of nodes each one.
func draw(ctx context.Context, sources, out, prometheus string, wait time.Duration, nodes []string) error {
	var all []error
	render := func(picture, dashboard string, vars ...string) {
		args := []string{
			filepath.Join(sources, "preview", "render"), "--scrape-interval", scrape.String(), "--from", fmt.Sprintf("now-%dm", max(2, int(wait.Minutes()))),
		}
		for _, v := range vars {
			args = append(args, "--var", v)
		}
		args = append(args, filepath.Join(sources, dashboard+".json"), prometheus, filepath.Join(out, picture+".png"))
		fmt.Printf("\n%s\n", picture)
		cmd := exec.CommandContext(ctx, "node", args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			all = append(all, fmt.Errorf("%s: %w", picture, err))
		}
	}
	render("gdr-fleet", "gdr-fleet")
	render("gdr-rdma-fabric", "gdr-rdma-fabric")
	for _, node := range nodes {
		render("gdr-node-"+node, "gdr-node", "node="+node)
		render("gdr-rdma-fabric-"+node, "gdr-rdma-fabric", "node="+node)
	}
	return errors.Join(all...)
}

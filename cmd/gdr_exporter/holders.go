package main

import (
	"strings"

	"github.com/alecthomas/kingpin/v2"

	"gdr_exporter/collector/jobs"
	"gdr_exporter/collector/podresources"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/snapshot"
)

// podSocket is the value of --kubernetes.pod-resources. Naming the socket is what
// switches the collector pods on, so that there is no second flag to forget.
type podSocket struct {
	path string
	on   bool
}

// Set implements kingpin.Value.
func (p *podSocket) Set(text string) error {
	p.path, p.on = strings.TrimPrefix(text, "unix://"), text != ""
	return nil
}

// String implements kingpin.Value.
func (p *podSocket) String() string { return p.path }

// holderFlags adds the flags of who holds GPUs and RDMA devices.
func holderFlags(app *kingpin.Application, c *config) {
	app.Flag("kubernetes.pod-resources", "Socket of the kubelet's pod-resources API, usually "+podresources.DefaultSocket+": show which pods were given which GPUs and RDMA devices. Default: nobody is asked.").
		PlaceHolder("SOCKET").SetValue(&c.pods)
	c.collectors[snapshot.CollectorPods] = &c.pods.on
}

// validateHolders checks what no single flag can.
func (c *config) validateHolders() error {
	switch {
	case c.reads(snapshot.CollectorJobs) && !c.reads(snapshot.CollectorGPU):
		return usagef("--collector.jobs: needs the collector gpu, which says whose processes there are")
	case c.pods.on && !c.reads(snapshot.CollectorGPU, snapshot.CollectorRDMA):
		return usagef("--kubernetes.pod-resources=%s: needs the collector gpu or rdma, which say which devices there are", c.pods.path)
	}
	return nil
}

// addHolders adds the readers of who holds devices. A replay has none: names of pods and
// jobs are in no capture.
func (c *config) addHolders(builder *snapshot.Builder) {
	if c.replay != nil {
		return
	}
	if c.pods.on {
		builder.Pods(podresources.NewReader(podresources.Options{Socket: c.pods.path}))
	}
	if c.reads(snapshot.CollectorJobs) {
		builder.Jobs(jobs.NewReader(&jobs.Proc{Proc: process.Proc{Root: c.procfs}}))
	}
}

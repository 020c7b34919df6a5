package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/procfs"
)

// processCollector serves the standard process_* metrics from prometheus/procfs.
//
// client_golang's own collector reads, at each scrape, all of /proc/stat for the
// boot time (milliseconds on a node with hundreds of processors) and all network
// statistics; that was a fifth of a scrape. The start time never changes, so it
// is taken once.
type processCollector struct {
	proc  procfs.Proc
	start float64
}

var (
	processCPU     = processDesc("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.")
	processRSS     = processDesc("process_resident_memory_bytes", "Resident memory size in bytes.")
	processVirtual = processDesc("process_virtual_memory_bytes", "Virtual memory size in bytes.")
	processFDs     = processDesc("process_open_fds", "Number of open file descriptors.")
	processMaxFDs  = processDesc("process_max_fds", "Maximum number of open file descriptors.")
	processStart   = processDesc("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
)

func processDesc(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }

// newProcessCollector returns a collector for this process, or an error where
// procfs does not show it.
func newProcessCollector() (*processCollector, error) {
	proc, err := procfs.Self()
	if err != nil {
		return nil, err
	}
	stat, err := proc.Stat()
	if err != nil {
		return nil, err
	}
	start, err := stat.StartTime()
	if err != nil {
		return nil, err
	}
	return &processCollector{proc, start}, nil
}

// Describe implements prometheus.Collector.
func (c *processCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{processCPU, processRSS, processVirtual, processFDs, processMaxFDs, processStart} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector. What cannot be read is left out.
func (c *processCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(processStart, prometheus.GaugeValue, c.start)
	if stat, err := c.proc.Stat(); err == nil {
		ch <- prometheus.MustNewConstMetric(processCPU, prometheus.CounterValue, stat.CPUTime())
		ch <- prometheus.MustNewConstMetric(processRSS, prometheus.GaugeValue, float64(stat.ResidentMemory()))
		ch <- prometheus.MustNewConstMetric(processVirtual, prometheus.GaugeValue, float64(stat.VirtualMemory()))
	}
	if n, err := c.proc.FileDescriptorsLen(); err == nil {
		ch <- prometheus.MustNewConstMetric(processFDs, prometheus.GaugeValue, float64(n))
	}
	if limits, err := c.proc.Limits(); err == nil {
		ch <- prometheus.MustNewConstMetric(processMaxFDs, prometheus.GaugeValue, float64(limits.OpenFiles))
	}
}

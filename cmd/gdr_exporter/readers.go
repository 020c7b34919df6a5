package main

import (
	"slices"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/devlink"
	"gdr_exporter/rdma/nldev"
)

// addRDMA adds the readers of the collector rdma.
func (c *config) addRDMA(builder *snapshot.Builder) {
	if !c.reads(snapshot.CollectorRDMA) {
		return
	}
	var monitor *rdma.Monitor
	if c.netlink {
		monitor = rdma.StartMonitor()
	}
	builder.RDMA(rdma.NewReader(rdma.Options{
		Sysfs: c.sysfs, Include: c.includes, SlowInterval: c.slowInterval, Descriptors: descriptorBudget() * 3 / 4,
		Netlink: c.netlinkDialer(), Monitor: monitor, Ethtool: c.ethtool, EthtoolAll: c.ethtoolAll,
	}), monitor)
	if c.netlink {
		builder.Devlink(devlink.NewReader(), c.slowInterval)
	}
}

// addGPU adds the readers of GPUs, their driver and the PCIe path to them. It
// returns that of NVML, nil if NVML is not used.
func (c *config) addGPU(builder *snapshot.Builder) (nvml *gpu.Reader) {
	if c.reads(snapshot.CollectorGPU, snapshot.CollectorNVLink, snapshot.CollectorFabric) {
		nvml = gpu.NewReader(gpu.Options{
			Roots: c.driverRoots, Procfs: c.procfs, Include: c.includesGPU, SlowInterval: c.slowInterval,
			NVLink: c.reads(snapshot.CollectorNVLink), PerLink: c.nvlinkPerLink, Fabric: c.reads(snapshot.CollectorFabric),
		})
		builder.GPU(nvml)
	}
	if c.reads(snapshot.CollectorDriver, snapshot.CollectorPeermem, snapshot.CollectorGPU) {
		builder.Driver(driver.NewReader(driver.Options{
			Sysfs: c.sysfs, Procfs: c.procfs, Roots: c.driverRoots, SlowInterval: c.slowInterval,
		}))
	}
	if c.reads(snapshot.CollectorAffinity, snapshot.CollectorPCIe, snapshot.CollectorGPU) {
		builder.Affinity(c.affinityReader())
	}
	if c.reads(snapshot.CollectorProbe) {
		builder.Probe(c.probeLedger)
	}
	return nvml
}

func (c *config) affinityReader() *affinity.Reader {
	return affinity.NewReader(affinity.Options{
		Sysfs: c.sysfs, IncludeRDMA: c.includes, IncludeGPU: c.includesGPU, Role: c.roles.Role,
		StandIns: c.gpuStandIns, SlowInterval: c.slowInterval, Descriptors: descriptorBudget() / 4,
	})
}

// reads reports whether any of the collectors is switched on.
func (c *config) reads(collectors ...string) bool {
	return slices.ContainsFunc(collectors, func(name string) bool { return *c.collectors[name] })
}

// netlinkTimeout bounds the wait for an answer of RDMA netlink.
const netlinkTimeout = 2 * time.Second

// netlinkDialer opens RDMA netlink sockets, nil if they are not wanted.
func (c *config) netlinkDialer() rdma.Dialer {
	if !c.netlink {
		return nil
	}
	return func() (rdma.Netlink, error) { return nldev.Dial(netlinkTimeout) }
}

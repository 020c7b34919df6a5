package main

import (
	"slices"
	"time"

	"gdr_exporter/collector/host"
	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/devlink"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/netdev"
	"gdr_exporter/rdma/nldev"
)

// origin is where the readers get what they read. Its zero fields stand for the
// running system where the readers' Options say so.
type origin struct {
	files   sysread.Files
	netlink rdma.Dialer
	monitor func() *rdma.Monitor // nil: nothing is listened to
	ethtool bool
	kernel  func() netdev.Kernel
	devlink func() (devlink.Conn, error) // nil: not read
	nvml    func(path string) (gpu.Library, error)
	ledger  func() (loopback.Ledger, error)
	process process.Kernel // nil: not read
	host    host.Kernel    // nil: not read
	kmsg    func() snapshot.KernelLog
}

// system is the running system, as far as the flags let it be read.
func (c *config) system() *origin {
	o := &origin{ethtool: c.ethtool, process: &process.Proc{Root: c.procfs}, ledger: func() (loopback.Ledger, error) { return loopback.ReadLedger(c.probeLedger) }}
	o.host = host.NewKernel(c.procfs, nil)
	o.kmsg = func() snapshot.KernelLog { return kmsg.Start(kmsg.Options{Path: c.kmsg}) }
	if c.netlink {
		o.netlink, o.devlink, o.monitor = c.netlinkDialer(), devlink.Dial, rdma.StartMonitor
	}
	return o
}

// addRDMA adds the readers of the collector rdma.
func (c *config) addRDMA(builder *snapshot.Builder, o *origin) {
	if !c.reads(snapshot.CollectorRDMA) {
		return
	}
	var monitor *rdma.Monitor
	if o.monitor != nil {
		monitor = o.monitor()
	}
	builder.RDMA(rdma.NewReader(rdma.Options{
		Sysfs: c.sysfs, Files: o.files, Include: c.includes, SlowInterval: c.slowInterval, Descriptors: descriptorBudget() * 3 / 4,
		Netlink: o.netlink, Monitor: monitor, Ethtool: o.ethtool, EthtoolAll: c.ethtoolAll, Kernel: o.kernel,
	}), monitor)
	if o.devlink != nil {
		builder.Devlink(devlink.NewReaderOf(o.devlink), c.slowInterval)
	}
}

// addGPU adds the readers of GPUs, their driver and the PCIe path to them. It
// returns that of NVML, nil if NVML is not used.
func (c *config) addGPU(builder *snapshot.Builder, o *origin) (nvml *gpu.Reader) {
	if c.reads(snapshot.CollectorGPU, snapshot.CollectorNVLink, snapshot.CollectorFabric) {
		nvml = gpu.NewReader(gpu.Options{
			Files: o.files, Open: o.nvml, Roots: c.driverRoots, Procfs: c.procfs, Include: c.includesGPU, SlowInterval: c.slowInterval,
			NVLink: c.reads(snapshot.CollectorNVLink), PerLink: c.nvlinkPerLink, Fabric: c.reads(snapshot.CollectorFabric),
			Holders: c.pods.on,
		})
		builder.GPU(nvml)
	}
	if c.reads(snapshot.CollectorDriver, snapshot.CollectorPeermem, snapshot.CollectorGPU) {
		builder.Driver(driver.NewReader(driver.Options{
			Files: o.files, Sysfs: c.sysfs, Procfs: c.procfs, Roots: c.driverRoots, SlowInterval: c.slowInterval,
		}))
	}
	if c.reads(snapshot.CollectorAffinity, snapshot.CollectorPCIe, snapshot.CollectorGPU) {
		builder.Affinity(c.affinityReader(o))
	}
	if c.reads(snapshot.CollectorProbe) {
		builder.ProbeOf(o.ledger)
	}
	return nvml
}

// addProcess adds the reader of processes.
func (c *config) addProcess(builder *snapshot.Builder, o *origin) {
	if c.reads(snapshot.CollectorProcess) && o.process != nil {
		builder.Process(process.NewReader(process.Options{Kernel: o.process, Interval: c.slowInterval}))
	}
}

// addKernelLog adds the reader of the kernel's log.
func (c *config) addKernelLog(builder *snapshot.Builder, o *origin) {
	if !c.reads(snapshot.CollectorKernelLog) || o.kmsg == nil {
		return
	}
	if log := o.kmsg(); log != nil {
		builder.KernelLog(log)
	}
}

func (c *config) affinityReader(o *origin) *affinity.Reader {
	return affinity.NewReader(affinity.Options{
		Files: o.files, Sysfs: c.sysfs, IncludeRDMA: c.includes, IncludeGPU: c.includesGPU, Role: c.roles.Role,
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

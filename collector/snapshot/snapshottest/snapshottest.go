// Package snapshottest takes Snapshots of captures in tests.
package snapshottest

import (
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/host"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
)

// descriptors is how many files the readers of devices may keep open.
const descriptors = 1024

// Builder puts the daemon's readers over a capture that is played by a clock: all but
// those that few captures have parts for, the kernel's log and the host, which are
// added where the capture has them.
func Builder(recording *capture.Recording, p *capture.Player, clock func() time.Time) *snapshot.Builder {
	readers := &recording.Header.Readers
	builder := snapshot.New(snapshot.Options{Deadline: time.Minute, Now: clock}).
		RDMA(rdma.NewReader(rdma.Options{Sysfs: readers.Sysfs, Files: p.Files(), Descriptors: descriptors, Netlink: p.Netlink(), Now: clock}), nil).
		GPU(gpu.NewReader(gpu.Options{Files: p.Files(), Procfs: readers.Procfs, Roots: readers.DriverRoots, NVLink: true, Fabric: true, Open: p.NVML()})).
		Driver(driver.NewReader(driver.Options{Sysfs: readers.Sysfs, Procfs: readers.Procfs, Roots: readers.DriverRoots, Files: p.Files()})).
		Affinity(affinity.NewReader(affinity.Options{Sysfs: readers.Sysfs, Files: p.Files(), Descriptors: descriptors, Now: clock})).
		ProbeOf(p.Ledger).Prober(p.Prober)
	if log := p.KernelLog(); log != nil {
		builder.KernelLog(log)
	}
	if p.Has(capture.PartHost) {
		builder.Host(host.NewReader(host.Options{Sysfs: readers.Sysfs, Procfs: readers.Procfs, Files: p.Files(), Kernel: p.Host()}))
	}
	return builder
}

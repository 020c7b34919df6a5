package collector

import "gdr_exporter/rdma/devlink"

// devlinkNote tells that a value is read on a timer: one dump serves all devices.
const devlinkNote = " Read on a timer, see gdr_rdma_devlink_read_timestamp_seconds."

// Families of devlink health reporters.
var (
	devlinkRead = gauge("gdr_rdma_devlink_read_timestamp_seconds",
		"Unix time at which the kernel was asked for devlink health reporters last.")
	devlinkPresent = gauge("gdr_rdma_devlink_present",
		"1 if the kernel has devlink with health reporters."+devlinkNote)
	devlinkState = gauge("gdr_rdma_device_health_reporter_state_id",
		"State of a devlink health reporter of the device's PCI function while it is not healthy: 1 error (not recovered). With mlx5: fw, fw_fatal, tx, rx, vnic. "+
			"A reporter that is read has gdr_rdma_device_health_reporter_errors_total in any case, but for tx and rx without errors."+devlinkNote)
	devlinkErrors = counter("gdr_rdma_device_health_reporter_errors_total",
		"Errors reported to a devlink health reporter of the device's PCI function since its driver was loaded. tx and rx, which watch over queues of the network interface and not RDMA's, have no series before the first error."+devlinkNote)
	devlinkRecoveries = counter("gdr_rdma_device_health_reporter_recoveries_total",
		"Successful recoveries by a devlink health reporter of the device's PCI function since its driver was loaded. No series before the first error."+devlinkNote)
	devlinkDump = gauge("gdr_rdma_device_health_reporter_last_dump_timestamp_seconds",
		"Unix time of the dump that a devlink health reporter keeps of an error (devlink health dump show). No series without one."+devlinkNote)
)

// maxReporters bounds the health reporters shown of one device. mlx5 has five,
// bnxt_en and ice have three each.
const maxReporters = 16

// ofNetdev are the reporters on queues of the network interface, which carry no
// RDMA: they are worth a series once they have something to report.
var ofNetdev = map[string]bool{"tx": true, "rx": true}

// showDevlink shows whether the kernel has devlink at all.
func showDevlink(p *page, r *devlink.Reading) {
	if !r.Read.IsZero() {
		p.add(devlinkRead, float64(r.Read.UnixMilli())/1000, nil)
	}
	if r.Supported.Known {
		p.addBool(devlinkPresent, r.Supported.Value, nil)
	}
}

// showReporters shows the health reporters of a device's PCI function, as
// devlink.ByAddress has them. The device's labels must come from the cache.
func showReporters(p *page, cache *labelCache, device labels, reporters []devlink.Reporter) {
	for _, r := range reporters[:min(len(reporters), maxReporters)] {
		at := cache.with(device, "reporter", r.Name)
		if r.State.Known && r.State.Value != devlink.StateHealthy {
			p.add(devlinkState, float64(r.State.Value), at)
		}
		if r.Errors.Known && (r.Errors.Value > 0 || !ofNetdev[r.Name]) {
			p.add(devlinkErrors, float64(r.Errors.Value), at)
		}
		// There is nothing to recover from before the first error.
		if r.Recoveries.Known && (r.Errors.Value > 0 || r.Recoveries.Value > 0) {
			p.add(devlinkRecoveries, float64(r.Recoveries.Value), at)
		}
		if r.LastDump.Known {
			p.add(devlinkDump, float64(r.LastDump.Value.UnixMilli())/1000, at)
		}
	}
}

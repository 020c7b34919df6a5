package collector

import (
	"strconv"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// Notes on values of a pair: what they are of, and when they are absent.
const (
	loopbackNote = " Of RDMA writes of the NIC to itself, which say nothing of cable, switch and peer."
	standsNote   = " As of the full measurement that stands, see gdr_probe_result_timestamp_seconds; absent if none does, and while a later one failed."
	pathsNote    = "path is host (host to host memory, the control), gpu_read (the NIC reads GPU memory), gpu_write (it writes GPU memory), gpu (GPU to GPU, GPUDirect RDMA as jobs use it) or " +
		"staged (through copies in host memory, what a job gets without GPUDirect RDMA; measured once per --probe.staged-interval, and shown until it is again)."
)

// Families of what is known of a pair of GPU and RDMA device.
var (
	probeRate = gauge("gdr_probe_bytes_per_second",
		"Rate of RDMA writes between two queue pairs of one port, one direction, by path: "+pathsNote+" No series of a path whose data arrived wrong."+loopbackNote+standsNote)
	probeRatio = gauge("gdr_probe_ratio",
		"Rate of a path divided by that of the host path of the same measurement; under load the median over slices measured in turn."+loopbackNote+standsNote)
	probeLatencyMedian = gauge("gdr_probe_latency_median_seconds",
		"Median time from post to completion of an 8-byte RDMA write, one at a time, of paths host and gpu."+loopbackNote+standsNote)
	probeLatencyP99 = gauge("gdr_probe_latency_p99_seconds",
		"99th percentile of that time, see gdr_probe_latency_median_seconds."+loopbackNote+standsNote)
	probeCPU = gauge("gdr_probe_cpu_seconds_per_gigabyte",
		"Processor time of the measuring thread for 10^9 bytes, sleeping for completions, of paths host, gpu and staged: copies cost some, GPUDirect RDMA next to nothing."+standsNote)
	probeInfo = gauge("gdr_probe_info",
		"Facts about the full measurement that stands, value 1: outcome (fine, slow, failed, corrupt, unsupported), load (idle, or busy: made in slices under load), port, method by which GPU memory was registered "+
			"(peermem, dmabuf, empty if neither worked), nccl_method that current NCCL would try, gid_type (empty on InfiniBand), message_bytes, queue_pairs.")

	probeRegistered = gauge("gdr_probe_registered",
		"1 if GPU memory could be registered with the NIC by method peermem (nvidia-peermem) or dmabuf, 0 if not, as of the newest standing measurement of any depth that tried. One is enough for GPUDirect RDMA.")
	probeRegistrationError = gauge("gdr_probe_registration_error_info",
		"Why GPU memory could not be registered by a method, value 1: errno, the kernel's or libcuda's name. Absent where it could.")

	probeLastAttempt = gauge("gdr_probe_last_attempt_timestamp_seconds",
		"Unix time at which a measurement of any depth of the pair began last. Absent before the first.")
	probeLastSuccess = gauge("gdr_probe_last_success_timestamp_seconds",
		"Unix time at which the last measurement began that found GPUDirect RDMA to work, by depth: register (registration works), full (and the rate is within the limits). Absent before the first. "+
			"Compare its age with gdr_probe_interval_seconds.")
	probeResultTime = gauge("gdr_probe_result_timestamp_seconds",
		"Unix time at which the measurement began whose result stands, good or bad, by depth: full (rates), register (gdr_probe_registered). Absent if none stands.")
	probeWithdrawn = gauge("gdr_probe_withdrawn_info",
		"Why there are no rates though there were, value 1. reason: failed (a later measurement failed; what stood may stand until that is confirmed), aged (--probe.max-age), driver_changed, peermem_changed, firmware_changed, kernel_changed, reboot, gpu_changed, nic_changed, gpu_lost, gpu_gone, nic_gone, port_not_active. Absent otherwise.")
	probeUnconfirmed = gauge("gdr_probe_unconfirmed",
		"1 while a result that would worsen what is known waits to be repeated: up to three times within five minutes, and it counts only if all agree.")
	probeSkipped = gauge("gdr_probe_skipped",
		"1 while the pair is due and kept from being measured, by reason. Absent if nothing keeps it. What stands is not withdrawn by that.")
	probeHung = gauge("gdr_probe_hung",
		"1 if a measurement of the pair did not end in time and hangs since. Nothing touches its GPU or NIC again until the exporter is restarted.")
	probeMismatches = counter("gdr_probe_mismatches_total",
		"Words of 8 bytes that arrived wrong in measurements of the pair since start. More than 0 is data corruption.")
	probeBaselineRatio = gauge("gdr_probe_baseline_ratio",
		"Rate of path gpu divided by the pair's own baseline, the 90th percentile of its last 50 full measurements while idle and within limits under the same GPU, NIC, firmware, driver and kernel. "+
			"Absent before five of them, and of a measurement under load."+standsNote)
)

// loads are the values of gdr_probe_info's label load.
var loads = map[bool]string{true: "idle", false: "busy"}

// showProbedPair shows a pair. What is not known has no series.
func showProbedPair(p *page, pair *prober.PairStatus) {
	at := pairs("gpu_address", pair.GPU, "device", pair.Device)
	if pair.Full != nil {
		showFull(p, pair, at)
	}
	if pair.Registration != nil {
		showRegistration(p, pair.Registration, at)
	}
	if !pair.LastAttempt.IsZero() {
		p.add(probeLastAttempt, unixSeconds(pair.LastAttempt), at)
	}
	for _, depth := range prober.Depths {
		if success := pair.LastSuccess[depth]; !success.IsZero() {
			p.add(probeLastSuccess, unixSeconds(success), at.with("depth", string(depth)))
		}
	}
	if pair.Withdrawn != "" {
		p.add(probeWithdrawn, 1, at.with("reason", pair.Withdrawn))
	}
	p.addBool(probeUnconfirmed, pair.Unconfirmed != nil, at)
	if pair.Skip != prober.ReasonNone {
		p.add(probeSkipped, 1, at.with("reason", string(pair.Skip)))
	}
	p.addBool(probeHung, !pair.Hung.IsZero(), at)
	p.add(probeMismatches, float64(pair.Mismatches), at)
}

// showFull shows the full measurement that stands.
func showFull(p *page, pair *prober.PairStatus, at labels) {
	r := &pair.Full.Result
	p.add(probeInfo, 1, pairs("gpu_address", pair.GPU, "device", pair.Device, "port", strconv.Itoa(pair.Port),
		"outcome", string(pair.Full.Judgement.Outcome), "load", loads[pair.Full.Idle],
		"method", string(r.Method), "nccl_method", string(r.NCCLMethod), "gid_type", r.GID.Value.Type,
		"message_bytes", strconv.Itoa(r.MessageSize), "queue_pairs", strconv.Itoa(r.QueuePairs)))
	p.add(probeResultTime, unixSeconds(pair.Full.Time), at.with("depth", string(prober.DepthFull)))
	var gpu sysread.Maybe[float64]
	if pair.Withdrawn != "" {
		return // what failed since has no rates
	}
	for i := range r.Paths {
		path := &r.Paths[i]
		if path.Mismatches.Value > 0 {
			continue // how fast wrong data arrives is no rate
		}
		showPathResult(p, path, at.with("path", string(path.Path)))
		if path.Path == loopback.PathGPU {
			gpu = path.BytesPerSecond
		}
	}
	if pair.Full.Idle && gpu.Known && pair.Baseline.Known && pair.Baseline.Value > 0 {
		p.add(probeBaselineRatio, gpu.Value/pair.Baseline.Value, at)
	}
}

// showPathResult shows a path's figures, of each only what somebody compares.
func showPathResult(p *page, path *loopback.PathResult, at labels) {
	if path.BytesPerSecond.Known {
		p.add(probeRate, path.BytesPerSecond.Value, at)
	}
	if path.Ratio.Known && path.Path != loopback.PathHost {
		p.add(probeRatio, path.Ratio.Value, at)
	}
	if path.Path == loopback.PathHost || path.Path == loopback.PathGPU {
		if path.LatencyMedian.Known {
			p.add(probeLatencyMedian, path.LatencyMedian.Value.Seconds(), at)
		}
		if path.LatencyP99.Known {
			p.add(probeLatencyP99, path.LatencyP99.Value.Seconds(), at)
		}
	}
	if cpu := path.CPUSecondsPerGB; cpu.Known && path.Path != loopback.PathGPURead && path.Path != loopback.PathGPUWrite {
		p.add(probeCPU, cpu.Value, at)
	}
}

// showRegistration shows the newest attempts to register GPU memory.
func showRegistration(p *page, c *prober.Completed, at labels) {
	p.add(probeResultTime, unixSeconds(c.Time), at.with("depth", string(prober.DepthRegister)))
	for i := range c.Result.Registrations {
		tried := &c.Result.Registrations[i]
		by := at.with("method", string(tried.Method))
		p.addBool(probeRegistered, tried.Err == nil, by)
		if tried.Err != nil {
			p.add(probeRegistrationError, 1, by.with("errno", sysread.ErrnoName(tried.Err)))
		}
	}
}

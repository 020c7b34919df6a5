package collector

import (
	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/snapshot"
)

// Families of the kernel's log. The functions that lines are about are no labels:
// there may be any number, and what to do about a line the findings and the page say.
var (
	kernelLogReadable = gauge("gdr_kernel_log_readable",
		"1 if the kernel's log can be read (/dev/kmsg; CAP_SYSLOG where kernel.dmesg_restrict is 1), 0 if not: then its other families are missing, and nothing is known of what it says.")
	kernelLogEvents = counter("gdr_kernel_log_events_total",
		"Lines of the kernel's log about interconnects since the exporter's start, by pattern; a line is of one at most, and one event may write several. What users write into the log does not count.")
	kernelLogLast = gauge("gdr_kernel_log_last_event_timestamp_seconds",
		"Unix time of the newest line of the pattern since boot, as far as the log still has it. No series of a pattern of which there is none.")
	kernelLogLost = counter("gdr_kernel_log_lost_total",
		"Records of the kernel's log that were overwritten before the exporter had read them, as in a flood, of which it takes at most 2,000 a second: events may be missing.")
)

// kernelLogLabels are the labels of each pattern.
var kernelLogLabels = func() map[kmsg.Pattern]labels {
	all := make(map[kmsg.Pattern]labels, len(kmsg.Patterns))
	for _, pattern := range kmsg.Patterns {
		all[pattern] = pairs("pattern", string(pattern))
	}
	return all
}()

// showKernelLog shows what the kernel's log says.
func showKernelLog(p *page, s *snapshot.Snapshot) {
	r := s.KernelLogState()
	if r == nil {
		return
	}
	p.addBool(kernelLogReadable, r.Err == nil, nil)
	if r.Err != nil {
		return
	}
	for _, pattern := range kmsg.Patterns {
		if count, known := r.Counts[pattern]; known {
			p.add(kernelLogEvents, float64(count), kernelLogLabels[pattern])
		}
		if last, seen := r.Last[pattern]; seen {
			p.add(kernelLogLast, float64(last.Time.UnixMilli())/1000, kernelLogLabels[pattern])
		}
	}
	if r.Lost.Known {
		p.add(kernelLogLost, float64(r.Lost.Value), nil)
	}
}

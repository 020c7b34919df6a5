package snapshot

import (
	"gdr_exporter/collector/host"
	"gdr_exporter/collector/kmsg"
)

// Collectors of further evidence.
const (
	CollectorKernelLog = "kmsg"
	CollectorProcess   = "process"
	CollectorPath      = "path"
)

// KernelLogPart is the kernel log's share of a Snapshot: one unit.
type KernelLogPart = Part[kmsg.Reading, struct{}]

// HostPart is the host's share of a Snapshot: one unit.
type HostPart = Part[host.Reading, struct{}]

// only returns what the one unit of a part said, nil if it was not asked for or hangs.
func only[T any](part *Part[T, struct{}]) *T {
	if part == nil || len(part.Units) == 0 {
		return nil
	}
	return part.Units[0].Data
}

// KernelLogState returns what the kernel's log said, nil if it was not asked for.
func (s *Snapshot) KernelLogState() *kmsg.Reading { return only(s.KernelLog) }

// HostState returns how the host is wired, nil if it was not asked for or hangs.
func (s *Snapshot) HostState() *host.Reading { return only(s.Host) }

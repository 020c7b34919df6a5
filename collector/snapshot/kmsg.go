package snapshot

import (
	"time"

	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/sysread"
)

// KernelLog is what reads the kernel's log: a kmsg.Reader, or what stands in its
// place in a replay. Read must return at once: it is called by the scrape itself.
type KernelLog interface {
	Read(now time.Time) (kmsg.Reading, []sysread.ReadError)
	Close()
}

// KernelLog adds what the kernel's log says of interconnects.
func (b *Builder) KernelLog(log KernelLog) *Builder {
	b.taker.kernel = log
	return b
}

// kernelLogFacts say whether the log can be read.
func kernelLogFacts(s *Snapshot) map[Fact]bool {
	if r := s.KernelLogState(); r != nil && r.Err != nil {
		return map[Fact]bool{{Collector: CollectorKernelLog, Device: sysread.ErrnoName(r.Err), Kind: FactNoLog}: true}
	}
	return nil
}

// readKernelLog returns the kernel log's share. There is no worker for it, and no
// status: its reader waits for the log in the background, so that nothing here can
// hang, fail or take long.
func (t *Taker) readKernelLog() *KernelLogPart {
	now := t.now()
	reading, errs := t.kernel.Read(now)
	t.ledger.add(CollectorKernelLog, errs)
	return &KernelLogPart{Taken: now, Units: []UnitPart[kmsg.Reading]{{Name: CollectorKernelLog, Data: &reading}}}
}

package snapshot

import (
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
)

// CollectorProbe is the collector of the GPUDirect RDMA measurement.
const CollectorProbe = "probe"

// ProbePart is the measurements' share of a Snapshot: one unit.
type ProbePart = Part[loopback.Ledger, struct{}]

type probeSource = source[*ledgerUnit, loopback.Ledger, struct{}]

// ledgerUnit reads what measurements on this host add up to.
type ledgerUnit struct {
	read func() (loopback.Ledger, error)
}

// Name names the unit among the devices of the collector probe.
func (*ledgerUnit) Name() string { return "ledger" }

// Read reads the ledger.
func (u *ledgerUnit) Read(time.Time) (loopback.Ledger, []sysread.ReadError) {
	ledger, err := u.read()
	if err != nil {
		// Its bytes are not known, which is not none.
		return loopback.Ledger{}, []sysread.ReadError{{Device: u.Name(), Source: "probe.json", Err: err}}
	}
	return ledger, nil
}

// Close does nothing: no file is kept open.
func (*ledgerUnit) Close() {}

func newProbeSource(options *Options, ledger *Ledger, read func() (loopback.Ledger, error)) *probeSource {
	units := []*ledgerUnit{{read}}
	return newSource(CollectorProbe, options, ledger, func() ([]*ledgerUnit, struct{}, error) { return units, struct{}{}, nil })
}

// ProbeLedger returns what measurements on this host add up to, nil if it was
// not asked for or could not be read.
func (s *Snapshot) ProbeLedger() *loopback.Ledger {
	if s.Probe == nil || len(s.Probe.Units) == 0 {
		return nil
	}
	if ledger := s.Probe.Units[0].Data; ledger != nil && ledger.Version != 0 {
		return ledger
	}
	return nil
}

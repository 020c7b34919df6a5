package snapshot

import "gdr_exporter/gpu/driver"

// Collectors that the driver's files serve. Their errors are counted under driver.
const (
	CollectorDriver  = "driver"
	CollectorPeermem = "peermem"
)

// DriverPart is the driver's and peermem's share of a Snapshot: one unit.
type DriverPart = Part[driver.Reading, struct{}]

type driverSource = source[*driver.Reader, driver.Reading, struct{}]

func newDriverSource(options *Options, ledger *Ledger, reader *driver.Reader) *driverSource {
	units := []*driver.Reader{reader}
	return newSource(CollectorDriver, options, ledger, func() ([]*driver.Reader, struct{}, error) {
		return units, struct{}{}, nil
	})
}

// DriverState returns what the driver's files said, nil if they were not asked
// for or reading them hangs.
func (s *Snapshot) DriverState() *driver.Reading {
	if s.Driver == nil || len(s.Driver.Units) == 0 {
		return nil
	}
	return s.Driver.Units[0].Data
}

package snapshot

import "gdr_exporter/collector/host"

// hostSource reads how the host is wired. It belongs to the collector path: what
// it says is for verdicts.
type hostSource = source[*host.Reader, host.Reading, struct{}]

func newHostSource(options *Options, ledger *Ledger, reader *host.Reader) *hostSource {
	units := []*host.Reader{reader}
	return newSource(CollectorPath, options, ledger, func() ([]*host.Reader, struct{}, error) {
		return units, struct{}{}, nil
	})
}

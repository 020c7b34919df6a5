package snapshot

import (
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/devlink"
)

// DevlinkPart is the devlink health reporters' share of a Snapshot: one unit,
// since the kernel tells of all devices at once. It belongs to the collector
// rdma and has a worker of its own, because a driver that recovers may hold it
// up for seconds.
type DevlinkPart = Part[devlink.Reading, struct{}]

type devlinkSource = source[*devlinkUnit, devlink.Reading, struct{}]

// devlinkUnit asks at most once per interval.
type devlinkUnit struct {
	reader   *devlink.Reader
	interval time.Duration
	last     devlink.Reading
	asked    time.Time
}

// Name names the unit among the devices of the collector rdma.
func (*devlinkUnit) Name() string { return "devlink" }

// Read returns the reporters as of the last interval.
func (u *devlinkUnit) Read(now time.Time) (devlink.Reading, []sysread.ReadError) {
	if !u.asked.IsZero() && now.Sub(u.asked) < u.interval {
		return u.last, nil
	}
	u.asked = now
	reading, errs := u.reader.Read(now)
	for i := range errs {
		errs[i].Device = u.Name()
	}
	u.last = reading
	return reading, errs
}

// Close closes the socket.
func (u *devlinkUnit) Close() { u.reader.Close() }

func newDevlinkSource(options *Options, ledger *Ledger, reader *devlink.Reader, interval time.Duration) *devlinkSource {
	units := []*devlinkUnit{{reader: reader, interval: interval}}
	return newSource(CollectorRDMA, options, ledger, func() ([]*devlinkUnit, struct{}, error) {
		return units, struct{}{}, nil
	})
}

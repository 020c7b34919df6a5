package snapshot

import "time"

// Status says how reading one collector went.
type Status struct {
	Collector string
	Err       error // the devices could not be listed
	Taken     time.Time
	Duration  time.Duration
	Devices   []DeviceStatus
}

// DeviceStatus says how reading one device went.
type DeviceStatus struct {
	Name     string
	Duration time.Duration
	StuckFor time.Duration // 0: it answered
}

// Status returns the state of each collector that was asked for.
func (s *Snapshot) Status() []Status {
	var all []Status
	if s.RDMA != nil {
		all = append(all, s.RDMA.status(CollectorRDMA))
	}
	return all
}

func (p *Part[T, L]) status(collector string) Status {
	status := Status{Collector: collector, Err: p.Err, Taken: p.Taken, Duration: p.Duration}
	status.Devices = make([]DeviceStatus, len(p.Units))
	for i, unit := range p.Units {
		status.Devices[i] = DeviceStatus{unit.Name, unit.Duration, unit.StuckFor}
	}
	return status
}

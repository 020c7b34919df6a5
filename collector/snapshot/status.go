package snapshot

import (
	"slices"
	"time"
)

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
		status := s.RDMA.status(CollectorRDMA)
		if s.Devlink != nil {
			// It is no device: it is named among them only while it hangs.
			for _, unit := range s.Devlink.status(CollectorRDMA).Devices {
				if unit.StuckFor > 0 {
					status.Devices = append(status.Devices, unit)
				}
			}
		}
		all = append(all, status)
	}
	if s.GPU != nil {
		all = append(all, s.GPU.status(CollectorGPU))
	}
	if s.Driver != nil {
		all = append(all, s.Driver.status(CollectorDriver))
	}
	if s.Affinity != nil {
		// Of the many functions only those that hang are named.
		status := s.Affinity.status(CollectorAffinity)
		status.Devices = slices.DeleteFunc(status.Devices, func(d DeviceStatus) bool { return d.StuckFor == 0 })
		all = append(all, status)
	}
	if s.Probe != nil {
		all = append(all, s.Probe.status(CollectorProbe))
	}
	if s.Process != nil {
		// Of the processes only those that hang are named.
		status := s.Process.status(CollectorProcess)
		status.Devices = slices.DeleteFunc(status.Devices, func(d DeviceStatus) bool { return d.StuckFor == 0 })
		all = append(all, status)
	}
	if s.Jobs != nil {
		all = append(all, s.Jobs.status(CollectorJobs))
	}
	if s.Host != nil {
		all = append(all, s.Host.status(CollectorPath))
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

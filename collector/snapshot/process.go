package snapshot

import (
	"context"
	"sync"

	"gdr_exporter/collector/process"
)

// ProcessPart is the processes' share of a Snapshot: a unit per process that uses a
// GPU and an RDMA device, since reading one may hang.
type ProcessPart = Part[process.Job, process.Listing]

// processSource is the source of the processes' part. Which processes are read
// follows from what the same Snapshot says of GPUs and RDMA devices.
type processSource struct {
	*source[*process.JobReader, process.Job, process.Listing]

	mu     sync.Mutex
	users  []process.User
	joined bool
}

func newProcessSource(options *Options, ledger *Ledger, reader *process.Reader) *processSource {
	s := &processSource{}
	s.source = newSource(CollectorProcess, options, ledger, func() ([]*process.JobReader, process.Listing, error) {
		s.mu.Lock()
		users, joined := s.users, s.joined
		s.mu.Unlock()
		listing, jobs, err := reader.List(users, joined)
		return jobs, listing, err
	})
	return s
}

// part is source.part for the processes that both other parts name; nil if there is
// no time left, because one of those took all of it.
func (s *processSource) part(ctx context.Context, rdma *RDMAPart, gpus *GPUPart) *ProcessPart {
	if ctx.Err() != nil {
		return nil
	}
	users, joined := join(rdma, gpus)
	s.mu.Lock()
	s.users, s.joined = users, joined
	s.mu.Unlock()
	return s.source.part(ctx)
}

// join says which processes use both. It is not known unless of at least one RDMA
// device and one GPU it is known who uses them.
func join(rdma *RDMAPart, gpus *GPUPart) (users []process.User, joined bool) {
	if rdma == nil || gpus == nil {
		return nil, false
	}
	var devices []process.Holder
	for i := range rdma.Units {
		unit := &rdma.Units[i]
		if unit.Data == nil || !unit.Data.Usage.Owners.Known {
			continue
		}
		owners := unit.Data.Usage.Owners.Value
		device := process.Holder{Name: unit.Name, PIDs: make([]int, len(owners))}
		for i := range owners {
			device.PIDs[i] = owners[i].PID
		}
		devices = append(devices, device)
	}
	cards, known := gpuHolders(gpus)
	return process.Join(cards, devices), len(devices) > 0 && known
}

// ProcessState returns the processes; nil if they were not asked for or it cannot be
// said which there are. One whose read hangs is among them, with nothing known but
// what it uses.
func (s *Snapshot) ProcessState() *process.Reading {
	if s.Process == nil || s.Process.Err != nil {
		return nil
	}
	listing := &s.Process.Listing
	reading := &process.Reading{Visible: listing.Visible, Joined: listing.Joined, Omitted: listing.Omitted}
	read := make(map[int]*process.Job, len(s.Process.Units))
	for i := range s.Process.Units {
		if job := s.Process.Units[i].Data; job != nil {
			read[job.PID] = job
		}
	}
	for i := range listing.Users {
		user := &listing.Users[i]
		switch job := read[user.PID]; {
		case job == nil:
			reading.Jobs = append(reading.Jobs, process.JobOf(user))
		case !job.Gone:
			reading.Jobs = append(reading.Jobs, *job)
		}
	}
	return reading
}

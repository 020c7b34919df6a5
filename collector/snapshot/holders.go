package snapshot

import (
	"context"
	"sync"
	"time"

	"gdr_exporter/collector/jobs"
	"gdr_exporter/collector/podresources"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
)

// Collectors of who holds GPUs and RDMA devices.
const (
	CollectorPods = "pods"
	CollectorJobs = "jobs"
)

// PodPart is the kubelet's share of a Snapshot: one unit.
type PodPart = Part[podresources.Reading, struct{}]

// JobPart is the share of a Snapshot of whose processes are on GPUs: one unit.
type JobPart = Part[jobs.Reading, struct{}]

// Pods is what asks the kubelet: a podresources.Reader. Read must return within a
// moment: a kubelet that hangs must not hold up a scrape.
type Pods interface {
	Read(ctx context.Context, now time.Time) (podresources.Reading, []sysread.ReadError)
	Close()
}

// Pods adds which pods were given which devices.
func (b *Builder) Pods(pods Pods) *Builder {
	b.taker.pods = pods
	return b
}

// Jobs adds whose processes are on the GPUs. Which those are the reader of GPU says, so
// it is needed.
func (b *Builder) Jobs(reader *jobs.Reader) *Builder {
	b.taker.jobs = newJobSource(&b.options, b.taker.ledger, reader)
	return b
}

// readPods returns the kubelet's share. There is no worker for it, and no status: its
// reader asks in the background.
func (t *Taker) readPods(ctx context.Context) *PodPart {
	now := t.now()
	reading, errs := t.pods.Read(ctx, now)
	t.ledger.add(CollectorPods, errs)
	return &PodPart{Taken: now, Units: []UnitPart[podresources.Reading]{{Name: CollectorPods, Data: &reading}}}
}

// PodState returns what the kubelet said, nil if it was not asked for.
func (s *Snapshot) PodState() *podresources.Reading { return only(s.Pods) }

// jobSource is the source of the jobs' part. Which processes are looked at follows from
// what the same Snapshot says of GPUs.
type jobSource struct {
	*source[*jobs.Reader, jobs.Reading, struct{}]
	reader *jobs.Reader
}

func newJobSource(options *Options, ledger *Ledger, reader *jobs.Reader) *jobSource {
	units := []*jobs.Reader{reader}
	return &jobSource{newSource(CollectorJobs, options, ledger, func() ([]*jobs.Reader, struct{}, error) {
		return units, struct{}{}, nil
	}), reader}
}

// part is source.part for the processes that the GPUs' part names; nil where that does
// not say, since no job would then be one that is not known, or if there is no time
// left.
func (s *jobSource) part(ctx context.Context, gpus *GPUPart) *JobPart {
	holders, known := gpuHolders(gpus)
	if ctx.Err() != nil || !known {
		return nil
	}
	s.reader.On(holders)
	return s.source.part(ctx)
}

// gpuHolders are the processes on each GPU. It is not known unless of at least one GPU
// it is known who uses it.
func gpuHolders(gpus *GPUPart) (holders []process.Holder, known bool) {
	if gpus == nil {
		return nil, false
	}
	for i := range gpus.Units {
		reading := gpus.Units[i].Data
		if reading == nil || reading.State != gpu.StateUp {
			continue
		}
		for j := range reading.GPUs {
			if card := &reading.GPUs[j]; card.PIDs.Known {
				holders = append(holders, process.Holder{Name: card.Address, PIDs: card.PIDs.Value})
			}
		}
	}
	return holders, len(holders) > 0
}

// JobState returns whose processes are on GPUs, nil if it was not asked for, is not
// known, or hangs.
func (s *Snapshot) JobState() *jobs.Reading { return only(s.Jobs) }

// takeHolders reads who holds devices, where it is asked for. uses is done once it is
// known which processes there are.
func (t *Taker) takeHolders(ctx context.Context, s *Snapshot, asks func(collectors ...string) bool, reading, uses *sync.WaitGroup) {
	if pods := asks(CollectorPods); t.pods != nil && pods {
		reading.Go(func() { s.Pods = t.readPods(ctx) })
	}
	if processes := asks(CollectorJobs); t.jobs != nil && processes {
		reading.Go(func() {
			uses.Wait()
			s.Jobs = t.jobs.part(ctx, s.GPU)
		})
	}
}

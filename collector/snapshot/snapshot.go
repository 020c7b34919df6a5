package snapshot

import (
	"context"
	"sync"
	"time"

	"gdr_exporter/collector/host"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/devlink"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/peer"
)

// Options say how a Taker reads.
type Options struct {
	// MaxAge is the age up to which what one scrape read serves another; 0: never.
	MaxAge time.Duration
	// Deadline is the longest a scrape waits. A device whose read takes longer
	// is taken to hang.
	Deadline time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Tell is called once for each new kind of read error; nil: nobody is told.
	Tell func(collector string, err sysread.ReadError)
	// Changed is called for each condition that came or went; nil: nobody is told.
	Changed func(Change)
	// Taken is called with each Snapshot that was taken; nil: nobody looks.
	Taken func(*Snapshot)
}

// Snapshot is what was read of a host at one time. It is immutable.
type Snapshot struct {
	Taken time.Time
	// RDMA holds the RDMA devices; nil if they were not asked for.
	RDMA *RDMAPart
	// Devlink holds the devlink health reporters; nil if they were not asked for.
	Devlink *DevlinkPart
	// GPU holds what NVML says; nil if neither gpu, nvlink nor fabric was asked for.
	GPU *GPUPart
	// Driver holds the driver's and peermem's state; nil if neither was asked for.
	Driver *DriverPart
	// Affinity holds the PCIe tree of GPUs and RDMA devices; nil if no collector
	// that needs it was asked for.
	Affinity *AffinityPart
	// Probe holds what measurements add up to; nil if it was not asked for.
	Probe *ProbePart
	// Prober is what the scheduler of measurements shows; nil if it was not asked
	// for or this process has none.
	Prober *prober.Status
	// Peer is what is known of the paths to other nodes; nil if it was not asked for or
	// this process measures none.
	Peer *peer.Status
	// KernelLog holds what the kernel's log says of interconnects; nil if it was not
	// asked for.
	KernelLog *KernelLogPart
	// Host holds how this host, or container, is wired; nil if it was not asked for.
	Host *HostPart
	// Process holds the processes that use GPUs and RDMA devices; nil if they were
	// not asked for, as by default.
	Process *ProcessPart
	// Pods holds which pods were given which devices, and Jobs whose processes are on
	// the GPUs; nil if they were not asked for, as by default.
	Pods *PodPart
	Jobs *JobPart
	// Expected is what the node should have; nil if verdicts were not asked for, or
	// nothing is ever expected.
	Expected *profile.Expectation
	// Asked are the collectors that the Snapshot was asked for.
	Asked map[string]bool
	// Errors are the read errors since start.
	Errors []ErrorCount
}

// Taker takes Snapshots. Its methods may be called concurrently.
type Taker struct {
	now     func() time.Time
	ledger  *Ledger
	watcher watcher
	taken   func(*Snapshot)
	rdma    *rdmaSource
	devlink *devlinkSource
	gpu     *gpuSource
	driver  *driverSource
	pci     *affinitySource
	probe   *probeSource
	prober  func() *prober.Status
	peer    func() *peer.Status
	host    *hostSource
	expect  func(*profile.Facts) profile.Expectation
	process *processSource
	kernel  KernelLog
	pods    Pods
	jobs    *jobSource
}

// New begins a Taker; the Builder's methods add what it reads.
func New(options Options) *Builder {
	if options.Now == nil {
		options.Now = time.Now
	}
	ledger := NewLedger(options.Now, options.Tell)
	taker := &Taker{now: options.Now, ledger: ledger, taken: options.Taken}
	// A scrape waits a moment less than its deadline for a read that it starts.
	taker.watcher.tell, taker.watcher.hang = options.Changed, options.Deadline*9/10
	return &Builder{options: options, taker: taker}
}

// Builder puts a Taker together.
type Builder struct {
	options Options
	taker   *Taker
}

// RDMA adds the RDMA devices of reader. An event that monitor hears, which may
// be nil, makes the next scrape read anew.
func (b *Builder) RDMA(reader *rdma.Reader, monitor *rdma.Monitor) *Builder {
	b.taker.rdma = newRDMASource(&b.options, b.taker.ledger, reader)
	if monitor != nil {
		monitor.OnChange(b.taker.rdma.invalidate)
	}
	return b
}

// Devlink adds the devlink health reporters, read at most once per interval.
func (b *Builder) Devlink(reader *devlink.Reader, interval time.Duration) *Builder {
	b.taker.devlink = newDevlinkSource(&b.options, b.taker.ledger, reader, interval)
	return b
}

// GPU adds what NVML says.
func (b *Builder) GPU(reader *gpu.Reader) *Builder {
	b.taker.gpu = newGPUSource(&b.options, b.taker.ledger, reader)
	return b
}

// Driver adds the state of the driver and of peermem.
func (b *Builder) Driver(reader *driver.Reader) *Builder {
	b.taker.driver = newDriverSource(&b.options, b.taker.ledger, reader)
	return b
}

// Affinity adds the PCIe tree.
func (b *Builder) Affinity(reader *affinity.Reader) *Builder {
	b.taker.pci = newAffinitySource(&b.options, b.taker.ledger, reader)
	return b
}

// Probe adds what measurements on this host add up to in the file at path.
func (b *Builder) Probe(path string) *Builder {
	return b.ProbeOf(func() (loopback.Ledger, error) { return loopback.ReadLedger(path) })
}

// ProbeOf adds what measurements add up to according to read.
func (b *Builder) ProbeOf(read func() (loopback.Ledger, error)) *Builder {
	b.taker.probe = newProbeSource(&b.options, b.taker.ledger, read)
	return b
}

// Prober adds what the scheduler of measurements shows. status must return at
// once, and may return nil.
func (b *Builder) Prober(status func() *prober.Status) *Builder {
	b.taker.prober = status
	return b
}

// Process adds the processes that use GPUs and RDMA devices. Which those are the
// readers of RDMA and GPU say, so both are needed.
func (b *Builder) Process(reader *process.Reader) *Builder {
	b.taker.process = newProcessSource(&b.options, b.taker.ledger, reader)
	return b
}

// Host adds how the host is wired.
func (b *Builder) Host(reader *host.Reader) *Builder {
	b.taker.host = newHostSource(&b.options, b.taker.ledger, reader)
	return b
}

// Expect adds what the node should have. expect must return at once.
func (b *Builder) Expect(expect func(*profile.Facts) profile.Expectation) *Builder {
	b.taker.expect = expect
	return b
}

// Taker returns the finished Taker.
func (b *Builder) Taker() *Taker { return b.taker }

// Take returns a Snapshot of the wanted collectors; wanted is asked by collector
// name. It returns by ctx's deadline at the latest, with what has been read.
func (t *Taker) Take(ctx context.Context, wanted func(collector string) bool) *Snapshot {
	s := &Snapshot{Taken: t.now(), Asked: map[string]bool{}}
	// A verdict rests on everything: of a part that is missing nothing is concluded.
	path := wanted(CollectorPath)
	asks := func(collectors ...string) bool {
		found := path
		for _, name := range collectors {
			s.Asked[name] = wanted(name)
			found = found || s.Asked[name]
		}
		return found
	}
	var reading, uses sync.WaitGroup // uses: of what says which processes there are
	// Pods are shown by GPU and RDMA device, and jobs by GPU.
	rdma := asks(CollectorRDMA, CollectorPods)
	if t.rdma != nil && rdma {
		uses.Go(func() { s.RDMA = t.rdma.part(ctx) })
	}
	if t.devlink != nil && rdma {
		reading.Go(func() { s.Devlink = t.devlink.part(ctx) })
	}
	if nvml := asks(CollectorGPU, CollectorNVLink, CollectorFabric, CollectorPods, CollectorJobs); t.gpu != nil && nvml {
		uses.Go(func() { s.GPU = t.gpu.part(ctx) })
	}
	if files := asks(CollectorDriver, CollectorPeermem, CollectorGPU); t.driver != nil && files {
		reading.Go(func() { s.Driver = t.driver.part(ctx) })
	}
	// The tree also says which GPUs there are and which NICs are near to one.
	if tree := asks(CollectorAffinity, CollectorPCIe, CollectorGPU, CollectorRDMA); t.pci != nil && tree {
		reading.Go(func() { s.Affinity = t.pci.part(ctx) })
	}
	probe := asks(CollectorProbe)
	if t.probe != nil && probe {
		reading.Go(func() { s.Probe = t.probe.part(ctx) })
	}
	if processes := asks(CollectorProcess); t.process != nil && processes {
		reading.Go(func() {
			uses.Wait()
			s.Process = t.process.part(ctx, s.RDMA, s.GPU)
		})
	}
	t.takeHolders(ctx, s, asks, &reading, &uses)
	if peers := asks(CollectorPeer); t.peer != nil && peers {
		s.Peer = t.peer()
	}
	s.Asked[CollectorPath] = path
	if t.host != nil && path {
		reading.Go(func() { s.Host = t.host.part(ctx) })
	}
	if log := asks(CollectorKernelLog); t.kernel != nil && log {
		s.KernelLog = t.readKernelLog()
	}
	reading.Wait()
	uses.Wait()
	t.conclude(s, path)
	if t.prober != nil && probe {
		s.Prober = t.prober() // it may just have been told of this Snapshot
	}
	return s
}

// conclude completes a Snapshot by what follows from its parts, and tells of it.
func (t *Taker) conclude(s *Snapshot, path bool) {
	s.joinC2C()
	if t.expect != nil && path {
		facts := s.ProfileFacts()
		expected := t.expect(&facts)
		s.Expected = &expected
	}
	t.watcher.look(s)
	s.Errors = t.ledger.Counts()
	if t.taken != nil {
		t.taken(s)
	}
}

// RereadNVML makes the next Snapshot read NVML anew, whatever the age of the last
// reading: its state was changed by command.
func (t *Taker) RereadNVML() {
	if t.gpu != nil {
		t.gpu.invalidate()
	}
}

// Close releases what the readers keep open. No Snapshot may be taken after it.
func (t *Taker) Close() {
	if t.rdma != nil {
		t.rdma.close()
	}
	if t.devlink != nil {
		t.devlink.close()
	}
	if t.gpu != nil {
		t.gpu.close()
	}
	if t.driver != nil {
		t.driver.close()
	}
	if t.pci != nil {
		t.pci.close()
	}
	if t.probe != nil {
		t.probe.close()
	}
	if t.host != nil {
		t.host.close()
	}
	if t.process != nil {
		t.process.close()
	}
	if t.pods != nil {
		t.pods.Close()
	}
	if t.jobs != nil {
		t.jobs.close()
	}
	if t.kernel != nil {
		t.kernel.Close()
	}
}

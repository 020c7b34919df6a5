package main

import (
	"context"
	"iter"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/status"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/cuda"
	"gdr_exporter/gpu/cuda/loopgpu"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/isolate"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/peer"
)

// scheduler is the prober as the daemon uses it.
type scheduler interface {
	measurer
	Run(ctx context.Context)
	Saw(seen prober.Sighting)
	Hanging() bool
	HungRuns() []prober.HungRun
	Isolate(reason string)
}

// addProber makes the prober. It begins with startProber.
func (d *daemon) addProber(host *proberHost, from *heritage) {
	c, s := d.config, &d.config.schedule
	options := prober.Options{
		Host: host, Runner: c.runner(),
		Interval: s.interval, FirstWithin: s.firstWithin, RegisterInterval: s.register, BusyInterval: s.busyInterval,
		StagedInterval: s.staged, MaxAge: s.maxAge, Busy: prober.Busy(s.busy), Isolation: isolations[s.isolation],
		Limits: s.limits, Spec: c.scheduledSpec(), LockPath: s.lock, MinFree: uint64(s.minFree),
		RunsPerHour: s.runsPerHour, BytesPerHour: uint64(s.bytesPerHour),
		StateDir: d.ownStateDir(), Kernel: kernelRelease(), BootID: bootID(), QuiescedUntil: from.QuiescedUntil, Hung: from.Hung,
		Event:   logEvent(d.logger.With(zap.String("component", "probe"))),
		Restart: func(reason string) { d.restarter.ask(causeCUDA, reason) },
	}
	if d.measuringOff() != "" {
		options.Interval = 0
	}
	host.remember(activePorts(options.StateDir))
	d.openBook(options.StateDir)
	p := prober.New(options)
	d.prober, d.restarter.isolate = p, p.Isolate
	if from.Isolated != "" {
		p.Isolate(from.Isolated)
	}
}

// isolations are the values of --probe.isolation.
var isolations = map[string]prober.Isolation{"in-process": prober.InProcess, "process": prober.InChild}

// measuringOff is why nothing is measured at all, "" if it is.
func (d *daemon) measuringOff() string {
	for _, needed := range []string{snapshot.CollectorProbe, snapshot.CollectorRDMA} {
		if !d.config.reads(needed) {
			return "nothing is measured with --no-collector." + needed
		}
	}
	return ""
}

// ownStateDir keeps the state directory for this process, and returns "" where
// that cannot be: two that write one file would lose each other's results.
func (d *daemon) ownStateDir() string {
	dir := d.config.stateDir
	if dir == "" {
		return ""
	}
	unlock, err := prober.LockState(dir)
	if err != nil {
		d.logger.Warn("results do not outlive the exporter", zap.String("dir", dir), zap.Error(err))
		return ""
	}
	d.unlockState = unlock
	return dir
}

// activePorts are the ports that the state file knows as ACTIVE once. That it
// cannot be read the prober tells.
func activePorts(stateDir string) iter.Seq[prober.Port] {
	return func(yield func(prober.Port) bool) {
		if stateDir == "" {
			return
		}
		state, err := prober.ReadState(stateDir)
		if err != nil {
			return
		}
		for _, record := range state.Ports {
			if !yield(prober.Port{Device: record.Device, Number: record.Port}) {
				return
			}
		}
	}
}

// scheduledSpec is what all scheduled runs have in common.
func (c *config) scheduledSpec() loopback.Spec {
	s := &c.schedule
	spec := loopback.Spec{
		BufferSize: int(s.buffer), Bytes: uint64(s.bytes), QueuePairs: s.queuePairs, Deadline: s.timeout, PKey: s.pkey,
		FreeGPUMemory: uint64(s.minFree), LedgerPath: c.probeLedger, LibraryDirs: verbsDirs, SysfsRoot: c.sysfs,
	}
	if s.gid >= 0 {
		spec.GID = sysread.Some(s.gid)
	}
	return spec
}

// kernelRelease is what uname -r prints, "" if the kernel does not say.
func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// bootID tells boots apart, "" if the kernel does not.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// startProber lets the prober make runs.
func (d *daemon) startProber() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	d.endProber, d.proberEnded, d.endsLate = cancel, ended, nil
	go func() {
		defer close(ended)
		d.prober.Run(ctx)
	}()
}

// proberGrace is how long the prober may take to end: longer than a run may.
const proberGrace = 10 * time.Second

// stopProber ends the run in progress and returns whether it ended in time. The
// prober has written its state then.
func (d *daemon) stopProber(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, d.proberGrace)
	defer cancel()
	d.endProber()
	select {
	case <-d.proberEnded:
		return true
	case <-ctx.Done():
		return false
	}
}

// addControl makes what commands act on. nvml may be nil.
func (d *daemon) addControl(nvml *gpu.Reader) {
	logger := d.logger.With(zap.String("component", "control"))
	d.quiet = &quiet{
		prober: d.prober, open: func() ([]string, error) { return heldFiles("/proc/self", driverFiles) },
		afresh: func() { d.restarter.ask(causeQuiesce, "quiesced, and driver files are open") },
		stay:   func() { d.restarter.withdraw(causeQuiesce) },
		logger: logger,
	}
	if nvml != nil { // else the interface would not be nil
		d.quiet.nvml = shownNVML{nvml, d.taker}
	}
	d.control = &control{
		prober: d.prober, forgetLearned: d.book.Forget, quiet: d.quiet, restart: d.restarter.state, off: d.measuringOff(), logger: logger, stopping: d.waiting,
		peers:    func() *peer.Status { return d.peers.status() },
		document: func(ctx context.Context) *status.Document { page := d.page(ctx); return page.Document() },
	}
}

// shownNVML is NVML's reader with what is served of it: the next scrape does not
// show what was read before.
type shownNVML struct {
	*gpu.Reader
	taker *snapshot.Taker
}

// Quiesce is the reader's.
func (n shownNVML) Quiesce(ctx context.Context) error {
	defer n.taker.RereadNVML()
	return n.Reader.Quiesce(ctx)
}

// Resume is the reader's.
func (n shownNVML) Resume() {
	defer n.taker.RereadNVML()
	n.Reader.Resume()
}

// eventNews are the log messages for what the prober tells.
var eventNews = map[prober.EventKind]struct {
	message string
	level   zapcore.Level
}{
	prober.EventResult:      {"result of the measurement changed", zapcore.InfoLevel},
	prober.EventUnconfirmed: {"a measurement is worse than what is known; it is repeated", zapcore.InfoLevel},
	prober.EventWithdrawn:   {"the result of the measurement stands no more", zapcore.InfoLevel},
	prober.EventSkip:        {"not measured", zapcore.InfoLevel},
	prober.EventBroken:      {"a measurement could not be carried through", zapcore.WarnLevel},
	prober.EventHung:        {"a measurement hangs; its GPU and NIC are left alone until a restart", zapcore.ErrorLevel},
	prober.EventState:       {"the state file cannot be used", zapcore.WarnLevel},
	prober.EventIsolation:   {"measurements are made in child processes from now on", zapcore.WarnLevel},
}

// logEvent logs what the prober tells, which it tells once.
func logEvent(logger *zap.Logger) func(prober.Event) {
	return func(event prober.Event) {
		text, known := eventNews[event.Kind]
		if !known {
			text.message, text.level = string(event.Kind), zapcore.InfoLevel
		}
		if event.Kind == prober.EventSkip && event.Text == "" {
			text.message = "measured again"
		}
		var fields []zap.Field
		if event.Pair != (prober.Pair{}) {
			fields = append(fields, zap.String("gpu", event.Pair.GPU), zap.String("device", event.Pair.Device), zap.Int("port", event.Pair.Port))
		}
		if event.Text != "" {
			fields = append(fields, zap.String("why", event.Text))
		}
		if event.Err != nil {
			fields = append(fields, zap.Error(event.Err))
		}
		logger.Log(text.level, text.message, fields...)
	}
}

// runner makes the daemon's runs.
func (c *config) runner() *isolate.Runner {
	return &isolate.Runner{
		Open:     openGPU,
		Settings: func(address string, _ bool) isolate.GPUSettings { return c.gpuSettings(address) },
		Environ:  childEnviron,
	}
}

// gpuSettings say how to open a GPU for measurements.
func (c *config) gpuSettings(address string) isolate.GPUSettings {
	return isolate.GPUSettings{Address: address, Roots: c.driverRoots, MinFree: uint64(c.schedule.minFree)}
}

// childEnviron is the environment of children that measure: no client of MPS, which
// would have them share a context with jobs.
func childEnviron() []string { return cuda.WithoutMPS(os.Environ()) }

// openGPU returns what opens a GPU for a run, in this process or in a child.
func openGPU(s isolate.GPUSettings) func() (loopback.GPU, error) {
	return func() (loopback.GPU, error) {
		return loopgpu.Open(s.Address, cuda.Options{Roots: s.Roots, MinFree: s.MinFree})
	}
}

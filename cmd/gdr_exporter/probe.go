package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/alecthomas/units"
	"golang.org/x/term"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/status"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/cuda"
	"gdr_exporter/gpu/cuda/loopgpu"
	"gdr_exporter/rdma/loopback"
)

const probeHelp = "Measure GPUDirect RDMA: RDMA writes of a NIC to itself, between host and GPU memory, and through copies for comparison. " +
	"Moves at most 1.3 GB through the NIC for each pair, none of which leaves it, and takes about 650 MiB of GPU memory meanwhile.\n\n" +
	"Example, one pair:\n\n  gdr_exporter probe --gpu 0000:1b:00.0 --device mlx5_0\n\n" +
	"Exit code: 0 all paths were measured and are within their limits, 3 GPU memory cannot be reached, is reached slowly, or data arrived wrong, " +
	"4 something could not be measured or is not supported (port down, too little GPU memory, another run, no library; with --if-idle also a pair under load), 2 a mistake on the command line."

// Exit codes of the command probe.
const (
	exitProbeBad       = 3
	exitProbeNotJudged = 4
)

// probeConfig is what the command line says of a probe.
type probeConfig struct {
	gpu, device, paths, output, lock string
	port, queuePairs                 int
	pkey                             uint16
	gid                              int
	timeout                          time.Duration
	minFree                          units.Base2Bytes
	all, ifIdle                      bool
}

// probeFlags adds the command probe.
func probeFlags(app *kingpin.Application, c *config) {
	p := &c.probe
	command := app.Command("probe", probeHelp)
	command.Flag("gpu", "GPU by its PCI address, as gdr_exporter topo shows it; none for host memory alone. Default: every GPU.").PlaceHolder("ADDRESS").StringVar(&p.gpu)
	command.Flag("device", "RDMA device. Default: the compute devices nearest to the GPU; without a GPU, every device.").PlaceHolder("NAME").StringVar(&p.device)
	command.Flag("all-pairs", "Every GPU with every compute device, not only with the nearest.").BoolVar(&p.all)
	command.Flag("if-idle", "Measure only pairs that are idle, as the daemon does: below 5% of the port's rate and 10% GPU utilisation over 10s; end when a process comes to the GPU.").BoolVar(&p.ifIdle)
	command.Flag("port", "Port of the RDMA device.").Default("1").IntVar(&p.port)
	command.Flag("paths", "Paths to measure, separated by commas: host, gpu_read, gpu_write, gpu, staged. Without host there is nothing to compare with. Default: all.").PlaceHolder("LIST").StringVar(&p.paths)
	command.Flag("queue-pairs", "Pairs of queue pairs.").Default("4").IntVar(&p.queuePairs)
	command.Flag("pkey", "P_Key value, such as 0x8001. Default: the first of full membership.").PlaceHolder("VALUE").Uint16Var(&p.pkey)
	command.Flag("gid-index", "Index in the GID table. Default: chosen as perftest does.").Default("-1").IntVar(&p.gid)
	command.Flag("timeout", "Longest a pair may take.").Default("10s").DurationVar(&p.timeout)
	command.Flag("min-free", "GPU memory that must be free, such as 512MiB.").Default("4GiB").BytesVar(&p.minFree)
	command.Flag("lock", "File that keeps two runs on this host apart.").Default(loopback.LockPath).StringVar(&p.lock)
	command.Flag("output", "Form of the output: table or json.").Default("table").EnumVar(&p.output, "table", "json")
}

// probePair is a pair to measure; GPU is "" for host memory alone.
type probePair struct {
	gpu, device string
	distance    affinity.Distance
}

// probe measures pairs, one after the other, and prints what it found.
func probe(ctx context.Context, c *config, stdout, stderr io.Writer) error {
	if err := c.validate(); err != nil {
		return err
	}
	paths, err := c.probe.wantedPaths()
	if err != nil {
		return err
	}
	listing, err := c.tree(ctx)
	if ctx.Err() != nil {
		return exitError(exitProbeNotJudged)
	}
	if err != nil {
		return err
	}
	pairs, err := c.probe.pairs(&listing)
	if err != nil {
		return err
	}
	if len(pairs) == 0 {
		fmt.Fprintln(stderr, "No RDMA device on this host.")
	}
	progress := newProgress(stderr)
	gate := c.noGate
	if c.probe.ifIdle && len(pairs) > 0 {
		progress.show("looking whether the pairs are idle")
		var done func()
		gate, done = c.idleGate(ctx, pairs)
		defer done()
	}
	reports := []status.ProbeReport{}
	for _, pair := range pairs {
		spec := c.probeSpec(pair, paths, progress.stage(pair))
		result := gate(ctx, pair, spec)
		progress.clear()
		report := status.NewProbeReport(pair.gpu, pair.distance, &result)
		reports = append(reports, report)
		if c.probe.output == "table" {
			if err := report.WriteTable(stdout); err != nil {
				return err
			}
			_, _ = io.WriteString(stdout, "\n")
		}
		if ctx.Err() != nil {
			break
		}
	}
	switch {
	case c.probe.output == "json":
		err = status.WriteProbeJSON(stdout, reports)
	case len(reports) > 0:
		_, err = io.WriteString(stdout, status.ProbeLegend)
	}
	if err != nil {
		return err
	}
	return probeExit(ctx, reports)
}

// probeExit is the error that gives the exit code.
func probeExit(ctx context.Context, reports []status.ProbeReport) error {
	has := func(outcomes ...loopback.Outcome) bool {
		return slices.ContainsFunc(reports, func(r status.ProbeReport) bool { return slices.Contains(outcomes, r.Outcome) })
	}
	switch {
	case has(loopback.Corrupt, loopback.Failed, loopback.Slow):
		return exitError(exitProbeBad)
	case len(reports) == 0 || has(loopback.NotJudged, loopback.Unsupported) || ctx.Err() != nil:
		return exitError(exitProbeNotJudged)
	default:
		return nil
	}
}

// exitError ends the process with a code; all that is to be said was printed.
type exitError int

// Error is for nobody: see run.
func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// tree reads the PCIe tree once.
func (c *config) tree(ctx context.Context) (affinity.Listing, error) {
	taker := snapshot.New(snapshot.Options{Deadline: c.deadline}).Affinity(c.affinityReader(c.origin())).Taker()
	defer taker.Close()
	ctx, cancel := context.WithTimeout(ctx, c.deadline)
	defer cancel()
	part := taker.Take(ctx, func(name string) bool { return name == snapshot.CollectorAffinity }).Affinity
	return part.Listing, part.Err
}

func (p *probeConfig) wantedPaths() ([]loopback.Path, error) {
	if p.paths == "" {
		return nil, nil
	}
	var paths []loopback.Path
	for name := range strings.SplitSeq(p.paths, ",") {
		if !slices.Contains(loopback.Paths, loopback.Path(name)) {
			return nil, usagef("--paths=%s: unknown path %q", p.paths, name)
		}
		paths = append(paths, loopback.Path(name))
	}
	return paths, nil
}

// pairs are the pairs that the command line asks for.
func (p *probeConfig) pairs(listing *affinity.Listing) ([]probePair, error) {
	devices := slices.Sorted(maps.Keys(listing.Roles))
	if p.device != "" && !slices.Contains(devices, p.device) {
		return nil, usagef("--device=%s: no such RDMA device; there are: %s", p.device, orNone(devices))
	}
	gpus := gpuAddresses(listing)
	if p.gpu != "" && p.gpu != "none" && !slices.Contains(gpus, p.gpu) {
		return nil, usagef("--gpu=%s: no such GPU; there are: %s", p.gpu, orNone(gpus))
	}
	var pairs []probePair
	if p.gpu == "none" || len(gpus) == 0 {
		for _, device := range devices {
			if p.device == "" || p.device == device {
				pairs = append(pairs, probePair{device: device})
			}
		}
	} else {
		for i := range listing.Pairs {
			if pair := &listing.Pairs[i]; p.wants(pair, listing.Roles) {
				pairs = append(pairs, probePair{pair.GPU, pair.Device, pair.Distance})
			}
		}
	}
	if len(pairs) == 0 && len(devices) > 0 {
		return nil, usagef("no RDMA device is known to be near to a GPU; name one with --device")
	}
	return pairs, nil
}

func (p *probeConfig) wants(pair *affinity.Pair, roles map[string]string) bool {
	if p.gpu != "" && p.gpu != pair.GPU || p.device != "" && p.device != pair.Device {
		return false
	}
	return p.device != "" || roles[pair.Device] == "compute" && (pair.Nearest || p.all)
}

func gpuAddresses(listing *affinity.Listing) []string {
	var addresses []string
	for i := range listing.Functions {
		if listing.Functions[i].Kind == affinity.KindGPU {
			addresses = append(addresses, listing.Functions[i].Address)
		}
	}
	return addresses
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, " ")
}

// verbsDirs are where distributions put libibverbs.so.1; elsewhere the loader
// looks for it.
var verbsDirs = []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"}

// probeSpec is the run of a pair.
func (c *config) probeSpec(pair probePair, paths []loopback.Path, onStage func(loopback.Stage, loopback.Path)) loopback.Spec {
	p := &c.probe
	spec := loopback.Spec{
		Device: pair.device, Port: p.port, Paths: paths, QueuePairs: p.queuePairs, PKey: p.pkey, Deadline: p.timeout,
		LockPath: p.lock, LedgerPath: filepath.Join(filepath.Dir(p.lock), filepath.Base(loopback.LedgerPath)), LibraryDirs: verbsDirs, SysfsRoot: c.sysfs, OnStage: onStage,
	}
	if p.gid >= 0 {
		spec.GID = sysread.Some(p.gid)
	}
	if pair.gpu == "" {
		spec.Paths = []loopback.Path{loopback.PathHost}
		return spec
	}
	spec.FreeGPUMemory = uint64(p.minFree)
	spec.OpenGPU = func() (loopback.GPU, error) {
		return loopgpu.Open(pair.gpu, cuda.Options{Roots: c.driverRoots, MinFree: uint64(p.minFree)})
	}
	return spec
}

// progress shows on a terminal what is being done.
type progress struct {
	w    io.Writer // nil: it is no terminal
	last int       // length of the line shown
}

func newProgress(stderr io.Writer) *progress {
	if file, is := stderr.(*os.File); is && term.IsTerminal(int(file.Fd())) {
		return &progress{w: stderr}
	}
	return &progress{}
}

func (p *progress) stage(pair probePair) func(loopback.Stage, loopback.Path) {
	what := strings.TrimSpace(pair.gpu + " " + pair.device)
	return func(stage loopback.Stage, path loopback.Path) {
		p.show(strings.TrimSpace(fmt.Sprintf("%s: %s %s", what, stage, path)))
	}
}

func (p *progress) show(line string) {
	if p.w == nil {
		return
	}
	fmt.Fprintf(p.w, "\r%-*s", p.last, line)
	p.last = len(line)
}

func (p *progress) clear() {
	if p.w == nil || p.last == 0 {
		return
	}
	fmt.Fprintf(p.w, "\r%*s\r", p.last, "")
	p.last = 0
}

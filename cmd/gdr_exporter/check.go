package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"
	"golang.org/x/term"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/status"
	"gdr_exporter/gpu"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/peer"
)

const checkHelp = "Inspect this node once: GPUs, NICs, driver and modules, ports, topology, NVLink, the host's wiring, what libraries would do, and what was measured. " +
	"The answer is in the first line; each line says what was seen and what to do. Nothing is changed.\n\n" +
	"Results of measurements are those of the running exporter, or of its state file; --probe measures now.\n\n" +
	"Exit code: 0 fine, 1 a warning, 2 something critical, 3 not judged (no pair to judge, a pair of which nothing is known, a device or driver that does not answer, " +
	"the time is over), 64 a mistake on the command line.\n\n" +
	"Example, in a prolog that keeps jobs off a node with something critical:\n\n  gdr_exporter check --fail-on=critical --timeout=10s; test $? -ne 2\n\n" +
	"Example, measuring, for a person:\n\n  gdr_exporter check --probe"

// checkConfig is what the command line says of a check.
type checkConfig struct {
	output, failOn, color string
	probe                 bool
	timeout               time.Duration
	peers                 []string // nodes to measure with
}

// checkFlags adds the command check.
func checkFlags(app *kingpin.Application, c *config) {
	x := &c.check
	command := app.Command("check", checkHelp)
	command.Flag("output", "Form of the output: table, json or junit.").Default("table").EnumVar(&x.output, "table", "json", "junit")
	command.Flag("probe", "Measure the pairs now: by the running exporter if one answers at --control.socket, else in processes of its own.").BoolVar(&x.probe)
	command.Flag("peer", "Measure the path to another node's exporter now, as gdr_exporter peer does; may be repeated.").PlaceHolder("HOST").StringsVar(&x.peers)
	command.Flag("timeout", "Longest it may take; what is not known by then is not judged.").Default("30s").DurationVar(&x.timeout)
	command.Flag("fail-on", "Least severity at which the exit code is not 0: warning or critical. What is not judged is 3 with either.").
		Default("warning").EnumVar(&x.failOn, "warning", "critical")
	command.Flag("color", "Colour the table: auto (on a terminal, unless NO_COLOR is set), always or never.").Default("auto").EnumVar(&x.color, "auto", "always", "never")
}

// Times of a check.
const (
	// checkPatience is how long what a rule finds must hold.
	checkPatience = 2 * time.Second
	// checkReserve is left of the time to say what was seen.
	checkReserve = 100 * time.Millisecond
	// checkLooks bounds the looks: what comes and goes all the time ends too.
	checkLooks = 4
	// checkRepeats is how often a result is repeated that would worsen what is known.
	checkRepeats = 3
)

// errInterrupted ends a command that a signal ended.
var errInterrupted = errors.New("interrupted")

// check inspects the node. Its exit codes are judgements: what broke is not judged.
func check(ctx context.Context, c *config, stdout, stderr io.Writer) error {
	err := c.runCheck(ctx, stdout, stderr)
	var usage usageError
	var exit exitError
	if err == nil || errors.As(err, &exit) || errors.As(err, &usage) {
		return err
	}
	fmt.Fprintf(stderr, "gdr_exporter: %s\n", oneLine(err.Error()))
	return exitError(status.CheckExitNotJudged)
}

func (c *config) runCheck(ctx context.Context, stdout, stderr io.Writer) error {
	if err := c.openReplay(); err != nil {
		return err
	}
	if err := c.validateCheck(); err != nil {
		return err
	}
	report, err := c.inspect(ctx, newProgress(stderr))
	if err != nil {
		return err
	}
	failOn := status.CheckStatus(c.check.failOn)
	switch c.check.output {
	case "json":
		err = report.WriteJSON(stdout)
	case "junit":
		err = report.WriteJUnit(stdout, failOn)
	default:
		err = report.WriteTable(stdout, c.check.style(stdout))
	}
	if err != nil {
		return fmt.Errorf("write the check: %w", err)
	}
	if report.ExitCode != status.CheckExitFine {
		return exitError(report.ExitCode)
	}
	return nil
}

// validateCheck checks what no single flag can.
func (c *config) validateCheck() error {
	if err := c.validate(); err != nil {
		return err
	}
	switch {
	case c.check.timeout <= 0:
		return usagef("--timeout=%v: must be above 0", c.check.timeout)
	case !c.reads(snapshot.CollectorPath):
		return usagef("check needs the collector path, which --no-collector.path switches off")
	case c.check.probe && c.replay != nil:
		return usagef("--probe: a replay has nothing to measure")
	case len(c.check.peers) > 0 && c.replay != nil:
		return usagef("--peer: a replay has nothing to measure")
	case c.check.probe && !c.reads(snapshot.CollectorProbe):
		return usagef("--probe needs the collector probe, which --no-collector.probe switches off")
	case len(c.check.peers) > 0:
		return c.validateHosts(c.check.peers)
	}
	return nil
}

// style is how a table is written to where it goes.
func (x *checkConfig) style(stdout io.Writer) status.CheckStyle {
	width, _ := strconv.Atoi(os.Getenv("COLUMNS"))
	file, is := stdout.(*os.File)
	terminal := is && term.IsTerminal(int(file.Fd()))
	if terminal {
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil {
			width = columns
		}
	}
	plain := os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb"
	return status.CheckStyle{Width: width, Color: x.color == "always" || x.color == "auto" && terminal && !plain}
}

// inspection is a check being made.
type inspection struct {
	config   *config
	progress *progress
	taker    *snapshot.Taker
	nvml     *gpu.Reader
	engine   *diagnosis.Engine

	snapshot   *snapshot.Snapshot // the last look
	results    *prober.Status     // nil: there are none
	from       string
	tried      *status.Attempts
	peers      *peer.Status // what the running exporter knows; nil: nothing
	met        []status.PeerReport
	unfinished []string
}

// newInspection makes the readers of a check: those of the daemon.
func (c *config) newInspection(progress *progress) *inspection {
	x := &inspection{config: c, progress: progress}
	x.engine = diagnosis.NewEngine(diagnosis.EngineOptions{Libraries: c.libraries, Named: c.schedule.pairs.named(), SuspectAfter: c.suspectAfter, Patience: checkPatience})
	builder := snapshot.New(snapshot.Options{Deadline: c.deadline})
	o := c.origin()
	c.addRDMA(builder, o)
	x.nvml = c.addGPU(builder, o)
	c.addProcess(builder, o)
	c.addKernelLog(builder, o)
	c.addHost(builder, o)
	if c.profile.of != profileNone {
		builder.Expect(c.book().Expect)
	}
	x.taker = builder.Taker()
	return x
}

// book says what the node should have, by file, platform, and what the daemon has
// learned; nothing is learned here.
func (c *config) book() *profile.Book {
	var learned *profile.Learned
	if c.replay == nil && c.stateDir != "" {
		learned, _ = profile.ReadLearned(c.stateDir) // what cannot be read is not expected
	}
	return profile.Consult(profile.Options{Site: c.profile.site, Platforms: profile.Embedded(), Selection: c.selection()}, learned)
}

// inspect takes looks until all is known that a few of them can tell.
func (c *config) inspect(signals context.Context, progress *progress) (*status.Check, error) {
	ctx, cancel := context.WithTimeout(signals, c.check.timeout)
	defer cancel()
	x := c.newInspection(progress)
	defer x.taker.Close()
	defer progress.clear()
	progress.show("looking at this node")
	x.look(ctx)
	x.findResults(ctx)
	x.peers = c.knownPeers(ctx)
	if c.check.probe {
		x.measure(ctx)
	}
	x.meetPeers(ctx)
	d := x.diagnose()
	for range checkLooks - 1 {
		due, pending := x.engine.Pending()
		if !pending {
			break
		}
		deadline, _ := ctx.Deadline()
		if due.After(deadline.Add(-checkReserve)) || !pause(ctx, time.Until(due)) {
			x.unfinished = append(x.unfinished, "the time was over before a second look; see --timeout")
			break
		}
		x.look(ctx)
		d = x.diagnose()
	}
	if signals.Err() != nil {
		return nil, errInterrupted
	}
	return status.NewCheck(x.snapshot, d, status.CheckOptions{
		Version: version.Version, Replay: c.replay.sentence(), Results: x.from, Tried: x.tried, Met: x.met, FailOn: status.CheckStatus(c.check.failOn), Unfinished: x.unfinished,
	}), nil
}

// meetPeers measures with the nodes that the command line names.
func (x *inspection) meetPeers(ctx context.Context) {
	if len(x.config.check.peers) == 0 {
		return
	}
	host := newPeerHost(newProberHost(x.config, x.config.schedule.pairs.choice(), x.taker, x.nvml))
	host.look(ctx)
	x.config.peerCommand.memories = "host,gpu" // through copies says nothing more of the path
	for _, target := range x.config.check.peers {
		x.progress.show("measuring the path to " + target)
		x.met = append(x.met, x.config.meet(ctx, host, target))
	}
}

// look reads everything, for as long as a scrape would and not beyond the time.
func (x *inspection) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, x.config.deadline)
	defer cancel()
	x.snapshot = x.taker.Take(ctx, func(string) bool { return true })
}

// diagnose says what the last look and the results mean.
func (x *inspection) diagnose() *diagnosis.Diagnosis {
	with := *x.snapshot
	with.Prober, with.Peer = x.results, x.peers
	x.snapshot = &with
	return x.engine.Diagnose(x.snapshot)
}

// findResults takes what was measured before.
func (x *inspection) findResults(ctx context.Context) {
	c := x.config
	if c.replay != nil {
		if x.results = c.replay.player.Prober(); x.results != nil {
			x.from = "the capture"
		}
		return
	}
	if !c.reads(snapshot.CollectorProbe) {
		return
	}
	if x.results, x.from = c.results(ctx, x.snapshot); x.results == nil {
		// Which pairs there are to be measured is known all the same.
		p := prober.New(prober.Options{Interval: c.schedule.interval, Kernel: kernelRelease(), BootID: bootID()})
		p.Saw(x.snapshot.Sighting(c.schedule.pairs.choice()))
		x.results = p.Status()
	}
}

// noteUnmeasured says of pairs that are to be measured why they were not.
func (x *inspection) noteUnmeasured(err error) {
	if err != nil && !errors.Is(err, prober.ErrNoPair) {
		x.unfinished = append(x.unfinished, "measuring: "+oneLine(err.Error()))
	}
}

// kept are the results of pairs that have one in fresh, and else the old ones.
func keptResults(old, fresh *prober.Status) *prober.Status {
	if fresh == nil || old == nil {
		return fresh
	}
	merged := *fresh
	merged.Pairs = slices.Clone(fresh.Pairs)
	for i := range merged.Pairs {
		pair := &merged.Pairs[i]
		if pair.Full != nil || pair.Registration != nil {
			continue
		}
		at := slices.IndexFunc(old.Pairs, func(p prober.PairStatus) bool { return p.Pair == pair.Pair })
		if at >= 0 {
			*pair = old.Pairs[at]
		}
	}
	return &merged
}

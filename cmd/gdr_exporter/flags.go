package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/prometheus/exporter-toolkit/web/kingpinflag"

	"gdr_exporter/collector"
	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/isolate"
	"gdr_exporter/rdma/peer/verbs"
)

// config is what the command line says.
type config struct {
	web             *web.FlagConfig
	telemetryPath   string
	maxRequests     int
	exporterMetrics bool

	sysfs, procfs  string
	kmsg           string
	driverRoots    []string
	driverRootsSet bool // by the user
	collectors     map[string]*bool
	nvlinkPerLink  bool
	pods           podSocket

	rdmaInclude, rdmaExclude *regexp.Regexp
	gpuInclude, gpuExclude   *regexp.Regexp
	gpuStandIns              []string
	roles                    roles
	netlink                  bool
	ethtool, ethtoolAll      bool

	deadline, maxAge, slowInterval time.Duration

	logLevel, logFormat string

	topoOutput string
	probe      probeConfig

	probeLedger string

	profile          profileConfig
	libraries        libraryList
	suspectAfter     time.Duration
	liveFlow         float64
	schedule         scheduleConfig
	ctl              ctlConfig
	state            stateConfig
	stateDir, socket string
	lifecycle        bool

	capture     captureConfig
	check       checkConfig
	peer        peerConfig
	peerCommand peerCommand
	ncclLog     ncclLogConfig
	replayOf    string
	replay      *replay // nil: this host is read
}

const description = "Prometheus exporter for the health of RDMA and GPU interconnects.\n\n" +
	"Example, leaving out some devices and calling others storage:\n\n" +
	"  gdr_exporter --rdma.device-exclude='mlx5_an.*' --rdma.role='mlx5_[89]=storage'"

// dispatch parses the command line and runs what it asks for.
func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if asksForMan(args) {
		return writeMan(stdout)
	}
	app, c := newApp()
	app.UsageWriter(stdout).ErrorWriter(stderr).Terminate(terminate)
	return untilTerminated(func() error {
		command, err := parse(app, lastDash(dashed(args)))
		if err != nil {
			return judging(args, stderr, usagef("%w; try --help", err))
		}
		if c.replayOf != "" && !slices.Contains(replaying, command) {
			return judging(args, stderr, usagef("--replay=%s: only %s replay", c.replayOf, strings.Join(replaying, ", ")))
		}
		if sub, is := strings.CutPrefix(command, "ctl "); is {
			return ctl(ctx, c, sub, stdout)
		}
		switch command {
		case "check":
			return judging(args, stderr, check(ctx, c, stdout, stderr))
		case "capture":
			return takeCapture(ctx, c, stdout, stderr)
		case "serve":
			return serve(ctx, c, stderr)
		case "topo":
			return topo(ctx, c, stdout, stderr)
		case "probe":
			return probe(ctx, c, stdout, stderr)
		case "peer":
			return peerOnce(ctx, c, stdout, stderr)
		case "nccl-log":
			return ncclLog(ctx, c, stdout, stderr)
		case isolate.ChildCommand:
			return probeChild(ctx)
		case verbs.ChildCommand:
			return peerChild()
		case "state show":
			return showState(c, stdout)
		case "state forget":
			return forgetState(ctx, c, stdout)
		default:
			return usagef("unknown command %q", command)
		}
	})
}

// replaying are the commands that take --replay.
var replaying = []string{"serve", "topo", "check"}

func newApp() (*kingpin.Application, *config) {
	c := &config{collectors: map[string]*bool{}}
	app := kingpin.New("gdr_exporter", description)
	app.HelpFlag.Short('h')
	groupedUsage(app)
	app.Version(version.Print("gdr_exporter"))
	app.Command("serve", "Serve metrics until told to stop (the default command).\n\nExample, on the loopback interface alone:\n\n  gdr_exporter serve --web.listen-address=127.0.0.1:10479")
	checkFlags(app, c)
	topoFlags(app, c)
	probeFlags(app, c)
	peerCommandFlags(app, c)
	captureFlags(app, c)
	ncclLogFlags(app, c)
	childFlags(app)
	ctlFlags(app, c)
	stateFlags(app, c)
	webFlags(app, c)
	readFlags(app, c)
	gpuFlags(app, c)
	scheduleFlags(app, c)
	controlFlags(app, c)
	peerFlags(app, c)
	profileFlags(app, c)
	verdictFlags(app, c)
	holderFlags(app, c)
	for _, info := range collector.Collectors {
		if c.collectors[info.Name] != nil { // it has a flag of its own
			continue
		}
		text := fmt.Sprintf("Collect %s.", info.What)
		if !info.Reads {
			text += " Accepted, but not in this version yet."
		}
		c.collectors[info.Name] = app.Flag("collector."+info.Name, text).Default(strconv.FormatBool(!info.OffByDefault())).Bool()
	}
	app.Flag("replay", "Show what a capture has instead of this host: a file that gdr_exporter capture wrote, or the name of an embedded capture, such as h100-8x8. With serve, topo and check.").
		PlaceHolder("FILE|NAME").StringVar(&c.replayOf)
	app.Flag("log.level", "Least severe messages to log: debug, info, warn, error.").Default("info").EnumVar(&c.logLevel, "debug", "info", "warn", "error")
	app.Flag("log.format", "Form of log messages: logfmt or json.").Default("logfmt").EnumVar(&c.logFormat, "logfmt", "json")
	return app, c
}

func webFlags(app *kingpin.Application, c *config) {
	c.web = kingpinflag.AddFlags(app, ":10479")
	app.Flag("web.telemetry-path", "Path under which to serve metrics.").Default("/metrics").StringVar(&c.telemetryPath)
	app.Flag("web.max-requests", "Largest number of scrapes served at once; 0 for no limit.").Default("40").IntVar(&c.maxRequests)
	app.Flag("web.exporter-metrics", "Serve metrics about the exporter itself (go_*, process_*).").Default("true").BoolVar(&c.exporterMetrics)
}

func readFlags(app *kingpin.Application, c *config) {
	app.Flag("path.sysfs", "Where sysfs is mounted.").Default("/sys").StringVar(&c.sysfs)
	app.Flag("path.procfs", "Where procfs is mounted.").Default("/proc").StringVar(&c.procfs)
	app.Flag("path.kmsg", "Where the kernel's log is.").Default(kmsg.DefaultPath).StringVar(&c.kmsg)
	app.Flag("rdma.device-include", "Read only RDMA devices whose whole name matches this regular expression.").
		PlaceHolder("REGEXP").SetValue(anchored{&c.rdmaInclude})
	app.Flag("rdma.device-exclude", "Leave out RDMA devices whose whole name matches this regular expression; none of their files is opened.").
		PlaceHolder("REGEXP").SetValue(anchored{&c.rdmaExclude})
	app.Flag("rdma.role", "Role of the RDMA devices whose whole name matches: compute, storage, management or unused. May be repeated; the first match holds.").
		PlaceHolder("REGEXP=ROLE").SetValue(&c.roles)
	app.Flag("rdma.netlink", "Ask RDMA netlink first, and sysfs for what it does not give; and devlink for health reporters.").Default("true").BoolVar(&c.netlink)
	app.Flag("rdma.ethtool", "Read ethtool statistics, PFC and trust of Ethernet ports' network interfaces, with the slow group.").Default("true").BoolVar(&c.ethtool)
	app.Flag("rdma.ethtool-all", "Of ethtool statistics show those too that few need: traffic by virtual port, errors by lane, PCIe signal integrity.").BoolVar(&c.ethtoolAll)
	app.Flag("scrape.deadline", "Longest a scrape waits for a device; Prometheus's own timeout less half a second holds if it is shorter.").
		Default("5s").DurationVar(&c.deadline)
	app.Flag("scrape.max-age", "Age up to which what one scrape read serves another; 0 to read anew each time.").Default("2s").DurationVar(&c.maxAge)
	app.Flag("scrape.slow-interval", "How often the slow group (rate, link layer, error counters, identity) is read; 0 for every time.").
		Default("1m").DurationVar(&c.slowInterval)
}

func gpuFlags(app *kingpin.Application, c *config) {
	app.Flag("path.driver-root", "Where NVIDIA's driver libraries are installed, searched in this order. May be repeated.").
		Default("/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/usr/local/nvidia").IsSetByUser(&c.driverRootsSet).StringsVar(&c.driverRoots)
	app.Flag("gpu.device-include", "Read only GPUs whose whole PCI address (0000:1b:00.0) matches this regular expression.").
		PlaceHolder("REGEXP").SetValue(anchored{&c.gpuInclude})
	app.Flag("gpu.device-exclude", "Leave out GPUs whose whole PCI address matches this regular expression.").
		PlaceHolder("REGEXP").SetValue(anchored{&c.gpuExclude})
	app.Flag("probe.ledger", "File in which measurements on this host leave what they moved.").Hidden().Default(loopback.LedgerPath).StringVar(&c.probeLedger)
	app.Flag("gpu.stand-in", "PCI id (8086:10d3) of functions taken for GPUs, for tests on machines without any.").
		Hidden().PlaceHolder("VENDOR:DEVICE").StringsVar(&c.gpuStandIns)
	app.Flag("collector.nvlink.per-link", "NVLink error counters and data bytes per link rather than summed per GPU.").BoolVar(&c.nvlinkPerLink)
}

// validate checks what no single flag can.
func (c *config) validate() error {
	switch {
	case c.deadline <= 0:
		return usagef("--scrape.deadline=%v: must be above 0", c.deadline)
	case c.maxAge < 0:
		return usagef("--scrape.max-age=%v: must not be below 0", c.maxAge)
	case c.slowInterval < 0:
		return usagef("--scrape.slow-interval=%v: must not be below 0", c.slowInterval)
	case c.maxRequests < 0:
		return usagef("--web.max-requests=%d: must not be below 0", c.maxRequests)
	case c.reads(snapshot.CollectorProcess) && (!c.reads(snapshot.CollectorRDMA) || !c.reads(snapshot.CollectorGPU)):
		return usagef("--collector.process: needs the collectors rdma and gpu, which say whose processes there are")
	}
	if err := servable(c.telemetryPath); err != nil {
		return usagef("--web.telemetry-path=%s: %w", c.telemetryPath, err)
	}
	if err := c.validatePaths(); err != nil {
		return err
	}
	if file := *c.web.WebConfigFile; file != "" {
		if err := web.Validate(file); err != nil {
			return usagef("--web.config.file=%s: %w", file, unpath(err))
		}
	}
	if err := c.validateHolders(); err != nil {
		return err
	}
	if err := c.profile.load(); err != nil {
		return err
	}
	return c.schedule.validate()
}

// validateServe checks what only the daemon cares for, too.
func (c *config) validateServe() error {
	if err := c.validate(); err != nil {
		return err
	}
	if c.lifecycle {
		if err := authenticates(*c.web.WebConfigFile); err != nil {
			return usagef("--web.enable-lifecycle: %w", err)
		}
	}
	return c.validatePeers()
}

// validatePaths checks what the user gave. Of the driver's roots that the defaults
// do not all exist is usual. A replay has its own.
func (c *config) validatePaths() error {
	if c.replay != nil {
		return nil
	}
	for _, dir := range []struct{ flag, path string }{{"sysfs", c.sysfs}, {"procfs", c.procfs}} {
		if err := readableDir(dir.path); err != nil {
			return usagef("--path.%s=%s: %w", dir.flag, dir.path, err)
		}
	}
	if !c.driverRootsSet {
		return nil
	}
	for _, root := range c.driverRoots {
		if err := readableDir(root); err != nil {
			return usagef("--path.driver-root=%s: %w", root, err)
		}
	}
	return nil
}

// plainPath matches what a path is made of: http.ServeMux takes blanks, braces
// and the like for its pattern language, and panics at bad patterns.
var plainPath = regexp.MustCompile("^(/[A-Za-z0-9._~-]+)+$")

// servable reports why the metrics cannot be served at path, or nil.
func servable(at string) error {
	switch {
	case !strings.HasPrefix(at, "/"):
		return errors.New("must begin with /")
	case at == "/" || slices.ContainsFunc(reservedPaths, func(prefix string) bool { return strings.HasPrefix(at+"/", prefix) }):
		return fmt.Errorf("taken, as are all paths below %s", strings.Join(reservedPaths, " "))
	case !plainPath.MatchString(at) || path.Clean(at) != at:
		return errors.New("must be a plain path such as /metrics, of letters, digits, dot, dash, underscore and slash, not ending with /")
	default:
		return nil
	}
}

// reservedPaths are, beside the root, used by this version or a later one.
var reservedPaths = []string{"/-/", "/api/", "/runbooks/"}

// enabled returns the names of the collectors that are switched on.
func (c *config) enabled() []string {
	var names []string
	for _, name := range collector.Names() {
		if *c.collectors[name] {
			names = append(names, name)
		}
	}
	return names
}

// includes decides which RDMA devices are read.
func (c *config) includes(device string) bool {
	return (c.rdmaInclude == nil || c.rdmaInclude.MatchString(device)) &&
		(c.rdmaExclude == nil || !c.rdmaExclude.MatchString(device))
}

// includesGPU decides which GPUs are read, by PCI address.
func (c *config) includesGPU(address string) bool {
	return (c.gpuInclude == nil || c.gpuInclude.MatchString(address)) &&
		(c.gpuExclude == nil || !c.gpuExclude.MatchString(address))
}

// anchored is a flag value: a regular expression for the whole of a name.
type anchored struct{ target **regexp.Regexp }

// Set implements kingpin.Value.
func (a anchored) Set(text string) error {
	// By itself first: the error is then about what the user wrote, and a ")(" does not pass.
	if _, err := regexp.Compile(text); err != nil {
		return fmt.Errorf("bad regular expression: %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	re, err := regexp.Compile("^(?:" + text + ")$")
	if err != nil {
		return fmt.Errorf("bad regular expression: %w", err)
	}
	*a.target = re
	return nil
}

// String implements kingpin.Value.
func (a anchored) String() string { return "" }

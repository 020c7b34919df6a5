package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/alecthomas/units"

	"gdr_exporter/collector/snapshot"
	nvml "gdr_exporter/gpu"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// Where the daemon keeps what outlives it, and where it takes commands.
const (
	defaultStateDir = "/var/lib/gdr_exporter"
	defaultSocket   = "/run/gdr_exporter/control.sock"
)

// scheduleConfig is what the command line says of the daemon's measurements.
type scheduleConfig struct {
	interval, firstWithin, register, busyInterval, staged, maxAge, timeout time.Duration

	busy, isolation                      string
	pairs                                pairList
	buffer, bytes, minFree, bytesPerHour units.Base2Bytes
	queuePairs, runsPerHour              int
	limits                               loopback.Limits
	pkey                                 uint16
	gid                                  int
	lock                                 string
}

// scheduleFlags adds the flags of the daemon's measurements.
func scheduleFlags(app *kingpin.Application, c *config) {
	s := &c.schedule
	app.Flag("probe.interval", "How often the daemon measures an idle pair in full; 0 for no scheduled runs.").Default("1h").DurationVar(&s.interval)
	app.Flag("probe.first-within", "Within what time after start the daemon measures a pair first, unless a fresh result of it is kept.").Default("5m").DurationVar(&s.firstWithin)
	app.Flag("probe.register-interval", "How often the daemon tries registration, without traffic, at a pair under load.").Default("1h").DurationVar(&s.register)
	app.Flag("probe.busy", "What the daemon does with a pair under load: off (nothing), register (registration runs), full (those, and seldom a full run in slices).").
		Default(string(prober.BusyRegister)).EnumVar(&s.busy, string(prober.BusyOff), string(prober.BusyRegister), string(prober.BusyFull))
	app.Flag("probe.busy-interval", "How often at most the daemon measures a pair under load in full, with --probe.busy=full.").Default("6h").DurationVar(&s.busyInterval)
	app.Flag("probe.staged-interval", "How often the daemon's full runs measure the path staged too.").Default("24h").DurationVar(&s.staged)
	app.Flag("probe.pairs", "Pairs that the daemon measures: nearest (each GPU with its nearest compute devices), all (each GPU with each compute device), "+
		"or a list of GPU/DEVICE or GPU/DEVICE:PORT with commas, such as 0000:1b:00.0/mlx5_0.").Default("nearest").SetValue(&s.pairs)
	app.Flag("probe.buffer", "Size of each buffer of the daemon's runs, in host and in GPU memory.").Default("64MiB").BytesVar(&s.buffer)
	app.Flag("probe.bytes", "What the daemon's runs move to measure the rate of a path.").Default("128MiB").BytesVar(&s.bytes)
	app.Flag("probe.queue-pairs", "Pairs of queue pairs of the daemon's runs.").Default("4").IntVar(&s.queuePairs)
	app.Flag("probe.timeout", "Longest a run of the daemon may take.").Default("10s").DurationVar(&s.timeout)
	app.Flag("probe.min-free", "GPU memory that must be free before a run of the daemon.").Default("4GiB").BytesVar(&s.minFree)
	app.Flag("probe.max-age", "Age at which a good result says nothing any more; a bad one stands until a full run lifts it.").Default("24h").DurationVar(&s.maxAge)
	app.Flag("probe.runs-per-hour", "Most runs of the daemon within an hour; 0 for no limit.").Default("120").IntVar(&s.runsPerHour)
	app.Flag("probe.bytes-per-hour", "Most that runs of the daemon move within an hour; 0B for no limit.").Default("64GiB").BytesVar(&s.bytesPerHour)
	app.Flag("probe.limit", "Ratio to the host path below which the daemon calls GPUDirect RDMA slow, at distances where libraries use it by default.").
		Default("0.85").Float64Var(&s.limits.Direct)
	app.Flag("probe.limit-far", "The same at other distances.").Default("0.6").Float64Var(&s.limits.Far)
	app.Flag("probe.isolation", "Where the daemon makes runs: in-process, or process (each in a short-lived child of the same program).").
		Default("in-process").EnumVar(&s.isolation, "in-process", "process")
	app.Flag("probe.pkey", "P_Key value of the daemon's runs, such as 0x8001. Default: the first of full membership.").PlaceHolder("VALUE").Uint16Var(&s.pkey)
	app.Flag("probe.gid-index", "Index in the GID table for the daemon's runs; -1 to choose as perftest does.").Default("-1").IntVar(&s.gid)
	app.Flag("probe.lock", "File that keeps two runs on this host apart.").Hidden().Default(loopback.LockPath).StringVar(&s.lock)
}

// controlFlags adds the flags of what the daemon keeps and of its control.
func controlFlags(app *kingpin.Application, c *config) {
	app.Flag("state.dir", "Directory that keeps what was measured past the end of the process; empty to keep nothing.").
		Default(defaultStateDir).StringVar(&c.stateDir)
	app.Flag("control.socket", "Unix socket for gdr_exporter ctl; empty for none.").Default(defaultSocket).StringVar(&c.socket)
	app.Flag("web.enable-lifecycle", "Take the commands of gdr_exporter ctl by HTTP too, for which --web.config.file must ask for a password or a client's certificate.").
		BoolVar(&c.lifecycle)
}

// The most that flags take: beyond it an arithmetic overflow is near, or a mistake.
const (
	mostDuration = 10 * 365 * 24 * time.Hour
	mostBuffer   = 4 * units.GiB
	mostBytes    = units.PiB
)

// validate checks what no single flag can.
func (s *scheduleConfig) validate() error {
	for _, d := range []struct {
		flag  string
		value time.Duration
		least time.Duration
	}{
		{"interval", s.interval, 0},
		{"first-within", s.firstWithin, 0},
		{"register-interval", s.register, time.Second},
		{"busy-interval", s.busyInterval, time.Second},
		{"staged-interval", s.staged, 0},
		{"max-age", s.maxAge, time.Second},
		{"timeout", s.timeout, 100 * time.Millisecond},
	} {
		if d.value < d.least || d.value > mostDuration {
			return usagef("--probe.%s=%v: must be from %v to %v", d.flag, d.value, d.least, mostDuration)
		}
	}
	if s.interval > 0 && s.interval < time.Second {
		return usagef("--probe.interval=%v: must be 0 or at least 1s", s.interval)
	}
	for _, b := range []struct {
		flag               string
		value, least, most units.Base2Bytes
	}{
		{"buffer", s.buffer, units.MiB, mostBuffer},
		{"bytes", s.bytes, units.MiB, mostBytes},
		{"min-free", s.minFree, 0, mostBytes},
		{"bytes-per-hour", s.bytesPerHour, 0, mostBytes},
	} {
		if b.value < b.least || b.value > b.most {
			return usagef("--probe.%s=%v: must be from %v to %v", b.flag, b.value, b.least, b.most)
		}
	}
	if err := s.validateNumbers(); err != nil {
		return err
	}
	return s.validateTogether()
}

// mostOfRun is what a full run moves at most.
func (s *scheduleConfig) mostOfRun() units.Base2Bytes {
	return units.Base2Bytes(loopback.Spec{Paths: loopback.Paths, Bytes: uint64(s.bytes)}.MostBytes())
}

// validateTogether refuses what would let a pair have no result for good, or for a
// while again and again.
func (s *scheduleConfig) validateTogether() error {
	switch least := s.mostOfRun(); {
	case s.bytesPerHour > 0 && s.bytesPerHour < least:
		return usagef("--probe.bytes-per-hour=%v: no run would ever be made, since one moves up to %v with --probe.bytes=%v: must be at least that, or 0B for no limit",
			s.bytesPerHour, least, s.bytes)
	case s.interval >= s.maxAge:
		return usagef("--probe.interval=%v: good results would go between two runs with --probe.max-age=%v: must be below that", s.interval, s.maxAge)
	}
	return nil
}

func (s *scheduleConfig) validateNumbers() error {
	const mostQueuePairs, mostGID = 64, 1 << 16
	perPair := units.Base2Bytes(s.queuePairs) * units.MiB // of each message
	switch {
	case s.queuePairs < 1 || s.queuePairs > mostQueuePairs:
		return usagef("--probe.queue-pairs=%d: must be from 1 to %d", s.queuePairs, mostQueuePairs)
	case s.buffer < perPair:
		return usagef("--probe.buffer=%v: holds no message of 1MiB for each of %d queue pairs", s.buffer, s.queuePairs)
	case s.bytes < prober.BusySlices*perPair:
		return usagef("--probe.bytes=%v: is no message of 1MiB for each of %d queue pairs in each of the %d slices of a run under load", s.bytes, s.queuePairs, prober.BusySlices)
	case s.runsPerHour < 0:
		return usagef("--probe.runs-per-hour=%d: must not be below 0", s.runsPerHour)
	case !isRatio(s.limits.Direct):
		return usagef("--probe.limit=%v: must be above 0 and at most 1", s.limits.Direct)
	case !isRatio(s.limits.Far):
		return usagef("--probe.limit-far=%v: must be above 0 and at most 1", s.limits.Far)
	case s.gid < -1 || s.gid >= mostGID:
		return usagef("--probe.gid-index=%d: must be an index of the GID table, or -1", s.gid)
	}
	return nil
}

func isRatio(limit float64) bool { return limit > 0 && limit <= 1 } // false for NaN

// pairList is the value of --probe.pairs.
type pairList struct {
	// all: every GPU with every compute device. listed: just these; a Port of 0 is
	// the device's own choice.
	all    bool
	listed []prober.Pair
	text   string
}

var (
	pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	deviceName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
)

// Set implements kingpin.Value.
func (p *pairList) Set(text string) error {
	*p = pairList{text: text}
	switch text {
	case "nearest":
		return nil
	case "all":
		p.all = true
		return nil
	case "":
		return errors.New("must be nearest, all or a list of GPU/DEVICE")
	}
	for item := range strings.SplitSeq(text, ",") {
		pair, err := parsePair(item)
		if err != nil {
			return err
		}
		// Also by another port: series of a pair do not name the port.
		if slices.ContainsFunc(p.listed, func(other prober.Pair) bool { return other.GPU == pair.GPU && other.Device == pair.Device }) {
			return fmt.Errorf("%s is there twice", item)
		}
		p.listed = append(p.listed, pair)
	}
	return nil
}

// choice is how a Snapshot picks the pairs.
func (p *pairList) choice() snapshot.PairChoice {
	return snapshot.PairChoice{All: p.all, Named: p.listed}
}

// String implements kingpin.Value.
func (p *pairList) String() string { return p.text }

// parsePair takes GPU/DEVICE or GPU/DEVICE:PORT.
func parsePair(text string) (prober.Pair, error) {
	gpu, device, found := strings.Cut(text, "/")
	if !found {
		return prober.Pair{}, fmt.Errorf("%q is not nearest, all or of the form GPU/DEVICE", text)
	}
	if gpu = strings.ToLower(gpu); !pciAddress.MatchString(gpu) {
		return prober.Pair{}, fmt.Errorf("%q is no PCI address such as 0000:1b:00.0", gpu)
	}
	if sysfs, ok := nvml.Address(gpu); ok { // NVML writes eight digits of the domain
		gpu = sysfs
	}
	device, number, numbered := strings.Cut(device, ":")
	if !deviceName.MatchString(device) {
		return prober.Pair{}, fmt.Errorf("%q is no name of an RDMA device", device)
	}
	pair := prober.Pair{GPU: gpu, Device: device}
	if numbered {
		port, err := strconv.ParseUint(number, 10, 8)
		if err != nil || port == 0 {
			return prober.Pair{}, fmt.Errorf("%q is no port of an RDMA device", number)
		}
		pair.Port = int(port)
	}
	return pair, nil
}

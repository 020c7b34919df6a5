// Command scrapebench measures what a scrape of gdr_exporter costs, beside node_exporter's infiniband collector on the same made-up node, and
// what either still serves when a device is sick.
//
// Modes (one per run):
//
//	scrapebench             CPU per scrape, alternating with node_exporter; fails above --max-ratio
//	scrapebench --scaling   CPU per scrape at 8 and at 256 devices; fails above --max-scaling
//	scrapebench --soak N    memory, descriptors and goroutines over N scrapes; fails above --max-rss or when memory grows
//	scrapebench --survival  what each exporter serves of a healthy device beside each of many sick ones; needs root for FUSE
//
// Everything listens on loopback only; whatever it starts, mounts and writes is gone when it ends, also by Ctrl-C.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kingpin/v2"
)

// options is what the command line says.
type options struct {
	exporter, nodeExporter string
	exporterArgs           []string

	devices, scrapes, rounds int
	gzip                     bool
	maxRatio                 float64

	scaling    bool
	maxScaling float64

	soak   int
	maxRSS float64

	survival bool
	only     string

	json bool
}

// errJudged says that everything was measured and something is out of bounds.
var errJudged = errors.New("out of bounds")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main with its surroundings as arguments; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "scrapebench: %v\n", err)
		return 2
	}
	if err := o.mode()(ctx, o, stdout); err != nil {
		fmt.Fprintf(stderr, "scrapebench: %v\n", err)
		return 1
	}
	return 0
}

func parse(args []string) (options, error) {
	var o options
	app := kingpin.New("scrapebench", "Measures the cost of scrapes of gdr_exporter, and what they survive.")
	app.Flag("exporter", "Path of gdr_exporter.").Required().ExistingFileVar(&o.exporter)
	app.Flag("exporter-arg", "Further argument for gdr_exporter; may be repeated.").StringsVar(&o.exporterArgs)
	app.Flag("node-exporter", "Path of node_exporter.").StringVar(&o.nodeExporter)
	app.Flag("devices", "InfiniBand devices of the node.").Default("8").IntVar(&o.devices)
	app.Flag("scrapes", "Scrapes per round.").Default("500").IntVar(&o.scrapes)
	app.Flag("rounds", "Rounds per exporter.").Default("7").IntVar(&o.rounds)
	app.Flag("gzip", "Ask for compressed pages, as Prometheus does.").Default("true").BoolVar(&o.gzip)
	app.Flag("max-ratio", "Fail if gdr_exporter takes more than so much of node_exporter's CPU; 0 not to judge.").Default("0.25").Float64Var(&o.maxRatio)
	app.Flag("scaling", "Compare 8 with 256 devices.").BoolVar(&o.scaling)
	app.Flag("max-scaling", "Fail if 256 devices take more than so many times the CPU of 8; 0 not to judge.").Default("32").Float64Var(&o.maxScaling)
	app.Flag("soak", "Make so many scrapes of one instance.").IntVar(&o.soak)
	app.Flag("max-rss", "Fail if the resident memory exceeds so many MB in the soak.").Default("40").Float64Var(&o.maxRSS)
	app.Flag("survival", "Scrape beside each of many sick devices.").BoolVar(&o.survival)
	app.Flag("case", "Survival: this case only.").StringVar(&o.only)
	output := app.Flag("output", "Form of the results: text or json.").Default("text").Enum("text", "json")
	_, err := app.Parse(args)
	if err == nil {
		err = o.check()
	}
	o.json = *output == "json"
	return o, err
}

// check refuses what would not end or not measure.
func (o options) check() error {
	modes := 0
	for _, on := range []bool{o.scaling, o.soak != 0, o.survival} {
		if on {
			modes++
		}
	}
	switch {
	case modes > 1:
		return errors.New("--scaling, --soak and --survival exclude each other")
	case o.soak != 0 && (o.soak < 10 || o.soak > 100_000_000):
		return errors.New("--soak must be from 10 to 100000000")
	case o.devices < 1 || o.devices > 2048 || o.scrapes < 1 || o.scrapes > 1_000_000 || o.rounds < 1 || o.rounds > 1000:
		return errors.New("--devices, --scrapes or --rounds is out of range")
	case o.nodeExporter == "" && (modes == 0 || o.survival):
		return errors.New("--node-exporter is needed in this mode")
	}
	return nil
}

func (o options) mode() func(context.Context, options, io.Writer) error {
	switch {
	case o.scaling:
		return scaling
	case o.soak > 0:
		return soak
	case o.survival:
		return survival
	}
	return bench
}

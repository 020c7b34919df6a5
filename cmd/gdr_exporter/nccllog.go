package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/alecthomas/kingpin/v2"

	"gdr_exporter/collector/nccllog"
)

const ncclLogHelp = "Read a job's NCCL_DEBUG=INFO output, of one rank or of many mixed together, plain or gzip, and say whether its connections use GPUDirect RDMA, where not, and why.\n\n" +
	"Exit code: 0 all direct, 1 some staged or something to mend, 2 all staged, TCP although there are RDMA devices, errors or wrong data, 3 not judged, 64 the file cannot be used.\n\n" +
	"Example:\n\n  NCCL_DEBUG=INFO srun all_reduce_perf -b 1G -e 8G -f 2 > job.log 2>&1\n  gdr_exporter nccl-log job.log"

// ncclLogConfig is what the command line says of a job's log.
type ncclLogConfig struct{ file, output string }

// ncclLogFlags adds the command nccl-log.
func ncclLogFlags(app *kingpin.Application, c *config) {
	command := app.Command("nccl-log", ncclLogHelp)
	command.Flag("output", "Form of the output: table or json.").Default("table").EnumVar(&c.ncclLog.output, "table", "json")
	command.Arg("FILE", "The log; - for standard input.").Required().StringVar(&c.ncclLog.file)
}

// lastDash has a lone dash as an argument reach kingpin, which takes it for a flag
// without a name unless it stands behind "--".
func lastDash(args []string) []string {
	if at := slices.Index(args, "-"); at >= 0 && !slices.Contains(args, "--") {
		return append(slices.Delete(slices.Clone(args), at, at+1), "--", "-")
	}
	return args
}

// ncclLog judges a job's log.
func ncclLog(ctx context.Context, c *config, stdout, stderr io.Writer) error {
	report, err := readNCCLLog(ctx, c.ncclLog.file)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		// Other commands end with 2 for this, which here is a judgement.
		fmt.Fprintf(stderr, "gdr_exporter: error: nccl-log %s: %s\n", oneLine(c.ncclLog.file), oneLine(unpath(err).Error()))
		return exitError(nccllog.ExitUsage)
	case c.ncclLog.output == "json":
		err = report.WriteJSON(stdout)
	default:
		err = report.WriteTable(stdout)
	}
	if err != nil {
		return err
	}
	if code := report.ExitCode(); code != nccllog.ExitFine {
		return exitError(code)
	}
	return nil
}

// readNCCLLog reads a file, or standard input. Opening a pipe and reading from a
// terminal wait as long as nobody writes, which must not keep a signal from ending
// the command.
func readNCCLLog(ctx context.Context, name string) (*nccllog.Report, error) {
	type result struct {
		report *nccllog.Report
		err    error
	}
	results := make(chan result, 1)
	go func() {
		source := os.Stdin
		if name != "-" {
			file, err := os.Open(name)
			if err != nil {
				results <- result{nil, err}
				return
			}
			defer file.Close()
			source = file
		}
		report, err := nccllog.Read(ctx, source, nccllog.Options{})
		results <- result{report, err}
	}()
	select {
	case r := <-results:
		return r.report, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

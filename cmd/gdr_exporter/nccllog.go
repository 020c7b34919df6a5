package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"gdr_exporter/collector/nccllog"
	"gdr_exporter/collector/status"
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
	report, err := readNCCLLog(ctx, c.ncclLog.file, c.nodeFindings(ctx))
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
func readNCCLLog(ctx context.Context, name string, findings []string) (*nccllog.Report, error) {
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
		report, err := nccllog.Read(ctx, source, nccllog.Options{Findings: findings})
		results <- result{report, err}
	}()
	select {
	case r := <-results:
		return r.report, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// nodeFindings are those of the exporter that runs on this node, if one does: they
// may be why the job is slow, if it ran here.
func (c *config) nodeFindings(ctx context.Context) []string {
	const most = 3 * time.Second
	if c.socket == "" {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var answer nodeFindings
	if newClient(c.socket).call(asking, http.MethodGet, pathFindings, nil, &answer) != nil {
		return nil
	}
	sentences := make([]string, 0, len(answer.Findings))
	for i := range answer.Findings {
		sentences = append(sentences, findingSentence(&answer.Findings[i]))
	}
	return sentences
}

// findingSentence says a finding in one line: "critical path_staged (GPU
// 0000:18:00.0, mlx5_0): ...".
func findingSentence(f *status.DocFinding) string {
	var about []string
	for _, part := range []struct {
		prefix string
		text   *string
	}{{"GPU ", f.Subject.GPU}, {"", f.Subject.Device}, {"PCI ", f.Subject.Address}, {"", f.Subject.Other}} {
		if part.text != nil && *part.text != "" {
			about = append(about, part.prefix+*part.text)
		}
	}
	of := ""
	if len(about) > 0 {
		of = " (" + strings.Join(about, ", ") + ")"
	}
	return fmt.Sprintf("%s %s%s: %s: %s", f.Severity, f.Rule, of, f.Title, f.Seen)
}

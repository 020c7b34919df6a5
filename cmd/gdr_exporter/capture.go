package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/google/renameio/v2"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/prometheus/common/version"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/host"
	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/status"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/devlink"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

const captureHelp = "Write what the readers read on this host into one file, for a bug report; gdr_exporter --replay=FILE shows it elsewhere.\n\n" +
	"GUIDs, MAC and IP addresses, UUIDs and host names are replaced by pseudonyms under a key that is not kept. " +
	"What is in it is listed first.\n\nExample:\n\n  gdr_exporter capture --dry-run\n  gdr_exporter capture -o node.txt.gz"

// captureConfig is what the command line says of a capture.
type captureConfig struct {
	output             string
	raw, dryRun, force bool
}

// captureRounds is how often everything is read, captureEvery how far apart: a
// device that has just come is complete by then, and counters have moved.
const (
	captureRounds = 2
	captureEvery  = 3 * time.Second
)

// captureFlags adds the command capture.
func captureFlags(app *kingpin.Application, c *config) {
	x := &c.capture
	command := app.Command("capture", captureHelp)
	command.Flag("output", "File to write; - for standard output. Default: gdr-capture-TIME.txt.gz in this directory.").Short('o').PlaceHolder("FILE").StringVar(&x.output)
	command.Flag("raw", "Replace nothing and leave nothing out: the file then identifies the host and its parts.").BoolVar(&x.raw)
	command.Flag("dry-run", "List what would be written, and write nothing.").BoolVar(&x.dryRun)
	command.Flag("force", "Replace the file if there is one.").BoolVar(&x.force)
}

// dashed has a lone dash as the value of --output reach kingpin, which takes it for
// a flag without a name.
func dashed(args []string) []string {
	joined := make([]string, 0, len(args))
	for _, arg := range args {
		if last := len(joined) - 1; arg == "-" && last >= 0 && (joined[last] == "-o" || joined[last] == "--output") {
			joined[last] = "--output=-"
			continue
		}
		joined = append(joined, arg)
	}
	return joined
}

// takeCapture reads this host and writes the file.
func takeCapture(ctx context.Context, c *config, stdout, stderr io.Writer) error {
	if err := c.validate(); err != nil {
		return err
	}
	x := &c.capture
	if x.output == "" {
		x.output = "gdr-capture-" + time.Now().UTC().Format("20060102T150405Z") + ".txt.gz"
	}
	if err := x.writable(); err != nil {
		return err
	}
	recording, results, err := c.record(ctx)
	if err != nil {
		return err
	}
	contents := capture.ContentsOf(recording)
	if !x.raw {
		if recording, contents, err = anonymous(recording); err != nil {
			return err
		}
	}
	if err := writeContents(stderr, x, contents, results); err != nil {
		return err
	}
	switch {
	case x.dryRun:
		return nil
	case x.output == "-":
		return recording.Write(stdout)
	}
	if err := x.write(recording); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stderr, "Written to %s\n", x.output)
	return err
}

// writable reports early what keeps the file from being written.
func (x *captureConfig) writable() error {
	if x.output == "-" || x.dryRun {
		return nil
	}
	switch info, err := os.Lstat(x.output); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return usagef("--output=%s: %w", x.output, unpath(err))
	case info.IsDir():
		return usagef("--output=%s: is a directory", x.output)
	case !x.force:
		return usagef("--output=%s: the file is there already; --force replaces it", x.output)
	}
	if info, err := os.Stat(filepath.Dir(x.output)); err != nil {
		return usagef("--output=%s: %w", x.output, unpath(err))
	} else if !info.IsDir() {
		return usagef("--output=%s: %s is no directory", x.output, filepath.Dir(x.output))
	}
	return nil
}

// write puts the file in place at once, for its owner alone. Whatever ends it
// before leaves no half of one.
func (x *captureConfig) write(recording *capture.Recording) (err error) {
	file, err := renameio.NewPendingFile(x.output, renameio.WithTempDir(filepath.Dir(x.output)), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return fmt.Errorf("write the capture: %w", err)
	}
	defer func() { err = errors.Join(err, file.Cleanup()) }()
	if err := recording.Write(file); err != nil {
		return fmt.Errorf("write the capture: %w", err)
	}
	if err := x.writable(); err != nil { // somebody may have made it meanwhile
		return err
	}
	if err := file.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("write the capture: %w", err)
	}
	return nil
}

// anonymous replaces what identifies the host, under a key that ends here.
func anonymous(recording *capture.Recording) (*capture.Recording, *capture.Contents, error) {
	key := make([]byte, capture.KeySize)
	if _, err := rand.Read(key); err != nil {
		return nil, nil, fmt.Errorf("no key for pseudonyms: %w", err)
	}
	defer clear(key)
	name, err := os.Hostname()
	if err != nil {
		return nil, nil, fmt.Errorf("the host's name, which must not be in the capture, is not known: %w", err)
	}
	short, domain, _ := strings.Cut(name, ".")
	anonymised, contents := capture.Anonymise(recording, key, []string{name, short, domain})
	return anonymised, contents, nil
}

// record has the readers read this host. results says where results of
// measurements are from, "" if there are none.
func (c *config) record(ctx context.Context) (recording *capture.Recording, results string, err error) {
	c.slowInterval = 0 // everything, each time
	recorder := capture.NewRecorder(nil, capture.Header{
		Exporter: version.Version, Readers: capture.Readers{Sysfs: c.sysfs, Procfs: c.procfs, DriverRoots: c.driverRoots},
	}, nil)
	builder := snapshot.New(snapshot.Options{Deadline: c.deadline})
	o := c.recorded(recorder)
	c.addRDMA(builder, o)
	c.addGPU(builder, o)
	c.addProcess(builder, o)
	c.addKernelLog(builder, o)
	c.addHost(builder, o)
	taker := builder.Taker()
	defer taker.Close()
	var s *snapshot.Snapshot
	for round := range captureRounds {
		if round > 0 && !pause(ctx, captureEvery) || ctx.Err() != nil {
			return nil, "", errors.New("interrupted")
		}
		reading, cancel := context.WithTimeout(ctx, c.deadline)
		s = taker.Take(reading, func(string) bool { return true })
		cancel()
	}
	if c.reads(snapshot.CollectorProbe) {
		var status *prober.Status
		status, results = c.results(ctx, s)
		recorder.Prober(status)
	}
	if ctx.Err() != nil {
		return nil, "", errors.New("interrupted")
	}
	return recorder.Recording(), results, nil
}

// pause waits, and reports whether it was let.
func pause(ctx context.Context, span time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(span):
		return true
	}
}

// recorded is the running system with a recorder before it.
func (c *config) recorded(r *capture.Recorder) *origin {
	o := &origin{
		files: r.Files(), ethtool: c.ethtool, kernel: r.Kernel(nil), nvml: r.NVML(nil), process: r.Process(&process.Proc{Root: c.procfs}),
		kmsg: func() snapshot.KernelLog { return r.KernelLog(kmsg.Start(kmsg.Options{Path: c.kmsg})) },
		ledger: func() (loopback.Ledger, error) {
			ledger, err := loopback.ReadLedger(c.probeLedger)
			r.Ledger(&ledger, err)
			return ledger, err
		},
	}
	o.host = r.Host(host.NewKernel(c.procfs, nil))
	if c.netlink {
		o.netlink, o.devlink = r.Netlink(c.netlinkDialer()), r.Devlink(devlink.Dial)
		o.monitor = func() *rdma.Monitor { return r.Monitor(rdma.StartMonitor()) }
	}
	return o
}

// results are those of the running daemon, or those that it left in its state
// file, as it would show them after a start.
func (c *config) results(ctx context.Context, s *snapshot.Snapshot) (status *prober.Status, from string) {
	const most = 5 * time.Second
	if c.socket != "" {
		asking, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		var answer capture.ProberStatus
		if newClient(c.socket).call(asking, http.MethodGet, pathResults, nil, &answer) == nil {
			return answer.Status(), "the running exporter"
		}
	}
	if c.stateDir == "" {
		return nil, ""
	}
	state, err := prober.ReadState(c.stateDir)
	if err != nil || state.Written.IsZero() {
		return nil, ""
	}
	p := prober.New(prober.Options{
		Interval: c.schedule.interval, MaxAge: c.schedule.maxAge, Isolation: isolations[c.schedule.isolation],
		StateDir: c.stateDir, Kernel: kernelRelease(), BootID: bootID(),
	})
	p.Saw(s.Sighting(c.schedule.pairs.choice()))
	return p.Status(), "its state file"
}

// mostDropped bounds the lines that are named of those that are not written.
const mostDropped = 20

// writeContents lists what is in a capture.
func writeContents(w io.Writer, x *captureConfig, contents *capture.Contents, results string) error {
	var b strings.Builder
	out := status.NewTable(&b, "part", "as read", "replaced in", "not written")
	for _, part := range contents.Parts {
		out.AppendRow(table.Row{part.Part, part.Kept, part.Replaced, part.Dropped})
	}
	out.Render()
	if results != "" {
		fmt.Fprintf(&b, "Results of measurements are from %s.\n", results)
	} else {
		b.WriteString("There are no results of measurements.\n")
	}
	if x.raw {
		b.WriteString("Nothing is replaced (--raw): the file identifies this host and its parts.\n")
	} else {
		fmt.Fprintf(&b, "Pseudonyms: %s.\n", pseudonymsText(contents.Pseudonyms))
	}
	for i, asked := range contents.Dropped {
		if i == mostDropped {
			fmt.Fprintf(&b, "Not written: and %d more.\n", len(contents.Dropped)-i)
			break
		}
		fmt.Fprintf(&b, "Not written: %.200q\n", asked)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// pseudonymsText says how many pseudonyms of which kind there are.
func pseudonymsText(counts map[string]int) string {
	if len(counts) == 0 {
		return "none"
	}
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s %d", kind, counts[kind]))
	}
	return strings.Join(all, ", ")
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"gdr_exporter/collector"
	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/capture/embedded"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/loopback/prober"
)

// replay is a recording that is shown in this host's place.
type replay struct {
	name      string
	recording *capture.Recording
	player    *capture.Player
}

// openReplay opens what --replay names, if it is there, and has the readers look
// where they looked when it was recorded. A mistake costs one line.
func (c *config) openReplay() error {
	if c.replayOf == "" {
		return nil
	}
	name, recording, err := findRecording(c.replayOf)
	if err != nil {
		return usagef("--replay=%s: %w", c.replayOf, err)
	}
	readers := &recording.Header.Readers
	c.sysfs, c.procfs, c.driverRoots = orElse(readers.Sysfs, "/sys"), orElse(readers.Procfs, "/proc"), readers.DriverRoots
	c.replay = &replay{name, recording, capture.Move(recording, nil)}
	return nil
}

func orElse(text, standard string) string {
	if text == "" {
		return standard
	}
	return text
}

// findRecording opens the embedded capture of a name, or else a file.
func findRecording(name string) (string, *capture.Recording, error) {
	if slices.Contains(embedded.Names(), name) {
		recording, err := embedded.Open(name)
		return name, recording, err
	}
	recording, err := readRecording(name)
	if errors.Is(err, fs.ErrNotExist) && !strings.Contains(name, "/") {
		return "", nil, fmt.Errorf("no such file, and no capture of that name is embedded; there are %s", strings.Join(slices.Sorted(slices.Values(embedded.Names())), ", "))
	}
	return filepath.Base(name), recording, err
}

// readRecording reads a recording from a file. What is no file (a directory, a
// pipe that nobody writes to) is refused rather than waited for.
func readRecording(path string) (*capture.Recording, error) {
	file, err := os.OpenFile(filepath.Clean(path), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, unpath(err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, unpath(err)
	case !info.Mode().IsRegular():
		return nil, errors.New("no regular file")
	}
	recording, err := capture.Read(file)
	if err == nil && recording.Header.Base != "" {
		return nil, fmt.Errorf("%w: it is laid over %.80q, which only an embedded one can be", capture.ErrInvalid, recording.Header.Base)
	}
	return recording, err
}

// origin is where readers get what is replayed: no call goes to this host.
func (r *replay) origin(c *config) *origin {
	o := &origin{
		files: r.player.Files(), monitor: r.player.Monitor, kernel: r.player.Kernel(), nvml: r.player.NVML(), ledger: r.player.Ledger,
		process: r.player.Process(), kmsg: func() snapshot.KernelLog { return r.player.KernelLog() },
		ethtool: c.ethtool && r.player.Has(capture.PartNetdev),
	}
	if r.player.Has(capture.PartHost) {
		o.host = r.player.Host()
	}
	if c.netlink {
		o.netlink = r.player.Netlink() // nil if it was not asked
		if r.player.Has(capture.PartDevlink) {
			o.devlink = r.player.Devlink()
		}
	}
	return o
}

// origin is the running system, or what is replayed in its place.
func (c *config) origin() *origin {
	if c.replay != nil {
		return c.replay.origin(c)
	}
	return c.system()
}

// mark is what tells a replayed page from a measured one.
func (r *replay) mark() *collector.Replay {
	if r == nil {
		return nil
	}
	header := &r.recording.Header
	return &collector.Replay{Name: r.name, Recorded: header.Began, Synthetic: header.Synthetic, Scenario: r.recording.Scenario != nil}
}

// sentence says the same to a person; "" without a replay.
func (r *replay) sentence() string {
	if r == nil {
		return ""
	}
	header := &r.recording.Header
	what := "recorded on " + header.Began.UTC().Format("2006-01-02 15:04 UTC")
	if header.Synthetic {
		what = "of a made-up node"
	}
	text := fmt.Sprintf("Replay of the capture %s, %s: nothing here is of this host.", oneLine(r.name), what)
	if r.recording.Scenario != nil {
		text += " What changes is made up too."
	}
	return text
}

// replayed makes of a daemon one that shows a recording: nothing is measured or
// commanded, and no fresh start is wanted.
func (d *daemon) replayed() {
	d.prober = playedProber{d.config.replay.player}
	d.logger.Warn("what is served is a replay, and nothing of this host", zap.String("capture", d.config.replay.name))
}

// playedProber shows what was recorded of the prober.
type playedProber struct{ player *capture.Player }

var errReplay = errors.New("this is a replay: there is nothing to measure")

func (p playedProber) Status() *prober.Status { return p.player.Prober() }

func (playedProber) ProbeNow(context.Context, prober.Request) ([]prober.Attempt, error) {
	return nil, errReplay
}

func (playedProber) Quiesce(context.Context, time.Time) error { return errReplay }
func (playedProber) Resume()                                  {}
func (playedProber) Forget(string, string) int                { return 0 }
func (playedProber) Run(ctx context.Context)                  { <-ctx.Done() }
func (playedProber) Saw(prober.Sighting)                      {}
func (playedProber) Hanging() bool                            { return false }
func (playedProber) HungRuns() []prober.HungRun               { return nil }
func (playedProber) Isolate(string)                           {}

// refuseReplay answers for the control in a replay.
func refuseReplay(w http.ResponseWriter, _ *http.Request) {
	writeError(w, apiError{http.StatusConflict, errReplay})
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"gdr_exporter/rdma/rdmatest"
)

// Outcome is what an exporter served of the healthy device in the worse of two scrapes.
type Outcome struct {
	Failed  string  `json:"failed,omitempty"` // why there was no page
	Lost    int     `json:"lost"`             // series of the healthy device that were not there
	Of      int     `json:"of"`
	Seconds float64 `json:"seconds"`
	Named   int     `json:"named"` // unreadable files that a metric of gdr_exporter names, of
	Wanted  int     `json:"wanted"`
}

func (o Outcome) kept() bool { return o.Failed == "" && o.Lost == 0 }

// String is a cell of the table.
func (o Outcome) String() string {
	text := "kept"
	switch {
	case o.Failed != "":
		text = "**page failed**: " + o.Failed
	case o.Lost == o.Of && o.Of > 0:
		text = fmt.Sprintf("**lost** (all %d series)", o.Of)
	case o.Lost > 0:
		text = fmt.Sprintf("**lost** %d of %d series", o.Lost, o.Of)
	}
	if o.Seconds >= 1 {
		text += fmt.Sprintf(", took %.1f s", o.Seconds)
	}
	return text
}

// Row is a line of the survival table.
type Row struct {
	ID           string  `json:"id"`
	Title        string  `json:"title"`
	Source       string  `json:"source"`
	NodeExporter Outcome `json:"node_exporter"`
	Exporter     Outcome `json:"gdr_exporter"`
}

// survival scrapes both exporters beside each sick device of the table.
func survival(ctx context.Context, o options, out io.Writer) error {
	if err := rdmatest.Supported(); err != nil {
		return err
	}
	expected, err := o.baseline(ctx)
	if err != nil {
		return fmt.Errorf("without any fault: %w", err)
	}
	var rows []Row
	for _, c := range rdmatest.Cases() {
		if o.only != "" && c.ID != o.only {
			continue
		}
		row, err := o.survive(ctx, c, expected)
		if err != nil {
			return fmt.Errorf("%s: %w", c.ID, err)
		}
		rows = append(rows, row)
		printRow(out, o.json, row, len(rows) == 1)
	}
	return o.conclude(out, rows)
}

// expectation is what each exporter serves of the healthy device when the other one is healthy too: node_exporter, gdr_exporter.
type expectation [2]map[string]bool

func (o options) baseline(ctx context.Context) (e expectation, err error) {
	w, err := o.world(ctx, rdmatest.Case{ID: "none"})
	if err != nil {
		return e, err
	}
	defer w.close()
	for i, p := range w.processes {
		page, err := p.client.page(ctx, acceptText, true)
		if err != nil {
			return e, err
		}
		if e[i] = seriesOf(page, rdmatest.HealthyName); len(e[i]) == 0 {
			return e, fmt.Errorf("%s serves nothing of %s", p.name, rdmatest.HealthyName)
		}
	}
	return e, nil
}

// world is a case served with its faults, and both exporters on it.
type world struct {
	dir, mountpoint string
	scene           rdmatest.Scene
	fs              *rdmatest.FaultFS
	processes       [2]*process
}

func (o options) world(ctx context.Context, c rdmatest.Case) (*world, error) {
	w := &world{scene: c.Scene()}
	err := w.serve()
	if err == nil {
		w.processes[0], err = o.startNodeExporter(ctx, w.mountpoint)
	}
	if err == nil {
		w.processes[1], err = o.startExporter(ctx, "gdr_exporter", w.mountpoint, "--scrape.max-age=0s")
	}
	if err != nil {
		w.close()
	}
	return w, err
}

func (w *world) serve() (err error) {
	if w.dir, err = rdmatest.MkdirTemp(); err != nil {
		return err
	}
	if w.mountpoint, err = os.MkdirTemp("", "scrapebench"); err != nil {
		return err
	}
	if err = w.scene.Tree.WriteTo(w.dir); err != nil {
		return err
	}
	if w.fs, err = rdmatest.Mount(w.dir, w.mountpoint); err != nil {
		return err
	}
	w.fs.Apply(w.scene.Faults)
	return nil
}

// close ends the hangs first: a process that hangs in a read cannot be ended.
func (w *world) close() {
	if w.fs != nil {
		w.fs.ClearAll()
	}
	for _, p := range w.processes {
		if p != nil {
			p.stop()
		}
	}
	if w.fs != nil {
		_ = w.fs.Close()
	}
	_ = os.Remove(w.mountpoint) // not RemoveAll: it may still be mounted
	if w.dir != "" {
		_ = os.RemoveAll(w.dir)
	}
}

func (o options) survive(ctx context.Context, c rdmatest.Case, expected expectation) (Row, error) {
	row := Row{ID: c.ID, Title: c.Title, Source: c.Source}
	w, err := o.world(ctx, c)
	if err != nil {
		return row, err
	}
	defer w.close()
	if c.Alone {
		expected = expectation{}
	}
	outcomes := [2]*Outcome{&row.NodeExporter, &row.Exporter}
	for scrape := range 2 {
		if scrape == 1 && c.Change != nil {
			if err := c.Change(w.dir, w.scene); err != nil {
				return row, err
			}
		}
		// gdr_exporter first: what hangs would be known to it by the time that node_exporter's scrape has run into its timeout.
		for _, i := range []int{1, 0} {
			outcomes[i].scrape(ctx, w.processes[i], expected[i], w.scene)
		}
		if ctx.Err() != nil {
			return row, ctx.Err()
		}
	}
	return row, nil
}

// scrape makes a scrape and keeps the worst that was seen.
func (o *Outcome) scrape(ctx context.Context, p *process, expected map[string]bool, s rdmatest.Scene) {
	start := time.Now()
	page, err := p.client.page(ctx, acceptText, true)
	o.Seconds, o.Of = max(o.Seconds, time.Since(start).Seconds()), len(expected)
	if err != nil {
		o.Failed = brief(err)
		return
	}
	seen, lost := seriesOf(page, rdmatest.HealthyName), 0
	for series := range expected {
		if !seen[series] {
			lost++
		}
	}
	o.Lost = max(o.Lost, lost)
	o.Named, o.Wanted = named(page, s), len(s.Unreadable)
}

func brief(err error) string {
	if os.IsTimeout(err) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no answer in %g s", scrapeTimeout.Seconds())
	}
	if _, status, ok := strings.Cut(err.Error(), "HTTP "); ok {
		return "HTTP " + status
	}
	return err.Error()
}

// named counts the unreadable files of which gdr_read_errors_total tells.
func named(page string, s rdmatest.Scene) int {
	n := 0
	for _, u := range s.Unreadable {
		for series := range seriesOf(page, s.Sick.Name) {
			if strings.HasPrefix(series, "gdr_read_errors_total{") && strings.Contains(series, `source="`+u.Source+`"`) &&
				strings.Contains(series, `errno="`+u.Errno+`"`) {
				n++
				break
			}
		}
	}
	return n
}

// conclude prints the sums and fails if gdr_exporter lost anything.
func (o options) conclude(out io.Writer, rows []Row) error {
	lostTheirs, lostOurs := 0, 0
	for _, row := range rows {
		if !row.NodeExporter.kept() {
			lostTheirs++
		}
		if !row.Exporter.kept() {
			lostOurs++
		}
	}
	if o.json {
		if err := printJSON(out, rows); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(out, "\nOf %d inputs node_exporter fails the healthy device in %d, gdr_exporter in %d.\n", len(rows), lostTheirs, lostOurs)
	}
	switch {
	case len(rows) == 0:
		return fmt.Errorf("no case %q", o.only)
	case lostOurs > 0:
		return fmt.Errorf("%w: gdr_exporter fails the healthy device in %d cases", errJudged, lostOurs)
	}
	return nil
}

func printRow(out io.Writer, asJSON bool, row Row, first bool) {
	if asJSON {
		return
	}
	if first {
		fmt.Fprint(out, "| Input on the other device | Seen in | node_exporter: healthy device | gdr_exporter: healthy device | named |\n|---|---|---|---|---|\n")
	}
	named := ""
	if row.Exporter.Wanted > 0 {
		named = fmt.Sprintf("%d of %d", row.Exporter.Named, row.Exporter.Wanted)
	}
	fmt.Fprintf(out, "| %s | %s | %s | %s | %s |\n", row.Title, row.Source, row.NodeExporter, row.Exporter, named)
}

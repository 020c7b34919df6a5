package status

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"time"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
)

// What a Document holds at most; the metrics have all.
const (
	mostFindings   = 500
	mostReadErrors = 200
)

// builder makes a Document of a Snapshot.
type builder struct {
	s      *snapshot.Snapshot
	d      *diagnosis.Diagnosis // never nil
	judged bool                 // there is a Diagnosis
	doc    *Document
}

// Document returns what the page shows, in the form of /api/v1/status.
func (p *Page) Document() *Document {
	b := &builder{s: p.Snapshot, d: p.Diagnosis, judged: p.Diagnosis != nil}
	if b.d == nil {
		b.d = &diagnosis.Diagnosis{}
	}
	b.doc = &Document{
		SchemaVersion: SchemaVersion, ExporterVersion: p.Version, Taken: b.taken(), Replay: some(p.Replay),
		GPUs: b.gpus(), Devices: b.devices(), Pairs: b.pairs(), Prober: b.prober(),
		Driver: b.driver(), Host: b.host(), Processes: b.processes(), KernelLog: b.kernelLog(), Expectations: b.expectations(),
		Rules: b.rules(), Parts: b.parts(),
	}
	b.findings()
	b.readErrors()
	b.doc.Context = b.context()
	b.doc.Summary = b.summary()
	clean(b.doc)
	return b.doc
}

// WriteJSON writes the Document as JSON.
func (d *Document) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(d); err != nil {
		return fmt.Errorf("status as JSON: %w", err)
	}
	return nil
}

// taken is when the host was read.
func (b *builder) taken() time.Time {
	if b.s.Taken.IsZero() && b.s.RDMA != nil {
		return b.s.RDMA.Taken.UTC()
	}
	return b.s.Taken.UTC()
}

// some is a text, nil if it is empty.
func some[T ~string](text T) *T {
	if text == "" {
		return nil
	}
	return &text
}

// known is a value that may not have been read.
func known[T any](m sysread.Maybe[T]) *T { return pointer(m.Known, m.Value) }

// moment is a time, nil if there is none.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// message is an error's text, nil without one.
func message(err error) *string {
	if err == nil {
		return nil
	}
	return some(err.Error())
}

// list is a list that is not null.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

// titles are what the rules say is wrong, by rule.
var titles = func() map[string]string {
	all := map[string]string{}
	for _, rule := range diagnosis.Rules() {
		all[rule.ID] = rule.Title
	}
	return all
}()

// runbookPath is where a rule's runbook is served.
func runbookPath(rule string) string { return RunbookRoot + url.PathEscape(rule) }

func (b *builder) findings() {
	b.doc.Findings = []DocFinding{}
	for i := range b.d.Findings {
		f := &b.d.Findings[i]
		if i == mostFindings {
			b.doc.FindingsOmitted = len(b.d.Findings) - i
			return
		}
		b.doc.Findings = append(b.doc.Findings, DocFinding{
			Rule: f.Rule, Severity: f.Severity, Title: cmp.Or(titles[f.Rule], f.Rule), Seen: f.Seen, Hint: f.Hint, Since: f.Since.UTC(), Runbook: runbookPath(f.Rule),
			Subject: DocSubject{
				GPU: some(f.Subject.GPU), Device: some(f.Subject.Device), Port: pointer(f.Subject.Port > 0, f.Subject.Port), Address: some(f.Subject.Address), Other: some(f.Subject.Other),
			},
		})
	}
}

func (b *builder) rules() []DocRule {
	about := map[string]*diagnosis.Rule{}
	all := diagnosis.Rules()
	for i := range all {
		about[all[i].ID] = &all[i]
	}
	rules := make([]DocRule, 0, len(b.d.Rules))
	for i := range b.d.Rules {
		r := &b.d.Rules[i]
		rule := about[r.Rule]
		if rule == nil {
			rule = &diagnosis.Rule{ID: r.Rule, Severity: diagnosis.SeverityInfo, Title: r.Rule}
		}
		rules = append(rules, DocRule{Rule: r.Rule, Severity: rule.Severity, Title: rule.Title, Result: r.Result, Missing: list(r.Missing), Runbook: runbookPath(r.Rule)})
	}
	return rules
}

func (b *builder) parts() []DocPart {
	parts := []DocPart{}
	for _, status := range b.s.Status() {
		part := DocPart{
			Collector: status.Collector, Taken: status.Taken.UTC(), AgeSeconds: max(b.s.Taken.Sub(status.Taken).Seconds(), 0),
			DurationSeconds: status.Duration.Seconds(), Error: message(status.Err), Stuck: []string{},
		}
		for _, device := range status.Devices {
			if device.StuckFor > 0 {
				part.Stuck = append(part.Stuck, device.Name)
			}
		}
		parts = append(parts, part)
	}
	return parts
}

func (b *builder) readErrors() {
	errs := b.s.Errors
	if len(errs) > mostReadErrors {
		b.doc.ReadErrorsOmitted, errs = len(errs)-mostReadErrors, errs[:mostReadErrors]
	}
	b.doc.ReadErrors = make([]DocReadError, 0, len(errs))
	for i := range errs {
		e := &errs[i]
		b.doc.ReadErrors = append(b.doc.ReadErrors, DocReadError{
			Collector: e.Collector, Device: some(e.Device), Port: some(e.Port), Source: e.Source, Errno: e.Errno, Count: e.Count,
		})
	}
}

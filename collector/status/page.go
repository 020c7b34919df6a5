// Package status shows a Snapshot and what it means to a person.
package status

import (
	"bytes"
	_ "embed" // the page's HTML
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
)

// Policy is the Content-Security-Policy of all pages. They are whole in themselves:
// they load nothing and run nothing.
const Policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Page is what the status page shows. Its methods are pure functions of it.
type Page struct {
	Version     string
	MetricsPath string
	// Replay says what is replayed; "": the page is of this host.
	Replay   string
	Snapshot *snapshot.Snapshot
	// Diagnosis is what the Snapshot means; nil: nothing is judged.
	Diagnosis *diagnosis.Diagnosis
}

// What the page shows at most; the JSON and the metrics have more.
const (
	mostShownFindings = 100
	mostShownPairs    = 256
	mostShownErrors   = 50
)

// shell is what all pages have in common.
type shell struct {
	Title, Version, MetricsPath, Replay string
}

func (p *Page) shell(title string) shell {
	s := shell{Title: title, Version: cleanText(p.Version), MetricsPath: p.MetricsPath, Replay: cleanText(p.Replay)}
	if s.Replay != "" {
		s.Title += " (replay)"
	}
	return s
}

// pageView is what the template of the status page is given.
type pageView struct {
	shell
	Doc      *Document
	Badge    look
	Hardware []sentence
	Findings []findingView
	More     int // findings beyond
	Clear    string
	Matrix   *matrix
	Sections []pageSection
}

// sentence is a sentence, of trouble or not.
type sentence struct {
	Text string
	Bad  bool
}

// findingView is a finding on a page.
type findingView struct {
	*DocFinding
	Look    look
	Subject string
	Age     string
}

// look is how a word looks: never by colour alone.
type look struct {
	Class, Sign, Word string
}

// WriteHTML writes the status page.
func (p Page) WriteHTML(w io.Writer) error {
	doc := p.Document()
	view := pageView{
		shell: p.shell("GPUDirect RDMA on this node"), Doc: doc, Badge: levelLooks[doc.Summary.Level],
		Hardware: hardware(p.Snapshot), Matrix: newMatrix(doc), Sections: sections(doc, p.Snapshot), Clear: clearText(doc),
	}
	shown := doc.Findings[:min(len(doc.Findings), mostShownFindings)]
	view.More = len(doc.Findings) - len(shown) + doc.FindingsOmitted
	view.Findings = findingViews(shown, doc.Taken)
	return write(w, "page", &view)
}

// write executes a template as a whole before anything of it is sent.
func write(w io.Writer, name string, view any) error {
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, name, view); err != nil {
		return fmt.Errorf("page %s: %w", name, err)
	}
	if _, err := b.WriteTo(w); err != nil {
		return fmt.Errorf("page %s: %w", name, err)
	}
	return nil
}

// hardware says what hardware there is, and what of it is in trouble.
func hardware(s *snapshot.Snapshot) []sentence {
	var all []sentence
	add := func(text string, bad bool) {
		if text != "" {
			all = append(all, sentence{cleanText(text), bad})
		}
	}
	add(GPUSentence(s), false)
	add(gpuTrouble(s), true)
	add(Sentence(s), s.RDMA != nil && s.RDMA.Err != nil)
	add(portSummary(s), false)
	add(silentSummary(s), true)
	if s.RDMA != nil && s.RDMA.Err == nil && s.RDMA.Listing.Devices+s.RDMA.Listing.Excluded == 0 {
		add("On a node without RDMA hardware this is as it should be. Devices show here, and in the metrics, as soon as the kernel has them; nothing needs to be restarted.", false)
	}
	return all
}

func findingViews(findings []DocFinding, now time.Time) []findingView {
	views := make([]findingView, len(findings))
	for i := range findings {
		f := &findings[i]
		views[i] = findingView{DocFinding: f, Look: severityLooks[f.Severity], Subject: strings.Join(subjectParts(&f.Subject), ", ")}
		if !f.Since.IsZero() {
			views[i].Age = age(now.Sub(f.Since))
		}
	}
	return views
}

// clearText says what was judged where there is no finding, and what was not.
func clearText(doc *Document) string {
	if !doc.Summary.Judged {
		return "Nothing is judged."
	}
	clear, open := 0, 0
	for i := range doc.Rules {
		switch doc.Rules[i].Result {
		case diagnosis.ResultClear:
			clear++
		case diagnosis.ResultNotJudged:
			open++
		default:
		}
	}
	text := fmt.Sprintf("%d of %s found nothing.", clear, plural(len(doc.Rules), "rule"))
	if open > 0 {
		text += fmt.Sprintf(" %d could not be judged for want of evidence.", open)
	}
	return text
}

// levelLooks, severityLooks and stateLooks are how these look.
var (
	levelLooks = map[Level]look{
		LevelOK: {"good", "✓", "OK"}, LevelWarning: {"warn", "!", "Warning"}, LevelProblem: {"bad", "✗", "Problem"},
		LevelUnknown: {"open", "?", "Not known"}, LevelNone: {"none", "–", "Nothing to judge"},
	}
	severityLooks = map[diagnosis.Severity]look{
		diagnosis.SeverityCritical: {"bad", "✗", "Critical"}, diagnosis.SeverityWarning: {"warn", "!", "Warning"}, diagnosis.SeverityInfo: {"open", "i", "Info"},
	}
	stateLooks = map[diagnosis.State]look{
		diagnosis.StateDirect: {"good", "✓", "direct"}, diagnosis.StateDegraded: {"warn", "!", "degraded"}, diagnosis.StateStaged: {"bad", "✗", "staged"},
		diagnosis.StateUnsupported: {"none", "–", "unsupported"}, diagnosis.StateUnknown: {"open", "?", "unknown"},
	}
)

// when is a time as the page writes it.
func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

//go:embed page.html
var pageHTML string

var pages = template.Must(template.New("").Funcs(template.FuncMap{"when": when}).Parse(pageHTML))

package status

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"slices"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/deploy/runbooks"
)

// RunbookRoot is where the runbooks are served: /runbooks/RULE and /runbooks/ALERT.
const RunbookRoot = "/runbooks/"

// paragraph is a part of a runbook.
type paragraph struct {
	Title string
	Text  template.HTML
}

// partTitles are what the parts of a runbook are called for a reader.
var partTitles = map[string]string{
	"Means": "What it means", "Job": "What the job feels", "Confirm": "How to confirm it by hand", "Fix": "How to fix it", "Ignore": "When to ignore it",
}

// runbookText is what the runbook of an alert or a rule says.
func runbookText(name string) ([]paragraph, error) {
	section, found := runbooks.Find(name)
	if !found {
		return nil, nil
	}
	paragraphs := make([]paragraph, 0, len(section.Parts))
	for _, part := range section.Parts {
		text, err := part.HTML(RunbookRoot)
		if err != nil {
			return nil, fmt.Errorf("runbook %s: %w", name, err)
		}
		paragraphs = append(paragraphs, paragraph{cmp.Or(partTitles[part.Title], part.Title), text})
	}
	return paragraphs, nil
}

// alertNames are the names of the alerts that have a runbook: those that are no rule's.
func alertNames() []string {
	ids := map[string]bool{}
	for _, rule := range diagnosis.Rules() {
		ids[rule.ID] = true
	}
	return slices.DeleteFunc(runbooks.Names(), func(name string) bool { return ids[name] })
}

// runbookView is what the template of a runbook is given. Rule is nil for an alert,
// of which this node does not know whether it fires.
type runbookView struct {
	shell
	Name       string
	Rule       *diagnosis.Rule
	Look       look
	Paragraphs []paragraph
	Findings   []findingView
	Result     string // what became of the rule here, in a sentence
	Missing    []string
}

// WriteRunbook writes the runbook of an alert or a rule; that of a rule with what
// was found here. found is false, and nothing is written, if there is none.
func (p Page) WriteRunbook(w io.Writer, name string) (found bool, err error) {
	view := runbookView{shell: p.shell(name), Name: name}
	rules := diagnosis.Rules()
	if i := slices.IndexFunc(rules, func(r diagnosis.Rule) bool { return r.ID == name }); i >= 0 {
		p.runbookOfRule(&view, &rules[i])
	} else if _, found := runbooks.Find(name); !found {
		return false, nil
	}
	if view.Paragraphs, err = runbookText(name); err != nil {
		return true, err
	}
	return true, write(w, "runbook", &view)
}

// runbookOfRule adds what the rule says of itself, and what was found here.
func (p Page) runbookOfRule(view *runbookView, rule *diagnosis.Rule) {
	doc := p.Document()
	view.shell, view.Rule, view.Look = p.shell(rule.Title), rule, severityLooks[rule.Severity]
	view.Result = "It is not judged here: the collector path is switched off, or nothing is known yet."
	var here []DocFinding
	for i := range doc.Findings {
		if doc.Findings[i].Rule == rule.ID {
			here = append(here, doc.Findings[i])
		}
	}
	view.Findings = findingViews(here[:min(len(here), mostShownFindings)], doc.Taken)
	for i := range doc.Rules {
		if r := &doc.Rules[i]; r.Rule == rule.ID {
			view.Result, view.Missing = resultTexts[r.Result], r.Missing
		}
	}
}

// resultTexts say what became of a rule.
var resultTexts = map[diagnosis.Result]string{
	diagnosis.ResultClear: "It is not found on this node.", diagnosis.ResultFound: "It is found on this node.",
	diagnosis.ResultNotJudged: "It could not be judged on this node for want of evidence.",
}

// indexView is what the template of the runbooks' index is given.
type indexView struct {
	shell
	Rules  *grid
	Alerts []string
}

// WriteRunbooks writes the index of all runbooks.
func (p Page) WriteRunbooks(w io.Writer) error {
	results := map[string]diagnosis.Result{}
	if p.Diagnosis != nil {
		for i := range p.Diagnosis.Rules {
			results[p.Diagnosis.Rules[i].Rule] = p.Diagnosis.Rules[i].Result
		}
	}
	words := map[diagnosis.Result]cell{
		diagnosis.ResultFound: lookCell(lookBad, "found"), diagnosis.ResultClear: lookCell(lookGood, "not found"), diagnosis.ResultNotJudged: lookCell(lookOpen, "not judged"),
	}
	g := &grid{ID: "rules", Caption: "All rules, the order in which findings of one severity are listed", Columns: []string{"Rule", "What is wrong", "Severity", "On this node"}}
	for _, rule := range diagnosis.Rules() {
		l := severityLooks[rule.Severity]
		here := words[results[rule.ID]]
		here.Text = cmp.Or(here.Text, "not judged")
		g.add(cell{Link: runbookPath(rule.ID), LinkText: rule.ID}, longCell(rule.Title), lookCell(l, l.Word), here)
	}
	return write(w, "runbooks", &indexView{shell: p.shell("Runbooks"), Rules: g, Alerts: alertNames()})
}

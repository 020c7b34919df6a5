package status

import (
	"cmp"
	"io"

	"gdr_exporter/collector/diagnosis"
)

// RunbookRoot is where the runbooks are served: /runbooks/RULE.
const RunbookRoot = "/runbooks/"

// paragraph is a part of a runbook.
type paragraph struct{ Title, Text string }

// runbookText is what a rule's runbook says.
//
// It is made of what the rule says of itself, and is the one place to put longer
// texts in.
func runbookText(rule *diagnosis.Rule) []paragraph {
	return []paragraph{{"What it means", rule.Title + "."}, {"What to do", rule.Hint}}
}

// runbookView is what the template of a runbook is given.
type runbookView struct {
	shell
	Rule       *diagnosis.Rule
	Look       look
	Paragraphs []paragraph
	Findings   []findingView
	Result     string // what became of the rule here, in a sentence
	Missing    []string
}

// WriteRunbook writes the runbook of a rule, with what was found here. found is false,
// and nothing is written, if there is no such rule.
func (p Page) WriteRunbook(w io.Writer, id string) (found bool, err error) {
	for _, rule := range diagnosis.Rules() {
		if rule.ID != id {
			continue
		}
		doc := p.Document()
		view := runbookView{shell: p.shell(rule.Title), Rule: &rule, Look: severityLooks[rule.Severity], Paragraphs: runbookText(&rule), Result: "It is not judged here: the collector path is switched off, or nothing is known yet."}
		var here []DocFinding
		for i := range doc.Findings {
			if doc.Findings[i].Rule == id {
				here = append(here, doc.Findings[i])
			}
		}
		view.Findings = findingViews(here[:min(len(here), mostShownFindings)], doc.Taken)
		for i := range doc.Rules {
			if r := &doc.Rules[i]; r.Rule == id {
				view.Result, view.Missing = resultTexts[r.Result], r.Missing
			}
		}
		return true, write(w, "runbook", &view)
	}
	return false, nil
}

// resultTexts say what became of a rule.
var resultTexts = map[diagnosis.Result]string{
	diagnosis.ResultClear: "It is not found on this node.", diagnosis.ResultFound: "It is found on this node.",
	diagnosis.ResultNotJudged: "It could not be judged on this node for want of evidence.",
}

// indexView is what the template of the runbooks' index is given.
type indexView struct {
	shell
	Table *grid
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
	return write(w, "runbooks", &indexView{shell: p.shell("Runbooks"), Table: g})
}

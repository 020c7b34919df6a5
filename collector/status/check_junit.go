package status

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"gdr_exporter/collector/diagnosis"
)

// junit is a report in the form that continuous integration reads. A test case is a
// rule, a pair, or the answer: a finding fails it, what could not be judged is
// skipped, and an error where the answer needs it.
type junit struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Name     string       `xml:"name,attr"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Errors   int          `xml:"errors,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name       string          `xml:"name,attr"`
	Tests      int             `xml:"tests,attr"`
	Failures   int             `xml:"failures,attr"`
	Errors     int             `xml:"errors,attr"`
	Skipped    int             `xml:"skipped,attr"`
	Timestamp  string          `xml:"timestamp,attr"`
	Properties *[]junitFact    `xml:"properties>property,omitempty"`
	Cases      []junitTestcase `xml:"testcase"`
}

// junitFact is what was seen, by line.
type junitFact struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type junitTestcase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Failure *junitOutcome `xml:"failure"`
	Error   *junitOutcome `xml:"error"`
	Skipped *junitOutcome `xml:"skipped"`
	Output  string        `xml:"system-out,omitempty"`
}

type junitOutcome struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes the check as JUnit XML. Findings below failOn are output of test
// cases that pass.
func (c *Check) WriteJUnit(w io.Writer, failOn CheckStatus) error {
	report := junit{Name: "gdr_exporter check"}
	answer := junitSuite{Name: "answer", Cases: []junitTestcase{c.answerCase()}}
	for _, suite := range append([]junitSuite{answer}, c.suites(failOn)...) {
		suite.Timestamp = c.Time.Format("2006-01-02T15:04:05")
		suite.count()
		report.Tests += suite.Tests
		report.Failures += suite.Failures
		report.Errors += suite.Errors
		report.Skipped += suite.Skipped
		report.Suites = append(report.Suites, suite)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(w)
	encoder.Indent("", "  ")
	if err := encoder.Encode(&report); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func (s *junitSuite) count() {
	for i := range s.Cases {
		s.Tests++
		switch t := &s.Cases[i]; {
		case t.Failure != nil:
			s.Failures++
		case t.Error != nil:
			s.Errors++
		case t.Skipped != nil:
			s.Skipped++
		}
	}
}

// answerCase is whether there is a whole answer. That it is a bad one the others say.
func (c *Check) answerCase() junitTestcase {
	t := junitTestcase{Class: "gdr_exporter.check.answer", Name: "judged", Output: c.Headline}
	if len(c.Unjudged) > 0 {
		t.Error = &junitOutcome{Message: c.Headline, Type: string(CheckNotJudged), Text: strings.Join(c.Unjudged, "\n")}
	}
	return t
}

func (c *Check) suites(failOn CheckStatus) []junitSuite {
	var suites []junitSuite
	for i := range c.Groups {
		group := &c.Groups[i]
		suite := junitSuite{Name: group.ID}
		facts := []junitFact{}
		for j := range group.Lines {
			line := &group.Lines[j]
			facts = append(facts, junitFact{line.ID, line.Seen})
			for k := range line.Rules {
				suite.Cases = append(suite.Cases, c.ruleCase(group.ID, &line.Rules[k], failOn))
			}
			if strings.HasPrefix(line.ID, "path/") {
				suite.Cases = append(suite.Cases, line.pathCase(group.ID, failOn))
			}
		}
		suite.Properties = &facts
		suites = append(suites, suite)
	}
	return suites
}

func (c *Check) ruleCase(group string, rule *CheckRule, failOn CheckStatus) junitTestcase {
	t := junitTestcase{Class: "gdr_exporter.check." + group, Name: rule.Rule}
	if rule.Result == string(diagnosis.ResultNotJudged) {
		t.Skipped = &junitOutcome{Message: cleaned(strings.Join(rule.Missing, "; "))}
		return t
	}
	worst := CheckInfo
	var text []string
	for i := range c.Findings {
		f := &c.Findings[i]
		if f.Rule != rule.Rule {
			continue
		}
		worst = worst.worse(f.Severity)
		text = append(text, fmt.Sprintf("%s: %s: %s\ndo: %s", f.Severity, f.about(), f.Seen, f.Do))
	}
	if len(text) == 0 {
		return t
	}
	if worst.fails(failOn) {
		t.Failure = &junitOutcome{Message: rule.Title, Type: string(worst), Text: strings.Join(text, "\n")}
	} else {
		t.Output = strings.Join(text, "\n")
	}
	return t
}

// fails reports whether the command ends with another code than 0 for a status.
func (s CheckStatus) fails(failOn CheckStatus) bool {
	return s == CheckCritical || s == CheckWarning && failOn != CheckCritical
}

func (l *CheckLine) pathCase(group string, failOn CheckStatus) junitTestcase {
	t := junitTestcase{Class: "gdr_exporter.check." + group, Name: l.ID}
	switch {
	case l.Status.fails(failOn):
		t.Failure = &junitOutcome{Message: l.Seen, Type: string(l.Status), Text: l.Do}
	case l.Status == CheckNotJudged:
		t.Error = &junitOutcome{Message: l.Seen, Type: string(l.Status), Text: l.Do}
	default:
		t.Output = l.Seen
	}
	return t
}

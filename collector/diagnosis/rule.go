package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Rule is what a rule says of itself.
type Rule struct {
	ID       string
	Severity Severity
	Title    string // what is wrong, in a few words
	Hint     string // what to do
}

// Anchor is where its runbook is, below /runbooks/.
func (r *Rule) Anchor() string { return r.ID }

// rule is a rule with how it is judged.
type rule struct {
	Rule
	// needs is the evidence without which it is not judged.
	needs []need
	// after is how long what it finds must hold before it is a finding: a look may
	// fall on a moment that passes.
	after time.Duration
	// hold is how long a finding stays after its cause is gone, where it may flap.
	hold time.Duration
	// judge tells j what it finds, and what it could not judge for want of evidence.
	judge func(n *node, j *judging)
}

// flapping is the hold of rules about what comes and goes: ports, links, devices.
const flapping = 2 * time.Minute

// rules are all rules, in the order in which findings of one severity are listed.
var rules = slices.Concat(pathRules, peermemRules, pcieRules, rdmaRules, nvlinkRules, hostRules, kernelRules, libraryRules, processRules, peerRules)

// Rules returns what all rules say of themselves, in the order of findings.
func Rules() []Rule {
	all := make([]Rule, len(rules))
	for i := range rules {
		all[i] = rules[i].Rule
	}
	return all
}

// severityOrder sorts the worst first.
var severityOrder = map[Severity]int{SeverityCritical: 0, SeverityWarning: 1, SeverityInfo: 2}

// judging is a rule being judged.
type judging struct {
	rule    *rule
	found   []Finding
	missing []string
	cleared []Subject // see clear
}

// find notes a finding. What was seen may come from a driver or a process: it is
// kept on one line and of bounded length.
func (j *judging) find(subject Subject, format string, args ...any) {
	j.found = append(j.found, Finding{
		Rule: j.rule.ID, Severity: j.rule.Severity, Subject: subject, Seen: line(fmt.Sprintf(format, args...)), Hint: j.rule.Hint,
	})
}

// clear notes a subject that was judged and is well, of a rule that may lack evidence
// of others: what was found of this one is not held on to for their sake.
func (j *judging) clear(subject Subject) { j.cleared = append(j.cleared, subject) }

// lack notes evidence that could not be read, once.
func (j *judging) lack(what string) {
	if what != "" && !slices.Contains(j.missing, what) {
		j.missing = append(j.missing, what)
	}
}

// maxSeen bounds the text of a finding.
const maxSeen = 400

// line makes a text printable, on one line and of bounded length.
func line(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case r < ' ' || r == 0x7f || r == '\ufffd':
			return -1
		}
		return r
	}, text)
	if len(text) > maxSeen {
		text = strings.ToValidUTF8(text[:maxSeen], "") + " ..."
	}
	return text
}

// run judges a rule.
func (r *rule) run(n *node, j *judging) {
	j.rule, j.found, j.missing, j.cleared = r, j.found[:0], nil, j.cleared[:0]
	for _, need := range r.needs {
		j.lack(need(n))
	}
	if len(j.missing) == 0 {
		r.judge(n, j)
	}
}

// result is what became of the rule that is being judged, its findings aside
// being held back or held on to.
func (j *judging) result(found bool) RuleResult {
	result := RuleResult{Rule: j.rule.ID, Result: ResultClear, Missing: j.missing}
	switch {
	case found:
		result.Result = ResultFound
	case len(j.missing) > 0:
		result.Result = ResultNotJudged
	}
	return result
}

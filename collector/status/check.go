package status

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
)

// CheckStatus is how a line of a check, or all of it, is.
type CheckStatus string

// Statuses, as the command check and its JSON have them.
const (
	CheckOK        CheckStatus = "ok"
	CheckInfo      CheckStatus = "info" // a fact, or a finding that asks for nothing; never of a whole check
	CheckWarning   CheckStatus = "warning"
	CheckCritical  CheckStatus = "critical"
	CheckNotJudged CheckStatus = "not_judged"
)

// Exit codes of the command check.
const (
	CheckExitFine      = 0
	CheckExitWarning   = 1
	CheckExitCritical  = 2
	CheckExitNotJudged = 3
	CheckExitUsage     = 64 // EX_USAGE of sysexits.h
)

// checkSchema is the form of a check's JSON. Fields may be added; one that goes or
// means something else makes it another.
const checkSchema = "gdr_exporter/check/1"

// Check is the inspection of a node, in the form of the command check and its JSON.
// Lists are never null.
type Check struct {
	Schema  string    `json:"schema"`
	Version string    `json:"version"`          // of the exporter
	Replay  string    `json:"replay,omitempty"` // what is shown in this host's place
	Time    time.Time `json:"time"`             // of the last look
	// Status is the worst of critical, warning, not_judged and ok; ExitCode is what
	// the command ends with under its --fail-on.
	Status   CheckStatus `json:"status"`
	ExitCode int         `json:"exit_code"`
	// Headline is the answer in a sentence or two.
	Headline string `json:"headline"`
	// Unjudged says what keeps the answer from being whole; none: it is.
	Unjudged []string    `json:"unjudged"`
	Counts   CheckCounts `json:"counts"`
	Pairs    CheckPairs  `json:"pairs"`
	// Results says where results of measurements are from, "" if there are none.
	Results  string         `json:"results"`
	Findings []CheckFinding `json:"findings"` // worst first
	Groups   []CheckGroup   `json:"groups"`
}

// CheckCounts counts findings by severity, and rules by what became of them.
type CheckCounts struct {
	Critical  int `json:"critical"`
	Warning   int `json:"warning"`
	Info      int `json:"info"`
	Clear     int `json:"rules_clear"`
	Found     int `json:"rules_found"`
	NotJudged int `json:"rules_not_judged"`
}

// CheckPairs counts the pairs that the answer is about, by state: those at which
// libraries use GPUDirect RDMA; all measured ones if there are none such.
type CheckPairs struct {
	Total       int  `json:"total"`
	Expected    bool `json:"expected"` // the pairs are expected ones
	Direct      int  `json:"direct"`
	Degraded    int  `json:"degraded"`
	Staged      int  `json:"staged"`
	Unsupported int  `json:"unsupported"`
	Unknown     int  `json:"unknown"`
	Measured    int  `json:"measured"` // of the direct ones: by a full run
}

// CheckFinding is something that is wrong, or should be known.
type CheckFinding struct {
	Rule     string      `json:"rule"`
	Severity CheckStatus `json:"severity"` // info, warning or critical
	GPU      string      `json:"gpu_address,omitempty"`
	Device   string      `json:"device,omitempty"`
	Port     int         `json:"port,omitempty"`
	Address  string      `json:"address,omitempty"` // of another PCI function
	Subject  string      `json:"subject,omitempty"` // anything else: "pid 4711"
	Seen     string      `json:"seen"`
	Do       string      `json:"do"`
}

// CheckGroup is the lines about one subject.
type CheckGroup struct {
	ID    string      `json:"id"`
	Title string      `json:"title"`
	Lines []CheckLine `json:"lines"`
}

// CheckLine is a line of the inspection.
type CheckLine struct {
	ID     string      `json:"id"` // unique within its group
	Title  string      `json:"title"`
	Status CheckStatus `json:"status"`
	Seen   string      `json:"seen"`
	Do     string      `json:"do,omitempty"` // what to do, or what it takes to judge it
	// Rules are those that this line stands for, each in one line of all.
	Rules []CheckRule `json:"rules"`
}

// CheckRule is what became of a rule.
type CheckRule struct {
	Rule    string   `json:"rule"`
	Title   string   `json:"title"` // what it finds
	Result  string   `json:"result"`
	Missing []string `json:"missing,omitempty"` // what could not be read
}

// CheckOptions say what a check is judged by beside the Snapshot.
type CheckOptions struct {
	Version, Replay string
	// Results says where results of measurements are from, "" if there are none.
	Results string
	// Tried is what came of measuring now; nil: that was not asked for.
	Tried *Attempts
	// Met are the measurements that were made with other nodes now.
	Met []PeerReport
	// FailOn is the severity from which the exit code is not 0: CheckWarning, which
	// is the default, or CheckCritical.
	FailOn CheckStatus
	// Unfinished says what was not done for want of time.
	Unfinished []string
}

// NewCheck puts together what Snapshot and Diagnosis say; d may be nil.
func NewCheck(s *snapshot.Snapshot, d *diagnosis.Diagnosis, o CheckOptions) *Check {
	if d == nil {
		d = &diagnosis.Diagnosis{Time: s.Taken}
	}
	n := newCheckNode(s, d, &o)
	c := &Check{
		Schema: checkSchema, Version: o.Version, Replay: o.Replay, Time: s.Taken.UTC(), Results: o.Results,
		Unjudged: []string{}, Findings: []CheckFinding{},
	}
	for i := range d.Findings {
		c.Findings = append(c.Findings, newCheckFinding(&d.Findings[i]))
	}
	c.count(d)
	c.Unjudged = append(c.Unjudged, n.unjudged(c.Pairs)...)
	c.countMet(o.Met)
	c.Groups = n.groups()
	c.Status, c.ExitCode = c.judge(o.FailOn)
	c.Headline = c.headline(n)
	return c
}

func newCheckFinding(f *diagnosis.Finding) CheckFinding {
	return CheckFinding{
		Rule: f.Rule, Severity: CheckStatus(f.Severity), GPU: cleaned(f.Subject.GPU), Device: printable(f.Subject.Device), Port: f.Subject.Port,
		Address: cleaned(f.Subject.Address), Subject: printable(f.Subject.Other), Seen: cleaned(f.Seen), Do: f.Hint,
	}
}

// about names the finding's subject in a few words, "" for the node.
func (f *CheckFinding) about() string {
	var parts []string
	if f.GPU != "" {
		parts = append(parts, "GPU "+f.GPU)
	}
	if f.Device != "" && f.Port > 0 {
		parts = append(parts, fmt.Sprintf("%s port %d", f.Device, f.Port))
	} else if f.Device != "" {
		parts = append(parts, f.Device)
	}
	for _, other := range []string{f.Address, f.Subject} {
		if other != "" {
			parts = append(parts, other)
		}
	}
	return strings.Join(parts, ", ")
}

func (c *Check) count(d *diagnosis.Diagnosis) {
	for i := range c.Findings {
		switch c.Findings[i].Severity {
		case CheckCritical:
			c.Counts.Critical++
		case CheckWarning:
			c.Counts.Warning++
		default:
			c.Counts.Info++
		}
	}
	for i := range d.Rules {
		switch d.Rules[i].Result {
		case diagnosis.ResultFound:
			c.Counts.Found++
		case diagnosis.ResultNotJudged:
			c.Counts.NotJudged++
		default:
			c.Counts.Clear++
		}
	}
	c.Pairs.Expected = slices.ContainsFunc(d.Paths, func(p diagnosis.Path) bool { return p.Expected })
	for i := range d.Paths {
		if p := &d.Paths[i]; p.Expected || !c.Pairs.Expected && p.Evidence != diagnosis.EvidenceNone {
			c.Pairs.add(p)
		}
	}
}

func (p *CheckPairs) add(path *diagnosis.Path) {
	p.Total++
	switch path.State {
	case diagnosis.StateDirect:
		p.Direct++
		if path.Evidence == diagnosis.EvidenceMeasured {
			p.Measured++
		}
	case diagnosis.StateDegraded:
		p.Degraded++
	case diagnosis.StateStaged:
		p.Staged++
	case diagnosis.StateUnsupported:
		p.Unsupported++
	default:
		p.Unknown++
	}
}

// judge gives the whole its status and the command its exit code: the worst finding
// counts first, and what could not be judged where there is none that counts.
func (c *Check) judge(failOn CheckStatus) (CheckStatus, int) {
	status, code := CheckOK, CheckExitFine
	if len(c.Unjudged) > 0 {
		status, code = CheckNotJudged, CheckExitNotJudged
	}
	if c.Counts.Warning > 0 {
		status = CheckWarning
		if failOn != CheckCritical {
			code = CheckExitWarning
		}
	}
	if c.Counts.Critical > 0 {
		status, code = CheckCritical, CheckExitCritical
	}
	return status, code
}

// headline is the answer.
func (c *Check) headline(n *checkNode) string {
	p := &c.Pairs
	text := "GPUDirect RDMA is not judged: " + n.noPairs() + "."
	if p.Total > 0 {
		text = c.pairsText()
	}
	return fmt.Sprintf("%s %s.", text, c.countsText())
}

func (c *Check) pairsText() string {
	p := &c.Pairs
	kind := "measured"
	if p.Expected {
		kind = "expected"
	}
	of := fmt.Sprintf("of %s", checkPlural(p.Total, kind+" pair"))
	var parts []string
	for _, part := range []struct {
		n    int
		text string
	}{
		{p.Staged, "does NOT work on"}, {p.Degraded, "works badly on"}, {p.Unsupported, "is not supported on"},
		{p.Unknown, "is not judged on"}, {p.Direct, "works on"},
	} {
		if part.n == 0 {
			continue
		}
		text := fmt.Sprintf("%s %d", part.text, part.n)
		if len(parts) == 0 {
			text += " " + of
		}
		parts = append(parts, text)
	}
	text := "GPUDirect RDMA " + strings.Join(parts, ", ")
	if !p.Expected {
		text = "Libraries use GPUDirect RDMA on no pair here by default. It " + strings.Join(parts, ", ")
	}
	if p.Direct > 0 {
		text += fmt.Sprintf(" (%d measured)", p.Measured)
	}
	return text + "."
}

func (c *Check) countsText() string {
	counts := []string{}
	for _, part := range []struct {
		n    int
		text string
	}{{c.Counts.Critical, "critical"}, {c.Counts.Warning, "warning"}} {
		if part.n == 1 || part.n > 0 && part.text == "critical" {
			counts = append(counts, fmt.Sprintf("%d %s", part.n, part.text))
		} else if part.n > 0 {
			counts = append(counts, fmt.Sprintf("%d %ss", part.n, part.text))
		}
	}
	if len(counts) == 0 {
		counts = append(counts, "No warnings")
	}
	if c.Counts.NotJudged > 0 {
		counts = append(counts, fmt.Sprintf("%d of %d rules not judged", c.Counts.NotJudged, c.Counts.NotJudged+c.Counts.Clear+c.Counts.Found))
	}
	return strings.Join(counts, ", ")
}

// checkPlural is a number of things.
func checkPlural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// WriteJSON writes all of the check.
func (c *Check) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(c)
}

// worse is the worse of two statuses of lines.
func (s CheckStatus) worse(other CheckStatus) CheckStatus {
	if checkOrder[other] > checkOrder[s] {
		return other
	}
	return s
}

// checkOrder sorts statuses of lines. What is not judged hides no finding.
var checkOrder = map[CheckStatus]int{CheckInfo: 0, CheckOK: 1, CheckNotJudged: 2, CheckWarning: 3, CheckCritical: 4}

// checkSome lists at most so many things.
func checkSome(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// checkTally lists how often each text comes, the most frequent first: "7 PIX, 1 SYS".
func checkTally(texts []string) string {
	counts := map[string]int{}
	var order []string
	for _, text := range texts {
		if counts[text] == 0 {
			order = append(order, text)
		}
		counts[text]++
	}
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	for i, text := range order {
		order[i] = fmt.Sprintf("%d %s", counts[text], text)
	}
	return checkSome(order, 8)
}

// checkName is the name of a number, as the kernel or NVML gives it.
func checkName(id int, names []string) string {
	if id >= 0 && id < len(names) {
		return names[id]
	}
	return fmt.Sprintf("unknown (%d)", id)
}

package collector

import (
	"strconv"

	"gdr_exporter/collector/diagnosis"
)

// Families of the findings.
var (
	finding = gauge("gdr_finding",
		"1 for each thing that is wrong, or good to know (severity info), by rule; the runbook of a rule says what to do. gpu_address, device, port and address (another PCI function) say what it is about, empty where they do not apply. "+
			"The worst first, at most 200. For explanations: alerts read the series that the rules read.")
	findingsOmitted = gauge("gdr_findings_omitted",
		"Findings beyond those shown in gdr_finding. Absent if there are none.")
	diagnosisRules = gauge("gdr_diagnosis_rules",
		"Rules by result: clear, found (there is a finding), not_judged (evidence is missing: a collector that is off or hangs, or a privilege; the status page names it).")
)

// maxFindings bounds the series of findings.
const maxFindings = 200

// showFindings shows findings, worst first. Those that differ in a process or a
// daemon only, which is no label, are one series.
func showFindings(p *page, findings []diagnosis.Finding) {
	type key struct {
		rule    string
		subject diagnosis.Subject
	}
	var shown map[key]bool
	omitted := 0
	for i := range findings {
		f := &findings[i]
		at := key{f.Rule, f.Subject}
		at.subject.Other = ""
		switch {
		case shown[at]:
			continue
		case len(shown) >= maxFindings:
			omitted++
			continue
		case shown == nil:
			shown = map[key]bool{}
		}
		shown[at] = true
		port := ""
		if f.Subject.Port > 0 {
			port = strconv.Itoa(f.Subject.Port)
		}
		p.add(finding, 1, pairs("rule", f.Rule, "severity", string(f.Severity), "gpu_address", f.Subject.GPU,
			"device", f.Subject.Device, "port", port, "address", f.Subject.Address))
	}
	if omitted > 0 {
		p.add(findingsOmitted, float64(omitted), nil)
	}
}

// showRules counts the rules by what became of them.
func showRules(p *page, rules []diagnosis.RuleResult) {
	counts := map[diagnosis.Result]int{}
	for i := range rules {
		counts[rules[i].Result]++
	}
	for _, result := range diagnosis.Results {
		p.add(diagnosisRules, float64(counts[result]), pairs("result", string(result)))
	}
}

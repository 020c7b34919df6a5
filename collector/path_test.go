package collector

import (
	"fmt"
	"path/filepath"
	"testing"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
)

// verdicts is a Diagnosis with a pair in every state, and findings of all kinds.
func verdicts() *diagnosis.Diagnosis {
	d := &diagnosis.Diagnosis{
		Findings: []diagnosis.Finding{
			{Rule: "path_staged", Severity: diagnosis.SeverityCritical, Subject: diagnosis.Subject{GPU: "0000:1b:00.0", Device: "mlx5_2"}},
			{Rule: "port_down", Severity: diagnosis.SeverityWarning, Subject: diagnosis.Subject{Device: "mlx5_3", Port: 1}},
			{Rule: "pcie_link_width", Severity: diagnosis.SeverityWarning, Subject: diagnosis.Subject{Address: "0000:17:00.0"}},
			// Two processes are one series.
			{Rule: "job_memlock", Severity: diagnosis.SeverityWarning, Subject: diagnosis.Subject{Other: "pid 1"}},
			{Rule: "job_memlock", Severity: diagnosis.SeverityWarning, Subject: diagnosis.Subject{Other: "pid 2"}},
		},
		Rules: []diagnosis.RuleResult{
			{Rule: "path_staged", Result: diagnosis.ResultFound}, {Rule: "a", Result: diagnosis.ResultClear},
			{Rule: "b", Result: diagnosis.ResultClear}, {Rule: "c", Result: diagnosis.ResultNotJudged},
		},
	}
	for i, state := range diagnosis.States {
		d.Paths = append(d.Paths, diagnosis.Path{
			GPU: "0000:1b:00.0", Device: fmt.Sprintf("mlx5_%d", i), State: state, Evidence: diagnosis.Evidences[i%len(diagnosis.Evidences)], Expected: i > 0,
		})
	}
	return d
}

// showDiagnosis renders a Diagnosis as a scrape does.
func showDiagnosis(p *page, d *diagnosis.Diagnosis) {
	pathView(func(*snapshot.Snapshot) *diagnosis.Diagnosis { return d })(p, nil)
}

func TestPathGolden(t *testing.T) {
	p := newPage()
	showDiagnosis(p, verdicts())
	comparePage(t, p, filepath.Join("testdata", "path", "verdicts.metrics"))
}

// TestManyFindings: what is shown is bounded, the rest counted.
func TestManyFindings(t *testing.T) {
	d := &diagnosis.Diagnosis{}
	for i := range maxFindings + 50 {
		d.Findings = append(d.Findings, diagnosis.Finding{Rule: "port_down", Severity: diagnosis.SeverityWarning, Subject: diagnosis.Subject{Device: fmt.Sprintf("mlx5_%03d", i), Port: 1}})
	}
	p := newPage()
	showDiagnosis(p, d)
	comparePage(t, p, filepath.Join("testdata", "path", "many.metrics"))
	if got := len(p.families[finding].Metric); got != maxFindings {
		t.Errorf("%d findings are shown", got)
	}
	if got := p.families[findingsOmitted].Metric[0].GetGauge().GetValue(); got != 50 {
		t.Errorf("%v are omitted", got)
	}
}

// TestPathSeries: a healthy node with eight pairs has 83 series of verdicts, and
// nothing is shown before there is a Diagnosis.
func TestPathSeries(t *testing.T) {
	d := &diagnosis.Diagnosis{}
	for i := range 8 {
		d.Paths = append(d.Paths, diagnosis.Path{GPU: fmt.Sprintf("0000:1%d:00.0", i), Device: "mlx5_0", State: diagnosis.StateDirect, Evidence: diagnosis.EvidenceMeasured})
	}
	p := newPage()
	showDiagnosis(p, nil)
	if p.used != 0 {
		t.Errorf("%d series without a Diagnosis", p.used)
	}
	showDiagnosis(p, d)
	if want := 8*(len(diagnosis.States)+len(diagnosis.Evidences)+1) + len(diagnosis.Results); p.used != want {
		t.Errorf("%d series, want %d", p.used, want)
	}
}

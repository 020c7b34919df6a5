package diagnosis

import (
	"testing"
)

// healthyCaptures are nodes with which nothing is wrong.
var healthyCaptures = []string{"h100-8x8", "b200-8x8", "h200-1", "h200-2", "soft-roce"}

// TestHealthyCaptures: a node with which nothing is wrong has no finding above info.
func TestHealthyCaptures(t *testing.T) {
	for _, name := range healthyCaptures {
		t.Run(name, func(t *testing.T) {
			d := NewEngine(EngineOptions{}).Diagnose(captured(t, name))
			for i := range d.Findings {
				if f := &d.Findings[i]; f.Severity != SeverityInfo {
					t.Errorf("%+v", f)
				} else {
					t.Logf("%+v", f)
				}
			}
			for i := range d.Paths {
				t.Logf("%+v", d.Paths[i])
			}
			for i := range d.Rules {
				if d.Rules[i].Result == ResultNotJudged {
					t.Logf("%+v", d.Rules[i])
				}
			}
		})
	}
}

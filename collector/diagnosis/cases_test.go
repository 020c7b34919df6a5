package diagnosis

import (
	"slices"
	"testing"
	"time"

	"gdr_exporter/collector/snapshot"
)

// row is one thing that happens to a node, and what is said of it.
type row struct {
	name string
	// of is where the case comes from: a row of the decision table of facts/gdr.md
	// ("table"), a case of facts/cases.md ("case 53"), a pitfall of the seeds ("seed").
	of string
	// capture is the node, "" the HGX H100 with InfiniBand.
	capture string
	options EngineOptions
	// live is what is seen of the first pair's device; "": what the Snapshot says.
	live Live
	// steps happen one after the other, each to the Snapshot that the one before
	// left; a Diagnosis is made after each, and the last is checked.
	steps []func(*scene)
	// state, evidence and cause are those of the first pair; state "": not checked.
	state    State
	evidence Evidence
	cause    string
	// finds are all rules with a finding; clears are rules that were judged and
	// found nothing, for which this row is a look-alike; unjudged were not judged.
	finds, clears, unjudged []string
}

func (r *row) diagnose(t testing.TB) *Diagnosis {
	t.Helper()
	name := r.capture
	if name == "" {
		name = "h100-8x8"
	}
	s := &scene{Snapshot: captured(t, name)}
	e := NewEngine(r.options)
	if device := s.firstDevice(); r.live != "" {
		e.liveUses = func(*snapshot.Snapshot, *LiveHistory) []LiveUse {
			return []LiveUse{{Device: device, Live: r.live, Reasons: []string{"seen"}}}
		}
	}
	var d *Diagnosis
	for _, step := range r.steps {
		// Earlier Snapshots are immutable: the next one is another.
		s = &scene{Snapshot: deepCopy(s.Snapshot)}
		s.later(time.Second)
		step(s)
		d = e.Diagnose(s.Snapshot)
	}
	return d
}

// allRows are the rows of all tables.
var allRows = slices.Concat(tableRows, peermemRows, pcieRows, rdmaRows, gpuRows, hostRows, silentRows, peerRows)

// TestCases is the table: what happens to a node, and the verdict and findings that
// it gets.
func TestCases(t *testing.T) {
	for i := range allRows {
		r := &allRows[i]
		t.Run(r.name, func(t *testing.T) {
			d := r.diagnose(t)
			if r.state != "" {
				p := &d.Paths[0]
				if p.State != r.state || p.Evidence != r.evidence || p.Cause != r.cause {
					t.Errorf("state %s, evidence %s, cause %q; want %s, %s, %q; reasons %q", p.State, p.Evidence, p.Cause, r.state, r.evidence, r.cause, p.Reasons)
				}
				if (p.State != StateDirect) != (len(p.Reasons) > 0) {
					t.Errorf("state %s with reasons %q", p.State, p.Reasons)
				}
			}
			want := slices.Sorted(slices.Values(r.finds))
			if got := found(d); !slices.Equal(got, want) {
				t.Errorf("findings of %q, want %q", got, want)
				for i := range d.Findings {
					t.Logf("%+v", d.Findings[i])
				}
			}
			for _, id := range r.clears {
				if got := resultOf(d, id); got.Result != ResultClear {
					t.Errorf("%s: %+v, want it clear", id, got)
				}
			}
			for _, id := range r.unjudged {
				if got := resultOf(d, id); got.Result != ResultNotJudged || len(got.Missing) == 0 || got.Missing[0] == "" {
					t.Errorf("%s: %+v, want it not judged, with what is missing", id, got)
				}
			}
		})
	}
}

// TestEveryRuleHasRows: a rule that nothing finds, or that no look-alike leaves
// clear, is not tested.
func TestEveryRuleHasRows(t *testing.T) {
	finds, clears := map[string]bool{}, map[string]bool{}
	names := map[string]bool{}
	for i := range allRows {
		r := &allRows[i]
		if names[r.name] {
			t.Errorf("two rows %q", r.name)
		}
		names[r.name] = true
		for _, id := range r.finds {
			finds[id] = true
		}
		for _, id := range r.clears {
			clears[id] = true
		}
	}
	for i := range rules {
		id := rules[i].ID
		if !finds[id] {
			t.Errorf("no row finds %s", id)
		}
		if !clears[id] {
			t.Errorf("no look-alike leaves %s clear", id)
		}
		delete(finds, id)
		delete(clears, id)
	}
	if len(finds)+len(clears) > 0 {
		t.Errorf("rows name rules that do not exist: %v %v", finds, clears)
	}
}

// TestRules: what rules say of themselves can be told to people.
func TestRules(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rules() {
		if seen[r.ID] || r.ID == "" || r.Title == "" || len(r.Hint) < 20 || r.Anchor() == "" {
			t.Errorf("rule %+v", r)
		}
		seen[r.ID] = true
		if _, known := severityOrder[r.Severity]; !known {
			t.Errorf("rule %s has severity %q", r.ID, r.Severity)
		}
		critical := r.ID == idStaged || r.ID == idCorrupt || r.ID == idPeerCorrupt
		if critical != (r.Severity == SeverityCritical) {
			t.Errorf("rule %s has severity %s: only staged and corrupt page", r.ID, r.Severity)
		}
	}
	for _, id := range causes {
		if !seen[id] {
			t.Errorf("cause %q is no rule", id)
		}
	}
}

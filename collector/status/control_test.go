package status

import (
	"fmt"
	"testing"
	"time"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// TestStandingShown: that GPU memory cannot be registered any more is what a pair
// is shown to be, also beside a full measurement that was fine before.
func TestStandingShown(t *testing.T) {
	now := time.Now()
	run := func(depth prober.Depth, outcome loopback.Outcome) *prober.Completed {
		return &prober.Completed{Depth: depth, Time: now, Idle: true, Judgement: loopback.Judgement{Outcome: outcome}}
	}
	full, failed := run(prober.DepthFull, loopback.Fine), run(prober.DepthRegister, loopback.Failed)
	shown := newControlPair(&prober.PairStatus{Full: full, Registration: failed})
	if shown.Standing == nil || fmt.Sprint(shown.Standing.Outcome) != string(loopback.Failed) {
		t.Errorf("status: %+v", shown.Standing)
	}
	kept := &prober.PairState{Full: full, Registration: failed}
	if got, want := fmt.Sprint(keptRow(kept, now)), fmt.Sprint(keptRow(&prober.PairState{Registration: failed}, now)); got != want {
		t.Errorf("state: %s, want %s", got, want)
	}
	// What the state file leaves out of a pair is that of the full run.
	if kept := (&prober.PairState{Full: full}); kept.Standing() != full {
		t.Errorf("%+v", kept.Standing())
	}
	if none := newControlPair(&prober.PairStatus{}); none.Standing != nil {
		t.Errorf("%+v", none.Standing)
	}
}

package collector

import (
	"path/filepath"
	"testing"
	"time"

	"gdr_exporter/collector/snapshot"
)

// TestReplayInfo: a replay's page has the mark, any other page has none.
func TestReplayInfo(t *testing.T) {
	replay := &Replay{Name: "h100-8x8", Recorded: time.Unix(1_800_000_000, 0), Synthetic: true, Scenario: true}
	for _, replay := range []*Replay{replay, nil} {
		h := newHandler(Config{Roles: noRoles{}, Replay: replay})
		families := flatten(t, h.render(newPage(), &snapshot.Snapshot{}))
		marked := false
		for series := range families {
			marked = marked || series == `gdr_replay_info,name="h100-8x8",recorded="2027-01-15T08:00:00Z",scenario="true",synthetic="true"`
		}
		if marked != (replay != nil) {
			t.Errorf("%+v: %v", replay, families)
		}
	}
	p := newPage()
	replayView(replay)(p, nil)
	comparePage(t, p, filepath.Join("testdata", "replay", "info.metrics"))
}

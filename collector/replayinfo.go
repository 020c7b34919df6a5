package collector

import (
	"strconv"
	"time"

	"gdr_exporter/collector/snapshot"
)

// replayInfo marks a page that is a replay's: no alert and no dashboard takes it
// for a measurement unknowingly.
var replayInfo = gauge("gdr_replay_info",
	"Only in a replay (--replay), value 1: nothing on the page but the exporter's own metrics is of this host. name of the capture, recorded when (UTC), synthetic (true: made up from public facts, no such host was recorded), scenario (true: the replay moves).")

// Replay is the capture that a Handler's Snapshots are of.
type Replay struct {
	Name      string
	Recorded  time.Time
	Synthetic bool
	Scenario  bool
}

// replayView shows the mark.
func replayView(replay *Replay) view {
	labels := pairs("name", replay.Name, "recorded", replay.Recorded.UTC().Format(time.RFC3339),
		"synthetic", strconv.FormatBool(replay.Synthetic), "scenario", strconv.FormatBool(replay.Scenario))
	return func(p *page, _ *snapshot.Snapshot) { p.add(replayInfo, 1, labels) }
}

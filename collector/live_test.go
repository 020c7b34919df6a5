package collector

import (
	"path/filepath"
	"testing"

	"gdr_exporter/collector/diagnosis"
)

// TestLiveGolden compares the page of a node with a device in each state with
// testdata/live/states.metrics.
func TestLiveGolden(t *testing.T) {
	p := newPage()
	var uses []diagnosis.LiveUse
	for i, live := range diagnosis.Lives {
		uses = append(uses, diagnosis.LiveUse{Device: "mlx5_" + string(rune('0'+i)), Live: live, Reasons: []string{"seen"}})
	}
	showLive(p, uses)
	comparePage(t, p, filepath.Join("testdata", "live", "states.metrics"))
}

package collector

import (
	"path/filepath"
	"testing"

	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback/prober"
)

// TestExpectedGolden compares the pages with testdata/expected/<name>.metrics.
func TestExpectedGolden(t *testing.T) {
	port := func(device string, number int) prober.Port { return prober.Port{Device: device, Number: number} }
	ports := map[prober.Port]sysread.Maybe[uint64]{port("mlx5_1", 1): {}, port("mlx5_0", 2): {}, port("mlx5_0", 1): sysread.Some(uint64(50e9))}
	for name, c := range map[string]struct {
		expected profile.Expectation
		series   int
	}{
		"none":     {profile.Expectation{}, 1}, // the zero one too has a source
		"learned":  {profile.Expectation{Source: profile.SourceLearned, Ports: ports}, 4},
		"embedded": {profile.Expectation{Name: "dgx-h100", Source: profile.SourceEmbedded, GPUs: sysread.Some(8)}, 1},
	} {
		p := newPage()
		showExpected(p, &snapshot.Snapshot{Expected: &c.expected})
		comparePage(t, p, filepath.Join("testdata", "expected", name+".metrics"))
		if p.used != c.series {
			t.Errorf("%s: %d series, want %d", name, p.used, c.series)
		}
	}
	p := newPage()
	if showExpected(p, &snapshot.Snapshot{}); p.used != 0 {
		t.Errorf("%d series of what was not asked for", p.used)
	}
}

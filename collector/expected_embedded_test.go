package collector

import (
	"testing"
	"time"

	"gdr_exporter/collector/host"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback/prober"
)

// TestExpectedOfEmbedded: what is learned of the nodes that are built in, and as
// what they are known. Their captures do not say how the host is wired; it is put
// in: a machine of nobody's.
func TestExpectedOfEmbedded(t *testing.T) {
	wired := host.Reading{
		Platform: host.Platform{Vendor: sysread.Some("Nobody"), Product: sysread.Some("X1")},
		Context:  host.Context{HostNetwork: sysread.Some(true), SharedRDMA: sysread.Some(true)},
	}
	type want struct {
		name            string
		source          profile.Source
		gpus, links     int
		ports, direct   int
		portRate        uint64
		stillThereAfter time.Duration // ports are as many then
	}
	for name, want := range map[string]want{
		"h100-8x8":      {"hgx-h100", profile.SourceEmbedded, 8, 18, 8, 16, 25e9, 0},
		"b200-8x8":      {"hgx-b200", profile.SourceEmbedded, 8, 18, 8, 16, 50e9, 0},
		"nvlink-down":   {"hgx-h100", profile.SourceEmbedded, 8, 18, 8, 16, 25e9, 0},
		"h200-2":        {"", profile.SourceLearned, 2, 18, 0, 0, 0, 0},
		"nic-gone":      {"hgx-h100", profile.SourceEmbedded, 8, 18, 7, 14, 25e9, 5 * time.Minute},
		"port-flapping": {"hgx-h100", profile.SourceEmbedded, 8, 18, 8, 16, 25e9, 5 * time.Minute},
		"soft-roce":     {"", profile.SourceNone, 0, 0, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			unhurried(t, func(t *testing.T) {
				r := replay(t, name)
				book := profile.New(profile.Options{Platforms: profile.Embedded(), Learn: true})
				var e profile.Expectation
				look := func(after time.Duration) {
					r.now = goldenTime.Add(after)
					s := r.taker.Take(t.Context(), allCollectors)
					s.Host = &snapshot.HostPart{Units: []snapshot.UnitPart[host.Reading]{{Name: "host", Data: &wired}}}
					f := s.ProfileFacts()
					e = book.Expect(&f)
				}
				for after := time.Duration(0); after <= 6*time.Minute; after += 12 * time.Second {
					look(after)
				}
				if want.stillThereAfter > 0 {
					look(6*time.Minute + want.stillThereAfter)
				}
				t.Logf("%+v", e)
				if e.Name != want.name || e.Source != want.source || e.GPUs.Value != want.gpus || e.NVLinks.Value != want.links ||
					len(e.Ports) != want.ports || e.DirectPairs.Value != want.direct || want.portRate > 0 && e.Ports[prober.Port{Device: "mlx5_0", Number: 1}].Value != want.portRate {
					t.Errorf("got %+v, want %+v", e, want)
				}
			})
		})
	}
}

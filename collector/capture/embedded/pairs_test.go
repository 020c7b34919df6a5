package embedded

import (
	"slices"
	"testing"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback/prober"
)

// chosen are the pairs that a daemon would measure on the host of a recording,
// without a flag about them.
func chosen(t *testing.T, recording *capture.Recording, after time.Duration) []prober.Pair {
	t.Helper()
	p := capture.Play(recording.At(after))
	defer p.Close()
	now := recording.Header.Ended
	clock := func() time.Time { return now }
	taker := snapshot.New(snapshot.Options{Deadline: time.Minute, Now: clock}).
		RDMA(rdma.NewReader(rdma.Options{Sysfs: "/sys", Files: p.Files(), Netlink: p.Netlink(), NetlinkWait: time.Minute, Now: clock}), nil).
		GPU(gpu.NewReader(gpu.Options{Files: p.Files(), Procfs: "/proc", Roots: roots, Open: p.NVML()})).
		Driver(driver.NewReader(driver.Options{Sysfs: "/sys", Procfs: "/proc", Mounts: "/proc/self/mountinfo", Files: p.Files(), Roots: roots})).
		Affinity(affinity.NewReader(affinity.Options{Sysfs: "/sys", Files: p.Files(), Now: clock})).Taker()
	defer taker.Close()
	var sighting prober.Sighting
	for range 2 { // a device that has just come may be incomplete
		sighting = taker.Take(t.Context(), func(string) bool { return true }).Sighting(snapshot.PairChoice{})
		now = now.Add(time.Minute)
	}
	if !sighting.Pairs.Known {
		t.Fatal("it is not known which pairs there are")
	}
	var pairs []prober.Pair
	for _, candidate := range sighting.Pairs.Value {
		pairs = append(pairs, candidate.Pair)
		if candidate.Distance != "PIX" || !candidate.Direct {
			t.Errorf("%+v", candidate)
		}
	}
	return pairs
}

// TestPairs: the results in a synthetic capture are of the pairs that a daemon
// measures there by default, and of no other; but for a NIC that is gone, which
// goes on being shown.
func TestPairs(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration
		pairs int
		gone  []prober.Pair
	}{
		{"h100-8x8", 0, 8, nil}, {"b200-8x8", 0, 8, nil}, {"h100-8x8-demo", 200 * time.Second, 8, nil}, {"acs-on", 0, 8, nil},
		{"nic-gone", 59 * time.Second, 8, nil},
		{"nic-gone", 90 * time.Second, 8, []prober.Pair{{GPU: gpuAddresses[3], Device: nics[3], Port: 1}}},
		{"nic-gone", 300 * time.Second, 8, []prober.Pair{{GPU: gpuAddresses[3], Device: nics[3], Port: 1}}},
	} {
		recording, err := Open(c.name)
		if err != nil {
			t.Fatal(err)
		}
		var shown, gone []prober.Pair
		want := chosen(t, recording, c.after)
		p := capture.Play(recording.At(c.after))
		for _, pair := range p.Prober().Pairs {
			if slices.Contains(want, pair.Pair) {
				shown = append(shown, pair.Pair)
			} else {
				gone = append(gone, pair.Pair)
			}
		}
		p.Close()
		if len(want) != c.pairs || !slices.Equal(shown, want) || !slices.Equal(gone, c.gone) {
			t.Errorf("%s after %v: shown %v and %v, chosen %v", c.name, c.after, shown, gone, want)
		}
	}
}

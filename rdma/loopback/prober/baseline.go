package prober

import (
	"slices"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
)

// A baseline is the 90th percentile of the last runs that were full, idle and
// within the limits.
const (
	baselineRuns  = 50
	baselineLeast = 5
	baselineRank  = 0.9
	// mostBaselines bounds those of other firmware and drivers that are kept for
	// each pair.
	mostBaselines = 4
)

// Baseline are the rates of a pair's path gpu, in bytes per second, oldest first.
type Baseline struct {
	Pair     Pair      `json:"pair"`
	Identity Identity  `json:"identity"`
	Rates    []float64 `json:"bytes_per_second"`
	Last     time.Time `json:"last"`
}

// baselines are kept apart by what could change them.
type baselines map[baselineKey]*Baseline

type baselineKey struct {
	Pair
	Identity
}

// add adds a run.
func (b baselines) add(at Pair, c *Completed) {
	i := slices.IndexFunc(c.Result.Paths, func(path loopback.PathResult) bool { return path.Path == loopback.PathGPU })
	if i < 0 || !c.Result.Paths[i].BytesPerSecond.Known {
		return
	}
	key := baselineKey{at, c.Identity}
	line := b[key]
	if line == nil {
		line = &Baseline{Pair: at, Identity: c.Identity}
		b[key] = line
	}
	line.Rates = append(line.Rates, c.Result.Paths[i].BytesPerSecond.Value)
	if over := len(line.Rates) - baselineRuns; over > 0 {
		line.Rates = slices.Delete(line.Rates, 0, over)
	}
	line.Last = c.Time
	b.bound(at)
}

// bound drops the longest unused of a pair's baselines.
func (b baselines) bound(at Pair) {
	for {
		var oldest *baselineKey
		count := 0
		for key, line := range b {
			if key.Pair != at {
				continue
			}
			count++
			if oldest == nil || line.Last.Before(b[*oldest].Last) {
				oldest = &key
			}
		}
		if count <= mostBaselines {
			return
		}
		delete(b, *oldest)
	}
}

// of is the baseline of a pair as it is now, not known before enough runs.
func (b baselines) of(at Pair, identity Identity) sysread.Maybe[float64] {
	line := b[baselineKey{at, identity}]
	if line == nil || len(line.Rates) < baselineLeast {
		return sysread.Maybe[float64]{}
	}
	sorted := slices.Sorted(slices.Values(line.Rates))
	return sysread.Some(sorted[int(baselineRank*float64(len(sorted)-1)+0.5)])
}

func (b baselines) forget(matches func(Pair) bool) {
	for key := range b {
		if matches(key.Pair) {
			delete(b, key)
		}
	}
}

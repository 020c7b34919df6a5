package peertest

import (
	"slices"
	"time"

	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
)

// Sum makes the rails say what the paths of a Status add up to.
func Sum(s *peer.Status) {
	for i := range s.Rails {
		rail := &s.Rails[i]
		rail.Pings, rail.Bandwidth = peer.Tally{}, map[session.Memory]*peer.Tally{}
		var latencies []time.Duration
		rates := map[session.Memory]map[session.Direction][]float64{}
		for j := range s.Peers {
			for k := range s.Peers[j].Paths {
				if path := &s.Peers[j].Paths[k]; path.Own == rail.Port {
					latencies = addPath(rail, path, rates, latencies)
				}
			}
		}
		if slices.Sort(latencies); len(latencies) > 0 {
			rail.Pings.Median, rail.Pings.Worst = latencies[len(latencies)/2], latencies[len(latencies)-1]
		}
		for memory, directions := range rates {
			rail.Bandwidth[memory].Rates = map[session.Direction]peer.Rates{}
			for direction, all := range directions {
				slices.Sort(all)
				rail.Bandwidth[memory].Rates[direction] = peer.Rates{Count: len(all), Least: all[0], Median: all[len(all)/2]}
			}
		}
	}
}

func addPath(rail *peer.OwnRail, path *peer.Path, rates map[session.Memory]map[session.Direction][]float64, latencies []time.Duration) []time.Duration {
	if m := path.Ping; m != nil {
		count(&rail.Pings, m)
		if latency := peer.LatencyOf(m.Result); latency != nil {
			latencies = append(latencies, latency.Median)
		}
	}
	for _, m := range path.Bandwidth {
		if rail.Bandwidth[m.Memory] == nil {
			rail.Bandwidth[m.Memory], rates[m.Memory] = &peer.Tally{}, map[session.Direction][]float64{}
		}
		count(rail.Bandwidth[m.Memory], m)
		for _, direction := range []session.Direction{session.Write, session.Reverse, session.Both} {
			if rate, known := peer.RateOf(m.Result, direction); known {
				rates[m.Memory][direction] = append(rates[m.Memory][direction], rate)
			}
		}
	}
	return latencies
}

func count(tally *peer.Tally, m *peer.Measurement) {
	switch {
	case m.Class.Bad():
		tally.Bad++
	case m.Class.Judged():
		tally.Good++
	}
}

package main

import (
	"errors"
	"fmt"
	"time"

	"gdr_exporter/rdma/peer/schedule"
)

// Load is what measurements are reckoned to move.
type Load struct {
	Rails  int     // ports of a node
	Gbps   float64 // of a port
	Bytes  int64   // per rail, memory and direction
	Staged float64 // rate of staged writes, as a share of the port's
	// Ping is what one moves over a rail: 64 writes of 8 bytes, each with its headers
	// and an acknowledgement.
	Ping int64
}

func defaultLoad() Load {
	return Load{Rails: 8, Gbps: 400, Bytes: 128 << 20, Staged: 0.25, Ping: 64 * (8 + 60 + 62)}
}

func (l Load) check() error {
	if l.Rails < 1 || l.Bytes < 0 || !(l.Gbps > 0) || !(l.Staged > 0 && l.Staged <= 1) {
		return errors.New("rails, rate, bytes and share must be above zero, and the share at most 1")
	}
	return nil
}

const (
	// memories are host, GPU and staged; each is moved there, back and both ways at
	// once, so that each way carries it twice.
	memories     = 3
	timesEachWay = 2
	timesInTime  = 3
)

// sent is what a node sends in one measurement of bandwidth.
func (l Load) sent() float64 {
	return float64(l.Bytes) * memories * timesEachWay * float64(l.Rails)
}

// busy is how long a port carries it.
func (l Load) busy() time.Duration {
	once := float64(l.Bytes) / (l.Gbps * 1e9 / 8)
	seconds := timesInTime * once * (memories - 1 + 1/l.Staged)
	return time.Duration(seconds * float64(time.Second))
}

// pingBusy is how long a port carries a ping.
func (l Load) pingBusy() time.Duration {
	return time.Duration(float64(l.Ping) / (l.Gbps * 1e9 / 8) * float64(time.Second))
}

// Result is what a cluster's schedule comes to. Rates are by the hour and mean those
// of a node.
type Result struct {
	Nodes                           int
	Pings, Measurements             float64
	PingCoverage, BandwidthCoverage time.Duration
	MeanAtOnce                      float64 // pairs in a slot for bandwidth
	MostAtOnce                      int
	NodeBytes, ClusterBytes         float64 // sent, per second
	Busy                            float64 // share of the time in which a port carries test traffic
}

// start is the beginning of a round of any usual length.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// play walks through the schedule of a cluster.
func play(nodes int, options schedule.Options, load Load) (Result, error) {
	r := Result{Nodes: nodes}
	if err := r.walk(options); err != nil {
		return r, err
	}
	if err := r.together(options); err != nil {
		return r, err
	}
	perHour := r.Measurements*load.sent() + r.Pings*float64(load.Ping)*float64(load.Rails)
	r.NodeBytes = perHour / 3600
	r.ClusterBytes = r.NodeBytes * float64(nodes)
	r.Busy = (r.Measurements*load.busy().Seconds() + r.Pings*load.pingBusy().Seconds()) / 3600
	return r, nil
}

// everyPair plays a pass of the tournament with all nodes, and fails unless each
// pair met once.
func everyPair(nodes int) error {
	games, err := schedule.NewTournament(nodes)
	if err != nil {
		return err
	}
	met := make([]uint64, (nodes*nodes+63)/64)
	pairs := 0
	for step := range games.Steps() {
		for node := range nodes {
			partner := games.Partner(node, step)
			if partner <= node { // none, or counted from the other side
				continue
			}
			at := node*nodes + partner
			if met[at/64]&(1<<(at%64)) != 0 {
				return fmt.Errorf("nodes %d and %d meet twice", node, partner)
			}
			met[at/64] |= 1 << (at % 64)
			pairs++
		}
	}
	if pairs != nodes*(nodes-1)/2 {
		return fmt.Errorf("%d pairs met of %d", pairs, nodes*(nodes-1)/2)
	}
	return nil
}

// walk follows some nodes until they have met all others; the last of them counts.
func (r *Result) walk(options schedule.Options) error {
	for _, self := range []int{0, r.Nodes / 3, r.Nodes - 1} {
		plan, err := schedule.New(r.Nodes, self, options)
		if err != nil {
			return err
		}
		pings, bandwidth := plan.Coverage()
		r.PingCoverage = max(r.PingCoverage, follow(r.Nodes, pings, func(at time.Time) ([]schedule.Turn, time.Time) {
			turn := plan.At(at)
			if turn.Kind != schedule.Ping {
				return nil, turn.End
			}
			return []schedule.Turn{turn}, turn.End
		}))
		r.BandwidthCoverage = max(r.BandwidthCoverage, follow(r.Nodes, bandwidth, func(at time.Time) ([]schedule.Turn, time.Time) {
			return plan.Neighbours(at), at.Add(options.Round)
		}))
	}
	return nil
}

// follow is when a node has ended its turns with all others; 0 if that takes longer
// than is said, or for ever. It is told what turns there are at a time, and when to
// look again.
func follow(nodes int, most time.Duration, look func(time.Time) ([]schedule.Turn, time.Time)) time.Duration {
	met := map[int]bool{}
	for at := start; at.Before(start.Add(most)); {
		turns, next := look(at)
		at = next
		for _, turn := range turns {
			if turn.Partner == schedule.None {
				continue
			}
			if met[turn.Partner] = true; len(met) == nodes-1 {
				return turn.End.Sub(start)
			}
		}
	}
	return 0
}

// together counts what all nodes do in one round.
func (r *Result) together(options schedule.Options) error {
	slots, begun, pings := map[time.Time]int{}, 0, 0
	for self := range r.Nodes {
		plan, err := schedule.New(r.Nodes, self, options)
		if err != nil {
			return err
		}
		for _, turn := range plan.Neighbours(start) {
			if turn.Initiator {
				slots[turn.Start]++
				r.MostAtOnce = max(r.MostAtOnce, slots[turn.Start])
				begun++
			}
		}
		// Of the pings of all nodes those of one frame do.
		for at := start; at.Before(start.Add(options.Frame)); at = plan.At(at).End {
			if turn := plan.At(at); turn.Kind == schedule.Ping && turn.Partner != schedule.None {
				pings++
			}
		}
	}
	rounds := float64(time.Hour) / float64(options.Round)
	r.Measurements = 2 * float64(begun) / float64(r.Nodes) * rounds
	r.Pings = float64(pings) / float64(r.Nodes) * float64(time.Hour) / float64(options.Frame)
	r.MeanAtOnce = float64(begun) / (float64(options.Round) / float64(options.Frame))
	return nil
}

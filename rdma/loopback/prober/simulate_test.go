package prober

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func eightPairs() []Pair {
	var pairs []Pair
	for i := range 8 {
		pairs = append(pairs, Pair{fmt.Sprintf("0000:%x0:00.0", i+1), fmt.Sprintf("mlx5_%d", i), 1})
	}
	return pairs
}

// TestMonth: a month of a node whose jobs come and go keeps every bound: one run
// at a time, runs and bytes per hour, and the age of what is shown.
func TestMonth(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates a month: not with -short")
	}
	synctest.Test(t, func(t *testing.T) {
		const runsPerHour, bytesPerHour = 20, 20 << 30
		l := newLab(t, func(o *Options) { o.RunsPerHour, o.BytesPerHour, o.Busy = runsPerHour, bytesPerHour, BusyFull }, eightPairs()...)
		chance := rand.New(rand.NewPCG(3, 4))
		oldest := time.Duration(0)
		for began := time.Now(); time.Since(began) < 30*24*time.Hour; {
			l.host.setTraffic([]float64{0, 0, 20 * gigabyte}[chance.IntN(3)])
			l.runner.set([]func(Order) Ending{finds(0.97), finds(0.97), finds(0.97), finds(0.5), broken}[chance.IntN(5)])
			if chance.IntN(20) == 0 {
				look(func(h *fakeHost) { h.sighting.Driver.Value += "x" })(t, l)
			}
			time.Sleep(time.Duration(chance.Float64() * float64(4*time.Hour)))
			synctest.Wait()
			for _, s := range l.Status().Pairs {
				if s.Full != nil && s.Full.Good() {
					oldest = max(oldest, time.Since(s.Full.Time))
				}
			}
		}
		l.end()
		times, orders := l.runner.times, l.runner.orders
		most, mostBytes := 0, 0
		for i := range times {
			n, bytes := 0, 0
			for j := i; j < len(times) && times[j].Sub(times[i]) < time.Hour; j++ {
				n++
				bytes += int(runBytes(orders[j]))
			}
			most, mostBytes = max(most, n), max(mostBytes, bytes)
		}
		t.Logf("%d runs, at most %d and %d MB an hour, good results up to %v old, %d looks, %d looks at loads", len(times), most, mostBytes>>20, oldest, l.host.looks, l.host.loads)
		if most > runsPerHour || mostBytes > bytesPerHour || l.runner.most != 1 || oldest > 24*time.Hour+time.Minute {
			t.Errorf("at most %d runs and %d bytes an hour, %d at once, up to %v old", most, mostBytes, l.runner.most, oldest)
		}
		if len(times) < 2000 {
			t.Errorf("only %d runs", len(times))
		}
	})
}

// TestSpread: the runs of 1,000 nodes that start at the same moment do not come
// together, in the first five minutes nor later, and are aligned with no hour.
func TestSpread(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates 1,000 nodes: not with -short")
	}
	const nodes, hours = 1000, 6
	o := Options{Interval: time.Hour}.withDefaults()
	o.Rand = rand.New(rand.NewPCG(5, 6))
	start := epoch.Add(200 * 24 * time.Hour)
	var first, later []time.Duration // since start
	for range nodes {
		for _, at := range eightPairs() {
			p := newPair(Candidate{Pair: at}, o.Rand.Float64())
			p.first(start, &o)
			first = append(first, p.due.Sub(start))
			for p.due.Sub(start) < hours*time.Hour {
				before := p.due
				p.due = p.nextDue(before, o.Interval)
				if gap := p.due.Sub(before); gap < o.Interval/2 || gap > o.Interval*3/2 {
					t.Fatalf("%v between two runs", gap)
				}
				later = append(later, p.due.Sub(start))
			}
		}
	}
	if last := slices.Max(first); last > o.FirstWithin {
		t.Errorf("a first run after %v", last)
	}
	// In each minute of the second hour and later about as many.
	minutes := map[int]int{}
	for _, at := range later {
		if at >= 2*time.Hour && at < hours*time.Hour {
			minutes[int(at/time.Minute)%60]++
		}
	}
	mean := nodes * 8 * (hours - 2) / 60
	for minute := range 60 {
		if n := minutes[minute]; n < mean*6/10 || n > mean*14/10 {
			t.Errorf("minute %d of the hour: %d runs, on average %d", minute, n, mean)
		}
	}
}

package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// actor is a node of a simulated cluster. Its clock is ahead of the true time.
type actor struct {
	name  string
	ahead time.Duration
	lists []period
	down  func(time.Time) bool // nil: never

	busyUntil time.Time
	made      map[string]int // measurements, by partner
	refused   int            // calls refused because one of both was busy
	missed    int            // calls that nobody answered
}

// period is from when on a node goes by a list. A node that is not in it has no plan.
type period struct {
	from  time.Time
	names []string
	plan  *Plan
}

func listed(t *testing.T, from time.Time, self string, names []string) period {
	t.Helper()
	p := period{from: from, names: names}
	if i := slices.Index(names, self); i >= 0 {
		plan, err := New(len(names), i, Defaults())
		if err != nil {
			t.Fatal(err)
		}
		p.plan = plan
	}
	return p
}

// call is what an initiator does, in true time.
type call struct {
	from         *actor
	to           string
	begin, until time.Time
}

// calls are all that an actor makes by its own clock and its own lists.
func (a *actor) calls(until time.Time) []call {
	var all []call
	for i, p := range a.lists {
		end := until
		if i+1 < len(a.lists) {
			end = a.lists[i+1].from
		}
		for at := p.from; p.plan != nil; {
			turn, ok := p.plan.Next(at)
			if !ok || !turn.Begin.Before(end) {
				break
			}
			at = turn.End
			if turn.Initiator && turn.Try == 0 {
				all = append(all, call{a, p.names[turn.Partner], turn.Begin.Add(-a.ahead), turn.Deadline.Add(-a.ahead)})
			}
		}
	}
	return all
}

// expects reports whether an actor's own schedule has it called by another, at a
// true time.
func (a *actor) expects(caller string, at time.Time) bool {
	own := at.Add(a.ahead)
	for _, p := range slices.Backward(a.lists) {
		if p.from.After(own) {
			continue
		}
		if p.plan == nil {
			return false
		}
		turn := p.plan.At(own)
		return turn.Partner != None && !turn.Initiator && p.names[turn.Partner] == caller
	}
	return false
}

// play lets a cluster measure: every call takes its whole slot, and a node that is
// busy refuses. It returns how many calls came in somebody else's slot.
func play(t *testing.T, cluster []*actor, until time.Time) (unexpected int) {
	t.Helper()
	byName := map[string]*actor{}
	var all []call
	for _, a := range cluster {
		byName[a.name], a.made = a, map[string]int{}
		all = append(all, a.calls(until)...)
	}
	slices.SortFunc(all, func(a, b call) int { return a.begin.Compare(b.begin) })
	for _, c := range all {
		if c.from.down != nil && c.from.down(c.begin) {
			continue
		}
		to := byName[c.to]
		switch {
		case c.from.busyUntil.After(c.begin):
			c.from.refused++
			continue
		case to == nil || to.down != nil && to.down(c.begin):
			c.from.missed++
			c.from.busyUntil = c.until
			continue
		case to.busyUntil.After(c.begin):
			c.from.refused++
			continue
		}
		if !to.expects(c.from.name, c.begin) || !to.expects(c.from.name, c.until.Add(-1)) {
			unexpected++
		}
		c.from.busyUntil, to.busyUntil = c.until, c.until
		c.from.made[to.name]++
		to.made[c.from.name]++
	}
	return unexpected
}

func names(count int) []string {
	all := make([]string, count)
	for i := range all {
		all[i] = fmt.Sprintf("node%04d", i)
	}
	return all
}

func newCluster(t *testing.T, count int) []*actor {
	t.Helper()
	var all []*actor
	for _, name := range names(count) {
		all = append(all, &actor{name: name, lists: []period{listed(t, origin, name, names(count))}})
	}
	return all
}

func sum(cluster []*actor, of func(*actor) int) int {
	total := 0
	for _, a := range cluster {
		total += of(a)
	}
	return total
}

func refused(a *actor) int { return a.refused }
func missed(a *actor) int  { return a.missed }

// TestClocks: up to the guard, clocks that are wrong do no harm; beyond it the
// limit on sessions keeps a node from two measurements at once, and it shows.
func TestClocks(t *testing.T) {
	guard := Defaults().Guard
	for _, c := range []struct {
		name             string
		most             time.Duration // each clock is wrong by up to this
		sameSlot, noMeet bool
	}{
		{"right", 0, true, true},
		{"half the guard", guard / 2, true, true},
		{"the guard", guard, false, true},
		{"half a minute", 30 * time.Second, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			chance := rand.New(rand.NewPCG(7, 8))
			cluster := newCluster(t, 24)
			for i, a := range cluster {
				switch i % 3 { // the worst are at the ends
				case 0:
					a.ahead = c.most
				case 1:
					a.ahead = -c.most
				case 2:
					a.ahead = time.Duration(chance.Int64N(int64(2*c.most)+1)) - c.most
				}
			}
			unexpected := play(t, cluster, origin.Add(8*time.Hour))
			if c.sameSlot != (unexpected == 0) {
				t.Errorf("%d calls in another slot", unexpected)
			}
			if n := sum(cluster, refused); c.noMeet != (n == 0) {
				t.Errorf("%d calls met a node that was busy", n)
			}
		})
	}
}

// TestMissingNodes: nodes that are not there cost those their turns that would have
// met them, and all others nothing.
func TestMissingNodes(t *testing.T) {
	cluster := newCluster(t, 20)
	gone := map[string]bool{"node0003": true, "node0010": true, "node0019": true}
	for _, a := range cluster {
		if gone[a.name] {
			a.down = func(time.Time) bool { return true }
		}
	}
	const day = 24 * time.Hour
	play(t, cluster, origin.Add(day))
	if n := sum(cluster, refused); n != 0 {
		t.Errorf("%d calls met a node that was busy", n)
	}
	if sum(cluster, missed) == 0 {
		t.Error("nobody missed them")
	}
	// In a day 2880 pings and 96 measurements of bandwidth, of 19 partners each.
	for _, a := range cluster {
		for _, b := range cluster {
			if a == b || gone[a.name] {
				continue
			}
			if n := a.made[b.name]; gone[b.name] != (n == 0) || n != 0 && n < 150 {
				t.Errorf("%s and %s: %d measurements", a.name, b.name, n)
			}
		}
	}
}

// TestListChanges: while nodes have different lists, calls come in vain or meet
// busy nodes; what agrees goes on, and once all have the new list everything does.
func TestListChanges(t *testing.T) {
	chance := rand.New(rand.NewPCG(9, 10))
	old, changed := names(21), slices.Concat(names(21)[:4], names(24)[5:]) // one gone, three new
	change, agreed := origin.Add(time.Hour), origin.Add(2*time.Hour)
	build := func(from time.Time) []*actor {
		var cluster []*actor
		for _, name := range names(24) {
			a := &actor{name: name, lists: []period{listed(t, origin, name, old)}}
			seen := change.Add(time.Duration(chance.Int64N(int64(agreed.Sub(change)))))
			if p := a.lists[0].plan; p != nil {
				seen = p.FrameEnd(seen)
			}
			a.lists = append(a.lists, listed(t, seen, name, changed))
			a.down = func(at time.Time) bool { return at.Before(from) }
			cluster = append(cluster, a)
		}
		return cluster
	}
	during := build(origin)
	unexpected := play(t, during, agreed)
	if unexpected == 0 || sum(during, refused) == 0 {
		t.Errorf("%d unexpected and %d refused calls: the lists did not differ", unexpected, sum(during, refused))
	}
	made := sum(during, func(a *actor) int {
		n := 0
		for _, times := range a.made {
			n += times
		}
		return n
	})
	if made < 1000 {
		t.Errorf("only %d measurements while lists differed", made/2)
	}
	after := build(agreed)
	if unexpected := play(t, after, agreed.Add(12*time.Hour)); unexpected != 0 || sum(after, refused) != 0 || sum(after, missed) != 0 {
		t.Errorf("with the same list: %d unexpected, %d refused, %d unanswered calls", unexpected, sum(after, refused), sum(after, missed))
	}
	for _, a := range after {
		want := len(changed) - 1
		if a.name == "node0004" {
			want = 0 // it is in the list no more
		}
		if len(a.made) != want {
			t.Errorf("%s measured with %d others, not %d", a.name, len(a.made), want)
		}
	}
}

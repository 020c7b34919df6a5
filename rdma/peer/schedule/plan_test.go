package schedule

import (
	"math/rand/v2"
	"testing"
	"time"
)

// origin is a time at which a round of any length begins that divides a day.
var origin = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func plans(t *testing.T, nodes int, options Options) []*Plan {
	t.Helper()
	all := make([]*Plan, nodes)
	for self := range all {
		plan, err := New(nodes, self, options)
		if err != nil {
			t.Fatal(err)
		}
		all[self] = plan
	}
	return all
}

// someOptions are valid options drawn by chance.
func someOptions(chance *rand.Rand) Options {
	for {
		o := Options{
			Frame:  time.Duration(chance.IntN(120)+1) * time.Second,
			Degree: chance.IntN(7),
			Pings:  chance.IntN(4),
			Ping:   time.Duration(chance.IntN(20)+1) * time.Second,
			Guard:  time.Duration(chance.IntN(3000)) * time.Millisecond,
			Tries:  chance.IntN(4) + 1,
		}
		o.Round = o.Frame * time.Duration(chance.IntN(60)+1)
		if o.Check() == nil {
			return o
		}
	}
}

// checkTogether fails unless all nodes agree about a moment: partners know each
// other, begin and end together, and one of them begins.
func checkTogether(t *testing.T, all []*Plan, at time.Time) {
	t.Helper()
	guard := all[0].options.Guard
	kind := all[0].At(at).Kind
	for self, plan := range all {
		turn := plan.At(at)
		if turn.Kind != kind {
			t.Fatalf("%v: some ping while others measure bandwidth", at)
		}
		if turn.Start.After(at) || !turn.End.After(at) {
			t.Fatalf("%v is not from %v to %v", at, turn.Start, turn.End)
		}
		if turn.Partner == None {
			continue
		}
		other := all[turn.Partner].At(at)
		if other.Partner != self || other.Initiator == turn.Initiator {
			t.Fatalf("%v: %d has %+v, its partner %+v", at, self, turn, other)
		}
		other.Partner, other.Initiator = turn.Partner, turn.Initiator
		if other != turn {
			t.Fatalf("%v: %d has %+v, its partner %+v", at, self, turn, other)
		}
		if turn.Begin.Before(turn.Start.Add(guard)) || turn.Deadline.After(turn.End.Add(-guard)) || !turn.Begin.Before(turn.Deadline) {
			t.Fatalf("%v: a turn without guards of %v: %+v", at, guard, turn)
		}
	}
}

// TestAllAgree: of any number of nodes and with any options, at any time, each has
// one partner at most, and both see the same.
func TestAllAgree(t *testing.T) {
	chance := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		all := plans(t, chance.IntN(40)+1, someOptions(chance))
		for range 50 {
			checkTogether(t, all, time.Unix(chance.Int64N(1<<33)-1<<32, chance.Int64N(1e9)))
		}
	}
}

// met counts per pair of nodes the steps in which they meet, from origin on.
func met(all []*Plan, kind Kind, until time.Duration) map[[2]int]map[int64]bool {
	pairs := map[[2]int]map[int64]bool{}
	for self, plan := range all {
		for at := origin; at.Before(origin.Add(until)); {
			turn := plan.At(at)
			at = turn.End
			if turn.Kind != kind || turn.Partner == None || !turn.Initiator {
				continue
			}
			pair := [2]int{min(self, turn.Partner), max(self, turn.Partner)}
			if pairs[pair] == nil {
				pairs[pair] = map[int64]bool{}
			}
			pairs[pair][turn.Step] = true
		}
	}
	return pairs
}

// TestCoverage: after as long as is said, and not before, each pair has had its
// turn at either kind.
func TestCoverage(t *testing.T) {
	for _, nodes := range []int{2, 3, 4, 5, 8, 9, 31, 32} {
		all := plans(t, nodes, Defaults())
		ping, bandwidth := all[0].Coverage()
		for kind, until := range map[Kind]time.Duration{Ping: ping, Bandwidth: bandwidth} {
			if got := len(met(all, kind, until)); got != nodes*(nodes-1)/2 {
				t.Errorf("%d nodes: %s has met %d pairs after %v", nodes, kind, got, until)
			}
		}
		if nodes > 4 {
			if got := len(met(all, Bandwidth, bandwidth-time.Hour)); got == nodes*(nodes-1)/2 {
				t.Errorf("%d nodes: all pairs have met in less than %v", nodes, bandwidth)
			}
		}
	}
}

// TestNeighbours: in each round a node has Degree neighbours, or all there are, and
// tries at each as often as it may, in one window.
func TestNeighbours(t *testing.T) {
	for _, nodes := range []int{1, 2, 3, 4, 8, 11, 128} {
		for self, plan := range plans(t, nodes, Defaults()) {
			at := origin.Add(time.Duration(self) * 17 * time.Hour)
			turns := plan.Neighbours(at.Add(25 * time.Minute))
			most := min(4, nodes-1)
			if len(turns) > most || len(turns) < most-nodes%2 {
				t.Fatalf("node %d of %d: %d neighbours", self, nodes, len(turns))
			}
			tries := map[int]int{}
			for slot := at; slot.Before(at.Add(time.Hour)); {
				turn := plan.At(slot)
				slot = turn.End
				if turn.Kind == Bandwidth && turn.Partner != None {
					if turn.Try != tries[turn.Partner] {
						t.Fatalf("node %d of %d: try %d at %d comes after %d others", self, nodes, turn.Try, turn.Partner, tries[turn.Partner])
					}
					tries[turn.Partner]++
				}
			}
			for _, turn := range turns {
				if tries[turn.Partner] != 3 || turn.Try != 0 || turn.Start.Before(at) || turn.End.After(at.Add(time.Hour)) {
					t.Fatalf("node %d of %d: %d tries at %+v", self, nodes, tries[turn.Partner], turn)
				}
			}
			if len(tries) != len(turns) {
				t.Fatalf("node %d of %d: tries %v, neighbours %v", self, nodes, tries, turns)
			}
			if start := plan.RoundStart(at.Add(25 * time.Minute)); !start.Equal(at) {
				t.Fatalf("the round of %v began at %v", at, start)
			}
		}
	}
}

// TestNext: what comes next is what walking through the slots comes to.
func TestNext(t *testing.T) {
	chance := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		options := someOptions(chance)
		nodes := chance.IntN(9) + 1
		plan, err := New(nodes, chance.IntN(nodes), options)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Unix(chance.Int64N(1<<33), chance.Int64N(1e9)).UTC()
		want, found := walk(plan, at, 3*options.Round)
		got, ok := plan.Next(at)
		if ok != found || got != want {
			t.Fatalf("node %d of %d, %+v, after %v:\n got %v %+v\nwant %v %+v", plan.self, nodes, options, at, ok, got, found, want)
		}
		if end := plan.FrameEnd(at); !end.After(at) || end.Sub(at) > options.Frame || end.Unix()%int64(options.Frame/time.Second) != 0 {
			t.Fatalf("the frame of %v ends at %v", at, end)
		}
	}
}

func walk(plan *Plan, from time.Time, most time.Duration) (Turn, bool) {
	for at := from; at.Before(from.Add(most)); {
		turn := plan.At(at)
		if turn.Partner != None && !turn.Begin.Before(from) {
			return turn, true
		}
		at = turn.End
	}
	return Turn{}, false
}

// TestSpread: of all pairs of a large cluster few measure bandwidth at once, and
// those few do not begin together.
func TestSpread(t *testing.T) {
	const nodes = 2000
	all := plans(t, nodes, Defaults())
	slots, begins := map[time.Time]int{}, map[time.Time]int{}
	for _, plan := range all {
		for _, turn := range plan.Neighbours(origin) {
			if turn.Initiator {
				slots[turn.Start]++
				begins[turn.Begin.Truncate(100*time.Millisecond)]++
			}
		}
	}
	// A window has 15 frames; two tries at distances of two come after the first.
	const even = nodes / 2 / 11
	if len(slots) != 4*11 {
		t.Errorf("%d slots are used", len(slots))
	}
	for slot, pairs := range slots {
		if pairs < even*6/10 || pairs > even*14/10 {
			t.Errorf("%v: %d pairs at once, on average %d", slot, pairs, even)
		}
	}
	for begin, pairs := range begins {
		if pairs > 10 { // 91 pairs within 9 s: one in a tenth of a second
			t.Errorf("%v: %d pairs begin within a tenth of a second", begin, pairs)
		}
	}
}

func TestOptionsRefused(t *testing.T) {
	if err := Defaults().Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"no round":                 func(o *Options) { o.Round = 0 },
		"round of two days":        func(o *Options) { o.Round = 48 * time.Hour },
		"round of half a second":   func(o *Options) { o.Round += time.Second / 2 },
		"frames do not make it up": func(o *Options) { o.Frame = 7 * time.Second },
		"no frame":                 func(o *Options) { o.Frame = 0 },
		"negative guard":           func(o *Options) { o.Guard = -1 },
		"guards fill the ping":     func(o *Options) { o.Guard = 5 * time.Second },
		"guard of a day":           func(o *Options) { o.Guard = 24 * time.Hour },
		"negative degree":          func(o *Options) { o.Degree = -1 },
		"negative pings":           func(o *Options) { o.Pings = -1 },
		"pings fill the frame":     func(o *Options) { o.Pings = 6 },
		"pings do not fit":         func(o *Options) { o.Pings = 7 },
		"ping of no seconds":       func(o *Options) { o.Ping = 0 },
		"ping of parts":            func(o *Options) { o.Ping = 10500 * time.Millisecond },
		"nothing to do":            func(o *Options) { o.Pings, o.Degree = 0, 0 },
		"no tries":                 func(o *Options) { o.Tries = 0 },
		"too many tries":           func(o *Options) { o.Tries = 16 },
		"too many neighbours":      func(o *Options) { o.Degree = 21 },
	} {
		o := Defaults()
		change(&o)
		if err := o.Check(); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if _, err := New(8, 0, o); err == nil {
			t.Errorf("%s: there is a plan", name)
		}
		if o.Version() == Defaults().Version() {
			t.Errorf("%s: the version is that of the defaults", name)
		}
	}
	for _, of := range [][2]int{{0, 0}, {8, 8}, {8, -1}, {MaxNodes + 1, 0}} {
		if _, err := New(of[0], of[1], Defaults()); err == nil {
			t.Errorf("a plan for node %d of %d", of[1], of[0])
		}
	}
}

// TestOnlyOneKind: without pings there is bandwidth, and the other way round.
func TestOnlyOneKind(t *testing.T) {
	for kind, change := range map[Kind]func(*Options){
		Bandwidth: func(o *Options) { o.Pings = 0 },
		Ping:      func(o *Options) { o.Degree = 0 },
	} {
		o := Defaults()
		change(&o)
		plan := plans(t, 5, o)[2]
		ping, bandwidth := plan.Coverage()
		if (ping > 0) != (kind == Ping) || (bandwidth > 0) != (kind == Bandwidth) {
			t.Errorf("only %s: coverage of pings %v, of bandwidth %v", kind, ping, bandwidth)
		}
		for at := origin; at.Before(origin.Add(3 * time.Hour)); {
			turn, ok := plan.Next(at)
			if !ok || turn.Kind != kind {
				t.Fatalf("only %s: next is %v %+v", kind, ok, turn)
			}
			at = turn.End
		}
	}
}

func FuzzAt(f *testing.F) {
	f.Add(8, 3, int64(1_700_000_000), int64(1))
	f.Add(1, 0, int64(1)<<62, int64(999_999_999))
	f.Add(10000, 9999, int64(-1)<<63, int64(0))
	f.Fuzz(func(t *testing.T, nodes, self int, seconds, nanoseconds int64) {
		plan, err := New(nodes, self, Defaults())
		if err != nil {
			return
		}
		at := time.Unix(seconds, nanoseconds)
		turn := plan.At(at)
		next, ok := plan.Next(at)
		plan.Neighbours(at)
		plan.RoundStart(at)
		if seconds < 0 || seconds > 1<<40 {
			return // only that it does not break
		}
		if turn.Start.After(at) || !turn.End.After(at) || ok != (nodes > 1) || ok && next.Begin.Before(at) {
			t.Errorf("node %d of %d at %v: %+v, then %+v", self, nodes, at, turn, next)
		}
	})
}

func BenchmarkAt(b *testing.B) {
	plan, err := New(10000, 4321, Defaults())
	if err != nil {
		b.Fatal(err)
	}
	for i := range b.N {
		plan.At(origin.Add(time.Duration(i) * time.Second))
	}
}

func BenchmarkNext(b *testing.B) {
	plan, err := New(10000, 4321, Defaults())
	if err != nil {
		b.Fatal(err)
	}
	for i := range b.N {
		plan.Next(origin.Add(time.Duration(i) * time.Second))
	}
}

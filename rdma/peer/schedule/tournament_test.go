package schedule

import (
	"math/rand/v2"
	"testing"
)

// sizes are small numbers of nodes, all of them, and some large ones.
func sizes() []int {
	var all []int
	for n := 1; n <= 40; n++ {
		all = append(all, n)
	}
	return append(all, 127, 128, 255, 256, 257, 1000)
}

func mustTournament(t *testing.T, nodes int) Tournament {
	t.Helper()
	games, err := NewTournament(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return games
}

// checkStep fails unless each node of a step meets at most one, who meets it too,
// and one of the two begins. It returns how many have no partner.
func checkStep(t *testing.T, games Tournament, step int64, met func(low, high int)) (byes int) {
	t.Helper()
	for node := range games.Nodes() {
		partner := games.Partner(node, step)
		switch {
		case partner == None:
			byes++
			if games.Initiates(node, step) {
				t.Fatalf("%d nodes, step %d: %d begins with nobody", games.Nodes(), step, node)
			}
		case partner == node || partner < 0 || partner >= games.Nodes() || games.Partner(partner, step) != node:
			t.Fatalf("%d nodes, step %d: %d meets %d, which meets %d", games.Nodes(), step, node, partner, games.Partner(partner, step))
		case games.Initiates(node, step) == games.Initiates(partner, step):
			t.Fatalf("%d nodes, step %d: both of %d and %d begin, or none", games.Nodes(), step, node, partner)
		case node < partner:
			met(node, partner)
		}
	}
	return byes
}

// TestEachPairOnce: whatever step it begins with, a pass has each pair once, in as
// many steps as can be.
func TestEachPairOnce(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	for _, nodes := range sizes() {
		games := mustTournament(t, nodes)
		if want := int64(nodes - 1 + nodes%2); games.Steps() != want {
			t.Errorf("%d nodes: %d steps, not %d", nodes, games.Steps(), want)
		}
		first := chance.Int64N(1<<40) - 1<<39
		met := make([]bool, nodes*nodes)
		pairs := 0
		for step := first; step < first+games.Steps(); step++ {
			byes := checkStep(t, games, step, func(low, high int) {
				if met[low*nodes+high] {
					t.Fatalf("%d nodes: %d and %d meet twice", nodes, low, high)
				}
				met[low*nodes+high] = true
				pairs++
			})
			if byes != nodes%2 {
				t.Fatalf("%d nodes, step %d: %d have no partner", nodes, step, byes)
			}
		}
		if pairs != nodes*(nodes-1)/2 {
			t.Errorf("%d nodes: %d pairs met", nodes, pairs)
		}
	}
}

// TestInitiatorsAlternate: of a pair it is the one, then the other; and a node is
// about as often the one that begins as the one that is called.
func TestInitiatorsAlternate(t *testing.T) {
	for _, nodes := range sizes() {
		games := mustTournament(t, nodes)
		for node := range nodes {
			begun := 0
			for step := range games.Steps() {
				first, second := games.Initiates(node, step), games.Initiates(node, step+games.Steps())
				if first == second && games.Partner(node, step) != None {
					t.Fatalf("%d nodes: %d begins with %d in every pass, or in none", nodes, node, games.Partner(node, step))
				}
				if first {
					begun++
				}
			}
			if called := nodes - 1 - begun; begun-called > 1 || called-begun > 1 {
				t.Errorf("%d nodes: %d begins %d times and is called %d times", nodes, node, begun, called)
			}
		}
	}
}

// TestPartnersFarApart: nodes whose names follow each other hang at one switch. A
// few steps in a row must not all lead there.
func TestPartnersFarApart(t *testing.T) {
	for _, nodes := range []int{32, 128, 1000, 10000} {
		games := mustTournament(t, nodes)
		for step := range games.Steps() {
			const node = 5
			for ahead := range int64(3) {
				a, b := games.Partner(node, step), games.Partner(node, step+ahead+1)
				distance := max(a-b, b-a)
				distance = min(distance, nodes-distance)
				// The last node is not on the circle: it stands anywhere.
				if a < nodes-1 && b < nodes-1 && distance < nodes/10 {
					t.Fatalf("%d nodes, steps %d and %d: %d meets %d and %d", nodes, step, step+ahead+1, node, a, b)
				}
			}
		}
	}
}

func TestTournamentRefuses(t *testing.T) {
	for _, nodes := range []int{-1, 0, MaxNodes + 1} {
		if _, err := NewTournament(nodes); err == nil {
			t.Errorf("a tournament of %d nodes", nodes)
		}
	}
	games := mustTournament(t, 8)
	for _, node := range []int{-1, 8} {
		if partner := games.Partner(node, 3); partner != None {
			t.Errorf("node %d of 8 meets %d", node, partner)
		}
	}
}

func FuzzPartner(f *testing.F) {
	f.Add(8, 3, int64(5))
	f.Add(MaxNodes, MaxNodes-1, int64(-1)<<63)
	f.Add(3, 2, int64(1)<<62)
	f.Fuzz(func(t *testing.T, nodes, node int, step int64) {
		games, err := NewTournament(nodes)
		if err != nil {
			return
		}
		partner := games.Partner(node, step)
		if partner == None {
			return
		}
		if partner == node || games.Partner(partner, step) != node || games.Initiates(node, step) == games.Initiates(partner, step) {
			t.Errorf("%d of %d meets %d in step %d, which meets %d", node, nodes, partner, step, games.Partner(partner, step))
		}
	})
}

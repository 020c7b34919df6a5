package schedule

import "fmt"

// MaxNodes is the most nodes that a tournament is played by.
const MaxNodes = 1 << 16

// None is the partner of a node that has none.
const None = -1

// Tournament is a round-robin tournament of nodes that are numbered from 0. Its
// steps are numbered without end, pass after pass; each pass has all pairs once.
// Every question is answered in constant time, without a table.
type Tournament struct {
	nodes int64
	// steps are those of a pass: one less than there are players, where an odd
	// number of nodes has one player more that nobody is (a bye).
	steps int64
	// stride is by how much the circle is turned from one step to the next. One
	// place at a time would lead a node through one rack after the other, since
	// lists are sorted by name; so it is about 0.618 of the circle, after which
	// partners that follow each other are far apart in the list.
	stride int64
}

// NewTournament is the tournament of so many nodes.
func NewTournament(nodes int) (Tournament, error) {
	if nodes < 1 || nodes > MaxNodes {
		return Tournament{}, fmt.Errorf("a tournament of %d nodes: it takes 1 to %d", nodes, MaxNodes)
	}
	t := Tournament{nodes: int64(nodes), steps: int64(nodes+nodes%2) - 1}
	t.stride = t.steps * 618 / 1000
	// Only a stride without a common divisor comes by every place of the circle.
	for t.stride < 1 || gcd(t.stride, t.steps) != 1 {
		t.stride++
	}
	return t, nil
}

// Nodes is how many nodes play.
func (t Tournament) Nodes() int { return int(t.nodes) }

// Steps is how many steps a pass has: after so many, each pair has met once.
func (t Tournament) Steps() int64 { return t.steps }

// Partner is whom a node meets in a step, [None] if nobody: when the number of
// nodes is odd one node of each step has no partner, and one alone never has.
func (t Tournament) Partner(node int, step int64) int {
	if t.nodes < 2 || node < 0 || int64(node) >= t.nodes {
		return None
	}
	partner := t.opponent(int64(node), step)
	if partner >= t.nodes {
		return None
	}
	return int(partner)
}

// opponent is the circle method: two players on the circle meet when their numbers
// add up to the step's place, modulo the circle's size (which is odd). One player
// would meet itself; it meets the last player, who is not on the circle.
func (t Tournament) opponent(player, step int64) int64 {
	place := floorMod(step, t.steps) * t.stride % t.steps
	if player == t.steps {
		return place * ((t.steps + 1) / 2) % t.steps // half of it: the one that would meet itself
	}
	if other := floorMod(place-player, t.steps); other != player {
		return other
	}
	return t.steps
}

// Initiates reports whether a node is the one that begins in a step. Of a pair it
// is the one in one pass and the other in the next; of a node's pairs of one pass
// about half.
func (t Tournament) Initiates(node int, step int64) bool {
	partner := t.Partner(node, step)
	if partner == None {
		return false
	}
	low, high := min(node, partner), max(node, partner)
	lowBegins := (high-low)%2 == 1
	if t.Pass(step)%2 != 0 {
		lowBegins = !lowBegins
	}
	return lowBegins == (node == low)
}

// Pass is the pass that a step belongs to.
func (t Tournament) Pass(step int64) int64 { return floorDiv(step, t.steps) }

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// floorDiv and floorMod round down also below zero, where clocks before 1970 are.
func floorDiv(a, b int64) int64 {
	quotient := a / b
	if a%b < 0 {
		quotient--
	}
	return quotient
}

func floorMod(a, b int64) int64 {
	rest := a % b
	if rest < 0 {
		rest += b
	}
	return rest
}

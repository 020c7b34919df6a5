package schedule

import (
	"fmt"
	"time"
)

// Kind is what a slot is for.
type Kind string

// Kinds of measurements.
const (
	Ping      Kind = "ping"      // small writes between host memories
	Bandwidth Kind = "bandwidth" // as much as the path takes
)

// Turn is what a node does in one slot.
type Turn struct {
	Kind Kind
	// Partner is the node that this one meets, None if it has nothing to do; then
	// only Kind, Start and End say anything.
	Partner   int
	Initiator bool // this node begins; else it waits to be called
	// Start and End are those of the slot. The initiator begins at Begin, and all
	// has ended by Deadline.
	Start, End      time.Time
	Begin, Deadline time.Time
	// Step is that of the kind's tournament, Pass which of its passes.
	Step, Pass int64
	Try        int // of the pair in this step: 0 is the first
}

// Plan is what one node does, of a list and at all times. It does not change, and
// depends on nothing but what it was made of.
type Plan struct {
	options Options
	games   Tournament
	self    int
	degree  int64 // neighbours a round: not more than there are steps
	width   int64 // frames of a window
	gap     int64 // frames from one try to the next
	homes   int64 // frames of a window that a first try may be in
}

// New is the plan of a node, of which the sorted list has so many and that is
// number self of them, from 0.
func New(nodes, self int, options Options) (*Plan, error) {
	if err := options.Check(); err != nil {
		return nil, fmt.Errorf("schedule of peers: %w", err)
	}
	games, err := NewTournament(nodes)
	if err != nil {
		return nil, fmt.Errorf("schedule of peers: %w", err)
	}
	if self < 0 || self >= nodes {
		return nil, fmt.Errorf("schedule of peers: node %d of %d", self, nodes)
	}
	p := &Plan{options: options, games: games, self: self}
	if nodes > 1 {
		p.degree = min(int64(options.Degree), games.Steps())
	}
	if p.degree > 0 {
		p.width = options.frames() / p.degree
		// Tries close together leave more frames for the first, over which the pairs of
		// a cluster are spread; but what was in the way must have time to pass.
		p.gap = max(1, p.width/int64(2*options.Tries))
		p.homes = p.width - int64(options.Tries-1)*p.gap
	}
	return p, nil
}

// At is what the node does at a time. Its End is when that changes.
func (p *Plan) At(t time.Time) Turn {
	frame, offset := p.locate(t)
	if offset < p.options.pinging() {
		return p.ping(frame*int64(p.options.Pings) + int64(offset/p.options.Ping))
	}
	if step, place := p.window(frame); step.found {
		try := place - p.home(step.number)
		if try >= 0 && try%p.gap == 0 && try/p.gap < int64(p.options.Tries) {
			return p.bandwidth(step.number, int(try/p.gap))
		}
	}
	start := p.frameStart(frame)
	return Turn{Kind: Bandwidth, Partner: None, Start: start.Add(p.options.pinging()), End: start.Add(p.options.Frame)}
}

// Next is the first turn with a partner that begins at a time or after it; false if
// there never is one. Whoever waits for it looks at the clock again then: a clock
// that was set has changed what is next.
func (p *Plan) Next(t time.Time) (Turn, bool) {
	ping, pings := p.nextPing(t)
	wide, wides := p.nextBandwidth(t)
	if !pings || wides && wide.Begin.Before(ping.Begin) {
		return wide, wides
	}
	return ping, true
}

// Neighbours are the first tries of the round that a time is in: with whom the node
// measures bandwidth in it, in order.
func (p *Plan) Neighbours(t time.Time) []Turn {
	frame, _ := p.locate(t)
	round := floorDiv(frame, p.options.frames())
	var turns []Turn
	for step := round * p.degree; step < (round+1)*p.degree; step++ {
		if turn := p.bandwidth(step, 0); turn.Partner != None {
			turns = append(turns, turn)
		}
	}
	return turns
}

// RoundStart is when the round began that a time is in.
func (p *Plan) RoundStart(t time.Time) time.Time {
	frame, _ := p.locate(t)
	return p.frameStart(floorDiv(frame, p.options.frames()) * p.options.frames())
}

// FrameEnd is when the frame ends that a time is in. A new list is taken then, so
// that nothing changes within a frame.
func (p *Plan) FrameEnd(t time.Time) time.Time {
	frame, _ := p.locate(t)
	return p.frameStart(frame + 1)
}

// Coverage is how long it takes until each pair has had its turn; 0 if none has
// one. It is exact for pings, and to within a round for bandwidth.
func (p *Plan) Coverage() (ping, bandwidth time.Duration) {
	if p.games.Nodes() < 2 {
		return 0, 0
	}
	if n := int64(p.options.Pings); n > 0 {
		ping = time.Duration((p.games.Steps()+n-1)/n) * p.options.Frame
	}
	if p.degree > 0 {
		bandwidth = time.Duration((p.games.Steps()+p.degree-1)/p.degree) * p.options.Round
	}
	return ping, bandwidth
}

// locate is the frame of a time, and how far into it the time is.
func (p *Plan) locate(t time.Time) (frame int64, offset time.Duration) {
	// In seconds: nanoseconds since 1970 do not hold every time.
	length := int64(p.options.Frame / time.Second)
	seconds := t.Unix()
	return floorDiv(seconds, length), time.Duration(floorMod(seconds, length))*time.Second + time.Duration(t.Nanosecond())
}

func (p *Plan) frameStart(frame int64) time.Time {
	return time.Unix(frame*int64(p.options.Frame/time.Second), 0).UTC()
}

// step is a step of the tournament of bandwidth, if there is one: what is left of a
// round after its windows has none.
type step struct {
	number int64
	found  bool
}

// window is the step whose window a frame lies in, and the frame's place in it.
func (p *Plan) window(frame int64) (step, int64) {
	if p.degree == 0 {
		return step{}, 0
	}
	round := floorDiv(frame, p.options.frames())
	place := frame - round*p.options.frames()
	if place >= p.width*p.degree {
		return step{}, 0
	}
	return step{round*p.degree + place/p.width, true}, place % p.width
}

// home is the frame of a step's window in which the pair tries first. Both of the
// pair draw the same; pairs of one step draw differently, and so do steps of one
// pair.
func (p *Plan) home(step int64) int64 {
	return int64(p.draw(Bandwidth, step) % uint64(p.homes))
}

// draw is a number of 64 bits that is the same for both of a pair.
func (p *Plan) draw(kind Kind, step int64) uint64 {
	partner := p.games.Partner(p.self, step)
	pair := uint64(min(p.self, partner))<<32 | uint64(max(p.self, partner, 0))
	return mix(mix(pair+uint64(len(kind))<<24) + uint64(step))
}

// mix is the finaliser of splitmix64: every bit of what it gives depends on every
// bit of what it takes.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// ping is the turn of a step of the tournament of pings.
func (p *Plan) ping(number int64) Turn {
	n := int64(p.options.Pings)
	frame := floorDiv(number, n)
	start := p.frameStart(frame).Add(time.Duration(number-frame*n) * p.options.Ping)
	return p.turn(Turn{Kind: Ping, Step: number, Start: start, End: start.Add(p.options.Ping)})
}

// bandwidth is the turn of a try in a step of the tournament of bandwidth.
func (p *Plan) bandwidth(number int64, try int) Turn {
	round := floorDiv(number, p.degree)
	frame := round*p.options.frames() + (number-round*p.degree)*p.width + p.home(number) + int64(try)*p.gap
	start := p.frameStart(frame)
	return p.turn(Turn{Kind: Bandwidth, Step: number, Try: try, Start: start.Add(p.options.pinging()), End: start.Add(p.options.Frame)})
}

// turn fills in who meets whom in a slot, and when in it.
func (p *Plan) turn(t Turn) Turn {
	t.Partner = p.games.Partner(p.self, t.Step)
	if t.Partner == None {
		return Turn{Kind: t.Kind, Partner: None, Start: t.Start, End: t.End}
	}
	t.Initiator = p.games.Initiates(p.self, t.Step)
	t.Pass = p.games.Pass(t.Step)
	t.Deadline = t.End.Add(-p.options.Guard)
	t.Begin = t.Start.Add(p.options.Guard)
	// Pairs of one slot begin within a quarter of it, not all at the same moment:
	// what they send lasts a fraction of a second, and would meet in the switches.
	if spread := t.Deadline.Sub(t.Begin) / 4; spread > 0 {
		t.Begin = t.Begin.Add(time.Duration(mix(p.draw(t.Kind, t.Step)+uint64(t.Try)+1) % uint64(spread)))
	}
	return t
}

func (p *Plan) nextPing(t time.Time) (Turn, bool) {
	n := int64(p.options.Pings)
	if n == 0 || p.games.Nodes() < 2 {
		return Turn{}, false
	}
	frame, offset := p.locate(t)
	first := frame*n + min(int64(offset/p.options.Ping), n)
	// One slot may have begun already, and no two that follow each other are byes.
	for number := first; number < first+3; number++ {
		if turn := p.ping(number); turn.Partner != None && !turn.Begin.Before(t) {
			return turn, true
		}
	}
	return Turn{}, false
}

func (p *Plan) nextBandwidth(t time.Time) (Turn, bool) {
	if p.degree == 0 {
		return Turn{}, false
	}
	frame, _ := p.locate(t)
	round := floorDiv(frame, p.options.frames())
	first := round*p.degree + min((frame-round*p.options.frames())/p.width, p.degree)
	for number := first; number < first+3; number++ { // as with pings
		for try := range p.options.Tries {
			if turn := p.bandwidth(number, try); turn.Partner != None && !turn.Begin.Before(t) {
				return turn, true
			}
		}
	}
	return Turn{}, false
}

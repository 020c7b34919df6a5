package schedule

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Options lay out the time. They must be the same on all nodes of a list. The
// package documentation says why the defaults are what they are.
type Options struct {
	Round  time.Duration // in which a node measures bandwidth with Degree neighbours
	Degree int           // neighbours a round; 0: bandwidth is not measured
	Frame  time.Duration // holds Pings slots of length Ping, and one for bandwidth
	Pings  int           // pings a frame; 0: none are made
	Ping   time.Duration // length of a slot for a ping
	Guard  time.Duration // at both ends of each slot, against clocks that differ
	Tries  int           // how often a pair may try in its window
}

// Defaults are the options when nothing is said.
func Defaults() Options {
	return Options{Round: time.Hour, Degree: 4, Frame: time.Minute, Pings: 2, Ping: 10 * time.Second, Guard: 2 * time.Second, Tries: 3}
}

const (
	// maxRound bounds what is counted up: with MaxNodes nodes all pairs of a
	// tournament of one neighbour a round then take less than a time.Duration holds.
	maxRound = 24 * time.Hour
	// leastWork is what a slot must leave between its guards.
	leastWork = time.Second
	maxPings  = 1000
	maxTries  = 100
)

// Check says what is wrong with the options.
func (o Options) Check() error {
	switch {
	case o.Round < time.Second || o.Round > maxRound || o.Round%time.Second != 0:
		return fmt.Errorf("round %v: it takes whole seconds, %v at most", o.Round, maxRound)
	case o.Frame < time.Second || o.Frame%time.Second != 0 || o.Round%o.Frame != 0:
		return fmt.Errorf("frame %v: it takes whole seconds, and a whole number of frames must make up the round of %v", o.Frame, o.Round)
	case o.Guard < 0 || o.Guard > o.Frame:
		return fmt.Errorf("guard %v: it takes 0 to a frame", o.Guard)
	case o.Degree < 0 || o.Degree > MaxNodes:
		return fmt.Errorf("degree %d: it takes 0 to %d", o.Degree, MaxNodes)
	case o.Pings < 0 || o.Pings > maxPings:
		return fmt.Errorf("%d pings a frame: it takes 0 to %d", o.Pings, maxPings)
	case o.Pings == 0 && o.Degree == 0:
		return errors.New("neither pings nor bandwidth: there is nothing to do")
	}
	return errors.Join(o.checkPings(), o.checkBandwidth())
}

func (o Options) checkPings() error {
	switch {
	case o.Pings == 0:
		return nil
	case o.Ping < time.Second || o.Ping%time.Second != 0 || o.Ping > o.Frame/time.Duration(o.Pings):
		return fmt.Errorf("ping %v: it takes whole seconds, and %d of them must fit into the frame of %v", o.Ping, o.Pings, o.Frame)
	case o.Ping-2*o.Guard < leastWork:
		return fmt.Errorf("ping %v: less than %v is left of it between two guards of %v", o.Ping, leastWork, o.Guard)
	}
	return nil
}

func (o Options) checkBandwidth() error {
	switch {
	case o.Degree == 0:
		return nil
	case o.bandwidth()-2*o.Guard < leastWork:
		return fmt.Errorf("frame %v: less than %v is left of it for bandwidth after %d pings of %v, between two guards of %v", o.Frame, leastWork, o.Pings, o.Ping, o.Guard)
	case o.Tries < 1 || o.Tries > maxTries:
		return fmt.Errorf("%d tries: it takes 1 to %d", o.Tries, maxTries)
	case o.frames()/int64(o.Degree) < int64(o.Tries):
		return fmt.Errorf("round %v of %d frames: they do not suffice for %d neighbours with %d tries each", o.Round, o.frames(), o.Degree, o.Tries)
	}
	return nil
}

// Version tells options apart, and the rules of this package with them: nodes whose
// versions differ do not meet.
func (o Options) Version() string {
	text := fmt.Sprintf("1 %d %d %d %d %d %d %d", o.Round, o.Degree, o.Frame, o.Pings, o.Ping, o.Guard, o.Tries)
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// frames is how many of them make up a round.
func (o Options) frames() int64 { return int64(o.Round / o.Frame) }

// pinging is how much of a frame is for pings.
func (o Options) pinging() time.Duration { return time.Duration(o.Pings) * o.Ping }

// bandwidth is what is left of a frame.
func (o Options) bandwidth() time.Duration { return o.Frame - o.pinging() }

package session

import "time"

// Plan says what to measure. It is a session: the rounds go one after the other between
// the same two endpoints.
type Plan struct {
	Kind       Kind
	Memory     Memory
	Directions []Direction // a round for each
	From       Port        // of this host
	Rail       Port        // of the peer
	OwnGPU     string      // PCI address; needed for memory of GPUs
	GPU        string      // of the peer; "": the first one next to its rail
	Shape      Shape
	Bytes      uint64        // of each write of each round. Default: 256 MiB
	Within     time.Duration // begin no more writes after it; 0: no matter
	Pings      int           // before the writes. Default: 64 of a ping, else none
	Deadline   time.Duration // of the session. Default: that of Limits
}

// Result is what came of a plan.
type Result struct {
	ID        string        `json:"id"` // that both sides' logs have
	Started   time.Time     `json:"started"`
	Elapsed   time.Duration `json:"elapsed_ns"`
	Facts     Facts         `json:"facts"` // of this host
	PeerFacts Facts         `json:"peer_facts"`
	Rounds    []Round       `json:"rounds"` // those that began
	// Failure is why it ended early; nil: all rounds were carried through. Wrong data is
	// no failure: see [Way.Mismatches].
	Failure *Failure `json:"failure,omitempty"`
}

// Round is what came of a round.
type Round struct {
	Direction Direction `json:"direction"`
	Written   *Way      `json:"written,omitempty"` // the initiator wrote
	Back      *Way      `json:"back,omitempty"`    // the responder wrote
	Failure   *Failure  `json:"failure,omitempty"`
}

// Way is what one side wrote to the other's memory. Bytes, time and latency are what
// the side that wrote says, verification is of the side whose memory it is.
type Way struct {
	Bytes          uint64        `json:"bytes"`
	Elapsed        time.Duration `json:"elapsed_ns"`
	CPU            time.Duration `json:"cpu_ns,omitempty"`           // of the writing thread
	BytesPerSecond float64       `json:"bytes_per_second,omitempty"` // 0: not known, as of pings and of what failed
	Verified       uint64        `json:"verified_bytes"`
	Mismatches     int           `json:"mismatches"` // words of 8 bytes that are wrong
	Latency        *Latency      `json:"latency,omitempty"`
}

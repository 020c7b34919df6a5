package peer

import (
	"time"

	"gdr_exporter/rdma/peer/rails"
	"gdr_exporter/rdma/peer/session"
)

// Status is what a Runner shows: its list, its own rails and what is known of the path
// to each peer. It is a copy that nobody changes.
type Status struct {
	Taken time.Time `json:"taken"`

	// Self is this node's address in the list, "" if it is not there; SelfText says why.
	Self     string `json:"self"`
	SelfText string `json:"self_text,omitempty"`
	Name     string `json:"name"` // of this node, as the list calls it

	Targets int      `json:"targets"` // this node included
	List    string   `json:"list"`    // its version: nodes with the same list have the same
	Options string   `json:"options"` // version of the schedule's options
	Sources []Source `json:"sources"`
	// ListText is why the list does not follow its sources, "" if it does.
	ListText string `json:"list_text,omitempty"`

	// Round is when the current round of bandwidth measurements began, Next when this
	// node meets somebody next; zero: never.
	Round time.Time `json:"round"`
	Next  time.Time `json:"next"`
	// CoverPing and CoverBandwidth are how long it takes until each pair of the list has
	// had its turn; 0: no such measurements are made.
	CoverPing      time.Duration `json:"cover_ping_ns"`
	CoverBandwidth time.Duration `json:"cover_bandwidth_ns"`

	// Spent are the bytes of the last hour, of sessions of both roles, Budget the most
	// that it may be; 0: no bound.
	Spent  uint64 `json:"spent_bytes"`
	Budget uint64 `json:"budget_bytes"`
	// Bytes and Sessions count since the start.
	Bytes    map[Role]uint64     `json:"bytes"`
	Sessions map[SessionKind]int `json:"-"`

	// Certificate is what this node shows to others; nil: sessions have no TLS, or nobody
	// has looked at it.
	Certificate *Certificate `json:"certificate,omitempty"`

	Rails []OwnRail `json:"rails"`
	Peers []Peer    `json:"peers"` // in the order of the list, without this node
}

// Certificate is that of a node in sessions of both roles. When it has ended there are
// none any more.
type Certificate struct {
	// Begins and Ends are of the time in which it holds and those of its authority do.
	Begins time.Time `json:"begins"`
	Ends   time.Time `json:"ends"`
	// Text is why the files as they are now do not count, but as they were when they were
	// good last; "" if they do.
	Text string `json:"text,omitempty"`
}

// CertificateState is how a certificate is by the time of day.
type CertificateState string

// The states.
const (
	CertificateGood    CertificateState = "good"
	CertificateEarly   CertificateState = "early" // it does not hold yet
	CertificateLate    CertificateState = "late"  // it holds, and ought to have been renewed
	CertificateEnded   CertificateState = "ended"
	CertificateUnknown CertificateState = "unknown"
)

// mostNotice is how long before its end a certificate is late at most.
const mostNotice = 14 * 24 * time.Hour

// State says how the certificate is. Late is the last sixth of its life, two weeks at
// most: what is renewed by itself is renewed when a third or half of it is left, so that
// certificates of days or hours are not late each time.
func (c *Certificate) State(now time.Time) CertificateState {
	switch left := c.Ends.Sub(now); {
	case c.Ends.IsZero():
		return CertificateUnknown
	case left <= 0:
		return CertificateEnded
	case now.Before(c.Begins):
		return CertificateEarly
	case left < min(c.Ends.Sub(c.Begins)/6, mostNotice):
		return CertificateLate
	}
	return CertificateGood
}

// Role is this node's part in a session.
type Role string

// The roles.
const (
	Initiator Role = "initiator"
	Responder Role = "responder"
)

// Class is a coarse result of a session, fit for a label.
type Class string

// The classes.
const (
	ClassFine        Class = "fine"        // carried through, and its rates are within the limits
	ClassSlow        Class = "slow"        // carried through, below a limit
	ClassCorrupt     Class = "corrupt"     // data arrived wrong
	ClassFailed      Class = "failed"      // the path or an endpoint failed (RDMA)
	ClassUnreachable Class = "unreachable" // the peer's listener does not answer
	ClassDenied      Class = "denied"      // certificate, list, version or protocol
	ClassRefused     Class = "refused"     // busy, locked, gated, no budget: says nothing of the path
	ClassStopped     Class = "stopped"     // this side ended it
)

// Classes are all classes.
var Classes = []Class{ClassFine, ClassSlow, ClassCorrupt, ClassFailed, ClassUnreachable, ClassDenied, ClassRefused, ClassStopped}

// Bad reports whether a result says that something is wrong. What was refused or
// stopped says nothing.
func (c Class) Bad() bool {
	return c == ClassSlow || c == ClassCorrupt || c == ClassFailed || c == ClassUnreachable || c == ClassDenied
}

// Judged reports whether a result says anything of the path.
func (c Class) Judged() bool { return c == ClassFine || c.Bad() }

// SessionKind is what sessions are counted by.
type SessionKind struct {
	Role  Role
	Kind  session.Kind
	Class Class
}

// Source is a file or DNS name that the list comes from.
type Source struct {
	Name    string    `json:"name"`
	Targets int       `json:"targets"`
	Good    time.Time `json:"good"`           // when it was read well last; zero: never
	Text    string    `json:"text,omitempty"` // why it is not as good as now
}

// Peer is another node of the list, as this one sees it.
type Peer struct {
	Target string `json:"target"` // host:port of the list
	Name   string `json:"name"`   // what people call it
	// Contact is the last answer of its session listener, whoever called; nil: none yet.
	Contact *Contact `json:"contact,omitempty"`
	// Listener is what came of the last call of this node to it: fine, or why there was
	// no session at all. "" before the first one.
	Listener Class            `json:"listener,omitempty"`
	Tried    time.Time        `json:"tried"`
	Failure  *session.Failure `json:"failure,omitempty"` // of that call; nil: none
	// Neighbour: its bandwidth is measured in the current round.
	Neighbour bool   `json:"neighbour"`
	Paths     []Path `json:"paths"` // what was tried, by own port
}

// Contact is what a peer's listener said of its node.
type Contact struct {
	Time    time.Time     `json:"time"`
	RTT     time.Duration `json:"rtt_ns"`         // of the listener, over TCP
	Name    string        `json:"name,omitempty"` // of its node, as that says itself
	Build   string        `json:"build"`
	List    string        `json:"list"`
	Options string        `json:"options"`
	Clock   time.Duration `json:"clock_ns"` // its clock less this one's
}

// Path is a port of this node and the port of the peer that it is measured against.
type Path struct {
	Own   session.Port `json:"own"`
	Peer  session.Port `json:"peer"`           // zero: the peer has none that goes with Own (then Skipped says so), nor had
	Rail  string       `json:"rail,omitempty"` // the rail's name in the fabric, if it has one
	Basis rails.Basis  `json:"basis"`          // what the two were paired by
	// Reached is whether the peer port's IP address (IPoIB, or of its RoCE interface)
	// answers from this port's; nil: not tried, or one of them has none.
	Reached *Reached `json:"reached,omitempty"`
	// Ping and the measurements are the last that say anything of the path; nil or
	// absent: none yet.
	Ping      *Measurement   `json:"ping,omitempty"`
	Bandwidth []*Measurement `json:"bandwidth"` // one of each memory at most
	// Skipped is why the last attempt says nothing (busy, gated), "" if it does.
	Skipped     session.Reason `json:"skipped,omitempty"`
	SkippedText string         `json:"skipped_text,omitempty"`
}

// Reached is the reachability of a port's IP address, by a TCP handshake or its refusal.
type Reached struct {
	Time    time.Time     `json:"time"`
	Address string        `json:"address"`
	OK      bool          `json:"ok"`
	RTT     time.Duration `json:"rtt_ns,omitempty"`
	Text    string        `json:"text,omitempty"` // why not
}

// Measurement is a session that says something of a path.
type Measurement struct {
	Kind   session.Kind    `json:"kind"`
	Memory session.Memory  `json:"memory"`
	Time   time.Time       `json:"time"` // when it began
	Class  Class           `json:"class"`
	Text   string          `json:"text,omitempty"` // why it is not fine
	Result *session.Result `json:"result"`
	// Limit is the rate in bytes per second that each direction must have, 0 if there
	// is none, and LimitOf what it comes from ("port rate", "host memory").
	Limit   float64 `json:"limit_bytes_per_second,omitempty"`
	LimitOf string  `json:"limit_of,omitempty"`
}

// OwnRail is a port of this node, and what its last measurements with all peers add up
// to. Of each path the last measurement that says anything counts, if it is younger
// than MaxAge.
type OwnRail struct {
	session.Port
	Rail  string  `json:"rail,omitempty"`
	Rate  float64 `json:"rate,omitempty"` // of the port, bytes per second
	Pings Tally   `json:"pings"`
	// Bandwidth is by memory.
	Bandwidth map[session.Memory]*Tally `json:"bandwidth"`
}

// Tally is what measurements of one kind add up to.
type Tally struct {
	Good int `json:"good"` // peers
	Bad  int `json:"bad"`
	// Median and Worst are of latencies (the highest is the worst); nil without pings.
	Median time.Duration `json:"median_ns,omitempty"`
	Worst  time.Duration `json:"worst_ns,omitempty"`
	// Rates are of those that moved data, by direction.
	Rates map[session.Direction]Rates `json:"rates,omitempty"`
}

// Rates are the least and the median of some rates, in bytes per second.
type Rates struct {
	Count  int     `json:"count"`
	Least  float64 `json:"least"`
	Median float64 `json:"median"`
}

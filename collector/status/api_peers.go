package status

import "time"

// PeersSchemaVersion is the version of PeersDocument's form. Fields may be added under
// the same version; it goes up when one changes its meaning or goes away.
const PeersSchemaVersion = 1

// DocPeers is what GET /api/v1/peers answers: what this node knows of the paths to
// other nodes. What is not known or does not apply is null, never 0; a list that is
// empty is [].
//
// Texts that come from other nodes are printable, on one line and of bounded length.
type DocPeers struct {
	SchemaVersion int       `json:"schema_version"` // version of this form, 1
	Taken         time.Time `json:"taken"`          // when it was looked at
	// Measuring: this process measures paths to other nodes. Else all that follows is
	// null or empty.
	Measuring bool         `json:"measuring"`
	List      *DocPeerList `json:"list"`
	// Certificate is what this node shows to others; null: sessions have no TLS.
	Certificate *DocPeerCertificate `json:"certificate"`
	// Round is when the current round of bandwidth measurements began.
	Round *time.Time `json:"round"`
	Next  *time.Time `json:"next"` // when this node meets somebody next
	// CoverPing and CoverBandwidth are how long it takes until each pair of the list has
	// had its turn; null: no such measurements are made.
	CoverPing      *float64 `json:"cover_ping_seconds"`
	CoverBandwidth *float64 `json:"cover_bandwidth_seconds"`
	// SpentBytes are those of the last hour, of sessions of both roles.
	SpentBytes  *uint64 `json:"spent_bytes"`
	BudgetBytes *uint64 `json:"budget_bytes"` // the most that it may be; null: no bound
	// Sessions count since the exporter started, by what came of them.
	Sessions []DocPeerSessions `json:"sessions"`
	Rails    []DocPeerRail     `json:"rails"` // this node's ports
	// Good, Bad and Unknown count the peers by state.
	Good    int `json:"peers_good"`
	Bad     int `json:"peers_bad"`
	Unknown int `json:"peers_unknown"`
	// Peers are the other nodes of the list: the bad ones first, then those of the current
	// round, then the rest, each in the order of the list. At most 20,000.
	Peers        []DocPeer `json:"peers"`
	PeersOmitted int       `json:"peers_omitted"` // peers beyond
	// PathsOmitted are paths of peers whose list of them is left empty, after 10,000.
	PathsOmitted int `json:"paths_omitted"`
}

// DocPeerList is what this node goes by.
type DocPeerList struct {
	Name     string          `json:"name"`      // of this node, as the list calls it
	Self     *string         `json:"self"`      // its address in the list; null: it is not there
	SelfText *string         `json:"self_text"` // why it is not
	Targets  int             `json:"targets"`   // nodes, this one included
	Version  *string         `json:"version"`   // nodes with the same list have the same; null: none was read
	Options  *string         `json:"options"`   // version of the schedule's options
	Text     *string         `json:"text"`      // why the list does not follow its sources
	Sources  []DocPeerSource `json:"sources"`
	// Heard counts the peers that were heard of within 10 minutes; the next ones those
	// among them that go by another list, by other options, or by a clock that is off.
	Heard        int `json:"heard"`
	OtherLists   int `json:"other_lists"`
	OtherOptions int `json:"other_options"`
	OtherClocks  int `json:"other_clocks"`
}

// DocPeerCertificate is this node's certificate for sessions.
type DocPeerCertificate struct {
	Begins *time.Time `json:"begins"`
	Ends   *time.Time `json:"ends"` // it, or one of its authority's: then no session is possible any more
	// State is good, late (less than a sixth of its life is left, and less than two weeks: it
	// ought to have been renewed), ended, early (it does not hold yet) or unknown.
	State string  `json:"state"`
	Text  *string `json:"text"` // why its files as they are now are not taken; then the last good ones count
}

// DocPeerSource is a file or name that the list comes from.
type DocPeerSource struct {
	Name    string     `json:"name"`
	Targets int        `json:"targets"`
	Good    *time.Time `json:"good"` // when it was read well last
	Text    *string    `json:"text"` // why it is not as good as now
}

// DocPeerSessions counts sessions.
type DocPeerSessions struct {
	Role  string `json:"role"`  // initiator, responder
	Kind  string `json:"kind"`  // ping, bandwidth
	Class string `json:"class"` // fine, slow, corrupt, failed, unreachable, denied, refused, stopped
	Count uint64 `json:"count"`
}

// DocPeerPort is a port of an RDMA device.
type DocPeerPort struct {
	Device string `json:"device"`
	Port   int    `json:"port"`
}

// DocPeerRail is a port of this node, and what its last measurements with all peers add
// up to.
type DocPeerRail struct {
	Port           DocPeerPort    `json:"port"`
	Rail           *string        `json:"rail"`             // its name in the fabric
	BytesPerSecond *float64       `json:"bytes_per_second"` // of the port
	Tallies        []DocPeerTally `json:"tallies"`
}

// DocPeerTally is what measurements of one kind add up to.
type DocPeerTally struct {
	Kind   string `json:"kind"`   // ping, bandwidth
	Memory string `json:"memory"` // host, gpu, staged
	Good   int    `json:"good"`   // peers
	Bad    int    `json:"bad"`
	// LatencyMedian and LatencyWorst are of the peers' medians.
	LatencyMedian *float64       `json:"latency_median_seconds"`
	LatencyWorst  *float64       `json:"latency_worst_seconds"`
	Rates         []DocPeerRates `json:"rates"`
}

// DocPeerRates are the least and the median of some rates.
type DocPeerRates struct {
	Direction string   `json:"direction"` // write (this node writes), reverse, both
	Count     int      `json:"count"`
	Least     *float64 `json:"least_bytes_per_second"`
	Median    *float64 `json:"median_bytes_per_second"`
}

// DocPeer is another node.
type DocPeer struct {
	Name   string `json:"name"`   // as the list calls it
	Target string `json:"target"` // host:port of the list
	// State is good (its listener answers and no path to it is bad), bad or unknown.
	State     string          `json:"state"`
	Neighbour bool            `json:"neighbour"` // its bandwidth is measured in the current round
	Listener  *string         `json:"listener"`  // class of the last call to it
	Tried     *time.Time      `json:"tried"`     // when that was
	Failure   *DocPeerFailure `json:"failure"`   // of that call
	Contact   *DocPeerContact `json:"contact"`   // the last answer of its listener
	Paths     []DocPeerPath   `json:"paths"`
}

// DocPeerContact is what a peer's listener said of its node.
type DocPeerContact struct {
	Time       time.Time `json:"time"`
	RTTSeconds *float64  `json:"rtt_seconds"`   // over TCP
	Build      *string   `json:"build"`         // version of its exporter
	List       *string   `json:"list"`          // version of its target list
	Options    *string   `json:"options"`       // version of its schedule's options
	Clock      float64   `json:"clock_seconds"` // its clock less this one's
}

// DocPeerFailure is why something failed.
type DocPeerFailure struct {
	FoundBy string  `json:"found_by"` // self, peer
	Reason  string  `json:"reason"`
	Stage   *string `json:"stage"`
	Call    *string `json:"call"`   // of libibverbs, CUDA or the system
	Errno   *string `json:"errno"`  // its name
	Status  *string `json:"status"` // of a completion
	Text    string  `json:"text"`
}

// DocPeerPath is a port of this node and the one of the peer that it is measured
// against.
type DocPeerPath struct {
	Own     DocPeerPort     `json:"own"`
	Peer    DocPeerPort     `json:"peer"`
	Rail    *string         `json:"rail"`    // the rail's name in the fabric
	Basis   string          `json:"basis"`   // what the two were paired by: label, name, order, all
	Address *DocPeerAddress `json:"address"` // of the peer's port; null: not tried, or there is none
	Results []DocPeerResult `json:"results"` // the last measurements that say anything
	Skipped *string         `json:"skipped"` // why the last attempt says nothing
}

// DocPeerAddress is whether an IP address answers.
type DocPeerAddress struct {
	Time       time.Time `json:"time"`
	Address    string    `json:"address"`
	Answers    bool      `json:"answers"`
	RTTSeconds *float64  `json:"rtt_seconds"`
	Text       *string   `json:"text"` // why not
}

// DocPeerResult is a measurement of a path.
type DocPeerResult struct {
	Kind    string          `json:"kind"`    // ping, bandwidth
	Memory  string          `json:"memory"`  // host, gpu, staged
	Time    time.Time       `json:"time"`    // when it began
	Class   string          `json:"class"`   // fine, slow, corrupt, failed, ...
	Text    *string         `json:"text"`    // why it is not fine
	Session *string         `json:"session"` // its id in the logs of both nodes
	Failure *DocPeerFailure `json:"failure"`
	// Mismatches are words of 8 bytes that arrived wrong.
	Mismatches    *int     `json:"mismatches"`
	LatencyMedian *float64 `json:"latency_median_seconds"`
	LatencyP99    *float64 `json:"latency_p99_seconds"`
	Lost          *int     `json:"lost"` // pings without an answer
	// Write, Reverse and Both are rates: of this node's writes, of the peer's, and the
	// sum of the two while both write.
	Write   *float64 `json:"write_bytes_per_second"`
	Reverse *float64 `json:"reverse_bytes_per_second"`
	Both    *float64 `json:"both_bytes_per_second"`
	// Limit is the rate that each direction must have, LimitOf what it comes from.
	Limit   *float64 `json:"limit_bytes_per_second"`
	LimitOf *string  `json:"limit_of"`
	GPU     *string  `json:"gpu"`      // this node's, by PCI address
	Method  *string  `json:"method"`   // by which its memory was registered
	PeerGPU *string  `json:"peer_gpu"` // the peer's
	GIDType *string  `json:"gid_type"`
}

package peer

import (
	"cmp"
	"slices"
	"sync"
	"time"
	"unique"

	"gdr_exporter/rdma/peer/session"
)

// gone is for how long a port that is not named any more is still shown: one that is
// down for a moment comes back with its results.
const gone = 10 * time.Minute

// book keeps what is known of the peers and of the own ports.
type book struct {
	mu       sync.Mutex
	version  uint64 // of what is in it: it counts changes
	peers    map[string]*known
	rails    []ownRail
	sessions map[SessionKind]int
	bytes    map[Role]uint64
	quiet    map[quietKey]*session.Result
	rejected map[rejection]time.Time // when it was told last
}

// known is what is known of a peer. Its parts are replaced and never changed: a Status
// shares them. A cluster has ten thousand, so it is small.
type known struct {
	contact  *Contact
	listener Class
	tried    time.Time
	failure  *session.Failure
	paths    []Path // by own port
	// again is when it is looked at again if it is bad, and pause how long that was.
	again time.Time
	pause time.Duration
}

// ownRail is a port of this node, as it was seen last.
type ownRail struct {
	session.Rail
	seen time.Time
}

func newBook() *book {
	return &book{
		peers: map[string]*known{}, sessions: map[SessionKind]int{}, bytes: map[Role]uint64{}, quiet: map[quietKey]*session.Result{},
		rejected: map[rejection]time.Time{},
	}
}

// of is the peer's entry. The lock is held.
func (b *book) of(target string) *known {
	k := b.peers[target]
	if k == nil {
		k = &known{}
		b.peers[target] = k
	}
	b.version++
	return k
}

// called notes what a call of a listener came to. A refusal is an answer, and says
// nothing else.
func (b *book) called(m *meeting, c *Contact, failure *session.Failure, at time.Time) []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of(m.target)
	was, is := k.listener, callClass(failure)
	k.tried, k.failure, k.listener = at, failure, is
	if c != nil {
		k.contact = sharing(c)
	}
	if was == is || was == "" && is == ClassFine || is == ClassRefused && !was.Bad() || was == ClassRefused && is == ClassFine {
		return nil
	}
	e := Event{Kind: EventPeer, Target: m.target, Name: m.name, Was: was, Is: is, Failure: failure}
	if failure != nil {
		e.Text = failure.Error()
	}
	return []Event{e}
}

// heard notes that a peer has called. What only a caller finds out stays as it was.
func (b *book) heard(target string, hello session.Hello, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of(target)
	c := Contact{Time: at, Name: hello.Name, Build: hello.Build, List: hello.List, Options: hello.Options}
	if k.contact != nil {
		c.RTT, c.Clock = k.contact.RTT, k.contact.Clock
	}
	k.contact = sharing(&c)
}

// sharing is a contact whose texts are those of all peers that say the same.
func sharing(c *Contact) *Contact {
	c.Build, c.List, c.Options = shared(c.Build), shared(c.List), shared(c.Options) // the name is its own
	return c
}

func shared(text string) string { return unique.Make(text).Value() }

// last is what is known of the path of an own port.
func (b *book) last(target string, own, _ session.Port) (Path, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.peers[target]; k != nil {
		if i, found := findPath(k.paths, own); found {
			return k.paths[i], true
		}
	}
	return Path{}, false
}

func findPath(paths []Path, own session.Port) (int, bool) {
	return slices.BinarySearchFunc(paths, own, func(p Path, port session.Port) int { return comparePorts(p.Own, port) })
}

func comparePorts(a, b session.Port) int {
	return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Port, b.Port))
}

// path notes what is known of a path now, in the place of what was.
func (b *book) path(m *meeting, p Path) []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of(m.target)
	p.Own.Device, p.Peer.Device, p.Rail = shared(p.Own.Device), shared(p.Peer.Device), shared(p.Rail)
	p.Ping = b.small(p.Ping)
	i, found := findPath(k.paths, p.Own)
	before := Path{}
	rest := k.paths[i:]
	if found {
		before, rest = rest[0], rest[1:]
	}
	// Made as long as it is, and no longer, as there are so many.
	paths := make([]Path, 0, i+1+len(rest))
	k.paths = append(append(append(paths, k.paths[:i]...), p), rest...)
	return pathEvents(m.target, m.name, before, p)
}

// pathEvents are what came out differently than before. That a path is fine at first is
// no news.
func pathEvents(target, name string, before, p Path) []Event {
	if before.Peer != p.Peer {
		before = Path{}
	}
	var events []Event
	news := func(was, is *Measurement) {
		if is == nil || was == is {
			return
		}
		e := Event{
			Kind: EventPath, Target: target, Name: name, Own: p.Own, Peer: p.Peer, Measured: is.Kind, Memory: is.Memory, Is: is.Class, Text: is.Text,
			Failure: is.Result.Failure,
		}
		if was != nil {
			e.Was = was.Class
		}
		if e.Was != e.Is && (e.Was != "" || e.Is != ClassFine) {
			events = append(events, e)
		}
	}
	news(before.Ping, p.Ping)
	for _, is := range p.Bandwidth {
		news(before.measured(is.Memory), is)
	}
	return events
}

// quietKey is what is kept of a ping that came out well.
type quietKey struct {
	count       int
	median, p99 time.Duration
}

const mostQuiet = 1 << 12

// small is a ping as it is kept. Of one that came out well that is the latency alone,
// to three digits: paths with the same latency share the rest. It is what most is kept
// of, of each path to each peer.
func (b *book) small(m *Measurement) *Measurement {
	if m == nil || m.Class != ClassFine {
		return m
	}
	latency := LatencyOf(m.Result)
	if latency == nil {
		return m
	}
	key := quietKey{latency.Count, digits(latency.Median), digits(latency.P99)}
	if b.quiet[key] == m.Result {
		return m
	}
	result := b.quiet[key]
	if result == nil {
		if len(b.quiet) >= mostQuiet {
			clear(b.quiet) // what is in use goes on being so
		}
		kept := session.Latency{Count: key.count, Median: key.median, P99: key.p99}
		result = &session.Result{Rounds: []session.Round{{Direction: session.Write, Written: &session.Way{Bytes: uint64(key.count) * 8, Latency: &kept}}}}
		b.quiet[key] = result
	}
	other := *m
	other.Result = result
	return &other
}

// digits rounds to three of them.
func digits(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

func (b *book) count(role Role, kind session.Kind, class Class, bytes uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions[SessionKind{role, kind, class}]++
	b.bytes[role] += bytes
	b.version++
}

// saw notes which own ports there are, in their order. One that is not named any more
// stays for a while, behind them.
func (b *book) saw(all []session.Rail, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rails := make([]ownRail, 0, len(all))
	named := map[session.Port]bool{}
	for _, rail := range all {
		rails = append(rails, ownRail{rail, now})
		named[rail.Port] = true
	}
	for _, old := range b.rails {
		if !named[old.Port] && now.Sub(old.seen) < gone {
			rails = append(rails, old)
		}
	}
	same := slices.EqualFunc(b.rails, rails, func(a, b ownRail) bool { return a.Port == b.Port && a.Label == b.Label && a.Rate == b.Rate })
	if b.rails = rails; !same {
		b.version++
	}
}

// frame forgets what has no place any more: peers that have left the list, results that
// are too old, own ports that are gone.
func (b *book) frame(s *setting, now time.Time, ping, bandwidth time.Duration) []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := map[session.Port]bool{}
	for _, rail := range b.rails {
		own[rail.Port] = true
	}
	var events []Event
	for target, k := range b.peers {
		i := s.list.Find(target)
		if i < 0 || i == s.self {
			delete(b.peers, target)
			b.version++
			continue
		}
		if !k.tried.IsZero() && now.Sub(k.tried) > ping {
			if k.listener.Bad() {
				events = append(events, Event{Kind: EventPeer, Target: target, Name: s.list.At(i).Name(), Was: k.listener, Text: "what was known of it is too old"})
			}
			k.listener, k.failure = "", nil
		}
		if slices.ContainsFunc(k.paths, func(p Path) bool { return !own[p.Own] || p.old(now, ping, bandwidth) }) {
			events = append(events, b.age(s.list.At(i).Name(), target, k, own, now, ping, bandwidth)...)
		}
	}
	return events
}

// old reports whether anything of a path is.
func (p *Path) old(now time.Time, ping, bandwidth time.Duration) bool {
	return p.Reached != nil && now.Sub(p.Reached.Time) > ping || p.Ping != nil && now.Sub(p.Ping.Time) > ping ||
		slices.ContainsFunc(p.Bandwidth, func(m *Measurement) bool { return now.Sub(m.Time) > bandwidth })
}

func (b *book) age(name, target string, k *known, own map[session.Port]bool, now time.Time, ping, bandwidth time.Duration) (events []Event) {
	b.version++
	var kept []Path
	for _, p := range k.paths {
		if !own[p.Own] {
			continue
		}
		aged := func(m *Measurement) {
			if m.Class.Bad() {
				events = append(events, Event{
					Kind: EventPath, Target: target, Name: name, Own: p.Own, Peer: p.Peer, Measured: m.Kind, Memory: m.Memory, Was: m.Class,
					Text: "what was known of it is too old",
				})
			}
		}
		if p.Reached != nil && now.Sub(p.Reached.Time) > ping {
			p.Reached = nil
		}
		if p.Ping != nil && now.Sub(p.Ping.Time) > ping {
			aged(p.Ping)
			p.Ping = nil
		}
		var young []*Measurement
		for _, m := range p.Bandwidth {
			if now.Sub(m.Time) > bandwidth {
				aged(m)
			} else {
				young = append(young, m)
			}
		}
		p.Bandwidth = young
		if p.Ping != nil || p.Reached != nil || p.Bandwidth != nil || p.Skipped != "" {
			kept = append(kept, p)
		}
	}
	k.paths = kept
	return events
}

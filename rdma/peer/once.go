package peer

import (
	"context"
	"slices"
	"time"

	"gdr_exporter/rdma/peer/session"
)

// OnceOptions are what one meeting by hand measures.
type OnceOptions struct {
	Target string // host:port of the peer
	Name   string // what people call it
	// Self is what this node says its own target is; "": as the list has it.
	Self     string
	All      bool             // rails: each port with every other one, not only with its counterpart
	Kinds    []session.Kind   // default: both
	Memories []session.Memory // of bandwidth. Default: host and GPU
}

// Meeting is what a meeting by hand came to.
type Meeting struct {
	Peer    session.Hello `json:"peer"`              // what the peer says of itself; zero: it did not answer
	Contact *Contact      `json:"contact,omitempty"` // nil: it did not answer
	Paths   []Path        `json:"paths"`
}

// Once holds one meeting by hand, with the gates and the lock that hold for all, while
// Run goes on or without it. The failure is that of the call, nil if there was a
// meeting; those of paths are in these. The schedule's options may differ.
func (r *Runner) Once(ctx context.Context, o OnceOptions) (Meeting, *session.Failure) {
	setting := r.setting.Load()
	if r.options.Watcher != nil && setting.plan == nil {
		setting = newSetting(r.options.Watcher.List(), r.options.Schedule)
	}
	s := &sheet{}
	m := &meeting{
		runner: r, setting: setting, target: o.Target, name: o.Name, self: o.Self, kind: session.Ping, items: o.items(),
		byHand: true, all: o.All, journal: s,
	}
	if m.self == "" {
		m.self = setting.own()
	}
	failure := m.hold(ctx)
	return Meeting{Peer: m.greeting, Contact: s.contact, Paths: s.paths}, failure
}

func (o OnceOptions) items() (items []item) {
	if len(o.Kinds) == 0 || slices.Contains(o.Kinds, session.Ping) {
		items = append(items, pinging)
	}
	if len(o.Kinds) > 0 && !slices.Contains(o.Kinds, session.Bandwidth) {
		return items
	}
	memories := o.Memories
	if len(memories) == 0 {
		memories = []session.Memory{session.Host, session.GPU}
	}
	for _, memory := range memories {
		items = append(items, bandwidthOf(memory))
	}
	return items
}

// sheet is the journal of one meeting.
type sheet struct {
	contact *Contact
	paths   []Path
}

func (s *sheet) called(_ *meeting, c *Contact, _ *session.Failure, _ time.Time) []Event {
	if c != nil {
		s.contact = c
	}
	return nil
}

func (s *sheet) find(own, peer session.Port) int {
	return slices.IndexFunc(s.paths, func(p Path) bool { return p.Own == own && p.Peer == peer })
}

func (s *sheet) last(_ string, own, peer session.Port) (Path, bool) {
	if i := s.find(own, peer); i >= 0 {
		return s.paths[i], true
	}
	return Path{}, false
}

func (s *sheet) path(_ *meeting, p Path) []Event {
	if i := s.find(p.Own, p.Peer); i >= 0 {
		s.paths[i] = p
	} else {
		s.paths = append(s.paths, p)
	}
	return nil
}

func (s *sheet) count(Role, session.Kind, Class, uint64) {}

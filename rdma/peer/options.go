package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"gdr_exporter/rdma/peer/schedule"
	"gdr_exporter/rdma/peer/session"
	"gdr_exporter/rdma/peer/targets"
)

// Host is what a Runner must know of this node. Its methods may be called at any time,
// by several goroutines; they return soon after their context has ended.
type Host interface {
	// Rails are the ports that can be measured now, with the GPUs next to each, the
	// best first. Their field IP may be left empty: it comes from Addresses.
	Rails(ctx context.Context) []session.Rail
	// Addresses are the IP addresses of the ports' interfaces: IPoIB, or that of the
	// RoCE device.
	Addresses(ctx context.Context) map[session.Port]netip.Addr
	// Busy says why a measurement is not wanted now: a [*session.Failure] with
	// [session.ReasonGate]. gpu is "" for host memory. Pings are not gated by load.
	Busy(ctx context.Context, kind session.Kind, rail session.Port, gpu string) error
	// Lock takes the lock that all measurements of the host share, or fails at once
	// with [session.ReasonLocked].
	Lock(ctx context.Context) (release func(), err error)
}

// List is where the targets come from: a [targets.Watcher].
type List interface {
	List() *targets.List
	Status() targets.Status
	Changed() <-chan struct{}
}

// Options make a Runner. What is marked so must be given; zero values of the rest stand
// for the defaults.
type Options struct {
	Watcher  List           // must be given to Run; Once does without
	Names    *targets.Names // of targets that are listed by name. Default: by the system's resolver
	Schedule schedule.Options
	Host     Host           // must be given
	Opener   session.Opener // must be given
	Identity *session.Identity
	Limits   session.Limits
	// Listener is where others call; Run closes it. nil: nobody can.
	Listener net.Listener
	// BytesPerHour bounds what sessions of both roles move; 0: no bound.
	BytesPerHour uint64
	Name         string // of this node while the list does not say
	Build        string // version of the exporter
	Rates        RateLimits

	Shape session.Shape
	// Bytes is how much each write of a measurement of bandwidth moves at most, Within
	// for how long it goes on beginning writes.
	Bytes  uint64        // default 1 GiB: 21 ms at 400 Gb/s, too short to be in a job's way
	Within time.Duration // default 250ms: a slow path is measured as well in it
	// Staged is in which of the passes over all peers the staged control is measured
	// too: each such one. Default 4; below 0: never.
	Staged int
	// MaxAge is how long a result counts. The default is what it takes until the pair
	// has had two more turns with the same roles, and at most a week.
	MaxAge time.Duration

	Now   func() time.Time // default time.Now
	Event func(Event)      // is told what the log should have. It must not block

	// For tests: seconds of Now in a real one (0: 1), and how much time a call or session
	// must have had at least before its end says anything.
	pace  float64
	least time.Duration
}

// RateLimits are shares that a rate must not be below. Zero values stand for the
// defaults, negative ones judge nothing.
type RateLimits struct {
	Port      float64 // of the lesser of both ports' rates, for host memory. Default 0.7
	GPU       float64 // of the path's rate between host memories, for GPU memory. Default 0.85
	Asymmetry float64 // of the other direction's rate. Default 0.75
}

// EventKind is what an Event is about.
type EventKind string

// The kinds of events.
const (
	EventList EventKind = "list" // the list, or this node's place in it, is another
	EventPeer EventKind = "peer" // calls of a peer's listener come out differently
	EventPath EventKind = "path" // measurements of a path come out differently
	// EventRejected is a caller that was not let in: once an hour for each address and
	// reason.
	EventRejected EventKind = "rejected"
)

// Event is a change that a log should have. What goes on as it was is none.
type Event struct {
	Kind   EventKind
	Target string // of the peer, "" for other kinds
	Name   string // of the peer
	// Own, Peer and the two after them are of a path.
	Own, Peer session.Port
	Measured  session.Kind
	Memory    session.Memory
	Was, Is   Class // Was is "" if nothing was known
	Text      string
	Failure   *session.Failure // nil if it was none
}

const (
	defaultBytes  = 1 << 30
	defaultWithin = 250 * time.Millisecond
	defaultStaged = 4
	pings         = 64 // of one session
	oldest        = 7 * 24 * time.Hour
)

func (o Options) withDefaults() Options {
	orDefault(&o.Bytes, defaultBytes)
	if o.Limits.Bytes != 0 {
		o.Bytes = min(o.Bytes, o.Limits.Bytes)
	}
	orDefault(&o.Within, defaultWithin)
	orDefault(&o.Staged, defaultStaged)
	orDefault(&o.Schedule, schedule.Defaults())
	orDefault(&o.Rates.Port, 0.7)
	orDefault(&o.Rates.GPU, 0.85)
	orDefault(&o.Rates.Asymmetry, 0.75)
	orDefault(&o.pace, 1)
	if o.Names == nil {
		o.Names = targets.NewNames(nil)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Event == nil {
		o.Event = func(Event) {}
	}
	return o
}

func orDefault[T comparable](value *T, standard T) {
	var zero T
	if *value == zero {
		*value = standard
	}
}

func (o Options) check() error {
	switch {
	case o.Host == nil || o.Opener == nil:
		return errors.New("peers: host and opener must be given")
	case o.Within < 0 || o.MaxAge < 0:
		return errors.New("peers: times below zero")
	case o.Rates.Port > 1 || o.Rates.GPU > 1 || o.Rates.Asymmetry > 1:
		return fmt.Errorf("peers: limits %+v: shares are at most 1", o.Rates)
	}
	if err := o.Schedule.Check(); err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	return nil
}

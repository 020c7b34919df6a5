package prober

import (
	"math/rand/v2"
	"time"

	"gdr_exporter/rdma/loopback"
)

// Options say what a Prober does. Zero values stand for the defaults where one is
// named.
type Options struct {
	Host   Host
	Runner Runner

	Interval         time.Duration // between full runs of an idle pair; 0: none are scheduled
	FirstWithin      time.Duration // the first run comes within this; default 5m
	RegisterInterval time.Duration // between registration runs under load; default 1h
	BusyInterval     time.Duration // between full runs under load, with BusyFull; default 6h
	StagedInterval   time.Duration // between measurements of path staged; default 24h
	MaxAge           time.Duration // a good result older than this says nothing; default 24h
	Busy             Busy          // default BusyRegister
	Isolation        Isolation     // default InProcess
	Limits           loopback.Limits
	// Spec is the template of runs: sizes, deadline, directories, ledger. Device,
	// port, paths and depth are filled in.
	Spec     loopback.Spec
	LockPath string // host-wide lock of runs; "": none
	// MinFree is how many bytes of a GPU's memory must be free.
	MinFree uint64
	// RunsPerHour and BytesPerHour bound all runs of the host; 0: no bound.
	RunsPerHour  int
	BytesPerHour uint64

	StateDir       string // where the state file lies; "": nothing is kept
	Kernel, BootID string // uname -r, /proc/sys/kernel/random/boot_id
	// QuiescedUntil: the process before was quiesced until then.
	QuiescedUntil time.Time
	// Hung are the runs that hung in the process before this one took its place.
	Hung []HungRun

	// Event is told what an operator wants in the log; nil: nobody is.
	Event func(Event)
	// Restart asks for a fresh process, because CUDA does not work in this one any
	// more; nil: there is nobody to ask.
	Restart func(reason string)
	// Rand spreads the runs of many nodes; nil: one of its own.
	Rand *rand.Rand
}

// HungRun is a run that hangs.
type HungRun struct {
	Pair
	Stage loopback.Stage `json:"stage"`
	Since time.Time      `json:"since"`
}

// EventKind is a kind of Event.
type EventKind string

// Kinds of Event.
const (
	EventResult      EventKind = "result"      // what is known of a pair changed
	EventUnconfirmed EventKind = "unconfirmed" // a result that would worsen it is to be repeated
	EventWithdrawn   EventKind = "withdrawn"   // a result says nothing any more
	EventSkip        EventKind = "skip"        // a due pair is not measured, or is again (Text "")
	EventBroken      EventKind = "broken"      // a run could not be carried through
	EventHung        EventKind = "hung"        // a run hangs
	EventState       EventKind = "state"       // the state file could not be read or written
	EventIsolation   EventKind = "isolation"   // runs are made elsewhere from now on
)

// Event is something for the log.
type Event struct {
	Kind EventKind
	Pair Pair // zero if it concerns none
	Text string
	Err  error
}

func orDefault[T comparable](value *T, standard T) {
	var zero T
	if *value == zero {
		*value = standard
	}
}

func (o Options) withDefaults() Options {
	orDefault(&o.FirstWithin, 5*time.Minute)
	orDefault(&o.RegisterInterval, time.Hour)
	orDefault(&o.BusyInterval, 6*time.Hour)
	orDefault(&o.StagedInterval, 24*time.Hour)
	orDefault(&o.MaxAge, 24*time.Hour)
	orDefault(&o.Busy, BusyRegister)
	orDefault(&o.Isolation, InProcess)
	orDefault(&o.Limits, loopback.DefaultLimits)
	orDefault(&o.Spec.Deadline, 10*time.Second)
	if o.Event == nil {
		o.Event = func(Event) {}
	}
	if o.Restart == nil {
		o.Restart = func(string) {}
	}
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return o
}

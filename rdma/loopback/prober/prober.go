package prober

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gdr_exporter/rdma/loopback"
)

// Prober schedules runs. Run does the work; the other methods may be called by
// any goroutine.
type Prober struct {
	options Options
	wake    chan struct{} // holds one wish to look at what is due
	asked   chan request

	// work holds a token while runs may be begun: Quiesce puts one in to wait for
	// the end of the one in progress. A channel, since the wait must end with ctx.
	work chan struct{}

	mu            sync.Mutex
	began         time.Time
	host          known
	pairs         map[Pair]*pair
	rest          map[Pair]*pair // of the state file, not seen on the host yet or any more
	looked        time.Time
	quiescedUntil time.Time
	isolate       string // why runs are made in child processes; "": as the options say
	crashed       string // why that is so for the rest of the boot
	cudaLoaded    bool   // a run in this process has loaded libcuda
	cudaUnusable  bool   // which does not work any more, or is another driver's
	running       *Pair
	inProcess     bool                    // the running one is
	lastRun       map[string]time.Time    // by GPU: when a run began or ended last
	cancel        context.CancelCauseFunc // of what is being done
	runs          map[RunKind]uint64
	skips         map[Reason]uint64
	budget        budget
	ports         map[Port]PortRecord
	baselines     baselines
	unsaved       bool
	stateBroken   bool // the state file could not be written, which was told

	saving sync.Mutex     // of the state file
	lock   *loopback.Lock // for the loop alone; kept while a run hangs
}

// Causes of an early end of a run.
var (
	errQuiesced   = errors.New("the exporter was quiesced")
	errNewProcess = errors.New("a process came to the GPU")
)

// New makes a Prober. It reads the state file, if there is one.
func New(options Options) *Prober {
	p := &Prober{
		options: options.withDefaults(), wake: make(chan struct{}, 1), asked: make(chan request), work: make(chan struct{}, 1),
		began: time.Now(), pairs: map[Pair]*pair{}, rest: map[Pair]*pair{},
		lastRun: map[string]time.Time{}, runs: map[RunKind]uint64{}, skips: map[Reason]uint64{}, ports: map[Port]PortRecord{}, baselines: baselines{},
	}
	p.host.kernel = options.Kernel
	p.load()
	if options.QuiescedUntil.After(p.quiescedUntil) {
		p.quiescedUntil = options.QuiescedUntil
	}
	return p
}

// Run schedules runs until ctx is done. It returns when none is going on, but for
// one that hangs.
func (p *Prober) Run(ctx context.Context) {
	for {
		wait := p.step(ctx)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			p.save()
			return
		case r := <-p.asked:
			r.answer <- p.serve(r.context(ctx), r.Request)
		case <-p.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// nudge makes the loop look at what is due.
func (p *Prober) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// step does what is due and returns how long nothing else will be.
func (p *Prober) step(ctx context.Context) time.Duration {
	now := time.Now()
	if p.stale(now, lookEvery) {
		p.look(ctx)
	}
	p.tell(p.expire(time.Now()))
	p.dropLock() // of a run that hung and is gone
	least, waiting := time.Duration(0), false
	if due := p.due(time.Now()); len(due) > 0 {
		waiting = p.makeRuns(ctx, due)
		least = leastWait
	}
	p.save()
	wait := p.untilDue(time.Now())
	if waiting {
		wait = min(wait, retryBusy)
	}
	return max(wait, least)
}

// stale reports whether the last look is older than most.
func (p *Prober) stale(now time.Time, most time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.looked) >= most
}

// look takes a look at the host.
func (p *Prober) look(ctx context.Context) {
	if ctx.Err() == nil {
		p.Saw(p.options.Host.Look(ctx))
		p.mu.Lock()
		p.looked = time.Now() // also if it saw nothing
		p.mu.Unlock()
	}
}

// expire ends what time ends: the age of results, repetitions, a quiesce.
func (p *Prober) expire(now time.Time) []Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.quiescedUntil.IsZero() && !now.Before(p.quiescedUntil) {
		p.quiescedUntil, p.unsaved = time.Time{}, true
	}
	var events []Event
	for _, pair := range p.pairs {
		found := append(pair.expireRepeat(now), pair.age(now, p.options.MaxAge)...)
		events = append(events, found...)
		p.unsaved = p.unsaved || len(found) > 0
	}
	return events
}

// tell passes events on. It is called without the lock.
func (p *Prober) tell(events []Event) {
	slices.SortStableFunc(events, func(a, b Event) int { return comparePairs(a.Pair, b.Pair) })
	for _, event := range events {
		p.options.Event(event)
	}
}

// due returns the pairs for which something is due, those to be repeated first,
// then by how long they are.
func (p *Prober) due(now time.Time) []*pair {
	p.mu.Lock()
	defer p.mu.Unlock()
	var due []*pair
	for _, pair := range p.pairs {
		if pair.hung.IsZero() && pair.need(now, p.options.Interval > 0) != needNothing {
			due = append(due, pair)
		} else if pair.hung.IsZero() && !now.Before(pair.notBefore) {
			pair.setSkip(ReasonNone)
		}
	}
	slices.SortFunc(due, func(a, b *pair) int {
		if (a.repeat != nil) != (b.repeat != nil) {
			if a.repeat != nil {
				return -1
			}
			return 1
		}
		if order := a.due.Compare(b.due); order != 0 {
			return order
		}
		return comparePairs(a.Pair, b.Pair)
	})
	return due
}

// untilDue is how long nothing is due after now, at most until the next look.
func (p *Prober) untilDue(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := lookEvery
	if !p.quiescedUntil.IsZero() {
		wait = min(wait, max(p.quiescedUntil.Sub(now), 0))
	}
	for _, pair := range p.pairs {
		wait = min(wait, pair.untilDue(now, &p.options))
	}
	return wait
}

func comparePairs(a, b Pair) int {
	if order := strings.Compare(a.GPU, b.GPU); order != 0 {
		return order
	}
	if order := strings.Compare(a.Device, b.Device); order != 0 {
		return order
	}
	return a.Port - b.Port
}

// Quiesce begins no run any more until then, ends the one in progress and returns
// when it is gone. It is an error that one hangs.
func (p *Prober) Quiesce(ctx context.Context, until time.Time) error {
	p.mu.Lock()
	p.quiescedUntil, p.unsaved = until, true
	if p.cancel != nil {
		p.cancel(errQuiesced)
	}
	p.mu.Unlock()
	p.nudge()
	select {
	case p.work <- struct{}{}:
		<-p.work
	case <-ctx.Done():
		return fmt.Errorf("the run in progress does not end: %w", context.Cause(ctx))
	}
	p.save()
	if pair, hangs := p.hangs(); hangs {
		return fmt.Errorf("a run of %s and %s hangs", pair.GPU, pair.Device)
	}
	return nil
}

// Resume ends a quiesce.
func (p *Prober) Resume() {
	p.mu.Lock()
	p.quiescedUntil, p.unsaved = time.Time{}, true
	p.mu.Unlock()
	p.save()
	p.nudge()
}

// Hanging reports whether a run hangs in this process: it cannot be replaced.
func (p *Prober) Hanging() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hangingHere()
}

func (p *Prober) hangingHere() bool {
	for _, pair := range p.pairs {
		if pair.hungHere {
			return true
		}
	}
	return false
}

// hangs returns a pair whose run hangs and holds what it holds.
func (p *Prober) hangs() (Pair, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pair := range p.pairs {
		if pair.hungOn {
			return pair.Pair, true
		}
	}
	return Pair{}, false
}

// HungRuns are the runs that hang, or did: their pairs are left alone, by the
// process that takes the place of this one too.
func (p *Prober) HungRuns() []HungRun {
	p.mu.Lock()
	defer p.mu.Unlock()
	var runs []HungRun
	for _, pair := range p.pairs {
		if !pair.hung.IsZero() {
			runs = append(runs, HungRun{pair.Pair, pair.hungStage, pair.hung})
		}
	}
	for _, run := range p.options.Hung {
		if p.pairs[run.Pair] == nil {
			runs = append(runs, run) // not seen by this process
		}
	}
	slices.SortFunc(runs, func(a, b HungRun) int { return comparePairs(a.Pair, b.Pair) })
	return runs
}

// Isolate makes all further runs in child processes, for a reason to be shown.
func (p *Prober) Isolate(reason string) {
	p.mu.Lock()
	news := p.isolate == "" && p.options.Isolation != InChild
	if news {
		p.isolate = reason
	}
	p.mu.Unlock()
	if news {
		p.tell([]Event{{Kind: EventIsolation, Text: reason}})
	}
}

// Forget drops the results and baselines of matching pairs, "" matching any, and
// returns of how many there were some. They are measured anew soon.
func (p *Prober) Forget(gpu, device string) int {
	p.mu.Lock()
	forgotten := 0
	matches := func(at Pair) bool { return (gpu == "" || gpu == at.GPU) && (device == "" || device == at.Device) }
	for at, old := range p.pairs {
		if !matches(at) {
			continue
		}
		forgotten++
		old.forget()
		old.first(time.Now(), &p.options)
	}
	for at := range p.rest {
		if matches(at) {
			forgotten++
			delete(p.rest, at)
		}
	}
	p.baselines.forget(matches)
	p.unsaved = true
	p.mu.Unlock()
	p.save()
	p.nudge()
	return forgotten
}

// Status returns what there is to show.
func (p *Prober) Status() *Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &Status{
		Interval: p.options.Interval, Isolation: p.isolation(), IsolationReason: p.isolate,
		QuiescedUntil: p.quiescedUntil, Runs: maps.Clone(p.runs), Skips: maps.Clone(p.skips),
	}
	if p.running != nil {
		running := *p.running
		s.Running = &running
	}
	for _, at := range slices.SortedFunc(maps.Keys(p.pairs), comparePairs) {
		s.Pairs = append(s.Pairs, p.pairStatus(p.pairs[at]))
	}
	return s
}

func (p *Prober) pairStatus(pair *pair) PairStatus {
	s := PairStatus{
		Candidate: pair.candidate(), LastSuccess: maps.Clone(pair.succeeded), Full: pair.full, Registration: pair.registration, Withdrawn: pair.withdrawn,
		Skip: pair.skip, Due: pair.due, Hung: pair.hung, HungStage: pair.hungStage, Mismatches: pair.mismatches,
		Baseline: p.baselines.of(pair.Pair, p.host.identity(pair.Pair)),
	}
	for _, at := range pair.attempted {
		if at.After(s.LastAttempt) {
			s.LastAttempt = at
		}
	}
	if pair.repeat != nil {
		s.Unconfirmed = pair.repeat.result
	}
	return s
}

// isolation is where runs are made.
func (p *Prober) isolation() Isolation {
	if p.isolate != "" {
		return InChild
	}
	return p.options.Isolation
}

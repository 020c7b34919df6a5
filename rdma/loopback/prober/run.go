package prober

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"gdr_exporter/rdma/loopback"
)

// BusySlices is how many slices a path is measured in under load.
const BusySlices = 4

// watchEvery is how often a GPU is looked at for new processes during a run.
const watchEvery = 100 * time.Millisecond

// makeRuns runs the due pairs that can be. It reports whether some wait for
// what changes without being seen: load, the lock, the budget.
func (p *Prober) makeRuns(ctx context.Context, due []*pair) (waiting bool) {
	ctx, done := p.begin(ctx)
	defer done()
	var traffic []*pair // whose load has to be known
	for _, pair := range due {
		depth := DepthFull
		if p.needOf(pair) == needRegister {
			depth = DepthRegister
		}
		switch reason, err := p.gate(pair, depth); {
		case reason != ReasonNone:
			p.skipped(pair, reason, err)
			waiting = waiting || reason.passes()
			if reason == ReasonPort && p.options.Busy != BusyOff {
				p.registerInstead(ctx, pair) // it does not need the port
			}
		case depth == DepthRegister:
			waiting = p.runOnce(ctx, pair, DepthRegister, true, nil).Skip.passes() || waiting
		default:
			traffic = append(traffic, pair)
		}
	}
	if len(traffic) == 0 {
		return waiting
	}
	seen := p.watchLoad(ctx, traffic)
	for _, pair := range traffic {
		if ctx.Err() == nil {
			waiting = p.runUnder(ctx, pair, seen[pair]).passes() || waiting
		}
	}
	return waiting
}

// passes reports whether a reason may pass without being seen by a look.
func (r Reason) passes() bool {
	switch r {
	case ReasonNICBusy, ReasonGPUBusy, ReasonLoadUnknown, ReasonLocked, ReasonBudget, ReasonNewProcess, ReasonMemory:
		return true
	}
	return false
}

// load reports whether a reason is the load of the pair.
func (r Reason) load() bool {
	return r == ReasonNICBusy || r == ReasonGPUBusy || r == ReasonLoadUnknown
}

// begin notes what is being done, so that Quiesce can end it.
func (p *Prober) begin(ctx context.Context) (context.Context, func()) {
	p.work <- struct{}{}
	ctx, cancel := context.WithCancelCause(ctx)
	p.mu.Lock()
	p.cancel = cancel
	p.mu.Unlock()
	return ctx, func() {
		p.mu.Lock()
		p.cancel = nil
		p.mu.Unlock()
		cancel(nil)
		<-p.work
	}
}

func (p *Prober) needOf(pair *pair) need {
	p.mu.Lock()
	defer p.mu.Unlock()
	return pair.need(time.Now(), p.options.Interval > 0)
}

// runUnder runs a pair as deep as its load allows, and returns why that was not
// the full depth.
func (p *Prober) runUnder(ctx context.Context, pair *pair, seen *watched) Reason {
	busy := p.busyNow(ctx, pair, seen)
	if busy == ReasonNone {
		return p.runOnce(ctx, pair, DepthFull, true, seen).Skip
	}
	if p.options.Busy == BusyFull && p.busyFullDue(pair) {
		return p.runOnce(ctx, pair, DepthFull, false, nil).Skip
	}
	p.skipped(pair, busy, nil)
	if p.options.Busy != BusyOff {
		p.registerInstead(ctx, pair)
	}
	return busy
}

// busyFullDue reports whether a full run under load is due: seldom, and to repeat
// one that was made under load.
func (p *Prober) busyFullDue(pair *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := pair.attempted[DepthFull]
	return pair.repeat != nil && !pair.repeat.result.Idle || last.IsZero() || time.Since(last) >= p.options.BusyInterval
}

// registerInstead makes a registration run, if one is due, for a pair whose full
// run has to wait.
func (p *Prober) registerInstead(ctx context.Context, pair *pair) {
	p.mu.Lock()
	due := pair.registerDue(time.Now(), p.options.RegisterInterval)
	p.mu.Unlock()
	if !due || ctx.Err() != nil {
		return
	}
	if reason, _ := p.gate(pair, DepthRegister); reason == ReasonNone {
		p.runOnce(ctx, pair, DepthRegister, false, nil)
	}
}

// runOnce makes a run. What was seen of the host is fresh when it begins; seen is
// what was seen of the pair before, nil for nothing.
func (p *Prober) runOnce(ctx context.Context, pair *pair, depth Depth, idle bool, seen *watched) Attempt {
	attempt := Attempt{Pair: pair.Pair, Depth: depth}
	skip := func(reason Reason, err error) Attempt {
		attempt.Skip, attempt.Text = reason, text(err)
		p.skipped(pair, reason, err)
		return attempt
	}
	if reason, err := p.mayBegin(ctx, pair, depth); reason != ReasonNone {
		return skip(reason, err)
	}
	if seen == nil {
		seen = &watched{}
		seen.processes, seen.err = p.options.Host.Processes(ctx, pair.GPU)
	}
	if seen.err != nil {
		return skip(ReasonLoadUnknown, seen.err) // nobody could tell that a job comes
	}
	if reason, err := p.takeLock(); reason != ReasonNone {
		return skip(reason, err)
	}
	order := p.order(pair, depth, idle)
	began := order.began
	p.save() // that a run is in progress, see load
	ending, cause := p.watched(ctx, order.Order, seen.processes)
	p.finish(pair, &order, &ending)
	p.dropLock()
	judged := p.judge(pair, &ending.Result)
	result, reason := classify(&ending, cause, judged)
	p.count(&order, &ending, result, cause == nil)
	if result == RunInterrupted {
		return skip(reason, ending.Result.Err())
	}
	attempt.Result = result
	attempt.Completed, attempt.Text = p.learn(pair, &ending, result, &Completed{Depth: depth, Time: began, Result: ending.Result, Judgement: judged, Idle: idle})
	p.save()
	return attempt
}

// mayBegin looks at what keeps a run from beginning, with a fresh look.
func (p *Prober) mayBegin(ctx context.Context, pair *pair, depth Depth) (Reason, error) {
	if p.stale(time.Now(), freshLook) {
		p.look(ctx)
	}
	if reason, err := p.gate(pair, depth); reason != ReasonNone {
		return reason, err
	}
	if cause := context.Cause(ctx); cause != nil {
		return interruption(cause), cause
	}
	return ReasonNone, nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// takeLock takes the host-wide lock. It is held for as long as a run hangs.
func (p *Prober) takeLock() (Reason, error) {
	if p.options.LockPath == "" || p.lock != nil {
		return ReasonNone, nil
	}
	lock, err := loopback.TryLock(p.options.LockPath)
	switch {
	case errors.Is(err, loopback.ErrLocked):
		return ReasonLocked, err
	case err != nil:
		return ReasonLock, err
	}
	p.lock = lock
	return ReasonNone, nil
}

func (p *Prober) dropLock() {
	if _, hangs := p.hangs(); p.lock == nil || hangs {
		return
	}
	_ = p.lock.Unlock()
	p.lock = nil
}

// begun is an Order whose run has begun.
type begun struct {
	Order
	depth Depth
	idle  bool
	began time.Time
}

// order is a run that begins now.
func (p *Prober) order(pair *pair, depth Depth, idle bool) begun {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	pair.attempted[depth] = now
	running := pair.Pair
	p.running, p.lastRun[pair.GPU] = &running, now
	// Until the process is replaced whose CUDA does not work any more.
	isolated := p.isolation() == InChild || p.cudaUnusable
	p.inProcess = !isolated
	p.cudaLoaded = p.cudaLoaded || !isolated
	p.unsaved = p.unsaved || !isolated
	return begun{Order{Pair: pair.Pair, Spec: p.spec(pair, depth, idle), Isolated: isolated}, depth, idle, now}
}

// spec is what is measured.
func (p *Prober) spec(pair *pair, depth Depth, idle bool) loopback.Spec {
	spec := p.options.Spec
	spec.Device, spec.Port, spec.LockPath = pair.Device, pair.Port, ""
	spec.FreeGPUMemory = p.options.MinFree
	if depth == DepthRegister {
		spec.RegisterOnly = true
		return spec
	}
	spec.Paths = []loopback.Path{loopback.PathHost, loopback.PathGPURead, loopback.PathGPUWrite, loopback.PathGPU}
	switch {
	case !idle:
		spec.Slices = BusySlices
	case pair.stagedDue(p.options.StagedInterval):
		spec.Paths = loopback.Paths
	}
	return spec
}

// stagedDue reports whether path staged is to be measured: seldom, but again at
// once where it went wrong.
func (p *pair) stagedDue(interval time.Duration) bool {
	if p.full == nil || time.Since(p.full.Staged) >= interval {
		return true
	}
	return slices.ContainsFunc(p.full.Result.Paths, func(path loopback.PathResult) bool {
		return path.Path == loopback.PathStaged && (path.Err != nil || path.Mismatches.Value > 0)
	})
}

// expected is how many bytes a run moves, at most.
func (p *Prober) expected(pair *pair, depth Depth) uint64 {
	if depth == DepthRegister {
		return 0
	}
	spec := p.spec(pair, depth, true)
	orDefault(&spec.Bytes, 128<<20)
	orDefault(&spec.WarmUp, 32<<20)
	orDefault(&spec.EventBytes, 64<<20)
	orDefault(&spec.ReadBack, 16<<20)
	return uint64(len(spec.Paths)) * (spec.Bytes + spec.WarmUp + spec.EventBytes + uint64(spec.ReadBack))
}

// watched makes a run and ends it at once if a process comes to its GPU. cause is
// why it was ended, nil if it was not.
func (p *Prober) watched(ctx context.Context, order Order, before []int) (ending Ending, cause error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watcher := &watcher{host: p.options.Host, gpu: order.GPU, before: before}
	order.Started = watcher.own
	watching, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		if watcher.newcomer(watching) {
			cancel(errNewProcess)
		}
	})
	ending = p.options.Runner.Run(ctx, order)
	if ctx.Err() != nil {
		cause = context.Cause(ctx)
	}
	stop()
	group.Wait()
	return ending, cause
}

// watcher looks for processes that come to a GPU.
type watcher struct {
	host   Host
	gpu    string
	before []int

	mu  sync.Mutex
	pid int // of the run
}

func (w *watcher) own(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pid = pid
}

// newcomer waits for a process that was not there before. One of them is the run
// itself: in a container it may have another id for the driver.
func (w *watcher) newcomer(ctx context.Context) bool {
	for first := true; first || sleep(ctx, watchEvery); first = false {
		now, err := w.host.Processes(ctx, w.gpu)
		if err != nil {
			continue
		}
		w.mu.Lock()
		own := w.pid
		w.mu.Unlock()
		strangers := slices.DeleteFunc(slices.Clone(now), func(pid int) bool { return slices.Contains(w.before, pid) })
		allowed := 1
		if slices.Contains(now, own) {
			strangers = slices.DeleteFunc(strangers, func(pid int) bool { return pid == own })
			allowed = 0
		}
		if len(strangers) > allowed {
			return true
		}
	}
	return false
}

// finish takes what a run left if it hangs, or if CUDA does not work any more.
func (p *Prober) finish(pair *pair, order *begun, ending *Ending) {
	p.mu.Lock()
	now := time.Now()
	p.running, p.inProcess, p.unsaved = nil, false, true
	p.lastRun[pair.GPU] = now
	for i := range ending.Result.Paths {
		pair.mismatches += uint64(ending.Result.Paths[i].Mismatches.Value)
	}
	if ending.Hung {
		pair.hung, pair.hungStage, pair.hungOn, pair.hungHere = now, ending.Stage, true, !order.Isolated
	}
	sticky := ending.Sticky && !order.Isolated
	p.cudaUnusable = p.cudaUnusable || sticky
	p.mu.Unlock()
	if sticky {
		p.options.Restart("CUDA does not work in this process any more")
	}
	if !ending.Hung {
		return
	}
	if ending.Gone != nil {
		go p.waitGone(pair, ending.Gone)
	}
	p.tell([]Event{{Kind: EventHung, Pair: pair.Pair, Text: string(ending.Stage)}})
	if !order.Isolated {
		p.Isolate("a run hung in this process")
	}
}

// waitGone waits for a run that was given up. Its pair is left alone all the same,
// but nothing is held any more.
func (p *Prober) waitGone(pair *pair, gone <-chan struct{}) {
	<-gone
	p.mu.Lock()
	pair.hungOn, pair.hungHere = false, false
	p.mu.Unlock()
	p.nudge()
}

func (p *Prober) judge(pair *pair, result *loopback.Result) loopback.Judgement {
	p.mu.Lock()
	direct := pair.direct
	p.mu.Unlock()
	return loopback.Judge(result, direct, p.options.Limits)
}

// runResults are those of the outcomes.
var runResults = map[loopback.Outcome]RunResult{
	loopback.Fine: RunFine, loopback.Slow: RunSlow, loopback.Failed: RunFailed, loopback.Corrupt: RunCorrupt,
	loopback.Unsupported: RunUnsupported, loopback.NotJudged: RunBroken,
}

// classify says how a run ended, and why if that was early.
func classify(ending *Ending, cause error, judged loopback.Judgement) (RunResult, Reason) {
	switch refused := ending.Result.SkipReason(); {
	case ending.Hung:
		return RunHung, ReasonHung
	case cause == nil && ending.Crash != "":
		return RunCrashed, ReasonNone
	case cause == nil && refused != "":
		return RunInterrupted, Reason(refused)
	case cause == nil || ending.Crash == "" && judged.Outcome == loopback.Fine:
		return runResults[judged.Outcome], ReasonNone // it had ended by itself
	}
	return RunInterrupted, interruption(cause)
}

// interruption is the reason of a run that was ended, or not begun, for a cause.
func interruption(cause error) Reason {
	switch {
	case errors.Is(cause, errNewProcess):
		return ReasonNewProcess
	case errors.Is(cause, errQuiesced):
		return ReasonQuiesced
	}
	return ReasonStopped
}

// count counts a run, and what it cost. One that was refused when it began cost
// nothing of the budget, and is not tried again soon.
func (p *Prober) count(order *begun, ending *Ending, result RunResult, byItself bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs[RunKind{order.depth, result}]++
	pair, moved := p.pairs[order.Pair], ending.Result.TransferredBytes
	if pair == nil {
		pair = newPair(Candidate{}, 0) // it has gone meanwhile
	}
	if result == RunInterrupted && byItself {
		pair.refuse(time.Now(), p.options.interval())
		return
	}
	pair.refused, pair.notBefore = 0, time.Time{}
	if ending.Hung || ending.Crash != "" {
		moved = max(moved, p.expected(pair, order.depth)) // nobody has counted
	}
	p.budget.spend(order.began, moved)
}

// learn takes what a run found. It returns that, and why it is not fine.
func (p *Prober) learn(pair *pair, ending *Ending, result RunResult, found *Completed) (*Completed, string) {
	p.mu.Lock()
	now, depth := time.Now(), found.Depth
	var events []Event
	var why string
	switch result {
	case RunBroken, RunCrashed:
		events = p.broke(pair, depth, now, ending)
		found, why = nil, events[0].Text
	case RunHung:
		pair.withdraw()
		pair.repeat = nil // what it withdrew stays so
		found, why = nil, "hangs in stage "+string(ending.Stage)
	default:
		p.complement(pair, found)
		events = p.completed(pair, found, now)
		why = strings.Join(found.Judgement.Reasons, "; ")
	}
	p.unsaved = true
	// A registration run does not clear what keeps the full one waiting.
	clears := depth == DepthFull && result != RunHung
	p.mu.Unlock()
	p.tell(events)
	if clears {
		p.skipped(pair, ReasonNone, nil)
	}
	return found, why
}

// broke takes a run that could not be carried through.
func (p *Prober) broke(pair *pair, depth Depth, now time.Time, ending *Ending) []Event {
	text := ending.Crash
	if text == "" {
		if err := ending.Result.Err(); err != nil {
			text = err.Error()
		}
	}
	events := []Event{{Kind: EventBroken, Pair: pair.Pair, Text: text, Err: ending.Result.Err()}}
	if depth == DepthRegister {
		pair.repeat = nil
		return events
	}
	events = append(events, pair.fail()...)
	pair.due = pair.nextDue(now, p.options.interval())
	if pair.broken <= mostRepeats {
		pair.due = now.Add(retryBroken * time.Duration(pair.broken))
	}
	return events
}

// complement adds to a run of what it is, and the staged path where that was
// measured by an earlier one.
func (p *Prober) complement(pair *pair, c *Completed) {
	c.Identity = p.host.identity(pair.Pair)
	isStaged := func(path loopback.PathResult) bool { return path.Path == loopback.PathStaged }
	switch {
	case slices.ContainsFunc(c.Result.Paths, isStaged):
		c.Staged = c.Time
	case c.Depth == DepthFull && pair.full != nil:
		if i := slices.IndexFunc(pair.full.Result.Paths, isStaged); i >= 0 {
			c.Result.Paths = append(slices.Clip(c.Result.Paths), pair.full.Result.Paths[i])
			c.Staged = pair.full.Staged
		}
	}
}

// completed takes a run that was carried through.
func (p *Prober) completed(pair *pair, c *Completed, now time.Time) []Event {
	events := pair.complete(c, now)
	if c.Depth == DepthFull && pair.repeat == nil {
		pair.due = pair.nextDue(now, p.options.interval())
	}
	if pair.full == c && c.Idle && c.Good() {
		p.baselines.add(pair.Pair, c)
	}
	return events
}

// interval is that of full runs, also where none are scheduled.
func (o *Options) interval() time.Duration {
	if o.Interval == 0 {
		return time.Hour
	}
	return o.Interval
}

package prober

import (
	"errors"
	"slices"
	"strings"
	"time"

	"gdr_exporter/rdma/loopback"
)

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

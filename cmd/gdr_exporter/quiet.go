package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// How long a quiesce lasts.
const (
	defaultQuiesce = 30 * time.Minute
	mostQuiesce    = 12 * time.Hour
)

// letGo bounds the wait for a run to end and for NVML to be shut down.
const letGo = 20 * time.Second

// driverUser keeps driver files open while it may.
type driverUser interface {
	Quiesce(ctx context.Context) error
	Resume()
}

// quiet makes the process let go of the drivers for a time, after which it ends
// by itself: a script that died must not leave a node unwatched.
type quiet struct {
	prober measurer
	nvml   driverUser // nil: NVML is not read
	// sessions are the processes of sessions with other nodes; nil: there are none.
	sessions driverUser
	// open lists the driver files that the process has open.
	open func() ([]string, error)
	// afresh asks for a fresh process, the only way to close what libcuda opened;
	// stay takes that back.
	afresh, stay func()
	logger       *zap.Logger

	acting sync.Mutex // held while one begins or ends

	mu       sync.Mutex
	until    time.Time // zero: not quiesced
	timer    *time.Timer
	problems []string // what had not let go when it was tried last
}

// begin lets go of the drivers. It goes on to the end though ctx ends.
func (q *quiet) begin(ctx context.Context, span time.Duration) {
	q.acting.Lock()
	defer q.acting.Unlock()
	until := time.Now().Add(span)
	q.logger.Info("quiesced: letting go of all driver files", zap.Time("until", until))
	q.enter(ctx, until)
	if open, _ := q.holds(); len(open) > 0 {
		q.afresh()
		return
	}
	q.stay()
	q.report()
}

// carryOn goes on with the quiesce of the process before, before anything is read.
// What is open now a fresh process does not close: it is one.
func (q *quiet) carryOn(ctx context.Context, until time.Time) {
	q.acting.Lock()
	defer q.acting.Unlock()
	if span := time.Until(until); span > mostQuiesce { // the clock was set back
		until = time.Now().Add(mostQuiesce)
	} else if span <= 0 {
		return
	}
	q.enter(ctx, until)
	q.report()
}

// enter stops what uses the drivers. The time limit runs from the start, whatever
// hangs.
func (q *quiet) enter(ctx context.Context, until time.Time) {
	q.mu.Lock()
	if q.timer != nil {
		q.timer.Stop()
	}
	q.until, q.problems = until, nil
	q.timer = time.AfterFunc(time.Until(until), func() { q.expire(until) })
	q.mu.Unlock()
	q.release(context.WithoutCancel(ctx), until, letGo)
}

// again tries once more where something did not let go: what hung may have ended
// since, and is closed then.
func (q *quiet) again(ctx context.Context) {
	const most = 100 * time.Millisecond // somebody waits for an answer
	if !q.acting.TryLock() {
		return
	}
	defer q.acting.Unlock()
	q.mu.Lock()
	until, held := q.until, len(q.problems) > 0
	q.mu.Unlock()
	if held && !until.IsZero() {
		q.release(ctx, until, most)
	}
}

// release has the prober and NVML let go, and notes what does not.
func (q *quiet) release(ctx context.Context, until time.Time, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	// At the same time: one that hangs leaves the other its time.
	var measuring, nvml, sessions error
	var wg sync.WaitGroup
	wg.Go(func() { measuring = q.prober.Quiesce(ctx, until) })
	if q.nvml != nil {
		wg.Go(func() { nvml = q.nvml.Quiesce(ctx) })
	}
	if q.sessions != nil {
		wg.Go(func() { sessions = q.sessions.Quiesce(ctx) })
	}
	wg.Wait()
	var problems []string
	if measuring != nil {
		problems = append(problems, fmt.Sprintf("measuring: %v", measuring))
	}
	if nvml != nil {
		problems = append(problems, fmt.Sprintf("NVML: %v", nvml))
	}
	if sessions != nil {
		problems = append(problems, fmt.Sprintf("sessions: %v", sessions))
	}
	q.mu.Lock()
	q.problems = problems
	q.mu.Unlock()
}

// report logs whether anything is still held.
func (q *quiet) report() {
	open, problem := q.holds()
	if len(open) == 0 && problem == "" {
		q.logger.Info("quiesced: all driver files are released")
		return
	}
	q.logger.Warn("quiesced, but not all driver files are released", zap.Strings("open", open), zap.String("problem", problem))
}

// expire ends the quiesce that lasts until then, unless another has taken its place.
func (q *quiet) expire(until time.Time) {
	q.acting.Lock()
	defer q.acting.Unlock()
	if q.inForceUntil().Equal(until) {
		q.leave("the time is over")
	}
}

// end ends the quiesce in force.
func (q *quiet) end(why string) {
	q.acting.Lock()
	defer q.acting.Unlock()
	q.leave(why)
}

// leave takes the drivers up again.
func (q *quiet) leave(why string) {
	q.mu.Lock()
	was := !q.until.IsZero()
	if q.timer != nil {
		q.timer.Stop()
	}
	q.until, q.timer, q.problems = time.Time{}, nil, nil
	q.mu.Unlock()
	q.stay()
	// Also when this process knows of none: the prober may, from its state file.
	q.prober.Resume()
	if q.nvml != nil {
		q.nvml.Resume()
	}
	if q.sessions != nil {
		q.sessions.Resume()
	}
	if was {
		q.logger.Info("quiesced no more", zap.String("why", why))
	}
}

// inForceUntil is when the quiesce in force ends, zero if there is none.
func (q *quiet) inForceUntil() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.until
}

// holds lists the driver files that are open, and what else is in use.
func (q *quiet) holds() (open []string, problem string) {
	open, err := q.open()
	q.mu.Lock()
	problems := q.problems
	q.mu.Unlock()
	if err != nil {
		problems = append(problems[:len(problems):len(problems)], err.Error())
	}
	return open, strings.Join(problems, "; ")
}

package capture

import (
	"math"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gdr_exporter/gpu/tape"
	"gdr_exporter/rdma/loopback/prober"
)

// Move returns a player of a recording, which must not be changed any more, that
// follows its scenario from now on, and in which what was when the recording ended
// is now. now is the clock; nil for time.Now.
func Move(recording *Recording, now func() time.Time) *Player {
	if now == nil {
		now = time.Now
	}
	start := now()
	p := Play(recording)
	p.shift = start.Sub(recording.Header.Ended)
	if recording.Scenario == nil {
		return p
	}
	m := newMovie(recording, func() float64 { return now().Sub(start).Seconds() })
	p.files.movie, p.answers.movie = m, m
	p.nvml.player = tape.PlayFrom(len(m.tape.Devices), func() *tape.Tape { return m.now().tape })
	return p
}

// Shown is the time at which something of the recording's time is shown: what
// was a minute old when the recording ended is a minute old when a replay begins.
func (p *Player) Shown(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(p.shift)
}

// shown has a status, which is changed for it, tell the times that are shown.
func (p *Player) shown(s *prober.Status) *prober.Status {
	shift := func(times ...*time.Time) {
		for _, t := range times {
			*t = p.Shown(*t)
		}
	}
	shift(&s.QuiescedUntil)
	for i := range s.Pairs {
		pair := &s.Pairs[i]
		shift(&pair.LastAttempt, &pair.Due, &pair.Hung)
		for depth, t := range pair.LastSuccess {
			pair.LastSuccess[depth] = p.Shown(t)
		}
		for _, c := range []*prober.Completed{pair.Full, pair.Registration, pair.Unconfirmed} {
			if c != nil {
				shift(&c.Time, &c.Staged, &c.Result.Started)
			}
		}
	}
	return s
}

// At returns the recording as its scenario has it after a time: one without a
// scenario. What is gone then is not in it.
func (r *Recording) At(elapsed time.Duration) *Recording {
	at := &Recording{Header: r.Header}
	if r.Scenario == nil {
		at.Files, at.Answers = r.Files, r.Answers
		return at
	}
	moment := newMovie(r, nil).moment(elapsed.Seconds())
	for _, file := range r.Files {
		if moment.isGone(file.Path) {
			continue
		}
		if changed := moment.files[fileKey{file.Path, file.Op}]; changed != nil {
			file.Last, file.First = *changed, nil
		}
		at.Files = append(at.Files, file)
	}
	for _, answer := range r.Answers {
		if changed := moment.answers[answerKey{answer.Part, answer.Question}]; changed != nil {
			answer.Last, answer.First = *changed, nil
		}
		at.Answers = append(at.Answers, answer)
	}
	return at
}

// movie is a recording with its scenario.
type movie struct {
	scenario *Scenario
	files    map[fileKey]*effects[FileAnswer]
	answers  map[answerKey]*effects[Value]
	tape     *tape.Tape
	elapsed  func() float64

	mu   sync.Mutex
	last atomic.Pointer[moment]
}

// effects is an answer with what concerns it of a scenario.
type effects[T any] struct {
	answer  *T
	changes []*Change
	counts  []*Count
}

// moment is what a movie has other than its recording at one time. It does not
// change.
type moment struct {
	second  float64
	gone    []string
	files   map[fileKey]*FileAnswer
	answers map[answerKey]*Value
	tape    *tape.Tape
}

func newMovie(recording *Recording, elapsed func() float64) *movie {
	m := &movie{
		scenario: recording.Scenario, elapsed: elapsed, tape: tapeOf(recording.Answers),
		files: map[fileKey]*effects[FileAnswer]{}, answers: map[answerKey]*effects[Value]{},
	}
	moving := 0
	for i := 0; i < len(recording.Files) && moving < maxMoving; i++ {
		file := &recording.Files[i]
		key := fileKey{file.Path, file.Op}
		if e := effectsOn(m.scenario, &file.Last, func(t *Target) bool { return t.matches(key) }); e != nil {
			m.files[key], moving = e, moving+len(e.changes)+len(e.counts)
		}
	}
	for i := 0; i < len(recording.Answers) && moving < maxMoving; i++ {
		answer := &recording.Answers[i]
		key := answerKey{answer.Part, answer.Question}
		if e := effectsOn(m.scenario, &answer.Last, func(t *Target) bool { return t.asks(key) }); e != nil {
			m.answers[key], moving = e, moving+len(e.changes)+len(e.counts)
		}
	}
	m.addListings(recording)
	return m
}

// effectsOn collects what concerns an answer; nil if nothing does.
func effectsOn[T any](s *Scenario, answer *T, meant func(*Target) bool) *effects[T] {
	e := effects[T]{answer: answer}
	for i := range s.Changes {
		if c := &s.Changes[i]; !c.Gone && meant(&c.Target) {
			e.changes = append(e.changes, c)
		}
	}
	for i := range s.Counts {
		if c := &s.Counts[i]; meant(&c.Target) {
			e.counts = append(e.counts, c)
		}
	}
	if len(e.changes)+len(e.counts) == 0 {
		return nil
	}
	return &e
}

// addListings has the directories looked at that list what will be gone.
func (m *movie) addListings(recording *Recording) {
	above := map[string]bool{}
	for i := range m.scenario.Changes {
		if c := &m.scenario.Changes[i]; c.Gone {
			above[path.Dir(c.Path)] = true
		}
	}
	for i := range recording.Files {
		file := &recording.Files[i]
		if key := (fileKey{file.Path, file.Op}); file.Op == OpList && above[file.Path] && m.files[key] == nil {
			m.files[key] = &effects[FileAnswer]{answer: &file.Last}
		}
	}
}

// now returns the present moment. It lasts a second, so that what is read at one
// time fits together.
func (m *movie) now() *moment {
	second := math.Floor(max(m.elapsed(), 0))
	if last := m.last.Load(); last != nil && last.second == second {
		return last
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if last := m.last.Load(); last != nil && last.second == second {
		return last
	}
	next := m.moment(second)
	m.last.Store(next)
	return next
}

// moment works out a moment.
func (m *movie) moment(second float64) *moment {
	now := &moment{second: second, files: make(map[fileKey]*FileAnswer, len(m.files)), answers: make(map[answerKey]*Value, len(m.answers))}
	for i := range m.scenario.Changes {
		if c := &m.scenario.Changes[i]; c.Gone && c.holds(second) {
			now.gone = append(now.gone, c.Path)
		}
	}
	for key, e := range m.files {
		answer := e.answer
		for _, change := range e.changes {
			if change.holds(second) {
				answer = change.File
			}
		}
		for _, count := range e.counts {
			answer = count.counted(answer, second)
		}
		now.files[key] = now.listed(key, answer)
	}
	for key, e := range m.answers {
		answer := e.answer
		for _, change := range e.changes {
			if change.holds(second) {
				answer = change.Value
			}
		}
		for _, count := range e.counts {
			answer = count.countedValue(answer, second)
		}
		now.answers[key] = answer
	}
	now.tape = changedTape(m.tape, now.answers)
	return now
}

// listed takes the names that are gone from a list.
func (m *moment) listed(key fileKey, answer *FileAnswer) *FileAnswer {
	if key.op != OpList || answer.Names == nil {
		return answer
	}
	kept := *answer
	kept.Names = slices.DeleteFunc(slices.Clone(answer.Names), func(name string) bool {
		return slices.Contains(m.gone, path.Join(key.path, name))
	})
	return &kept
}

// isGone reports whether a path, or one above it, is gone.
func (m *moment) isGone(at string) bool {
	for _, gone := range m.gone {
		if rest, below := strings.CutPrefix(at, gone); below && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}

// goneAnswer is what any operation on a path gives that is gone.
var goneAnswer = &FileAnswer{Errno: "ENOENT"}

// file returns the answer at this moment; nil if it is the recording's.
func (m *moment) file(key fileKey) *FileAnswer {
	if m.isGone(key.path) {
		return goneAnswer
	}
	return m.files[key]
}

package capture

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"reflect"
	"sync"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// answerKey names a question.
type answerKey struct{ part, question string }

// answerRecorder keeps answers to questions that are not about files. Its
// methods may be called concurrently.
type answerRecorder struct {
	mu      sync.Mutex
	kept    map[answerKey]*Answer
	started map[answerKey]int // questions that have not been answered
}

func newAnswerRecorder() *answerRecorder {
	return &answerRecorder{kept: map[answerKey]*Answer{}, started: map[answerKey]int{}}
}

// ask asks a question and keeps the answer.
func ask[T any](r *answerRecorder, part, question string, put func() (T, error)) (T, error) {
	key := answerKey{part, question}
	r.mu.Lock()
	r.started[key]++
	r.mu.Unlock()
	value, err := put()
	note(r, key, value, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started[key]--; r.started[key] == 0 {
		delete(r.started, key)
	}
	return value, err
}

// errnoName is sysread.ErrnoName, and knows errors that are as an errno.
func errnoName(err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) && errors.Is(err, fs.ErrNotExist) {
		return "ENOENT"
	}
	return sysread.ErrnoName(err)
}

// note keeps an answer.
func note[T any](r *answerRecorder, key answerKey, value T, err error) {
	var v Value
	if err == nil {
		v.JSON, err = json.Marshal(value)
	}
	if err != nil {
		v = Value{Errno: errnoName(err)}
	}
	r.keep(key, v)
}

func (r *answerRecorder) keep(key answerKey, v Value) {
	r.mu.Lock()
	defer r.mu.Unlock()
	answer := r.kept[key]
	if answer == nil {
		r.kept[key] = &Answer{Part: key.part, Question: key.question, Last: v}
		return
	}
	if answer.First == nil {
		first := answer.Last
		answer.First = &first
	}
	answer.Last = v
}

// recorded returns all answers so far. A question that has not been answered is
// kept as one that hangs.
func (r *answerRecorder) recorded() []Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	var answers []Answer
	for _, answer := range r.kept {
		a := *answer
		if a.First != nil && reflect.DeepEqual(*a.First, a.Last) {
			a.First = nil
		}
		if r.started[answerKey{a.Part, a.Question}] > 0 {
			a.Last = Value{Hang: true}
		}
		answers = append(answers, a)
	}
	for key := range r.started {
		if r.kept[key] == nil {
			answers = append(answers, Answer{Part: key.part, Question: key.question, Last: Value{Hang: true}})
		}
	}
	return answers
}

// answerPlayer gives a recording's answers again.
type answerPlayer struct {
	answers map[answerKey]*Value
	gaps    *gaps
	closed  <-chan struct{}
	movie   *movie // what changes; nil: nothing does
}

func newAnswerPlayer(answers []Answer, gaps *gaps, closed <-chan struct{}) *answerPlayer {
	p := &answerPlayer{answers: make(map[answerKey]*Value, len(answers)), gaps: gaps, closed: closed}
	for i := range answers {
		p.answers[answerKey{answers[i].Part, answers[i].Question}] = &answers[i].Last
	}
	return p
}

// get returns the answer to a question; nil if there is none.
func (p *answerPlayer) get(key answerKey) *Value {
	if p.movie != nil {
		if changed := p.movie.now().answers[key]; changed != nil {
			return changed
		}
	}
	return p.answers[key]
}

// has reports whether anything of a part was recorded.
func (p *answerPlayer) has(part string) bool {
	for key := range p.answers {
		if key.part == part {
			return true
		}
	}
	return false
}

// answer gives the answer to a question again. One that hangs returns when the
// player is closed, as interrupted.
func answer[T any](p *answerPlayer, part, question string) (value T, err error) {
	v := p.get(answerKey{part, question})
	switch {
	case v == nil:
		return value, p.gaps.add(part + " " + question)
	case v.Hang:
		<-p.closed
		return value, syscall.EINTR
	case v.Errno != "":
		return value, sysread.ErrorOf(v.Errno)
	}
	// null is a valid zero to JSON, which would be a value that nobody read.
	err = json.Unmarshal(v.JSON, &value)
	if err != nil || string(bytes.TrimSpace(v.JSON)) == "null" {
		var none T
		return none, sysread.Invalid(part + " " + question)
	}
	return value, nil
}

package capture

import (
	"bytes"
	"fmt"
	"reflect"
)

// Over returns a recording laid over another one: what this one has takes the
// place of what the other has, its scenario too if it has one.
func (r *Recording) Over(base *Recording) (*Recording, error) {
	if base.Header.Base != "" {
		return nil, fmt.Errorf("%w: its base is laid over another one, %q", ErrInvalid, base.Header.Base)
	}
	over := &Recording{Header: r.Header}
	over.Header.Base = ""
	over.Files = merge(base.Files, r.Files, compareFiles)
	over.Answers = merge(base.Answers, r.Answers, compareAnswers)
	if over.Scenario = r.Scenario; over.Scenario == nil {
		over.Scenario = base.Scenario
	}
	return over, over.validate()
}

// merge merges two lists that are in order; of what is in both it takes the
// second's.
func merge[T any](below, over []T, compare func(a, b T) int) []T {
	merged := make([]T, 0, len(below)+len(over))
	for len(below) > 0 && len(over) > 0 {
		order := compare(below[0], over[0])
		if order < 0 {
			merged, below = append(merged, below[0]), below[1:]
			continue
		}
		if order == 0 {
			below = below[1:]
		}
		merged, over = append(merged, over[0]), over[1:]
	}
	return append(append(merged, below...), over...)
}

// Differences returns what has to be laid over base, which has that name, to get
// this recording, but for what it lacks: that keeps the base's answers.
func (r *Recording) Differences(base *Recording, name string) *Recording {
	d := &Recording{Header: r.Header, Scenario: r.Scenario}
	d.Header.Base = name
	files := map[fileKey]*File{}
	for i := range base.Files {
		files[fileKey{base.Files[i].Path, base.Files[i].Op}] = &base.Files[i]
	}
	for i := range r.Files {
		if below := files[fileKey{r.Files[i].Path, r.Files[i].Op}]; below == nil || !reflect.DeepEqual(*below, r.Files[i]) {
			d.Files = append(d.Files, r.Files[i])
		}
	}
	answers := map[answerKey]*Answer{}
	for i := range base.Answers {
		answers[answerKey{base.Answers[i].Part, base.Answers[i].Question}] = &base.Answers[i]
	}
	for i := range r.Answers {
		a := &r.Answers[i]
		if below := answers[answerKey{a.Part, a.Question}]; below == nil || !sameValue(below.Last, a.Last) {
			d.Answers = append(d.Answers, *a)
		}
	}
	return d
}

// sameValue compares values; JSON as it is written.
func sameValue(a, b Value) bool {
	return a.Errno == b.Errno && a.Hang == b.Hang && a.Return == b.Return && bytes.Equal(a.JSON, b.JSON)
}

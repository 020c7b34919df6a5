package capture

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
)

// ScenarioVersion is the version of a scenario's line that is written.
const ScenarioVersion = 1

// Scenario is how a replay moves: what readers see at a time is a function of
// the recording and of the time for which the replay has run, and of nothing
// else.
type Scenario struct {
	// About says in a sentence what happens.
	About string
	// Counts are counters that count.
	Counts []Count
	// Changes are answers that change. A later one goes before an earlier one.
	Changes []Change
}

// Span is when something holds, in seconds of the replay.
type Span struct {
	// From is when it begins, Until when it ends; 0: it does not end.
	From  float64 `json:"from,omitempty"`
	Until float64 `json:"until,omitempty"`
	// Every is after how many seconds it comes again; 0: it does not.
	Every float64 `json:"every,omitempty"`
}

// Target is which answers are meant: those to an operation on files, or to the
// questions of a part. Path and Question are patterns as [path.Match] has them.
type Target struct {
	Path     string `json:"path,omitempty"`
	Op       Op     `json:"op,omitempty"`
	Part     string `json:"part,omitempty"`
	Question string `json:"ask,omitempty"`
}

// Count makes a number in answers grow. An answer in which there is no such
// number stays as it is.
type Count struct {
	Span
	Target
	// Field says which number. Of a file it is the word that its line begins with,
	// "" for one that holds nothing but the number. Of a JSON value it is the names
	// and indexes on the way to it, separated by dots; a part "name=qp" is the
	// member of a list whose name is qp. "" is the value itself.
	Field string `json:"field,omitempty"`
	// Rate is how much it grows in a second. It may swing around that by the share
	// Swing once in Period seconds.
	Rate   float64 `json:"rate"`
	Swing  float64 `json:"swing,omitempty"`
	Period float64 `json:"period,omitempty"`
	// Max is the largest value, 0 for that of 64 bits; it is kept once it is
	// reached, or with Wrap 0 comes after it.
	Max  uint64 `json:"max,omitempty"`
	Wrap bool   `json:"wrap,omitempty"`
}

// Change makes answers be others for a time.
type Change struct {
	Span
	Target
	// Gone: what is at Path, which is no pattern then, is not there, with all that
	// is below it.
	Gone bool
	// File is the answer if Target is files, Value the one if it is questions.
	File  *FileAnswer
	Value *Value
}

// scenarioLine is a Scenario's line of text.
type scenarioLine struct {
	Version int          `json:"scenario"`
	About   string       `json:"about,omitempty"`
	Counts  []Count      `json:"counts,omitempty"`
	Changes []changeText `json:"changes,omitempty"`
}

// changeText is a Change in text.
type changeText struct {
	Span
	Target
	Gone bool        `json:"gone,omitempty"`
	To   *textAnswer `json:"to,omitempty"`
}

func (s *Scenario) text() scenarioLine {
	line := scenarioLine{Version: ScenarioVersion, About: s.About, Counts: s.Counts}
	for i := range s.Changes {
		c := &s.Changes[i]
		text := changeText{Span: c.Span, Target: c.Target, Gone: c.Gone}
		switch {
		case c.File != nil:
			to := c.File.text(c.Op)
			text.To = &to
		case c.Value != nil:
			to := c.Value.text()
			text.To = &to
		}
		line.Changes = append(line.Changes, text)
	}
	return line
}

// readScenario reads a scenario's line.
func readScenario(text []byte) (*Scenario, error) {
	var line scenarioLine
	if err := decodeLine(text, &line); err != nil {
		return nil, err
	}
	if line.Version != ScenarioVersion {
		return nil, fmt.Errorf("a scenario of version %d, only %d is known", line.Version, ScenarioVersion)
	}
	s := &Scenario{About: line.About, Counts: line.Counts}
	for i := range line.Changes {
		c, err := line.Changes[i].change()
		if err != nil {
			return nil, err
		}
		s.Changes = append(s.Changes, c)
	}
	return s, s.validate()
}

func (t *changeText) change() (Change, error) {
	c := Change{Span: t.Span, Target: t.Target, Gone: t.Gone}
	switch {
	case t.To == nil:
	case c.Path != "":
		file, err := t.To.file(c.Op)
		if err != nil {
			return c, err
		}
		c.File = &file
	default:
		value, err := t.To.value()
		if err != nil {
			return c, err
		}
		c.Value = &value
	}
	return c, nil
}

// Limits of a scenario.
const (
	maxEffects  = 4096
	maxPatterns = 256     // effects that may concern more than one answer
	maxMoving   = 1 << 16 // answers that effects concern, each effect counted
	maxSeconds  = 1e9
	maxRate     = 1e15
)

// validate accepts a nil scenario too.
func (s *Scenario) validate() error {
	if s == nil {
		return nil
	}
	patterns := 0
	for i := range s.Counts {
		patterns += s.Counts[i].patterns()
	}
	for i := range s.Changes {
		patterns += s.Changes[i].patterns()
	}
	if len(s.Counts)+len(s.Changes) > maxEffects || patterns > maxPatterns || len(s.About) > maxAbout {
		return fmt.Errorf("%w: a scenario with more than %d effects, or %d with patterns", ErrTooLarge, maxEffects, maxPatterns)
	}
	for i := range s.Counts {
		if err := s.Counts[i].validate(); err != nil {
			return fmt.Errorf("count %d of the scenario: %w", i, err)
		}
	}
	for i := range s.Changes {
		if err := s.Changes[i].validate(); err != nil {
			return fmt.Errorf("change %d of the scenario: %w", i, err)
		}
	}
	return nil
}

func (s Span) validate() error {
	for _, seconds := range []float64{s.From, s.Until, s.Every} {
		if !(seconds >= 0 && seconds <= maxSeconds) {
			return fmt.Errorf("%g is no time of a replay", seconds)
		}
	}
	if s.Until != 0 && s.Until <= s.From || s.Every != 0 && (s.Until == 0 || s.Until-s.From > s.Every) {
		return errors.New("no span of time")
	}
	return nil
}

func (t *Target) validate() error {
	if _, err := path.Match(t.Path+t.Question, ""); err != nil {
		return fmt.Errorf("%.80q is no pattern: %w", t.Path+t.Question, err)
	}
	switch {
	case t.Path == "" && slices.Contains(parts, t.Part) && t.Question != "" && len(t.Question) <= maxPath && t.Op == "":
		return nil
	case t.Path != "" && t.Part == "" && t.Question == "":
		return validPath(t.Path)
	}
	return errors.New("neither files nor questions are meant")
}

func (c *Count) validate() error {
	swings := c.Swing != 0 || c.Period != 0
	switch {
	case c.Path != "" && c.Op != OpRead && c.Op != OpLines:
		return errors.New("nothing to count in")
	case !(c.Rate >= 0 && c.Rate <= maxRate), swings && !(c.Swing > 0 && c.Swing <= 1 && c.Period > 0 && c.Period <= maxSeconds):
		return errors.New("no rate")
	case len(c.Field) > maxPath:
		return errors.New("no field")
	}
	return errors.Join(c.Span.validate(), c.Target.validate())
}

func (c *Change) validate() error {
	given := 0
	for _, is := range []bool{c.Gone, c.File != nil, c.Value != nil} {
		if is {
			given++
		}
	}
	var err error
	switch {
	case given != 1 || c.File != nil && c.Path == "" || c.Value != nil && c.Path != "":
		err = errors.New("no answer")
	case c.Gone && (c.Op != "" || c.Path == "" || c.Path == "/"):
		err = errors.New("nothing to be gone")
	case c.File != nil && !slices.Contains(ops, c.Op):
		err = fmt.Errorf("%.80q is no operation", c.Op)
	case c.File != nil:
		err = c.File.validate(c.Op)
	case c.Value != nil:
		err = c.Value.validate(c.Part)
	}
	return errors.Join(err, c.Span.validate(), c.Target.validate())
}

// matches reports whether a file's operation is meant.
func (t *Target) matches(key fileKey) bool {
	return t.Path != "" && t.Op == key.op && match(t.Path, key.path)
}

// asks reports whether a question is meant.
func (t *Target) asks(key answerKey) bool {
	return t.Path == "" && t.Part == key.part && match(t.Question, key.question)
}

// patterns is 1 for a target that may be more than one answer, else 0.
func (t *Target) patterns() int {
	if strings.ContainsAny(t.Path+t.Question, wildcards) {
		return 1
	}
	return 0
}

const wildcards = `*?[\`

// match is path.Match, and quick where there is nothing to match.
func match(pattern, name string) bool {
	if pattern == name {
		return true
	}
	if !strings.ContainsAny(pattern, wildcards) {
		return false
	}
	matches, err := path.Match(pattern, name)
	return matches && err == nil
}

// holds reports whether the span includes a time of the replay.
func (s Span) holds(at float64) bool {
	if at < s.From {
		return false
	}
	if s.Every > 0 {
		at = s.From + math.Mod(at-s.From, s.Every)
	}
	return s.Until == 0 || at < s.Until
}

// lasted is for how many seconds it has held until a time of the replay.
func (s Span) lasted(at float64) float64 {
	passed := at - s.From
	switch {
	case passed <= 0:
		return 0
	case s.Until == 0:
		return passed
	case s.Every == 0:
		return min(passed, s.Until-s.From)
	}
	times := math.Floor(passed / s.Every)
	return times*(s.Until-s.From) + min(passed-times*s.Every, s.Until-s.From)
}

// value is what a number has become at a time of the replay.
func (c *Count) value(number uint64, at float64) uint64 {
	seconds := c.lasted(at)
	growth := c.Rate * seconds
	if c.Swing > 0 { // the integral of rate * (1 + swing * sin)
		turn := 2 * math.Pi / c.Period
		growth += c.Rate * c.Swing * (1 - math.Cos(turn*seconds)) / turn
	}
	grown := uint64(min(growth, math.MaxInt64/2)) // rounded down: a counter does not run ahead
	limit := c.Max
	if limit == 0 {
		limit = math.MaxUint64
	}
	if number > limit {
		return number
	}
	if room := limit - number; grown > room {
		if !c.Wrap {
			return limit
		}
		if grown -= room + 1; limit < math.MaxUint64 {
			grown %= limit + 1
		}
		return grown
	}
	return number + grown
}

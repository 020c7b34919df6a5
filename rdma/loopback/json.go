package loopback

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"gdr_exporter/collector/sysread"
)

// mostErrorText and mostFacts bound what is kept of one error.
const (
	mostErrorText = 1024
	mostFacts     = 16
)

// sentinels are the package's errors without content, by their names in JSON.
var sentinels = map[string]error{
	"corrupt": ErrCorrupt, "data_direct": ErrDataDirect, "not_registered": ErrNotRegistered,
	"locked": ErrLocked, "no_library": ErrNoLibrary,
}

// errorJSON is an error in JSON: its text, and what of its tree is asked for.
type errorJSON struct {
	Text  string     `json:"text"`
	Name  string     `json:"name,omitempty"` // sysread.ErrnoName
	Is    []string   `json:"is,omitempty"`   // names of sentinels
	Errno []uint     `json:"errno,omitempty"`
	Verbs []callJSON `json:"verbs,omitempty"`
	Skip  string     `json:"skip,omitempty"`
}

// callJSON is an Error in JSON.
type callJSON struct {
	Call   string `json:"call"`
	Errno  uint   `json:"errno,omitempty"`
	Status int    `json:"status,omitempty"`
	Vendor uint32 `json:"vendor,omitempty"`
}

// toJSON returns nil for no error.
func toJSON(err error) *errorJSON {
	if err == nil {
		return nil
	}
	e := &errorJSON{Text: cut(err.Error()), Name: cut(sysread.ErrnoName(err)), Skip: cut(SkipReason(err))}
	for name, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			e.Is = append(e.Is, name)
		}
	}
	slices.Sort(e.Is)
	walk(err, func(part error) {
		switch part := part.(type) { //nolint:errorlint // each part of the tree is looked at
		case *Error:
			if len(e.Verbs) < mostFacts {
				e.Verbs = append(e.Verbs, callJSON{cut(part.Call), uint(part.Errno), int(part.Status), part.Vendor})
			}
		case syscall.Errno:
			if len(e.Errno) < mostFacts && !slices.Contains(e.Errno, uint(part)) {
				e.Errno = append(e.Errno, uint(part))
			}
		}
	})
	return e
}

// walk visits an error and all that it wraps, in the order of errors.Is.
func walk(err error, visit func(error)) {
	if err == nil {
		return
	}
	visit(err)
	switch wrapping := err.(type) { //nolint:errorlint // this is how errors.Is does it
	case interface{ Unwrap() error }:
		walk(wrapping.Unwrap(), visit)
	case interface{ Unwrap() []error }:
		for _, part := range wrapping.Unwrap() {
			walk(part, visit)
		}
	}
}

// cut shortens a text, at a whole character.
func cut(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= mostErrorText {
		return text
	}
	end := mostErrorText
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}

// carriedError is an error that came as JSON.
type carriedError struct {
	text, name string
	parts      []error
}

// Error is the text that the error had.
func (e *carriedError) Error() string { return e.text }

// ErrnoName is what [sysread.ErrnoName] said of the error.
func (e *carriedError) ErrnoName() string { return e.name }

// Unwrap returns what is known of the error's tree.
func (e *carriedError) Unwrap() []error { return e.parts }

// error returns nil for no error.
func (e *errorJSON) error() error {
	if e == nil {
		return nil
	}
	carried := &carriedError{text: cut(e.Text), name: cut(e.Name)}
	if carried.name == "" {
		carried.name = "invalid"
	}
	for _, name := range e.Is {
		if sentinel := sentinels[name]; sentinel != nil {
			carried.parts = append(carried.parts, sentinel)
		}
	}
	for _, c := range e.Verbs[:min(len(e.Verbs), mostFacts)] {
		carried.parts = append(carried.parts, &Error{cut(c.Call), syscall.Errno(c.Errno), CompletionStatus(c.Status), c.Vendor})
	}
	for _, errno := range e.Errno[:min(len(e.Errno), mostFacts)] {
		carried.parts = append(carried.parts, syscall.Errno(errno))
	}
	if e.Skip != "" {
		carried.parts = append(carried.parts, skip(cut(e.Skip), errors.New(carried.text)))
	}
	return carried
}

// The types below are the results without their methods, so that the methods do
// not call themselves; the field beside each is its error.
type (
	plainResult       Result
	plainStage        StageResult
	plainRegistration Registration
	plainPath         PathResult

	resultJSON struct {
		plainResult
		Err *errorJSON `json:"nic_dmabuf_error,omitempty"`
	}
	stageJSON struct {
		plainStage
		Err *errorJSON `json:"error,omitempty"`
	}
	registrationJSON struct {
		plainRegistration
		Err *errorJSON `json:"error,omitempty"`
	}
	pathJSON struct {
		plainPath
		Err *errorJSON `json:"error,omitempty"`
	}
)

// MarshalJSON implements json.Marshaler.
func (r Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(resultJSON{plainResult(r), toJSON(r.NICDMABufErr)})
}

// UnmarshalJSON implements json.Unmarshaler. Errors have their text, the name that
// [sysread.ErrnoName] gave them, the reason of [SkipReason], and are what they were
// to errors.Is with this package's errors and with errnos, and to errors.As with
// *[Error]; whatever else they were is lost.
func (r *Result) UnmarshalJSON(text []byte) error {
	var from resultJSON
	if err := json.Unmarshal(text, &from); err != nil {
		return err
	}
	*r = Result(from.plainResult)
	r.NICDMABufErr = from.Err.error()
	return nil
}

// MarshalJSON implements json.Marshaler.
func (s StageResult) MarshalJSON() ([]byte, error) {
	return json.Marshal(stageJSON{plainStage(s), toJSON(s.Err)})
}

// UnmarshalJSON implements json.Unmarshaler: see [*Result.UnmarshalJSON].
func (s *StageResult) UnmarshalJSON(text []byte) error {
	var from stageJSON
	if err := json.Unmarshal(text, &from); err != nil {
		return err
	}
	*s = StageResult(from.plainStage)
	s.Err = from.Err.error()
	return nil
}

// MarshalJSON implements json.Marshaler.
func (r Registration) MarshalJSON() ([]byte, error) {
	return json.Marshal(registrationJSON{plainRegistration(r), toJSON(r.Err)})
}

// UnmarshalJSON implements json.Unmarshaler: see [*Result.UnmarshalJSON].
func (r *Registration) UnmarshalJSON(text []byte) error {
	var from registrationJSON
	if err := json.Unmarshal(text, &from); err != nil {
		return err
	}
	*r = Registration(from.plainRegistration)
	r.Err = from.Err.error()
	return nil
}

// MarshalJSON implements json.Marshaler.
func (p PathResult) MarshalJSON() ([]byte, error) {
	return json.Marshal(pathJSON{plainPath(p), toJSON(p.Err)})
}

// UnmarshalJSON implements json.Unmarshaler: see [*Result.UnmarshalJSON].
func (p *PathResult) UnmarshalJSON(text []byte) error {
	var from pathJSON
	if err := json.Unmarshal(text, &from); err != nil {
		return err
	}
	*p = PathResult(from.plainPath)
	p.Err = from.Err.error()
	return nil
}

package scenes

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/capture/embedded"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// maker changes a capture. Its first mistake is kept, and told by done.
type maker struct {
	recording *capture.Recording
	err       error
}

// from begins with an embedded capture, which stays as it is.
func from(name string) *maker {
	recording, err := embedded.Open(name)
	if err != nil {
		return &maker{&capture.Recording{Scenario: &capture.Scenario{}}, err}
	}
	copied := *recording
	copied.Files, copied.Answers = slices.Clone(recording.Files), slices.Clone(recording.Answers)
	copied.Scenario = &capture.Scenario{}
	if recording.Scenario != nil {
		*copied.Scenario = *recording.Scenario
		copied.Scenario.Counts, copied.Scenario.Changes = slices.Clone(recording.Scenario.Counts), slices.Clone(recording.Scenario.Changes)
	}
	copied.Header.Synthetic = true
	return &maker{recording: &copied}
}

func (m *maker) fail(format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf(format, args...)
	}
}

// path is the one file whose path ends so.
func (m *maker) path(end string, op capture.Op) string {
	for i := range m.recording.Files {
		if f := &m.recording.Files[i]; f.Op == op && strings.HasSuffix(f.Path, end) {
			return f.Path
		}
	}
	m.fail("the capture has no file %s", end)
	return "/none"
}

// file has a file hold another text.
func (m *maker) file(span capture.Span, end, text string) {
	answer := &capture.FileAnswer{Size: int64(len(text)), Data: []capture.Segment{{Bytes: []byte(text)}}}
	m.change(capture.Change{Span: span, Target: capture.Target{Path: m.path(end, capture.OpRead), Op: capture.OpRead}, File: answer})
}

// gone has a file or directory, and what is below it, be gone.
func (m *maker) gone(span capture.Span, path string) {
	m.change(capture.Change{Span: span, Target: capture.Target{Path: path}, Gone: true})
}

// count has a number of a file grow, by so much in a second.
func (m *maker) count(span capture.Span, end, field string, rate float64) {
	m.recording.Scenario.Counts = append(m.recording.Scenario.Counts, capture.Count{
		Span: span, Target: capture.Target{Path: m.path(end, capture.OpRead), Op: capture.OpRead}, Field: field, Rate: rate,
	})
}

// countsLater has a number that the capture counts up to a limit begin at the fault: in a
// show that runs fast the first scrape comes minutes after the beginning.
func (m *maker) countsLater(end string) {
	for i := range m.recording.Scenario.Counts {
		if c := &m.recording.Scenario.Counts[i]; c.Max > 0 && strings.HasSuffix(c.Path, end) {
			c.Span = fault
			return
		}
	}
	m.fail("the capture counts no %s up to a limit", end)
}

// countAnswer has a number of an answer grow.
func (m *maker) countAnswer(span capture.Span, part, question, field string, rate float64) {
	m.answered(part, question)
	m.recording.Scenario.Counts = append(m.recording.Scenario.Counts, capture.Count{
		Span: span, Target: capture.Target{Part: part, Question: question}, Field: field, Rate: rate,
	})
}

// answer has a question be answered otherwise.
func (m *maker) answer(span capture.Span, part, question string, value capture.Value) {
	m.answered(part, question)
	m.change(capture.Change{Span: span, Target: capture.Target{Part: part, Question: question}, Value: &value})
}

// answered sees to it that a question is in the capture, or else no change of it shows.
func (m *maker) answered(part, question string) *capture.Answer {
	for i := range m.recording.Answers {
		if a := &m.recording.Answers[i]; a.Part == part && a.Question == question {
			return a
		}
	}
	m.fail("the capture has no answer to %s %q", part, question)
	return nil
}

// add has the capture answer a question that it does not have.
func (m *maker) add(part, question string, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		m.fail("%s %s: %w", part, question, err)
		return
	}
	m.recording.Answers = append(m.recording.Answers, capture.Answer{Part: part, Question: question, Last: capture.Value{JSON: text}})
}

func (m *maker) change(c capture.Change) {
	m.recording.Scenario.Changes = append(m.recording.Scenario.Changes, c)
}

// value is an answer as JSON.
func value(text string) capture.Value { return capture.Value{JSON: json.RawMessage(text)} }

// prober has the prober show something else: a changed copy of what the capture has.
func (m *maker) prober(span capture.Span, change func(*prober.Status)) {
	changed := m.status()
	change(changed)
	recorder := capture.NewRecorder(nil, capture.Header{}, func() time.Time { return m.recording.Header.Ended })
	recorder.Prober(changed)
	for _, answer := range recorder.Recording().Answers {
		if answer.Question == capture.QuestionProber {
			m.answer(span, capture.PartProbe, capture.QuestionProber, answer.Last)
		}
	}
}

// status is what the capture's prober showed.
func (m *maker) status() *prober.Status {
	var status capture.ProberStatus
	if recorded := m.answered(capture.PartProbe, capture.QuestionProber); recorded != nil {
		if err := json.Unmarshal(recorded.Last.JSON, &status); err != nil {
			m.fail("prober: %w", err)
		}
	}
	return status.Status()
}

// at is a time of the replay, in the recording's time.
func (m *maker) at(seconds float64) time.Time {
	return m.recording.Header.Ended.Add(time.Duration(seconds * float64(time.Second)))
}

// pair is a pair of the prober: of the i-th GPU.
func pair(s *prober.Status, i int) *prober.PairStatus {
	if i >= len(s.Pairs) {
		return &prober.PairStatus{}
	}
	return &s.Pairs[i]
}

// lost has GPU memory not be registered by either method, as a completed full run found.
func lost(p *prober.PairStatus, when time.Time) {
	if p.Full == nil {
		return
	}
	failed := *p.Full
	failed.Time, failed.Result.Started = when, when
	failed.Judgement = loopback.Judgement{Outcome: loopback.Failed, Reasons: []string{"GPU memory cannot be registered"}}
	paths := failed.Result.Paths
	failed.Result.Paths = []loopback.PathResult{paths[0]}
	for _, path := range []loopback.Path{loopback.PathGPURead, loopback.PathGPUWrite, loopback.PathGPU} {
		failed.Result.Paths = append(failed.Result.Paths, loopback.PathResult{Path: path, Stage: loopback.StageRegister, Err: loopback.ErrNotRegistered})
	}
	failed.Result.Registrations = []loopback.Registration{
		{Method: loopback.MethodPeermem, Err: errFault}, {Method: loopback.MethodDMABuf, Err: errNotSupported},
	}
	failed.Result.Method, failed.Result.NCCLMethod = "", loopback.MethodPeermem
	p.Full, p.Registration, p.LastAttempt, p.Due = &failed, &failed, when, when.Add(time.Hour)
}

// rated has the paths to GPU memory be at a share of the host path's rate.
func rated(p *prober.PairStatus, when time.Time, ratio float64, outcome loopback.Outcome) {
	if p.Full == nil {
		return
	}
	full := *p.Full
	full.Time, full.Result.Started = when, when
	full.Judgement = loopback.Judgement{Outcome: outcome, Reasons: []string{}}
	full.Result.Paths = slices.Clone(full.Result.Paths)
	host := full.Result.Paths[0].BytesPerSecond.Value
	for i := range full.Result.Paths {
		switch path := &full.Result.Paths[i]; path.Path {
		case loopback.PathGPU, loopback.PathGPURead, loopback.PathGPUWrite:
			path.Ratio.Value, path.BytesPerSecond.Value = ratio, ratio*host
		}
	}
	p.Full, p.LastAttempt, p.Due = &full, when, when.Add(time.Hour)
	if outcome == loopback.Fine {
		p.LastSuccess = map[prober.Depth]time.Time{prober.DepthFull: when, prober.DepthRegister: when}
	}
}

package capture

import (
	"fmt"
	"math"
	"syscall"
	"time"

	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/sysread"
)

// PartKernelLog is what the kernel's log says of interconnects: the lines that
// package kmsg has patterns for, and no others.
const PartKernelLog = "kmsg"

const questionKernelLog = "EVENTS"

// KernelLog is what reads the kernel's log.
type KernelLog interface {
	Read(now time.Time) (kmsg.Reading, []sysread.ReadError)
	Close()
}

// kernelLog is kmsg.Reading in a recording.
type kernelLog struct {
	Since  time.Time               `json:"since,omitzero"`
	Oldest time.Time               `json:"oldest,omitzero"`
	Counts map[kmsg.Pattern]uint64 `json:"counts"`
	Last   []kernelEvent           `json:"last,omitempty"`   // in the order of the patterns
	Recent []kernelEvent           `json:"recent,omitempty"` // in the order of the log
	Lost   *uint64                 `json:"lost,omitempty"`
}

// kernelEvent is kmsg.Event in a recording.
type kernelEvent struct {
	Pattern kmsg.Pattern `json:"pattern"`
	Time    time.Time    `json:"time"`
	Address string       `json:"address,omitempty"`
	Code    int          `json:"code,omitempty"`
	Text    string       `json:"text,omitempty"`
}

// KernelLog records what a reader of the kernel's log says.
func (r *Recorder) KernelLog(log KernelLog) KernelLog { return &recordedKernelLog{log, r.answers} }

type recordedKernelLog struct {
	KernelLog
	answers *answerRecorder
}

func (l *recordedKernelLog) Read(now time.Time) (kmsg.Reading, []sysread.ReadError) {
	reading, errs := l.KernelLog.Read(now)
	note(l.answers, answerKey{PartKernelLog, questionKernelLog}, newKernelLog(&reading), reading.Err)
	return reading, errs
}

func newKernelLog(r *kmsg.Reading) *kernelLog {
	log := &kernelLog{Since: r.Since.UTC(), Oldest: r.Oldest.UTC(), Counts: r.Counts, Lost: pointer(r.Lost)}
	for _, pattern := range kmsg.Patterns {
		if last, seen := r.Last[pattern]; seen {
			log.Last = append(log.Last, newKernelEvent(&last))
		}
	}
	for i := range r.Recent {
		log.Recent = append(log.Recent, newKernelEvent(&r.Recent[i]))
	}
	return log
}

func newKernelEvent(e *kmsg.Event) kernelEvent {
	return kernelEvent{e.Pattern, e.Time.UTC(), e.Address, e.Code, e.Text}
}

// KernelLog is what the kernel's log said, as long ago as it was; nil if it was not
// looked at.
func (p *Player) KernelLog() KernelLog {
	if !p.Has(PartKernelLog) {
		return nil
	}
	return &playedKernelLog{player: p}
}

type playedKernelLog struct{ player *Player }

func (*playedKernelLog) Close() {}

// Read does not wait: the reader that it stands for never does.
func (l *playedKernelLog) Read(time.Time) (kmsg.Reading, []sysread.ReadError) {
	if v := l.player.answers.get(answerKey{PartKernelLog, questionKernelLog}); v != nil && v.Hang {
		return unreadLog(syscall.EINTR), nil
	}
	log, err := answer[kernelLog](l.player.answers, PartKernelLog, questionKernelLog)
	if err != nil {
		return unreadLog(fmt.Errorf("read the kernel's log: %w", err)), nil
	}
	return log.reading(l.player.Shown), nil
}

func unreadLog(err error) kmsg.Reading {
	return kmsg.Reading{Err: err, Counts: map[kmsg.Pattern]uint64{}, Last: map[kmsg.Pattern]kmsg.Event{}}
}

// reading is what was recorded, of the patterns that there are.
func (l *kernelLog) reading(shown func(time.Time) time.Time) kmsg.Reading {
	r := kmsg.Reading{
		Since: shown(l.Since), Oldest: shown(l.Oldest), Lost: maybe(l.Lost),
		Counts: make(map[kmsg.Pattern]uint64, len(kmsg.Patterns)), Last: make(map[kmsg.Pattern]kmsg.Event, len(l.Last)),
	}
	for _, pattern := range kmsg.Patterns {
		if count, known := l.Counts[pattern]; known { // not to a version that did not have it
			r.Counts[pattern] = count
		}
	}
	for i := range l.Last {
		if e, is := l.Last[i].event(shown); is {
			r.Last[e.Pattern] = e
		}
	}
	for i := max(len(l.Recent)-kmsg.MaxRecent, 0); i < len(l.Recent); i++ {
		if e, is := l.Recent[i].event(shown); is {
			r.Recent = append(r.Recent, e)
		}
	}
	return r
}

// event is a recorded event; false for one that no kernel's log gives.
func (e *kernelEvent) event(shown func(time.Time) time.Time) (kmsg.Event, bool) {
	event := kmsg.Event{Pattern: e.Pattern, Time: shown(e.Time), Address: e.Address, Code: e.Code, Text: e.Text}
	return event, e.Pattern.Known() && event.Valid() && e.Code >= 0 && e.Code <= math.MaxInt32
}

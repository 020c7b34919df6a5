package capture

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/sysread"
)

// givenLog says what it is given.
type givenLog struct{ reading kmsg.Reading }

func (l givenLog) Read(time.Time) (kmsg.Reading, []sysread.ReadError) { return l.reading, nil }
func (givenLog) Close()                                               {}

var logTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func someLog() kmsg.Reading {
	xid := kmsg.Event{Pattern: kmsg.Xid, Time: logTime.Add(-time.Minute), Address: "0000:3b:00.0", Code: 79, Text: "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=secret, GPU has fallen off the bus."}
	locked := kmsg.Event{Pattern: kmsg.Lockdown, Time: logTime.Add(-time.Hour), Text: "Lockdown: secret: direct PCI access is restricted; see man kernel_lockdown.7"}
	counts := map[kmsg.Pattern]uint64{}
	for _, pattern := range kmsg.Patterns {
		counts[pattern] = 0
	}
	counts[kmsg.Xid] = 2
	return kmsg.Reading{
		Since: logTime.Add(-2 * time.Hour), Oldest: logTime.Add(-24 * time.Hour), Counts: counts,
		Last: map[kmsg.Pattern]kmsg.Event{kmsg.Xid: xid, kmsg.Lockdown: locked}, Recent: []kmsg.Event{locked, xid, xid}, Lost: sysread.Some[uint64](3),
	}
}

// recordLog records a log and returns the recording, once through its text.
func recordLog(t *testing.T, reading kmsg.Reading) *Recording {
	t.Helper()
	r := NewRecorder(nil, Header{}, func() time.Time { return logTime })
	log := r.KernelLog(givenLog{reading})
	if got, _ := log.Read(logTime); !reflect.DeepEqual(got, reading) {
		t.Errorf("the recorder changes what is read: %+v", got)
	}
	log.Close()
	var text bytes.Buffer
	if err := r.Recording().Write(&text); err != nil {
		t.Fatal(err)
	}
	recording, err := Read(&text)
	if err != nil {
		t.Fatal(err)
	}
	return recording
}

func playLog(t *testing.T, p *Player) kmsg.Reading {
	t.Helper()
	log := p.KernelLog()
	if log == nil {
		t.Fatal("no kernel log")
	}
	defer log.Close()
	reading, errs := log.Read(time.Now())
	if len(errs) > 0 {
		t.Error(errs)
	}
	return reading
}

// What is played is what was read, as old as it was.
func TestKernelLog(t *testing.T) {
	recording := recordLog(t, someLog())
	if got := playLog(t, Play(recording)); !reflect.DeepEqual(got, someLog()) {
		t.Errorf("%+v", got)
	}
	const later = 1000 * time.Hour
	got := playLog(t, Move(recording, func() time.Time { return logTime.Add(later) }))
	if !got.Last[kmsg.Xid].Time.Equal(logTime.Add(later-time.Minute)) || !got.Since.Equal(logTime.Add(later-2*time.Hour)) || !got.Recent[0].Time.Equal(logTime.Add(later-time.Hour)) {
		t.Errorf("%+v", got)
	}
	if log := Play(&Recording{}).KernelLog(); log != nil {
		t.Error("a log that was not recorded")
	}
}

// Nothing that a user wrote is in a capture, and all else is.
func TestKernelLogAnonymous(t *testing.T) {
	anonymous, contents := Anonymise(recordLog(t, someLog()), bytes.Repeat([]byte{1}, KeySize), []string{"host"})
	if len(contents.Unclassed)+len(contents.Dropped) > 0 {
		t.Errorf("%q, %q", contents.Unclassed, contents.Dropped)
	}
	for i := range anonymous.Answers {
		if strings.Contains(string(anonymous.Answers[i].Last.JSON), "secret") || strings.Contains(string(anonymous.Answers[i].Last.JSON), "4711") {
			t.Errorf("%s", anonymous.Answers[i].Last.JSON)
		}
	}
	got, want := playLog(t, Play(anonymous)), someLog()
	if text := got.Last[kmsg.Xid].Text; text != "NVRM: Xid (PCI:0000:3b:00): 79" {
		t.Errorf("the text is %q", text)
	}
	for _, r := range []*kmsg.Reading{&got, &want} {
		for pattern, e := range r.Last {
			e.Text = ""
			r.Last[pattern] = e
		}
		for i := range r.Recent {
			r.Recent[i].Text = ""
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

// A log that could not be read, hangs, or is made up is none that could.
func TestKernelLogUnread(t *testing.T) {
	refused := recordLog(t, kmsg.Reading{Err: syscall.EPERM})
	if got := playLog(t, Play(refused)); !errors.Is(got.Err, syscall.EPERM) {
		t.Errorf("%+v", got)
	}
	refused.Answers[0].Last = Value{Hang: true}
	if got := playLog(t, Play(refused)); got.Err == nil {
		t.Errorf("%+v", got)
	}
	refused.Answers[0].Last = Value{JSON: []byte(`null`)}
	if got := playLog(t, Play(refused)); got.Err == nil {
		t.Errorf("%+v", got)
	}
	refused.Answers[0].Last = Value{JSON: []byte(`{"counts":{"xid":1,"other":5},"last":[{"pattern":"other","text":"x"},{"pattern":"xid","address":"nonsense"},{"pattern":"sxid","text":"two\nlines"},{"pattern":"lockdown","code":-1}]}`)}
	got := playLog(t, Play(refused))
	if got.Err != nil || len(got.Last) != 0 || len(got.Counts) != 1 || got.Counts[kmsg.Xid] != 1 || got.Lost.Known {
		t.Errorf("%+v", got)
	}
}

// A scenario may let lines come.
func TestKernelLogMoves(t *testing.T) {
	recording := recordLog(t, someLog())
	recording.Scenario = &Scenario{Counts: []Count{{Target: Target{Part: PartKernelLog, Question: questionKernelLog}, Field: "counts.xid", Rate: 1}}}
	now := logTime
	player := Move(recording, func() time.Time { return now })
	now = now.Add(10 * time.Second)
	if got := playLog(t, player); got.Counts[kmsg.Xid] != 12 || got.Counts[kmsg.SXid] != 0 {
		t.Errorf("%+v", got.Counts)
	}
}

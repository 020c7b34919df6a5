package capture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback/prober"
)

// counterFile is a file with text.
func counterFile(path, text string) File {
	return File{Path: path, Op: OpRead, Last: *textFile(text)}
}

// moving is a recording of which a bit of everything moves.
func moving() *Recording {
	flap := Span{From: 30, Until: 45, Every: 60}
	status := NewProberStatus(&prober.Status{Interval: time.Hour, Pairs: []prober.PairStatus{{LastAttempt: time.Unix(1000, 0).UTC()}}})
	text, err := json.Marshal(status)
	if err != nil {
		panic(err)
	}
	r := &Recording{
		Header: Header{Began: time.Unix(900, 0).UTC(), Ended: time.Unix(1060, 0).UTC(), Readers: Readers{Sysfs: "/sys", Procfs: "/proc"}},
		Files: []File{
			{Path: "/sys/class", Op: OpList, Last: FileAnswer{Names: []string{"a", "b"}}},
			{Path: "/sys/class/a", Op: OpLink, Last: FileAnswer{Target: "../devices/a"}},
			{Path: "/sys/class/b", Op: OpLink, Last: FileAnswer{Target: "../devices/b"}},
			{Path: "/sys/devices", Op: OpList, Last: FileAnswer{Names: []string{"a", "b"}}},
			counterFile("/sys/devices/a/aer", "BadTLP 1\nTimeout 2\n"),
			counterFile("/sys/devices/a/state", "4: ACTIVE\n"),
			counterFile("/sys/devices/a/xmit", "1000\n"),
			counterFile("/sys/devices/b/xmit", "18446744073709551610\n"),
		},
		Answers: []Answer{
			{Part: PartNetlink, Question: "STAT_GET 0 1", Last: Value{JSON: []byte(`[{"name":"a","value":1},{"name":"b","value":9007199254740993}]`)}},
			{Part: PartNVML, Question: "DeviceGetCount", Last: Value{JSON: []byte("1")}},
			{Part: PartNVML, Question: "DeviceGetHandleByIndex(0)", Last: Value{JSON: []byte("0")}},
			{Part: PartNVML, Question: "device 0 GetPcieReplayCounter", Last: Value{JSON: []byte("7")}},
			{Part: PartNVML, Question: "open /lib", Last: Value{JSON: []byte("true")}},
			{Part: PartProbe, Question: QuestionProber, Last: Value{JSON: text}},
		},
		Scenario: &Scenario{
			About: "a bit of everything",
			Counts: []Count{
				{Target: Target{Path: "/sys/devices/*/xmit", Op: OpRead}, Rate: 2},
				{Target: Target{Path: "/sys/devices/a/aer", Op: OpRead}, Field: "Timeout", Rate: 1},
				{Target: Target{Part: PartNetlink, Question: "STAT_GET * 1"}, Field: "name=b.value", Rate: 1},
				{Target: Target{Part: PartNVML, Question: "device 0 GetPcieReplayCounter"}, Rate: 0.5},
			},
			Changes: []Change{
				{Span: flap, Target: Target{Path: "/sys/devices/a/state", Op: OpRead}, File: textFile("1: DOWN\n")},
				{Span: Span{From: 100}, Target: Target{Path: "/sys/class/b"}, Gone: true},
				{Span: Span{From: 100}, Target: Target{Path: "/sys/devices/b"}, Gone: true},
				{Span: Span{From: 100}, Target: Target{Part: PartNVML, Question: "DeviceGetHandleByIndex(0)"}, Value: &Value{Return: int(nvml.ERROR_GPU_IS_LOST)}},
			},
		},
	}
	r.sort()
	return r
}

// clocked is a moving player, and what sets its time in seconds.
func clocked(r *Recording) (*Player, func(seconds float64)) {
	start := time.Unix(5000, 0)
	now := start
	return Move(r, func() time.Time { return now }), func(seconds float64) { now = start.Add(time.Duration(seconds * float64(time.Second))) }
}

func TestScenarioText(t *testing.T) {
	var text, again bytes.Buffer
	if err := moving().WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if lines := strings.SplitN(text.String(), "\n", 3); !strings.HasPrefix(lines[1], `{"scenario":1,"about":"a bit of everything","counts":[{"path":"/sys/devices/*/xmit","op":"read","rate":2},`) {
		t.Errorf("second line %.200s", lines[1])
	}
	read, err := Read(bytes.NewReader(text.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(read.Scenario, moving().Scenario) {
		t.Errorf("%+v", read.Scenario)
	}
	if err := read.WriteText(&again); err != nil || text.String() != again.String() {
		t.Errorf("written again: %v\n%s", err, again.String())
	}
}

func TestScenarioHostile(t *testing.T) {
	var text bytes.Buffer
	if err := moving().WriteText(&text); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(text.String(), "\n")
	for _, line := range []string{
		`{"scenario":2}`, `{"scenario":1,"more":1}`, `{"scenario":1}{}`, `{"scenario":1,"counts":[{}]}`,
		`{"scenario":1,"counts":[{"path":"/a","op":"list","rate":1}]}`, `{"scenario":1,"counts":[{"path":"a","op":"read","rate":1}]}`,
		`{"scenario":1,"counts":[{"path":"/a","op":"read","rate":-1}]}`, `{"scenario":1,"counts":[{"path":"/a","op":"read","rate":1e300}]}`,
		`{"scenario":1,"counts":[{"path":"/[","op":"read","rate":1}]}`, `{"scenario":1,"counts":[{"path":"/a","op":"read","rate":1,"swing":2,"period":1}]}`,
		`{"scenario":1,"counts":[{"path":"/a","op":"read","rate":1,"swing":0.5}]}`, `{"scenario":1,"counts":[{"path":"/a","op":"read","part":"nvml","ask":"x","rate":1}]}`,
		`{"scenario":1,"counts":[{"part":"none","ask":"x","rate":1}]}`, `{"scenario":1,"counts":[{"part":"nvml","rate":1}]}`,
		`{"scenario":1,"changes":[{"path":"/a","op":"read"}]}`, `{"scenario":1,"changes":[{"path":"/","gone":true}]}`,
		`{"scenario":1,"changes":[{"path":"/a","op":"read","gone":true}]}`, `{"scenario":1,"changes":[{"path":"/a","gone":true,"to":{"errno":"EIO"}}]}`,
		`{"scenario":1,"changes":[{"path":"/a","op":"read","to":{"names":[]}}]}`, `{"scenario":1,"changes":[{"path":"/a","op":"read","to":{"value":1}}]}`,
		`{"scenario":1,"changes":[{"part":"nvml","ask":"x","to":{"text":"1"}}]}`, `{"scenario":1,"changes":[{"part":"netlink","ask":"x","to":{"return":1}}]}`,
		`{"scenario":1,"changes":[{"from":-1,"path":"/a","gone":true}]}`, `{"scenario":1,"changes":[{"from":5,"until":5,"path":"/a","gone":true}]}`,
		`{"scenario":1,"changes":[{"from":5,"until":9,"every":3,"path":"/a","gone":true}]}`, `{"scenario":1,"changes":[{"every":3,"path":"/a","gone":true}]}`,
		`{"scenario":1,"changes":[{"from":1e10,"path":"/a","gone":true}]}`, `{"scenario":1,"changes":[{"path":"/a/../b","gone":true}]}`,
		`{"scenario":1,"counts":[` + strings.Repeat(`{"path":"/*","op":"read","rate":1},`, maxPatterns) + `{"path":"/*","op":"read","rate":1}]}`,
		`{"scenario":1,"counts":[` + strings.Repeat(`{"path":"/a","op":"read","rate":1},`, maxEffects) + `{"path":"/a","op":"read","rate":1}]}`,
		lines[1][:len(lines[1])-1] + "\n" + lines[1][:len(lines[1])-1], // twice
	} {
		hostile := lines[0] + line + "\n" + strings.Join(lines[2:], "")
		if r, err := Read(strings.NewReader(hostile)); !errors.Is(err, ErrInvalid) || r != nil {
			t.Errorf("%.120s: %v", line, err)
		}
	}
	if _, err := Read(strings.NewReader(lines[0] + strings.Join(lines[2:], ""))); err != nil {
		t.Errorf("without a scenario: %v", err)
	}
}

func TestSpan(t *testing.T) {
	for _, c := range []struct {
		span   Span
		at     float64
		holds  bool
		lasted float64
	}{
		{Span{}, 0, true, 0}, {Span{}, 7, true, 7}, {Span{From: 5}, 4.9, false, 0}, {Span{From: 5}, 5, true, 0}, {Span{From: 5}, 8, true, 3},
		{Span{From: 5, Until: 8}, 7, true, 2}, {Span{From: 5, Until: 8}, 8, false, 3}, {Span{From: 5, Until: 8}, 1e9, false, 3},
		{Span{From: 5, Until: 8, Every: 10}, 15, true, 3}, {Span{From: 5, Until: 8, Every: 10}, 14, false, 3},
		{Span{From: 5, Until: 8, Every: 10}, 37, true, 11}, {Span{From: 5, Until: 8, Every: 10}, 2, false, 0},
	} {
		if holds, lasted := c.span.holds(c.at), c.span.lasted(c.at); holds != c.holds || lasted != c.lasted {
			t.Errorf("%+v at %g: %v %g", c.span, c.at, holds, lasted)
		}
	}
}

func TestCount(t *testing.T) {
	for _, c := range []struct {
		count Count
		from  uint64
		at    float64
		want  uint64
	}{
		{count: Count{Rate: 2.5}, from: 10, at: 3, want: 17},
		{count: Count{Rate: 100, Max: 65535}, from: 65000, at: 5, want: 65500},
		{count: Count{Rate: 100, Max: 65535}, from: 65000, at: 6, want: 65535},
		{count: Count{Rate: 100, Max: 65535}, from: 65000, at: 1e9, want: 65535},
		{count: Count{Rate: 1, Max: 255, Wrap: true}, from: 254, at: 1, want: 255},
		{count: Count{Rate: 1, Max: 255, Wrap: true}, from: 254, at: 2, want: 0},
		{count: Count{Rate: 1, Max: 255, Wrap: true}, from: 254, at: 258, want: 0},
		{count: Count{Rate: 1, Wrap: true}, from: math.MaxUint64, at: 1, want: 0},
		{count: Count{Rate: 1}, from: math.MaxUint64, at: 1, want: math.MaxUint64},
		{count: Count{Rate: 1, Max: 15}, from: 99, at: 1, want: 99}, // larger than it can be: let be
		{count: Count{Rate: maxRate}, from: 0, at: maxSeconds, want: math.MaxInt64/2 + 1},
		{count: Count{Rate: 10, Swing: 1, Period: 4}, from: 0, at: 4, want: 40},
		{count: Count{Rate: 10, Swing: 1, Period: 4}, from: 0, at: 2, want: 32}, // 20 + 10 * 2 * 4 / (2 pi)
	} {
		if got := c.count.value(c.from, c.at); got != c.want {
			t.Errorf("%+v of %d after %g s: %d, want %d", c.count, c.from, c.at, got, c.want)
		}
	}
	swings := Count{Rate: 5, Swing: 1, Period: 7}
	last := uint64(0)
	for at := 0.0; at < 50; at += 0.25 {
		now := swings.value(0, at)
		if now < last {
			t.Fatalf("after %g s it goes back from %d to %d", at, last, now)
		}
		last = now
	}
}

// TestCountLeavesAlone: what is no number stays as it is.
func TestCountLeavesAlone(t *testing.T) {
	for field, texts := range map[string][]string{
		"": {"", "\n", "N/A (no PMA)\n", "-5\n", "1\n2\n", "0x5\n", "18446744073709551616\n"}, "BadTLP": {"", "5\n", "BadTLP\n", "BadTLP x\n", "Bad 1\n", "BadTLP 1 2\n"},
	} {
		c := Count{Target: Target{Op: OpRead}, Field: field, Rate: 1}
		for _, text := range texts {
			if got, _ := c.counted(textFile(text), 10).whole(); got != text {
				t.Errorf("%q of %q: %q", field, text, got)
			}
		}
		for _, a := range []FileAnswer{{Errno: "EIO"}, {Hang: true}, {Data: []Segment{{Bytes: []byte{0, 1}}}, Size: 2}, {Data: []Segment{{At: 4, Bytes: []byte("12")}}, Size: -1}} {
			if got := c.counted(&a, 10); !reflect.DeepEqual(*got, a) {
				t.Errorf("%+v: %+v", a, got)
			}
		}
	}
	for field, values := range map[string][]string{
		"": {`"5"`, `null`, `1.5`, `-1`, `{"a":1}`, `[1]`}, "a": {`{"b":1}`, `{"a":"x"}`, `[1]`, `5`}, "7": {`[1]`, `{"8":1}`}, "-1": {`[1]`},
		"name=x.value": {`[]`, `[{"name":"y","value":1}]`, `[{"name":"x"}]`, `[1,null,"x"]`, `{"name":"x","value":1}`},
	} {
		c := Count{Field: field, Rate: 1}
		for _, text := range values {
			if got := c.countedValue(&Value{JSON: []byte(text)}, 10); string(got.JSON) != text {
				t.Errorf("%q of %s: %s", field, text, got.JSON)
			}
		}
		for _, v := range []Value{{Errno: "EIO"}, {Hang: true}, {Return: 3}} {
			if got := c.countedValue(&v, 10); !reflect.DeepEqual(*got, v) {
				t.Errorf("%+v: %+v", v, got)
			}
		}
	}
	c := Count{Field: "1.a", Rate: 1}
	if got := c.countedValue(&Value{JSON: []byte(`[0,{"a":9007199254740993,"b":1.5}]`)}, 10); string(got.JSON) != `[0,{"a":9007199254741003,"b":1.5}]` {
		t.Errorf("%s", got.JSON)
	}
}

// TestMove: what readers see at several times.
func TestMove(t *testing.T) {
	p, set := clocked(moving())
	defer p.Close()
	files := p.Files()
	read := func(path string) string {
		text, err := files.ReadLines(path, 1000, nil)
		if err != nil {
			return sysread.ErrnoName(err)
		}
		return string(text)
	}
	list := func(path string) string {
		names, err := namesIn(files, path)
		return fmt.Sprint(names, err)
	}
	for _, c := range []struct {
		at   float64
		want [6]string // xmit of a and b by their links, a's errors and state, both lists
	}{
		{-5, [6]string{"1000\n", "18446744073709551610\n", "BadTLP 1\nTimeout 2\n", "4: ACTIVE\n", "[a b] <nil>", "[a b] <nil>"}},
		{0, [6]string{"1000\n", "18446744073709551610\n", "BadTLP 1\nTimeout 2\n", "4: ACTIVE\n", "[a b] <nil>", "[a b] <nil>"}},
		{1.9, [6]string{"1002\n", "18446744073709551612\n", "BadTLP 1\nTimeout 3\n", "4: ACTIVE\n", "[a b] <nil>", "[a b] <nil>"}},
		{30, [6]string{"1060\n", "18446744073709551615\n", "BadTLP 1\nTimeout 32\n", "1: DOWN\n", "[a b] <nil>", "[a b] <nil>"}},
		{45, [6]string{"1090\n", "18446744073709551615\n", "BadTLP 1\nTimeout 47\n", "4: ACTIVE\n", "[a b] <nil>", "[a b] <nil>"}},
		{100, [6]string{"1200\n", "ENOENT", "BadTLP 1\nTimeout 102\n", "1: DOWN\n", "[a] <nil>", "[a] <nil>"}},
	} {
		set(c.at)
		got := [6]string{read("/sys/class/a/xmit"), read("/sys/class/b/xmit"), read("/sys/devices/a/aer"), read("/sys/class/a/state"), list("/sys/class"), list("/sys/devices")}
		if got != c.want {
			t.Errorf("after %g s:\ngot  %q\nwant %q", c.at, got, c.want)
		}
	}
	for _, path := range []string{"/sys/devices/b", "/sys/class/b", "/sys/devices/b/xmit", "/sys/devices/b/other"} {
		if _, err := files.Stat(path); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if missing := p.Unrecorded(); len(missing) > 0 {
		t.Errorf("not recorded: %v", missing)
	}
}

// TestMoveAnswers: netlink, NVML and the prober move too.
func TestMoveAnswers(t *testing.T) {
	r := moving()
	p, set := clocked(r)
	defer p.Close()
	library, err := p.NVML()("/lib")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at      float64
		counter uint64
		replays int
		lost    nvml.Return
	}{{0, 9007199254740993, 7, nvml.SUCCESS}, {10, 9007199254741003, 12, nvml.SUCCESS}, {100, 9007199254741093, 57, nvml.ERROR_GPU_IS_LOST}} {
		set(c.at)
		counters, err := playedNetlink{p.answers}.Counters(0, 1)
		if err != nil || len(counters) != 2 || counters[0].Value != 1 || counters[1].Value != c.counter {
			t.Errorf("after %g s: %+v %v", c.at, counters, err)
		}
		device, ret := library.DeviceGetHandleByIndex(0)
		if ret != c.lost {
			t.Errorf("after %g s: %v", c.at, ret)
			continue
		}
		if ret != nvml.SUCCESS {
			continue
		}
		if replays, ret := device.GetPcieReplayCounter(); replays != c.replays || ret != nvml.SUCCESS {
			t.Errorf("after %g s: %d replays, %v", c.at, replays, ret)
		}
	}
	// The attempt was a minute old when the recording ended.
	for range 2 {
		if at := p.Prober().Pairs[0].LastAttempt; !at.Equal(time.Unix(4940, 0)) {
			t.Errorf("last attempt at %v", at)
		}
	}
	if !p.Shown(time.Time{}).IsZero() {
		t.Error("no time is shown as one")
	}
}

// TestAt: the recording of a moment says what the player says.
func TestAt(t *testing.T) {
	r := moving()
	at := r.At(100 * time.Second)
	if at.Scenario != nil || len(at.Files) != len(r.Files)-2 || len(at.Answers) != len(r.Answers) {
		t.Fatalf("%d files, %d answers", len(at.Files), len(at.Answers))
	}
	var text bytes.Buffer
	if err := at.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"text":"1200\n"`, `"text":"1: DOWN\n"`, `"path":"/sys/class","op":"list","names":["a"]`, `"ask":"device 0 GetPcieReplayCounter","value":57`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %s", want)
		}
	}
	standing := moving()
	standing.Scenario = nil
	if at := standing.At(time.Hour); !reflect.DeepEqual(at, standing) {
		t.Error("without a scenario it moves")
	}
	if !reflect.DeepEqual(r, moving()) {
		t.Error("the recording was changed")
	}
}

// TestPlayStands: Play does not follow the scenario, nor shift times.
func TestPlayStands(t *testing.T) {
	p := Play(moving())
	defer p.Close()
	if text, err := p.Files().ReadLines("/sys/devices/b/xmit", 100, nil); err != nil || string(text) != "18446744073709551610\n" {
		t.Errorf("%q %v", text, err)
	}
	if at := p.Prober().Pairs[0].LastAttempt; !at.Equal(time.Unix(1000, 0)) {
		t.Errorf("last attempt at %v", at)
	}
}

// TestMoveConcurrently has many read while time passes: each reads one moment.
func TestMoveConcurrently(t *testing.T) {
	p := Move(moving(), nil)
	defer p.Close()
	p.files.movie.elapsed = func() float64 { return float64(time.Now().UnixMicro() % 200) }
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 300 {
				if text, err := p.Files().ReadLines("/sys/devices/a/xmit", 100, nil); err != nil || len(text) != 5 {
					t.Errorf("%q %v", text, err)
				}
				if _, err := namesIn(p.Files(), "/sys/class"); err != nil {
					t.Error(err)
				}
				p.Prober()
			}
		})
	}
	group.Wait()
}

func TestOver(t *testing.T) {
	base := moving()
	changed := moving()
	changed.Files = append(changed.Files, counterFile("/sys/new", "1\n"))
	changed.Files[4].Last = *textFile("BadTLP 9\n")
	changed.Answers[0].Last = Value{Errno: "EPERM"}
	changed.Scenario = nil
	d := changed.Differences(base, "base")
	if len(d.Files) != 2 || len(d.Answers) != 1 || d.Header.Base != "base" {
		t.Fatalf("%+v", d)
	}
	var text bytes.Buffer
	if err := d.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	over, err := ReadOver(bytes.NewReader(text.Bytes()), func(name string) (*Recording, error) {
		if name != "base" {
			t.Errorf("base %q", name)
		}
		return base, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	changed.Scenario = base.Scenario // it has none of its own
	if !reflect.DeepEqual(over, changed) {
		t.Errorf("got %+v\nwant %+v", over, changed)
	}
	if _, err := Read(bytes.NewReader(text.Bytes())); !errors.Is(err, ErrInvalid) {
		t.Errorf("without its base: %v", err)
	}
	refused := errors.New("refused")
	for name, base := range map[string]func(string) (*Recording, error){
		"refused": func(string) (*Recording, error) { return nil, refused },
		"a chain": func(string) (*Recording, error) { return d, nil },
	} {
		if r, err := ReadOver(bytes.NewReader(text.Bytes()), base); !errors.Is(err, ErrInvalid) || r != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzScenario reads any line as a scenario, and plays what is accepted.
func FuzzScenario(f *testing.F) {
	var text bytes.Buffer
	if err := moving().WriteText(&text); err != nil {
		f.Fatal(err)
	}
	f.Add(strings.SplitN(text.String(), "\n", 3)[1], 100.0)
	f.Add(`{"scenario":1,"counts":[{"path":"/sys/*/*/*","op":"read","rate":1e15,"max":1,"wrap":true}]}`, 1e18)
	f.Add(`{"scenario":1,"changes":[{"path":"/sys","gone":true},{"path":"/sys/class","op":"list","to":{"names":["a"]}}]}`, 1.0)
	f.Fuzz(func(t *testing.T, line string, at float64) {
		s, err := readScenario([]byte(line))
		if err != nil {
			return
		}
		again, err := json.Marshal(s.text())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readScenario(again); err != nil {
			t.Fatalf("%s, written as %s: %v", line, again, err)
		}
		r := moving()
		r.Scenario = s
		p := Move(r, nil)
		defer p.Close()
		p.files.movie.elapsed = func() float64 { return at }
		for _, file := range r.Files {
			answer := p.files.get(file.Path, file.Op)
			if answer == nil || answer.Hang {
				continue
			}
			if err := answer.validate(file.Op); err != nil {
				t.Fatalf("%s after %g s: %s of %s is %+v: %v", line, at, file.Op, file.Path, answer, err)
			}
		}
		for _, a := range r.Answers {
			value := p.answers.get(answerKey{a.Part, a.Question})
			if err := value.validate(a.Part); err != nil {
				t.Fatalf("%s after %g s: %s is %+v: %v", line, at, a.Question, value, err)
			}
		}
	})
}

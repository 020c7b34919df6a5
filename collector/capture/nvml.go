package capture

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gdr_exporter/gpu"
	"gdr_exporter/gpu/tape"
)

// Questions of NVML are the tape's: "DeviceGetCount" of the library, "device 0
// GetUUID" of a device; beside them "symbol nvmlInit_v2", which functions the
// library has, and "open PATH", which could be loaded.
const (
	questionSymbol = "symbol "
	questionDevice = "device "
	questionOpen   = "open "
)

// maxDevices bounds the devices of a tape.
const maxDevices = 1024

// opener opens an NVML library, as gpu.Options.Open does.
type opener = func(path string) (gpu.Library, error)

// nvmlRecorder records the library that a reader opens.
type nvmlRecorder struct {
	answers *answerRecorder

	mu   sync.Mutex
	tape *tape.Tape // of the library opened last
}

func (r *nvmlRecorder) open(open opener) opener {
	return func(path string) (gpu.Library, error) {
		var library gpu.Library
		if _, err := ask(r.answers, PartNVML, questionOpen+path, func() (loaded bool, err error) {
			library, err = open(path)
			return true, err
		}); err != nil {
			return nil, err
		}
		recorded, t := tape.Record(library)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.tape = t
		return recorded, nil
	}
}

// recorded returns what is on the tape as answers.
func (r *nvmlRecorder) recorded() []Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tape == nil {
		return nil
	}
	t := r.tape.Copy()
	var answers []Answer
	for name, exists := range t.Symbols {
		value := json.RawMessage(strconv.FormatBool(exists))
		answers = append(answers, Answer{Part: PartNVML, Question: questionSymbol + name, Last: Value{JSON: value}})
	}
	add := func(prefix string, all tape.Answers) {
		for question, a := range all {
			answer := Answer{Part: PartNVML, Question: prefix + question, Last: valueOf(a)}
			if first, differs := a.First(); differs {
				value := valueOf(first)
				answer.First = &value
			}
			answers = append(answers, answer)
		}
	}
	add("", t.Library)
	for i, device := range t.Devices {
		add(fmt.Sprint(questionDevice, i, " "), device)
	}
	return answers
}

// valueOf is an answer of the tape.
func valueOf(a tape.Answer) Value {
	return Value{Return: int(a.Return), Hang: a.Hang, JSON: a.Value}
}

// onTape is the reverse of valueOf.
func onTape(v *Value) tape.Answer {
	return tape.Answer{Return: tape.Return(v.Return), Hang: v.Hang, Value: v.JSON}
}

// tapeOf puts a recording's answers together to a tape.
func tapeOf(answers []Answer) *tape.Tape {
	t := &tape.Tape{Symbols: map[string]bool{}, Library: tape.Answers{}}
	for i := range answers {
		a := &answers[i]
		if a.Part != PartNVML || strings.HasPrefix(a.Question, questionOpen) {
			continue
		}
		answer := onTape(&a.Last)
		if name, is := strings.CutPrefix(a.Question, questionSymbol); is {
			t.Symbols[name] = string(a.Last.JSON) == "true"
			continue
		}
		device, question, is := deviceQuestion(a.Question)
		if !is {
			t.Library[a.Question] = answer
			continue
		}
		if device >= maxDevices {
			continue // of no device that can be asked for
		}
		for len(t.Devices) <= device {
			t.Devices = append(t.Devices, tape.Answers{})
		}
		t.Devices[device][question] = answer
	}
	return t
}

// deviceQuestion takes a question about a device apart. The number of one that
// cannot be asked for is maxDevices.
func deviceQuestion(asked string) (device int, question string, is bool) {
	rest, is := strings.CutPrefix(asked, questionDevice)
	if !is {
		return 0, "", false
	}
	number, question, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n >= maxDevices {
		return maxDevices, question, true
	}
	return int(n), question, true
}

// changedTape returns a tape with other answers to some of its questions.
func changedTape(t *tape.Tape, answers map[answerKey]*Value) *tape.Tape {
	changed := &tape.Tape{Symbols: t.Symbols, Library: maps.Clone(t.Library), Devices: slices.Clone(t.Devices)}
	cloned := map[int]bool{}
	for key, v := range answers {
		if key.part != PartNVML {
			continue
		}
		answer := onTape(v)
		device, question, is := deviceQuestion(key.question)
		switch {
		case !is:
			changed.Library[key.question] = answer
		case device < len(changed.Devices):
			if !cloned[device] {
				changed.Devices[device], cloned[device] = maps.Clone(t.Devices[device]), true
			}
			changed.Devices[device][question] = answer
		}
	}
	return changed
}

// nvmlPlayer answers from a recording.
type nvmlPlayer struct {
	answers *answerPlayer
	player  *tape.Player
}

func (p *nvmlPlayer) open(path string) (gpu.Library, error) {
	if _, err := answer[bool](p.answers, PartNVML, questionOpen+path); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	return p.player, nil
}

package tape

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Tape is what the NVML of a machine answered. It keeps the last answer to every
// question, so that questions may be asked again in another order.
type Tape struct {
	// Symbols are the functions that were looked up, and whether they exist.
	Symbols map[string]bool `json:"symbols"`
	// Library are the answers about the machine.
	Library Answers `json:"library"`
	// Devices are the answers about each device that a handle was got of.
	Devices []Answers `json:"devices"`

	mu         sync.Mutex
	unanswered map[call]int // calls that have not returned, while it is recorded
}

// call is a call of the library, or about one of the tape's devices.
type call struct {
	device   int // library for none
	question string
}

// library is the number of no device.
const library = -1

// Return is a return code of NVML, 0 for success.
type Return = nvml.Return

// Answers are answers by question, such as GetNvLinkState(3).
type Answers map[string]Answer

// Answer is what a call returned.
type Answer struct {
	Return nvml.Return     `json:"return,omitempty"`
	Value  json.RawMessage `json:"value,omitempty"`
	// Hang: the call had not returned when the tape was copied. There is neither a
	// code nor a value then.
	Hang bool `json:"hang,omitempty"`

	first *Answer // to the same question; nil if this is the first one
}

// First returns the first answer to the question; false if there has been no
// other since.
func (a *Answer) First() (Answer, bool) {
	if a.first == nil || a.first.Hang == a.Hang && a.first.Return == a.Return && bytes.Equal(a.first.Value, a.Value) {
		return Answer{}, false
	}
	return *a.first, true
}

// newTape returns an empty tape.
func newTape() *Tape {
	return &Tape{Symbols: map[string]bool{}, Library: Answers{}, unanswered: map[call]int{}}
}

// Parse reads a tape from JSON.
func Parse(text []byte) (*Tape, error) {
	t := newTape()
	if err := json.Unmarshal(text, t); err != nil {
		return nil, fmt.Errorf("tape: %w", err)
	}
	return t, nil
}

// JSON returns the tape as indented JSON, the same for the same answers.
func (t *Tape) JSON() ([]byte, error) {
	text, err := json.MarshalIndent(t.Copy(), "", " ")
	return append(text, '\n'), err
}

// Copy returns the tape as it is now. A call that has not returned is on it as one
// that hangs.
func (t *Tape) Copy() *Tape {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := &Tape{Symbols: maps.Clone(t.Symbols), Library: maps.Clone(t.Library)}
	for _, device := range t.Devices {
		c.Devices = append(c.Devices, maps.Clone(device))
	}
	for asked := range t.unanswered {
		answers := c.Library
		if asked.device != library {
			answers = c.Devices[asked.device]
		}
		put(answers, asked.question, Answer{Hang: true})
	}
	return c
}

// asking says that a call has begun; what it returns is called once the call has
// returned.
func (t *Tape) asking(device int, question string) (answered func()) {
	asked := call{device, question}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unanswered[asked]++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.unanswered[asked]--; t.unanswered[asked] == 0 {
			delete(t.unanswered, asked)
		}
	}
}

// question names a call and its arguments.
func question(method string, args ...int) string {
	if len(args) == 0 {
		return method
	}
	text := method + "("
	for i, arg := range args {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprint(arg)
	}
	return text + ")"
}

// keep keeps an answer and passes it on.
func keep[T any](t *Tape, answers Answers, question string, value T, ret nvml.Return) (T, nvml.Return) {
	note(t, answers, question, value, ret)
	return value, ret
}

// note keeps an answer. A value that did not come is not kept.
func note[T any](t *Tape, answers Answers, question string, value T, ret nvml.Return) {
	answer := Answer{Return: ret}
	if ret == nvml.SUCCESS {
		if text, err := json.Marshal(value); err == nil { // plain values marshal
			answer.Value = text
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	put(answers, question, answer)
}

// put makes an answer the last one to a question.
func put(answers Answers, question string, answer Answer) {
	if before, asked := answers[question]; asked {
		answer.first = before.first
		if before.first == nil {
			answer.first = &before
		}
	}
	answers[question] = answer
}

var (
	uuids  = regexp.MustCompile(`GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	pseudo = "GPU-00000000-0000-4000-8000-%012d"
)

// Anonymise replaces what identifies the machine: GPU and cluster UUIDs, in
// the order in which they first appear, and process ids.
func (t *Tape) Anonymise() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := map[string]string{}
	clusters := map[string]string{zeroCluster: zeroCluster}
	for _, answers := range t.Devices {
		if uuid, found := answers["GetUUID"]; found {
			uuid.Value = uuids.ReplaceAllFunc(uuid.Value, func(name []byte) []byte {
				if names[string(name)] == "" {
					names[string(name)] = fmt.Sprintf(pseudo, len(names)+1)
				}
				return []byte(names[string(name)])
			})
			answers["GetUUID"] = uuid
		}
		for _, question := range []string{"GetGpuFabricInfo", "GetGpuFabricInfoV2", "GetGpuFabricInfoV3"} {
			if err := rewrite(answers, question, func(f *fabricInfo) {
				if clusters[f.ClusterUUID] == "" {
					clusters[f.ClusterUUID] = fmt.Sprintf("00000000000040008000%012d", len(clusters))
				}
				f.ClusterUUID = clusters[f.ClusterUUID]
			}); err != nil {
				return err
			}
		}
		if err := rewrite(answers, "GetComputeRunningProcesses", func(list *[]nvml.ProcessInfo) {
			for i := range *list {
				(*list)[i].Pid = uint32(i + 1)
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// rewrite changes the value of an answer, if there is one.
func rewrite[T any](answers Answers, question string, change func(*T)) error {
	answer := answers[question]
	if len(answer.Value) == 0 {
		return nil
	}
	var value T
	if err := json.Unmarshal(answer.Value, &value); err != nil {
		return fmt.Errorf("%s: %w", question, err)
	}
	change(&value)
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	answer.Value = text
	answers[question] = answer
	return nil
}

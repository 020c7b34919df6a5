package capture

import (
	"encoding/hex"
	"fmt"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/devlink"
	"gdr_exporter/rdma/netdev"
)

// recordedKernel records what is asked of the kernel about netdevs. Questions
// are a method's name and the interface's: "StatNames eth0".
type recordedKernel struct {
	netdev.Kernel
	answers *answerRecorder
}

func (k *recordedKernel) Index(name string) (int, error) {
	return ask(k.answers, PartNetdev, "Index "+name, func() (int, error) { return k.Kernel.Index(name) })
}

func (k *recordedKernel) Address(name string) (string, error) {
	return ask(k.answers, PartNetdev, "Address "+name, func() (string, error) { return k.Kernel.Address(name) })
}

func (k *recordedKernel) StatCount(name string) (int, error) {
	return ask(k.answers, PartNetdev, "StatCount "+name, func() (int, error) { return k.Kernel.StatCount(name) })
}

func (k *recordedKernel) StatNames(name string, count int) ([]string, error) {
	return ask(k.answers, PartNetdev, "StatNames "+name, func() ([]string, error) { return k.Kernel.StatNames(name, count) })
}

func (k *recordedKernel) Stats(name string, values []uint64) error {
	_, err := ask(k.answers, PartNetdev, "Stats "+name, func() ([]uint64, error) { return values, k.Kernel.Stats(name, values) })
	return err
}

// DCB keeps what the reader looks at, in hexadecimal.
func (k *recordedKernel) DCB(name string) (body []byte, err error) {
	_, err = ask(k.answers, PartNetdev, "DCB "+name, func() (string, error) {
		body, err = k.Kernel.DCB(name)
		return hex.EncodeToString(netdev.TrimDCB(body)), err
	})
	return body, err
}

// playedKernel answers from a recording.
type playedKernel struct{ answers *answerPlayer }

func (playedKernel) Close() {}

func (k playedKernel) Index(name string) (int, error) {
	return answer[int](k.answers, PartNetdev, "Index "+name)
}

func (k playedKernel) Address(name string) (string, error) {
	return answer[string](k.answers, PartNetdev, "Address "+name)
}

func (k playedKernel) StatCount(name string) (int, error) {
	return answer[int](k.answers, PartNetdev, "StatCount "+name)
}

func (k playedKernel) StatNames(name string, count int) ([]string, error) {
	names, err := answer[[]string](k.answers, PartNetdev, "StatNames "+name)
	if err == nil && len(names) != count {
		return nil, fmt.Errorf("%w: %d names of statistics, not %d", sysread.ErrInvalid, len(names), count)
	}
	return names, err
}

func (k playedKernel) Stats(name string, values []uint64) error {
	kept, err := answer[[]uint64](k.answers, PartNetdev, "Stats "+name)
	if err == nil && len(kept) != len(values) {
		return fmt.Errorf("%w: %d statistics, not %d", sysread.ErrInvalid, len(kept), len(values))
	}
	copy(values, kept)
	return err
}

func (k playedKernel) DCB(name string) ([]byte, error) {
	text, err := answer[string](k.answers, PartNetdev, "DCB "+name)
	if err != nil {
		return nil, err
	}
	body, err := hex.DecodeString(text)
	if err != nil {
		return nil, sysread.Invalid(text)
	}
	return body, nil
}

// reporter is devlink.Reporter in a recording.
type reporter struct {
	Bus        string     `json:"bus"`
	Device     string     `json:"device"`
	Port       *uint64    `json:"port,omitempty"`
	Name       string     `json:"name"`
	State      *int       `json:"state,omitempty"`
	Errors     *uint64    `json:"errors,omitempty"`
	Recoveries *uint64    `json:"recoveries,omitempty"`
	LastDump   *time.Time `json:"last_dump,omitempty"`
}

const questionReporters = "HEALTH_REPORTER_GET"

// recordDevlink records what the connections that dial opens answer.
func recordDevlink(r *answerRecorder, dial func() (devlink.Conn, error)) func() (devlink.Conn, error) {
	return func() (devlink.Conn, error) {
		conn, err := dial()
		note(r, answerKey{PartDevlink, questionDial}, true, err)
		if err != nil {
			return nil, err
		}
		return &recordedDevlink{conn, r}, nil
	}
}

type recordedDevlink struct {
	devlink.Conn
	answers *answerRecorder
}

// Reporters keeps the reporters that the reader takes from the messages.
func (d *recordedDevlink) Reporters(deadline time.Time) (messages [][]byte, err error) {
	_, err = ask(d.answers, PartDevlink, questionReporters, func() ([]reporter, error) {
		messages, err = d.Conn.Reporters(deadline)
		kept := []reporter{}
		for _, body := range messages {
			if r, is := devlink.Decode(body); is {
				kept = append(kept, reporter{r.Bus, r.Device, pointer(r.Port), r.Name, pointer(r.State), pointer(r.Errors), pointer(r.Recoveries), pointer(r.LastDump)})
			}
		}
		return kept, err
	})
	return messages, err
}

// playedDevlink answers from a recording.
type playedDevlink struct {
	answers *answerPlayer
	shown   func(time.Time) time.Time // see Player.Shown
}

func (d playedDevlink) dial() (devlink.Conn, error) {
	if _, err := answer[bool](d.answers, PartDevlink, questionDial); err != nil {
		return nil, fmt.Errorf("devlink: %w", err)
	}
	return d, nil
}

func (playedDevlink) Close() {}

func (d playedDevlink) Reporters(time.Time) ([][]byte, error) {
	kept, err := answer[[]reporter](d.answers, PartDevlink, questionReporters)
	messages := make([][]byte, 0, len(kept))
	for i := range kept {
		r := &kept[i]
		if r.LastDump != nil {
			*r.LastDump = d.shown(*r.LastDump)
		}
		messages = append(messages, devlink.Encode(&devlink.Reporter{
			Bus: r.Bus, Device: r.Device, Port: maybe(r.Port), Name: r.Name,
			State: maybe(r.State), Errors: maybe(r.Errors), Recoveries: maybe(r.Recoveries), LastDump: maybe(r.LastDump),
		}))
	}
	return messages, err
}

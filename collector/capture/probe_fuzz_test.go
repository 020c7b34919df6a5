package capture

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"gdr_exporter/rdma/loopback/prober"
)

// FuzzProbe: whatever a recording has as the prober's results and as the ledger,
// they are played or left out; and results that are played can be recorded again.
func FuzzProbe(f *testing.F) {
	results, err := json.Marshal(NewProberStatus(&prober.Status{
		Interval: time.Hour, Pairs: []prober.PairStatus{{Candidate: prober.Candidate{Distance: "PIX"}, Full: &prober.Completed{Depth: prober.DepthFull}}},
		Runs: map[prober.RunKind]uint64{{Depth: prober.DepthFull, Result: prober.RunFine}: 1},
	}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(results), `{"version":1,"transferred_bytes":{},"gpus":{}}`)
	f.Add(`{"pairs":[{"full":null,"last_success":{"full":"2027-01-15T08:00:00Z"}}],"runs":[{},{}]}`, `null`)
	f.Fuzz(func(t *testing.T, results, ledger string) {
		recording := &Recording{Header: sample().Header}
		for question, text := range map[string]string{QuestionProber: results, QuestionLedger: ledger} {
			if json.Valid([]byte(text)) {
				recording.Answers = append(recording.Answers, Answer{Part: PartProbe, Question: question, Last: Value{JSON: json.RawMessage(text)}})
			}
		}
		recording.sort()
		p := Move(recording, nil)
		defer p.Close()
		if ledger, err := p.Ledger(); err != nil && (len(ledger.Transferred) > 0 || len(ledger.GPUs) > 0) {
			t.Errorf("%v, and %+v", err, ledger)
		}
		status := Play(recording).Prober()
		if status == nil {
			return
		}
		text, err := json.Marshal(NewProberStatus(status))
		if err != nil {
			t.Fatal(err)
		}
		var read ProberStatus
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if again, err := json.Marshal(NewProberStatus(read.Status())); err != nil || !reflect.DeepEqual(again, text) {
			t.Errorf("%s becomes %s, %v", text, again, err)
		}
		_ = p.Prober() // with its times moved
	})
}

// FuzzOver: a recording laid over another one is a valid one or an error.
func FuzzOver(f *testing.F) {
	f.Add(`{"path":"/sys/counter","op":"read","text":"3\n"}`)
	f.Add(`{"path":"/sys/a","op":"list","names":["b"]}`)
	f.Add(`{"part":"nvml","ask":"device 0 GetUUID","hang":true}`)
	f.Fuzz(func(t *testing.T, line string) {
		h := `{"gdr_exporter_capture":1,"base":"sample","began":"2027-01-15T08:00:00Z","ended":"2027-01-15T08:00:02Z","readers":{"sysfs":"/sys","procfs":"/proc"}}` + "\n"
		base := func(string) (*Recording, error) { return sample(), nil }
		over, err := ReadOver(bytes.NewReader([]byte(h+line+"\n"+`{"lines":1}`+"\n")), base)
		if err != nil {
			return
		}
		again(t, over)
		p := Play(over)
		p.Close()
		playAll(p, over)
	})
}

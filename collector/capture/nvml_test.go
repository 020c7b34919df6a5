package capture

import (
	"testing"
	"time"

	"gdr_exporter/gpu"
	"gdr_exporter/gpu/gputest"
)

// TestNVMLFirstAndLast: of what changed between two reads, and of nothing else,
// the recording has both answers, and the last one is played.
func TestNVMLFirstAndLast(t *testing.T) {
	machine := gputest.H100NVL()
	recorder := NewRecorder(nil, Header{}, nil)
	reader := gpu.NewReader(gpu.Options{Open: recorder.NVML(machine.Open)})
	now := time.Unix(1_800_000_000, 0)
	reader.Read(now)
	machine.Change(func() { machine.GPUs[1].Replays = 7 })
	for range 2 {
		now = now.Add(time.Minute)
		reader.Read(now)
	}
	reader.Close()
	recording := again(t, recorder.Recording())
	changed := 0
	for _, a := range recording.Answers {
		if a.First == nil {
			continue
		}
		changed++
		if a.Question != "device 1 GetPcieReplayCounter" || string(a.First.JSON) != "0" || string(a.Last.JSON) != "7" {
			t.Errorf("%s: first %s, last %s", a.Question, a.First.JSON, a.Last.JSON)
		}
	}
	if changed != 1 {
		t.Errorf("%d answers changed", changed)
	}
	player := Play(recording)
	played := gpu.NewReader(gpu.Options{Open: player.NVML()})
	reading, errs := played.Read(now)
	if len(errs) > 0 || len(reading.GPUs) != 2 || reading.GPUs[1].PCIe.Replays.Value != 7 {
		t.Errorf("%+v, %v", reading, errs)
	}
	if missing := player.Unrecorded(); len(missing) > 0 {
		t.Errorf("not recorded: %v", missing)
	}
}

// TestHostileTape: whatever the names of questions, no tape grows by them.
func TestHostileTape(t *testing.T) {
	value := Value{JSON: []byte("1")}
	tape := tapeOf([]Answer{
		{Part: PartNVML, Question: "device 4294967295 GetUUID", Last: value}, {Part: PartNVML, Question: "device -1 GetUUID", Last: value},
		{Part: PartNVML, Question: "device x", Last: value}, {Part: PartNVML, Question: "device 1024 GetUUID", Last: value}, {Part: PartNetlink, Question: "GET", Last: value},
		{Part: PartNVML, Question: "device 1 GetUUID", Last: value}, {Part: PartNVML, Question: "symbol nvmlInit", Last: value},
	})
	if len(tape.Devices) != 2 || len(tape.Library) != 0 || len(tape.Symbols) != 1 || tape.Symbols["nvmlInit"] {
		t.Errorf("%+v", tape)
	}
}

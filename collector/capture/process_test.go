package capture

import (
	"bytes"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"gdr_exporter/collector/process"
	"gdr_exporter/rdma/nldev"
)

// TestEarlierContexts: recordings of earlier versions have the number alone, and do
// not know whose they are.
func TestEarlierContexts(t *testing.T) {
	answers := []Answer{
		{Part: PartNetlink, Question: "dial", Last: Value{JSON: []byte("true")}},
		{Part: PartNetlink, Question: "RES_CTX_GET 0", Last: Value{JSON: []byte("7")}},
		{Part: PartNetlink, Question: "RES_CTX_GET 1", Last: Value{JSON: []byte(`"x"`)}},
		{Part: PartNetlink, Question: "RES_CTX_GET 2", Last: Value{JSON: []byte(`{"contexts":2,"owners":[{"pid":9,"contexts":1},{"pid":4,"contexts":1}],"omitted":{"contexts":3}}`)}},
		{Part: PartNetlink, Question: "RES_MR_GET 0", Last: Value{JSON: []byte(`{"regions":3,"bytes":5}`)}},
	}
	conn, err := Play(&Recording{Answers: answers}).Netlink()()
	if err != nil {
		t.Fatal(err)
	}
	if contexts, err := conn.Contexts(0); err != nil || contexts != (nldev.Contexts{Total: 7}) {
		t.Errorf("%+v, %v", contexts, err)
	}
	if memory, err := conn.Memory(0); err != nil || memory != (nldev.Memory{Regions: 3, Bytes: 5}) {
		t.Errorf("%+v, %v", memory, err)
	}
	if contexts, err := conn.Contexts(1); err == nil {
		t.Errorf("%+v", contexts)
	}
	contexts, err := conn.Contexts(2)
	if want := (nldev.Owners{Processes: []nldev.Owner{{PID: 4, Contexts: 1}, {PID: 9, Contexts: 1}}, Omitted: nldev.Owner{Contexts: 3}}); err != nil || contexts.Total != 2 || !reflect.DeepEqual(*contexts.Owners, want) {
		t.Errorf("%+v, %v", contexts, err)
	}
}

// TestAnonymousIDs: ids of processes become small numbers, the same in all parts.
func TestAnonymousIDs(t *testing.T) {
	value := func(part, question, text string) Answer {
		return Answer{Part: part, Question: question, Last: Value{JSON: []byte(text)}}
	}
	recording := &Recording{Answers: []Answer{
		value(PartNetlink, "RES_CTX_GET 0", `{"contexts":2,"owners":[{"pid":48211,"contexts":1},{"pid":48213,"contexts":1}]}`),
		value(PartNetlink, "RES_MR_GET 0", `{"regions":2,"bytes":48211,"owners":[{"pid":48213,"regions":2,"bytes":48211}],"omitted":{"regions":1}}`),
		value(PartNVML, "device 0 GetComputeRunningProcesses", `[{"Pid":48213,"UsedGpuMemory":5},{"Pid":0,"UsedGpuMemory":6},{"Pid":48299,"UsedGpuMemory":7}]`),
		value(PartProcess, "ENVIRON 48213", `{"variables":{"NCCL_NET":"IB"},"others":["NCCL_DEBUG"],"omitted":2}`),
		value(PartProcess, "STAT 48213", `{"start":99}`),
		value(PartProcess, "VISIBLE", `true`),
	}}
	recording.sort()
	anonymous, contents := Anonymise(recording, testKey(1), nil)
	if len(contents.Unclassed)+len(contents.Dropped) > 0 || contents.Pseudonyms["process id"] != 3 {
		t.Errorf("%+v", contents)
	}
	var text bytes.Buffer
	if err := anonymous.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"ask":"RES_CTX_GET 0","value":{"contexts":2,"owners":[{"contexts":1,"pid":1},{"contexts":1,"pid":2}]}`,
		`"value":{"bytes":48211,"omitted":{"regions":1},"owners":[{"bytes":48211,"pid":2,"regions":2}],"regions":2}`,
		`[{"Pid":2,"UsedGpuMemory":5},{"Pid":0,"UsedGpuMemory":6},{"Pid":3,"UsedGpuMemory":7}]`,
		`"ask":"ENVIRON 2","value":{"variables":{"NCCL_NET":"IB"},"others":["NCCL_DEBUG"],"omitted":2}`, `"ask":"STAT 2","value":{"start":99}`, `"ask":"VISIBLE"`,
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("there is no %s in %s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "482") && strings.Count(text.String(), "48211") != 2 { // as bytes only
		t.Error("an id is left")
	}
}

// failingProcesses answer with an error.
type failingProcesses struct{ err error }

func (p failingProcesses) Visible() (bool, error)         { return false, p.err }
func (p failingProcesses) Stat(int) (process.Stat, error) { return process.Stat{}, p.err }
func (p failingProcesses) Memlock(int) (uint64, error)    { return 0, p.err }
func (p failingProcesses) Environment(int) (process.Environment, error) {
	return process.Environment{}, p.err
}
func (p failingProcesses) Libraries(int) (process.Libraries, error) {
	return process.Libraries{}, p.err
}

// TestProcessErrors: that something may not be read, or is gone, is played too.
func TestProcessErrors(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EACCES, syscall.ESRCH, syscall.ENOENT} {
		recorder := NewRecorder(nil, Header{}, nil)
		recorded := recorder.Process(failingProcesses{errno})
		ask := func(kernel process.Kernel) []error {
			_, visible := kernel.Visible()
			_, stat := kernel.Stat(7)
			_, environment := kernel.Environment(7)
			_, memlock := kernel.Memlock(7)
			_, libraries := kernel.Libraries(7)
			return []error{visible, stat, environment, memlock, libraries}
		}
		ask(recorded)
		for i, err := range ask(Play(again(t, recorder.Recording())).Process()) {
			if err == nil || errnoName(err) != errnoName(errno) {
				t.Errorf("%v: question %d gives %v", errno, i, err)
			}
		}
	}
	if Play(&Recording{}).Process() != nil {
		t.Error("processes were not looked at, and are played")
	}
}

// TestUnnamedBuffers: of dma-bufs the devices stay, and the names that processes gave
// them do not.
func TestUnnamedBuffers(t *testing.T) {
	recording := &Recording{Files: []File{contentOf("/sys/kernel/debug/dma_buf/bufinfo",
		"Dma-buf Objects:\n02097152\t00080002\t00080007\t00000002\tnvidia\t00021003\tof-alice\n\tAttached Devices:\n\t0000:18:00.0\n")}}
	recording.Files[0].Op = OpLines
	anonymous, contents := Anonymise(recording, testKey(1), nil)
	if len(contents.Unclassed)+len(contents.Dropped) > 0 {
		t.Errorf("%+v", contents)
	}
	want := "Dma-buf Objects:\n02097152\t00080002\t00080007\t00000002\tnvidia\n\tAttached Devices:\n\t0000:18:00.0\n"
	if got := string(anonymous.Files[0].Last.Data[0].Bytes); got != want {
		t.Errorf("%q", got)
	}
}

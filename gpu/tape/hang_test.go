package tape_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/gpu"
	"gdr_exporter/gpu/gputest"
	"gdr_exporter/gpu/tape"
)

// hanging records a machine on which one GPU's calls of a C function do not return
// until free is called. The read that waits for them is over when it returns.
func hanging(t *testing.T, function string, asked func(gpu.Device)) (kept *tape.Tape, free func()) {
	t.Helper()
	m := gputest.H100NVL()
	called, release, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once sync.Once
	m.Gate = func(call, busID string) {
		if call == function && busID == m.GPUs[1].BusID {
			once.Do(func() { close(called) })
			<-release
		}
	}
	library, kept := tape.Record(m.Library())
	if ret := library.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	device, ret := library.DeviceGetHandleByIndex(1)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	go func() {
		defer close(returned)
		asked(device)
	}()
	select {
	case <-called:
	case <-time.After(10 * time.Second):
		t.Fatal(function, " is not called")
	}
	return kept, sync.OnceFunc(func() {
		close(release)
		<-returned
	})
}

// TestHang: a call that has not returned is on the tape as one that hangs, one
// that has returned since is not; and it hangs again when it is played, until the
// player is closed.
func TestHang(t *testing.T) {
	for question, c := range map[string]struct {
		function string
		asked    func(gpu.Device) nvml.Return
	}{
		"GetUUID": {"nvmlDeviceGetUUID", func(d gpu.Device) nvml.Return { _, ret := d.GetUUID(); return ret }},
		"GetNvLinkState(2)": {"nvmlDeviceGetNvLinkState", func(d gpu.Device) nvml.Return {
			_, ret := d.GetNvLinkState(2)
			return ret
		}},
		"GetFieldValues": {"nvmlDeviceGetFieldValues", func(d gpu.Device) nvml.Return {
			return d.GetFieldValues([]nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_LINK_COUNT}})
		}},
	} {
		t.Run(question, func(t *testing.T) {
			kept, free := hanging(t, c.function, func(d gpu.Device) { c.asked(d) })
			defer free()
			text, err := kept.JSON()
			if err != nil {
				t.Fatal(err)
			}
			free()
			if text, err := kept.JSON(); err != nil || strings.Contains(string(text), `"hang"`) {
				t.Errorf("it has returned: %s, %v", text, err)
			}
			played, err := tape.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			if answer := played.Devices[0][question]; !answer.Hang || answer.Return != 0 || answer.Value != nil {
				t.Fatalf("%+v", answer)
			}
			playHang(t, tape.Play(played), c.asked)
		})
	}
}

// playHang expects a call of the second GPU to return when the player is closed.
func playHang(t *testing.T, player *tape.Player, asked func(gpu.Device) nvml.Return) {
	t.Helper()
	defer player.Close()
	device, ret := player.DeviceGetHandleByIndex(1)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	returned := make(chan nvml.Return)
	go func() { returned <- asked(device) }()
	select {
	case ret := <-returned:
		t.Fatal("it returned ", ret)
	case <-time.After(50 * time.Millisecond):
	}
	player.Close()
	player.Close() // once more is no matter
	select {
	case ret := <-returned:
		if ret != nvml.ERROR_TIMEOUT {
			t.Errorf("it returned %v", ret)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it does not return")
	}
	if ret := asked(device); ret != nvml.ERROR_TIMEOUT {
		t.Errorf("once closed it returned %v", ret)
	}
}

// TestHangLater: a call that was answered before it hung has both answers.
func TestHangLater(t *testing.T) {
	m := gputest.H100NVL()
	library, kept := tape.Record(m.Library())
	if ret := library.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	device, ret := library.DeviceGetHandleByIndex(0)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	device.GetUUID()
	called, release := make(chan struct{}), make(chan struct{})
	m.Change(func() {
		m.Gate = func(string, string) { close(called); <-release }
	})
	returned := make(chan struct{})
	go func() { defer close(returned); device.GetUUID() }()
	<-called
	answer := kept.Copy().Devices[0]["GetUUID"]
	close(release)
	<-returned
	first, differs := answer.First()
	if !answer.Hang || !differs || first.Hang || len(first.Value) == 0 {
		t.Errorf("%+v, at first %+v", answer, first)
	}
	after := kept.Copy().Devices[0]["GetUUID"]
	if _, differs := after.First(); after.Hang || differs || string(after.Value) != string(first.Value) {
		t.Errorf("then %+v", after)
	}
}

package gpu_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/gpu"
	"gdr_exporter/gpu/gputest"
)

// hold makes a call of the machine hang. It returns channels that say when it was
// made and that let it go on.
func hold(m *gputest.Machine, function, busID string) (entered <-chan struct{}, release func()) {
	in, out := make(chan struct{}), make(chan struct{})
	var once sync.Once
	m.Change(func() {
		m.Gate = func(call, about string) {
			if call == function && about == busID {
				once.Do(func() { close(in) })
				<-out
			}
		}
	})
	return in, sync.OnceFunc(func() { close(out) })
}

// ended returns a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// soon returns a context for what must not take long; the test fails if it ends.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestUtilization(t *testing.T) {
	m := gputest.HGXH200()
	m.GPUs[4].Utilization = nvml.Utilization{Gpu: 37, Memory: 80}
	m.GPUs[4].PIDs = []int{4711, 12}
	r := gpu.NewReader(all(m))
	defer r.Close()
	read(t, r, start)
	m.Calls()
	const address = "0000:9a:00.0"
	if got, err := r.Utilization(soon(t), address); got != 0.37 || err != nil {
		t.Errorf("%v %v", got, err)
	}
	if got, err := r.Processes(soon(t), address); !slices.Equal(got, []int{4711, 12}) || err != nil {
		t.Errorf("%v %v", got, err)
	}
	if got, err := r.Processes(soon(t), "0000:18:00.0"); got == nil || len(got) > 0 || err != nil {
		t.Errorf("%v %v", got, err)
	}
	if got, want := calls(m.Calls()), map[string]int{"nvmlDeviceGetUtilizationRates": 1, "nvmlDeviceGetComputeRunningProcesses": 2}; !reflect.DeepEqual(got, want) {
		t.Errorf("calls %v", got)
	}
	if _, calling := r.Calling(); calling {
		t.Error("still calling")
	}
}

// TestQuickRefused: no call is made of a GPU that cannot be asked, and NVML is not
// initialised.
func TestQuickRefused(t *testing.T) {
	m := gputest.H100NVL()
	r := gpu.NewReader(all(m))
	defer r.Close()
	first, _ := gpu.Address(m.GPUs[0].BusID)
	second, _ := gpu.Address(m.GPUs[1].BusID)
	wants := func(what, address string, want error) {
		t.Helper()
		m.Calls()
		_, utilization := r.Utilization(soon(t), address)
		_, processes := r.Processes(soon(t), address)
		for _, err := range []error{utilization, processes} {
			if !errors.Is(err, want) || !strings.Contains(err.Error(), "of GPU "+address) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if made := m.Calls(); len(made) > 0 {
			t.Errorf("%s: %v", what, made)
		}
	}
	wants("before the first read", first, gpu.ErrNotUp)
	read(t, r, start)
	wants("another GPU", "0000:ff:00.0", gpu.ErrNoGPU)
	m.Change(func() { m.GPUs[1].Lost = true })
	if _, err := r.Utilization(soon(t), second); !errors.Is(err, nvml.ERROR_GPU_IS_LOST) { // found by itself
		t.Errorf("%v", err)
	}
	r.Read(start.Add(time.Minute))
	wants("lost", second, nvml.ERROR_GPU_IS_LOST)
	m.Change(func() {
		m.GPUs[0].Returns = map[string]nvml.Return{"nvmlDeviceGetUtilizationRates": nvml.ERROR_NOT_SUPPORTED}
	})
	if _, err := r.Utilization(soon(t), first); !errors.Is(err, nvml.ERROR_NOT_SUPPORTED) || err.Error() != "nvmlDeviceGetUtilizationRates of GPU "+first+": NVML_ERROR_NOT_SUPPORTED" {
		t.Errorf("%v", err)
	}
	r.Close()
	wants("closed", first, gpu.ErrNotUp)
}

// TestQuickMissing: a function that the driver lacks is not called: the machine
// would panic.
func TestQuickMissing(t *testing.T) {
	m := gputest.H100NVL()
	m.Missing = []string{"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3"}
	r := gpu.NewReader(all(m))
	defer r.Close()
	address := read(t, r, start).GPUs[0].Address
	_, utilization := r.Utilization(soon(t), address)
	_, processes := r.Processes(soon(t), address)
	for _, err := range []error{utilization, processes} {
		if !errors.Is(err, nvml.ERROR_FUNCTION_NOT_FOUND) {
			t.Errorf("%v", err)
		}
	}
}

// TestQuickBehindRead: behind a read that hangs, a context ends the wait, and the
// error says where the read hangs. Afterwards it works.
func TestQuickBehindRead(t *testing.T) {
	m := gputest.HGXH100()
	r := gpu.NewReader(all(m))
	defer r.Close()
	read(t, r, start)
	entered, release := hold(m, "nvmlDeviceGetBAR1MemoryInfo", m.GPUs[3].BusID)
	defer release()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Read(start.Add(time.Hour))
	}()
	<-entered
	for range 3 {
		_, err := r.Utilization(ended(), "0000:18:00.0")
		if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "nvmlDeviceGetUtilizationRates of GPU 0000:18:00.0: nvmlDeviceGetBAR1MemoryInfo of GPU 0000:5d:00.0 has not returned for ") {
			t.Errorf("%v", err)
		}
	}
	if made := calls(m.Calls()); made["nvmlDeviceGetUtilizationRates"] > 0 {
		t.Error("a call was made beside one that hangs")
	}
	release()
	<-done
	if _, err := r.Utilization(soon(t), "0000:18:00.0"); err != nil {
		t.Error(err)
	}
}

// TestQuickHangs: a quick call that hangs returns with its context all the same;
// Calling tells of it, also to those who look why a Read does not return.
func TestQuickHangs(t *testing.T) {
	m := gputest.HGXH100()
	r := gpu.NewReader(all(m))
	defer r.Close()
	read(t, r, start)
	entered, release := hold(m, "nvmlDeviceGetUtilizationRates", m.GPUs[0].BusID)
	defer release()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-entered
		cancel()
	}()
	_, err := r.Utilization(ctx, "0000:18:00.0")
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "nvmlDeviceGetUtilizationRates of GPU 0000:18:00.0 has not returned for ") {
		t.Errorf("%v", err)
	}
	m.Calls()
	done := make(chan gpu.Reading)
	go func() {
		reading, _ := r.Read(start.Add(time.Second))
		done <- reading
	}()
	select {
	case <-done:
		t.Fatal("a read beside a call that hangs")
	case <-time.After(50 * time.Millisecond):
	}
	if call, calling := r.Calling(); !calling || call.Name != "nvmlDeviceGetUtilizationRates" || call.GPUAddress != "0000:18:00.0" {
		t.Errorf("%+v %v", call, calling)
	}
	if made := m.Calls(); len(made) > 0 {
		t.Errorf("calls beside one that hangs: %v", made)
	}
	release()
	if reading := <-done; reading.State != gpu.StateUp || len(reading.GPUs) != 8 {
		t.Errorf("%+v", reading)
	}
}

// TestConcurrent: whoever calls from wherever, NVML is called one at a time.
func TestConcurrent(t *testing.T) {
	m := gputest.H100NVL()
	running := make(chan struct{}, 1)
	m.Gate = func(call, _ string) {
		select {
		case running <- struct{}{}:
		default:
			t.Errorf("%s beside another call", call)
			return
		}
		time.Sleep(10 * time.Microsecond)
		<-running
	}
	r := gpu.NewReader(all(m))
	defer r.Close()
	address := read(t, r, start).GPUs[0].Address
	var group sync.WaitGroup
	for range 4 {
		for _, do := range []func(){
			func() { _, _ = r.Utilization(soon(t), address) },
			func() { _, _ = r.Processes(soon(t), address) },
			func() { r.Read(start.Add(time.Hour)) },
			func() {
				if err := r.Quiesce(soon(t)); err != nil {
					t.Error(err)
				}
			},
			r.Resume, r.Close,
		} {
			group.Go(func() {
				for range 20 {
					do()
				}
			})
		}
	}
	group.Wait()
	r.Resume()
	if reading := read(t, r, start.Add(2*time.Hour)); reading.State != gpu.StateUp || len(reading.GPUs) != 2 {
		t.Errorf("%+v", reading)
	}
}

// TestPIDs: the ids are those of the call that gives the number, in order and once
// each; an id of 0 is none, and then they are not known.
func TestPIDs(t *testing.T) {
	m := gputest.HGXH200()
	m.GPUs[0].PIDs, m.GPUs[1].PIDs, m.GPUs[1].Processes = []int{4711, 12, 4711}, nil, 0
	m.GPUs[2].PIDs, m.GPUs[2].Processes = nil, 2
	r := gpu.NewReader(all(m))
	defer r.Close()
	reading := read(t, r, start)
	if got := reading.GPUs[0].PIDs; !got.Known || !slices.Equal(got.Value, []int{12, 4711}) || reading.GPUs[0].Procs.Value != 3 {
		t.Errorf("%+v", got)
	}
	if got := reading.GPUs[1].PIDs; !got.Known || len(got.Value) > 0 {
		t.Errorf("of nobody: %+v", got)
	}
	if got := reading.GPUs[2].PIDs; got.Known || reading.GPUs[2].Procs.Value != 2 {
		t.Errorf("without ids: %+v", got)
	}
	if n := calls(m.Calls())["nvmlDeviceGetComputeRunningProcesses"]; n != len(m.GPUs) {
		t.Errorf("%d calls", n)
	}
}

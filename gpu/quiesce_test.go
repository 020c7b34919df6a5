package gpu_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/gputest"
)

// wantQuiesced expects a reading of a quiesced Reader, for which no call was made.
func wantQuiesced(t *testing.T, m *gputest.Machine, r *gpu.Reader, now time.Time) {
	t.Helper()
	m.Calls()
	reading, errs := r.Read(now)
	if reading.State != gpu.StateQuiesced || reading.Err != nil || len(reading.GPUs) > 0 || len(reading.Pairs) > 0 || reading.Stale || reading.Confidential.Known || len(errs) > 0 {
		t.Errorf("%+v %v", reading, errs)
	}
	if made := m.Calls(); len(made) > 0 || m.Up() {
		t.Errorf("calls while quiesced: %v", made)
	}
}

// TestQuiesce: NVML is shut down, stays down, and comes back with the first read
// after Resume, with the events that were counted before.
func TestQuiesce(t *testing.T) {
	m := gputest.H100NVL()
	r := gpu.NewReader(all(m))
	defer r.Close()
	m.Xid(1, 79)
	address := read(t, r, start).GPUs[0].Address
	m.Xid(1, 79)
	read(t, r, start.Add(time.Second))
	for range 2 { // twice is once
		if err := r.Quiesce(soon(t)); err != nil || m.Up() {
			t.Errorf("%v", err)
		}
	}
	wantQuiesced(t, m, r, start.Add(time.Minute))
	wantQuiesced(t, m, r, start.Add(time.Hour))
	if _, err := r.Utilization(soon(t), address); !errors.Is(err, gpu.ErrNotUp) {
		t.Errorf("%v", err)
	}
	r.Resume()
	reading := read(t, r, start.Add(2*time.Hour))
	if reading.State != gpu.StateUp || len(reading.GPUs) != 2 || reading.DriverVersion != m.Driver || len(reading.Pairs) != 1 {
		t.Fatalf("%+v", reading)
	}
	if got := xids(reading.GPUs[1]); got[79] != 1 {
		t.Errorf("Xids %v", got)
	}
	if _, err := r.Utilization(soon(t), address); err != nil {
		t.Error(err)
	}
	r.Resume() // nothing to resume
	read(t, r, start.Add(3*time.Hour))
}

// TestQuiescedFromStart: a fresh Reader does not even open the library.
func TestQuiescedFromStart(t *testing.T) {
	m := gputest.H100NVL()
	opened := 0
	options := all(m)
	options.Quiesced = true
	options.Open = func(string) (gpu.Library, error) {
		opened++
		return m.Library(), nil
	}
	r := gpu.NewReader(options)
	defer r.Close()
	wantQuiesced(t, m, r, start)
	if err := r.Quiesce(soon(t)); err != nil || opened > 0 {
		t.Errorf("%v, opened %d times", err, opened)
	}
	r.Resume()
	if reading := read(t, r, start.Add(time.Second)); reading.State != gpu.StateUp || opened != 1 {
		t.Errorf("%+v", reading)
	}
}

// TestQuiesceWhileReading: a read in progress makes no further call, and shows
// nothing of what it read.
func TestQuiesceWhileReading(t *testing.T) {
	m := gputest.HGXH100()
	r := gpu.NewReader(all(m))
	defer r.Close()
	read(t, r, start)
	entered, release := hold(m, "nvmlDeviceGetMemoryInfo", m.GPUs[2].BusID)
	defer release()
	type result struct {
		reading gpu.Reading
		errs    []sysread.ReadError
	}
	done := make(chan result)
	go func() {
		reading, errs := r.Read(start.Add(time.Second))
		done <- result{reading, errs}
	}()
	<-entered
	err := r.Quiesce(ended())
	if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "quiesce NVML: nvmlDeviceGetMemoryInfo of GPU 0000:3a:00.0 has not returned for ") {
		t.Errorf("%v", err)
	}
	m.Calls()
	quiesced := make(chan error)
	go func() { quiesced <- r.Quiesce(soon(t)) }()
	release()
	if got := <-done; got.reading.State != gpu.StateQuiesced || len(got.reading.GPUs) > 0 || len(got.errs) > 0 {
		t.Errorf("%+v", got)
	}
	if err := <-quiesced; err != nil || m.Up() {
		t.Errorf("%v", err)
	}
	for call := range calls(m.Calls()) {
		if call != "nvmlEventSetFree" && call != "nvmlShutdown" {
			t.Errorf("%s after the quiesce", call)
		}
	}
	wantQuiesced(t, m, r, start.Add(time.Minute))
	r.Resume()
	// What the read had found before is not what is shown now.
	if reading := read(t, r, start.Add(time.Hour)); len(reading.GPUs) != 8 || !reading.GPUs[7].FB.Free.Known || reading.GPUs[7].UUID == "" {
		t.Errorf("%+v", reading.GPUs)
	}
}

// TestResumeWhileReading: a read that was interrupted is not taken for a whole one
// because the quiesce has ended meanwhile.
func TestResumeWhileReading(t *testing.T) {
	m := gputest.HGXH100()
	r := gpu.NewReader(all(m))
	defer r.Close()
	read(t, r, start)
	m.Change(func() {
		m.Gate = func(call, busID string) {
			switch {
			case call == "nvmlDeviceGetMemoryInfo" && busID == m.GPUs[2].BusID:
				_ = r.Quiesce(ended())
			case call == "nvmlShutdown":
				r.Resume()
			}
		}
	})
	reading, errs := r.Read(start.Add(time.Second))
	if reading.State != gpu.StateQuiesced || len(reading.GPUs) > 0 || len(errs) > 0 {
		t.Errorf("%s, %d GPUs, %v", reading.State, len(reading.GPUs), errs)
	}
	m.Change(func() { m.Gate = nil })
	if reading = read(t, r, start.Add(2*time.Second)); reading.State != gpu.StateUp || len(reading.GPUs) != 8 {
		t.Errorf("%s, %d GPUs", reading.State, len(reading.GPUs))
	}
}

// TestQuiesceBehindHang: behind a quick call that hangs NVML is shut down as soon
// as that returns, though nobody waits any more.
func TestQuiesceBehindHang(t *testing.T) {
	m := gputest.H100NVL()
	r := gpu.NewReader(all(m))
	defer r.Close()
	address := read(t, r, start).GPUs[0].Address
	entered, release := hold(m, "nvmlDeviceGetComputeRunningProcesses", m.GPUs[0].BusID)
	defer release()
	ctx, cancel := context.WithCancel(context.Background())
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		_, _ = r.Processes(ctx, address)
	}()
	<-entered
	cancel()
	<-returned
	if err := r.Quiesce(ended()); err == nil || !m.Up() {
		t.Errorf("%v", err)
	}
	release()
	waitFor(t, func() bool { return !m.Up() })
}

// TestShutdownHangs: the time limit ends the wait for nvmlShutdown, too.
func TestShutdownHangs(t *testing.T) {
	m := gputest.H100NVL()
	r := gpu.NewReader(all(m))
	read(t, r, start)
	entered, release := hold(m, "nvmlShutdown", "")
	defer release()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-entered
		cancel()
	}()
	if err := r.Quiesce(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "nvmlShutdown has not returned for ") {
		t.Errorf("%v", err)
	}
	release()
	waitFor(t, func() bool { return !m.Up() })
	wantQuiesced(t, m, r, start.Add(time.Minute))
}

// TestCloseBehindHang: Close does not wait for ever, and NVML is shut down when the
// call returns.
func TestCloseBehindHang(t *testing.T) {
	m := gputest.H100NVL()
	r := gpu.NewReader(all(m))
	address := read(t, r, start).GPUs[0].Address
	entered, release := hold(m, "nvmlDeviceGetUtilizationRates", m.GPUs[0].BusID)
	defer release()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-entered
		cancel()
	}()
	_, _ = r.Utilization(ctx, address)
	r.Close()
	if !m.Up() {
		t.Error("shut down under a call")
	}
	release()
	waitFor(t, func() bool { return !m.Up() })
}

// waitFor waits for what another goroutine does.
func waitFor(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not happen")
		}
	}
}

// TestUpgradeWhileQuiesced: the driver was exchanged meanwhile, which is what a
// quiesce is for. Only a fresh process can use the new library.
func TestUpgradeWhileQuiesced(t *testing.T) {
	m := gputest.H100NVL()
	options := all(m)
	options.Roots = []string{t.TempDir()}
	options.Open = func(string) (gpu.Library, error) { return m.Library(), nil }
	install(t, options.Roots[0], "580.1")
	r := gpu.NewReader(options)
	defer r.Close()
	read(t, r, start)
	if err := r.Quiesce(soon(t)); err != nil {
		t.Fatal(err)
	}
	install(t, options.Roots[0], "580.2")
	wantQuiesced(t, m, r, start.Add(time.Second))
	r.Resume()
	reading, errs := r.Read(start.Add(2 * time.Second))
	if !reading.Stale || reading.State != gpu.StateFailed || reading.Err == nil || !strings.Contains(reading.Err.Error(), "replaced") || len(errs) > 0 || m.Up() {
		t.Errorf("%+v %v", reading, errs)
	}
	if filepath.Base(reading.Library) != "libnvidia-ml.so.580.1" {
		t.Errorf("%s", reading.Library)
	}
}

// TestDriverGoneWhileQuiesced: a module that was unloaded meanwhile is not loaded
// by a read.
func TestDriverGoneWhileQuiesced(t *testing.T) {
	m := gputest.H100NVL()
	options := all(m)
	options.Quiesced = true
	options.Procfs = t.TempDir()
	r := gpu.NewReader(options)
	defer r.Close()
	wantQuiesced(t, m, r, start)
	r.Resume()
	if reading := read(t, r, start.Add(time.Second)); reading.State != gpu.StateNoDriver || len(m.Calls()) > 0 {
		t.Errorf("%+v", reading)
	}
}

// TestConfidential: both functions, and what is known where one does not answer.
func TestConfidential(t *testing.T) {
	const settings, state = "nvmlSystemGetConfComputeSettings", "nvmlSystemGetConfComputeState"
	unsupported := map[string]nvml.Return{settings: nvml.ERROR_NOT_SUPPORTED, state: nvml.ERROR_NOT_SUPPORTED}
	none := sysread.Maybe[bool]{}
	for name, c := range map[string]struct {
		change func(*gputest.Machine)
		want   sysread.Maybe[bool]
		errs   int
	}{
		"off":               {func(*gputest.Machine) {}, sysread.Some(false), 0},
		"on":                {func(m *gputest.Machine) { m.Confidential = 1 }, sysread.Some(true), 0},
		"protected PCIe":    {func(m *gputest.Machine) { m.MultiGPU = 1 }, sysread.Some(true), 0},
		"on, older driver":  {func(m *gputest.Machine) { m.Confidential, m.Missing = 1, []string{settings} }, sysread.Some(true), 0},
		"off, older driver": {func(m *gputest.Machine) { m.Missing = []string{settings} }, sysread.Some(false), 0},
		"old driver":        {func(m *gputest.Machine) { m.Missing = []string{settings, state} }, none, 0},
		"not supported":     {func(m *gputest.Machine) { m.Returns = unsupported }, sysread.Some(false), 0},
		"version not known": {func(m *gputest.Machine) {
			m.Returns = map[string]nvml.Return{settings: nvml.ERROR_ARGUMENT_VERSION_MISMATCH}
		}, sysread.Some(false), 0},
		"it fails": {func(m *gputest.Machine) {
			m.Returns = map[string]nvml.Return{settings: nvml.ERROR_UNKNOWN, state: nvml.ERROR_UNKNOWN}
		}, none, 2},
		"a GPU that is lost":   {func(m *gputest.Machine) { m.Returns = map[string]nvml.Return{settings: nvml.ERROR_GPU_IS_LOST} }, none, 1},
		"NVML does not know":   {func(m *gputest.Machine) { m.Returns = map[string]nvml.Return{state: nvml.ERROR_UNKNOWN} }, sysread.Some(false), 0},
		"may not be asked for": {func(m *gputest.Machine) { m.Returns = map[string]nvml.Return{settings: nvml.ERROR_NO_PERMISSION} }, sysread.Some(false), 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := gputest.H100NVL()
			c.change(m)
			r := gpu.NewReader(all(m))
			defer r.Close()
			reading, errs := r.Read(start)
			if reading.Confidential != c.want || len(errs) != c.errs || reading.State != gpu.StateUp || len(reading.GPUs) != 2 {
				t.Errorf("%+v, %s, %d GPUs, %v", reading.Confidential, reading.State, len(reading.GPUs), errs)
			}
			m.Calls()
			reading, _ = r.Read(start.Add(time.Hour)) // with all that is slow
			if made := calls(m.Calls()); c.want.Known && made[settings]+made[state] > 0 || reading.Confidential != c.want {
				t.Errorf("asked again: %v, %+v", made, reading.Confidential)
			}
			m.Change(func() { m.Returns, m.Missing, m.Confidential = nil, nil, 1 })
			if reading, _ = r.Read(start.Add(2 * time.Hour)); !c.want.Known && c.errs > 0 && reading.Confidential != sysread.Some(true) {
				t.Errorf("not asked again: %+v", reading.Confidential)
			}
		})
	}
}

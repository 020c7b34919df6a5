package nvmltest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/cuda"
	"gdr_exporter/gpu/cuda/cudatest"
	"gdr_exporter/gpu/nvmltest"
)

const (
	first  = "0000:43:00.0"
	second = "0000:c2:00.0"
)

var start = time.Unix(1_800_000_000, 0)

// host is a driver root with both libraries, and the file of NVML's settings.
type host struct {
	root, procfs, settings string
	now                    time.Time
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{root: cudatest.Build(t), procfs: t.TempDir(), settings: filepath.Join(t.TempDir(), "nvml"), now: start}
	nvmltest.Install(t, h.root, nvmltest.Version)
	nvmltest.Load(t, h.procfs, nvmltest.Version)
	t.Setenv("NVMLTEST_FILE", h.settings)
	t.Setenv("NVMLTEST_GPUS", first+","+second)
	return h
}

func (h *host) reader(t *testing.T, quiesced bool) *gpu.Reader {
	r := gpu.NewReader(gpu.Options{Roots: []string{h.root}, Procfs: h.procfs, NVLink: true, PerLink: true, Fabric: true, Quiesced: quiesced})
	t.Cleanup(r.Close)
	return r
}

// read reads with all that is slow.
func (h *host) read(t *testing.T, r *gpu.Reader) gpu.Reading {
	t.Helper()
	h.now = h.now.Add(time.Hour)
	reading, errs := r.Read(h.now)
	for _, err := range errs {
		t.Error(err)
	}
	return reading
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// open counts how often the process has a file open.
func open(t *testing.T, path string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, entry := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil && to == path {
			n++
		}
	}
	return n
}

// TestDefaults: the GPU is usable, by NVML and by CUDA.
func TestDefaults(t *testing.T) {
	h := newHost(t)
	reading := h.read(t, h.reader(t, false))
	if reading.State != gpu.StateUp || len(reading.GPUs) != 2 || reading.DriverVersion != nvmltest.Version || reading.Confidential != sysread.Some(false) ||
		reading.Library != filepath.Join(h.root, "usr/lib64/libnvidia-ml.so."+nvmltest.Version) {
		t.Fatalf("%+v", reading)
	}
	some := sysread.Some[uint64]
	g := reading.GPUs[0]
	if g.Address != first || g.BusID != "00000000:43:00.0" || g.Name != "NVIDIA stand-in" || g.FB != (gpu.Memory{Total: some(16 << 30), Used: some(0), Free: some(16 << 30)}) || g.Procs != sysread.Some(0) {
		t.Errorf("%+v", g)
	}
	if g.Modes != (gpu.Modes{Compute: sysread.Some(0), MIG: sysread.Some(false), Persistence: sysread.Some(true)}) {
		t.Errorf("%+v", g.Modes)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t.Setenv("DOUBLE_GPUS", first+","+second)
	for _, g := range reading.GPUs {
		device, err := cuda.Open(g.Address, cuda.Options{Roots: []string{h.root}, MinFree: 4 << 30})
		if err != nil {
			t.Fatal(err)
		}
		if facts := device.Facts(); facts.UUID != g.UUID {
			t.Errorf("%s: CUDA has %s, NVML %s", g.Address, facts.UUID, g.UUID)
		}
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSettings: every setting, for all GPUs and for one, while the library is in use.
func TestSettings(t *testing.T) {
	h := newHost(t)
	r := h.reader(t, false)
	h.read(t, r)
	cudatest.Set(t, h.settings,
		"NAME@"+first+"=NVIDIA H200", "NAME=other", "UUID@"+second+"=GPU-2", "TOTAL=1000", "FREE@"+first+"=400",
		"UTILIZATION=5", "UTILIZATION@"+first+"=42", "PROCESSES=4711", "PROCESSES@"+second+"=1,22,333,4444,55555",
		"COMPUTE_MODE=3", "MIG@"+second+"=1", "PERSISTENCE=0")
	r.Close() // what does not change is asked for once in a session
	reading := h.read(t, r)
	a, b := reading.GPUs[0], reading.GPUs[1]
	if a.Name != "NVIDIA H200" || b.Name != "other" || b.UUID != "GPU-2" || a.FB.Free.Value != 400 || a.FB.Used.Value != 600 || b.FB.Free.Value != 1000 {
		t.Errorf("%+v\n%+v", a, b)
	}
	if a.Modes != (gpu.Modes{Compute: sysread.Some(3), MIG: sysread.Some(false), Persistence: sysread.Some(false)}) || b.Modes.MIG != sysread.Some(true) {
		t.Errorf("%+v %+v", a.Modes, b.Modes)
	}
	for address, want := range map[string]struct {
		utilization float64
		pids        []int
	}{first: {0.42, []int{4711}}, second: {0.05, []int{1, 22, 333, 4444, 55555}}} {
		utilization, err := r.Utilization(soon(t), address)
		pids, failed := r.Processes(soon(t), address)
		if err != nil || failed != nil || utilization != want.utilization || !slices.Equal(pids, want.pids) {
			t.Errorf("%s: %v %v, %v %v", address, utilization, pids, err, failed)
		}
	}
	cudatest.Set(t, h.settings, "UTILIZATION=-1")
	if _, err := r.Utilization(soon(t), second); !errors.Is(err, nvml.ERROR_NOT_SUPPORTED) {
		t.Errorf("%v", err)
	}
	r.Close()
	cudatest.Set(t, h.settings, "CONFIDENTIAL=1", "GPUS="+second)
	if reading = h.read(t, r); reading.Confidential != sysread.Some(true) || len(reading.GPUs) != 1 || reading.GPUs[0].Address != second {
		t.Errorf("%+v", reading)
	}
}

// TestFailures: what goes wrong goes wrong for the Reader, too.
func TestFailures(t *testing.T) {
	h := newHost(t)
	r := h.reader(t, false)
	h.read(t, r)
	cudatest.Set(t, h.settings, "LOST@"+second+"=1")
	reading, errs := r.Read(h.now.Add(time.Minute))
	if reading.GPUs[0].Lost || !reading.GPUs[1].Lost || len(errs) == 0 {
		t.Errorf("lost: %+v %v", reading, errs)
	}
	cudatest.Set(t, h.settings, "FAIL=nvmlInit:999")
	r.Close()
	if reading, errs = r.Read(h.now.Add(time.Hour)); reading.State != gpu.StateFailed || !errors.Is(reading.Err, nvml.ERROR_UNKNOWN) {
		t.Errorf("it fails: %+v %v", reading, errs)
	}
	kernel := filepath.Join(t.TempDir(), "version")
	cudatest.Set(t, h.settings, "KERNEL="+kernel)
	if reading, _ = r.Read(h.now.Add(2 * time.Hour)); reading.State != gpu.StateNoDriver {
		t.Errorf("no module: %+v", reading)
	}
	cudatest.Set(t, kernel, "570.1")
	if reading, _ = r.Read(h.now.Add(3 * time.Hour)); reading.State != gpu.StateVersionMismatch {
		t.Errorf("another module: %+v", reading)
	}
	cudatest.Set(t, kernel, nvmltest.Version)
	if reading, _ = r.Read(h.now.Add(4 * time.Hour)); reading.State != gpu.StateUp {
		t.Errorf("this module: %+v", reading)
	}
}

// TestHang: the call hangs while the setting says so.
func TestHang(t *testing.T) {
	h := newHost(t)
	r := h.reader(t, false)
	h.read(t, r)
	cudatest.Set(t, h.settings, "HANG=nvmlDeviceGetComputeRunningProcesses")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if _, calling := r.Calling(); calling {
				return
			}
		}
	}()
	if _, err := r.Processes(ctx, first); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "nvmlDeviceGetComputeRunningProcesses of GPU "+first+" has not returned") {
		t.Errorf("%v", err)
	}
	cudatest.Set(t, h.settings)
	if _, err := r.Processes(soon(t), first); err != nil {
		t.Error(err)
	}
}

// TestQuiesce: the device file is open while NVML is up, and not while it is
// quiesced.
func TestQuiesce(t *testing.T) {
	h := newHost(t)
	file := filepath.Join(t.TempDir(), "nvidiactl")
	t.Setenv("NVMLTEST_DEVFILE", file)
	r := h.reader(t, false)
	if reading, _ := r.Read(h.now); reading.State != gpu.StateNoPermission {
		t.Errorf("without the file: %+v", reading)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	is := func(want gpu.State, files int) {
		t.Helper()
		if reading := h.read(t, r); reading.State != want || open(t, file) != files {
			t.Errorf("%s, open %d times; want %s, %d", reading.State, open(t, file), want, files)
		}
	}
	is(gpu.StateUp, 1)
	if err := r.Quiesce(soon(t)); err != nil || open(t, file) != 0 {
		t.Errorf("%v, open %d times", err, open(t, file))
	}
	is(gpu.StateQuiesced, 0)
	r.Resume()
	is(gpu.StateUp, 1)
	r.Close()
	r = h.reader(t, true)
	is(gpu.StateQuiesced, 0)
	r.Resume()
	is(gpu.StateUp, 1)
}

// TestInstall: another version takes the place of the one that is there.
func TestInstall(t *testing.T) {
	root := t.TempDir()
	for _, version := range []string{"1.0", "2.0", "2.0"} {
		nvmltest.Install(t, root, version)
		entries, err := os.ReadDir(filepath.Join(root, "usr/lib64"))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		if want := []string{"libnvidia-ml.so.1", "libnvidia-ml.so." + version}; !reflect.DeepEqual(names, want) {
			t.Errorf("%q", names)
		}
	}
}

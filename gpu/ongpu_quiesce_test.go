package gpu_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gdr_exporter/gpu"
	"gdr_exporter/gpu/cuda"
)

const childVariable = "GDR_GPU_CHILD"

// onGPURoots are where a driver's libraries may be, or GDR_CUDA_ROOT alone.
func onGPURoots() []string {
	if root := os.Getenv("GDR_CUDA_ROOT"); root != "" {
		return []string{root}
	}
	return []string{"/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/usr/local/nvidia"}
}

// inOnGPUChild runs the test again in a process of its own, so that no other test
// has anything of the driver open there. It reports whether this is that process.
func inOnGPUChild(t *testing.T) bool {
	t.Helper()
	if os.Getenv("GDR_ON_GPU") != "1" {
		t.Skip("GDR_ON_GPU=1 is not set: no NVIDIA GPU is promised here")
	}
	if os.Getenv(childVariable) == t.Name() {
		return true
	}
	command := exec.Command("/proc/self/exe", "-test.v", "-test.run=^"+t.Name()+"$")
	command.Env = append(cuda.WithoutMPS(os.Environ()), childVariable+"="+t.Name())
	out, err := command.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v", err)
	}
	return false
}

// deviceFiles are the driver's device files that this process has open.
func deviceFiles(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, entry := range entries {
		path, err := os.Readlink("/proc/self/fd/" + entry.Name())
		var number uintptr
		if _, failed := fmt.Sscan(entry.Name(), &number); err != nil || failed != nil || !strings.HasPrefix(path, "/dev/nvidia") {
			continue
		}
		flags, err := unix.FcntlInt(number, unix.F_GETFD, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, fmt.Sprintf("%s (FD_CLOEXEC %v)", path, flags&unix.FD_CLOEXEC != 0))
	}
	return files
}

// TestOnGPUQuiesce finds out on a real GPU what NVML keeps open, and that a
// quiesced Reader has nothing open.
//
//	go test -c -ldflags "-extldflags=-Wl,-z,lazy" ./gpu
//	GDR_ON_GPU=1 ./gpu.test -test.v -test.run '^TestOnGPU(Quiesce|Processes)$'
func TestOnGPUQuiesce(t *testing.T) {
	if !inOnGPUChild(t) {
		return
	}
	r := gpu.NewReader(gpu.Options{Roots: onGPURoots(), Procfs: "/proc", NVLink: true, Fabric: true})
	defer r.Close()
	for round := range 3 {
		reading := read(t, r, time.Now())
		if reading.State != gpu.StateUp || len(reading.GPUs) == 0 {
			t.Fatalf("round %d: %s %v", round, reading.State, reading.Err)
		}
		files := deviceFiles(t)
		t.Logf("round %d: NVML is up, confidential computing %+v; open: %q", round, reading.Confidential, files)
		if len(files) == 0 {
			t.Error("nothing is open: the test cannot tell")
		}
		for _, file := range files {
			if strings.Contains(file, "false") {
				t.Errorf("%s outlives exec", file)
			}
		}
		began := time.Now()
		if err := r.Quiesce(soon(t)); err != nil {
			t.Error(err)
		}
		t.Logf("quiesced in %v", time.Since(began))
		if reading, _ := r.Read(time.Now()); reading.State != gpu.StateQuiesced {
			t.Errorf("%s", reading.State)
		}
		if files := deviceFiles(t); len(files) > 0 {
			t.Errorf("quiesced, open: %q", files)
		}
		r.Resume()
	}
}

// TestOnGPUProcesses asks a real GPU for its utilisation and its processes, of
// which this one is one while it has a context.
func TestOnGPUProcesses(t *testing.T) {
	if !inOnGPUChild(t) {
		return
	}
	r := gpu.NewReader(gpu.Options{Roots: onGPURoots(), Procfs: "/proc"})
	defer r.Close()
	reading := read(t, r, time.Now())
	if reading.State != gpu.StateUp || len(reading.GPUs) == 0 {
		t.Fatalf("%s %v", reading.State, reading.Err)
	}
	address := reading.GPUs[0].Address
	began := time.Now()
	utilization, err := r.Utilization(soon(t), address)
	if err != nil || utilization < 0 || utilization > 1 {
		t.Errorf("utilisation %v, %v", utilization, err)
	}
	t.Logf("%s: utilisation %v, told in %v", address, utilization, time.Since(began))
	processes := func() []int {
		t.Helper()
		pids, err := r.Processes(soon(t), address)
		if err != nil {
			t.Fatal(err)
		}
		return pids
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "NSpid:") {
			t.Logf("this process is %d, %s", os.Getpid(), strings.TrimSpace(line))
		}
	}
	before := processes()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g, err := cuda.Open(address, cuda.Options{Roots: onGPURoots()})
	if err != nil {
		t.Fatal(err)
	}
	during := processes()
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("processes before %v, with a context %v, after %v", before, during, processes())
	if slices.Contains(before, os.Getpid()) || !slices.Contains(during, os.Getpid()) {
		t.Errorf("process %d is not told apart", os.Getpid())
	}
	for deadline := time.Now().Add(10 * time.Second); slices.Contains(processes(), os.Getpid()); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is listed long after its context is gone")
		}
	}
}

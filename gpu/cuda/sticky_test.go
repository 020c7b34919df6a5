package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gdr_exporter/gpu/cuda"
	"gdr_exporter/gpu/cuda/cudatest"
)

func TestSticky(t *testing.T) {
	sticky := map[cuda.Code]bool{}
	for _, code := range []cuda.Code{4, 214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 803, 810, 911, 999} {
		sticky[code] = true
	}
	for code := range cuda.Code(1100) {
		failed := &cuda.Error{Function: "cuMemAlloc_v2", Code: code}
		if failed.Sticky() != sticky[code] {
			t.Errorf("%v (%d): %v", code, int(code), failed.Sticky())
		}
		if sticky[code] && strings.HasPrefix(code.Error(), fmt.Sprintf("CUDA_ERROR_%d", int(code))) {
			t.Errorf("%d has no name", int(code))
		}
	}
	if (&cuda.Error{Function: "cuInit", Code: cuda.Unknown}).Sticky() {
		t.Error("cuInit's unknown error says nothing of the process")
	}
}

// reason is why the prober would skip a GPU; "" if the error does not say.
func reason(err error) string {
	var says interface{ SkipReason() string }
	if errors.As(err, &says) {
		return says.SkipReason()
	}
	return ""
}

func TestSkipReason(t *testing.T) {
	for of, want := range map[cuda.Reason]string{
		cuda.ReasonExclusive: "compute_mode", cuda.ReasonProhibited: "compute_mode", cuda.ReasonMIG: "mig", cuda.ReasonMPS: "mps", cuda.ReasonMemory: "gpu_memory_low",
	} {
		if got := reason(fmt.Errorf("GPU: %w", &cuda.RefusedError{Reason: of})); got != want {
			t.Errorf("%s: %q", of, got)
		}
	}
	empty, bad := t.TempDir(), t.TempDir()
	must(t, os.MkdirAll(filepath.Join(bad, "lib64"), 0o755), os.WriteFile(filepath.Join(bad, "lib64/libcuda.so.1"), []byte("bad"), 0o644))
	for _, root := range []string{empty, bad} {
		if _, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}}); reason(err) != "no_library" {
			t.Errorf("%v: %q", err, reason(err))
		}
	}
}

// TestDeviceNode: a failure that a device file explains names it; one that it does
// not explain is left as it is.
func TestDeviceNode(t *testing.T) {
	lock(t)
	root := cudatest.Build(t)
	for _, c := range []struct {
		name, fail string
		address    string
		nodes      string
		driver     bool
		path       string
		errno      unix.Errno
	}{
		{"nothing there", "cuInit:100", cudatest.Address, "", true, "nvidiactl", unix.ENOENT},
		{"no unified memory", "cuInit:999", cudatest.Address, "nvidiactl nvidia7", true, "nvidia-uvm", unix.ENOENT},
		{"its own is missing", "cuInit:304", cudatest.Address, "nvidiactl nvidia-uvm", true, "nvidia7", unix.ENOENT},
		{"all there", "cuInit:100", cudatest.Address, "nvidiactl nvidia-uvm nvidia7", true, "", 0},
		{"no driver", "cuInit:100", cudatest.Address, "", false, "", 0},
		{"another failure", "cuInit:802", cudatest.Address, "", true, "", 0},
		{"not among CUDA's GPUs", "", "0000:99:00.0", "nvidiactl nvidia-uvm", true, "nvidia9", unix.ENOENT},
		{"not among the driver's", "", "0000:aa:00.0", "", true, "", 0},
		{"an attribute fails", "cuDeviceGetAttribute:999", cudatest.Address, "nvidiactl", true, "nvidia-uvm", unix.ENOENT},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("DOUBLE_FAIL", c.fail)
			dev, procfs := t.TempDir(), t.TempDir()
			for _, name := range strings.Fields(c.nodes) {
				must(t, os.WriteFile(filepath.Join(dev, name), nil, 0o600))
			}
			for address, minor := range map[string]string{cudatest.Address: "7", "0000:99:00.0": "9"} {
				dir := filepath.Join(procfs, "driver/nvidia/gpus", address)
				if !c.driver {
					continue
				}
				must(t, os.MkdirAll(dir, 0o755),
					os.WriteFile(filepath.Join(dir, "information"), []byte("Model: \t\t NVIDIA H200\nDevice Minor: \t "+minor+"\nGPU Excluded:\t No\n"), 0o644))
			}
			_, err := cuda.Open(c.address, cuda.Options{Roots: []string{root}, Dev: dev, Procfs: procfs})
			var failed *cuda.Error
			if !errors.As(err, &failed) {
				t.Fatalf("the call is lost: %v", err)
			}
			var node *cuda.DeviceNodeError
			if found := errors.As(err, &node); found != (c.path != "") {
				t.Fatalf("%v", err)
			}
			if node == nil {
				if got := reason(err); got != "" {
					t.Errorf("%v: %s", err, got)
				}
				return
			}
			path := filepath.Join(dev, c.path)
			if node.Path != path || node.Errno != c.errno || !errors.Is(err, c.errno) || reason(err) != "no_device_node" || !strings.HasSuffix(err.Error(), path+": "+c.errno.Error()) {
				t.Errorf("%+v: %v", node, err)
			}
		})
	}
}

// TestDeviceNodeForbidden: a file's mode counts as it does for libcuda.
func TestDeviceNodeForbidden(t *testing.T) {
	lock(t)
	if os.Geteuid() == 0 {
		t.Skip("root may open any file: the mode cannot keep it out")
	}
	t.Setenv("DOUBLE_FAIL", "cuInit:304")
	dev, procfs := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(dev, "nvidiactl"), nil, 0o400), os.MkdirAll(filepath.Join(procfs, "driver/nvidia"), 0o755))
	_, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{cudatest.Build(t)}, Dev: dev, Procfs: procfs})
	if !errors.Is(err, unix.EACCES) || reason(err) != "no_device_node" {
		t.Errorf("%v", err)
	}
}

// TestGPUNode has what /proc/driver/nvidia/gpus/ADDRESS/information may hold.
func TestGPUNode(t *testing.T) {
	for text, want := range map[string]string{
		"Device Minor: \t 0\n": "nvidia0", "Device Minor: 12": "nvidia12", "": "", "Device Minor: ": "", "Device Minor: ../1": "", "Model: x\n": "",
	} {
		procfs := t.TempDir()
		dir := filepath.Join(procfs, "gpus", cudatest.Address)
		must(t, os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "information"), []byte(text), 0o644))
		if got := cuda.GPUNode(procfs, cudatest.Address); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// TestDoubleFile is the double's: a file changes the GPU of a process that runs.
func TestDoubleFile(t *testing.T) {
	lock(t)
	root := cudatest.Build(t)
	file := filepath.Join(t.TempDir(), "settings")
	t.Setenv("DOUBLE_FILE", file)
	t.Setenv("DOUBLE_NAME", "of the environment")
	t.Setenv("DOUBLE_FREE", "1000000000")
	facts := func() cuda.Facts {
		t.Helper()
		g, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}})
		must(t, err)
		must(t, g.Close())
		return g.Facts()
	}
	if f := facts(); f.Name != "of the environment" || f.Free != 1000000000 {
		t.Errorf("without a file: %+v", f)
	}
	cudatest.Set(t, file, "DOUBLE_NAME_X=no", "DOUBLE_NAME=of the file", "DOUBLE_DMABUF=0")
	if f := facts(); f.Name != "of the file" || f.Free != 1000000000 || f.DMABuf {
		t.Errorf("with a file: %+v", f)
	}
	cudatest.Set(t, file, "DOUBLE_COMPUTE_MODE=3")
	if _, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}}); reason(err) != "compute_mode" {
		t.Errorf("another mode: %v", err)
	}
	must(t, os.Remove(file))
	if f := facts(); f.Name != "of the environment" || !f.DMABuf {
		t.Errorf("without it again: %+v", f)
	}
}

// inChild runs a test of this file again in a child process.
func inChild(t *testing.T, environment ...string) ([]byte, error) {
	t.Helper()
	command := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), append(environment, childVariable+"="+t.Name())...)
	return command.CombinedOutput()
}

func isChild(t *testing.T) bool { return os.Getenv(childVariable) == t.Name() }

// TestDoubleCrash is the double's: its process dies.
func TestDoubleCrash(t *testing.T) {
	lock(t)
	if isChild(t) {
		g, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{os.Getenv("ROOT")}})
		must(t, err)
		_, err = g.Alloc(cuda.Granularity)
		t.Fatalf("it lives: %v", err)
	}
	out, err := inChild(t, "ROOT="+cudatest.Build(t), "DOUBLE_CRASH=cuMemAlloc_v2")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "SIGSEGV") || strings.Contains(string(out), "it lives") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestDoubleSticky is the double's: nothing works any more, but in a process that
// took the place of this one.
func TestDoubleSticky(t *testing.T) {
	lock(t)
	if isChild(t) {
		childSticky(t, os.Getenv("ROOT"))
		return
	}
	once := filepath.Join(t.TempDir(), "once")
	must(t, os.WriteFile(once, nil, 0o644))
	out, err := inChild(t, "ROOT="+cudatest.Build(t), "DOUBLE_STICKY=cuMemcpyHtoD_v2:700", "DOUBLE_ONCE="+once)
	if err != nil || !strings.Contains(string(out), "after exec: it works") {
		t.Errorf("%v\n%s", err, out)
	}
}

func childSticky(t *testing.T, root string) {
	again := func() error {
		g, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}})
		if err != nil {
			return err
		}
		m, err := g.Alloc(cuda.Granularity)
		if err == nil {
			err = errors.Join(m.Write(0, []byte{1}), m.Free())
		}
		return errors.Join(err, g.Close())
	}
	if os.Getenv("AFTER_EXEC") == "1" {
		must(t, again())
		fmt.Println("after exec: it works")
		return
	}
	for _, function := range []string{"cuMemcpyHtoD_v2", "cuInit"} {
		var failed *cuda.Error
		if err := again(); !errors.As(err, &failed) || failed.Function != function || failed.Code != cuda.IllegalAddress || !failed.Sticky() {
			t.Fatalf("%s: %v", function, err)
		}
	}
	must(t, unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), "AFTER_EXEC=1")))
}

// TestDoubleDeviceFile is the double's: its file stays open for good, and without
// FD_CLOEXEC beyond exec.
func TestDoubleDeviceFile(t *testing.T) {
	lock(t)
	if isChild(t) {
		path := os.Getenv("DOUBLE_DEVFILE")
		if os.Getenv("AFTER_EXEC") != "1" {
			if n := len(descriptors(t, path)); n != 0 {
				t.Errorf("%d times open before cuInit", n)
			}
			for range 2 {
				g, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{os.Getenv("ROOT")}})
				must(t, err)
				must(t, g.Close())
			}
			if n := len(descriptors(t, path)); n != 1 {
				t.Errorf("%d times open", n)
			}
			must(t, unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), "AFTER_EXEC=1")))
		}
		fmt.Printf("after exec: %d\n", len(descriptors(t, path)))
		return
	}
	path := filepath.Join(t.TempDir(), "nvidiactl")
	root := cudatest.Build(t)
	t.Setenv("DOUBLE_DEVFILE", path)
	if _, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}}); !errors.Is(err, cuda.OperatingSystem) {
		t.Errorf("a file that is missing: %v", err)
	}
	must(t, os.WriteFile(path, nil, 0o644))
	for cloexec, want := range map[string]string{"0": "after exec: 1\n", "1": "after exec: 0\n", "": "after exec: 0\n"} {
		out, err := inChild(t, "ROOT="+root, "DOUBLE_DEVFILE_CLOEXEC="+cloexec)
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v\n%s", cloexec, err, out)
		}
	}
}

// descriptor is an open file of this process.
type descriptor struct {
	number  string
	path    string
	cloexec bool
}

// descriptors are the open files whose path begins so.
func descriptors(t *testing.T, prefix string) []descriptor {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	var found []descriptor
	for _, entry := range entries {
		path, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err != nil || !strings.HasPrefix(path, prefix) {
			continue // the directory's own descriptor is gone by now
		}
		var number uintptr
		if _, err := fmt.Sscan(entry.Name(), &number); err != nil {
			t.Fatal(err)
		}
		flags, err := unix.FcntlInt(number, unix.F_GETFD, 0)
		must(t, err)
		found = append(found, descriptor{entry.Name(), path, flags&unix.FD_CLOEXEC != 0})
	}
	return found
}

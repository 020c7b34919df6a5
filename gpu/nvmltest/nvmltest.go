// Package nvmltest makes a libnvidia-ml.so.1 without a GPU, for tests of a whole
// program. Below one driver root with package cudatest's libcuda.so.1 it makes a
// GPU that can be measured; by their defaults both have the same GPUs.
//
// It reads its settings at each call: those of the file that the environment
// variable NVMLTEST_FILE names, lines KEY=value, else those of the environment,
// NVMLTEST_KEY. In the file KEY@ADDRESS is for one GPU and goes before KEY.
// cudatest.Set writes such a file while a program runs.
//
//	GPUS          PCI addresses, with commas; 0000:3b:00.0,0000:5e:00.0
//	UUID          GPU-abababab-abab-abab-abab-ababababab00 and so on by index
//	NAME          NVIDIA stand-in
//	TOTAL, FREE   bytes of GPU memory; 16 GiB, all of it
//	UTILIZATION   percent; 0. -1: NVML_ERROR_NOT_SUPPORTED
//	PROCESSES     ids, with commas; none
//	COMPUTE_MODE  0 default, 2 prohibited, 3 exclusive process; 0
//	MIG           1: on; 0
//	PERSISTENCE   1: on; 1
//	CONFIDENTIAL  1: on; 0: off; -1: NVML_ERROR_NOT_SUPPORTED; -1
//	LOST          1: NVML_ERROR_GPU_IS_LOST; 0
//	HANG          function, without its version, in which calls hang while it is
//	              set: nvmlDeviceGetMemoryInfo
//	FAIL          function:number, which it returns: nvmlInit:999
//	KERNEL        a file with the version of the loaded kernel module, which has to
//	              be the library's; without the file no module is loaded. Not set:
//	              it fits
//	DEVFILE       a file that is open while NVML is initialised, as NVML keeps
//	              /dev/nvidiactl; if it cannot be opened, NVML_ERROR_NO_PERMISSION
//	DEVFILE_CLOEXEC  0: without FD_CLOEXEC; 1
//
// It has few functions: what is not listed here is missing, as it is from a driver
// that is older than go-nvml.
package nvmltest

import (
	_ "embed"
	"os"
	"path/filepath"
	"testing"

	"gdr_exporter/gpu/cuda/cudatest"
)

//go:embed testdata/nvml.c
var source []byte

// Version is a driver version for tests to which it does not matter.
const Version = "580.95.05"

// Install puts the library of a driver version below a driver root, in the place
// of what is there, as a package manager does: a new file under a new name, and
// the link turned over. It skips the test where there is no C compiler.
func Install(t testing.TB, root, version string) {
	t.Helper()
	dir := filepath.Join(root, "usr/lib64")
	library, link := filepath.Join(dir, "libnvidia-ml.so."+version), filepath.Join(dir, "libnvidia-ml.so.1")
	cudatest.Compile(t, library, source, `-DVERSION="`+version+`"`, "-Wl,-soname,libnvidia-ml.so.1")
	old, _ := os.Readlink(link)
	_ = os.Remove(link)
	if err := os.Symlink(filepath.Base(library), link); err != nil {
		t.Fatal(err)
	}
	if old != "" && old != filepath.Base(library) {
		_ = os.Remove(filepath.Join(dir, old))
	}
}

// Load makes a procfs tree show the kernel module of a driver version.
func Load(t testing.TB, procfs, version string) {
	t.Helper()
	path := filepath.Join(procfs, "driver/nvidia/version")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	text := "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " + version + "  Release Build\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

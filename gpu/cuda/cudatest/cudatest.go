// Package cudatest makes a libcuda.so.1 without a GPU, for tests: its GPU memory
// is host memory, which an RDMA device of a test kernel can register.
//
// The environment says what it does, read at each cuInit (so a test sets it with
// t.Setenv before it opens a GPU; a child process gets it with its environment). It
// is not read again while a context is open, nor for as long as one was left behind
// by a run that hangs:
//
//	DOUBLE_FILE          a file with lines NAME=value of the names below, which go
//	                     before the environment's: a running process's GPU changes
//	                     with it. See [Set]
//	DOUBLE_GPUS          PCI addresses, with commas; 0000:3b:00.0,0000:5e:00.0
//	DOUBLE_NAME          name; NVIDIA H200
//	DOUBLE_VERSION       cuDriverGetVersion; 13000
//	DOUBLE_COMPUTE_MODE  0 default, 2 prohibited, 3 exclusive
//	DOUBLE_TAKEN         1: when a context is to be made the compute mode has become
//	                     exclusive and another process has the GPU: 46
//	DOUBLE_GDR           attribute 116; 1
//	DOUBLE_DMABUF        attribute 124, and whether an export works; 1. The
//	                     descriptor is a memfd of the memory's size, no dma-buf
//	DOUBLE_ORDERING      attribute 118; 100
//	DOUBLE_TOTAL         bytes of GPU memory; 16 GiB
//	DOUBLE_FREE          bytes of it that are free beside the context; all
//	DOUBLE_CONTEXT       bytes of the free memory that a context needs to be made; 0
//	DOUBLE_UNREGISTRABLE 1: GPU memory is mapped PROT_NONE, so that ibv_reg_mr of a
//	                     real kernel fails with EFAULT; copies work all the same
//	DOUBLE_FLIP          1: each copy adds one to its middle byte, so that a pattern
//	                     is wrong whichever way it went, and there and back too
//	DOUBLE_FAIL          function:code or function:code:n, from the nth call on
//	DOUBLE_HANG          function, for ever, or function:milliseconds
//	DOUBLE_CRASH         function: SIGSEGV in it. A Go process prints its stacks and
//	                     exits with status 2
//	DOUBLE_STICKY        function:code: from that call on, every call of the process
//	                     fails with the code. Only exec helps
//	DOUBLE_ONCE          a file: DOUBLE_HANG, _CRASH and _STICKY do their work only
//	                     if it is there, and remove it: once, whatever exec follows
//	DOUBLE_DEVFILE       a file that stays open from the first cuInit on, as libcuda
//	                     keeps /dev/nvidiactl; if it cannot be opened, 304
//	DOUBLE_DEVFILE_CLOEXEC  0: without FD_CLOEXEC; 1
//	DOUBLE_LOG           a file: one line per call, and one with what was alive
//	                     whenever a context is released:
//	                     released memory=0 pinned=0 streams=0 events=0
//
// It is stricter than the real one, to find mistakes: asynchronous copies happen
// only when an event or a stream is queried (one copy a query) or waited for, and
// need pinned host memory; a call without a current context on its thread fails
// with 201, releasing a context with anything alive with 401.
package cudatest

import (
	"bytes"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

//go:embed testdata/libcuda.c
var source []byte

// Address is a GPU that the library has without DOUBLE_GPUS.
const Address = "0000:3b:00.0"

// built are libraries by source and the compiler's flags: each is compiled once a
// process.
var built sync.Map

// Build makes the library and returns a directory to use as driver root, which
// goes when the test ends. Each is a library of its own to the loader. It skips
// the test where there is no C compiler. Flags are the compiler's: -DDOUBLE_OLD
// leaves out what CUDA 11.3 did not have.
func Build(t testing.TB, flags ...string) (root string) {
	t.Helper()
	root = t.TempDir()
	Compile(t, filepath.Join(root, "usr/lib64/libcuda.so.1"), source, flags...)
	return root
}

// Compile compiles a library's source into a file, which is another file than the
// one that was there: that may be in use. It skips the test where there is no C
// compiler.
func Compile(t testing.TB, path string, source []byte, flags ...string) {
	t.Helper()
	key := string(source) + strings.Join(flags, " ")
	library, known := built.Load(key)
	if !known {
		library = compile(t, source, flags)
		built.Store(key, library)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	replace(t, path, library.([]byte))
}

// compile returns the library.
func compile(t testing.TB, source []byte, flags []string) []byte {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler to make a library with")
	}
	path := filepath.Join(t.TempDir(), "library.so")
	arguments := append([]string{"-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o", path, "-x", "c", "-"}, flags...)
	command := exec.Command(cc, arguments...)
	command.Stdin = bytes.NewReader(source)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	library, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return library
}

// Set writes a file of settings, NAME=value each, in one step: no call sees half
// of it.
func Set(t testing.TB, path string, settings ...string) {
	t.Helper()
	replace(t, path, []byte(strings.Join(settings, "\n")+"\n"))
}

// replace puts a new file in the place of one.
func replace(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

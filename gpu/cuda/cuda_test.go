package cuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"gdr_exporter/gpu/cuda"
	"gdr_exporter/gpu/cuda/cudatest"
)

// lock gives the test the thread that a GPU's user has.
func lock(t testing.TB) {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
}

// open opens the double's first GPU. What was left at its close fails the test.
func open(t testing.TB, root string) *cuda.GPU {
	t.Helper()
	g, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// mapped is host memory that is not Go's.
func mapped(t testing.TB, size int) []byte {
	t.Helper()
	memory, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(memory) })
	return memory
}

func at(memory []byte) unsafe.Pointer { return unsafe.Pointer(&memory[0]) }

func pattern(memory []byte, seed int) {
	for i := range memory {
		memory[i] = byte(i*7 + i>>8 + i>>16*3 + seed) // of no period that a chunk has
	}
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestFacts(t *testing.T) {
	lock(t)
	t.Setenv("DOUBLE_FREE", "1000000000")
	root := cudatest.Build(t)
	g := open(t, root)
	want := cuda.Facts{
		Address: "0000:3b:00.0", UUID: "GPU-abababab-abab-abab-abab-ababababab00", Name: "NVIDIA H200", Driver: 13000,
		GPUDirectRDMA: true, DMABuf: true, Ordering: 100, Free: 1000000000, Total: 16 << 30,
	}
	if got := g.Facts(); got != want {
		t.Errorf("%+v", got)
	}
	if want := filepath.Join(root, "usr/lib64/libcuda.so.1"); g.Library() != want {
		t.Errorf("library %s", g.Library())
	}
}

// TestOldDriver is CUDA 11.3: no attributes 118 and 124, no UUID, no export.
func TestOldDriver(t *testing.T) {
	lock(t)
	g := open(t, cudatest.Build(t, "-DDOUBLE_OLD"))
	if f := g.Facts(); f.UUID != "" || f.DMABuf || f.Ordering != 0 || !f.GPUDirectRDMA {
		t.Errorf("%+v", f)
	}
	m, err := g.Alloc(cuda.Granularity)
	must(t, err)
	fd, err := m.DMABuf()
	if fd != -1 || !errors.Is(err, cuda.NotSupported) || !strings.Contains(err.Error(), "older than CUDA 11.7") {
		t.Errorf("%d %v", fd, err)
	}
	must(t, m.Free())
}

func TestNoLibrary(t *testing.T) {
	empty := t.TempDir()
	_, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{empty, "/nowhere"}})
	var library *cuda.LibraryError
	if !errors.Is(err, cuda.ErrNoLibrary) || !errors.As(err, &library) || len(library.Failures) != 0 {
		t.Errorf("%v", err)
	}
	if err.Error() != "libcuda.so.1 was not found below "+empty+", /nowhere" {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat("/usr/lib/x86_64-linux-gnu/libcuda.so.1"); err == nil {
		t.Skip("this host has a libcuda")
	}
	for _, roots := range [][]string{nil, {"/"}, {empty, "/"}} {
		if _, err := cuda.Open(cudatest.Address, cuda.Options{Roots: roots}); !errors.Is(err, cuda.ErrNoLibrary) {
			t.Errorf("%v: %v", roots, err)
		}
	}
}

// TestWrongLibrary has a file that is no library, and a library that is not CUDA's.
func TestWrongLibrary(t *testing.T) {
	for name, content := range map[string]string{"text": "no library", "other": ""} {
		root := t.TempDir()
		path := filepath.Join(root, "lib64/libcuda.so.1")
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if content != "" {
			must(t, os.WriteFile(path, []byte(content), 0o644))
		} else if out, err := exec.Command("cc", "-shared", "-o", path, "-x", "c", "/dev/null").CombinedOutput(); err != nil {
			t.Skipf("%v\n%s", err, out)
		}
		_, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}})
		var library *cuda.LibraryError
		if errors.Is(err, cuda.ErrNoLibrary) || !errors.As(err, &library) || len(library.Failures) != 1 || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "other" && !strings.Contains(err.Error(), "does not have cuInit") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSearch has a link that is absolute within a driver container's root, and a
// second root behind one whose library cannot be loaded.
func TestSearch(t *testing.T) {
	lock(t)
	built := cudatest.Build(t)
	root, bad := t.TempDir(), t.TempDir()
	for _, dir := range []string{filepath.Join(root, "usr/lib64"), filepath.Join(root, "opt"), filepath.Join(bad, "lib64")} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	must(t,
		os.Rename(filepath.Join(built, "usr/lib64/libcuda.so.1"), filepath.Join(root, "opt/libcuda.so.999")),
		os.Symlink("/opt/libcuda.so.999", filepath.Join(root, "usr/lib64/libcuda.so.1")),
		os.WriteFile(filepath.Join(bad, "lib64/libcuda.so.1"), []byte("bad"), 0o644))
	g, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{bad, root}})
	must(t, err)
	if g.Library() != filepath.Join(root, "opt/libcuda.so.999") {
		t.Errorf("%s", g.Library())
	}
	must(t, g.Close())
}

func TestGate(t *testing.T) {
	lock(t)
	root := cudatest.Build(t)
	for _, c := range []struct {
		name, value string
		reason      cuda.Reason
		text        string
		context     bool // one was made
	}{
		{"DOUBLE_COMPUTE_MODE", "2", cuda.ReasonProhibited, "PROHIBITED", false},
		{"DOUBLE_COMPUTE_MODE", "3", cuda.ReasonExclusive, "EXCLUSIVE_PROCESS", false},
		{"DOUBLE_NAME", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", cuda.ReasonMIG, "MIG", false},
		{"CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps", cuda.ReasonMPS, "CUDA_MPS_PIPE_DIRECTORY", false},
		{"DOUBLE_FREE", "851443712", cuda.ReasonMemory, "812 MiB of its memory are free, 4096 MiB are wanted", true},
		{"DOUBLE_CONTEXT", "20000000000", cuda.ReasonMemory, "no room for a context: cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (2)", true},
	} {
		t.Run(string(c.reason), func(t *testing.T) {
			t.Setenv(c.name, c.value)
			log := filepath.Join(t.TempDir(), "log")
			t.Setenv("DOUBLE_LOG", log)
			g, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}, MinFree: 4 << 30})
			var refused *cuda.RefusedError
			if g != nil || !errors.As(err, &refused) || refused.Reason != c.reason || refused.Address != cudatest.Address || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("%v", err)
			}
			calls, _ := os.ReadFile(log)
			if got := strings.Contains(string(calls), "cuDevicePrimaryCtxRetain"); got != c.context {
				t.Errorf("calls:\n%s", calls)
			}
			if strings.Contains(string(calls), "cuMemGetInfo_v2") && !strings.Contains(string(calls), "released memory=0") {
				t.Errorf("the context was not released:\n%s", calls)
			}
		})
	}
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")
	g, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}, MPS: true})
	must(t, err)
	must(t, g.Close())
}

// TestUnavailable has a GPU that is busy or ill although its compute mode allows
// contexts, which is no refusal; and one whose mode changed after the gate.
func TestUnavailable(t *testing.T) {
	lock(t)
	root := cudatest.Build(t)
	t.Setenv("DOUBLE_FAIL", "cuDevicePrimaryCtxRetain:46")
	_, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}})
	var refused *cuda.RefusedError
	if !errors.Is(err, cuda.DeviceUnavailable) || errors.As(err, &refused) {
		t.Errorf("in the default mode that is an error: %v", err)
	}
	t.Setenv("DOUBLE_FAIL", "")
	t.Setenv("DOUBLE_TAKEN", "1")
	_, err = cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}})
	if !errors.As(err, &refused) || refused.Reason != cuda.ReasonExclusive || !errors.Is(err, cuda.DeviceUnavailable) {
		t.Errorf("it became exclusive: %v", err)
	}
}

func TestNoSuchGPU(t *testing.T) {
	lock(t)
	root := cudatest.Build(t)
	t.Setenv("CUDA_VISIBLE_DEVICES", "1")
	_, err := cuda.Open("0000:99:00.0", cuda.Options{Roots: []string{root}})
	if !errors.Is(err, cuda.InvalidDevice) || !strings.Contains(err.Error(), `GPU 0000:99:00.0`) || !strings.Contains(err.Error(), `CUDA sees 2 GPUs with CUDA_VISIBLE_DEVICES="1"`) {
		t.Errorf("%v", err)
	}
}

func TestWithoutMPS(t *testing.T) {
	environment := []string{"A=1", "CUDA_MPS_PIPE_DIRECTORY=/tmp/mps", "CUDA_MPS_PIPE_DIRECTORY_X=1"}
	if got := cuda.WithoutMPS(environment); !slices.Equal(got, []string{"A=1", "CUDA_MPS_PIPE_DIRECTORY_X=1"}) || len(environment) != 3 {
		t.Errorf("%q %q", got, environment)
	}
}

func TestMemory(t *testing.T) {
	lock(t)
	const size = 3 * cuda.Granularity
	g := open(t, cudatest.Build(t))
	m, err := g.Alloc(size)
	must(t, err)
	if m.Size() != size || m.Pointer() == 0 || m.Pointer()%cuda.Granularity != 0 {
		t.Errorf("%d bytes at %#x", m.Size(), m.Pointer())
	}
	if on, err := m.SyncMemops(); !on || err != nil {
		t.Errorf("SYNC_MEMOPS: %v %v", on, err)
	}
	source, target := make([]byte, size), make([]byte, size)
	pattern(source, 1)
	must(t, m.Write(0, source), m.Write(5, source[100:200]), m.Read(0, target))
	copy(source[5:], bytes.Clone(source[100:200]))
	if !bytes.Equal(source, target) {
		t.Error("what was read is not what was written")
	}
	if device := unsafe.Slice((*byte)(pointer(m.Pointer())), size); !bytes.Equal(device, source) {
		t.Error("the memory that was handed out is not what was written")
	}
	must(t, m.Write(size, nil), m.Read(0, nil))
	for _, c := range []struct{ offset, n int }{{-1, 1}, {size, 1}, {1, size}, {size + 1, 0}, {math.MaxInt, 1}} {
		if err := m.Write(c.offset, source[:min(c.n, size)]); !errors.Is(err, cuda.ErrRange) {
			t.Errorf("write %+v: %v", c, err)
		}
		if err := m.Read(c.offset, target[:min(c.n, size)]); !errors.Is(err, cuda.ErrRange) {
			t.Errorf("read %+v: %v", c, err)
		}
	}
	must(t, m.Free(), m.Free())
	_, err = m.DMABuf()
	for _, err := range []error{err, m.Write(0, source), m.Read(0, target)} {
		if !errors.Is(err, cuda.ErrClosed) {
			t.Errorf("after Free: %v", err)
		}
	}
	for _, size := range []int{0, -cuda.Granularity, 1, cuda.Granularity + 1} {
		if _, err := g.Alloc(size); !errors.Is(err, cuda.ErrRange) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if _, err := g.Alloc(1 << 40); !errors.Is(err, cuda.OutOfMemory) || err.Error() != "1048576 MiB: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)" {
		t.Errorf("%v", err)
	}
}

// pointer makes a pointer of the double's GPU memory, which is mapped, not Go's.
func pointer(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

func TestDMABuf(t *testing.T) {
	lock(t)
	root := cudatest.Build(t)
	for _, supported := range []string{"1", "0"} {
		t.Setenv("DOUBLE_DMABUF", supported)
		g, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}})
		must(t, err)
		m, err := g.Alloc(2 * cuda.Granularity)
		must(t, err)
		fd, err := m.DMABuf()
		if supported == "0" {
			var failed *cuda.Error
			if fd != -1 || !errors.Is(err, cuda.NotSupported) || !errors.As(err, &failed) || failed.ErrnoName() != "CUDA_ERROR_NOT_SUPPORTED" || failed.Function != "cuMemGetHandleForAddressRange" || g.Facts().DMABuf {
				t.Errorf("%d %v", fd, err)
			}
		} else {
			must(t, err)
			if end, err := syscall.Seek(fd, 0, 2); end != 2*cuda.Granularity || err != nil {
				t.Errorf("its size: %d %v", end, err)
			}
			if flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0); errno != 0 || flags&syscall.FD_CLOEXEC == 0 {
				t.Errorf("a child would inherit it: %d %v", flags, errno)
			}
			must(t, syscall.Close(fd))
		}
		must(t, m.Free(), g.Close())
	}
}

// TestUnregistrable has GPU memory that the CPU, and so the kernel, cannot reach:
// a system call with it fails with EFAULT, copies work.
func TestUnregistrable(t *testing.T) {
	lock(t)
	t.Setenv("DOUBLE_UNREGISTRABLE", "1")
	g := open(t, cudatest.Build(t))
	m, err := g.Alloc(cuda.Granularity)
	must(t, err)
	zero, err := os.Open("/dev/zero")
	must(t, err)
	defer zero.Close()
	if _, _, errno := syscall.Syscall(syscall.SYS_READ, zero.Fd(), m.Pointer(), 4096); errno != syscall.EFAULT {
		t.Errorf("the kernel could write there: %v", errno)
	}
	source, target := make([]byte, m.Size()), make([]byte, m.Size())
	pattern(source, 2)
	must(t, m.Write(0, source), m.Read(0, target))
	if !bytes.Equal(source, target) {
		t.Error("the copies do not work")
	}
	must(t, m.Free())
}

// TestFlip is the double's corruption: seen after one copy and after two.
func TestFlip(t *testing.T) {
	lock(t)
	t.Setenv("DOUBLE_FLIP", "1")
	g := open(t, cudatest.Build(t))
	m, err := g.Alloc(cuda.Granularity)
	must(t, err)
	source, target := make([]byte, m.Size()), make([]byte, m.Size())
	must(t, m.Write(0, source), m.Read(0, target))
	different := 0
	for i := range source {
		if source[i] != target[i] {
			different++
		}
	}
	if different != 1 || target[m.Size()/2] != 2 {
		t.Errorf("%d bytes differ", different)
	}
	must(t, m.Free())
}

// TestPipeline copies to the GPU and back through two streams, chunk by chunk, with
// fewer buffers than chunks: what is used too early is wrong, as the double copies
// only when it must.
func TestPipeline(t *testing.T) {
	lock(t)
	const chunk, chunks = 256 << 10, 32
	g := open(t, cudatest.Build(t))
	m, err := g.Alloc(chunk * chunks)
	must(t, err)
	host := mapped(t, chunk*chunks)
	unpin, err := g.Pin(at(host), len(host))
	must(t, err)
	want := make([]byte, len(host))
	pattern(want, 3)
	copy(host, want)
	var streams [2]*cuda.Stream
	for i := range streams {
		streams[i], err = g.Stream()
		must(t, err)
	}
	for i := range chunks {
		must(t, streams[i%2].FromHost(m, i*chunk, at(host[i*chunk:]), chunk))
	}
	must(t, streams[0].Wait(), streams[1].Wait())
	clear(host)
	for i := range chunks {
		s := streams[i%2]
		must(t, s.ToHost(at(host[i*chunk:]), m, i*chunk, chunk))
		mark, err := s.Mark()
		must(t, err)
		if host[i*chunk+1] != 0 {
			t.Fatal("the double is too eager to find a mistake")
		}
		if i%3 == 0 {
			must(t, mark.Wait())
		}
		polls := 0
		for reached := false; !reached; polls++ {
			reached, err = mark.Reached()
			must(t, err)
		}
		if i%3 != 0 && polls != 2 {
			t.Errorf("chunk %d: %d polls", i, polls)
		}
		if !bytes.Equal(host[i*chunk:(i+1)*chunk], want[i*chunk:(i+1)*chunk]) {
			t.Fatalf("chunk %d is wrong", i)
		}
		must(t, mark.Free(), mark.Free())
	}
	for _, err := range []error{streams[0].ToHost(at(host), m, 1, m.Size()), streams[0].FromHost(m, -1, at(host), 1)} {
		if !errors.Is(err, cuda.ErrRange) {
			t.Errorf("%v", err)
		}
	}
	must(t, streams[0].ToHost(at(host), m, 0, 0), streams[1].Close(), streams[0].Close(), streams[0].Close(), unpin(), unpin(), m.Free())
}

// TestMarks frees marks in any order, and not at all.
func TestMarks(t *testing.T) {
	lock(t)
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("DOUBLE_LOG", log)
	g := open(t, cudatest.Build(t))
	s, err := g.Stream()
	must(t, err)
	for range 3 {
		var marks []*cuda.Mark
		for range 5 {
			mark, err := s.Mark()
			must(t, err)
			marks = append(marks, mark)
		}
		for _, i := range []int{2, 0, 4, 1, 3} {
			must(t, marks[i].Free())
			if _, err := marks[i].Reached(); !errors.Is(err, cuda.ErrClosed) {
				t.Errorf("%v", err)
			}
			if err := marks[i].Wait(); !errors.Is(err, cuda.ErrClosed) {
				t.Errorf("%v", err)
			}
		}
	}
	for range 7 {
		_, err := s.Mark()
		must(t, err)
	}
	must(t, s.Close())
	calls, err := os.ReadFile(log)
	must(t, err)
	if made, gone := strings.Count(string(calls), "cuEventCreate"), strings.Count(string(calls), "cuEventDestroy_v2"); made != 7 || gone != 7 {
		t.Errorf("%d events made, %d destroyed", made, gone)
	}
	if _, err := s.Mark(); !errors.Is(err, cuda.ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := s.Wait(); !errors.Is(err, cuda.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestForgotten closes a GPU of which everything is still in use: all is freed,
// newest first, and told.
func TestForgotten(t *testing.T) {
	lock(t)
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("DOUBLE_LOG", log)
	root := cudatest.Build(t)
	g, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}})
	must(t, err)
	_, err = use(t, g, mapped(t, 4096))
	must(t, err)
	err = g.Close()
	if err == nil || err.Error() != "GPU 0000:3b:00.0 was closed with 1 times memory in use\nGPU 0000:3b:00.0 was closed with 1 times pinned memory in use\nGPU 0000:3b:00.0 was closed with 1 times stream in use" {
		t.Errorf("%v", err)
	}
	must(t, g.Close())
	text, err := os.ReadFile(log)
	must(t, err)
	calls := strings.Fields(string(text))
	// The first wait is of use, the second of Close.
	want := []string{"cuStreamSynchronize", "cuStreamSynchronize", "cuEventDestroy_v2", "cuStreamDestroy_v2", "cuMemHostUnregister", "cuMemFree_v2", "cuCtxSetCurrent", "cuDevicePrimaryCtxRelease_v2", "released", "memory=0", "pinned=0", "streams=0", "events=0"}
	if got := calls[max(0, len(calls)-len(want)):]; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	_, err = g.Alloc(cuda.Granularity)
	_, pinned := g.Pin(at(make([]byte, 8)), 8)
	_, stream := g.Stream()
	for _, err := range []error{err, pinned, stream} {
		if !errors.Is(err, cuda.ErrClosed) {
			t.Errorf("%v", err)
		}
	}
}

// use makes one of everything and calls every function. It returns what frees it.
func use(t testing.TB, g *cuda.GPU, host []byte) (free []func() error, err error) {
	m, err := g.Alloc(cuda.Granularity)
	if err != nil {
		return free, err
	}
	free = append(free, m.Free)
	unpin, err := g.Pin(at(host), len(host))
	if err != nil {
		return free, err
	}
	free = append(free, unpin)
	s, err := g.Stream()
	if err != nil {
		return free, err
	}
	free = append(free, s.Close)
	fd, err := m.DMABuf()
	if err != nil {
		return free, err
	}
	must(t, syscall.Close(fd))
	if _, err := m.SyncMemops(); err != nil {
		return free, err
	}
	for _, do := range []func() error{
		func() error { return m.Write(0, host) },
		func() error { return m.Read(0, host) },
		func() error { return s.FromHost(m, 0, at(host), len(host)) },
		func() error { return s.ToHost(at(host), m, 0, len(host)) },
	} {
		if err := do(); err != nil {
			return free, err
		}
	}
	mark, err := s.Mark()
	if err != nil {
		return free, err
	}
	for reached := false; !reached; {
		if reached, err = mark.Reached(); err != nil {
			return free, err
		}
	}
	return free, errors.Join(mark.Wait(), mark.Free(), s.Wait())
}

// TestEveryFailure lets every function fail in turn, at each of its first calls:
// the error names function and code, and nothing is left behind that could be freed.
func TestEveryFailure(t *testing.T) {
	lock(t)
	root := cudatest.Build(t)
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("DOUBLE_LOG", log)
	host := mapped(t, 4096)
	cycle := func() error {
		g, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}})
		if err != nil {
			return err
		}
		free, err := use(t, g, host)
		errs := []error{err}
		for _, f := range slices.Backward(free) {
			errs = append(errs, f())
		}
		return errors.Join(append(errs, g.Close())...)
	}
	must(t, cycle())
	text, err := os.ReadFile(log)
	must(t, err)
	counts := map[string]int{}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if !strings.HasPrefix(line, "released") {
			counts[line]++
		}
	}
	if len(counts) != 30 { // all of driver.h but cuGetErrorName
		t.Errorf("%d functions were called: %v", len(counts), counts)
	}
	frees := map[string]string{"cuMemFree_v2": "memory", "cuMemHostUnregister": "pinned", "cuStreamDestroy_v2": "streams", "cuEventDestroy_v2": "events"}
	for function, calls := range counts {
		for n := 1; n <= calls; n++ {
			must(t, os.WriteFile(log, nil, 0o644))
			t.Setenv("DOUBLE_FAIL", fmt.Sprintf("%s:719:%d", function, n))
			err := cycle()
			var failed *cuda.Error
			if !errors.As(err, &failed) || failed.Function != function || failed.Code != 719 || failed.Name != "CUDA_ERROR_LAUNCH_FAILED" {
				t.Errorf("%s, call %d: %v", function, n, err)
			}
			text, _ := os.ReadFile(log)
			_, released, _ := strings.Cut(string(text), "\nreleased ")
			want := "memory=0 pinned=0 streams=0 events=0\n"
			if what := frees[function]; what != "" { // nothing else than what could not be freed
				want = strings.Replace(want, what+"=0", what+"=1", 1)
			}
			if retained := strings.Contains(string(text), "cuCtxSetCurrent\n"); retained != (released != "") || retained && released != want {
				t.Errorf("%s, call %d: %q was left behind of:\n%s", function, n, released, text)
			}
			t.Setenv("DOUBLE_FAIL", "")
		}
	}
}

// TestThread uses a GPU on another thread than its own.
func TestThread(t *testing.T) {
	lock(t)
	g := open(t, cudatest.Build(t))
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		_, err := g.Alloc(cuda.Granularity)
		result <- err
	}()
	if err := <-result; !errors.Is(err, cuda.InvalidContext) {
		t.Errorf("%v", err)
	}
}

// TestCycles opens and closes a GPU often: descriptors and mappings stay as many.
func TestCycles(t *testing.T) {
	lock(t)
	root := cudatest.Build(t)
	host := mapped(t, 4096)
	cycle := func() {
		g, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}})
		must(t, err)
		free, err := use(t, g, host)
		must(t, err)
		for _, f := range slices.Backward(free) {
			must(t, f())
		}
		must(t, g.Close())
	}
	count := func() (descriptors, mappings int) {
		entries, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		maps, err := os.ReadFile("/proc/self/maps")
		must(t, err)
		return len(entries), strings.Count(string(maps), "memfd:gpu") + strings.Count(string(maps), "libcuda")
	}
	cycle()
	descriptors, mappings := count()
	for range 200 {
		cycle()
	}
	if d, m := count(); d != descriptors || m != mappings {
		t.Errorf("%d descriptors, were %d; %d mappings, were %d", d, descriptors, m, mappings)
	}
}

// TestHang is the double's: a call that hangs for ever, and is no hindrance to
// others, and one that hangs for a while.
func TestHang(t *testing.T) {
	lock(t)
	root := cudatest.Build(t)
	t.Setenv("DOUBLE_HANG", "cuInit")
	returned := make(chan struct{})
	go func() { // and its thread, until the test's process ends
		_, _ = cuda.Open(cudatest.Address, cuda.Options{Roots: []string{root}})
		close(returned)
	}()
	select {
	case <-returned:
		t.Error("it did not hang")
	case <-time.After(200 * time.Millisecond):
	}
	t.Setenv("DOUBLE_HANG", "cuMemAlloc_v2:300")
	g := open(t, root)
	start := time.Now()
	m, err := g.Alloc(cuda.Granularity)
	must(t, err)
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("it took %v", took)
	}
	must(t, m.Free())
}

func TestObserve(t *testing.T) {
	lock(t)
	var steps []string
	g, err := cuda.Open(cudatest.Address, cuda.Options{Roots: []string{cudatest.Build(t)}, Observe: func(step string, took time.Duration) {
		if took <= 0 {
			t.Errorf("%s took %v", step, took)
		}
		steps = append(steps, step)
	}})
	must(t, err)
	must(t, g.Close())
	if want := []string{"load", "cuInit", "gate", "context", "release"}; !reflect.DeepEqual(steps, want) {
		t.Errorf("%q", steps)
	}
}

func TestErrorText(t *testing.T) {
	if got := cuda.Code(4711).Error(); got != "CUDA_ERROR_4711" {
		t.Error(got)
	}
	err := error(&cuda.Error{Function: "cuInit", Code: cuda.SystemNotReady, Name: "CUDA_ERROR_SYSTEM_NOT_READY"})
	if err.Error() != "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)" || !errors.Is(err, cuda.SystemNotReady) || errors.Is(err, cuda.Unknown) {
		t.Error(err)
	}
}

func benchmarkStream(b *testing.B, size int, mark bool) {
	lock(b)
	g := open(b, cudatest.Build(b))
	m, err := g.Alloc(8 << 20)
	must(b, err)
	host := mapped(b, 8<<20)
	unpin, err := g.Pin(at(host), len(host))
	must(b, err)
	s, err := g.Stream()
	must(b, err)
	b.ReportAllocs()
	b.SetBytes(int64(size))
	for b.Loop() {
		if err := s.ToHost(at(host), m, 0, size); err != nil {
			b.Fatal(err)
		}
		if !mark {
			continue
		}
		mark, err := s.Mark()
		if err != nil {
			b.Fatal(err)
		}
		if err := mark.Wait(); err != nil {
			b.Fatal(err)
		}
		_ = mark.Free()
	}
	must(b, s.Close(), unpin(), m.Free())
}

// BenchmarkStream shows what enqueueing, and with a mark to wait for, costs beside
// the copy: size 1 is nearly all overhead, the double's and cgo's included.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{1, 64 << 10, 4 << 20} {
		b.Run(fmt.Sprintf("copy/%d", size), func(b *testing.B) { benchmarkStream(b, size, false) })
		b.Run(fmt.Sprintf("copy+mark/%d", size), func(b *testing.B) { benchmarkStream(b, size, true) })
	}
}

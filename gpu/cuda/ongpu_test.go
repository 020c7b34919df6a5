package cuda_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/gpu/cuda"
)

const (
	onGPUSize   = 64 << 20
	onGPUChunk  = 4 << 20
	onGPUCycles = 20
	onGPUFloor  = 4 << 30
	// childVariable says what a child process of TestOnGPU does.
	childVariable = "GDR_CUDA_CHILD"
)

// TestOnGPU does on a real GPU, in child processes that all end, what the double
// cannot show: that libcuda takes the calls as they are declared, what they cost,
// and that GPU and other processes are as before. Build and carry over:
//
//	go test -c ./gpu/cuda
//	GDR_ON_GPU=1 ./cuda.test -test.v -test.run '^TestOnGPU$'
//
// GDR_GPU names another GPU than the first, GDR_CUDA_ROOT another driver root.
func TestOnGPU(t *testing.T) {
	if os.Getenv("GDR_ON_GPU") != "1" {
		t.Skip("GDR_ON_GPU=1 is not set: no NVIDIA GPU is promised here")
	}
	address := gpuAddress(t)
	before := smi(t, address)
	t.Logf("before: %s", before)
	t.Run("cycles", func(t *testing.T) {
		out, err := child(address, "cycles").CombinedOutput()
		t.Logf("%s", out)
		must(t, err)
		asBefore(t, address, before)
	})
	t.Run("full", func(t *testing.T) {
		for _, leave := range []int{0, 2 << 30} { // no room for a context; room, but below the floor
			besideAnother(t, address, leave)
			asBefore(t, address, before)
		}
	})
	t.Run("again", func(t *testing.T) {
		out, err := child(address, "open").CombinedOutput()
		t.Logf("%s", out)
		must(t, err)
		asBefore(t, address, before)
	})
}

// TestOnGPUChild is what the children do.
func TestOnGPUChild(t *testing.T) {
	address := os.Getenv("GDR_GPU")
	switch os.Getenv(childVariable) {
	case "cycles":
		lock(t)
		childCycles(t, address)
	case "open":
		lock(t)
		g, err := cuda.Open(address, onGPUOptions(onGPUFloor))
		must(t, err)
		must(t, g.Close())
	case "refused":
		lock(t)
		start := time.Now()
		g, err := cuda.Open(address, onGPUOptions(onGPUFloor))
		var refused *cuda.RefusedError
		if g != nil || !errors.As(err, &refused) || refused.Reason != cuda.ReasonMemory {
			t.Fatalf("not refused for want of memory: %v", err)
		}
		t.Logf("refused after %v: %v", time.Since(start), err)
	case "hog":
		lock(t)
		childHog(t, address)
	default:
		t.Skip("not started by TestOnGPU")
	}
}

func child(address, what string, more ...string) *exec.Cmd {
	command := exec.Command(os.Args[0], "-test.v", "-test.run=^TestOnGPUChild$")
	command.Env = append(cuda.WithoutMPS(os.Environ()), childVariable+"="+what, "GDR_GPU="+address)
	command.Env = append(command.Env, more...)
	return command
}

func onGPUOptions(minFree uint64) cuda.Options {
	roots := []string{"/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/usr/local/nvidia"}
	if root := os.Getenv("GDR_CUDA_ROOT"); root != "" {
		roots = []string{root}
	}
	return cuda.Options{Roots: roots, MinFree: minFree}
}

// runSMI runs nvidia-smi.
func runSMI(t *testing.T, arguments ...string) string {
	t.Helper()
	tool, err := exec.LookPath("nvidia-smi")
	if err != nil {
		tool = "/usr/local/nvidia/bin/nvidia-smi"
	}
	out, err := exec.Command(tool, arguments...).Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", tool, err, out)
	}
	return strings.TrimSpace(string(out))
}

// gpuAddress is the GPU to use, in sysfs form.
func gpuAddress(t *testing.T) string {
	if address := os.Getenv("GDR_GPU"); address != "" {
		return address
	}
	first, _, _ := strings.Cut(runSMI(t, "--query-gpu=pci.bus_id", "--format=csv,noheader"), "\n")
	first = strings.ToLower(strings.TrimSpace(first)) // 00000000:3b:00.0
	return first[max(0, len(first)-len("0000:3b:00.0")):]
}

// smi is used memory and processes of a GPU, by nvidia-smi.
func smi(t *testing.T, address string) string {
	t.Helper()
	return runSMI(t, "-i", address, "--query-gpu=memory.used", "--format=csv,noheader") + " used, processes [" +
		runSMI(t, "-i", address, "--query-compute-apps=pid,used_memory", "--format=csv,noheader") + "]"
}

// asBefore compares memory and processes with those before; the driver may take a
// moment to clear up after a process.
func asBefore(t *testing.T, address, before string) {
	t.Helper()
	var now string
	for range 20 {
		if now = smi(t, address); now == before {
			t.Logf("as before: %s", now)
			return
		}
		time.Sleep(250 * time.Millisecond)
	}
	t.Errorf("before: %s; now: %s", before, now)
}

// besideAnother has nearly all GPU memory taken by another process: opening the GPU
// is refused, and the other process keeps working.
func besideAnother(t *testing.T, address string, leave int) {
	hog := child(address, "hog", "GDR_CUDA_LEAVE="+strconv.Itoa(leave))
	input, err := hog.StdinPipe()
	must(t, err)
	output, err := hog.StdoutPipe()
	must(t, err)
	must(t, hog.Start())
	lines := bufio.NewScanner(output)
	ready := false
	for !ready && lines.Scan() {
		t.Logf("hog: %s", lines.Text())
		ready = strings.HasPrefix(lines.Text(), "ready")
	}
	if ready {
		t.Logf("while it runs: %s", smi(t, address))
		out, err := child(address, "refused").CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Error(err)
		}
	}
	must(t, input.Close())
	for lines.Scan() {
		t.Logf("hog: %s", lines.Text())
	}
	if err := hog.Wait(); err != nil || !ready {
		t.Errorf("the other process: ready %v, %v", ready, err)
	}
}

// childHog takes all GPU memory but what it is to leave, and copies and compares
// until its input ends.
func childHog(t *testing.T, address string) {
	leave, err := strconv.Atoi(os.Getenv("GDR_CUDA_LEAVE"))
	must(t, err)
	g, err := cuda.Open(address, onGPUOptions(0))
	must(t, err)
	first, err := g.Alloc(onGPUSize)
	must(t, err)
	taken := []*cuda.Memory{first}
	room := int(g.Facts().Free) - onGPUSize - leave
	for _, size := range []int{1 << 30, 64 << 20, cuda.Granularity} {
		for room >= size {
			m, err := g.Alloc(size)
			if errors.Is(err, cuda.OutOfMemory) {
				break
			}
			must(t, err)
			taken = append(taken, m)
			room -= size
		}
	}
	fmt.Printf("ready: took all but %d MiB of %d MiB that were free\n", (room+leave)>>20, g.Facts().Free>>20)
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	source, target := make([]byte, onGPUSize), make([]byte, onGPUSize)
	pattern(source, 5)
	for copies := 1; ; copies++ {
		must(t, first.Write(0, source), first.Read(0, target))
		if !bytes.Equal(source, target) {
			t.Fatalf("copy %d came back different", copies)
		}
		select {
		case <-ended:
			fmt.Printf("unharmed: %d copies there and back\n", copies)
			for _, m := range taken {
				must(t, m.Free())
			}
			must(t, g.Close())
			return
		default:
		}
	}
}

// childCycles does whole cycles, the first of them in depth.
func childCycles(t *testing.T, address string) {
	stages := map[string][]time.Duration{}
	var order []string
	note := func(step string, took time.Duration) {
		if stages[step] == nil {
			order = append(order, step)
		}
		stages[step] = append(stages[step], took)
	}
	host := mapped(t, 2*onGPUSize)
	used := ""
	descriptors := 0
	for cycle := range onGPUCycles {
		start := time.Now()
		oneCycle(t, address, host, cycle == 0, note)
		if cycle > 0 {
			note("whole cycle", time.Since(start))
		}
		if cycle != 1 && cycle != onGPUCycles-1 {
			continue
		}
		now, entries := smi(t, address), 0
		if list, err := os.ReadDir("/proc/self/fd"); err == nil {
			entries = len(list)
		}
		t.Logf("closed after cycle %d: %s, %d descriptors", cycle+1, now, entries)
		if used != "" && (now != used || entries != descriptors) {
			t.Errorf("it grew: %s, %d descriptors", used, descriptors)
		}
		used, descriptors = now, entries
	}
	for _, step := range order {
		took := stages[step]
		first := took[0]
		slices.Sort(took)
		t.Logf("%-12s first %10v  median %10v  largest %10v  of %d", step, first.Round(time.Microsecond), took[len(took)/2].Round(time.Microsecond), took[len(took)-1].Round(time.Microsecond), len(took))
	}
}

// oneCycle opens, fills, verifies, exports and closes; in depth it measures copies.
func oneCycle(t *testing.T, address string, host []byte, depth bool, note func(string, time.Duration)) {
	timed := func(step string, do func() error) {
		t.Helper()
		start := time.Now()
		err := do()
		note(step, time.Since(start))
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
	}
	options := onGPUOptions(onGPUFloor)
	options.Observe = note
	g, err := cuda.Open(address, options)
	must(t, err)
	if depth {
		t.Logf("%s: %+v", g.Library(), g.Facts())
		if f := g.Facts(); f.Address != address || !strings.HasPrefix(f.UUID, "GPU-") || f.Name == "" || f.Free == 0 || f.Free > f.Total || f.Driver < 11000 {
			t.Error("these are no facts of a GPU")
		}
	}
	var m *cuda.Memory
	timed("alloc", func() (err error) { m, err = g.Alloc(onGPUSize); return err })
	if on, err := m.SyncMemops(); !on || err != nil || m.Pointer()%cuda.Granularity != 0 {
		t.Errorf("at %#x: SYNC_MEMOPS %v %v", m.Pointer(), on, err)
	}
	exported(t, g, m, depth, timed)
	var unpin func() error
	timed("pin", func() (err error) { unpin, err = g.Pin(at(host), len(host)); return err })
	source, target := host[:onGPUSize], host[onGPUSize:]
	pattern(source, 1)
	clear(target)
	timed("fill", func() error { return m.Write(0, source) })
	timed("read back", func() error { return m.Read(0, target) })
	if !bytes.Equal(source, target) {
		t.Error("what was read is not what was written")
	}
	if depth {
		copies(t, g, m, source, target)
	}
	timed("unpin", unpin)
	timed("free", m.Free)
	must(t, g.Close())
}

// exported exports the memory as a dma-buf and looks at its size.
func exported(t *testing.T, g *cuda.GPU, m *cuda.Memory, depth bool, timed func(string, func() error)) {
	if !g.Facts().DMABuf {
		t.Log("no dma-buf by the GPU's own word")
		return
	}
	fd := -1
	timed("dma-buf", func() (err error) { fd, err = m.DMABuf(); return err })
	end, err := syscall.Seek(fd, 0, io.SeekEnd)
	var status syscall.Stat_t
	failed := syscall.Fstat(fd, &status)
	link, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if depth {
		t.Logf("dma-buf %s: lseek %d %v, fstat %d %v", link, end, err, status.Size, failed)
	}
	if end != onGPUSize || err != nil {
		t.Errorf("dma-buf of %d bytes: %v", end, err)
	}
	must(t, syscall.Close(fd))
}

// copies measures the pipeline of chunks through two streams beside plain copies
// of pinned memory, in turns, each way.
func copies(t *testing.T, g *cuda.GPU, m *cuda.Memory, source, target []byte) {
	var streams [2]*cuda.Stream
	for i := range streams {
		var err error
		streams[i], err = g.Stream()
		must(t, err)
	}
	plain := func(toHost bool, chunk int) {
		for at := 0; at < onGPUSize; at += chunk {
			if toHost {
				must(t, m.Read(at, target[at:at+chunk]))
			} else {
				must(t, m.Write(at, source[at:at+chunk]))
			}
		}
	}
	for _, toHost := range []bool{true, false} {
		names := []string{"64 MiB plain", "4 MiB plain", "pipeline"}
		rates, seconds := map[string][]float64{}, map[string]float64{}
		for round := range 16 {
			for i, do := range []func(){
				func() { plain(toHost, onGPUSize) },
				func() { plain(toHost, onGPUChunk) },
				func() { pipeline(t, streams, m, toHost, source, target) },
			} {
				cpu, start := threadCPU(), time.Now()
				for range 4 {
					do()
				}
				took := time.Since(start).Seconds()
				if round > 0 { // the first one warms up
					rates[names[i]] = append(rates[names[i]], 4*onGPUSize/took/1e9)
					seconds[names[i]] += threadCPU() - cpu
				}
			}
		}
		for _, name := range names {
			slices.Sort(rates[name])
			t.Logf("to host %v: %-12s median %.1f GB/s (%.1f to %.1f), %.3f CPU seconds per GB", toHost, name, rates[name][7], rates[name][0], rates[name][14], seconds[name]/(15*4*onGPUSize/1e9))
		}
		for _, name := range names[:2] {
			ratio := rates["pipeline"][7] / rates[name][7]
			t.Logf("to host %v: pipeline is %.3f of %s", toHost, ratio, name)
			if ratio < 0.9 {
				t.Errorf("to host %v: the pipeline is %.3f of %s, 0.9 is wanted", toHost, ratio, name)
			}
		}
		clear(target)
		plain(true, onGPUSize)
		if !bytes.Equal(source, target) {
			t.Error("the copies are wrong")
		}
	}
	small(t, streams[0], m, target)
	must(t, streams[0].Close(), streams[1].Close())
}

// pipeline copies the memory once, with four chunks under way, as a library does.
func pipeline(t *testing.T, streams [2]*cuda.Stream, m *cuda.Memory, toHost bool, source, target []byte) {
	const depth = 4
	var marks [depth]*cuda.Mark
	for i := range onGPUSize/onGPUChunk + depth {
		if mark := marks[i%depth]; mark != nil {
			must(t, mark.Wait(), mark.Free())
			marks[i%depth] = nil
		}
		offset := i * onGPUChunk
		if offset >= onGPUSize {
			continue
		}
		s := streams[i%2]
		if toHost {
			must(t, s.ToHost(at(target[offset:]), m, offset, onGPUChunk))
		} else {
			must(t, s.FromHost(m, offset, at(source[offset:]), onGPUChunk))
		}
		var err error
		marks[i%depth], err = s.Mark()
		must(t, err)
	}
}

// small measures what a copy of 8 bytes takes, waited for in three ways.
func small(t *testing.T, s *cuda.Stream, m *cuda.Memory, target []byte) {
	for name, wait := range map[string]func(*cuda.Mark) error{
		"mark, waited":   (*cuda.Mark).Wait,
		"stream, waited": func(*cuda.Mark) error { return s.Wait() },
		"mark, polled": func(m *cuda.Mark) error {
			for {
				if reached, err := m.Reached(); reached || err != nil {
					return err
				}
			}
		},
	} {
		var took []time.Duration
		for range 1000 {
			start := time.Now()
			must(t, s.ToHost(at(target), m, 0, 8))
			mark, err := s.Mark()
			must(t, err, wait(mark), mark.Free())
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		t.Logf("8 bytes, %-14s median %v, 99th percentile %v", name, took[500], took[990])
	}
}

// threadCPU is the CPU time of the calling thread in seconds.
func threadCPU() float64 {
	const rusageThread = 1
	var usage syscall.Rusage
	if syscall.Getrusage(rusageThread, &usage) != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/rdma/loopback/prober"
)

// proberHost is this host as the prober sees it: through the daemon's own readers,
// and through a few files beside them.
type proberHost struct {
	config *config
	taker  *snapshot.Taker
	nvml   *gpu.Reader // nil: NVML is not used
	// dev and proc are where device nodes and this process are, verbsDirs where
	// libibverbs is looked for before loaderFinds is asked. Tests have others.
	dev, proc   string
	verbsDirs   []string
	loaderFinds func(name string) bool

	mu     sync.Mutex
	choice snapshot.PairChoice
	active map[prober.Port]bool // ports that have been ACTIVE
	// reading are the devices whose files are being read, each with what is closed
	// when it has answered: one that hangs costs one goroutine.
	reading map[string]chan struct{}
	rates   portRates
}

// newProberHost returns the prober's host. nvml is nil where NVML is not used.
func newProberHost(c *config, pairs snapshot.PairChoice, taker *snapshot.Taker, nvml *gpu.Reader) *proberHost {
	h := &proberHost{
		config: c, taker: taker, nvml: nvml, dev: "/dev", proc: procfs.DefaultMountPoint, verbsDirs: verbsDirs, loaderFinds: loaderFinds,
		choice: pairs, active: map[prober.Port]bool{}, reading: map[string]chan struct{}{},
	}
	h.choice.Active = func(port prober.Port) bool { return h.active[port] }
	return h
}

// remember takes ports that were ACTIVE in the life of another process, so that
// one whose cable was pulled since is still the one to measure.
func (h *proberHost) remember(ports iter.Seq[prober.Port]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for port := range ports {
		h.active[port] = true
	}
}

// probeCollectors are those whose readers tell the prober of the host.
var probeCollectors = []string{snapshot.CollectorRDMA, snapshot.CollectorGPU, snapshot.CollectorDriver, snapshot.CollectorAffinity}

// Look reads the host, or takes what a scrape has read a moment ago.
func (h *proberHost) Look(ctx context.Context) prober.Sighting {
	ctx, cancel := context.WithTimeout(ctx, h.config.deadline)
	defer cancel()
	return h.sighting(h.taker.Take(ctx, func(name string) bool { return slices.Contains(probeCollectors, name) }))
}

// sighting is what a Snapshot tells the prober.
func (h *proberHost) sighting(s *snapshot.Snapshot) prober.Sighting {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := s.Sighting(h.choice)
	for port, state := range seen.Ports {
		if state.State == sysread.Some(portActive) {
			h.active[port] = true
		}
	}
	if seen.Devices.Known {
		// A device that comes back under the name may be another one.
		maps.DeleteFunc(h.active, func(port prober.Port, _ bool) bool { return !slices.Contains(seen.Devices.Value, port.Device) })
	}
	if seen.Pairs.Known {
		h.choice.Last = seen.Pairs.Value
	}
	return seen
}

// portActive is IB_PORT_ACTIVE of enum ib_port_state.
const portActive = 4

// Load reads how much the pair's port and GPU have done. A device that hangs is
// waited for as long as a scrape would, and not asked again until it answers.
func (h *proberHost) Load(ctx context.Context, pair prober.Pair) prober.Load {
	ctx, cancel := context.WithTimeout(ctx, h.config.deadline)
	defer cancel()
	load, read := unlessHanging(ctx, h, pair.Device, func() prober.Load {
		files := portLoad{sysfs: h.config.sysfs, device: pair.Device, port: pair.Port, rates: &h.rates}
		return files.read()
	})
	if !read {
		load = prober.Load{}
	}
	if load.Time.IsZero() {
		load.Time = time.Now()
	}
	switch {
	case pair.GPU == "": // of host memory alone
		load.GPU = sysread.Some(0.0)
	case h.nvml != nil:
		if busy, err := h.nvml.Utilization(ctx, pair.GPU); err == nil {
			load.GPU = sysread.Some(busy)
		}
	}
	return load
}

// unlessHanging does a read of a device that may hang, unless one hangs already.
func unlessHanging[T any](ctx context.Context, h *proberHost, device string, read func() T) (value T, ok bool) {
	answered, done := make(chan struct{}), make(chan T, 1)
	h.mu.Lock()
	_, busy := h.reading[device]
	if !busy {
		h.reading[device] = answered
	}
	h.mu.Unlock()
	if busy {
		return value, false
	}
	go func() {
		result := read()
		h.mu.Lock()
		delete(h.reading, device)
		h.mu.Unlock()
		close(answered)
		done <- result
	}()
	select {
	case value = <-done:
		return value, true
	case <-ctx.Done():
		return value, false
	}
}

// hanging names a device whose files are being read and do not answer soon, "" if
// there is none. A read takes milliseconds.
func (h *proberHost) hanging(ctx context.Context) string {
	const soon = time.Second
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	h.mu.Lock()
	reading := maps.Clone(h.reading)
	h.mu.Unlock()
	for _, device := range slices.Sorted(maps.Keys(reading)) {
		select {
		case <-reading[device]:
		case <-ctx.Done():
			return device
		}
	}
	return ""
}

// errNoNVML says that this exporter does not use NVML.
var errNoNVML = errors.New("NVML is not used: collectors gpu, nvlink and fabric are off")

// Processes asks NVML which processes have a context on the GPU.
func (h *proberHost) Processes(ctx context.Context, address string) ([]int, error) {
	if h.nvml == nil {
		return nil, errNoNVML
	}
	ctx, cancel := context.WithTimeout(ctx, h.config.deadline)
	defer cancel()
	return h.nvml.Processes(ctx, address)
}

// Blocked says what keeps this process from measuring a pair, without opening
// anything. A run finds out the same, but may have woken the GPU by then.
func (h *proberHost) Blocked(pair prober.Pair, registers uint64) (prober.Reason, error) {
	if err := h.libraries(); err != nil {
		return prober.ReasonLibrary, err
	}
	if err := errors.Join(h.uverbsNode(pair.Device), h.gpuNodes(pair.GPU)); err != nil {
		return prober.ReasonDeviceNode, err
	}
	if err := h.memlock(registers); err != nil {
		return prober.ReasonMemlock, err
	}
	return prober.ReasonNone, nil
}

// Libraries that a run loads.
const (
	verbsLibrary = "libibverbs.so.1"
	cudaLibrary  = "libcuda.so.1"
)

// driverLibraryDirs are the directories below a driver root, as package cuda has them.
var driverLibraryDirs = []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64", "lib"}

// libraries looks for the libraries that a run loads. Whether one that is there
// can be loaded is for the run to find out.
func (h *proberHost) libraries() error {
	if !inAny(h.verbsDirs, verbsLibrary) && !h.loaderFinds(verbsLibrary) {
		return fmt.Errorf("no %s: the package libibverbs1 or libibverbs is not installed", verbsLibrary)
	}
	loader := len(h.config.driverRoots) == 0
	for _, root := range h.config.driverRoots {
		loader = loader || filepath.Clean(root) == "/"
		for _, dir := range driverLibraryDirs {
			// A link's target may be meant below the root, so it is not followed.
			if _, err := os.Lstat(filepath.Join(root, dir, cudaLibrary)); err == nil {
				return nil
			}
		}
	}
	if loader && h.loaderFinds(cudaLibrary) {
		return nil
	}
	return fmt.Errorf("no %s below %s", cudaLibrary, strings.Join(h.config.driverRoots, ", "))
}

func inAny(dirs []string, name string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	})
}

// loaderFinds reports whether the dynamic loader may find a library: in
// LD_LIBRARY_PATH, in its cache or in the directories that it always looks in.
func loaderFinds(name string) bool {
	dirs := append(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), "/lib64", "/usr/lib64", "/lib", "/usr/lib")
	if inAny(dirs, name) {
		return true
	}
	const most = 16 << 20
	file, err := os.Open("/etc/ld.so.cache")
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) // who knows
	}
	defer func() { _ = file.Close() }()
	cache, err := io.ReadAll(io.LimitReader(file, most))
	return err != nil || bytes.Contains(cache, append([]byte(name), 0))
}

// uverbsNode looks for the character device of an RDMA device. What cannot be
// found out is not held against it.
func (h *proberHost) uverbsNode(device string) error {
	class := filepath.Join(h.config.sysfs, "class/infiniband_verbs")
	var io sysread.IO
	names, err := sysread.ReadNames(&io, class)
	switch {
	case sysread.Absent(err):
		return errors.New("no verbs devices: is ib_uverbs loaded?")
	case err != nil:
		return nil //nolint:nilerr // the run will tell
	}
	for _, name := range names {
		if owner, err := sysread.ReadOnce(&io, filepath.Join(class, name, "ibdev")); err == nil && owner == device {
			return accessible(filepath.Join(h.dev, "infiniband", name))
		}
	}
	return fmt.Errorf("%s has no verbs device", device)
}

// gpuNodes looks for the device nodes that libcuda opens. Left to itself it has
// nvidia-modprobe make those that are missing, which is a change to the host. Where
// there is no driver, or something stands in for GPUs, there are none.
func (h *proberHost) gpuNodes(address string) error {
	proc := filepath.Join(h.config.procfs, "driver/nvidia")
	if _, err := os.Stat(filepath.Join(proc, "version")); err != nil || len(h.config.gpuStandIns) > 0 {
		return nil //nolint:nilerr // there is no driver
	}
	nodes := []string{"nvidiactl", "nvidia-uvm"}
	if minor := deviceMinor(filepath.Join(proc, "gpus", address, "information")); minor != "" {
		nodes = append(nodes, "nvidia"+minor)
	}
	var missing []error
	for _, node := range nodes {
		missing = append(missing, accessible(filepath.Join(h.dev, node)))
	}
	return errors.Join(missing...)
}

// deviceMinor reads "Device Minor: 	 0" of the driver's file on a GPU; "" if it
// does not say.
func deviceMinor(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "Device Minor:"); found {
			value = strings.TrimSpace(value)
			if strings.Trim(value, "0123456789") == "" {
				return value
			}
		}
	}
	return ""
}

// accessible reports why a device node cannot be opened for reading and writing,
// as far as that shows without opening it. A container's device rules do not.
func accessible(path string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// capIPCLock is CAP_IPC_LOCK: without a limit on locked memory.
const capIPCLock = 1 << 14

// memlock reports that this process may lock less memory than a run registers.
func (h *proberHost) memlock(registers uint64) error {
	proc, err := procfs.NewFS(h.proc)
	if err != nil {
		return nil //nolint:nilerr // not known: the run will tell
	}
	self, err := proc.Self()
	if err != nil {
		return nil //nolint:nilerr // likewise
	}
	limits, err := self.Limits()
	if err != nil || limits.LockedMemory >= registers {
		return nil //nolint:nilerr // likewise
	}
	status, err := self.NewStatus()
	if err != nil || status.CapEff&capIPCLock != 0 {
		return nil //nolint:nilerr // likewise
	}
	return fmt.Errorf("RLIMIT_MEMLOCK is %d bytes, a run registers %d: raise it (LimitMEMLOCK=infinity) or give CAP_IPC_LOCK", limits.LockedMemory, registers)
}

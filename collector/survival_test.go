package collector

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/gpu/driver/drivertest"
	"gdr_exporter/gpu/gputest"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/devlink"
	"gdr_exporter/rdma/rdmatest"
)

// survivalScene is a healthy host whose recording is mutated.
type survivalScene struct {
	name  string
	build func(*testing.T) *replayHost
	// One mutation in so many is tried: usually, and where all are asked for. A
	// large node has a hundred thousand, of devices that are alike.
	sample, all uint32
}

var survivalScenes = []survivalScene{
	{"ib", func(t *testing.T) *replayHost { return hostOf(t, ibPair()) }, 50, 1},
	{"ib-netlink", func(t *testing.T) *replayHost { return hostOf(t, ibPair()).withKernel(t, ibPair()) }, 50, 1},
	{"roce", roceNode, 50, 1},
	{"node", smallNode, 100, 1},
	{"hgx", survivalNode, 20_000, 20},
	{"nvl", nvlNode, 150, 1},
}

func ibPair() *rdmatest.Tree {
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0", PCIAddress: "0000:18:00.0"})
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_1", PCIAddress: "0000:3b:00.0", Ordinal: 1})
	return tree
}

func roceNode(t *testing.T) *replayHost {
	tree := rdmatest.New()
	tree.MLX5RoCE(rdmatest.Options{Name: "mlx5_0", PCIAddress: "0000:18:00.0"})
	tree.MLX5RoCE(rdmatest.Options{Name: "mlx5_1", PCIAddress: "0000:3b:00.0", Ordinal: 1})
	return hostOf(t, tree).withKernel(t, tree)
}

// survivalNode has everything: GPUs with NVML, NICs, driver, PCIe tree, netlink.
func survivalNode(t *testing.T) *replayHost {
	tree := rdmatest.HGX(rdmatest.HGXOptions{RoCE: true, IOMMU: "identity"})
	h := withDriver(t, tree)
	h = h.withKernel(t, tree)
	machine := gputest.HGXH100()
	for i, address := range gpusOf(t, affinity.NewReader(affinity.Options{Sysfs: h.root + "/sys"})) {
		machine.GPUs[i].BusID = "0000" + strings.ToUpper(address)
	}
	h.open = machine.Open
	return h
}

// smallNode has everything that survivalNode has, of fewer: two GPUs and two NICs
// below one switch.
func smallNode(t *testing.T) *replayHost {
	tree := rdmatest.New()
	tree.Dir("sys/class/iommu/dmar0")
	port := "pci0000:15/0000:15:01.0"
	tree.Bridge(port, 4, 0, &[]uint16{0x1d}[0])
	machine := gputest.H100NVL()
	renamed, addresses := map[string]string{}, map[string]bool{}
	for i, at := range tree.Switch(port, 0x16, 4, 0, 0) {
		address := fmt.Sprintf("0000:%02x:00.0", 0x18+i)
		if i < 2 {
			tree.Group(tree.GPUFunction(at+"/"+address, rdmatest.H100SXM, 0), "20", "identity")
			addresses[address] = true
			name := "0000" + strings.ToUpper(address)
			renamed[machine.GPUs[i].BusID], machine.GPUs[i].BusID = name, name
			continue
		}
		nic := tree.MLX5RoCE(rdmatest.Options{Name: fmt.Sprintf("mlx5_%d", i-2), PCIAddress: address, Upstream: at, Ordinal: i - 2})
		tree.NIC(nic, 0)
		tree.Group(nic.Function, "20", "identity")
	}
	for _, g := range machine.GPUs {
		for i := range g.Links {
			g.Links[i].RemoteBusID = cmp.Or(renamed[g.Links[i].RemoteBusID], g.Links[i].RemoteBusID)
		}
	}
	h := withDriver(t, tree, slices.Sorted(maps.Keys(addresses))...).withKernel(t, tree)
	h.open = machine.Open
	return h
}

// nvlNode has two GPUs with NVLink bridges, and the driver's files.
func nvlNode(t *testing.T) *replayHost {
	h := withDriver(t, rdmatest.New())
	h.open = gputest.H100NVL().Open
	return h
}

// withDriver adds the driver's files, which tell of GPUs at those addresses
// alone if there are any.
func withDriver(t *testing.T, tree *rdmatest.Tree, gpus ...string) *replayHost {
	t.Helper()
	host := drivertest.Host{Tree: tree}
	host.File("proc/sys/kernel/osrelease", drivertest.Release+"\n")
	drivertest.Scenes[2].Build(host)
	if len(gpus) > 0 {
		tree.Remove("proc/driver/nvidia/gpus")
	}
	for _, address := range gpus {
		tree.Dir("proc/driver/nvidia/gpus/" + address)
	}
	h := hostOf(t, tree)
	h.roots = []string{"/"}
	return h
}

// Deadlines of a mutated host's scrapes. Where nothing hangs it has to answer
// however busy the machine is that the tests run on.
const (
	hangDeadline = 200 * time.Millisecond
	restDeadline = 20 * time.Second
	slack        = 5 * time.Second // of a busy machine
)

// survivor is an exporter over a host that changes under it.
type survivor struct {
	files   *switchedFiles
	taker   *snapshot.Taker
	handler *Handler
	scrapes atomic.Int64
	stop    func()
}

// now is a clock that moves on with each scrape as between real ones.
func (s *survivor) now() time.Time {
	return time.Now().Add(time.Duration(s.scrapes.Load()) * 3 * time.Second)
}

// survivorOf starts an exporter over a recording.
func survivorOf(h *replayHost, r *capture.Recording, deadline time.Duration) *survivor {
	played, player := h.played(r)
	s := &survivor{files: newSwitchedFiles(player.Files())}
	options := rdma.Options{
		Sysfs: "/sys", Files: s.files, Netlink: played.netlink, Monitor: played.monitor, Ethtool: played.kernel != nil, EthtoolAll: true,
		Kernel: played.kernel, Now: s.now, NetlinkWait: deadline / 4,
	}
	gpus := gpu.Options{Files: s.files, Procfs: "/proc", NVLink: true, PerLink: true, Fabric: true, Open: played.open, Roots: h.roots}
	drivers := driver.Options{Sysfs: "/sys", Procfs: "/proc", Mounts: "/proc/self/mountinfo", Files: s.files, Roots: h.roots}
	builder := snapshot.New(snapshot.Options{Deadline: deadline, Now: s.now}).
		RDMA(rdma.NewReader(options), nil).GPU(gpu.NewReader(gpus)).Driver(driver.NewReader(drivers)).
		Affinity(affinity.NewReader(affinity.Options{Sysfs: "/sys", Files: s.files, Now: s.now}))
	if played.devlink != nil {
		builder.Devlink(devlink.NewReaderOf(played.devlink), 0)
	}
	s.taker = builder.Taker()
	s.handler = newHandler(Config{Taker: s.taker, Enabled: Names(), Roles: noRoles{}})
	s.stop = func() { player.Close(); s.taker.Close() }
	return s
}

// switchTo makes the files those of another recording.
func (s *survivor) switchTo(h *replayHost, r *capture.Recording) {
	_, player := h.played(r)
	s.files.set(player.Files())
	stop := s.stop
	s.stop = func() { player.Close(); stop() }
}

// scrape takes a page, or says what is wrong with it.
func (s *survivor) scrape(deadline time.Duration) (samples, error) {
	s.scrapes.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	started := time.Now()
	families, done, err := s.handler.gather(ctx, Names())
	if err != nil {
		return nil, err
	}
	defer done()
	if took := time.Since(started); took > deadline+slack {
		return nil, fmt.Errorf("the page took %v of %v", took, deadline)
	}
	if err := checkFormats(families); err != nil {
		return nil, err
	}
	return samplesOf(families)
}

// samplesOf returns the samples of a page, checked as a registry would; what
// time makes is 0.
func samplesOf(families []*dto.MetricFamily) (samples, error) {
	all, names := samples{}, map[string]bool{}
	for _, mf := range families {
		name := mf.GetName()
		if names[name] {
			return nil, fmt.Errorf("family %s twice", name)
		}
		names[name] = true
		for _, m := range mf.Metric {
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if strings.HasSuffix(name, "timestamp_seconds") || strings.HasSuffix(name, "duration_seconds") {
				value = 0 // the clock of the test goes by jumps
			}
			if (!(value >= 0) || value > 1e30) && name != "gdr_peermem_parameter" {
				return nil, fmt.Errorf("%s is %v", series(name, m.Label), value)
			}
			key := series(name, m.Label)
			if _, double := all[key]; double || strings.HasPrefix(key, "labels out of order") {
				return nil, fmt.Errorf("series %s twice, or badly labelled", key)
			}
			all[key] = value
		}
	}
	return all, nil
}

// knownGood are families, as text, that have been checked.
var knownGood sync.Map

// checkFormats writes a page in both formats and reads it back, with the formats'
// own parsers and promlint. What was read once needs not be read again.
func checkFormats(families []*dto.MetricFamily) error {
	var text, open bytes.Buffer
	for _, mf := range families {
		text.Reset()
		if _, err := expfmt.MetricFamilyToText(&text, mf); err != nil {
			return err
		}
		if strings.HasPrefix(mf.GetName(), "gdr_scrape_") || strings.Contains(mf.GetName(), "duration") {
			continue // another each time
		}
		if _, seen := knownGood.LoadOrStore(hashOf(text.String()), true); seen {
			continue
		}
		parser := expfmt.NewTextParser(model.LegacyValidation)
		back, err := parser.TextToMetricFamilies(bytes.NewReader(text.Bytes()))
		if err != nil || len(back) != 1 || len(back[mf.GetName()].GetMetric()) != len(mf.Metric) {
			return fmt.Errorf("%s does not parse: %w", mf.GetName(), errors.Join(err, errors.New("or not whole")))
		}
		open.Reset()
		if _, err := expfmt.MetricFamilyToOpenMetrics(&open, mf); err != nil {
			return err
		}
		if err := errors.Join(checkOpenMetrics(open.String(), len(mf.Metric)), checkLint(mf)); err != nil {
			return err
		}
	}
	return nil
}

func hashOf(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return h.Sum64()
}

// switchedFiles are files that can be exchanged for others.
type switchedFiles struct {
	now atomic.Pointer[sysread.Files]
}

func newSwitchedFiles(files sysread.Files) *switchedFiles {
	s := &switchedFiles{}
	s.set(files)
	return s
}

func (s *switchedFiles) set(files sysread.Files) { s.now.Store(&files) }
func (s *switchedFiles) get() sysread.Files      { return *s.now.Load() }

func (s *switchedFiles) ReadAt(path string, to []byte, offset int64) (int, error) {
	return s.get().ReadAt(path, to, offset)
}

func (s *switchedFiles) ReadLines(path string, limit int, keep func([]byte) bool) ([]byte, error) {
	return s.get().ReadLines(path, limit, keep)
}

func (s *switchedFiles) ReadDir(path string) ([]sysread.Entry, error) { return s.get().ReadDir(path) }
func (s *switchedFiles) Readlink(path string) (string, error)         { return s.get().Readlink(path) }
func (s *switchedFiles) Stat(path string) (sysread.Info, error)       { return s.get().Stat(path) }
func (s *switchedFiles) Lstat(path string) (sysread.Info, error)      { return s.get().Lstat(path) }
func (s *switchedFiles) Access(path string) error                     { return s.get().Access(path) }
func (s *switchedFiles) EvalSymlinks(path string) (string, error)     { return s.get().EvalSymlinks(path) }

// survivalOutcome counts what was tried.
type survivalOutcome struct {
	mutations, scrapes, lost, counted, unseen atomic.Int64

	mu     sync.Mutex
	silent map[string]int // by reason
	told   map[string]int // violations by their kind, of which a few are shown
}

// survivalSeed is the seed of the sample, survivalAll whether there is none.
func survivalSeed() string { return os.Getenv("SURVIVAL_SEED") }
func survivalAll() bool    { return os.Getenv("SURVIVAL") == "all" }

// TestSurvival mutates healthy recordings in one place at a time, and checks
// what may not depend on it. SURVIVAL=all tries every mutation of the small hosts, else a sample;
// SURVIVAL_SEED changes which. The large node is sampled all the same.
func TestSurvival(t *testing.T) {
	for _, scene := range survivalScenes {
		t.Run(scene.name, func(t *testing.T) {
			t.Parallel()
			h := scene.build(t)
			recorded, recorder := h.recorded()
			recorded.page(t)
			survive(t, scene, h, recorder.Recording())
		})
	}
}

// survive tries the mutations of a scene, those that hang beside each other.
func survive(t *testing.T, scene survivalScene, h *replayHost, r *capture.Recording) {
	base := survivorOf(h, r, restDeadline)
	defer base.stop()
	var healthy samples
	for range 3 {
		var err error
		if healthy, err = base.scrape(restDeadline); err != nil {
			t.Fatal(err)
		}
	}
	if bad := healthy.filter(func(key string) bool { return strings.HasPrefix(key, "gdr_read_errors_total") }); len(bad) > 0 || len(healthy) < 100 {
		t.Fatalf("the host is not healthy: %d series, %v", len(healthy), bad)
	}
	o := &survivalOutcome{silent: map[string]int{}, told: map[string]int{}}
	world := &mutated{t: t, host: h, recording: r, healthy: healthy, owners: ownersOf(r, healthy), outcome: o}
	all := mutationsOf(r)
	work := make(chan mutation)
	var workers sync.WaitGroup
	for range 12 { // more than there are processors: some wait for what hangs
		workers.Go(func() {
			for m := range work {
				world.check(&m)
			}
		})
	}
	for _, m := range all {
		if sampled(&scene, &m) {
			work <- m
		}
	}
	close(work)
	workers.Wait()
	o.report(t, len(all), len(healthy))
}

// sampled picks one mutation in so many, and fewer of those that take time.
func sampled(scene *survivalScene, m *mutation) bool {
	one := scene.sample
	switch {
	case survivalAll():
		one = scene.all
	case testing.Short():
		one *= 5
	}
	if scene.name == "node" && strings.HasPrefix(m.at, "nvml device") {
		one *= 20 // which nvl tries
	}
	if m.kind == kindHang && one > 1 {
		one *= 10
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(survivalSeed() + scene.name + m.String()))
	return h.Sum32()%one == 0
}

func (o *survivalOutcome) report(t *testing.T, all, series int) {
	t.Helper()
	if o.mutations.Load() == 0 && !testing.Short() {
		t.Error("no mutation was tried")
	}
	t.Logf("%d of %d mutations, %d scrapes of up to %d series: %d cost something, of which %d are counted, %d without a count for %d reasons; %d change nothing",
		o.mutations.Load(), all, o.scrapes.Load(), series, o.lost.Load(), o.counted.Load(), o.lost.Load()-o.counted.Load(), len(o.silent), o.unseen.Load())
	for _, reason := range slices.Sorted(maps.Keys(o.silent)) {
		t.Logf("no count: %s: %d", reason, o.silent[reason])
	}
	for kind, n := range o.told {
		if n > toldOfEach && !survivalAll() {
			t.Errorf("%d more: %s", n-toldOfEach, kind)
		}
	}
}

// mutated is a healthy host, mutated in one place after the other.
type mutated struct {
	t         *testing.T
	host      *replayHost
	recording *capture.Recording
	healthy   samples
	owners    *owners
	outcome   *survivalOutcome
}

// check tries a mutation that is there from the start, and one of files that
// comes after the first scrape.
func (w *mutated) check(m *mutation) {
	w.outcome.mutations.Add(1)
	r := m.apply(w.recording)
	for _, later := range []bool{false, true} {
		if later && (!strings.HasPrefix(m.at, "/") || m.kind == kindHang) {
			continue
		}
		deadline := restDeadline
		if m.kind == kindHang {
			deadline = hangDeadline
		}
		problems := w.try(m, r, later, deadline)
		if len(problems) > 0 && m.kind == kindHang {
			// On a machine that is busy itself the healthy may be late too.
			problems = w.try(m, r, later, 20*hangDeadline)
		}
		w.tell(m, later, problems)
	}
}

// toldOfEach is how many violations of one kind are shown.
const toldOfEach = 40

// tell reports what did not hold for a mutation, a line per kind.
func (w *mutated) tell(m *mutation, later bool, problems []problem) {
	byKind := map[string][]string{}
	for _, p := range problems {
		byKind[p.kind] = append(byKind[p.kind], p.detail)
	}
	w.outcome.mu.Lock()
	defer w.outcome.mu.Unlock()
	for kind, details := range byKind {
		if w.outcome.told[kind]++; w.outcome.told[kind] <= toldOfEach || survivalAll() {
			slices.Sort(details)
			w.t.Errorf("%s: %v (later %v): %d: %s", kind, m, later, len(details), strings.Join(details[:min(len(details), 3)], " | "))
		}
	}
}

// problem is an invariant that did not hold.
type problem struct{ kind, detail string }

// try scrapes the mutated host and compares the last page with the healthy one.
func (w *mutated) try(m *mutation, r *capture.Recording, later bool, deadline time.Duration) (problems []problem) {
	start := r
	if later {
		start = w.recording
	}
	s := survivorOf(w.host, start, deadline)
	defer s.stop()
	var page samples
	for scrape := range 3 {
		if later && scrape == 1 {
			s.switchTo(w.host, r)
		}
		var err error
		if page, err = s.scrape(deadline); err != nil {
			return []problem{{"invalid page", err.Error()}}
		}
		w.outcome.scrapes.Add(1)
	}
	return w.compare(m, page)
}

// compare judges a page.
func (w *mutated) compare(m *mutation, page samples) (problems []problem) {
	lost, gained := difference(w.healthy, page)
	if len(lost)+len(gained) == 0 {
		w.outcome.unseen.Add(1)
		return nil
	}
	scope := w.owners.of(m)
	scope.stuck(m, page)
	for key, value := range lost {
		if !scope.covers(key) {
			problems = append(problems, problem{"healthy: lost", fmt.Sprintf("%s %v", key, value)})
		}
	}
	for key, value := range gained {
		if why := invented(w.healthy, m, scope, key, value); why != "" {
			problems = append(problems, problem{why, fmt.Sprintf("%s %v", key, value)})
		}
	}
	w.outcome.lost.Add(1)
	if countsError(w.healthy, page) {
		w.outcome.counted.Add(1)
		return problems
	}
	reason := silentReason(m)
	if reason == "" {
		keys := slices.Sorted(maps.Keys(lost))
		return append(problems, problem{"lost without a count", strings.Join(append(keys[:min(len(keys), 3)], strconv.Itoa(len(keys))), " | ")})
	}
	w.outcome.mu.Lock()
	defer w.outcome.mu.Unlock()
	w.outcome.silent[reason]++
	return problems
}

// difference returns the series of a page that are not in another one with the
// same value, in both directions, less those about the reading itself.
func difference(healthy, page samples) (lost, gained samples) {
	missing := func(from, in samples) samples {
		return from.filter(func(key string) bool {
			value, found := in[key]
			return (!found || value != from[key]) && !aboutReading(key)
		})
	}
	return missing(healthy, page), missing(page, healthy)
}

func aboutReading(key string) bool {
	return strings.HasPrefix(key, "gdr_scrape_") || strings.HasPrefix(key, "gdr_read_errors_total") || strings.HasPrefix(key, "gdr_device_read_")
}

// countsError reports whether a page says, as the healthy one does not, that
// something could not be read.
func countsError(healthy, page samples) bool {
	for key, value := range page {
		before, found := healthy[key]
		switch {
		case found && before == value:
		case strings.HasPrefix(key, "gdr_read_errors_total") && value > 0,
			strings.HasPrefix(key, "gdr_device_read_stuck") && value > 0,
			strings.HasPrefix(key, "gdr_scrape_collector_success") && value == 0,
			strings.HasPrefix(key, `gdr_gpu_nvml_state,`) && value == 1 && !strings.Contains(key, `state="up"`):
			return true
		}
	}
	return false
}

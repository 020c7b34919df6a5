package collector

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/common/expfmt"

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
	"gdr_exporter/rdma/netdev"
	"gdr_exporter/rdma/nldev"
	"gdr_exporter/rdma/rdmatest"
)

// replayHost is where all readers read: a tree on disk, and what answers the
// questions that are not about files.
type replayHost struct {
	root    string        // of the tree, "" if files are given
	files   sysread.Files // nil: the running system's
	roots   []string      // of the driver, below root
	netlink rdma.Dialer
	kernel  func() netdev.Kernel
	devlink func() (devlink.Conn, error)
	monitor *rdma.Monitor
	open    func(string) (gpu.Library, error)
}

// page takes two scrapes, between which the time passes in which a new device may
// be incomplete, and returns the second one's page. What time makes is set to 0.
func (h *replayHost) page(t *testing.T) string {
	t.Helper()
	at := func(path string) string { return h.root + path }
	now := goldenTime
	clock := func() time.Time { return now }
	options := rdma.Options{
		Sysfs: at("/sys"), Files: h.files, Descriptors: 1024, Netlink: h.netlink, Monitor: h.monitor, Ethtool: h.kernel != nil, EthtoolAll: true, Kernel: h.kernel, Now: clock,
		NetlinkWait: time.Minute, // a machine may stall
	}
	gpus := gpu.Options{Files: h.files, Procfs: at("/proc"), NVLink: true, PerLink: true, Fabric: true, Open: h.open}
	drivers := driver.Options{Sysfs: at("/sys"), Procfs: at("/proc"), Mounts: at("/proc/self/mountinfo"), Files: h.files}
	for _, root := range h.roots {
		gpus.Roots, drivers.Roots = append(gpus.Roots, at(root)), append(drivers.Roots, at(root))
	}
	builder := snapshot.New(snapshot.Options{Deadline: time.Minute, Now: clock}).
		RDMA(rdma.NewReader(options), nil).GPU(gpu.NewReader(gpus)).Driver(driver.NewReader(drivers)).
		Affinity(affinity.NewReader(affinity.Options{Sysfs: at("/sys"), Files: h.files, Descriptors: 1024, Now: clock}))
	if h.devlink != nil {
		builder.Devlink(devlink.NewReaderOf(h.devlink), 0)
	}
	taker := builder.Taker()
	defer taker.Close()
	handler := newHandler(Config{Taker: taker, Enabled: Names(), Roles: noRoles{}})
	var b bytes.Buffer
	for range 2 {
		b.Reset()
		families, done, err := handler.gather(t.Context(), Names())
		if err != nil {
			t.Fatal(err)
		}
		flatten(t, families)
		for _, mf := range families {
			if _, err := expfmt.MetricFamilyToText(&b, mf); err != nil {
				t.Fatal(err)
			}
		}
		done()
		now = now.Add(3 * time.Second)
	}
	text := durations.ReplaceAllString(b.String(), "$1 0")
	if h.root != "" {
		text = strings.ReplaceAll(text, h.root, "")
	}
	return text
}

// recorded is the host below "/", with everything it answers recorded.
func (h *replayHost) recorded() (*replayHost, *capture.Recorder) {
	r := capture.NewRecorder(sysread.Below(h.root), capture.Header{Readers: capture.Readers{Sysfs: "/sys", Procfs: "/proc", DriverRoots: h.roots}},
		func() time.Time { return goldenTime })
	recorded := &replayHost{files: r.Files(), roots: h.roots, monitor: r.Monitor(h.monitor), open: r.NVML(h.open)}
	if h.netlink != nil {
		recorded.netlink = r.Netlink(h.netlink)
	}
	if h.kernel != nil {
		recorded.kernel = r.Kernel(h.kernel)
	}
	if h.devlink != nil {
		recorded.devlink = r.Devlink(h.devlink)
	}
	return recorded, r
}

// played is the host that a recording is of.
func (h *replayHost) played(recording *capture.Recording) (*replayHost, *capture.Player) {
	p := capture.Play(recording)
	played := &replayHost{
		files: p.Files(), roots: recording.Header.Readers.DriverRoots, netlink: p.Netlink(), monitor: p.Monitor(), open: p.NVML(),
	}
	if h.kernel != nil {
		played.kernel = p.Kernel()
	}
	if h.devlink != nil {
		played.devlink = p.Devlink()
	}
	return played, p
}

// checkReplay compares three pages of a host: through the system, through a
// recorder, and from its recording once that has been written and read.
func checkReplay(t *testing.T, h *replayHost) *capture.Recording {
	t.Helper()
	want := h.page(t)
	recorded, recorder := h.recorded()
	if diff := firstDifference(want, recorded.page(t)); diff != "" {
		t.Fatalf("recording changes the page: %s", diff)
	}
	recording := recorder.Recording()
	var archive, again, text bytes.Buffer
	if err := recording.Write(&archive); err != nil {
		t.Fatal(err)
	}
	size := archive.Len()
	read, err := capture.Read(&archive)
	if err != nil {
		t.Fatal(err)
	}
	if err := recording.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := read.WriteText(&again); err != nil {
		t.Fatal(err)
	}
	if diff := firstDifference(text.String(), again.String()); diff != "" {
		t.Fatalf("the text changes when it is read and written: %s", diff)
	}
	played, player := h.played(read)
	defer player.Close()
	if diff := firstDifference(want, played.page(t)); diff != "" {
		t.Errorf("the replayed page differs: %s", diff)
	}
	if missing := player.Unrecorded(); len(missing) > 0 {
		t.Errorf("%d questions were not recorded: %v", len(missing), missing[:min(len(missing), 10)])
	}
	t.Logf("%d series lines, %d files, %d answers, %d bytes of text, %d compressed", strings.Count(want, "\n"), len(recording.Files), len(recording.Answers), text.Len(), size)
	return recording
}

// hostOf writes a tree to disk.
func hostOf(t *testing.T, tree *rdmatest.Tree) *replayHost {
	t.Helper()
	h := &replayHost{root: tempTree(t), open: func(string) (gpu.Library, error) { return nil, syscall.ENOENT }}
	if err := tree.WriteTo(h.root); err != nil {
		t.Fatal(err)
	}
	return h
}

// treeKernel answers for a tree's netdevs, which all have the same statistics.
type treeKernel struct {
	netdevKernel
	tree *rdmatest.Tree
}

func (k *treeKernel) file(name, file string) (string, error) {
	text, found := k.tree.Content("sys/class/net/" + name + "/" + file)
	if !found {
		return "", syscall.ENODEV
	}
	return strings.TrimSpace(text), nil
}

func (k *treeKernel) Index(name string) (int, error) {
	text, err := k.file(name, "ifindex")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

func (k *treeKernel) Address(name string) (string, error) { return k.file(name, "address") }

// withKernel gives a host what it answers by other ways than files: netlink,
// ethtool and DCB, devlink, events.
func (h *replayHost) withKernel(t *testing.T, tree *rdmatest.Tree) *replayHost {
	t.Helper()
	h.netlink = tree.Netlink().Dial
	h.kernel = func() netdev.Kernel {
		k := &treeKernel{tree: tree}
		k.names, k.values, k.pfc = []string{"rx_prio3_pause", "rx_discards_phy", "link_down_events_phy"}, []uint64{17, 1 << 60, 3}, 1<<3
		return k
	}
	h.devlink = func() (devlink.Conn, error) { return fakeDevlink{}, nil }
	h.monitor = rdma.ReplayMonitor(map[string]uint64{"register": 2, "rename": 1}, true)
	return h
}

// fakeDevlink has two reporters, one of them in error.
type fakeDevlink struct{}

func (fakeDevlink) Close() {}

func (fakeDevlink) Reporters(time.Time) ([][]byte, error) {
	fatal := reporter("fw_fatal", devlink.StateError, 1, 0)
	fatal.LastDump = sysread.Some(time.Unix(0, 1_799_999_999_500_000_123))
	fw := reporter("fw", devlink.StateHealthy, 1<<63, 0)
	return [][]byte{devlink.Encode(&fatal), devlink.Encode(&fw), nil}, nil
}

func TestReplayTrees(t *testing.T) {
	trees := map[string]func() *rdmatest.Tree{}
	for name, build := range goldens {
		trees["rdma-"+name] = func() *rdmatest.Tree {
			tree := rdmatest.New()
			build(tree)
			return tree
		}
	}
	for name, build := range affinityTrees {
		trees["pcie-"+name] = build
	}
	trees["roce"] = func() *rdmatest.Tree { return rdmatest.HGX(rdmatest.HGXOptions{RoCE: true}) }
	for name, build := range trees {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkReplay(t, hostOf(t, build()))
		})
		t.Run(name+"-netlink", func(t *testing.T) {
			t.Parallel()
			tree := build()
			checkReplay(t, hostOf(t, tree).withKernel(t, tree))
		})
	}
}

// rulesAsText writes rules as text, to compare sets of them.
func rulesAsText(rules map[rdmatest.Rule]bool) map[rdmatest.Rule]string {
	all := map[rdmatest.Rule]string{}
	for rule := range rules {
		all[rule] = fmt.Sprintf("%+v", rule)
	}
	return all
}

// TestReplayFaults: what fails on the host fails in the replay with the same errno.
func TestReplayFaults(t *testing.T) {
	seen := map[string]bool{"[]": true}
	for _, c := range rdmatest.Cases() {
		if c.Blocks {
			continue // see TestReplayHang
		}
		scene := c.Scene()
		kinds := map[rdmatest.Rule]bool{}
		for _, fault := range scene.Faults {
			fault.Rule.Content = nil
			kinds[fault.Rule] = true
		}
		// One case of each kind of failure has to do where time is short.
		kind := fmt.Sprint(slices.Sorted(maps.Values(rulesAsText(kinds))))
		if testing.Short() && seen[kind] {
			continue
		}
		seen[kind] = true
		t.Run(c.ID, func(t *testing.T) {
			t.Parallel()
			h := hostOf(t, scene.Tree)
			h.root, _ = serveFaults(t, h.root, scene.Faults)
			recording := checkReplay(t, h)
			errnos := map[string]bool{}
			for i := range recording.Files {
				errnos[recording.Files[i].Last.Errno] = true
			}
			for _, u := range scene.Unreadable {
				if strings.HasPrefix(u.Errno, "E") && !errnos[u.Errno] {
					t.Errorf("%s of %s is not in the recording", u.Errno, u.Source)
				}
			}
		})
	}
}

// TestReplayErrnos replays every file of a node with every errno that drivers
// give, a different one for each.
func TestReplayErrnos(t *testing.T) {
	if err := rdmatest.Supported(); err != nil {
		t.Skip(err)
	}
	errnos := []syscall.Errno{syscall.EINVAL, syscall.EIO, syscall.ENODEV, syscall.EACCES, syscall.EOPNOTSUPP, syscall.ETIMEDOUT, syscall.EAGAIN, syscall.EBUSY, syscall.ENOENT}
	for _, by := range []string{"read", "open"} {
		tree := rdmatest.New()
		tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
		tree.MLX5RoCE(rdmatest.Options{Ordinal: 1})
		h := hostOf(t, tree)
		var faults []rdmatest.Fault
		for i, path := range tree.Paths() {
			// rdmamap reads ibdev with os.File, for which EAGAIN means to wait.
			if _, file := tree.Content(path); !file || i%3 == 0 || filepath.Base(path) == "ibdev" {
				continue
			}
			errno := errnos[len(faults)%len(errnos)]
			rule := rdmatest.Rule{Errno: errno}
			if by == "open" {
				rule = rdmatest.Rule{OpenErrno: errno}
			}
			faults = append(faults, rdmatest.Fault{Path: path, Rule: rule})
		}
		if len(faults) < 100 {
			t.Fatalf("%d faults", len(faults))
		}
		h.root, _ = serveFaults(t, h.root, faults)
		recording := checkReplay(t, h)
		found := map[string]int{}
		for i := range recording.Files {
			found[recording.Files[i].Last.Errno]++
		}
		for _, errno := range errnos {
			if found[sysread.ErrnoName(errno)] == 0 {
				t.Errorf("%s: no %s", by, sysread.ErrnoName(errno))
			}
		}
	}
}

func TestReplayDriver(t *testing.T) {
	for _, scene := range drivertest.Scenes {
		t.Run(scene.Name, func(t *testing.T) {
			t.Parallel()
			host := drivertest.New()
			scene.Build(host)
			h := hostOf(t, host.Tree)
			h.roots = []string{"/", "/" + drivertest.Container}
			checkReplay(t, h)
		})
	}
}

// machines are NVML stand-ins, with and without faults.
func machines() map[string]func() *gputest.Machine {
	all := gputest.Scenarios()
	all["lost"] = func() *gputest.Machine {
		m := gputest.HGXH100()
		m.GPUs[1].Lost = true
		return m
	}
	all["reset"] = func() *gputest.Machine {
		m := gputest.H100NVL()
		m.GPUs[1].Returns = map[string]nvml.Return{"nvmlDeviceGetMemoryInfo": nvml.ERROR_RESET_REQUIRED}
		return m
	}
	all["mismatch"] = func() *gputest.Machine {
		m := gputest.H100NVL()
		m.Init = nvml.ERROR_LIB_RM_VERSION_MISMATCH
		return m
	}
	return all
}

func TestReplayGPUs(t *testing.T) {
	for name, build := range machines() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := drivertest.New()
			drivertest.Scenes[2].Build(host)
			h := hostOf(t, host.Tree)
			h.roots = []string{"/"}
			h.open = build().Open
			checkReplay(t, h)
		})
	}
}

// TestReplayWholeNode replays a node of which everything is there.
func TestReplayWholeNode(t *testing.T) {
	tree := rdmatest.HGX(rdmatest.HGXOptions{RoCE: true, IOMMU: "identity"})
	host := drivertest.Host{Tree: tree}
	host.File("proc/sys/kernel/osrelease", drivertest.Release+"\n")
	drivertest.Scenes[2].Build(host)
	h := hostOf(t, tree).withKernel(t, tree)
	h.roots = []string{"/"}
	machine := gputest.HGXH100()
	for i, address := range gpusOf(t, affinity.NewReader(affinity.Options{Sysfs: filepath.Join(h.root, "sys")})) {
		machine.GPUs[i].BusID = "0000" + strings.ToUpper(address)
	}
	h.open = machine.Open
	recording := checkReplay(t, h)
	for _, part := range []string{capture.PartNetlink, capture.PartNetdev, capture.PartDevlink, capture.PartNVML, capture.PartEvents} {
		if !capture.Play(recording).Has(part) {
			t.Errorf("nothing of %s", part)
		}
	}
}

// TestReplayThisHost replays the machine that the test runs on, whatever it has:
// its own sysfs and procfs, netlink, ethtool, devlink and NVML.
func TestReplayThisHost(t *testing.T) {
	roots := []string{"/", "/usr/local/nvidia", "/run/nvidia/driver"}
	r := capture.NewRecorder(nil, capture.Header{Readers: capture.Readers{Sysfs: "/sys", Procfs: "/proc", DriverRoots: roots}}, nil)
	h := &replayHost{
		files: r.Files(), roots: roots, kernel: r.Kernel(nil), devlink: r.Devlink(nil), open: r.NVML(nil),
		netlink: r.Netlink(func() (rdma.Netlink, error) { return nldev.Dial(time.Second) }),
	}
	want := h.page(t)
	var archive bytes.Buffer
	recording := r.Recording()
	if err := recording.Write(&archive); err != nil {
		t.Fatal(err)
	}
	size := archive.Len()
	read, err := capture.Read(&archive)
	if err != nil {
		t.Fatal(err)
	}
	played, player := h.played(read)
	defer player.Close()
	if diff := firstDifference(want, played.page(t)); diff != "" {
		t.Errorf("the replayed page differs: %s", diff)
	}
	if missing := player.Unrecorded(); len(missing) > 0 {
		t.Errorf("%d questions were not recorded: %v", len(missing), missing[:min(len(missing), 10)])
	}
	changed := 0
	for i := range recording.Answers {
		if recording.Answers[i].First != nil {
			changed++
		}
	}
	t.Logf("%d answers changed", changed)
	gpus := strings.Count(want, "\ngdr_gpu_info{")
	t.Logf("%d GPUs, %d series lines, %d files, %d answers, %d bytes compressed", gpus, strings.Count(want, "\n"), len(recording.Files), len(recording.Answers), size)
}

// TestReplayNetlinkErrors: errors of netlink, ethtool and devlink are replayed.
func TestReplayNetlinkErrors(t *testing.T) {
	for name, change := range map[string]func(*replayHost, *rdmatest.Netlink){
		"refused": func(_ *replayHost, n *rdmatest.Netlink) { n.Fail("STAT_GET", syscall.EINVAL) },
		"broken": func(_ *replayHost, n *rdmatest.Netlink) {
			n.Mangle(func(command string, data []byte) []byte {
				if command == "PORT_GET" {
					return data[:len(data)-1]
				}
				return data
			})
		},
		"io": func(_ *replayHost, n *rdmatest.Netlink) { n.Fail("PORT_GET", syscall.EIO) },
		"down": func(_ *replayHost, n *rdmatest.Netlink) {
			n.Down(fmt.Errorf("RDMA netlink: %w", syscall.EPROTONOSUPPORT))
		},
		"devlink": func(h *replayHost, _ *rdmatest.Netlink) {
			h.devlink = func() (devlink.Conn, error) { return nil, fmt.Errorf("no devlink: %w", syscall.EPERM) }
		},
		"ethtool": func(h *replayHost, _ *rdmatest.Netlink) {
			h.kernel = func() netdev.Kernel { return &netdevKernel{pfc: -1} }
		},
	} {
		t.Run(name, func(t *testing.T) {
			tree := rdmatest.New()
			tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
			tree.MLX5RoCE(rdmatest.Options{Ordinal: 1})
			h := hostOf(t, tree).withKernel(t, tree)
			n := tree.Netlink()
			h.netlink = n.Dial
			change(h, n)
			checkReplay(t, h)
		})
	}
}

// TestReplayHang: what did not return while it was recorded does not return in
// the replay, until the player is closed; and nothing else waits for it.
func TestReplayHang(t *testing.T) {
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
	sick := tree.MLX5RoCE(rdmatest.Options{Name: "mlx5_1", Ordinal: 1})
	h := hostOf(t, tree)
	var release func()
	h.root, release = serveFaults(t, h.root, []rdmatest.Fault{{Path: sick.File(1, "phys_state"), Rule: rdmatest.Rule{Hang: true}}})
	recorder := capture.NewRecorder(sysread.Below(h.root), capture.Header{}, nil)
	stuck := func(files sysread.Files) (stuck []string, close func()) {
		taker := snapshot.New(snapshot.Options{Deadline: 4 * time.Second}).RDMA(rdma.NewReader(rdma.Options{Sysfs: "/sys", Files: files}), nil).Taker()
		for range 3 { // a machine may stall for so long
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			stuck = nil
			for _, unit := range taker.Take(ctx, allCollectors).RDMA.Units {
				if unit.StuckFor > 0 {
					stuck = append(stuck, unit.Name)
				}
			}
			cancel()
			if len(stuck) == 1 {
				break
			}
		}
		return stuck, taker.Close
	}
	found, end := stuck(recorder.Files())
	recording := recorder.Recording()
	release()
	end()
	if len(found) != 1 || found[0] != "mlx5_1" {
		t.Fatalf("%v hang on the host", found)
	}
	player := capture.Play(recording)
	found, end = stuck(player.Files())
	player.Close()
	end()
	if len(found) != 1 || found[0] != "mlx5_1" {
		t.Errorf("%v hang in the replay", found)
	}
	for i := range recording.Files {
		if f := &recording.Files[i]; f.Last.Hang != strings.HasSuffix(f.Path, "mlx5_1/ports/1/phys_state") {
			t.Errorf("%s hangs: %v", f.Path, f.Last.Hang)
		}
	}
}

package driver_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/gpu/driver/drivertest"
	"gdr_exporter/rdma/rdmatest"
)

var start = time.Unix(1_800_000_000, 0)

// host is a written tree and a reader of it.
type host struct {
	t      *testing.T
	dir    string
	reader *driver.Reader
	now    time.Time
}

func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := rdmatest.MkdirTemp()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newHost(t *testing.T, build func(drivertest.Host)) *host {
	t.Helper()
	tree := drivertest.New()
	build(tree)
	dir := tempDir(t)
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	return &host{t, dir, driver.NewReader(drivertest.Options(dir)), start}
}

// scene returns a host of drivertest.Scenes.
func scene(t *testing.T, name string) *host {
	t.Helper()
	return newHost(t, build(t, name))
}

func build(t *testing.T, name string) func(drivertest.Host) {
	t.Helper()
	for _, s := range drivertest.Scenes {
		if s.Name == name {
			return s.Build
		}
	}
	t.Fatalf("no scene %s", name)
	return nil
}

// touch makes a file look changed.
func (h *host) touch(path string) {
	h.t.Helper()
	if err := os.Chtimes(filepath.Join(h.dir, path), h.now, h.now); err != nil {
		h.t.Fatal(err)
	}
}

// read reads without an error.
func (h *host) read() driver.Reading {
	h.t.Helper()
	reading, errs := h.reader.Read(h.now)
	for _, err := range errs {
		h.t.Error(err)
	}
	return reading
}

// later lets time pass, short of the slow interval or past it.
func (h *host) later(d time.Duration) { h.now = h.now.Add(d) }

func (h *host) write(path, text string) {
	h.t.Helper()
	path = filepath.Join(h.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) remove(path string) {
	h.t.Helper()
	if err := os.RemoveAll(filepath.Join(h.dir, path)); err != nil {
		h.t.Fatal(err)
	}
}

// summary is a reading in one line per fact, for comparison. Unknown facts are
// left out.
func summary(r *driver.Reading) string {
	var b strings.Builder
	say(&b, "loaded", r.Loaded)
	say(&b, "version", r.Version)
	if r.Flavor != "" {
		fmt.Fprintln(&b, "flavor", r.Flavor)
	}
	if r.Library.Known {
		fmt.Fprintln(&b, "library", r.Library.Value.Version)
	}
	say(&b, "mismatch", r.LibraryMismatch())
	say(&b, "override", r.TopologyOverride)
	say(&b, "gpus", r.ProcGPUs)
	say(&b, "lockdown", r.Lockdown)
	if r.RDMACore.Known {
		fmt.Fprintln(&b, "rdma", r.RDMACore.Value.Origin, r.RDMACore.Value.Version.Value)
	}
	for _, m := range r.Modules {
		if m.State != driver.StateAbsent {
			fmt.Fprintf(&b, "module %s %s %s\n", m.Name, m.State, m.Version.Value)
		}
	}
	for i := range r.Peermem {
		m := &r.Peermem[i]
		say(&b, "on disk "+m.Name, m.OnDisk)
		if m.State == driver.StateAbsent {
			continue
		}
		fmt.Fprintf(&b, "peermem %s %s %s %v\n", m.Name, m.State, m.Version.Value, m.Parameters)
		say(&b, "references", m.References)
		say(&b, "hooked", m.Hooked)
		say(&b, "mismatch "+m.Name, m.VersionMismatch(r.Version))
	}
	say(&b, "memory_peers", r.MemoryPeers.Present)
	for i := range r.MemoryPeers.Clients {
		c := &r.MemoryPeers.Clients[i]
		fmt.Fprintln(&b, "client", c.Name, c.Version.Value, len(c.Counters), "counters")
		say(&b, "live", c.LiveMRs())
	}
	var detects []string
	for i := range driver.Rules {
		if d := driver.Rules[i].Detects(r.Markers); !d.Known {
			detects = append(detects, driver.Rules[i].Library+"?")
		} else if d.Value {
			detects = append(detects, driver.Rules[i].Library)
		}
	}
	fmt.Fprintln(&b, "detects", detects)
	return b.String()
}

func say[T any](b *strings.Builder, what string, value sysread.Maybe[T]) {
	if value.Known {
		fmt.Fprintln(b, what, value.Value)
	}
}

// want are the summaries of drivertest.Scenes.
var want = map[string]string{
	"none": `
loaded false
lockdown none
on disk nvidia_peermem false
on disk nv_peer_mem false
memory_peers false
detects []
`,
	"rdma-only": `
loaded false
lockdown none
rdma inbox ` + `
on disk nvidia_peermem false
on disk nv_peer_mem false
memory_peers false
detects []
`,
	"ofed": `
loaded true
version 580.95.05
flavor open
library 580.95.05
mismatch false
override 0
gpus [0000:3b:00.0]
lockdown none
rdma ofed 24.10-0.7.0
module nvidia live 580.95.05
module nvidia_uvm live ` + `
module nvidia_modeset live 580.95.05
module nvidia_fs live 2.26
on disk nvidia_peermem true
peermem nvidia_peermem live 580.95.05 [{peerdirect_support 0} {persistent_api_support 1}]
references 3
hooked true
mismatch nvidia_peermem false
on disk nv_peer_mem false
memory_peers true
client nv_mem 580.95.05 7 counters
live 3
detects [nccl_before_2.23.4 nccl ucx nvshmem_legacy nvshmem]
`,
	"ofed-old": `
loaded true
version 535.54.03
flavor proprietary
library 535.54.03
mismatch false
override 0
gpus [0000:3b:00.0]
lockdown none
rdma ofed 24.10-0.7.0
module nvidia live 535.54.03
module nvidia_uvm live ` + `
module nvidia_modeset live 535.54.03
on disk nvidia_peermem true
peermem nvidia_peermem live 535.54.03 [{peerdirect_support 0} {persistent_api_support 1}]
references 0
hooked true
mismatch nvidia_peermem false
on disk nv_peer_mem false
memory_peers true
client nv_mem 535.54.03 4 counters
detects [nccl_before_2.23.4 nccl ucx nvshmem_legacy nvshmem]
`,
	"ubuntu": `
loaded true
version 580.95.05
flavor open
library 580.95.05
mismatch false
override 0
gpus [0000:3b:00.0]
lockdown none
rdma inbox ` + `
module nvidia live 580.95.05
module nvidia_uvm live ` + `
module nvidia_modeset live 580.95.05
on disk nvidia_peermem true
peermem nvidia_peermem live 580.95.05 [{peerdirect_support 0} {persistent_api_support 1}]
references 0
hooked true
mismatch nvidia_peermem false
on disk nv_peer_mem false
memory_peers false
detects [nccl ucx nvshmem]
`,
}

// differences are what the other scenes have instead of the lines of one above:
// lines that begin with - are missing, others are more.
var differences = map[string]struct{ of, lines string }{
	"stale": {"ofed", `
-peermem nvidia_peermem live 580.95.05 [{peerdirect_support 0} {persistent_api_support 1}]
peermem nvidia_peermem live 570.86.15 [{peerdirect_support 0} {persistent_api_support 1}]
-mismatch nvidia_peermem false
mismatch nvidia_peermem true
`},
	"legacy": {"ofed-old", `
-peermem nvidia_peermem live 535.54.03 [{peerdirect_support 0} {persistent_api_support 1}]
-mismatch nvidia_peermem false
-on disk nvidia_peermem true
on disk nvidia_peermem false
-on disk nv_peer_mem false
on disk nv_peer_mem true
peermem nv_peer_mem live 1.3-0 []
-client nv_mem 535.54.03 4 counters
client nv_mem 1.3-0 7 counters
live 3
`},
	"legacy-mode": {"ofed", `
-peermem nvidia_peermem live 580.95.05 [{peerdirect_support 0} {persistent_api_support 1}]
peermem nvidia_peermem live 580.95.05 [{peerdirect_support 1} {persistent_api_support 0}]
client nv_mem_nc 580.95.05 7 counters
live 3
client nvidia-fs 2.26 7 counters
live 3
`},
	"not-loaded": {"ofed", `
-module nvidia_fs live 2.26
-peermem nvidia_peermem live 580.95.05 [{peerdirect_support 0} {persistent_api_support 1}]
-references 3
-hooked true
-mismatch nvidia_peermem false
-client nv_mem 580.95.05 7 counters
-live 3
-detects [nccl_before_2.23.4 nccl ucx nvshmem_legacy nvshmem]
detects []
`},
	"not-on-disk": {"ofed", `
-on disk nvidia_peermem true
on disk nvidia_peermem false
`},
	"container": {"not-loaded", `
-on disk nvidia_peermem true
on disk nvidia_peermem false
-memory_peers true
memory_peers false
`},
	"coming-going": {"not-loaded", `
-memory_peers true
memory_peers false
peermem nvidia_peermem coming 580.95.05 []
references 0
mismatch nvidia_peermem false
peermem nv_peer_mem going 1.3-0 []
-detects []
detects [nccl ucx nvshmem]
`},
	"builtin": {"ubuntu", `
-module nvidia live 580.95.05
module nvidia builtin 580.95.05
-peermem nvidia_peermem live 580.95.05 [{peerdirect_support 0} {persistent_api_support 1}]
peermem nvidia_peermem builtin 580.95.05 []
-references 0
-hooked true
hooked false
`},
	"library-mismatch": {"ubuntu", `
-version 580.95.05
version 570.86.15
-mismatch false
mismatch true
-module nvidia live 580.95.05
module nvidia live 570.86.15
-module nvidia_modeset live 580.95.05
module nvidia_modeset live 570.86.15
-peermem nvidia_peermem live 580.95.05 [{peerdirect_support 0} {persistent_api_support 1}]
-references 0
-hooked true
-mismatch nvidia_peermem false
-detects [nccl ucx nvshmem]
detects []
`},
	"override": {"ubuntu", `
-override 0
override 1
-lockdown none
lockdown integrity
-peermem nvidia_peermem live 580.95.05 [{peerdirect_support 0} {persistent_api_support 1}]
-references 0
-hooked true
-mismatch nvidia_peermem false
-detects [nccl ucx nvshmem]
detects []
`},
	"h200-vm": {"ubuntu", `
-version 580.95.05
version 580.159.04
-library 580.95.05
library 580.159.04
-gpus [0000:3b:00.0]
gpus [0000:00:06.0 0000:00:07.0]
-lockdown none
-module nvidia live 580.95.05
module nvidia live 580.159.04
-module nvidia_uvm live ` + `
module nvidia_uvm live 580.159.04
-module nvidia_modeset live 580.95.05
-on disk nvidia_peermem true
-on disk nv_peer_mem false
-peermem nvidia_peermem live 580.95.05 [{peerdirect_support 0} {persistent_api_support 1}]
-references 0
-hooked true
-mismatch nvidia_peermem false
-detects [nccl ucx nvshmem]
detects []
`},
	"unloaded": {"none", `
library 580.95.05
-on disk nvidia_peermem false
on disk nvidia_peermem true
`},
}

func TestScenes(t *testing.T) {
	for _, s := range drivertest.Scenes {
		if s.Name == "garbage" || s.Name == "many-clients" {
			continue // TestGarbage, TestManyClients
		}
		t.Run(s.Name, func(t *testing.T) {
			reading := newHost(t, s.Build).read()
			got := strings.Split(strings.TrimSpace(summary(&reading)), "\n")
			wanted := expected(t, s.Name)
			slices.Sort(got)
			slices.Sort(wanted)
			trim(got)
			trim(wanted)
			for _, line := range without(wanted, got) {
				t.Errorf("missing: %s", line)
			}
			for _, line := range without(got, wanted) {
				t.Errorf("too much: %s", line)
			}
		})
	}
}

func trim(lines []string) {
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
}

// expected returns the lines of a scene's summary.
func expected(t *testing.T, name string) []string {
	t.Helper()
	if text, found := want[name]; found {
		return strings.Split(strings.TrimSpace(text), "\n")
	}
	d, found := differences[name]
	if !found {
		t.Fatalf("nothing is expected of scene %s", name)
	}
	lines := expected(t, d.of)
	for line := range strings.SplitSeq(strings.TrimSpace(d.lines), "\n") {
		gone, isGone := strings.CutPrefix(line, "-")
		if !isGone {
			lines = append(lines, line)
			continue
		}
		at := slices.Index(lines, gone)
		if at < 0 {
			t.Fatalf("%s does not have %q", d.of, gone)
		}
		lines = slices.Delete(lines, at, at+1)
	}
	return lines
}

// without returns the lines of a that b does not have, as often as a has them more.
func without(a, b []string) []string {
	count := map[string]int{}
	for _, line := range b {
		count[line]++
	}
	var rest []string
	for _, line := range a {
		if count[line]--; count[line] < 0 {
			rest = append(rest, line)
		}
	}
	return rest
}

// Garbage in every file gives no value and one error for each file, and no two
// the same.
func TestGarbage(t *testing.T) {
	h := scene(t, "garbage")
	reading, errs := h.reader.Read(h.now)
	if got := summary(&reading); strings.Contains(got, "version") || strings.Contains(got, "live ") || strings.Contains(got, "counters") && !strings.Contains(got, " 0 counters") {
		t.Errorf("taken from garbage:\n%s", got)
	}
	if reading.Lockdown.Known || reading.TopologyOverride.Known || reading.Flavor != "" || reading.Kernel.Known || reading.LibraryMismatch().Known {
		t.Errorf("taken from garbage: %+v", reading)
	}
	counts := map[string]int{}
	for _, err := range errs {
		if err.Errno() != "invalid" || err.Source == "" || err.Device == "" {
			t.Errorf("%v: %s", err, err.Errno())
		}
		counts[err.Device+" "+err.Source]++
	}
	for _, source := range []string{
		"nvidia initstate", "nvidia version", "nvidia_peermem refcnt", "nvidia_peermem parameters/peerdirect_support", "driver driver/nvidia/version",
		"driver driver/nvidia/params", "driver driver/nvidia/gpus", "driver kernel/security/lockdown", "driver kernel/mm/memory_peers/nv_mem/num_alloc_mrs",
		"driver sys/kernel/osrelease", "ib_core version",
	} {
		if counts[source] != 1 {
			t.Errorf("%d errors of %s", counts[source], source)
		}
	}
	if len(counts) != len(errs) {
		t.Errorf("%d errors of %d files", len(errs), len(counts))
	}
}

func TestManyClients(t *testing.T) {
	reading := scene(t, "many-clients").read()
	if got := reading.MemoryPeers; len(got.Clients) != 8 || got.Omitted != 13 {
		t.Errorf("%d clients, %d omitted", len(got.Clients), got.Omitted)
	}
}

// A driver that comes, is upgraded and goes is followed at once, the slow group
// too.
func TestDriverComesAndGoes(t *testing.T) {
	h := newHost(t, func(h drivertest.Host) { h.Open(drivertest.Version) })
	reading := h.read()
	if !reading.Loaded.Value || reading.Flavor != driver.FlavorOpen || reading.TopologyOverride.Value != 0 {
		t.Fatalf("%+v", reading)
	}
	h.later(time.Second)
	modules := []string{"nvidia", "nvidia_uvm", "nvidia_modeset"}
	for _, name := range modules {
		h.remove("sys/module/" + name)
	}
	h.remove("proc/driver/nvidia")
	reading = h.read()
	if reading.Loaded.Value || !reading.Loaded.Known || reading.Version.Known || reading.Flavor != "" || reading.TopologyOverride.Known || reading.ProcGPUs.Known {
		t.Errorf("unloaded: %+v", reading)
	}
	h.later(time.Second)
	h.write("sys/module/nvidia/initstate", "live\n")
	h.write("sys/module/nvidia/version", "590.10\n")
	h.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.10  Mon\n")
	h.write("proc/driver/nvidia/params", "GrdmaPciTopoCheckOverride: 1\n")
	reading = h.read()
	if reading.Version.Value != "590.10" || reading.Flavor != driver.FlavorProprietary || reading.TopologyOverride.Value != 1 || !reading.LibraryMismatch().Value {
		t.Errorf("upgraded: %+v", reading)
	}
	// The same version with other options: only the directory is another.
	h.later(time.Second)
	if err := os.Rename(filepath.Join(h.dir, "sys/module/nvidia"), filepath.Join(h.dir, "old")); err != nil {
		t.Fatal(err)
	}
	h.write("sys/module/nvidia/initstate", "live\n")
	h.write("sys/module/nvidia/version", "590.10\n")
	h.write("proc/driver/nvidia/params", "GrdmaPciTopoCheckOverride: 0\n")
	if reading = h.read(); reading.TopologyOverride.Value != 0 {
		t.Error("loaded again with other options: not seen")
	}
}

// A module on its way out has lost its state already, but is listed still.
func TestGoingWithoutState(t *testing.T) {
	h := scene(t, "ofed")
	h.remove("sys/module/nvidia_peermem/initstate")
	m := h.read().Peermem[0]
	if m.State != driver.StateUnknown || m.Loaded().Known || !m.Present || !m.References.Known {
		t.Errorf("%+v", m)
	}
	h.remove("proc/modules")
	if m = h.read().Peermem[0]; m.State != driver.StateBuiltin || !m.Loaded().Value {
		t.Errorf("not listed: %+v", m)
	}
}

// What changes with an installation only is read when it is due.
func TestSlowGroup(t *testing.T) {
	h := scene(t, "ofed")
	h.read()
	h.remove("usr/lib/x86_64-linux-gnu")
	h.later(59 * time.Second)
	if reading := h.read(); !reading.Library.Known || !reading.Slow.Equal(start) {
		t.Errorf("read before it was due: %+v", reading)
	}
	h.later(time.Second)
	if reading := h.read(); reading.Library.Known || !reading.Slow.Equal(h.now) {
		t.Errorf("not read when due: %+v", reading)
	}
}

// The list of modules is read again only if it has changed.
func TestModuleListFollowed(t *testing.T) {
	h := scene(t, "not-loaded")
	if reading := h.read(); !reading.Peermem[0].OnDisk.Value {
		t.Fatal("not on disk")
	}
	for i, c := range []struct {
		text        string
		here, known bool
	}{
		{"updates/dkms/nvidia-uvm.ko:\n", false, true},
		{"kernel/nvidia-580srv-open/nvidia-peermem.ko.zst: x.ko\n", true, true},
		{"updates/dkms/nvidia-current-peermem.ko.xz:\n", true, true},
		// The loaded driver is of another place, and so may peermem be.
		{"kernel/lib/crc16.ko:\n", false, false},
	} {
		h.write(drivertest.DepFile, c.text)
		h.later(time.Hour)
		if got := h.read().Peermem[0].OnDisk; got.Value != c.here || got.Known != c.known {
			t.Errorf("%d: %v", i, got)
		}
	}
	h.remove("lib")
	h.later(time.Hour)
	if got := h.read().Peermem[0].OnDisk; got.Known {
		t.Errorf("without any list: %v", got)
	}
	h.write("usr/lib/modules/"+drivertest.Release+"/modules.dep", "x/nvidia-peermem.ko:\n")
	h.later(time.Hour)
	if got := h.read().Peermem[0].OnDisk; !got.Value {
		t.Errorf("in usr/lib/modules: %v", got)
	}
	h.write("usr/lib/modules/"+drivertest.Release+"/modules.dep", "")
	h.later(time.Hour)
	reading, errs := h.reader.Read(h.now)
	if reading.Peermem[0].OnDisk.Known || len(errs) != 1 || errs[0].Source != "modules.dep" {
		t.Errorf("an empty list: %v, %v", reading.Peermem[0].OnDisk, errs)
	}
}

func TestLibraryLinks(t *testing.T) {
	const dir = "usr/lib/x86_64-linux-gnu/"
	for name, c := range map[string]struct {
		build func(drivertest.Host)
		want  string
	}{
		"debian": {func(h drivertest.Host) {
			h.File(dir+"nvidia/current/libnvidia-ml.so.535.183.01", "")
			h.Symlink(dir+"nvidia/current/libnvidia-ml.so.1", "libnvidia-ml.so.535.183.01")
			h.Symlink(dir+"libnvidia-ml.so.1", "nvidia/current/libnvidia-ml.so.1")
		}, "535.183.01"},
		"no link":  {func(h drivertest.Host) { h.File(dir+"libnvidia-ml.so.1", "") }, ""},
		"dangling": {func(h drivertest.Host) { h.Symlink(dir+"libnvidia-ml.so.1", "libnvidia-ml.so.580.1.2") }, ""},
		"libcuda only": {func(h drivertest.Host) {
			h.File("usr/lib64/libcuda.so.550.54.15", "")
			h.Symlink("usr/lib64/libcuda.so.1", "libcuda.so.550.54.15")
		}, "550.54.15"},
		"tegra": {func(h drivertest.Host) {
			h.File("usr/lib/aarch64-linux-gnu/libcuda.so.1.1", "")
			h.Symlink("usr/lib/aarch64-linux-gnu/libcuda.so.1", "libcuda.so.1.1")
		}, ""},
		"the first root counts": {func(h drivertest.Host) {
			h.Library("usr/lib64", "570.1.2")
			h.Library(drivertest.Container+"/usr/lib64", "580.1.2")
		}, "570.1.2"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, c.build)
			if reading := h.read(); reading.Library.Value.Version != c.want || reading.Library.Known != (c.want != "") {
				t.Errorf("%+v", reading.Library)
			}
		})
	}
	t.Run("absolute and circular", func(t *testing.T) {
		h := newHost(t, func(drivertest.Host) {})
		h.write("usr/lib64/real/libnvidia-ml.so.580.1.2", "")
		for from, to := range map[string]string{
			"usr/lib64/libnvidia-ml.so.1":                "/usr/lib64/real/libnvidia-ml.so.1", // below the root, not the machine's
			"usr/lib64/real/libnvidia-ml.so.1":           "libnvidia-ml.so.580.1.2",
			"usr/lib/x86_64-linux-gnu/libcuda.so.1":      "libcuda.so.1",
			"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "/nowhere",
		} {
			at := filepath.Join(h.dir, from)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to, at); err != nil {
				t.Fatal(err)
			}
		}
		reading, errs := h.reader.Read(h.now)
		if reading.Library.Value.Version != "580.1.2" {
			t.Errorf("%+v", reading.Library)
		}
		if len(errs) != 1 || errs[0].Errno() != "ELOOP" {
			t.Errorf("%v", errs)
		}
	})
}

// TestRules is the table of facts/gdr.md: what each library makes of the files.
func TestRules(t *testing.T) {
	all := func(libraries ...string) []string { return libraries }
	for _, c := range []struct {
		present []driver.Marker
		detects []string
	}{
		{nil, nil},
		{[]driver.Marker{driver.MarkerNvMem}, all("nccl_before_2.23.4", "nccl", "ucx", "nvshmem_legacy", "nvshmem")},
		{[]driver.Marker{driver.MarkerNvMemNC}, all("nccl_before_2.23.4", "nccl")},
		{[]driver.Marker{driver.MarkerClientPeermem}, all("nvshmem_legacy", "nvshmem")},
		// Ubuntu: NVIDIA/nccl#1676, #1939, deepseek-ai/DeepEP#151.
		{[]driver.Marker{driver.MarkerNvidiaPeermem}, all("nccl", "ucx", "nvshmem")},
		{[]driver.Marker{driver.MarkerNvPeerMem}, all("ucx")},
		{[]driver.Marker{driver.MarkerNvPeerMem, driver.MarkerNvMem}, all("nccl_before_2.23.4", "nccl", "ucx", "nvshmem_legacy", "nvshmem")},
	} {
		markers := map[driver.Marker]sysread.Maybe[bool]{}
		for _, marker := range driver.Markers {
			markers[marker] = sysread.Some(slices.Contains(c.present, marker))
		}
		for i := range driver.Rules {
			rule := &driver.Rules[i]
			got := rule.Detects(markers)
			if want := slices.Contains(c.detects, rule.Library); !got.Known || got.Value != want {
				t.Errorf("%v: %s detects %v, want %v", c.present, rule.Library, got, want)
			}
		}
	}
	// What is not known leaves open what is not detected otherwise.
	markers := map[driver.Marker]sysread.Maybe[bool]{driver.MarkerNvMem: sysread.Some(false), driver.MarkerNvidiaPeermem: sysread.Some(true)}
	for i := range driver.Rules {
		rule := &driver.Rules[i]
		wantKnown := slices.Contains(rule.AnyOf, driver.MarkerNvidiaPeermem)
		if got := rule.Detects(markers); got.Known != wantKnown || got.Value != wantKnown {
			t.Errorf("%s: %v", rule.Library, got)
		}
	}
	for _, marker := range driver.Markers {
		if !slices.ContainsFunc(driver.Rules, func(r driver.Rule) bool { return slices.Contains(r.AnyOf, marker) }) {
			t.Errorf("no library looks for %s", marker)
		}
	}
}

// LiveMRs of counters that contradict each other is not known.
func TestLiveMRs(t *testing.T) {
	for _, c := range []struct {
		counters map[string]uint64
		want     sysread.Maybe[uint64]
	}{
		{map[string]uint64{driver.FileAllocMRs: 5, driver.FileDeallocMRs: 2}, sysread.Some(uint64(3))},
		{map[string]uint64{driver.FileAllocMRs: 5, driver.FileDeallocMRs: 5}, sysread.Some(uint64(0))},
		{map[string]uint64{driver.FileAllocMRs: 2, driver.FileDeallocMRs: 5}, sysread.Maybe[uint64]{}},
		{map[string]uint64{driver.FileAllocMRs: 5}, sysread.Maybe[uint64]{}},
		{map[string]uint64{driver.FileDeallocMRs: 0}, sysread.Maybe[uint64]{}},
	} {
		client := driver.Client{Counters: c.counters}
		if got := client.LiveMRs(); got != c.want {
			t.Errorf("%v: %v", c.counters, got)
		}
	}
}

// TestMissing removes each file and directory of a full host in turn: never an
// error, and never a change of what other files say.
func TestMissing(t *testing.T) {
	tree := drivertest.New()
	build(t, "legacy-mode")(tree)
	for _, path := range tree.Paths() {
		dir := tempDir(t)
		less := tree.Clone().Remove(path)
		if err := less.WriteTo(dir); err != nil {
			t.Fatal(err)
		}
		reading, errs := driver.NewReader(drivertest.Options(dir)).Read(start)
		for _, err := range errs {
			t.Errorf("without %s: %v", path, err)
		}
		if reading.Slow.IsZero() || len(reading.Markers) != len(driver.Markers) || len(reading.Modules) != len(driver.Modules) {
			t.Errorf("without %s: %+v", path, reading)
		}
		os.RemoveAll(dir)
	}
}

// mounted serves a scene through FaultFS.
func mounted(t *testing.T, name string) (*host, *rdmatest.FaultFS) {
	t.Helper()
	if err := rdmatest.Supported(); err != nil {
		t.Skip(err)
	}
	h := scene(t, name)
	mountpoint := t.TempDir()
	fs, err := rdmatest.Mount(h.dir, mountpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	h.reader = driver.NewReader(drivertest.Options(mountpoint))
	return h, fs
}

// sources are all that is read of the scene legacy-mode: the file, the error's
// device and source, and the value that goes missing with it.
var sources = []struct {
	path, device, source string
	unknown              func(r *driver.Reading) bool
}{
	{"sys/module/nvidia/version", "nvidia", "version", func(r *driver.Reading) bool { return r.Version.Known && !r.Modules[0].Version.Known }},
	{"sys/module/nvidia_uvm/initstate", "nvidia_uvm", "initstate", func(r *driver.Reading) bool { return r.Modules[1].State == driver.StateUnknown }},
	{"sys/module/nvidia_peermem/initstate", "nvidia_peermem", "initstate", func(r *driver.Reading) bool { return !r.Peermem[0].Loaded().Known }},
	{"sys/module/nvidia_peermem/version", "nvidia_peermem", "version", func(r *driver.Reading) bool {
		return !r.Peermem[0].Version.Known && r.Markers[driver.MarkerNvidiaPeermem].Value
	}},
	{"sys/module/nvidia_peermem/refcnt", "nvidia_peermem", "refcnt", func(r *driver.Reading) bool { return !r.Peermem[0].References.Known }},
	{"sys/module/nvidia_peermem/parameters/peerdirect_support", "nvidia_peermem", "parameters/peerdirect_support", func(r *driver.Reading) bool { return len(r.Peermem[0].Parameters) == 1 }},
	{"sys/module/ib_core/version", "ib_core", "version", func(r *driver.Reading) bool { return !r.RDMACore.Value.Version.Known }},
	{"sys/module/ib_core/srcversion", "ib_core", "srcversion", func(r *driver.Reading) bool { return !r.RDMACore.Value.SrcVersion.Known }},
	{"sys/module/ib_core/taint", "ib_core", "taint", func(r *driver.Reading) bool { return r.RDMACore.Value.Origin == driver.OriginOFED }},
	{"sys/module/ib_core/holders", "ib_core", "holders", func(r *driver.Reading) bool { return !r.Peermem[0].Hooked.Known }},
	{"sys/kernel/mm/memory_peers", "driver", "kernel/mm/memory_peers", func(r *driver.Reading) bool {
		return !r.MemoryPeers.Present.Known && r.Markers[driver.MarkerNvMem].Value
	}},
	{"sys/kernel/mm/memory_peers/nv_mem/num_alloc_mrs", "driver", "kernel/mm/memory_peers/nv_mem/num_alloc_mrs", func(r *driver.Reading) bool {
		return !r.MemoryPeers.Clients[0].LiveMRs().Known && len(r.MemoryPeers.Clients[0].Counters) == 6 && r.MemoryPeers.Clients[1].LiveMRs().Known
	}},
	{"sys/kernel/security/lockdown", "driver", "kernel/security/lockdown", func(r *driver.Reading) bool { return !r.Lockdown.Known }},
	{"proc/driver/nvidia/version", "driver", "driver/nvidia/version", func(r *driver.Reading) bool { return r.Flavor == "" && r.Version.Known }},
	{"proc/driver/nvidia/params", "driver", "driver/nvidia/params", func(r *driver.Reading) bool { return !r.TopologyOverride.Known }},
	{"proc/driver/nvidia/gpus", "driver", "driver/nvidia/gpus", func(r *driver.Reading) bool { return !r.ProcGPUs.Known }},
	{"proc/sys/kernel/osrelease", "driver", "sys/kernel/osrelease", func(r *driver.Reading) bool { return !r.Kernel.Known && !r.Peermem[0].OnDisk.Known }},
	{drivertest.DepFile, "driver", "modules.dep", func(r *driver.Reading) bool { return !r.Peermem[0].OnDisk.Known }},
}

// TestErrno has each file fail with each errno: its value is missing, the error
// is counted, everything else is as before. A refusal is counted once per slow
// interval.
func TestErrno(t *testing.T) {
	h, fs := mounted(t, "legacy-mode")
	healthy := h.read()
	for _, s := range sources {
		for _, errno := range []syscall.Errno{syscall.EIO, syscall.EACCES, syscall.EINVAL, syscall.ETIMEDOUT} {
			h.later(time.Hour)
			h.touch(drivertest.DepFile)
			rule := rdmatest.Rule{Errno: errno, OpenErrno: errno}
			fs.Set(s.path, rule)
			reading, errs := h.reader.Read(h.now)
			if len(errs) != 1 || errs[0].Device != s.device || errs[0].Source != s.source || errs[0].Errno() != sysread.ErrnoName(errno) {
				t.Errorf("%s %v: %v", s.path, errno, errs)
			}
			if !s.unknown(&reading) && s.device+s.source != "nvidiaversion" {
				t.Errorf("%s %v: %s", s.path, errno, summary(&reading))
			}
			if more := without(strings.Split(summary(&reading), "\n"), strings.Split(summary(&healthy), "\n")); len(more) > 2 {
				t.Errorf("%s %v changes %q", s.path, errno, more)
			}
			h.later(time.Second)
			if again, errs := h.reader.Read(h.now); sysread.Refused(errno) && (len(errs) > 0 || summary(&again) != summary(&reading)) {
				t.Errorf("%s %v, a second later: %v\n%s", s.path, errno, errs, summary(&again))
			}
			fs.ClearAll()
			h.later(time.Hour)
			if reading, errs = h.reader.Read(h.now); len(errs) > 0 || summary(&reading) != summary(&healthy) {
				t.Errorf("%s %v, afterwards: %v\n%s", s.path, errno, errs, summary(&reading))
			}
		}
	}
}

// A list of modules that cannot be read may be the one that names peermem.
func TestUnreadableModuleList(t *testing.T) {
	h, fs := mounted(t, "container")
	h.write(drivertest.DepFile, "kernel/lib/crc16.ko:\n")
	if got := h.read().Peermem[0].OnDisk; got != sysread.Some(false) {
		t.Errorf("both lists read: %v", got)
	}
	fs.Set(drivertest.DepFile, rdmatest.Rule{Errno: syscall.EIO})
	h.touch(drivertest.DepFile)
	h.later(time.Hour)
	reading, errs := h.reader.Read(h.now)
	if got := reading.Peermem[0].OnDisk; got.Known || len(errs) != 1 {
		t.Errorf("one list unreadable: %v, %v", got, errs)
	}
	h.write(drivertest.Container+"/"+drivertest.DepFile, "kernel/drivers/video/nvidia-peermem.ko:\n")
	h.later(time.Hour)
	reading, _ = h.reader.Read(h.now)
	if got := reading.Peermem[0].OnDisk; got != sysread.Some(true) {
		t.Errorf("the readable list names it: %v", got)
	}
}

// Where ib_core comes from is told by any sign of a build out of the tree, and
// not known if a sign cannot be read.
func TestRDMAOrigin(t *testing.T) {
	h, fs := mounted(t, "rdma-only")
	origin := func() driver.Origin {
		h.later(time.Hour)
		reading, _ := h.reader.Read(h.now)
		return reading.RDMACore.Value.Origin
	}
	if got := origin(); got != driver.OriginInbox {
		t.Errorf("%q", got)
	}
	for _, file := range []string{"version", "taint"} {
		h.write("sys/module/ib_core/"+file, "x\n")
		fs.Set("sys/module/ib_core/"+file, rdmatest.Rule{OpenErrno: syscall.EACCES})
		if got := origin(); got != driver.OriginUnknown {
			t.Errorf("%s unreadable: %q", file, got)
		}
		fs.ClearAll()
		h.remove("sys/module/ib_core/" + file)
	}
	for file, text := range map[string]string{"ib_core/taint": "OE\n", "ib_core/version": "5.4-3.1.0\n", "mlx_compat/initstate": "live\n"} {
		h.write("sys/module/"+file, text)
		if got := origin(); got != driver.OriginOFED {
			t.Errorf("with %s: %q", file, got)
		}
		h.remove("sys/module/" + file)
		h.remove("sys/module/mlx_compat")
	}
	if got := origin(); got != driver.OriginInbox {
		t.Errorf("afterwards: %q", got)
	}
}

// Addresses are given as sysfs writes them.
func TestProcGPUs(t *testing.T) {
	h := newHost(t, func(h drivertest.Host) {
		for _, name := range []string{"0000:3B:00.0", "10000:e1:00.0", "0000:af:00.0"} {
			h.Dir("proc/driver/nvidia/gpus/" + name)
		}
	})
	if got := h.read().ProcGPUs; !slices.Equal(got.Value, []string{"0000:3b:00.0", "0000:af:00.0", "10000:e1:00.0"}) {
		t.Errorf("%v", got)
	}
	h.remove("proc/driver/nvidia/gpus/0000:3B:00.0")
	if got := h.read().ProcGPUs; len(got.Value) != 2 {
		t.Errorf("one is lost: %v", got)
	}
}

// TestPartialProc: libnvidia-container mounts a selection over the driver's
// directory; a GPU that is missing there is hidden, not lost.
func TestPartialProc(t *testing.T) {
	dir := t.TempDir()
	proc, mounts := filepath.Join(dir, "proc"), filepath.Join(dir, "mountinfo")
	for name, test := range map[string]struct {
		line string
		want bool
	}{
		"none":          {"22 1 0:21 / /sys rw - sysfs sysfs rw", false},
		"the whole":     {"635 620 0:52 / " + proc + "/driver/nvidia ro,nosuid - tmpfs tmpfs ro,size=4k", true},
		"one GPU":       {"641 635 0:5 /driver/nvidia/gpus/0000:3b:00.0 " + proc + "/driver/nvidia/gpus/0000:3b:00.0 ro - proc proc rw", true},
		"another":       {"635 620 0:52 / " + proc + "/driver/nvidia-nvlink ro - tmpfs tmpfs ro", false},
		"another proc":  {"635 620 0:52 / /proc/driver/nvidia ro - tmpfs tmpfs ro", false},
		"nothing":       {"", false},
		"short garbage": {proc + "/driver/nvidia", false},
	} {
		if err := os.WriteFile(mounts, []byte("21 1 0:20 / /proc rw - proc proc rw\n"+test.line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		reading, _ := driver.NewReader(driver.Options{Sysfs: filepath.Join(dir, "sys"), Procfs: proc, Mounts: mounts}).Read(time.Unix(1_800_000_000, 0))
		if reading.ProcGPUsPartial != test.want {
			t.Errorf("%s: %v", name, reading.ProcGPUsPartial)
		}
	}
}

// goingFiles are those of a host on which everything goes away: what is read says
// ENODEV, and the next look that there is nothing.
type goingFiles struct{ sysread.Files }

func (goingFiles) ReadAt(string, []byte, int64) (int, error) { return 0, syscall.ENODEV }
func (goingFiles) ReadDir(string) ([]sysread.Entry, error)   { return nil, syscall.ENODEV }
func (goingFiles) Lstat(string) (sysread.Info, error)        { return sysread.Info{}, syscall.ENOENT }
func (goingFiles) ReadLines(string, int, func([]byte) bool) ([]byte, error) {
	return nil, syscall.ENODEV
}

// A file that goes away while it is read is absent and no error.
func TestVanishing(t *testing.T) {
	h := scene(t, "legacy-mode")
	options := drivertest.Options(h.dir)
	options.Files = goingFiles{sysread.Below("/")}
	reading, errs := driver.NewReader(options).Read(h.now)
	for _, err := range errs {
		t.Error(err)
	}
	if reading.Peermem[0].References.Known || reading.Lockdown.Known {
		t.Errorf("%+v", reading)
	}
}

// A file that says that there is no device and yet stays is one that cannot be
// read: what it would tell is unknown, not absent.
func TestStayingENODEV(t *testing.T) {
	h, fs := mounted(t, "legacy-mode")
	paths := []string{"sys/module/nvidia/initstate", "sys/kernel/mm/memory_peers", "sys/kernel/security/lockdown"}
	for _, path := range paths {
		fs.Set(path, rdmatest.Rule{Errno: syscall.ENODEV, OpenErrno: syscall.ENODEV})
	}
	reading, errs := h.reader.Read(h.now)
	if len(errs) != len(paths) || reading.Modules[0].Loaded().Known || reading.MemoryPeers.Present.Known || reading.Lockdown.Known {
		t.Errorf("%v: %+v", errs, reading)
	}
}

// A read that hangs ends when the driver lets go of it, with all values.
func TestHang(t *testing.T) {
	h, fs := mounted(t, "ofed")
	healthy := h.read()
	for _, path := range []string{"sys/module/nvidia_peermem/refcnt", "proc/driver/nvidia/params", "sys/kernel/mm/memory_peers/nv_mem/num_reg_bytes"} {
		h.later(time.Hour)
		fs.Set(path, rdmatest.Rule{Hang: true})
		done := make(chan driver.Reading)
		go func() {
			reading, _ := h.reader.Read(h.now)
			done <- reading
		}()
		for fs.Hanging() == 0 {
			time.Sleep(time.Millisecond)
		}
		select {
		case <-done:
			t.Errorf("%s: did not wait", path)
		default:
			fs.Release(path)
			if reading := <-done; summary(&reading) != summary(&healthy) {
				t.Errorf("%s: %s", path, summary(&reading))
			}
		}
	}
}

// TestCost: a read in steady state opens each file once, and none of the slow
// group.
func TestCost(t *testing.T) {
	h, fs := mounted(t, "ofed")
	h.read()
	fs.ResetCounts()
	h.later(time.Second)
	h.read()
	opens := 0
	for path, count := range fs.Counts() {
		opens += count.Opens + count.Lists
		if count.Opens > 1 || count.Lists > 1 {
			t.Errorf("%s: %+v", path, count)
		}
	}
	// Of the five modules that are there initstate and version, of peermem three
	// more, eight of the client, three directories.
	if opens == 0 || opens > 30 {
		t.Errorf("%d files opened: %v", opens, slices.Sorted(maps.Keys(fs.Counts())))
	}
	t.Logf("%d files opened", opens)
	// The slow group: the list of modules has not changed.
	fs.ResetCounts()
	h.later(time.Hour)
	h.read()
	if fs.Opens(drivertest.DepFile) != 0 || fs.Opens(drivertest.Params) != 1 {
		t.Errorf("list opened %d times, options %d times", fs.Opens(drivertest.DepFile), fs.Opens(drivertest.Params))
	}
}

func BenchmarkRead(b *testing.B) {
	tree := drivertest.New()
	for _, s := range drivertest.Scenes {
		if s.Name == "ofed" {
			s.Build(tree)
		}
	}
	dir, err := rdmatest.MkdirTemp()
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := tree.WriteTo(dir); err != nil {
		b.Fatal(err)
	}
	reader := driver.NewReader(drivertest.Options(dir))
	b.ReportAllocs()
	for b.Loop() {
		reader.Read(start)
	}
}

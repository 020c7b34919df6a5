package host

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
)

// tree is a host on disk: files by path, "-> target" for a link, "dir" for a
// directory.
type tree map[string]string

const directory = "<dir>"

// write writes the tree and returns its root.
func (files tree) write(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, link := strings.CutPrefix(text, "-> "); link {
			err = os.Symlink(target, path)
		} else if text == directory {
			err = os.MkdirAll(path, 0o755)
		} else {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// with returns the tree with changes; "" takes a file out.
func (files tree) with(changes tree) tree {
	changed := tree{}
	for name, text := range files {
		changed[name] = text
	}
	for name, text := range changes {
		if changed[name] = text; text == "" {
			delete(changed, name)
		}
	}
	return changed
}

// fakeKernel is a kernel that answers as told.
type fakeKernel struct {
	refused  map[string]error // nodes
	links    map[string]Link
	linksErr error
	daemons  []Daemon
	err      error
	asked    int
}

func (k *fakeKernel) Usable(path string) error { return k.refused[filepath.Base(path)] }

func (k *fakeKernel) Links(wanted func(string) bool) (map[string]Link, error) {
	found := map[string]Link{}
	for name, link := range k.links {
		if wanted(name) {
			found[name] = link
		}
	}
	return found, k.linksErr
}

func (k *fakeKernel) Daemons() ([]Daemon, error) {
	k.asked++
	return k.daemons, k.err
}

const limitsText = "Limit                     Soft Limit           Hard Limit           Units     \n" +
	"Max open files            1024                 524288               files     \n" +
	"Max locked memory         8388608              unlimited            bytes     \n"

// plain is a host with the exporter as a service, root, and one NIC.
var plain = tree{
	"proc/2/comm":                                "kthreadd\n",
	"proc/1/ns/net":                              "-> net:[4026531840]",
	"proc/1/ns/mnt":                              "-> mnt:[4026531841]",
	"proc/self/ns/pid":                           "-> pid:[4026531836]",
	"proc/self/ns/net":                           "-> net:[4026531840]",
	"proc/self/ns/mnt":                           "-> mnt:[4026531841]",
	"proc/self/cgroup":                           "0::/system.slice/gdr_exporter.service\n",
	"proc/self/status":                           "Name:\tgdr_exporter\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n",
	"proc/self/limits":                           limitsText,
	"sys/class/dmi/id/sys_vendor":                "NVIDIA\n",
	"sys/class/dmi/id/product_name":              "DGXH100\n",
	"sys/module/ib_core/parameters/netns_mode":   "Y\n",
	"sys/class/infiniband_verbs/abi_version":     "6\n",
	"sys/class/infiniband_verbs/uverbs0/ibdev":   "mlx5_0\n",
	"sys/class/infiniband_mad/umad0/ibdev":       "mlx5_0\n",
	"sys/class/infiniband_mad/issm0/ibdev":       "mlx5_0\n",
	"sys/class/misc/rdma_cm/dev":                 "10:125\n",
	"sys/class/infiniband/mlx5_0/device/net/ib0": directory,
	"sys/class/infiniband/mlx5_0/ports/1/state":  "4: ACTIVE\n",
	"sys/class/net/ib0/type":                     "32\n",
	"dev/infiniband/uverbs0":                     "",
	"dev/infiniband/umad0":                       "",
	"dev/infiniband/rdma_cm":                     "",
	"dev/infiniband/issm0":                       "",
}

// read reads a tree once.
func read(t *testing.T, files tree, kernel *fakeKernel) (Reading, []sysread.ReadError) {
	t.Helper()
	root := files.write(t)
	return NewReader(Options{Sysfs: root + "/sys", Procfs: root + "/proc", Self: root + "/proc/self", Root: root, Kernel: kernel}).Read(time.Now())
}

func TestPlain(t *testing.T) {
	kernel := &fakeKernel{links: map[string]Link{"ib0": {Up: true, IPv4: 1}, "eth0": {}}, daemons: []Daemon{{Name: "slurmd", PID: 7}}}
	got, errs := read(t, plain, kernel)
	if len(errs) > 0 {
		t.Errorf("errors %v", errs)
	}
	usable := sysread.Some(true)
	want := Reading{
		Context: Context{
			Root: usable, HostPID: usable, HostNetwork: usable, Container: sysread.Some(false), Capabilities: sysread.Some(uint64(1<<41 - 1)),
			Memlock: sysread.Some(uint64(8388608)), SharedRDMA: usable,
		},
		Platform:   Platform{sysread.Some("NVIDIA"), sysread.Some("DGXH100")},
		Nodes:      []Node{{"rdma_cm", "", true, usable}, {"umad0", "mlx5_0", true, usable}, {"uverbs0", "mlx5_0", true, usable}},
		NodesKnown: true,
		Daemons:    sysread.Some([]Daemon{{Name: "slurmd", PID: 7}}),
		Interfaces: sysread.Some([]Interface{{Name: "ib0", Type: TypeInfiniBand, Up: usable, IPv4: 1}}),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestEmpty: on a machine without anything nothing is known, and nothing is wrong.
func TestEmpty(t *testing.T) {
	got, errs := read(t, tree{"proc": directory, "sys": directory}, &fakeKernel{})
	if len(errs) > 0 {
		t.Errorf("errors %v", errs)
	}
	if want := (Reading{NodesKnown: true, Interfaces: sysread.Some([]Interface(nil))}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestContexts(t *testing.T) {
	yes, no, unknown := sysread.Some(true), sysread.Some(false), sysread.Maybe[bool]{}
	pod := "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-0123456789abcdef.scope\n"
	for name, c := range map[string]struct {
		changes                         tree
		hostPID, hostNetwork, container sysread.Maybe[bool]
		daemons                         bool
	}{
		"not root": {tree{"proc/1/ns/net": "", "proc/1/ns/mnt": ""}, yes, unknown, no, true},
		"pod": {
			tree{"proc/2/comm": "", "proc/self/ns/pid": "-> pid:[4026532567]", "proc/self/cgroup": pod},
			no, unknown, yes, false,
		},
		"pod with the host's processes": {
			tree{"proc/self/ns/mnt": "-> mnt:[4026532000]", "proc/self/ns/net": "-> net:[4026532001]", "proc/self/cgroup": pod},
			yes, no, yes, true,
		},
		"pod of which the group is hidden": {
			tree{"proc/2/comm": "sleep\n", "proc/self/ns/pid": "-> pid:[4026532567]", "proc/self/cgroup": "0::/\n"},
			no, unknown, unknown, false,
		},
		"docker":                {tree{".dockerenv": "x", "proc/self/cgroup": "0::/\n"}, yes, yes, yes, true},
		"podman":                {tree{"run/.containerenv": "x", "proc/self/cgroup": "0::/\n"}, yes, yes, yes, true},
		"the service of docker": {tree{"proc/self/cgroup": "0::/system.slice/docker.service\n", "proc/1/ns/mnt": ""}, yes, yes, no, true},
		"a session":             {tree{"proc/self/cgroup": "0::/user.slice/user-0.slice/session-1.scope\n", "proc/1/ns/mnt": ""}, yes, yes, unknown, true},
		"hidepid":               {tree{"proc/2/comm": "", "proc/1/ns/net": "", "proc/1/ns/mnt": ""}, yes, unknown, no, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, errs := read(t, plain.with(c.changes), &fakeKernel{})
			x := got.Context
			if x.HostPID != c.hostPID || x.HostNetwork != c.hostNetwork || x.Container != c.container || got.Daemons.Known != c.daemons || len(errs) > 0 {
				t.Errorf("%+v, daemons %v, errors %v", x, got.Daemons, errs)
			}
		})
	}
}

func TestNodes(t *testing.T) {
	changes := tree{
		"sys/class/infiniband_verbs/uverbs1/ibdev": "mlx5_1\n", // its node is not there
		"sys/class/infiniband_verbs/uverbs2/ibdev": "mlx5_2\n", // excluded
		"dev/infiniband/uverbs2":                   "",
		"dev/infiniband/uverbs9":                   "", // sysfs knows nothing of it
		"dev/infiniband/by-ibdev":                  directory,
	}
	files := plain.with(nil)
	for name, text := range changes {
		files[name] = text
	}
	root := files.write(t)
	kernel := &fakeKernel{refused: map[string]error{"uverbs0": syscall.EACCES, "uverbs9": syscall.ENOENT, "umad0": syscall.EIO}}
	r := NewReader(Options{
		Sysfs: root + "/sys", Procfs: root + "/proc", Self: root + "/proc/self", Root: root, Kernel: kernel,
		Include: func(device string) bool { return device != "mlx5_2" },
	})
	got, errs := r.Read(time.Now())
	want := []Node{
		{"rdma_cm", "", true, sysread.Some(true)}, {"umad0", "mlx5_0", true, sysread.Maybe[bool]{}}, {"uverbs0", "mlx5_0", true, sysread.Some(false)},
		{"uverbs1", "mlx5_1", false, sysread.Maybe[bool]{}}, {"uverbs9", "", true, sysread.Maybe[bool]{}},
	}
	if !slices.Equal(got.Nodes, want) || !got.NodesKnown {
		t.Errorf("got %+v", got.Nodes)
	}
	if len(errs) != 1 || errs[0].Source != "dev/infiniband" || !errors.Is(errs[0].Err, syscall.EIO) {
		t.Errorf("errors %v", errs)
	}
}

func TestInterfaces(t *testing.T) {
	bond := plain.with(tree{
		"sys/class/infiniband/mlx5_bond_0/device/net/eth2":           directory,
		"sys/class/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/0": "bond0\n",
		"sys/class/infiniband/rxe0/parent":                           "eth1\n",
		"sys/class/infiniband/evil/parent":                           "../../../etc/passwd\n",
		"sys/class/net/bond0/type":                                   "1\n",
		"sys/class/net/eth1/type":                                    "1\n",
		"sys/class/net/eth2/type":                                    "one\n",
	})
	kernel := &fakeKernel{links: map[string]Link{"eth1": {}, "eth2": {}, "eth3": {IPv4: 1}, "bond0": {Up: true, IPv6: 2}}}
	got, errs := read(t, bond, kernel)
	want := []Interface{{"bond0", 1, sysread.Some(true), 0, 2}, {"eth1", 1, sysread.Some(false), 0, 0}}
	if !reflect.DeepEqual(got.Interfaces, sysread.Some(want)) {
		t.Errorf("got %+v", got.Interfaces)
	}
	if len(errs) != 1 || errs[0].Source != "net/type" {
		t.Errorf("errors %v", errs)
	}
	kernel.linksErr = syscall.ENOBUFS
	if got, errs = read(t, bond, kernel); got.Interfaces.Known || len(errs) != 1 {
		t.Errorf("without addresses %+v, errors %v", got.Interfaces, errs)
	}
}

// TestSchedule: processes are searched every five minutes at most, and what a
// failed search does not say is not known.
func TestSchedule(t *testing.T) {
	root := plain.write(t)
	kernel := &fakeKernel{}
	r := NewReader(Options{Sysfs: root + "/sys", Procfs: root + "/proc", Self: root + "/proc/self", Root: root, Kernel: kernel, SlowInterval: time.Minute})
	now := time.Unix(1_800_000_000, 0)
	for range 10 {
		r.Read(now)
		now = now.Add(time.Minute)
	}
	if kernel.asked != 2 {
		t.Errorf("%d searches in ten minutes", kernel.asked)
	}
	kernel.err = syscall.EIO
	if got, errs := r.Read(now); got.Daemons.Known || len(errs) != 1 {
		t.Errorf("%+v, errors %v", got.Daemons, errs)
	}
}

func TestFindDaemons(t *testing.T) {
	root := tree{
		"proc/1/comm":                    "systemd\n",
		"proc/20/comm":                   "containerd\n",
		"proc/20/limits":                 limitsText,
		"proc/20/environ":                "SECRET=1\x00",
		"proc/3/comm":                    "slurmd\n",
		"proc/3/limits":                  "Max locked memory         unlimited            unlimited            bytes     \n",
		"proc/4/comm":                    "kubelet\n",
		"proc/4/limits":                  "nonsense\n",
		"proc/5/comm":                    "containerd-shim\n",
		"proc/self":                      "-> 20",
		"proc/meminfo":                   "x",
		"proc/99999999999999999999/comm": "slurmd\n",
	}.write(t)
	got, err := NewKernel("/proc", sysread.Below(root)).Daemons()
	unlimited := sysread.Some(uint64(math.MaxUint64))
	want := []Daemon{{"slurmd", 3, unlimited, unlimited}, {Name: "kubelet", PID: 4}, {"containerd", 20, sysread.Some(uint64(8388608)), unlimited}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := NewKernel("/none", sysread.Below(root)).Daemons(); !sysread.Absent(err) {
		t.Errorf("without procfs: %v", err)
	}
}

// TestRunning: on the running system everything answers that is there on every
// Linux.
func TestRunning(t *testing.T) {
	got, errs := NewReader(Options{Sysfs: "/sys", Procfs: "/proc"}).Read(time.Now())
	x := got.Context
	if !x.Root.Known || x.Root.Value != (os.Geteuid() == 0) || !x.Capabilities.Known || !x.Memlock.Known || !x.HostPID.Known || !got.NodesKnown {
		t.Errorf("%+v", got)
	}
	for _, err := range errs {
		t.Errorf("error %v", err)
	}
	links, err := NewKernel("/proc", nil).Links(func(string) bool { return true })
	if err != nil || links["lo"].Up && links["lo"].IPv4 == 0 {
		t.Errorf("links %v, %v", links, err)
	}
	if err := NewKernel("/proc", nil).Usable("/dev/null"); err != nil {
		t.Error(err)
	}
	if err := NewKernel("/proc", nil).Usable("/no/such"); !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
}

func FuzzMemlock(f *testing.F) {
	f.Add("Max locked memory         8388608              unlimited            bytes     \n")
	f.Add("Max locked memory")
	f.Fuzz(func(t *testing.T, text string) {
		soft, hard, err := parseMemlock(text)
		if err != nil && (soft != 0 && hard != 0) {
			t.Errorf("%d %d with %v", soft, hard, err)
		}
		if err == nil && !strings.HasPrefix(text, memlockLine) {
			t.Errorf("%q taken", text)
		}
	})
}

package capture

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/host"
	"gdr_exporter/collector/sysread"
)

// nic is where the PCI function of a NIC is in sysfs.
const nic = "sys/devices/pci0000:17/0000:18:00.0"

// hostTree is what the reader of the host looks at, with what must not be written
// of it.
var hostTree = map[string]string{
	"proc/2/comm":                              "kthreadd\n",
	"proc/41/comm":                             "containerd\n",
	"proc/41/limits":                           "Max locked memory         8388608              8388608              bytes     \nMax open files  1 1 files\n",
	"proc/42/comm":                             "secret-process\n",
	"proc/self/cgroup":                         "0::/kubepods.slice/kubepods-pod11112222_3333_4444_5555_666677778888.slice/cri-containerd-0123456789abcdef0123456789abcdef.scope\n",
	"proc/self/status":                         "Name:\tsecret-name\nUid:\t0\t0\t0\t0\nGroups:\t4711\nCapEff:\t00000000a80425fb\n",
	"proc/self/limits":                         "Max open files  secret\nMax locked memory         65536                65536                bytes     \n",
	"sys/class/dmi/id/product_name":            "PowerEdge XE9680\n",
	"sys/class/dmi/id/sys_vendor":              "Dell Inc.\n",
	"sys/module/ib_core/parameters/netns_mode": "N\n",
	nic + "/infiniband_verbs/uverbs0/ibdev":    "mlx5_0\n",
	nic + "/infiniband/mlx5_0/ports/1/state":   "",
	nic + "/net/ib0/type":                      "32\n",
	"dev/infiniband/uverbs0":                   "",
	"dev/infiniband/rdma_cm":                   "",
}

// addressedKernel has addresses, and a node that is not for this process.
type addressedKernel struct{ host.Kernel }

func (addressedKernel) Usable(path string) error {
	if filepath.Base(path) == "rdma_cm" {
		return syscall.EACCES
	}
	return nil
}

func (addressedKernel) Links(wanted func(string) bool) (map[string]host.Link, error) {
	links := map[string]host.Link{"ib0": {Up: true, IPv4: 1, IPv6: 2}, "secret0": {IPv4: 3}}
	for name := range links {
		if !wanted(name) {
			delete(links, name)
		}
	}
	return links, nil
}

// TestHost: a replay of a recording, anonymised too, says what the host said.
func TestHost(t *testing.T) {
	root := t.TempDir()
	for name, text := range hostTree {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"proc/self/ns/pid": "pid:[4026531836]", "proc/self/ns/net": "net:[1]", "proc/1/ns/net": "net:[2]",
		"sys/class/infiniband/mlx5_0": "../../devices/pci0000:17/0000:18:00.0/infiniband/mlx5_0", "sys/class/net/ib0": "../../devices/pci0000:17/0000:18:00.0/net/ib0",
		"sys/class/infiniband_verbs/uverbs0": "../../devices/pci0000:17/0000:18:00.0/infiniband_verbs/uverbs0", nic + "/infiniband/mlx5_0/device": "../../../0000:18:00.0"} {
		path := filepath.Join(root, link)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	files := sysread.Below(root)
	read := func(files sysread.Files, kernel host.Kernel) host.Reading {
		reading, errs := host.NewReader(host.Options{Sysfs: "/sys", Procfs: "/proc", Files: files, Kernel: kernel}).Read(time.Now())
		for _, err := range errs {
			t.Errorf("error %v", err)
		}
		return reading
	}
	kernel := addressedKernel{host.NewKernel("/proc", files)}
	want := read(files, kernel)
	if !want.Daemons.Known || len(want.Daemons.Value) != 1 || want.Context.Container != sysread.Some(true) || len(want.Nodes) != 2 || len(want.Interfaces.Value) != 1 {
		t.Fatalf("the host says too little: %+v", want)
	}
	recorder := NewRecorder(files, Header{Readers: Readers{Sysfs: "/sys", Procfs: "/proc"}}, nil)
	if got := read(recorder.Files(), recorder.Host(kernel)); !reflect.DeepEqual(got, want) {
		t.Errorf("recorded %+v\nwant     %+v", got, want)
	}
	anonymous, contents := Anonymise(recorder.Recording(), bytes.Repeat([]byte{7}, KeySize), []string{"node17"})
	if len(contents.Unclassed) > 0 || len(contents.Dropped) > 0 {
		t.Errorf("unclassed %q, dropped %q", contents.Unclassed, contents.Dropped)
	}
	var text bytes.Buffer
	if err := anonymous.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"secret", "4711", "11112222", "0123456789abcdef", "open files"} {
		if strings.Contains(text.String(), secret) {
			t.Errorf("%q is written", secret)
		}
	}
	want.Daemons.Value[0].PID = 1 // its pseudonym
	for name, recording := range map[string]*Recording{"recording": recorder.Recording(), "anonymous": anonymous} {
		player := Play(recording)
		if !player.Has(PartHost) {
			t.Fatalf("%s: nothing of the host", name)
		}
		got := read(player.Files(), player.Host())
		got.Daemons.Value[0].PID = 1
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v\nwant %+v", name, got, want)
		}
		if gaps := player.Unrecorded(); len(gaps) > 0 {
			t.Errorf("%s: unrecorded %q", name, gaps)
		}
	}
}

func TestKindOfGroup(t *testing.T) {
	for text, want := range map[string]string{
		"0::/system.slice/gdr_exporter.service\n": "0::/some/some.service\n",
		"0::/\n": "0::/\n",
		"12:memory:/docker/0123456789abcdef0123456789abcdef\n":                              "0::/docker/000000000000\n",
		"0::/system.slice/docker-0123456789abcdef0123456789abcdef.scope\n":                  "0::/some/docker-000000000000\n",
		"0::/user.slice/user-1000.slice/session-3.scope\n":                                  "0::/some/some/some\n",
		"1:name=systemd:/kubepods/besteffort/pod11112222-3333-4444-5555-666677778888/abc\n": "0::/kubepods/some/some/some\n",
	} {
		if got := kindOfGroup(nil, text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

package collector

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/netdev"
	"gdr_exporter/rdma/nlattr"
)

// netdevKernel is a kernel whose only interface has the ethtool statistics of
// a file in rdma/netdev/testdata.
type netdevKernel struct {
	names  []string
	values []uint64
	pfc    int // -1: no DCB
}

func (k *netdevKernel) Index(string) (int, error)                   { return 4, nil }
func (k *netdevKernel) Address(string) (string, error)              { return "b8:3f:d2:00:00:01", nil }
func (k *netdevKernel) StatCount(string) (int, error)               { return len(k.names), k.none() }
func (k *netdevKernel) StatNames(_ string, n int) ([]string, error) { return k.names[:n], nil }
func (k *netdevKernel) Close()                                      {}

func (k *netdevKernel) none() error {
	if len(k.names) == 0 {
		return syscall.EOPNOTSUPP
	}
	return nil
}

func (k *netdevKernel) Stats(_ string, values []uint64) error {
	copy(values, k.values)
	return nil
}

func (k *netdevKernel) DCB(string) ([]byte, error) {
	if k.pfc < 0 {
		return nil, syscall.EOPNOTSUPP
	}
	pfc := make([]byte, 136)
	pfc[1] = byte(k.pfc)
	ieee := nlattr.Append(nil, 2, pfc)
	ieee = nlattr.Append(ieee, 3, nlattr.Append(nil, 1, []byte{5, 3, 26, 0}))
	return nlattr.Append([]byte{0, 21, 0, 0}, 13, ieee), nil
}

// readNetdev reads an interface of the driver with the statistics of file.
func readNetdev(t *testing.T, file, driver string, pfc int, files map[string]string) netdev.Reading {
	t.Helper()
	k := &netdevKernel{pfc: pfc}
	if file != "" {
		text, err := os.ReadFile("../rdma/netdev/testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			at := strings.LastIndex(line, ": ")
			if at < 0 {
				continue
			}
			value, err := strconv.ParseUint(strings.TrimSpace(line[at+2:]), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			k.names, k.values = append(k.names, strings.TrimPrefix(line[:at], "     ")), append(k.values, value)
		}
	}
	root := t.TempDir()
	dir := filepath.Join(root, "class/net/eth0")
	all := map[string]string{"ifindex": "4", "address": "b8:3f:d2:00:00:01", "mtu": "9000", "carrier_up_count": "3", "carrier_down_count": "2"}
	for name, text := range files {
		all[name] = text
	}
	for name, text := range all {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if driver != "" {
		if err := os.MkdirAll(filepath.Join(dir, "device"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/"+driver, filepath.Join(dir, "device/driver")); err != nil {
			t.Fatal(err)
		}
	}
	r := netdev.NewReader(netdev.Options{Sysfs: root, Kernel: k, Extra: true})
	defer r.Close()
	reading, errs := r.Read(goldenTime, "eth0")
	for _, err := range errs {
		t.Error(err)
	}
	return reading
}

// ofed are the files that NVIDIA's out-of-tree driver adds, with congestion
// control on for all priorities.
func ofed() map[string]string {
	files := map[string]string{"qos/trust": "dscp\n"}
	for priority := range netdev.Priorities {
		files[fmt.Sprintf("ecn/roce_np/enable/%d", priority)] = "1\n"
		files[fmt.Sprintf("ecn/roce_rp/enable/%d", priority)] = "1\n"
	}
	return files
}

// TestNetdevGolden compares the page of each driver's interface with
// testdata/netdev/<name>.metrics.
func TestNetdevGolden(t *testing.T) {
	for name, c := range map[string]struct {
		file, driver string
		pfc          int
		files        map[string]string
	}{
		"mlx5":        {"mlx5_core.txt", "mlx5_core", 1 << 3, nil},
		"mlx5-ofed":   {"mlx5_core.txt", "mlx5_core", -1, ofed()},
		"mlx5-global": {"mlx5_core-global.txt", "mlx5_core", 0, nil},
		"bnxt_en":     {"bnxt_en.txt", "bnxt_en", 1 << 3, nil},
		"ice":         {"ice.txt", "ice", -1, nil},
		"ena":         {"ena.txt", "ena", -1, nil},
		"mana":        {"mana.txt", "mana", -1, nil},
		"bond":        {"", "", -1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			reading := readNetdev(t, c.file, c.driver, c.pfc, c.files)
			p := newPage()
			var cache labelCache
			showNetdev(p, &cache, cache.of("mlx5_0", "1"), &reading)
			comparePage(t, p, filepath.Join("testdata", "netdev", name+".metrics"))
			if p.used > 60 {
				t.Errorf("%d series for one port", p.used)
			}
		})
	}
}

// TestNetdevGoldensHaveAll: every family is in some golden page.
func TestNetdevGoldensHaveAll(t *testing.T) {
	files, err := filepath.Glob("testdata/netdev/*.metrics")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for _, f := range netdevStats {
		if !strings.Contains(all.String(), "\n"+f.name+"{") {
			t.Errorf("%s is in no golden page", f.name)
		}
	}
}

// comparePage compares a page with a golden one: unique series, promlint clean,
// and every family declared.
func comparePage(t *testing.T, p *page, path string) {
	t.Helper()
	var b bytes.Buffer
	series := map[string]bool{}
	for _, mf := range p.gather() {
		if declared[mf.GetName()] == nil {
			t.Errorf("%s is not declared", mf.GetName())
		}
		for _, m := range mf.Metric {
			if id := mf.GetName() + fmt.Sprint(m.Label); series[id] {
				t.Errorf("two series %s", id)
			} else {
				series[id] = true
			}
		}
		if _, err := expfmt.MetricFamilyToText(&b, mf); err != nil {
			t.Fatal(err)
		}
	}
	problems, err := promlint.New(bytes.NewReader(b.Bytes())).Lint()
	if err != nil {
		t.Error(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; -update writes it", err)
	}
	if diff := firstDifference(string(want), b.String()); diff != "" {
		t.Errorf("%s: %s", path, diff)
	}
}

// TestNetdevFamilies: every statistic's family has a name of its own, that no
// counter file leads to either, and passes promlint.
func TestNetdevFamilies(t *testing.T) {
	p := newPage()
	seen := map[string]bool{}
	for _, m := range netdev.Meanings() {
		f := netdevStats[m]
		if seen[f.name] || knownNames()[f.name] {
			t.Errorf("%s is taken", f.name)
		}
		seen[f.name] = true
		if declared[f.name] != f || !strings.Contains(f.help, strings.ReplaceAll(m.Vendors()[0], "%", "N")) || !strings.Contains(f.help, "timer") {
			t.Errorf("%s: %s", f.name, f.help)
		}
		p.add(f, 1, pairs("device", "mlx5_0"))
	}
	var b bytes.Buffer
	for _, mf := range p.gather() {
		if _, err := expfmt.MetricFamilyToText(&b, mf); err != nil {
			t.Fatal(err)
		}
	}
	problems, err := promlint.New(&b).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %+v", err, problems)
	}
}

// TestNetdevStatus: a failure shows nothing, and a hidden interface nothing but that.
func TestNetdevStatus(t *testing.T) {
	for _, c := range []struct {
		reading netdev.Reading
		want    string
	}{
		{netdev.Reading{}, ""},
		{netdev.Reading{Name: "eth0", Read: time.Unix(1, 0)}, "trust_info=1"},
		{netdev.Reading{Name: "eth0", EthtoolStatus: netdev.StatusHidden, DCBStatus: netdev.StatusHidden}, "netdev_hidden=1 trust_info=1"},
		{netdev.Reading{Name: "eth0", EthtoolStatus: netdev.StatusUnsupported}, "ethtool_supported=0 trust_info=1"},
		{netdev.Reading{Name: "eth0", DCBStatus: netdev.StatusRead}, "dcb_supported=1 trust_info=1"},
	} {
		p := newPage()
		var cache labelCache
		showNetdev(p, &cache, cache.of("rxe0", "1"), &c.reading)
		var got []string
		for _, mf := range p.gather() {
			got = append(got, fmt.Sprintf("%s=%v", strings.TrimPrefix(mf.GetName(), "gdr_rdma_port_"), mf.Metric[0].Gauge.GetValue()))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v, want %s", c.reading, got, c.want)
		}
	}
}

// TestNetdevHiddenGolden: of an interface in another network namespace only that
// is shown, and what sysfs has.
func TestNetdevHiddenGolden(t *testing.T) {
	reading := netdev.Reading{Name: "eth0", EthtoolStatus: netdev.StatusHidden, DCBStatus: netdev.StatusHidden, MTU: sysread.Some[uint64](9000)}
	p := newPage()
	var cache labelCache
	showNetdev(p, &cache, cache.of("mlx5_0", "1"), &reading)
	comparePage(t, p, filepath.Join("testdata", "netdev", "hidden.metrics"))
}

package netdev

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The tests in this file compare the reader with ethtool and ip on a real
// kernel. They change its interfaces, so they run in a virtual machine only:
//
//	go test -c -o netdev.test ./rdma/netdev
//	vmtest --topology switch --module rdma/netdev/testdata/module/gdrtest_netdev \
//		--env GDR_IN_KERNEL=1 -- ./netdev.test -test.run InKernel
//
// Without --module the test of PFC is skipped.
func inKernel(t *testing.T) {
	t.Helper()
	if os.Getenv("GDR_IN_KERNEL") == "" {
		t.Skip("runs in the virtual machine that TestKernel of cmd/gdr_exporter boots")
	}
}

// output runs a command.
func output(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		var text string
		if exit, is := err.(*exec.ExitError); is {
			text = string(exit.Stderr)
		}
		t.Fatalf("%s %s: %v %s", name, strings.Join(args, " "), err, text)
	}
	return out
}

// ethtoolS is ethtool -S; nil if the interface has no statistics.
func ethtoolS(t *testing.T, name string) (names []string, values []uint64) {
	t.Helper()
	out, err := exec.Command("ethtool", "-S", name).CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "no stats available") || strings.Contains(string(out), "Operation not supported") {
			return nil, nil
		}
		t.Fatalf("ethtool -S %s: %v %s", name, err, out)
	}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if stat, value, is := cutLast(strings.TrimSpace(lines.Text())); is {
			names, values = append(names, strings.TrimSpace(stat)), append(values, value)
		}
	}
	return names, values
}

func interfaces(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestInKernelStats: names and values are those of ethtool -S.
func TestInKernelStats(t *testing.T) {
	inKernel(t)
	output(t, "ip", "link", "add", "dummy9", "type", "dummy")
	defer output(t, "ip", "link", "del", "dummy9")
	k := &linux{fd: -1}
	defer k.Close()
	compared := 0
	for _, name := range interfaces(t) {
		before, errBefore := statValues(k, name)
		names, want := ethtoolS(t, name)
		after, _ := statValues(k, name)
		if names == nil {
			if !unsupported(errBefore) {
				t.Errorf("%s: ethtool has no statistics, the reader says %v", name, errBefore)
			}
			continue
		}
		got, err := k.StatNames(name, len(names))
		if err != nil || errBefore != nil {
			t.Errorf("%s: %v, %v", name, err, errBefore)
			continue
		}
		for i := range names {
			if strings.TrimSpace(got[i]) != names[i] {
				t.Errorf("%s: statistic %d is %q, ethtool says %q", name, i, got[i], names[i])
			}
			if want[i] < before[i] || want[i] > after[i] {
				t.Errorf("%s %s: ethtool %d, before %d, after %d", name, names[i], want[i], before[i], after[i])
			}
			compared++
		}
	}
	t.Logf("compared %d statistics of %v", compared, interfaces(t))
	if compared == 0 {
		t.Error("no interface has statistics")
	}
}

func statValues(k *linux, name string) ([]uint64, error) {
	count, err := k.StatCount(name)
	if err != nil {
		return nil, err
	}
	values := make([]uint64, count)
	return values, k.Stats(name, values)
}

// TestInKernelGuard: a kernel that writes more than it was given room for
// makes the call fail and writes nowhere else.
func TestInKernelGuard(t *testing.T) {
	inKernel(t)
	k := &linux{fd: -1}
	defer k.Close()
	for _, name := range interfaces(t) {
		count, err := k.StatCount(name)
		if err != nil || count < 3 {
			continue
		}
		values := make([]uint64, count-2)
		if err := k.Stats(name, values); err == nil {
			t.Errorf("%s: room for %d of %d statistics was enough", name, len(values), count)
		} else {
			t.Logf("%s: %v", name, err)
		}
		if _, err := statValues(k, name); err != nil {
			t.Errorf("%s afterwards: %v", name, err)
		}
	}
}

// TestInKernelRead: the whole reading agrees with ip -j link, and neither
// virtual interfaces nor those of emulated NICs make errors.
func TestInKernelRead(t *testing.T) {
	inKernel(t)
	var links []struct {
		Name  string `json:"ifname"`
		MTU   uint64 `json:"mtu"`
		Ups   uint64 `json:"carrier_up_count"`
		Downs uint64 `json:"carrier_down_count"`
	}
	if err := json.Unmarshal(output(t, "ip", "-j", "-d", "-s", "-s", "link"), &links); err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		r := NewReader(Options{Sysfs: "/sys", Extra: true})
		reading, errs := r.Read(time.Now(), link.Name)
		for _, err := range errs {
			t.Errorf("%s: %v", link.Name, err)
		}
		if reading.MTU.Value != link.MTU || reading.CarrierUps.Value < link.Ups {
			t.Errorf("%s: MTU %v, carrier ups %v; ip says %+v", link.Name, reading.MTU, reading.CarrierUps, link)
		}
		dcb := StatusUnsupported
		if link.Name == moduleNetdev {
			dcb = StatusRead
		}
		if reading.DCBStatus != dcb || reading.EthtoolStatus == StatusUnknown || reading.EthtoolStatus == StatusHidden {
			t.Errorf("%s: ethtool %v, DCB %v", link.Name, reading.EthtoolStatus, reading.DCBStatus)
		}
		t.Logf("%s: driver %q, ethtool %v with %d statistics, %d requests", link.Name, reading.Driver, reading.EthtoolStatus, reading.StatCount, reading.Requests)
		r.Close()
	}
}

// moduleNetdev is the interface of testdata/module/gdrtest_netdev.
const moduleNetdev = "pfc0"

const moduleParameters = "/sys/module/gdrtest_netdev/parameters/"

// TestInKernelPFC: a driver called mlx5_core with PFC, and with ethtool
// statistics under mlx5's names. The reader agrees with ethtool and dcb,
// follows changes, and asks the driver no more than it says.
func TestInKernelPFC(t *testing.T) {
	inKernel(t)
	if _, err := os.Stat("/sys/class/net/" + moduleNetdev); err != nil {
		t.Skip("no module gdrtest_netdev: see vm_test.go")
	}
	r := NewReader(Options{Sysfs: "/sys", ConfigInterval: time.Nanosecond, Extra: true})
	defer r.Close()
	now := time.Now()
	for i, step := range []struct {
		pfc   string
		dcb   []string
		trust Trust
	}{
		{"8", nil, TrustPCP},
		{"24", []string{"app", "add", "dev", moduleNetdev, "dscp-prio", "26:3"}, TrustDSCP},
		{"0", []string{"app", "del", "dev", moduleNetdev, "dscp-prio", "26:3"}, TrustPCP},
		{"129", []string{"app", "add", "dev", moduleNetdev, "stream-port-prio", "4791:3"}, TrustPCP},
	} {
		if err := os.WriteFile(moduleParameters+"pfc", []byte(step.pfc), 0o644); err != nil {
			t.Fatal(err)
		}
		if step.dcb != nil {
			output(t, "dcb", step.dcb...)
		}
		reading, errs := r.Read(now.Add(time.Duration(i)*time.Minute), moduleNetdev)
		for _, err := range errs {
			t.Error(err)
		}
		if reading.Trust != step.trust || reading.Requests > 6 {
			t.Errorf("PFC %s: trust %q, %d requests", step.pfc, reading.Trust, reading.Requests)
		}
		comparePFC(t, reading)
		compareStats(t, reading)
	}
}

// comparePFC compares with dcb pfc show.
func comparePFC(t *testing.T, reading Reading) {
	t.Helper()
	var shown struct {
		Enabled [Priorities]bool `json:"prio_pfc"`
	}
	if err := json.Unmarshal(output(t, "dcb", "-j", "pfc", "show", "dev", moduleNetdev), &shown); err != nil {
		t.Fatal(err)
	}
	for priority, enabled := range shown.Enabled {
		if !reading.PFC.Known || reading.PFC.Value.Has(priority) != enabled {
			t.Errorf("priority %d: dcb says %v, read %v", priority, enabled, reading.PFC)
		}
	}
}

// compareStats compares what was made of the statistics with ethtool -S.
func compareStats(t *testing.T, reading Reading) {
	t.Helper()
	names, values := ethtoolS(t, moduleNetdev)
	found := 0
	for i, name := range names {
		meaning, label := lookup(reading.Driver, name)
		for _, s := range reading.Stats {
			if s.Meaning == meaning && s.Label == label {
				found++
				if s.Raw != values[i] {
					t.Errorf("%s: %d, ethtool says %s %d", s.Name, s.Raw, name, values[i])
				}
			}
		}
	}
	if want := len(names) - 3; found != want { // rx_packets, rx0_packets, rx1_packets
		t.Errorf("%d of %d statistics found", found, want)
	}
}

// TestInKernelVanish: interfaces that come and go under the reader make no errors.
func TestInKernelVanish(t *testing.T) {
	inKernel(t)
	r := NewReader(Options{Sysfs: "/sys", Extra: true})
	defer r.Close()
	for range 10 {
		output(t, "ip", "link", "add", "vanish0", "type", "veth", "peer", "name", "vanish1")
		for _, when := range []string{"there", "gone"} {
			reading, errs := r.Read(time.Now(), "vanish0")
			if len(errs) > 0 {
				t.Fatal(when, errs)
			}
			if want := map[string]Status{"there": StatusRead, "gone": StatusHidden}[when]; reading.EthtoolStatus != want {
				t.Fatal(when, reading.EthtoolStatus)
			}
			if when == "there" {
				output(t, "ip", "link", "del", "vanish0")
			}
		}
	}
}

// TestInKernelUnprivileged: nobody can read all of it.
func TestInKernelUnprivileged(t *testing.T) {
	inKernel(t)
	rerun(t, "TestInKernelRead", func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	})
}

// TestInKernelOtherNamespace: with sysfs of another network namespace nothing
// but sysfs is read.
func TestInKernelOtherNamespace(t *testing.T) {
	inKernel(t)
	if os.Getenv("GDR_OTHER_NAMESPACE") == "" {
		rerun(t, "TestInKernelOtherNamespace", func(c *exec.Cmd) {
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
			c.Env = append(os.Environ(), "GDR_OTHER_NAMESPACE=1")
		})
		return
	}
	for _, name := range interfaces(t) {
		if name == "lo" {
			continue // every namespace has the same lo
		}
		r := NewReader(Options{Sysfs: "/sys", Extra: true})
		reading, errs := r.Read(time.Now(), name)
		if len(errs) > 0 || reading.EthtoolStatus != StatusHidden || reading.DCBStatus != StatusHidden || !reading.MTU.Known {
			t.Errorf("%s: %+v, %v", name, reading, errs)
		}
		r.Close()
	}
}

// rerun runs one test of this binary in a changed process.
func rerun(t *testing.T, test string, change func(*exec.Cmd)) {
	t.Helper()
	c := exec.Command("/proc/self/exe", "-test.run", "^"+test+"$", "-test.v")
	change(c)
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+test) {
		t.Errorf("%v\n%s", err, out)
	}
}

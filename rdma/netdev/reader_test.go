package netdev

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/nlattr"
)

var update = flag.Bool("update", false, "rewrite what is wanted in testdata")

// shown lists a reading's statistics as text.
func shown(reading Reading) []string {
	var lines []string
	for _, s := range reading.Stats {
		line := s.Name
		if s.Gauge {
			line += " gauge"
		}
		if s.Label != "" {
			line += " " + s.Meaning.Label + " " + s.Label
		}
		lines = append(lines, fmt.Sprintf("%s = %v", line, s.Value))
	}
	slices.Sort(lines)
	return lines
}

func read(t *testing.T, r *Reader, now time.Time) Reading {
	t.Helper()
	reading, errs := r.Read(now, "eth0")
	for _, err := range errs {
		t.Error(err)
	}
	return reading
}

// TestVendors compares what is made of each driver's statistics with
// testdata/<driver>.want.
func TestVendors(t *testing.T) {
	for file, driver := range map[string]string{
		"mlx5_core": "mlx5_core", "mlx5_core-global": "mlx5_core", "bnxt_en": "bnxt_en", "ice": "ice", "ena": "ena", "mana": "mana", "veth": "", "e1000e": "e1000e",
	} {
		t.Run(file, func(t *testing.T) {
			f := newFake(t, file+".txt")
			if driver == "bnxt_en" || driver == "ice" {
				f.ieee, f.dcbErr = ieeeReply(pfcAttribute(1<<3|1<<4)), nil
			}
			got := strings.Join(shown(read(t, newTestReader(f, tree(t, driver, usual())), start)), "\n")
			if *update {
				if err := os.WriteFile("testdata/"+file+".want", []byte(got+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile("testdata/" + file + ".want")
			if err != nil {
				t.Fatalf("%v; -update writes it", err)
			}
			if got != strings.TrimSpace(string(want)) {
				t.Errorf("%s.want differs (-update writes it):\n%s", file, got)
			}
		})
	}
}

func TestSysfs(t *testing.T) {
	files := usual()
	files["qos/trust"] = "dscp"
	for priority := range Priorities {
		files[fmt.Sprintf("ecn/roce_np/enable/%d", priority)] = "1"
		files[fmt.Sprintf("ecn/roce_rp/enable/%d", priority)] = fmt.Sprint(priority % 2)
	}
	reading := read(t, newTestReader(newFake(t, "mlx5_core.txt"), tree(t, "mlx5_core", files)), start)
	for _, check := range []struct {
		what      string
		got, want any
	}{
		{"mtu", reading.MTU, sysread.Some[uint64](9000)},
		{"ups", reading.CarrierUps, sysread.Some[uint64](3)},
		{"downs", reading.CarrierDowns, sysread.Some[uint64](2)},
		{"driver", reading.Driver, "mlx5_core"},
		{"trust", reading.Trust, TrustDSCP},
		{"np", reading.ECNNotification, sysread.Some[PrioritySet](0xff)},
		{"rp", reading.ECNReaction, sysread.Some[PrioritySet](0xaa)},
		{"pfc", reading.PFC, sysread.Some[PrioritySet](1 << 3)},
		{"ethtool", reading.EthtoolStatus, StatusRead},
		{"dcb", reading.DCBStatus, StatusUnsupported},
	} {
		if check.got != check.want {
			t.Errorf("%s: %v, want %v", check.what, check.got, check.want)
		}
	}
}

// TestNothing: what is not there is unknown and no error.
func TestNothing(t *testing.T) {
	r := newTestReader(newFake(t, ""), t.TempDir())
	for _, name := range []string{"", "eth1", "a-name-that-is-too-long-for-linux"} {
		reading, errs := r.Read(start, name)
		if len(errs) > 0 || reading.MTU.Known || reading.PFC.Known || len(reading.Stats) > 0 {
			t.Errorf("%q: %+v, %v", name, reading, errs)
		}
		if want := StatusHidden; name != "" && (reading.EthtoolStatus != want || reading.DCBStatus != want) {
			t.Errorf("%q: status %v, %v", name, reading.EthtoolStatus, reading.DCBStatus)
		}
	}
	if r = NewReader(Options{}); r.kernel == nil {
		t.Error("does not ask the running kernel")
	}
	r = NewReader(Options{Sysfs: t.TempDir(), SysfsOnly: true})
	if reading, errs := r.Read(start, "eth0"); len(errs) > 0 || reading.EthtoolStatus != StatusUnknown || reading.Requests > 0 {
		t.Errorf("sysfs only: %+v, %v", reading, errs)
	}
	r.Close()
}

// TestSysfsOnly: without a kernel to ask, what sysfs has is read all the same,
// and DCB is asked as soon as the interface is visible.
func TestSysfsOnly(t *testing.T) {
	files := usual()
	files["qos/trust"] = "pcp"
	root := tree(t, "mlx5_core", files)
	r := NewReader(Options{Sysfs: root, SysfsOnly: true})
	if reading := read(t, r, start); reading.Trust != TrustPCP || reading.Requests > 0 {
		t.Errorf("%+v", reading)
	}
	f := newFake(t, "mlx5_core.txt")
	f.ieee, f.dcbErr, f.hardware = ieeeReply(pfcAttribute(8)), nil, "02:00:00:00:00:09"
	r = newTestReader(f, root)
	if reading := read(t, r, start); reading.Trust != TrustPCP || reading.DCBStatus != StatusHidden || reading.PFC.Known {
		t.Errorf("%+v", reading)
	}
	f.hardware = "b8:3f:d2:00:00:01"
	if reading := read(t, r, start.Add(time.Minute)); reading.DCBStatus != StatusRead || reading.PFC.Value != 8 || len(reading.Stats) == 0 {
		t.Errorf("%+v", reading)
	}
}

// TestUnsupported is the case of ethtool on a bond: one question, then silence.
func TestUnsupported(t *testing.T) {
	f := newFake(t, "")
	f.statsErr = syscall.EOPNOTSUPP
	r := newTestReader(f, tree(t, "", usual()))
	for minute := range 120 {
		if reading := read(t, r, start.Add(time.Duration(minute)*time.Minute)); reading.EthtoolStatus != StatusUnsupported {
			t.Fatalf("minute %d: status %v", minute, reading.EthtoolStatus)
		}
	}
	if f.asked["count"] > 5 || f.asked["dcb"] > 5 || f.asked["values"] > 0 {
		t.Errorf("asked %v times in two hours", f.asked)
	}
}

func TestErrors(t *testing.T) {
	for _, err := range []error{syscall.EIO, syscall.EPERM, syscall.ETIMEDOUT, sysread.ErrInvalid} {
		f := newFake(t, "ice.txt")
		r := newTestReader(f, tree(t, "ice", usual()))
		read(t, r, start)
		f.valuesErr, f.dcbErr = err, err
		reading, errs := r.Read(start.Add(time.Hour), "eth0")
		if len(errs) != 2 || reading.EthtoolStatus != StatusUnknown || reading.DCBStatus != StatusUnknown || len(reading.Stats) > 0 {
			t.Errorf("%v: %+v, %v", err, reading, errs)
		}
		for _, e := range errs {
			if !errors.Is(e, err) || (e.Source != "ethtool" && e.Source != "dcb") || e.Device != "" {
				t.Errorf("%v: %+v", err, e)
			}
		}
		f.valuesErr, f.dcbErr = nil, syscall.EOPNOTSUPP
		if reading = read(t, r, start.Add(3*time.Hour)); reading.EthtoolStatus != StatusRead || len(reading.Stats) == 0 {
			t.Errorf("after %v: %+v", err, reading)
		}
	}
}

// TestGone: an interface that goes away between two calls is no error.
func TestGone(t *testing.T) {
	for _, spoil := range []func(*fake){
		func(f *fake) { f.valuesErr = syscall.ENODEV },
		func(f *fake) { f.statsErr = syscall.ENODEV },
		func(f *fake) { f.dcbErr = syscall.ENODEV },
		func(f *fake) { f.indexErr = syscall.ENXIO },
		func(f *fake) { f.name = "renamed" },
	} {
		f := newFake(t, "ice.txt")
		r := newTestReader(f, tree(t, "ice", usual()))
		read(t, r, start)
		spoil(f)
		read(t, r, start.Add(time.Hour))
	}
}

// TestOtherNamespace: the process's own eth0 is not the one in sysfs.
func TestOtherNamespace(t *testing.T) {
	for _, spoil := range []func(*fake){
		func(f *fake) { f.number = 5 },
		func(f *fake) { f.hardware = "02:00:00:00:00:09" },
	} {
		f := newFake(t, "mlx5_core.txt")
		spoil(f)
		reading := read(t, newTestReader(f, tree(t, "mlx5_core", usual())), start)
		if reading.EthtoolStatus != StatusHidden || reading.DCBStatus != StatusHidden || len(reading.Stats) > 0 || reading.PFC.Known {
			t.Errorf("%+v", reading)
		}
		if !reading.MTU.Known || f.asked["values"] > 0 || f.asked["dcb"] > 0 {
			t.Errorf("%+v, asked %v", reading, f.asked)
		}
	}
}

// TestNamesAreKept: names are fetched once, and again when their number or the
// interface changes.
func TestNamesAreKept(t *testing.T) {
	f := newFake(t, "mlx5_core.txt")
	files := usual()
	root := tree(t, "mlx5_core", files)
	r := newTestReader(f, root)
	for i := range 5 {
		read(t, r, start.Add(time.Duration(i)*time.Minute))
	}
	if f.asked["names"] != 1 || f.asked["values"] != 5 || f.asked["dcb"] != 1 {
		t.Errorf("asked %v", f.asked)
	}
	// PFC is enabled for one more priority: mlx5 then has more names.
	f.names = append(slices.Clone(f.names), "rx_prio5_pause")
	f.values = append(slices.Clone(f.values), 9)
	reading := read(t, r, start.Add(6*time.Minute))
	if f.asked["names"] != 2 || reading.PFC.Value != 1<<3|1<<5 {
		t.Errorf("asked %v, PFC %v", f.asked, reading.PFC)
	}
	f.number = 7
	if err := os.WriteFile(root+"/class/net/eth0/ifindex", []byte("7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	read(t, r, start.Add(7*time.Minute))
	if f.asked["names"] != 3 || f.asked["dcb"] != 2 {
		t.Errorf("asked %v", f.asked)
	}
}

// TestMovedPriority: PFC moves to another priority, so that there are as many
// names as before. mlx5 takes the link down for it.
func TestMovedPriority(t *testing.T) {
	f := newFake(t, "mlx5_core.txt")
	root := tree(t, "mlx5_core", usual())
	r := newTestReader(f, root)
	read(t, r, start)
	f.names = slices.Clone(f.names)
	for i, name := range f.names {
		if strings.Contains(name, "_prio3_pause") {
			f.names[i] = strings.Replace(name, "prio3", "prio4", 1)
		}
	}
	if err := os.WriteFile(root+"/class/net/eth0/carrier_up_count", []byte("4\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	reading := read(t, r, start.Add(time.Minute))
	if reading.PFC != sysread.Some[PrioritySet](1<<4) || !slices.Contains(shown(reading), "pfc_receive_pause_frames priority 4 = 771") {
		t.Errorf("PFC %v: %v", reading.PFC, shown(reading))
	}
}

// TestEverSeen: without word on PFC a priority's counters are shown from the
// first time that they are not 0, and then for good.
func TestEverSeen(t *testing.T) {
	f := newFake(t, "ice.txt")
	r := newTestReader(f, tree(t, "ice", usual()))
	has := func(reading Reading, line string) bool {
		return slices.ContainsFunc(shown(reading), func(s string) bool { return strings.HasPrefix(s, line) })
	}
	reading := read(t, r, start)
	if !has(reading, "pfc_transmit_pause_frames priority 4 = 17") || has(reading, "pfc_receive_pause_frames") {
		t.Error(shown(reading))
	}
	f.set(t, "rx_priority_2_xoff.nic", 1)
	f.set(t, "tx_priority_4_xoff.nic", 0)
	read(t, r, start.Add(time.Minute))
	f.set(t, "rx_priority_2_xoff.nic", 0)
	reading = read(t, r, start.Add(2*time.Minute))
	if !has(reading, "pfc_receive_pause_frames priority 2 = 0") || !has(reading, "pfc_transmit_pause_frames priority 4 = 0") {
		t.Error(shown(reading))
	}
	// Now the driver says which have it: the others are not shown.
	f.ieee, f.dcbErr = ieeeReply(pfcAttribute(1<<1)), nil
	reading = read(t, r, start.Add(time.Hour))
	if has(reading, "pfc_receive_pause_frames priority 2") || !has(reading, "pfc_receive_pause_frames priority 1 = 0") {
		t.Error(shown(reading))
	}
}

func TestImpossibleValues(t *testing.T) {
	f := newFake(t, "mlx5_core.txt")
	f.set(t, "outbound_pci_stalled_rd", 101)
	f.set(t, "rx_bytes_phy", math.MaxUint64)
	reading, errs := newTestReader(f, tree(t, "mlx5_core", usual())).Read(start, "eth0")
	if len(errs) != 2 || sysread.ErrnoName(errs[0].Err) != "invalid" {
		t.Error(errs)
	}
	for _, s := range reading.Stats {
		if s.Name == "phy_receive_bytes" || (s.Name == "pcie_outbound_stalled_read" && s.Gauge) {
			t.Errorf("%s = %v", s.Name, s.Value)
		}
	}
}

func TestDCB(t *testing.T) {
	trustTable := func(selectors ...byte) []byte {
		var table []byte
		for _, s := range selectors {
			table = nlattr.Append(table, 1, []byte{s})
		}
		return nlattr.Append(nil, ieeeAttrTrustTable, table)
	}
	join := func(parts ...[]byte) []byte { return ieeeReply(slices.Concat(parts...)) }
	for _, c := range []struct {
		name, driver string
		reply        []byte
		pfc          sysread.Maybe[PrioritySet]
		trust        Trust
	}{
		{"mlx5 with DSCP entries", "mlx5_core", join(pfcAttribute(8), appAttribute(selectorDSCP)), sysread.Some[PrioritySet](8), TrustDSCP},
		{"mlx5 without", "mlx5_core", join(pfcAttribute(0), appAttribute(1)), sysread.Some[PrioritySet](0), TrustPCP},
		{"mlx5 without table", "mlx5_core", join(pfcAttribute(0)), sysread.Some[PrioritySet](0), TrustUnknown},
		{"bnxt_en with DSCP entries", "bnxt_en", join(pfcAttribute(8), appAttribute(selectorDSCP)), sysread.Some[PrioritySet](8), TrustUnknown},
		{"trust table", "sparx5", join(pfcAttribute(255), trustTable(selectorDSCP, selectorPCP)), sysread.Some[PrioritySet](255), TrustDSCP},
		{"trust table, tag first", "sparx5", join(trustTable(selectorPCP, selectorDSCP)), sysread.Maybe[PrioritySet]{}, TrustPCP},
		{"nothing known", "new", join(nlattr.Append(nil, 99, []byte("future"))), sysread.Maybe[PrioritySet]{}, TrustUnknown},
		{"empty", "new", nil, sysread.Maybe[PrioritySet]{}, TrustUnknown},
	} {
		f := newFake(t, "ena.txt")
		f.ieee, f.dcbErr = c.reply, nil
		reading := read(t, newTestReader(f, tree(t, c.driver, usual())), start)
		if reading.PFC != c.pfc || reading.Trust != c.trust || reading.DCBStatus != StatusRead {
			t.Errorf("%s: PFC %v, trust %q", c.name, reading.PFC, reading.Trust)
		}
	}
}

// TestConfigIsRare: DCB is asked every ten minutes, and when the carrier changes.
func TestConfigIsRare(t *testing.T) {
	f := newFake(t, "ena.txt")
	f.ieee, f.dcbErr = ieeeReply(pfcAttribute(8)), nil
	root := tree(t, "ena", usual())
	r := newTestReader(f, root)
	for minute := range 21 {
		if reading := read(t, r, start.Add(time.Duration(minute)*time.Minute)); reading.PFC.Value != 8 {
			t.Fatal(reading.PFC)
		}
	}
	if f.asked["dcb"] != 3 {
		t.Errorf("asked %v", f.asked)
	}
	if err := os.WriteFile(root+"/class/net/eth0/carrier_up_count", []byte("4\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	read(t, r, start.Add(22*time.Minute))
	if f.asked["dcb"] != 4 {
		t.Errorf("asked %v", f.asked)
	}
	r.Close()
	if !f.closed {
		t.Error("not closed")
	}
}

func TestMeanings(t *testing.T) {
	names := map[string]bool{}
	series := map[string]bool{}
	for _, m := range Meanings() {
		id := fmt.Sprint(m.Name, m.Gauge)
		if series[id] {
			t.Errorf("two rows for %s", id)
		}
		series[id] = true
		if m.Help == "" || len(m.Names) == 0 {
			t.Errorf("%s is incomplete", m.Name)
		}
		for _, name := range m.Names {
			if names[name] {
				t.Errorf("%s means two things", name)
			}
			names[name] = true
			if strings.Contains(name, "%") != (m.Label != "") || len(name) > 32+len("bnxt_en:") {
				t.Errorf("%s of %s", name, m.Name)
			}
			driver, vendor, found := strings.Cut(name, ":")
			if !found {
				driver, vendor = "", name
			}
			got, label := lookup(driver, strings.ReplaceAll(vendor, "%", "3"))
			if got != m || (label == "3") != (m.Label != "") {
				t.Errorf("%s is found as %v, %q", name, got, label)
			}
		}
	}
	for _, name := range []string{"", "%", "rx_prio8_pause", "rx_prio33_pause", "rx_prio_pause", "rx_prio%_pause", "rx_bytes", "rx_err_lane_100_phy", "rx_prio3_pause3"} {
		if m, _ := lookup("mlx5_core", name); m != nil {
			t.Errorf("%q is found as %s", name, m.Name)
		}
	}
}

func FuzzDCB(f *testing.F) {
	f.Add(ieeeReply(slices.Concat(pfcAttribute(8), appAttribute(selectorDSCP))), "mlx5_core")
	f.Add([]byte{0, dcbCmdIEEEGet, 0, 0}, "")
	f.Fuzz(func(t *testing.T, body []byte, driver string) {
		d := decodeDCB(body)
		if trimmed := decodeDCB(TrimDCB(body)); trimmed != d {
			t.Errorf("%+v of %x, trimmed %+v", d, body, trimmed)
		}
		d.trusts(driver)
	})
}

func FuzzStats(f *testing.F) {
	f.Add("mlx5_core", "rx_prio3_pause\nrx_prio3_pause\nrx_err_lane_0_phy", uint64(1))
	f.Add("bnxt_en", "rx_pfc_ena_frames_pri7\nrx_bytes", uint64(math.MaxUint64))
	root := tree(f, "", usual())
	f.Fuzz(func(t *testing.T, driver, names string, value uint64) {
		k := newFake(t, "")
		k.names = strings.Split(names, "\n")
		k.values = slices.Repeat([]uint64{value}, len(k.names))
		r := newTestReader(k, root)
		reading, _ := r.Read(start, "eth0")
		series := map[string]bool{}
		for _, s := range reading.Stats {
			id := fmt.Sprint(s.Name, s.Gauge, s.Label)
			if series[id] {
				t.Errorf("%s twice", id)
			}
			series[id] = true
		}
		match(driver, k.names, nil)
	})
}

// TestStatArea: the kernel cannot write past the end of the memory it is given.
func TestStatArea(t *testing.T) {
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	var a statArea
	defer a.free()
	for _, size := range []int{8, 12, 4096, 4100, 1 << 17, 20} {
		area, err := a.get(size)
		if err != nil || len(area) != size {
			t.Fatal(len(area), err)
		}
		area[0], area[size-1] = 1, 1
		beyond := unsafe.Slice(&area[0], size+os.Getpagesize())
		n, err := syscall.Read(int(zero.Fd()), beyond)
		if err == nil && n > size+7 {
			t.Errorf("%d bytes written to %d", n, size)
		}
	}
}

// TestExtra: what few need is shown on demand only.
func TestExtra(t *testing.T) {
	sysfs := tree(t, "mlx5_core", usual())
	count := func(extra bool) (all, marked int) {
		r := NewReader(Options{Sysfs: sysfs, Kernel: newFake(t, "mlx5_core.txt"), Extra: extra})
		reading, _ := r.Read(start, "eth0")
		for _, s := range reading.Stats {
			if all++; s.Extra {
				marked++
			}
		}
		return all, marked
	}
	all, marked := count(true)
	if marked < 10 {
		t.Errorf("with: %d statistics, %d of them extra", all, marked)
	}
	if few, none := count(false); few != all-marked || none != 0 {
		t.Errorf("without: %d statistics, %d of them extra, of %d and %d", few, none, all, marked)
	}
}

// TestTrimDCB: what is left of an answer says the same, and neither names the
// interface nor holds what is not looked at.
func TestTrimDCB(t *testing.T) {
	reply := nlattr.Append([]byte{0, dcbCmdIEEEGet, 0, 0}, dcbAttrIfname, []byte("enp24s0\x00"))
	ieee := nlattr.Append(nil, 1, []byte("bandwidths"))
	ieee = append(append(ieee, pfcAttribute(1<<3)...), appAttribute(selectorDSCP)...)
	reply = nlattr.Append(reply, dcbAttrIEEE, ieee)
	trimmed := TrimDCB(reply)
	if decodeDCB(trimmed) != decodeDCB(reply) || !decodeDCB(trimmed).pfc.Known {
		t.Errorf("%+v, want %+v", decodeDCB(trimmed), decodeDCB(reply))
	}
	for _, text := range []string{"enp24s0", "bandwidths"} {
		if bytes.Contains(trimmed, []byte(text)) {
			t.Errorf("%s is left", text)
		}
	}
	if short := TrimDCB([]byte{1}); len(short) != 1 {
		t.Errorf("%x", short)
	}
}

package gpu_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/gputest"
	nvmltape "gdr_exporter/gpu/tape"
)

// start is the clock's first time.
var start = time.Unix(1_800_000_000, 0)

// all are options with everything on.
func all(m *gputest.Machine) gpu.Options {
	return gpu.Options{Open: m.Open, SlowInterval: time.Minute, NVLink: true, Fabric: true}
}

// read reads and expects no error.
func read(t *testing.T, r *gpu.Reader, now time.Time) gpu.Reading {
	t.Helper()
	reading, errs := r.Read(now)
	for _, err := range errs {
		t.Error(err)
	}
	return reading
}

// TestScenarios reads each machine twice: nothing that is normal is an error,
// and what is shown is the same both times.
func TestScenarios(t *testing.T) {
	for name, build := range gputest.Scenarios() {
		t.Run(name, func(t *testing.T) {
			m := build()
			r := gpu.NewReader(all(m))
			defer r.Close()
			first := read(t, r, start)
			second := read(t, r, start.Add(time.Second)) // before any slow group is due
			first.Time, second.Time = 0, 0
			if !reflect.DeepEqual(first, second) {
				t.Errorf("the second reading differs:\n%+v\n%+v", first, second)
			}
			if first.State != gpu.StateUp || first.Err != nil || first.DriverVersion != m.Driver || first.Version != m.NVML {
				t.Errorf("state %s, %v, driver %s, NVML %s", first.State, first.Err, first.DriverVersion, first.Version)
			}
			if len(first.GPUs) != len(m.GPUs) || len(first.Pairs) != len(m.GPUs)*(len(m.GPUs)-1)/2 {
				t.Fatalf("%d GPUs, %d pairs", len(first.GPUs), len(first.Pairs))
			}
			for i, g := range first.GPUs {
				if g.Lost || g.UUID != m.GPUs[i].UUID || g.BusID != m.GPUs[i].BusID || g.Index != i || !g.SlowRead.Equal(start) {
					t.Errorf("GPU %d: %+v", i, g)
				}
				if g.FB.Free != sysread.Some(m.GPUs[i].Memory.Free) || len(g.NVLink.Links) != len(m.GPUs[i].Links) {
					t.Errorf("GPU %d: %+v", i, g)
				}
			}
			if name != "vgpu" && len(first.GPUs[0].Xids) < 3 {
				t.Errorf("Xids %v", first.GPUs[0].Xids)
			}
		})
	}
}

// TestH200 checks every value against what the machine has.
func TestH200(t *testing.T) {
	m := gputest.HGXH200()
	m.GPUs[4].Processes, m.GPUs[4].Replays = 3, 7
	r := gpu.NewReader(all(m))
	defer r.Close()
	g := read(t, r, start).GPUs[4]
	want := gpu.Identity{
		UUID: "GPU-00000000-0000-4000-8000-000000000005", Name: "NVIDIA H200", VBIOS: "96.00.A5.00.01", Architecture: "hopper",
		ComputeCapability: "9.0", Virtualization: "none", CPUAffinity: "56-111", NUMANode: sysread.Some(1),
	}
	if g.Address != "0000:9a:00.0" || g.Identity != want {
		t.Errorf("%s %+v", g.Address, g.Identity)
	}
	five, wide := sysread.Some(5), sysread.Some(16)
	if (g.PCIe != gpu.PCIe{Generation: five, Width: wide, MaxGeneration: five, HostMaxGeneration: five, MaxWidth: wide, Replays: sysread.Some(7)}) {
		t.Errorf("PCIe %+v", g.PCIe)
	}
	if (g.Modes != gpu.Modes{Compute: sysread.Some(0), MIG: sysread.Some(false), Persistence: sysread.Some(true)}) {
		t.Errorf("modes %+v", g.Modes)
	}
	if g.BAR1.Total != sysread.Some(uint64(256<<30)) || g.BAR1.Used != sysread.Some(uint64(1703936)) || g.Procs != sysread.Some(3) || g.RecoveryAction != sysread.Some(uint64(0)) {
		t.Errorf("BAR1 %+v, processes %+v, recovery action %+v", g.BAR1, g.Procs, g.RecoveryAction)
	}
	if g.NVLink.Count != sysread.Some(18) || g.NVLink.Active != sysread.Some(18) {
		t.Errorf("%+v of %+v links active", g.NVLink.Active, g.NVLink.Count)
	}
	link := g.NVLink.Links[17]
	if link.State != sysread.Some(1) || link.Version != sysread.Some(uint64(6)) || link.Speed != sysread.Some(uint64(26_562_000_000)) ||
		link.RemoteType != sysread.Some("switch") || link.RemoteAddress.Known {
		t.Errorf("%+v", link)
	}
	sums := counters(g.NVLink.Counters)
	for name, want := range map[string]uint64{
		"transmit": (18*1000 + 17*18/2) * 1024, "receive": 18 * 2000 * 1024, "replay_errors": 0, "recovery_errors": 0, "crc_errors": 0,
	} {
		if got, known := sums[name]; !known || got != want {
			t.Errorf("%s: %d %v, want %d", name, got, known, want)
		}
		delete(sums, name)
	}
	if len(sums) > 0 || g.NVLink.EffectiveBER.Known {
		t.Errorf("NVLink 5 counters on NVLink 4: %v", sums)
	}
	if g.Fabric.State != sysread.Some(3) || g.Fabric.Status != sysread.Some(0) || g.Fabric.ClusterUUID != "00000000-0000-0000-0000-000000000000" ||
		g.Fabric.Health != (gpu.FabricHealth{}) {
		t.Errorf("fabric %+v", g.Fabric)
	}
}

// counters returns the known counters by name.
func counters(values []sysread.Maybe[uint64]) map[string]uint64 {
	named := map[string]uint64{}
	for i, c := range gpu.LinkCounters() {
		if i < len(values) && values[i].Known {
			named[c.Name] = values[i].Value
		}
	}
	return named
}

// calls counts calls by the C function.
func calls(made []string) map[string]int {
	count := map[string]int{}
	for _, call := range made {
		name, _, _ := strings.Cut(call, " ")
		count[name]++
	}
	return count
}

// TestSteadyCost proves that between slow groups a read makes only cheap calls,
// that slow groups are spread, and that handles are kept.
func TestSteadyCost(t *testing.T) {
	m := gputest.HGXH100()
	r := gpu.NewReader(all(m))
	defer r.Close()
	read(t, r, start)
	first := calls(m.Calls())
	if first["nvmlDeviceGetHandleByIndex_v2"] != 8 || first["nvmlDeviceGetMemoryAffinity"] != 8 || first["nvmlDeviceGetP2PStatus"] != 28*3 || first["nvmlDeviceGetTopologyCommonAncestor"] != 28 {
		t.Errorf("first read: %v", first)
	}
	read(t, r, start.Add(time.Second))
	if got, want := calls(m.Calls()), map[string]int{
		"nvmlEventSetWait_v2": 1, "nvmlDeviceGetMemoryInfo": 8, "nvmlDeviceGetComputeRunningProcesses": 8,
		"nvmlDeviceGetFieldValues": 8, "nvmlDeviceGetGpuFabricInfoV": 8,
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("steady read: %v\nwant %v", got, want)
	}
	slow := map[string]int{}
	const scrapes = 8
	for i := 1; i <= scrapes; i++ {
		read(t, r, start.Add(time.Duration(i)*time.Minute/scrapes))
		now := calls(m.Calls())
		if got := now["nvmlDeviceGetBAR1MemoryInfo"]; got != 1 {
			t.Errorf("scrape %d read the slow groups of %d GPUs", i, got)
		}
		for name, count := range now {
			slow[name] += count
		}
	}
	for name, most := range map[string]int{
		"nvmlDeviceGetUUID": 0, "nvmlDeviceGetHandleByIndex_v2": 0, "nvmlDeviceGetMemoryAffinity": 0, "nvmlDeviceGetTopologyCommonAncestor": 0,
		"nvmlDeviceGetNvLinkErrorCounter": 0, "nvmlDeviceGetCurrPcieLinkGeneration": 8, "nvmlDeviceGetP2PStatus": 0,
	} {
		if slow[name] != most {
			t.Errorf("%s: %d calls in a minute, want %d", name, slow[name], most)
		}
	}
}

// TestInclude proves that a GPU which is left out is asked for nothing but its
// address.
func TestInclude(t *testing.T) {
	m := gputest.HGXH100()
	options := all(m)
	options.Include = func(address string) bool { return address != "0000:2a:00.0" }
	r := gpu.NewReader(options)
	defer r.Close()
	reading := read(t, r, start)
	if len(reading.GPUs) != 7 || len(reading.Pairs) != 21 {
		t.Errorf("%d GPUs, %d pairs", len(reading.GPUs), len(reading.Pairs))
	}
	for _, call := range m.Calls() {
		if strings.HasSuffix(call, "2A:00.0") && !strings.HasPrefix(call, "nvmlDeviceGetPciInfo ") {
			t.Errorf("%s of an excluded GPU", call)
		}
	}
	m.Xid(1, 79)
	for _, g := range read(t, r, start.Add(time.Second)).GPUs {
		for _, xid := range g.Xids {
			if xid.Count > 0 {
				t.Errorf("%s counts an excluded GPU's Xid", g.Address)
			}
		}
	}
}

// TestHidden: a container may use some GPUs only. That is no error.
func TestHidden(t *testing.T) {
	m := gputest.HGXH100()
	m.GPUs[3].Hidden = true
	r := gpu.NewReader(all(m))
	defer r.Close()
	reading := read(t, r, start)
	if len(reading.GPUs) != 7 || reading.LostUnnamed != 0 || reading.Hidden != 1 || reading.GPUs[3].Index != 4 {
		t.Errorf("%d GPUs, %d lost, index %d", len(reading.GPUs), reading.LostUnnamed, reading.GPUs[3].Index)
	}
}

// TestLost: case 89, a GPU lost in the middle of a scrape costs that GPU only, is
// asked again ever more rarely, and comes back without a restart.
func TestLost(t *testing.T) {
	m := gputest.HGXH100()
	r := gpu.NewReader(all(m))
	defer r.Close()
	read(t, r, start)
	m.Change(func() {
		var once sync.Once
		m.Gate = func(call, busID string) { // right after its first call
			if call == "nvmlDeviceGetComputeRunningProcesses" && busID == m.GPUs[2].BusID {
				once.Do(func() { m.Change(func() { m.GPUs[2].Lost = true }) })
			}
		}
	})
	reading, errs := r.Read(start.Add(15 * time.Second))
	if len(errs) != 1 || !errors.Is(errs[0], nvml.ERROR_GPU_IS_LOST) || errs[0].Device != "0000:3a:00.0" || errs[0].Source != "nvmlDeviceGetComputeRunningProcesses" {
		t.Errorf("errors %v", errs)
	}
	for i, g := range reading.GPUs {
		if g.Lost != (i == 2) || g.FB.Free.Known != (i != 2) || g.UUID == "" {
			t.Errorf("GPU %d: lost %v, memory %v", i, g.Lost, g.FB)
		}
	}
	if g := reading.GPUs[2]; g.PCIe != (gpu.PCIe{}) || len(g.NVLink.Links) > 0 || g.Modes != (gpu.Modes{}) || len(g.Xids) < 3 {
		t.Errorf("a lost GPU still shows %+v", g)
	}
	if len(reading.Pairs) != 21 {
		t.Errorf("%d pairs", len(reading.Pairs))
	}
	m.Calls()
	asked := 0
	for i := range 40 {
		reading, _ = r.Read(start.Add(15*time.Second + time.Duration(i+1)*5*time.Second))
		if !reading.GPUs[2].Lost || reading.GPUs[1].Lost || !reading.GPUs[1].FB.Free.Known {
			t.Fatalf("read %d: %+v", i, reading.GPUs[2])
		}
		if slices.Contains(m.Calls(), "nvmlDeviceGetMemoryInfo "+m.GPUs[2].BusID) {
			asked++
		}
	}
	if asked < 3 || asked > 6 {
		t.Errorf("the lost GPU was asked %d times in 200 s", asked)
	}
	m.Change(func() { m.GPUs[2].Lost = false })
	reading = read(t, r, start.Add(20*time.Minute))
	if reading.GPUs[2].Lost || !reading.GPUs[2].FB.Free.Known || len(reading.Pairs) != 28 {
		t.Errorf("it did not come back: %+v", reading.GPUs[2])
	}
}

// TestLostAtStart: a GPU that was lost before NVML told its address is counted.
func TestLostAtStart(t *testing.T) {
	m := gputest.HGXH100()
	m.GPUs[0].Lost = true
	r := gpu.NewReader(all(m))
	defer r.Close()
	reading, errs := r.Read(start)
	if len(reading.GPUs) != 7 || reading.LostUnnamed != 1 || len(errs) != 1 {
		t.Errorf("%d GPUs, %d lost, %v", len(reading.GPUs), reading.LostUnnamed, errs)
	}
	m.Change(func() { m.GPUs[0].Lost = false })
	reading = read(t, r, start.Add(11*time.Minute))
	if len(reading.GPUs) != 8 || reading.LostUnnamed != 0 {
		t.Errorf("%d GPUs, %d lost", len(reading.GPUs), reading.LostUnnamed)
	}
}

// TestPeerLost: a call about two GPUs does not make the one lost because the
// other is.
func TestPeerLost(t *testing.T) {
	for _, at := range []string{"nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus"} {
		m := gputest.H100NVL()
		m.Gate = func(call, _ string) {
			if call == at {
				m.Change(func() { m.GPUs[1].Lost = true })
			}
		}
		r := gpu.NewReader(all(m))
		reading := read(t, r, start)
		if reading.GPUs[0].Lost || len(reading.Pairs) != 1 || reading.Pairs[0].P2P[0].Known {
			t.Errorf("%s: %+v", at, reading.Pairs)
		}
		reading, errs := r.Read(start.Add(time.Second))
		if reading.GPUs[0].Lost || !reading.GPUs[1].Lost || len(errs) != 1 {
			t.Errorf("%s: %+v %v", at, reading.GPUs, errs)
		}
		r.Close()
	}
}

// TestNewHandle: after errors the GPUs are listed anew, and what a new handle
// means is read anew.
func TestNewHandle(t *testing.T) {
	m := gputest.H100NVL()
	r := gpu.NewReader(all(m))
	defer r.Close()
	read(t, r, start)
	m.Change(func() {
		m.Renew, m.GPUs[1].UUID = true, "GPU-new"
		m.GPUs[1].Returns = map[string]nvml.Return{"nvmlDeviceGetMemoryInfo": nvml.ERROR_UNKNOWN}
	})
	if reading, errs := r.Read(start.Add(15 * time.Second)); len(errs) != 1 || reading.GPUs[1].UUID == "GPU-new" {
		t.Errorf("%+v %v", reading.GPUs[1].Identity, errs)
	}
	m.Change(func() { m.GPUs[1].Returns = nil })
	reading := read(t, r, start.Add(2*time.Minute))
	if reading.GPUs[1].UUID != "GPU-new" || len(reading.GPUs) != 2 || len(reading.Pairs) != 1 || len(reading.GPUs[1].Xids) != 3 {
		t.Errorf("%+v", reading.GPUs[1].Identity)
	}
}

// TestFieldFails: a field that fails on every link is one error, and costs
// itself only.
func TestFieldFails(t *testing.T) {
	m := gputest.H100NVL()
	m.GPUs[0].FieldReturns = map[uint32]nvml.Return{nvml.FI_DEV_NVLINK_GET_SPEED: nvml.ERROR_UNKNOWN, nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS: nvml.ERROR_INVALID_ARGUMENT}
	r := gpu.NewReader(all(m))
	defer r.Close()
	reading, errs := r.Read(start)
	if len(errs) != 1 || errs[0].Source != "nvmlDeviceGetFieldValues/164" || errs[0].Errno() != "NVML_ERROR_UNKNOWN" {
		t.Errorf("%v", errs)
	}
	if n := reading.GPUs[0].NVLink; n.Links[0].Speed.Known || !n.Links[0].Version.Known || len(counters(n.Counters)) != 5 || n.Active != sysread.Some(12) {
		t.Errorf("%+v", n)
	}
}

func TestResetRequired(t *testing.T) {
	m := gputest.HGXH100()
	m.GPUs[1].Returns = map[string]nvml.Return{"nvmlDeviceGetMemoryInfo": nvml.ERROR_RESET_REQUIRED}
	r := gpu.NewReader(all(m))
	defer r.Close()
	reading, errs := r.Read(start)
	if g := reading.GPUs[1]; g.Lost || !g.ResetRequired || g.FB.Free.Known || !g.Procs.Known || len(errs) != 1 {
		t.Errorf("%+v %v", g, errs)
	}
	if reading.GPUs[0].ResetRequired {
		t.Error("another GPU requires a reset")
	}
}

// TestCalling: a call that hangs can be named by others.
func TestCalling(t *testing.T) {
	m := gputest.HGXH100()
	entered, release := make(chan struct{}), make(chan struct{})
	m.Gate = func(call, busID string) {
		if call == "nvmlDeviceGetBAR1MemoryInfo" && busID == m.GPUs[3].BusID {
			close(entered)
			<-release
		}
	}
	r := gpu.NewReader(all(m))
	if _, calling := r.Calling(); calling {
		t.Error("calling before the first read")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Read(start)
	}()
	<-entered
	call, calling := r.Calling()
	if !calling || call.Name != "nvmlDeviceGetBAR1MemoryInfo" || call.GPUAddress != "0000:5d:00.0" || time.Since(call.Since) > time.Minute {
		t.Errorf("calling %+v %v", call, calling)
	}
	close(release)
	<-done
	if _, calling := r.Calling(); calling {
		t.Error("still calling")
	}
	r.Close()
}

// TestStates: NVML that does not start says why, is tried ever more rarely, and
// starts once it can.
func TestStates(t *testing.T) {
	for ret, want := range map[nvml.Return]gpu.State{
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: gpu.StateVersionMismatch, nvml.ERROR_DRIVER_NOT_LOADED: gpu.StateNoDriver,
		nvml.ERROR_NO_PERMISSION: gpu.StateNoPermission, nvml.ERROR_LIBRARY_NOT_FOUND: gpu.StateNoLibrary, nvml.ERROR_UNKNOWN: gpu.StateFailed,
	} {
		t.Run(string(want), func(t *testing.T) {
			m := gputest.H100NVL()
			m.Init = ret
			r := gpu.NewReader(all(m))
			defer r.Close()
			reading, errs := r.Read(start)
			if reading.State != want || !errors.Is(reading.Err, ret) || len(reading.GPUs) > 0 || len(errs) != 1 || reading.Stale {
				t.Errorf("%+v %v", reading, errs)
			}
			m.Calls()
			for second := range 600 {
				reading, _ = r.Read(start.Add(time.Duration(second) * time.Second))
				if reading.State != want {
					t.Fatalf("after %d s: %s", second, reading.State)
				}
			}
			tries := calls(m.Calls())["nvmlInit_v2"]
			if most := 60; tries < 4 || tries > most || want != gpu.StateNoLibrary && tries > 9 {
				t.Errorf("%d attempts in 10 minutes", tries)
			}
			m.Change(func() { m.Init = nvml.SUCCESS })
			if reading = read(t, r, start.Add(13*time.Minute)); reading.State != gpu.StateUp || len(reading.GPUs) != 2 || reading.Err != nil {
				t.Errorf("it did not recover: %+v", reading)
			}
		})
	}
}

// TestDriverReloaded: whatever a library says whose driver went away, it is shut
// down, and initialised once the driver is back; counters survive.
func TestDriverReloaded(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_UNKNOWN, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_UNINITIALIZED, nvml.ERROR_LIB_RM_VERSION_MISMATCH} {
		t.Run(gpu.Error{Return: ret}.Error(), func(t *testing.T) {
			m := gputest.H100NVL()
			r := gpu.NewReader(all(m))
			defer r.Close()
			read(t, r, start)
			m.Xid(1, 79)
			m.Xid(1, 31) // an application's own fault
			read(t, r, start.Add(15*time.Second))
			m.Change(func() { m.All, m.Init = ret, nvml.ERROR_DRIVER_NOT_LOADED })
			reading, errs := r.Read(start.Add(30 * time.Second))
			if reading.State == gpu.StateUp || len(reading.GPUs) > 0 || len(errs) == 0 || m.Up() {
				t.Errorf("%+v %v", reading, errs)
			}
			reading, _ = r.Read(start.Add(45 * time.Second))
			if reading.State != gpu.StateNoDriver {
				t.Errorf("%s", reading.State)
			}
			m.Change(func() { m.All, m.Init = nvml.SUCCESS, nvml.SUCCESS })
			reading = read(t, r, start.Add(3*time.Minute))
			if reading.State != gpu.StateUp || len(reading.GPUs) != 2 {
				t.Fatalf("it did not recover: %+v", reading)
			}
			if got := xids(reading.GPUs[1]); got[79] != 1 || len(got) != 3 {
				t.Errorf("Xids %v", got)
			}
		})
	}
}

// TestReinitialisedAtOnce: a driver that was reloaded between two reads costs one
// reading.
func TestReinitialisedAtOnce(t *testing.T) {
	m := gputest.H100NVL()
	r := gpu.NewReader(all(m))
	defer r.Close()
	read(t, r, start)
	m.Change(func() { m.All = nvml.ERROR_UNINITIALIZED })
	r.Read(start.Add(15 * time.Second))
	m.Change(func() { m.All = nvml.SUCCESS })
	if reading := read(t, r, start.Add(30*time.Second)); reading.State != gpu.StateUp || len(reading.GPUs) != 2 {
		t.Errorf("%+v", reading)
	}
}

func xids(g gpu.GPU) map[uint64]uint64 {
	counts := map[uint64]uint64{}
	for _, xid := range g.Xids {
		counts[xid.Code] = xid.Count
	}
	return counts
}

// TestXids: codes that alerts read exist from the start, others once seen; their
// number and that of events in one read are bounded.
func TestXids(t *testing.T) {
	m := gputest.HGXB200()
	r := gpu.NewReader(all(m))
	defer r.Close()
	reading := read(t, r, start)
	want := map[uint64]uint64{74: 0, 79: 0, 154: 0, 144: 0, 145: 0, 146: 0, 147: 0, 148: 0, 149: 0, 150: 0}
	if got := xids(reading.GPUs[0]); !reflect.DeepEqual(got, want) {
		t.Errorf("at first %v", got)
	}
	later := start.Add(time.Minute)
	m.Xid(0, 149)
	m.Xid(0, 149)
	m.Xid(0, 119)
	g := read(t, r, later).GPUs[0]
	if got := xids(g); got[149] != 2 || got[119] != 1 || got[79] != 0 {
		t.Errorf("%v", got)
	}
	for _, xid := range g.Xids {
		if (xid.Count > 0) != xid.Last.Equal(later) {
			t.Errorf("%+v", xid)
		}
	}
	for code := range uint64(400) {
		m.Xid(0, 1000+code)
	}
	read(t, r, later.Add(time.Second))
	g = read(t, r, later.Add(2*time.Second)).GPUs[0]
	if got := xids(g); len(got) > 33 || got[0] == 0 {
		t.Errorf("%d codes, %d others", len(got), got[0])
	}
	total := uint64(0)
	for _, count := range xids(g) {
		total += count
	}
	if total != 403 {
		t.Errorf("%d events counted of 403", total)
	}
}

// TestB200: case 81, the older call reads 0 for ever from NVLink 5 on and must
// not be shown; what the fields say is.
func TestB200(t *testing.T) {
	m := gputest.HGXB200()
	link := m.GPUs[0].Links[3].Fields
	link[nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS], link[nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER] = 505, 1<<8|9
	r := gpu.NewReader(all(m))
	defer r.Close()
	n := read(t, r, start).GPUs[0].NVLink
	sums := counters(n.Counters)
	if sums["recoveries"] != 505 || sums["fec_corrected_symbols"] != 18*(7+2*2) || sums["transmit"] != 18*5000 {
		t.Errorf("%v", sums)
	}
	for _, old := range []string{"replay_errors", "recovery_errors", "crc_errors", "malformed_packet_errors"} {
		if _, shown := sums[old]; shown {
			t.Errorf("%s is shown", old)
		}
	}
	if n.EffectiveBER.Value < 0.9e-9 || n.EffectiveBER.Value > 1.1e-9 || n.SymbolBER.Value > 1e-200 {
		t.Errorf("error ratios %v %v", n.EffectiveBER, n.SymbolBER)
	}
	if calls(m.Calls())["nvmlDeviceGetNvLinkErrorCounter"] > 0 {
		t.Error("the older call was made")
	}
}

// TestB200Down: case 69, all links inactive, whose fields do not answer. Nothing
// is 0 that is not known.
func TestB200Down(t *testing.T) {
	m := gputest.HGXB200()
	for i := range m.GPUs[2].Links {
		l := &m.GPUs[2].Links[i]
		l.State, l.Version, l.RemoteBusID = 0, 0, ""
		l.Fields = map[uint32]uint64{nvml.FI_DEV_NVLINK_GET_STATE: 0}
	}
	r := gpu.NewReader(all(m))
	defer r.Close()
	reading := read(t, r, start)
	n := reading.GPUs[2].NVLink
	if n.Count != sysread.Some(18) || n.Active != sysread.Some(0) || len(counters(n.Counters)) > 0 {
		t.Errorf("%v of %v active, counters %v", n.Active, n.Count, counters(n.Counters))
	}
	if sibling := reading.GPUs[1].NVLink; sibling.Active != sysread.Some(18) {
		t.Errorf("sibling %v", sibling.Active)
	}
}

// TestPerLink: with PerLink the counters that are no sums are read too.
func TestPerLink(t *testing.T) {
	m := gputest.HGXB200()
	options := all(m)
	options.PerLink = true
	r := gpu.NewReader(options)
	defer r.Close()
	if got := counters(read(t, r, start).GPUs[0].NVLink.Links[5].Counters); len(got) != len(gpu.LinkCounters())-3 {
		t.Errorf("%v", got)
	}
}

// TestSumDoesNotShrink: a link that goes down takes its counters with it; the sum
// must not look like a reset.
func TestSumDoesNotShrink(t *testing.T) {
	m := gputest.HGXH100()
	for i := range m.GPUs[0].Links {
		m.GPUs[0].Links[i].Fields[nvml.FI_DEV_NVLINK_ERROR_DL_CRC] = 10
	}
	r := gpu.NewReader(all(m))
	defer r.Close()
	if got := counters(read(t, r, start).GPUs[0].NVLink.Counters)["crc_errors"]; got != 180 {
		t.Errorf("%d errors", got)
	}
	m.GPUs[0].Links[7] = gputest.Link{Fields: map[uint32]uint64{nvml.FI_DEV_NVLINK_GET_STATE: 0}}
	m.GPUs[0].Links[8].Fields[nvml.FI_DEV_NVLINK_ERROR_DL_CRC] = 11
	var n gpu.NVLink
	for i := range 9 { // two links each time
		n = read(t, r, start.Add(2*time.Minute+time.Duration(i)*time.Second)).GPUs[0].NVLink
	}
	if got := counters(n.Counters)["crc_errors"]; got != 181 || n.Active != sysread.Some(17) {
		t.Errorf("%d errors, %v active", got, n.Active)
	}
}

// TestCountersInTurn: the first read brings all links' counters, later ones
// those of two links, of none twice within the slow interval; and a pair of
// GPUs is read again after five.
func TestCountersInTurn(t *testing.T) {
	m := gputest.HGXH100()
	r := gpu.NewReader(all(m))
	defer r.Close()
	total := func(after time.Duration) uint64 {
		return counters(read(t, r, start.Add(after)).GPUs[0].NVLink.Counters)["crc_errors"]
	}
	before := total(0)
	for i := range m.GPUs[0].Links {
		m.GPUs[0].Links[i].Fields[nvml.FI_DEV_NVLINK_ERROR_DL_CRC] += 10
	}
	for _, step := range []struct {
		after time.Duration
		links uint64 // read again by then
	}{
		{30 * time.Second, 0}, {60 * time.Second, 2}, {75 * time.Second, 4}, {90 * time.Second, 6}, {105 * time.Second, 8},
		{120 * time.Second, 10}, {135 * time.Second, 12}, {150 * time.Second, 14}, {165 * time.Second, 16}, {180 * time.Second, 18}, {181 * time.Second, 18},
	} {
		if got := total(step.after) - before; got != 10*step.links {
			t.Errorf("after %v: %d links were read again, want %d", step.after, got/10, step.links)
		}
	}
	for _, step := range []struct {
		after time.Duration
		calls int
	}{{4 * time.Minute, 0}, {5 * time.Minute, 3}, {6 * time.Minute, 3}} {
		m.Calls()
		read(t, r, start.Add(step.after))
		if got := calls(m.Calls())["nvmlDeviceGetP2PStatus"]; got != step.calls {
			t.Errorf("after %v: %d calls for pairs, want %d", step.after, got, step.calls)
		}
	}
}

// TestOldDriver: case 93, functions that a driver lacks are never called (the
// machine panics), and the older ones serve.
func TestOldDriver(t *testing.T) {
	m := gputest.OldDriver()
	m.Missing = append(m.Missing, "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetGpuMaxPcieLinkGeneration", "nvmlDeviceGetPcieReplayCounter")
	r := gpu.NewReader(all(m))
	defer r.Close()
	g := read(t, r, start).GPUs[0]
	if g.Fabric.State != sysread.Some(3) || g.Fabric.Health != (gpu.FabricHealth{}) || !g.Procs.Known || g.PCIe.Replays.Known || g.PCIe.MaxGeneration.Known || !g.PCIe.MaxWidth.Known {
		t.Errorf("%+v", g)
	}
	if sums := counters(g.NVLink.Counters); sums["replay_errors"] != 18*3 || g.NVLink.Active != sysread.Some(18) || g.NVLink.Links[0].Version != sysread.Some(uint64(6)) {
		t.Errorf("%v %v", sums, g.NVLink.Active)
	}
	m = gputest.HGXH100()
	m.Missing = []string{"nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlEventSetWait", "nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetP2PStatus"}
	r2 := gpu.NewReader(all(m))
	defer r2.Close()
	reading := read(t, r2, start)
	if g := reading.GPUs[0]; g.Fabric != (gpu.Fabric{}) || len(g.Xids) > 0 || g.RecoveryAction.Known || g.NVLink.Count != sysread.Some(18) || reading.Pairs[0].P2P[0].Known {
		t.Errorf("%+v", g)
	}
}

// TestFabric: the states and the versions of the call.
func TestFabric(t *testing.T) {
	m := gputest.GB200()
	m.GPUs[1].Fabric = nvml.GpuFabricInfo_v3{State: nvml.GPU_FABRIC_STATE_IN_PROGRESS, HealthMask: 1, HealthSummary: 2, CliqueId: 5}
	m.GPUs[2].Fabric.HealthMask = 0b0101_01_10_10_01 // too few links, timeout recovery, none, none, degraded
	m.GPUs[2].Fabric.Status = uint32(nvml.ERROR_INSUFFICIENT_RESOURCES)
	m.GPUs[3].FabricVersion = 2
	r := gpu.NewReader(all(m))
	defer r.Close()
	gpus := read(t, r, start).GPUs
	good := sysread.Some(false)
	if f := gpus[0].Fabric; f.CliqueID != sysread.Some(uint32(32766)) || f.ClusterUUID != "523a6f51-215b-4f4d-9f9e-1c1dd25e0a11" ||
		f.Health != (gpu.FabricHealth{DegradedBandwidth: good, RouteRecovery: good, RouteUnhealthy: good, AccessTimeoutRecovery: good, IncorrectConfiguration: sysread.Some(1), Summary: sysread.Some(1)}) {
		t.Errorf("%+v", f)
	}
	if f := gpus[1].Fabric; f != (gpu.Fabric{State: sysread.Some(2)}) {
		t.Errorf("in progress: %+v", f)
	}
	if f := gpus[2].Fabric; f.Status != sysread.Some(23) || f.Health.DegradedBandwidth != sysread.Some(true) || f.Health.RouteRecovery != good ||
		f.Health.AccessTimeoutRecovery != sysread.Some(true) || f.Health.IncorrectConfiguration != sysread.Some(5) {
		t.Errorf("unhealthy: %+v", f)
	}
	if f := gpus[3].Fabric; f.Health.DegradedBandwidth != good || f.Health.Summary.Known || !f.CliqueID.Known {
		t.Errorf("version 2: %+v", f)
	}
}

// TestPairs: case 78, peer-to-peer traffic that is dead while every link is up,
// and a pair whose other GPU is lost.
func TestPairs(t *testing.T) {
	m := gputest.HGXH100()
	m.P2P = func(a, b int, capability nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
		if a == 0 && b == 1 && capability == nvml.P2P_CAPS_INDEX_NVLINK {
			return nvml.P2P_STATUS_DISABLED_BY_REGKEY, nvml.SUCCESS
		}
		return nvml.P2P_STATUS_OK, nvml.SUCCESS
	}
	r := gpu.NewReader(all(m))
	defer r.Close()
	pairs := read(t, r, start).Pairs
	if p := pairs[0]; p.A != "0000:18:00.0" || p.B != "0000:2a:00.0" || p.P2P[gpu.P2PNVLink] != sysread.Some(4) || p.P2P[gpu.P2PRead] != sysread.Some(0) || p.Ancestor != sysread.Some(40) {
		t.Errorf("%+v", p)
	}
	if p := pairs[3]; p.B != "0000:9a:00.0" || p.Ancestor != sysread.Some(50) {
		t.Errorf("%+v", p)
	}
}

// TestNoDriver: without the kernel module NVML is left alone, since initialising
// it would load the module.
func TestNoDriver(t *testing.T) {
	m := gputest.H100NVL()
	options := all(m)
	options.Procfs = t.TempDir()
	r := gpu.NewReader(options)
	defer r.Close()
	if reading := read(t, r, start); reading.State != gpu.StateNoDriver || len(m.Calls()) > 0 {
		t.Errorf("%+v", reading)
	}
	if err := os.MkdirAll(filepath.Join(options.Procfs, "driver/nvidia"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(options.Procfs, "driver/nvidia/version"), []byte("NVRM"), 0o644); err != nil {
		t.Fatal(err)
	}
	if reading := read(t, r, start.Add(time.Second)); reading.State != gpu.StateUp {
		t.Errorf("%+v", reading)
	}
	// Unloaded again, which the calls tell, and not loaded by the next attempt.
	if err := os.RemoveAll(filepath.Join(options.Procfs, "driver")); err != nil {
		t.Fatal(err)
	}
	m.Change(func() { m.All = nvml.ERROR_DRIVER_NOT_LOADED })
	r.Read(start.Add(15 * time.Second))
	m.Calls()
	if reading := read(t, r, start.Add(5*time.Minute)); reading.State != gpu.StateNoDriver || len(m.Calls()) > 0 || reading.DriverVersion != "" {
		t.Errorf("%+v", reading)
	}
}

// TestLibraryAppears: case 95, no library is no error, and one that appears is
// used.
func TestLibraryAppears(t *testing.T) {
	m := gputest.H100NVL()
	options := all(m)
	options.Roots = []string{t.TempDir()}
	opened := ""
	options.Open = func(path string) (gpu.Library, error) {
		opened = path
		return m.Library(), nil
	}
	r := gpu.NewReader(options)
	defer r.Close()
	reading := read(t, r, start)
	if reading.State != gpu.StateNoLibrary || reading.Err == nil {
		t.Errorf("%+v", reading)
	}
	path := install(t, options.Roots[0], "580.1")
	if reading = read(t, r, start.Add(10*time.Second)); reading.State != gpu.StateUp || reading.Library != path || opened != path {
		t.Errorf("%+v opened %s", reading, opened)
	}
}

// install puts a library of a version below a root.
func install(t *testing.T, root, version string) string {
	t.Helper()
	dir := filepath.Join(root, "usr/lib64")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path, link := filepath.Join(dir, "libnvidia-ml.so."+version), filepath.Join(dir, "libnvidia-ml.so.1")
	if err := os.WriteFile(path, []byte(version), 0o644); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(link)
	if err := os.Symlink(filepath.Base(path), link); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestUnloadable: a library that cannot be loaded is passed over, and counted.
func TestUnloadable(t *testing.T) {
	m := gputest.H100NVL()
	options := all(m)
	options.Roots = []string{t.TempDir(), t.TempDir()}
	bad := install(t, options.Roots[0], "32bit")
	good := install(t, options.Roots[1], "580.1")
	options.Open = func(path string) (gpu.Library, error) {
		if path == bad {
			return nil, errors.New("wrong ELF class: ELFCLASS32")
		}
		return m.Library(), nil
	}
	r := gpu.NewReader(options)
	defer r.Close()
	reading, errs := r.Read(start)
	if reading.State != gpu.StateUp || reading.Library != good || len(errs) != 1 || reading.Stale {
		t.Errorf("%+v %v", reading, errs)
	}
	m.Change(func() { m.All, m.Init = nvml.ERROR_UNKNOWN, nvml.ERROR_UNKNOWN })
	for i := range 20 {
		if reading, _ = r.Read(start.Add(time.Duration(i+1) * time.Minute)); reading.Stale {
			t.Fatal("stale, but for a library that cannot be loaded")
		}
	}
}

// TestStale: case 91, the driver was upgraded under the process. With another
// library on disk only a fresh process helps; without, the reader recovers.
func TestStale(t *testing.T) {
	m := gputest.H100NVL()
	options := all(m)
	options.Roots = []string{t.TempDir()}
	options.Open = func(string) (gpu.Library, error) { return m.Library(), nil }
	install(t, options.Roots[0], "580.1")
	r := gpu.NewReader(options)
	defer r.Close()
	read(t, r, start)
	path := install(t, options.Roots[0], "580.2")
	if reading := read(t, r, start.Add(15*time.Second)); reading.Stale {
		t.Error("stale while the old library still works")
	}
	m.Change(func() { m.All, m.Init = nvml.ERROR_UNKNOWN, nvml.ERROR_LIB_RM_VERSION_MISMATCH })
	r.Read(start.Add(30 * time.Second))
	m.Calls()
	reading, _ := r.Read(start.Add(45 * time.Second))
	if !reading.Stale || reading.State == gpu.StateUp || reading.Library == path {
		t.Errorf("%+v", reading)
	}
	if calls(m.Calls())["nvmlInit_v2"] > 0 {
		t.Error("the old library was initialised with the new one on disk")
	}
}

// TestStaleInPlace is TestStale for a file that was replaced under its name, at
// the moment of the first mismatch.
func TestStaleInPlace(t *testing.T) {
	m := gputest.H100NVL()
	options := all(m)
	options.Roots = []string{t.TempDir()}
	options.Open = func(string) (gpu.Library, error) { return m.Library(), nil }
	path := install(t, options.Roots[0], "580.1")
	m.Init = nvml.ERROR_LIB_RM_VERSION_MISMATCH
	r := gpu.NewReader(options)
	defer r.Close()
	if reading, _ := r.Read(start); reading.Stale || reading.State != gpu.StateVersionMismatch {
		t.Errorf("%+v", reading)
	}
	fresh := path + ".dpkg-new"
	if err := os.WriteFile(fresh, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, path); err != nil {
		t.Fatal(err)
	}
	if reading, _ := r.Read(start.Add(time.Minute)); !reading.Stale || reading.State != gpu.StateVersionMismatch {
		t.Errorf("%+v", reading)
	}
}

// TestTape: what a tape plays is what was read.
func TestTape(t *testing.T) {
	for name, build := range gputest.Scenarios() {
		t.Run(name, func(t *testing.T) {
			m := build()
			var tape *nvmltape.Tape
			options := all(m)
			options.PerLink = true
			options.Open = func(string) (gpu.Library, error) {
				var lib gpu.Library
				lib, tape = nvmltape.Record(m.Library())
				return lib, nil
			}
			r := gpu.NewReader(options)
			want := read(t, r, start)
			read(t, r, start.Add(2*time.Minute))
			r.Close()
			text, err := tape.JSON()
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := nvmltape.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			player := nvmltape.Play(parsed)
			options.Open = player.Open
			r = gpu.NewReader(options)
			got := read(t, r, start)
			got.Time, want.Time = 0, 0
			if !reflect.DeepEqual(got, want) {
				t.Errorf("played %+v\nread   %+v", got, want)
			}
			if missing := player.Unrecorded(); len(missing) > 0 {
				t.Errorf("asked for in vain: %v", missing)
			}
			r.Close()
		})
	}
}

func TestAnonymise(t *testing.T) {
	m := gputest.GB200()
	for i, g := range m.GPUs {
		g.UUID = "GPU-3125d450-b4e4-e5fc-adfc-7729c998438" + string(rune('0'+i))
		g.Processes = 2
	}
	lib, tape := nvmltape.Record(m.Library())
	options := all(m)
	options.Open = func(string) (gpu.Library, error) { return lib, nil }
	r := gpu.NewReader(options)
	defer r.Close()
	read(t, r, start)
	if err := tape.Anonymise(); err != nil {
		t.Fatal(err)
	}
	text, err := tape.JSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"3125d450", "523a6f51"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("%s is still there", secret)
		}
	}
	for _, pseudonym := range []string{"GPU-00000000-0000-4000-8000-000000000004", "00000000000040008000000000000001"} {
		if !strings.Contains(string(text), pseudonym) {
			t.Errorf("%s is not there", pseudonym)
		}
	}
}

// TestCountOfNothing: a number of GPUs or MIG instances that cannot be is not believed. A
// capture of a stranger may have any, and each is asked for.
func TestCountOfNothing(t *testing.T) {
	for _, count := range []int{-1, 257, 666666661} {
		tape, err := nvmltape.Parse(fmt.Appendf(nil, `{"symbols":{"nvmlDeviceGetCount_v2":true},"library":{"Init":{},"DeviceGetCount":{"value":%d},"DeviceGetHandleByIndex(0)":{"value":0}},"devices":[{"GetPciInfo":{"value":{"bus_id":"00000000:3B:00.0"}}}]}`, count))
		if err != nil {
			t.Fatal(err)
		}
		r := gpu.NewReader(gpu.Options{Open: nvmltape.Play(tape).Open})
		reading, errs := r.Read(start)
		r.Close()
		told := slices.ContainsFunc(errs, func(e sysread.ReadError) bool {
			return e.Source == "nvmlDeviceGetCount" && errors.Is(e.Err, sysread.ErrInvalid)
		})
		if len(reading.GPUs) > 0 || !told {
			t.Errorf("%d: %d GPUs, %v", count, len(reading.GPUs), errs)
		}
	}
	m := gputest.H100NVL()
	m.GPUs[0].MIG = nvml.DEVICE_MIG_ENABLE
	for i := range 1000 {
		m.GPUs[0].Instances = append(m.GPUs[0].Instances, fmt.Sprint("MIG-", i))
	}
	options := all(m)
	options.Holders = true
	r := gpu.NewReader(options)
	defer r.Close()
	instances := 0
	for _, g := range read(t, r, start).GPUs {
		instances += len(g.Instances)
	}
	if instances != 64 {
		t.Errorf("%d instances", instances)
	}
}

func FuzzParseTape(f *testing.F) {
	f.Add([]byte(`{"library":{"Init":{},"DeviceGetCount":{"value":2},"DeviceGetHandleByIndex(0)":{"value":7}},"devices":[{}]}`))
	f.Add([]byte(`{"symbols":{"nvmlDeviceGetCount_v2":true},"library":{"Init":{},"DeviceGetCount":{"value":1},"DeviceGetHandleByIndex(0)":{"value":0}},"devices":[{"GetPciInfo":{"value":{"bus_id":"00000000:3B:00.0"}}}]}`))
	f.Add([]byte(`{"library":{"Init":{},"DeviceGetCount":{"value":1},"DeviceGetHandleByIndex(0)":{"value":0}},"devices":[{"GetPciInfo":{"hang":true}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		tape, err := nvmltape.Parse(text)
		if err != nil {
			return
		}
		player := nvmltape.Play(tape)
		player.Close() // what hangs would do so for ever
		r := gpu.NewReader(gpu.Options{Open: player.Open, NVLink: true, PerLink: true, Fabric: true})
		r.Read(start)
		r.Close()
	})
}

func BenchmarkRead(b *testing.B) {
	for name, build := range map[string]func() *gputest.Machine{"h100": gputest.HGXH100, "b200": gputest.HGXB200} {
		b.Run(name, func(b *testing.B) {
			m := build()
			r := gpu.NewReader(all(m))
			defer r.Close()
			now := start
			r.Read(now)
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(15 * time.Second)
				r.Read(now)
				m.Calls()
			}
		})
	}
}

package driver

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
)

// The tests in this file load and unload the stand-in for nvidia_peermem in a
// real kernel, so they run in a virtual machine only:
//
//	go test -c -o driver.test ./gpu/driver
//	vmtest --devices 1 --module cmd/vmtest/module/nvidia_peermem \
//		--env GDR_IN_KERNEL=1 -- ./driver.test -test.run InKernel
func inKernel(t *testing.T) {
	t.Helper()
	if os.Getenv("GDR_IN_KERNEL") == "" {
		t.Skip("runs in the virtual machine that TestKernel of cmd/gdr_exporter boots")
	}
}

// standIn is the module's file in the virtual machine.
func standIn(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/run/vmtest/*peermem*.ko")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	return files[0]
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func insmod(t *testing.T, parameters ...string) {
	t.Helper()
	command(t, "insmod", append([]string{standIn(t)}, parameters...)...)
}

// reload loads the module with other parameters, and with its usual ones once
// the test has ended.
func reload(t *testing.T, parameters ...string) {
	t.Helper()
	command(t, "rmmod", "nvidia_peermem")
	insmod(t, parameters...)
	t.Cleanup(func() {
		command(t, "rmmod", "nvidia_peermem")
		insmod(t)
	})
}

func set(t *testing.T, parameter, value string) {
	t.Helper()
	if err := os.WriteFile("/sys/module/nvidia_peermem/parameters/"+parameter, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

func kernelReader() *Reader {
	return NewReader(Options{Sysfs: "/sys", Procfs: "/proc", Roots: []string{"/"}, SlowInterval: time.Hour})
}

// readKernel reads without an error.
func readKernel(t *testing.T, r *Reader) Reading {
	t.Helper()
	reading, errs := r.Read(time.Now())
	for _, err := range errs {
		t.Error(err)
	}
	return reading
}

func detected(r *Reading) []string {
	var libraries []string
	for i := range Rules {
		if Rules[i].Detects(r.Markers).Value {
			libraries = append(libraries, Rules[i].Library)
		}
	}
	return libraries
}

// TestInKernelPeermem: the module that goes and comes is seen at once, and
// everything it shows is read.
func TestInKernelPeermem(t *testing.T) {
	inKernel(t)
	r := kernelReader()
	defer r.Close()
	reading := readKernel(t, r)
	wantLoaded(t, &reading)
	if reading.Loaded.Value || !reading.Loaded.Known || reading.Modules[0].State != StateAbsent {
		t.Errorf("the driver is loaded: %+v", reading)
	}
	for range 3 {
		command(t, "rmmod", "nvidia_peermem")
		reading = readKernel(t, r)
		m := &reading.Peermem[0]
		if m.State != StateAbsent || m.References.Known || m.Version.Known || len(m.Parameters) > 0 {
			t.Errorf("unloaded: %+v", m)
		}
		if reading.MemoryPeers.Present != sysread.Some(false) || len(detected(&reading)) > 0 {
			t.Errorf("unloaded: %+v, detected by %v", reading.MemoryPeers, detected(&reading))
		}
		insmod(t)
		reading = readKernel(t, r)
		wantLoaded(t, &reading)
	}
}

func wantLoaded(t *testing.T, reading *Reading) {
	t.Helper()
	m := &reading.Peermem[0]
	want := []Parameter{{"peerdirect_support", 0}, {"persistent_api_support", 1}}
	if m.State != StateLive || m.Version != sysread.Some("580.95.05") || m.References != sysread.Some(uint64(0)) || !slices.Equal(m.Parameters, want) {
		t.Errorf("%+v", m)
	}
	if m.Hooked != sysread.Some(false) { // the stand-in uses nothing of the RDMA stack
		t.Errorf("hooked %v", m.Hooked)
	}
	peers := reading.MemoryPeers
	if len(peers.Clients) != 1 || peers.Clients[0].Name != "nv_mem" || len(peers.Clients[0].Counters) != len(ClientFiles) || peers.Clients[0].Version != m.Version {
		t.Errorf("%+v", peers)
	}
	for marker, exists := range reading.Markers {
		if want := marker == MarkerNvMem || marker == MarkerNvidiaPeermem; exists != sysread.Some(want) {
			t.Errorf("%s %v", marker, exists)
		}
	}
	if got := detected(reading); len(got) != len(Rules) {
		t.Errorf("detected by %v", got)
	}
}

// TestInKernelChurn: a module that goes and comes while it is read makes no
// errors, and never looks like one built into the kernel.
func TestInKernelChurn(t *testing.T) {
	inKernel(t)
	r := kernelReader()
	done := make(chan error)
	go func() {
		for range 20 {
			for _, args := range [][]string{{"rmmod", "nvidia_peermem"}, {"insmod", standIn(t)}} {
				if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
					done <- errors.New(string(out))
					return
				}
			}
		}
		done <- nil
	}()
	states := map[State]int{}
	for reads := 1; ; reads++ {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d reads: %v", reads, states)
			if states[StateLive] == 0 || states[StateAbsent] == 0 || states[StateBuiltin] > 0 {
				t.Error("unexpected states")
			}
			return
		default:
			reading := readKernel(t, r)
			states[reading.Peermem[0].State]++
		}
	}
}

// TestInKernelReferences: reference count and counters follow the module, and
// the count is what /proc/modules says.
func TestInKernelReferences(t *testing.T) {
	inKernel(t)
	r := kernelReader()
	defer r.Close()
	for i, live := range []int{3, 1000, 0} {
		set(t, "live_mrs", strconv.Itoa(live))
		set(t, "num_alloc_mrs", strconv.Itoa(live+70+i))
		set(t, "num_dealloc_mrs", strconv.Itoa(70+i))
		set(t, "num_reg_bytes", "18446744073709551615")
		reading := readKernel(t, r)
		if got := reading.Peermem[0].References; got != sysread.Some(uint64(live)) {
			t.Errorf("references %v, want %d", got, live)
		}
		if fields := procModule(t, "nvidia_peermem"); fields[2] != strconv.Itoa(live) {
			t.Errorf("/proc/modules says %s, want %d", fields[2], live)
		}
		client := &reading.MemoryPeers.Clients[0]
		if client.LiveMRs() != sysread.Some(uint64(live)) || client.Counters[FileRegBytes] != 1<<64-1 {
			t.Errorf("%+v", client)
		}
		if err := exec.Command("rmmod", "nvidia_peermem").Run(); live > 0 && err == nil {
			t.Fatal("the module went with live registrations")
		} else if live == 0 {
			insmod(t)
		}
	}
}

// procModule returns the fields of a module's line in /proc/modules.
func procModule(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/modules")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); fields[0] == name {
			return fields
		}
	}
	return nil
}

// TestInKernelNoMemoryPeers: as with the RDMA stacks of Ubuntu, only libraries
// that look for the module take it as available.
func TestInKernelNoMemoryPeers(t *testing.T) {
	inKernel(t)
	reload(t, "register_client=0")
	r := kernelReader()
	reading := readKernel(t, r)
	if reading.Peermem[0].State != StateLive || reading.MemoryPeers.Present != sysread.Some(false) {
		t.Errorf("%+v", reading)
	}
	if got, want := detected(&reading), []string{"nccl", "ucx", "nvshmem"}; !slices.Equal(got, want) {
		t.Errorf("detected by %v, want %v", got, want)
	}
}

// TestInKernelLegacyMode: both clients are there.
func TestInKernelLegacyMode(t *testing.T) {
	inKernel(t)
	reload(t, "persistent_api_support=0")
	reading := readKernel(t, kernelReader())
	want := []Parameter{{"peerdirect_support", 0}, {"persistent_api_support", 0}}
	if !slices.Equal(reading.Peermem[0].Parameters, want) {
		t.Errorf("%+v", reading.Peermem[0].Parameters)
	}
	if c := reading.MemoryPeers.Clients; len(c) != 2 || c[1].Name != "nv_mem_nc" || !reading.Markers[MarkerNvMemNC].Value {
		t.Errorf("%+v", c)
	}
}

// TestInKernelStates: of every module that the kernel shows, the state is live
// if it is in /proc/modules and builtin if not.
func TestInKernelStates(t *testing.T) {
	inKernel(t)
	entries, err := os.ReadDir("/sys/module")
	if err != nil {
		t.Fatal(err)
	}
	p := &pass{Reader: kernelReader(), now: time.Now()}
	live, builtin := 0, 0
	for _, entry := range entries {
		want := StateBuiltin
		if procModule(t, entry.Name()) != nil {
			want = StateLive
			live++
		} else {
			builtin++
		}
		if m := p.module(entry.Name()); m.State != want {
			t.Errorf("%s is %q, want %q", entry.Name(), m.State, want)
		}
	}
	for _, err := range p.errs {
		t.Error(err)
	}
	t.Logf("%d live, %d built in", live, builtin)
	if live < 10 || builtin < 10 {
		t.Error("too few to tell")
	}
}

// TestInKernelRDMACore: the kernel's own ib_core is inbox, and the stand-in,
// whose taint is O, is what the taint of an out-of-tree module looks like.
func TestInKernelRDMACore(t *testing.T) {
	inKernel(t)
	reading := readKernel(t, kernelReader())
	if !reading.RDMACore.Known || reading.RDMACore.Value.Origin != OriginInbox {
		t.Errorf("%+v", reading.RDMACore)
	}
	taint, err := os.ReadFile("/sys/module/nvidia_peermem/taint")
	if err != nil || !strings.Contains(string(taint), "O") {
		t.Errorf("taint %q, %v", taint, err)
	}
	if release := strings.TrimSpace(command(t, "uname", "-r")); reading.Kernel.Value != release {
		t.Errorf("kernel %v, want %s", reading.Kernel, release)
	}
	// The RDMA stack's real holders are found.
	p := &pass{Reader: kernelReader(), now: time.Now()}
	holders, o := p.names(moduleCore, "holders", p.moduleFile(moduleCore, "holders"))
	if o != found || !slices.Contains(holders, "rdma_rxe") {
		t.Errorf("holders of ib_core: %v", holders)
	}
}

// TestInKernelModuleList: modprobe and the reader agree on what is on disk.
func TestInKernelModuleList(t *testing.T) {
	inKernel(t)
	reading := readKernel(t, kernelReader())
	release := reading.Kernel.Value
	if got := reading.Peermem[0].OnDisk; got != sysread.Some(false) {
		t.Errorf("on disk %v with the kernel's own modules", got)
	}
	if err := exec.Command("modprobe", "-n", "nvidia_peermem_of_nobody").Run(); err == nil {
		t.Error("modprobe finds anything")
	}
	root := t.TempDir()
	reader := func() *Reader {
		return NewReader(Options{Sysfs: "/sys", Procfs: "/proc", Roots: []string{root}})
	}
	reading = readKernel(t, reader())
	if got := reading.Peermem[0].OnDisk; got.Known {
		t.Errorf("on disk %v without any list", got)
	}
	dir := filepath.Join(root, "lib/modules", release, "updates")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(standIn(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nvidia-peermem.ko"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, "depmod", "-b", root, release)
	command(t, "modprobe", "-d", root, "-n", "--ignore-install", "nvidia-peermem")
	reading = readKernel(t, reader())
	if got := reading.Peermem[0].OnDisk; got != sysread.Some(true) {
		t.Errorf("on disk %v after depmod", got)
	}
	// Each module of the real list is found under modprobe's name for it.
	names := 0
	list, err := os.ReadFile("/lib/modules/" + release + "/modules.dep")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		file, _, _ := strings.Cut(line, ":")
		if name, is := moduleOfFile([]byte(filepath.Base(file))); !is || strings.ContainsAny(name, "-.") {
			t.Errorf("%q is module %q", file, name)
		}
		names++
	}
	t.Logf("%d modules", names)
}

// TestInKernelUnprivileged: nobody can read all of it but what securityfs hides.
func TestInKernelUnprivileged(t *testing.T) {
	inKernel(t)
	c := exec.Command("/proc/self/exe", "-test.run", "^TestInKernelStates$", "-test.v")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestInKernelStates") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestInKernelLockdown comes last, since lockdown cannot be undone: not known
// without securityfs, then none, then integrity.
func TestInKernelLockdown(t *testing.T) {
	inKernel(t)
	r := NewReader(Options{Sysfs: "/sys", Procfs: "/proc", Roots: []string{"/"}})
	if reading := readKernel(t, r); reading.Lockdown.Known {
		t.Errorf("lockdown %v without securityfs", reading.Lockdown)
	}
	const file = "/sys/kernel/security/lockdown"
	if err := syscall.Mount("securityfs", filepath.Dir(file), "securityfs", 0, ""); err != nil && !errors.Is(err, syscall.EBUSY) {
		t.Fatal(err)
	}
	for _, mode := range []string{"none", "integrity", "confidentiality"} {
		if mode != "none" {
			if err := os.WriteFile(file, []byte(mode), 0); err != nil {
				t.Fatal(err)
			}
		}
		if reading := readKernel(t, r); reading.Lockdown != sysread.Some(mode) {
			t.Errorf("lockdown %v, want %s", reading.Lockdown, mode)
		}
	}
}

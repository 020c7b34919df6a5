package gpu_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
)

// TestRealLibrary drives go-nvml itself on a library that the C compiler makes of
// testdata/nvml.c and that lacks nearly everything: a call too many ends the
// test's process. It then fails, recovers, and is replaced on disk.
func TestRealLibrary(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler to make a library with")
	}
	root := t.TempDir()
	path := install(t, root, "999.1")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", path, "testdata/nvml.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r := gpu.NewReader(gpu.Options{Roots: []string{root}, SlowInterval: time.Minute, NVLink: true, PerLink: true, Fabric: true})
	defer r.Close()
	reading := read(t, r, start)
	if reading.State != gpu.StateUp || reading.Library != path || reading.DriverVersion != "999.1" || reading.Version != "" || len(reading.GPUs) != 2 {
		t.Fatalf("%+v", reading)
	}
	some := sysread.Some[uint64]
	g := reading.GPUs[0]
	if g.Address != "0000:3b:00.0" || g.BusID != "00000000:3B:00.0" || g.FB != (gpu.Memory{Total: some(3000), Free: some(2000), Used: some(1000)}) {
		t.Errorf("%+v", g)
	}
	if g.Procs.Known || g.NVLink.Count.Known || g.PCIe != (gpu.PCIe{}) || g.Identity != (gpu.Identity{}) {
		t.Errorf("something is known that cannot be: %+v", g)
	}
	if f := g.Fabric; f.CliqueID != sysread.Some(uint32(7)) || f.Health.DegradedBandwidth != sysread.Some(false) || f.Health.Summary.Known || f.ClusterUUID != "abababab-abab-abab-abab-abababababab" {
		t.Errorf("fabric, of version 2: %+v", f)
	}
	if g.RecoveryAction != some(2) {
		t.Errorf("field: %+v", g.RecoveryAction)
	}
	if got := xids(reading.GPUs[1]); got[79] != 2 || xids(g)[79] != 0 || len(xids(g)) != 3 {
		t.Errorf("events: %v %v", got, xids(g))
	}
	if p := reading.Pairs; len(p) != 1 || p[0].Ancestor != sysread.Some(30) || p[0].P2P != [gpu.P2PCapabilities]sysread.Maybe[int]{sysread.Some(0), sysread.Some(1), sysread.Some(2)} {
		t.Errorf("pairs: %+v", p)
	}

	t.Setenv("GDR_TEST_MISMATCH", "1")
	r.Read(start.Add(time.Minute)) // all is ERROR_UNKNOWN: shut down
	reading, errs := r.Read(start.Add(2 * time.Minute))
	if reading.State != gpu.StateVersionMismatch || reading.Stale || len(errs) != 1 || errs[0].Errno() != "NVML_ERROR_LIB_RM_VERSION_MISMATCH" {
		t.Errorf("%+v %v", reading, errs)
	}
	if err := os.Unsetenv("GDR_TEST_MISMATCH"); err != nil {
		t.Fatal(err)
	}
	if reading = read(t, r, start.Add(5*time.Minute)); reading.State != gpu.StateUp || len(reading.GPUs) != 2 {
		t.Errorf("it did not recover: %+v", reading)
	}

	t.Setenv("GDR_TEST_MISMATCH", "1")
	install(t, root, "999.2")
	r.Read(start.Add(6 * time.Minute))
	if reading, _ = r.Read(start.Add(8 * time.Minute)); !reading.Stale || reading.State == gpu.StateUp {
		t.Errorf("replaced on disk: %+v", reading)
	}
	if maps, err := os.ReadFile("/proc/self/maps"); err == nil && strings.Contains(string(maps), filepath.Join(root, "usr/lib64/libnvidia-ml.so.999.2")) {
		t.Error("the new library was mapped beside the old one")
	}
}

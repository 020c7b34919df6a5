package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gdr_exporter/cmd/vmtest/node"
)

// Names in the environment of the tests that run inside the virtual machine.
const (
	inKernelEnv = "GDR_IN_KERNEL"
	binaryEnv   = "GDR_EXPORTER_BINARY"
)

// kernelBoot is one start of the virtual machine and the tests that share it.
type kernelBoot struct {
	name  string
	pkg   string   // package of the tests, below gdr_exporter/; "" for this one
	flags []string // of vmtest
	tests []string // what follows TestInKernel
	nodes int      // that the tests run in at once; 0: one virtual machine
	time  string   // the longest it may take; "": 8m
	// check looks, outside the virtual machine, at what the tests left in a
	// directory that dirEnv names for them; nil: they leave nothing.
	dirEnv string
	check  func(t *testing.T, exporter, dir string)
}

var kernelBoots = []kernelBoot{
	{
		name:  "netlink",
		flags: []string{"--devices", "8"},
		tests: []string{"Netlink", "Resources", "Owners", "Process", "NetnsNetlink", "NoMonitor"},
	},
	{
		name:  "soft-RoCE",
		flags: []string{"--devices", "8"},
		tests: []string{"Values", "Traffic", "LinkDown", "Rename", "HotPlug", "Netns", "Unprivileged"},
	},
	{
		name:  "InfiniBand",
		flags: []string{"--devices", "8", "--module", "../vmtest/module/gdrtest_ib:count=2,ports=2"},
		tests: []string{"PortStates", "QueryPortFails", "CountersRefuse", "CountersSaturate", "Excluded", "NetlinkFails", "Hang", "StopWhileHanging", "StopWhileUninterruptible"},
	},
	{
		name:  "no RDMA",
		flags: []string{"--devices", "0"},
		tests: []string{"NoRDMA", "NoGPU"},
	},
	{
		name:  "events",
		flags: []string{"--devices", "2", "--kernel", "backports"},
		tests: []string{"Monitor"},
	},
	{
		name:  "network interfaces",
		pkg:   "rdma/netdev",
		flags: []string{"--devices", "2", "--topology", "switch", "--module", "../../rdma/netdev/testdata/module/gdrtest_netdev"},
		tests: []string{"Stats", "Guard", "Read", "PFC", "Vanish", "Unprivileged", "OtherNamespace"},
	},
	{
		name:  "health reporters",
		pkg:   "rdma/devlink",
		flags: []string{"--devices", "0", "--topology", "switch", "--module", "../../rdma/netdev/testdata/module/gdrtest_netdev"},
		tests: []string{""},
	},
	{
		name: "PCIe tree",
		pkg:  "gpu/affinity",
		flags: []string{"--devices", "0", "--topology", "gdr", "--module", "../../gpu/affinity/testdata/module/gdrtest_pci",
			"--module", "../vmtest/module/gdrtest_ib:count=5,parent=0000:44:00.0+0000:46:00.0+0000:49:00.0+0000:81:00.0+0000:c1:00.0"},
		tests: []string{"Distances", "Lspci", "ACS", "Unprivileged", "AER", "IOMMUType", "Suspended", "FallenOff", "Gone", "HotPlug"},
	},
	{
		name:  "probe",
		flags: []string{"--devices", "2", "--topology", "gdr"},
		tests: []string{"ProbeHost", "ProbeGPU", "ProbeUnregistrable", "ProbeCorrupt", "ProbeRefused", "ProbeInterrupted", "KernelLog", "KernelLogFlood", "KernelLogUnprivileged"},
	},
	{
		name:  "prober",
		flags: []string{"--devices", "6", "--topology", "gdr", "--module", "../../gpu/affinity/testdata/module/gdrtest_pci"},
		tests: []string{"ProberFaults", "ProberTraffic", "ProberPort", "ProberKilled", "Check", "CheckProbe"},
	},
	{
		name: "verdicts",
		flags: []string{"--devices", "1", "--topology", "gdr", "--cmdline", "iommu=pt", "--module", "../../gpu/affinity/testdata/module/gdrtest_pci",
			"--module", "../vmtest/module/gdrtest_ib:count=1,parent=0000:46:00.0", "--module", "../vmtest/module/nvidia_peermem"},
		tests: []string{"Verdicts", "VerdictMemlock"},
	},
	{
		name:  "live use",
		flags: []string{"--devices", "1", "--topology", "gdr", "--module", "../../gpu/affinity/testdata/module/gdrtest_pci", "--module", "../vmtest/module/nvidia_peermem"},
		tests: []string{"VerdictTranslated", "LiveUse"},
	},
	{
		name:   "capture",
		flags:  []string{"--devices", "4", "--topology", "gdr"},
		tests:  []string{"Capture"},
		dirEnv: captureDirEnv,
		check:  checkCaptures,
	},
	{
		name: "PCIe page",
		flags: []string{"--devices", "0", "--topology", "gdr", "--cmdline", "iommu=pt", "--module", "../../gpu/affinity/testdata/module/gdrtest_pci",
			"--module", "../vmtest/module/gdrtest_ib:count=5,parent=0000:44:00.0+0000:46:00.0+0000:49:00.0+0000:81:00.0+0000:c1:00.0"},
		tests: []string{"Topo", "TopoUnprivileged", "PCIePage", "PCIeACS", "PCIeErrors", "PCIeStates", "PCIeUnprivileged"},
	},
	{
		name:  "peer memory",
		pkg:   "gpu/driver",
		flags: []string{"--devices", "1", "--module", "../vmtest/module/nvidia_peermem"},
		tests: []string{"Peermem", "Churn", "References", "NoMemoryPeers", "LegacyMode", "States", "RDMACore", "ModuleList", "Unprivileged", "Lockdown"},
	},
	{
		name:  "dma-bufs", // the stable kernel makes none of host memory
		pkg:   "gpu/driver",
		flags: []string{"--devices", "0", "--kernel", "backports"},
		tests: []string{"DMABufs"},
	},
	{
		name:  "peers",
		nodes: 3,
		flags: []string{"--topology", "gdr"},
		tests: []string{"Peers", "PeerFaults"},
		time:  "20m",
	},
	{
		name:  "peer endpoints",
		pkg:   "rdma/peer/verbs",
		nodes: 2,
		tests: []string{"Endpoints", "Ping", "Nobody"},
	},
	{
		name:  "endpoints",
		pkg:   "rdma/loopback",
		flags: []string{"--devices", "2"},
		tests: []string{"Endpoints", "EndpointPing", "EndpointKeys", "EndpointVanishes", "EndpointDeadline"}, // the others are long: make soak
	},
	{
		name:  "loopback",
		pkg:   "rdma/loopback",
		flags: []string{"--devices", "2"},
		tests: []string{"Paths", "Defaults", "Slices", "RegisterOnly", "Unregistrable", "Corrupt", "LinkDown", "Delete", "NetdevDeleted", "PeerGone", "Stop", "PhaseTime", "Lock", "Privileges", "Leaks", "Sanitizer", "Perftest"},
	},
}

// TestKernel runs the exporter in virtual machines, against the real kernel:
// it boots them with cmd/vmtest, and in each the tests TestInKernel... of this
// package. What vmtest needs is a must: without it this fails rather than
// passes for nothing.
func TestKernel(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines: not with -short")
	}
	programs := buildPrograms(t)
	for _, boot := range kernelBoots {
		t.Run(boot.name, func(t *testing.T) { programs.run(t, boot) })
	}
}

// kernelPrograms are the paths of the binaries that a boot needs.
type kernelPrograms struct {
	exporter, vmtest string
	tests            map[string]string // by kernelBoot.pkg
}

// buildPrograms builds them where other users may execute them too: one test
// runs the exporter as nobody.
func buildPrograms(t *testing.T) kernelPrograms {
	t.Helper()
	dir, err := os.MkdirTemp("", "gdr_exporter-kernel")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p := kernelPrograms{filepath.Join(dir, "gdr_exporter"), filepath.Join(dir, "vmtest"), map[string]string{}}
	builds := [][]string{
		{"build", "-o", p.exporter, "gdr_exporter/cmd/gdr_exporter"},
		{"build", "-o", p.vmtest, "gdr_exporter/cmd/vmtest"},
	}
	for i, pkg := range []string{"", "rdma/netdev", "rdma/devlink", "gpu/affinity", "gpu/driver", "rdma/loopback", "rdma/peer/verbs"} {
		p.tests[pkg] = filepath.Join(dir, fmt.Sprintf("inkernel%d.test", i))
		builds = append(builds, []string{"test", "-c", "-o", p.tests[pkg], "gdr_exporter/" + cmp.Or(pkg, "cmd/gdr_exporter")})
	}
	for _, args := range builds {
		if output, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, output)
		}
	}
	return p
}

// run boots once, shows what the tests inside say as they say it, and fails
// unless each of them has passed: one that was skipped or never ran is no pass.
func (p kernelPrograms) run(t *testing.T, boot kernelBoot) {
	args := append([]string{"--timeout", cmp.Or(boot.time, "8m"), "--env", inKernelEnv + "=1", "--env", binaryEnv + "=" + p.exporter}, boot.flags...)
	pattern := fmt.Sprintf("^TestInKernel(%s)$", strings.Join(boot.tests, "|"))
	if boot.nodes > 0 {
		args = append(args, "--nodes", fmt.Sprint(boot.nodes))
	}
	var dir string
	if boot.check != nil {
		dir = emptyDir(t)
		args = append(args, "--share", dir, "--env", boot.dirEnv+"="+dir)
	}
	args = append(args, "--", p.tests[boot.pkg], "-test.v", "-test.run", pattern)
	var output bytes.Buffer
	cmd := exec.CommandContext(t.Context(), p.vmtest, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	both := io.MultiWriter(t.Output(), &output)
	cmd.Stdout, cmd.Stderr = both, both
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	for _, name := range boot.tests {
		for n := range max(boot.nodes, 1) {
			passed := "--- PASS: TestInKernel" + name + " "
			if boot.nodes > 0 {
				passed = fmt.Sprintf("%s: %s", node.Name(n+1), passed)
			}
			if !strings.Contains(output.String(), passed) {
				t.Errorf("in the virtual machine, TestInKernel%s did not pass (%s)", name, passed)
			}
		}
	}
	if err != nil {
		t.Errorf("vmtest: %v", err)
	}
	if boot.check != nil && !t.Failed() {
		boot.check(t, p.exporter, dir)
	}
}

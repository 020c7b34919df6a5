package systemd

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gdr_exporter/gpu/cuda/cudatest"
	"gdr_exporter/gpu/nvmltest"
)

// Names in the environment: soakEnv asks for the tests that take minutes, binaryEnv
// is an exporter that is built already, inKernelEnv is set in the virtual machine.
const (
	soakEnv     = "DEPLOY_SOAK"
	binaryEnv   = "GDR_EXPORTER_BINARY"
	inKernelEnv = "GDR_IN_KERNEL"
)

// Where the virtual machine has the tests, and libraries that stand in for a GPU's.
const (
	testProgram = "/usr/local/bin/service.test"
	driverRoot  = "/opt/driver"
	driverProc  = "/opt/proc"
)

// repository is the root of the sources, seen from here.
const repository = "../.."

// TestService installs the package in a Debian of its own and boots that in a virtual
// machine, with systemd as the first process, and runs the tests TestInKernel... there.
func TestService(t *testing.T) {
	if os.Getenv(soakEnv) == "" {
		t.Skip("takes minutes: set " + soakEnv + "=1")
	}
	if os.Geteuid() != 0 {
		t.Fatal("must be root: it makes a root file system")
	}
	binary := os.Getenv(binaryEnv)
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "gdr_exporter")
		run(t, repository, "go", "build", "-o", binary, "./cmd/gdr_exporter")
	}
	vmtest := filepath.Join(t.TempDir(), "vmtest")
	run(t, repository, "go", "build", "-o", vmtest, "./cmd/vmtest")

	root := guestRoot(t)
	run(t, ".", "go", "test", "-c", "-o", root+testProgram, ".")
	install(t, root, binary)
	standIns(t, root)

	var output strings.Builder
	cmd := exec.CommandContext(t.Context(), vmtest, "--timeout", "25m", "--root", root, "--systemd", "--devices", "2",
		"--topology", "gdr", "--module", repository+"/gpu/affinity/testdata/module/gdrtest_pci",
		"--env", inKernelEnv+"=1", "--", testProgram, "-test.v", "-test.run", "^TestInKernel")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdout, cmd.Stderr = io.MultiWriter(t.Output(), &output), io.MultiWriter(t.Output(), &output)
	if err := cmd.Run(); err != nil {
		t.Errorf("vmtest: %v", err)
	}
	for _, name := range inKernelTests {
		if !strings.Contains(output.String(), "--- PASS: TestInKernel"+name+" ") {
			t.Errorf("in the virtual machine, TestInKernel%s did not pass", name)
		}
	}
}

// run runs a command, which must succeed, and returns what it writes.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, stdout, stderr.String())
	}
	return strings.TrimSpace(string(stdout))
}

// guestRoot is a fresh copy of a Debian with systemd.
func guestRoot(t *testing.T) string {
	t.Helper()
	base := run(t, repository, "deploy/debian-root", "bookworm", "systemd", "iproute2", "kmod", "libibverbs1", "ibverbs-providers")
	// Not below t.TempDir: its name has what QEMU takes for a separator, and its parents
	// are not for everybody.
	dir, err := os.MkdirTemp("", "gdr_exporter-systemd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	root := filepath.Join(dir, "root")
	run(t, ".", "cp", "-a", base, root)
	return root
}

// install builds the .deb and installs it in a root file system.
func install(t *testing.T, root, binary string) {
	t.Helper()
	dir := t.TempDir()
	run(t, repository, "deploy/packages/build", binary, "amd64", "0.0.1", dir)
	files, err := filepath.Glob(dir + "/*.deb")
	if err != nil || len(files) != 1 {
		t.Fatalf("packages %q, %v", files, err)
	}
	run(t, ".", "cp", files[0], root+"/package.deb")
	run(t, ".", "chroot", root, "dpkg", "--install", "/package.deb")
}

// standIns puts libraries into a root file system that play a GPU.
func standIns(t *testing.T, root string) {
	t.Helper()
	driver := cudatest.Build(t)
	nvmltest.Install(t, driver, nvmltest.Version)
	run(t, ".", "cp", "-a", driver, root+driverRoot)
	run(t, ".", "chmod", "-R", "a+rX", root+driverRoot)
	nvmltest.Load(t, root+driverProc, nvmltest.Version)
	run(t, ".", "chmod", "-R", "a+rX", root+driverProc)
}

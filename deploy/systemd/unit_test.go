// Package systemd holds the exporter's units, and what is tested of them: their
// syntax and hardening on every run of the tests, and the service for real, under
// systemd as the first process of a virtual machine, with DEPLOY_SOAK=1.
package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
)

const (
	service = "gdr_exporter.service"
	socket  = "gdr_exporter.socket"
)

// options reads a unit and returns the values of an option, in their order.
func options(t *testing.T, file string) func(section, name string) []string {
	t.Helper()
	text, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = text.Close() }()
	sections, err := unit.DeserializeSections(text)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return func(section, name string) []string {
		var values []string
		for _, s := range sections {
			for _, entry := range s.Entries {
				if s.Section == section && entry.Name == name {
					values = append(values, entry.Value)
				}
			}
		}
		return values
	}
}

// TestPrivileges: what the exporter needs it has, and what was left out of the
// hardening for a reason stays out.
func TestPrivileges(t *testing.T) {
	of := options(t, service)
	for name, want := range map[string]string{
		"User": "gdr_exporter", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "SystemCallFilter": "@system-service",
		"StateDirectory": "gdr_exporter", "RuntimeDirectory": "gdr_exporter", "RuntimeDirectoryPreserve": "yes", "LimitMEMLOCK": "infinity",
		"AmbientCapabilities": "CAP_IPC_LOCK CAP_SYSLOG", "CapabilityBoundingSet": "CAP_IPC_LOCK CAP_SYSLOG",
	} {
		if got := of("Service", name); !slices.Equal(got, []string{want}) {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{
		"PrivateDevices", "PrivateNetwork", "ProtectClock", "ProtectKernelLogs", "ProtectKernelModules", "ProtectProc", "ProcSubset",
		"MemoryDenyWriteExecute", "DeviceAllow", "DevicePolicy", "IPAddressDeny", "SocketBindDeny", "RestrictNetworkInterfaces", "PrivateUsers",
	} {
		if got := of("Service", name); len(got) > 0 {
			t.Errorf("%s=%s takes away what the exporter needs; the unit says what", name, got)
		}
	}
	families := of("Service", "RestrictAddressFamilies")
	if len(families) != 1 || !strings.Contains(families[0], "AF_NETLINK") {
		t.Errorf("address families %q: no RDMA netlink", families)
	}
	if got := options(t, socket)("Socket", "ListenStream"); !slices.Equal(got, []string{"10479"}) {
		t.Errorf("the socket listens on %q", got)
	}
}

// needs skips a test without a program.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("needs %s: %v", program, err)
	}
}

// unitRoot is a root file system with the units and a program that they can start,
// so that nothing of this machine counts.
func unitRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for from, to := range map[string]string{service: "usr/lib/systemd/system/" + service, socket: "usr/lib/systemd/system/" + socket, "/bin/true": "usr/bin/gdr_exporter"} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if from == "/bin/true" {
			mode = 0o755
		}
		if err := os.WriteFile(path, text, mode); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestVerify: systemd itself understands every line.
func TestVerify(t *testing.T) {
	needs(t, "systemd-analyze")
	root := unitRoot(t)
	for _, name := range []string{service, socket} {
		output, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", "--root="+root, name).CombinedOutput()
		for line := range strings.Lines(string(output)) {
			if strings.Contains(line, "gdr_exporter") {
				t.Errorf("%s: %s", name, line)
			}
		}
		if err != nil && strings.Contains(string(output), "gdr_exporter") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A mistake would be found.
	path := filepath.Join(root, "usr/lib/systemd/system", service)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(text, "[Service]\nProtectEverything=yes\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	output, _ := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--root="+root, service).CombinedOutput()
	if !strings.Contains(string(output), "ProtectEverything") {
		t.Errorf("a made-up option is let through:\n%s", output)
	}
}

// mostExposed is the exposure that systemd-analyze may find, from 0 to 10: what is
// left are the devices, the host's network and two capabilities.
const mostExposed = 3.0

var exposure = regexp.MustCompile(`Overall exposure level for .*: ([0-9.]+)`)

// TestSecurity: the hardening does not wear off.
func TestSecurity(t *testing.T) {
	needs(t, "systemd-analyze")
	output, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--no-pager", service).CombinedOutput()
	match := exposure.FindSubmatch(output)
	if match == nil {
		t.Fatalf("no exposure level, %v:\n%s", err, output)
	}
	level, err := strconv.ParseFloat(string(match[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("systemd-analyze security: %.1f", level)
	if level > mostExposed {
		t.Errorf("exposure %.1f, at most %.1f is wanted:\n%s", level, mostExposed, output)
	}
}

// TestDropIns: the examples are of options that systemd knows, and none takes more
// than it says.
func TestDropIns(t *testing.T) {
	needs(t, "systemd-analyze")
	files, err := filepath.Glob("drop-ins/*.conf")
	if err != nil || len(files) < 2 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		root := unitRoot(t)
		dir := filepath.Join(root, "usr/lib/systemd/system", service+".d")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o644); err != nil {
			t.Fatal(err)
		}
		output, _ := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--root="+root, service).CombinedOutput()
		if strings.Contains(string(output), filepath.Base(file)) {
			t.Errorf("%s:\n%s", file, output)
		}
	}
}

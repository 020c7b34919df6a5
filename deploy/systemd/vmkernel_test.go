package systemd

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// inKernelTests are the tests that must pass in the virtual machine, in this order.
var inKernelTests = []string{"Started", "Confined", "ByHand", "Sandbox", "Schedule", "NoMemlock", "NoLog", "Mistake", "Socket"}

func inKernel(t *testing.T) {
	t.Helper()
	if os.Getenv(inKernelEnv) == "" {
		t.Skip("runs in the virtual machine of TestService")
	}
}

const (
	address  = "http://127.0.0.1:10479"
	defaults = "/etc/default/gdr_exporter"
	dropIns  = "/run/systemd/system/" + service + ".d"
	patience = 2 * time.Minute
	fakeGPU  = "0000:43:00.0" // of vmtest's topology gdr
)

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			log, _ := exec.Command("journalctl", "--no-pager", "-n", "40", "-u", service).CombinedOutput()
			state, _ := exec.Command("systemctl", "show", "-p", "ActiveState,SubState,Result,ExecMainStatus", service).CombinedOutput()
			t.Fatalf("not in time: %s\n%s%s", what, state, log)
		}
	}
}

// get is a page, "" if there is none.
func get(path string) string {
	client := http.Client{Timeout: 30 * time.Second}
	response, err := client.Get(address + path)
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return ""
	}
	return string(text)
}

// serves waits for a line of the metrics.
func serves(t *testing.T, line string) {
	t.Helper()
	expression := regexp.MustCompile(`(?m)^` + line + `$`)
	eventually(t, "a line "+line, func() bool { return expression.MatchString(get("/metrics")) })
}

func property(t *testing.T, name string) string {
	t.Helper()
	return run(t, "/", "systemctl", "show", "-P", name, service)
}

// configure writes the file of flags and a drop-in, and starts the service anew.
func configure(t *testing.T, args, dropIn string) {
	t.Helper()
	must(t, os.WriteFile(defaults, []byte("ARGS=\""+args+"\"\n"), 0o644))
	must(t, os.RemoveAll(dropIns))
	if dropIn != "" {
		must(t, os.MkdirAll(dropIns, 0o755))
		must(t, os.WriteFile(filepath.Join(dropIns, "test.conf"), []byte("[Service]\n"+dropIn), 0o644))
	}
	run(t, "/", "systemctl", "daemon-reload")
	run(t, "/", "systemctl", "restart", service)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// processStatus is a line of /proc/PID/status of the service.
func processStatus(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + property(t, "MainPID") + "/status")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, name+":"); found {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no line %s in\n%s", name, text)
	return ""
}

// TestInKernelStarted: systemd has started the service at boot, and it is scraped.
func TestInKernelStarted(t *testing.T) {
	inKernel(t)
	comm, err := os.ReadFile("/proc/1/comm")
	must(t, err)
	if string(comm) != "systemd\n" {
		t.Fatalf("the first process is %s", comm)
	}
	eventually(t, "the service is active", func() bool { return property(t, "ActiveState") == "active" })
	for _, device := range []string{"rxe0", "rxe1"} {
		serves(t, `gdr_rdma_port_state_id\{device="`+device+`",port="1"\} 4`)
		serves(t, `gdr_rdma_port_hw_[a-z_]*\{device="`+device+`",port="1"\} [0-9.e+]+`)
	}
	serves(t, `gdr_kernel_log_readable 1`)
	serves(t, `gdr_exporter_build_info\{.*\} 1`)
	if page := get("/metrics"); strings.Contains(page, "libcuda") {
		t.Error("looking for the GPU driver's libraries counts as an error")
	}
	out, err := exec.Command("systemd-analyze", "security", "--no-pager", service).CombinedOutput()
	if match := exposure.FindSubmatch(out); match == nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	} else {
		t.Logf("systemd-analyze security, of the running service: %s", match[1])
	}
	version, _, _ := strings.Cut(run(t, "/", "systemctl", "--version"), "\n")
	t.Logf("%s; memory of the service %s bytes", version, property(t, "MemoryCurrent"))
}

// TestInKernelConfined: an account of its own, two capabilities, a filter, and its
// own directories.
func TestInKernelConfined(t *testing.T) {
	inKernel(t)
	account, err := user.Lookup("gdr_exporter")
	must(t, err)
	id := account.Uid
	for name, want := range map[string]string{
		"Uid": strings.Join([]string{id, id, id, id}, "\t"), "NoNewPrivs": "1", "Seccomp": "2",
		"CapEff": "0000000400004000", "CapPrm": "0000000400004000", "CapBnd": "0000000400004000", "CapAmb": "0000000400004000",
	} {
		if got := processStatus(t, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	eventually(t, "the control socket is there", func() bool { return exists("/run/gdr_exporter/control.sock") })
	for path, mode := range map[string]os.FileMode{"/var/lib/gdr_exporter": 0o755, "/run/gdr_exporter": 0o755, "/run/gdr_exporter/control.sock": 0o600} {
		info, err := os.Stat(path)
		must(t, err)
		if owner := strconv.Itoa(int(info.Sys().(*syscall.Stat_t).Uid)); owner != id || info.Mode().Perm() != mode {
			t.Errorf("%s: owner %s, mode %v", path, owner, info.Mode().Perm())
		}
	}
	// Commands are root's.
	if out := run(t, "/", "gdr_exporter", "ctl", "status"); out == "" {
		t.Error("ctl status says nothing")
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestInKernelByHand: a measurement that root makes by hand, before the service has
// made any, does not lock the service out.
func TestInKernelByHand(t *testing.T) {
	inKernel(t)
	t.Log("\n" + run(t, "/", "gdr_exporter", "probe", "--gpu=none", "--device=rxe0", "--timeout=1m"))
	account, err := user.Lookup("gdr_exporter")
	must(t, err)
	info, err := os.Stat("/run/gdr_exporter/probe.lock")
	must(t, err)
	if owner := strconv.Itoa(int(info.Sys().(*syscall.Stat_t).Uid)); owner != account.Uid {
		t.Errorf("the lock is %s's, not the service's", owner)
	}
	serves(t, `gdr_probe_transferred_bytes_total\{device="rxe0"\} [1-9][0-9.e+]*`)
}

// sandboxed runs a command under all that the service is under.
func sandboxed(t *testing.T, command string) (output string, status int) {
	t.Helper()
	text, err := os.ReadFile("/usr/lib/systemd/system/" + service)
	must(t, err)
	const written = "/run/sandboxed.out"
	other := strings.NewReplacer(
		"ExecStart=/usr/bin/gdr_exporter $ARGS", "ExecStart="+command+"\nStandardOutput=append:"+written+"\nStandardError=append:"+written,
		"Type=exec", "Type=oneshot", "Restart=on-failure", "Restart=no",
	).Replace(string(text))
	must(t, os.WriteFile("/run/systemd/system/sandboxed.service", []byte(other), 0o644))
	must(t, os.RemoveAll(written))
	run(t, "/", "systemctl", "daemon-reload")
	_ = exec.Command("systemctl", "start", "sandboxed.service").Run() // its result is read below
	status, err = strconv.Atoi(run(t, "/", "systemctl", "show", "-P", "ExecMainStatus", "sandboxed.service"))
	must(t, err)
	all, err := os.ReadFile(written)
	must(t, err)
	return string(all), status
}

// TestInKernelSandbox: under the unit's restrictions RDMA writes are measured, and
// what is none of the exporter's business does not work.
func TestInKernelSandbox(t *testing.T) {
	inKernel(t)
	out, status := sandboxed(t, "/usr/bin/gdr_exporter probe --gpu=none --device=rxe1 --timeout=1m")
	t.Log("\n" + out)
	if status != 0 || !regexp.MustCompile(`host`).MatchString(out) {
		t.Errorf("status %d", status)
	}
	var script strings.Builder
	for _, command := range forbidden {
		fmt.Fprintf(&script, "if %s; then echo 'possible: %s'; fi\n", command, command)
	}
	script.WriteString("touch /run/gdr_exporter/file /var/lib/gdr_exporter/file && echo all tried\n")
	const path = "/usr/local/bin/forbidden"
	must(t, os.WriteFile(path, []byte(script.String()), 0o644))
	if out, status = sandboxed(t, "/bin/sh "+path); status != 0 || strings.Contains(out, "possible: ") || !strings.HasSuffix(out, "all tried\n") {
		t.Errorf("status %d:\n%s", status, out)
	}
}

// forbidden is what the service must not be able to do. None of it needs more than
// what root would have.
var forbidden = []string{
	"touch /etc/file", "touch /usr/bin/file", "(echo 1 >/proc/sys/net/ipv4/ip_forward)", "(echo 1400 >/sys/class/net/veth0/mtu)",
	"unshare --user true", "mount -t tmpfs none /mnt", "/sbin/modprobe ib_ipoib", "date -s 2020-01-01", "ls /root/.bashrc", "/sbin/ip link set veth0 down",
	"cat /etc/shadow", "chown root /var/lib/gdr_exporter",
}

// TestInKernelSchedule: the service measures by itself, a pair of a real soft-RoCE
// device and a GPU that libraries play.
func TestInKernelSchedule(t *testing.T) {
	inKernel(t)
	override := "/sys/bus/pci/devices/" + fakeGPU
	if exists(override + "/driver") {
		must(t, os.WriteFile(override+"/driver/unbind", []byte(fakeGPU), 0))
	}
	must(t, os.WriteFile(override+"/driver_override", []byte("nvidia\n"), 0))
	must(t, os.WriteFile("/sys/bus/pci/drivers_probe", []byte(fakeGPU), 0))
	id, err := os.ReadFile(override + "/device")
	must(t, err)
	vendor, err := os.ReadFile(override + "/vendor")
	must(t, err)
	standIn := strings.TrimPrefix(strings.TrimSpace(string(vendor)), "0x") + ":" + strings.TrimPrefix(strings.TrimSpace(string(id)), "0x")
	configure(t, fmt.Sprintf("--gpu.stand-in=%s --path.driver-root=%s --path.procfs=%s --probe.pairs=%s/rxe0 --probe.first-within=1s --probe.timeout=1m "+
		"--probe.buffer=8MiB --probe.bytes=16MiB --probe.min-free=1GiB --probe.limit=0.01 --probe.limit-far=0.01", standIn, driverRoot, driverProc, fakeGPU),
		"Environment=DOUBLE_GPUS="+fakeGPU+" NVMLTEST_GPUS="+fakeGPU+"\n")
	serves(t, `gdr_probe_bytes_per_second\{.*device="rxe0".*path="host".*\} [1-9][0-9.e+]*`)
	eventually(t, "the result is kept", func() bool {
		text, err := os.ReadFile("/var/lib/gdr_exporter/state.json")
		return err == nil && strings.Contains(string(text), fakeGPU)
	})
	for line := range strings.Lines(get("/metrics")) {
		if strings.HasPrefix(line, "gdr_probe_bytes_per_second") || strings.HasPrefix(line, "gdr_probe_outcome") && strings.HasSuffix(line, " 1\n") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// TestInKernelNoMemlock: without the capability and with the usual limit nothing is
// measured; the page says so and has all the rest.
func TestInKernelNoMemlock(t *testing.T) {
	inKernel(t)
	args, err := os.ReadFile(defaults)
	must(t, err)
	value := strings.TrimSuffix(strings.TrimPrefix(string(args), `ARGS="`), "\"\n")
	configure(t, value+" --state.dir= ", "AmbientCapabilities=\nCapabilityBoundingSet=\nLimitMEMLOCK=8M\nEnvironment=DOUBLE_GPUS="+fakeGPU+" NVMLTEST_GPUS="+fakeGPU+"\n")
	serves(t, `gdr_probe_skipped\{.*device="rxe0".*reason="memlock".*\} 1`)
	serves(t, `gdr_rdma_port_state_id\{device="rxe1",port="1"\} 4`)
}

// TestInKernelNoLog: without CAP_SYSLOG the kernel's log is missing, and said to be.
func TestInKernelNoLog(t *testing.T) {
	inKernel(t)
	must(t, os.WriteFile("/proc/sys/kernel/dmesg_restrict", []byte("1"), 0))
	configure(t, "", "AmbientCapabilities=\nAmbientCapabilities=CAP_IPC_LOCK\nCapabilityBoundingSet=\nCapabilityBoundingSet=CAP_IPC_LOCK\n")
	serves(t, `gdr_kernel_log_readable 0`)
	configure(t, "", "")
	serves(t, `gdr_kernel_log_readable 1`)
}

// TestInKernelMistake: a wrong flag is not tried again and again.
func TestInKernelMistake(t *testing.T) {
	inKernel(t)
	must(t, os.WriteFile(defaults, []byte("ARGS=\"--nosuch\"\n"), 0o644))
	_ = exec.Command("systemctl", "restart", service).Run() // fails, or not yet
	eventually(t, "the service has failed", func() bool { return property(t, "ActiveState") == "failed" })
	if got := property(t, "ExecMainStatus"); got != "2" {
		t.Errorf("exit status %s", got)
	}
	time.Sleep(7 * time.Second) // longer than RestartSec
	if got := property(t, "NRestarts"); got != "0" {
		t.Errorf("started again %s times", got)
	}
	configure(t, "", "")
	serves(t, `gdr_kernel_log_readable 1`)
}

// TestInKernelSocket: with the socket unit a scrape starts the service, and one that
// comes while it is down is served by the next.
func TestInKernelSocket(t *testing.T) {
	inKernel(t)
	run(t, "/", "systemctl", "stop", service)
	must(t, os.WriteFile(defaults, []byte("ARGS=\"--web.systemd-socket\"\n"), 0o644))
	run(t, "/", "systemctl", "start", socket)
	if got := property(t, "ActiveState"); got == "active" {
		t.Fatal("the service runs before anyone asks")
	}
	if page := get("/metrics"); !strings.Contains(page, `gdr_rdma_port_state_id{device="rxe0",port="1"} 4`) {
		t.Errorf("the page of a service that the scrape started: %.300q", page)
	}
	if got := property(t, "ActiveState"); got != "active" {
		t.Errorf("the service is %s", got)
	}
	restarted := make(chan error, 1)
	go func() { restarted <- exec.Command("systemctl", "restart", service).Run() }()
	for range 20 {
		if page := get("/-/healthy"); page != "healthy\n" {
			t.Errorf("during a restart: %q", page)
		}
	}
	must(t, <-restarted)
}

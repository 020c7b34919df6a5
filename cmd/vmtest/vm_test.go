package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestCommandInVM(t *testing.T) {
	needsVM(t)
	dir := t.TempDir()
	t.Chdir(dir)
	got := vmtest(t, "--env", "A=b c", "--", "sh", "-c", `
		echo out; echo err >&2
		echo "dir $(pwd), A $A, path $PATH, user $(id -u), memory $(ulimit -l), files $(ulimit -n)"
		cat; echo "stdin has ended"
		echo lost >file; cat file; [ -c /dev/fuse ] && echo fuse
		sleep 1000 &
		head -c 3000000 /dev/zero | tr '\0' x
		exit 7`)
	if got.status != 7 {
		t.Errorf("exit status %d, want 7; stderr:\n%s", got.status, got.stderr)
	}
	if got.stderr != "err\n" {
		t.Errorf("stderr %q", got.stderr)
	}
	text, large := got.stdout[:max(0, len(got.stdout)-3000000)], got.stdout[max(0, len(got.stdout)-3000000):]
	wantLines(t, text, "out", "stdin has ended", "lost", "fuse",
		fmt.Sprintf("dir %s, A b c, path %s, user 0, memory unlimited, files 1048576", dir, os.Getenv("PATH")))
	if large != strings.Repeat("x", 3000000) {
		t.Errorf("of 3000000 bytes %d arrived", strings.Count(large, "x"))
	}
	if exists(filepath.Join(dir, "file")) {
		t.Error("the VM has changed the machine's files")
	}
}

func TestDevices(t *testing.T) {
	needsVM(t)
	if _, err := exec.LookPath("ib_write_bw"); err != nil {
		t.Fatal("needs the Debian package perftest")
	}
	// perftest ends at any trouble, a server that does not listen yet among it, and shows
	// a rate of 0 on a machine whose clock wavers: both sides try again until it has
	// worked once.
	out := inVM(t, `
		rdma -j link | tr -d '\n'; echo
		ls /dev/infiniband/uverbs2 /dev/infiniband/rdma_cm
		measure() { timeout 60 ib_write_bw -F -d rxe0 -x 1 -n 100 "$@" 2>&1; }
		until [ -e /tmp/done ]; do measure >/dev/null; done &
		for attempt in $(seq 100); do
			! measure 127.0.0.1 >/tmp/measured || ! grep -qE '^ 65536 +100 +[0-9.]+ +[1-9]' /tmp/measured || break
			echo "attempt $attempt: $(tail -n 1 /tmp/measured)" >&2; sleep 0.3
		done
		touch /tmp/done
		grep -A1 '#bytes' /tmp/measured || cat /tmp/measured`, "--devices", "3")
	var ports []struct{ Ifname, State string }
	if err := json.Unmarshal([]byte(out[:strings.IndexByte(out, '\n')]), &ports); err != nil {
		t.Fatalf("rdma link: %v in:\n%s", err, out)
	}
	if len(ports) != 3 {
		t.Errorf("%d ports, want 3", len(ports))
	}
	for i, port := range ports {
		if port.Ifname != fmt.Sprintf("rxe%d", i) || port.State != "ACTIVE" {
			t.Errorf("port %d: %+v", i, port)
		}
	}
	wantLines(t, out, "/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm")
	if !regexp.MustCompile(`(?m)^ 65536 +100 +[0-9.]+ +[1-9][0-9.]* `).MatchString(out) {
		t.Errorf("no bandwidth in:\n%s", out)
	}
}

func TestNoDevicesAndShare(t *testing.T) {
	needsVM(t)
	dir := t.TempDir()
	t.Chdir(dir)
	out := inVM(t, `
		[ -e /sys/class/infiniband ] || echo none
		modprobe ib_ipoib && ls -d /sys/module/ib_ipoib
		echo result >file && mkdir dir`, "--devices", "0", "--share", dir)
	wantLines(t, out, "none", "/sys/module/ib_ipoib")
	if text, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(text) != "result\n" {
		t.Errorf("shared file: %q, %v", text, err)
	}
	if !exists(filepath.Join(dir, "dir")) {
		t.Error("shared directory is missing")
	}
}

func TestForwardAndTermination(t *testing.T) {
	needsVM(t)
	port := freePort(t)
	cmd := command(t, "--forward", port+":8080", "--", "sh", "-c", `
		mkdir /tmp/www; echo hello >/tmp/www/index.html
		exec busybox httpd -f -p 8080 -h /tmp/www`)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	eventually(t, time.Minute, "answer of the VM's web server", func() bool {
		return fetch("http://127.0.0.1:"+port+"/") == "hello\n"
	})
	started := children(t, cmd.Process.Pid)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 143 {
		t.Errorf("exit status %d, want 143; stderr:\n%s", got, stderr.String())
	}
	wantGone(t, started)
}

// Not even SIGKILL leaves a QEMU behind.
func TestKilled(t *testing.T) {
	needsVM(t)
	cmd := command(t, "--", "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var started []string
	eventually(t, time.Minute, "start of QEMU", func() bool {
		started = children(t, cmd.Process.Pid)
		return len(started) > 0
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	wantGone(t, started)
}

func wantGone(t *testing.T, processes []string) {
	t.Helper()
	if len(processes) == 0 {
		t.Error("no process was found while vmtest ran")
	}
	for _, pid := range processes {
		eventually(t, 5*time.Second, "end of QEMU "+pid, func() bool { return !exists("/proc/" + pid) })
	}
}

func TestForwardPortInUse(t *testing.T) {
	needsVM(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	got := vmtest(t, "--forward", port, "--", "true")
	if got.status != exitTool || !strings.Contains(got.stderr, "Could not set up host forwarding rule") {
		t.Errorf("exit status %d, stderr:\n%s", got.status, got.stderr)
	}
}

func TestPanic(t *testing.T) {
	needsVM(t)
	log := filepath.Join(t.TempDir(), "console")
	got := vmtest(t, "--console-log", log, "--", "sh", "-c", "echo before; sleep 1; echo c >/proc/sysrq-trigger")
	if got.status != exitTool || got.stdout != "before\n" {
		t.Errorf("exit status %d, stdout %q", got.status, got.stdout)
	}
	first, _, _ := strings.Cut(got.stderr, "\n")
	if want := "vmtest: the VM ended before the command did: Kernel panic - not syncing: sysrq triggered crash"; first != want {
		t.Errorf("stderr starts with %q, want %q", first, want)
	}
	if !strings.Contains(got.stderr, "sysrq_handle_crash") {
		t.Errorf("no stack in:\n%s", got.stderr)
	}
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "Linux version") {
		t.Errorf("console log: %d bytes, %v", len(text), err)
	}
}

// TestBootPanic: a VM that breaks before the command began is booted again, twice.
func TestBootPanic(t *testing.T) {
	needsVM(t)
	got := vmtest(t, "--cmdline", "rdinit=/nothing", "--", "echo", "never")
	if got.status != exitTool || got.stdout != "" || strings.Count(got.stderr, "; booting once more\n") != 2 {
		t.Errorf("exit status %d, stdout %q, stderr:\n%s", got.status, got.stdout, got.stderr)
	}
	if n := strings.Count(got.stderr, "while the VM was booting: Kernel panic - not syncing: "); n != 3 {
		t.Errorf("%d panics in:\n%s", n, got.stderr)
	}
}

func TestTimeout(t *testing.T) {
	needsVM(t)
	got := vmtest(t, "--timeout", "2s", "--", "true")
	if got.status != exitTimeout || !strings.Contains(got.stderr, "timed out after 2s (see --timeout), while the VM was booting") {
		t.Errorf("exit status %d, stderr:\n%s", got.status, got.stderr)
	}
}

func TestBackportsKernel(t *testing.T) {
	needsVM(t)
	got := vmtest(t, "--kernel", "backports", "--module", "module/gdrtest_ib", "--module", "module/nvidia_peermem",
		"--", "sh", "-c", "uname -r; rdma link; rmmod gdrtest_ib nvidia_peermem")
	if strings.Contains(got.stderr, "-backports cannot be reached") {
		t.Skip("needs Debian's backports:", got.stderr)
	}
	if got.status != 0 || !strings.Contains(got.stdout, "+deb") {
		t.Errorf("exit status %d\n%s%s", got.status, got.stdout, got.stderr)
	}
	for _, device := range []string{"rxe0", "gdrtest0"} {
		if !regexp.MustCompile(`(?m)^link ` + device + `/1 .*state ACTIVE`).MatchString(got.stdout) {
			t.Errorf("%s is not active:\n%s", device, got.stdout)
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("not a TCP address")
	}
	return strconv.Itoa(address.Port)
}

// fetch returns a page, or the empty string.
func fetch(url string) string {
	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

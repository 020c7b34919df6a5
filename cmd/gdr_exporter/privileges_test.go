package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gdr_exporter/rdma/rdmatest"
)

// lostPrivilegeTest is an exporter that is started without something it could use.
type lostPrivilegeTest struct {
	// wrap is a shell command that takes the privilege away from "$@", which it runs;
	// DIR in it is an empty directory that everybody may read.
	wrap string
	args []string // likewise
	// says is what the log has to say; serves what the page has beside the ports of the
	// RDMA device, unless those are what is lost (blind).
	says   []string
	serves []string
	blind  bool
	// socket: the listening socket is handed over, since this machine's addresses
	// cannot be reached from where it runs.
	socket bool
}

var lostPrivilegeTests = map[string]lostPrivilegeTest{
	"nothing": {wrap: `exec "$@"`, says: []string{`msg="where the exporter runs"`}},
	"locked memory": {
		wrap: `ulimit -l 64; exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock "$@"`,
		says: []string{"RLIMIT_MEMLOCK is 65536 bytes, a run registers", "or give CAP_IPC_LOCK", "nothing is measured"},
	},
	"devices": {
		wrap: `mount -t tmpfs none /dev/infiniband 2>/dev/null; exec "$@"`,
		says: []string{"/dev/infiniband/uverbs0: no such file or directory", "nothing is measured"},
	},
	"kernel log": {
		wrap: `exec "$@"`, args: []string{"--path.kmsg=/nonexistent"},
		says: []string{"the kernel's log cannot be read"}, serves: []string{"gdr_kernel_log_readable 0"},
	},
	"network namespace": {
		wrap: `LISTEN_FDS=1 LISTEN_PID=$$ exec unshare --net "$@"`, args: []string{"--web.systemd-socket"}, socket: true,
		says: whereHostIsSeen(`missing="the host's network namespace"`, "no ethtool statistics"),
	},
	"sysfs": {
		wrap: `exec "$@"`, args: []string{"--path.sysfs=DIR"}, blind: true,
		says: []string{"--path.sysfs=", "is not mounted", "no RDMA devices"}, serves: []string{"gdr_rdma_class_present 0"},
	},
	"procfs": {
		wrap: `exec "$@"`, args: []string{"--path.procfs=DIR"},
		says: []string{"--path.procfs=", "is not mounted"},
	},
	"state directory": {
		wrap: `mount -t tmpfs -o ro none DIR && exec "$@"`, args: []string{"--state.dir=DIR"},
		says: []string{"results do not outlive the exporter", "read-only file system"},
	},
	"run directory": {
		wrap: `mount -t tmpfs -o ro none DIR && exec "$@"`, args: []string{"--control.socket=DIR/run/control.sock", "--probe.lock=DIR/run/probe.lock"},
		says: []string{"no control socket", "no writable DIR/run"},
	},
	"root": {
		wrap: `exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"`,
		says: []string{"as a user other than root"}, serves: []string{"gdr_kernel_log_readable [01]"},
	},
	"capabilities": {
		wrap: `exec setpriv --bounding-set=-all --inh-caps=-all "$@"`,
		says: []string{"as root without CAP_SYS_ADMIN (not privileged).\" capabilities=\n"},
	},
	"all of it": {
		wrap: `mount -t tmpfs -o ro none DIR && ulimit -l 64 && exec setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all "$@"`,
		args: []string{"--path.kmsg=/nonexistent", "--state.dir=DIR", "--control.socket=DIR/run/control.sock", "--probe.lock=DIR/run/probe.lock"},
		says: []string{"RLIMIT_MEMLOCK is", "results do not outlive", "no control socket", "no writable", "other than root", "kernel's log cannot be read"},
	},
}

// whereHostIsSeen is what is said where the namespaces of the host's first process may
// be looked at: elsewhere, as in a container, nobody can tell which is the host's.
func whereHostIsSeen(says ...string) []string {
	name, err := os.ReadFile("/proc/2/comm")
	if _, refused := os.Readlink("/proc/1/ns/net"); err != nil || string(name) != "kthreadd\n" || refused != nil {
		return nil
	}
	return says
}

// TestLostPrivileges starts the program with each privilege missing in turn: it
// starts, says what it lost, and serves the rest.
func TestLostPrivileges(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can take privileges away")
	}
	for _, tool := range []string{"setpriv", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: %v", tool, err)
		}
	}
	if output, err := exec.CommandContext(t.Context(), "unshare", "--mount", "--net", "true").CombinedOutput(); err != nil {
		t.Skipf("needs namespaces: %v: %s", err, output)
	}
	for name, test := range lostPrivilegeTests {
		t.Run(name, func(t *testing.T) { test.run(t) })
	}
}

func (p lostPrivilegeTest) run(t *testing.T) {
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0", PCIAddress: "0000:18:00.0"})
	root, dir := publicDir(t), publicDir(t)
	if err := tree.WriteTo(root); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(publicDir(t), "gdr_exporter")
	if err := os.Link(binary(t), program); err != nil {
		copyFile(t, binary(t), program)
	}
	r := &running{}
	arguments := []string{program, "--path.sysfs=" + root + "/sys", "--probe.interval=1h"}
	if !p.socket {
		r.addresses = []string{freePort(t)}
		arguments = append(arguments, "--web.listen-address="+r.addresses[0])
	}
	for _, arg := range p.args {
		if flag, _, _ := strings.Cut(arg, "="); flag == "--path.sysfs" {
			arguments = []string{program, "--web.listen-address=" + r.addresses[0]}
		}
		arguments = append(arguments, strings.ReplaceAll(arg, "DIR", dir))
	}
	command := exec.Command("unshare", append([]string{"--mount", "sh", "-c", strings.ReplaceAll(p.wrap, "DIR", dir), "sh"}, arguments...)...)
	if p.socket {
		r.addresses = []string{handOver(t, command)}
	}
	r.start(t, command)
	waitUntil(t, "the first snapshot", func() bool {
		answer, err := fetch(t.Context(), http.DefaultClient, r.url("/-/ready"))
		return err == nil && answer.code == http.StatusOK || r.hasExited()
	})
	if r.hasExited() {
		t.Fatalf("it does not start:\n%s", r.stderr)
	}
	for i, text := range p.says {
		p.says[i] = strings.ReplaceAll(text, "DIR", dir)
	}
	p.look(t, r)
}

// look compares what is said and served with what should be.
func (p lostPrivilegeTest) look(t *testing.T, r *running) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(r.stderr)
		}
	}()
	waitUntil(t, "the log says what is missing", func() bool {
		log := strings.ReplaceAll(r.stderr.String(), `\"`, `"`)
		for _, text := range p.says {
			if !strings.Contains(log, text) {
				return false
			}
		}
		return true
	})
	page := r.get(t, "/metrics")
	lines := append([]string{`gdr_scrape_collector_success\{collector="rdma"\} 1`, `gdr_exporter_build_info\{.*\} 1`}, p.serves...)
	if !p.blind {
		lines = append(lines, `gdr_rdma_port_state_id\{device="mlx5_0",port="1"\} 4`, `gdr_rdma_port_rcv_data_bytes_total\{device="mlx5_0",port="1"\} [0-9.e+]+`)
	}
	for _, line := range lines {
		if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(page.body) {
			t.Errorf("code %d, no line %s", page.code, line)
		}
	}
	if status := r.get(t, "/"); status.code != http.StatusOK {
		t.Errorf("status page: code %d", status.code)
	}
}

// publicDir is an empty directory that every user may enter and, if root has not
// mounted anything there, read.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := emptyDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o755); err != nil {
		t.Fatal(err)
	}
}

// handOver gives a command a listening socket as systemd does, and returns its address.
func handOver(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	command.ExtraFiles = []*os.File{file}
	return fmt.Sprint(listener.Addr())
}

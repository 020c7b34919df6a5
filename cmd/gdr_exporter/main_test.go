package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/rdma/rdmatest"
)

// patient bounds everything that these tests wait for.
const patient = 20 * time.Second

func TestMain(m *testing.M) {
	// A program that looks for data races sleeps a second before it exits.
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	code := m.Run()
	if program.dir != "" {
		_ = os.RemoveAll(program.dir)
	}
	os.Exit(code)
}

// program is the real binary, built when the first test asks for it: tests in
// the virtual machine share this package and have no Go there.
var program struct {
	once      sync.Once
	dir, path string
	err       error
}

func binary(t *testing.T) string {
	t.Helper()
	program.once.Do(func() {
		if program.dir, program.err = os.MkdirTemp("", "gdr_exporter"); program.err != nil {
			return
		}
		program.path = filepath.Join(program.dir, "gdr_exporter")
		args := []string{"build", "-o", program.path}
		if raceBuild() {
			args = append(args, "-race")
		}
		if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
			program.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return program.path
}

// raceBuild reports whether the tests look for data races; then the program
// does too, and a report on its stderr fails the test.
func raceBuild() bool {
	info, _ := debug.ReadBuildInfo()
	for _, setting := range info.Settings {
		if setting.Key == "-race" && setting.Value == "true" {
			return true
		}
	}
	return false
}

// output is what a process has written so far. It writes to a file, not through
// a pipe: what it wrote before it answered a request is then here too.
type output struct{ file *os.File }

func newOutput(t *testing.T) *output {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return &output{file}
}

func (o *output) String() string {
	text, err := os.ReadFile(o.file.Name())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (o *output) lines() []string {
	var lines []string
	for s := bufio.NewScanner(strings.NewReader(o.String())); s.Scan(); {
		lines = append(lines, s.Text())
	}
	return lines
}

// result is how a short run of the program ended.
type result struct {
	code           int
	stdout, stderr string
}

// runBriefly runs the program, which should end by itself.
func runBriefly(t *testing.T, args ...string) result {
	t.Helper()
	program := binary(t) // the first one builds it, which takes its own time
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	return finish(t, exec.CommandContext(ctx, program, args...))
}

func finish(t *testing.T, command *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := command.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{command.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// wantMistake checks that the user was told in one line, which has all of parts.
func (r result) wantMistake(t *testing.T, parts ...string) {
	t.Helper()
	if r.code != exitUsage {
		t.Errorf("exit code %d", r.code)
	}
	if r.stdout != "" {
		t.Errorf("stdout: %q", r.stdout)
	}
	if strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "gdr_exporter: error: ") || !strings.HasSuffix(r.stderr, "\n") {
		t.Errorf("not one line: %q", r.stderr)
	}
	for _, part := range parts {
		if !strings.Contains(r.stderr, part) {
			t.Errorf("the line does not say %q: %q", part, r.stderr)
		}
	}
}

// running is the program while it serves.
type running struct {
	command        *exec.Cmd
	stdout, stderr *output
	addresses      []string // what it listens on
	exited         chan struct{}
}

var listeningOn = regexp.MustCompile(`Listening on.*address"?[=:]"?((?:[0-9.]+|\[[0-9a-f:]+\]):[0-9]+)`)

// serveTree starts the program on a tree, on a free port of the loopback
// address, and waits until it listens.
func serveTree(t *testing.T, root string, args ...string) *running {
	t.Helper()
	return serveWith(t, append([]string{"--web.listen-address=127.0.0.1:0", "--path.sysfs=" + filepath.Join(root, "sys")}, args...)...)
}

func serveWith(t *testing.T, args ...string) *running {
	t.Helper()
	return startRunning(t, exec.Command(binary(t), args...))
}

func startRunning(t *testing.T, command *exec.Cmd) *running {
	t.Helper()
	r := &running{}
	r.start(t, command)
	listeners := max(strings.Count(strings.Join(command.Args, " "), "--web.listen-address="), 1)
	waitUntil(t, "the program listens", func() bool {
		return strings.Count(r.stderr.String(), "TLS is") == listeners || r.hasExited()
	})
	for _, match := range listeningOn.FindAllStringSubmatch(r.stderr.String(), -1) {
		r.addresses = append(r.addresses, match[1])
	}
	if len(r.addresses) == 0 || r.hasExited() {
		t.Fatalf("the program does not listen: %s", r.stderr.String())
	}
	return r
}

// launch starts the program without waiting for it to say where it listens.
func (r *running) launch(t *testing.T, args ...string) {
	t.Helper()
	r.start(t, exec.Command(binary(t), args...))
}

// apart keeps the daemons of tests apart from each other and from the host: none
// measures, listens to gdr_exporter ctl or keeps a state that is not told to.
var apart = []string{"--probe.interval=0", "--control.socket=", "--state.dir="}

// setApart adds to a daemon's arguments what is missing of apart.
func setApart(args []string) []string {
	for _, arg := range apart {
		flag, _, _ := strings.Cut(arg, "=")
		if !slices.ContainsFunc(args, func(given string) bool { return strings.HasPrefix(given, flag+"=") }) {
			args = append(args, arg)
		}
	}
	return args
}

func (r *running) start(t *testing.T, command *exec.Cmd) {
	t.Helper()
	command.Args = setApart(command.Args)
	r.command, r.exited = command, make(chan struct{})
	r.stdout, r.stderr = newOutput(t), newOutput(t)
	command.Stdout, command.Stderr = r.stdout.file, r.stderr.file
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = command.Wait(); close(r.exited) }()
	t.Cleanup(func() { r.end(t) })
}

// freePort is a loopback address that nobody listens on just now.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func (r *running) hasExited() bool {
	select {
	case <-r.exited:
		return true
	default:
		return false
	}
}

// end stops the program if it still runs.
func (r *running) end(t *testing.T) {
	_ = r.command.Process.Kill()
	select {
	case <-r.exited:
	case <-time.After(patient):
		t.Error("the program does not die")
	}
	for _, trouble := range []string{"DATA RACE", "panic", "goroutine "} {
		if strings.Contains(r.stderr.String(), trouble) {
			t.Errorf("stderr has %q: %s", trouble, r.stderr.String())
		}
	}
	if out := r.stdout.String(); out != "" {
		t.Errorf("stdout: %q", out)
	}
}

// signal sends a signal and returns how long the program took to exit with 0.
func (r *running) signal(t *testing.T, signals ...os.Signal) time.Duration {
	t.Helper()
	sent := time.Now()
	for _, s := range signals {
		if err := r.command.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-r.exited:
	case <-time.After(patient):
		t.Fatalf("no exit after %v: %s", signals, r.stderr.String())
	}
	took := time.Since(sent)
	if code := r.command.ProcessState.ExitCode(); code != exitOK {
		t.Errorf("exit code %d after %v: %s", code, signals, r.stderr.String())
	}
	return took
}

func (r *running) url(path string) string { return "http://" + r.addresses[0] + path }

// reply is an HTTP answer.
type reply struct {
	code   int
	header http.Header
	body   string
}

// get makes a request; header holds names and values in turn.
func (r *running) get(t *testing.T, path string, header ...string) reply {
	t.Helper()
	reply, err := fetch(t.Context(), http.DefaultClient, r.url(path), header...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func fetch(ctx context.Context, client *http.Client, url string, header ...string) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return reply{}, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, string(body)}, err
}

// waitUntil waits for a condition.
func waitUntil(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patient); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("waited in vain: %s", what)
}

// emptyDir is a new directory in memory.
func emptyDir(t *testing.T) string {
	t.Helper()
	dir, err := rdmatest.MkdirTemp()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// onDisk writes a tree and returns its root.
func onDisk(t *testing.T, tree *rdmatest.Tree) string {
	t.Helper()
	dir := emptyDir(t)
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// noRDMA is a host without an RDMA device class.
func noRDMA() *rdmatest.Tree { return rdmatest.New().Dir("sys/class/net") }

// faulty mounts a tree whose reads can be made to fail.
func faulty(t *testing.T, tree *rdmatest.Tree) (root string, fs *rdmatest.FaultFS) {
	t.Helper()
	if err := rdmatest.Supported(); err != nil {
		t.Skipf("reads that fail or hang need FUSE: %v", err)
	}
	root = emptyDir(t)
	fs, err := rdmatest.Mount(onDisk(t, tree), root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	return root, fs
}

// write makes a file in a new directory and returns its path.
func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// mistake is a command line that cannot work, and what its error must name.
type mistake struct {
	name string
	args []string
	says []string
}

// TestMistakes makes every mistake we could think of with the real program.
func TestMistakes(t *testing.T) {
	for _, m := range slices.Concat(flagMistakes(), scheduleMistakes(), fileMistakes(t), lifecycleMistakes(t)) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			args := m.args
			if !strings.Contains(strings.Join(args, " "), "listen-address") {
				args = append([]string{"--web.listen-address=127.0.0.1:0"}, args...)
			}
			r := runBriefly(t, args...)
			r.wantMistake(t, m.says...)
			t.Log(strings.TrimSpace(r.stderr))
		})
	}
}

func flagMistakes() []mistake {
	return []mistake{
		{"unknown flag", []string{"--nosuch"}, []string{"--nosuch"}},
		{"unknown short flag", []string{"-x"}, []string{"-x"}},
		{"unknown collector", []string{"--collector.nosuch"}, []string{"--collector.nosuch"}},
		{"unknown command", []string{"frobnicate"}, []string{"frobnicate", "command"}},
		{"argument", []string{"serve", "now"}, []string{`unexpected argument "now"`}},
		{"help on nothing", []string{"help", "nosuch"}, []string{"nosuch"}},
		{"value missing at the end", []string{"--rdma.role"}, []string{"--rdma.role", "expected argument"}},
		{"value missing before a flag", []string{"--web.listen-address", "--log.level=info"}, []string{"--web.listen-address", "expected argument"}},
		{"value for a switch", []string{"--collector.rdma=false"}, []string{"--collector.rdma=false", "--no-collector.rdma"}},
		{"twice", []string{"--log.level=info", "--log.level=warn"}, []string{"log.level", "repeated"}},
		{"bad include", []string{"--rdma.device-include=["}, []string{"--rdma.device-include=[", "missing closing ]: `[`"}},
		{"bad exclude", []string{"--rdma.device-exclude=a)(b"}, []string{"--rdma.device-exclude=a)(b", "unexpected )"}},
		{"bad role regexp", []string{"--rdma.role=(=compute"}, []string{"--rdma.role=(=compute", "missing closing )"}},
		{"unknown role", []string{"--rdma.role=mlx5_0=fast"}, []string{"--rdma.role=mlx5_0=fast", `"fast"`, "compute, storage, management, unused"}},
		{"role without =", []string{"--rdma.role=mlx5_0"}, []string{"--rdma.role=mlx5_0", "REGEXP=ROLE"}},
		{"role without regexp", []string{"--rdma.role==compute"}, []string{"--rdma.role==compute", "REGEXP=ROLE"}},
		{"no port", []string{"--web.listen-address=localhost"}, []string{"--web.listen-address=localhost", "missing port"}},
		{"empty port", []string{"--web.listen-address=127.0.0.1:"}, []string{"--web.listen-address=127.0.0.1:", "missing port"}},
		{"empty address", []string{"--web.listen-address="}, []string{"--web.listen-address=", "missing port"}},
		{"unknown host", []string{"--web.listen-address=no.such.host.invalid:1"}, []string{"--web.listen-address=no.such.host.invalid:1"}},
		{"port too large", []string{"--web.listen-address=127.0.0.1:99999"}, []string{"--web.listen-address=127.0.0.1:99999", "invalid port"}},
		{"port of letters", []string{"--web.listen-address=127.0.0.1:http9"}, []string{"--web.listen-address=127.0.0.1:http9", "unknown port"}},
		{"vsock without port", []string{"--web.listen-address=vsock://"}, []string{"--web.listen-address=vsock://", "port"}},
		{"no socket from systemd", []string{"--web.systemd-socket"}, []string{"--web.systemd-socket", ".socket unit"}},
		{"no telemetry path", []string{"--web.telemetry-path="}, []string{"--web.telemetry-path=", "must begin with /"}},
		{"telemetry path without slash", []string{"--web.telemetry-path=metrics"}, []string{"--web.telemetry-path=metrics", "must begin with /"}},
		{"telemetry path with method", []string{"--web.telemetry-path=GET /x"}, []string{"--web.telemetry-path=GET /x", "must begin with /"}},
		{"telemetry path at root", []string{"--web.telemetry-path=/"}, []string{"--web.telemetry-path=/", "taken"}},
		{"telemetry path at healthy", []string{"--web.telemetry-path=/-/healthy"}, []string{"--web.telemetry-path=/-/healthy", "taken"}},
		{"telemetry path in the API", []string{"--web.telemetry-path=/api/v1/status"}, []string{"--web.telemetry-path=/api/v1/status", "taken"}},
		{"telemetry path with blank", []string{"--web.telemetry-path=/a b"}, []string{"--web.telemetry-path=/a b", "plain path"}},
		{"telemetry path with brace", []string{"--web.telemetry-path=/{"}, []string{"--web.telemetry-path=/{", "plain path"}},
		{"telemetry path with end pattern", []string{"--web.telemetry-path=/{$}"}, []string{"--web.telemetry-path=/{$}", "plain path"}},
		{"telemetry path of a tree", []string{"--web.telemetry-path=/metrics/"}, []string{"--web.telemetry-path=/metrics/", "plain path"}},
		{"telemetry path with newline", []string{"--web.telemetry-path=/a\nb"}, []string{"--web.telemetry-path=/a b", "plain path"}},
		{"duration without unit", []string{"--scrape.deadline=5"}, []string{"--scrape.deadline=5", "missing unit"}},
		{"no duration", []string{"--scrape.max-age=soon"}, []string{"--scrape.max-age=soon", "invalid duration"}},
		{"deadline 0", []string{"--scrape.deadline=0s"}, []string{"--scrape.deadline=0s", "above 0"}},
		{"negative deadline", []string{"--scrape.deadline=-1s"}, []string{"--scrape.deadline=-1s", "above 0"}},
		{"negative age", []string{"--scrape.max-age=-1s"}, []string{"--scrape.max-age=-1s", "below 0"}},
		{"negative slow interval", []string{"--scrape.slow-interval=-1s"}, []string{"--scrape.slow-interval=-1s", "below 0"}},
		{"negative requests", []string{"--web.max-requests=-1"}, []string{"--web.max-requests=-1", "below 0"}},
		{"no number", []string{"--web.max-requests=many"}, []string{"--web.max-requests=many", "not a number"}},
		{"log level", []string{"--log.level=loud"}, []string{"--log.level=loud", "debug,info,warn,error"}},
		{"log format", []string{"--log.format=xml"}, []string{"--log.format=xml", "logfmt,json"}},
	}
}

func scheduleMistakes() []mistake {
	mistakes := []mistake{}
	for _, m := range []struct{ arg, says string }{
		{"--probe.interval=-1h", "from 0s"},
		{"--probe.interval=1ms", "at least 1s"},
		{"--probe.interval=hourly", "invalid duration"},
		{"--probe.first-within=-1s", "from 0s"},
		{"--probe.register-interval=0s", "from 1s"},
		{"--probe.busy=always", "off,register,full"},
		{"--probe.busy-interval=0s", "from 1s"},
		{"--probe.staged-interval=-1h", "from 0s"},
		{"--probe.max-age=0s", "from 1s"},
		{"--probe.max-age=2000000h", "from 1s"},
		{"--probe.timeout=1ms", "from 100ms"},
		{"--probe.buffer=0B", "from 1MiB"},
		{"--probe.buffer=8GiB", "to 4GiB"},
		{"--probe.buffer=64", "units"},
		{"--probe.bytes=1KiB", "from 1MiB"},
		{"--probe.min-free=-1MiB", "from 0"},
		{"--probe.bytes-per-hour=-1MiB", "from 0"},
		{"--probe.queue-pairs=0", "from 1 to 64"},
		{"--probe.queue-pairs=65", "from 1 to 64"},
		{"--probe.runs-per-hour=-1", "below 0"},
		{"--probe.limit=0", "above 0"},
		{"--probe.limit=1.5", "at most 1"},
		{"--probe.limit=NaN", "above 0"},
		{"--probe.limit-far=-0.1", "above 0"},
		{"--probe.isolation=container", "in-process,process"},
		{"--probe.pkey=0x12345", "not a number"},
		{"--probe.gid-index=-2", "or -1"},
		{"--probe.pairs=", "must be nearest"},
		{"--probe.pairs=far", "GPU/DEVICE"},
		{"--probe.pairs=0000:1b:00.0", "GPU/DEVICE"},
		{"--probe.pairs=1b:00.0/mlx5_0", "no PCI address"},
		{"--probe.pairs=0000:1b:00.8/mlx5_0", "no PCI address"},
		{"--probe.pairs=0000:1b:00.0/", "no name"},
		{"--probe.pairs=0000:1b:00.0/mlx5_0:0", "no port"},
		{"--probe.pairs=0000:1b:00.0/mlx5_0:x", "no port"},
		{"--probe.pairs=0000:1b:00.0/mlx5_0:256", "no port"},
		{"--probe.pairs=0000:1b:00.0/mlx5_0,", "GPU/DEVICE"},
		{"--probe.pairs=0000:1b:00.0/mlx5_0,0000:1B:00.0/mlx5_0", "twice"},
		{"--probe.pairs=0000:1b:00.0/mlx5_0,00000000:1B:00.0/mlx5_0:2", "twice"},
	} {
		mistakes = append(mistakes, mistake{m.arg, []string{m.arg}, []string{m.arg, m.says}})
	}
	return append(mistakes, mistake{
		"no room for messages", []string{"--probe.buffer=1MiB"}, []string{"--probe.buffer=1MiB", "4 queue pairs"},
	}, mistake{
		"too few bytes", []string{"--probe.bytes=15MiB"}, []string{"--probe.bytes=15MiB", "4 queue pairs", "4 slices"},
	}, mistake{
		"no run fits", []string{"--probe.bytes-per-hour=1199MiB"}, []string{"--probe.bytes-per-hour=1GiB175MiB", "at least", "up to 1GiB176MiB", "0B for no limit"},
	}, mistake{
		"no run fits any more", []string{"--probe.bytes=16GiB"}, []string{"--probe.bytes-per-hour=64GiB", "up to 80GiB560MiB with --probe.bytes=16GiB"},
	}, mistake{
		"results that go too early", []string{"--probe.max-age=1h"}, []string{"--probe.interval=1h", "below", "--probe.max-age=1h"},
	})
}

func fileMistakes(t *testing.T) []mistake {
	config := func(content string) string { return write(t, "web.yml", content) }
	junk := write(t, "junk.pem", "junk")
	file := write(t, "file", "")
	mistakes := []mistake{
		{"web config missing", []string{"--web.config.file=/no/such.yml"}, []string{"--web.config.file=/no/such.yml: no such file"}},
		{"web config a directory", []string{"--web.config.file=" + t.TempDir()}, []string{"--web.config.file=", "is a directory"}},
		{"web config bad YAML", []string{"--web.config.file=" + config("a: [")}, []string{"--web.config.file=", "yaml"}},
		{"web config unknown key", []string{"--web.config.file=" + config("nosuch: 1\nother: 2")}, []string{"--web.config.file=", "nosuch", "other"}},
		{"web config no certificate", []string{"--web.config.file=" + config("tls_server_config: {cert_file: /no/cert, key_file: /no/key}")}, []string{"--web.config.file=", "/no/cert"}},
		{
			"web config bad certificate",
			[]string{"--web.config.file=" + config(fmt.Sprintf("tls_server_config: {cert_file: %s, key_file: %s}", junk, junk))},
			[]string{"--web.config.file=", "PEM"},
		},
		{"web config password in clear", []string{"--web.config.file=" + config("basic_auth_users: {me: secret}")}, []string{"--web.config.file=", "bcrypt"}},
	}
	for _, flag := range []string{"--path.sysfs", "--path.procfs"} {
		mistakes = append(mistakes,
			mistake{flag + " missing", []string{flag + "=/no/such"}, []string{flag + "=/no/such: no such file"}},
			mistake{flag + " a file", []string{flag + "=" + file}, []string{flag + "=" + file + ": not a directory"}},
			mistake{flag + " empty", []string{flag + "="}, []string{flag + "=: no such file"}},
		)
	}
	return mistakes
}

// TestNoPermission runs as nobody, since root may read everything.
func TestNoPermission(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	dir := emptyDir(t)
	copied := filepath.Join(dir, "gdr_exporter")
	closed := filepath.Join(dir, "closed")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(closed, 0o700), copyProgram(binary(t), copied)); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--path.sysfs", "--path.procfs"} {
		command := exec.CommandContext(t.Context(), copied, "--web.listen-address=127.0.0.1:0", flag+"="+closed)
		command.SysProcAttr, command.Dir = nobody, "/"
		finish(t, command).wantMistake(t, flag+"="+closed+": permission denied")
	}
}

func copyProgram(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

func TestPortInUse(t *testing.T) {
	root := onDisk(t, noRDMA())
	first := serveTree(t, root)
	taken := "--web.listen-address=" + first.addresses[0]
	runBriefly(t, taken).wantMistake(t, taken, "address already in use")
	runBriefly(t, "--web.listen-address=127.0.0.1:0", taken).wantMistake(t, taken, "address already in use")
	if code := first.get(t, "/-/healthy").code; code != http.StatusOK {
		t.Errorf("the first one answers %d", code)
	}
}

// TestInterruptedTree: a command that a signal ends while it looks at how the
// host is wired says that it was ended, not that the host hangs.
func TestInterruptedTree(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for command, want := range map[string]struct {
		code   int
		stderr string
	}{
		"topo":  {exitFailure, "gdr_exporter: interrupted\n"},
		"probe": {exitProbeNotJudged, ""},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(ctx, []string{command}, &stdout, &stderr); code != want.code || stdout.Len() > 0 || stderr.String() != want.stderr {
			t.Errorf("%s: code %d, stdout %q, stderr %q", command, code, stdout.String(), stderr.String())
		}
	}
}

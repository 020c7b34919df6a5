package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"
)

// patience bounds every wait for something that will come: without hardware
// virtualisation the machine is slow, and slower yet beside other work.
const patience = 60 * time.Second

// fresh makes each scrape read everything anew.
var fresh = []string{"--scrape.max-age=0s", "--scrape.slow-interval=0s"}

// inKernel skips a test that belongs into the virtual machine.
func inKernel(t *testing.T) {
	t.Helper()
	if os.Getenv(inKernelEnv) != "1" {
		t.Skip("runs in the virtual machine that TestKernel boots")
	}
}

// vmExporter is a running gdr_exporter.
type vmExporter struct {
	address string // of its listener
	client  *http.Client
	process *os.Process
	log     *lockedBuffer
	ended   chan struct{} // closed once the process is gone
	state   *os.ProcessState
}

// vmLaunch says how the exporter is started.
type vmLaunch struct {
	args  []string
	netns string // name of a network namespace, "" for the tests' own
	user  uint32 // 0: root
}

// start starts the exporter and waits until it listens. It ends with the test,
// and its log is shown if the test has failed.
func (l vmLaunch) start(t *testing.T) *vmExporter {
	t.Helper()
	e := &vmExporter{address: freeAddress(t), log: &lockedBuffer{}, ended: make(chan struct{})}
	e.client = e.newClient(l.netns)
	command := append([]string{os.Getenv(binaryEnv), "--web.listen-address=" + e.address}, l.args...)
	if l.netns != "" {
		command = append([]string{"ip", "netns", "exec", l.netns}, command...)
	}
	cmd := exec.Command(command[0], setApart(command[1:])...)
	cmd.Stderr = e.log
	if l.user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: l.user, Gid: l.user}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e.process = cmd.Process
	go func() {
		_ = cmd.Wait()
		e.state = cmd.ProcessState
		close(e.ended)
	}()
	t.Cleanup(func() { e.end(t) })
	within(t, patience, "the exporter answers", func() bool {
		status, _, err := e.get("/-/healthy")
		return err == nil && status == http.StatusOK || e.gone()
	})
	if e.gone() {
		t.Fatal("the exporter has ended: ", e.state)
	}
	return e
}

// startFresh starts an exporter that reads everything anew at each scrape.
func startFresh(t *testing.T, args ...string) *vmExporter {
	t.Helper()
	return vmLaunch{args: append(args, fresh...)}.start(t)
}

// startSysfs is startFresh for an exporter that reads nothing but sysfs.
func startSysfs(t *testing.T, args ...string) *vmExporter {
	t.Helper()
	return startFresh(t, append(args, "--no-rdma.netlink", "--no-rdma.ethtool")...)
}

func (e *vmExporter) gone() bool {
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

// end stops the exporter, as every test does at last.
func (e *vmExporter) end(t *testing.T) {
	if !e.gone() {
		_ = e.process.Signal(syscall.SIGTERM)
	}
	select {
	case <-e.ended:
		if code := e.state.ExitCode(); code != 0 {
			t.Errorf("the exporter ended with %v", e.state)
		}
	case <-time.After(patience):
		t.Error("the exporter does not end")
		_ = e.process.Kill()
	}
	if t.Failed() {
		t.Logf("the exporter's log:\n%s", e.log)
	}
}

// newClient returns a client that makes a connection for each request, from
// within the network namespace if one is named.
func (e *vmExporter) newClient(netns string) *http.Client {
	transport := &http.Transport{DisableKeepAlives: true}
	if netns != "" {
		transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialIn(ctx, netns, network, address)
		}
	}
	return &http.Client{Transport: transport, Timeout: patience}
}

// dialIn dials from within a network namespace. A socket stays in the namespace
// it was made in; the thread that went there is not used again, since it is
// never unlocked: it ends with the goroutine, which is the dial's own.
func dialIn(ctx context.Context, netns, network, address string) (net.Conn, error) {
	type dialled struct {
		conn net.Conn
		err  error
	}
	result := make(chan dialled)
	go func() {
		runtime.LockOSThread()
		conn, err := dialHere(ctx, netns, network, address)
		result <- dialled{conn, err}
	}()
	r := <-result
	return r.conn, r.err
}

func dialHere(ctx context.Context, netns, network, address string) (net.Conn, error) {
	namespace, err := os.Open(filepath.Join("/run/netns", netns))
	if err != nil {
		return nil, err
	}
	defer func() { _ = namespace.Close() }()
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("setns: %w", err)
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

// get fetches a path and returns status and body.
func (e *vmExporter) get(path string) (int, []byte, error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+e.address+path, nil)
	if err != nil {
		return 0, nil, err
	}
	response, err := e.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// scrape returns the page, which must be whole and well formed.
func (e *vmExporter) scrape(t *testing.T) series {
	t.Helper()
	page, err := e.tryScrape()
	if err != nil {
		t.Fatal("scrape: ", err)
	}
	return page
}

// tryScrape asks for one collector: which others there are is no matter here.
func (e *vmExporter) tryScrape() (series, error) {
	status, body, err := e.get("/metrics?collect[]=rdma")
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("status %d: %s", status, body)
	}
	return parsePage(body)
}

// openFiles counts the process's descriptors.
func (e *vmExporter) openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", e.process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// wantQuietLog expects nothing in the log at level warn or above, but for what is
// told at start of a tree that a test has put in the place of sysfs or procfs.
func (e *vmExporter) wantQuietLog(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(e.log.String()) {
		if strings.Contains(line, `msg="a privilege is missing; the rest is served" missing="--path.`) {
			continue
		}
		if strings.Contains(line, "level=warn") || strings.Contains(line, "level=error") {
			t.Errorf("logged: %s", line)
		}
	}
}

// wantLogged expects a number of log lines that have all the given parts.
func (e *vmExporter) wantLogged(t *testing.T, times int, parts ...string) {
	t.Helper()
	if n := e.logged(parts...); n != times {
		t.Errorf("%d log lines with %q, want %d; the log:\n%s", n, parts, times, e.log)
	}
}

func (e *vmExporter) logged(parts ...string) int {
	n := 0
	for line := range strings.Lines(e.log.String()) {
		found := true
		for _, part := range parts {
			found = found && strings.Contains(line, part)
		}
		if found {
			n++
		}
	}
	return n
}

// series are samples by their name with labels, in the form of the text format
// with sorted labels.
type series map[string]float64

// parsePage reads a page in the text format, strictly.
func parsePage(body []byte) (series, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	page := series{}
	for name, family := range families {
		for _, metric := range family.Metric {
			var value float64
			switch {
			case metric.Gauge != nil:
				value = metric.Gauge.GetValue()
			case metric.Counter != nil:
				value = metric.Counter.GetValue()
			default:
				continue // the Go runtime's summary
			}
			key := seriesKey(name, metric.Label)
			if _, found := page[key]; found {
				return nil, fmt.Errorf("twice on the page: %s", key)
			}
			page[key] = value
		}
	}
	return page, nil
}

func seriesKey(name string, labels []*dto.LabelPair) string {
	pairs := make([]string, 0, 2*len(labels))
	for _, label := range labels {
		pairs = append(pairs, label.GetName(), label.GetValue())
	}
	return named(name, pairs...)
}

// named writes a series' name, of label names and values in turn.
func named(name string, namesAndValues ...string) string {
	var labels []string
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		labels = append(labels, fmt.Sprintf("%s=%q", namesAndValues[i], namesAndValues[i+1]))
	}
	sort.Strings(labels)
	return name + "{" + strings.Join(labels, ",") + "}"
}

// isAbout reports whether a series has the label device of that name.
func isAbout(key, device string) bool { return strings.Contains(key, fmt.Sprintf("device=%q", device)) }

// about returns the series of one device.
func (s series) about(device string) series {
	some := series{}
	for key, value := range s {
		if isAbout(key, device) {
			some[key] = value
		}
	}
	return some
}

// family returns the series of that metric name.
func (s series) family(name string) series {
	some := series{}
	for key, value := range s {
		if strings.HasPrefix(key, name+"{") {
			some[key] = value
		}
	}
	return some
}

// want expects a sample.
func (s series) want(t *testing.T, key string, value float64) {
	t.Helper()
	got, found := s[key]
	if !found {
		t.Errorf("no series %s", key)
	} else if got != value {
		t.Errorf("%s is %v, want %v", key, got, value)
	}
}

// wantNone expects no series of a family.
func (s series) wantNone(t *testing.T, family string) {
	t.Helper()
	for key, value := range s.family(family) {
		t.Errorf("unexpected: %s %v", key, value)
	}
}

// readErrorOf names a count of gdr_read_errors_total.
func readErrorOf(device, port, source, errno string) string {
	return named("gdr_read_errors_total", "collector", "rdma", "device", device, "port", port, "source", source, "errno", errno)
}

// lockedBuffer is a buffer that may be read while it is written to.
type lockedBuffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

// within polls until ok or the limit.
func within(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// freeAddress returns a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// sh runs a program that must succeed and returns what it wrote.
func sh(t *testing.T, name string, args ...string) string {
	t.Helper()
	output, err := exec.Command(name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(output)
}

// anyValue stands for a sample whose value no other source knows.
var anyValue = math.NaN()

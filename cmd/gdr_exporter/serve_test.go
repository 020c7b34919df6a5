package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
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

	"gdr_exporter/rdma/rdmatest"
)

// prompt is how quick an end must be in one of some tries: a busy machine stalls now and
// then, a program that waits for what it must not does so each time.
const prompt = 2 * time.Second

// promptPage is the same of pages that must be there within a second.
const promptPage = 1500 * time.Millisecond

// anew makes every scrape read everything.
var anew = []string{"--scrape.max-age=0s", "--scrape.slow-interval=0s"}

// twoDevices is a node with a device that tests make sick and a healthy one.
func twoDevices() (tree *rdmatest.Tree, sick, healthy rdmatest.Device) {
	tree = rdmatest.New()
	sick = tree.MLX5IB(rdmatest.Options{Name: "mlx5_0", PCIAddress: "0000:18:00.0"})
	healthy = tree.MLX5IB(rdmatest.Options{Name: "mlx5_1", PCIAddress: "0000:3b:00.0", Ordinal: 1})
	return tree, sick, healthy
}

// hangingTree is a node whose first device hangs for ever, in a way that can be
// killed: one of its files is a FIFO that nobody writes.
func hangingTree(t *testing.T) (root string, healthy rdmatest.Device) {
	t.Helper()
	tree, sick, healthy := twoDevices()
	tree.Remove(sick.File(1, "state"))
	root = onDisk(t, tree)
	if err := syscall.Mkfifo(filepath.Join(root, sick.File(1, "state")), 0o600); err != nil {
		t.Fatal(err)
	}
	return root, healthy
}

// has reports whether a page has a sample of that value.
func (r reply) has(sample string) bool { return strings.Contains("\n"+r.body, "\n"+sample+"\n") }

// ofDevice counts a device's samples.
func (r reply) ofDevice(name string) int {
	return len(regexp.MustCompile(`(?m)^gdr_rdma_.*device="`+regexp.QuoteMeta(name)+`"`).FindAllString(r.body, -1))
}

func TestNodeWithoutRDMA(t *testing.T) {
	r := serveTree(t, onDisk(t, noRDMA()))
	page := r.get(t, "/metrics")
	if page.code != http.StatusOK || !page.has(`gdr_scrape_collector_success{collector="rdma"} 1`) ||
		!page.has("gdr_rdma_class_present 0") || !page.has("gdr_rdma_devices 0") {
		t.Errorf("code %d, page %s", page.code, page.body)
	}
	landing := r.get(t, "/")
	if landing.code != http.StatusOK || !strings.Contains(landing.body, "No RDMA device class") {
		t.Errorf("code %d, landing page %s", landing.code, landing.body)
	}
}

func TestPaths(t *testing.T) {
	r := serveTree(t, onDisk(t, rdmatest.Node8()), "--web.telemetry-path=/my/metrics")
	for path, want := range map[string]int{
		"/": 200, "/my/metrics": 200, "/-/healthy": 200,
		"/metrics": 404, "/my": 404, "/my/metrics/": 404, "/nosuch": 404, "/-/": 404, "/-/quit": 404, "/index.html": 404, "/debug/pprof/": 404,
	} {
		if got := r.get(t, path); got.code != want {
			t.Errorf("%s: code %d, want %d", path, got.code, want)
		}
	}
	if landing := r.get(t, "/"); !strings.Contains(landing.body, `href="/my/metrics"`) {
		t.Error("the landing page does not link to the metrics")
	}
}

func TestMethods(t *testing.T) {
	r := serveTree(t, onDisk(t, noRDMA()))
	for _, path := range []string{"/", "/metrics", "/-/healthy", "/-/ready"} {
		for method, want := range map[string]int{http.MethodHead: 200, http.MethodPost: 405, http.MethodPut: 405, http.MethodDelete: 405, http.MethodTrace: 405} {
			request, err := http.NewRequestWithContext(t.Context(), method, r.url(path), strings.NewReader(""))
			if err != nil {
				t.Fatal(err)
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if response.StatusCode != want || err != nil {
				t.Errorf("%s %s: code %d, error %v", method, path, response.StatusCode, err)
			}
			if method == http.MethodHead && (len(body) > 0 || response.Header.Get("Content-Type") == "") {
				t.Errorf("HEAD %s: %d bytes of type %q", path, len(body), response.Header.Get("Content-Type"))
			}
		}
	}
}

func TestTwoAddresses(t *testing.T) {
	args := []string{"--web.listen-address=127.0.0.1:0", "--web.listen-address=127.0.0.1:0"}
	if listener, err := net.Listen("tcp", "[::1]:0"); err == nil {
		_ = listener.Close()
		args = append(args, "--web.listen-address=[::1]:0")
	}
	r := serveWith(t, append(args, "--path.sysfs="+onDisk(t, noRDMA())+"/sys")...)
	if len(r.addresses) != len(args) {
		t.Fatalf("listens on %v", r.addresses)
	}
	for _, address := range r.addresses {
		reply, err := fetch(t.Context(), http.DefaultClient, "http://"+address+"/metrics")
		if err != nil || reply.code != http.StatusOK {
			t.Errorf("%s: code %d, error %v", address, reply.code, err)
		}
	}
	r.signal(t, syscall.SIGTERM)
	for _, address := range r.addresses {
		if !refused(address) {
			t.Errorf("%s still takes connections", address)
		}
	}
}

// refused reports whether nothing listens on a loopback address.
func refused(address string) bool {
	connection, err := net.DialTimeout("tcp", address, time.Second)
	if err == nil {
		_ = connection.Close()
	}
	return err != nil
}

// bcryptOfSecret is the password "secret", at the lowest cost.
const bcryptOfSecret = "$2a$04$s1VIN4GIuJBERWlojQNereQ8kZX3WcGvKSCDAaIqNieyV14B5KX8C"

func TestTLSAndPassword(t *testing.T) {
	cert, key, pool := certificate(t)
	config := write(t, "web.yml", fmt.Sprintf("tls_server_config: {cert_file: %s, key_file: %s}\nbasic_auth_users: {me: %s}\n", cert, key, bcryptOfSecret))
	r := serveWith(t, "--web.listen-address=127.0.0.1:0", "--web.listen-address=127.0.0.1:0", "--web.config.file="+config,
		"--path.sysfs="+onDisk(t, noRDMA())+"/sys")
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for _, address := range r.addresses {
		for _, path := range []string{"/metrics", "/", "/-/healthy"} {
			for user, want := range map[string]int{"me:secret": 200, "me:wrong": 401, "you:secret": 401, "": 401} {
				url := strings.TrimSuffix("https://"+user+"@"+address+path, "@")
				if user == "" {
					url = "https://" + address + path
				}
				if got, err := fetch(t.Context(), client, url); err != nil || got.code != want {
					t.Errorf("%s: code %d, error %v, want %d", url, got.code, err, want)
				}
			}
		}
		if got, err := fetch(t.Context(), http.DefaultClient, "http://"+address+"/metrics"); err == nil && got.code == http.StatusOK {
			t.Error("metrics without TLS")
		}
	}
	r.signal(t, syscall.SIGTERM)
}

// certificate makes a self-signed certificate for the loopback address.
func certificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(public)
	return write(t, "cert.pem", string(public)), write(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))), pool
}

// TestReady: not ready before the first Snapshot has ended, ready after it even
// though a device hangs; healthy all the time.
func TestReady(t *testing.T) {
	var took, deadline time.Duration
	for range 3 {
		if took, deadline = becomesReady(t); took <= deadline+prompt {
			return
		}
	}
	t.Errorf("ready after %v with a deadline of %v", took, deadline)
}

// becomesReady starts the program beside a device that hangs, and returns how long it was
// not ready.
func becomesReady(t *testing.T) (took, deadline time.Duration) {
	t.Helper()
	root, healthy := hangingTree(t)
	r, deadline := notReady(t, root)
	began := time.Now()
	waitUntil(t, "ready", func() bool {
		if got := r.get(t, "/-/healthy"); got.code != http.StatusOK {
			t.Errorf("healthy: %d", got.code)
		}
		return r.get(t, "/-/ready").code == http.StatusOK
	})
	took = time.Since(began)
	page, _ := r.beside(t, healthy)
	if page.ofDevice(healthy.Name) < 70 || !page.has(`gdr_device_read_stuck{collector="rdma",device="mlx5_0"} 1`) {
		t.Error("the healthy device is missing, or the sick one is not reported")
	}
	return took, deadline
}

// notReady starts the program on a tree with a device that hangs and asks it before
// its first Snapshot has ended, which a busy machine may be too late for: then that
// gets longer.
func notReady(t *testing.T, root string) (r *running, deadline time.Duration) {
	t.Helper()
	for _, deadline = range []time.Duration{time.Second, 4 * time.Second, 12 * time.Second} {
		r = serveTree(t, root, "--scrape.deadline="+deadline.String())
		got := r.get(t, "/-/ready")
		if got.code == http.StatusServiceUnavailable && strings.Contains(got.body, "first snapshot") {
			return r, deadline
		}
		t.Logf("with a deadline of %v: %d %q", deadline, got.code, got.body)
	}
	t.Fatal("ready before the first Snapshot")
	return nil, 0
}

// beside asks for the page beside a device that hangs, until the healthy one is on it and
// it was quick: a busy machine may not have read that by the deadline. It returns how long
// the last page took.
func (r *running) beside(t *testing.T, healthy rdmatest.Device, header ...string) (page reply, took time.Duration) {
	t.Helper()
	for range 5 {
		began := time.Now()
		page = r.get(t, "/metrics", header...)
		if took = time.Since(began); took <= promptPage && page.ofDevice(healthy.Name) > 0 {
			break
		}
	}
	return page, took
}

// TestTimeoutHeader: a scrape ends in time for Prometheus, whatever hangs.
func TestTimeoutHeader(t *testing.T) {
	root, healthy := hangingTree(t)
	r := serveTree(t, root, append(anew, "--scrape.deadline=15s")...)
	for range 2 {
		page, took := r.beside(t, healthy, "X-Prometheus-Scrape-Timeout-Seconds", "1.0")
		if took > promptPage {
			t.Errorf("the page took %v", took)
		}
		if page.code != http.StatusOK || page.ofDevice(healthy.Name) < 70 || !page.has(`gdr_device_read_stuck{collector="rdma",device="mlx5_0"} 1`) {
			t.Errorf("code %d, %d samples of the healthy device", page.code, page.ofDevice(healthy.Name))
		}
	}
}

// scrapeDuring starts a scrape and returns where its reply will be.
func (r *running) scrapeDuring(t *testing.T, path string) <-chan reply {
	t.Helper()
	done := make(chan reply, 1)
	go func() {
		got, err := fetch(context.WithoutCancel(t.Context()), &http.Client{Transport: &http.Transport{}}, r.url(path))
		if err != nil {
			got.body = err.Error()
		}
		done <- got
	}()
	return done
}

func await(t *testing.T, from <-chan reply) reply {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(patient):
		t.Fatal("no reply")
		return reply{}
	}
}

// TestStopFinishesScrape: a scrape that is running at SIGTERM is served whole.
func TestStopFinishesScrape(t *testing.T) {
	for name, signals := range map[string][]os.Signal{
		"SIGTERM": {syscall.SIGTERM}, "SIGINT": {syscall.SIGINT}, "twice": {syscall.SIGTERM, syscall.SIGTERM, syscall.SIGINT},
	} {
		t.Run(name, func(t *testing.T) {
			var trouble string
			var took time.Duration
			for range 5 {
				// On a busy machine the read may take longer than the scrape's grace.
				trouble, took = stopDuringScrape(t, signals)
				if fine := trouble == ""; fine && took <= prompt || !fine && took < stopGrace {
					break
				}
			}
			if trouble != "" || took > prompt {
				t.Errorf("stopped after %v: %s", took, trouble)
			}
		})
	}
}

// stopDuringScrape stops the program while a scrape waits for a slow device. It
// returns what is wrong with the page, and how long the stop took.
func stopDuringScrape(t *testing.T, signals []os.Signal) (trouble string, took time.Duration) {
	t.Helper()
	tree, _, healthy := twoDevices()
	slow := tree.SIW(rdmatest.Options{}) // has few files: the delay is all there is to wait for
	root, fs := faulty(t, tree)
	r := serveTree(t, root, "--scrape.max-age=0s")
	waitUntil(t, "ready", func() bool { return r.get(t, "/-/ready").code == http.StatusOK })
	before := r.get(t, "/metrics")
	fs.ResetCounts()
	fs.Set(slow.File(1, "state"), rdmatest.Rule{Delay: 300 * time.Millisecond})
	scrape := r.scrapeDuring(t, "/metrics")
	waitUntil(t, "the slow read has begun", func() bool { return fs.Reads(slow.File(1, "state")) > 0 })
	took = r.signal(t, signals...)
	page := await(t, scrape)
	for _, device := range []string{slow.Name, healthy.Name} {
		if got, want := page.ofDevice(device), before.ofDevice(device); page.code != http.StatusOK || got != want || got == 0 {
			trouble += fmt.Sprintf("code %d, %d of %d samples of %s; ", page.code, got, want, device)
		}
	}
	return trouble, took
}

// TestStopWhileReadHangs: a read that never returns but can be killed holds
// neither scrapes nor the exit.
func TestStopWhileReadHangs(t *testing.T) {
	for _, path := range []string{"/metrics", "/"} {
		var trouble string
		// A busy machine may not be in the midst of the scrape so soon.
		for _, after := range []time.Duration{200 * time.Millisecond, time.Second, 5 * time.Second} {
			if trouble = stopWhileReadHangs(t, path, after); trouble == "" {
				break
			}
			t.Logf("%s: stopped after %v: %s", path, after, trouble)
		}
		if trouble != "" {
			t.Errorf("%s: %s", path, trouble)
		}
	}
}

// stopWhileReadHangs stops the program a time after a scrape began, and returns what
// is wrong with the page and with the end.
func stopWhileReadHangs(t *testing.T, path string, after time.Duration) (trouble string) {
	t.Helper()
	root, healthy := hangingTree(t)
	r := serveTree(t, root, "--scrape.deadline=1m")
	scrape := r.scrapeDuring(t, path)
	time.Sleep(after)
	stopping := time.Now()
	if err := r.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the listener is closed", func() bool { return refused(r.addresses[0]) })
	if exited := r.hasExited(); exited && time.Since(stopping) < stopGrace {
		trouble = "exited before the running scrape had its grace; "
	}
	r.signal(t)
	if took := time.Since(stopping); took > prompt {
		trouble += fmt.Sprintf("stopped after %v; ", took)
	}
	if page := await(t, scrape); page.code != http.StatusOK || (path == "/metrics" && page.ofDevice(healthy.Name) < 70) {
		trouble += fmt.Sprintf("code %d, %d samples of the healthy device; ", page.code, page.ofDevice(healthy.Name))
	}
	if log := r.stderr.String(); strings.Contains(log, "level=error") || strings.Contains(log, "did not end in time") {
		trouble += "log: " + log
	}
	return trouble
}

// TestStopWhileKernelSleeps: where the process cannot die before the read
// returns, the listener is closed at once all the same. A signal waits for the
// first thread, so that must not be the one that hangs.
func TestStopWhileKernelSleeps(t *testing.T) {
	var closed time.Duration
	for range 3 {
		if closed = stopWhileKernelSleeps(t); closed <= prompt/2 {
			return
		}
	}
	t.Errorf("the listener closed after %v", closed)
}

// stopWhileKernelSleeps returns how long the listener stayed open.
func stopWhileKernelSleeps(t *testing.T) (closed time.Duration) {
	t.Helper()
	tree, sick, _ := twoDevices()
	root, fs := faulty(t, tree)
	fs.Set(sick.File(1, "state"), rdmatest.Rule{Hang: true})
	r := serveTree(t, root, "--scrape.deadline=1s")
	waitUntil(t, "the read hangs", func() bool { return fs.Hanging() > 0 })
	began := time.Now()
	if err := r.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the listener is closed", func() bool { return refused(r.addresses[0]) })
	closed = time.Since(began)
	waitUntil(t, "stopped", func() bool { return strings.Contains(r.stderr.String(), "stopped") })
	fs.ClearAll()
	r.signal(t)
	return closed
}

// activated starts the program with an open socket, as systemd does.
func activated(t *testing.T, args ...string) (*running, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close(); _ = listener.Close() }()
	args = append([]string{"-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" "$@"`, binary(t), "--web.systemd-socket"}, args...)
	command := exec.Command("sh", args...)
	command.ExtraFiles = []*os.File{file}
	return startRunning(t, command), listener.Addr().String()
}

func TestSocketActivation(t *testing.T) {
	r, address := activated(t, "--path.sysfs="+onDisk(t, noRDMA())+"/sys")
	if r.addresses[0] != address {
		t.Errorf("listens on %v, systemd on %s", r.addresses, address)
	}
	if code := r.get(t, "/metrics").code; code != http.StatusOK {
		t.Errorf("code %d", code)
	}
	r.signal(t, syscall.SIGTERM)
}

// TestSystemdSocketActivate has systemd's own tool open the socket.
func TestSystemdSocketActivate(t *testing.T) {
	tool, err := exec.LookPath("systemd-socket-activate")
	if err != nil {
		t.Skip("no systemd-socket-activate")
	}
	address := freePort(t)
	command := exec.Command(tool, "-l", address, binary(t), "--web.systemd-socket", "--path.sysfs="+onDisk(t, noRDMA())+"/sys")
	log := newOutput(t)
	command.Stdout, command.Stderr = log.file, log.file
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = command.Process.Kill(); _ = command.Wait() }()
	waitUntil(t, "systemd listens", func() bool { return strings.Contains(log.String(), "Listening on") })
	// The first connection starts the program and is served by it.
	got, err := fetch(t.Context(), http.DefaultClient, "http://"+address+"/metrics")
	if err != nil || got.code != http.StatusOK || !got.has("gdr_rdma_class_present 0") {
		t.Errorf("code %d, error %v: %s", got.code, err, log.String())
	}
}

// TestManyRequests is the bound on concurrent scrapes.
func TestManyRequests(t *testing.T) {
	tree, sick, _ := twoDevices()
	root, fs := faulty(t, tree)
	r := serveTree(t, root, append(anew, "--web.max-requests=1")...)
	waitUntil(t, "ready", func() bool { return r.get(t, "/-/ready").code == http.StatusOK })
	fs.Set(sick.File(1, "state"), rdmatest.Rule{Hang: true})
	defer fs.ClearAll()
	first := r.scrapeDuring(t, "/metrics")
	waitUntil(t, "the read hangs", func() bool { return fs.Hanging() > 0 })
	if got := r.get(t, "/metrics"); got.code != http.StatusServiceUnavailable || !strings.Contains(got.body, "more than 1 scrape") {
		t.Errorf("a second scrape: %d %q", got.code, got.body)
	}
	if got := r.get(t, "/-/healthy"); got.code != http.StatusOK {
		t.Errorf("healthy: %d", got.code)
	}
	fs.ClearAll()
	if got := await(t, first); got.code != http.StatusOK {
		t.Errorf("the first scrape: %d", got.code)
	}
	if got := r.get(t, "/metrics"); got.code != http.StatusOK {
		t.Errorf("a scrape after it: %d", got.code)
	}
}

// TestConcurrentScrapesShareOneRead counts what the kernel is asked.
func TestConcurrentScrapesShareOneRead(t *testing.T) {
	tree, slow, healthy := twoDevices()
	root, fs := faulty(t, tree)
	r := serveTree(t, root, anew...)
	waitUntil(t, "ready", func() bool { return r.get(t, "/-/ready").code == http.StatusOK })
	fs.ResetCounts()
	fs.Set(slow.File(1, "state"), rdmatest.Rule{Delay: 500 * time.Millisecond})
	var scrapes []<-chan reply
	for range 10 {
		scrapes = append(scrapes, r.scrapeDuring(t, "/metrics"))
	}
	for _, scrape := range scrapes {
		if page := await(t, scrape); page.code != http.StatusOK || page.ofDevice(slow.Name) < 70 {
			t.Errorf("code %d, %d samples", page.code, page.ofDevice(slow.Name))
		}
	}
	for _, file := range []string{slow.File(1, "state"), healthy.File(1, "state")} {
		if n := fs.Reads(file); n != 1 {
			t.Errorf("10 scrapes read %s %d times", file, n)
		}
	}
}

// TestMaxAge: a Snapshot serves the scrapes that follow closely, unless told not to.
func TestMaxAge(t *testing.T) {
	for age, want := range map[string]int{"1m": 0, "0s": 5} {
		tree, _, device := twoDevices()
		root, fs := faulty(t, tree)
		r := serveTree(t, root, "--scrape.max-age="+age)
		waitUntil(t, "ready", func() bool { return r.get(t, "/-/ready").code == http.StatusOK })
		fs.ResetCounts()
		for range 5 {
			r.get(t, "/metrics")
		}
		if n := fs.Reads(device.File(1, "state")); n != want {
			t.Errorf("--scrape.max-age=%s: %s reads for 5 scrapes, want %d", age, strconv.Itoa(n), want)
		}
	}
}

// Slow devices are read at the same time, though the daemon runs on one
// processor: a read that waits in the kernel gives it up.
func TestDevicesAreReadAtTheSameTime(t *testing.T) {
	tree := rdmatest.Node8()
	root, fs := faulty(t, tree)
	const delay = 400 * time.Millisecond
	for i := range 8 {
		fs.Set(fmt.Sprintf("sys/class/infiniband/mlx5_%d/ports/1/counters/port_rcv_data", i), rdmatest.Rule{Delay: delay})
	}
	r := serveTree(t, root, "--scrape.max-age=0s")
	r.get(t, "/metrics")
	var took time.Duration
	var n int
	for range 5 { // the machine may stall, for longer than a scrape waits too
		started := time.Now()
		page := r.get(t, "/metrics")
		took, n = time.Since(started), strings.Count(page.body, "\ngdr_rdma_port_rcv_data_bytes_total{")
		if n == 8 && took >= delay && took <= 6*delay {
			break
		}
	}
	if n != 8 {
		t.Errorf("%d of 8 devices on the page", n)
	}
	if took < delay || took > 6*delay {
		t.Errorf("8 devices that take %v each were read in %v", delay, took)
	}
	t.Logf("8 devices that take %v each were read in %v", delay, took)
}

package chart

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
)

// patience is how long a slow machine may take for one step.
const patience = 2 * time.Minute

// exporter builds the real program, once.
var exporter = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "gdr_exporter")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "gdr_exporter")
	out, err := exec.Command("go", "build", "-C", "../..", "-o", path, "./cmd/gdr_exporter").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building the exporter: %w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built {
		if path, err := exporter(); err == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
	}
	os.Exit(code)
}

// built is whether a test asked for the program.
var built bool

// program is the exporter's path.
func program(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"go", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the exporter cannot be built: %v", err)
		}
	}
	built = true
	path, err := exporter()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestExporterTakesArguments starts the real exporter with the arguments, the
// configuration and the probes of each DaemonSet. What is in the container by
// a mount is here in a folder of the test's.
func TestExporterTakesArguments(t *testing.T) {
	path := program(t)
	eachCase(t, func(t *testing.T, _, values string) {
		objects, _ := render(t, values)
		pod := daemonSet(t, objects).Spec.Template.Spec
		root := t.TempDir()
		secret := site(t, root, objects)
		args := hostArgs(pod.Containers[0].Args, root)
		if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--kubernetes.pod-resources=") }) && !accepts(t, path, "--kubernetes.pod-resources") {
			t.Skip("this version of the exporter has no --kubernetes.pod-resources")
		}
		byHand(t, path, args)
		running := start(t, path, append(args, "--state.dir="+filepath.Join(root, "state"), "--control.socket="+filepath.Join(root, "control.sock")))
		for _, probe := range []*core.Probe{pod.Containers[0].LivenessProbe, pod.Containers[0].ReadinessProbe} {
			running.succeeds(t, probe)
		}
		if secret { // of ci/secure-values.yaml
			if page := running.page(t, "/metrics"); !strings.Contains(page, "Unauthorized") {
				t.Errorf("without a password: %.300s", page)
			}
			running.user, running.password = "prometheus", "example"
		}
		if page := running.page(t, "/metrics"); !strings.Contains(page, "gdr_exporter_build_info") {
			t.Errorf("metrics: %.300s", page)
		}
		if slices.Contains(args, "--peer.enabled") {
			running.peers(t, args)
		}
	})
}

// peers: sessions are on, with the nodes that the values name.
func (d *daemon) peers(t *testing.T, args []string) {
	t.Helper()
	want := 0 // the Service's name means nothing here
	if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--peer.targets=") }) {
		want = 3 // of ci/peer-targets-values.yaml
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		var status struct{ List struct{ Targets int } }
		page := d.page(t, "/api/v1/peers")
		if err := json.Unmarshal([]byte(page), &status); err != nil {
			t.Fatalf("%v: %.300s", err, page)
		}
		if status.List.Targets == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d targets, want %d: %.300s", status.List.Targets, want, page)
		}
	}
}

// byHand runs the command that the notes name, with the flags that they name.
// What it says of this machine does not matter: 64 is a mistake in the flags.
func byHand(t *testing.T, path string, args []string) {
	t.Helper()
	command := []string{"check", "--timeout=5s"}
	for _, arg := range args {
		if strings.HasPrefix(arg, "--path.") {
			command = append(command, arg)
		}
	}
	out, err := exec.Command(path, command...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() >= 64) {
		t.Errorf("%q: %v: %s", command, err, out)
	}
}

// TestExporterWithoutPrivileges starts the exporter as mode metrics-only does,
// in a folder that belongs to root: its own user keeps what it learns, another
// one does without; both serve.
func TestExporterWithoutPrivileges(t *testing.T) {
	path := program(t)
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Geteuid() != 0 {
		t.Skipf("needs root and setpriv: %v", err)
	}
	objects, _ := render(t, "mode: metrics-only")
	container := daemonSet(t, objects).Spec.Template.Spec.Containers[0]
	for user, keeps := range map[int64]bool{*container.SecurityContext.RunAsUser: true, 65532: false} {
		t.Run(fmt.Sprint(user), func(t *testing.T) {
			root, err := os.MkdirTemp("", "gdr") // t.TempDir would be closed to another user
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(root) })
			open(t, root, filepath.Dir(path))
			state, run := filepath.Join(root, "state"), filepath.Join(root, "run")
			for _, dir := range []string{state, run} {
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			drop := []string{"--reuid=" + fmt.Sprint(user), "--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", path}
			running := start(t, setpriv, append(append(drop, hostArgs(container.Args, root)...), "--state.dir="+state, "--control.socket="+run+"/control.sock"))
			running.succeeds(t, container.ReadinessProbe)
			if page := running.page(t, "/metrics"); !strings.Contains(page, "gdr_exporter_build_info") {
				t.Errorf("metrics: %.300s", page)
			}
			if _, err := os.Stat(run + "/control.sock"); (err == nil) != keeps {
				t.Errorf("control socket: %v", err)
			}
			if keeps {
				eventually(t, "something is kept in "+state, func() bool { return holds(t, state) })
			} else if holds(t, state) {
				t.Error("a folder of root's was written to")
			}
		})
	}
}

// holds reports whether there is anything in a folder.
func holds(t *testing.T, dir string) bool {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(files) > 0
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// open lets any user into folders.
func open(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// site puts there what the chart's objects, and the site's own Secrets, put
// into the container. It reports whether a password is asked for.
func site(t *testing.T, root string, objects []any) bool {
	t.Helper()
	// As in ci/existing-secret-values.yaml.
	config := "tls_server_config: {cert_file: /etc/gdr_exporter/tls/tls.crt, key_file: /etc/gdr_exporter/tls/tls.key}\n"
	for _, secret := range of[*core.Secret](objects) {
		config = string(secret.Data["web.yml"])
	}
	put(t, filepath.Join(root, "etc/gdr_exporter/web/web.yml"), strings.ReplaceAll(config, "/etc/", root+"/etc/"))
	certificate, key := selfSigned(t)
	put(t, filepath.Join(root, "etc/gdr_exporter/tls/tls.crt"), certificate)
	put(t, filepath.Join(root, "etc/gdr_exporter/tls/tls.key"), key)
	for _, config := range of[*core.ConfigMap](objects) {
		if text, is := config.Data["profile.yaml"]; is {
			put(t, filepath.Join(root, "etc/gdr_exporter/profile/profile.yaml"), text)
		}
		if text, is := config.Data["nodes.yml"]; is {
			put(t, filepath.Join(root, "etc/gdr_exporter/peer-targets/nodes.yml"), text)
		}
	}
	peerSite(t, root, objects, certificate, key)
	for i := range 3 {
		if err := os.MkdirAll(filepath.Join(root, "host/driver", fmt.Sprint(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return strings.Contains(config, "basic_auth_users")
}

// peerSite is what sessions between nodes read: the chart's configuration, or that
// of the site's own ConfigMap as in ci/peer-targets-values.yaml.
func peerSite(t *testing.T, root string, objects []any, certificate, key string) {
	t.Helper()
	config, folder := "{cert_file: ../node-tls/tls.crt, key_file: ../node-tls/tls.key, ca_file: ../node-tls/ca.crt, allowed_names: ['*.gpu.example.org']}", "node-tls"
	for _, object := range of[*core.ConfigMap](objects) {
		if text, is := object.Data["peer.yml"]; is {
			config, folder = strings.ReplaceAll(text, "/etc/", root+"/etc/"), "peer-tls"
		}
	}
	put(t, filepath.Join(root, "etc/gdr_exporter/peer/peer.yml"), config)
	for name, text := range map[string]string{"tls.crt": certificate, "tls.key": key, "ca.crt": certificate} {
		put(t, filepath.Join(root, "etc/gdr_exporter", folder, name), text)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

var port = regexp.MustCompile(`:\d+$`)

// hostArgs are the container's arguments outside of one: its mounts of the
// node's folders are these folders, and its port is any that is free.
func hostArgs(args []string, root string) []string {
	var here []string
	for _, arg := range args {
		arg = strings.ReplaceAll(strings.ReplaceAll(arg, "$(HOST_IP)", "127.0.0.1"), "$(NODE_NAME)", "node1.gpu.example.org")
		flag, value, _ := strings.Cut(arg, "=")
		switch {
		case flag == "--web.listen-address" || flag == "--peer.listen-address":
			arg = port.ReplaceAllString(arg, ":0")
		case value == "/host/sys" || value == "/host/proc":
			arg = flag + "=" + strings.TrimPrefix(value, "/host")
		case strings.HasPrefix(value, "/host/") || strings.HasPrefix(value, "/etc/") || strings.HasPrefix(value, "/var/lib/kubelet/"):
			arg = flag + "=" + root + value
		}
		here = append(here, arg)
	}
	return here
}

// accepts reports whether the exporter has a flag.
func accepts(t *testing.T, path, flag string) bool {
	t.Helper()
	out, err := exec.Command(path, "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.Contains(string(out), flag)
}

// daemon is a running exporter.
type daemon struct {
	address        string
	client         *http.Client
	user, password string
}

var listening = regexp.MustCompile(`[Ll]istening.*address"?[=:]"?([^" ]+:\d+)`)

// start returns when the exporter listens; it ends with the test.
func start(t *testing.T, path string, args []string) *daemon {
	t.Helper()
	command := exec.Command(path, args...)
	stderr, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	found, ended := make(chan string, 1), make(chan struct{})
	var log strings.Builder
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			fmt.Fprintln(&log, lines.Text())
			if match := listening.FindStringSubmatch(lines.Text()); match != nil {
				select {
				case found <- match[1]:
				default:
				}
			}
		}
		_, _ = io.Copy(io.Discard, stderr)
	}()
	t.Cleanup(func() {
		_ = command.Process.Signal(os.Interrupt)
		<-ended
		if err := command.Wait(); err != nil {
			t.Errorf("the exporter ended with %v:\n%s", err, log.String())
		}
	})
	d := &daemon{client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: patience}}
	select {
	case d.address = <-found:
	case <-ended:
		t.Fatalf("args %q:\n%s", args, log.String())
	case <-time.After(patience):
		_ = command.Process.Kill()
		t.Fatalf("args %q: does not listen", args)
	}
	return d
}

// succeeds asks what the kubelet would ask, until the answer is good.
func (d *daemon) succeeds(t *testing.T, probe *core.Probe) {
	t.Helper()
	eventually(t, "the kubelet's probe succeeds", func() bool { return d.probe(t.Context(), probe) == nil })
}

func (d *daemon) probe(ctx context.Context, probe *core.Probe) error {
	if probe.HTTPGet == nil {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", d.address)
		if err == nil {
			_ = connection.Close()
		}
		return err
	}
	scheme := strings.ToLower(string(probe.HTTPGet.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	answer, err := d.client.Get(scheme + "://" + d.address + probe.HTTPGet.Path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", probe.HTTPGet.Path, answer.Status)
	}
	return nil
}

// page gets a page over whichever of HTTP and HTTPS is spoken.
func (d *daemon) page(t *testing.T, path string) string {
	t.Helper()
	for _, scheme := range []string{"https", "http"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+d.address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d.user != "" {
			request.SetBasicAuth(d.user, d.password)
		}
		answer, err := d.client.Do(request)
		if err != nil {
			continue
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	t.Fatalf("%s is served neither by HTTPS nor by HTTP", path)
	return ""
}

func selfSigned(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{"gdr-exporter"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyBytes, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyBytes}))
}

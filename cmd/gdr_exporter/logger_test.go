package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"gdr_exporter/rdma/rdmatest"
)

// logLine is a log line's fields.
type logLine map[string]string

// parseLog parses every line; one that cannot be parsed fails the test.
func (r *running) parseLog(t *testing.T, format string) []logLine {
	t.Helper()
	var all []logLine
	for _, text := range r.stderr.lines() {
		line, err := parseLogfmt(text)
		if format == "json" {
			line, err = parseJSON(text)
		}
		if err != nil || line["ts"] == "" || line["level"] == "" || line["msg"] == "" {
			t.Errorf("line %q: %v, error %v", text, line, err)
		}
		if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
			t.Errorf("line %q would upset a terminal", text)
		}
		all = append(all, line)
	}
	return all
}

func parseJSON(text string) (logLine, error) {
	var raw map[string]any
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return nil, err
	}
	line := logLine{}
	for key, value := range raw {
		line[key] = fmt.Sprint(value)
	}
	return line, nil
}

// parseLogfmt parses key=value pairs; a value with blanks is quoted.
func parseLogfmt(text string) (logLine, error) {
	line := logLine{}
	for text != "" {
		key, rest, found := strings.Cut(text, "=")
		if _, double := line[key]; !found || key == "" || strings.ContainsAny(key, "\" ") || double {
			return nil, fmt.Errorf("bad key %q", key)
		}
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return nil, err
			}
			if line[key], err = strconv.Unquote(quoted); err != nil {
				return nil, err
			}
			rest = rest[len(quoted):]
			if rest != "" && rest[0] != ' ' {
				return nil, errors.New("no blank after a quoted value")
			}
			text = strings.TrimPrefix(rest, " ")
			continue
		}
		line[key], text, _ = strings.Cut(rest, " ")
	}
	return line, nil
}

// TestNoNoise: a node without RDMA and a healthy one log how they start and
// stop, and nothing else, however often they are scraped.
func TestNoNoise(t *testing.T) {
	for _, format := range []string{"logfmt", "json"} {
		for _, tree := range []*rdmatest.Tree{noRDMA(), rdmatest.Node8()} {
			r := serveTree(t, onDisk(t, tree), append(anew, "--log.format="+format)...)
			waitUntil(t, "ready", func() bool { return r.get(t, "/-/ready").code == http.StatusOK })
			for range 10 {
				r.get(t, "/metrics")
				r.get(t, "/")
			}
			r.signal(t, syscall.SIGTERM)
			allowed := map[string]int{"started": 1, "Listening on": 1, "TLS is disabled.": 1, "devices found": 1, "first snapshot taken": 1, "where the exporter runs": 1, "stopping": 1, "stopped": 1,
				// A tree on disk is no kernel; without devices it is not worth a word.
				"RDMA netlink does not answer; everything is read from sysfs": min(len(tree.List("sys/class/infiniband")), 1)}
			for _, line := range r.parseLog(t, format) {
				if allowed[line["msg"]]--; allowed[line["msg"]] < 0 || line["level"] != "info" {
					t.Errorf("logged: %v", line)
				}
			}
		}
	}
}

// TestSickFileIsLoggedOnce: the log names device, port, source and errno, once.
func TestSickFileIsLoggedOnce(t *testing.T) {
	for _, format := range []string{"logfmt", "json"} {
		tree, sick, _ := twoDevices()
		root, fs := faulty(t, tree)
		fs.Set(sick.File(1, "counters/link_downed"), rdmatest.Rule{Errno: syscall.EIO})
		r := serveTree(t, root, append(anew, "--log.format="+format)...)
		for range 20 {
			if page := r.get(t, "/metrics"); page.ofDevice("mlx5_1") < 70 {
				t.Fatal("the healthy device is missing")
			}
		}
		page := r.get(t, "/metrics")
		if !strings.Contains(page.body, `gdr_read_errors_total{collector="rdma",device="mlx5_0",errno="EIO",port="1",source="counters/link_downed"} 2`) {
			t.Error("the error is not counted at each scrape")
		}
		warnings := 0
		for _, line := range r.parseLog(t, format) {
			if line["level"] == "info" {
				continue
			}
			warnings++
			want := logLine{"level": "warn", "collector": "rdma", "device": "mlx5_0", "port": "1", "source": "counters/link_downed", "errno": "EIO"}
			for key, value := range want {
				if line[key] != value {
					t.Errorf("%s is %q in %v, want %q", key, line[key], line, value)
				}
			}
		}
		if warnings != 1 {
			t.Errorf("%d warnings: %s", warnings, r.stderr.String())
		}
	}
}

// TestChangesAreLogged: a device that vanishes and comes back, once each.
func TestChangesAreLogged(t *testing.T) {
	tree, _, gone := twoDevices()
	root := onDisk(t, tree)
	r := serveTree(t, root, anew...)
	r.get(t, "/metrics")
	link := filepath.Join(root, "sys/class/infiniband", gone.Name)
	target, err := os.Readlink(link)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	r.get(t, "/metrics")
	r.get(t, "/metrics")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	r.get(t, "/metrics")
	r.get(t, "/metrics")
	var told []string
	for _, line := range r.parseLog(t, "logfmt") {
		if line["device"] == gone.Name {
			told = append(told, line["level"]+" "+line["msg"])
		}
	}
	if want := []string{"info device vanished", "info device appeared"}; !slices.Equal(told, want) {
		t.Errorf("logged %q, want %q", told, want)
	}
}

func TestLogLevels(t *testing.T) {
	tree, sick, _ := twoDevices()
	root, fs := faulty(t, tree)
	fs.Set(sick.File(1, "counters/link_downed"), rdmatest.Rule{Errno: syscall.EIO})
	for level, want := range map[string]string{"error": "", "warn": "cannot read"} {
		address := freePort(t)
		r := &running{addresses: []string{address}}
		r.launch(t, "--web.listen-address="+address, "--path.sysfs="+root+"/sys", "--log.level="+level)
		waitUntil(t, "it listens", func() bool { return !refused(address) })
		r.get(t, "/metrics")
		r.get(t, "/metrics")
		r.signal(t, syscall.SIGTERM)
		got := r.stderr.String()
		if (want == "") != (got == "") || !strings.Contains(got, want) || strings.Contains(got, "level=info") {
			t.Errorf("--log.level=%s: %q", level, got)
		}
	}
}

// hostile is what no name or text of a device should be.
const hostile = "e\"v=il \\ \n</td><script>alert(1)</script>\t\x1b[31m\xff ,{}'`\u202e\u2028"

// TestHostileTexts: whatever a device calls itself, the log stays a log, the
// metrics stay metrics and the landing page runs nothing.
func TestHostileTexts(t *testing.T) {
	for _, format := range []string{"logfmt", "json"} {
		tree := rdmatest.New()
		// A name cannot have a slash.
		device := tree.MLX5RoCE(rdmatest.Options{Name: strings.ReplaceAll(hostile, "/", "|")})
		for _, file := range []string{"fw_ver", "board_id", "hca_type", "node_type", "node_guid"} {
			tree.File(device.Dir+"/"+file, "1: "+hostile)
		}
		for _, file := range []string{"state", "link_layer", "rate", "counters/link_downed", "gid_attrs/types/0"} {
			tree.File(device.File(1, file), hostile)
		}
		tree.File(device.File(1, "counters/"+strings.ReplaceAll(hostile, "/", "|")), "7\n")
		root := onDisk(t, tree)
		r := serveTree(t, root, append(anew, "--log.format="+format)...)
		page := r.get(t, "/metrics")
		landing := r.get(t, "/")
		if err := os.Remove(filepath.Join(root, "sys/class/infiniband", device.Name)); err != nil {
			t.Fatal(err)
		}
		r.get(t, "/metrics")
		lines := r.parseLog(t, format)
		if len(lines) < 7 {
			t.Errorf("%d log lines: %s", len(lines), r.stderr.String())
		}
		wantPage(t, page)
		wantNoScript(t, landing)
	}
}

func wantPage(t *testing.T, page reply) {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page.body))
	if err != nil || page.code != http.StatusOK {
		t.Fatalf("code %d, %v: %s", page.code, err, page.body)
	}
	if info := families["gdr_rdma_device_info"]; info == nil || !strings.Contains(info.String(), `fw_ver`) && !strings.Contains(info.String(), "firmware") {
		t.Errorf("the device is missing: %v", info)
	}
}

func wantNoScript(t *testing.T, landing reply) {
	t.Helper()
	if landing.code != http.StatusOK || strings.Contains(landing.body, "<script") || !strings.Contains(landing.body, "&lt;script&gt;") {
		t.Errorf("code %d, landing page %s", landing.code, landing.body)
	}
	if !utf8.ValidString(landing.body) || strings.ContainsAny(landing.body, "\x1b\x00") {
		t.Errorf("the landing page has what is no text: %q", landing.body)
	}
}

// TestStuckIsLoggedOnce: a hanging device is told of once however often it is
// scraped, and so is its return; scrapes with a short timeout tell of nothing.
func TestStuckIsLoggedOnce(t *testing.T) {
	tree, sick, _ := twoDevices()
	root, fs := faulty(t, tree)
	r := serveTree(t, root, "--scrape.max-age=0s", "--scrape.deadline=2s")
	waitUntil(t, "ready", func() bool { return r.get(t, "/-/ready").code == http.StatusOK })
	fs.Set(sick.File(1, "state"), rdmatest.Rule{Delay: 300 * time.Millisecond})
	for range 3 {
		r.get(t, "/metrics", "X-Prometheus-Scrape-Timeout-Seconds", "0.2")
		r.get(t, "/metrics")
	}
	fs.Set(sick.File(1, "state"), rdmatest.Rule{Hang: true})
	for range 5 {
		r.get(t, "/metrics")
	}
	fs.ClearAll()
	waitUntil(t, "the device is back", func() bool { return r.get(t, "/metrics").ofDevice(sick.Name) > 70 })
	var warnings []string
	for _, line := range r.parseLog(t, "logfmt") {
		if line["level"] != "info" {
			warnings = append(warnings, line["device"]+": "+line["msg"])
		}
	}
	if len(warnings) != 2 || !strings.Contains(warnings[0], "mlx5_0: reading the device does not return") || !strings.Contains(warnings[1], "mlx5_0: the device answers again") {
		t.Errorf("logged: %q: %s", warnings, r.stderr.String())
	}
}

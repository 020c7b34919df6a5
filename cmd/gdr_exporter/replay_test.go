package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ownSeries matches the series that are not of the host: the exporter's own, the
// time that reading took, and the mark of a replay.
var ownSeries = regexp.MustCompile(`^(# .*|go_.*|process_.*|promhttp_.*|gdr_exporter_.*|gdr_replay_info.*|gdr_scrape_.*|gdr_device_read_duration_.*|gdr_[a-z_]*timestamp_seconds.*)$`)

// hostSeries are the series of the host on a page, with the values of labels that
// name a part taken out.
func hostSeries(page, root string) string {
	names := regexp.MustCompile(`(node_guid|sys_image_guid|port_guid|uuid)="[^"]+"`)
	var b strings.Builder
	for line := range strings.Lines(page) {
		if !ownSeries.MatchString(strings.TrimSpace(line)) {
			b.WriteString(names.ReplaceAllString(strings.ReplaceAll(line, root, ""), `$1="?"`))
		}
	}
	return b.String()
}

// metrics takes two scrapes, since what has just come is shown in the second one.
func metrics(t *testing.T, r *running) string {
	t.Helper()
	get(t, "http://"+r.addresses[0]+"/metrics")
	return get(t, "http://"+r.addresses[0]+"/metrics")
}

func get(t *testing.T, url string) string {
	t.Helper()
	answer, err := fetch(t.Context(), http.DefaultClient, url)
	if err != nil || answer.code != http.StatusOK {
		t.Fatalf("%s: code %d, %v", url, answer.code, err)
	}
	return answer.body
}

// TestReplayRoundTrip: a replayed capture's page is the host's, but for what is
// the exporter's own and for pseudonyms; and it says that it is a replay.
func TestReplayRoundTrip(t *testing.T) {
	t.Parallel()
	root, _ := captureHost(t)
	path := filepath.Join(emptyDir(t), "node.txt.gz")
	if r := runBriefly(t, captureArgs(root, "-o", path)...); r.code != exitOK {
		t.Fatalf("%+v", r)
	}
	common := []string{"--web.listen-address=127.0.0.1:0", "--scrape.max-age=0s", "--scrape.slow-interval=0s", "--no-rdma.netlink", "--no-collector.probe"}
	live := serveWith(t, append([]string{"--path.sysfs=" + root + "/sys", "--path.procfs=" + root + "/proc", "--path.driver-root=" + root, "--control.socket=", "--state.dir="}, common...)...)
	want := hostSeries(metrics(t, live), root)
	live.signal(t, syscall.SIGTERM)

	untouched := emptyDir(t)
	replayed := serveWith(t, append([]string{"--replay=" + path, "--control.socket=" + filepath.Join(untouched, "socket"), "--state.dir=" + filepath.Join(untouched, "state")}, common...)...)
	page := metrics(t, replayed)
	if got := hostSeries(page, root); got != want || strings.Count(got, "\n") < 100 {
		t.Errorf("the page differs: %s", pageDifference(want, got))
	}
	if !strings.Contains(page, `gdr_replay_info{name="node.txt.gz",recorded="2`) {
		t.Error("no gdr_replay_info")
	}
	if landing := get(t, "http://"+replayed.addresses[0]+"/"); !strings.Contains(landing, `<p class="replay"`) || !strings.Contains(landing, "(replay)</title>") || !strings.Contains(landing, "nothing here is of this host") {
		t.Error("the page is not marked")
	}
	if answer, err := fetch(t.Context(), http.DefaultClient, "http://"+replayed.addresses[0]+pathControl); err != nil || answer.code != http.StatusConflict {
		t.Errorf("control: code %d, %v", answer.code, err)
	}
	replayed.signal(t, syscall.SIGTERM)
	if files, err := os.ReadDir(untouched); err != nil || len(files) > 0 {
		t.Errorf("a replay has made %v, %v", files, err)
	}
}

// pageDifference is the first line in which two pages differ.
func pageDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return fmt.Sprintf("want %s, got %s", a[i], strings.Join(b[min(i, len(b)):min(i+1, len(b))], ""))
		}
	}
	return fmt.Sprint(len(b)-len(a), " lines more")
}

// TestReplayEmbedded serves an embedded capture: its GPUs, NICs and results, with
// no measurement of its own.
func TestReplayEmbedded(t *testing.T) {
	t.Parallel()
	r := serveWith(t, "--web.listen-address=127.0.0.1:0", "--replay=h100-8x8", "--control.socket=", "--state.dir=")
	page := metrics(t, r)
	for _, line := range []string{`gdr_replay_info{name="h100-8x8",recorded="`, `synthetic="true"} 1`, `gdr_gpu_info{`, `gdr_rdma_device_info{`} {
		if !strings.Contains(page, line) {
			t.Errorf("no %s", line)
		}
	}
	if strings.Contains(page, "\ngdr_read_errors_total{") {
		t.Error("there are read errors")
	}
	r.signal(t, syscall.SIGTERM)
	topology := runBriefly(t, "topo", "--replay=h100-8x8")
	if topology.code != exitOK || !strings.Contains(topology.stdout, "PIX*") || !strings.Contains(topology.stderr, "Replay of the capture h100-8x8") || strings.Count(topology.stderr, "\n") != 1 {
		t.Errorf("%+v", topology)
	}
}

// gzipped compresses what write writes.
func gzipped(t *testing.T, write func(io.Writer)) string {
	t.Helper()
	var b bytes.Buffer
	compressed := gzip.NewWriter(&b)
	write(compressed)
	if err := compressed.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestReplayHostile: whatever the file is, there is one line and nothing else.
func TestReplayHostile(t *testing.T) {
	t.Parallel()
	first := `{"gdr_exporter_capture":1,"began":"2027-01-15T08:00:00Z","ended":"2027-01-15T08:00:02Z","readers":{"sysfs":"/sys","procfs":"/proc"}}` + "\n"
	text := func(text string) string { return gzipped(t, func(w io.Writer) { _, _ = io.WriteString(w, text) }) }
	whole := text(first + `{"lines":0}` + "\n")
	fifo := filepath.Join(emptyDir(t), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ content, says string }{
		"empty":     {"", "no capture"},
		"foreign":   {"PK\x03\x04 hello", "no capture"},
		"zip":       {text("../../etc/passwd\x00"), "no capture"},
		"version":   {text(`{"gdr_exporter_capture":99}` + "\n"), "version 99"},
		"truncated": {whole[:len(whole)-12], "truncated"},
		"cut":       {text(first), "truncated"},
		"traversal": {text(first + `{"path":"/sys/../etc/passwd","op":"read","text":"x"}` + "\n" + `{"lines":1}` + "\n"), "path"},
		"relative":  {text(first + `{"path":"etc/passwd","op":"read","text":"x"}` + "\n" + `{"lines":1}` + "\n"), "path"},
		"trailing":  {whole + "x", "end"},
		"overlay":   {text(strings.Replace(first, `"began"`, `"base":"h100-8x8","began"`, 1) + `{"lines":0}` + "\n"), "laid over"},
		"bomb": {gzipped(t, func(w io.Writer) {
			_, _ = io.WriteString(w, first)
			for range 1 << 10 {
				_, _ = w.Write(make([]byte, 1<<20))
			}
		}), "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := emptyDir(t)
			path := filepath.Join(dir, "capture")
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, command := range []string{"topo", "serve"} {
				runBriefly(t, command, "--replay="+path, "--web.listen-address=127.0.0.1:0").wantMistake(t, "--replay="+path, c.says)
			}
			if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
				t.Errorf("%v, %v", files, err)
			}
		})
	}
	runBriefly(t, "topo", "--replay="+fifo).wantMistake(t, "no regular file")
	runBriefly(t, "topo", "--replay="+filepath.Dir(fifo)).wantMistake(t, "no regular file")
	runBriefly(t, "topo", "--replay=/no/such").wantMistake(t, "no such file")
	runBriefly(t, "topo", "--replay=no-such").wantMistake(t, "h100-8x8")
	runBriefly(t, "probe", "--replay=h100-8x8").wantMistake(t, "only serve, topo, check")
}

// TestReplayMemory: a file that would unpack to more than is read, in one line or in
// many, costs no more than the limits of a capture allow.
func TestReplayMemory(t *testing.T) {
	t.Parallel()
	const most = 400 << 10 // KiB; half of it without a look for data races
	for name, fill := range map[string]func(n int) string{
		"line": func(int) string { return strings.Repeat("0", 1<<20) },
		"lines": func(n int) string {
			return fmt.Sprintf(`{"path":"/sys/%06d","op":"read","text":"%s"}`+"\n", n, strings.Repeat("0", 1<<20))
		},
	} {
		bomb := gzipped(t, func(w io.Writer) {
			_, _ = io.WriteString(w, `{"gdr_exporter_capture":1,"began":"2027-01-15T08:00:00Z","ended":"2027-01-15T08:00:02Z","readers":{"sysfs":"/sys","procfs":"/proc"}}`+"\n")
			for n := range 320 { // MiB
				_, _ = io.WriteString(w, fill(n))
			}
		})
		command := exec.CommandContext(t.Context(), binary(t), "topo", "--replay="+write(t, "bomb", bomb))
		ended, used := finishMeasured(t, command)
		ended.wantMistake(t, "too large")
		if used > most || used == 0 {
			t.Errorf("%s: %d KiB", name, used)
		}
		t.Logf("%s: %d KiB of memory for %d KiB in the file", name, used, len(bomb)>>10)
	}
}

// finishMeasured is finish, with what the command had resident at most, in KiB. It is
// asked of procfs while the command runs: the maximum that wait4 tells begins with that
// of the process that started it.
func finishMeasured(t *testing.T, command *exec.Cmd) (r result, peak int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	over, most := make(chan struct{}), make(chan int)
	go func() {
		peak := 0
		for {
			select {
			case <-over:
				most <- peak
				return
			case <-time.After(2 * time.Millisecond):
				peak = max(peak, highWater(command.Process.Pid, command.Path))
			}
		}
	}()
	_ = command.Wait()
	close(over)
	return result{command.ProcessState.ExitCode(), stdout.String(), stderr.String()}, <-most
}

// highWater is VmHWM of a process in KiB, 0 unless it runs the program.
func highWater(pid int, program string) int {
	running, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || running != program {
		return 0
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	var peak int
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	_, _ = fmt.Sscan(after, &peak)
	return peak
}

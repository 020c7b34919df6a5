package main

import (
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gdr_exporter/gpu/nvmltest"
)

// TestDriverUpgrade: the driver is absent, comes, is unloaded, and another
// version comes in its place. The C library never lets go of the first one, so
// the exporter starts itself afresh: same process, same listening socket, and
// no scrape is refused.
func TestDriverUpgrade(t *testing.T) {
	t.Parallel()
	root, procfs := t.TempDir(), t.TempDir()
	proc := filepath.Join(procfs, "driver/nvidia")
	kernel := filepath.Join(t.TempDir(), "version")
	load := func(version string) {
		nvmltest.Load(t, procfs, version)
		if err := os.WriteFile(kernel, []byte(version), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.Command(binary(t), "--web.listen-address=127.0.0.1:0", "--path.driver-root="+root, "--path.procfs="+procfs, "--scrape.max-age=0", "--no-collector.rdma")
	command.Env = append(os.Environ(), "NVMLTEST_KERNEL="+kernel, "NVMLTEST_GPUS=0000:1b:00.0")
	r := startRunning(t, command)
	url := "http://" + r.addresses[0] + "/metrics?collect[]=gpu"
	refused := 0
	shows := func(what string, lines ...string) {
		t.Helper()
		began := time.Now()
		deadline := began.Add(2 * time.Minute)
		var page string
		for ; time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			response, err := http.Get(url)
			if err != nil {
				refused++
				continue
			}
			page = body(t, response)
			if containsAll(page, lines) {
				t.Logf("%s: shown after %v", what, time.Since(began).Round(time.Millisecond))
				return
			}
		}
		t.Fatalf("%s: the page lacks one of %q:\n%s\n%s", what, lines, page, r.stderr.String())
	}
	shows("no driver", `gdr_gpu_nvml_up 0`, `gdr_gpu_nvml_state{state="no_driver"} 1`)
	load("1.0")
	shows("no library", `gdr_gpu_nvml_up 0`, `gdr_gpu_nvml_state{state="no_library"} 1`)
	nvmltest.Install(t, root, "1.0")
	shows("the driver comes", `gdr_gpu_nvml_up 1`, `driver_version="1.0"`, `gpu_address="0000:1b:00.0"`)
	if err := errors.Join(os.RemoveAll(proc), os.Remove(kernel)); err != nil {
		t.Fatal(err)
	}
	shows("the module is unloaded", `gdr_gpu_nvml_up 0`, `gdr_gpu_nvml_state{state="no_driver"} 1`)
	load("1.0")
	shows("the module is loaded again", `gdr_gpu_nvml_up 1`)
	nvmltest.Install(t, root, "2.0")
	shows("a new library beside the old module", `gdr_gpu_nvml_up 1`, `driver_version="1.0"`)
	load("2.0")
	shows("the new module", `gdr_gpu_nvml_up 1`, `driver_version="2.0"`)
	if refused > 0 {
		t.Errorf("%d scrapes were refused", refused)
	}
	if !strings.Contains(r.stderr.String(), "starting afresh") {
		t.Error("it did not say that it starts afresh")
	}
	r.signal(t, os.Interrupt)
}

func containsAll(page string, lines []string) bool {
	for _, line := range lines {
		if !strings.Contains(page, line) {
			return false
		}
	}
	return true
}

func body(t *testing.T, response *http.Response) string {
	t.Helper()
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

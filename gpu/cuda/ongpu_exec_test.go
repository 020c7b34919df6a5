package cuda_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gdr_exporter/gpu/cuda"
)

// TestOnGPUExec finds out on a real GPU what libcuda keeps open when a GPU is
// closed again, and that exec lets go of it: the exporter's way to be rid of it.
//
//	go test -c ./gpu/cuda
//	GDR_ON_GPU=1 ./cuda.test -test.v -test.run '^TestOnGPUExec$'
func TestOnGPUExec(t *testing.T) {
	if os.Getenv("GDR_ON_GPU") != "1" {
		t.Skip("GDR_ON_GPU=1 is not set: no NVIDIA GPU is promised here")
	}
	if isChild(t) {
		lock(t)
		childExec(t, os.Getenv("GDR_GPU"))
		return
	}
	out, err := inChild(t, "GDR_GPU="+gpuAddress(t))
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "after exec: nothing of the driver is open, and it works again") {
		t.Errorf("%v", err)
	}
}

func childExec(t *testing.T, address string) {
	once := func() {
		t.Helper()
		g, err := cuda.Open(address, onGPUOptions(onGPUFloor))
		must(t, err)
		must(t, g.Close())
	}
	if os.Getenv("AFTER_EXEC") == "1" {
		if files, mappings := ofDriver(t); len(files)+len(mappings) > 0 {
			t.Fatalf("after exec: %+v\n%s", files, strings.Join(mappings, "\n"))
		}
		once()
		fmt.Println("after exec: nothing of the driver is open, and it works again")
		return
	}
	before := map[descriptor]bool{}
	for _, d := range descriptors(t, "") {
		before[d] = true
	}
	once()
	once()
	files, mappings := ofDriver(t)
	t.Logf("%d device files are open after Close, %d mappings:\n%s", len(files), len(mappings), strings.Join(mappings, "\n"))
	for _, d := range descriptors(t, "") {
		if before[d] {
			continue
		}
		t.Logf("open since: %s %s, FD_CLOEXEC %v", d.number, d.path, d.cloexec)
		if !d.cloexec {
			t.Errorf("%s %s outlives exec", d.number, d.path)
		}
	}
	if t.Failed() {
		return
	}
	must(t, unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), "AFTER_EXEC=1")))
}

// ofDriver are the driver's device files that are open or mapped: /dev/nvidiactl,
// /dev/nvidia-uvm, /dev/nvidia0, /dev/nvidia-caps/... The library is no such file.
func ofDriver(t *testing.T) (files []descriptor, mappings []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if at := strings.IndexByte(line, '/'); at >= 0 && strings.HasPrefix(filepath.Clean(line[at:]), "/dev/nvidia") {
			mappings = append(mappings, strings.TrimSpace(line))
		}
	}
	return descriptors(t, "/dev/nvidia"), mappings
}

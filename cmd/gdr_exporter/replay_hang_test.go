package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/capture/embedded"
)

// TestReplayHang: a capture in which a call of NVML and a file of a NIC hang is
// served in time, with both named and everything else there, and the program ends
// when it is told to.
func TestReplayHang(t *testing.T) {
	t.Parallel()
	recording, err := embedded.Open("h100-8x8")
	if err != nil {
		t.Fatal(err)
	}
	hung := 0
	for i := range recording.Answers {
		if a := &recording.Answers[i]; a.Part == capture.PartNVML && a.Question == "device 3 GetMemoryInfo" {
			a.Last, a.First = capture.Value{Hang: true}, nil
			hung++
		}
	}
	for i := range recording.Files {
		if f := &recording.Files[i]; f.Op == capture.OpRead && strings.HasSuffix(f.Path, "/infiniband/mlx5_5/ports/1/counters/port_rcv_data") {
			f.Last, f.First = capture.FileAnswer{Hang: true}, nil
			hung++
		}
	}
	if hung != 2 {
		t.Fatalf("%d of 2 are recorded", hung)
	}
	recording.Scenario = nil // which would have the counter count
	path := filepath.Join(emptyDir(t), "hangs.txt.gz")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := recording.Write(file); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	const deadline = 2 * time.Second // the healthy are in time on a busy machine too
	r := serveWith(t, "--replay="+path, "--web.listen-address=127.0.0.1:0", "--scrape.deadline="+deadline.String(), "--scrape.max-age=0s", "--control.socket=", "--state.dir=")
	const whole = `gdr_rdma_port_state_id{device="mlx5_4",port="1"} 4`
	var page string
	var took time.Duration
	for range 5 { // a machine may stall for longer than the deadline
		began := time.Now()
		page = metrics(t, r)
		took = time.Since(began)
		if took <= 4*deadline && strings.Contains(page, whole) && strings.Contains(page, "gdr_pcie_link_width_lanes{") {
			break
		}
	}
	if took > 4*deadline {
		t.Errorf("two scrapes took %v", took)
	}
	for _, line := range []string{
		`gdr_device_read_stuck{collector="gpu",device="nvml"} 1`, `gdr_device_read_stuck{collector="rdma",device="mlx5_5"} 1`,
		`gdr_gpu_nvml_stuck_call_info{call="nvmlDeviceGetMemoryInfo",gpu_address="0000:3b:00.0"} 1`,
		whole, `gdr_pcie_link_width_lanes{address="0000:3b:00.0"} 16`,
	} {
		if !strings.Contains(page, line) {
			t.Errorf("no %s", line)
		}
	}
	for _, part := range []string{"gdr_gpu_nvml_up", "gdr_gpu_memory", `gdr_rdma_port_state_id{device="mlx5_5"`} {
		if strings.Contains(page, part) {
			t.Errorf("%s is on the page", part)
		}
	}
	began := time.Now()
	r.signal(t, syscall.SIGTERM)
	waitUntil(t, "the program ends", r.hasExited)
	t.Logf("it ended after %v", time.Since(began))
}

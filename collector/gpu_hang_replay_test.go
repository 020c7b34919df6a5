package collector

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/gputest"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/rdmatest"
)

// hangTimes are series that say how long something has taken or waited.
var hangTimes = regexp.MustCompile(`(?m)^(gdr_[a-z_]*(?:stuck_seconds|timestamp_seconds)(?:\{.*\})?) .*$`)

// hungScrape scrapes a host on which NVML hangs, twice: a call that has waited for
// a whole deadline is called stuck from then on. It returns the second page; what
// time makes is 0 in it.
func hungScrape(t *testing.T, h *replayHost) (page string, taker *snapshot.Taker) {
	t.Helper()
	const deadline = time.Second // the healthy are in time on a busy machine too
	taker = snapshot.New(snapshot.Options{Deadline: deadline}).
		RDMA(rdma.NewReader(rdma.Options{Sysfs: h.root + "/sys", Files: h.files}), nil).
		GPU(gpu.NewReader(gpu.Options{NVLink: true, Fabric: true, Open: h.open})).Taker()
	handler := newHandler(Config{Taker: taker, Enabled: []string{"rdma", "gpu", "nvlink", "fabric"}, Roles: noRoles{}, Deadline: deadline})
	var b bytes.Buffer
	for range 2 {
		b.Reset()
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		began := time.Now()
		families, done, err := handler.gather(ctx, handler.config.Enabled)
		cancel()
		if took := time.Since(began); err != nil || took > 3*deadline {
			t.Fatalf("a scrape took %v: %v", took, err)
		}
		for _, mf := range families {
			if _, err := expfmt.MetricFamilyToText(&b, mf); err != nil {
				t.Fatal(err)
			}
		}
		done()
		time.Sleep(deadline / 4)
	}
	return hangTimes.ReplaceAllString(durations.ReplaceAllString(b.String(), "$1 0"), "$1 0"), taker
}

// TestReplayGPUHang: a call of NVML that did not return while it was recorded
// does not return in the replay. The page is that of the live hang: in time, with
// the call named, nothing of NVML, and all of the NIC. Once the player is closed
// nothing waits any more.
func TestReplayGPUHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := rdmatest.New()
		tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
		h := hostOf(t, tree)
		m := gputest.H100NVL()
		release := make(chan struct{})
		m.Gate = func(call, busID string) {
			if call == "nvmlDeviceGetComputeRunningProcesses" && busID == m.GPUs[1].BusID {
				<-release
			}
		}
		h.open = m.Open
		recorded, recorder := h.recorded()
		live, taker := hungScrape(t, recorded)
		var text bytes.Buffer
		err := recorder.Recording().Write(&text)
		close(release)
		taker.Close()
		if err != nil {
			t.Fatal(err)
		}
		recording, err := capture.Read(&text)
		if err != nil {
			t.Fatal(err)
		}
		played, player := h.played(recording)
		replayed, taker := hungScrape(t, played)
		player.Close()
		taker.Close() // waits for the worker
		if live != replayed {
			t.Errorf("live:\n%s\nreplayed:\n%s", live, replayed)
		}
		for _, line := range []string{
			`gdr_gpu_nvml_stuck_call_info{call="nvmlDeviceGetComputeRunningProcesses",gpu_address="0000:2a:00.0"} 1`,
			`gdr_device_read_stuck{collector="gpu",device="nvml"} 1`, `gdr_rdma_port_state_id{device="mlx5_0"`,
		} {
			if !strings.Contains(replayed, line) {
				t.Errorf("no %s in the replay", line)
			}
		}
		if strings.Contains(replayed, "gdr_gpu_nvml_up") || strings.Contains(replayed, "gdr_gpu_memory") {
			t.Error("the replay shows what NVML has not answered")
		}
		if missing := player.Unrecorded(); len(missing) > 0 {
			t.Errorf("not recorded: %v", missing)
		}
	})
}

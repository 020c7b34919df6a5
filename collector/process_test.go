package collector

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/driver/drivertest"
	"gdr_exporter/gpu/gputest"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/nldev"
	"gdr_exporter/rdma/rdmatest"
)

// planted is in the environments of the test's jobs, in places where it must not be
// read from.
const planted = "hunter2-planted-secret"

// startProcess starts a real process with an environment.
func startProcess(t *testing.T, environment ...string) int {
	t.Helper()
	command := exec.Command("sleep", "600")
	command.Env = environment
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	// Until it has become sleep it still has this process's environment.
	for range 1000 {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", command.Process.Pid))
		if err == nil && strings.TrimSpace(string(name)) == "sleep" {
			return command.Process.Pid
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("it does not start")
	return 0
}

// sighted is the running system's processes as the host's namespace shows them,
// wherever the test runs.
type sighted struct{ process.Kernel }

func (sighted) Visible() (bool, error) { return true, nil }

// processHost is a node on which processes hold an RDMA device and a GPU.
type processHost struct {
	files   sysread.Files
	netlink rdma.Dialer
	open    func(string) (gpu.Library, error)
	kernel  process.Kernel
	told    strings.Builder // the read errors, as they are logged
}

// take returns a Snapshot and the page of it.
func (h *processHost) take(t *testing.T) (*snapshot.Snapshot, string) {
	t.Helper()
	now := func() time.Time { return goldenTime }
	var s *snapshot.Snapshot
	taker := snapshot.New(snapshot.Options{
		Deadline: time.Minute, Now: now, Taken: func(taken *snapshot.Snapshot) { s = taken },
		Tell: func(collector string, err sysread.ReadError) { fmt.Fprintln(&h.told, collector, err) },
	}).RDMA(rdma.NewReader(rdma.Options{Sysfs: "/sys", Files: h.files, Netlink: h.netlink, NetlinkWait: time.Minute, Now: now}), nil).
		GPU(gpu.NewReader(gpu.Options{Files: h.files, Procfs: "/proc", Open: h.open, Roots: []string{"/"}})).
		Process(process.NewReader(process.Options{Kernel: h.kernel})).Taker()
	defer taker.Close()
	handler := newHandler(Config{Taker: taker, Enabled: Names(), Roles: noRoles{}})
	families, done, err := handler.gather(t.Context(), Names())
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	var page bytes.Buffer
	for _, mf := range families {
		if _, err := expfmt.MetricFamilyToText(&page, mf); err != nil {
			t.Fatal(err)
		}
	}
	return s, page.String()
}

// newProcessHost has some processes on a node, all of them on mlx5_0 and the second
// GPU, and one of the RDMA device alone.
func newProcessHost(t *testing.T, pids ...int) *processHost {
	t.Helper()
	host := drivertest.New()
	drivertest.Scenes[2].Build(host) // without a driver NVML is not asked
	tree := host.Tree
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
	root := tempTree(t)
	if err := tree.WriteTo(root); err != nil {
		t.Fatal(err)
	}
	machine := gputest.HGXH200()
	machine.GPUs[1].PIDs = pids
	owners := []nldev.Owner{{PID: 1, Contexts: 1, Regions: 2, Bytes: 4096}, {Contexts: 1}}
	for _, pid := range pids {
		owners = append(owners, nldev.Owner{PID: pid, Contexts: 1, Regions: 3, Bytes: 1 << 30})
	}
	netlink := tree.Netlink()
	netlink.Own("mlx5_0", owners...)
	return &processHost{files: sysread.Below(root), netlink: netlink.Dial, open: machine.Open, kernel: sighted{&process.Proc{Self: -1}}}
}

// withoutIDs are jobs with their places in the order of ids in the ids' place.
func withoutIDs(jobs []process.Job) map[string]process.Job {
	all := map[string]process.Job{}
	for _, job := range jobs {
		job.PID = 0
		all[job.Variables.Value["NCCL_NET"]] = job
	}
	return all
}

// TestPlantedSecrets: of real processes' environments nothing but the list is in the
// Snapshot, on the page, in what is logged, or in a capture, be it raw.
func TestPlantedSecrets(t *testing.T) {
	first := startProcess(t, "AWS_SECRET_ACCESS_KEY="+planted, "NCCL_NET=IB", "NCCL_NET_GDR_LEVEL=LOC", "NCCL_TOPO_FILE=/home/"+planted, "PASSWORD="+planted)
	second := startProcess(t, "NCCL_NET=Socket", "NCCL_IB_HCA="+planted+"/x", "UCX_NOTE="+planted, "NCCL_"+planted+"=1", planted+"=NCCL_NET", "NCCL="+planted)
	h := newProcessHost(t, first, second)
	r := capture.NewRecorder(h.files, capture.Header{Readers: capture.Readers{Sysfs: "/sys", Procfs: "/proc"}}, func() time.Time { return goldenTime })
	recorded := &processHost{files: r.Files(), netlink: r.Netlink(h.netlink), open: r.NVML(h.open), kernel: r.Process(h.kernel)}
	s, page := recorded.take(t)

	got := s.ProcessState()
	if got == nil || len(got.Jobs) != 2 || !got.Joined {
		t.Fatalf("%+v", got)
	}
	jobs := withoutIDs(got.Jobs)
	want := process.Job{GPUs: []string{s.NVML().GPUs[1].Address}, Devices: []string{"mlx5_0"}, Variables: sysread.Some(map[string]string{"NCCL_NET": "IB", "NCCL_NET_GDR_LEVEL": "LOC"}), Others: []string{"NCCL_TOPO_FILE"}}
	want.Memlock, want.NCCL, want.UCX = jobs["IB"].Memlock, sysread.Some(""), sysread.Some(false)
	if !reflect.DeepEqual(jobs["IB"], want) || !want.Memlock.Known {
		t.Errorf("%+v, want %+v", jobs["IB"], want)
	}
	if hca := jobs["Socket"].Variables.Value["NCCL_IB_HCA"]; hca != process.Withheld {
		t.Errorf("NCCL_IB_HCA=%s", hca)
	}
	for _, series := range []string{"gdr_process_jobs 2\n", "gdr_process_visible 1\n"} {
		if !strings.Contains(page, series) {
			t.Errorf("the page has no %s", series)
		}
	}

	recording := r.Recording()
	var raw, anonymous bytes.Buffer
	if err := recording.WriteText(&raw); err != nil {
		t.Fatal(err)
	}
	anonymised, contents := capture.Anonymise(recording, make([]byte, capture.KeySize), nil)
	if len(contents.Unclassed)+len(contents.Dropped) > 0 {
		t.Errorf("no class of %q, dropped %q", contents.Unclassed, contents.Dropped)
	}
	if err := anonymised.WriteText(&anonymous); err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{
		"the Snapshot": fmt.Sprintf("%+v", got), "the page": page, "what is logged": recorded.told.String(), "the raw capture": raw.String(), "the capture": anonymous.String(),
	} {
		if strings.Contains(text, planted) {
			t.Errorf("the secret is in %s", where)
		}
		if strings.Contains(text, "PASSWORD") {
			t.Errorf("the name of another variable is in %s", where)
		}
	}
	for _, pid := range []int{first, second} {
		if strings.Contains(anonymous.String(), fmt.Sprintf(`"pid":%d,`, pid)) || strings.Contains(anonymous.String(), fmt.Sprintf(` %d"`, pid)) || strings.Contains(anonymous.String(), fmt.Sprintf(`"Pid":%d,`, pid)) {
			t.Errorf("the id %d is in the capture", pid)
		}
		if strings.Contains(page, fmt.Sprint(`"`, pid)) {
			t.Errorf("the id %d is on the page", pid)
		}
	}
	for name, text := range map[string]*bytes.Buffer{"raw": &raw, "anonymous": &anonymous} {
		checkProcessReplay(t, name, text, got)
	}
}

// checkProcessReplay checks that a capture, whatever ids it has, has the same jobs.
func checkProcessReplay(t *testing.T, name string, text *bytes.Buffer, want *process.Reading) {
	t.Helper()
	recording, err := capture.Read(text)
	if err != nil {
		t.Fatal(name, err)
	}
	player := capture.Play(recording)
	defer player.Close()
	played := &processHost{files: player.Files(), netlink: player.Netlink(), open: player.NVML(), kernel: player.Process()}
	s, _ := played.take(t)
	got := s.ProcessState()
	if got == nil || !reflect.DeepEqual(withoutIDs(got.Jobs), withoutIDs(want.Jobs)) {
		t.Errorf("%s: %+v, want %+v", name, got, want)
	}
	if missing := player.Unrecorded(); len(missing) > 0 {
		t.Errorf("%s: not recorded: %v", name, missing)
	}
}

// TestProcessGolden is the page of what is said of processes.
func TestProcessGolden(t *testing.T) {
	h := newProcessHost(t, startProcess(t))
	s, _ := h.take(t)
	p := newPage()
	showProcess(p, s)
	comparePage(t, p, filepath.Join("testdata", "process", "jobs.metrics"))
	// Nothing is said unless it is known.
	s.Process.Listing.Joined, s.Process.Listing.Visible = false, sysread.Some(false)
	p = newPage()
	showProcess(p, s)
	comparePage(t, p, filepath.Join("testdata", "process", "container.metrics"))
	s.Process = nil
	p = newPage()
	if showProcess(p, s); len(p.gather()) > 0 {
		t.Error("without the collector there are series")
	}
}

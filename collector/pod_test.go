package collector

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gdr_exporter/collector/jobs"
	"gdr_exporter/collector/podresources"
	"gdr_exporter/collector/podresources/kubelettest"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/driver/drivertest"
	"gdr_exporter/gpu/gputest"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/rdmatest"
)

const (
	podMIG    = "MIG-0a1b2c3d-aaaa-bbbb-cccc-ddddeeeeffff"
	absentGPU = "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff"
)

// holderHost is a node with two GPUs, one of them split, an RDMA device and a virtual
// function.
type holderHost struct {
	machine *gputest.Machine
	options gpu.Options
	files   sysread.Files
	kernel  jobs.Kernel
	socket  string // of the kubelet; "" for none
	told    []string
	now     time.Time
}

func newHolderHost(t *testing.T) *holderHost {
	t.Helper()
	host := drivertest.New()
	drivertest.Scenes[2].Build(host) // without a driver NVML is not asked
	host.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
	host.MLX5VF(rdmatest.Options{Name: "mlx5_v", Ordinal: 2})
	host.MLX5SF(rdmatest.Options{Name: "mlx5_s", Ordinal: 3})
	root := tempTree(t)
	if err := host.WriteTo(root); err != nil {
		t.Fatal(err)
	}
	machine := gputest.H100NVL()
	machine.GPUs[0].UUID, machine.GPUs[1].UUID = "GPU-00000000-1111-2222-3333-444455556666", "GPU-11111111-1111-2222-3333-444455556666"
	machine.GPUs[0].Minor, machine.GPUs[1].Minor = 1, 0
	machine.GPUs[1].MIG, machine.GPUs[1].Instances = nvml.DEVICE_MIG_ENABLE, []string{podMIG}
	h := &holderHost{machine: machine, files: sysread.Below(root), now: goldenTime}
	h.options = gpu.Options{Files: h.files, Procfs: "/proc", Open: machine.Open, Roots: []string{"/"}, Holders: true}
	return h
}

// taker reads the host. A kubelet is waited for.
func (h *holderHost) taker(t *testing.T) *snapshot.Taker {
	t.Helper()
	now := func() time.Time { return h.now }
	builder := snapshot.New(snapshot.Options{Deadline: time.Minute, Now: now, Tell: func(collector string, err sysread.ReadError) {
		h.told = append(h.told, fmt.Sprint(collector, ": ", err))
	}}).RDMA(rdma.NewReader(rdma.Options{Sysfs: "/sys", Files: h.files, Now: now}), nil).GPU(gpu.NewReader(h.options))
	if h.socket != "" {
		builder.Pods(podresources.NewReader(podresources.Options{Socket: h.socket, Timeout: time.Minute, Patience: time.Minute}))
	}
	if h.kernel != nil {
		builder.Jobs(jobs.NewReader(h.kernel))
	}
	taker := builder.Taker()
	t.Cleanup(taker.Close)
	return taker
}

func (h *holderHost) take(t *testing.T, taker *snapshot.Taker) *snapshot.Snapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return taker.Take(ctx, func(name string) bool { return name == snapshot.CollectorPods || name == snapshot.CollectorJobs })
}

// podPage is the page of pods, with the time of the answer made the Snapshot's.
func podPage(s *snapshot.Snapshot) *page {
	if r := s.PodState(); r != nil && !r.Answered.IsZero() {
		r.Answered = goldenTime
	}
	p := newPage()
	showPods(p, s)
	return p
}

// allocations are what device plugins and drivers are known to hand out.
func (h *holderHost) allocations() []*v1.PodResources {
	whole, split := h.machine.GPUs[0].UUID, h.machine.GPUs[1].UUID
	vf := "0000:3b:00.2"
	return []*v1.PodResources{
		kubelettest.Pod("train-0", kubelettest.Container("main", "nvidia.com/gpu", whole), kubelettest.Container("sidecar", "example.com/fuse", "fuse-1")),
		kubelettest.Pod("shared-0", kubelettest.Container("main", "nvidia.com/gpu.shared", whole+"::0", whole+"::3")),
		kubelettest.Pod("shared-1", kubelettest.Container("main", "nvidia.com/gpu.shared", whole+"::1")),
		kubelettest.Pod("mig-0", kubelettest.Container("main", "nvidia.com/mig-1g.12gb", podMIG)),
		kubelettest.Pod("old-mig-0", kubelettest.Container("main", "nvidia.com/gpu", "MIG-"+split+"/7/0")),
		kubelettest.Pod("gke-0", kubelettest.Container("main", "nvidia.com/gpu", "nvidia0/vgpu1")),
		kubelettest.Pod("dra-0", kubelettest.Claim("main", "gpu.nvidia.com", "gpu-1", "k8s.gpu.nvidia.com/device=gpu-1")),
		kubelettest.Pod("dra-1", kubelettest.Claim("main", "gpu.nvidia.com", "gpu-9", "nvidia.com/gpu="+split)),
		kubelettest.Pod("gone-0", kubelettest.Container("main", "nvidia.com/gpu", absentGPU)),
		kubelettest.Pod("sriov-0", kubelettest.Container("main", "nvidia.com/mlnxnics", vf)),
		kubelettest.Pod("sriov-1", kubelettest.Container("main", "nvidia.com/rdma_vf", "0000:99:00.5"), kubelettest.Container("eth", "nvidia.com/ethernet", "0000:99:00.6")),
		kubelettest.Pod("dranet-0", kubelettest.Claim("main", "dra.net", "pci-"+strings.NewReplacer(":", "-", ".", "-").Replace(vf))),
		kubelettest.Pod("pool-0", kubelettest.Container("main", "rdma/hca_shared_devices_a", "12")),
		kubelettest.Pod("name-0", kubelettest.Container("main", "rdma/mlx5_0", "mlx5_0")),
	}
}

// TestPodsGolden is the page of everything that is known to be handed out, as a real
// gRPC server of the API says it.
func TestPodsGolden(t *testing.T) {
	h := newHolderHost(t)
	h.socket = kubelettest.Start(t, h.allocations()...).Socket
	s := h.take(t, h.taker(t))
	if vf := vfAddress(t, s); vf != "0000:3b:00.2" {
		t.Fatalf("the virtual function is %s", vf)
	}
	comparePage(t, podPage(s), filepath.Join("testdata", "pods", "all.metrics"))
	if len(h.told) > 0 {
		t.Errorf("%v", h.told)
	}
	// Without NVML a UUID means no GPU, not an unknown one; and likewise RDMA devices.
	s.GPU = nil
	comparePage(t, podPage(s), filepath.Join("testdata", "pods", "no-nvml.metrics"))
	s.RDMA.Err = snapshot.ErrListStuck
	if page := pageText(t, podPage(s)); strings.Contains(page, "_pod_info") || !strings.Contains(page, "gdr_pod_resources_up 1") {
		t.Errorf("nothing is known, and shown is %s", page)
	}
}

func vfAddress(t *testing.T, s *snapshot.Snapshot) string {
	t.Helper()
	for i := range s.RDMA.Units {
		if s.RDMA.Units[i].Name == "mlx5_v" {
			return s.RDMA.Units[i].Data.PCIAddress
		}
	}
	t.Fatal("no mlx5_v")
	return ""
}

// TestPodsDown: a kubelet that is gone is 0, counted and told once, and its pods go; it
// is not known to be up or down before it was asked.
func TestPodsDown(t *testing.T) {
	h := newHolderHost(t)
	k := kubelettest.Start(t, h.allocations()...)
	h.socket = k.Socket
	taker := h.taker(t)
	h.take(t, taker)
	k.Stop()
	var s *snapshot.Snapshot
	for range 5 { // within the hour after which it would be told again
		h.now = h.now.Add(5 * time.Minute)
		s = h.take(t, taker)
		for deadline := time.Now().Add(time.Minute); s.PodState().Up.Value && time.Now().Before(deadline); {
			s = h.take(t, taker)
		}
	}
	comparePage(t, podPage(s), filepath.Join("testdata", "pods", "down.metrics"))
	if len(h.told) != 1 || !strings.HasPrefix(h.told[0], "pods: kubelet list: ") {
		t.Errorf("%q", h.told)
	}
	errors := s.Errors
	if len(errors) != 1 || errors[0].ErrorKey != (snapshot.ErrorKey{Collector: "pods", Device: "kubelet", Source: "list", Errno: "ENOENT"}) || errors[0].Count < 1 || errors[0].Count > 5 {
		t.Errorf("%+v", errors)
	}
	k.Listen(t)
	for deadline := time.Now().Add(time.Minute); !s.PodState().Up.Value && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		h.now = h.now.Add(time.Minute)
		s = h.take(t, taker)
	}
	if page := pageText(t, podPage(s)); !strings.Contains(page, `pod_name="train-0"`) {
		t.Errorf("the kubelet is back: %s", page)
	}
	p := newPage()
	if showPods(p, &snapshot.Snapshot{}); len(p.gather()) > 0 {
		t.Error("without the flag there are series")
	}
	s.Pods.Units[0].Data = &podresources.Reading{}
	if showPods(p, s); len(p.gather()) > 0 {
		t.Error("before the kubelet was asked there are series")
	}
}

// groups are control groups by process.
type groups map[int]string

func (groups) Visible() (bool, error) { return true, nil }

func (g groups) Stat(pid int) (process.Stat, error) { return process.Stat{Start: uint64(pid)}, nil }

func (g groups) Cgroups(pid int) ([]string, error) { return []string{g[pid]}, nil }

// inContainer has the ids of a PID namespace of its own.
type inContainer struct{ groups }

func (inContainer) Visible() (bool, error) { return false, nil }

// TestJobsGolden is the page of jobs.
func TestJobsGolden(t *testing.T) {
	h := newHolderHost(t)
	h.machine.GPUs[0].PIDs, h.machine.GPUs[1].PIDs = []int{101, 102, 103}, []int{102, 104}
	all := groups{
		101: "/slurm/uid_1000/job_55/step_0/task_0", 102: "/system.slice/slurmstepd.scope/job_56/step_batch/user/task_0",
		103: "/user.slice/user-1000.slice", 104: "/kubepods/burstable/pod0a1b2c3d-1111-2222-3333-444455556666/f00d",
	}
	h.kernel = all
	s := h.take(t, h.taker(t))
	show := func() *page {
		p := newPage()
		showJobs(p, s)
		return p
	}
	comparePage(t, show(), filepath.Join("testdata", "jobs", "all.metrics"))
	names := make([]string, 0, 4)
	for _, status := range s.Status() {
		names = append(names, status.Collector)
	}
	if !slices.Contains(names, "jobs") {
		t.Errorf("how reading went is told of %v only", names)
	}
	h.kernel = inContainer{all}
	s = h.take(t, h.taker(t))
	comparePage(t, show(), filepath.Join("testdata", "jobs", "container.metrics"))
	h.kernel = all
	h.machine.Change(func() { h.machine.Init = nvml.ERROR_DRIVER_NOT_LOADED })
	if s = h.take(t, h.taker(t)); s.Jobs != nil || len(show().gather()) > 0 {
		t.Error("NVML does not say who is on a GPU, and jobs are shown")
	}
}

// TestHoldersSeries says what a full node costs with both switched on.
func TestHoldersSeries(t *testing.T) {
	s := wholeNode(t, false)
	series := func() int {
		p := newPage()
		newHandler(Config{Roles: noRoles{}, Enabled: Names()}).render(p, s)
		return p.used
	}
	without := series()
	var pods []*v1.PodResources
	holders := groups{}
	var on []process.Holder
	for i, g := range s.NVML().GPUs {
		pods = append(pods, kubelettest.Pod(fmt.Sprint("train-", i), kubelettest.Container("main", "nvidia.com/gpu", g.UUID), kubelettest.Container("net", "rdma/hca_shared_devices_a", fmt.Sprint(i))))
		holders[i+1] = "/slurm/uid_1000/job_55/step_0/task_0"
		on = append(on, process.Holder{Name: g.Address, PIDs: []int{i + 1}})
	}
	pod, errs := podresources.NewReader(podresources.Options{Socket: kubelettest.Start(t, pods...).Socket, Patience: time.Minute}).Read(t.Context(), goldenTime)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	reader := jobs.NewReader(holders)
	reader.On(on)
	job, _ := reader.Read(goldenTime)
	s.Jobs = &snapshot.JobPart{Units: []snapshot.UnitPart[jobs.Reading]{{Name: "jobs", Data: &job}}}
	if more := series() - without; more != 15 {
		t.Errorf("%d series of jobs, README says 15", more)
	}
	without = series()
	s.Pods = &snapshot.PodPart{Units: []snapshot.UnitPart[podresources.Reading]{{Data: &pod}}}
	if more := series() - without; more != 19 {
		t.Errorf("%d series of pods, README says 19", more)
	}
}

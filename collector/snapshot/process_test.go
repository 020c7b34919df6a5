package snapshot

import (
	"context"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gdr_exporter/collector/process"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/nldev"
)

// processKernel has processes, one of which may hang.
type processKernel struct {
	hangs   int
	gate    chan struct{}
	visible error
}

func (k *processKernel) Visible() (bool, error) { return true, k.visible }
func (k *processKernel) Stat(pid int) (process.Stat, error) {
	return process.Stat{Start: uint64(pid)}, nil
}
func (k *processKernel) Memlock(int) (uint64, error) { return 65536, nil }

func (k *processKernel) Environment(pid int) (process.Environment, error) {
	if pid == k.hangs {
		<-k.gate
	}
	return process.Environment{}, nil
}

func (k *processKernel) Libraries(int) (process.Libraries, error) {
	return process.Libraries{NCCL: "2.23.4"}, nil
}

// usersOf are the parts in which these processes use mlx5_0 and a GPU.
func usersOf(pids ...int) (*RDMAPart, *GPUPart) {
	var owners []nldev.Owner
	for _, pid := range pids {
		owners = append(owners, nldev.Owner{PID: pid, Contexts: 1})
	}
	owners = append(owners, nldev.Owner{PID: 1, Regions: 1})
	device := &rdma.Device{Usage: rdma.Usage{Owners: sysread.Some(owners)}}
	reading := &gpu.Reading{State: gpu.StateUp, GPUs: []gpu.GPU{{Address: "0000:18:00.0", PIDs: sysread.Some(pids)}}}
	return &RDMAPart{Units: []UnitPart[rdma.Device]{{Name: "mlx5_0", Data: device}, {Name: "mlx5_1"}}}, &GPUPart{Units: []UnitPart[gpu.Reading]{{Name: "nvml", Data: reading}}}
}

func newProcesses(kernel process.Kernel, deadline time.Duration) *processSource {
	options := &Options{Deadline: deadline, Now: time.Now}
	return newProcessSource(options, NewLedger(time.Now, nil), process.NewReader(process.Options{Kernel: kernel}))
}

// TestProcessHangs: a process that cannot be read costs what is its own.
func TestProcessHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &processKernel{hangs: 8, gate: make(chan struct{})}
		source := newProcesses(kernel, 300*time.Millisecond)
		defer source.close()
		take := func() *Snapshot {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			devices, gpus := usersOf(7, 8, 9)
			return &Snapshot{Process: source.part(ctx, devices, gpus)}
		}
		for range 3 {
			s := take()
			r := s.ProcessState()
			if r == nil || len(r.Jobs) != 3 || !r.Joined {
				t.Fatalf("%+v", r)
			}
			for i, known := range []bool{true, false, true} {
				job := r.Jobs[i]
				if job.PID != 7+i || job.NCCL.Known != known || job.Memlock.Known != known || len(job.GPUs) != 1 || job.Devices[0] != "mlx5_0" {
					t.Errorf("%+v", job)
				}
			}
			status := s.Status()
			if len(status) != 1 || len(status[0].Devices) != 1 || status[0].Devices[0].Name != "pid 8" || status[0].Devices[0].StuckFor <= 0 {
				t.Errorf("%+v", status)
			}
		}
		close(kernel.gate)
		for range 1000 {
			if r := take().ProcessState(); r.Jobs[1].NCCL.Known {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Error("it is not read after the hang")
	})
}

// TestProcessNotJoined: what is not known of GPUs or RDMA devices is no sign that
// there are no processes.
func TestProcessNotJoined(t *testing.T) {
	devices, gpus := usersOf(7)
	down := &GPUPart{Units: []UnitPart[gpu.Reading]{{Name: "nvml", Data: &gpu.Reading{State: gpu.StateNoDriver}}}}
	silent := &RDMAPart{Units: []UnitPart[rdma.Device]{{Name: "mlx5_0", Data: &rdma.Device{}}}}
	source := newProcesses(&processKernel{}, time.Minute)
	defer source.close()
	for name, test := range map[string]struct {
		rdma *RDMAPart
		gpus *GPUPart
		want bool
	}{
		"both": {devices, gpus, true}, "no RDMA": {nil, gpus, false}, "no GPU": {devices, nil, false}, "NVML down": {devices, down, false}, "NVML hangs": {devices, &GPUPart{Units: []UnitPart[gpu.Reading]{{}}}, false},
		"no netlink": {silent, gpus, false},
	} {
		s := &Snapshot{Process: source.part(t.Context(), test.rdma, test.gpus)}
		r := s.ProcessState()
		if r == nil || r.Joined != test.want || len(r.Jobs) > 0 != test.want || !r.Visible.Value {
			t.Errorf("%s: %+v", name, r)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if part := source.part(ctx, devices, gpus); part != nil {
		t.Errorf("without time: %+v", part)
	}
	blind := newProcesses(&processKernel{visible: syscall.EACCES}, time.Minute)
	defer blind.close()
	s := &Snapshot{Process: blind.part(t.Context(), devices, gpus)}
	if s.ProcessState() != nil || s.Process.Err == nil {
		t.Errorf("%+v", s.Process)
	}
}

package jobs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/jobs"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/sysread"
)

// kernel is a kernel with made-up processes.
type kernel struct {
	visible bool
	blind   error
	stats   map[int]process.Stat
	groups  map[int][]string
	errs    map[int]error // of control groups
	reused  map[int]bool  // the id becomes another process's while it is read
	reads   int
}

func (k *kernel) Visible() (bool, error) { return k.visible, k.blind }

func (k *kernel) Stat(pid int) (process.Stat, error) {
	stat, there := k.stats[pid]
	if !there {
		return process.Stat{}, syscall.ENOENT
	}
	return stat, nil
}

func (k *kernel) Cgroups(pid int) ([]string, error) {
	k.reads++
	if k.reused[pid] {
		k.stats[pid] = process.Stat{Start: k.stats[pid].Start + 1}
	}
	return k.groups[pid], k.errs[pid]
}

func slurm(job, step string) []string {
	return []string{"/system.slice/slurmstepd.scope/job_" + job + "/step_" + step + "/user/task_0"}
}

func read(k jobs.Kernel, gpus ...process.Holder) (jobs.Reading, []sysread.ReadError) {
	r := jobs.NewReader(k)
	defer r.Close()
	r.On(gpus)
	return r.Read(time.Now())
}

func TestReader(t *testing.T) {
	k := &kernel{visible: true,
		stats: map[int]process.Stat{10: {}, 11: {}, 12: {}, 13: {}, 14: {Own: true}, 15: {Ended: true}, 17: {}, 18: {}, 19: {}},
		groups: map[int][]string{
			10: slurm("7", "0"), 11: slurm("7", "0"), 12: slurm("8", "batch"), 13: {"/user.slice"}, 14: slurm("9", "0"), 15: slurm("9", "0"), 18: slurm("9", "0"), 19: nil,
		},
		errs:   map[int]error{17: syscall.EACCES, 19: syscall.ESRCH},
		reused: map[int]bool{18: true},
	}
	reading, errs := read(k,
		process.Holder{Name: "0000:3b:00.0", PIDs: []int{10, 11, 12, 13}},
		process.Holder{Name: "0000:1b:00.0", PIDs: []int{10, 14, 15, 16, 17, 18, 19}}) // 16 has ended
	want := []jobs.Job{
		{GPU: "0000:1b:00.0", Owner: jobs.Owner{Scheduler: jobs.Slurm, ID: "7", Step: "0"}},
		{GPU: "0000:3b:00.0", Owner: jobs.Owner{Scheduler: jobs.Slurm, ID: "7", Step: "0"}},
		{GPU: "0000:3b:00.0", Owner: jobs.Owner{Scheduler: jobs.Slurm, ID: "8", Step: "batch"}},
	}
	if !reflect.DeepEqual(reading.Jobs, want) || reading.Visible != sysread.Some(true) || reading.Omitted != 0 {
		t.Errorf("%+v", reading)
	}
	if len(errs) != 1 || errs[0].Errno() != "EACCES" || errs[0].Source != "cgroup" || errs[0].Device != "jobs" {
		t.Errorf("%v", errs)
	}
	if k.reads != 7 {
		t.Errorf("%d control groups were read of 7 processes that live and are not the exporter's", k.reads)
	}
}

func TestReaderInContainer(t *testing.T) {
	k := &kernel{stats: map[int]process.Stat{10: {}}, groups: map[int][]string{10: slurm("7", "0")}}
	gpu := process.Holder{Name: "0000:1b:00.0", PIDs: []int{10}}
	if reading, errs := read(k, gpu); reading.Visible != sysread.Some(false) || len(reading.Jobs) > 0 || len(errs) > 0 || k.reads > 0 {
		t.Errorf("%+v, %v", reading, errs)
	}
	k.blind = errors.New("no procfs")
	if reading, errs := read(k, gpu); reading.Visible.Known || len(reading.Jobs) > 0 || len(errs) != 1 {
		t.Errorf("%+v, %v", reading, errs)
	}
}

func TestReaderBounds(t *testing.T) {
	k := &kernel{visible: true, stats: map[int]process.Stat{}, groups: map[int][]string{}}
	var pids []int
	for pid := range 5000 {
		k.stats[pid+1], k.groups[pid+1] = process.Stat{}, slurm(fmt.Sprint(pid), "0")
		pids = append(pids, pid+1)
	}
	reading, _ := read(k, process.Holder{Name: "0000:1b:00.0", PIDs: pids})
	if len(reading.Jobs) != jobs.MaxJobs || reading.Omitted != 2048-jobs.MaxJobs || k.reads != 2048 {
		t.Errorf("%d jobs, %d omitted, %d reads", len(reading.Jobs), reading.Omitted, k.reads)
	}
}

// sighted is the running system as the host's namespace shows it, wherever the test runs.
type sighted struct{ jobs.Proc }

func (*sighted) Visible() (bool, error) { return true, nil }

// TestRunningSystem: of real processes, one of them in a control group of a made-up job
// where the machine lets the test make one.
func TestRunningSystem(t *testing.T) {
	command := exec.Command("sleep", "600")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	pid := command.Process.Pid
	kernel := &sighted{jobs.Proc{Proc: process.Proc{Self: -1}}}
	paths, err := kernel.Cgroups(pid)
	if err != nil || len(paths) == 0 || !strings.HasPrefix(paths[0], "/") {
		t.Fatalf("%q, %v", paths, err)
	}
	if _, err := kernel.Cgroups(1 << 30); !process.Gone(err) {
		t.Errorf("nobody: %v", err)
	}
	if _, err := (&jobs.Proc{Proc: process.Proc{Root: filepath.Join(t.TempDir(), "none")}}).Cgroups(pid); err == nil {
		t.Error("without procfs there are control groups")
	}
	group, err := madeUpJob(t, pid)
	if group == "" {
		t.Skipf("no control group can be made here: %v", err)
	}
	reading, errs := read(kernel, process.Holder{Name: "0000:1b:00.0", PIDs: []int{pid}})
	want := []jobs.Job{{GPU: "0000:1b:00.0", Owner: jobs.Owner{Scheduler: jobs.Slurm, ID: "4242", Step: "0"}}}
	if len(errs) > 0 || !reflect.DeepEqual(reading.Jobs, want) {
		paths, _ := kernel.Cgroups(pid)
		t.Errorf("%+v, %v; in %s: %q", reading, errs, group, paths)
	}
}

// madeUpJob moves a process into a control group as Slurm makes it, of cgroup v2 or of
// any hierarchy of v1.
func madeUpJob(t *testing.T, pid int) (string, error) {
	t.Helper()
	mounts, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		return "", err
	}
	var problem error // nil where no control groups are mounted
	for _, file := range append([]string{"/sys/fs/cgroup/cgroup.procs"}, mounts...) {
		var at unix.Statfs_t
		if problem = unix.Statfs(filepath.Dir(file), &at); problem != nil || at.Type != unix.CGROUP_SUPER_MAGIC && at.Type != unix.CGROUP2_SUPER_MAGIC {
			continue // with v1 it is a directory of mounts
		}
		root := filepath.Join(filepath.Dir(file), fmt.Sprintf("gdr_test_%d", os.Getpid()), "slurmstepd.scope")
		group := filepath.Join(root, "job_4242", "step_0")
		if problem = os.MkdirAll(group, 0o755); problem != nil {
			continue
		}
		t.Cleanup(func() {
			for dir := group; strings.Contains(dir, "gdr_test_"); dir = filepath.Dir(dir) {
				_ = syscall.Rmdir(dir)
			}
		})
		if problem = os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(fmt.Sprint(pid)), 0o600); problem == nil {
			// Back before the group is removed, whatever becomes of the process.
			t.Cleanup(func() { _ = os.WriteFile(file, []byte(fmt.Sprint(pid)), 0o600) })
			return group, nil
		}
	}
	return "", problem
}

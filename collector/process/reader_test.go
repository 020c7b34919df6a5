package process

import (
	"errors"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
)

var start = time.Unix(1_800_000_000, 0)

// fakeKernel has one process, whatever its id.
type fakeKernel struct {
	visible bool
	blind   error // of Visible
	stats   []Stat
	statErr error
	reads   int
	errs    map[string]error
}

func (k *fakeKernel) Visible() (bool, error) { return k.visible, k.blind }

// Stat gives the stats one after the other, and the last one again.
func (k *fakeKernel) Stat(int) (Stat, error) {
	if k.statErr != nil {
		return Stat{}, k.statErr
	}
	stat := k.stats[0]
	if len(k.stats) > 1 {
		k.stats = k.stats[1:]
	}
	return stat, nil
}

func (k *fakeKernel) Environment(int) (Environment, error) {
	k.reads++
	return Environment{Variables: map[string]string{"NCCL_NET": "IB"}, Others: []string{"NCCL_DEBUG"}}, k.errs["environ"]
}

func (k *fakeKernel) Memlock(int) (uint64, error) { return 65536, k.errs["limits"] }
func (k *fakeKernel) Libraries(int) (Libraries, error) {
	return Libraries{"2.23.4", true}, k.errs["maps"]
}

var user = User{PID: 7, GPUs: []string{"0000:18:00.0"}, Devices: []string{"mlx5_0"}}

// one lists one process and returns its reader.
func one(t *testing.T, kernel *fakeKernel) *JobReader {
	t.Helper()
	_, jobs, err := NewReader(Options{Kernel: kernel, Interval: time.Minute}).List([]User{user}, true)
	if len(jobs) != 1 || err != nil {
		t.Fatal(jobs, err)
	}
	return jobs[0]
}

func TestJoin(t *testing.T) {
	gpus := []Holder{{"0000:2a:00.0", []int{9, 7, 8}}, {"0000:18:00.0", []int{7, 0, -1}}}
	devices := []Holder{{"mlx5_1", []int{7, 100}}, {"mlx5_0", []int{7, 9, 0}}, {"mlx5_1", []int{7}}}
	want := []User{{7, []string{"0000:18:00.0", "0000:2a:00.0"}, []string{"mlx5_0", "mlx5_1"}}, {9, []string{"0000:2a:00.0"}, []string{"mlx5_0"}}}
	if got := Join(gpus, devices); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if got := Join(gpus, nil); len(got) > 0 {
		t.Errorf("%+v", got)
	}
}

func TestList(t *testing.T) {
	kernel := &fakeKernel{visible: true}
	r := NewReader(Options{Kernel: kernel})
	var users []User
	for pid := range MaxJobs + 5 {
		users = append(users, User{PID: pid + 1})
	}
	listing, jobs, err := r.List(users, true)
	if err != nil || len(jobs) != MaxJobs || len(listing.Users) != MaxJobs || listing.Omitted != 5 || !listing.Joined || listing.Visible != sysread.Some(true) {
		t.Errorf("%d jobs, %+v, %v", len(jobs), listing.Omitted, err)
	}
	_, again, _ := r.List(users[1:], true)
	if again[0] != jobs[1] {
		t.Error("a process has got another reader")
	}
	kernel.visible = false
	if listing, jobs, err := r.List(users, true); err != nil || jobs != nil || listing.Visible != sysread.Some(false) || listing.Joined || listing.Users != nil {
		t.Errorf("not visible: %+v, %v, %v", listing, jobs, err)
	}
	kernel.blind = syscall.EACCES
	if listing, jobs, err := r.List(users, true); !errors.Is(err, syscall.EACCES) || jobs != nil || listing.Visible.Known {
		t.Errorf("not known: %+v, %v, %v", listing, jobs, err)
	}
}

func TestReadJob(t *testing.T) {
	kernel := &fakeKernel{visible: true, stats: []Stat{{Start: 5}}}
	job := one(t, kernel)
	want := Job{
		PID: 7, GPUs: user.GPUs, Devices: user.Devices, Variables: sysread.Some(map[string]string{"NCCL_NET": "IB"}), Others: []string{"NCCL_DEBUG"},
		Memlock: sysread.Some(uint64(65536)), NCCL: sysread.Some("2.23.4"), UCX: sysread.Some(true),
	}
	for i, after := range []time.Duration{0, time.Second, 59 * time.Second, time.Minute} {
		got, errs := job.Read(start.Add(after))
		if !reflect.DeepEqual(got, want) || len(errs) > 0 {
			t.Errorf("after %v: %+v, %v", after, got, errs)
		}
		if reads := 1 + i/3; kernel.reads != reads {
			t.Errorf("after %v: read %d times", after, kernel.reads)
		}
	}
	// A file that may not be read costs what it has.
	kernel.errs = map[string]error{"environ": syscall.EACCES}
	got, errs := job.Read(start.Add(time.Hour))
	if got.Variables.Known || got.Others != nil || !got.Memlock.Known || !got.NCCL.Known || len(errs) != 1 || errs[0].Source != "environ" || errs[0].Device != deviceName {
		t.Errorf("%+v, %v", got, errs)
	}
}

// TestAnotherProcess: what was read while the id became another process's, or of the
// one before, is not kept.
func TestAnotherProcess(t *testing.T) {
	for name, stats := range map[string][]Stat{
		"reused meanwhile": {{Start: 5}, {Start: 6}}, "ended meanwhile": {{Start: 5}, {Start: 5, Ended: true}}, "ended": {{Start: 5, Ended: true}}, "own": {{Start: 5, Own: true}},
	} {
		kernel := &fakeKernel{visible: true, stats: slices.Clone(stats)}
		got, errs := one(t, kernel).Read(start)
		if !got.Gone || got.Variables.Known || got.NCCL.Known || got.Memlock.Known || len(errs) > 0 {
			t.Errorf("%s: %+v, %v", name, got, errs)
		}
	}
	kernel := &fakeKernel{visible: true, stats: []Stat{{Start: 5}}}
	job := one(t, kernel)
	job.Read(start)
	kernel.stats = []Stat{{Start: 6}}
	if got, _ := job.Read(start.Add(time.Second)); got.Gone || kernel.reads != 2 {
		t.Errorf("the new process of the id has not been read: %+v", got)
	}
	for err, told := range map[error]int{syscall.ESRCH: 0, syscall.ENOENT: 0, syscall.EACCES: 1} {
		kernel.statErr = err
		if got, errs := job.Read(start.Add(2 * time.Second)); got.Gone != (told == 0) || len(errs) != told || got.NCCL.Known {
			t.Errorf("%v: %+v, %v", err, got, errs)
		}
	}
	// A process that ends while its files are read is no error.
	kernel = &fakeKernel{visible: true, stats: []Stat{{Start: 5}, {Ended: true}}, errs: map[string]error{"environ": syscall.ESRCH, "maps": syscall.ENOENT}}
	if got, errs := one(t, kernel).Read(start); !got.Gone || len(errs) > 0 {
		t.Errorf("%+v, %v", got, errs)
	}
}

package process

import (
	"fmt"
	"sync/atomic"
	"time"

	"gdr_exporter/collector/sysread"
)

// deviceName is the device of errors, whichever process they are about.
const deviceName = "process"

// Options say how a Reader reads.
type Options struct {
	Kernel Kernel // nil: the running system's, Proc
	// Interval is how often a process is read; 0 each time.
	Interval time.Duration
}

// Reader lists the processes that use GPUs and RDMA devices. Each of them is read
// by a [JobReader] of its own, since reading one may hang.
type Reader struct {
	options Options
	jobs    map[int]*JobReader
}

// NewReader returns a reader; nothing is read yet.
func NewReader(options Options) *Reader {
	if options.Kernel == nil {
		options.Kernel = &Proc{}
	}
	return &Reader{options: options, jobs: map[int]*JobReader{}}
}

// Listing is what is known before any process is read.
type Listing struct {
	Visible sysread.Maybe[bool] // as in Reading
	Joined  bool                // as in Reading
	Users   []User              // at most MaxJobs, in the order of their ids
	Omitted int
}

// List says which processes are read. joined is false if it is not known who uses
// what: then there are no users. An error is about whether processes can be seen;
// none is listed then.
func (r *Reader) List(users []User, joined bool) (Listing, []*JobReader, error) {
	visible, err := r.options.Kernel.Visible()
	if err != nil || !visible {
		r.jobs = map[int]*JobReader{}
		if err != nil {
			return Listing{}, nil, sysread.ReadError{Device: deviceName, Source: "namespace", Err: err}
		}
		return Listing{Visible: sysread.Some(false)}, nil, nil
	}
	listing := Listing{Visible: sysread.Some(true), Joined: joined, Users: users}
	if over := len(users) - MaxJobs; over > 0 {
		listing.Users, listing.Omitted = users[:MaxJobs], over
	}
	jobs := make(map[int]*JobReader, len(listing.Users))
	readers := make([]*JobReader, len(listing.Users))
	for i := range listing.Users {
		user := &listing.Users[i]
		job := r.jobs[user.PID]
		if job == nil {
			job = &JobReader{kernel: r.options.Kernel, interval: r.options.Interval, pid: user.PID}
		}
		job.user.Store(user)
		jobs[user.PID], readers[i] = job, job
	}
	r.jobs = jobs
	return listing, readers, nil
}

// JobReader reads one process. It is for one goroutine at a time.
type JobReader struct {
	kernel   Kernel
	interval time.Duration
	pid      int
	user     atomic.Pointer[User]

	known   Job       // what was read last
	started uint64    // what Stat said then
	read    time.Time // when that was; zero: nothing is known
}

// Name names the process by its id.
func (j *JobReader) Name() string { return fmt.Sprint("pid ", j.pid) }

// Close does nothing: nothing is kept open.
func (j *JobReader) Close() {}

// Read reads the process, or returns what was read of it within the interval. That
// it ends meanwhile is no error, and what was read of a process whose id had become
// another one's is not kept.
func (j *JobReader) Read(now time.Time) (Job, []sysread.ReadError) {
	user := j.user.Load()
	before, err := j.kernel.Stat(j.pid)
	switch {
	case err == nil && (before.Ended || before.Own), err != nil && Gone(err):
		return j.gone(user), nil
	case err != nil:
		j.read = time.Time{}
		return JobOf(user), []sysread.ReadError{failed("stat", err)}
	case !j.read.IsZero() && before.Start == j.started && now.Sub(j.read) < j.interval:
		job := j.known
		job.GPUs, job.Devices = user.GPUs, user.Devices
		return job, nil
	}
	job, errs := j.readJob(user)
	after, err := j.kernel.Stat(j.pid)
	if err != nil || after.Ended || after.Start != before.Start {
		return j.gone(user), nil
	}
	j.known, j.started, j.read = job, before.Start, now
	return job, errs
}

func (j *JobReader) gone(user *User) Job {
	j.known, j.read = Job{}, time.Time{}
	job := JobOf(user)
	job.Gone = true
	return job
}

func failed(source string, err error) sysread.ReadError {
	return sysread.ReadError{Device: deviceName, Source: source, Err: err}
}

// readJob reads what does not need the lock of the process's memory map first.
func (j *JobReader) readJob(user *User) (job Job, errs []sysread.ReadError) {
	job = JobOf(user)
	note := func(source string, err error) bool {
		if err != nil {
			errs = append(errs, failed(source, err))
		}
		return err == nil
	}
	memlock, err := j.kernel.Memlock(j.pid)
	if note("limits", err) {
		job.Memlock = sysread.Some(memlock)
	}
	environment, err := j.kernel.Environment(j.pid)
	if note("environ", err) {
		job.Variables, job.Others = sysread.Some(environment.Variables), environment.Others
	}
	libraries, err := j.kernel.Libraries(j.pid)
	if note("maps", err) {
		job.NCCL, job.UCX = sysread.Some(libraries.NCCL), sysread.Some(libraries.UCX)
	}
	return job, errs
}

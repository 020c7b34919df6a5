package jobs

import (
	"sync"
	"time"

	"github.com/prometheus/procfs"

	"gdr_exporter/collector/process"
	"gdr_exporter/collector/sysread"
)

// deviceName is the device of errors, whichever process they are about.
const deviceName = "jobs"

// Kernel is what is asked of the kernel about processes.
type Kernel interface {
	// Visible and Stat are as in [process.Kernel].
	Visible() (bool, error)
	Stat(pid int) (process.Stat, error)
	// Cgroups are the paths of a process's control groups.
	Cgroups(pid int) ([]string, error)
}

// Proc is the running system's processes.
type Proc struct{ process.Proc }

// Cgroups reads /proc/PID/cgroup.
func (p *Proc) Cgroups(pid int) ([]string, error) {
	root := p.Root
	if root == "" {
		root = procfs.DefaultMountPoint
	}
	fs, err := procfs.NewFS(root)
	if err != nil {
		return nil, err
	}
	at, err := fs.Proc(pid)
	if err != nil {
		return nil, err
	}
	groups, err := at.Cgroups()
	if err != nil {
		return nil, err
	}
	paths := make([]string, len(groups))
	for i := range groups {
		paths[i] = groups[i].Path
	}
	return paths, nil
}

// Reader finds out whose the processes on GPUs are. What is known of a process is not
// kept: its id may be another one's at the next read, and a path costs microseconds.
type Reader struct {
	kernel Kernel

	mu   sync.Mutex
	gpus []process.Holder
}

// NewReader returns a reader; nothing is read yet. A nil kernel is the running
// system's, Proc.
func NewReader(kernel Kernel) *Reader {
	if kernel == nil {
		kernel = &Proc{}
	}
	return &Reader{kernel: kernel}
}

// On says which processes are on which GPU, for the next Read. It may be called during
// one.
func (r *Reader) On(gpus []process.Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gpus = gpus
}

// Name names the reader in errors.
func (*Reader) Name() string { return deviceName }

// Close does nothing: nothing is kept open.
func (*Reader) Close() {}

// Read reads the control group of each process on a GPU. That one ends meanwhile is no
// error, and the exporter's own are nobody's job.
func (r *Reader) Read(time.Time) (Reading, []sysread.ReadError) {
	r.mu.Lock()
	gpus := r.gpus
	r.mu.Unlock()
	visible, err := r.kernel.Visible()
	if err != nil {
		return Reading{}, []sysread.ReadError{{Device: deviceName, Source: "namespace", Err: err}}
	}
	reading := Reading{Visible: sysread.Some(visible)}
	if !visible {
		return reading, nil
	}
	found := collection{seen: map[Job]bool{}}
	owners := lookup{kernel: r.kernel, owners: map[int]*Owner{}}
	for i := range gpus {
		for _, pid := range gpus[i].PIDs {
			if owner := owners.of(pid); owner != nil {
				found.add(Job{gpus[i].Name, *owner})
			}
		}
	}
	reading.Jobs, reading.Omitted = found.jobs(), found.omitted
	return reading, owners.errs
}

// lookup looks each process up once: one that uses eight GPUs is named eight times.
type lookup struct {
	kernel Kernel
	owners map[int]*Owner // nil: nobody's
	errs   []sysread.ReadError
}

// of returns whose a process is, nil if that is nobody or not known.
func (l *lookup) of(pid int) *Owner {
	owner, known := l.owners[pid]
	if known || len(l.owners) >= maxPIDs {
		return owner
	}
	owner, err := ownerBy(l.kernel, pid)
	if err != nil {
		l.errs = append(l.errs, sysread.ReadError{Device: deviceName, Source: "cgroup", Err: err})
	}
	l.owners[pid] = owner
	return owner
}

// ownerBy says whose a process is, nil if it is nobody's or gone.
func ownerBy(kernel Kernel, pid int) (*Owner, error) {
	stat, err := kernel.Stat(pid)
	switch {
	case err != nil && process.Gone(err), err == nil && (stat.Own || stat.Ended):
		return nil, nil //nolint:nilerr // a process that has ended is no error
	case err != nil:
		return nil, err
	}
	paths, err := kernel.Cgroups(pid)
	if err != nil {
		if process.Gone(err) {
			return nil, nil //nolint:nilerr // likewise
		}
		return nil, err
	}
	owner, found := ownerOf(paths)
	if !found {
		return nil, nil
	}
	after, err := kernel.Stat(pid)
	if err != nil || after.Start != stat.Start {
		return nil, nil //nolint:nilerr // the id has become another process's, or nobody's
	}
	return &owner, nil
}

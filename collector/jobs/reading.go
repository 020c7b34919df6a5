// Package jobs tells, when it is asked to, whose processes are on a GPU: of which Slurm
// job and step, or of which Kubernetes pod. It is off by default. Of a process nothing
// but its control group's path (/proc/PID/cgroup) and whether it lives is read, and of
// the path nothing but those numbers is kept.
//
// It needs the host's PID namespace: NVML names processes by their ids. What it reads
// is in no capture, raw or not.
package jobs

import (
	"cmp"
	"slices"

	"gdr_exporter/collector/sysread"
)

// Reading is what one read found.
type Reading struct {
	// Visible: processes have the ids here that they have on the host. Without it there
	// are no Jobs, which then does not mean that none run.
	Visible sysread.Maybe[bool]
	// Jobs are in order, each once, at most MaxJobs.
	Jobs []Job
	// Omitted are those beyond.
	Omitted int
}

// MaxJobs bounds the jobs of a Reading. A GPU has one job, seldom two, of one to three
// steps.
const MaxJobs = 256

// maxPIDs bounds the processes that one read looks at.
const maxPIDs = 2048

// Scheduler is who started a process.
type Scheduler string

// Schedulers. What neither of them started is no job.
const (
	Slurm      Scheduler = "slurm"
	Kubernetes Scheduler = "kubernetes"
)

// Owner is whose a process is.
type Owner struct {
	Scheduler Scheduler
	ID        string // Slurm's job id, or the pod's UID
	Step      string // of a Slurm job: 0, batch, extern, interactive; "" for none
}

// Job is an Owner with processes on a GPU.
type Job struct {
	GPU string // PCI address as sysfs writes it
	Owner
}

// collection gathers jobs.
type collection struct {
	seen    map[Job]bool
	omitted int
}

func (c *collection) add(job Job) {
	switch {
	case c.seen[job]:
	case len(c.seen) >= MaxJobs:
		c.omitted++
	default:
		c.seen[job] = true
	}
}

func (c *collection) jobs() []Job {
	jobs := make([]Job, 0, len(c.seen))
	for job := range c.seen {
		jobs = append(jobs, job)
	}
	slices.SortFunc(jobs, func(a, b Job) int {
		return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Scheduler, b.Scheduler), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Step, b.Step))
	})
	return jobs
}

package diagnosis

import (
	"fmt"
	"slices"
	"strings"

	"gdr_exporter/collector/process"
)

// Rules about what uses the node now.
const (
	idLiveSuspect   = "jobs_stage"
	idJobDisables   = "job_disables_gdr"
	idJobVariable   = "job_variable_without_effect"
	idJobMemlock    = "job_memlock"
	mostJobFindings = 16
)

var processRules = []rule{
	{Rule: Rule{idLiveSuspect, SeverityWarning, "a job seems to copy through host memory",
		"Bytes flow through the NIC, GPU processes have memory registered there, and no GPU memory is registered anywhere. NCCL_DEBUG=INFO shows GDRDMA where it is used; see the job's variables and its library's version."},
		judge: judgeSuspect},
	{Rule: Rule{idJobDisables, SeverityWarning, "a job switches GPUDirect RDMA off by itself",
		"Take the variable out of the job's environment, unless it is there to work around a fault: then that is to be found."},
		needs: []need{needProcesses}, judge: judgeJobDisables},
	{Rule: Rule{idJobMemlock, SeverityWarning, "a job has a small limit of locked memory",
		"ulimit -l unlimited, docker run --ulimit memlock=-1, or CAP_IPC_LOCK: registration of large buffers fails with ENOMEM."},
		needs: []need{needProcesses}, judge: judgeJobMemlock},
	{Rule: Rule{idJobVariable, SeverityInfo, "a job sets a variable that does not do what it seems to",
		"NCCL_IB_CUDA_SUPPORT was removed in 2.4.0 and NCCL_GPUDIRECT never existed: NCCL uses GPUDirect RDMA where it can, without them."},
		needs: []need{needProcesses}, judge: judgeJobVariables},
}

func judgeSuspect(n *node, j *judging) {
	for i := range n.live {
		switch use := &n.live[i]; use.Live {
		case LiveSuspect:
			j.find(Subject{Device: use.Device}, "%s", joined(use.Reasons))
		case LiveCannotTell:
			j.lack(joined(use.Reasons))
		default:
		}
	}
}

// jobs calls f for the jobs whose environment could be read, few enough to be read
// by somebody.
func (n *node) jobs(j *judging, f func(job *process.Job)) {
	for i := range n.processes.Jobs {
		job := &n.processes.Jobs[i]
		switch {
		case len(j.found) >= mostJobFindings:
			return
		case !job.Variables.Known:
			j.lack("environment of jobs: it needs root, or CAP_SYS_PTRACE")
		default:
			f(job)
		}
	}
}

func of(job *process.Job) Subject { return Subject{Other: fmt.Sprintf("pid %d", job.PID)} }

// notes are what variables of a job's environment do, of some effects.
func (n *node) notes(job *process.Job, of ...Effect) string {
	var seen []string
	for _, note := range JobOf(n.s, job) {
		if slices.Contains(of, note.Effect) {
			seen = append(seen, fmt.Sprintf("%s=%s (%s)", note.Variable, note.Value, note.Text))
		}
	}
	return strings.Join(seen, ", ")
}

func judgeJobDisables(n *node, j *judging) {
	n.jobs(j, func(job *process.Job) {
		if seen := n.notes(job, EffectStages); seen != "" {
			j.find(of(job), "pid %d: %s", job.PID, seen)
		}
	})
}

func judgeJobVariables(n *node, j *judging) {
	n.jobs(j, func(job *process.Job) {
		if seen := n.notes(job, EffectNone, EffectInvalid); seen != "" {
			j.find(of(job), "pid %d: %s", job.PID, seen)
		}
	})
}

func judgeJobMemlock(n *node, j *judging) {
	for i := range n.processes.Jobs {
		switch job := &n.processes.Jobs[i]; {
		case !job.Memlock.Known:
			j.lack("limits of jobs: it needs root, or CAP_SYS_PTRACE")
		case job.Memlock.Value < leastMemlock && len(j.found) < mostJobFindings:
			j.find(of(job), "pid %d has a limit of %s", job.PID, size(job.Memlock.Value))
		}
	}
}

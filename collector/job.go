package collector

import "gdr_exporter/collector/snapshot"

// Families of whose processes are on GPUs.
var (
	jobVisible = gauge("gdr_gpu_jobs_visible",
		"1 if the exporter is in the host's PID namespace, so that jobs can be told by the ids of processes; 0: none can.")
	gpuJobInfo = gauge("gdr_gpu_job_info",
		"A job with a compute process on a GPU, value 1, by the process's control group (/proc/PID/cgroup): scheduler slurm with job_id and step (a number, batch, extern, interactive), or kubernetes with the pod's UID as job_id.")
	gpuJobsOmitted = gauge("gdr_gpu_jobs_omitted",
		"Jobs of GPUs beyond the 256 that are shown.")
)

// showJobs shows whose processes are on the GPUs. Names of jobs are on this info series
// only, and on none of a measurement.
func showJobs(p *page, s *snapshot.Snapshot) {
	r := s.JobState()
	if r == nil {
		return
	}
	addMaybe(p, jobVisible, r.Visible, nil)
	if !r.Visible.Value {
		return
	}
	p.add(gpuJobsOmitted, float64(r.Omitted), nil)
	for _, job := range r.Jobs {
		p.add(gpuJobInfo, 1, pairs("gpu_address", job.GPU, "scheduler", string(job.Scheduler), "job_id", job.ID, "step", job.Step))
	}
}

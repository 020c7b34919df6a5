package jobs

import (
	"regexp"
	"strings"
)

// Forms of paths of control groups.
var (
	// slurm matches /slurm/uid_1000/job_7/step_0/task_0 of cgroup v1, where the first
	// part has the node's name behind it if there are several slurmd on a host, and
	// /system.slice/slurmstepd.scope/job_7/step_0/user/task_0 of v2, where it has the
	// node's name before it then.
	slurm = regexp.MustCompile(`(?:^|/)(?:slurm[^/]*(?:/uid_[0-9]+)?|[^/]*slurmstepd\.scope)/job_([0-9]{1,20})(?:/step_([0-9a-z]{1,20}))?(?:/|$)`)
	// pod matches .../kubepods/burstable/pod<uid>/... of the cgroupfs driver, and
	// .../kubepods-burstable-pod<uid with _>.slice/... of the systemd driver. The
	// uid of a static pod is 32 digits without dashes.
	pod = regexp.MustCompile(`(?:^|/)(?:kubepods[^/]*-)?pod([0-9a-f]{8}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{12})(?:\.slice)?(?:[/:]|$)`)
)

// ownerOf finds whose a process is by the paths of its control groups: one of cgroup
// v2, one for each controller of v1. Slurm's goes first: where slurmd itself runs in a
// pod, the pod says nothing of the job.
func ownerOf(paths []string) (Owner, bool) {
	for _, path := range paths {
		if match := slurm.FindStringSubmatch(path); match != nil {
			return Owner{Slurm, match[1], match[2]}, true
		}
	}
	for _, path := range paths {
		// In a node that is itself a container (kind) the path has two; the last is the
		// pod that its own kubelet knows.
		if all := pod.FindAllStringSubmatch(path, -1); len(all) > 0 && strings.Contains(path, "kubepods") {
			return Owner{Scheduler: Kubernetes, ID: strings.ReplaceAll(all[len(all)-1][1], "_", "-")}, true
		}
	}
	return Owner{}, false
}

package jobs

import (
	"strings"
	"testing"
)

const (
	testUID   = "0a1b2c3d-1111-2222-3333-444455556666"
	testHex   = "f00dfeedf00dfeedf00dfeedf00dfeedf00dfeedf00dfeedf00dfeedf00dfeed"
	staticUID = "0a1b2c3d11112222333344445555aaaa"
)

// TestOwnerOf has the paths that schedulers and runtimes are known to make.
func TestOwnerOf(t *testing.T) {
	slurmJob := func(id, step string) Owner { return Owner{Slurm, id, step} }
	pod := Owner{Scheduler: Kubernetes, ID: testUID}
	systemd := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(testUID, "-", "_") + ".slice/cri-containerd-" + testHex + ".scope"
	for name, test := range map[string]struct {
		want  Owner
		paths []string
	}{
		"slurm v1":                 {slurmJob("55", "0"), []string{"/user.slice", "/slurm/uid_1000/job_55/step_0/task_1", "/"}},
		"slurm v1, several slurmd": {slurmJob("55", "batch"), []string{"/slurm_node1/uid_0/job_55/step_batch/task_0"}},
		"slurm v1, no step":        {slurmJob("55", ""), []string{"/slurm/uid_1000/job_55"}},
		"slurm v2":                 {slurmJob("1234567", "3"), []string{"/system.slice/slurmstepd.scope/job_1234567/step_3/user/task_0"}},
		"slurm v2, extern":         {slurmJob("7", "extern"), []string{"/system.slice/slurmstepd.scope/job_7/step_extern/user/task_special"}},
		"slurm v2, several slurmd": {slurmJob("7", "0"), []string{"/system.slice/node1_slurmstepd.scope/job_7/step_0/user/task_0"}},
		"slurm, other namespace":   {slurmJob("7", "0"), []string{"/../../../system.slice/slurmstepd.scope/job_7/step_0/user/task_0"}},
		"slurmd in a pod":          {slurmJob("7", "0"), []string{systemd + "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"}},
		"cgroupfs":                 {pod, []string{"/kubepods/burstable/pod" + testUID + "/" + testHex}},
		"cgroupfs, guaranteed":     {pod, []string{"/kubepods/pod" + testUID + "/" + testHex}},
		"systemd":                  {pod, []string{systemd}},
		"systemd, other namespace": {pod, []string{"/../../kubepods-pod" + strings.ReplaceAll(testUID, "-", "_") + ".slice/crio-" + testHex + ".scope/container"}},
		"containerd, colons":       {pod, []string{"/kubepods-burstable-pod" + strings.ReplaceAll(testUID, "-", "_") + ".slice:cri-containerd:" + testHex}},
		"static pod":               {Owner{Scheduler: Kubernetes, ID: staticUID}, []string{"/kubepods/besteffort/pod" + staticUID + "/" + testHex}},
		"kind":                     {pod, []string{"/kubelet/kubepods/pod99999999-1111-2222-3333-444455556666/" + testHex + "/kubelet/kubepods/pod" + testUID + "/" + testHex}},
	} {
		if got, ok := ownerOf(test.paths); !ok || got != test.want {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
	for _, path := range []string{
		"", "/", "/user.slice/user-1000.slice/session-3.scope", "/system.slice/docker-" + testHex + ".scope", "/docker/" + testHex,
		"/system.slice/slurmd.service", "/system.slice/slurmstepd.scope/system", "/slurm/uid_1000", "/home/slurm/job_x", "/slurmish/x/job_5",
		"/kubepods/burstable", "/kubepods/pod123", "/machine.slice/libpod-" + testHex + ".scope", "/pod" + testUID, "/slurm/uid_0/job_" + strings.Repeat("9", 50),
	} {
		if got, ok := ownerOf([]string{path}); ok {
			t.Errorf("%q: %+v", path, got)
		}
	}
}

// FuzzOwnerOf: what is found is short, and in the text.
func FuzzOwnerOf(f *testing.F) {
	f.Add("/slurm/uid_1000/job_55/step_0/task_1")
	f.Add("/kubepods/burstable/pod" + testUID + "/" + testHex)
	f.Fuzz(func(t *testing.T, path string) {
		got, ok := ownerOf([]string{path})
		if !ok {
			return
		}
		if got.ID == "" || len(got.ID) > 36 || len(got.Step) > 20 || !strings.Contains(strings.ReplaceAll(path, "_", "-"), got.ID) || !strings.Contains(path, got.Step) {
			t.Errorf("%q: %+v", path, got)
		}
	})
}

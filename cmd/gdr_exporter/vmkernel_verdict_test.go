package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/status"
	"gdr_exporter/gpu/cuda/cudatest"
	"gdr_exporter/gpu/nvmltest"
)

// Tests of verdicts: a condition is made on the host, the next scrape says what it
// means for a pair and why, and once it is undone the pair is well again. The NIC is
// soft-RoCE on a function of the tree, and a device of the test module gdrtest_ib
// stands for an InfiniBand NIC; the GPUs are stand-ins.

// judgedPair is the pair that can be measured; infiniPair has an InfiniBand port,
// ports with ACS between, and cannot be.
var (
	judgedPair = [2]string{gdrGPUs[0], "rxenic0"}
	infiniPair = [2]string{gdrGPUs[1], "gdrtest0"}
)

// judged is an exporter whose verdicts are looked at.
type judged struct{ *measuringExporter }

// newJudged is an exporter that reads everything at each scrape, and measures only
// when told to.
func newJudged(t *testing.T, args ...string) *judged {
	t.Helper()
	inKernel(t)
	realDriver(t)
	addNIC(t, gdrNIC0, judgedPair[1])
	named := fmt.Sprintf("--probe.pairs=%s/%s,%s/%s", judgedPair[0], judgedPair[1], infiniPair[0], infiniPair[1])
	args = append(append([]string{"--path.procfs=/proc", named}, fresh...), args...)
	j := &judged{newMeasuring(t, judgedPair[1], args...)}
	gpus := gdrGPUs[0] + "," + gdrGPUs[1]
	j.environ = append(j.environ, "DOUBLE_GPUS="+gpus, "NVMLTEST_GPUS="+gpus)
	return j
}

func startJudged(t *testing.T, args ...string) *judged {
	t.Helper()
	j := newJudged(t, args...)
	j.start()
	return j
}

// realDriver has the real /proc show an NVIDIA driver, and the second GPU be bound to
// it, once for all tests: all else in /proc is as it is, so that processes and limits
// can be seen too.
func realDriver(t *testing.T) {
	t.Helper()
	driverShown.Do(func() {
		sh(t, "mount", "-t", "tmpfs", "none", "/proc/driver")
		nvmltest.Load(t, "/proc", nvmltest.Version)
		prepare(t, gdrGPUs[1])
	})
}

var driverShown sync.Once

// look is one scrape of everything.
func (j *judged) look() series {
	j.t.Helper()
	return j.scrapePath("/metrics")
}

// await looks until a page is as wanted.
func (j *judged) await(limit time.Duration, what string, wanted func(series) bool) series {
	j.t.Helper()
	began := time.Now()
	for {
		page := j.look()
		switch took := time.Since(began); {
		case wanted(page):
			j.t.Logf("%s: after %v", what, took.Round(100*time.Millisecond))
			return page
		case took > limit:
			j.t.Fatalf("not within %v: %s; findings %v", limit, what, page.allFindings())
		}
		time.Sleep(time.Second)
	}
}

// measurePair measures the pair that can be, now.
func (j *judged) measurePair() status.Attempt {
	j.t.Helper()
	code, out := j.command("probe", "--force", "--gpu="+judgedPair[0], "--device="+judgedPair[1])
	var answer status.Attempts
	if err := json.Unmarshal([]byte(out), &answer); err != nil || len(answer.Attempts) != 1 {
		j.t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	return answer.Attempts[0]
}

// wantDirect measures the pair and expects it to be direct then.
func (j *judged) wantDirect(when string) {
	j.t.Helper()
	if attempt := j.measurePair(); attempt.Result != "fine" {
		j.t.Errorf("%s: %+v", when, attempt)
	}
	page := j.look()
	j.wantPath(page, when, judgedPair, diagnosis.StateDirect, diagnosis.EvidenceMeasured)
	page.wantNoFinding(j.t, when, "path_staged", "")
	page.wantNoFinding(j.t, when, "path_unverified", judgedPair[1])
}

// wantPath expects a pair's state and evidence, each with all members.
func (j *judged) wantPath(page series, when string, pair [2]string, state diagnosis.State, evidence diagnosis.Evidence) {
	j.t.Helper()
	for _, s := range diagnosis.States {
		key := named("gdr_path_state", "gpu_address", pair[0], "device", pair[1], "state", string(s))
		if got, found := page[key]; !found || (got == 1) != (s == state) {
			j.t.Errorf("%s: %s is %v (there: %v), want state %s", when, key, got, found, state)
		}
	}
	for _, e := range diagnosis.Evidences {
		key := named("gdr_path_evidence", "gpu_address", pair[0], "device", pair[1], "evidence", string(e))
		if got, found := page[key]; !found || (got == 1) != (e == evidence) {
			j.t.Errorf("%s: %s is %v (there: %v), want evidence %s", when, key, got, found, evidence)
		}
	}
}

// findings are those of a rule that name a device; "": all of the rule.
func (s series) findings(rule, device string) []string {
	var found []string
	for key := range s.family("gdr_finding") {
		if strings.Contains(key, fmt.Sprintf("rule=%q", rule)) && (device == "" || isAbout(key, device)) {
			found = append(found, key)
		}
	}
	slices.Sort(found)
	return found
}

func (s series) wantFinding(t *testing.T, when, rule, device string) {
	t.Helper()
	if len(s.findings(rule, device)) == 0 {
		t.Errorf("%s: no finding %s of device %q among %v", when, rule, device, s.allFindings())
	}
}

func (s series) wantNoFinding(t *testing.T, when, rule, device string) {
	t.Helper()
	if found := s.findings(rule, device); len(found) > 0 {
		t.Errorf("%s: %v", when, found)
	}
}

// allFindings are the findings in a few words.
func (s series) allFindings() []string {
	var found []string
	for key := range s.family("gdr_finding") {
		found = append(found, strings.TrimPrefix(key, "gdr_finding"))
	}
	slices.Sort(found)
	return found
}

// peermemFile is the module that stands for nvidia-peermem.
func peermemFile(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/run/vmtest/*peermem*.ko")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	return files[0]
}

// TestInKernelVerdicts makes one condition after the other. One exporter sees them
// all, so that what it holds on to for a while is seen to go in the end.
func TestInKernelVerdicts(t *testing.T) {
	j := startJudged(t)
	j.wantPath(j.look(), "at first", judgedPair, diagnosis.StateUnknown, diagnosis.EvidenceNone)
	j.testRedirect()
	j.look().wantNoFinding(t, "the IOMMU passes through", "iommu_translating", "") // as this kernel was told at boot
	j.wantDirect("nothing wrong")
	init := j.testInit()
	j.testPortDown()
	j.testPeermemGone()
	j.testUnregistrable()
	j.testRemoved()
	init()
	gone := []string{"port_down", "port_no_subnet_manager", "nic_missing", "path_staged", "peermem_not_loaded", "peermem_refused"}
	page := j.await(4*time.Minute, "no finding is left of what is undone", func(page series) bool {
		return !slices.ContainsFunc(gone, func(rule string) bool { return len(page.findings(rule, "")) > 0 })
	})
	j.wantPath(page, "in the end", judgedPair, diagnosis.StateDirect, diagnosis.EvidenceMeasured)
}

// testRedirect: ports with ACS between GPU and NIC of a pair on a common switch, as
// the kernel sets them at boot, are found until their bits are cleared.
func (j *judged) testRedirect() {
	t := j.t
	set := func(bits string) series {
		for _, address := range []string{gdrACS0, gdrACS1} {
			sh(t, "setpci", "-s", address, "ECAP_ACS+6.w="+bits)
		}
		return j.look()
	}
	page := j.look()
	page.wantFinding(t, "ACS set at boot", "acs_redirect", infiniPair[1])
	page.wantNoFinding(t, "no ACS between", "acs_redirect", judgedPair[1])
	set("0").wantNoFinding(t, "ACS cleared", "acs_redirect", "")
	page = set("1d")
	page.wantFinding(t, "ACS set", "acs_redirect", infiniPair[1])
	page.wantFinding(t, "and the pair says so", "path_unverified", infiniPair[1])
	j.wantPath(page, "ACS set", infiniPair, diagnosis.StateUnknown, diagnosis.EvidenceNone)
	if j.logged("msg=finding", "rule=acs_redirect", gdrSwitch, gdrACS0+" 0x1d", gdrACS1+" 0x1d") == 0 {
		t.Errorf("the ports with ACS are not named: %s", j.log)
	}
	set("0").wantNoFinding(t, "ACS cleared again", "acs_redirect", "")
	set("1d")
}

// testInit: an InfiniBand port that was ACTIVE falls back to INIT and is down at
// once; after a minute it is said to have no subnet manager. The rest is for later:
// that the cause is known, and that it is undone.
func (j *judged) testInit() (later func()) {
	t := j.t
	j.look().wantNoFinding(t, "ACTIVE", "port_down", infiniPair[1])
	setModule(t, "port_state", "2")
	page := j.look()
	page.wantFinding(t, "INIT", "port_down", infiniPair[1])
	page.wantNoFinding(t, "INIT for a moment", "port_no_subnet_manager", "")
	j.wantPath(page, "INIT", infiniPair, diagnosis.StateUnknown, diagnosis.EvidenceNone)
	return func() {
		page := j.await(90*time.Second, "no subnet manager", func(page series) bool { return len(page.findings("port_no_subnet_manager", infiniPair[1])) > 0 })
		j.wantPath(page, "no subnet manager", infiniPair, diagnosis.StateUnknown, diagnosis.EvidenceNone)
		writeParameter(t, parameters+"/port_state", "4")
	}
}

// setLink brings the NIC's network interface up or down and waits for its port.
func (j *judged) setLink(link, way, state string) {
	sh(j.t, "ip", "link", "set", link, way)
	within(j.t, patience, "the port is "+way, func() bool {
		return strings.HasPrefix(optionalText(classDir+"/"+j.device+"/ports/1/state"), state+":")
	})
}

// testPortDown: with its port a measured pair loses its verdict.
func (j *judged) testPortDown() {
	t := j.t
	link := strings.TrimSpace(readText(t, classDir+"/"+j.device+"/parent"))
	j.look().wantNoFinding(t, "port up", "port_down", judgedPair[1])
	j.setLink(link, "down", "1")
	page := j.look()
	j.wantPath(page, "port down", judgedPair, diagnosis.StateUnknown, diagnosis.EvidenceNone)
	page.wantFinding(t, "port down", "port_down", judgedPair[1])
	page.wantFinding(t, "port down", "path_unverified", judgedPair[1])
	j.wantReason("state=unknown", "before=direct", "the port went down since", "cause=port_down")
	j.setLink(link, "up", "4")
	j.look()
	j.wantDirect("port up again")
}

// testPeermemGone: nvidia-peermem goes, and the pair is staged with the next scrape,
// since runs found that its NIC cannot register dma-bufs either.
func (j *judged) testPeermemGone() {
	t := j.t
	j.look().wantNoFinding(t, "with peermem", "peermem_not_loaded", "")
	sh(t, "rmmod", "nvidia_peermem")
	page := j.look()
	j.wantPath(page, "without peermem", judgedPair, diagnosis.StateStaged, diagnosis.EvidenceInferred)
	page.wantFinding(t, "without peermem", "path_staged", judgedPair[1])
	page.wantFinding(t, "without peermem", "peermem_not_loaded", "")
	j.wantReason("state=staged", "before=direct", "evidence=inferred", "neither nvidia_peermem nor nv_peer_mem is loaded", "registering it failed (EOPNOTSUPP)", "cause=peermem_not_loaded")
	sh(t, "insmod", peermemFile(t))
	page = j.look()
	j.wantPath(page, "with peermem again", judgedPair, diagnosis.StateUnknown, diagnosis.EvidenceNone)
	page.wantNoFinding(t, "with peermem again", "peermem_not_loaded", "")
	j.wantDirect("measured with peermem again")
}

// testUnregistrable: GPU memory cannot be registered although all is loaded, which
// the kernel's errno tells a run. One run alone is not believed.
func (j *judged) testUnregistrable() {
	t := j.t
	cudatest.Set(t, j.cuda, "DOUBLE_UNREGISTRABLE=1")
	if attempt := j.measurePair(); attempt.Result == "fine" || !strings.Contains(attempt.Text, "EFAULT") {
		t.Errorf("%+v", attempt)
	}
	staged := named("gdr_path_state", "gpu_address", judgedPair[0], "device", judgedPair[1], "state", "staged")
	page := j.await(2*time.Minute, "memory that cannot be registered is found", func(page series) bool { return page[staged] == 1 })
	page.wantFinding(t, "unregistrable", "path_staged", judgedPair[1])
	page.wantFinding(t, "unregistrable", "peermem_refused", judgedPair[1])
	j.wantReason("state=staged", "before=direct", "peermem EFAULT", "dmabuf EOPNOTSUPP", "cause=peermem_refused")
	cudatest.Set(t, j.cuda)
	j.wantDirect("registrable again")
}

// testRemoved: the RDMA device goes, and comes back.
func (j *judged) testRemoved() {
	t := j.t
	link := strings.TrimSpace(readText(t, classDir+"/"+j.device+"/parent"))
	j.look().wantNoFinding(t, "there", "nic_missing", "")
	sh(t, "rdma", "link", "delete", j.device)
	page := j.look()
	page.wantFinding(t, "removed", "nic_missing", judgedPair[1])
	j.wantPath(page, "removed", judgedPair, diagnosis.StateUnknown, diagnosis.EvidenceNone)
	j.wantReason("state=unknown", "before=direct", "the NIC is gone", "cause=nic_missing")
	sh(t, "rdma", "link", "add", j.device, "type", "rxe", "netdev", link)
	within(t, patience, "the port is active", func() bool { return strings.HasPrefix(optionalText(classDir+"/"+j.device+"/ports/1/state"), "4:") })
	j.look()
	j.wantDirect("there again")
}

// wantReason expects that a change of a pair's state was logged with these parts.
func (j *judged) wantReason(parts ...string) {
	j.t.Helper()
	if j.logged(append([]string{"msg=path"}, parts...)...) == 0 {
		j.t.Errorf("not logged: %q; the log:\n%s", parts, j.log)
	}
}

// TestInKernelVerdictTranslated: this kernel was not told to have its IOMMU pass DMA
// through, which is found at once; a run that shows that it does no harm ends that.
// Kernels change it without a boot for functions that are alone in their group only.
func TestInKernelVerdictTranslated(t *testing.T) {
	j := startJudged(t)
	page := j.look()
	page.wantFinding(t, "the IOMMU translates", "iommu_translating", judgedPair[1])
	j.wantPath(page, "the IOMMU translates", judgedPair, diagnosis.StateUnknown, diagnosis.EvidenceNone)
	j.wantDirect("the IOMMU translates")
	j.look().wantNoFinding(t, "it does no harm", "iommu_translating", "")
}

// TestInKernelVerdictMemlock: limits of locked memory. The exporter's own keeps it
// from measuring, which is the reason that is told; a container runtime's and a job's
// are findings.
func TestInKernelVerdictMemlock(t *testing.T) {
	inKernel(t)
	dir := t.TempDir()
	sh(t, "cp", "/bin/sleep", dir+"/containerd")
	runtime := startLimited(t, dir+"/containerd", "1000")
	job := startLimited(t, "ibv_asyncwatch", "-d", "rxe0")
	exporter := os.Getenv(binaryEnv)
	limited := fmt.Sprintf("#!/bin/sh\nexec setpriv --bounding-set=-ipc_lock prlimit --memlock=65536:-1 %s \"$@\"\n", exporter)
	if err := os.WriteFile(dir+"/limited", []byte(limited), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv(binaryEnv, dir+"/limited")
	j := newJudged(t, "--collector.process")
	cudatest.Set(t, j.nvml, fmt.Sprint("PROCESSES=", job.Process.Pid))
	j.start()
	if attempt := j.measurePair(); attempt.Skip != "memlock" {
		t.Errorf("%+v", attempt)
	}
	page := j.await(patience, "the runtime's limit", func(page series) bool { return len(page.findings("memlock_daemon", "")) > 0 })
	page.wantFinding(t, "a job's limit", "job_memlock", "")
	j.wantPath(page, "the exporter's limit", judgedPair, diagnosis.StateUnknown, diagnosis.EvidenceNone)
	sh(t, "prlimit", "--memlock=unlimited", "--pid", fmt.Sprint(job.Process.Pid))
	sh(t, "prlimit", "--memlock=unlimited", "--pid", fmt.Sprint(runtime.Process.Pid))
	sh(t, "prlimit", "--memlock=unlimited", "--pid", fmt.Sprint(j.process.Pid))
	j.wantDirect("without limit")
	j.look().wantNoFinding(t, "without limit", "job_memlock", "")

	// All processes are looked through every five minutes only, and at a start.
	j.end(t)
	j.start()
	j.look()
	j.look().wantNoFinding(t, "the runtime without limit", "memlock_daemon", "")
}

// startLimited starts a program that may lock 64 KiB of memory.
func startLimited(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("prlimit", append([]string{"--memlock=65536:-1", program}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

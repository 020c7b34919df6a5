package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/gpu/cuda/cudatest"
)

// suspectSoon is how long a NIC must look as if its job were staging in this test:
// ten minutes otherwise.
const suspectSoon = 10 * time.Second

// lookAlike is for how long something that looks like a job that stages is watched:
// a rate is known after thirty seconds.
const lookAlike = 35*time.Second + suspectSoon

// flowHere is the flow in bytes per second that counts in this test: without hardware
// virtualisation soft-RoCE moves some 20 MB/s, and what it counts is packets, each of
// which is taken for the smallest.
const flowHere = 100e3

// TestInKernelLiveUse: real traffic over soft-RoCE, of processes that NVML says use
// a GPU or not. With traffic and nothing of GPU memory registered the NIC is suspect;
// whatever else moves bytes or holds the device is not.
func TestInKernelLiveUse(t *testing.T) {
	j := startJudged(t, fmt.Sprint("--live.suspect-after=", suspectSoon), fmt.Sprint("--live.flow=", flowHere))
	j.wantLive(j.look(), "nobody", diagnosis.LiveIdle)

	stopStorage := storage(t)
	j.stays("kernel storage over RDMA", diagnosis.LiveIdle)

	watch := exec.Command("ibv_asyncwatch", "-d", j.device)
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	stopWatching := func() { _ = watch.Process.Kill(); _ = watch.Wait() }
	t.Cleanup(stopWatching)
	j.useGPU(watch.Process.Pid)
	j.stays("a GPU process has the device open, and storage moves bytes", diagnosis.LiveCannotTell)
	stopStorage()
	stopWatching()

	pids, stop := startWriting(t, j.device, 18701, "-s", "1048576", "-D", "5") // from buffers of 2 MiB
	j.useGPU()
	j.stays("a job without a GPU", diagnosis.LiveIdle)

	j.useGPU(pids...)
	page := j.awaitLive("a job that stages", diagnosis.LiveSuspect)
	page.wantFinding(t, "a job that stages", "jobs_stage", j.device)
	j.wantPath(page, "a job that stages", judgedPair, diagnosis.StateUnknown, diagnosis.EvidenceNone)

	// Registrations of the real module hold references to it.
	live := "/sys/module/nvidia_peermem/parameters/live_mrs"
	writeParameter(t, live, "3")
	writeParameter(t, "/sys/module/nvidia_peermem/parameters/num_alloc_mrs", "3")
	page = j.look()
	j.wantLive(page, "peer memory", diagnosis.LiveInUse)
	page.wantNoFinding(t, "peer memory", "jobs_stage", "")
	j.wantPath(page, "peer memory", judgedPair, diagnosis.StateDirect, diagnosis.EvidenceInferred)
	writeParameter(t, live, "0")
	writeParameter(t, "/sys/module/nvidia_peermem/parameters/num_alloc_mrs", "0")
	j.wantLive(j.look(), "no peer memory any more", diagnosis.LiveCannotTell)

	stop()
	j.awaitLive("the job has ended", diagnosis.LiveIdle)

	j.useGPU(j.process.Pid)
	j.wantDirect("the exporter's own measurement")
	j.stays("the exporter's own measurement", diagnosis.LiveIdle)
}

// useGPU has NVML say which processes use the GPU.
func (j *judged) useGPU(pids ...int) {
	j.t.Helper()
	var text []string
	for _, pid := range pids {
		text = append(text, strconv.Itoa(pid))
	}
	cudatest.Set(j.t, j.nvml, "PROCESSES="+strings.Join(text, ","))
}

func (j *judged) liveKey(live diagnosis.Live) string {
	return named("gdr_rdma_device_live_gdr", "device", j.device, "state", string(live))
}

// wantLive expects what is said of the NIC's use, with all members of the set.
func (j *judged) wantLive(page series, when string, want diagnosis.Live) {
	j.t.Helper()
	for _, live := range diagnosis.Lives {
		if got, found := page[j.liveKey(live)]; !found || (got == 1) != (live == want) {
			j.t.Errorf("%s: %s is %v (there: %v), want %s", when, j.liveKey(live), got, found, want)
		}
	}
}

func (j *judged) awaitLive(what string, want diagnosis.Live) series {
	j.t.Helper()
	page := j.await(2*time.Minute, what, func(page series) bool { return page[j.liveKey(want)] == 1 })
	j.wantLive(page, what, want)
	return page
}

// stays watches something for long enough to become suspect: it never is, and is
// what is wanted in the end.
func (j *judged) stays(what string, want diagnosis.Live) {
	j.t.Helper()
	var page series
	for began := time.Now(); time.Since(began) < lookAlike; time.Sleep(time.Second) {
		page = j.look()
		if page[j.liveKey(diagnosis.LiveSuspect)] != 0 || len(page.findings("jobs_stage", "")) > 0 {
			j.t.Fatalf("%s: suspect after %v", what, time.Since(began))
		}
	}
	j.wantLive(page, what, want)
}

// storage reads from a block device over NVMe over RDMA, from this machine to itself:
// the kernel's own traffic, with no process behind it.
func storage(t *testing.T) (stop func()) {
	t.Helper()
	sh(t, "modprobe", "-a", "nvmet_rdma", "nvme_rdma", "null_blk")
	const config = "/sys/kernel/config"
	if _, err := os.Stat(config + "/nvmet"); err != nil {
		sh(t, "mount", "-t", "configfs", "none", config)
	}
	subsystem, port := config+"/nvmet/subsystems/gdrtest", config+"/nvmet/ports/1"
	for _, dir := range []string{subsystem, subsystem + "/namespaces/1", port} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, setting := range [][2]string{
		{subsystem + "/attr_allow_any_host", "1"}, {subsystem + "/namespaces/1/device_path", "/dev/nullb0"}, {subsystem + "/namespaces/1/enable", "1"},
		{port + "/addr_trtype", "rdma"}, {port + "/addr_adrfam", "ipv4"}, {port + "/addr_traddr", "10.78.0.1"}, {port + "/addr_trsvcid", "4420"},
	} {
		writeFile(t, setting[0], setting[1])
	}
	if err := os.Symlink(subsystem, port+"/subsystems/gdrtest"); err != nil {
		t.Fatal(err)
	}
	writeFile(t, "/dev/nvme-fabrics", "transport=rdma,traddr=10.78.0.1,trsvcid=4420,nqn=gdrtest,nr_io_queues=1")
	within(t, patience, "the block device is there", func() bool { _, err := os.Stat("/dev/nvme0n1"); return err == nil })
	read := exec.Command("sh", "-c", "while dd if=/dev/nvme0n1 of=/dev/null bs=1M count=256 iflag=direct; do :; done")
	output := &lockedBuffer{}
	read.Stdout, read.Stderr = output, output
	if err := read.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = read.Process.Kill()
		writeFile(t, "/sys/class/nvme/nvme0/delete_controller", "1") // ends dd too
		_ = read.Wait()
		_ = os.Remove(port + "/subsystems/gdrtest")
		t.Logf("storage: %s", output)
	})
	t.Cleanup(stop)
	return stop
}

package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/podresources/kubelettest"
	"gdr_exporter/rdma/rdmatest"
)

// TestHolderFlags: what says which devices there are must be on for those who hold them.
func TestHolderFlags(t *testing.T) {
	for args, want := range map[string]string{
		"": "", "--collector.jobs": "", "--collector.jobs --no-collector.gpu": "needs the collector gpu", "--no-collector.gpu": "",
		"--kubernetes.pod-resources=/k.sock": "", "--kubernetes.pod-resources=/k.sock --no-collector.gpu": "",
		"--kubernetes.pod-resources=/k.sock --no-collector.gpu --no-collector.rdma": "needs the collector gpu or rdma",
		"--kubernetes.pod-resources= --no-collector.gpu --no-collector.rdma":        "",
	} {
		c, _, err := parseOnly(strings.Fields(args)...)
		if err != nil {
			t.Fatal(args, err)
		}
		if err := c.validate(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
		if on := c.reads("pods"); on != strings.Contains(args, "pod-resources=/") {
			t.Errorf("%q: pods are read: %v", args, on)
		}
		if on := c.reads("jobs"); on != strings.Contains(args, "collector.jobs") {
			t.Errorf("%q: jobs are read: %v", args, on)
		}
	}
	c, _, err := parseOnly("--kubernetes.pod-resources=unix:///run/k.sock")
	if err != nil || c.pods.path != "/run/k.sock" {
		t.Errorf("%+v, %v", c.pods, err)
	}
}

// TestServePods: the program with a kubelet shows pods, with one that hangs it answers
// all the same, and by default it asks nobody.
func TestServePods(t *testing.T) {
	t.Parallel()
	tree := rdmatest.New()
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
	root := t.TempDir()
	if err := tree.WriteTo(root); err != nil {
		t.Fatal(err)
	}
	k := kubelettest.Start(t, kubelettest.Pod("train-0", kubelettest.Container("main", "rdma/ib", "mlx5_0")))
	socket := "--kubernetes.pod-resources=" + k.Socket
	r := serveTree(t, root, socket, "--scrape.max-age=0s")
	const series = `gdr_rdma_device_pod_info{container_name="main",device="mlx5_0",device_id="mlx5_0",pod_name="train-0",pod_namespace="team",resource="rdma/ib"} 1`
	waitUntil(t, "the pod is shown", func() bool { return strings.Contains(r.get(t, "/metrics").body, series) })
	if body := r.get(t, "/metrics?collect[]=pods").body; !strings.Contains(body, series) || strings.Contains(body, "gdr_rdma_devices ") {
		t.Errorf("pods alone: %s", body)
	}
	if reply := r.get(t, "/metrics?collect[]=jobs"); reply.code != 400 {
		t.Errorf("jobs, which are off: %d", reply.code)
	}
	if calls := k.Calls(); calls != 1 {
		t.Errorf("%d calls within 30 seconds", calls)
	}

	release := k.Hang()
	defer release()
	hung := serveTree(t, root, socket, "--scrape.max-age=0s", "--collector.jobs")
	began := time.Now()
	body := hung.get(t, "/metrics", "X-Prometheus-Scrape-Timeout-Seconds", "60").body
	if took := time.Since(began); !strings.Contains(body, "gdr_rdma_devices 1") || strings.Contains(body, "gdr_pod_resources_up") || took > 5*time.Second && regexp.MustCompile(`gdr_device_read_stuck\{.*\} 1`).MatchString(body) {
		t.Errorf("a kubelet that hangs: after %v %s", took, body)
	}

	waitUntil(t, "the kubelet that hangs was asked", func() bool { return k.Calls() >= 2 }) // a page does not wait for that
	calls := k.Calls()
	plain := serveTree(t, root)
	if body := plain.get(t, "/metrics").body; strings.Contains(body, "pod") || strings.Contains(body, "gdr_gpu_job") || k.Calls() != calls {
		t.Errorf("by default: %s", body)
	}
	absent := serveTree(t, root, "--kubernetes.pod-resources="+filepath.Join(root, "none.sock"), "--scrape.max-age=0s")
	waitUntil(t, "it is 0", func() bool { return strings.Contains(absent.get(t, "/metrics").body, "gdr_pod_resources_up 0") })
	if body := absent.get(t, "/metrics").body; !strings.Contains(body, `gdr_read_errors_total{collector="pods",device="kubelet",errno="ENOENT",port="",source="list"} 1`) {
		t.Errorf("the error is not counted: %s", body)
	}
	if log := absent.stderr.String(); strings.Count(log, "kubelet") != 1 {
		t.Errorf("not told once: %s", log)
	}
}

// TestReplayHasNoPods: in a replay nobody of this host is asked.
func TestReplayHasNoPods(t *testing.T) {
	t.Parallel()
	k := kubelettest.Start(t, kubelettest.Pod("train-0", kubelettest.Container("main", "rdma/ib", "mlx5_0")))
	r := serveWith(t, "--web.listen-address=127.0.0.1:0", "--replay=h100-8x8", "--kubernetes.pod-resources="+k.Socket, "--collector.jobs")
	if body := r.get(t, "/metrics").body; strings.Contains(body, "pod_") || strings.Contains(body, "gdr_gpu_job") || !strings.Contains(body, "gdr_gpu_info{") || k.Calls() != 0 {
		t.Errorf("%d calls", k.Calls())
	}
}

package chart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
)

const (
	showRelease   = "gdr-exporter"
	showNamespace = "fabric"
	upgraded      = 10 // GPU nodes beside those with taints
)

// TestShow installs, upgrades and removes the chart on a real API server with
// controller-manager and scheduler.
func TestShow(t *testing.T) {
	c := newCluster(t)
	want := showNodes(c)
	c.kubectl("create", "namespace", showNamespace)
	c.wait("namespace has its service account", func() (bool, string) {
		_, err := c.run("", "kubetest/cluster", "kubectl", "-n", showNamespace, "get", "serviceaccount", "default")
		return err == nil, fmt.Sprint(err)
	})
	c.must("apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: nvidia}\nhandler: nvidia\n", "kubetest/cluster", "kubectl", "apply", "-f", "-")
	before := c.objects()

	for _, step := range []struct {
		name string
		run  func(t *testing.T, c *cluster, want []string)
	}{
		{"validated by the server", showValidation},
		{"Pod Security", showPodSecurity},
		{"installed", showInstall},
		{"upgraded", showUpgrade},
		{"client label", showClientLabel},
		{"other monitor", showServiceMonitor},
		{"removed", func(t *testing.T, c *cluster, _ []string) { showRemoval(t, c, before) }},
		{"between nodes", showPeers},
		{"removed between nodes", func(t *testing.T, c *cluster, _ []string) { showRemoval(t, c, before) }},
		{"plain manifests", showManifests},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			outer := c.t
			c.t = t
			defer func() { c.t = outer }()
			step.run(t, c, want)
		}) {
			return
		}
	}
}

// showNodes makes nodes of all kinds, and returns those that should have a pod.
func showNodes(c *cluster) []string {
	const gpu, rdma = "nvidia.com/gpu.present=true", "feature.node.kubernetes.io/pci-15b3.present=true"
	nodes := []struct {
		name string
		with []string
		pod  bool
	}{
		{"gpu-tainted", []string{gpu, "nvidia.com/gpu=present:NoSchedule"}, true},
		{"gpu-and-rdma", []string{gpu, rdma}, true},
		{"rdma", []string{rdma}, true},
		{"cpu", nil, false},
		{"gpu-of-others", []string{gpu, "dedicated=others:NoSchedule"}, false},
		{"gpu-gone", []string{"nvidia.com/gpu.present=false"}, false},
		{"control-plane", []string{"node-role.kubernetes.io/control-plane=:NoSchedule"}, false},
	}
	var want []string
	for _, node := range nodes {
		c.node(node.name, node.with...)
		if node.pod {
			want = append(want, node.name)
		}
	}
	for i := range upgraded {
		name := fmt.Sprintf("gpu-%d", i)
		c.node(name, gpu, rdma)
		want = append(want, name)
	}
	slices.Sort(want)
	return want
}

// showValidation lets the API server look at the objects of every case, with
// the real definitions of the Prometheus operator's kinds.
func showValidation(t *testing.T, c *cluster, _ []string) {
	c.kubectl("create", "namespace", "monitoring")
	all := cases(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		rendered, err := Render(load(t), Release{showRelease, showNamespace}, parse(t, all[name]))
		if err != nil {
			t.Fatal(err)
		}
		out := c.must(strings.Join(rendered.Objects, "---\n"), "kubetest/cluster", "kubectl", "create", "--dry-run=server", "--validate=strict", "-f", "-")
		t.Logf("%s: %d objects accepted", name, strings.Count(out, "created"))
	}
	c.kubectl("delete", "namespace", "monitoring")
	// The definitions are the real ones: a mistake is refused.
	_, err := c.run("apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: x}\nspec: {groups: [{name: g, rules: [{alert: A, expr: up, for: soon}]}]}\n",
		"kubetest/cluster", "kubectl", "-n", showNamespace, "create", "--dry-run=server", "-f", "-")
	if err == nil {
		t.Error("the server takes any PrometheusRule")
	}
}

// install is helm install or upgrade.
func (c *cluster) install(values ...string) {
	c.t.Helper()
	began := time.Now()
	c.must("", c.helm, append([]string{"upgrade", "--install", showRelease, Folder, "--namespace", showNamespace}, values...)...)
	c.log("helm upgrade --install "+strings.Join(values, " "), began)
}

// uninstall is helm uninstall, without waiting for pods to go.
func (c *cluster) uninstall() {
	c.t.Helper()
	c.must("", c.helm, "uninstall", showRelease, "--namespace", showNamespace)
}

// showPodSecurity shows what is said in a namespace that does not allow what
// the modes need; the README has it.
func showPodSecurity(t *testing.T, c *cluster, _ []string) {
	readme, err := os.ReadFile(readmeFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, level := range []string{"baseline", "restricted"} {
		c.kubectl("label", "--overwrite", "namespace", showNamespace, "pod-security.kubernetes.io/enforce="+level)
		for _, mode := range []string{"privileged", "nvidia-runtime", "metrics-only"} {
			c.install("--set", "mode="+mode)
			message := ""
			uid := c.kubectl("-n", showNamespace, "get", "daemonset", showRelease, "-o", "jsonpath={.metadata.uid}")
			c.wait("event of mode "+mode+", "+level, func() (bool, string) {
				events := c.kubectl("-n", showNamespace, "get", "events", "--field-selector", "reason=FailedCreate,involvedObject.uid="+uid, "-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
				for line := range strings.Lines(events) {
					if _, after, is := strings.Cut(line, "violates PodSecurity "); is {
						message = strings.TrimSpace(after)
					}
				}
				return message != "", events
			})
			if pods := c.pods(showNamespace); len(pods) > 0 {
				t.Errorf("%s, %s: %d pods", mode, level, len(pods))
			}
			t.Logf("%s, %s: %s", level, mode, message)
			if !strings.Contains(string(readme), message) {
				t.Errorf("the chart's README does not have the message of mode %s, level %s", mode, level)
			}
			c.uninstall()
		}
	}
	c.kubectl("label", "--overwrite", "namespace", showNamespace, "pod-security.kubernetes.io/enforce=privileged")
}

// showInstall: a pod on each node that should have one, and on no other.
func showInstall(t *testing.T, c *cluster, want []string) {
	c.install("-f", Folder+"/ci/operator-values.yaml")
	c.placed(want)
	if out := c.kubectl("-n", showNamespace, "get", "podmonitors,prometheusrules", "-o", "name"); strings.Count(out, "\n") < 2 {
		t.Errorf("monitor and rules: %s", out)
	}
}

// placed waits until these nodes have a pod each, and no others.
func (c *cluster) placed(want []string) {
	c.t.Helper()
	c.wait(fmt.Sprintf("%d pods placed", len(want)), func() (bool, string) {
		got := places(c.pods(showNamespace))
		return slices.Equal(got, want), strings.Join(got, " ")
	})
}

// hashes are the templates that the ready pods were made from.
func (c *cluster) hashes() map[string]int {
	c.t.Helper()
	count := map[string]int{}
	for _, pod := range c.pods(showNamespace) {
		if pod.DeletionTimestamp == nil && ready(pod) {
			count[pod.Labels["controller-revision-hash"]]++
		}
	}
	return count
}

// showUpgrade changes a value: all pods are replaced, so that never more than
// 10 % are missing.
func showUpgrade(t *testing.T, c *cluster, want []string) {
	c.kubelets(showNamespace)
	rolledOut := func(old map[string]int) (now map[string]int) {
		c.wait("all pods ready", func() (bool, string) {
			now = c.hashes()
			fresh := len(now) == 1
			for hash := range old {
				fresh = fresh && now[hash] == 0
			}
			return fresh && slices.Equal(slices.Collect(maps.Values(now)), []int{len(want)}), fmt.Sprint(now)
		})
		return now
	}
	first := rolledOut(nil)
	c.watchReady(len(want))
	c.install("-f", Folder+"/ci/operator-values.yaml", "--set", "log.level=debug")
	second := rolledOut(first)
	c.placed(want)
	// 10 % of 13 nodes, rounded up as the controller does.
	const mostMissing = 2
	if least := c.watchReady(len(want)); least < len(want)-mostMissing {
		t.Errorf("%d of %d pods were missing at once", len(want)-least, len(want))
	} else {
		t.Logf("at most %d of %d pods were missing at once; template %v became %v", len(want)-least, len(want), first, second)
	}
	// The same values again change nothing.
	c.install("-f", Folder+"/ci/operator-values.yaml", "--set", "log.level=debug")
	if again := c.hashes(); !maps.Equal(again, second) {
		t.Errorf("an upgrade to the same values replaced pods: %v", again)
	}
}

// showClientLabel plays GPU Operator, which labels GPU nodes and changes the
// label while a driver is upgraded.
func showClientLabel(t *testing.T, c *cluster, want []string) {
	const label = "nvidia.com/gpu.deploy.client"
	c.kubelets(showNamespace)
	for _, node := range []string{"gpu-0", "gpu-1", "gpu-tainted"} {
		c.kubectl("label", "node", node, label+"=true")
	}
	c.install("--set", "gpuOperator.clientLabel=true")
	c.placed(want)
	managed := func() []string {
		var nodes []core.Pod
		for _, pod := range c.pods(showNamespace) {
			if pod.Spec.NodeSelector[label] == "true" {
				nodes = append(nodes, pod)
			}
		}
		return places(nodes)
	}
	c.wait("the operator's nodes have the pods that it looks for", func() (bool, string) {
		got := managed()
		return slices.Equal(got, []string{"gpu-0", "gpu-1", "gpu-tainted"}), strings.Join(got, " ")
	})
	c.kubectl("label", "--overwrite", "node", "gpu-0", label+"=paused-for-driver-upgrade")
	c.placed(slices.DeleteFunc(slices.Clone(want), func(node string) bool { return node == "gpu-0" }))
	c.kubectl("label", "--overwrite", "node", "gpu-0", label+"=true")
	c.placed(want)
	c.install("--set", "gpuOperator.clientLabel=false")
	c.placed(want)
	c.wait("no pod selects on the label any more", func() (bool, string) {
		left := managed()
		return len(left) == 0, strings.Join(left, " ")
	})
	c.kubectl("label", "nodes", "--all", label+"-")
	c.placed(want)
	if twice := c.twice(); twice != "" {
		t.Errorf("two pods at once on node %s", twice)
	}
}

// showServiceMonitor: a PodMonitor goes when a ServiceMonitor takes its place.
func showServiceMonitor(t *testing.T, c *cluster, want []string) {
	c.kubelets(showNamespace)
	c.install("-f", Folder+"/ci/secure-values.yaml")
	c.placed(want)
	out := strings.Fields(c.kubectl("-n", showNamespace, "get", "podmonitors,servicemonitors,services,prometheusrules", "-o", "name"))
	if want := []string{"servicemonitor.monitoring.coreos.com/" + showRelease, "service/" + showRelease}; !slices.Equal(out, want) {
		t.Errorf("%v, want %v", out, want)
	}
}

// showRemoval: what was there before the chart is there after it, and nothing
// else.
func showRemoval(t *testing.T, c *cluster, before []string) {
	c.kubelets(showNamespace)
	c.uninstall()
	c.wait("nothing is left", func() (bool, string) {
		var left []string
		for _, object := range c.objects() {
			if !slices.Contains(before, object) {
				left = append(left, object)
			}
		}
		return len(left) == 0, strings.Join(left, ", ")
	})
	if now := c.objects(); len(now) != len(before) {
		t.Errorf("%d objects before, %d after", len(before), len(now))
	}
	t.Logf("%d objects before and after", len(before))
}

// showManifests applies the plain manifests of each mode, and deletes them.
func showManifests(t *testing.T, c *cluster, want []string) {
	for _, mode := range []string{"privileged", "nvidia-runtime", "metrics-only"} {
		file := filepath.Join(manifestsFolder, mode+".yaml")
		c.kubectl("apply", "-f", file)
		c.wait(mode+".yaml: pods placed", func() (bool, string) {
			got := places(c.pods(showRelease))
			return slices.Equal(got, want), strings.Join(got, " ")
		})
		if mode == "privileged" {
			c.kubectl("apply", "-f", filepath.Join(manifestsFolder, "monitoring.yaml"))
			c.kubectl("delete", "-f", filepath.Join(manifestsFolder, "monitoring.yaml"))
		}
		c.kubectl("delete", "--wait=false", "-f", file)
		c.wait(mode+".yaml: namespace gone", func() (bool, string) {
			c.once(showRelease)
			out := c.kubectl("get", "namespaces", "-o", "name")
			return !strings.Contains(out, "namespace/"+showRelease+"\n"), out
		})
	}
}

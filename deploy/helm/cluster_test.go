package chart

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
)

// cluster is a real control plane, and a stand-in for its kubelets.
type cluster struct {
	t    *testing.T
	helm string
	env  []string

	mu sync.Mutex
	// leastReady is the least number of ready pods that the stand-in has seen,
	// since it was last set.
	leastReady int
	// doubled is a node on which the stand-in has seen two pods at once.
	doubled string
}

// newCluster starts one that ends with the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("GDR_KUBETEST") == "" {
		t.Skip("GDR_KUBETEST is not set: make chart-show runs this on a real API server, which takes minutes to build")
	}
	helm, err := exec.LookPath(os.Getenv("HELM"))
	if err != nil {
		if helm, err = exec.LookPath("helm"); err != nil {
			t.Fatalf("no helm: set HELM to its path: %v", err)
		}
	}
	dir := t.TempDir()
	c := &cluster{t: t, helm: helm, env: append(os.Environ(), "KUBE_TEST_DIR="+dir, "KUBECONFIG="+filepath.Join(dir, "kubeconfig"), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)}
	began := time.Now()
	c.must("", "kubetest/cluster", "build")
	c.log("built or found Kubernetes", began)
	began = time.Now()
	t.Cleanup(func() { c.must("", "kubetest/cluster", "stop") })
	c.must("", "kubetest/cluster", "start")
	c.log("started", began)
	began = time.Now()
	c.must("", "kubetest/cluster", "crds")
	c.log("PodMonitor, ServiceMonitor, PrometheusRule defined", began)
	return c
}

func (c *cluster) log(what string, began time.Time) {
	c.t.Logf("%s: %.1f s", what, time.Since(began).Seconds())
}

// run runs a command in the cluster's environment. What it leaves behind must
// not keep its output open: start leaves the processes of the cluster.
func (c *cluster) run(input, name string, args ...string) (string, error) {
	command := exec.Command(name, args...)
	command.Env = c.env
	command.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return "", errors.New(strings.TrimSpace(name + " " + strings.Join(args, " ") + ": " + err.Error() + ": " + stderr.String() + stdout.String()))
	}
	return stdout.String(), nil
}

func (c *cluster) must(input, name string, args ...string) string {
	c.t.Helper()
	out, err := c.run(input, name, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// kubectl must succeed.
func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	return c.must("", "kubetest/cluster", append([]string{"kubectl"}, args...)...)
}

// node makes a Node with labels and taints.
func (c *cluster) node(name string, labelsAndTaints ...string) {
	c.t.Helper()
	c.must("", "kubetest/cluster", append([]string{"node", name}, labelsAndTaints...)...)
}

// wait is until a condition holds; it says what is there if that takes too long.
func (c *cluster) wait(what string, holds func() (bool, string)) {
	c.t.Helper()
	began := time.Now()
	for {
		ok, state := holds()
		if ok {
			c.log(what, began)
			return
		}
		if time.Since(began) > 2*patience {
			c.t.Fatalf("not within %v: %s: %s", 2*patience, what, state)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// pods of a namespace.
func (c *cluster) pods(namespace string) []core.Pod {
	c.t.Helper()
	var list core.PodList
	if err := json.Unmarshal([]byte(c.kubectl("-n", namespace, "get", "pods", "-o", "json")), &list); err != nil {
		c.t.Fatal(err)
	}
	return list.Items
}

// places are the nodes that have a pod that is not about to go.
func places(pods []core.Pod) []string {
	var nodes []string
	for _, pod := range pods {
		if pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" {
			nodes = append(nodes, pod.Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return nodes
}

func ready(pod core.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c core.PodCondition) bool {
		return c.Type == core.PodReady && c.Status == core.ConditionTrue
	})
}

// kubelets does for all nodes what kubelets tell the API server: pods that are
// placed are ready, and pods that are to go are gone. It ends with the test.
func (c *cluster) kubelets(namespace string) {
	stop, done := make(chan struct{}), make(chan struct{})
	c.t.Cleanup(func() { close(stop); <-done })
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				c.once(namespace)
			}
		}
	}()
}

// once fails for nothing: a pod may be gone between two requests.
func (c *cluster) once(namespace string) {
	out, err := c.run("", "kubetest/cluster", "kubectl", "-n", namespace, "get", "pods", "-o", "json")
	var list core.PodList
	if err != nil || json.Unmarshal([]byte(out), &list) != nil {
		return
	}
	count, doubled, on := 0, "", map[string]bool{}
	for _, pod := range list.Items {
		if node := pod.Spec.NodeName; node != "" {
			if on[node] {
				doubled = node
			}
			on[node] = true
		}
		switch {
		case pod.DeletionTimestamp != nil:
			_, _ = c.run("", "kubetest/cluster", "kubectl", "-n", namespace, "delete", "pod", pod.Name, "--force", "--grace-period=0", "--wait=false")
		case ready(pod):
			count++
		case pod.Spec.NodeName != "":
			_, _ = c.run("", "kubetest/cluster", "kubectl", "-n", namespace, "patch", "pod", pod.Name, "--subresource=status", "--type=merge", "-p",
				`{"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}`)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leastReady = min(c.leastReady, count)
	if doubled != "" {
		c.doubled = doubled
	}
}

// twice is a node that had two pods at once, which would want the same port.
func (c *cluster) twice() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubled
}

// watchReady sets leastReady anew, and returns what it was.
func (c *cluster) watchReady(number int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	least := c.leastReady
	c.leastReady = number
	return least
}

// objects are the names of all objects of the cluster that somebody made:
// events and leases come and go by themselves.
func (c *cluster) objects() []string {
	c.t.Helper()
	var all []string
	for kind := range strings.FieldsSeq(c.kubectl("api-resources", "--verbs=list", "-o", "name")) {
		switch kind {
		case "events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses":
			continue
		}
		for line := range strings.Lines(c.kubectl("get", kind, "-A", "-o", `jsonpath={range .items[*]}{.kind}{" "}{.metadata.namespace}{" "}{.metadata.name}{"\n"}{end}`)) {
			all = append(all, strings.TrimSpace(kind+" "+line))
		}
	}
	slices.Sort(all)
	return all
}

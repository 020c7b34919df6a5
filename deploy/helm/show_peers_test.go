package chart

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
)

// get decodes an object, or a list of them, of the cluster.
func get[T any](c *cluster, args ...string) T {
	c.t.Helper()
	var object T
	if err := json.Unmarshal([]byte(c.kubectl(append([]string{"-n", showNamespace, "get", "-o", "json"}, args...)...)), &object); err != nil {
		c.t.Fatal(err)
	}
	return object
}

// showPeers: each node finds the others, though no pod is ready yet, by the name
// that it is told to ask for. Nothing plays the kubelets here: pods stay unready.
func showPeers(t *testing.T, c *cluster, want []string) {
	const service = showRelease + "-peers"
	c.install("-f", Folder+"/ci/peer-values.yaml")
	c.placed(want)
	all := c.pods(showNamespace)
	for _, pod := range all {
		showPeerPod(t, pod, "--peer.dns=a+"+service+"."+showNamespace+".svc:10480")
	}
	if spec := get[core.Service](c, "service", service).Spec; spec.ClusterIP != core.ClusterIPNone || !spec.PublishNotReadyAddresses {
		t.Errorf("%s: %+v", service, spec)
	}
	if _, is := get[core.ConfigMap](c, "configmap", showRelease+"-peer").Data["peer.yml"]; !is {
		t.Error("no peer.yml where the pods mount it from")
	}
	addresses := c.addresses(all)
	c.wait("the Service has all nodes", func() (bool, string) {
		got := c.endpoints(service, 10480)
		return slices.Equal(got, addresses), strings.Join(got, " ")
	})
	if slices.ContainsFunc(c.pods(showNamespace), ready) {
		t.Error("a pod is ready: nothing is shown of those that are not")
	}

	// A list takes the Service's place.
	c.install("-f", Folder+"/ci/peer-targets-values.yaml")
	if left := c.kubectl("-n", showNamespace, "get", "services", "-o", "name"); left != "" {
		t.Errorf("beside a list: %s", left)
	}
	if text := get[core.ConfigMap](c, "configmap", showRelease+"-peer-targets").Data["nodes.yml"]; !strings.Contains(text, "node1.gpu.example.org") {
		t.Errorf("nodes.yml: %q", text)
	}
	if args := get[apps.DaemonSet](c, "daemonset", showRelease).Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--peer.targets=/etc/gdr_exporter/peer-targets/nodes.yml") {
		t.Errorf("args %q", args)
	}
}

// showPeerPod looks at what the server made of the chart's pod.
func showPeerPod(t *testing.T, pod core.Pod, nodes string) {
	t.Helper()
	container := pod.Spec.Containers[0]
	for _, arg := range []string{"--peer.enabled", nodes, "--peer.listen-address=[$(HOST_IP)]:10480", "--peer.tls-config=/etc/gdr_exporter/peer/peer.yml", "--probe.isolation=process"} {
		if !slices.Contains(container.Args, arg) {
			t.Errorf("%s lacks %s: %q", pod.Name, arg, container.Args)
		}
	}
	if got := sources(pod.Spec); got["/etc/gdr_exporter/peer"] != showRelease+"-peer" || got["/etc/gdr_exporter/peer-tls"] != "gdr-exporter-peer-tls" {
		t.Errorf("%s: mounts %v", pod.Name, got)
	}
	// In the node's network the server takes a port for one of the node, which keeps two such pods apart.
	if !slices.ContainsFunc(container.Ports, func(port core.ContainerPort) bool { return port.Name == "peers" && port.HostPort == 10480 }) {
		t.Errorf("%s: ports %+v", pod.Name, container.Ports)
	}
}

// addresses gives each pod the address of its node, as a kubelet does when it
// starts one. They are not ready by that.
func (c *cluster) addresses(pods []core.Pod) []string {
	c.t.Helper()
	var all []string
	next := netip.MustParseAddr("10.1.0.0")
	for _, pod := range pods {
		next = next.Next()
		c.kubectl("-n", showNamespace, "patch", "pod", pod.Name, "--subresource=status", "--type=merge", "-p",
			fmt.Sprintf(`{"status": {"hostIP": %q, "hostIPs": [{"ip": %[1]q}], "podIP": %[1]q, "podIPs": [{"ip": %[1]q}]}}`, next))
		all = append(all, next.String())
	}
	slices.Sort(all)
	return all
}

// endpoints are the addresses at a port that the cluster's DNS would answer with.
func (c *cluster) endpoints(service string, port int32) []string {
	c.t.Helper()
	var all []string
	for _, slice := range get[discovery.EndpointSliceList](c, "endpointslices", "-l", discovery.LabelServiceName+"="+service).Items {
		if len(slice.Ports) != 1 || slice.Ports[0].Port == nil || *slice.Ports[0].Port != port {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			if ready := endpoint.Conditions.Ready; ready != nil && *ready {
				all = append(all, endpoint.Addresses...)
			}
		}
	}
	slices.Sort(all)
	return all
}

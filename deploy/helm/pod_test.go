package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// hostPaths are the folders of the node in the container, by mount.
func hostPaths(pod core.PodSpec) map[string]string {
	at := map[string]string{}
	for _, volume := range pod.Volumes {
		if volume.HostPath != nil {
			for _, mount := range pod.Containers[0].VolumeMounts {
				if mount.Name == volume.Name {
					at[mount.MountPath] = volume.HostPath.Path
				}
			}
		}
	}
	return at
}

func TestModes(t *testing.T) {
	everywhere := map[string]string{
		"/host/sys": "/sys", "/host/proc": "/proc",
		"/var/lib/gdr_exporter": "/var/lib/gdr_exporter", "/run/gdr_exporter": "/run/gdr_exporter",
	}
	tests := []struct {
		mode         string
		privileged   bool
		capabilities []core.Capability
		runtimeClass string
		paths        map[string]string
		interval     string
	}{
		{"privileged", true, nil, "", map[string]string{"/dev": "/dev", "/host/driver/0": "/run/nvidia/driver", "/host/driver/1": "/"}, "1h"},
		{"nvidia-runtime", false, []core.Capability{"IPC_LOCK"}, "nvidia", nil, "1h"},
		{"metrics-only", false, nil, "", nil, "0"},
	}
	for _, test := range tests {
		t.Run(test.mode, func(t *testing.T) {
			objects, notes := render(t, "mode: "+test.mode)
			pod := daemonSet(t, objects).Spec.Template.Spec
			container := pod.Containers[0]
			if !pod.HostNetwork || pod.HostPID || pod.DNSPolicy != core.DNSClusterFirstWithHostNet {
				t.Errorf("hostNetwork %v, hostPID %v, dnsPolicy %v", pod.HostNetwork, pod.HostPID, pod.DNSPolicy)
			}
			security := container.SecurityContext
			if *security.Privileged != test.privileged {
				t.Errorf("privileged %v", *security.Privileged)
			}
			if !test.privileged {
				if !slices.Equal(security.Capabilities.Drop, []core.Capability{"ALL"}) || !slices.Equal(security.Capabilities.Add, test.capabilities) {
					t.Errorf("capabilities %+v", security.Capabilities)
				}
				if *security.AllowPrivilegeEscalation || security.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
					t.Errorf("%+v", security)
				}
			}
			class := ""
			if pod.RuntimeClassName != nil {
				class = *pod.RuntimeClassName
			}
			if class != test.runtimeClass {
				t.Errorf("runtime class %q", class)
			}
			want := maps.Clone(everywhere)
			maps.Copy(want, test.paths)
			if got := hostPaths(pod); !maps.Equal(got, want) {
				t.Errorf("folders of the node %v, want %v", got, want)
			}
			if !slices.Contains(container.Args, "--probe.interval="+test.interval) {
				t.Errorf("args %q", container.Args)
			}
			for _, arg := range container.Args {
				if strings.HasPrefix(arg, "--path.") && !strings.Contains(notes, arg) {
					t.Errorf("the notes' command lacks %s", arg)
				}
			}
			checkEnv(t, test.mode, container.Env)
		})
	}
}

// checkEnv: the variables for NVIDIA's toolkit belong to one mode alone. In a
// privileged pod they would be asked of a toolkit that may not be there.
func checkEnv(t *testing.T, mode string, env []core.EnvVar) {
	t.Helper()
	got := map[string]string{}
	for _, variable := range env {
		got[variable.Name] = variable.Value
	}
	want := map[string]string{"HOST_IP": ""}
	if mode == "nvidia-runtime" {
		want["NVIDIA_VISIBLE_DEVICES"], want["NVIDIA_DRIVER_CAPABILITIES"], want["NVIDIA_MOFED"] = "all", "utility,compute", "enabled"
	}
	if !maps.Equal(got, want) {
		t.Errorf("environment %v, want %v", got, want)
	}
}

// term is one of the OR-ed terms of a node affinity, as "key in values" of each
// expression.
func terms(set *apps.DaemonSet) [][]string {
	affinity := set.Spec.Template.Spec.Affinity
	if affinity == nil {
		return nil
	}
	var all [][]string
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		var one []string
		for _, e := range term.MatchExpressions {
			one = append(one, strings.TrimSpace(e.Key+" "+string(e.Operator)+" "+strings.Join(e.Values, ",")))
		}
		all = append(all, one)
	}
	return all
}

func equalTerms(a, b [][]string) bool { return slices.EqualFunc(a, b, slices.Equal) }

func TestPlacement(t *testing.T) {
	objects, _ := render(t, "{}")
	gpu, rdma := "nvidia.com/gpu.present In true", "feature.node.kubernetes.io/pci-15b3.present In true"
	if got := terms(daemonSet(t, objects)); !equalTerms(got, [][]string{{gpu}, {rdma}}) {
		t.Errorf("terms %q", got)
	}
	objects, _ = render(t, "nodeLabels: []")
	if got := terms(daemonSet(t, objects)); got != nil {
		t.Errorf("without labels: terms %q", got)
	}

	// With the operator's label: one DaemonSet for the nodes that have it, by nodeSelector,
	// where the operator looks, and one for the others.
	objects, _ = render(t, "gpuOperator: {clientLabel: true}\nnodeSelector: {pool: a}")
	sets := of[*apps.DaemonSet](objects)
	if len(sets) != 2 {
		t.Fatalf("%d DaemonSets", len(sets))
	}
	managed, others := sets[0], sets[1]
	if got := managed.Spec.Template.Spec.NodeSelector; got["nvidia.com/gpu.deploy.client"] != "true" || got["pool"] != "a" || terms(managed) != nil {
		t.Errorf("managed: %v %q", got, terms(managed))
	}
	no := "nvidia.com/gpu.deploy.client DoesNotExist"
	if got := others.Spec.Template.Spec.NodeSelector; len(got) != 2 || got["pool"] != "a" || !equalTerms(terms(others), [][]string{{gpu, no}, {rdma, no}}) {
		t.Errorf("others: %v %q", got, terms(others))
	}
	if managed.Name == others.Name || maps.Equal(managed.Spec.Selector.MatchLabels, others.Spec.Selector.MatchLabels) {
		t.Error("the two DaemonSets would take each other's pods")
	}
	objects, _ = render(t, "gpuOperator: {clientLabel: true}\nnodeLabels: []")
	if got := terms(of[*apps.DaemonSet](objects)[1]); !equalTerms(got, [][]string{{no}}) {
		t.Errorf("others, all nodes: terms %q", got)
	}
}

// TestSelectorStays: a selector cannot be changed in an upgrade, so no value
// may change it.
func TestSelectorStays(t *testing.T) {
	objects, _ := render(t, "{}")
	want := daemonSet(t, objects).Spec.Selector.MatchLabels
	eachCase(t, func(t *testing.T, _, values string) {
		objects, _ := render(t, values)
		if got := daemonSet(t, objects).Spec.Selector.MatchLabels; !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// TestKubeletProbes: what the kubelet asks follows the web configuration.
func TestKubeletProbes(t *testing.T) {
	const (
		tls    = "tls_server_config: {cert_file: a, key_file: b}"
		users  = "basic_auth_users: {a: $2b$04$abcdefghijklmnopqrstuuw84ri8rZhg76MlXdEfW3l8WxMZx6diS}"
		client = "tls_server_config: {cert_file: a, key_file: b, client_ca_file: c, client_auth_type: RequireAndVerifyClientCert}"
	)
	tests := []struct{ name, values, want string }{
		{"plain", "{}", "HTTP"},
		{"tls", "webConfig: {config: {" + tls + "}}", "HTTPS"},
		{"users", "webConfig: {config: {" + users + "}}", "TCP"},
		{"tls and users", "webConfig: {config: {" + tls + ", " + users + "}}", "TCP"},
		{"client certificates", "webConfig: {config: {" + client + "}}", "TCP"},
		{"secret", "webConfig: {existingSecret: s}", "HTTP"},
		{"secret, tls", "webConfig: {existingSecret: s, tls: true}", "HTTPS"},
		{"secret, password", "webConfig: {existingSecret: s, authentication: true}", "TCP"},
		{"address", "web: {listenAddress: 10.1.2.3}", "HTTP 10.1.2.3"},
		{"all addresses", "web: {listenAddress: 0.0.0.0}", "HTTP"},
		{"address and password", "web: {listenAddress: 'fd00::1'}\nwebConfig: {existingSecret: s, authentication: true}", "TCP fd00::1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			objects, _ := render(t, test.values)
			container := daemonSet(t, objects).Spec.Template.Spec.Containers[0]
			for path, probe := range map[string]*core.Probe{"/-/healthy": container.LivenessProbe, "/-/ready": container.ReadinessProbe} {
				if got := asked(probe, path); got != test.want {
					t.Errorf("%s: %q, want %q", path, got, test.want)
				}
			}
		})
	}
}

// asked says what a probe asks, and where if not at the pod's address.
func asked(probe *core.Probe, path string) string {
	named := intstr.FromString("metrics")
	switch get, socket := probe.HTTPGet, probe.TCPSocket; {
	case socket != nil && get == nil && socket.Port == named:
		return strings.TrimSpace("TCP " + socket.Host)
	case get != nil && get.Path == path && get.Port == named && get.Scheme == "":
		return strings.TrimSpace("HTTP " + get.Host)
	case get != nil && get.Path == path && get.Port == named:
		return strings.TrimSpace(string(get.Scheme) + " " + get.Host)
	default:
		return "something else"
	}
}

// TestMonitor: what rules and dashboards need of a target's labels.
func TestMonitor(t *testing.T) {
	objects, _ := render(t, "nameOverride: other\nmonitor: {enabled: true, cluster: c1, attachNodeMetadata: true}")
	monitor := of[*monitoring.PodMonitor](objects)[0]
	if *monitor.Spec.SampleLimit != 5000 || !*monitor.Spec.AttachMetadata.Node || len(of[*core.Service](objects)) != 0 {
		t.Errorf("%+v", monitor.Spec)
	}
	got := map[string]string{}
	for _, r := range monitor.Spec.PodMetricsEndpoints[0].RelabelConfigs {
		value := ""
		if r.Replacement != nil {
			value = *r.Replacement
		}
		for _, source := range r.SourceLabels {
			value = string(source)
		}
		got[r.Action+r.TargetLabel] = value + r.Regex
	}
	want := map[string]string{
		"node": "__meta_kubernetes_pod_node_name", "instance": "__meta_kubernetes_pod_node_name",
		"job": "gdr-exporter", "cluster": "c1", "labeldrop": "pod|container",
	}
	if !maps.Equal(got, want) {
		t.Errorf("relabelings %v, want %v", got, want)
	}
	labels := daemonSet(t, objects).Spec.Template.Labels
	for key, value := range monitor.Spec.Selector.MatchLabels {
		if labels[key] != value {
			t.Errorf("the monitor selects %s=%s, the pods have %q", key, value, labels[key])
		}
	}

	objects, _ = render(t, "monitor: {enabled: true, kind: ServiceMonitor}")
	services := of[*core.Service](objects)
	if len(of[*monitoring.ServiceMonitor](objects)) != 1 || len(services) != 1 || services[0].Spec.ClusterIP != core.ClusterIPNone {
		t.Errorf("ServiceMonitor without a headless Service: %+v", services)
	}
}

// TestRestartsForConfiguration: what the exporter reads at start changes the
// pods' template.
func TestRestartsForConfiguration(t *testing.T) {
	annotations := func(values string) map[string]string {
		objects, _ := render(t, values)
		return daemonSet(t, objects).Spec.Template.Annotations
	}
	for _, pair := range [][2]string{
		{"profile: {gpus: 8}", "profile: {gpus: 4}"},
		{"webConfig: {config: {rate_limit: {interval: 1s}}}", "webConfig: {config: {rate_limit: {interval: 2s}}}"},
		{peerTLS, strings.ReplaceAll(peerTLS, "a.example.org", "b.example.org")},
	} {
		if maps.Equal(annotations(pair[0]), annotations(pair[1])) {
			t.Errorf("no restart from %s to %s", pair[0], pair[1])
		}
		if !maps.Equal(annotations(pair[0]), annotations(pair[0])) {
			t.Errorf("%s is not always the same", pair[0])
		}
	}
}

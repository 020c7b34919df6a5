package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const peerTLS = "peer: {enabled: true, tlsSecret: certs, allowedNames: [a.example.org]}"

// TestPeerOff: without it nothing of it is there, whatever else is set.
func TestPeerOff(t *testing.T) {
	objects, notes := render(t, "peer: {tlsSecret: certs, targets: [{targets: [a]}]}")
	container := daemonSet(t, objects).Spec.Template.Spec.Containers[0]
	if slices.ContainsFunc(container.Args, func(arg string) bool { return strings.HasPrefix(arg, "--peer.") }) || !slices.Contains(container.Args, "--probe.isolation=process") {
		t.Errorf("args %q", container.Args)
	}
	if len(container.Ports) != 1 || len(of[*core.Service](objects)) != 0 || len(of[*core.ConfigMap](objects)) != 0 || strings.Contains(notes, "between them") {
		t.Errorf("ports %v, notes %s", container.Ports, notes)
	}
	for _, mount := range container.VolumeMounts {
		if strings.HasPrefix(mount.Name, "peer") {
			t.Errorf("mount %s", mount.Name)
		}
	}
}

// TestPeerArgs: where a node listens and how it finds the others.
func TestPeerArgs(t *testing.T) {
	const on = "peer: {enabled: true, insecure: true, "
	tests := []struct{ name, values, listen, nodes string }{
		{"pods", on + "}", "[$(HOST_IP)]:10480", "--peer.dns=a+gdr-exporter-peers.monitoring.svc:10480"},
		{"other port", on + "port: 7}", "[$(HOST_IP)]:7", "--peer.dns=a+gdr-exporter-peers.monitoring.svc:7"},
		{"namespace and name", on + "}\nnamespaceOverride: m\nfullnameOverride: x", "[$(HOST_IP)]:10480", "--peer.dns=a+x-peers.m.svc:10480"},
		{"IPv6", on + "dnsRecord: aaaa}", ":10480", "--peer.dns=aaaa+gdr-exporter-peers.monitoring.svc:10480"},
		{"address", on + "listenAddress: 'fd00::1'}", "[fd00::1]:10480", "--peer.dns=a+gdr-exporter-peers.monitoring.svc:10480"},
		{"list", on + "port: 7, targets: [{targets: [a, b]}]}", ":7", "--peer.targets=/etc/gdr_exporter/peer-targets/nodes.yml --peer.targets-port=7"},
		{"neighbours that just fit", on + "interval: 1h3m, degree: 21}", "[$(HOST_IP)]:10480", "--peer.dns=a+gdr-exporter-peers.monitoring.svc:10480"},
		{"pings alone", on + "interval: 1m, degree: 0}", "[$(HOST_IP)]:10480", "--peer.dns=a+gdr-exporter-peers.monitoring.svc:10480"},
		{"pods' network", on + "}\nhostNetwork: false", ":10480", "--peer.dns=a+gdr-exporter-peers.monitoring.svc:10480"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			objects, notes := render(t, test.values)
			args := daemonSet(t, objects).Spec.Template.Spec.Containers[0].Args
			var nodes []string
			for _, arg := range args {
				if strings.HasPrefix(arg, "--peer.dns=") || strings.HasPrefix(arg, "--peer.targets") {
					nodes = append(nodes, arg)
				}
			}
			if got := strings.Join(nodes, " "); got != test.nodes || !slices.Contains(args, "--peer.listen-address="+test.listen) {
				t.Errorf("args %q", args)
			}
			if !strings.Contains(notes, "peer.insecure") {
				t.Errorf("notes: %s", notes)
			}
		})
	}
}

// TestPeerService: what --peer.dns asks for is a headless Service of all pods,
// ready or not, of both DaemonSets.
func TestPeerService(t *testing.T) {
	objects, _ := render(t, peerTLS+"\ngpuOperator: {clientLabel: true}\nmonitor: {enabled: true, kind: ServiceMonitor}")
	services := map[string]*core.Service{}
	for _, service := range of[*core.Service](objects) {
		services[service.Name] = service
	}
	service := services["gdr-exporter-peers"]
	if service == nil || len(services) != 2 {
		t.Fatalf("services %v", slices.Sorted(maps.Keys(services)))
	}
	if service.Spec.ClusterIP != core.ClusterIPNone || !service.Spec.PublishNotReadyAddresses || service.Spec.IPFamilyPolicy != nil {
		t.Errorf("%+v", service.Spec)
	}
	if port := service.Spec.Ports[0]; len(service.Spec.Ports) != 1 || port.Name == "metrics" || port.Port != 10480 || port.TargetPort.String() != "peers" {
		t.Errorf("ports %+v: a ServiceMonitor must not take it for one of metrics", service.Spec.Ports)
	}
	labels := daemonSet(t, objects).Spec.Template.Labels
	for key, value := range service.Spec.Selector {
		if labels[key] != value || key == "app.kubernetes.io/component" {
			t.Errorf("the Service selects %s=%s, the pods have %q", key, value, labels[key])
		}
	}
	ports := map[string]int32{}
	for _, port := range daemonSet(t, objects).Spec.Template.Spec.Containers[0].Ports {
		ports[port.Name] = port.ContainerPort
	}
	if want := map[string]int32{"metrics": 10479, "peers": 10480}; !maps.Equal(ports, want) {
		t.Errorf("ports %v, want %v", ports, want)
	}

	objects, _ = render(t, "peer: {enabled: true, insecure: true, dnsRecord: aaaa}")
	spec := of[*core.Service](objects)[0].Spec
	if *spec.IPFamilyPolicy != core.IPFamilyPolicySingleStack || !slices.Equal(spec.IPFamilies, []core.IPFamily{core.IPv6Protocol}) {
		t.Errorf("IPv6: %+v", spec)
	}
	if objects, _ = render(t, "peer: {enabled: true, insecure: true, targets: [{targets: [a]}]}"); len(of[*core.Service](objects)) != 0 {
		t.Error("a Service beside a list")
	}
}

// TestPeerFiles: configuration and list are in ConfigMaps that are mounted where
// the arguments say, the key in no object of the chart's.
func TestPeerFiles(t *testing.T) {
	objects, _ := render(t, peerTLS)
	pod := daemonSet(t, objects).Spec.Template.Spec
	if !slices.Contains(pod.Containers[0].Args, "--peer.tls-config=/etc/gdr_exporter/peer/peer.yml") {
		t.Errorf("args %q", pod.Containers[0].Args)
	}
	if got := sources(pod); got["/etc/gdr_exporter/peer"] != "gdr-exporter-peer" || got["/etc/gdr_exporter/peer-tls"] != "certs" || got["/etc/gdr_exporter/peer-targets"] != "" {
		t.Errorf("mounts %v", got)
	}
	want := map[string]any{
		"cert_file": "/etc/gdr_exporter/peer-tls/tls.crt", "key_file": "/etc/gdr_exporter/peer-tls/tls.key",
		"ca_file": "/etc/gdr_exporter/peer-tls/ca.crt", "allowed_names": []any{"a.example.org"},
	}
	if got := parse(t, configMap(t, objects, "gdr-exporter-peer", "peer.yml")); !maps.EqualFunc(got, want, equalAny) {
		t.Errorf("peer.yml: %v", got)
	}

	objects, _ = render(t, "peer: {enabled: true, existingConfig: own, targets: [{targets: [a, 'b:1'], labels: {node: x}}]}")
	pod = daemonSet(t, objects).Spec.Template.Spec
	if got := sources(pod); got["/etc/gdr_exporter/peer"] != "own" || got["/etc/gdr_exporter/peer-tls"] != "" || got["/etc/gdr_exporter/peer-targets"] != "gdr-exporter-peer-targets" {
		t.Errorf("mounts %v", got)
	}
	var groups []struct {
		Targets []string
		Labels  map[string]string
	}
	text := configMap(t, objects, "gdr-exporter-peer-targets", "nodes.yml")
	if err := yaml.UnmarshalStrict([]byte(text), &groups); err != nil || len(groups) != 1 || !slices.Equal(groups[0].Targets, []string{"a", "b:1"}) || groups[0].Labels["node"] != "x" {
		t.Errorf("nodes.yml: %v %v\n%s", groups, err, text)
	}
	if len(of[*core.ConfigMap](objects)) != 1 {
		t.Error("a configuration beside the site's own")
	}
}

// TestPeerListChanges: a list that changes starts no pod anew.
func TestPeerListChanges(t *testing.T) {
	annotations := func(nodes string) map[string]string {
		objects, _ := render(t, "peer: {enabled: true, insecure: true, targets: [{targets: ["+nodes+"]}]}")
		return daemonSet(t, objects).Spec.Template.Annotations
	}
	if !maps.Equal(annotations("a, b"), annotations("a, c")) {
		t.Error("the pods' annotations follow the list")
	}
}

// TestPeerName: the name of the node is there for the exporter and for --peer.self.
func TestPeerName(t *testing.T) {
	objects, notes := render(t, peerTLS+"\nhostNetwork: false")
	found := ""
	for _, variable := range daemonSet(t, objects).Spec.Template.Spec.Containers[0].Env {
		if variable.Name == "NODE_NAME" {
			found = variable.ValueFrom.FieldRef.FieldPath
		}
	}
	if found != "spec.nodeName" {
		t.Errorf("NODE_NAME is %q", found)
	}
	if !strings.Contains(notes, "pods' addresses") {
		t.Errorf("notes of hostNetwork: false: %s", notes)
	}
}

func equalAny(a, b any) bool {
	list, isList := a.([]any)
	other, alsoList := b.([]any)
	if isList || alsoList {
		return isList && alsoList && slices.Equal(list, other)
	}
	return a == b
}

// sources are the names of the ConfigMaps and Secrets that are mounted.
func sources(pod core.PodSpec) map[string]string {
	at := map[string]string{}
	for _, volume := range pod.Volumes {
		name := ""
		switch {
		case volume.ConfigMap != nil:
			name = volume.ConfigMap.Name
		case volume.Secret != nil:
			name = volume.Secret.SecretName
		}
		for _, mount := range pod.Containers[0].VolumeMounts {
			if mount.Name == volume.Name && name != "" && mount.SubPath == "" {
				at[mount.MountPath] = name
			}
		}
	}
	return at
}

func configMap(t *testing.T, objects []any, name, key string) string {
	t.Helper()
	for _, object := range of[*core.ConfigMap](objects) {
		if object.Name == name {
			return object.Data[key]
		}
	}
	t.Fatalf("no ConfigMap %s", name)
	return ""
}

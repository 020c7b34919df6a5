package chart

import (
	"strings"
	"testing"
)

// TestMistakes: each has an error that names the value.
func TestMistakes(t *testing.T) {
	const auth = "webConfig: {config: {basic_auth_users: {a: $2b$04$abcdefghijklmnopqrstuuw84ri8rZhg76MlXdEfW3l8WxMZx6diS}}}\n"
	tests := []struct{ name, values, want string }{
		{"unknown value", "mod: privileged", "mod"},
		{"unknown value below another", "image: {name: x}", "name"},
		{"unknown mode", "mode: root", "mode"},
		{"wrong type", "web: {port: '10479'}", "port"},
		{"port too large", "web: {port: 70000}", "port"},
		{"no image", "image: {repository: ''}", "repository"},
		{"bad digest", "image: {digest: sha256:1}", "digest"},
		{"bad duration", "probe: {interval: 1 hour}", "interval"},
		{"relative folder", "stateDir: state", "stateDir"},
		{"plain password", "webConfig: {config: {basic_auth_users: {a: secret}}}", "basic_auth_users"},
		{"mistyped web configuration", "webConfig: {config: {tls_config: {}}}", "tls_config"},
		{"capability too many", "nvidiaRuntime: {capabilities: [IPC_LOCK, SYS_PTRACE]}", "capabilities"},
		{"capability missing", "nvidiaRuntime: {capabilities: [SYS_ADMIN]}", "capabilities"},
		{"mistyped profile", "profile: {gpu: 8}", "gpu"},
		{"argument that is no flag", "extraArgs: [check]", "extraArgs"},

		{"label that the selector has", "podLabels: {app.kubernetes.io/name: x}", "podLabels: app.kubernetes.io/name is set by the chart"},
		{"label of Helm's", "commonLabels: {app.kubernetes.io/managed-by: me}", "commonLabels: app.kubernetes.io/managed-by is set by the chart"},
		{"label twice", "commonLabels: {release: a}\nmonitor: {additionalLabels: {release: b}}", "monitor.additionalLabels: release is in commonLabels too"},
		{"folder of the system", "stateDir: /var/lib", "stateDir: /var/lib is not a folder of its own"},
		{"the system's folder by another name", "runDir: /run/../etc", "runDir: /run/../etc is not a folder of its own"},
		{"kubelet's folder", "kubeletRootDir: /", "kubeletRootDir: / is not a folder of its own"},
		{"user in mode privileged", "runAsUser: 65532", "runAsUser: 65532 has no capabilities in mode privileged"},
		{"user in mode nvidia-runtime", "mode: nvidia-runtime\nrunAsUser: 1", "runAsUser"},
		{"affinity and label", "affinity: {nodeAffinity: {}}\ngpuOperator: {clientLabel: true}", "affinity: cannot be combined"},
		{"label by hand", "nodeSelector: {nvidia.com/gpu.deploy.client: 'true'}", "set gpuOperator.clientLabel instead"},
		{"surge", "updateStrategy: {rollingUpdate: {maxSurge: 1}}", "maxSurge: two pods cannot have the same port"},
		{"no limit", "resources: {limits: null}", "resources.limits: a memory limit is needed"},
		{"no memory limit", "resources: {limits: {memory: null, cpu: 1}}", "resources.limits.memory: is needed"},
		{"both web configurations", "webConfig: {existingSecret: s, config: {rate_limit: {}}}", "config and existingSecret cannot both be set"},
		{"tls of nothing", "webConfig: {tls: true}", "in webConfig.existingSecret, which is not set"},
		{"tls without tlsConfig", "webConfig: {config: {tls_server_config: {cert_file: a}}}\nmonitor: {enabled: true}", "monitor.tlsConfig: is needed"},
		{"users without basicAuth", auth + "monitor: {enabled: true}", "monitor.basicAuth: is needed"},
		{"address without the node's network", "hostNetwork: false\nweb: {listenAddress: 10.0.0.1}", "web.listenAddress"},
		{"flag that a value sets", "extraArgs: [--web.listen-address=:1]", "extraArgs: --web.listen-address is set by web.listenAddress"},
		{"isolation", "extraArgs: [--probe.isolation=in-process]", "extraArgs: --probe.isolation is set by the chart"},
		{"commands for anybody", "extraArgs: [--web.enable-lifecycle]", "--web.enable-lifecycle lets anybody"},
		{"processes of the container", "extraArgs: [--collector.process]", "needs hostPID: true"},
		{"jobs of the container", "extraArgs: [--collector.jobs]", "--collector.jobs needs hostPID: true"},
		{"replay", "extraArgs: [--replay=h100-8x8]", "--replay shows a capture"},
		{"sessions without certificate", "peer: {enabled: true}", "peer.tlsSecret: is needed"},
		{"sessions without names", "peer: {enabled: true, tlsSecret: s}", "peer.allowedNames: is needed"},
		{"sessions with and without TLS", "peer: {enabled: true, insecure: true, tlsSecret: s}", "peer.insecure: sessions are without TLS then"},
		{"names of nothing", "peer: {enabled: true, existingConfig: s, allowedNames: [a]}", "peer.allowedNames: write allowed_names into peer.existingConfig"},
		{"sessions without devices", "mode: metrics-only\npeer: {enabled: true, insecure: true}", "peer.enabled: mode metrics-only has no devices"},
		{"sessions on the port of metrics", "peer: {enabled: true, insecure: true, port: 10479}", "peer.port: 10479 is web.port"},
		{"sessions' address without the node's network", "hostNetwork: false\npeer: {enabled: true, insecure: true, listenAddress: 10.0.0.1}", "peer.listenAddress: without hostNetwork"},
		{"record of a list", "peer: {enabled: true, insecure: true, targets: [{targets: [a]}], dnsRecord: aaaa}", "peer.dnsRecord: says nothing with peer.targets"},
		{"nothing to measure between nodes", "peer: {enabled: true, insecure: true}\nextraArgs: [--no-collector.rdma]", "--no-collector.rdma leaves peer.enabled nothing"},
		{"flag of sessions that a value sets", "extraArgs: [--peer.dns=nodes]", "extraArgs: --peer.dns is set by the chart"},
		{"interval that is no whole number of minutes", "peer: {interval: 90s}", "interval"},
		{"interval of a week", "peer: {enabled: true, insecure: true, interval: 168h}", "peer.interval: 168h is not from 1m to 24h"},
		{"interval too short for the neighbours", "peer: {enabled: true, insecure: true, interval: 1h2m, degree: 21}", "peer.degree: 21 neighbours need three minutes each, and peer.interval is 1h2m"},
		{"name with a part of a label", "peer: {allowedNames: ['NODE 1']}", "allowedNames"},
		{"group without targets", "peer: {targets: [{labels: {a: b}}]}", "targets"},
		{"mistyped group", "peer: {targets: [{target: [a]}]}", "target"},
		{"no such alert", "prometheusRule: {enabled: true, exclude: [GDRNoSuchAlert]}", "there is no alert GDRNoSuchAlert"},
	}
	loaded := load(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Render(loaded, Release{"gdr-exporter", "monitoring"}, parse(t, test.values))
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

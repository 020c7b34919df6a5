{{/* What no single value tells. The first mistake ends with one line. */}}
{{- define "gdr.validate" -}}
{{- include "gdr.validateWeb" . -}}
{{- include "gdr.validateArgs" . -}}
{{- include "gdr.validateLabels" . -}}
{{- with .Values -}}
{{- if and (ne .mode "metrics-only") (ne (int .runAsUser) 0) -}}
{{- fail (printf "runAsUser: %v has no capabilities in mode %s and could not measure: leave it at 0, or set mode: metrics-only" .runAsUser .mode) -}}
{{- end -}}
{{- if and .affinity .gpuOperator.clientLabel -}}
{{- fail "affinity: cannot be combined with gpuOperator.clientLabel, which needs an affinity of its own: use nodeLabels and nodeSelector" -}}
{{- end -}}
{{- if hasKey .nodeSelector "nvidia.com/gpu.deploy.client" -}}
{{- fail "nodeSelector: set gpuOperator.clientLabel instead of nvidia.com/gpu.deploy.client, or nodes without a GPU are left out" -}}
{{- end -}}
{{- with .updateStrategy.rollingUpdate -}}
{{- if and .maxSurge (not (has (toString .maxSurge) (list "0" "0%"))) -}}
{{- fail "updateStrategy.rollingUpdate.maxSurge: two pods cannot have the same port of a node: use maxUnavailable" -}}
{{- end -}}
{{- end -}}
{{- if not .resources.limits -}}
{{- fail "resources.limits: a memory limit is needed, such as 512Mi: an exporter must not take a node's memory from jobs" -}}
{{- else if not .resources.limits.memory -}}
{{- fail "resources.limits.memory: is needed, such as 512Mi: an exporter must not take a node's memory from jobs" -}}
{{- end -}}
{{- $paths := dict "stateDir" .stateDir "runDir" .runDir "kubeletRootDir" .kubeletRootDir -}}
{{- range $value, $path := $paths -}}
{{- if or (contains ".." $path) (has (clean $path) (list "/" "/etc" "/usr" "/var" "/run" "/dev" "/proc" "/sys" "/var/lib")) -}}
{{- fail (printf "%s: %s is not a folder of its own" $value $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "gdr.validatePeer" . -}}
{{- end -}}

{{/* Two values under one name would be an object of two minds. */}}
{{- define "gdr.validateLabels" -}}
{{- $given := dict "podLabels" .Values.podLabels "commonLabels" .Values.commonLabels "monitor.additionalLabels" .Values.monitor.additionalLabels
  "prometheusRule.additionalLabels" .Values.prometheusRule.additionalLabels "dashboards.labels" .Values.dashboards.labels -}}
{{- range $value, $labels := $given -}}
{{- range $label, $_ := $labels -}}
{{- if regexMatch "^(app\\.kubernetes\\.io/(name|instance|component|version|managed-by)|helm\\.sh/chart)$" $label -}}
{{- fail (printf "%s: %s is set by the chart" $value $label) -}}
{{- end -}}
{{- if and (hasKey $.Values.commonLabels $label) (not (has $value (list "commonLabels" "podLabels"))) -}}
{{- fail (printf "%s: %s is in commonLabels too" $value $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gdr.validateWeb" -}}
{{- with .Values.webConfig -}}
{{- if and .config .existingSecret -}}
{{- fail "webConfig: config and existingSecret cannot both be set" -}}
{{- end -}}
{{- if and (or .tls .authentication) (not .existingSecret) -}}
{{- fail "webConfig.tls and webConfig.authentication say what is in webConfig.existingSecret, which is not set" -}}
{{- end -}}
{{- end -}}
{{- if and (ne .Values.web.listenAddress "") (not .Values.hostNetwork) (not (has .Values.web.listenAddress (list "0.0.0.0" "::"))) -}}
{{- fail "web.listenAddress: without hostNetwork a pod has no such address: leave it empty" -}}
{{- end -}}
{{- if .Values.monitor.enabled -}}
{{- if and (include "gdr.tls" .) (not .Values.monitor.tlsConfig) -}}
{{- fail "monitor.tlsConfig: is needed, the web configuration has TLS: Prometheus could not scrape" -}}
{{- end -}}
{{- if and .Values.webConfig.config.basic_auth_users (not .Values.monitor.basicAuth) -}}
{{- fail "monitor.basicAuth: is needed, the web configuration has basic_auth_users: Prometheus could not scrape" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gdr.validateArgs" -}}
{{- $own := dict
  "--web.listen-address" "web.listenAddress and web.port"
  "--web.config.file" "webConfig"
  "--web.systemd-socket" "web.listenAddress: there is no systemd in a pod, use that"
  "--web.telemetry-path" "the monitor: it is /metrics"
  "--path.sysfs" "the chart: it is /host/sys"
  "--path.procfs" "the chart: it is /host/proc"
  "--path.driver-root" "driverRoots"
  "--probe.isolation" "the chart: a measurement that crashes or hangs must not take the exporter with it"
  "--probe.interval" "probe.interval"
  "--state.dir" "stateDir"
  "--control.socket" "runDir"
  "--profile" "profile"
  "--log.level" "log.level"
  "--log.format" "log.format"
  "--kubernetes.pod-resources" "podResources.enabled"
  "--peer.enabled" "peer.enabled"
  "--peer.listen-address" "peer.listenAddress and peer.port"
  "--peer.tls-config" "peer.tlsSecret and peer.allowedNames, or peer.existingConfig"
  "--peer.insecure" "peer.insecure"
  "--peer.targets" "peer.targets"
  "--peer.targets-port" "peer.port"
  "--peer.dns" "the chart: it is the name of its Service, or set peer.targets"
  "--peer.degree" "peer.degree"
  "--peer.interval" "peer.interval" -}}
{{- range .Values.extraArgs -}}
{{- $flag := regexReplaceAll "=.*" . "" -}}
{{- with get $own $flag -}}
{{- fail (printf "extraArgs: %s is set by %s" $flag .) -}}
{{- end -}}
{{- if and (eq $flag "--web.enable-lifecycle") (not (include "gdr.authentication" $)) -}}
{{- fail "extraArgs: --web.enable-lifecycle lets anybody who reaches the port give commands: set webConfig with basic_auth_users or client certificates" -}}
{{- end -}}
{{- if and (has $flag (list "--collector.process" "--collector.jobs")) (not $.Values.hostPID) -}}
{{- fail (printf "extraArgs: %s needs hostPID: true, else NVML tells of the processes of its own container alone" $flag) -}}
{{- end -}}
{{- if eq $flag "--replay" -}}
{{- fail "extraArgs: --replay shows a capture instead of the node" -}}
{{- end -}}
{{- end -}}
{{- end -}}

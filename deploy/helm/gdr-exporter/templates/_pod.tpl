{{/* Where the node is in the container: the daemon's flags, and those of a command by hand. */}}
{{- define "gdr.pathFlags" -}}
--path.sysfs=/host/sys --path.procfs=/host/proc
{{- if eq .Values.mode "privileged" }}
{{- range $i, $root := .Values.driverRoots }} --path.driver-root=/host/driver/{{ $i }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Flags of the exporter, as a YAML list. */}}
{{- define "gdr.args" -}}
- --web.listen-address={{ include "gdr.listenAddress" . }}
{{- if include "gdr.webSecret" . }}
- --web.config.file=/etc/gdr_exporter/web/web.yml
{{- end }}
{{- range splitList " " (include "gdr.pathFlags" .) }}
- {{ . }}
{{- end }}
- --probe.isolation=process
- --probe.interval={{ ternary "0" .Values.probe.interval (eq .Values.mode "metrics-only") }}
{{- if .Values.profile }}
- --profile=/etc/gdr_exporter/profile/profile.yaml
{{- end }}
- --log.level={{ .Values.log.level }}
- --log.format={{ .Values.log.format }}
{{- if .Values.peer.enabled }}
{{ include "gdr.peerArgs" . }}
{{- end }}
{{- if .Values.podResources.enabled }}
- --kubernetes.pod-resources=/var/lib/kubelet/pod-resources/kubelet.sock
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gdr.env" -}}
{{- if .Values.hostNetwork }}
- name: HOST_IP
  valueFrom:
    fieldRef:
      fieldPath: status.hostIP
{{- end }}
{{- if .Values.peer.enabled }}
# What the node calls itself while no list does, and for --peer.self=$(NODE_NAME).
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}
{{- if eq .Values.mode "nvidia-runtime" }}
# All GPUs without taking one from the scheduler, and the RDMA devices.
- name: NVIDIA_VISIBLE_DEVICES
  value: all
- name: NVIDIA_DRIVER_CAPABILITIES
  value: "utility,compute"
- name: NVIDIA_MOFED
  value: enabled
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gdr.securityContext" -}}
runAsUser: {{ .Values.runAsUser }}
{{- if ne (int .Values.runAsUser) 0 }}
runAsNonRoot: true
{{- end }}
{{- if eq .Values.mode "privileged" }}
privileged: true
readOnlyRootFilesystem: true
{{- else }}
privileged: false
allowPrivilegeEscalation: false
# The container toolkit's hook writes the linker's cache into the image's file system.
readOnlyRootFilesystem: {{ ne .Values.mode "nvidia-runtime" }}
seccompProfile:
  type: RuntimeDefault
capabilities:
  drop: [ALL]
  {{- if eq .Values.mode "nvidia-runtime" }}
  add:
    {{- toYaml .Values.nvidiaRuntime.capabilities | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Mounts and volumes stand side by side, in the same order. */}}
{{- define "gdr.volumeMounts" -}}
- name: sys
  mountPath: /host/sys
  readOnly: true
- name: proc
  mountPath: /host/proc
  readOnly: true
- name: state
  mountPath: /var/lib/gdr_exporter
- name: run
  mountPath: /run/gdr_exporter
{{- if eq .Values.mode "privileged" }}
# As a whole: a device that comes later, or a folder made anew when a driver is reloaded, is seen.
- name: dev
  mountPath: /dev
{{- if .Values.driverRoots }}
# The driver container mounts its files after this pod has started, and must be able to unmount them.
{{- end }}
{{- range $i, $root := .Values.driverRoots }}
- name: driver-{{ $i }}
  mountPath: /host/driver/{{ $i }}
  readOnly: true
  mountPropagation: HostToContainer
{{- end }}
{{- end }}
{{- if include "gdr.webSecret" . }}
- name: web-config
  mountPath: /etc/gdr_exporter/web
  readOnly: true
{{- end }}
{{- if .Values.webConfig.tlsSecret }}
- name: tls
  mountPath: /etc/gdr_exporter/tls
  readOnly: true
{{- end }}
{{- if .Values.profile }}
- name: profile
  mountPath: /etc/gdr_exporter/profile
  readOnly: true
{{- end }}
{{- if .Values.peer.enabled }}
{{- include "gdr.peerMounts" . }}
{{- end }}
{{- if .Values.podResources.enabled }}
# The folder: the kubelet makes its socket anew when it starts.
- name: pod-resources
  mountPath: /var/lib/kubelet/pod-resources
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gdr.volumes" -}}
- name: sys
  hostPath:
    path: /sys
- name: proc
  hostPath:
    path: /proc
- name: state
  hostPath:
    path: {{ .Values.stateDir | quote }}
    type: DirectoryOrCreate
- name: run
  hostPath:
    path: {{ .Values.runDir | quote }}
    type: DirectoryOrCreate
{{- if eq .Values.mode "privileged" }}
- name: dev
  hostPath:
    path: /dev
{{- range $i, $root := .Values.driverRoots }}
- name: driver-{{ $i }}
  hostPath:
    path: {{ $root | quote }}
    type: DirectoryOrCreate
{{- end }}
{{- end }}
{{- with include "gdr.webSecret" . }}
- name: web-config
  secret:
    secretName: {{ . | quote }}
{{- end }}
{{- with .Values.webConfig.tlsSecret }}
- name: tls
  secret:
    secretName: {{ . | quote }}
{{- end }}
{{- if .Values.profile }}
- name: profile
  configMap:
    name: {{ include "gdr.fullname" . }}-profile
{{- end }}
{{- if .Values.peer.enabled }}
{{- include "gdr.peerVolumes" . }}
{{- end }}
{{- if .Values.podResources.enabled }}
- name: pod-resources
  hostPath:
    path: {{ printf "%s/pod-resources" (.Values.kubeletRootDir | trimSuffix "/") | quote }}
    type: Directory
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Node affinity of a DaemonSet. "others" are the nodes that GPU Operator's label does not manage. */}}
{{- define "gdr.affinity" -}}
{{- $others := eq .part "other-nodes" -}}
{{- $managed := and .root.Values.gpuOperator.clientLabel (not $others) -}}
{{- if .root.Values.affinity }}
{{- toYaml .root.Values.affinity }}
{{- else if and (or .root.Values.nodeLabels $others) (not $managed) }}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range default (list (dict)) .root.Values.nodeLabels }}
      - matchExpressions:
          {{- if .key }}
          - key: {{ .key | quote }}
            operator: In
            values: [{{ .value | quote }}]
          {{- end }}
          {{- if $others }}
          - key: nvidia.com/gpu.deploy.client
            operator: DoesNotExist
          {{- end }}
      {{- end }}
{{- end }}
{{- end -}}

{{/* A change of what the pod reads at its start must start it anew. */}}
{{- define "gdr.podAnnotations" -}}
kubectl.kubernetes.io/default-container: exporter
{{- with .Values.profile }}
checksum/profile: {{ toJson . | sha256sum }}
{{- end }}
{{- with .Values.webConfig.config }}
checksum/web-config: {{ toJson . | sha256sum }}
{{- end }}
{{- if include "gdr.peerOwnConfig" . }}
checksum/peer-config: {{ include "gdr.peerConfig" . | sha256sum }}
{{- end }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gdr.podSpec" -}}
{{- $root := .root -}}
{{- with $root.Values -}}
serviceAccountName: {{ include "gdr.serviceAccount" $root }}
automountServiceAccountToken: false
enableServiceLinks: false
hostNetwork: {{ .hostNetwork }}
{{- if .hostNetwork }}
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
hostPID: {{ .hostPID }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- if eq .mode "nvidia-runtime" }}
runtimeClassName: {{ .nvidiaRuntime.runtimeClassName | quote }}
{{- end }}
terminationGracePeriodSeconds: {{ .terminationGracePeriodSeconds }}
{{- with .imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $selector := .nodeSelector }}
{{- if and .gpuOperator.clientLabel (ne $.part "other-nodes") }}
{{- /* In the nodeSelector and not in the affinity: the operator's driver manager looks there for whom to wait. */}}
{{- $selector = merge (dict "nvidia.com/gpu.deploy.client" "true") $selector }}
{{- end }}
{{- with merge (dict "kubernetes.io/os" "linux") $selector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "gdr.affinity" $ | trim }}
affinity:
  {{- . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: exporter
    image: {{ include "gdr.image" $root | quote }}
    imagePullPolicy: {{ .image.pullPolicy }}
    args:
      {{- include "gdr.args" $root | nindent 6 }}
    {{- with include "gdr.env" $root | trim }}
    env:
      {{- . | nindent 6 }}
    {{- end }}
    ports:
      - name: metrics
        containerPort: {{ .web.port }}
        protocol: TCP
      {{- if .peer.enabled }}
      - name: peers
        containerPort: {{ .peer.port }}
        protocol: TCP
      {{- end }}
    livenessProbe:
      {{- include "gdr.probe" (dict "root" $root "path" "/-/healthy" "timing" .livenessProbe) | trim | nindent 6 }}
    readinessProbe:
      {{- include "gdr.probe" (dict "root" $root "path" "/-/ready" "timing" .readinessProbe) | trim | nindent 6 }}
    resources:
      {{- toYaml .resources | nindent 6 }}
    securityContext:
      {{- include "gdr.securityContext" $root | nindent 6 }}
    # Not below /dev, which is the node's.
    terminationMessagePath: /tmp/termination-log
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      {{- include "gdr.volumeMounts" $root | nindent 6 }}
volumes:
  {{- include "gdr.volumes" $root | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "gdr.daemonSet" -}}
{{- $root := .root -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ include "gdr.fullname" $root }}{{ if eq .part "other-nodes" }}-other-nodes{{ end }}
  namespace: {{ include "gdr.namespace" $root }}
  labels:
    {{- include "gdr.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .part }}
spec:
  selector:
    matchLabels:
      {{- include "gdr.selectorLabels" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .part }}
  updateStrategy:
    {{- toYaml $root.Values.updateStrategy | nindent 4 }}
  template:
    metadata:
      annotations:
        {{- include "gdr.podAnnotations" $root | nindent 8 }}
      labels:
        {{- with $root.Values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- include "gdr.selectorLabels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .part }}
    spec:
      {{- include "gdr.podSpec" . | nindent 6 }}
{{- end -}}

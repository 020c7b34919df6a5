{{- define "gdr.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Short enough for what is appended to it: 63 characters are the most a label may have. */}}
{{- define "gdr.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "gdr.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "gdr.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "gdr.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* What the pods of all of the release's DaemonSets have in common: Service and monitor select by it. */}}
{{- define "gdr.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gdr.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gdr.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "gdr.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gdr.image" -}}
{{- with .Values.image -}}
{{- with .registry }}{{ . }}/{{ end -}}
{{ .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "gdr.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "gdr.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Name of the Secret with the web configuration, empty for none. */}}
{{- define "gdr.webSecret" -}}
{{- if .Values.webConfig.config -}}
{{- include "gdr.fullname" . }}-web
{{- else -}}
{{- .Values.webConfig.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* "true" if the exporter speaks TLS. */}}
{{- define "gdr.tls" -}}
{{- if or .Values.webConfig.config.tls_server_config (and .Values.webConfig.existingSecret .Values.webConfig.tls) -}}true{{- end -}}
{{- end -}}

{{/* "true" if it asks for a client certificate. */}}
{{- define "gdr.clientCertificates" -}}
{{- with .Values.webConfig.config.tls_server_config -}}
{{- if has (toString .client_auth_type) (list "RequireAnyClientCert" "RequireAndVerifyClientCert") -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" if a request without a password or a certificate is refused: the kubelet has neither. */}}
{{- define "gdr.authentication" -}}
{{- if or .Values.webConfig.config.basic_auth_users (include "gdr.clientCertificates" .) (and .Values.webConfig.existingSecret .Values.webConfig.authentication) -}}true{{- end -}}
{{- end -}}

{{/* Where to listen. Brackets, so that an IPv6 address of a node works as well. */}}
{{- define "gdr.listenAddress" -}}
{{- $address := default (ternary "$(HOST_IP)" "" .Values.hostNetwork) .Values.web.listenAddress -}}
{{- with $address }}[{{ . | trimPrefix "[" | trimSuffix "]" }}]{{ end }}:{{ .Values.web.port }}
{{- end -}}

{{/* A probe of the kubelet's: httpGet, or tcpSocket where every path asks for a password. */}}
{{- define "gdr.probe" -}}
{{- $root := .root -}}
{{- $host := $root.Values.web.listenAddress | trimPrefix "[" | trimSuffix "]" -}}
{{- if has $host (list "0.0.0.0" "::") }}{{ $host = "" }}{{ end -}}
{{- if include "gdr.authentication" $root }}
tcpSocket:
{{- else }}
httpGet:
  path: {{ .path }}
  {{- if include "gdr.tls" $root }}
  scheme: HTTPS
  {{- end }}
{{- end }}
  port: metrics
  {{- with $host }}
  host: {{ . | quote }}
  {{- end }}
{{ toYaml .timing }}
{{- end -}}

{{/* Measurements between nodes. */}}

{{- define "gdr.peerService" -}}
{{- include "gdr.fullname" . }}-peers
{{- end -}}

{{/* "true" if the chart writes the configuration of TLS. */}}
{{- define "gdr.peerOwnConfig" -}}
{{- if and .Values.peer.enabled (not .Values.peer.insecure) (not .Values.peer.existingConfig) -}}true{{- end -}}
{{- end -}}

{{- define "gdr.peerConfig" -}}
cert_file: /etc/gdr_exporter/peer-tls/tls.crt
key_file: /etc/gdr_exporter/peer-tls/tls.key
ca_file: /etc/gdr_exporter/peer-tls/ca.crt
allowed_names:
  {{- toYaml .Values.peer.allowedNames | nindent 2 }}
{{- end -}}

{{/* Where to listen. A list may lead to any address of a node, that of the pods only to the node's. */}}
{{- define "gdr.peerListenAddress" -}}
{{- $node := and .Values.hostNetwork (not .Values.peer.targets) (eq .Values.peer.dnsRecord "a") -}}
{{- $address := default (ternary "$(HOST_IP)" "" $node) .Values.peer.listenAddress -}}
{{- with $address }}[{{ . | trimPrefix "[" | trimSuffix "]" }}]{{ end }}:{{ .Values.peer.port }}
{{- end -}}

{{- define "gdr.peerArgs" -}}
{{- with .Values.peer -}}
- --peer.enabled
- --peer.listen-address={{ include "gdr.peerListenAddress" $ }}
{{- if .insecure }}
- --peer.insecure
{{- else }}
- --peer.tls-config=/etc/gdr_exporter/peer/peer.yml
{{- end }}
{{- if .targets }}
- --peer.targets=/etc/gdr_exporter/peer-targets/nodes.yml
- --peer.targets-port={{ .port }}
{{- else }}
- --peer.dns={{ .dnsRecord }}+{{ include "gdr.peerService" $ }}.{{ include "gdr.namespace" $ }}.svc:{{ .port }}
{{- end }}
- --peer.degree={{ .degree }}
- --peer.interval={{ .interval }}
{{- end }}
{{- end -}}

{{/* Folders, not single files: the kubelet then renews what is in them. */}}
{{- define "gdr.peerMounts" -}}
{{- with .Values.peer }}
{{- if not .insecure }}
- name: peer-config
  mountPath: /etc/gdr_exporter/peer
  readOnly: true
{{- end }}
{{- if .tlsSecret }}
- name: peer-tls
  mountPath: /etc/gdr_exporter/peer-tls
  readOnly: true
{{- end }}
{{- if .targets }}
- name: peer-targets
  mountPath: /etc/gdr_exporter/peer-targets
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{- define "gdr.peerVolumes" -}}
{{- with .Values.peer }}
{{- if not .insecure }}
- name: peer-config
  configMap:
    name: {{ default (printf "%s-peer" (include "gdr.fullname" $)) .existingConfig | quote }}
{{- end }}
{{- with .tlsSecret }}
- name: peer-tls
  secret:
    secretName: {{ . | quote }}
{{- end }}
{{- if .targets }}
- name: peer-targets
  configMap:
    name: {{ include "gdr.fullname" $ }}-peer-targets
{{- end }}
{{- end }}
{{- end -}}

{{- define "gdr.validatePeer" -}}
{{- with .Values.peer -}}
{{- if .enabled -}}
{{- if eq $.Values.mode "metrics-only" -}}
{{- fail "peer.enabled: mode metrics-only has no devices to measure with: set mode: privileged" -}}
{{- end -}}
{{- if .insecure -}}
{{- if or .tlsSecret .existingConfig .allowedNames -}}
{{- fail "peer.insecure: sessions are without TLS then: unset it, or unset peer.tlsSecret, peer.existingConfig and peer.allowedNames" -}}
{{- end -}}
{{- else if .existingConfig -}}
{{- if .allowedNames -}}
{{- fail "peer.allowedNames: write allowed_names into peer.existingConfig, which is used instead" -}}
{{- end -}}
{{- else if not .tlsSecret -}}
{{- fail "peer.tlsSecret: is needed, a Secret with tls.crt, tls.key and ca.crt (or peer.existingConfig; or peer.insecure: true where everybody in the network may have sessions)" -}}
{{- else if not .allowedNames -}}
{{- fail "peer.allowedNames: is needed with peer.tlsSecret: names of the certificate in it, such as the Service's" -}}
{{- end -}}
{{- if eq (int .port) (int $.Values.web.port) -}}
{{- fail (printf "peer.port: %v is web.port: sessions have a port of their own" .port) -}}
{{- end -}}
{{- if and .listenAddress (not $.Values.hostNetwork) (not (has .listenAddress (list "0.0.0.0" "::"))) -}}
{{- fail "peer.listenAddress: without hostNetwork a pod has no such address: leave it empty" -}}
{{- end -}}
{{- if and .targets (ne .dnsRecord "a") -}}
{{- fail "peer.dnsRecord: says nothing with peer.targets, by which the nodes are found" -}}
{{- end -}}
{{- $hours := regexFind "[0-9]+h" .interval | trimSuffix "h" | int -}}
{{- $minutes := add (mul 60 $hours) (regexFind "[0-9]+m" .interval | trimSuffix "m" | int) | int -}}
{{- if or (lt $minutes 1) (gt $minutes 1440) -}}
{{- fail (printf "peer.interval: %s is not from 1m to 24h" .interval) -}}
{{- else if lt $minutes (mul 3 .degree | int) -}}
{{- fail (printf "peer.degree: %v neighbours need three minutes each, and peer.interval is %s" .degree .interval) -}}
{{- end -}}
{{- if has "--no-collector.rdma" $.Values.extraArgs -}}
{{- fail "extraArgs: --no-collector.rdma leaves peer.enabled nothing to measure" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

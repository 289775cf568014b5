{{- define "listedge.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* With room for -migrate. */}}
{{- define "listedge.fullname" -}}
{{- $name := include "listedge.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 54 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 54 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 54 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{/* What finds the nodes of this release. */}}
{{- define "listedge.selector" -}}
app.kubernetes.io/name: '{{ include "listedge.name" . }}'
app.kubernetes.io/instance: '{{ .Release.Name }}'
app.kubernetes.io/component: node
{{- end -}}

{{- define "listedge.labels" -}}
app.kubernetes.io/name: '{{ include "listedge.name" . }}'
app.kubernetes.io/instance: '{{ .Release.Name }}'
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: '{{ .Release.Service }}'
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{/* The job of the nodes' series: the rules find fleets by how it begins. */}}
{{- define "listedge.job" -}}
{{- $name := include "listedge.fullname" . -}}
{{ hasPrefix "listedge" $name | ternary $name (printf "listedge-%s" $name | trunc 63) }}
{{- end -}}

{{- define "listedge.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "listedge.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "listedge.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* What the Secret has that the chart makes. */}}
{{- define "listedge.secretURLs" -}}
{{- with .Values.secret }}
{{- range $name, $url := dict "DATABASE" .databaseURL "REDIS" .redisURL "REPLICA" .replicaURL "REPLICATION" .replicationURL }}
{{- if $url }}
LISTEDGE_{{ $name }}_URL: {{ $url | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The keys of a Secret as files, which do not show where environments do. */}}
{{- define "listedge.secretFiles" -}}
{{- range . }}
- name: {{ . }}_FILE
  value: /etc/listedge/{{ . }}
{{- end }}
{{- end -}}

{{- define "listedge.mounts" -}}
- name: listedge-secret
  mountPath: /etc/listedge
  readOnly: true
{{- if .Values.lists }}
- name: listedge-lists
  mountPath: /etc/listedge-lists
  readOnly: true
{{- end }}
{{- with .Values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Milliseconds of a duration, as Go writes it. */}}
{{- define "listedge.milliseconds" -}}
{{- $zero := toDate "2006" "2000" -}}
{{ sub (mustDateModify . $zero).UnixMilli $zero.UnixMilli }}
{{- end -}}

{{- define "listedge.trustedProxies" -}}
{{- if not (kindIs "slice" .Values.trustedProxies) -}}
{{- fail "set trustedProxies: the networks of ingress controllers and load balancers, such as [10.244.0.0/16], or [] if clients reach the nodes directly" -}}
{{- end -}}
{{- join "," .Values.trustedProxies -}}
{{- end -}}

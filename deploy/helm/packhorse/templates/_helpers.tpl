{{- define "packhorse.name" -}}
{{- if contains "packhorse" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-packhorse" (.Release.Name | trunc 42 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "packhorse.selector" -}}
app.kubernetes.io/name: packhorse
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "packhorse.labels" -}}
{{ include "packhorse.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "packhorse.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* A value as JSON, which is YAML too. Helm holds every number as a float, and would print 2000000 as 2e+06. */ -}}
{{- define "packhorse.value" -}}
{{- if kindIs "map" . -}}
{ {{- $comma := "" }}{{ range $name, $value := . }}{{ $comma }}{{ $name | toJson }}: {{ include "packhorse.value" $value }}{{ $comma = ", " }}{{ end -}} }
{{- else if kindIs "slice" . -}}
[ {{- $comma := "" }}{{ range . }}{{ $comma }}{{ include "packhorse.value" . }}{{ $comma = ", " }}{{ end -}} ]
{{- else if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else -}}
{{ . | toJson }}
{{- end }}
{{- end }}

{{- /* The secret with the certificate; empty for plain text. */ -}}
{{- define "packhorse.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled }}{{ .Values.tls.secret | default (printf "%s-tls" (include "packhorse.name" .)) }}{{ else }}{{ .Values.tls.secret }}{{ end }}
{{- end }}

{{- /* Refuses plain text that nobody asked for, and options of a certificate without one. */ -}}
{{- define "packhorse.checkTransport" -}}
{{- $tls := .Values.tls }}
{{- if include "packhorse.tlsSecret" . }}
{{- if $tls.plainText }}{{ fail "tls.plainText: there is a certificate as well (tls.secret or tls.certManager); give one of the two" }}{{ end }}
{{- if and $tls.certManager.issuer.name (not $tls.certManager.enabled) }}{{ fail "tls.certManager.issuer.name: set tls.certManager.enabled=true, or leave it out: tls.secret has the certificate" }}{{ end }}
{{- if and $tls.certManager.dnsNames (not $tls.certManager.enabled) }}{{ fail "tls.certManager.dnsNames: set tls.certManager.enabled=true, or leave it out: tls.secret has the certificate" }}{{ end }}
{{- else }}
{{- if $tls.requireClientCertificate }}{{ fail "tls.requireClientCertificate: needs the server's own certificate, tls.secret or tls.certManager.enabled=true" }}{{ end }}
{{- if $tls.certManager.issuer.name }}{{ fail "tls.certManager.issuer.name: set tls.certManager.enabled=true too" }}{{ end }}
{{- if $tls.certManager.dnsNames }}{{ fail "tls.certManager.dnsNames: set tls.certManager.enabled=true too" }}{{ end }}
{{- if not $tls.plainText }}{{ fail "tls: name a certificate with tls.secret or tls.certManager.enabled=true; or set tls.plainText=true, and every pod that reaches the server can read all datasets" }}{{ end }}
{{- end }}
{{- end }}

{{- /* Asks this pod's server for the health of a service: (list . SERVICE). */ -}}
{{- define "packhorse.healthCommand" -}}
["packhorse", "doctor", "--health={{ index . 1 }}", "--target", "{{ include "packhorse.name" (index . 0) }}:50051", "--timeout-seconds", "8"]
{{- end }}

{{- define "packhorse.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "packhorse.podSecurity" -}}
runAsNonRoot: true
{{- /* OpenShift gives each namespace a user and a group of its own, and refuses others. */}}
{{- if and .Values.runAsUser (not (.Capabilities.APIVersions.Has "security.openshift.io/v1")) }}
runAsUser: {{ int64 .Values.runAsUser }}
runAsGroup: {{ int64 .Values.runAsUser }}
fsGroup: {{ int64 .Values.runAsUser }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "packhorse.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* A pod of a preparation but its containers, for a Job and for Ray alike. */ -}}
{{- define "packhorse.preparationPod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "packhorse.podSecurity" . | nindent 2 }}
{{- include "packhorse.pullSecrets" . }}
{{- with .Values.preparation.nodeSelector | default .Values.nodeSelector }}
nodeSelector: {{ include "packhorse.value" . }}
{{- end }}
{{- with .Values.preparation.tolerations | default .Values.tolerations }}
tolerations: {{ include "packhorse.value" . }}
{{- end }}
{{- with .Values.preparation.affinity | default .Values.affinity }}
affinity: {{ include "packhorse.value" . }}
{{- end }}
volumes:
  - name: data
    persistentVolumeClaim:
      claimName: {{ .Values.preparation.claim }}
  - name: tmp
    emptyDir: {}
{{- end }}

{{- /* A Job cannot be changed: another preparation is another Job, whose name ends with a hash of what it does. */ -}}
{{- define "packhorse.preparationName" -}}
{{ include "packhorse.name" . }}-prepare-{{ list .Values.preparation (include "packhorse.preparationPod" .) (include "packhorse.preparationContainer" .) | toJson | sha256sum | trunc 8 }}
{{- end }}

{{- define "packhorse.preparationContainer" -}}
image: {{ required "preparation.image: name an image with packhorse[prepare], or packhorse[ray] for Ray" .Values.preparation.image }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.preparation.secret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
securityContext:
  {{- include "packhorse.confined" . | nindent 2 }}
resources: {{ include "packhorse.value" .Values.preparation.resources }}
volumeMounts:
  - name: data
    mountPath: /data
  - name: tmp
    mountPath: /tmp
{{- end }}

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
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The secret with the certificate; empty for plain text. */ -}}
{{- define "packhorse.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled }}{{ .Values.tls.secret | default (printf "%s-tls" (include "packhorse.name" .)) }}{{ else }}{{ .Values.tls.secret }}{{ end }}
{{- end }}

{{- define "packhorse.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "packhorse.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /* Volumes and container of a preparation, for a Job and for Ray alike. */ -}}
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
resources:
  {{- toYaml .Values.preparation.resources | nindent 2 }}
volumeMounts:
  - name: data
    mountPath: /data
  - name: tmp
    mountPath: /tmp
{{- end }}

{{- define "packhorse.preparationVolumes" -}}
- name: data
  persistentVolumeClaim:
    claimName: {{ .Values.preparation.claim }}
- name: tmp
  emptyDir: {}
{{- end }}

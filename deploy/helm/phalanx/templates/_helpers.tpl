{{- define "phalanx.name" -}}
{{- if contains "phalanx" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-phalanx" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "phalanx.selector" -}}
app.kubernetes.io/name: phalanx
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "phalanx.labels" -}}
{{ include "phalanx.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "phalanx.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "phalanx.account" -}}
{{ .Values.serviceAccount.name | default (include "phalanx.name" .) }}
{{- end -}}

{{- define "phalanx.host" -}}
{{ include "phalanx.name" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "phalanx.url" -}}
{{ .Values.advertise | default (printf "https://%s:%v" (include "phalanx.host" .) .Values.service.port) }}
{{- end -}}

{{- define "phalanx.claim" -}}
{{ .Values.home.existingClaim | default (printf "%s-home" (include "phalanx.name" .)) }}
{{- end -}}

{{- /* The pool file: pools of Kubernetes get the images and the URL where they name none. */ -}}
{{- define "phalanx.pools" -}}
{{- $pools := list -}}
{{- range .Values.pools -}}
{{- $pool := deepCopy . -}}
{{- if eq (get $pool "executor" | default "local") "kubernetes" -}}
{{- $pool = merge $pool (dict "image" (include "phalanx.image" $) "supervisor_image" (include "phalanx.image" $) "server_url" (include "phalanx.url" $)) -}}
{{- end -}}
{{- $pools = append $pools $pool -}}
{{- end -}}
{{- dict "schema" 1 "pools" $pools | toYaml -}}
{{- end -}}

{{- /* Values that contradict one another are refused before anything is applied. */ -}}
{{- define "phalanx.checks" -}}
{{- $many := gt (int .Values.replicas) 1 -}}
{{- if and $many (not .Values.database.existingSecret) -}}
{{- fail "replicas: more than one needs database.existingSecret, a Secret with the URL of a PostgreSQL database" -}}
{{- end -}}
{{- if and $many (eq .Values.home.accessMode "ReadWriteOnce") -}}
{{- fail "home.accessMode: several replicas mount the home, so it must be ReadWriteMany" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.host: an enabled Ingress needs the host name that users see" -}}
{{- end -}}
{{- if and .Values.login.issuer (not .Values.login.clientId) -}}
{{- fail "login.clientId: a provider needs the id under which it knows this control plane" -}}
{{- end -}}
{{- if .Values.serviceMonitor.enabled -}}
{{- if or (not .Values.serviceMonitor.token.existingSecret) (not .Values.serviceMonitor.ca.existingSecret) -}}
{{- fail "serviceMonitor: needs token.existingSecret, a token with the scope metrics, and ca.existingSecret, the authority of the API" -}}
{{- end -}}
{{- end -}}
{{- if .Values.operator.enabled -}}
{{- if or (not .Values.operator.token.existingSecret) (not .Values.operator.ca.existingSecret) -}}
{{- fail "operator: needs token.existingSecret, a token with the scope submit, and ca.existingSecret, the authority of the API" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The release's name and the chart's, always both: left out where the release's holds the chart's, as is usual, `rl`
and `rl-rollstream` would be the same. At most 40 characters, so that every suffix fits into the 52 of a StatefulSet; a
longer name keeps a hash of the whole. */}}
{{- define "rollstream.fullname" -}}
{{- $chart := .Values.nameOverride | default .Chart.Name -}}
{{- $name := ternary $chart (printf "%s-%s" .Release.Name $chart) (eq .Release.Name $chart) -}}
{{- $name = .Values.fullnameOverride | default $name -}}
{{- if gt (len $name) 40 -}}
{{- $name = printf "%s-%s" (trunc 31 $name | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* What selects the pods of this release; a stage adds its component. */}}
{{- define "rollstream.selectorLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* context: root, component, labels */}}
{{- define "rollstream.labels" -}}
{{- $root := .root -}}
{{- $own := dict
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/part-of" "rollstream"
  "app.kubernetes.io/managed-by" $root.Release.Service
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") -}}
{{- with .component }}{{ $_ := set $own "app.kubernetes.io/component" . }}{{ end -}}
{{- merge $own (include "rollstream.selectorLabels" $root | fromYaml) (.labels | default dict) $root.Values.commonLabels | toYaml -}}
{{- end }}

{{/* Without the chart's version, by which every pod would start again. context: root, stage, component, values */}}
{{- define "rollstream.podLabels" -}}
{{- $own := merge (include "rollstream.selectorLabels" .root | fromYaml) (dict "app.kubernetes.io/component" (.component | default .stage)) -}}
{{- merge $own (.values.podLabels | default dict) .root.Values.commonLabels | toYaml -}}
{{- end }}

{{/* name, namespace, labels and annotations of an object. context: root, name, suffix, component, namespace,
labels, annotations */}}
{{- define "rollstream.metadata" -}}
{{- $annotations := merge (dict) (.annotations | default dict) .root.Values.commonAnnotations -}}
name: {{ .name | default (include "rollstream.fullname" .root) }}{{ with .suffix }}-{{ . }}{{ end }}
namespace: {{ .namespace | default .root.Release.Namespace }}
labels:
  {{- include "rollstream.labels" . | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "rollstream.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "rollstream.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end }}

{{/* The stages, as JSON: each is a value of the chart, a command, and a table of the run's file. */}}
{{- define "rollstream.stages" -}}
{{- list "producer" "generator" "scorer" "trainer" "ingest" | toJson -}}
{{- end }}

{{/* The components of this release that are stages, as JSON; a further producer is one, too. */}}
{{- define "rollstream.components" -}}
{{- $found := list -}}
{{- range include "rollstream.stages" . | fromJsonArray }}{{ if (index $.Values .).enabled }}{{ $found = append $found . }}{{ end }}{{ end -}}
{{- range $name, $_ := .Values.producers }}{{ $found = append $found (printf "producer-%s" $name) }}{{ end -}}
{{- toJson $found -}}
{{- end }}

{{/* The values of a stage on top of those of every stage, as YAML. A further producer, `producer-NAME`, has those of
`producer` below its own. context: root, stage (or component) */}}
{{- define "rollstream.stage" -}}
{{- $values := deepCopy .root.Values.stageDefaults -}}
{{- if hasPrefix "producer-" .stage -}}
{{- $own := index .root.Values.producers (trimPrefix "producer-" .stage) -}}
{{- mergeOverwrite $values (deepCopy .root.Values.producer) (dict "enabled" true) (deepCopy $own) | toYaml -}}
{{- else -}}
{{- mergeOverwrite $values (deepCopy (index .root.Values .stage)) | toYaml -}}
{{- end -}}
{{- end }}

{{/* The port at which a stage serves clients; empty: it serves none. context: root, stage */}}
{{- define "rollstream.httpPort" -}}
{{- $v := .root.Values -}}
{{- if and (eq .stage "generator") $v.generator.serve.enabled }}{{ $v.generator.serve.port }}{{ end -}}
{{- if eq .stage "ingest" }}{{ $v.ingest.port }}{{ end -}}
{{- end }}

{{/* context: root, image (parts that differ) */}}
{{- define "rollstream.image" -}}
{{- $image := mergeOverwrite (deepCopy .root.Values.image) (.image | default dict) -}}
{{- $registry := $image.registry | default (.root.Values.global).imageRegistry -}}
{{- with $registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

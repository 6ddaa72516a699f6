{{/* The pod of a stage, of the bootstrap Job and of the test: none has a pod of its own making, so that none lacks
security or a pass-through. context: root, stage, values, args, initContainers (of our own image: name → args),
isService (whether it has probes and a port), onlyLends (whether it only lends its GPUs to another pod, and knows no
secret), configMap, serviceAccountName, restartPolicy */}}
{{- define "rollstream.podSpec" -}}
{{- $v := .root.Values -}}
{{- $s := .values -}}
serviceAccountName: {{ .serviceAccountName | default (include "rollstream.serviceAccountName" .root) }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .restartPolicy }}
restartPolicy: {{ . }}
{{- end }}
{{- with $s.terminationGracePeriodSeconds }}
terminationGracePeriodSeconds: {{ . }}
{{- end }}
{{- with concat $v.imagePullSecrets ((.root.Values.global).imagePullSecrets | default list) }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with mergeOverwrite (deepCopy $v.podSecurityContext) (deepCopy ($s.podSecurityContext | default dict)) }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $affinity := include "rollstream.affinity" . | fromYaml -}}
{{- range $field, $value := merge (dict "affinity" $affinity) (pick $s "nodeSelector" "tolerations"
  "topologySpreadConstraints" "priorityClassName" "runtimeClassName" "schedulerName" "hostAliases" "dnsPolicy" "dnsConfig") }}
{{- if $value }}
{{ $field }}:
  {{- toYaml $value | nindent 2 }}
{{- end }}
{{- end }}
{{- if or .initContainers $s.extraInitContainers }}
initContainers:
  {{- range $name, $args := .initContainers }}
  - name: {{ $name }}
    {{- include "rollstream.container" (dict "root" $.root "stage" $.stage "onlyLends" $.onlyLends "values" $s "args" $args "resources" $.smallResources) | nindent 4 }}
  {{- end }}
  {{- with $s.extraInitContainers }}
  {{- tpl (toYaml .) $.root | nindent 2 }}
  {{- end }}
{{- end }}
containers:
  - name: {{ ternary "producer" .stage (hasPrefix "producer-" .stage) }}
    {{- include "rollstream.container" (dict "root" .root "stage" .stage "onlyLends" .onlyLends "values" $s "args" .args "resources" (include "rollstream.resources" . | fromYaml)) | nindent 4 }}
    {{- if .isService }}
    ports:
      - {name: metrics, containerPort: {{ $v.healthPort }}, protocol: TCP}
    {{- with include "rollstream.httpPort" . }}
      - {name: http, containerPort: {{ . }}, protocol: TCP}
    {{- end }}
    {{- range $kind, $probe := $s.probes }}
    {{ $kind }}Probe:
      httpGet: {path: {{ $probe.path }}, port: metrics}
      {{- toYaml (omit $probe "path") | nindent 6 }}
    {{- end }}
    {{- with $s.lifecycle | default (include "rollstream.lifecycle" . | fromYaml) }}
    lifecycle:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- end }}
  {{- with $s.extraContainers }}
  {{- tpl (toYaml .) $.root | nindent 2 }}
  {{- end }}
{{ include "rollstream.volumes" . }}
{{- end }}

{{/* Image, command, environment, mounts and security of one container. context: as podSpec, resources */}}
{{- define "rollstream.container" -}}
{{- $s := .values -}}
image: {{ include "rollstream.image" (dict "root" .root "image" $s.image) | quote }}
imagePullPolicy: {{ ($s.image | default dict).pullPolicy | default .root.Values.image.pullPolicy }}
args: {{ toJson .args }}
env:
  {{- include "rollstream.allEnv" . | nindent 2 }}
{{- with $s.extraEnvFrom }}
envFrom:
  {{- tpl (toYaml .) $.root | nindent 2 }}
{{- end }}
{{- with .resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with mergeOverwrite (deepCopy .root.Values.securityContext) (deepCopy ($s.securityContext | default dict)) }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  {{- include "rollstream.mounts" . | trim | nindent 2 }}
{{- end }}

{{/* Where clients call: they are routed to the pod for some seconds after it was told to end. context: root, stage */}}
{{- define "rollstream.lifecycle" -}}
{{- if include "rollstream.httpPort" . }}preStop: {exec: {command: [sleep, "5"]}}{{ end -}}
{{- end }}

{{/* The stage's resources, with its GPUs. */}}
{{- define "rollstream.resources" -}}
{{- $resources := deepCopy (.values.resources | default dict) -}}
{{- with .values.gpu -}}
{{- if .count -}}
{{- $name := index $.root.Values.gpuResourceNames .vendor -}}
{{- $_ := set $resources "limits" (merge (dict $name .count) ($resources.limits | default dict)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}

{{/* The stage's affinity; with a volume for one node, generators go to the trainer's node too. */}}
{{- define "rollstream.affinity" -}}
{{- $affinity := deepCopy (.values.affinity | default dict) -}}
{{- $store := .root.Values.weightStore -}}
{{- if and (eq .stage "generator") (eq $store.backend "pvc") $store.pvc.sameNode .root.Values.trainer.enabled -}}
{{- $labels := merge (dict "app.kubernetes.io/component" "trainer") (include "rollstream.selectorLabels" .root | fromYaml) -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) -}}
{{- $pods := $affinity.podAffinity | default dict -}}
{{- $required := append ($pods.requiredDuringSchedulingIgnoredDuringExecution | default list) $term -}}
{{- $_ := set $pods "requiredDuringSchedulingIgnoredDuringExecution" $required -}}
{{- $_ := set $affinity "podAffinity" $pods -}}
{{- end -}}
{{- toYaml $affinity -}}
{{- end }}

{{/* The pod template of a stage. context: root, stage, component, values, onlyLends */}}
{{- define "rollstream.stagePod" -}}
{{- $wait := dict -}}
{{- if and .root.Values.waitForTopics (not .onlyLends) }}{{ $wait = dict "wait-for-topics" (list "topics" "describe") }}{{ end -}}
metadata:
  labels:
    {{- include "rollstream.podLabels" . | nindent 4 }}
  annotations:
    {{- $own := dict "checksum/config" (include "rollstream.configChecksum" .) -}}
    {{- if and (eq .stage "trainer") (not .values.safeToEvict) -}}
    {{- $_ := set $own "cluster-autoscaler.kubernetes.io/safe-to-evict" "false" -}}
    {{- end -}}
    {{- merge $own .values.podAnnotations .root.Values.commonAnnotations | toYaml | nindent 4 }}
spec:
  {{- include "rollstream.podSpec" (dict "root" .root "stage" .stage "values" .values "args" (list (.stage | splitList "-" | first)) "isService" true "onlyLends" .onlyLends
    "initContainers" $wait "smallResources" .root.Values.bootstrapJob.resources "restartPolicy" .restartPolicy) | nindent 2 }}
{{- end }}

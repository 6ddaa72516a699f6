{{/* The chart's variables and those of `extraEnv`, each once: one of `extraEnv` takes the place of the chart's. Else
Kubernetes would take the last, and server-side apply refuses both. context: as podSpec */}}
{{- define "rollstream.allEnv" -}}
{{- $extra := tpl (toYaml (.values.extraEnv | default list)) .root | fromYamlArray -}}
{{- $names := list -}}
{{- $part := ternary "bootstrapJob" .stage (eq .stage "bootstrap") -}}
{{- range $extra -}}
{{- if has .name $names }}{{ fail (printf "%s.extraEnv: %s stands there twice; leave one out" $part .name) }}{{ end -}}
{{- if regexMatch "(?i)^ROLLSTREAM_(CONFIG|RUN|HEALTH_PORT|GENERATOR_ID|SCORER_ID|ENGINE__NODES.*|ENGINE__TENSOR_PARALLEL_SIZE|KAFKA__BOOTSTRAP_SERVERS|WEIGHT_STORE|CHECKPOINTS)$" .name -}}
{{ fail (printf "%s.extraEnv: %s is the chart's: its other objects say the same, so set the value that it is made of" $part .name) }}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $own := list -}}
{{- range include "rollstream.env" . | fromYamlArray }}{{ if not (has .name $names) }}{{ $own = append $own . }}{{ end }}{{ end -}}
{{- concat $own $extra | toYaml -}}
{{- end }}

{{/* Where to find the settings, and the secret ones of them. Kafka's have a dot in their names, which is allowed in
names of environment variables; no shell reads them. context: root, stage, onlyLends */}}
{{- define "rollstream.env" -}}
{{- $v := .root.Values -}}
- name: ROLLSTREAM_CONFIG
  value: /etc/rollstream/run/rollstream.toml
- name: ROLLSTREAM_HEALTH_PORT
  value: {{ $v.healthPort | quote }}
{{- if has .stage (list "generator" "scorer") }}
- name: ROLLSTREAM_{{ upper .stage }}_ID
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}
{{- if and (eq .stage "generator") $v.generator.leaderWorkerSet.enabled }}
- name: ROLLSTREAM_ENGINE__NODES__RANK
  value: $(LWS_WORKER_INDEX)
- name: ROLLSTREAM_ENGINE__NODES__LEADER
  value: $(LWS_LEADER_ADDRESS)
- name: VLLM_HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}
{{- if not .onlyLends }}
{{- include "rollstream.secretsEnv" . }}
{{- include "rollstream.clientsEnv" . }}
{{- end }}
{{- end }}

{{/* The secret ones. context: root, stage */}}
{{- define "rollstream.secretsEnv" -}}
{{- $v := .root.Values -}}
{{- include "rollstream.kafkaUserEnv" . }}
{{- with $v.schemaRegistry }}
{{- if .existingSecret }}
{{ include "rollstream.secretEnv" (list "REGISTRY_URL" .existingSecret .urlKey) }}
{{- end }}
{{- end }}
{{- with $v.redis }}
{{- if .existingSecret }}
{{ include "rollstream.secretEnv" (list "REDIS_URL" .existingSecret .urlKey) }}
{{- end }}
{{- end }}
{{- if and $v.objectStore.existingSecret (include "rollstream.usesObjectStore" .) }}
{{- range $option, $key := $v.objectStore.secretOptions }}
{{ include "rollstream.secretEnv" (list (printf "STORAGE__OPTIONS__%s" (upper $option)) $v.objectStore.existingSecret $key) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The keys of the clients, for who serves them, and for the test, which reads all settings. context: root, stage */}}
{{- define "rollstream.clientsEnv" -}}
{{- $root := .root }}
{{- $clients := $root.Values.clients }}
{{- range $stage := ternary (list "generator" "ingest") (list .stage) (eq .stage "test") }}
{{- if and (include "rollstream.httpPort" (dict "root" $root "stage" $stage)) (index $root.Values $stage).enabled }}
{{- range $name, $client := $clients.names }}
{{ include "rollstream.secretEnv" (list (printf "%s__%s__KEY" (ternary "SERVE__KEYS" "KEYS" (eq $stage "generator")) (upper $name)) $clients.existingSecret ($client.secretKey | default $name)) }}
{{- end }}
{{- if and $clients.subjectSecretKey (eq $stage "generator") }}
{{ include "rollstream.secretEnv" (list "SERVE__SUBJECT_SECRET" $clients.existingSecret $clients.subjectSecretKey) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* An environment variable from a secret. context: list of setting, secret, key */}}
{{- define "rollstream.secretEnv" -}}
- name: ROLLSTREAM_{{ index . 0 }}
  valueFrom: {secretKeyRef: {name: {{ index . 1 }}, key: {{ index . 2 | quote }}}}
{{- end }}

{{/* "true" where a stage reads or writes an object store. context: root, stage */}}
{{- define "rollstream.usesObjectStore" -}}
{{- $v := .root.Values -}}
{{- $weights := and (eq $v.weightStore.backend "objectStore") (has .stage (list "generator" "trainer")) -}}
{{- if or $weights (and (eq .stage "trainer") $v.trainer.checkpoints.location) }}true{{ end -}}
{{- end }}

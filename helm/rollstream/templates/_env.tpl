{{/* Where to find the settings, and the secret ones of them. Kafka's have a dot in their names, which is allowed in
names of environment variables; no shell reads them. context: root, stage, onlyLends */}}
{{- define "rollstream.env" -}}
{{- $v := .root.Values -}}
{{- $security := $v.kafka.security -}}
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
{{- end }}
{{- end }}

{{/* The secret ones. context: root, stage */}}
{{- define "rollstream.secretsEnv" -}}
{{- $v := .root.Values -}}
{{- $security := $v.kafka.security -}}
{{- if contains "SASL" $security.protocol }}
{{- if not $security.username }}
{{ include "rollstream.secretEnv" (list "KAFKA__SECURITY__SASL.USERNAME" $security.existingSecret $security.usernameKey) }}
{{- end }}
{{ include "rollstream.secretEnv" (list "KAFKA__SECURITY__SASL.PASSWORD" $security.existingSecret $security.passwordKey) }}
{{- end }}
{{- with $security.tls.client }}
{{- if and .existingSecret .passwordKey (contains "SSL" $security.protocol) }}
{{ include "rollstream.secretEnv" (list "KAFKA__SECURITY__SSL.KEY.PASSWORD" .existingSecret .passwordKey) }}
{{- end }}
{{- end }}
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

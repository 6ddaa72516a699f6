{{/* The run's file. */}}
{{- define "rollstream.config" -}}
{{- include "rollstream.toml" (dict "path" list "table" (include "rollstream.settings" . | fromJson)) -}}
{{- end }}

{{/* Changes with what a stage reads: the shared settings and its own table. context: root, stage */}}
{{- define "rollstream.configChecksum" -}}
{{- $settings := include "rollstream.settings" .root | fromJson -}}
{{- range $other := without (list "producer" "generator" "scorer" "trainer") .stage -}}
{{- $_ := unset $settings $other -}}
{{- end -}}
{{- toJson $settings | sha256sum -}}
{{- end }}

{{/* The run's settings without secrets, as JSON: what the chart's own values say, with `config` on top. */}}
{{- define "rollstream.settings" -}}
{{- $v := .Values -}}
{{- $kafka := dict
  "bootstrap_servers" $v.kafka.bootstrapServers
  "group_protocol" $v.kafka.groupProtocol
  "linger_seconds" $v.kafka.lingerSeconds
  "security" (include "rollstream.kafkaSecurity" . | fromYaml) -}}
{{- $storage := dict "cache" "/storage-cache" "cache_bytes" (mul (int $v.objectStore.cache.gib) 1073741824) -}}
{{- $_ := set $storage "allow_http" $v.objectStore.allowHttp -}}
{{- $options := merge (dict) $v.objectStore.options -}}
{{- with $v.objectStore.endpoint }}{{ $_ := set $options "endpoint" . }}{{ end -}}
{{- with $v.objectStore.region }}{{ $_ := set $options "region" . }}{{ end -}}
{{- $_ := set $storage "options" $options -}}
{{- $own := dict
  "run" $v.run
  "kafka" $kafka
  "storage" $storage
  "weight_store" (ternary $v.weightStore.location "/weights" (eq $v.weightStore.backend "objectStore"))
  "generator" (dict "engine" (include "rollstream.engine" . | fromJson))
  "trainer" (dict "model_path" $v.model.path "checkpoints" ($v.trainer.checkpoints.location | default "/checkpoints")) -}}
{{- with $v.schemaRegistry.url }}{{ $_ := set $own "registry_url" . }}{{ end -}}
{{- with $v.redis.url }}{{ $_ := set $own "redis_url" . }}{{ end -}}
{{- mergeOverwrite $own (deepCopy $v.config) | toJson -}}
{{- end }}

{{/* librdkafka's settings that every pod has, as YAML; who a pod is comes from its environment. */}}
{{- define "rollstream.kafkaSecurity" -}}
{{- $security := .Values.kafka.security -}}
security.protocol: {{ $security.protocol }}
{{- if contains "SASL" $security.protocol }}
sasl.mechanism: {{ $security.mechanism }}
{{- end }}
{{- if contains "SSL" $security.protocol }}
{{- if $security.tls.ca.existingSecret }}
ssl.ca.location: /etc/rollstream/kafka-ca/ca.crt
{{- end }}
{{- if not $security.tls.verifyHostname }}
ssl.endpoint.identification.algorithm: none
{{- end }}
{{- end }}
{{- end }}

{{/* What the chart knows of the engine, as JSON: the model, and the GPUs over which it is divided. */}}
{{- define "rollstream.engine" -}}
{{- $generator := .Values.generator -}}
{{- $group := $generator.leaderWorkerSet -}}
{{- $gpus := max 1 $generator.gpu.count -}}
{{- $engine := dict "model_path" .Values.model.path "tensor_parallel_size" $gpus -}}
{{- if $group.enabled -}}
{{- $_ := set $engine "tensor_parallel_size" (mul $gpus $group.size) -}}
{{- $_ := set $engine "nodes" (dict "count" $group.size "port" $group.port) -}}
{{- end -}}
{{- toJson $engine -}}
{{- end }}

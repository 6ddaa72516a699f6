{{/* The run's file. context: root, stage (a further producer reads one with its own table `[producer]`) */}}
{{- define "rollstream.config" -}}
{{- $settings := include "rollstream.settings" .root | fromJson -}}
{{- if hasPrefix "producer-" .stage }}{{ $_ := set $settings "producer" (include "rollstream.ownSettings" . | fromJson) }}{{ end -}}
{{- include "rollstream.toml" (dict "path" list "table" $settings) -}}
{{- end }}

{{/* Changes with what a stage reads: the shared settings and its own table. context: root, stage */}}
{{- define "rollstream.configChecksum" -}}
{{- $settings := include "rollstream.settings" .root | fromJson -}}
{{- range $table := include "rollstream.stages" .root | fromJsonArray }}{{ $_ := unset $settings $table }}{{ end -}}
{{- with include "rollstream.ownSettings" . | fromJson }}{{ $_ := set $settings ($.stage | splitList "-" | first) . }}{{ end -}}
{{- toJson $settings | sha256sum -}}
{{- end }}

{{/* A stage's own table, as JSON. context: root, stage */}}
{{- define "rollstream.ownSettings" -}}
{{- if hasPrefix "producer-" .stage -}}
{{- $name := trimPrefix "producer-" .stage -}}
{{- $producer := index .root.Values.producers $name -}}
{{- $config := $producer.config | default dict -}}
{{- $own := dict "name" $name -}}
{{- if eq ($config.source | default "") "feedback" -}}
{{- $_ := set $own "feedback" (dict "store" "/store/feedback.sqlite" "store_bytes" (mul (include "rollstream.storeGib" $producer | int) 1073741824)) -}}
{{- end -}}
{{- mergeOverwrite $own (deepCopy $config) | toJson -}}
{{- else -}}
{{- index (include "rollstream.settings" .root | fromJson) .stage | default dict | toJson -}}
{{- end -}}
{{- end }}

{{/* GiB of a feedback producer's store. context: one of `producers` */}}
{{- define "rollstream.storeGib" -}}
{{- (.store | default dict).gib | default 10 -}}
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
  "generator" (include "rollstream.generatorSettings" . | fromJson)
  "trainer" (dict "model_path" $v.model.path "checkpoints" ($v.trainer.checkpoints.location | default "/checkpoints")) -}}
{{- with $v.schemaRegistry.url }}{{ $_ := set $own "registry_url" . }}{{ end -}}
{{- with $v.redis.url }}{{ $_ := set $own "redis_url" . }}{{ end -}}
{{- if $v.ingest.enabled }}{{ $_ := set $own "ingest" (dict "host" "0.0.0.0" "port" $v.ingest.port "keys" (include "rollstream.clients" . | fromJson)) }}{{ end -}}
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

{{/* What the chart knows of the generators, as JSON. */}}
{{- define "rollstream.generatorSettings" -}}
{{- $generator := dict "engine" (include "rollstream.engine" . | fromJson) -}}
{{- $serve := .Values.generator.serve -}}
{{- if $serve.enabled -}}
{{- $_ := set $generator "serve" (dict "enabled" true "host" "0.0.0.0" "port" $serve.port "spool" "/spool"
  "spool_bytes" (mul (int $serve.spool.gib) 1073741824) "keys" (include "rollstream.clients" . | fromJson)) -}}
{{- end -}}
{{- toJson $generator -}}
{{- end }}

{{/* The clients without their keys, as JSON: these come from the environment. */}}
{{- define "rollstream.clients" -}}
{{- $clients := dict -}}
{{- range $name, $client := .Values.clients.names }}{{ $_ := set $clients $name (omit $client "secretKey") }}{{ end -}}
{{- toJson $clients -}}
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

{{/* What the schema can't tell: contradictions, and values that something else refuses later and less clearly. No
message shows a value that may hold a secret. */}}
{{- define "rollstream.validate" -}}
{{- include "rollstream.validateRequired" . -}}
{{- include "rollstream.validateConfig" . -}}
{{- include "rollstream.validateKafka" . -}}
{{- include "rollstream.validateUsers" . -}}
{{- include "rollstream.validateAddresses" . -}}
{{- include "rollstream.validateSecrets" . -}}
{{- include "rollstream.validateStores" . -}}
{{- include "rollstream.validateScaling" . -}}
{{- include "rollstream.validateGpus" . -}}
{{- include "rollstream.validateServing" . -}}
{{- include "rollstream.validateProducers" . -}}
{{- include "rollstream.validateMonitors" . -}}
{{- include "rollstream.validateDeadlines" . -}}
{{- include "rollstream.refusePasswords" (list (list) .Values) -}}
{{- end }}

{{- define "rollstream.validateRequired" -}}
{{- $v := .Values -}}
{{- if not $v.run }}{{ fail "run: name the run, the prefix of its topics, for example run: math" }}{{ end -}}
{{- if not $v.kafka.bootstrapServers }}{{ fail "kafka.bootstrapServers: name one or more brokers, host:port, separated by commas; the chart brings no Kafka" }}{{ end -}}
{{- if and (or $v.generator.enabled $v.trainer.enabled) (not $v.model.path) -}}
{{ fail "model.path: name the directory of the model to start from, in the image or on model.existingClaim" }}
{{- end -}}
{{- /* As a path: /models2 begins with /models too. */}}
{{- $mount := printf "%s/" (clean $v.model.mountPath) -}}
{{- if and $v.model.existingClaim (not (hasPrefix $mount (printf "%s/" (clean $v.model.path)))) -}}
{{ fail (printf "model.path %s is not below model.mountPath %s, where model.existingClaim is mounted" $v.model.path $v.model.mountPath) }}
{{- end -}}
{{- end }}

{{/* Keys of the run's file that have a value of their own, for the chart must know them. */}}
{{- define "rollstream.validateConfig" -}}
{{- $config := .Values.config -}}
{{- $own := dict "run" "run" "kafka" "kafka" "registry_url" "schemaRegistry" "redis_url" "redis"
  "weight_store" "weightStore" "health_port" "healthPort" -}}
{{- range $key, $value := $own -}}
{{- if hasKey $config $key }}{{ fail (printf "config.%s: set the chart's value `%s` instead" $key $value) }}{{ end -}}
{{- range $stage := include "rollstream.stages" $ | fromJsonArray -}}
{{- if hasKey (index $config $stage | default dict) $key }}{{ fail (printf "config.%s.%s: set the chart's value `%s` instead" $stage $key $value) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := dict "options" "objectStore.options" "allow_http" "objectStore.allowHttp" "cache" "objectStore.cache" "cache_bytes" "objectStore.cache.gib" -}}
{{- if hasKey ($config.storage | default dict) $key }}{{ fail (printf "config.storage.%s: set the chart's value `%s` instead" $key $value) }}{{ end -}}
{{- end -}}
{{- range $pair := list (list "generator" "generator_id") (list "scorer" "scorer_id") -}}
{{- if hasKey (index $config (index $pair 0) | default dict) (index $pair 1) }}{{ fail (printf "config.%s.%s: the chart sets it to the name of each pod" (index $pair 0) (index $pair 1)) }}{{ end -}}
{{- end -}}
{{- $engine := ($config.generator | default dict).engine | default dict -}}
{{- if hasKey $engine "tensor_parallel_size" }}{{ fail "config.generator.engine.tensor_parallel_size: set generator.gpu.count instead, GPUs of each pod; the model is divided over all of them" }}{{ end -}}
{{- if hasKey $engine "nodes" }}{{ fail "config.generator.engine.nodes: set generator.leaderWorkerSet instead, by which a generator spans several pods" }}{{ end -}}
{{- $trainer := $config.trainer | default dict -}}
{{- if hasKey $trainer "checkpoints" }}{{ fail "config.trainer.checkpoints: set trainer.checkpoints.location instead" }}{{ end -}}
{{- if $trainer.num_steps }}{{ fail "config.trainer.num_steps: a StatefulSet starts the trainer again whenever it ends; stop it by trainer.enabled=false instead" }}{{ end -}}
{{- if and .Values.producer.enabled (empty $config.producer) }}{{ fail "config.producer: say where prompts come from, for example config.producer.environment=sort_digits, or set producer.enabled=false" }}{{ end -}}
{{- end }}

{{- define "rollstream.validateKafka" -}}
{{- $security := .Values.kafka.security -}}
{{- $mechanism := $security.mechanism | upper -}}
{{- $known := list "PLAIN" "SCRAM-SHA-256" "SCRAM-SHA-512" -}}
{{- if has $mechanism (list "AWS_MSK_IAM" "OAUTHBEARER" "GSSAPI") -}}
{{ fail (printf "kafka.security.mechanism %s: the scorer's driver knows PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512 only; on MSK make a SASL/SCRAM user" $mechanism) }}
{{- end -}}
{{- if contains "SASL" $security.protocol -}}
{{- if not (has $security.mechanism $known) }}{{ fail (printf "kafka.security.mechanism: with %s it must be PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512" $security.protocol) }}{{ end -}}
{{- else -}}
{{- if or $security.mechanism $security.existingSecret $security.username }}{{ fail (printf "kafka.security: mechanism, existingSecret and username are for SASL, but protocol is %s; set SASL_SSL or SASL_PLAINTEXT" $security.protocol) }}{{ end -}}
{{- end -}}
{{- if and (or $security.tls.ca.existingSecret $security.tls.client.existingSecret) (not (contains "SSL" $security.protocol)) -}}
{{ fail (printf "kafka.security.tls: certificates are for TLS, but protocol is %s; set SSL or SASL_SSL" $security.protocol) }}
{{- end -}}
{{- end }}

{{- define "rollstream.validateAddresses" -}}
{{- range $name, $store := pick .Values "schemaRegistry" "redis" -}}
{{- if and $store.url $store.existingSecret }}{{ fail (printf "%s: set url or existingSecret, not both" $name) }}{{ end -}}
{{- if regexMatch "[@?]" $store.url }}{{ fail (printf "%s.url: a user, password or query would lie in a ConfigMap; put the URL into a secret and name it in %s.existingSecret" $name $name) }}{{ end -}}
{{- end -}}
{{- if not (regexMatch "^(https?://.*)?$" .Values.schemaRegistry.url) }}{{ fail "schemaRegistry.url: it must begin with http:// or https://" }}{{ end -}}
{{- if not (regexMatch "^(rediss?://.*)?$" .Values.redis.url) }}{{ fail "redis.url: it must begin with redis:// or rediss://" }}{{ end -}}
{{- if regexMatch "[@?]" .Values.objectStore.endpoint }}{{ fail "objectStore.endpoint: no user, password or query; keys come from objectStore.existingSecret" }}{{ end -}}
{{- if contains "@" .Values.kafka.bootstrapServers }}{{ fail "kafka.bootstrapServers: host:port alone; user and password come from kafka.security.existingSecret" }}{{ end -}}
{{- range splitList "," .Values.kafka.bootstrapServers -}}
{{- $port := regexFind ":[0-9]{1,5}$" (trim .) | trimPrefix ":" | int -}}
{{- if or (not (regexMatch "^([A-Za-z0-9._-]+|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5}$" (trim .))) (lt $port 1) (gt $port 65535) }}{{ fail (printf "kafka.bootstrapServers %s: each broker is host:port, with a port from 1 to 65535" (trim . | quote)) }}{{ end -}}
{{- end -}}
{{- range $option, $_ := merge (dict) .Values.objectStore.options .Values.objectStore.secretOptions -}}
{{- if regexMatch "(?i)^(aws_|google_|azure_storage_)?(endpoint|endpoint_url)$" $option }}{{ fail (printf "objectStore: option %s: set objectStore.endpoint instead" $option) }}{{ end -}}
{{- end -}}
{{- range $option, $_ := .Values.objectStore.options -}}
{{- if or (include "rollstream.namesSecret" $option) (regexMatch "(?i)key|token" $option) }}{{ fail (printf "objectStore.options.%s: it may be a secret, and options lie in a ConfigMap; put it into a secret and name it in objectStore.secretOptions" $option) }}{{ end -}}
{{- end -}}
{{- end }}

{{/* "true" for a name that tells a secret: as `may_name_a_secret` of the settings. */}}
{{- define "rollstream.namesSecret" -}}
{{- if regexMatch "(?i)(password|passwd|passphrase|secret|credential|bearer|(^|[_.-])(auth|authorization|token)$|(api|access|account|private|signing|auth|sas)[_.-]?key)" . }}true{{ end -}}
{{- end }}

{{/* Secrets where their values would be shown by `kubectl get`. */}}
{{- define "rollstream.validateSecrets" -}}
{{- $variable := "(?i)(KAFKA__SECURITY|STORAGE__OPTIONS|KEYS__.*__KEY$|TRACING__HEADERS|OTLP_(TRACES_)?HEADERS|^ROLLSTREAM_(REDIS|REGISTRY)_URL$)" -}}
{{- $parts := pick .Values "stageDefaults" "producer" "generator" "scorer" "trainer" "ingest" "bootstrapJob" -}}
{{- range $name, $producer := .Values.producers }}{{ $parts = merge (dict (printf "producers.%s" $name) $producer) $parts }}{{ end -}}
{{- range $part, $values := $parts -}}
{{- range $values.extraEnv -}}
{{- if and .value (or (include "rollstream.namesSecret" .name) (regexMatch $variable .name)) }}{{ fail (printf "%s.extraEnv: %s may be a secret; give it by valueFrom.secretKeyRef" $part .name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $config := .Values.config -}}
{{- $tables := list $config $config.producer $config.generator $config.scorer $config.trainer $config.ingest -}}
{{- range .Values.producers }}{{ $tables = append $tables .config }}{{ end -}}
{{- range $table := $tables -}}
{{- $tracing := ($table | default dict).tracing | default dict -}}
{{- if $tracing.headers }}{{ fail "config.tracing.headers may hold a key, and config lies in a ConfigMap; give each in stageDefaults.extraEnv as ROLLSTREAM_TRACING__HEADERS__NAME from a secret" }}{{ end -}}
{{- if regexMatch "[@?]" ($tracing.endpoint | default "") }}{{ fail "config.tracing.endpoint: no user, password or query; keys come as ROLLSTREAM_TRACING__HEADERS__NAME from a secret" }}{{ end -}}
{{- end -}}
{{- include "rollstream.refuseSecrets" (list (list) $config) -}}
{{- range .Values.producers }}{{ include "rollstream.refuseSecrets" (list (list "producer") .config) }}{{ end -}}
{{- end }}

{{/* Refuses every text in `config` under a name that tells a secret, however deep. Called with a list: the path so far, and
the value there. */}}
{{- define "rollstream.refuseSecrets" -}}
{{- $path := index . 0 -}}
{{- $value := index . 1 -}}
{{- if kindIs "map" $value -}}
{{- range $name, $below := $value }}{{ include "rollstream.refuseSecrets" (list (append $path $name) $below) }}{{ end -}}
{{- else if kindIs "slice" $value -}}
{{- range $value }}{{ include "rollstream.refuseSecrets" (list $path .) }}{{ end -}}
{{- else if and $value $path (include "rollstream.namesSecret" (last $path)) (not (kindIs "bool" $value)) -}}
{{- $below := $path -}}
{{- if has (first $path) (list "producer" "generator" "scorer" "trainer" "ingest") }}{{ $below = rest $path }}{{ end -}}
{{- if has "agent" $path }}{{ $below = list "agents" "NAME" "options" (last $path) }}{{ end -}}
{{ fail (printf "config.%s may be a secret, and config lies in a ConfigMap; give it in extraEnv as ROLLSTREAM_%s from a secret" (join "." $path) (join "__" $below | upper)) }}
{{- end -}}
{{- end }}

{{- define "rollstream.validateStores" -}}
{{- $v := .Values -}}
{{- $store := $v.weightStore -}}
{{- $bucket := "^(s3|gs|az)://[^/@?#]+[^@?#]*$" -}}
{{- if eq $store.backend "objectStore" -}}
{{- if not (regexMatch $bucket $store.location) }}{{ fail "weightStore.location: with backend=objectStore it must be like s3://bucket/prefix, gs:// or az://, without user, password or query" }}{{ end -}}
{{- else -}}
{{- if $store.location }}{{ fail "weightStore.location is for backend=objectStore, but backend is pvc" }}{{ end -}}
{{- if and $v.generator.enabled (not $v.trainer.enabled) (not $store.pvc.existingClaim) }}{{ fail "weightStore.pvc.existingClaim: this release has no trainer, so name the claim of the release that has it" }}{{ end -}}
{{- if has "ReadWriteOncePod" $store.pvc.accessModes }}{{ fail "weightStore.pvc.accessModes: with ReadWriteOncePod the trainer alone could mount it; use ReadWriteMany" }}{{ end -}}
{{- $sharable := or (has "ReadWriteMany" $store.pvc.accessModes) $store.pvc.sameNode $store.pvc.existingClaim -}}
{{- if not $sharable }}{{ fail "weightStore.pvc.accessModes: the trainer writes and generators on other nodes read, so ReadWriteOnce can't work; use ReadWriteMany, an object store, or weightStore.pvc.sameNode=true where all run on one node" }}{{ end -}}
{{- end -}}
{{- with $v.trainer.checkpoints -}}
{{- if and .location (not (regexMatch $bucket .location)) }}{{ fail "trainer.checkpoints.location must be like s3://bucket/prefix, gs:// or az://, without user, password or query; for a volume leave it empty" }}{{ end -}}
{{- if and .location .existingClaim }}{{ fail "trainer.checkpoints: set location or existingClaim, not both" }}{{ end -}}
{{- end -}}
{{- if and $v.objectStore.endpoint (hasPrefix "http://" $v.objectStore.endpoint) (not $v.objectStore.allowHttp) }}{{ fail "objectStore.endpoint has no TLS: set https://, or objectStore.allowHttp=true" }}{{ end -}}
{{- end }}

{{- define "rollstream.validateScaling" -}}
{{- $v := .Values -}}
{{- range $name := list "generator" "scorer" "ingest" -}}
{{- $stage := include "rollstream.stage" (dict "root" $ "stage" $name) | fromYaml -}}
{{- $scaling := $stage.autoscaling -}}
{{- if and $scaling.hpa.enabled ($scaling.keda | default dict).enabled }}{{ fail (printf "%s.autoscaling: hpa and keda would fight over the replicas; enable one" $name) }}{{ end -}}
{{- $most := $stage.replicas -}}
{{- range $kind, $scaler := $scaling -}}
{{- if $scaler.enabled -}}
{{- $most = $scaler.maxReplicas -}}
{{- if gt (int $scaler.minReplicas) (int $scaler.maxReplicas) }}{{ fail (printf "%s.autoscaling.%s: minReplicas %d exceeds maxReplicas %d" $name $kind (int $scaler.minReplicas) (int $scaler.maxReplicas)) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if and (ne $name "ingest") $stage.enabled $v.bootstrapJob.enabled (gt (int $most) (int $v.bootstrapJob.partitions)) -}}
{{ fail (printf "%s: %d replicas, but topics of %d partitions: the others would get no work; raise bootstrapJob.partitions, or lower the replicas" $name (int $most) (int $v.bootstrapJob.partitions)) }}
{{- end -}}
{{- end -}}
{{- range $name := list "scorer" "ingest" -}}
{{- $strategy := (index $v $name).strategy -}}
{{- if and (eq $strategy.type "Recreate") $strategy.rollingUpdate }}{{ fail (printf "%s.strategy: rollingUpdate is not for type Recreate; set rollingUpdate to null" $name) }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "rollstream.validateGpus" -}}
{{- range $name := list "generator" "trainer" -}}
{{- $gpu := (index $.Values $name).gpu -}}
{{- if and $gpu.count (not (hasKey $.Values.gpuResourceNames $gpu.vendor)) }}{{ fail (printf "%s.gpu.vendor %s: gpuResourceNames has %s" $name $gpu.vendor (keys $.Values.gpuResourceNames | sortAlpha | join ", ")) }}{{ end -}}
{{- end -}}
{{- if gt (int .Values.trainer.gpu.count) 1 }}{{ fail (printf "trainer.gpu.count %d: the trainer is one process, which uses one GPU" (int .Values.trainer.gpu.count)) }}{{ end -}}
{{- $generator := .Values.generator -}}
{{- $kind := ((.Values.config.generator | default dict).engine | default dict).kind | default "vllm" -}}
{{- if and (gt (int $generator.gpu.count) 1) (ne $kind "vllm") }}{{ fail (printf "generator.gpu.count %d: only vllm divides a model over several GPUs, but config.generator.engine.kind is %s; set 1 and raise generator.replicas" (int $generator.gpu.count) $kind) }}{{ end -}}
{{- if gt (int $generator.gpu.count) 64 }}{{ fail (printf "generator.gpu.count %d: GPUs of one pod, at most 64" (int $generator.gpu.count)) }}{{ end -}}
{{- if and $generator.enabled $generator.leaderWorkerSet.enabled }}{{ include "rollstream.validateGroup" . }}{{ end -}}
{{- end }}

{{/* A generator that spans several pods. */}}
{{- define "rollstream.validateGroup" -}}
{{- $generator := .Values.generator -}}
{{- $group := $generator.leaderWorkerSet -}}
{{- $kind := ((.Values.config.generator | default dict).engine | default dict).kind | default "vllm" -}}
{{- if ne $kind "vllm" }}{{ fail (printf "generator.leaderWorkerSet: only vllm spans several pods, but config.generator.engine.kind is %s" $kind) }}{{ end -}}
{{- if not $generator.gpu.count }}{{ fail "generator.leaderWorkerSet: set generator.gpu.count, the GPUs of each pod of a group" }}{{ end -}}
{{- if gt (mul $generator.gpu.count $group.size) 64 }}{{ fail (printf "generator.leaderWorkerSet.size %d: %d GPUs of each pod make %d, and vLLM divides a model over at most 64" (int $group.size) (int $generator.gpu.count) (mul $generator.gpu.count $group.size)) }}{{ end -}}
{{- if ne .Values.weightStore.backend "pvc" }}{{ fail "generator.leaderWorkerSet: every pod of a group reads a version's files at the same path, so weightStore.backend must be pvc, a volume that all nodes mount; with an object store only the first pod would have them" }}{{ end -}}
{{- if .Values.weightStore.pvc.sameNode }}{{ fail "generator.leaderWorkerSet: weightStore.pvc.sameNode puts all pods on one node; there use generator.gpu.count alone" }}{{ end -}}
{{- if ne ($generator.updateStrategy.type | default "RollingUpdate") "RollingUpdate" }}{{ fail (printf "generator.updateStrategy.type %s: the groups of a LeaderWorkerSet know RollingUpdate only" $generator.updateStrategy.type) }}{{ end -}}
{{- end }}

{{/* Bounds of the chart against those of the stages. A test compares the defaults with those of the settings. */}}
{{- define "rollstream.validateDeadlines" -}}
{{- $v := .Values -}}
{{- $batch := ($v.config.scorer | default dict).batch_deadline_seconds | default 15 -}}
{{- if and $v.scorer.enabled (le (float64 $v.scorer.terminationGracePeriodSeconds) (float64 $batch)) }}{{ fail (printf "scorer.terminationGracePeriodSeconds %v: a batch may take batch_deadline_seconds, %v s, and a scorer that is killed before scores it again; raise it" $v.scorer.terminationGracePeriodSeconds $batch) }}{{ end -}}
{{- if and $v.generator.enabled (le (int $v.generator.terminationGracePeriodSeconds) 20) }}{{ fail (printf "generator.terminationGracePeriodSeconds %v: running prompts have 20 s to end, and the engine some more; raise it" $v.generator.terminationGracePeriodSeconds) }}{{ end -}}
{{- $slow := $v.metrics.prometheusRule.thresholds.scoring_batch_seconds -}}
{{- if and $v.metrics.prometheusRule.enabled (gt (float64 $slow) (float64 $batch)) }}{{ fail (printf "metrics.prometheusRule.thresholds.scoring_batch_seconds %v: a batch ends at the scorer's batch_deadline_seconds, %v s, so the alert would never come; set it no higher" $slow $batch) }}{{ end -}}
{{- end }}

{{/* Who answers clients, and who these are. */}}
{{- define "rollstream.validateServing" -}}
{{- $v := .Values -}}
{{- $serve := $v.generator.serve -}}
{{- $serves := and $v.generator.enabled $serve.enabled -}}
{{- $own := ($v.config.generator | default dict).serve | default dict -}}
{{- range $key, $value := dict "enabled" "generator.serve.enabled" "port" "generator.serve.port" "host" "generator.serve.service" "keys" "clients" "spool" "generator.serve.spool" "spool_bytes" "generator.serve.spool.gib" -}}
{{- if hasKey $own $key }}{{ fail (printf "config.generator.serve.%s: set the chart's value `%s` instead" $key $value) }}{{ end -}}
{{- end -}}
{{- range $key, $value := dict "port" "ingest.port" "host" "ingest.service" "keys" "clients" -}}
{{- if hasKey ($v.config.ingest | default dict) $key }}{{ fail (printf "config.ingest.%s: set the chart's value `%s` instead" $key $value) }}{{ end -}}
{{- end -}}
{{- if and (or $serves $v.ingest.enabled) (not $v.clients.names) }}{{ fail "clients.names: generator.serve and ingest answer nobody beyond their pod without keys; name a client, for example clients.names.app.tenant=app" }}{{ end -}}
{{- if and $v.clients.names (not $v.clients.existingSecret) }}{{ fail "clients.existingSecret: name the secret with a key for each client, under its name; the chart takes none from values" }}{{ end -}}
{{- range $name, $client := $v.clients.names -}}
{{- if not $client.tenant }}{{ fail (printf "clients.names.%s.tenant: say whose client it is: feedback counts for answers of its tenant alone" $name) }}{{ end -}}
{{- end -}}
{{- if $serves -}}
{{- if $v.generator.leaderWorkerSet.enabled }}{{ fail "generator.serve: not with leaderWorkerSet: the pods of a group have no claim of their own, and the spool would be lost with its pod; serve from a release of single pods" }}{{ end -}}
{{- if eq (int $serve.port) (int $v.healthPort) }}{{ fail (printf "generator.serve.port %d is healthPort too; choose another one" (int $serve.port)) }}{{ end -}}
{{- $drain := $own.drain_seconds | default 60 -}}
{{- if lt (float64 $v.generator.terminationGracePeriodSeconds) (addf $drain 30) }}{{ fail (printf "generator.terminationGracePeriodSeconds %v: answers have drain_seconds, %v s, to end, and the spool and the engine 30 s more; raise it" $v.generator.terminationGracePeriodSeconds $drain) }}{{ end -}}
{{- end -}}
{{- if and $v.ingest.enabled (eq (int $v.ingest.port) (int $v.healthPort)) }}{{ fail (printf "ingest.port %d is healthPort too; choose another one" (int $v.ingest.port)) }}{{ end -}}
{{- if and $v.generator.autoscaling.keda.enabled $v.generator.autoscaling.keda.waitingCalls.serverAddress (not $serve.enabled) }}{{ fail "generator.autoscaling.keda.waitingCalls: only serving generators have calls that wait; set generator.serve.enabled=true" }}{{ end -}}
{{- range $part, $routes := dict "generator.serve" $serve "ingest" $v.ingest -}}
{{- if and $routes.ingress.enabled (not $routes.ingress.host) }}{{ fail (printf "%s.ingress.host: name the host that clients use" $part) }}{{ end -}}
{{- if and $routes.httpRoute.enabled (not $routes.httpRoute.parentRefs) }}{{ fail (printf "%s.httpRoute.parentRefs: name a gateway, for example [{name: main}]" $part) }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "rollstream.validateProducers" -}}
{{- range $name, $producer := .Values.producers -}}
{{- $config := $producer.config | default dict -}}
{{- if not $config }}{{ fail (printf "producers.%s.config: say where prompts come from, for example source: feedback" $name) }}{{ end -}}
{{- if or $config.epochs $config.num_prompts }}{{ fail (printf "producers.%s.config: epochs and num_prompts are for `producer`, which is a Job then; a Deployment would start it again for ever" $name) }}{{ end -}}
{{- if eq ($config.name | default $name) (($.Values.config.producer | default dict).name | default "producer") }}{{ fail (printf "producers.%s: %s is the name of `producer` already, and names are unique in a run" $name ($config.name | default $name)) }}{{ end -}}
{{- if and $producer.store (ne ($config.source | default "") "feedback") }}{{ fail (printf "producers.%s.store is for source: feedback" $name) }}{{ end -}}
{{- range $key, $value := dict "store" (printf "producers.%s.store" $name) "store_bytes" (printf "producers.%s.store.gib" $name) -}}
{{- if hasKey ($config.feedback | default dict) $key }}{{ fail (printf "producers.%s.config.feedback.%s: set the chart's value `%s` instead" $name $key $value) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "rollstream.validateMonitors" -}}
{{- if and .Values.metrics.podMonitor.enabled .Values.metrics.serviceMonitor.enabled }}{{ fail "metrics: podMonitor and serviceMonitor would scrape every pod twice; enable one" }}{{ end -}}
{{- end }}

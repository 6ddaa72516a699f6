{{/* The lag of a stage's topic. Every value of `metadata` is a text: KEDA refuses numbers. context: root, stage, keda */}}
{{- define "rollstream.kafkaTrigger" -}}
{{- $v := .root.Values -}}
- type: kafka
  metadata:
    bootstrapServers: {{ $v.kafka.bootstrapServers | quote }}
    consumerGroup: {{ printf "%s.%ss" $v.run .stage | quote }}
    topic: {{ printf "%s.%s" $v.run (ternary "prompts" "rollouts" (eq .stage "generator")) | quote }}
    lagThreshold: {{ .keda.lagThreshold | toString | quote }}
    offsetResetPolicy: earliest
    {{- if contains "SASL" $v.kafka.security.protocol }}
    sasl: {{ include "rollstream.kedaSasl" .root | quote }}
    {{- end }}
    {{- if contains "SSL" $v.kafka.security.protocol }}
    tls: enable
    {{- end }}
  {{- if include "rollstream.kedaSecrets" .root | fromYaml }}
  authenticationRef:
    name: {{ include "rollstream.fullname" .root }}-kafka
  {{- end }}
{{- end }}

{{/* Clients' calls that wait for an engine. context: root, keda */}}
{{- define "rollstream.waitingTrigger" -}}
{{- $waiting := .keda.waitingCalls | default dict -}}
{{- if $waiting.serverAddress -}}
- type: prometheus
  metadata:
    serverAddress: {{ $waiting.serverAddress | quote }}
    query: {{ printf "sum(rollstream_serve_waiting_calls{run=%q})" .root.Values.run | quote }}
    threshold: {{ $waiting.threshold | toString | quote }}
{{- end -}}
{{- end }}

{{- define "rollstream.kedaSasl" -}}
{{- get (dict "PLAIN" "plaintext" "SCRAM-SHA-256" "scram_sha256" "SCRAM-SHA-512" "scram_sha512") .Values.kafka.security.mechanism -}}
{{- end }}

{{/* What KEDA reads from secrets: a map of parameter to [secret, key]. */}}
{{- define "rollstream.kedaSecrets" -}}
{{- $security := .Values.kafka.security -}}
{{- $user := include "rollstream.kafkaUser" (dict "root" . "role" (include "rollstream.kafkaRole" "keda")) | fromJson -}}
{{- if contains "SASL" $security.protocol }}
username: {{ toJson (list $user.existingSecret $security.usernameKey) }}
password: {{ toJson (list $user.existingSecret $security.passwordKey) }}
{{- end }}
{{- if contains "SSL" $security.protocol }}
{{- with $security.tls.ca }}{{ if .existingSecret }}
ca: {{ toJson (list .existingSecret .key) }}
{{- end }}{{ end }}
{{- if $user.certificateSecret }}
{{- with $security.tls.client }}
cert: {{ toJson (list $user.certificateSecret .certKey) }}
key: {{ toJson (list $user.certificateSecret .keyKey) }}
{{- if .passwordKey }}
keyPassword: {{ toJson (list $user.certificateSecret .passwordKey) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Kafka's user of each pod. Roles are those of `rollstream acls`, so that the permissions that it prints and the users
that the pods are speak of the same. */}}
{{- define "rollstream.kafkaRole" -}}
{{- get (dict "bootstrap" "operator" "test" "viewer" "keda" "viewer") . | default . -}}
{{- end }}

{{/* The role of a pod. context: root, stage */}}
{{- define "rollstream.roleOf" -}}
{{- if hasPrefix "producer-" .stage -}}
{{- $source := (include "rollstream.ownSettings" . | fromJson).source | default "" -}}
{{- ternary $source "producer" (has $source (list "feedback" "states")) -}}
{{- else -}}
{{- include "rollstream.kafkaRole" .stage -}}
{{- end -}}
{{- end }}

{{/* The user of a role, as JSON: existingSecret, username (empty: it lies in the secret) and certificateSecret. A role's
own goes before the one of all. context: root, role */}}
{{- define "rollstream.kafkaUser" -}}
{{- $security := .root.Values.kafka.security -}}
{{- $own := get $security.users .role | default dict -}}
{{- $username := $own.username | default (ternary "" $security.username (not (empty $own.existingSecret))) -}}
{{- toJson (dict
  "existingSecret" ($own.existingSecret | default $security.existingSecret)
  "username" $username
  "certificateSecret" ($own.certificateSecret | default $security.tls.client.existingSecret)) -}}
{{- end }}

{{/* The roles that this release uses, as JSON. */}}
{{- define "rollstream.kafkaRoles" -}}
{{- $v := .Values -}}
{{- $roles := list -}}
{{- range include "rollstream.components" . | fromJsonArray }}{{ $roles = append $roles (include "rollstream.roleOf" (dict "root" $ "stage" .)) }}{{ end -}}
{{- if $v.bootstrapJob.enabled }}{{ $roles = append $roles "operator" }}{{ end -}}
{{- if or $v.tests.enabled (include "rollstream.usesKeda" .) }}{{ $roles = append $roles "viewer" }}{{ end -}}
{{- uniq $roles | toJson -}}
{{- end }}

{{- define "rollstream.usesKeda" -}}
{{- range list .Values.generator .Values.scorer }}{{ if and .enabled .autoscaling.keda.enabled }}true{{ end }}{{ end -}}
{{- end }}

{{/* Who a pod is on the cluster: variables, since every pod reads the same file. context: root, stage */}}
{{- define "rollstream.kafkaUserEnv" -}}
{{- $security := .root.Values.kafka.security -}}
{{- $user := include "rollstream.kafkaUser" (dict "root" .root "role" (include "rollstream.roleOf" .)) | fromJson -}}
{{- if contains "SASL" $security.protocol }}
{{- if $user.username }}
- name: ROLLSTREAM_KAFKA__SECURITY__SASL.USERNAME
  value: {{ $user.username | quote }}
{{- else }}
{{ include "rollstream.secretEnv" (list "KAFKA__SECURITY__SASL.USERNAME" $user.existingSecret $security.usernameKey) }}
{{- end }}
{{ include "rollstream.secretEnv" (list "KAFKA__SECURITY__SASL.PASSWORD" $user.existingSecret $security.passwordKey) }}
{{- end }}
{{- if and $user.certificateSecret (contains "SSL" $security.protocol) }}
- name: ROLLSTREAM_KAFKA__SECURITY__SSL.CERTIFICATE.LOCATION
  value: /etc/rollstream/kafka-client/tls.crt
- name: ROLLSTREAM_KAFKA__SECURITY__SSL.KEY.LOCATION
  value: /etc/rollstream/kafka-client/tls.key
{{- with $security.tls.client.passwordKey }}
{{ include "rollstream.secretEnv" (list "KAFKA__SECURITY__SSL.KEY.PASSWORD" $user.certificateSecret .) }}
{{- end }}
{{- end }}
{{- end }}

{{/* `--principal ROLE=User:NAME` for each role, as `rollstream acls` takes them. */}}
{{- define "rollstream.principals" -}}
{{- $root := . -}}
{{- range $role := include "rollstream.kafkaRoles" . | fromJsonArray }}
{{- $user := include "rollstream.kafkaUser" (dict "root" $root "role" $role) | fromJson }} --principal {{ $role }}=User:
{{- $user.username | default (printf "NAME_IN_SECRET_%s" $user.existingSecret) -}}
{{- end -}}
{{- end }}

{{- define "rollstream.validateUsers" -}}
{{- $security := .Values.kafka.security -}}
{{- $isSasl := contains "SASL" $security.protocol -}}
{{- range $role, $user := $security.users -}}
{{- if and (not $isSasl) (or $user.existingSecret $user.username) }}{{ fail (printf "kafka.security.users.%s: existingSecret and username are for SASL, but protocol is %s; set SASL_SSL or SASL_PLAINTEXT" $role $security.protocol) }}{{ end -}}
{{- if and $user.certificateSecret (not (contains "SSL" $security.protocol)) }}{{ fail (printf "kafka.security.users.%s.certificateSecret is for TLS, but protocol is %s; set SSL or SASL_SSL" $role $security.protocol) }}{{ end -}}
{{- if and $user.username (not $user.existingSecret) }}{{ fail (printf "kafka.security.users.%s.username has no password: name its secret in kafka.security.users.%s.existingSecret" $role $role) }}{{ end -}}
{{- end -}}
{{- if $isSasl -}}
{{- range $role := include "rollstream.kafkaRoles" . | fromJsonArray -}}
{{- $user := include "rollstream.kafkaUser" (dict "root" $ "role" $role) | fromJson -}}
{{- if not $user.existingSecret }}{{ fail (printf "kafka.security.existingSecret: with %s name a secret with the password, here or in kafka.security.users.%s.existingSecret; the chart takes none from values" $security.protocol $role) }}{{ end -}}
{{- end -}}
{{- if and (include "rollstream.usesKeda" .) (include "rollstream.kafkaUser" (dict "root" . "role" "viewer") | fromJson).username }}{{ fail "kafka.security.username: KEDA reads the user's name from a secret only; put it into existingSecret of kafka.security or of kafka.security.users.viewer, under usernameKey" }}{{ end -}}
{{- end -}}
{{- end }}

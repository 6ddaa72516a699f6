{{/* Which ports a pod needs, so that a network policy follows what is configured. context: root, stage; gives need → list
of ports as JSON. Port 0: the address lies in a secret, where the chart can't see it. */}}
{{- define "rollstream.neededPorts" -}}
{{- $v := .root.Values -}}
{{- $stage := .stage -}}
{{- $isStage := has $stage (include "rollstream.components" .root | fromJsonArray) -}}
{{- $addresses := dict "kafka" (splitList "," $v.kafka.bootstrapServers) -}}
{{- $_ := set $addresses "schemaRegistry" (include "rollstream.addressOf" $v.schemaRegistry | fromJsonArray) -}}
{{- if $isStage -}}
{{- $own := include "rollstream.ownSettings" . | fromJson -}}
{{- $tracing := merge (dict) ($own.tracing | default dict) ($v.config.tracing | default dict) -}}
{{- $_ := set $addresses "redis" (include "rollstream.addressOf" $v.redis | fromJsonArray) -}}
{{- $_ := set $addresses "tracing" (compact (list $tracing.endpoint)) -}}
{{- $engine := $own.engine | default dict -}}
{{- if eq ($engine.kind | default "") "openai_http" }}{{ $_ := set $addresses "engines" (($engine.http | default dict).urls | default list) }}{{ end -}}
{{- end -}}
{{- if include "rollstream.usesObjectStore" . -}}
{{- $_ := set $addresses "objectStore" (compact (list ($v.objectStore.endpoint | default "https://cloud") $v.objectStore.options.metadata_endpoint)) -}}
{{- end -}}
{{- range include "rollstream.addedAddresses" . | fromJsonArray -}}
{{- $_ := set $addresses . (append (get $addresses . | default list) "hidden") -}}
{{- end -}}
{{- $ports := dict -}}
{{- range $need, $known := $addresses -}}
{{- $found := list -}}
{{- range $known }}{{ $found = append $found (include "rollstream.portOf" . | int) }}{{ end -}}
{{- if $found }}{{ $_ := set $ports $need (uniq $found) }}{{ end -}}
{{- end -}}
{{- toJson $ports -}}
{{- end }}

{{/* The address of a store that may lie in a secret. */}}
{{- define "rollstream.addressOf" -}}
{{- toJson (compact (list (ternary "hidden" .url (not (empty .existingSecret))))) -}}
{{- end }}

{{/* What `extraEnv` adds to or puts in the place of the addresses that the chart knows. context: root, stage */}}
{{- define "rollstream.addedAddresses" -}}
{{- $part := ternary "bootstrapJob" .stage (eq .stage "bootstrap") -}}
{{- $values := dict -}}
{{- if has $part (include "rollstream.components" .root | fromJsonArray) -}}
{{- $values = include "rollstream.stage" . | fromYaml -}}
{{- else -}}
{{- $values = index .root.Values $part | default .root.Values.stageDefaults -}}
{{- end -}}
{{- $needs := dict "REGISTRY_URL" "schemaRegistry" "REDIS_URL" "redis" "TRACING__ENDPOINT" "tracing"
  "ENGINE__HTTP__URLS" "engines" "STORAGE__OPTIONS__ENDPOINT" "objectStore" -}}
{{- $found := list -}}
{{- range $values.extraEnv -}}
{{- $need := get $needs (upper .name | trimPrefix "ROLLSTREAM_") -}}
{{- if $need }}{{ $found = append $found $need }}{{ end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* The port of host:port or of a URL; 0 where neither it nor its protocol tells. */}}
{{- define "rollstream.portOf" -}}
{{- $scheme := regexFind "^[a-z0-9]+://" . | trimSuffix "://" -}}
{{- $host := regexFind "^[^/?#]+" (trimPrefix (printf "%s://" $scheme) (trim .)) -}}
{{- $port := regexFind ":[0-9]+$" $host | trimPrefix ":" -}}
{{- $port | default (get (dict "http" "80" "https" "443" "redis" "6379" "rediss" "6379") $scheme) | default "0" -}}
{{- end }}

{{/* The ports of one need, as JSON: what is configured, or those of the values, which must hold it. context: need, given
(ports of the values), needed */}}
{{- define "rollstream.allowedPorts" -}}
{{- $need := .need -}}
{{- $given := list -}}
{{- range .given }}{{ $given = append $given (int .) }}{{ end -}}
{{- range .needed -}}
{{- if not (or (int .) $given) }}{{ fail (printf "networkPolicy.%s.ports: the address lies in a secret or in extraEnv, so name its port here" $need) }}{{ end -}}
{{- if and (int .) $given (not (has (int .) $given)) }}{{ fail (printf "networkPolicy.%s.ports %s: port %d, which is configured, is not among them; add it, or leave the list empty" $need (toJson $given) (int .)) }}{{ end -}}
{{- end -}}
{{- toJson ($given | default .needed) -}}
{{- end }}

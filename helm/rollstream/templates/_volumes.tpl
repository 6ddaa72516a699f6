{{/* What a pod mounts, as pairs of a volume and its mount, so that both sides always agree. context: root, stage,
values, onlyLends */}}
{{- define "rollstream.volumes" -}}
{{- $v := .root.Values -}}
{{- $name := include "rollstream.fullname" .root -}}
{{- $tls := $v.kafka.security.tls -}}
volumes:
  - name: run
    configMap: {name: {{ .configMap | default $name }}}
  - name: tmp
    emptyDir: {sizeLimit: {{ .values.tmpSize | default .root.Values.stageDefaults.tmpSize }}}
  - name: cache
    emptyDir: {sizeLimit: {{ .values.cacheSize | default .root.Values.stageDefaults.cacheSize }}}
{{- if contains "SSL" $v.kafka.security.protocol }}
{{- with $tls.ca }}
{{- if .existingSecret }}
  - name: kafka-ca
    secret: {secretName: {{ .existingSecret }}, items: [{key: {{ .key | quote }}, path: ca.crt}]}
{{- end }}
{{- end }}
{{- $user := include "rollstream.kafkaUser" (dict "root" .root "role" (include "rollstream.kafkaRole" .stage)) | fromJson }}
{{- if and $user.certificateSecret (not .onlyLends) }}
  - name: kafka-client
    secret:
      secretName: {{ $user.certificateSecret }}
      items: [{key: {{ $tls.client.certKey | quote }}, path: tls.crt}, {key: {{ $tls.client.keyKey | quote }}, path: tls.key}]
{{- end }}
{{- end }}
{{- with .values.shmSize }}
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: {{ . }}}
{{- end }}
{{- if has .stage (list "generator" "trainer") }}
{{- with $v.model.existingClaim }}
  - name: model
    persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
{{- end }}
{{- if eq $v.weightStore.backend "pvc" }}
  - name: weights
    persistentVolumeClaim: {claimName: {{ $v.weightStore.pvc.existingClaim | default (printf "%s-weights" $name) }}}
{{- end }}
{{- end }}
{{- if include "rollstream.usesObjectStore" . }}
  - name: storage-cache
    {{- include "rollstream.storageCache" .root | nindent 4 }}
{{- end }}
{{- if and (eq .stage "trainer") (not $v.trainer.checkpoints.location) }}
  - name: checkpoints
    persistentVolumeClaim:
      claimName: {{ $v.trainer.checkpoints.existingClaim | default (printf "%s-checkpoints" $name) }}
{{- end }}
{{- with .values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* As large as the cache's own bound, and a fifth for what is on its way. */}}
{{- define "rollstream.storageCache" -}}
{{- $cache := .Values.objectStore.cache -}}
{{- $gib := add (int $cache.gib) (div (add (int $cache.gib) 4) 5) -}}
{{- if $cache.storageClass -}}
ephemeral:
  volumeClaimTemplate:
    spec:
      accessModes: [ReadWriteOnce]
      storageClassName: {{ $cache.storageClass }}
      resources: {requests: {storage: {{ $gib }}Gi}}
{{- else -}}
emptyDir: {sizeLimit: {{ $gib }}Gi}
{{- end -}}
{{- end }}

{{/* The mounts of the volumes of the same names. */}}
{{- define "rollstream.mounts" -}}
{{- $paths := dict "run" "/etc/rollstream/run" "tmp" "/tmp" "cache" "/cache" "kafka-ca" "/etc/rollstream/kafka-ca"
  "kafka-client" "/etc/rollstream/kafka-client" "model" .root.Values.model.mountPath "weights" "/weights"
  "shm" "/dev/shm" "storage-cache" "/storage-cache" "checkpoints" "/checkpoints" -}}
{{- $readOnly := list "run" "kafka-ca" "kafka-client" "model" -}}
{{- if ne .stage "trainer" }}{{ $readOnly = append $readOnly "weights" }}{{ end -}}
{{- $own := dict "root" .root "stage" .stage "onlyLends" .onlyLends "values" (omit .values "extraVolumes") -}}
{{- range (include "rollstream.volumes" $own | fromYaml).volumes }}
- name: {{ .name }}
  mountPath: {{ index $paths .name }}
  {{- if has .name $readOnly }}
  readOnly: true
  {{- end }}
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What a pod mounts, as pairs of a volume and its mount, so that both sides always agree. context: root, stage,
values, onlyLends */}}
{{- define "rollstream.volumes" -}}
{{- $v := .root.Values -}}
{{- $name := include "rollstream.fullname" .root -}}
{{- $tls := $v.kafka.security.tls -}}
volumes:
  - name: run
    configMap: {name: {{ .configMap | default (ternary (printf "%s-%s" $name .stage) $name (hasPrefix "producer-" .stage)) }}}
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
{{- $user := include "rollstream.kafkaUser" (dict "root" .root "role" (include "rollstream.roleOf" .)) | fromJson }}
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
    {{- include "rollstream.podsDisk" $v.objectStore.cache | nindent 4 }}
{{- end }}
{{- if and (eq .stage "trainer") (not $v.trainer.checkpoints.location) }}
  - name: checkpoints
    persistentVolumeClaim:
      claimName: {{ $v.trainer.checkpoints.existingClaim | default (printf "%s-checkpoints" $name) }}
{{- end }}
{{- if eq (include "rollstream.roleOf" .) "feedback" }}
  - name: store
    {{- include "rollstream.podsDisk" (dict "gib" (include "rollstream.storeGib" .values) "storageClass" (.values.store | default dict).storageClass) | nindent 4 }}
{{- end }}
{{- with .values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A disk that lives as long as the pod. context: gib, storageClass (empty: the node's disk) */}}
{{- define "rollstream.podsDisk" -}}
{{- if .storageClass -}}
ephemeral:
  volumeClaimTemplate:
    spec:
      accessModes: [ReadWriteOnce]
      storageClassName: {{ .storageClass }}
      resources: {requests: {storage: {{ include "rollstream.withRoom" .gib }}}}
{{- else -}}
emptyDir: {sizeLimit: {{ include "rollstream.withRoom" .gib }}}
{{- end -}}
{{- end }}

{{/* As large as the bound of what lies there, and a fifth for what is on its way. */}}
{{- define "rollstream.withRoom" -}}
{{- add (int .) (div (add (int .) 4) 5) }}Gi
{{- end }}

{{/* The claim of each serving generator, as JSON: a list of claim templates. */}}
{{- define "rollstream.spoolClaims" -}}
{{- $spool := .Values.generator.serve.spool -}}
{{- $spec := dict "accessModes" (list "ReadWriteOnce") "resources" (dict "requests" (dict "storage" (include "rollstream.withRoom" $spool.gib))) -}}
{{- with $spool.storageClass }}{{ $_ := set $spec "storageClassName" . }}{{ end -}}
{{- list (dict "apiVersion" "v1" "kind" "PersistentVolumeClaim" "metadata" (dict "name" "spool") "spec" $spec) | toJson -}}
{{- end }}

{{/* The mounts of the volumes of the same names. */}}
{{- define "rollstream.mounts" -}}
{{- $paths := dict "run" "/etc/rollstream/run" "tmp" "/tmp" "cache" "/cache" "kafka-ca" "/etc/rollstream/kafka-ca"
  "kafka-client" "/etc/rollstream/kafka-client" "model" .root.Values.model.mountPath "weights" "/weights"
  "shm" "/dev/shm" "storage-cache" "/storage-cache" "checkpoints" "/checkpoints" "store" "/store" -}}
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
{{- if and (eq .stage "generator") .root.Values.generator.serve.enabled }}
- {name: spool, mountPath: /spool}
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

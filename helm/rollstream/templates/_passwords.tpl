{{/* Refuses an address with user and password wherever it stands in the values, without showing it: whatever is
rendered, each who may read the release can read. `$(NAME)` or a template in its place is no password. Called with a list:
the path so far, and the value there. */}}
{{- define "rollstream.refusePasswords" -}}
{{- $path := index . 0 -}}
{{- $value := index . 1 -}}
{{- if kindIs "map" $value -}}
{{- range $name, $below := $value }}{{ include "rollstream.refusePasswords" (list (append $path $name) $below) }}{{ end -}}
{{- else if kindIs "slice" $value -}}
{{- range $value }}{{ include "rollstream.refusePasswords" (list $path .) }}{{ end -}}
{{- else if and (kindIs "string" $value) (regexMatch "://[^\\s/]*:[^\\s({]*@" $value) -}}
{{ fail (printf "%s: an address with a user and password would be readable in what is rendered; put it into a secret" (join "." $path)) }}
{{- end -}}
{{- end }}

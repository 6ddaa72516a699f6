{{/* A table of TOML with the tables below it. context: path (list of names), table. Numbers as JSON: Helm holds them as
floats, and only JSON writes 8 as 8. */}}
{{- define "rollstream.toml" -}}
{{- $path := .path -}}
{{- $scalars := list -}}
{{- $tables := list -}}
{{- range $name, $value := .table -}}
  {{- if kindIs "map" $value -}}
    {{- $tables = append $tables $name -}}
  {{- else if not (kindIs "invalid" $value) -}}
    {{- $scalars = append $scalars (printf "%s = %s" (include "rollstream.tomlKey" $name) (toJson $value)) -}}
  {{- end -}}
{{- end -}}
{{- if and $path (or $scalars (not $tables)) }}
[{{ join "." $path }}]
{{ end -}}
{{- range $scalars }}{{ . }}
{{ end -}}
{{- range $tables -}}
{{- include "rollstream.toml" (dict "path" (append $path (include "rollstream.tomlKey" .)) "table" (index $.table .)) -}}
{{- end -}}
{{- end }}

{{- define "rollstream.tomlKey" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end }}

"""Builds `helm/rollstream/values.schema.json`, by which Helm refuses typos: `python -m helm.chart_schema`.

The chart's own values get their types from the defaults in values.yaml. `config` gets its keys from the settings of the
stages, so that a setting that a stage learns is known to the chart too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from rollstream.bus.acl_rules import ROLES
from rollstream.process.settings.base import RUN_WIDE, STAGES, StageSettings, settings_class

CHART: Final = Path(__file__).parent / "rollstream"
SCHEMA_FILE: Final = CHART / "values.schema.json"

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_BYTES: Final = "[1-9][0-9]*([.][0-9]+)?([kMGTPE]|[KMGTPE]i)?"
_SIZE: Final[Schema] = {"type": "string", "pattern": f"^{_BYTES}$"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 1}
_TEXTS: Final[Schema] = {"type": "object", "additionalProperties": _TEXT}
_QUANTITIES: Final[Schema] = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
_OBJECTS: Final[Schema] = {"type": "array", "items": {"type": "object"}}
_NAME: Final[Schema] = {"type": "string", "maxLength": 255}
_PORT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 65535}
_USER: Final[Schema] = {
    "type": "object", "additionalProperties": False,
    "properties": dict.fromkeys(("existingSecret", "username", "certificateSecret"), _TEXT),
}  # fmt: skip
_WITHOUT_PODS: Final = ("client", "rc-actor")
"""Roles of commands that people call."""
_PROBE_FIELDS: Final = ("periodSeconds", "timeoutSeconds", "failureThreshold", "successThreshold",
                        "initialDelaySeconds", "terminationGracePeriodSeconds")  # fmt: skip
_SECURITY_FIELDS: Final = ("allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities", "runAsNonRoot",
                           "runAsUser", "runAsGroup", "seccompProfile", "seLinuxOptions", "appArmorProfile",
                           "privileged", "procMount", "windowsOptions")  # fmt: skip
_POD_SECURITY_FIELDS: Final = ("runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy",
                               "seccompProfile", "seLinuxOptions", "supplementalGroups", "supplementalGroupsPolicy",
                               "appArmorProfile", "sysctls", "windowsOptions")  # fmt: skip


def _closed(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


def _choice(*values: str) -> Schema:
    return {"enum": list(values)}


_SERVICES: Final = _choice("ClusterIP", "NodePort", "LoadBalancer")
_PROBE: Final = _closed({"path": _TEXT} | {name: {"type": "integer", "minimum": 0} for name in _PROBE_FIELDS})
_EGRESS: Final = _closed({"ports": {"type": "array", "items": {"type": "integer"}}, "to": _OBJECTS})
_SCALER: Final[dict[str, Schema]] = {"minReplicas": _COUNT, "maxReplicas": _COUNT, "behavior": {"type": "object"}}

# What the default of a value can't tell. A name with dots means this value alone, one without means it at any depth.
_BY_NAME: Final[dict[str, Schema]] = {
    "global": {"type": "object"},
    "run": {"type": "string", "pattern": "^[a-z0-9-]{0,60}$"},
    "healthPort": _PORT,
    "pullPolicy": _choice("Always", "IfNotPresent", "Never"),
    "groupProtocol": _choice("consumer", "classic"),
    "lingerSeconds": {"type": "number", "minimum": 0, "maximum": 1},
    "protocol": _choice("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "kafka.security.users": _closed({role: _USER for role in ROLES if role not in _WITHOUT_PODS}),
    "clients.names": {
        "type": "object",
        # Part of a variable's name, in which two underscores would begin the next part.
        "propertyNames": {"pattern": "^[a-z0-9]+([_-][a-z0-9]+)*$", "maxLength": 63},
        "additionalProperties": _closed({
            "tenant": _NAME, "environment": _NAME, "may_train": {"type": "boolean"},
            "sampling": _choice("as_asked", "plain"), "secretKey": _TEXT,
        }),
    },
    "generator.serve.port": _PORT,
    "ingest.port": _PORT,
    "gib": _COUNT,
    "threshold": _COUNT,
    "generator.serve.service.type": _SERVICES,
    "ingest.service.type": _SERVICES,
    "hostnames": {"type": "array", "items": _TEXT},
    "timeouts": _TEXTS,
    "backend": _choice("pvc", "objectStore"),
    "accessModes": {
        "type": "array", "minItems": 1,
        "items": _choice("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"),
    },
    "commonLabels": _TEXTS,
    "commonAnnotations": _TEXTS,
    "podLabels": _TEXTS,
    "podAnnotations": _TEXTS,
    "annotations": _TEXTS,
    "additionalLabels": _TEXTS,
    "nodeSelector": _TEXTS,
    "gpuResourceNames": _TEXTS,
    "secretOptions": _TEXTS,
    "objectStore.options": _TEXTS,
    "imagePullSecrets": {"type": "array", "items": _closed({"name": _TEXT})},
    "resources": _closed({"requests": _QUANTITIES, "limits": _QUANTITIES, "claims": _OBJECTS}),
    "securityContext": _closed({name: {} for name in _SECURITY_FIELDS}),
    "podSecurityContext": _closed({name: {} for name in _POD_SECURITY_FIELDS}),
    "probes": _closed({"startup": _PROBE, "readiness": _PROBE, "liveness": _PROBE}),
    "strategy": {"type": "object"},
    "updateStrategy": {"type": "object"},
    "behavior": {"type": "object"},
    "fallback": {"type": "object"},
    "minReplicas": _COUNT,
    "maxReplicas": _COUNT,
    "lagThreshold": _COUNT,
    # With 0 Kubernetes kills at once, and may start a second pod of the same name beside the first.
    "terminationGracePeriodSeconds": _COUNT,
    "partitions": {"type": "integer", "minimum": 1, "maximum": 1000},
    "generator.leaderWorkerSet.size": {"type": "integer", "minimum": 2, "maximum": 64},
    "generator.leaderWorkerSet.port": _PORT,
    # With 0 no node could ever be drained.
    "maxUnavailable": {"anyOf": [_COUNT, {"type": "string", "pattern": "^([1-9][0-9]?|100)%$"}]},
    "tmpSize": _SIZE,
    "cacheSize": _SIZE,
    "shmSize": {"type": "string", "pattern": f"^({_BYTES})?$"},
    "size": _SIZE,
    "unhealthyPodEvictionPolicy": _choice("AlwaysAllow", "IfHealthyBudget"),
    "dns": _EGRESS,
    "networkPolicy.kafka": _EGRESS,
    "networkPolicy.schemaRegistry": _EGRESS,
    "networkPolicy.redis": _EGRESS,
    "networkPolicy.objectStore": _EGRESS,
    "networkPolicy.tracing": _EGRESS,
    "networkPolicy.engines": _EGRESS,
    "extraObjects": {"type": "array", "items": {"type": ["object", "string"]}},
    "stageDefaults.image": {"$ref": "#/properties/image"},
}  # fmt: skip


def chart_schema() -> Schema:
    """The schema of all values."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = _of_value((), values)
    stage = schema["properties"]["stageDefaults"]["properties"]
    for name in STAGES.keys() & schema["properties"].keys():
        own = schema["properties"][name]["properties"]
        own.update({key: below for key, below in stage.items() if key not in own})
    definitions: dict[str, Schema] = {}
    schema["properties"]["config"] = _config_schema(definitions)
    schema["properties"]["producers"] = _producers_schema(schema["properties"])
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema, "definitions": definitions}


def _producers_schema(known: Mapping[str, Schema]) -> Schema:
    """Further producers by name: each has what `producer` has, and its own table."""
    own = {name: one for name, one in known["producer"]["properties"].items() if name != "enabled"}
    own["config"] = {"$ref": "#/properties/config/properties/producer"}
    own["store"] = _closed({"gib": _COUNT, "storageClass": _TEXT})
    return {
        "type": "object",
        # Part of a Deployment's name, of at most 63 characters.
        "propertyNames": {"pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", "maxLength": 13},
        "additionalProperties": _closed(own),
    }


def _of_value(path: tuple[str, ...], value: Any) -> Schema:
    for known in (".".join(path), path[-1] if path else ""):
        if known in _BY_NAME:
            return _BY_NAME[known]
    if "thresholds" in path[:-1]:
        is_share = path[-1].endswith("_ratio") and value <= 1
        # A share above 1, such as 5 for 5 %, would never be exceeded.
        return {"type": "number", "minimum": 0} | ({"maximum": 1} if is_share else {})
    if isinstance(value, dict):
        below = {name: _of_value((*path, name), one) for name, one in value.items()}
        return _closed(below) if value else {"type": "object"}
    if isinstance(value, list):
        return _OBJECTS
    kinds: dict[type, Schema] = {bool: {"type": "boolean"}, int: {"type": "integer", "minimum": 0}, str: _TEXT}
    return kinds[type(value)]


def _config_schema(definitions: dict[str, Schema]) -> Schema:
    """The keys of a run's file: shared ones at the top, a table for each stage, where shared ones may stand too."""
    shared = _properties(StageSettings, definitions)
    tables: dict[str, Schema] = {}
    for stage in STAGES:
        own = _properties(settings_class(stage), definitions)
        tables[stage] = _closed({name: one for name, one in own.items() if name not in RUN_WIDE})
    return _closed({**shared, **tables})


def _properties(settings: type[StageSettings], definitions: dict[str, Schema]) -> dict[str, Schema]:
    schema = _plain(settings.model_json_schema(ref_template="#/definitions/{model}"))
    definitions.update(schema.pop("$defs", {}))
    properties: dict[str, Schema] = schema["properties"]
    return properties


def _plain(schema: Any) -> Any:
    """What Helm needs of it: the chart sets some of the required keys, and knows no formats."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    dropped = ("title", "default", "required", "format", "writeOnly", "unit")
    kept = {name: one for name, one in schema.items() if name not in dropped}
    if "patternProperties" in kept:
        kept["additionalProperties"] = False
    # Below these stand names, of settings or patterns of them, none of which may be dropped.
    named = ("properties", "patternProperties", "$defs")
    return {
        name: {key: _plain(below) for key, below in one.items()} if name in named else _plain(one)
        for name, one in kept.items()
    }


def main() -> None:
    """Write the file."""
    SCHEMA_FILE.write_text(json.dumps(chart_schema(), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

"""Values that switch everything on that goes together, each pass-through with a value that can be found again."""

from typing import Any, Final

from tests.chart.rendering import EXAMPLES, MINIMAL, at, example, merged

PASSED_THROUGH: Final[dict[str, Any]] = {
    "podLabels": {"team": "rl"},
    "podAnnotations": {"example.com/pod": "yes"},
    "annotations": {"example.com/workload": "yes"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
            }
        }
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"a": "b"}},
        }
    ],
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "schedulerName": "volcano",
    "extraEnv": [{"name": "EXTRA_RUN", "value": "{{ .Values.run }}"}],
    "extraEnvFrom": [{"secretRef": {"name": "extra-environment"}}],
    "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    "extraContainers": [
        {
            "name": "beside",
            "image": "example.com/beside:1",
            "securityContext": {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            },
        }
    ],
    "extraInitContainers": [
        {
            "name": "before",
            "image": "example.com/before:1",
            "securityContext": {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            },
        }
    ],
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["broker"]}],
    "dnsPolicy": "ClusterFirst",
    "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
    "lifecycle": {"preStop": {"exec": {"command": ["rollstream", "probe", "livez"]}}},
    "networkPolicy": {
        "extraIngress": [{"from": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}],
        "extraEgress": [{"to": [{"ipBlock": {"cidr": "10.2.0.0/16"}}]}],
    },
}  # fmt: skip

EVERYTHING: Final[dict[str, Any]] = {
    "global": {"imageRegistry": "registry.example.com", "imagePullSecrets": [{"name": "pull-global"}]},
    "commonLabels": {"cost-center": "research"},
    "commonAnnotations": {"example.com/owner": "rl"},
    "imagePullSecrets": [{"name": "pull"}],
    "kafka": {
        "security": {
            "protocol": "SASL_SSL",
            "mechanism": "SCRAM-SHA-512",
            "existingSecret": "kafka-user",
            "tls": {
                "ca": {"existingSecret": "kafka-ca"},
                "client": {"existingSecret": "kafka-client", "passwordKey": "key-password"},
            },
        }
    },
    "schemaRegistry": {"url": "http://registry:8081"},
    "redis": {"existingSecret": "redis-url"},
    "model": {"existingClaim": "model", "path": "/models/start"},
    "weightStore": {"backend": "objectStore", "location": "s3://bucket/weights"},
    "objectStore": {"existingSecret": "s3-keys", "cache": {"storageClass": "nvme"}},
    "stageDefaults": PASSED_THROUGH,
    "bootstrapJob": {
        name: PASSED_THROUGH[name]
        for name in ("podLabels", "podAnnotations", "nodeSelector", "tolerations", "extraEnv", "extraEnvFrom",
                     "extraVolumes", "extraVolumeMounts")
    },
    "clients": {"existingSecret": "clients", "subjectSecretKey": "subjects", "names": {"app": {"tenant": "shop"}}},
    "producers": {"more": {"config": {"environment": "word_count"}}},
    "ingest": {
        "enabled": True,
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "timeouts": {"request": "60s"}},
        "ingress": {"enabled": True, "className": "nginx", "host": "feedback.example.com"},
    },
    "generator": {
        "replicas": 3, "gpu": {"count": 1}, "serve": {"enabled": True},
        "autoscaling": {"hpa": {"enabled": True, "minReplicas": 2}},
    },
    "scorer": {"replicas": 2},
    "trainer": {"gpu": {"count": 1, "vendor": "amd"}},
    "metrics": {
        "podMonitor": {"enabled": True, "additionalLabels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "additionalLabels": {"release": "prometheus"}},
        "dashboards": {"enabled": True, "namespace": "grafana", "annotations": {"folder": "rl"}},
    },
    "networkPolicy": {"enabled": True, "redis": {"ports": [6379]}},
    "extraObjects": [
        {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "extra-map"},
            "data": {"run": "{{ .Values.run }}"},
        },
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: extra-text\ndata:\n  run: {{ .Values.run }}\n",
    ],
}  # fmt: skip

SWITCHED_ON: Final[dict[str, dict[str, Any]]] = {
    "with-hpa": merged(
        at("generator.autoscaling.hpa.enabled", True),
        at("scorer.autoscaling.hpa.enabled", True),
        at("clients", {"existingSecret": "clients", "names": {"app": {"tenant": "shop"}}}),
        at("ingest", {"enabled": True, "autoscaling": {"hpa": {"enabled": True}}}),
    ),
    "with-keda": merged(at("generator.autoscaling.keda.enabled", True), at("scorer.autoscaling.keda.enabled", True)),
    "with-serving": merged(
        at("clients", {"existingSecret": "clients", "names": {"app": {"tenant": "shop"}}}),
        at("generator.serve.enabled", True),
        at("generator.autoscaling.keda", {"enabled": True, "waitingCalls": {"serverAddress": "http://prometheus"}}),
        at("ingest.enabled", True),
        at("producers.more.config.environment", "word_count"),
    ),
    "with-groups": merged(
        at("generator", {"leaderWorkerSet": {"enabled": True}, "gpu": {"count": 1}}),
        at("weightStore.pvc.accessModes", ["ReadWriteMany"]),
    ),
}
"""One thing each, and nothing else: all that belongs to it has its defaults."""

SETS: Final[dict[str, dict[str, Any]]] = {
    "minimal": MINIMAL,
    "everything": merged(MINIMAL, EVERYTHING),
    **{name: example(name) for name in EXAMPLES},
}
"""Whole values, for what must hold whatever is switched on."""

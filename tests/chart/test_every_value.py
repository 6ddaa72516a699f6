"""Every text and number among the values is used: each gets a value of its own, which must be found again."""

from collections.abc import Iterator
from typing import Any, Final

import yaml

from tests.chart.rendering import CHART, at, merged, render_exactly

# Chosen from a list, or looked up by; other tests set them.
_CHOSEN: Final = {
    "image.pullPolicy", "kafka.groupProtocol", "kafka.security.protocol", "kafka.security.mechanism",
    "weightStore.backend", "generator.gpu.vendor", "trainer.gpu.vendor", "generator.gpu.count", "trainer.gpu.count",
    "generator.serve.service.type", "ingest.service.type", "ingest.pdb.unhealthyPodEvictionPolicy",
    "generator.pdb.unhealthyPodEvictionPolicy", "scorer.pdb.unhealthyPodEvictionPolicy", "podSecurityContext.runAsUser",
}  # fmt: skip
_FITTING: Final = {
    "run": "run-here",
    "kafka.bootstrapServers": "brokers-here:9092",
    "model.path": "/mounted/model-here",
    "model.mountPath": "/mounted",
    "redis.url": "redis://redis-here",
    "schemaRegistry.url": "http://registry-here",
    "weightStore.location": "s3://bucket/weights-here",
    "trainer.checkpoints.location": "s3://bucket/checkpoints-here",
    "objectStore.endpoint": "https://endpoint-here",
    "kafka.lingerSeconds": 0.123,
    "nameOverride": "name-here",
    "metrics.prometheusRule.thresholds.scoring_batch_seconds": 7.077,
    "generator.leaderWorkerSet.size": 37,
}
_SWITCHES: Final[dict[str, Any]] = merged(
    at("config", {"producer": {"environment": "sort_digits"}}),
    at("kafka.security", {"protocol": "SASL_SSL", "mechanism": "PLAIN"}),
    at("networkPolicy", {"enabled": True, "redis": {"ports": [6379]}, "schemaRegistry": {"ports": [80, 8081]}}),
    at("generator.gpu.count", 1),
    at("trainer.gpu", {"count": 1, "vendor": "amd"}),
    at("clients.names.app.tenant", "app"),
    at("metrics", {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}),
)
# Two sides of what excludes each other. An empty text stands for what the other side sets.
_ONE_SIDE: Final = merged(
    at("weightStore", {"backend": "pvc", "location": "", "pvc": {"existingClaim": ""}}),
    at("trainer.checkpoints", {"location": "", "existingClaim": ""}),
    at("schemaRegistry.existingSecret", ""),
    at("redis.existingSecret", ""),
    at("fullnameOverride", ""),
    at("generator", {"autoscaling": {"hpa": {"enabled": True}}}),
    at("scorer", {"autoscaling": {"hpa": {"enabled": True}}}),
    at("metrics.podMonitor.enabled", True),
    at("image.digest", ""),
)
_OTHER_SIDE: Final = merged(
    at("weightStore", {"backend": "objectStore", "pvc": {"accessModes": ["ReadWriteMany"]}}),
    at("trainer.checkpoints.existingClaim", ""),
    at("kafka.security.username", ""),
    at("schemaRegistry.url", ""),
    at("redis.url", ""),
    at("bootstrapJob", {"registerSchemas": False, "useHelmHooks": False}),
    at("generator", {"autoscaling": {"keda": {"enabled": True}}}),
    at("generator.serve", {"enabled": True, "ingress": {"enabled": True}}),
    at("ingest", {"enabled": True, "ingress": {"enabled": True}, "autoscaling": {"hpa": {"enabled": True}}}),
    at("scorer", {"autoscaling": {"keda": {"enabled": True}}}),
    at("metrics.serviceMonitor.enabled", True),
)
_THIRD_SIDE: Final = merged(
    _ONE_SIDE,
    at("weightStore.pvc.existingClaim", "weights-claim-here"),
    at("trainer.checkpoints.existingClaim", "checkpoints-claim-here"),
    at("generator", {"replicas": 13, "autoscaling": {"hpa": {"enabled": False}}}),
    at("scorer", {"replicas": 17, "autoscaling": {"hpa": {"enabled": False}}}),
    at("ingest", {"replicas": 19, "enabled": True}),
)
_FOURTH_SIDE: Final = merged(
    _ONE_SIDE, at("generator", {"leaderWorkerSet": {"enabled": True}, "updateStrategy": {"type": "RollingUpdate"}})
)
_SET_BY_THE_THIRD: Final = {"weightStore.pvc.existingClaim", "trainer.checkpoints.existingClaim", "generator.replicas",
                            "scorer.replicas", "ingest.replicas"}  # fmt: skip
_IN_BYTES: Final = ("objectStore.cache.gib", "generator.serve.spool.gib")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every text and number with its path."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from leaves(below, f"{path}.{name}".lstrip("."))
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield path, value


def own_value(path: str, default: Any, number: int) -> Any:
    if path in _FITTING:
        return _FITTING[path]
    if path.endswith(("size", "Size")) and isinstance(default, str):
        return f"{1000 + number}Gi"
    if path.endswith("_ratio") and default <= 1:
        return 0.5 + number / 10_000
    return f"x{number}-here" if isinstance(default, str) else 1000 + number


def test_every_text_and_number_is_found_in_what_is_rendered() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    known = {path: value for path, value in leaves(defaults) if path not in _CHOSEN}
    own = {path: own_value(path, value, number) for number, (path, value) in enumerate(known.items())}
    # Ports, partitions and replicas have bounds.
    own |= {"bootstrapJob.partitions": 997, "generator.replicas": 13, "scorer.replicas": 17, "ingest.replicas": 19}
    for stage in ("generator", "scorer"):
        for number, scaler in enumerate(("hpa", "keda")):
            own[f"{stage}.autoscaling.{scaler}.minReplicas"] = 101 + 2 * number + 10 * (stage == "scorer")
            own[f"{stage}.autoscaling.{scaler}.maxReplicas"] = 201 + 2 * number + 10 * (stage == "scorer")
    values = merged(*(at(path, value) for path, value in own.items()), _SWITCHES)
    sides = (_ONE_SIDE, _OTHER_SIDE, _THIRD_SIDE, _FOURTH_SIDE)
    texts = "".join(text for side in sides for text in render_exactly(merged(values, side)).texts)
    missing = {
        path: value
        for path, value in own.items()
        if str(value) not in texts and path not in _SET_BY_THE_THIRD and path not in _IN_BYTES
    }
    assert missing == {}
    assert [path for path in _IN_BYTES if str(own[path] * 2**30) not in texts] == []
    for found in (
        "weights-claim-here",
        "checkpoints-claim-here",
        "replicas: 13",
        "replicas: 17",
        "replicas: 19",
        "size: 37",
    ):
        assert found in texts

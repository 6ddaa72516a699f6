"""Typos and contradictions are refused before anything is installed, with a message that says what to change."""

import dataclasses
import re
from typing import Any

import helm_python
import pytest

from rollstream.process.settings.base import settings_class
from rollstream.stage.loop import Stage
from tests.chart.rendering import MINIMAL, STAGES, at, merged, render, render_exactly

TYPOS = [
    ("rum", "x"),
    ("kafka.bootstrapServer", "b:9092"),
    ("kafka.security.tls.ca.secret", "x"),
    ("kafka.security.password", "hunter2"),
    ("redis.password", "hunter2"),
    ("config.groups_per_steps", 8),
    ("config.generator.engine.max_seqs", 8),
    ("config.producer.sampling.temprature", 1),
    ("config.trainer.learning.learning_rat", 0.1),
    ("config.scorer.max_policy_lag", 4),
    ("generator.replica", 2),
    ("generator.autoscaling.keda.lagTreshold", 5),
    ("generator.gpu.counts", 4),
    ("generator.leaderWorkerSet.pods", 4),
    ("config.generator.engine.gpu_memory_utilisation", 0.8),
    ("scorer.resources.limit", {"memory": "1Gi"}),
    ("scorer.podAnnotation", {"a": "b"}),
    ("trainer.replicas", 2),
    ("trainer.probes.startup.failureTreshold", 5),
    ("trainer.checkpoints.bucket", "s3://a/b"),
    ("securityContext.runAsRoot", True),
    ("podSecurityContext.fsgroup", 1),
    ("weightStore.pvc.accessMode", "ReadWriteMany"),
    ("objectStore.secretAccessKey", "hunter2"),
    ("metrics.podMonitor.labels", {"a": "b"}),
    ("metrics.prometheusRule.thresholds.dead_leters", 12),
    ("networkPolicy.kafka.port", 9092),
    ("bootstrapJob.partition", 8),
    ("stageDefaults.nodeSelectors", {"a": "b"}),
]


@pytest.mark.parametrize(("path", "value"), TYPOS)
def test_a_name_that_does_not_exist_is_refused_at_its_place(path: str, value: Any) -> None:
    above, _, name = path.rpartition(".")
    with pytest.raises(helm_python.HelmValuesError) as refused:
        render(at(path, value))
    assert f"at '{'/' if above else ''}{above.replace('.', '/')}': additional properties '{name}' not allowed" in str(
        refused.value
    )


WRONG_VALUES = [
    ("run", "Math_1", "does not match pattern"),
    ("generator.replicas", "two", "got string, want integer"),
    ("kafka.security.protocol", "TLS", "value must be one of 'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT', 'SASL_SSL'"),
    ("weightStore.backend", "s3", "value must be one of 'pvc', 'objectStore'"),
    ("image.pullPolicy", "always", "value must be one of 'Always', 'IfNotPresent', 'Never'"),
    ("weightStore.pvc.accessModes", ["RWX"], "value must be one of"),
    ("config.groups_per_step", 0, "minimum: got 0, want 1"),
    ("config.trainer.learning.loss", "vanilla", "value must be one of"),
    ("generator.autoscaling.keda.minReplicas", 0, "minimum: got 0, want 1"),
    ("healthPort", 0, "minimum: got 0, want 1"),
    ("generator.gpu.count", "two", "got string, want integer"),
    ("generator.leaderWorkerSet.size", 1, "minimum: got 1, want 2"),
    ("generator.leaderWorkerSet.port", 70000, "maximum: got 70,000, want 65,535"),
    ("config.generator.engine.gpu_memory_utilization", 1.5, "maximum: got 1.5, want 1"),
    ("config.generator.engine.max_num_batched_tokens", 0, "minimum: got 0, want 1"),
    ("generator.pdb.maxUnavailable", 0, "minimum: got 0, want 1"),
    ("scorer.pdb.maxUnavailable", "0%", "does not match pattern"),
    ("trainer.tmpSize", "0", "does not match pattern"),
    ("stageDefaults.cacheSize", "", "does not match pattern"),
    ("trainer.terminationGracePeriodSeconds", 0, "minimum: got 0, want 1"),
    ("metrics.prometheusRule.thresholds", {"dead_letters": "many"}, "got string, want number"),
    ("metrics.prometheusRule.thresholds", {"unresolved_ratio": 5}, "maximum: got 5, want 1"),
    ("metrics.prometheusRule.thresholds", {"step_slowdown_ratio": -1}, "minimum: got -1, want 0"),
]


@pytest.mark.parametrize(("path", "value", "said"), WRONG_VALUES)
def test_a_value_of_the_wrong_kind_is_refused_at_its_place(path: str, value: Any, said: str) -> None:
    with pytest.raises(helm_python.HelmValuesError) as refused:
        render(at(path, value))
    assert f"'/{path.replace('.', '/')}" in str(refused.value)
    assert said in str(refused.value)


SASL = {"kafka": {"security": {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "existingSecret": "user"}}}
BUCKET = {"weightStore": {"backend": "objectStore", "location": "s3://bucket/weights"}}
KEDA = at("generator.autoscaling.keda.enabled", True)
GROUPS = at("generator", {"gpu": {"count": 8}, "leaderWorkerSet": {"enabled": True}})

RULES = at("metrics.prometheusRule.enabled", True)

CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    (at("run", ""), "run: name the run"),
    (at("kafka.bootstrapServers", ""), "kafka.bootstrapServers: name one or more brokers"),
    (at("model.path", ""), "model.path: name the directory of the model to start from"),
    (
        at("model", {"path": "/data/start", "existingClaim": "model"}),
        "model.path /data/start is not below model.mountPath /models",
    ),
    (at("model", {"path": "/models2/start", "existingClaim": "model"}), "model.path /models2/start is not below"),
    (at("model", {"path": "/models/../etc", "existingClaim": "model"}), "model.path /models/../etc is not below"),
    *(
        (at("kafka.bootstrapServers", servers), f'kafka.bootstrapServers "{wrong}": each broker is host:port')
        for servers, wrong in (
            ("broker", "broker"),
            ("a:9092,b", "b"),
            ("a:9092,", ""),
            ("a:0", "a:0"),
            ("a:65536", "a:65536"),
            ("::1:9092", "::1:9092"),
        )
    ),
    (at("scorer.terminationGracePeriodSeconds", 15), "scorer.terminationGracePeriodSeconds 15: a batch may take"),
    (
        at("config.scorer", {"batch_deadline_seconds": 60, "session_timeout_seconds": 80}),
        "scorer.terminationGracePeriodSeconds 60: a batch may take batch_deadline_seconds, 60 s",
    ),
    (at("generator.terminationGracePeriodSeconds", 20), "generator.terminationGracePeriodSeconds 20: running prompts"),
    (
        merged(RULES, at("config.scorer.batch_deadline_seconds", 4)),
        "metrics.prometheusRule.thresholds.scoring_batch_seconds 5: a batch ends at the scorer's "
        "batch_deadline_seconds, 4 s",
    ),
    (at("trainer.enabled", False), "weightStore.pvc.existingClaim: this release has no trainer"),
    (at("config.run", "other"), "config.run: set the chart's value `run` instead"),
    (at("config.redis_url", "redis://r"), "config.redis_url: set the chart's value `redis` instead"),
    (
        at("config.trainer.weight_store", "/w"),
        "config.trainer.weight_store: set the chart's value `weightStore` instead",
    ),
    (at("config.storage.cache_bytes", 2**21), "config.storage.cache_bytes: set the chart's value"),
    (at("config.generator.generator_id", "g"), "config.generator.generator_id: the chart sets it to the name of each"),
    (at("config.trainer.checkpoints", "/c"), "set trainer.checkpoints.location instead"),
    (at("config.trainer.num_steps", 5), "config.trainer.num_steps: a StatefulSet starts the trainer again"),
    *(
        (
            merged(SASL, at("kafka.security.mechanism", mechanism)),
            f"kafka.security.mechanism {mechanism}: the scorer's driver knows PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512",
        )
        for mechanism in ("AWS_MSK_IAM", "OAUTHBEARER", "GSSAPI")
    ),
    (merged(SASL, at("kafka.security.mechanism", "")), "kafka.security.mechanism: with SASL_SSL it must be PLAIN"),
    (merged(SASL, at("kafka.security.existingSecret", "")), "kafka.security.existingSecret: with SASL_SSL name a"),
    (merged(SASL, at("kafka.security.protocol", "SSL")), "are for SASL, but protocol is SSL"),
    (at("kafka.security.tls.ca.existingSecret", "ca"), "certificates are for TLS, but protocol is PLAINTEXT"),
    (at("redis", {"url": "redis://r", "existingSecret": "r"}), "redis: set url or existingSecret, not both"),
    (at("redis.url", "redis://:hunter2@r"), "put the URL into a secret and name it in redis.existingSecret"),
    (at("redis.url", "r:6379"), "redis.url: it must begin with redis:// or rediss://"),
    (at("schemaRegistry.url", "https://key:hunter2@r"), "name it in schemaRegistry.existingSecret"),
    (at("schemaRegistry.url", "registry:8081"), "schemaRegistry.url: it must begin with http:// or https://"),
    (
        at("objectStore.options.secret_access_key", "hunter2"),
        "put it into a secret and name it in objectStore.secretOp",
    ),
    (at("objectStore.endpoint", "http://s3:9000"), "objectStore.endpoint has no TLS"),
    (at("weightStore.backend", "objectStore"), "weightStore.location: with backend=objectStore it must be like s3://"),
    (merged(BUCKET, at("weightStore.location", "s3://key:hunter2@bucket/w")), "without user, password or query"),
    (at("weightStore.location", "s3://bucket/weights"), "is for backend=objectStore, but backend is pvc"),
    (at("weightStore.pvc.accessModes", ["ReadWriteOnce"]), "so ReadWriteOnce can't work"),
    (at("weightStore.pvc.accessModes", ["ReadWriteOncePod"]), "with ReadWriteOncePod the trainer alone could mount it"),
    (at("trainer.checkpoints.location", "/checkpoints"), "trainer.checkpoints.location must be like s3://"),
    (
        at("trainer.checkpoints", {"location": "s3://b/c", "existingClaim": "c"}),
        "trainer.checkpoints: set location or existingClaim, not both",
    ),
    (
        merged(KEDA, at("generator.autoscaling.hpa.enabled", True)),
        "generator.autoscaling: hpa and keda would fight over the replicas",
    ),
    (
        merged(KEDA, at("generator.autoscaling.keda.minReplicas", 9)),
        "generator.autoscaling.keda: minReplicas 9 exceeds maxReplicas 4",
    ),
    (at("scorer.replicas", 17), "scorer: 17 replicas, but topics of 16 partitions"),
    (
        merged(KEDA, at("generator.autoscaling.keda.maxReplicas", 40)),
        "generator: 40 replicas, but topics of 16 partitions",
    ),
    (merged(KEDA, SASL, at("kafka.security.username", "rl")), "KEDA reads the user's name from a secret only"),
    (at("scorer.strategy.type", "Recreate"), "scorer.strategy: rollingUpdate is not for type Recreate"),
    (at("trainer.gpu.count", 8), "trainer.gpu.count 8: the trainer is one process, which uses one GPU"),
    (
        merged(at("generator.gpu.count", 2), at("config.generator.engine.kind", "transformers")),
        "generator.gpu.count 2: only vllm divides a model over several GPUs, but config.generator.engine.kind is trans",
    ),
    (at("generator.gpu.count", 72), "generator.gpu.count 72: GPUs of one pod, at most 64"),
    (
        merged(at("generator.gpu.count", 4), at("config.generator.engine.tensor_parallel_size", 2)),
        "config.generator.engine.tensor_parallel_size: set generator.gpu.count instead, GPUs of each pod",
    ),
    (at("config.generator.engine.nodes.count", 2), "config.generator.engine.nodes: set generator.leaderWorkerSet inst"),
    (at("generator.leaderWorkerSet.enabled", True), "generator.leaderWorkerSet: set generator.gpu.count, the GPUs of"),
    (
        merged(GROUPS, at("generator.leaderWorkerSet.size", 16)),
        "generator.leaderWorkerSet.size 16: 8 GPUs of each pod make 128, and vLLM divides a model over at most 64",
    ),
    (
        merged(GROUPS, BUCKET),
        "generator.leaderWorkerSet: every pod of a group reads a version's files at the same path",
    ),
    (
        merged(GROUPS, at("weightStore.pvc.sameNode", True)),
        "generator.leaderWorkerSet: weightStore.pvc.sameNode puts all pods on one node",
    ),
    (
        merged(GROUPS, at("config.generator.engine.kind", "scripted"), at("generator.gpu.count", 1)),
        "generator.leaderWorkerSet: only vllm spans several pods, but config.generator.engine.kind is scripted",
    ),
    (
        merged(GROUPS, at("generator.updateStrategy.type", "OnDelete")),
        "generator.updateStrategy.type OnDelete: the groups of a LeaderWorkerSet know RollingUpdate only",
    ),
    (at("trainer.gpu", {"count": 1, "vendor": "cerebras"}), "gpuResourceNames has amd, nvidia"),
    (
        at("metrics", {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}),
        "podMonitor and serviceMonitor would scrape every pod twice",
    ),
]


@pytest.mark.parametrize(("values", "said"), CONTRADICTIONS, ids=[said[:50] for _, said in CONTRADICTIONS])
def test_a_contradiction_is_refused_by_a_sentence_that_shows_no_secret(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm_python.HelmError, match=re.escape(said)) as refused:
        render(values)
    assert "hunter2" not in str(refused.value)


def test_the_chart_knows_the_defaults_of_the_settings_that_its_bounds_are_compared_with() -> None:
    assert settings_class("scorer").model_fields["batch_deadline_seconds"].default == 15
    (drain,) = [field for field in dataclasses.fields(Stage) if field.name == "drain_seconds"]
    assert drain.default == 20


def test_what_may_be_combined_is_taken() -> None:
    render(at("model", {"path": "/models", "existingClaim": "model", "mountPath": "/models/"}))
    render(at("kafka.bootstrapServers", "a.b-c_d:9092, 10.0.0.1:1,[::1]:65535"))
    render(at("scorer", {"replicas": 2, "pdb": {"maxUnavailable": "50%"}}))
    render(RULES, at("metrics.prometheusRule.thresholds", {"unresolved_ratio": 1, "grad_norm_increase_ratio": 100}))
    render(RULES, at("config.scorer.batch_deadline_seconds", 5))
    render(SASL, at("kafka.security.username", "rl"), at("scorer.autoscaling.hpa.enabled", True))
    render(at("weightStore.pvc", {"accessModes": ["ReadWriteOnce"], "sameNode": True}))
    render(at("weightStore.pvc", {"accessModes": ["ReadWriteOnce"], "existingClaim": "shared"}))
    render(at("schemaRegistry.existingSecret", "registry"))
    render(at("schemaRegistry.existingSecret", "registry"), at("bootstrapJob.registerSchemas", False))
    render(GROUPS, at("generator.autoscaling.hpa.enabled", True))
    render(at("generator", {"enabled": False, "leaderWorkerSet": {"enabled": True}}))
    render(at("scorer.strategy", {"type": "Recreate", "rollingUpdate": None}))
    render(at("generator.replicas", 100), at("bootstrapJob.enabled", False))
    render(at("objectStore", {"endpoint": "http://s3:9000", "allowHttp": True}))


def test_a_parent_chart_may_say_global_and_enabled() -> None:
    render({"global": {"anything": {"at": "all"}}, "enabled": False})


def test_a_release_without_generators_and_trainer_needs_no_model() -> None:
    producer_alone = {"model": {"path": ""}} | {name: {"enabled": False} for name in STAGES if name != "producer"}
    kinds = {one["kind"] for one in render(producer_alone).documents}
    assert "Deployment" in kinds
    assert "StatefulSet" not in kinds
    with pytest.raises(helm_python.HelmError, match=r"config\.producer: say where prompts come from"):
        render_exactly(merged({name: MINIMAL[name] for name in ("run", "kafka", "model")}))

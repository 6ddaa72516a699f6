"""Network policies: who may be reached, and by whom."""

import re
from typing import Any

import helm_python
import pytest

from tests.chart.rendering import STAGES, Document, Release, at, merged, render

ON = at("networkPolicy.enabled", True)
GROUPS = at("generator", {"gpu": {"count": 8}, "leaderWorkerSet": {"enabled": True}})
PEER = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]


def policy(release: Release, component: str) -> Document:
    (found,) = [one for one in release.of_kind("NetworkPolicy") if
                one["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component]  # fmt: skip
    return found["spec"]  # type: ignore[no-any-return]


def ports(spec: Document) -> set[Any]:
    return {port["port"] for rule in spec["egress"] for port in rule.get("ports", [])}


def test_every_pod_of_the_release_has_one() -> None:
    release = render(ON)
    components = {one["metadata"]["labels"]["app.kubernetes.io/component"] for one in release.of_kind("NetworkPolicy")}
    pods = {pod["metadata"]["labels"]["app.kubernetes.io/component"] for _, pod in release.pods()}
    assert components == pods == {*STAGES, "bootstrap", "test"}
    for one in release.of_kind("NetworkPolicy"):
        assert one["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_a_stage_is_reached_at_its_metrics_alone_and_a_job_not_at_all() -> None:
    release = render(ON, at("networkPolicy.metricsFrom", PEER))
    for stage in STAGES:
        assert policy(release, stage)["ingress"] == [{"ports": [{"port": "metrics", "protocol": "TCP"}], "from": PEER}]
    for job in ("bootstrap", "test"):
        assert policy(release, job)["ingress"] == []
    assert "from" not in policy(render(ON), "scorer")["ingress"][0]


def test_a_pod_reaches_dns_kafka_and_what_is_configured() -> None:
    bare = render(ON)
    assert {stage: ports(policy(bare, stage)) for stage in STAGES} == {stage: {53, 9092} for stage in STAGES}
    full = render(
        ON, at("redis.url", "redis://cache"), at("schemaRegistry.url", "http://registry:8081"),
        at("weightStore", {"backend": "objectStore", "location": "s3://b/w"}),
    )  # fmt: skip
    everywhere = {53, 9092, 8081, 6379}
    assert ports(policy(full, "producer")) == ports(policy(full, "scorer")) == everywhere
    assert ports(policy(full, "generator")) == ports(policy(full, "trainer")) == everywhere | {443}
    assert ports(policy(full, "bootstrap")) == {53, 9092, 8081}
    checkpoints = render(ON, at("trainer.checkpoints.location", "s3://b/c"))
    assert ports(policy(checkpoints, "trainer")) == {53, 9092, 443}
    assert ports(policy(checkpoints, "generator")) == {53, 9092}


def test_stages_reach_the_collector_of_spans_where_there_is_one() -> None:
    collector = at("config.tracing.endpoint", "http://collector:4318")
    release = render(ON, collector)
    assert [4318 in ports(policy(release, stage)) for stage in STAGES] == [True] * 4
    assert 4318 not in ports(policy(release, "bootstrap"))
    alone = render(ON, at("config.scorer", collector["config"]), at("networkPolicy.tracing", {"ports": [4318, 4319]}))
    assert {stage for stage in STAGES if 4319 in ports(policy(alone, stage))} == {"scorer"}


def test_the_pods_of_groups_reach_each_other_and_no_one_else_reaches_them() -> None:
    release = render(GROUPS, ON, at("networkPolicy.metricsFrom", PEER), at("redis.url", "redis://cache"))
    components = {one["metadata"]["labels"]["app.kubernetes.io/component"] for one in release.of_kind("NetworkPolicy")}
    assert components == {pod["metadata"]["labels"]["app.kubernetes.io/component"] for _, pod in release.pods()}
    for component in ("generator", "generator-worker"):
        spec = policy(release, component)
        scrape, group = spec["ingress"]
        assert scrape["from"] == PEER
        (peer,) = group["from"]
        assert group.keys() == {"from"}  # at any port: NCCL takes free ones
        (only,) = peer["podSelector"]["matchExpressions"]
        assert (only["key"], only["values"]) == ("app.kubernetes.io/component", ["generator", "generator-worker"])
        assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "rl"
        assert {"to": [peer]} in spec["egress"]
    assert ports(policy(release, "generator")) == {53, 9092, 6379}
    assert ports(policy(release, "generator-worker")) == {53}
    assert len(policy(release, "scorer")["ingress"]) == 1


S3 = {"backend": "objectStore", "location": "s3://b/w"}
HTTP_ENGINE = at(
    "config.generator.engine",
    {"kind": "openai_http", "http": {"urls": ["http://a:8000/v1", "https://b"], "model": "m"}},
)
FOLLOWED: list[tuple[dict[str, Any], str, set[int]]] = [
    (at("kafka.bootstrapServers", "b-1.msk:9096, b-2.msk:9097"), "scorer", {9096, 9097}),
    (at("kafka.bootstrapServers", "[2001:db8::1]:9096"), "trainer", {9096}),
    (at("redis.url", "rediss://cache:6380/0"), "producer", {6380, 9092}),
    (at("schemaRegistry.url", "https://registry/path:1"), "bootstrap", {443, 9092}),
    (merged(at("weightStore", S3), at("objectStore", {"endpoint": "http://minio:9000", "allowHttp": True})),
     "trainer", {9000, 9092}),
    (merged(at("weightStore", S3), at("objectStore.options.metadata_endpoint", "http://169.254.169.254")),
     "generator", {80, 443, 9092}),
    (at("config.tracing.endpoint", "http://collector:4320/v1"), "scorer", {4320, 9092}),
    (HTTP_ENGINE, "generator", {8000, 443, 9092}),
    (HTTP_ENGINE, "scorer", {9092}),
    (merged(at("redis.existingSecret", "r"), at("networkPolicy.redis.ports", [6380])), "scorer", {6380, 9092}),
    (at("networkPolicy.kafka.ports", [9092, 9094]), "scorer", {9092, 9094}),
]  # fmt: skip


@pytest.mark.parametrize(("values", "component", "expected"), FOLLOWED, ids=str)
def test_a_policy_follows_the_ports_that_are_configured(
    values: dict[str, Any], component: str, expected: set[int]
) -> None:
    assert ports(policy(render(ON, values), component)) == {53} | expected


REFUSED: list[tuple[dict[str, Any], str]] = [
    (at("networkPolicy.kafka.ports", [9093]), "networkPolicy.kafka.ports [9093]: port 9092, which is configured"),
    (at("redis.existingSecret", "r"), "networkPolicy.redis.ports: the address lies in a secret"),
    (at("schemaRegistry.existingSecret", "r"), "networkPolicy.schemaRegistry.ports: the address lies in a secret"),
    (
        at("scorer.extraEnv", [{"name": "ROLLSTREAM_REDIS_URL", "value": "redis://x:1"}]),
        "networkPolicy.redis.ports: the address lies in a secret or in extraEnv",
    ),
    (at("objectStore.options.aws_endpoint", "http://s3:9000"), "set objectStore.endpoint instead"),
    (at("objectStore.secretOptions.endpoint", "address"), "set objectStore.endpoint instead"),
]


@pytest.mark.parametrize(("values", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_a_policy_that_would_cut_off_what_is_configured_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm_python.HelmError, match=re.escape(said)):
        render(ON, values)

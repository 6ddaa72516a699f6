"""Network policies: who may be reached, and by whom."""

from typing import Any

from tests.chart.everything import EVERYTHING
from tests.chart.rendering import STAGES, Document, Release, at, example, render

ON = at("networkPolicy.enabled", True)
GROUPS = at("generator", {"gpu": {"count": 8}, "leaderWorkerSet": {"enabled": True}})
PEER = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]


def policy(release: Release, component: str) -> Document:
    (found,) = [one for one in release.of_kind("NetworkPolicy") if
                one["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component]  # fmt: skip
    return found["spec"]  # type: ignore[no-any-return]


def ports(spec: Document) -> set[Any]:
    return {port["port"] for rule in spec["egress"] for port in rule.get("ports", [])}


def test_there_are_none_unasked() -> None:
    assert render().of_kind("NetworkPolicy") == []


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
        ON, at("redis.url", "redis://cache"), at("schemaRegistry.url", "http://registry"),
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
    alone = render(ON, at("config.scorer", collector["config"]), at("networkPolicy.tracing", {"ports": [4319]}))
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


def test_dns_is_asked_over_both_protocols() -> None:
    (rule,) = [rule for rule in policy(render(ON), "scorer")["egress"] if rule["ports"][0]["port"] == 53]
    assert {port["protocol"] for port in rule["ports"]} == {"UDP", "TCP"}


def test_ports_and_peers_can_be_named() -> None:
    spec = policy(render(example("strimzi.yaml")), "trainer")
    (kafka,) = [rule for rule in spec["egress"] if rule["ports"][0]["port"] == 9093]
    assert kafka["to"][0]["podSelector"] == {"matchLabels": {"strimzi.io/cluster": "main"}}


def test_further_rules_of_a_stage_stand_beside_its_own() -> None:
    spec = policy(render(EVERYTHING), "scorer")
    more = EVERYTHING["stageDefaults"]["networkPolicy"]
    assert spec["ingress"][-1] == more["extraIngress"][0]
    assert spec["egress"][-1] == more["extraEgress"][0]
    assert len(spec["egress"]) == 5

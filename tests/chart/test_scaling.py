"""Replicas, their scalers, and budgets of disruptions."""

from typing import Any

import pytest

from tests.chart.rendering import at, example, merged, render

KEDA = "keda.yaml"
GROUPS = at("generator", {"gpu": {"count": 8}, "leaderWorkerSet": {"enabled": True, "size": 2}})


@pytest.mark.parametrize("stage", ["generator", "scorer"])
@pytest.mark.parametrize("scaler", ["hpa", "keda"])
def test_a_scaler_alone_decides_about_the_replicas(stage: str, scaler: str) -> None:
    release = render(
        at(f"{stage}.autoscaling.{scaler}", {"enabled": True, "minReplicas": 2, "maxReplicas": 7}),
        at(f"{stage}.replicas", 3),
    )
    workload = release.workload(stage)
    assert "replicas" not in workload["spec"]
    found = release.one("HorizontalPodAutoscaler" if scaler == "hpa" else "ScaledObject", stage)["spec"]
    least, most = ("minReplicas", "maxReplicas") if scaler == "hpa" else ("minReplicaCount", "maxReplicaCount")
    assert (found[least], found[most]) == (2, 7)
    assert found["scaleTargetRef"] == {
        "apiVersion": "apps/v1", "kind": workload["kind"], "name": workload["metadata"]["name"],
    }  # fmt: skip


@pytest.mark.parametrize("scaler", ["hpa", "keda"])
def test_a_scaler_counts_groups_where_a_generator_spans_several_pods(scaler: str) -> None:
    release = render(GROUPS, at(f"generator.autoscaling.{scaler}.enabled", True))
    groups = release.one("LeaderWorkerSet")
    assert "replicas" not in groups["spec"]
    found = release.one("HorizontalPodAutoscaler" if scaler == "hpa" else "ScaledObject", "generator")["spec"]
    assert found["scaleTargetRef"] == {
        "apiVersion": groups["apiVersion"], "kind": groups["kind"], "name": groups["metadata"]["name"],
    }  # fmt: skip


def test_the_group_and_topic_that_keda_asks_for_are_those_of_the_stages() -> None:
    from rollstream.generator import loop as generator
    from rollstream.schemas.topics import PROMPTS, ROLLOUTS

    release = render(example(KEDA))
    asked = {one["spec"]["triggers"][0]["metadata"]["topic"] for one in release.of_kind("ScaledObject")}
    assert asked == {PROMPTS.of("math"), ROLLOUTS.of("math")}
    assert generator._TOPICS[0] == (PROMPTS, ROLLOUTS)


@pytest.mark.parametrize(
    ("mechanism", "sasl"),
    [("PLAIN", "plaintext"), ("SCRAM-SHA-256", "scram_sha256"), ("SCRAM-SHA-512", "scram_sha512")],
)
def test_keda_knows_the_mechanism_by_its_own_name(mechanism: str, sasl: str) -> None:
    release = render(example(KEDA), at("kafka.security.mechanism", mechanism))
    assert release.one("ScaledObject", "scorer")["spec"]["triggers"][0]["metadata"]["sasl"] == sasl


def test_further_triggers_stand_beside_the_lag() -> None:
    waiting = {"type": "prometheus", "metadata": {"serverAddress": "http://p:9090", "query": "a", "threshold": "4"}}
    keda = {"enabled": True, "extraTriggers": [waiting]}
    triggers = render(at("generator.autoscaling.keda", keda)).one("ScaledObject")["spec"]["triggers"]
    assert [one["type"] for one in triggers] == ["kafka", "prometheus"]


@pytest.mark.parametrize(
    ("values", "budgets"),
    [
        ({}, set()),
        (at("generator.replicas", 2), {"generator"}),
        (merged(at("generator.replicas", 2), at("scorer.replicas", 5)), {"generator", "scorer"}),
        (merged(at("scorer.replicas", 5), at("scorer.pdb.enabled", False)), set()),
        (at("scorer.autoscaling.hpa", {"enabled": True, "minReplicas": 1}), set()),
        (at("scorer.autoscaling.keda", {"enabled": True, "minReplicas": 2}), {"scorer"}),
        (merged(at("scorer.replicas", 2), at("scorer.enabled", False)), set()),
    ],
)
def test_a_budget_is_made_only_where_more_than_one_replica_is_certain(
    values: dict[str, Any], budgets: set[str]
) -> None:
    found = {one["metadata"]["name"].removeprefix("rl-rollstream-"): one for one in
             render(values).of_kind("PodDisruptionBudget")}  # fmt: skip
    assert found.keys() == budgets
    for budget in found.values():
        assert budget["spec"]["maxUnavailable"] == 1
        assert "minAvailable" not in budget["spec"]
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"

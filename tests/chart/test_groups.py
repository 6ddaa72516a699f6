"""A generator of several GPUs: of one pod, or of a group of pods, a LeaderWorkerSet."""

from typing import Any

import pytest

from tests.chart.everything import EVERYTHING, PASSED_THROUGH
from tests.chart.rendering import Document, at, container_of, labels_of, merged, render

GROUPS = at("generator", {"replicas": 3, "gpu": {"count": 8}, "leaderWorkerSet": {"enabled": True, "size": 4}})
# With a volume instead of a bucket, which groups can't use.
FULL = merged(
    EVERYTHING,
    GROUPS,
    at("weightStore", {"backend": "pvc", "location": ""}),
    at("schemaRegistry", {"url": "", "existingSecret": "registry"}),
    at("networkPolicy.schemaRegistry.ports", [443]),
    at("generator.autoscaling.hpa.enabled", False),
    # Groups serve no clients.
    at("generator.serve.enabled", False),
)


def variables(pod: Document) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container_of(pod, "generator")["env"]}


def test_pods_that_only_lend_their_gpus_know_no_secret_and_wait_for_no_topics() -> None:
    release = render(FULL)
    leader, worker = variables(release.pod("generator")), variables(release.pod("generator", "worker"))
    secret = {name for name, value in leader.items() if isinstance(value, dict) and "secretKeyRef" in value}
    assert {"ROLLSTREAM_KAFKA__SECURITY__SASL.PASSWORD", "ROLLSTREAM_REDIS_URL", "ROLLSTREAM_REGISTRY_URL"} <= secret
    assert worker == {
        name: value
        for name, value in leader.items()
        if name not in secret and not name.startswith("ROLLSTREAM_KAFKA__SECURITY")
    }
    mounted = [one["name"] for one in release.pod("generator", "worker")["spec"]["volumes"]]
    assert "kafka-client" not in mounted
    names = [one["name"] for one in release.pod("generator")["spec"]["initContainers"]]
    assert names == ["wait-for-topics", "before"]
    assert [one["name"] for one in release.pod("generator", "worker")["spec"]["initContainers"]] == ["before"]


@pytest.mark.parametrize("member", ["leader", "worker"])
def test_every_pass_through_reaches_every_pod_of_a_group(member: str) -> None:
    release = render(FULL)
    pod, own = release.pod("generator", member), PASSED_THROUGH
    assert own["annotations"].items() <= release.workload("generator")["metadata"]["annotations"].items()
    assert own["podLabels"].items() <= labels_of(pod).items()
    assert own["podAnnotations"].items() <= pod["metadata"]["annotations"].items()
    for field in ("nodeSelector", "tolerations", "topologySpreadConstraints", "priorityClassName", "affinity",
                  "runtimeClassName", "schedulerName", "hostAliases", "dnsPolicy", "dnsConfig"):  # fmt: skip
        assert pod["spec"][field] == own[field]
    assert pod["spec"]["containers"][-1] == own["extraContainers"][0]
    assert {"name": "EXTRA_RUN", "value": "math"} in container_of(pod, "generator")["env"]


def test_nothing_scrapes_pods_that_only_lend_their_gpus() -> None:
    release = render(FULL, at("metrics.podMonitor.enabled", True))
    (only,) = release.one("PodMonitor")["spec"]["selector"]["matchExpressions"]
    found = {labels_of(pod)["app.kubernetes.io/component"] for _, pod in release.pods()}
    assert {"generator", "generator-worker"} <= found
    assert "generator-worker" not in only["values"]


def test_a_budget_counts_every_pod_of_a_group() -> None:
    selector = render(GROUPS).one("PodDisruptionBudget")["spec"]["selector"]
    assert selector["matchExpressions"] == [
        {"key": "app.kubernetes.io/component", "operator": "In", "values": ["generator", "generator-worker"]}
    ]

"""Every document fits its kind, in every example and with every feature switched on."""

import copy

import helm_python
import kubernetes_validate
import pytest
from pydantic import ValidationError

from tests.chart.everything import SETS
from tests.chart.kinds import NEWEST, check
from tests.chart.rendering import CHART, EXAMPLES, example, render, render_exactly


@pytest.mark.parametrize("name", SETS)
def test_every_document_fits_its_kind(name: str) -> None:
    documents = render_exactly(SETS[name]).documents
    assert len(documents) >= 10
    for document in documents:
        check(document)


@pytest.mark.parametrize("name", SETS)
def test_helm_finds_nothing_to_say_about_the_values(name: str) -> None:
    report = helm_python.lint(CHART, SETS[name], strict=True, kube_version="v1.29.0")
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    # Severity 1 is a hint: an icon is recommended.
    assert [one for one in report["messages"] if one["severity"] > 1] == []


def test_the_values_of_the_chart_alone_pass_helm_lint_but_for_the_run_that_must_be_named() -> None:
    report = helm_python.lint(CHART, {}, strict=True)
    assert [one for one in report["messages"] if one["severity"] > 1 and "run: name the run" not in one["error"]] == []


def test_each_of_the_ten_situations_has_an_example() -> None:
    assert set(EXAMPLES) == {
        "minimal-cpu.yaml", "one-gpu-node.yaml", "strimzi.yaml", "msk-scram.yaml", "confluent-cloud.yaml", "keda.yaml",
        "s3.yaml", "multi-gpu.yaml", "leader-worker-set.yaml", "serving.yaml",
    }  # fmt: skip


def test_every_kind_of_document_that_the_chart_can_make_is_checked() -> None:
    made = {document["kind"] for values in SETS.values() for document in render_exactly(values).documents}
    assert made == {
        "ConfigMap", "ServiceAccount", "Service", "PersistentVolumeClaim", "Deployment", "StatefulSet", "Job", "Pod",
        "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy", "ScaledObject", "TriggerAuthentication",
        "PodMonitor", "ServiceMonitor", "PrometheusRule", "LeaderWorkerSet", "Ingress", "HTTPRoute",
    }  # fmt: skip


TYPOS = [
    *(("keda.yaml", kind, "", "typo") for kind in ("Deployment", "ScaledObject", "TriggerAuthentication", "PodMonitor",
                                                   "PrometheusRule")),
    *(("leader-worker-set.yaml", "LeaderWorkerSet", path, "typo") for path in (
        "", "leaderWorkerTemplate", "rolloutStrategy.rollingUpdateConfiguration",
        "leaderWorkerTemplate.leaderTemplate.spec", "leaderWorkerTemplate.workerTemplate.spec.containers.0")),
    # A number where KEDA wants a text.
    ("keda.yaml", "ScaledObject", "triggers.0.metadata", "lagThreshold"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "kind", "path", "field"), TYPOS)
def test_a_field_that_a_kind_does_not_have_or_take_is_found(values: str, kind: str, path: str, field: str) -> None:
    document = copy.deepcopy(render(example(values)).of_kind(kind)[0])
    check(document)
    place = document["spec"]
    for name in filter(None, path.split(".")):
        place = place[int(name)] if name.isdigit() else place[name]
    place[field] = 1
    with pytest.raises((AssertionError, ValidationError, kubernetes_validate.ValidationError)):
        check(document)


def test_a_kind_that_nobody_knows_is_no_success() -> None:
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        check({"apiVersion": "example.com/v1", "kind": "Unknown", "metadata": {"name": "a"}})


def test_the_newest_known_version_of_kubernetes_is_a_later_one() -> None:
    assert tuple(int(part) for part in str(NEWEST).split(".")) >= (1, 34)

"""Names: short enough, not shared by two releases, and in the release's namespace."""

import re

import pytest

from tests.chart.everything import EVERYTHING
from tests.chart.rendering import Release, at, example, labels_of, merged, render, render_exactly

# Longest name that Helm allows.
LONG = "a" * 53
FULL = merged(EVERYTHING, at("bootstrapJob.useHelmHooks", False), at("config.producer.epochs", 1))
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


def names(release: Release) -> set[tuple[str, str]]:
    """Kind and name of everything but the dashboards, which one release alone has, and of what the user adds."""
    documents = [one for one in release.documents if "-dashboard-" not in one["metadata"]["name"]]
    return {(one["kind"], one["metadata"]["name"]) for one in documents if "extra-" not in one["metadata"]["name"]}


@pytest.mark.parametrize("release", [LONG, "rl", "rollstream"])
def test_names_and_labels_are_as_short_as_kubernetes_wants(release: str) -> None:
    groups = render_exactly(example("leader-worker-set.yaml"), release=release)
    assert groups.of_kind("LeaderWorkerSet")
    for document in (*render(FULL, release=release).documents, *groups.documents):
        name = document["metadata"]["name"]
        # A StatefulSet's pods carry its name with a hash in a label.
        # Those of a LeaderWorkerSet have a StatefulSet for each group, named NAME-99 for example.
        assert len(name) <= {"StatefulSet": 52, "LeaderWorkerSet": 49}.get(document["kind"], 63), name
        assert re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name)
        pod = document.get("spec", {}).get("template", {})
        for labels in (document["metadata"].get("labels", {}), pod.get("metadata", {}).get("labels", {})):
            assert [value for value in labels.values() if not LABEL_VALUE.fullmatch(value)] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [("rl", "math"), (f"{LONG[:-1]}b", f"{LONG[:-1]}c"), ("rl", "rl-rollstream"), ("rl", "rl-rollstream-bootstrap"),
     ("rollstream", "rl")],
)  # fmt: skip
def test_two_releases_in_one_namespace_share_no_name(one: str, other: str) -> None:
    first, second = (names(render(FULL, release=release)) for release in (one, other))
    assert first & second == set()
    assert len(first) > 15


def test_two_releases_select_only_their_own_pods() -> None:
    first, second = (render(FULL, release=release) for release in ("rl", "math"))
    selector = first.one("Service", "-scorer")["spec"]["selector"]
    for _, pod in second.pods():
        assert not selector.items() <= labels_of(pod).items()


def test_everything_is_in_the_namespace_of_the_release_but_the_dashboards_that_are_sent_elsewhere() -> None:
    for document in render(FULL, namespace="there").documents:
        name, namespace = document["metadata"]["name"], document["metadata"].get("namespace")
        expected = "grafana" if "-dashboard-" in name else None if name.startswith("extra-") else "there"
        assert namespace == expected, name


@pytest.mark.parametrize(
    ("values", "release", "name"),
    [
        ({}, "rl", "rl-rollstream-scorer"),
        ({}, "rollstream", "rollstream-scorer"),
        ({}, "my-rollstream", "my-rollstream-rollstream-scorer"),
        ({"nameOverride": "train"}, "rl", "rl-train-scorer"),
        ({"fullnameOverride": "trainers"}, "rl", "trainers-scorer"),
    ],
)
def test_names_can_be_chosen(values: dict[str, str], release: str, name: str) -> None:
    assert render(values, release=release).workload("scorer")["metadata"]["name"] == name


def test_a_new_version_of_the_chart_alone_changes_no_pod() -> None:
    for where, pod in render(FULL).pods():
        if not where.startswith("Pod"):
            assert not {"helm.sh/chart", "app.kubernetes.io/version"} & labels_of(pod).keys(), where


def test_the_notes_name_the_run_and_commands_that_fit_the_release() -> None:
    release = render(release="blue", namespace="there")
    assert "Run math of rollstream 0.1.0, release blue in namespace there." in release.notes
    assert "helm test blue --namespace there" in release.notes
    pod = f"{release.workload('trainer')['metadata']['name']}-0"
    assert f"kubectl --namespace there exec -it {pod} --container trainer -- rollstream status" in release.notes

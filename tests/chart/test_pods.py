"""What every pod has: the pod security standard Restricted, and what its volumes, names and selectors must fit.

`renderings` hold what each pod has besides, pass-throughs and probes included.
"""

from typing import Any

import pytest

from tests.chart.everything import EVERYTHING, SETS
from tests.chart.rendering import STAGES, Document, at, labels_of, render, render_exactly

_ALLOWED_VOLUMES = {"configMap", "emptyDir", "secret", "persistentVolumeClaim", "ephemeral", "projected"}


def containers(pod: Document) -> list[Document]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


@pytest.mark.parametrize("name", SETS)
def test_every_pod_fits_the_security_standard_restricted(name: str) -> None:
    pods = dict(render_exactly(SETS[name]).pods())
    assert len(pods) >= 6  # four stages, the Job, the test
    for where, pod in pods.items():
        spec = pod["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), where
        assert spec["securityContext"]["runAsNonRoot"] is True, where
        assert spec["securityContext"]["runAsUser"] == 10001, where
        assert spec["securityContext"]["fsGroup"] == 10001, where
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert spec["automountServiceAccountToken"] is False, where
        # Variables of services would be taken for settings.
        assert spec["enableServiceLinks"] is False, where
        # `scratch` is a user's own: no other volume on a node's disk may grow without bound.
        own = [one for one in spec["volumes"] if "emptyDir" in one and one["name"] != "scratch"]
        assert {"tmp", "cache"} <= {one["name"] for one in own}
        assert [one["name"] for one in own if not one["emptyDir"].get("sizeLimit")] == [], where
        # Containers of the image start with its entrypoint, which is an init.
        assert [one["name"] for one in containers(pod) if "args" in one and "command" in one] == [], where
        for volume in spec["volumes"]:
            assert volume.keys() - {"name"} <= _ALLOWED_VOLUMES, where
        for container in containers(pod):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, where
            assert security["readOnlyRootFilesystem"] is True, where
            assert security["capabilities"] == {"drop": ["ALL"]}, where
            assert not security.get("privileged", False), where
            assert not [port for port in container.get("ports", []) if "hostPort" in port], where


@pytest.mark.parametrize("name", SETS)
def test_every_mount_has_its_volume_and_every_volume_of_the_chart_is_mounted(name: str) -> None:
    release = render_exactly(SETS[name])
    claimed = {
        labels_of(one)["app.kubernetes.io/component"]: [claim["metadata"]["name"] for claim in claims]
        for one in release.of_kind("StatefulSet")
        if (claims := one["spec"].get("volumeClaimTemplates"))
    }
    for where, pod in release.pods():
        volumes = [volume["name"] for volume in pod["spec"]["volumes"]]
        volumes += claimed.get(labels_of(pod)["app.kubernetes.io/component"], [])
        assert len(volumes) == len(set(volumes)), where
        for container in containers(pod):
            mounts = container.get("volumeMounts", [])
            assert {mount["name"] for mount in mounts} <= set(volumes), where
            assert len({mount["mountPath"] for mount in mounts}) == len(mounts), where
        ours = containers(pod)[-1] if where.startswith(("Pod", "Job")) else pod["spec"]["containers"][0]
        assert {mount["name"] for mount in ours["volumeMounts"]} == set(volumes), where


@pytest.mark.parametrize("name", SETS)
def test_every_config_map_account_and_claim_that_a_pod_names_is_in_the_release_or_is_told_to_exist(name: str) -> None:
    release = render_exactly(SETS[name])
    names = {kind: {one["metadata"]["name"] for one in release.of_kind(kind)} for kind in
             ("ConfigMap", "ServiceAccount", "PersistentVolumeClaim")}  # fmt: skip
    told = {"rollstream-model", "model"}
    hooks = {one["metadata"]["name"] for one in release.of_kind("ConfigMap") if is_hook(one)}
    for where, pod in release.pods():
        is_before_install = where.startswith("Job") and is_hook(release.one("Job", where.split("-")[-1]))
        accounts = {"default"} if is_before_install else names["ServiceAccount"]
        assert pod["spec"]["serviceAccountName"] in accounts, where
        for volume in pod["spec"]["volumes"]:
            maps = hooks if is_before_install else names["ConfigMap"]
            assert volume.get("configMap", {}).get("name", None) in {*maps, None}, where
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim in {*names["PersistentVolumeClaim"], *told, None}, where


def is_hook(document: Document) -> bool:
    return "helm.sh/hook" in document["metadata"].get("annotations", {})


@pytest.mark.parametrize("name", SETS)
def test_selectors_match_the_pods_of_their_stage_and_no_others(name: str) -> None:
    release = render_exactly(SETS[name])
    pods = {where: labels_of(pod) for where, pod in release.pods()}
    for document in release.documents:
        spec = document.get("spec", {})
        selector = {
            "Service": lambda spec: {"matchLabels": spec["selector"]},
            "NetworkPolicy": lambda spec: spec["podSelector"],
        }.get(document["kind"], lambda spec: spec.get("selector"))(spec)
        if document["kind"] in ("PodMonitor", "ServiceMonitor") or not selector:
            continue
        found = sorted(labels["app.kubernetes.io/component"] for labels in pods.values() if selects(selector, labels))
        # Else those of another release in the namespace would be selected too.
        assert {"app.kubernetes.io/name", "app.kubernetes.io/instance"} <= selector["matchLabels"].keys()
        stage = labels_of(document)["app.kubernetes.io/component"]
        is_of_groups = (
            document["kind"] == "PodDisruptionBudget" and "leader-worker-set" in name and stage == "generator"
        )
        assert found == ([stage, f"{stage}-worker"] if is_of_groups else [stage]), document["metadata"]["name"]


def selects(selector: Document, labels: dict[str, str]) -> bool:
    assert {one["operator"] for one in selector.get("matchExpressions", [])} <= {"In"}
    is_one_of = all(labels[one["key"]] in one["values"] for one in selector.get("matchExpressions", []))
    return is_one_of and bool(selector["matchLabels"].items() <= labels.items())


def test_a_stage_sets_what_every_stage_has_for_itself_alone() -> None:
    release = render(at("stageDefaults.priorityClassName", "low"), at("trainer.priorityClassName", "high"))
    found = {stage: release.workload(stage)["spec"]["template"]["spec"]["priorityClassName"] for stage in STAGES}
    assert found == {"producer": "low", "generator": "low", "scorer": "low", "trainer": "high"}


def test_labels_and_annotations_of_the_release_are_on_everything_that_the_chart_makes() -> None:
    for document in render(EVERYTHING).documents:
        if not document["metadata"]["name"].startswith("extra-"):
            assert labels_of(document)["cost-center"] == "research"
            assert document["metadata"]["annotations"]["example.com/owner"] == "rl"


def test_where_clients_call_a_pod_waits_before_its_end_unless_it_is_told_otherwise() -> None:
    def ends(*others: dict[str, Any]) -> dict[str, Any]:
        served = [
            at("generator.serve.enabled", True),
            at("ingest.enabled", True),
            at("clients.names.app.tenant", "app"),
            at("clients.existingSecret", "keys"),
        ]
        release = render(*served, *others)
        pods = {stage: release.workload(stage)["spec"]["template"]["spec"] for stage in (*STAGES, "ingest")}
        return {stage: pod["containers"][0].get("lifecycle") for stage, pod in pods.items()}

    waits, own = {"preStop": {"exec": {"command": ["sleep", "5"]}}}, {"preStop": {"exec": {"command": ["sleep", "9"]}}}
    assert ends() == {**dict.fromkeys(STAGES), "generator": waits, "ingest": waits}
    assert ends(at("ingest.lifecycle", own))["ingest"] == own


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, "rollstream:0.1.0"),
        ({"image": {"registry": "r.example.com", "repository": "a/b", "tag": "1"}}, "r.example.com/a/b:1"),
        ({"global": {"imageRegistry": "g.example.com"}}, "g.example.com/rollstream:0.1.0"),
        ({"generator": {"image": {"tag": "cuda"}}}, "rollstream:cuda"),
        ({"image": {"tag": "1", "digest": "sha256:ab"}}, "rollstream@sha256:ab"),
    ],
)  # fmt: skip
def test_the_image_is_put_together_from_its_parts(values: dict[str, Any], image: str) -> None:
    pod = render(values).workload("generator")["spec"]["template"]
    assert {container["image"] for container in containers(pod)} == {image}

"""What every pod has: the pod security standard Restricted, and what its volumes, labels and pass-throughs must fit."""

from typing import Any

import pytest

from tests.chart.everything import EVERYTHING, PASSED_THROUGH
from tests.chart.rendering import (
    EXAMPLES,
    MINIMAL,
    STAGES,
    Document,
    at,
    container_of,
    example,
    labels_of,
    merged,
    render,
    render_exactly,
)

SETS: dict[str, dict[str, Any]] = {
    "minimal": MINIMAL,
    "everything": merged(MINIMAL, EVERYTHING),
    **{name: example(name) for name in EXAMPLES},
}
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
def test_every_container_of_the_image_starts_with_its_entrypoint_which_is_an_init(name: str) -> None:
    for where, pod in render_exactly(SETS[name]).pods():
        own = [one for one in containers(pod) if "args" in one]
        assert own, where
        assert [one["name"] for one in own if "command" in one] == [], where


@pytest.mark.parametrize("name", SETS)
def test_no_volume_on_a_nodes_disk_may_grow_without_bound(name: str) -> None:
    # `scratch` is a user's own.
    for where, pod in render_exactly(SETS[name]).pods():
        own = [one for one in pod["spec"]["volumes"] if "emptyDir" in one and one["name"] != "scratch"]
        assert {"tmp", "cache"} <= {one["name"] for one in own}
        assert [one["name"] for one in own if not one["emptyDir"].get("sizeLimit")] == [], where


@pytest.mark.parametrize("name", SETS)
def test_no_pod_gets_variables_of_services_which_its_stage_would_take_for_settings(name: str) -> None:
    for where, pod in render_exactly(SETS[name]).pods():
        assert pod["spec"]["enableServiceLinks"] is False, where


@pytest.mark.parametrize("name", SETS)
def test_every_mount_has_its_volume_and_every_volume_of_the_chart_is_mounted(name: str) -> None:
    for where, pod in render_exactly(SETS[name]).pods():
        volumes = [volume["name"] for volume in pod["spec"]["volumes"]]
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


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_probed_where_it_serves_and_has_time_to_start_and_to_end(stage: str) -> None:
    pod = render().workload(stage)["spec"]["template"]
    container = container_of(pod, stage)
    assert container["args"] == [stage]
    (port,) = container["ports"]
    assert port["containerPort"] == 9100
    paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    assert paths["startup"] == paths["readiness"] == {"path": "/readyz", "port": port["name"]}
    assert paths["liveness"] == {"path": "/livez", "port": port["name"]}
    startup = container["startupProbe"]
    budget = startup["periodSeconds"] * startup["failureThreshold"]
    assert budget >= (3600 if stage in ("generator", "trainer") else 600)
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60
    least = {"producer": 30, "generator": 60, "scorer": 30, "trainer": 300}[stage]
    assert pod["spec"]["terminationGracePeriodSeconds"] >= least


def test_the_budget_of_a_start_can_be_changed_without_repeating_the_probe() -> None:
    pod = render(at("scorer.probes.startup.failureThreshold", 7)).workload("scorer")["spec"]["template"]
    probe = container_of(pod, "scorer")["startupProbe"]
    assert probe["failureThreshold"] == 7
    assert probe["httpGet"]["path"] == "/readyz"


@pytest.mark.parametrize("stage", STAGES)
def test_every_pass_through_reaches_the_pods_of_every_stage(stage: str) -> None:
    workload = render(EVERYTHING).workload(stage)
    pod, own = workload["spec"]["template"], PASSED_THROUGH
    spec, container = pod["spec"], container_of(workload["spec"]["template"], stage)
    assert own["annotations"].items() <= workload["metadata"]["annotations"].items()
    assert own["podLabels"].items() <= labels_of(pod).items()
    assert own["podAnnotations"].items() <= pod["metadata"]["annotations"].items()
    for field in ("nodeSelector", "tolerations", "topologySpreadConstraints", "priorityClassName", "affinity",
                  "runtimeClassName", "schedulerName", "hostAliases", "dnsPolicy", "dnsConfig"):  # fmt: skip
        assert spec[field] == own[field]
    assert spec["containers"][-1] == own["extraContainers"][0]
    assert spec["initContainers"][-1] == own["extraInitContainers"][0]
    assert own["extraVolumes"][0] in spec["volumes"]
    assert own["extraVolumeMounts"][0] in container["volumeMounts"]
    assert {"name": "EXTRA_RUN", "value": "math"} in container["env"]
    assert container["envFrom"] == own["extraEnvFrom"]
    assert container["lifecycle"] == own["lifecycle"]
    assert spec["imagePullSecrets"] == [{"name": "pull"}, {"name": "pull-global"}]


def test_the_bootstrap_job_passes_through_what_it_has_of_them() -> None:
    pod = render(EVERYTHING).one("Job")["spec"]["template"]
    assert {"team": "rl", "cost-center": "research"}.items() <= labels_of(pod).items()
    assert PASSED_THROUGH["podAnnotations"].items() <= pod["metadata"]["annotations"].items()
    assert pod["spec"]["nodeSelector"] == PASSED_THROUGH["nodeSelector"]
    assert pod["spec"]["tolerations"] == PASSED_THROUGH["tolerations"]
    for container in containers(pod):
        assert {"name": "EXTRA_RUN", "value": "math"} in container["env"]
        assert container["envFrom"] == PASSED_THROUGH["extraEnvFrom"]
        assert PASSED_THROUGH["extraVolumeMounts"][0] in container["volumeMounts"]


def test_a_stage_sets_what_every_stage_has_for_itself_alone() -> None:
    release = render(at("stageDefaults.priorityClassName", "low"), at("trainer.priorityClassName", "high"))
    found = {stage: release.workload(stage)["spec"]["template"]["spec"]["priorityClassName"] for stage in STAGES}
    assert found == {"producer": "low", "generator": "low", "scorer": "low", "trainer": "high"}


@pytest.mark.parametrize(("stage", "resource"), [("generator", "nvidia.com/gpu"), ("trainer", "amd.com/gpu")])
def test_a_gpu_is_asked_for_by_the_name_of_its_vendor(stage: str, resource: str) -> None:
    pod = render(EVERYTHING).workload(stage)["spec"]["template"]
    assert container_of(pod, stage)["resources"]["limits"][resource] == 1
    assert resource not in container_of(pod, "wait-for-topics")["resources"]["limits"]


def test_labels_and_annotations_of_the_release_are_on_everything_that_the_chart_makes() -> None:
    for document in render(EVERYTHING).documents:
        if not document["metadata"]["name"].startswith("extra-"):
            assert labels_of(document)["cost-center"] == "research"
            assert document["metadata"]["annotations"]["example.com/owner"] == "rl"


def test_extra_objects_are_templates_too() -> None:
    release = render(EVERYTHING)
    assert [release.one("ConfigMap", name)["data"] for name in ("extra-map", "extra-text")] == [{"run": "math"}] * 2


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


def test_generators_share_the_node_of_the_trainer_where_one_node_alone_can_mount_the_weights() -> None:
    release = render(example("one-gpu-node.yaml"))
    (term,) = release.workload("generator")["spec"]["template"]["spec"]["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    trainer = release.workload("trainer")["spec"]["template"]
    assert term["labelSelector"]["matchLabels"].items() <= labels_of(trainer).items()
    assert "affinity" not in trainer["spec"]
    assert "affinity" not in render().workload("generator")["spec"]["template"]["spec"]

"""Generators that answer clients, ingest, who may call them, and further producers."""

import re
from pathlib import Path
from typing import Any

import helm_python
import pytest

from rollstream.http.keys import Keys
from tests.chart.other_values import leaves, other_config
from tests.chart.rendering import STAGES, Document, Release, at, container_of, labels_of, merged, render
from tests.chart.stage_settings import found_at, plain, settings_of

CLIENTS = at(
    "clients",
    {
        "existingSecret": "client-keys",
        "names": {
            "my-app": {"tenant": "shop", "environment": "sort_digits", "may_train": True, "sampling": "plain"},
            "other_one": {"tenant": "bank", "secretKey": "of-the-bank"},
        },
    },
)
SERVE = merged(CLIENTS, at("generator.serve.enabled", True))
INGEST = merged(CLIENTS, at("ingest.enabled", True))
BOTH = merged(SERVE, INGEST)
MORE = at("producers.more.config", {"environment": "word_count", "seed": 3})


def component(document: Document) -> str:
    return labels_of(document)["app.kubernetes.io/component"]


@pytest.mark.parametrize(("stage", "table"), [("generator", "serve.keys"), ("ingest", "keys")])
def test_each_server_knows_the_clients_and_has_their_keys_from_the_secret(
    stage: Any, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {f"client-keys/{name}": name.ljust(24, "k") for name in ("my-app", "of-the-bank")}
    settings = settings_of(render(BOTH), stage, tmp_path, monkeypatch, keys)
    assert found_at(settings, table) == {
        "my-app": {"key": keys["client-keys/my-app"], "tenant": "shop", "environment": "sort_digits",
                   "may_train": True, "sampling": "plain"},
        "other_one": {"key": keys["client-keys/of-the-bank"], "tenant": "bank", "environment": "",
                      "may_train": False, "sampling": "as_asked"},
    }  # fmt: skip
    server = settings if stage == "ingest" else settings.serve  # type: ignore[attr-defined]
    Keys(server.keys, server.host)


def test_keys_are_in_no_text_of_the_release_and_only_with_who_serves_and_the_test() -> None:
    release = render(BOTH, at("clients.subjectSecretKey", "subjects"))
    holding = {
        component(pod)
        for _, pod in release.pods()
        for container in pod["spec"]["containers"]
        if "KEYS__" in str(container.get("env"))
    }
    assert holding == {"generator", "ingest", "test"}
    with_subjects = {component(pod) for _, pod in release.pods() if "SUBJECT_SECRET" in str(pod)}
    assert with_subjects == {"generator", "test"}


def test_a_generator_serves_at_its_port_and_keeps_its_spool_on_a_claim_that_outlives_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = render(SERVE, at("generator.serve", {"port": 8080, "spool": {"gib": 10, "storageClass": "fast"}}))
    serve = found_at(settings_of(release, "generator", tmp_path, monkeypatch), "serve")
    assert (serve["enabled"], serve["host"], serve["port"]) == (True, "0.0.0.0", 8080)
    assert serve["spool_bytes"] == 10 * 2**30
    (claim,) = release.workload("generator")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"]["storage"] == "12Gi"
    container = container_of(release.pod("generator"), "generator")
    assert {"name": claim["metadata"]["name"], "mountPath": serve["spool"]} in container["volumeMounts"]
    assert {"name": "http", "containerPort": 8080, "protocol": "TCP"} in container["ports"]


def test_without_serving_nothing_of_it_is_there() -> None:
    release = render(CLIENTS)
    assert "volumeClaimTemplates" not in release.workload("generator")["spec"]
    assert [one["name"] for one in container_of(release.pod("generator"), "generator")["ports"]] == ["metrics"]
    assert "KEYS__" not in "".join(release.texts)


@pytest.mark.parametrize(("stage", "suffix", "port"), [("generator", "-serve", 8000), ("ingest", "-ingest-http", 8001)])
def test_calls_reach_the_pods_that_are_ready(stage: str, suffix: str, port: int) -> None:
    service = render(BOTH).one("Service", suffix)
    assert "publishNotReadyAddresses" not in service["spec"]
    assert service["spec"]["selector"]["app.kubernetes.io/component"] == stage
    assert service["spec"]["ports"] == [{"name": "http", "port": port, "targetPort": "http", "protocol": "TCP"}]


@pytest.mark.parametrize(
    ("part", "suffix", "port"), [("generator.serve", "-serve", 8000), ("ingest", "-ingest-http", 8001)]
)
def test_an_ingress_and_a_route_lead_to_the_service(part: str, suffix: str, port: int) -> None:
    routes = {
        "ingress": {"enabled": True, "host": "llm.example.com", "tlsSecret": "tls", "className": "nginx",
                    "annotations": {"a": "b"}},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["llm.example.com"],
                      "timeouts": {"request": "600s"}},
    }  # fmt: skip
    release = render(BOTH, at(part, routes))
    name = release.one("Service", suffix)["metadata"]["name"]
    ingress, route = release.one("Ingress"), release.one("HTTPRoute")
    assert ingress["metadata"]["annotations"] == {"a": "b"}
    assert ingress["spec"]["tls"] == [{"hosts": ["llm.example.com"], "secretName": "tls"}]
    (rule,) = ingress["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": name, "port": {"name": "http"}}
    assert route["spec"]["rules"] == [{"backendRefs": [{"name": name, "port": port}], "timeouts": {"request": "600s"}}]


def ingress_of(release: Release, stage: str) -> list[Document]:
    (policy,) = [one for one in release.of_kind("NetworkPolicy") if component(one) == stage]
    found: list[Document] = policy["spec"]["ingress"]
    return found


def test_clients_reach_the_servers_at_their_ports_alone_and_only_from_where_they_may() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
    on = at("networkPolicy.enabled", True)
    for stage in ("generator", "ingest"):
        port = {"ports": [{"port": "http", "protocol": "TCP"}]}
        assert ingress_of(render(BOTH, on), stage)[1:] == [port]
        narrow = render(BOTH, on, at("networkPolicy.clientsFrom", peers))
        assert ingress_of(narrow, stage)[1:] == [{**port, "from": peers}]
    for stage in STAGES:
        if stage != "generator":
            assert len(ingress_of(render(BOTH, on), stage)) == 1


def test_keda_counts_the_calls_that_wait_beside_the_lag() -> None:
    keda = {"enabled": True, "waitingCalls": {"serverAddress": "http://p:9090", "threshold": 5}}
    triggers = render(SERVE, at("generator.autoscaling.keda", keda)).one("ScaledObject")["spec"]["triggers"]
    assert [one["type"] for one in triggers] == ["kafka", "prometheus"]
    assert triggers[1]["metadata"] == {
        "serverAddress": "http://p:9090", "threshold": "5", "query": 'sum(rollstream_serve_waiting_calls{run="math"})',
    }  # fmt: skip


def test_ingest_scales_by_its_load_and_keeps_a_pod_in_a_drain() -> None:
    release = render(INGEST, at("ingest.autoscaling.hpa", {"enabled": True, "minReplicas": 3, "maxReplicas": 50}))
    assert "replicas" not in release.workload("ingest")["spec"]
    hpa = release.one("HorizontalPodAutoscaler", "-ingest")["spec"]
    assert (hpa["minReplicas"], hpa["maxReplicas"]) == (3, 50)
    assert hpa["scaleTargetRef"]["name"] == release.workload("ingest")["metadata"]["name"]
    assert release.one("PodDisruptionBudget", "-ingest")["spec"]["maxUnavailable"] == 1


def test_every_key_of_ingest_lands_in_the_setting_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = other_config()["ingest"]
    found = plain(
        settings_of(render(INGEST, at("config.ingest", config)), "ingest", tmp_path, monkeypatch).model_dump()
    )
    usual = plain(settings_of(render(INGEST), "ingest", tmp_path, monkeypatch).model_dump())
    paths = dict(leaves(config))
    assert len(paths) >= 8
    for path, value in paths.items():
        landed, before = found, usual
        for name in path.split("."):
            landed, before = landed[name], before[name]
        assert landed == value, path
        assert before != value, f"{path}: {value} is the default, which would land anyway"


def test_a_further_producer_has_its_own_table_and_name_and_what_the_first_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = render(MORE, at("producer.priorityClassName", "low"), at("producers.more.tmpSize", "9Gi"))
    pod = release.pod("producer-more")
    assert container_of(pod, "producer")["args"] == ["producer"]
    assert pod["spec"]["priorityClassName"] == "low"
    assert {"name": "tmp", "emptyDir": {"sizeLimit": "9Gi"}} in pod["spec"]["volumes"]
    file = tmp_path / "more.toml"
    file.write_text(release.one("ConfigMap", "-producer-more")["data"]["rollstream.toml"])
    settings = settings_of(release, "producer", tmp_path, monkeypatch)
    more = plain(type(settings).load(file).model_dump())
    assert (more["name"], more["environment"], more["seed"], more["run"]) == ("more", "word_count", 3, "math")
    assert (found_at(settings, "name"), found_at(settings, "environment")) == ("producer", "sort_digits")


def test_a_change_of_one_producer_starts_that_one_alone_again() -> None:
    def checksums(*values: dict[str, Any]) -> dict[str, str]:
        return {
            component(pod): pod["metadata"]["annotations"]["checksum/config"]
            for _, pod in render(MORE, *values).pods()
            if "checksum/config" in pod["metadata"].get("annotations", {})
        }

    before, changed = checksums(), checksums(at("producers.more.config.seed", 4))
    assert {name for name in before if before[name] != changed[name]} == {"producer-more"}
    shared = checksums(at("config.groups_per_step", 9))
    assert {name for name in before if before[name] != shared[name]} == {*STAGES, "producer-more"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (at("generator.serve.enabled", True), "clients.names: generator.serve and ingest answer nobody beyond their pod"),
    (at("ingest.enabled", True), "clients.names: generator.serve and ingest answer nobody beyond their pod"),
    (merged(SERVE, at("clients.existingSecret", "")), "clients.existingSecret: name the secret with a key for each"),
    (merged(SERVE, at("clients.names.my-app.tenant", "")), "clients.names.my-app.tenant: say whose client it is"),
    (
        merged(SERVE, at("generator", {"gpu": {"count": 1}, "leaderWorkerSet": {"enabled": True}})),
        "generator.serve: not with leaderWorkerSet",
    ),
    (merged(SERVE, at("generator.serve.port", 9100)), "generator.serve.port 9100 is healthPort too"),
    (merged(INGEST, at("ingest.port", 9100)), "ingest.port 9100 is healthPort too"),
    (
        merged(SERVE, at("generator.terminationGracePeriodSeconds", 89)),
        "generator.terminationGracePeriodSeconds 89: answers have drain_seconds, 60 s, to end",
    ),
    (
        merged(SERVE, at("config.generator.serve.drain_seconds", 300)),
        "generator.terminationGracePeriodSeconds 90: answers have drain_seconds, 300 s, to end",
    ),
    (at("config.generator.serve.enabled", True), "config.generator.serve.enabled: set the chart's value `generator.se"),
    (at("config.generator.serve.keys.a.tenant", "a"), "config.generator.serve.keys: set the chart's value `clients`"),
    (at("config.ingest.keys.a.tenant", "a"), "config.ingest.keys: set the chart's value `clients`"),
    (at("config.generator.serve.spool_bytes", 2**21), "set the chart's value `generator.serve.spool.gib` instead"),
    (
        at("generator.autoscaling.keda", {"enabled": True, "waitingCalls": {"serverAddress": "http://p"}}),
        "generator.autoscaling.keda.waitingCalls: only serving generators have calls that wait",
    ),
    (merged(SERVE, at("generator.serve.ingress.enabled", True)), "generator.serve.ingress.host: name the host"),
    (merged(INGEST, at("ingest.httpRoute.enabled", True)), "ingest.httpRoute.parentRefs: name a gateway"),
    (merged(INGEST, at("ingest.autoscaling.hpa", {"enabled": True, "minReplicas": 9})), "minReplicas 9 exceeds max"),
    (at("config.generator.serve.subject_secret", "hunter2"), "config.generator.serve.subject_secret may be a secret"),
    (
        at("ingest.extraEnv", [{"name": "ROLLSTREAM_KEYS__APP__KEY", "value": "hunter2"}]),
        "ingest.extraEnv: ROLLSTREAM_KEYS__APP__KEY may be a secret",
    ),
    (at("clients.names.app.key", "hunter2"), "additional properties 'key' not allowed"),
    (at("clients.names.a__b.tenant", "a"), "does not match pattern"),
    (at("producers.more.podLabels", {"a": "b"}), "producers.more.config: say where prompts come from"),
    (merged(MORE, at("producers.more.config.epochs", 1)), "producers.more.config: epochs and num_prompts are for"),
    (merged(MORE, at("producers.more.config.name", "producer")), "producers.more: producer is the name of `producer`"),
    (merged(MORE, at("producers.more.store.gib", 1)), "producers.more.store is for source: feedback"),
    (merged(MORE, at("producers.more.config.sed", 1)), "additional properties 'sed' not allowed"),
    (merged(MORE, at("producers.more.enabled", False)), "additional properties 'enabled' not allowed"),
    (at("producers.much-too-long-a-name.config.environment", "sort_digits"), "maxLength: got 20, want 13"),
    (
        merged(MORE, at("producers.more.extraEnv", [{"name": "HF_TOKEN", "value": "hunter2"}])),
        "producers.more.extraEnv: HF_TOKEN may be a secret",
    ),
]


@pytest.mark.parametrize(("values", "said"), REFUSED, ids=[said[:60] for _, said in REFUSED])
def test_what_could_not_serve_is_refused_by_a_sentence_that_shows_no_secret(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm_python.HelmError, match=re.escape(said)) as refused:
        render(values)
    assert "hunter2" not in str(refused.value)

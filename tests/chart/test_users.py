"""Who each pod is on a cluster with an authorizer."""

import os
import shlex
from pathlib import Path
from typing import Any

import helm_python
import pytest
from click.testing import CliRunner

from rollstream.bus.acl_rules import ROLES
from rollstream.cli.main import cli
from rollstream.producers.settings import ProducerSettings
from tests.chart.rendering import (
    STAGES,
    Document,
    Release,
    at,
    container_of,
    example,
    merged,
    render,
    render_exactly,
)
from tests.chart.stage_settings import found_at, secret_of, settings_of

SHARED = at("kafka.security", {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "existingSecret": "shared"})
# Everyone of the chart: who calls `prompt`, `evaluate` and `rc-actor` has no pod in it. The producers of feedback and
# of states are further producers, and are tested by themselves.
USERS = sorted({*ROLES} - {"client", "rc-actor", "feedback", "states"})
OF_ALL = at("kafka.security.users", {role: {"existingSecret": f"{role}-user"} for role in USERS})
INGEST = merged(
    at("ingest.enabled", True), at("clients", {"existingSecret": "clients", "names": {"app": {"tenant": "shop"}}})
)
PODS = [*STAGES, "ingest"]
NO_SHARED = merged(SHARED, at("kafka.security.existingSecret", ""))
PASSWORD = "ROLLSTREAM_KAFKA__SECURITY__SASL.PASSWORD"


def secrets_of(pod: Document) -> set[str]:
    """The secrets from which the pod's containers have a password of Kafka's."""
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    variables = [one for container in containers for one in container.get("env", []) if one["name"] == PASSWORD]
    return {one["valueFrom"]["secretKeyRef"]["name"] for one in variables}


def pods_of_jobs(release: Release) -> dict[str, Document]:
    return {"operator": release.pod("bootstrap"), "viewer": release.one("Pod")}


def test_each_stage_and_each_job_has_the_user_of_its_own_role() -> None:
    release = render(NO_SHARED, OF_ALL, INGEST)
    pods = {stage: release.pod(stage) for stage in PODS} | pods_of_jobs(release)
    assert {role: secrets_of(pod) for role, pod in pods.items()} == {role: {f"{role}-user"} for role in USERS}
    assert "shared" not in "".join(release.texts)


def test_the_producer_of_states_has_a_user_of_its_own() -> None:
    producer = at("producers.states.config", {"source": "states", "group_size": 4})
    own = at("kafka.security.users.states.existingSecret", "states-user")
    release = render(producer, SHARED, own)
    assert secrets_of(release.pod("producer-states")) == {"states-user"}
    assert secrets_of(release.pod("producer")) == {"shared"}


def test_the_producer_of_feedback_has_a_user_of_its_own_and_settings_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = at("kafka.security.users.feedback.existingSecret", "feedback-user")
    release = render_exactly(merged(example("serving.yaml"), SHARED, own))
    pod = release.pod("producer-feedback")
    assert secrets_of(pod) == {"feedback-user"}
    assert secrets_of(release.pod("generator")) == {"shared"}
    for name in [name for name in os.environ if name.startswith("ROLLSTREAM_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "feedback.toml"
    file.write_text(release.one("ConfigMap", "-producer-feedback")["data"]["rollstream.toml"])
    settings = ProducerSettings.load(file)
    assert (settings.source, settings.name, settings.feedback.weights) == ("feedback", "feedback", {"thumbs": 1.0})
    (container,) = pod["spec"]["containers"]
    mounted = {Path(one["mountPath"]) for one in container["volumeMounts"]}
    assert settings.feedback.store.parent in mounted


def test_who_has_no_user_of_its_own_has_the_one_of_all() -> None:
    release = render(SHARED, INGEST, at("kafka.security.users.trainer.existingSecret", "alone"))
    pods = {stage: release.pod(stage) for stage in PODS} | pods_of_jobs(release)
    expected = {role: {"alone" if role == "trainer" else "shared"} for role in USERS}
    assert {role: secrets_of(pod) for role, pod in pods.items()} == expected


def test_a_users_name_comes_from_its_value_else_from_its_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = {"trainer": {"existingSecret": "t", "username": "teacher"}, "scorer": {"existingSecret": "s"}}
    release = render(SHARED, at("kafka.security.username", "anybody"), at("kafka.security.users", users))
    path = 'kafka.security."sasl.username"'
    found = {stage: found_at(settings_of(release, stage, tmp_path, monkeypatch), path) for stage in STAGES}
    assert found == {
        "producer": "anybody", "generator": "anybody", "scorer": secret_of("s", "username"), "trainer": "teacher",
    }  # fmt: skip


def test_a_certificate_of_its_own_is_mounted_for_that_role_alone() -> None:
    release = render(
        at("kafka.security", {"protocol": "SSL", "users": {"trainer": {"certificateSecret": "trainer-tls"}}})
    )
    (volume,) = [one for one in release.pod("trainer")["spec"]["volumes"] if one["name"] == "kafka-client"]
    assert volume["secret"]["secretName"] == "trainer-tls"
    names = {one["name"] for one in container_of(release.pod("trainer"), "trainer")["env"]}
    assert "ROLLSTREAM_KAFKA__SECURITY__SSL.CERTIFICATE.LOCATION" in names
    assert "kafka-client" not in [one["name"] for one in release.pod("scorer")["spec"]["volumes"]]
    assert "ssl.certificate" not in release.one("ConfigMap", "rl-rollstream")["data"]["rollstream.toml"]


def test_keda_is_the_viewer_who_may_ask_for_the_lag() -> None:
    release = render(merged(example("keda.yaml"), SHARED, OF_ALL))
    targets = release.one("TriggerAuthentication")["spec"]["secretTargetRef"]
    assert {one["name"] for one in targets if one["parameter"] in ("username", "password")} == {"viewer-user"}


def test_the_command_that_helm_prints_lists_the_permissions_of_the_users_of_the_values(tmp_path: Path) -> None:
    notes = render(example("strimzi.yaml")).notes
    (line,) = [line for line in notes.splitlines() if "rollstream acls print" in line]
    config = tmp_path / "rollstream.toml"
    config.write_text('run = "math"\n')
    _, *arguments = shlex.split(line)
    said = CliRunner().invoke(cli, [*arguments, "--config", str(config)])
    assert said.exit_code == 0, said.output
    users = example("strimzi.yaml")["kafka"]["security"]["users"]
    assert {*users, "ingest"} == set(USERS)
    principals = {line.split()[0] for line in said.output.splitlines()}
    assert principals == {f"User:{user['username']}" for user in users.values()}
    assert f"User:{users['trainer']['username']} WRITE topic literal math.ledger" in said.output
    assert "acls print" not in render().notes


REFUSED: list[tuple[dict[str, Any], str]] = [
    (NO_SHARED, "kafka.security.existingSecret: with SASL_SSL name a secret with the password, here or in"),
    (
        merged(NO_SHARED, OF_ALL, at("kafka.security.users.operator.existingSecret", "")),
        "here or in kafka.security.users.operator.existingSecret",
    ),
    (at("kafka.security.users.trainer.existingSecret", "t"), "are for SASL, but protocol is PLAINTEXT"),
    (at("kafka.security.users.trainer.certificateSecret", "t"), "is for TLS, but protocol is PLAINTEXT"),
    (merged(SHARED, at("kafka.security.users.trainer.username", "t")), "kafka.security.users.trainer.username has no"),
    (at("kafka.security.users.client.existingSecret", "t"), "additional properties 'client' not allowed"),
    # A variable that stands twice, or that other objects repeat.
    (at("scorer.extraEnv", [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]), "scorer.extraEnv: A st"),
    (at("generator.extraEnv", [{"name": "ROLLSTREAM_RUN", "value": "b"}]), "generator.extraEnv: ROLLSTREAM_RUN is"),
    (at("bootstrapJob.extraEnv", [{"name": "rollstream_config", "value": "/x"}]), "bootstrapJob.extraEnv: rolls"),
]


@pytest.mark.parametrize(("values", "said"), REFUSED, ids=[said[:40] for _, said in REFUSED])
def test_a_user_without_a_password_or_a_place_and_a_variable_that_stands_twice_are_refused(
    values: dict[str, Any], said: str
) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        render(values)
    assert said in str(refused.value)


def test_a_role_that_this_release_has_no_pod_of_needs_no_user() -> None:
    users = {role: {"existingSecret": role} for role in USERS if role not in ("operator", "viewer")}
    release = render(
        NO_SHARED, at("kafka.security.users", users), at("bootstrapJob.enabled", False), at("tests.enabled", False)
    )
    assert secrets_of(release.pod("producer")) == {"producer"}


SEVERAL = merged(SHARED, at("redis.existingSecret", "redis"))


def test_a_variable_of_extra_env_takes_the_place_of_the_charts() -> None:
    own = {"name": "ROLLSTREAM_REDIS_URL", "valueFrom": {"secretKeyRef": {"name": "other", "key": "url"}}}
    pod = render(SEVERAL, at("generator.extraEnv", [own])).pod("generator")
    for container in ("wait-for-topics", "generator"):
        variables = container_of(pod, container)["env"]
        assert [one for one in variables if one["name"] == own["name"]] == [own]

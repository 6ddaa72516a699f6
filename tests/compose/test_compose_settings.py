"""What docker-compose.yml and its settings file hand to the stages: every value lands in the setting that it names."""

import base64
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from rollstream.local.demo import options
from rollstream.local.demo.options import DemoOptions
from rollstream.local.demo.prepare import stage_settings
from rollstream.local.kafka_properties import FIXED
from rollstream.process.settings.base import Stage, StageSettings, settings_class
from rollstream.schemas.errors import ConfigurationError
from tests.compose.compose_file import (
    ENV_EXAMPLE,
    OUR_IMAGE,
    ROOT,
    STAGES,
    Project,
    document,
    example_project,
    example_variables,
    mounts,
    variables_of,
)

SETTINGS_FILE = ROOT / "services" / "compose" / "rollstream.toml"
PREFIX = "ROLLSTREAM_"
# Who sets these reads them: Compose itself.
OF_COMPOSE = {"COMPOSE_PROFILES"}
SERVICES = [*STAGES, "feedback", "generator-gpu", "trainer-gpu"]
SECRET = "a secret that no default has"


def filled(**changed: str) -> Project:
    """The example with everything in it that is shown as a comment, and a secret key."""
    secret = {
        "ROLLSTREAM_STORAGE__OPTIONS__SECRET_ACCESS_KEY": SECRET,
        **dict.fromkeys(("ROLLSTREAM_SERVE__KEYS__CLIENT__KEY", "ROLLSTREAM_KEYS__CLIENT__KEY"), SECRET),
    }
    return example_project(with_optional=True, **{**secret, **changed})


def stage_of(service: str) -> Stage:
    if service == "feedback":
        return "producer"
    (stage,) = [stage for stage in STAGES if service.removesuffix("-gpu") == stage]
    return stage  # type: ignore[return-value]


def loaded(project: Project, service: str, monkeypatch: pytest.MonkeyPatch) -> StageSettings:
    """The settings as the stage in that container reads them."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    for name, value in project.environment(service).items():
        monkeypatch.setenv(name, value)
    return settings_class(stage_of(service)).load(SETTINGS_FILE)


def setting_at(settings: object, path: list[str]) -> object:
    for name in path:
        settings = settings[name] if isinstance(settings, Mapping) else getattr(settings, name)
    return settings


def as_text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    assert not isinstance(value, BaseModel | Mapping)
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("project", [example_project(), filled()], ids=["the example", "with all that is optional"])
def test_every_variable_lands_in_the_setting_that_it_names(
    project: Project, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = loaded(project, service, monkeypatch)
    given = {name: value for name, value in project.environment(service).items() if name.startswith(PREFIX)}
    given.pop("ROLLSTREAM_CONFIG")
    assert len(given) >= 3
    for name, value in given.items():
        assert as_text(setting_at(settings, name.removeprefix(PREFIX).lower().split("__"))) == value, name


@pytest.mark.parametrize("service", SERVICES)
def test_a_value_of_the_environment_goes_before_that_of_the_file(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = loaded(example_project(), service, monkeypatch)
    assert plain.weight_store == "/weights"
    assert plain.registry_url is None
    assert plain.storage.options == {}
    stored = loaded(filled(), service, monkeypatch)
    assert str(stored.registry_url) == "http://registry:8081"
    has_weights = stage_of(service) in ("generator", "trainer")
    assert stored.weight_store == ("s3://rollstream/weights" if has_weights else "/weights")
    # A key that a stage does not need, it does not get.
    assert ("secret_access_key" in stored.storage.options) is has_weights
    if stage_of(service) == "trainer":
        assert setting_at(plain, ["checkpoints"]) == "/checkpoints"
        assert setting_at(stored, ["checkpoints"]) == "s3://rollstream/checkpoints"


@pytest.mark.parametrize("service", SERVICES)
def test_a_misspelled_variable_would_be_refused(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_WEIGHT_STROE", "/elsewhere")
    with pytest.raises(ConfigurationError, match="ROLLSTREAM_WEIGHT_STROE"):
        settings_class(stage_of(service)).load(SETTINGS_FILE)


def test_a_one_shot_gets_only_variables_of_settings_that_all_stages_share() -> None:
    project = filled()
    for name in ("topics", "schemas"):
        given = [key for key in project.environment(name) if key.startswith(PREFIX)]
        assert "ROLLSTREAM_RUN" in given
        fields = {key.removeprefix(PREFIX).lower().split("__")[0] for key in given} - {"config"}
        assert fields <= StageSettings.model_fields.keys()


def test_the_settings_file_lies_where_the_containers_look_for_it() -> None:
    project = example_project()
    looking = [name for name in project.all_services if "ROLLSTREAM_CONFIG" in project.environment(name)]
    assert set(looking) == {*SERVICES, "topics", "schemas"}
    for name in {*looking} - {"schemas"}:  # it needs no file: the environment names the run
        source, _ = mounts(project.all_services[name])[project.environment(name)["ROLLSTREAM_CONFIG"]]
        assert ROOT / source == SETTINGS_FILE


def test_paths_of_the_settings_are_those_of_mounted_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    project = example_project()
    for service in ("generator", "trainer"):
        settings = loaded(project, service, monkeypatch)
        targets = mounts(project.all_services[service])
        named = [settings.weight_store, settings.storage.cache]
        named += [settings.model_path, settings.checkpoints] if service == "trainer" else [settings.engine.model_path]  # type: ignore[attr-defined]
        for path in named:
            assert any(Path(path).is_relative_to(target) for target in targets), path


def test_it_learns_what_the_demo_learns_with_the_same_figures(tmp_path: Path) -> None:
    """The demo's figures are measured; a second set of them would not be."""
    ours = tomllib.loads(SETTINGS_FILE.read_text())
    theirs = stage_settings(DemoOptions(run_dir=tmp_path), generators_start_with=tmp_path)
    assert int(example_variables()["ROLLSTREAM_NUM_STEPS"]) == theirs["trainer"].pop("num_steps")
    # Where things are.
    del ours["weight_store"], ours["storage"], ours["trainer"]["checkpoints"]
    del theirs["generator"]["engine"]["model_path"], theirs["trainer"]["model_path"], theirs["trainer"]["checkpoints"]
    assert ours == theirs
    words = " ".join(example_project().all_services["model"]["command"])
    for option in (f"environment {options.ENVIRONMENT}", f"until-accuracy {options.WARM_UP_ACCURACY}", "seed 0"):
        assert f"--{option} " in words


def test_secrets_are_in_environments_alone() -> None:
    project = filled()
    others = [{part: value for part, value in service.items() if part != "environment"}
              for service in project.all_services.values()]  # fmt: skip
    assert SECRET not in repr(others)
    holding = {name for name in project.all_services if SECRET in project.environment(name).values()}
    assert holding == {"generator", "generator-gpu", "ingest", "trainer", "trainer-gpu", "object-store"}


def test_the_bucket_of_the_locations_is_made_in_the_servers_volume() -> None:
    project = filled()
    bucket = project.all_services["bucket"]
    (directory,) = bucket["command"]
    assert bucket["entrypoint"] == ["mkdir", "--parents"]
    assert mounts(bucket)[str(Path(directory).parent)][0] == "objects"
    server = project.environment("object-store")["JCLOUDS_FILESYSTEM_BASEDIR"]
    assert mounts(project.all_services["object-store"])[server][0] == "objects"
    for name in ("ROLLSTREAM_WEIGHT_STORE", "ROLLSTREAM_CHECKPOINTS"):
        assert project.variables[name].split("/")[2] == Path(directory).name


def test_every_variable_of_the_file_is_in_the_example_and_the_reverse() -> None:
    assert set(variables_of(document())) == example_variables(with_optional=True).keys() - OF_COMPOSE


def test_without_the_example_nothing_starts_and_the_error_says_what_to_do() -> None:
    for name in example_variables().keys() - OF_COMPOSE:
        incomplete = {key: value for key, value in example_variables().items() if key != name}
        with pytest.raises(ValueError, match=rf"{name} is not set: .*\.env\.example"):
            _ = Project(incomplete).all_services


def test_the_example_holds_no_secret_and_explains_every_variable() -> None:
    values = example_variables(with_optional=True)
    assert [name for name in values if "SECRET" in name or "PASSWORD" in name] == [
        "ROLLSTREAM_STORAGE__OPTIONS__SECRET_ACCESS_KEY"
    ]
    assert values["ROLLSTREAM_STORAGE__OPTIONS__SECRET_ACCESS_KEY"] == ""
    for paragraph in ENV_EXAMPLE.read_text().strip().split("\n\n"):
        assert paragraph.startswith("# "), paragraph


def test_the_s3_server_is_the_one_that_the_stages_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    project = filled()
    server = project.environment("object-store")
    settings = loaded(project, "trainer", monkeypatch)
    told = {name: value.get_secret_value() for name, value in settings.storage.options.items()}
    port = server["S3PROXY_ENDPOINT"].rpartition(":")[2]
    assert told["endpoint"] == f"http://object-store:{port}"
    assert f"/{port}" in project.all_services["object-store"]["healthcheck"]["test"][-1]
    assert (told["access_key_id"], told["secret_access_key"]) == (
        server["S3PROXY_IDENTITY"],
        server["S3PROXY_CREDENTIAL"],
    )
    assert server["S3PROXY_AUTHORIZATION"] == "aws-v2-or-v4"
    assert settings.storage.allow_http


def test_the_registry_is_the_one_that_stages_and_registration_are_told_of() -> None:
    project = filled()
    url = project.variables["ROLLSTREAM_REGISTRY_URL"]
    assert url == f"http://registry:{project.environment('registry')['KARAPACE_PORT']}"
    assert project.all_services["schemas"]["command"] == ["schemas", "register", "--url", url]
    assert url.rpartition("/")[2].rpartition(":")[2] in project.all_services["registry"]["healthcheck"]["test"][-1]


def test_kafka_has_the_settings_of_the_local_broker_its_volume_and_one_copy_of_everything() -> None:
    given = example_project().environment("kafka")
    properties = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in given.items()
        if name.startswith("KAFKA_") and name != "KAFKA_HEAP_OPTS"
    }
    assert (
        FIXED.items() - {("listener.security.protocol.map", FIXED["listener.security.protocol.map"])}
        <= properties.items()
    )
    assert mounts(example_project().all_services["kafka"])[given["KAFKA_LOG_DIRS"]] == ("kafka", False)
    assert len(given["CLUSTER_ID"]) == 22
    assert len(base64.urlsafe_b64decode(given["CLUSTER_ID"] + "==")) == 16
    copies = {
        name: value for name, value in properties.items() if "replication.factor" in name or "isr" in name.split(".")
    }
    assert set(copies.values()) == {"1"}
    assert {
        "offsets.topic.replication.factor", "transaction.state.log.replication.factor", "transaction.state.log.min.isr",
        "share.coordinator.state.topic.replication.factor", "share.coordinator.state.topic.min.isr",
        "default.replication.factor",
    } <= copies.keys()  # fmt: skip


def test_kafka_is_reached_in_the_network_and_from_this_machine_at_what_it_tells_its_clients() -> None:
    project = example_project(KAFKA_PORT="19999")
    given = project.environment("kafka")
    told = dict(one.split("://") for one in given["KAFKA_ADVERTISED_LISTENERS"].split(","))
    bound = dict(one.split("://") for one in given["KAFKA_LISTENERS"].split(","))
    protocols = dict(one.split(":") for one in given["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert bound.keys() == protocols.keys()
    assert told.keys() | {given["KAFKA_CONTROLLER_LISTENER_NAMES"]} == bound.keys()
    inside = told[given["KAFKA_INTER_BROKER_LISTENER_NAME"]]
    assert inside == "kafka" + bound["PLAINTEXT"]
    for name in (*SERVICES, "topics"):
        assert project.environment(name)["ROLLSTREAM_KAFKA__BOOTSTRAP_SERVERS"] == inside
    assert project.environment("registry")["KARAPACE_BOOTSTRAP_URI"] == inside
    assert project.all_services["kafka"]["ports"] == [f"{told['PLAINTEXT_HOST']}{bound['PLAINTEXT_HOST']}"]
    assert given["KAFKA_CONTROLLER_QUORUM_VOTERS"] == f"{given['KAFKA_NODE_ID']}@kafka{bound['CONTROLLER']}"
    assert inside in project.all_services["kafka"]["healthcheck"]["test"]


def test_valkey_keeps_nothing_and_is_where_the_stages_look_for_it() -> None:
    project = example_project()
    words = project.all_services["valkey"]["command"]
    assert words[words.index("--save") + 1] == ""
    assert words[words.index("--appendonly") + 1] == "no"
    assert "volumes" not in project.all_services["valkey"]
    for name in SERVICES:
        assert project.environment(name)["ROLLSTREAM_REDIS_URL"].startswith("redis://valkey:6379/")


def test_no_other_service_than_ours_gets_a_variable_of_ours() -> None:
    project: Any = filled()
    for name, service in project.all_services.items():
        if not service["image"].startswith(OUR_IMAGE):
            ours = {key for key in project.environment(name) if key.startswith(PREFIX)}
            assert ours == ({"ROLLSTREAM_RUN"} if name == "prometheus" else set())

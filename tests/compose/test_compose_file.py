"""docker-compose.yml as a file: valid, pinned, contained. No engine for containers runs here."""

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rollstream.local.kafka_jars import LOCK
from tests.compose.compose_file import OUR_IMAGE, ROOT, Service, document, example_project, is_path, mounts

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EVERYTHING = example_project(with_optional=True)
# Carried by a package for linting, of which nothing else is used.
SCHEMA = "check_jsonschema/builtin_schemas/vendor/compose-spec.json"
NAMES = sorted(EVERYTHING.all_services)
_MEBIBYTES = {"m": 1, "g": 1024}


def errors(composed: dict[str, Any]) -> list[str]:
    """What the Compose specification's own schema says against it."""
    schema = json.loads(Path(str(distribution("check-jsonschema").locate_file(SCHEMA))).read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(composed)]


def services() -> Iterator[tuple[str, Service]]:
    yield from EVERYTHING.all_services.items()


def our_services() -> list[str]:
    return [name for name, service in services() if service["image"].startswith(OUR_IMAGE)]


def test_it_is_valid_by_the_schema_of_the_compose_specification_with_and_without_its_variables_filled_in() -> None:
    assert errors(document()) == []
    assert errors({**document(), "services": EVERYTHING.all_services}) == []


@pytest.mark.parametrize(
    ("path", "typo"),
    [
        (("kafka", "healthcheck"), "intervall"),
        (("kafka",), "stop_grace_periode"),
        (("trainer", "deploy", "resources", "limits"), "memroy"),
        (("topics", "depends_on", "kafka"), "conditon"),
        (("generator", "build"), "targets"),
    ],
)
def test_that_schema_refuses_a_misspelled_key(path: tuple[str, ...], typo: str) -> None:
    damaged = copy.deepcopy(document())
    place = damaged["services"]
    for name in path:
        place = place[name]
    place[typo] = next(iter(place.values()))
    assert any(typo in error for error in errors(damaged))


def test_every_image_has_a_whole_version_and_that_of_the_tests_and_dashboards() -> None:
    def locked(path: Any, artifact: str) -> str:
        return re.findall(rf'artifactId = "{artifact}"\nversion = "(.+)"', path.read_text())[0]

    images = {name: service["image"] for name, service in services()}
    pinned = re.compile(r"[a-z0-9./-]+:([a-z0-9]+-)?v?\d+\.\d+\.\d+(-\w+)?")
    assert {name: image for name, image in images.items() if not pinned.fullmatch(image)} == {}
    assert images["kafka"] == f"apache/kafka:{locked(LOCK, 'kafka_2.13')}"
    s3_lock = ROOT / "tests" / "harness" / "s3proxy.lock.toml"
    assert images["object-store"] == f"andrewgaul/s3proxy:s3proxy-{locked(s3_lock, 's3proxy')}"
    (sdk,) = [line for line in PROJECT["dependency-groups"]["dev"] if line.startswith("grafana-foundation-sdk")]
    assert images["grafana"].startswith(f"grafana/grafana:{re.findall(r'!([0-9]+[.][0-9]+)[.]', sdk)[0]}.")


def test_our_images_are_built_from_the_targets_of_the_dockerfile_and_carry_our_version() -> None:
    dockerfile = (ROOT / "services" / "Dockerfile").read_text()
    for name in our_services():
        service = EVERYTHING.all_services[name]
        assert (ROOT / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        target = service["build"]["target"]
        assert f" AS {target}\n" in dockerfile
        assert service["image"] == f"rollstream:{PROJECT['project']['version']}-{target}"
        assert target == ("cuda" if name.endswith("-gpu") else "cpu")


def test_no_container_has_a_fixed_name_and_none_is_privileged_or_shares_the_host() -> None:
    allowed = {
        "build", "cap_drop", "command", "depends_on", "deploy", "entrypoint", "environment", "healthcheck", "image",
        "init", "logging", "networks", "ports", "profiles", "read_only", "restart", "security_opt", "shm_size",
        "stop_grace_period", "tmpfs", "user", "volumes",
    }  # fmt: skip
    assert {name: sorted(s.keys() - allowed) for name, s in services() if s.keys() - allowed} == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_service_is_contained_and_has_bounds_for_memory_and_logs(name: str) -> None:
    service = EVERYTHING.all_services[name]
    assert (service["init"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(service["user"].split(":")[0]) > 0
    # Kafka's start script writes its settings beside its programs.
    assert service.get("read_only", False) is (name != "kafka")
    assert "stop_grace_period" in service
    amount, unit = re.fullmatch(r"(\d+)([mg])", service["deploy"]["resources"]["limits"]["memory"]).groups()  # type: ignore[union-attr]
    assert 64 <= int(amount) * _MEBIBYTES[unit] <= 8192
    options = service["logging"]["options"]
    assert service["logging"]["driver"] == "json-file"
    assert re.fullmatch(r"\d+m", options["max-size"])
    assert int(options["max-file"]) <= 5


def test_ports_are_on_the_loopback_interface_and_differ() -> None:
    # Of the two kinds of generators one runs, at the same port.
    published = [port for name, service in services() if name != "generator-gpu" for port in service.get("ports", ())]
    assert len(published) == 5
    assert EVERYTHING.all_services["generator-gpu"]["ports"] == EVERYTHING.all_services["generator"]["ports"]
    assert [port for port in published if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_what_is_mounted_from_here_can_only_be_read_and_volumes_are_written_by_whom_they_are_for() -> None:
    found = [(name, *mount) for name, service in services() for mount in mounts(service).values()]
    here = [(source, only_read) for _, source, only_read in found if is_path(source)]
    assert len(here) >= 10
    assert [source for source, only_read in here if not only_read or not (ROOT / source).exists()] == []
    assert {source for _, source, _ in found if not is_path(source)} == document()["volumes"].keys()
    written = [(name, source) for name, source, only_read in found if not only_read]
    writers = {(name, source) for name, source in written if source in ("weights", "checkpoints")}
    assert writers == {(name, source) for name in ("trainer", "trainer-gpu") for source in ("weights", "checkpoints")}


def test_our_containers_write_only_where_the_image_lets_its_user() -> None:
    dockerfile = (ROOT / "services" / "Dockerfile").read_text()
    (owned,) = re.findall(r"install --directory --owner=10001 --group=10001 (.+) *\\?", dockerfile)
    for name in our_services():
        service = EVERYTHING.all_services[name]
        assert service["user"] == "10001:10001"
        written = [target for target, (_, only_read) in mounts(service).items() if not only_read]
        assert set(written) <= set(owned.split()), name
        # Compiled models are loaded from there, which Docker's default forbids.
        assert [text for text in service["tmpfs"] if text.startswith("/tmp:") and "exec" in text.split(":")[1]]

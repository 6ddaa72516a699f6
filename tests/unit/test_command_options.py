"""The options of a command come from its model: names, meanings, bounds and defaults, and what is refused."""

from pathlib import Path
from typing import ClassVar, Literal, Self

import click
import pytest
from click.testing import CliRunner
from pydantic import Field, model_validator

from rollstream.archive import options as archive
from rollstream.cli.command_options import options_of
from rollstream.cli.main import cli
from rollstream.client import options as client
from rollstream.offline import options as offline
from rollstream.process.settings.keys import keys_of
from rollstream.process.settings.options import ARGUMENT, TIME, CommandOptions

GENERATE = ("generate-rollouts", "--model_path", "m", "--data_path", "d")
COLLECT = ("collect", "x", "--output", "o", "--model", "m")
SCORES = ("analyze-rewards", "--rollouts", "r")
DIFFICULTY = ("filter-difficulty", "--data_path", "d")
ARCHIVE = ("archive", "--output", "o")
EVALUATE = ("evaluate", "--config", "x.toml")
REPLAY = ("replay", "a", "--output", "o.jsonl")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((*COLLECT, "--num-samples", "1025"), ("'--num-samples'", "1<=x<=1024")),
        ((*COLLECT, "--num_samples", "0"), ("'--num-samples'", "1<=x<=1024")),
        ((*COLLECT, "--concurrency", "10001"), ("'--concurrency'", "1<=x<=10000")),
        ((*COLLECT, "--max-tokens", "1048577"), ("'--max-tokens'", "1<=x<=1048576")),
        ((*COLLECT, "--temperature", "0.001"), ("'--temperature'", "0.01")),
        ((*COLLECT, "--temperature", "nan"), ("'--temperature'", "finite")),
        ((*COLLECT, "--top-p", "0"), ("'--top-p'", "0<x<=1")),
        ((*COLLECT, "--split", "test"), ("'--split'", "'train', 'validate', 'evaluate'")),
        ((*COLLECT, "--deadline", "inf"), ("'--deadline'", "finite")),
        ((*COLLECT, "--every", "soon"), ("'--every'", "90s, 30m, 6h or 2d")),
        ((*COLLECT, "--every", "366d"), ("'--every'", "1s to 365d")),
        ((*COLLECT, "--seed", "9" * 20), ("'--seed'", "0<=x<=2147483647")),
        ((*COLLECT, "--config", "."), ("'--config'", "directory")),
        ((*COLLECT, "--health-port", "0"), ("--health-port", "--every")),
        ((*COLLECT, "--max-attempts", "255"), ("'--max-attempts'", "1<=x<=254")),
        ((*COLLECT, "--fail_over", "2"), ("'--fail-over'", "0<=x<=1")),
        (COLLECT[:4], ("--model", "--url", "--config")),
        ((*COLLECT[:4], "--url", "http://x"), ("--url", "--model")),
        (COLLECT[:2], ("Missing", "'--output'")),
        (("collect",), ("Missing", "'SOURCE'")),
        (GENERATE[:3], ("Missing", "'--data_path'")),
        ((*GENERATE, "--num_samples", "2000"), ("'--num_samples'", "1<=x<=1024")),
        ((*GENERATE, "--temperature", "101"), ("'--temperature'", "0<=x<=100")),
        ((*GENERATE, "--vllm_max_concurrent", "0"), ("'--vllm_max_concurrent'", "1<=x<=10000")),
        ((*GENERATE, "--output-format", "csv"), ("'--output_format'", "'parquet', 'jsonl'")),
        (("word-count-rollouts", "--num-examples", "0"), ("'--num-examples'", "1<=x<=1000000")),
        (("word-count-rollouts", "--temperature", "0.005"), ("'--temperature'", "0.01")),
        ((*SCORES, "--reward_fn", "mine"), ("'--reward_fn'", "'auto', 'ifeval', 'math', 'custom'")),
        ((*SCORES, "--pass_threshold", "2e9"), ("'--pass_threshold'", "1000000000")),
        ((*SCORES, "--num_processes", "65"), ("'--num_processes'", "1<=x<=64")),
        ((*SCORES, "--sample-seconds", "0"), ("'--sample_seconds'", "x>0")),
        ((*DIFFICULTY, "--bucketing_strategy", "by_luck"), ("'--bucketing_strategy'", "'pass_rate'")),
        ((*DIFFICULTY, "--percentiles", "1", "2", "nan"), ("'--percentiles'", "finite")),
        ((*DIFFICULTY, "--percentiles", "75", "50", "25"), ("'--percentiles'", "0 to 100, ascending")),
        ((*DIFFICULTY, "--pass_rate_thresholds", "20", "50", "80"), ("'--pass_rate_thresholds'", "100, descending")),
        ((*DIFFICULTY, "--mean_reward_thresholds", "0.5", "0.5", "0.25"), ("'--mean_reward_thresholds'", "different")),
        ((*DIFFICULTY, "--mean_reward_thresholds", "75", "50", "25"), ("'--mean_reward_thresholds'", "0 to 1")),
        ((*DIFFICULTY, "--min_samples", "0"), ("'--min_samples'", "1<=x<=2147483647")),
        (("compare-rollouts", "/nowhere", "/nowhere"), ("'BEFORE'", "/nowhere", "does not exist")),
        (("compare-rollouts", ".", ".", "--by", "id"), ("'--by'", "'example_id'")),
        (("verifiers", "export", "/nowhere"), ("'ROLLOUTS'", "does not exist")),
        (("verifiers", "export-sft", ".", "o", "--layout", "x"), ("'--layout'", "'prompt-completion', 'messages'")),
        (("verifiers", "export-sft", ".", "o", "--min-reward", "nan"), ("'--min-reward'", "finite")),
        (("archive",), ("Missing", "'--output'")),
        (("archive", "--output", "ftp://user:secret@x"), ("'--output'", "s3://")),
        ((*ARCHIVE, "--every", "nan"), ("'--every'", "finite")),
        ((*ARCHIVE, "--every", "0.5"), ("'--every'", "1<=x<=86400")),
        (("replay", "a"), ("Missing", "'--output'")),
        (("replay", "s3://user:secret@x", "--output", "o.jsonl"), ("'DIRECTORY'", "s3://bucket/prefix")),
        (("replay", "a", "--output", "o.csv"), ("'--output'", ".jsonl or .parquet")),
        ((*REPLAY, "--min-reward", "2e9"), ("'--min-reward'", "1000000000")),
        ((*REPLAY, "--processes", "0"), ("'--processes'", "1<=x<=2147483647")),
        ((*REPLAY, "--config", "."), ("'--config'", "directory")),
        (("sft", "--output", "o"), ("--model", "--tiny-model")),
        (("sft", "--output", "o", "--tiny-model"), ("--environment", "--rollouts")),
        (("sft", "--output", "o", "--threads", "9" * 20), ("'--threads'", "1<=x<=4096")),
        (("prompt", "x", "--timeout", "nan"), ("'--timeout'", "finite")),
        (("prompt", "x", "--timeout", "inf"), ("'--timeout'", "finite")),
        (("prompt", "x", "--max-tokens", "9" * 20), ("'--max-tokens'", "1<=x<=2147483647")),
        (("prompt", "text \udcff"), ("not UTF-8",)),
        (("evaluate", "--deadline", "nan"), ("'--deadline'", "finite")),
        (("evaluate", "--samples", "257"), ("'--samples'", "1<=x<=256")),
        (("evaluate", "--samples", "8", "--temperature", "0"), ("'--temperature'", "0.01")),
        ((*EVALUATE, "--follow"), ("--follow", "--output")),
        ((*EVALUATE, "--follow", "--output", "o", "--version", "3"), ("--follow", "--version")),
        ((*EVALUATE, "--output", "o"), ("--output", "--follow")),
        ((*EVALUATE, "--health-port", "0"), ("--health-port", "--follow")),
        (("evaluate", "--num-prompts", "9" * 20), ("'--num-prompts'", "1<=x<=2147483647")),
        (("demo", "--learning-rate", "nan"), ("'--learning-rate'", "finite")),
        (("demo", "--seed", "9" * 20), ("'--seed'", "x<=")),
        (("tail", "prompts", "-n", "9" * 5000), ("'-n'",)),
        (("tail", "\udcff"), ("not UTF-8",)),
        (("status", "--config", "\udcff.toml"), ("not UTF-8",)),
    ],
    ids=lambda value: " ".join(value)[:60].encode("ascii", "backslashreplace").decode(),
)
def test_a_value_that_nothing_could_hold_is_refused_with_the_option_and_its_bound(
    words: tuple[str, ...], named: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(cli, words)
    assert said.exit_code == 2, said.output
    assert [word for word in named if word not in said.output] == [], said.output
    assert "secret" not in said.output
    assert not list(tmp_path.iterdir())


class Options(CommandOptions):
    """Every kind of option."""

    separator: ClassVar[Literal["-", "_"]] = "_"

    source: Path = Field(json_schema_extra=ARGUMENT, description="Where from.")
    how_many: int = Field(default=3, ge=1, le=9, description="So many.")
    seed: int = Field(default=0, ge=0, description="Of chance.")
    pair: tuple[float, float] = Field(default=(0.5, 1.0), description="Two numbers.")
    period: float = Field(default=7200.0, json_schema_extra=TIME, description="So often.")
    words: tuple[str, ...] = Field(default=(), description="May be repeated.")
    address: str = Field(default="here", json_schema_extra={"variable": "AN_ADDRESS"}, description="Where to.")
    is_quick: bool = Field(default=False, json_schema_extra={"opposite": "slow"}, description="Faster.")

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.is_quick and self.how_many > 5:
            raise ValueError("--is_quick goes with at most 5 of --how_many")
        return self


@click.command()
@options_of(Options)
def command(options: Options) -> None:
    """Print what it was told."""
    click.echo(repr(options))


def test_a_field_is_an_option_and_nothing_else_is_needed() -> None:
    shown = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    for said in (
        "--how_many INTEGER RANGE So many. [default: 3; 1<=x<=9]",
        "--seed INTEGER RANGE Of chance. [default: 0; 0<=x<=2147483647]",
        "[default: 0.5, 1.0]",
        "--period TIME So often. [default: 2h]",
        "Where to. [env var: AN_ADDRESS; default: here]",
        "--is_quick / --slow Faster.",
    ):
        assert said in shown
    usual = Options(source=Path("a"))
    assert CliRunner().invoke(command, ["a"]).output == f"{usual!r}\n"
    words = "b --how_many 5 --pair 1 2 --period 90s --words x --words y --is_quick"
    told = Options(
        source=Path("b"), how_many=5, pair=(1.0, 2.0), period=90.0, words=("x", "y"), address="there", is_quick=True
    )
    assert CliRunner(env={"AN_ADDRESS": "there"}).invoke(command, words).output == f"{told!r}\n"
    refused = CliRunner().invoke(command, ["a", "--is_quick", "--how_many", "6"])
    assert (refused.exit_code, "at most 5 of --how_many" in refused.output) == (2, True)


def test_every_option_of_an_offline_command_says_what_it_means() -> None:
    models = [
        found
        for found in (*vars(offline).values(), *vars(archive).values(), *vars(client).values())
        if isinstance(found, type) and issubclass(found, CommandOptions)
    ]
    assert len(models) > 10
    assert [(model.__name__, key.path) for model in models for key in keys_of(model) if not key.meaning] == []

"""`analyze-rewards` that was stopped goes on: row P9 of the formats."""

import json
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from rollstream.cli.analyze_rewards import command
from rollstream.offline.options import ScoresOptions
from rollstream.offline.scores.request import scores_request
from rollstream.offline.scores.run import score_rollouts
from rollstream.schemas.errors import ConfigurationError
from tests.harness.collecting import noted_samples
from tests.harness.forking import run_words, start_forked
from tests.harness.scoring import a_row, analyzed, put_own_rewards, scored, written
from tests.harness.waits import wait_until

BATCH_ROWS = 64
"""So many rows one process scores before they are noted."""


@pytest.fixture
def own_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with reward functions of a user's own; its name."""
    return put_own_rewards(tmp_path / "code", monkeypatch)


def calls(folder: Path) -> list[str]:
    """The responses for which `counted` was called, in all processes so far."""
    path = folder / "code" / "calls"
    return path.read_text().splitlines() if path.exists() else []


def stopped(rollouts: Path, num_batches: int, *words: str) -> None:
    """A run that Ctrl-C ends after so many batches of 64 rows."""
    remaining = iter(range(num_batches - 1))

    def on_rows(number: int) -> None:
        if next(remaining, None) is None:
            raise KeyboardInterrupt

    with command.make_context("analyze-rewards", ["--rollouts", str(rollouts), "--num_processes", "1", *words]) as made:
        options = {name: value for name, value in made.params.items() if name != "as_json"}
    with pytest.raises(KeyboardInterrupt):
        score_rollouts(scores_request(ScoresOptions(**options)), on_rows)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_run_that_was_stopped_goes_on_and_the_output_is_as_if_it_had_not_been(
    suffix: str, tmp_path: Path, own_rewards: str
) -> None:
    rows = [a_row(None if number % 7 == 3 else f"answer {number}", number) for number in range(300)]
    rollouts, output = written(tmp_path / f"rollouts{suffix}", rows), tmp_path / f"rollouts_with_rewards{suffix}"
    words = ("--reward_fn", "custom", f"{own_rewards}.counted")
    scored(rollouts, "--reward_fn", "custom", f"{own_rewards}.brevity", "--name", "earlier")
    scored(rollouts, *words)
    uninterrupted = output.read_bytes()
    (tmp_path / "code" / "calls").unlink()
    stopped(rollouts, 2, *words)
    assert output.read_bytes() == uninterrupted
    report = json.loads(analyzed(rollouts, *words, "--json").stdout)
    # Of 128 rows 18 have no response, and nothing was called for them.
    assert (report["num_rows"], report["num_resumed"], report["num_scored"]) == (300, 128, 257)
    assert report["unscored"]["not_completed"]["count"] == 43
    assert sorted(calls(tmp_path)) == sorted(row["response"] for row in rows if row["response"])
    assert output.read_bytes() == uninterrupted
    assert not list(tmp_path.glob("*_progress.sqlite"))


def test_one_that_was_stopped_does_not_go_on_with_other_options_or_other_rollouts(
    tmp_path: Path, own_rewards: str
) -> None:
    rollouts = written(tmp_path / "rollouts.jsonl", [a_row("a", number) for number in range(100)])
    path = f"{own_rewards}.counted"
    stopped(rollouts, 1, "--reward_fn", "custom", path)
    for other in (
        ("--reward_fn", "custom", f"{own_rewards}.brevity"),
        ("--reward_fn", "custom", path, "--name", "other"),
        ("--reward_fn", "custom", path, "--data_source", "mine"),
        ("--reward_fn", "custom", path, "--sample_seconds", "2"),
    ):
        with pytest.raises(ConfigurationError, match=r"_progress\.sqlite to score all rows anew"):
            analyzed(rollouts, *other)
    written(rollouts, [a_row("b", number) for number in range(100)])
    with pytest.raises(ConfigurationError, match=r"begun with input = .rollouts\.jsonl@"):
        analyzed(rollouts, "--reward_fn", "custom", path)
    (tmp_path / "rollouts_with_rewards.jsonl_progress.sqlite").unlink()
    scored(rollouts, "--reward_fn", "custom", path)
    assert calls(tmp_path) == ["a"] * 64 + ["b"] * 100


def test_ctrl_c_says_in_one_line_that_the_same_command_goes_on(tmp_path: Path, own_rewards: str) -> None:
    orders = ["fine"] * BATCH_ROWS + ["hang"] * 9
    rollouts = written(tmp_path / "rollouts.jsonl", [a_row(order, number) for number, order in enumerate(orders)])
    # A row that hangs is waited for: Ctrl-C of a terminal would reach the scoring process too.
    words = ("--num_processes", "1", "--sample_seconds", "2", "--reward_fn", "custom", f"{own_rewards}.unruly")
    running = start_forked(
        partial(run_script, tmp_path / "code", "--rollouts", str(rollouts), *words), log=tmp_path / "log"
    )
    progress = tmp_path / "rollouts_with_rewards.jsonl_progress.sqlite"
    wait_until(lambda: noted_samples(progress), "the first batch")
    running.signal(signal.SIGINT)
    assert running.wait() == 130
    assert running.said().splitlines() == [
        f"stopped: what was scored is in {progress.name}; the same command goes on from there"
    ]
    assert len(noted_samples(progress)) == BATCH_ROWS


def test_a_threshold_may_be_another_one_when_it_goes_on(tmp_path: Path, own_rewards: str) -> None:
    rollouts = written(tmp_path / "rollouts.jsonl", [a_row("x" * (number % 4), number) for number in range(100)])
    words = ("--reward_fn", "custom", f"{own_rewards}.brevity", "--pass_threshold")
    stopped(rollouts, 1, *words, "-1")
    assert [row["passed"] for row in scored(rollouts, *words, "-2")] == [True, True, True, False] * 25


def test_rollouts_that_change_while_they_are_scored_get_no_rewards(tmp_path: Path, own_rewards: str) -> None:
    rollouts = written(tmp_path / "rollouts.jsonl", [a_row(f"answer {number}", number) for number in range(100)])
    function = {"reward_fn": "custom", "path": f"{own_rewards}.brevity"}
    request = scores_request(ScoresOptions(rollouts=rollouts, num_processes=1, **function))
    with pytest.raises(ConfigurationError, match="changed while it was scored, so nothing is written"):
        score_rollouts(request, lambda number: rollouts.write_text(rollouts.read_text().replace("answer", "ANSWER")))
    assert not (tmp_path / "rollouts_with_rewards.jsonl").exists()


def run_script(code: Path, *words: str) -> None:
    """Be `rollstream analyze-rewards`, as people start it, in a process of its own."""
    sys.path.insert(0, str(code))
    run_words("analyze-rewards", *words)

"""`analyze-rewards` on real files and real scoring processes: rows P6, P7, P12 and P13 of the formats."""

import hashlib
import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from rollstream.cli.analyze_rewards import command
from rollstream.collect.files.row_files import write_rows
from rollstream.collect.places import Places
from rollstream.collect.scores.request import scores_request
from rollstream.collect.scores.run import score_rollouts
from rollstream.schemas.errors import ConfigurationError
from tests.harness.collecting import has_come_far
from tests.harness.forking import start_forked
from tests.harness.processes import StartedProcess
from tests.harness.waits import wait_until

OWN = '''
import os, signal, time

def brevity(sample):
    """As a reward of this project: of the whole sample."""
    return -len(sample.completion)

def as_verl(data_source, solution_str, ground_truth, extra_info=None):
    """As verl calls one."""
    return {"score": float(ground_truth in solution_str), "split": extra_info["split"]}

def unruly(sample):
    """What the response orders."""
    match sample.completion:
        case "hang": time.sleep(3600)
        case "die": os.kill(os.getpid(), signal.SIGKILL)
        case "raise": raise ValueError("as ordered")
        case "nan": return float("nan")
    return 1.0

def counted(sample):
    """The number in the response. Notes each call."""
    with open(os.path.join(os.path.dirname(__file__), "calls"), "a") as stream:
        stream.write(f"{sample.completion}\\n")
    return sum(int(word) for word in sample.completion.split()[1:])

number = 5
'''
BATCH_ROWS = 64
"""So many rows one process scores before they are in the journal."""


@pytest.fixture
def own_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with reward functions of a user's own, which Python finds; its name."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "own_rewards.py").write_text(OWN)
    monkeypatch.syspath_prepend(folder)
    return "own_rewards"


def a_row(response: str | None = "a", data_idx: int = 0, sample_idx: int = 0, **fields: Any) -> dict[str, Any]:
    """A row as generate-rollouts writes it."""
    return {
        "prompt": f"question {data_idx}", "response": response, "sample_idx": sample_idx, "data_idx": data_idx,
        "temperature": 0.7, "top_p": 0.9, "max_tokens": 512,
        "status": "unresolved" if response is None else "completed",
        "failure": "engine: connection refused" if response is None else None, **fields,
    }  # fmt: skip


def written(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    with write_rows(path, "jsonl" if path.suffix == ".jsonl" else "parquet") as writer:
        for row in rows:
            writer.write(row)
    return path


def analyzed(rollouts: Path, *words: str) -> Result:
    result = CliRunner().invoke(command, ["--rollouts", str(rollouts), "--num_processes", "1", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def scored(rollouts: Path, *words: str) -> list[dict[str, Any]]:
    """The rows of the output; nulls are None."""
    result = analyzed(rollouts, *words)
    assert result.exit_code == 0, result.output
    return output_rows(rollouts)


def output_rows(rollouts: Path) -> list[dict[str, Any]]:
    output = rollouts.with_name(f"rollouts_with_rewards{rollouts.suffix}")
    if output.suffix == ".jsonl":
        return [json.loads(line) for line in output.read_text().splitlines()]
    found: list[dict[str, Any]] = json.loads(pd.read_parquet(output).to_json(orient="records"))
    return found


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_scoring_twice_keeps_both_rewards_and_never_touches_the_rollouts(
    suffix: str, tmp_path: Path, own_rewards: str
) -> None:
    row = partial(a_row, original_ground_truth="4", original_extra_info={"split": "train"})
    rows = [row("4", 0), row("5", 0, 1), row("it is 4", 1), row(None, 1, 1)]
    rollouts = written(tmp_path / f"rollouts{suffix}", rows)
    before = sha256(rollouts)
    first = scored(rollouts, "--reward_fn", "custom", f"{own_rewards}.as_verl", "--name", "verl")
    assert [found["reward"] for found in first] == [1.0, 0.0, 1.0, None]
    second = scored(rollouts, "--reward_fn", "custom", f"{own_rewards}.brevity")
    assert [found["reward"] for found in second] == [-1.0, -1.0, -7.0, None]
    assert [found["reward_custom"] for found in second] == [-1.0, -1.0, -7.0, None]
    assert [found["reward_verl"] for found in second] == [1.0, 0.0, 1.0, None]
    assert [{name: found[name] for name in rows[0]} for found in second] == rows
    assert sha256(rollouts) == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        f"rollouts{suffix}", f"rollouts_with_rewards{suffix}"
    ]  # fmt: skip


def test_rewards_are_carried_over_only_to_rows_that_are_still_the_same(tmp_path: Path, own_rewards: str) -> None:
    path = f"{own_rewards}.brevity"
    rollouts = written(tmp_path / "rollouts.jsonl", [a_row("a"), a_row(None, 1), a_row("ccc", 2)])
    scored(rollouts, "--reward_fn", "custom", path, "--name", "first")
    written(rollouts, [a_row("a"), a_row("bb", 1), a_row("another", 2), a_row("dddd", 3)])
    result = analyzed(rollouts, "--reward_fn", "custom", path, "--name", "second")
    assert [row.get("reward_first") for row in output_rows(rollouts)] == [-1.0, None, None, None]
    assert [row["reward_second"] for row in output_rows(rollouts)] == [-1.0, -2.0, -7.0, -4.0]
    assert "2 rows changed since an earlier run" in result.output


def test_a_row_that_cannot_be_scored_is_null_with_its_reason_and_never_0(tmp_path: Path, own_rewards: str) -> None:
    orders = ["fine", "raise", "hang", "nan", "die", "fine"]
    rows = [a_row(order, index) for index, order in enumerate(orders)]
    foreign = {"prompt": "p", "response": ""}
    rollouts = written(tmp_path / "rollouts.jsonl", [*rows, a_row(None, 6), foreign, {"prompt": "p", "response": 7}])
    with rollouts.open("a") as stream:
        stream.write('{"prompt": "torn, "respon\n')
    result = analyzed(rollouts, "--reward_fn", "custom", f"{own_rewards}.unruly", "--sample_seconds", "1", "--json")
    found = output_rows(rollouts)
    assert [row["reward"] for row in found] == [1.0, None, None, None, None, 1.0, None, None, None]
    assert [None if row["reward_failure"] is None else row["reward_failure"].partition(":")[0] for row in found] == [
        None, "bad_reward", "timeout", "bad_reward", "crash", None, "not_completed", "empty_response", "bad_response",
    ]  # fmt: skip
    assert found[6]["reward_failure"] == "not_completed: the rollout is unresolved: engine: connection refused"
    report = json.loads(result.stdout)
    assert (report["num_rows"], report["num_scored"]) == (10, 2)
    assert {reason: told["count"] for reason, told in report["unscored"].items()} == {
        "bad_reward": 2, "timeout": 1, "crash": 1, "not_completed": 1, "empty_response": 1, "bad_response": 1
    }  # fmt: skip
    assert report["rows_left_out"]["unreadable"]["count"] == 1
    assert report["by_source"][""]["mean"] == 1.0


def test_each_row_is_scored_by_its_data_source_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    verl = partial(a_row, original_reward_model={"style": "rule", "ground_truth": "72"})
    rows = [
        verl("So it is\n#### 72", 0, original_data_source="openai/gsm8k"),
        verl("So it is\n#### 71", 0, 1, original_data_source="openai/gsm8k"),
        verl("Answer: 72", 1, original_data_source="math_dapo"),
        verl("Answer: 71", 1, 1, original_data_source="math_dapo"),
        verl("72", 2, original_data_source="nobody/knows"),
        verl("72", 3, original_data_source=None),
    ]
    rollouts = written(tmp_path / "rollouts.parquet", rows)
    found = scored(rollouts)
    assert [row["reward"] for row in found] == [1.0, 0.0, 1.0, -1.0, None, None]
    assert [row["reward_auto"] for row in found] == [1.0, 0.0, 1.0, -1.0, None, None]
    assert [row["reward_normalized"] for row in found] == [1.0, 0.0, 1.0, 0.0, None, None]
    assert [row["passed"] for row in found] == [True, False, True, False, None, None]
    assert found[4]["reward_failure"].startswith(
        "unknown_source: no reward is known for the data source 'nobody/knows'"
    )
    assert found[5]["reward_failure"].startswith("no_source: the row has no column original_data_source")
    report = json.loads(analyzed(rollouts, "--json").stdout)
    assert report["by_source"]["math_dapo"] == {
        "num_scored": 2, "num_unscored": 0, "mean": 0.0, "std": 1.0, "min": -1.0, "max": 1.0, "pass_rate": 0.5
    }  # fmt: skip


def test_the_three_commands_of_the_document_score_or_say_what_to_add(tmp_path: Path) -> None:
    rows = [
        a_row("\\boxed{\\frac{1}{2}}", 0, original_ground_truth="0.5"),
        a_row(
            "no commas here", 1, original_instruction_id_list=["punctuation:no_comma"], original_kwargs=[{}],
            original_key=1000,
        ),
    ]  # fmt: skip
    rollouts = written(tmp_path / "rollouts.parquet", rows)
    assert [row["reward"] for row in scored(rollouts, "--reward_fn", "ifeval")] == [None, 1.0]
    found = scored(rollouts, "--reward_fn", "math")
    assert [row["reward_math"] for row in found] == [1.0, None]
    assert [row["reward_ifeval"] for row in found] == [None, 1.0]
    assert [row["passed"] for row in found] == [True, None]
    with pytest.raises(ConfigurationError, match=r"--reward_fn custom package\.module\.function"):
        analyzed(rollouts, "--reward_fn", "custom")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no_such_module.f", "there is no such function"),
        ("own_rewards.missing", "there is no such function"),
        ("own_rewards.number", "it is a int, not a function"),
        ("math.hypot", "its parameters are not known"),
    ],
)
def test_a_function_that_cannot_be_loaded_ends_the_command_without_an_output(
    path: str, why: str, tmp_path: Path, own_rewards: str
) -> None:
    rollouts = written(tmp_path / "rollouts.jsonl", [a_row("a")])
    with pytest.raises(ConfigurationError, match=why):
        analyzed(rollouts, "--reward_fn", "custom", path)
    assert not (tmp_path / "rollouts_with_rewards.jsonl").exists()


def test_a_file_of_which_no_row_is_scored_is_written_and_the_command_fails(tmp_path: Path) -> None:
    rollouts = written(tmp_path / "rollouts.jsonl", [a_row(None), a_row("a", original_data_source="mine")])
    with pytest.raises(ConfigurationError, match="none of 2 rows was scored"):
        analyzed(rollouts)
    assert [row["reward"] for row in output_rows(rollouts)] == [None, None]


SNIPPET = """
import pandas as pd
from rollstream.environments.rewards.registry import default_compute_score

# Load rollouts
df = pd.read_parquet("rollouts.parquet")

# Calculate rewards
rewards = []
for _, row in df.iterrows():
    reward = default_compute_score(
        data_source=row["original_data_source"],
        solution=row["response"],
        ground_truth=row["original_ground_truth"],
    )
    rewards.append(reward["score"])

df["reward"] = rewards

# Now you have rollouts + rewards!
df.to_parquet("rollouts_with_rewards.parquet")
"""
GROUPED = """
import pandas as pd
df = pd.read_parquet("{name}")
print(df.head())
for prompt, group in df.groupby("data_idx"):
    print(f"\\nPrompt {{prompt}}:")
    print(group[["sample_idx", "response"]])
"""
LINES = """
import json
with open("rollouts_with_rewards.jsonl") as f:
    rollouts = [json.loads(line) for line in f]
print(rollouts[0])
"""


def test_the_documents_snippets_run_on_our_files_and_agree_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        a_row(f"#### {sample}", data_idx, sample, original_data_source="openai/gsm8k", original_ground_truth="1")
        for data_idx in range(3)
        for sample in range(2)
    ]
    ours = [row["reward"] for row in scored(written(tmp_path / "rollouts.parquet", rows))]
    scored(written(tmp_path / "rollouts.jsonl", rows))
    monkeypatch.chdir(tmp_path)
    exec(GROUPED.format(name="rollouts_with_rewards.parquet"), {})
    exec(LINES, {})
    as_jsonl = output_rows(tmp_path / "rollouts.jsonl")
    assert as_jsonl == output_rows(tmp_path / "rollouts.parquet")
    exec(SNIPPET, {})
    assert pd.read_parquet("rollouts_with_rewards.parquet")["reward"].tolist() == ours == [0.0, 1.0] * 3


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
        options = {name: value for name, value in made.params.items() if name not in ("rollouts", "as_json")}
    with pytest.raises(KeyboardInterrupt):
        score_rollouts(scores_request(rollouts, **options), on_rows)


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
    assert not list(tmp_path.glob("*_journal.jsonl"))


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
        with pytest.raises(ConfigurationError, match="remove that file to score all rows anew"):
            analyzed(rollouts, *other)
    written(rollouts, [a_row("b", number) for number in range(100)])
    with pytest.raises(ConfigurationError, match=r"begun with rollouts = rollouts\.jsonl@"):
        analyzed(rollouts, "--reward_fn", "custom", path)
    (tmp_path / "rollouts_with_rewards.jsonl_journal.jsonl").unlink()
    scored(rollouts, "--reward_fn", "custom", path)
    assert calls(tmp_path) == ["a"] * 64 + ["b"] * 100


def test_a_threshold_may_be_another_one_when_it_goes_on(tmp_path: Path, own_rewards: str) -> None:
    rollouts = written(tmp_path / "rollouts.jsonl", [a_row("x" * (number % 4), number) for number in range(100)])
    words = ("--reward_fn", "custom", f"{own_rewards}.brevity", "--pass_threshold")
    stopped(rollouts, 1, *words, "-1")
    assert [row["passed"] for row in scored(rollouts, *words, "-2")] == [True, True, True, False] * 25


def test_two_runs_never_write_the_same_output(tmp_path: Path, own_rewards: str) -> None:
    rollouts, words = written(tmp_path / "rollouts.jsonl", [a_row("a")]), ("--reward_fn", "custom")
    other = Places(tmp_path / "rollouts_with_rewards.jsonl")
    with other.locked(), pytest.raises(ConfigurationError, match="another process"):
        analyzed(rollouts, *words, f"{own_rewards}.brevity")
    assert [row["reward"] for row in scored(rollouts, *words, f"{own_rewards}.brevity")] == [-1.0]


def test_rollouts_that_change_while_they_are_scored_get_no_rewards(tmp_path: Path, own_rewards: str) -> None:
    rollouts = written(tmp_path / "rollouts.jsonl", [a_row(f"answer {number}", number) for number in range(100)])
    request = scores_request(
        rollouts, None, reward_fn="custom", path=f"{own_rewards}.brevity", name=None, sandbox_url=None,
        num_processes=1, sample_seconds=None,
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="changed while it was scored, so nothing is written"):
        score_rollouts(request, lambda number: rollouts.write_text(rollouts.read_text().replace("answer", "ANSWER")))
    assert not (tmp_path / "rollouts_with_rewards.jsonl").exists()


@pytest.mark.parametrize(
    ("suffix", "num_kills"),
    [
        (".parquet", 5),
        pytest.param(".parquet", 20, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        pytest.param(".jsonl", 20, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_wherever_it_is_killed_no_row_is_lost_and_at_most_one_batch_is_scored_again(
    tmp_path: Path, own_rewards: str, suffix: str, num_kills: int
) -> None:
    rows = [a_row(f"answer {index:04}", index // 4, index % 4) for index in range(1500)]
    rollouts, output = written(tmp_path / f"rollouts{suffix}", rows), tmp_path / f"rollouts_with_rewards{suffix}"
    before, chooser = sha256(rollouts), random.Random(11)
    words = ("--reward_fn", "custom", f"{own_rewards}.counted")
    line = ("--rollouts", str(rollouts), "--num_processes", "1", *words)
    # A third of the kills come when all is scored, while the output is written.
    points = sorted(chooser.randint(1, len(rows) * 3 // 2) for _ in range(num_kills))
    num_killed = 0
    for point in points:
        running = start_forked(partial(run, tmp_path / "code", *line), log=tmp_path / "log")
        wait_until(partial(has_scored, tmp_path, min(point, len(rows)), running), "scores", every_seconds=0.002)
        if point > len(rows):
            wait_until(partial(has_come_far, tmp_path, chooser.randint(1, 4), running), "work", every_seconds=0.002)
        running.kill()
        if output.exists():
            # It was whole before it could be killed: one more run would score all anew.
            break
        num_killed += 1
        assert len(set(calls(tmp_path))) - num_journaled(output) <= BATCH_ROWS
    assert num_killed >= num_kills // 2
    if not output.exists() or num_journaled(output):
        ended(start_forked(partial(run, tmp_path / "code", *line), log=tmp_path / "log"))
    assert [(row["data_idx"], row["sample_idx"], row["reward"]) for row in output_rows(rollouts)] == [
        (index // 4, index % 4, float(index)) for index in range(len(rows))
    ]
    assert set(calls(tmp_path)) == {row["response"] for row in rows}
    assert len(calls(tmp_path)) - len(rows) <= BATCH_ROWS * num_killed
    assert sha256(rollouts) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["code", "log", rollouts.name, output.name])


def has_scored(folder: Path, num_rows: int, running: StartedProcess) -> bool:
    return running.has_ended or len(calls(folder)) >= num_rows


def num_journaled(output: Path) -> int:
    journal = output.with_name(f"{output.name}_journal.jsonl")
    return max(journal.read_bytes().count(b"\n") - 1, 0) if journal.exists() else 0


def run(code: Path, *words: str) -> None:
    """Be the command in a process of its own."""
    import sys

    sys.path.insert(0, str(code))
    command(list(words))


def ended(process: StartedProcess) -> None:
    assert process.wait() == 0, process.said()

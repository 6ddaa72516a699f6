"""`analyze-rewards` on real files and real scoring processes: rows P6, P7, P12 and P13 of the formats."""

import json
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from rollstream.schemas.errors import ConfigurationError
from tests.harness.scoring import a_row, analyzed, output_rows, put_own_rewards, scored, sha256, written


@pytest.fixture
def own_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with reward functions of a user's own; its name."""
    return put_own_rewards(tmp_path / "code", monkeypatch)


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

"""`analyze-rewards` on real files and real scoring processes: rows P6, P7, P12 and P13 of the formats."""

import json
from collections.abc import Callable
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


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_if_no_row_is_scored_the_output_stays_as_it_was(suffix: str, tmp_path: Path, own_rewards: str) -> None:
    rollouts = written(tmp_path / f"rollouts{suffix}", [a_row(None), a_row("a", original_data_source="mine")])
    output = tmp_path / f"rollouts_with_rewards{suffix}"
    with pytest.raises(ConfigurationError, match=rf"none of 2 rows was scored, so {output} was not written"):
        analyzed(rollouts)
    assert not output.exists()
    scored(rollouts, "--reward_fn", "custom", f"{own_rewards}.brevity")
    before = output.read_bytes()
    with pytest.raises(ConfigurationError, match=rf"none of 2 rows was scored, so {output} stays as it was"):
        analyzed(rollouts, "--reward_fn", "ifeval")
    assert output.read_bytes() == before
    # No journal is left that would refuse another function.
    found = scored(rollouts, "--reward_fn", "custom", f"{own_rewards}.brevity", "--name", "second")
    assert [row["reward_custom"] for row in found] == [row["reward_second"] for row in found] == [None, -1.0]


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


def test_rewards_of_the_documents_snippet_stay_beside_those_of_the_commands_that_it_names_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"original_kwargs": [{}], "original_instruction_id_list": ["punctuation:no_comma"], "original_key": 1}
    row = partial(a_row, original_data_source="openai/gsm8k", original_ground_truth="1", status="completed")
    rollouts = written(tmp_path / "rollouts.parquet", [row("#### 1"), row("#### 2", 1), row("1, #### 1", 2, **told)])
    monkeypatch.chdir(tmp_path)
    exec(SNIPPET, {})
    by_hand = [1.0, 0.0, 1.0]
    found = scored(rollouts, "--reward_fn", "ifeval")
    assert [row["reward"] for row in found] == [None, None, 0.0]
    assert [row["reward_before"] for row in found] == by_hand
    found = scored(rollouts, "--reward_fn", "math")
    assert [row["reward_before"] for row in found] == by_hand
    assert [row["reward_ifeval"] for row in found] == [None, None, 0.0]
    assert [row["reward"] for row in found] == [row["reward_math"] for row in found]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_columns_that_pandas_added_to_the_output_are_kept_also_beside_values_that_it_changes(
    suffix: str, tmp_path: Path, own_rewards: str
) -> None:
    # Parquet holds the mixed column as JSON text, whose mark pandas drops; of a number as text in JSONL it makes one.
    rows = [a_row("a", 0, original_mixed=[1]), a_row("bb", 1, original_mixed={"x": "y"}), a_row(None, 2)]
    rollouts = written(tmp_path / f"rollouts{suffix}", [row | {"original_answer": "1"} for row in rows])
    output, words = tmp_path / f"rollouts_with_rewards{suffix}", ("--reward_fn", "custom", f"{own_rewards}.brevity")
    scored(rollouts, *words, "--name", "first")
    notes = ["good", None, "lost"]
    if suffix == ".parquet":
        pd.read_parquet(output).assign(note=notes).to_parquet(output)
    else:
        pd.read_json(output, lines=True).assign(note=notes).to_json(output, lines=True, orient="records")
    found = scored(rollouts, *words, "--name", "second")
    assert [row.get("note") for row in found] == notes
    assert [row["reward_first"] for row in found] == [row["reward_second"] for row in found] == [-1.0, -2.0, None]


def sorted_by_response(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(mine=1.0).sort_values("response", ascending=False, ignore_index=True)


def with_another_reward(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(reward=[7.0, 7.0])


def with_one_more_row(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame.iloc[-1:]], ignore_index=True).assign(mine=[1.0, 2.0, 3.0])


def other_rollouts(frame: pd.DataFrame) -> pd.DataFrame:
    kept = [name for name in frame.columns if name != "passed" and not name.startswith("reward")]
    return frame[kept].assign(prompt="another one")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            sorted_by_response,
            r"has a column 'mine' of its own, and .* row 0 has another 'prompt' than the rollouts: name another",
        ),
        (with_another_reward, "its column 'reward' was changed since the last run and is in no other column"),
        (with_one_more_row, r"has a column 'mine' of its own, and .* row 2 is not in the rollouts"),
        (other_rollouts, "was not written by analyze-rewards, and .* row 0 has another 'prompt'"),
    ],
)
def test_what_cannot_be_carried_over_is_refused_before_anything_is_scored_or_replaced(
    changed: Callable[[pd.DataFrame], pd.DataFrame], why: str, tmp_path: Path, own_rewards: str
) -> None:
    rollouts = written(tmp_path / "rollouts.parquet", [a_row("1"), a_row("2", 1)])
    output = tmp_path / "rollouts_with_rewards.parquet"
    scored(rollouts, "--reward_fn", "custom", f"{own_rewards}.brevity")
    changed(pd.read_parquet(output)).to_parquet(output)
    before = output.read_bytes()
    with pytest.raises(ConfigurationError, match=f"would be replaced, but .*{why}"):
        analyzed(rollouts, "--reward_fn", "custom", f"{own_rewards}.counted", "--name", "second")
    assert output.read_bytes() == before
    assert not (tmp_path / "code" / "calls").exists()


def test_an_output_with_rows_that_cannot_be_read_is_not_replaced(tmp_path: Path, own_rewards: str) -> None:
    rollouts, output = written(tmp_path / "rollouts.jsonl", [a_row("1")]), tmp_path / "notes.jsonl"
    output.write_text("not for you\n")
    with pytest.raises(ConfigurationError, match=r"notes\.jsonl line 1 can't be read: .*; name another --output"):
        analyzed(rollouts, "--reward_fn", "custom", f"{own_rewards}.brevity", "--output", str(output))
    assert output.read_text() == "not for you\n"


def test_rewards_of_rows_that_are_gone_are_counted(tmp_path: Path, own_rewards: str) -> None:
    rollouts, words = tmp_path / "rollouts.jsonl", ("--reward_fn", "custom", f"{own_rewards}.brevity", "--name")
    scored(written(rollouts, [a_row("a"), a_row("bb", 1), a_row(None, 2)]), *words, "first")
    result = analyzed(written(rollouts, [a_row("a")]), *words, "second", "--json")
    assert json.loads(result.stdout)["num_changed"] == 2
    assert [row["reward_first"] for row in output_rows(rollouts)] == [-1.0]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_answers_of_word_count_rows_are_scored(suffix: str, tmp_path: Path, own_rewards: str) -> None:
    answers = [[{"role": "assistant", "content": "45 words"}], [{"role": "assistant", "content": "no"}], None]
    rows = [
        {"prompt": [{"role": "user", "content": f"{number}"}], "completion": answer, "reward": 0.2, "answer": "45"}
        for number, answer in enumerate(answers)
    ]
    found = scored(written(tmp_path / f"rollouts{suffix}", rows), "--reward_fn", "custom", f"{own_rewards}.brevity")
    assert [row["reward"] for row in found] == [-8.0, -2.0, None]
    assert found[2]["reward_failure"] == "no_response: the row has no response"


def test_a_file_without_a_column_of_answers_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    rollouts = written(tmp_path / "rollouts.jsonl", [{"prompt": "2+2=", "answer": "4"}] * 3)
    with pytest.raises(
        ConfigurationError, match=r"has no column `response`, nor `completion`, only \['prompt', 'answer'\]"
    ):
        analyzed(rollouts, "--reward_fn", "math")
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts.jsonl"]

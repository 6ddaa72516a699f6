"""The choices of --reward_fn, and where what they need is found in rows."""

from pathlib import Path
from typing import Any

import pytest

from rollstream.offline.options import ScoresOptions
from rollstream.offline.scores.columns import data_source_of, is_ours, turns_of
from rollstream.offline.scores.functions import Judging, judging_of, reward_function
from rollstream.offline.scores.request import output_beside, scores_request
from rollstream.rows.conversation import metadata_of, object_of
from rollstream.schemas.errors import ConfigurationError, RewardError


@pytest.mark.parametrize(
    ("source", "reward", "normalized", "passes"),
    [
        ("openai/gsm8k", 0.0, 0.0, False),
        ("openai/gsm8k", 1.0, 1.0, True),
        ("math_dapo", -1.0, 0.0, False),
        ("math_dapo", 0.0, 0.5, False),
        ("math_dapo", 1.0, 1.0, True),
        ("aime2025", -1.0, 0.0, False),
        ("hiyouga/geometry3k", 0.9, 0.9, True),
    ],
)
def test_each_source_says_its_range_and_what_passes(
    source: str, reward: float, normalized: float, passes: bool
) -> None:
    judging = judging_of(source)
    assert judging is not None
    assert (judging.normalized(reward), judging.passes(reward)) == (normalized, passes)


def test_a_function_is_judged_by_the_data_source_only_where_it_is_chosen_by_it() -> None:
    assert reward_function("math").judging("math_dapo") == Judging(0.0, 1.0, 1.0)
    assert reward_function("custom", path="my.reward").judging("openai/gsm8k") is None
    for source, why in (("mine", "unknown_source: .* 'mine'"), ("", "no_source: .* original_data_source")):
        with pytest.raises(RewardError, match=why):
            reward_function("auto").judging(source)


@pytest.mark.parametrize(
    ("choice", "options", "why"),
    [
        ("custom", {}, r"needs the path of your function: --reward_fn custom package\.module\.function"),
        ("math", {"path": "my.reward"}, "takes no path of a function, got 'my.reward'"),
        ("custom", {"path": "reward"}, r"'reward' is no path of a function: write package\.module\.function"),
        ("custom", {"path": "my/reward.py"}, "is no path of a function"),
        ("math", {"name": "failure"}, "take letters, digits and _, and none of normalized, failure, model"),
        ("math", {"name": "a b"}, "take letters, digits and _"),
    ],
)
def test_a_choice_that_makes_no_sense_says_what_to_change(choice: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        reward_function(choice, **options)


def test_the_output_lies_beside_the_rollouts_and_never_replaces_them(tmp_path: Path) -> None:
    assert output_beside(tmp_path / "rollouts.parquet") == tmp_path / "rollouts_with_rewards.parquet"
    assert output_beside(tmp_path / "rollouts.jsonl") == tmp_path / "rollouts_with_rewards.jsonl"
    scored = tmp_path / "rollouts_with_rewards.parquet"
    with pytest.raises(ConfigurationError, match="would be replaced by its own scores"):
        scores_request(ScoresOptions(rollouts=scored))
    with pytest.raises(ConfigurationError, match=r"out\.csv: .* \.jsonl or \.parquet"):
        scores_request(ScoresOptions(rollouts=scored, output=tmp_path / "out.csv"))


def test_the_data_source_is_the_originals_and_empty_where_there_is_none() -> None:
    assert data_source_of({"original_data_source": "openai/gsm8k", "data_source": "mine"}) == "openai/gsm8k"
    assert data_source_of({"data_source": "mine"}) == "mine"
    assert data_source_of({"original_data_source": None}) == ""


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "no_response: the row has no response"),
        ({"response": None}, "no_response: the row has no response"),
        ({"response": 4}, "bad_response: `response` must be text, or messages of the assistant, got 4"),
        ({"response": None, "failure": "engine: refused"}, "not_completed: the rollout is failed: engine: refused"),
        (
            {"response": None, "status": "unresolved", "failure": "deadline: not done"},
            "not_completed: the rollout is unresolved: deadline: not done",
        ),
        ({"response": "half an answer", "status": "failed"}, "not_completed: the rollout is failed"),
    ],
)
def test_a_row_without_a_response_says_why_it_is_not_scored(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(RewardError) as raised:
        turns_of(fields)
    assert str(raised.value) == why


def test_an_empty_response_counts_only_where_the_row_says_that_it_completed() -> None:
    assert turns_of({"response": "", "status": "completed"}) == ("",)
    with pytest.raises(RewardError, match=r"empty_response: .* some programs write that for a failed request"):
        turns_of({"response": ""})


def test_a_completion_is_the_answer_too_as_text_or_as_messages() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    turns = [call, {"role": "tool", "content": "4"}, {"role": "assistant", "content": "It is 4."}]
    assert turns_of({"completion": "4"}) == ("4",)
    assert turns_of({"completion": turns}) == ("", "It is 4.")
    assert turns_of({"completion": None, "response": "5"}) == ("5",)


@pytest.mark.parametrize(
    "completion",
    [[], {}, ["4"], [{"role": "user", "content": "4"}], [{"role": "assistant", "content": [{"text": "4"}]}]],
)
def test_a_completion_of_another_form_is_a_reason(completion: Any) -> None:
    with pytest.raises(RewardError, match="bad_response: `completion` must be text, or messages of the assistant"):
        turns_of({"completion": completion})


def test_metadata_are_the_original_columns_as_text_and_never_our_own() -> None:
    fields = {
        "prompt": "p", "response": "r", "completion": "r", "data_idx": 4, "reward": 1.0, "reward_math": 1.0,
        "passed": True,
        "original_kwargs": [{"num_words": 3}], "original_key": "k", "original_none": None, "note": 7,
        "original_extra_info": {"key": "other", "split": "train"},
    }  # fmt: skip
    assert metadata_of(fields, is_ours) == {
        "kwargs": '[{"num_words": 3}]',
        "key": "k",
        "note": "7",
        "split": "train",
        "extra_info": '{"key": "other", "split": "train"}',
    }


def test_an_object_is_one_or_its_json_text() -> None:
    assert object_of({"a": 1}) == object_of(' {"a": 1}') == {"a": 1}
    assert object_of("[1]") == object_of(None) == object_of(3) == {}

"""What a reward needs is found in rows of source document 001 and of verl's data, nested values as objects or JSON."""

from typing import Any

import pytest

from rollstream.offline.scores.columns import data_source_of, is_ours, turns_of
from rollstream.rows.conversation import metadata_of, object_of
from rollstream.schemas.errors import RewardError


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
